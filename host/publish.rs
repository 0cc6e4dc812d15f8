//! The swap: staged partitions replace published ones in one transaction, or nothing happens. And its undoing.
//! Never edits a file or a snapshot that is there, and never overwrites what it has not compared with.
//! Eats what `check` let through. The crash table is in ARCHITECTURE.md.

use crate::{
    catalog::{Catalog, CatalogError, ColumnStats, Commit, DatasetRow, LiveFile, NewFile, PublishedRow, Removed, StateWrite, Table, View},
    datafile::Written,
    id::{Digest, RunId, SnapshotId},
    manifest::{Discarded, FileRecord, Kind, Manifest, Mode, OthersRecord, PartitionRecord, Status, UpstreamRecord, checksum_of},
    recover,
    schema::{Field, PARTITION},
    store::{Claim, Store, StoreError, file_name, spread, staged_files, staging},
    time::{EventTime, IngestTime},
    window::Window,
};
use std::collections::{HashMap, HashSet, hash_map::Entry};

/// Why nothing was published.
#[derive(Debug, thiserror::Error)]
pub enum PublishError {
    /// The folder refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The catalog refuses.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The ground moved between plan and swap.
    #[error("{dataset} changed after this run read it: {}", listed(changes, "; "))]
    Conflict {
        /// The dataset.
        dataset: String,
        /// What changed, by partition.
        changes: Vec<String>,
    },
    /// A file is not what was written.
    #[error("{path} was changed: its SHA-256 is {found}, recorded was {recorded}")]
    Tampered {
        /// The file.
        path: String,
        /// Its hash now.
        found: Digest,
        /// Its hash when it was written.
        recorded: Digest,
    },
    /// Another process is at it.
    #[error("another process is at run {run}")]
    Busy {
        /// The run.
        run: RunId,
    },
    /// The run is not in a state in which this can be done.
    #[error("run {run} is {status}, not {wanted}")]
    Status {
        /// The run.
        run: RunId,
        /// Where it stands.
        status: &'static str,
        /// What it would have to be.
        wanted: &'static str,
    },
    /// It came to its end, and there are no rows of it.
    #[error("run {run} is a {what}, which keeps no rows")]
    KeepsNoRows {
        /// The run.
        run: RunId,
        /// "dry run" or "replay".
        what: &'static str,
    },
    /// Its staged rows were thrown away.
    #[error("run {run} was discarded {discarded}")]
    Discarded {
        /// The run.
        run: RunId,
        /// Who did it, when, and by what rule.
        discarded: Discarded,
    },
    /// Later runs have replaced what the rollback would undo.
    #[error("later runs have replaced {} of {run}: {}", if later.len() == 1 { "1 partition".into() } else { format!("{} partitions", later.len()) }, listed(later, ", "))]
    Replaced {
        /// The run.
        run: RunId,
        /// Partition and later run.
        later: Vec<String>,
    },
    /// A partition that the run does not name came out otherwise: the swap is taken back.
    #[error("BUG: {run} would change partitions that it does not name: their checksum was {before}, and would be {after}")]
    Disturbed {
        /// The run.
        run: RunId,
        /// Their checksum before the swap.
        before: Digest,
        /// Their checksum after it.
        after: Digest,
    },
    /// What was before was removed on purpose.
    #[error("partition {partition} cannot go back to what it was before {run}: {} was removed on {} by gc ({}, {})", removed.path, removed.at, removed.reason, removed.operator)]
    Removed {
        /// The run.
        run: RunId,
        /// The partition.
        partition: String,
        /// The file, when it was removed, and by whom.
        removed: Box<Removed>,
    },
    /// What was before went with its snapshot, and no gc of ours held it.
    #[error(
        "partition {partition} cannot go back to what it was before {run}: another tool expired snapshot {snapshot}, and the catalog does not know the files of then any more"
    )]
    Expired {
        /// The run.
        run: RunId,
        /// The partition.
        partition: String,
        /// The last snapshot before the run.
        snapshot: SnapshotId,
    },
    /// What was before is not recorded any more.
    #[error("what partition {partition} was before {run} is not recorded: {what}")]
    NoPrior {
        /// The run.
        run: RunId,
        /// The partition.
        partition: String,
        /// What is missing.
        what: String,
    },
}

