//! Rollbacks of some partitions, after others have published, and after the table's columns were changed.
//! Every state is read with DuckDB as well, and the doctor finds nothing.

use crate::{
    interop::lake,
    support::{Lab, ORDERS, chain, component, order},
};
use restitch::{
    config::TransformRef,
    id::RunId,
    manifest::{Kind, Manifest, Mode},
    pipeline::{DiffRequest, Error, ErrorKind, RollbackRequest, RolledBack, RunRequest},
    publish::PublishError,
};
use serde_json::Value;
use std::process::Command;

const DAYS: [&str; 3] = ["2026-05-01", "2026-05-02", "2026-05-03"];

fn orders(name: &str, amount: &str) -> String {
    DAYS.iter().map(|day| order(&format!("{name}-{day}"), &format!("{day}T09:00:00Z"), "A", amount)).collect()
}

/// Three days with the total 1 by r1, and 11 by r2.
fn two_versions(toml: &str) -> (Lab, Manifest, Manifest) {
    let lab = Lab::new(toml);
    lab.land("first.jsonl", orders("first", "1"));
    let first = lab.run();
    lab.land("second.jsonl", orders("second", "10"));
    let second = lab.backfill(DAYS[0], DAYS[2]);
    (lab, first, second)
}

fn request(run: RunId, partitions: &[&str]) -> RollbackRequest {
    let partitions = partitions.iter().map(|p| (*p).to_owned()).collect();
    RollbackRequest { run, partitions, window: None, force: false, reason: None }
}

fn roll_back(lab: &Lab, run: RunId, partitions: &[&str]) -> RolledBack {
    lab.open().roll_back(&request(run, partitions)).unwrap_or_else(|e| panic!("{}", chain(&e)))
}

/// The totals of the days, as restitch and DuckDB read them; the doctor has nothing to say.
fn totals(lab: &Lab) -> Vec<String> {
    let rows = lab.rows("select _partition, total from daily order by 1");
    let duck = lake(["sql", &lab.catalog(), "SELECT _partition AS p, total AS t FROM daily ORDER BY 1"]);
    let duck: Vec<String> = duck.iter().map(|r| format!("{} {}", r["p"].as_str().unwrap(), r["t"].as_str().unwrap())).collect();
    assert_eq!(rows, duck);
    let report = lab.open().doctor(false).unwrap();
    assert!(report.healthy() && report.orphans.is_empty(), "{report:?}");
    rows.iter().map(|r| r.split_once(' ').unwrap().1.to_owned()).collect()
}

fn restitch(lab: &Lab, words: &str) -> (i32, Value, String) {
    let run = |json: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
        command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now]).args(json).args(words.split(' ')).output().unwrap()
    };
    let out = run(&["--json"]);
    let text = String::from_utf8_lossy(&out.stderr).into_owned();
    (out.status.code().unwrap(), serde_json::from_slice(&out.stdout).unwrap_or(Value::Null), text)
}

#[test]
fn one_partition_goes_back_and_the_rest_of_the_run_stays() {
    let (lab, first, second) = two_versions(ORDERS);
    let RolledBack { manifest, left, back_already } = roll_back(&lab, second.run, &[DAYS[1]]);
    assert_eq!((left, back_already.len(), totals(&lab)), (2, 0, ["11.00", "1.00", "11.00"].map(str::to_owned).to_vec()));
    let names: Vec<&str> = manifest.partitions.iter().map(|p| p.partition.as_str()).collect();
    assert_eq!(
        (names, manifest.kind, manifest.of_run, manifest.asked.as_slice()),
        (vec![DAYS[1]], Kind::Rollback, Some(second.run), &[DAYS[1].to_owned()][..])
    );
    assert_eq!(manifest.window, Some(["2026-05-02T00:00:00Z".to_owned(), "2026-05-03T00:00:00Z".to_owned()]));
    assert_eq!(
        (manifest.partitions[0].checksum, manifest.partitions[0].prior_checksum),
        (first.partitions[1].checksum, second.partitions[1].checksum)
    );
    assert_eq!(manifest.others.unwrap().partitions, 2);
    let stands = lab.rows("select partition, run, dirty from restitch_partitions order by 1");
    assert_eq!(stands, [format!("{} r2 0", DAYS[0]), format!("{} r3 1", DAYS[1]), format!("{} r2 0", DAYS[2])], "its later record waits again");
    // The story of the number, what the rollback changed, and proofs of what still stands.
    let why = lab.open().why("daily", DAYS[1], &[]).unwrap();
    assert_eq!(why.runs.iter().map(|(r, _)| r.manifest.run.0).collect::<Vec<_>>(), [1, 2, 3]);
    assert_eq!(why.numbers[&manifest.run], why.numbers[&first.run]);
    assert_eq!(lab.open().why("daily", DAYS[0], &[]).unwrap().runs.len(), 2, "the rollback did not touch it");
    let diff = lab.open().diff_run(manifest.run, 10).unwrap();
    assert_eq!((diff.partitions.len(), diff.total().changed), (1, 1));
    assert_eq!(lab.open().verify(second.run, &()).unwrap().failed, Vec::<String>::new());
    assert!(lab.replay(second.run).unwrap().partitions.iter().all(|p| p.equal()));
}

