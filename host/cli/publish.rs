//! `publish`, `discard` and `rollback`: what becomes of a run that is there.

use super::{
    Context,
    backfill::{others_text, partitions_text, result_text},
    output::{Answer, count},
    report::Failure,
    show::manifest_json,
};
use crate::{
    id::RunId,
    manifest::Manifest,
    pipeline::{RollbackRequest, RolledBack},
};
use serde_json::json;

/// A run that was named.
#[derive(clap::Args, Debug)]
pub struct RunArg {
    /// The run, like r7
    run: RunId,
}

/// What was typed for `publish`.
#[derive(clap::Args, Debug)]
pub struct PublishArgs {
    /// The run, like r7; several are published in one transaction, or none of them
    #[arg(required = true, value_name = "RUN")]
    runs: Vec<RunId>,
}

/// What was typed for `rollback`.
#[derive(clap::Args, Debug)]
pub struct RollbackArgs {
    /// The run to undo, like r7
    run: RunId,
    /// Only this partition of it, like 2026-05-01; can be given several times
    #[arg(long = "partition", value_name = "NAME", conflicts_with_all = ["start", "end"])]
    partitions: Vec<String>,
    /// Only its partitions from this date (or partition, or instant) on
    #[arg(long, value_name = "DATE")]
    start: Option<String>,
    /// Up to this date (or partition), included; an instant is excluded [default: that of --start]
    #[arg(long, value_name = "DATE", requires = "start")]
    end: Option<String>,
    /// Undo it even where later runs have replaced its partitions
    #[arg(long)]
    force: bool,
    /// Why, for the manifest
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
}

/// Carries out `publish`.
pub(super) fn publish(args: PublishArgs, cx: &Context) -> Result<Answer, Failure> {
    if args.runs.len() > 1 {
        let manifests = cx.open()?.publish_together(&args.runs)?;
        let part = |m: &Manifest| format!("{}:\n{}", m.recipe.dataset, result_text(m));
        let text = manifests.iter().map(part).collect::<Vec<_>>().join("\n");
        let snapshot = manifests.first().and_then(|m| m.published_snapshot);
        let object = cx.object(|| json!({ "published_snapshot": snapshot, "runs": manifests.iter().map(manifest_json).collect::<Vec<_>>() }));
        return Ok(Answer::lasting(text, object));
    }
    let manifest = cx.open()?.publish(args.runs[0])?;
    Ok(Answer::lasting(result_text(&manifest), cx.object(|| manifest_json(&manifest))))
}

/// Carries out `discard`.
pub(super) fn discard(args: RunArg, cx: &Context) -> Result<Answer, Failure> {
    let manifest = cx.open()?.discard(args.run)?;
    Ok(Answer::lasting(format!("Discarded {}: its staged rows are gone; nothing was published.\n", args.run), cx.object(|| manifest_json(&manifest))))
}

/// Carries out `rollback`.
pub(super) fn rollback(args: RollbackArgs, cx: &Context) -> Result<Answer, Failure> {
    let window = args.start.map(|start| (start.clone(), args.end.unwrap_or(start)));
    let request = RollbackRequest { run: args.run, partitions: args.partitions, window, force: args.force, reason: args.reason };
    let RolledBack { manifest, left, back_already } = cx.open()?.roll_back(&request)?;
    let snapshot = manifest.published_snapshot.map_or(String::new(), |s| format!(" as snapshot {s}"));
    let mut text = format!(
        "{}\nRolled back {}: {} restored{snapshot} by {}.\n",
        partitions_text(&manifest),
        args.run,
        count(manifest.partitions.len() as i64, "partition"),
        manifest.run
    );
    if left > 0 {
        text += &format!("Left alone: {} of {}.\n{}", count(left as i64, "other partition"), args.run, others_text(&manifest));
    }
    for (partition, by) in &back_already {
        let how = by.map_or("not there".into(), |run| format!("given back by {run}"));
        text += &format!("{partition} was passed over: it is as it was before {} already ({how}).\n", args.run);
    }
    let object = cx.object(|| {
        let mut object = manifest_json(&manifest);
        object["left"] = json!(left);
        object["back_already"] = json!(back_already.iter().map(|(p, by)| json!({ "partition": p, "by": by })).collect::<Vec<_>>());
        object
    });
    Ok(Answer::lasting(text, object))
}
