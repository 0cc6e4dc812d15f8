//! Write modes: a merge by key, and a delete-insert of a window that need not follow partition borders.
//! What is counted, what stays, what is settled, and what is refused; a model in the test says what the rows have to be.

use crate::{
    interop::lake,
    support::{Lab, ORDERS, Random, chain, component, order},
};
use restitch::{
    manifest::{Kind, Manifest, Mode, Status, WriteMode},
    pipeline::{Error, ErrorKind, RunRequest},
    plan::{BoundPlan, Reason},
    time::{DAY_US, parse},
};
use std::collections::{BTreeMap, BTreeSet};

/// One row for each order, with its time.
fn rows_lab() -> Lab {
    let toml = ORDERS
        .replace("customer-totals@1.0.0", "clean-orders@1.0.0")
        .replace("key = [\"customer_id\"]", "key = [\"event_id\"]\ntime_column = \"event_time\"");
    let checks = toml.find("checks = [").unwrap();
    let lab = Lab::new(&format!("{}checks = []\n", &toml[..checks]));
    lab.open().add_transform(&component("clean-orders-1.0.0.wasm")).unwrap();
    lab
}

fn rows(lab: &Lab) -> Vec<String> {
    lab.rows("select event_id, event_time, customer_id, amount from daily order by 2, 1")
}

fn merge(window: (&str, &str), filter: Option<&str>) -> RunRequest {
    RunRequest { mode: Mode::Merge, filter: filter.map(str::to_owned), ..Lab::request(Kind::Backfill, Some(window)) }
}

fn delete_insert(window: (&str, &str)) -> RunRequest {
    RunRequest { mode: Mode::DeleteInsert, ..Lab::request(Kind::Backfill, Some(window)) }
}

fn go(lab: &Lab, request: RunRequest) -> Manifest {
    lab.go(request).manifest.unwrap()
}

/// inserted, updated, unchanged, target only, deleted; and whether the files stayed.
type Counts = ([Option<u64>; 5], bool);

fn counts(m: &Manifest) -> Vec<Counts> {
    m.partitions.iter().map(|p| ([p.inserted, p.updated, p.unchanged, p.target_only, p.deleted], p.kept)).collect()
}

fn merged(n: [u64; 4], kept: bool) -> Counts {
    ([Some(n[0]), Some(n[1]), Some(n[2]), Some(n[3]), None], kept)
}

fn replaced(inserted: u64, left: u64, deleted: u64) -> Counts {
    ([Some(inserted), None, None, Some(left), Some(deleted)], false)
}

fn dirty(lab: &Lab) -> Vec<String> {
    lab.rows("select partition from restitch_partitions where dirty = 1 order by 1")
}

const DAY: (&str, &str) = ("2026-05-01", "2026-05-01");

/// Two days of totals per customer, and late records for A and D on the first.
fn totals_lab() -> Lab {
    let lab = Lab::new(ORDERS);
    let day = |id: &str, customer: &str, amount: &str| order(id, "2026-05-01T09:00:00Z", customer, amount);
    lab.land("1.jsonl", day("e1", "A", "25") + &day("e2", "B", "10") + &day("e3", "C", "7") + &order("e9", "2026-05-03T09:00:00Z", "A", "1"));
    lab.run();
    lab.land("late.jsonl", day("e4", "A", "5") + &day("e5", "D", "3"));
    lab
}

