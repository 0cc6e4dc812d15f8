//! THE MAIN PATH: one function per command, from a raw file to a published, proven partition.
//! Never talks to a terminal and holds no rule of its own: each step is a noun, a door or a verb above.
//! ingest → plan → execute → check → publish, with the manifest written along the way. Start reading here.

mod alike;
mod apply;
mod approve;
mod backup;
mod cascade;
mod conflicts;
mod diff;
mod doctor;
mod error;
mod facts;
mod foreign;
mod grant;
mod landed;
mod modes;
mod outdated;
mod prove;
mod reparse;
mod rollback;
mod run;
mod steady;
mod together;
pub(crate) mod upstream;
mod why;

pub use apply::Applied;
pub use approve::system_user;
pub use backup::Backup;
pub use cascade::{Outcome, Step};
pub use diff::{Diff, DiffRequest, PartitionDiff};
pub use error::{Error, ErrorKind};
pub use outdated::{DatasetVersions, MadeBy};
pub use prove::{LateProof, OthersProof, PartitionProof, Proof, Replayed};
pub use reparse::ReparseRequest;
pub use rollback::{RollbackRequest, RolledBack};
pub use run::{RunRequest, RunResult};
pub use steady::{Candidate, Trial, TrialRequest, Trials};
pub use why::Why;

use crate::{
    access,
    catalog::{Catalog, CatalogError, Dropped, FILE, IdEntry, Landed, PublishedRow, QueueRow, RunRow, TransformRow, View, WatermarkRow},
    config::{ConfigError, Dataset, Limits, MaxRejects, Project, Source, TransformRef},
    decode,
    gc::{self, Collected, Garbage},
    id::{Digest, RunId, SnapshotId},
    ingest::{self, Ingested},
    manifest::{Discarded, Kind, Manifest, WriteMode},
    moves,
    plan::{Facts, Plan, RAW_GONE, Request, Staleness, Unready, plan, stale},
    publish,
    query::{FileTable, QueryError, Rows, Session, StateValue},
    recover,
    reparse::{InClear, in_clear},
    schema::envelope,
    store::{self, Store, staging},
    time::{Clock, EventTime, IngestTime},
    transform::{Cache, Engine, Transform},
    watermark::{InputState, Stand},
    window::Window,
};
use facts::Extent;
use std::{
    cell::OnceCell,
    collections::{HashMap, HashSet},
    path::{Path, PathBuf},
};

/// The name of the file that declares a project.
pub const PROJECT_FILE: &str = "restitch.toml";

/// How a command is to be carried out, whatever it is.
#[derive(Clone, Debug)]
pub struct Options {
    /// Who asks: the operator in manifests.
    pub operator: String,
    /// What proves that, where the operator is a service account.
    pub token: Option<String>,
    /// The clock.
    pub clock: Clock,
    /// Bytes that a run may hold, about.
    pub memory_bytes: usize,
    /// Tasks of a run at once.
    pub workers: usize,
    /// Deaths on purpose, for tests.
    pub faults: store::Faults,
}

/// What was done with a component that was offered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Added {
    /// It was registered.
    New,
    /// It was registered before, and what was stored of it was gone or damaged: it is there again.
    PutBack,
    /// It was there.
    Known,
}

/// An open project with its warehouse.
pub struct Workshop {
    /// What restitch.toml declares.
    pub project: Project,
    /// How commands are carried out.
    pub options: Options,
    /// What dead processes had left, one line each.
    pub findings: recover::Findings,
    store: Store,
    catalog: Catalog,
    engine: OnceCell<Engine>,
    /// The same, for transforms whose instructions are counted.
    metered: OnceCell<Engine>,
    /// What the plan that was made last read of the catalog.
    read: Option<facts::Read>,
}

/// A partition with its state, as `status` shows it.
#[derive(Clone, Debug)]
pub struct PartitionState {
    /// What is published.
    pub published: PublishedRow,
    /// open, closed or final.
    pub state: &'static str,
    /// Whether late records wait for it.
    pub dirty: bool,
    /// Why it is stale; nothing, if it is not.
    pub stale: Vec<Staleness>,
    /// How many records it was computed without, because the transform fails on them.
    pub quarantined: u64,
    /// Whether records wait that it cannot take in any more, because raw of it is gone.
    pub raw_gone: bool,
}

