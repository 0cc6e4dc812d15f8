//! Mutated files through the parsers, and mutated restitch.toml: no panic, no byte unaccounted for, no record that
//! depends on how a file is read.
//! Bounded and repeatable: `RESTITCH_FUZZ_CASES` says how many cases each target gets, `RESTITCH_FUZZ_SEED` where they start.
//! A finding prints its seed; with it, and one case, it comes again.

use crate::support::Random;
use arrow::{
    array::{Array, RecordBatch},
    util::display::array_value_to_string,
};
use restitch::{
    config::{Project, Source},
    decode::{self, Compression, DecodeError, Options, Summary, decode, identify},
};
use std::{fs, io::Write, path::Path, sync::Arc};

/// Cases of each target unless the environment says otherwise: seconds in a debug build.
const CASES: u64 = 2000;

/// Calls `check` with a fresh generator per case.
fn fuzz(target: &str, check: impl Fn(&mut Random)) {
    let number = |key: &str| std::env::var(key).ok().and_then(|v| v.parse::<u64>().ok());
    let (cases, first) = (number("RESTITCH_FUZZ_CASES").unwrap_or(CASES), number("RESTITCH_FUZZ_SEED").unwrap_or(1));
    for seed in first..first + cases {
        let case = std::panic::AssertUnwindSafe(|| check(&mut Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)));
        if let Err(panic) = std::panic::catch_unwind(case) {
            let what = panic.downcast_ref::<String>().cloned().or_else(|| panic.downcast_ref::<&str>().map(|s| s.to_string()));
            panic!("{target}: RESTITCH_FUZZ_SEED={seed} RESTITCH_FUZZ_CASES=1: {}", what.unwrap_or_default());
        }
    }
}

impl Random {
    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }

    /// One of the seeds, changed at a few places: bytes turned, taken out, doubled, words of the format put in.
    fn mutated(&mut self, seeds: &[Vec<u8>], words: &[&[u8]]) -> Vec<u8> {
        let mut bytes = self.pick(seeds).clone();
        for _ in 0..self.below(6) {
            let at = self.below(bytes.len() + 1);
            let end = (at + self.below(12)).min(bytes.len());
            match self.below(7) {
                0 if at < bytes.len() => bytes[at] ^= 1 << self.below(8),
                1 => drop(bytes.splice(at..end, [])),
                2 => bytes.truncate(at),
                3 => {
                    let piece = bytes[at..end].to_vec();
                    bytes.splice(at..at, piece);
                }
                4 => {
                    let other = self.pick(seeds);
                    let from = self.below(other.len() + 1);
                    let to = (from + self.below(40)).min(other.len());
                    bytes.splice(at..at, other[from..to].iter().copied());
                }
                _ => {
                    let word = self.pick(words);
                    bytes.splice(at..end, word.iter().copied());
                }
            }
        }
        bytes
    }
}

const WORDS: [&[u8]; 48] = [
    b"\n",
    b"\r\n",
    b"\r",
    b"\"",
    b"\"\"",
    b",",
    b"{",
    b"}",
    b"[",
    b"]",
    b":",
    b"\\",
    b"\\u0000",
    b"\\ud800",
    b"\xff",
    b"\xef\xbb\xbf",
    b"\0",
    b" ",
    b"null",
    b"true",
    b"NaN",
    b"-0.0",
    b"1e400",
    b"1e-400",
    b"9223372036854775808",
    b"0.1",
    b"\xf0\x9f\x98\x80",
    b"ts",
    b"a/b",
    b"id",
    b"amt",
    b"2016-12-31T23:59:60Z",
    b"2017-01-01T24:00:00Z",
    b"9999-12-31T23:59:59.999999Z",
    b"0001-01-01",
    b"-1",
    b"1757937600",
    b"=",
    b"#",
    b"'''",
    b"[source.s.columns]",
    b"type",
    b"\"timestamp\"",
    b"default",
    b"1979-05-27",
    b"inf",
    b"{ type = \"json\" }",
    b"checks = [{ kind = \"sql\" }]",
];

