// every-type 1.0.0: every column type in and out, the same in every language that has an SDK.
// Never changes a value on its way; what it adds tells that the context, lookups and parameters arrive.
// @ts-check

import { Decimal, Failure, ParameterFailure, RowFailure, log, row, t, transform } from './restitch/restitch.js';

const every = {
  id: t.int64,
  flag: t.nullable(t.boolean),
  i32: t.nullable(t.int32),
  i64: t.nullable(t.int64),
  f32: t.nullable(t.float32),
  f64: t.nullable(t.float64),
  dec: t.nullable(t.decimal(38, 9)),
  text: t.nullable(t.string),
  doc: t.nullable(t.json),
  bytes: t.nullable(t.binary),
  day: t.nullable(t.date),
  at: t.nullable(t.time),
  ts: t.nullable(t.timestamp),
};
const Row = row(every);
const Name = row({ key: t.int64, name: t.nullable(t.string) });
const Out = row({ ...every, name: t.nullable(t.string), seen: t.int64, label: t.string, start: t.timestamp, seed: t.int64 });

/** @param {number} at @param {string | null} text */
function trouble(at, text) {
  if (text === 'refuse') throw new RowFailure(at, 'refused');
  if (text === 'panic') throw new Error('boom');
  while (text === 'loop');
  const held = [];
  while (text === 'grow') held.push(new Uint8Array(1 << 20));
}

export default transform({
  name: 'every-type',
  version: '1.0.0',
  summary: 'Every column type in and out',
  inputs: { rows: Row, names: Name },
  output: Out,
  key: ['id'],
  parameters: {
    label: { default: 'none', help: 'what the column label says' },
    scale: { default: '1', help: 'a whole number' },
  },
  begin(context) {
    log.info(`begin ${context.partition}`);
    if (!/^[+-]?\d+$/.test(context.parameters.scale)) throw new ParameterFailure('scale: not a whole number');
    const names = new Map();
    const { label } = context.parameters;
    const [start, seed] = [context.startMicros, BigInt.asIntN(64, context.seed)];
    let [seen, i64, dec, text] = [0n, 0n, new Decimal(0n, 9), ''];
    return {
      push(batch) {
        if (batch.input === 'names') {
          for (const { key, name } of batch.rows(Name)) names.set(key, name);
          return [];
        }
        return batch.rows(Row).map((read, at) => {
          trouble(at, read.text);
          const written = { ...read, name: names.get(read.id) ?? null, seen: seen++, label, start, seed };
          i64 = BigInt.asIntN(64, i64 + (read.i64 ?? 0n));
          if (read.dec !== null) dec = dec.add(read.dec);
          if (read.text) text += String.fromCodePoint(/** @type {number} */ (read.text.codePointAt(0)));
          return written;
        });
      },
      finish() {
        if (dec.unscaled >= 10n ** 38n || dec.unscaled <= -(10n ** 38n)) throw new Failure('decimal overflow');
        const nothing = { flag: null, i32: null, f32: null, f64: null, doc: null, bytes: null, day: null, at: null, ts: null, name: null };
        return [{ ...nothing, id: -1n, i64, dec, text, seen, label, start, seed }];
      },
    };
  },
});
