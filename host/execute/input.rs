//! The input of partitions: raw rows of a task, filtered, deduplicated, in arrival order, batch by batch.
//! Never holds more than a task's share of the memory: a large partition is streamed in two passes.

use super::{Counts, Job, Layout, LeftOut, Task, Unplaced, large::large};
use crate::{
    config::Keep,
    dedup::{Arrival, KeyHash, KeyHasher, survivors},
    id::Digest,
    manifest::Timings,
    moves::Standing,
    raw::{BATCH_ROWS, RawBatch, RawInput, RawScan, Router},
    schema::{DataType, Field, envelope},
    store::Store,
    window::Window,
};
use arrow::{
    array::{AsArray, BooleanArray, BooleanBufferBuilder, RecordBatch, UInt32Array},
    compute::{concat_batches, filter_record_batch, interleave_record_batch, take_record_batch},
    datatypes::Int64Type,
    error::ArrowError,
};
use sha2::{Digest as _, Sha256};
use std::{cell::Cell, collections::HashMap, ops::Range, rc::Rc, time::Instant};

/// The records of one partition, in arrival order.
pub(crate) struct PartitionInput<'s> {
    counts: Counts,
    hash: Sha256,
    rows: Rows<'s>,
    /// Which of its records are handed out, by their places in arrival order.
    range: Range<u64>,
    /// The place of the next record.
    at: u64,
    /// The batch that was handed out last: the place of its first record, and how many it has.
    last: (u64, usize),
}

pub(super) enum Rows<'s> {
    /// Places in the task's blocks.
    Held { blocks: Rc<Vec<RawBatch>>, places: Rc<Vec<(u32, u32)>> },
    /// Read again, in order. Behind the layout's columns stand the payload's hash and what orders records.
    Streamed {
        batches: Box<dyn Iterator<Item = Result<RecordBatch, Unplaced>> + 's>,
        left_out: LeftOut,
        last: Option<RecordBatch>,
        spent: Rc<Cell<Spent>>,
    },
}

/// Nanoseconds spent on raw files.
#[derive(Clone, Copy, Default)]
pub(super) struct Spent {
    /// In all.
    scan: u64,
    /// Of that, waiting for bytes.
    read: u64,
}

impl Spent {
    /// Returns reading and decoding, in milliseconds.
    fn ms(self) -> (f64, f64) {
        (self.read as f64 / 1e6, self.scan.saturating_sub(self.read) as f64 / 1e6)
    }

    pub(super) fn add_to(self, timings: &mut Timings) -> f64 {
        let (scan, decode) = self.ms();
        timings.scan_ms += scan;
        timings.decode_ms += decode;
        scan + decode
    }
}

impl<'s> PartitionInput<'s> {
    pub(super) fn new(counts: Counts, rows: Rows<'s>) -> PartitionInput<'s> {
        PartitionInput { counts, hash: Sha256::new(), rows, range: 0..u64::MAX, at: 0, last: (0, 0) }
    }

    /// Returns the records once more from their beginning, if they are held in memory.
    pub(crate) fn again(&self) -> Option<PartitionInput<'s>> {
        let Rows::Held { blocks, places } = &self.rows else { return None };
        Some(PartitionInput::new(self.counts, Rows::Held { blocks: blocks.clone(), places: places.clone() }))
    }

