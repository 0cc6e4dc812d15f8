//! A partition that does not fit into its share of memory: one pass over the key columns finds the survivors, a second streams them.
//! Never holds more than its share: keys beyond it wait in files of the staging folder, cut by their hash.
//! `input` calls it for the tasks that `tasks` calls large.

use super::{
    Counts, Job, Layout, LeftOut, SORT_BYTES_MIN, Task, Unplaced,
    input::{Elsewhere, Filtered, PartitionInput, Rows},
    spill_dir,
};
use crate::{
    config::Dedup,
    datafile::DataFileError,
    dedup::{Arrival, KeyHash, KeyHasher, survivors},
    manifest::Timings,
    moves::Standing,
    query::sort_spilled,
    raw::RawBatch,
    schema::{DataType, Field, envelope},
    store::{File, Store, StoreError},
    time::EventTime,
    window::{Window, path_segment},
};
use arrow::array::{ArrayRef, BooleanArray, BooleanBufferBuilder, Int64Array, RecordBatch};
use std::{
    io::{self, BufReader, BufWriter, Read, Write},
    time::Instant,
};

/// Files that keys wait in, at most: a partition of more keys than these hold within the share takes more than its share.
const PARTS_MAX: u64 = 256;

/// Memory of one key while survivors are found: its entry, its hash once more, and its share of the table.
const KEY_BYTES: u64 = 96;

/// Returns the records of a task's one partition.
pub(super) fn large<'s>(
    job: &'s Job,
    layout: &'s Layout,
    hasher: KeyHasher,
    task: &Task,
    timings: &mut Timings,
) -> Result<PartitionInput<'s>, Unplaced> {
    let began = Instant::now();
    let partition = &task.partitions[0];
    let window = job.recipe.write.part_of(partition.window);
    let budget = (job.memory_bytes / 2 / job.workers.max(1)).max(1 << 20) as u64;
    let mut counts = Counts::default();
    // Key columns first; the filter's follow because the layout has them all and Parquet skips what is not asked.
    let columns = key_columns(job, layout);
    let mut filtered = Filtered::new(job, &columns, task);
    let elsewhere = Elsewhere::of(job, layout.record_id.and_then(|_| columns.iter().position(|c| c.name == envelope::RECORD_ID)), window);
    let key: Vec<(usize, Field)> = layout.key.iter().enumerate().map(|(i, (_, f))| (i, f.clone())).collect();
    let parts = (task.records * KEY_BYTES).div_ceil(budget).clamp(1, PARTS_MAX);
    let mut keys = job.recipe.dedup.as_ref().map(|_| Keys::new(job.store, format!("{}/{}", job.staging, path_segment(&partition.name)), parts));
    let (mut ordinal, mut last, mut in_order) = (0u64, (i64::MIN, i64::MIN), true);
    let (mut last_turn, mut in_turn) = ((false, last), true);
    let keep = job.recipe.dedup.as_ref().filter(|_| job.recipe.follows).map(|rule| rule.keep);
    while let Some(batch) = filtered.next()? {
        let hashes = if keys.is_some() { hasher.hash(&batch.columns, &key) } else { Vec::new() };
        for (row, at) in batch.times.values().iter().enumerate() {
            if !window.contains(EventTime(*at)) {
                continue;
            }
            let arrival = (batch.snapshots.value(row), batch.seq.value(row));
            counts.records += 1;
            counts.late += (batch.flags.value(row) & envelope::LATE != 0) as u64;
            in_order &= arrival > last;
            last = arrival;
            let future = batch.flags.value(row) & envelope::FUTURE != 0;
            let turn = keep.map_or((false, arrival), |keep| Standing { arrival, future }.turn(keep));
            in_turn &= turn > last_turn;
            last_turn = turn;
            let counted = elsewhere.counts(&batch, row);
            counts.moved += !counted as u64;
            if let Some(keys) = &mut keys {
                keys.add(hashes[row], Entry { turn, payload: batch.payload.value(row), ordinal, counted })?;
            }
            ordinal += 1;
        }
    }
    let scan_ms = filtered.spent.get().add_to(timings);
    let survivors = match (keys, &job.recipe.dedup) {
        (Some(keys), Some(rule)) => Some(keys.survivors(rule, in_turn, ordinal, &mut counts)?),
        _ => None,
    };
    timings.dedup_ms += began.elapsed().as_nanos() as f64 / 1e6 - scan_ms;
    let stream = Stream { filtered: Filtered::new(job, &layout.columns, task), window, survivors, ordinal: 0 };
    let spent = stream.filtered.spent.clone();
    let batches: Box<dyn Iterator<Item = Result<RecordBatch, Unplaced>> + 's> =
        if in_order { Box::new(stream) } else { sorted(job, layout, stream, budget) };
    Ok(PartitionInput::new(counts, Rows::Streamed { batches, left_out: LeftOut::new(), last: None, spent }))
}

/// What is known of a record while survivors are found.
#[derive(Clone, Copy)]
struct Entry {
    /// See [`Standing::turn`]; of keys that are no ids, by arrival alone.
    turn: (bool, Arrival),
    payload: i64,
    /// Its place in the order of the files.
    ordinal: u64,
    /// Whether it counts in this partition: one of an id that counts elsewhere is there to be compared with.
    counted: bool,
}

