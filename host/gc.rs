//! What nobody needs any more: old versions of published partitions, raw past its retention, the snapshots with them, and runs that waited for too long.
//! Never judges by the age of a file and never takes what a run still needs; says what goes before it goes.
//! After `publish`. The catalog lets go first, then the bytes go; what a death leaves, the next collection ends.

use crate::{
    catalog::{Catalog, CatalogError, Dropped, Holder, RawFile, RemovedFile, Slot, StateWrite, Version, View, is_pending},
    config::{Project, Source},
    id::{RunId, SnapshotId},
    manifest::{Discarded, Kind, Manifest},
    moves,
    store::{Claim, GATE, Store, StoreError, staging},
    time::{EventTime, IngestTime},
    window::{Calendar, Grain},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet, hash_map::Entry},
    path::Path,
};

/// Why nothing was removed.
#[derive(Debug, thiserror::Error)]
pub enum GcError {
    /// The catalog refuses.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The folder refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// What was shown is not what would go now.
    #[error("the warehouse changed after it was looked at; nothing was removed")]
    Changed,
}

/// What could go, and what has to stay.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Garbage {
    /// Files to be removed: versions by dataset and partition, then raw and rejects by source.
    pub files: Vec<RemovedFile>,
    /// Staged and rejected runs whose time is over: their rows go, their manifests stay.
    pub staged: Vec<StagedRun>,
    /// Snapshots that would miss one of them.
    pub expired: Vec<SnapshotId>,
    /// Files of an earlier collection whose bytes may still be there: id, path, size.
    pub left: Vec<(i64, String, i64)>,
    /// What is old enough and stays all the same.
    pub kept: Vec<Kept>,
}

/// A run that waits for `publish` or `discard`, or was rejected, and has done so for too long.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StagedRun {
    /// The run.
    pub run: RunId,
    /// Its dataset.
    pub dataset: String,
    /// staged or rejected.
    pub status: &'static str,
    /// When it was computed, or last approved.
    pub since: IngestTime,
    /// Its files.
    pub files: u64,
    /// Their rows.
    pub rows: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The rule: `staged_keep = 30d`.
    pub rule: String,
}

/// Something that is old enough and stays.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// The dataset or the source.
    pub name: String,
    /// How many versions or files.
    pub count: u64,
    /// What needs them.
    pub why: String,
}

/// What a collection did.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Collected {
    /// What went.
    pub garbage: Garbage,
    /// The snapshot that it made; `None` if only bytes were left to remove.
    pub snapshot: Option<SnapshotId>,
    /// Files whose bytes wait for somebody who may be reading them.
    pub waiting: u64,
}

impl Garbage {
    /// Returns whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.files.is_empty() && self.staged.is_empty() && self.left.is_empty()
    }
}

/// Returns what could go: of each partition the versions before the last `keep` (none, without a number), raw by the sources' retention, and staged
/// and rejected runs by `staged_keep`.
///
/// # Errors
/// The catalog cannot be read.
pub fn look(view: &View, at: SnapshotId, project: &Project, keep: Option<u64>, now: IngestTime) -> Result<Garbage, CatalogError> {
    let mut garbage = Garbage { left: view.unremoved()?, ..Garbage::default() };
    let mut holders = view.holders()?;
    garbage.staged = old_staged(&holders, project, now);
    // What goes holds nothing any more.
    holders.retain(|h| !garbage.staged.iter().any(|s| s.run == h.manifest.run));
    let mut ranges: Vec<(SnapshotId, SnapshotId)> = Vec::new();
    if let Some(keep) = keep {
        old_versions(view, at, &holders, keep.max(1), &mut garbage, &mut ranges)?;
    }
    for source in project.sources.values().filter(|s| s.raw_keep.is_some()) {
        old_raw(view, at, project, source, &holders, &mut garbage, &mut ranges)?;
    }
    if !ranges.is_empty() {
        // A snapshot without one of its files would show fewer rows than there were.
        garbage.expired = view.snapshots(at)?.into_iter().filter(|s| ranges.iter().any(|(b, e)| b <= s && s < e)).collect();
    }
    Ok(garbage)
}