    /// Returns the records without those that are to be left out.
    pub(crate) fn without(mut self, records: &LeftOut) -> PartitionInput<'s> {
        match &mut self.rows {
            _ if records.is_empty() => {}
            Rows::Held { blocks, places } => {
                let left = places.iter().filter(|p| !records.contains_key(&arrival(blocks, **p))).copied();
                *places = Rc::new(left.collect());
            }
            Rows::Streamed { left_out, .. } => *left_out = records.clone(),
        }
        self
    }

    /// Returns the records of these places alone, counted after those that are left out.
    pub(crate) fn only(self, range: Range<u64>) -> PartitionInput<'s> {
        PartitionInput { range, ..self }
    }

    /// Returns the places of the records of the last batch.
    pub(crate) fn last(&self) -> Range<u64> {
        self.last.0..self.last.0 + self.last.1 as u64
    }

    /// Returns how many records were passed.
    pub(crate) fn passed(&self) -> u64 {
        self.at
    }

    /// Returns where a record of the last batch stands in arrival order.
    pub(crate) fn arrival(&self, row: usize) -> Option<Arrival> {
        match &self.rows {
            _ if row >= self.last.1 => None,
            Rows::Held { blocks, places } => Some(arrival(blocks, places[self.last.0 as usize + row])),
            Rows::Streamed { last, .. } => last.as_ref().map(|b| ordered(b, row)),
        }
    }

    /// Returns what was counted before dedup.
    pub(crate) fn counts(&self) -> Counts {
        self.counts
    }

    /// Returns the next batch, with the columns that the layout hands on.
    pub(crate) fn next(&mut self, layout: &Layout) -> Result<Option<RecordBatch>, Unplaced> {
        match &mut self.rows {
            Rows::Held { blocks, places } => {
                let end = places.len().min(usize::try_from(self.range.end).unwrap_or(usize::MAX));
                let start = (self.at.max(self.range.start) as usize).min(end);
                let chunk = &places[start..end.min(start + BATCH_ROWS)];
                if chunk.is_empty() {
                    return Ok(None);
                }
                self.last = (start as u64, chunk.len());
                self.at = self.last.0 + chunk.len() as u64;
                let mut payloads: Vec<u8> = Vec::with_capacity(chunk.len() * size_of::<i64>());
                for run in chunk.chunk_by(|a, b| a.0 == b.0) {
                    let hashes = blocks[run[0].0 as usize].payload.values();
                    run.iter().for_each(|(_, row)| payloads.extend_from_slice(&hashes[*row as usize].to_le_bytes()));
                }
                self.hash.update(&payloads);
                gather(blocks, chunk, layout.handed).map(Some)
            }
            Rows::Streamed { batches, left_out, last, .. } => {
                let batch = loop {
                    let Some(batch) = batches.next().filter(|_| self.at < self.range.end).transpose()? else { return Ok(None) };
                    let batch = kept(batch, left_out)?;
                    let (first, end) = (self.at, self.at + batch.num_rows() as u64);
                    self.at = end;
                    let (low, high) = (first.max(self.range.start), end.min(self.range.end));
                    if low < high {
                        self.last = (low, (high - low) as usize);
                        break batch.slice((low - first) as usize, self.last.1);
                    }
                };
                *last = Some(batch.clone());
                let payloads = batch.column(layout.columns.len()).as_primitive::<Int64Type>();
                self.hash.update(payloads.values().inner().as_slice());
                Ok(Some(batch.project(&first(layout.handed))?))
            }
        }
    }

    /// Returns how long reading and decoding took while batches were handed out, in milliseconds.
    pub(crate) fn streamed_ms(&self) -> (f64, f64) {
        match &self.rows {
            Rows::Held { .. } => (0.0, 0.0),
            Rows::Streamed { spent, .. } => spent.get().ms(),
        }
    }

    /// Returns the checksum of the records that were handed out: SHA-256 over their payload hashes, in order.
    pub(crate) fn checksum(self) -> Digest {
        Digest(self.hash.finalize().into())
    }
}

/// Returns what decides whether the record at a place counts.
fn standing(blocks: &[RawBatch], (block, row): (u32, u32)) -> Standing {
    let future = blocks[block as usize].flags.value(row as usize) & envelope::FUTURE != 0;
    Standing { arrival: arrival(blocks, (block, row)), future }
}

/// Returns where the record at a place stands in arrival order.
fn arrival(blocks: &[RawBatch], (block, row): (u32, u32)) -> Arrival {
    let block = &blocks[block as usize];
    (block.snapshots.value(row as usize), block.seq.value(row as usize))
}

/// The same of a streamed batch, whose last two columns say it.
fn ordered(batch: &RecordBatch, row: usize) -> Arrival {
    let column = |from_end: usize| batch.column(batch.num_columns() - from_end).as_primitive::<Int64Type>().value(row);
    (column(2), column(1))
}

