//! What was before a run comes back: in all of its partitions, or in some of them, as a run of its own.
//! Never computes a row, and never touches a partition that was not chosen.
//! The choice and the manifest are made here; the swap is `publish::rollback`.

use super::{Error, Workshop};
use crate::{
    catalog::{CatalogError, View},
    gc,
    id::RunId,
    manifest::{Kind, Manifest, Mode, PartitionRecord, Recipe, Status, Write},
    publish::{self, PublishError},
    store::GATE,
    time::EventTime,
    window::Window,
};
use std::collections::{HashMap, HashSet, hash_map::Entry};

/// Which run is undone, and where.
#[derive(Clone, Debug)]
pub struct RollbackRequest {
    /// The run.
    pub run: RunId,
    /// Only these of its partitions, by name; none named: all.
    pub partitions: Vec<String>,
    /// Only its partitions inside this window: first and last date or partition (inclusive), or instants (the second exclusive).
    pub window: Option<(String, String)>,
    /// Also where later runs have replaced them.
    pub force: bool,
    /// Why, for the manifest.
    pub reason: Option<String>,
}

/// What came of it.
#[derive(Debug)]
pub struct RolledBack {
    /// The rollback's own manifest.
    pub manifest: Manifest,
    /// Partitions of the run that were not chosen.
    pub left: u64,
    /// Partitions that stood already as they were before the run, and were passed over: name, and the rollback that did it (none, if they are not there).
    pub back_already: Vec<(String, Option<RunId>)>,
}

/// Partitions of a run, chosen to be undone.
struct Chosen {
    partitions: Vec<PartitionRecord>,
    /// As they were typed.
    asked: Vec<String>,
    back_already: Vec<(String, Option<RunId>)>,
}

impl Workshop {
    /// Restores what was before a run, in all of its partitions.
    ///
    /// # Errors
    /// See [`Workshop::roll_back`].
    pub fn rollback(&mut self, run: RunId, force: bool, reason: Option<String>) -> Result<Manifest, Error> {
        let request = RollbackRequest { run, partitions: Vec::new(), window: None, force, reason };
        self.roll_back(&request).map(|done| done.manifest)
    }

    /// Restores what was before a run, in the partitions that are asked for. Where none are, those that an earlier rollback of the same run gave
    /// back are passed over, so that the rest of a run is undone by naming the run.
    ///
    /// # Errors
    /// It has no such partition; see [`publish::rollback`].
    pub fn roll_back(&mut self, request: &RollbackRequest) -> Result<RolledBack, Error> {
        let run = request.run;
        let mut undone = self.show(run)?.row.manifest;
        if undone.kind == Kind::Reparse {
            return Err(Error::NotUndoable { run });
        }
        let all = undone.partitions.len() as u64;
        let Chosen { partitions, asked, back_already } = self.choose(&undone, request)?;
        undone.partitions = partitions;
        self.admit_rollback(&undone)?;
        let first = undone.partitions.iter().find(|p| p.prior_run.is_none());
        let raw_gone = self.catalog.read(|v| gc::missing_raw(&v, &undone))?;
        if let (false, Some(p), Some(gone)) = (request.force, first, raw_gone) {
            let message = format!("nothing stood in {} before {run}, and it could not be computed again: {gone}", p.partition);
            return Err(Error::Usage { message, hint: Some("--force takes its rows away all the same".into()) });
        }
        let left = all - (undone.partitions.len() + back_already.len()) as u64;
        let manifest = self.give_back(&undone, asked, request)?;
        Ok(RolledBack { manifest, left, back_already })
    }

    /// Makes the rollback's run and swaps; `undone` has the chosen partitions alone.
    fn give_back(&mut self, undone: &Manifest, asked: Vec<String>, request: &RollbackRequest) -> Result<Manifest, Error> {
        let now = self.options.clock.now();
        let operator = self.options.operator.clone();
        let (run, reason) = (undone.run, request.reason.clone());
        let window = if asked.is_empty() { undone.window.clone() } else { hull(&undone.partitions) };
        let versions = self.versions(&undone.recipe.limits)?;
        // It computes nothing: how the undone run chose and wrote its rows is not its own.
        let recipe = Recipe { filter: None, write: Write::Overwrite, ..undone.recipe.clone() };
        let store = self.store.clone();
        let rolled = publish::rollback(&self.store, &mut self.catalog, undone, request.force, now, |catalog, partitions, upstream| {
            let _gate = store.lock(GATE)?;
            let manifest = catalog.record(|r| {
                let base = r.view().latest()?;
                r.new_run(now, |id| Manifest {
                    run: id,
                    kind: Kind::Rollback,
                    status: Status::Running,
                    mode: Mode::Overwrite,
                    asked,
                    window,
                    only: None,
                    recipe,
                    versions,
                    operator,
                    reason,
                    of_run: Some(run),
                    plan_digest: None,
                    bases: Vec::new(),
                    upstream,
                    together: Vec::new(),
                    others: None,
                    base_snapshot: base,
                    published_snapshot: None,
                    published_by: None,
                    published_us: None,
                    inputs: Vec::new(),
                    partitions,
                    checks: Vec::new(),
                    checksum: None,
                    timings: Default::default(),
                    grants: Vec::new(),
                    approval: None,
                    gaps: Vec::new(),
                    log: Vec::new(),
                    error: None,
                    discarded: None,
                    ..undone.clone()
                })
            })?;
            let claim = store.claim(&manifest.run.to_string())?.ok_or(PublishError::Busy { run: manifest.run })?;
            Ok((manifest, claim))
        })?;
        Ok(rolled)
    }

