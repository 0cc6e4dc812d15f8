//! A run, from its request to its manifest: plan, compute, check, and publish or stage or keep nothing.
//! Never publishes what a check refused, and leaves a manifest however it ends.

use super::{Applied, Error, Extent, Workshop, approve, doctor::with_sound_input, grant, modes, prove::without_checks, upstream};
use crate::{
    access::Approval,
    catalog::{CatalogError, LiveFile, PublishedRow, RecordedFile, StateWrite, Table, TableColumn, View},
    check::{self, Checked, Subject},
    config::{CheckKind, Dataset, Limits, Project, TransformRef, nearest},
    datafile::Written,
    execute::{self, Grouping, Job, LeftOut, Progress, cut, execute, output_fields, read_lookup},
    id::{Digest, RunId, SnapshotId},
    manifest::{
        BaseRecord, InputFile, Kind, Manifest, Mode, PartitionRecord, Recipe, Status, Timings, UpstreamRecord, Validation, Versions, WriteMode,
        checksum_of,
    },
    moves::{self, Moved},
    plan::{BoundPlan, Plan, PlannedPartition, Reason, unsettled},
    publish::{self, PublishError},
    query::{Aggregate, Filter},
    raw::{BATCH_ROWS, RawInput},
    schema::{DataType, Field, envelope},
    store::{Claim, GATE, Store, staged_list, staging},
    time::{EventTime, IngestTime},
    transform::{CONTRACT, Descriptor, Input, Transform, TransformError},
    watermark::Stand,
    window::Window,
};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Instant,
};

/// What a run is asked.
#[derive(Clone, Debug)]
pub struct RunRequest {
    /// run, repair or backfill.
    pub kind: Kind,
    /// The dataset.
    pub dataset: String,
    /// Start of the window: a date, a partition or an instant.
    pub start: Option<String>,
    /// End of the window: a date or a partition (inclusive), or an instant (exclusive).
    pub end: Option<String>,
    /// Only partitions with this reason.
    pub only: Option<Reason>,
    /// Instead of the declared transform.
    pub transform: Option<TransformRef>,
    /// How far it goes, and how it writes.
    pub mode: Mode,
    /// How a dry run or a staged run would write; else `mode` says it.
    pub write: WriteMode,
    /// What failed checks do.
    pub validation: Validation,
    /// SQL condition on input records.
    pub filter: Option<String>,
    /// The version of the warehouse to read, instead of the latest.
    pub snapshot: Option<SnapshotId>,
    /// Why, for the manifest.
    pub reason: Option<String>,
    /// Why payloads of masked sources are to be read, if they are: the operator's word for it.
    pub grant_payload: Option<String>,
    /// The seed that the transform sees.
    pub seed: u64,
    /// Parameters that override the declared ones.
    pub params: Vec<(String, String)>,
    /// More partitions are refused.
    pub partitions_max: Option<u64>,
    /// More bytes to read are refused.
    pub bytes_max: Option<u64>,
}

/// What came of a run.
#[derive(Debug)]
pub struct RunResult {
    /// What was planned.
    pub plan: Plan,
    /// The manifest; `None` if there was nothing to do.
    pub manifest: Option<Manifest>,
}

/// Everything that computing a recipe needs, loaded and compiled.
pub(super) struct Prepared {
    pub(super) recipe: Recipe,
    pub(super) transform: Transform,
    pub(super) raw: Vec<RawInput>,
    /// What was recorded of every file that is read: of the windowed sources, and of the lookups.
    pub(super) files: Vec<RecordedFile>,
    /// The published partitions of other datasets that are read.
    pub(super) upstream: Vec<UpstreamRecord>,
    moved: Vec<Moved>,
    lookups: Vec<(u32, Vec<arrow::array::RecordBatch>)>,
    filter: Option<Filter>,
    balances: Vec<(Aggregate, Aggregate)>,
}

impl Workshop {
    /// Plans and carries out a run: [`Workshop::bind`], then [`Workshop::carry_out`].
    ///
    /// # Errors
    /// Many, see [`Error`]; nothing was published then. A run that began has a manifest that says how it ended.
    pub fn run(&mut self, request: &RunRequest, progress: &dyn Progress) -> Result<RunResult, Error> {
        let bound = self.bind(request)?;
        self.carry_out(&bound, progress)
    }