/// Returns the records of a streamed batch that are not left out.
fn kept(batch: RecordBatch, left_out: &LeftOut) -> Result<RecordBatch, Unplaced> {
    if left_out.is_empty() {
        return Ok(batch);
    }
    let keep: BooleanArray = (0..batch.num_rows()).map(|row| Some(!left_out.contains_key(&ordered(&batch, row)))).collect();
    Ok(filter_record_batch(&batch, &keep)?)
}

/// Pieces of blocks that are put together, at most; more of them are taken row by row.
const PIECES_MAX: usize = 16;

/// Copies the first columns of the rows at `places` together; a run of neighbours is a slice.
fn gather(blocks: &[RawBatch], places: &[(u32, u32)], columns: usize) -> Result<RecordBatch, Unplaced> {
    let columns = first(columns);
    // Most chunks are a few pieces of blocks of which dedup took a row here and there.
    let pieces: Vec<&[(u32, u32)]> = places.chunk_by(|a, b| a.0 == b.0 && a.1 < b.1).take(PIECES_MAX + 1).collect();
    if pieces.len() <= PIECES_MAX && pieces.iter().all(|p| span(p) <= 2 * p.len()) {
        let pieces = pieces.into_iter().map(|p| piece(&blocks[p[0].0 as usize].columns, p, &columns)).collect::<Result<Vec<_>, _>>()?;
        return Ok(if let [one] = pieces.as_slice() { one.clone() } else { concat_batches(&pieces[0].schema(), &pieces)? });
    }
    // Only the blocks that occur, so that the cost does not grow with the task.
    let mut used: Vec<u32> = places.iter().map(|p| p.0).collect();
    used.sort_unstable();
    used.dedup();
    let batches = used.iter().map(|b| blocks[*b as usize].columns.project(&columns)).collect::<Result<Vec<_>, _>>()?;
    if let [batch] = batches.as_slice() {
        let rows = UInt32Array::from_iter_values(places.iter().map(|p| p.1));
        return Ok(take_record_batch(batch, &rows)?);
    }
    let mut last = (used[0], 0);
    let indices: Vec<(usize, usize)> = places
        .iter()
        .map(|(block, row)| {
            if last.0 != *block {
                last = (*block, used.partition_point(|u| u < block));
            }
            (last.1, *row as usize)
        })
        .collect();
    Ok(interleave_record_batch(&batches.iter().collect::<Vec<_>>(), &indices)?)
}

/// How many rows of a block lie from the first to the last of rising places.
fn span(places: &[(u32, u32)]) -> usize {
    places.last().map_or(0, |last| (last.1 - places[0].1) as usize + 1)
}

/// Returns the columns of a block at rising places.
fn piece(block: &RecordBatch, places: &[(u32, u32)], columns: &[usize]) -> Result<RecordBatch, ArrowError> {
    let (start, span) = (places[0].1, span(places));
    let all = block.project(columns)?.slice(start as usize, span);
    if span == places.len() {
        return Ok(all);
    }
    let mut keep = BooleanBufferBuilder::new(span);
    keep.append_n(span, false);
    places.iter().for_each(|(_, row)| keep.set_bit((row - start) as usize, true));
    filter_record_batch(&all, &BooleanArray::new(keep.finish(), None))
}

fn first(columns: usize) -> Vec<usize> {
    (0..columns).collect()
}

/// Returns the input of each of the task's partitions.
pub(crate) fn read<'s>(
    job: &'s Job,
    layout: &'s Layout,
    hasher: KeyHasher,
    task: &Task,
    timings: &mut Timings,
) -> Result<Vec<PartitionInput<'s>>, Unplaced> {
    if task.large { large(job, layout, hasher, task, timings).map(|i| vec![i]) } else { held(job, layout, hasher, task, timings) }
}

/// The slices of time that a task reads: whole partitions, or what a window has of them.
fn windows_of(job: &Job, task: &Task) -> Vec<Window> {
    task.partitions.iter().map(|p| job.recipe.write.part_of(p.window)).collect()
}

/// The raw rows of a task's partitions, filtered; without a filter also rows that share a page with them.
pub(super) struct Filtered<'s> {
    job: &'s Job<'s>,
    /// One table after the other: arrival order is compared, and not trusted.
    scans: std::iter::Peekable<std::vec::IntoIter<RawScan<'s>>>,
    table: usize,
    pub(super) spent: Rc<Cell<Spent>>,
    router: Router,
}

