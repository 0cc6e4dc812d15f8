//! Whole files through [`decode`]: what lands, what is a reject, and that every byte is accounted for.
//! Never reads anything but files that it wrote itself.
//! The tests of single values are in `value` and `number`, of compression in `open`.

use super::*;
use crate::config::Project;
use ::parquet::arrow::ArrowWriter;
use arrow::{
    array::*,
    compute::concat,
    datatypes::{DataType as ArrowType, Field, Int32Type, Schema, TimeUnit, i256},
    util::display::array_value_to_string,
};
use std::{fs, io::Write, sync::Arc};

const TABLE: &str = "id = { type = \"string\" }\nts = { type = \"timestamp\" }\n";

fn source(format: &str, settings: &str, columns: &str) -> Source {
    let text =
        format!("[warehouse]\npath = \"w\"\n[source.s]\nformat = \"{format}\"\nevent_time = \"ts\"\n{settings}\n[source.s.columns]\n{columns}");
    Project::parse("restitch.toml", &text).unwrap().sources["s"].clone()
}

/// What came out of a file, chunk by chunk, as text.
#[derive(Default)]
struct Landed {
    chunks: Vec<Chunk>,
    summary: Summary,
}

impl Landed {
    fn ids(&self) -> Vec<String> {
        self.chunks.iter().flat_map(|c| c.record_ids.iter().map(|id| id.unwrap().to_owned())).collect()
    }
    fn offsets(&self) -> Vec<i64> {
        self.chunks.iter().flat_map(|c| c.offsets.clone()).collect()
    }
    fn rejects(&self) -> Vec<&Reject> {
        self.chunks.iter().flat_map(|c| &c.rejects).collect()
    }
    fn reasons(&self) -> Vec<String> {
        self.rejects().iter().map(|r| format!("{}: {}", r.offset, r.reason)).collect()
    }
    fn column(&self, i: usize) -> Vec<String> {
        let arrays: Vec<&dyn Array> = self.chunks.iter().map(|c| c.columns[i].as_ref()).collect();
        let all = concat(&arrays).unwrap();
        (0..all.len()).map(|r| if all.is_null(r) { "null".into() } else { array_value_to_string(&all, r).unwrap() }).collect()
    }
}

fn land_with(source: &Source, bytes: &[u8], options: &Options) -> Result<Landed, DecodeError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, bytes).unwrap();
    let mut landed = Landed::default();
    landed.summary = decode::<DecodeError>(source, &path, options, &mut |chunk| {
        let rows = chunk.offsets.len();
        let fields: Vec<_> = source.columns.iter().map(|c| c.field().arrow(None)).collect();
        RecordBatch::try_new(Arc::new(Schema::new(fields)), chunk.columns.clone()).unwrap();
        assert_eq!([chunk.record_ids.len(), chunk.event_times.len(), chunk.payload_hashes.len(), chunk.payloads.len()], [rows; 4]);
        landed.chunks.push(chunk);
        Ok(())
    })?;
    assert_eq!(landed.summary.records as usize, landed.ids().len());
    assert_eq!(landed.summary.rejects as usize, landed.rejects().len());
    if let Some(last) = landed.chunks.last() {
        // The end of a compressed stream may come behind the last chunk.
        assert!(last.bytes_read <= bytes.len() as u64 && last.bytes_read + 16 > bytes.len() as u64);
    }
    Ok(landed)
}

fn land(source: &Source, bytes: impl AsRef<[u8]>) -> Landed {
    land_with(source, bytes.as_ref(), &Options::default()).unwrap()
}

