//! Whether a table is what restitch made of it, and can be read: other tools write to the same catalog.
//! Never mends anything, and never takes a table that is gone for one that is not made yet.
//! Whoever reads files or writes a table asks; `doctor` asks it of all tables.

use super::{
    CatalogError, Table, View,
    ducklake::{THERE, VISIBLE},
};
use crate::{id::SnapshotId, schema::quoted};
use rusqlite::{OptionalExtension, params};

impl Table {
    /// Refuses a new column whose name differs from another one's in case alone: SQL takes the two for one, and DuckDB then reads no table of the lake.
    ///
    /// # Errors
    /// There is such a column.
    pub fn refuse_twin(&self, name: &str) -> Result<(), CatalogError> {
        let twin = self.columns.iter().map(|c| &c.field.name).find(|other| *other != name && other.eq_ignore_ascii_case(name));
        twin.map_or(Ok(()), |other| Err(CatalogError::Twin { what: format!("column of {}", self.name), name: name.into(), other: other.clone() }))
    }
}

impl View<'_> {
    /// Refuses a name for a new table that is another one's, or a view's, but for case.
    ///
    /// # Errors
    /// It is such a name; the catalog cannot be read.
    pub fn refuse_twin_table(&self, name: &str) -> Result<(), CatalogError> {
        let live = "SELECT table_name FROM ducklake_table WHERE end_snapshot IS NULL AND schema_id = 0
                    UNION ALL SELECT view_name FROM ducklake_view WHERE end_snapshot IS NULL AND schema_id = 0";
        let sql = format!("SELECT table_name FROM ({live}) WHERE table_name = ?1 COLLATE NOCASE");
        let twin: Option<String> = self.connection.prepare_cached(&sql)?.query_row([name], |r| r.get(0)).optional()?;
        twin.map_or(Ok(()), |other| Err(CatalogError::Twin { what: "table or view".into(), name: name.into(), other }))
    }

    /// Refuses a source whose raw table is gone though records were landed.
    ///
    /// # Errors
    /// It is gone; the catalog cannot be read.
    pub fn refuse_lost_source(&self, source: &str) -> Result<(), CatalogError> {
        let name = format!("raw_{source}");
        if self.table_id(&name)?.is_some() {
            return Ok(());
        }
        let landed = "SELECT EXISTS (SELECT 1 FROM restitch_file WHERE source = ?1 AND records > 0)";
        match self.connection.prepare_cached(landed)?.query_row([source], |r| r.get(0))? {
            true => Err(CatalogError::Gone { table: name }),
            false => Ok(()),
        }
    }

    /// Refuses a dataset whose table is not the one that its runs wrote: another tool dropped or renamed that one, or made one of that name.
    /// One that is not made yet must not have another table's name but for case.
    ///
    /// # Errors
    /// It is not its own; the catalog cannot be read.
    pub fn refuse_strange(&self, dataset: &str) -> Result<(), CatalogError> {
        let own = "SELECT table_id, EXISTS (SELECT 1 FROM restitch_partition p WHERE p.dataset = d.name) FROM restitch_dataset d WHERE name = ?1";
        let own: Option<(i64, bool)> = self.connection.prepare_cached(own)?.query_row([dataset], |r| Ok((r.get(0)?, r.get(1)?))).optional()?;
        match (own, self.table_id(dataset)?) {
            (Some((own, _)), Some(there)) if own == there => Ok(()),
            (_, Some(_)) => Err(CatalogError::Strange { table: dataset.into() }),
            (Some((_, true)), None) => Err(CatalogError::Gone { table: dataset.into() }),
            (_, None) => self.refuse_twin_table(dataset),
        }
    }

    fn table_id(&self, name: &str) -> Result<Option<i64>, CatalogError> {
        let sql = "SELECT table_id FROM ducklake_table WHERE table_name = ?1 AND schema_id = 0 AND end_snapshot IS NULL";
        Ok(self.connection.prepare_cached(sql)?.query_row([name], |r| r.get(0)).optional()?)
    }

    /// Returns why tables of sources and datasets cannot be read or written as they stand now, one line each.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn unreadable_tables(&self) -> Result<Vec<String>, CatalogError> {
        let (mut lines, latest) = (Vec::new(), self.latest()?);
        let readable = |name: &str| match self.table(name, latest)? {
            Some(table) => self.refuse_foreign_rows(&table, latest),
            None => Ok(()),
        };
        let mut statement = self.connection.prepare("SELECT DISTINCT source FROM restitch_file WHERE records > 0 ORDER BY 1")?;
        for source in statement.query_map([], |r| r.get::<_, String>(0))? {
            let source = source?;
            let found = self.refuse_lost_source(&source).and_then(|()| readable(&format!("raw_{source}")));
            lines.extend(found.err().map(|e| e.to_string()));
        }
        for dataset in self.all_datasets()? {
            let found = self.refuse_strange(&dataset.name).and_then(|()| readable(&dataset.name));
            lines.extend(found.err().map(|e| e.to_string()));
        }
        Ok(lines)
    }

    /// We write no delete files and no inlined rows; where another tool did, reading only data files would be wrong.
    pub(super) fn refuse_foreign_rows(&self, table: &Table, at: SnapshotId) -> Result<(), CatalogError> {
        let sql = format!("SELECT count(*) FROM ducklake_delete_file WHERE {VISIBLE} AND table_id = ?2");
        let deletes: i64 = self.connection.prepare_cached(&sql)?.query_row(params![at.0, table.id], |r| r.get(0))?;
        let inlined = self.inlined_rows(table, at)?;
        let what = match (deletes > 0 || self.inlined_deletes(table, at)?, inlined) {
            (false, false) => return self.refuse_renamed(table, at),
            (false, true) => "inserted rows into the catalog itself (inlining)",
            (true, _) => "deleted rows",
        };
        Err(CatalogError::ForeignRows { table: table.name.clone(), what })
    }

    /// Whether rows of `table` that are visible at `at` stand in the catalog. What was written into files since leaves an empty table behind.
    fn inlined_rows(&self, table: &Table, at: SnapshotId) -> Result<bool, CatalogError> {
        let mut statement = self.connection.prepare_cached("SELECT table_name FROM ducklake_inlined_data_tables WHERE table_id = ?1")?;
        for name in statement.query_map([table.id], |r| r.get::<_, String>(0))? {
            let sql = format!("SELECT EXISTS (SELECT 1 FROM {} WHERE {VISIBLE})", quoted(&name?));
            if self.connection.query_row(&sql, [at.0], |r| r.get(0))? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether rows of files that are visible at `at` are deleted by rows of the catalog. The tables of such rows are named after their table, and listed nowhere.
    fn inlined_deletes(&self, table: &Table, at: SnapshotId) -> Result<bool, CatalogError> {
        let name = format!("ducklake_inlined_delete_{}", table.id);
        let there = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = ?1)";
        if !self.connection.prepare_cached(there)?.query_row([&name], |r| r.get::<_, bool>(0))? {
            return Ok(false);
        }
        let sql = format!(
            "SELECT EXISTS (SELECT 1 FROM {} d JOIN ducklake_data_file f ON f.data_file_id = d.file_id
             WHERE d.begin_snapshot <= ?1 AND f.begin_snapshot <= ?1 AND (f.end_snapshot IS NULL OR ?1 < f.end_snapshot) AND {THERE})",
            quoted(&name)
        );
        Ok(self.connection.query_row(&sql, [at.0], |r| r.get(0))?)
    }

    /// Columns are found in files by name: one that had another name first, or has the name that another had before, would be read wrongly.
    fn refuse_renamed(&self, table: &Table, at: SnapshotId) -> Result<(), CatalogError> {
        // Cheap, since it is asked for each partition: as long as no column of the table has ended, none was renamed.
        let ended = "SELECT EXISTS (SELECT 1 FROM ducklake_column WHERE table_id = ?1 AND end_snapshot IS NOT NULL)";
        if !self.connection.prepare_cached(ended)?.query_row([table.id], |r| r.get::<_, bool>(0))? {
            return Ok(());
        }
        let sql = format!(
            "SELECT c.column_name FROM (SELECT * FROM ducklake_column WHERE {VISIBLE} AND table_id = ?2 AND parent_column IS NULL) c JOIN ducklake_column o
               ON o.table_id = c.table_id AND o.parent_column IS NULL AND o.begin_snapshot < c.begin_snapshot
             WHERE (o.column_id <> c.column_id AND o.column_name = c.column_name) OR (o.column_id = c.column_id AND o.column_name <> c.column_name
               AND o.begin_snapshot = (SELECT min(begin_snapshot) FROM ducklake_column f WHERE f.table_id = c.table_id AND f.column_id = c.column_id)) LIMIT 1"
        );
        let found: Option<String> = self.connection.prepare_cached(&sql)?.query_row(params![at.0, table.id], |r| r.get(0)).optional()?;
        found.map_or(Ok(()), |column| Err(CatalogError::Renamed { table: table.name.clone(), column }))
    }
}
