//! `replay` and `verify`: old runs computed again, and compared bit for bit.

use super::{
    Context,
    ingest::digest,
    output::{Answer, Table, count},
    progress::{Meter, Unit},
    report::Failure,
    show::grants_text,
};
use crate::{
    id::RunId,
    manifest::Manifest,
    pipeline::{Error, PartitionProof, Proof},
};
use serde_json::{Value, json};

/// What was typed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The run, like r7
    run: RunId,
}

fn table(partitions: &[PartitionProof]) -> String {
    let mut table = Table::new(&["partition", ">rows", "recorded", "now", "equal"]);
    for p in partitions {
        table.row([p.partition.clone(), p.rows.to_string(), digest(p.published), digest(p.replayed), if p.equal() { "✓" } else { "✗" }.into()]);
    }
    table.text()
}

fn object(partitions: &[PartitionProof]) -> Value {
    let one = |p: &PartitionProof| json!({ "partition": p.partition, "rows": p.rows, "recorded": p.published, "now": p.replayed, "equal": p.equal(), "same_input": p.input_equal });
    partitions.iter().map(one).collect()
}

/// Says by whose word payloads of masked sources are read again.
fn granted(m: &Manifest) -> String {
    grants_text(m).map_or(String::new(), |g| format!("It read {g}.\n\n"))
}

/// Carries out `replay`.
pub(super) fn replay(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let mut workshop = cx.open()?;
    let old = workshop.show(args.run)?.row.manifest;
    let meter = Meter::new(format!("replay {}", args.run), Unit::Partitions, old.partitions.len() as u64);
    let done = workshop.replay(args.run, &meter)?;
    drop(meter);
    let (r, m) = (&old.recipe, &done.manifest);
    let text = granted(&old)
        + &format!(
            "{} again, with {} ({}) on snapshot {}, clock and seed as they were:\n\n{}\nEqual bit for bit in {}. Recorded as {}.\n{}",
            args.run,
            r.transform,
            r.transform_digest.short(),
            r.input_snapshot,
            table(&done.partitions),
            count(done.partitions.len() as i64, "partition"),
            m.run,
            done.note.as_ref().map_or(String::new(), |n| format!("Note: {n}.\n"))
        );
    Ok(Answer::new(text, json!({ "run": m.run, "of_run": args.run, "equal": true, "partitions": object(&done.partitions), "note": done.note })))
}

/// Carries out `verify`.
pub(super) fn verify(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let mut workshop = cx.open()?;
    let row = workshop.show(args.run)?.row;
    let total = row.partitions as u64;
    let meter = Meter::new(format!("verify {}", args.run), Unit::Partitions, total);
    let proof = workshop.verify(args.run, &meter)?;
    drop(meter);
    let json = json!({ "run": proof.run, "proven": proof.failed.is_empty(), "note": proof.note, "failed": proof.failed, "rerun": object(&proof.rerun),
        "late": { "landed": proof.late.records, "read": proof.late.counted },
        "others": { "partitions": proof.others.partitions, "files_hashed": proof.others.files, "changed": proof.others.changed } });
    let text = granted(&row.manifest) + &proof_text(&proof);
    let failure = (!proof.failed.is_empty()).then(|| Error::Unproven { run: proof.run, failed: proof.failed }.into());
    Ok(Answer { failure, ..Answer::new(text, json) })
}

fn proof_text(proof: &Proof) -> String {
    let mark = |good: bool| if good { "✓" } else { "✗" };
    let rerun = proof.rerun.iter().all(PartitionProof::equal);
    let late = proof.late.records == proof.late.counted;
    let others = proof.others.changed.is_empty();
    let mut text = table(&proof.rerun);
    text += &format!("\n{} A dry rerun gives the published checksums ({}).\n", mark(rerun), count(proof.rerun.len() as i64, "partition"));
    text += &format!(
        "{} Late records count exactly once: {} landed for these partitions, {} read.\n",
        mark(late),
        proof.late.records,
        proof.late.counted
    );
    let unchanged = format!("{} and {} hashed", count(proof.others.partitions, "partition"), count(proof.others.files, "file"));
    text += &format!("{} All other partitions are unchanged ({unchanged}).\n", mark(others));
    proof.others.changed.iter().for_each(|c| text += &format!("  {c}\n"));
    proof.note.iter().for_each(|n| text += &format!("Note: {n}.\n"));
    if proof.failed.is_empty() {
        text += &format!("\n{} is proven.\n", proof.run);
    }
    text
}
