//! `plan`: what a run, repair or backfill would touch, and why. Nothing happens.

use super::{
    Context,
    backfill::{RunArgs, notes},
    output::{Answer, Table, bytes, count, event_json},
    report::Failure,
};
use crate::{
    manifest::{Kind, Mode, WriteMode},
    pipeline::Error,
    plan::{Plan, RAW_GONE, TAKEN},
};
use serde_json::{Value, json};
use std::path::PathBuf;

/// What was typed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// run, repair or backfill, and the dataset; the dataset alone plans a run, or with a window a backfill
    #[arg(value_name = "KIND|DATASET")]
    what: String,
    /// The dataset, behind a kind
    dataset: Option<String>,
    /// Save the plan, for `restitch apply FILE`
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    rest: RunArgs,
}

impl Args {
    /// Returns what is planned, and for which dataset.
    pub(super) fn kind_and_dataset(&self) -> Result<(Kind, String), Failure> {
        let Some(dataset) = &self.dataset else {
            let kind = if self.rest.has_window() { Kind::Backfill } else { Kind::Run };
            return Ok((kind, self.what.clone()));
        };
        let kind = match self.what.as_str() {
            "run" => Kind::Run,
            "repair" => Kind::Repair,
            "backfill" => Kind::Backfill,
            other => return Err(Failure::usage(format!("{other:?} cannot be planned"), Some("plan run, plan repair or plan backfill"))),
        };
        Ok((kind, dataset.clone()))
    }
}

/// Carries it out.
pub(super) fn run(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let (kind, dataset) = args.kind_and_dataset()?;
    let request = args.rest.request(kind, dataset.clone())?;
    let mut workshop = cx.open()?;
    let Some(file) = args.out else {
        let (notes, plan) = (notes(&mut workshop, &dataset)?, workshop.plan(&request)?);
        return Ok(Answer::new(plan_text(&dataset, &plan) + &notes_text(&notes), named(plan_json(&plan), &dataset, &notes)));
    };
    let (notes, bound) = (notes(&mut workshop, &dataset)?, workshop.bind(&request)?);
    let plan = bound.plan().map_err(Error::from)?;
    workshop.save_plan(&bound, &file)?;
    let mut object = named(plan_json(&plan), &dataset, &notes);
    let file = file.display().to_string();
    object["saved"] = json!({ "file": file, "digest": bound.digest() });
    let plan = plan_text(&dataset, &plan) + &notes_text(&notes);
    let text = format!("{plan}\nSaved in {file}: `restitch apply {file}` does exactly this.\n");
    Ok(Answer::new(text, object))
}

fn named(mut plan: Value, dataset: &str, notes: &[String]) -> Value {
    (plan["dataset"], plan["notes"]) = (json!(dataset), json!(notes));
    plan
}

fn notes_text(notes: &[String]) -> String {
    notes.iter().map(|note| format!("\nNote: {note}.\n")).collect()
}

fn write_name(write: WriteMode) -> &'static str {
    match write {
        WriteMode::Overwrite => Mode::Overwrite.name(),
        WriteMode::Merge => Mode::Merge.name(),
        WriteMode::DeleteInsert => Mode::DeleteInsert.name(),
    }
}

/// Returns the window of a plan in one line.
pub(super) fn window_text(plan: &Plan) -> String {
    let Some(window) = plan.window else { return "nothing is known of any partition".into() };
    let calendar = plan.calendar;
    let (first, last) = (calendar.at(window.start()), calendar.at(crate::time::EventTime(window.end().0 - 1)));
    format!("{} to {} by {} in {}: {window}", calendar.name(&first), calendar.name(&last), calendar.grain, calendar.zone)
}