    /// The partitions of a run that are asked for.
    fn choose(&mut self, undone: &Manifest, request: &RollbackRequest) -> Result<Chosen, Error> {
        let run = undone.run;
        let partitions = undone.partitions.clone();
        let unknown = |message: String| {
            let (first, last) = (undone.partitions.first(), undone.partitions.last());
            let range = first.zip(last).map_or("no partitions".into(), |(f, l)| format!("{} to {}", f.partition, l.partition));
            Error::Usage { message, hint: Some(format!("{run} has {range}; `restitch show {run}` lists them")) }
        };
        if let Some((start, end)) = &request.window {
            let calendar = undone.recipe.calendar();
            let window = calendar.resolve(start, end)?;
            calendar.check_aligned(window)?;
            let inside: Vec<_> = partitions.into_iter().filter(|p| window.start().0 <= p.start_us && p.end_us <= window.end().0).collect();
            if inside.is_empty() {
                return Err(unknown(format!("{run} has no partition from {start} to {end}")));
            }
            return Ok(Chosen { partitions: inside, asked: vec![start.clone(), end.clone()], back_already: Vec::new() });
        }
        if !request.partitions.is_empty() {
            let wanted: HashSet<&str> = request.partitions.iter().map(String::as_str).collect();
            if let Some(name) = request.partitions.iter().find(|name| !partitions.iter().any(|p| p.partition == **name)) {
                return Err(unknown(format!("{run} has no partition {name:?}")));
            }
            let named = partitions.into_iter().filter(|p| wanted.contains(p.partition.as_str())).collect();
            return Ok(Chosen { partitions: named, asked: request.partitions.clone(), back_already: Vec::new() });
        }
        let mut back = self.catalog.read(|v| back_already(&v, undone))?;
        if back.len() == partitions.len() {
            // Nothing is left to do, and that is said as of every run that does not stand any more.
            back.clear();
        }
        let names: HashSet<&str> = back.iter().map(|(name, _)| name.as_str()).collect();
        let rest = partitions.into_iter().filter(|p| !names.contains(p.partition.as_str())).collect();
        Ok(Chosen { partitions: rest, asked: Vec::new(), back_already: back })
    }
}

/// Partitions of a run that stand as they were before it, because a rollback of it gave them back.
fn back_already(view: &View, undone: &Manifest) -> Result<Vec<(String, Option<RunId>)>, CatalogError> {
    let mut undoes: HashMap<RunId, bool> = HashMap::new();
    let mut back = Vec::new();
    let standing = view.published_of(&undone.recipe.dataset, undone.partitions.iter().map(|p| EventTime(p.start_us)))?;
    for p in &undone.partitions {
        match standing.get(&EventTime(p.start_us)) {
            None if p.prior_run.is_none() && p.checksum.is_some() => back.push((p.partition.clone(), None)),
            Some(stands) if stands.run != undone.run => {
                if let Entry::Vacant(v) = undoes.entry(stands.run) {
                    v.insert(view.run(stands.run)?.is_some_and(|r| r.manifest.kind == Kind::Rollback && r.manifest.of_run == Some(undone.run)));
                }
                if undoes[&stands.run] {
                    back.push((p.partition.clone(), Some(stands.run)));
                }
            }
            _ => {}
        }
    }
    Ok(back)
}

/// The smallest window around partitions, as a manifest has it.
fn hull(partitions: &[PartitionRecord]) -> Option<[String; 2]> {
    let (start, end) = (partitions.iter().map(|p| p.start_us).min()?, partitions.iter().map(|p| p.end_us).max()?);
    let (start, end) = Window::new(EventTime(start), EventTime(end)).ok()?.bounds_text();
    Some([start, end])
}
