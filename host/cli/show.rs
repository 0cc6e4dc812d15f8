//! `runs` and `show`: what was done, by whom, and how it came out. JSON of a run is its manifest.

use super::{
    Context,
    backfill::{others_text, partitions_text},
    output::{Answer, Table, bytes, clean, count, facts, ingest_json, millis, or_dash},
    report::Failure,
};
use crate::{
    access::Approval,
    catalog::RunRow,
    id::RunId,
    manifest::{CheckRecord, Kind, Manifest, Mode, Timings, WriteMode, dedup_text},
    time::{IngestTime, format_us},
};
use serde_json::{Value, json};

/// What was typed for `show`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run, like r7
    run: RunId,
    /// Only where the time went
    #[arg(long)]
    timings: bool,
}

/// What was typed for `runs`.
#[derive(clap::Args, Debug)]
pub struct RunsArgs {
    /// Only runs of this dataset
    dataset: Option<String>,
    /// So many
    #[arg(long, value_name = "N", default_value_t = 20)]
    limit: u32,
}

/// Returns a manifest for programs.
pub(super) fn manifest_json(m: &Manifest) -> Value {
    serde_json::to_value(m).unwrap_or_else(|e| json!({ "unreadable": e.to_string() }))
}

/// Carries out `runs`.
pub(super) fn runs(args: RunsArgs, cx: &Context) -> Result<Answer, Failure> {
    let rows = cx.open()?.runs(args.dataset.as_deref(), args.limit as i64)?;
    let mut table =
        Table::new(&["run", "kind", "dataset", "status", "mode", ">partitions", ">records", ">rows", "transform", "operator", "started", "reason"]);
    for r in &rows {
        let m = &r.manifest;
        let kind = m.of_run.map_or(m.kind.name().to_owned(), |of| format!("{} of {of}", m.kind.name()));
        table.row([
            m.run.to_string(),
            kind,
            m.recipe.dataset.clone(),
            m.status.name().into(),
            m.mode.name().into(),
            r.partitions.to_string(),
            or_dash(r.rows_in),
            or_dash(r.rows_out),
            m.recipe.transform.clone(),
            m.published_for_it().map_or(m.operator.clone(), |by| format!("{}, published by {by}", m.operator)),
            r.started.to_string(),
            m.reason.clone().unwrap_or_default(),
        ]);
    }
    let text = if table.is_empty() { "No runs yet.\n".into() } else { table.text() };
    Ok(Answer::new(text, json!({ "runs": rows.iter().map(row_json).collect::<Vec<_>>() })))
}

/// Returns a run of a list for programs.
pub(super) fn row_json(r: &RunRow) -> Value {
    let m = &r.manifest;
    json!({ "run": m.run, "kind": m.kind.name(), "dataset": m.recipe.dataset, "status": m.status.name(), "mode": m.mode.name(), "of_run": m.of_run,
        "partitions": r.partitions, "records": r.rows_in, "rows": r.rows_out, "transform": m.recipe.transform, "transform_digest": m.recipe.transform_digest,
        "input_snapshot": m.recipe.input_snapshot, "published_snapshot": m.published_snapshot, "published_by": m.published_by, "published": m.published_us.map(|us| ingest_json(IngestTime(us))), "operator": m.operator, "reason": m.reason, "checksum": m.checksum,
        "started": ingest_json(r.started), "finished": r.finished.map(ingest_json), "error": m.error })
}

/// Carries out `show`.
pub(super) fn run(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let shown = cx.open()?.show(args.run)?;
    let (row, gone) = (shown.row, shown.raw_gone.map(|d| d.to_string()));
    let text = match (args.timings, row.manifest.kind) {
        (true, _) => timings_table(&row.manifest.timings),
        (_, Kind::Reparse) => super::reparse::text(&row),
        _ => text(&row, gone.clone()),
    };
    let object = cx.object(|| {
        let mut object = manifest_json(&row.manifest);
        object["cannot_be_replayed"] = json!(gone);
        object
    });
    Ok(Answer::new(text, object))
}

/// Returns grants for people: whose word, for what, why.
pub(super) fn grants_text(m: &Manifest) -> Option<String> {
    let one = |g: &crate::manifest::Grant| format!("{} of {} by the word of {}: {}", g.column, g.source, g.operator, g.reason);
    (!m.grants.is_empty()).then(|| m.grants.iter().map(one).collect::<Vec<_>>().join("; "))
}

/// Returns what a run waits for, or whose word it has.
fn approval_text(a: &Approval) -> String {
    match &a.given {
        Some(g) => format!("by {} at {}: {} ({})", g.operator, format_us(g.at_us), g.reason, a.why),
        None => format!("waits until {} ({})", format_us(a.expires_us), a.why),
    }
}

/// Returns as what it became visible, by whom and when.
pub(super) fn published_text(m: &Manifest) -> Option<String> {
    let mut text = format!("as snapshot {}, over snapshot {}", m.published_snapshot?, m.base_snapshot);
    if let (Some(by), Some(at)) = (&m.published_by, m.published_us) {
        text += &format!(", by {by} at {}", format_us(at));
    }
    Some(text)
}

