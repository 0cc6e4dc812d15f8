//! A child process is killed by SIGKILL in the middle of a command; readers see before or after, and the next command goes on.
//! The child is this test binary again, which carries out one command on a copy of the warehouse. By default some steps of each
//! command are tried; `RESTITCH_KILLS=all` tries every one.

use crate::{
    interop::lake,
    support::{Lab, ORDERS, Random, chain, component, copy, order},
};
use restitch::{
    id::RunId,
    manifest::{Kind, Mode},
    pipeline::{Error, Options, RunRequest, Workshop},
    store::Faults,
    time::{Clock, IngestTime, parse},
};
use std::{collections::BTreeSet, os::unix::process::ExitStatusExt, path::Path, process::Command};

/// What the child is to do, where, and at which step it ends: `VERB STEP FOLDER`.
const ORDER: &str = "RESTITCH_TEST_DIE";

/// Steps tried of each command, the last ones (around the commit) among them.
const SAMPLE: usize = 4;

/// The run that waits to be published, in the warehouse that each command begins with.
const STAGED: &str = "r3";

/// Two published days, one of them repaired; a third that is to be built, late records, and a run that waits for `publish`.
fn prepared() -> Lab {
    let toml = ORDERS
        .replace("customer-totals@1.0.0", "clean-orders@1.0.0")
        .replace("key = [\"customer_id\"]", "key = [\"event_id\"]\ntime_column = \"event_time\"");
    let checks = toml.find("checks = [").unwrap();
    let lab = Lab::new(&format!("{}checks = []\n", &toml[..checks]));
    lab.open().add_transform(&component("clean-orders-1.0.0.wasm")).unwrap();
    let line = |id: &str, time: &str| order(id, &format!("2026-05-{time}:00Z"), "A", "25");
    lab.land("1.jsonl", line("e1", "01T09:00") + &line("e2", "01T10:00") + &line("e3", "02T09:00"));
    assert_eq!(lab.run().run, RunId(1));
    lab.land("2.jsonl", line("e4", "01T11:00"));
    assert_eq!(lab.repair().run, RunId(2));
    lab.land("3.jsonl", line("e5", "01T11:30") + &line("e6", "02T10:00") + &line("e7", "03T09:00"));
    let staged = lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-02"))) });
    assert_eq!(staged.manifest.unwrap().run.to_string(), STAGED);
    lab
}

/// Carries out one command as a process of its own would.
fn carry_out(folder: &Path, verb: &str, faults: Faults) -> Result<(), Error> {
    let mut workshop = open(folder, faults);
    let mut go = |mode, kind, window| workshop.run(&RunRequest { mode, ..Lab::request(kind, window) }, &()).map(drop);
    match verb {
        "run" => go(Mode::Overwrite, Kind::Run, None),
        "merge" => go(Mode::Merge, Kind::Backfill, Some(("2026-05-01", "2026-05-02"))),
        "delete-insert" => go(Mode::DeleteInsert, Kind::Backfill, Some(("2026-05-01T11:00:00Z", "2026-05-02T09:30:00Z"))),
        "publish" => workshop.publish(RunId(3)).map(drop),
        "rollback" => workshop.rollback(RunId(2), false, None).map(drop),
        "ingest" => {
            let path = folder.join("more.jsonl");
            std::fs::write(&path, order("e8", "2026-05-02T11:00:00Z", "C", "2") + "not json\n").unwrap();
            workshop.ingest("orders", &[path], None, &()).map(drop)
        }
        "gc" => {
            let shown = workshop.garbage(Some(1))?;
            workshop.collect(Some(1), &shown).map(drop)
        }
        other => panic!("{other}?"),
    }
}

/// The child's part: nothing, unless the parent asks for it.
#[test]
fn the_child() {
    let Ok(asked) = std::env::var(ORDER) else { return };
    let [verb, step, folder] = asked.splitn(3, ' ').collect::<Vec<_>>().try_into().unwrap();
    carry_out(Path::new(folder), verb, Faults::killing(step.parse().unwrap())).unwrap();
}

fn open(folder: &Path, faults: Faults) -> Workshop {
    let clock = Clock::Fixed(IngestTime(parse("2026-06-01T00:00:00Z", chrono_tz::Tz::UTC).unwrap().0));
    let options = Options { operator: "tester".into(), token: None, clock, memory_bytes: 64 << 20, workers: 2, faults };
    Workshop::open(folder, options).unwrap()
}

/// A copy of a warehouse, in a folder of its own.
fn twin(original: &Lab) -> Lab {
    let lab = Lab {
        folder: tempfile::tempdir().unwrap(),
        now: original.now,
        workers: original.workers,
        memory_bytes: original.memory_bytes,
        faults: Faults::default(),
    };
    copy(original.folder.path(), lab.folder.path());
    // The catalog has to learn where it is now before anything is counted.
    lab.open();
    lab
}

fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.display().to_string());
        }
    }
    found
}

