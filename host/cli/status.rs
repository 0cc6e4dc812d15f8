//! `status` and `query`: what is there now.

use super::{
    Context,
    ingest::{queue, queue_json},
    output::{Answer, Table, count, event_json, ingest_json, rows_text, short},
    report::Failure,
};
use crate::{
    id::SnapshotId,
    pipeline::{DatasetStatus, PartitionState, SourceStatus},
    query::rows_json,
    reparse::InClear,
    time::{Clock, format_span},
    watermark::InputState,
};
use serde_json::{Value, json};

/// What was typed for `status`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Only this dataset
    dataset: Option<String>,
}

/// What was typed for `query`.
#[derive(clap::Args, Debug)]
pub struct QueryArgs {
    /// A query; tables are raw_SOURCE, raw_SOURCE_rejects, the datasets, and restitch's own (restitch_partitions, restitch_runs, restitch_queue …)
    sql: String,
    /// The warehouse as of this snapshot
    #[arg(long, value_name = "SNAPSHOT")]
    at: Option<i64>,
    /// Read payloads of sources that mask columns: your word for it, with the reason, written down
    #[arg(long, value_name = "REASON")]
    grant_payload: Option<String>,
}

/// Partitions listed.
const SHOWN: usize = 20;

/// Carries out `status`.
pub(super) fn run(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let (sources, datasets) = cx.open()?.status(args.dataset.as_deref())?;
    let mut text = sources_text(&sources, &cx.options.clock);
    sources.iter().filter_map(|s| s.in_clear.as_ref()).for_each(|found| text += &format!("\nNote: {found}.\n"));
    text += &sources.iter().map(lateness_text).collect::<String>();
    for d in &datasets {
        text += &format!("\n{}", dataset_text(d));
    }
    let object = cx.object(
        || json!({ "sources": sources.iter().map(source_json).collect::<Vec<_>>(), "datasets": datasets.iter().map(dataset_json).collect::<Vec<_>>() }),
    );
    Ok(Answer::new(text, object))
}

fn sources_text(sources: &[SourceStatus], clock: &Clock) -> String {
    if sources.is_empty() {
        return "No sources are declared in restitch.toml yet.\n".into();
    }
    let mut table = Table::new(&["source", "watermark", "behind", ">files", ">records", ">rejects", "late before", "note"]);
    for s in sources {
        let lag = |w: &crate::catalog::WatermarkRow| format_span((clock.now().0 - w.value.0.0).max(0) / 60_000_000 * 60_000_000);
        table.row([
            s.name.clone(),
            s.watermark.as_ref().map_or("none yet".into(), |w| w.value.0.to_string()),
            s.watermark.as_ref().map(lag).unwrap_or_default(),
            s.landed.files.to_string(),
            s.landed.records.to_string(),
            if s.landed.rejects == 0 { String::new() } else { s.landed.rejects.to_string() },
            s.watermark.as_ref().map(|w| w.cutoffs.late.to_string()).unwrap_or_default(),
            if s.idle { "idle".into() } else { String::new() },
        ]);
    }
    table.text()
}

