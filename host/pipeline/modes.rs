//! Write modes: what a merge and a delete-insert need, the published rows that they read, and what they settle.
//! Never changes a row: `execute` puts rows together. What was published is an input here, pinned like raw.
//! `apply` asks when it plans, `run` before it computes and when it concludes, `prove` for a replay.

use super::{Error, RunRequest, Workshop};
use crate::{
    catalog::{CatalogError, PublishedRow, Table, View},
    config::{Dataset, nearest},
    doctor::{BadFile, Fault},
    id::{Digest, SnapshotId},
    manifest::{BaseRecord, FileRecord, Kind, Manifest, Mode, PartitionRecord, Recipe, Settings, Write, WriteMode},
    plan::PlannedPartition,
    schema::{DataType, Field, PARTITION},
    time::EventTime,
    transform::Descriptor,
    window::Window,
};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The transform of rows that more than one transform has made: no transform has this digest, so they are stale. The same of settings.
pub(super) const MIXED: Digest = Digest([0; 32]);

impl RunRequest {
    /// Returns how its rows are to be put among those that are published.
    pub(super) fn write_mode(&self) -> WriteMode {
        match self.mode {
            Mode::Merge => WriteMode::Merge,
            Mode::DeleteInsert => WriteMode::DeleteInsert,
            Mode::DryRun | Mode::Stage | Mode::Overwrite => self.write,
        }
    }

    /// Returns how far it goes and how it writes, in one word for the manifest.
    pub(super) fn whole_mode(&self) -> Mode {
        match (self.mode, self.write_mode()) {
            (Mode::DryRun | Mode::Stage, _) | (_, WriteMode::Overwrite) => self.mode,
            (_, WriteMode::Merge) => Mode::Merge,
            (_, WriteMode::DeleteInsert) => Mode::DeleteInsert,
        }
    }
}

/// Refuses what makes no delete-insert, before anything is planned.
pub(super) fn refuse(request: &RunRequest, dataset: &Dataset) -> Result<(), Error> {
    if request.write_mode() != WriteMode::DeleteInsert {
        return Ok(());
    }
    let usage = |message: String, hint: &str| Err(Error::Usage { message, hint: Some(hint.into()) });
    if request.kind != Kind::Backfill {
        let message = format!("a {} chooses whole partitions, and a delete-insert replaces the rows of a window that is named", request.kind.name());
        return usage(message, "`restitch backfill … --mode delete-insert --start TIME --end TIME`");
    }
    if request.only.is_some() {
        return usage("--only chooses whole partitions, and a delete-insert replaces exactly the window".into(), "leave --only out");
    }
    if dataset.time_column.is_none() {
        let message = format!("a delete-insert goes by the time of each row, and dataset {} does not say which column has it", dataset.name);
        let hint = format!("declare it in [dataset.{}]: time_column = \"COLUMN\", a timestamp of the transform's output", dataset.name);
        return usage(message, &hint);
    }
    Ok(())
}

/// Returns what the recipe of a request says of writing.
pub(super) fn write(request: &RunRequest, dataset: &Dataset, window: Option<Window>) -> Write {
    match (request.write_mode(), &dataset.time_column, window) {
        (WriteMode::Merge, ..) => Write::Merge,
        (WriteMode::DeleteInsert, Some(column), Some(w)) => {
            Write::DeleteInsert { time_column: column.clone(), start_us: w.start().0, end_us: w.end().0 }
        }
        _ => Write::Overwrite,
    }
}

/// Says what a transform lacks for a recipe's way of writing: the problem, and the way out.
pub(super) fn fit(d: &Descriptor, recipe: &Recipe) -> Result<(), (String, Option<String>)> {
    match &recipe.write {
        Write::Merge if recipe.key.is_empty() => {
            Err(("a merge goes by the key, and there is none".into(), Some("declare it: key = [\"COLUMN\"]; or overwrite whole partitions".into())))
        }
        Write::DeleteInsert { time_column, .. } => {
            let times = || d.output.iter().filter(|f| f.data_type == DataType::Timestamp).map(|f| f.name.as_str());
            match d.output.iter().find(|f| f.name == *time_column) {
                Some(f) if f.data_type == DataType::Timestamp => Ok(()),
                Some(f) => Err((format!("the time column {time_column:?} is {}, not a timestamp", f.data_type), known(times().collect()))),
                None => {
                    let near = nearest(time_column, times()).map(|n| format!("did you mean {n:?}?"));
                    Err((format!("the time column {time_column:?} is not in the output"), near.or_else(|| known(times().collect()))))
                }
            }
        }
        _ => Ok(()),
    }
}

