//! The command itself: transcripts, exit codes, JSON, and hostile uses of it.

use crate::support::{Lab, ORDERS, component, order};
use serde_json::Value;
use std::process::{Command, Output};

/// Transcripts: what a user types and sees. `TRYCMD=overwrite cargo test stories` writes them anew.
#[test]
fn stories_come_out_as_they_are_written() {
    trycmd::TestCases::new().case("tests/stories/*.toml").register_bin("restitch", std::path::Path::new(env!("CARGO_BIN_EXE_restitch")));
}

fn restitch(lab: &Lab, words: &str) -> Output {
    Command::new(env!("CARGO_BIN_EXE_restitch")).arg("-C").arg(lab.folder.path()).args(["--now", lab.now]).args(words.split(' ')).output().unwrap()
}

fn json(lab: &Lab, words: &str) -> (i32, Value) {
    let out = restitch(lab, &format!("--json {words}"));
    let object = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{words}: {e}: {}", String::from_utf8_lossy(&out.stdout)));
    (out.status.code().unwrap(), object)
}

#[test]
fn every_verb_answers_with_one_object_and_the_exit_codes_hold() {
    let lab = Lab::new(ORDERS);
    std::fs::write(lab.path("a.jsonl"), order("e1", "2026-05-01T09:00:00Z", "A", "25") + &order("e2", "2026-05-02T10:00:00Z", "B", "10")).unwrap();
    std::fs::write(lab.path("late.jsonl"), order("e3", "2026-05-01T10:00:00Z", "A", "1")).unwrap();
    let good = [
        ("ingest orders a.jsonl", "/files/0/records", Value::from(2)),
        ("watermark orders", "/watermark/value", Value::from("2026-05-02T10:00:00Z")),
        ("transform list", "/transforms/0/name", Value::from("customer-totals")),
        ("transform show customer-totals@1.0.0", "/descriptor/key/0", Value::from("customer_id")),
        ("plan daily", "/partitions", Value::from(2)),
        ("run daily --dry-run", "/status", Value::from("done")),
        ("run daily", "/published_snapshot", Value::from(2)),
        ("ingest orders late.jsonl", "/queued/0/tier", Value::from("repair")),
        ("plan repair daily", "/ranges/0/reason", Value::from("dirty")),
        ("repair daily --stage", "/status", Value::from("staged")),
        ("publish r3", "/status", Value::from("published")),
        ("verify r3", "/proven", Value::from(true)),
        ("replay r3", "/equal", Value::from(true)),
        ("status daily", "/datasets/0/partitions/0/state", Value::from("closed")),
        ("runs", "/runs/0/kind", Value::from("replay")),
        ("show r3", "/recipe/transform", Value::from("customer-totals@1.0.0")),
        ("why daily 2026-05-01", "/late/0/records", Value::from(1)),
        ("rollback r3", "/status", Value::from("published")),
        ("backfill daily --start 2026-05-01 --end 2026-05-02 --stage", "/partitions/0/rows", Value::from(1)),
        ("discard r6", "/status", Value::from("discarded")),
        ("repair daily", "/partitions/0/changed", Value::from(1)),
    ];
    for (words, pointer, want) in good {
        let (code, object) = json(&lab, words);
        assert_eq!((code, object.pointer(pointer)), (0, Some(&want)), "{words}: {object:#}");
    }
    for (words, want) in [
        ("run nothing", 2),
        ("backfill daily", 2),
        ("backfill daily --start 2026-05-02 --end 2026-05-01", 2),
        ("show r99", 2),
        ("ingest orders nowhere.jsonl", 1),
        ("rollback r2", 4),
        ("query drop", 2),
        ("frobnicate", 2),
    ] {
        let (code, object) = json(&lab, words);
        assert_eq!((code, object.pointer("/error/exit_code")), (want, Some(&Value::from(want))), "{words}: {object:#}");
        assert!(object.pointer("/error/message").and_then(Value::as_str).is_some_and(|m| !m.is_empty() && !m.contains("BUG")), "{object:#}");
    }
}

