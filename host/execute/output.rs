//! The output of one partition: collected, sorted by key, put among published rows, checksummed, written to staging.
//! Never shows a row to a reader. Output larger than memory is sorted on disk.

use super::{
    ExecuteError, Job, SORT_BYTES_MIN, Unplaced,
    merge::{Merge, Merged, base_rows},
    spill_dir,
};
use crate::{
    checksum::{ContentHash, Encoder},
    datafile::{Writer, Written},
    id::Digest,
    manifest::Write,
    plan::PlannedPartition,
    query::sort_spilled,
    schema::Field,
    store::{file_name, owner_of, staged_files},
};
use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch, StringArray, UInt32Array, make_comparator},
    compute::{SortOptions, concat_batches, partition, take_record_batch},
    datatypes::{Int64Type, Schema},
    error::ArrowError,
};
use std::{cmp::Ordering, sync::Arc};

/// Returns the rows of a batch in the order of some columns, ascending, nulls first.
fn sorted_rows(batch: &RecordBatch, by: &[usize]) -> Result<Vec<u32>, ArrowError> {
    let options = SortOptions { descending: false, nulls_first: true };
    let compare = by.iter().map(|i| make_comparator(batch.column(*i), batch.column(*i), options)).collect::<Result<Vec<_>, _>>()?;
    let rest = |i: u32, j: u32| compare.iter().map(|c| c(i as usize, j as usize)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal);
    let Some(first) = by.first().map(|i| batch.column(*i)) else { return Ok((0..batch.num_rows() as u32).collect()) };
    Ok(match first.as_string_opt::<i32>().map(|texts| (texts, shared(texts))) {
        // What is short beyond its common beginning is sorted in half the memory.
        Some((texts, (length, longest))) if longest - length > size_of::<u64>() => {
            sorted_by(starts(texts, length, |bytes: [u8; 16]| u128::from_be_bytes(bytes)), rest)
        }
        Some((texts, (length, _))) => sorted_by(starts(texts, length, |bytes: [u8; 8]| u64::from_be_bytes(bytes)), rest),
        None => sorted_by(numbers(first), rest),
    })
}

/// Returns the places of numbers in their order, and where they are equal in that of `rest`: most rows differ in their numbers, and are
/// compared without a look at the columns.
fn sorted_by<N: Ord + Copy>(numbers: Vec<N>, rest: impl Fn(u32, u32) -> Ordering) -> Vec<u32> {
    let mut rows: Vec<(N, u32)> = numbers.into_iter().zip(0..).collect();
    rows.sort_unstable_by(|(a, i), (b, j)| a.cmp(b).then_with(|| rest(*i, *j)));
    rows.into_iter().map(|(_, row)| row).collect()
}

/// Returns how many bytes all texts begin with in common, and how long the longest is; what stands under a null is none.
fn shared(texts: &StringArray) -> (usize, usize) {
    let mut all = (0..texts.len()).filter(|row| texts.is_valid(*row)).map(|row| texts.value(row).as_bytes());
    let Some(first) = all.next() else { return (0, 0) };
    all.fold((first.len(), first.len()), |(length, longest), text| {
        let common = match text.get(..length) {
            Some(start) if *start == first[..length] => length,
            _ => first[..length].iter().zip(text).take_while(|(a, b)| a == b).count(),
        };
        (common, longest.max(text.len()))
    })
}

/// Returns for each text a number that orders as it does beyond the first `skip` bytes, as far as so many bytes can tell.
fn starts<const BYTES: usize, N: Default>(texts: &StringArray, skip: usize, number: impl Fn([u8; BYTES]) -> N) -> Vec<N> {
    let start = |text: &[u8]| {
        let mut bytes = [0; BYTES];
        let length = text.len().min(BYTES);
        bytes[..length].copy_from_slice(&text[..length]);
        number(bytes)
    };
    // A null is as low as the lowest text: what comes after decides.
    (0..texts.len()).map(|row| if texts.is_valid(row) { start(&texts.value(row).as_bytes()[skip..]) } else { N::default() }).collect()
}

