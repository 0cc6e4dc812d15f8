//! Landed records that show what is masked now: they landed before the mask was declared, and were not read again with it since.
//! Never reads a record: how a source was declared stands with its ingests and its reparses.
//! `status`, `doctor`, plans and runs tell it; a reparse mends it.

use crate::{
    catalog::{CatalogError, LandedRecords, RawFile, RunRow, Table, View},
    config::{Format, Source},
    id::SnapshotId,
    manifest::{Kind, Mode, Status},
    time::{END_US, EventTime, parse},
    window::{Calendar, Grain, Window},
};
use std::{collections::HashMap, fmt};

/// Landed records whose columns show what is masked now.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct InClear {
    /// The source.
    pub source: String,
    /// The columns.
    pub columns: Vec<String>,
    /// Landed files with such records.
    pub files: u64,
    /// Records of these files.
    pub records: i64,
    /// The first day of such records, and the last, of the source's zone.
    pub days: (String, String),
    /// Whether a reparse reads them again: Parquet keeps no payloads.
    pub readable: bool,
}

impl fmt::Display for InClear {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let InClear { source, files, days: (first, last), .. } = self;
        let columns = self.columns.join(", ");
        let files = if *files == 1 { "1 landed file" } else { &format!("{files} landed files") };
        write!(f, "source {source} masks {columns}, and records of {files} still show it, as does what is computed from them: ")?;
        match self.readable {
            true => write!(f, "`restitch ingest {source} --reparse --start {first} --end {last}` masks them"),
            false => write!(f, "Parquet keeps no payloads to read again, so land the files under a source of another name"),
        }
    }
}

/// Stretches of time, each with its first instant and the first after it.
type Spans = Vec<(i64, i64)>;

/// A reparse that came to its end, as far as it matters here.
struct Reparsed {
    base: i64,
    span: (i64, i64),
    masked: Vec<String>,
    clear: Vec<String>,
}

/// Returns what of the landed records of `source` shows what is masked now; `None` if nothing does. What landed before this was on record is not told.
///
/// # Errors
/// The catalog cannot be read.
pub fn in_clear(view: &View, source: &Source) -> Result<Option<InClear>, CatalogError> {
    let (masked, _) = source.masked_and_clear();
    let Some(landed) = view.landed_as(&source.name)?.filter(|l| l.clear.iter().any(|c| c.columns.iter().any(|name| masked.contains(name)))) else {
        return Ok(None);
    };
    let reparses: Vec<Reparsed> = view.runs(Some(&source.table()), i64::MAX)?.iter().rev().filter_map(reparsed).collect();
    let (latest, days) = (view.latest()?, Calendar { grain: Grain::Day, zone: source.time_zone });
    let Some(table) = view.table(&source.table(), latest)? else { return Ok(None) };
    let left = Left::of(view, &table, latest);
    let (mut columns, mut files, mut records, mut hull): (Vec<String>, u64, i64, Option<(i64, i64)>) = (Vec::new(), 0, 0, None);
    for file in view.landed_records(&source.name)? {
        let spans = |name: &String| showing(&file, name, landed.clear_at(file.snapshot).contains(name), &reparses);
        let shown: Vec<(&String, Spans)> = masked.iter().map(|name| (name, spans(name))).filter(|(_, spans)| !spans.is_empty()).collect();
        if shown.is_empty() || !left.holds(&file) {
            continue;
        }
        (files, records) = (files + 1, records + file.records);
        for (name, spans) in shown {
            if !columns.contains(name) {
                columns.push(name.clone());
            }
            for (start, end) in spans {
                let (first, last) = hull.unwrap_or((start, end));
                hull = Some((first.min(start), last.max(end)));
            }
        }
    }
    let day = |at: i64| days.name(&days.at(EventTime(at)));
    Ok(hull.map(|(first, end)| {
        let readable = source.format != Format::Parquet;
        InClear { source: source.name.clone(), columns, files, records, days: (day(first), day(end - 1)), readable }
    }))
}

/// The raw files that are live. Retention may have removed what a landed file brought.
struct Left {
    /// Of one ingest each, by that.
    own: HashMap<SnapshotId, Vec<RawFile>>,
    /// Of several ingests: read again, or merged by another tool.
    mixed: Vec<RawFile>,
    /// Where another tool changed rows nobody can say what is left.
    unknown: bool,
}

