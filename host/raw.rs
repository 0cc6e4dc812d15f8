//! The rows of a window at one snapshot, with what orders them: landed ones, or those that another dataset has published.
//! Never changes a row and never removes a duplicate; a pinned snapshot gives the same rows for ever.
//! Execution, lookups and verification read through it.

use crate::{
    catalog::{LiveFile, Table},
    datafile::{DataFileError, Reader, overlaps},
    id::{Digest, SnapshotId},
    schema::{DataType, Field, envelope},
    store::Store,
    time::{EventTime, parse},
    window::Window,
};
use arrow::{
    array::{Array, AsArray, BooleanArray, BooleanBufferBuilder, Int32Array, Int64Array, RecordBatch, RecordBatchOptions, TimestampMicrosecondArray},
    compute::{filter_record_batch, kernels::cmp::lt_eq},
    datatypes::{Int32Type, Int64Type, TimestampMicrosecondType},
};
use chrono_tz::Tz;
use sha2::{Digest as _, Sha256};
use std::{collections::VecDeque, ops::Range, time::Instant};

/// Rows per batch.
pub const BATCH_ROWS: usize = 8192;

/// The column that DuckDB's compaction adds to a file of several snapshots.
const SNAPSHOT_COLUMN: &str = "_ducklake_internal_snapshot_id";

/// A raw table at one snapshot, or the table of a dataset.
#[derive(Clone, Debug)]
pub struct RawInput {
    /// The table.
    pub table: Table,
    /// Its files, in arrival order, with the bounds of their event time.
    pub files: Vec<LiveFile>,
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// For a dataset, what its files hold; `None` for landed records.
    pub published: Option<Published>,
}

/// The published rows of a dataset as an input: they come by partition, and in each in the order that its checksum has.
#[derive(Clone, Debug)]
pub struct Published {
    /// Which of the datasets of a run it is, from 0: of two partitions from one instant on, the first dataset's comes first.
    pub place: usize,
    /// The column that has a row's time; without one all rows of a partition are of its first instant.
    pub time_column: Option<String>,
    /// For each file, in the same order, what it is a part of.
    pub parts: Vec<Part>,
}

/// A file of a published partition.
#[derive(Clone, Debug)]
pub struct Part {
    /// The partition's window.
    pub window: Window,
    /// The partition's content checksum.
    pub checksum: Digest,
    /// The place of the file's first row in its partition.
    pub first_row: i64,
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
        let part = |i: usize| self.published.as_ref().map(|p| p.parts[i].clone());
        let inside = self.files.iter().enumerate().filter(|(_, f)| windows.is_empty() || RawInput::may_hold(f, &windows));
        let files = inside.map(|(i, f)| (f.clone(), part(i))).collect();
        let published = self.published.as_ref().map(|p| (p.place, p.time_column.clone()));
        let mut wanted = columns.to_vec();
        if let Some((_, column)) = &published {
            wanted.extend(column.iter().map(|c| Field::new(c, DataType::Timestamp, true)));
            // Its statistics are not those of an event time: each row is looked at.
            return RawScan::new(store, files, wanted, columns.len(), (Vec::new(), published), self.snapshot);
        }
        wanted.extend(envelope::fields().into_iter().filter(|f| ENVELOPE.contains(&f.name.as_str())));
        wanted.push(Field::new(SNAPSHOT_COLUMN, DataType::Int64, true));
        wanted.push(envelope::landed());
        RawScan::new(store, files, wanted, columns.len(), (windows, None), self.snapshot)
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
    files: VecDeque<(LiveFile, Option<Part>)>,
    columns: Vec<Field>,
    asked: usize,
    windows: Vec<Window>,
    snapshot: SnapshotId,
    batch_rows: usize,
    /// For a dataset: which of them, and the column with a row's time.
    published: Option<(usize, Option<String>)>,
    open: Option<(LiveFile, Option<Part>, crate::datafile::Scan)>,
    scan_ns: u64,
    read_ns: u64,
}