#[test]
fn an_object_has_a_place_for_each_column_or_the_query_is_refused() {
    let lab = Lab::new(ORDERS);
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25"));
    lab.run();
    let query = |json: &[&str], columns: &str| {
        let sql = format!("select {columns} from daily a join daily b on a.customer_id = b.customer_id");
        let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
        let out = command.arg("-C").arg(lab.folder.path()).args(json).args(["query", &sql]).output().unwrap();
        (out.status.code().unwrap(), String::from_utf8(out.stdout).unwrap())
    };
    let (code, text) = query(&["--json"], "a.total, b.total");
    let object: Value = serde_json::from_str(&text).unwrap();
    assert_eq!((code, object.pointer("/error/message")), (2, Some(&Value::from("two columns are called \"total\""))), "{object:#}");
    assert_eq!(object.pointer("/error/hint"), Some(&Value::from("give one of them another name with AS")));
    assert_eq!(query(&["--json"], "a.total, b.total as other").0, 0);
    let (code, text) = query(&[], "a.total, b.total");
    assert_eq!((code, text.lines().next()), (0, Some("total  total")), "a table has a place for both");
}

#[test]
fn sql_of_any_length_is_answered_or_refused() {
    let long = |terms: usize| (0..terms).map(|n| format!("orders = {n}")).collect::<Vec<_>>().join(" or ");
    let sql = "{ kind = \"sql\", sql = \"select * from output where orders < 1\" },";
    let lab = Lab::new(&ORDERS.replace(sql, &format!("{{ kind = \"sql\", name = \"long\", sql = \"select * from output where {}\" }},", long(3000))));
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25"));
    let run = |words: &[&str]| {
        let out =
            Command::new(env!("CARGO_BIN_EXE_restitch")).arg("-C").arg(lab.folder.path()).args(["--now", lab.now]).args(words).output().unwrap();
        (out.status.code().unwrap(), format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)))
    };
    let (code, text) = run(&["run", "daily"]);
    assert!(code == 3 && text.contains("long") && text.contains("not evaluated: the expression is nested too deeply"), "{code}: {text}");
    let filter = |terms| long(terms).replace("orders", "amount") + " or amount > 5 and customer_id = 'A'";
    let backfill = ["backfill", "daily", "--start", "2026-05-01"];
    let (code, text) = run(&[backfill.as_slice(), &["--validate", "warn", "--filter", &filter(600)]].concat());
    assert_eq!(code, 0, "{text}");
    let (code, text) = run(&["query", &format!("select count(*) as n from daily where {}", long(600))]);
    assert!(code == 0 && text.ends_with("1\n"), "{code}: {text}");
    let query = format!("select count(*) from daily where {}", long(3000));
    for words in [vec!["query", &query], [backfill.as_slice(), &["--filter", &filter(3000)]].concat()] {
        let (code, text) = run(&words);
        assert!(code == 2 && text.starts_with("Error: the expression is nested too deeply\nHint: "), "{code}: {text}");
    }
}

#[test]
fn a_broken_project_says_where_and_how_to_go_on() {
    let lab = Lab::new(ORDERS);
    std::fs::write(lab.path("restitch.toml"), ORDERS.replace("repair_window", "repair_windw")).unwrap();
    let out = restitch(&lab, "status");
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(
        (out.status.code(), text.as_str()),
        (Some(2), "Error: restitch.toml:10:1: unknown key \"repair_windw\"\nHint: did you mean repair_window?\n")
    );
    std::fs::remove_file(lab.path("restitch.toml")).unwrap();
    let out = restitch(&lab, "status");
    assert!(out.status.code() == Some(2) && String::from_utf8_lossy(&out.stderr).contains("Hint: `restitch init`"));
}

#[test]
fn a_catalog_of_a_newer_release_is_left_alone() {
    let lab = Lab::new(ORDERS);
    crate::interop::lake(["sql", &lab.catalog(), "UPDATE __ducklake_metadata_lake.restitch_meta SET value = '99' WHERE key = 'version'", "--write"]);
    let before = std::fs::read(lab.catalog()).unwrap();
    let out = restitch(&lab, "status");
    assert_eq!(out.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&out.stderr).contains("version 99; this release reads 4"), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(std::fs::read(lab.catalog()).unwrap(), before);
}

#[test]
fn components_of_the_example_are_known_by_their_hash() {
    for file in ["customer-totals-1.0.0.wasm", "customer-totals-1.1.0.wasm"] {
        let digest = restitch::id::Digest::of(&std::fs::read(component(file)).unwrap()).to_string();
        let sums = std::fs::read_to_string(component("SHA256SUMS")).unwrap();
        assert!(sums.contains(&format!("{digest}  {file}")), "{file}");
    }
}

