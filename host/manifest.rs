//! The record of a run: what it was asked, the recipe it followed, what it read, wrote and measured.
//! Never computed again from restitch.toml: a replay needs nothing but this, the pinned bytes and the pinned input.

mod settings;

pub use settings::{Settings, UpstreamInput, dedup_text};

use crate::{
    access::Approval,
    config::{Dataset, Dedup, Limits, MaxRejects, Source},
    id::{Digest, RunId, SnapshotId},
    time::{EventTime, IngestTime, format_us},
    window::{Calendar, Grain, Window},
};
use chrono_tz::Tz;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// What a run is for. One word each; see the glossary.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Builds open and newly closed partitions.
    Run,
    /// Handles late data in closed partitions.
    Repair,
    /// Recomputes a range that was named.
    Backfill,
    /// Recomputes an old run as it was.
    Replay,
    /// Restores what was before a run.
    Rollback,
    /// Reads landed records again from their kept payloads.
    Reparse,
}

impl Kind {
    /// Returns its name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Run => "run",
            Kind::Repair => "repair",
            Kind::Backfill => "backfill",
            Kind::Replay => "replay",
            Kind::Rollback => "rollback",
            Kind::Reparse => "reparse",
        }
    }
}

/// How far a run goes, and how it writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Computes and checks, keeps nothing.
    DryRun,
    /// Computes and checks, and waits for `publish` or `discard`.
    Stage,
    /// Computes, checks, and swaps whole partitions.
    Overwrite,
    /// Computes, checks, and merges rows by key into what is published.
    Merge,
    /// Computes, checks, and replaces the rows of a window, inside partitions too.
    DeleteInsert,
}

impl Mode {
    /// Returns its name on the command line and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Mode::DryRun => "dry-run",
            Mode::Stage => "stage",
            Mode::Overwrite => "overwrite",
            Mode::Merge => "merge",
            Mode::DeleteInsert => "delete-insert",
        }
    }
}

/// How rows of a run are put among those that are published.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum WriteMode {
    /// They take the place of whole partitions.
    #[default]
    Overwrite,
    /// They take the places of rows with their keys.
    Merge,
    /// They take the place of a window's rows.
    DeleteInsert,
}

/// The same in a recipe: whatever is not an overwrite has the rows that are published as an input.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Write {
    /// The run's rows are the partition.
    #[default]
    Overwrite,
    /// The run's rows replace rows with the same key; the others stay.
    Merge,
    /// The run's rows replace those whose time lies in the window, and the transform sees only records of the window.
    DeleteInsert {
        /// The output column that has the time.
        time_column: String,
        /// The window's first instant, in UTC microseconds.
        start_us: i64,
        /// The first instant after it.
        end_us: i64,
    },
}

impl Write {
    /// Returns which of the three it is.
    pub fn mode(&self) -> WriteMode {
        match self {
            Write::Overwrite => WriteMode::Overwrite,
            Write::Merge => WriteMode::Merge,
            Write::DeleteInsert { .. } => WriteMode::DeleteInsert,
        }
    }

    /// Returns the part of a partition whose records are read: all of it, or what the window has of it.
    pub fn part_of(&self, partition: Window) -> Window {
        match self {
            Write::DeleteInsert { start_us, end_us, .. } => {
                let (start, end) = (partition.start().0.max(*start_us), partition.end().0.min(*end_us));
                Window::new(EventTime(start), EventTime(end)).unwrap_or(partition)
            }
            _ => partition,
        }
    }

    fn is_overwrite(&self) -> bool {
        *self == Write::Overwrite
    }
}

/// Where a run stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Status {
    /// A process is at it.
    Running,
    /// Computed and checked, invisible, waiting.
    Staged,
    /// Current when it was published.
    Published,
    /// A check said no. Nothing was published.
    Rejected,
    /// It ended with an error. Nothing was published.
    Failed,
    /// It was thrown away. Nothing was published.
    Discarded,
    /// It only computed: a dry run or a replay.
    Done,
}