/// Finds runs whose staged rows have waited for too long.
fn old_staged(holders: &[Holder], project: &Project, now: IngestTime) -> Vec<StagedRun> {
    let border = project.staged_keep.before(EventTime(now.0), chrono_tz::Tz::UTC).0;
    let mut staged = Vec::new();
    for h in holders.iter().filter(|h| !h.is_running()) {
        let Some(since) = h.finished.filter(|t| t.0 < border) else { continue };
        let m = &h.manifest;
        let files = || m.partitions.iter().filter(|p| !p.kept).flat_map(|p| &p.files);
        staged.push(StagedRun {
            run: m.run,
            dataset: m.recipe.dataset.clone(),
            status: m.status.name(),
            since,
            files: files().count() as u64,
            rows: files().map(|f| f.rows).sum(),
            bytes: files().map(|f| f.bytes).sum(),
            rule: format!("staged_keep = {}", project.staged_keep),
        });
    }
    staged
}

/// Writes down that staged runs are thrown away. Their folders go afterwards: what a death leaves of them, `recover` removes.
fn discard(write: &impl StateWrite, view: &View, staged: &[StagedRun], operator: &str, now: IngestTime) -> Result<(), GcError> {
    for s in staged {
        let row = view.run(s.run)?.filter(|r| is_pending(&r.manifest)).ok_or(GcError::Changed)?;
        let mut manifest = Manifest { partitions: view.run_partitions(s.run)?, checks: view.checks(s.run)?, ..row.manifest };
        manifest.discard(Discarded { operator: operator.into(), at_us: now.0, rule: Some(s.rule.clone()) });
        write.put_run(&manifest, Some(now))?;
    }
    Ok(())
}

/// Finds versions of published partitions that `keep` leaves out.
fn old_versions(
    view: &View,
    at: SnapshotId,
    holders: &[Holder],
    keep: u64,
    garbage: &mut Garbage,
    ranges: &mut Vec<(SnapshotId, SnapshotId)>,
) -> Result<(), CatalogError> {
    let read = read_by_others(view, holders, keep)?;
    for dataset in view.all_datasets()? {
        let Some(table) = view.table(&dataset.name, at)? else { continue };
        let ended: HashMap<String, _> = view.ended_files(&table)?.into_iter().map(|f| (f.path.clone(), f)).collect();
        let of_dataset = || holders.iter().filter(|h| h.manifest.recipe.dataset == dataset.name);
        let running = of_dataset().find(|h| h.is_running()).map(|h| format!("{} is at work", h.manifest.run));
        let mut compared: HashMap<(RunId, &str), RunId> = HashMap::new();
        for h in of_dataset() {
            compared.extend(h.manifest.partitions.iter().filter_map(|p| Some(((p.prior_run?, p.partition.as_str()), h.manifest.run))));
        }
        let mut kept: BTreeMap<String, u64> = BTreeMap::new();
        let versions = ranked(view.versions(&dataset.name, None)?);
        // What a version that stays was merged into is needed to compute it again.
        for (_, v) in versions.iter().filter(|(rank, _)| *rank < keep) {
            if let Some(base) = v.base {
                compared.entry((base, v.partition.as_str())).or_insert(v.run);
            }
        }
        let why = |v: &Version| {
            let compared = || Some(format!("{} was compared with it", compared.get(&(v.run, v.partition.as_str()))?));
            let reader = || Some(format!("{} was computed from it", read.get(&(dataset.name.clone(), v.partition.clone(), v.run))?));
            running.clone().or_else(compared).or_else(reader)
        };
        // One file can be of several versions: a merge that changes nothing leaves it.
        let staying = versions.iter().filter(|(rank, v)| *rank < keep || why(v).is_some()).flat_map(|(_, v)| &v.paths);
        let mut taken: HashSet<&str> = staying.map(String::as_str).collect();
        for (rank, version) in &versions {
            let files: Vec<_> = version.paths.iter().filter_map(|p| ended.get(p)).collect();
            if *rank < keep || files.is_empty() {
                continue;
            }
            if let Some(why) = why(version) {
                *kept.entry(why).or_default() += 1;
                continue;
            }
            let partition = &version.partition;
            let files = files.into_iter().filter(|f| taken.insert(version.paths.iter().find(|p| **p == f.path).map_or("", String::as_str)));
            for f in files {
                ranges.push((f.begin, f.end));
                garbage.files.push(RemovedFile {
                    kind: "version",
                    name: dataset.name.clone(),
                    partition: Some(partition.clone()),
                    run: Some(version.run),
                    id: f.id,
                    path: f.path.clone(),
                    rows: f.rows,
                    bytes: f.bytes,
                    snapshots: (f.begin, SnapshotId(f.end.0 - 1)),
                    seen: (f.begin, Some(f.end)),
                    events: None,
                    reason: format!("keep {keep}"),
                });
            }
        }
        garbage.kept.extend(kept.into_iter().map(|(why, count)| Kept { name: dataset.name.clone(), count, why }));
    }
    Ok(())
}

