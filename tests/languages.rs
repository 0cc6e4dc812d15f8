//! Every language gives the same rows: the golden transform over the same vectors, and the pages of the documentation, followed.
//! Never skips: where a tool is missing, `plugins/tools.sh` installs it, and what it cannot install is an error.
//! `tests/guests/<version>` holds the built components of released contracts; they run for ever.

use crate::guests::ENGINE;
use arrow::{array::*, datatypes::Schema};
use restitch::{
    checksum::ContentHash,
    config::Limits,
    schema::{DataType, Field},
    transform::{Context, Language, Level, LogLine, Transform, TransformError, build},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::Command,
    sync::{Arc, OnceLock},
};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn temporary() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

// The golden transform.

/// Languages whose golden transform is also built anew from plugins/<language>/every-type.
const REBUILT: [&str; 1] = ["rust"];

/// One partition: what goes in, beside the context.
struct Vector {
    name: &'static str,
    label: Option<&'static str>,
    start_us: i64,
    seed: u64,
    names: Vec<Vec<(i64, Option<&'static str>)>>,
    batches: Vec<Vec<Row>>,
}

/// A row with a value of every type.
#[derive(Clone, Default, Debug)]
struct Row {
    id: i64,
    flag: Option<bool>,
    i32: Option<i32>,
    i64: Option<i64>,
    f32: Option<f32>,
    f64: Option<f64>,
    dec: Option<i128>,
    text: Option<String>,
    doc: Option<String>,
    bytes: Option<Vec<u8>>,
    day: Option<i32>,
    at: Option<i64>,
    ts: Option<i64>,
}

const DAY_US: i64 = 86_400_000_000;
/// The first and the last day that a date can be: 0001-01-01 and 9999-12-31.
const DAYS: [i32; 2] = [-719_162, 2_932_896];
const DECIMAL_MAX: i128 = 10i128.pow(38) - 1;

fn full(id: i64) -> Row {
    let n = id as i32;
    Row {
        id,
        flag: Some(n % 2 == 0),
        i32: Some(n * 1_000_003),
        i64: Some(id * 1_000_000_007 - (1 << 53) - 1),
        f32: Some(n as f32 / 3.0),
        f64: Some(id as f64 / 7.0),
        dec: Some(i128::from(id) * 1_234_567_890_123_456_789),
        text: Some(format!("row {id} ä 日本")),
        doc: Some(format!("{{\"id\": {id},\"n\":[1.0, 1e2, \"\\u00e4\"]}}")),
        bytes: Some((0..=n as u8).collect()),
        day: Some(20_000 + n),
        at: Some(id * 1_000_001),
        ts: Some(1_777_593_600_000_000 + id),
    }
}

fn extremes() -> Vec<Row> {
    let texts: Vec<String> =
        ["", "\0", "a\0b", "🦀🦀", "e\u{301}", "\u{ffff}\u{10ffff}", "שלום", " refuse", "\r\n\t\"\\", "\u{7f}\u{80}\u{7ff}\u{800}\u{fffd}"]
            .iter()
            .map(|t| (*t).to_owned())
            .chain(["ü".repeat(40_000)])
            .collect();
    let f32s = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, f32::MIN_POSITIVE, f32::from_bits(1), 0.1, 16_777_217.0];
    let f64s = [0.0, -0.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::MAX, f64::MIN, f64::MIN_POSITIVE, f64::from_bits(1), 0.1, 1e300];
    let i64s = [i64::MIN, i64::MAX, 0, -1, 1, (1 << 53) + 1, -(1 << 53) - 1, i64::MAX, i64::MAX, 1 << 32, -(1 << 31)];
    let i32s = [i32::MIN, i32::MAX, 0, -1, 1, 1 << 16, -(1 << 16), 127, 128, -128, -129];
    let decs = [DECIMAL_MAX, -DECIMAL_MAX, 0, -1, 1, 1 << 64, -(1 << 64), u64::MAX.into(), i64::MIN.into(), DECIMAL_MAX, -DECIMAL_MAX];
    let docs = ["null", "{}", "[]", "\"\"", "0", "-0.0", "1e400", "[1,\n 2]", "{\"a\":1,\"a\":2}", "123456789012345678901234567890", "\"\\u0000🦀\""];
    let bytes: [Vec<u8>; 11] = [
        vec![],
        vec![0],
        vec![255],
        (0..=255).collect(),
        b"\xff\xfe not text".to_vec(),
        vec![0; 100_000],
        vec![128],
        vec![1, 2],
        vec![3; 7],
        vec![4; 8],
        vec![5; 9],
    ];
    let ids = [i64::MIN, i64::MAX, 0, -2, 1, 2, 3, 4, 5, (1 << 53) + 1, -(1 << 53) - 1];
    let row = |i: usize| Row {
        id: ids[i],
        flag: Some(i.is_multiple_of(3)),
        i32: Some(i32s[i]),
        i64: Some(i64s[i]),
        f32: Some(f32s[i]),
        f64: Some(f64s[i]),
        dec: Some(decs[i]),
        text: Some(texts[i].clone()),
        doc: Some(docs[i].to_owned()),
        bytes: Some(bytes[i].clone()),
        day: Some([DAYS[0], DAYS[1], 0, -1, 1][i % 5]),
        at: Some([0, DAY_US - 1, 1, DAY_US / 2, 999_999][i % 5]),
        ts: Some([i64::from(DAYS[0]) * DAY_US, (i64::from(DAYS[1]) + 1) * DAY_US - 1, 0, -1, 1][i % 5]),
    };
    (0..11).map(row).collect()
}