#[test]
fn a_merge_counts_what_became_of_each_row_and_leaves_the_rest() {
    let lab = totals_lab();
    let other = lab.rows("select checksum from restitch_partitions where partition = '2026-05-03'");
    let feed = Some("customer_id in ('A', 'D')");
    let dry = go(&lab, RunRequest { mode: Mode::DryRun, write: WriteMode::Merge, ..merge(DAY, feed) });
    assert_eq!((dry.status, dry.mode, counts(&dry)), (Status::Done, Mode::DryRun, vec![merged([1, 1, 0, 2], false)]));
    let run = go(&lab, merge(DAY, feed));
    assert_eq!((run.mode, counts(&run)), (Mode::Merge, vec![merged([1, 1, 0, 2], false)]));
    let p = &run.partitions[0];
    assert_eq!((p.rows, p.added, p.removed, p.changed), (4, Some(1), Some(0), Some(1)));
    assert_eq!(run.checksum, dry.checksum);
    let want = ["2026-05-01 A 2 30.00", "2026-05-01 B 1 10.00", "2026-05-01 C 1 7.00", "2026-05-01 D 1 3.00", "2026-05-03 A 1 1.00"];
    assert_eq!(lab.published(), want);
    let duckdb = lake(["sql", &lab.catalog(), "SELECT customer_id, orders FROM lake.daily WHERE _partition = '2026-05-01' ORDER BY 1"]);
    let read: Vec<_> = duckdb.iter().map(|r| (r["customer_id"].as_str().unwrap(), r["orders"].as_i64().unwrap())).collect();
    assert_eq!(read, [("A", 2), ("B", 1), ("C", 1), ("D", 1)]);
    assert_eq!(run.others.unwrap().partitions, 1);
    assert_eq!(lab.rows("select checksum from restitch_partitions where partition = '2026-05-03'"), other);
    // The rows that stand are the base of the next, by run and hash.
    assert_eq!(run.bases.iter().map(|b| (b.partition.as_str(), b.run.0, b.rows)).collect::<Vec<_>>(), [("2026-05-01", 1, 3)]);
    assert_eq!(run.bases[0].checksum, p.prior_checksum.unwrap());
    // Not all records of the day were read, so the late ones still wait.
    assert_eq!(dirty(&lab), ["2026-05-01"]);
    let file = || std::fs::read_dir(lab.path("warehouse/data/main/daily")).unwrap().count();
    let before = file();
    let again = go(&lab, merge(DAY, feed));
    assert_eq!(counts(&again), [merged([0, 0, 2, 2], true)]);
    assert_eq!((again.partitions[0].checksum, again.partitions[0].files.clone()), (p.checksum, p.files.clone()));
    assert_eq!(file(), before, "the file stays");
    // All of the day's records: nothing is in the target alone, so it is what an overwrite gives.
    let whole = go(&lab, merge(DAY, None));
    assert_eq!(counts(&whole), [merged([0, 0, 4, 0], true)]);
    assert_eq!((dirty(&lab), file(), lab.published()), (vec![], before, want.map(str::to_owned).to_vec()));
    let overwritten = lab.backfill(DAY.0, DAY.1);
    assert_eq!(overwritten.partitions[0].checksum, whole.partitions[0].checksum);
    let report = lab.open().doctor(false).unwrap();
    assert!(report.healthy() && report.orphans.is_empty(), "{report:?}");
    for run in [&run, &again, &whole] {
        assert!(lab.replay(run.run).unwrap().partitions.iter().all(|p| p.equal()));
    }
    let proof = lab.open().verify(overwritten.run, &()).unwrap();
    assert_eq!((proof.failed, proof.note), (vec![], None));
}

/// What is published is input here: changed bytes are not merged into, and not replayed from.
#[test]
fn damaged_published_rows_are_refused() {
    let lab = totals_lab();
    let path = lab.path("warehouse/data/main/daily/r1/2026-05-01-r1-0.parquet");
    let sound = std::fs::read(&path).unwrap();
    let flip = || {
        let mut bytes = sound.clone();
        let at = bytes.windows(8).rposition(|w| w == b"restitch").unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, bytes).unwrap();
    };
    flip();
    let refused = |e: Error| matches!(e, Error::Input { .. }) && e.to_string().contains("r1/2026-05-01-r1-0.parquet");
    assert!(refused(lab.try_go(merge(DAY, None)).unwrap_err()));
    assert_eq!(lab.rows("select status from restitch_runs order by run"), ["published", "failed"]);
    std::fs::write(&path, &sound).unwrap();
    let run = go(&lab, merge(DAY, None));
    flip();
    assert!(refused(lab.replay(run.run).unwrap_err()));
    std::fs::remove_file(&path).unwrap();
    assert!(matches!(lab.replay(run.run).unwrap_err(), Error::BaseGone { .. }));
}

