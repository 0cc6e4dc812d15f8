//! The real DuckDB reads what restitch wrote.
//! Never skips: where Python or a package is missing, these tests fail and say so.

use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

/// Returns the python that has DuckDB and its extensions; `setup.sh` makes it once.
pub fn python() -> PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON
        .get_or_init(|| {
            let out = run(Command::new("sh").arg(script("setup.sh")));
            assert!(
                out.status.success(),
                "tests/interop/setup.sh failed: these tests need python3 with venv, and pip that finds the package duckdb\n{}",
                String::from_utf8_lossy(&out.stderr)
            );
            PathBuf::from(String::from_utf8(out.stdout).expect("a path in UTF-8").trim_end())
        })
        .clone()
}

/// Returns what `lake.py` answers, line by line; its own text says which verbs there are.
pub fn lake<S: AsRef<str>>(args: impl IntoIterator<Item = S>) -> Vec<Value> {
    try_lake(args).unwrap_or_else(|message| panic!("{message}"))
}

/// Returns what `lake.py` answers, or what it says on stderr where DuckDB refuses.
pub fn try_lake<S: AsRef<str>>(args: impl IntoIterator<Item = S>) -> Result<Vec<Value>, String> {
    let args: Vec<String> = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
    let out = run(Command::new(python()).arg(script("lake.py")).args(&args).env("PYTHONUTF8", "1"));
    if !out.status.success() {
        return Err(format!("lake.py {}: {}\n{}", args.join(" "), out.status, String::from_utf8_lossy(&out.stderr)));
    }
    let text = String::from_utf8(out.stdout).expect("lake.py writes UTF-8");
    Ok(text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect())
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(name)
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|e| panic!("{}: {e}", command.get_program().to_string_lossy()))
}

/// The tool itself, against a lake that DuckDB made: values keep what they are, the past stays readable, refusals are refusals.
#[test]
fn lake_py_reads_a_lake_of_duckdb_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (catalog, data) = (path("catalog.sqlite"), path("data/"));
    lake(["sql", &catalog, "CREATE TABLE t (a BIGINT, b DECIMAL(18,2), c TIMESTAMPTZ)", "--write", "--data-path", &data]);
    lake(["sql", &catalog, "INSERT INTO t VALUES (2, 10.50, '2026-05-01T08:00:00.5+02:00')", "--write"]);
    lake(["sql", &catalog, "INSERT INTO t VALUES (1, -5, NULL)", "--write"]);
    let first = serde_json::json!({"a": 2, "b": "10.50", "c": "2026-05-01T06:00:00.500000Z"});
    let second = serde_json::json!({"a": 1, "b": "-5.00", "c": null});
    assert_eq!(lake(["rows", &catalog, "t", "--order", "a"]), [second, first.clone()]);
    assert_eq!(lake(["rows", &catalog, "t", "--at", "2"]), [first]);
    assert_eq!(lake(["snapshots", &catalog]).len(), 4);
    assert!(try_lake(["sql", &catalog, "DELETE FROM t"]).unwrap_err().contains("read-only"));
    assert!(try_lake(["rows", &path("other.sqlite"), "t"]).unwrap_err().contains("there is no catalog"));
}

