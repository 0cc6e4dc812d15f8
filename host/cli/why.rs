//! `why`: the story of one partition, in the order in which it happened.

use super::{
    Context,
    ingest::queue_json,
    output::{Answer, clean, count, rows_text, short},
    report::Failure,
    show::row_json,
};
use crate::{
    catalog::{QueueKind, QueueRow, RunRow},
    id::RunId,
    manifest::{Kind, Manifest, Mode, PartitionRecord, Status, UpstreamRecord},
    pipeline::{Why, upstream::summary},
    query::rows_json,
    time::{IngestTime, format_span},
};
use serde_json::{Value, json};

/// What was typed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The dataset
    dataset: String,
    /// The partition, like 2026-05-01
    partition: String,
}

/// What was typed for `why`.
#[derive(clap::Args, Debug)]
pub struct WhyArgs {
    #[command(flatten)]
    partition: Args,
    /// Follow one row: the value of its key column; once for each column of the key (`null` for none)
    #[arg(long, value_name = "VALUE")]
    key: Vec<String>,
}

/// Carries it out.
pub(super) fn run(args: WhyArgs, cx: &Context) -> Result<Answer, Failure> {
    let WhyArgs { partition: args, key } = args;
    let why = cx.open()?.why(&args.dataset, &args.partition, &key)?;
    let numbers = |run: &RunRow| why.numbers.get(&run.manifest.run).map(|n| n.iter().cloned().collect::<std::collections::BTreeMap<_, _>>());
    let runs: Vec<Value> = why.runs.iter().map(|(run, p)| json!({ "run": row_json(run), "partition": p, "numbers": numbers(run) })).collect();
    let object = json!({ "dataset": args.dataset, "partition": args.partition, "key": key, "published_by": why.published.as_ref().map(|p| p.run), "runs": runs, "late": queue_json(&why.late) });
    Ok(Answer::new(text(&args, &key, &why), object))
}

/// Records listed by `conflicts`.
const LISTED: usize = 1000;

/// Carries out `conflicts`.
pub(super) fn conflicts(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let rows = cx.open()?.conflicts(&args.dataset, &args.partition, LISTED)?;
    let records = rows_json(&rows);
    let object = json!({ "dataset": args.dataset, "partition": args.partition, "records": records });
    let count = records.as_array().map_or(0, Vec::len);
    if count == 0 {
        return Ok(Answer::new(format!("{} {} has no records that share a key and differ in payload.\n", args.dataset, args.partition), object));
    }
    let more = if count == LISTED { format!("(the first {LISTED})\n") } else { String::new() };
    Ok(Answer::new(rows_text(&rows) + &more, object))
}

fn text(args: &Args, key: &[String], why: &Why) -> String {
    let mut events: Vec<(i64, u8, String)> = Vec::new();
    for q in &why.late {
        events.push((q.snapshot.0, 0, late(q)));
    }
    let mut at = 0;
    for (run, p) in &why.runs {
        // A run stands behind what it read, and before what was landed after that; one that published nothing, behind the run before it.
        at = at.max(run.manifest.published_snapshot.unwrap_or(run.manifest.base_snapshot).0);
        events.push((
            at,
            1,
            story(run, p) + &made_of(why, run, p) + &numbers(why, key, run, p).map_or(String::new(), |n| format!("\n              {n}")),
        ));
    }
    events.sort_by_key(|(snapshot, order, _)| (*snapshot, *order));
    let now = match &why.published {
        Some(p) => format!("published by {}: {}, checksum {}", p.run, count(p.rows, "row"), short(Some(&p.checksum))),
        None => "not published".into(),
    };
    let mut text = format!("{} {} is {now}.\n", args.dataset, args.partition);
    if events.is_empty() {
        text += "No run has touched it, and no late record came for it.\n";
    }
    for (snapshot, _, event) in events {
        text += &format!("\nsnapshot {snapshot:>3}  {event}\n");
    }
    text
}

/// Partitions of its input that the story of a run shows.
const UPSTREAM: usize = 5;

/// Where datasets are the input: whose rows it read, and, if there was a version before, which of them were others then.
fn made_of(why: &Why, run: &RunRow, p: &PartitionRecord) -> String {
    let inside = |m: &Manifest| m.upstream.iter().filter(|u| u.overlaps(p.start_us, p.end_us)).cloned().collect::<Vec<_>>();
    let now = inside(&run.manifest);
    if now.is_empty() {
        return String::new();
    }
    let prior = p.prior_run.and_then(|r| why.runs.iter().find(|(run, _)| run.manifest.run == r)).map(|(run, _)| inside(&run.manifest));
    let Some(prior) = prior.filter(|prior| !prior.is_empty()) else {
        let of = |(dataset, n, runs): (String, usize, Vec<RunId>)| {
            let runs = runs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            format!("\n              made of {} of {dataset}, published by {runs}", count(n as i64, "partition"))
        };
        return summary(&now).into_iter().map(of).collect();
    };
    let same = |a: &UpstreamRecord, b: &UpstreamRecord| (&a.dataset, a.start_us) == (&b.dataset, b.start_us);
    let mut lines: Vec<String> = Vec::new();
    for u in &now {
        let name = format!("{} {}", u.dataset, u.partition);
        match prior.iter().find(|b| same(u, b)) {
            None => lines.push(format!("{name} is there now, published by {}", u.run)),
            Some(b) if b.checksum != u.checksum => lines.push(format!("{name} is of {} now, and was of {}", u.run, b.run)),
            Some(_) => {}
        }
    }
    let gone = prior.iter().filter(|b| !now.iter().any(|u| same(u, b)));
    lines.extend(gone.map(|b| format!("{} {}, published by {}, is not there any more", b.dataset, b.partition, b.run)));
    let rest = lines.len().saturating_sub(UPSTREAM);
    lines.truncate(UPSTREAM);
    lines.extend((rest > 0).then(|| format!("and {rest} more")));
    lines.iter().map(|l| format!("\n              upstream: {l}")).collect()
}

