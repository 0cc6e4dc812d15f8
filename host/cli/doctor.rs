//! `doctor`: is every byte what it was, and does the catalog hold together?

use super::{
    Context,
    output::{Answer, bytes, count},
    report::Failure,
};
use crate::{doctor::Report, pipeline::Error};
use serde_json::json;

/// What was typed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Compare sizes only; bytes are not read
    #[arg(long)]
    quick: bool,
}

/// Carries it out.
pub(super) fn run(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let report = cx.open()?.doctor(args.quick)?;
    let failure = (!report.healthy()).then(|| Error::Unhealthy { problems: report.bad.len() + report.broken.len() }.into());
    let bad: Vec<_> = report.bad.iter().map(|b| json!({ "path": b.path, "problem": b.to_string() })).collect();
    let orphans: Vec<_> = report.orphans.iter().map(|(path, bytes)| json!({ "path": path, "bytes": bytes })).collect();
    let object = json!({ "healthy": report.healthy(), "files": report.files.0, "bytes": report.files.1, "without_hash": report.foreign, "hashed": !args.quick,
        "bad_files": bad, "broken": report.broken, "orphans": orphans, "notes": report.notes });
    Ok(Answer { failure, ..Answer::new(text(&report, args.quick), object) })
}

fn text(r: &Report, quick: bool) -> String {
    let how = if quick { "size" } else { "size and SHA-256" };
    let mut text = format!("{} ({}), {how} compared with what was recorded.\n", count(r.files.0 as i64, "file"), bytes(r.files.1 as i64));
    if r.foreign > 0 {
        text += &format!("{} of other tools: no hash on record, sizes compared.\n", count(r.foreign as i64, "file"));
    }
    for line in r.bad.iter().map(ToString::to_string).chain(r.broken.iter().cloned()) {
        text += &format!("  ✗ {line}\n");
    }
    if !r.orphans.is_empty() {
        let size = r.orphans.iter().map(|o| o.1).sum::<u64>();
        text +=
            &format!("{} that nothing refers to ({}); another tool may be about to:\n", count(r.orphans.len() as i64, "file"), bytes(size as i64));
        r.orphans.iter().take(20).for_each(|(path, _)| text += &format!("  {path}\n"));
        if r.orphans.len() > 20 {
            text += &format!("  and {} more\n", r.orphans.len() - 20);
        }
    }
    r.notes.iter().for_each(|note| text += &format!("Note: {note}.\n"));
    text + if r.healthy() { "Healthy.\n" } else { "" }
}
