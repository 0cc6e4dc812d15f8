//! The main job, end to end: land, notice late data, repair exactly the affected partitions, prove it.
//! Each test is a story with the numbers of the requirement that it stands for.

use crate::support::{Lab, ORDERS, chain, component, names, order};
use restitch::{
    id::SnapshotId,
    manifest::{Kind, Mode, Status, Validation},
    pipeline::{Error, ErrorKind, RunRequest},
    plan::Reason,
};

/// R21: customer A with events 25, 10, 10 (the last two the same id) totals 35, B 7; twice the same.
fn lab_of_may() -> Lab {
    let lab = Lab::new(ORDERS);
    let day1 = [
        order("e1", "2026-05-01T09:00:00Z", "A", "25"),
        order("e2", "2026-05-01T10:00:00Z", "A", "10"),
        order("e2", "2026-05-01T10:00:00Z", "A", "10"),
    ];
    lab.land("day1.jsonl", day1.concat() + &order("e3", "2026-05-01T11:00:00Z", "B", "7"));
    lab.land("day2.jsonl", order("e4", "2026-05-02T09:00:00Z", "A", "1.50"));
    lab
}

const DAY_ONE: [&str; 3] = ["2026-05-01 A 2 35.00", "2026-05-01 B 1 7.00", "2026-05-02 A 1 1.50"];

#[test]
fn customer_a_totals_35_and_b_7_and_a_second_backfill_changes_nothing() {
    let lab = lab_of_may();
    let first = lab.run();
    assert_eq!(lab.published(), DAY_ONE);
    assert_eq!((first.partitions[0].records, first.partitions[0].duplicates, first.partitions[0].conflicts), (4, 1, 0));
    let again = lab.backfill("2026-05-01", "2026-05-02");
    assert_eq!(lab.published(), DAY_ONE);
    assert_eq!(first.checksum, again.checksum, "the same input and code, the same bits");
    assert!(again.partitions.iter().all(|p| (p.added, p.removed, p.changed) == (Some(0), Some(0), Some(0))));
    assert_eq!(names(&lab.plan(Kind::Run, None, None)), Vec::<String>::new(), "nothing is left to do");
}

/// R12, end to end.
#[test]
fn only_missing_plans_the_second_and_the_fourth() {
    let lab = Lab::new(ORDERS);
    lab.land("april.jsonl", (1..=4).map(|d| order(&format!("e{d}"), &format!("2026-04-0{d}T09:00:00Z"), "A", "1")).collect::<String>());
    lab.backfill("2026-04-01", "2026-04-01");
    lab.backfill("2026-04-03", "2026-04-03");
    let plan = lab.plan(Kind::Backfill, Some(("2026-04-01", "2026-04-04")), Some(Reason::Missing));
    assert_eq!(names(&plan), ["2026-04-02", "2026-04-04"]);
    assert_eq!((plan.files, plan.records()), (1, 2));
}

/// R6, R7, R10: late records are kept, queued, and change nothing until they are repaired.
#[test]
fn late_records_wait_in_the_queue_and_repair_touches_their_partitions_only() {
    let lab = lab_of_may();
    lab.run();
    let before = lab.rows("select max(snapshot_id) from ducklake_snapshot")[0].parse::<i64>().unwrap();
    let late = lab.land("late.jsonl", order("e5", "2026-05-01T23:00:00Z", "B", "3") + &order("e6", "2026-05-02T08:45:00Z", "C", "4"));
    assert_eq!(
        (late.files[0].counts.on_time, late.files[0].counts.repair),
        (1, 1),
        "08:45 is within 30 minutes of 09:00, 23:00 of the day before is not"
    );
    assert_eq!(lab.published(), DAY_ONE, "never appended in passing");
    assert_eq!(lab.rows("select partition, state, dirty from restitch_partitions order by 1"), ["2026-05-01 closed 1", "2026-05-02 open 0"]);
    assert_eq!(lab.rows("select partition, tier, records from restitch_queue"), ["2026-05-01 repair 1"]);
    assert_eq!(lab.rows("select _record_id, _offset, _flags, _file from raw_orders where _record_id = 'e5'").len(), 1);

    let repair = lab.repair();
    assert_eq!(repair.partitions.iter().map(|p| p.partition.as_str()).collect::<Vec<_>>(), ["2026-05-01"]);
    assert_eq!((repair.partitions[0].late, repair.partitions[0].changed, repair.partitions[0].added), (1, Some(1), Some(0)));
    assert_eq!(lab.published(), ["2026-05-01 A 2 35.00", "2026-05-01 B 2 10.00", "2026-05-02 A 1 1.50"]);
    assert_eq!(lab.rows("select count(*) from restitch_queue"), ["0"]);
    let proof = lab.open().verify(repair.run, &()).unwrap();
    assert_eq!(proof.failed, Vec::<String>::new());
    assert_eq!((proof.late.records, proof.late.counted, proof.others.partitions, proof.others.files), (1, 1, 1, 1));

    // Time travel to before the late file came in.
    let then = lab.rows_at("select _partition, customer_id, orders, total from daily order by 1, 2", Some(SnapshotId(before)));
    assert_eq!(then, DAY_ONE);

    // The rollback restores the rows, and with them the fact that a record waits.
    let rollback = lab.open().rollback(repair.run, false, Some("a test".into())).unwrap();
    assert_eq!(lab.published(), DAY_ONE);
    assert_eq!(lab.rows("select partition, dirty from restitch_partitions order by 1"), ["2026-05-01 1", "2026-05-02 0"]);
    let again = lab.open().rollback(repair.run, false, None).unwrap_err();
    assert_eq!(again.kind(), ErrorKind::Conflict, "{again}");
    // A rollback is a run, and can be undone.
    lab.open().rollback(rollback.run, false, None).unwrap();
    assert_eq!(lab.published()[1], "2026-05-01 B 2 10.00");
    assert_eq!(lab.rows("select count(*) from restitch_queue"), ["0"]);
}

