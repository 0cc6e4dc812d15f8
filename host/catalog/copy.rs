//! A whole copy of the catalog as of one moment, and the files that it names.
//! Never a copy of the file: what has not left the log yet would be missing from it.
//! Used by `pipeline::backup`.

use super::{Catalog, CatalogError, View, ducklake::THERE};
use crate::{id::RunId, store::Store};
use rusqlite::{Connection, OpenFlags};

/// What a copied catalog names.
#[derive(Clone, Debug)]
pub struct Named {
    /// Data files of all tables and snapshots, relative to the warehouse.
    pub data_files: Vec<String>,
    /// Runs that are staged or rejected: their files are in their staging folders.
    pub pending: Vec<RunId>,
}

impl Catalog {
    /// Writes a copy of the catalog as `file` of another warehouse's folder, where nothing or an empty file is, and returns what the copy names. Its data path
    /// is that folder's: another tool that opens it touches no file of this one.
    ///
    /// # Errors
    /// The catalog cannot be read, or the copy not be written.
    /// # After an error or a crash
    /// A part of the copy may be left.
    pub fn copy_to(&self, to: &Store, file: &str) -> Result<Named, CatalogError> {
        let path = to.path(file);
        let text = path.to_str().ok_or_else(|| CatalogError::Value { what: "a path", value: path.display().to_string() })?;
        self.connection.execute("VACUUM INTO ?1", [text])?;
        let copy = Connection::open_with_flags(&path, OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX)?;
        copy.execute("UPDATE ducklake_metadata SET value = ?1 WHERE key = 'data_path' AND scope IS NULL", [super::absolute_data(to)])?;
        View { connection: &copy, data_path: &self.data_path }.named()
    }
}

impl View<'_> {
    fn named(&self) -> Result<Named, CatalogError> {
        let sql = format!(
            "SELECT DISTINCT s.path, t.path, f.path FROM ducklake_data_file f JOIN ducklake_table t ON t.table_id = f.table_id
             JOIN ducklake_schema s ON s.schema_id = t.schema_id WHERE f.path_is_relative = 1 AND t.path_is_relative = 1 AND {THERE} ORDER BY f.data_file_id"
        );
        let mut statement = self.connection.prepare(&sql)?;
        let path =
            |r: &rusqlite::Row| Ok(format!("{}{}{}{}", self.data_path, r.get::<_, String>(0)?, r.get::<_, String>(1)?, r.get::<_, String>(2)?));
        let data_files = statement.query_map([], path)?.collect::<Result<_, _>>()?;
        Ok(Named { data_files, pending: self.pending_runs()? })
    }
}
