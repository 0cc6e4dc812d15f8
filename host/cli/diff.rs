//! `diff`: another version of a transform against what is published, or a run against what stood before it.

use super::{
    Context,
    output::{Answer, Table, clean, count, rows_text, talk},
    progress::{Meter, Unit},
    report::Failure,
};
use crate::{
    config::TransformRef,
    id::RunId,
    pipeline::{Diff, DiffRequest},
    query::rows_json,
};
use serde_json::{Value, json};

/// What was typed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// A dataset, with --transform and --start; or a run, like r7
    #[arg(value_name = "DATASET|RUN")]
    what: String,
    /// The version to try on what is published, as NAME@VERSION
    #[arg(long, value_name = "NAME@VERSION", value_parser = super::transform::reference)]
    transform: Option<TransformRef>,
    /// First date (or partition, or instant) of the window
    #[arg(long, value_name = "DATE")]
    start: Option<String>,
    /// Last date (or partition), included; an instant is excluded [default: that of --start]
    #[arg(long, value_name = "DATE")]
    end: Option<String>,
    /// A parameter of the transform, as NAME=VALUE, instead of what the published rows were made with
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = super::backfill::parameter)]
    params: Vec<(String, String)>,
    /// Read payloads of masked sources, and say why: your word stands for it
    #[arg(long, value_name = "REASON")]
    grant_payload: Option<String>,
    /// Show so many rows that differ
    #[arg(long, value_name = "N", default_value_t = 10)]
    rows: usize,
}

/// Carries it out. The exit code is 0 whether or not something differs.
pub(super) fn run(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let mut workshop = cx.open()?;
    let names_run = args.what.parse::<RunId>().ok().filter(|_| !workshop.project.datasets.contains_key(&args.what));
    let diff = match (names_run, args.transform, args.start) {
        (Some(run), None, None) if args.end.is_none() && args.params.is_empty() => workshop.diff_run(run, args.rows)?,
        (Some(run), ..) => {
            let hint = format!("`restitch diff {run}` compares it with what stood before it");
            return Err(Failure::usage("a run has its transform and its window already", Some(&hint)));
        }
        (None, Some(transform), Some(start)) => {
            let request = DiffRequest {
                dataset: args.what.clone(),
                transform,
                start,
                end: args.end,
                grant_payload: args.grant_payload,
                params: args.params,
                rows: args.rows,
            };
            talk(&format!("diff {}: nothing will be published", args.what));
            let meter = Meter::new(format!("diff {}", args.what), Unit::Partitions, 0);
            let diff = workshop.diff_versions(&request, &meter);
            drop(meter);
            diff?
        }
        (None, ..) => {
            workshop.project.dataset(&args.what).map_err(crate::pipeline::Error::from)?;
            let hint = format!("restitch diff {} --transform NAME@VERSION --start DATE --end DATE", args.what);
            return Err(Failure::usage("a dataset is compared with another version of its transform, in a window", Some(&hint)));
        }
    };
    Ok(Answer::new(text(&diff), object(&diff)))
}

fn text(diff: &Diff) -> String {
    let total = diff.total();
    let mut text = format!("{}: {} against {}\n\n", diff.dataset, diff.now, diff.before);
    let mut table = Table::new(&["partition", ">rows before", ">rows now", ">added", ">removed", ">changed", ">unchanged"]);
    for p in &diff.partitions {
        let d = p.difference;
        let numbers = [p.rows_before, p.rows_now, d.added, d.removed, d.changed, d.unchanged].map(|n| n.to_string());
        table.row([p.partition.clone()].into_iter().chain(numbers));
    }
    text += &table.text();
    let differing = total.added + total.removed + total.changed;
    if differing > 0 {
        let mut table = Table::new(&["column", ">changed", ">sum before", ">sum now"]);
        for c in &diff.columns {
            let (before, now) = c.sums.clone().unwrap_or_default();
            table.row([c.column.clone(), c.changed.map_or(String::new(), |n| n.to_string()), before, now]);
        }
        let shown = diff.rows.rows() as u64;
        let which = if shown < differing { format!("The first {shown} of {differing} rows that differ") } else { "The rows that differ".into() };
        text += &format!("\n{}\n{which}:\n{}", table.text(), rows_text(&diff.rows));
    }
    diff.notes.iter().for_each(|n| text += &format!("\nNote: {}\n", clean(n)));
    let partitions = count(diff.partitions.len() as i64, "partition");
    let (added, removed, changed) = (count(total.added, "row"), total.removed, total.changed);
    text + &format!("\n{partitions}: {added} added, {removed} removed, {changed} changed, {} unchanged. Nothing was published.\n", total.unchanged)
}

fn object(diff: &Diff) -> Value {
    let total = diff.total();
    let counts = |d: &crate::query::Difference| json!({ "added": d.added, "removed": d.removed, "changed": d.changed, "unchanged": d.unchanged });
    let partition = |p: &crate::pipeline::PartitionDiff| {
        let mut object = counts(&p.difference);
        object["partition"] = json!(p.partition);
        (object["rows_before"], object["rows_now"]) = (json!(p.rows_before), json!(p.rows_now));
        object["input_snapshot"] = json!(p.input_snapshot);
        object
    };
    let column = |c: &crate::query::ColumnChange| {
        let (before, now) = (c.sums.as_ref().map(|s| &s.0), c.sums.as_ref().map(|s| &s.1));
        json!({ "column": c.column, "changed": c.changed, "sum_before": before, "sum_now": now })
    };
    json!({ "dataset": diff.dataset, "before": diff.before, "now": diff.now, "key": diff.key, "total": counts(&total),
        "partitions": diff.partitions.iter().map(partition).collect::<Vec<_>>(), "columns": diff.columns.iter().map(column).collect::<Vec<_>>(),
        "rows": rows_json(&diff.rows), "notes": diff.notes })
}
