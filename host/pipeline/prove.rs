//! Proof: an old run computed again from its pinned parts, and the three things that `verify` shows (R30).
//! Never publishes, never looks at restitch.toml for anything that the manifest pins.

use super::{
    Error, Workshop,
    diff::Side,
    doctor::with_sound_input,
    run::{Shape, compute, fresh_table, ms},
    upstream::{expected, summary},
};
use crate::{
    catalog::{CatalogError, SLOT_US, StateWrite, Table, is_pending},
    config::{Dataset, TransformRef},
    execute::{Computed, LeftOut, Progress, output_fields},
    gc,
    id::{Digest, RunId, SnapshotId},
    manifest::{Kind, Manifest, Mode, PartitionRecord, Recipe, Status, Timings, WriteMode, checksum_of},
    plan::{PlannedPartition, Reason},
    publish::PublishError,
    query::{self, RowDifference},
    schema::PARTITION,
    store::staging,
    time::EventTime,
    window::{Calendar, Window},
};
use std::{
    collections::{BTreeMap, HashMap, HashSet, btree_map::Entry},
    time::Instant,
};

/// One partition, published and computed again.
#[derive(Clone, Debug)]
pub struct PartitionProof {
    /// Its name.
    pub partition: String,
    /// The checksum in the run's manifest.
    pub published: Option<Digest>,
    /// The checksum now.
    pub replayed: Option<Digest>,
    /// Rows now.
    pub rows: u64,
    /// Checksum of the records read, in the manifest and now: tells a changed input from a changed result.
    pub input_equal: bool,
}

impl PartitionProof {
    /// Returns whether both are the same, bit for bit.
    pub fn equal(&self) -> bool {
        self.published == self.replayed
    }
}

/// An old run, computed again.
#[derive(Debug)]
pub struct Replayed {
    /// The replay's own manifest.
    pub manifest: Manifest,
    /// The run that it repeats.
    pub of: RunId,
    /// Its partitions.
    pub partitions: Vec<PartitionProof>,
    /// What is not as it was then, though the rows are: partitions that the time-zone database cuts otherwise now.
    pub note: Option<String>,
}

/// Late records of the window: each is read once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LateProof {
    /// Late records that the ingests counted for these partitions.
    pub records: u64,
    /// Late records that the rerun read.
    pub counted: u64,
}

/// All partitions that the run did not name.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OthersProof {
    /// How many there are that were published before it and still stand.
    pub partitions: u64,
    /// Files whose bytes were hashed.
    pub files: u64,
    /// Partitions whose files began or ended with the run, or whose bytes are not what was recorded.
    pub changed: Vec<String>,
}

/// The three proofs.
#[derive(Debug)]
pub struct Proof {
    /// The run.
    pub run: RunId,
    /// First: a dry rerun gives the published checksums.
    pub rerun: Vec<PartitionProof>,
    /// Second: late records are counted exactly once.
    pub late: LateProof,
    /// Third: all other partitions are unchanged. The run's own files, where they still stand, are hashed as well.
    pub others: OthersProof,
    /// What the first proof stands on beside raw: published rows that the run read.
    pub note: Option<String>,
    /// What is not proven, in words; empty if all is.
    pub failed: Vec<String>,
}

