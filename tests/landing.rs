//! Landing and execution across formats, lookups, guests that misbehave, and a project that changes under a warehouse.

use crate::support::{Lab, ORDERS, chain, component, order};
use arrow::array::{Decimal128Array, RecordBatch, StringArray, TimestampMicrosecondArray};
use restitch::{
    manifest::{Kind, Mode, Status},
    pipeline::{Error, ErrorKind, ReparseRequest, RunRequest},
    store::Faults,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
};

const ROWS: [(&str, &str, &str, &str); 4] = [
    ("e1", "2026-05-01T09:00:00Z", "A", "25.10"),
    ("e2", "2026-05-01T10:00:00Z", "Ä \"x\", y", "-3.00"),
    ("e2", "2026-05-01T10:00:00Z", "Ä \"x\", y", "-3.00"),
    ("e3", "2026-05-02T11:00:00Z", "B", "90071992547409.93"),
];

fn jsonl() -> Vec<u8> {
    ROWS.iter().map(|(id, at, c, a)| order(id, at, &c.replace('"', "\\\""), a)).collect::<String>().into_bytes()
}

fn csv() -> Vec<u8> {
    let line = |(id, at, c, a): &(&str, &str, &str, &str)| format!("{id},{at},\"{}\",{a}\r\n", c.replace('"', "\"\""));
    ("event_id,event_time,customer_id,amount\r\n".to_owned() + &ROWS.iter().map(line).collect::<String>()).into_bytes()
}

