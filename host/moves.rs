//! Records whose id came again with another event time: they move between partitions, and count once.
//! Never changes a raw row. What it finds is a function of the raw rows up to a snapshot, so a replay finds the same.
//! After an ingest and before a plan `pipeline` brings it up to date; `execute` leaves out what counts elsewhere.

use crate::{
    catalog::{
        Catalog, CatalogError, IdEntry, IdIndex, IdPiece, MovedRow, NewIds, OPEN, QueueKind, QueueRow, SLOT_US, Several, SortedIds, View, id_hash,
        id_slot,
    },
    config::{Dataset, Keep, Project, Source},
    datafile::DataFileError,
    dedup::Arrival,
    id::SnapshotId,
    raw::{RawBatch, RawInput},
    schema::{DataType, Field, envelope},
    store::{Store, StoreError},
    time::EventTime,
    watermark::Stand,
    window::Window,
};
use arrow::array::AsArray;
use std::{
    collections::{BTreeMap, HashMap, HashSet},
    sync::{
        atomic::{AtomicUsize, Ordering},
        mpsc,
    },
};

/// Why moves could not be found.
#[derive(Debug, thiserror::Error)]
pub enum MovesError {
    /// A raw file is damaged.
    #[error(transparent)]
    File(#[from] DataFileError),
    /// The catalog or the index of ids refuses.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The lock cannot be taken.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Entries of the index that are held before they are written.
const CHUNK: usize = 4 << 20;

/// Returns whether the records of a dataset are followed from partition to partition: its dedup key is the declared record id of each of
/// its sources. Another key may well occur once per partition, like a customer in a daily table; and an id that is made of the
/// payload never comes with another event time.
pub fn follows(project: &Project, dataset: &Dataset) -> bool {
    let Some([key]) = dataset.dedup.as_ref().map(|d| d.key.as_slice()) else { return false };
    let declared = |source: &String| project.sources.get(source).and_then(|s| s.record_id.as_deref());
    dataset.inputs.iter().all(|source| declared(source).is_some_and(|id| id == key || key == envelope::RECORD_ID))
}

/// Finds what moved in the records of `source` that came since it was last asked, and queues the partitions that lost a record, of
/// every declared dataset that follows it. An id is one of its source: two feeds may well number alike. What an ingest saw of its ids is
/// not read again, if nothing else came. Returns what it queued.
///
/// # Errors
/// [`MovesError`].
/// # After a crash
/// The next call does it again; what was written stays written once.
pub fn catch_up(
    store: &Store,
    catalog: &mut Catalog,
    project: &Project,
    source: &str,
    seen: Option<NewIds>,
    workers: usize,
) -> Result<Vec<QueueRow>, MovesError> {
    let followers: Vec<&Dataset> = project.datasets_of(source).filter(|d| follows(project, d)).collect();
    let behind = |v: &View| -> Result<Option<(SnapshotId, SnapshotId)>, CatalogError> {
        let Some(last) = v.last_landing(source)? else { return Ok(None) };
        let mut upto = v.moves_upto(source)?;
        for d in &followers {
            upto = upto.min(v.moves_queued(&d.name, source)?);
        }
        Ok((upto < last).then_some((v.moves_upto(source)?, last)))
    };
    if catalog.read(|v| behind(&v))?.is_none() {
        return Ok(Vec::new());
    }
    // One index for all sources has one writer.
    let _turn = store.lock("ids-index")?;
    let Some((upto, last)) = catalog.read(|v| behind(&v))? else { return Ok(Vec::new()) };
    if upto < last {
        let input = catalog.read(|v| {
            let Some(table) = v.table(&format!("raw_{source}"), last)? else { return Ok::<_, CatalogError>(None) };
            let files = v.files(&table, last, table.column_id(envelope::EVENT_TIME))?;
            Ok(Some(RawInput { table, files, snapshot: last, published: None }))
        })?;
        if let Some(input) = input {
            let search = Search { source, input: &input, upto, last, workers };
            match index_new(store, catalog, &search, seen) {
                Err(MovesError::Catalog(e)) if e.is_damage() => {
                    IdIndex::remove(store)?;
                    index_new(store, catalog, &search, None)?;
                }
                done => done?,
            }
        }
    }
    queue(catalog, project, source, &followers, last)
}

/// One look for moves.
struct Search<'s> {
    source: &'s str,
    input: &'s RawInput,
    /// What was known before.
    upto: SnapshotId,
    /// What will be known.
    last: SnapshotId,
    /// Threads that read.
    workers: usize,
}

fn index_new(store: &Store, catalog: &mut Catalog, search: &Search, seen: Option<NewIds>) -> Result<(), MovesError> {
    let Search { source, input, upto, last, .. } = *search;
    let mut index = IdIndex::open(store)?;
    let mut begun = index.begin(source)?;
    if begun.upto > upto {
        // The catalog is written first: one that knows less is another one, put back from a backup.
        begun.forget()?;
    }
    let mut candidates = Several::new();
    let new = |f: &&crate::catalog::LiveFile| f.partial_max.unwrap_or(f.begin) > begun.upto;
    let mut fresh = RawInput { files: input.files.iter().filter(new).cloned().collect(), ..input.clone() };
    let by = |seen: &NewIds| fresh.files.iter().all(|f| f.begin == seen.snapshot && f.partial_max.is_none());
    if let Some(seen) = seen.filter(by) {
        fresh.files.clear();
        begun.add(&seen.entries, &mut candidates)?;
    }
    let known = begun.upto;
    read_ids(store, &fresh, known, search.workers, &mut |piece| begun.add(&piece, &mut candidates))?;
    begun.join(&mut candidates)?;
    let found = if candidates.is_empty() { BTreeMap::new() } else { verify(store, input, &candidates)? };
    catalog.record(|r| {
        r.put_moved(source, found.iter().flat_map(|(id, rows)| rows.iter().map(move |row| (id.as_str(), row))))?;
        r.put_moves_upto(source, last)
    })?;
    begun.commit(last)?;
    match index.trim() {
        Err(e) if e.is_damage() => Err(e.into()),
        // The ids are there: that the file is larger than it could be is no failure.
        _ => Ok(()),
    }
}

/// Reads the ids of the records that came after `known` and sorts them, on `workers` threads, and gives `add` the pieces as they are ready.
fn read_ids(
    store: &Store,
    input: &RawInput,
    known: SnapshotId,
    workers: usize,
    add: &mut dyn FnMut(SortedIds) -> Result<(), CatalogError>,
) -> Result<(), MovesError> {
    let begun = AtomicUsize::new(0);
    let workers = workers.clamp(1, input.files.len().max(1));
    let read = |send: &mpsc::SyncSender<Result<SortedIds, DataFileError>>| {
        let mut chunk: Vec<IdEntry> = Vec::new();
        let give = |chunk: &mut Vec<IdEntry>| send.send(Ok(SortedIds::new(&[IdPiece::new(&std::mem::take(chunk))], 1))).is_ok();
        while let Some(file) = input.files.get(begun.fetch_add(1, Ordering::Relaxed)) {
            let RawInput { table, snapshot, published, .. } = input;
            let alone = RawInput { table: table.clone(), files: vec![file.clone()], snapshot: *snapshot, published: published.clone() };
            for batch in alone.scan(store, &[id_field()], Vec::new()) {
                let batch = batch?;
                let ids = batch.columns.column(0).as_string::<i32>();
                let rows = (0..batch.times.len()).filter(|row| batch.snapshots.value(*row) > known.0);
                chunk.extend(rows.map(|row| (id_hash(ids.value(row)), id_slot(batch.times.value(row)))));
                if chunk.len() >= CHUNK / workers && !give(&mut chunk) {
                    return Ok(());
                }
            }
        }
        give(&mut chunk);
        Ok(())
    };
    std::thread::scope(|scope| {
        let (send, pieces) = mpsc::sync_channel(0);
        for send in vec![send; workers] {
            let read = &read;
            scope.spawn(move || {
                if let Err(e) = read(&send) {
                    send.send(Err(e)).ok();
                }
            });
        }
        // Where this fails the pieces are gone, and so the threads end.
        pieces.into_iter().try_for_each(|piece| Ok(add(piece?)?))
    })
}

/// Queues the partitions that lost a record since each dataset was last looked at: one that restitch.toml left out for a while is caught up too.
fn queue(catalog: &mut Catalog, project: &Project, source: &str, followers: &[&Dataset], last: SnapshotId) -> Result<Vec<QueueRow>, MovesError> {
    let mut queued = Vec::new();
    catalog.record(|r| {
        for d in followers {
            let upto = r.view().moves_queued(&d.name, source)?;
            let moved = r.view().moved_since(source, upto)?;
            let mut wanted = Vec::new();
            for row in lost(&r.view(), project, d, &moved, upto)? {
                // Before the first time nobody was at work without knowing of moves: what is not published will be built with them.
                if upto.0 >= 0 || r.view().published_at(&d.name, row.window.start())?.is_some() {
                    wanted.push(row);
                }
            }
            r.put_queue(source, wanted.iter().cloned())?;
            r.put_moves_queued(&d.name, source, last)?;
            queued.extend(wanted);
        }
        Ok::<_, CatalogError>(())
    })?;
    Ok(queued)
}

fn id_field() -> Field {
    Field::new(envelope::RECORD_ID, DataType::String, false)
}

/// Where the records of ids stand: by event time and ingest.
type Stands = BTreeMap<String, BTreeMap<(EventTime, SnapshotId), MovedRow>>;

fn note(ids: &mut Stands, batch: &RawBatch, row: usize) {
    let [ids_column, files] = [0, 1].map(|c| batch.columns.column(c).as_string::<i32>());
    let (at, snapshot, seq) = (EventTime(batch.times.value(row)), SnapshotId(batch.snapshots.value(row)), batch.seq.value(row));
    let future = batch.flags.value(row) & envelope::FUTURE != 0;
    let fresh = || MovedRow { at, snapshot, first_seq: seq, last_seq: seq, future, file: files.value(row).to_owned() };
    let rows = ids.entry(ids_column.value(row).to_owned()).or_default();
    let r = rows.entry((at, snapshot)).or_insert_with(fresh);
    (r.first_seq, r.last_seq) = (r.first_seq.min(seq), r.last_seq.max(seq));
}

/// Reads the rows that the index points at, and returns the ids that really have records in several slots.
fn verify(store: &Store, input: &RawInput, candidates: &HashMap<u64, Vec<i32>>) -> Result<BTreeMap<String, Vec<MovedRow>>, MovesError> {
    let mut slots: Vec<i32> = candidates.values().flatten().copied().collect();
    slots.sort_unstable();
    slots.dedup();
    let slot_window = |s: i32| Window::new(EventTime(s as i64 * SLOT_US), EventTime((s as i64 + 1) * SLOT_US)).ok();
    let windows: Vec<Window> = slots.into_iter().filter_map(slot_window).collect();
    let mut ids = Stands::new();
    let columns = [id_field(), Field::new(envelope::FILE, DataType::String, false)];
    for batch in input.scan(store, &columns, windows) {
        let batch = batch?;
        let column = batch.columns.column(0).as_string::<i32>();
        for row in 0..batch.times.len() {
            if candidates.contains_key(&id_hash(column.value(row))) {
                note(&mut ids, &batch, row);
            }
        }
    }
    let several = |rows: &BTreeMap<(EventTime, SnapshotId), MovedRow>| {
        let slot = |r: Option<&(EventTime, SnapshotId)>| r.map(|(at, _)| id_slot(at.0));
        slot(rows.keys().next()) != slot(rows.keys().next_back())
    };
    Ok(ids.into_iter().filter(|(_, rows)| several(rows)).map(|(id, rows)| (id, rows.into_values().collect())).collect())
}

/// Returns the partitions of a dataset that lost a record to another one after `upto`.
fn lost(
    view: &View,
    project: &Project,
    dataset: &Dataset,
    moved: &[(String, Vec<MovedRow>)],
    upto: SnapshotId,
) -> Result<Vec<QueueRow>, CatalogError> {
    let Some(keep) = dataset.dedup.as_ref().map(|d| d.keep) else { return Ok(Vec::new()) };
    let calendar = dataset.calendar();
    let stand = stand_of(view, project, dataset)?;
    let mut rows: BTreeMap<(EventTime, SnapshotId, String), QueueRow> = BTreeMap::new();
    for (_, records) in moved {
        let counted = counted(keep, records, upto);
        let Some(last) = counted.last().filter(|l| l.snapshot > upto) else { continue };
        let home = calendar.at(last.at);
        let mut left: HashSet<EventTime> = HashSet::new();
        for record in counted.iter().filter(|r| !home.contains(r.at)) {
            let window = calendar.at(record.at);
            if !left.insert(window.start()) {
                continue;
            }
            let late_us = stand.map_or(0, |s| (s.watermark.0.0 - record.at.0).max(0));
            let tier = stand.and_then(|s| s.cutoffs.late_tier(record.at)).map_or(OPEN, |t| t.name());
            let row = rows.entry((window.start(), last.snapshot, last.file.clone())).or_insert_with(|| QueueRow {
                dataset: dataset.name.clone(),
                partition: calendar.name(&window),
                window,
                snapshot: last.snapshot,
                file: last.file.clone(),
                kind: QueueKind::Moved,
                tier: tier.into(),
                records: 0,
                least_late_us: late_us,
                most_late_us: late_us,
            });
            row.records += 1;
            (row.least_late_us, row.most_late_us) = (row.least_late_us.min(late_us), row.most_late_us.max(late_us));
            // One record that needs approval keeps the whole partition, and the least of all only an open one.
            if rank(tier) > rank(&row.tier) {
                row.tier = tier.into();
            }
        }
    }
    Ok(rows.into_values().collect())
}

/// Returns those of an id's records that counted, one after the other: first the one that counted when everything up to `upto` had arrived.
fn counted(keep: Keep, records: &[MovedRow], upto: SnapshotId) -> Vec<&MovedRow> {
    let mut arrived: Vec<&MovedRow> = records.iter().collect();
    arrived.sort_by_key(|r| Standing::of(keep, r).arrival);
    let mut counted: Vec<&MovedRow> = Vec::new();
    for record in arrived {
        if counted.last().is_some_and(|one| !Standing::of(keep, record).counts_before(keep, &Standing::of(keep, one))) {
            continue;
        }
        if record.snapshot <= upto {
            counted.clear();
        }
        counted.push(record);
    }
    counted
}

fn rank(tier: &str) -> usize {
    [OPEN, "repair", "approval"].iter().position(|t| *t == tier).unwrap_or(0)
}

fn stand_of(view: &View, project: &Project, dataset: &Dataset) -> Result<Option<Stand>, CatalogError> {
    match dataset.inputs.as_slice() {
        [_] => {
            let sources: Vec<&Source> = dataset.inputs.iter().filter_map(|i| project.sources.get(i)).collect();
            // Idleness does not matter to a single source.
            Ok(view.input_states(&sources, crate::time::IngestTime(i64::MIN))?.first().and_then(|s| s.stands))
        }
        _ => view.joint(&dataset.name),
    }
}

/// The ids of one source and some windows that stand in several places, as of one snapshot.
#[derive(Debug, Default)]
pub struct Moved {
    /// By event time: an id, and where its records stand.
    places: Vec<(EventTime, usize)>,
    ids: Vec<(String, Vec<MovedRow>)>,
}

impl Moved {
    /// Returns what moved into or out of `hull` up to the snapshot `at`.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn read(view: &View, source: &str, hull: Window, at: SnapshotId) -> Result<Moved, CatalogError> {
        let mut moved = Moved { places: Vec::new(), ids: view.moved(source, hull, at)? };
        for (i, (_, rows)) in moved.ids.iter().enumerate() {
            moved.places.extend(rows.iter().map(|r| (r.at, i)));
        }
        moved.places.sort_unstable();
        Ok(moved)
    }

