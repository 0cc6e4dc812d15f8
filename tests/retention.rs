//! Retention: old versions and raw past its time go, and what a rollback, a replay or a reader still needs does not.
//! Reachability decides, never the age of a file; DuckDB reads and cleans the same catalog afterwards.

use crate::{
    interop::{lake, try_lake},
    support::{Lab, ORDERS, chain, order},
};
use restitch::{
    gc::{Collected, Garbage},
    id::{RunId, SnapshotId},
    manifest::{Kind, Manifest, Mode},
    pipeline::{Error, ErrorKind, ReparseRequest, RunRequest},
    plan::PlanError,
    publish::PublishError,
    store::Faults,
};
use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    time::{Duration, SystemTime},
};

pub const DAY: &str = "2026-05-01";

pub fn garbage(lab: &Lab, keep: Option<u64>) -> Garbage {
    lab.open().garbage(keep).unwrap()
}

pub fn gc(lab: &Lab, keep: Option<u64>) -> Collected {
    let shown = garbage(lab, keep);
    lab.open().collect(keep, &shown).unwrap_or_else(|e| panic!("{}", chain(&e)))
}

/// Case 35: one partition, four versions with the total 1, 3, 6, 10.
fn four_versions() -> (Lab, Vec<Manifest>) {
    let lab = Lab::new(ORDERS);
    let runs = (1..=4).map(|n| {
        lab.land(&format!("{n}.jsonl"), order(&format!("e{n}"), "2026-05-01T09:00:00Z", "A", &n.to_string()));
        lab.backfill(DAY, DAY)
    });
    let runs = runs.collect();
    (lab, runs)
}

fn total(lab: &Lab, at: Option<SnapshotId>) -> Vec<String> {
    lab.rows_at("select total from daily", at)
}

/// The file names below a folder.
fn files(folder: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => drop(found.insert(path.file_name().unwrap().to_string_lossy().into_owned())),
        }
    }
    found
}

fn make_old(folder: &Path) {
    let then = SystemTime::UNIX_EPOCH + Duration::from_secs(978_307_200);
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            make_old(&path);
        } else {
            std::fs::File::options().write(true).open(&path).unwrap().set_modified(then).unwrap();
        }
    }
}

/// Case 35, with its numbers.
#[test]
fn after_four_versions_and_keep_two_three_and_four_read_and_one_is_refused() {
    let (lab, runs) = four_versions();
    let published: Vec<SnapshotId> = runs.iter().map(|m| m.published_snapshot.unwrap()).collect();
    assert!(garbage(&lab, None).is_empty(), "without a number nothing published goes");
    make_old(&lab.path("warehouse/data"));
    let raw = files(&lab.path("warehouse/data/main/raw_orders"));
    let done = gc(&lab, Some(2));
    let gone: Vec<_> = done.garbage.files.iter().map(|f| f.run.unwrap()).collect();
    assert_eq!(gone, [runs[1].run, runs[0].run]);
    assert_eq!(files(&lab.path("warehouse/data/main/raw_orders")), raw, "raw is not gc's to judge here");
    assert_eq!(files(&lab.path("warehouse/data/main/daily")).len(), 2);
    // The folder of a run goes with its last file.
    assert_eq!([1, 2, 3, 4].map(|n| lab.path(&format!("warehouse/data/main/daily/r{n}")).exists()), [false, false, true, true]);
    // Versions 3 and 4 read, here and in DuckDB; 1 and 2 say that they are gone.
    assert_eq!(
        (total(&lab, Some(published[2])), total(&lab, Some(published[3])), total(&lab, None)),
        (vec!["6.00".into()], vec!["10.00".into()], vec!["10.00".into()])
    );
    for (i, snapshot) in published.iter().enumerate() {
        let sql = format!("SELECT total FROM lake.daily AT (VERSION => {snapshot})");
        match try_lake(["sql", &lab.catalog(), &sql]) {
            Ok(rows) => assert!(i >= 2 && rows[0]["total"] == ["1.00", "3.00", "6.00", "10.00"][i], "{i}: {rows:?}"),
            Err(e) => assert!(i < 2 && e.contains("No snapshot found"), "{i}: {e}"),
        }
    }
    let e = lab.open().query("select * from daily", Some(published[0])).unwrap_err();
    assert!(matches!(e, Error::Expired { .. }) && e.kind() == ErrorKind::Usage, "{e}");
    // A rollback to 1 is refused before anything changes, with the file and who removed it.
    let before = lab.rows("select (select max(snapshot_id) from ducklake_snapshot), (select count(*) from restitch_run)");
    let e = lab.open().rollback(runs[1].run, true, None).unwrap_err();
    assert!(matches!(&e, Error::Publish(PublishError::Removed { .. })), "{e}");
    for part in [&runs[0].partitions[0].files[0].path, "by gc (keep 2, tester)", "2026-06-01T00:00:00Z"] {
        assert!(e.to_string().contains(part), "{e}");
    }
    assert_eq!(lab.rows("select (select max(snapshot_id) from ducklake_snapshot), (select count(*) from restitch_run)"), before);
    // A rollback to 3 works; the old runs can still be proven, since raw is whole.
    lab.open().rollback(runs[3].run, false, None).unwrap();
    assert_eq!(total(&lab, None), ["6.00"]);
    assert!(lab.replay(runs[0].run).unwrap().partitions[0].equal());
    assert_eq!(lab.open().verify(runs[2].run, &()).unwrap().failed, Vec::<String>::new());
    assert!(garbage(&lab, Some(3)).is_empty(), "what is gone does not count, and is not offered twice");
}