/// DuckDB sees the raw table, every published row, the states, and the past; then writes itself, and restitch notices.
#[test]
fn duckdb_reads_every_published_row_and_travels_back_to_before_the_repair() {
    use crate::support::{Lab, ORDERS, order};
    let lab = Lab::new(ORDERS);
    let catalog = lab.catalog();
    let orders: String = (0..40)
        .map(|i| order(&format!("e{i}"), &format!("2026-05-0{}T{:02}:00:00Z", 1 + i % 3, i % 24), &format!("C{}", i % 7), &format!("{i}.25")))
        .collect();
    lab.land("may.jsonl", orders);
    lab.run();
    let before = lab.published();
    let snapshot = lab.rows("select max(snapshot_id) from ducklake_snapshot")[0].clone();
    lab.land("late.jsonl", order("late1", "2026-05-01T05:00:00Z", "C1", "1000.00") + &order("late2", "2026-05-02T05:00:00Z", "Größe'x", "0.01"));
    let repair = lab.repair();
    let after = lab.published();
    let duck = |extra: &[&str]| -> Vec<String> {
        let sql = "SELECT _partition AS a, customer_id AS b, orders AS c, total AS d FROM daily";
        let rows = if extra.is_empty() {
            lake(["sql", &catalog, &format!("{sql} ORDER BY a, b")])
        } else {
            lake(["sql", &catalog, &format!("{sql} AT (VERSION => {}) ORDER BY a, b", extra[0])])
        };
        rows.iter().map(|r| format!("{} {} {} {}", r["a"].as_str().unwrap(), r["b"].as_str().unwrap(), r["c"], r["d"].as_str().unwrap())).collect()
    };
    assert_eq!(duck(&[]), after);
    assert_eq!(duck(&[&snapshot]), before, "time travel to before the repair");
    let one = |sql: &str| lake(["sql", &catalog, sql])[0].as_object().unwrap().values().next().unwrap().clone();
    assert_eq!(one("SELECT count(*) AS n FROM raw_orders"), 42);
    assert_eq!(one("SELECT sum(total) AS n FROM daily WHERE _partition = '2026-05-01'"), *one_of(&after, "2026-05-01"));
    let payload = one("SELECT _payload::VARCHAR AS p FROM raw_orders WHERE _record_id = 'late1'");
    assert!(payload.as_str().is_some_and(|p| !p.is_empty()), "{payload}");
    // Preliminary and final figures, asked for in DuckDB (R10).
    let states = lake(["sql", &catalog, "SELECT partition, state FROM __ducklake_metadata_lake.restitch_partitions ORDER BY 1"]);
    assert_eq!(states.len(), 3);
    assert_eq!(states[0]["state"], "closed");
    // A rollback is a new snapshot, which DuckDB reads as well, also after its own expiry and clean-up.
    lab.open().rollback(repair.run, false, None).unwrap();
    assert_eq!(duck(&[]), before);
    lake(["expire", &catalog, "--versions", &snapshot]);
    lake(["cleanup", &catalog]);
    assert_eq!(duck(&[]), before);
    // A row that DuckDB inserts between plan and swap is noticed.
    let staged = lab
        .go(restitch::pipeline::RunRequest { mode: restitch::manifest::Mode::Stage, ..Lab::request(restitch::manifest::Kind::Repair, None) })
        .manifest
        .unwrap();
    lake(["sql", &catalog, "INSERT INTO daily SELECT * FROM daily WHERE _partition = '2026-05-01' LIMIT 1", "--write"]);
    let e = lab.open().publish(staged.run).unwrap_err();
    assert_eq!(e.kind().code(), 4, "{e}");
}

/// DuckDB binds the SQL of the views itself, or lets SQLite scan them: numbers are numbers, and each value is the one that `query` gives.
#[test]
fn duckdb_reads_the_views_with_the_types_and_values_of_query() {
    use crate::quarantine::{lab, records};
    let lab = lab();
    lab.land("a.jsonl", records(1, 12, &[(7, "err")]) + &records(9, 5, &[]));
    lab.run();
    lab.land("late.jsonl", "{\"id\":\"late\",\"ts\":\"2026-05-01T10:00:00.25Z\",\"do\":\"ok\",\"v\":1}\n");
    lab.open().rollback(lab.repair().run, false, None).unwrap();
    let duck = |sql: &str| lake(["sql", &lab.catalog(), sql]);
    for (view, numbers) in [
        ("restitch_partitions", "dirty rows bytes input_snapshot published_snapshot"),
        ("restitch_queue", "records files least_late_seconds most_late_seconds"),
        ("restitch_runs", "input_snapshot published_snapshot partitions rows_in rows_out"),
        ("restitch_quarantined", "file_offset snapshot_id seq"),
    ] {
        let table = format!("__ducklake_metadata_lake.{view}");
        let types = duck(&format!("SELECT column_name AS name, column_type AS type FROM (DESCRIBE {table})"));
        let of = |wanted: &str| types.iter().filter(|c| c["type"] == wanted).map(|c| c["name"].as_str().unwrap()).collect::<Vec<_>>();
        assert_eq!(of("BIGINT").join(" "), numbers, "{view}");
        assert_eq!(of("BIGINT").len() + of("VARCHAR").len(), types.len(), "{view}");
        let rows = lab.open().query(&format!("SELECT * FROM {view} ORDER BY 1, 2"), None).unwrap();
        let found = Value::Array(duck(&format!("SELECT * FROM {table} ORDER BY 1, 2")));
        assert_eq!(found, restitch::query::rows_json(&rows), "{view}");
        assert_ne!(found, serde_json::json!([]), "{view}");
    }
    let number = |sql: &str| duck(&sql.replace("restitch_", "__ducklake_metadata_lake.restitch_"))[0]["n"].clone();
    assert_eq!(number("SELECT max(rows) AS n FROM restitch_partitions WHERE rows > 3"), 11);
    assert_eq!(number("SELECT count(*) AS n FROM restitch_partitions WHERE dirty = 1"), 1);
}

/// The sum of the totals of one day, as lake.py prints a decimal.
fn one_of(rows: &[String], day: &str) -> Box<Value> {
    let cents: i64 = rows.iter().filter(|r| r.starts_with(day)).map(|r| r.rsplit(' ').next().unwrap().replace('.', "").parse::<i64>().unwrap()).sum();
    Box::new(Value::String(format!("{}.{:02}", cents / 100, cents % 100)))
}

