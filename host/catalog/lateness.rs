//! How far sources and datasets are complete, how late their records are, and which ids came again with another event time.
//! Never decides what is late: `watermark` and `moves` do, and their cutoffs stand in the rows.
//! Reads stand on [`View`]; what writes them is in `write`.

use super::{CatalogError, Landed, View};
use crate::{
    config::Source,
    id::SnapshotId,
    time::{EventTime, IngestTime},
    watermark::{Cutoffs, InputState, Stand, Watermark},
    window::Window,
};
use rusqlite::{OptionalExtension, params};

/// A source's watermark as it stands, or stood.
#[derive(Clone, Debug)]
pub struct WatermarkRow {
    /// Its value.
    pub value: Watermark,
    /// Its cutoffs under the policy of that moment.
    pub cutoffs: Cutoffs,
    /// The snapshot it stands for.
    pub snapshot: SnapshotId,
    /// data, heartbeat or manual.
    pub reason: String,
    /// Who moved it.
    pub operator: String,
    /// When.
    pub at: IngestTime,
}

/// Where records of one id stand that has records in several slots.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MovedRow {
    /// Their event time.
    pub at: EventTime,
    /// The ingest that brought them.
    pub snapshot: SnapshotId,
    /// The place of the first of them in it.
    pub first_seq: i64,
    /// The place of the last of them in it.
    pub last_seq: i64,
    /// Whether they lay too far in the future.
    pub future: bool,
    /// The file of the first that was seen.
    pub file: String,
}

impl MovedRow {
    /// Returns when the first of them arrived: its ingest, its place there.
    pub fn first(&self) -> (i64, i64) {
        (self.snapshot.0, self.first_seq)
    }

    /// Returns when the last of them arrived.
    pub fn last(&self) -> (i64, i64) {
        (self.snapshot.0, self.last_seq)
    }
}