impl Status {
    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Status::Running => "running",
            Status::Staged => "staged",
            Status::Published => "published",
            Status::Rejected => "rejected",
            Status::Failed => "failed",
            Status::Discarded => "discarded",
            Status::Done => "done",
        }
    }
}

/// Whether failed checks keep a run from being published.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Validation {
    /// A failed error-check rejects the run.
    Block,
    /// Failures are written down.
    Warn,
    /// Checks are not evaluated.
    Off,
}

/// All that determines the rows of a run's partitions. Equal recipes give equal bytes.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Recipe {
    /// The dataset, and so the table.
    pub dataset: String,
    /// The sources whose raw tables are windowed; none if datasets are.
    pub sources: Vec<String>,
    /// The datasets whose published rows are windowed; none if sources are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub upstream: Vec<UpstreamInput>,
    /// Version of the warehouse that is read.
    pub input_snapshot: SnapshotId,
    /// The transform, as name@version.
    pub transform: String,
    /// The transform's bytes.
    pub transform_digest: Digest,
    /// Values of its parameters.
    pub parameters: IndexMap<String, String>,
    /// Further inputs, each a source that is sent whole.
    pub lookups: IndexMap<String, String>,
    /// Grain of the partitions.
    pub grain: Grain,
    /// Zone whose wall time they follow.
    #[serde(with = "zone_text")]
    pub time_zone: Tz,
    /// Columns that rows are identified and sorted by inside a partition.
    pub key: Vec<String>,
    /// How duplicates are removed.
    pub dedup: Option<Dedup>,
    /// Whether a record counts once in the whole dataset: one with its id in another partition can take its place.
    #[serde(default)]
    pub follows: bool,
    /// SQL condition that input records must meet.
    pub filter: Option<String>,
    /// The clock that the transform sees, in UTC microseconds.
    pub as_of_us: i64,
    /// The seed that the transform sees.
    pub seed: u64,
    /// Bounds on the transform.
    pub limits: Limits,
    /// How its rows are put among those that are published.
    #[serde(default, skip_serializing_if = "Write::is_overwrite")]
    pub write: Write,
    /// How many records of a partition may be put in quarantine when the transform fails on them; `None`: one fails the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quarantine: Option<MaxRejects>,
}

impl Recipe {
    /// Returns the recipe of a dataset as it is declared now.
    pub fn of(dataset: &Dataset, transform_digest: Digest, input_snapshot: SnapshotId, as_of_us: i64, seed: u64) -> Recipe {
        Recipe {
            dataset: dataset.name.clone(),
            sources: dataset.inputs.clone(),
            upstream: Vec::new(),
            input_snapshot,
            transform: dataset.transform.to_string(),
            transform_digest,
            parameters: dataset.params.clone(),
            lookups: dataset.lookups.clone(),
            grain: dataset.grain,
            time_zone: dataset.time_zone,
            key: dataset.key.clone(),
            dedup: dataset.dedup.clone(),
            follows: false,
            filter: None,
            as_of_us,
            seed,
            limits: dataset.limits,
            write: Write::Overwrite,
            quarantine: dataset.quarantine,
        }
    }

    /// Returns the recipe of a reparse: a raw table is written, and no transform takes part.
    pub fn of_reparse(source: &Source, input_snapshot: SnapshotId, as_of_us: i64) -> Recipe {
        Recipe {
            dataset: source.table(),
            sources: vec![source.name.clone()],
            upstream: Vec::new(),
            input_snapshot,
            transform: String::new(),
            transform_digest: Digest([0; 32]),
            parameters: IndexMap::new(),
            lookups: IndexMap::new(),
            grain: Grain::Day,
            time_zone: source.time_zone,
            key: Vec::new(),
            dedup: None,
            follows: false,
            filter: None,
            as_of_us,
            seed: 0,
            limits: Limits::default(),
            write: Write::Overwrite,
            quarantine: None,
        }
    }