#[test]
fn a_replay_gives_the_same_bits_after_newer_versions_and_newer_data() {
    let lab = lab_of_may();
    let first = lab.run();
    lab.land("late.jsonl", order("e5", "2026-05-01T08:00:00Z", "B", "-3"));
    lab.open().add_transform(&component("customer-totals-1.1.0.wasm")).unwrap();
    let newer = RunRequest {
        transform: restitch::config::TransformRef::parse("customer-totals@1.1.0"),
        reason: Some("credit notes no longer count".into()),
        validation: Validation::Warn,
        ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-02")))
    };
    let second = lab.go(newer).manifest.unwrap();
    assert_eq!(lab.published(), DAY_ONE, "the credit note does not count in 1.1.0");
    assert!(second.checks.iter().any(|c| !c.passed && c.kind == "balance"), "and the balance says so");
    let replayed = lab.replay(first.run).unwrap();
    assert!(replayed.partitions.iter().all(|p| p.equal()));
    assert_eq!(replayed.manifest.checksum, first.checksum);
    assert_eq!((replayed.manifest.kind, replayed.manifest.status), (Kind::Replay, Status::Done));
    assert!(lab.replay(second.run).unwrap().partitions.iter().all(|p| p.equal()));
    assert_eq!(
        names(&lab.plan(Kind::Backfill, Some(("2026-05-01", "2026-05-02")), Some(Reason::Stale))).len(),
        2,
        "made by a version that is not declared"
    );
}

#[test]
fn a_flipped_bit_in_a_published_file_is_found_and_does_not_come_back() {
    let lab = lab_of_may();
    let run = lab.run();
    let second = lab.backfill("2026-05-01", "2026-05-01");
    let flip = |path: &str| {
        let path = lab.path("warehouse").join(path);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[30] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    };
    flip(&second.partitions[0].files[0].path);
    let proof = lab.open().verify(second.run, &()).unwrap();
    assert!(proof.failed.iter().any(|f| f.contains("its bytes changed")), "{:?}", proof.failed);
    // The file of before is damaged too: a rollback to it is refused.
    flip(&run.partitions[0].files[0].path);
    let e = lab.open().rollback(second.run, false, None).unwrap_err();
    assert!(e.to_string().contains("was changed"), "{e}");
}

#[test]
fn a_rollback_to_nothing_can_be_rolled_back() {
    let lab = lab_of_may();
    let run = lab.run();
    let gone = lab.open().rollback(run.run, false, None).unwrap();
    assert_eq!(lab.rows("select count(*) from daily"), ["0"]);
    lab.open().rollback(gone.run, false, None).unwrap();
    assert_eq!(lab.published(), DAY_ONE);
}

#[test]
fn a_damaged_component_is_named_and_replays_nothing() {
    let lab = lab_of_may();
    let run = lab.run();
    let digest = run.recipe.transform_digest;
    let path = lab.path(&format!("warehouse/transforms/{digest}.wasm"));
    let mut bytes = std::fs::read(&path).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let e = lab.replay(run.run).unwrap_err();
    assert!(matches!(e, Error::Damaged { .. }), "{e}");
}