fn parquet() -> Vec<u8> {
    let us = |t: &str| restitch::time::parse(t, chrono_tz::Tz::UTC).unwrap().0;
    let cents = |a: &str| a.replace('.', "").parse::<i128>().unwrap();
    let batch = RecordBatch::try_from_iter([
        ("event_id", Arc::new(StringArray::from_iter_values(ROWS.map(|r| r.0))) as _),
        ("event_time", Arc::new(TimestampMicrosecondArray::from_iter_values(ROWS.map(|r| us(r.1))).with_timezone("UTC")) as _),
        ("customer_id", Arc::new(StringArray::from_iter_values(ROWS.map(|r| r.2))) as _),
        ("amount", Arc::new(Decimal128Array::from_iter_values(ROWS.map(|r| cents(r.3))).with_precision_and_scale(18, 2).unwrap()) as _),
    ]);
    let batch = batch.unwrap();
    let mut bytes = Vec::new();
    let mut writer = parquet::arrow::ArrowWriter::try_new(&mut bytes, batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    bytes
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut zip = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    std::io::Write::write_all(&mut zip, bytes).unwrap();
    zip.finish().unwrap()
}

#[test]
fn the_same_records_in_any_format_and_compression_publish_the_same_bits() {
    let mut checksums = Vec::new();
    for (format, bytes) in [("jsonl", jsonl()), ("csv", csv()), ("parquet", parquet())] {
        for packed in [bytes.clone(), gzip(&bytes), zstd::encode_all(bytes.as_slice(), 3).unwrap()] {
            let lab = Lab::new(&ORDERS.replace("format = \"jsonl\"", &format!("format = \"{format}\"")));
            let landed = lab.land("x", packed);
            assert_eq!((landed.files[0].records, landed.files[0].rejects), (4, 0), "{format}");
            let run = lab.run();
            assert_eq!(run.partitions[0].duplicates, 1, "{format}");
            checksums.push(run.checksum);
            assert_eq!(lab.rows("select count(*) from raw_orders where _payload is null"), [if format == "parquet" { "4" } else { "0" }]);
        }
    }
    assert!(checksums.iter().all(|c| *c == checksums[0]));
}

#[test]
fn a_truncated_file_lands_nothing_and_says_where() {
    for (format, bytes) in [("parquet", parquet()), ("jsonl", gzip(&jsonl()))] {
        let lab = Lab::new(&ORDERS.replace("format = \"jsonl\"", &format!("format = \"{format}\"")));
        let e = lab.try_land("orders", "cut", &bytes[..bytes.len() - 20]).unwrap_err();
        assert!(e.kind() == ErrorKind::Failed && chain(&e).contains("cut"), "{}", chain(&e));
        assert_eq!(lab.rows("select max(snapshot_id) from ducklake_snapshot"), ["0"]);
    }
}

#[test]
fn a_lookup_is_joined_at_the_pinned_snapshot() {
    let customers = r#"
[source.customers]
format = "csv"
event_time = "since"
record_id = "customer_id"
[source.customers.columns]
customer_id = { type = "string", nullable = false }
country     = { type = "string" }
since       = { type = "timestamp", nullable = false }
"#;
    let toml = ORDERS
        .replace("customer-totals@1.0.0", "enrich-orders@1.0.0")
        .replace("key = [\"customer_id\"]", "key = [\"country\"]\nlookups = { customers = \"customers\" }");
    let toml = toml.replace("columns = [\"customer_id\"]", "columns = [\"country\"]") + customers;
    let lab = Lab::new(&toml);
    lab.open().add_transform(&component("enrich-orders-1.0.0.wasm")).unwrap();
    lab.land("orders.jsonl", jsonl());
    let e = lab.try_go(Lab::request(Kind::Run, None)).unwrap_err();
    assert!(matches!(e, Error::NoInput { .. }), "{e}");
    lab.try_land("customers", "c.csv", "customer_id,country,since\nA,DE,2020-01-01\nB,FR,2020-01-01\n").unwrap();
    let first = lab.run();
    let rows = || lab.rows("select _partition, country, orders, total from daily order by 1, 2");
    let before = ["2026-05-01 DE 1 25.10", "2026-05-01 unknown 1 -3.00", "2026-05-02 FR 1 90071992547409.93"];
    assert_eq!(rows(), before);
    // A customer moves: the newest record counts from now on, and the old run stays what it was.
    lab.try_land("customers", "moved.csv", "customer_id,country,since\nA,AT,2026-05-02\n").unwrap();
    lab.backfill("2026-05-01", "2026-05-02");
    assert_eq!(rows()[0], "2026-05-01 AT 1 25.10");
    assert!(lab.replay(first.run).unwrap().partitions.iter().all(|p| p.equal()));
}

/// A dot in a name is no step into a structure.
#[test]
fn a_column_name_may_hold_a_dot() {
    let lab = Lab::new(
        &ORDERS
            .replace("[dataset.daily]", "\"shop.id\" = { type = \"string\" }\n[dataset.daily]")
            .replace("[\"event_id\"], keep", "[\"shop.id\"], keep"),
    );
    let line = |id: &str, shop: &str| {
        format!("{{\"event_id\":\"{id}\",\"event_time\":\"2026-05-01T09:00:00Z\",\"customer_id\":\"A\",\"amount\":1,\"shop.id\":\"{shop}\"}}\n")
    };
    lab.land("a.jsonl", line("e1", "x") + &line("e2", "x") + &line("e3", "y"));
    assert_eq!(lab.run().partitions[0].duplicates, 1);
}

#[test]
fn a_clean_up_maps_row_to_row() {
    let toml = ORDERS.replace("customer-totals@1.0.0", "clean-orders@1.0.0").replace("key = [\"customer_id\"]", "key = [\"event_id\"]");
    let toml = toml
        .replace("output = \"coalesce(sum(total), 0)\"", "output = \"coalesce(sum(amount), 0)\"")
        .replace("select * from output where orders < 1", "select * from output where event_id = ''");
    let lab = Lab::new(&toml);
    lab.open().add_transform(&component("clean-orders-1.0.0.wasm")).unwrap();
    lab.land("orders.jsonl", order("e1", "2026-05-01T09:00:00Z", "  a ", "1.00") + &order("e2", "2026-05-01T09:00:00Z", "B", "2.00"));
    lab.run();
    assert_eq!(lab.rows("select event_id, customer_id, amount from daily order by 1"), ["e1 A 1.00", "e2 B 2.00"]);
}

/// Case 39's kinds: whatever a guest does, the run fails with the limit's name, and nothing is published.
#[test]
fn a_guest_that_misbehaves_fails_its_run_and_nothing_else() {
    let toml = r#"
[warehouse]
path = "warehouse"
[source.orders]
format = "jsonl"
event_time = "at"
[source.orders.columns]
id = { type = "int64", nullable = false }
at = { type = "timestamp", nullable = false }
[dataset.daily]
input = "orders"
transform = "misbehave@1.0.0"
partition = "day"
limits = { time = "3s", memory = "32MiB", output = "4MiB" }
"#;
    let lab = Lab::new(toml);
    lab.open().add_transform(&component("misbehave-1.0.0.wasm")).unwrap();
    lab.land("x.jsonl", "{\"id\":1,\"at\":\"2026-05-01T00:00:00Z\"}\n");
    for (how, want) in [
        ("loop-in-push", "limits.time"),
        ("allocate", "limits.memory"),
        ("endless-output", "limits.output"),
        ("panic", "it died"),
        ("broken-offsets", "broken batch"),
        ("fail-other", ""),
    ] {
        let request = RunRequest { params: vec![("how".into(), how.into())], ..Lab::request(Kind::Run, None) };
        let e = lab.try_go(request).unwrap_err();
        let text = chain(&e);
        assert!(e.kind() == ErrorKind::Failed && text.contains("partition 2026-05-01") && text.contains(want), "{how}: {text}");
    }
    let failed = lab.rows("select count(*) from restitch_runs where status = 'failed' and error like '%misbehave@1.0.0%'");
    assert_eq!((failed, lab.rows("select count(*) from restitch_partitions")), (vec!["6".to_owned()], vec!["0".to_owned()]));
    // Rows that break the rule of their key are caught without a check that says so.
    let e = lab.try_go(RunRequest { params: vec![("how".into(), "same-keys".into())], ..Lab::request(Kind::Run, None) }).unwrap_err();
    assert!(matches!(&e, Error::Rejected { failed, .. } if failed == &["key"]), "{e}");
    assert_eq!(
        lab.go(RunRequest { params: vec![("how".into(), "good".into())], ..Lab::request(Kind::Run, None) }).manifest.unwrap().status,
        Status::Published
    );
}

#[test]
fn a_published_dataset_keeps_its_cut_and_a_source_may_gain_columns() {
    let lab = Lab::new(ORDERS);
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25"));
    let first = lab.run();
    std::fs::write(lab.path("restitch.toml"), ORDERS.replace("partition = \"day\"", "partition = \"month\"")).unwrap();
    let e = lab.try_go(Lab::request(Kind::Run, None)).unwrap_err();
    assert_eq!((e.kind(), e.to_string().contains("published by day in UTC")), (ErrorKind::Usage, true), "{e}");
    // A new column, and a filter over it: older files read null.
    std::fs::write(lab.path("restitch.toml"), ORDERS.replace("[dataset.daily]", "channel = { type = \"string\" }\n[dataset.daily]")).unwrap();
    lab.land("b.jsonl", "{\"event_id\":\"e2\",\"event_time\":\"2026-05-01T10:00:00Z\",\"customer_id\":\"B\",\"amount\":1,\"channel\":\"web\"}\n");
    assert_eq!(lab.rows("select _record_id, channel from raw_orders order by 1"), ["e1 null", "e2 web"]);
    let web = lab.go(RunRequest { filter: Some("channel = 'web'".into()), ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01"))) });
    assert_eq!((web.manifest.unwrap().partitions[0].rows, lab.published()), (1, vec!["2026-05-01 B 1 1.00".to_owned()]));
    assert!(lab.replay(first.run).unwrap().partitions[0].equal());
    // A column that changes its type is refused.
    std::fs::write(lab.path("restitch.toml"), ORDERS.replace("decimal(18,2)", "int64")).unwrap();
    let e = lab.try_land("orders", "c.jsonl", order("e3", "2026-05-01T09:00:00Z", "A", "1")).unwrap_err();
    assert!(e.to_string().contains("column \"amount\" of raw_orders is decimal(18,2)"), "{e}");
}

/// A published dataset is not forgotten by a checkout whose restitch.toml leaves it out.
#[test]
fn late_records_are_queued_for_published_datasets_that_are_not_declared_now() {
    let lab = Lab::new(ORDERS);
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25") + &order("e2", "2026-05-02T09:00:00Z", "A", "25"));
    lab.run();
    std::fs::write(lab.path("restitch.toml"), ORDERS.split("[dataset.daily]").next().unwrap()).unwrap();
    lab.land("late.jsonl", order("e3", "2026-05-01T10:00:00Z", "A", "5"));
    std::fs::write(lab.path("restitch.toml"), ORDERS).unwrap();
    lab.repair();
    assert_eq!(lab.published()[0], "2026-05-01 A 2 30.00");
}

/// A staged run whose publication dies anywhere is published completely or still staged.
#[test]
fn publishing_a_staged_run_dies_anywhere_and_can_be_given_again() {
    for steps in 0..100 {
        let mut lab = Lab::new(ORDERS);
        lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25"));
        let staged = lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Run, None) }).manifest.unwrap();
        lab.open();
        lab.faults = Faults::after(steps);
        let died = catch_unwind(AssertUnwindSafe(|| lab.open().publish(staged.run).unwrap())).is_err();
        lab.faults = Faults::default();
        let status = lab.open().show(staged.run).unwrap().row.manifest.status;
        match status {
            Status::Published => {}
            Status::Staged => drop(lab.open().publish(staged.run).unwrap()),
            other => panic!("step {steps}: {other:?}"),
        }
        assert_eq!(lab.published(), ["2026-05-01 A 1 25.00"], "step {steps}");
        if !died {
            assert!(steps > 5);
            return;
        }
    }
    panic!("more than 100 steps");
}

