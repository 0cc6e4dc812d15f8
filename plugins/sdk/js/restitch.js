// The SDK for authors of restitch transforms: typed rows in, typed rows out.
// Never does any I/O: a transform has its input, its parameters and a log, and nothing else.
// It sits between your code and the contract in wit/restitch-transform-1.0.0. Types are in restitch.d.ts.

import { Column, ColumnError, Decimal, encode, t } from './columns.js';

export { Column, ColumnError, Decimal, t };

/** Rows that `finish` returns in one batch. */
const BATCH_ROWS = 8192;

/** Why a transform gives up on the partition. */
export class Failure extends Error {
  name = 'Failure';
}

/** A parameter has a value that makes no sense. */
export class ParameterFailure extends Failure {
  name = 'ParameterFailure';
}

/** A row of the batch that was pushed cannot be taken; `row` counts from 0. */
export class RowFailure extends Failure {
  name = 'RowFailure';
  constructor(row, message) {
    super(message);
    this.row = row;
  }
}

/** Lines for the partition's log. Outside of a component they go to the console. */
let sink = (level, message) => console.error(`${level}: ${message}`);
export const log = {
  debug: (message) => sink('debug', String(message)),
  info: (message) => sink('info', String(message)),
  warn: (message) => sink('warn', String(message)),
};

/** Declares a row: the columns' names and types. */
export function row(columns) {
  const names = Object.keys(columns);
  const types = names.map((name) => columns[name] ?? fail(`column ${name} has no type`));
  return { columns, names, types, make: maker(names) };
}

/** Rows to return, column by column; a column is an array of values, or a typed array that holds its buffer. */
export function columns(values) {
  return new Columns(values);
}

class Columns {
  constructor(values) {
    this.values = values;
  }
}

/** Declares the transform; it is the default export of the module. */
export function transform(declared) {
  for (const part of ['name', 'version', 'inputs', 'output', 'key', 'begin']) if (!(part in declared)) fail(`the transform has no ${part}`);
  for (const type of [declared.output, ...Object.values(declared.inputs)]) if (!type?.names) fail('inputs and output are made by row({ … })');
  return declared;
}

function fail(message) {
  throw new TypeError(message);
}

/** Returns the function that makes rows of columns. Made of text: every field by its name is twice as fast as a loop. */
function maker(names) {
  const fields = names.map((name, k) => `${name === '__proto__' ? '["__proto__"]' : JSON.stringify(name)}: c${k}[i]`).join(', ');
  const columns = names.map((_, k) => `c${k}`).join(', ');
  return new Function(columns, 'n', `const rows = new Array(n); for (let i = 0; i < n; i++) rows[i] = { ${fields} }; return rows;`);
}

class Batch {
  constructor(input, type, rows, buffers) {
    this.input = input;
    this.length = rows;
    this.type = type;
    this.buffers = buffers;
  }
  rows() {
    const { names, types } = this.type;
    return this.type.make(...names.map((_, k) => new Column(types[k], this.length, this.buffers[k]).toArray()), this.length);
  }
  column(name) {
    const k = this.type.names.indexOf(name);
    if (k < 0) fail(`input ${this.input} has no column ${name}`);
    return new Column(this.type.types[k], this.length, this.buffers[k]);
  }
}

/** Drives a transform through one partition, in the contract's terms: plain buffers. */
class Runner {
  constructor(declared) {
    this.declared = declared;
    this.inputs = Object.entries(declared.inputs);
  }
  describe() {
    const { name, version, summary = '', output, key, parameters = {} } = this.declared;
    return {
      name,
      version,
      summary,
      inputs: this.inputs.map(([name, type]) => ({ name, fields: fields(type) })),
      output: fields(output),
      key,
      parameters: Object.entries(parameters).map(([name, p]) => ({ name, default: p.default, help: p.help ?? '' })),
    };
  }
  begin(context) {
    this.rest = undefined;
    this.state = this.declared.begin(context) ?? fail('begin returns an object with push and finish');
  }
  push(input, rows, buffers) {
    const [name, type] = this.inputs[input];
    return this.batch(this.state.push(new Batch(name, type, rows, buffers)));
  }
  finish() {
    if (this.rest === undefined) {
      const returned = this.state.finish?.() ?? [];
      if (returned instanceof Columns) {
        this.rest = [][Symbol.iterator]();
        return this.batch(returned);
      }
      this.rest = returned[Symbol.iterator]();
    }
    const rows = [];
    while (rows.length < BATCH_ROWS) {
      const next = this.rest.next();
      if (next.done) break;
      rows.push(next.value);
    }
    return this.batch(rows);
  }
  batch(returned) {
    if (returned === undefined || returned === null) return undefined;
    const { names, types } = this.declared.output;
    if (returned instanceof Columns) return filled(names, types, returned.values);
    const rows = Array.isArray(returned) ? returned : Array.from(returned);
    if (rows.length === 0) return undefined;
    const columns = names.map((name, k) => {
      const values = new Array(rows.length);
      for (let i = 0; i < rows.length; i++) values[i] = rows[i][name];
      return encode(name, types[k], values);
    });
    return { rows: rows.length, columns };
  }
}

function filled(names, types, values) {
  let rows;
  const columns = names.map((name, k) => {
    const given = values[name] ?? fail(`column ${name} is missing`);
    const [count, buffers] = Array.isArray(given) ? [given.length, encode(name, types[k], given)] : raw(name, types[k], given);
    if (count !== (rows ??= count)) throw new ColumnError(`column ${name}: ${count} rows, and the first column has ${rows}`);
    return buffers;
  });
  return rows ? { rows, columns } : undefined;
}

