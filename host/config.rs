//! restitch.toml: the text a team reviews becomes a [`Project`].
//! Never reads a file or asks for defaults elsewhere. Errors carry line and column.

mod access;
mod check;
mod text;
mod upstream;

pub use access::{Access, Rule};
pub use check::{Check, CheckKind, Severity, parse_tolerance};
pub(crate) use text::parse_bytes;

use crate::{
    id::Digest,
    schema::{DataType, Field, envelope},
    time::{EventTime, Span, Unit},
    watermark::Policy,
    window::{Calendar, Grain},
};
use chrono_tz::Tz;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// What restitch.toml declares.
#[derive(Clone, Debug)]
pub struct Project {
    /// The warehouse's folder, relative to the file.
    pub warehouse: String,
    /// Versions of each published partition that `gc` leaves; without a number all.
    pub keep_versions: Option<u64>,
    /// How long after it was computed, or last approved, a staged or rejected run keeps its rows; then `gc` discards it.
    pub staged_keep: Span,
    /// Feeds of raw records, by name, in the order of the file.
    pub sources: IndexMap<String, Source>,
    /// Derived tables, by name, in the order of the file.
    pub datasets: IndexMap<String, Dataset>,
    /// Service accounts: the SHA-256 of the token of each.
    pub accounts: IndexMap<String, Digest>,
    /// Whether it declares an account or a rule of access, so that operators have to be who they say.
    pub governed: bool,
}

/// A feed of raw records.
#[derive(Clone, Debug)]
pub struct Source {
    /// Its name; the raw table is `raw_<name>`.
    pub name: String,
    /// How its files are written.
    pub format: Format,
    /// The column that holds the event time.
    pub event_time: String,
    /// The column that identifies a record; without one the SHA-256 of the payload does, in CSV with the header line before it.
    pub record_id: Option<String>,
    /// Zone of times that are written without an offset.
    pub time_zone: Tz,
    /// When records are late, and what happens then.
    pub policy: Policy,
    /// How many records an ingest may reject.
    pub max_rejects: MaxRejects,
    /// Which event times can be meant at all.
    pub plausible: Plausible,
    /// The declared columns, in the order of the file.
    pub columns: Vec<SourceColumn>,
    /// CSV only: the byte between fields.
    pub delimiter: u8,
    /// How long before the watermark raw records are kept; without it for ever.
    pub raw_keep: Option<Span>,
    /// Whether raw rows and rejects keep the original bytes.
    pub keep_payload: bool,
    /// Operators who may read payloads although columns are masked.
    pub payload_readers: Vec<String>,
}

impl Source {
    /// Returns the fields of the raw table: the envelope, then the declared columns.
    pub fn raw_fields(&self) -> Vec<Field> {
        let mut fields = envelope::fields();
        fields.extend(self.columns.iter().map(SourceColumn::field));
        fields
    }

    /// Returns the name of the raw table.
    pub fn table(&self) -> String {
        format!("raw_{}", self.name)
    }

    /// Returns what the ids of its records are made of.
    pub fn id_rule(&self) -> IdRule {
        let masked = self.columns.iter().any(|c| Some(&c.name) == self.record_id.as_ref() && c.mask.is_some());
        IdRule { column: self.record_id.clone(), masked }
    }

    /// Returns whether a column is masked, so that the payload shows what rows do not.
    pub fn is_masked(&self) -> bool {
        self.columns.iter().any(|c| c.mask.is_some())
    }

    /// Returns the names of the columns that are masked, and of those that are not.
    pub fn masked_and_clear(&self) -> (Vec<String>, Vec<String>) {
        let (masked, clear): (Vec<_>, Vec<_>) = self.columns.iter().partition(|c| c.mask.is_some());
        let names = |columns: Vec<&SourceColumn>| columns.into_iter().map(|c| c.name.clone()).collect();
        (names(masked), names(clear))
    }