/// `1.0` is 1.00, and a bound is not rounded to the column's digits.
#[test]
fn accepted_values_and_bounds_are_values_of_the_columns_type() {
    let failed = |check: &str| {
        let lab = Lab::new(&ORDERS.replace("  { kind = \"row_count\", min = 0 },", &format!("  {{ {check} }},")));
        lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "1.01") + &order("e2", "2026-05-01T09:00:00Z", "B", "3"));
        match lab.try_go(Lab::request(Kind::Run, None)) {
            Ok(_) => String::new(),
            Err(e) => lab.rows("select measured from restitch_check where passed = 0").first().cloned().unwrap_or_else(|| chain(&e)),
        }
    };
    let accepted = |column: &str, values: &str| failed(&format!("kind = \"accepted_values\", column = \"{column}\", values = {values}"));
    assert_eq!(accepted("total", "[\"1.010\", 3]"), "");
    assert_eq!(accepted("total", "[3.0, 1.01]"), "");
    assert_eq!(accepted("total", "[\"1.01\"]"), "1 failing rows");
    assert_eq!(accepted("orders", "[1.0, \"2\"]"), "");
    assert_eq!(accepted("customer_id", "[\"A\", \"B\", \"it's\"]"), "");
    assert_eq!(accepted("customer_id", "[]"), "2 failing rows");
    assert_eq!(accepted("total", "[\"1.005\"]"), "not evaluated: among the accepted values, \"1.005\" does not fit decimal(38,2)");
    assert_eq!(accepted("orders", "[\"one\"]"), "not evaluated: among the accepted values, \"one\" is not an int64");
    assert_eq!(failed("kind = \"range\", column = \"total\", min = 1.005, max = 3.004"), "");
    assert_eq!(failed("kind = \"range\", column = \"total\", max = \"2.999\""), "1 failing rows");
    assert_eq!(failed("kind = \"range\", column = \"total\", min = \"1.014\""), "1 failing rows");
}

