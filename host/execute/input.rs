//! The input of partitions: raw rows of a task, filtered, deduplicated, in arrival order, batch by batch.
//! Never holds more than a task's share of the memory: a large partition is streamed in two passes.

use super::{Counts, Job, Layout, LeftOut, SORT_BYTES_MIN, Task, Unplaced, spill_dir};
use crate::{
    config::Keep,
    dedup::{Arrival, Deduplicator, KeyHash, KeyHasher},
    id::Digest,
    manifest::Timings,
    moves::counts,
    query::sort_spilled,
    raw::{BATCH_ROWS, RawBatch, RawInput, RawScan, Router},
    schema::{DataType, Field, envelope},
    store::Store,
    time::EventTime,
    window::Window,
};
use arrow::{
    array::{ArrayRef, AsArray, BooleanArray, Int64Array, RecordBatch},
    compute::{filter_record_batch, interleave_record_batch},
    datatypes::Int64Type,
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

enum Rows<'s> {
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
struct Spent {
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

    fn add_to(self, timings: &mut Timings) -> f64 {
        let (scan, decode) = self.ms();
        timings.scan_ms += scan;
        timings.decode_ms += decode;
        scan + decode
    }
}

impl<'s> PartitionInput<'s> {
    fn new(counts: Counts, rows: Rows<'s>) -> PartitionInput<'s> {
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

    /// Returns the next batch, with the layout's columns.
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
                for (block, row) in chunk {
                    self.hash.update(blocks[*block as usize].payload.value(*row as usize).to_le_bytes());
                }
                gather(blocks, chunk).map(Some)
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
                for payload in batch.column(layout.columns.len()).as_primitive::<Int64Type>().values() {
                    self.hash.update(payload.to_le_bytes());
                }
                Ok(Some(batch.project(&(0..layout.columns.len()).collect::<Vec<_>>())?))
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

/// Copies the rows at `places` together; a run of neighbours is a slice.
fn gather(blocks: &[RawBatch], places: &[(u32, u32)]) -> Result<RecordBatch, Unplaced> {
    let (block, first) = places[0];
    if places.iter().zip(first..).all(|(p, row)| *p == (block, row)) {
        return Ok(blocks[block as usize].columns.slice(first as usize, places.len()));
    }
    // Only the blocks that occur, so that the cost does not grow with the task.
    let mut used: Vec<u32> = places.iter().map(|p| p.0).collect();
    used.sort_unstable();
    used.dedup();
    let batches: Vec<&RecordBatch> = used.iter().map(|b| &blocks[*b as usize].columns).collect();
    let indices: Vec<(usize, usize)> = places.iter().map(|(b, r)| (used.partition_point(|u| u < b), *r as usize)).collect();
    Ok(interleave_record_batch(&batches, &indices)?)
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

/// The raw rows of a task's partitions, and of nothing else, filtered.
struct Filtered<'s> {
    job: &'s Job<'s>,
    /// One table after the other: arrival order is compared, and not trusted.
    scans: std::iter::Peekable<std::vec::IntoIter<RawScan<'s>>>,
    table: usize,
    spent: Rc<Cell<Spent>>,
    router: Router,
}

impl<'s> Filtered<'s> {
    fn new(job: &'s Job, columns: &[Field], task: &Task) -> Filtered<'s> {
        let windows = windows_of(job, task);
        let scans: Vec<RawScan> = job.raw.iter().map(|r| r.scan(job.store, columns, windows.clone())).collect();
        Filtered { job, scans: scans.into_iter().peekable(), table: 0, spent: Rc::default(), router: Router::new(windows) }
    }

    fn next(&mut self) -> Result<Option<RawBatch>, Unplaced> {
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
        // First the window, then the filter: whether it fails on a row must not depend on which rows share its page.
        let inside: BooleanArray = batch.times.values().iter().map(|at| Some(self.router.find(EventTime(*at)).is_some())).collect();
        let batch = if inside.true_count() == inside.len() { batch } else { batch.filter(&inside)? };
        match self.job.filter {
            Some(filter) => Ok(Some(batch.filter(&filter.keep(&batch.columns)?)?)),
            None => Ok(Some(batch)),
        }
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
        let block = blocks.len() as u32;
        for (row, at) in batch.times.values().iter().enumerate() {
            let Some(p) = router.find(EventTime(*at)) else { continue };
            places[p].push((block, row as u32));
            counts[p].records += 1;
            counts[p].late += (batch.flags.value(row) & envelope::LATE != 0) as u64;
        }
        if !batch.times.is_empty() {
            blocks.push(batch);
        }
    }
    let scan_ms = filtered.spent.get().add_to(timings);
    let blocks = Rc::new(blocks);
    let hashes: Vec<Vec<Option<KeyHash>>> = match &job.recipe.dedup {
        Some(_) => blocks.iter().map(|b| hasher.hash(&b.columns, &layout.key)).collect(),
        None => Vec::new(),
    };
    let mut inputs = Vec::with_capacity(places.len());
    for ((mut places, mut counts), partition) in places.into_iter().zip(counts).zip(&task.partitions) {
        let elsewhere = Elsewhere::of(job, layout.record_id, job.recipe.write.part_of(partition.window));
        elsewhere.leave_out(&mut places, &mut counts, |(b, r)| (&blocks[b as usize], r as usize));
        let arrival = |place: (u32, u32)| arrival(&blocks, place);
        if let Some(rule) = &job.recipe.dedup {
            let mut dedup = Deduplicator::new(rule, places.len());
            for place in places {
                let (b, r) = (place.0 as usize, place.1 as usize);
                dedup.add(hashes[b][r], place, arrival(place), blocks[b].payload.value(r));
            }
            (counts.duplicates, counts.conflicts) = (dedup.duplicates, dedup.conflicts);
            places = dedup.finish();
        } else if !places.is_sorted_by_key(|p| arrival(*p)) {
            places.sort_by_key(|p| arrival(*p));
        }
        inputs.push(PartitionInput::new(counts, Rows::Held { blocks: blocks.clone(), places: Rc::new(places) }));
    }
    timings.dedup_ms += began.elapsed().as_nanos() as f64 / 1e6 - scan_ms;
    Ok(inputs)
}

/// The records of one partition whose ids also stand in another one.
struct Elsewhere<'j> {
    keep: Keep,
    /// Whether a record of another partition is refused, and not only counted.
    fail: bool,
    column: usize,
    /// By raw table.
    bounds: Vec<HashMap<&'j str, Arrival>>,
}

impl<'j> Elsewhere<'j> {
    fn of(job: &'j Job, column: Option<usize>, window: Window) -> Elsewhere<'j> {
        match (column, &job.recipe.dedup) {
            (Some(column), Some(rule)) => {
                Elsewhere { keep: rule.keep, fail: rule.forbids(), column, bounds: job.moved.iter().map(|m| m.outside(window, rule.keep)).collect() }
            }
            _ => Elsewhere { keep: Keep::LatestIngested, fail: false, column: 0, bounds: Vec::new() },
        }
    }

    /// Returns whether a record of the partition counts.
    fn counts(&self, batch: &RawBatch, row: usize) -> bool {
        let Some(bounds) = self.bounds.get(batch.table).filter(|b| !b.is_empty()) else { return true };
        let id = batch.columns.column(self.column).as_string::<i32>().value(row);
        let Some(outside) = bounds.get(id) else { return true };
        let future = batch.flags.value(row) & envelope::FUTURE != 0;
        !self.fail && counts(self.keep, (batch.snapshots.value(row), batch.seq.value(row)), future, *outside)
    }

    fn leave_out<'b>(&self, places: &mut Vec<(u32, u32)>, counts: &mut Counts, at: impl Fn((u32, u32)) -> (&'b RawBatch, usize)) {
        if self.bounds.iter().any(|b| !b.is_empty()) {
            let before = places.len();
            places.retain(|place| {
                let (batch, row) = at(*place);
                self.counts(batch, row)
            });
            counts.moved = (before - places.len()) as u64;
        }
    }
}

/// Memory of one entry of the dedup table, with its share of empty places.
const DEDUP_ENTRY_BYTES: u64 = 96;

/// A partition that does not fit: passes over the key columns find the survivors, a last pass streams them.
fn large<'s>(job: &'s Job, layout: &'s Layout, hasher: KeyHasher, task: &Task, timings: &mut Timings) -> Result<PartitionInput<'s>, Unplaced> {
    let began = Instant::now();
    let window = job.recipe.write.part_of(task.partitions[0].window);
    let budget = (job.memory_bytes / 2 / job.workers.max(1)).max(1 << 20) as u64;
    let mut survivors: Option<Vec<u64>> = None;
    let mut counts = Counts::default();
    let mut in_order = true;
    let mut scan_ms = 0.0;
    let parts = job.recipe.dedup.as_ref().map_or(1, |_| (task.records * DEDUP_ENTRY_BYTES).div_ceil(budget).max(1));
    for part in 0..parts {
        // Key columns first; the filter's follow because the layout has them all and Parquet skips what is not asked.
        let columns = key_columns(job, layout);
        let mut filtered = Filtered::new(job, &columns, task);
        let elsewhere = Elsewhere::of(job, layout.record_id.and_then(|_| columns.iter().position(|c| c.name == envelope::RECORD_ID)), window);
        let key: Vec<(usize, Field)> = layout.key.iter().enumerate().map(|(i, (_, f))| (i, f.clone())).collect();
        let mut dedup = job.recipe.dedup.as_ref().map(|rule| Deduplicator::new(rule, 0));
        let (mut ordinal, mut last) = (0u64, (i64::MIN, i64::MIN));
        while let Some(batch) = filtered.next()? {
            let hashes = if dedup.is_some() { hasher.hash(&batch.columns, &key) } else { Vec::new() };
            for (row, at) in batch.times.values().iter().enumerate() {
                if !window.contains(EventTime(*at)) {
                    continue;
                }
                let arrival = (batch.snapshots.value(row), batch.seq.value(row));
                if part == 0 {
                    counts.records += 1;
                    counts.late += (batch.flags.value(row) & envelope::LATE != 0) as u64;
                    in_order &= arrival > last;
                    last = arrival;
                }
                let counted = elsewhere.counts(&batch, row);
                counts.moved += (part == 0 && !counted) as u64;
                if let Some(dedup) = &mut dedup
                    && counted
                    && hashes[row].map_or(row as u64 % parts, |h| h.part(parts)) == part
                {
                    dedup.add(hashes[row], ordinal, arrival, batch.payload.value(row));
                }
                ordinal += 1;
            }
        }
        scan_ms += filtered.spent.get().add_to(timings);
        if let Some(dedup) = dedup {
            counts.duplicates += dedup.duplicates;
            counts.conflicts += dedup.conflicts;
            let bits = survivors.get_or_insert_with(|| vec![0; (ordinal as usize).div_ceil(64)]);
            for place in dedup.finish() {
                bits[place as usize / 64] |= 1 << (place % 64);
            }
        }
    }
    timings.dedup_ms += began.elapsed().as_nanos() as f64 / 1e6 - scan_ms;
    let stream = Stream { filtered: Filtered::new(job, &layout.columns, task), window, survivors, ordinal: 0 };
    let spent = stream.filtered.spent.clone();
    let batches: Box<dyn Iterator<Item = Result<RecordBatch, Unplaced>> + 's> =
        if in_order { Box::new(stream) } else { sorted(job, layout, stream, budget) };
    Ok(PartitionInput::new(counts, Rows::Streamed { batches, left_out: LeftOut::new(), last: None, spent }))
}

fn key_columns(job: &Job, layout: &Layout) -> Vec<Field> {
    let mut columns: Vec<Field> = layout.key.iter().map(|(_, f)| f.clone()).collect();
    let record_id = layout.record_id.map(|i| layout.columns[i].name.as_str());
    for name in job.filter.iter().flat_map(|f| f.columns()).map(String::as_str).chain(record_id) {
        if let Some(field) = layout.columns.iter().find(|c| c.name == name && !columns.contains(c)) {
            columns.push(field.clone());
        }
    }
    columns
}

/// The survivors of one large partition, in the order of the files.
struct Stream<'s> {
    filtered: Filtered<'s>,
    window: Window,
    survivors: Option<Vec<u64>>,
    ordinal: u64,
}

const ORDER: [&str; 2] = ["_restitch_snapshot", "_restitch_seq"];

impl Iterator for Stream<'_> {
    type Item = Result<RecordBatch, Unplaced>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = match self.filtered.next() {
            Ok(batch) => batch?,
            Err(e) => return Some(Err(e)),
        };
        let keep: BooleanArray = (0..batch.times.len())
            .map(|row| {
                if !self.window.contains(EventTime(batch.times.value(row))) {
                    return Some(false);
                }
                let place = self.ordinal;
                self.ordinal += 1;
                Some(self.survivors.as_ref().is_none_or(|bits| bits[place as usize / 64] >> (place % 64) & 1 == 1))
            })
            .collect();
        Some(streamed(&batch, &keep).map_err(Unplaced::from))
    }
}