/// Returns for each value a number that orders as it does; zeros where none is known, and for nulls.
fn numbers(column: &ArrayRef) -> Vec<u64> {
    match column.as_primitive_opt::<Int64Type>() {
        Some(numbers) => (0..numbers.len()).map(|row| if numbers.is_valid(row) { numbers.value(row) as u64 ^ (1 << 63) } else { 0 }).collect(),
        None => vec![0; column.len()],
    }
}

/// Rows per written batch, and about how many bytes.
pub(super) const WRITE_ROWS: usize = 8192;
pub(super) const WRITE_BYTES_MAX: usize = 64 << 20;

/// A partition's output, staged.
pub(crate) struct StagedRows {
    pub(crate) rows: u64,
    pub(crate) checksum: Digest,
    pub(crate) files: Vec<Written>,
    pub(crate) doubled_keys: u64,
    pub(crate) nulls: Vec<u64>,
    /// What became of the rows that were published, and of those of the run; none for an overwrite.
    pub(crate) merged: Option<Merged>,
}

/// Batches of one partition.
pub(super) type Batches<'b> = Box<dyn Iterator<Item = Result<RecordBatch, ExecuteError>> + 'b>;

/// Collects the output of one partition.
pub(crate) struct Collector<'c> {
    job: &'c Job<'c>,
    partition: &'c PlannedPartition,
    fields: &'c [Field],
    /// Sort order: the key, then all other columns, so that it is total.
    order: Vec<usize>,
    hash: ContentHash,
    writer: Option<Writer>,
    rows: u64,
    doubled_keys: u64,
    nulls: Vec<u64>,
    last_key: Vec<u8>,
}

impl<'c> Collector<'c> {
    pub(crate) fn new(job: &'c Job<'c>, partition: &'c PlannedPartition) -> Collector<'c> {
        let fields = job.transform.descriptor().output.as_slice();
        let mut order: Vec<usize> = job.recipe.key.iter().filter_map(|k| fields.iter().position(|f| f.name == *k)).collect();
        order.extend((0..fields.len()).filter(|i| !order.contains(i)).collect::<Vec<_>>());
        let nulls = vec![0; fields.len()];
        Collector {
            job,
            partition,
            fields,
            order,
            hash: ContentHash::new(fields),
            writer: None,
            rows: 0,
            doubled_keys: 0,
            nulls,
            last_key: Vec::new(),
        }
    }

    /// Pulls all output, and stages it.
    pub(crate) fn collect(&mut self, pull: &mut dyn FnMut() -> Result<Option<RecordBatch>, ExecuteError>) -> Result<StagedRows, ExecuteError> {
        let budget = (self.job.memory_bytes / 4 / self.job.workers.max(1)).clamp(1 << 20, 1 << 30);
        let output: Batches = Box::new(std::iter::from_fn(|| pull().transpose()));
        if self.job.recipe.write == Write::Overwrite {
            for batch in self.sorted(output, budget)? {
                self.write(&batch?)?;
            }
            return self.finish(None);
        }
        // Both are in one order, so that each is read once and neither is held.
        let schema = Arc::new(Schema::new(self.fields.iter().map(|f| f.arrow(None).with_nullable(true)).collect::<Vec<_>>()));
        let output: Batches = Box::new(output.map(|b| {
            let batch = RecordBatch::try_new(schema.clone(), b?.columns().to_vec());
            batch.map_err(|source| ExecuteError::Arrow { partition: self.partition.name.clone(), source })
        }));
        let output = self.sorted(output, budget / 2)?;
        let base = self.sorted(base_rows(self.job, self.partition, self.fields), budget / 2)?;
        let mut merge = Merge::new((&self.job.recipe.write, self.job.recipe.key.len()), self.partition, self.fields, &self.order, base, output)?;
        for batch in &mut merge {
            self.write(&batch?)?;
        }
        let merged = merge.merged();
        drop(merge);
        self.finish(Some(merged))
    }

    fn arrow<T>(&self, result: Result<T, arrow::error::ArrowError>) -> Result<T, ExecuteError> {
        result.map_err(|source| ExecuteError::Arrow { partition: self.partition.name.clone(), source })
    }

    /// Returns the rows in the partition's order: sorted in memory, or on disk when they exceed the budget.
    fn sorted<'b>(&self, mut input: Batches<'b>, budget: usize) -> Result<Batches<'b>, ExecuteError>
    where
        'c: 'b,
    {
        let (mut batches, mut bytes) = (Vec::new(), 0);
        while bytes <= budget {
            let Some(batch) = input.next().transpose()? else { return self.sorted_in_memory(batches) };
            bytes += batch.get_array_memory_size();
            batches.push(batch);
        }
        let schema = batches[0].schema();
        let by: Vec<String> = self.order.iter().map(|i| self.fields[*i].name.clone()).collect();
        let rest = Box::new(batches.into_iter().map(Ok).chain(input));
        let partition = self.partition;
        let sorted = sort_spilled(schema, rest, &by, budget.max(SORT_BYTES_MIN), &spill_dir(self.job));
        Ok(Box::new(sorted.map(|batch| batch.map_err(|e| e.flatten(&partition.name)))))
    }