/// Versions of datasets that runs of others were computed from, as far as those still stay: dataset, partition, run; and who read it. A replay of
/// those runs needs them, as it needs raw.
fn read_by_others(view: &View, holders: &[Holder], keep: u64) -> Result<HashMap<(String, String, RunId), RunId>, CatalogError> {
    let mut read = HashMap::new();
    let mut note = |manifest: &Manifest, start_us: i64, end_us: i64| {
        for u in manifest.upstream.iter().filter(|u| u.overlaps(start_us, end_us)) {
            read.entry((u.dataset.clone(), u.partition.clone(), u.run)).or_insert(manifest.run);
        }
    };
    for h in holders {
        note(&h.manifest, i64::MIN, i64::MAX);
    }
    for dataset in view.all_datasets()?.into_iter().filter(|d| !d.upstream.is_empty()) {
        let mut runs: HashMap<RunId, Option<Manifest>> = HashMap::new();
        for (_, v) in ranked(view.versions(&dataset.name, None)?).iter().filter(|(rank, _)| *rank < keep) {
            if let Entry::Vacant(e) = runs.entry(v.run) {
                e.insert(view.run(v.run)?.map(|row| row.manifest));
            }
            let calendar = Grain::parse(&dataset.grain).zip(dataset.time_zone.parse().ok()).map(|(grain, zone)| Calendar { grain, zone });
            if let (Some(Some(manifest)), Some(calendar)) = (runs.get(&v.run), calendar) {
                let window = calendar.at(v.start);
                note(manifest, window.start().0, window.end().0);
            }
        }
    }
    Ok(read)
}

/// Versions, each with its place among those of its partition: the newest is 0.
fn ranked(versions: Vec<Version>) -> Vec<(u64, Version)> {
    let mut ranked: Vec<(u64, Version)> = Vec::with_capacity(versions.len());
    for v in versions {
        let rank = ranked.last().filter(|(_, last)| last.partition == v.partition).map_or(0, |(rank, _)| rank + 1);
        ranked.push((rank, v));
    }
    ranked
}

/// The partitions of one dataset, as far as raw records may still be wanted for them.
struct Wanting {
    name: String,
    calendar: Calendar,
    declared: bool,
    /// What happened before it needs approval; of a dataset of several sources by what they are together.
    approval: EventTime,
    /// Newest ingest of any of its sources that the partition has to be built for: with records of it, or with records that left it.
    newest: HashMap<EventTime, SnapshotId>,
    /// The version of the warehouse that the published rows were computed from.
    read: HashMap<EventTime, SnapshotId>,
}

impl Wanting {
    /// Returns the first instant of the oldest partition that is not final: a part of its records alone makes no partition.
    fn unsettled_from(&self) -> EventTime {
        self.calendar.at(self.approval).start()
    }

    /// Returns why records of this quarter of an hour are still wanted, if they are.
    fn wants(&self, slot: EventTime) -> Option<String> {
        for instant in [slot, EventTime(slot.0 + crate::catalog::SLOT_US - 1)] {
            let window = self.calendar.at(instant);
            let newest = self.newest.get(&window.start()).copied().unwrap_or(SnapshotId(0));
            let name = || self.calendar.name(&window);
            match self.read.get(&window.start()) {
                Some(read) if newest > *read => return Some(format!("{} of {} does not have all of its records yet", name(), self.name)),
                None if self.declared => return Some(format!("{} of {} is not built yet", name(), self.name)),
                _ => {}
            }
        }
        None
    }
}

