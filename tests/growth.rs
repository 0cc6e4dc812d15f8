//! Repairs without end of one partition: the catalog and the disk grow by the same for each, and the questions that people ask are still answered.
//! By counts, never by time. `RESTITCH_GROWTH_REPAIRS` makes more than the sixty of every day.

use crate::{
    interop::lake,
    support::{Lab, ORDERS, order},
};
use restitch::manifest::Manifest;
use serde_json::Value;
use std::{collections::BTreeMap, path::Path, process::Command};

const DAY: &str = "2026-05-01";

fn repairs() -> usize {
    std::env::var("RESTITCH_GROWTH_REPAIRS").ok().and_then(|n| n.parse().ok()).unwrap_or(60).max(20)
}

/// Files and bytes below a folder.
fn disk(folder: &Path) -> (i64, i64) {
    let mut sum = (0, 0);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let (files, bytes) = if path.is_dir() { disk(&path) } else { (1, path.metadata().unwrap().len() as i64) };
        sum = (sum.0 + files, sum.1 + bytes);
    }
    sum
}

/// What there is: rows of every table of the catalog, pages that it uses, text in it, files and bytes on disk.
fn measured(lab: &Lab) -> BTreeMap<String, i64> {
    let script = r#"
import sqlite3, sys
c = sqlite3.connect(sys.argv[1])
for (name,) in c.execute("select name from sqlite_master where type = 'table' and name not like 'sqlite%'").fetchall():
    print("rows of " + name, c.execute(f'select count(*) from "{name}"').fetchone()[0], sep="\t")
print("bytes of manifests without their inputs", c.execute("select sum(length(json_remove(manifest, '$.inputs'))) from restitch_run").fetchone()[0], sep="\t")
print("inputs named by manifests", c.execute("select sum(json_array_length(manifest, '$.inputs')) from restitch_run").fetchone()[0], sep="\t")
"#;
    let out = Command::new("python3").args(["-c", script, &lab.catalog()]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let text = String::from_utf8(out.stdout).unwrap();
    let mut found: BTreeMap<String, i64> =
        text.lines().map(|l| l.split_once('\t').unwrap()).map(|(what, n)| (what.to_owned(), n.parse().unwrap())).collect();
    for (what, folder) in [("raw", "data/main/raw_orders"), ("published", "data/main/daily"), ("staging", "staging"), ("all", "")] {
        let (files, bytes) = disk(&lab.path("warehouse").join(folder));
        found.insert(format!("files: {what}"), files);
        found.insert(format!("bytes: {what}"), bytes);
    }
    found
}

/// Goes `count` rounds three times; the first warms up. What the last ones added is compared with what those before them added.
fn rounds(lab: &Lab, count: usize, round: impl Fn(usize) -> Manifest) -> (BTreeMap<String, [i64; 2]>, Manifest) {
    let mut states = Vec::new();
    let mut last = None;
    for part in 0..3 {
        (part * count..(part + 1) * count).for_each(|n| last = Some(round(n)));
        states.push(measured(lab));
    }
    let [warm, half, end] = &states[..] else { unreachable!() };
    let of = |state: &BTreeMap<String, i64>, what: &String| state.get(what).copied().unwrap_or(0);
    (end.keys().map(|what| (what.clone(), [of(half, what) - of(warm, what), of(end, what) - of(half, what)])).collect(), last.unwrap())
}

/// What the last rounds added is what those before them had added: rows and files to the one, bytes but for the length of numbers.
fn grows_evenly(grown: &BTreeMap<String, [i64; 2]>, but: &[&str]) {
    for (what, [before, after]) in grown.iter().filter(|(what, _)| !but.contains(&what.as_str())) {
        let exact = what.starts_with("rows of") || what.starts_with("files:");
        // SQLite takes pages as it needs them.
        let slack = if exact { 0 } else { before / 10 + 32768 };
        assert!((after - before).abs() <= slack, "{what}: {before}, then {after}");
    }
}

fn lab() -> Lab {
    let lab = Lab::new(ORDERS);
    lab.land("first.jsonl", order("first", "2026-05-01T09:00:00Z", "A", "1") + &order("later", "2026-05-03T09:00:00Z", "A", "1"));
    lab.run();
    lab
}

fn restitch(lab: &Lab, words: &[&str]) -> Value {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
    let out = command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now, "--json"]).args(words).output().unwrap();
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// A late record each time. What a run reads is all raw files of its partition, so the list of them in its manifest is longer each time: that is the one
/// thing that grows by more, until somebody merges the files.
#[test]
fn each_of_many_repairs_of_one_partition_adds_the_same() {
    let (lab, count) = (lab(), repairs() / 3);
    let (grown, last) = rounds(&lab, count, |n| {
        lab.land("late.jsonl", order(&format!("e{n}"), "2026-05-01T10:00:00Z", "A", "1"));
        lab.repair()
    });
    let inputs = "inputs named by manifests";
    grows_evenly(&grown, &[inputs, "bytes: all"]);
    assert_eq!(grown[inputs][1] - grown[inputs][0], (count * count) as i64, "each raw file once in each manifest");
    let runs = 3 * count;
    assert_eq!((last.inputs.len(), grown["files: published"][1], grown["files: staging"][1]), (runs + 1, count as i64, 0));
    // The questions that people ask.
    let status = restitch(&lab, &["status", "daily"]);
    assert_eq!(status.pointer("/datasets/0/partitions").unwrap().as_array().unwrap().len(), 2, "{status:#}");
    let why = restitch(&lab, &["why", "daily", DAY, "--key", "A"]);
    assert_eq!((why["runs"].as_array().unwrap().len(), why["late"].as_array().unwrap().len()), (runs + 1, runs));
    assert_eq!(why["runs"][runs]["numbers"]["total"], format!("{}.00", runs + 1));
    assert_eq!(restitch(&lab, &["runs"])["runs"].as_array().unwrap().len(), 20);
    assert_eq!(restitch(&lab, &["verify", &last.run.to_string()])["proven"], true);
    // Old versions go; DuckDB merges raw files, and what a manifest lists is short again.
    assert_eq!(restitch(&lab, &["gc", "--keep", "2", "--yes"])["files"].as_array().unwrap().len(), runs - 1);
    assert_eq!(disk(&lab.path("warehouse/data/main/daily")).0, 3);
    lake(["compact", &lab.catalog(), "raw_orders"]);
    lab.land("late.jsonl", order("last", "2026-05-01T10:00:00Z", "A", "1"));
    assert!(lab.repair().inputs.len() < 5);
    assert_eq!(lab.published()[0], format!("{DAY} A {0} {0}.00", runs + 2));
    assert!(lab.open().doctor(false).unwrap().healthy());
}

/// The same input again and again: nothing at all grows by more than before, the catalog's file included.
#[test]
fn each_of_many_backfills_of_one_partition_adds_the_same() {
    let lab = lab();
    let (grown, last) = rounds(&lab, repairs() / 6, |_| lab.backfill(DAY, DAY));
    grows_evenly(&grown, &[]);
    assert_eq!((last.inputs.len(), last.partitions[0].changed), (1, Some(0)));
}