#[test]
fn nothing_vanishes_for_want_of_a_time_or_a_key() {
    let text = r#"{"id":"a","ts":"2025-08-01T00:00:00Z","v":1}
{"id":"b","ts":null,"v":2}
{"id":"c","v":3}
{"id":"d","ts":"","v":4}
{"id":"e","ts":"yesterday","v":5}
{"id":"f","ts":true,"v":6}
{"id":null,"ts":"2025-08-01T01:00:00Z","v":7}
{"id":"","ts":"2025-08-01T02:00:00Z","v":8}
"#;
    let landed = land(&source("jsonl", "record_id = \"id\"", TABLE), text);
    assert_eq!(landed.ids(), ["a", ""]);
    assert_eq!(landed.offsets(), [1, 8]);
    let shape = "is not a time (expected RFC 3339, like 2026-05-01T09:30:00Z)";
    assert_eq!(
        landed.reasons(),
        [
            "2: ts is null: no event time".to_owned(),
            "3: ts is missing: no event time".into(),
            format!("4: ts \"\" {shape}"),
            format!("5: ts \"yesterday\" {shape}"),
            "6: ts true is not a timestamp".into(),
            "7: id is null: null record id".into(),
        ]
    );
    assert_eq!(landed.rejects()[0].payload.as_deref(), Some(&br#"{"id":"b","ts":null,"v":2}"#[..]));
}

#[test]
fn a_torn_tail_is_a_reject_at_its_byte() {
    let json = source("jsonl", "record_id = \"id\"", TABLE);
    let whole = "{\"id\":\"a\",\"ts\":\"2025-10-03T01:00:00Z\",\"v\":1}\n";
    let growing = land(&json, format!("{whole}{}", r#"{"id":"b","ts":"2025-10-03T02:00"#));
    assert_eq!((growing.ids(), growing.summary.cut_at), (vec!["a".to_owned()], Some(45)));
    assert_eq!(growing.reasons(), ["2: column 32: EOF while parsing a string; the file looks cut: its last line, from byte 45, has no line end"]);
    assert_eq!(growing.rejects()[0].byte_offset, Some(45));

    let glued =
        format!("{whole}{}\n{}\n", r#"{"id":"b","ts":"2025-10-03T02:00{"id":"c","ts":"2025-10-03T03:00:00Z","v":3}"#, whole.replace('a', "d").trim());
    let glued = land(&json, glued);
    assert_eq!((glued.ids().join(","), glued.summary.rejects, glued.summary.cut_at), ("a,d".into(), 1, None));

    let open = land(&json, format!("{whole}{}", r#"{"id":"e","ts":"2025-10-03T05:00:00Z","v":5}"#));
    assert_eq!((open.summary.records, open.summary.open_ended, open.summary.cut_at), (2, true, None));

    let csv = source("csv", "record_id = \"id\"", TABLE);
    let torn = land(&csv, "id,ts\na,2025-10-03T01:00:00Z\nb");
    assert_eq!(torn.reasons(), ["3: 1 fields where the header has 2; the file looks cut: its last record, from byte 29, has no line end"]);
    let quoted = land(&csv, "id,ts\na,2025-10-03T01:00:00Z\n\"b\n,2025");
    assert_eq!(quoted.reasons(), ["3: a quote is not closed before the end of the file: the file looks cut in its last record, from byte 29"]);
    assert_eq!(quoted.rejects()[0].payload.as_deref(), Some(&b"\"b\n,2025"[..]));
}

#[test]
fn integers_keep_every_digit() {
    let digits = [
        "9007199254740992",
        "9007199254740993",
        "1627668684594000001",
        "9223372036854775807",
        "9223372036854775808",
        "18446744073709551615",
        "18446744073709551616",
        "9.007199254740993e15",
    ];
    let text: String = digits.iter().map(|d| format!("{{\"id\":{d},\"ts\":\"2025-10-06T00:00:00Z\"}}\n")).collect();
    assert_eq!(land(&source("jsonl", "record_id = \"id\"", TABLE), &text).ids(), digits);
    let numbers = land(&source("jsonl", "record_id = \"id\"", &TABLE.replacen("string", "int64", 1)), &text);
    assert_eq!(numbers.ids(), ["9007199254740992", "9007199254740993", "1627668684594000001", "9223372036854775807", "9007199254740993"]);
    assert_eq!(numbers.reasons()[2], "7: id 18446744073709551616 does not fit int64");
}

#[test]
fn money_is_exact_or_an_error_in_every_format() {
    let columns = format!("{TABLE}amt = {{ type = \"decimal(18,2)\" }}");
    let amounts = ["0.10", "\"0.20\"", "90071992547409.93", "-0.00", "19.995", "1e-3", "\"1,50\"", "\"NaN\""];
    let json: String = amounts.iter().map(|a| format!("{{\"id\":\"d\",\"ts\":\"2025-10-07T00:00:00Z\",\"amt\":{a}}}\n")).collect();
    let csv: String = amounts.iter().map(|a| format!("d,2025-10-07T00:00:00Z,{a}\n")).collect();
    let texts = StringArray::from_iter_values(amounts.map(|a| a.trim_matches('"')));
    let parquet = parquet_of(&[
        ("id", Arc::new(StringArray::from(vec!["d"; 8]))),
        ("ts", Arc::new(StringArray::from(vec!["2025-10-07"; 8]))),
        ("amt", Arc::new(texts)),
    ]);
    for (format, bytes) in [("jsonl", json.into_bytes()), ("csv", format!("id,ts,amt\n{csv}").into_bytes()), ("parquet", parquet)] {
        let landed = land(&source(format, "", &columns), bytes);
        assert_eq!(landed.column(2), ["0.10", "0.20", "90071992547409.93", "0.00"], "{format}");
        let sum: i128 = landed.chunks[0].columns[2].as_primitive::<arrow::datatypes::Decimal128Type>().values().iter().sum();
        assert_eq!((sum, landed.summary.rejects), (9_007_199_254_741_023, 4));
    }
}

#[test]
fn times_are_what_they_say() {
    let landed = |unit: &str, times: &[&str]| {
        let text: String = times.iter().map(|t| format!("{{\"ts\":{t}}}\n")).collect();
        land(&source("jsonl", "", &format!("ts = {{ type = \"timestamp\"{unit} }}")), text)
    };
    let epoch = landed(", unit = \"ms\"", &["1757937600000", "1757937600", "1757937600000000", "1757937600000000000", "\"1757937600000\""]);
    assert_eq!(epoch.offsets(), [1, 5]);
    assert_eq!(epoch.column(0), ["2025-09-15T12:00:00Z", "2025-09-15T12:00:00Z"]);
    assert!(epoch.reasons()[0].starts_with("2: ts 1757937600 is no plausible time: 1970-01-21T08:18:57.6Z lies in 1970"), "{:?}", epoch.reasons());
    let bound = |settings: &str, array: ArrayRef| {
        let bytes = parquet_of(&[("ts", array)]);
        land(&source("parquet", settings, "ts = { type = \"timestamp\", unit = \"s\" }"), bytes).offsets()
    };
    let typed: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![0, 31_536_000_000, -1]).with_timezone("UTC"));
    let numbers: ArrayRef = Arc::new(Int64Array::from(vec![0, 31_536_000, -1]));
    assert_eq!((bound("", typed.clone()), bound("", numbers.clone())), (vec![1, 2, 3], vec![2, 3]));
    let from_1970 = "min_event_time = \"1970-01-01\"\nmax_event_time = \"1970-12-31\"";
    assert_eq!((bound(from_1970, typed), bound(from_1970, numbers)), (vec![1], vec![1]));
    let text = landed(
        "",
        &[
            "\"2025-09-15T12:00:00.312Z\"",
            "\"2025-09-15T12:00:00.312000Z\"",
            "\"2025-09-15T14:00:00.312000000+02:00\"",
            "\"2025-09-15T12:00:00.31Z\"",
        ],
    );
    assert_eq!(text.chunks[0].event_times.iter().map(|us| us % 1_000_000).collect::<Vec<_>>(), [312_000, 312_000, 312_000, 310_000]);
    let edge = landed(
        "",
        &[
            "\"2016-12-31T23:59:59.999Z\"",
            "\"2016-12-31T23:59:60.500Z\"",
            "\"2017-01-01T24:00:00Z\"",
            "\"2017-01-01T24:00:01Z\"",
            "\"2017-01-01T00:00:61Z\"",
            "\"2017-01-01T25:00:00Z\"",
            "\"2015-02-29T00:00:00Z\"",
            "1",
        ],
    );
    assert_eq!(edge.column(0), ["2016-12-31T23:59:59.999Z", "2016-12-31T23:59:59.999999Z", "2017-01-02T00:00:00Z"]);
    assert_eq!(edge.summary.rejects, 5);
    assert_eq!(edge.reasons()[4], "8: ts 1 is a number without a unit (declare it: unit = \"ms\", or s, us, ns)");
}

#[test]
fn a_value_means_the_same_wherever_in_the_file_it_stands() {
    let line = |rest: &str| format!("{{\"ts\":\"2025-10-08T00:00:01Z\",{rest}}}\n");
    let late = [line("\"code\":\"007\""), line("\"code\":\"7\""), line("\"code\":1.5,\"extra\":\"new\""), line("\"code\":null,\"extra\":{\"a\":1}")]
        .concat();
    let early: String = (1..=3000).map(|i| line(&format!("\"code\":{i}"))).collect();
    let int = source("jsonl", "", "ts = { type = \"timestamp\" }\ncode = { type = \"int64\" }");
    for text in [format!("{early}{late}"), format!("{late}{early}")] {
        let landed = land(&int, text);
        assert_eq!((landed.summary.records, landed.summary.rejects), (3001, 3));
    }
    assert_eq!(land(&int, format!("{early}{late}")).rejects().iter().map(|r| r.offset).collect::<Vec<_>>(), [3001, 3002, 3003]);
    let text = source("jsonl", "", "ts = { type = \"timestamp\" }\ncode = { type = \"string\" }");
    assert_eq!(land(&text, late).column(1), ["007", "7", "1.5", "null"]);
}

/// Lines that are like the last one are put into columns while they are parsed; whatever is unusual has to come out as it does alone.
#[test]
fn a_line_after_others_of_its_shape_comes_out_as_it_does_alone() {
    let columns = "ts = { type = \"timestamp\" }\na = { type = \"string\", aliases = [\"old_a\"] }\nn = { type = \"int64\", on_bad = \"null\" }\n\
                   d = { type = \"date\", default = \"2026-01-01\", on_bad = \"default\" }\nb = { type = \"binary\" }\nj = { type = \"json\" }\n\
                   gone = { type = \"string\", default = \"none\" }\nm = { type = \"string\", mask = \"sha256\" }\nk = { type = \"string\", nullable = false }";
    let json = source("jsonl", "", columns);
    let fields = ["ts", "a", "n", "d", "b", "j", "m", "k", "other"];
    let usual = ["\"2026-05-01T00:00:00Z\"", "\"x\"", "7", "\"2026-05-02\"", "\"AQI=\"", "{\"a\": [1]}", "\"who\"", "\"k\"", "1"];
    let line = |values: &[&str], names: &[&str]| {
        let pairs: Vec<String> = names.iter().zip(values).map(|(name, value)| format!("\"{name}\": {value}")).collect();
        format!("{{{}}}", pairs.join(", "))
    };
    let values = [
        "null",
        "true",
        "\"\"",
        "1",
        "-1.5e3",
        "1e400",
        "12345678901234567890123",
        "\"a\\u00e9\\n\"",
        "\"\\ud800\"",
        "\"\u{1}\"",
        "[1, 2]",
        "{\"z\": 1}",
        "\"2026-13-01\"",
        "\"late\"",
        "01",
        "",
        "\"open",
        "nul",
        "\"\u{e9}\u{10ffff}\"",
    ];
    let mut odd: Vec<String> = Vec::new();
    for i in 0..fields.len() {
        for value in values {
            let mut of = usual;
            of[i] = value;
            odd.push(line(&of, &fields));
        }
        let mut names = fields;
        names[i] = "renamed";
        odd.push(line(&usual, &names));
        names[i] = fields[(i + 1) % fields.len()];
        odd.push(line(&usual, &names));
        odd.push(line(&usual[..i], &fields[..i]));
        odd.push(line(&usual, &fields).replacen(fields[i], &format!("\\u{:04x}{}", fields[i].as_bytes()[0], &fields[i][1..]), 1));
    }
    let whole = line(&usual, &fields);
    odd.extend([
        format!("{whole}}}"),
        format!("{whole} 1"),
        format!(" {whole}\t"),
        whole.replacen('}', ", \"more\": 2}", 1),
        whole[..whole.len() - 1].to_owned(),
    ]);
    odd.push(whole.replace("\"a\": \"x\"", "\"old_a\": \"y\""));
    for odd in odd {
        let (alone, after) = (land(&json, format!("{odd}\n")), land(&json, format!("{whole}\n{whole}\n{odd}\n{whole}\n")));
        let rows = |landed: &Landed, column: usize| landed.column(column);
        let reason = |landed: &Landed| landed.rejects().first().map(|r| r.reason.clone());
        assert_eq!((after.rejects().len(), reason(&after)), (alone.rejects().len(), reason(&alone)), "{odd}");
        for column in 0..9 {
            let usual = rows(&land(&json, format!("{whole}\n")), column);
            let expected: Vec<String> = [usual.clone(), usual.clone(), rows(&alone, column), usual].concat();
            assert_eq!(rows(&after, column), expected, "{odd}, column {column}");
        }
    }
}

#[test]
fn equal_floats_have_equal_bits() {
    let columns = "sensor = { type = \"string\" }\nlevel = { type = \"float64\" }\nts = { type = \"timestamp\" }";
    let rows: String = ["0.0", "-0.0", "NaN", "nan", "1.0", "-NaN", "3.5", "1e400"].iter().map(|l| format!("s,{l},2025-10-10T00:00:00Z\n")).collect();
    let landed = land(&source("csv", "", columns), format!("sensor,level,ts\n{rows}"));
    let bits: Vec<u64> = landed.chunks[0].columns[1].as_primitive::<arrow::datatypes::Float64Type>().values().iter().map(|f| f.to_bits()).collect();
    assert_eq!(bits, [0.0, 0.0, f64::NAN, f64::NAN, 1.0, f64::NAN, 3.5].map(f64::to_bits));
    assert_eq!(landed.reasons(), ["9: level \"1e400\" does not fit float64"]);
    let json = land(
        &source("jsonl", "", columns),
        "{\"sensor\":\"s4\",\"level\":NaN,\"ts\":\"2025-10-10T00:00:07Z\"}\n{\"sensor\":\"s4\",\"level\":1e400,\"ts\":\"2025-10-10T00:00:08Z\"}\n",
    );
    assert_eq!(json.reasons(), ["1: column 24: expected value", "2: level 1e400 does not fit float64"]);
}

#[test]
fn what_is_no_json_object_is_a_reject_with_its_column() {
    let json = source("jsonl", "", "ts = { type = \"timestamp\", default = \"2026-01-01\" }\na = { type = \"string\" }");
    for (line, reason) in [
        (&b"[1]"[..], "column 1: invalid type: sequence, expected a JSON object"),
        (b"{} x", "column 4: trailing characters"),
        (b"{\"a\":1}}", "column 8: trailing characters"),
        (b"{\"a\":\"\xff\"}", "column 7: not UTF-8"),
        (b"{\"a\":1,\"b\":2,\"a\":1}", "the key \"a\" occurs twice"),
        (b"{\"c\":1,\"\\u0063\":2}", "the key \"c\" occurs twice"),
        (b"{\"a\":\"\\ud800\"}", "a is not a text: unexpected end of hex escape"),
        (b"{\"a\":{}}", "a an object or array is not a string"),
        (b"{'a':1}", "column 2: key must be a string"),
        (b"{\"a\":01}", "column 7: invalid number"),
    ] {
        let landed = land(&json, [line, b"\n"].concat());
        assert_eq!(landed.reasons(), [format!("1: {reason}")]);
        assert_eq!(landed.rejects()[0].payload.as_deref(), Some(line));
    }
    let deep = format!("{{\"a\":\"x\",\"b\":{}{}}}\n", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(land(&json, deep).column(1), ["x"]);
    assert_eq!(land(&json, "{\"a\":\"\\u00e9\\n\"}\n{\"a\":true}\n").column(1), ["é\n", "true"]);
    assert_eq!(land(&json, "").chunks.len(), 0);
}

#[test]
fn columns_are_found_by_pointer_name_and_alias_and_filled_by_their_rules() {
    let columns = "ts = { type = \"timestamp\", default = \"2026-01-01\" }
amount = { type = \"decimal(18,2)\", aliases = [\"total\", \"sum\"], default = \"0.00\" }
coupon = { type = \"string\", from = \"/promo/codes/1/a~1b\", aliases = [\"coupon_code\"] }
card = { type = \"string\", mask = \"sha256\" }
name = { type = \"string\", mask = \"redact\" }
dropped = { type = \"int64\", mask = \"drop\" }
soft = { type = \"int64\", on_bad = \"null\" }
softer = { type = \"int64\", on_bad = \"default\", default = \"-1\" }
hard = { type = \"string\", nullable = false, default = \"x\" }
doc = { type = \"json\" }
";
    let text = "{\"total\":1.5,\"promo\":{\"codes\":[0,{\"a/b\":\"c\"}]},\"card\":\"4111\",\"name\":\"N\",\"dropped\":7,\"soft\":\"x\",\"softer\":\"x\",\"doc\":{ \"a\": [1.0] }}
{\"amount\":null,\"total\":3,\"coupon_code\":\"d\",\"card\":null,\"dropped\":\"bad\",\"hard\":\"y\",\"doc\":\"s\"}
{\"sum\":2,\"promo\":null,\"promo2\":1}
{\"hard\":null}
{\"promo\":{\"codes\":[0,{\"a/b\":\"c\",\"a/b\":\"d\"}]}}
{\"card\":{\"secret\":1}}
";
    let landed = land(&source("jsonl", "", columns), text);
    let digest = Digest::of(b"4111").to_string();
    for (i, expected) in [
        ["2026-01-01T00:00:00Z"; 3],
        ["1.50", "null", "2.00"],
        ["c", "d", "null"],
        [digest.as_str(), "null", "null"],
        ["***", "null", "null"],
        ["null"; 3],
        ["null"; 3],
        ["-1"; 3],
        ["x", "y", "x"],
        ["{ \"a\": [1.0] }", "\"s\"", "null"],
    ]
    .iter()
    .enumerate()
    {
        assert_eq!(landed.column(i), *expected, "column {i}");
    }
    assert_eq!(
        landed.reasons(),
        ["4: hard is null: not nullable", "5: coupon cannot be found: the key \"a/b\" occurs twice", "6: card (masked) is not a string"]
    );
    let bad = source("jsonl", "", "ts = { type = \"timestamp\" }\nn = { type = \"int64\", default = \"x\" }");
    assert_eq!(land_with(&bad, b"", &Options::default()).err().unwrap().to_string(), "the default of column \"n\": \"x\" is not an int64");
}

#[test]
fn what_no_column_asks_for_is_counted_by_name() {
    let columns = "ts = { type = \"timestamp\", from = \"/at/ts\", aliases = [\"time\"] }\na = { type = \"string\", aliases = [\"b\"] }";
    let text = "{\"time\":\"2026-01-01\",\"x\":1}\n{\"at\":{\"ts\":\"2026-01-01\",\"y\":1},\"b\":\"\",\"ts\":2}\n{\"x\":1,\"x\":2}\n{}\n{\"time\":\"2026-01-01\",\"x\":{}}\n";
    let landed = land(&source("jsonl", "", columns), text);
    assert_eq!((landed.offsets(), landed.summary.rejects), (vec![1, 2, 5], 2));
    assert_eq!(landed.summary.unknown, Unknown { fields: vec![("x".into(), 2), ("ts".into(), 1)], more: false });
    let many: String = (0..30).map(|i| format!("{{\"time\":\"2026-01-01\",\"k{i}\":1}}\n")).collect();
    let landed = land(&source("jsonl", "", columns), many);
    assert_eq!((landed.summary.unknown.fields.len(), landed.summary.unknown.more), (20, true));
    let csv = land(&source("csv", "", TABLE), "id,ts,more,\na,2026-01-01,x,\nb,2026-01-01,x,\n");
    assert_eq!(csv.summary.unknown.fields, [("more".to_owned(), 2)]);
}

#[test]
fn a_csv_line_under_another_header_is_another_record() {
    let of = |settings: &str, header: &str| land(&source("csv", settings, TABLE), format!("{header}\n2026-01-01,2026-01-02\n"));
    let name = |header: &str| Digest::of(format!("{header}\n2026-01-01,2026-01-02").as_bytes()).to_string();
    let (one, other) = (of("", "id,ts"), of("", "ts,id"));
    assert_eq!((one.ids(), other.ids()), (vec![name("id,ts")], vec![name("ts,id")]));
    // A line end and a byte order mark are not of the header.
    assert_eq!(of("", "\u{feff}id,ts\r").ids(), one.ids());
    // Records of one declared id are told apart by the header as well.
    let declared = |header: &str| of("record_id = \"id\"", header).chunks[0].payload_hashes[0];
    assert_ne!(declared("id,ts"), declared("ts,id"));
    assert_eq!(declared("id,ts"), one.chunks[0].payload_hashes[0]);
}

#[test]
fn csv_records_are_kept_as_they_are_written() {
    let columns = "ts = { type = \"timestamp\" }\nnote = { type = \"string\", aliases = [\"remark\"] }\nmust = { type = \"string\", nullable = false }\nn = { type = \"int64\", default = \"5\" }";
    let text = "\u{feff}remark,ts,must,extra\r\n\"a \"\"q\"\"\nb\",2026-01-01,x,1\r\n\r\n,2026-01-02,,\"\"\n z ,2026-01-03,\"y\",\n\"a\"b,2026-01-04,y,\na,2026-01-05,y\n";
    let landed = land(&source("csv", "", columns), text);
    assert_eq!(landed.offsets(), [2, 5, 6]);
    assert_eq!(landed.column(1), ["a \"q\"\nb", "null", " z "]);
    assert_eq!(landed.column(2), ["x", "", "y"]);
    assert_eq!(landed.column(3), ["5", "5", "5"]);
    let payloads: Vec<_> = landed.chunks[0].payloads.iter().map(|p| String::from_utf8_lossy(p.unwrap()).into_owned()).collect();
    assert_eq!(payloads, ["\"a \"\"q\"\"\nb\",2026-01-01,x,1", ",2026-01-02,,\"\"", " z ,2026-01-03,\"y\","]);
    assert_eq!(landed.ids()[1], Digest::of(b"remark,ts,must,extra\n,2026-01-02,,\"\"").to_string());
    assert_eq!(landed.reasons(), ["7: column 4: text behind a closing quote", "8: 3 fields where the header has 4"]);
    for reject in landed.rejects() {
        let at = reject.byte_offset.unwrap() as usize;
        assert!(text.as_bytes()[at..].starts_with(reject.payload.as_ref().unwrap()));
    }
}

#[test]
fn a_csv_header_must_be_usable() {
    let csv = source("csv", "delimiter = \";\"", TABLE);
    for (text, message) in [
        ("id;ts;id\n", "file:1: two columns are called \"id\""),
        ("id;time\n", "file: there is no column \"ts\" (it has id, time)"),
        ("id;\"ts\n", "file:1: a quote in the header is not closed"),
    ] {
        let found = land_with(&csv, text.as_bytes(), &Options::default()).err().unwrap().to_string();
        assert!(found.ends_with(message), "{found}");
    }
    assert_eq!(land(&csv, "ts;;\n2026-01-01;;\n").column(0), ["null"]);
    for nothing in ["", "\u{feff}", "\r\n\n"] {
        assert_eq!(land(&csv, nothing).summary, Summary::default(), "{nothing:?}");
    }
}

#[test]
fn long_records_are_rejects_of_bounded_size() {
    let options = Options { record_bytes_max: 60, reject_bytes_max: 8, chunk_rows_max: 2, chunk_bytes_max: 1 << 20, ..Options::default() };
    let good = "{\"ts\":\"2026-01-01\"}\n";
    let text = format!("{good}{{\"ts\":\"2026-01-01\",\"a\":\"{}\"}}\n{good}{good}", "x".repeat(100));
    let landed = land_with(&source("jsonl", "", TABLE), text.as_bytes(), &options).unwrap();
    assert_eq!(landed.offsets(), [1, 3, 4]);
    assert_eq!(landed.chunks.len(), 2);
    assert_eq!(landed.reasons(), ["2: 127 bytes long, more than a record may be (60); only its first 8 bytes are kept"]);
    assert_eq!(landed.rejects()[0].payload.as_deref(), Some(&b"{\"ts\":\"2"[..]));

    let csv = source("csv", "", TABLE);
    let row = "a,2026-01-01\n";
    let long = format!("\"{}\n\n{}\",2026-01-01\n", "x".repeat(50), "y".repeat(50));
    let landed = land_with(&csv, format!("id,ts\n{row}{long}{row}").as_bytes(), &options).unwrap();
    assert_eq!(landed.offsets(), [2, 6]);
    assert_eq!(landed.reasons(), ["3: 116 bytes long, more than a record may be (60); only its first 8 bytes are kept"]);
    let runaway = format!("id,ts\n{row}\"{}", row.repeat(20));
    assert!(matches!(land_with(&csv, runaway.as_bytes(), &options), Err(DecodeError::Unclosed { line: 3, .. })));
}

#[test]
fn every_byte_of_a_file_is_in_a_record_or_a_reject() {
    let json = source("jsonl", "", "ts = { type = \"timestamp\" }");
    let pieces: [&[u8]; 6] = [b"{\"ts\":\"2026-01-01\"}", b"  ", b"{\"ts\":1}", b"nonsense \xff\xfe", b"", b"{\"ts\":\"2026-01-01\",\"a\":[1,2,{}]}"];
    let mut seed = 1u64;
    for _ in 0..200 {
        let mut next = |n: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % n
        };
        let lines: Vec<&[u8]> = (0..next(30)).map(|_| pieces[next(6)]).collect();
        let mut file = lines.join(&b'\n');
        if next(2) == 0 {
            file.push(b'\n');
        }
        let mut packed = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        packed.write_all(&file).unwrap();
        let options = Options { chunk_rows_max: 1 + next(5), ..Options::default() };
        for bytes in [file.clone(), packed.finish().unwrap(), zstd::stream::encode_all(&file[..], 1).unwrap()] {
            let landed = land_with(&json, &bytes, &options).unwrap();
            let mut found: Vec<Option<Vec<u8>>> = vec![None; lines.len()];
            for chunk in &landed.chunks {
                for (offset, payload) in chunk.offsets.iter().zip(&chunk.payloads) {
                    assert!(found[*offset as usize - 1].replace(payload.unwrap().to_vec()).is_none());
                }
                for reject in &chunk.rejects {
                    let at = reject.byte_offset.unwrap() as usize;
                    let payload = reject.payload.clone().unwrap();
                    assert_eq!(&file[at..at + payload.len()], payload);
                    assert!(found[reject.offset as usize - 1].replace(payload).is_none());
                }
            }
            // Blank lines are nobody's; all others come back as they were.
            let back: Vec<Vec<u8>> = found
                .into_iter()
                .zip(&lines)
                .map(|(f, line)| {
                    f.unwrap_or_else(|| {
                        assert!(line.trim_ascii().is_empty());
                        line.to_vec()
                    })
                })
                .collect();
            assert_eq!(back, lines);
        }
    }
}

fn parquet_of(columns: &[(&str, ArrayRef)]) -> Vec<u8> {
    let fields: Vec<Field> = columns.iter().map(|(name, a)| Field::new(*name, a.data_type().clone(), true)).collect();
    let schema = Arc::new(Schema::new(fields));
    let batch = RecordBatch::try_new(schema.clone(), columns.iter().map(|(_, a)| a.clone()).collect()).unwrap();
    let mut writer = ArrowWriter::try_new(vec![], schema, None).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

fn times(n: usize) -> ArrayRef {
    Arc::new(TimestampMicrosecondArray::from_iter_values((0..n as i64).map(|i| i * 1_000_000)).with_timezone("UTC"))
}

#[test]
fn a_parquet_file_with_two_columns_of_one_name_is_refused_if_it_is_asked_for() {
    let ints = || Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef;
    let declared = |v: &str| source("parquet", "", &format!("v = {{ type = \"int64\"{v} }}\nts = {{ type = \"timestamp\" }}"));
    let land = |v: &str, columns: &[(&str, ArrayRef)]| land_with(&declared(v), &parquet_of(columns), &Options::default());
    let aliases = ", aliases = [\"old\"]";
    let named = [("v", ints()), ("ts", times(2)), ("v", times(2))];
    let aliased = [("old", ints()), ("ts", times(2)), ("old", ints())];
    for (v, columns, name) in [("", &named, "v"), (aliases, &named, "v"), (aliases, &aliased, "old")] {
        let error = land(v, columns).err().unwrap().to_string();
        assert!(error.ends_with(&format!("file: two columns are called {name:?}, and the declared column \"v\" could be either")), "{error}");
    }
    // Names that nobody asks for, or that only stand in for one that is there.
    assert_eq!(land("", &aliased).unwrap().column(0), ["null", "null"]);
    let both = [("v", ints()), ("ts", times(2)), ("old", ints()), ("old", ints())];
    assert_eq!(land(aliases, &both).unwrap().column(0), ["1", "2"]);
}

#[test]
fn parquet_columns_become_the_declared_types_exactly_or_not_at_all() {
    let wide = format!("2: v {}e0 has more than 38 digits", i256::MAX);
    let wide = [wide.as_str()];
    let cases: Vec<(&str, ArrayRef, &[&str], &[&str])> = vec![
        ("int64", Arc::new(Int32Array::from(vec![Some(1), None])), &["1", "null"], &[]),
        ("int32", Arc::new(Int64Array::from(vec![1, 1 << 40])), &["1"], &["2: v 1099511627776 does not fit int32"]),
        ("int64", Arc::new(UInt64Array::from(vec![7, u64::MAX])), &["7"], &["2: v 18446744073709551615 does not fit int64"]),
        ("float64", Arc::new(Float32Array::from(vec![1.5, -0.0])), &["1.5", "0.0"], &[]),
        ("float32", Arc::new(Float64Array::from(vec![1.5, 0.1])), &["1.5"], &["2: v 0.1 does not fit float32"]),
        (
            "decimal(10,2)",
            Arc::new(Decimal128Array::from(vec![1500, 1501]).with_precision_and_scale(20, 3).unwrap()),
            &["1.50"],
            &["2: v 1501e-3 does not fit decimal(10,2)"],
        ),
        (
            "decimal(10,2)",
            Arc::new(Decimal256Array::from(vec![i256::from(15), i256::MAX]).with_precision_and_scale(76, 0).unwrap()),
            &["15.00"],
            &wide,
        ),
        ("string", Arc::new(LargeStringArray::from(vec!["a", "b"])), &["a", "b"], &[]),
        ("string", Arc::new(StringViewArray::from(vec!["a", "b"])), &["a", "b"], &[]),
        ("string", Arc::new(DictionaryArray::<Int32Type>::from_iter([Some("a"), None])), &["a", "null"], &[]),
        ("json", Arc::new(StringArray::from(vec!["{}", "{"])), &["{}"], &["2: v \"{\" is not JSON: EOF while parsing an object at line 1 column 1"]),
        ("binary", Arc::new(BinaryArray::from_vec(vec![b"a", b"b"])), &["61", "62"], &[]),
        ("date", Arc::new(Date32Array::from(vec![0, 1])), &["1970-01-01", "1970-01-02"], &[]),
        ("time", Arc::new(Time64NanosecondArray::from(vec![1_999, 2_000])), &["00:00:00.000001", "00:00:00.000002"], &[]),
        ("date", Arc::new(Date32Array::from(vec![0, 3_000_000])), &["1970-01-01"], &["2: v day 3000000 lies outside the years 0001 to 9999"]),
        ("time", Arc::new(Time64MicrosecondArray::from(vec![0, -1])), &["00:00:00"], &["2: v -1 microseconds is not a time of day"]),
        ("int64", Arc::new(NullArray::new(2)), &["null", "null"], &[]),
        (
            "timestamp",
            Arc::new(TimestampMillisecondArray::from(vec![0, 1]).with_timezone("+05:00")),
            &["1970-01-01T00:00:00Z", "1970-01-01T00:00:00.001Z"],
            &[],
        ),
        (
            "timestamp",
            Arc::new(TimestampNanosecondArray::from(vec![-1, 1_999])),
            &["1969-12-31T22:59:59.999999Z", "1969-12-31T23:00:00.000001Z"],
            &[],
        ),
        (
            "timestamp",
            Arc::new(TimestampMicrosecondArray::from(vec![1_774_748_400_000_000 - 43_200_000_000, 1_774_751_400_000_000])),
            &["2026-03-28T12:40:00Z"],
            &["2: v \"2026-03-29T02:30:00\" does not exist in Europe/Berlin: clocks were put forward over it"],
        ),
    ];
    for (declared, array, expected, reasons) in cases {
        let parquet = source(
            "parquet",
            "time_zone = \"Europe/Berlin\"",
            &format!("v = {{ type = \"{declared}\", aliases = [\"old\"] }}\nts = {{ type = \"timestamp\" }}"),
        );
        let found = array.data_type().clone();
        let bytes = parquet_of(&[("old", array), ("ts", times(2))]);
        for bytes in [bytes.clone(), zstd::stream::encode_all(&bytes[..], 1).unwrap()] {
            let landed = land(&parquet, bytes);
            assert_eq!(landed.column(0), expected, "{declared} from {found}");
            assert_eq!(landed.reasons(), reasons, "{declared} from {found}");
        }
    }
}

#[test]
fn parquet_rows_are_named_by_what_they_hold() {
    let columns = "id = { type = \"int64\" }\nts = { type = \"timestamp\" }\ncard = { type = \"string\", mask = \"sha256\" }\nmust = { type = \"string\", nullable = false }";
    let must: ArrayRef = Arc::new(StringArray::from(vec![Some("x"), Some("x"), None, Some("x")]));
    let ids: ArrayRef = Arc::new(Int64Array::from(vec![Some(1), Some(1), Some(2), None]));
    let card: ArrayRef = Arc::new(StringArray::from(vec!["4111"; 4]));
    let same: ArrayRef = Arc::new(TimestampMillisecondArray::from(vec![5; 4]));
    let bytes = parquet_of(&[("must", must), ("id", ids), ("card", card), ("ts", same), ("more", times(4))]);
    let declared = land(&source("parquet", "record_id = \"id\"", columns), &bytes);
    assert_eq!(declared.ids(), ["1", "1"]);
    assert_eq!(declared.column(2)[0], Digest::of(b"4111").to_string());
    assert_eq!(declared.reasons(), ["3: must is null: not nullable", "4: id is null: null record id"]);
    let kept = |r: &&Reject| String::from_utf8(r.payload.clone().unwrap()).unwrap();
    assert_eq!(kept(&declared.rejects()[0]), r#"{"must":null,"id":2,"card":"***","ts":"1970-01-01T00:00:00.005Z"}"#);
    assert_eq!(declared.summary.unknown.fields, [("more".to_owned(), 4)]);
    assert_eq!(declared.chunks[0].payload_hashes[0], declared.chunks[0].payload_hashes[1]);
    assert!(declared.chunks[0].payloads.is_null(0));
    let generated = land(&source("parquet", "", columns), &bytes);
    assert_eq!((generated.ids().len(), generated.ids()[0] == generated.ids()[1], generated.ids()[1] == generated.ids()[2]), (3, true, false));
    let small = Options { chunk_rows_max: 1, ..Options::default() };
    let pieces = land_with(&source("parquet", "", columns), &bytes, &small).unwrap();
    assert_eq!((pieces.chunks.len(), pieces.ids(), pieces.offsets()), (4, generated.ids(), vec![1, 2, 4]));
}

#[test]
fn a_parquet_file_that_cannot_be_used_says_why() {
    let bytes = parquet_of(&[("id", Arc::new(StringArray::from(vec!["a"]))), ("ts", times(1))]);
    let parquet = source("parquet", "", TABLE);
    for cut in [0, 3, bytes.len() / 2, bytes.len() - 1] {
        assert!(matches!(land_with(&parquet, &bytes[..cut], &Options::default()), Err(DecodeError::Parquet { .. })), "{cut}");
    }
    let message = |columns: &str| land_with(&source("parquet", "", columns), &bytes, &Options::default()).err().unwrap().to_string();
    assert!(message("id = { type = \"int64\" }\nts = { type = \"timestamp\" }").ends_with("column \"id\" is Utf8, which cannot become int64"));
    let other = land_with(&parquet, &parquet_of(&[("id", times(1))]), &Options::default()).err().unwrap().to_string();
    assert!(other.ends_with("there is no column \"ts\" (it has id)"), "{other}");
    assert_eq!(ArrowType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())), *land(&parquet, &bytes).chunks[0].columns[1].data_type());
}

#[test]
fn a_cut_compressed_file_is_an_error_whatever_it_holds() {
    let mut packer = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
    packer.write_all("{\"ts\":\"2026-01-01\"}\n".repeat(1000).as_bytes()).unwrap();
    let packed = packer.finish().unwrap();
    for format in ["jsonl", "csv", "parquet"] {
        let cut = land_with(&source(format, "", TABLE), &packed[..packed.len() - 3], &Options::default());
        match cut.err() {
            Some(DecodeError::Corrupt { compression: Compression::Gzip, byte, .. }) => assert!(byte <= packed.len() as u64),
            // Its header is read first.
            Some(DecodeError::MissingColumn { .. }) if format == "csv" => {}
            other => panic!("{format}: {other:?}"),
        }
    }
}

#[test]
fn the_sink_stops_the_work_with_its_own_error() {
    #[derive(Debug, thiserror::Error)]
    enum Stop {
        #[error("full")]
        Full,
        #[error(transparent)]
        Decode(#[from] DecodeError),
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, "{\"ts\":\"2026-01-01\"}\n").unwrap();
    let stopped = decode::<Stop>(&source("jsonl", "", TABLE), &path, &Options::default(), &mut |_| Err(Stop::Full));
    assert!(matches!(stopped, Err(Stop::Full)));
    let missing = decode::<Stop>(&source("jsonl", "", TABLE), Path::new("/nowhere"), &Options::default(), &mut |_| Ok(()));
    assert!(matches!(missing, Err(Stop::Decode(DecodeError::Open { .. }))));
}