/// What `status` says of a dataset.
#[derive(Clone, Debug)]
pub struct DatasetStatus {
    /// Its name.
    pub name: String,
    /// Its sources, or the datasets that it is made of, as they stand.
    pub inputs: Vec<InputState>,
    /// Whether datasets are its input.
    pub downstream: bool,
    /// What of the datasets before it is not as it should be.
    pub unready: Vec<Unready>,
    /// How far they are complete, all together.
    pub stand: Option<Stand>,
    /// The declared transform.
    pub transform: TransformRef,
    /// Published partitions.
    pub partitions: Vec<PartitionState>,
    /// Late records that wait, by partition.
    pub waiting: Vec<QueueRow>,
    /// Partitions that have records on time and were not built, or not since.
    pub buildable: u64,
    /// What a run would leave as it stands, in words.
    pub gaps: Vec<String>,
}

/// What `status` says of a source.
#[derive(Clone, Debug)]
pub struct SourceStatus {
    /// Its name.
    pub name: String,
    /// Its watermark.
    pub watermark: Option<WatermarkRow>,
    /// What it has landed.
    pub landed: Landed,
    /// Whether it has been silent for longer than `idle_after`.
    pub idle: bool,
    /// Landed records that show what is masked now.
    pub in_clear: Option<InClear>,
    /// How many records happened how long before the watermark as it stood: upper ends in microseconds, records.
    pub lateness: Vec<(i64, i64)>,
}

/// A run with all of its manifest.
#[derive(Debug)]
pub struct ShownRun {
    /// The row, its manifest complete.
    pub row: RunRow,
    /// Why it cannot be computed again, if retention removed what it read.
    pub raw_gone: Option<Dropped>,
}

/// A raw table whose payload a query does not see.
struct HiddenPayload {
    table: String,
    source: String,
    readers: Vec<String>,
}

/// Creates a project file and its warehouse in `root`; a project file that is there is used as it is.
///
/// # Errors
/// There is a warehouse already, or what is left of one, or the folder is not writable.
pub fn init(root: &Path, options: &Options) -> Result<PathBuf, Error> {
    let file = root.join(PROJECT_FILE);
    if !file.exists() {
        store::write_new(&file, TEMPLATE.as_bytes())?;
    }
    let project = read_project(&file)?;
    let store = Store::new(root.join(&project.warehouse)).with_faults(options.faults.clone());
    match Catalog::open(&store) {
        Err(CatalogError::Missing(_)) => make_warehouse(&store, options.clock.now())?,
        opened => opened.and(Err(CatalogError::Exists(store.path(FILE).display().to_string())))?,
    };
    Ok(root.join(&project.warehouse))
}

/// Makes the catalog of a warehouse that has none, unless somebody else does so at the same moment, and opens it.
fn make_warehouse(store: &Store, now: IngestTime) -> Result<Catalog, Error> {
    let _turn = store.lock("init")?;
    match Catalog::open(store) {
        Err(CatalogError::Missing(_)) => {}
        opened => return Ok(opened?),
    }
    refuse_remains(store)?;
    store.create_dir("data/main")?;
    store.create_dir("transforms")?;
    Ok(Catalog::create(store, now)?)
}

/// Refuses a folder whose catalog was lost, or not written yet when a backup died: with a new one, nobody would miss what the old one knew.
fn refuse_remains(store: &Store) -> Result<(), Error> {
    // Where the warehouse is the folder of the project, files that are to be landed may lie there as well.
    let data = store.files_under("data/main")?.iter().filter(|(path, _)| path.ends_with(".parquet")).count();
    let digest = |name: &str| name.strip_suffix(".wasm").is_some_and(|n| n.parse::<Digest>().is_ok());
    let components = store.list("transforms")?.iter().filter(|n| digest(n)).count();
    let unfinished = store.exists(&backup::partial_catalog());
    if data == 0 && components == 0 && !unfinished {
        return Ok(());
    }
    let folder = store.path(FILE).parent().map_or(String::new(), |f| f.display().to_string());
    Err(CatalogError::Lost { folder, data, components, unfinished }.into())
}

