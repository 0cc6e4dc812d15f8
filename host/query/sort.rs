//! Sorting that spills: batches in, in any order; batches out, in the order of some columns.
//! Never holds more than its share of memory, as far as DataFusion counts it; removes its files when dropped.
//! `execute` puts a partition's rows in order with it before a transform sees them.

use super::{BATCH_ROWS, QueryError, SortError, config, environment};
use arrow::{
    array::{Array, RecordBatch, UInt32Array},
    compute::{SortOptions, take_record_batch},
    datatypes::SchemaRef,
};
use datafusion::{
    error::{DataFusionError, Result as PlanResult},
    execution::{SendableRecordBatchStream, TaskContext},
    physical_expr::{LexOrdering, PhysicalSortExpr, expressions::col},
    physical_plan::{
        ExecutionPlan,
        sorts::sort::SortExec,
        stream::RecordBatchStreamAdapter,
        streaming::{PartitionStream, StreamingTableExec},
    },
    prelude::SessionContext,
};
use futures::{StreamExt, stream::poll_fn};
use std::{
    fmt,
    future::poll_fn as wait_fn,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};
use tokio::runtime::Runtime;

/// The sorted batches.
pub struct Sorted<'i, E> {
    state: State<'i, E>,
}

enum State<'i, E> {
    Running(Box<Running<'i, E>>),
    Failed(SortError<E>),
    Over,
}

struct Running<'i, E> {
    input: Box<dyn Iterator<Item = Result<RecordBatch, E>> + 'i>,
    /// What a batch of the input left over.
    pending: Vec<RecordBatch>,
    slot: Arc<Slot>,
    stream: SendableRecordBatchStream,
    ready: Vec<RecordBatch>,
    runtime: Runtime,
}

/// Sorts `input` by columns, ascending and nulls first, spilling to `dir` beyond `memory_bytes`.
///
/// The input is pulled on the calling thread, outside of any runtime: it may block, query and sort
/// itself. Nothing happens before the first batch is asked for. Batches have at most
/// [`BATCH_ROWS`] rows. Rows equal in `by` come in no particular order.
///
/// # Errors
/// The iterator ends after its first error: the input's, or the sort's own.
pub fn sort_spilled<'i, E>(
    schema: SchemaRef,
    input: Box<dyn Iterator<Item = Result<RecordBatch, E>> + 'i>,
    by: &[String],
    memory_bytes: usize,
    dir: &Path,
) -> Sorted<'i, E> {
    let state = match Running::new(schema, input, by, memory_bytes, dir) {
        Ok(running) => State::Running(Box::new(running)),
        Err(error) => State::Failed(SortError::Sort(error)),
    };
    Sorted { state }
}

impl<E> Iterator for Sorted<'_, E> {
    type Item = Result<RecordBatch, SortError<E>>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = match &mut self.state {
            State::Running(running) => running.step(),
            State::Failed(_) | State::Over => None,
        };
        if let Some(Ok(_)) = item {
            return item;
        }
        match std::mem::replace(&mut self.state, State::Over) {
            State::Failed(error) => Some(Err(error)),
            _ => item,
        }
    }
}

