//! `run`, `repair` and `backfill`: one request with three names, which say what it is for.
//! Never starts before the resolved window is shown.

use super::{
    Context,
    output::{Answer, Table, short, talk},
    plan::{plan_json, plan_text, touches, window_text},
    progress::{Meter, Unit},
    report::Failure,
    show::{checks_text, manifest_json, quarantine_text},
};
use crate::{
    config::TransformRef,
    id::SnapshotId,
    manifest::{Kind, Manifest, Mode, PartitionRecord, Status, Validation, WriteMode},
    pipeline::{Error, Outcome, RunRequest, RunResult, Step, Workshop},
    plan::Reason,
};
use clap::ValueEnum;
use serde_json::json;

/// What was typed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The dataset
    dataset: String,
    /// Then refresh what is made of it, dataset by dataset, each after its inputs
    #[arg(long)]
    cascade: bool,
    #[command(flatten)]
    rest: RunArgs,
}

/// How a run was asked for.
#[derive(clap::Args, Debug)]
pub struct RunArgs {
    /// First date (or partition, or instant) of the window; a partition without --end is the whole window
    #[arg(long, value_name = "DATE")]
    start: Option<String>,
    /// Last date (or partition), included; an instant is excluded; a partition without --start is the whole window
    #[arg(long, value_name = "DATE")]
    end: Option<String>,
    /// Only partitions for which this holds
    #[arg(long, value_enum)]
    only: Option<Only>,
    /// Another transform or version than declared, as NAME@VERSION
    #[arg(long, value_name = "NAME@VERSION", value_parser = transform)]
    transform: Option<TransformRef>,
    /// How far to go, and how to write
    #[arg(long, value_enum, default_value = "overwrite")]
    mode: ModeArg,
    /// Compute and check, keep nothing; with --mode, as that mode would do it
    #[arg(long, conflicts_with = "stage")]
    dry_run: bool,
    /// Compute and check, publish later; with --mode, as that mode does it
    #[arg(long)]
    stage: bool,
    /// What a failed check does
    #[arg(long, value_enum, default_value = "block")]
    validate: ValidateArg,
    /// SQL condition on the input's records
    #[arg(long, value_name = "SQL")]
    filter: Option<String>,
    /// Read the warehouse as of this snapshot
    #[arg(long, value_name = "N")]
    snapshot: Option<i64>,
    /// Why, for the manifest
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Read payloads of sources that mask columns: your word for it, with the reason, in the manifest
    #[arg(long, value_name = "REASON")]
    grant_payload: Option<String>,
    /// The seed that the transform sees
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// A parameter of the transform, as NAME=VALUE
    #[arg(long = "param", value_name = "NAME=VALUE", value_parser = parameter)]
    params: Vec<(String, String)>,
    /// Refuse a plan with more partitions
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    max_partitions: u64,
    /// Refuse a plan that reads more
    #[arg(long, value_name = "SIZE", value_parser = super::size)]
    max_bytes: Option<u64>,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum Only {
    Missing,
    Dirty,
    Stale,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum ModeArg {
    DryRun,
    Stage,
    Overwrite,
    Merge,
    DeleteInsert,
}

#[derive(ValueEnum, Clone, Copy, Debug)]
enum ValidateArg {
    Block,
    Warn,
    Off,
}

fn transform(text: &str) -> Result<TransformRef, String> {
    TransformRef::parse(text).ok_or_else(|| format!("{text:?} is not NAME@VERSION"))
}

pub(super) fn parameter(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
    Ok((name.into(), value.into()))
}

impl RunArgs {
    pub(super) fn has_window(&self) -> bool {
        self.start.is_some() || self.end.is_some()
    }

    /// Returns what is asked of the library.
    pub(super) fn request(self, kind: Kind, dataset: String) -> Result<RunRequest, Failure> {
        let mode = match (self.dry_run, self.stage, self.mode) {
            (true, ..) | (_, _, ModeArg::DryRun) => Mode::DryRun,
            (_, true, _) | (_, _, ModeArg::Stage) => Mode::Stage,
            (_, _, ModeArg::Overwrite) => Mode::Overwrite,
            (_, _, ModeArg::Merge) => Mode::Merge,
            (_, _, ModeArg::DeleteInsert) => Mode::DeleteInsert,
        };
        let write = match self.mode {
            ModeArg::DryRun | ModeArg::Stage | ModeArg::Overwrite => WriteMode::Overwrite,
            ModeArg::Merge => WriteMode::Merge,
            ModeArg::DeleteInsert => WriteMode::DeleteInsert,
        };
        let validation = match self.validate {
            ValidateArg::Block => Validation::Block,
            ValidateArg::Warn => Validation::Warn,
            ValidateArg::Off => Validation::Off,
        };
        let only = self.only.map(|o| match o {
            Only::Missing => Reason::Missing,
            Only::Dirty => Reason::Dirty,
            Only::Stale => Reason::Stale,
        });
        let (start, end) = (self.start, self.end);
        let snapshot = self.snapshot.map(SnapshotId);
        let (filter, reason, params) = (self.filter, self.reason, self.params);
        let (partitions_max, bytes_max) = (Some(self.max_partitions), self.max_bytes);
        Ok(RunRequest {
            kind,
            dataset,
            start,
            end,
            only,
            transform: self.transform,
            mode,
            write,
            validation,
            filter,
            snapshot,
            reason,
            grant_payload: self.grant_payload,
            seed: self.seed,
            params,
            partitions_max,
            bytes_max,
        })
    }
}

/// Carries it out.
pub(super) fn run(kind: Kind, args: Args, cx: &Context) -> Result<Answer, Failure> {
    let dataset = args.dataset.clone();
    let request = args.rest.request(kind, args.dataset)?;
    if args.cascade && matches!(request.mode, Mode::DryRun | Mode::Stage) {
        let message = "a cascade goes on from what is published, and a dry run or a staged run publishes nothing";
        return Err(Failure::usage(message, Some("leave --cascade out; `restitch publish`, then `restitch run … --cascade`")));
    }
    let mut workshop = cx.open()?;
    if !args.cascade {
        return one(&dataset, &request, &mut workshop, cx);
    }
    let named = one(&dataset, &request, &mut workshop, cx);
    let done = match &named {
        Ok(answer) => answer.failure.is_none(),
        // Nothing was left to do without somebody's word: what was published stands, and is gone on from.
        Err(Failure::Pipeline(e)) => matches!(**e, Error::Approval { .. }),
        Err(_) => false,
    };
    let steps = workshop.cascade(&request, done, &mut |dataset, plan| {
        talk(&format!("run {dataset}: {}", window_text(plan)));
        Box::new(Meter::new(format!("run {dataset}"), Unit::Partitions, plan.partition_count()))
    });
    cascaded(named, steps, &mut workshop, cx)
}

/// Puts what became of the datasets downstream behind the answer of the run that was named. The first failure is the answer's.
fn cascaded(named: Result<Answer, Failure>, steps: Vec<Step>, workshop: &mut Workshop, cx: &Context) -> Result<Answer, Failure> {
    let mut answer = named.unwrap_or_else(|failure| Answer::failed(failure, json!({})));
    let mut list = Vec::new();
    for Step { dataset, outcome: came } in steps {
        let mut object = match came {
            Outcome::Left { behind } => {
                answer.text += &format!("\nNot run: {dataset}, because {behind} is not up to date.\n");
                json!({ "outcome": "not run", "behind": behind })
            }
            Outcome::Done(result) if result.manifest.is_none() => {
                let gaps = &result.plan.gaps;
                answer.text +=
                    &if gaps.is_empty() { format!("\n{dataset} is up to date.\n") } else { format!("\n{dataset}: {}.\n", gaps.join("; ")) };
                json!({ "outcome": "up to date", "plan": plan_json(&result.plan) })
            }
            Outcome::Done(result) => {
                // What was said of the datasets before is not lost if this one cannot be told.
                let done = outcome(&dataset, Ok(*result), workshop, cx).unwrap_or_else(|f| Answer::failed(f, json!(null)));
                answer.text += &format!("\n{dataset}:\n{}", done.text);
                answer.failure = answer.failure.or(done.failure);
                answer.lasting |= done.lasting;
                json!({ "outcome": "published", "run": done.json })
            }
            Outcome::Failed(e) => {
                let said = e.to_string();
                let failed = outcome(&dataset, Err(*e), workshop, cx).unwrap_or_else(|f| Answer::failed(f, json!(null)));
                answer.text += &format!("\n{dataset}: {said}.\n{}", failed.text);
                answer.failure = answer.failure.or(failed.failure);
                json!({ "outcome": "failed", "error": said, "run": failed.json })
            }
        };
        object["dataset"] = json!(dataset);
        list.push(object);
    }
    answer.json["cascade"] = json!(list);
    Ok(answer)
}

/// Plans and carries out one request.
fn one(dataset: &str, request: &RunRequest, workshop: &mut Workshop, cx: &Context) -> Result<Answer, Failure> {
    let kind = request.kind;
    // What is shown is what is done.
    let bound = workshop.bind(request)?;
    let planned = bound.plan().map_err(Error::from)?;
    talk(&format!("{} {dataset}: {}", kind.name(), window_text(&planned)));
    touches(&planned).lines().for_each(talk);
    let notes = notes(workshop, dataset)?;
    notes.iter().for_each(|note| talk(&format!("note: {note}")));
    let meter = Meter::new(format!("{} {dataset}", kind.name()), Unit::Partitions, planned.partition_count());
    let result = workshop.carry_out(&bound, &meter);
    drop(meter);
    let mut answer = outcome(dataset, result, workshop, cx)?;
    answer.json["notes"] = json!(notes);
    Ok(answer)
}

/// Returns what is to be known of the records that a dataset is made of, in words.
pub(super) fn notes(workshop: &mut Workshop, dataset: &str) -> Result<Vec<String>, Failure> {
    Ok(workshop.in_clear(dataset)?.iter().map(ToString::to_string).collect())
}

/// Returns what came of a plan that was carried out.
pub(super) fn outcome(dataset: &str, result: Result<RunResult, Error>, workshop: &mut Workshop, cx: &Context) -> Result<Answer, Failure> {
    match result {
        Ok(done) => match done.manifest {
            None => {
                let object = json!({ "run": null, "plan": plan_json(&done.plan) });
                Ok(Answer::new(plan_text(dataset, &done.plan), object))
            }
            Some(manifest) => {
                let object = cx.object(|| {
                    let mut object = manifest_json(&manifest);
                    object["plan"] = plan_json(&done.plan);
                    object
                });
                Ok(Answer { lasting: manifest.status != Status::Done, ..Answer::new(result_text(&manifest), object) })
            }
        },
        // What was measured is worth seeing before the refusal.
        Err(e @ Error::Rejected { run, .. }) => {
            let manifest = workshop.show(run)?.row.manifest;
            Ok(Answer { failure: Some(e.into()), ..Answer::new(result_text(&manifest), cx.object(|| manifest_json(&manifest))) })
        }
        Err(e) => Err(e.into()),
    }
}

/// Returns what a run did, for people.
pub(super) fn result_text(m: &Manifest) -> String {
    let mut text = partitions_text(m);
    text += &quarantine_text(m);
    if !m.checks.is_empty() {
        text += &format!("\n{}", checks_text(&m.checks));
    }
    let run = m.run;
    text += &match (m.status, m.published_snapshot) {
        (Status::Published, Some(s)) => format!("\nPublished {run} as snapshot {s}: {}.\n{}", effect(m), others_text(m)),
        (Status::Staged, _) => format!("\nStaged {run}: `restitch publish {run}` makes it visible, `restitch discard {run}` throws it away.\n"),
        (Status::Done, _) => format!("\nDry run {run}: nothing was kept. It would be {}.\n", effect(m)),
        (Status::Rejected, _) if m.mode == Mode::DryRun => format!("\nRejected {run}, a dry run: nothing was kept.\n"),
        (Status::Rejected, _) => format!("\nRejected {run}: nothing was published.\n"),
        _ => String::new(),
    };
    m.gaps.iter().for_each(|g| text += &format!("\nNote: {g}\n"));
    text
}

fn effect(m: &Manifest) -> String {
    let sum = |f: fn(&PartitionRecord) -> Option<u64>| m.partitions.iter().filter_map(f).sum::<u64>();
    let rows = |n: u64| super::output::count(n, "row");
    let partitions = super::output::count(m.partitions.len() as i64, "partition");
    let kept = m.partitions.iter().filter(|p| p.kept).count();
    let kept = if kept > 0 { format!("; {} as before, not written anew", super::output::count(kept as i64, "partition")) } else { String::new() };
    let absent = m.partitions.iter().filter(|p| p.checksum.is_none()).count();
    let kept = if absent > 0 { format!("{kept}; {} not there before, and not now", super::output::count(absent as i64, "partition")) } else { kept };
    match m.recipe.write.mode() {
        WriteMode::Overwrite => {
            format!("{partitions}, {} added, {} removed, {} changed", rows(sum(|p| p.added)), sum(|p| p.removed), sum(|p| p.changed))
        }
        WriteMode::Merge => format!(
            "{partitions}, {} inserted, {} updated, {} unchanged, {} only in the target{kept}",
            rows(sum(|p| p.inserted)),
            sum(|p| p.updated),
            sum(|p| p.unchanged),
            sum(|p| p.target_only)
        ),
        WriteMode::DeleteInsert => format!(
            "{partitions}, {} of the window deleted, {} inserted, {} outside it left{kept}",
            rows(sum(|p| p.deleted)),
            sum(|p| p.inserted),
            sum(|p| p.target_only)
        ),
    }
}

/// Says that nothing else changed, and how that is known.
pub(super) fn others_text(m: &Manifest) -> String {
    match m.others {
        Some(o) if o.partitions > 0 => {
            let partitions = super::output::count(o.partitions as i64, "other partition");
            format!("{partitions} unchanged: checksum {} before and after.\n", short(Some(&o.checksum)))
        }
        _ => String::new(),
    }
}

/// The columns of a table of partitions that say what became of rows, for a way of writing.
type RowColumns = (&'static [&'static str], fn(&PartitionRecord) -> Vec<Option<u64>>);

fn row_columns(m: &Manifest) -> RowColumns {
    match m.recipe.write.mode() {
        WriteMode::Overwrite => (&[">added", ">removed", ">changed"], |p| vec![p.added, p.removed, p.changed]),
        WriteMode::Merge => (&[">inserted", ">updated", ">unchanged", ">target only"], |p| vec![p.inserted, p.updated, p.unchanged, p.target_only]),
        WriteMode::DeleteInsert => (&[">deleted", ">inserted", ">left"], |p| vec![p.deleted, p.inserted, p.target_only]),
    }
}

/// Returns the partitions of a run as a table.
pub(super) fn partitions_text(m: &Manifest) -> String {
    let (columns, counts) = row_columns(m);
    let mut head = vec!["partition", "because", ">records", ">late", ">duplicates", ">conflicts", ">moved", ">quarantined", ">rows"];
    head.extend(columns.iter().copied().chain(["checksum"]));
    let mut table = Table::new(&head);
    let some = |n: u64| if n == 0 { String::new() } else { n.to_string() };
    for p in &m.partitions {
        let checksum = p.checksum.map_or("not there".into(), |d| short(Some(&d)));
        let mut row = vec![p.partition.clone(), p.reason.clone(), some(p.records), some(p.late), some(p.duplicates), some(p.conflicts)];
        row.extend([some(p.moved), some(p.quarantined.len() as u64), p.rows.to_string()]);
        row.extend(counts(p).into_iter().map(|n| n.map_or(String::new(), some)));
        row.push(if p.kept { format!("{checksum} (as it was)") } else { checksum });
        table.row(row);
    }
    table.text()
}