impl Workshop {
    /// Computes an old run again as it was: pinned bytes, input, parameters, clock and seed.
    ///
    /// # Errors
    /// It computed nothing, a pinned part is damaged or gone, or the result differs.
    pub fn replay(&mut self, run: RunId, progress: &dyn Progress) -> Result<Replayed, Error> {
        let began = Instant::now();
        let old = self.replayable(run)?;
        let started = self.options.clock.now();
        let versions = self.versions(&old.recipe.limits)?;
        let operator = self.options.operator.clone();
        let planned: Vec<PartitionRecord> = old.partitions.iter().map(|p| PartitionRecord { files: Vec::new(), ..p.clone() }).collect();
        let fresh = Manifest {
            kind: Kind::Replay,
            status: Status::Running,
            mode: Mode::DryRun,
            operator,
            reason: None,
            of_run: Some(run),
            plan_digest: None,
            together: Vec::new(),
            approval: None,
            published_snapshot: None,
            published_by: None,
            published_us: None,
            others: None,
            partitions: planned,
            checks: Vec::new(),
            checksum: None,
            timings: Timings::default(),
            versions,
            gaps: Vec::new(),
            log: Vec::new(),
            error: None,
            discarded: None,
            ..old.clone()
        };
        let (mut manifest, claim) = self.new_run(started, fresh)?;
        let owner = manifest.run.to_string();
        let computed = self.recompute(&old, &owner, progress);
        let wall_ms = ms(began);
        let result = computed.map(|(computed, timings)| {
            let proofs = compare(&old, &computed);
            manifest.timings = timings;
            manifest.partitions = computed.into_iter().map(|c| c.record).collect();
            manifest.checksum = Some(checksum_of(manifest.partitions.iter().filter_map(|p| Some((p.partition.as_str(), p.checksum.as_ref()?)))));
            manifest.status = Status::Done;
            proofs
        });
        let result = result.and_then(|proofs| {
            let Some(first) = proofs.iter().find(|p| !p.equal()) else { return Ok(proofs) };
            let partitions = proofs.iter().filter(|p| !p.equal()).map(differs).collect();
            let first = self.first_row(&old, &first.partition, &owner).unwrap_or_else(|e| format!("no row can be named: {e}"));
            Err(Error::Differs { run, partitions, first })
        });
        self.store.remove_dir(&staging(&owner)).ok();
        if let Err(e) = &result {
            (manifest.status, manifest.error) = (Status::Failed, Some(e.to_string()));
        }
        manifest.timings.settle(wall_ms, self.options.workers);
        let now = self.options.clock.now();
        self.catalog.record(|r| r.put_run(&manifest, Some(now)))?;
        drop(claim);
        let note = recut_note(&old, chrono_tz::IANA_TZDB_VERSION);
        result.map(|partitions| Replayed { manifest, of: run, partitions, note })
    }

    fn replayable(&mut self, run: RunId) -> Result<Manifest, Error> {
        let old = self.show(run)?.row.manifest;
        if matches!(old.kind, Kind::Rollback | Kind::Reparse) {
            return Err(Error::NotReplayable { run, kind: old.kind.name() });
        }
        if matches!(old.status, Status::Failed | Status::Running) {
            return Err(PublishError::Status { run, status: old.status.name(), wanted: "a run that was computed" }.into());
        }
        if let Some(dropped) = self.catalog.read(|v| gc::missing_raw(&v, &old))? {
            return Err(Error::RawGone { run, dropped: Box::new(dropped) });
        }
        self.check_bases(&old)?;
        Ok(old)
    }

    fn recompute(&mut self, old: &Manifest, owner: &str, progress: &dyn Progress) -> Result<(Vec<Computed>, Timings), Error> {
        self.recompute_into(old, owner, None, progress)
    }

    /// Names the first row of a partition that differs from what is recorded: it is computed once more, and its rows are kept this time.
    fn first_row(&mut self, old: &Manifest, partition: &str, owner: &str) -> Result<String, Error> {
        let Some(record) = old.partitions.iter().find(|p| p.partition == partition) else { return Ok("it has other partitions".into()) };
        let kept = old.status == Status::Published || is_pending(old);
        if !kept || record.files.iter().any(|f| !self.store.exists(&f.path)) {
            return Ok(format!("the rows that {} had made of {partition} are not kept, so none of them can be named", old.run));
        }
        let one = Manifest { partitions: vec![record.clone()], ..old.clone() };
        let output = self.descriptor_of(old.recipe.transform_digest)?.map(|d| output_fields(&d.output)).unwrap_or_default();
        let table = fresh_table(&old.recipe.dataset, &output);
        let (computed, _) = self.recompute_into(&one, owner, Some(&table), &())?;
        let Some(again) = computed.first() else { return Ok(format!("{partition} cannot be computed once more")) };
        if again.record.checksum == record.checksum {
            return Ok(format!("computed once more, {partition} came out as recorded: the transform does not give the same rows each time"));
        }
        let now = Side { fields: output.clone(), files: again.files.iter().map(|f| (f.path.clone(), f.file.bytes as u64)).collect() };
        let before = Side { fields: output, files: record.files.iter().map(|f| (f.path.clone(), f.bytes)).collect() };
        let key = if again.doubled_keys > 0 { &[] } else { old.recipe.key.as_slice() };
        let found = self.first_difference(&before, &now, key, owner)?;
        Ok(found.map_or("no row differs: what is recorded is not the checksum of the rows that are kept".into(), |d| format!("first of all {d}")))
    }