/// What a rollback still needs is kept from DuckDB's own expiry, also where no snapshot shows it any more.
#[test]
fn a_version_that_no_snapshot_shows_is_held_and_comes_back() {
    let lab = Lab::new(ORDERS);
    let two = |n: u32| order(&format!("a{n}"), "2026-05-01T09:00:00Z", "A", "1") + &order(&format!("b{n}"), "2026-05-02T09:00:00Z", "A", "1");
    lab.land("1.jsonl", two(1));
    let first = lab.backfill(DAY, "2026-05-02");
    lab.land("2.jsonl", two(2));
    lab.backfill(DAY, DAY);
    let third = lab.backfill(DAY, DAY);
    lab.land("3.jsonl", two(3));
    // The second day's only older version was visible in every snapshot that shows the first day's second one.
    let other = lab.backfill("2026-05-02", "2026-05-02");
    let other2 = lab.backfill("2026-05-02", "2026-05-02");
    let done = gc(&lab, Some(2));
    assert_eq!(done.garbage.files.len(), 2, "{:?}", done.garbage.files);
    assert!(done.garbage.expired.contains(&third.published_snapshot.unwrap()) && done.garbage.expired.contains(&first.published_snapshot.unwrap()));
    assert!(!done.garbage.expired.contains(&other2.published_snapshot.unwrap()));
    assert_eq!(lab.rows("select count(*) from restitch_hold where gone = 0"), ["1"]);
    let latest = lab.rows("select max(snapshot_id) from ducklake_snapshot")[0].clone();
    let others = lab.rows(&format!("select snapshot_id from ducklake_snapshot where snapshot_id < {latest} order by 1"));
    lake(["expire", &lab.catalog(), "--versions", &others.join(",")]);
    lake(["cleanup", &lab.catalog()]);
    assert_eq!(lake(["rows", &lab.catalog(), "daily"]).len(), 2);
    lab.open().rollback(third.run, false, None).unwrap();
    assert_eq!(lab.published(), ["2026-05-01 A 2 2.00", "2026-05-02 A 3 3.00"]);
    assert_eq!(lake(["sql", &lab.catalog(), "SELECT count(*) AS n FROM lake.daily"])[0]["n"], 2);
    drop(other);
}

/// What no gc of ours has held goes with the snapshots that another tool expires: the rollback says so, and the way out works.
#[test]
fn a_version_that_another_tool_expired_is_named_as_that() {
    let (lab, runs) = four_versions();
    let latest = lab.rows("select max(snapshot_id) from ducklake_snapshot")[0].clone();
    let others = lab.rows(&format!("select snapshot_id from ducklake_snapshot where snapshot_id < {latest} order by 1"));
    lake(["expire", &lab.catalog(), "--versions", &others.join(",")]);
    lake(["cleanup", &lab.catalog()]);
    let last = runs.last().unwrap();
    let before = last.published_snapshot.unwrap().0 - 1;
    let e = lab.open().rollback(last.run, false, None).unwrap_err();
    let expected = format!(
        "partition {DAY} cannot go back to what it was before {}: another tool expired snapshot {before}, and the catalog does not know the files of then any more",
        last.run
    );
    assert_eq!((e.to_string(), e.kind()), (expected, ErrorKind::Usage));
    assert!(e.hint().unwrap().contains(&format!("`restitch backfill DATASET --start {DAY} --end {DAY}`")), "{e}");
    lab.backfill(DAY, DAY);
    assert!(lab.open().doctor(false).unwrap().healthy());
}

/// Case 35: gc while a backfill is staging removes none of its files, however old they look; nor what it was compared with.
#[test]
fn a_staged_run_keeps_its_files_and_what_it_was_compared_with() {
    let (lab, runs) = four_versions();
    let staged = lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some((DAY, DAY))) }).manifest.unwrap();
    lab.land("5.jsonl", order("e5", "2026-05-01T09:00:00Z", "A", "5"));
    lab.backfill(DAY, DAY);
    let folder = lab.path(&format!("warehouse/staging/{}", staged.run));
    make_old(&lab.path("warehouse/data"));
    make_old(&folder);
    let held = files(&folder);
    let done = gc(&lab, Some(1));
    assert_eq!(files(&folder), held);
    assert_eq!(done.garbage.files.iter().map(|f| f.run.unwrap()).collect::<Vec<_>>(), [runs[2].run, runs[1].run, runs[0].run]);
    assert_eq!(done.garbage.kept[0].why, format!("{} was compared with it", staged.run));
    let e = lab.open().publish(staged.run).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict, "as without gc: {e}");
    lab.open().discard(staged.run).unwrap();
    assert_eq!(gc(&lab, Some(1)).garbage.files[0].run, Some(runs[3].run));
}

#[test]
fn what_moved_between_look_and_removal_is_refused() {
    let (lab, _) = four_versions();
    let shown = garbage(&lab, Some(2));
    lab.backfill(DAY, DAY);
    let e = lab.open().collect(Some(2), &shown).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict);
    assert_eq!(files(&lab.path("warehouse/data/main/daily")).len(), 5);
}

