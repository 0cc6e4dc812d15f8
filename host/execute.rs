//! A recipe and its partitions become staged files: scan, filter, dedup, transform, sort, write.
//! Never publishes, and never keeps state from one partition to the next: each has a fresh instance.
//! `pipeline` runs it after `plan`; `check` and `publish` eat what it makes. A replay stages nothing.

mod feed;
mod input;
mod large;
mod merge;
mod output;
mod quarantine;
mod tasks;

pub use feed::Balance;
pub use quarantine::LeftOut;
pub use tasks::{Grouping, Task, cut};

use crate::{
    catalog::Table,
    config::{Keep, OnConflict},
    datafile::{DataFileError, Written},
    dedup::KeyHasher,
    manifest::{BaseRecord, PartitionRecord, Recipe, Timings},
    moves::Moved,
    plan::PlannedPartition,
    query::{Aggregate, Filter, QueryError},
    raw::RawInput,
    schema::{Field, PARTITION, envelope},
    store::Store,
    time::EventTime,
    transform::{Context, Engine, Transform, TransformError},
    window::Window,
};
use arrow::array::RecordBatch;
use feed::Feed;
use input::PartitionInput;
use output::{Collector, StagedRows};
use quarantine::{Search, locate};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    path::PathBuf,
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

/// Everything that a run's tasks have in common.
pub struct Job<'j> {
    /// The warehouse's files.
    pub store: &'j Store,
    /// What is followed.
    pub recipe: &'j Recipe,
    /// The pinned transform.
    pub transform: &'j Transform,
    /// The windowed input at the pinned snapshot: one raw table or dataset, or several whose rows are taken together.
    pub raw: &'j [RawInput],
    /// For each raw table, its ids with records in several places, if the dataset follows them.
    pub moved: &'j [Moved],
    /// Further inputs, whole: index of the input, its batches.
    pub lookups: &'j [(u32, Vec<RecordBatch>)],
    /// The compiled source filter.
    pub filter: Option<&'j Filter>,
    /// Aggregates to compare, over input and output.
    pub balances: &'j [(Aggregate, Aggregate)],
    /// Published rows that the run's rows are put among, by partition; none for an overwrite.
    pub bases: &'j BTreeMap<&'j str, &'j BaseRecord>,
    /// The table that is written, its partition column last; `None` computes checksums and writes nothing.
    pub target: Option<&'j Table>,
    /// The staging folder, relative to the warehouse.
    pub staging: &'j str,
    /// Bytes that all tasks together may hold, about.
    pub memory_bytes: usize,
    /// Tasks at once.
    pub workers: usize,
    /// For a replay, the records of each partition that the run left out: the same are left out, and none is searched for.
    pub known: Option<&'j HashMap<String, LeftOut>>,
    /// Rows of a batch that the transform gets, at most.
    pub batch_rows: usize,
}

/// One partition, computed.
#[derive(Debug)]
pub struct Computed {
    /// What the manifest says of it, but for what was there before.
    pub record: PartitionRecord,
    /// Its files in staging: none if it has no rows or nothing was staged.
    pub files: Vec<Written>,
    /// What each balance compares, or why it could not be evaluated.
    pub balances: Vec<Result<Balance, QueryError>>,
    /// Rows whose key another row has.
    pub doubled_keys: u64,
    /// Nulls of each output column.
    pub nulls: Vec<u64>,
    /// The transform's log, its last lines.
    pub log: Vec<String>,
}

