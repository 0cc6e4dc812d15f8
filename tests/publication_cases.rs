//! Faults that other systems had when they published, with the right outcome in numbers: the cases 01 to 09, 19, 33 and 37 to 40.
//! Inputs are in tests/cases. Each test says what went wrong elsewhere.

use crate::support::{Lab, chain, component, copy, order};
use restitch::{
    id::RunId,
    manifest::{Kind, Manifest, Mode, Status},
    pipeline::{Error, ErrorKind, RunRequest},
    store::Faults,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::{
        Barrier,
        atomic::{AtomicBool, Ordering},
    },
};

/// One row for each record of a case; `id`, `ts` and `v` are its names of the columns.
const ROWS: &str = r#"
[warehouse]
path = "warehouse"
[source.orders]
format = "jsonl"
event_time = "event_time"
record_id = "event_id"
repair_window = "4000d"
max_future = "400000h"
max_rejects = "0"
[source.orders.columns]
event_id    = { type = "string", nullable = false, aliases = ["id"] }
event_time  = { type = "timestamp", nullable = false, aliases = ["ts"] }
customer_id = { type = "string", aliases = ["amt"] }
amount      = { type = "decimal(18,2)", aliases = ["v", "amt"] }
[dataset.daily]
input = "orders"
transform = "clean-orders@1.0.0"
partition = "day"
time_zone = "UTC"
key = ["event_id"]
dedup = { key = ["event_id"], keep = "latest_ingested" }
checks = []
"#;

fn lab(grain: &str, zone: &str, checks: &str) -> Lab {
    let toml = ROWS.replace("\"day\"", &format!("{grain:?}")).replace("time_zone = \"UTC\"", &format!("time_zone = {zone:?}"));
    let lab = Lab::new(&toml.replace("checks = []", &format!("checks = [{checks}]")));
    lab.open().add_transform(&component("clean-orders-1.0.0.wasm")).unwrap();
    lab
}

fn case(file: &str) -> Vec<u8> {
    std::fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(file)).unwrap()
}

/// Published rows by partition: name, first instant, the instant after the last, rows.
fn windows(lab: &Lab) -> Vec<String> {
    lab.rows("select start_time, end_time, rows from restitch_partitions order by start_time")
}

fn checksum(lab: &Lab, partition: &str) -> Vec<String> {
    lab.rows(&format!("select checksum, run from restitch_partitions where partition = '{partition}'"))
}

fn restitch(lab: &Lab) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
    command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now]);
    command
}

fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Case 01. Rows were picked with local edges and deleted with UTC edges: reruns lost or doubled the hours between.
#[test]
fn a_rerun_of_one_month_leaves_the_next_as_it_is() {
    let lab = lab("month", "America/Chicago", "");
    assert_eq!(lab.land("input.jsonl", case("01-tz-select-vs-delete/input.jsonl")).files[0].records, 4);
    lab.backfill("2025-02", "2025-03");
    let want = ["2025-02-01T06:00:00Z 2025-03-01T06:00:00Z 2", "2025-03-01T06:00:00Z 2025-04-01T05:00:00Z 2"];
    assert_eq!(windows(&lab), want);
    let march = checksum(&lab, "2025-03");
    for _ in 0..2 {
        let again = lab.backfill("2025-02", "2025-02");
        assert_eq!((again.partitions[0].rows, again.partitions[0].changed), (2, Some(0)));
        assert_eq!(lab.open().verify(again.run, &()).unwrap().failed, Vec::<String>::new(), "March was hashed");
    }
    assert_eq!((windows(&lab), checksum(&lab, "2025-03")), (want.map(str::to_owned).to_vec(), march));
    assert_eq!(lab.rows("select event_id from daily where _partition = '2025-02' order by 1"), ["r1", "r2"]);
}

/// Case 02. The hour that a clock shows twice had one name: one of the two overwrote the other.
#[test]
fn an_hour_that_the_clock_shows_twice_is_two_partitions() {
    let lab = lab("hour", "Europe/Berlin", "");
    lab.land("input.jsonl", case("02-dst-fold-hours/input.jsonl"));
    let run = lab.run();
    let names: Vec<&str> = run.partitions.iter().map(|p| p.partition.as_str()).collect();
    assert_eq!(names, ["2025-10-26T01", "2025-10-26T02+0200", "2025-10-26T02+0100", "2025-10-26T03"]);
    let want = [
        "2025-10-25T23:00:00Z 2025-10-26T00:00:00Z 1",
        "2025-10-26T00:00:00Z 2025-10-26T01:00:00Z 2",
        "2025-10-26T01:00:00Z 2025-10-26T02:00:00Z 2",
        "2025-10-26T02:00:00Z 2025-10-26T03:00:00Z 1",
    ];
    assert_eq!(windows(&lab), want);
    assert_eq!(lab.bind(Kind::Backfill, Some(("2025-10-26", "2025-10-26"))).partitions, 25);
    let howe = self::lab("hour", "Australia/Lord_Howe", "");
    howe.land("input.jsonl", case("02-dst-fold-hours/input-lord-howe.jsonl"));
    let run = howe.run();
    assert_eq!(run.partitions.iter().map(|p| p.rows).sum::<u64>(), 4);
    assert!(run.partitions.windows(2).all(|w| w[0].end_us <= w[1].start_us), "no partitions overlap");
    assert_eq!(howe.rows("select count(distinct event_id), count(*) from daily"), ["4 4"]);
}