/// Returns the project that a file declares.
fn read_project(file: &Path) -> Result<Project, Error> {
    let bytes = match store::read_bytes(file) {
        Err(e) if e.source.kind() == std::io::ErrorKind::NotFound => return Err(Error::NoProject { file: file.into(), source: e }),
        Err(e) => {
            let message = format!("{} cannot be read: {}", file.display(), e.source);
            return Err(Error::Usage { message, hint: Some("it is to be a file that the user who runs restitch may read".into()) });
        }
        Ok(bytes) => bytes,
    };
    let text = std::str::from_utf8(&bytes).map_err(|e| {
        let before = String::from_utf8_lossy(&bytes[..e.valid_up_to()]);
        let (line, column) = (before.matches('\n').count() + 1, before.rsplit('\n').next().map_or(0, |l| l.chars().count()) + 1);
        let (message, hint) = ("here is a byte that is not UTF-8".into(), Some("save the file as UTF-8".into()));
        ConfigError { file: file.display().to_string(), line, column, message, hint }
    })?;
    parse_project(file, text)
}

/// Returns the project that `text` declares, its defaults looked at as an ingest would.
fn parse_project(file: &Path, text: &str) -> Result<Project, Error> {
    let name = file.display().to_string();
    let project = Project::parse(&name, text)?;
    for source in project.sources.values() {
        if let Err((column, reason)) = decode::check_defaults(source) {
            let (line, at) = column.default_at;
            let message = format!("the default of {:?}: {reason}", column.name);
            return Err(ConfigError { file: name, line, column: at, message, hint: None }.into());
        }
    }
    Ok(project)
}

/// What `init` writes where there is no project yet.
const TEMPLATE: &str = include_str!("pipeline/template.toml");

impl Workshop {
    /// Opens the project in `root`, and takes back what dead processes left. A project whose warehouse is not there yet gets one.
    ///
    /// # Errors
    /// restitch.toml is missing or wrong, the warehouse is of another version, or its catalog was lost.
    pub fn open(root: &Path, options: Options) -> Result<Workshop, Error> {
        let file = root.join(PROJECT_FILE);
        let project = read_project(&file)?;
        access::authenticate(&project, &options.operator, options.token.as_deref(), &system_user())?;
        let store = Store::new(root.join(&project.warehouse)).with_faults(options.faults.clone());
        let mut catalog = match Catalog::open(&store) {
            Err(CatalogError::Missing(_)) => make_warehouse(&store, options.clock.now())?,
            opened => opened?,
        };
        let findings = recover::recover(&store, &mut catalog, options.clock.now())?;
        Ok(Workshop { project, options, findings, store, catalog, engine: OnceCell::new(), metered: OnceCell::new(), read: None })
    }

    /// Lands files in the raw table of a source.
    ///
    /// # Errors
    /// See [`ingest::ingest`].
    pub fn ingest(
        &mut self,
        source: &str,
        files: &[PathBuf],
        max_rejects: Option<MaxRejects>,
        progress: &dyn ingest::Progress,
    ) -> Result<Ingested, Error> {
        let source = self.project.source(source)?.clone();
        let follows = self.project.datasets_of(&source.name).any(|d| moves::follows(&self.project, d));
        let Options { operator, clock, workers, memory_bytes, .. } = &self.options;
        let ids_max = if follows { memory_bytes / 4 / size_of::<IdEntry>() } else { 0 };
        let request = ingest::Request { files, max_rejects, operator, clock: *clock, workers: *workers, ids_max };
        let mut landed = ingest::ingest(&self.store, &mut self.catalog, &self.project, &source, &request, progress)?;
        if follows {
            let seen = landed.ids.take();
            // The records are landed, whatever becomes of this: a plan looks for moves again, and fails if it cannot.
            match moves::catch_up(&self.store, &mut self.catalog, &self.project, &source.name, seen, self.options.workers) {
                Ok(queued) => landed.queued.extend(queued),
                Err(e) => landed.note = Some(format!("records that moved between partitions could not be looked for: {e}")),
            }
        }
        Ok(landed)
    }

    /// Returns the last watermarks of a source, newest first.
    ///
    /// # Errors
    /// There is no such source.
    pub fn watermarks(&mut self, source: &str, count: i64) -> Result<Vec<WatermarkRow>, Error> {
        let name = self.project.source(source)?.name.clone();
        Ok(self.catalog.read(|v| v.watermarks(&name, count))?)
    }

