//! The door to files: durable writes, renames, links and locks inside one warehouse folder.
//! Never knows what is in a file. A path handed to it is relative to the warehouse.

use crate::{
    id::{Digest, RunId},
    window::path_segment,
};
use sha2::{Digest as _, Sha256};
pub use std::fs::File;
use std::{
    collections::BTreeSet,
    fs::{self, TryLockError},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    thread::ScopedJoinHandle,
};

/// A file operation that failed, with its path.
#[derive(Debug, thiserror::Error)]
#[error("cannot {action} {path}", path = path.display())]
pub struct StoreError {
    /// What was tried.
    pub action: &'static str,
    /// Where.
    pub path: PathBuf,
    /// Why not.
    #[source]
    pub source: io::Error,
}

/// Something in the way of a folder: a link to what is not there.
#[derive(Debug, thiserror::Error)]
#[error("{} is a link to {}, and nothing is there", link.display(), target.display())]
pub struct DeadLink {
    /// The link.
    pub link: PathBuf,
    /// What it leads to, as it says.
    pub target: PathBuf,
}

/// The files of one warehouse.
#[derive(Clone, Debug)]
pub struct Store {
    root: PathBuf,
    faults: Faults,
}

/// Deaths on purpose, for tests, at the n-th change of files or catalog. Clones count together.
#[derive(Clone, Debug, Default)]
pub struct Faults(Option<Arc<Death>>);

#[derive(Debug)]
struct Death {
    left: AtomicI64,
    real: bool,
}

impl Faults {
    /// Returns faults that let `steps` changes happen; at the next the process unwinds, as if it had been killed there.
    pub fn after(steps: i64) -> Faults {
        Faults(Some(Arc::new(Death { left: AtomicI64::new(steps), real: false })))
    }

    /// Returns faults that let `steps` changes happen; at the next the process ends itself by SIGKILL.
    pub fn killing(steps: i64) -> Faults {
        Faults(Some(Arc::new(Death { left: AtomicI64::new(steps), real: true })))
    }

    /// Returns how many more changes may happen; `None` if there is no end to them.
    pub fn left(&self) -> Option<i64> {
        self.0.as_ref().map(|death| death.left.load(Ordering::SeqCst))
    }

    /// Counts a change; dies if its time has come.
    pub fn step(&self) {
        let Some(death) = &self.0 else { return };
        if death.left.fetch_sub(1, Ordering::SeqCst) > 0 {
            return;
        }
        if death.real {
            die();
        }
        panic!("killed by a fault that was asked for");
    }
}

/// Ends this process at once, from outside: nothing of it runs any more, no destructor and no clean-up.
fn die() -> ! {
    let killed = std::process::Command::new("kill").args(["-9", &std::process::id().to_string()]).status();
    // The signal arrives while this thread waits; where there is no `kill`, an abort runs as little.
    if killed.is_ok_and(|status| status.success()) {
        std::thread::sleep(std::time::Duration::from_secs(10));
    }
    std::process::abort()
}

/// Threads that wait for a disk side by side, and how many files make one worth its start.
const WAITERS_MAX: usize = 16;
const FILES_PER_WAITER: usize = 8;