/// Returns a batch of the stream: the layout's columns, the payload's hash, and what orders rows.
fn streamed(batch: &RawBatch, keep: &BooleanArray) -> Result<RecordBatch, arrow::error::ArrowError> {
    let batch = batch.filter(keep)?;
    let schema = batch.columns.schema();
    let mut columns: Vec<(String, ArrayRef, bool)> =
        schema.fields().iter().zip(batch.columns.columns()).map(|(f, a)| (f.name().clone(), a.clone(), true)).collect();
    let order: [(&str, Int64Array); 3] = [(envelope::PAYLOAD_HASH, batch.payload), (ORDER[0], batch.snapshots), (ORDER[1], batch.seq)];
    // The payload's hash may be a column of the layout too: names need not be unique for us.
    columns.extend(order.into_iter().map(|(n, a)| (format!("_restitch{n}"), std::sync::Arc::new(a) as ArrayRef, true)));
    RecordBatch::try_from_iter_with_nullable(columns)
}

/// Rows of one file stand clustered by day; a partition of several days is sorted by arrival, on disk.
fn sorted<'s>(job: &'s Job, layout: &'s Layout, stream: Stream<'s>, memory: u64) -> Box<dyn Iterator<Item = Result<RecordBatch, Unplaced>> + 's> {
    let mut fields: Vec<Field> = layout.columns.iter().map(|f| Field { nullable: true, ..f.clone() }).collect();
    let order: Vec<String> = ORDER.iter().map(|n| format!("_restitch{n}")).collect();
    fields.push(Field::new(format!("_restitch{}", envelope::PAYLOAD_HASH), DataType::Int64, true));
    fields.extend(order.iter().map(|n| Field::new(n.as_str(), DataType::Int64, true)));
    let schema = std::sync::Arc::new(arrow::datatypes::Schema::new(fields.iter().map(|f| f.arrow(None)).collect::<Vec<_>>()));
    let sorted = sort_spilled(schema, Box::new(stream), &order, (memory as usize).max(SORT_BYTES_MIN), &spill_dir(job));
    Box::new(sorted.map(|b| b.map_err(Unplaced::from)))
}

