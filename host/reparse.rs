//! Landed records are read again from their kept payloads, as the source is declared now: the way in for a column declared later.
//! Never changes an envelope, a record outside its window, or a file that is there: a file with a changed record is written anew.
//! A run with a manifest, after `ingest`; older snapshots keep the old files, so pinned runs and replays read what they read.

mod clear;
mod rewrite;

pub use clear::{InClear, in_clear};

use crate::{
    catalog::{Catalog, CatalogError, Commit, Headers, LiveFile, SLOT_US, StateWrite, Table},
    config::{Format, Mask, OnBad, Source, SourceColumn},
    datafile::{DataFileError, Written},
    decode::DecodeError,
    id::SnapshotId,
    ingest::{IngestError, Progress, move_into_place, raw_fields, same_ids, table_of, widened},
    manifest::{FileRecord, Manifest, Mode, ReparseRecord, Status},
    raw::RawInput,
    recover,
    schema::{Field, envelope},
    store::{Store, StoreError, staging},
    time::{EventTime, IngestTime},
    window::Window,
};
use rewrite::Rewriter;
use std::collections::BTreeSet;

/// Why nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum ReparseError {
    /// A raw file cannot be read or written.
    #[error(transparent)]
    File(#[from] DataFileError),
    /// The warehouse's folder refuses.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The catalog refuses.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// A header or a default cannot be used.
    #[error(transparent)]
    Decode(#[from] DecodeError),
    /// The raw table does not fit the source as declared.
    #[error(transparent)]
    Table(#[from] IngestError),
    /// Columns do not fit together.
    #[error(transparent)]
    Arrow(#[from] arrow::error::ArrowError),
    /// The source keeps no payloads.
    #[error("source {source_name:?} is Parquet, whose payloads are not kept: its columns cannot be read again")]
    NotKept {
        /// The source.
        source_name: String,
    },
    /// A record of the window has no payload.
    #[error("{file}:{offset}: the payload of this record is not kept, so it cannot be read again")]
    NoPayload {
        /// The landed file.
        file: String,
        /// Line in it.
        offset: i64,
    },
    /// The header of a landed CSV file was not kept.
    #[error("{file}, landed in snapshot {snapshot}: its header line is not kept, so its records cannot be read again")]
    NoHeader {
        /// The landed file.
        file: String,
        /// The ingest that landed it.
        snapshot: SnapshotId,
    },
    /// Records that would be rejected or moved as the source is declared now.
    #[error("{rows} landed record(s) of {source_name} cannot be read as restitch.toml declares them now")]
    Refused {
        /// The source.
        source_name: String,
        /// How many.
        rows: u64,
        /// The first few, with file, line, column and reason.
        first: Vec<String>,
    },
    /// Files that were read are not live any more.
    #[error("raw files of {source_name:?} changed meanwhile: {what}")]
    Conflict {
        /// The source.
        source_name: String,
        /// What changed.
        what: String,
    },
}

/// What a reparse reads: looked up at one snapshot.
pub struct Look {
    /// The raw table as it will be, with the columns that are added.
    pub table: Table,
    /// Its fields as they are declared.
    fields: Vec<Field>,
    /// Live files that may hold event times of the window.
    pub files: Vec<LiveFile>,
    /// The snapshot.
    pub snapshot: SnapshotId,
    /// The window.
    pub window: Window,
    /// Header and delimiter of landed CSV files.
    headers: Headers,
}

/// Returns what a reparse of `window` would read; `None` if the source never landed anything.
///
/// # Errors
/// The source keeps no payloads, a column is declared with another type than the table has, or ids are made otherwise.
pub fn look(catalog: &mut Catalog, source: &Source, window: Window) -> Result<Option<Look>, ReparseError> {
    if source.format == Format::Parquet {
        return Err(ReparseError::NotKept { source_name: source.name.clone() });
    }
    catalog.read(|v| {
        let snapshot = v.latest()?;
        if v.table(&source.table(), snapshot)?.is_none() {
            return Ok(None);
        }
        same_ids(&v, source)?;
        let mut fields = raw_fields(source);
        fields.push(envelope::landed());
        let table = table_of(&v, snapshot, &source.table(), &fields)?;
        let mut files = v.files(&table, snapshot, table.column_id(envelope::EVENT_TIME))?;
        files.retain(|f| RawInput::may_hold(f, &[window]));
        let headers = if source.format == Format::Csv { v.headers(&source.name)? } else { Headers::new() };
        Ok(Some(Look { table, fields, files, snapshot, window, headers }))
    })
}

/// Reads the records of the window again, and swaps the files that changed in; completes the manifest.
///
/// The caller holds the lock of the source and the claim of the run.
///
/// # Errors
/// [`ReparseError`]; readers see what they saw before.
/// # After a crash
/// Before the commit, moved files are orphans that `recover` removes; after it, all of it is visible.
pub fn reparse(
    store: &Store,
    catalog: &mut Catalog,
    source: &Source,
    look: &Look,
    manifest: &mut Manifest,
    now: IngestTime,
    progress: &dyn Progress,
) -> Result<(), ReparseError> {
    let owner = manifest.run.to_string();
    let mut rewriter = Rewriter::new(store, source, look, staging(&owner), manifest.mode != Mode::DryRun)?;
    let total = look.files.iter().map(|f| f.bytes as u64).sum();
    let mut done = 0;
    for file in &look.files {
        rewriter.file(file)?;
        done += file.bytes as u64;
        progress.bytes(done, total);
    }
    let found = rewriter.finish()?;
    let (masked, clear) = source.masked_and_clear();
    manifest.reparse = Some(ReparseRecord { declared: source.columns.iter().map(declared).collect(), masked, clear, ..found.record });
    if found.written.is_empty() {
        store.remove_dir(&staging(&owner))?;
        manifest.status = Status::Done;
        return Ok(());
    }
    let names: Vec<String> = (0..found.written.len()).map(|i| format!("{owner}-{i}.parquet")).collect();
    let targets: Vec<String> = names.iter().map(|name| format!("{}{name}", look.table.folder)).collect();
    let pairs: Vec<(&str, &str)> = found.written.iter().zip(&targets).map(|((_, w), to)| (w.path.as_str(), to.as_str())).collect();
    move_into_place::<ReparseError>(store, catalog, &owner, &pairs)?;
    let record = manifest.reparse.get_or_insert_default();
    for ((old, w), path) in found.written.iter().zip(targets) {
        record.replaced.push(old.path.clone());
        record.files.push(FileRecord { path, rows: w.file.rows as u64, bytes: w.file.bytes as u64, digest: w.digest });
    }
    swap(store, catalog, source, look, manifest, &Swap { written: &found.written, names: &names, windows: windows(&found.slots, look.window) }, now)
}

/// What is swapped in: files that stand at their final names, and where records changed.
struct Swap<'s> {
    written: &'s [(LiveFile, Written)],
    names: &'s [String],
    windows: Vec<Window>,
}

/// The swap: old files end, new ones begin, with the manifest and the windows that changed, in one transaction.
fn swap(
    store: &Store,
    catalog: &mut Catalog,
    source: &Source,
    look: &Look,
    manifest: &mut Manifest,
    swap: &Swap,
    now: IngestTime,
) -> Result<(), ReparseError> {
    let owner = manifest.run.to_string();
    let message = format!("reparse {owner} of {}", source.name);
    let mut published = manifest.clone();
    let committed = catalog.commit(now, &manifest.operator, &message, |commit| exchange(commit, source, look, &mut published, swap, now));
    match committed {
        Ok(_) => *manifest = published,
        Err(e) => {
            // An error of the commit leaves its outcome open: look, then clean up.
            let stands = catalog.read(|v| v.run(manifest.run)).ok().flatten().filter(|r| r.manifest.status == Status::Published);
            let Some(row) = stands else {
                recover::withdraw(store, catalog, &owner).ok();
                return Err(e);
            };
            *manifest = row.manifest;
        }
    }
    store.remove_dir(&staging(&owner)).ok();
    Ok(())
}

fn exchange(commit: &mut Commit, source: &Source, look: &Look, manifest: &mut Manifest, swap: &Swap, now: IngestTime) -> Result<(), ReparseError> {
    let conflict = |what: &str| ReparseError::Conflict { source_name: source.name.clone(), what: what.into() };
    let table = widened(commit, &source.table(), &look.fields, &look.table)?;
    // Also refuses rows that another tool deleted or inlined since.
    let live: BTreeSet<i64> = commit.view().files(&table, commit.base(), None)?.into_iter().map(|f| f.id).collect();
    let ids: Vec<i64> = swap.written.iter().map(|(old, _)| old.id).collect();
    if let Some((gone, _)) = swap.written.iter().find(|(old, _)| !live.contains(&old.id)) {
        return Err(conflict(&format!("{} is not live any more", gone.path)));
    }
    commit.end_files(&table, &ids)?;
    let files: Vec<_> = swap.written.iter().zip(swap.names).map(|((_, w), name)| (name.as_str(), &w.file)).collect();
    commit.add_files(&table, &files)?;
    commit.put_reparsed(&source.name, &swap.windows, manifest.run)?;
    let operator = manifest.operator.clone();
    manifest.publish(commit.snapshot(), &operator, now);
    commit.put_run(manifest, Some(now))?;
    commit.clear_intents(&manifest.run.to_string())?;
    Ok(())
}

/// Returns the windows of changed slots, neighbours joined, inside `within`.
fn windows(slots: &BTreeSet<i64>, within: Window) -> Vec<Window> {
    let mut joined: Vec<(i64, i64)> = Vec::new();
    for slot in slots {
        match joined.last_mut() {
            Some((_, end)) if *end == *slot => *end += SLOT_US,
            _ => joined.push((*slot, *slot + SLOT_US)),
        }
    }
    let clip = |(start, end): (i64, i64)| Window::new(EventTime(start.max(within.start().0)), EventTime(end.min(within.end().0))).ok();
    joined.into_iter().filter_map(clip).collect()
}

/// Returns a column as it is declared, for the manifest.
fn declared(c: &SourceColumn) -> String {
    let mut text = format!("{} {}{}", c.name, c.data_type, if c.nullable { "" } else { " not null" });
    if !c.aliases.is_empty() {
        text += &format!(", aliases {}", c.aliases.join(" "));
    }
    if let Some(from) = &c.from {
        text += &format!(", from {from}");
    }
    if let Some(default) = &c.default {
        let shown = if c.mask.is_some() { "(masked)".into() } else { format!("{default:?}") };
        text += &format!(", default {shown}");
    }
    text += match c.mask {
        Some(Mask::Sha256) => ", mask sha256",
        Some(Mask::Redact) => ", mask redact",
        Some(Mask::Drop) => ", mask drop",
        None => "",
    };
    text += match c.on_bad {
        OnBad::Reject => "",
        OnBad::Null => ", on_bad null",
        OnBad::Default => ", on_bad default",
    };
    text + &c.unit.map_or(String::new(), |u| format!(", unit {u:?}").to_lowercase())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changed_slots_become_windows_inside_the_asked_one() {
        let window = |a: i64, b: i64| Window::new(EventTime(a * SLOT_US / 3), EventTime(b * SLOT_US / 3)).unwrap();
        let slots: BTreeSet<i64> = [0, 1, 2, 5].into_iter().map(|s| s * SLOT_US).collect();
        assert_eq!(windows(&slots, window(1, 17)), [window(1, 9), window(15, 17)]);
        assert_eq!(windows(&BTreeSet::new(), window(1, 17)), []);
    }
}