#[test]
fn the_rest_goes_back_by_naming_the_run_and_an_undoing_can_be_undone() {
    let (lab, _, second) = two_versions(ORDERS);
    let part = roll_back(&lab, second.run, &[DAYS[1]]).manifest;
    let rest = roll_back(&lab, second.run, &[]);
    assert_eq!((rest.left, rest.back_already.as_slice()), (0, &[(DAYS[1].to_owned(), Some(part.run))][..]));
    assert_eq!((rest.manifest.partitions.len(), totals(&lab)), (2, vec!["1.00".to_owned(); 3]));
    // Nothing of r2 stands any more: by name or not, that is refused as for every run that was replaced.
    for partitions in [&[][..], &[DAYS[1]]] {
        let e = lab.open().roll_back(&request(second.run, partitions)).unwrap_err();
        assert!(matches!(&e, Error::Publish(PublishError::Replaced { later, .. }) if later.contains(&format!("{} by {}", DAYS[1], part.run))), "{e}");
    }
    // The undoing of each undoing brings its own partitions back, and those alone.
    roll_back(&lab, part.run, &[]);
    assert_eq!(totals(&lab), ["1.00", "11.00", "1.00"]);
    roll_back(&lab, rest.manifest.run, &[DAYS[2]]);
    assert_eq!(totals(&lab), ["1.00", "11.00", "11.00"]);
    // The first publication of a day is taken away, and the others of that run stay.
    let (lab, first, second) = two_versions(ORDERS);
    roll_back(&lab, second.run, &[]);
    let e = lab.open().roll_back(&request(first.run, &[DAYS[0]])).unwrap_err();
    assert!(matches!(&e, Error::Publish(PublishError::Replaced { .. })), "r3 stands there: {e}");
    let forced = lab.open().roll_back(&RollbackRequest { force: true, ..request(first.run, &[DAYS[0]]) }).unwrap();
    assert_eq!((forced.manifest.partitions[0].checksum, totals(&lab).len()), (None, 2));
    roll_back(&lab, forced.manifest.run, &[]);
    assert_eq!(totals(&lab), vec!["1.00".to_owned(); 3]);
}

