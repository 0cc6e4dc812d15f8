//! Which record a transform fails on, and where it stands in raw.
//! Never blames a record that the transform does not fail on alone, and always comes to an end.
//! `execute` asks it after a failure; what it finds is left out, and written down with the partition.

use super::{
    ExecuteError, Job, Layout, Worker, blameless,
    feed::{Feed, Place},
    input::{self, PartitionInput},
    tasks::Task,
};
use crate::{
    config::Limits,
    dedup::Arrival,
    id::SnapshotId,
    manifest::Quarantined,
    plan::PlannedPartition,
    schema::{DataType, Field, envelope},
    time::EventTime,
    transform::TransformError,
};
use arrow::{
    array::{AsArray, BooleanArray, RecordBatch},
    datatypes::Int64Type,
};
use std::{
    collections::BTreeMap,
    ops::Range,
    time::{Duration, Instant},
};

/// Records that are left out, by their places in arrival order, each with the reason.
pub type LeftOut = BTreeMap<Arrival, String>;

/// Failed attempts and the search for a record may take so many times `limits.time`, in one partition.
const SEARCH_TIMES: u32 = 10;
/// A probe has this part of `limits.time`, so that a search through many records does not take as many limits;
/// the record that it ends with is tried once more with all of it.
const PROBE_PART: u64 = 16;
/// A probe has at least so long.
const PROBE_MS_MIN: u64 = 1_000;
/// Why a search was given up.
const TOO_LONG: &str = "looking for records that it fails on took longer than ten times limits.time";
/// Records that an error shows.
const SHOWN: usize = 3;

/// Returns whether a record can be what a transform failed on.
fn can_be_a_record(e: &TransformError) -> bool {
    use TransformError::{Fuel, Memory, Output, Row, Time, Trap};
    matches!(e, Row { .. } | Trap { .. } | Time { .. } | Memory { .. } | Output { .. } | Fuel { .. })
}

/// The search for the records of one partition that its transform fails on.
pub(super) struct Search<'s> {
    pub(super) task: &'s Task,
    pub(super) partition: &'s PlannedPartition,
    /// The records once more, if they are held in memory.
    pub(super) held: Option<PartitionInput<'s>>,
    /// What failed attempts and probes have taken.
    pub(super) spent: Duration,
}

/// How a probe failed, and on which record, if the transform said so.
struct Failed {
    error: TransformError,
    named: Option<Arrival>,
}