/// The inputs of `tests/cases` with this ending.
fn cases(extension: &str) -> Vec<Vec<u8>> {
    let mut paths = Vec::new();
    for folder in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cases")).unwrap() {
        let folder = folder.unwrap().path();
        if folder.is_dir() {
            paths.extend(fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).filter(|p| p.extension().is_some_and(|e| e == extension)));
        }
    }
    paths.sort();
    assert!(!paths.is_empty(), "no seeds");
    paths.into_iter().map(|p| fs::read(p).unwrap()).collect()
}

fn source(format: &str) -> Source {
    let pointer = if format == "jsonl" { "deep = { type = \"json\", from = \"/a/b\", aliases = [\"deep\"] }" } else { "deep = { type = \"json\" }" };
    let text = format!(
        "[warehouse]\npath = \"w\"\n[source.s]\nformat = \"{format}\"\nevent_time = \"ts\"\n[source.s.columns]\nid = {{ type = \"string\" }}\nts = {{ type = \"timestamp\", unit = \"ms\" }}\n\
         amt = {{ type = \"decimal(18,2)\", aliases = [\"v\", \"level\"], on_bad = \"null\" }}\ncode = {{ type = \"int64\", default = 7 }}\n{pointer}\n\
         masked = {{ type = \"string\", aliases = [\"sensor\", \"extra\"], mask = \"sha256\" }}\n"
    );
    Project::parse("restitch.toml", &text).unwrap().sources["s"].clone()
}

/// What a file came to: each record or reject with its line, in order of lines, and what it is in full.
#[derive(PartialEq, Debug)]
struct Landed {
    items: Vec<Item>,
    summary: Summary,
}

#[derive(PartialEq, Debug)]
struct Item {
    offset: i64,
    byte: Option<u64>,
    payload: Option<Vec<u8>>,
    rejected: bool,
    text: String,
}

fn land(source: &Source, folder: &Path, bytes: &[u8], options: &Options) -> Result<Landed, String> {
    let path = folder.join("file");
    fs::write(&path, bytes).unwrap();
    let mut items: Vec<Item> = Vec::new();
    let fields: Vec<_> = source.columns.iter().map(|c| c.field().arrow(None).with_nullable(true)).collect();
    let schema = Arc::new(arrow::datatypes::Schema::new(fields));
    let summary = decode::<DecodeError>(source, &path, options, &mut |chunk| {
        RecordBatch::try_new(Arc::clone(&schema), chunk.columns.clone()).unwrap();
        assert!(chunk.offsets.is_sorted_by(|a, b| a < b) && chunk.rejects.is_sorted_by(|a, b| a.offset < b.offset));
        for (i, offset) in chunk.offsets.iter().enumerate() {
            let cell = |c: &arrow::array::ArrayRef| if c.is_null(i) { "∅".into() } else { array_value_to_string(c, i).unwrap() };
            let cells: Vec<String> = chunk.columns.iter().map(cell).collect();
            let text = format!("{} {} {} {cells:?}", chunk.record_ids.value(i), chunk.event_times[i], chunk.payload_hashes[i]);
            let payload = (!chunk.payloads.is_null(i)).then(|| chunk.payloads.value(i).to_vec());
            items.push(Item { offset: *offset, byte: None, payload, rejected: false, text });
        }
        for r in chunk.rejects {
            items.push(Item { offset: r.offset, byte: r.byte_offset, payload: r.payload, rejected: true, text: r.reason });
        }
        Ok(())
    })
    // Where damage is noticed depends on how much is read at once.
    .map_err(|e| e.to_string().split(" near byte").next().unwrap().to_owned())?;
    items.sort_by_key(|i| i.offset);
    assert!(items.is_sorted_by(|a, b| a.offset < b.offset), "two records at one place");
    let rejects = items.iter().filter(|i| i.rejected).count() as u64;
    assert_eq!((summary.rejects, summary.records), (rejects, items.len() as u64 - rejects));
    Ok(Landed { items, summary })
}