/// The first of many, so that what is said of years stays readable.
pub(crate) fn listed(all: &[String], between: &str) -> String {
    let shown = all.iter().take(10).cloned().collect::<Vec<_>>().join(between);
    if all.len() > 10 { format!("{shown}{between}and {} more", all.len() - 10) } else { shown }
}

impl PublishError {
    /// Returns what to say of a run that is not in the state that is `wanted`.
    pub fn status(m: &Manifest, wanted: &'static str) -> PublishError {
        let run = m.run;
        match (m.discarded.clone(), m.status) {
            (Some(discarded), Status::Discarded) => PublishError::Discarded { run, discarded },
            (_, Status::Done | Status::Rejected) if m.kind == Kind::Replay => PublishError::KeepsNoRows { run, what: "replay" },
            (_, Status::Done | Status::Rejected) if m.mode == Mode::DryRun => PublishError::KeepsNoRows { run, what: "dry run" },
            (_, status) => PublishError::Status { run, status: status.name(), wanted },
        }
    }
}

/// Swaps the partitions of a checked run in by the command of its operator, and completes its manifest.
///
/// # Errors
/// [`PublishError`]; readers see what they saw before.
/// # After an error
/// Staged files are where they were; the run is to be planned again.
/// # After a crash
/// Before the commit, `recover` moves the files back to where they were staged; after it, all of it is visible.
pub fn publish(
    store: &Store,
    catalog: &mut Catalog,
    manifest: &mut Manifest,
    fields: &[Field],
    staged: &[Written],
    now: IngestTime,
) -> Result<(), PublishError> {
    let operator = manifest.operator.clone();
    publish_together(store, catalog, &mut [Ready { manifest, fields, staged }], &operator, now)
}

/// A checked run, and what it staged.
pub struct Ready<'r> {
    /// The run.
    pub manifest: &'r mut Manifest,
    /// The columns of its rows.
    pub fields: &'r [Field],
    /// Its files.
    pub staged: &'r [Written],
}

/// As [`publish`], for several runs in one transaction and by the command of whoever publishes them now: all of them, or none.
///
/// # Errors
/// [`PublishError`]; a conflict names what changed under each of them.
/// # After a crash
/// As for [`publish`].
pub fn publish_together(store: &Store, catalog: &mut Catalog, runs: &mut [Ready], operator: &str, now: IngestTime) -> Result<(), PublishError> {
    let mut placed: Vec<Vec<String>> = Vec::new();
    for i in 0..runs.len() {
        match place(store, catalog, &mut runs[i]) {
            Ok(paths) => placed.push(paths),
            Err(e) => {
                runs[..i].iter().for_each(|r| drop(recover::withdraw(store, catalog, &r.manifest.run.to_string())));
                return Err(e);
            }
        }
    }
    let said = |r: &Ready| format!("{} {} of {}", r.manifest.kind.name(), r.manifest.run, r.manifest.recipe.dataset);
    let message = runs.iter().map(said).collect::<Vec<_>>().join("; ");
    let before: Vec<_> = runs.iter().map(|r| (r.manifest.status, r.manifest.published_snapshot, r.manifest.others)).collect();
    let committed = catalog.commit(now, operator, &message, |commit| {
        let tables = compared(commit, runs)?;
        runs.iter_mut().zip(&tables).zip(&placed).try_for_each(|((run, table), paths)| {
            let files: Vec<_> = paths.iter().map(String::as_str).zip(run.staged.iter().map(|w| &w.file)).collect();
            swap(commit, run.manifest, table, &files, (operator, now))?;
            Ok(commit.put_run(run.manifest, Some(now))?)
        })
    });
    if let Err(e) = committed {
        for (run, (status, snapshot, others)) in runs.iter_mut().zip(before) {
            let owner = run.manifest.run.to_string();
            // An error of the commit leaves its outcome open: look, then clean up.
            match catalog.read(|v| v.run(run.manifest.run)) {
                Ok(Some(row)) if row.manifest.status == Status::Published => {
                    let Manifest { status, published_snapshot, published_by, published_us, .. } = row.manifest;
                    (run.manifest.status, run.manifest.published_snapshot) = (status, published_snapshot);
                    (run.manifest.published_by, run.manifest.published_us) = (published_by, published_us);
                }
                _ => {
                    (run.manifest.status, run.manifest.published_snapshot, run.manifest.others) = (status, snapshot, others);
                    (run.manifest.published_by, run.manifest.published_us) = (None, None);
                    recover::withdraw(store, catalog, &owner).ok();
                }
            }
        }
        if !runs.iter().all(|r| r.manifest.status == Status::Published) {
            return Err(e);
        }
    }
    runs.iter().for_each(|run| drop(store.remove_dir(&staging(&run.manifest.run.to_string()))));
    Ok(())
}