/// Case 04. Closed ranges of dates dropped all but the first instant of the last day; a single day wrote nothing.
#[test]
fn a_record_on_the_edge_of_a_day_is_in_one_day() {
    let lab = lab("day", "UTC", "");
    assert_eq!(lab.land("input.jsonl", case("04-edge-rows/input.jsonl")).files[0].records, 5);
    assert_eq!(lab.backfill("2024-11-06", "2024-11-06").partitions[0].rows, 2);
    lab.backfill("2024-11-05", "2024-11-07");
    let want =
        ["2024-11-05T00:00:00Z 2024-11-06T00:00:00Z 2", "2024-11-06T00:00:00Z 2024-11-07T00:00:00Z 2", "2024-11-07T00:00:00Z 2024-11-08T00:00:00Z 1"];
    assert_eq!(windows(&lab), want);
}

/// Case 06. A retry computed its range from the new clock: the days that had failed stayed broken.
#[test]
fn a_failed_plan_is_applied_again_for_its_own_days_whatever_the_clock_says() {
    let forbidden = "{ kind = \"sql\", sql = \"select * from output where event_id = 'r3'\" }";
    let mut lab = lab("day", "UTC", forbidden);
    lab.now = "2025-03-21T20:00:00Z";
    lab.land("input.jsonl", case("06-resume-uses-now/input.jsonl"));
    let out = restitch(&lab).args(["plan", "daily", "--start", "2025-03-18", "--end", "2025-03-21", "-o", "plan.json"]).output().unwrap();
    assert!(out.status.success() && text(&out).contains("Saved in plan.json"), "{}", text(&out));
    let out = restitch(&lab).args(["apply", "plan.json"]).output().unwrap();
    assert!(out.status.code() == Some(3) && text(&out).contains("was rejected"), "{}", text(&out));
    assert_eq!(windows(&lab), Vec::<String>::new(), "all or nothing: no day is done twice, none is done alone");
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    std::fs::write(lab.path("restitch.toml"), toml.replace(forbidden, "")).unwrap();
    lab.now = "2025-03-25T20:00:00Z";
    let out = restitch(&lab).args(["--json", "apply", "plan.json"]).output().unwrap();
    assert!(out.status.success(), "{}", text(&out));
    let published = lab.rows("select partition from restitch_partitions order by 1");
    assert_eq!(published, ["2025-03-18", "2025-03-19", "2025-03-20", "2025-03-21"]);
    assert_eq!(lab.rows("select count(*) from daily"), ["4"]);
    // The transform's clock is the plan's, the swap's is that of the day.
    let shown = lab.open().show(RunId(2)).unwrap().row;
    assert_eq!(restitch::time::format_us(shown.manifest.recipe.as_of_us), "2025-03-21T20:00:00Z");
    assert_eq!(shown.started.to_string(), "2025-03-25T20:00:00Z");
    let out = restitch(&lab).args(["apply", "plan.json"]).output().unwrap();
    assert!(out.status.code() == Some(4) && text(&out).contains("was applied as run r2"), "{}", text(&out));
}

const SUM: &str = "select cast(sum(amount) as bigint), count(*) from daily";

/// Case 07. Delete and insert were two transactions: a reader in between saw an empty day, and published it.
#[test]
fn readers_see_one_version_or_the_other_through_two_hundred_swaps() {
    let lab = lab("day", "UTC", "");
    lab.land("input.jsonl", case("07-reader-sees-hole/input.jsonl"));
    let first = lab.run();
    lab.land("input-v2.jsonl", case("07-reader-sees-hole/input-v2.jsonl"));
    let stop = AtomicBool::new(false);
    let mut duck = duckdb_polling(&lab);
    let reader = || {
        let mut seen = std::collections::BTreeSet::new();
        while !stop.load(Ordering::SeqCst) {
            seen.extend(lab.rows(SUM));
        }
        seen
    };
    let seen = std::thread::scope(|scope| {
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        let mut workshop = lab.open();
        let mut last = workshop.run(&Lab::request(Kind::Backfill, Some(("2025-05-01", "2025-05-01"))), &()).unwrap().manifest.unwrap();
        for _ in 0..200 {
            // To undo an undoing brings the newer version back: every one of them is a swap.
            last = workshop.rollback(last.run, false, None).unwrap();
        }
        stop.store(true, Ordering::SeqCst);
        readers.map(|r| r.join().unwrap())
    });
    for seen in seen {
        assert!(!seen.is_empty() && seen.iter().all(|s| s == "3 3" || s == "6 3"), "{seen:?}");
    }
    std::fs::write(lab.path("stop"), "").unwrap();
    let out = duck.wait_with_output_of();
    assert!(out.lines().count() > 3 && out.lines().all(|l| ["3", "6", "held 3 3", "held 6 6"].contains(&l)), "{out}");
    assert!(out.contains("held"), "{out}");
    // Who opened the old version can still read it.
    let then = lab.rows_at(SUM, first.published_snapshot);
    assert_eq!(then, ["3 3"]);
    assert!(lab.path("warehouse").join(&first.partitions[0].files[0].path).exists());
}

