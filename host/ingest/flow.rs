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
    let (senders, receivers): (Vec<_>, Vec<_>) = files.iter().map(|_| mpsc::sync_channel(1)).unzip();
    let senders: Mutex<Vec<Option<Sender>>> = Mutex::new(senders.into_iter().map(Some).collect());
    let (ask, asked) = mpsc::channel::<usize>();
    let asked: Queue<usize> = Arc::new(Mutex::new(asked));
    let decode_asked = || {
        while let Some(i) = next(&asked) {
            let sender = senders.lock().unwrap_or_else(PoisonError::into_inner)[i].take();
            if sender.is_none_or(|sender| decode_one(job, files[i], &sender).is_err()) {
                return;
            }
        }
    };
    let ask_for = |ask: &mpsc::Sender<usize>, i: usize| {
        if i < files.len() {
            ask.send(i).unwrap_or(())
        }
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..job.workers.min(files.len())).map(|_| scope.spawn(decode_asked)).collect();
        let begun = threads.len() + AHEAD;
        (0..begun).for_each(|i| ask_for(&ask, i));
        let mut done = Ok(());
        for (i, receiver) in receivers.into_iter().enumerate() {
            done = receiver.iter().try_for_each(|piece| take(i, piece?));
            if done.is_err() {
                break;
            }
            ask_for(&ask, begun + i);
        }
        // Threads that wait for somebody to take a piece have seen by now that nobody does; those that wait for a file are let go.
        drop(ask);
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

/// The ids of a chunk, sorted.
fn ids_of(chunk: &Chunk) -> Vec<IdEntry> {
    let ids = chunk.record_ids.iter().flatten().zip(&chunk.event_times);
    let mut entries: Vec<IdEntry> = ids.map(|(id, at)| (id_hash(id), id_slot(*at))).collect();
    entries.sort_unstable();
    entries
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