/// Rows with nulls here and there, by a pattern that is long but always the same.
fn sparse(rows: usize) -> Vec<Row> {
    let mut state = 1u64;
    let mut coin = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 62 != 0
    };
    let mut row = |i: usize| {
        let r = full(i as i64);
        Row {
            id: r.id,
            flag: r.flag.filter(|_| coin()),
            i32: r.i32.filter(|_| coin()),
            i64: r.i64.filter(|_| coin()),
            f32: r.f32.filter(|_| coin()),
            f64: r.f64.filter(|_| coin()),
            dec: r.dec.filter(|_| coin()),
            text: r.text.filter(|_| coin()),
            doc: r.doc.filter(|_| coin()),
            bytes: r.bytes.filter(|_| coin()),
            day: r.day.filter(|_| coin()),
            at: r.at.filter(|_| coin()),
            ts: r.ts.filter(|_| coin()),
        }
    };
    (0..rows).map(&mut row).collect()
}

fn vectors() -> Vec<Vector> {
    let plain = Vector { name: "no row", label: None, start_us: 1_777_593_600_000_000, seed: 7, names: vec![], batches: vec![] };
    let nulls = |n: i64| (0..n).map(|id| Row { id, ..Row::default() }).collect::<Vec<_>>();
    let some_nulls = |n: i64| (0..n).map(|id| if id % 2 == 0 { full(id) } else { Row { id, ..Row::default() } }).collect::<Vec<_>>();
    let names = vec![vec![(0, Some("first")), (1, Some("one")), (2, None), (0, Some("Zoë 🦀"))], vec![], vec![(1, None), (3, Some(""))]];
    vec![
        Vector { name: "empty batches", batches: vec![vec![], vec![], nulls(1), vec![]], ..clone(&plain) },
        Vector { name: "only nulls", seed: u64::MAX, batches: vec![nulls(9)], ..clone(&plain) },
        Vector { name: "no nulls", label: Some(""), seed: 1 << 63, batches: vec![(0..17).map(full).collect()], ..clone(&plain) },
        Vector { name: "every other", label: Some("größe 🦀"), batches: [8, 1, 7, 16, 9].map(some_nulls).to_vec(), ..clone(&plain) },
        Vector { name: "extremes", start_us: -62_135_596_800_000_000, seed: 0, names: names.clone(), batches: vec![extremes()], ..clone(&plain) },
        Vector { name: "lookup", names, batches: vec![(0..6).map(full).collect(), nulls(4)], ..clone(&plain) },
        Vector { name: "many", batches: vec![sparse(2_000), sparse(5)], ..clone(&plain) },
        plain,
    ]
}