/// Finds raw files past their retention.
fn old_raw(
    view: &View,
    at: SnapshotId,
    project: &Project,
    source: &Source,
    holders: &[Holder],
    garbage: &mut Garbage,
    ranges: &mut Vec<(SnapshotId, SnapshotId)>,
) -> Result<(), CatalogError> {
    let (Some(raw_keep), Some(mark), Some(table)) = (source.raw_keep, view.watermark(&source.name)?, view.table(&source.table(), at)?) else {
        return Ok(());
    };
    let wanting = wanting(view, at, project, source, mark.cutoffs.approval)?;
    // What repair may still be asked for stays in any case, and all of a partition that is not final: it takes no further record without it.
    let own = raw_keep.before(mark.value.0, source.time_zone).min(mark.cutoffs.approval);
    let cutoff = wanting.iter().map(Wanting::unsettled_from).fold(own, EventTime::min);
    let reason = format!("raw_keep = {raw_keep}");
    let slots = view.slots(std::slice::from_ref(&source.name), at)?;
    let mut kept: BTreeMap<String, u64> = BTreeMap::new();
    let (mut left, mut live_gone) = (Vec::new(), false);
    for file in view.raw_files(&table, at)? {
        let live = file.end.is_none();
        let old = file.events.filter(|(_, last)| *last < cutoff);
        // What a reparse replaced is of no use to what is built from now on.
        let wanted = |events| if live { wanted(&wanting, &slots, &file, events) } else { None };
        let why = old.and_then(|events| needs(holders, source, &file, events).or_else(|| wanted(events)));
        if old.is_some() && why.is_none() {
            live_gone |= live;
            ranges.push((file.begin, file.end.unwrap_or(SnapshotId(at.0 + 1))));
            garbage.files.push(removed_raw("raw", source, &file, old, &reason));
        } else if live {
            left.push(file.ingests);
        }
        if let Some(why) = why {
            *kept.entry(why).or_default() += 1;
        }
    }
    garbage.kept.extend(kept.into_iter().map(|(why, count)| Kept { name: source.name.clone(), count, why }));
    if !live_gone && view.dropped(&source.name, at)?.is_empty() {
        return Ok(());
    }
    old_rejects(view, at, source, &left, &reason, garbage, ranges)
}

/// Rejects have no event time: they go with the raw records of their ingest, and where it landed none, with those of all ingests before it.
fn old_rejects(
    view: &View,
    at: SnapshotId,
    source: &Source,
    left: &[(SnapshotId, SnapshotId)],
    reason: &str,
    garbage: &mut Garbage,
    ranges: &mut Vec<(SnapshotId, SnapshotId)>,
) -> Result<(), CatalogError> {
    let Some(table) = view.table(&source.reject_table(), at)? else { return Ok(()) };
    let landed = view.landing_snapshots(&source.name)?;
    let oldest = left.iter().map(|(first, _)| *first).min();
    for file in view.raw_files(&table, at)?.into_iter().filter(|f| f.end.is_none()) {
        let (first, last) = file.ingests;
        let stays = left.iter().any(|l| l.0 <= last && first <= l.1);
        let alone = !landed.iter().any(|s| (first..=last).contains(s));
        if stays || (alone && oldest.is_none_or(|o| o < last)) {
            continue;
        }
        ranges.push((file.begin, SnapshotId(at.0 + 1)));
        garbage.files.push(removed_raw("rejects", source, &file, None, reason));
    }
    Ok(())
}

fn removed_raw(kind: &'static str, source: &Source, f: &RawFile, events: Option<(EventTime, EventTime)>, reason: &str) -> RemovedFile {
    RemovedFile {
        kind,
        name: source.name.clone(),
        partition: None,
        run: None,
        id: f.id,
        path: f.path.clone(),
        rows: f.rows,
        bytes: f.bytes,
        snapshots: f.ingests,
        seen: (f.begin, f.end),
        events,
        reason: reason.into(),
    }
}

/// Returns the run that reads a raw file, or waits with rows made of it. What it read may stand in another file by now: its windows tell, beside the paths.
fn needs(holders: &[Holder], source: &Source, file: &RawFile, (first, last): (EventTime, EventTime)) -> Option<String> {
    let reads = |h: &&Holder| {
        let m = &h.manifest;
        let whole = h.is_running() || m.recipe.lookups.values().any(|l| *l == source.name);
        let overlaps = || m.partitions.iter().any(|p| p.start_us <= last.0 && first.0 < p.end_us);
        let sees = || file.end.is_none_or(|end| (file.begin..end).contains(&m.recipe.input_snapshot));
        m.inputs.iter().any(|i| i.path == file.path) || ((whole || overlaps()) && (sees() || h.is_running()))
    };
    let mut readers = holders.iter().filter(|h| h.reads(&source.name));
    readers.find(reads).map(|h| format!("{} reads it ({})", h.manifest.run, h.manifest.status.name()))
}

