//! What changed, row by row: another version of a transform against what is published, or a run against what stood before it.
//! Never publishes and never records a run: what is computed is compared and thrown away.

use super::{
    Error, RunRequest, Workshop,
    doctor::with_sound_input,
    grant,
    prove::without_checks,
    run::{Shape, compute, fit, fresh_table},
    upstream::expected,
};
use crate::{
    catalog::{CatalogError, PublishedRow, RecordedFile, TransformRow, is_pending},
    config::{Dataset, TransformRef},
    execute::{Progress, output_fields},
    gc,
    id::{Digest, RunId, SnapshotId},
    manifest::{BaseRecord, FileRecord, Kind, Manifest, Mode, Recipe, Status, UpstreamRecord, Validation, WriteMode},
    plan::{PlannedPartition, Reason},
    publish::PublishError,
    query::{self, ColumnChange, Difference, FileTable, Rows},
    schema::{Field, PARTITION},
    store::staging,
    time::EventTime,
    transform::{Descriptor, Transform},
    window::Window,
};
use std::collections::{BTreeMap, HashMap, HashSet, hash_map::Entry};

/// What is to be compared: another version with what is published.
#[derive(Clone, Debug)]
pub struct DiffRequest {
    /// The dataset.
    pub dataset: String,
    /// The version that is tried.
    pub transform: TransformRef,
    /// Start of the window: a date, a partition or an instant.
    pub start: String,
    /// End of the window: a date or a partition (inclusive), or an instant (exclusive); none: that of `start`.
    pub end: Option<String>,
    /// Why payloads of masked sources are to be read, if they are: the operator's word for it.
    pub grant_payload: Option<String>,
    /// Parameters that differ from those that the published rows were made with.
    pub params: Vec<(String, String)>,
    /// Differing rows that are shown, at most.
    pub rows: usize,
}

/// A partition, before and now.
#[derive(Clone, Debug)]
pub struct PartitionDiff {
    /// Its name.
    pub partition: String,
    /// Rows before.
    pub rows_before: u64,
    /// Rows now.
    pub rows_now: u64,
    /// How they differ.
    pub difference: Difference,
    /// The version of the warehouse that both were computed from; `None` where a run is compared with what stood before.
    pub input_snapshot: Option<SnapshotId>,
}

/// What differs.
#[derive(Debug)]
pub struct Diff {
    /// The dataset.
    pub dataset: String,
    /// What stands on the one side, in words.
    pub before: String,
    /// What stands on the other.
    pub now: String,
    /// The columns that tell rows apart; none, if rows are compared whole.
    pub key: Vec<String>,
    /// By partition.
    pub partitions: Vec<PartitionDiff>,
    /// By column, in the order of the table.
    pub columns: Vec<ColumnChange>,
    /// The first rows that differ: partition, key, `change`, and each column before and now.
    pub rows: Rows,
    /// What else is to be known, in words.
    pub notes: Vec<String>,
}

impl Diff {
    /// Returns the sum over all partitions.
    pub fn total(&self) -> Difference {
        self.partitions.iter().fold(Difference::default(), |t, p| Difference {
            added: t.added + p.difference.added,
            removed: t.removed + p.difference.removed,
            changed: t.changed + p.difference.changed,
            unchanged: t.unchanged + p.difference.unchanged,
        })
    }
}

/// One side of a comparison: files of the warehouse, and the columns that are read from them.
#[derive(Clone, Default)]
pub(super) struct Side {
    pub(super) fields: Vec<Field>,
    /// Path in the warehouse, bytes.
    pub(super) files: Vec<(String, u64)>,
}

/// Rows before and now, and what is said of them.
struct Sides {
    before: Side,
    now: Side,
    key: Vec<String>,
    partitions: Vec<PartitionDiff>,
}

