/** The SDK for authors of restitch transforms: typed rows in, typed rows out. */

/** A column type; `T` is what a row has for it. */
export interface Type<T> {
  readonly name: string;
  readonly nullable?: boolean;
  /** Only for the compiler. */
  readonly __value?: T;
}

export const t: {
  boolean: Type<boolean>;
  int32: Type<number>;
  int64: Type<bigint>;
  float32: Type<number>;
  float64: Type<number>;
  /** Exact: `precision` digits in all (1 to 38), `scale` of them after the point. */
  decimal(precision: number, scale: number): Type<Decimal>;
  string: Type<string>;
  /** JSON, as the text it is. */
  json: Type<string>;
  binary: Type<Uint8Array>;
  /** Days since 1970-01-01. */
  date: Type<number>;
  /** Microseconds since midnight. */
  time: Type<bigint>;
  /** Microseconds since 1970-01-01T00:00:00Z. */
  timestamp: Type<bigint>;
  nullable<T>(type: Type<T>): Type<T | null>;
};

/** An exact decimal number: `unscaled` counts units of 10^-scale. */
export class Decimal {
  constructor(unscaled: bigint | number, scale: number);
  readonly unscaled: bigint;
  readonly scale: number;
  static parse(text: string): Decimal;
  add(other: Decimal): Decimal;
  sub(other: Decimal): Decimal;
  mul(other: Decimal): Decimal;
  neg(): Decimal;
  /** -1, 0 or 1. */
  compare(other: Decimal): -1 | 0 | 1;
  /** The count of units of 10^-scale; throws where that is not exact. */
  at(scale: number): bigint;
  /** Halves go to the even neighbour. */
  round(scale: number): Decimal;
  toString(): string;
}

type Shape = Record<string, Type<any>>;

/** A declared row. */
export interface RowType<S extends Shape> {
  readonly columns: S;
}

/** The rows of a declared row type: `RowOf<typeof Order>`. */
export type RowOf<R> = R extends RowType<infer S> ? { [K in keyof S]: S[K] extends Type<infer T> ? T : never } : never;

/** What may be returned for a row: a whole number below 2^53 may stand for a BigInt. */
export type Written<R> = R extends RowType<infer S>
  ? { [K in keyof S]: S[K] extends Type<infer T> ? (bigint extends T ? T | number : T) : never }
  : never;

/** Declares a row: the columns' names and types. */
export function row<S extends Shape>(columns: S): RowType<S>;

/** One column of a batch. Zeros stand under nulls. */
export class Column<T = unknown> {
  readonly rows: number;
  /** One bit per row, set where there is a value; empty without nulls. */
  readonly validity: Uint8Array;
  /** string, json, binary: rows + 1 places in `values`. */
  readonly offsets: Int32Array;
  /**
   * A view without a copy: Int32Array (int32, date), BigInt64Array (int64, time, timestamp; decimal: low and high word of
   * each value), Float32Array, Float64Array, Uint8Array (boolean: bits; string, json, binary).
   */
  readonly values: Int32Array | BigInt64Array | Float32Array | Float64Array | Uint8Array;
  isNull(row: number): boolean;
  /** The values as rows have them. */
  toArray(): T[];
  /** A decimal column's counts of the smallest unit, 0n for null. */
  unscaled(): bigint[];
}

/** Rows that were pushed. */
export interface Batch {
  /** The name of the input that they belong to. */
  readonly input: string;
  /** How many there are. */
  readonly length: number;
  /** The rows; the type is that of the input, and given for the compiler. */
  rows<R extends RowType<any>>(type: R): RowOf<R>[];
  column(name: string): Column<any>;
}

export interface Context {
  readonly partition: string;
  /** Inclusive, UTC microseconds. */
  readonly startMicros: bigint;
  /** Exclusive, UTC microseconds. */
  readonly endMicros: bigint;
  readonly timeZone: string;
  /** The only clock. */
  readonly asOfMicros: bigint;
  /** The only randomness; `Math.random` starts from it. */
  readonly seed: bigint;
  readonly parameters: Readonly<Record<string, string>>;
}

/** Rows that are returned column by column. */
export interface Columns {
  readonly values: Record<string, unknown[] | ArrayBufferView>;
}
export function columns(values: Record<string, unknown[] | ArrayBufferView>): Columns;

export interface Parameter {
  /** Without a default it has to be given. */
  default?: string;
  help?: string;
}

/** What takes one partition's rows. */
export interface Partition<O> {
  /** Takes a batch of one input; rows that are returned are written. */
  push(batch: Batch): Iterable<Written<O>> | Columns | undefined | null | void;
  /** Returns the rows that are left. */
  finish?(): Iterable<Written<O>> | Columns | undefined | null | void;
}

export interface Declaration<O extends RowType<any>> {
  /** ASCII letters, digits, `-`, `_` and `.`. */
  name: string;
  /** The same rows must for ever come out of one version. */
  version: string;
  summary?: string;
  /** The first is the windowed input; the others are lookups, pushed whole before it. */
  inputs: Record<string, RowType<any>>;
  output: O;
  /** The output columns that identify a row inside its partition. */
  key: string[];
  parameters?: Record<string, Parameter>;
  /** Starts a partition: what it returns sees nothing but that partition. */
  begin(context: Context): Partition<O>;
}

/** Declares the transform; it is the default export of the module. */
export function transform<O extends RowType<any>>(declared: Declaration<O>): Declaration<O>;

export class ColumnError extends Error {}
/** Why a transform gives up on the partition. */
export class Failure extends Error {}
export class ParameterFailure extends Failure {}
/** A row of the batch cannot be taken; `row` counts from 0. */
export class RowFailure extends Failure {
  constructor(row: number, message: string);
  readonly row: number;
}

export const log: { debug(message: unknown): void; info(message: unknown): void; warn(message: unknown): void };

/** Runs a transform natively, for tests. */
export function run<O extends RowType<any>>(
  declared: Declaration<O>,
  inputs: Record<string, object[]>,
  parameters?: Record<string, string>,
): RowOf<O>[];

/** Makes the contract's exports; not for authors. */
export function component(declared: Declaration<any>, host: (level: string, message: string) => void): object;