fn clone(v: &Vector) -> Vector {
    Vector { name: v.name, label: v.label, start_us: v.start_us, seed: v.seed, names: v.names.clone(), batches: v.batches.clone() }
}

fn record(fields: &[Field], columns: Vec<ArrayRef>) -> RecordBatch {
    RecordBatch::try_new(Arc::new(Schema::new(fields.iter().map(|f| f.arrow(None)).collect::<Vec<_>>())), columns).unwrap()
}

/// The thirteen columns that go in and come back.
fn columns(rows: &[Row]) -> Vec<ArrayRef> {
    fn all<A: FromIterator<T> + Array + 'static, T>(rows: &[Row], get: impl Fn(&Row) -> T) -> ArrayRef {
        Arc::new(rows.iter().map(get).collect::<A>())
    }
    let dec = rows.iter().map(|r| r.dec).collect::<Decimal128Array>().with_precision_and_scale(38, 9).unwrap();
    let ts = rows.iter().map(|r| r.ts).collect::<TimestampMicrosecondArray>().with_timezone("UTC");
    vec![
        all::<Int64Array, _>(rows, |r| Some(r.id)),
        all::<BooleanArray, _>(rows, |r| r.flag),
        all::<Int32Array, _>(rows, |r| r.i32),
        all::<Int64Array, _>(rows, |r| r.i64),
        all::<Float32Array, _>(rows, |r| r.f32),
        all::<Float64Array, _>(rows, |r| r.f64),
        Arc::new(dec),
        all::<StringArray, _>(rows, |r| r.text.clone()),
        all::<StringArray, _>(rows, |r| r.doc.clone()),
        all::<BinaryArray, _>(rows, |r| r.bytes.clone()),
        all::<Date32Array, _>(rows, |r| r.day),
        all::<Time64MicrosecondArray, _>(rows, |r| r.at),
        Arc::new(ts),
    ]
}

/// What has to come out, worked out here and not by any SDK: one batch for each pushed one, and the last row.
fn expected(v: &Vector, fields: &[Field]) -> Vec<RecordBatch> {
    let names: BTreeMap<i64, Option<&str>> = v.names.iter().flatten().copied().collect();
    let rows: Vec<Row> = v.batches.iter().flatten().cloned().collect();
    let mut seen = 0;
    let added = |rows: &[Row], name: Vec<Option<&str>>, seen: Vec<i64>| {
        let n = rows.len();
        // What a guest returns has one zero.
        let canonical = |r: &Row| Row { f32: r.f32.map(|f| f + 0.0), f64: r.f64.map(|f| f + 0.0), ..r.clone() };
        let rows: Vec<Row> = rows.iter().map(canonical).collect();
        let extra: [ArrayRef; 5] = [
            Arc::new(StringArray::from(name)),
            Arc::new(Int64Array::from(seen)),
            Arc::new(StringArray::from(vec![v.label.unwrap_or("none"); n])),
            Arc::new(TimestampMicrosecondArray::from(vec![v.start_us; n]).with_timezone("UTC")),
            Arc::new(Int64Array::from(vec![v.seed.cast_signed(); n])),
        ];
        record(fields, columns(&rows).into_iter().chain(extra).collect())
    };
    let mut batches: Vec<RecordBatch> = Vec::new();
    for rows in v.batches.iter().filter(|b| !b.is_empty()) {
        let numbers = (seen..seen + rows.len() as i64).collect();
        batches.push(added(rows, rows.iter().map(|r| names.get(&r.id).copied().flatten()).collect(), numbers));
        seen += rows.len() as i64;
    }
    let last = Row {
        id: -1,
        i64: Some(rows.iter().filter_map(|r| r.i64).fold(0, i64::wrapping_add)),
        dec: Some(sum(rows.iter().filter_map(|r| r.dec))),
        text: Some(rows.iter().filter_map(|r| r.text.as_ref()?.chars().next()).collect()),
        ..Row::default()
    };
    batches.push(added(&[last], vec![None], vec![seen]));
    batches
}