impl Left {
    fn of(view: &View, table: &Table, latest: SnapshotId) -> Left {
        let (mut own, mut mixed): (HashMap<SnapshotId, Vec<RawFile>>, Vec<RawFile>) = Default::default();
        let live = view.raw_files(table, latest);
        let unknown = live.is_err();
        for file in live.unwrap_or_default().into_iter().filter(|f| f.end.is_none()) {
            if file.ingests.0 == file.ingests.1 { own.entry(file.ingests.0).or_default().push(file) } else { mixed.push(file) }
        }
        Left { own, mixed, unknown }
    }

    /// Returns whether records of a landed file may be left.
    fn holds(&self, landed: &LandedRecords) -> bool {
        let (first, last) = landed.events;
        let may =
            |f: &RawFile| f.ingests.0 <= landed.snapshot && landed.snapshot <= f.ingests.1 && f.events.is_none_or(|(a, b)| a <= last && first <= b);
        self.unknown || self.own.get(&landed.snapshot).is_some_and(|own| own.iter().any(may)) || self.mixed.iter().any(may)
    }
}

/// Returns the event times of which records of a landed file show a column: it landed without a mask or not, and reparses read it again with one or
/// without.
fn showing(file: &LandedRecords, column: &String, clear: bool, reparses: &[Reparsed]) -> Spans {
    let own = (file.events.0.0, file.events.1.0 + 1);
    let mut spans = if clear { vec![own] } else { Vec::new() };
    for r in reparses.iter().filter(|r| r.base >= file.snapshot.0) {
        if r.masked.contains(column) {
            spans = without(&spans, r.span);
        } else if r.clear.contains(column) {
            let again = (own.0.max(r.span.0), own.1.min(r.span.1));
            spans.extend((again.0 < again.1).then_some(again));
        }
    }
    spans
}

fn without(spans: &[(i64, i64)], (from, to): (i64, i64)) -> Spans {
    let rest = spans.iter().flat_map(|(start, end)| [(*start, *end.min(&from)), (*start.max(&to), *end)]);
    rest.filter(|(start, end)| start < end).collect()
}

/// Returns what a run of a raw table read again, if it is a reparse that changed what had to be changed.
fn reparsed(row: &RunRow) -> Option<Reparsed> {
    let m = &row.manifest;
    let record =
        m.reparse.as_ref().filter(|_| m.kind == Kind::Reparse && m.mode != Mode::DryRun && matches!(m.status, Status::Published | Status::Done))?;
    let [start, end] = m.window.as_ref()?;
    // The end of all time is no time.
    let instant = |text: &str| parse(text, chrono_tz::Tz::UTC).map_or(EventTime(END_US), |at| at);
    let span = Window::new(instant(start), instant(end)).ok()?;
    let (masked, clear) = (record.masked.clone(), record.clear.clone());
    Some(Reparsed { base: m.base_snapshot.0, span: (span.start().0, span.end().0), masked, clear })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_shows_what_it_was_last_read_with() {
        let file = LandedRecords { snapshot: SnapshotId(3), records: 9, events: (EventTime(10), EventTime(29)) };
        let reparse = |base: i64, span: (i64, i64), mask: Option<bool>| {
            let named = |of: bool| if mask == Some(of) { vec!["card".to_owned()] } else { Vec::new() };
            Reparsed { base, span, masked: named(true), clear: named(false) }
        };
        let check = |clear: bool, reparses: &[Reparsed], want: &[(i64, i64)]| assert_eq!(showing(&file, &"card".into(), clear, reparses), want);
        check(false, &[], &[]);
        check(true, &[], &[(10, 30)]);
        check(true, &[reparse(3, (0, 40), Some(true))], &[]);
        check(true, &[reparse(2, (0, 40), Some(true))], &[(10, 30)]);
        check(true, &[reparse(5, (0, 40), None)], &[(10, 30)]);
        check(true, &[reparse(3, (15, 20), Some(true))], &[(10, 15), (20, 30)]);
        check(true, &[reparse(3, (0, 20), Some(true)), reparse(4, (20, 30), Some(true))], &[]);
        check(false, &[reparse(3, (20, 40), Some(false))], &[(20, 30)]);
        check(true, &[reparse(3, (0, 40), Some(true)), reparse(4, (0, 12), Some(false)), reparse(5, (11, 40), Some(true))], &[(10, 11)]);
    }
}