/// Why a run could not be computed. Nothing was published.
#[derive(Debug, thiserror::Error)]
pub enum ExecuteError {
    /// Reading raw rows or writing staged ones failed.
    #[error(transparent)]
    File(#[from] DataFileError),
    /// The transform failed in a partition.
    #[error("transform {transform} failed in partition {partition}")]
    Transform {
        /// The transform.
        transform: String,
        /// The partition.
        partition: String,
        /// How it failed.
        source: Box<TransformError>,
    },
    /// The transform failed in a partition, and leaving one record out would not help.
    #[error("transform {transform} failed in partition {partition}, and no single record is to blame: {why}")]
    Blameless {
        /// The transform.
        transform: String,
        /// The partition.
        partition: String,
        /// How that is known.
        why: &'static str,
        /// How it failed.
        source: Box<TransformError>,
    },
    /// More records would be in quarantine than may be.
    #[error("{0}")]
    TooManyQuarantined(Box<Refused>),
    /// Records lack a value that the transform needs: they landed before their column was declared.
    #[error("{0}")]
    Nulls(Box<NullInput>),
    /// Filter, balance or sort failed.
    #[error("partition {partition}")]
    Query {
        /// The partition, or the task's first.
        partition: String,
        /// How it failed.
        source: Box<QueryError>,
    },
    /// Dedup forbids a second record with one key.
    #[error("partition {partition} has {count} record(s) whose {what}, and dedup says fail")]
    Duplicates {
        /// The partition.
        partition: String,
        /// How many.
        count: u64,
        /// "key another record has" or "key has differing payloads".
        what: &'static str,
    },
    /// A delete-insert would put in a row that lies outside its window: another run of the window would not find it again.
    #[error("{0}")]
    Outside(Box<OutsideRow>),
    /// A delete-insert would put in a row whose key a row outside the window has.
    #[error("partition {partition}: a row of the window has the key of a row that stays outside it: {key}")]
    Doubled {
        /// The partition.
        partition: String,
        /// The key, as column=value.
        key: String,
    },
    /// Columns do not fit together.
    #[error("partition {partition}: {source}")]
    Arrow {
        /// The partition.
        partition: String,
        /// What does not fit.
        source: arrow::error::ArrowError,
    },
}

/// A row of a delete-insert that lies outside its window.
#[derive(Clone, Debug)]
pub struct OutsideRow {
    /// The partition.
    pub partition: String,
    /// The row's key, as column=value.
    pub key: String,
    /// The time column.
    pub column: String,
    /// The row's time; none if it is null.
    pub time: Option<EventTime>,
    /// What the partition has of the window.
    pub window: Window,
}

impl fmt::Display for OutsideRow {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let OutsideRow { partition, key, column, window, .. } = self;
        let time = self.time.map_or("null".into(), |t| t.to_string());
        write!(f, "partition {partition}: the row {key} has {column} = {time}, which is not in the window {window} that is replaced")
    }
}

/// A partition with more records in quarantine than it may have.
#[derive(Clone, Debug)]
pub struct Refused {
    /// The transform.
    pub transform: String,
    /// The dataset.
    pub dataset: String,
    /// The partition.
    pub partition: String,
    /// How many records it was found to fail on, so far.
    pub records: u64,
    /// Of how many.
    pub of: u64,
    /// The limit, as restitch.toml writes it.
    pub limit: String,
    /// The first of them, each with its file, its place there and the reason.
    pub first: Vec<String>,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let Refused { transform, partition, records, of, limit, .. } = self;
        write!(
            f,
            "partition {partition}: transform {transform} fails on {records} of {of} record(s) at least, and max_quarantined of the dataset is {limit}"
        )
    }
}

/// Records that lack a value which the transform needs.
#[derive(Clone, Debug)]
pub struct NullInput {
    /// The transform.
    pub transform: String,
    /// The partition.
    pub partition: String,
    /// Its window; `None` for a lookup, of which any record can lack the value.
    pub window: Option<Window>,
    /// The sources of the records.
    pub sources: Vec<String>,
    /// The column.
    pub column: String,
    /// How many of one batch.
    pub nulls: usize,
    /// Whether they are rows that other datasets have published, and no landed records.
    pub published: bool,
}

impl fmt::Display for NullInput {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let NullInput { transform, partition, column, nulls, .. } = self;
        let sources = self.sources.join(", ");
        write!(
            f,
            "partition {partition}: column {column:?} is null in at least {nulls} record(s) of {sources}, and transform {transform} wants it not null"
        )
    }
}

