// The SDK without a host: values survive the way through columns, and what does not fit is named.
// Run it with `node --test plugins/sdk/js/test/`.

import assert from 'node:assert/strict';
import { cpSync, mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath, pathToFileURL } from 'node:url';

// A project as `transform new` leaves it: the SDK in its folder `restitch`.
const plugins = fileURLToPath(new URL('../../..', import.meta.url));
const folder = mkdtempSync(join(tmpdir(), 'restitch-sdk-'));
after(() => rmSync(folder, { recursive: true }));
cpSync(join(plugins, 'js/every-type'), folder, { recursive: true });
cpSync(join(plugins, 'sdk/js'), join(folder, 'restitch'), { recursive: true });
const { default: everyType } = await import(pathToFileURL(join(folder, 'transform.js')));
const { Column, Decimal, columns, component, log, row, run, t, transform } = await import(pathToFileURL(join(folder, 'restitch/restitch.js')));
const { encode } = await import(pathToFileURL(join(folder, 'restitch/columns.js')));

const nulls = { id: 1n, flag: null, i32: null, i64: null, f32: null, f64: null, dec: null, text: null, doc: null, bytes: null, day: null, at: null, ts: null };
const extreme = {
  id: -(2n ** 63n),
  flag: true,
  i32: -(2 ** 31),
  i64: 2n ** 63n - 1n,
  f32: -0,
  f64: Infinity,
  dec: new Decimal(10n ** 38n - 1n, 9),
  text: '\ufeffa\0😀',
  doc: '{}',
  bytes: new Uint8Array([255]),
  day: -(2 ** 31),
  at: 0n,
  ts: -(2n ** 63n),
};

test('every type survives', () => {
  const rows = [extreme, nulls, { ...extreme, dec: new Decimal(-1n, 9), text: '' }];
  const out = run(everyType, { rows, names: [{ key: 1n, name: 'x' }, { key: 1n, name: 'ü' }] });
  out.slice(0, 3).forEach((found, i) => Object.keys(nulls).forEach((name) => assert.deepEqual(found[name], rows[i][name], name)));
  assert.ok(Object.is(out[0].f32, -0));
  assert.deepEqual(out.map((r) => r.name), [null, 'ü', null, null]);
  assert.deepEqual([out[3].i64, out[3].text, out[3].seen], [-2n, '\ufeff', 3n]);
  assert.throws(() => run(everyType, { rows: [extreme, extreme] }), /decimal overflow/);
  assert.throws(() => run(everyType, { rows: [{ ...extreme, text: 'refuse' }] }), /refused/);
  assert.throws(() => run(everyType, {}, { scale: '1.5' }), /scale: not a whole number/);
});

test('words of decimals', () => {
  for (const n of [0n, 1n, -1n, 2n ** 63n, -(2n ** 63n), 2n ** 64n, -(2n ** 64n), 2n ** 64n - 1n, -(10n ** 38n) + 1n]) {
    const column = new Column(t.decimal(38, 0), 1, encode('d', t.decimal(38, 0), [new Decimal(n, 0)]));
    assert.equal(column.toArray()[0].unscaled, n);
  }
  assert.equal(String(Decimal.parse('-12.345').round(2)), '-12.34');
  assert.equal(String(Decimal.parse('0.05').add(Decimal.parse('-1'))), '-0.95');
  assert.equal(Decimal.parse('1.50').compare(Decimal.parse('1.5')), 0);
  assert.throws(() => Decimal.parse('1e5'), /no decimal/);
});

test('what does not fit is named', () => {
  const cases = [
    [t.int32, 2 ** 31, /column c, row 1: 2147483648 is no int32/],
    [t.int64, 2n ** 63n, /more than 64 bits/],
    [t.int64, 2 ** 53, /not a BigInt/],
    [t.boolean, 1, /not true or false/],
    [t.float64, '1', /not a number/],
    [t.decimal(5, 2), Decimal.parse('1.005'), /more than 2 digits after the point/],
    [t.decimal(5, 2), Decimal.parse('1000'), /more than 5 digits/],
    [t.string, '\ud800', /lone surrogate/],
    [t.binary, 'x', /not a Uint8Array/],
    [t.time, 86_400_000_000n, /not within a day/],
    [t.string, null, /column c, row 1: null, and the column is not nullable/],
    [t.string, undefined, /column c, row 1: undefined/],
  ];
  for (const [type, value, message] of cases) assert.throws(() => encode('c', type, [type.zero, value]), message);
  assert.throws(() => t.decimal(39, 0), /1 to 38 digits/);
});

const Number = row({ n: t.int64, name: t.nullable(t.string) });
const numbers = transform({
  name: 'numbers',
  version: '1',
  inputs: { rows: Number },
  output: Number,
  key: ['n'],
  parameters: { left: { default: '0' } },
  begin: (context) => ({
    push: (batch) => columns({ n: batch.column('n').values, name: new Array(batch.length).fill(null) }),
    *finish() {
      for (let n = 0; n < context.parameters.left; n++) yield { n, name: `${n}` };
    },
  }),
});

test('columns, batches of the end, and what the host sees', () => {
  const lines = [];
  const guest = component(numbers, (level, message) => lines.push(`${level}: ${message}`));
  assert.deepEqual(guest.describe().inputs[0].fields[1], { name: 'name', dataType: { tag: 'utf8', val: undefined }, nullable: true });
  const context = (left) => ({ partition: 'p', startMicros: 0n, endMicros: 1n, timeZone: 'UTC', asOfMicros: 0n, seed: 7n, parameters: [['left', left]] });
  guest.begin(context('20000'));
  const random = Math.random();
  const buffers = [encode('n', t.int64, [1n, 2n]), encode('name', Number.types[1], [null, null])];
  assert.deepEqual(guest.push(0, { rows: 2, columns: buffers }), { rows: 2, columns: buffers });
  const sizes = [];
  for (let batch = guest.finish(); batch; batch = guest.finish()) sizes.push(batch.rows);
  assert.deepEqual(sizes, [8192, 8192, 3616]);
  guest.begin(context('0'));
  assert.equal(Math.random(), random);
  assert.throws(() => Date.now(), /no clock/);
  assert.throws(() => new Date(), /no clock/);
  assert.equal(new Date(0).getTime(), 0);
  log.info('x');
  assert.throws(() => guest.push(0, { rows: 1, columns: [] }));
  assert.equal(lines[0], 'info: x');
  assert.match(lines.at(-1), /^error: TypeError: /);
});