/// Case 35: killed anywhere, gc can be run again, and readers never miss a file.
#[test]
fn gc_that_dies_anywhere_can_be_run_again() {
    let toml = ORDERS.replace("max_rejects", "raw_keep = \"10d\"\nmax_rejects");
    for steps in 0..100 {
        let mut lab = Lab::new(&toml);
        lab.land("old.jsonl", order("o1", "2026-04-01T09:00:00Z", "A", "1") + "not json\n");
        lab.run();
        for n in 1..=3 {
            lab.land(&format!("{n}.jsonl"), order(&format!("e{n}"), "2026-05-01T09:00:00Z", "A", "1"));
            lab.backfill(DAY, DAY);
        }
        lab.open();
        let seen = lab.published();
        let shown = garbage(&lab, Some(1));
        lab.faults = Faults::after(steps);
        let died = catch_unwind(AssertUnwindSafe(|| lab.open().collect(Some(1), &shown).unwrap())).is_err();
        lab.faults = Faults::default();
        assert_eq!(lab.published(), seen, "step {steps}");
        let raw = lab.rows("select count(*) from raw_orders")[0].clone();
        assert!(raw == "4" || raw == "3", "step {steps}: {raw}");
        gc(&lab, Some(1));
        assert_eq!((lab.published(), lab.rows("select count(*) from raw_orders")), (seen, vec!["3".to_owned()]), "step {steps}");
        assert!(garbage(&lab, Some(1)).is_empty());
        let there = "SELECT path FROM __ducklake_metadata_lake.ducklake_data_file WHERE data_file_id NOT IN (SELECT data_file_id FROM __ducklake_metadata_lake.restitch_hold WHERE gone = 1)";
        let referred = lake(["sql", &lab.catalog(), there]);
        let referred: BTreeSet<String> = referred.iter().map(|r| r["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned()).collect();
        assert_eq!(files(&lab.path("warehouse/data")), referred, "step {steps}");
        assert_eq!(
            lake(["sql", &lab.catalog(), "SELECT count(*) AS n FROM __ducklake_metadata_lake.ducklake_files_scheduled_for_deletion"])[0]["n"],
            0
        );
        if !died {
            assert!(steps > 4, "{steps}");
            return;
        }
    }
    panic!("more than 100 steps");
}

/// A query that began before keeps its files; the next gc removes the bytes.
#[test]
fn bytes_wait_for_whoever_is_reading() {
    let (lab, _) = four_versions();
    let store = restitch::store::Store::new(lab.path("warehouse"));
    let claim = store.claim("query-test").unwrap().unwrap();
    let done = gc(&lab, Some(1));
    assert_eq!((done.waiting, files(&lab.path("warehouse/data/main/daily")).len()), (3, 4));
    drop(claim);
    let shown = garbage(&lab, Some(1));
    assert_eq!((shown.files.len(), shown.left.len()), (0, 3));
    let done = gc(&lab, Some(1));
    assert_eq!((done.waiting, done.snapshot, files(&lab.path("warehouse/data/main/daily")).len()), (0, None, 1));
}

/// Raw kept for ten days; March is built, the watermark stands in May.
fn kept_for_ten_days() -> (Lab, Manifest) {
    let lab = Lab::new(&ORDERS.replace("max_rejects", "raw_keep = \"10d\"\nmax_rejects"));
    lab.land("march.jsonl", order("m1", "2026-03-01T09:00:00Z", "A", "1") + &order("m2", "2026-03-02T09:00:00Z", "B", "2") + "not json\n");
    let march = lab.run();
    lab.land("may.jsonl", order("y1", "2026-05-01T09:00:00Z", "A", "4"));
    lab.run();
    (lab, march)
}

const MARCH: [&str; 3] = ["2026-03-01 A 1 1.00", "2026-03-02 B 1 2.00", "2026-05-01 A 1 4.00"];

/// R31: raw is dropped by retention; what it made stays, and nothing is computed from what is left of it.
#[test]
fn raw_past_its_retention_goes_and_nothing_is_recomputed_from_the_rest() {
    let (lab, march) = kept_for_ten_days();
    let done = gc(&lab, None);
    assert_eq!(done.garbage.files.iter().map(|f| f.kind).collect::<Vec<_>>(), ["raw", "rejects"]);
    assert_eq!(lab.published(), MARCH);
    assert_eq!(
        (lab.rows("select _record_id from raw_orders"), lab.rows("select count(*) from raw_orders_rejects")),
        (vec!["y1".into()], vec!["0".into()])
    );
    let row = lab.rows("select name, rows, first_event_us < last_event_us, reason, operator from restitch_removed where kind = 'raw'");
    assert_eq!(row, ["orders 2 true raw_keep = 10d tester"]);
    // DuckDB sees the same, and its own clean-ups go on working.
    assert_eq!(lake(["sql", &lab.catalog(), "SELECT count(*) AS n FROM lake.raw_orders"])[0]["n"], 1);
    let e = try_lake(["sql", &lab.catalog(), "SELECT count(*) FROM lake.raw_orders AT (VERSION => 1)"]).unwrap_err();
    assert!(e.contains("No snapshot found"), "{e}");
    // A backfill that names the window, alone or with others, is refused with window, retention and time.
    for (start, end) in [("2026-03-01", "2026-03-01"), ("2026-03-02", "2026-05-01")] {
        let e = lab.try_go(Lab::request(Kind::Backfill, Some((start, end)))).unwrap_err();
        assert!(matches!(e, Error::Plan(PlanError::Dropped { .. })) && e.kind() == ErrorKind::Usage, "{e}");
        for part in ["2026-03-0", "raw_keep = 10d", "removed on 2026-06-01T00:00:00Z", "tester"] {
            assert!(e.to_string().contains(part), "{e}");
        }
        assert_eq!(e.hint().unwrap(), "choose a window that begins with 2026-03-03; what is published stays as it is");
    }
    // A reparse finds nothing there, and says why.
    let march_again =
        ReparseRequest { source: "orders".into(), start: Some("2026-03-01".into()), end: Some("2026-03-02".into()), dry_run: true, reason: None };
    let read = lab.open().reparse(&march_again, &()).unwrap();
    assert!(read.gaps[0].starts_with("raw of orders from 2026-03-01") && read.gaps[0].ends_with("and 1 more of the window"), "{:?}", read.gaps);
    // Neither replay nor verify; show says so.
    for e in [lab.replay(march.run).unwrap_err(), lab.open().verify(march.run, &()).unwrap_err()] {
        assert!(matches!(e, Error::RawGone { .. }) && e.to_string().contains("by retention (raw_keep = 10d"), "{e}");
    }
    assert!(lab.open().show(march.run).unwrap().raw_gone.is_some());
    assert!(lab.open().show(RunId(2)).unwrap().raw_gone.is_none() && lab.replay(RunId(2)).is_ok());
    // A late record of March waits; repair and run leave the partition as it is, and say why.
    lab.land("late.jsonl", order("m3", "2026-03-01T10:00:00Z", "C", "9") + &order("y2", "2026-05-01T08:00:00Z", "A", "6"));
    let repaired = lab.repair();
    assert_eq!(repaired.partitions.iter().map(|p| p.partition.as_str()).collect::<Vec<_>>(), [DAY]);
    assert!(repaired.gaps[0].starts_with("partition 2026-03-01 left as it stands: raw of orders from"), "{:?}", repaired.gaps);
    assert_eq!(lab.published(), ["2026-03-01 A 1 1.00", "2026-03-02 B 1 2.00", "2026-05-01 A 2 10.00"]);
    assert!(lab.go(Lab::request(Kind::Repair, None)).manifest.is_none());
    assert!(lab.try_go(Lab::request(Kind::Backfill, Some(("2026-03-01", "2026-03-01")))).is_err());
    // A dataset that is declared now is built from where raw begins, not from half of it.
    let more = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    let second = more.split("[dataset.daily]").nth(1).unwrap();
    std::fs::write(lab.path("restitch.toml"), format!("{more}\n[dataset.second]{second}")).unwrap();
    let built = lab.go(RunRequest { dataset: "second".into(), ..Lab::request(Kind::Run, None) }).manifest.unwrap();
    assert_eq!(built.partitions.iter().map(|p| p.partition.as_str()).collect::<Vec<_>>(), [DAY]);
    // A rollback needs no raw; but what it would leave empty here could not be computed again.
    let e = lab.open().rollback(march.run, false, None).unwrap_err();
    assert!(e.to_string().contains("could not be computed again"), "{e}");
    lab.open().rollback(march.run, true, None).unwrap();
    assert_eq!(lab.published(), ["2026-05-01 A 2 10.00"]);
}

#[test]
fn raw_stays_while_anything_waits_for_it() {
    let (lab, _) = kept_for_ten_days();
    // A late record that no published partition covers.
    lab.land("late.jsonl", order("m3", "2026-03-01T10:00:00Z", "C", "9"));
    let found = garbage(&lab, None);
    assert!(found.files.is_empty(), "{:?}", found.files);
    assert_eq!(found.kept[0].why, "2026-03-01 of daily does not have all of its records yet");
    lab.backfill("2026-03-01", "2026-03-01");
    assert_eq!(garbage(&lab, None).files.len(), 3);
    // A staged run reads it.
    let staged = lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some(("2026-03-01", "2026-03-02"))) }).manifest.unwrap();
    let found = garbage(&lab, None);
    assert!(found.files.is_empty() && found.kept[0].why == format!("{} reads it (staged)", staged.run), "{:?}", found);
    lab.open().discard(staged.run).unwrap();
    // A partition that is not built.
    lab.land("february.jsonl", order("f1", "2026-02-01T10:00:00Z", "C", "9"));
    let found = garbage(&lab, None);
    assert_eq!((found.files.len(), found.kept[0].why.as_str()), (3, "2026-02-01 of daily is not built yet"));
}

