//! Rows that came out beside rows that are expected: which are missing, which are too many, which values differ.
//! Never compares as text: values are equal if a run's checksum takes them for equal.
//! `trial` shows what it finds.

use crate::{
    checksum::Encoder,
    decode::{write_line, write_value},
    schema::Field,
};
use arrow::{
    array::{ArrayRef, RecordBatch, UInt32Array},
    compute::{SortColumn, SortOptions, concat_batches, lexsort_to_indices, take_record_batch},
    datatypes::SchemaRef,
    error::ArrowError,
};
use std::cmp::Ordering;

/// What two sets of rows do not share, as JSON of rows and values.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Difference {
    /// Rows that are expected and did not come.
    pub missing: Vec<String>,
    /// Rows that came and are not expected.
    pub extra: Vec<String>,
    /// Rows with the same key and other values.
    pub changed: Vec<Changed>,
}

/// A row that came out otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Changed {
    /// Its key, such as `customer_id "A"`.
    pub key: String,
    /// Column, what is expected, what came.
    pub values: Vec<(String, String, String)>,
}

/// Rows in the order of a published partition.
pub(super) struct Rows<'f> {
    fields: &'f [Field],
    /// Columns in the order that rows are sorted by; the key's come first.
    order: Vec<usize>,
    pub(super) batch: RecordBatch,
    /// Of each row and column, in that order, the bytes that a checksum takes.
    encoded: Vec<Vec<Vec<u8>>>,
}

impl<'f> Rows<'f> {
    pub(super) fn sorted(fields: &'f [Field], order: &[usize], schema: SchemaRef, batches: &[RecordBatch]) -> Result<Rows<'f>, ArrowError> {
        let columns = |b: &RecordBatch| RecordBatch::try_new(schema.clone(), b.columns().to_vec());
        let batches = batches.iter().map(columns).collect::<Result<Vec<_>, _>>()?;
        let all = concat_batches(&schema, &batches)?;
        let options = Some(SortOptions { descending: false, nulls_first: true });
        let by: Vec<SortColumn> = order.iter().map(|i| SortColumn { values: all.column(*i).clone(), options }).collect();
        let places = if all.num_rows() == 0 { UInt32Array::from(Vec::<u32>::new()) } else { lexsort_to_indices(&by, None)? };
        let batch = take_record_batch(&all, &places)?;
        let encode = |row: usize| {
            let value = |i: &usize| {
                let mut bytes = Vec::new();
                let column: &ArrayRef = batch.column(*i);
                Encoder::new(fields[*i].data_type, column.as_ref()).put(row, &mut bytes);
                bytes
            };
            order.iter().map(value).collect::<Vec<_>>()
        };
        let encoded = (0..batch.num_rows()).map(encode).collect();
        Ok(Rows { fields, order: order.to_vec(), batch, encoded })
    }

    pub(super) fn len(&self) -> usize {
        self.batch.num_rows()
    }

    /// Returns the first row whose key the row before it has as well.
    pub(super) fn doubled(&self, key: usize) -> Option<String> {
        let place = self.encoded.windows(2).position(|w| w[0][..key] == w[1][..key])?;
        Some(self.line(place + 1))
    }

    /// Returns what `got` has otherwise than these rows, if anything; the first `key` columns of the order are the key.
    pub(super) fn difference(&self, got: &Rows, key: usize) -> Option<Difference> {
        let mut difference = Difference::default();
        // Encoded bytes need not sort as the values do: both sides are gone through in the order of their bytes.
        let (mine, theirs) = (self.by_bytes(), got.by_bytes());
        let (mut i, mut j) = (0, 0);
        while i < mine.len() || j < theirs.len() {
            let side = match (mine.get(i), theirs.get(j)) {
                (Some(a), Some(b)) => self.encoded[*a][..key].cmp(&got.encoded[*b][..key]),
                (Some(_), None) => Ordering::Less,
                _ => Ordering::Greater,
            };
            match side {
                Ordering::Less => difference.missing.push(self.line(mine[i])),
                Ordering::Greater => difference.extra.push(got.line(theirs[j])),
                Ordering::Equal => difference.changed.extend(self.changed(mine[i], got, theirs[j], key)),
            }
            i += usize::from(side != Ordering::Greater);
            j += usize::from(side != Ordering::Less);
        }
        (difference != Difference::default()).then_some(difference)
    }

    fn by_bytes(&self) -> Vec<usize> {
        let mut places: Vec<usize> = (0..self.len()).collect();
        places.sort_by(|a, b| self.encoded[*a].cmp(&self.encoded[*b]));
        places
    }

    fn changed(&self, row: usize, got: &Rows, other: usize, key: usize) -> Option<Changed> {
        let text = |rows: &Rows, i: usize, row: usize| write_value(self.fields[i].data_type, rows.batch.column(i).as_ref(), row);
        let differs = |n: &usize| self.encoded[row][*n] != got.encoded[other][*n];
        let value = |n: usize| {
            let i = self.order[n];
            (self.fields[i].name.clone(), text(self, i, row), text(got, i, other))
        };
        let mut values: Vec<_> = (key..self.order.len()).filter(differs).map(value).collect();
        // In the order in which the columns are declared.
        values.sort_by_key(|(name, ..)| self.fields.iter().position(|f| f.name == *name));
        let key = self.order[..key].iter().map(|i| format!("{} {}", self.fields[*i].name, text(self, *i, row))).collect::<Vec<_>>().join(", ");
        (!values.is_empty()).then_some(Changed { key, values })
    }

    fn line(&self, row: usize) -> String {
        write_line(self.fields, &self.batch, row)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        decode::read_lines,
        schema::{DataType, arrow_schema},
    };

    fn difference(expected: &str, got: &str) -> Option<Difference> {
        let fields = [Field::new("n", DataType::Float64, true), Field::new("k", DataType::String, true)];
        let rows = |text: &str| {
            let batch = read_lines(&fields, text.as_bytes(), true).unwrap();
            Rows::sorted(
                &fields,
                &[1, 0],
                arrow_schema(&fields),
                &[batch.slice(0, batch.num_rows() / 2), batch.slice(batch.num_rows() / 2, batch.num_rows() - batch.num_rows() / 2)],
            )
            .unwrap()
        };
        rows(expected).difference(&rows(got), 1)
    }

    #[test]
    fn the_order_of_rows_does_not_count_and_values_do() {
        let expected = "{\"k\": \"a\", \"n\": 0.1}\n{\"k\": null, \"n\": -0.0}\n{\"k\": \"ab\", \"n\": \"NaN\"}";
        assert_eq!(difference(expected, "{\"k\": \"ab\", \"n\": \"NaN\"}\n{\"n\": 0}\n{\"k\": \"a\", \"n\": 0.1}"), None);
        assert_eq!(difference("", ""), None);
        let found = difference(expected, "{\"k\": \"a\", \"n\": 0.10000000000000001}\n{\"k\": \"b\", \"n\": 1}\n{\"k\": \"ab\"}").unwrap();
        assert_eq!(found.missing, ["{\"n\": 0.0, \"k\": null}"]);
        assert_eq!(found.extra, ["{\"n\": 1.0, \"k\": \"b\"}"]);
        assert_eq!(found.changed, [Changed { key: "k \"ab\"".into(), values: vec![("n".into(), "\"NaN\"".into(), "null".into())] }]);
    }
}