#[test]
fn a_component_that_is_offered_again_is_there_or_put_back() {
    let lab = Lab::new(ORDERS);
    std::fs::copy(component("customer-totals-1.0.0.wasm"), lab.path("totals.wasm")).unwrap();
    let file = lab.path("totals.wasm").display().to_string();
    let said = || String::from_utf8(restitch(&lab, &format!("transform add {file}")).stdout).unwrap();
    assert!(said().starts_with("Already there: customer-totals@1.0.0 as "));
    let stored = std::fs::read_dir(lab.path("warehouse/transforms")).unwrap().next().unwrap().unwrap().path();
    std::fs::write(stored, "damaged").unwrap();
    let (first, second) = (said(), said());
    assert!(first.starts_with("Put back customer-totals@1.0.0 as ") && first.ends_with(": what was stored of it was gone or damaged\n"), "{first}");
    assert!(second.starts_with("Already there:"), "{second}");
}

/// What is no file, or holds nothing, is told with the way out; a pipe does not make the command wait for ever.
#[test]
fn paths_that_are_no_files_are_refused_with_the_way_out() {
    let lab = Lab::new(&ORDERS.replace("[dataset.daily]", "note = { type = \"string\" }\n[dataset.daily]"));
    std::fs::create_dir(lab.path("folder")).unwrap();
    std::fs::write(lab.path("empty.jsonl"), "").unwrap();
    std::fs::write(lab.path("extra.jsonl"), order("e1", "2026-05-01T09:00:00Z", "A", "25").replace("}", ",\"shop\":1}")).unwrap();
    for (words, message, hint) in [
        ("ingest orders landing/*.jsonl", "landing/*.jsonl: cannot be opened", "the pattern matched no file"),
        ("ingest orders folder", "folder is a folder, not a file", "name its files"),
        #[cfg(unix)]
        ("ingest orders /dev/null", "/dev/null is a pipe, a socket or a device, not a file", "write the data to a file first"),
    ] {
        let (code, object) = json(&lab, words);
        assert_eq!((code, object["error"]["message"].as_str()), (1, Some(message)), "{words}");
        assert!(object["error"]["hint"].as_str().unwrap().contains(hint), "{object:#}");
    }
    let (code, object) = json(&lab, "ingest orders empty.jsonl extra.jsonl");
    assert_eq!((code, &object["files"][0]["records"], &object["files"][1]["unknown_fields"]["shop"]), (0, &Value::from(0), &Value::from(1)));
    let told = String::from_utf8(restitch(&lab, "ingest orders empty.jsonl").stdout).unwrap();
    assert!(told.contains("already landed as empty.jsonl"), "{told}");
    std::fs::write(lab.path("restitch.toml"), ORDERS.replace("\"decimal(18,2)\"", "\"decimal(18,2)\", default = 1.005")).unwrap();
    let (code, object) = json(&lab, "status");
    assert_eq!(
        (code, object["error"]["message"].as_str()),
        (2, Some("restitch.toml:17:51: the default of \"amount\": \"1.005\" does not fit decimal(18,2)"))
    );
}

#[test]
fn why_tells_the_sums_and_the_row_behind_a_number() {
    let lab = Lab::new(ORDERS);
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25") + &order("e2", "2026-05-01T10:00:00Z", "B", "10"));
    lab.run();
    lab.land("b.jsonl", order("e3", "2026-05-02T09:00:00Z", "A", "1"));
    lab.land("c.jsonl", order("e4", "2026-05-01T11:00:00Z", "A", "5") + &order("e5", "2026-05-01T12:00:00Z", "C", "2"));
    lab.repair();
    let text = |words: &str| String::from_utf8(restitch(&lab, words).stdout).unwrap();
    let sums = text("why daily 2026-05-01");
    assert!(sums.contains("sums: orders 2, total 35.00"), "{sums}");
    assert!(sums.contains("sums: orders 2 → 4, total 35.00 → 42.00"), "{sums}");
    assert!(sums.contains("2 records came late by"), "{sums}");
    let row = text("why daily 2026-05-01 --key A");
    assert!(row.contains("row A: customer_id A, orders 1, total 25.00, currency EUR"), "{row}");
    assert!(row.contains("row A: orders 1 → 2, total 25.00 → 30.00"), "{row}");
    let new = text("why daily 2026-05-01 --key customer_id=C");
    assert!(new.contains("row customer_id=C: not there") && new.contains("row customer_id=C: customer_id C, orders 1"), "{new}");
    assert!(text("why daily 2026-05-01 --key B").contains("row B: unchanged"));
    let (code, object) = json(&lab, "why daily 2026-05-01 --key A --key B");
    assert_eq!((code, object["error"]["hint"].as_str()), (2, Some("the key is (customer_id): give --key once for each, in this order")));
    assert_eq!(json(&lab, "why daily 2026-05-01").1.pointer("/runs/1/numbers/total"), Some(&Value::from("42.00")));
}