fn wanting(view: &View, at: SnapshotId, project: &Project, source: &Source, approval: EventTime) -> Result<Vec<Wanting>, CatalogError> {
    let mut datasets: Vec<(String, Vec<String>, Calendar, bool)> =
        project.datasets_of(&source.name).map(|d| (d.name.clone(), d.inputs.clone(), d.calendar(), true)).collect();
    for row in view.datasets(&source.name)? {
        let calendar = Grain::parse(&row.grain).zip(row.time_zone.parse().ok()).map(|(grain, zone)| Calendar { grain, zone });
        if let Some(calendar) = calendar.filter(|_| !datasets.iter().any(|(name, ..)| *name == row.name)) {
            datasets.push((row.name, row.sources, calendar, false));
        }
    }
    let mut wanting = Vec::new();
    for (name, sources, calendar, declared) in datasets {
        let read = view.published(&name, None)?.into_iter().map(|p| (p.window.start(), p.input_snapshot)).collect();
        let mut newest: HashMap<EventTime, SnapshotId> = HashMap::new();
        let mut current = None;
        for row in view.queue(&name, None)?.into_iter().filter(|q| q.snapshot <= at) {
            let entry = newest.entry(row.window.start()).or_insert(row.snapshot);
            *entry = row.snapshot.max(*entry);
        }
        for slot in view.slots(&sources, at)? {
            for instant in [slot.start, EventTime(slot.start.0 + crate::catalog::SLOT_US - 1)] {
                let window = current.filter(|w: &crate::window::Window| w.contains(instant)).unwrap_or_else(|| calendar.at(instant));
                current = Some(window);
                let entry = newest.entry(window.start()).or_insert(slot.snapshot);
                *entry = slot.snapshot.max(*entry);
            }
        }
        let approval = match declared && sources.len() > 1 {
            // Another source may be behind, and the dataset is as far as that one.
            true => view.joint(&name)?.map_or(EventTime(i64::MIN), |s| s.cutoffs.approval),
            // One that is not declared is computed no more: nothing moves what its sources are together.
            false => approval,
        };
        wanting.push(Wanting { name, calendar, declared, approval, newest, read });
    }
    Ok(wanting)
}

fn wanted(wanting: &[Wanting], slots: &[Slot], file: &RawFile, (first, last): (EventTime, EventTime)) -> Option<String> {
    let ingests = file.ingests.0..=file.ingests.1;
    let from = slots.partition_point(|s| s.start.0 + crate::catalog::SLOT_US <= first.0);
    let own = slots[from..].iter().take_while(|s| s.start <= last).filter(|s| ingests.contains(&s.snapshot));
    own.flat_map(|s| wanting.iter().filter_map(move |w| w.wants(s.start))).next()
}

/// Removes what was shown: first from the catalog, with the snapshots that would miss it, then the bytes.
///
/// # Errors
/// The warehouse is not what it was when it was looked at, or cannot be written. Nothing was removed, or only bytes are left to remove.
/// # After a crash
/// Before the commit nothing has changed; after it the files are no longer the catalog's, and the next collection removes their bytes.
pub fn collect(
    store: &Store,
    catalog: &mut Catalog,
    project: &Project,
    keep: Option<u64>,
    shown: &Garbage,
    operator: &str,
    now: IngestTime,
) -> Result<Collected, GcError> {
    let _turn = store.lock("gc")?;
    let mut snapshot = None;
    let mut garbage = shown.clone();
    // Whoever publishes, approves or discards one of them at this moment has it.
    let claims = claims(store, &shown.staged)?;
    if shown.files.is_empty() && !shown.staged.is_empty() {
        catalog.record(|r| {
            if old_staged(&r.view().holders()?, project, now) != shown.staged {
                return Err(GcError::Changed);
            }
            discard(r, &r.view(), &shown.staged, operator, now)
        })?;
    }
    if !shown.files.is_empty() {
        let message = format!("gc removes {} file(s)", shown.files.len());
        let (made, found) = catalog.commit(now, operator, &message, |commit| {
            let base = commit.base();
            let found = look(&commit.view(), base, project, keep, now)?;
            // An ingest came whose moves are not known yet: a partition that lost a record may want its raw.
            if found.files != shown.files || found.staged != shown.staged || moves_behind(&commit.view(), base, project)? {
                return Err(GcError::Changed);
            }
            for source in project.sources.values() {
                for (kind, name) in [("raw", source.table()), ("rejects", source.reject_table())] {
                    let ids: Vec<i64> =
                        found.files.iter().filter(|f| f.kind == kind && f.name == source.name && f.seen.1.is_none()).map(|f| f.id).collect();
                    if let Some(table) = commit.view().table(&name, base)?.filter(|_| !ids.is_empty()) {
                        commit.end_files(&table, &ids)?;
                    }
                }
            }
            commit.retire(&found.files, &found.expired, now, operator)?;
            discard(commit, &commit.view(), &found.staged, operator, now)?;
            Ok::<_, GcError>(found)
        })?;
        (snapshot, garbage) = (Some(made), found);
    }
    for s in &garbage.staged {
        store.remove_dir(&staging(&s.run.to_string()))?;
    }
    drop(claims);
    let waiting = remove_bytes(store, catalog)?;
    Ok(Collected { garbage, snapshot, waiting })
}