/// A dataset of two sources needs the raw of both to be built again, whichever of them its waiting records come from; and for records that left it.
#[test]
fn raw_stays_while_another_source_or_a_moved_record_waits() {
    let source = ORDERS.split("[source.orders]").nth(1).unwrap().split("[dataset.daily]").next().unwrap();
    let west = format!("[source.west]{}[dataset.daily]", source.replace("[source.orders.columns]", "[source.west.columns]"));
    let toml = ORDERS.replace("max_rejects", "raw_keep = \"10d\"\nmax_rejects").replace("[dataset.daily]", &west);
    let lab = Lab::new(&toml.replace("input = \"orders\"", "input = [\"orders\", \"west\"]"));
    lab.land("march.jsonl", order("m1", "2026-03-01T09:00:00Z", "A", "1") + &order("m2", "2026-03-01T10:00:00Z", "B", "2"));
    lab.land("may.jsonl", order("y1", "2026-05-01T09:00:00Z", "A", "4"));
    lab.try_land("west", "west.jsonl", order("w1", "2026-05-01T09:00:00Z", "A", "8")).unwrap();
    lab.run();
    assert_eq!(garbage(&lab, None).files.len(), 1);
    let waits = |lab: &Lab| {
        let found = garbage(lab, None);
        assert!(found.files.is_empty(), "{:?}", found.files);
        assert_eq!(found.kept[0].why, "2026-03-01 of daily does not have all of its records yet");
        lab.backfill("2026-03-01", "2026-03-01");
        assert_eq!(garbage(lab, None).files.len(), 1);
    };
    lab.try_land("west", "late.jsonl", order("w2", "2026-03-01T11:00:00Z", "C", "16")).unwrap();
    waits(&lab);
    lab.land("moved.jsonl", order("m1", "2026-05-01T11:00:00Z", "A", "1"));
    waits(&lab);
    lab.run();
    let before = ["2026-03-01 B 1 2.00", "2026-03-01 C 1 16.00", "2026-05-01 A 3 13.00"];
    assert_eq!(lab.published(), before);
    gc(&lab, None);
    // What left March before its raw went is still known to have left: it counts once, wherever it goes.
    lab.land("again.jsonl", order("m1", "2026-05-02T11:00:00Z", "A", "1"));
    lab.go(Lab::request(Kind::Repair, None));
    lab.go(Lab::request(Kind::Run, None));
    assert_eq!(lab.published(), ["2026-03-01 B 1 2.00", "2026-03-01 C 1 16.00", "2026-05-01 A 2 12.00", "2026-05-02 A 1 1.00"]);
    assert!(lab.try_go(Lab::request(Kind::Backfill, Some(("2026-03-01", "2026-03-01")))).is_err());
}