    /// Carries out a plan: what was shown is what is done.
    ///
    /// # Errors
    /// Many, see [`Error`]; nothing was published then. A run that began has a manifest that says how it ended.
    /// # After a crash
    /// The next command marks the run as failed and removes what it staged; see ARCHITECTURE.md.
    pub fn carry_out(&mut self, bound: &BoundPlan, progress: &dyn Progress) -> Result<RunResult, Error> {
        self.execute_plan(bound, None, progress)
    }

    /// As [`Workshop::carry_out`]; `saved` is the digest of a plan that comes from a file.
    pub(super) fn execute_plan(&mut self, bound: &BoundPlan, saved: Option<Digest>, progress: &dyn Progress) -> Result<RunResult, Error> {
        let plan = bound.plan()?;
        if plan.ranges.is_empty() {
            let waiting: Vec<String> = plan.waiting.iter().filter(|w| w.tier == "approval").map(|w| w.partition.clone()).collect();
            if bound.kind == Kind::Repair && !waiting.is_empty() {
                return Err(Error::Approval { dataset: bound.recipe.dataset.clone(), partitions: waiting });
            }
            self.judge_sources(bound)?;
            return Ok(RunResult { plan, manifest: None });
        }
        let began = Instant::now();
        // The recipe decides; what is checked is what is declared now.
        let checks = self.project.dataset(&bound.recipe.dataset)?.checks.clone();
        let dataset = Dataset { checks, ..without_checks(&bound.recipe)? };
        let hull = plan.hull().ok_or_else(|| Error::Internal("a plan with partitions has no window".into()))?;
        let (facts, _) = self.facts_planned(&dataset, bound.recipe.transform_digest, bound.recipe.input_snapshot, Extent::Inside(hull))?;
        let changes = bound.moved(&plan, &facts)?;
        if !changes.is_empty() {
            return Err(Error::Moved { dataset: dataset.name, changes });
        }
        self.judge_sources(bound)?;
        let (transform, compile_ms) = self.load_timed(bound.recipe.transform_digest, &bound.recipe.limits)?;
        grant::still_hold(&self.project, &dataset, transform.descriptor(), bound, &self.options.operator)?;
        let granted = |name: &str| bound.grants.iter().any(|g| g.source == name);
        let masked = self.project.sources.values().any(|s| dataset.inputs.contains(&s.name) && s.is_masked() && !granted(&s.name));
        let pinned = self.pin_upstream(&bound.recipe, hull)?;
        let mut prepared = self.prepare(bound.recipe.clone(), transform, &dataset, (hull, pinned), masked)?;
        if bound.validation == Validation::Off {
            prepared.balances.clear();
        }
        let records = upstream::expected(&prepared.recipe, &prepared.upstream, &facts.slots);
        let partitions: Vec<PlannedPartition> = plan.partitions().collect();
        let prior: Vec<PublishedRow> = facts.published.iter().filter(|p| plan.covers(p.window.start())).cloned().collect();
        let windows: Vec<Window> = partitions.iter().map(|p| p.window).collect();
        let asked = self.admit(&dataset.name, bound.mode, &windows, &facts)?;
        let unsettled = unsettled(&facts);
        drop(facts);
        let (mut manifest, claim) = self.begin(bound, saved, &prepared, &partitions)?;
        // They are written; until they are computed nobody asks for them.
        manifest.partitions = Vec::new();
        let rules = self.project.dataset(&dataset.name)?.access.clone();
        manifest.approval = asked.map(|why| Approval::ask(why, &rules, self.options.clock.now()));
        manifest.timings.compile_ms = compile_ms;
        manifest.timings.prepare_ms = ms(began) - compile_ms;
        let attempt = Attempt {
            workshop: self,
            dataset: &dataset,
            prepared: &prepared,
            partitions: &partitions,
            records: &records,
            prior: &prior,
            unsettled: &unsettled,
        };
        let done = attempt.go(&mut manifest, progress);
        if manifest.partitions.is_empty() {
            manifest.partitions = planned(&partitions);
        }
        manifest.timings.settle(ms(began), self.options.workers);
        let ended = self.end(manifest, done);
        // Only now: a run that says running and has no claim is taken for dead.
        drop(claim);
        let manifest = ended?;
        if manifest.status == Status::Staged && manifest.mode != Mode::Stage {
            return Err(approve::waiting(&manifest, &rules));
        }
        Ok(RunResult { plan, manifest: Some(manifest) })
    }