/// All that a reader can see: rows, raw, states and checksums.
fn seen(lab: &Lab) -> Vec<String> {
    let mut rows = lab.rows("select _partition, event_id, event_time, customer_id, amount from daily order by 1, 2");
    rows.extend(lab.rows("select * exclude (_file) from raw_orders order by _record_id, _seq"));
    rows.extend(lab.rows("select partition, dirty, checksum from restitch_partitions order by 1"));
    rows
}

/// What DuckDB reads, with nobody having cleaned up.
fn duckdb_sees(lab: &Lab) -> Vec<String> {
    let sql = "SELECT 'daily', _partition, event_id FROM daily UNION ALL SELECT 'raw', _record_id, _record_id FROM raw_orders ORDER BY 1, 2, 3";
    lake(["sql", &lab.catalog(), sql]).iter().map(ToString::to_string).collect()
}

/// What is left has to be in order: healthy, nothing that nothing refers to, nothing staged but what waits.
fn in_order(lab: &Lab, place: &str) {
    let report = lab.open().doctor(false).unwrap();
    assert!(report.healthy() && report.orphans.is_empty(), "{place}: {report:?}");
    let pending = lab.rows("select run from restitch_runs where status = 'staged'");
    let staging = lab.path("warehouse/staging");
    for file in files(&staging).iter().filter(|f| !f.ends_with(".lock")) {
        let owner = Path::new(file).strip_prefix(&staging).unwrap().components().next().unwrap();
        let owner = owner.as_os_str().to_string_lossy().into_owned();
        assert!(owner == STAGED && !pending.is_empty(), "{place}: {file} is left");
    }
    assert_eq!(lab.rows("select count(*) from restitch_runs where status = 'running'"), ["0"], "{place}");
}

fn kill(lab: &Lab, verb: &str, step: i64) {
    let asked = format!("{verb} {step} {}", lab.folder.path().display());
    let child = Command::new(std::env::current_exe().unwrap()).args(["--exact", "killed::the_child"]).env(ORDER, asked).output().unwrap();
    let told = String::from_utf8_lossy(&child.stdout).into_owned() + &String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.signal(), Some(9), "{verb}, step {step}: {told}");
}

/// The steps to try of `count`: the last three, and others by chance.
fn chosen(verb: &str, count: i64) -> BTreeSet<i64> {
    if std::env::var("RESTITCH_KILLS").is_ok_and(|v| v == "all") {
        return (0..count).collect();
    }
    let mut random = Random(verb.bytes().fold(7, |n, b| n * 2 + u64::from(b)));
    let mut steps: BTreeSet<i64> = (count - 3..count).filter(|s| *s >= 0).collect();
    while steps.len() < SAMPLE.min(count as usize) {
        steps.insert(random.below(count as usize) as i64);
    }
    steps
}

fn killed(verb: &str) {
    let original = prepared();
    let (before, duckdb_before) = (seen(&original), duckdb_sees(&original));
    let undisturbed = twin(&original);
    let faults = Faults::after(1 << 40);
    carry_out(undisturbed.folder.path(), verb, faults.clone()).unwrap();
    let count = (1 << 40) - faults.left().unwrap();
    let (after, duckdb_after) = (seen(&undisturbed), duckdb_sees(&undisturbed));
    let left = files(&undisturbed.path("warehouse/data")).len();
    assert!(count >= 3, "{verb}: {count} steps");
    for step in chosen(verb, count) {
        let place = format!("{verb}, killed at step {step} of {count}");
        let lab = twin(&original);
        kill(&lab, verb, step);
        let raw = duckdb_sees(&lab);
        assert!(raw == duckdb_before || raw == duckdb_after, "{place}: DuckDB sees a mixture: {raw:#?}");
        lab.open();
        let now = seen(&lab);
        assert!(now == before || now == after, "{place}: a mixture: {now:#?}");
        // gc removes bytes after its commit; the next gc finishes that.
        if verb != "gc" {
            in_order(&lab, &place);
        }
        if now == before || verb == "gc" {
            carry_out(lab.folder.path(), verb, Faults::default()).unwrap_or_else(|e| panic!("{place}: given again: {}", chain(&e)));
        }
        assert_eq!(seen(&lab), after, "{place}: given again");
        in_order(&lab, &place);
        assert_eq!(files(&lab.path("warehouse/data")).len(), left, "{place}: files");
    }
}

#[test]
fn a_killed_run_is_seen_whole_or_not_at_all() {
    killed("run");
}

#[test]
fn a_killed_merge_is_seen_whole_or_not_at_all() {
    killed("merge");
}

#[test]
fn a_killed_delete_insert_is_seen_whole_or_not_at_all() {
    killed("delete-insert");
}

#[test]
fn a_killed_publication_of_a_staged_run_is_seen_whole_or_not_at_all() {
    killed("publish");
}

#[test]
fn a_killed_rollback_is_seen_whole_or_not_at_all() {
    killed("rollback");
}

#[test]
fn a_killed_ingest_is_seen_whole_or_not_at_all() {
    killed("ingest");
}

#[test]
fn a_killed_gc_is_finished_by_the_next() {
    killed("gc");
}