/// A DuckDB process that reads until a file `stop` is there.
struct Polling(std::process::Child);

impl Polling {
    fn wait_with_output_of(&mut self) -> String {
        let mut text = String::new();
        std::io::Read::read_to_string(self.0.stdout.as_mut().unwrap(), &mut text).unwrap();
        assert!(self.0.wait().unwrap().success(), "{text}");
        text
    }
}

impl Drop for Polling {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The first reading holds its transaction open over many swaps, and reads the same at its end.
fn duckdb_polling(lab: &Lab) -> Polling {
    let script = r#"
import pathlib, sys
sys.path.insert(0, sys.argv[1])
import lake
stop = pathlib.Path(sys.argv[3])
sql = "SELECT sum(amount)::BIGINT FROM daily"
held = lake.attach(sys.argv[2])
held.execute("BEGIN")
before = held.execute(sql).fetchone()[0]
while True:
    last = stop.exists()
    print(lake.attach(sys.argv[2]).execute(sql).fetchone()[0], flush=True)
    if last:
        break
print("held", before, held.execute(sql).fetchone()[0], flush=True)
"#;
    let mut command = Command::new(crate::interop::python());
    command
        .args(["-B", "-c", script])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop"))
        .args([lab.catalog(), lab.path("stop").display().to_string()]);
    Polling(command.stdout(std::process::Stdio::piped()).spawn().unwrap())
}

fn stage(lab: &Lab, day: &str) -> Manifest {
    lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some((day, day))) }).manifest.unwrap()
}

/// Case 08. Two overwrites of one base both succeeded: the second dropped the rows of the first, or doubled them.
#[test]
fn of_two_backfills_of_one_day_one_wins_and_the_other_is_told() {
    let lab = lab("day", "UTC", "");
    let input = String::from_utf8(case("08-two-backfills-race/input.jsonl")).unwrap();
    // Twenty rounds, each on a day that does not exist yet; the first makes the table as well.
    lab.land(
        "input.jsonl",
        (1..=20).map(|d| input.replace("-06-01T", &format!("-06-{d:02}T")).replace("\"r", &format!("\"d{d}r"))).collect::<String>(),
    );
    for round in 1..=20 {
        let day = format!("2025-06-{round:02}");
        let rivals = [stage(&lab, &day), stage(&lab, &day)];
        let barrier = Barrier::new(2);
        let outcomes = std::thread::scope(|scope| {
            let publish = |run: RunId| {
                let mut workshop = lab.open();
                barrier.wait();
                workshop.publish(run)
            };
            let threads = rivals.each_ref().map(|m| scope.spawn(move || publish(m.run)));
            threads.map(|t| t.join().unwrap())
        });
        let winners: Vec<RunId> = outcomes.iter().flatten().map(|m| m.run).collect();
        assert_eq!(winners.len(), 1, "{outcomes:?}");
        let loser = outcomes.iter().find_map(|o| o.as_ref().err()).unwrap();
        assert_eq!(loser.kind(), ErrorKind::Conflict);
        assert!(loser.to_string().contains(&format!("partition {day} was published by {} (snapshot", winners[0])), "{loser}");
        assert_eq!(lab.rows(&format!("select count(*) from daily where _partition = '{day}'")), ["2"]);
    }
}

/// Case 08, with processes: the same day once, different days both.
#[test]
fn processes_that_publish_one_day_win_once_and_different_days_both() {
    let lab = lab("day", "UTC", "");
    let input = String::from_utf8(case("08-two-backfills-race/input.jsonl")).unwrap();
    lab.land("input.jsonl", input.clone() + &input.replace("-06-01T", "-06-02T").replace("\"r", "\"s"));
    let race = |runs: [RunId; 2]| {
        let children = runs.map(|run| {
            restitch(&lab)
                .arg("publish")
                .arg(run.to_string())
                .stdout(std::process::Stdio::null())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .unwrap()
        });
        children.map(|c| c.wait_with_output().unwrap())
    };
    for round in 0..5 {
        let outs = race([stage(&lab, "2025-06-01").run, stage(&lab, "2025-06-01").run]);
        let mut codes = outs.each_ref().map(|o| o.status.code().unwrap());
        codes.sort();
        assert_eq!(codes, [0, 4], "round {round}: {}", outs.iter().map(text).collect::<String>());
        let loser = outs.iter().find(|o| !o.status.success()).map(text).unwrap();
        assert!(loser.contains("partition 2025-06-01 was published by r"), "{loser}");
        assert_eq!(lab.rows("select count(*) from daily where _partition = '2025-06-01'"), ["2"]);
    }
    let outs = race([stage(&lab, "2025-06-01").run, stage(&lab, "2025-06-02").run]);
    assert!(outs.iter().all(|o| o.status.success()), "{}", outs.iter().map(text).collect::<String>());
    assert_eq!(lab.rows("select _partition, count(*) from daily group by 1 order by 1"), ["2025-06-01 2", "2025-06-02 2"]);
}

