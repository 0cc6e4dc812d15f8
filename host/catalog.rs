//! The door to SQLite: one file that is a DuckLake catalog and holds our own state beside it.
//! Never touches a data file. Every change of the lake, with all that belongs to it, is one transaction.
//! Read by planning; written by ingest, publish and rollback.

mod behind;
mod copy;
mod ducklake;
mod health;
mod ids;
mod landed;
mod lateness;
mod own;
mod retention;
mod schema;
mod slots;
mod state;
mod sums;
mod upstream;
mod write;

pub use copy::Named;
pub use ducklake::{ColumnStats, Commit, LiveFile, NewFile, Table, TableColumn};
pub use health::RecordedFile;
pub use ids::{IDS_FILE, IdChange, IdEntry, IdIndex, IdPiece, NewIds, Several, SortedIds, id_hash, id_slot};
pub use landed::{ClearColumns, LandedAs, LandedRecords};
pub use lateness::{MovedRow, WatermarkRow};
pub(crate) use retention::cuts;
pub use retention::{Dropped, EndedFile, Holder, RawFile, Removed, RemovedFile, Version};
pub use state::*;
pub use sums::PartitionSum;
pub use upstream::{PartitionVersion, PartitionVersions};
pub use write::StateWrite;

use crate::{
    id::{RunId, SnapshotId},
    store::{Faults, Store},
    time::IngestTime,
};
use rusqlite::{Connection, OpenFlags, OptionalExtension, TransactionBehavior, config::DbConfig, params};
use std::time::Duration;

/// A value of one of our own tables.
pub use rusqlite::types::Value as SqlValue;

