//! One instance of a transform, for one partition, under its limits.
//! Never outlives an error, and never shares anything with another instance.
//! `engine` loads what runs here; `convert` makes columns of batches and batches of columns.

use super::{
    Context, Descriptor, Transform, TransformError,
    contract::{
        Transformer, TransformerPre, exports::restitch::transform::transform::Guest, restitch::transform::log::Level as WitLevel,
        restitch::transform::types as wit,
    },
    convert,
    engine::TICK,
};
use crate::config::Limits;
use arrow::array::RecordBatch;
use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};
use wasmtime::{Error, PoolConcurrencyLimitError, Store, StoreContextMut, Trap, WasmBacktrace, component::Linker, component::WasmStr};

/// The interface that holds nothing but types.
pub(super) const TYPES: &str = "restitch:transform/types@1.0.0";
/// The interface that a transform may call.
pub(super) const LOG: &str = "restitch:transform/log@1.0.0";

/// What a batch costs at least, so that empty ones come to an end as well.
const BATCH_BYTES_MIN: u64 = 1 << 10;
/// What may be lifted on top of a batch's buffers: the records around them, messages, a descriptor.
const LIFT_BYTES_EXTRA: u64 = 16 << 20;
/// A log line longer than this is cut, and so is the message of a failure.
const LINE_BYTES_MAX: usize = 8 << 10;
/// A function's name longer than this is cut.
const FRAME_BYTES_MAX: usize = 256;
/// What a line costs besides its text.
const LINE_BYTES_EXTRA: u64 = 16;
/// Lines of the log that an error carries.
const LOG_TAIL: usize = 10;
/// Memories, tables and core instances of one component: Python and Go guests need a handful.
pub(super) const PARTS_MAX: usize = 64;
/// Entries of a table, wherever it lies.
pub(super) const TABLE_ELEMENTS_MAX: usize = 1 << 20;

/// How much a log line matters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// For the author of the transform.
    Debug,
    /// Worth knowing.
    Info,
    /// Odd, but the result stands.
    Warn,
    /// The partition fails, and this is why.
    Error,
}

impl std::fmt::Display for Level {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            Level::Debug => "debug",
            Level::Info => "info",
            Level::Warn => "warn",
            Level::Error => "error",
        })
    }
}

/// A line that a transform logged.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LogLine {
    /// How much it matters.
    pub level: Level,
    /// Its text.
    pub message: String,
}

/// What the host keeps for one instance.
pub(super) struct State {
    memory: MemoryBudget,
    log: VecDeque<LogLine>,
    log_bytes: u64,
    log_bytes_max: u64,
    log_dropped: u64,
    /// When the call that runs has used up the partition's time.
    deadline: Instant,
}

impl State {
    fn new(limits: &Limits) -> State {
        let memory = MemoryBudget { used: 0, max: limits.memory_bytes_max };
        State { memory, log: VecDeque::new(), log_bytes: 0, log_bytes_max: limits.log_bytes_max, log_dropped: 0, deadline: Instant::now() }
    }

    /// Adds a line and drops the earliest ones past the limit: the end of a log is what explains a failure.
    fn log(&mut self, level: Level, text: &str) {
        let longest = LINE_BYTES_MAX.min(usize::try_from(self.log_bytes_max).unwrap_or(usize::MAX));
        let message = cut(text, longest);
        self.log_bytes += message.len() as u64 + LINE_BYTES_EXTRA;
        self.log.push_back(LogLine { level, message });
        while self.log_bytes > self.log_bytes_max
            && let Some(line) = self.log.pop_front()
        {
            self.log_bytes -= line.message.len() as u64 + LINE_BYTES_EXTRA;
            self.log_dropped += 1;
        }
    }
}

/// Returns the beginning of a text of the guest's, as long as it may be.
fn cut(text: &str, bytes_max: usize) -> String {
    let mut beginning = text[..text.floor_char_boundary(bytes_max)].to_owned();
    if beginning.len() < text.len() {
        beginning.push('…');
    }
    beginning
}

/// All linear memories and tables of an instance together.
struct MemoryBudget {
    used: u64,
    max: u64,
}

