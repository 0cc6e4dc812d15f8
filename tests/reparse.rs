//! Columns declared later: landed records read again from their payloads, in a bounded window, as a run with a manifest.
//! What comes out is what a fresh warehouse with the new declaration would hold; what was pinned before stays as it was.

use crate::{
    interop::lake,
    support::{Lab, ORDERS, chain, component, names},
};
use restitch::{
    id::{Digest, SnapshotId},
    manifest::{Kind, Manifest, Mode, Status},
    pipeline::{Error, ErrorKind, ReparseRequest, RunRequest},
    plan::{Reason, Staleness},
};
use std::{collections::BTreeMap, process::Command};

const AMOUNT: &str = "amount      = { type = \"decimal(18,2)\" }";

/// What is declared later: an alias for a column that was there, and four columns that were not.
const LATER: &str = r#"amount      = { type = "decimal(18,2)", aliases = ["total"] }
channel     = { type = "string", nullable = false, default = "web" }
coupon      = { type = "string", from = "/promo/code" }
card        = { type = "string", mask = "sha256" }
pieces      = { type = "int32", on_bad = "null" }"#;

fn declare(lab: &Lab, columns: &str) {
    std::fs::write(lab.path("restitch.toml"), ORDERS.replace(AMOUNT, columns)).unwrap();
}

fn request(start: &str, end: &str) -> ReparseRequest {
    ReparseRequest { source: "orders".into(), start: Some(start.into()), end: Some(end.into()), dry_run: false, reason: Some("new columns".into()) }
}

fn reparse(lab: &Lab, start: &str, end: &str) -> Manifest {
    lab.open().reparse(&request(start, end), &()).unwrap_or_else(|e| panic!("{}", chain(&e)))
}

fn refused(lab: &Lab, start: &str, end: &str) -> (ErrorKind, String) {
    let e = lab.open().reparse(&request(start, end), &()).unwrap_err();
    (e.kind(), format!("{} / {}", chain(&e), e.hint().unwrap_or_default()))
}

fn latest(lab: &Lab) -> SnapshotId {
    SnapshotId(lab.rows("select max(snapshot_id) from ducklake_snapshot")[0].parse().unwrap())
}

/// The checksums of what is published, by partition.
fn checksums(lab: &Lab) -> BTreeMap<String, String> {
    let rows = lab.rows("select partition, checksum from restitch_partitions order by 1");
    rows.iter().map(|r| r.split_once(' ').map(|(p, c)| (p.to_owned(), c.to_owned())).unwrap()).collect()
}

fn backfill_stale(lab: &Lab) -> Manifest {
    let window = Some(("2026-05-01", "2026-05-04"));
    lab.go(RunRequest { only: Some(Reason::Stale), ..Lab::request(Kind::Backfill, window) }).manifest.unwrap()
}