/// Case 09. Only partitions with output were replaced: yesterday's rows stayed when a recompute gave none.
#[test]
fn a_day_that_is_computed_to_nothing_is_published_empty() {
    // customer-totals 1.1.0 leaves negative amounts out: a void order is one.
    let toml = ROWS.replace("clean-orders@1.0.0", "customer-totals@1.1.0").replace("key = [\"event_id\"]\ndedup", "dedup");
    let lab = Lab::new(&toml);
    lab.open().add_transform(&component("customer-totals-1.1.0.wasm")).unwrap();
    let orders = |amount: &str| order("o1", "2025-07-02T09:00:00Z", "A", amount) + &order("o2", "2025-07-02T10:00:00Z", "B", amount);
    lab.land("input.jsonl", orders("1") + &order("o3", "2025-07-03T10:00:00Z", "C", "1"));
    lab.run();
    let rows = || lab.rows("select partition, rows from restitch_partitions order by 1");
    assert_eq!(rows(), ["2025-07-02 2", "2025-07-03 1"]);
    let third = checksum(&lab, "2025-07-03");
    lab.land("correction.jsonl", orders("-1"));
    // A check on the number of rows can forbid it: then nothing changes.
    std::fs::write(lab.path("restitch.toml"), toml.replace("checks = []", "checks = [{ kind = \"row_count\", min = 1 }]")).unwrap();
    let e = lab.try_go(Lab::request(Kind::Repair, None)).unwrap_err();
    assert_eq!((e.kind(), rows()), (ErrorKind::Validation, vec!["2025-07-02 2".into(), "2025-07-03 1".into()]));
    std::fs::write(lab.path("restitch.toml"), &toml).unwrap();
    let repair = lab.repair();
    assert_eq!(rows(), ["2025-07-02 0", "2025-07-03 1"]);
    assert_eq!((repair.partitions[0].removed, lab.rows("select count(*) from daily")), (Some(2), vec!["1".to_owned()]));
    assert_eq!(checksum(&lab, "2025-07-03"), third);
    lab.open().rollback(repair.run, false, None).unwrap();
    assert_eq!(rows(), ["2025-07-02 2", "2025-07-03 1"]);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut zip, bytes).unwrap();
    zip.finish().unwrap()
}

/// Case 19. The rows were stored, the note that they were was not: the next load stored them again.
#[test]
fn the_same_bytes_land_once_whatever_died_and_whatever_they_are_called() {
    let load = case("19-reingest-after-lost-state/load-0001.jsonl");
    let fresh = || {
        let lab = Lab::new(&ROWS.replace("record_id = \"event_id\"\n", ""));
        std::fs::write(lab.path("load-0001.jsonl"), &load).unwrap();
        lab
    };
    let landed = |lab: &Lab| lab.rows("select count(*), count(distinct _file) from raw_orders");
    let ingest = |lab: &Lab| lab.open().ingest("orders", &[lab.path("load-0001.jsonl")], None, &());
    let mut deaths = 0;
    for steps in 0.. {
        let mut lab = fresh();
        lab.faults = Faults::after(steps);
        let died = catch_unwind(AssertUnwindSafe(|| ingest(&lab).unwrap())).is_err();
        lab.faults = Faults::default();
        ingest(&lab).unwrap();
        assert_eq!(landed(&lab), ["2 1"], "step {steps}");
        assert_eq!(lab.rows("select count(*), sum(records) from restitch_file"), ["1 2"], "step {steps}");
        deaths += died as usize;
        if !died {
            break;
        }
    }
    assert!(deaths > 5);
    let lab = fresh();
    ingest(&lab).unwrap();
    for (name, bytes) in [("copy.jsonl", case("19-reingest-after-lost-state/copy-of-load-0001.jsonl")), ("load-0001.jsonl.gz", gzip(&load))] {
        let again = lab.land(name, bytes);
        assert!(again.snapshot.is_none() && again.files[0].already.as_deref().is_some_and(|p| p.ends_with("load-0001.jsonl")), "{name}");
        assert_eq!(landed(&lab), ["2 1"], "{name}");
    }
    // The old name with other bytes is another file; what it held before is still there to be replayed.
    lab.land("load-0001.jsonl", case("19-reingest-after-lost-state/load-0001-changed.jsonl"));
    assert_eq!(lab.rows("select count(*) from restitch_file"), ["2"]);
    let payloads = lab.rows("select distinct cast(_payload as varchar) from raw_orders");
    assert!(payloads.iter().any(|p| p.contains("02:00:00")) && payloads.iter().any(|p| p.contains("02:30:00")), "{payloads:?}");
}

/// Case 33. One open writer for each partition ran out of file handles, or of memory.
#[test]
fn five_thousand_tiny_partitions_are_one_swap_with_256_file_handles() {
    let lab = lab("hour", "UTC", "");
    // Case 33's own order: 1009 hours from one to the next, over five thousand.
    let line = |i: i64| {
        let at = restitch::time::format_us(1_577_836_800_000_000 + i * 1009 % 5000 * 3_600_000_000);
        format!("{{\"id\":\"h{i}\",\"ts\":\"{at}\",\"v\":1}}\n")
    };
    std::fs::write(lab.path("hours.jsonl"), (0..5000).map(line).collect::<String>()).unwrap();
    for words in [&["ingest", "orders", "hours.jsonl"][..], &["plan", "daily"], &["run", "daily"], &["status", "daily"]] {
        let mut command = Command::new("sh");
        command.arg("-c").arg("ulimit -n 256; exec \"$0\" \"$@\"").arg(env!("CARGO_BIN_EXE_restitch")).arg("-C").arg(lab.folder.path());
        let (out, peak) = output_and_peak(command.args(["--now", lab.now, "--memory", "256MiB"]).args(words));
        assert!(out.status.success(), "{words:?}: {}", text(&out));
        assert!(peak.is_none_or(|p| p < 512 << 20), "{words:?}: {peak:?} bytes at most");
    }
    assert_eq!(lab.rows("select count(distinct published_snapshot), count(*), sum(rows) from restitch_partitions"), ["1 5000 5000"]);
    assert_eq!(lab.rows("select count(*), cast(sum(amount) as bigint) from daily"), ["5000 5000"]);
}