impl MemoryBudget {
    fn grow(&mut self, by: usize) -> Result<bool, Error> {
        self.used = self.used.saturating_add(by as u64);
        if self.used > self.max { Err(Error::new(OverBudget)) } else { Ok(true) }
    }
}

#[derive(Debug, thiserror::Error)]
#[error("memory budget exceeded")]
struct OverBudget;

#[derive(Debug, thiserror::Error)]
#[error("its memory or a table cannot grow: the machine has no more, the component's own maximum is reached, or a table has a million entries")]
struct CannotGrow;

impl wasmtime::ResourceLimiter for MemoryBudget {
    fn memory_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        self.grow(desired - current)
    }
    fn memory_grow_failed(&mut self, _: Error) -> wasmtime::Result<()> {
        // A guest that is told "no" may go on with something else: the result would depend on the machine.
        Err(Error::new(CannotGrow))
    }
    fn table_growing(&mut self, current: usize, desired: usize, _: Option<usize>) -> wasmtime::Result<bool> {
        if desired > TABLE_ELEMENTS_MAX {
            return Err(Error::new(CannotGrow));
        }
        self.grow((desired - current).saturating_mul(size_of::<usize>()))
    }
    fn instances(&self) -> usize {
        PARTS_MAX
    }
    fn tables(&self) -> usize {
        PARTS_MAX
    }
    fn memories(&self) -> usize {
        PARTS_MAX
    }
}

/// Gives the linker the two interfaces that a transform may import.
pub(super) fn add_imports(linker: &mut Linker<State>) -> wasmtime::Result<()> {
    linker.instance(TYPES)?;
    // Written by hand, for `WasmStr`: a line is read in place, so that a huge one is cut before it is copied.
    linker.instance(LOG)?.func_wrap("log", |mut store: StoreContextMut<'_, State>, (level, text): (WitLevel, WasmStr)| {
        // The epoch ends guest code, not what it calls.
        if Instant::now() >= store.data().deadline {
            return Err(Trap::Interrupt.into());
        }
        let text = text.to_str(&store)?;
        let text = text[..text.floor_char_boundary(LINE_BYTES_MAX + 4)].to_owned();
        let level = match level {
            WitLevel::Debug => Level::Debug,
            WitLevel::Info => Level::Info,
            WitLevel::Warn => Level::Warn,
            WitLevel::Error => Level::Error,
        };
        store.data_mut().log(level, &text);
        Ok(())
    })
}

/// A store, the instance in it, and what is left of its limits.
struct Sandbox {
    store: Store<State>,
    contract: Transformer,
    limits: Limits,
    time_left: Duration,
    output_left: u64,
}

impl Sandbox {
    fn new(pre: &TransformerPre<State>, limits: &Limits) -> Result<Sandbox, TransformError> {
        let mut store = Store::new(pre.engine(), State::new(limits));
        // Setting memory up costs fuel on some systems and none on others: the budget counts from after it.
        let metered = store.set_fuel(u64::MAX).is_ok();
        store.limiter(|state| &mut state.memory);
        let time_left = Duration::from_millis(limits.time_ms_max);
        // Start functions are guest code too: they run on the partition's time.
        let started = Instant::now();
        store.set_epoch_deadline(ticks(time_left));
        store.data_mut().deadline = started + time_left;
        let contract = pre.instantiate(&mut store).map_err(|e| explain(&e, &mut store, limits, limits.output_bytes_max))?;
        let time_left = time_left.saturating_sub(started.elapsed());
        match limits.fuel_max {
            Some(fuel) if metered => drop(store.set_fuel(fuel)),
            Some(_) => return Err(TransformError::Engine { reason: "fuel is limited, and this engine does not count it".into() }),
            None => {}
        }
        Ok(Sandbox { store, contract, limits: *limits, time_left, output_left: limits.output_bytes_max })
    }

