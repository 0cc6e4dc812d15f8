//! A transform tried out: the same pinned input again and again, cut, spread and compiled otherwise. A result may not show any of it.
//! Never publishes and never records a run: rows are staged, compared and thrown away.

use super::{
    Error, RunRequest, Workshop, component_path,
    diff::Side,
    grant,
    run::{Prepared, Shape, chain, compute, fit, fresh_table},
    upstream,
};
use crate::{
    catalog::Table,
    config::{Dataset, Limits, TransformRef},
    execute::{Computed, Grouping, Progress, output_fields},
    id::{Digest, SnapshotId},
    manifest::{Kind, Mode, Recipe, Validation, WriteMode, checksum_of},
    moves,
    plan::{PlannedPartition, plan},
    store::{self, staging},
    time::EventTime,
    transform::{Cache, Engine, Transform},
};
use std::{collections::BTreeMap, path::PathBuf};

/// What is tried out.
#[derive(Clone, Debug)]
pub enum Candidate {
    /// A registered version.
    Registered(TransformRef),
    /// A component that need not be registered.
    File(PathBuf),
}

/// What is tried out, and on what.
#[derive(Clone, Debug)]
pub struct TrialRequest {
    /// The transform.
    pub candidate: Candidate,
    /// The dataset whose input it gets.
    pub dataset: String,
    /// Start of the window: a date, a partition or an instant.
    pub start: String,
    /// End of the window: a date or a partition (inclusive), or an instant (exclusive); none: that of `start`.
    pub end: Option<String>,
    /// The version of the warehouse to read, instead of the latest.
    pub snapshot: Option<SnapshotId>,
    /// Why payloads of masked sources are to be read, if they are: the operator's word for it.
    pub grant_payload: Option<String>,
    /// Parameters that override the declared ones.
    pub params: Vec<(String, String)>,
}

/// One way of computing the same thing.
#[derive(Debug)]
pub struct Trial {
    /// What was done otherwise, in words.
    pub what: String,
    /// Partitions that came out otherwise.
    pub differing: u64,
    /// The first row that differs; `None` if none does.
    pub difference: Option<String>,
    /// Why it could not be carried out: then nothing is known of its rows.
    pub error: Option<Error>,
}

impl Trial {
    /// Returns why it could not be carried out, with the causes.
    pub fn failure(&self) -> Option<String> {
        self.error.as_ref().map(chain)
    }
}

/// What came of it.
#[derive(Debug)]
pub struct Trials {
    /// The transform, as name@version.
    pub transform: String,
    /// Its bytes.
    pub digest: Digest,
    /// The dataset.
    pub dataset: String,
    /// The version of the warehouse that was read.
    pub input_snapshot: SnapshotId,
    /// Partitions computed each time.
    pub partitions: u64,
    /// Records read each time.
    pub records: u64,
    /// Records that it fails on, which are left out.
    pub quarantined: u64,
    /// Rows made each time.
    pub rows: u64,
    /// The checksum over all partitions, as they came out first.
    pub checksum: Digest,
    /// What was tried.
    pub trials: Vec<Trial>,
}

impl Trials {
    /// Returns the trials that came out otherwise.
    pub fn differing(&self) -> impl Iterator<Item = &Trial> {
        self.trials.iter().filter(|t| t.difference.is_some())
    }

    /// Returns what is to be reported: rows that differ, which prove it, or else trials that could not be carried out, with the first one's error.
    pub fn verdict(self) -> Result<(), Error> {
        let transform = self.transform.clone();
        let differing: Vec<String> = self.differing().map(|t| t.what.clone()).collect();
        if !differing.is_empty() {
            return Err(Error::Unsteady { transform, trials: differing });
        }
        let mut failed = self.trials.into_iter().filter_map(|t| Some((t.what, t.error?)));
        let Some((first, source)) = failed.next() else { return Ok(()) };
        let trials = std::iter::once(first).chain(failed.map(|(what, _)| what)).collect();
        Err(Error::Untried { transform, trials, source: Box::new(source) })
    }
}

