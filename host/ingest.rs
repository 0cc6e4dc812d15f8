//! Files become raw rows: decoded, classified by the watermark, clustered, and landed in one snapshot.
//! Never drops a record without a reject, never changes a row that is there, and lands all of its files or none.
//! The first verb of the main path; `plan` finds what it brought.

mod classify;
mod flow;
mod land;

pub use classify::FileCounts;

use crate::{
    catalog::{
        Catalog, CatalogError, Commit, FileRow, IdEntry, IdPiece, LandedAs, NewIds, QueueRow, SortedIds, StateWrite, Table, TableColumn, View,
        WatermarkRow,
    },
    config::{Format, IdRule, MaxRejects, Project, Source},
    datafile::{DataFileError, Written},
    decode::{self, Chunk, DecodeError, FileIdentity, Identified, Reject, Summary, Unknown},
    id::SnapshotId,
    schema::{Field, envelope},
    store::{GATE, Store, StoreError, each, spread, staging},
    time::{Clock, EventTime, IngestTime},
    watermark::{InputState, Stand, Watermark},
    window::{Calendar, Grain},
};
use classify::{Classified, Classifier, Target};
use flow::{Piece, Writers};
use land::{Buffer, RawShape, RejectWriter};
use std::{path::PathBuf, sync::Arc};