/// Runs a command, and returns the most memory that it had, where the system tells.
fn output_and_peak(command: &mut Command) -> (Output, Option<u64>) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str| std::fs::File::create(folder.path().join(name)).unwrap();
    let mut child = command.stdout(file("out")).stderr(file("err")).spawn().unwrap();
    let mut peak = None;
    let status = loop {
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id())).unwrap_or_default();
        let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:")).and_then(|l| l.trim().trim_end_matches(" kB").parse::<u64>().ok());
        peak = line.map(|kb| kb << 10).max(peak);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    let read = |name: &str| std::fs::read(folder.path().join(name)).unwrap();
    (Output { status, stdout: read("out"), stderr: read("err") }, peak)
}

/// A command that may write no file beyond so many blocks of 512 bytes: what a full disk does, at any size.
fn on_a_small_disk(lab: &Lab, blocks: u32, words: &[&str]) -> Output {
    let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
    let mut command = Command::new("sh");
    command.arg("-c").arg(script).arg(env!("CARGO_BIN_EXE_restitch")).arg("-C").arg(lab.folder.path()).args(["--now", lab.now]);
    command.args(words).output().unwrap()
}

/// Case 37. Half a file stood under its final name when the disk was full.
#[test]
fn a_full_disk_leaves_the_old_state_and_the_command_can_be_given_again() {
    let lab = lab("day", "UTC", "");
    lab.land("one.jsonl", "{\"id\":\"r1\",\"ts\":\"2025-10-19T00:00:00Z\",\"v\":1}\n");
    lab.run();
    let big = |i: usize| format!("{{\"id\":\"b{i}\",\"ts\":\"2025-10-19T{:02}:00:00Z\",\"pad\":\"xxxxxxxxxx\"}}\n", i % 24);
    std::fs::write(lab.path("big.jsonl"), (0..30_000).map(big).collect::<String>()).unwrap();
    // From nothing at all, over the catalog's log and the data files, to enough.
    let until_it_fits = |words: &[&str], count: &str, before: &str, after: &str| {
        let mut failed = Vec::new();
        for blocks in (0..).map(|i| 8 << i) {
            let out = on_a_small_disk(&lab, blocks, words);
            if out.status.success() {
                break;
            }
            assert_eq!(out.status.code(), Some(1), "{blocks}: {}", text(&out));
            failed.push(text(&out));
            assert_eq!(lab.rows(count), [before], "{blocks}");
            assert_eq!(lab.rows(SUM), ["1 1"], "{blocks}: the old partition reads");
        }
        assert!(failed.len() >= 3, "{failed:?}");
        assert_eq!(lab.rows(count), [after]);
        failed.concat()
    };
    let talk = until_it_fits(&["ingest", "orders", "big.jsonl"], "select count(*) from raw_orders", "1", "30001");
    assert!(talk.contains("too large") && talk.contains("catalog"), "both a data file and the catalog were cut: {talk}");
    until_it_fits(&["run", "daily"], "select rows from restitch_partitions", "1", "30001");
    // Nothing half is left.
    let mut names = Vec::new();
    files_below(&lab.path("warehouse"), &mut names);
    let files = names.iter().filter(|n| n.ends_with(".parquet")).count();
    let named = crate::interop::lake(["sql", &lab.catalog(), "SELECT path FROM __ducklake_metadata_lake.ducklake_data_file"]);
    assert_eq!(files, named.len(), "{names:?}");
}

fn files_below(folder: &Path, found: &mut Vec<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() { files_below(&path, found) } else { found.push(path.display().to_string()) }
    }
}

/// Puts `staging` on another file system; none, if there is no other.
#[cfg(unix)]
fn elsewhere(lab: &Lab) -> Option<tempfile::TempDir> {
    use std::os::unix::fs::MetadataExt;
    let device = |path: &Path| std::fs::metadata(path).map(|m| m.dev()).ok();
    let here = device(lab.folder.path());
    let other = ["/dev/shm", "/var/tmp", "/run"].map(PathBuf::from).into_iter().find(|p| device(p).is_some_and(|d| Some(d) != here))?;
    let (other, staging) = (tempfile::tempdir_in(other).ok()?, lab.path("warehouse/staging"));
    copy(&staging, other.path());
    std::fs::remove_dir_all(&staging).unwrap();
    std::os::unix::fs::symlink(other.path(), &staging).unwrap();
    Some(other)
}