#[test]
fn a_merge_of_nothing_is_a_run_that_changes_nothing() {
    let lab = totals_lab();
    let before = lab.published();
    let run = go(&lab, merge(("2026-05-01", "2026-05-03"), Some("customer_id = 'nobody'")));
    assert_eq!(counts(&run), [merged([0, 0, 0, 3], true), merged([0, 0, 0, 0], false), merged([0, 0, 0, 1], true)]);
    assert_eq!(lab.published(), before);
    // A day that was not there is not there: the run has not looked at all of its records. It is replayed, proven and taken back as what it is.
    let published = || lab.rows("select partition, rows from restitch_partitions order by 1");
    assert_eq!((published(), run.partitions[1].checksum), (vec!["2026-05-01 3".to_owned(), "2026-05-03 1".into()], None));
    assert!(lab.replay(run.run).unwrap().partitions.iter().all(|p| p.equal()));
    assert_eq!(lab.open().verify(run.run, &()).unwrap().failed, Vec::<String>::new());
    lab.open().rollback(run.run, false, None).unwrap();
    assert_eq!(published().len(), 2);
    // All records were read, and there are none: that is what an overwrite publishes.
    go(&lab, merge(("2026-05-02", "2026-05-02"), None));
    assert_eq!(published()[1], "2026-05-02 0");
    let rows = rows_lab();
    rows.land("1.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "1") + &order("e2", "2026-05-01T11:00:00Z", "A", "1"));
    rows.run();
    let window = ("2026-05-01T10:00", "2026-05-01T12:00");
    let gone = go(&rows, RunRequest { filter: Some("false".into()), ..delete_insert(window) });
    assert_eq!((counts(&gone), self::rows(&rows).len()), (vec![replaced(0, 1, 1)], 1));
    let all = go(&rows, RunRequest { filter: Some("false".into()), ..delete_insert(DAY) });
    assert_eq!((counts(&all), self::rows(&rows).len()), (vec![replaced(0, 0, 1)], 0));
    let absent = go(&rows, delete_insert(("2026-05-04T10:00", "2026-05-04T12:00")));
    assert_eq!((absent.partitions[0].checksum, rows.rows("select count(*) from restitch_partitions")), (None, vec!["1".to_owned()]));
    // A rollback of a run that published nothing takes nothing away: the next run builds what was never there.
    let never = rows_lab();
    never.land("1.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "1"));
    let nothing = go(&never, merge(DAY, Some("false")));
    never.open().rollback(nothing.run, false, None).unwrap();
    never.run();
    assert_eq!(self::rows(&never).len(), 1);
    // What a filter leaves out was left out on purpose; naming the day brings it back.
    rows.backfill(DAY.0, DAY.1);
    assert_eq!(self::rows(&rows).len(), 2);
}

#[test]
fn a_merge_is_rolled_back_staged_replayed_and_verified() {
    let lab = totals_lab();
    let before = lab.published();
    let run = go(&lab, merge(("2026-05-01", "2026-05-03"), None));
    assert_eq!(counts(&run), [merged([1, 1, 2, 0], false), merged([0, 0, 0, 0], false), merged([0, 0, 1, 0], true)]);
    assert_eq!(dirty(&lab), Vec::<String>::new());
    let proof = lab.open().verify(run.run, &()).unwrap();
    assert_eq!(proof.failed, Vec::<String>::new());
    assert!(proof.note.unwrap().contains("rows that r1 had published"));
    let back = lab.open().rollback(run.run, false, None).unwrap();
    assert_eq!((lab.published(), dirty(&lab)), (before, vec!["2026-05-01".to_owned()]));
    assert_eq!(back.partitions[0].checksum, run.partitions[0].prior_checksum);
    assert!(back.bases.is_empty());
    // Staged: published later, unless the rows that it was merged into have moved.
    let stage = || go(&lab, RunRequest { mode: Mode::Stage, write: WriteMode::Merge, ..merge(("2026-05-01", "2026-05-03"), None) });
    let (first, second) = (stage(), stage());
    assert_eq!(counts(&first), counts(&run));
    let published = lab.open().publish(first.run).unwrap();
    assert_eq!((published.checksum, lab.published().len()), (run.checksum, 5));
    assert_eq!(lab.open().verify(first.run, &()).unwrap().failed, Vec::<String>::new());
    let e = lab.open().publish(second.run).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    assert_eq!(lab.open().discard(second.run).unwrap().status, Status::Discarded);
    // Later states do not matter to a replay.
    lab.backfill("2026-05-01", "2026-05-03");
    for run in [run.run, first.run, second.run] {
        assert!(lab.replay(run).is_ok_and(|r| r.partitions.iter().all(|p| p.equal())) || run == second.run);
    }
}

#[test]
fn what_a_version_was_merged_into_stays_as_long_as_it() {
    let lab = totals_lab();
    let run = go(&lab, merge(DAY, Some("customer_id = 'A'")));
    let kept = go(&lab, merge(DAY, Some("customer_id = 'A'")));
    assert!(kept.partitions[0].kept);
    let gc = |keep| {
        let shown = lab.open().garbage(Some(keep)).unwrap();
        let files = shown.files.len();
        if files > 0 {
            lab.open().collect(Some(keep), &shown).unwrap();
        }
        files
    };
    // The current version is the file of the one before, which was merged into that of r1; with two versions both are needed.
    assert_eq!(gc(2), 0);
    assert_eq!(gc(1), 1, "r1's file: the current version reads that of {}", run.run);
    assert_eq!(lab.published().len(), 4);
    assert!(lab.replay(kept.run).is_ok());
    let e = lab.replay(run.run).unwrap_err();
    assert!(matches!(e, Error::BaseGone { .. }), "{e}");
    assert!(e.to_string().contains("by gc (keep 1, tester)"), "{e}");
}

#[test]
fn a_delete_insert_replaces_exactly_its_window() {
    let lab = rows_lab();
    let hours =
        [("2026-05-01", 6), ("2026-05-01", 18), ("2026-05-01", 23), ("2026-05-02", 0), ("2026-05-02", 6), ("2026-05-02", 12), ("2026-05-03", 1)];
    let id = |i: usize| format!("e{i}");
    let at = |(day, hour): (&str, u32)| format!("{day}T{hour:02}:00:00Z");
    let all = |amount: &str| hours.iter().enumerate().map(|(i, h)| order(&id(i), &at(*h), "A", amount)).collect::<String>();
    lab.land("1.jsonl", all("1"));
    lab.run();
    lab.land("2.jsonl", all("2") + &order("new", "2026-05-01T20:00:00Z", "B", "2"));
    let third = lab.rows("select checksum, run from restitch_partitions where partition = '2026-05-03'");
    let window = ("2026-05-01T18:00", "2026-05-02T06:00");
    let plan = lab.open().bind(&delete_insert(window)).unwrap();
    assert_eq!((plan.partitions, plan.standing_rows.rows, plan.records), (2, 6, 7));
    let plan = BoundPlan::parse(&plan.text()).unwrap();
    let run = lab.open().apply(&plan, &()).unwrap_or_else(|e| panic!("{}", chain(&e))).manifest.unwrap();
    assert_eq!((run.mode, counts(&run)), (Mode::DeleteInsert, vec![replaced(3, 1, 2), replaced(1, 2, 1)]));
    let amounts = lab.rows("select event_id, amount from daily order by event_time");
    assert_eq!(amounts, ["e0 1.00", "e1 2.00", "new 2.00", "e2 2.00", "e3 2.00", "e4 1.00", "e5 1.00", "e6 1.00"]);
    assert_eq!(lab.rows("select checksum, run from restitch_partitions where partition = '2026-05-03'"), third);
    assert_eq!(run.others.unwrap().partitions, 1);
    // Late records outside the window wait on.
    assert_eq!(dirty(&lab), ["2026-05-01", "2026-05-02"]);
    assert!(lab.replay(run.run).unwrap().partitions.iter().all(|p| p.equal()));
    assert_eq!(lab.open().verify(run.run, &()).unwrap().failed, Vec::<String>::new());
    // Again: the same rows, and the files stay.
    let again = go(&lab, delete_insert(window));
    assert!(again.partitions.iter().all(|p| p.kept));
    // To the microsecond, inside one partition.
    let one = go(&lab, delete_insert(("2026-05-02T06:00:00Z", "2026-05-02T06:00:00.000001Z")));
    assert_eq!(counts(&one), [replaced(1, 2, 1)]);
    assert_eq!(lab.open().verify(one.run, &()).unwrap().failed, Vec::<String>::new());
    // A whole day settles it.
    let day = go(&lab, delete_insert(("2026-05-03", "2026-05-03")));
    assert_eq!((counts(&day), dirty(&lab)), (vec![replaced(1, 0, 1)], vec!["2026-05-01".to_owned(), "2026-05-02".to_owned()]));
    lab.repair();
    assert!(lab.rows("select amount from daily").iter().all(|a| a == "2.00"));
    // What was replaced comes back.
    let back = lab.open().rollback(run.run, true, None).unwrap();
    assert_eq!(back.partitions.iter().map(|p| p.checksum).collect::<Vec<_>>(), run.partitions.iter().map(|p| p.prior_checksum).collect::<Vec<_>>());
    assert!(lab.rows("select amount from daily where _partition < '2026-05-03'").iter().all(|a| a == "1.00"));
}

/// An order's customer is corrected: the sum of the wrong customer has no row in the run, and a merge takes no row away. So nothing is settled.
#[test]
fn a_row_that_may_be_a_leftover_settles_nothing() {
    let lab = totals_lab();
    lab.repair();
    lab.land("fix.jsonl", order("e3", "2026-05-01T09:00:00Z", "B", "7"));
    let run = go(&lab, RunRequest { kind: Kind::Repair, start: None, end: None, ..merge(DAY, None) });
    assert_eq!(counts(&run), [merged([0, 1, 2, 1], false)]);
    assert_eq!(lab.published()[..3], ["2026-05-01 A 2 30.00", "2026-05-01 B 2 17.00", "2026-05-01 C 1 7.00"]);
    assert_eq!(dirty(&lab), ["2026-05-01"]);
    lab.repair();
    assert_eq!((lab.published()[2].as_str(), dirty(&lab)), ("2026-05-01 D 1 3.00", vec![]));
}

#[test]
fn a_part_of_a_partition_that_is_not_there_settles_nothing() {
    let lab = rows_lab();
    lab.land("1.jsonl", order("e1", "2026-05-01T06:00:00Z", "A", "1") + &order("e2", "2026-05-01T18:00:00Z", "A", "1"));
    let run = go(&lab, delete_insert(("2026-05-01T00:00", "2026-05-01T12:00")));
    assert_eq!((counts(&run), rows(&lab).len()), (vec![replaced(1, 0, 0)], 1));
    let plan = lab.plan(Kind::Run, None, None);
    assert_eq!(plan.ranges.iter().map(|r| r.reason).collect::<Vec<_>>(), [Reason::NewRecords]);
    lab.run();
    assert_eq!(rows(&lab).len(), 2);
}

#[test]
fn rows_of_two_transforms_are_stale_until_they_are_overwritten() {
    let lab = totals_lab();
    lab.open().add_transform(&component("customer-totals-1.1.0.wasm")).unwrap();
    let other = restitch::config::TransformRef::parse("customer-totals@1.1.0");
    let run = go(&lab, RunRequest { transform: other.clone(), ..merge(DAY, Some("customer_id = 'A'")) });
    assert_eq!(counts(&run), [merged([0, 1, 0, 2], false)]);
    let stale = || lab.open().status(Some("daily")).unwrap().1[0].partitions.iter().filter(|p| !p.stale.is_empty()).count();
    assert_eq!(stale(), 1);
    std::fs::write(lab.path("restitch.toml"), ORDERS.replace("totals@1.0.0", "totals@1.1.0")).unwrap();
    assert_eq!(stale(), 2, "the day is made by both, the third of May by the old one");
    lab.backfill("2026-05-01", "2026-05-03");
    assert_eq!(stale(), 0);
}

/// A sum over a part of the records stands for the whole until it is computed again: that is shown, and mended by what mends the stale.
#[test]
fn a_filtered_merge_leaves_its_partitions_stale() {
    let lab = Lab::new(ORDERS);
    lab.land("1.jsonl", order("e1", "2026-05-01T09:00:00Z", "C", "100") + &order("e2", "2026-05-01T10:00:00Z", "C", "5"));
    lab.run();
    let stale = || -> Vec<String> {
        let partitions = lab.open().status(Some("daily")).unwrap().1.remove(0).partitions;
        partitions.iter().flat_map(|p| &p.stale).map(ToString::to_string).collect()
    };
    go(&lab, merge(DAY, Some("customer_id = 'C'")));
    assert_eq!((lab.published(), stale()), (vec!["2026-05-01 C 2 105.00".into()], vec![]), "it has changed nothing");
    go(&lab, merge(DAY, Some("amount > 10")));
    assert_eq!((lab.published(), stale()), (vec!["2026-05-01 C 1 100.00".into()], vec!["filter was \"amount > 10\" and is none".into()]));
    go(&lab, RunRequest { only: Some(Reason::Stale), ..Lab::request(Kind::Backfill, Some(DAY)) });
    assert_eq!((lab.published(), stale()), (vec!["2026-05-01 C 2 105.00".into()], vec![]));
}

#[test]
fn what_makes_no_merge_and_no_delete_insert_is_refused_with_the_way_out() {
    let lab = totals_lab();
    let said = |request: RunRequest| {
        let e = lab.try_go(request).unwrap_err();
        (e.kind(), e.to_string(), e.hint().unwrap_or_default())
    };
    let (kind, message, hint) = said(delete_insert(DAY));
    assert_eq!(kind, ErrorKind::Usage);
    assert!(message.contains("does not say which column has it") && hint.contains("time_column = \"COLUMN\""), "{message} {hint}");
    let part = ("2026-05-01T06:00", "2026-05-01T12:00");
    for request in [Lab::request(Kind::Backfill, Some(part)), Lab::request(Kind::Run, Some(part)), merge(part, None)] {
        let (kind, message, hint) = said(request);
        assert_eq!((kind, message.as_str()), (ErrorKind::Usage, "2026-05-01T06:00:00Z lies inside the day partition 2026-05-01"));
        assert_eq!(
            hint,
            "whole partitions are swapped: --start 2026-05-01 --end 2026-05-01; for just this window: `restitch backfill … --mode delete-insert`"
        );
    }
    for (column, hint_has) in [("event_tim", "no timestamp"), ("total", "no timestamp")] {
        std::fs::write(lab.path("restitch.toml"), ORDERS.replace("partition = ", &format!("time_column = \"{column}\"\npartition = "))).unwrap();
        let (kind, message, hint) = said(delete_insert(part));
        assert_eq!(kind, ErrorKind::Usage);
        assert!(message.contains(&format!("time column \"{column}\"")) && hint.contains(hint_has), "{message} {hint}");
    }
    let rows = rows_lab();
    rows.land("1.jsonl", order("e1", "2026-05-01T06:00:00Z", "A", "1"));
    let refused = |request: RunRequest| rows.try_go(request).unwrap_err().to_string();
    assert!(refused(RunRequest { kind: Kind::Repair, ..delete_insert(part) }).starts_with("a repair chooses whole partitions"));
    assert!(refused(RunRequest { only: Some(Reason::Missing), ..delete_insert(part) }).starts_with("--only chooses whole partitions"));
    assert!(refused(RunRequest { start: None, end: None, ..delete_insert(part) }).contains("needs --start and --end"));
    assert_eq!(rows.rows("select count(*) from restitch_runs"), ["0"]);
}

/// A key that stands outside the window and comes in it again would be two rows of one order.
#[test]
fn a_doubled_key_is_refused_before_publication() {
    let lab = rows_lab();
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap().replace("key = [\"event_id\"]\ntime", "key = [\"customer_id\"]\ntime");
    std::fs::write(lab.path("restitch.toml"), toml).unwrap();
    lab.land("1.jsonl", order("e1", "2026-05-01T06:00:00Z", "A", "1") + &order("e2", "2026-05-01T07:00:00Z", "B", "1"));
    lab.run();
    let before = rows(&lab);
    lab.land("2.jsonl", order("e3", "2026-05-01T15:00:00Z", "A", "1"));
    let e = lab.try_go(delete_insert(("2026-05-01T12:00", "2026-05-01T18:00"))).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Validation);
    assert_eq!(e.to_string(), "partition 2026-05-01: a row of the window has the key of a row that stays outside it: customer_id=A");
    assert_eq!(rows(&lab), before);
}

/// R31: where raw of a part of the day is gone, the rest can be replaced, and the manifest says what was taken from the published rows.
#[test]
fn rows_whose_raw_is_gone_stay_and_the_manifest_says_so() {
    let lab = rows_lab();
    let keep = |raw_keep: &str| {
        let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
        std::fs::write(lab.path("restitch.toml"), toml.replace("repair_window", &format!("raw_keep = \"{raw_keep}\"\nrepair_window"))).unwrap();
    };
    lab.land("1.jsonl", order("e1", "2026-05-01T06:00:00Z", "A", "1"));
    lab.land("2.jsonl", order("e2", "2026-05-01T18:00:00Z", "A", "1"));
    lab.land("3.jsonl", order("e3", "2026-05-10T12:00:00Z", "A", "1"));
    lab.run();
    keep("216h");
    let garbage = lab.open().garbage(None).unwrap();
    assert_eq!(garbage.files.len(), 1, "{garbage:?}");
    lab.open().collect(None, &garbage).unwrap();
    lab.land("4.jsonl", order("e2", "2026-05-01T18:00:00Z", "B", "9"));
    assert!(lab.try_go(Lab::request(Kind::Backfill, Some(DAY))).unwrap_err().to_string().contains("cannot be computed again"));
    assert!(lab.try_go(merge(DAY, None)).is_err());
    assert!(lab.try_go(delete_insert(("2026-05-01T06:00", "2026-05-01T12:00"))).is_err());
    let run = go(&lab, delete_insert(("2026-05-01T12:00", "2026-05-02")));
    assert_eq!(counts(&run)[0], replaced(1, 1, 1));
    assert_eq!(lab.rows("select event_id, customer_id from daily where _partition = '2026-05-01' order by 1"), ["e1 A", "e2 B"]);
    assert!(run.gaps[0].starts_with("rows of 2026-05-01 outside the window are kept as r1 published them: "), "{:?}", run.gaps);
    assert_eq!(dirty(&lab), ["2026-05-01"]);
    assert!(lab.replay(run.run).is_ok());
    assert_eq!(lab.open().verify(run.run, &()).unwrap().failed, Vec::<String>::new());
}

#[test]
fn the_command_says_what_it_touches_and_what_came_of_it() {
    let lab = totals_lab();
    let say = |args: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_restitch"));
        let out = command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now]).args(args).output().unwrap();
        (out.status.code().unwrap(), format!("{}{}", String::from_utf8_lossy(&out.stderr), String::from_utf8_lossy(&out.stdout)))
    };
    let window = ["backfill", "daily", "--start", DAY.0, "--end", DAY.1, "--mode", "merge"];
    let (code, text) = say(&[&["plan"], &window[..]].concat());
    assert!(code == 0 && text.contains("Merge: published are 3 rows in 1 partition ("), "{text}");
    let (code, text) = say(&[&window[..], &["--dry-run"]].concat());
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("It would be 1 partition, 1 row inserted, 1 updated, 2 unchanged, 0 only in the target."), "{text}");
    let (_, text) = say(&window);
    assert!(text.contains("1 other partition unchanged: checksum ") && text.contains("because  records"), "{text}");
    let (_, text) = say(&window);
    assert!(text.contains("(as it was)") && text.contains("; 1 partition as before, not written anew"), "{text}");
    let (_, text) = say(&["why", "daily", "2026-05-01"]);
    assert!(text.contains("published it (backfill, merge: dirty)") && text.contains("came to what was there (backfill, merge: "), "{text}");
    let (_, text) = say(&["show", "r3"]);
    assert!(text.contains("Read of published  3 rows of 1 partition at snapshot 3, published by r1"), "{text}");
    assert_eq!(say(&[&window[..], &["--dry-run", "--stage"]].concat()).0, 2);
}

