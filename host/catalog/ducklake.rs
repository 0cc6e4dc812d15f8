//! The DuckLake rows of a catalog: tables, columns, data files, statistics, and the commit that changes them.
//! Never edits a row of an earlier snapshot but to end it. Row-level protocol: DuckLake specification 1.0.
//! `Commit` is handed out by [`super::Catalog::commit`]; reading methods stand on [`View`], inside a commit too.

use super::{CatalogError, View, health::PUT_DIGEST};
use crate::{
    id::{Digest, SnapshotId},
    schema::{DataType, Field},
};
use arrow::datatypes::{Schema, SchemaRef};
use rusqlite::{OptionalExtension, Transaction, params};
use std::{
    cmp::Ordering,
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// Leaves out files that gc removed and whose rows stay for a while, for other tools (`restitch_hold`).
pub(super) const THERE: &str = "NOT EXISTS (SELECT 1 FROM restitch_hold h WHERE h.data_file_id = f.data_file_id AND h.gone = 1)";

/// The rule of DuckLake for what is visible at snapshot `?1`.
pub(super) const VISIBLE: &str = "begin_snapshot <= ?1 AND (end_snapshot IS NULL OR ?1 < end_snapshot)";

/// A table as of one snapshot.
#[derive(Clone, Debug)]
pub struct Table {
    /// Its id in the catalog.
    pub id: i64,
    /// Its name.
    pub name: String,
    /// Its folder, relative to the warehouse, with a slash at the end.
    pub folder: String,
    /// Its columns, in order.
    pub columns: Vec<TableColumn>,
    /// The partition spec that new files carry.
    pub partition_id: Option<i64>,
}

impl Table {
    /// Returns the id of the column of that name.
    pub fn column_id(&self, name: &str) -> Option<i64> {
        self.columns.iter().find(|c| c.field.name == name).map(|c| c.id)
    }

    /// Returns the table's fields, in order.
    pub fn fields(&self) -> Vec<Field> {
        self.columns.iter().map(|c| c.field.clone()).collect()
    }

    /// Returns the schema of its rows in Arrow, with the ids of its columns.
    pub fn arrow(&self) -> SchemaRef {
        Arc::new(Schema::new(self.columns.iter().map(|c| c.field.arrow(Some(c.id))).collect::<Vec<_>>()))
    }
}

/// A column of a [`Table`].
#[derive(Clone, Debug)]
pub struct TableColumn {
    /// Its id: also the Parquet field id.
    pub id: i64,
    /// Name, type, nullability.
    pub field: Field,
}

/// A file that is to be added to a table.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct NewFile {
    /// Exact number of rows: DuckDB answers `count(*)` from it.
    pub rows: i64,
    /// Its size.
    pub bytes: i64,
    /// Length of the Parquet footer, without the 8 bytes that end the file.
    pub footer_bytes: Option<i64>,
    /// Value of the partition column, for partitioned tables.
    pub partition: Option<String>,
    /// Statistics, one for each column of the table.
    pub stats: Vec<ColumnStats>,
    /// SHA-256 of its bytes, if we wrote it.
    pub digest: Option<Digest>,
}

/// What a file's values of one column look like.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct ColumnStats {
    /// The column.
    pub column_id: i64,
    /// Its type, by which bounds are compared.
    pub data_type: DataType,
    /// Compressed size.
    pub bytes: i64,
    /// Values that are not null.
    pub values: i64,
    /// Nulls.
    pub nulls: i64,
    /// Least value or a lower bound, as DuckLake text; `None` if all are null.
    pub min: Option<String>,
    /// Greatest value or an upper bound.
    pub max: Option<String>,
    /// For floats: whether there is a NaN.
    pub contains_nan: Option<bool>,
}

impl ColumnStats {
    /// Returns whether there are values that no bounds are known of. Where all are NaN there are no bounds, and none are needed.
    fn is_unbounded(&self) -> bool {
        self.values > 0 && self.contains_nan != Some(true) && (self.min.is_none() || self.max.is_none())
    }
}

/// A file that is visible at some snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LiveFile {
    /// Its id. Compaction replaces ids: never the only reference in anything kept.
    pub id: i64,
    /// Its path, relative to the warehouse.
    pub path: String,
    /// Its rows.
    pub rows: i64,
    /// Its size.
    pub bytes: i64,
    /// The snapshot that added it.
    pub begin: SnapshotId,
    /// The newest snapshot whose rows it holds, if compaction merged several.
    pub partial_max: Option<SnapshotId>,
    /// First row id.
    pub row_id_start: Option<i64>,
    /// Value of its partition column.
    pub partition: Option<String>,
    /// Bounds of the column that was asked for, as DuckLake text.
    pub bounds: Option<(String, String)>,
}