/// Between the death of a process and the next command, `staging` may also have moved: what waits there is not lost, and nothing is left.
#[cfg(unix)]
#[test]
fn who_dies_while_staging_lies_elsewhere_leaves_nothing_and_loses_nothing() {
    let original = lab("day", "UTC", "");
    original.land("one.jsonl", "{\"id\":\"r1\",\"ts\":\"2025-10-19T00:00:00Z\",\"v\":1}\n");
    original.run();
    let published = original.backfill("2025-10-19", "2025-10-19").run;
    let staged = stage(&original, "2025-10-19").run;
    for verb in ["publish", "rollback"] {
        for steps in 0.. {
            let mut lab = Lab { folder: tempfile::tempdir().unwrap(), ..self::lab("day", "UTC", "") };
            copy(original.folder.path(), lab.folder.path());
            lab.open();
            let before = (verb == "rollback").then(|| elsewhere(&lab));
            lab.faults = Faults::after(steps);
            let act = |lab: &Lab| match verb {
                "publish" => lab.open().publish(staged).map(drop),
                _ => lab.open().rollback(published, false, None).map(drop),
            };
            let died = catch_unwind(AssertUnwindSafe(|| act(&lab).unwrap())).is_err();
            lab.faults = Faults::default();
            let Some(_other) = before.unwrap_or_else(|| elsewhere(&lab)) else { return };
            let report = lab.open().doctor(false).unwrap();
            assert!(report.healthy() && report.orphans.is_empty(), "{verb}, step {steps}: {report:?}");
            let sql = format!("select count(*) from restitch_runs where status = 'published' and (run = '{staged}' or kind = 'rollback')");
            let done = lab.rows(&sql) == ["1"];
            if !done {
                act(&lab).unwrap_or_else(|e| panic!("{verb}, step {steps}: {e}"));
            }
            assert_eq!(lab.rows(SUM), ["1 1"], "{verb}, step {steps}");
            if !died {
                assert!(steps > 5, "{verb}: {steps}");
                break;
            }
        }
    }
}

/// Case 37. A rename from staging failed at the last step, because staging lay on another volume.
#[cfg(unix)]
#[test]
fn staging_may_lie_on_another_file_system() {
    let lab = lab("day", "UTC", "");
    // A machine with one file system has nothing to show.
    let Some(other) = elsewhere(&lab) else { return };
    lab.land("one.jsonl", "{\"id\":\"r1\",\"ts\":\"2025-10-19T00:00:00Z\",\"v\":1}\n");
    let run = lab.run();
    let staged = stage(&lab, "2025-10-19");
    lab.open().publish(staged.run).unwrap();
    lab.open().rollback(staged.run, false, None).unwrap();
    assert_eq!(lab.rows(SUM), ["1 1"]);
    assert_eq!(lab.open().verify(run.run, &()).unwrap().failed, Vec::<String>::new());
    let mut left = Vec::new();
    files_below(other.path(), &mut left);
    assert!(left.iter().all(|f| f.ends_with(".lock")), "{left:?}");
}

/// Case 38. A transaction that had read first could not become a writer: "database is locked", whatever the time-out.
#[test]
fn two_processes_land_fifty_files_each_while_a_third_looks_on() {
    let lab = lab("day", "UTC", "");
    let land = |half: usize| {
        for i in 0..50 {
            let name = format!("part-{half}-{i}.jsonl");
            std::fs::write(lab.path(&name), format!("{{\"id\":\"s{half}-{i}\",\"ts\":\"2025-10-20T00:00:00Z\",\"v\":1}}\n")).unwrap();
            let out = restitch(&lab).args(["ingest", "orders", &name]).output().unwrap();
            assert!(out.status.success(), "{}", text(&out));
        }
    };
    std::thread::scope(|scope| {
        let writers = [scope.spawn(|| land(0)), scope.spawn(|| land(1))];
        while !writers.iter().all(|w| w.is_finished()) {
            let out = restitch(&lab).arg("status").output().unwrap();
            assert!(out.status.success(), "{}", text(&out));
        }
    });
    assert_eq!(lab.rows("select count(*), count(distinct _record_id) from raw_orders"), ["100 100"]);
    assert_eq!(lab.rows("select count(distinct snapshot_id), count(*) from restitch_file"), ["100 100"]);
}

/// Case 38. A plain copy of a catalog that is in use misses what is still in its log; `backup` does not.
#[test]
fn a_backup_is_whole_while_others_write() {
    let lab = lab("day", "UTC", "");
    lab.land("one.jsonl", case("08-two-backfills-race/input.jsonl"));
    let run = lab.run();
    // Somebody has the catalog open, so the log is not folded into the file.
    let mut open = lab.open();
    let staged = stage(&lab, "2025-06-01");
    lab.land("two.jsonl", "{\"id\":\"r9\",\"ts\":\"2025-06-01T05:00:00Z\",\"v\":5}\n");
    assert!(lab.path("warehouse/catalog.sqlite-wal").exists());
    let restored = Lab { folder: tempfile::tempdir().unwrap(), ..self::lab("day", "UTC", "") };
    std::fs::copy(lab.path("restitch.toml"), restored.path("restitch.toml")).unwrap();
    let done = open.backup(&restored.path("warehouse")).unwrap();
    assert!(done.files >= 4, "{done:?}");
    let all = "select event_id, amount from daily order by 1";
    assert_eq!(restored.rows(all), lab.rows(all));
    assert_eq!(restored.rows("select count(*) from raw_orders"), ["3"]);
    assert_eq!(restored.open().verify(run.run, &()).unwrap().failed, Vec::<String>::new());
    // What was staged came along; what goes on in the one is nothing to the other.
    restored.open().publish(staged.run).unwrap();
    restored.run();
    assert_eq!((restored.rows("select count(*) from daily"), lab.rows("select count(*) from daily")), (vec!["3".to_owned()], vec!["2".to_owned()]));
    let e = lab.open().backup(&restored.path("warehouse")).unwrap_err();
    assert!(e.kind() == ErrorKind::Usage && e.to_string().contains("not empty"), "{e}");
    let out = restitch(&lab).args(["--json", "backup", "elsewhere"]).output().unwrap();
    assert!(out.status.success() && lab.path("elsewhere/catalog.sqlite").exists(), "{}", text(&out));
}

