//! What datasets that are made of datasets need: each partition as every run left it, with its files; and settings by their digest.
//! Never says which version counts: a snapshot does.
//! Reads stand on [`View`], what a publication writes on [`Commit`].

use super::{CatalogError, Commit, StateWrite, View, state::digest, state::optional_digest, state::window};
use crate::{
    id::{Digest, RunId, SnapshotId},
    manifest::{FileRecord, Kind, Settings},
    time::EventTime,
    window::Window,
};
use rusqlite::params;
use std::collections::HashMap;

/// A partition of a dataset with all that was published of it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionVersions {
    /// The dataset.
    pub dataset: String,
    /// The partition's name.
    pub partition: String,
    /// Its window.
    pub window: Window,
    /// What was published, oldest first.
    pub versions: Vec<PartitionVersion>,
}

/// What one run left of a partition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartitionVersion {
    /// The version of the warehouse that it made.
    pub snapshot: SnapshotId,
    /// The run.
    pub run: RunId,
    /// Whether it was a rollback.
    pub rollback: bool,
    /// Its rows.
    pub rows: i64,
    /// Its bytes.
    pub bytes: i64,
    /// The content checksum; `None` if the run took the partition away.
    pub checksum: Option<Digest>,
}

impl PartitionVersions {
    /// Returns what readers of the snapshot `at` see, or saw; `None` before the first publication. A partition that was taken away has no checksum.
    pub fn at(&self, at: SnapshotId) -> Option<&PartitionVersion> {
        self.versions[..self.versions.partition_point(|v| v.snapshot <= at)].last()
    }
}

impl View<'_> {
    /// Returns every partition of `dataset` that was ever published, in order of time, with what each run left of it.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn partition_versions(&self, dataset: &str) -> Result<Vec<PartitionVersions>, CatalogError> {
        let sql = "SELECT p.start_us, p.end_us, p.partition, r.published_snapshot, r.run_id, r.kind, p.rows, p.bytes, p.checksum
                   FROM restitch_run r JOIN restitch_run_partition p ON p.run_id = r.run_id
                   WHERE r.dataset = ?1 AND r.status = 'published' ORDER BY p.start_us, p.end_us, r.published_snapshot, r.run_id";
        let mut statement = self.connection.prepare_cached(sql)?;
        let mut rows = statement.query([dataset])?;
        let mut all: Vec<PartitionVersions> = Vec::new();
        while let Some(r) = rows.next()? {
            let (window, partition): (Window, String) = (window(r, 0)?, r.get(2)?);
            let version = PartitionVersion {
                snapshot: SnapshotId(r.get(3)?),
                run: RunId(r.get(4)?),
                rollback: r.get::<_, String>(5)? == Kind::Rollback.name(),
                rows: r.get(6)?,
                bytes: r.get(7)?,
                checksum: optional_digest(r, 8)?,
            };
            match all.last_mut() {
                Some(last) if last.window == window => last.versions.push(version),
                // It was not there, and the run gave it no row.
                _ if version.checksum.is_none() => {}
                _ => all.push(PartitionVersions { dataset: dataset.into(), partition, window, versions: vec![version] }),
            }
        }
        Ok(all)
    }

    /// Returns the first instants of the partitions of `dataset` that were published once, and that a rollback took away: in order of time.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn taken_away(&self, dataset: &str) -> Result<Vec<EventTime>, CatalogError> {
        let sql = "SELECT DISTINCT p.start_us FROM restitch_run r JOIN restitch_run_partition p ON p.run_id = r.run_id
                   WHERE r.dataset = ?1 AND r.status = 'published' AND r.kind = 'rollback' AND p.checksum IS NULL AND p.prior_run IS NOT NULL
                     AND NOT EXISTS (SELECT 1 FROM restitch_partition s WHERE s.dataset = ?1 AND s.start_us = p.start_us) ORDER BY 1";
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map([dataset], |r| r.get(0).map(EventTime))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the files that `run` recorded of `partition`, in the order in which it wrote them.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn run_files(&self, run: RunId, partition: &str) -> Result<Vec<FileRecord>, CatalogError> {
        let sql = "SELECT path, rows, bytes, digest FROM restitch_run_file WHERE run_id = ?1 AND partition = ?2 ORDER BY length(path), path";
        let mut statement = self.connection.prepare_cached(sql)?;
        let file = |r: &rusqlite::Row| {
            Ok(FileRecord { path: r.get(0)?, rows: r.get::<_, i64>(1)? as u64, bytes: r.get::<_, i64>(2)? as u64, digest: digest(r, 3)? })
        };
        let rows = statement.query_map(params![run.0, partition], file)?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the settings that published partitions were made with, by their digest.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn settings_of(&self, dataset: &str) -> Result<HashMap<Digest, Settings>, CatalogError> {
        let sql =
            "SELECT digest, settings FROM restitch_settings WHERE digest IN (SELECT settings_digest FROM restitch_partition WHERE dataset = ?1)";
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map([dataset], |r| Ok((digest(r, 0)?, r.get::<_, String>(1)?)))?;
        let parse = |text: &str| serde_json::from_str(text).map_err(|e| CatalogError::Value { what: "settings", value: e.to_string() });
        rows.map(|row| row.map_err(CatalogError::from).and_then(|(digest, text)| Ok((digest, parse(&text)?)))).collect()
    }
}

impl Commit<'_> {
    /// Records settings under their digest; what is there already stays.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_settings(&self, settings: &Settings) -> Result<(), CatalogError> {
        let json = serde_json::to_string(settings).map_err(|e| CatalogError::Value { what: "settings", value: e.to_string() })?;
        self.connection().execute("INSERT OR IGNORE INTO restitch_settings VALUES (?1, ?2)", params![settings.digest().to_string(), json])?;
        Ok(())
    }
}