/// A sum that passes through numbers of more than 128 bits on its way.
fn sum(numbers: impl Iterator<Item = i128>) -> i128 {
    const HALF: i128 = 10i128.pow(19);
    let (high, low) = numbers.fold((0, 0), |(high, low), n| (high + n / HALF, low + n % HALF));
    high * HALF + low
}

fn context(v: &Vector, more: &[(&str, &str)]) -> Context {
    let label = v.label.map(|l| ("label".to_owned(), l.to_owned()));
    Context {
        partition: "2026-05-01".into(),
        start_us: v.start_us,
        end_us: v.start_us + DAY_US,
        time_zone: "Europe/Berlin".into(),
        as_of_us: 1_780_000_000_000_000,
        seed: v.seed,
        parameters: label.into_iter().chain(more.iter().map(|(n, t)| (n.to_string(), t.to_string()))).collect(),
    }
}

/// Runs one vector; batches without rows are no answer.
fn run(transform: &Transform, v: &Vector, limits: &Limits) -> Result<Vec<RecordBatch>, TransformError> {
    let inputs = &transform.descriptor().inputs;
    let mut instance = transform.start(&context(v, &[]), limits)?;
    let begun = LogLine { level: Level::Info, message: "begin 2026-05-01".into() };
    assert_eq!(instance.log_lines(), [begun], "{}", v.name);
    for names in &v.names {
        let keys: ArrayRef = Arc::new(names.iter().map(|n| Some(n.0)).collect::<Int64Array>());
        let names: ArrayRef = Arc::new(names.iter().map(|n| n.1).collect::<StringArray>());
        let returned = instance.push(1, &record(&inputs[1].fields, vec![keys, names]))?;
        assert_eq!(returned.map_or(0, |b| b.num_rows()), 0, "{}: rows for a lookup", v.name);
    }
    let mut all = Vec::new();
    for rows in &v.batches {
        // A slice of a larger batch: what stands before and behind it must not be seen.
        let around: Vec<Row> = [vec![full(100), full(101), full(102)], rows.clone(), vec![full(103)]].concat();
        let whole = record(&inputs[0].fields, columns(&around));
        let returned = instance.push(0, &whole.slice(3, rows.len()))?.filter(|b| b.num_rows() > 0);
        assert_eq!(returned.as_ref().map_or(0, RecordBatch::num_rows), rows.len(), "{}: a row for each that was pushed, at once", v.name);
        all.extend(returned);
    }
    while let Some(batch) = instance.finish()? {
        all.push(batch);
    }
    Ok(all)
}

/// Every value of a column as its bytes, none of them made equal to another: minus zero is not zero here.
fn bits(data_type: DataType, column: &dyn Array) -> Vec<Option<Vec<u8>>> {
    use arrow::datatypes::{Float32Type, Float64Type};
    let value = |row: usize| match data_type {
        DataType::Float32 => column.as_primitive::<Float32Type>().value(row).to_bits().to_le_bytes().to_vec(),
        DataType::Float64 => column.as_primitive::<Float64Type>().value(row).to_bits().to_le_bytes().to_vec(),
        _ => {
            let mut bytes = Vec::new();
            restitch::checksum::Encoder::new(data_type, column).put(row, &mut bytes);
            bytes
        }
    };
    (0..column.len()).map(|row| column.is_valid(row).then(|| value(row))).collect()
}

fn checksum(fields: &[Field], batches: &[RecordBatch]) -> String {
    let mut hash = ContentHash::new(fields);
    batches.iter().for_each(|b| hash.update(b));
    hash.finish().to_string()
}