/// A time without an offset is in the source's zone, as event times are.
#[test]
fn a_watermark_is_moved_to_a_time_of_its_source() {
    let lab = Lab::new(&ORDERS.replace("format = \"jsonl\"", "format = \"jsonl\"\ntime_zone = \"America/New_York\""));
    for (typed, value) in [
        ("2026-05-01T00:00:00", "2026-05-01T04:00:00Z"),
        ("2026-05-02", "2026-05-02T04:00:00Z"),
        ("2026-05-02T05:00:00Z", "2026-05-02T05:00:00Z"),
        ("2026-05-02T01:30:00", "2026-05-02T05:30:00Z"),
    ] {
        let (code, object) = json(&lab, &format!("watermark orders --advance {typed}"));
        assert_eq!((code, object.pointer("/watermark/value")), (0, Some(&Value::from(value))), "{typed}");
    }
    for (typed, says) in [("2026-03-08T02:30:00", "does not exist in America/New_York"), ("soon", "\"soon\" is not a time")] {
        let out = restitch(&lab, &format!("watermark orders --advance {typed}"));
        assert_eq!(out.status.code(), Some(2));
        let text = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(text.contains("--advance: ") && text.contains(says), "{text}");
    }
    assert_eq!(restitch(&lab, "watermark nothing --advance 2026-05-01").status.code(), Some(2));
}

/// The clock of `--now` is that of SQL, in `query` and in checks.
#[test]
fn sql_knows_the_time_that_was_given() {
    let check = "{ kind = \"sql\", sql = \"select * from output where now() <> '2026-06-01T00:00:00Z' or current_date <> '2026-06-01'\" },";
    let lab = Lab::new(&ORDERS.replace("{ kind = \"row_count\", min = 0 },", check));
    std::fs::write(lab.path("a.jsonl"), order("e1", "2026-05-01T09:00:00Z", "A", "25")).unwrap();
    assert!(restitch(&lab, "ingest orders a.jsonl").status.success());
    let out = restitch(&lab, "run daily");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let sql = "select now() as n, current_date as d, current_timestamp as t from daily";
    let out = Command::new(env!("CARGO_BIN_EXE_restitch"))
        .arg("-C")
        .arg(lab.folder.path())
        .args(["--now", lab.now, "--json", "query", sql])
        .output()
        .unwrap();
    let rows: Value = serde_json::from_slice(&out.stdout).unwrap();
    let now = "2026-06-01T00:00:00";
    assert_eq!(rows["rows"][0], serde_json::json!({ "n": now, "d": "2026-06-01", "t": now }));
}

/// What a run would refuse of its words, its plan refuses, saved or not, with or without anything to do.
#[test]
fn every_plan_looks_at_its_filter_and_its_parameters() {
    let lab = Lab::new(ORDERS);
    let refused = |when: &str| {
        for (words, says) in [
            ("--filter amuont>1", "unknown column \"amuont\""),
            ("--filter sum(amount)", "is an aggregate"),
            ("--param nope=1", "nope"),
            ("--transform customer-totals@1.0.0 --param nope=1", "nope"),
        ] {
            for verb in ["plan backfill daily", "plan backfill daily -o p.json", "backfill daily"] {
                let (code, object) = json(&lab, &format!("{verb} --start 2026-05-01 --end 2026-05-01 {words}"));
                let message = object.pointer("/error/message").and_then(Value::as_str).unwrap_or_default();
                assert!(code == 2 && message.contains(says), "{when}: {verb} {words}: {object:#}");
            }
        }
        let (code, object) = json(&lab, "plan run daily --filter amount>1");
        assert!(code == 2 && object["error"]["message"].as_str().unwrap().contains("a filter on run"), "{object:#}");
        assert_eq!(json(&lab, "plan backfill daily --start 2026-05-01 --end 2026-05-01 --filter amount>1").0, 0, "{when}");
    };
    refused("nothing landed");
    std::fs::write(lab.path("a.jsonl"), order("e1", "2026-05-01T09:00:00Z", "A", "25")).unwrap();
    assert!(restitch(&lab, "ingest orders a.jsonl").status.success());
    refused("something to do");
    assert!(restitch(&lab, "run daily").status.success());
    for words in ["plan daily --param nope=1", "run daily --param nope=1"] {
        assert_eq!(json(&lab, words).0, 2, "{words}");
    }
}

