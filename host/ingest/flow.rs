//! The threads of an ingest: files are decoded side by side, full buffers are written side by side.
//! Never lets one be further ahead than a few pieces: what is held does not grow with the number of files.
//! Between both `ingest` takes the pieces one after the other, in the order of the files.

use super::{
    IngestError,
    land::{Buffer, RawShape},
};
use crate::{
    catalog::{IdEntry, id_hash, id_slot},
    config::Source,
    datafile::Written,
    decode::{self, Chunk, DecodeError, Summary},
    store::{Store, joined},
};
use std::{
    collections::VecDeque,
    path::Path,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread::{Scope, ScopedJoinHandle},
};

/// What a file gives, one after the other.
pub(super) enum Piece {
    /// Some of its records, and their ids if they are asked for.
    Chunk(Box<Chunk>, Vec<IdEntry>),
    /// It ended.
    End(Box<Summary>),
}

/// Files to be decoded.
pub(super) struct Job<'j> {
    pub(super) source: &'j Source,
    pub(super) files: &'j [&'j Path],
    /// Threads.
    pub(super) workers: usize,
    /// Whether the ids are wanted for their index.
    pub(super) ids: bool,
}

/// Files that are decoded before it is their turn, besides one for each thread.
const AHEAD: usize = 1;

/// Nobody wants the pieces any more.
enum Stop {
    Asked,
    Decode(DecodeError),
}

impl From<DecodeError> for Stop {
    fn from(e: DecodeError) -> Stop {
        Stop::Decode(e)
    }
}

/// Threads that take work from one queue: the queue is gone when all of them have ended.
type Queue<T> = Arc<Mutex<mpsc::Receiver<T>>>;

fn next<T>(queue: &Queue<T>) -> Option<T> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// Decodes the files of a job side by side, and gives `take` their pieces in the order of the files, with the number of each file.
///
/// # Errors
/// The first error of a file, in their order, or that of `take`.
pub(super) fn decode_all(job: &Job, take: &mut dyn FnMut(usize, Piece) -> Result<(), IngestError>) -> Result<(), IngestError> {
    let files = job.files;
    let (ask, asked) = mpsc::channel::<(&Path, Sender)>();
    let asked: Queue<(&Path, Sender)> = Arc::new(Mutex::new(asked));
    let decode_asked = || while next(&asked).is_some_and(|(file, sender)| decode_one(job, file, &sender).is_ok()) {};
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..job.workers.min(files.len())).map(|_| scope.spawn(decode_asked)).collect();
        let (mut rest, mut begun, mut done) = (files.iter(), VecDeque::new(), Ok(()));
        for i in 0..files.len() {
            while begun.len() < threads.len() + AHEAD
                && let Some(file) = rest.next()
            {
                let (sender, receiver) = mpsc::sync_channel(1);
                ask.send((file, sender)).ok();
                begun.push_back(receiver);
            }
            let Some(pieces) = begun.pop_front() else { break };
            let mut ended = false;
            done = pieces.iter().try_for_each(|piece| {
                let piece = piece?;
                ended = matches!(piece, Piece::End(_));
                take(i, piece)
            });
            // A file without an end is one over which its thread panicked: that goes on when the thread is joined.
            if done.is_err() || !ended {
                break;
            }
        }
        // Nobody takes pieces any more, or asks for files: so the threads end.
        drop((begun, ask));
        threads.into_iter().for_each(joined);
        done
    })
}

type Sender = mpsc::SyncSender<Result<Piece, IngestError>>;

/// Decodes one file; fails if nobody takes its pieces.
fn decode_one(job: &Job, file: &Path, sender: &Sender) -> Result<(), Stop> {
    let decoded = decode::decode::<Stop>(job.source, file, &decode::Options::default(), &mut |chunk| {
        let ids = if job.ids { ids_of(&chunk) } else { Vec::new() };
        sender.send(Ok(Piece::Chunk(Box::new(chunk), ids))).map_err(|_| Stop::Asked)
    });
    let last = match decoded {
        Ok(summary) => Ok(Piece::End(Box::new(summary))),
        Err(Stop::Decode(e)) => Err(e.into()),
        Err(Stop::Asked) => return Err(Stop::Asked),
    };
    sender.send(last).map_err(|_| Stop::Asked)
}

fn ids_of(chunk: &Chunk) -> Vec<IdEntry> {
    let ids = chunk.record_ids.iter().flatten().zip(&chunk.event_times);
    ids.map(|(id, at)| (id_hash(id), id_slot(*at))).collect()
}

