//! The index of record ids: which 64-bit hashes of ids stand in which quarters of an hour, in a database of its own.
//! Never holds anything that the raw rows do not: lost or damaged, it is built again from them.
//! `moves` fills and asks it. Sorted runs, merged as they grow (a log-structured merge tree), in blocks of one row each.

use super::{CatalogError, SLOT_US};
use crate::{
    id::SnapshotId,
    store::{Store, each},
};
use rusqlite::{Connection, OptionalExtension, params};
use siphasher::sip::SipHasher13;
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    hash::Hasher,
    time::Duration,
};

/// The index's file in a warehouse.
pub const IDS_FILE: &str = "ids.sqlite";

/// Entries of a block, which fill a page of the file; all entries of one hash share a block.
const BLOCK: usize = 1350;
/// Bytes of an entry: the hash, then the slot, little-endian.
const ENTRY: usize = 12;

const SCHEMA: &str = "
CREATE TABLE IF NOT EXISTS source(name VARCHAR PRIMARY KEY, upto BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS run(id INTEGER PRIMARY KEY, source VARCHAR NOT NULL, entries BIGINT NOT NULL);
CREATE TABLE IF NOT EXISTS block(run BIGINT NOT NULL, first BIGINT NOT NULL, entries BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS block_of ON block(run, first);
";

const PAGE_BYTES: i64 = 16_384;
/// Pages that are held until they are written.
const CACHE_KIB: i64 = 32 << 10;

/// A hash and a slot.
pub type IdEntry = (u64, i32);

/// Hashes that stand in several slots, with all of them.
pub type Several = HashMap<u64, Vec<i32>>;

/// Added entries that are looked for at once in runs that stay.
const PROBED: usize = 1 << 20;

/// The ids of an ingest, as it saw them: so they need not be read again.
#[derive(Clone, Debug)]
pub struct NewIds {
    /// What it landed.
    pub snapshot: SnapshotId,
    /// Of all its records.
    pub entries: SortedIds,
}

/// Shares of all hashes, by their first byte, that are sorted side by side: each small enough for the processor's cache.
const SHARES: usize = 256;

fn share(entry: &IdEntry) -> usize {
    (entry.0 >> 56) as usize
}

/// Some entries, put together by shares.
#[derive(Clone, Debug)]
pub struct IdPiece {
    entries: Vec<IdEntry>,
    /// Where each share ends.
    ends: Vec<usize>,
}

impl IdPiece {
    /// Puts entries of any order together by shares.
    pub fn new(entries: &[IdEntry]) -> IdPiece {
        let mut ends = vec![0; SHARES];
        entries.iter().for_each(|entry| ends[share(entry)] += 1);
        let mut total = 0;
        for end in &mut ends {
            total += std::mem::replace(end, total);
        }
        let mut placed = vec![(0, 0); entries.len()];
        for entry in entries {
            let at = &mut ends[share(entry)];
            placed[*at] = *entry;
            *at += 1;
        }
        IdPiece { entries: placed, ends }
    }

    fn share(&self, i: usize) -> &[IdEntry] {
        let start = if i == 0 { 0 } else { self.ends[i - 1] };
        &self.entries[start..self.ends[i]]
    }
}

/// Entries in order, each once.
#[derive(Clone, Debug)]
pub struct SortedIds(Vec<Vec<IdEntry>>);

impl SortedIds {
    /// Sorts the entries of `pieces` on `workers` threads.
    pub fn new(pieces: &[IdPiece], workers: usize) -> SortedIds {
        let shares: Vec<usize> = (0..SHARES).collect();
        SortedIds(each(&shares, workers, |i| {
            let mut entries = Vec::with_capacity(pieces.iter().map(|p| p.share(*i).len()).sum());
            pieces.iter().for_each(|p| entries.extend_from_slice(p.share(*i)));
            entries.sort_unstable();
            entries.dedup();
            entries
        }))
    }

    fn len(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// The entries of each hash.
    fn groups(&self) -> impl Iterator<Item = &[IdEntry]> {
        self.0.iter().flat_map(|share| share.chunk_by(|a, b| a.0 == b.0))
    }
}

/// Returns the hash of an id. A collision costs a look at the rows, no more: the ids themselves are compared.
pub fn id_hash(id: &str) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(id.as_bytes());
    hasher.finish()
}

/// Returns the number of the slot that `at`, in UTC microseconds, lies in.
pub fn id_slot(at: i64) -> i32 {
    at.div_euclid(SLOT_US) as i32
}

/// The index of one warehouse.
pub struct IdIndex {
    connection: Connection,
    path: String,
}

/// The index in the changing: one transaction.
pub struct IdChange<'i> {
    tx: rusqlite::Transaction<'i>,
    source: String,
    path: &'i str,
    /// Runs that were added, and not joined yet.
    added: Vec<i64>,
    /// Rows of snapshots up to this one are in it.
    pub upto: SnapshotId,
}

impl IdIndex {
    /// Opens the index of a warehouse. One that is missing or damaged is begun anew.
    ///
    /// # Errors
    /// The folder is not writable, or another program holds the index for longer than a writer waits.
    pub fn open(store: &Store) -> Result<IdIndex, CatalogError> {
        IdIndex::open_within(store, super::BUSY)
    }

    fn open_within(store: &Store, wait: Duration) -> Result<IdIndex, CatalogError> {
        let path = store.path(IDS_FILE).display().to_string();
        let open = || -> Result<Connection, rusqlite::Error> {
            let connection = Connection::open(store.path(IDS_FILE))?;
            connection.busy_timeout(wait)?;
            if connection.query_row("PRAGMA page_count", [], |r| r.get::<_, i64>(0))? == 0 {
                // A block of entries and its row fit into a page.
                connection.pragma_update(None, "page_size", PAGE_BYTES)?;
                connection.pragma_update(None, "auto_vacuum", "INCREMENTAL")?;
            }
            // One writer at a time, and no reader: new pages are written once, not to a log first.
            connection.pragma_update(None, "journal_mode", "TRUNCATE")?;
            connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
            connection.pragma_update(None, "synchronous", "NORMAL")?;
            connection.execute_batch(SCHEMA)?;
            Ok(connection)
        };
        let connection = match open() {
            Err(e) if damage(&e) => {
                IdIndex::remove(store)?;
                open()
            }
            opened => opened,
        };
        Ok(IdIndex { connection: connection.map_err(refused(&path))?, path })
    }

    /// Throws the index away.
    ///
    /// # Errors
    /// The folder is not writable.
    pub fn remove(store: &Store) -> Result<(), CatalogError> {
        for file in ["", "-journal", "-wal", "-shm"].map(|suffix| format!("{IDS_FILE}{suffix}")).iter().filter(|f| store.exists(f)) {
            store.remove(file)?;
        }
        Ok(())
    }

    /// Gives the disk back what runs left that were joined, where that is much of the file; less of it is for the next ones.
    ///
    /// # Errors
    /// The index cannot be written.
    pub fn trim(&self) -> Result<(), CatalogError> {
        let count = |pragma: &str| self.connection.query_row(&format!("PRAGMA {pragma}"), [], |r| r.get::<_, i64>(0));
        if 3 * count("freelist_count")? > count("page_count")? {
            let mut vacuum = self.connection.prepare("PRAGMA incremental_vacuum")?;
            let mut pages = vacuum.query([])?;
            while pages.next()?.is_some() {}
        }
        Ok(())
    }

    /// Begins a change of the ids of `source`.
    ///
    /// # Errors
    /// The index cannot be written.
    pub fn begin(&mut self, source: &str) -> Result<IdChange<'_>, CatalogError> {
        let tx = self.connection.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate).map_err(refused(&self.path))?;
        let upto = tx.query_row("SELECT upto FROM source WHERE name = ?1", [source], |r| r.get(0)).optional()?;
        Ok(IdChange { tx, source: source.into(), path: &self.path, added: Vec::new(), upto: SnapshotId(upto.unwrap_or(-1)) })
    }
}

