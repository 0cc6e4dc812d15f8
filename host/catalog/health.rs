//! What the catalog knows of every file, and what has to hold between its rows.
//! Never mends anything: it finds and names.
//! `doctor` asks, and whoever reads files that a run was computed from.

use super::{CatalogError, LiveFile, View, ducklake::THERE};
use crate::{
    id::{Digest, RunId},
    manifest::{Manifest, Status},
};
use rusqlite::OptionalExtension;
use std::collections::HashMap;

/// A data file that the catalog refers to at some snapshot, or will remove.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RecordedFile {
    /// Its table's name.
    pub table: String,
    /// Its path, relative to the warehouse.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of its bytes; `None` for a file of another tool.
    pub digest: Option<Digest>,
}

/// Rules between rows: what is wrong where a row comes back, and the query, whose columns make up the place.
const INVARIANTS: [(&str, &str); 10] = [
    (
        "shows other rows than its run wrote",
        "SELECT 'partition ' || p.partition || ' of ' || p.dataset FROM restitch_partition p JOIN restitch_dataset d ON d.name = p.dataset
         WHERE p.rows <> (SELECT coalesce(sum(f.record_count), 0) FROM ducklake_file_partition_value v JOIN ducklake_data_file f ON f.data_file_id = v.data_file_id
           WHERE v.table_id = d.table_id AND v.partition_key_index = 0 AND v.partition_value = p.partition AND f.end_snapshot IS NULL)",
    ),
    (
        "shows rows, and no run has published it",
        "SELECT DISTINCT 'partition ' || v.partition_value || ' of ' || d.name FROM restitch_dataset d JOIN ducklake_file_partition_value v ON v.table_id = d.table_id AND v.partition_key_index = 0
         JOIN ducklake_data_file f ON f.data_file_id = v.data_file_id WHERE f.end_snapshot IS NULL AND f.record_count > 0
           AND NOT EXISTS (SELECT 1 FROM restitch_partition p WHERE p.dataset = d.name AND p.partition = v.partition_value)",
    ),
    (
        "has rows outside of every partition",
        "SELECT DISTINCT 'dataset ' || d.name FROM restitch_dataset d JOIN ducklake_data_file f ON f.table_id = d.table_id
         WHERE f.end_snapshot IS NULL AND NOT EXISTS (SELECT 1 FROM ducklake_file_partition_value v WHERE v.data_file_id = f.data_file_id)",
    ),
    (
        "has the name of another but for case, which is one name for SQL",
        "SELECT 'table ' || b.table_name FROM ducklake_table a JOIN ducklake_table b ON a.table_name = b.table_name COLLATE NOCASE AND a.schema_id = b.schema_id AND a.table_id < b.table_id
         WHERE a.end_snapshot IS NULL AND b.end_snapshot IS NULL
         UNION ALL SELECT 'column ' || b.column_name || ' of table ' || t.table_name FROM ducklake_column a JOIN ducklake_column b ON a.table_id = b.table_id
           AND a.column_name = b.column_name COLLATE NOCASE AND a.column_id < b.column_id AND a.parent_column IS NULL AND b.parent_column IS NULL
         JOIN ducklake_table t ON t.table_id = a.table_id AND t.end_snapshot IS NULL WHERE a.end_snapshot IS NULL AND b.end_snapshot IS NULL",
    ),
    (
        "is published by a run that is not a published one",
        "SELECT 'partition ' || p.partition || ' of ' || p.dataset FROM restitch_partition p LEFT JOIN restitch_run r ON r.run_id = p.run_id WHERE coalesce(r.status, '') <> 'published'",
    ),
    (
        "has another checksum than its run recorded",
        "SELECT 'partition ' || p.partition || ' of ' || p.dataset FROM restitch_partition p JOIN restitch_run_partition r ON r.run_id = p.run_id AND r.partition = p.partition
         WHERE r.checksum IS NOT NULL AND r.checksum <> p.checksum",
    ),
    (
        "overlaps the partition before it",
        "SELECT 'partition ' || partition || ' of ' || dataset FROM (SELECT dataset, partition, start_us, lag(end_us) OVER (PARTITION BY dataset ORDER BY start_us) AS before FROM restitch_partition)
         WHERE before > start_us",
    ),
    (
        "begins after the newest snapshot",
        "SELECT 'file ' || path FROM ducklake_data_file WHERE begin_snapshot > (SELECT max(snapshot_id) FROM ducklake_snapshot)",
    ),
    (
        "has row ids that will be given out again",
        "SELECT DISTINCT 'table ' || t.table_name FROM ducklake_data_file f JOIN ducklake_table_stats s ON s.table_id = f.table_id JOIN ducklake_table t ON t.table_id = f.table_id
         WHERE f.row_id_start + f.record_count > s.next_row_id",
    ),
    (
        "has an id that will be given out again",
        "SELECT 'file ' || path FROM ducklake_data_file WHERE data_file_id >= (SELECT next_file_id FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1)",
    ),
];