    /// Writes down how far the sources of a dataset are complete together: views and retention go by what was found last, also by a run that has
    /// nothing to do. A dry run keeps nothing, not even that: it may be asked of another day.
    fn judge_sources(&mut self, bound: &BoundPlan) -> Result<(), Error> {
        let dataset = self.project.dataset(&bound.recipe.dataset)?;
        if dataset.inputs.len() < 2 || bound.mode == Mode::DryRun {
            return Ok(());
        }
        let sources = dataset.inputs.iter().map(|i| self.project.source(i)).collect::<Result<Vec<_>, _>>()?;
        let now = self.options.clock.now();
        let stand = self.catalog.read(|v| Ok::<_, CatalogError>(Stand::of_all(&v.input_states(&sources, now)?, v.joint(&dataset.name)?)))?;
        if let Some(stand) = stand {
            self.catalog.record(|r| r.put_joint(&dataset.name, &stand))?;
        }
        Ok(())
    }

    /// A published dataset keeps its cut: daily and monthly partitions side by side would count rows twice.
    pub(super) fn refuse_recut(&mut self, dataset: &Dataset) -> Result<(), Error> {
        let Some(was) = self.catalog.read(|v| v.dataset(&dataset.name))? else { return Ok(()) };
        let declared = (dataset.input_names(), dataset.grain.to_string(), dataset.time_zone.name());
        let before = if was.upstream.is_empty() { &was.sources } else { &was.upstream };
        if (before.as_slice(), was.grain.clone(), was.time_zone.as_str()) == declared && was.upstream.is_empty() == dataset.upstream.is_empty() {
            return Ok(());
        }
        let published = format!("by {} in {} from {}", was.grain, was.time_zone, before.join(", "));
        Err(Error::Recut {
            dataset: dataset.name.clone(),
            published,
            declared: format!("by {} in {} from {}", declared.1, declared.2, declared.0.join(", ")),
        })
    }

    /// The lookups that a run does not read whole because retention removed records of theirs, in words.
    pub(super) fn lookup_gaps(&mut self, recipe: &Recipe) -> Result<Vec<String>, Error> {
        let mut gaps = Vec::new();
        for (input, source) in &recipe.lookups {
            let dropped = self.catalog.read(|v| v.dropped(source, recipe.input_snapshot))?;
            gaps.extend(dropped.last().map(|d| format!("lookup {input} is not whole: {d}")));
        }
        Ok(gaps)
    }

    /// Loads and compiles what a recipe names. With `masked`, SQL does not see the payloads of the windowed sources.
    pub(super) fn prepare(
        &mut self,
        recipe: Recipe,
        transform: Transform,
        dataset: &Dataset,
        (hull, upstream): (Window, Vec<UpstreamRecord>),
        masked: bool,
    ) -> Result<Prepared, Error> {
        let (raw, moved) =
            if recipe.upstream.is_empty() { self.raw_inputs(&recipe, hull)? } else { (self.upstream_inputs(&recipe, &upstream)?, Vec::new()) };
        let mut fields = raw[0].table.fields();
        fields.retain(|f| !(masked && f.name == envelope::PAYLOAD));
        let filter = recipe.filter.as_deref().map(|sql| Filter::parse(sql, &fields)).transpose()?;
        let output = transform.descriptor().output.clone();
        let mut balances = Vec::new();
        for c in &dataset.checks {
            if let CheckKind::Balance { input, output: sum, .. } = &c.kind {
                let wrong = |side| {
                    let (check, dataset) = (c.name.clone(), dataset.name.clone());
                    move |source| Error::Expression { side, check, dataset, source }
                };
                let of_input = Aggregate::parse(input, &fields).map_err(wrong("input"))?;
                balances.push((of_input, Aggregate::parse(sum, &output).map_err(wrong("output"))?));
            }
        }
        let mut files: Vec<LiveFile> = raw.iter().flat_map(|r| &r.files).filter(|f| RawInput::may_hold(f, &[hull])).cloned().collect();
        let mut lookups = Vec::new();
        for (i, input) in transform.descriptor().inputs.iter().enumerate().skip(1) {
            let source = recipe.lookups.get(&input.name).ok_or_else(|| Error::Internal(format!("the lookup {:?} was not checked", input.name)))?;
            let raw = self.raw_input(source, recipe.input_snapshot)?;
            lookups.push((i as u32, read_lookup(&self.store, &raw, &input.fields)?));
            files.extend(raw.files);
        }
        let files = self.on_record(&files)?;
        Ok(Prepared { recipe, transform, raw, files, upstream, moved, lookups, filter, balances })
    }

