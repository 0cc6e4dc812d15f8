//! The raw rows of a window at one snapshot, with what orders them.
//! Never changes a row and never removes a duplicate; a pinned snapshot gives the same rows for ever.
//! Execution, lookups and verification read through it.

use crate::{
    catalog::{LiveFile, Table},
    datafile::{DataFileError, Reader, overlaps},
    id::SnapshotId,
    schema::{DataType, Field, envelope},
    store::Store,
    time::{EventTime, parse},
    window::Window,
};
use arrow::{
    array::{Array, AsArray, BooleanArray, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, TimestampMicrosecondArray},
    compute::{filter_record_batch, kernels::cmp::lt_eq},
    datatypes::{Int32Type, Int64Type, TimestampMicrosecondType},
};
use chrono_tz::Tz;
use std::{collections::VecDeque, time::Instant};

/// Rows per batch.
pub const BATCH_ROWS: usize = 8192;

/// The column that DuckDB's compaction adds to a file of several snapshots.
const SNAPSHOT_COLUMN: &str = "_ducklake_internal_snapshot_id";

/// A raw table at one snapshot.
#[derive(Clone, Debug)]
pub struct RawInput {
    /// The table.
    pub table: Table,
    /// Its files, in arrival order, with the bounds of their event time.
    pub files: Vec<LiveFile>,
    /// The snapshot.
    pub snapshot: SnapshotId,
}

/// Raw rows, in the order of their file.
#[derive(Clone, Debug)]
pub struct RawBatch {
    /// Which of a job's raw tables they are of.
    pub table: usize,
    /// The columns that were asked for.
    pub columns: RecordBatch,
    /// When each record happened.
    pub times: TimestampMicrosecondArray,
    /// The ingest that each came in.
    pub snapshots: Int64Array,
    /// The place of each in its ingest: (snapshot, place) is the arrival order.
    pub seq: Int64Array,
    /// Tells payloads apart.
    pub payload: Int64Array,
    /// Late, future.
    pub flags: Int32Array,
}

impl RawBatch {
    /// Returns the rows that `keep` says.
    pub fn filter(&self, keep: &BooleanArray) -> Result<RawBatch, arrow::error::ArrowError> {
        let pick = |a: &dyn Array| arrow::compute::filter(a, keep);
        Ok(RawBatch {
            table: self.table,
            columns: filter_record_batch(&self.columns, keep)?,
            times: pick(&self.times)?.as_primitive::<TimestampMicrosecondType>().clone(),
            snapshots: pick(&self.snapshots)?.as_primitive::<Int64Type>().clone(),
            seq: pick(&self.seq)?.as_primitive::<Int64Type>().clone(),
            payload: pick(&self.payload)?.as_primitive::<Int64Type>().clone(),
            flags: pick(&self.flags)?.as_primitive::<Int32Type>().clone(),
        })
    }
}

impl RawInput {
    /// Returns whether a file may hold event times of one of `windows`, which are in order of time.
    pub fn may_hold(file: &LiveFile, windows: &[Window]) -> bool {
        let bounds = file.bounds.as_ref().and_then(|(low, high)| Some((parse(low, Tz::UTC).ok()?, parse(high, Tz::UTC).ok()?)));
        bounds.is_none_or(|(low, high)| overlaps(windows, low, high))
    }

    /// Returns the rows that may be of `windows` (in order of time; all rows, without any), file by file in arrival order. Rows of one file
    /// stand clustered by day; a caller that needs arrival order inside a partition compares (snapshot, seq).
    pub fn scan<'s>(&self, store: &'s Store, columns: &[Field], windows: Vec<Window>) -> RawScan<'s> {
        let files = self.files.iter().filter(|f| windows.is_empty() || RawInput::may_hold(f, &windows)).cloned().collect();
        let mut wanted = columns.to_vec();
        wanted.extend(envelope::fields().into_iter().filter(|f| ENVELOPE.contains(&f.name.as_str())));
        wanted.push(Field::new(SNAPSHOT_COLUMN, DataType::Int64, true));
        wanted.push(envelope::landed());
        let (asked, snapshot) = (columns.len(), self.snapshot);
        RawScan { store, files, columns: wanted, asked, windows, snapshot, batch_rows: BATCH_ROWS, open: None, scan_ns: 0, read_ns: 0 }
    }

    /// Returns about how many bytes a row of `columns` takes in memory.
    ///
    /// # Errors
    /// A file is damaged.
    pub fn row_bytes(&self, store: &Store, columns: &[Field]) -> Result<u64, DataFileError> {
        let names: Vec<&str> = columns.iter().map(|c| c.name.as_str()).collect();
        let files = || self.files.iter().filter(|f| f.rows > 0);
        // The largest file tells what is usual, the one with the fattest rows what is possible.
        let samples = [files().max_by_key(|f| f.rows), files().max_by_key(|f| f.bytes / f.rows)];
        let mut most = 16;
        for file in samples.into_iter().flatten() {
            let bytes = Reader::open(store, &file.path)?.uncompressed_bytes(&names);
            most = most.max(2 * bytes as u64 / file.rows as u64);
        }
        Ok(48 + most)
    }
}