impl Workshop {
    /// Computes what is published in a window again with another version of a transform, from the very input that the published rows were made
    /// of, lookups included, and compares. Nothing is published.
    ///
    /// # Errors
    /// Nothing is published there; the version is not registered or does not fit; raw that was read is gone; the transform fails.
    pub fn diff_versions(&mut self, request: &DiffRequest, progress: &dyn Progress) -> Result<Diff, Error> {
        let row = self.transform_row(&request.transform)?;
        let dataset = Dataset { transform: request.transform.clone(), checks: Vec::new(), ..self.project.dataset(&request.dataset)?.clone() };
        self.refuse_lost_tables(&dataset)?;
        self.refuse_recut(&dataset)?;
        let window = dataset.calendar().resolve(&request.start, request.end.as_ref().unwrap_or(&request.start))?;
        let published = self.catalog.read(|v| v.published(&dataset.name, Some(window)))?;
        if published.is_empty() {
            let message = format!("nothing of {} is published in {window}, so there is nothing to compare with", dataset.name);
            let (name, start) = (&dataset.name, &request.start);
            let end = request.end.as_ref().unwrap_or(start);
            let hint = format!(
                "`restitch backfill {name} --start {start} --end {end} --transform {} --dry-run` shows what it would make",
                request.transform
            );
            return Err(Error::Usage { message, hint: Some(hint) });
        }
        // Named like a proof's: gc leaves files alone that it may be reading.
        let owner = format!("verify-{}", uuid::Uuid::new_v4());
        let claim = self.claim(&owner)?;
        let diff = self.diff_published(request, &dataset, &row, &published, &owner, progress);
        self.store.remove_dir(&staging(&owner)).ok();
        drop(claim);
        diff
    }

    fn diff_published(
        &mut self,
        request: &DiffRequest,
        dataset: &Dataset,
        row: &TransformRow,
        published: &[PublishedRow],
        owner: &str,
        progress: &dyn Progress,
    ) -> Result<Diff, Error> {
        let d = descriptor(&row.descriptor)?;
        grant::of_run(&self.project, dataset, &d, &dry_run(request), &self.options.operator)?;
        let mut notes = Vec::new();
        let mut key = Vec::new();
        let (mut partitions, mut files) = (Vec::new(), Vec::new());
        let mut made_by: BTreeMap<String, u64> = BTreeMap::new();
        let (mut doubled, mut left_out) = (0, 0);
        for (run, rows) in self.by_origin(published)? {
            let wanted: HashSet<&str> = rows.iter().map(|p| p.partition.as_str()).collect();
            let old = self.recomputable(run, &wanted)?;
            let recipe = self.other_version(&old, dataset, row, &d, &request.params, &mut notes)?;
            *made_by.entry(format!("{} ({})", old.recipe.transform, old.recipe.transform_digest.short())).or_default() += rows.len() as u64;
            key.clone_from(&recipe.key);
            let snapshot = recipe.input_snapshot;
            if !old.bases.is_empty() {
                notes
                    .push(format!("{run} put its rows among rows that were published: those stay as they were, and only its own are computed again"));
            }
            // Whether instructions are counted is up to the limits of then.
            let transform = self.load(row.digest, &recipe.limits)?;
            let computed = self.recompute_rows(
                recipe,
                (&old.bases, old.upstream.clone()),
                &transform,
                &rows,
                (owner, request.grant_payload.is_some()),
                progress,
            )?;
            for (c, p) in computed.into_iter().zip(&rows) {
                doubled += c.doubled_keys;
                left_out += c.record.quarantined.len();
                files.extend(c.files.iter().map(|f| (f.path.clone(), f.file.bytes as u64)));
                let (rows_before, rows_now) = (p.rows as u64, c.record.rows);
                let difference = Difference::default();
                partitions.push(PartitionDiff { partition: p.partition.clone(), rows_before, rows_now, difference, input_snapshot: Some(snapshot) });
            }
        }
        let (table, live) = self.catalog.read(|v| {
            let latest = v.latest()?;
            let table = v.table(&dataset.name, latest)?.ok_or_else(|| Error::Internal(format!("{} has no table", dataset.name)))?;
            let mut live = Vec::new();
            for p in published {
                live.extend(v.partition_files(&table, latest, &p.partition)?);
            }
            Ok::<_, Error>((table, live))
        })?;
        let on_record = self.on_record(&live)?;
        let live = live.into_iter().map(|f| (f.path, f.bytes as u64)).collect();
        let output = output_fields(&d.output);
        notes.extend(column_notes(&table.fields(), &output));
        if left_out > 0 {
            notes.push(format!("{} fails on {left_out} record(s), which would be put in quarantine: their rows are missing now", request.transform));
        }
        if doubled > 0 {
            notes.push(format!(
                "{doubled} row(s) of {} have the key of another: a run of it would be rejected, and rows are compared whole",
                request.transform
            ));
            key.clear();
        }
        let sides = Sides { before: Side { fields: table.fields(), files: live }, now: Side { fields: output, files }, key, partitions };
        let before = made_by.iter().map(|(t, n)| if made_by.len() > 1 { format!("{t} in {n} partition(s)") } else { t.clone() });
        let words = (before.collect::<Vec<_>>().join(", "), format!("{} ({})", request.transform, row.digest.short()));
        with_sound_input(&self.store, &on_record, || self.measure(&dataset.name, words, sides, notes, request.rows, owner))
    }