    /// Returns the calendar of its partitions.
    pub fn calendar(&self) -> Calendar {
        Calendar { grain: self.grain, zone: self.time_zone }
    }

    /// Returns the names of its windowed inputs: sources, or datasets.
    pub fn input_names(&self) -> Vec<String> {
        self.sources.iter().chain(self.upstream.iter().map(|u| &u.dataset)).cloned().collect()
    }

    /// Returns what of it restitch.toml and the options of a command decide, beside transform and input.
    pub fn settings(&self) -> Settings {
        Settings {
            parameters: self.parameters.clone(),
            key: self.key.clone(),
            dedup: self.dedup.clone(),
            follows: self.follows,
            filter: self.filter.clone(),
            lookups: self.lookups.clone(),
            upstream: self.upstream.clone(),
        }
    }
}

/// The record of a run.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// The run.
    pub run: RunId,
    /// What it is for.
    pub kind: Kind,
    /// Where it stands.
    pub status: Status,
    /// How it writes.
    pub mode: Mode,
    /// What failed checks do.
    pub validation: Validation,
    /// Who asked for it.
    pub operator: String,
    /// Why, in the operator's words.
    pub reason: Option<String>,
    /// Start and end as they were typed; none, if the window was left open. For a rollback of some partitions: their names, or the window.
    #[serde(default)]
    pub asked: Vec<String>,
    /// The window, resolved: its first instant, and the first after it.
    pub window: Option<[String; 2]>,
    /// Which partitions of the window were wanted: all, missing, dirty or stale.
    pub only: Option<String>,
    /// What was followed.
    pub recipe: Recipe,
    /// The digest of the plan that was carried out, if that had been saved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plan_digest: Option<Digest>,
    /// The version of the warehouse that was compared with at publication.
    pub base_snapshot: SnapshotId,
    /// The version that it made.
    pub published_snapshot: Option<SnapshotId>,
    /// Who made it visible: the operator, or whoever published or approved it later.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_by: Option<String>,
    /// When, in UTC microseconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub published_us: Option<i64>,
    /// For a rollback, the run that it undoes; for a replay, the run that it repeats.
    pub of_run: Option<RunId>,
    /// The raw files that were read.
    pub inputs: Vec<InputFile>,
    /// What was written, by partition. Also in the table restitch_run_partition.
    #[serde(default)]
    pub partitions: Vec<PartitionRecord>,
    /// What the checks measured. Also in the table restitch_check.
    #[serde(default)]
    pub checks: Vec<CheckRecord>,
    /// SHA-256 over the sorted (partition, checksum) pairs.
    pub checksum: Option<Digest>,
    /// Where the time went.
    pub timings: Timings,
    /// restitch, engine and time-zone database.
    pub versions: Versions,
    /// By whose word it read payloads of masked sources.
    #[serde(default)]
    pub grants: Vec<Grant>,
    /// Whose word it needs before it is published, and whether it has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub approval: Option<Approval>,
    /// What it could not read because retention had removed it, in words.
    #[serde(default)]
    pub gaps: Vec<String>,
    /// The last lines that the transform logged.
    #[serde(default)]
    pub log: Vec<String>,
    /// What ended it.
    pub error: Option<String>,
    /// Who threw its staged rows away, and when.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub discarded: Option<Discarded>,
    /// For a reparse, what it read and changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reparse: Option<ReparseRecord>,
    /// For a merge or a delete-insert: the published rows that it read, by partition. They are an input like raw.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub bases: Vec<BaseRecord>,
    /// Where datasets are the input: their published partitions that were read. They are an input like raw.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub upstream: Vec<UpstreamRecord>,
    /// The runs that were published in one transaction with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub together: Vec<RunId>,
    /// The dataset's other partitions, compared before and after the swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub others: Option<OthersRecord>,
}

impl Manifest {
    /// Says that it is visible: as which version of the warehouse, by whose command and when.
    pub fn publish(&mut self, snapshot: SnapshotId, operator: &str, now: IngestTime) {
        self.status = Status::Published;
        self.published_snapshot = Some(snapshot);
        (self.published_by, self.published_us) = (Some(operator.to_owned()), Some(now.0));
    }

