//! One raw file after the other, read whole: the records of the window decoded again, compared, and written if one changed.
//! Never writes a file in which nothing changed, and nothing at all once a record was refused.

use super::{Look, ReparseError};
use crate::{
    catalog::{LiveFile, SLOT_US},
    config::{Format, Source},
    datafile::{Reader, Writer, Written},
    decode::{Chunk, CsvHeader, Redecoder},
    id::SnapshotId,
    manifest::ReparseRecord,
    raw::{BATCH_ROWS, RawBatch, RawInput, RawScan},
    schema::{Field, envelope},
    store::Store,
    time::{EventTime, format_us},
    window::Window,
};
use arrow::{
    array::{Array, ArrayRef, AsArray, BooleanArray, RecordBatch, StringArray},
    compute::{filter, interleave, kernels::cmp::distinct, or},
    datatypes::{Int64Type, SchemaRef},
};
use std::{
    collections::{BTreeSet, HashMap},
    path::Path,
    rc::Rc,
    sync::Arc,
};

/// Refused records that are named.
const SHOWN: usize = 5;
/// Bytes of payload in a batch, about.
const BATCH_BYTES: i64 = 16 << 20;

/// What reading all files again came to.
pub(super) struct Found {
    /// Files that were written, each with the live one that it replaces.
    pub(super) written: Vec<(LiveFile, Written)>,
    /// Starts of the slots in which a record changed.
    pub(super) slots: BTreeSet<i64>,
    /// Counts for the manifest.
    pub(super) record: ReparseRecord,
}

/// Where the columns stand that a record is read by.
struct Places {
    record_id: usize,
    file: usize,
    offset: usize,
    payload: usize,
    landed: usize,
    /// Column of the table, and of the source.
    declared: Vec<(usize, usize)>,
}

/// Reads files again, one after the other.
pub(super) struct Rewriter<'r> {
    store: &'r Store,
    source: &'r Source,
    look: &'r Look,
    folder: String,
    keep: bool,
    fields: Vec<Field>,
    schema: SchemaRef,
    places: Places,
    decoder: Redecoder<'r>,
    headers: HashMap<(i64, String), Rc<CsvHeader>>,
    refused: u64,
    first: Vec<String>,
    found: Found,
}

