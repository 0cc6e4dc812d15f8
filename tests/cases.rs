//! Inputs that other systems are known to have misread, from the file to the published table.
//! Never a guess: what is not taken is a reject with its line and reason, and all lines are accounted for.
//! `tests/cases/README.md` says what each input holds.

use crate::support::{Lab, chain};
use restitch::{
    ingest::Ingested,
    manifest::{Kind, Manifest},
    pipeline::RunRequest,
};

/// A project whose records are grouped by `id`: orders per id, and the sum of their amounts.
fn project(format: &str, settings: &str, columns: &str) -> String {
    format!(
        r#"
[warehouse]
path = "warehouse"
[source.orders]
format = "{format}"
event_time = "event_time"
record_id = "event_id"
max_rejects = "100"
{settings}
[source.orders.columns]
{columns}
[dataset.daily]
input = "orders"
transform = "customer-totals@1.0.0"
partition = "day"
key = ["customer_id"]
dedup = {{ key = ["event_id"] }}
checks = [{{ kind = "balance", input = "coalesce(sum(amount), 0)", output = "coalesce(sum(total), 0)" }}]
"#
    )
}

const COLUMNS: &str = r#"
event_id    = { type = "string", nullable = false, aliases = ["id"] }
event_time  = { type = "timestamp", nullable = false, aliases = ["ts"] }
customer_id = { type = "string", aliases = ["id"] }
amount      = { type = "decimal(18,2)", aliases = ["amt", "v"] }
"#;

fn lab(format: &str, settings: &str, columns: &str) -> Lab {
    Lab::new(&project(format, settings, columns))
}