impl<'s> Search<'s> {
    /// Returns the partition's records from their beginning, without those that are left out.
    pub(super) fn input(&self, worker: &mut Worker<'s>, left_out: &LeftOut) -> Result<PartitionInput<'s>, ExecuteError> {
        if let Some(held) = self.held.as_ref().and_then(PartitionInput::again) {
            return Ok(held.without(left_out));
        }
        let read = input::read(worker.job, worker.layout, worker.hasher, self.task, &mut worker.timings);
        let mut inputs = read.map_err(|e| e.place(&self.partition.name))?;
        match inputs.len() {
            1 => Ok(inputs.remove(0).without(left_out)),
            n => panic!("BUG: a streamed task has one partition, not {n}"),
        }
    }

    /// Returns the record to leave out after an attempt failed in `feed`, with the reason.
    ///
    /// # Errors
    /// No single record is to blame: that of the attempt, or one that says so.
    pub(super) fn culprit(
        &mut self,
        worker: &mut Worker<'s>,
        left_out: &LeftOut,
        feed: &Feed,
        error: ExecuteError,
    ) -> Result<(Arrival, String), ExecuteError> {
        let ExecuteError::Transform { source, transform, partition } = error else { return Err(error) };
        if !can_be_a_record(&source) {
            return Err(ExecuteError::Transform { source, transform, partition });
        }
        if self.spent > self.patience(worker) {
            return Err(blameless(worker.job, self.partition, TOO_LONG, source));
        }
        if let Some(arrival) = named(feed, &source) {
            return Ok((arrival, reason(&source)));
        }
        // Before `finish`, it was a record of the last batch; after all input it can be any.
        let range = if feed.place == Place::Rows { feed.input.last() } else { 0..feed.input.passed() };
        match self.narrow(worker, left_out, range)? {
            Ok(found) => Ok(found),
            Err(why) => Err(blameless(worker.job, self.partition, why, source)),
        }
    }

    /// Halves the records until one is left that the transform fails on alone; or says why there is none.
    fn narrow(
        &mut self,
        worker: &mut Worker<'s>,
        left_out: &LeftOut,
        mut range: Range<u64>,
    ) -> Result<Result<(Arrival, String), &'static str>, ExecuteError> {
        let limits = worker.job.recipe.limits;
        let began = Instant::now();
        if range.is_empty() || self.probe(worker, left_out, 0..0, &limits)?.is_some() {
            return Ok(Err("it fails without any record too"));
        }
        // Lookups are sent in every probe, so what they take is on top.
        let without_records = 2 * began.elapsed().as_millis() as u64;
        let part = without_records.saturating_add((limits.time_ms_max / PROBE_PART).max(PROBE_MS_MIN));
        let probing = Limits { time_ms_max: limits.time_ms_max.min(part), ..limits };
        while range.end - range.start > 1 {
            let half = range.start + (range.end - range.start) / 2;
            let mut failed = None;
            for part in [range.start..half, half..range.end] {
                if self.spent > self.patience(worker) {
                    return Ok(Err(TOO_LONG));
                }
                failed = self.probe(worker, left_out, part.clone(), &probing)?;
                if failed.is_some() {
                    range = part;
                    break;
                }
            }
            match failed {
                Some(Failed { error, named: Some(arrival) }) => return Ok(Ok((arrival, reason(&error)))),
                Some(_) => {}
                None => return Ok(Err("it fails on several records together, and on none of them alone")),
            }
        }
        let (first, failed) = self.confirm(worker, left_out, range, &limits)?;
        Ok(match (first, failed) {
            (Some(arrival), Some(failed)) => Ok((failed.named.unwrap_or(arrival), reason(&failed.error))),
            _ => Err("the record that it seemed to fail on passes alone"),
        })
    }

    /// Returns how long failed attempts and probes may take in all.
    fn patience(&self, worker: &Worker) -> Duration {
        Duration::from_millis(worker.job.recipe.limits.time_ms_max) * SEARCH_TIMES
    }

    fn probe(&mut self, worker: &mut Worker<'s>, left_out: &LeftOut, range: Range<u64>, limits: &Limits) -> Result<Option<Failed>, ExecuteError> {
        Ok(self.confirm(worker, left_out, range, limits)?.1)
    }

    /// Runs a fresh instance over these records alone; returns where the first of them stands, and how it failed.
    fn confirm(
        &mut self,
        worker: &mut Worker<'s>,
        left_out: &LeftOut,
        range: Range<u64>,
        limits: &Limits,
    ) -> Result<(Option<Arrival>, Option<Failed>), ExecuteError> {
        let began = Instant::now();
        let input = self.input(worker, left_out)?.only(range);
        let mut feed = match Feed::start(worker.job, worker.layout, self.partition, input, limits, (false, false)) {
            Ok(feed) => feed,
            Err(ExecuteError::Transform { source, .. }) if can_be_a_record(&source) => {
                return Ok((None, Some(Failed { named: None, error: *source })));
            }
            Err(e) => return Err(e),
        };
        let (mut first, mut seen) = (None, false);
        let result = loop {
            let pulled = feed.pull();
            if !seen && feed.input.passed() > 0 {
                (first, seen) = (feed.input.arrival(0), true);
            }
            match pulled {
                Ok(Some(_)) => {}
                Ok(None) => break None,
                Err(ExecuteError::Transform { source, .. }) if can_be_a_record(&source) => {
                    break Some(Failed { named: named(&feed, &source), error: *source });
                }
                Err(e) => return Err(e),
            }
        };
        worker.timings.transform_ms += feed.times_ms.0;
        self.spent += began.elapsed();
        Ok((first, result))
    }
}