/// Two files over four days. Some records say `total` for `amount`; e1 comes twice, and the second one counts.
fn files() -> [(&'static str, String); 2] {
    let line =
        |id: &str, at: &str, rest: &str| format!("{{\"event_id\":\"{id}\",\"event_time\":\"2026-05-{at}:00Z\",\"customer_id\":\"A\",{rest}}}\n");
    let a = line("e1", "01T09:00", "\"total\":10,\"card\":\"4000\",\"pieces\":2")
        + &line("e2", "01T10:00", "\"amount\":1.25,\"promo\":{\"code\":\"MAY\"},\"channel\":\"shop\"")
        + &line("e3", "02T23:59", "\"total\":7,\"pieces\":\"many\"")
        + &line("e4", "03T00:00", "\"total\":100,\"channel\":\"app\"");
    let b = line("e1", "01T09:00", "\"amount\":11") + &line("e5", "04T08:00", "\"amount\":5,\"channel\":\"web\"");
    [("a.jsonl", a), ("b.jsonl", b)]
}

fn landed(toml_columns: &str) -> Lab {
    let lab = Lab::new(ORDERS);
    declare(&lab, toml_columns);
    for (name, text) in files() {
        lab.land(name, text);
    }
    lab
}

#[test]
fn a_column_declared_later_is_read_again_and_published_like_in_a_fresh_warehouse() {
    let lab = landed(AMOUNT);
    let first = lab.run();
    let (before, pinned) = (lab.published(), latest(&lab));
    let envelope =
        "select _record_id, _event_time, _ingested_at, _file, _offset, _flags, _seq, _payload_hash, _payload from raw_orders order by _file, _seq";
    let (raw, envelopes) = (lab.rows("select * from raw_orders order by _file, _seq"), lab.rows(envelope));
    declare(&lab, LATER);
    let stale = || lab.plan(Kind::Backfill, Some(("2026-05-01", "2026-05-04")), Some(Reason::Stale));
    assert_eq!(names(&stale()), Vec::<String>::new());

    // A dry run counts, and keeps nothing.
    let dry = lab.open().reparse(&ReparseRequest { dry_run: true, ..request("2026-05-01", "2026-05-02") }, &()).unwrap();
    let found = dry.reparse.clone().unwrap();
    assert_eq!((dry.status, dry.mode, latest(&lab)), (Status::Done, Mode::DryRun, pinned));
    assert_eq!((found.read, found.inside, found.changed, found.files.len()), (6, 4, 4, 0));

    let done = reparse(&lab, "2026-05-01", "2026-05-02");
    let found = done.reparse.clone().unwrap();
    assert_eq!((done.kind, done.status, done.published_snapshot), (Kind::Reparse, Status::Published, Some(SnapshotId(pinned.0 + 1))));
    assert_eq!((done.operator.as_str(), done.reason.as_deref(), done.inputs.len()), ("tester", Some("new columns"), 2));
    assert_eq!(done.window.as_ref().unwrap()[1], "2026-05-03T00:00:00Z");
    assert_eq!((found.read, found.inside, found.changed), (6, 4, 4));
    let per_column: Vec<(&str, u64)> = found.columns.iter().map(|(c, n)| (c.as_str(), *n)).filter(|(_, n)| *n > 0).collect();
    assert_eq!(per_column, [("amount", 2), ("channel", 4), ("coupon", 1), ("card", 1), ("pieces", 1)]);
    for file in &found.files {
        assert_eq!(Digest::of(&std::fs::read(lab.path("warehouse").join(&file.path)).unwrap()), file.digest);
    }

    // Inside the window all columns, outside it nothing; the envelope is as it was, and so is the past.
    let card = Digest::of(b"4000").to_string();
    let values = "select _record_id, amount, channel, coupon, card, pieces from raw_orders order by _file, _seq";
    let want = [
        format!("e1 10.00 web null {card} 2"),
        "e2 1.25 shop MAY null null".into(),
        "e3 7.00 web null null null".into(),
        "e4 null null null null null".into(),
        "e1 11.00 web null null null".into(),
        "e5 5.00 null null null null".into(),
    ];
    assert_eq!(lab.rows(values), want);
    // Payloads of a source with a mask are not for everybody: look at them as if it had none.
    declare(&lab, AMOUNT);
    assert_eq!(lab.rows(envelope), envelopes);
    assert_eq!(lab.rows_at("select * from raw_orders order by _file, _seq", Some(pinned)), raw);
    declare(&lab, LATER);

    // What was published of them is stale, and says why; nothing else is, and `run` and `repair` leave it alone.
    assert_eq!(names(&stale()), ["2026-05-01", "2026-05-02"]);
    assert_eq!(stale().ranges[0].reason, Reason::Stale);
    let (_, datasets) = lab.open().status(Some("daily")).unwrap();
    let marks: Vec<_> = datasets[0].partitions.iter().map(|p| p.stale.clone()).collect();
    assert_eq!(marks, [vec![Staleness::Reparse], vec![Staleness::Reparse], vec![], vec![]]);
    assert!(lab.go(Lab::request(Kind::Run, None)).manifest.is_none() && lab.go(Lab::request(Kind::Repair, None)).manifest.is_none());
    assert_eq!(lab.published(), before);

    let again = backfill_stale(&lab);
    assert_eq!(names(&stale()), Vec::<String>::new());
    let fresh = landed(LATER);
    fresh.run();
    let (ours, theirs) = (checksums(&lab), checksums(&fresh));
    assert_eq!((&ours["2026-05-01"], &ours["2026-05-02"]), (&theirs["2026-05-01"], &theirs["2026-05-02"]));
    assert_ne!(ours["2026-05-03"], theirs["2026-05-03"], "it was outside the window");

    // Runs of before and after are computed again to the bit; a second reparse finds nothing to do.
    assert!(lab.replay(first.run).unwrap().partitions.iter().all(|p| p.equal()));
    assert!(lab.open().verify(again.run, &()).unwrap().failed.is_empty());
    let nothing = reparse(&lab, "2026-05-01", "2026-05-02");
    assert_eq!((nothing.status, nothing.published_snapshot, nothing.reparse.unwrap().changed), (Status::Done, None, 0));
    reparse(&lab, "2026-05-03", "2026-05-04");
    backfill_stale(&lab);
    assert_eq!(checksums(&lab), theirs);
    assert!(lab.replay(first.run).unwrap().partitions.iter().all(|p| p.equal()));
    // An ingest afterwards lands with the new columns, and its records come last.
    lab.land("c.jsonl", files()[1].1.replace("\"amount\":11", "\"total\":12,\"channel\":\"app\"").replace("e5", "e6"));
    lab.backfill("2026-05-01", "2026-05-01");
    assert_eq!(lab.rows("select total from daily where _partition = '2026-05-01'"), ["13.25"]);
    assert_eq!(lab.rows("select channel from raw_orders where _record_id = 'e6'"), ["web"]);
}

/// The first of two records of one id is in a file that is written anew, the second is not: the second still came last.
#[test]
fn arrival_order_is_that_of_the_ingests_also_in_duckdb_and_after_its_compaction() {
    let lab = landed(AMOUNT);
    let first = lab.run();
    let pinned = latest(&lab);
    declare(&lab, "amount      = { type = \"decimal(18,2)\", aliases = [\"total\"] }");
    let done = reparse(&lab, "2026-05-01T00:00:00Z", "2026-05-01T09:30:00Z");
    assert_eq!(done.reparse.as_ref().map(|r| (r.changed, r.files.len())), Some((1, 1)), "only e1 of the first file");
    assert_eq!(names(&lab.plan(Kind::Backfill, Some(("2026-05-01", "2026-05-04")), Some(Reason::Stale))), ["2026-05-01"]);
    let again = backfill_stale(&lab);
    assert_eq!(lab.rows("select total from daily where _partition = '2026-05-01'"), ["12.25"], "11 of the second e1, and 1.25");
    assert_eq!((again.partitions[0].records, again.partitions[0].duplicates), (3, 1));

    let duck = |at: Option<i64>| -> Vec<String> {
        let at = at.map(|at| format!(" AT (VERSION => {at})")).unwrap_or_default();
        let sql = format!("SELECT count(*) AS n, count(amount) AS filled, sum(amount) AS total, count(DISTINCT _seq) AS places FROM raw_orders{at}");
        lake(["sql", &lab.catalog(), &sql]).iter().map(|r| format!("{} {} {} {}", r["n"], r["filled"], r["total"], r["places"])).collect()
    };
    let versions: Vec<i64> = (1..=latest(&lab).0).collect();
    let seen: Vec<Vec<String>> = versions.iter().map(|v| duck(Some(*v))).collect();
    assert_eq!(duck(None), ["6 4 \"27.25\" 4"]);
    assert_eq!(duck(Some(pinned.0)), ["6 3 \"17.25\" 4"]);
    assert_eq!(duck(Some(1)), ["4 1 \"1.25\" 4"]);
    // DuckDB merges the files that are live; every version reads as before, and so do dedup and replays.
    lake(["compact", &lab.catalog(), "raw_orders"]);
    assert_eq!(versions.iter().map(|v| duck(Some(*v))).collect::<Vec<_>>(), seen);
    lab.backfill("2026-05-01", "2026-05-01");
    assert_eq!(lab.rows("select total from daily where _partition = '2026-05-01'"), ["12.25"]);
    for run in [first.run, again.run] {
        assert!(lab.replay(run).unwrap().partitions.iter().all(|p| p.equal()), "{run}");
    }
    // And what was merged can be read again in its turn: each record keeps its own ingest.
    declare(&lab, LATER);
    reparse(&lab, "2026-05-01", "2026-05-04");
    lab.backfill("2026-05-01", "2026-05-01");
    assert_eq!(lab.rows("select total from daily where _partition = '2026-05-01'"), ["12.25"]);
    assert_eq!(duck(None), ["6 6 \"134.25\" 4"]);
}

#[test]
fn csv_is_read_by_the_header_that_its_file_had() {
    let toml = ORDERS.replace("format = \"jsonl\"", "format = \"csv\"\ndelimiter = \";\"");
    let lab = Lab::new(&toml);
    lab.land(
        "a.csv",
        "event_id;event_time;customer_id;amount;Weight (kg)\r\ne1;2026-05-01T09:00:00Z;A;1;\"2,5\"\r\ne2;2026-05-01T10:00:00Z;\"A\nB\";2;\r\n",
    );
    let toml = toml.replace("delimiter = \";\"", "delimiter = \",\"");
    std::fs::write(lab.path("restitch.toml"), &toml).unwrap();
    lab.land("b.csv", "weight,customer_id,event_time,event_id,amount\n3.25,A,2026-05-01T11:00:00Z,e3,3\n");
    let weight = format!("{AMOUNT}\nweight = {{ type = \"string\", aliases = [\"Weight (kg)\"] }}");
    std::fs::write(lab.path("restitch.toml"), toml.replace(AMOUNT, &weight)).unwrap();
    reparse(&lab, "2026-05-01", "2026-05-01");
    assert_eq!(lab.rows("select _record_id, weight from raw_orders order by 1"), ["e1 2,5", "e2 null", "e3 3.25"]);
    // A file whose header is not known cannot be read, and nothing is guessed.
    lake(["sql", &lab.catalog(), "UPDATE __ducklake_metadata_lake.restitch_file SET header = NULL WHERE path LIKE '%b.csv'", "--write"]);
    let (kind, text) = refused(&lab, "2026-05-01", "2026-05-01");
    assert_eq!(kind, ErrorKind::Usage);
    assert!(text.contains("b.csv, landed in snapshot 2: its header line is not kept"), "{text}");
    // Another window does not need it.
    reparse(&lab, "2026-05-01T00:00:00Z", "2026-05-01T10:30:00Z");
}

/// The same line says something else under another header: two records, and a reparse finds each by its own.
#[test]
fn csv_records_without_an_id_are_named_by_their_header_too() {
    let toml = ORDERS.replace("jsonl", "csv").replace("record_id = \"event_id\"\n", "").replace("key = [\"event_id\"]", "key = [\"_record_id\"]");
    let lab = Lab::new(&toml);
    lab.land("a.csv", "event_id,customer_id,event_time,amount,note\ne1,A,2026-05-01T09:00:00Z,1,x\n");
    lab.land("b.csv", "customer_id,event_id,event_time,amount,note\ne1,A,2026-05-01T09:00:00Z,1,x\n");
    lab.run();
    assert_eq!(lab.published(), ["2026-05-01 A 1 1.00", "2026-05-01 e1 1 1.00"]);
    let ids = lab.rows("select _record_id from raw_orders order by 1");
    std::fs::write(lab.path("restitch.toml"), toml.replace(AMOUNT, &format!("{AMOUNT}\nnote = {{ type = \"string\" }}"))).unwrap();
    reparse(&lab, "2026-05-01", "2026-05-01");
    assert_eq!(lab.rows("select note from raw_orders"), ["x", "x"]);
    assert_eq!(lab.rows("select _record_id from raw_orders order by 1"), ids);
}

#[test]
fn what_would_reject_or_move_a_landed_record_is_refused_whole() {
    let lab = landed(AMOUNT);
    lab.run();
    let (before, pinned) = (lab.rows("select * from raw_orders order by _file, _seq"), latest(&lab));
    let cases = [
        ("pieces = { type = \"int32\" }", "1 landed record(s) of orders cannot be read", "a.jsonl:3: pieces \"many\" "),
        (
            "pieces = { type = \"int32\", nullable = false, on_bad = \"default\", default = \"0\" }\ncard = { type = \"string\", nullable = false }",
            "5 landed",
            "a.jsonl:2: card is missing: not nullable",
        ),
    ];
    for (columns, what, first) in cases {
        declare(&lab, &format!("{AMOUNT}\n{columns}"));
        let (kind, text) = refused(&lab, "2026-05-01", "2026-05-04");
        assert_eq!(kind, ErrorKind::Validation, "{text}");
        assert!(text.contains(what) && text.contains(first) && text.contains("on_bad = \"null\""), "{text}");
    }
    // Another event time or record id would make it another record.
    for (from, to, first) in [
        (
            "event_time  = { type = \"timestamp\", nullable = false }",
            "event_time  = { type = \"timestamp\", nullable = false, from = \"/when\", default = \"2026-05-01\" }",
            "its event time would move from 2026-05-01T09:00:00Z to",
        ),
        (
            "event_id    = { type = \"string\", nullable = false }",
            "event_id    = { type = \"string\", nullable = false, from = \"/customer_id\" }",
            "its record id would be another one",
        ),
    ] {
        std::fs::write(lab.path("restitch.toml"), ORDERS.replace(from, to)).unwrap();
        let (kind, text) = refused(&lab, "2026-05-01", "2026-05-04");
        assert!(kind == ErrorKind::Validation && text.contains(first), "{text}");
    }
    // So would all ids that are made of another column: that is refused before a record is read.
    std::fs::write(lab.path("restitch.toml"), ORDERS.replace("record_id = \"event_id\"", "record_id = \"customer_id\"")).unwrap();
    let (kind, text) = refused(&lab, "2026-05-01", "2026-05-04");
    assert!(kind == ErrorKind::Usage && text.contains("are made of the column \"event_id\", but"), "{text}");
    assert_eq!((lab.rows("select * from raw_orders order by _file, _seq"), latest(&lab)), (before, pinned));
    let failed = lab.open().runs(None, 1).unwrap().remove(0).manifest;
    assert_eq!((failed.kind, failed.status), (Kind::Reparse, Status::Failed));
    assert!(failed.error.unwrap().contains("cannot be read"));

    // A window has two ends, a column keeps its type, and Parquet keeps no payloads.
    declare(&lab, AMOUNT);
    let open = lab.open().reparse(&ReparseRequest { end: None, ..request("2026-05-01T00:00:00Z", "") }, &()).unwrap_err();
    assert_eq!((open.kind(), open.to_string().contains("--start and --end")), (ErrorKind::Usage, true));
    declare(&lab, "amount = { type = \"string\" }");
    assert_eq!(refused(&lab, "2026-05-01", "2026-05-01").0, ErrorKind::Usage);
    std::fs::write(lab.path("restitch.toml"), ORDERS.replace("format = \"jsonl\"", "format = \"parquet\"")).unwrap();
    let (kind, text) = refused(&lab, "2026-05-01", "2026-05-01");
    assert!(kind == ErrorKind::Usage && text.contains("payloads are not kept"), "{text}");
}

#[test]
fn a_reparse_is_not_rolled_back_replayed_or_verified() {
    let lab = landed(AMOUNT);
    declare(&lab, LATER);
    let run = reparse(&lab, "2026-05-01", "2026-05-04").run;
    let rollback = lab.open().rollback(run, false, None).unwrap_err();
    assert_eq!((rollback.kind(), rollback.hint().unwrap().contains("reparse the same window again")), (ErrorKind::Usage, true), "{rollback}");
    let replay = lab.replay(run).unwrap_err();
    let verify = lab.open().verify(run, &()).unwrap_err();
    for e in [&replay, &verify] {
        assert!(matches!(e, Error::NotReplayable { kind: "reparse", .. }), "{e}");
    }
    assert!(lab.open().publish(run).is_err() && lab.open().discard(run).is_err());
}

/// A transform that wants a value meets records from before the column: the error names the way out, which works.
#[test]
fn a_transform_that_meets_nulls_of_before_the_column_says_how_to_go_on() {
    let lab = landed(AMOUNT);
    lab.open().add_transform(&component("misbehave-1.0.0.wasm")).unwrap();
    let odd = "\n[dataset.odd]\ninput = \"orders\"\ntransform = \"misbehave@1.0.0\"\npartition = \"month\"\nkey = [\"id\"]\n";
    let id = format!("{AMOUNT}\nid = {{ type = \"int64\", nullable = false, default = \"7\" }}");
    std::fs::write(lab.path("restitch.toml"), ORDERS.replace(AMOUNT, &id) + odd).unwrap();
    let run = || lab.try_go(RunRequest { dataset: "odd".into(), ..Lab::request(Kind::Run, None) });
    let e = run().unwrap_err();
    assert!(chain(&e).starts_with("partition 2026-05: column \"id\" is null in at least 6 record(s) of orders"), "{}", chain(&e));
    let hint = e.hint().unwrap();
    let command = hint.split('`').nth(1).unwrap().strip_prefix("restitch ").unwrap();
    assert_eq!(command, "ingest orders --reparse --start 2026-05-01T00:00:00Z --end 2026-06-01T00:00:00Z");
    let out = Command::new(env!("CARGO_BIN_EXE_restitch")).arg("-C").arg(lab.folder.path()).args(command.split(' ')).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && text.contains("6 of 6 records in the window changed, 2 files written anew"), "{text}");
    if let Err(e) = run() {
        assert!(!chain(&e).contains("is null in"), "{}", chain(&e));
    }
}

