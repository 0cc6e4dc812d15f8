//! The canonical encoding of rows, and the content checksums that stand on it.
//! Never depends on Parquet, on batches, or on who wrote the rows. Written down in ARCHITECTURE.md.
//! `execute` feeds it the rows of a partition in order; `doctor` and replays compare what it says.

use crate::{
    id::Digest,
    schema::{DataType, Field},
};
use arrow::{
    array::{Array, AsArray, RecordBatch},
    buffer::NullBuffer,
    datatypes::{Date32Type, Decimal128Type, Float32Type, Float64Type, Int32Type, Int64Type, Time64MicrosecondType, TimestampMicrosecondType},
};
use sha2::{Digest as _, Sha256};

/// Hash the buffer when it holds this much.
const CHUNK_BYTES: usize = 1 << 16;

/// A content checksum in the making: rows are fed in order, in batches of any size.
pub struct ContentHash {
    hash: Sha256,
    buffer: Vec<u8>,
    columns: Vec<DataType>,
}

impl ContentHash {
    /// Returns the checksum of no rows with these columns. Names and types count; nullability does not.
    pub fn new(fields: &[Field]) -> ContentHash {
        let mut buffer = Vec::with_capacity(2 * CHUNK_BYTES);
        buffer.extend_from_slice(b"restitch rows 1\n");
        for field in fields {
            put_bytes(&mut buffer, field.name.as_bytes());
            put_bytes(&mut buffer, field.data_type.to_string().as_bytes());
        }
        ContentHash { hash: Sha256::new(), buffer, columns: fields.iter().map(|f| f.data_type).collect() }
    }

    /// Adds the rows of `batch`, whose first columns are the declared ones, in order.
    pub fn update(&mut self, batch: &RecordBatch) {
        let columns: Vec<Encoder> = self.columns.iter().zip(batch.columns()).map(|(t, a)| Encoder::new(*t, a.as_ref())).collect();
        for row in 0..batch.num_rows() {
            for column in &columns {
                column.put(row, &mut self.buffer);
            }
            if self.buffer.len() >= CHUNK_BYTES {
                self.hash.update(&self.buffer);
                self.buffer.clear();
            }
        }
    }

    /// Returns the checksum.
    pub fn finish(mut self) -> Digest {
        self.hash.update(&self.buffer);
        Digest(self.hash.finalize().into())
    }
}

/// Encodes the values of one column.
pub struct Encoder<'a> {
    nulls: Option<&'a NullBuffer>,
    values: Values<'a>,
}