    /// Returns who else than its operator made it visible, if somebody did.
    pub fn published_for_it(&self) -> Option<&str> {
        self.published_by.as_deref().filter(|by| *by != self.operator)
    }

    /// Says that its staged rows are thrown away.
    pub fn discard(&mut self, discarded: Discarded) {
        self.status = Status::Discarded;
        self.partitions.iter_mut().for_each(|p| p.files.clear());
        self.discarded = Some(discarded);
    }
}

/// How staged rows came to be thrown away.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Discarded {
    /// Who did it: by `discard`, or by `gc`.
    pub operator: String,
    /// When, in UTC microseconds.
    pub at_us: i64,
    /// For `gc` the rule: `staged_keep = 30d`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rule: Option<String>,
}

impl std::fmt::Display for Discarded {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let (at, operator) = (format_us(self.at_us), &self.operator);
        match &self.rule {
            Some(rule) => write!(f, "on {at} by gc ({rule}, {operator})"),
            None => write!(f, "on {at} by {operator}"),
        }
    }
}

/// Published rows of one partition that a run read and put its own among.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BaseRecord {
    /// The partition.
    pub partition: String,
    /// The run that had published them.
    pub run: RunId,
    /// How many they were.
    pub rows: u64,
    /// Their content checksum.
    pub checksum: Digest,
    /// The files that hold them.
    pub files: Vec<FileRecord>,
}

/// A published partition of a dataset that another one was computed from.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpstreamRecord {
    /// The dataset.
    pub dataset: String,
    /// The partition.
    pub partition: String,
    /// First instant, in UTC microseconds.
    pub start_us: i64,
    /// First instant after it.
    pub end_us: i64,
    /// The run that had published it.
    pub run: RunId,
    /// The version of the warehouse that the run had made.
    pub snapshot: SnapshotId,
    /// Its rows.
    pub rows: u64,
    /// Their content checksum.
    pub checksum: Digest,
    /// The files that hold them.
    pub files: Vec<FileRecord>,
}

impl UpstreamRecord {
    /// Returns whether it has an instant in common with the window from `start_us` to `end_us`.
    pub fn overlaps(&self, start_us: i64, end_us: i64) -> bool {
        self.start_us < end_us && start_us < self.end_us
    }
}

/// Partitions of the dataset that a swap did not name: they had this checksum before it, and have it after it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct OthersRecord {
    /// How many.
    pub partitions: u64,
    /// The sum over their (partition, checksum) pairs, see [`crate::catalog::PartitionSum`].
    pub checksum: Digest,
}

/// What a reparse read and changed.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ReparseRecord {
    /// The columns as they were declared, one line each.
    pub declared: Vec<String>,
    /// Columns that were declared with a mask.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub masked: Vec<String>,
    /// Columns that were declared without one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub clear: Vec<String>,
    /// Records in the files that were read.
    pub read: u64,
    /// How many of them lie inside the window.
    pub inside: u64,
    /// How many of those changed.
    pub changed: u64,
    /// How many changed in each declared column.
    pub columns: IndexMap<String, u64>,
    /// Raw files that ended; readers of older snapshots still see them.
    pub replaced: Vec<String>,
    /// Raw files that took their places, in the same order.
    pub files: Vec<FileRecord>,
}

/// An operator's word that a payload may be read although its source masks columns.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Grant {
    /// The source.
    pub source: String,
    /// The column: `_payload`.
    pub column: String,
    /// Who gave it: one of the source's `payload_readers`.
    pub operator: String,
    /// Why, in their words.
    pub reason: String,
}

/// Software that took part.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Versions {
    /// restitch.
    pub restitch: String,
    /// The WASM engine with a hash of its configuration.
    pub engine: String,
    /// The contract.
    pub wit: String,
    /// The IANA time-zone database.
    pub time_zones: String,
}

