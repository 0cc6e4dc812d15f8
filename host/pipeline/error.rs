//! What can go wrong in a command, with its exit code and its way out.
//! Never a catch-all: each variant is an operation's own error, or one that only the pipeline can make.

use super::Applied;
use crate::{
    access::AccessError,
    catalog::{self, CatalogError, Dropped, Removed},
    check::CheckError,
    config::{ConfigError, TransformRef, Unknown},
    datafile::DataFileError,
    decode::DecodeError,
    doctor::{BadFile, DoctorError},
    execute::ExecuteError,
    gc::GcError,
    id::{Digest, RunId, SnapshotId},
    ingest::IngestError,
    manifest::Status,
    moves::MovesError,
    plan::{BoundError, PlanError},
    publish::{PublishError, listed},
    query::QueryError,
    recover::RecoverError,
    reparse::ReparseError,
    schema::Field,
    store::{DeadLink, StoreError},
    transform::TransformError,
    window::{Grain, WindowError},
};
use std::{io, path::PathBuf};

/// The kinds of failure that a user meets: the exit codes of the command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ErrorKind {
    /// 1: it failed, nothing was published.
    Failed,
    /// 2: usage or configuration.
    Usage,
    /// 3: validation refused.
    Validation,
    /// 4: the ground moved: plan again.
    Conflict,
    /// 5: somebody has to approve.
    Approval,
}

impl ErrorKind {
    /// Returns the exit code.
    pub fn code(self) -> u8 {
        match self {
            ErrorKind::Failed => 1,
            ErrorKind::Usage => 2,
            ErrorKind::Validation => 3,
            ErrorKind::Conflict => 4,
            ErrorKind::Approval => 5,
        }
    }
}