#[test]
fn the_command_shows_a_reparse_and_what_became_stale() {
    let lab = landed(AMOUNT);
    lab.run();
    declare(&lab, LATER);
    let restitch = |words: &str| {
        let out = Command::new(env!("CARGO_BIN_EXE_restitch")).arg("-C").arg(lab.folder.path()).args(words.split(' ')).output().unwrap();
        (out.status.code().unwrap(), String::from_utf8(out.stdout).unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    let (code, text, talk) = restitch("ingest orders --reparse --start 2026-05-01 --end 2026-05-02 --reason alias --operator ann");
    assert_eq!(code, 0, "{talk}");
    assert!(talk.contains("reparse orders: [2026-05-01T00:00:00Z, 2026-05-03T00:00:00Z)"), "{talk}");
    assert!(text.contains("Reparsed orders in r2 as snapshot 4: 4 of 4 records in the window changed, 2 files written anew."), "{text}");
    let (_, text, _) = restitch("show r2");
    for part in ["a reparse of raw_orders", "alias", "ann", "channel string not null, default \"web\"", "card string, mask sha256", "instead of"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let (_, text, _) = restitch("runs");
    assert!(text.contains("reparse") && text.contains("raw_orders"), "{text}");
    let (_, text, _) = restitch("status daily");
    assert_eq!(text.matches("stale: upstream changed").count(), 2, "{text}");
    let (code, text, _) = restitch("--json show r2");
    let object: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, &object["reparse"]["columns"]["channel"]), (0, &serde_json::json!(4)));
    for wrong in [
        "ingest orders",
        "ingest orders x --reparse --start 2026-05-01",
        "ingest orders x --dry-run",
        "ingest orders x --max-rejects 1 --reparse --start 2026-05-01",
        "ingest orders --reparse",
    ] {
        assert_eq!(restitch(wrong).0, 2, "{wrong}");
    }
}