/// Told how far a run is; called from several threads.
pub trait Progress: Sync {
    /// So many partitions and records more are done.
    fn advance(&self, partitions: u64, records: u64);
}

impl Progress for () {
    fn advance(&self, _: u64, _: u64) {}
}

/// The columns that the raw scan has to deliver, and where each user of them finds its own.
pub(crate) struct Layout {
    /// The columns of a scanned batch.
    pub(crate) columns: Vec<Field>,
    /// How many of them, from the first on, the transform and the balances get; the others are for filter and dedup.
    pub(crate) handed: usize,
    /// The transform's windowed input: positions in `columns`.
    pub(crate) input: Vec<usize>,
    /// The dedup key.
    pub(crate) key: Vec<(usize, Field)>,
    /// The record id, if something moved.
    pub(crate) record_id: Option<usize>,
}

impl Layout {
    fn of(job: &Job) -> Layout {
        let mut columns: Vec<Field> = Vec::new();
        let tables: Vec<Field> = job.raw.iter().flat_map(|r| r.table.fields()).collect();
        let mut place = |name: &str| {
            columns.iter().position(|c| c.name == name).unwrap_or_else(|| {
                // A column that is declared but was not there yet at the pinned snapshot reads null.
                let asked = job.transform.descriptor().inputs[0].fields.iter();
                let field = tables.iter().chain(asked).find(|f| f.name == name).cloned();
                columns.push(field.unwrap_or_else(|| Field::new(name, crate::schema::DataType::String, true)));
                columns.len() - 1
            })
        };
        let input: Vec<usize> = job.transform.descriptor().inputs[0].fields.iter().map(|f| place(&f.name)).collect();
        let balances = job.balances.iter().flat_map(|(input, _)| input.columns());
        let handed = balances.map(|name| place(name) + 1).max().unwrap_or(0);
        let key_names = job.recipe.dedup.as_ref().map(|d| d.key.as_slice()).unwrap_or_default();
        let key_places: Vec<usize> = key_names.iter().map(|k| place(k)).collect();
        for name in job.filter.iter().flat_map(|f| f.columns()) {
            place(name);
        }
        let record_id = job.moved.iter().any(|m| !m.is_empty()).then(|| place(envelope::RECORD_ID));
        let key = key_places.into_iter().map(|i| (i, columns[i].clone())).collect();
        let handed = input.iter().map(|place| place + 1).max().unwrap_or(0).max(handed);
        Layout { columns, handed, input, key, record_id }
    }
}

/// Returns what each partition came out as, in order of time.
///
/// # Errors
/// The first failure of any partition; the others stop.
/// # After an error
/// Staged files are left in the staging folder; readers see nothing.
/// # After a crash
/// The same; `recover` removes the folder.
pub fn execute(job: &Job, tasks: &[Task], progress: &dyn Progress) -> Result<(Vec<Computed>, Timings), ExecuteError> {
    // Those that run at once share the memory, however many more there might be.
    let job = &Job { workers: job.workers.min(Engine::workers_max()).min(tasks.len()).max(1), ..*job };
    let layout = Layout::of(job);
    let hasher = KeyHasher::default();
    let (next, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    // Each partition has its place from the beginning: of a hundred thousand nothing is copied together in the end.
    let mut places: Vec<Option<Computed>> = Vec::with_capacity(tasks.iter().map(|task| task.partitions.len()).sum());
    let mut starts = Vec::new();
    for task in tasks {
        starts.push(places.len());
        places.resize_with(places.len() + task.partitions.len(), || None);
    }
    let done = Mutex::new((places, Timings::default()));
    let failed: Mutex<Option<(usize, ExecuteError)>> = Mutex::new(None);
    std::thread::scope(|scope| {
        for _ in 0..job.workers {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(task) = tasks.get(i).filter(|_| !stop.load(Ordering::Relaxed)) else { return };
                    let mut worker = Worker { job, layout: &layout, hasher, timings: Timings::default() };
                    match worker.run(task, progress, &stop) {
                        Ok(computed) => {
                            let (all, timings) = &mut *done.lock().unwrap_or_else(|e| e.into_inner());
                            all[starts[i]..].iter_mut().zip(computed).for_each(|(place, one)| *place = Some(one));
                            timings.add(&worker.timings);
                        }
                        Err(e) => {
                            stop.store(true, Ordering::Relaxed);
                            let mut failed = failed.lock().unwrap_or_else(|e| e.into_inner());
                            if failed.as_ref().is_none_or(|(first, _)| i < *first) {
                                *failed = Some((i, e));
                            }
                        }
                    }
                }
            });
        }
    });
    if let Some((_, e)) = failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
        return Err(e);
    }
    let (computed, timings) = done.into_inner().unwrap_or_else(|e| e.into_inner());
    // This takes no memory of its own, as it would if it could not be seen how many there are.
    Ok((computed.into_iter().map(|c| c.expect("BUG: a partition was neither computed nor failed")).collect(), timings))
}

