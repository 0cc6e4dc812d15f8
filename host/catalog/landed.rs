//! How a source was declared when its records landed: what their ids are made of.
//! Never forgets it while there is a source: it is one row of `restitch_meta`, as JSON, written with the records.
//! `ingest` writes it; whoever lands, reads again or computes compares it with what is declared now.

use super::{CatalogError, Commit, View};
use crate::config::IdRule;
use rusqlite::{OptionalExtension, params};
use serde::{Deserialize, Serialize};

/// How a source was declared when its records landed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct LandedAs {
    /// What the ids of its records are made of.
    pub ids: IdRule,
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
}

impl Commit<'_> {
    /// Records how `source` was declared when its records landed.
    ///
    /// # Errors
    /// The catalog cannot be written.
    pub fn put_landed_as(&self, source: &str, landed: &LandedAs) -> Result<(), CatalogError> {
        let value = serde_json::json!(landed).to_string();
        self.tx.execute("INSERT OR REPLACE INTO restitch_meta VALUES (?1, ?2)", params![key(source), value])?;
        Ok(())
    }
}