/// What repair may be asked for stays, whatever raw_keep says; and a lookup is read whole.
#[test]
fn raw_keep_never_reaches_into_the_repair_window() {
    let lab = Lab::new(&ORDERS.replace("max_rejects", "raw_keep = \"1h\"\nmax_rejects"));
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "1"));
    lab.land("b.jsonl", order("e2", "2026-05-04T09:00:00Z", "A", "1"));
    lab.run();
    assert!(garbage(&lab, None).files.is_empty(), "three days old, and repair_window is five");
    lab.land("c.jsonl", order("e3", "2026-05-07T09:00:00Z", "A", "1"));
    lab.run();
    assert_eq!(garbage(&lab, None).files.len(), 1);
    let toml = std::fs::read_to_string(lab.path("restitch.toml"))
        .unwrap()
        .replace("partition = \"day\"", "partition = \"day\"\nlookups = { x = \"orders\" }");
    std::fs::write(lab.path("restitch.toml"), toml).unwrap();
    let e = lab.try_open().err().unwrap();
    assert!(e.to_string().contains("reads the source \"orders\" whole") && e.hint().is_some(), "{e}");
}

#[test]
fn keep_versions_of_the_project_counts_where_nothing_was_typed() {
    let (lab, _) = four_versions();
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    std::fs::write(lab.path("restitch.toml"), toml.replace("path = \"warehouse\"", "path = \"warehouse\"\nkeep_versions = 3")).unwrap();
    assert_eq!((garbage(&lab, None).files.len(), garbage(&lab, Some(1)).files.len()), (1, 3));
    std::fs::write(lab.path("restitch.toml"), toml.replace("path = \"warehouse\"", "path = \"warehouse\"\nkeep_versions = 0")).unwrap();
    assert!(lab.try_open().err().unwrap().to_string().contains("keep_versions counts from 1"));
}

