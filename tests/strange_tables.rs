//! What other tools made of the tables: dropped, renamed, with rows in the catalog itself, with names that SQL takes for one. DuckDB does it here.
//! Nothing is read or written as if nothing had happened, and what was put right is right again.

use crate::{
    interop,
    support::{Lab, ORDERS, order},
};
use restitch::{
    id::RunId,
    manifest::{Kind, Mode},
};
use serde_json::Value;
use std::process::Command;

const DAYS: [&str; 2] = ["2026-05-01", "2026-05-02"];

/// Two days of three orders each, published as r1.
fn warehouse() -> Lab {
    let lab = Lab::new(ORDERS);
    let orders = |day: &str| ["A", "B", "C"].map(|c| order(&format!("{day}{c}"), &format!("{day}T09:00:00Z"), c, "10")).concat();
    lab.land("a.jsonl", DAYS.map(orders).concat());
    lab.run();
    lab
}

fn duck(lab: &Lab, sql: &str) -> Vec<Value> {
    interop::lake(["sql", &lab.catalog(), sql, "--write"])
}

/// Exit code, and what an error says.
fn restitch(lab: &Lab, words: &str) -> (i32, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
    let out = command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now]).args(words.split(' ')).output().unwrap();
    (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
}

fn refused(lab: &Lab, code: i32, says: &str, commands: &[&str]) {
    for words in commands {
        let (found, text) = restitch(lab, words);
        assert!(found == code && text.contains(says) && text.contains("\nHint: "), "{words}: {found}, not {code} with {says:?}: {text}");
    }
}

fn staged(lab: &Lab) -> RunId {
    let mut request = Lab::request(Kind::Backfill, Some((DAYS[0], DAYS[1])));
    request.mode = Mode::Stage;
    lab.go(request).manifest.unwrap().run
}

fn broken(lab: &Lab) -> Vec<String> {
    lab.open().doctor(false).unwrap().broken
}

const BACKFILL: &str = "backfill daily --start 2026-05-01 --end 2026-05-01";

#[test]
fn rows_in_the_catalog_itself_are_not_passed_over() {
    let lab = warehouse();
    let before = lab.published();
    let staged = staged(&lab);
    duck(&lab, "CALL lake.set_option('data_inlining_row_limit', 10)");
    duck(&lab, "DELETE FROM daily WHERE customer_id = 'A' AND _partition = '2026-05-01'");
    assert_eq!(broken(&lab), ["another tool deleted rows in table daily"]);
    let merge = format!("{BACKFILL} --mode merge");
    refused(&lab, 1, "another tool deleted rows in table daily", &[BACKFILL, &merge, &format!("publish {staged}")]);
    assert!(lab.open().query("SELECT count(*) FROM daily", None).is_err());
    // Packed anew they are told from what was published, and replaced.
    duck(&lab, "CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)");
    assert!(broken(&lab).iter().any(|line| line == "partition 2026-05-01 of daily shows other rows than its run wrote"), "{:?}", broken(&lab));
    assert_eq!(restitch(&lab, BACKFILL).0, 0);
    assert_eq!((lab.published(), broken(&lab)), (before.clone(), vec![]));

    // The table of rows that were inserted stays behind when they are gone.
    duck(&lab, "INSERT INTO daily SELECT * REPLACE ('Z' AS customer_id) FROM daily LIMIT 1");
    assert_eq!(broken(&lab), ["another tool inserted rows into the catalog itself (inlining) in table daily"]);
    refused(&lab, 1, "(inlining)", &[BACKFILL]);
    duck(&lab, "DELETE FROM daily WHERE customer_id = 'Z'");
    assert_eq!((broken(&lab), restitch(&lab, BACKFILL).0, lab.published()), (vec![], 0, before));
}