    /// The windowed input, each table with what moved into or out of the window, where the dataset follows its records. A source that
    /// has not landed anything yet has nothing to read, as long as another one has.
    fn raw_inputs(&mut self, recipe: &Recipe, hull: Window) -> Result<(Vec<RawInput>, Vec<Moved>), Error> {
        let (mut raw, mut moved) = (Vec::new(), Vec::new());
        let mut missing = None;
        for source in &recipe.sources {
            match self.raw_input(source, recipe.input_snapshot) {
                Ok(input) => raw.push(input),
                Err(e @ Error::NoInput { .. }) => {
                    missing = missing.or(Some(e));
                    continue;
                }
                Err(e) => return Err(e),
            }
            if recipe.follows {
                moves::catch_up(&self.store, &mut self.catalog, &self.project, source, None, self.options.workers)?;
                moved.push(self.catalog.read(|v| Moved::read(&v, source, hull, recipe.input_snapshot))?);
            } else {
                moved.push(Moved::default());
            }
        }
        match missing {
            Some(e) if raw.is_empty() => Err(e),
            _ => Ok((raw, moved)),
        }
    }

    fn raw_input(&mut self, source: &str, snapshot: SnapshotId) -> Result<RawInput, Error> {
        let name = format!("raw_{source}");
        self.catalog.read(|v| {
            let table = v.table(&name, snapshot)?.ok_or_else(|| Error::NoInput { source_name: source.into() })?;
            let files = v.files(&table, snapshot, table.column_id(envelope::EVENT_TIME))?;
            Ok(RawInput { table, files, snapshot, published: None })
        })
    }

    fn begin(
        &mut self,
        bound: &BoundPlan,
        saved: Option<Digest>,
        prepared: &Prepared,
        partitions: &[PlannedPartition],
    ) -> Result<(Manifest, Claim), Error> {
        let windows: Vec<Window> = partitions.iter().map(|p| prepared.recipe.write.part_of(p.window)).collect();
        let inputs = prepared.raw.iter().flat_map(|r| &r.files).filter(|f| RawInput::may_hold(f, &windows)).map(input_file).collect();
        let versions = self.versions(&prepared.recipe.limits)?;
        let started = self.options.clock.now();
        let manifest = Manifest {
            run: RunId(0),
            kind: bound.kind,
            status: Status::Running,
            mode: bound.mode,
            validation: bound.validation,
            operator: self.options.operator.clone(),
            reason: bound.reason.clone(),
            asked: bound.asked.clone(),
            window: bound.window.clone(),
            only: bound.only.map(|o| o.name().to_owned()),
            recipe: prepared.recipe.clone(),
            plan_digest: saved,
            base_snapshot: bound.base_snapshot,
            published_snapshot: None,
            published_by: None,
            published_us: None,
            of_run: None,
            inputs,
            partitions: planned(partitions),
            checks: Vec::new(),
            checksum: None,
            timings: Timings::default(),
            versions,
            grants: bound.grants.clone(),
            approval: None,
            gaps: bound.gaps.clone(),
            log: Vec::new(),
            error: None,
            discarded: None,
            reparse: None,
            bases: Vec::new(),
            upstream: upstream::of_windows(&prepared.upstream, &windows),
            together: Vec::new(),
            others: None,
        };
        self.new_run(started, manifest)
    }

    /// Gives a manifest its run, and the run its claim, so that nobody takes it for dead in between. A saved plan gets one run, unless it keeps nothing.
    pub(super) fn new_run(&mut self, started: IngestTime, manifest: Manifest) -> Result<(Manifest, Claim), Error> {
        let _gate = self.store.lock(GATE)?;
        let manifest = self.catalog.record(|r| {
            if let Some(plan) = manifest.plan_digest.filter(|_| manifest.mode != Mode::DryRun)
                && let Some(row) = r.view().applied(&manifest.recipe.dataset, plan)?
            {
                return Err(Error::Applied(Applied { run: row.manifest.run, status: row.manifest.status }));
            }
            Ok(r.new_run(started, |run| Manifest { run, ..manifest })?)
        })?;
        let claim = self.store.claim(&manifest.run.to_string())?.ok_or(PublishError::Busy { run: manifest.run })?;
        Ok((manifest, claim))
    }

    /// Claims the staging folder of something that is not a run.
    pub(super) fn claim(&self, owner: &str) -> Result<Option<Claim>, Error> {
        let _gate = self.store.lock(GATE)?;
        Ok(self.store.claim(owner)?)
    }

    pub(super) fn versions(&self, limits: &Limits) -> Result<Versions, Error> {
        Ok(Versions {
            restitch: env!("CARGO_PKG_VERSION").into(),
            engine: self.engine_for(limits)?.describe_config(),
            wit: format!("restitch:transform@{CONTRACT}"),
            time_zones: chrono_tz::IANA_TZDB_VERSION.into(),
        })
    }