/// Why nothing was landed.
#[derive(Debug, thiserror::Error)]
pub enum IngestError {
    /// A declared column of a raw table is not there any more under its name.
    #[error("column {column:?} of {table} is gone: another tool renamed it, or dropped it")]
    Gone {
        /// The raw table.
        table: String,
        /// The column.
        column: String,
    },
    /// A file cannot be decoded.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// A raw file cannot be written.
    #[error(transparent)]
    File(#[from] DataFileError),
    /// The warehouse's folder refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The catalog refuses.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// Columns do not fit together.
    #[error(transparent)]
    Arrow(#[from] arrow::error::ArrowError),
    /// No file was named.
    #[error("no file to ingest")]
    NoFiles,
    /// More rejects than allowed.
    #[error("{rejected} of {read} records were rejected, more than max_rejects {limit} allows")]
    TooManyRejects {
        /// Rejects so far.
        rejected: u64,
        /// Records so far.
        read: u64,
        /// The bound.
        limit: MaxRejects,
        /// The first few, with file, line and reason.
        first: Vec<String>,
    },
    /// The raw table does not fit the source as declared.
    #[error("column {column:?} of {table} is {found}, but restitch.toml declares {declared}")]
    Column {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// Its type in the table.
        found: String,
        /// Its type in restitch.toml.
        declared: String,
    },
    /// Its records would get other ids than those that are landed: one record would count twice.
    #[error("the ids of records of {source_name} that are landed are made of {was}, but restitch.toml makes them of {declared}")]
    Ids {
        /// The source.
        source_name: String,
        /// What they are made of.
        was: IdRule,
        /// What they would be made of.
        declared: IdRule,
    },
    /// The file changed while it was read.
    #[error("{} changed while it was read", file.display())]
    Changed {
        /// The file.
        file: PathBuf,
    },
    /// Another process moved the watermark or landed the same file in between.
    #[error("the source {source_name:?} changed meanwhile: {what}")]
    Conflict {
        /// The source.
        source_name: String,
        /// What changed.
        what: String,
    },
    /// A watermark cannot be set far beyond the clock: it could never be taken back.
    #[error("{asked} lies more than max_future ({max_future}) ahead of the clock, {clock}")]
    Ahead {
        /// Where it was to go.
        asked: EventTime,
        /// The source's bound.
        max_future: crate::time::Span,
        /// The clock.
        clock: IngestTime,
    },
    /// A watermark cannot be moved back.
    #[error("the watermark of {source_name:?} stands at {now} and cannot move back to {asked}")]
    Backwards {
        /// The source.
        source_name: String,
        /// Where it stands.
        now: EventTime,
        /// Where it was to go.
        asked: EventTime,
    },
}

/// What an ingest did.
#[derive(Clone, Debug)]
pub struct Ingested {
    /// The source.
    pub source: String,
    /// How its files are written.
    pub format: Format,
    /// Whether raw rows keep the original bytes, with the fields that no column asks for.
    pub keeps_payload: bool,
    /// The snapshot that it made; `None` if there was nothing new.
    pub snapshot: Option<SnapshotId>,
    /// Its files, in order.
    pub files: Vec<IngestedFile>,
    /// The watermark before and after.
    pub watermark: (Option<Watermark>, Option<Watermark>),
    /// Late records by partition, and partitions that lost a record to another one.
    pub queued: Vec<QueueRow>,
    /// What could not be done after landing, and is done before the next plan.
    pub note: Option<String>,
    /// The ids of what was landed, if they were asked for and are not too many.
    pub ids: Option<NewIds>,
}

/// What became of one file.
#[derive(Clone, Debug)]
pub struct IngestedFile {
    /// Its path, as given.
    pub path: PathBuf,
    /// If its content was landed before: as what.
    pub already: Option<String>,
    /// Records and their lateness.
    pub counts: FileCounts,
    /// Records landed.
    pub records: u64,
    /// Records rejected.
    pub rejects: u64,
    /// The first few rejects.
    pub first_rejects: Vec<Reject>,
    /// Where the file looks cut, if it does.
    pub cut_at: Option<u64>,
    /// Whether its last record has no line end.
    pub open_ended: bool,
    /// Fields that no column asks for.
    pub unknown: Unknown,
    /// CSV: its header line, and the byte between fields.
    pub header: Option<(String, u8)>,
}

/// Told how far an ingest is.
pub trait Progress {
    /// So many bytes of all files are read.
    fn bytes(&self, done: u64, total: u64);
}

impl Progress for () {
    fn bytes(&self, _: u64, _: u64) {}
}

/// What an ingest is asked.
pub struct Request<'r> {
    /// The files, in the order in which they are to be landed.
    pub files: &'r [PathBuf],
    /// Instead of the source's own bound.
    pub max_rejects: Option<MaxRejects>,
    /// Who asks.
    pub operator: &'r str,
    /// The clock.
    pub clock: Clock,
    /// Files that are decoded at once, and files that are written at once.
    pub workers: usize,
    /// How many ids are kept for the index of ids. If there are more, none is kept.
    pub ids_max: usize,
}

/// Rejects that are kept for the report.
const SHOWN: usize = 5;

/// Lands `request.files` in the raw table of `source`.
///
/// # Errors
/// [`IngestError`]; nothing is landed then.
/// # After a crash
/// Readers see nothing of it. Files in staging or moved but not committed are removed by `recover`.
pub fn ingest(
    store: &Store,
    catalog: &mut Catalog,
    project: &Project,
    source: &Source,
    request: &Request,
    progress: &dyn Progress,
) -> Result<Ingested, IngestError> {
    if request.files.is_empty() {
        return Err(IngestError::NoFiles);
    }
    // One ingest per source at a time: a file is classified by the watermark of the file before it.
    let _turn = store.lock(&format!("source-{}", source.name))?;
    let now = request.clock.now();
    catalog.read(|v| same_ids(&v, source))?;
    let (mut report, new) = identify(catalog, source, request)?;
    if new.is_empty() {
        return Ok(report);
    }
    let owner = format!("ingest-{}", uuid::Uuid::new_v4());
    let claim = {
        let _gate = store.lock(GATE)?;
        store.claim(&owner)?
    };
    let landed = Landing { store, source, request, now, owner: &owner }.land(catalog, project, &mut report, &new, progress);
    store.remove_dir(&staging(&owner)).ok();
    drop(claim);
    landed.map(|()| report)
}

/// Refuses a source whose landed records have ids that are made of something else than is declared now.
///
/// # Errors
/// [`IngestError::Ids`], or the catalog cannot be read.
pub(crate) fn same_ids(view: &View, source: &Source) -> Result<(), IngestError> {
    let declared = source.id_rule();
    match view.landed_as(&source.name)? {
        Some(LandedAs { ids: was, .. }) if was != declared => Err(IngestError::Ids { source_name: source.name.clone(), was, declared }),
        _ => Ok(()),
    }
}

/// A file that is to be landed: its place in the report, and what it was seen as.
type NewFile = (usize, Identified);

/// Hashes the files, and sets aside those whose content is landed.
fn identify(catalog: &mut Catalog, source: &Source, request: &Request) -> Result<(Ingested, Vec<NewFile>), IngestError> {
    catalog.read(|v| v.refuse_lost_source(&source.name))?;
    let mut new: Vec<NewFile> = Vec::new();
    let mut files = Vec::new();
    for (i, (path, found)) in request.files.iter().zip(each(request.files, request.workers, |path| decode::identify(path))).enumerate() {
        let found = found?;
        let content = found.identity.content_digest;
        let landed = catalog.read(|v| v.landed(&source.name, content))?.map(|f| f.path);
        let twice = || new.iter().find(|(_, other)| other.identity.content_digest == content).map(|(j, _)| request.files[*j].display().to_string());
        let already = landed.or_else(twice);
        if already.is_none() {
            new.push((i, found));
        }
        let (counts, path) = (FileCounts::default(), path.clone());
        files.push(IngestedFile {
            path,
            already,
            counts,
            records: 0,
            rejects: 0,
            first_rejects: Vec::new(),
            cut_at: None,
            open_ended: false,
            unknown: Unknown::default(),
            header: None,
        });
    }
    let watermark = catalog.read(|v| v.watermark(&source.name))?.map(|w| w.value);
    let report = Ingested {
        source: source.name.clone(),
        format: source.format,
        keeps_payload: source.keep_payload && source.format != Format::Parquet,
        snapshot: None,
        files,
        watermark: (watermark, watermark),
        queued: Vec::new(),
        note: None,
        ids: None,
    };
    Ok((report, new))
}

struct Landing<'l> {
    store: &'l Store,
    source: &'l Source,
    request: &'l Request<'l>,
    now: IngestTime,
    owner: &'l str,
}

