//! The health of the warehouse, and of the files that a run is computed from.
//! Never lets rows be published or compared that were read from changed bytes.

use super::{Error, Workshop};
use crate::{
    catalog::{LiveFile, RecordedFile},
    doctor::{self, BadFile, Report},
    reparse::in_clear,
    store::Store,
};

impl Workshop {
    /// Looks at every file and every rule of the warehouse. With `quick`, sizes are compared and bytes are not read.
    ///
    /// # Errors
    /// The catalog cannot be read, or a folder cannot be listed. What is wrong is in the report.
    pub fn doctor(&mut self, quick: bool) -> Result<Report, Error> {
        let mut report = doctor::examine(&self.store, &mut self.catalog, quick, self.options.workers)?;
        if report.foreign > 0 {
            report.broken.extend(self.foreign_rows(quick)?);
        }
        report.broken.extend(self.lost_columns()?);
        for source in self.project.sources.values() {
            match self.catalog.read(|v| in_clear(&v, source)) {
                Ok(found) => report.notes.extend(found.map(|f| f.to_string())),
                Err(e) => report.notes.push(format!("whether landed records of {} show what is masked now cannot be told: {e}", source.name)),
            }
        }
        Ok(report)
    }

    /// Columns that another tool dropped or renamed, and that are still declared, or given by the transform that is declared. One line each.
    fn lost_columns(&mut self) -> Result<Vec<String>, Error> {
        let mut asked: Vec<(String, Vec<String>)> =
            self.project.sources.values().map(|s| (s.table(), s.raw_fields().into_iter().map(|f| f.name).collect())).collect();
        for dataset in self.project.datasets.values().cloned().collect::<Vec<_>>() {
            // One that is not registered gives nothing yet.
            let Ok(row) = self.transform_row(&dataset.transform) else { continue };
            let given = self.descriptor_of(row.digest)?;
            asked.extend(given.map(|d| (dataset.name, d.output.into_iter().map(|f| f.name).collect())));
        }
        self.catalog.read(|v| {
            let (mut lines, latest) = (Vec::new(), v.latest()?);
            for (name, columns) in asked {
                // What cannot be read at all is told already.
                let Ok(Some(table)) = v.table(&name, latest) else { continue };
                for column in columns.iter().filter(|c| table.column_id(c).is_none()) {
                    if v.had_column(&table, column)? {
                        lines.push(format!("column {column} of table {name} is gone: another tool dropped or renamed it"));
                    }
                }
            }
            Ok(lines)
        })
    }

    /// Returns what was recorded of files that are going to be read.
    pub(super) fn on_record<'f>(&mut self, files: impl IntoIterator<Item = &'f LiveFile>) -> Result<Vec<RecordedFile>, Error> {
        let files: Vec<&LiveFile> = files.into_iter().collect();
        self.catalog.read(|v| {
            let record = |f: &&LiveFile| {
                let digest = v.file_digest(&f.path)?;
                Ok(RecordedFile { table: String::new(), path: f.path.clone(), bytes: f.bytes as u64, digest })
            };
            files.iter().map(record).collect()
        })
    }
}

/// Reads the files beside `work`, and lets its result through only if they are what they were.
///
/// # Errors
/// A file is damaged: that is told, and not what came of reading it. Else those of `work`.
pub(super) fn with_sound_input<T>(store: &Store, files: &[RecordedFile], work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    let (bad, done) = std::thread::scope(|scope| {
        let reader = scope.spawn(|| doctor::damaged(store, files, false, 1));
        let done = work();
        (reader.join(), done)
    });
    match bad.map(|b| b.into_iter().next()) {
        Ok(None) => done,
        Ok(Some(BadFile { path, fault })) => Err(Error::Input { bad: Box::new(BadFile { path, fault }) }),
        Err(_) => Err(Error::Internal("the reader of input files panicked".into())),
    }
}
