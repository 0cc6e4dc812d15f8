//! Rows that another tool put where those of a run stood: files of it that hold other rows than were published.
//! Never looks at a file that restitch wrote, whose hash is on record: what another tool only packed anew is read like before.
//! `doctor` asks it of every partition, a merge or a delete-insert of those that it puts its rows into.

use super::{Error, Workshop, modes::MIXED};
use crate::{
    catalog::{CatalogError, PublishedRow},
    checksum::ContentHash,
    datafile::Reader,
};

/// Rows of a batch.
const BATCH_ROWS: usize = 8192;

impl Workshop {
    /// Returns whether files hold, one after the other, the rows of a published partition in their order: then their content checksum is the one that
    /// its run recorded. Of rows whose transform is not known any more nobody can tell.
    ///
    /// # Errors
    /// A file is damaged.
    pub(super) fn holds(&mut self, p: &PublishedRow, paths: &[&str]) -> Result<bool, Error> {
        let made = if p.transform_digest != MIXED {
            Some(p.transform_digest)
        } else {
            self.catalog.read(|v| v.run(p.run))?.map(|row| row.manifest.recipe.transform_digest)
        };
        let Some(descriptor) = made.map(|digest| self.descriptor_of(digest)).transpose()?.flatten() else { return Ok(false) };
        let mut hash = ContentHash::new(&descriptor.output);
        for path in paths {
            for batch in Reader::open(&self.store, path)?.scan(&descriptor.output, &[], BATCH_ROWS)? {
                hash.update(&batch?);
            }
        }
        Ok(hash.finish() == p.checksum)
    }

    /// Returns what other tools put into the tables of the warehouse: published partitions that show other rows than their run wrote, and raw files that
    /// no ingest landed. One line each. With `quick` no file is read, which leaves the partitions out.
    pub(super) fn foreign_rows(&mut self, quick: bool) -> Result<Vec<String>, Error> {
        let landed = self.catalog.read(|v| v.landed_by_nobody())?;
        let mut lines: Vec<String> =
            landed.into_iter().map(|(table, path)| format!("table {table} has rows that no ingest landed: {path}")).collect();
        if quick {
            return Ok(lines);
        }
        let suspects = self.catalog.read(|v| {
            let (mut suspects, latest) = (Vec::new(), v.latest()?);
            for dataset in v.all_datasets()? {
                let Some(table) = v.table(&dataset.name, latest)? else { continue };
                let published = v.published(&dataset.name, None)?;
                let mut files = match v.files_of(&table, latest, published.iter().map(|p| p.partition.as_str())) {
                    // Nobody reads a table with rows that were deleted aside: that is told already.
                    Err(CatalogError::ForeignRows { .. }) => continue,
                    files => files?,
                };
                for p in published {
                    let live = files.remove(&p.partition).unwrap_or_default();
                    if !v.foreign(&live)?.is_empty() {
                        suspects.push((dataset.name.clone(), p, live));
                    }
                }
            }
            Ok::<_, CatalogError>(suspects)
        })?;
        for (dataset, p, live) in suspects {
            let paths: Vec<&str> = live.iter().map(|f| f.path.as_str()).collect();
            let line = match self.holds(&p, &paths) {
                Ok(true) => continue,
                Ok(false) => {
                    format!("partition {} of {dataset} has files of another tool, which hold other rows than {} published", p.partition, p.run)
                }
                Err(e) => {
                    format!("partition {} of {dataset} has files of another tool, which cannot be read: {}", p.partition, super::run::chain(&e))
                }
            };
            lines.push(line);
        }
        Ok(lines)
    }
}