/// All that is ready to be committed.
struct Ready {
    raw: (Table, Vec<Written>),
    rejects: (Table, Option<Written>),
    files: Vec<FileRow>,
    classifier: Classifier,
    ids: Option<Vec<IdPiece>>,
}

impl Landing<'_> {
    fn land(
        &self,
        catalog: &mut Catalog,
        project: &Project,
        report: &mut Ingested,
        new: &[NewFile],
        progress: &dyn Progress,
    ) -> Result<(), IngestError> {
        let (raw, rejects) = catalog.read(|v| {
            let at = v.latest()?;
            Ok::<_, IngestError>((
                table_of(&v, at, &self.source.table(), &raw_fields(self.source))?,
                table_of(&v, at, &self.source.reject_table(), &envelope::reject_fields())?,
            ))
        })?;
        let before = report.watermark.0;
        let (own, targets) = catalog.read(|v| targets(&v, project, self.source, self.now))?;
        let classifier = Classifier::new(self.source.policy, self.now, own, targets);
        let mut ready = self.decode_all(raw, rejects, classifier, report, new, progress)?;
        let ids = ready.ids.take();
        let mut snapshot = SnapshotId(0);
        let moved = self.move_files(catalog, &ready)?;
        let message = format!("ingest {} file(s) into {}", new.len(), self.source.name);
        let mut outcome = Vec::new();
        let watermark = ready.classifier.stands().map(|s| s.watermark);
        let committed = catalog.commit(self.now, self.request.operator, &message, |commit| {
            outcome = self.commit(commit, project, ready, before, &moved)?;
            Ok::<_, IngestError>(())
        });
        match committed {
            Ok((made, ())) => snapshot.0 = made.0,
            Err(e) => {
                // No commit refers to the files.
                crate::recover::withdraw(self.store, catalog, self.owner).ok();
                return Err(e);
            }
        }
        report.snapshot = Some(snapshot);
        report.ids = ids.map(|pieces| NewIds { snapshot, entries: SortedIds::new(&pieces, self.request.workers) });
        report.watermark.1 = watermark;
        report.queued = outcome;
        Ok(())
    }

    fn decode_all(
        &self,
        raw: Table,
        rejects: Table,
        mut classifier: Classifier,
        report: &mut Ingested,
        new: &[NewFile],
        progress: &dyn Progress,
    ) -> Result<Ready, IngestError> {
        let folder = staging(self.owner);
        let shape = RawShape::new(raw, self.source, self.now);
        let rejects = RejectWriter::new(self.store, &folder, rejects, self.source.keep_payload);
        let paths: Vec<PathBuf> = new.iter().map(|(i, _)| report.files[*i].path.clone()).collect();
        let (files, workers) = (paths.iter().map(PathBuf::as_path).collect::<Vec<_>>(), self.request.workers);
        let total: u64 = new.iter().map(|(_, found)| found.identity.size).sum();
        let (written, rejects, ids) = std::thread::scope(|scope| {
            let writers = Writers::start(scope, self.store, &folder, &shape, workers);
            let (buffer, name) = (Buffer::default(), Arc::from(""));
            let ids = (self.request.ids_max > 0).then(IdsSoFar::default);
            let mut state = Landed { landing: self, writers, buffer, rejects, ids, name, seq: 0, read: (0, 0), first: Vec::new() };
            let mut done = 0;
            let job = flow::Job { source: self.source, files: &files, workers, ids: self.request.ids_max > 0 };
            flow::decode_all(&job, &mut |i, piece| {
                let (place, Identified { identity, .. }) = new[i];
                let file = &mut report.files[place];
                match piece {
                    Piece::Chunk(chunk, ids) => {
                        progress.bytes(done + chunk.bytes_read, total);
                        state.keep(&ids);
                        state.take(*chunk, file, &mut classifier)
                    }
                    Piece::End(summary) => {
                        done += identity.size;
                        state.end_file(*summary, file, &mut classifier);
                        Ok(())
                    }
                }
            })?;
            state.end()
        })?;
        for (i, found) in new {
            if !found.is_unchanged(&report.files[*i].path)? {
                return Err(IngestError::Changed { file: report.files[*i].path.clone() });
            }
        }
        let files = new.iter().map(|(i, found)| file_row(&report.files[*i], &found.identity)).collect();
        Ok(Ready { raw: (shape.table, written), rejects, files, classifier, ids })
    }

    /// Makes the files durable and moves them to where the catalog will say they are.
    fn move_files(&self, catalog: &mut Catalog, ready: &Ready) -> Result<Vec<String>, IngestError> {
        let name = self.owner;
        let raw = ready.raw.1.iter().enumerate().map(|(i, w)| (w.path.clone(), ready.raw.0.folder.clone(), format!("{name}-{i}.parquet")));
        let rejects = ready.rejects.1.iter().map(|w| (w.path.clone(), ready.rejects.0.folder.clone(), format!("{name}-rejects.parquet")));
        let moves: Vec<(String, String, String)> = raw.chain(rejects).collect();
        let targets: Vec<String> = moves.iter().map(|(_, folder, name)| format!("{folder}{name}")).collect();
        let pairs: Vec<(&str, &str)> = moves.iter().zip(&targets).map(|((from, _, _), to)| (from.as_str(), to.as_str())).collect();
        move_into_place::<IngestError>(self.store, catalog, self.owner, &pairs)?;
        Ok(moves.into_iter().map(|(_, _, name)| name).collect())
    }

    fn commit(
        &self,
        commit: &mut Commit,
        project: &Project,
        ready: Ready,
        before: Option<Watermark>,
        moved: &[String],
    ) -> Result<Vec<QueueRow>, IngestError> {
        let source = &self.source.name;
        let conflict = |what: String| IngestError::Conflict { source_name: source.clone(), what };
        let stands = commit.view().watermark(source)?.map(|w| w.value);
        if stands != before {
            return Err(conflict(format!("its watermark moved to {}", stands.map_or("none".into(), |w| w.0.to_string()))));
        }
        for file in &ready.files {
            if let Some(landed) = commit.view().landed(source, file.content_digest)? {
                return Err(conflict(format!("{} was landed as {}", file.path, landed.path)));
            }
            commit.put_file(source, file, self.now)?;
        }
        // Rejects have no ids.
        if ready.files.iter().any(|f| f.records > 0) {
            let (_, clear) = self.source.masked_and_clear();
            commit.put_landed_as(source, self.source.id_rule(), clear)?;
        }
        let mut names = moved.iter();
        let (table, written) = ready.raw;
        add(commit, &self.source.table(), &raw_fields(self.source), &table, &written, &mut names)?;
        let (table, written) = ready.rejects;
        add(commit, &self.source.reject_table(), &envelope::reject_fields(), &table, written.as_slice(), &mut names)?;
        if let Some(Stand { watermark, cutoffs }) = ready.classifier.stands().filter(|s| Some(s.watermark) != before) {
            let (snapshot, at, operator) = (commit.snapshot(), self.now, self.request.operator.to_owned());
            commit.put_watermark(source, &WatermarkRow { value: watermark, cutoffs, snapshot, reason: "data".into(), operator, at })?;
        }
        let Classified { slots, queue, lateness, joint } = ready.classifier.finish();
        commit.put_slots(source, slots.into_iter())?;
        commit.put_queue(source, queue.iter().cloned())?;
        commit.put_lateness(source, &lateness)?;
        for t in &joint {
            // A run or an ingest of another source may have closed partitions that records of this one were on time for.
            let now = commit.view().joint(&t.dataset)?.filter(|now| Some(*now) != t.begun);
            if now.zip(t.first_on_time).is_some_and(|(now, first)| first < now.cutoffs.late) {
                return Err(conflict(format!("the dataset {} is complete further than when this began; ingest again", t.dataset)));
            }
            if let Some(stand) = &t.joint {
                commit.put_joint(&t.dataset, stand)?;
            }
        }
        if !joint.is_empty() {
            // What other sources have landed since this began counts: with one after the other it would.
            put_stands(&*commit, &commit.view(), project, self.source, self.now)?;
        }
        commit.clear_intents(self.owner)?;
        Ok(queue)
    }
}