/// Case 39. One bad row stopped a month, or a restart loop went on for ever. See also tests/guests.rs and tests/landing.rs.
#[test]
fn one_row_that_the_transform_refuses_fails_the_run_and_is_named() {
    let lab = lab("day", "UTC", "");
    let line = |id: &str, hour: u32| format!("{{\"id\":\"{id}\",\"ts\":\"2025-10-21T{hour:02}:00:00Z\",\"v\":1}}\n");
    lab.land("ok.jsonl", line("w0", 0));
    lab.run();
    let before = checksum(&lab, "2025-10-21");
    let rest: String = (1..12).map(|i| line(&if i == 4 { " ".to_owned() } else { format!("w{i}") }, i)).collect();
    lab.land("rest.jsonl", rest);
    assert_eq!(lab.rows("select count(*) from raw_orders"), ["12"]);
    // An error on one row: partition and row are named, nothing is tried again, and the day is what it was.
    let e = lab.try_go(Lab::request(Kind::Run, None)).unwrap_err();
    let said = chain(&e);
    assert!(said.contains("partition 2025-10-21") && said.contains("row 4 of the batch: event_id is blank"), "{said}");
    assert_eq!((e.kind(), checksum(&lab, "2025-10-21")), (ErrorKind::Failed, before.clone()));
    assert_eq!(lab.rows("select status, count(*) from restitch_runs group by 1 order by 1"), ["failed 1", "published 1"]);
    // The other rows can go in without it, by a filter that the manifest records.
    let without = RunRequest { filter: Some("event_id <> ' '".into()), ..Lab::request(Kind::Backfill, Some(("2025-10-21", "2025-10-21"))) };
    assert_eq!(lab.go(without).manifest.unwrap().partitions[0].rows, 11);
    // Two rows with one key, which the transform made of two records, are caught before anything is published.
    let before = checksum(&lab, "2025-10-21");
    lab.land("extra.jsonl", line("w1 ", 13));
    let twice = RunRequest { filter: Some("event_id <> ' '".into()), ..Lab::request(Kind::Backfill, Some(("2025-10-21", "2025-10-21"))) };
    let e = lab.try_go(twice).unwrap_err();
    assert!(matches!(&e, Error::Rejected { failed, .. } if failed == &["key"]), "{e}");
    assert_eq!((e.kind(), checksum(&lab, "2025-10-21")), (ErrorKind::Validation, before));
}

/// Case 39, with `on_row_failure = "quarantine"`: the same bad rows stop nothing.
#[test]
fn rows_that_hang_or_fail_are_put_in_quarantine_and_the_rest_is_published() {
    let toml = ROWS.replace("clean-orders@1.0.0", "misbehave-rows@1.0.0").replace("key = [\"event_id\"]\ndedup", "key = [\"id\"]\ndedup");
    let declared = |text: &str| {
        let columns = "id = { type = \"string\", nullable = false }\ndo = { type = \"string\" }\nv = { type = \"int64\" }\n[dataset.daily]";
        text.replace("[dataset.daily]", columns)
    };
    let rule = |max: &str| {
        let limits = "limits = { memory = \"64MiB\", output = \"256KiB\", fuel = 5000000 }";
        format!("on_row_failure = \"quarantine\"\nmax_quarantined = \"{max}\"\n{limits}\nchecks = [{{ kind = \"row_count\", min = 1 }}]")
    };
    let lab = Lab::new(&declared(&toml).replace("checks = []", &rule("6")));
    lab.open().add_transform(&component("misbehave-rows-1.0.0.wasm")).unwrap();
    lab.land("input.jsonl", case("39-guest-hangs-or-fails-on-one-row/input.jsonl"));
    assert_eq!(lab.rows("select count(*) from raw_orders"), ["12"]);
    // Two rows with one key are caught before anything is published, whatever is in quarantine.
    let e = lab.try_go(Lab::request(Kind::Run, None)).unwrap_err();
    assert!(matches!(&e, Error::Rejected { failed, .. } if failed == &["key"]), "{}", chain(&e));
    let request = || RunRequest { filter: Some("\"do\" <> 'extra'".into()), ..Lab::request(Kind::Backfill, Some(("2025-10-21", "2025-10-21"))) };
    let m = lab.go(request()).manifest.unwrap();
    let day = &m.partitions[0];
    let ids: Vec<&str> = day.quarantined.iter().map(|q| q.record_id.as_str()).collect();
    // spin, sleep in a host call, trap, err, grow, big: each named by its own limit or message.
    assert_eq!(ids, ["w1", "w2", "w3", "w4", "w5", "w6"]);
    let reasons = ["limits.fuel", "limits.fuel", "w3 is a trap", "refused: w4 is refused", "limits.memory", "limits.output"];
    day.quarantined.iter().zip(reasons).for_each(|(q, part)| assert!(q.reason.contains(part), "{}: {}", q.record_id, q.reason));
    assert_eq!((day.records, day.rows), (11, 5));
    assert_eq!(lab.rows("select id from daily order by 1"), ["w0", "w11", "w7", "w8", "w9"]);
    // A clock or randomness that it asks for does not differ: two runs have one checksum.
    let again = lab.go(request());
    assert_eq!(again.manifest.unwrap().checksum, m.checksum);
    assert!(lab.replay(m.run).unwrap().partitions[0].equal());
    // One more than may be: nothing is published, and the window is what it was.
    std::fs::write(lab.path("restitch.toml"), declared(&toml).replace("checks = []", &rule("5"))).unwrap();
    let before = checksum(&lab, "2025-10-21");
    let e = lab.try_go(request()).unwrap_err();
    assert!(e.kind() == ErrorKind::Validation && e.to_string().contains("max_quarantined of the dataset is 5"), "{e}");
    assert_ne!(before, Vec::<String>::new());
    assert_eq!(checksum(&lab, "2025-10-21"), before);
}