/// What others published since is refused by name, or left alone where it is not named.
#[test]
fn what_others_published_is_never_touched() {
    let (lab, _, second) = two_versions(ORDERS);
    lab.land("third.jsonl", order("third", "2026-05-02T10:00:00Z", "A", "100"));
    let third = lab.backfill(DAYS[1], DAYS[1]);
    let published = || lab.rows("select partition, run, checksum from restitch_partitions order by 1");
    let before = published();
    for partitions in [&[][..], &[DAYS[1]], &[DAYS[1], DAYS[2]]] {
        let e = lab.open().roll_back(&request(second.run, partitions)).unwrap_err();
        assert!(matches!(&e, Error::Publish(PublishError::Replaced { later, .. }) if *later == [format!("{} by {}", DAYS[1], third.run)]), "{e}");
        assert!(e.kind() == ErrorKind::Conflict && e.hint().unwrap().contains("--partition"), "{e}");
    }
    assert_eq!(published(), before);
    let done = roll_back(&lab, second.run, &[DAYS[2], DAYS[0]]);
    assert_eq!((done.left, totals(&lab)), (1, ["1.00", "111.00", "1.00"].map(str::to_owned).to_vec()));
    assert_eq!(published()[1], before[1]);
    let forced = lab.open().roll_back(&RollbackRequest { force: true, ..request(second.run, &[DAYS[1]]) }).unwrap();
    assert_eq!((forced.manifest.partitions[0].prior_run, totals(&lab)), (Some(third.run), vec!["1.00".to_owned(); 3]));
    // A staged run that was compared with a partition that went back is told; one of another partition is not in the way.
    let stage = |day: &str| lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some((day, day))) }).manifest.unwrap().run;
    let (moved, apart) = (stage(DAYS[1]), stage(DAYS[0]));
    roll_back(&lab, forced.manifest.run, &[DAYS[1]]);
    assert_eq!(lab.open().publish(moved).unwrap_err().kind(), ErrorKind::Conflict);
    lab.open().publish(apart).unwrap();
    assert_eq!(totals(&lab), ["11.00", "111.00", "1.00"]);
}

#[test]
fn a_window_or_names_are_asked_for_and_what_a_run_has_not_is_refused() {
    let (lab, _, second) = two_versions(ORDERS);
    for (words, message) in [
        ("rollback r2 --partition 2026-05-09", "r2 has no partition \"2026-05-09\""),
        ("rollback r2 --start 2026-06-01", "r2 has no partition from 2026-06-01 to 2026-06-01"),
        ("rollback r2 --start 2026-05-01T12:00:00Z --end 2026-05-03", "2026-05-01T12:00:00Z lies inside the day partition 2026-05-01"),
        ("rollback r2 --end 2026-05-01", ""),
        ("rollback r2 --partition 2026-05-01 --start 2026-05-01", ""),
    ] {
        let (code, object, _) = restitch(&lab, words);
        assert_eq!(code, 2, "{words}: {object:#}");
        assert!(object["error"]["message"].as_str().unwrap().starts_with(message), "{words}: {object:#}");
    }
    assert_eq!(totals(&lab), vec!["11.00".to_owned(); 3]);
    let (code, object, _) = restitch(&lab, "rollback r2 --start 2026-05-02 --end 2026-05-03");
    assert_eq!((code, &object["left"], &object["asked"][1]), (0, &Value::from(1), &Value::from("2026-05-03")), "{object:#}");
    let (code, object, _) = restitch(&lab, "rollback r2 --partition 2026-05-01 --partition 2026-05-02");
    assert_eq!((code, object["error"]["exit_code"].as_i64()), (4, Some(4)), "{object:#}");
    let (_, object, _) = restitch(&lab, "rollback r2");
    assert_eq!(object["back_already"], serde_json::json!([{ "partition": DAYS[1], "by": "r3" }, { "partition": DAYS[2], "by": "r3" }]));
    assert_eq!((second.run.0, totals(&lab)), (2, vec!["1.00".to_owned(); 3]));
}

/// gc knows the versions that a rollback of a part leaves: what can be undone stays, and what went is named.
#[test]
fn gc_and_rollbacks_of_a_part_keep_out_of_each_others_way() {
    let (lab, first, second) = two_versions(ORDERS);
    roll_back(&lab, second.run, &[DAYS[1]]);
    let shown = lab.open().garbage(Some(2)).unwrap();
    assert_eq!(shown.files.iter().map(|f| (f.partition.as_deref().unwrap(), f.run.unwrap())).collect::<Vec<_>>(), [(DAYS[1], first.run)]);
    lab.open().collect(Some(2), &shown).unwrap();
    // The name that went was the first one of bytes that the rollback linked: they are still there.
    assert_eq!(totals(&lab), ["11.00", "1.00", "11.00"]);
    roll_back(&lab, second.run, &[DAYS[0]]);
    let shown = lab.open().garbage(Some(1)).unwrap();
    lab.open().collect(Some(1), &shown).unwrap();
    let e = lab.open().roll_back(&request(second.run, &[DAYS[2]])).unwrap_err();
    assert!(matches!(&e, Error::Publish(PublishError::Removed { .. })) && e.to_string().contains("by gc (keep 1, tester)"), "{e}");
    assert_eq!(totals(&lab), ["1.00", "1.00", "11.00"]);
}