/// Makes files durable and moves each to where the catalog will say it is; what was meant to be moved is written down first.
///
/// # Errors
/// A file cannot be moved: then all are taken back.
pub(crate) fn move_into_place<E: From<CatalogError> + From<StoreError>>(
    store: &Store,
    catalog: &mut Catalog,
    owner: &str,
    moves: &[(&str, &str)],
) -> Result<(), E> {
    let targets: Vec<String> = moves.iter().map(|(_, to)| (*to).to_owned()).collect();
    catalog.record::<_, E>(|r| Ok(r.put_intents(owner, &targets)?))?;
    let moved = spread(moves, |(from, to)| {
        store.sync(from)?;
        store.rename(from, to)
    });
    moved.and_then(|_| store.sync_entries(&targets)).inspect_err(|_| {
        crate::recover::withdraw(store, catalog, owner).ok();
    })?;
    Ok(())
}

/// The ids of an ingest while it lasts: those of small chunks are put together.
#[derive(Default)]
struct IdsSoFar {
    pieces: Vec<IdPiece>,
    few: Vec<IdEntry>,
}

impl IdsSoFar {
    /// Entries that are a piece.
    const PIECE: usize = 8_192;

    fn add(&mut self, ids: &[IdEntry]) {
        self.few.extend_from_slice(ids);
        if self.few.len() >= IdsSoFar::PIECE {
            self.pieces.push(IdPiece::new(&std::mem::take(&mut self.few)));
        }
    }

