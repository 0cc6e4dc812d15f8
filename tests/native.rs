//! Guests in C and Go: what their SDKs send and take back, how they fail, and that they build to the same bytes.
//! Never skips a language whose tools are missing: the test fails and says what to type.

use crate::languages::tools;
use arrow::{array::*, buffer::NullBuffer};
use restitch::{
    config::Limits,
    time::{DAY_US, END_US, MIN_US},
    transform::{Cache, Context, Engine, Level, Transform, TransformError},
};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

const LANGUAGES: [&str; 2] = ["c", "go"];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn temporary() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(Cache::Folder(temporary().join("compiled"))).unwrap());

fn committed(language: &str) -> PathBuf {
    root().join("tests/guests/1.0.0").join(format!("every-type-{language}.wasm.zst"))
}

fn load(language: &str) -> Transform {
    let packed = std::fs::read(committed(language)).unwrap();
    ENGINE.load(&zstd::decode_all(packed.as_slice()).unwrap()).unwrap()
}

fn built(language: &str) -> Vec<u8> {
    let file = temporary().join(format!("every-type-{language}.wasm"));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_restitch"));
    command.args(["transform", "build", "-o"]).arg(&file).arg(root().join("plugins").join(language).join("every-type"));
    let output = command.env("RESTITCH_TOOLS", tools()).output().unwrap();
    assert!(output.status.success(), "{language}: {}", String::from_utf8_lossy(&output.stderr));
    std::fs::read(file).unwrap()
}

fn context(parameters: &[(&str, &str)]) -> Context {
    Context {
        partition: "2026-05-01".into(),
        start_us: 1_777_593_600_000_000,
        end_us: 1_777_680_000_000_000,
        time_zone: "UTC".into(),
        as_of_us: 1_780_000_000_000_000,
        seed: u64::MAX - 1,
        parameters: parameters.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect(),
    }
}

fn batch(transform: &Transform, input: usize, columns: Vec<ArrayRef>) -> RecordBatch {
    let fields: Vec<_> = transform.descriptor().inputs[input].fields.iter().map(|f| f.arrow(None)).collect();
    RecordBatch::try_new(Arc::new(arrow::datatypes::Schema::new(fields)), columns).unwrap()
}