/// The lab of the issue: validation that fails publishes nothing; a publication found wrong afterwards is rolled back.
#[test]
fn a_failed_check_publishes_nothing_and_keeps_the_staged_rows() {
    let strict = ORDERS.replace("{ kind = \"row_count\", min = 0 }", "{ kind = \"row_count\", min = 0, max = 2 }");
    let lab = Lab::new(&strict);
    lab.land("day1.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25") + &order("e2", "2026-05-01T10:00:00Z", "B", "10"));
    let good = lab.run();
    lab.land("more.jsonl", order("e3", "2026-05-01T11:00:00Z", "C", "1"));
    let e = lab.try_go(Lab::request(Kind::Run, None)).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Validation);
    let Error::Rejected { run, failed, .. } = &e else { panic!("{e}") };
    assert_eq!(failed, &["row_count"]);
    assert_eq!(lab.published().len(), 2, "readers see what they saw");
    let shown = lab.open().show(*run).unwrap().row.manifest;
    assert_eq!(shown.status, Status::Rejected);
    let check = shown.checks.iter().find(|c| !c.passed).unwrap();
    assert_eq!((check.measured.as_str(), check.expected.as_str()), ("3 rows", "at least 0, at most 2"));
    assert!(lab.path("warehouse").join(&shown.partitions[0].files[0].path).exists(), "kept for inspection");
    lab.open().discard(*run).unwrap();
    assert!(!lab.path("warehouse").join(&shown.partitions[0].files[0].path).exists());
    assert_eq!(lab.open().publish(*run).unwrap_err().kind(), ErrorKind::Usage);
    // Warn lets it through, and says so; the rollback takes it back.
    let warned = lab.go(RunRequest { validation: Validation::Warn, ..Lab::request(Kind::Run, None) }).manifest.unwrap();
    assert_eq!(lab.published().len(), 3);
    lab.open().rollback(warned.run, false, None).unwrap();
    assert_eq!(lab.published().len(), 2);
    assert!(lab.replay(good.run).is_ok());
}

#[test]
fn a_dry_run_keeps_nothing_and_a_staged_run_waits() {
    let lab = lab_of_may();
    let dry = lab.go(RunRequest { mode: Mode::DryRun, ..Lab::request(Kind::Run, None) }).manifest.unwrap();
    assert_eq!((dry.status, dry.partitions.len()), (Status::Done, 2));
    assert!(!lab.path(&format!("warehouse/staging/{}", dry.run)).exists());
    assert_eq!(lab.rows("select count(*) from restitch_partitions"), ["0"]);
    let staged = lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Run, None) }).manifest.unwrap();
    assert_eq!((staged.status, staged.checksum), (Status::Staged, dry.checksum));
    let published = lab.open().publish(staged.run).unwrap();
    assert_eq!((published.status, lab.published().len()), (Status::Published, 3));
    assert!(!lab.path(&format!("warehouse/staging/{}", staged.run)).exists());
}

#[test]
fn a_swap_refuses_when_the_ground_moved_and_names_what_moved() {
    let lab = lab_of_may();
    let stage = || lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01"))) }).manifest.unwrap();
    let (first, second) = (stage(), stage());
    let other = lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some(("2026-05-02", "2026-05-02"))) }).manifest.unwrap();
    lab.open().publish(first.run).unwrap();
    let e = lab.open().publish(second.run).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict);
    assert_eq!(e.to_string(), format!("daily changed after this run read it: partition 2026-05-01 was published by {} (snapshot 3)", first.run));
    lab.open().publish(other.run).unwrap();
    assert_eq!(lab.published(), DAY_ONE, "another day does not conflict");
}

#[test]
fn a_staged_file_that_was_changed_is_not_published() {
    let lab = lab_of_may();
    let staged = lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Run, None) }).manifest.unwrap();
    let path = lab.path("warehouse").join(&staged.partitions[0].files[0].path);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[20] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let e = lab.open().publish(staged.run).unwrap_err();
    assert!(e.to_string().contains("was changed"), "{e}");
    assert_eq!(lab.rows("select count(*) from restitch_partitions"), ["0"]);
}