fn packed(bytes: &[u8], random: &mut Random) -> Vec<u8> {
    let gzip = |bytes: &[u8]| {
        let mut packer = flate2::write::GzEncoder::new(vec![], flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    };
    let zstd = |bytes: &[u8]| zstd::stream::encode_all(bytes, 1).unwrap();
    let (first, second) = bytes.split_at(random.below(bytes.len() + 1));
    match random.below(4) {
        0 => gzip(bytes),
        1 => zstd(bytes),
        2 => [gzip(first), gzip(second)].concat(),
        _ => [zstd(first), zstd(second)].concat(),
    }
}

/// Lands `bytes` as they are; they must come to the same in small reads, in small chunks, and packed.
fn land_all_ways(source: &Source, folder: &Path, bytes: &[u8], random: &mut Random) -> Result<Landed, String> {
    let plain = land(source, folder, bytes, &Options::default());
    let small = Options { chunk_rows_max: 1 + random.below(4), read_bytes: 1 + random.below(20), ..Options::default() };
    assert_eq!(land(source, folder, bytes, &small), plain, "in small reads");
    assert_eq!(land(source, folder, &packed(bytes, random), &Options::default()), plain, "packed");
    let short = Options { record_bytes_max: 8 + random.below(60), reject_bytes_max: 8, ..Options::default() };
    let cut = land(source, folder, bytes, &short);
    assert_eq!(land(source, folder, bytes, &Options { read_bytes: 1 + random.below(9), ..short }), cut, "in small reads, with long records");
    plain
}

/// The start of each line.
fn lines(bytes: &[u8]) -> Vec<usize> {
    [0].into_iter().chain(bytes.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(i, _)| i + 1)).collect()
}

/// Every byte is in a record or a reject, or it is a line end, a blank line or the header.
fn accounted(bytes: &[u8], landed: &Landed, header: bool, blank: &[u8]) {
    let mark = if bytes.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let (starts, mut end) = (lines(bytes), mark);
    for (i, item) in landed.items.iter().enumerate() {
        let start = starts[item.offset as usize - 1].max(mark);
        assert!(item.byte.is_none_or(|b| b == start as u64), "{item:?} starts at {start}");
        let payload = item.payload.as_ref().unwrap();
        assert!(start >= end && bytes[start..].starts_with(payload), "{item:?} is not at {start}");
        assert!((header && i == 0) || bytes[end..start].iter().all(|b| blank.contains(b)), "lost: {:?}", &bytes[end..start]);
        end = start + payload.len();
    }
    if !header || !landed.items.is_empty() {
        assert!(bytes[end..].iter().all(|b| blank.contains(b)), "lost at the end: {:?}", &bytes[end..]);
    }
}

#[test]
fn json_lines_account_for_every_byte_however_they_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let source = source("jsonl");
    let mut seeds = cases("jsonl");
    seeds.push(b"{\"ts\":1757937600000,\"a\":{\"b\":[1,{\"c\":null}]},\"id\":\"\\u00e9\\n\",\"code\":1.0}\r\n{}\n{\"ts\":1,\"ts\":2}\n{}\n".to_vec());
    fuzz("jsonl", |random| {
        let bytes = random.mutated(&seeds, &WORDS);
        if Compression::of(&bytes) == Compression::Plain {
            let landed = land_all_ways(&source, folder.path(), &bytes, random).unwrap();
            accounted(&bytes, &landed, false, b" \t\r\n");
        }
    });
}

#[test]
fn csv_accounts_for_every_byte_however_it_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let source = source("csv");
    let mut seeds = cases("csv");
    seeds.push(b"\xef\xbb\xbfid,ts,amt,\"extra\"\r\n\"a \"\"q\"\"\r\nb\",2026-01-01,1.50,\r\n\r\n,1757937600000,,\"x,y\"\r\n".to_vec());
    fuzz("csv", |random| {
        let bytes = random.mutated(&seeds, &WORDS);
        if Compression::of(&bytes) == Compression::Plain
            && let Ok(landed) = land_all_ways(&source, folder.path(), &bytes, random)
        {
            accounted(&bytes, &landed, true, b"\r\n");
        }
    });
}

