//! Published rows and a run's rows of one partition, both in its order, become the partition's new rows.
//! Never holds more than a batch of each; the rows that leave are in the same order, so they are checksummed as they come.
//! `output` sorts what comes in and writes what goes out; the counts stand in the manifest.

use super::{
    ExecuteError, Job, OutsideRow,
    output::{Batches, WRITE_BYTES_MAX, WRITE_ROWS},
};
use crate::{
    checksum::{Encoder, one_f32, one_f64},
    datafile::{DataFileError, Reader},
    manifest::Write,
    plan::PlannedPartition,
    query::used_bytes,
    schema::Field,
    time::EventTime,
    window::Window,
};
use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch},
    compute::interleave_record_batch,
    datatypes::{DataType as ArrowType, Float32Type, Float64Type, TimestampMicrosecondType},
    error::ArrowError,
    row::{RowConverter, Rows, SortField},
    util::display::array_value_to_string,
};
use std::{cmp::Ordering, sync::Arc};

/// What became of rows.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Merged {
    /// Rows of the run whose key was not there; in a delete-insert all of them.
    pub(crate) inserted: u64,
    /// Merge: rows of the run that differ from the one of their key.
    pub(crate) updated: Option<u64>,
    /// Merge: rows of the run that were there already.
    pub(crate) unchanged: Option<u64>,
    /// Published rows that stay.
    pub(crate) target_only: u64,
    /// Delete-insert: published rows in the window.
    pub(crate) deleted: Option<u64>,
}

/// Returns the published rows of a partition as they stand in its files; columns that these lack are null.
pub(super) fn base_rows<'b>(job: &'b Job, partition: &'b PlannedPartition, fields: &'b [Field]) -> Batches<'b> {
    let files = job.bases.get(partition.name.as_str()).map(|b| b.files.as_slice()).unwrap_or_default();
    let scan = |path: &str| -> Box<dyn Iterator<Item = Result<RecordBatch, DataFileError>> + 'b> {
        match Reader::open(job.store, path).and_then(|r| r.scan(fields, &[], WRITE_ROWS)) {
            Ok(scan) => Box::new(scan),
            Err(e) => Box::new(std::iter::once(Err(e))),
        }
    };
    Box::new(
        files
            .iter()
            .flat_map(move |f| scan(&f.path))
            .map(|b| one_of_equals(b?).map_err(|source| ExecuteError::Arrow { partition: partition.name.clone(), source })),
    )
}

/// Returns rows with equal bits for equal floats, as a run's have: in rows that an earlier restitch has published they may differ.
fn one_of_equals(batch: RecordBatch) -> Result<RecordBatch, ArrowError> {
    let is_float = |column: &ArrayRef| matches!(column.data_type(), ArrowType::Float32 | ArrowType::Float64);
    if !batch.columns().iter().any(is_float) {
        return Ok(batch);
    }
    let column = |column: &ArrayRef| -> ArrayRef {
        match column.data_type() {
            ArrowType::Float32 => Arc::new(column.as_primitive::<Float32Type>().unary::<_, Float32Type>(one_f32)),
            ArrowType::Float64 => Arc::new(column.as_primitive::<Float64Type>().unary::<_, Float64Type>(one_f64)),
            _ => column.clone(),
        }
    };
    RecordBatch::try_new(batch.schema(), batch.columns().iter().map(column).collect())
}

/// The new rows of a partition, in its order.
pub(super) struct Merge<'m> {
    fields: &'m [Field],
    partition: &'m PlannedPartition,
    /// The columns of the key.
    key: Vec<usize>,
    /// For a delete-insert: the time column, and what the partition has of the window.
    cut: Option<(usize, Window)>,
    base: Cursor<'m>,
    run: Cursor<'m>,
    /// Batches that picked rows come from.
    sources: Vec<RecordBatch>,
    picked: Vec<(usize, usize)>,
    /// About how many bytes are picked.
    bytes: usize,
    /// The key of the row picked last, and whether the run gave it.
    last: Option<(Vec<u8>, bool)>,
    merged: Merged,
}

/// One side: its batch at hand, and the row that is next.
struct Cursor<'c> {
    batches: Batches<'c>,
    batch: Option<(RecordBatch, Rows, Rows)>,
    at: usize,
    /// Bytes of a row of the batch, about.
    row_bytes: usize,
    /// The batch's place among the sources.
    source: Option<usize>,
    /// What rows are ordered by: the key, then all other columns.
    order: (RowConverter, Vec<usize>),
    key: (RowConverter, Vec<usize>),
}