    fn end(mut self) -> Vec<IdPiece> {
        self.pieces.push(IdPiece::new(&self.few));
        self.pieces
    }
}

type All = (Vec<Written>, (Table, Option<Written>), Option<Vec<IdPiece>>);

/// The records of all files, taken one file after the other.
struct Landed<'l, 'scope> {
    landing: &'l Landing<'l>,
    writers: Writers<'scope>,
    buffer: Buffer,
    rejects: RejectWriter<'l>,
    /// Of all records so far, unless nobody wants them or they are too many.
    ids: Option<IdsSoFar>,
    /// The file's path as its records carry it.
    name: Arc<str>,
    seq: i64,
    read: (u64, u64),
    first: Vec<String>,
}

impl Landed<'_, '_> {
    fn take(&mut self, chunk: Chunk, file: &mut IngestedFile, classifier: &mut Classifier) -> Result<(), IngestError> {
        let name = file.path.display().to_string();
        if *self.name != *name {
            self.name = name.into();
        }
        self.read.0 += chunk.offsets.len() as u64 + chunk.rejects.len() as u64;
        self.rejected(&chunk.rejects, file)?;
        self.rejects.write(&chunk.rejects, &self.name, self.landing.now)?;
        if chunk.offsets.is_empty() {
            return Ok(());
        }
        let flags: Vec<i32> = chunk.event_times.iter().map(|t| classifier.record(EventTime(*t))).collect();
        let first_seq = self.seq;
        self.seq += flags.len() as i64;
        self.buffer.push(chunk, flags, &self.name, first_seq);
        if self.buffer.is_full() { self.writers.write(std::mem::take(&mut self.buffer)) } else { Ok(()) }
    }