impl<'i, E> Running<'i, E> {
    fn new(
        schema: SchemaRef,
        input: Box<dyn Iterator<Item = Result<RecordBatch, E>> + 'i>,
        by: &[String],
        memory_bytes: usize,
        dir: &Path,
    ) -> Result<Running<'i, E>, QueryError> {
        let told = |e: DataFusionError| QueryError::of(e, &[]);
        let slot = Arc::new(Slot { hand: Mutex::default() });
        let source: Arc<dyn PartitionStream> = Arc::new(Source { schema: Arc::clone(&schema), slot: Arc::clone(&slot) });
        let source = StreamingTableExec::try_new(Arc::clone(&schema), vec![source], None, [], false, None);
        let options = SortOptions { descending: false, nulls_first: true };
        let order = by.iter().map(|name| Ok(PhysicalSortExpr::new(col(name, &schema)?, options))).collect::<PlanResult<Vec<_>>>().map_err(|_| {
            let known: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
            let missing = by.iter().find(|b| !known.contains(&b.as_str()));
            QueryError::unknown_column(missing.map_or("", String::as_str), &known)
        })?;
        let Some(order) = LexOrdering::new(order) else { return Err(QueryError::Plan { message: "no columns to sort by".into() }) };
        let sort = SortExec::new(order, Arc::new(source.map_err(told)?));
        let runtime = tokio::runtime::Builder::new_current_thread().build().map_err(|source| QueryError::Io { action: "start a sort", source })?;
        let mut config = config(1, true);
        let execution = &mut config.options_mut().execution;
        // What merging spilled runs may count on; the default would be all of a small pool.
        execution.sort_spill_reservation_bytes = execution.sort_spill_reservation_bytes.min(memory_bytes / 4);
        execution.sort_in_place_threshold_bytes = execution.sort_in_place_threshold_bytes.min(memory_bytes / 4);
        let context = SessionContext::new_with_config_rt(config, environment(Some(memory_bytes), Some(dir))?);
        let stream = {
            let _inside = runtime.enter();
            sort.execute(0, context.task_ctx()).map_err(told)?
        };
        Ok(Running { input, pending: Vec::new(), slot, stream, ready: Vec::new(), runtime })
    }

    fn step(&mut self) -> Option<Result<RecordBatch, SortError<E>>> {
        loop {
            if let Some(batch) = self.ready.pop() {
                return Some(Ok(batch));
            }
            let (slot, stream) = (&self.slot, &mut self.stream);
            // Leaves the runtime whenever the sort wants input: the input may be anything, other runtimes included.
            let event = self.runtime.block_on(wait_fn(|cx| match stream.poll_next_unpin(cx) {
                Poll::Ready(item) => Poll::Ready(Event::Sorted(item)),
                Poll::Pending if slot.wanted(cx.waker()) => Poll::Ready(Event::Wanted),
                Poll::Pending => Poll::Pending,
            }));
            match event {
                Event::Sorted(None) => return None,
                Event::Sorted(Some(Err(error))) => return Some(Err(SortError::Sort(QueryError::of(error, &[])))),
                Event::Sorted(Some(Ok(batch))) => self.ready = pieces(&batch, false),
                Event::Wanted => match self.pull() {
                    Ok(batch) => self.slot.put(batch),
                    Err(error) => return Some(Err(SortError::Input(error))),
                },
            }
        }
    }

    fn pull(&mut self) -> Result<Option<RecordBatch>, E> {
        loop {
            if let Some(batch) = self.pending.pop() {
                return Ok(Some(batch));
            }
            match self.input.next() {
                Some(batch) => self.pending = pieces(&batch?, true),
                None => return Ok(None),
            }
        }
    }
}

enum Event {
    Sorted(Option<PlanResult<RecordBatch>>),
    Wanted,
}

/// Splits a batch into ones of at most [`BATCH_ROWS`] rows, last first. For the sort they are copied out
/// of buffers that they share: it counts a buffer with every batch that has a part of it.
fn pieces(batch: &RecordBatch, own: bool) -> Vec<RecordBatch> {
    let rows = batch.num_rows();
    let shared = || batch.columns().iter().map(|c| c.get_buffer_memory_size()).sum::<usize>() > 2 * used_bytes(batch) + 65_536;
    if rows <= BATCH_ROWS && !(own && shared()) {
        return if rows == 0 { Vec::new() } else { vec![batch.clone()] };
    }
    let piece = |start: usize| {
        let end = rows.min(start + BATCH_ROWS);
        let slice = batch.slice(start, end - start);
        let all = UInt32Array::from_iter_values(0..slice.num_rows() as u32);
        if own { take_record_batch(&slice, &all).unwrap_or(slice) } else { slice }
    };
    (0..rows).step_by(BATCH_ROWS).rev().map(piece).collect()
}

fn used_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|c| c.to_data().get_slice_memory_size().unwrap_or(usize::MAX / 1024)).sum()
}

/// Where the calling thread hands batches to the sort.
struct Slot {
    hand: Mutex<Hand>,
}

#[derive(Default)]
struct Hand {
    batch: Option<RecordBatch>,
    over: bool,
    wanted: bool,
    sort: Option<Waker>,
    caller: Option<Waker>,
}

impl Slot {
    fn hand(&self) -> MutexGuard<'_, Hand> {
        self.hand.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wanted(&self, caller: &Waker) -> bool {
        let mut hand = self.hand();
        hand.caller = Some(caller.clone());
        hand.wanted
    }

    fn put(&self, batch: Option<RecordBatch>) {
        let mut hand = self.hand();
        hand.over = batch.is_none();
        hand.batch = batch;
        hand.wanted = false;
        hand.sort.take().into_iter().for_each(Waker::wake);
    }

    fn poll(&self, cx: &mut Context) -> Poll<Option<PlanResult<RecordBatch>>> {
        let mut hand = self.hand();
        match hand.batch.take() {
            Some(batch) => Poll::Ready(Some(Ok(batch))),
            None if hand.over => Poll::Ready(None),
            None => {
                hand.wanted = true;
                hand.sort = Some(cx.waker().clone());
                hand.caller.take().into_iter().for_each(Waker::wake);
                Poll::Pending
            }
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("Slot")
    }
}

/// The sort's end of a slot.
#[derive(Debug)]
struct Source {
    schema: SchemaRef,
    slot: Arc<Slot>,
}

impl PartitionStream for Source {
    fn schema(&self) -> &SchemaRef {
        &self.schema
    }