/// The command: it says what would go before it goes, and goes with a yes.
#[test]
fn the_command_shows_first_and_removes_with_a_yes() {
    let (lab, _) = four_versions();
    let command = |words: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_restitch"));
        let out = command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now]).args(words.split(' ')).output().unwrap();
        (out.status.code().unwrap(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let json = |words: &str| {
        let (code, out, _) = command(&format!("--json {words}"));
        (code, serde_json::from_str::<serde_json::Value>(&out).unwrap())
    };
    assert_eq!(command("gc").1, "Nothing to remove.\n");
    let (code, out, _) = command("gc --keep 2 --dry-run");
    assert!(code == 0 && out.contains("daily 2026-05-01 as r1 left it  keep 2") && out.contains("would miss them"), "{out}");
    let (code, out, err) = command("gc --keep 2");
    assert!(code == 2 && out.contains("as r2 left it") && err.contains("--yes"), "{code} {out} {err}");
    let (code, object) = json("gc --keep 2 --dry-run");
    assert_eq!((code, object["removed"] == false, object["files"].as_array().unwrap().len()), (0, true, 2));
    assert_eq!(files(&lab.path("warehouse/data/main/daily")).len(), 4, "nothing went so far");
    let (code, object) = json("gc --keep 2 --yes");
    assert_eq!((code, object["removed"] == true, object["waiting"].as_i64()), (0, true, Some(0)));
    assert_eq!(files(&lab.path("warehouse/data/main/daily")).len(), 2);
    let (code, _, err) = command("rollback r2 --force");
    assert!(code == 2 && err.contains("was removed on 2026-06-01T00:00:00Z by gc (keep 2,") && err.contains("Hint: "), "{err}");
    let (code, _, err) = command("diff r1");
    assert!(code == 2 && err.contains("the rows of r1 and those before it cannot be compared: "), "{err}");
    assert_eq!(command("gc --keep 0").0, 2);
    assert_eq!(command("gc --keep 2 --yes").1, "Nothing to remove.\n");
}

/// Declares something else, and reads March again.
fn reparse_march(lab: &Lab, from: &str, to: &str) -> Manifest {
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    assert!(toml.contains(from));
    std::fs::write(lab.path("restitch.toml"), toml.replace(from, to)).unwrap();
    let (start, end) = (Some("2026-03-01".into()), Some("2026-03-31".into()));
    lab.open().reparse(&ReparseRequest { source: "orders".into(), start, end, dry_run: false, reason: None }, &()).unwrap()
}

const AMOUNT: &str = "amount      = { type = \"decimal(18,2)\" }";
const CHANNEL: &str = "amount      = { type = \"decimal(18,2)\" }\nchannel     = { type = \"string\", default = \"web\" }";

fn raw_ids(lab: &Lab) -> Vec<String> {
    lab.rows("select _record_id from raw_orders order by 1")
}

/// A reparse changes files, and no ingest: what waits for its records is the same, and so is what is gone with them.
#[test]
fn raw_that_was_read_again_is_still_of_its_ingests() {
    let (lab, march) = kept_for_ten_days();
    lab.land("late.jsonl", order("m3", "2026-03-01T10:00:00Z", "C", "9"));
    reparse_march(&lab, AMOUNT, CHANNEL);
    let found = garbage(&lab, None);
    assert_eq!(
        (found.kept.len(), found.kept[0].count, found.kept[0].why.as_str()),
        (1, 2, "2026-03-01 of daily does not have all of its records yet")
    );
    gc(&lab, None);
    assert_eq!(
        (raw_ids(&lab), lab.rows("select count(*) from raw_orders_rejects")),
        (vec!["m1".into(), "m2".into(), "m3".into(), "y1".into()], vec!["1".into()])
    );
    lab.backfill("2026-03-01", "2026-03-02");
    let done = gc(&lab, None);
    assert_eq!(done.garbage.files.iter().map(|f| f.kind).collect::<Vec<_>>(), ["raw", "raw", "rejects"]);
    let ingests =
        lab.rows("select first_snapshot, last_snapshot from restitch_removed where kind = 'raw' and path like '%-0.parquet' order by 1 limit 1");
    assert_eq!(ingests, [format!("{0} {0}", march.recipe.input_snapshot)]);
    for day in ["2026-03-01", "2026-03-02"] {
        let e = lab.try_go(Lab::request(Kind::Backfill, Some((day, day)))).unwrap_err();
        assert!(matches!(e, Error::Plan(PlanError::Dropped { .. })), "{e}");
    }
    assert_eq!(lab.published(), ["2026-03-01 A 1 1.00", "2026-03-01 C 1 9.00", "2026-03-02 B 1 2.00", "2026-05-01 A 1 4.00"]);
    assert!(garbage(&lab, None).is_empty());
}

/// What is gone is written down as windows, once: nobody has to put files and slots together again.
#[test]
fn what_is_gone_is_written_down_once_as_windows() {
    let lab = Lab::new(&ORDERS.replace("max_rejects", "raw_keep = \"10d\"\nmax_rejects"));
    lab.land("march.jsonl", order("m1", "2026-03-01T09:00:00Z", "A", "1"));
    lab.land("both.jsonl", order("m2", "2026-03-01T09:05:00Z", "B", "2") + &order("y1", "2026-05-01T09:00:00Z", "A", "4"));
    lab.run();
    gc(&lab, None);
    let windows = || {
        lab.rows("select source, (end_us - start_us) / 60000000, from_snapshot, until_snapshot > 1000, reason, operator from restitch_dropped order by start_us")
    };
    assert_eq!(windows(), ["orders 15 1 true raw_keep = 10d tester"]);
    // The same quarter of an hour again, and another one.
    lab.land("june.jsonl", order("j1", "2026-06-01T09:00:00Z", "A", "8"));
    lab.run();
    assert_eq!(gc(&lab, None).garbage.files.len(), 1);
    assert_eq!(windows(), ["orders 15 1 true raw_keep = 10d tester", "orders 15 2 true raw_keep = 10d tester"]);
    assert!(lab.try_go(Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01")))).is_err());
}

/// A mask that reached what landed before it would be worth little if the files of before stayed for ever.
#[test]
fn raw_that_a_reparse_replaced_goes_past_its_retention() {
    let clear = AMOUNT.to_owned() + "\ncard        = { type = \"string\" }";
    let lab = Lab::new(&ORDERS.replace("max_rejects", "raw_keep = \"10d\"\nmax_rejects").replace(AMOUNT, &clear));
    let line = order("m1", "2026-03-01T09:00:00Z", "A", "1").replace("\"amount\"", "\"card\":\"4111222233334444\",\"amount\"");
    lab.land("march.jsonl", line);
    let march = lab.run();
    let staged = lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some(("2026-03-01", "2026-03-01"))) }).manifest.unwrap();
    lab.land("may.jsonl", order("y1", "2026-05-01T09:00:00Z", "A", "4"));
    lab.run();
    lab.land("late.jsonl", order("m3", "2026-03-01T10:00:00Z", "C", "9"));
    let reparsed = reparse_march(&lab, "card        = { type = \"string\" }", "card        = { type = \"string\", mask = \"sha256\" }");
    let old = reparsed.reparse.unwrap().replaced;
    assert_eq!(old.len(), 1);
    // The staged run reads the old file, and its windows hold what took the place of it.
    let reads = format!("{} reads it (staged)", staged.run);
    let found = garbage(&lab, None);
    assert!(found.is_empty() && found.kept[0].why == reads && found.kept[0].count == 3, "{found:?}");
    lab.open().discard(staged.run).unwrap();
    let before = SnapshotId(reparsed.published_snapshot.unwrap().0 - 1);
    let done = gc(&lab, None);
    assert_eq!(done.garbage.files.iter().map(|f| f.path.clone()).collect::<Vec<_>>(), old, "the late record keeps the new one");
    assert!(!lab.path("warehouse").join(&old[0]).exists());
    assert!(done.garbage.expired.contains(&before) && !done.garbage.expired.contains(&reparsed.published_snapshot.unwrap()));
    assert!(matches!(lab.open().query("select * from raw_orders", Some(before)).unwrap_err(), Error::Expired { .. }));
    assert!(matches!(lab.replay(march.run).unwrap_err(), Error::RawGone { .. }));
    // From here on nothing is missing.
    let built = lab.backfill("2026-03-01", "2026-03-01");
    assert_eq!(lab.published(), ["2026-03-01 A 1 1.00", "2026-03-01 C 1 9.00", "2026-05-01 A 1 4.00"]);
    assert!(lab.replay(built.run).is_ok());
    gc(&lab, None);
    assert!(lab.try_go(Lab::request(Kind::Backfill, Some(("2026-03-01", "2026-03-01")))).is_err());
    assert!(matches!(lab.replay(built.run).unwrap_err(), Error::RawGone { .. }));
}