/// How far it went, and how it writes where that does not say it.
fn mode_text(m: &Manifest) -> String {
    match (m.mode, m.recipe.write.mode()) {
        (Mode::DryRun | Mode::Stage, WriteMode::Merge) => format!("{} of a merge", m.mode.name()),
        (Mode::DryRun | Mode::Stage, WriteMode::DeleteInsert) => format!("{} of a delete-insert", m.mode.name()),
        _ => m.mode.name().into(),
    }
}

/// Returns the published rows that a merge or a delete-insert read: they are an input that raw alone does not give.
fn base_text(m: &Manifest) -> Option<String> {
    let mut runs: Vec<String> = m.bases.iter().map(|b| b.run.to_string()).collect();
    runs.sort();
    runs.dedup();
    let rows = m.bases.iter().map(|b| b.rows as i64).sum::<i64>();
    let (rows, partitions) = (count(rows, "row"), count(m.bases.len() as i64, "partition"));
    (!m.bases.is_empty()).then(|| format!("{rows} of {partitions} at snapshot {}, published by {}", m.base_snapshot, runs.join(", ")))
}

/// Returns the published partitions of other datasets that a run read, and who had published them.
fn upstream_text(m: &Manifest) -> Option<String> {
    let of = |(dataset, n, runs): (String, usize, Vec<crate::id::RunId>)| {
        let runs = runs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        format!("{} of {dataset}, published by {runs}", count(n as i64, "partition"))
    };
    (!m.upstream.is_empty()).then(|| crate::pipeline::upstream::summary(&m.upstream).into_iter().map(of).collect::<Vec<_>>().join("; "))
}

fn text(row: &RunRow, gone: Option<String>) -> String {
    let (m, r) = (&row.manifest, &row.manifest.recipe);
    let window = m.window.as_ref().map(|[start, end]| format!("[{start}, {end})"));
    // A rollback is asked for partitions by name, or for a window like any run.
    let named = m.kind == Kind::Rollback && m.asked.iter().all(|a| m.partitions.iter().any(|p| p.partition == *a));
    let asked = (!m.asked.is_empty()).then(|| m.asked.join(if named { ", " } else { " to " }));
    let parameters = r.parameters.iter().map(|(k, v)| format!("{k} = {v:?}")).collect::<Vec<_>>().join(", ");
    let dedup = r.dedup.as_ref().map(dedup_text);
    let lookups = r.lookups.iter().map(|(k, v)| format!("{k} = {v}")).collect::<Vec<_>>().join(", ");
    let raw = (m.inputs.iter().map(|f| f.rows).sum::<i64>(), m.inputs.iter().map(|f| f.bytes).sum::<i64>());
    let of = m.of_run.map(|of| of.to_string());
    let mut text = facts([
        ("Run", Some(format!("{}, a {} of {}", m.run, m.kind.name(), r.dataset))),
        ("Of run", of),
        ("Status", Some(m.status.name().into())),
        ("Error", m.error.clone()),
        ("Discarded", m.discarded.as_ref().map(|d| d.to_string())),
        ("Mode", Some(format!("{}, validation {}", mode_text(m), serde_name(&m.validation)))),
        ("Operator", Some(m.operator.clone())),
        ("Reason", m.reason.clone()),
        ("Started", Some(row.started.to_string())),
        ("Finished", row.finished.map(|t| t.to_string())),
        ("Asked for", asked),
        ("Window", window),
        ("Only", m.only.clone()),
        ("Transform", Some(format!("{} ({})", r.transform, r.transform_digest))),
        ("Parameters", (!parameters.is_empty()).then_some(parameters)),
        ("Lookups", (!lookups.is_empty()).then_some(lookups)),
        ("Filter", r.filter.clone()),
        ("Dedup", dedup),
        ("Quarantine", r.quarantine.map(|max| format!("at most {max} of a partition"))),
        ("Key", Some(r.key.join(", "))),
        ("Limits", Some(limits_text(&r.limits))),
        ("Clock, seed", Some(format!("{}, {}", format_us(r.as_of_us), r.seed))),
        (
            "Read",
            Some(format!(
                "{} at snapshot {}: {}, {}, {}",
                r.sources.iter().map(|s| format!("raw_{s}")).chain(r.upstream.iter().map(|u| u.dataset.clone())).collect::<Vec<_>>().join(", "),
                r.input_snapshot,
                count(m.inputs.len() as i64, "file"),
                count(raw.0, "row"),
                bytes(raw.1)
            )),
        ),
        ("Made of", upstream_text(m)),
        ("Payload read", grants_text(m)),
        ("Approval", m.approval.as_ref().map(approval_text)),
        ("Read of published", base_text(m)),
        ("Not read", (!m.gaps.is_empty()).then(|| m.gaps.join("; "))),
        ("Replay", gone.map(|g| format!("cannot be replayed: {g}"))),
        ("Published", published_text(m)),
        ("Together with", (!m.together.is_empty()).then(|| m.together.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))),
        ("Checksum", m.checksum.map(|c| c.to_string())),
        ("Others", others_text(m).lines().next().map(str::to_owned)),
        (
            "Made by",
            Some(format!("restitch {}, {}, {}, time zones {}", m.versions.restitch, m.versions.engine, m.versions.wit, m.versions.time_zones)),
        ),
    ]);
    if !m.partitions.is_empty() {
        text += &format!("\n{}{}", partitions_text(m), quarantine_text(m));
    }
    if !m.checks.is_empty() {
        text += &format!("\n{}", checks_text(&m.checks));
    }
    if !m.log.is_empty() {
        text += "\nThe transform logged:\n";
        m.log.iter().for_each(|l| text += &format!("  {}\n", clean(l)));
    }
    text + "\n" + &timings_text(&m.timings)
}