fn dataset_text(d: &DatasetStatus) -> String {
    let states: Vec<String> = ["open", "closed", "final"]
        .iter()
        .map(|s| (s, d.partitions.iter().filter(|p| p.state == *s).count()))
        .filter(|(_, n)| *n > 0)
        .map(|(s, n)| format!("{n} {s}"))
        .collect();
    let dirty = d.partitions.iter().filter(|p| p.dirty).count();
    let inputs: Vec<&str> = d.inputs.iter().map(|i| i.source.as_str()).collect();
    let mut text = format!("{} from {} by {}: {}", d.name, inputs.join(", "), d.transform, count(d.partitions.len() as i64, "partition"));
    if !states.is_empty() {
        text += &format!(" ({}{})", states.join(", "), if dirty > 0 { format!("; {dirty} dirty") } else { String::new() });
    }
    text += "\n";
    if d.inputs.len() > 1 {
        let of = |note: fn(&InputState) -> Option<&'static str>| -> Vec<String> {
            d.inputs.iter().filter_map(|i| Some(format!("{} ({})", i.source, note(i)?))).collect()
        };
        let to = d.stand.map_or("not complete to any time yet".into(), |s| format!("complete to {}", s.watermark.0));
        let (waits, aside) = (of(waited_for), of(aside));
        let list = |what: &str, names: Vec<String>| if names.is_empty() { String::new() } else { format!("; {what}: {}", names.join(", ")) };
        let rest = list("waiting for", waits) + &list("set aside", aside);
        text += &format!("All its {} together: {to}{rest}.\n", if d.downstream { "inputs" } else { "sources" });
    }
    text += &unready_text(d);
    if d.buildable > 0 {
        text += &format!("`restitch run {}` would build {}.\n", d.name, count(d.buildable, "partition"));
    }
    let mut table = Table::new(&["partition", "state", ">rows", "run", "checksum", ""]);
    let skip = d.partitions.len().saturating_sub(SHOWN);
    for p in &d.partitions[skip..] {
        let marks = [waits(p).map(str::to_owned), stale(p).map(|s| format!("stale: {s}")), quarantined(p)];
        let mark = marks.into_iter().flatten().collect::<Vec<_>>().join("; ");
        table.row([
            p.published.partition.clone(),
            p.state.into(),
            p.published.rows.to_string(),
            p.published.run.to_string(),
            short(Some(&p.published.checksum)),
            mark,
        ]);
    }
    if !table.is_empty() {
        text += &format!("\n{}", table.whole());
    }
    if skip > 0 {
        text += &format!("(the last {SHOWN} of {})\n", d.partitions.len());
    }
    if d.partitions.iter().any(|p| p.quarantined > 0) {
        text += &format!("\nWhat is in quarantine, and why: `restitch query \"SELECT * FROM restitch_quarantined WHERE dataset = '{}'\"`\n", d.name);
    }
    if !d.waiting.is_empty() {
        text += &format!("\nLate records wait:\n{}", queue(&d.waiting).text());
    }
    d.gaps.iter().for_each(|g| text += &format!("\nNote: {g}\n"));
    text
}

/// Returns which records wait for the partition, if there are any.
fn waits(p: &PartitionState) -> Option<&'static str> {
    match (p.dirty, p.raw_gone) {
        (true, true) => Some("late records wait, raw is gone"),
        (true, false) => Some("late records wait"),
        (false, true) => Some("new records wait, raw is gone"),
        (false, false) => None,
    }
}

/// Returns why the partition is stale, if it is.
fn stale(p: &PartitionState) -> Option<String> {
    (!p.stale.is_empty()).then(|| p.stale.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))
}

/// Returns what of the datasets before it is not as it should be, by dataset and word.
fn unready_text(d: &DatasetStatus) -> String {
    let mut groups: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for u in &d.unready {
        match groups.iter_mut().find(|(dataset, what, _)| *dataset == u.dataset && *what == u.what) {
            Some((_, _, partitions)) => partitions.push(&u.partition),
            None => groups.push((&u.dataset, u.what, vec![&u.partition])),
        }
    }
    let line = |(dataset, what, partitions): &(&str, &str, Vec<&str>)| match partitions.as_slice() {
        [one] => format!("Before it, {dataset} {one} is {what}.\n"),
        many => format!("Before it, {} partitions of {dataset} are {what} ({} to {}).\n", many.len(), many[0], many[many.len() - 1]),
    };
    groups.iter().map(line).collect()
}

/// Returns how many records the partition was computed without, if there are any.
fn quarantined(p: &PartitionState) -> Option<String> {
    (p.quarantined > 0).then(|| format!("{} in quarantine", count(p.quarantined as i64, "record")))
}

/// Returns why a source holds nobody back, if it does not.
fn aside(input: &InputState) -> Option<&'static str> {
    input.idle.then_some(if input.stands.is_none() { "nothing landed yet, and idle" } else { "idle" })
}