impl View<'_> {
    /// Returns every data file that some snapshot shows or a rollback may need, live or ended, in the order of their paths.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn recorded_files(&self) -> Result<Vec<RecordedFile>, CatalogError> {
        let digests = self.digests()?;
        let file = |(table, path, bytes): (String, String, u64)| RecordedFile { table, bytes, digest: digests.get(&path).copied(), path };
        let mut files: Vec<RecordedFile> = self.files_that(THERE)?.into_iter().map(file).collect();
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }

    /// The table, the path and the size of the data files that meet a condition.
    fn files_that(&self, condition: &str) -> Result<Vec<(String, String, u64)>, CatalogError> {
        let sql = format!(
            "SELECT t.table_name, f.path, f.path_is_relative, t.path, t.path_is_relative, s.path, f.file_size_bytes FROM ducklake_data_file f
             JOIN ducklake_table t ON t.table_id = f.table_id JOIN ducklake_schema s ON s.schema_id = t.schema_id WHERE {condition} GROUP BY f.data_file_id"
        );
        let mut statement = self.connection.prepare(&sql)?;
        let data = self.data_path();
        let rows = statement.query_map([], |r| {
            let (table, path): (String, String) = (r.get(0)?, r.get(1)?);
            let (relative, folder, folder_relative, schema): (i64, String, i64, String) = (r.get(2)?, r.get(3)?, r.get(4)?, r.get(5)?);
            let path = match (relative != 0, folder_relative != 0) {
                (false, _) => path,
                (true, false) => format!("{folder}{path}"),
                (true, true) => format!("{data}{schema}{folder}{path}"),
            };
            Ok((table, path, r.get::<_, i64>(6)? as u64))
        })?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the visible files of raw tables that hold rows of no ingest: another tool wrote them, and no ingest was the first to have made
    /// what is in them. Table, path.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn landed_by_nobody(&self) -> Result<Vec<(String, String)>, CatalogError> {
        let sources = "SELECT 'raw_' || source FROM restitch_file";
        let landed = "SELECT 1 FROM restitch_file i WHERE 'raw_' || i.source = t.table_name AND i.snapshot_id = f.begin_snapshot
                      UNION ALL SELECT 1 FROM restitch_run r WHERE r.kind = 'reparse' AND r.dataset = t.table_name AND r.published_snapshot = f.begin_snapshot";
        let files = self.files_that(&format!(
            "f.end_snapshot IS NULL AND t.end_snapshot IS NULL AND t.schema_id = 0 AND t.table_name IN ({sources}) AND NOT EXISTS ({landed})"
        ))?;
        let mut found = Vec::new();
        for (table, path, _) in files {
            if self.file_digest(&path)?.is_none() {
                found.push((table, path));
            }
        }
        Ok(found)
    }

    fn digests(&self) -> Result<HashMap<String, Digest>, CatalogError> {
        let mut statement = self.connection.prepare_cached("SELECT path, digest FROM restitch_digest")?;
        let rows = statement.query_map([], |r| Ok((r.get(0)?, super::state::digest(r, 1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the SHA-256 that a data file had when it was written; `None` for a file of another tool.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn file_digest(&self, path: &str) -> Result<Option<Digest>, CatalogError> {
        let mut statement = self.connection.prepare_cached("SELECT digest FROM restitch_digest WHERE path = ?1")?;
        Ok(statement.query_row([path], |r| super::state::digest(r, 0)).optional()?)
    }

    /// Returns those of `files` that another tool wrote: their hashes are not on record.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn foreign<'f>(&self, files: &'f [LiveFile]) -> Result<Vec<&'f LiveFile>, CatalogError> {
        let mut foreign = Vec::new();
        for file in files {
            if self.file_digest(&file.path)?.is_none() {
                foreign.push(file);
            }
        }
        Ok(foreign)
    }

    /// Returns the other files below the data folder that the catalog knows: those that are to be removed, by us or by the clean-up of another tool, and
    /// another tool's lists of deleted rows; and those that are moved into place at this moment, or the folder of these, with a slash at the end.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn leaving_files(&self) -> Result<Vec<String>, CatalogError> {
        let sql = "SELECT path FROM restitch_removed WHERE gone = 0 UNION SELECT path FROM restitch_intent
                   UNION SELECT CASE WHEN path_is_relative <> 0 THEN ?1 || path ELSE path END FROM ducklake_files_scheduled_for_deletion
                   UNION SELECT CASE WHEN d.path_is_relative <> 0 THEN ?1 || s.path || t.path || d.path ELSE d.path END FROM ducklake_delete_file d
                     JOIN ducklake_table t ON t.table_id = d.table_id JOIN ducklake_schema s ON s.schema_id = t.schema_id";
        let mut statement = self.connection.prepare(sql)?;
        let rows = statement.query_map([self.data_path()], |r| r.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the runs whose staged files wait. A dry run that was rejected kept none.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn pending_runs(&self) -> Result<Vec<RunId>, CatalogError> {
        let mut statement = self.connection.prepare("SELECT run_id FROM restitch_run WHERE status IN (?1, ?2) AND mode <> 'dry-run' ORDER BY 1")?;
        let rows = statement.query_map([Status::Staged.name(), Status::Rejected.name()], |r| Ok(RunId(r.get(0)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns what does not hold of what always should, one line each.
    ///
    /// # Errors
    /// The catalog cannot be read at all.
    pub fn broken_invariants(&self) -> Result<Vec<String>, CatalogError> {
        let mut broken = Vec::new();
        let mut check = self.connection.prepare("PRAGMA integrity_check(20)")?;
        for line in check.query_map([], |r| r.get::<_, String>(0))? {
            let line = line?;
            if line != "ok" {
                broken.push(format!("catalog: {}", line.trim()));
            }
        }
        for (what, sql) in INVARIANTS {
            let mut statement = self.connection.prepare(sql)?;
            for place in statement.query_map([], |r| r.get::<_, String>(0))? {
                broken.push(format!("{} {what}", place?));
            }
        }
        broken.extend(self.unreadable_tables()?);
        broken.extend(self.wrong_sums()?.into_iter().map(|dataset| format!("dataset {dataset} has other partitions than its sum says")));
        let mut statement = self.connection.prepare("SELECT run_id, manifest FROM restitch_run WHERE manifest IS NOT NULL ORDER BY 1")?;
        let mut rows = statement.query([])?;
        while let Some(r) = rows.next()? {
            let (run, manifest) = (RunId(r.get(0)?), r.get_ref(1)?.as_str().unwrap_or_default());
            if let Err(e) = serde_json::from_str::<Manifest>(manifest) {
                broken.push(format!("run {run} has a manifest that is damaged, or of a newer release: {e}"));
            }
        }
        Ok(broken)
    }
}

/// Writes down what a new file's bytes hash to: path, digest.
pub(super) const PUT_DIGEST: &str = "INSERT OR REPLACE INTO restitch_digest VALUES (?1, ?2)";