/// What became of the sums, or of the row of a key: before and after.
fn numbers(why: &Why, key: &[String], run: &RunRow, p: &PartitionRecord) -> Option<String> {
    run.manifest.published_snapshot?;
    let what = if key.is_empty() { "sums".to_owned() } else { format!("row {}", key.join(", ")) };
    let Some(after) = why.numbers.get(&run.manifest.run) else { return Some(format!("{what}: not known any more, the version was removed")) };
    let before = p.prior_run.and_then(|r| why.numbers.get(&r)).filter(|b| !b.is_empty());
    let list = |row: &[(String, String)]| row.iter().map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ");
    Some(match (before, after.as_slice()) {
        (None, []) => format!("{what}: not there"),
        (Some(before), []) => format!("{what}: {} → not there", list(before)),
        (None, after) => format!("{what}: {}", list(after)),
        (Some(before), after) => {
            let old = |name: &String| before.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str());
            let changed = after.iter().filter(|(name, value)| old(name) != Some(value));
            let changed: Vec<String> = changed.map(|(name, value)| format!("{name} {} → {value}", old(name).unwrap_or("null"))).collect();
            if changed.is_empty() { format!("{what}: unchanged") } else { format!("{what}: {}", changed.join(", ")) }
        }
    })
}

fn late(q: &QueueRow) -> String {
    if q.kind == QueueKind::Moved {
        return format!("{} moved to another partition by {} ({})", count(q.records, "record"), q.file, q.tier);
    }
    let by = if q.least_late_us == q.most_late_us {
        format_span(q.most_late_us)
    } else {
        format!("{} to {}", format_span(q.least_late_us), format_span(q.most_late_us))
    };
    format!("{} came late by {by} in {} ({})", count(q.records, "record"), q.file, q.tier)
}

/// Records in quarantine that the story of a run shows.
const QUARANTINED: usize = 3;

fn story(run: &RunRow, p: &PartitionRecord) -> String {
    let m = &run.manifest;
    let did = match (m.kind, m.status) {
        (Kind::Rollback, Status::Published) => format!("rolled {} back", m.of_run.map_or("a run".into(), |r| r.to_string())),
        (Kind::Replay, _) => format!("replayed {}", m.of_run.map_or("a run".into(), |r| r.to_string())),
        (_, Status::Published) if p.kept => format!("came to what was there ({}, {}: {})", m.kind.name(), m.mode.name(), p.reason),
        (_, Status::Published) if m.mode != Mode::Overwrite => format!("published it ({}, {}: {})", m.kind.name(), m.mode.name(), p.reason),
        (_, Status::Published) => format!("published it ({}: {})", m.kind.name(), p.reason),
        (_, Status::Done) => format!("computed it in a dry run ({}: {})", m.kind.name(), p.reason),
        (_, status) => format!("left it alone: {} ({})", status.name(), m.kind.name()),
    };
    let published = m.published_by.as_deref().zip(m.published_us.map(IngestTime));
    let (by, at) = published.unwrap_or((&m.operator, run.started));
    let mut text = format!("{} {did}, by {by} at {at}", m.run);
    if m.published_for_it().is_some() {
        text += &format!(", asked for by {} at {}", m.operator, run.started);
    }
    if let Some(reason) = &m.reason {
        text += &format!(", because {reason:?}");
    }
    if m.kind != Kind::Rollback {
        text += &format!("\n              {} ({}) read {}", m.recipe.transform, m.recipe.transform_digest.short(), count(p.records as i64, "record"));
        for (n, what) in [
            (p.late, "late"),
            (p.duplicates, "duplicate"),
            (p.conflicts, "in conflict"),
            (p.moved, "moved to another partition"),
            (p.quarantined.len() as u64, "in quarantine"),
        ] {
            text += &if n > 0 { format!(", {n} {what}") } else { String::new() };
        }
    }
    for q in p.quarantined.iter().take(QUARANTINED) {
        text += &format!("\n              without {} ({}, line or row {}): {}", clean(&q.record_id), clean(&q.file), q.offset, clean(&q.reason));
    }
    let before = p.prior_rows.map_or("not there".into(), |n| count(n as i64, "row"));
    let after = p.checksum.map_or("not there".into(), |_| count(p.rows as i64, "row"));
    text += &format!("\n              {before} → {after}");
    if let (Some(a), Some(r), Some(c)) = (p.added, p.removed, p.changed) {
        text += &format!(": {a} added, {r} removed, {c} changed");
    }
    if let (Some(stay), true) = (p.target_only.filter(|n| *n > 0), m.kind != Kind::Rollback) {
        text += &format!("; {} of before stayed as they were", count(stay as i64, "row"));
    }
    if let Some(checksum) = p.checksum {
        text += &format!("; checksum {}", short(Some(&checksum)));
    }
    text
}
