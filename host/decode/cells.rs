//! Decoded columns, looked at row by row: single values, the hash of a row, and the bytes that its name is made of.
//! Never changes a value. `decode::parquet` names its rows by it.
//! The hashes of all rows go from column to column: so the type of each is looked at once.

use super::Scalar;
use arrow::{
    array::{Array, ArrayRef, AsArray, BinaryArray, BooleanArray, StringArray},
    buffer::NullBuffer,
    datatypes::{self as types, DataType as ArrowType},
};
use twox_hash::XxHash64;

/// A column of a declared type.
pub(super) struct Cells<'a> {
    nulls: Option<&'a NullBuffer>,
    values: CellValues<'a>,
}

enum CellValues<'a> {
    Bool(&'a BooleanArray),
    I32(&'a [i32]),
    I64(&'a [i64]),
    F32(&'a [f32]),
    F64(&'a [f64]),
    I128(&'a [i128]),
    Text(&'a StringArray),
    Bytes(&'a BinaryArray),
}

/// Returns the hash of each row: 0, then for each column in order the XXH64 of the value's bytes with the hash so far as its seed; of a null
/// the XXH64 of no bytes, with all bits of the seed turned. A value's bytes are those of [`Cells::append`] behind their 1, without a length.
pub(super) fn hashes(columns: &[Cells], rows: usize) -> Vec<i64> {
    let mut hashes = vec![0; rows];
    columns.iter().for_each(|c| c.hash(&mut hashes));
    hashes.into_iter().map(|hash| hash as i64).collect()
}

impl Cells<'_> {
    pub(super) fn of(array: &ArrayRef) -> Cells<'_> {
        let values = match array.data_type() {
            ArrowType::Boolean => CellValues::Bool(array.as_boolean()),
            ArrowType::Int32 => CellValues::I32(array.as_primitive::<types::Int32Type>().values()),
            ArrowType::Date32 => CellValues::I32(array.as_primitive::<types::Date32Type>().values()),
            ArrowType::Int64 => CellValues::I64(array.as_primitive::<types::Int64Type>().values()),
            ArrowType::Time64(_) => CellValues::I64(array.as_primitive::<types::Time64MicrosecondType>().values()),
            ArrowType::Timestamp(..) => CellValues::I64(array.as_primitive::<types::TimestampMicrosecondType>().values()),
            ArrowType::Float32 => CellValues::F32(array.as_primitive::<types::Float32Type>().values()),
            ArrowType::Float64 => CellValues::F64(array.as_primitive::<types::Float64Type>().values()),
            ArrowType::Decimal128(..) => CellValues::I128(array.as_primitive::<types::Decimal128Type>().values()),
            ArrowType::Utf8 => CellValues::Text(array.as_string()),
            ArrowType::Binary => CellValues::Bytes(array.as_binary()),
            other => unreachable!("BUG: a column of {other}"),
        };
        Cells { nulls: array.nulls(), values }
    }

    /// Returns the value of a row; `None` if it is null.
    pub(super) fn at(&self, row: usize) -> Option<Scalar<'_>> {
        if !self.is_valid(row) {
            return None;
        }
        Some(match &self.values {
            CellValues::Bool(v) => Scalar::Bool(v.value(row)),
            CellValues::I32(v) => Scalar::I32(v[row]),
            CellValues::I64(v) => Scalar::I64(v[row]),
            CellValues::F32(v) => Scalar::F32(v[row]),
            CellValues::F64(v) => Scalar::F64(v[row]),
            CellValues::I128(v) => Scalar::I128(v[row]),
            CellValues::Text(v) => Scalar::Bytes(v.value(row).as_bytes()),
            CellValues::Bytes(v) => Scalar::Bytes(v.value(row)),
        })
    }

    fn is_valid(&self, row: usize) -> bool {
        self.nulls.is_none_or(|nulls| nulls.is_valid(row))
    }

    /// Goes on with the hash of each row.
    fn hash(&self, hashes: &mut [u64]) {
        match &self.values {
            CellValues::Bool(v) => self.hash_with(hashes, |row, seed| XxHash64::oneshot(seed, &[v.value(row) as u8])),
            CellValues::I32(v) => self.hash_with(hashes, |row, seed| XxHash64::oneshot(seed, &v[row].to_le_bytes())),
            CellValues::I64(v) => self.hash_with(hashes, |row, seed| XxHash64::oneshot(seed, &v[row].to_le_bytes())),
            CellValues::F32(v) => self.hash_with(hashes, |row, seed| XxHash64::oneshot(seed, &v[row].to_le_bytes())),
            CellValues::F64(v) => self.hash_with(hashes, |row, seed| XxHash64::oneshot(seed, &v[row].to_le_bytes())),
            CellValues::I128(v) => self.hash_with(hashes, |row, seed| XxHash64::oneshot(seed, &v[row].to_le_bytes())),
            CellValues::Text(v) => self.hash_with(hashes, |row, seed| XxHash64::oneshot(seed, v.value(row).as_bytes())),
            CellValues::Bytes(v) => self.hash_with(hashes, |row, seed| XxHash64::oneshot(seed, v.value(row))),
        }
    }

    fn hash_with(&self, hashes: &mut [u64], value: impl Fn(usize, u64) -> u64) {
        for (row, hash) in hashes.iter_mut().enumerate() {
            *hash = if self.is_valid(row) { value(row, *hash) } else { XxHash64::oneshot(!*hash, &[]) };
        }
    }

    /// Appends the bytes that stand for the value of a row: 0 for null; 1 and then the value, little-endian, a text or bytes with their length in
    /// eight bytes before them.
    pub(super) fn append(&self, row: usize, out: &mut Vec<u8>) {
        let Some(value) = self.at(row) else { return out.push(0) };
        out.push(1);
        match value {
            Scalar::Bool(b) => out.push(b as u8),
            Scalar::I32(n) => out.extend_from_slice(&n.to_le_bytes()),
            Scalar::I64(n) => out.extend_from_slice(&n.to_le_bytes()),
            Scalar::F32(f) => out.extend_from_slice(&f.to_le_bytes()),
            Scalar::F64(f) => out.extend_from_slice(&f.to_le_bytes()),
            Scalar::I128(n) => out.extend_from_slice(&n.to_le_bytes()),
            Scalar::Bytes(b) => {
                out.extend_from_slice(&(b.len() as u64).to_le_bytes());
                out.extend_from_slice(b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::Int64Array;
    use std::sync::Arc;

    #[test]
    fn the_hash_of_a_row_tells_values_nulls_and_columns_apart() {
        let texts: ArrayRef = Arc::new(StringArray::from(vec![Some("ab"), Some(""), None, Some("a"), Some("")]));
        let more: ArrayRef = Arc::new(StringArray::from(vec![Some(""), Some("ab"), Some("ab"), Some("b"), None]));
        let numbers: ArrayRef = Arc::new(Int64Array::from(vec![Some(7), Some(7), Some(7), None, Some(7)]));
        let columns = [&texts, &more, &numbers].map(Cells::of);
        let found = hashes(&columns, 5);
        // By the words of `hashes`; a hash that is landed does not change.
        let first = XxHash64::oneshot(XxHash64::oneshot(XxHash64::oneshot(0, b"ab"), b""), &7i64.to_le_bytes());
        let fourth = XxHash64::oneshot(!XxHash64::oneshot(XxHash64::oneshot(0, b"a"), b"b"), b"");
        assert_eq!((found[0] as u64, found[3] as u64), (first, fourth));
        assert_eq!(found.iter().collect::<std::collections::HashSet<_>>().len(), 5, "{found:?}");
        let mut bytes = vec![];
        [0, 1, 2].iter().for_each(|c| columns[*c].append(3, &mut bytes));
        assert_eq!(bytes, [&[1, 1, 0, 0, 0, 0, 0, 0, 0, b'a'][..], &[1, 1, 0, 0, 0, 0, 0, 0, 0, b'b'], &[0]].concat());
    }
}