impl View<'_> {
    /// Returns the latest snapshot.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn latest(&self) -> Result<SnapshotId, CatalogError> {
        Ok(SnapshotId(self.connection.query_row("SELECT max(snapshot_id) FROM ducklake_snapshot", [], |r| r.get(0))?))
    }

    /// Returns the table of that name at `at`, if there is one.
    ///
    /// # Errors
    /// The catalog cannot be read, or a column has a type that is not ours.
    pub fn table(&self, name: &str, at: SnapshotId) -> Result<Option<Table>, CatalogError> {
        let sql = format!("SELECT table_id, path FROM ducklake_table WHERE {VISIBLE} AND table_name = ?2 AND schema_id = 0");
        let found = self.connection.query_row(&sql, params![at.0, name], |r| Ok((r.get::<_, i64>(0)?, r.get::<_, String>(1)?))).optional()?;
        let Some((id, path)) = found else { return Ok(None) };
        let mut columns = Vec::new();
        let sql = format!(
            "SELECT column_id, column_name, column_type, nulls_allowed FROM ducklake_column WHERE {VISIBLE} AND table_id = ?2 AND parent_column IS NULL ORDER BY column_order"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params![at.0, id])?;
        while let Some(r) = rows.next()? {
            let (column, type_name): (String, String) = (r.get(1)?, r.get(2)?);
            let data_type = DataType::from_ducklake(&type_name).ok_or_else(|| CatalogError::ColumnType {
                table: name.into(),
                column: column.clone(),
                type_name,
            })?;
            columns.push(TableColumn { id: r.get(0)?, field: Field::new(column, data_type, r.get::<_, i64>(3)? != 0) });
        }
        let sql = format!("SELECT partition_id FROM ducklake_partition_info WHERE {VISIBLE} AND table_id = ?2");
        let partition_id = self.connection.query_row(&sql, params![at.0, id], |r| r.get(0)).optional()?;
        let schema: String = self.connection.query_row("SELECT path FROM ducklake_schema WHERE schema_id = 0", [], |r| r.get(0))?;
        Ok(Some(Table { id, name: name.into(), folder: format!("{}{schema}{path}", self.data_path), columns, partition_id }))
    }

    /// Returns those of these paths of the warehouse at which a data file is known, live or ended: one look at all files, however many there are.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn referred(&self, paths: &[&str]) -> Result<HashSet<String>, CatalogError> {
        let path = "?1 || 'main/' || t.path || f.path";
        let sql = format!(
            "SELECT {path} FROM ducklake_data_file f JOIN ducklake_table t ON t.table_id = f.table_id WHERE {path} IN (SELECT value FROM json_each(?2)) AND {THERE}"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let rows = statement.query_map(params![self.data_path, list(paths.iter())], |r| r.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns the highest column id that `table` ever had.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn last_column_id(&self, table: i64) -> Result<i64, CatalogError> {
        Ok(self.connection.query_row("SELECT coalesce(max(column_id), 0) FROM ducklake_column WHERE table_id = ?1", [table], |r| r.get(0))?)
    }

    /// Returns the folder of all data, relative to the warehouse, with a slash at the end.
    pub fn data_path(&self) -> &str {
        self.data_path
    }

    /// Returns the names of all tables at `at`, sorted.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn table_names(&self, at: SnapshotId) -> Result<Vec<String>, CatalogError> {
        let mut statement =
            self.connection.prepare_cached(&format!("SELECT table_name FROM ducklake_table WHERE {VISIBLE} AND schema_id = 0 ORDER BY 1"))?;
        let names = statement.query_map([at.0], |r| r.get(0))?.collect::<Result<_, _>>()?;
        Ok(names)
    }

    /// Returns the files of `table` that are visible at `at`, in arrival order, with the bounds of `bounds_of`.
    ///
    /// # Errors
    /// The catalog cannot be read; or another tool deleted or inlined rows, which we would not see.
    pub fn files(&self, table: &Table, at: SnapshotId, bounds_of: Option<i64>) -> Result<Vec<LiveFile>, CatalogError> {
        self.files_where(table, at, bounds_of, None)
    }

    /// Returns the files of one partition of `table` that are visible at `at`.
    ///
    /// # Errors
    /// As [`View::files`].
    pub fn partition_files(&self, table: &Table, at: SnapshotId, partition: &str) -> Result<Vec<LiveFile>, CatalogError> {
        Ok(self.files_of(table, at, [partition].into_iter())?.remove(partition).unwrap_or_default())
    }

    /// Returns the files of these partitions of `table` that are visible at `at`, by partition: one query, however many there are.
    ///
    /// # Errors
    /// As [`View::files`].
    pub fn files_of<'p>(
        &self,
        table: &Table,
        at: SnapshotId,
        partitions: impl Iterator<Item = &'p str>,
    ) -> Result<HashMap<String, Vec<LiveFile>>, CatalogError> {
        let mut files: HashMap<String, Vec<LiveFile>> = HashMap::new();
        let mut partitions = partitions.peekable();
        if partitions.peek().is_none() {
            return Ok(files);
        }
        for file in self.files_where(table, at, None, Some(&list(partitions)))? {
            files.entry(file.partition.clone().unwrap_or_default()).or_default().push(file);
        }
        Ok(files)
    }

    fn files_where(&self, table: &Table, at: SnapshotId, bounds_of: Option<i64>, partitions: Option<&str>) -> Result<Vec<LiveFile>, CatalogError> {
        self.refuse_foreign_rows(table, at)?;
        let value = "v.table_id = f.table_id AND v.partition_key_index = 0";
        let from = match partitions {
            Some(_) => format!(
                "(SELECT DISTINCT value FROM json_each(?4)) j CROSS JOIN ducklake_file_partition_value v ON v.table_id = ?2 AND v.partition_key_index = 0 AND v.partition_value = j.value
                 CROSS JOIN ducklake_data_file f ON f.data_file_id = v.data_file_id AND {value}"
            ),
            None => format!("ducklake_data_file f LEFT JOIN ducklake_file_partition_value v ON v.data_file_id = f.data_file_id AND {value} AND ?4 IS NULL"),
        };
        let sql = format!(
            "SELECT f.data_file_id, f.path, f.path_is_relative, f.record_count, f.file_size_bytes, f.begin_snapshot, f.partial_max, f.row_id_start, v.partition_value, s.min_value, s.max_value
             FROM {from} LEFT JOIN ducklake_file_column_stats s ON s.data_file_id = f.data_file_id AND s.column_id = ?3
             WHERE f.table_id = ?2 AND f.begin_snapshot <= ?1 AND (f.end_snapshot IS NULL OR ?1 < f.end_snapshot) AND {THERE}
             ORDER BY f.begin_snapshot, f.data_file_id"
        );
        let mut statement = self.connection.prepare_cached(&sql)?;
        let mut rows = statement.query(params![at.0, table.id, bounds_of, partitions])?;
        let mut files = Vec::new();
        while let Some(r) = rows.next()? {
            let (path, relative): (String, i64) = (r.get(1)?, r.get(2)?);
            let bounds = r.get::<_, Option<String>>(9)?.zip(r.get::<_, Option<String>>(10)?);
            files.push(LiveFile {
                id: r.get(0)?,
                path: if relative != 0 { format!("{}{path}", table.folder) } else { path },
                rows: r.get(3)?,
                bytes: r.get(4)?,
                begin: SnapshotId(r.get(5)?),
                partial_max: r.get::<_, Option<i64>>(6)?.map(SnapshotId),
                row_id_start: r.get(7)?,
                partition: r.get(8)?,
                bounds,
            });
        }
        Ok(files)
    }

    /// Returns how many live files of `table` carry no partition value: rows that no swap would find.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn unpartitioned_files(&self, table: &Table, at: SnapshotId) -> Result<i64, CatalogError> {
        let sql = format!(
            "SELECT count(*) FROM ducklake_data_file f WHERE {VISIBLE} AND table_id = ?2 AND NOT EXISTS (SELECT 1 FROM ducklake_file_partition_value v WHERE v.data_file_id = f.data_file_id)"
        );
        Ok(self.connection.query_row(&sql, params![at.0, table.id], |r| r.get(0))?)
    }

    /// Returns whether `table` was altered or dropped after the snapshot `since`.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn altered_since(&self, table: &Table, since: SnapshotId) -> Result<bool, CatalogError> {
        let mut statement = self.connection.prepare_cached("SELECT changes_made FROM ducklake_snapshot_changes WHERE snapshot_id > ?1")?;
        let tokens = [format!("altered_table:{}", table.id), format!("dropped_table:{}", table.id)];
        let mut rows = statement.query([since.0])?;
        while let Some(r) = rows.next()? {
            let changes: Option<String> = r.get(0)?;
            if changes.unwrap_or_default().split(',').any(|c| tokens.iter().any(|t| t == c)) {
                return Ok(true);
            }
        }
        // A snapshot that was expired has no row of changes any more; the columns remember.
        let sql = "SELECT count(*) FROM (
                     SELECT c.begin_snapshot AS at FROM ducklake_column c JOIN ducklake_table t ON t.table_id = c.table_id AND t.begin_snapshot <> c.begin_snapshot WHERE c.table_id = ?1
                     UNION ALL SELECT end_snapshot FROM ducklake_column WHERE table_id = ?1 UNION ALL SELECT end_snapshot FROM ducklake_table WHERE table_id = ?1)
                   WHERE at > ?2 AND NOT EXISTS (SELECT 1 FROM ducklake_snapshot s WHERE s.snapshot_id = at)";
        Ok(self.connection.query_row(sql, params![table.id, since.0], |r| r.get::<_, i64>(0))? > 0)
    }

    /// Returns the partition values of files of `table` that began or ended at the snapshot `at`.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn partitions_changed_at(&self, table: &Table, at: SnapshotId) -> Result<Vec<Option<String>>, CatalogError> {
        let sql = "SELECT DISTINCT v.partition_value FROM ducklake_data_file f LEFT JOIN ducklake_file_partition_value v ON v.data_file_id = f.data_file_id AND v.partition_key_index = 0
                   WHERE f.table_id = ?2 AND (f.begin_snapshot = ?1 OR f.end_snapshot = ?1)";
        let mut statement = self.connection.prepare_cached(sql)?;
        let rows = statement.query_map(params![at.0, table.id], |r| r.get(0))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }

    /// Returns whether `table` ever had a column of that name.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn had_column(&self, table: &Table, name: &str) -> Result<bool, CatalogError> {
        let sql = "SELECT count(*) FROM ducklake_column WHERE table_id = ?1 AND column_name = ?2 AND parent_column IS NULL";
        Ok(self.connection.query_row(sql, params![table.id, name], |r| r.get::<_, i64>(0))? > 0)
    }
}