fn known(times: Vec<&str>) -> Option<String> {
    Some(match times.as_slice() {
        [] => "its output has no timestamp: overwrite whole partitions, or give the transform a column with the time".into(),
        times => format!("its timestamps: {}", times.join(", ")),
    })
}

/// Rows that stay keep all of their columns.
pub(super) fn refuse_lost_columns(recipe: &Recipe, published: Option<&Table>, output: &[Field]) -> Result<(), Error> {
    let lost = published.into_iter().flat_map(|t| &t.columns).find(|c| c.field.name != PARTITION && !output.iter().any(|f| f.name == c.field.name));
    match lost {
        Some(lost) if recipe.write != Write::Overwrite => {
            let (column, dataset) = (&lost.field.name, &recipe.dataset);
            let message =
                format!("rows of {dataset} that stay have a column {column:?}, which {} does not give: they would lose it", recipe.transform);
            Err(Error::Usage { message, hint: Some("overwrite whole partitions, or use a transform that gives the column".into()) })
        }
        _ => Ok(()),
    }
}

/// What the partitions of a run are settled by: see [`settle`].
pub(super) struct Settling<'s> {
    pub(super) recipe: &'s Recipe,
    /// What was published, by first instant.
    pub(super) prior: BTreeMap<i64, &'s PublishedRow>,
    /// See [`crate::plan::unsettled`].
    pub(super) unsettled: &'s BTreeSet<EventTime>,
}

impl Settling<'_> {
    /// Writes down from which version of the warehouse a partition's rows are, and which transform made them.
    ///
    /// Of a merge or a delete-insert these are the run's only if its rows are what an overwrite would give, or if all records of the
    /// partition were read and no row that stays may be a leftover. Otherwise the partition keeps the older of the two, so that what came since still waits.
    pub(super) fn settle(&self, p: &mut PartitionRecord) {
        let (read, made) = (self.recipe.input_snapshot, self.recipe.transform_digest);
        let settings = self.recipe.settings();
        let (settings, unfiltered) = (settings.digest(), Settings { filter: None, ..settings }.digest());
        let before = self.prior.get(&p.start_us);
        let stays = p.target_only.unwrap_or(0) > 0;
        // Where one record took another's place, a row of the other may be left: its customer was corrected, say.
        let superseded = p.conflicts > 0 || p.moved > 0;
        // So may one of a record that is in quarantine now.
        let leftover = stays && (superseded || !p.quarantined.is_empty() || self.unsettled.contains(&EventTime(p.start_us)));
        let part = Window::new(EventTime(p.start_us), EventTime(p.end_us)).is_ok_and(|w| self.recipe.write.part_of(w) != w);
        let settled = match self.recipe.write {
            Write::Overwrite => true,
            Write::Merge => self.recipe.filter.is_none() && !leftover,
            Write::DeleteInsert { .. } => self.recipe.filter.is_none() && !part && !stays,
        };
        // No row of a part of the records says nothing of a partition that was not there: it is not there.
        if !settled && before.is_none() && p.rows == 0 {
            p.checksum = None;
        }
        // Of a partition that was not there, with a part of its records: nothing is settled.
        let older = before.map_or(SnapshotId(0), |b| b.input_snapshot.min(read));
        p.input_snapshot = Some(if settled { read } else { older });
        p.transform_digest = Some(match before {
            Some(b) if stays && b.transform_digest != made => MIXED,
            _ => made,
        });
        p.settings_digest = Some(match before {
            // A filtered merge that found nothing to change has left the rows of those settings.
            Some(b) if self.recipe.write == Write::Merge && p.checksum == Some(b.checksum) && b.settings_digest == unfiltered => unfiltered,
            Some(b) if stays && b.settings_digest != settings => MIXED,
            _ => settings,
        });
    }
}

/// Where a merge or a delete-insert gave what was there, the files stay; returns the names of these partitions.
pub(super) fn keep_equal(recipe: &Recipe, bases: &[BaseRecord], partitions: &mut [PartitionRecord]) -> BTreeSet<String> {
    if recipe.write == Write::Overwrite {
        return BTreeSet::new();
    }
    let files: HashMap<&str, &Vec<FileRecord>> = bases.iter().map(|b| (b.partition.as_str(), &b.files)).collect();
    let mut kept = BTreeSet::new();
    for p in partitions.iter_mut().filter(|p| p.prior_checksum.is_some() && p.prior_checksum == p.checksum) {
        p.kept = true;
        p.files = files.get(p.partition.as_str()).map(|f| f.to_vec()).unwrap_or_default();
        p.bytes = p.files.iter().map(|f| f.bytes).sum();
        kept.insert(p.partition.clone());
    }
    kept
}