impl<'s> Filtered<'s> {
    pub(super) fn new(job: &'s Job, columns: &[Field], task: &Task) -> Filtered<'s> {
        let windows = windows_of(job, task);
        let scans: Vec<RawScan> = job.raw.iter().map(|r| r.scan(job.store, columns, windows.clone())).collect();
        Filtered { job, scans: scans.into_iter().peekable(), table: 0, spent: Rc::default(), router: Router::new(windows) }
    }

    pub(super) fn next(&mut self) -> Result<Option<RawBatch>, Unplaced> {
        let batch = loop {
            let Some(scan) = self.scans.peek_mut() else { return Ok(None) };
            let before = Spent { scan: scan.scan_ns(), read: scan.read_ns() };
            let next = scan.next();
            let spent = self.spent.get();
            self.spent.set(Spent { scan: spent.scan + scan.scan_ns() - before.scan, read: spent.read + scan.read_ns() - before.read });
            if let Some(batch) = next.transpose()? {
                break RawBatch { table: self.table, ..batch };
            }
            self.table += 1;
            self.scans.next();
        };
        let Some(filter) = self.job.filter else { return Ok(Some(batch)) };
        // First the window, then the filter: whether it fails on a row must not depend on which rows share its page.
        let inside = self.router.inside(&batch);
        let batch = if inside.true_count() == inside.len() { batch } else { batch.filter(&inside)? };
        Ok(Some(batch.filter(&filter.keep(&batch.columns)?)?))
    }
}

/// Reads all partitions of a task in one pass.
fn held<'s>(job: &'s Job, layout: &'s Layout, hasher: KeyHasher, task: &Task, timings: &mut Timings) -> Result<Vec<PartitionInput<'s>>, Unplaced> {
    let mut filtered = Filtered::new(job, &layout.columns, task);
    let mut router = Router::new(windows_of(job, task));
    let mut blocks: Vec<RawBatch> = Vec::new();
    let mut places: Vec<Vec<(u32, u32)>> = vec![Vec::new(); task.partitions.len()];
    let mut counts = vec![Counts::default(); task.partitions.len()];
    let began = Instant::now();
    while let Some(batch) = filtered.next()? {
        // A page that is hardly of the task, as where one late record lies among others, is not held for its sake.
        let runs = router.runs(&batch);
        let (batch, runs) = match 2 * runs.iter().map(|(_, rows)| rows.len()).sum::<usize>() {
            0 => continue,
            twice if twice < batch.times.len() => {
                let batch = batch.filter(&router.inside(&batch))?;
                let runs = router.runs(&batch);
                (batch, runs)
            }
            _ => (batch, runs),
        };
        let block = blocks.len() as u32;
        for (p, rows) in runs {
            counts[p].records += rows.len() as u64;
            counts[p].late += batch.flags.values()[rows.clone()].iter().filter(|flags| **flags & envelope::LATE != 0).count() as u64;
            places[p].extend(rows.map(|row| (block, row as u32)));
        }
        blocks.push(batch);
    }
    let scan_ms = filtered.spent.get().add_to(timings);
    let blocks = Rc::new(blocks);
    let mut inputs = Vec::with_capacity(places.len());
    for ((mut places, mut counts), partition) in places.into_iter().zip(counts).zip(&task.partitions) {
        let elsewhere = Elsewhere::of(job, layout.record_id, job.recipe.write.part_of(partition.window));
        let left = elsewhere.leave_out(&mut places, |(b, r)| (&blocks[b as usize], r as usize));
        counts.moved = left.len() as u64;
        if !places.is_sorted_by_key(|p| arrival(&blocks, *p)) {
            places.sort_by_key(|p| arrival(&blocks, *p));
        }
        deduplicate(job, layout, hasher, &blocks, &mut places, left, &mut counts);
        inputs.push(PartitionInput::new(counts, Rows::Held { blocks: blocks.clone(), places: Rc::new(places) }));
    }
    timings.dedup_ms += began.elapsed().as_nanos() as f64 / 1e6 - scan_ms;
    Ok(inputs)
}

/// Leaves of the records of one partition, in arrival order, those that stay. Which of a key's payloads differ is told of all that were read, also of
/// those that were left out because another partition has the record that counts.
fn deduplicate(
    job: &Job,
    layout: &Layout,
    hasher: KeyHasher,
    blocks: &[RawBatch],
    places: &mut Vec<(u32, u32)>,
    left: Vec<(u32, u32)>,
    counts: &mut Counts,
) {
    let Some(rule) = &job.recipe.dedup else { return };
    let future = job.recipe.follows && places.iter().any(|p| standing(blocks, *p).future);
    if future {
        places.sort_by_key(|p| standing(blocks, *p).turn(rule.keep));
    }
    let hashed = |places: &[(u32, u32)]| {
        let mut keys: Vec<Option<KeyHash>> = Vec::with_capacity(places.len());
        for run in places.chunk_by(|a, b| a.0 == b.0) {
            let rows = run.iter().map(|(_, row)| *row as usize);
            hasher.hash_rows(&blocks[run[0].0 as usize].columns, &layout.key, rows, &mut keys);
        }
        keys
    };
    let payload = |(block, row): (u32, u32)| blocks[block as usize].payload.value(row as usize);
    let found = survivors(rule, &hashed(places), |i| payload(places[i]));
    (counts.duplicates, counts.conflicts) = (found.duplicates, found.conflicts);
    if !left.is_empty() {
        let all = [places.as_slice(), &left].concat();
        counts.conflicts = survivors(rule, &hashed(&all), |i| payload(all[i])).conflicts;
    }
    let mut stays = (0..places.len()).map(|place| found.stays(place));
    places.retain(|_| stays.next().unwrap_or(false));
    if future {
        places.sort_by_key(|p| arrival(blocks, *p));
    }
}

/// The records of one partition whose ids also stand in another one.
pub(super) struct Elsewhere<'j> {
    keep: Keep,
    /// Whether a record of another partition is refused, and not only counted.
    fail: bool,
    column: usize,
    /// By raw table.
    bounds: Vec<HashMap<&'j str, Standing>>,
}

