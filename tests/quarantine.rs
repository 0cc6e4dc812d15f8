//! Records that a transform fails on: found, left out, kept with the reason, counted, and left out again by a replay.
//! Never waits for a limit on time but where that is what is tested: instructions are counted instead.

use crate::support::{Lab, chain, component, order};
use restitch::{
    config::TransformRef,
    id::RunId,
    manifest::{Kind, Manifest, Mode},
    pipeline::{Candidate, Error, ErrorKind, RunRequest, TrialRequest},
};
use std::process::Command;

/// `v` is added up on both sides; `do` says how the transform fails on a row.
const ROWS: &str = r#"
[warehouse]
path = "warehouse"
[source.orders]
format = "jsonl"
event_time = "ts"
record_id = "id"
repair_window = "4000d"
[source.orders.columns]
id = { type = "string", nullable = false }
ts = { type = "timestamp", nullable = false }
do = { type = "string" }
v  = { type = "int64" }
[dataset.daily]
input = "orders"
transform = "misbehave-rows@1.0.0"
partition = "day"
dedup = { key = ["id"], keep = "latest_ingested" }
on_row_failure = "quarantine"
max_quarantined = "10"
checks = [{ kind = "balance", name = "sum", input = "coalesce(sum(v), 0)", output = "coalesce(sum(v), 0)" }]
limits = { memory = "64MiB", output = "256KiB", fuel = 20000000 }
"#;

fn lab_of(toml: &str) -> Lab {
    let lab = Lab::new(toml);
    lab.open().add_transform(&component("misbehave-rows-1.0.0.wasm")).unwrap();
    lab
}

pub fn lab() -> Lab {
    lab_of(ROWS)
}

/// Records of one day, numbered: those in `bad` fail in their way. Each is worth its number.
pub fn records(day: u32, count: usize, bad: &[(usize, &str)]) -> String {
    let how = |i: usize| bad.iter().find(|(at, _)| *at == i).map_or("ok", |(_, how)| how);
    let line = |i: usize| {
        let (seconds, how) = (i % 86_400, how(i));
        let at = format!("2026-05-{day:02}T{:02}:{:02}:{:02}Z", seconds / 3600, seconds / 60 % 60, seconds % 60);
        format!("{{\"id\":\"{day}-{i}\",\"ts\":\"{at}\",\"do\":\"{how}\",\"v\":{i}}}\n")
    };
    (0..count).map(line).collect()
}

/// The records of a run in quarantine: partition, id, place in the file, reason.
fn quarantine(m: &Manifest) -> Vec<String> {
    let one = |p: &str, q: &restitch::manifest::Quarantined| {
        format!("{p} {} {}:{} {}", q.record_id, q.file.rsplit('/').next().unwrap(), q.offset, q.reason)
    };
    m.partitions.iter().flat_map(|p| p.quarantined.iter().map(|q| one(&p.partition, q))).collect()
}

fn backfill(mode: Mode) -> RunRequest {
    RunRequest { mode, ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-02"))) }
}

fn said(lab: &Lab, words: &[&str]) -> (String, Option<i32>) {
    let out = Command::new(env!("CARGO_BIN_EXE_restitch")).arg("-C").arg(lab.folder.path()).args(["--now", lab.now]).args(words).output().unwrap();
    (format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)), out.status.code())
}