/// The plan says what is replaced, also with nothing.
#[test]
fn a_partition_without_records_is_published_empty_and_can_be_rolled_back() {
    let lab = lab_of_may();
    let run = lab.backfill("2026-05-01", "2026-05-04");
    assert_eq!(run.partitions.iter().map(|p| p.rows).collect::<Vec<_>>(), [2, 1, 0, 0]);
    let none =
        lab.go(RunRequest { filter: Some("customer_id = 'nobody'".into()), ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01"))) });
    assert_eq!(none.manifest.as_ref().unwrap().partitions[0].removed, Some(2));
    assert_eq!(lab.published(), ["2026-05-02 A 1 1.50"]);
    lab.open().rollback(none.manifest.unwrap().run, false, None).unwrap();
    assert_eq!(lab.published(), DAY_ONE);
    lab.open().rollback(run.run, true, None).unwrap();
    assert_eq!(lab.rows("select count(*) from daily"), ["0"]);
    assert_eq!(lab.rows("select count(*) from restitch_partitions"), ["0"], "what was not there is not there again");
}

#[test]
fn rejects_are_kept_with_reason_and_bounded() {
    let lab = Lab::new(&ORDERS.replace("max_rejects = \"100\"", "max_rejects = \"1\""));
    let bad = "{\"event_id\":\"b\",\"event_time\":\"yesterday\"}\n";
    let landed = lab.land("one.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "1") + bad);
    assert_eq!((landed.files[0].records, landed.files[0].rejects), (1, 1));
    assert_eq!(lab.rows("select _offset, _payload from raw_orders_rejects").len(), 1);
    let e = lab.try_land("orders", "two.jsonl", format!("{bad}{bad} ")).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Validation);
    assert!(e.hint().unwrap().contains("two.jsonl:1: "), "{:?}", e.hint());
    assert_eq!(lab.rows("select count(*) from raw_orders_rejects"), ["1"], "nothing of it was landed");
    let left = std::fs::read_dir(lab.path("warehouse/staging"))
        .unwrap()
        .filter(|e| !e.as_ref().unwrap().file_name().to_string_lossy().ends_with(".lock"))
        .count();
    assert_eq!(left, 0);
}

#[test]
fn a_version_is_bound_to_its_bytes_for_ever() {
    let lab = Lab::new(ORDERS);
    let (_, added) = lab.open().add_transform(&component("customer-totals-1.0.0.wasm")).unwrap();
    assert_eq!(added, restitch::pipeline::Added::Known, "the same bytes again are no news");
    let e = lab.open().add_transform(&component("misbehave-sockets-1.0.0.wasm")).unwrap_err();
    assert!(chain(&e).contains("restitch:evil/sockets"), "{}", chain(&e));
    let e = lab
        .try_go(RunRequest { transform: restitch::config::TransformRef::parse("customer-total@1.0.0"), ..Lab::request(Kind::Run, None) })
        .unwrap_err();
    assert_eq!((e.kind(), e.hint().as_deref()), (ErrorKind::Usage, Some("did you mean \"customer-totals@1.0.0\"?")));
}

#[test]
fn bad_requests_say_what_is_wrong_and_change_nothing() {
    let lab = lab_of_may();
    let refuse = |request: RunRequest, message: &str| {
        let e = lab.try_go(request).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Usage, "{e}");
        assert!(chain(&e).contains(message), "{} / {message}", chain(&e));
    };
    refuse(Lab::request(Kind::Backfill, Some(("2026-05-02", "2026-05-01"))), "not after its start");
    refuse(Lab::request(Kind::Backfill, None), "a backfill needs --start and --end");
    refuse(RunRequest { dataset: "dayly".into(), ..Lab::request(Kind::Run, None) }, "there is no dataset \"dayly\"");
    refuse(RunRequest { filter: Some("amout > 1".into()), ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01"))) }, "amout");
    refuse(
        RunRequest { filter: Some("amount > 1".into()), ..Lab::request(Kind::Repair, None) },
        "a filter on repair would publish partitions that look whole",
    );
    refuse(RunRequest { snapshot: Some(SnapshotId(99)), ..Lab::request(Kind::Run, None) }, "there is no snapshot 99");
    refuse(RunRequest { params: vec![("currancy".into(), "EUR".into())], ..Lab::request(Kind::Run, None) }, "currancy");
    refuse(Lab::request(Kind::Backfill, Some(("2026-05-01T06:00Z", "2026-05-02"))), "inside the day partition 2026-05-01");
    assert_eq!(lab.rows("select count(*) from restitch_runs"), ["0"]);
}

#[test]
fn old_late_records_wait_for_somebodys_word() {
    let lab = lab_of_may();
    lab.backfill("2026-04-20", "2026-05-02");
    lab.land("old.jsonl", order("e8", "2026-04-20T08:00:00Z", "B", "3"));
    let e = lab.try_go(Lab::request(Kind::Repair, None)).unwrap_err();
    assert_eq!((e.kind(), e.kind().code()), (ErrorKind::Approval, 5));
    assert_eq!(lab.plan(Kind::Run, None, None).waiting[0].tier, "approval");
    lab.backfill("2026-04-20", "2026-04-20");
    assert_eq!(lab.published()[0], "2026-04-20 B 1 3.00");
    assert!(lab.go(Lab::request(Kind::Repair, None)).manifest.is_none());
}