/// One task in the doing.
struct Worker<'w> {
    job: &'w Job<'w>,
    layout: &'w Layout,
    hasher: KeyHasher,
    timings: Timings,
}

/// Counts of a partition's input.
#[derive(Clone, Copy, Default)]
pub(crate) struct Counts {
    pub(crate) records: u64,
    pub(crate) late: u64,
    pub(crate) duplicates: u64,
    pub(crate) conflicts: u64,
    /// Left out: a record of another partition counts for their id.
    pub(crate) moved: u64,
}

impl<'w> Worker<'w> {
    fn run(&mut self, task: &'w Task, progress: &dyn Progress, stop: &AtomicBool) -> Result<Vec<Computed>, ExecuteError> {
        let name = task.partitions.first().map(|p| p.name.clone()).unwrap_or_default();
        let inputs = input::read(self.job, self.layout, self.hasher, task, &mut self.timings).map_err(|e| e.place(&name))?;
        let mut computed = Vec::with_capacity(task.partitions.len());
        for (partition, input) in task.partitions.iter().zip(inputs) {
            if stop.load(Ordering::Relaxed) {
                return Ok(computed);
            }
            let counts = input.counts();
            self.refuse_duplicates(partition, counts)?;
            computed.push(self.partition(task, partition, input)?);
            progress.advance(1, counts.records);
        }
        Ok(computed)
    }

    fn refuse_duplicates(&self, partition: &PlannedPartition, counts: Counts) -> Result<(), ExecuteError> {
        let Some(rule) = &self.job.recipe.dedup else { return Ok(()) };
        let refuse = |count, what| Err(ExecuteError::Duplicates { partition: partition.name.clone(), count, what });
        if rule.keep == Keep::Fail && counts.duplicates > 0 {
            return refuse(counts.duplicates, "key another record has");
        }
        if rule.on_conflict == OnConflict::Fail && counts.conflicts > 0 {
            return refuse(counts.conflicts, "key has differing payloads");
        }
        if counts.moved > 0 && rule.forbids() {
            return refuse(counts.moved, "id has a record with another event time, in another partition");
        }
        Ok(())
    }