    /// Writes down how a run ended, and clears up after one that failed.
    pub(super) fn end(&mut self, mut manifest: Manifest, done: Result<(), Error>) -> Result<Manifest, Error> {
        let now = self.options.clock.now();
        let run = manifest.run;
        if let Err(e) = done {
            if manifest.status == Status::Running {
                manifest.status = Status::Failed;
                manifest.partitions.iter_mut().for_each(|p| p.files.clear());
                self.store.remove_dir(&staging(&run.to_string())).ok();
            }
            manifest.error = Some(chain(&e));
            self.catalog.record(|r| r.put_run(&manifest, Some(now)))?;
            return Err(e);
        }
        if manifest.status == Status::Published {
            // The swap wrote it all; only its own duration could not be in it.
            self.catalog.record(|r| r.put_manifest(&manifest, Some(now))).ok();
        } else {
            self.catalog.record(|r| r.put_run(&manifest, Some(now)))?;
        }
        Ok(manifest)
    }
}

pub(super) fn input_file(f: &LiveFile) -> InputFile {
    InputFile { path: f.path.clone(), rows: f.rows, bytes: f.bytes, snapshot: f.begin }
}

/// Milliseconds since then.
pub(super) fn ms(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64 / 1e6
}

/// An error with its causes, on one line.
pub(super) fn chain(e: &Error) -> String {
    let mut text = e.to_string();
    let mut source = std::error::Error::source(e);
    while let Some(cause) = source {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            text += &format!(": {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// One run in the doing: its manifest is complete however it ends.
struct Attempt<'a> {
    workshop: &'a mut Workshop,
    dataset: &'a Dataset,
    prepared: &'a Prepared,
    partitions: &'a [PlannedPartition],
    records: &'a BTreeMap<EventTime, i64>,
    prior: &'a [PublishedRow],
    unsettled: &'a BTreeSet<EventTime>,
}

impl Attempt<'_> {
    fn go(self, manifest: &mut Manifest, progress: &dyn Progress) -> Result<(), Error> {
        let output = output_fields(&self.prepared.transform.descriptor().output);
        let base = manifest.base_snapshot;
        // From now on the run's row keeps raw from being removed; between plan and row nothing did.
        for source in manifest.recipe.sources.iter().chain(manifest.recipe.lookups.values()) {
            if let Some(removed) = self.workshop.catalog.read(|v| v.dropped_since(source, base, SnapshotId(i64::MAX)))? {
                return Err(Error::RawMoved { source_name: source.clone(), removed: Box::new(removed) });
            }
        }
        let (target, published) = self.workshop.catalog.read(|v| target(&v, &self.dataset.name, &output, base))?;
        modes::refuse_lost_columns(&self.prepared.recipe, published.as_ref(), &output)?;
        manifest.bases = self.workshop.bases(&self.prepared.recipe, published.as_ref(), base, self.partitions, self.prior)?;
        let folder = staging(&manifest.run.to_string());
        let options = &self.workshop.options;
        let (store, shape, records) = (&self.workshop.store, Shape::usual(options), (self.records, manifest.bases.as_slice()));
        let work = || compute(store, self.prepared, self.partitions, records, Some(&target), &folder, shape, None, progress);
        let (computed, timings) = with_sound_input(store, &self.prepared.files, work)?;
        let began = Instant::now();
        let subject = Subject {
            store: &self.workshop.store,
            published: published.as_ref(),
            fields: &output,
            key: &self.prepared.recipe.key,
            base,
            checks: &self.dataset.checks,
            validation: manifest.validation,
            memory_bytes: self.workshop.options.memory_bytes,
            workers: self.workshop.options.workers,
            now: IngestTime(manifest.recipe.as_of_us),
            staging: &folder,
        };
        let checked = check::check(&subject, &mut self.workshop.catalog, computed, self.prior)?;
        manifest.timings.add(&timings);
        manifest.timings.check_ms += ms(began);
        self.conclude(manifest, checked, &output)
    }

    /// Rejects, keeps nothing, stages, or publishes.
    fn conclude(self, manifest: &mut Manifest, checked: Checked, output: &[Field]) -> Result<(), Error> {
        let failed: Vec<String> = checked.failures().map(|c| c.name.clone()).collect();
        let Checked { partitions, mut files, checks, log } = checked;
        (manifest.partitions, manifest.checks, manifest.log) = (partitions, checks, log);
        let prior = self.prior.iter().map(|p| (p.window.start().0, p)).collect();
        let settling = modes::Settling { recipe: &manifest.recipe, prior, unsettled: self.unsettled };
        manifest.partitions.iter_mut().for_each(|p| settling.settle(p));
        let kept = modes::keep_equal(&manifest.recipe, &manifest.bases, &mut manifest.partitions);
        files.retain(|f| f.file.partition.as_ref().is_none_or(|p| !kept.contains(p)));
        manifest.checksum = Some(checksum_of(manifest.partitions.iter().filter_map(|p| Some((p.partition.as_str(), p.checksum.as_ref()?)))));
        let blocked = !failed.is_empty() && manifest.validation == Validation::Block;
        let store = self.workshop.store.clone();
        let folder = staging(&manifest.run.to_string());
        if manifest.mode == Mode::DryRun {
            store.remove_dir(&folder)?;
            manifest.status = if blocked { Status::Rejected } else { Status::Done };
            return if blocked { Err(Error::Rejected { run: manifest.run, failed, staged: false }) } else { Ok(()) };
        }
        if blocked || manifest.mode == Mode::Stage || manifest.approval.is_some() {
            write_staged(&store, manifest.run, &Staged { fields: output.iter().map(StagedField::from).collect(), files: files.clone() })?;
            record_staged(manifest, &files);
            manifest.status = if blocked { Status::Rejected } else { Status::Staged };
            return if blocked { Err(Error::Rejected { run: manifest.run, failed, staged: true }) } else { Ok(()) };
        }
        let began = Instant::now();
        let now = self.workshop.options.clock.now();
        publish::publish(&store, &mut self.workshop.catalog, manifest, output, &files, now)?;
        manifest.timings.publish_ms = ms(began);
        Ok(())
    }
}

/// What a manifest says of partitions that were not computed.
fn planned(partitions: &[PlannedPartition]) -> Vec<PartitionRecord> {
    let record = |p: &PlannedPartition| PartitionRecord {
        partition: p.name.clone(),
        start_us: p.window.start().0,
        end_us: p.window.end().0,
        reason: p.reason.name().into(),
        ..PartitionRecord::default()
    };
    partitions.iter().map(record).collect()
}

fn record_staged(manifest: &mut Manifest, files: &[Written]) {
    for p in manifest.partitions.iter_mut().filter(|p| !p.kept) {
        let own = files.iter().filter(|f| f.file.partition.as_ref() == Some(&p.partition));
        p.files = own
            .map(|f| crate::manifest::FileRecord { path: f.path.clone(), rows: f.file.rows as u64, bytes: f.file.bytes as u64, digest: f.digest })
            .collect();
    }
}

/// How the work is cut and spread. None of it can change a row, which is what `transform prove` tries out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    /// Bytes that all tasks together may hold, about.
    pub(super) memory_bytes: usize,
    /// Tasks at once.
    pub(super) workers: usize,
    /// Rows of a batch that the transform gets, at most.
    pub(super) batch_rows: usize,
    /// How partitions are put together.
    pub(super) grouping: Grouping,
}