impl<'j> Elsewhere<'j> {
    pub(super) fn of(job: &'j Job, column: Option<usize>, window: Window) -> Elsewhere<'j> {
        match (column, &job.recipe.dedup) {
            (Some(column), Some(rule)) => {
                Elsewhere { keep: rule.keep, fail: rule.forbids(), column, bounds: job.moved.iter().map(|m| m.outside(window, rule.keep)).collect() }
            }
            _ => Elsewhere { keep: Keep::LatestIngested, fail: false, column: 0, bounds: Vec::new() },
        }
    }

    /// Returns whether a record of the partition counts.
    pub(super) fn counts(&self, batch: &RawBatch, row: usize) -> bool {
        let Some(bounds) = self.bounds.get(batch.table).filter(|b| !b.is_empty()) else { return true };
        let id = batch.columns.column(self.column).as_string::<i32>().value(row);
        let Some(outside) = bounds.get(id) else { return true };
        let future = batch.flags.value(row) & envelope::FUTURE != 0;
        let own = Standing { arrival: (batch.snapshots.value(row), batch.seq.value(row)), future };
        if self.fail {
            // One from the future is in nobody's way but its like's.
            return outside.future && !future;
        }
        own.counts_before(self.keep, outside)
    }

    /// Takes out the records that do not count, and returns them.
    fn leave_out<'b>(&self, places: &mut Vec<(u32, u32)>, at: impl Fn((u32, u32)) -> (&'b RawBatch, usize)) -> Vec<(u32, u32)> {
        let mut left = Vec::new();
        if self.bounds.iter().any(|b| !b.is_empty()) {
            places.retain(|place| {
                let (batch, row) = at(*place);
                let counts = self.counts(batch, row);
                left.extend((!counts).then_some(*place));
                counts
            });
        }
        left
    }
}