    /// Runs guest code on what is left of the limits.
    fn call<R>(&mut self, f: impl FnOnce(&Guest, &mut Store<State>) -> wasmtime::Result<R>) -> Result<R, TransformError> {
        if self.time_left.is_zero() {
            return Err(TransformError::Time { limit_ms: self.limits.time_ms_max });
        }
        self.store.set_epoch_deadline(ticks(self.time_left));
        self.store.data_mut().deadline = Instant::now() + self.time_left;
        // An honest batch fits into the instance's memory; one that names a buffer many times need not.
        let lift_bytes = self.output_left.min(self.limits.memory_bytes_max) + LIFT_BYTES_EXTRA;
        self.store.set_hostcall_fuel(usize::try_from(lift_bytes).unwrap_or(usize::MAX));
        let started = Instant::now();
        let result = f(self.contract.restitch_transform_transform(), &mut self.store);
        self.time_left = self.time_left.saturating_sub(started.elapsed());
        self.store.data_mut().log.make_contiguous();
        result.map_err(|e| explain(&e, &mut self.store, &self.limits, self.output_left))
    }
}

/// Returns the deadline in ticks: at least so long, because the first tick may come at once.
fn ticks(time: Duration) -> u64 {
    time.as_nanos().div_ceil(TICK.as_nanos()) as u64 + 1
}

/// Says in our words why guest code ended.
fn explain(error: &Error, store: &mut Store<State>, limits: &Limits, output_left: u64) -> TransformError {
    // No fault of the transform: it must not be blamed on a record.
    if error.downcast_ref::<PoolConcurrencyLimitError>().is_some() {
        return TransformError::Engine { reason: format!("{error}; fewer --workers need less") };
    }
    let trap = error.downcast_ref::<Trap>();
    let backtrace = error.downcast_ref::<WasmBacktrace>();
    if error.downcast_ref::<OverBudget>().is_some() {
        return TransformError::Memory { limit_bytes: limits.memory_bytes_max };
    }
    if trap == Some(&Trap::Interrupt) {
        return TransformError::Time { limit_ms: limits.time_ms_max };
    }
    if trap == Some(&Trap::OutOfFuel) {
        return TransformError::Fuel { limit: limits.fuel_max.unwrap_or(0) };
    }
    // The error's type is private to wasmtime. Lifting a result happens outside guest code: without a backtrace.
    let root = error.root_cause().to_string();
    if backtrace.is_none() && root.contains("too much data") {
        return match output_left <= limits.memory_bytes_max {
            true => TransformError::Output { limit_bytes: limits.output_bytes_max },
            false => TransformError::Memory { limit_bytes: limits.memory_bytes_max },
        };
    }
    let log = store.data_mut().log.make_contiguous();
    let log_tail = log[log.len().saturating_sub(LOG_TAIL)..].to_vec();
    // A panic logs its message and then dies of "unreachable", which says less.
    let panic = log_tail.last().filter(|l| l.level == Level::Error && trap == Some(&Trap::UnreachableCodeReached));
    let message = match (panic, trap) {
        (Some(line), _) => line.message.split_whitespace().collect::<Vec<_>>().join(" "),
        (None, Some(trap)) => trap.to_string(),
        (None, None) => root,
    };
    let name = |f: &wasmtime::FrameInfo| f.func_name().map_or_else(|| format!("function {}", f.func_index()), |n| cut(&readable(n), FRAME_BYTES_MAX));
    // How a panic travels through the standard library helps nobody.
    let telling =
        |name: &String| !["__rustc::", "std::panicking::", "std::sys::backtrace::", "core::panicking::"].iter().any(|p| name.starts_with(p));
    let mut frames: Vec<String> = backtrace.map_or(Vec::new(), |b| b.frames().iter().map(name).filter(telling).collect());
    // A recursion that ran away is one frame many times.
    frames.dedup();
    TransformError::Trap { message, frames, log_tail }
}

