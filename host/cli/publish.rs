//! `publish`, `discard` and `rollback`: what becomes of a run that is there.

use super::{
    Context,
    backfill::{partitions_text, result_text},
    output::Answer,
    report::Failure,
    show::manifest_json,
};
use crate::{id::RunId, manifest::Manifest};
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
        let object = json!({ "published_snapshot": snapshot, "runs": manifests.iter().map(manifest_json).collect::<Vec<_>>() });
        return Ok(Answer::new(text, object));
    }
    let manifest = cx.open()?.publish(args.runs[0])?;
    Ok(Answer::new(result_text(&manifest), manifest_json(&manifest)))
}

/// Carries out `discard`.
pub(super) fn discard(args: RunArg, cx: &Context) -> Result<Answer, Failure> {
    let manifest = cx.open()?.discard(args.run)?;
    Ok(Answer::new(format!("Discarded {}: its staged rows are gone; nothing was published.\n", args.run), manifest_json(&manifest)))
}

/// Carries out `rollback`.
pub(super) fn rollback(args: RollbackArgs, cx: &Context) -> Result<Answer, Failure> {
    let manifest = cx.open()?.rollback(args.run, args.force, args.reason)?;
    let snapshot = manifest.published_snapshot.map_or(String::new(), |s| format!(" as snapshot {s}"));
    let text = format!(
        "{}\nRolled back {}: {} restored{snapshot} by {}.\n",
        partitions_text(&manifest),
        args.run,
        super::output::count(manifest.partitions.len() as i64, "partition"),
        manifest.run
    );
    Ok(Answer::new(text, manifest_json(&manifest)))
}