/// Moves a run's files to where the catalog will say they are, and returns their paths in the table's folder: all of a run lie in one folder, which is moved, and made
/// durable, at once.
fn place(store: &Store, catalog: &mut Catalog, run: &mut Ready) -> Result<Vec<String>, PublishError> {
    let Ready { manifest, staged, .. } = run;
    let owner = manifest.run.to_string();
    let table = catalog.read(|v| Ok::<_, CatalogError>(format!("{}main/{}/", v.data_path(), manifest.recipe.dataset)))?;
    if !staged.is_empty() {
        let folder = format!("{table}{owner}/");
        catalog.record(|r| r.put_intents(&owner, std::slice::from_ref(&folder)))?;
        move_into_place(store, &owner, &folder, staged).inspect_err(|_| drop(recover::withdraw(store, catalog, &owner)))?;
    }
    let paths: Vec<String> = staged.iter().map(|file| format!("{owner}/{}", name_of(file))).collect();
    record_files(manifest, staged, &paths, &table);
    Ok(paths)
}

/// Makes staged files durable, and moves them: the last step before the commit.
fn move_into_place(store: &Store, owner: &str, folder: &str, staged: &[Written]) -> Result<(), StoreError> {
    let from = staged_files(&staging(owner));
    let paths: Vec<&str> = staged.iter().map(|file| file.path.as_str()).collect();
    store.sync_files(&paths)?;
    // What was staged of partitions that stay as they are is nobody's.
    let names: HashSet<&str> = staged.iter().map(name_of).collect();
    for name in store.list(&from)?.iter().filter(|name| !names.contains(name.as_str())) {
        store.remove(&format!("{from}/{name}"))?;
    }
    let targets: Vec<String> = staged.iter().map(|file| format!("{folder}{}", name_of(file))).collect();
    if !store.move_dir(&from, folder)? {
        store.link(&paths.into_iter().zip(targets.iter().map(String::as_str)).collect::<Vec<_>>())?;
    }
    store.sync_entries(&targets[..1])
}

/// Returns how a staged file is called, which it keeps.
fn name_of(file: &Written) -> &str {
    file.path.rsplit('/').next().unwrap_or_default()
}

/// Compares each run with its base before any of them is swapped in, and returns the tables.
fn compared(commit: &mut Commit, runs: &[Ready]) -> Result<Vec<Table>, PublishError> {
    let (mut tables, mut conflicts): (Vec<Table>, Vec<(String, Vec<String>)>) = (Vec::new(), Vec::new());
    for run in runs {
        let table = target_table(commit, run.manifest, run.fields)?;
        let same = compare_with_base(commit, run.manifest, &table).and_then(|()| compare_columns(run.manifest, &table, run.fields, run.staged));
        match same {
            Err(PublishError::Conflict { dataset, changes }) => conflicts.push((dataset, changes)),
            other => other?,
        }
        tables.push(table);
    }
    match conflicts.len() {
        0 => Ok(tables),
        1 => {
            let (dataset, changes) = conflicts.remove(0);
            Err(PublishError::Conflict { dataset, changes })
        }
        _ => {
            let names: Vec<String> = conflicts.iter().map(|(dataset, _)| dataset.clone()).collect();
            let changes = conflicts.into_iter().flat_map(|(dataset, changes)| changes.into_iter().map(move |c| format!("{dataset}: {c}"))).collect();
            Err(PublishError::Conflict { dataset: names.join(" and "), changes })
        }
    }
}

fn record_files(manifest: &mut Manifest, staged: &[Written], paths: &[String], folder: &str) {
    let mut places: HashMap<&str, &mut Vec<FileRecord>> = HashMap::new();
    for p in manifest.partitions.iter_mut().filter(|p| !p.kept) {
        p.files.clear();
        places.insert(&p.partition, &mut p.files);
    }
    for (Written { file, digest, .. }, path) in staged.iter().zip(paths) {
        if let Some(files) = places.get_mut(file.partition.as_deref().unwrap_or_default()) {
            let record = FileRecord { path: format!("{folder}{path}"), rows: file.rows as u64, bytes: file.bytes as u64, digest: *digest };
            files.reserve_exact(1);
            files.push(record);
        }
    }
}