    fn sorted_in_memory<'b>(&self, batches: Vec<RecordBatch>) -> Result<Batches<'b>, ExecuteError>
    where
        'c: 'b,
    {
        let Some(first) = batches.first() else { return Ok(Box::new(std::iter::empty())) };
        let all = if batches.len() == 1 { first.clone() } else { self.arrow(concat_batches(&first.schema(), &batches))? };
        drop(batches);
        let order = UInt32Array::from(self.arrow(sorted_rows(&all, &self.order))?);
        let partition = self.partition;
        Ok(Box::new((0..order.len()).step_by(WRITE_ROWS).map(move |start| {
            let chunk = order.slice(start, WRITE_ROWS.min(order.len() - start));
            take_record_batch(&all, &chunk).map_err(|source| ExecuteError::Arrow { partition: partition.name.clone(), source })
        })))
    }

    /// Takes the next rows in key order.
    fn write(&mut self, batch: &RecordBatch) -> Result<(), ExecuteError> {
        if batch.num_rows() == 0 {
            return Ok(());
        }
        self.rows += batch.num_rows() as u64;
        self.hash.update(batch);
        for (nulls, column) in self.nulls.iter_mut().zip(batch.columns()) {
            *nulls += column.null_count() as u64;
        }
        self.count_doubled(batch)?;
        let Some(table) = self.job.target else { return Ok(()) };
        let writer = match &mut self.writer {
            Some(writer) => writer,
            None => {
                let folder = self.job.staging;
                let path = format!("{}/{}", staged_files(folder), file_name(owner_of(folder), &self.partition.name, 0));
                self.writer.insert(Writer::create(self.job.store, path, table)?)
            }
        };
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(table.columns.len());
        for column in &table.columns {
            let i = self.fields.iter().position(|f| f.name == column.field.name);
            columns.push(match i {
                Some(i) => batch.column(i).clone(),
                None => Arc::new(StringArray::from_iter_values(std::iter::repeat_n(self.partition.name.as_str(), batch.num_rows()))),
            });
        }
        let full = RecordBatch::try_new(table.arrow(), columns);
        let full = full.map_err(|source| ExecuteError::Arrow { partition: self.partition.name.clone(), source })?;
        writer.write(&full)?;
        Ok(())
    }

    fn count_doubled(&mut self, batch: &RecordBatch) -> Result<(), ExecuteError> {
        let keys = &self.order[..self.job.recipe.key.len().min(self.order.len())];
        if keys.is_empty() {
            return Ok(());
        }
        let columns: Vec<ArrayRef> = keys.iter().map(|i| batch.column(*i).clone()).collect();
        let distinct = self.arrow(partition(&columns))?.len() as u64;
        self.doubled_keys += batch.num_rows() as u64 - distinct;
        let encode = |row: usize| {
            let mut bytes = Vec::new();
            keys.iter().for_each(|i| Encoder::new(self.fields[*i].data_type, batch.column(*i).as_ref()).put(row, &mut bytes));
            bytes
        };
        self.doubled_keys += (encode(0) == self.last_key) as u64;
        self.last_key = encode(batch.num_rows() - 1);
        Ok(())
    }