function raw(name, type, given) {
  const kinds = { int32: 4, date: 4, float32: 4, int64: 8, float64: 8, time: 8, timestamp: 8, decimal: 16 };
  const size = kinds[type.tag] ?? fail(`column ${name}: a ${type.name} column is given as an array of values`);
  const none = new Uint8Array(0);
  return [given.byteLength / size, { validity: none, offsets: none, values: new Uint8Array(given.buffer, given.byteOffset, given.byteLength) }];
}

function fields(type) {
  return type.names.map((name, k) => {
    const { tag, val, nullable = false } = type.types[k];
    return { name, dataType: { tag, val }, nullable };
  });
}

function context(given) {
  const parameters = Object.fromEntries(given.parameters);
  // The glue hands signed 64-bit numbers over as unsigned ones: before 1970 that shows.
  const [startMicros, endMicros, asOfMicros] = [given.startMicros, given.endMicros, given.asOfMicros].map((n) => BigInt.asIntN(64, n));
  return { ...given, startMicros, endMicros, asOfMicros, parameters };
}

/** Makes the contract's exports of a transform; not for authors. `host` is the contract's `log`. */
export function component(declared, host) {
  if (!declared?.inputs) throw new TypeError('transform.js has no default export made by transform({ … })');
  sink = host;
  forbidClock();
  const runner = new Runner(declared);
  const guarded = (call) => {
    try {
      return call();
    } catch (error) {
      if (error instanceof RowFailure) throw { payload: { tag: 'row', val: { row: error.row, message: error.message } } };
      if (error instanceof ParameterFailure) throw { payload: { tag: 'parameters', val: error.message } };
      if (error instanceof Failure) throw { payload: { tag: 'other', val: error.message } };
      report(error);
      // What is no Error would be taken for a failure of the contract; an Error ends the instance.
      throw error instanceof Error ? error : new Error(String(error));
    }
  };
  return {
    describe: () => runner.describe(),
    begin: (given) =>
      guarded(() => {
        seedRandom(given.seed);
        runner.begin(context(given));
      }),
    push: (input, batch) => guarded(() => runner.push(input, batch.rows, batch.columns)),
    finish: () => guarded(() => runner.finish()),
  };
}

/** Logs where an error came from, and as the last line what it is: the host shows that one as the reason. */
function report(error) {
  const frames = String(error?.stack ?? '').split('\n').map((line) => /^(.*)@(.*?):(\d+)(?::\d+)?$/.exec(line)).filter(Boolean);
  const own = frames.filter(([, , file]) => !/(^|\/)(restitch\/(restitch|columns)|restitch-entry|initializer)\.js/.test(file));
  const places = own.map(([, name, file, line]) => `${file.replace(/^\/+/, '')}:${line}${name ? `, in ${name.replace(/[/<]+$/, '')}` : ''}`);
  for (const place of places.slice(1).reverse()) sink('error', `called from ${place}`);
  const what = error instanceof Error ? `${error.name}: ${error.message}` : `thrown: ${String(error)}`;
  sink('error', places.length ? `${what} (${places[0]})` : what);
}

/** Without this a clock would show the moment of the build. */
function forbidClock() {
  const clock = () => {
    throw new Error('a transform has no clock: use context.asOfMicros');
  };
  const Real = globalThis.Date;
  globalThis.Date = new Proxy(Real, {
    apply: clock,
    construct: (target, values, fresh) => (values.length ? Reflect.construct(target, values, fresh) : clock()),
    get: (target, name) => (name === 'now' ? clock : Reflect.get(target, name)),
  });
  if (globalThis.performance) globalThis.performance.now = clock;
}

/** Makes `Math.random` a generator (sfc32) that starts from the context's seed. */
function seedRandom(seed) {
  let [a, b, c, d] = [Number(seed & 0xffffffffn), Number((seed >> 32n) & 0xffffffffn), 0x9e3779b9, 1];
  Math.random = () => {
    const sum = (((a + b) | 0) + d) | 0;
    d = (d + 1) | 0;
    a = b ^ (b >>> 9);
    b = (c + (c << 3)) | 0;
    c = (((c << 21) | (c >>> 11)) + sum) | 0;
    return (sum >>> 0) / 4294967296;
  };
  for (let i = 0; i < 15; i++) Math.random();
}

/** Runs a transform natively, for tests: rows by the name of their input; returns the rows that come out. */
export function run(declared, inputs, given = {}) {
  const runner = new Runner(declared);
  const known = declared.parameters ?? {};
  for (const name of Object.keys(given)) if (!(name in known)) throw new ParameterFailure(`there is no parameter ${name}`);
  const parameters = Object.entries(known).map(([name, p]) => [name, given[name] ?? p.default ?? missing(name)]);
  const [startMicros, endMicros] = [1_777_593_600_000_000n, 1_777_680_000_000_000n];
  runner.begin(context({ partition: '2026-05-01', startMicros, endMicros, timeZone: 'UTC', asOfMicros: endMicros, seed: 0n, parameters }));
  const found = [];
  const take = (batch) => {
    if (batch) found.push(...new Batch('output', declared.output, batch.rows, batch.columns).rows());
    return batch !== undefined;
  };
  for (const at of [...runner.inputs.keys()].slice(1).concat(0)) {
    const [name, type] = runner.inputs[at];
    const rows = inputs[name] ?? [];
    const encoded = type.names.map((column, k) => encode(column, type.types[k], rows.map((r) => r[column])));
    if (rows.length) take(runner.push(at, rows.length, encoded));
  }
  while (take(runner.finish()));
  return found;
}

function missing(name) {
  throw new ParameterFailure(`the parameter ${name} has to be given`);
}