/// Returns the table that is written, created or widened if it has to be.
fn target_table(commit: &mut Commit, manifest: &Manifest, fields: &[Field]) -> Result<Table, PublishError> {
    let name = &manifest.recipe.dataset;
    let at = commit.snapshot();
    commit.view().refuse_strange(name)?;
    let mut table = match commit.view().table(name, at)? {
        Some(table) => table,
        None => commit.create_table(name, fields, Some(PARTITION))?,
    };
    for field in fields.iter().filter(|f| table.column_id(&f.name).is_none()).collect::<Vec<_>>() {
        commit.add_column(&mut table, &Field { nullable: true, ..field.clone() })?;
    }
    Ok(table)
}

/// The compare of compare-and-swap: what the run saw is what is there, partition by partition.
fn compare_with_base(commit: &Commit, manifest: &Manifest, table: &Table) -> Result<(), PublishError> {
    let partitions = manifest.partitions.iter().map(|p| (p.partition.clone(), EventTime(p.start_us), p.prior_run));
    let changes = moved(&commit.view(), &manifest.recipe.dataset, table, (manifest.base_snapshot, commit.base()), partitions)?;
    if changes.is_empty() { Ok(()) } else { Err(PublishError::Conflict { dataset: manifest.recipe.dataset.clone(), changes }) }
}

/// Returns what has become of a dataset's partitions (name, first instant, the run that stood) between two snapshots, in words.
///
/// # Errors
/// The catalog cannot be read.
pub fn moved(
    view: &View,
    dataset: &str,
    table: &Table,
    (base, now): (SnapshotId, SnapshotId),
    partitions: impl Iterator<Item = (String, EventTime, Option<RunId>)>,
) -> Result<Vec<String>, PublishError> {
    let mut changes = Vec::new();
    if view.altered_since(table, base)? {
        changes.push("its columns were altered".into());
    }
    if view.unpartitioned_files(table, now)? > 0 {
        changes.push("another tool inserted rows without a partition".into());
    }
    let partitions: Vec<_> = partitions.collect();
    let stands = view.published_of(dataset, partitions.iter().map(|(_, start, _)| *start))?;
    let ids = |at: SnapshotId| -> Result<HashMap<String, Vec<i64>>, CatalogError> {
        let files = view.files_of(table, at, partitions.iter().map(|(name, ..)| name.as_str()))?;
        Ok(files.into_iter().map(|(name, files)| (name, files.iter().map(|f| f.id).collect())).collect())
    };
    let live = ids(now)?;
    // What is seen at one snapshot is the same twice.
    let then = if base == now { None } else { Some(ids(base)?) };
    for (name, start, prior_run) in &partitions {
        let stands = stands.get(start);
        if stands.map(|s| s.run) != *prior_run {
            let by = stands.map_or("taken away".into(), |s| format!("published by {} (snapshot {})", s.run, s.published_snapshot));
            changes.push(format!("partition {name} was {by}"));
        } else if then.as_ref().is_some_and(|then| then.get(name) != live.get(name)) {
            changes.push(format!("files of partition {name} were replaced by another tool"));
        }
    }
    Ok(changes)
}

/// Staged files carry column ids: they must be the table's, name by name, also if another run has just created it.
fn compare_columns(manifest: &Manifest, table: &Table, fields: &[Field], staged: &[Written]) -> Result<(), PublishError> {
    let same =
        |s: &ColumnStats, f: &Field| table.columns.iter().any(|c| c.id == s.column_id && c.field.name == f.name && c.field.data_type == s.data_type);
    if staged.iter().map(|w| &w.file).all(|file| file.stats.len() == fields.len() && file.stats.iter().zip(fields).all(|(s, f)| same(s, f))) {
        return Ok(());
    }
    Err(PublishError::Conflict { dataset: manifest.recipe.dataset.clone(), changes: vec!["its columns were altered".into()] })
}