    /// Moves a watermark by hand.
    ///
    /// # Errors
    /// It stands later already.
    pub fn advance_watermark(&mut self, source: &str, to: EventTime) -> Result<WatermarkRow, Error> {
        let source = self.project.source(source)?.clone();
        Ok(ingest::advance_watermark(&self.store, &mut self.catalog, &self.project, &source, to, &self.options.operator, self.options.clock)?)
    }

    fn engine(&self) -> Result<&Engine, Error> {
        self.engine_for(&Limits::default())
    }

    /// Returns the engine that holds a transform to `limits`.
    fn engine_for(&self, limits: &Limits) -> Result<&Engine, Error> {
        let cell = if limits.fuel_max.is_some() { &self.metered } else { &self.engine };
        if cell.get().is_none() {
            let engine = if limits.fuel_max.is_some() { Engine::metered(Cache::User) } else { Engine::new(Cache::User) };
            cell.set(engine.map_err(|source| Error::Component { file: "the engine".into(), source })?).ok();
        }
        Ok(cell.get().expect("BUG: it was set"))
    }

    /// Registers a component as name@version, for ever.
    ///
    /// # Errors
    /// It is no transform, or the version is bound to other bytes.
    pub fn add_transform(&mut self, file: &Path) -> Result<(TransformRow, Added), Error> {
        let mut added = self.add_transforms(&[file])?;
        added.pop().ok_or_else(|| Error::Internal("a component was neither registered nor refused".into()))
    }

    /// Registers components, all of them or none, and returns of each its row and what was done.
    ///
    /// # Errors
    /// As for [`Workshop::add_transform`], of the first that is refused.
    pub fn add_transforms(&mut self, files: &[impl AsRef<Path>]) -> Result<Vec<(TransformRow, Added)>, Error> {
        let offered = files.iter().map(|file| self.offered(file.as_ref())).collect::<Result<Vec<_>, _>>()?;
        let refuse = |row: &TransformRow, old: &TransformRow| match old.digest == row.digest {
            true => Ok(()),
            false => Err(Error::Rebound { transform: format!("{}@{}", row.name, row.version), bound: old.digest, offered: row.digest }),
        };
        self.catalog.read(|v| {
            let bound = |row: &TransformRow| v.transform(&row.name, &row.version)?.map_or(Ok(()), |old| refuse(row, &old));
            offered.iter().try_for_each(|(row, _)| bound(row))
        })?;
        // The same bytes again put back what is gone, or was changed.
        let put = |(row, bytes): &(TransformRow, Vec<u8>)| {
            let path = component_path(row.digest);
            let there = self.store.exists(&path);
            let sound = there && self.store.digest(&path)?.0 == row.digest;
            if there && !sound {
                self.store.remove(&path)?;
            }
            self.store.put(&path, bytes).map(|()| if sound { Added::Known } else { Added::PutBack })
        };
        let known = offered.iter().map(put).collect::<Result<Vec<_>, _>>()?;
        self.catalog.record(|r| {
            let register = |((row, _), known): (&(TransformRow, Vec<u8>), Added)| match r.view().transform(&row.name, &row.version)? {
                Some(old) => refuse(row, &old).map(|()| (old, known)),
                None => {
                    r.put_transform(row)?;
                    Ok((row.clone(), Added::New))
                }
            };
            offered.iter().zip(known).map(register).collect()
        })
    }

    /// Looks at a component that is to be registered.
    fn offered(&self, file: &Path) -> Result<(TransformRow, Vec<u8>), Error> {
        let bytes = store::read_bytes(file)?;
        let component = |source| Error::Component { file: file.display().to_string(), source };
        let transform = self.engine()?.load(&bytes).map_err(component)?;
        let d = transform.descriptor();
        let row = TransformRow {
            name: d.name.clone(),
            version: d.version.clone(),
            digest: transform.digest(),
            size_bytes: bytes.len() as i64,
            descriptor: serde_json::to_string(d).map_err(|e| Error::Internal(e.to_string()))?,
            added: (self.options.clock.now(), self.options.operator.clone()),
        };
        Ok((row, bytes))
    }