    fn keep(&mut self, ids: &[IdEntry]) {
        let max = self.landing.request.ids_max as u64;
        self.ids = self.ids.take().filter(|_| self.read.0 + ids.len() as u64 <= max);
        if let Some(kept) = &mut self.ids {
            kept.add(ids);
        }
    }

    fn end_file(&mut self, summary: Summary, file: &mut IngestedFile, classifier: &mut Classifier) {
        file.counts = classifier.end_file(&file.path.display().to_string());
        (file.records, file.rejects, file.cut_at) = (summary.records, summary.rejects, summary.cut_at);
        (file.open_ended, file.unknown) = (summary.open_ended, summary.unknown);
        file.header = summary.header;
    }

    fn rejected(&mut self, rejects: &[Reject], file: &mut IngestedFile) -> Result<(), IngestError> {
        self.read.1 += rejects.len() as u64;
        for reject in rejects {
            if file.first_rejects.len() < SHOWN {
                file.first_rejects.push(Reject { payload: None, ..reject.clone() });
            }
            if self.first.len() < SHOWN {
                self.first.push(format!("{}:{}: {}", self.name, reject.offset, reject.reason));
            }
        }
        match self.limit() {
            // A share is known at the end only; a number is exceeded at once.
            limit @ MaxRejects::Rows(_) => self.refuse(limit),
            MaxRejects::Share(_) => Ok(()),
        }
    }

    fn limit(&self) -> MaxRejects {
        self.landing.request.max_rejects.unwrap_or(self.landing.source.max_rejects)
    }

    fn refuse(&self, limit: MaxRejects) -> Result<(), IngestError> {
        let (read, rejected) = self.read;
        if !limit.exceeded(rejected, read) {
            return Ok(());
        }
        Err(IngestError::TooManyRejects { rejected, read, limit, first: self.first.clone() })
    }