/// The swap: old files end, new ones begin, and everything that goes with it but the run's own rows.
fn swap(
    commit: &mut Commit,
    manifest: &mut Manifest,
    table: &Table,
    files: &[(&str, &NewFile)],
    (operator, now): (&str, IngestTime),
) -> Result<(), PublishError> {
    let recipe = &manifest.recipe;
    let starts = || manifest.partitions.iter().map(|p| EventTime(p.start_us));
    let before = commit.view().sum_without(&recipe.dataset, starts(), commit.view().partition_sum(&recipe.dataset)?)?;
    commit.watch_published()?;
    // Where a run came to what was there, the files stay.
    let replaced = manifest.partitions.iter().filter(|p| !p.kept).map(|p| p.partition.as_str());
    let ids: Vec<i64> = commit.view().files_of(table, commit.base(), replaced)?.values().flatten().map(|f| f.id).collect();
    commit.end_files(table, &ids)?;
    // What may hold a null may be null from now on: readers go by it. A file without statistics of a column does without the column.
    let without = |id: i64| files.iter().all(|(_, f)| f.stats.iter().any(|s| s.column_id == id && s.nulls == 0));
    for column in table.columns.iter().filter(|c| !c.field.nullable && !without(c.id)) {
        commit.allow_nulls(table, column.id)?;
    }
    commit.add_files(table, files)?;
    let (snapshot, settings) = (commit.snapshot(), recipe.settings());
    let digest = settings.digest();
    commit.put_published(&recipe.dataset, manifest.partitions.iter().filter_map(|p| published_row(manifest, p, snapshot, digest)))?;
    // What had not been there before an undone run is not there again.
    for p in manifest.partitions.iter().filter(|p| p.checksum.is_none()) {
        commit.remove_published(&recipe.dataset, EventTime(p.start_us))?;
    }
    commit.put_settings(&settings)?;
    let dataset = DatasetRow {
        name: recipe.dataset.clone(),
        sources: recipe.sources.clone(),
        upstream: recipe.upstream.iter().map(|u| u.dataset.clone()).collect(),
        grain: recipe.grain.to_string(),
        time_zone: recipe.time_zone.name().into(),
    };
    commit.put_dataset(&dataset, table.id)?;
    let after = commit.view().sum_without(&recipe.dataset, starts(), commit.settle_sum(&recipe.dataset)?)?;
    if before != after {
        return Err(PublishError::Disturbed { run: manifest.run, before: before.checksum(), after: after.checksum() });
    }
    manifest.others = Some(OthersRecord { partitions: after.partitions as u64, checksum: after.checksum() });
    manifest.publish(snapshot, operator, now);
    commit.clear_intents(&manifest.run.to_string())?;
    Ok(())
}

fn published_row(manifest: &Manifest, p: &PartitionRecord, snapshot: SnapshotId, settings: Digest) -> Option<PublishedRow> {
    Some(PublishedRow {
        window: Window::new(EventTime(p.start_us), EventTime(p.end_us)).ok()?,
        partition: p.partition.clone(),
        run: manifest.run,
        input_snapshot: p.input_snapshot.unwrap_or(manifest.recipe.input_snapshot),
        published_snapshot: snapshot,
        transform_digest: p.transform_digest.unwrap_or(manifest.recipe.transform_digest),
        rows: p.rows as i64,
        bytes: p.bytes as i64,
        checksum: p.checksum?,
        settings_digest: p.settings_digest.unwrap_or(settings),
    })
}

/// What a partition of a rollback goes back to.
struct Prior {
    record: PartitionRecord,
    files: Vec<LiveFile>,
    /// What its rows were computed from, of other datasets: as long as they stand, it stays.
    upstream: Vec<UpstreamRecord>,
}