impl<'s> RawScan<'s> {
    fn new(
        store: &'s Store,
        files: VecDeque<(LiveFile, Option<Part>)>,
        columns: Vec<Field>,
        asked: usize,
        (windows, published): (Vec<Window>, Option<(usize, Option<String>)>),
        snapshot: SnapshotId,
    ) -> RawScan<'s> {
        RawScan { store, files, columns, asked, windows, snapshot, batch_rows: BATCH_ROWS, published, open: None, scan_ns: 0, read_ns: 0 }
    }

    /// Returns the time spent reading and decoding, in nanoseconds.
    pub fn scan_ns(&self) -> u64 {
        self.scan_ns
    }

    /// Returns how much of that was waiting for bytes, in nanoseconds.
    pub fn read_ns(&self) -> u64 {
        self.read_ns + self.open.as_ref().map_or(0, |(_, _, scan)| scan.read_ns())
    }

    /// Returns the scan with fewer rows in a batch, where rows are fat.
    pub fn in_batches_of(self, rows: usize) -> Self {
        RawScan { batch_rows: rows.clamp(1, BATCH_ROWS), ..self }
    }

    fn pull(&mut self) -> Option<Result<RawBatch, DataFileError>> {
        loop {
            if let Some((file, part, scan)) = &mut self.open {
                match (scan.next(), part) {
                    (Some(Err(e)), _) => return Some(Err(e)),
                    (Some(Ok(batch)), None) => return Some(Ok(split(&batch, self.asked, file, self.snapshot))),
                    (Some(Ok(batch)), Some(part)) => {
                        let (place, time_column) = self.published.as_ref().map_or((0, None), |(p, c)| (*p, c.as_deref()));
                        let rows = split_published(&batch, (self.asked, place, time_column), &file.path, part);
                        part.first_row += batch.num_rows() as i64;
                        return Some(rows);
                    }
                    (None, _) => {
                        self.read_ns += scan.read_ns();
                        self.open = None;
                    }
                }
            }
            let (file, part) = self.files.pop_front()?;
            let opened = Reader::open(self.store, &file.path).and_then(|r| r.scan(&self.columns, &self.windows, self.batch_rows));
            match opened {
                Ok(scan) => self.open = Some((file, part, scan)),
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

/// Places in a partition take so many bits of what orders rows; above them stands the place of their dataset.
const ROW_BITS: u32 = 40;

/// Rows of a published partition as an input. Their order of arrival is (first instant, dataset, place); the hash of a row is that of its partition's
/// checksum and its place, so it is another one whenever the partition is.
fn split_published(
    batch: &RecordBatch,
    (asked, place, time_column): (usize, usize, Option<&str>),
    path: &str,
    part: &Part,
) -> Result<RawBatch, DataFileError> {
    let rows = batch.num_rows();
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    let fields: Vec<_> = batch.schema().fields()[..asked].to_vec();
    let columns =
        RecordBatch::try_new_with_options(std::sync::Arc::new(arrow::datatypes::Schema::new(fields)), batch.columns()[..asked].to_vec(), &options)
            .expect("BUG: a prefix of a batch is a batch");
    let start = part.window.start().0;
    let times = match time_column {
        None => TimestampMicrosecondArray::from_value(start, rows),
        Some(column) => {
            let times = batch.column(asked).as_primitive::<TimestampMicrosecondType>().clone();
            let outside = (0..rows).find(|row| times.is_null(*row) || !part.window.contains(EventTime(times.value(*row))));
            if let Some(row) = outside {
                let time = (!times.is_null(row)).then(|| EventTime(times.value(row)));
                return Err(DataFileError::Outside {
                    path: path.into(),
                    row: part.first_row as u64 + row as u64,
                    column: column.into(),
                    time,
                    window: part.window,
                });
            }
            times
        }
    };
    let hash = |row: i64| {
        let digest = Sha256::new().chain_update(part.checksum.0).chain_update(row.to_le_bytes()).finalize();
        i64::from_le_bytes(std::array::from_fn(|i| digest[i]))
    };
    let places = part.first_row..part.first_row + rows as i64;
    Ok(RawBatch {
        table: 0,
        columns,
        times,
        snapshots: Int64Array::from_value(start, rows),
        seq: places.clone().map(|row| (place as i64) << ROW_BITS | row).collect::<Vec<_>>().into(),
        payload: places.map(hash).collect::<Vec<_>>().into(),
        flags: Int32Array::from_value(0, rows),
    })
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

    /// Returns which of a batch's records lie in one of the windows.
    pub fn inside(&mut self, batch: &RawBatch) -> BooleanArray {
        let mut inside = BooleanBufferBuilder::new(batch.times.len());
        inside.append_n(batch.times.len(), false);
        for (_, rows) in self.runs(batch) {
            rows.for_each(|row| inside.set_bit(row, true));
        }
        BooleanArray::new(inside.finish(), None)
    }

    /// Returns the rows of a batch that lie in one of the windows, in their order: its index, and neighbours that all lie in it.
    pub fn runs(&mut self, batch: &RawBatch) -> Vec<(usize, Range<usize>)> {
        let times = batch.times.values();
        let (mut runs, mut at) = (Vec::new(), 0);
        while let Some(time) = times.get(at) {
            let Some(found) = self.find(EventTime(*time)) else {
                at += 1;
                continue;
            };
            let window = self.windows[found];
            let more = times[at..].iter().position(|time| !window.contains(EventTime(*time)));
            let end = more.map_or(times.len(), |more| at + more);
            runs.push((found, at..end));
            at = end;
        }
        runs
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

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(times: &[i64]) -> RawBatch {
        let rows = times.len();
        let numbers = || Int64Array::from_value(0, rows);
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        RawBatch {
            table: 0,
            columns: RecordBatch::try_new_with_options(std::sync::Arc::new(arrow::datatypes::Schema::empty()), vec![], &options).unwrap(),
            times: times.to_vec().into(),
            snapshots: numbers(),
            seq: numbers(),
            payload: numbers(),
            flags: Int32Array::from_value(0, rows),
        }
    }

    #[test]
    fn neighbours_of_one_window_are_one_run() {
        let window = |start, end| Window::new(EventTime(start), EventTime(end)).unwrap();
        let mut router = Router::new(vec![window(0, 10), window(10, 20), window(30, 40)]);
        let batch = batch(&[-1, 0, 9, 10, 19, 3, 20, 29, 39, 30, 40, 5]);
        let runs = router.runs(&batch);
        assert_eq!(runs, [(0, 1..3), (1, 3..5), (0, 5..6), (2, 8..10), (0, 11..12)]);
        let inside: Vec<bool> = router.inside(&batch).iter().map(|row| row == Some(true)).collect();
        assert_eq!(inside, batch.times.values().iter().map(|at| router.find(EventTime(*at)).is_some()).collect::<Vec<_>>());
        assert!(router.runs(&self::batch(&[])).is_empty() && router.runs(&self::batch(&[20, 40, -5])).is_empty());
    }
}
