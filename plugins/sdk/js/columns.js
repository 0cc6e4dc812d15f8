// Columns in Arrow's physical layout: read into JavaScript's values, and made of them.
// Never rounds and never wraps around: a value that its column cannot hold is an error that names column and row.
// `restitch.js` says what authors use of it. The layout is written down in types.wit.

const decoder = new TextDecoder('utf-8', { ignoreBOM: true });
const encoder = new TextEncoder();
const LOW = (1n << 64n) - 1n;

/** A value that its column cannot hold. */
export class ColumnError extends Error {
  name = 'ColumnError';
}

/** An exact decimal number: `unscaled` counts units of 10^-scale. */
export class Decimal {
  constructor(unscaled, scale) {
    this.unscaled = BigInt(unscaled);
    this.scale = scale;
  }
  static parse(text) {
    const match = /^\s*([+-]?)(\d*)(?:\.(\d*))?\s*$/.exec(text);
    if (!match || !(match[2] || match[3])) throw new ColumnError(`${JSON.stringify(text)} is no decimal number`);
    const fraction = match[3] ?? '';
    const unscaled = BigInt(match[2] + fraction);
    return new Decimal(match[1] === '-' ? -unscaled : unscaled, fraction.length);
  }
  add(other) {
    const scale = Math.max(this.scale, other.scale);
    return new Decimal(this.at(scale) + other.at(scale), scale);
  }
  sub(other) {
    return this.add(other.neg());
  }
  mul(other) {
    return new Decimal(this.unscaled * other.unscaled, this.scale + other.scale);
  }
  neg() {
    return new Decimal(-this.unscaled, this.scale);
  }
  compare(other) {
    const scale = Math.max(this.scale, other.scale);
    const [a, b] = [this.at(scale), other.at(scale)];
    return a < b ? -1 : a > b ? 1 : 0;
  }
  /** Returns the count of units of 10^-scale, if that is exact. */
  at(scale) {
    if (scale >= this.scale) return scale === this.scale ? this.unscaled : this.unscaled * 10n ** BigInt(scale - this.scale);
    const unit = 10n ** BigInt(this.scale - scale);
    if (this.unscaled % unit !== 0n) throw new ColumnError(`${this} has more than ${scale} digits after the point; round it first`);
    return this.unscaled / unit;
  }
  /** Returns the number with `scale` digits after the point; halves go to the even neighbour. */
  round(scale) {
    if (scale >= this.scale) return new Decimal(this.at(scale), scale);
    const unit = 10n ** BigInt(this.scale - scale);
    let whole = this.unscaled / unit;
    const rest = this.unscaled % unit;
    const twice = (rest < 0n ? -rest : rest) * 2n;
    if (twice > unit || (twice === unit && whole % 2n !== 0n)) whole += this.unscaled < 0n ? -1n : 1n;
    return new Decimal(whole, scale);
  }
  toString() {
    const negative = this.unscaled < 0n;
    const digits = String(negative ? -this.unscaled : this.unscaled).padStart(this.scale + 1, '0');
    const point = digits.length - this.scale;
    return (negative ? '-' : '') + digits.slice(0, point) + (this.scale ? '.' + digits.slice(point) : '');
  }
}

/** Returns a view of `bytes` as an array of that kind, of this realm: a copy only where they start in an odd place. */
function view(Kind, bytes) {
  const size = Kind.BYTES_PER_ELEMENT;
  if (bytes.byteOffset % size !== 0) bytes = bytes.slice();
  return new Kind(bytes.buffer, bytes.byteOffset, bytes.byteLength / size);
}

// Not `instanceof`: what the host hands over is of another realm.
const isBytes = (value) => ArrayBuffer.isView(value) && Object.prototype.toString.call(value) === '[object Uint8Array]';

const bytesOf = (array) => new Uint8Array(array.buffer, array.byteOffset, array.byteLength);

function fail(message) {
  throw new ColumnError(message);
}

function isNullAt(validity, row) {
  return validity.length > 0 && ((validity[row >> 3] >> (row & 7)) & 1) === 0;
}

