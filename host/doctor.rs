//! The health of a warehouse: every file against what was recorded of it, the catalog against its own rules, and what nobody knows.
//! Never mends and never removes anything: it names what is wrong and the way out.
//! Beside the main path: `doctor` asks all of it; runs, replays and proofs ask it of the files that they read.

use crate::{
    catalog::{Catalog, CatalogError, RecordedFile, TransformRow},
    id::{Digest, RunId},
    store::{GATE, Store, StoreError, each, owner_of, staged_list, staging},
};
use std::collections::HashSet;

/// Why the health could not be judged.
#[derive(Debug, thiserror::Error)]
pub enum DoctorError {
    /// The catalog refuses.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The folder refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A file that is not what was recorded of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BadFile {
    /// Its path, relative to the warehouse.
    pub path: String,
    /// What is wrong with it.
    pub fault: Fault,
}

/// What is wrong with a file.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is not there, or cannot be read.
    Unreadable(String),
    /// It is longer or shorter: recorded, found.
    Size(u64, u64),
    /// Its bytes are others: recorded, found.
    Bytes(Digest, Digest),
}

impl std::fmt::Display for BadFile {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let path = &self.path;
        match &self.fault {
            Fault::Unreadable(why) => write!(f, "{path} cannot be read: {why}"),
            Fault::Size(recorded, found) => write!(f, "{path} has {found} bytes, and had {recorded}"),
            Fault::Bytes(recorded, found) => write!(f, "{path} was changed: its SHA-256 is {}, and was {}", found.short(), recorded.short()),
        }
    }
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Files that were looked at, and their bytes.
    pub files: (u64, u64),
    /// Files of other tools, of which no hash is on record; their sizes were compared.
    pub foreign: u64,
    /// Files that are not what they were.
    pub bad: Vec<BadFile>,
    /// Rules of the catalog that do not hold, one line each.
    pub broken: Vec<String>,
    /// Files below the data folder that nothing refers to: path, bytes.
    pub orphans: Vec<(String, u64)>,
    /// What is as it was written, and yet not as it is declared by now, one line each.
    pub notes: Vec<String>,
}

impl Report {
    /// Returns whether the warehouse can be relied on. An orphan takes space and does no harm.
    pub fn healthy(&self) -> bool {
        self.bad.is_empty() && self.broken.is_empty()
    }
}

/// Looks at everything. With `quick`, sizes are compared and bytes are not read.
///
/// # Errors
/// The catalog cannot be read, or a folder cannot be listed.
pub fn examine(store: &Store, catalog: &mut Catalog, quick: bool, workers: usize) -> Result<Report, DoctorError> {
    // What is looked at must not be collected meanwhile.
    let _turn = store.lock("gc")?;
    let (mut files, transforms, pending) = catalog.read(|v| Ok::<_, CatalogError>((v.recorded_files()?, v.transforms()?, v.pending_runs()?)))?;
    let foreign = files.iter().filter(|f| f.digest.is_none()).count() as u64;
    files.extend(transforms.iter().map(component));
    let mut report = Report { broken: catalog.read(|v| v.broken_invariants())?, foreign, ..Report::default() };
    for run in pending {
        match staged(store, run) {
            Ok(staged) => files.extend(staged),
            // It may just have been published or discarded.
            Err(_) if !catalog.read(|v| v.pending_runs())?.contains(&run) => {}
            Err(problem) => report.broken.push(problem),
        }
    }
    report.files = (files.len() as u64, files.iter().map(|f| f.bytes).sum());
    report.bad = damaged(store, &files, quick, workers);
    let (staged, others): (Vec<BadFile>, Vec<BadFile>) = std::mem::take(&mut report.bad).into_iter().partition(|b| b.path.starts_with("staging/"));
    report.bad = others;
    for of_one in staged.chunk_by(|a, b| owner_of(&a.path) == owner_of(&b.path)) {
        report.bad.extend(still_bad(store, catalog, of_one, &files, quick)?);
    }
    // What is moved into place at this moment was meant to be before, or is known after.
    let meant = catalog.read(|v| v.leaving_files())?;
    let there = store.files_under("data")?;
    // Last, so that what was added meanwhile is known by now.
    let known: HashSet<String> = catalog.read(|v| {
        let known = v.recorded_files()?.into_iter().map(|f| f.path);
        Ok::<_, CatalogError>(known.chain(v.leaving_files()?).chain(meant).collect())
    })?;
    // A file, or the folder that it is in.
    let is_known = |path: &str| known.contains(path) || path.rfind('/').is_some_and(|end| known.contains(&path[..=end]));
    report.orphans = there.into_iter().filter(|(path, _)| !is_known(path)).collect();
    Ok(report)
}