/// See [`super::read_lookup`].
pub(crate) fn read_lookup(store: &Store, raw: &RawInput, fields: &[Field]) -> Result<Vec<RecordBatch>, crate::datafile::DataFileError> {
    let mut columns = fields.to_vec();
    let id = Field::new(envelope::RECORD_ID, DataType::String, false);
    columns.push(id.clone());
    let hasher = KeyHasher::default();
    let rule = crate::config::Dedup { key: Vec::new(), keep: crate::config::Keep::LatestIngested, on_conflict: crate::config::OnConflict::Count };
    let (mut blocks, mut found) = (Vec::new(), Vec::new());
    for batch in raw.scan(store, &columns, Vec::new()) {
        let batch = batch?;
        let hashes = hasher.hash(&batch.columns, &[(fields.len(), id.clone())]);
        found.extend(hashes.into_iter().enumerate().map(|(row, hash)| ((blocks.len() as u32, row as u32), hash)));
        blocks.push(batch);
    }
    found.sort_by_key(|(place, _)| arrival(&blocks, *place));
    let keys: Vec<Option<KeyHash>> = found.iter().map(|(_, key)| *key).collect();
    let latest = survivors(&rule, &keys, |_| 0);
    let places: Vec<(u32, u32)> = (0..found.len()).filter(|i| latest.stays(*i)).map(|i| found[i].0).collect();
    let batches = places.chunks(BATCH_ROWS).map(|chunk| {
        let batch = gather(&blocks, chunk, fields.len());
        batch.unwrap_or_else(|e| panic!("BUG: rows of one table do not fit together: {e:?}"))
    });
    Ok(batches.collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, Int32Array, Int64Array, StringArray, TimestampMicrosecondArray};
    use std::sync::Arc;

    /// A block of rows with a text and a number; some are null.
    fn block(rows: i64) -> RawBatch {
        let texts: StringArray = (0..rows).map(|n| (n % 5 > 0).then(|| format!("{rows}-{n}"))).collect();
        let columns: [(&str, ArrayRef, bool); 3] = [
            ("text", Arc::new(texts), true),
            ("n", Arc::new(Int64Array::from_iter_values((0..rows).map(|n| rows * 1_000 + n))), true),
            ("not handed on", Arc::new(Int64Array::from_value(0, rows as usize)), true),
        ];
        let numbers = || Int64Array::from_value(0, rows as usize);
        RawBatch {
            table: 0,
            columns: RecordBatch::try_from_iter_with_nullable(columns).unwrap(),
            times: TimestampMicrosecondArray::from_value(0, rows as usize),
            snapshots: numbers(),
            seq: numbers(),
            payload: numbers(),
            flags: Int32Array::from_value(0, rows as usize),
        }
    }

    #[test]
    fn rows_are_gathered_as_they_stand_in_pieces_and_one_by_one() {
        let blocks: Vec<RawBatch> = (0..40).map(|b| block(50 + b)).collect();
        let batches: Vec<RecordBatch> = blocks.iter().map(|b| b.columns.project(&[0, 1]).unwrap()).collect();
        let check = |places: &[(u32, u32)]| {
            let indices: Vec<(usize, usize)> = places.iter().map(|(b, r)| (*b as usize, *r as usize)).collect();
            let expected = interleave_record_batch(&batches.iter().collect::<Vec<_>>(), &indices).unwrap();
            assert_eq!(gather(&blocks, places, 2).unwrap_or_else(|e| panic!("{e:?}")), expected, "{places:?}");
        };
        let rows = |block: u32, rows: Range<u32>| rows.map(move |row| (block, row));
        let but = |row: u32| move |p: &(u32, u32)| !p.1.is_multiple_of(row);
        check(&rows(3, 0..50).collect::<Vec<_>>());
        check(&rows(3, 7..9).collect::<Vec<_>>());
        check(&rows(3, 1..50).filter(but(7)).collect::<Vec<_>>());
        check(&rows(3, 1..50).filter(but(7)).chain(rows(4, 0..3)).chain(rows(3, 0..1)).collect::<Vec<_>>());
        // Holes wider than what is taken, falling places, and more pieces than are put together.
        check(&[(3, 0), (3, 40), (4, 1)]);
        check(&rows(3, 0..50).rev().collect::<Vec<_>>());
        check(&(0..40).flat_map(|b| rows(b, b..b + 5)).collect::<Vec<_>>());
        check(&[(1, 1)]);
    }
}