/// Rejects go with the raw of their ingest, in whichever file that stands by now.
#[test]
fn rejects_stay_while_raw_of_their_ingest_stays() {
    let lab = Lab::new(&ORDERS.replace("max_rejects", "raw_keep = \"10d\"\nmax_rejects"));
    lab.land("march.jsonl", order("m2", "2026-03-02T09:00:00Z", "B", "2") + "nor this\n");
    lab.run();
    lab.land("both.jsonl", order("m1", "2026-03-01T09:00:00Z", "A", "1") + &order("y1", "2026-05-01T09:00:00Z", "A", "4") + "not json\n");
    lab.go(Lab::request(Kind::Run, None));
    reparse_march(&lab, AMOUNT, CHANNEL);
    assert_eq!(gc(&lab, None).garbage.files.iter().filter(|f| f.kind == "rejects").count(), 1);
    assert_eq!((raw_ids(&lab), lab.rows("select _payload from raw_orders_rejects")), (vec!["m1".into(), "y1".into()], vec!["not json".into()]));
}

/// DuckDB merges what a staged run read: its windows hold the merged file.
#[test]
fn a_staged_run_keeps_its_raw_through_a_merge() {
    let lab = Lab::new(&ORDERS.replace("max_rejects", "raw_keep = \"10d\"\nmax_rejects"));
    lab.land("m1.jsonl", order("m1", "2026-03-01T09:00:00Z", "A", "1"));
    lab.land("m2.jsonl", order("m2", "2026-03-02T09:00:00Z", "B", "2"));
    lab.run();
    let staged = lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some(("2026-03-01", "2026-03-01"))) }).manifest.unwrap();
    lake(["compact", &lab.catalog(), "raw_orders"]);
    lab.land("may.jsonl", order("y1", "2026-05-01T09:00:00Z", "A", "4"));
    lab.go(Lab::request(Kind::Run, None));
    let found = garbage(&lab, None);
    assert!(found.files.is_empty() && found.kept[0].why == format!("{} reads it (staged)", staged.run), "{found:?}");
    lab.open().discard(staged.run).unwrap();
    assert_eq!(gc(&lab, None).garbage.files.len(), 1);
    assert!(lab.try_go(Lab::request(Kind::Backfill, Some(("2026-03-02", "2026-03-02")))).is_err());
}

/// A partition that lost a record wants its raw, also where nobody has looked for moves yet.
#[test]
fn gc_looks_for_moves_before_it_looks_for_garbage() {
    let toml = ORDERS.replace("max_rejects", "raw_keep = \"10d\"\nmax_rejects");
    let dedup = "dedup = { key = [\"event_id\"], keep = \"latest_ingested\", on_conflict = \"count\" }\n";
    let lab = Lab::new(&toml.replace(dedup, ""));
    lab.land("march.jsonl", order("m1", "2026-03-01T09:00:00Z", "A", "1") + &order("m2", "2026-03-01T10:00:00Z", "B", "2"));
    lab.run();
    lab.land("may.jsonl", order("m1", "2026-05-01T09:00:00Z", "A", "1"));
    lab.run();
    let shown = garbage(&lab, None);
    assert_eq!(shown.files.len(), 1);
    std::fs::write(lab.path("restitch.toml"), &toml).unwrap();
    // The removal itself does not trust that somebody looked.
    let e = lab.open().collect(None, &shown).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
    let found = garbage(&lab, None);
    assert!(found.files.is_empty(), "{found:?}");
    assert_eq!(found.kept[0].why, "2026-03-01 of daily does not have all of its records yet");
    lab.backfill("2026-03-01", "2026-03-01");
    assert_eq!(lab.published(), ["2026-03-01 B 1 2.00", "2026-05-01 A 1 1.00"]);
    assert_eq!(gc(&lab, None).garbage.files.len(), 1);
}