impl Workshop {
    /// Computes a window many times over: other batches, workers, groups of partitions and memory, a second compilation; and compares.
    ///
    /// # Errors
    /// The transform does not fit or fails at the first time already; the window has no records. A difference, and a later failure, are in the result.
    pub fn try_out(&mut self, request: &TrialRequest, progress: &dyn Progress) -> Result<Trials, Error> {
        let limits = self.project.dataset(&request.dataset)?.limits;
        let (transform, bytes) = self.candidate(&request.candidate, &limits)?;
        let d = transform.descriptor();
        let reference = TransformRef { name: d.name.clone(), version: d.version.clone() };
        let mut dataset = Dataset { transform: reference, checks: Vec::new(), ..self.project.dataset(&request.dataset)?.clone() };
        dataset.params.extend(request.params.iter().cloned());
        self.refuse_other_ids(&dataset)?;
        let asked = run_request(request, &dataset.transform);
        let (facts, _) = self.facts(&dataset, transform.digest(), request.snapshot)?;
        let planned = plan(&facts, &self.plan_request(&asked, &dataset)?)?;
        let Some(hull) = planned.hull().filter(|_| !planned.ranges.is_empty()) else {
            let message = format!("there is nothing of {} in that window to try {} on", dataset.name, dataset.transform);
            return Err(Error::Usage { message, hint: Some(format!("`restitch status {}` shows which partitions have records", dataset.name)) });
        };
        let now = self.options.clock.now();
        let mut recipe = Recipe::of(&dataset, transform.digest(), facts.input_snapshot, now.0, 0);
        recipe.follows = moves::follows(&self.project, &dataset);
        recipe.upstream = upstream::inputs(&self.project, &dataset);
        let fields = self.upstream_fields(&recipe)?;
        fit(&self.project, &dataset, d, &mut recipe, &fields)?;
        self.refuse_unreadable(&dataset, &recipe)?;
        grant::of_run(&self.project, &dataset, d, &asked, &self.options.operator)?;
        let masked = request.grant_payload.is_none() && self.project.sources.values().any(|s| dataset.inputs.contains(&s.name) && s.is_masked());
        let partitions: Vec<PlannedPartition> = planned.partitions().collect();
        let pinned = self.pin_upstream(&recipe, hull)?;
        let records = upstream::expected(&recipe, &pinned, &facts.slots);
        let table = fresh_table(&dataset.name, &output_fields(&d.output));
        let prepared = self.prepare(recipe, transform.clone(), &dataset, (hull, pinned), masked)?;
        let owner = format!("verify-{}", uuid::Uuid::new_v4());
        let claim = self.claim(&owner)?;
        let series = Series { workshop: self, prepared, partitions, records, table, owner: owner.clone(), bytes };
        let done = series.go(progress);
        self.store.remove_dir(&staging(&owner)).ok();
        drop(claim);
        done
    }

    /// The transform, with the bytes that it is compiled from a second time.
    fn candidate(&mut self, candidate: &Candidate, limits: &Limits) -> Result<(Transform, Vec<u8>), Error> {
        let (bytes, file) = match candidate {
            Candidate::Registered(reference) => {
                let digest = self.transform_row(reference)?.digest;
                (self.component(digest)?, component_path(digest))
            }
            Candidate::File(file) => (store::read_bytes(file)?, file.display().to_string()),
        };
        let transform = self.engine_for(limits)?.load(&bytes).map_err(|source| Error::Component { file, source })?;
        Ok((transform, bytes))
    }
}

/// The same computation, over and over.
struct Series<'w> {
    workshop: &'w Workshop,
    prepared: Prepared,
    partitions: Vec<PlannedPartition>,
    records: BTreeMap<EventTime, i64>,
    table: Table,
    owner: String,
    bytes: Vec<u8>,
}