/// Three rows at either end of every type; none, or all but `id`, are null where `nulls` says so.
fn rows(transform: &Transform, nulls: Option<[bool; 3]>, texts: [&str; 3]) -> RecordBatch {
    let max = 10i128.pow(38) - 1;
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from(vec![i64::MIN, 0, i64::MAX])),
        Arc::new(BooleanArray::from(vec![true, false, true])),
        Arc::new(Int32Array::from(vec![i32::MIN, -1, i32::MAX])),
        Arc::new(Int64Array::from(vec![i64::MIN, -1, i64::MAX])),
        Arc::new(Float32Array::from(vec![f32::NEG_INFINITY, 0.0, f32::MIN_POSITIVE])),
        Arc::new(Float64Array::from(vec![f64::INFINITY, f64::NAN, 5e-324])),
        Arc::new(Decimal128Array::from(vec![-max, 1, max]).with_precision_and_scale(38, 9).unwrap()),
        Arc::new(StringArray::from(texts.to_vec())),
        Arc::new(StringArray::from(vec!["null", r#"{"a":[1,"\u0000"]}"#, "\"\u{1F600}\""])),
        Arc::new(BinaryArray::from(vec![b"".as_slice(), b"\0\xff", b"\x80"])),
        Arc::new(Date32Array::from(vec![(MIN_US / DAY_US) as i32, 0, (END_US / DAY_US) as i32 - 1])),
        Arc::new(Time64MicrosecondArray::from(vec![0, 1, 86_399_999_999])),
        Arc::new(TimestampMicrosecondArray::from(vec![MIN_US, 0, END_US - 1]).with_timezone("UTC")),
    ];
    let hide = |(i, column): (usize, ArrayRef)| match nulls {
        Some(nulls) if i > 0 => {
            let valid = NullBuffer::from(nulls.map(|n| !n).to_vec());
            make_array(column.to_data().into_builder().nulls(Some(valid)).build().unwrap())
        }
        _ => column,
    };
    batch(transform, 0, columns.into_iter().enumerate().map(hide).collect())
}

fn names(transform: &Transform, names: &[(i64, Option<&str>)]) -> RecordBatch {
    let keys = Int64Array::from_iter_values(names.iter().map(|n| n.0));
    let texts: StringArray = names.iter().map(|n| n.1).collect();
    batch(transform, 1, vec![Arc::new(keys), Arc::new(texts)])
}

fn number(batch: &RecordBatch, column: &str, row: usize) -> i64 {
    batch.column_by_name(column).unwrap().as_primitive::<arrow::datatypes::Int64Type>().value(row)
}

/// Pushes batches and returns what comes back at once, and then the batch at the end.
fn run(
    transform: &Transform,
    parameters: &[(&str, &str)],
    batches: &[(u32, RecordBatch)],
) -> Result<(Vec<RecordBatch>, RecordBatch), TransformError> {
    let limits = Limits { time_ms_max: 60_000, ..Limits::default() };
    let mut instance = transform.start(&context(parameters), &limits)?;
    let mut returned = Vec::new();
    for (input, batch) in batches {
        returned.extend(instance.push(*input, batch)?);
    }
    let end = instance.finish()?.expect("a batch at the end");
    assert!(instance.finish()?.is_none());
    Ok((returned, end))
}

#[test]
fn every_type_crosses_there_and_back() {
    for transform in LANGUAGES.map(load) {
        let texts = ["", "a\0b", "\u{10FFFF}z"];
        let lookup = names(&transform, &[(0, Some("old")), (0, Some("new")), (i64::MAX, Some("")), (i64::MIN, Some("x"))]);
        let later = names(&transform, &[(i64::MIN, None)]);
        let inputs = [None, Some([true; 3]), Some([false, true, false])].map(|nulls| rows(&transform, nulls, texts));
        let empty = inputs[0].slice(0, 0);
        let mut pushed = vec![(1, lookup), (1, later), (0, empty)];
        pushed.extend(inputs.iter().cloned().map(|b| (0, b)));
        let (returned, end) = run(&transform, &[("label", "ü")], &pushed).unwrap();
        assert_eq!(returned.len(), 3);
        for (k, (sent, got)) in inputs.iter().zip(&returned).enumerate() {
            for (a, b) in sent.columns().iter().zip(got.columns()) {
                assert_eq!(a, b, "batch {k}");
            }
            let name = got.column_by_name("name").unwrap().as_string::<i32>();
            assert_eq!(name.iter().collect::<Vec<_>>(), [None, Some("new"), Some("")]);
            assert_eq!((number(got, "seen", 0), number(got, "seed", 1)), (3 * k as i64, -2));
            assert_eq!(got.column_by_name("label").unwrap().as_string::<i32>().value(2), "ü");
        }
        // Row by row is the same as all at once.
        let single: Vec<_> = inputs.iter().flat_map(|b| (0..3).map(|i| (0, b.slice(i, 1)))).collect();
        let (_, end_of_single) = run(&transform, &[("label", "ü")], &single).unwrap();
        assert_eq!(end, end_of_single);
        assert_eq!((number(&end, "id", 0), number(&end, "i64", 0), number(&end, "seen", 0)), (-1, -3, 9));
        assert_eq!(end.column_by_name("dec").unwrap().as_primitive::<arrow::datatypes::Decimal128Type>().value(0), 1);
        assert_eq!(end.column_by_name("text").unwrap().as_string::<i32>().value(0), "a\u{10FFFF}\u{10FFFF}");
        assert!(end.column_by_name("flag").unwrap().is_null(0));
        let (_, nothing) = run(&transform, &[], &[]).unwrap();
        assert_eq!((nothing.num_rows(), number(&nothing, "seen", 0), number(&nothing, "i64", 0)), (1, 0, 0));
    }
}

#[test]
fn failures_name_the_row_the_parameter_and_the_panic() {
    for (language, transform) in LANGUAGES.map(|l| (l, load(l))) {
        let fail = |texts: [&str; 3]| run(&transform, &[], &[(0, rows(&transform, None, texts))]).unwrap_err();
        assert_eq!(fail(["a", "refuse", "b"]).to_string(), "input \"rows\", row 1 of the batch: refused", "{language}");
        let error = run(&transform, &[("scale", "1.5")], &[]).unwrap_err().to_string();
        assert!(error.contains("scale: not a whole number"), "{language}: {error}");
        let error = format!("{:?}", fail(["a", "b", "panic"]));
        assert!(error.contains("boom"), "{language}: {error}");
        let most = rows(&transform, None, ["", "", ""]).slice(2, 1);
        let error = run(&transform, &[], &[(0, most.clone()), (0, most)]).unwrap_err().to_string();
        assert!(error.contains("decimal overflow"), "{language}: {error}");
    }
}

#[test]
fn limits_end_what_never_ends() {
    for (language, transform) in LANGUAGES.map(|l| (l, load(l))) {
        let hit = |text: &str, limits: &Limits| {
            let mut instance = transform.start(&context(&[]), limits).unwrap();
            instance.push(0, &rows(&transform, None, [text, "", ""])).unwrap_err()
        };
        let error = hit("loop", &Limits { time_ms_max: 300, ..Limits::default() });
        assert!(matches!(error, TransformError::Time { .. }), "{language}: {error}");
        let error = hit("grow", &Limits { memory_bytes_max: 64 << 20, time_ms_max: 60_000, ..Limits::default() });
        assert!(matches!(error, TransformError::Memory { .. }), "{language}: {error}");
    }
}

#[test]
fn the_log_says_that_it_began() {
    for transform in LANGUAGES.map(load) {
        let instance = transform.start(&context(&[]), &Limits::default()).unwrap();
        assert_eq!(instance.log_lines().iter().map(|l| (l.level, l.message.as_str())).collect::<Vec<_>>(), [(Level::Info, "begin 2026-05-01")]);
    }
}

/// What the SDK in Go does without a host: decimals, rows and columns.
#[test]
fn the_go_sdk_passes_its_own_tests() {
    let mut command = std::process::Command::new(tools().join("bin/go"));
    command.current_dir(root().join("plugins/sdk/go")).args(["test", "./..."]);
    for (name, value) in [("GOFLAGS", ""), ("GOWORK", "off"), ("GOPROXY", "off"), ("GOTOOLCHAIN", "local")] {
        command.env(name, value);
    }
    command.env("GOCACHE", temporary().join("go-cache")).env("GOPATH", temporary().join("go-path")).env("XDG_CONFIG_HOME", temporary());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
}

/// `RESTITCH_BLESS=1 cargo test the_same_sources_build` writes what the test would compare.
#[test]
fn the_same_sources_build_to_the_same_bytes() {
    for language in LANGUAGES {
        let bytes = built(language);
        if std::env::var_os("RESTITCH_BLESS").is_some() {
            std::fs::create_dir_all(committed(language).parent().unwrap()).unwrap();
            std::fs::write(committed(language), zstd::encode_all(bytes.as_slice(), 19).unwrap()).unwrap();
        }
        let kept = zstd::decode_all(std::fs::read(committed(language)).unwrap().as_slice()).unwrap();
        assert!(bytes == kept, "{language}: {} bytes built, {} kept, and they differ", bytes.len(), kept.len());
    }
}
