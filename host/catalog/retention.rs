//! What is removed, and what must stay: versions of published partitions, dropped raw, expired snapshots.
//! Never touches bytes: `gc` removes them after the commit. A snapshot that would miss a file goes with it.
//! Reads stand on [`View`], the removal on [`Commit`]; rows are never judged by the age of a file.

use super::{CatalogError, Commit, DatasetRow, Record, SLOT_US, StateWrite, Table, View, ducklake::THERE};
use crate::{
    id::{RunId, SnapshotId},
    manifest::{Manifest, Status},
    schema::envelope,
    time::{EventTime, IngestTime, parse},
    window::Window,
};
use rusqlite::{OptionalExtension, params};
use std::{collections::BTreeMap, fmt};

/// A data file of a table that no reader of the latest snapshot sees.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct EndedFile {
    /// Its id.
    pub id: i64,
    /// Its path, relative to the warehouse.
    pub path: String,
    /// Its rows.
    pub rows: i64,
    /// Its size.
    pub bytes: i64,
    /// The snapshot that added it.
    pub begin: SnapshotId,
    /// The first snapshot that does not show it any more.
    pub end: SnapshotId,
}

/// A data file of landed records, live or ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RawFile {
    /// Its id.
    pub id: i64,
    /// Its path, relative to the warehouse.
    pub path: String,
    /// Its rows.
    pub rows: i64,
    /// Its size.
    pub bytes: i64,
    /// The snapshot that added it: an ingest, or a reparse.
    pub begin: SnapshotId,
    /// The first snapshot that does not show it any more; none while it is live.
    pub end: Option<SnapshotId>,
    /// First and last ingest whose records it may hold. A reparse changes files, and no ingest.
    pub ingests: (SnapshotId, SnapshotId),
    /// First and last event time.
    pub events: Option<(EventTime, EventTime)>,
}

/// What one run or rollback left for one partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Version {
    /// The partition's name.
    pub partition: String,
    /// Its first instant.
    pub start: EventTime,
    /// The run.
    pub run: RunId,
    /// Paths of its files, relative to the warehouse. A merge that changed nothing has those of the version before.
    pub paths: Vec<String>,
    /// The run whose rows it put its own among, for a merge or a delete-insert.
    pub base: Option<RunId>,
}

/// A file to be removed, with what is written down of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemovedFile {
    /// version, raw or rejects.
    pub kind: &'static str,
    /// The dataset or the source.
    pub name: String,
    /// The partition of a version.
    pub partition: Option<String>,
    /// The run of a version.
    pub run: Option<RunId>,
    /// Its id in the catalog.
    pub id: i64,
    /// Its path, relative to the warehouse.
    pub path: String,
    /// Its rows.
    pub rows: i64,
    /// Its size.
    pub bytes: i64,
    /// First and last snapshot whose rows it holds; of raw and rejects, first and last ingest.
    pub snapshots: (SnapshotId, SnapshotId),
    /// The first snapshot that shows it, and the first that does not any more, if it has ended.
    pub seen: (SnapshotId, Option<SnapshotId>),
    /// First and last event time of a raw file.
    pub events: Option<(EventTime, EventTime)>,
    /// Why: `keep 2`, `raw_keep = 400d`.
    pub reason: String,
}

/// A file that was removed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Removed {
    /// Its path, relative to the warehouse.
    pub path: String,
    /// Why.
    pub reason: String,
    /// When.
    pub at: IngestTime,
    /// Who asked for it.
    pub operator: String,
}

/// Event times of which raw records were dropped.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Dropped {
    /// The source.
    pub source: String,
    /// The event times, in whole quarters of an hour.
    pub window: Window,
    /// Why: `raw_keep = 400d`.
    pub reason: String,
    /// When the first of them were dropped.
    pub at: IngestTime,
    /// Who asked for it.
    pub operator: String,
}

impl fmt::Display for Dropped {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let (from, to) = self.window.bounds_text();
        write!(f, "raw of {} from {from} to {to} was removed on {} by retention ({}, {})", self.source, self.at, self.reason, self.operator)
    }
}