/// Returns a plan for people.
pub(super) fn plan_text(dataset: &str, plan: &Plan) -> String {
    let mut text = format!("{} {dataset}, {}, reading snapshot {}\n\n", plan.kind.name(), window_text(plan), plan.input_snapshot);
    let mut table = Table::new(&["partitions", ">count", "because", ">records"]);
    for r in &plan.ranges {
        let (first, last) = (plan.calendar.name(&r.first), plan.calendar.name(&r.last));
        let name = if first == last { first } else { format!("{first} … {last}") };
        table.row([name, r.partitions.to_string(), r.reason.name().into(), r.records.to_string()]);
    }
    if table.is_empty() {
        text += "Nothing to do.\n";
    } else {
        let (partitions, records) = (count(plan.partition_count(), "partition"), count(plan.records(), "record"));
        text += &format!(
            "{}\n{partitions}, {records} from {} ({}).\n",
            table.text(),
            count(plan.files, if plan.downstream { "published partition" } else { "raw file" }),
            bytes(plan.bytes)
        );
    }
    if !plan.ranges.is_empty() {
        text += &touches(plan);
    }
    if !plan.stale.is_empty() {
        text += &format!("\nStale:\n  {}\n", plan.stale.join("\n  "));
    }
    if !plan.upstream.is_empty() {
        text += &format!("\nBefore it, what is published is not up to date:\n  {}\n", plan.upstream.join("\n  "));
    }
    if plan.up_to_date > 0 {
        text += &format!("{} up to date.\n", count(plan.up_to_date, "partition"));
    }
    if !plan.waiting.is_empty() {
        let late = if plan.waiting.iter().any(|w| w.tier == RAW_GONE) { "" } else { "late " };
        text += &format!("\nLeft alone, with {late}records waiting:\n");
        let mut table = Table::new(&["partition", "tier", ">records", "what it needs"]);
        for w in &plan.waiting {
            let need = match w.tier.as_str() {
                RAW_GONE | "frozen" => String::new(),
                "approval" | TAKEN => format!("restitch backfill {dataset} --start {0} --end {0}", w.partition),
                _ => format!("restitch repair {dataset}"),
            };
            table.row([w.partition.clone(), w.tier.clone(), w.records.to_string(), need]);
        }
        text += &table.text();
    }
    plan.gaps.iter().for_each(|g| text += &format!("\nNote: {g}\n"));
    text
}

/// What a merge or a delete-insert reads of what is published, and what it leaves. An overwrite replaces its partitions, as ever.
pub(super) fn touches(plan: &Plan) -> String {
    let s = plan.standing;
    let there = format!("{} in {} ({})", count(s.rows, "row"), count(s.partitions as i64, "partition"), bytes(s.bytes));
    match (plan.write, plan.window) {
        (WriteMode::Merge, _) => {
            format!(
                "Merge: published are {there}. A row with the key of one of the run's is replaced, new keys are added, and all other rows stay.\n"
            )
        }
        (WriteMode::DeleteInsert, Some(w)) => {
            format!(
                "Delete-insert: published are {there}. Of these, rows with a time in {w} go and the run's take their place; all other rows stay.\n"
            )
        }
        _ => String::new(),
    }
}

/// Returns a plan for programs.
pub(super) fn plan_json(plan: &Plan) -> Value {
    let ranges: Vec<Value> = plan
        .ranges
        .iter()
        .map(|r| {
            json!({ "first": plan.calendar.name(&r.first), "last": plan.calendar.name(&r.last), "partitions": r.partitions, "reason": r.reason.name(), "records": r.records,
                "start": event_json(r.first.start()), "end": event_json(r.last.end()) })
        })
        .collect();
    let waiting: Vec<Value> = plan.waiting.iter().map(|w| json!({ "partition": w.partition, "tier": w.tier, "records": w.records })).collect();
    json!({ "kind": plan.kind.name(), "window": plan.window.map(|w| json!({ "start": event_json(w.start()), "end": event_json(w.end()) })),
        "grain": plan.calendar.grain.to_string(), "time_zone": plan.calendar.zone.name(), "input_snapshot": plan.input_snapshot, "ranges": ranges,
        "partitions": plan.partition_count(), "records": plan.records(), "files": plan.files, "bytes": plan.bytes, "up_to_date": plan.up_to_date, "waiting": waiting, "gaps": plan.gaps, "stale": plan.stale, "upstream": plan.upstream,
        "write": write_name(plan.write), "standing": plan.standing })
}