/// Returns which staged files of a run are still not what was recorded once nobody else is at it: who publishes it has moved them, and is about to say so, or to
/// move them back.
fn still_bad(store: &Store, catalog: &mut Catalog, bad: &[BadFile], files: &[RecordedFile], quick: bool) -> Result<Vec<BadFile>, DoctorError> {
    let Some(owner) = bad.first().map(|b| owner_of(&b.path).to_owned()) else { return Ok(Vec::new()) };
    let claim = match store.exists(&staging(&owner)) {
        true => {
            let _gate = store.lock(GATE)?;
            Some(store.claim(&owner)?)
        }
        false => None,
    };
    let (pending, intents) = catalog.read(|v| Ok::<_, CatalogError>((v.pending_runs()?, v.intents()?)))?;
    let gone = !pending.iter().any(|run| run.to_string() == owner);
    if gone || matches!(claim, Some(None)) || intents.iter().any(|(of, _)| *of == owner) {
        return Ok(Vec::new());
    }
    let again = |b: &BadFile| {
        let file = files.iter().find(|f| f.path == b.path)?;
        fault(store, file, quick).map(|fault| BadFile { path: b.path.clone(), fault })
    };
    Ok(bad.iter().filter_map(again).collect())
}

/// Returns those of `files` that are not what was recorded, in their order; several are read at once.
pub fn damaged(store: &Store, files: &[RecordedFile], quick: bool, workers: usize) -> Vec<BadFile> {
    let bad = |file: &RecordedFile| fault(store, file, quick).map(|fault| BadFile { path: file.path.clone(), fault });
    each(files, workers, bad).into_iter().flatten().collect()
}

fn fault(store: &Store, file: &RecordedFile, quick: bool) -> Option<Fault> {
    let unreadable = |e: StoreError| Some(Fault::Unreadable(e.source.to_string()));
    match store.size(&file.path) {
        Ok(size) if size != file.bytes => return Some(Fault::Size(file.bytes, size)),
        Ok(_) => {}
        Err(e) => return unreadable(e),
    }
    let recorded = file.digest.filter(|_| !quick)?;
    match store.digest(&file.path) {
        Ok((found, _)) => (found != recorded).then_some(Fault::Bytes(recorded, found)),
        Err(e) => unreadable(e),
    }
}

fn component(t: &TransformRow) -> RecordedFile {
    let table = format!("{}@{}", t.name, t.version);
    RecordedFile { table, path: format!("transforms/{}.wasm", t.digest), bytes: t.size_bytes as u64, digest: Some(t.digest) }
}

/// The files of a run that waits.
fn staged(store: &Store, run: RunId) -> Result<Vec<RecordedFile>, String> {
    let lost = |e: &dyn std::fmt::Display| format!("what {run} staged is lost ({e}); discard it");
    let bytes = store.read(&staged_list(&run.to_string())).map_err(|e| lost(&e.source))?;
    let staged: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| lost(&e))?;
    let file = |f: &serde_json::Value| {
        let digest = f["digest"].as_str()?.parse().ok()?;
        Some(RecordedFile { table: run.to_string(), path: f["path"].as_str()?.into(), bytes: f["file"]["bytes"].as_u64()?, digest: Some(digest) })
    };
    staged["files"].as_array().and_then(|files| files.iter().map(file).collect()).ok_or_else(|| lost(&"staged.json is not what it was"))
}
