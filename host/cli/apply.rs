//! `apply`: a plan that was saved is carried out exactly as it is, or refused.
//! Never plans: the clock, restitch.toml's recipe and new records do not change what is done.

use super::{
    Context,
    backfill::{notes, outcome},
    output::{Answer, count, talk},
    plan::{touches, window_text},
    progress::{Meter, Unit},
    report::Failure,
};
use crate::{pipeline::Error, plan::BoundPlan, store};
use std::path::PathBuf;

/// What was typed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The file that `restitch plan … -o FILE` wrote
    plan: PathBuf,
}

/// Carries it out.
pub(super) fn run(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let file = args.plan.display().to_string();
    let text = store::read_text(&args.plan)?;
    let bound = BoundPlan::parse(&text).map_err(|source| Error::PlanFile { file: file.clone(), source })?;
    let planned = bound.plan().map_err(|source| Error::PlanFile { file: file.clone(), source })?;
    let dataset = bound.recipe.dataset.clone();
    let mut workshop = cx.open()?;
    talk(&format!("{} {dataset}, as planned by {} at {}: {}", bound.kind.name(), bound.planned_by, bound.planned_at, window_text(&planned)));
    touches(&planned).lines().for_each(talk);
    match workshop.come_since(&bound)? {
        0 => {}
        n => talk(&format!("note: {} came for these partitions since; the plan leaves them out", count(n, "record"))),
    }
    notes(&mut workshop, &dataset)?.iter().for_each(|note| talk(&format!("note: {note}")));
    let meter = Meter::new(format!("apply {file}"), Unit::Partitions, planned.partition_count());
    let result = workshop.apply(&bound, &meter);
    drop(meter);
    outcome(&dataset, result, &mut workshop, cx)
}