/// Case 40. Checks ran after the commit: the run was red, and readers had the bad rows.
#[test]
fn nothing_is_visible_before_it_is_checked_and_one_bad_day_holds_all_three() {
    let checks =
        "{ kind = \"not_null\", columns = [\"customer_id\"] }, { kind = \"row_count\", min = 1 }, { kind = \"range\", column = \"amount\", min = 0 }";
    let lab = lab("day", "UTC", checks);
    lab.land("good.jsonl", case("40-checked-after-publish/good.jsonl"));
    lab.run();
    let published =
        || lab.rows("select _partition, event_id, amount, (select max(snapshot_id) from ducklake_snapshot where snapshot_id = 2) from daily");
    assert_eq!(published(), ["2025-10-22 a 1.00 2"]);
    lab.land("bad.jsonl", case("40-checked-after-publish/bad.jsonl"));
    let request = || Lab::request(Kind::Backfill, Some(("2025-10-22", "2025-10-24")));
    let e = lab.try_go(request()).unwrap_err();
    let Error::Rejected { run, failed, .. } = &e else { panic!("{e}") };
    assert_eq!((e.kind().code(), failed.len()), (3, 2), "{failed:?}");
    // Published data and pointer are what they were, the staged rows can be looked at, and the manifest says rejected, and of which days.
    assert_eq!(published(), ["2025-10-22 a 1.00 2"]);
    assert_eq!(lab.rows("select partition, run from restitch_partitions"), ["2025-10-22 r1"]);
    let shown = lab.open().show(*run).unwrap().row.manifest;
    assert_eq!((shown.status, shown.published_snapshot, shown.partitions.len()), (Status::Rejected, None, 3));
    assert!(shown.partitions.iter().all(|p| lab.path("warehouse").join(&p.files[0].path).exists()));
    let detail: String = shown.checks.iter().filter(|c| !c.passed).filter_map(|c| c.detail.clone()).collect();
    assert!(detail.contains("2025-10-22") && detail.contains("2025-10-24") && !detail.contains("2025-10-23"), "{detail}");
    assert_eq!(lab.rows(&format!("select status from restitch_runs where run = '{run}'")), ["rejected"]);
    let out = restitch(&lab).args(["--json", "show", &run.to_string()]).output().unwrap();
    assert!(text(&out).contains("\"status\": \"rejected\""), "{}", text(&out));
    // An empty window does not pass by having nothing to look at.
    let empty = RunRequest { filter: Some("event_id = 'nobody'".into()), ..Lab::request(Kind::Backfill, Some(("2025-10-22", "2025-10-22"))) };
    assert!(matches!(lab.try_go(empty).unwrap_err(), Error::Rejected { failed, .. } if failed == ["row_count"]));
    // A check that cannot be evaluated blocks.
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    std::fs::write(lab.path("restitch.toml"), toml.replace(checks, "{ kind = \"sql\", sql = \"select nothing from output\" }")).unwrap();
    let e = lab.try_go(request()).unwrap_err();
    assert!(e.kind() != ErrorKind::Conflict && published() == ["2025-10-22 a 1.00 2"], "{}", chain(&e));
    assert_eq!(lab.rows("select count(*) from restitch_runs where status = 'published'"), ["1"]);
}

#[test]
fn a_backup_stands_outside_of_what_it_copies() {
    let lab = lab("day", "UTC", "");
    lab.land("a.jsonl", "{\"id\":\"a\",\"ts\":\"2025-10-21T00:00:00Z\",\"v\":1}\n");
    for inside in ["warehouse", "warehouse/staging/bk", "warehouse/data/main/bk"] {
        let e = lab.open().backup(&lab.path(inside)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Usage, "{inside}: {e}");
    }
    assert!(lab.open().backup(&lab.path("bk")).unwrap().files > 0);
}