    /// Returns the name of the table of rejected records.
    pub fn reject_table(&self) -> String {
        format!("raw_{}_rejects", self.name)
    }
}

/// What the ids of a source's records are made of. It stays for ever: made in another way, one record has two ids.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct IdRule {
    /// The declared column; none: the record itself.
    pub column: Option<String>,
    /// Whether the column is masked.
    pub masked: bool,
}

impl std::fmt::Display for IdRule {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match &self.column {
            Some(column) => write!(f, "the column {column:?}{}", if self.masked { ", masked" } else { "" }),
            None => write!(f, "the whole record"),
        }
    }
}

/// Bounds on event times: a record outside them is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Plausible {
    /// The first event time that is taken. Where none is declared, a number that lies in
    /// 1970 is refused: seconds taken for milliseconds end there.
    pub min: Option<EventTime>,
    /// The first event time that is too late.
    pub end: Option<EventTime>,
}

/// How a source's files are written. Compression is seen from the content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Format {
    /// One JSON object per line.
    Jsonl,
    /// RFC 4180, with a header line.
    Csv,
    /// Apache Parquet.
    Parquet,
}

/// How many records of one ingest may be rejected before nothing of it is landed, or how many of one partition
/// may be put in quarantine before its run fails.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum MaxRejects {
    /// At most so many.
    Rows(u64),
    /// At most this share of the records read, from 0 to 1.
    Share(f64),
}

impl MaxRejects {
    /// Returns the bound that `text` names: `100` or `0.1%`.
    pub fn parse(text: &str) -> Option<MaxRejects> {
        match text.strip_suffix('%') {
            Some(p) => p.trim().parse::<f64>().ok().filter(|p| (0.0..=100.0).contains(p)).map(|p| MaxRejects::Share(p / 100.0)),
            None => text.parse().ok().map(MaxRejects::Rows),
        }
    }

    /// Returns whether `rejected` of `read` records is too many.
    pub fn exceeded(&self, rejected: u64, read: u64) -> bool {
        match *self {
            MaxRejects::Rows(max) => rejected > max,
            // 29 of 100 are not more than 29%, whatever 0.29 is in binary.
            MaxRejects::Share(share) => rejected as f64 > share * read as f64 * (1.0 + 1e-12),
        }
    }
}

impl From<MaxRejects> for String {
    fn from(max: MaxRejects) -> String {
        max.to_string()
    }
}

impl TryFrom<String> for MaxRejects {
    type Error = String;

    fn try_from(text: String) -> Result<MaxRejects, String> {
        MaxRejects::parse(&text).ok_or_else(|| format!("{text:?} is neither a number nor a percentage"))
    }
}

impl std::fmt::Display for MaxRejects {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        match self {
            MaxRejects::Rows(n) => write!(f, "{n}"),
            MaxRejects::Share(s) => write!(f, "{}%", s * 100.0),
        }
    }
}

/// A declared column of a source.
#[derive(Clone, Debug)]
pub struct SourceColumn {
    /// Its name in the raw table.
    pub name: String,
    /// Its type.
    pub data_type: DataType,
    /// Whether a record may lack it.
    pub nullable: bool,
    /// Other names it had in older records; the first that is present counts.
    pub aliases: Vec<String>,
    /// What a record that lacks it gets, as text of the type.
    pub default: Option<String>,
    /// Where the default stands in restitch.toml: line and column in characters, from 1.
    pub default_at: (usize, usize),
    /// JSON pointer (RFC 6901) to it in the payload, instead of its name.
    pub from: Option<String>,
    /// Applied to the value when it lands.
    pub mask: Option<Mask>,
    /// What a value that does not parse becomes.
    pub on_bad: OnBad,
    /// Timestamps only: the unit of a number.
    pub unit: Option<Unit>,
}

impl SourceColumn {
    /// Returns the column's field in the raw table. A masked text stays text.
    pub fn field(&self) -> Field {
        Field::new(&self.name, self.data_type, self.nullable)
    }
}