fn same(what: &str, fields: &[Field], got: &[RecordBatch], want: &[RecordBatch]) {
    let rows = |batches: &[RecordBatch]| batches.iter().map(RecordBatch::num_rows).collect::<Vec<_>>();
    assert_eq!(rows(got), rows(want), "{what}: rows of each batch");
    for (n, (got, want)) in got.iter().zip(want).enumerate() {
        for (i, field) in fields.iter().enumerate() {
            let (g, w) = (got.column(i), want.column(i));
            assert_eq!(g.null_count(), w.null_count(), "{what}, batch {n}, column {}: nulls", field.name);
            let (gb, wb) = (bits(field.data_type, g.as_ref()), bits(field.data_type, w.as_ref()));
            if let Some(row) = (0..gb.len()).find(|row| gb[*row] != wb[*row]) {
                panic!("{what}, batch {n}, row {row}, column {}: {:?}, not {:?}", field.name, gb[row], wb[row]);
            }
        }
    }
    assert_eq!(checksum(fields, got), checksum(fields, want), "{what}: checksum");
}

fn rows_with(place: usize, text: &str) -> Vec<Row> {
    let mut rows: Vec<Row> = (0..5).map(full).collect();
    rows[place].text = Some(text.into());
    rows
}

/// Holds one component against the golden transform's description, which DESIGN and plugins/rust/every-type write out.
fn golden(what: &str, transform: &Transform) {
    let d = transform.descriptor();
    assert_eq!((d.name.as_str(), d.version.as_str(), d.key.as_slice()), ("every-type", "1.0.0", ["id".to_owned()].as_slice()), "{what}");
    let fields = |fields: &[Field]| fields.iter().map(Field::to_string).collect::<Vec<_>>().join(", ");
    let all = "id int64 not null, flag boolean, i32 int32, i64 int64, f32 float32, f64 float64, dec decimal(38,9), text string, doc json, bytes binary, day date, at time, ts timestamp";
    assert_eq!(fields(&d.inputs[0].fields), all, "{what}");
    assert_eq!(fields(&d.inputs[1].fields), "key int64 not null, name string", "{what}");
    let more = ", name string, seen int64 not null, label string not null, start timestamp not null, seed int64 not null";
    assert_eq!(fields(&d.output), format!("{all}{more}"), "{what}");
    let parameters: Vec<_> = d.parameters.iter().map(|p| (p.name.as_str(), p.default.as_deref())).collect();
    assert_eq!(parameters, [("label", Some("none")), ("scale", Some("1"))], "{what}");

    for v in vectors() {
        let what = format!("{what}, {}", v.name);
        let want = expected(&v, &d.output);
        let got = run(transform, &v, &Limits::default()).unwrap_or_else(|e| panic!("{what}: {e}"));
        same(&what, &d.output, &got, &want);
        let again = run(transform, &v, &Limits::default()).unwrap_or_else(|e| panic!("{what}, again: {e}"));
        same(&format!("{what}, again"), &d.output, &again, &got);
    }
    failures(what, transform);
}

/// What a guest refuses, how it dies, and what ends it when it does not.
fn failures(what: &str, transform: &Transform) {
    let vector = |batches: Vec<Vec<Row>>| Vector { name: "failures", label: None, start_us: 0, seed: 1, names: vec![], batches };
    let fail = |batches: Vec<Vec<Row>>, limits: Limits| run(transform, &vector(batches), &limits).map(|_| ()).expect_err(what);
    let refused = fail(vec![rows_with(0, "fine"), rows_with(3, "refuse")], Limits::default());
    assert_eq!(refused.to_string(), "input \"rows\", row 3 of the batch: refused", "{what}");
    let TransformError::Trap { message, log_tail, .. } = fail(vec![rows_with(2, "panic")], Limits::default()) else { panic!("{what}: no trap") };
    assert!(message.contains("boom"), "{what}: {message}");
    assert!(log_tail.iter().any(|l| l.level == Level::Error && l.message.contains("boom")), "{what}: {log_tail:?}");
    let endless = fail(vec![rows_with(1, "loop")], Limits { time_ms_max: 2_000, ..Limits::default() });
    assert!(matches!(endless, TransformError::Time { limit_ms: 2_000 }), "{what}: {endless}");
    let bomb = fail(vec![rows_with(1, "grow")], Limits { memory_bytes_max: 256 << 20, time_ms_max: 300_000, ..Limits::default() });
    assert!(matches!(bomb, TransformError::Memory { .. }), "{what}: {bomb}");
    let most = |dec: i128| Row { dec: Some(dec), ..full(1) };
    let overflow = fail(vec![vec![most(DECIMAL_MAX), most(1)]], Limits::default());
    assert_eq!(overflow.to_string(), "decimal overflow", "{what}");
    let v = vector(vec![vec![most(DECIMAL_MAX), most(DECIMAL_MAX), most(DECIMAL_MAX), most(-DECIMAL_MAX), most(-DECIMAL_MAX)]]);
    let exact = run(transform, &v, &Limits::default()).unwrap_or_else(|e| panic!("{what}: a sum that fits in the end: {e}"));
    same(what, &transform.descriptor().output, &exact, &expected(&v, &transform.descriptor().output));
    for scale in ["x", "1.5", ""] {
        let error = transform.start(&context(&v, &[("scale", scale)]), &Limits::default()).err().expect(what);
        assert_eq!(error.to_string(), "parameter: scale: not a whole number", "{what}, {scale:?}");
    }
    for scale in ["0", "-7", "123456789"] {
        transform.start(&context(&v, &[("scale", scale)]), &Limits::default()).map(drop).unwrap_or_else(|e| panic!("{what}, {scale:?}: {e}"));
    }
}