/// Returns what SQLite met, in the words of the system, if an error is one of SQLite's and it met a folder that may not be written, or a full disk.
pub fn met(e: &(dyn std::error::Error + 'static)) -> Option<std::io::ErrorKind> {
    use rusqlite::{
        ErrorCode::{CannotOpen, DiskFull, PermissionDenied, ReadOnly},
        ffi::{SQLITE_IOERR_SHMMAP, SQLITE_IOERR_SHMSIZE, SQLITE_IOERR_WRITE},
    };
    let met = e.downcast_ref::<rusqlite::Error>()?.sqlite_error()?;
    match (met.code, met.extended_code) {
        (ReadOnly | PermissionDenied | CannotOpen, _) => Some(std::io::ErrorKind::PermissionDenied),
        // Beside its file SQLite needs room for an index of its log, and says so in other words.
        (DiskFull, _) | (_, SQLITE_IOERR_WRITE | SQLITE_IOERR_SHMSIZE | SQLITE_IOERR_SHMMAP) => Some(std::io::ErrorKind::StorageFull),
        _ => None,
    }
}

/// A catalog that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// SQLite refused.
    #[error("the catalog refused: {0}")]
    Sqlite(#[from] rusqlite::Error),
    /// SQLite refused the index of ids.
    #[error("the index of ids, {path}, refused: {source}")]
    Index {
        /// Its file.
        path: String,
        /// Why.
        source: rusqlite::Error,
    },
    /// There is no warehouse.
    #[error("there is no warehouse at {0}")]
    Missing(String),
    /// There is one already.
    #[error("there is a warehouse at {0} already")]
    Exists(String),
    /// There is none, but files that one has to know.
    #[error("there is no catalog in {folder}, but {}", remains(*data, *components, *unfinished))]
    Lost {
        /// The folder of the warehouse.
        folder: String,
        /// Files below `data/`.
        data: usize,
        /// Components below `transforms/`.
        components: usize,
        /// Whether a backup left the part of a catalog there.
        unfinished: bool,
    },
    /// The file is a catalog of another version.
    #[error("{path} is a {what} of version {found}; this release reads {expected}")]
    Version {
        /// The catalog file.
        path: String,
        /// "DuckLake catalog" or "restitch warehouse".
        what: &'static str,
        /// Its version.
        found: String,
        /// Ours.
        expected: String,
    },
    /// A file of the warehouse cannot be removed, or may not be written.
    #[error(transparent)]
    Store(#[from] crate::store::StoreError),
    /// A column has a type that is not of the contract.
    #[error("column {column:?} of table {table} has the DuckLake type {type_name}, which restitch does not read")]
    ColumnType {
        /// The table.
        table: String,
        /// The column.
        column: String,
        /// Its type.
        type_name: String,
    },
    /// Another tool changed rows in a way that reading data files alone would not show.
    #[error("another tool {what} in table {table}")]
    ForeignRows {
        /// The table.
        table: String,
        /// What it did.
        what: &'static str,
    },
    /// Another tool gave a column another name, or the name of a column to another: files say which by the column's id, and we find columns by name.
    #[error("column {column} of table {table} is not what its files call {column}: another tool renamed it, or dropped one of that name")]
    Renamed {
        /// The table.
        table: String,
        /// The column, by its name now.
        column: String,
    },
    /// Another tool dropped or renamed a table.
    #[error("table {table} is gone: another tool dropped or renamed it")]
    Gone {
        /// The table.
        table: String,
    },
    /// A dataset's table is not the one that its runs wrote.
    #[error("table {table} is not what restitch wrote: another tool made it, or gave it that name")]
    Strange {
        /// The table.
        table: String,
    },
    /// Two names that SQL takes for one.
    #[error("there is a {what} {other:?}, and {name:?} differs from it in case alone, which is one name for SQL")]
    Twin {
        /// "column of TABLE", or "table or view".
        what: String,
        /// The name that is new.
        name: String,
        /// The name that is there.
        other: String,
    },
    /// Files that were live when we looked are not any more.
    #[error("files of table {table} changed while they were being replaced")]
    Vanished {
        /// The table.
        table: String,
    },
    /// A manifest that does not parse.
    #[error("the manifest of {run} in the catalog is damaged, or of a newer release: {reason}")]
    Manifest {
        /// The run.
        run: RunId,
        /// What is wrong with it.
        reason: String,
    },
    /// A row of our own that does not parse.
    #[error("the catalog holds {what} {value:?}, which this release does not understand")]
    Value {
        /// What kind of value.
        what: &'static str,
        /// The value.
        value: String,
    },
}

/// What there is of a warehouse without a catalog.
fn remains(data: usize, components: usize, unfinished: bool) -> String {
    let counted = |n: usize, what: &str| (n > 0).then(|| format!("{n} {what}{}", if n == 1 { "" } else { "s" }));
    let mut there: Vec<String> = [counted(data, "data file"), counted(components, "transform")].into_iter().flatten().collect();
    if unfinished {
        there.push("an unfinished backup".into());
    }
    match there.as_slice() {
        [all @ .., last] if !all.is_empty() => format!("{} and {last}", all.join(", ")),
        _ => there.concat(),
    }
}

/// An open catalog.
pub struct Catalog {
    connection: Connection,
    data_path: String,
    faults: Faults,
}

/// A transaction over our own tables alone.
pub struct Record<'c> {
    tx: rusqlite::Transaction<'c>,
}

/// A reader of the catalog: of the database as it is, or inside a commit.
#[derive(Clone, Copy)]
pub struct View<'c> {
    connection: &'c Connection,
    data_path: &'c str,
}

/// The catalog file's name in a warehouse.
pub const FILE: &str = "catalog.sqlite";

/// Pages that are kept in memory: what a swap of thousands of partitions changes is written once, and not each time that it does not fit.
const CACHE_KIB: i64 = 16 << 10;

/// How long a writer waits for another one.
const BUSY: Duration = Duration::from_secs(60);

impl Catalog {
    /// Creates the catalog of a new warehouse.
    ///
    /// # Errors
    /// There is one already, or the folder is not writable.
    /// # After a crash
    /// The file is not there, or complete.
    pub fn create(store: &Store, now: IngestTime) -> Result<Catalog, CatalogError> {
        if store.exists(FILE) {
            Catalog::fill(store, FILE, now)?;
            return Catalog::open(store);
        }
        // Who looks for it at the same moment finds nothing, or all of it.
        let new = format!("{FILE}.new");
        for (file, end) in [(new.as_str(), ""), (&new, "-wal"), (&new, "-shm"), (FILE, "-wal"), (FILE, "-shm")] {
            store.remove(&format!("{file}{end}"))?;
        }
        Catalog::fill(store, &new, now)?;
        store.sync(&new)?;
        store.rename(&new, FILE)?;
        store.sync_parent(FILE)?;
        Catalog::open(store)
    }