    /// Returns the first row in which two states differ.
    pub(super) fn first_difference(&self, before: &Side, now: &Side, key: &[String], owner: &str) -> Result<Option<RowDifference>, Error> {
        let columns: Vec<String> = now.fields.iter().map(|f| f.name.clone()).filter(|n| n != PARTITION && !key.contains(n)).collect();
        let (output, prior) = (self.side_table("output", now), self.side_table("prior", before));
        let (memory, spill) = (Some(self.options.memory_bytes), self.store.path(&staging(owner)));
        Ok(query::first_difference(output, prior, PARTITION, key, &columns, memory, Some(&spill))?)
    }

    fn recompute_into(
        &mut self,
        old: &Manifest,
        owner: &str,
        table: Option<&Table>,
        progress: &dyn Progress,
    ) -> Result<(Vec<Computed>, Timings), Error> {
        let recipe = old.recipe.clone();
        let (transform, compile_ms) = self.load_timed(recipe.transform_digest, &recipe.limits)?;
        let slots = self.catalog.read(|v| v.slots(&recipe.sources, recipe.input_snapshot))?;
        let records = expected(&recipe, &old.upstream, &slots);
        let partitions = planned(old)?;
        let (Some(first), Some(last)) = (partitions.first(), partitions.last()) else { return Ok(Default::default()) };
        let hull = Window::new(first.window.start(), last.window.end())?;
        let prepared = self.prepare(recipe, transform, &without_checks(&old.recipe)?, (hull, old.upstream.clone()), false)?;
        let (store, shape, known) = (&self.store, Shape::usual(&self.options), left_out(old));
        let work = || compute(store, &prepared, &partitions, (&records, &old.bases), table, &staging(owner), shape, Some(&known), progress);
        let (computed, timings) = with_sound_input(store, &prepared.files, work)?;
        Ok((computed, Timings { compile_ms, ..timings }))
    }

    /// Shows three things of a published run: a rerun gives its checksums, late records count once, nothing else changed.
    ///
    /// # Errors
    /// It is not published, or something needed for a proof cannot be read. A proof that fails is in the result.
    pub fn verify(&mut self, run: RunId, progress: &dyn Progress) -> Result<Proof, Error> {
        let manifest = self.show(run)?.row.manifest;
        let Some(published) = manifest.published_snapshot else {
            return Err(PublishError::Status { run, status: manifest.status.name(), wanted: "published" }.into());
        };
        let old = self.replayable(run)?;
        let owner = format!("verify-{}", uuid::Uuid::new_v4());
        let claim = self.claim(&owner)?;
        let computed = self.recompute(&old, &owner, progress);
        let rerun = computed.as_ref().map(|(computed, _)| compare(&old, computed)).unwrap_or_default();
        let differing = rerun.iter().find(|p| !p.equal()).map(|p| p.partition.clone());
        let first = differing.map(|name| self.first_row(&old, &name, &owner).unwrap_or_else(|e| format!("no row can be named: {e}")));
        self.store.remove_dir(&staging(&owner)).ok();
        drop(claim);
        let (computed, _) = computed?;
        let late = self.late_proof(&old, &computed)?;
        let others = self.others_proof(&manifest, published)?;
        let names = |r: &PartitionRecord, p: &PartitionProof| r.partition == p.partition;
        if old.partitions.len() != rerun.len() || !old.partitions.iter().zip(&rerun).all(|(r, p)| names(r, p)) {
            return Err(Error::Internal(format!("the rerun of {run} has other partitions")));
        }
        let mut failed: Vec<String> = rerun.iter().filter(|p| !p.equal()).map(differs).collect();
        failed.extend(first);
        if late.records != late.counted {
            failed.push(format!("{} late records were landed for these partitions, {} were read", late.records, late.counted));
        }
        failed.extend(others.changed.iter().cloned());
        Ok(Proof { run, rerun, late, others, note: base_note(&old), failed })
    }