    /// Returns whether nothing moved.
    pub fn is_empty(&self) -> bool {
        self.ids.is_empty()
    }

    /// Returns the ids that have records inside `window` and outside of it, each with the one outside that counts before all others there.
    pub fn outside(&self, window: Window, keep: Keep) -> HashMap<&str, Standing> {
        let first = self.places.partition_point(|(at, _)| *at < window.start());
        let inside = self.places[first..].iter().take_while(|(at, _)| window.contains(*at));
        let mut bounds = HashMap::new();
        for (id, rows) in inside.map(|(_, i)| &self.ids[*i]) {
            let others = rows.iter().filter(|r| !window.contains(r.at)).map(|r| Standing::of(keep, r));
            if let Some(bound) = others.reduce(|a, b| if b.counts_before(keep, &a) { b } else { a }) {
                bounds.insert(id.as_str(), bound);
            }
        }
        bounds
    }
}

/// What decides which of an id's records counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Standing {
    /// When it arrived.
    pub arrival: Arrival,
    /// Whether it lay too far in the future then.
    pub future: bool,
}

impl Standing {
    fn of(keep: Keep, row: &MovedRow) -> Standing {
        Standing { arrival: if keep == Keep::FirstIngested { row.first() } else { row.last() }, future: row.future }
    }

    /// Returns whether it counts, and `other` does not. One from the future takes no place of one that is not; between two of a kind `keep` decides
    /// by their arrival. So of any number of records there is one that counts, in one partition.
    pub fn counts_before(&self, keep: Keep, other: &Standing) -> bool {
        let (own, other) = (self.turn(keep), other.turn(keep));
        if keep == Keep::FirstIngested { own < other } else { own > other }
    }

    /// Returns what to order an id's records by before the first of them is kept, or the last: by arrival, but those from the future where they
    /// are kept last of all.
    pub fn turn(&self, keep: Keep) -> (bool, Arrival) {
        (self.future == (keep == Keep::FirstIngested), self.arrival)
    }
}