/// One row for each order: `note` may be null, so that a table can do without it.
fn notes() -> (Lab, Manifest) {
    let toml = ORDERS.replace("customer-totals@1.0.0", "clean-orders@1.0.0").replace("key = [\"customer_id\"]", "key = [\"event_id\"]");
    let lab = Lab::new(&(toml.split("checks = [").next().unwrap().to_owned() + "checks = []\n"));
    lab.open().add_transform(&component("clean-orders-1.0.0.wasm")).unwrap();
    lab.land("first.jsonl", orders("first", "1"));
    lab.run();
    lab.land("second.jsonl", order("second", "2026-05-01T10:00:00Z", "A", "10") + &order("third", "2026-05-02T10:00:00Z", "A", "10"));
    let second = lab.backfill(DAYS[0], DAYS[1]);
    (lab, second)
}

fn alter(lab: &Lab, sql: &str) {
    lake(["sql", &lab.catalog(), sql, "--write"]);
}

/// A column that came after the version that is restored is null there, for restitch and for DuckDB.
#[test]
fn a_version_of_before_a_column_was_added_comes_back_with_nulls() {
    let (lab, second) = notes();
    alter(&lab, "ALTER TABLE daily ADD COLUMN channel VARCHAR");
    lab.land("fourth.jsonl", order("fourth", "2026-05-01T11:00:00Z", "A", "100"));
    let third = lab.backfill(DAYS[0], DAYS[0]);
    let sql = "SELECT _partition, event_id, amount, channel FROM daily ORDER BY 1, 2";
    let both = || {
        let duck: Vec<String> = lake(["sql", &lab.catalog(), sql])
            .iter()
            .map(|r| ["_partition", "event_id", "amount", "channel"].map(|c| r[c].as_str().map_or_else(|| r[c].to_string(), str::to_owned)).join(" "))
            .collect();
        assert_eq!(lab.rows(sql), duck);
        duck.len()
    };
    assert_eq!(both(), 6);
    roll_back(&lab, third.run, &[]);
    assert_eq!(both(), 5);
    roll_back(&lab, second.run, &[DAYS[1]]);
    assert_eq!(both(), 4);
    assert!(lab.open().doctor(false).unwrap().healthy());
    assert!(lab.replay(second.run).unwrap().partitions.iter().all(|p| p.equal()));
}