    fn finish(&mut self, merged: Option<Merged>) -> Result<StagedRows, ExecuteError> {
        // Of a hundred thousand partitions each keeps this until the swap: it has no room to spare.
        let files = match self.writer.take() {
            Some(writer) => {
                let mut written = writer.finish()?;
                written.file.partition = Some(self.partition.name.clone());
                vec![written]
            }
            None => Vec::new(),
        };
        let hash = std::mem::replace(&mut self.hash, ContentHash::new(&[]));
        Ok(StagedRows {
            rows: self.rows,
            checksum: hash.finish(),
            files,
            doubled_keys: self.doubled_keys,
            nulls: std::mem::take(&mut self.nulls),
            merged,
        })
    }
}

impl From<crate::query::SortError<Unplaced>> for Unplaced {
    fn from(e: crate::query::SortError<Unplaced>) -> Unplaced {
        match e {
            crate::query::SortError::Input(e) => e,
            crate::query::SortError::Sort(e) => Unplaced::Query(e),
        }
    }
}

trait Flatten {
    fn flatten(self, partition: &str) -> ExecuteError;
}

impl Flatten for crate::query::SortError<ExecuteError> {
    fn flatten(self, partition: &str) -> ExecuteError {
        match self {
            crate::query::SortError::Input(e) => e,
            crate::query::SortError::Sort(source) => ExecuteError::Query { partition: partition.into(), source: Box::new(source) },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::Int64Array;

    /// Compared with a sort that looks at the columns alone.
    fn check(columns: Vec<ArrayRef>) {
        let batch = RecordBatch::try_from_iter(columns.into_iter().enumerate().map(|(i, c)| (format!("c{i}"), c))).unwrap();
        let by: Vec<usize> = (0..batch.num_columns()).collect();
        let options = SortOptions { descending: false, nulls_first: true };
        let compare: Vec<_> = by.iter().map(|i| make_comparator(batch.column(*i), batch.column(*i), options).unwrap()).collect();
        let mut expected: Vec<u32> = (0..batch.num_rows() as u32).collect();
        expected.sort_by(|a, b| compare.iter().map(|c| c(*a as usize, *b as usize)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal));
        assert_eq!(sorted_rows(&batch, &by).unwrap(), expected);
    }

    #[test]
    fn rows_are_sorted_by_texts_whatever_they_begin_with() {
        let places = |count: usize| Arc::new(Int64Array::from_iter_values((0..count as i64).map(|n| n * 7_919 % 1_009))) as ArrayRef;
        for start in ["", "c-", "a beginning of more than sixteen bytes ", "ä"] {
            for width in [1, 6, 7, 15, 30] {
                let text = |n: usize| format!("{start}{:0width$}", n * 37 % 101);
                let mut texts: Vec<Option<String>> = (0..200).map(|n| (n % 11 > 0).then(|| text(n))).collect();
                texts.extend([start.to_owned(), format!("{start}\0"), format!("{start}\0\0"), format!("{start}0")].map(Some));
                let texts: StringArray = texts.into_iter().collect();
                check(vec![Arc::new(texts.clone()), places(texts.len())]);
            }
        }
        check(vec![Arc::new(StringArray::from(vec![Some("b"), None, Some("a"), None, Some("")])), places(5)]);
        check(vec![Arc::new(StringArray::from(vec![None::<&str>, None])), places(2)]);
        check(vec![Arc::new(StringArray::from(Vec::<&str>::new()))]);
        check(vec![Arc::new(Int64Array::from(vec![Some(3), None, Some(i64::MIN), Some(i64::MAX), None])), places(5)]);
        check(vec![Arc::new(arrow::array::Float64Array::from(vec![Some(3.5), None, Some(-1.0)])), places(3)]);
    }
}