impl<'c> Cursor<'c> {
    fn new(batches: Batches<'c>, fields: &[Field], order: &[usize], key: &[usize]) -> Result<Cursor<'c>, ArrowError> {
        let converter = |columns: &[usize]| RowConverter::new(columns.iter().map(|i| SortField::new(fields[*i].data_type.arrow())).collect());
        Ok(Cursor {
            batches,
            batch: None,
            at: 0,
            row_bytes: 0,
            source: None,
            order: (converter(order)?, order.to_vec()),
            key: (converter(key)?, key.to_vec()),
        })
    }

    /// Loads the next batch if the one at hand is used up; returns whether there is a row.
    fn load(&mut self, partition: &str) -> Result<bool, ExecuteError> {
        while self.batch.as_ref().is_none_or(|(b, ..)| self.at >= b.num_rows()) {
            let Some(batch) = self.batches.next().transpose()? else {
                self.batch = None;
                return Ok(false);
            };
            let rows = |(converter, columns): &(RowConverter, Vec<usize>)| {
                let columns: Vec<_> = columns.iter().map(|i| batch.column(*i).clone()).collect();
                converter.convert_columns(&columns).map_err(|source| ExecuteError::Arrow { partition: partition.into(), source })
            };
            let (order, key) = (rows(&self.order)?, rows(&self.key)?);
            self.row_bytes = used_bytes(&batch) / batch.num_rows().max(1);
            self.batch = Some((batch, order, key));
            (self.at, self.source) = (0, None);
        }
        Ok(true)
    }

    fn row(&self) -> Option<(&RecordBatch, usize)> {
        self.batch.as_ref().map(|(batch, ..)| (batch, self.at))
    }

    fn order(&self) -> &[u8] {
        self.batch.as_ref().map_or(&[], |(_, order, _)| order.row(self.at).data())
    }

    fn key(&self) -> &[u8] {
        self.batch.as_ref().map_or(&[], |(_, _, key)| key.row(self.at).data())
    }
}

impl<'m> Merge<'m> {
    /// Returns the new rows of a partition, of its published ones and the run's, both in the order of `order`.
    ///
    /// # Errors
    /// A column cannot be compared.
    pub(super) fn new(
        (write, key_columns): (&Write, usize),
        partition: &'m PlannedPartition,
        fields: &'m [Field],
        order: &[usize],
        base: Batches<'m>,
        run: Batches<'m>,
    ) -> Result<Merge<'m>, ExecuteError> {
        let key = order[..key_columns.min(order.len())].to_vec();
        let arrow = |source| ExecuteError::Arrow { partition: partition.name.clone(), source };
        let mut merged = Merged::default();
        let cut = match write {
            Write::DeleteInsert { time_column, .. } => {
                merged.deleted = Some(0);
                fields.iter().position(|f| f.name == *time_column).map(|i| (i, write.part_of(partition.window)))
            }
            _ => {
                (merged.updated, merged.unchanged) = (Some(0), Some(0));
                None
            }
        };
        Ok(Merge {
            base: Cursor::new(base, fields, order, &key).map_err(arrow)?,
            run: Cursor::new(run, fields, order, &key).map_err(arrow)?,
            fields,
            partition,
            key,
            cut,
            sources: Vec::new(),
            picked: Vec::new(),
            bytes: 0,
            last: None,
            merged,
        })
    }

    /// Returns the counts, once all rows were given.
    pub(super) fn merged(&self) -> Merged {
        self.merged
    }

    /// Takes one step; returns whether there was one to take.
    fn step(&mut self) -> Result<bool, ExecuteError> {
        let sides = (self.base.load(&self.partition.name)?, self.run.load(&self.partition.name)?);
        if self.cut.is_some() { self.replace(sides) } else { self.merge(sides) }
    }

    /// Merge: of one key the run's row is taken.
    fn merge(&mut self, sides: (bool, bool)) -> Result<bool, ExecuteError> {
        let order = match sides {
            (false, false) => return Ok(false),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (true, true) => self.base.key().cmp(self.run.key()),
        };
        match order {
            Ordering::Less => {
                self.merged.target_only += 1;
                self.pick(false);
            }
            Ordering::Greater => {
                self.merged.inserted += 1;
                self.pick(true);
            }
            Ordering::Equal => {
                let count = if self.equal() { &mut self.merged.unchanged } else { &mut self.merged.updated };
                *count = count.map(|n| n + 1);
                let key = self.run.key().to_vec();
                self.pick(true);
                // Of a key that was published more than once, nothing is left.
                while self.base.load(&self.partition.name)? && self.base.key() == key {
                    self.base.at += 1;
                }
            }
        }
        Ok(true)
    }