/** Returns the values with nulls in their places. */
function withNulls(values, validity) {
  if (validity.length > 0) for (let i = 0; i < values.length; i++) if (((validity[i >> 3] >> (i & 7)) & 1) === 0) values[i] = null;
  return values;
}

/** A type whose values lie in an array of `Kind`. */
function fixed(tag, name, Kind, zero, check) {
  return {
    tag,
    name,
    zero,
    open: (values) => view(Kind, values),
    read: (column) => Array.from(column.values),
    write(values) {
      const made = new Kind(values.length);
      for (let i = 0; i < values.length; i++) made[i] = check(values[i]);
      return { offsets: new Uint8Array(0), values: bytesOf(made) };
    },
  };
}

function int32(v) {
  return typeof v === 'number' && (v | 0) === v ? v : fail('not a whole number of 32 bits');
}

function int64(v) {
  if (typeof v === 'bigint') return BigInt.asIntN(64, v) === v ? v : fail('more than 64 bits');
  return Number.isSafeInteger(v) ? BigInt(v) : fail('not a BigInt, and not a whole number below 2^53');
}

function float(v) {
  return typeof v === 'number' ? v : fail('not a number');
}

function timeOfDay(v) {
  const micros = int64(v);
  return micros >= 0n && micros < 86_400_000_000n ? micros : fail('not within a day');
}

const boolean = {
  tag: 'boolean',
  name: 'boolean',
  zero: false,
  open: (values) => view(Uint8Array, values),
  read(column) {
    const values = new Array(column.rows);
    for (let i = 0; i < values.length; i++) values[i] = ((column.values[i >> 3] >> (i & 7)) & 1) === 1;
    return values;
  },
  write(values) {
    const made = new Uint8Array((values.length + 7) >> 3);
    for (let i = 0; i < values.length; i++) {
      if (typeof values[i] !== 'boolean') fail('not true or false');
      if (values[i]) made[i >> 3] |= 1 << (i & 7);
    }
    return { offsets: new Uint8Array(0), values: made };
  },
};

function unscaled(words) {
  const low = new BigUint64Array(words.buffer, words.byteOffset, words.length);
  const values = new Array(words.length / 2);
  for (let i = 0, k = 0; i < values.length; i++, k += 2) {
    const high = words[k + 1];
    values[i] = high === 0n ? low[k] : high === -1n && words[k] < 0n ? words[k] : (high << 64n) | low[k];
  }
  return values;
}

function decimal(precision, scale) {
  const good = Number.isInteger(precision) && Number.isInteger(scale) && precision >= 1 && precision <= 38 && scale >= 0 && scale <= precision;
  if (!good) throw new RangeError(`decimal(${precision}, ${scale}): 1 to 38 digits, of which 0 to all stand after the point`);
  const end = 10n ** BigInt(precision);
  return {
    tag: 'decimal',
    val: { precision, scale },
    name: `decimal(${precision},${scale})`,
    zero: new Decimal(0n, scale),
    open: (values) => view(BigInt64Array, values),
    read: (column) => unscaled(column.values).map((n) => new Decimal(n, scale)),
    write(values) {
      const made = new BigInt64Array(values.length * 2);
      for (let i = 0; i < values.length; i++) {
        const n = values[i] instanceof Decimal ? values[i].at(scale) : fail('not a Decimal');
        if (n >= end || n <= -end) fail(`more than ${precision} digits`);
        made[2 * i] = BigInt.asIntN(64, n & LOW);
        made[2 * i + 1] = n >> 64n;
      }
      return { offsets: new Uint8Array(0), values: bytesOf(made) };
    },
  };
}

/** Returns offsets and values of pieces of bytes. */
function sized(pieces) {
  const offsets = new Int32Array(pieces.length + 1);
  let end = 0;
  for (let i = 0; i < pieces.length; i++) offsets[i + 1] = end += pieces[i].length;
  const values = new Uint8Array(end);
  for (let i = 0; i < pieces.length; i++) values.set(pieces[i], offsets[i]);
  return { offsets: bytesOf(offsets), values };
}