fn input(name: &str) -> Vec<u8> {
    std::fs::read(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases").join(name)).unwrap()
}

/// Lands one input; nothing of it may be unaccounted for.
fn land(lab: &Lab, name: &str, lines: u64) -> Ingested {
    let landed = lab.land(name.rsplit('/').next().unwrap(), input(name));
    assert_eq!(landed.files[0].records + landed.files[0].rejects, lines, "{name}");
    landed
}

fn rejected(lab: &Lab) -> Vec<String> {
    lab.rows("select _offset from raw_orders_rejects order by 1")
}

/// Builds the days and returns the run with `partition id orders total` per row.
fn build(lab: &Lab, first: &str, last: &str) -> (Manifest, Vec<String>) {
    let run = lab.backfill(first, last);
    (run, lab.published())
}

#[test]
fn case_10_records_without_a_time_or_a_key_are_rejects_and_touch_no_window() {
    let lab = lab("jsonl", "", COLUMNS);
    land(&lab, "10-null-time-null-key/input.jsonl", 8);
    assert_eq!(rejected(&lab), ["2", "3", "4", "5", "6", "7"]);
    let payloads = lab.rows("select count(*) from raw_orders_rejects where length(_reason) > 0 and _payload is not null");
    assert_eq!(payloads, ["6"]);
    // The empty text is a key like any other; null is none.
    let (run, rows) = build(&lab, "2025-07-31", "2025-08-02");
    assert_eq!(rows, ["2025-08-01  1 8.00", "2025-08-01 a 1 1.00"]);
    assert_eq!(run.partitions.iter().map(|p| p.records).sum::<u64>(), 2);
    // Replacing the day touches nothing else, though the table holds no null partition to be lost.
    lab.land("next.jsonl", "{\"id\":\"z\",\"ts\":\"2025-08-02T00:00:00Z\",\"v\":1}\n");
    lab.backfill("2025-08-02", "2025-08-02");
    lab.backfill("2025-08-01", "2025-08-01");
    assert_eq!(lab.published(), ["2025-08-01  1 8.00", "2025-08-01 a 1 1.00", "2025-08-02 z 1 1.00"]);
}

#[test]
fn case_20_a_torn_tail_costs_its_own_line_and_no_other() {
    let growing = lab("jsonl", "", COLUMNS);
    let landed = land(&growing, "20-torn-tail/growing.jsonl", 2);
    assert_eq!((landed.files[0].records, landed.files[0].cut_at), (1, Some(45)));
    // The file is finished later: it is another file, and dedup knows its first record.
    growing.land("finished.jsonl", input("20-torn-tail/no-newline.jsonl"));
    let (_, rows) = build(&growing, "2025-10-03", "2025-10-03");
    assert_eq!(rows, ["2025-10-03 a 1 1.00", "2025-10-03 e 1 5.00"]);

    let glued = lab("jsonl", "", COLUMNS);
    let landed = land(&glued, "20-torn-tail/glued.jsonl", 3);
    assert_eq!((landed.files[0].records, rejected(&glued)), (2, vec!["2".to_owned()]));
    assert_eq!(build(&glued, "2025-10-03", "2025-10-03").1, ["2025-10-03 a 1 1.00", "2025-10-03 d 1 4.00"]);

    let open = lab("jsonl", "", COLUMNS);
    let landed = land(&open, "20-torn-tail/no-newline.jsonl", 2);
    assert_eq!((landed.files[0].records, landed.files[0].cut_at, landed.files[0].open_ended), (2, None, true));
}

#[test]
fn case_23_integers_keep_every_digit_as_texts_and_as_numbers() {
    let digits = ["1627668684594000001", "18446744073709551615", "18446744073709551616", "9007199254740992", "9007199254740993"];
    let rest = ["9.007199254740993e15", "9223372036854775807", "9223372036854775808"];
    let texts = lab("jsonl", "", COLUMNS);
    land(&texts, "23-big-integers/input.jsonl", 8);
    let (run, _) = build(&texts, "2025-10-06", "2025-10-06");
    assert_eq!((run.partitions[0].records, run.partitions[0].duplicates), (8, 0));
    let mut all: Vec<&str> = digits.into_iter().chain(rest).collect();
    all.sort_unstable();
    assert_eq!(texts.rows("select customer_id from daily order by 1"), all);

    // As int64: what does not fit is a reject; line 8 is the integer of line 2, written otherwise.
    let columns = COLUMNS.replace("amount ", "number = { type = \"int64\", aliases = [\"id\"] }\namount ");
    let numbers = lab("jsonl", "", &columns);
    land(&numbers, "23-big-integers/input.jsonl", 8);
    assert_eq!(rejected(&numbers), ["5", "6", "7"]);
    let want = ["1627668684594000001", "9007199254740992", "9007199254740993", "9007199254740993", "9223372036854775807"];
    let mut found = numbers.rows("select number from raw_orders");
    found.sort_unstable();
    assert_eq!(found, want);
    let request = RunRequest { filter: Some("number = 9007199254740993".into()), ..Lab::request(Kind::Backfill, Some(("2025-10-06", "2025-10-06"))) };
    let run = numbers.go(request).manifest.unwrap();
    assert_eq!(run.partitions[0].records, 2);
}

#[test]
fn case_24_money_is_exact_or_a_reject_in_every_format() {
    for (format, file, lines, not_taken) in [("jsonl", "input.jsonl", 6, &["5", "6"][..]), ("csv", "input.csv", 8, &["6", "7", "8", "9"])] {
        let lab = lab(format, "", COLUMNS);
        land(&lab, &format!("24-decimals/{file}"), lines);
        assert_eq!(rejected(&lab), not_taken, "{format}");
        let (_, rows) = build(&lab, "2025-10-07", "2025-10-07");
        assert_eq!(rows, ["2025-10-07 d1 1 0.10", "2025-10-07 d2 1 0.20", "2025-10-07 d3 1 90071992547409.93", "2025-10-07 d4 1 0.00"], "{format}");
        assert_eq!(lab.rows("select sum(total) from daily"), ["90071992547410.23"], "{format}");
        assert_eq!(lab.rows("select sum(total) from daily where customer_id in ('d1', 'd2')"), ["0.30"], "{format}");
    }
}

#[test]
fn case_25_a_unit_is_declared_and_never_guessed() {
    let epoch = lab("jsonl", "max_event_time = \"9999-12-31\"", &COLUMNS.replace("aliases = [\"ts\"]", "aliases = [\"ts\"], unit = \"ms\""));
    land(&epoch, "25-epoch-units-and-fractions/epoch.jsonl", 5);
    assert_eq!(rejected(&epoch), ["2", "3", "4"]);
    assert_eq!(epoch.rows("select event_id, event_time from raw_orders order by 1"), ["m 2025-09-15T12:00:00Z", "q 2025-09-15T12:00:00Z"]);
    let why = epoch.rows("select _reason from raw_orders_rejects order by _offset");
    assert!(why[0].contains("1757937600 is no plausible time: 1970-01-21T08:18:57.6Z lies in 1970"), "{why:?}");
    assert!(why[1].contains("outside the years") && why[2].contains("outside the years"), "{why:?}");
    assert_eq!(build(&epoch, "2025-09-15", "2025-09-15").1.len(), 2);
    assert_eq!(epoch.open().plan(&Lab::request(Kind::Run, None)).unwrap().partitions().count(), 0);

    let text = lab("jsonl", "", COLUMNS);
    land(&text, "25-epoch-units-and-fractions/text.jsonl", 4);
    assert_eq!(
        text.rows("select event_time, count(*) from raw_orders group by 1 order by 1"),
        ["2025-09-15T12:00:00.31Z 1", "2025-09-15T12:00:00.312Z 3"]
    );
}

#[test]
fn case_25_early_and_far_times_are_taken_where_they_are_declared() {
    let columns = COLUMNS.replace("aliases = [\"ts\"]", "aliases = [\"ts\"], unit = \"s\"");
    let times = "{\"id\":\"a\",\"ts\":-86400}\n{\"id\":\"b\",\"ts\":0}\n{\"id\":\"c\",\"ts\":31536000}\n{\"id\":\"d\",\"ts\":\"1970-06-01\"}\n{\"id\":\"e\",\"ts\":253402300799}\n";
    let ids = |settings: &str| {
        let lab = lab("jsonl", settings, &columns);
        lab.land("x.jsonl", times);
        lab.rows("select event_id from raw_orders order by 1").concat()
    };
    // Without bounds only numbers in 1970 are refused; a text says what it means.
    assert_eq!(ids(""), "acde");
    assert_eq!(ids("min_event_time = \"1900-01-01\""), "abcde");
    assert_eq!(ids("min_event_time = \"1970-01-01\""), "bcde");
    assert_eq!(ids("max_event_time = \"1971-01-01\""), "acd");
    assert_eq!(ids("min_event_time = \"1970-01-01\"\nmax_event_time = \"1970-12-31T23:59:59Z\""), "bd");
}

#[test]
fn case_27_leap_seconds_and_24_00_stay_on_their_day() {
    let lab = lab("jsonl", "", COLUMNS);
    land(&lab, "27-leap-second-and-24-00/input.jsonl", 7);
    assert_eq!(rejected(&lab), ["4", "5", "6", "7"]);
    let (_, _) = build(&lab, "2016-12-31", "2017-01-02");
    assert_eq!(lab.rows("select _partition, customer_id from daily order by 1, 2"), ["2016-12-31 l0", "2016-12-31 l1", "2017-01-02 l2"]);
    assert_eq!(
        lab.rows("select event_time from raw_orders order by _offset"),
        ["2016-12-31T23:59:59.999Z", "2016-12-31T23:59:59.999999Z", "2017-01-02T00:00:00Z"]
    );
}

#[test]
fn case_28_a_value_means_the_same_wherever_in_the_file_it_stands() {
    let time = |i: u32| format!("2025-10-08T{:02}:{:02}:{:02}Z", i / 3600, i / 60 % 60, i % 60);
    let mut lines: Vec<String> = (1..=3000).map(|i| format!("{{\"id\": {i}, \"ts\": \"{}\", \"code\": {i}}}", time(i))).collect();
    for (i, rest) in [(3001, "\"007\""), (3002, "\"7\""), (3003, "1.5, \"extra\": \"new\""), (3004, "null, \"extra\": {\"a\": 1}")] {
        lines.push(format!("{{\"id\": {i}, \"ts\": \"{}\", \"code\": {rest}}}", time(i)));
    }
    let forward = lines.join("\n") + "\n";
    lines.reverse();
    let backward = lines.join("\n") + "\n";
    for (code, not_taken, rows) in [("int64", 3, 3001), ("string", 0, 3004)] {
        let columns = format!("{COLUMNS}code = {{ type = \"{code}\" }}\n");
        let mut found = Vec::new();
        for text in [&forward, &backward] {
            let lab = lab("jsonl", "", &columns);
            let file = lab.land("x.jsonl", text).files.remove(0);
            assert_eq!((file.records, file.rejects), (rows, not_taken), "{code}");
            // A field that nobody declared is not lost, and not silent.
            assert_eq!((file.unknown.fields, file.unknown.more), (vec![("extra".to_owned(), 2)], false));
            assert_eq!(lab.rows("select count(*) from raw_orders where _event_time is not null and _payload is not null"), [rows.to_string()]);
            let run = lab.backfill("2025-10-08", "2025-10-08");
            assert_eq!(run.partitions[0].rows, rows);
            let odd = lab.rows("select event_id, code from raw_orders where event_id > '3000' and length(event_id) = 4 order by 1");
            found.push((run.checksum, odd));
        }
        assert_eq!(found[0], found[1], "{code}");
        let odd: &[&str] = if code == "int64" { &["3004 null"] } else { &["3001 007", "3002 7", "3003 1.5", "3004 null"] };
        assert_eq!(found[0].1, odd);
    }
}

#[test]
fn case_30_equal_floats_are_one_key_and_filters_agree() {
    let columns = r#"
event_id    = { type = "string", nullable = false, default = "-" }
event_time  = { type = "timestamp", nullable = false, aliases = ["ts"] }
customer_id = { type = "string", aliases = ["sensor"] }
amount      = { type = "decimal(18,2)", default = "1" }
level       = { type = "float64" }
"#;
    let by_level = |format: &str| project(format, "", columns).replace("key = [\"event_id\"]", "key = [\"customer_id\", \"level\"]");
    let csv = Lab::new(&by_level("csv"));
    land(&csv, "30-nan-and-minus-zero/input.csv", 7);
    let (run, rows) = build(&csv, "2025-10-10", "2025-10-10");
    assert_eq!(
        (run.partitions[0].duplicates, rows),
        (2, ["2025-10-10 s1 1 1.00", "2025-10-10 s2 1 1.00", "2025-10-10 s3 3 3.00"].map(str::to_owned).to_vec())
    );
    // NaN in a column does not hide rows from a filter: raw and a filtered run agree.
    for (filter, records) in [("level > 2", 4), ("level = 1", 1), ("level = 0", 2), ("level < 2", 3)] {
        let raw = csv.rows(&format!("select count(*) from raw_orders where {filter}"));
        let request = RunRequest { filter: Some(filter.into()), ..Lab::request(Kind::Backfill, Some(("2025-10-10", "2025-10-10"))) };
        let run = csv.try_go(request).unwrap_or_else(|e| panic!("{}", chain(&e))).manifest.unwrap();
        assert_eq!((raw[0].parse(), run.partitions[0].records), (Ok(records), records), "{filter}");
    }
    let json = Lab::new(&by_level("jsonl"));
    land(&json, "30-nan-and-minus-zero/input.jsonl", 2);
    assert_eq!(rejected(&json), ["1", "2"]);
}