    /// Delete-insert: published rows in the window go, those outside stay; the run's rows lie inside.
    fn replace(&mut self, sides: (bool, bool)) -> Result<bool, ExecuteError> {
        if sides.0 && self.time(&self.base).is_some_and(|t| self.cut.is_some_and(|(_, w)| w.contains(t))) {
            self.merged.deleted = self.merged.deleted.map(|n| n + 1);
            self.base.at += 1;
            return Ok(true);
        }
        let from_run = match sides {
            (false, false) => return Ok(false),
            (true, false) => false,
            (false, true) => true,
            (true, true) => self.run.order() < self.base.order(),
        };
        let side = if from_run { &self.run } else { &self.base };
        if from_run && let Some((column, window)) = self.cut {
            let time = self.time(side);
            if time.is_none_or(|t| !window.contains(t)) {
                let (partition, key) = (self.partition.name.clone(), self.key_text(side));
                let column = self.fields[column].name.clone();
                return Err(ExecuteError::Outside(Box::new(OutsideRow { partition, key, column, time, window })));
            }
        }
        if !self.key.is_empty() {
            let key = side.key().to_vec();
            if self.last.as_ref().is_some_and(|(last, was_run)| *last == key && *was_run != from_run) {
                return Err(ExecuteError::Doubled { partition: self.partition.name.clone(), key: self.key_text(side) });
            }
            self.last = Some((key, from_run));
        }
        *(if from_run { &mut self.merged.inserted } else { &mut self.merged.target_only }) += 1;
        self.pick(from_run);
        Ok(true)
    }

    fn time(&self, side: &Cursor) -> Option<EventTime> {
        let ((column, _), (batch, row)) = (self.cut?, side.row()?);
        let times = batch.column(column).as_primitive::<TimestampMicrosecondType>();
        times.is_valid(row).then(|| EventTime(times.value(row)))
    }

    fn key_text(&self, side: &Cursor) -> String {
        let Some((batch, row)) = side.row() else { return String::new() };
        let value = |i: &usize| {
            let text = array_value_to_string(batch.column(*i), row).unwrap_or_default();
            let text = if batch.column(*i).is_null(row) { "null".into() } else { text };
            format!("{}={text}", self.fields[*i].name)
        };
        if self.key.is_empty() { "without a key".into() } else { self.key.iter().map(value).collect::<Vec<_>>().join(", ") }
    }

    /// Returns whether the rows at hand are equal, as checksums see them.
    fn equal(&self) -> bool {
        let encoded = |side: &Cursor| {
            let mut bytes = Vec::new();
            if let Some((batch, row)) = side.row() {
                let columns = self.fields.iter().zip(batch.columns());
                columns.for_each(|(f, c)| Encoder::new(f.data_type, c.as_ref()).put(row, &mut bytes));
            }
            bytes
        };
        encoded(&self.base) == encoded(&self.run)
    }

    /// Takes the row at hand of one side.
    fn pick(&mut self, from_run: bool) {
        let side = if from_run { &mut self.run } else { &mut self.base };
        let Some((batch, ..)) = &side.batch else { return };
        let source = *side.source.get_or_insert_with(|| {
            self.sources.push(batch.clone());
            self.sources.len() - 1
        });
        self.picked.push((source, side.at));
        self.bytes += side.row_bytes;
        side.at += 1;
    }

    fn flush(&mut self) -> Result<RecordBatch, ExecuteError> {
        let sources: Vec<&RecordBatch> = self.sources.iter().collect();
        let batch =
            interleave_record_batch(&sources, &self.picked).map_err(|source| ExecuteError::Arrow { partition: self.partition.name.clone(), source });
        self.sources.clear();
        self.picked.clear();
        self.bytes = 0;
        (self.base.source, self.run.source) = (None, None);
        batch
    }
}