#[test]
fn bad_records_are_left_out_named_counted_and_left_out_again() {
    let lab = lab();
    // A record that came twice counts once, and the transform is sent the later one.
    lab.land("a.jsonl", records(1, 40, &[(7, "err"), (20, "trap")]) + &records(2, 10, &[]));
    lab.land("b.jsonl", records(1, 3, &[(1, "spin")]));
    let m = lab.run();
    let found = quarantine(&m);
    assert_eq!(found.len(), 3, "{found:?}");
    assert_eq!(found[0], "2026-05-01 1-7 a.jsonl:8 refused: 1-7 is refused");
    assert!(found[1].starts_with("2026-05-01 1-20 a.jsonl:21 it died: panicked at ") && found[1].ends_with("row 1-20 is a trap"), "{}", found[1]);
    assert_eq!(found[2], "2026-05-01 1-1 b.jsonl:2 it executed more than 20000000 instructions (limits.fuel)");
    let day = &m.partitions[0];
    assert_eq!((day.records, day.duplicates, day.quarantined.len(), day.rows), (43, 3, 3, 37));
    assert_eq!(m.recipe.quarantine.unwrap().to_string(), "10");
    // The balance counts them: 780 in, and 7, 20 and 1 of it in quarantine.
    assert!(m.checks[0].passed, "{:?}", m.checks);
    let one = lab.backfill("2026-05-01", "2026-05-01");
    assert_eq!((one.checks[0].passed, one.checks[0].measured.as_str()), (true, "780 in, 752 out, 28 in quarantine"));
    assert_eq!(one.partitions[0].checksum, m.partitions[0].checksum);
    // The original stays in raw, and the way to it is there.
    let sql = "select r.v from restitch_quarantined q join raw_orders r on r._file = q.file and r._offset = q.file_offset where q.dataset = 'daily' order by 1";
    assert_eq!(lab.rows(sql), ["1", "7", "20"]);
    // A replay leaves out the same, without a search, and a proof holds.
    let again = lab.replay(one.run).unwrap();
    assert_eq!(quarantine(&again.manifest), quarantine(&one));
    assert_eq!(again.manifest.partitions[0].input_checksum, one.partitions[0].input_checksum);
    assert!(again.partitions.iter().all(|p| p.equal() && p.input_equal));
    let proof = lab.open().verify(one.run, &()).unwrap();
    assert!(proof.failed.is_empty(), "{:?}", proof.failed);
    // A corrected record comes: what is in quarantine shrinks, and the history stays by run.
    lab.land("c.jsonl", records(1, 8, &[]).lines().last().unwrap().to_owned() + "\n");
    let fixed = lab.backfill("2026-05-01", "2026-05-01");
    assert_eq!(quarantine(&fixed).len(), 2);
    assert_eq!(lab.rows("select count(*) from restitch_quarantined"), ["2"]);
    assert_eq!(
        lab.rows("select run_id, count(*) from restitch_quarantine where dataset = 'daily' group by 1 order by 1"),
        ["1 3", "2 3", "3 3", "4 2"]
    );
    // A rollback brings back what was in quarantine then.
    lab.open().rollback(fixed.run, false, None).unwrap();
    assert_eq!(lab.rows("select record_id from restitch_quarantined order by 1"), ["1-1", "1-20", "1-7"]);
}

#[test]
fn what_is_in_quarantine_is_said_wherever_one_looks() {
    let lab = lab();
    lab.land("a.jsonl", records(1, 30, &[(7, "err"), (20, "trap")]));
    let (text, code) = said(&lab, &["run", "daily"]);
    assert_eq!(code, Some(0), "{text}");
    let parts = [
        "quarantined",
        "In quarantine, because misbehave-rows@1.0.0 fails on them: 2 records.",
        "refused: 1-7 is refused",
        "SELECT * FROM restitch_quarantine WHERE run_id = 1",
        "435 in, 408 out, 27 in quarantine",
    ];
    parts.iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    let (text, _) = said(&lab, &["show", "r1"]);
    ["at most 10 of a partition", "1-20", "row 1-20 is a trap"].iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    let (text, _) = said(&lab, &["status"]);
    ["2 records in quarantine", "SELECT * FROM restitch_quarantined WHERE dataset = 'daily'"]
        .iter()
        .for_each(|p| assert!(text.contains(p), "{text}"));
    let (text, _) = said(&lab, &["why", "daily", "2026-05-01"]);
    ["2 in quarantine", "without 1-7 (", "line or row 8): refused"].iter().for_each(|part| assert!(text.contains(part), "{part}: {text}"));
    let (text, _) = said(&lab, &["query", "SELECT * FROM restitch_quarantined WHERE dataset = 'daily'"]);
    assert!(text.contains("2026-05-01T00:00:20Z") && text.contains("1-20"), "{text}");
}

#[test]
fn a_staged_run_and_a_dry_one_keep_what_they_found() {
    let lab = lab();
    lab.land("a.jsonl", records(1, 30, &[(7, "err")]));
    let dry = lab.go(backfill(Mode::DryRun)).manifest.unwrap();
    assert_eq!(lab.open().show(dry.run).unwrap().row.manifest.partitions[0].quarantined, dry.partitions[0].quarantined);
    let staged = lab.go(backfill(Mode::Stage)).manifest.unwrap();
    assert_eq!(lab.rows("select count(*) from restitch_quarantined"), ["0"]);
    let published = lab.open().publish(staged.run).unwrap();
    assert_eq!(quarantine(&published), quarantine(&dry));
    assert_eq!(lab.rows("select record_id from restitch_quarantined"), ["1-7"]);
}