/// Of several sources a column is read as the first has it, so one that another source has with another type is refused before anything is read.
#[test]
fn columns_of_two_types_are_not_read_as_one() {
    let source = ORDERS.split("[source.orders]").nth(1).unwrap().split("[dataset.daily]").next().unwrap();
    let west = source.replace("[source.orders.columns]", "[source.west.columns]") + "batch = { type = \"string\" }\n[dataset.daily]";
    let toml = ORDERS.replace("[dataset.daily]", &format!("batch = {{ type = \"int64\" }}\n[source.west]{west}"));
    let toml = toml.replace("input = \"orders\"", "input = [\"orders\", \"west\"]");
    let lab = Lab::new(&toml);
    let record = |id: &str, batch: &str| order(id, "2026-05-01T09:00:00Z", "A", "25").replace('}', &format!(", \"batch\": {batch}}}"));
    lab.land("a.jsonl", record("e1", "7"));
    lab.try_land("west", "w.jsonl", record("w1", "\"x\"")).unwrap();
    let refused = |lab: &Lab, words: &str, reader: &str| {
        for verb in ["plan backfill daily", "backfill daily"] {
            let (code, object) = json(lab, &format!("{verb} --start 2026-05-01 --end 2026-05-01{words}"));
            let wanted = format!("{reader} reads the column \"batch\" of every input, and it is int64 in orders and string in west");
            assert_eq!((code, object.pointer("/error/message").and_then(Value::as_str)), (2, Some(wanted.as_str())), "{object:#}");
        }
    };
    refused(&lab, " --filter batch>5", "the filter");
    std::fs::write(lab.path("restitch.toml"), toml.replace("key = [\"event_id\"], keep", "key = [\"event_id\", \"batch\"], keep")).unwrap();
    refused(&lab, "", "dedup of daily");
    std::fs::write(lab.path("restitch.toml"), toml.replace("input = \"coalesce(sum(amount), 0)\"", "input = \"sum(batch)\"")).unwrap();
    refused(&lab, "", "the check \"balance(sum(batch) = coalesce(sum(total), 0))\"");
    // What only one of them has, or both alike, may be asked for.
    std::fs::write(lab.path("restitch.toml"), &toml).unwrap();
    assert_eq!(json(&lab, "backfill daily --start 2026-05-01 --end 2026-05-01 --filter amount>5").0, 0);
}

/// One bound alone is a window where it is a partition; what is wrong with a bound is said, and not that the other one is missing.
#[test]
fn a_bound_that_is_no_time_is_named_with_what_is_wrong() {
    let lab = Lab::new(ORDERS);
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25"));
    let no_day = "2026-02-30 is not a date: that month has no such day, or the year no such month";
    let no_week = "\"2026-W54\" is neither a date (2026-05-01), an instant (2026-05-01T00:00:00Z) nor a partition by day (2026-05-01)";
    let alone = "2026-05-01T09:00:00Z alone is no window: it is not a partition by day (2026-05-01), so a window needs --start and --end";
    for verb in ["plan", "run", "repair", "backfill"] {
        for bound in ["--start", "--end"] {
            for (value, want) in
                [("2026-02-30", no_day), ("foo", &no_week.replace("2026-W54", "foo")), ("2026-W54", no_week), ("2026-05-01T09:00:00Z", alone)]
            {
                let (code, object) = json(&lab, &format!("{verb} daily {bound} {value}"));
                assert_eq!((code, object["error"]["message"].as_str()), (2, Some(want)), "{verb} {bound} {value}");
            }
        }
    }
    for words in
        ["ingest orders --reparse --start 2026-02-30", "ingest orders --reparse --end 2026-02-30", "run daily --start 2026-05-01 --end 2026-02-30"]
    {
        let (code, object) = json(&lab, words);
        assert_eq!((code, object["error"]["message"].as_str()), (2, Some(no_day)), "{words}");
    }
    for bound in ["--start", "--end"] {
        assert_eq!(json(&lab, &format!("plan daily {bound} 2026-05-01")).1["partitions"], 1);
    }
    for verb in ["plan", "run", "repair", "backfill"] {
        let help = String::from_utf8(restitch(&lab, &format!("{verb} --help")).stdout).unwrap().split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(help.contains("a partition without --end is the whole window") && help.contains("a partition without --start is"), "{help}");
    }
}

