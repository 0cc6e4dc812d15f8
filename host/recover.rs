//! What a dead process left behind: found by its claim, finished or taken back.
//! Never touches a file that the catalog refers to, and never what a living process holds.
//! Every command that opens a warehouse runs it first.

use crate::{
    catalog::{Catalog, CatalogError, StateWrite},
    id::RunId,
    manifest::{Manifest, Status},
    store::{GATE, Store, StoreError, staged_files, staged_list, staging},
    time::IngestTime,
};
use std::{collections::BTreeSet, path::Path};

/// Why recovery could not be completed. It is tried again by the next command.
#[derive(Debug, thiserror::Error)]
pub enum RecoverError {
    /// The catalog refuses.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The folder refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What was found and done, for people: one line each.
pub type Findings = Vec<String>;

/// Takes back what dead processes left.
///
/// # Errors
/// The catalog or the folder refuses; nothing that readers see has changed.
/// # After a crash
/// It can be run again: each step is either done or still to do.
pub fn recover(store: &Store, catalog: &mut Catalog, now: IngestTime) -> Result<Findings, RecoverError> {
    let mut findings = Vec::new();
    // Whoever is about to begin waits here, so that an owner without a claim is dead.
    let _gate = store.lock(GATE)?;
    let (intents, running) = catalog.read(|v| Ok::<_, CatalogError>((v.intents()?, v.running()?)))?;
    let mut owners: BTreeSet<String> = intents.into_iter().map(|(owner, _)| owner).collect();
    owners.extend(running.iter().map(|r| r.to_string()));
    owners.extend(store.list("staging")?.into_iter().filter(|n| is_owner(n)));
    for owner in owners {
        let Some(claim) = store.claim(&owner)? else { continue };
        // Only now: what was read before the claim may have been finished in between.
        let state = match owner.parse::<RunId>() {
            Ok(run) => catalog.read(|v| {
                let Some(row) = v.run(run)? else { return Ok::<_, CatalogError>(None) };
                Ok(Some(Manifest { partitions: v.run_partitions(run)?, checks: v.checks(run)?, ..row.manifest }))
            })?,
            Err(_) => None,
        };
        let withdrawn = withdraw(store, catalog, &owner)?;
        // Staged output waits for `publish` or `discard`, and belongs to nobody's process.
        if state.as_ref().is_some_and(|m| matches!(m.status, Status::Staged | Status::Rejected)) {
            if withdrawn > 0 {
                findings.push(format!("publishing {owner} had died half-way: taken back, it is still staged"));
            }
            continue;
        }
        if let Some(mut manifest) = state.filter(|m| m.status == Status::Running) {
            manifest.status = Status::Failed;
            manifest.error = Some("its process died; nothing was published".into());
            catalog.record(|r| r.put_run(&manifest, Some(now)))?;
            findings.push(format!("run {} had died before it published anything: marked as failed", manifest.run));
        } else if owner.starts_with("ingest-") && withdrawn > 0 {
            findings.push(format!("an ingest had died before it landed anything: {withdrawn} file(s) removed; ingest again"));
        }
        store.remove_dir(&staging(&owner))?;
        drop(claim);
    }
    Ok(findings)
}

/// Returns whether a name in staging is that of somebody who works there. What else lies there is not ours: a file system's `lost+found`, a file of a file manager.
fn is_owner(name: &str) -> bool {
    ["ingest-", "query-", "verify-"].iter().any(|kind| name.starts_with(kind)) || name.parse::<RunId>().is_ok_and(|run| run.to_string() == name)
}

/// Takes back what `owner` moved into place without a commit that refers to it. Of a run whose output waits, the folder, whose path ends with `/`, becomes what it
/// was; files of others, and second names of files that are still staged, are removed. Returns how many files it was.
///
/// # Errors
/// The catalog or the folder refuses.
/// # After a crash
/// It can be called again: what is moved back is moved at once, and before anything is removed.
pub fn withdraw(store: &Store, catalog: &mut Catalog, owner: &str) -> Result<usize, RecoverError> {
    let intents: Vec<String> = catalog.read(|v| v.intents())?.into_iter().filter(|(o, _)| o == owner).map(|(_, p)| p).collect();
    if intents.is_empty() {
        return Ok(0);
    }
    let mut paths = Vec::new();
    for intent in &intents {
        match intent.strip_suffix('/') {
            Some(folder) => paths.extend(store.list(folder)?.into_iter().map(|name| format!("{intent}{name}"))),
            None => paths.push(intent.clone()),
        }
    }
    // The commit that would refer to them also clears the intents, so none of them is referred to.
    // Twice is cheap: what the catalog refers to is never touched.
    let referred = catalog.read(|v| v.referred(&paths.iter().map(String::as_str).collect::<Vec<_>>()))?;
    paths.retain(|path| store.exists(path) && !referred.contains(path));
    let waits = store.exists(&staged_list(owner)) && !store.exists(&staged_files(&staging(owner)));
    let moved = match intents.iter().find(|i| i.ends_with('/')) {
        Some(folder) if waits && referred.is_empty() && !paths.is_empty() => move_back(store, owner, folder, &paths)?,
        _ => false,
    };
    if !moved {
        paths.iter().try_for_each(|path| store.remove(path))?;
        store.remove_run_folders(intents.iter().filter(|i| i.ends_with('/')).map(Path::new));
    }
    catalog.record(|r| r.clear_intents(owner))?;
    Ok(paths.len())
}

/// Makes the files of a folder the staged output of `owner` again. Returns whether they were moved, and not copied to another file system.
fn move_back(store: &Store, owner: &str, folder: &str, paths: &[String]) -> Result<bool, StoreError> {
    let staged = staged_files(&staging(owner));
    let moved = store.move_dir(folder, &staged)?;
    if !moved {
        let partial = format!("{staged}.partial");
        store.remove_dir(&partial)?;
        let copies: Vec<String> = paths.iter().map(|path| format!("{partial}{}", &path[folder.len() - 1..])).collect();
        store.link(&paths.iter().zip(&copies).map(|(from, to)| (from.as_str(), to.as_str())).collect::<Vec<_>>())?;
        store.sync_entries(&copies[..1])?;
        store.move_dir(&partial, &staged)?;
    }
    store.sync_parent(&staged)?;
    store.sync_parent(folder)?;
    Ok(moved)
}