    /// Makes the tables of a new warehouse in a file that has none.
    fn fill(store: &Store, file: &str, now: IngestTime) -> Result<(), CatalogError> {
        let path = store.path(file);
        let mut connection = Connection::open(&path)?;
        configure(&connection)?;
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if has_table(&tx, "ducklake_metadata")? {
            return Err(CatalogError::Exists(path.display().to_string()));
        }
        tx.execute_batch(schema::DUCKLAKE)?;
        tx.execute_batch(schema::STATE)?;
        tx.execute_batch(schema::VIEWS)?;
        tx.execute("INSERT INTO ducklake_snapshot VALUES (0, ?1, 0, 1, 0)", [sql_time(now)])?;
        tx.execute("INSERT INTO ducklake_snapshot_changes VALUES (0, 'created_schema:\"main\"', NULL, NULL, NULL)", [])?;
        tx.execute("INSERT INTO ducklake_schema VALUES (0, ?1, 0, NULL, 'main', 'main/', 1)", [uuid::Uuid::new_v4().to_string()])?;
        let created_by = format!("restitch {}", env!("CARGO_PKG_VERSION"));
        let metadata = [
            ("version", schema::DUCKLAKE_VERSION),
            ("created_by", &created_by),
            ("data_path", &absolute_data(store)),
            ("encrypted", "false"),
            ("data_inlining_row_limit", "0"),
        ];
        for (key, value) in metadata {
            tx.execute("INSERT INTO ducklake_metadata VALUES (?1, ?2, NULL, NULL)", [key, value])?;
        }
        tx.execute("INSERT INTO restitch_meta VALUES ('version', ?1)", [schema::STATE_VERSION.to_string()])?;
        tx.commit()?;
        Ok(connection.close().map_err(|(_, e)| e)?)
    }

    /// Opens the catalog of a warehouse.
    ///
    /// # Errors
    /// There is none, it may not be written, or it was written by a newer release.
    pub fn open(store: &Store) -> Result<Catalog, CatalogError> {
        let path = store.path(FILE);
        let shown = path.display().to_string();
        if !store.exists(FILE) {
            return Err(CatalogError::Missing(shown));
        }
        // Of a catalog that may not be written SQLite makes files beside it that may not be written either, and stay so when it may be again.
        for end in ["", "-wal", "-shm"] {
            store.may_write(&format!("{FILE}{end}"))?;
        }
        let connection = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        configure(&connection)?;
        if !has_table(&connection, "ducklake_metadata")? || !has_table(&connection, "restitch_meta")? {
            return Err(CatalogError::Missing(shown));
        }
        let value = |key: &str| {
            connection.query_row("SELECT value FROM ducklake_metadata WHERE key = ?1 AND scope IS NULL", [key], |r| r.get::<_, String>(0))
        };
        let refuse = |what, found: String, expected: String| Err(CatalogError::Version { path: shown.clone(), what, found, expected });
        let version = value("version")?;
        if version != schema::DUCKLAKE_VERSION {
            return refuse("DuckLake catalog", version, schema::DUCKLAKE_VERSION.into());
        }
        let version: String = connection.query_row("SELECT value FROM restitch_meta WHERE key = 'version'", [], |r| r.get(0))?;
        if version != schema::STATE_VERSION.to_string() {
            return refuse("restitch warehouse", version, schema::STATE_VERSION.to_string());
        }
        renew_views(&connection)?;
        // DuckDB resolves a relative path against its own working directory, so the catalog holds an absolute one,
        // and a warehouse that was moved says so when it is next opened.
        let here = absolute_data(store);
        if value("data_path")? != here {
            connection.execute("UPDATE ducklake_metadata SET value = ?1 WHERE key = 'data_path' AND scope IS NULL", [here])?;
        }
        Ok(Catalog { connection, data_path: DATA.into(), faults: store.faults() })
    }

    /// Reads the catalog: everything that `read` sees is of one moment.
    ///
    /// # Errors
    /// What `read` returns, or that the catalog cannot be read.
    pub fn read<T, E: From<CatalogError>>(&mut self, read: impl FnOnce(View) -> Result<T, E>) -> Result<T, E> {
        let tx = self.connection.transaction().map_err(CatalogError::from)?;
        read(View { connection: &tx, data_path: &self.data_path })
    }