#[test]
fn a_table_that_is_gone_is_not_one_that_is_not_made_yet() {
    let lab = warehouse();
    let before = lab.published();
    let staged = staged(&lab);
    std::fs::write(lab.path("b.jsonl"), order("late", "2026-05-01T10:00:00Z", "A", "5")).unwrap();
    let (ingest, again) = ("ingest orders b.jsonl", "ingest orders a.jsonl");
    duck(&lab, "ALTER TABLE raw_orders RENAME TO landed");
    assert_eq!(broken(&lab), ["table raw_orders is gone: another tool dropped or renamed it"]);
    refused(&lab, 4, "table raw_orders is gone", &[ingest, again, "run daily", "plan daily", BACKFILL]);
    duck(&lab, "ALTER TABLE landed RENAME TO raw_orders");
    assert_eq!((broken(&lab), restitch(&lab, ingest).0), (vec![], 0));

    duck(&lab, "ALTER TABLE daily RENAME TO totals");
    assert_eq!(broken(&lab), ["table daily is gone: another tool dropped or renamed it"]);
    refused(&lab, 4, "table daily is gone", &[BACKFILL, "plan daily", &format!("publish {staged}"), "rollback r1"]);
    // Nor is another one of its name taken for it.
    duck(&lab, "CREATE TABLE daily AS SELECT * FROM totals WHERE customer_id = 'A'");
    refused(&lab, 4, "table daily is not what restitch wrote", &[BACKFILL, &format!("publish {staged}")]);
    duck(&lab, "DROP TABLE daily");
    duck(&lab, "ALTER TABLE totals RENAME TO daily");
    assert_eq!((lab.published(), broken(&lab)), (before, vec![]));
    assert_eq!(restitch(&lab, BACKFILL).0, 0);

    // One of that name, in another schema or not a dataset's, is nobody's business.
    duck(&lab, "CREATE SCHEMA elsewhere");
    duck(&lab, "CREATE TABLE elsewhere.raw_orders AS SELECT * FROM raw_orders");
    assert_eq!(broken(&lab), Vec::<String>::new());
    // A column that is still given cannot be dropped without notice.
    duck(&lab, "ALTER TABLE daily DROP COLUMN orders");
    assert_eq!(broken(&lab), ["column orders of table daily is gone: another tool dropped or renamed it"]);
}

#[test]
fn names_that_differ_in_case_alone_are_one_name() {
    let lab = warehouse();
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    std::fs::write(lab.path("b.jsonl"), order("b", "2026-05-01T10:00:00Z", "A", "5")).unwrap();
    let declare = |text: &str| std::fs::write(lab.path("restitch.toml"), text).unwrap();
    let twin = "differs from it in case alone, which is one name for SQL";
    declare(
        &toml
            .replace("[source.orders.columns]", "[source.orders.columns]\nAmount = { type = \"string\", from = \"/amount\" }")
            .replace("amount      =", "x ="),
    );
    refused(&lab, 2, &format!("there is a column of raw_orders \"amount\", and \"Amount\" {twin}"), &["ingest orders b.jsonl"]);
    declare(&toml.replace("orders", "Orders"));
    refused(&lab, 2, &format!("there is a table or view \"raw_orders\", and \"raw_Orders\" {twin}"), &["ingest Orders b.jsonl"]);
    declare(&toml.replace("dataset.daily", "dataset.Daily"));
    refused(&lab, 2, &format!("there is a table or view \"daily\", and \"Daily\" {twin}"), &["backfill Daily --start 2026-05-01 --end 2026-05-01"]);
    duck(&lab, "CREATE VIEW weekly AS SELECT 1 AS one");
    declare(&toml.replace("dataset.daily", "dataset.Weekly"));
    refused(&lab, 2, "\"weekly\", and \"Weekly\"", &["backfill Weekly --start 2026-05-01 --end 2026-05-01"]);
    declare(&toml);
    assert_eq!(restitch(&lab, "ingest orders b.jsonl").0, 0);
    assert_eq!(interop::lake(["sql", &lab.catalog(), "SELECT count(*) AS n FROM raw_orders"])[0]["n"], 7);
    assert!(lab.open().doctor(false).unwrap().healthy());
}
