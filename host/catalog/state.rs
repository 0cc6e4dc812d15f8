//! Our own rows: landed files, watermarks, the repair queue, transforms, runs, and what is published.
//! Never derives a state: open, closed, final and dirty are computed from these by planning and by the views.
//! Reads stand on [`View`]; what writes them is in `write`.

use super::{CatalogError, View, ducklake::list};
use crate::{
    id::{Digest, RunId, SnapshotId},
    manifest::{CheckRecord, FileRecord, Manifest, Mode, PartitionRecord, Quarantined, Status},
    schema::quoted,
    time::{EventTime, IngestTime},
    window::Window,
};
use rusqlite::{OptionalExtension, ToSql, params};
use std::collections::HashMap;

/// A transform in the warehouse.
#[derive(Clone, Debug)]
pub struct TransformRow {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// The SHA-256 of its bytes.
    pub digest: Digest,
    /// Their size.
    pub size_bytes: i64,
    /// What it says of itself, as JSON.
    pub descriptor: String,
    /// When it was added, and by whom.
    pub added: (IngestTime, String),
}

/// A landed file.
#[derive(Clone, Debug)]
pub struct FileRow {
    /// The SHA-256 of its decompressed content, by which it is known.
    pub content_digest: Digest,
    /// The SHA-256 of its bytes.
    pub digest: Digest,
    /// Its path, as given.
    pub path: String,
    /// Its size.
    pub size_bytes: i64,
    /// The snapshot that landed it; 0 until then.
    pub snapshot: SnapshotId,
    /// Records accepted.
    pub records: i64,
    /// Records rejected.
    pub rejects: i64,
    /// Records that were late.
    pub late: i64,
    /// Records too far in the future.
    pub future: i64,
    /// First and last event time.
    pub events: Option<(EventTime, EventTime)>,
    /// CSV: its header line, and the byte between fields.
    pub header: Option<(String, u8)>,
}

/// What a source has landed, all together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Landed {
    /// Files.
    pub files: i64,
    /// Records accepted.
    pub records: i64,
    /// Records rejected.
    pub rejects: i64,
    /// When the first file was landed.
    pub first: Option<IngestTime>,
    /// When the last one was.
    pub last: Option<IngestTime>,
}

/// Why a partition has to be built again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum QueueKind {
    /// Records came late for it.
    Late,
    /// Records of it count elsewhere now: their ids came again with another event time.
    Moved,
}

impl QueueKind {
    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            QueueKind::Late => "late",
            QueueKind::Moved => "moved",
        }
    }
}

/// The tier of a row for a partition that is open: normal runs build it again.
pub const OPEN: &str = "open";

/// Records of one file that one partition of one dataset has to be built again for.
#[derive(Clone, Debug)]
pub struct QueueRow {
    /// The dataset.
    pub dataset: String,
    /// The partition's name.
    pub partition: String,
    /// Its window.
    pub window: Window,
    /// The ingest that brought them.
    pub snapshot: SnapshotId,
    /// The file that brought them.
    pub file: String,
    /// Why.
    pub kind: QueueKind,
    /// repair or approval; [`OPEN`] if records moved out of an open partition.
    pub tier: String,
    /// How many.
    pub records: i64,
    /// How late the least late was: microseconds before the watermark. Of a moved record, the one that counts no more.
    pub least_late_us: i64,
    /// How late the latest was.
    pub most_late_us: i64,
}

impl QueueRow {
    /// Returns whether its partition still has to be built again for it, if what is published of it was computed from the version `read`. What
    /// was never built has nothing to lose: that a record left is no reason to build it.
    pub fn waits(&self, read: Option<SnapshotId>) -> bool {
        match read {
            Some(read) => self.snapshot > read,
            None => self.kind == QueueKind::Late,
        }
    }
}

/// A table or view of our own: its columns, each with whether it holds whole numbers, and its rows.
pub type StateTable = (Vec<(String, bool)>, Vec<Vec<rusqlite::types::Value>>);