enum Values<'a> {
    Boolean(&'a arrow::array::BooleanArray),
    Int32(&'a [i32]),
    Int64(&'a [i64]),
    Float32(&'a [f32]),
    Float64(&'a [f64]),
    Decimal(&'a [i128]),
    Text(&'a arrow::array::StringArray),
    Binary(&'a arrow::array::BinaryArray),
}

impl<'a> Encoder<'a> {
    /// Returns the encoder of `array`, which holds values of `data_type` as [`DataType::arrow`] says.
    pub fn new(data_type: DataType, array: &'a dyn Array) -> Encoder<'a> {
        let values = match data_type {
            DataType::Boolean => Values::Boolean(array.as_boolean()),
            DataType::Int32 => Values::Int32(array.as_primitive::<Int32Type>().values()),
            DataType::Int64 => Values::Int64(array.as_primitive::<Int64Type>().values()),
            DataType::Float32 => Values::Float32(array.as_primitive::<Float32Type>().values()),
            DataType::Float64 => Values::Float64(array.as_primitive::<Float64Type>().values()),
            DataType::Decimal(..) => Values::Decimal(array.as_primitive::<Decimal128Type>().values()),
            DataType::String | DataType::Json => Values::Text(array.as_string()),
            DataType::Binary => Values::Binary(array.as_binary()),
            DataType::Date => Values::Int32(array.as_primitive::<Date32Type>().values()),
            DataType::Time => Values::Int64(array.as_primitive::<Time64MicrosecondType>().values()),
            DataType::Timestamp => Values::Int64(array.as_primitive::<TimestampMicrosecondType>().values()),
        };
        Encoder { nulls: array.nulls().filter(|n| n.null_count() > 0), values }
    }

    /// Returns whether the value in `row` is null.
    #[inline]
    pub fn is_null(&self, row: usize) -> bool {
        self.nulls.is_some_and(|n| n.is_null(row))
    }

    /// Appends the value in `row`: a zero byte for null, else a one and the value. Numbers are
    /// little-endian, text and bytes carry their length first, -0.0 is 0.0 and every NaN is the same.
    #[inline]
    pub fn put(&self, row: usize, out: &mut Vec<u8>) {
        if self.is_null(row) {
            out.push(0);
            return;
        }
        out.push(1);
        match &self.values {
            Values::Boolean(a) => out.push(a.value(row) as u8),
            Values::Int32(v) => out.extend_from_slice(&v[row].to_le_bytes()),
            Values::Int64(v) => out.extend_from_slice(&v[row].to_le_bytes()),
            Values::Float32(v) => out.extend_from_slice(&one_f32(v[row]).to_le_bytes()),
            Values::Float64(v) => out.extend_from_slice(&one_f64(v[row]).to_le_bytes()),
            Values::Decimal(v) => out.extend_from_slice(&v[row].to_le_bytes()),
            Values::Text(a) => put_bytes(out, a.value(row).as_bytes()),
            Values::Binary(a) => put_bytes(out, a.value(row)),
        }
    }
}

/// Returns the number with the one set of bits that equal ones have: -0.0 is 0.0, and every NaN is the quiet one.
#[inline]
pub fn one_f32(x: f32) -> f32 {
    if x.is_nan() { f32::NAN } else { x + 0.0 }
}

/// As [`one_f32`].
#[inline]
pub fn one_f64(x: f64) -> f64 {
    if x.is_nan() { f64::NAN } else { x + 0.0 }
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
    out.extend_from_slice(bytes);
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{Float64Array, Int64Array, StringArray};
    use std::sync::Arc;

    fn fields() -> Vec<Field> {
        vec![Field::new("name", DataType::String, true), Field::new("n", DataType::Int64, false), Field::new("x", DataType::Float64, true)]
    }

    fn batch(names: &[Option<&str>], n: &[i64], x: &[Option<f64>]) -> RecordBatch {
        let columns: Vec<arrow::array::ArrayRef> =
            vec![Arc::new(StringArray::from(names.to_vec())), Arc::new(Int64Array::from(n.to_vec())), Arc::new(Float64Array::from(x.to_vec()))];
        RecordBatch::try_new(crate::schema::arrow_schema(&fields()), columns).unwrap()
    }

    fn checksum(batches: &[RecordBatch]) -> String {
        let mut hash = ContentHash::new(&fields());
        batches.iter().for_each(|b| hash.update(b));
        hash.finish().to_string()
    }

    /// A released encoding never changes: every manifest holds such a checksum.
    #[test]
    fn the_encoding_is_pinned() {
        let all = batch(&[Some("ä"), None], &[1, -2], &[Some(-0.0), Some(f64::NAN)]);
        assert_eq!(checksum(std::slice::from_ref(&all)), "b372d3327489d73661d153a6e617f889569f09801e03a8e1b5a10fff5afb327a");
    }

    #[test]
    fn batches_do_not_count_but_rows_and_nulls_do() {
        let all = batch(&[Some("a"), None, Some("")], &[1, 2, 3], &[Some(0.0), None, Some(1.5)]);
        let whole = checksum(std::slice::from_ref(&all));
        assert_eq!(whole, checksum(&[all.slice(0, 1), all.slice(1, 2)]));
        assert_eq!(whole, checksum(&[batch(&[Some("a"), None, Some("")], &[1, 2, 3], &[Some(-0.0), None, Some(1.5)])]));
        assert_ne!(whole, checksum(&[batch(&[Some("a"), Some(""), Some("")], &[1, 2, 3], &[Some(0.0), None, Some(1.5)])]));
        assert_ne!(whole, checksum(&[all.slice(1, 2), all.slice(0, 1)]));
    }
}