    /// Changes our own state only: no snapshot, but one transaction all the same.
    ///
    /// # Errors
    /// What `change` returns, or that the catalog cannot be written.
    /// # After an error
    /// The catalog is as before.
    pub fn record<T, E: From<CatalogError>>(&mut self, change: impl FnOnce(&Record) -> Result<T, E>) -> Result<T, E> {
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(CatalogError::from)?;
        let record = Record { tx };
        let value = change(&record)?;
        self.faults.step();
        record.tx.commit().map_err(CatalogError::from)?;
        Ok(value)
    }

    /// Changes the lake: makes a snapshot, lets `change` fill it, and commits all of it or nothing.
    ///
    /// # Errors
    /// What `change` returns, or that the catalog cannot be written.
    /// # After an error
    /// The catalog is as before. Only if the commit itself failed (disk, power) its outcome is unknown: look before cleaning up.
    pub fn commit<T, E: From<CatalogError>>(
        &mut self,
        now: IngestTime,
        author: &str,
        message: &str,
        change: impl FnOnce(&mut Commit) -> Result<T, E>,
    ) -> Result<(SnapshotId, T), E> {
        let data_path = self.data_path.clone();
        let tx = self.connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(CatalogError::from)?;
        let mut commit = Commit::begin(tx, data_path, &sql_time(now))?;
        let value = change(&mut commit)?;
        self.faults.step();
        let snapshot = commit.finish(author, message)?;
        self.faults.step();
        Ok((snapshot, value))
    }
}

/// The folder of all data in a warehouse.
const DATA: &str = "data/";

fn absolute_data(store: &Store) -> String {
    let path = store.path(DATA);
    let absolute = std::path::absolute(&path).unwrap_or(path);
    format!("{}/", absolute.display().to_string().trim_end_matches('/'))
}

fn configure(connection: &Connection) -> Result<(), CatalogError> {
    connection.busy_timeout(BUSY)?;
    connection.pragma_update(None, "journal_mode", "WAL")?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    connection.pragma_update(None, "cache_size", -CACHE_KIB)?;
    connection.set_prepared_statement_cache_capacity(128);
    // A plan that does not depend on the values that are bound is not made again for each of them.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    Ok(())
}

/// Makes those views anew that another release made otherwise: they hold nothing.
fn renew_views(connection: &Connection) -> Result<(), CatalogError> {
    for view in schema::VIEWS.split_terminator(';').map(str::trim).filter(|v| !v.is_empty()) {
        let name = view.split_whitespace().nth(2).unwrap_or_default();
        let stands: Option<String> =
            connection.query_row("SELECT sql FROM sqlite_master WHERE type = 'view' AND name = ?1", [name], |r| r.get(0)).optional()?;
        if stands.as_deref() != Some(view) {
            connection.execute_batch(&format!("BEGIN IMMEDIATE; DROP VIEW IF EXISTS {name}; {view}; COMMIT;"))?;
        }
    }
    Ok(())
}

fn has_table(connection: &Connection, name: &str) -> Result<bool, CatalogError> {
    Ok(connection.query_row("SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?1", params![name], |r| r.get::<_, i64>(0))? > 0)
}

/// DuckLake's text of a TIMESTAMPTZ in a SQLite catalog.
fn sql_time(at: IngestTime) -> String {
    chrono::DateTime::from_timestamp_micros(at.0).unwrap_or_default().format("%Y-%m-%d %H:%M:%S%.6f+00").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_view_that_another_release_made_is_made_anew() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        let views = |c: &Catalog| {
            let mut statement = c.connection.prepare("SELECT sql FROM sqlite_master WHERE type = 'view' ORDER BY name").unwrap();
            statement.query_map([], |r| r.get(0)).unwrap().collect::<Result<Vec<String>, _>>().unwrap()
        };
        let catalog = Catalog::create(&store, IngestTime(0)).unwrap();
        let (made, mark) = (views(&catalog), catalog.connection.total_changes());
        assert_eq!(made.len(), 8);
        assert_eq!(mark, 0, "nothing is written where all is as it should be");
        catalog
            .connection
            .execute_batch("DROP VIEW restitch_runs; CREATE VIEW restitch_runs AS SELECT 1 AS other; DROP VIEW restitch_queue")
            .unwrap();
        drop(catalog);
        assert_eq!(views(&Catalog::open(&store).unwrap()), made);
    }
}
