//! A backup: the catalog at one moment, and every file that it names, while others go on writing.
//! Never copies a catalog as a file: what is still in its log would be missing.

use super::{Error, Workshop, run::read_staged};
use crate::{
    catalog::{FILE, Named, RecordedFile},
    doctor,
    id::{Digest, RunId},
    store::{Store, is_free, owner_of, staged_list, staging},
};
use std::{collections::HashSet, io, path::Path};

/// What a backup holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Backup {
    /// Files copied, the catalog not counted.
    pub files: u64,
    /// Their size.
    pub bytes: u64,
}

/// What the catalog of a backup is called until all is there that it names.
pub(super) fn partial_catalog() -> String {
    format!("{FILE}.partial")
}

fn taken(folder: &Path) -> Error {
    let message = format!("{} is not empty", folder.display());
    Error::Usage { message, hint: Some("a backup is a folder of its own".into()) }
}

fn refuse_taken(folder: &Path) -> Result<(), Error> {
    if is_free(folder)? { Ok(()) } else { Err(taken(folder)) }
}

/// Takes a folder for a backup: whoever makes its unfinished catalog first has it.
fn take(folder: &Path) -> Result<Store, Error> {
    // Another backup may have been made while this one waited.
    refuse_taken(folder)?;
    let (to, partial) = (Store::new(folder), partial_catalog());
    match to.create(&partial) {
        Err(e) if e.source.kind() == io::ErrorKind::AlreadyExists => return Err(taken(folder)),
        made => drop(made?),
    }
    // One that was finished since then has its catalog's last name.
    if to.list("")? != [partial.as_str()] {
        to.remove(&partial)?;
        return Err(taken(folder));
    }
    Ok(to)
}

impl Workshop {
    /// Copies the warehouse into `folder`, which must be missing or empty: a warehouse that can be opened.
    ///
    /// # Errors
    /// The folder is not empty or not writable, or another backup is made there; a file that the catalog names is gone, or not what was recorded of it.
    /// # After an error or a crash
    /// The folder has no catalog, so it is no warehouse. What another backup put there is as it was.
    pub fn backup(&mut self, folder: &Path) -> Result<Backup, Error> {
        refuse_taken(folder)?;
        if self.store.holds(folder) {
            let message = format!("{} lies inside the warehouse", folder.display());
            return Err(Error::Usage { message, hint: Some("a backup stands outside of what it copies".into()) });
        }
        // What the copy names must not be collected meanwhile.
        let _turn = self.store.lock("gc")?;
        let to = take(folder)?;
        for below in ["data/main", "staging", "transforms"] {
            to.create_dir(below)?;
        }
        // First the catalog, then its files: what it names is durable, and is never changed.
        let partial = partial_catalog();
        let Named { data_files, pending } = self.catalog.copy_to(&to, &partial)?;
        // What is staged first: somebody who publishes it moves its files before the catalog says so.
        let (mut paths, mut recorded) = (Vec::new(), Vec::new());
        let record = |path: &str, bytes: u64, digest| RecordedFile { table: String::new(), path: path.into(), bytes, digest: Some(digest) };
        for run in pending {
            let staged = read_staged(&self.store, run).ok().filter(|staged| staged.files.iter().all(|file| self.store.exists(&file.path)));
            let Some(staged) = staged else { return Err(self.not_whole(run)?) };
            recorded.extend(staged.files.iter().map(|file| record(&file.path, file.file.bytes as u64, file.digest)));
            paths.extend(staged.files.into_iter().map(|file| file.path).chain([staged_list(&run.to_string())]));
        }
        let named: HashSet<&String> = data_files.iter().collect();
        recorded.extend(self.catalog.read(|v| v.recorded_files())?.into_iter().filter(|file| named.contains(&file.path)));
        paths.extend(data_files);
        for component in self.store.list("transforms")?.into_iter().filter(|n| !n.ends_with(".partial")) {
            let path = format!("transforms/{component}");
            if let Some(digest) = component.strip_suffix(".wasm").and_then(|name| name.parse::<Digest>().ok()) {
                recorded.push(record(&path, self.store.size(&path)?, digest));
            }
            paths.push(path);
        }
        let mut done = Backup::default();
        for path in &paths {
            done.bytes += self.copy(path, &to)?;
            done.files += 1;
        }
        // The copies are read, and not what they were copied from: what is wrong with either is found.
        if let Some(bad) = doctor::damaged(&to, &recorded, false, self.options.workers).into_iter().next() {
            return Err(Error::Unsound { bad: Box::new(bad) });
        }
        to.sync_entries(&paths)?;
        to.sync(&partial)?;
        to.rename(&partial, FILE)?;
        to.sync_parent(FILE)?;
        Ok(done)
    }

    /// Copies a file; one that a run has staged may go meanwhile, as it is looked at before all of the others.
    fn copy(&mut self, path: &str, to: &Store) -> Result<u64, Error> {
        match (self.store.copy_to(path, to), owner_of(path).parse()) {
            (Err(e), Ok(run)) if path.starts_with("staging/") && e.source.kind() == io::ErrorKind::NotFound => Err(self.not_whole(run)?),
            (copied, _) => Ok(copied?),
        }
    }

    /// Says why not all is there of what a run has staged.
    fn not_whole(&mut self, run: RunId) -> Result<Error, Error> {
        let owner = run.to_string();
        let waits = self.catalog.read(|v| v.pending_runs())?.contains(&run);
        if waits && (!self.store.exists(&staging(&owner)) || self.claim(&owner)?.is_some()) {
            let message = format!("what {run} staged is not all there");
            return Ok(Error::Usage { message, hint: Some(format!("`restitch discard {run}`, empty the folder, and back up again")) });
        }
        let message = format!("{} went while it was copied: its run was published or discarded", staging(&owner));
        Ok(Error::Usage { message, hint: Some("empty the folder, and back up again".into()) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        pipeline::{Options, PROJECT_FILE},
        time::{Clock, IngestTime},
    };

    /// `publish` moves the files of a run while they are copied.
    #[test]
    fn a_staged_file_that_goes_is_told_as_a_run_that_was_published() {
        let (project, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        crate::store::write_new(&project.path().join(PROJECT_FILE), b"[warehouse]\npath = \"warehouse\"\n").unwrap();
        let (operator, clock) = ("tester".to_owned(), Clock::Fixed(IngestTime(0)));
        let options = Options { operator, token: None, clock, memory_bytes: 1 << 20, workers: 1, faults: Default::default() };
        let mut workshop = Workshop::open(project.path(), options).unwrap();
        let mut copy = |path: &str| workshop.copy(path, &Store::new(to.path())).unwrap_err();
        let e = copy("staging/r7/files/2026-05-01-r7-0.parquet");
        assert_eq!(e.to_string(), "staging/r7 went while it was copied: its run was published or discarded");
        assert_eq!(e.hint().unwrap(), "empty the folder, and back up again");
        let e = copy("data/main/daily/r7/2026-05-01-r7-0.parquet");
        assert_eq!(e.to_string(), format!("cannot open {}", project.path().join("warehouse/data/main/daily/r7/2026-05-01-r7-0.parquet").display()));
    }
}