/// Records of a source in a quarter of an hour, by ingest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Slot {
    /// Its first instant.
    pub start: EventTime,
    /// The ingest.
    pub snapshot: SnapshotId,
    /// How many.
    pub records: i64,
    /// How many of them were late.
    pub late: i64,
    /// How many of them lay too far in the future.
    pub future: i64,
}

/// Header line and delimiter of landed CSV files, by ingest and path.
pub type Headers = HashMap<(SnapshotId, String), (String, u8)>;

/// The length of a [`Slot`]: borders of partitions in today's zones are borders of slots.
pub const SLOT_US: i64 = 15 * 60 * 1_000_000;

/// A published partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PublishedRow {
    /// Its window.
    pub window: Window,
    /// Its name.
    pub partition: String,
    /// The run that published it.
    pub run: RunId,
    /// The version of the warehouse that run read.
    pub input_snapshot: SnapshotId,
    /// The version that it made.
    pub published_snapshot: SnapshotId,
    /// Its transform.
    pub transform_digest: Digest,
    /// Its rows.
    pub rows: i64,
    /// Its bytes.
    pub bytes: i64,
    /// Its content checksum.
    pub checksum: Digest,
    /// The settings that made its rows, by their digest.
    pub settings_digest: Digest,
}

/// A dataset as the warehouse knows it.
#[derive(Clone, Debug)]
pub struct DatasetRow {
    /// Its name.
    pub name: String,
    /// Its sources; none if datasets are its input.
    pub sources: Vec<String>,
    /// The datasets that are its input; none if sources are.
    pub upstream: Vec<String>,
    /// Its grain.
    pub grain: String,
    /// Its zone.
    pub time_zone: String,
}

/// A run in a list.
#[derive(Clone, Debug)]
pub struct RunRow {
    /// Its manifest, without partitions and checks.
    pub manifest: Manifest,
    /// When it began.
    pub started: IngestTime,
    /// When it ended.
    pub finished: Option<IngestTime>,
    /// How many partitions it has.
    pub partitions: i64,
    /// Records read.
    pub rows_in: Option<i64>,
    /// Rows written.
    pub rows_out: Option<i64>,
}

pub(super) fn digest(r: &rusqlite::Row, i: usize) -> rusqlite::Result<Digest> {
    r.get_ref(i)?.as_str()?.parse().map_err(|e: String| rusqlite::Error::FromSqlConversionFailure(i, rusqlite::types::Type::Text, e.into()))
}

pub(super) fn optional_digest(r: &rusqlite::Row, i: usize) -> rusqlite::Result<Option<Digest>> {
    if r.get_ref(i)? == rusqlite::types::ValueRef::Null { Ok(None) } else { digest(r, i).map(Some) }
}

pub(super) fn window(r: &rusqlite::Row, i: usize) -> rusqlite::Result<Window> {
    Window::new(EventTime(r.get(i)?), EventTime(r.get(i + 1)?))
        .map_err(|e| rusqlite::Error::FromSqlConversionFailure(i, rusqlite::types::Type::Integer, Box::new(e)))
}