/// Bytes of a key and its entry in a file.
const ENTRY_BYTES: usize = 56;

/// The keys of a partition, cut by hash into parts that fit into memory one by one.
struct Keys<'k> {
    store: &'k Store,
    /// The files' common beginning.
    path: String,
    files: Vec<Option<BufWriter<File>>>,
    /// The only part, if there is one.
    held: Vec<(KeyHash, Entry)>,
    /// What stays, bit by bit in the order of the files: at first the records without a key, all of which stay.
    stay: BooleanBufferBuilder,
}

impl<'k> Keys<'k> {
    fn new(store: &'k Store, path: String, parts: u64) -> Keys<'k> {
        let files = (0..if parts > 1 { parts } else { 0 }).map(|_| None).collect();
        Keys { store, path, files, held: Vec::new(), stay: BooleanBufferBuilder::new(0) }
    }

    fn file(&self, part: usize) -> String {
        format!("{}.keys-{part}", self.path)
    }

    /// Takes a record in: with a key, or with a null in its key.
    fn add(&mut self, key: Option<KeyHash>, entry: Entry) -> Result<(), Unplaced> {
        let Some(key) = key else {
            self.stay.resize(entry.ordinal as usize + 1);
            self.stay.set_bit(entry.ordinal as usize, entry.counted);
            return Ok(());
        };
        if self.files.is_empty() {
            self.held.push((key, entry));
            return Ok(());
        }
        let part = key.part(self.files.len() as u64) as usize;
        if self.files[part].is_none() {
            self.files[part] = Some(BufWriter::with_capacity(1 << 16, self.store.create(&self.file(part)).map_err(DataFileError::Store)?));
        }
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..16].copy_from_slice(&key.to_bytes());
        let (late, arrival) = entry.turn;
        let flags = late as i64 | (entry.counted as i64) << 1;
        for (i, number) in [arrival.0, arrival.1, entry.payload, entry.ordinal as i64, flags].into_iter().enumerate() {
            bytes[16 + i * 8..24 + i * 8].copy_from_slice(&number.to_le_bytes());
        }
        let written = self.files[part].as_mut().map_or(Ok(()), |file| file.write_all(&bytes));
        written.map_err(|source| failed("write", self.store, &self.file(part), source))
    }

    /// Returns, bit by bit in the order of the files, which of `records` stay; removes the files.
    fn survivors(mut self, rule: &Dedup, in_turn: bool, records: u64, counts: &mut Counts) -> Result<BooleanBufferBuilder, Unplaced> {
        let mut stay = std::mem::replace(&mut self.stay, BooleanBufferBuilder::new(0));
        stay.resize(records as usize);
        for part in 0..self.files.len().max(1) {
            let mut entries = std::mem::take(&mut self.held);
            if let Some(file) = self.files.get_mut(part).and_then(Option::take) {
                let path = self.file(part);
                drop(file.into_inner().map_err(|e| failed("write", self.store, &path, e.into_error()))?);
                entries = read_entries(self.store, &path)?;
                self.store.remove(&path).map_err(DataFileError::Store)?;
            }
            if !in_turn {
                entries.sort_unstable_by_key(|(_, e)| e.turn);
            }
            let find = |entries: &[(KeyHash, Entry)]| {
                let keys: Vec<Option<KeyHash>> = entries.iter().map(|(key, _)| Some(*key)).collect();
                survivors(rule, &keys, |i| entries[i].1.payload)
            };
            let mut found = find(&entries);
            counts.conflicts += found.conflicts;
            if entries.iter().any(|(_, e)| !e.counted) {
                entries.retain(|(_, e)| e.counted);
                found = find(&entries);
            }
            counts.duplicates += found.duplicates;
            entries.iter().enumerate().filter(|(i, _)| found.stays(*i)).for_each(|(_, (_, e))| stay.set_bit(e.ordinal as usize, true));
        }
        Ok(stay)
    }
}

fn failed(action: &'static str, store: &Store, path: &str, source: io::Error) -> Unplaced {
    DataFileError::Store(StoreError { action, path: store.path(path), source }).into()
}

fn read_entries(store: &Store, path: &str) -> Result<Vec<(KeyHash, Entry)>, Unplaced> {
    let size = store.size(path).map_err(DataFileError::Store)? as usize;
    let mut file = BufReader::with_capacity(1 << 18, store.open(path).map_err(DataFileError::Store)?);
    let mut entries = Vec::with_capacity(size / ENTRY_BYTES);
    let mut bytes = [0; ENTRY_BYTES];
    for _ in 0..size / ENTRY_BYTES {
        file.read_exact(&mut bytes).map_err(|e| failed("read", store, path, e))?;
        let number = |i: usize| i64::from_le_bytes(std::array::from_fn(|byte| bytes[16 + i * 8 + byte]));
        let (turn, counted) = ((number(4) & 1 != 0, (number(0), number(1))), number(4) & 2 != 0);
        let entry = Entry { turn, payload: number(2), ordinal: number(3) as u64, counted };
        entries.extend(KeyHash::from_bytes(std::array::from_fn(|byte| bytes[byte])).map(|key| (key, entry)));
    }
    Ok(entries)
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
    survivors: Option<BooleanBufferBuilder>,
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
                Some(self.survivors.as_ref().is_none_or(|stay| stay.get_bit(place as usize)))
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