function text(tag, name) {
  return {
    tag,
    name,
    zero: '',
    open: (values) => view(Uint8Array, values),
    read(column) {
      const { offsets, rows } = column;
      const values = new Array(rows);
      const all = decoder.decode(column.values);
      // As many characters as bytes: all of them ASCII, and the offsets count both.
      const ascii = all.length === column.values.length;
      for (let i = 0; i < rows; i++) {
        values[i] = ascii ? all.substring(offsets[i], offsets[i + 1]) : decoder.decode(column.values.subarray(offsets[i], offsets[i + 1]));
      }
      return values;
    },
    write(values) {
      for (const value of values) {
        if (typeof value !== 'string') fail('not a string');
        if (/[\ud800-\udfff]/u.test(value)) fail('half of a character (a lone surrogate)');
      }
      const all = encoder.encode(values.join(''));
      let units = 0;
      const offsets = new Int32Array(values.length + 1);
      for (let i = 0; i < values.length; i++) offsets[i + 1] = units += values[i].length;
      if (units === all.length) return { offsets: bytesOf(offsets), values: all };
      return sized(values.map((value) => encoder.encode(value)));
    },
  };
}

const binary = {
  tag: 'binary',
  name: 'binary',
  zero: new Uint8Array(0),
  open: (values) => view(Uint8Array, values),
  read(column) {
    const values = new Array(column.rows);
    for (let i = 0; i < values.length; i++) values[i] = column.values.slice(column.offsets[i], column.offsets[i + 1]);
    return values;
  },
  write: (values) => sized(values.map((value) => (isBytes(value) ? value : fail('not a Uint8Array')))),
};

/** The column types. */
export const t = {
  boolean,
  int32: fixed('int32', 'int32', Int32Array, 0, int32),
  int64: fixed('int64', 'int64', BigInt64Array, 0n, int64),
  float32: fixed('float32', 'float32', Float32Array, 0, float),
  float64: fixed('float64', 'float64', Float64Array, 0, float),
  decimal,
  string: text('utf8', 'string'),
  json: text('json', 'json'),
  binary,
  date: fixed('date', 'date', Int32Array, 0, int32),
  time: fixed('time', 'time', BigInt64Array, 0n, timeOfDay),
  timestamp: fixed('timestamp', 'timestamp', BigInt64Array, 0n, int64),
  nullable: (type) => ({ ...type, nullable: true }),
};

/** One column of a batch that was pushed. */
export class Column {
  constructor(type, rows, buffers) {
    this.type = type;
    this.rows = rows;
    this.validity = buffers.validity;
    this.offsets = view(Int32Array, buffers.offsets);
    this.values = type.open(buffers.values);
  }
  isNull(row) {
    return isNullAt(this.validity, row);
  }
  toArray() {
    return withNulls(this.type.read(this), this.validity);
  }
  unscaled() {
    return this.type.tag === 'decimal' ? unscaled(this.values) : fail(`${this.type.name} is no decimal column`);
  }
}

/** Returns the buffers of one column. */
export function encode(name, type, values) {
  let validity = new Uint8Array(0);
  let filled = values;
  for (let i = 0; i < values.length; i++) {
    if (values[i] === undefined) fail(`column ${name}, row ${i}: undefined; write null where there is no value`);
    if (values[i] !== null) continue;
    if (!type.nullable) fail(`column ${name}, row ${i}: null, and the column is not nullable`);
    if (validity.length === 0) {
      validity = new Uint8Array((values.length + 7) >> 3).fill(255);
      if (values.length & 7) validity[validity.length - 1] = (1 << (values.length & 7)) - 1;
      filled = values.slice();
    }
    validity[i >> 3] &= ~(1 << (i & 7));
    filled[i] = type.zero;
  }
  try {
    return { validity, ...type.write(filled) };
  } catch (error) {
    if (!(error instanceof ColumnError)) throw error;
    throw new ColumnError(blame(name, type, filled) ?? `column ${name}: ${error.message}`);
  }
}

function blame(name, type, values) {
  for (let i = 0; i < values.length; i++) {
    try {
      type.write([values[i]]);
    } catch (error) {
      return `column ${name}, row ${i}: ${String(values[i]).slice(0, 60)} is no ${type.name}: ${error.message}`;
    }
  }
}