/// A column that allowed no null allows it from the swap on that brings the first one, for restitch and for DuckDB; older snapshots, replays and rollbacks are as they were.
#[test]
fn the_first_null_makes_a_column_nullable() {
    let (lab, second) = notes();
    alter(&lab, "ALTER TABLE daily ALTER customer_id SET NOT NULL");
    let column = || {
        let sql = "SELECT nulls_allowed, coalesce(end_snapshot, 0) FROM ducklake_column WHERE column_name = 'customer_id' AND table_id = \
                   (SELECT table_id FROM restitch_dataset) ORDER BY begin_snapshot";
        let catalog = rusqlite::Connection::open(lab.catalog()).unwrap();
        let mut statement = catalog.prepare(sql).unwrap();
        statement.query_map([], |r| Ok((r.get(0)?, r.get(1)?))).unwrap().collect::<Result<Vec<(i64, i64)>, _>>().unwrap()
    };
    let before = lab.rows("select max(snapshot_id) from ducklake_snapshot");
    let nulls = |at: &str| {
        let sql = format!("SELECT count(*) AS n FROM daily {at} WHERE customer_id IS NULL");
        lake(["sql", &lab.catalog(), &sql])[0]["n"].as_i64().unwrap()
    };
    let staged = |day: &str| lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some((day, day))) }).manifest.unwrap().run;
    lab.land("blank.jsonl", order("blank", "2026-05-01T11:00:00Z", " ", "100") + &order("blank2", "2026-05-02T11:00:00Z", " ", "100"));
    let (third, other) = (staged(DAYS[0]), staged(DAYS[1]));
    assert_eq!((column().len(), nulls("")), (2, 0), "a staged run changes no column");
    let (transform, start) = (TransformRef::parse("clean-orders@1.0.0").unwrap(), DAYS[0].to_owned());
    let diff = DiffRequest { dataset: "daily".into(), transform, start, end: None, grant_payload: None, params: Vec::new(), rows: 1 };
    let notes = lab.open().diff_versions(&diff, &()).unwrap().notes;
    assert_eq!(notes, ["may be null now: customer_id; the first null that is published makes the column nullable"]);
    let published = lab.open().publish(third).unwrap().published_snapshot.unwrap();
    assert_eq!(column()[1..], [(0, published.0), (1, 0)]);
    assert_eq!((nulls(""), nulls(&format!("AT (VERSION => {})", before[0]))), (1, 0));
    assert_eq!(lab.rows("select event_id from daily where customer_id is null"), ["blank"]);
    assert_eq!(lake(["sql", &lab.catalog(), "SELECT count(*) AS n FROM daily WHERE customer_id IS NOT NULL"])[0]["n"], 5);
    // What was staged of another day is computed again; the next null changes nothing, nor does a version without one.
    let e = lab.open().publish(other).unwrap_err();
    assert!(e.kind() == ErrorKind::Conflict && e.to_string().ends_with("its columns were altered"), "{}", chain(&e));
    lab.go(RunRequest { mode: Mode::Merge, ..Lab::request(Kind::Backfill, Some((DAYS[1], DAYS[1]))) });
    assert_eq!((column().len(), nulls("")), (3, 2));
    let undone = roll_back(&lab, third, &[]).manifest.run;
    assert_eq!((column().len(), nulls("")), (3, 1));
    roll_back(&lab, undone, &[]);
    assert_eq!((column().len(), nulls("")), (3, 2));
    for run in [second.run, third] {
        assert!(lab.replay(run).unwrap().partitions.iter().all(|p| p.equal()));
    }
    assert!(lab.open().doctor(false).unwrap().healthy());
}

/// restitch finds columns of files by name: after a renaming it refuses to read, and to undo, instead of reading nulls. The first name brings all of it back.
#[test]
fn a_renamed_column_is_refused_until_it_has_its_name_back() {
    let (lab, second) = notes();
    let before = lab.rows("select event_id, note from daily order by 1");
    alter(&lab, "ALTER TABLE daily RENAME COLUMN note TO remark");
    let refused = |e: Error| {
        assert!(e.to_string().contains("column remark of table daily") && e.hint().unwrap().contains("RENAME COLUMN"), "{}", chain(&e));
    };
    refused(lab.open().query("select * from daily", None).unwrap_err());
    refused(lab.open().roll_back(&request(second.run, &[DAYS[0]])).unwrap_err());
    let e = lab.try_go(Lab::request(Kind::Backfill, Some((DAYS[0], DAYS[0])))).unwrap_err();
    assert!(e.to_string().contains("note of daily is gone (another tool dropped or renamed it)"), "{}", chain(&e));
    assert_eq!(lab.rows_at("select event_id, note from daily order by 1", second.published_snapshot), before, "the past has its own names");
    assert_eq!(lab.rows("select count(*) from restitch_runs where status = 'running'"), ["0"]);
    alter(&lab, "ALTER TABLE daily RENAME COLUMN remark TO note");
    assert_eq!(lab.rows("select event_id, note from daily order by 1"), before);
    roll_back(&lab, second.run, &[DAYS[0]]);
    assert_eq!(lab.rows("select event_id from daily order by 1").len(), before.len() - 1);
    // A name that another column had is not given to a new one: files of then would be read as it.
    alter(&lab, "ALTER TABLE daily DROP COLUMN note");
    let e = lab.try_go(Lab::request(Kind::Backfill, Some((DAYS[0], DAYS[0])))).unwrap_err();
    assert!(e.to_string().contains("note of daily is gone"), "{}", chain(&e));
    roll_back(&lab, second.run, &[DAYS[1]]);
    assert_eq!(lab.rows("select count(*) from daily"), ["3"]);
    assert_eq!(lake(["sql", &lab.catalog(), "SELECT count(*) AS n FROM daily"])[0]["n"], 3);
}