    /// Compares what a run published, or staged, with what stood there before it.
    ///
    /// # Errors
    /// It wrote no rows; rows of either side were removed.
    pub fn diff_run(&mut self, run: RunId, rows: usize) -> Result<Diff, Error> {
        let m = self.show(run)?.row.manifest;
        if m.kind == Kind::Reparse {
            let message = format!("{run} is a reparse: it changed raw records, and no dataset");
            return Err(Error::Usage { message, hint: Some(format!("`restitch show {run}` counts what it changed")) });
        }
        if m.status != Status::Published && !is_pending(&m) {
            return Err(PublishError::status(&m, "published, staged or rejected").into());
        }
        let (fields, before) = self.catalog.read(|v| {
            let mut fields = v.table(&m.recipe.dataset, v.latest()?)?.map(|t| t.fields()).unwrap_or_default();
            let row = v.transforms()?.into_iter().find(|t| t.digest == m.recipe.transform_digest);
            for field in row.map(|t| descriptor(&t.descriptor)).transpose()?.iter().flat_map(|d| output_fields(&d.output)) {
                if !fields.iter().any(|f| f.name == field.name) {
                    fields.push(field);
                }
            }
            let mut priors: HashMap<RunId, HashMap<String, Vec<FileRecord>>> = HashMap::new();
            let mut before = Vec::new();
            for p in &m.partitions {
                let Some(prior) = p.prior_run else { continue };
                if let Entry::Vacant(e) = priors.entry(prior) {
                    e.insert(v.run_partitions(prior)?.into_iter().map(|p| (p.partition, p.files)).collect());
                }
                before.extend(priors[&prior].get(&p.partition).cloned().unwrap_or_default());
            }
            for file in before.iter().chain(m.partitions.iter().flat_map(|p| &p.files)) {
                if let Some(removed) = v.removed(&file.path)? {
                    return Err(Error::RowsGone { run, removed: Box::new(removed) });
                }
            }
            Ok::<_, Error>((fields, before))
        })?;
        let now: Vec<FileRecord> = m.partitions.iter().flat_map(|p| p.files.iter().cloned()).collect();
        let recorded =
            |f: &FileRecord| RecordedFile { table: m.recipe.dataset.clone(), path: f.path.clone(), bytes: f.bytes, digest: Some(f.digest) };
        let on_record: Vec<RecordedFile> = before.iter().chain(&now).map(recorded).collect();
        let files = |of: Vec<FileRecord>| of.into_iter().map(|f| (f.path, f.bytes)).collect();
        let partition = |p: &crate::manifest::PartitionRecord| PartitionDiff {
            partition: p.partition.clone(),
            rows_before: p.prior_rows.unwrap_or(0),
            rows_now: p.rows,
            difference: Difference::default(),
            input_snapshot: None,
        };
        let partitions = m.partitions.iter().map(partition).collect();
        let sides = Sides {
            before: Side { fields: fields.clone(), files: files(before) },
            now: Side { fields, files: files(now) },
            key: m.recipe.key.clone(),
            partitions,
        };
        let owner = format!("verify-{}", uuid::Uuid::new_v4());
        let claim = self.claim(&owner)?;
        let words = (format!("before {run}"), format!("{run}, {}", m.status.name()));
        let diff = with_sound_input(&self.store, &on_record, || self.measure(&m.recipe.dataset, words, sides, Vec::new(), rows, &owner));
        self.store.remove_dir(&staging(&owner)).ok();
        drop(claim);
        diff
    }