    /// Computes a partition; where its dataset says so, again and again without the records that its transform fails on.
    fn partition(&mut self, task: &'w Task, partition: &'w PlannedPartition, input: PartitionInput<'w>) -> Result<Computed, ExecuteError> {
        let job = self.job;
        let known = job.known.map(|known| known.get(&partition.name).cloned().unwrap_or_default());
        let max = job.recipe.quarantine.filter(|_| known.is_none());
        let counts = input.counts();
        let of = counts.records - counts.duplicates - counts.moved;
        let mut left_out = known.unwrap_or_default();
        let mut search = Search { task, partition, held: input.again(), spent: Duration::ZERO };
        let mut input = input.without(&left_out);
        loop {
            let began = Instant::now();
            let feed = Feed::start(job, self.layout, partition, input, &job.recipe.limits, (true, !left_out.is_empty()));
            let mut feed = feed?;
            let error = match self.attempt(partition, &mut feed) {
                Ok(staged) => return self.computed(partition, feed, staged, counts, &left_out),
                Err(e) if max.is_none() => return Err(e),
                Err(e) => e,
            };
            self.spend(&feed);
            search.spent += began.elapsed();
            let (record, reason) = search.culprit(self, &left_out, &feed, error)?;
            left_out.insert(record, reason);
            if max.is_some_and(|max| max.exceeded(left_out.len() as u64, of)) {
                return Err(quarantine::too_many(job, self.layout, partition, &left_out, of));
            }
            input = search.input(self, &left_out)?;
        }
    }

    /// Adds what an instance has spent.
    fn spend(&mut self, feed: &Feed) {
        // A large partition is read while it is transformed.
        let (scan_ms, decode_ms) = feed.input.streamed_ms();
        self.timings.scan_ms += scan_ms;
        self.timings.decode_ms += decode_ms;
        self.timings.dedup_ms += feed.times_ms.1 - scan_ms - decode_ms;
        self.timings.transform_ms += feed.times_ms.0;
        self.timings.instantiate_ms += feed.instantiate_ms();
        self.timings.boundary_ms += feed.boundary_ms();
        self.timings.check_ms += feed.check_ms;
    }

    fn attempt(&mut self, partition: &PlannedPartition, feed: &mut Feed) -> Result<StagedRows, ExecuteError> {
        let began = Instant::now();
        let before = feed.times_ms;
        let staged = Collector::new(self.job, partition).collect(&mut || feed.pull())?;
        self.timings.write_ms += ms(began) - (feed.times_ms.0 - before.0) - feed.times_ms.1 - feed.check_ms;
        Ok(staged)
    }

    fn computed(
        &mut self,
        partition: &PlannedPartition,
        mut feed: Feed,
        staged: StagedRows,
        counts: Counts,
        left_out: &LeftOut,
    ) -> Result<Computed, ExecuteError> {
        self.spend(&feed);
        let mut quarantined = Vec::new();
        if !left_out.is_empty() {
            quarantined = locate(self.job, self.layout, partition, left_out, &mut |records| feed.measure_left_out(records))?;
        }
        let (balances, log) = (feed.balances(), feed.log());
        let record = PartitionRecord {
            partition: partition.name.clone(),
            start_us: partition.window.start().0,
            end_us: partition.window.end().0,
            reason: partition.reason.name().into(),
            records: counts.records,
            late: counts.late,
            duplicates: counts.duplicates,
            conflicts: counts.conflicts,
            moved: counts.moved,
            quarantined,
            input_checksum: Some(feed.input.checksum()),
            rows: staged.rows,
            bytes: staged.files.iter().map(|f| f.file.bytes as u64).sum(),
            checksum: Some(staged.checksum),
            inserted: staged.merged.map(|m| m.inserted),
            updated: staged.merged.and_then(|m| m.updated),
            unchanged: staged.merged.and_then(|m| m.unchanged),
            target_only: staged.merged.map(|m| m.target_only),
            deleted: staged.merged.and_then(|m| m.deleted),
            ..PartitionRecord::default()
        };
        Ok(Computed { record, files: staged.files, balances, doubled_keys: staged.doubled_keys, nulls: staged.nulls, log })
    }
}

/// Returns the batch in pieces of at most `rows` rows, which share its memory; an empty one is one piece.
fn pieces(batch: &RecordBatch, rows: usize) -> impl Iterator<Item = RecordBatch> + '_ {
    let (all, rows) = (batch.num_rows(), rows.max(1));
    (0..all.div_ceil(rows).max(1)).map(move |i| batch.slice(i * rows, rows.min(all - i * rows)))
}