/// A raw file that a run read.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct InputFile {
    /// Its path in the warehouse.
    pub path: String,
    /// Its rows.
    pub rows: i64,
    /// Its size.
    pub bytes: i64,
    /// The snapshot that landed it.
    pub snapshot: SnapshotId,
}

/// One partition of a run.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct PartitionRecord {
    /// Its name.
    pub partition: String,
    /// First instant, in UTC microseconds.
    pub start_us: i64,
    /// First instant after it.
    pub end_us: i64,
    /// Why it was in the plan.
    pub reason: String,
    /// Records read for it, before dedup.
    pub records: u64,
    /// How many of them were late when they arrived.
    pub late: u64,
    /// How many of them dedup removed.
    pub duplicates: u64,
    /// How many keys had records in it that differ in payload, those of `moved` too.
    pub conflicts: u64,
    /// Records left out because their id has a record in another partition that counts.
    #[serde(default)]
    pub moved: u64,
    /// Records left out because the transform fails on them, in arrival order. A replay leaves out the same.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub quarantined: Vec<Quarantined>,
    /// Checksum of the records that the transform got, in order.
    pub input_checksum: Option<Digest>,
    /// Rows written.
    pub rows: u64,
    /// Bytes written.
    pub bytes: u64,
    /// Content checksum of the rows.
    pub checksum: Option<Digest>,
    /// The run that had published it before.
    pub prior_run: Option<RunId>,
    /// Its rows then.
    pub prior_rows: Option<u64>,
    /// Its checksum then.
    pub prior_checksum: Option<Digest>,
    /// The version of the warehouse that its rows were computed from.
    pub input_snapshot: Option<SnapshotId>,
    /// The transform that made its rows.
    pub transform_digest: Option<Digest>,
    /// The [`Settings`] that made its rows, by their digest.
    #[serde(default)]
    pub settings_digest: Option<Digest>,
    /// Keys that are new.
    pub added: Option<u64>,
    /// Keys that are gone.
    pub removed: Option<u64>,
    /// Keys whose row changed.
    pub changed: Option<u64>,
    /// Merge: rows whose key was not there. Delete-insert: rows that the run put in.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub inserted: Option<u64>,
    /// Merge: rows that took the place of another row with their key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub updated: Option<u64>,
    /// Merge: rows that were there already, equal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unchanged: Option<u64>,
    /// Rows that were there and stay: the run has no row of their key (merge), or they lie outside the window (delete-insert).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target_only: Option<u64>,
    /// Delete-insert: rows that were there, in the window.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted: Option<u64>,
    /// Whether a merge or a delete-insert came to what was there: then the files stay.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub kept: bool,
    /// The staged or published files.
    #[serde(default)]
    pub files: Vec<FileRecord>,
}

/// A record that a partition was computed without, because the transform fails on it. It stays in its raw table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Quarantined {
    /// Its source.
    pub source: String,
    /// Its id.
    pub record_id: String,
    /// The ingest that landed it; with `seq` its place in the order of arrival.
    pub snapshot: SnapshotId,
    /// Its place in that ingest, from 0.
    pub seq: i64,
    /// When it happened, in UTC microseconds.
    pub event_us: i64,
    /// The file it came from, as named at ingest.
    pub file: String,
    /// Line (JSON Lines, CSV) or row (Parquet) in that file, from 1.
    pub offset: i64,
    /// What the transform, or the sandbox, said of it.
    pub reason: String,
}

/// A file of a partition.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct FileRecord {
    /// Its path in the warehouse.
    pub path: String,
    /// Its rows.
    pub rows: u64,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its bytes.
    pub digest: Digest,
}

/// What one check measured.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct CheckRecord {
    /// Its name.
    pub name: String,
    /// Its kind.
    pub kind: String,
    /// error or warn.
    pub severity: String,
    /// Whether it held.
    pub passed: bool,
    /// What was measured.
    pub measured: String,
    /// What was wanted.
    pub expected: String,
    /// Where it failed: partitions, or the first failing rows.
    pub detail: Option<String>,
}