/// What every scan reads beside the asked columns, in the envelope's order.
const ENVELOPE: [&str; 4] = [envelope::EVENT_TIME, envelope::FLAGS, envelope::SEQ, envelope::PAYLOAD_HASH];

/// Raw rows in the reading.
pub struct RawScan<'s> {
    store: &'s Store,
    files: VecDeque<LiveFile>,
    columns: Vec<Field>,
    asked: usize,
    windows: Vec<Window>,
    snapshot: SnapshotId,
    batch_rows: usize,
    open: Option<(LiveFile, crate::datafile::Scan)>,
    scan_ns: u64,
    read_ns: u64,
}

impl RawScan<'_> {
    /// Returns the time spent reading and decoding, in nanoseconds.
    pub fn scan_ns(&self) -> u64 {
        self.scan_ns
    }

    /// Returns how much of that was waiting for bytes, in nanoseconds.
    pub fn read_ns(&self) -> u64 {
        self.read_ns + self.open.as_ref().map_or(0, |(_, scan)| scan.read_ns())
    }

    /// Returns the scan with fewer rows in a batch, where rows are fat.
    pub fn in_batches_of(self, rows: usize) -> Self {
        RawScan { batch_rows: rows.clamp(1, BATCH_ROWS), ..self }
    }

    fn pull(&mut self) -> Option<Result<RawBatch, DataFileError>> {
        loop {
            if let Some((file, scan)) = &mut self.open {
                match scan.next() {
                    Some(batch) => return Some(batch.map(|b| split(&b, self.asked, file, self.snapshot))),
                    None => {
                        self.read_ns += scan.read_ns();
                        self.open = None;
                    }
                }
            }
            let file = self.files.pop_front()?;
            let opened = Reader::open(self.store, &file.path).and_then(|r| r.scan(&self.columns, &self.windows, self.batch_rows));
            match opened {
                Ok(scan) => self.open = Some((file, scan)),
                Err(e) => return Some(Err(e)),
            }
        }
    }
}

impl Iterator for RawScan<'_> {
    type Item = Result<RawBatch, DataFileError>;

    fn next(&mut self) -> Option<Self::Item> {
        let began = Instant::now();
        let batch = self.pull();
        self.scan_ns += began.elapsed().as_nanos() as u64;
        batch
    }
}

fn split(batch: &RecordBatch, asked: usize, file: &LiveFile, at: SnapshotId) -> RawBatch {
    let rows = batch.num_rows();
    let all = batch.columns();
    let schema = batch.schema();
    let fields: Vec<_> = schema.fields()[..asked].to_vec();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let columns = RecordBatch::try_new_with_options(std::sync::Arc::new(arrow::datatypes::Schema::new(fields)), all[..asked].to_vec(), &options)
        .expect("BUG: a prefix of a batch is a batch");
    let merged = all[asked + 4].as_primitive::<Int64Type>();
    let visible_from = match file.partial_max {
        Some(_) if merged.null_count() < rows => merged.clone(),
        _ => Int64Array::from_value(file.begin.0, rows),
    };
    let landed = all[asked + 5].as_primitive::<Int64Type>();
    let snapshots = match landed.null_count() {
        n if n == rows => visible_from.clone(),
        0 => landed.clone(),
        _ => landed.iter().zip(visible_from.values()).map(|(landed, file)| landed.unwrap_or(*file)).collect::<Vec<_>>().into(),
    };
    let raw = RawBatch {
        table: 0,
        columns,
        times: all[asked].as_primitive::<TimestampMicrosecondType>().clone(),
        flags: all[asked + 1].as_primitive::<Int32Type>().clone(),
        seq: all[asked + 2].as_primitive::<Int64Type>().clone(),
        payload: all[asked + 3].as_primitive::<Int64Type>().clone(),
        snapshots,
    };
    if file.partial_max.is_some_and(|max| max > at) {
        let visible = lt_eq(&visible_from, &Int64Array::new_scalar(at.0)).expect("BUG: both are int64");
        return raw.filter(&visible).expect("BUG: the mask has the batch's length");
    }
    raw
}

/// Which of a run of neighbouring partitions an event time lies in; remembers the last answer.
#[derive(Clone, Debug)]
pub struct Router {
    windows: Vec<Window>,
    last: usize,
}

impl Router {
    /// Returns the router over `windows`, in order of time and without overlap; there may be gaps.
    pub fn new(windows: Vec<Window>) -> Router {
        Router { windows, last: 0 }
    }

    /// Returns the index of the window that holds `at`, if one does.
    pub fn find(&mut self, at: EventTime) -> Option<usize> {
        if self.windows.get(self.last).is_some_and(|w| w.contains(at)) {
            return Some(self.last);
        }
        let i = self.windows.partition_point(|w| w.end() <= at);
        if !self.windows.get(i)?.contains(at) {
            return None;
        }
        self.last = i;
        Some(i)
    }
}