impl<'r> Rewriter<'r> {
    /// Returns one that writes into `folder`, or, without `keep`, only counts.
    pub(super) fn new(store: &'r Store, source: &'r Source, look: &'r Look, folder: String, keep: bool) -> Result<Rewriter<'r>, ReparseError> {
        let fields = look.table.fields();
        let place = |name: &str| fields.iter().position(|f| f.name == name).expect("BUG: the table was planned with it");
        let places = Places {
            record_id: place(envelope::RECORD_ID),
            file: place(envelope::FILE),
            offset: place(envelope::OFFSET),
            payload: place(envelope::PAYLOAD),
            landed: place(envelope::LANDED),
            declared: source.columns.iter().enumerate().map(|(i, c)| (place(&c.name), i)).collect(),
        };
        let schema = look.table.arrow();
        let columns = source.columns.iter().map(|c| (c.name.clone(), 0)).collect();
        let found = Found { written: Vec::new(), slots: BTreeSet::new(), record: ReparseRecord { columns, ..ReparseRecord::default() } };
        let decoder = Redecoder::new(source)?;
        let (headers, first) = (HashMap::new(), Vec::new());
        Ok(Rewriter { store, source, look, folder, keep, fields, schema, places, decoder, headers, refused: 0, first, found })
    }

    /// Reads one file again, and writes it anew if a record in it changed.
    pub(super) fn file(&mut self, file: &LiveFile) -> Result<(), ReparseError> {
        let payload_bytes = Reader::open(self.store, &file.path)?.uncompressed_bytes(&[envelope::PAYLOAD]);
        let fat = payload_bytes / file.rows.max(1);
        let rows = BATCH_BYTES.checked_div(fat).map_or(BATCH_ROWS, |n| n as usize);
        let raw = RawInput { table: self.look.table.clone(), files: vec![file.clone()], snapshot: self.look.snapshot, published: None };
        let (store, fields) = (self.store, self.fields.clone());
        let scan = || -> RawScan { raw.scan(store, &fields, Vec::new()).in_batches_of(rows) };
        let mut writer: Option<Writer> = None;
        for (i, batch) in scan().enumerate() {
            let batch = batch?;
            let changed = self.batch(&batch)?;
            if !self.keep || self.refused > 0 {
                continue;
            }
            if changed.is_some() && writer.is_none() {
                let path = format!("{}/raw-{}.parquet", self.folder, self.found.written.len());
                let mut begun = Writer::create(store, path, &self.look.table)?;
                for earlier in scan().take(i) {
                    begun.write(&self.anew(&earlier?, None)?)?;
                }
                writer = Some(begun);
            }
            if let Some(writer) = &mut writer {
                writer.write(&self.anew(&batch, changed)?)?;
            }
        }
        if let Some(writer) = writer {
            self.found.written.push((file.clone(), writer.finish()?));
        }
        Ok(())
    }

    /// Returns what all files came to.
    pub(super) fn finish(self) -> Result<Found, ReparseError> {
        if self.refused > 0 {
            return Err(ReparseError::Refused { source_name: self.source.name.clone(), rows: self.refused, first: self.first });
        }
        Ok(self.found)
    }

    /// Decodes the records of the window again; returns the columns that changed, whole, by their place in the table.
    fn batch(&mut self, batch: &RawBatch) -> Result<Option<HashMap<usize, ArrayRef>>, ReparseError> {
        self.found.record.read += batch.times.len() as u64;
        let window: Window = self.look.window;
        let inside: BooleanArray = batch.times.values().iter().map(|at| Some(window.contains(EventTime(*at)))).collect();
        if inside.true_count() == 0 {
            return Ok(None);
        }
        let own = if inside.true_count() == inside.len() { batch.clone() } else { batch.filter(&inside)? };
        self.found.record.inside += own.times.len() as u64;
        let Some(chunk) = self.decode(&own)? else { return Ok(None) };
        let mut changed: HashMap<usize, ArrayRef> = HashMap::new();
        let mut any = BooleanArray::from(vec![false; own.times.len()]);
        for &(place, declared) in &self.places.declared {
            let (old, new) = (own.columns.column(place), &chunk.columns[declared]);
            let differs = distinct(old, new)?;
            if differs.true_count() > 0 {
                self.found.record.columns[declared] += differs.true_count() as u64;
                any = or(&any, &differs)?;
                changed.insert(place, new.clone());
            }
        }
        if changed.is_empty() {
            return Ok(None);
        }
        self.found.record.changed += any.true_count() as u64;
        let times = filter(&own.times, &any)?;
        let slot = |at: &i64| at.div_euclid(SLOT_US) * SLOT_US;
        self.found.slots.extend(times.as_primitive::<arrow::datatypes::TimestampMicrosecondType>().values().iter().map(slot));
        if own.times.len() < batch.times.len() {
            let mut next = 0;
            let pick = |(row, inside): (usize, Option<bool>)| match inside {
                Some(true) => {
                    next += 1;
                    (1, next - 1)
                }
                _ => (0, row),
            };
            let indices: Vec<(usize, usize)> = inside.iter().enumerate().map(pick).collect();
            for (place, new) in &mut changed {
                *new = interleave(&[batch.columns.column(*place).as_ref(), new.as_ref()], &indices)?;
            }
        }
        Ok(Some(changed))
    }

    /// Returns all records of `own` as they read now; `None` if one was refused, then or before.
    fn decode(&mut self, own: &RawBatch) -> Result<Option<Chunk>, ReparseError> {
        let column = |place: usize| own.columns.column(place).clone();
        let (ids, files, offsets, payloads) =
            (column(self.places.record_id), column(self.places.file), column(self.places.offset), column(self.places.payload));
        let (ids, files) = (ids.as_string::<i32>(), files.as_string::<i32>());
        let (offsets, payloads) = (offsets.as_primitive::<Int64Type>(), payloads.as_binary::<i32>());
        let refused_before = self.refused;
        let mut taken = Vec::with_capacity(ids.len());
        for row in 0..ids.len() {
            let (file, offset) = (files.value(row), offsets.value(row));
            if payloads.is_null(row) {
                return Err(ReparseError::NoPayload { file: file.into(), offset });
            }
            let header = match self.source.format {
                Format::Csv => Some(self.header(own.snapshots.value(row), file)?),
                _ => None,
            };
            match self.decoder.put(payloads.value(row), header.as_deref()) {
                Ok(()) => taken.push(row),
                Err(reason) => self.refuse(file, offset, &reason),
            }
        }
        let chunk = self.decoder.take();
        for (k, &row) in taken.iter().enumerate() {
            if let Some(reason) = moved(own, ids, row, &chunk, k) {
                self.refuse(files.value(row), offsets.value(row), &reason);
            }
        }
        Ok((self.refused == refused_before).then_some(chunk))
    }

    fn refuse(&mut self, file: &str, offset: i64, reason: &str) {
        self.refused += 1;
        if self.first.len() < SHOWN {
            self.first.push(format!("{file}:{offset}: {reason}"));
        }
    }

    /// Returns the header of the file that the ingest `snapshot` landed under that path.
    fn header(&mut self, snapshot: i64, file: &str) -> Result<Rc<CsvHeader>, ReparseError> {
        let key = (snapshot, file.to_owned());
        if let Some(header) = self.headers.get(&key) {
            return Ok(header.clone());
        }
        let snapshot = SnapshotId(snapshot);
        let kept = self.look.headers.get(&(snapshot, file.to_owned()));
        let (line, delimiter) = kept.ok_or_else(|| ReparseError::NoHeader { file: file.into(), snapshot })?;
        let header = Rc::new(self.decoder.header(Path::new(file), line, *delimiter)?);
        self.headers.insert(key, header.clone());
        Ok(header)
    }

    /// Returns the rows of a batch as rows of the new file: each keeps the snapshot that landed it.
    fn anew(&self, batch: &RawBatch, changed: Option<HashMap<usize, ArrayRef>>) -> Result<RecordBatch, ReparseError> {
        let mut columns = batch.columns.columns().to_vec();
        for (place, new) in changed.into_iter().flatten() {
            columns[place] = new;
        }
        columns[self.places.landed] = Arc::new(batch.snapshots.clone());
        Ok(RecordBatch::try_new(self.schema.clone(), columns)?)
    }
}

/// Returns why a record would be another one, or elsewhere, as the source is declared now.
fn moved(own: &RawBatch, ids: &StringArray, row: usize, chunk: &Chunk, k: usize) -> Option<String> {
    let (was, now) = (own.times.value(row), chunk.event_times[k]);
    if own.payload.value(row) != chunk.payload_hashes[k] {
        Some("its payload is not what landed: its hash differs".into())
    } else if was != now {
        Some(format!("its event time would move from {} to {}", format_us(was), format_us(now)))
    } else if ids.value(row) != chunk.record_ids.value(k) {
        Some("its record id would be another one".into())
    } else {
        None
    }
}