impl Iterator for Merge<'_> {
    type Item = Result<RecordBatch, ExecuteError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.picked.len() < WRITE_ROWS && self.bytes < WRITE_BYTES_MAX {
            match self.step() {
                Ok(true) => {}
                Ok(false) if self.picked.is_empty() => return None,
                Ok(false) => break,
                Err(e) => return Some(Err(e)),
            }
        }
        Some(self.flush())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        plan::Reason,
        schema::{DataType, arrow_schema},
    };
    use arrow::array::{Float32Array, Float64Array, Int64Array, StringArray, TimestampMicrosecondArray};

    type Row = (Option<&'static str>, Option<i64>, i64);

    fn fields() -> Vec<Field> {
        vec![Field::new("id", DataType::String, true), Field::new("at", DataType::Timestamp, true), Field::new("n", DataType::Int64, true)]
    }

    fn batches(rows: &[Row], each: usize) -> Batches<'static> {
        let batch = |rows: &[Row]| {
            let columns: Vec<ArrayRef> = vec![
                Arc::new(StringArray::from_iter(rows.iter().map(|r| r.0))),
                Arc::new(TimestampMicrosecondArray::from_iter(rows.iter().map(|r| r.1)).with_timezone("UTC")),
                Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.2))),
            ];
            RecordBatch::try_new(arrow_schema(&fields()), columns).unwrap()
        };
        let all: Vec<_> = rows.chunks(each).map(|r| Ok(batch(r))).collect();
        Box::new(all.into_iter())
    }

    fn merge(write: &Write, base: &[Row], run: &[Row], each: usize) -> Result<(Vec<String>, Merged), ExecuteError> {
        let window = Window::new(EventTime(0), EventTime(100)).unwrap();
        let (partition, fields) = (PlannedPartition { name: "p".into(), window, reason: Reason::Forced }, fields());
        let mut merge = Merge::new((write, 1), &partition, &fields, &[0, 1, 2], batches(base, each), batches(run, each))?;
        let mut rows = Vec::new();
        for batch in &mut merge {
            let batch = batch?;
            let (ids, n) = (batch.column(0).as_string::<i32>(), batch.column(2).as_primitive::<arrow::datatypes::Int64Type>());
            rows.extend((0..batch.num_rows()).map(|r| format!("{} {}", if ids.is_valid(r) { ids.value(r) } else { "null" }, n.value(r))));
        }
        Ok((rows, merge.merged()))
    }

    #[test]
    fn a_merge_takes_the_runs_row_of_each_key_and_counts() {
        let base = [(None, None, 1), (Some("a"), Some(1), 1), (Some("b"), Some(1), 2), (Some("b"), Some(1), 3), (Some("d"), None, 4)];
        let run = [(None, None, 1), (Some("b"), Some(1), 9), (Some("c"), Some(1), 5), (Some("e"), Some(1), 6)];
        for each in [1, 2, 100] {
            let (rows, merged) = merge(&Write::Merge, &base, &run, each).unwrap();
            assert_eq!(rows, ["null 1", "a 1", "b 9", "c 5", "d 4", "e 6"]);
            assert_eq!(merged, Merged { inserted: 2, updated: Some(1), unchanged: Some(1), target_only: 2, deleted: None });
        }
        assert_eq!(merge(&Write::Merge, &[], &run, 2).unwrap().1.inserted, 4);
        assert_eq!(merge(&Write::Merge, &base, &[], 2).unwrap().1.target_only, 5);
        assert_eq!(merge(&Write::Merge, &[], &[], 2).unwrap().0, Vec::<String>::new());
    }

    #[test]
    fn published_floats_are_compared_as_a_runs_are() {
        let columns: [(&str, ArrayRef); 3] = [
            ("f", Arc::new(Float32Array::from(vec![Some(-0.0), None, Some(-f32::NAN)]))),
            ("n", Arc::new(Int64Array::from(vec![1, 2, 3]))),
            ("d", Arc::new(Float64Array::from(vec![Some(f64::from_bits(!0)), Some(-0.0), None]))),
        ];
        let batch = one_of_equals(RecordBatch::try_from_iter(columns).unwrap()).unwrap();
        let (f, d) = (batch.column(0).as_primitive::<Float32Type>(), batch.column(2).as_primitive::<Float64Type>());
        assert_eq!(f.iter().map(|x| x.map(f32::to_bits)).collect::<Vec<_>>(), [Some(0), None, Some(f32::NAN.to_bits())]);
        assert_eq!(d.iter().map(|x| x.map(f64::to_bits)).collect::<Vec<_>>(), [Some(f64::NAN.to_bits()), Some(0), None]);
    }

    #[test]
    fn a_delete_insert_replaces_its_window_and_nothing_else() {
        let write = Write::DeleteInsert { time_column: "at".into(), start_us: 10, end_us: 20 };
        let base = [(Some("a"), Some(9), 1), (Some("b"), Some(10), 2), (Some("c"), Some(19), 3), (Some("d"), Some(20), 4), (Some("e"), None, 5)];
        let run = [(Some("b"), Some(10), 7), (Some("bb"), Some(19), 8)];
        for each in [1, 3] {
            let (rows, merged) = merge(&write, &base, &run, each).unwrap();
            assert_eq!(rows, ["a 1", "b 7", "bb 8", "d 4", "e 5"]);
            assert_eq!(merged, Merged { inserted: 2, updated: None, unchanged: None, target_only: 3, deleted: Some(2) });
        }
        let outside = |at| merge(&write, &base, &[(Some("x"), at, 1)], 1).unwrap_err().to_string();
        let window = "the window [1970-01-01T00:00:00.00001Z, 1970-01-01T00:00:00.00002Z)";
        assert_eq!(
            outside(Some(20)),
            format!("partition p: the row id=x has at = 1970-01-01T00:00:00.00002Z, which is not in {window} that is replaced")
        );
        assert!(outside(None).contains("at = null"));
        // A row that stays has the key of one that comes, whichever is first.
        for at in [9, 20] {
            let e = merge(&write, &[(Some("k"), Some(at), 1)], &[(Some("k"), Some(15), 1)], 1).unwrap_err();
            assert_eq!(e.to_string(), "partition p: a row of the window has the key of a row that stays outside it: id=k");
        }
    }
}