/// Restores what was before `undone` in the partitions that its manifest names here, as a new snapshot and a run of its own.
/// `new_run` gives the rollback's manifest once its partitions are known, and what their rows were computed from.
///
/// # Errors
/// The run is not published, later runs have replaced its partitions (unless `force`), or what was before is gone.
/// # After a crash
/// As for [`publish`].
pub fn rollback(
    store: &Store,
    catalog: &mut Catalog,
    undone: &Manifest,
    force: bool,
    now: IngestTime,
    new_run: impl FnOnce(&mut Catalog, Vec<PartitionRecord>, Vec<UpstreamRecord>) -> Result<(Manifest, Claim), PublishError>,
) -> Result<Manifest, PublishError> {
    let Some(published) = undone.published_snapshot.filter(|_| undone.status == Status::Published) else {
        return Err(PublishError::Status { run: undone.run, status: undone.status.name(), wanted: "published" });
    };
    let before = SnapshotId(published.0 - 1);
    catalog.read(|v| v.refuse_strange(&undone.recipe.dataset))?;
    let (table, priors) = catalog.read(|v| priors(&v, undone, before, force))?;
    let mut seen = HashSet::new();
    let read = priors.iter().flat_map(|p| &p.upstream).filter(|u| seen.insert((&u.dataset, &u.partition, u.run))).cloned().collect();
    // Files are its own when they are linked.
    let begun = priors.iter().map(|p| PartitionRecord { files: Vec::new(), ..p.record.clone() }).collect();
    let (mut manifest, claim) = new_run(catalog, begun, read)?;
    let owner = manifest.run.to_string();
    let linked = link_files(store, catalog, &owner, &table, &priors, &mut manifest);
    let committed = linked.and_then(|paths| {
        let (author, message) = (manifest.operator.clone(), format!("rollback {owner} of {}", undone.run));
        catalog.commit(now, &author, &message, |commit| {
            commit.view().refuse_strange(&manifest.recipe.dataset)?;
            compare_with_base(commit, &manifest, &table)?;
            let copies = commit.copies_of(&priors.iter().flat_map(|p| &p.files).collect::<Vec<_>>(), &table)?;
            let files: Vec<_> = paths.iter().map(String::as_str).zip(&copies).collect();
            swap(commit, &mut manifest, &table, &files, (&author, now))?;
            // Its partitions stand since it began.
            commit.put_manifest(&manifest, Some(now))?;
            Ok(commit.put_files(&manifest)?)
        })
    });
    let result = match committed {
        Ok(_) => Ok(manifest),
        Err(e) => {
            // An error of the commit leaves its outcome open: look, then clean up.
            if let Ok(Some(row)) = catalog.read(|v| v.run(manifest.run))
                && row.manifest.status == Status::Published
            {
                return Ok(Manifest { partitions: manifest.partitions, ..row.manifest });
            }
            recover::withdraw(store, catalog, &owner).ok();
            (manifest.status, manifest.error) = (Status::Failed, Some(e.to_string()));
            (manifest.published_snapshot, manifest.published_by, manifest.published_us, manifest.others) = (None, None, None, None);
            catalog.record(|r| r.put_run(&manifest, Some(now))).ok();
            Err(e)
        }
    };
    store.remove_dir(&staging(&owner)).ok();
    drop(claim);
    result
}

fn priors(view: &View, undone: &Manifest, before: SnapshotId, force: bool) -> Result<(Table, Vec<Prior>), PublishError> {
    let dataset = &undone.recipe.dataset;
    let latest = view.latest()?;
    let no_prior = |partition: &str, what: String| PublishError::NoPrior { run: undone.run, partition: partition.into(), what };
    let table = view.table(dataset, latest)?.ok_or_else(|| no_prior("", format!("the table {dataset} was dropped")))?;
    let (mut priors, mut later) = (Vec::new(), Vec::new());
    let mut records: HashMap<RunId, (HashMap<String, PartitionRecord>, Option<Manifest>)> = HashMap::new();
    let standing = view.published_of(dataset, undone.partitions.iter().map(|p| EventTime(p.start_us)))?;
    let stood = undone.partitions.iter().filter(|p| p.prior_run.is_some()).map(|p| p.partition.as_str());
    let mut earlier = view.files_of(&table, before, stood)?;
    for p in &undone.partitions {
        let stands = standing.get(&EventTime(p.start_us));
        match stands {
            Some(s) if s.run == undone.run => {}
            Some(s) => later.push(format!("{} by {}", p.partition, s.run)),
            // The run took the partition away, and that is how it stands.
            None if p.checksum.is_none() => {}
            None => later.push(format!("{} (taken away)", p.partition)),
        }
        let mut record = PartitionRecord {
            partition: p.partition.clone(),
            start_us: p.start_us,
            end_us: p.end_us,
            reason: format!("rollback of {}", undone.run),
            ..Default::default()
        };
        (record.prior_run, record.prior_rows, record.prior_checksum) = match stands {
            Some(s) => (Some(s.run), Some(s.rows as u64), Some(s.checksum)),
            None => (None, None, None),
        };
        let (mut files, mut upstream) = (Vec::new(), Vec::new());
        if let Some(run) = p.prior_run {
            if let Entry::Vacant(v) = records.entry(run) {
                let partitions = view.run_partitions(run)?.into_iter().map(|p| (p.partition.clone(), p)).collect();
                v.insert((partitions, view.run(run)?.map(|r| r.manifest)));
            }
            let (old, manifest) = records
                .get(&run)
                .and_then(|(partitions, manifest)| Some((partitions.get(&p.partition)?, manifest.as_ref())))
                .ok_or_else(|| no_prior(&p.partition, format!("run {run} has no such partition")))?;
            (record.rows, record.bytes, record.checksum, record.files) = (old.rows, old.bytes, old.checksum, old.files.clone());
            record.quarantined = old.quarantined.clone();
            let recipe = manifest.map(|m| &m.recipe);
            upstream.extend(manifest.iter().flat_map(|m| &m.upstream).filter(|u| u.overlaps(p.start_us, p.end_us)).cloned());
            record.input_snapshot = old.input_snapshot.or(recipe.map(|r| r.input_snapshot));
            record.transform_digest = old.transform_digest.or(recipe.map(|r| r.transform_digest));
            record.settings_digest = old.settings_digest.or_else(|| recipe.map(|r| r.settings().digest()));
            for file in &old.files {
                if let Some(removed) = view.removed(&file.path)? {
                    return Err(PublishError::Removed { run: undone.run, partition: p.partition.clone(), removed: Box::new(removed) });
                }
            }
            files = earlier.remove(&p.partition).unwrap_or_default();
            let rows: i64 = files.iter().map(|f| f.rows).sum();
            if rows as u64 != old.rows {
                let paths: Vec<&str> = old.files.iter().map(|f| f.path.as_str()).collect();
                if !view.has_snapshot(before)? && view.referred(&paths)?.len() < paths.len() {
                    return Err(PublishError::Expired { run: undone.run, partition: p.partition.clone(), snapshot: before });
                }
                return Err(no_prior(&p.partition, format!("its files at snapshot {before} have {rows} rows, recorded were {}", old.rows)));
            }
        }
        priors.push(Prior { record, files, upstream });
    }
    if later.is_empty() || force { Ok((table, priors)) } else { Err(PublishError::Replaced { run: undone.run, later }) }
}