/// Returns why a source holds all others back, if it does.
fn waited_for(input: &InputState) -> Option<&'static str> {
    (!input.idle && input.stands.is_none()).then_some("nothing landed yet")
}

/// Returns how many records happened how long before the watermark, as bars.
fn lateness_text(s: &SourceStatus) -> String {
    let behind: i64 = s.lateness.iter().map(|l| l.1).sum();
    let Some(most) = s.lateness.iter().map(|l| l.1).max() else { return String::new() };
    let mut text = format!("\n{} of {} of {} happened before the watermark as it stood, by:\n", behind, count(s.landed.records, "record"), s.name);
    let mut table = Table::new(&[">up to", ">records", ""]);
    for (end, records) in &s.lateness {
        let bar = "▇".repeat((records * 30 / most).max(1) as usize);
        table.row([if *end == i64::MAX { "longer".into() } else { format_span(*end) }, records.to_string(), bar]);
    }
    text += &table.text();
    text
}

fn source_json(s: &SourceStatus) -> Value {
    json!({ "name": s.name, "watermark": s.watermark.as_ref().map(|w| event_json(w.value.0)), "late_before": s.watermark.as_ref().map(|w| event_json(w.cutoffs.late)),
        "approval_before": s.watermark.as_ref().map(|w| event_json(w.cutoffs.approval)), "files": s.landed.files, "records": s.landed.records, "rejects": s.landed.rejects,
        "last_landed": s.landed.last.map(ingest_json), "idle": s.idle, "in_clear": s.in_clear.as_ref().map(in_clear_json),
        "lateness": s.lateness.iter().map(|(end, records)| json!({ "behind_us_max": (*end != i64::MAX).then_some(end), "records": records })).collect::<Vec<_>>() })
}

fn in_clear_json(found: &InClear) -> Value {
    let (first, last) = &found.days;
    json!({ "columns": found.columns, "files": found.files, "records": found.records, "first_day": first, "last_day": last, "note": found.to_string() })
}

fn dataset_json(d: &DatasetStatus) -> Value {
    let partition = |p: &PartitionState| {
        json!({ "partition": p.published.partition, "state": p.state, "dirty": p.dirty, "stale": stale(p), "quarantined": p.quarantined, "raw_gone": p.raw_gone, "rows": p.published.rows, "run": p.published.run, "checksum": p.published.checksum,
            "transform_digest": p.published.transform_digest, "input_snapshot": p.published.input_snapshot, "published_snapshot": p.published.published_snapshot })
    };
    let kind = if d.downstream { "dataset" } else { "source" };
    let input = |i: &InputState| json!({ kind: i.source, "watermark": i.stands.map(|s| event_json(s.watermark.0)), "set_aside": aside(i) });
    json!({ "name": d.name, "inputs": d.inputs.iter().map(input).collect::<Vec<_>>(), "watermark": d.stand.map(|s| event_json(s.watermark.0)), "transform": d.transform.to_string(), "buildable": d.buildable,
        "unready": d.unready.iter().map(|u| json!({ "dataset": u.dataset, "partition": u.partition, "what": u.what })).collect::<Vec<_>>(),
        "partitions": d.partitions.iter().map(partition).collect::<Vec<_>>(), "waiting": queue_json(&d.waiting), "gaps": d.gaps })
}

/// Carries out `query`.
pub(super) fn query(args: QueryArgs, cx: &Context) -> Result<Answer, Failure> {
    let rows = cx.open()?.query_granted(&args.sql, args.at.map(SnapshotId), args.grant_payload.as_deref())?;
    if cx.global.json {
        rows.refuse_doubled().map_err(crate::pipeline::Error::from)?;
    }
    let columns: Vec<&str> = rows.schema.fields().iter().map(|f| f.name().as_str()).collect();
    let object = json!({ "columns": columns, "rows": rows_json(&rows) });
    Ok(Answer::new(rows_text(&rows), object))
}