/// DuckDB merges what was read again: the statistics of the merged file still tell its ingests.
#[test]
fn a_merge_of_raw_that_was_read_again_is_of_its_ingests() {
    let lab = Lab::new(&ORDERS.replace("max_rejects", "raw_keep = \"10d\"\nmax_rejects"));
    lab.land("m1.jsonl", order("m1", "2026-03-01T09:00:00Z", "A", "1"));
    lab.land("m2.jsonl", order("m2", "2026-03-01T09:20:00Z", "B", "2"));
    reparse_march(&lab, AMOUNT, CHANNEL);
    lake(["compact", &lab.catalog(), "raw_orders"]);
    lab.run();
    lab.land("may.jsonl", order("y1", "2026-05-01T09:00:00Z", "A", "4"));
    lab.run();
    lab.land("late.jsonl", order("m3", "2026-03-01T10:00:00Z", "C", "9"));
    gc(&lab, None);
    assert_eq!(raw_ids(&lab), ["m1", "m2", "m3", "y1"]);
    lab.backfill("2026-03-01", "2026-03-01");
    gc(&lab, None);
    assert_eq!(raw_ids(&lab), ["y1"]);
    let merged = lab.rows("select first_snapshot, last_snapshot from restitch_removed where kind = 'raw' and path like '%/ducklake-%'");
    assert_eq!(merged, ["1 2"]);
    assert!(lab.try_go(Lab::request(Kind::Backfill, Some(("2026-03-01", "2026-03-01")))).is_err());
}

/// DuckDB with a transaction of before a gc: it asks the catalog for files again at each query, and must not take what is left for all there was.
#[test]
fn a_reader_of_before_gc_meets_an_error_and_never_fewer_rows() {
    let lab = Lab::new(&ORDERS.replace("max_rejects", "raw_keep = \"10d\"\nmax_rejects"));
    lab.land("old.jsonl", order("o1", "2026-04-01T09:00:00Z", "A", "1"));
    lab.land("1.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "1") + &order("e2", "2026-05-02T09:00:00Z", "A", "1"));
    lab.run();
    lab.backfill(DAY, DAY);
    let script = r#"
import subprocess, sys
sys.path.insert(0, sys.argv[1])
import duckdb, lake
def ask(db, sql):
    try:
        return db.execute(sql).fetchone()[0]
    except duckdb.Error as e:
        return "an error" if "No such file" in str(e) else str(e)
DAILY, RAW = "SELECT sum(total)::INT FROM daily", "SELECT sum(amount)::INT FROM raw_orders"
# An error ends a transaction of DuckDB, so each question after the removal has one of its own.
held = [lake.attach(sys.argv[2]) for _ in range(4)]
for db in held:
    db.execute("BEGIN")
    assert (ask(db, DAILY), ask(db, RAW)) == (3, 3)
restitch = [sys.argv[3], "-C", sys.argv[4], "--now", sys.argv[5]]
run = lambda words: subprocess.run(restitch + words.split(), check=True, capture_output=True)
run("backfill daily --start 2026-05-01 --end 2026-05-01")
seen = [ask(held[0], DAILY), ask(held[0], RAW)]
run("gc --keep 1 --yes")
seen += [ask(held[0], DAILY), ask(held[1], RAW)]
# Another tool's clean-up goes by what we hold.
for call in ["ducklake_expire_snapshots('lake', older_than => now())", "ducklake_cleanup_old_files('lake', cleanup_all => true)"]:
    lake.attach(sys.argv[2], write=True).execute("CALL " + call)
seen += [ask(held[2], DAILY), ask(held[3], RAW)]
held[0].execute("ROLLBACK")
seen += [ask(held[0], DAILY), ask(held[0], RAW)]
print(seen)
"#;
    let out = std::process::Command::new(crate::interop::python())
        .args(["-B", "-c", script])
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop"))
        .args([lab.catalog().as_str(), env!("CARGO_BIN_EXE_restitch"), &lab.folder.path().display().to_string(), lab.now])
        .output()
        .unwrap();
    let want = "[3, 3, 'an error', 'an error', 'an error', 'an error', 3, 2]\n";
    assert_eq!(String::from_utf8_lossy(&out.stdout), want, "{}", String::from_utf8_lossy(&out.stderr));
    // Here nothing of it is seen: neither at a snapshot nor by the doctor, a backup, or the next gc, which takes the rows.
    let report = lab.open().doctor(false).unwrap();
    assert!(report.healthy() && report.orphans.is_empty(), "{report:?}");
    lab.open().backup(&lab.folder.path().join("copy")).unwrap();
    let held = || lab.rows("select count(*) from restitch_hold where gone = 1");
    assert_eq!((held(), garbage(&lab, Some(1)).is_empty()), (vec!["3".to_owned()], true));
    lab.backfill(DAY, DAY);
    gc(&lab, Some(1));
    let named = lake(["sql", &lab.catalog(), "SELECT count(*) AS n FROM __ducklake_metadata_lake.ducklake_data_file"])[0]["n"].clone();
    assert_eq!((held(), named), (vec!["1".to_owned()], 5.into()), "one of gc, three of daily and one of raw that are live");
}
