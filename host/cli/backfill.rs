//! `run`, `repair` and `backfill`: one request with three names, which say what it is for.
//! Never starts before the resolved window is shown.

use super::{
    Context,
    output::{Answer, Table, short, talk},
    plan::{plan_json, plan_text, window_text},
    progress::{Meter, Unit},
    report::Failure,
    show::{checks_text, manifest_json, quarantine_text},
};
use crate::{
    config::TransformRef,
    id::SnapshotId,
    manifest::{Kind, Manifest, Mode, Status, Validation},
    pipeline::{Error, RunRequest, RunResult, Workshop},
    plan::Reason,
};
use clap::ValueEnum;
use serde_json::json;

/// What was typed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The dataset
    dataset: String,
    #[command(flatten)]
    rest: RunArgs,
}

/// How a run was asked for.
#[derive(clap::Args, Debug)]
pub struct RunArgs {
    /// First date (or partition, or instant) of the window
    #[arg(long, value_name = "DATE")]
    start: Option<String>,
    /// Last date (or partition), included; an instant is excluded
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
    /// Compute and check, keep nothing: --mode dry-run
    #[arg(long, conflicts_with_all = ["mode", "stage"])]
    dry_run: bool,
    /// Compute and check, publish later: --mode stage
    #[arg(long, conflicts_with = "mode")]
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

fn parameter(text: &str) -> Result<(String, String), String> {
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
            _ => Mode::Overwrite,
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
    let mut workshop = cx.open()?;
    // What is shown is what is done.
    let bound = workshop.bind(&request)?;
    let planned = bound.plan().map_err(Error::from)?;
    talk(&format!("{} {dataset}: {}", kind.name(), window_text(&planned)));
    let meter = Meter::new(format!("{} {dataset}", kind.name()), Unit::Partitions, planned.partition_count());
    let result = workshop.carry_out(&bound, &meter);
    drop(meter);
    outcome(&dataset, result, &mut workshop)
}

/// Returns what came of a plan that was carried out.
pub(super) fn outcome(dataset: &str, result: Result<RunResult, Error>, workshop: &mut Workshop) -> Result<Answer, Failure> {
    match result {
        Ok(done) => match done.manifest {
            None => {
                let object = json!({ "run": null, "plan": plan_json(&done.plan) });
                Ok(Answer::new(plan_text(dataset, &done.plan), object))
            }
            Some(manifest) => {
                let mut object = manifest_json(&manifest);
                object["plan"] = plan_json(&done.plan);
                Ok(Answer::new(result_text(&manifest), object))
            }
        },
        // What was measured is worth seeing before the refusal.
        Err(e @ Error::Rejected { run, .. }) => {
            let manifest = workshop.show(run)?.row.manifest;
            Ok(Answer { text: result_text(&manifest), json: manifest_json(&manifest), failure: Some(e.into()) })
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
        (Status::Published, Some(s)) => format!("\nPublished {run} as snapshot {s}: {}.\n", effect(m)),
        (Status::Staged, _) => format!("\nStaged {run}: `restitch publish {run}` makes it visible, `restitch discard {run}` throws it away.\n"),
        (Status::Done, _) => format!("\nDry run {run}: nothing was kept. It would be {}.\n", effect(m)),
        (Status::Rejected, _) => format!("\nRejected {run}: nothing was published.\n"),
        _ => String::new(),
    };
    text
}

fn effect(m: &Manifest) -> String {
    let sum = |f: fn(&crate::manifest::PartitionRecord) -> Option<u64>| m.partitions.iter().filter_map(f).sum::<u64>();
    let partitions = super::output::count(m.partitions.len() as i64, "partition");
    format!("{partitions}, {} added, {} removed, {} changed", super::output::count(sum(|p| p.added), "row"), sum(|p| p.removed), sum(|p| p.changed))
}

/// Returns the partitions of a run as a table.
pub(super) fn partitions_text(m: &Manifest) -> String {
    let mut table = Table::new(&[
        "partition",
        "because",
        ">records",
        ">late",
        ">duplicates",
        ">conflicts",
        ">moved",
        ">quarantined",
        ">rows",
        ">added",
        ">removed",
        ">changed",
        "checksum",
    ]);
    let some = |n: u64| if n == 0 { String::new() } else { n.to_string() };
    let opt = |n: Option<u64>| n.map_or(String::new(), some);
    for p in &m.partitions {
        let checksum = p.checksum.map_or("not there".into(), |d| short(Some(&d)));
        table.row([
            p.partition.clone(),
            p.reason.clone(),
            some(p.records),
            some(p.late),
            some(p.duplicates),
            some(p.conflicts),
            some(p.moved),
            some(p.quarantined.len() as u64),
            p.rows.to_string(),
            opt(p.added),
            opt(p.removed),
            opt(p.changed),
            checksum,
        ]);
    }
    table.text()
}