/// One change of the lake: a new snapshot, and all that belongs to it, in one transaction.
pub struct Commit<'c> {
    pub(super) tx: Transaction<'c>,
    pub(super) data_path: String,
    base: SnapshotId,
    snapshot: SnapshotId,
    schema_version: i64,
    next_catalog_id: i64,
    next_file_id: i64,
    changes: Vec<String>,
}

impl<'c> Commit<'c> {
    /// Takes the writer's lock (the transaction is already immediate) and inserts the snapshot row first.
    pub(super) fn begin(tx: Transaction<'c>, data_path: String, now: &str) -> Result<Commit<'c>, CatalogError> {
        let (base, schema_version, next_catalog_id, next_file_id) = tx.query_row(
            "SELECT snapshot_id, schema_version, next_catalog_id, next_file_id FROM ducklake_snapshot ORDER BY snapshot_id DESC LIMIT 1",
            [],
            |r| Ok((r.get::<_, i64>(0)?, r.get(1)?, r.get(2)?, r.get(3)?)),
        )?;
        let snapshot = SnapshotId(base + 1);
        tx.execute(
            "INSERT INTO ducklake_snapshot VALUES (?1, ?2, ?3, ?4, ?5)",
            params![snapshot.0, now, schema_version, next_catalog_id, next_file_id],
        )?;
        Ok(Commit { tx, data_path, base: SnapshotId(base), snapshot, schema_version, next_catalog_id, next_file_id, changes: Vec::new() })
    }

    pub(super) fn finish(self, author: &str, message: &str) -> Result<SnapshotId, CatalogError> {
        self.tx.execute(
            "UPDATE ducklake_snapshot SET schema_version = ?2, next_catalog_id = ?3, next_file_id = ?4 WHERE snapshot_id = ?1",
            params![self.snapshot.0, self.schema_version, self.next_catalog_id, self.next_file_id],
        )?;
        self.tx.execute(
            "INSERT INTO ducklake_snapshot_changes VALUES (?1, ?2, ?3, ?4, NULL)",
            params![self.snapshot.0, self.changes.join(","), author, message],
        )?;
        self.tx.commit()?;
        Ok(self.snapshot)
    }

    /// Returns a reader that sees what this commit has done so far.
    pub fn view(&self) -> View<'_> {
        View { connection: &self.tx, data_path: &self.data_path }
    }