fn parquet() -> Vec<u8> {
    use arrow::array::*;
    let columns: [(&str, ArrayRef); 4] = [
        ("id", Arc::new(StringArray::from(vec![Some("a"), None, Some("c"), Some("d")]))),
        ("ts", Arc::new(Int64Array::from(vec![1_757_937_600_000, 5, 1_757_937_600_001, i64::MAX]))),
        ("amt", Arc::new(Decimal128Array::from(vec![Some(1), None, Some(1995), Some(3)]).with_precision_and_scale(20, 3).unwrap())),
        ("more", Arc::new(Float64Array::from(vec![f64::NAN, -0.0, 1.0, 2.0]))),
    ];
    let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap();
    let mut writer = parquet::arrow::ArrowWriter::try_new(vec![], batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

#[test]
fn parquet_is_taken_or_refused_and_never_panics() {
    let folder = tempfile::tempdir().unwrap();
    let source = source("parquet");
    let whole = land(&source, folder.path(), &parquet(), &Options::default()).unwrap();
    assert_eq!((whole.summary.records, whole.summary.rejects), (2, 2));
    let seeds = [parquet()];
    fuzz("parquet", |random| {
        let bytes = random.mutated(&seeds, &[b"\0", b"\xff", b"PAR1", b"\x80\x01", b"\xff\xff\xff\x7f"]);
        let first = land(&source, folder.path(), &bytes, &Options::default());
        if first.is_ok() && bytes == seeds[0] {
            let small = Options { chunk_rows_max: 1 + random.below(3), ..Options::default() };
            assert_eq!(land(&source, folder.path(), &bytes, &small), first);
            assert_eq!(land(&source, folder.path(), &packed(&bytes, random), &small), first);
        }
    });
}

#[test]
fn packed_files_are_whole_or_damaged_and_never_something_else() {
    let folder = tempfile::tempdir().unwrap();
    let text = "{\"ts\":1757937600000,\"id\":\"a\"}\n".repeat(40).into_bytes();
    let path = folder.path().join("file");
    fuzz("packed", |random| {
        let good = packed(&text, random);
        let bytes = random.mutated(std::slice::from_ref(&good), &[b"\0", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"]);
        fs::write(&path, &bytes).unwrap();
        match identify(&path) {
            Err(DecodeError::Corrupt { byte, .. }) => assert!(byte <= bytes.len() as u64),
            Err(e) => panic!("{e}"),
            Ok(found) => assert_eq!(found.identity.size, bytes.len() as u64, "bytes were left over"),
        }
    });
}

#[test]
fn restitch_toml_is_taken_or_refused_at_a_place_in_it() {
    let examples = ["examples/late_orders/restitch.toml", "examples/earthquakes/restitch.toml", "host/pipeline/template.toml"];
    let mut seeds: Vec<Vec<u8>> = examples.iter().map(|p| fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join(p)).unwrap()).collect();
    seeds.push(crate::support::ORDERS.as_bytes().to_vec());
    fuzz("restitch.toml", |random| {
        let bytes = random.mutated(&seeds, &WORDS);
        let text = String::from_utf8_lossy(&bytes);
        match Project::parse("restitch.toml", &text) {
            Ok(project) => {
                for source in project.sources.values() {
                    decode::check_defaults(source).ok();
                    assert!(source.columns.iter().any(|c| c.name == source.event_time));
                }
            }
            Err(e) => {
                // The place behind the last byte is one, too.
                let line = text.split('\n').nth(e.line - 1).unwrap_or_else(|| panic!("line {} of {text:?}", e.line));
                assert!(e.column >= 1 && e.column <= line.chars().count() + 1, "{e}: {text:?}");
                assert!(!e.message.is_empty());
            }
        }
    });
}
