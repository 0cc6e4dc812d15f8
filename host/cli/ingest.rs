//! `ingest` and `watermark`: landing files, and what a source says of its own completeness.
//! Never classifies anything itself.

use super::{
    Context,
    output::{Answer, Table, clean, count, event_json, facts, ingest_json, or_dash, short},
    progress::{Meter, Unit},
    report::Failure,
};
use crate::{
    catalog::{QueueKind, QueueRow, WatermarkRow},
    config::{Format, MaxRejects},
    decode::Unknown,
    ingest::{Ingested, IngestedFile},
    pipeline::{Error, ReparseRequest},
    time::{format_span, parse as parse_time},
};
use serde_json::{Value, json};
use std::path::PathBuf;

/// What was typed for `ingest`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The source that the files belong to
    source: String,
    /// The files, in the order in which they arrived
    #[arg(required_unless_present = "reparse", value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Rejects allowed in this ingest: a number of records, or a percentage like 0.1%
    #[arg(long, value_name = "BOUND", value_parser = rejects)]
    max_rejects: Option<MaxRejects>,
    /// Land nothing: read landed records again from their kept payloads, as restitch.toml declares their columns now
    #[arg(long, conflicts_with = "max_rejects")]
    reparse: bool,
    /// Reparse from here: a day of the source's zone, or an instant; a day without --end is the whole window
    #[arg(long, value_name = "TIME", requires = "reparse")]
    start: Option<String>,
    /// Reparse up to here: a day (inclusive), or an instant (exclusive); a day without --start is the whole window
    #[arg(long, value_name = "TIME", requires = "reparse")]
    end: Option<String>,
    /// Only read and count what a reparse would change
    #[arg(long, requires = "reparse")]
    dry_run: bool,
    /// Why, for the manifest of a reparse
    #[arg(long, value_name = "TEXT", requires = "reparse")]
    reason: Option<String>,
}

/// What was typed for `watermark`.
#[derive(clap::Args, Debug)]
pub struct WatermarkArgs {
    /// The source
    source: String,
    /// Say that the source is complete up to this time; without an offset it is in the source's time zone
    #[arg(long, value_name = "TIME")]
    advance: Option<String>,
}

fn rejects(text: &str) -> Result<MaxRejects, String> {
    MaxRejects::parse(text).ok_or_else(|| format!("{text:?} is neither a number nor a percentage (like 0.1%)"))
}

/// Carries out `ingest`.
pub(super) fn run(args: Args, cx: &Context) -> Result<Answer, Failure> {
    if args.reparse {
        let Args { source, files, start, end, dry_run, reason, .. } = args;
        if !files.is_empty() {
            return Err(Failure::usage("--reparse reads what is landed and takes no files", Some("land new files with `ingest` alone")));
        }
        return super::reparse::run(&ReparseRequest { source, start, end, dry_run, reason }, cx);
    }
    let meter = Meter::new(format!("ingest {}", args.source), Unit::Bytes, 0);
    let done = cx.open()?.ingest(&args.source, &args.files, args.max_rejects, &meter)?;
    drop(meter);
    Ok(Answer::lasting(text(&done), object(&done)))
}

fn text(done: &Ingested) -> String {
    let mut files = Table::new(&["file", ">records", ">rejects", ">on time", ">late", ">need approval", ">future", "note"]);
    for f in &done.files {
        let number = |n: u64| if f.already.is_some() { String::new() } else { n.to_string() };
        let some = |n: u64| if n == 0 { String::new() } else { n.to_string() };
        files.row([
            f.path.display().to_string(),
            number(f.records),
            some(f.rejects),
            number(f.counts.on_time),
            some(f.counts.repair + f.counts.approval),
            some(f.counts.approval),
            some(f.counts.future),
            note(f, done.format),
        ]);
    }
    let mut text = files.text();
    for f in done.files.iter().filter(|f| !f.first_rejects.is_empty()) {
        for r in &f.first_rejects {
            text += &format!("  rejected {}:{}: {}\n", f.path.display(), r.offset, clean(&r.reason));
        }
        if f.rejects > f.first_rejects.len() as u64 {
            text += &format!("  … and {} more in the table raw_{}_rejects\n", f.rejects - f.first_rejects.len() as u64, done.source);
        }
    }
    text += &unknown(done);
    let Some(snapshot) = done.snapshot else { return text + "\nNothing new: all of it was landed before.\n" };
    let mark = |w: Option<crate::watermark::Watermark>| w.map_or("none".into(), |w| w.0.to_string());
    let (before, after) = done.watermark;
    let moved = if before == after { format!("stays at {}", mark(after)) } else { format!("{} → {}", mark(before), mark(after)) };
    text += &format!("\nLanded as snapshot {snapshot}. Watermark of {}: {moved}.\n", done.source);
    if let Some(note) = &done.note {
        text += &format!("Note: {note}. The next plan does it.\n");
    }
    if !done.queued.is_empty() {
        text += &format!("\nLate records wait for these partitions:\n{}", queue(&done.queued).text());
    }
    text
}

fn note(f: &IngestedFile, format: Format) -> String {
    match (&f.already, f.cut_at) {
        (Some(path), _) => format!("already landed as {path}"),
        (None, Some(byte)) => format!("looks cut: its last record starts at byte {byte} and does not end"),
        (None, None) if f.records + f.rejects == 0 => "holds no record".into(),
        // A JSON record that is whole says so itself.
        (None, None) if f.open_ended && format == Format::Csv => "no line end after the last record: its last field may be cut".into(),
        (None, None) => String::new(),
    }
}