/// How a sensitive value is hidden.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mask {
    /// Its SHA-256, as hex digits: equal values stay equal.
    Sha256,
    /// Three asterisks.
    Redact,
    /// Null.
    Drop,
}

/// What happens to a record with a value that does not parse.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OnBad {
    /// The record is rejected.
    Reject,
    /// The value becomes null.
    Null,
    /// The value becomes the column's default.
    Default,
}

/// A derived table.
#[derive(Clone, Debug)]
pub struct Dataset {
    /// Its name; also its table's.
    pub name: String,
    /// The sources it is windowed over: one, or several whose records are taken together. None if datasets are its input.
    pub inputs: Vec<String>,
    /// The datasets it is windowed over: one, or several whose rows are taken together. None if sources are its input.
    pub upstream: Vec<String>,
    /// The transform's further inputs: name of the input, source that is sent whole.
    pub lookups: IndexMap<String, String>,
    /// The transform, as name and version.
    pub transform: TransformRef,
    /// Parameters for the transform.
    pub params: IndexMap<String, String>,
    /// The length of a partition.
    pub grain: Grain,
    /// The zone whose days, weeks and months partitions follow.
    pub time_zone: Tz,
    /// Columns that identify an output row inside its partition. Rows are sorted by it.
    pub key: Vec<String>,
    /// The output column that has a row's time: a delete-insert goes by it.
    pub time_column: Option<String>,
    /// How duplicates in the input are removed.
    pub dedup: Option<Dedup>,
    /// How many records of a partition may be put in quarantine when the transform fails on them; `None`: one fails the run.
    pub quarantine: Option<MaxRejects>,
    /// What has to hold before a run is published.
    pub checks: Vec<Check>,
    /// What one instance of the transform may use.
    pub limits: Limits,
    /// Who may change what is published.
    pub access: Access,
}

impl Dataset {
    /// Returns the calendar of its partitions.
    pub fn calendar(&self) -> Calendar {
        Calendar { grain: self.grain, zone: self.time_zone }
    }
}

/// A transform by name and version: `customer-totals@1.0.0`.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TransformRef {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl TransformRef {
    /// Returns the reference that `text` names, or `None` if it is not `name@version`.
    pub fn parse(text: &str) -> Option<TransformRef> {
        let (name, version) = text.split_once('@')?;
        let good = |s: &str| !s.is_empty() && s.chars().all(|c| c.is_ascii_alphanumeric() || "-_.+".contains(c));
        (good(name) && good(version)).then(|| TransformRef { name: name.into(), version: version.into() })
    }
}

impl std::fmt::Display for TransformRef {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        write!(f, "{}@{}", self.name, self.version)
    }
}

/// How records with the same key in one partition become one.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Dedup {
    /// Columns of the input that identify a record.
    pub key: Vec<String>,
    /// Which one is kept.
    pub keep: Keep,
    /// What happens when records of one key differ in payload.
    pub on_conflict: OnConflict,
}

impl Dedup {
    /// Returns whether a second record of a key, or one that differs, fails the run.
    pub fn forbids(&self) -> bool {
        self.keep == Keep::Fail || self.on_conflict == OnConflict::Fail
    }
}

/// Which of several records with one key is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Keep {
    /// The one that arrived last.
    LatestIngested,
    /// The one that arrived first.
    FirstIngested,
    /// None: a second one fails the run.
    Fail,
}

/// What a conflict (same key, other payload) does.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnConflict {
    /// It is counted in the manifest.
    Count,
    /// It fails the run.
    Fail,
}

/// Bounds on one instance of a transform. Each names its key in restitch.toml when it is hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Limits {
    /// Linear memory of the instance, in bytes (`limits.memory`).
    pub memory_bytes_max: u64,
    /// Wall time for one partition, in milliseconds (`limits.time`).
    pub time_ms_max: u64,
    /// Bytes of all batches that it may return for one partition (`limits.output`).
    pub output_bytes_max: u64,
    /// Bytes it may log for one partition (`limits.log`).
    pub log_bytes_max: u64,
    /// WebAssembly instructions that it may execute for one partition, about (`limits.fuel`); `None`: they are not counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fuel_max: Option<u64>,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { memory_bytes_max: 512 << 20, time_ms_max: 300_000, output_bytes_max: 4 << 30, log_bytes_max: 64 << 10, fuel_max: None }
    }
}