/// Returns the path in a Rust symbol, without generics and hashes; any other name as it is.
fn readable(symbol: &str) -> String {
    // Mangling v0, and the older one, which ends in a hash.
    let (mut rest, old) = match (symbol.strip_prefix("_R"), symbol.strip_prefix("_ZN")) {
        (Some(rest), _) => (rest, false),
        (_, Some(rest)) => (rest, true),
        _ => return symbol.to_owned(),
    };
    let mut path: Vec<&str> = Vec::new();
    while let Some(first) = rest.chars().next() {
        // A disambiguator (s…_) or a back reference (B…_): base 62, of no interest.
        let base62 = |text: &str| text.find(|c: char| !c.is_ascii_alphanumeric()).filter(|&end| text[end..].starts_with('_'));
        let skipped = if !old && matches!(first, 's' | 'B') { base62(&rest[1..]).map(|end| &rest[end + 2..]) } else { None };
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest = match (skipped, rest[..digits].parse::<usize>()) {
            (Some(after), _) if first == 'B' || after.starts_with(|c: char| c.is_ascii_digit()) => after,
            (_, Ok(length)) => {
                let after = &rest[digits..];
                let after = if old { after } else { after.strip_prefix('_').unwrap_or(after) };
                let Some(name) = after.get(..length) else { return symbol.to_owned() };
                path.extend(Some(name).filter(|n| !n.is_empty()));
                &after[length..]
            }
            _ => &rest[first.len_utf8()..],
        };
    }
    if old && path.len() > 1 {
        path.pop();
    }
    path.join("::")
}

/// Asks a throw-away instance what the transform is.
pub(super) fn describe(pre: &TransformerPre<State>, limits: &Limits) -> Result<Descriptor, TransformError> {
    Ok(Sandbox::new(pre, limits)?.call(|guest, store| guest.call_describe(store))?.into())
}

/// One partition's run of a transform: `push` every batch, then `finish` until it returns none.
///
/// After an error the instance is spent: drop it, and use nothing that it returned.
pub struct Instance {
    transform: Transform,
    sandbox: Sandbox,
    instantiate: Duration,
    boundary: Duration,
}

impl Instance {
    pub(super) fn start(transform: Transform, pre: &TransformerPre<State>, context: &Context, limits: &Limits) -> Result<Instance, TransformError> {
        let parameters = transform.descriptor().parameters_with_defaults(&context.parameters)?;
        let parameters: Vec<(&str, &str)> = parameters.iter().map(|(n, v)| (n.as_str(), v.as_str())).collect();
        let context = wit::Context {
            partition: &context.partition,
            start_micros: context.start_us,
            end_micros: context.end_us,
            time_zone: &context.time_zone,
            as_of_micros: context.as_of_us,
            seed: context.seed,
            parameters: &parameters,
        };
        let started = Instant::now();
        let sandbox = Sandbox::new(pre, limits)?;
        let mut instance = Instance { transform, sandbox, instantiate: started.elapsed(), boundary: Duration::ZERO };
        let begun = instance.sandbox.call(|guest, store| guest.call_begin(store, context))?;
        begun.map_err(|f| instance.failure(f, 0))?;
        Ok(instance)
    }

    /// Gives the transform a batch of the input with that index, and returns the rows that it returns at once.
    /// Columns are in the order of the input's fields.
    ///
    /// # Errors
    /// The batch is not what the input's fields say, a limit is hit, the transform dies, gives up, or
    /// returns a batch that is not what its description promises.
    pub fn push(&mut self, input: u32, batch: &RecordBatch) -> Result<Option<RecordBatch>, TransformError> {
        let started = Instant::now();
        let transform = self.transform.clone();
        let Some(declared) = transform.descriptor().inputs.get(input as usize) else {
            let problem = format!("the transform has {} inputs", transform.descriptor().inputs.len());
            return Err(TransformError::BadInput { input: input.to_string(), column: None, problem });
        };
        let columns = convert::columns(declared, batch)?;
        let rows = convert::row_count(declared, batch)?;
        let columns: Vec<wit::ColumnParam> =
            columns.iter().map(|c| wit::ColumnParam { validity: &c.validity, offsets: &c.offsets, values: &c.values }).collect();
        let batch = wit::BatchParam { rows, columns: &columns };
        self.boundary += started.elapsed();
        let returned = self.sandbox.call(|guest, store| guest.call_push(store, input, batch))?;
        let returned = returned.map_err(|f| self.failure(f, input))?;
        self.take(returned)
    }

    /// Returns more rows, or none when there are no more.
    ///
    /// # Errors
    /// A limit is hit, the transform dies, gives up, or returns a batch that is not what its
    /// description promises.
    pub fn finish(&mut self) -> Result<Option<RecordBatch>, TransformError> {
        let returned = self.sandbox.call(|guest, store| guest.call_finish(store))?;
        let returned = returned.map_err(|f| self.failure(f, 0))?;
        self.take(returned)
    }