impl Series<'_> {
    fn go(mut self, progress: &dyn Progress) -> Result<Trials, Error> {
        let usual = Shape::usual(&self.workshop.options);
        let first = self.compute("first", usual, progress)?;
        let mut trials = Vec::new();
        for (what, shape) in ways(usual) {
            trials.push(self.attempt(what, shape, &first, progress)?);
        }
        // Last, because the transform is another object from here on: nothing compiled is taken over.
        let metered = self.prepared.recipe.limits.fuel_max.is_some();
        let engine = if metered { Engine::metered(Cache::Off) } else { Engine::new(Cache::Off) };
        let again = engine.and_then(|e| e.load(&self.bytes));
        self.prepared.transform = again.map_err(|source| Error::Component { file: "the second compilation".into(), source })?;
        trials.push(self.attempt("compiled a second time, without the cache".into(), usual, &first, progress)?);
        let records = first.iter().map(|c| c.record.records).sum();
        let rows = first.iter().map(|c| c.record.rows).sum();
        let quarantined = first.iter().map(|c| c.record.quarantined.len() as u64).sum();
        let checksum = checksum_of(first.iter().filter_map(|c| Some((c.record.partition.as_str(), c.record.checksum.as_ref()?))));
        let recipe = &self.prepared.recipe;
        Ok(Trials {
            transform: recipe.transform.clone(),
            digest: recipe.transform_digest,
            dataset: recipe.dataset.clone(),
            input_snapshot: recipe.input_snapshot,
            partitions: first.len() as u64,
            records,
            quarantined,
            rows,
            checksum,
            trials,
        })
    }

    fn folder(&self, name: &str) -> String {
        format!("{}/{name}", staging(&self.owner))
    }

    fn compute(&self, name: &str, shape: Shape, progress: &dyn Progress) -> Result<Vec<Computed>, Error> {
        let (store, folder) = (&self.workshop.store, self.folder(name));
        Ok(compute(store, &self.prepared, &self.partitions, (&self.records, &[]), Some(&self.table), &folder, shape, None, progress)?.0)
    }

    fn attempt(&self, what: String, shape: Shape, first: &[Computed], progress: &dyn Progress) -> Result<Trial, Error> {
        let computed = match self.compute("again", shape, progress) {
            Ok(computed) => computed,
            // A limit, or memory, may have been met by this way of computing alone: that is no other result.
            Err(e @ Error::Execute(_)) => {
                self.workshop.store.remove_dir(&self.folder("again"))?;
                return Ok(Trial { what, differing: 0, difference: None, error: Some(e) });
            }
            Err(e) => return Err(e),
        };
        let pairs = || first.iter().zip(&computed).filter(|(a, b)| a.record.checksum != b.record.checksum);
        let difference = match pairs().next() {
            Some((a, b)) => {
                let side = |c: &Computed| Side {
                    fields: self.table.fields(),
                    files: c.files.iter().map(|f| (f.path.clone(), f.file.bytes as u64)).collect(),
                };
                let recipe = &self.prepared.recipe;
                let key = if a.doubled_keys + b.doubled_keys > 0 { &[] } else { recipe.key.as_slice() };
                let found = self.workshop.first_difference(&side(a), &side(b), key, &self.owner)?;
                Some(found.map_or_else(|| format!("partition {}: its checksum", a.record.partition), |d| d.to_string()))
            }
            None => None,
        };
        let differing = pairs().count() as u64;
        self.workshop.store.remove_dir(&self.folder("again"))?;
        Ok(Trial { what, differing, difference, error: None })
    }
}

/// Memory that no partition of more than a record fits into, so that each is streamed.
const LITTLE_MEMORY_BYTES: usize = 64;
/// More workers than most machines have cores.
const MANY_WORKERS: usize = 8;

fn ways(usual: Shape) -> Vec<(String, Shape)> {
    let mut ways = vec![("the same again".to_owned(), usual)];
    ways.extend([1, 7, 1000].map(|n| (format!("batches of {n} row{}", if n == 1 { "" } else { "s" }), Shape { batch_rows: n, ..usual })));
    ways.extend([1, 2, MANY_WORKERS].map(|n| (format!("{n} worker{}", if n == 1 { "" } else { "s" }), Shape { workers: n, ..usual })));
    ways.push(("each partition a task of its own".into(), Shape { grouping: Grouping::Alone, ..usual }));
    ways.push(("all partitions in one task".into(), Shape { grouping: Grouping::Together, ..usual }));
    ways.push(("little memory: partitions streamed, not held".into(), Shape { memory_bytes: LITTLE_MEMORY_BYTES, ..usual }));
    ways
}

fn run_request(request: &TrialRequest, transform: &TransformRef) -> RunRequest {
    RunRequest {
        kind: Kind::Backfill,
        dataset: request.dataset.clone(),
        start: Some(request.start.clone()),
        end: request.end.clone().or_else(|| Some(request.start.clone())),
        only: None,
        transform: Some(transform.clone()),
        mode: Mode::DryRun,
        write: WriteMode::Overwrite,
        validation: Validation::Off,
        filter: None,
        snapshot: request.snapshot,
        reason: None,
        grant_payload: request.grant_payload.clone(),
        seed: 0,
        params: request.params.clone(),
        partitions_max: None,
        bytes_max: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_way_is_another_one() {
        let usual = Shape { memory_bytes: 1 << 30, workers: 3, batch_rows: 8192, grouping: Grouping::Usual };
        let ways = ways(usual);
        assert!(ways[1..].iter().all(|(_, shape)| *shape != usual));
    }
}