fn kept() -> Vec<PathBuf> {
    let folder = root().join("tests/guests/1.0.0");
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().flatten().map(|e| e.path()).collect();
    files.sort();
    files
}

#[test]
fn every_kept_guest_gives_the_golden_rows() {
    let files = kept();
    assert!(!files.is_empty());
    for file in files {
        let what = file.file_name().unwrap().to_string_lossy().into_owned();
        let bytes = zstd::decode_all(std::fs::File::open(&file).unwrap()).unwrap();
        let transform = ENGINE.load(&bytes).unwrap_or_else(|e| panic!("{what}: {e}"));
        golden(&what, &transform);
    }
}

/// A released guest is never built again; `RESTITCH_BLESS=1 cargo test golden_transforms_of_today` keeps one that is not there yet.
#[test]
fn golden_transforms_of_today_give_the_golden_rows() {
    for language in REBUILT {
        let folder = root().join("plugins").join(language).join("every-type");
        let bytes = build(&folder, &temporary().join("guests")).unwrap_or_else(|e| panic!("{language}: {e}"));
        let transform = ENGINE.load(&bytes).unwrap_or_else(|e| panic!("{language}: {e}"));
        golden(&format!("plugins/{language}/every-type"), &transform);
        let file = root().join(format!("tests/guests/1.0.0/every-type-{language}.wasm.zst"));
        if std::env::var_os("RESTITCH_BLESS").is_some() && !file.exists() {
            std::fs::write(file, zstd::encode_all(&*bytes, 19).unwrap()).unwrap();
        }
    }
}

// The pages of the documentation.

/// Returns the folder with the tools of every language but Rust; `plugins/tools.sh` makes it once.
pub fn tools() -> &'static Path {
    static TOOLS: OnceLock<PathBuf> = OnceLock::new();
    TOOLS.get_or_init(|| {
        let script = root().join("plugins/tools.sh");
        let out = Command::new("sh").arg(&script).output().unwrap_or_else(|e| panic!("sh: {e}"));
        assert!(
            out.status.success(),
            "plugins/tools.sh failed: the languages need python3 with venv and pip, and node with npm; run it by hand to see more\n{}",
            String::from_utf8_lossy(&out.stderr)
        );
        PathBuf::from(String::from_utf8(out.stdout).expect("a path in UTF-8").trim_end())
    })
}

/// A step of a page.
#[derive(PartialEq, Debug)]
enum Step {
    /// A command, after `$ ` in a console block.
    Command(Vec<String>),
    /// A block after a line with a file's name and a colon: the file's text.
    File(String, String),
}