/// Gives each earlier file a second name, so that clean-ups of either leave the other alone, and returns these names in the table's folder.
fn link_files(
    store: &Store,
    catalog: &mut Catalog,
    owner: &str,
    table: &Table,
    priors: &[Prior],
    manifest: &mut Manifest,
) -> Result<Vec<String>, PublishError> {
    // Nothing corrupt comes back: the bytes are what they were when they were published.
    let files: Vec<&LiveFile> = priors.iter().flat_map(|p| &p.files).collect();
    let mut digests = spread(&files, |file| store.digest(&file.path))?.into_iter();
    let mut paths = Vec::new();
    for (prior, p) in priors.iter().zip(&mut manifest.partitions) {
        let mut records = Vec::new();
        for file in &prior.files {
            let path = format!("{owner}/{}", file_name(owner, &p.partition, paths.len()));
            let Some((digest, _)) = digests.next() else { unreachable!("BUG: every file was hashed") };
            if let Some(recorded) = prior.record.files.iter().find(|f| f.path == file.path).map(|f| f.digest)
                && recorded != digest
            {
                return Err(PublishError::Tampered { path: file.path.clone(), found: digest, recorded });
            }
            records.push(FileRecord { path: format!("{}{path}", table.folder), rows: file.rows as u64, bytes: file.bytes as u64, digest });
            paths.push(path);
        }
        p.files = records;
    }
    if !paths.is_empty() {
        let folder = format!("{}{owner}/", table.folder);
        catalog.record(|r| r.put_intents(owner, std::slice::from_ref(&folder)))?;
        let targets: Vec<String> = paths.iter().map(|path| format!("{}{path}", table.folder)).collect();
        store.link(&files.iter().zip(&targets).map(|(file, to)| (file.path.as_str(), to.as_str())).collect::<Vec<_>>())?;
        store.sync_entries(&targets[..1])?;
    }
    manifest.checksum = Some(checksum_of(manifest.partitions.iter().filter_map(|p| Some((p.partition.as_str(), p.checksum.as_ref()?)))));
    Ok(paths)
}

/// Checks that staged files are still what was staged: they may have waited for days.
///
/// # Errors
/// One is gone or changed.
pub fn check_staged(store: &Store, staged: &[Written]) -> Result<(), PublishError> {
    spread(staged, |file| {
        let (found, _) = store.digest(&file.path)?;
        if found != file.digest {
            return Err(PublishError::Tampered { path: file.path.clone(), found, recorded: file.digest });
        }
        Ok(())
    })?;
    Ok(())
}