impl Workshop {
    /// Returns the published rows that a run puts its own among: their files, hashed and compared with what is on record.
    pub(super) fn bases(
        &mut self,
        recipe: &Recipe,
        published: Option<&Table>,
        base: SnapshotId,
        partitions: &[PlannedPartition],
        prior: &[PublishedRow],
    ) -> Result<Vec<BaseRecord>, Error> {
        let Some(table) = published.filter(|_| recipe.write != Write::Overwrite) else { return Ok(Vec::new()) };
        let planned: BTreeSet<i64> = partitions.iter().map(|p| p.window.start().0).collect();
        let prior: Vec<&PublishedRow> = prior.iter().filter(|p| planned.contains(&p.window.start().0)).collect();
        let found = self.catalog.read(|v| base_files(&v, table, base, &prior))?;
        let mut bases = Vec::with_capacity(found.len());
        for (p, files) in prior.iter().zip(found) {
            let (mut hashed, mut foreign) = (Vec::new(), false);
            for (mut file, recorded) in files {
                foreign |= recorded.is_none();
                (file.digest, _) = self.store.digest(&file.path)?;
                if let Some(recorded) = recorded.filter(|r| *r != file.digest) {
                    return Err(damaged(file.path, recorded, file.digest));
                }
                hashed.push(file);
            }
            let rows: u64 = hashed.iter().map(|f| f.rows).sum();
            if rows != p.rows as u64 {
                let changes = vec![format!("partition {} has {rows} rows in its files, and {} published {}", p.partition, p.run, p.rows)];
                return Err(Error::Moved { dataset: recipe.dataset.clone(), changes });
            }
            // What another tool packed anew is what was published; what it changed is not.
            if foreign && !self.holds(p, &hashed.iter().map(|f| f.path.as_str()).collect::<Vec<_>>())? {
                return Err(Error::Foreign { dataset: recipe.dataset.clone(), partition: p.partition.clone() });
            }
            bases.push(BaseRecord { partition: p.partition.clone(), run: p.run, rows, checksum: p.checksum, files: hashed });
        }
        Ok(bases)
    }

    /// Checks that the published rows that an old run read are there, and are what they were.
    pub(super) fn check_bases(&mut self, old: &Manifest) -> Result<(), Error> {
        let bases = old.bases.iter().map(|b| (b.run, b.partition.clone(), &b.files));
        let upstream = old.upstream.iter().map(|u| (u.run, format!("{} of {}", u.partition, u.dataset), &u.files));
        for (of, partition, files) in bases.chain(upstream) {
            for file in files {
                let gone = |what: String| Error::BaseGone { run: old.run, of, partition: partition.clone(), what };
                if let Some(removed) = self.catalog.read(|v| v.removed(&file.path))? {
                    return Err(gone(format!("{} was removed on {} by gc ({}, {})", removed.path, removed.at, removed.reason, removed.operator)));
                }
                if !self.store.exists(&file.path) {
                    return Err(gone(format!("{} is not there", file.path)));
                }
                let (found, _) = self.store.digest(&file.path)?;
                if found != file.digest {
                    return Err(damaged(file.path.clone(), file.digest, found));
                }
            }
        }
        Ok(())
    }
}

/// The live files of each partition, with the hash that is on record of each.
type Found = Vec<Vec<(FileRecord, Option<Digest>)>>;

fn base_files(view: &View, table: &Table, base: SnapshotId, prior: &[&PublishedRow]) -> Result<Found, CatalogError> {
    let file = |f: crate::catalog::LiveFile| {
        let digest = view.file_digest(&f.path)?;
        Ok((FileRecord { path: f.path, rows: f.rows as u64, bytes: f.bytes as u64, digest: Digest([0; 32]) }, digest))
    };
    prior.iter().map(|p| view.partition_files(table, base, &p.partition)?.into_iter().map(file).collect()).collect()
}

/// The error of published rows that are not what they were.
fn damaged(path: String, recorded: Digest, found: Digest) -> Error {
    Error::Input { bad: Box::new(BadFile { path, fault: Fault::Bytes(recorded, found) }) }
}