/// See [`super::read_lookup`].
pub(crate) fn read_lookup(store: &Store, raw: &RawInput, fields: &[Field]) -> Result<Vec<RecordBatch>, crate::datafile::DataFileError> {
    let mut columns = fields.to_vec();
    let id = Field::new(envelope::RECORD_ID, DataType::String, false);
    columns.push(id.clone());
    let hasher = KeyHasher::default();
    let rule = crate::config::Dedup { key: Vec::new(), keep: crate::config::Keep::LatestIngested, on_conflict: crate::config::OnConflict::Count };
    let mut dedup = Deduplicator::new(&rule, 0);
    let mut blocks = Vec::new();
    for batch in raw.scan(store, &columns, Vec::new()) {
        let batch = batch?;
        let hashes = hasher.hash(&batch.columns, &[(fields.len(), id.clone())]);
        for (row, hash) in hashes.into_iter().enumerate() {
            dedup.add(hash, (blocks.len() as u32, row as u32), (batch.snapshots.value(row), batch.seq.value(row)), batch.payload.value(row));
        }
        blocks.push(batch);
    }
    let places = dedup.finish();
    let own: Vec<usize> = (0..fields.len()).collect();
    let batches = places.chunks(BATCH_ROWS).map(|chunk| {
        let batch = gather(&blocks, chunk).and_then(|b| Ok(b.project(&own)?));
        batch.unwrap_or_else(|e| panic!("BUG: rows of one table do not fit together: {e:?}"))
    });
    Ok(batches.collect())
}