/// What went wrong in a command. Nothing was published.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)]
pub enum Error {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Unknown(#[from] Unknown),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    #[error(transparent)]
    DataFile(#[from] DataFileError),
    #[error(transparent)]
    Recover(#[from] RecoverError),
    #[error(transparent)]
    Ingest(#[from] IngestError),
    #[error(transparent)]
    Moves(#[from] MovesError),
    #[error(transparent)]
    Reparse(#[from] ReparseError),
    #[error(transparent)]
    Window(#[from] WindowError),
    #[error(transparent)]
    Plan(#[from] PlanError),
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(transparent)]
    Publish(#[from] PublishError),
    #[error(transparent)]
    Query(#[from] QueryError),
    /// There is no restitch.toml.
    #[error("there is no project here: {} cannot be read", file.display())]
    NoProject { file: PathBuf, source: StoreError },
    /// Words of a command that do not fit together.
    #[error("{message}")]
    Usage { message: String, hint: Option<String> },
    /// A component was refused.
    #[error("{file}")]
    Component { file: String, source: TransformError },
    /// A version is bound to other bytes.
    #[error("{transform} is bound to {} for ever; the file offered is {}", bound.short(), offered.short())]
    Rebound { transform: String, bound: Digest, offered: Digest },
    /// A stored file is not what was stored.
    #[error("{path} is damaged: its SHA-256 is {found}, recorded was {recorded}")]
    Damaged { path: String, found: Digest, recorded: Digest },
    /// A snapshot that is not there.
    #[error("there is no snapshot {asked}; the latest is {latest}")]
    Snapshot { asked: SnapshotId, latest: SnapshotId },
    /// A run that is not there.
    #[error("there is no run {run}")]
    NoRun { run: RunId },
    /// A name that is not a partition's.
    #[error("{partition:?} is no partition of {dataset}, which is cut by {grain}")]
    NoPartition { dataset: String, partition: String, grain: Grain },
    /// Nothing was ever landed.
    #[error("nothing was landed in {source_name} yet")]
    NoInput { source_name: String },
    /// A dataset that is to be read has nothing.
    #[error("nothing of {dataset} is published yet")]
    NoUpstream { dataset: String },
    /// What is read of a dataset is not what a run of it has written.
    #[error("files of partition {partition} of {dataset} were replaced by another tool")]
    Foreign { dataset: String, partition: String },
    /// The transform does not fit the dataset.
    #[error("dataset {dataset} and transform {transform} do not fit: {problem}")]
    Fit { dataset: String, transform: TransformRef, problem: String, hint: Option<String> },
    /// The published table has other columns than the transform gives.
    #[error("column {} of {dataset} is {found} in the published table, but the transform gives {}", field.name, field.data_type)]
    Evolution { dataset: String, field: Field, found: String },
    /// The transform lacks a column of the published table that cannot be null.
    #[error("column {column} of {dataset} allows no null in the published table, and the transform does not give it")]
    NotGiven { dataset: String, column: String },
    /// The dataset is cut in another way than it was published.
    #[error("dataset {dataset} is published {published}, but declared {declared}")]
    Recut { dataset: String, published: String, declared: String },
    /// What a plan stands on is not as it was.
    #[error("the plan of {dataset} does not hold any more: {}", listed(changes, "; "))]
    Moved { dataset: String, changes: Vec<String> },
    /// A saved plan is carried out once.
    #[error("the plan {} run {}{}", if .0.status == Status::Running { "is just being applied as" } else { "was applied as" }, .0.run,
        if .0.status == Status::Staged { ", which is staged" } else { "" })]
    Applied(Applied),
    /// A file is no plan, or not the plan that was saved.
    #[error("{file} cannot be applied")]
    PlanFile { file: String, source: BoundError },
    /// A plan does not fit its calendar.
    #[error(transparent)]
    Bound(#[from] BoundError),
    /// Checks said no.
    #[error("run {run} was rejected: {} failed", failed.join(", "))]
    Rejected { run: RunId, failed: Vec<String>, staged: bool },
    /// The expression of a check does not parse, or names what is not there.
    #[error("the {side} of the check {check:?} of dataset {dataset} cannot be evaluated")]
    Expression { side: &'static str, check: String, dataset: String, source: QueryError },
    /// The kind of run has nothing to replay.
    #[error("run {run} is a {kind}: it computed nothing that could be replayed")]
    NotReplayable { run: RunId, kind: &'static str },
    /// A reparse has nothing to go back to.
    #[error("run {run} is a reparse, which is not rolled back: the kept payloads are the truth, and restitch.toml says how they are read")]
    NotUndoable { run: RunId },
    /// A replay gave something else.
    #[error("the replay of {run} differs: {}; {first}", listed(partitions, "; "))]
    Differs { run: RunId, partitions: Vec<String>, first: String },
    /// Rows that are to be compared were removed.
    #[error("the rows of {run} and those before it cannot be compared: {} was removed on {} by gc ({}, {})", removed.path, removed.at, removed.reason, removed.operator)]
    RowsGone { run: RunId, removed: Box<Removed> },
    /// A transform gives other rows when nothing but the way of computing them is another.
    #[error("transform {transform} does not repeat itself; it came out otherwise with: {}", listed(trials, "; "))]
    Unsteady { transform: String, trials: Vec<String> },
    /// Other ways of computing could not be tried, so that nothing is proven.
    #[error("transform {transform} could not be tried with: {}", listed(trials, "; "))]
    Untried { transform: String, trials: Vec<String>, source: Box<Error> },
    /// A proof failed.
    #[error("run {run} is not proven: {}", failed.join("; "))]
    Unproven { run: RunId, failed: Vec<String> },
    /// Compaction by another tool has merged snapshots.
    #[error("files of {table} were merged after snapshot {at} by another tool; read it with that tool")]
    Merged { table: String, at: SnapshotId },
    /// Staged output without its description.
    #[error("the staged files of {run} are not described: {what}")]
    Staging { run: RunId, what: String },
    /// Only old late records wait, and they need somebody's word.
    #[error("only partitions whose late records need approval are left: {}", partitions.join(", "))]
    Approval { dataset: String, partitions: Vec<String> },
    /// Raw that a run was computed from is gone.
    #[error("run {run} cannot be computed again: {dropped}")]
    RawGone { run: RunId, dropped: Box<Dropped> },
    /// Published rows that a run read are gone.
    #[error("run {run} cannot be computed again: it read rows of partition {partition} that {of} had published, and {what}")]
    BaseGone { run: RunId, of: RunId, partition: String, what: String },
    /// Raw was removed while a run was getting ready to read it.
    #[error("raw of {source_name} was removed after this run was planned ({})", removed.reason)]
    RawMoved { source_name: String, removed: Box<Removed> },
    /// A snapshot that was there and is not any more.
    #[error("snapshot {asked} cannot be read any more: it was expired with files that were removed from it")]
    Expired { asked: SnapshotId },
    /// Payloads of a masked source, without somebody's word.
    #[error("{what}, which would show what source {source_name} masks")]
    Masked { what: String, source_name: String, readers: Vec<String> },
    /// A word from somebody who may not give it.
    #[error("{operator} may not read payloads of source {source_name}, which masks columns")]
    NotReader { operator: String, source_name: String, readers: Vec<String> },
    /// A plan that reads payloads by the word of another than who carries it out.
    #[error("the plan reads payloads of source {source_name} by the word of {given}, and {operator} applies it")]
    OtherWord { source_name: String, given: String, operator: String },
    #[error(transparent)]
    Access(#[from] AccessError),
    /// A run that is computed and checked, and waits for somebody's word.
    #[error("{run} is computed and checked, and waits for approval ({why})")]
    Waiting { run: RunId, why: String, approvers: Vec<String> },
    /// A file that a run reads is not what it was.
    #[error("the input is damaged: {bad}")]
    Input { bad: Box<BadFile> },
    /// A file that was to be saved is not what it was.
    #[error("the backup is not one: {bad}")]
    Unsound { bad: Box<BadFile> },
    /// The doctor found something.
    #[error("{problems} problem(s) in the warehouse")]
    Unhealthy { problems: usize },
    #[error(transparent)]
    Doctor(#[from] DoctorError),
    #[error(transparent)]
    Gc(#[from] GcError),
    /// Runs that cannot be published together, each with what keeps it from it.
    #[error("nothing was published: {}", problems.iter().map(|(run, e)| format!("{run}: {}", super::run::chain(e))).collect::<Vec<_>>().join("; "))]
    Together { problems: Vec<(RunId, Error)> },
    /// Our own bug.
    #[error("BUG: {0}")]
    Internal(String),
}

impl Error {
    /// Returns the kind, which is the exit code.
    pub fn kind(&self) -> ErrorKind {
        match self.of_catalog() {
            Some(CatalogError::Gone { .. } | CatalogError::Strange { .. }) => return ErrorKind::Conflict,
            Some(CatalogError::Twin { .. }) => return ErrorKind::Usage,
            _ => {}
        }
        match self {
            Error::Config(_) | Error::Unknown(_) | Error::Window(_) | Error::Plan(_) | Error::NoProject { .. } | Error::Usage { .. } => {
                ErrorKind::Usage
            }
            Error::NoRun { .. } | Error::NoPartition { .. } | Error::Snapshot { .. } | Error::Fit { .. } | Error::Component { .. } => {
                ErrorKind::Usage
            }
            Error::Rebound { .. }
            | Error::Recut { .. }
            | Error::Evolution { .. }
            | Error::NotGiven { .. }
            | Error::NoInput { .. }
            | Error::NoUpstream { .. }
            | Error::NotReplayable { .. } => ErrorKind::Usage,
            Error::Ingest(
                IngestError::NoFiles
                | IngestError::Backwards { .. }
                | IngestError::Ahead { .. }
                | IngestError::Column { .. }
                | IngestError::Ids { .. }
                | IngestError::Gone { .. },
            ) => ErrorKind::Usage,
            Error::Query(QueryError::Sql { .. })
            | Error::Expression { source: QueryError::Sql { .. }, .. }
            | Error::RawGone { .. }
            | Error::BaseGone { .. }
            | Error::RowsGone { .. }
            | Error::Publish(PublishError::Removed { .. } | PublishError::Expired { .. })
            | Error::Expired { .. }
            | Error::NotUndoable { .. } => ErrorKind::Usage,
            Error::Reparse(e) => reparse_kind(e),
            Error::Masked { .. } | Error::NotReader { .. } | Error::OtherWord { .. } | Error::Access(_) | Error::Waiting { .. } => {
                ErrorKind::Approval
            }
            Error::RawMoved { .. } | Error::Gc(GcError::Changed) => ErrorKind::Conflict,
            Error::Catalog(CatalogError::Missing(_) | CatalogError::Exists(_) | CatalogError::Lost { .. } | CatalogError::Version { .. }) => {
                ErrorKind::Usage
            }
            Error::Publish(PublishError::Status { .. } | PublishError::Discarded { .. } | PublishError::KeepsNoRows { .. })
            | Error::PlanFile { .. }
            | Error::Bound(_) => ErrorKind::Usage,
            Error::Moved { .. } | Error::Foreign { .. } | Error::Applied(_) => ErrorKind::Conflict,
            Error::Execute(
                ExecuteError::Duplicates { .. } | ExecuteError::Outside(_) | ExecuteError::Doubled { .. } | ExecuteError::TooManyQuarantined(_),
            )
            | Error::Rejected { .. }
            | Error::Unhealthy { .. }
            | Error::Unproven { .. }
            | Error::Differs { .. }
            | Error::Unsteady { .. }
            | Error::Ingest(IngestError::TooManyRejects { .. }) => ErrorKind::Validation,
            Error::Publish(PublishError::Conflict { .. } | PublishError::Busy { .. } | PublishError::Replaced { .. })
            | Error::Ingest(IngestError::Conflict { .. }) => ErrorKind::Conflict,
            Error::Approval { .. } => ErrorKind::Approval,
            Error::Untried { source, .. } => source.kind(),
            // What no word can mend comes first.
            Error::Together { problems } => problems.iter().map(|(_, e)| e.kind()).min_by_key(|k| k.code()).unwrap_or(ErrorKind::Failed),
            _ => ErrorKind::Failed,
        }
    }

    /// What the catalog says, through whichever part of the pipeline.
    fn of_catalog(&self) -> Option<&CatalogError> {
        match self {
            Error::Catalog(e)
            | Error::Ingest(IngestError::Catalog(e))
            | Error::Publish(PublishError::Catalog(e))
            | Error::Reparse(ReparseError::Catalog(e) | ReparseError::Table(IngestError::Catalog(e)))
            | Error::Moves(MovesError::Catalog(e))
            | Error::Check(CheckError::Catalog(e))
            | Error::Gc(GcError::Catalog(e)) => Some(e),
            _ => None,
        }
    }

    /// The way out where another tool changed a table.
    fn table_hint(&self) -> Option<&'static str> {
        Some(match self.of_catalog()? {
            CatalogError::ForeignRows { .. } => {
                "restitch reads whole data files; rewrite the table with the tool that did it (flush_inlined_data, then rewrite_data_files with delete_threshold 0)"
            }
            CatalogError::Renamed { .. } => {
                "give it its first name back with the tool that renamed it (ALTER TABLE … RENAME COLUMN …), or read the table with that tool"
            }
            CatalogError::Gone { .. } => {
                "give it its name back with the tool that renamed it (ALTER TABLE … RENAME TO …); what was dropped comes back with a backup, or is made anew under another name"
            }
            CatalogError::Strange { .. } => {
                "give it another name with that tool (ALTER TABLE … RENAME TO …), or declare the dataset under another name"
            }
            CatalogError::Twin { .. } => "keep the name that is there, or choose one that differs in more than case",
            _ => return None,
        })
    }

    /// Returns the way out, where there is one to name.
    pub fn hint(&self) -> Option<String> {
        let text = |s: &str| Some(s.to_owned());
        if let Some(hint) = self.table_hint() {
            return text(hint);
        }
        match self {
            Error::Config(e) => e.hint.clone(),
            Error::Unknown(e) if e.kind == "transform" && e.hint.starts_with("no transform") => {
                text("register one with `restitch transform add FILE.wasm`")
            }
            Error::Unknown(e) => Some(e.hint.clone()),
            Error::NoProject { .. } => text("`restitch init` makes a project here; -C FOLDER names another folder"),
            Error::Usage { hint, .. } | Error::Fit { hint, .. } => hint.clone(),
            Error::Component { source, .. } => source.hint(),
            Error::Untried { source, .. } => source.hint(),
            Error::Execute(ExecuteError::Transform { source, .. } | ExecuteError::Blameless { source, .. }) => source.hint(),
            Error::Execute(ExecuteError::Duplicates { partition, .. }) => {
                Some(format!("`restitch conflicts DATASET {partition}` shows records of one key that differ, side by side"))
            }
            Error::Execute(ExecuteError::TooManyQuarantined(refused)) => {
                Some(format!("max_quarantined of [dataset.{}] raises the bound; the first are\n{}", refused.dataset, refused.first.join("\n")))
            }
            Error::Execute(ExecuteError::Nulls(nulls)) if nulls.published => Some(format!(
                "rows of {} that were published before it had the column are null in it: `restitch backfill` makes them again",
                nulls.sources.join(", ")
            )),
            Error::Execute(ExecuteError::Nulls(nulls)) => {
                let (start, end) = nulls.window.map_or(("TIME".into(), "TIME".into()), |w| w.bounds_text());
                let command = |s: &String| format!("`restitch ingest {s} --reparse --start {start} --end {end}`");
                let commands = nulls.sources.iter().map(command).collect::<Vec<_>>().join(", ");
                Some(format!("records that landed before their column was declared are read again by {commands}"))
            }
            Error::Rebound { .. } => text("give the new bytes a new version"),
            Error::Window(e) | Error::Plan(PlanError::Window(e)) => window_hint(e),
            Error::Plan(PlanError::Unbounded) => text("name the range, like --start 2026-05-01 --end 2026-05-02 (both days included)"),
            Error::Plan(PlanError::Dropped { next, .. }) => {
                Some(format!("choose a window that begins with {next}; what is published stays as it is"))
            }
            Error::Plan(_) => text("choose a smaller window, or raise the limit on purpose"),
            Error::Query(e) | Error::Expression { source: e, .. } | Error::Check(CheckError::Compare(e)) => {
                e.hint().map(str::to_owned).or_else(|| self.folder_hint())
            }
            Error::Execute(ExecuteError::Query { source, .. }) => source.hint().map(str::to_owned).or_else(|| self.folder_hint()),
            Error::Check(CheckError::Lost { partition, run: Some(run), .. }) => Some(format!(
                "`restitch rollback {run} --partition {partition}` takes it out of what is published, and a backfill of the partition computes it anew"
            )),
            Error::NoInput { source_name } => Some(format!("land files first: `restitch ingest {source_name} FILE…`")),
            Error::Together { problems } => {
                let hints: Vec<String> = problems.iter().filter_map(|(run, e)| Some(format!("{run}: {}", e.hint()?))).collect();
                (!hints.is_empty()).then(|| hints.join("\n"))
            }
            Error::Foreign { dataset, partition } => {
                Some(format!("`restitch backfill {dataset} --start {partition} --end {partition}` writes it anew"))
            }
            Error::NoUpstream { dataset } => Some(format!("`restitch run {dataset}` publishes it; `--cascade` goes on with what is made of it")),
            Error::NoRun { .. } => text("`restitch runs` lists them"),
            Error::Rejected { run, staged: false, .. } => Some(format!("`restitch show {run}` shows what was measured; a dry run keeps no rows")),
            Error::Rejected { run, .. } => Some(format!(
                "`restitch show {run}` shows what was measured; --validate warn publishes all the same; `restitch discard {run}` removes rows that were staged"
            )),
            Error::Moved { .. } => text("plan again; nothing was done"),
            Error::Applied(Applied { run, status: Status::Staged }) => {
                Some(format!("`restitch publish {run}` makes it visible, `restitch discard {run}` throws it away; then plan again"))
            }
            Error::Applied(Applied { status: Status::Running, .. }) => text("wait for it"),
            Error::Applied(Applied { run, .. }) => Some(format!("`restitch show {run}` shows what it did; to do it again, plan again")),
            Error::PlanFile { source: BoundError::Version { .. }, .. } => text("use the release of restitch that wrote it, or plan again"),
            Error::PlanFile { .. } | Error::Bound(_) => text("plan again with `restitch plan … -o FILE`; a plan is not edited"),
            Error::Publish(PublishError::Conflict { .. }) => text("plan and run again; nothing was published"),
            Error::Publish(PublishError::Replaced { .. }) => {
                text("roll the later runs back first, name the partitions that still stand with --partition, or say --force")
            }
            Error::Publish(PublishError::KeepsNoRows { run, what: "replay" }) => {
                Some(format!("a replay compares by itself; `restitch show {run}` names the run that it replayed, which `restitch diff` compares"))
            }
            Error::Publish(PublishError::KeepsNoRows { .. }) => text("run it again without --dry-run, or with --mode stage"),
            Error::Publish(PublishError::Discarded { run, .. }) => {
                Some(format!("its rows are gone, and have to be computed again; `restitch show {run}` says what was asked"))
            }
            Error::Publish(PublishError::Tampered { path, .. }) => missing_hint(path),
            Error::Ingest(IngestError::Conflict { .. }) => text("ingest again; what is landed already will be recognised"),
            Error::Ingest(IngestError::Changed { .. }) => text("ingest the file when its writer is done"),
            Error::Ingest(IngestError::TooManyRejects { first, .. }) => {
                Some(format!("--max-rejects raises the bound for one ingest; the first are\n{}", first.join("\n")))
            }
            Error::Ingest(IngestError::Column { .. }) => text("give the changed column a new name; the table keeps the old one"),
            Error::Ingest(IngestError::Ids { source_name, .. }) => Some(ids_hint(source_name)),
            Error::Ingest(IngestError::Decode(e)) => decode_hint(e),
            Error::Ingest(IngestError::NoFiles) => text("name the files; a glob that matches nothing names none"),
            Error::Moves(MovesError::Catalog(e)) if e.is_held() => {
                text("another program has the file open, which only restitch needs: end that one, and give the command again")
            }
            Error::Catalog(CatalogError::Version { .. }) => text("use the release of restitch that wrote it"),
            Error::Catalog(CatalogError::Lost { unfinished: true, .. }) => {
                text("this backup is not whole: put another one in its place, or back up again into another folder")
            }
            Error::Catalog(CatalogError::Lost { .. }) => text(
                "move the folder away, and put a backup in its place; with nothing in its place a new warehouse is made, and these files are given up",
            ),
            Error::Catalog(CatalogError::Missing(_)) => text("`restitch init` makes one"),
            Error::Ingest(IngestError::Gone { .. }) => {
                text("give it its first name back with the tool that renamed it (ALTER TABLE … RENAME COLUMN …), or read the table with that tool")
            }
            Error::Evolution { .. } => text("a published column keeps its type; let the new version of the transform give it another name"),
            Error::NotGiven { .. } => {
                text("let the new version give it; one that gives null in it makes the column nullable, and those after it may leave the column out")
            }
            Error::Approval { dataset, partitions } => {
                let first = partitions.first()?;
                Some(format!("naming a partition is the word it waits for: `restitch backfill {dataset} --start {first} --end {first} --reason …`"))
            }
            Error::Recut { .. } => text("declare a dataset of another name for the new cut; readers can change over when it is built"),
            Error::Publish(PublishError::Busy { .. }) => text("wait for it"),
            Error::NotReplayable { kind: "reparse", .. } => {
                text("replay or verify the runs that computed rows; their input is pinned and a reparse leaves it as it was")
            }
            Error::NotReplayable { .. } => text("replay the run that computed the rows"),
            Error::NotUndoable { .. } => text("correct restitch.toml, and reparse the same window again"),
            Error::Reparse(e) => reparse_hint(e),
            _ => self.removal_hint(),
        }
    }

    /// The way out where the folder or the disk refuses.
    fn folder_hint(&self) -> Option<String> {
        use io::ErrorKind::{FileTooLarge, NotFound, PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
        if let Error::Store(e) | Error::Publish(PublishError::Store(e)) = self
            && e.source.kind() == NotFound
        {
            return missing_hint(&e.path.to_string_lossy());
        }
        if let Error::Catalog(CatalogError::Store(e)) = self
            && let file = e.path.display().to_string()
            && e.action == "write"
            && (file.ends_with("-wal") || file.ends_with("-shm"))
        {
            return Some(format!("let the user who runs restitch write {file} (`chmod u+w`): SQLite made it when the catalog could not be written"));
        }
        // The engine says it in one of two ways.
        let told = match self {
            Error::Query(QueryError::Io { source, .. }) => source.to_string(),
            Error::Query(QueryError::Execution { message }) => message.clone(),
            _ => String::new(),
        };
        if told.contains("No such file") {
            return missing_hint(&told);
        }
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(self);
        while let Some(e) = cause {
            if e.downcast_ref::<io::Error>().and_then(io::Error::get_ref).is_some_and(|e| e.is::<DeadLink>()) {
                return Some("bring back what the link leads to (is the disk mounted?), or let it lead to where that is now".into());
            }
            match catalog::met(e).or_else(|| Some(e.downcast_ref::<io::Error>()?.kind())) {
                Some(PermissionDenied | ReadOnlyFilesystem) => {
                    return Some("let the user who runs restitch write into the warehouse: every command does, also one that only reads".into());
                }
                Some(StorageFull | QuotaExceeded | FileTooLarge) => {
                    return Some(
                        "make room (`restitch gc --dry-run` shows what could go), and give the command again; what is published stands".into(),
                    );
                }
                _ => cause = e.source(),
            }
        }
        None
    }

    /// The way out where something was removed on purpose, or is hidden on purpose.
    fn removal_hint(&self) -> Option<String> {
        let text = |s: &str| Some(s.to_owned());
        match self {
            Error::Unsound { bad } => missing_hint(&bad.path),
            Error::Input { bad } if bad.path.starts_with("staging/") => missing_hint(&bad.path),
            Error::Input { .. } => {
                text("nothing was published; bring the file back from a backup (`restitch doctor` names every file that is damaged)")
            }
            Error::Unhealthy { .. } => text(
                "bring back what is damaged from a backup, a transform by `restitch transform add` of the same file; what other tools wrote into a dataset, `backfill` of its partitions replaces (where they deleted rows, after rewrite_data_files of that tool)",
            ),
            Error::Access(e) => Some(e.hint()),
            Error::Waiting { run, approvers, .. } => Some(match approvers.as_slice() {
                [] => format!("approvers in restitch.toml names nobody else; `restitch discard {run}` throws it away"),
                names => format!("`restitch approve {run} --reason TEXT` publishes it, given by {}", names.join(" or ")),
            }),
            Error::RawGone { .. } | Error::BaseGone { .. } => text("what it published stays readable; its manifest and checksums are kept"),
            Error::Unsteady { .. } => text(
                "rows may depend on the rows that were pushed, in their order, and on nothing else: not on where a batch ends, nor on the order of a hash map",
            ),
            Error::RowsGone { run, .. } => Some(format!("`restitch show {run}` has the counts that were taken when it was checked")),
            Error::RawMoved { .. } => text("plan and run again"),
            Error::Expired { .. } => text("`restitch query \"SELECT snapshot_id FROM ducklake_snapshot\"` lists those that can be read"),
            Error::Gc(GcError::Changed) => text("run gc again, and look again"),
            Error::Masked { source_name, readers, .. } => Some(match readers.as_slice() {
                [] => format!("nobody may: payload_readers of [source.{source_name}] names nobody"),
                readers => format!("--grant-payload REASON reads it, if one of its payload_readers asks: {}", readers.join(", ")),
            }),
            Error::NotReader { source_name, readers, .. } => Some(match readers.as_slice() {
                [] => format!("payload_readers of [source.{source_name}] names nobody"),
                readers => format!("payload_readers of [source.{source_name}]: {}", readers.join(", ")),
            }),
            Error::Publish(PublishError::Expired { partition, .. }) => Some(format!(
                "compute the partition again (`restitch backfill DATASET --start {partition} --end {partition}`), and let `restitch gc` expire snapshots: it keeps what can be rolled back to"
            )),
            Error::OtherWord { given, .. } => Some(format!("{given} applies it, or plan again with a word of your own: --grant-payload REASON")),
            Error::Publish(PublishError::Removed { .. }) => text("roll back to a later version, or compute the partition again: `restitch backfill`"),
            Error::Damaged { path, .. } => missing_hint(path),
            Error::Ingest(IngestError::Decode(_)) => None,
            _ => self.folder_hint(),
        }
    }
}

/// The way out where a file of the warehouse is gone, or not what was recorded.
fn missing_hint(path: &str) -> Option<String> {
    let text = |s: &str| Some(s.to_owned());
    match path {
        p if p.contains("staging/") => text("nothing was published; unless the run is being published just now, discard the run, and run again"),
        p if p.contains("transforms/") => text("`restitch transform add` of the same file puts it back"),
        p if p.contains("data/main/") => {
            text("nothing was changed; bring the file back from a backup (`restitch doctor` names every file that is gone or damaged)")
        }
        _ => None,
    }
}

fn decode_hint(e: &DecodeError) -> Option<String> {
    let text = |s: &str| Some(s.to_owned());
    match e {
        DecodeError::Open { file, source } if source.kind() == io::ErrorKind::NotFound => {
            match file.to_string_lossy().contains(['*', '?', '[', '{']) {
                true => text(
                    "the pattern matched no file, so the shell passed it on as it is; `ls` it, and mind quotes, which keep a shell from expanding it",
                ),
                false => text("paths are taken from the folder in which the command runs"),
            }
        }
        DecodeError::Open { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => {
            text("make it readable for the user who runs restitch")
        }
        DecodeError::NotAFile { file, what } if *what == "a folder" => Some(format!("name its files: {}", file.join("*").display())),
        DecodeError::NotAFile { .. } => {
            text("a file is read more than once, to recognise it and to see that nobody changes it: write the data to a file first")
        }
        DecodeError::Corrupt { .. } => text("get the file again whole; nothing of it was landed"),
        DecodeError::Parquet { .. } => text("is the format of the source right, and the file whole? nothing of it was landed"),
        DecodeError::MissingColumn { .. } => {
            text("is it called otherwise in these files? aliases = [\"…\"] names it; for CSV look at the header line and the delimiter too")
        }
        DecodeError::Twice { .. } => text("write the file with one of them, or with another name for the other"),
        DecodeError::WrongType { .. } => text("declare the type that the files have, or write them with the declared one"),
        DecodeError::Unclosed { .. } => text("look at the quotes from that line on; a field with a quote in it is written with two: \"\""),
        _ => None,
    }
}

fn reparse_kind(e: &ReparseError) -> ErrorKind {
    match e {
        ReparseError::Refused { .. } => ErrorKind::Validation,
        ReparseError::Conflict { .. } | ReparseError::Table(IngestError::Conflict { .. }) => ErrorKind::Conflict,
        ReparseError::NotKept { .. } | ReparseError::NoPayload { .. } | ReparseError::NoHeader { .. } => ErrorKind::Usage,
        ReparseError::Table(IngestError::Column { .. } | IngestError::Ids { .. } | IngestError::Gone { .. }) | ReparseError::Decode(_) => {
            ErrorKind::Usage
        }
        _ => ErrorKind::Failed,
    }
}

fn reparse_hint(e: &ReparseError) -> Option<String> {
    Some(match e {
        ReparseError::Refused { first, .. } => format!(
            "a landed record cannot be rejected: on_bad = \"null\" or \"default\" takes bad values, a default takes missing ones, and event time and record id stay as they landed; the first are\n{}",
            first.join("\n")
        ),
        ReparseError::NotKept { .. } => "land the Parquet files again under a source of another name that declares the column".into(),
        ReparseError::NoPayload { .. } => "choose a window whose payloads are kept".into(),
        ReparseError::NoHeader { .. } => "choose a window without records of that file".into(),
        ReparseError::Conflict { .. } | ReparseError::Table(IngestError::Conflict { .. }) => "reparse again; nothing was changed".into(),
        ReparseError::Table(IngestError::Ids { source_name, .. }) => ids_hint(source_name),
        ReparseError::Table(IngestError::Column { .. }) => "give the changed column a new name; the table keeps the old one".into(),
        _ => return None,
    })
}

fn ids_hint(source: &str) -> String {
    format!(
        "declare record_id of [source.{source}], and the mask of its column, as before; for other ids, land the files again under a source of another name"
    )
}

fn window_hint(e: &WindowError) -> Option<String> {
    match e {
        WindowError::Unaligned { whole: (first, last), .. } => Some(format!(
            "whole partitions are swapped: --start {first} --end {last}; for just this window: `restitch backfill … --mode delete-insert`"
        )),
        WindowError::Alone(..) => Some("name both, like --start 2026-05-01 --end 2026-05-02 (both days included)".into()),
        WindowError::Reversed { .. } => Some("dates are inclusive, so --start and --end may be the same day".into()),
        _ => None,
    }
}