#[test]
fn a_partition_larger_than_memory_comes_out_the_same() {
    let bad = [(0, "trap"), (2_999, "err"), (3_000, "grow"), (5_999, "late")];
    let run = |memory_bytes: usize, workers: usize| {
        let mut lab = lab();
        (lab.memory_bytes, lab.workers) = (memory_bytes, workers);
        lab.land("a.jsonl", records(1, 6_000, &bad) + &records(2, 50, &[(49, "trap")]));
        let m = lab.run();
        assert!(lab.replay(m.run).unwrap().partitions.iter().all(|p| p.equal()));
        let records = m.partitions.iter().map(|p| (p.checksum, p.input_checksum, p.quarantined.clone())).collect::<Vec<_>>();
        let at = |q: &restitch::manifest::Quarantined| (q.record_id.clone(), q.offset, q.seq, q.reason.clone());
        records.into_iter().map(|(c, i, q)| (c, i, q.iter().map(at).collect::<Vec<_>>())).collect::<Vec<_>>()
    };
    let held = run(64 << 20, 2);
    let ids: Vec<&str> = held.iter().flat_map(|p| p.2.iter().map(|q| q.0.as_str())).collect();
    assert_eq!(ids, ["1-0", "1-2999", "1-3000", "1-5999", "2-49"]);
    assert_eq!(run(1 << 20, 1), held);
}

#[test]
fn what_no_single_record_is_to_blame_for_fails_the_run() {
    let fails = |toml: &str, bad: &[(usize, &str)]| {
        let lab = lab_of(toml);
        lab.land("a.jsonl", records(1, 20, bad));
        let e = lab.try_go(Lab::request(Kind::Run, None)).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Failed);
        assert_eq!(lab.rows("select count(*) from restitch_quarantine"), ["0"]);
        chain(&e)
    };
    let with = |always: &str| ROWS.replace("partition = \"day\"", &format!("partition = \"day\"\nparams = {{ always = {always:?} }}"));
    let blameless = |why: &str| format!("transform misbehave-rows@1.0.0 failed in partition 2026-05-01, and no single record is to blame: {why}");
    let text = fails(ROWS, &[(3, "pair"), (9, "pair")]);
    assert!(text.starts_with(&blameless("it fails on several records together, and on none of them alone: it died: ")), "{text}");
    let text = fails(&with("finish"), &[]);
    assert!(text.starts_with(&blameless("it fails without any record too: it died: ")) && text.contains("it never finishes"), "{text}");
    // What fails before there is a record, or says that it is no record's fault, or names one that is not there.
    let text = fails(&with("begin"), &[]);
    assert!(
        text.starts_with("transform misbehave-rows@1.0.0 failed in partition 2026-05-01: it died: ") && text.contains("it never begins"),
        "{text}"
    );
    assert!(fails(ROWS, &[(3, "other")]).ends_with("failed in partition 2026-05-01: a reason of its own"));
    // Without the rule a bad record fails the run, as ever.
    let text = fails(&ROWS.replace("on_row_failure = \"quarantine\"\nmax_quarantined = \"10\"", ""), &[(3, "err")]);
    assert!(
        text.ends_with("failed in partition 2026-05-01: input \"rows\", row 3 of the batch: 3 is refused") || text.contains("1-3 is refused"),
        "{text}"
    );
}

#[test]
fn a_record_that_is_named_wrongly_is_found_all_the_same() {
    let lab = lab();
    lab.land("a.jsonl", records(1, 20, &[(11, "lie"), (12, "big")]));
    let found = quarantine(&lab.run());
    assert_eq!(found.len(), 2);
    assert_eq!(found[0], "2026-05-01 1-11 a.jsonl:12 refused: a row that is not there");
    assert_eq!(found[1], "2026-05-01 1-12 a.jsonl:13 it returned more than 262144 bytes (limits.output)");
}