    /// Returns the registered transforms.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn transforms(&mut self) -> Result<Vec<TransformRow>, Error> {
        Ok(self.catalog.read(|v| v.transforms())?)
    }

    /// Returns one registered transform.
    ///
    /// # Errors
    /// There is none of that name and version.
    pub fn transform_row(&mut self, reference: &TransformRef) -> Result<TransformRow, Error> {
        let rows = self.transforms()?;
        let found = rows.iter().find(|t| t.name == reference.name && t.version == reference.version).cloned();
        found.ok_or_else(|| {
            crate::config::Unknown::new("transform", &reference.to_string(), rows.iter().map(|t| format!("{}@{}", t.name, t.version))).into()
        })
    }

    /// Returns the bytes of a registered component, checked against their hash.
    ///
    /// # Errors
    /// They are gone or damaged.
    pub fn component(&self, digest: Digest) -> Result<Vec<u8>, Error> {
        let path = component_path(digest);
        let bytes = self.store.read(&path)?;
        let found = Digest::of(&bytes);
        if found == digest { Ok(bytes) } else { Err(Error::Damaged { path, found, recorded: digest }) }
    }

    /// Loads pinned bytes, which are checked against their hash, to run under `limits`.
    fn load(&self, digest: Digest, limits: &Limits) -> Result<Transform, Error> {
        let bytes = self.component(digest)?;
        self.engine_for(limits)?.load(&bytes).map_err(|source| Error::Component { file: component_path(digest), source })
    }

    /// As [`Workshop::load`], with the milliseconds it took: from the cache of compiled code, or compiling.
    fn load_timed(&self, digest: Digest, limits: &Limits) -> Result<(Transform, f64), Error> {
        let began = std::time::Instant::now();
        Ok((self.load(digest, limits)?, run::ms(began)))
    }

    /// Returns the plan of a request, and the dataset's declaration that it stands on.
    ///
    /// # Errors
    /// See [`plan::plan`]; the dataset or its transform is not known; the run would be refused for its filter or a parameter.
    pub fn plan(&mut self, request: &RunRequest) -> Result<Plan, Error> {
        apply::refuse_filtered(request)?;
        let dataset = self.dataset(request)?;
        let row = self.transform_row(&dataset.transform)?;
        self.refuse_redeclared(&dataset)?;
        let asked = self.plan_request(request, &dataset)?;
        let (facts, _) = self.facts_of(&dataset, row.digest, request.snapshot, Extent::of(&asked, dataset.calendar()))?;
        let mut plan = plan(&facts, &asked)?;
        let (recipe, _) = self.recipe(request, &dataset, &row, &plan)?;
        plan.gaps.extend(self.lookup_gaps(&recipe)?);
        let frozen = access::not_frozen(&dataset.name, &dataset.access, dataset.calendar(), plan.partitions().map(|p| p.window));
        plan.gaps.extend(frozen.err().map(|e| format!("its publication would be refused: {e}")));
        Ok(plan)
    }

    /// The dataset as declared, with what the request overrides.
    fn dataset(&self, request: &RunRequest) -> Result<Dataset, Error> {
        let mut dataset = self.project.dataset(&request.dataset)?.clone();
        if let Some(transform) = &request.transform {
            dataset.transform = transform.clone();
        }
        dataset.params.extend(request.params.iter().cloned());
        Ok(dataset)
    }

    fn plan_request(&self, request: &RunRequest, dataset: &Dataset) -> Result<Request, Error> {
        let calendar = dataset.calendar();
        let window = calendar.resolve_typed(request.start.as_deref(), request.end.as_deref())?;
        let frozen_before = dataset.access.frozen_before.filter(|_| request.kind != Kind::Backfill);
        modes::refuse(request, dataset)?;
        self.refuse_cut_input(dataset, request.write_mode(), window)?;
        Ok(Request {
            kind: request.kind,
            window,
            only: request.only,
            write: request.write_mode(),
            frozen_before,
            partitions_max: request.partitions_max,
            bytes_max: request.bytes_max,
        })
    }

    /// Publishes a run that was staged.
    ///
    /// # Errors
    /// It is not staged; a staged file was changed; the ground moved.
    pub fn publish(&mut self, run: RunId) -> Result<Manifest, Error> {
        let operator = self.options.operator.clone();
        self.publish_staged(run, &[&operator])
    }

    /// Throws a staged or rejected run away.
    ///
    /// # Errors
    /// It is neither.
    pub fn discard(&mut self, run: RunId) -> Result<Manifest, Error> {
        let _claim = self.claim(&run.to_string())?.ok_or(publish::PublishError::Busy { run })?;
        let mut manifest = self.show(run)?.row.manifest;
        if !crate::catalog::is_pending(&manifest) {
            return Err(publish::PublishError::status(&manifest, "staged or rejected").into());
        }
        let now = self.options.clock.now();
        manifest.discard(Discarded { operator: self.options.operator.clone(), at_us: now.0, rule: None });
        self.catalog.record(|r| crate::catalog::StateWrite::put_run(r, &manifest, Some(now)))?;
        self.store.remove_dir(&staging(&run.to_string()))?;
        Ok(manifest)
    }

    /// Returns what `gc` would remove: of each partition the versions before the last `keep` (without a number as restitch.toml says), raw
    /// past its retention, and staged or rejected runs past `staged_keep`.
    ///
    /// # Errors
    /// The catalog or a raw file cannot be read.
    pub fn garbage(&mut self, keep: Option<u64>) -> Result<Garbage, Error> {
        // A partition that lost a record is wanted: first it has to be known.
        let followed = |s: &&String| self.project.datasets_of(s).any(|d| moves::follows(&self.project, d));
        let sources: Vec<String> = self.project.sources.keys().filter(followed).cloned().collect();
        for source in &sources {
            moves::catch_up(&self.store, &mut self.catalog, &self.project, source, None, self.options.workers)?;
        }
        let keep = keep.or(self.project.keep_versions);
        let now = self.options.clock.now();
        Ok(self.catalog.read(|v| gc::look(&v, v.latest()?, &self.project, keep, now))?)
    }

    /// Removes what was shown.
    ///
    /// # Errors
    /// See [`gc::collect`].
    pub fn collect(&mut self, keep: Option<u64>, shown: &Garbage) -> Result<Collected, Error> {
        let keep = keep.or(self.project.keep_versions);
        let now = self.options.clock.now();
        Ok(gc::collect(&self.store, &mut self.catalog, &self.project, keep, shown, &self.options.operator, now)?)
    }

    /// Returns the last runs, newest first.
    ///
    /// # Errors
    /// There is no such dataset.
    pub fn runs(&mut self, dataset: Option<&str>, count: i64) -> Result<Vec<RunRow>, Error> {
        if let Some(dataset) = dataset {
            self.project.dataset(dataset)?;
        }
        Ok(self.catalog.read(|v| v.runs(dataset, count))?)
    }

    /// Returns a run with its whole manifest.
    ///
    /// # Errors
    /// There is no such run.
    pub fn show(&mut self, run: RunId) -> Result<ShownRun, Error> {
        self.catalog.read(|v| shown(&v, run))
    }

    /// Returns the state of one dataset, or of all.
    ///
    /// # Errors
    /// There is no such dataset.
    pub fn status(&mut self, dataset: Option<&str>) -> Result<(Vec<SourceStatus>, Vec<DatasetStatus>), Error> {
        let chosen: Vec<Dataset> = match dataset {
            Some(name) => vec![self.project.dataset(name)?.clone()],
            None => self.project.datasets.values().cloned().collect(),
        };
        let now = self.options.clock.now();
        let used = |s: &&Source| dataset.is_none() || chosen.iter().any(|d| self.project.reads(d, s));
        let mut sources = Vec::new();
        for source in self.project.sources.values().filter(used) {
            let row = self.catalog.read(|v| {
                let idle = v.input_states(&[source], now)?.iter().any(|s| s.idle);
                let (watermark, landed) = (v.watermark(&source.name)?, v.landed_totals(&source.name)?);
                let (lateness, in_clear) = (v.lateness(&source.name)?, in_clear(&v, source)?);
                Ok::<_, CatalogError>(SourceStatus { name: source.name.clone(), watermark, landed, idle, in_clear, lateness })
            })?;
            sources.push(row);
        }
        let mut datasets = Vec::new();
        for d in chosen {
            let registered = self.transform_row(&d.transform).map(|t| t.digest);
            let digest = *registered.as_ref().unwrap_or(&Digest([0; 32]));
            let (facts, _) = self.facts_of(&d, digest, None, Extent::Behind)?;
            let built = plan(
                &facts,
                &Request {
                    kind: Kind::Run,
                    window: None,
                    only: None,
                    write: WriteMode::Overwrite,
                    frozen_before: d.access.frozen_before,
                    partitions_max: None,
                    bytes_max: None,
                },
            )?;
            let mut status = dataset_status(&d, facts, built, registered.is_ok());
            let counts = self.catalog.read(|v| v.quarantine_counts(&d.name))?;
            status.partitions.iter_mut().for_each(|p| p.quarantined = counts.get(&p.published.partition).copied().unwrap_or(0));
            datasets.push(status);
        }
        Ok((sources, datasets))
    }

    /// Runs SQL over the tables of the lake at a snapshot, and over restitch's own.
    ///
    /// # Errors
    /// The SQL is wrong, or it is not a query.
    pub fn query(&mut self, sql: &str, at: Option<SnapshotId>) -> Result<Rows, Error> {
        self.query_granted(sql, at, None)
    }

    /// As [`Workshop::query`]; with a reason, payloads of masked sources are read by the word of the operator, which is written down first.
    ///
    /// # Errors
    /// The operator is none of the source's `payload_readers`; the SQL is wrong, or it is not a query.
    pub fn query_granted(&mut self, sql: &str, at: Option<SnapshotId>, reason: Option<&str>) -> Result<Rows, Error> {
        let hidden = self.hidden_payloads(sql, reason)?;
        let owner = format!("query-{}", uuid::Uuid::new_v4());
        let claim = self.claim(&owner)?;
        let rows = self.query_spilling(sql, at, &staging(&owner), &hidden);
        self.store.remove_dir(&staging(&owner)).ok();
        drop(claim);
        // The column is not there for this query, and whoever names it should know why.
        let named = |table: &&HiddenPayload| grant::names_payload(sql) && grant::names_table(sql, &table.table);
        match (rows, hidden.iter().find(named)) {
            (Err(Error::Query(QueryError::Sql { message, .. })), Some(h)) if grant::names_payload(&message) => Err(Error::Masked {
                what: format!("{} of {} is asked for", envelope::PAYLOAD, h.table),
                source_name: h.source.clone(),
                readers: h.readers.clone(),
            }),
            (rows, _) => rows,
        }
    }

    /// The raw tables whose payload this query does not see. What it sees by somebody's word is written down.
    fn hidden_payloads(&mut self, sql: &str, reason: Option<&str>) -> Result<Vec<HiddenPayload>, Error> {
        let mut hidden = Vec::new();
        let mut read = Vec::new();
        for name in self.catalog.read(|v| v.table_names(v.latest()?))?.into_iter().filter(|n| n.starts_with("raw_")) {
            let source = self.project.sources.values().find(|s| [s.table(), s.reject_table()].contains(&name));
            if source.is_some_and(|s| !s.is_masked()) {
                continue;
            }
            match (source, reason) {
                (Some(source), Some(reason)) if grant::names_table(sql, &name) => {
                    grant::grant(source, &self.options.operator, reason)?;
                    read.push(name);
                }
                // Of a source that is not declared here, nobody knows what it masks.
                (source, _) => hidden.push(HiddenPayload {
                    table: name.clone(),
                    source: source.map_or(name, |s| s.name.clone()),
                    readers: source.map(|s| s.payload_readers.clone()).unwrap_or_default(),
                }),
            }
        }
        if let Some(reason) = reason.filter(|_| !read.is_empty()) {
            let now = self.options.clock.now();
            self.catalog.record(|r| r.put_payload_read(now, &self.options.operator, &read.join(", "), reason, sql))?;
        }
        Ok(hidden)
    }

    fn query_spilling(&mut self, sql: &str, at: Option<SnapshotId>, folder: &str, hidden: &[HiddenPayload]) -> Result<Rows, Error> {
        let session = Session::new(Some(self.options.memory_bytes), Some(&self.store.path(folder)))?.at(self.options.clock.now());
        let store = self.store.clone();
        let lower = sql.to_lowercase();
        let mentioned = |name: &str| lower.contains(&name.to_lowercase()) || lower.contains("information_schema") || lower.contains("show tables");
        self.catalog.read(|v| {
            let latest = v.latest()?;
            let at = at.unwrap_or(latest);
            if at > latest {
                return Err(Error::Snapshot { asked: at, latest });
            }
            if !v.has_snapshot(at)? {
                return Err(Error::Expired { asked: at });
            }
            for name in v.table_names(at)? {
                // A table that is not asked for may be one that only its own tool reads.
                let table = match v.table(&name, at) {
                    Ok(Some(table)) => table,
                    Ok(None) => continue,
                    Err(_) if !mentioned(&name) => continue,
                    Err(e) => return Err(e.into()),
                };
                let files = match v.files(&table, at, None) {
                    Err(_) if !mentioned(&name) => continue,
                    files => files?,
                };
                if files.iter().any(|f| f.partial_max.is_some_and(|m| m > at)) {
                    return Err(Error::Merged { table: name, at });
                }
                let files = files.iter().map(|f| (store.path(&f.path), f.bytes as u64)).collect();
                let mut fields = table.fields();
                fields.retain(|f| f.name != envelope::PAYLOAD || !hidden.iter().any(|h| h.table == name));
                session.register_files(FileTable { name, fields, files })?;
            }
            for name in v.state_tables()?.into_iter().filter(|n| mentioned(n)) {
                let (columns, rows) = v.state_table(&name)?;
                let rows = rows.into_iter().map(|r| r.into_iter().map(state_value).collect()).collect();
                session.register_rows(&name, &columns, rows)?;
            }
            Ok::<_, Error>(())
        })?;
        Ok(session.sql(sql)?)
    }
}

