//! One instance of the transform at one partition's rows: what goes in, what comes out, and where it stood when it failed.
//! Never looks at output rows but to measure them. `execute` collects what it gives; `quarantine` probes with it.

use super::{ExecuteError, Job, Layout, context, failure, input::PartitionInput, ms, pieces};
use crate::{
    config::Limits,
    plan::PlannedPartition,
    query::{Aggregate, AggregateState, QueryError, Value},
    transform::{Instance, TransformError},
};
use arrow::array::RecordBatch;
use std::{collections::VecDeque, ops::Range, time::Instant};

/// What a balance check compares, of one partition.
#[derive(Clone, PartialEq, Debug)]
pub struct Balance {
    /// The input that the transform got.
    pub input: Value,
    /// The output.
    pub output: Value,
    /// With records in quarantine: all of the input, and those records alone.
    pub quarantined: Option<(Value, Value)>,
}

/// A balance in the measuring, or why it cannot be evaluated: then its check has failed, and not the run.
type Balancing = Result<Sums, QueryError>;

pub(super) struct Sums {
    input: AggregateState,
    output: AggregateState,
    quarantined: Option<(AggregateState, AggregateState)>,
}

impl Sums {
    fn finish(self) -> Result<Balance, QueryError> {
        let quarantined = self.quarantined.map(|(all, own)| Ok::<_, QueryError>((all.finish()?, own.finish()?))).transpose()?;
        Ok(Balance { input: self.input.finish()?, output: self.output.finish()?, quarantined })
    }
}

/// Takes rows into each balance that has not failed before.
fn measure(balances: &mut [Balancing], update: impl Fn(&mut Sums) -> Result<(), QueryError>) {
    for balance in balances {
        if let Err(e) = balance.as_mut().map_or(Ok(()), &update) {
            *balance = Err(e);
        }
    }
}

/// Where an instance stands: what a failure there can be blamed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    /// With a batch of its windowed input.
    Rows,
    /// After all input.
    Finish,
}

/// One instance, fed.
pub(super) struct Feed<'f> {
    job: &'f Job<'f>,
    layout: &'f Layout,
    partition: &'f PlannedPartition,
    instance: Instance,
    pub(super) input: PartitionInput<'f>,
    pub(super) place: Place,
    waiting: VecDeque<RecordBatch>,
    finished: bool,
    /// Of the input batch, the rows that were pushed last.
    piece: Range<usize>,
    balances: Vec<Balancing>,
    /// Inside the transform, and inside the input, in milliseconds.
    pub(super) times_ms: (f64, f64),
    /// Measuring balances, in milliseconds.
    pub(super) check_ms: f64,
}

impl<'f> Feed<'f> {
    /// Returns an instance that has begun and has its lookups; with `measured`, balances are measured, and with
    /// `left_out`, those of records in quarantine too.
    pub(super) fn start(
        job: &'f Job<'f>,
        layout: &'f Layout,
        partition: &'f PlannedPartition,
        input: PartitionInput<'f>,
        limits: &Limits,
        (measured, left_out): (bool, bool),
    ) -> Result<Feed<'f>, ExecuteError> {
        let failed = |source: TransformError| failure(job, partition, source);
        let began = Instant::now();
        let mut instance = job.transform.start(&context(job.recipe, partition), limits).map_err(failed)?;
        let mut waiting = VecDeque::new();
        for (index, batches) in job.lookups {
            for batch in batches.iter().flat_map(|b| pieces(b, job.batch_rows)) {
                waiting.extend(instance.push(*index, &batch).map_err(failed)?);
            }
        }
        let sums =
            |(i, o): &(Aggregate, Aggregate)| Sums { input: i.start(), output: o.start(), quarantined: left_out.then(|| (i.start(), i.start())) };
        let balances = job.balances.iter().filter(|_| measured).map(|b| Ok(sums(b))).collect();
        let times_ms = (ms(began), 0.0);
        Ok(Feed {
            job,
            layout,
            partition,
            instance,
            input,
            place: Place::Rows,
            waiting,
            finished: false,
            piece: 0..0,
            balances,
            times_ms,
            check_ms: 0.0,
        })
    }

    /// Returns one output batch: the rows that wait, or what the next input batch gives, or what `finish` gives.
    pub(super) fn pull(&mut self) -> Result<Option<RecordBatch>, ExecuteError> {
        let partition = self.partition;
        while self.waiting.is_empty() && !self.finished {
            let began = Instant::now();
            let next = self.input.next(self.layout).map_err(|e| e.place(&partition.name))?;
            self.times_ms.1 += ms(began);
            let began = Instant::now();
            if let Some(batch) = &next {
                measure(&mut self.balances, |b| {
                    b.input.update(batch)?;
                    b.quarantined.as_mut().map_or(Ok(()), |(all, _)| all.update(batch))
                });
            }
            self.check_ms += ms(began);
            let began = Instant::now();
            let failed = |source: TransformError| failure(self.job, partition, source);
            match next {
                Some(batch) => {
                    let own = batch.project(&self.layout.input);
                    let own = own.map_err(|source| ExecuteError::Arrow { partition: partition.name.clone(), source })?;
                    self.piece = 0..0;
                    for piece in pieces(&own, self.job.batch_rows) {
                        self.piece = self.piece.end..self.piece.end + piece.num_rows();
                        self.waiting.extend(self.instance.push(0, &piece).map_err(failed)?);
                    }
                }
                None => {
                    self.place = Place::Finish;
                    match self.instance.finish().map_err(failed)? {
                        Some(batch) => self.waiting.push_back(batch),
                        None => self.finished = true,
                    }
                }
            }
            self.times_ms.0 += ms(began);
        }
        let Some(batch) = self.waiting.pop_front() else { return Ok(None) };
        let began = Instant::now();
        measure(&mut self.balances, |b| b.output.update(&batch));
        self.check_ms += ms(began);
        Ok(Some(batch))
    }

    /// Returns the place in the last input batch of a row that the transform counts in what it was given last, if it was given that.
    pub(super) fn place_of(&self, row: u32) -> Option<usize> {
        Some(self.piece.start + row as usize).filter(|at| *at < self.piece.end)
    }

    /// Measures records in quarantine, with the layout's columns.
    pub(super) fn measure_left_out(&mut self, records: &RecordBatch) {
        measure(&mut self.balances, |b| b.quarantined.as_mut().map_or(Ok(()), |(all, own)| all.update(records).and_then(|()| own.update(records))));
    }

    /// Returns what the balances came to.
    pub(super) fn balances(&mut self) -> Vec<Result<Balance, QueryError>> {
        // Collected in place they would keep the memory of what measured them.
        let mut balances = Vec::with_capacity(self.balances.len());
        balances.extend(std::mem::take(&mut self.balances).into_iter().map(|b| b.and_then(Sums::finish)));
        balances
    }

    /// Returns the last lines that the transform logged.
    pub(super) fn log(&self) -> Vec<String> {
        self.instance.log_lines().iter().map(|l| format!("{} {}", l.level, l.message)).collect()
    }

    /// Returns the milliseconds that making the instance took.
    pub(super) fn instantiate_ms(&self) -> f64 {
        self.instance.instantiate_ns() as f64 / 1e6
    }

    /// Returns the milliseconds that crossing the boundary took.
    pub(super) fn boundary_ms(&self) -> f64 {
        self.instance.boundary_ns() as f64 / 1e6
    }
}
