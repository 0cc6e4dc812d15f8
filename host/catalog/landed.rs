//! How a source was declared when its records landed: what their ids are made of, and which columns were not masked.
//! Never forgets it: it is one row of `restitch_meta` for each source, as JSON, written with the records.
//! `ingest` writes it; whoever lands, reads again or computes compares it with what is declared now.

use super::{CatalogError, Commit, View};
use crate::{config::IdRule, id::SnapshotId, time::EventTime};
use rusqlite::{OptionalExtension, params};
use serde::{Deserialize, Serialize};

/// How a source was declared when its records landed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LandedAs {
    /// What the ids of its records are made of.
    pub ids: IdRule,
    /// Which columns were declared without a mask, oldest first: a new entry where they changed.
    #[serde(default)]
    pub clear: Vec<ClearColumns>,
}

/// The columns that were declared without a mask from an ingest on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct ClearColumns {
    /// The ingest.
    pub since: SnapshotId,
    /// Their names.
    pub columns: Vec<String>,
}

impl LandedAs {
    /// Returns the columns that were not masked when an ingest landed its records; none, if that is not on record.
    pub fn clear_at(&self, ingest: SnapshotId) -> &[String] {
        let after = self.clear.partition_point(|c| c.since <= ingest);
        after.checked_sub(1).map_or(&[], |i| &self.clear[i].columns)
    }
}

/// Accepted records of a landed file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LandedRecords {
    /// The ingest.
    pub snapshot: SnapshotId,
    /// How many.
    pub records: i64,
    /// The first event time and the last.
    pub events: (EventTime, EventTime),
}

/// The key of a source in `restitch_meta`.
fn key(source: &str) -> String {
    format!("landed as: {source}")
}

impl View<'_> {
    /// Returns how `source` was declared when its records landed; nothing, if none has.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn landed_as(&self, source: &str) -> Result<Option<LandedAs>, CatalogError> {
        let mut statement = self.connection.prepare_cached("SELECT value FROM restitch_meta WHERE key = ?1")?;
        let value: Option<String> = statement.query_row([key(source)], |r| r.get(0)).optional()?;
        value.map(|v| serde_json::from_str(&v).map_err(|_| CatalogError::Value { what: "how a source was declared", value: v })).transpose()
    }

    /// Returns the landed files of `source` that have records, oldest first.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn landed_records(&self, source: &str) -> Result<Vec<LandedRecords>, CatalogError> {
        let sql = "SELECT snapshot_id, records, first_event_us, last_event_us FROM restitch_file
                   WHERE source = ?1 AND first_event_us IS NOT NULL AND last_event_us IS NOT NULL ORDER BY snapshot_id";
        let mut statement = self.connection.prepare_cached(sql)?;
        let row = |r: &rusqlite::Row| {
            let events = (EventTime(r.get(2)?), EventTime(r.get(3)?));
            Ok(LandedRecords { snapshot: SnapshotId(r.get(0)?), records: r.get(1)?, events })
        };
        let rows = statement.query_map([source], row)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}

impl Commit<'_> {
    /// Records how `source` is declared as records of it land: what their ids are made of, and which columns are not masked.
    ///
    /// # Errors
    /// The catalog cannot be read or written.
    pub fn put_landed_as(&self, source: &str, ids: IdRule, columns: Vec<String>) -> Result<(), CatalogError> {
        let mut clear = self.view().landed_as(source)?.map_or(Vec::new(), |landed| landed.clear);
        if clear.last().is_none_or(|last| last.columns != columns) {
            clear.push(ClearColumns { since: self.snapshot(), columns });
        }
        let value = serde_json::json!(LandedAs { ids, clear }).to_string();
        self.tx.execute("INSERT OR REPLACE INTO restitch_meta VALUES (?1, ?2)", params![key(source), value])?;
        Ok(())
    }
}