    /// Published partitions by the run that computed their rows: a rollback computed none.
    fn by_origin<'p>(&mut self, published: &'p [PublishedRow]) -> Result<BTreeMap<RunId, Vec<&'p PublishedRow>>, Error> {
        let mut groups: BTreeMap<RunId, Vec<&PublishedRow>> = BTreeMap::new();
        // One run may have published them all: each is looked at once.
        let mut restored: HashMap<RunId, Option<HashMap<String, Option<RunId>>>> = HashMap::new();
        for p in published {
            let mut run = p.run;
            loop {
                if let Entry::Vacant(e) = restored.entry(run) {
                    e.insert(self.restored_by(run)?);
                }
                let Some(priors) = &restored[&run] else { break };
                let prior = priors.get(&p.partition).copied().flatten();
                run = prior.ok_or_else(|| Error::Internal(format!("{} of {run} came from nowhere", p.partition)))?;
            }
            groups.entry(run).or_default().push(p);
        }
        Ok(groups)
    }

    /// For a rollback: by partition, the run whose rows it brought back. `None` for a run that computed its rows.
    fn restored_by(&mut self, run: RunId) -> Result<Option<HashMap<String, Option<RunId>>>, Error> {
        self.catalog.read(|v| {
            let m = v.run(run)?.ok_or(Error::NoRun { run })?.manifest;
            let (Kind::Rollback, Some(undone)) = (m.kind, m.of_run) else { return Ok(None) };
            Ok(Some(v.run_partitions(undone)?.into_iter().map(|p| (p.partition, p.prior_run)).collect()))
        })
    }

    /// The manifest of a run, of the wanted partitions alone, if what they were computed from is there.
    fn recomputable(&mut self, run: RunId, wanted: &HashSet<&str>) -> Result<Manifest, Error> {
        let mut old = self.show(run)?.row.manifest;
        old.partitions.retain(|p| wanted.contains(p.partition.as_str()));
        old.bases.retain(|b| wanted.contains(b.partition.as_str()));
        match self.catalog.read(|v| gc::missing_raw(&v, &old))? {
            Some(dropped) => Err(Error::RawGone { run, dropped: Box::new(dropped) }),
            None => {
                self.check_bases(&old)?;
                Ok(old)
            }
        }
    }

    /// The recipe of a run with another version of the transform: all else as it was, as far as that version knows it.
    fn other_version(
        &mut self,
        old: &Manifest,
        dataset: &Dataset,
        row: &TransformRow,
        d: &Descriptor,
        params: &[(String, String)],
        notes: &mut Vec<String>,
    ) -> Result<Recipe, Error> {
        let made_by = self.catalog.read(|v| v.transforms())?.into_iter().find(|t| t.digest == old.recipe.transform_digest);
        let was = made_by.map(|t| descriptor(&t.descriptor)).transpose()?;
        let mut recipe =
            Recipe { transform: dataset.transform.to_string(), transform_digest: row.digest, key: dataset.key.clone(), ..old.recipe.clone() };
        let default = |name: &str| was.as_ref().and_then(|w| w.parameters.iter().find(|p| p.name == name)).and_then(|p| p.default.clone());
        recipe.parameters.retain(|name, value| {
            let known = d.parameters.iter().any(|p| p.name == *name);
            // What nobody chose may have another default now.
            let chosen = default(name).as_ref() != Some(value);
            if chosen && !known {
                let note = format!("{} has no parameter {name:?}; {value:?} was left out", dataset.transform);
                if !notes.contains(&note) {
                    notes.push(note);
                }
            }
            known && chosen
        });
        recipe.parameters.extend(params.iter().cloned());
        recipe.lookups.retain(|name, _| d.inputs[1..].iter().any(|i| i.name == *name));
        for input in &d.inputs[1..] {
            if let (false, Some(source)) = (recipe.lookups.contains_key(&input.name), dataset.lookups.get(&input.name)) {
                recipe.lookups.insert(input.name.clone(), source.clone());
            }
        }
        let described = without_checks(&recipe)?;
        let fields = self.upstream_fields(&recipe)?;
        fit(&self.project, &described, d, &mut recipe, &fields)?;
        Ok(recipe)
    }

    fn recompute_rows(
        &mut self,
        recipe: Recipe,
        (bases, pinned): (&[BaseRecord], Vec<UpstreamRecord>),
        transform: &Transform,
        rows: &[&PublishedRow],
        (owner, granted): (&str, bool),
        progress: &dyn Progress,
    ) -> Result<Vec<crate::execute::Computed>, Error> {
        let partitions: Vec<PlannedPartition> =
            rows.iter().map(|p| PlannedPartition { name: p.partition.clone(), window: p.window, reason: Reason::Forced }).collect();
        let end = partitions.iter().map(|p| p.window.end()).max().unwrap_or(EventTime(0));
        let hull = Window::new(partitions[0].window.start(), end)?;
        let slots = self.catalog.read(|v| v.slots(&recipe.sources, recipe.input_snapshot))?;
        let records = expected(&recipe, &pinned, &slots);
        let masked = !granted && self.project.sources.values().any(|s| recipe.sources.contains(&s.name) && s.is_masked());
        let dataset = without_checks(&recipe)?;
        let table = fresh_table(&dataset.name, &output_fields(&transform.descriptor().output));
        let prepared = self.prepare(recipe, transform.clone(), &dataset, (hull, pinned), masked)?;
        let (store, shape) = (&self.store, Shape::usual(&self.options));
        let work = || compute(store, &prepared, &partitions, (&records, bases), Some(&table), &staging(owner), shape, None, progress);
        Ok(with_sound_input(store, &prepared.files, work)?.0)
    }

    fn measure(
        &self,
        dataset: &str,
        (before, now): (String, String),
        sides: Sides,
        mut notes: Vec<String>,
        rows: usize,
        owner: &str,
    ) -> Result<Diff, Error> {
        let Sides { before: old, now: new, mut key, mut partitions } = sides;
        if !key.iter().all(|k| old.fields.iter().any(|f| f.name == *k) && new.fields.iter().any(|f| f.name == *k)) {
            key.clear();
        }
        // A column of another type has no value to be compared with.
        let same = |f: &&Field| new.fields.iter().all(|n| n.name != f.name || n.data_type == f.data_type);
        let wanted = |f: &&Field| f.name != PARTITION && !key.contains(&f.name);
        let mut columns: Vec<String> = new.fields.iter().filter(wanted).map(|f| f.name.clone()).collect();
        columns.retain(|c| old.fields.iter().find(|f| f.name == *c).is_none_or(|f| same(&f)));
        columns.extend(old.fields.iter().filter(wanted).filter(|f| !new.fields.iter().any(|n| n.name == f.name)).map(|f| f.name.clone()));
        self.store.create_dir(&staging(owner))?;
        let spill = self.store.path(&staging(owner));
        let memory = Some(self.options.memory_bytes);
        let (output, prior) = (self.side_table("output", &new), self.side_table("prior", &old));
        let found = query::compare(output.clone(), prior.clone(), PARTITION, &key, &columns, memory, Some(&spill))?;
        let found: HashMap<String, Difference> = found.into_iter().collect();
        partitions.iter_mut().for_each(|p| p.difference = found.get(&p.partition).copied().unwrap_or_default());
        partitions.sort_by(|a, b| a.partition.cmp(&b.partition));
        // Which row became which, only a key that is unique says. How many did is what the run has counted.
        if !key.is_empty() && query::is_doubled(&output, &prior, PARTITION, &key, memory, Some(&spill))? {
            notes.push(format!("rows share the key ({}), so those that differ are shown whole: none as changed", key.join(", ")));
            columns.splice(0..0, key.drain(..));
        }
        let changes = query::column_changes(output.clone(), prior.clone(), PARTITION, &key, &columns, memory, Some(&spill))?;
        let rows = query::differing_rows(output, prior, PARTITION, &key, &columns, memory, Some(&spill), rows)?;
        Ok(Diff { dataset: dataset.into(), before, now, key, partitions, columns: changes, rows, notes })
    }

    pub(super) fn side_table(&self, name: &str, side: &Side) -> FileTable {
        let files = side.files.iter().map(|(path, bytes)| (self.store.path(path), *bytes)).collect();
        FileTable { name: name.into(), fields: side.fields.clone(), files }
    }

    /// Returns what the transform of that hash says of itself.
    pub(super) fn descriptor_of(&mut self, digest: Digest) -> Result<Option<Descriptor>, Error> {
        let row = self.catalog.read(|v| v.transforms())?.into_iter().find(|t| t.digest == digest);
        row.map(|t| descriptor(&t.descriptor)).transpose()
    }
}