/// Compaction merges raw files of several snapshots; arrival order and pinned snapshots survive it.
#[test]
fn raw_files_that_duckdb_compacts_replay_the_same() {
    use crate::support::{Lab, ORDERS, order};
    let lab = Lab::new(ORDERS);
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "1"));
    let first = lab.run();
    lab.land("b.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "2"));
    let second = lab.run();
    lab.land("c.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "3"));
    lake(["compact", &lab.catalog(), "raw_orders"]);
    assert_eq!(lab.rows("select total from daily"), ["2.00"]);
    for run in [&first, &second] {
        assert!(lab.replay(run.run).unwrap().partitions.iter().all(|p| p.equal()));
    }
    let third = lab.run();
    assert_eq!(lab.rows("select total from daily"), ["3.00"]);
    assert_eq!((third.partitions[0].duplicates, third.partitions[0].conflicts), (2, 1));
}

/// Reserved words, blanks, dots, quotes, digits first, any script: names go through raw, filter, dedup and checks, and DuckDB finds them.
#[test]
fn columns_of_any_name_reach_duckdb() {
    use crate::support::{Lab, ORDERS};
    use restitch::{manifest::Kind, pipeline::RunRequest};
    let names = ["select", "Order", "group", "a b.c", "1st", "😀", "quo\"ted", "it's", "back\\slash", "ÄÖ", "snap`tick", "%_"];
    let declared: String = names.iter().map(|n| format!("{n:?} = {{ type = \"string\" }}\n")).collect();
    let keys = names.iter().map(|n| format!("{n:?}")).collect::<Vec<_>>().join(", ");
    let toml = ORDERS.replace("[dataset.daily]", &(declared + "[dataset.daily]")).replace("[\"event_id\"], keep", &format!("[{keys}], keep"));
    let lab = Lab::new(&toml);
    let line = |id: &str, value: &str| {
        let fields: String = names.iter().map(|n| format!(",{}:{}", serde_json::json!(n), serde_json::json!(format!("{value}{n}")))).collect();
        format!("{{\"event_id\":\"{id}\",\"event_time\":\"2026-05-01T09:00:00Z\",\"customer_id\":\"A\",\"amount\":1{fields}}}\n")
    };
    lab.land("a.jsonl", line("e1", "x") + &line("e2", "x") + &line("e3", "y"));
    let quoted = |n: &str| format!("\"{}\"", n.replace('"', "\"\""));
    let filter = names.iter().map(|n| format!("{} = 'x{}'", quoted(n), n.replace('\'', "''"))).collect::<Vec<_>>().join(" and ");
    let run = lab.go(RunRequest { filter: Some(filter), ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01"))) }).manifest.unwrap();
    assert_eq!((run.partitions[0].records, run.partitions[0].duplicates), (2, 1));
    for row in lake(["rows", &lab.catalog(), "raw_orders", "--order", "event_id"]) {
        let value = if row["event_id"] == "e3" { "y" } else { "x" };
        names.iter().for_each(|n| assert_eq!(row[*n], format!("{value}{n}"), "{n}"));
    }
    let list = names.iter().map(|n| quoted(n)).collect::<Vec<_>>().join(", ");
    assert_eq!(lake(["sql", &lab.catalog(), &format!("SELECT {list} FROM raw_orders WHERE {} = 'y1st'", quoted("1st"))]).len(), 1);
}

/// SQL has NaN above all numbers: neither DuckDB nor `query` passes over rows with it, in raw or in what is published.
#[test]
fn rows_with_nan_are_found_by_what_they_are_compared_with() {
    use crate::support::{Lab, ORDERS};
    let lab = Lab::new(
        &ORDERS.replace("jsonl", "csv").replace("[dataset.daily]", "f = { type = \"float32\" }\nd = { type = \"float64\" }\n[dataset.daily]"),
    );
    let row = |i: usize, float: &str| format!("e{i},2026-05-01T{:02}:00:00Z,A,1,{float},{float}\n", i % 24);
    let rows: String = (0..3000).map(|i| row(i, if i == 7 { "NaN" } else { "1.5" })).collect();
    lab.land("large.csv", "event_id,event_time,customer_id,amount,f,d\n".to_owned() + &rows);
    let not = "SELECT count(*) AS n FROM raw_orders WHERE d <> 1.5";
    assert_eq!((lab.rows(not), &lake(["sql", &lab.catalog(), not])[0]["n"]), (vec!["1".to_owned()], &1.into()));
    lab.land("tiny.csv", "event_id,event_time,customer_id,amount,f,d\n".to_owned() + &row(5000, "nan") + &row(5001, "2.5"));
    for column in ["f", "d"] {
        for (condition, count) in [("> 5", 2), (">= 1.5", 3002), ("= 'NaN'", 2), ("< 5", 3000), ("<> 1.5", 3), ("= 2.5", 1)] {
            let sql = format!("SELECT count(*) AS n FROM raw_orders WHERE {column} {condition}");
            assert_eq!(lab.rows(&sql.replace("'NaN'", "arrow_cast('NaN', 'Float64')")), [count.to_string()], "{sql}");
            assert_eq!(lake(["sql", &lab.catalog(), &sql])[0]["n"], count, "{sql}");
        }
    }
}