    /// Returns the raw files, the table and the file of rejects, and the ids.
    fn end(mut self) -> Result<All, IngestError> {
        self.refuse(self.limit())?;
        if !self.buffer.is_empty() {
            self.writers.write(std::mem::take(&mut self.buffer))?;
        }
        let ids = self.ids.map(IdsSoFar::end);
        Ok((self.writers.finish()?, self.rejects.finish()?, ids))
    }
}

fn file_row(file: &IngestedFile, identity: &FileIdentity) -> FileRow {
    FileRow {
        content_digest: identity.content_digest,
        digest: identity.digest,
        path: file.path.display().to_string(),
        size_bytes: identity.size as i64,
        snapshot: SnapshotId(0),
        records: file.records as i64,
        rejects: file.rejects as i64,
        late: (file.counts.repair + file.counts.approval) as i64,
        future: file.counts.future as i64,
        events: file.counts.events,
        header: file.header.clone(),
    }
}

/// How the source stands, and the datasets that late records are queued for: the declared ones, and published ones that this
/// restitch.toml leaves out.
fn targets(view: &View, project: &Project, source: &Source, now: IngestTime) -> Result<(InputState, Vec<Target>), IngestError> {
    let state = |names: &[String]| -> Result<Vec<InputState>, IngestError> {
        let sources: Vec<&Source> = names.iter().filter_map(|n| project.sources.get(n)).collect();
        Ok(view.input_states(&sources, now)?)
    };
    let target = |name: &str, calendar: Calendar, inputs: &[String]| -> Result<Target, IngestError> {
        let others = if inputs.len() > 1 { state(inputs)?.into_iter().filter(|i| i.source != source.name).collect() } else { Vec::new() };
        let joint = if others.is_empty() { None } else { view.joint(name)? };
        Ok(Target { dataset: name.into(), calendar, others, joint, current: None, begun: joint, first_on_time: None })
    };
    let mut targets = Vec::new();
    for d in project.datasets_of(&source.name) {
        targets.push(target(&d.name, d.calendar(), &d.inputs)?);
    }
    for row in view.datasets(&source.name)? {
        let calendar = Grain::parse(&row.grain).zip(row.time_zone.parse().ok()).map(|(grain, zone)| Calendar { grain, zone });
        if let Some(calendar) = calendar.filter(|_| !targets.iter().any(|t| t.dataset == row.name)) {
            targets.push(target(&row.name, calendar, &row.sources)?);
        }
    }
    let own = state(std::slice::from_ref(&source.name))?.pop().unwrap_or(InputState { source: source.name.clone(), stands: None, idle: false });
    Ok((own, targets))
}

/// Writes down how far the datasets of `source` that have other sources as well are complete, as all of them stand now.
fn put_stands(write: &impl StateWrite, view: &View, project: &Project, source: &Source, now: IngestTime) -> Result<(), IngestError> {
    let (own, mut targets) = targets(view, project, source, now)?;
    for t in &mut targets {
        t.follow(&own);
        if let Some(stand) = t.joint {
            write.put_joint(&t.dataset, &stand)?;
        }
    }
    Ok(())
}

/// The raw table's fields: declared columns are nullable there, since a later version of the source may drop one.
pub(crate) fn raw_fields(source: &Source) -> Vec<Field> {
    let envelope = envelope::fields().len();
    source.raw_fields().into_iter().enumerate().map(|(i, f)| Field { nullable: f.nullable || i >= envelope, ..f }).collect()
}