impl CatalogError {
    /// Returns whether a database file is none, or no longer one.
    pub fn is_damage(&self) -> bool {
        matches!(self, CatalogError::Sqlite(e) | CatalogError::Index { source: e, .. } if damage(e))
    }

    /// Returns whether another program held the index of ids for longer than a writer waits.
    pub fn is_held(&self) -> bool {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseLocked};
        matches!(self, CatalogError::Index { source, .. } if matches!(source.sqlite_error_code(), Some(DatabaseBusy | DatabaseLocked)))
    }
}

/// The catalog is another file: which of them refused is to be seen.
fn refused(path: &str) -> impl FnOnce(rusqlite::Error) -> CatalogError {
    move |source| CatalogError::Index { path: path.into(), source }
}

fn damage(e: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{DatabaseCorrupt, NotADatabase};
    matches!(e.sqlite_error_code(), Some(DatabaseCorrupt | NotADatabase))
}

impl IdChange<'_> {
    /// Forgets all ids of the source.
    ///
    /// # Errors
    /// The index cannot be written.
    pub fn forget(&mut self) -> Result<(), CatalogError> {
        self.tx.execute("DELETE FROM block WHERE run IN (SELECT id FROM run WHERE source = ?1)", [&self.source])?;
        self.tx.execute("DELETE FROM run WHERE source = ?1", [&self.source])?;
        self.upto = SnapshotId(-1);
        Ok(())
    }

    /// Writes entries as a run of their own. Hashes that stand in several slots among them come into `several`; with what else is there they are
    /// compared by [`IdChange::join`].
    ///
    /// # Errors
    /// The index cannot be written.
    pub fn add(&mut self, new: &SortedIds, several: &mut Several) -> Result<(), CatalogError> {
        if new.len() == 0 {
            return Ok(());
        }
        new.groups().filter(|entries| entries.len() > 1).for_each(|entries| note(several, entries, &[]));
        let mut blocks = Blocks::begin(self)?;
        new.0.iter().try_for_each(|share| blocks.push(share))?;
        let run = blocks.end()?;
        self.added.push(run);
        Ok(())
    }

    /// Makes one run of all that was added, and of the runs before it that are not much larger: so there are few runs, and each entry is written few times.
    /// Hashes that were added, and now stand in several slots, come into `several`, with all their slots.
    ///
    /// # Errors
    /// The index cannot be read or written.
    pub fn join(&mut self, several: &mut Several) -> Result<(), CatalogError> {
        let mut joined = std::mem::take(&mut self.added);
        let (added, old): (Vec<_>, Vec<_>) = self.runs()?.into_iter().partition(|(run, _)| joined.contains(run));
        let (fresh, mut total) = (joined.len(), added.iter().map(|(_, entries)| entries).sum::<i64>());
        let mut kept: Vec<i64> = Vec::new();
        for (run, entries) in old.into_iter().rev() {
            if !kept.is_empty() || entries >= 2 * total {
                kept.push(run);
            } else {
                joined.push(run);
                total += entries;
            }
        }
        if fresh == 0 || (joined.len() == 1 && kept.is_empty()) {
            return Ok(());
        }
        let mut blocks = if joined.len() > 1 { Some(Blocks::begin(self)?) } else { None };
        let mut merge = Merge::of(self, &joined)?;
        // The entries of one hash; those that were added, until they are looked for in the runs that stay.
        let (mut group, mut is_new, mut new): (Vec<IdEntry>, bool, Vec<IdEntry>) = (Vec::new(), false, Vec::new());
        loop {
            let next = merge.next()?;
            if group.last().is_some_and(|last| next.is_none_or(|(entry, _)| entry.0 != last.0)) {
                group.dedup();
                if is_new {
                    note(several, &group, &[]);
                }
                if let Some(blocks) = &mut blocks {
                    blocks.push(&group)?;
                }
                group.clear();
                is_new = false;
                if new.len() >= PROBED || next.is_none() {
                    kept.iter().try_for_each(|run| self.probe(*run, &new, several))?;
                    new.clear();
                }
            }
            let Some((entry, reader)) = next else { break };
            group.push(entry);
            if reader < fresh {
                is_new = true;
                if !kept.is_empty() {
                    new.push(entry);
                }
            }
        }
        if let Some(blocks) = blocks {
            blocks.end()?;
            for run in joined {
                self.tx.execute("DELETE FROM block WHERE run = ?1", [run])?;
                self.tx.execute("DELETE FROM run WHERE id = ?1", [run])?;
            }
        }
        Ok(())
    }

    /// Keeps what was added: everything up to `upto` is in it.
    ///
    /// # Errors
    /// The index cannot be written.
    pub fn commit(self, upto: SnapshotId) -> Result<(), CatalogError> {
        self.tx.execute("INSERT OR REPLACE INTO source VALUES (?1, ?2)", params![self.source, upto.0])?;
        self.tx.commit().map_err(refused(self.path))
    }

    /// The runs of the source with their sizes, oldest first.
    fn runs(&self) -> Result<Vec<(i64, i64)>, CatalogError> {
        let mut statement = self.tx.prepare_cached("SELECT id, entries FROM run WHERE source = ?1 ORDER BY id")?;
        let rows = statement.query_map([&self.source], |r| Ok((r.get(0)?, r.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Looks for the hashes of `new`, which is in order, in a run.
    fn probe(&self, run: i64, new: &[IdEntry], several: &mut Several) -> Result<(), CatalogError> {
        let mut at = self.tx.prepare_cached("SELECT first, entries FROM block WHERE run = ?1 AND first <= ?2 ORDER BY first DESC LIMIT 1")?;
        let mut after = self.tx.prepare_cached("SELECT first FROM block WHERE run = ?1 AND first > ?2 ORDER BY first LIMIT 1")?;
        let mut groups = new.chunk_by(|a, b| a.0 == b.0).peekable();
        while let Some(group) = groups.peek() {
            let sought = key(group[0].0);
            let block: Option<(i64, Vec<u8>)> = at.query_row(params![run, sought], |r| Ok((r.get(0)?, r.get(1)?))).optional()?;
            let next: Option<i64> = after.query_row(params![run, sought], |r| r.get(0)).optional()?;
            let entries = block.map(|(_, bytes)| decode(&bytes)).unwrap_or_default();
            // Every hash up to the next block's first can only be in this one.
            while let Some(group) = groups.next_if(|g| next.is_none_or(|n| key(g[0].0) < n)) {
                let hash = group[0].0;
                let from = entries.partition_point(|e| e.0 < hash);
                note(several, group, &entries[from..from + entries[from..].partition_point(|e| e.0 == hash)]);
            }
        }
        Ok(())
    }
}

/// Notes the slots of a hash, if they are several.
fn note(several: &mut Several, entries: &[IdEntry], known: &[IdEntry]) {
    let (hash, first) = entries[0];
    if entries.iter().chain(known).any(|e| e.1 != first) {
        let slots = several.entry(hash).or_default();
        slots.extend(entries.iter().chain(known).map(|e| e.1));
        slots.sort_unstable();
        slots.dedup();
    }
}

/// The blocks of a run while it is written.
struct Blocks<'c> {
    change: &'c IdChange<'c>,
    run: i64,
    block: Vec<IdEntry>,
    written: usize,
}

impl<'c> Blocks<'c> {
    /// Begins a run.
    fn begin(change: &'c IdChange<'c>) -> Result<Blocks<'c>, CatalogError> {
        change.tx.execute("INSERT INTO run(source, entries) VALUES (?1, 0)", [&change.source])?;
        Ok(Blocks { change, run: change.tx.last_insert_rowid(), block: Vec::with_capacity(BLOCK), written: 0 })
    }

    /// Appends entries, which are in order, each once, and come after those before.
    fn push(&mut self, mut entries: &[IdEntry]) -> Result<(), CatalogError> {
        while !entries.is_empty() {
            let room = match self.block.last() {
                // All entries of one hash share a block.
                Some(last) if self.block.len() >= BLOCK => entries.iter().take_while(|e| e.0 == last.0).count(),
                _ => BLOCK - self.block.len(),
            };
            if room == 0 {
                self.write()?;
                continue;
            }
            let (now, rest) = entries.split_at(room.min(entries.len()));
            self.block.extend_from_slice(now);
            entries = rest;
        }
        Ok(())
    }

    fn write(&mut self) -> Result<(), CatalogError> {
        let Some(first) = self.block.first() else { return Ok(()) };
        let mut bytes = Vec::with_capacity(self.block.len() * ENTRY);
        for (hash, slot) in &self.block {
            bytes.extend_from_slice(&hash.to_le_bytes());
            bytes.extend_from_slice(&slot.to_le_bytes());
        }
        let mut insert = self.change.tx.prepare_cached("INSERT INTO block VALUES (?1, ?2, ?3)")?;
        insert.execute(params![self.run, key(first.0), bytes])?;
        self.written += self.block.len();
        self.block.clear();
        Ok(())
    }

    /// Ends the run, and returns its id.
    fn end(mut self) -> Result<i64, CatalogError> {
        self.write()?;
        self.change.tx.execute("UPDATE run SET entries = ?2 WHERE id = ?1", params![self.run, self.written as i64])?;
        Ok(self.run)
    }
}

/// A hash as SQLite's signed integer, in the same order.
fn key(hash: u64) -> i64 {
    (hash ^ (1 << 63)) as i64
}

fn decode(bytes: &[u8]) -> Vec<IdEntry> {
    let entry = |e: &[u8]| {
        let (hash, slot) = e.split_at(8);
        (u64::from_le_bytes(hash.try_into().unwrap_or_default()), i32::from_le_bytes(slot.try_into().unwrap_or_default()))
    };
    bytes.chunks_exact(ENTRY).map(entry).collect()
}

/// The entries of several runs, in order, each with the number of its run.
struct Merge<'c> {
    readers: Vec<RunReader<'c>>,
    heads: BinaryHeap<Reverse<(IdEntry, usize)>>,
}