/// A check that overflows has measured nothing: it has failed.
#[test]
fn a_check_that_overflows_fails() {
    for (sql, passes) in [
        ("select sum(n) s from (select orders * 9223372036854775807 n from output) having sum(n) < 0", false),
        ("select * from output where orders + 9223372036854775807 < 0", false),
        ("select * from output where orders + 9223372036854775806 < 0", true),
    ] {
        let check = format!("{{ kind = \"sql\", sql = \"{sql}\" }},");
        let lab = Lab::new(&ORDERS.replace("{ kind = \"row_count\", min = 0 },", &check));
        lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "1") + &order("e2", "2026-05-01T09:00:00Z", "B", "3"));
        assert_eq!(lab.try_go(Lab::request(Kind::Run, None)).is_ok(), passes, "{sql}");
        let measured = lab.rows("select measured from restitch_check where name like 'sql%' order by passed")[0].clone();
        assert_eq!(measured.starts_with("not evaluated: the query failed: overflow"), !passes, "{measured}");
        let query = lab.open().query("select 9223372036854775807 + _offset from raw_orders", None);
        assert_eq!(chain(&query.unwrap_err()), "the query failed: overflow happened on: 9223372036854775807 + 1");
    }
}

/// DuckDB reads every json value that landed: half a surrogate pair is bad, in a json column as in a string.
#[test]
fn json_with_half_a_surrogate_pair_does_not_land() {
    let lab =
        Lab::new(&ORDERS.replace("[dataset.daily]", "more = { type = \"json\" }\nlax = { type = \"json\", on_bad = \"null\" }\n[dataset.daily]"));
    let line =
        |id: &str, more: &str, lax: &str| order(id, "2026-05-01T09:00:00Z", "A", "1").replace("}\n", &format!(",\"more\":{more},\"lax\":{lax}}}\n"));
    let (whole, half) = (r#"{"t":"\ud83d\ude00"}"#, r#"{"t":"cut \ud83d"}"#);
    // The first line is taken entry by entry, those like it at once.
    let landed = lab.land(
        "a.jsonl",
        [("e1", whole, half), ("e2", whole, half), ("e3", half, whole), ("e4", whole, whole)].map(|(a, b, c)| line(a, b, c)).concat(),
    );
    assert_eq!((landed.files[0].records, landed.files[0].rejects), (3, 1));
    let reason = lab.rows("select _reason from raw_orders_rejects")[0].clone();
    assert_eq!(reason, "more holds \\ud83d at its byte 11: half a surrogate pair, which is no character");
    let sql = "SELECT more->>'t' AS a, lax->>'t' AS b FROM raw_orders ORDER BY _offset";
    let read = crate::interop::lake(["sql", &lab.catalog(), sql]);
    assert_eq!(
        read.iter().map(|r| (r["a"].as_str(), r["b"].as_str())).collect::<Vec<_>>(),
        [(Some("😀"), None), (Some("😀"), None), (Some("😀"), Some("😀"))]
    );
}

/// Case 10, in CSV: nothing identifies nothing.
#[test]
fn csv_records_without_an_id_are_rejected_and_not_one() {
    let lab = Lab::new(&ORDERS.replace("jsonl", "csv"));
    let landed = lab.land(
        "a.csv",
        "event_id,event_time,customer_id,amount\n,2026-05-01T01:00:00Z,A,1\n\"\",2026-05-01T02:00:00Z,A,2\ne1,2026-05-01T03:00:00Z,,4\n",
    );
    assert_eq!((landed.files[0].records, landed.files[0].rejects), (1, 2));
    assert_eq!(lab.rows("select _offset, _reason from raw_orders_rejects order by 1").len(), 2);
}

/// Thirty files of very different lengths: late records, rejects, ids that come again on another day.
fn files_of(lab: &Lab, name: &str, from: usize) -> Vec<std::path::PathBuf> {
    let file = |f: usize| {
        let lines: String = (0..(f * 37) % 400 + 1)
            .map(|i| match (f + i) % 50 {
                49 => "{\"event_id\":\"none\"}\n".to_owned(),
                n => order(&format!("e{}", (f * 131 + i) % 3000), &format!("2026-05-{:02}T{:02}:00:00Z", (from + f) % 9 + 1, n % 24), "A", "1.00"),
            })
            .collect();
        let path = lab.path(&format!("{name}-{f:02}"));
        std::fs::write(&path, lines).unwrap();
        path
    };
    (0..30).map(file).collect()
}

#[test]
fn files_that_are_decoded_side_by_side_land_as_if_one_after_the_other() {
    let mut landed = Vec::new();
    // With hardly any memory the ids are read again from what was landed.
    for (workers, memory_bytes) in [(1, 64 << 20), (7, 64 << 20), (3, 1 << 10)] {
        let mut lab = Lab::new(&ORDERS.replace("max_rejects = \"100\"", "max_rejects = \"1000\""));
        (lab.workers, lab.memory_bytes) = (workers, memory_bytes);
        for (name, from) in [("a", 0), ("b", 3)] {
            let files = files_of(&lab, name, from);
            lab.open().ingest("orders", &files, None, &()).unwrap();
        }
        lab.memory_bytes = 64 << 20;
        let name = |column: &str| format!("regexp_replace({column}, '.*/', '')");
        landed.push([
            lab.rows(&format!("select _seq, _record_id, _event_time, {}, _offset, _flags, _payload_hash, _payload, customer_id from raw_orders order by _file, _offset", name("_file"))),
            lab.rows(&format!("select {}, _offset, _reason from raw_orders_rejects order by 1, 2", name("_file"))),
            lab.rows("select record_id, at_us, snapshot_id, first_seq, last_seq from restitch_moved order by 1, 2, 3"),
            lab.rows("select partition, kind, tier, records from restitch_repair_queue order by 1, 2, 3, 4"),
            lab.rows("select day_us, snapshot_id, records, slots from restitch_slot order by 1, 2"),
        ]);
    }
    assert!(landed[0].iter().all(|rows| rows.len() > 10), "{:?}", landed[0].iter().map(Vec::len).collect::<Vec<_>>());
    for other in &landed[1..] {
        assert_eq!(*other, landed[0]);
    }
}

#[test]
fn a_file_in_the_middle_that_cannot_be_read_keeps_all_from_landing() {
    let mut lab = Lab::new(&ORDERS.replace("max_rejects = \"100\"", "max_rejects = \"1000\""));
    lab.workers = 3;
    let files = files_of(&lab, "a", 0);
    std::fs::write(&files[17], &gzip(&std::fs::read(&files[17]).unwrap())[..100]).unwrap();
    let e = lab.open().ingest("orders", &files, None, &()).unwrap_err();
    assert!(chain(&e).contains("a-17"), "{}", chain(&e));
    let files = files_of(&lab, "a", 0);
    let e = lab.open().ingest("orders", &files, Some(restitch::config::MaxRejects::Rows(3)), &()).unwrap_err();
    assert!(chain(&e).contains("max_rejects 3"), "{}", chain(&e));
    assert_eq!(lab.rows("select max(snapshot_id) from ducklake_snapshot"), ["0"]);
    assert!(std::fs::read_dir(lab.path("warehouse/staging")).unwrap().all(|e| !e.unwrap().file_name().to_string_lossy().starts_with("ingest-")));
    assert_eq!(lab.open().ingest("orders", &files, None, &()).unwrap().files.len(), 30);
}

/// Ids made in two ways are two ids of one record, which would count twice.
#[test]
fn ids_of_a_source_are_made_of_what_they_were_made_of_at_first() {
    let undeclared = ORDERS.replace("record_id = \"event_id\"\n", "");
    let masked = ORDERS.replace("event_id    = { type = \"string\"", "event_id    = { mask = \"sha256\", type = \"string\"");
    let (whole, plain, hashed) = ("the whole record", "the column \"event_id\"", "the column \"event_id\", masked");
    for (before, was, after, declared) in [
        (undeclared.as_str(), whole, ORDERS, plain),
        (ORDERS, plain, undeclared.as_str(), whole),
        (ORDERS, plain, masked.as_str(), hashed),
        (masked.as_str(), hashed, ORDERS, plain),
    ] {
        let lab = Lab::new(before);
        let declare = |text: &str| std::fs::write(lab.path("restitch.toml"), text).unwrap();
        // Of what did not land, nothing has an id.
        declare(after);
        assert_eq!(lab.land("bad.jsonl", "{}\n").files[0].rejects, 1);
        declare(before);
        lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "10") + &order("e2", "2026-05-02T09:00:00Z", "A", "5"));
        lab.run();
        let published = lab.published();
        let saved = lab.bind(Kind::Backfill, Some(("2026-05-01", "2026-05-02")));
        declare(after);
        let message = format!("the ids of records of orders that are landed are made of {was}, but restitch.toml makes them of {declared}");
        let refused = |e: Error| {
            assert_eq!((e.to_string(), e.kind().code()), (message.clone(), 2));
            assert!(e.hint().unwrap().contains("as before; for other ids, land the files again under a source of another name"));
        };
        refused(lab.try_land("orders", "b.jsonl", order("e1", "2026-05-02T11:00:00Z", "A", "10")).unwrap_err());
        refused(lab.try_go(Lab::request(Kind::Run, None)).unwrap_err());
        refused(lab.open().plan(&Lab::request(Kind::Repair, None)).unwrap_err());
        refused(lab.open().apply(&saved, &()).unwrap_err());
        let whole_day = ReparseRequest {
            source: "orders".into(),
            start: Some("2026-05-01".into()),
            end: Some("2026-05-01".into()),
            dry_run: false,
            reason: None,
        };
        refused(lab.open().reparse(&whole_day, &()).unwrap_err());
        // What is published is read, and can be computed again as it was.
        lab.open().status(None).unwrap();
        assert_eq!(lab.published(), published);
        assert!(lab.replay(restitch::id::RunId(1)).unwrap().partitions.iter().all(|p| p.equal()));
        // Declared as before, it goes on.
        declare(before);
        lab.open().apply(&saved, &()).unwrap();
    }
}