#[test]
fn components_are_registered_all_or_none() {
    let lab = Lab::new(ORDERS);
    let (good, other) = (component("order-totals-1.0.0.wasm"), component("customer-totals-1.1.0.wasm"));
    std::fs::write(lab.path("broken.wasm"), "no component").unwrap();
    let (code, object) = json(&lab, &format!("transform add {} broken.wasm {}", good.display(), other.display()));
    assert_eq!((code, object["error"]["message"].as_str()), (2, Some("broken.wasm")), "{object:#}");
    assert_eq!(lab.open().transforms().unwrap().len(), 1, "the one that the lab began with");
    let (code, object) = json(&lab, &format!("transform add {} {} {}", good.display(), other.display(), good.display()));
    let new: Vec<_> = object["transforms"].as_array().unwrap().iter().map(|t| t["new"].as_bool().unwrap()).collect();
    assert_eq!((code, new), (0, vec![true, true, false]));
}

#[test]
fn what_a_dry_run_was_refused_for_is_told_without_offering_what_it_did_not_keep() {
    let lab = Lab::new(&ORDERS.replace("{ kind = \"row_count\", min = 0 }", "{ kind = \"row_count\", min = 9 }"));
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25"));
    let (code, object) = json(&lab, "run daily --dry-run");
    assert_eq!((code, object["error"]["hint"].as_str()), (3, Some("`restitch show r1` shows what was measured; a dry run keeps no rows")));
    let text = String::from_utf8(restitch(&lab, "run daily --dry-run").stdout).unwrap();
    assert!(text.ends_with("Rejected r2, a dry run: nothing was kept.\n"), "{text}");
    assert!(json(&lab, "run daily").1["error"]["hint"].as_str().unwrap().contains("`restitch discard r3` removes rows"));
    assert_eq!(json(&lab, "discard r3").0, 0);
}

#[test]
fn why_tells_a_record_that_moved_away_from_one_that_came_late() {
    let lab = Lab::new(ORDERS);
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "10") + &order("e2", "2026-05-02T09:00:00Z", "A", "5"));
    lab.run();
    lab.land("b.jsonl", order("e1", "2026-05-02T10:00:00Z", "A", "11") + &order("e3", "2026-05-01T10:00:00Z", "B", "1"));
    let text = String::from_utf8(restitch(&lab, "why daily 2026-05-01").stdout).unwrap();
    let file = lab.path("b.jsonl").display().to_string();
    assert!(text.contains(&format!("1 record moved to another partition by {file} (repair)")), "{text}");
    assert!(text.contains(&format!("1 record came late by 23h in {file} (repair)")), "{text}");
}

#[test]
fn a_check_that_names_no_column_is_named_with_its_dataset() {
    let lab = Lab::new(ORDERS);
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "10"));
    for (from, to, side) in [("sum(amount)", "sum(amout)", "input"), ("sum(total)", "sum(totl)", "output")] {
        std::fs::write(lab.path("restitch.toml"), ORDERS.replace(from, to)).unwrap();
        let (code, object) = json(&lab, "run daily");
        let message = object["error"]["message"].as_str().unwrap();
        assert!(code == 2 && message.starts_with(&format!("the {side} of the check \"balance(")), "{object:#}");
        assert!(message.ends_with("of dataset daily cannot be evaluated"), "{object:#}");
        assert!(object["error"]["causes"][0].as_str().unwrap().contains(&to[4..to.len() - 1]), "{object:#}");
        assert!(object["error"]["hint"].as_str().is_some_and(|h| h.contains(&from[4..from.len() - 1])), "{object:#}");
    }
}

