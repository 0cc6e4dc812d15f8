//! `gc`: what nobody needs any more, shown first, then removed.
//! Never removes without a yes: by --yes, or typed at a terminal.

use super::{
    Context,
    output::{Answer, Table, bytes, count, talk},
    report::Failure,
};
use crate::{
    catalog::RemovedFile,
    gc::{Collected, Garbage, Kept, StagedRun},
};
use serde_json::{Value, json};
use std::io::IsTerminal;

/// What was typed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// Versions of each published partition that stay, the current one among them [default: keep_versions of restitch.toml, or all]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    keep: Option<u64>,
    /// Only show what would be removed
    #[arg(long)]
    dry_run: bool,
    /// Remove it without asking
    #[arg(long, conflicts_with = "dry_run")]
    yes: bool,
}

/// Carries out `gc`.
pub(super) fn run(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let mut workshop = cx.open()?;
    let shown = workshop.garbage(args.keep)?;
    if args.dry_run || shown.is_empty() {
        let text = garbage_text(&shown) + if shown.is_empty() { "" } else { "\nNothing was removed: a dry run.\n" };
        return Ok(Answer::new(text, object(&shown, None)));
    }
    if !args.yes {
        let refused = Failure::usage("nothing was removed: it was not agreed to", Some("--yes removes it without asking; --dry-run only shows it"));
        if !std::io::stdin().is_terminal() || !super::at_terminal() {
            return Ok(Answer { failure: Some(refused), ..Answer::new(garbage_text(&shown), object(&shown, None)) });
        }
        talk(&garbage_text(&shown));
        talk("Remove it for ever? [y/N]");
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).ok();
        if !matches!(answer.trim(), "y" | "Y" | "yes") {
            return Err(refused);
        }
    }
    let done = workshop.collect(args.keep, &shown)?;
    let mut text = garbage_text(&done.garbage);
    let g = &done.garbage;
    let size: i64 = g.files.iter().map(|f| f.bytes).chain(g.left.iter().map(|l| l.2)).chain(g.staged.iter().map(|s| s.bytes as i64)).sum();
    let files = g.files.len() + g.left.len() + g.staged.iter().map(|s| s.files as usize).sum::<usize>();
    text += &format!("\nRemoved {}, {}.", count(files as i64, "file"), bytes(size));
    if let Some(s) = done.snapshot {
        text += &format!(" The warehouse is at snapshot {s}.");
    }
    if !g.staged.is_empty() {
        text += &format!(" Discarded {}: their manifests stay.", g.staged.iter().map(|s| s.run.to_string()).collect::<Vec<_>>().join(", "));
    }
    text += "\n";
    if done.waiting > 0 {
        text += &format!("Somebody is reading: the bytes of {} wait for the next gc.\n", count(done.waiting as i64, "file"));
    }
    let json = object(&done.garbage, Some(&done));
    Ok(Answer::lasting(text, json))
}

/// One line of the table: files of one kind that go for one reason.
fn lines(files: &[RemovedFile]) -> Vec<(String, &RemovedFile, u64, i64, i64)> {
    let mut lines: Vec<(String, &RemovedFile, u64, i64, i64)> = Vec::new();
    for f in files {
        let what = match (&f.partition, f.run) {
            (Some(p), Some(run)) => format!("{} {p} as {run} left it", f.name),
            _ => format!("{} of {}", if f.kind == "raw" { "raw records" } else { "rejects" }, f.name),
        };
        match lines.last_mut() {
            Some(line) if line.0 == what => (line.2, line.3, line.4) = (line.2 + 1, line.3 + f.rows, line.4 + f.bytes),
            _ => lines.push((what, f, 1, f.rows, f.bytes)),
        }
    }
    lines
}

fn garbage_text(g: &Garbage) -> String {
    let mut table = Table::new(&["what", "because", ">files", ">rows", ">size"]);
    for (what, f, files, rows, size) in lines(&g.files) {
        table.row([what, f.reason.clone(), files.to_string(), rows.to_string(), bytes(size)]);
    }
    for s in &g.staged {
        let what = format!("{} of {}, {} since {}", s.run, s.dataset, s.status, s.since);
        table.row([what, s.rule.clone(), s.files.to_string(), s.rows.to_string(), bytes(s.bytes as i64)]);
    }
    if !g.left.is_empty() {
        let size: i64 = g.left.iter().map(|l| l.2).sum();
        table.row(["bytes".into(), "an earlier gc let go of them".into(), g.left.len().to_string(), String::new(), bytes(size)]);
    }
    let mut text = if table.is_empty() { "Nothing to remove.\n".to_owned() } else { table.text() };
    if let (Some(first), Some(last)) = (g.expired.first(), g.expired.last()) {
        let which = if first == last { format!("Snapshot {first}") } else { format!("{} snapshots from {first} to {last}", g.expired.len()) };
        text += &format!("\n{which} would miss them, and cannot be read afterwards.\n");
    }
    for k in &g.kept {
        let old = if k.count == 1 { "1 old version or file".into() } else { format!("{} old versions or files", k.count) };
        text += &format!("Kept: {old} of {}: {}\n", k.name, k.why);
    }
    text
}

fn object(g: &Garbage, done: Option<&Collected>) -> Value {
    let file = |f: &RemovedFile| {
        json!({ "kind": f.kind, "name": f.name, "partition": f.partition, "run": f.run, "path": f.path, "rows": f.rows, "bytes": f.bytes,
            "first_event": f.events.map(|e| super::output::event_json(e.0)), "last_event": f.events.map(|e| super::output::event_json(e.1)), "reason": f.reason })
    };
    let staged = |s: &StagedRun| {
        json!({ "run": s.run, "dataset": s.dataset, "status": s.status, "since": super::output::ingest_json(s.since), "files": s.files, "rows": s.rows,
            "bytes": s.bytes, "reason": s.rule })
    };
    let kept = |k: &Kept| json!({ "name": k.name, "count": k.count, "why": k.why });
    json!({ "removed": done.is_some(), "snapshot": done.and_then(|d| d.snapshot), "waiting": done.map_or(0, |d| d.waiting),
        "files": g.files.iter().map(file).collect::<Vec<_>>(), "staged": g.staged.iter().map(staged).collect::<Vec<_>>(), "left": g.left.iter().map(|l| &l.1).collect::<Vec<_>>(),
        "bytes": g.files.iter().map(|f| f.bytes).chain(g.left.iter().map(|l| l.2)).chain(g.staged.iter().map(|s| s.bytes as i64)).sum::<i64>(),
        "expired_snapshots": g.expired, "kept": g.kept.iter().map(kept).collect::<Vec<_>>() })
}
