//! Datasets that are made of datasets: what is known of those before, and their published rows as an input.
//! Never reads rows that are not pinned: a run reads the partitions, and checks the files, that its manifest names.
//! `facts` asks it when it plans, `run` before it computes, `prove` and `diff` for what was computed before.

use super::{
    Error, Extent, Workshop,
    run::{Giver, complete_key, complete_parameters, fit_input},
};
use crate::{
    catalog::{LiveFile, PartitionVersions},
    config::{Dataset, Project},
    id::{Digest, SnapshotId},
    manifest::{Recipe, Settings, UpstreamInput, UpstreamRecord, WriteMode},
    plan::{Facts, Unready, records_by_partition, unready},
    raw::{Part, Published, RawInput},
    schema::{DataType, Field},
    time::{EventTime, format_us},
    transform::Descriptor,
    watermark::{InputState, Stand},
    window::Window,
};
use std::collections::{BTreeMap, HashSet};

/// Returns how the datasets that are the input of `dataset` say which partition a row belongs to.
pub(super) fn inputs(project: &Project, dataset: &Dataset) -> Vec<UpstreamInput> {
    let input = |name: &String| {
        let whole = |u: &&Dataset| u.calendar().nests_in(&dataset.calendar());
        let time_column = project.datasets.get(name).filter(|u| !whole(u)).and_then(|u| u.time_column.clone());
        UpstreamInput { dataset: name.clone(), time_column }
    };
    dataset.upstream.iter().map(input).collect()
}

/// Returns the settings that `dataset` declares, as a recipe with this transform would have them; `None` if they do not fit it.
pub(super) fn settings(project: &Project, dataset: &Dataset, d: &Descriptor, follows: bool) -> Option<Settings> {
    let mut recipe = Recipe::of(dataset, Digest([0; 32]), SnapshotId(0), 0, 0);
    (recipe.follows, recipe.upstream) = (follows, inputs(project, dataset));
    complete_key(&mut recipe, d);
    complete_parameters(&mut recipe, d).ok()?;
    Some(recipe.settings())
}

/// Returns how many records, or rows of datasets, each partition of a run is going to read, by its first instant: about.
pub(super) fn expected(recipe: &Recipe, upstream: &[UpstreamRecord], slots: &[crate::catalog::Slot]) -> BTreeMap<EventTime, i64> {
    let mut rows = records_by_partition(recipe.calendar(), slots);
    for u in upstream {
        let Ok(window) = Window::new(EventTime(u.start_us), EventTime(u.end_us)) else { continue };
        for partition in recipe.calendar().partitions(window) {
            *rows.entry(partition.start()).or_default() += u.rows as i64;
        }
    }
    rows
}

/// Checks that the columns of the datasets before it are what a transform asks for.
pub(super) fn fit(fields: &[(String, Vec<Field>)], recipe: &Recipe, d: &Descriptor) -> Result<(), (String, Option<String>)> {
    for (dataset, columns) in fields {
        fit_input(Giver::Dataset(dataset), columns, &d.inputs[0].name, &d.inputs[0].fields)?;
        let time = recipe.upstream.iter().find(|u| u.dataset == *dataset).and_then(|u| u.time_column.as_ref());
        if let Some(time) = time.filter(|t| !columns.iter().any(|c| c.name == **t && c.data_type == DataType::Timestamp)) {
            return Err((format!("the time_column {time:?} of dataset {dataset} is no timestamp in its table"), None));
        }
    }
    Ok(())
}

impl Workshop {
    /// Completes what is known of a dataset that is made of datasets: how they stand, what they published, what of them is not as it should be.
    pub(super) fn facts_upstream(&mut self, dataset: &Dataset, facts: &mut Facts) -> Result<(), Error> {
        facts.downstream = !dataset.upstream.is_empty();
        for name in dataset.upstream.clone() {
            // What is declared of it now: an old plan may name one that is not there any more.
            if let Some(upstream) = self.project.datasets.get(&name).cloned() {
                let registered = self.transform_row(&upstream.transform).map(|t| t.digest).ok();
                let (before, _) = self.facts_of(&upstream, registered.unwrap_or(Digest([0; 32])), None, Extent::Behind)?;
                facts.inputs.push(InputState { source: name.clone(), stands: before.stand, idle: false });
                // A transform that is not registered makes nothing stale yet.
                let own = unready(&before).into_iter().filter(|(_, what)| registered.is_some() || *what != "stale");
                let own: Vec<Unready> =
                    own.map(|(window, what)| Unready { dataset: name.clone(), partition: before.calendar.name(&window), window, what }).collect();
                for u in own.into_iter().chain(before.unready) {
                    if !facts.unready.contains(&u) {
                        facts.unready.push(u);
                    }
                }
            }
            let versions = self.catalog.read(|v| v.partition_versions(&name))?;
            facts.files.extend(versions.iter().filter_map(|u| planned_file(u, facts.input_snapshot)));
            facts.upstream.extend(versions);
        }
        if facts.downstream {
            facts.stand = Stand::of_all(&facts.inputs, None);
        }
        Ok(())
    }

    /// Returns the columns of the datasets that a recipe reads, as they are published at its snapshot; those that have published nothing are not in it.
    pub(super) fn upstream_fields(&mut self, recipe: &Recipe) -> Result<Vec<(String, Vec<Field>)>, Error> {
        self.catalog.read(|v| {
            let mut fields = Vec::new();
            for u in &recipe.upstream {
                if let Some(table) = v.table(&u.dataset, recipe.input_snapshot)? {
                    fields.push((u.dataset.clone(), table.fields()));
                }
            }
            Ok(fields)
        })
    }