/// Returns whether one call for all files of a file system promises what a call for each does: Linux tells its errors since 5.8 (syncfs(2)), and file
/// systems that live in a process (FUSE) or on top of another one need not pass it on.
#[cfg(target_os = "linux")]
fn syncs_honestly(file: &File) -> bool {
    const EXT: u64 = 0xEF53;
    const XFS: u64 = 0x5846_5342;
    const BTRFS: u64 = 0x9123_683E;
    const F2FS: u64 = 0xF2F5_2010;
    let kernel = rustix::system::uname();
    let mut numbers = kernel.release().to_str().unwrap_or_default().split(|c: char| !c.is_ascii_digit()).map_while(|n| n.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let kind = rustix::fs::fstatfs(file).map_or(0, |f| f.f_type as u64 & 0xFFFF_FFFF);
    version >= (5, 8) && [EXT, XFS, BTRFS, F2FS].contains(&kind)
}

/// Returns what a thread gave; its panic goes on here.
pub(crate) fn joined<T>(thread: ScopedJoinHandle<T>) -> T {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Does something with each of `items` on `workers` threads, of which the caller's is one, and returns what it gave, in their order.
pub fn each<T: Sync, R: Send>(items: &[T], workers: usize, act: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let begun = AtomicUsize::new(0);
    let work = || {
        let mut done = Vec::new();
        loop {
            let i = begun.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(i) else { return done };
            done.push((i, act(item)));
        }
    };
    let mut done: Vec<(usize, R)> = std::thread::scope(|scope| {
        let threads: Vec<_> = (1..workers.min(items.len())).map(|_| scope.spawn(work)).collect();
        let own = work();
        own.into_iter().chain(threads.into_iter().flat_map(joined)).collect()
    });
    done.sort_unstable_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

/// Does something with each of many files, and returns what it gave, in their order: a disk that is asked for several at once writes them
/// down together. Few files are taken one after the other, on the caller's thread.
///
/// # Errors
/// The first failure, in their order; what comes after it may be done or not.
pub fn spread<T: Sync, R: Send, E: Send>(files: &[T], each: impl Fn(&T) -> Result<R, E> + Sync) -> Result<Vec<R>, E> {
    let share = files.len().div_ceil(WAITERS_MAX).max(FILES_PER_WAITER);
    if files.len() <= share {
        return files.iter().map(each).collect();
    }
    let each = &each;
    std::thread::scope(|scope| {
        let one = |share: &'_ [T]| share.iter().map(each).collect::<Result<Vec<R>, E>>();
        let waiters: Vec<_> = files.chunks(share).map(|share| scope.spawn(move || one(share))).collect();
        let done: Vec<_> = waiters.into_iter().map(joined).collect();
        done.into_iter().collect::<Result<Vec<_>, E>>().map(|all| all.into_iter().flatten().collect())
    })
}

/// Where a second name cannot be given, a copy is made: no hard links, or another file system.
const NO_LINKS: [io::ErrorKind; 4] =
    [io::ErrorKind::Unsupported, io::ErrorKind::PermissionDenied, io::ErrorKind::TooManyLinks, io::ErrorKind::CrossesDevices];

/// So many files are made durable by one call for all that their file system holds: one by one, each costs a wait for the disk. It also writes what others
/// left to be written, so few files are not worth it.
#[cfg(target_os = "linux")]
const SYNC_ALL_FILES: usize = 256;

/// How often a folder is tried that somebody else makes or removes at the same moment.
const TRIES_MAX: u32 = 100;

/// A claim on a staging folder. While it is held, no other process takes the folder for a dead one's.
#[derive(Debug)]
pub struct Claim {
    _file: File,
}

trait At<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, StoreError>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, action: &'static str, path: &Path) -> Result<T, StoreError> {
        self.map_err(|source| StoreError { action, path: path.into(), source })
    }
}

impl Store {
    /// Returns the store in `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> Store {
        Store { root: root.into(), faults: Faults::default() }
    }

    /// Returns the same store with these faults.
    pub fn with_faults(self, faults: Faults) -> Store {
        Store { faults, ..self }
    }

    /// Returns its faults, for the catalog beside it.
    pub fn faults(&self) -> Faults {
        self.faults.clone()
    }

    /// Returns the absolute or working-directory path of `relative`.
    pub fn path(&self, relative: &str) -> PathBuf {
        self.root.join(relative)
    }

    /// Returns whether a folder, there or yet to be made, lies inside this one.
    pub fn holds(&self, folder: &Path) -> bool {
        let real = |path: &Path| -> Option<PathBuf> {
            let absolute = std::path::absolute(path).ok()?;
            let there = absolute.ancestors().find(|a| a.exists())?;
            Some(there.canonicalize().ok()?.join(absolute.strip_prefix(there).ok()?))
        };
        real(folder).zip(real(&self.root)).is_some_and(|(folder, root)| folder.starts_with(root))
    }

    /// Returns whether there is a file or folder at `relative`.
    pub fn exists(&self, relative: &str) -> bool {
        self.path(relative).exists()
    }

    /// Creates the folder `relative` and those above it.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn create_dir(&self, relative: &str) -> Result<(), StoreError> {
        make_folder(&self.path(relative))
    }

    /// Creates a new file for writing. It is not durable before [`Store::sync`].
    ///
    /// # Errors
    /// The file exists or cannot be made.
    pub fn create(&self, relative: &str) -> Result<File, StoreError> {
        self.faults.step();
        let path = self.path(relative);
        in_folder(&path, || File::create_new(&path))?.at("create", &path)
    }

    /// Opens a file for reading.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn open(&self, relative: &str) -> Result<File, StoreError> {
        let path = self.path(relative);
        File::open(&path).at("open", &path)
    }

    /// Refuses a file that may not be written; one that is not there is no error. It is not opened: whoever closes a file gives up all locks that the
    /// process holds on it, those of SQLite too.
    ///
    /// # Errors
    /// It may not be written by this user, or its file system is read-only.
    pub fn may_write(&self, relative: &str) -> Result<(), StoreError> {
        let path = self.path(relative);
        #[cfg(unix)]
        let may = rustix::fs::access(&path, rustix::fs::Access::WRITE_OK).map_err(io::Error::from);
        #[cfg(not(unix))]
        let may = fs::metadata(&path).map(drop);
        match may {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            may => may.at("write", &path),
        }
    }

    /// Returns the whole file.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn read(&self, relative: &str) -> Result<Vec<u8>, StoreError> {
        let path = self.path(relative);
        fs::read(&path).at("read", &path)
    }

    /// Writes a whole file so that it is there completely or not at all, and stays there after a power cut.
    /// An existing file of that name is left alone: names are content hashes or unique.
    ///
    /// # Errors
    /// The disk is full, the folder is read-only.
    /// # After a crash
    /// At most a file with the ending `.partial` is left.
    pub fn put(&self, relative: &str, bytes: &[u8]) -> Result<(), StoreError> {
        if self.exists(relative) {
            return Ok(());
        }
        let partial = format!("{relative}.{}.partial", uuid::Uuid::new_v4());
        let path = self.path(&partial);
        let mut file = self.create(&partial)?;
        let written = file.write_all(bytes).and_then(|()| file.sync_all()).at("write", &path).and_then(|()| self.rename(&partial, relative));
        if written.is_err() {
            fs::remove_file(&path).ok();
            return written;
        }
        self.sync_parent(relative)
    }

    /// Makes what was written to `relative` durable.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn sync(&self, relative: &str) -> Result<(), StoreError> {
        self.faults.step();
        let path = self.path(relative);
        File::open(&path).and_then(|f| f.sync_all()).at("make durable", &path)
    }

    /// Makes what was written to files of one folder durable.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn sync_files(&self, files: &[&str]) -> Result<(), StoreError> {
        #[cfg(target_os = "linux")]
        if let Some(first) = files.first().filter(|_| files.len() >= SYNC_ALL_FILES) {
            let path = self.path(first);
            let file = File::open(&path).at("make durable", &path)?;
            if syncs_honestly(&file) {
                self.faults.step();
                return rustix::fs::syncfs(&file).map_err(io::Error::from).at("make durable", &path);
            }
        }
        spread(files, |file| self.sync(file)).map(drop)
    }

    /// Makes the entry of `relative` in its folder durable.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn sync_parent(&self, relative: &str) -> Result<(), StoreError> {
        let path = self.path(relative);
        let parent = path.parent().unwrap_or(&self.root);
        File::open(parent).and_then(|f| f.sync_all()).at("make durable", parent)
    }

    /// Makes the entries of new files durable: each folder once, and the folders above, which may be new as well.
    ///
    /// # Errors
    /// The disk refuses.
    pub fn sync_entries(&self, paths: &[String]) -> Result<(), StoreError> {
        let mut folders = BTreeSet::new();
        for path in paths {
            folders.extend(Path::new(path).ancestors().skip(1));
        }
        let folders: Vec<PathBuf> = folders.into_iter().map(|folder| self.root.join(folder)).collect();
        spread(&folders, |path| File::open(path).and_then(|f| f.sync_all()).at("make durable", path)).map(drop)
    }

    /// Moves a file inside the warehouse. To another file system (`staging` may be a link to one) it is copied, made durable, and removed.
    ///
    /// # Errors
    /// The target's folder cannot be made, or the disk is full.
    /// # After an error or a crash
    /// The whole file has its old name, and nothing or a part of it may have the new one.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), StoreError> {
        if self.moved("move a file to", from, to)? {
            return Ok(());
        }
        let from = self.path(from);
        copy_durably(&from, &self.path(to), &over())?;
        fs::remove_file(&from).at("remove", &from)
    }

    /// Moves a folder and all that is in it inside the warehouse, at once. Returns whether it did: to another file system nothing is moved.
    ///
    /// # Errors
    /// There is no such folder, or something is at its new name.
    pub fn move_dir(&self, from: &str, to: &str) -> Result<bool, StoreError> {
        self.moved("move a folder to", from, to)
    }

    /// Moves what can be moved by giving it another name.
    fn moved(&self, action: &'static str, from: &str, to: &str) -> Result<bool, StoreError> {
        self.faults.step();
        let (from, to) = (self.path(from), self.path(to));
        match in_folder(&to, || fs::rename(&from, &to))? {
            Err(e) if e.kind() == io::ErrorKind::CrossesDevices => Ok(false),
            moved => moved.at(action, &to).map(|()| true),
        }
    }

    /// Gives files second names, each pair from and to, or copies them where the file system has no hard links.
    ///
    /// # Errors
    /// A file is gone, or a new name exists.
    pub fn link(&self, pairs: &[(&str, &str)]) -> Result<(), StoreError> {
        let Some(((from, to), rest)) = pairs.split_first() else { return Ok(()) };
        // A folder takes one new name at a time, and waits for no disk: side by side they would only be in each other's way. Copies do wait.
        if self.link_one(from, to)? {
            rest.iter().try_for_each(|(from, to)| self.link_one(from, to).map(drop))
        } else {
            spread(rest, |(from, to)| self.link_one(from, to)).map(drop)
        }
    }

    /// Returns whether it is a link, and not a copy.
    fn link_one(&self, from: &str, to: &str) -> Result<bool, StoreError> {
        self.faults.step();
        let (source, target) = (self.path(from), self.path(to));
        match in_folder(&target, || fs::hard_link(&source, &target))? {
            Ok(()) => Ok(true),
            Err(e) if NO_LINKS.contains(&e.kind()) => copy_durably(&source, &target, &over()).map(|_| false),
            Err(e) => Err(e).at("link", &source),
        }
    }

    /// Copies a file into another store, under the same name and durably, and returns its size.
    ///
    /// # Errors
    /// It is gone, something has its name there already, or the other store's disk refuses.
    pub fn copy_to(&self, relative: &str, other: &Store) -> Result<u64, StoreError> {
        let (from, to) = (self.path(relative), other.path(relative));
        if let Some(parent) = to.parent() {
            make_folder(parent)?;
        }
        copy_durably(&from, &to, File::options().write(true).create_new(true))
    }

    /// Removes a file. One that is not there is no error.
    ///
    /// # Errors
    /// The folder is read-only.
    pub fn remove(&self, relative: &str) -> Result<(), StoreError> {
        self.faults.step();
        let path = self.path(relative);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e).at("remove", &path),
            _ => Ok(()),
        }
    }

    /// Removes those of some folders that files of runs were in, where nothing is in them any more: only the run puts files there, and each of them once. What
    /// is in the way stays.
    pub fn remove_run_folders<'p>(&self, folders: impl Iterator<Item = &'p Path>) {
        let is_run = |name: &str| name.parse::<RunId>().is_ok_and(|run| run.to_string() == name);
        let folders: BTreeSet<&Path> = folders.collect();
        for folder in folders.into_iter().filter(|f| f.file_name().and_then(|n| n.to_str()).is_some_and(is_run)) {
            fs::remove_dir(self.root.join(folder)).ok();
        }
    }

    /// Removes a folder with all that is in it. One that is not there is no error.
    ///
    /// # Errors
    /// The folder is read-only.
    pub fn remove_dir(&self, relative: &str) -> Result<(), StoreError> {
        self.faults.step();
        let path = self.path(relative);
        let mut tries = 0;
        loop {
            tries += 1;
            match fs::remove_dir_all(&path) {
                // Somebody who asks whether its owner lives has put the lock back meanwhile.
                Err(e) if e.kind() == io::ErrorKind::DirectoryNotEmpty && tries < TRIES_MAX => continue,
                Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e).at("remove the folder", &path),
                _ => return Ok(()),
            }
        }
    }

    /// Returns the names in a folder, sorted; none if there is no such folder.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn list(&self, relative: &str) -> Result<Vec<String>, StoreError> {
        let path = self.path(relative);
        let entries = match fs::read_dir(&path) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(e).at("read the folder", &path),
        };
        let mut names = Vec::new();
        for entry in entries {
            names.push(entry.at("read the folder", &path)?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    /// Returns the files in a folder and the folders below it, with their sizes, sorted; none if there is no such folder.
    ///
    /// # Errors
    /// A folder cannot be read.
    pub fn files_under(&self, relative: &str) -> Result<Vec<(String, u64)>, StoreError> {
        let mut files = Vec::new();
        for name in self.list(relative)? {
            let below = format!("{relative}/{name}");
            // What goes while it is looked at is not there.
            match fs::metadata(self.path(&below)) {
                Ok(m) if m.is_dir() => files.extend(self.files_under(&below)?),
                Ok(m) => files.push((below, m.len())),
                Err(_) => {}
            }
        }
        Ok(files)
    }

    /// Returns the size of a file in bytes.
    ///
    /// # Errors
    /// There is none, or it cannot be looked at.
    pub fn size(&self, relative: &str) -> Result<u64, StoreError> {
        let path = self.path(relative);
        Ok(fs::metadata(&path).at("look at", &path)?.len())
    }

    /// Returns the SHA-256 and the size of a file.
    ///
    /// # Errors
    /// There is none, or it cannot be read.
    pub fn digest(&self, relative: &str) -> Result<(Digest, u64), StoreError> {
        let path = self.path(relative);
        let mut file = File::open(&path).at("open", &path)?;
        let whole = file.metadata().at("look at", &path)?.len();
        // One byte more than it has: a small file is read at once, and its end is seen with it.
        let (mut hash, mut size, mut buffer) = (Sha256::new(), 0, vec![0; whole.saturating_add(1).min(1 << 18) as usize]);
        loop {
            let n = file.read(&mut buffer).at("read", &path)?;
            if n == 0 {
                return Ok((Digest(hash.finalize().into()), size));
            }
            hash.update(&buffer[..n]);
            size += n as u64;
        }
    }

    /// Claims the staging folder `owner`, creating it; `None` if a living process has it.
    ///
    /// # Errors
    /// The folder cannot be made.
    pub fn claim(&self, owner: &str) -> Result<Option<Claim>, StoreError> {
        let path = self.path(&format!("{}/lock", staging(owner)));
        let mut tries = 0;
        let file = loop {
            tries += 1;
            match self.create_dir(&staging(owner)) {
                // It was there when it was to be made, and its owner has removed it since.
                Err(e) if e.source.kind() == io::ErrorKind::AlreadyExists && tries < TRIES_MAX => continue,
                made => made?,
            }
            match File::options().create(true).truncate(false).write(true).open(&path) {
                // Its owner has just removed the folder.
                Err(e) if e.kind() == io::ErrorKind::NotFound && tries < TRIES_MAX => continue,
                opened => break opened.at("open", &path)?,
            }
        };
        match file.try_lock() {
            Ok(()) => Ok(Some(Claim { _file: file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(e)) => Err(e).at("lock", &path),
        }
    }
}

/// Taken while an owner comes to be, and while the dead are looked for: so nobody is taken for dead before it has its claim.
pub const GATE: &str = "gate";

impl Store {
    /// Waits for, and takes, the lock of that name: one holder at a time, over all processes.
    ///
    /// # Errors
    /// The folder is not writable.
    pub fn lock(&self, name: &str) -> Result<Claim, StoreError> {
        self.create_dir("staging")?;
        let path = self.path(&format!("staging/{name}.lock"));
        let file = File::options().create(true).truncate(false).write(true).open(&path).at("open", &path)?;
        file.lock().at("lock", &path)?;
        Ok(Claim { _file: file })
    }
}

/// Makes a folder and those above it. A link that leads nowhere is in the way, and the system only says that something is there.
fn make_folder(path: &Path) -> Result<(), StoreError> {
    fs::create_dir_all(path)
        .map_err(|e| dead_link(path).map_or(e, |dead| io::Error::new(io::ErrorKind::AlreadyExists, dead)))
        .at("create the folder", path)
}

/// The first link on the way up that leads nowhere.
fn dead_link(path: &Path) -> Option<DeadLink> {
    path.ancestors().filter(|at| !at.exists()).find_map(|at| Some(DeadLink { link: at.into(), target: fs::read_link(at).ok()? }))
}

/// Makes something at a path; its folder is made when it turns out to be missing, and not looked for before each of many files.
fn in_folder<T>(path: &Path, make: impl Fn() -> io::Result<T>) -> Result<io::Result<T>, StoreError> {
    match (make(), path.parent()) {
        (Err(e), Some(folder)) if e.kind() == io::ErrorKind::NotFound => {
            make_folder(folder)?;
            Ok(make())
        }
        (made, _) => Ok(made),
    }
}

/// How a copy is made over a part of it that an earlier try left.
fn over() -> fs::OpenOptions {
    let mut options = File::options();
    options.write(true).create(true).truncate(true);
    options
}

/// Copies a file with its rights into one that is opened in this way, so that the copy stays after a power cut once its folder is made durable.
fn copy_durably(from: &Path, to: &Path, how: &fs::OpenOptions) -> Result<u64, StoreError> {
    let mut source = File::open(from).at("open", from)?;
    let rights = source.metadata().at("look at", from)?.permissions();
    let mut copy = how.open(to).at("copy a file to", to)?;
    copy.set_permissions(rights).and_then(|()| io::copy(&mut source, &mut copy)).at("copy a file to", to).and_then(|bytes| {
        copy.sync_all().at("make durable", to)?;
        Ok(bytes)
    })
}

/// Returns the staging folder of `owner` (a run, or an ingest).
pub fn staging(owner: &str) -> String {
    format!("staging/{owner}")
}

/// Returns where in a staging folder, or in one below it, a run has its output and nothing else: one rename moves it into place.
pub fn staged_files(folder: &str) -> String {
    format!("{folder}/files")
}

/// Returns where it is written what a run has staged, for `publish`.
pub fn staged_list(owner: &str) -> String {
    format!("staging/{owner}/staged.json")
}

/// Returns whose a staging folder is, or one below it.
pub fn owner_of(folder: &str) -> &str {
    folder.split('/').nth(1).unwrap_or_default()
}

/// Returns how a run's file of a partition is called; several of one are numbered.
pub fn file_name(owner: &str, partition: &str, number: usize) -> String {
    format!("{}-{owner}-{number}.parquet", path_segment(partition))
}

/// Returns the text of a file outside any warehouse, such as restitch.toml.
///
/// # Errors
/// There is none, it cannot be read, or it is not UTF-8.
pub fn read_text(path: &Path) -> Result<String, StoreError> {
    fs::read_to_string(path).at("read", path)
}

/// Returns the bytes of a file outside any warehouse, such as a component.
///
/// # Errors
/// There is none, or it cannot be read.
pub fn read_bytes(path: &Path) -> Result<Vec<u8>, StoreError> {
    fs::read(path).at("read", path)
}

/// Writes a new file outside any warehouse.
///
/// # Errors
/// It exists, or its folder is not writable.
pub fn write_new(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    if let Some(parent) = path.parent() {
        make_folder(parent)?;
    }
    File::create_new(path).and_then(|mut f| f.write_all(bytes)).at("create", path)
}

/// Writes a file outside any warehouse, over one that is there.
///
/// # Errors
/// Its folder is not writable.
pub fn write(path: &Path, bytes: &[u8]) -> Result<(), StoreError> {
    fs::write(path, bytes).at("write", path)
}

/// Returns whether nobody but this user (and the system's administrator) can write into a folder outside any warehouse, which is made if it is missing.
/// What another user could have written is not to be trusted, compiled code above all.
///
/// # Errors
/// It cannot be made or written.
pub fn is_private(folder: &Path) -> Result<bool, StoreError> {
    make_folder(folder)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let about = fs::metadata(folder).at("look at", folder)?;
        // Whose process this is, a file that it makes tells.
        let own = tempfile::tempfile_in(folder).and_then(|f| f.metadata()).at("write into", folder)?;
        Ok(about.mode() & 0o022 == 0 && [0, own.uid()].contains(&about.uid()))
    }
    #[cfg(not(unix))]
    Ok(true)
}

/// Returns whether a folder outside any warehouse is missing or empty.
///
/// # Errors
/// It cannot be read.
pub fn is_free(folder: &Path) -> Result<bool, StoreError> {
    match fs::read_dir(folder) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(e).at("read the folder", folder),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn a_copy_into_another_store_is_written_over_nothing_and_names_what_is_not_there() {
        let (here, there) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (store, other) = (Store::new(here.path()), Store::new(there.path()));
        store.put("data/a", b"new").unwrap();
        assert_eq!(store.copy_to("data/a", &other).unwrap(), 3);
        other.remove("data/a").unwrap();
        other.put("data/a", b"older").unwrap();
        let e = store.copy_to("data/a", &other).unwrap_err();
        assert_eq!((e.source.kind(), e.path), (io::ErrorKind::AlreadyExists, other.path("data/a")));
        assert_eq!(other.read("data/a").unwrap(), b"older");
        let e = store.copy_to("data/b", &other).unwrap_err();
        assert_eq!((e.source.kind(), e.path), (io::ErrorKind::NotFound, store.path("data/b")));
    }

    #[test]
    fn a_claim_is_not_in_the_way_of_an_owner_who_removes_its_folder() {
        let folder = tempfile::tempdir().unwrap();
        let (store, done) = (Store::new(folder.path()), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    drop((store.create_dir(&staging("query-1")), store.remove_dir(&staging("query-1"))));
                }
            });
            let failed = (0..5_000).find_map(|_| store.claim("query-1").err());
            done.store(true, Ordering::Relaxed);
            assert!(failed.is_none(), "{failed:?}");
        });
    }
}