/// Returns files with the numbers of their buffers.
type Syncing<'scope> = ScopedJoinHandle<'scope, Result<Vec<(usize, Written)>, IngestError>>;

/// Threads that write full buffers as files of a staging folder.
pub(super) struct Writers<'scope> {
    sender: Option<mpsc::SyncSender<(usize, Buffer)>>,
    sent: usize,
    failed: Arc<AtomicBool>,
    threads: Vec<ScopedJoinHandle<'scope, Result<(), IngestError>>>,
    /// Makes durable what was written, while others compute.
    syncing: Option<Syncing<'scope>>,
}

impl<'scope> Writers<'scope> {
    /// Starts `workers` threads that write into the folder `staging`.
    pub(super) fn start<'env>(
        scope: &'scope Scope<'scope, 'env>,
        store: &'env Store,
        staging: &'env str,
        shape: &'env RawShape,
        workers: usize,
    ) -> Writers<'scope> {
        let (sender, receiver) = mpsc::sync_channel::<(usize, Buffer)>(0);
        let (queue, failed) = (Arc::new(Mutex::new(receiver)), Arc::new(AtomicBool::new(false)));
        let (written, to_sync) = mpsc::channel::<(usize, Written)>();
        let thread = |_| {
            let (queue, failed, written) = (queue.clone(), failed.clone(), written.clone());
            let write_all = move || {
                while let Some((i, buffer)) = next(&queue) {
                    let file = buffer.write(store, format!("{staging}/raw-{i}.parquet"), shape)?;
                    // Where the other end is gone, the disk refused, and that is what is told.
                    written.send((i, file)).ok();
                }
                Ok(())
            };
            scope.spawn(move || write_all().inspect_err(|_| failed.store(true, Ordering::Relaxed)))
        };
        let threads = (0..workers).map(thread).collect();
        let ended = failed.clone();
        let sync_all = move || to_sync.iter().map(|(i, file)| store.sync(&file.path).map(|()| (i, file)).map_err(IngestError::from)).collect();
        let syncing = scope.spawn(move || {
            let synced: Result<Vec<_>, IngestError> = sync_all();
            synced.inspect_err(|_| ended.store(true, Ordering::Relaxed))
        });
        Writers { sender: Some(sender), sent: 0, failed, threads, syncing: Some(syncing) }
    }

    /// Hands over a buffer; waits until a thread has time for it.
    ///
    /// # Errors
    /// An earlier one could not be written.
    pub(super) fn write(&mut self, buffer: Buffer) -> Result<(), IngestError> {
        let sent = match &self.sender {
            Some(sender) if !self.failed.load(Ordering::Relaxed) => sender.send((self.sent, buffer)).is_ok(),
            _ => false,
        };
        self.sent += 1;
        if sent { Ok(()) } else { self.finish().map(drop) }
    }

    /// Waits for all, and returns the files in the order of their buffers.
    ///
    /// # Errors
    /// One could not be written.
    pub(super) fn finish(&mut self) -> Result<Vec<Written>, IngestError> {
        self.sender = None;
        let ended: Vec<_> = self.threads.drain(..).map(joined).collect();
        let synced = self.syncing.take().map_or(Ok(Vec::new()), joined);
        ended.into_iter().collect::<Result<(), _>>()?;
        let mut written = synced?;
        written.sort_unstable_by_key(|(i, _)| *i);
        Ok(written.into_iter().map(|(_, file)| file).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Project;

    #[test]
    fn a_thread_that_panics_is_told_and_not_waited_for() {
        let toml = "[warehouse]\npath = \"w\"\n[source.s]\nformat = \"jsonl\"\nevent_time = \"at\"\n[source.s.columns]\nat = { type = \"timestamp\", nullable = false }\n";
        let mut source = Project::parse("restitch.toml", toml).unwrap().sources["s"].clone();
        // No project has such a source; a decoder takes it for a mistake of ours.
        source.event_time = "nowhere".into();
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        store.put("file", b"{}\n").unwrap();
        let path = store.path("file");
        for (workers, files) in [(1, 1), (1, 5), (3, 5)] {
            let files = vec![path.as_path(); files];
            let job = Job { source: &source, files: &files, workers, ids: false };
            let decoded = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| decode_all(&job, &mut |_, _| Ok(()))));
            let panic = decoded.unwrap_err();
            assert!(
                panic.downcast_ref::<&str>().is_some_and(|s| s.contains("BUG")) || panic.downcast_ref::<String>().is_some_and(|s| s.contains("BUG"))
            );
        }
    }
}