    /// Returns the snapshot that this commit makes.
    pub fn snapshot(&self) -> SnapshotId {
        self.snapshot
    }

    /// Returns the snapshot that it stands on.
    pub fn base(&self) -> SnapshotId {
        self.base
    }

    fn changed(&mut self, token: String) {
        if !self.changes.contains(&token) {
            self.changes.push(token);
        }
    }

    fn new_schema_version(&mut self, table: i64) -> Result<(), CatalogError> {
        self.schema_version += 1;
        self.tx.execute("INSERT INTO ducklake_schema_versions VALUES (?1, ?2, ?3)", params![self.snapshot.0, self.schema_version, table])?;
        Ok(())
    }

    /// Creates a table in the schema `main`, partitioned by the identity of `partition_by` if that is given.
    ///
    /// # Errors
    /// Another table has that name but for case; the catalog cannot be written.
    pub fn create_table(&mut self, name: &str, fields: &[Field], partition_by: Option<&str>) -> Result<Table, CatalogError> {
        self.view().refuse_twin_table(name)?;
        let id = self.next_catalog_id;
        self.next_catalog_id += 1;
        let path = format!("{name}/");
        self.tx.execute(
            "INSERT INTO ducklake_table VALUES (?1, ?2, ?3, NULL, 0, ?4, ?5, 1)",
            params![id, uuid::Uuid::new_v4().to_string(), self.snapshot.0, name, path],
        )?;
        let mut columns = Vec::new();
        for (i, field) in fields.iter().enumerate() {
            columns.push(self.insert_column(id, i as i64 + 1, field)?);
        }
        let mut partition_id = None;
        if let Some(column) = columns.iter().find(|c| Some(c.field.name.as_str()) == partition_by) {
            self.tx.execute("INSERT INTO ducklake_partition_info VALUES (?1, ?2, ?3, NULL)", params![self.next_catalog_id, id, self.snapshot.0])?;
            self.tx
                .execute("INSERT INTO ducklake_partition_column VALUES (?1, ?2, 0, ?3, 'identity')", params![self.next_catalog_id, id, column.id])?;
            partition_id = Some(self.next_catalog_id);
            self.next_catalog_id += 1;
        }
        self.new_schema_version(id)?;
        self.changed(format!("created_table:\"main\".\"{name}\""));
        Ok(Table { id, name: name.into(), folder: format!("{}main/{path}", self.data_path), columns, partition_id })
    }