/// Takes the folders of these runs.
fn claims(store: &Store, staged: &[StagedRun]) -> Result<Vec<Claim>, GcError> {
    let _gate = store.lock(GATE)?;
    staged.iter().map(|s| store.claim(&s.run.to_string())?.ok_or(GcError::Changed)).collect()
}

/// Returns whether records of a source that is followed have landed that were not looked at for moves.
fn moves_behind(view: &View, at: SnapshotId, project: &Project) -> Result<bool, CatalogError> {
    for source in project.sources.values().filter(|s| project.datasets_of(&s.name).any(|d| moves::follows(project, d))) {
        let last = view.last_landing(&source.name)?.unwrap_or(SnapshotId(-1));
        if view.moves_upto(&source.name)? < last && view.table(&source.table(), at)?.is_some() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes the bytes of files that the catalog has let go. Returns how many wait, because somebody may be reading them.
fn remove_bytes(store: &Store, catalog: &mut Catalog) -> Result<u64, GcError> {
    let (left, data_path) = catalog.read(|v| Ok::<_, CatalogError>((v.unremoved()?, v.data_path().to_owned())))?;
    if left.is_empty() {
        return Ok(0);
    }
    // Whoever opens a file from here on has seen the catalog without it; only those who came before can still want one.
    if has_readers(store)? {
        return Ok(left.len() as u64);
    }
    // Whoever looks for moved ids reads raw files under such a lock.
    let mut turns = Vec::new();
    for name in store.list("staging")?.iter().filter(|n| n.starts_with("ids-")).filter_map(|n| n.strip_suffix(".lock")) {
        turns.push(store.lock(name)?);
    }
    let mut gone = Vec::new();
    // Twice is cheap: what the catalog refers to is never touched.
    let referred = catalog.read(|v| v.referred(&left.iter().map(|(_, path, _)| path.as_str()).collect::<Vec<_>>()))?;
    for (id, path, _) in left {
        if !referred.contains(&path) {
            store.remove(&path)?;
        }
        gone.push((id, path));
    }
    store.remove_run_folders(gone.iter().filter_map(|(_, path)| Path::new(path).parent()));
    catalog.record(|r| r.put_gone(&gone, &data_path))?;
    Ok(0)
}

/// Returns whether a living process works on a list of files that it got from the catalog and that no run says it has.
fn has_readers(store: &Store) -> Result<bool, StoreError> {
    let _gate = store.lock(GATE)?;
    for owner in store.list("staging")?.iter().filter(|n| n.starts_with("query-") || n.starts_with("verify-")) {
        if store.claim(owner)?.is_none() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns why a run cannot be computed again as it was: raw of its partitions is gone, or of a lookup what it had read.
///
/// # Errors
/// The catalog cannot be read.
pub fn missing_raw(view: &View, manifest: &crate::manifest::Manifest) -> Result<Option<Dropped>, CatalogError> {
    let recipe = &manifest.recipe;
    let dropped = view.dropped_of(&recipe.sources, recipe.input_snapshot)?;
    let windows = manifest
        .partitions
        .iter()
        .filter_map(|p| crate::window::Window::new(EventTime(p.start_us), EventTime(p.end_us)).ok().map(|w| recipe.write.part_of(w)));
    for window in windows {
        if let Some(d) = crate::catalog::cuts(&dropped, window) {
            return Ok(Some(d.clone()));
        }
    }
    // A lookup need not have been whole: what was gone already the run did not read. A rollback read nothing, and what it gave back is older.
    let since = if manifest.kind == Kind::Rollback { SnapshotId(-1) } else { manifest.base_snapshot };
    for lookup in recipe.lookups.values() {
        let Some(removed) = view.dropped_since(lookup, since, recipe.input_snapshot)? else { continue };
        let dropped = view.dropped(lookup, recipe.input_snapshot)?;
        if let Some(d) = dropped.iter().rfind(|d| d.at == removed.at).or(dropped.last()) {
            return Ok(Some(d.clone()));
        }
    }
    Ok(None)
}