/// Returns the table as it will be: with the ids that a creation or added columns will get.
///
/// # Errors
/// A column is declared with another type than the table has, or in another case; the table is gone.
pub(crate) fn table_of(view: &View, at: SnapshotId, name: &str, fields: &[Field]) -> Result<Table, IngestError> {
    let Some(mut table) = view.table(name, at)? else {
        view.refuse_twin_table(name)?;
        let columns = fields.iter().enumerate().map(|(i, f)| TableColumn { id: i as i64 + 1, field: f.clone() }).collect();
        return Ok(Table { id: -1, name: name.into(), folder: format!("{}main/{name}/", view.data_path()), columns, partition_id: None });
    };
    let mut next = view.last_column_id(table.id)?;
    for field in fields {
        match table.columns.iter().find(|c| c.field.name == field.name) {
            Some(c) if c.field.data_type == field.data_type => {}
            Some(c) => {
                let (found, declared) = (c.field.data_type.to_string(), field.data_type.to_string());
                return Err(IngestError::Column { table: name.into(), column: field.name.clone(), found, declared });
            }
            // Another tool gave it another name, or dropped it: a second one of that name could never be told from it.
            None if view.had_column(&table, &field.name)? => {
                return Err(IngestError::Gone { table: name.into(), column: field.name.clone() });
            }
            None => {
                table.refuse_twin(&field.name)?;
                next += 1;
                table.columns.push(TableColumn { id: next, field: Field { nullable: true, ..field.clone() } });
            }
        }
    }
    Ok(table)
}

/// Adds written files to the table, which is created or widened first if it has to be.
fn add<'n>(
    commit: &mut Commit,
    name: &str,
    fields: &[Field],
    planned: &Table,
    written: &[Written],
    names: &mut impl Iterator<Item = &'n String>,
) -> Result<(), IngestError> {
    let table = widened(commit, name, fields, planned)?;
    let files: Vec<_> = written.iter().zip(names).map(|(w, name)| (name.as_str(), &w.file)).collect();
    commit.add_files(&table, &files)?;
    Ok(())
}

/// Returns the table with all columns that were planned, created or widened if it has to be.
///
/// # Errors
/// It was altered since it was planned.
pub(crate) fn widened(commit: &mut Commit, name: &str, fields: &[Field], planned: &Table) -> Result<Table, IngestError> {
    let at = commit.snapshot();
    let mut table = match commit.view().table(name, at)? {
        Some(table) => table,
        None => commit.create_table(name, fields, None)?,
    };
    for column in planned.columns.iter().filter(|c| table.column_id(&c.field.name).is_none()).collect::<Vec<_>>() {
        commit.add_column(&mut table, &column.field)?;
    }
    if planned.columns.iter().any(|c| table.column_id(&c.field.name) != Some(c.id)) {
        return Err(IngestError::Conflict { source_name: name.into(), what: "its raw table was altered".into() });
    }
    Ok(table)
}

/// Moves the watermark of a source by hand: an idle source says that it is complete up to `to`.
///
/// # Errors
/// It stands later already.
pub fn advance_watermark(
    store: &Store,
    catalog: &mut Catalog,
    project: &Project,
    source: &Source,
    to: EventTime,
    operator: &str,
    clock: Clock,
) -> Result<WatermarkRow, IngestError> {
    let _turn = store.lock(&format!("source-{}", source.name))?;
    let now = clock.now();
    if to > source.policy.future_after(now) {
        return Err(IngestError::Ahead { asked: to, max_future: source.policy.max_future, clock: now });
    }
    catalog.record(|record| {
        let view = record.view();
        let value = Watermark(to);
        if let Some(before) = view.watermark(&source.name)?
            && before.value > value
        {
            return Err(IngestError::Backwards { source_name: source.name.clone(), now: before.value.0, asked: to });
        }
        let cutoffs = value.cutoffs(&source.policy);
        let row = WatermarkRow { value, cutoffs, snapshot: view.latest()?, reason: "manual".into(), operator: operator.into(), at: now };
        record.put_watermark(&source.name, &row)?;
        put_stands(record, &view, project, source, now)?;
        Ok(row)
    })
}
