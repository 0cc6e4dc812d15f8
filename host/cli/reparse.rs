//! `ingest SOURCE --reparse`: landed records of a window read again, and what changed in which column.
//! Never decides what is read; a manifest of a reparse is printed here for `show` as well.

use super::{
    Context,
    output::{Answer, Table, bytes, count, facts, millis},
    progress::{Meter, Unit},
    report::Failure,
    show::{manifest_json, published_text},
};
use crate::{
    catalog::RunRow,
    config::Project,
    manifest::{Manifest, Mode, ReparseRecord, Status},
    pipeline::ReparseRequest,
};

/// Carries it out.
pub(super) fn run(request: &ReparseRequest, cx: &Context) -> Result<Answer, Failure> {
    let mut workshop = cx.open()?;
    let (start, end) = workshop.reparse_window(request)?.bounds_text();
    super::output::talk(&format!("reparse {}: [{start}, {end})", request.source));
    let meter = Meter::new(format!("reparse {}", request.source), Unit::Bytes, 0);
    let manifest = workshop.reparse(request, &meter)?;
    drop(meter);
    let changed = manifest.status == Status::Published;
    let text = result_text(&manifest) + &if changed { followed_by(&workshop.project, &request.source) } else { String::new() };
    Ok(Answer { lasting: changed, ..Answer::new(text, cx.object(|| manifest_json(&manifest))) })
}

/// What is to be done with what was computed from the records as they were.
fn followed_by(project: &Project, source: &str) -> String {
    let mut text = String::new();
    if project.datasets_of(source).next().is_some() {
        text += "Published partitions with these records are stale: `restitch backfill DATASET --start … --end … --only stale`.\n";
    }
    for d in project.datasets.values().filter(|d| d.lookups.values().any(|l| l == source)) {
        text += &format!(
            "It is a lookup of {0}, whose partitions stay as they are: `restitch backfill {0} --start … --end …` computes them with it.\n",
            d.name
        );
    }
    text
}

fn result_text(m: &Manifest) -> String {
    let Some(r) = &m.reparse else { return String::new() };
    let (run, source) = (m.run, m.recipe.sources.join(", "));
    let mut text = columns_text(r);
    let did = format!("{} of {} in the window changed", r.changed, count(r.inside as i64, "record"));
    text += &match (m.status, m.published_snapshot) {
        (Status::Published, Some(s)) => {
            format!("\nReparsed {source} in {run} as snapshot {s}: {did}, {} written anew.\n", count(r.files.len() as i64, "file"))
        }
        _ if m.mode == Mode::DryRun => format!("\nDry run {run}: nothing was kept. {did}.\n"),
        _ => format!("\nNothing to do in {run}: {did}.\n"),
    };
    m.gaps.iter().for_each(|gap| text += &format!("Not read: {gap}.\n"));
    text
}

fn columns_text(r: &ReparseRecord) -> String {
    let mut table = Table::new(&["column", ">records changed"]);
    for (column, changed) in r.columns.iter().filter(|(_, n)| **n > 0) {
        table.row([column.clone(), changed.to_string()]);
    }
    if table.is_empty() { String::new() } else { table.text() }
}

/// Returns the manifest of a reparse for people.
pub(super) fn text(row: &RunRow) -> String {
    let m = &row.manifest;
    let raw = (m.inputs.iter().map(|f| f.rows).sum::<i64>(), m.inputs.iter().map(|f| f.bytes).sum::<i64>());
    let files = count(m.inputs.len() as i64, "file");
    let mut text = facts([
        ("Run", Some(format!("{}, a {} of {}", m.run, m.kind.name(), m.recipe.dataset))),
        ("Status", Some(m.status.name().into())),
        ("Error", m.error.clone()),
        ("Mode", Some(m.mode.name().into())),
        ("Operator", Some(m.operator.clone())),
        ("Reason", m.reason.clone()),
        ("Started", Some(row.started.to_string())),
        ("Finished", row.finished.map(|t| t.to_string())),
        ("Asked for", (!m.asked.is_empty()).then(|| m.asked.join(" to "))),
        ("Window", m.window.as_ref().map(|[start, end]| format!("[{start}, {end})"))),
        ("Read", Some(format!("{} at snapshot {}: {files}, {}, {}", m.recipe.dataset, m.recipe.input_snapshot, count(raw.0, "row"), bytes(raw.1)))),
        ("In the window", m.reparse.as_ref().map(|r| format!("{}, {} of them changed", count(r.inside as i64, "record"), r.changed))),
        ("Published", published_text(m)),
        ("Made by", Some(format!("restitch {}, time zones {}", m.versions.restitch, m.versions.time_zones))),
    ]);
    if let Some(r) = &m.reparse {
        let mut files = Table::new(&["file", ">rows", "sha256", "instead of"]);
        for (f, old) in r.files.iter().zip(&r.replaced) {
            files.row([f.path.clone(), f.rows.to_string(), f.digest.to_string(), old.clone()]);
        }
        for part in [columns_text(r), if files.is_empty() { String::new() } else { files.text() }].iter().filter(|t| !t.is_empty()) {
            text += &format!("\n{part}");
        }
        text += "\nDeclared as:\n";
        r.declared.iter().for_each(|d| text += &format!("  {d}\n"));
    }
    text + &format!("\n{} in all\n", millis(m.timings.wall_ms))
}
