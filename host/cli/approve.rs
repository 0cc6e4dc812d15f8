//! `approve`: somebody else's word for a run that waits for it.

use super::{Context, backfill::result_text, output::Answer, report::Failure, show::manifest_json};
use crate::id::RunId;

/// What was typed for `approve`.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run that waits, like r7
    run: RunId,
    /// Why it may be published, for the manifest
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Only give the word; `restitch publish` uses it, until it expires
    #[arg(long)]
    later: bool,
}

/// Carries it out.
pub(super) fn run(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let manifest = cx.open()?.approve(args.run, &args.reason, args.later)?;
    let text = match args.later {
        true => format!("Approved {0}; `restitch publish {0}` makes it visible.\n", args.run),
        false => format!("Approved {}.\n{}", args.run, result_text(&manifest)),
    };
    Ok(Answer::lasting(text, cx.object(|| manifest_json(&manifest))))
}