/// Returns the steps of a page: commands of `restitch` and `cd`, and files. Other commands install tools, which are here.
fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut before = "";
    let mut lines = page.lines();
    while let Some(line) = lines.next() {
        let Some(language) = line.strip_prefix("```") else {
            before = if line.trim().is_empty() { before } else { line };
            continue;
        };
        let block: Vec<&str> = lines.by_ref().take_while(|l| !l.starts_with("```")).collect();
        let file = before.strip_suffix(':').and_then(|l| l.strip_prefix('`')?.split('`').next());
        if language == "console" {
            let commands = block.iter().filter_map(|l| l.strip_prefix("$ ")).map(words);
            steps.extend(commands.filter(|w| matches!(w.first().map(String::as_str), Some("restitch" | "cd"))).map(Step::Command));
        } else if let Some(file) = file {
            steps.push(Step::File(file.to_owned(), block.iter().map(|l| format!("{l}\n")).collect()));
        }
        before = "";
    }
    steps
}

/// Splits a command as a shell does: at blanks, except between quotes; what follows a `#` is a remark.
fn words(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (c, quote) {
            ('#', None) if word.is_none() => break,
            (' ', None) => words.extend(word.take()),
            ('\'' | '"', None) => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (c, Some(q)) if c == q => quote = None,
            (c, _) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// Follows a page in a folder of its own inside the repository, whose Rust toolchain counts there.
fn follow(language: Language) {
    let name = format!("docs/transforms-{}.md", language.name());
    let page = std::fs::read_to_string(root().join(&name)).unwrap_or_else(|e| panic!("{name}: {e}: every language has a page"));
    let steps = steps(&page);
    for verb in ["new", "test", "build"] {
        let shown = |s: &Step| matches!(s, Step::Command(w) if w.len() > 2 && w[0] == "restitch" && w[1] == "transform" && w[2] == verb);
        assert!(steps.iter().any(shown), "{name} does not show `restitch transform {verb}`");
    }
    let home = temporary().join("pages").join(language.name());
    // What an earlier run compiled is kept: of a project that is written anew, only its own code is compiled again.
    let kept = temporary().join("pages").join(format!("{}-target", language.name()));
    for project in std::fs::read_dir(&home).into_iter().flatten().flatten() {
        let _ = std::fs::rename(project.path().join("target"), &kept);
    }
    let _ = std::fs::remove_dir_all(&home);
    std::fs::create_dir_all(&home).unwrap();
    let mut folder = home.clone();
    for step in &steps {
        match step {
            Step::File(path, text) => {
                std::fs::create_dir_all(folder.join(path).parent().unwrap()).unwrap();
                std::fs::write(folder.join(path), text).unwrap_or_else(|e| panic!("{name}: {path}: {e}"));
            }
            Step::Command(words) if words[0] == "cd" => folder.push(&words[1]),
            Step::Command(words) => {
                let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
                command.args(&words[1..]).current_dir(&folder);
                if language != Language::Rust {
                    command.env("RESTITCH_TOOLS", tools());
                }
                let out = command.output().unwrap_or_else(|e| panic!("{name}: {e}"));
                let said = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
                assert!(out.status.success(), "{name}: `{}`\n{}{}", words.join(" "), said(&out.stdout), said(&out.stderr));
                if words[1..].starts_with(&["transform".into(), "new".into()]) {
                    let _ = std::fs::rename(&kept, folder.join(&words[3]).join("target"));
                }
            }
        }
    }
}

#[test]
fn every_page_does_what_it_says() {
    Language::ALL.into_iter().for_each(follow);
}

#[test]
fn a_page_is_read_as_a_reader_reads_it() {
    let page = "Text.\n\n```console\n$ pip install x\n$ restitch transform new my-totals --lang rust   # makes it\nWrote it\n$ cd 'my totals'\n```\n\n`src/lib.rs`, whole:\n\n```rust\nfn a() {}\n```\n\nOnly shown:\n\n```rust\nx\n```\n";
    let command = |text: &str| Step::Command(text.split('|').map(str::to_owned).collect());
    let file = Step::File("src/lib.rs".into(), "fn a() {}\n".into());
    assert_eq!(steps(page), [command("restitch|transform|new|my-totals|--lang|rust"), command("cd|my totals"), file]);
}