impl View<'_> {
    /// Returns the watermark of `source`, if it has one.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn watermark(&self, source: &str) -> Result<Option<WatermarkRow>, CatalogError> {
        Ok(self.watermarks(source, 1)?.pop())
    }

    /// Returns the last `count` watermarks of `source`, newest first.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn watermarks(&self, source: &str, count: i64) -> Result<Vec<WatermarkRow>, CatalogError> {
        let sql = "SELECT value_us, late_cutoff_us, approval_cutoff_us, snapshot_id, reason, operator, at_us FROM restitch_watermark WHERE source = ?1 ORDER BY id DESC LIMIT ?2";
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map(params![source, count], |r| {
            Ok(WatermarkRow {
                value: Watermark(EventTime(r.get(0)?)),
                cutoffs: Cutoffs { late: EventTime(r.get(1)?), approval: EventTime(r.get(2)?) },
                snapshot: SnapshotId(r.get(3)?),
                reason: r.get(4)?,
                operator: r.get(5)?,
                at: IngestTime(r.get(6)?),
            })
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns how each of `sources`, which make one dataset, stands at `now`.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn input_states(&self, sources: &[&Source], now: IngestTime) -> Result<Vec<InputState>, CatalogError> {
        let landed = sources.iter().map(|s| self.landed_totals(&s.name)).collect::<Result<Vec<_>, _>>()?;
        let first = landed.iter().filter_map(|l| l.first).min();
        let state = |(s, landed): (&&Source, &Landed)| {
            let watermark = self.watermark(&s.name)?;
            let last = landed.last.max(watermark.as_ref().map(|w| w.at)).or(first);
            let stands = watermark.map(|w| Stand { watermark: w.value, cutoffs: w.cutoffs });
            Ok(InputState { source: s.name.clone(), stands, idle: last.is_some_and(|l| s.policy.is_idle(l, now)) })
        };
        sources.iter().zip(&landed).map(state).collect()
    }

    /// Returns the lateness histogram of `source`: for each upper end (microseconds behind the watermark) that has any, its records.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn lateness(&self, source: &str) -> Result<Vec<(i64, i64)>, CatalogError> {
        let sql = "SELECT behind_us_max, sum(records) FROM restitch_lateness WHERE source = ?1 GROUP BY 1 ORDER BY 1";
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map([source], |r| Ok((r.get(0)?, r.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the snapshot up to which moved ids of `source` are known; -1 before the first.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn moves_upto(&self, source: &str) -> Result<SnapshotId, CatalogError> {
        let sql = "SELECT coalesce(max(upto), -1) FROM restitch_moves WHERE source = ?1";
        Ok(self.connection.prepare_cached(sql)?.query_row([source], |r| r.get(0).map(SnapshotId))?)
    }

    /// Returns the last snapshot that landed a file of `source`.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn last_landing(&self, source: &str) -> Result<Option<SnapshotId>, CatalogError> {
        let mut statement = self.connection.prepare_cached("SELECT max(snapshot_id) FROM restitch_file WHERE source = ?1")?;
        Ok(statement.query_row([source], |r| r.get::<_, Option<i64>>(0))?.map(SnapshotId))
    }

    /// Returns the snapshot up to which the partitions of `dataset` that lost a record of `source` are queued; -1 before the first.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn moves_queued(&self, dataset: &str, source: &str) -> Result<SnapshotId, CatalogError> {
        let sql = "SELECT coalesce(max(upto), -1) FROM restitch_moves_queued WHERE dataset = ?1 AND source = ?2";
        Ok(self.connection.prepare_cached(sql)?.query_row([dataset, source], |r| r.get(0).map(SnapshotId))?)
    }

    /// Returns the ids that stand in several slots and have a record from after `upto`, with all their places.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn moved_since(&self, source: &str, upto: SnapshotId) -> Result<Vec<(String, Vec<MovedRow>)>, CatalogError> {
        let sql = "SELECT record_id, at_us, snapshot_id, first_seq, last_seq, future, file FROM restitch_moved WHERE source = ?1
                     AND record_id IN (SELECT record_id FROM restitch_moved WHERE source = ?1 AND snapshot_id > ?2)
                   ORDER BY record_id, at_us, snapshot_id";
        let mut statement = self.connection.prepare_cached(sql)?;
        moved_rows(statement.query(params![source, upto.0])?)
    }

    /// Returns the ids that have a record inside `hull` and stand in several slots, with all their places up to the snapshot `at`.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn moved(&self, source: &str, hull: Window, at: SnapshotId) -> Result<Vec<(String, Vec<MovedRow>)>, CatalogError> {
        let sql =
            "SELECT record_id, at_us, snapshot_id, first_seq, last_seq, future, file FROM restitch_moved WHERE source = ?1 AND snapshot_id <= ?4
                     AND record_id IN (SELECT record_id FROM restitch_moved WHERE source = ?1 AND at_us >= ?2 AND at_us < ?3 AND snapshot_id <= ?4)
                   ORDER BY record_id, at_us, snapshot_id";
        let mut statement = self.connection.prepare_cached(sql)?;
        moved_rows(statement.query(params![source, hull.start().0, hull.end().0, at.0])?)
    }

    /// Returns how far a dataset of several sources was complete when that was last looked at.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn joint(&self, dataset: &str) -> Result<Option<Stand>, CatalogError> {
        let sql = "SELECT value_us, late_cutoff_us, approval_cutoff_us FROM restitch_joint_watermark WHERE dataset = ?1";
        let row = |r: &rusqlite::Row| {
            let cutoffs = Cutoffs { late: EventTime(r.get(1)?), approval: EventTime(r.get(2)?) };
            Ok(Stand { watermark: Watermark(EventTime(r.get(0)?)), cutoffs })
        };
        Ok(self.connection.prepare_cached(sql)?.query_row([dataset], row).optional()?)
    }
}

fn moved_rows(mut rows: rusqlite::Rows) -> Result<Vec<(String, Vec<MovedRow>)>, CatalogError> {
    let mut ids: Vec<(String, Vec<MovedRow>)> = Vec::new();
    while let Some(r) = rows.next()? {
        let id: String = r.get(0)?;
        let (at, snapshot) = (EventTime(r.get(1)?), SnapshotId(r.get(2)?));
        let row = MovedRow { at, snapshot, first_seq: r.get(3)?, last_seq: r.get(4)?, future: r.get(5)?, file: r.get(6)? };
        match ids.last_mut() {
            Some((last, rows)) if *last == id => rows.push(row),
            _ => ids.push((id, vec![row])),
        }
    }
    Ok(ids)
}