    /// Returns the published partitions that a recipe reads for a window, pinned with their files.
    pub(super) fn pin_upstream(&mut self, recipe: &Recipe, hull: Window) -> Result<Vec<UpstreamRecord>, Error> {
        self.catalog.read(|v| {
            let mut pinned = Vec::new();
            for input in &recipe.upstream {
                let Some(table) = v.table(&input.dataset, recipe.input_snapshot)? else { continue };
                for u in v.partition_versions(&input.dataset)? {
                    let Some(version) = u.at(recipe.input_snapshot).filter(|_| u.window.overlaps(hull)) else {
                        continue;
                    };
                    let Some(checksum) = version.checksum else { continue };
                    let files = v.run_files(version.run, &u.partition)?;
                    let live = v.partition_files(&table, recipe.input_snapshot, &u.partition)?;
                    if !live.iter().all(|l| files.iter().any(|f| f.path == l.path)) || live.len() != files.len() {
                        return Err(Error::Foreign { dataset: input.dataset.clone(), partition: u.partition });
                    }
                    pinned.push(UpstreamRecord {
                        dataset: input.dataset.clone(),
                        start_us: u.window.start().0,
                        end_us: u.window.end().0,
                        run: version.run,
                        snapshot: version.snapshot,
                        rows: version.rows as u64,
                        checksum,
                        files,
                        partition: u.partition,
                    });
                }
            }
            Ok(pinned)
        })
    }

    /// Returns pinned partitions as inputs, one for each dataset that has published something.
    pub(super) fn upstream_inputs(&mut self, recipe: &Recipe, pinned: &[UpstreamRecord]) -> Result<Vec<RawInput>, Error> {
        let snapshot = recipe.input_snapshot;
        let mut raw = Vec::new();
        for (place, input) in recipe.upstream.iter().enumerate() {
            let Some(table) = self.catalog.read(|v| v.table(&input.dataset, snapshot))? else { continue };
            let (mut files, mut parts) = (Vec::new(), Vec::new());
            for u in pinned.iter().filter(|u| u.dataset == input.dataset) {
                let window = Window::new(EventTime(u.start_us), EventTime(u.end_us))?;
                let mut first_row = 0;
                for f in &u.files {
                    files.push(file(window, u.partition.clone(), u.snapshot, (f.path.clone(), f.rows as i64, f.bytes as i64)));
                    parts.push(Part { window, checksum: u.checksum, first_row });
                    first_row += f.rows as i64;
                }
            }
            let published = Some(Published { place, time_column: input.time_column.clone(), parts });
            raw.push(RawInput { table, files, snapshot, published });
        }
        match recipe.upstream.first() {
            Some(first) if raw.is_empty() => Err(Error::NoUpstream { dataset: first.dataset.clone() }),
            _ => Ok(raw),
        }
    }

    /// A delete-insert reads the part of its input that lies in the window: of partitions that are taken whole it takes none in part.
    pub(super) fn refuse_cut_input(&self, dataset: &Dataset, write: WriteMode, window: Option<Window>) -> Result<(), Error> {
        let Some(window) = window.filter(|_| write == WriteMode::DeleteInsert) else { return Ok(()) };
        for input in inputs(&self.project, dataset).into_iter().filter(|u| u.time_column.is_none()) {
            let Some(upstream) = self.project.datasets.get(&input.dataset) else { continue };
            if let Err(e) = upstream.calendar().check_aligned(window) {
                let message = format!("{} takes partitions of {} whole: {e}", dataset.name, upstream.name);
                let (first, last) = match e {
                    crate::window::WindowError::Unaligned { whole, .. } => whole,
                    _ => window.bounds_text(),
                };
                return Err(Error::Usage { message, hint: Some(format!("--start {first} --end {last}")) });
            }
        }
        Ok(())
    }
}

/// Returns the pinned partitions that lie, in part at least, in one of these windows.
pub(super) fn of_windows(pinned: &[UpstreamRecord], windows: &[Window]) -> Vec<UpstreamRecord> {
    pinned.iter().filter(|u| windows.iter().any(|w| u.overlaps(w.start().0, w.end().0))).cloned().collect()
}

/// Returns the datasets that pinned partitions are of, each with how many they are and the runs that had published them.
pub(crate) fn summary(pinned: &[UpstreamRecord]) -> Vec<(String, usize, Vec<crate::id::RunId>)> {
    let mut all: Vec<(String, usize, Vec<crate::id::RunId>)> = Vec::new();
    for u in pinned {
        let at = all.iter().position(|(dataset, ..)| *dataset == u.dataset).unwrap_or_else(|| {
            all.push((u.dataset.clone(), 0, Vec::new()));
            all.len() - 1
        });
        all[at].1 += 1;
        all[at].2.push(u.run);
    }
    for (_, _, runs) in &mut all {
        runs.sort();
        let mut seen = HashSet::new();
        runs.retain(|r| seen.insert(*r));
    }
    all
}

/// A partition as a plan counts it: its version at the snapshot, as if it were one file.
fn planned_file(u: &PartitionVersions, at: SnapshotId) -> Option<LiveFile> {
    let version = u.at(at).filter(|v| v.checksum.is_some())?;
    Some(file(u.window, u.partition.clone(), version.snapshot, (String::new(), version.rows, version.bytes)))
}

fn file(window: Window, partition: String, begin: SnapshotId, (path, rows, bytes): (String, i64, i64)) -> LiveFile {
    let bounds = Some((format_us(window.start().0), format_us(window.end().0 - 1)));
    LiveFile { id: -1, path, rows, bytes, begin, partial_max: None, row_id_start: None, partition: Some(partition), bounds }
}