fn limits_text(l: &crate::config::Limits) -> String {
    let (memory, output, log) = (bytes(l.memory_bytes_max), bytes(l.output_bytes_max), bytes(l.log_bytes_max));
    let fuel = l.fuel_max.map_or(String::new(), |f| format!(", fuel {f}"));
    format!("memory {memory}, time {}, output {output}, log {log}{fuel}", millis(l.time_ms_max as f64))
}

fn serde_name(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value).ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default()
}

/// Records in quarantine that a run's report shows.
const QUARANTINED: usize = 10;

/// Returns the records that a run left out, with the reasons, and how to see all of them; nothing, if there are none.
pub(super) fn quarantine_text(m: &Manifest) -> String {
    let all = || m.partitions.iter().flat_map(|p| p.quarantined.iter().map(move |q| (p, q)));
    let records = all().count();
    if records == 0 {
        return String::new();
    }
    let mut table = Table::new(&["partition", "record", "file", ">line or row", "reason"]);
    for (p, q) in all().take(QUARANTINED) {
        table.row([p.partition.clone(), q.record_id.clone(), q.file.clone(), q.offset.to_string(), q.reason.clone()]);
    }
    let more = if records > QUARANTINED { format!("(the first {QUARANTINED} of {records})\n") } else { String::new() };
    format!(
        "\nIn quarantine, because {} fails on them: {}.\n{}{more}`restitch query \"SELECT * FROM restitch_quarantine WHERE run_id = {}\"` shows all of them.\n",
        m.recipe.transform,
        count(records as i64, "record"),
        table.text(),
        m.run.0
    )
}

/// Returns checks as a table, with what failed below it.
pub(super) fn checks_text(checks: &[CheckRecord]) -> String {
    let mut table = Table::new(&["check", "", "measured", "expected", "severity"]);
    for c in checks {
        table.row([
            c.name.clone(),
            if c.passed { "✓" } else { "✗" }.into(),
            c.measured.clone(),
            c.expected.clone(),
            if c.passed { String::new() } else { c.severity.clone() },
        ]);
    }
    let mut text = table.text();
    for c in checks.iter().filter(|c| !c.passed) {
        for line in c.detail.iter().flat_map(|d| d.lines()) {
            text += &format!("  {}: {}\n", c.name, clean(line));
        }
    }
    text
}

fn parts(t: &Timings) -> Vec<(&'static str, f64)> {
    vec![
        ("prepare", t.prepare_ms),
        ("load the transform", t.compile_ms),
        ("scan", t.scan_ms),
        ("decode", t.decode_ms),
        ("filter, dedup, order", t.dedup_ms),
        ("transform: instances", t.instantiate_ms),
        ("transform: boundary", t.boundary_ms),
        ("transform: guest", t.guest_ms()),
        ("sort, checksum, write", t.write_ms),
        ("checks", t.check_ms),
        ("swap", t.publish_ms),
        ("scheduling, waiting", t.idle_ms),
    ]
}

fn timings_text(t: &Timings) -> String {
    let list = parts(t).iter().filter(|(_, ms)| *ms > 0.0).map(|(name, ms)| format!("{name} {}", millis(*ms))).collect::<Vec<_>>().join(", ");
    format!("{} in all; added up over all cores: {list}\n", millis(t.wall_ms))
}

/// The parts of a run's time as a table. They come to its duration times its workers.
fn timings_table(t: &Timings) -> String {
    let all = parts(t).iter().map(|(_, ms)| ms).sum::<f64>();
    let mut table = Table::new(&["where the time went", ">time", ">share"]);
    let share = |ms: f64| if all > 0.0 { format!("{:.1} %", 100.0 * ms / all) } else { String::new() };
    parts(t).into_iter().for_each(|(name, ms)| table.row([name.to_owned(), millis(ms), share(ms)]));
    table.row(["in all".into(), millis(all), share(all)]);
    let workers = count(t.workers as i64, "worker");
    format!("{}\n{} on {workers}. docs/timings.md says what helps against each.\n", table.text(), millis(t.wall_ms))
}
