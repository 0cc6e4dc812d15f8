//! `transform prove` and `transform outdated`: whether a transform repeats itself, and which version made what.

use super::{
    Context,
    output::{Answer, Table, clean, count},
    progress::{Meter, Unit},
    report::Failure,
};
use crate::{
    config::TransformRef,
    id::SnapshotId,
    pipeline::{Candidate, DatasetVersions, Trial, TrialRequest, Trials},
};
use serde_json::json;
use std::path::PathBuf;

/// What was typed for `transform prove`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A registered transform, or the file of a component
    #[arg(value_name = "NAME@VERSION|FILE")]
    transform: String,
    /// The dataset whose input it gets
    dataset: String,
    /// First date (or partition, or instant) of the window
    #[arg(long, value_name = "DATE")]
    start: String,
    /// Last date (or partition), included; an instant is excluded [default: that of --start]
    #[arg(long, value_name = "DATE")]
    end: Option<String>,
    /// Read the warehouse as of this snapshot
    #[arg(long, value_name = "N")]
    snapshot: Option<i64>,
    /// Read payloads of masked sources, and say why: your word stands for it
    #[arg(long, value_name = "REASON")]
    grant_payload: Option<String>,
    /// A parameter of the transform, as NAME=VALUE
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = super::backfill::parameter)]
    params: Vec<(String, String)>,
}

/// Carries out `transform prove`.
pub(super) fn prove(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let mut workshop = cx.open()?;
    let file = PathBuf::from(&args.transform);
    let candidate = match TransformRef::parse(&args.transform).filter(|_| !file.is_file()) {
        Some(reference) => Candidate::Registered(reference),
        None => Candidate::File(file),
    };
    let request = TrialRequest {
        candidate,
        dataset: args.dataset,
        start: args.start,
        end: args.end,
        snapshot: args.snapshot.map(SnapshotId),
        grant_payload: args.grant_payload,
        params: args.params,
    };
    let meter = Meter::new(format!("prove {}", args.transform), Unit::Partitions, 0);
    let trials = workshop.try_out(&request, &meter);
    drop(meter);
    let trials = trials?;
    let list = trials.trials.iter().map(|t| {
        json!({ "what": t.what, "equal": equal(t), "differing_partitions": t.differing, "difference": t.difference,
            "error": t.failure() })
    });
    let object = json!({ "transform": trials.transform, "digest": trials.digest, "dataset": trials.dataset, "input_snapshot": trials.input_snapshot,
        "partitions": trials.partitions, "records": trials.records, "rows": trials.rows, "quarantined": trials.quarantined, "checksum": trials.checksum, "proven": trials.trials.iter().all(equal),
        "trials": list.collect::<Vec<_>>() });
    let text = trials_text(&trials);
    Ok(Answer { failure: trials.verdict().err().map(Into::into), ..Answer::new(text, object) })
}

/// Whether a trial came out as the first time.
fn equal(t: &Trial) -> bool {
    t.difference.is_none() && t.error.is_none()
}

fn trials_text(t: &Trials) -> String {
    let read = format!("{}, {} of {}", count(t.partitions, "partition"), count(t.records, "record"), t.dataset);
    let mut text = format!("{} ({}) on {read} at snapshot {}, again with:\n\n", t.transform, t.digest.short(), t.input_snapshot);
    let mut table = Table::new(&["what", "equal", ">partitions that differ"]);
    for trial in &t.trials {
        let (mark, differing) = match trial {
            Trial { error: Some(_), .. } => ("–", "not tried".into()),
            Trial { difference: Some(_), differing, .. } => ("✗", differing.to_string()),
            _ => ("✓", String::new()),
        };
        table.row([trial.what.clone(), mark.into(), differing]);
    }
    text += &table.text();
    for trial in &t.trials {
        let failure = trial.failure().map(|e| format!("it could not be carried out: {e}"));
        for said in trial.difference.iter().chain(&failure) {
            text += &format!("  {}: {}\n", trial.what, clean(said));
        }
    }
    if t.trials.iter().all(equal) {
        text += &format!("\nEqual bit for bit each time: {}, checksum {}.\n", count(t.rows, "row"), t.checksum.short());
    }
    if t.quarantined > 0 {
        text +=
            &format!("It fails on {}, which would be put in quarantine: what is compared is without them.\n", count(t.quarantined as i64, "record"));
    }
    text
}

/// Carries out `transform outdated`.
pub(super) fn outdated(dataset: Option<String>, cx: &Context) -> Result<Answer, Failure> {
    let all = cx.open()?.versions_of(dataset.as_deref())?;
    let rows = |d: &DatasetVersions| {
        let made = d.made_by.iter().map(|m| json!({ "transform": m.transform, "digest": m.digest, "declared": m.declared, "partitions": m.partitions, "first": m.first, "last": m.last }));
        json!({ "dataset": d.dataset, "declared": d.declared.to_string(), "registered": d.registered, "outdated": d.is_outdated(),
            "newer": d.newer.as_ref().map(ToString::to_string), "made_by": made.collect::<Vec<_>>(), "commands": d.commands() })
    };
    let object = json!({ "datasets": all.iter().map(rows).collect::<Vec<_>>() });
    Ok(Answer::new(outdated_text(&all), object))
}

fn outdated_text(all: &[DatasetVersions]) -> String {
    let mut table = Table::new(&["dataset", "declared", "made by", ">partitions", "first", "last"]);
    let mut below = String::new();
    for d in all {
        for m in d.made_by.iter().filter(|m| !m.declared) {
            table.row([d.dataset.clone(), d.declared.to_string(), m.transform.clone(), m.partitions.to_string(), m.first.clone(), m.last.clone()]);
        }
        for command in d.commands() {
            below += &format!("`{command}` makes them again with {}.\n", d.declared);
        }
        if let (Some(m), true) = (d.made_by.iter().find(|m| !m.declared), d.registered) {
            let diff = format!("restitch diff {} --transform {} --start {} --end {}", d.dataset, d.declared, m.first, m.last);
            below += &format!("`{diff}` shows first what would change.\n");
        }
        if !d.registered {
            below += &format!("{} declares {}, which is not registered: `restitch transform add FILE`.\n", d.dataset, d.declared);
        }
        if let Some(newer) = &d.newer {
            below += &format!("{newer} is registered, and {} declares {}.\n", d.dataset, d.declared);
        }
    }
    let text = if table.is_empty() { "All that is published was made by the transforms that are declared.\n".into() } else { table.text() };
    if below.is_empty() { text } else { format!("{text}\n{below}") }
}