impl<'c> Merge<'c> {
    fn of(change: &'c IdChange<'c>, runs: &[i64]) -> Result<Merge<'c>, CatalogError> {
        let mut merge = Merge { readers: Vec::new(), heads: BinaryHeap::new() };
        for (i, run) in runs.iter().enumerate() {
            merge.readers.push(RunReader::open(change, *run)?);
            merge.advance(i)?;
        }
        Ok(merge)
    }

    fn advance(&mut self, reader: usize) -> Result<(), CatalogError> {
        if let Some(entry) = self.readers[reader].next().transpose()? {
            self.heads.push(Reverse((entry, reader)));
        }
        Ok(())
    }

    fn next(&mut self) -> Result<Option<(IdEntry, usize)>, CatalogError> {
        let Some(Reverse(least)) = self.heads.pop() else { return Ok(None) };
        self.advance(least.1)?;
        Ok(Some(least))
    }
}

/// The entries of a run, block by block.
struct RunReader<'c> {
    change: &'c IdChange<'c>,
    run: i64,
    last: Option<i64>,
    block: std::vec::IntoIter<IdEntry>,
}

impl<'c> RunReader<'c> {
    fn open(change: &'c IdChange<'c>, run: i64) -> Result<RunReader<'c>, CatalogError> {
        let mut reader = RunReader { change, run, last: None, block: Vec::new().into_iter() };
        reader.turn()?;
        Ok(reader)
    }

    fn turn(&mut self) -> Result<(), CatalogError> {
        let mut statement =
            self.change.tx.prepare_cached("SELECT first, entries FROM block WHERE run = ?1 AND (?2 IS NULL OR first > ?2) ORDER BY first LIMIT 1")?;
        let row: Option<(i64, Vec<u8>)> = statement.query_row(params![self.run, self.last], |r| Ok((r.get(0)?, r.get(1)?))).optional()?;
        if let Some((first, bytes)) = row {
            (self.last, self.block) = (Some(first), decode(&bytes).into_iter());
        }
        Ok(())
    }
}