    fn execute(&self, _context: Arc<TaskContext>) -> SendableRecordBatchStream {
        let slot = Arc::clone(&self.slot);
        Box::pin(RecordBatchStreamAdapter::new(Arc::clone(&self.schema), poll_fn(move |cx| slot.poll(cx))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::{
        array::{ArrayRef, AsArray, Int64Array, StringArray},
        compute::{concat_batches, sort_to_indices},
        datatypes::Int64Type,
    };
    use std::convert::Infallible;

    fn noise(i: i64) -> i64 {
        ((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) as i64
    }

    fn batch(from: i64, rows: i64) -> RecordBatch {
        let key = Int64Array::from_iter((from..from + rows).map(|i| (i % 1000 != 7).then(|| noise(i))));
        let text = StringArray::from_iter_values((from..from + rows).map(|i| format!("row {i} of the input")));
        let columns: [(&str, ArrayRef); 2] = [("key", Arc::new(key)), ("text", Arc::new(text))];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(n, a)| (n, a, true))).unwrap()
    }

    /// Pulls `input`, and returns the rows and whether there ever were files in `dir`.
    fn sorted(input: Vec<RecordBatch>, memory_bytes: usize, dir: &Path) -> (RecordBatch, bool) {
        let schema = input[0].schema();
        let input = Box::new(input.into_iter().map(Ok::<_, Infallible>));
        let mut spilled = false;
        let mut batches = Vec::new();
        for batch in sort_spilled(schema.clone(), input, &["key".into(), "text".into()], memory_bytes, dir) {
            batches.push(batch.unwrap());
            spilled |= dir.read_dir().unwrap().flatten().any(|d| d.path().read_dir().is_ok_and(|mut f| f.next().is_some()));
            assert!((1..=BATCH_ROWS).contains(&batches.last().unwrap().num_rows()));
        }
        (concat_batches(&schema, &batches).unwrap(), spilled)
    }

    #[test]
    fn a_sort_spills_beyond_its_memory_and_loses_nothing() {
        let dir = tempfile::tempdir().unwrap();
        // Slices of one large batch: their buffers are shared.
        let whole = batch(0, 300_000);
        let slices = (0..300).map(|i| whole.slice(i * 1000, 1000)).collect();
        let (spilt, did) = sorted(slices, 4 << 20, dir.path());
        assert!(did);
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
        let (kept, did) = sorted(vec![whole.clone()], 1 << 30, dir.path());
        assert!(!did);
        assert!(spilt == kept);
        assert_eq!(spilt.num_rows(), 300_000);
        assert_eq!(spilt.column(0).slice(0, 300).null_count(), 300);
        let order = sort_to_indices(whole.column(0), Some(SortOptions { descending: false, nulls_first: true }), None).unwrap();
        let expected = take_record_batch(&whole, &order).unwrap();
        assert!(expected.column(0).as_primitive::<Int64Type>() == spilt.column(0).as_primitive::<Int64Type>());
    }

    #[test]
    fn an_input_may_be_a_sort_itself_and_may_fail() {
        let dir = tempfile::tempdir().unwrap();
        let by = ["key".to_owned()];
        let schema = batch(0, 1).schema();
        let inner = sort_spilled(schema.clone(), Box::new((0..5).map(|i| Ok::<_, Infallible>(batch(i * 10, 10)))), &by, 1 << 20, dir.path());
        let outer = sort_spilled(schema.clone(), Box::new(inner), &["text".into()], 1 << 20, dir.path());
        assert_eq!(outer.map(|b| b.unwrap().num_rows()).sum::<usize>(), 50);
        let input = vec![Ok(batch(0, 10)), Err("torn")];
        let mut failing = sort_spilled(schema.clone(), Box::new(input.into_iter()), &by, 1 << 20, dir.path());
        assert!(matches!(failing.next(), Some(Err(SortError::Input("torn")))));
        assert!(failing.next().is_none());
        let mut empty = sort_spilled(schema.clone(), Box::new(std::iter::empty::<Result<_, Infallible>>()), &by, 1 << 20, dir.path());
        assert!(empty.next().is_none());
        let mut unknown = sort_spilled(schema, Box::new(std::iter::empty::<Result<_, Infallible>>()), &["kye".into()], 1 << 20, dir.path());
        let Some(Err(SortError::Sort(error))) = unknown.next() else { panic!("sorted") };
        assert_eq!(error.hint(), Some("did you mean \"key\"?"));
    }
}