/// An order of the model: the day and hour, the customer, the amount in hundredths.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Order {
    day: usize,
    hour: usize,
    customer: usize,
    amount: usize,
}

impl Order {
    fn line(&self, id: usize) -> String {
        order(
            &format!("e{id:02}"),
            &format!("2026-05-{:02}T{:02}:00:00Z", self.day + 1, self.hour),
            &format!("C{}", self.customer),
            &self.amount.to_string(),
        )
    }

    fn row(&self, id: usize) -> String {
        format!("e{id:02} {} {} C{} {}.00", self.day + 1, self.hour, self.customer, self.amount)
    }
}

type Orders = BTreeMap<usize, Order>;

/// Any sequence of landings, overwrites, merges and delete-inserts gives what the model gives; every run replays; and what was
/// not settled still waits, so that `run` and `repair` lead to what raw says.
#[test]
fn random_sequences_follow_the_model() {
    const DAYS: usize = 3;
    let time = |text: &str| parse(text, chrono_tz::Tz::UTC).unwrap().0;
    for seed in [3, 77, 4242] {
        let mut random = Random(seed);
        let lab = rows_lab();
        let (mut raw, mut target) = (Orders::new(), Orders::new());
        let mut published: BTreeSet<usize> = BTreeSet::new();
        let mut runs = Vec::new();
        for step in 0..14 {
            let (first, second) = (random.below(DAYS), random.below(DAYS));
            let days = first.min(second)..=first.max(second);
            let names = (format!("2026-05-{:02}", days.start() + 1), format!("2026-05-{:02}", days.end() + 1));
            let window = (names.0.as_str(), names.1.as_str());
            let op = if step == 0 { 0 } else { random.below(6) };
            match op {
                0 | 1 => {
                    let mut lines = String::new();
                    for _ in 0..4 {
                        let id = random.below(30);
                        // The same id is the same order: its time and customer stay, its amount is corrected.
                        let order = Order { day: id % DAYS, hour: id / DAYS * 2, customer: id % 2, amount: random.below(1000) };
                        lines += &order.line(id);
                        raw.insert(id, order);
                    }
                    lab.land(&format!("{step}.jsonl"), lines + &format!("{{\"junk\":{step}}}\n"));
                    continue;
                }
                2 => {
                    runs.push(lab.backfill(window.0, window.1));
                    target.retain(|_, o| !days.contains(&o.day));
                    target.extend(raw.iter().filter(|(_, o)| days.contains(&o.day)).map(|(i, o)| (*i, o.clone())));
                    published.extend(days);
                }
                3 | 4 => {
                    let one = (op == 4).then(|| random.below(2));
                    let filter = one.map(|c| format!("customer_id = 'C{c}'"));
                    let run = go(&lab, merge(window, filter.as_deref()));
                    let chosen = |o: &Order| days.contains(&o.day) && one.is_none_or(|c| o.customer == c);
                    let fresh: Orders = raw.iter().filter(|(_, o)| chosen(o)).map(|(i, o)| (*i, o.clone())).collect();
                    let sum = |f: fn(&Counts) -> u64| counts(&run).iter().map(f).sum::<u64>() as usize;
                    assert_eq!(sum(|c| c.0[0].unwrap()), fresh.keys().filter(|i| !target.contains_key(i)).count());
                    assert_eq!(sum(|c| c.0[1].unwrap()), fresh.iter().filter(|(i, o)| target.get(i).is_some_and(|t| t != *o)).count());
                    assert_eq!(sum(|c| c.0[2].unwrap()), fresh.iter().filter(|(i, o)| target.get(i) == Some(*o)).count());
                    target.extend(fresh);
                    // A part of the records that gives no row publishes no partition.
                    published.extend(days.filter(|day| one.is_none() || target.values().any(|o| o.day == *day)));
                    runs.push(run);
                }
                _ => {
                    let (a, b) = (random.below(DAYS * 24), random.below(DAYS * 24));
                    let (start, end) = (a.min(b), a.max(b) + 1);
                    let at = |hour: usize| format!("2026-05-{:02}T{:02}:00", hour / 24 + 1, hour % 24);
                    let inside = |o: &Order| (start..end).contains(&(o.day * 24 + o.hour));
                    runs.push(go(&lab, delete_insert((&at(start), &at(end)))));
                    target.retain(|_, o| !inside(o));
                    target.extend(raw.iter().filter(|(_, o)| inside(o)).map(|(i, o)| (*i, o.clone())));
                    let whole = |day: usize| start <= day * 24 && day * 24 + 24 <= end;
                    published.extend((start / 24..=(end - 1) / 24).filter(|day| whole(*day) || target.values().any(|o| o.day == *day)));
                }
            }
            assert_eq!(read(&lab), model(&target), "seed {seed}, step {step}");
            assert_eq!(lab.rows("select count(*) from restitch_partitions"), [published.len().to_string()], "seed {seed}, step {step}");
            // `status` reads less than a plan, and comes to the same.
            let mut workshop = lab.open();
            let status = workshop.status(Some("daily")).unwrap().1.remove(0);
            assert_eq!(status.buildable, workshop.plan(&Lab::request(Kind::Run, None)).unwrap().partition_count(), "seed {seed}, step {step}");
            // So does the plan of a window that is named.
            let (from, to) = (time(&format!("{}T00:00Z", names.0)), time(&format!("{}T00:00Z", names.1)) + DAY_US);
            let planned = workshop.plan(&Lab::request(Kind::Backfill, Some(window))).unwrap();
            let landed = format!("select coalesce(sum(records), 0) from restitch_slot where day_us >= {from} and day_us < {to}");
            assert_eq!(lab.rows(&landed), [planned.records().to_string()], "seed {seed}, step {step}");
            let late = planned.ranges.iter().filter(|r| r.reason == Reason::Dirty).map(|r| r.partitions).sum::<u64>();
            let waits = format!("select count(*) from restitch_partitions where dirty = 1 and partition between '{}' and '{}'", names.0, names.1);
            assert_eq!(lab.rows(&waits), [late.to_string()], "seed {seed}, step {step}");
            let dirty: Vec<&str> = status.partitions.iter().filter(|p| p.dirty).map(|p| p.published.partition.as_str()).collect();
            assert_eq!(lab.rows("select partition from restitch_partitions where dirty = 1 order by 1"), dirty, "seed {seed}, step {step}");
        }
        for run in &runs {
            assert!(lab.replay(run.run).unwrap().partitions.iter().all(|p| p.equal()), "seed {seed}, {}", run.run);
        }
        lab.go(Lab::request(Kind::Run, None));
        lab.go(Lab::request(Kind::Repair, None));
        assert_eq!(read(&lab), model(&raw), "seed {seed}: what waited was not all that was missing");
    }
}

fn model(orders: &Orders) -> Vec<String> {
    orders.iter().map(|(id, o)| o.row(*id)).collect()
}

fn read(lab: &Lab) -> Vec<String> {
    lab.rows("select event_id, cast(date_part('day', event_time) as bigint), cast(date_part('hour', event_time) as bigint), customer_id, amount from daily order by 1")
}