impl View<'_> {
    /// Returns the transform of that name and version.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn transform(&self, name: &str, version: &str) -> Result<Option<TransformRow>, CatalogError> {
        Ok(self.transforms()?.into_iter().find(|t| t.name == name && t.version == version))
    }

    /// Returns all transforms, by name and time of registration.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn transforms(&self) -> Result<Vec<TransformRow>, CatalogError> {
        let sql = "SELECT name, version, digest, size_bytes, descriptor, added_us, added_by FROM restitch_transform ORDER BY name, added_us, version";
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map([], |r| {
            Ok(TransformRow {
                name: r.get(0)?,
                version: r.get(1)?,
                digest: digest(r, 2)?,
                size_bytes: r.get(3)?,
                descriptor: r.get(4)?,
                added: (IngestTime(r.get(5)?), r.get(6)?),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the file of `source` with that content, if it was landed.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn landed(&self, source: &str, content: Digest) -> Result<Option<FileRow>, CatalogError> {
        let sql = "SELECT content_digest, digest, path, size_bytes, snapshot_id, records, rejects, late, future, first_event_us, last_event_us, header, delimiter
                   FROM restitch_file WHERE source = ?1 AND content_digest = ?2";
        Ok(self.connection.query_row(sql, params![source, content.to_string()], file_row).optional()?)
    }

    /// Returns the header line and the delimiter of each CSV file that `source` has landed, by ingest and path.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn headers(&self, source: &str) -> Result<Headers, CatalogError> {
        let sql = "SELECT snapshot_id, path, header, delimiter FROM restitch_file WHERE source = ?1 AND header IS NOT NULL";
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map([source], |r| Ok(header(r, 2)?.map(|h| ((SnapshotId(r.get_unwrap(0)), r.get_unwrap(1)), h))))?;
        Ok(rows.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// Returns where reparses up to the snapshot `at` changed records of `sources`, with the snapshot that each made.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn reparsed(&self, sources: &[String], at: SnapshotId) -> Result<Vec<(Window, SnapshotId)>, CatalogError> {
        let sql = "SELECT start_us, end_us, snapshot_id FROM restitch_reparse WHERE source = ?1 AND snapshot_id <= ?2 ORDER BY start_us, snapshot_id";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut reparsed = Vec::new();
        for source in sources {
            let rows = statement.query_map(params![source, at.0], |r| Ok((window(r, 0)?, SnapshotId(r.get(2)?))))?;
            for row in rows {
                reparsed.push(row?);
            }
        }
        Ok(reparsed)
    }

    /// Returns what `source` has landed, all together.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn landed_totals(&self, source: &str) -> Result<Landed, CatalogError> {
        let sql = "SELECT count(*), coalesce(sum(records), 0), coalesce(sum(rejects), 0), min(ingested_us), max(ingested_us) FROM restitch_file WHERE source = ?1";
        let landed = |r: &rusqlite::Row| {
            let (first, last) = (r.get::<_, Option<i64>>(3)?.map(IngestTime), r.get::<_, Option<i64>>(4)?.map(IngestTime));
            Ok(Landed { files: r.get(0)?, records: r.get(1)?, rejects: r.get(2)?, first, last })
        };
        Ok(self.connection.prepare_cached(sql)?.query_row([source], landed)?)
    }

    /// Returns the runs that say they are running.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn running(&self) -> Result<Vec<RunId>, CatalogError> {
        let mut statement = self.connection.prepare_cached("SELECT run_id FROM restitch_run WHERE status = 'running' ORDER BY run_id")?;
        let rows = statement.query_map([], |r| r.get(0).map(RunId))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns a mark that is another one after anybody wrote the catalog: another connection, or this one.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn mark(&self) -> Result<(i64, u64), CatalogError> {
        let others = self.connection.query_row("PRAGMA data_version", [], |r| r.get(0))?;
        Ok((others, self.connection.total_changes()))
    }

    /// Returns the repair queue of `dataset`, by partition: also rows that a published run has covered.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn queue(&self, dataset: &str, span: Option<Window>) -> Result<Vec<QueueRow>, CatalogError> {
        let (from, to) = span.map_or((i64::MIN, i64::MAX), |w| (w.start().0, w.end().0));
        let sql = "SELECT dataset, partition, start_us, end_us, snapshot_id, file, tier, records, least_late_us, most_late_us, kind
                   FROM restitch_repair_queue WHERE dataset = ?1 AND start_us >= ?2 AND start_us < ?3 ORDER BY start_us, id";
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map(params![dataset, from, to], |r| {
            Ok(QueueRow {
                dataset: r.get(0)?,
                partition: r.get(1)?,
                window: window(r, 2)?,
                snapshot: SnapshotId(r.get(4)?),
                file: r.get(5)?,
                tier: r.get(6)?,
                records: r.get(7)?,
                least_late_us: r.get(8)?,
                most_late_us: r.get(9)?,
                kind: if r.get_ref(10)?.as_str()? == QueueKind::Moved.name() { QueueKind::Moved } else { QueueKind::Late },
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the published partitions of `dataset` that begin inside `span`, in order.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn published(&self, dataset: &str, span: Option<Window>) -> Result<Vec<PublishedRow>, CatalogError> {
        let (from, to) = span.map_or((i64::MIN, i64::MAX), |w| (w.start().0, w.end().0));
        let some = "FROM restitch_partition WHERE dataset = ?1 AND start_us >= ?2 AND start_us < ?3";
        let mut rows = Vec::with_capacity(self.count(some, params![dataset, from, to])?);
        let mut statement = self.connection.prepare_cached(&format!("SELECT {PUBLISHED_COLUMNS} {some} ORDER BY start_us"))?;
        for row in statement.query_map(params![dataset, from, to], published_row)? {
            rows.push(row?);
        }
        Ok(rows)
    }

    /// Counts the rows of a query from its `FROM` on, before it is carried out: there may be a million, and a vector that grows would for a while be there
    /// twice.
    pub(super) fn count(&self, some: &str, params: &[&dyn ToSql]) -> Result<usize, CatalogError> {
        let count: i64 = self.connection.prepare_cached(&format!("SELECT count(*) {some}"))?.query_row(params, |r| r.get(0))?;
        Ok(count as usize)
    }

    /// Returns one published partition.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn published_at(&self, dataset: &str, start: EventTime) -> Result<Option<PublishedRow>, CatalogError> {
        let sql = format!("SELECT {PUBLISHED_COLUMNS} FROM restitch_partition WHERE dataset = ?1 AND start_us = ?2");
        Ok(self.connection.prepare_cached(&sql)?.query_row(params![dataset, start.0], published_row).optional()?)
    }

    /// Returns those of the partitions that begin at these instants that are published, by their first instant: one query, however many there are.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn published_of(&self, dataset: &str, starts: impl Iterator<Item = EventTime>) -> Result<HashMap<EventTime, PublishedRow>, CatalogError> {
        let sql = format!("SELECT {PUBLISHED_COLUMNS} FROM restitch_partition WHERE dataset = ?1 AND start_us IN (SELECT value FROM json_each(?2))");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params![dataset, list(starts.map(|s| s.0))], published_row)?;
        rows.map(|row| Ok(row.map(|p| (p.window.start(), p))?)).collect()
    }

    /// Returns the dataset as it was when it was first published.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn dataset(&self, name: &str) -> Result<Option<DatasetRow>, CatalogError> {
        let sql = "SELECT name, sources, grain, time_zone, upstream FROM restitch_dataset WHERE name = ?1";
        Ok(self.connection.query_row(sql, [name], dataset_row).optional()?)
    }

    /// Returns the published datasets that `source` is an input of.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn datasets(&self, source: &str) -> Result<Vec<DatasetRow>, CatalogError> {
        Ok(self.all_datasets()?.into_iter().filter(|d| d.sources.iter().any(|s| s == source)).collect())
    }

    /// Returns the run of that id.
    ///
    /// # Errors
    /// The catalog cannot be read, or the manifest is of a newer release.
    pub fn run(&self, run: RunId) -> Result<Option<RunRow>, CatalogError> {
        let sql = format!("SELECT {RUN_COLUMNS} FROM restitch_run WHERE run_id = ?1");
        self.connection.query_row(&sql, [run.0], run_parts).optional()?.map(run_row).transpose()
    }

    /// Returns the last run that carried out the saved plan of that digest and ended, or will end, as more than a failure.
    ///
    /// # Errors
    /// The catalog cannot be read, or the manifest is of a newer release.
    pub fn applied(&self, dataset: &str, plan: Digest) -> Result<Option<RunRow>, CatalogError> {
        let sql = format!(
            "SELECT {RUN_COLUMNS} FROM restitch_run WHERE dataset = ?1 AND status IN ('running', 'staged', 'published') AND json_extract(manifest, '$.plan_digest') = ?2
             ORDER BY run_id DESC LIMIT 1"
        );
        self.connection.query_row(&sql, [dataset, &plan.to_string()], run_parts).optional()?.map(run_row).transpose()
    }

    /// Returns the id of the warehouse: that of its main schema, which a copy keeps.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn warehouse(&self) -> Result<String, CatalogError> {
        Ok(self.connection.query_row("SELECT schema_uuid FROM ducklake_schema WHERE schema_id = 0", [], |r| r.get(0))?)
    }

    /// Returns the last `count` runs, newest first, of one dataset or of all.
    ///
    /// # Errors
    /// The catalog cannot be read, or a manifest is of a newer release.
    pub fn runs(&self, dataset: Option<&str>, count: i64) -> Result<Vec<RunRow>, CatalogError> {
        let sql = format!("SELECT {RUN_COLUMNS} FROM restitch_run WHERE ?1 IS NULL OR dataset = ?1 ORDER BY run_id DESC LIMIT ?2");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let parts = statement.query_map(params![dataset, count], run_parts)?.collect::<Result<Vec<_>, _>>()?;
        parts.into_iter().map(run_row).collect()
    }

    /// Returns the partitions of a run, with their files, in order of time.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn run_partitions(&self, run: RunId) -> Result<Vec<PartitionRecord>, CatalogError> {
        let sql = format!("SELECT {PARTITION_COLUMNS} FROM restitch_run_partition WHERE run_id = ?1 ORDER BY start_us");
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut partitions = statement.query_map([run.0], partition_record)?.collect::<Result<Vec<_>, _>>()?;
        let mut statement =
            self.connection.prepare_cached("SELECT partition, path, rows, bytes, digest FROM restitch_run_file WHERE run_id = ?1 ORDER BY path")?;
        let mut files: HashMap<String, Vec<FileRecord>> = HashMap::new();
        let mut rows = statement.query([run.0])?;
        while let Some(r) = rows.next()? {
            let file = FileRecord { path: r.get(1)?, rows: r.get::<_, i64>(2)? as u64, bytes: r.get::<_, i64>(3)? as u64, digest: digest(r, 4)? };
            files.entry(r.get(0)?).or_default().push(file);
        }
        let mut quarantined = self.quarantined(run)?;
        for p in &mut partitions {
            p.files = files.remove(&p.partition).unwrap_or_default();
            p.quarantined = quarantined.remove(&p.partition).unwrap_or_default();
        }
        Ok(partitions)
    }

    /// Returns the records that a run left out because the transform fails on them, by partition, in arrival order.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn quarantined(&self, run: RunId) -> Result<HashMap<String, Vec<Quarantined>>, CatalogError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT partition, source, record_id, snapshot_id, seq, event_us, file, file_offset, reason FROM restitch_quarantine
             WHERE run_id = ?1 ORDER BY partition, snapshot_id, seq",
        )?;
        let mut by_partition: HashMap<String, Vec<Quarantined>> = HashMap::new();
        let mut rows = statement.query([run.0])?;
        while let Some(r) = rows.next()? {
            by_partition.entry(r.get(0)?).or_default().push(Quarantined {
                source: r.get(1)?,
                record_id: r.get(2)?,
                snapshot: SnapshotId(r.get(3)?),
                seq: r.get(4)?,
                event_us: r.get(5)?,
                file: r.get(6)?,
                offset: r.get(7)?,
                reason: r.get(8)?,
            });
        }
        Ok(by_partition)
    }

    /// Returns how many records each published partition of `dataset` was computed without.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn quarantine_counts(&self, dataset: &str) -> Result<HashMap<String, u64>, CatalogError> {
        let mut statement =
            self.connection.prepare_cached("SELECT partition, count(*) FROM restitch_quarantined WHERE dataset = ?1 GROUP BY partition")?;
        let rows = statement.query_map([dataset], |r| Ok((r.get(0)?, r.get::<_, i64>(1)? as u64)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns what runs recorded of one partition, oldest first.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn partition_history(&self, dataset: &str, partition: &str) -> Result<Vec<(RunRow, PartitionRecord)>, CatalogError> {
        let columns = PARTITION_COLUMNS.split(", ").map(|c| format!("p.{c}")).collect::<Vec<_>>().join(", ");
        let sql = format!(
            "SELECT {columns}, p.run_id FROM restitch_run_partition p JOIN restitch_run r ON r.run_id = p.run_id WHERE p.partition = ?2 AND r.dataset = ?1 ORDER BY p.run_id"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let records = statement.query_map([dataset, partition], |r| Ok((partition_record(r)?, RunId(r.get(29)?))))?.collect::<Result<Vec<_>, _>>()?;
        let mut history = Vec::new();
        for (mut record, run) in records {
            record.quarantined = self.quarantined(run)?.remove(partition).unwrap_or_default();
            if let Some(run) = self.run(run)? {
                history.push((run, record));
            }
        }
        Ok(history)
    }

    /// Returns what the checks of a run measured.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn checks(&self, run: RunId) -> Result<Vec<CheckRecord>, CatalogError> {
        let sql = "SELECT name, kind, severity, passed, measured, expected, detail FROM restitch_check WHERE run_id = ?1 ORDER BY rowid";
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map([run.0], |r| {
            Ok(CheckRecord {
                name: r.get(0)?,
                kind: r.get(1)?,
                severity: r.get(2)?,
                passed: r.get::<_, i64>(3)? != 0,
                measured: r.get(4)?,
                expected: r.get(5)?,
                detail: r.get(6)?,
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the paths that `owner` meant to publish, or all owners with theirs.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn intents(&self) -> Result<Vec<(String, String)>, CatalogError> {
        let mut statement = self.connection.prepare_cached("SELECT owner, path FROM restitch_intent ORDER BY rowid")?;
        let rows = statement.query_map([], |r| Ok((r.get(0)?, r.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the columns (with whether they hold whole numbers) and rows of one of our own tables or views, for SQL over them.
    ///
    /// # Errors
    /// There is no such table.
    pub fn state_table(&self, name: &str) -> Result<StateTable, CatalogError> {
        let mut statement = self.connection.prepare(&format!("SELECT * FROM {}", quoted(name)))?;
        let mut types = self.connection.prepare("SELECT name, type FROM pragma_table_info(?1)")?;
        // SQLite knows no type of what a view computes.
        let whole = |name: &str, declared: &str| declared.contains("INT") || (declared.is_empty() && super::schema::VIEW_INTEGERS.contains(&name));
        let columns = types.query_map([name], |r| {
            let (name, declared): (String, String) = (r.get(0)?, r.get(1)?);
            let whole = whole(&name, &declared);
            Ok((name, whole))
        })?;
        let columns = columns.collect::<Result<Vec<_>, _>>()?;
        let count = columns.len();
        let rows = statement.query_map([], |r| (0..count).map(|i| r.get(i)).collect::<Result<Vec<_>, _>>())?;
        let rows = rows.collect::<Result<_, _>>()?;
        Ok((columns, rows))
    }

    /// Returns the names of our own tables and views.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn state_tables(&self) -> Result<Vec<String>, CatalogError> {
        let sql =
            "SELECT name FROM sqlite_master WHERE type IN ('table', 'view') AND (name LIKE 'restitch%' OR name LIKE 'ducklake_snapshot%') ORDER BY 1";
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map([], |r| r.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

pub(super) fn dataset_row(r: &rusqlite::Row) -> rusqlite::Result<DatasetRow> {
    let (sources, upstream): (String, String) = (r.get(1)?, r.get(4)?);
    let sources = sources.split(',').filter(|s| !s.is_empty()).map(str::to_owned).collect();
    let upstream =
        serde_json::from_str(&upstream).map_err(|e| rusqlite::Error::FromSqlConversionFailure(4, rusqlite::types::Type::Text, e.into()))?;
    Ok(DatasetRow { name: r.get(0)?, sources, upstream, grain: r.get(2)?, time_zone: r.get(3)? })
}

fn file_row(r: &rusqlite::Row) -> rusqlite::Result<FileRow> {
    let events = r.get::<_, Option<i64>>(9)?.zip(r.get::<_, Option<i64>>(10)?);
    Ok(FileRow {
        content_digest: digest(r, 0)?,
        digest: digest(r, 1)?,
        path: r.get(2)?,
        size_bytes: r.get(3)?,
        snapshot: SnapshotId(r.get(4)?),
        records: r.get(5)?,
        rejects: r.get(6)?,
        late: r.get(7)?,
        future: r.get(8)?,
        events: events.map(|(a, b)| (EventTime(a), EventTime(b))),
        header: header(r, 11)?,
    })
}

/// A header line and the delimiter after it, which is one ASCII character.
fn header(r: &rusqlite::Row, i: usize) -> rusqlite::Result<Option<(String, u8)>> {
    let kept = r.get::<_, Option<String>>(i)?.zip(r.get::<_, Option<String>>(i + 1)?);
    Ok(kept.and_then(|(line, delimiter)| Some((line, delimiter.bytes().next()?))))
}

const PUBLISHED_COLUMNS: &str =
    "start_us, end_us, partition, run_id, input_snapshot, published_snapshot, transform_digest, rows, bytes, checksum, settings_digest";

fn published_row(r: &rusqlite::Row) -> rusqlite::Result<PublishedRow> {
    Ok(PublishedRow {
        window: window(r, 0)?,
        partition: r.get(2)?,
        run: RunId(r.get(3)?),
        input_snapshot: SnapshotId(r.get(4)?),
        published_snapshot: SnapshotId(r.get(5)?),
        transform_digest: digest(r, 6)?,
        rows: r.get(7)?,
        bytes: r.get(8)?,
        checksum: digest(r, 9)?,
        settings_digest: digest(r, 10)?,
    })
}

const RUN_COLUMNS: &str = "run_id, manifest, started_us, finished_us, partitions, rows_in, rows_out";

type RunParts = (i64, String, i64, Option<i64>, i64, Option<i64>, Option<i64>);

fn run_parts(r: &rusqlite::Row) -> rusqlite::Result<RunParts> {
    Ok((r.get(0)?, r.get(1)?, r.get(2)?, r.get(3)?, r.get(4)?, r.get(5)?, r.get(6)?))
}

fn run_row((run, manifest, started, finished, partitions, rows_in, rows_out): RunParts) -> Result<RunRow, CatalogError> {
    let manifest = serde_json::from_str(&manifest).map_err(|e| CatalogError::Manifest { run: RunId(run), reason: e.to_string() })?;
    Ok(RunRow { manifest, started: IngestTime(started), finished: finished.map(IngestTime), partitions, rows_in, rows_out })
}

pub(super) const PARTITION_COLUMNS: &str = "partition, start_us, end_us, reason, records, late, duplicates, conflicts, input_checksum, rows, bytes, checksum, prior_run, prior_rows, prior_checksum, added, removed, changed, input_snapshot, transform_digest, moved, inserted, updated, unchanged, target_only, deleted, kept, quarantined, settings_digest";

fn partition_record(r: &rusqlite::Row) -> rusqlite::Result<PartitionRecord> {
    let count = |i: usize| r.get::<_, Option<i64>>(i).map(|n| n.map(|n| n as u64));
    Ok(PartitionRecord {
        partition: r.get(0)?,
        start_us: r.get(1)?,
        end_us: r.get(2)?,
        reason: r.get(3)?,
        records: count(4)?.unwrap_or(0),
        late: count(5)?.unwrap_or(0),
        duplicates: count(6)?.unwrap_or(0),
        conflicts: count(7)?.unwrap_or(0),
        input_checksum: optional_digest(r, 8)?,
        rows: count(9)?.unwrap_or(0),
        bytes: count(10)?.unwrap_or(0),
        checksum: optional_digest(r, 11)?,
        prior_run: r.get::<_, Option<i64>>(12)?.map(RunId),
        prior_rows: count(13)?,
        prior_checksum: optional_digest(r, 14)?,
        added: count(15)?,
        removed: count(16)?,
        changed: count(17)?,
        input_snapshot: r.get::<_, Option<i64>>(18)?.map(SnapshotId),
        transform_digest: optional_digest(r, 19)?,
        moved: count(20)?.unwrap_or(0),
        inserted: count(21)?,
        updated: count(22)?,
        unchanged: count(23)?,
        target_only: count(24)?,
        deleted: count(25)?,
        kept: r.get::<_, i64>(26)? != 0,
        settings_digest: optional_digest(r, 28)?,
        quarantined: Vec::new(),
        files: Vec::new(),
    })
}

/// Returns whether a run has staged rows that can still be published or discarded. A dry run keeps none, rejected or not.
pub fn is_pending(m: &Manifest) -> bool {
    matches!(m.status, Status::Staged | Status::Rejected) && m.mode != Mode::DryRun
}