fn ms(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64 / 1e6
}

fn failure(job: &Job, partition: &PlannedPartition, source: TransformError) -> ExecuteError {
    let (transform, name) = (job.recipe.transform.clone(), partition.name.clone());
    let TransformError::Nulls { input, column, nulls } = source else {
        return ExecuteError::Transform { transform, partition: name, source: Box::new(source) };
    };
    let lookup = job.recipe.lookups.get(&input).filter(|_| job.transform.descriptor().inputs[0].name != input);
    let window = lookup.is_none().then_some(partition.window);
    let sources = lookup.map_or_else(|| job.recipe.input_names(), |l| vec![l.clone()]);
    let published = lookup.is_none() && !job.recipe.upstream.is_empty();
    ExecuteError::Nulls(Box::new(NullInput { transform, partition: name, window, sources, column, nulls, published }))
}

/// As [`failure`], of a failure that no record was found for.
fn blameless(job: &Job, partition: &PlannedPartition, why: &'static str, source: Box<TransformError>) -> ExecuteError {
    ExecuteError::Blameless { transform: job.recipe.transform.clone(), partition: partition.name.clone(), why, source }
}

fn context(recipe: &Recipe, partition: &PlannedPartition) -> Context {
    Context {
        partition: partition.name.clone(),
        start_us: partition.window.start().0,
        end_us: partition.window.end().0,
        time_zone: recipe.time_zone.name().into(),
        as_of_us: recipe.as_of_us,
        seed: recipe.seed,
        parameters: recipe.parameters.iter().map(|(k, v)| (k.clone(), v.clone())).collect(),
    }
}

/// A failure below, before it is known which partition it belongs to.
#[derive(Debug)]
pub(crate) enum Unplaced {
    File(DataFileError),
    Query(QueryError),
    Arrow(arrow::error::ArrowError),
}

impl Unplaced {
    fn place(self, partition: &str) -> ExecuteError {
        match self {
            Unplaced::File(e) => ExecuteError::File(e),
            Unplaced::Query(source) => ExecuteError::Query { partition: partition.into(), source: Box::new(source) },
            Unplaced::Arrow(source) => ExecuteError::Arrow { partition: partition.into(), source },
        }
    }
}

impl From<DataFileError> for Unplaced {
    fn from(e: DataFileError) -> Unplaced {
        Unplaced::File(e)
    }
}

impl From<QueryError> for Unplaced {
    fn from(e: QueryError) -> Unplaced {
        Unplaced::Query(e)
    }
}

impl From<arrow::error::ArrowError> for Unplaced {
    fn from(e: arrow::error::ArrowError) -> Unplaced {
        Unplaced::Arrow(e)
    }
}

/// Returns the table that a transform's output makes: its columns, then the partition's name.
pub fn output_fields(output: &[Field]) -> Vec<Field> {
    let mut fields = output.to_vec();
    fields.push(Field::new(PARTITION, crate::schema::DataType::String, false));
    fields
}

/// A sort on disk needs room for a few batches, however little memory a run may have.
pub(crate) const SORT_BYTES_MIN: usize = 16 << 20;

/// Returns the raw columns that a job reads, for an estimate of its memory.
pub fn scanned_columns(job: &Job) -> Vec<Field> {
    Layout::of(job).columns
}

/// Where sorts that exceed the memory spill.
pub(crate) fn spill_dir(job: &Job) -> PathBuf {
    job.store.path(job.staging)
}

/// Returns the batches of a lookup: all rows of a source at the pinned snapshot, one per record id (the latest), in arrival order.
///
/// # Errors
/// A raw file is damaged.
pub fn read_lookup(store: &Store, raw: &RawInput, fields: &[Field]) -> Result<Vec<RecordBatch>, DataFileError> {
    input::read_lookup(store, raw, fields)
}