/// Where a run's time went. All but `wall_ms` and `workers` is added up over all workers; together with `idle_ms` the
/// parts come to `wall_ms` times `workers`.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
pub struct Timings {
    /// From the first step to the last, in milliseconds.
    pub wall_ms: f64,
    /// Tasks at once.
    pub workers: u64,
    /// Reading the catalog, lookups and what moved; writing the manifest's first row.
    pub prepare_ms: f64,
    /// Loading the transform: from the cache of compiled code, or compiling it.
    pub compile_ms: f64,
    /// Reading bytes of raw files.
    pub scan_ms: f64,
    /// Decoding Parquet.
    pub decode_ms: f64,
    /// Filtering, removing duplicates and ordering records.
    pub dedup_ms: f64,
    /// The transform, with instances and the crossing of its boundary.
    pub transform_ms: f64,
    /// Of that, making and dropping instances.
    pub instantiate_ms: f64,
    /// Of that, crossing the boundary: columns made for the guest, and what it returned checked.
    pub boundary_ms: f64,
    /// Sorting, checksumming and writing output.
    pub write_ms: f64,
    /// Evaluating checks.
    pub check_ms: f64,
    /// The swap: moving files, making them durable, the transaction.
    pub publish_ms: f64,
    /// Workers without work: tasks handed out unevenly, and whatever one of them does while the others wait.
    pub idle_ms: f64,
}

impl Timings {
    /// Adds the parts of another timing (of a task) to this.
    pub fn add(&mut self, other: &Timings) {
        self.prepare_ms += other.prepare_ms;
        self.compile_ms += other.compile_ms;
        self.scan_ms += other.scan_ms;
        self.decode_ms += other.decode_ms;
        self.dedup_ms += other.dedup_ms;
        self.transform_ms += other.transform_ms;
        self.instantiate_ms += other.instantiate_ms;
        self.boundary_ms += other.boundary_ms;
        self.write_ms += other.write_ms;
        self.check_ms += other.check_ms;
        self.publish_ms += other.publish_ms;
    }

    /// Returns the time in the guest's own code; copying bytes into and out of its memory is in it.
    pub fn guest_ms(&self) -> f64 {
        (self.transform_ms - self.instantiate_ms - self.boundary_ms).max(0.0)
    }

    /// Returns the time that somebody worked, added up over all workers.
    pub fn busy_ms(&self) -> f64 {
        let input = self.scan_ms + self.decode_ms + self.dedup_ms;
        self.prepare_ms + self.compile_ms + input + self.transform_ms + self.write_ms + self.check_ms + self.publish_ms
    }

    /// Sets how long it all took, and with that how long workers had nothing to do.
    pub fn settle(&mut self, wall_ms: f64, workers: usize) {
        (self.wall_ms, self.workers) = (wall_ms, workers as u64);
        self.idle_ms = (wall_ms * workers as f64 - self.busy_ms()).max(0.0);
    }
}

/// Returns the checksum of a set of partitions: SHA-256 over `name NUL checksum NUL` of each, sorted by name.
pub fn checksum_of<'a>(partitions: impl IntoIterator<Item = (&'a str, &'a Digest)>) -> Digest {
    let mut lines: Vec<(&str, &Digest)> = partitions.into_iter().collect();
    lines.sort();
    let mut bytes = Vec::new();
    for (name, digest) in lines {
        bytes.extend_from_slice(name.as_bytes());
        bytes.push(0);
        bytes.extend_from_slice(&digest.0);
        bytes.push(0);
    }
    Digest::of(&bytes)
}

mod zone_text {
    use chrono_tz::Tz;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    pub fn serialize<S: Serializer>(zone: &Tz, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(zone.name())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Tz, D::Error> {
        let name = String::deserialize(d)?;
        name.parse().map_err(|_| D::Error::custom(format!("{name:?} is not a time zone of this release")))
    }
}