impl Shape {
    pub(super) fn usual(options: &super::Options) -> Shape {
        Shape { memory_bytes: options.memory_bytes, workers: options.workers, batch_rows: BATCH_ROWS, grouping: Grouping::Usual }
    }
}

/// Computes the partitions of a recipe; without a target nothing is written.
#[allow(clippy::too_many_arguments)]
pub(super) fn compute(
    store: &Store,
    prepared: &Prepared,
    partitions: &[PlannedPartition],
    (records, bases): (&BTreeMap<EventTime, i64>, &[BaseRecord]),
    target: Option<&Table>,
    folder: &str,
    shape: Shape,
    known: Option<&HashMap<String, LeftOut>>,
    progress: &dyn Progress,
) -> Result<(Vec<execute::Computed>, Timings), Error> {
    store.create_dir(folder)?;
    let expected = partitions.iter().map(|p| (p.clone(), records.get(&p.window.start()).copied().unwrap_or(0) as u64));
    let bases: BTreeMap<&str, &BaseRecord> = bases.iter().map(|b| (b.partition.as_str(), b)).collect();
    let job = Job {
        store,
        bases: &bases,
        recipe: &prepared.recipe,
        transform: &prepared.transform,
        raw: &prepared.raw,
        moved: &prepared.moved,
        lookups: &prepared.lookups,
        filter: prepared.filter.as_ref(),
        balances: &prepared.balances,
        target,
        staging: folder,
        memory_bytes: shape.memory_bytes,
        workers: shape.workers,
        known,
        batch_rows: shape.batch_rows,
    };
    let columns = execute::scanned_columns(&job);
    let row_bytes = prepared.raw.iter().map(|r| r.row_bytes(store, &columns)).collect::<Result<Vec<_>, _>>()?.into_iter().max().unwrap_or(0);
    let tasks = cut(expected, row_bytes, shape.memory_bytes, shape.workers, shape.grouping);
    Ok(execute(&job, &tasks, progress)?)
}