#[test]
fn more_than_may_be_is_refused_with_the_first_of_them() {
    let bad: Vec<(usize, &str)> = (0..12).map(|i| (i, "err")).collect();
    for (max, records_found) in [("10", "11 of 100"), ("2%", "3 of 100")] {
        let lab = lab_of(&ROWS.replace("max_quarantined = \"10\"", &format!("max_quarantined = {max:?}")));
        lab.land("a.jsonl", records(1, 100, &bad));
        let e = lab.try_go(Lab::request(Kind::Run, None)).unwrap_err();
        let expected = format!(
            "partition 2026-05-01: transform misbehave-rows@1.0.0 fails on {records_found} record(s) at least, and max_quarantined of the dataset is {max}"
        );
        assert_eq!((e.kind(), e.to_string()), (ErrorKind::Validation, expected));
        let hint = e.hint().unwrap();
        assert!(hint.starts_with("max_quarantined of [dataset.daily] raises the bound; the first are\n"), "{hint}");
        assert!(hint.contains("a.jsonl, line or row 2: record 1-1: refused: 1-1 is refused"), "{hint}");
        assert!(matches!(e, Error::Execute(_)));
        assert_eq!(lab.rows("select status, partitions from restitch_runs"), ["failed 1"]);
    }
}

#[test]
fn a_record_that_hangs_is_found_by_the_clock_too() {
    let lab = lab_of(&ROWS.replace("fuel = 20000000", "time = \"2s\""));
    lab.land("a.jsonl", records(1, 3, &[(1, "sleep")]));
    let found = quarantine(&lab.run());
    assert_eq!(found, ["2026-05-01 1-1 a.jsonl:2 it ran longer than 2000 ms (limits.time)"]);
}

#[test]
fn each_limit_names_itself_its_value_the_partition_and_its_key() {
    let toml = ROWS.replace("on_row_failure = \"quarantine\"\nmax_quarantined = \"10\"", "");
    let table = [
        ("spin", "it executed more than 20000000 instructions (limits.fuel)", "raise limits.fuel of the dataset"),
        ("grow", "it needs more than 67108864 bytes of memory (limits.memory)", "raise limits.memory of the dataset"),
        ("big", "it returned more than 262144 bytes (limits.output)", "raise limits.output of the dataset"),
        (
            "trap",
            "row 1-2 is a trap",
            "it died in restitch:transform/transform@1.0.0#push (the innermost function first); the last lines of its log:\n  error panicked at",
        ),
    ];
    for (how, cause, hint) in table {
        let lab = lab_of(&toml);
        lab.land("a.jsonl", records(1, 5, &[(2, how)]));
        let (text, code) = said(&lab, &["run", "daily"]);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("failed in partition 2026-05-01") && text.contains(cause) && text.contains(hint), "{how}: {text}");
    }
}

#[test]
fn a_proof_in_small_batches_blames_the_same_record() {
    let lab = lab();
    lab.land("a.jsonl", records(1, 40, &[(7, "err"), (20, "trap")]));
    let candidate = Candidate::Registered(TransformRef::parse("misbehave-rows@1.0.0").unwrap());
    let (start, end) = ("2026-05-01".to_owned(), None);
    let request = TrialRequest { candidate, dataset: "daily".into(), start, end, snapshot: None, grant_payload: None, params: Vec::new() };
    let trials = lab.open().try_out(&request, &()).unwrap();
    assert_eq!(trials.differing().count(), 0, "{trials:?}");
    assert_eq!((trials.quarantined, trials.rows), (2, 38));
}

#[test]
fn a_transforms_words_do_not_rule_the_terminal() {
    let lab = lab_of(&ROWS.replace("on_row_failure = \"quarantine\"\nmax_quarantined = \"10\"\n", ""));
    for how in ["err", "trap"] {
        lab.land(&format!("{how}.jsonl"), records(1, 1, &[(0, how)]).replace("1-0", r"\u001b]0;title\u0007\u009b31m\nHint: forged"));
        let (text, code) = said(&lab, &["run", "daily"]);
        assert!(code == Some(1) && text.contains("\u{fffd}]0;title\u{fffd}\u{fffd}31m"), "{text}");
        assert!(!text.contains(|c: char| c.is_control() && c != '\n') && !text.lines().any(|line| line.starts_with("Hint: forged")), "{text}");
    }
}