fn descriptor(json: &str) -> Result<Descriptor, Error> {
    serde_json::from_str(json).map_err(|e| CatalogError::Value { what: "a descriptor", value: e.to_string() }.into())
}

/// What is new, gone, nullable now, or of another type. The last keeps a version from being published; so does a column that is gone and cannot be null.
fn column_notes(before: &[Field], now: &[Field]) -> Vec<String> {
    let mut notes = Vec::new();
    let names = |list: Vec<&Field>| list.iter().map(|f| f.name.as_str()).collect::<Vec<_>>().join(", ");
    let lacks = |of: &[Field], f: &&Field| !of.iter().any(|o| o.name == f.name);
    let new: Vec<&Field> = now.iter().filter(|f| lacks(before, f)).collect();
    let (gone, needed): (Vec<&Field>, Vec<&Field>) = before.iter().filter(|f| lacks(now, f)).partition(|f| f.nullable);
    if !new.is_empty() {
        notes.push(format!("new: {}; rows that are there already read null", names(new)));
    }
    if !gone.is_empty() {
        notes.push(format!("not given any more: {}", names(gone)));
    }
    if !needed.is_empty() {
        notes.push(format!(
            "not given any more: {}, where the table allows no null: such a version cannot be published into this table",
            names(needed)
        ));
    }
    let may: Vec<&Field> = now.iter().filter(|f| f.nullable && before.iter().any(|b| b.name == f.name && !b.nullable)).collect();
    if !may.is_empty() {
        notes.push(format!("may be null now: {}; the first null that is published makes the column nullable", names(may)));
    }
    for f in now {
        if let Some(was) = before.iter().find(|b| b.name == f.name && b.data_type != f.data_type) {
            notes.push(format!(
                "{} was {} and is {}: it is not compared, and such a version cannot be published into this table",
                f.name, was.data_type, f.data_type
            ));
        }
    }
    notes
}

fn dry_run(request: &DiffRequest) -> RunRequest {
    RunRequest {
        kind: Kind::Backfill,
        dataset: request.dataset.clone(),
        start: Some(request.start.clone()),
        end: request.end.clone(),
        only: None,
        transform: Some(request.transform.clone()),
        mode: Mode::DryRun,
        write: WriteMode::Overwrite,
        validation: Validation::Off,
        filter: None,
        snapshot: None,
        reason: None,
        grant_payload: request.grant_payload.clone(),
        seed: 0,
        params: request.params.clone(),
        partitions_max: None,
        bytes_max: None,
    }
}