/// Returns the window of the partition of that name.
fn partition_window(dataset: &Dataset, partition: &str) -> Result<Window, Error> {
    let calendar = dataset.calendar();
    calendar.parse(partition).ok_or_else(|| Error::NoPartition { dataset: dataset.name.clone(), partition: partition.into(), grain: dataset.grain })
}

fn shown(v: &View, run: RunId) -> Result<ShownRun, Error> {
    let Some(mut row) = v.run(run)? else { return Err(Error::NoRun { run }) };
    row.manifest.partitions = v.run_partitions(run)?;
    row.manifest.checks = v.checks(run)?;
    let raw_gone = gc::missing_raw(v, &row.manifest)?;
    Ok(ShownRun { row, raw_gone })
}

fn dataset_status(d: &Dataset, facts: Facts, built: Plan, registered: bool) -> DatasetStatus {
    let state = |p: &PublishedRow| match facts.stand.map(|s| s.cutoffs) {
        Some(c) if p.window.end() <= c.approval => "final",
        Some(c) if p.window.end() <= c.late => "closed",
        _ => "open",
    };
    let read: HashMap<EventTime, SnapshotId> = facts.published.iter().map(|p| (p.window.start(), p.input_snapshot)).collect();
    let waits = |q: &&QueueRow| q.waits(read.get(&q.window.start()).copied());
    let waiting: Vec<QueueRow> = facts.queue.iter().filter(waits).cloned().collect();
    let dirty: HashSet<EventTime> = waiting.iter().map(|q| q.window.start()).collect();
    let gone: HashSet<EventTime> = built.waiting.iter().filter(|w| w.tier == RAW_GONE).map(|w| w.window.start()).collect();
    // A transform that is not registered makes nothing stale yet.
    let mut stale = stale(&facts).into_iter().collect::<HashMap<_, _>>();
    stale.values_mut().for_each(|why| why.retain(|w| registered || *w != Staleness::Transform));
    let partition = |p: PublishedRow| {
        let start = p.window.start();
        let (state, stale) = (state(&p), stale.remove(&start).unwrap_or_default());
        PartitionState { published: p, state, dirty: dirty.contains(&start), stale, quarantined: 0, raw_gone: gone.contains(&start) }
    };
    let partitions = facts.published.into_iter().map(partition).collect();
    let Facts { inputs, stand, downstream, unready, .. } = facts;
    let (buildable, gaps) = (built.partition_count(), built.gaps);
    DatasetStatus { name: d.name.clone(), inputs, downstream, unready, stand, transform: d.transform.clone(), partitions, waiting, buildable, gaps }
}

fn state_value(value: crate::catalog::SqlValue) -> StateValue {
    use crate::catalog::SqlValue;
    match value {
        SqlValue::Null => StateValue::Null,
        SqlValue::Integer(i) => StateValue::Int(i),
        SqlValue::Real(f) => StateValue::Real(f),
        SqlValue::Text(t) => StateValue::Text(t),
        SqlValue::Blob(b) => StateValue::Blob(b),
    }
}

fn component_path(digest: Digest) -> String {
    format!("transforms/{digest}.wasm")
}