    /// What the ingests counted, against what the rerun read: two independent counts.
    fn late_proof(&mut self, old: &Manifest, computed: &[Computed]) -> Result<LateProof, Error> {
        let recipe = &old.recipe;
        let slots = self.catalog.read(|v| v.slots(&recipe.sources, recipe.input_snapshot))?;
        let mut windows: Vec<Window> = planned(old)?.into_iter().map(|p| recipe.write.part_of(p.window)).collect();
        // Ingests count by quarters of an hour; a window that cuts one cannot be compared with them.
        let cut = windows.iter().any(|w| w.start().0 % SLOT_US != 0 || w.end().0 % SLOT_US != 0) && recipe.write.mode() == WriteMode::DeleteInsert;
        windows.sort();
        let mut router = crate::raw::Router::new(windows);
        let landed = slots.iter().filter(|s| router.find(s.start).is_some()).map(|s| s.late as u64).sum();
        let read = computed.iter().map(|c| c.record.late).sum();
        // A filter leaves records out on purpose: then only what it let through can be compared with itself.
        let records = if recipe.filter.is_some() || cut { read } else { landed };
        Ok(LateProof { records, counted: read })
    }

    fn others_proof(&mut self, manifest: &Manifest, published: SnapshotId) -> Result<OthersProof, Error> {
        let own: HashSet<&str> = manifest.partitions.iter().map(|p| p.partition.as_str()).collect();
        let dataset = &manifest.recipe.dataset;
        let mut others = OthersProof { partitions: 0, files: 0, changed: Vec::new() };
        let (touched, standing) = self.catalog.read(|v| {
            let latest = v.latest()?;
            let Some(table) = v.table(dataset, latest)? else { return Ok::<_, CatalogError>((vec![None], Vec::new())) };
            let touched = v.partitions_changed_at(&table, published)?;
            let mut standing = Vec::new();
            let mut records: BTreeMap<RunId, Vec<PartitionRecord>> = BTreeMap::new();
            for p in v
                .published(dataset, None)?
                .into_iter()
                .filter(|p| p.run == manifest.run || (p.published_snapshot < published && !own.contains(p.partition.as_str())))
            {
                if let Entry::Vacant(e) = records.entry(p.run) {
                    e.insert(v.run_partitions(p.run)?);
                }
                let files = records[&p.run].iter().find(|r| r.partition == p.partition).map(|r| r.files.clone()).unwrap_or_default();
                let live: Vec<String> = v.partition_files(&table, latest, &p.partition)?.into_iter().map(|f| f.path).collect();
                standing.push((p.partition, files, live));
            }
            Ok((touched, standing))
        })?;
        for name in touched.into_iter().filter(|t| t.as_deref().is_none_or(|t| !own.contains(t))) {
            others.changed.push(format!("{PARTITION} {} changed with the run", name.as_deref().unwrap_or("(none)")));
        }
        for (partition, files, live) in standing {
            let mine = own.contains(partition.as_str());
            others.partitions += !mine as u64;
            if files.iter().map(|f| &f.path).ne(live.iter()) {
                others.changed.push(format!("partition {partition} has other files than its run recorded"));
                continue;
            }
            for file in files {
                others.files += !mine as u64;
                match self.store.digest(&file.path) {
                    Ok((digest, _)) if digest == file.digest => {}
                    Ok(_) => others.changed.push(format!("{} is not what was published: its bytes changed", file.path)),
                    Err(e) => others.changed.push(format!("{e}: {}", e.source)),
                }
            }
        }
        Ok(others)
    }
}

/// What the run left out of each partition: a replay does not search again for what the transform fails on.
fn left_out(old: &Manifest) -> HashMap<String, LeftOut> {
    let records = |p: &PartitionRecord| p.quarantined.iter().map(|q| ((q.snapshot.0, q.seq), q.reason.clone())).collect();
    old.partitions.iter().map(|p| (p.partition.clone(), records(p))).collect()
}

fn planned(old: &Manifest) -> Result<Vec<PlannedPartition>, Error> {
    let window = |p: &PartitionRecord| Window::new(EventTime(p.start_us), EventTime(p.end_us));
    old.partitions.iter().map(|p| Ok(PlannedPartition { name: p.partition.clone(), window: window(p)?, reason: Reason::Forced })).collect()
}