/// Returns the record that a failure names, if it names one of the batch that was pushed.
fn named(feed: &Feed, error: &TransformError) -> Option<Arrival> {
    match error {
        TransformError::Row { row, .. } if feed.place == Place::Rows => feed.place_of(*row).and_then(|at| feed.input.arrival(at)),
        _ => None,
    }
}

/// Returns what is written down of a failure: on one line, without the place in a batch, which the record's own place replaces.
fn reason(error: &TransformError) -> String {
    match error {
        TransformError::Row { message, .. } => format!("refused: {message}"),
        other => other.to_string(),
    }
}

/// Returns the records that were left out as they stand in raw, in arrival order, and gives each batch of them,
/// with the layout's columns, to `measure`.
pub(super) fn locate(
    job: &Job,
    layout: &Layout,
    partition: &PlannedPartition,
    left_out: &LeftOut,
    measure: &mut dyn FnMut(&RecordBatch),
) -> Result<Vec<Quarantined>, ExecuteError> {
    let mut columns = layout.columns.clone();
    let own = [(envelope::RECORD_ID, DataType::String), (envelope::FILE, DataType::String), (envelope::OFFSET, DataType::Int64)];
    let mut place = |(name, data_type): (&str, DataType)| {
        columns.iter().position(|c| c.name == name).unwrap_or_else(|| {
            columns.push(Field::new(name, data_type, false));
            columns.len() - 1
        })
    };
    let [id, file, offset] = own.map(&mut place);
    let mut found = Vec::new();
    for (raw, source) in job.raw.iter().map(|raw| (raw, raw.table.name.trim_start_matches("raw_"))) {
        for batch in raw.scan(job.store, &columns, vec![partition.window]) {
            let batch = batch?;
            let at = |row: usize| (batch.snapshots.value(row), batch.seq.value(row));
            let inside = |row: &usize| partition.window.contains(EventTime(batch.times.value(*row)));
            let mut keep = vec![false; batch.times.len()];
            for row in (0..batch.times.len()).filter(inside) {
                let Some(reason) = left_out.get(&at(row)) else { continue };
                keep[row] = true;
                let text = |column: usize| batch.columns.column(column).as_string::<i32>().value(row).to_owned();
                found.push(Quarantined {
                    source: source.to_owned(),
                    record_id: text(id),
                    snapshot: SnapshotId(at(row).0),
                    seq: at(row).1,
                    event_us: batch.times.value(row),
                    file: text(file),
                    offset: batch.columns.column(offset).as_primitive::<Int64Type>().value(row),
                    reason: reason.clone(),
                });
            }
            if keep.contains(&true) {
                let arrow = |source| ExecuteError::Arrow { partition: partition.name.clone(), source };
                let records = batch.filter(&BooleanArray::from(keep)).map_err(arrow)?;
                measure(&records.columns.project(&(0..layout.columns.len()).collect::<Vec<_>>()).map_err(arrow)?);
            }
        }
    }
    found.sort_by_key(|q| (q.snapshot, q.seq));
    Ok(found)
}

/// Returns the error of a partition with more records in quarantine than it may have.
pub(super) fn too_many(job: &Job, layout: &Layout, partition: &PlannedPartition, left_out: &LeftOut, of: u64) -> ExecuteError {
    let found = match locate(job, layout, partition, left_out, &mut |_| ()) {
        Ok(found) => found,
        Err(e) => return e,
    };
    let one = |q: &Quarantined| format!("{}, line or row {}: record {}: {}", q.file, q.offset, q.record_id, q.reason);
    let limit = job.recipe.quarantine.map_or(String::new(), |max| max.to_string());
    ExecuteError::TooManyQuarantined(Box::new(super::Refused {
        transform: job.recipe.transform.clone(),
        dataset: job.recipe.dataset.clone(),
        partition: partition.name.clone(),
        records: left_out.len() as u64,
        of,
        limit,
        first: found.iter().take(SHOWN).map(one).collect(),
    }))
}