/// Nothing lands beside a column of raw that has another name now: two of one name could never be told apart again.
#[test]
fn a_renamed_column_of_raw_takes_no_more_records_until_it_has_its_name_back() {
    let (lab, _) = notes();
    let count = || lab.rows("select count(*) from raw_orders");
    let before = count();
    alter(&lab, "ALTER TABLE raw_orders RENAME COLUMN amount TO total");
    std::fs::write(lab.path("late.jsonl"), order("late", "2026-05-02T11:00:00Z", "A", "10")).unwrap();
    let e = lab.open().ingest("orders", &[lab.path("late.jsonl")], None, &()).unwrap_err();
    assert!(e.to_string().contains("column \"amount\" of raw_orders is gone") && e.hint().unwrap().contains("RENAME COLUMN"), "{}", chain(&e));
    alter(&lab, "ALTER TABLE raw_orders RENAME COLUMN total TO amount");
    assert_eq!(count(), before);
    lab.open().ingest("orders", &[lab.path("late.jsonl")], None, &()).unwrap();
    assert_ne!(count(), before);
    lab.backfill(DAYS[1], DAYS[1]);
}

/// What somebody took back on purpose is built again by who names it, and in passing by nobody.
#[test]
fn what_a_rollback_took_away_is_left_alone_until_it_is_named() {
    let lab = Lab::new(ORDERS);
    lab.land("first.jsonl", orders("first", "1"));
    let saved = lab.bind(Kind::Run, None);
    let first = lab.run();
    let undone = roll_back(&lab, first.run, &[]).manifest.run;
    assert_eq!(totals(&lab), Vec::<String>::new());
    let e = lab.open().apply(&saved, &()).unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Conflict);
    assert!(e.to_string().contains("; partition 2026-05-02 was taken away by a rollback; "), "{e}");
    let left = |names: &str| format!("{names} left as it stands: taken away by a rollback, and only `restitch backfill` builds it again");
    let nothing = |kind: Kind, names: &str| {
        let done = lab.go(Lab::request(kind, None));
        assert!(done.manifest.is_none());
        assert_eq!(done.plan.gaps, [left(names)]);
        done.plan.waiting.iter().map(|w| format!("{} {} {}", w.partition, w.tier, w.records)).collect::<Vec<_>>()
    };
    let all = "3 partitions (2026-05-01 to 2026-05-03)";
    assert_eq!(nothing(Kind::Run, all), Vec::<String>::new());
    assert_eq!(lab.open().status(None).unwrap().1[0].buildable, 0);
    // Late records are no reason either: they wait, and say what for.
    lab.land("late.jsonl", order("late", "2026-05-02T07:00:00Z", "A", "5"));
    let waits = ["2026-05-02 taken away 1"];
    assert_eq!(
        (nothing(Kind::Run, all), nothing(Kind::Repair, "partition 2026-05-02")),
        (waits.map(str::to_owned).to_vec(), waits.map(str::to_owned).to_vec())
    );
    let out = restitch(&lab, "repair daily").1;
    assert_eq!(out["plan"]["waiting"][0]["tier"], "taken away");
    // What was never published is built as ever.
    lab.land("fourth.jsonl", order("fourth", "2026-05-04T09:00:00Z", "A", "7"));
    let fourth = lab.run();
    assert_eq!((fourth.partitions.len(), fourth.gaps), (1, vec![left(all)]));
    assert_eq!(lab.backfill(DAYS[1], DAYS[1]).partitions[0].reason, "missing");
    assert_eq!(totals(&lab), ["6.00", "7.00"]);
    assert_eq!(nothing(Kind::Run, "2 partitions (2026-05-01 to 2026-05-03)"), Vec::<String>::new());
    // An undoing that is undone brings back what it took.
    roll_back(&lab, undone, &[DAYS[0]]);
    assert_eq!(totals(&lab), ["1.00", "6.00", "7.00"]);
    assert_eq!(nothing(Kind::Run, "partition 2026-05-03"), Vec::<String>::new());
}