/// Returns the partitions that today's time-zone database would cut otherwise than they were. A replay keeps to the instants
/// in the manifest, so its rows do not depend on it; a new run of the same dates would.
fn recut(calendar: Calendar, partitions: &[PartitionRecord]) -> Vec<&str> {
    let moved = |p: &&PartitionRecord| calendar.parse(&p.partition).map(|w| (w.start().0, w.end().0)) != Some((p.start_us, p.end_us));
    partitions.iter().filter(moved).map(|p| p.partition.as_str()).collect()
}

fn recut_note(old: &Manifest, now: &str) -> Option<String> {
    let (calendar, then) = (old.recipe.calendar(), &old.versions.time_zones);
    let moved = recut(calendar, &old.partitions);
    (!moved.is_empty()).then(|| {
        let (moved, zone, run) = (moved.join(", "), calendar.zone, old.run);
        format!("time zones {now} cut {moved} in {zone} at other instants than time zones {then} did; the instants of {run} were kept")
    })
}

/// A merge of rows that were published is no function of raw alone.
fn base_note(old: &Manifest) -> Option<String> {
    if !old.upstream.is_empty() {
        let of = |(dataset, count, runs): &(String, usize, Vec<RunId>)| {
            let runs = runs.iter().map(RunId::to_string).collect::<Vec<_>>().join(", ");
            format!("{count} partition(s) of {dataset} that {runs} had published")
        };
        let read = summary(&old.upstream).iter().map(of).collect::<Vec<_>>().join(" and ");
        return Some(format!(
            "the rerun read {read}, by their pinned hashes: it proves what this run made of them; `verify` of those runs proves how they came about"
        ));
    }
    let runs: std::collections::BTreeSet<RunId> = old.bases.iter().map(|b| b.run).collect();
    let names = runs.iter().map(RunId::to_string).collect::<Vec<_>>().join(", ");
    (!runs.is_empty()).then(|| {
        format!("the rerun read rows that {names} had published, by their pinned hashes, as well as raw: it proves what this run made of them, not how they came about")
    })
}

/// The dataset that a recipe describes: a replay measures nothing but checksums.
pub(super) fn without_checks(r: &Recipe) -> Result<Dataset, Error> {
    Ok(Dataset {
        name: r.dataset.clone(),
        inputs: r.sources.clone(),
        upstream: r.upstream.iter().map(|u| u.dataset.clone()).collect(),
        lookups: r.lookups.clone(),
        transform: TransformRef::parse(&r.transform).ok_or_else(|| Error::Internal(format!("{:?} is pinned as a transform", r.transform)))?,
        params: r.parameters.clone(),
        grain: r.grain,
        time_zone: r.time_zone,
        key: r.key.clone(),
        time_column: None,
        dedup: r.dedup.clone(),
        checks: Vec::new(),
        limits: r.limits,
        access: Default::default(),
        quarantine: r.quarantine,
    })
}

fn compare(old: &Manifest, computed: &[Computed]) -> Vec<PartitionProof> {
    old.partitions
        .iter()
        .zip(computed)
        .map(|(before, now)| PartitionProof {
            partition: before.partition.clone(),
            published: before.checksum,
            // A partition that was not there, and got no row, was not published.
            replayed: now.record.checksum.filter(|_| before.checksum.is_some() || now.record.rows > 0),
            rows: now.record.rows,
            input_equal: before.input_checksum == now.record.input_checksum,
        })
        .collect()
}

fn differs(p: &PartitionProof) -> String {
    let what = if p.input_equal { "the same records gave other rows" } else { "it read other records" };
    format!("{} ({what})", p.partition)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::window::Grain;

    #[test]
    fn a_day_that_another_database_cut_otherwise_is_named() {
        let berlin = Calendar { grain: Grain::Day, zone: chrono_tz::Europe::Berlin };
        let record = |name: &str, later_us: i64| {
            let window = berlin.parse(name).unwrap();
            PartitionRecord { partition: name.into(), start_us: window.start().0, end_us: window.end().0 + later_us, ..PartitionRecord::default() }
        };
        let days = [record("2026-03-28", 0), record("2026-03-29", 3_600_000_000)];
        assert_eq!(recut(berlin, &days), ["2026-03-29"]);
    }
}