impl Project {
    /// Returns the project that `text` declares; `file` names it in errors.
    ///
    /// # Errors
    /// A [`ConfigError`] with line, column, what is wrong and the way out: a key that is not
    /// known (with the nearest one that is), a value of another type, a reference to something
    /// that is not declared.
    pub fn parse(file: &str, text: &str) -> Result<Project, ConfigError> {
        text::parse(file, text)
    }

    /// Returns the dataset of that name.
    ///
    /// # Errors
    /// [`Unknown`] names the nearest one.
    pub fn dataset(&self, name: &str) -> Result<&Dataset, Unknown> {
        self.datasets.get(name).ok_or_else(|| Unknown::new("dataset", name, self.datasets.keys()))
    }

    /// Returns the source of that name.
    ///
    /// # Errors
    /// [`Unknown`] names the nearest one.
    pub fn source(&self, name: &str) -> Result<&Source, Unknown> {
        self.sources.get(name).ok_or_else(|| Unknown::new("source", name, self.sources.keys()))
    }

    /// Returns the datasets whose windowed input `source` is, or is one of.
    pub fn datasets_of<'a>(&'a self, source: &'a str) -> impl Iterator<Item = &'a Dataset> {
        self.datasets.values().filter(move |d| d.inputs.iter().any(|i| i == source))
    }
}

/// restitch.toml is wrong at one place.
#[derive(Debug, thiserror::Error)]
#[error("{file}:{line}:{column}: {message}")]
pub struct ConfigError {
    /// The file, as given.
    pub file: String,
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
    /// What is wrong.
    pub message: String,
    /// The way out, if there is one to name.
    pub hint: Option<String>,
}

/// A name that nothing has.
#[derive(Debug, thiserror::Error)]
#[error("there is no {kind} {name:?}")]
pub struct Unknown {
    /// What was looked for.
    pub kind: &'static str,
    /// The name that was asked for.
    pub name: String,
    /// The nearest name, or the list of them.
    pub hint: String,
}

impl Unknown {
    /// Returns the error, its hint made of the names that there are.
    pub fn new<S: AsRef<str>>(kind: &'static str, name: &str, known: impl IntoIterator<Item = S>) -> Unknown {
        let known: Vec<String> = known.into_iter().map(|k| k.as_ref().to_owned()).collect();
        let hint = match nearest(name, known.iter().map(String::as_str)) {
            Some(near) => format!("did you mean {near:?}?"),
            None if known.is_empty() => format!("no {kind} is declared yet"),
            None => format!("known: {}", known.join(", ")),
        };
        Unknown { kind, name: name.into(), hint }
    }
}

/// Returns the known word that is nearest to `word`, if one is near.
pub fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    known
        .into_iter()
        .map(|k| (strsim::damerau_levenshtein(&word.to_lowercase(), &k.to_lowercase()), k))
        .filter(|(d, k)| *d <= (k.chars().count().max(word.chars().count()) / 3).max(1))
        .min_by_key(|(d, _)| *d)
        .map(|(_, k)| k)
}

/// Records of a partition that may be put in quarantine, where restitch.toml says no number.
pub(crate) const MAX_QUARANTINED: MaxRejects = MaxRejects::Rows(100);

/// The default of durations that restitch.toml leaves out.
pub(crate) const DEFAULTS: [(&str, Span); 4] = [
    ("watermark_delay", Span::Elapsed(0)),
    ("allowed_lateness", Span::Elapsed(0)),
    ("repair_window", Span::Days(7)),
    ("max_future", Span::Elapsed(3_600_000_000)),
];