/// Returns what was left aside, over all files.
fn unknown(done: &Ingested) -> String {
    let mut all = Unknown::default();
    done.files.iter().for_each(|f| all.merge(&f.unknown));
    if all.fields.is_empty() {
        return String::new();
    }
    let names: Vec<String> = all.fields.iter().map(|(name, n)| format!("{} ({})", clean(name), count(*n as i64, "record"))).collect();
    let kept = if done.keeps_payload { "They are kept in _payload only." } else { "They are not kept." };
    format!("\nFields that no column asks for: {}{}. {kept}\n", names.join(", "), if all.more { ", and more" } else { "" })
}

/// Returns late records as a table.
pub(super) fn queue(rows: &[QueueRow]) -> Table {
    let mut table = Table::new(&["dataset", "partition", "tier", ">records", "late by", "file"]);
    for q in rows {
        let (least, most) = (format_span(q.least_late_us), format_span(q.most_late_us));
        let by = match q.kind {
            QueueKind::Moved => "moved to another partition".into(),
            QueueKind::Late if least == most => least,
            QueueKind::Late => format!("{least} to {most}"),
        };
        table.row([q.dataset.clone(), q.partition.clone(), q.tier.clone(), q.records.to_string(), by, q.file.clone()]);
    }
    table
}

/// Returns late records as JSON.
pub(super) fn queue_json(rows: &[QueueRow]) -> Value {
    let row = |q: &QueueRow| {
        json!({ "dataset": q.dataset, "partition": q.partition, "kind": q.kind.name(), "tier": q.tier, "records": q.records, "file": q.file,
            "least_late_us": q.least_late_us, "most_late_us": q.most_late_us })
    };
    rows.iter().map(row).collect()
}

fn object(done: &Ingested) -> Value {
    let fields = |u: &Unknown| u.fields.iter().map(|(name, n)| (name.clone(), json!(n))).collect::<serde_json::Map<_, _>>();
    let file = |f: &IngestedFile| {
        let rejects: Vec<Value> =
            f.first_rejects.iter().map(|r| json!({ "offset": r.offset, "byte_offset": r.byte_offset, "reason": r.reason })).collect();
        json!({ "path": f.path.display().to_string(), "already_landed_as": f.already, "records": f.records, "rejects": f.rejects, "first_rejects": rejects,
            "on_time": f.counts.on_time, "late_repair": f.counts.repair, "late_approval": f.counts.approval, "future": f.counts.future,
            "first_event": f.counts.events.map(|e| event_json(e.0)), "last_event": f.counts.events.map(|e| event_json(e.1)), "cut_at_byte": f.cut_at,
            "last_record_open_ended": f.open_ended, "unknown_fields": fields(&f.unknown), "more_unknown_fields": f.unknown.more })
    };
    let mark = |w: Option<crate::watermark::Watermark>| w.map(|w| event_json(w.0));
    json!({ "source": done.source, "snapshot": done.snapshot, "files": done.files.iter().map(file).collect::<Vec<_>>(),
        "watermark_before": mark(done.watermark.0), "watermark": mark(done.watermark.1), "queued": queue_json(&done.queued), "note": done.note })
}

/// Carries out `watermark`.
pub(super) fn watermark(args: WatermarkArgs, cx: &Context) -> Result<Answer, Failure> {
    let mut workshop = cx.open()?;
    let moved = args.advance.is_some();
    if let Some(text) = args.advance {
        let zone = workshop.project.source(&args.source).map_err(Error::from)?.time_zone;
        let to = parse_time(&text, zone).map_err(|e| Failure::usage(format!("--advance: {e}"), None))?;
        workshop.advance_watermark(&args.source, to)?;
    }
    let history = workshop.watermarks(&args.source, 10)?;
    let row = |w: &WatermarkRow| {
        json!({ "value": event_json(w.value.0), "late_before": event_json(w.cutoffs.late), "approval_before": event_json(w.cutoffs.approval),
            "snapshot": w.snapshot, "reason": w.reason, "operator": w.operator, "at": ingest_json(w.at) })
    };
    let object = json!({ "source": args.source, "watermark": history.first().map(row), "history": history.iter().map(row).collect::<Vec<_>>() });
    let Some(now) = history.first() else {
        return Ok(Answer::new(format!("{} has no watermark yet: it gets one with its first records.\n", args.source), object));
    };
    let mut text = facts([
        ("Watermark", Some(now.value.0.to_string())),
        ("Late before", Some(now.cutoffs.late.to_string())),
        ("Approval before", Some(now.cutoffs.approval.to_string())),
    ]);
    let mut table = Table::new(&["watermark", "reason", "operator", "at", ">snapshot"]);
    for w in &history {
        table.row([w.value.0.to_string(), w.reason.clone(), w.operator.clone(), w.at.to_string(), w.snapshot.to_string()]);
    }
    text += &format!("\nIts last {}:\n{}", count(history.len() as i64, "move"), table.text());
    Ok(Answer { lasting: moved, ..Answer::new(text, object) })
}

/// Returns the first hex digits of a digest, or a dash.
pub(super) fn digest(d: Option<crate::id::Digest>) -> String {
    or_dash(d.map(|d| short(Some(&d))))
}