/// A run that keeps things from being removed.
#[derive(Clone, Debug)]
pub struct Holder {
    /// Its manifest, with its partitions.
    pub manifest: Manifest,
    /// When it was computed, or last approved; none while it is running.
    pub finished: Option<IngestTime>,
}

impl Holder {
    /// Returns whether a process is at it.
    pub fn is_running(&self) -> bool {
        self.manifest.status == Status::Running
    }

    /// Returns whether it reads raw records of `source`.
    pub fn reads(&self, source: &str) -> bool {
        self.manifest.recipe.sources.iter().any(|s| s == source) || self.manifest.recipe.lookups.values().any(|l| l == source)
    }
}

impl View<'_> {
    /// Returns whether that snapshot can still be read.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn has_snapshot(&self, at: SnapshotId) -> Result<bool, CatalogError> {
        Ok(self.connection.query_row("SELECT count(*) FROM ducklake_snapshot WHERE snapshot_id = ?1", [at.0], |r| r.get::<_, i64>(0))? > 0)
    }

    /// Returns all snapshots up to `at`, oldest first.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn snapshots(&self, at: SnapshotId) -> Result<Vec<SnapshotId>, CatalogError> {
        let mut statement = self.connection.prepare_cached("SELECT snapshot_id FROM ducklake_snapshot WHERE snapshot_id <= ?1 ORDER BY 1")?;
        let rows = statement.query_map([at.0], |r| r.get(0).map(SnapshotId))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns all datasets that were ever published.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn all_datasets(&self) -> Result<Vec<DatasetRow>, CatalogError> {
        let mut statement = self.connection.prepare_cached("SELECT name, sources, grain, time_zone, upstream FROM restitch_dataset ORDER BY 1")?;
        let rows = statement.query_map([], super::state::dataset_row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the runs that are running, staged or rejected, with their partitions.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn holders(&self) -> Result<Vec<Holder>, CatalogError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT run_id FROM restitch_run WHERE status = 'running' OR (status IN ('staged', 'rejected') AND mode <> 'dry-run') ORDER BY run_id",
        )?;
        let runs = statement.query_map([], |r| r.get(0).map(RunId))?.collect::<Result<Vec<_>, _>>()?;
        let mut holders = Vec::new();
        for run in runs {
            if let Some(row) = self.run(run)? {
                let finished = row.finished;
                holders.push(Holder { manifest: Manifest { partitions: self.run_partitions(run)?, ..row.manifest }, finished });
            }
        }
        Ok(holders)
    }

    /// Returns what each published run left of each partition of `dataset`, or of one of them: by partition, the newest first.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn versions(&self, dataset: &str, partition: Option<&str>) -> Result<Vec<Version>, CatalogError> {
        let filter = if partition.is_some() { "p.partition = ?2" } else { "?2 IS NULL" };
        let sql = format!(
            "SELECT p.partition, p.start_us, p.run_id, f.path, CASE WHEN p.target_only IS NOT NULL THEN p.prior_run END FROM restitch_run r JOIN restitch_run_partition p ON p.run_id = r.run_id
                   LEFT JOIN restitch_run_file f ON f.run_id = p.run_id AND f.partition = p.partition
                   WHERE r.dataset = ?1 AND r.status = 'published' AND {filter} ORDER BY p.start_us, p.partition, r.published_snapshot DESC, f.path"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params![dataset, partition])?;
        let mut versions: Vec<Version> = Vec::new();
        while let Some(r) = rows.next()? {
            let (partition, start, run): (String, i64, i64) = (r.get(0)?, r.get(1)?, r.get(2)?);
            let path: Option<String> = r.get(3)?;
            match versions.last_mut() {
                Some(v) if v.run.0 == run && v.partition == partition => v.paths.extend(path),
                _ => {
                    let (run, base) = (RunId(run), r.get::<_, Option<i64>>(4)?.map(RunId));
                    versions.push(Version { partition, start: EventTime(start), run, paths: path.into_iter().collect(), base });
                }
            }
        }
        Ok(versions)
    }

    /// Returns the files of `table` that have ended.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn ended_files(&self, table: &Table) -> Result<Vec<EndedFile>, CatalogError> {
        let sql = format!(
            "SELECT data_file_id, path, record_count, file_size_bytes, begin_snapshot, end_snapshot FROM ducklake_data_file f
             WHERE table_id = ?1 AND end_snapshot IS NOT NULL AND path_is_relative <> 0 AND {THERE} ORDER BY data_file_id"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map([table.id], |r| {
            Ok(EndedFile {
                id: r.get(0)?,
                path: format!("{}{}", table.folder, r.get::<_, String>(1)?),
                rows: r.get(2)?,
                bytes: r.get(3)?,
                begin: SnapshotId(r.get(4)?),
                end: SnapshotId(r.get(5)?),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns all files of a table of landed records, live ones and ended ones, oldest first.
    ///
    /// # Errors
    /// The catalog cannot be read; or another tool deleted or inlined rows, which we would not see.
    pub fn raw_files(&self, table: &Table, at: SnapshotId) -> Result<Vec<RawFile>, CatalogError> {
        self.refuse_foreign_rows(table, at)?;
        let (event, landed) = (table.column_id(envelope::EVENT_TIME), table.column_id(envelope::LANDED));
        let since: Option<i64> = self.connection.query_row(
            "SELECT min(begin_snapshot) FROM ducklake_column WHERE table_id = ?1 AND column_id = ?2",
            params![table.id, landed],
            |r| r.get(0),
        )?;
        let sql = format!("SELECT f.data_file_id, f.path, f.record_count, f.file_size_bytes, f.begin_snapshot, f.end_snapshot, f.partial_max, e.min_value, e.max_value,
                     l.data_file_id, l.null_count, l.min_value, l.max_value
                   FROM ducklake_data_file f
                   LEFT JOIN ducklake_file_column_stats e ON e.data_file_id = f.data_file_id AND e.column_id = ?2
                   LEFT JOIN ducklake_file_column_stats l ON l.data_file_id = f.data_file_id AND l.column_id = ?3
                   WHERE f.table_id = ?1 AND f.path_is_relative <> 0 AND {THERE} ORDER BY f.begin_snapshot, f.data_file_id");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params![table.id, event, landed])?;
        let mut files = Vec::new();
        while let Some(r) = rows.next()? {
            let (count, begin): (i64, i64) = (r.get(2)?, r.get(4)?);
            let last = r.get::<_, Option<i64>>(6)?.unwrap_or(begin);
            let number = |i: usize| Ok::<_, rusqlite::Error>(r.get::<_, Option<String>>(i)?.and_then(|v| v.parse::<i64>().ok()));
            let (known, nulls) = (r.get::<_, Option<i64>>(9)?.is_some(), r.get::<_, Option<i64>>(10)?);
            let (first, last) = match (since, number(11)?.zip(number(12)?)) {
                (None, _) => (begin, last),
                // Each of its rows says which ingest it came in.
                (_, Some(own)) if nulls == Some(0) => own,
                (_, Some((least, most))) => (begin.min(least), last.max(most)),
                (_, None) if known && nulls == Some(count) => (begin, last),
                (Some(since), None) if !known && last < since => (begin, last),
                (_, None) => (0, last),
            };
            let instant = |i: usize| Ok::<_, rusqlite::Error>(r.get::<_, Option<String>>(i)?.and_then(|v| parse(&v, chrono_tz::Tz::UTC).ok()));
            files.push(RawFile {
                id: r.get(0)?,
                path: format!("{}{}", table.folder, r.get::<_, String>(1)?),
                rows: count,
                bytes: r.get(3)?,
                begin: SnapshotId(begin),
                end: r.get::<_, Option<i64>>(5)?.map(SnapshotId),
                ingests: (SnapshotId(first), SnapshotId(last)),
                events: instant(7)?.zip(instant(8)?),
            });
        }
        Ok(files)
    }

    /// Returns the removal of the file at `path`, if it was removed.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn removed(&self, path: &str) -> Result<Option<Removed>, CatalogError> {
        let sql = "SELECT path, reason, at_us, operator FROM restitch_removed WHERE path = ?1 ORDER BY id DESC LIMIT 1";
        let row = |r: &rusqlite::Row| Ok(Removed { path: r.get(0)?, reason: r.get(1)?, at: IngestTime(r.get(2)?), operator: r.get(3)? });
        Ok(self.connection.prepare_cached(sql)?.query_row([path], row).optional()?)
    }

    /// Returns the files that were removed from the catalog and whose bytes may still be there: id of the removal, path, size.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn unremoved(&self) -> Result<Vec<(i64, String, i64)>, CatalogError> {
        let mut statement = self.connection.prepare_cached("SELECT id, path, bytes FROM restitch_removed WHERE gone = 0 ORDER BY id")?;
        let rows = statement.query_map([], |r| Ok((r.get(0)?, r.get(1)?, r.get(2)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the event times of which raw records are missing when `source` is read at the snapshot `at`: in order of time, without overlap.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn dropped(&self, source: &str, at: SnapshotId) -> Result<Vec<Dropped>, CatalogError> {
        let sql = "SELECT start_us, end_us, reason, at_us, operator FROM restitch_dropped
                   WHERE source = ?1 AND from_snapshot <= ?2 AND ?2 < until_snapshot ORDER BY start_us, end_us";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query(params![source, at.0])?;
        let mut dropped: Vec<Dropped> = Vec::new();
        while let Some(r) = rows.next()? {
            let (start, end) = (EventTime(r.get(0)?), EventTime(r.get(1)?));
            let (reason, at, operator): (String, i64, String) = (r.get(2)?, r.get(3)?, r.get(4)?);
            let from = dropped.last().map_or(start, |l| l.window.end().max(start));
            let Ok(window) = Window::new(from, end) else { continue };
            match dropped.last_mut() {
                Some(d) if d.window.end() == from && (&d.reason, d.at.0, &d.operator) == (&reason, at, &operator) => {
                    d.window = Window::new(d.window.start(), end).unwrap_or(window);
                }
                _ => dropped.push(Dropped { source: source.into(), window, reason, at: IngestTime(at), operator }),
            }
        }
        Ok(dropped)
    }

    /// Returns what [`View::dropped`] does, for several sources together.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn dropped_of(&self, sources: &[String], at: SnapshotId) -> Result<Vec<Dropped>, CatalogError> {
        let mut all = Vec::new();
        for source in sources {
            all.extend(self.dropped(source, at)?);
        }
        all.sort_by_key(|d| (d.window.start(), d.window.end()));
        let mut apart: Vec<Dropped> = Vec::new();
        for d in all {
            let from = apart.last().map_or(d.window.start(), |l| l.window.end().max(d.window.start()));
            if let Ok(window) = Window::new(from, d.window.end()) {
                apart.push(Dropped { window, ..d });
            }
        }
        Ok(apart)
    }

    /// Returns the newest drop after the snapshot `since` of raw records of `source` that had landed by the snapshot `landed`, if there is one.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn dropped_since(&self, source: &str, since: SnapshotId, landed: SnapshotId) -> Result<Option<Removed>, CatalogError> {
        let sql = "SELECT path, reason, at_us, operator FROM restitch_removed
                   WHERE kind = 'raw' AND name = ?1 AND snapshot_id > ?2 AND first_snapshot <= ?3 ORDER BY id DESC LIMIT 1";
        let row = |r: &rusqlite::Row| Ok(Removed { path: r.get(0)?, reason: r.get(1)?, at: IngestTime(r.get(2)?), operator: r.get(3)? });
        Ok(self.connection.query_row(sql, params![source, since.0, landed.0], row).optional()?)
    }

    /// Returns the snapshots whose ingests landed records of `source` (not only rejects).
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn landing_snapshots(&self, source: &str) -> Result<Vec<SnapshotId>, CatalogError> {
        let sql = "SELECT DISTINCT snapshot_id FROM restitch_file WHERE source = ?1 AND records > 0 ORDER BY 1";
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map([source], |r| r.get(0).map(SnapshotId))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

/// Returns the drop that cuts into `window`, if one does; `dropped` is in order of time.
pub(crate) fn cuts(dropped: &[Dropped], window: Window) -> Option<&Dropped> {
    dropped.get(dropped.partition_point(|d| d.window.end() <= window.start())).filter(|d| d.window.start() < window.end())
}

impl Commit<'_> {
    /// Removes ended files, with the snapshots that would miss them, and writes down what was removed. Their rows go with the next removal.
    /// Ended files that stay and that no snapshot shows any more are held.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn retire(&mut self, files: &[RemovedFile], expired: &[SnapshotId], at: IngestTime, operator: &str) -> Result<(), CatalogError> {
        self.put_dropped(files, at, operator)?;
        self.forget_gone()?;
        let data = self.view().data_path().to_owned();
        let snapshot = self.snapshot().0;
        let c = self.connection();
        {
            let mut insert = c.prepare_cached(
                "INSERT INTO restitch_removed(kind, name, partition, run_id, path, rows, bytes, first_snapshot, last_snapshot, first_event_us, last_event_us, reason, snapshot_id, at_us, operator)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15)",
            )?;
            for f in files {
                insert.execute(params![
                    f.kind,
                    f.name,
                    f.partition,
                    f.run.map(|r| r.0),
                    f.path,
                    f.rows,
                    f.bytes,
                    f.snapshots.0.0,
                    f.snapshots.1.0,
                    f.events.map(|e| e.0.0),
                    f.events.map(|e| e.1.0),
                    f.reason,
                    snapshot,
                    at.0,
                    operator
                ])?;
                c.prepare_cached("DELETE FROM restitch_digest WHERE path = ?1")?.execute([&f.path])?;
                c.prepare_cached("DELETE FROM restitch_hold WHERE data_file_id = ?1")?.execute([f.id])?;
                // Any DuckDB may do what a death keeps us from doing.
                let below = f.path.strip_prefix(&data).unwrap_or(&f.path);
                c.prepare_cached("INSERT INTO ducklake_files_scheduled_for_deletion VALUES (?1, ?2, 1, ?3)")?.execute(params![
                    f.id,
                    below,
                    super::sql_time(at)
                ])?;
                // A reader without a claim may have a snapshot of before, and asks for its files later: it gets an error, and not what is left of them.
                c.prepare_cached("INSERT INTO restitch_hold VALUES (?1, ?2, 1)")?.execute(params![f.id, below])?;
            }
            for s in expired {
                c.prepare_cached("DELETE FROM ducklake_snapshot WHERE snapshot_id = ?1")?.execute([s.0])?;
                c.prepare_cached("DELETE FROM ducklake_snapshot_changes WHERE snapshot_id = ?1")?.execute([s.0])?;
            }
        }
        c.execute(
            "INSERT OR IGNORE INTO restitch_hold SELECT f.data_file_id, f.path, 0 FROM ducklake_data_file f JOIN restitch_dataset d ON d.table_id = f.table_id
             WHERE f.end_snapshot IS NOT NULL AND NOT EXISTS
               (SELECT 1 FROM ducklake_snapshot s WHERE s.snapshot_id >= f.begin_snapshot AND s.snapshot_id < f.end_snapshot)",
            [],
        )?;
        Ok(())
    }
}

impl Commit<'_> {
    /// Deletes the rows of files that an earlier gc removed.
    fn forget_gone(&self) -> Result<(), CatalogError> {
        let c = self.connection();
        let gone = c
            .prepare("SELECT data_file_id FROM restitch_hold WHERE gone = 1")?
            .query_map([], |r| r.get::<_, i64>(0))?
            .collect::<Result<Vec<_>, _>>()?;
        c.execute("DELETE FROM restitch_hold WHERE gone = 1", [])?;
        for table in FILE_TABLES {
            let mut delete = c.prepare_cached(&format!("DELETE FROM {table} WHERE data_file_id = ?1"))?;
            gone.iter().try_for_each(|id| delete.execute([id]).map(drop))?;
        }
        Ok(())
    }

    /// Writes down of which event times raw records are gone, and for which snapshots: so that nobody has to ask the slots again.
    fn put_dropped(&self, files: &[RemovedFile], at: IngestTime, operator: &str) -> Result<(), CatalogError> {
        let c = self.connection();
        let sql =
            "SELECT 1 FROM restitch_dropped WHERE source = ?1 AND start_us <= ?2 AND end_us > ?2 AND from_snapshot <= ?3 AND until_snapshot >= ?4";
        let mut known = c.prepare_cached(sql)?;
        // By source, the snapshot until which it was seen, and slot: from when on it was.
        let mut slots: BTreeMap<(&str, i64, i64), (i64, &str)> = BTreeMap::new();
        for f in files.iter().filter(|f| f.kind == "raw") {
            let Some((first, last)) = f.events else { continue };
            let (begin, until) = (f.seen.0.0, f.seen.1.map_or(i64::MAX, |s| s.0));
            let mut own = Vec::new();
            self.view().read_slots(&f.name, (first.0 - SLOT_US, last.0.saturating_add(1)), f.snapshots, &mut own)?;
            for slot in own {
                let from = slot.snapshot.0.max(begin);
                if !known.exists(params![f.name, slot.start.0, from, until])? {
                    let earliest = slots.entry((&f.name, until, slot.start.0)).or_insert((i64::MAX, &f.reason));
                    earliest.0 = earliest.0.min(from);
                }
            }
        }
        let mut joined: Vec<(&str, i64, i64, i64, i64, &str)> = Vec::new();
        for ((source, until, slot), (from, reason)) in slots {
            match joined.last_mut() {
                Some(w) if (w.0, w.1, w.2, w.4) == (source, until, from, slot) => w.4 += SLOT_US,
                _ => joined.push((source, until, from, slot, slot + SLOT_US, reason)),
            }
        }
        let mut insert = c.prepare_cached("INSERT INTO restitch_dropped VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)")?;
        for (source, until, from, start, end, reason) in joined {
            insert.execute(params![source, start, end, from, until, reason, at.0, operator])?;
        }
        Ok(())
    }
}

/// The DuckLake tables that say something of one data file.
const FILE_TABLES: [&str; 5] =
    ["ducklake_file_column_stats", "ducklake_file_variant_stats", "ducklake_file_partition_value", "ducklake_delete_file", "ducklake_data_file"];

impl Record<'_> {
    /// Writes that the bytes of these removals are gone.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_gone(&self, removals: &[(i64, String)], data_path: &str) -> Result<(), CatalogError> {
        let c = self.connection();
        for (id, path) in removals {
            c.prepare_cached("UPDATE restitch_removed SET gone = 1 WHERE id = ?1")?.execute([id])?;
            let below = path.strip_prefix(data_path).unwrap_or(path);
            c.prepare_cached("DELETE FROM ducklake_files_scheduled_for_deletion WHERE path = ?1 AND path_is_relative <> 0")?.execute([below])?;
        }
        Ok(())
    }

    /// Writes down that somebody reads payloads of masked sources by SQL.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_payload_read(&self, at: IngestTime, operator: &str, tables: &str, reason: &str, sql: &str) -> Result<(), CatalogError> {
        let insert = "INSERT INTO restitch_payload_read(at_us, operator, tables, reason, sql) VALUES (?1, ?2, ?3, ?4, ?5)";
        self.connection().execute(insert, params![at.0, operator, tables, reason, sql])?;
        Ok(())
    }
}