/// The table to write (with the ids that a creation will give), and the one that is published.
fn target(view: &View, name: &str, output: &[Field], base: SnapshotId) -> Result<(Table, Option<Table>), Error> {
    let Some(table) = view.table(name, base)? else {
        return Ok((fresh_table(name, output), None));
    };
    let mut next = view.last_column_id(table.id)?;
    let mut columns = Vec::new();
    for field in output {
        match table.columns.iter().find(|c| c.field.name == field.name) {
            Some(c) if c.field.data_type != field.data_type => {
                return Err(Error::Evolution { dataset: name.into(), field: field.clone(), found: c.field.data_type.to_string() });
            }
            // Its first null makes it nullable, in the swap.
            Some(c) => columns.push(TableColumn { id: c.id, field: Field { nullable: c.field.nullable || field.nullable, ..c.field.clone() } }),
            None if view.had_column(&table, &field.name)? => {
                let found = "gone (another tool dropped or renamed it)".into();
                return Err(Error::Evolution { dataset: name.into(), field: field.clone(), found });
            }
            None => {
                table.refuse_twin(&field.name)?;
                next += 1;
                columns.push(TableColumn { id: next, field: Field { nullable: true, ..field.clone() } });
            }
        }
    }
    if let Some(gone) = table.columns.iter().find(|c| !c.field.nullable && !output.iter().any(|f| f.name == c.field.name)) {
        return Err(Error::NotGiven { dataset: name.into(), column: gone.field.name.clone() });
    }
    Ok((Table { columns, ..table.clone() }, Some(table)))
}

/// A table that is not there yet, with the ids that a creation will give.
pub(super) fn fresh_table(name: &str, output: &[Field]) -> Table {
    let columns = output.iter().enumerate().map(|(i, f)| TableColumn { id: i as i64 + 1, field: f.clone() }).collect();
    Table { id: -1, name: name.into(), folder: String::new(), columns, partition_id: None }
}

/// Checks that a transform fits the dataset as declared, and completes the recipe: parameters, key.
pub(super) fn fit(project: &Project, dataset: &Dataset, d: &Descriptor, recipe: &mut Recipe, upstream: &[(String, Vec<Field>)]) -> Result<(), Error> {
    let refuse = |problem, hint| misfit(dataset, problem, hint);
    complete_key(recipe, d);
    for key in &recipe.key {
        if !d.output.iter().any(|f| f.name == *key) {
            let hint = nearest(key, d.output.iter().map(|f| f.name.as_str())).map(|n| format!("did you mean {n:?}?"));
            return Err(refuse(format!("the key column {key:?} is not in the output"), hint));
        }
    }
    modes::fit(d, recipe).map_err(|(p, h)| refuse(p, h))?;
    let fit_source = |name: &str, input: &Input| {
        let columns = project.source(name)?.raw_fields();
        fit_input(Giver::Source(name), &columns, &input.name, &input.fields).map_err(|(p, h)| refuse(p, h))
    };
    for source in &dataset.inputs {
        fit_source(source, &d.inputs[0])?;
    }
    upstream::fit(upstream, recipe, d).map_err(|(p, h)| refuse(p, h))?;
    for input in &d.inputs[1..] {
        let Some(name) = dataset.lookups.get(&input.name) else {
            return Err(refuse(
                format!("the lookup {:?} has no source", input.name),
                Some(format!("declare it: lookups = {{ {} = \"SOURCE\" }}", input.name)),
            ));
        };
        fit_source(name, input)?;
    }
    if let Some(extra) = dataset.lookups.keys().find(|l| !d.inputs[1..].iter().any(|i| i.name == **l)) {
        return Err(refuse(
            format!("the transform has no lookup {extra:?}"),
            nearest(extra, d.inputs[1..].iter().map(|i| i.name.as_str())).map(|n| format!("did you mean {n:?}?")),
        ));
    }
    fit_parameters(dataset, d, recipe)
}