#[test]
fn a_trial_that_meets_a_limit_proves_nothing_of_the_rows() {
    let lab = lab_of(&ROWS.replace("on_row_failure = \"quarantine\"\nmax_quarantined = \"10\"\n", ""));
    // Each batch that comes back counts for a kilobyte at least: one for each row is more than limits.output.
    lab.land("a.jsonl", records(1, 300, &[]));
    let (text, code) = said(&lab, &["transform", "prove", "misbehave-rows@1.0.0", "daily", "--start", "2026-05-01"]);
    let first = "  batches of 1 row: it could not be carried out: transform misbehave-rows@1.0.0 failed in partition 2026-05-01: it returned more than 262144 bytes";
    let error = "Error: transform misbehave-rows@1.0.0 could not be tried with: batches of 1 row\n";
    assert!(text.contains(first) && text.contains(error) && text.contains("Hint: raise limits.output"), "{text}");
    assert!(code == Some(1) && !text.contains("repeat itself") && !text.contains("Equal bit for bit"), "{code:?} {text}");
}

#[test]
fn what_a_filtered_merge_did_not_read_stays_in_quarantine() {
    let lab = lab();
    lab.land("a.jsonl", records(1, 40, &[(7, "err"), (20, "err")]));
    lab.run();
    lab.go(RunRequest { filter: Some("v > 15".into()), ..backfill(Mode::Merge) });
    let left = || lab.rows("select run, record_id from restitch_quarantined order by 2");
    assert_eq!(left(), ["r2 1-20", "r1 1-7"]);
    // One that reads everything says anew what is left out.
    lab.go(backfill(Mode::Merge));
    assert_eq!(left(), ["r3 1-20", "r3 1-7"]);
}

/// `clean-orders` fails on a blank id, and its rows have a time.
fn lab_of_orders() -> Lab {
    let columns = "customer_id = { type = \"string\" }\namount = { type = \"decimal(18,2)\" }";
    let toml = ROWS
        .replace("event_time = \"ts\"\nrecord_id = \"id\"", "event_time = \"event_time\"")
        .replace("\nid = {", "\nevent_id = {")
        .replace("\nts = {", "\nevent_time = {")
        .replace("do = { type = \"string\" }\nv  = { type = \"int64\" }", columns)
        .replace("misbehave-rows@1.0.0\"", "clean-orders@1.0.0\"\ntime_column = \"event_time\"");
    let toml: String = toml.lines().filter(|l| !l.starts_with("checks") && !l.starts_with("dedup")).map(|l| format!("{l}\n")).collect();
    let lab = Lab::new(&toml);
    lab.open().add_transform(&component("clean-orders-1.0.0.wasm")).unwrap();
    lab
}

/// What a run had put its rows among comes back with it, and so does what these were computed without.
#[test]
fn a_rollback_to_a_merge_or_a_delete_insert_brings_back_what_lies_below_it() {
    let (merged, cut) = (lab(), lab_of_orders());
    merged.land("a.jsonl", records(1, 40, &[(7, "err"), (20, "err")]));
    merged.run();
    merged.go(RunRequest { filter: Some("v > 15".into()), ..backfill(Mode::Merge) });
    let at = |hour: u32, id: &str| order(id, &format!("2026-05-01T{hour:02}:00:00Z"), "A", "1");
    cut.land("a.jsonl", at(3, " ") + &at(10, "good") + &at(15, "  "));
    cut.run();
    let (start, end) = (Some("2026-05-01T10:00:00Z".into()), Some("2026-05-02T00:00:00Z".into()));
    cut.go(RunRequest { start, end, ..backfill(Mode::DeleteInsert) });
    for (lab, good) in [(&merged, "v = 2"), (&cut, "event_id = 'good'")] {
        // In order of time: the first was left out by the run below, the second by the run itself.
        let check = |want: &[&str]| {
            assert_eq!(lab.rows("select run from restitch_quarantined order by event_time"), want, "{good}");
            assert_eq!(lab.open().status(None).unwrap().1[0].partitions[0].quarantined, want.len() as u64, "{good}");
        };
        let roll_back = |run: i64, force: bool| drop(lab.open().rollback(RunId(run), force, None).unwrap());
        check(&["r1", "r2"]);
        lab.go(RunRequest { filter: Some(good.into()), ..backfill(Mode::Overwrite) });
        check(&[]);
        roll_back(3, false);
        check(&["r1", "r4"]);
        roll_back(4, false);
        check(&[]);
        // A rollback of a rollback of a rollback.
        roll_back(5, false);
        check(&["r1", "r6"]);
        roll_back(2, true);
        check(&["r7", "r7"]);
    }
}