    /// Adds a nullable column to `table`; older files read null.
    ///
    /// # Errors
    /// Another column has that name but for case; the catalog cannot be written.
    pub fn add_column(&mut self, table: &mut Table, field: &Field) -> Result<(), CatalogError> {
        table.refuse_twin(&field.name)?;
        let last: i64 = self.tx.query_row("SELECT max(column_id) FROM ducklake_column WHERE table_id = ?1", [table.id], |r| r.get(0))?;
        let column = self.insert_column(table.id, last + 1, field)?;
        table.columns.push(column);
        self.new_schema_version(table.id)?;
        self.changed(format!("altered_table:{}", table.id));
        Ok(())
    }

    fn insert_column(&mut self, table: i64, id: i64, field: &Field) -> Result<TableColumn, CatalogError> {
        self.tx.execute(
            "INSERT INTO ducklake_column VALUES (?1, ?2, NULL, ?3, ?1, ?4, ?5, NULL, 'NULL', ?6, NULL, 'literal', 'duckdb')",
            params![id, self.snapshot.0, table, field.name, field.data_type.ducklake(), field.nullable as i64],
        )?;
        Ok(TableColumn { id, field: field.clone() })
    }

    /// Adds files to `table`, each with its path relative to the table's folder.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn add_files(&mut self, table: &Table, files: &[(&str, &NewFile)]) -> Result<(), CatalogError> {
        if files.is_empty() {
            return Ok(());
        }
        let stats =
            self.tx.query_row("SELECT next_row_id FROM ducklake_table_stats WHERE table_id = ?1", [table.id], |r| r.get::<_, i64>(0)).optional()?;
        let first = stats.is_none();
        self.insert_files(table, files, stats.unwrap_or(0))?;
        let (rows, bytes) = (files.iter().map(|(_, f)| f.rows).sum::<i64>(), files.iter().map(|(_, f)| f.bytes).sum::<i64>());
        let next_row_id = stats.unwrap_or(0) + rows;
        let mut totals: Vec<ColumnStats> = Vec::new();
        for (_, file) in files {
            for s in &file.stats {
                match totals.iter_mut().find(|t| t.column_id == s.column_id) {
                    Some(total) => widen(total, s),
                    None => totals.push(s.clone()),
                }
            }
        }
        if first {
            self.tx.execute("INSERT INTO ducklake_table_stats VALUES (?1, ?2, ?3, ?4)", params![table.id, rows, next_row_id, bytes])?;
        } else {
            // Gross counts: DuckDB trusts the table's bounds where the count equals the live rows.
            let sql = "UPDATE ducklake_table_stats SET record_count = record_count + ?2, next_row_id = ?3, file_size_bytes = file_size_bytes + ?4 WHERE table_id = ?1";
            self.tx.execute(sql, params![table.id, rows, next_row_id, bytes])?;
        }
        for total in &totals {
            self.widen_table_stats(table.id, total, first)?;
        }
        // A column that a file lacks reads null there.
        let lacking = |c: &&TableColumn| files.iter().any(|(_, f)| !f.stats.iter().any(|s| s.column_id == c.id));
        for column in table.columns.iter().filter(lacking) {
            self.tx.execute(
                "UPDATE ducklake_table_column_stats SET contains_null = 1 WHERE table_id = ?1 AND column_id = ?2",
                params![table.id, column.id],
            )?;
        }
        self.changed(format!("inserted_into_table:{}", table.id));
        Ok(())
    }

    /// Writes the rows of new files: each with its own id and its first row's.
    fn insert_files(&mut self, table: &Table, files: &[(&str, &NewFile)], mut row_id: i64) -> Result<(), CatalogError> {
        let mut insert = self.tx.prepare_cached(
            "INSERT INTO ducklake_data_file VALUES (?1, ?2, ?3, NULL, NULL, ?4, 1, 'parquet', ?5, ?6, ?7, ?8, ?9, NULL, NULL, NULL)",
        )?;
        let mut insert_digest = self.tx.prepare_cached(PUT_DIGEST)?;
        let mut insert_stats = self.tx.prepare_cached("INSERT INTO ducklake_file_column_stats VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, NULL)")?;
        let mut insert_value = self.tx.prepare_cached("INSERT INTO ducklake_file_partition_value VALUES (?1, ?2, 0, ?3)")?;
        for (path, f) in files {
            let id = self.next_file_id;
            self.next_file_id += 1;
            insert.execute(params![id, table.id, self.snapshot.0, path, f.rows, f.bytes, f.footer_bytes, row_id, table.partition_id])?;
            if let Some(digest) = f.digest {
                insert_digest.execute([format!("{}{path}", table.folder), digest.to_string()])?;
            }
            for s in &f.stats {
                insert_stats.execute(params![id, table.id, s.column_id, s.bytes, s.values, s.nulls, s.min, s.max, s.contains_nan.map(i64::from)])?;
            }
            if let Some(value) = &f.partition {
                insert_value.execute(params![id, table.id, value])?;
            }
            row_id += f.rows;
        }
        Ok(())
    }

    /// A column that was added after the first data has no row here, ever: older files would be pruned wrongly.
    fn widen_table_stats(&mut self, table: i64, s: &ColumnStats, first: bool) -> Result<(), CatalogError> {
        if first {
            let sql = "INSERT INTO ducklake_table_column_stats VALUES (?1, ?2, ?3, ?4, ?5, ?6, NULL)";
            self.tx.execute(sql, params![table, s.column_id, (s.nulls > 0) as i64, s.contains_nan.map(i64::from), s.min, s.max])?;
            return Ok(());
        }
        let sql = "SELECT contains_null, contains_nan, min_value, max_value FROM ducklake_table_column_stats WHERE table_id = ?1 AND column_id = ?2";
        let old = self
            .tx
            .query_row(sql, params![table, s.column_id], |r| Ok((r.get::<_, Option<i64>>(0)?, r.get::<_, Option<i64>>(1)?, r.get(2)?, r.get(3)?)))
            .optional()?;
        let Some((contains_null, contains_nan, min, max)) = old else { return Ok(()) };
        let mut wide =
            ColumnStats { min, max, contains_nan: contains_nan.map(|n| n != 0), nulls: contains_null.unwrap_or(0), values: 0, ..s.clone() };
        // Without bounds there are only nulls and NaN so far, or values that none are known of.
        let sql = "SELECT EXISTS (SELECT 1 FROM ducklake_file_column_stats
                   WHERE table_id = ?1 AND column_id = ?2 AND value_count > 0 AND (min_value IS NULL OR max_value IS NULL) AND contains_nan IS NOT 1)";
        let unbounded = wide.min.is_none() || wide.max.is_none();
        let unknown = unbounded && s.min.is_some() && self.tx.query_row(sql, params![table, s.column_id], |r| r.get(0))?;
        widen(&mut wide, s);
        if unknown {
            (wide.min, wide.max) = (None, None);
        }
        let sql = "UPDATE ducklake_table_column_stats SET contains_null = ?3, contains_nan = ?4, min_value = ?5, max_value = ?6 WHERE table_id = ?1 AND column_id = ?2";
        self.tx.execute(sql, params![table, s.column_id, (wide.nulls > 0) as i64, wide.contains_nan.map(i64::from), wide.min, wide.max])?;
        Ok(())
    }

    /// Lets the column `id` of `table` be null from this snapshot on; at older ones it is what it was.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn allow_nulls(&mut self, table: &Table, id: i64) -> Result<(), CatalogError> {
        let of = params![table.id, id, self.snapshot.0];
        self.tx.execute("UPDATE ducklake_column SET end_snapshot = ?3 WHERE table_id = ?1 AND column_id = ?2 AND end_snapshot IS NULL", of)?;
        let sql = "INSERT INTO ducklake_column SELECT column_id, ?3, NULL, table_id, column_order, column_name, column_type, initial_default, default_value, 1, parent_column, default_value_type, default_value_dialect
                   FROM ducklake_column WHERE table_id = ?1 AND column_id = ?2 AND end_snapshot = ?3";
        self.tx.execute(sql, of)?;
        self.new_schema_version(table.id)?;
        self.changed(format!("altered_table:{}", table.id));
        Ok(())
    }

    /// Ends the live files `ids` of `table` at this snapshot.
    ///
    /// # Errors
    /// One of them is not live any more: the caller compared with something stale.
    pub fn end_files(&mut self, table: &Table, ids: &[i64]) -> Result<(), CatalogError> {
        if ids.is_empty() {
            return Ok(());
        }
        let listed = list(ids.iter());
        let ended = self.tx.execute(
            "UPDATE ducklake_data_file SET end_snapshot = ?1 WHERE data_file_id IN (SELECT value FROM json_each(?2)) AND table_id = ?3 AND end_snapshot IS NULL",
            params![self.snapshot.0, listed, table.id],
        )?;
        self.tx.execute(
            "UPDATE ducklake_delete_file SET end_snapshot = ?1 WHERE data_file_id IN (SELECT value FROM json_each(?2)) AND end_snapshot IS NULL",
            params![self.snapshot.0, listed],
        )?;
        if ended != ids.len() {
            return Err(CatalogError::Vanished { table: table.name.clone() });
        }
        // Statistics are cached by file id: consume one, so that attached sessions look again.
        self.next_file_id += 1;
        self.changed(format!("deleted_from_table:{}", table.id));
        Ok(())
    }

    /// Copies the statistics and counts of ended files, in their order, for links of them.
    ///
    /// # Errors
    /// The row of one is gone (expired).
    pub fn copies_of(&self, files: &[&LiveFile], table: &Table) -> Result<Vec<NewFile>, CatalogError> {
        let ids = list(files.iter().map(|file| file.id));
        let sql = "SELECT f.data_file_id, f.footer_size, d.digest FROM ducklake_data_file f LEFT JOIN restitch_digest d ON d.path = CASE WHEN f.path_is_relative <> 0 THEN ?2 || f.path ELSE f.path END
                   WHERE f.data_file_id IN (SELECT value FROM json_each(?1))";
        let mut known: HashMap<i64, (Option<i64>, Option<Digest>)> = HashMap::new();
        let mut statement = self.tx.prepare_cached(sql)?;
        let mut rows = statement.query(params![ids, table.folder])?;
        while let Some(r) = rows.next()? {
            known.insert(r.get(0)?, (r.get(1)?, super::state::optional_digest(r, 2)?));
        }
        let mut stats = self.stats_of(&ids, table)?;
        let copy = |file: &&LiveFile| {
            let (footer_bytes, digest) = *known.get(&file.id).ok_or_else(|| CatalogError::Vanished { table: table.name.clone() })?;
            let (partition, stats) = (file.partition.clone(), stats.remove(&file.id).unwrap_or_default());
            Ok(NewFile { rows: file.rows, bytes: file.bytes, footer_bytes, partition, stats, digest })
        };
        files.iter().map(copy).collect()
    }

    /// The statistics of files by their ids, which stand in a list in JSON.
    fn stats_of(&self, ids: &str, table: &Table) -> Result<HashMap<i64, Vec<ColumnStats>>, CatalogError> {
        let sql = "SELECT data_file_id, column_id, column_size_bytes, value_count, null_count, min_value, max_value, contains_nan FROM ducklake_file_column_stats
                   WHERE data_file_id IN (SELECT value FROM json_each(?1)) ORDER BY data_file_id, column_id";
        let mut statement = self.tx.prepare_cached(sql)?;
        let mut rows = statement.query([ids])?;
        let mut stats: HashMap<i64, Vec<ColumnStats>> = HashMap::new();
        while let Some(r) = rows.next()? {
            let column_id = r.get(1)?;
            let Some(column) = table.columns.iter().find(|c| c.id == column_id) else { continue };
            stats.entry(r.get(0)?).or_default().push(ColumnStats {
                column_id,
                data_type: column.field.data_type,
                bytes: r.get::<_, Option<i64>>(2)?.unwrap_or(0),
                values: r.get::<_, Option<i64>>(3)?.unwrap_or(0),
                nulls: r.get::<_, Option<i64>>(4)?.unwrap_or(0),
                min: r.get(5)?,
                max: r.get(6)?,
                contains_nan: r.get::<_, Option<i64>>(7)?.map(|n| n != 0),
            });
        }
        Ok(stats)
    }
}