/// Completes the parameters of a recipe, and checks that the transform has those that are given.
pub(super) fn fit_parameters(dataset: &Dataset, d: &Descriptor, recipe: &mut Recipe) -> Result<(), Error> {
    complete_parameters(recipe, d).map_err(|e| misfit(dataset, e.to_string(), e.hint()))
}

fn misfit(dataset: &Dataset, problem: String, hint: Option<String>) -> Error {
    Error::Fit { dataset: dataset.name.clone(), transform: dataset.transform.clone(), problem, hint }
}

/// Completes the key of a recipe: the transform's own, if none is declared.
pub(super) fn complete_key(recipe: &mut Recipe, d: &Descriptor) {
    if recipe.key.is_empty() {
        recipe.key = d.key.clone();
    }
}

/// Completes the parameters of a recipe by the transform's defaults, in the transform's order.
pub(super) fn complete_parameters(recipe: &mut Recipe, d: &Descriptor) -> Result<(), TransformError> {
    let given: Vec<(String, String)> = recipe.parameters.iter().map(|(k, v)| (k.clone(), v.clone())).collect();
    recipe.parameters = d.parameters_with_defaults(&given)?.into_iter().collect();
    Ok(())
}

/// Who gives the columns of an input.
#[derive(Clone, Copy)]
pub(super) enum Giver<'g> {
    Source(&'g str),
    Dataset(&'g str),
}

/// Checks that columns are what an input of a transform asks for. The error is the problem, and the way out.
pub(super) fn fit_input(giver: Giver, columns: &[Field], input: &str, fields: &[Field]) -> Result<(), (String, Option<String>)> {
    let (who, declares) = match giver {
        Giver::Source(name) => (format!("source {name}"), "declares"),
        Giver::Dataset(name) => (format!("dataset {name}"), "gives"),
    };
    for field in fields {
        let place = format!("input {input:?} of the transform asks for {field}, and {who}");
        let Some(column) = columns.iter().find(|c| c.name == field.name) else {
            let other = if matches!(giver, Giver::Source(_)) { " A column of another name is declared with aliases or from" } else { "" };
            let hint = nearest(&field.name, columns.iter().map(|c| c.name.as_str())).map(|n| format!("did you mean {n:?}?{other}"));
            return Err((format!("{place} has no such column"), hint));
        };
        let same = column.data_type == field.data_type || (column.data_type, field.data_type) == (DataType::Json, DataType::String);
        if !same {
            return Err((format!("{place} {declares} {}", column.data_type), None));
        }
        if column.nullable && !field.nullable {
            let hint = match giver {
                Giver::Source(_) => format!(
                    "declare {} with nullable = false (and a default, where old records lack it; `ingest --reparse` gives it to those that are landed)",
                    field.name
                ),
                Giver::Dataset(_) => "let the transform take it as nullable".into(),
            };
            return Err((format!("{place} lets it be null"), Some(hint)));
        }
    }
    Ok(())
}

/// What waits in a staging folder, in the file `staged.json`.
#[derive(serde::Serialize, serde::Deserialize)]
struct Staged {
    fields: Vec<StagedField>,
    files: Vec<Written>,
}

#[derive(serde::Serialize, serde::Deserialize)]
struct StagedField {
    name: String,
    data_type: DataType,
    nullable: bool,
}

impl From<&Field> for StagedField {
    fn from(f: &Field) -> StagedField {
        StagedField { name: f.name.clone(), data_type: f.data_type, nullable: f.nullable }
    }
}

pub(super) struct StagedFiles {
    pub(super) fields: Vec<Field>,
    pub(super) files: Vec<Written>,
}

fn write_staged(store: &Store, run: RunId, staged: &Staged) -> Result<(), Error> {
    let json = serde_json::to_vec(staged).map_err(|e| Error::Internal(e.to_string()))?;
    store.sync_files(&staged.files.iter().map(|f| f.path.as_str()).collect::<Vec<_>>())?;
    store.sync_entries(&staged.files.iter().take(1).map(|f| f.path.clone()).collect::<Vec<_>>())?;
    Ok(store.put(&staged_list(&run.to_string()), &json)?)
}

pub(super) fn read_staged(store: &Store, run: RunId) -> Result<StagedFiles, Error> {
    let bytes = store.read(&staged_list(&run.to_string()))?;
    let staged: Staged = serde_json::from_slice(&bytes).map_err(|e| Error::Staging { run, what: e.to_string() })?;
    let fields = staged.fields.into_iter().map(|f| Field::new(f.name, f.data_type, f.nullable)).collect();
    Ok(StagedFiles { fields, files: staged.files })
}
