//! What restitch.toml declares now, compared with how records landed, datasets were published, and tables are.
//! Never lets rows be computed that would count a record twice. What shows a column that is masked by now is told.
//! Asked before every plan, and again before one that was saved is carried out.

use super::{Error, Workshop};
use crate::{
    config::Dataset,
    ingest::same_ids,
    reparse::{InClear, in_clear},
};

impl Workshop {
    /// Refuses a dataset whose tables are not what they were, that is published in another cut, or that reads records whose ids are made of something
    /// else than is declared.
    ///
    /// # Errors
    /// They are not; it is; or it does.
    pub(super) fn refuse_redeclared(&mut self, dataset: &Dataset) -> Result<(), Error> {
        self.refuse_lost_tables(dataset)?;
        self.refuse_recut(dataset)?;
        self.refuse_other_ids(dataset)
    }

    /// Refuses a dataset of which another tool dropped or renamed a table that it reads or writes.
    ///
    /// # Errors
    /// One is gone, or another one stands in its place.
    pub(super) fn refuse_lost_tables(&mut self, dataset: &Dataset) -> Result<(), Error> {
        self.catalog.read(|v| {
            dataset.inputs.iter().chain(dataset.lookups.values()).try_for_each(|source| v.refuse_lost_source(source))?;
            dataset.upstream.iter().chain([&dataset.name]).try_for_each(|name| v.refuse_strange(name))
        })?;
        Ok(())
    }

    /// Returns what of the landed records that a dataset is made of shows what is masked now, by source.
    ///
    /// # Errors
    /// There is no such dataset, or the catalog cannot be read.
    pub fn in_clear(&mut self, dataset: &str) -> Result<Vec<InClear>, Error> {
        let dataset = self.project.dataset(dataset)?;
        let mut found = Vec::new();
        for source in self.project.sources.values().filter(|s| self.project.reads(dataset, s)) {
            found.extend(self.catalog.read(|v| in_clear(&v, source))?);
        }
        Ok(found)
    }

    /// Refuses a dataset that reads records whose ids are made of something else than is declared now: one record would count twice.
    ///
    /// # Errors
    /// It does.
    pub(super) fn refuse_other_ids(&mut self, dataset: &Dataset) -> Result<(), Error> {
        for name in dataset.inputs.iter().chain(dataset.lookups.values()) {
            let source = self.project.source(name)?;
            self.catalog.read(|v| same_ids(&v, source))?;
        }
        Ok(())
    }
}