/// Returns values as a list that `json_each` reads: one statement for many of them.
pub(super) fn list(values: impl Iterator<Item = impl serde::Serialize>) -> String {
    serde_json::json!(values.collect::<Vec<_>>()).to_string()
}

/// Widens `total` so that it covers `s` too.
fn widen(total: &mut ColumnStats, s: &ColumnStats) {
    // Values without bounds: any bound would be too narrow.
    let unknown = total.is_unbounded() || s.is_unbounded();
    total.bytes += s.bytes;
    total.values += s.values;
    total.nulls += s.nulls;
    total.contains_nan = match (total.contains_nan, s.contains_nan) {
        (Some(a), Some(b)) => Some(a || b),
        (a, b) => a.or(b),
    };
    let pick = |old: &mut Option<String>, new: &Option<String>, keep: Ordering| match (old.as_ref(), new) {
        (_, None) => {}
        (None, Some(n)) => *old = Some(n.clone()),
        (Some(o), Some(n)) => {
            if compare(s.data_type, n, o) == keep {
                *old = Some(n.clone());
            }
        }
    };
    pick(&mut total.min, &s.min, Ordering::Less);
    pick(&mut total.max, &s.max, Ordering::Greater);
    if unknown {
        (total.min, total.max) = (None, None);
    }
}