#[test]
fn numbers_agree_with_their_nouns_and_long_lists_are_cut() {
    let lab = Lab::new(&ORDERS.replace("partition = \"day\"", "partition = \"hour\""));
    let hours: String = (0..12).map(|h| order(&format!("e{h}"), &format!("2026-05-01T{h:02}:00:00Z"), "A", "1")).collect();
    lab.land("a.jsonl", hours);
    lab.run();
    let told = |words: &str| String::from_utf8(restitch(&lab, words).stdout).unwrap();
    lab.backfill("2026-05-01T00", "2026-05-01T00");
    let message = |words: &str| json(&lab, words).1["error"]["message"].as_str().unwrap_or_default().to_owned();
    assert_eq!(message("rollback r1"), "later runs have replaced 1 partition of r1: 2026-05-01T00 by r2");
    lab.backfill("2026-05-01", "2026-05-01");
    let all = message("rollback r1");
    assert!(all.starts_with("later runs have replaced 12 partitions of r1: 2026-05-01T00 by r3, "), "{all}");
    assert!(all.ends_with(", 2026-05-01T09 by r3, and 2 more"), "{all}");
    assert!(told("show r2").contains(": 1 file, 12 rows, "), "{}", told("show r2"));
    lab.land("late.jsonl", order("e99", "2026-05-01T20:00:00Z", "A", "1"));
    let usage = told("plan --help");
    assert!(usage.contains("restitch plan [OPTIONS] <KIND|DATASET> [DATASET]"), "{usage}");
}

/// A full disk behind stdout takes the answer, not what was done: the exit code is that of the work, and stderr tells it.
#[test]
fn what_is_done_is_not_said_to_have_failed_where_its_answer_cannot_be_written() {
    let lab = Lab::new(ORDERS);
    std::fs::write(lab.path("a.jsonl"), order("e1", "2026-05-01T09:00:00Z", "A", "25")).unwrap();
    let full = |words: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
        command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now]).args(words.split(' '));
        let out = command.stdout(std::fs::File::create("/dev/full").unwrap()).output().unwrap();
        (out.status.code().unwrap(), String::from_utf8(out.stderr).unwrap())
    };
    for (words, tells) in [
        ("ingest orders a.jsonl", "Landed as snapshot 1"),
        ("run daily --json", "Published r1 as snapshot 2: 1 partition, 1 row added"),
        ("backfill daily --start 2026-05-01 --stage", "Staged r2: "),
        ("publish r2", "Published r2 as snapshot 3"),
        ("rollback r2", "Rolled back r2: 1 partition restored"),
    ] {
        let (code, said) = full(words);
        assert_eq!(code, 0, "{words}: {said}");
        assert!(said.contains("note: what was asked is done, but the answer cannot be written: ") && said.contains(tells), "{words}: {said}");
    }
    // Who only reads got nothing, and a refusal keeps its code.
    for (words, want) in [("status", 1), ("backfill daily --start 2026-05-01 --dry-run", 1), ("show r99", 2), ("publish r9 --json", 2)] {
        let (code, said) = full(words);
        assert_eq!(code, want, "{words}: {said}");
    }
    assert_eq!(lab.rows("select run from restitch_runs where status = 'published' order by 1"), ["r1", "r2", "r3"]);
}

/// A function of numbers over a text is the user's slip: one sentence says so, and nobody is asked for a report of a bug.
#[test]
fn a_sum_of_texts_is_refused_in_one_sentence_and_a_proof_has_a_header() {
    let lab = Lab::new(ORDERS);
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25"));
    lab.run();
    for (sql, message) in [
        ("select sum(customer_id) from raw_orders", "sum does not take a string"),
        ("select sum(event_time) from raw_orders", "sum does not take a timestamp"),
        ("select abs(customer_id) from raw_orders", "abs does not take a string"),
    ] {
        let e = lab.open().query(sql, None).unwrap_err();
        assert_eq!((e.to_string().as_str(), e.kind().code()), (message, 2));
        assert!(e.hint().is_some_and(|h| h.starts_with("it takes ") && h.len() < 200), "{:?}", e.hint());
    }
    let out = restitch(&lab, "transform prove customer-totals@1.0.0 daily --start 2026-05-01");
    let text = String::from_utf8(out.stdout).unwrap();
    assert!(text.lines().any(|l| l.starts_with("what ") && l.ends_with(" equal")), "{text}");
}