impl Iterator for RunReader<'_> {
    type Item = Result<IdEntry, CatalogError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(entry) = self.block.next() {
            return Some(Ok(entry));
        }
        match self.turn() {
            Ok(()) => self.block.next().map(Ok),
            Err(e) => Some(Err(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn several(index: &mut IdIndex, entries: Vec<IdEntry>, upto: i64) -> Vec<(u64, Vec<i32>)> {
        let mut change = index.begin("orders").unwrap();
        let mut found = HashMap::new();
        // In one piece, or in several.
        let pieces = if upto % 2 == 0 { 1 } else { 3 };
        for piece in entries.chunks(entries.len().div_ceil(pieces).max(1)) {
            change.add(&SortedIds::new(&[IdPiece::new(piece)], 2), &mut found).unwrap();
        }
        change.join(&mut found).unwrap();
        change.commit(SnapshotId(upto)).unwrap();
        index.trim().unwrap();
        let mut found: Vec<_> = found.into_iter().collect();
        found.sort();
        found
    }

    #[test]
    fn a_hash_in_two_slots_is_found_whenever_they_came() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        let mut index = IdIndex::open(&store).unwrap();
        assert_eq!(several(&mut index, vec![(7, 1), (9, 1), (7, 2), (7, 1)], 1), [(7, vec![1, 2])]);
        // Enough for many blocks and several merges, each hash in one slot.
        for round in 0..20u64 {
            let entries = (0..3000).map(|i| ((round * 3000 + i).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 << 63, 5)).collect();
            assert_eq!(several(&mut index, entries, 2 + round as i64), []);
        }
        let again = 4711u64.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1 << 63;
        assert_eq!(several(&mut index, vec![(again, 5), (9, 1)], 30), [], "the same slot is no move");
        assert_eq!(several(&mut index, vec![(again, 6), (9, -3)], 31), [(9, vec![-3, 1]), (again, vec![5, 6])]);
        let runs = index.begin("orders").unwrap().runs().unwrap();
        assert!(runs.len() <= 12, "{runs:?}");
        assert_eq!(index.begin("orders").unwrap().upto, SnapshotId(31));
        assert_eq!(index.begin("other").unwrap().upto, SnapshotId(-1));
    }

    #[test]
    fn a_hash_with_many_slots_shares_one_block() {
        let folder = tempfile::tempdir().unwrap();
        let mut index = IdIndex::open(&Store::new(folder.path())).unwrap();
        let hash = 1 << 60;
        let many: Vec<IdEntry> = (0..3 * BLOCK as i32).map(|slot| (hash, slot)).chain((0..2 * BLOCK as u64).map(|h| (h, 0))).collect();
        assert_eq!(several(&mut index, many, 1).len(), 1);
        assert_eq!(several(&mut index, vec![(hash, -1), (5, 0), (hash + 1, 3)], 2), [(hash, (-1..3 * BLOCK as i32).collect())]);
        assert_eq!(several(&mut index, vec![(hash + 1, 4), (hash - 1, 0), (6, 1)], 3), [(6, vec![0, 1]), (hash + 1, vec![3, 4])]);
    }

    #[test]
    fn what_is_found_is_what_a_map_of_all_ids_says() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        let mut index = IdIndex::open(&store).unwrap();
        let mut all: HashMap<u64, std::collections::BTreeSet<i32>> = HashMap::new();
        let mut state = 11u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % below
        };
        // Large ones, small ones that are joined with the last, and ones that a large run stays beside.
        for (round, count) in [9_000, 200, 300, 6_000, 50, 1, 30_000, 100, 8_000, 70].into_iter().enumerate() {
            let entries: Vec<IdEntry> = (0..count).map(|_| (random(60_000) << 48 | random(2), random(3) as i32)).collect();
            for (hash, slot) in &entries {
                all.entry(*hash).or_default().insert(*slot);
            }
            let mut expected: Vec<(u64, Vec<i32>)> = entries.iter().map(|(hash, _)| (*hash, all[hash].iter().copied().collect())).collect();
            expected.retain(|(_, slots)| slots.len() > 1);
            expected.sort();
            expected.dedup();
            assert_eq!(several(&mut index, entries, round as i64), expected, "round {round}");
        }
        let size = store.read(IDS_FILE).unwrap().len();
        let runs = index.begin("orders").unwrap().runs().unwrap();
        let entries: i64 = runs.iter().map(|(_, entries)| entries).sum();
        assert!(size < entries as usize * ENTRY * 2, "{size} bytes for {entries} entries");
        assert!(runs.len() < 10 && entries >= all.values().map(|slots| slots.len() as i64).sum(), "{runs:?}");
    }

    #[test]
    fn a_damaged_index_is_begun_anew() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        several(&mut IdIndex::open(&store).unwrap(), vec![(7, 1)], 1);
        IdIndex::remove(&store).unwrap();
        store.put(IDS_FILE, b"this is no database, and never was one, however long it may be").unwrap();
        let mut index = IdIndex::open(&store).unwrap();
        assert_eq!(index.begin("orders").unwrap().upto, SnapshotId(-1));
    }

    #[test]
    fn an_index_that_another_program_holds_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        let holder = Connection::open(store.path(IDS_FILE)).unwrap();
        let named = |e: CatalogError| {
            let want = format!("the index of ids, {}, refused: database is locked", store.path(IDS_FILE).display());
            assert_eq!((e.is_held(), e.to_string()), (true, want));
        };
        let open = || IdIndex::open_within(&store, Duration::ZERO);
        holder.execute_batch("BEGIN EXCLUSIVE").unwrap();
        named(open().err().unwrap());
        holder.execute_batch("ROLLBACK").unwrap();
        let mut index = open().unwrap();
        holder.execute_batch("BEGIN IMMEDIATE").unwrap();
        named(index.begin("orders").err().unwrap());
        // A reader is in nobody's way until something is to be written down.
        holder.execute_batch("ROLLBACK").unwrap();
        let mut change = index.begin("orders").unwrap();
        change.add(&SortedIds::new(&[IdPiece::new(&[(7, 1)])], 1), &mut Several::new()).unwrap();
        holder.execute_batch("BEGIN; SELECT * FROM run").unwrap();
        named(change.commit(SnapshotId(1)).err().unwrap());
    }
}