/// Compares two statistics texts by type, not as text: "9" is less than "10".
fn compare(data_type: DataType, a: &str, b: &str) -> Ordering {
    match data_type {
        DataType::Int32 | DataType::Int64 | DataType::Boolean => a.parse::<i64>().ok().cmp(&b.parse().ok()),
        DataType::Float32 | DataType::Float64 => a.parse::<f64>().unwrap_or(f64::NAN).total_cmp(&b.parse().unwrap_or(f64::NAN)),
        DataType::Decimal(..) => unscaled(a).cmp(&unscaled(b)),
        // ISO 8601 texts of years 0001 to 9999 order as text.
        DataType::String | DataType::Json | DataType::Binary | DataType::Date | DataType::Time | DataType::Timestamp => a.cmp(b),
    }
}

/// Both texts have the column's scale, so dropping the point keeps the order.
fn unscaled(text: &str) -> Option<i128> {
    text.replace('.', "").parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_compared_by_type() {
        for (t, less, more) in [
            (DataType::Int64, "9", "10"),
            (DataType::Int64, "-10", "-9"),
            (DataType::Decimal(18, 2), "-0.50", "0.10"),
            (DataType::Decimal(18, 2), "9.99", "10.00"),
            (DataType::Float64, "-1.5", "1e300"),
            (DataType::Timestamp, "2025-01-01 00:00:00+00", "2025-01-01 00:00:00.5+00"),
        ] {
            assert_eq!(compare(t, less, more), Ordering::Less, "{less} {more}");
        }
    }

    #[test]
    fn values_without_bounds_leave_a_table_without_them() {
        let stats = |values, bounds: Option<(&str, &str)>, contains_nan| ColumnStats {
            column_id: 1,
            data_type: DataType::Float64,
            bytes: 8,
            values,
            nulls: 1,
            min: bounds.map(|(min, _)| min.into()),
            max: bounds.map(|(_, max)| max.into()),
            contains_nan,
        };
        let bounded = stats(2, Some(("1.0", "2.0")), Some(false));
        for (other, wanted) in [
            (stats(3, None, None), None),
            (stats(3, None, Some(true)), Some(("1.0", "2.0"))),
            (stats(0, None, None), Some(("1.0", "2.0"))),
            (stats(1, Some(("-3.0", "1.5")), None), Some(("-3.0", "2.0"))),
        ] {
            for (first, then) in [(&bounded, &other), (&other, &bounded)] {
                let mut total = first.clone();
                widen(&mut total, then);
                assert_eq!(total.min.as_deref().zip(total.max.as_deref()), wanted, "{first:?} and {then:?}");
            }
        }
    }
}