    /// Returns the last lines that the transform logged, up to `limits.log`.
    pub fn log_lines(&self) -> &[LogLine] {
        // Every call leaves the log in one piece.
        self.sandbox.store.data().log.as_slices().0
    }

    /// Returns how many earlier lines were dropped.
    pub fn log_lines_dropped(&self) -> u64 {
        self.sandbox.store.data().log_dropped
    }

    /// Returns the nanoseconds that making it took, start functions included.
    pub fn instantiate_ns(&self) -> u64 {
        self.instantiate.as_nanos() as u64
    }

    /// Returns the nanoseconds spent between Arrow and the contract, guest code not counted.
    pub fn boundary_ns(&self) -> u64 {
        self.boundary.as_nanos() as u64
    }

    fn take(&mut self, batch: Option<wit::BatchResult>) -> Result<Option<RecordBatch>, TransformError> {
        let Some(batch) = batch else { return Ok(None) };
        let started = Instant::now();
        let bytes: usize = batch.columns.iter().map(|c| c.validity.len() + c.offsets.len() + c.values.len()).sum();
        match self.sandbox.output_left.checked_sub(BATCH_BYTES_MIN.max(bytes as u64)) {
            Some(left) => self.sandbox.output_left = left,
            None => return Err(TransformError::Output { limit_bytes: self.sandbox.limits.output_bytes_max }),
        }
        let columns = batch.columns.into_iter().map(|c| convert::Returned { validity: c.validity, offsets: c.offsets, values: c.values });
        let fields = &self.transform.descriptor().output;
        let batch = convert::record_batch(fields, self.transform.output_schema(), batch.rows as usize, columns.collect());
        self.boundary += started.elapsed();
        batch.map(Some)
    }

    fn failure(&self, failure: wit::Failure, input: u32) -> TransformError {
        match failure {
            wit::Failure::Parameters(message) => TransformError::Parameters { message: cut(&message, LINE_BYTES_MAX) },
            wit::Failure::Other(message) => TransformError::Failed { message: cut(&message, LINE_BYTES_MAX) },
            wit::Failure::Row(f) => {
                let input = self.transform.descriptor().inputs.get(input as usize).map_or(String::new(), |i| i.name.clone());
                TransformError::Row { input, row: f.row, message: cut(&f.message, LINE_BYTES_MAX) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_log_is_kept_and_the_rest_counted() {
        let mut state = State::new(&Limits { log_bytes_max: 100, ..Limits::default() });
        (0..50).for_each(|i| state.log(Level::Info, &format!("line {i}")));
        assert_eq!(state.log.back().unwrap().message, "line 49");
        assert_eq!((state.log.len(), state.log_dropped), (4, 46));
        state.log(Level::Warn, &"é".repeat(500));
        assert!(state.log_bytes <= 100, "{}", state.log_bytes);
        let mut state = State::new(&Limits::default());
        state.log(Level::Warn, &format!("a{}", "é".repeat(10_000)));
        assert_eq!(state.log[0].message.len(), LINE_BYTES_MAX - 1 + '…'.len_utf8());
    }

    #[test]
    fn symbols_are_read_as_paths() {
        assert_eq!(readable("_RNvNtCsgXGp5Oqx2Ny_4core9panicking9panic_fmt"), "core::panicking::panic_fmt");
        assert_eq!(readable("_RNvCsfLfy6EI15iL_7___rustc10rust_panic"), "__rustc::rust_panic");
        assert_eq!(readable("_RNCNvNtCsebHcaeoSrxy_3std9panicking13panic_handler0B5_"), "std::panicking::panic_handler");
        assert_eq!(readable("_ZN9misbehave7recurse17hc9ea68b4e4831d7aE"), "misbehave::recurse");
        assert_eq!(readable("restitch:transform/transform@1.0.0#push"), "restitch:transform/transform@1.0.0#push");
        assert_eq!(readable("_R9short"), "_R9short");
        assert_eq!(readable("_Rü9ü"), "_Rü9ü");
    }

    #[test]
    fn a_deadline_is_never_early() {
        assert_eq!(ticks(Duration::from_millis(1)), 2);
        assert_eq!(ticks(Duration::from_millis(100)), 11);
    }
}
