//! Guests in the sandbox: what good ones return, what bad ones are told, and that components rebuild to the same bytes.
//! Never lets a hostile guest touch the engine: after every one, a good one still runs.

use arrow::{
    array::*,
    util::display::{ArrayFormatter, FormatOptions},
};
use restitch::{
    config::Limits,
    id::Digest,
    schema::Field,
    transform::{Cache, Context, Engine, Level, Transform, TransformError, build},
};
use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{Arc, LazyLock},
};

/// Folder under plugins/, and the file it is committed as.
const GUESTS: [(&str, &str); 11] = [
    ("rust/customer-totals", "customer-totals-1.0.0.wasm"),
    ("rust/customer-totals-1-1", "customer-totals-1.1.0.wasm"),
    ("rust/clean-orders", "clean-orders-1.0.0.wasm"),
    ("rust/enrich-orders", "enrich-orders-1.0.0.wasm"),
    ("rust/quake-stats", "quake-stats-1.0.0.wasm"),
    ("rust/order-totals", "order-totals-1.0.0.wasm"),
    ("rust/echo", "echo-1.0.0.wasm"),
    ("misbehave", "misbehave-1.0.0.wasm"),
    ("misbehave-rows", "misbehave-rows-1.0.0.wasm"),
    ("misbehave-sockets", "misbehave-sockets-1.0.0.wasm"),
    ("misbehave-batches", "misbehave-batches-1.0.0.wasm"),
];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn temporary() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn component(file: &str) -> Vec<u8> {
    std::fs::read(root().join("plugins/components").join(file)).unwrap()
}

/// One engine for all, its cache kept between runs: compiling in a debug build is slow.
pub static ENGINE: LazyLock<Engine> = LazyLock::new(|| Engine::new(Cache::Folder(temporary().join("compiled"))).unwrap());

fn load(file: &str) -> Transform {
    ENGINE.load(&component(file)).unwrap()
}

fn context(parameters: &[(&str, &str)]) -> Context {
    Context {
        partition: "2026-05-01".into(),
        start_us: 1_777_593_600_000_000,
        end_us: 1_777_680_000_000_000,
        time_zone: "UTC".into(),
        as_of_us: 1_780_000_000_000_000,
        seed: 7,
        parameters: parameters.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect(),
    }
}

/// Runs one partition and returns its rows as text, columns separated by bars.
fn run(transform: &Transform, parameters: &[(&str, &str)], limits: &Limits, inputs: &[(u32, RecordBatch)]) -> Result<Vec<String>, TransformError> {
    let mut instance = transform.start(&context(parameters), limits)?;
    let mut rows = Vec::new();
    for (input, batch) in inputs {
        rows.extend(instance.push(*input, batch)?.iter().flat_map(texts));
    }
    while let Some(batch) = instance.finish()? {
        rows.extend(texts(&batch));
    }
    Ok(rows)
}

fn texts(batch: &RecordBatch) -> Vec<String> {
    let options = FormatOptions::new().with_null("null");
    let columns: Vec<_> = batch.columns().iter().map(|c| ArrayFormatter::try_new(c.as_ref(), &options).unwrap()).collect();
    (0..batch.num_rows()).map(|row| columns.iter().map(|c| c.value(row).to_string()).collect::<Vec<_>>().join("|")).collect()
}

fn batch(fields: &[Field], columns: Vec<ArrayRef>) -> RecordBatch {
    let schema = arrow::datatypes::Schema::new(fields.iter().map(|f| f.arrow(None)).collect::<Vec<_>>());
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

/// Orders: id, customer, cents.
fn orders(transform: &Transform, rows: &[(&str, Option<&str>, Option<i128>)]) -> RecordBatch {
    let times = TimestampMicrosecondArray::from(vec![1_777_593_600_000_000; rows.len()]).with_timezone("UTC");
    let amounts: Decimal128Array = rows.iter().map(|r| r.2).collect();
    let columns: Vec<ArrayRef> = vec![
        Arc::new(StringArray::from_iter_values(rows.iter().map(|r| r.0))),
        Arc::new(times),
        Arc::new(rows.iter().map(|r| r.1).collect::<StringArray>()),
        Arc::new(amounts.with_precision_and_scale(18, 2).unwrap()),
    ];
    batch(&transform.descriptor().inputs[0].fields, columns)
}

const ORDERS: [(&str, Option<&str>, Option<i128>); 5] =
    [("e1", Some("B"), Some(2500)), ("e2", Some("A"), Some(1000)), ("e3", None, Some(1)), ("e4", Some("A"), None), ("e5", Some("A"), Some(-250))];

#[test]
fn customer_totals_sum_exactly_whatever_the_batches() {
    let transform = load("customer-totals-1.0.0.wasm");
    let all = orders(&transform, &ORDERS);
    let expected = ["null|1|0.01|EUR", "A|3|7.50|EUR", "B|1|25.00|EUR"];
    assert_eq!(run(&transform, &[], &Limits::default(), &[(0, all.clone())]).unwrap(), expected);
    let rows: Vec<_> = (0..5).rev().map(|i| (0, all.slice(i, 1))).collect();
    assert_eq!(run(&transform, &[], &Limits::default(), &rows).unwrap(), expected);
    assert!(run(&transform, &[], &Limits::default(), &[]).unwrap().is_empty());
}

#[test]
fn a_newer_version_is_another_transform() {
    let (old, new) = (load("customer-totals-1.0.0.wasm"), load("customer-totals-1.1.0.wasm"));
    assert_eq!(old.descriptor().name, new.descriptor().name);
    assert_eq!((old.descriptor().version.as_str(), new.descriptor().version.as_str()), ("1.0.0", "1.1.0"));
    assert_ne!(old.digest(), new.digest());
    let all = orders(&new, &ORDERS);
    let rows = run(&new, &[("currency", "USD")], &Limits::default(), &[(0, all)]).unwrap();
    assert_eq!(rows, ["null|1|0.01|USD", "A|2|10.00|USD", "B|1|25.00|USD"]);
}

#[test]
fn a_transform_says_what_it_is() {
    let transform = load("customer-totals-1.0.0.wasm");
    let d = transform.descriptor();
    let fields = |fields: &[Field]| fields.iter().map(Field::to_string).collect::<Vec<_>>();
    assert_eq!(
        fields(&d.inputs[0].fields),
        ["event_id string not null", "event_time timestamp not null", "customer_id string", "amount decimal(18,2)"]
    );
    assert_eq!(fields(&d.output), ["customer_id string", "orders int64 not null", "total decimal(38,2) not null", "currency string not null"]);
    assert_eq!((d.key.as_slice(), d.parameters[0].default.as_deref()), (["customer_id".to_owned()].as_slice(), Some("EUR")));
    assert_eq!(transform.digest(), Digest::of(&component("customer-totals-1.0.0.wasm")));
    assert!(ENGINE.describe_config().starts_with("wasmtime 48."), "{}", ENGINE.describe_config());
}

#[test]
fn clean_orders_streams_and_says_what_it_did() {
    let transform = load("clean-orders-1.0.0.wasm");
    let all = orders(&transform, &[(" e1", Some("a "), Some(5)), ("e2", None, None)]);
    let mut instance = transform.start(&context(&[]), &Limits::default()).unwrap();
    let rows = texts(&instance.push(0, &all).unwrap().unwrap());
    assert_eq!(rows, ["e1|2026-05-01T00:00:00Z|A|0.05|trimmed,capitals", "e2|2026-05-01T00:00:00Z|null|0.00|default amount"]);
    assert!(instance.finish().unwrap().is_none());
    assert!(instance.boundary_ns() > 0);
    let bad = orders(&transform, &[("e1", None, None), (" ", None, None)]);
    let error = run(&transform, &[], &Limits::default(), &[(0, bad)]).unwrap_err();
    assert_eq!(error.to_string(), "input \"orders\", row 1 of the batch: event_id is blank");
}

#[test]
fn enrich_orders_looks_customers_up() {
    let transform = load("enrich-orders-1.0.0.wasm");
    let customers: Vec<ArrayRef> = vec![Arc::new(StringArray::from(vec!["A", "B"])), Arc::new(StringArray::from(vec![Some("DE"), None]))];
    let customers = batch(&transform.descriptor().inputs[1].fields, customers);
    let all = orders(&transform, &ORDERS);
    let rows = run(&transform, &[], &Limits::default(), &[(1, customers), (0, all)]).unwrap();
    assert_eq!(rows, ["DE|3|7.50", "unknown|2|25.01"]);
}

#[test]
fn quake_stats_do_not_depend_on_row_order() {
    let transform = load("quake-stats-1.0.0.wasm");
    let (magnitudes, depths) = ([Some(2.0), Some(2.9), None, Some(-0.5)], [Some(0.1), Some(0.2), Some(0.3), None]);
    let quakes = |order: [usize; 4]| {
        let text = |s: &str| Arc::new(StringArray::from(vec![s; 4])) as ArrayRef;
        let pick = |from: [Option<f64>; 4]| Arc::new(order.iter().map(|&i| from[i]).collect::<Float64Array>()) as ArrayRef;
        let times = TimestampMicrosecondArray::from(vec![0; 4]).with_timezone("UTC");
        let columns = vec![text("q"), Arc::new(times) as ArrayRef, pick(magnitudes), pick(depths), text("p"), text("earthquake")];
        run(&transform, &[], &Limits::default(), &[(0, batch(&transform.descriptor().inputs[0].fields, columns))]).unwrap()
    };
    assert_eq!(quakes([0, 1, 2, 3]), ["unknown|1|null|0.3", "-1-0|1|-0.5|null", "2-3|2|2.9|0.15"]);
    assert_eq!(quakes([0, 1, 2, 3]), quakes([3, 2, 1, 0]));
}

fn misbehave(how: &str, limits: &Limits) -> Result<Vec<String>, TransformError> {
    static TRANSFORM: LazyLock<Transform> = LazyLock::new(|| load("misbehave-1.0.0.wasm"));
    let rows = batch(&TRANSFORM.descriptor().inputs[0].fields, vec![Arc::new(Int64Array::from(vec![1, 2]))]);
    let result = run(&TRANSFORM, &[("how", how)], limits, &[(0, rows.clone())]);
    let good = run(&TRANSFORM, &[], &Limits::default(), &[(0, rows)]).unwrap();
    assert_eq!(good.len(), 3, "the engine is fine after {how}");
    result
}

/// Small enough that every bomb goes off soon.
const TIGHT: Limits = Limits { memory_bytes_max: 64 << 20, time_ms_max: 300, output_bytes_max: 8 << 20, log_bytes_max: 4 << 10, fuel_max: None };

#[test]
fn every_limit_ends_a_bomb_and_names_its_key() {
    let table = [
        ("loop-in-begin", "it ran longer than 300 ms (limits.time)"),
        ("loop-in-push", "it ran longer than 300 ms (limits.time)"),
        ("loop-in-finish", "it ran longer than 300 ms (limits.time)"),
        ("log-for-ever", "it ran longer than 300 ms (limits.time)"),
        ("allocate", "it needs more than 67108864 bytes of memory (limits.memory)"),
        ("endless-output", "it returned more than 8388608 bytes (limits.output)"),
        ("endless-empty", "it returned more than 8388608 bytes (limits.output)"),
    ];
    for (how, expected) in table {
        // Only loops may run out of time: a bomb must hit its own limit on a slow machine too.
        let time_ms_max = if how.starts_with("lo") { TIGHT.time_ms_max } else { 60_000 };
        let error = misbehave(how, &Limits { time_ms_max, ..TIGHT }).unwrap_err();
        assert_eq!(error.to_string(), expected, "{how}");
        assert!(error.hint().is_some());
    }
}

#[test]
fn a_batch_larger_than_the_output_limit_is_not_lifted() {
    let limits = Limits { memory_bytes_max: 1 << 30, time_ms_max: 60_000, output_bytes_max: 1 << 20, log_bytes_max: 0, fuel_max: None };
    let error = misbehave("huge-batch", &limits).unwrap_err();
    assert!(matches!(error, TransformError::Output { limit_bytes: 1_048_576 }), "{error}");
}

#[test]
fn a_death_tells_the_message_and_the_place() {
    let TransformError::Trap { message, frames, log_tail } = misbehave("panic", &Limits::default()).unwrap_err() else { panic!() };
    assert!(message.starts_with("panicked at misbehave/src/lib.rs:") && message.ends_with("the customer 7 has no name"), "{message}");
    assert_eq!(frames, ["restitch:transform/transform@1.0.0#push"]);
    assert_eq!(log_tail.last().unwrap().level, Level::Error);
    for (how, end, frame) in [("panic-in-begin", "no day like 2026-05-01", "#begin"), ("panic-in-finish", "no end", "#finish")] {
        let error = misbehave(how, &Limits::default()).unwrap_err();
        let hint = error.hint().unwrap();
        assert!(error.to_string().ends_with(end) && hint.contains(frame) && hint.contains("the last lines of its log:\n  error"), "{error} {hint}");
    }
    for (how, expected, frame) in [("recurse", "call stack exhausted", "misbehave::recurse"), ("divide", "attempt to divide by zero", "#push")] {
        let TransformError::Trap { message, frames, .. } = misbehave(how, &Limits::default()).unwrap_err() else { panic!("{how}") };
        assert!(message.contains(expected) && frames.iter().any(|f| f.contains(frame)), "{how}: {message} {frames:?}");
    }
}

#[test]
fn broken_batches_are_refused_with_the_column() {
    let table = [
        ("missing-column", "5 columns instead of 6"),
        ("extra-column", "7 columns instead of 6"),
        ("short-values", "column \"id\": 23 bytes of values for 3 rows, not 24"),
        ("long-values", "column \"id\": 25 bytes of values for 3 rows, not 24"),
        ("short-validity", "column \"text\": 1 bytes of validity for 9 rows, not 2"),
        ("null-key", "column \"id\": a null in row 1, and the column may have none"),
        ("broken-offsets", "column \"text\": the last offset is 7, and there are 6 bytes of values"),
        ("late-offsets", "column \"text\": the first offset is 2, not 0"),
        ("falling-offsets", "column \"text\": offsets fall in row 1, from 4 to 2"),
        ("missing-offsets", "column \"text\": 0 bytes of offsets for 3 rows, not 16"),
        ("stray-offsets", "column \"id\": 16 bytes of offsets for 3 rows, not 0"),
        ("bad-utf8", "column \"text\": the text in row 1 is not UTF-8"),
        ("bad-json", "column \"json\": the text in row 0 is not JSON"),
        ("bad-time", "column \"at\": the time in row 0 is not within a day"),
        ("many-digits", "column \"amount\": the decimal in row 0 has more than 4 digits"),
        ("many-rows", "column \"id\": 24 bytes of values for 4294967295 rows, not 34359738360"),
    ];
    for (how, expected) in table {
        let error = misbehave(how, &Limits::default()).unwrap_err();
        assert_eq!(error.to_string(), format!("it returned a broken batch: {expected}"), "{how}");
    }
}

#[test]
fn a_guest_may_give_up_for_a_reason() {
    assert_eq!(misbehave("fail-row", &TIGHT).unwrap_err().to_string(), "input \"rows\", row 1 of the batch: it is odd");
    assert_eq!(misbehave("fail-parameters", &TIGHT).unwrap_err().to_string(), "parameter: how = \"fail-parameters\"");
    assert_eq!(misbehave("fail-other", &TIGHT).unwrap_err().to_string(), "no reason");
    // Its words are cut as those of its log are.
    let (transform, currency) = (load("customer-totals-1.0.0.wasm"), "é".repeat(20_000));
    let error = run(&transform, &[("currency", &currency)], &Limits::default(), &[]).unwrap_err().to_string();
    assert!((8_000..8_300).contains(&error.len()) && error.starts_with("parameter: currency ") && error.ends_with("é…"), "{} {error}", error.len());
}

#[test]
fn a_flooded_log_keeps_its_end_and_changes_no_result() {
    let transform = load("misbehave-1.0.0.wasm");
    let limits = Limits { log_bytes_max: 1 << 10, ..Limits::default() };
    let rows = batch(&transform.descriptor().inputs[0].fields, vec![Arc::new(Int64Array::from(vec![1]))]);
    let mut instance = transform.start(&context(&[("how", "log-flood")]), &limits).unwrap();
    instance.push(0, &rows).unwrap();
    assert_eq!(instance.log_lines().last().unwrap().message, "line 199999");
    assert!(instance.log_lines().len() < 50 && instance.log_lines_dropped() > 199_900);
    let mut instance = transform.start(&context(&[("how", "log-line")]), &Limits::default()).unwrap();
    instance.push(0, &rows).unwrap();
    assert!(instance.log_lines()[0].message.len() < 9_000);
}

#[test]
fn every_partition_has_a_fresh_instance() {
    let transform = load("misbehave-1.0.0.wasm");
    for _ in 0..3 {
        let mut instance = transform.start(&context(&[("how", "state")]), &Limits::default()).unwrap();
        instance.finish().unwrap();
        assert_eq!(instance.log_lines()[0].message, "begun 1 times");
    }
}

#[test]
fn the_same_answer_comes_every_time() {
    let answer = || misbehave("another-answer", &Limits::default()).unwrap();
    let first = answer();
    assert_eq!((first.len(), first[2].starts_with("1|")), (3, true), "{first:?}");
    assert_eq!(answer(), first);
    // Neither another engine nor another compilation shows.
    let fresh = Engine::new(Cache::Off).unwrap().load(&component("misbehave-1.0.0.wasm")).unwrap();
    let rows = batch(&fresh.descriptor().inputs[0].fields, vec![Arc::new(Int64Array::from(vec![1, 2]))]);
    assert_eq!(run(&fresh, &[("how", "another-answer")], &Limits::default(), &[(0, rows)]).unwrap(), first);
}

#[test]
fn fuel_is_counted_alike_every_time_and_only_where_it_is_asked_for() {
    static METERED: LazyLock<Engine> = LazyLock::new(|| Engine::metered(Cache::Folder(temporary().join("compiled"))).unwrap());
    assert_ne!(METERED.describe_config(), ENGINE.describe_config());
    let transform = METERED.load(&component("customer-totals-1.0.0.wasm")).unwrap();
    let all = orders(&transform, &ORDERS);
    let with = |fuel_max| run(&transform, &[], &Limits { fuel_max, ..Limits::default() }, &[(0, all.clone())]);
    // The least that is enough, found twice.
    let least = || {
        let (mut low, mut high) = (0u64, 10_000_000u64);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if with(Some(middle)).is_ok() { high = middle } else { low = middle }
        }
        high
    };
    let enough = least();
    assert_eq!(least(), enough);
    assert_eq!(with(Some(enough)).unwrap(), with(None).unwrap());
    let error = with(Some(enough - 1)).unwrap_err();
    assert_eq!(error.to_string(), format!("it executed more than {} instructions (limits.fuel)", enough - 1));
    assert!(error.hint().unwrap().contains("limits.fuel"));
    // An engine that does not count refuses, instead of running without a limit.
    let unmetered = load("customer-totals-1.0.0.wasm");
    let error = run(&unmetered, &[], &Limits { fuel_max: Some(enough), ..Limits::default() }, &[(0, all.clone())]).unwrap_err();
    assert!(error.to_string().contains("does not count"), "{error}");
}

/// A line of /proc/self/status, as a number.
fn of_this_process(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found = status.lines().find_map(|l| l.strip_prefix(line)?.strip_prefix(':')?.split_whitespace().next()?.parse().ok());
    found.unwrap_or(0)
}

/// Runs by itself in a process of its own: other tests make threads and take memory too.
#[test]
fn after_every_bad_guest_memory_and_threads_are_back_to_normal() {
    const ALONE: &str = "RESTITCH_ALONE";
    if std::env::var_os(ALONE).is_none() {
        let name = "guests::after_every_bad_guest_memory_and_threads_are_back_to_normal";
        let out =
            std::process::Command::new(std::env::current_exe().unwrap()).args(["--exact", name, "--nocapture"]).env(ALONE, "1").output().unwrap();
        assert!(out.status.success(), "{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
        return;
    }
    let ways = load("misbehave-1.0.0.wasm").descriptor().parameters[0].help.clone();
    let ways: Vec<&str> = ways.split(", ").collect();
    assert!(ways.len() > 35, "{ways:?}");
    let limits = Limits { time_ms_max: 100, ..TIGHT };
    let round = || ways.iter().for_each(|how| drop(misbehave(how, &limits)));
    round();
    let before = (of_this_process("Threads"), of_this_process("VmRSS"));
    (0..4).for_each(|_| round());
    let after = (of_this_process("Threads"), of_this_process("VmRSS"));
    assert_eq!(after.0, before.0, "threads");
    // A leak of one bomb in each round would be 64 MiB each.
    assert!(after.1 < before.1 + (48 << 10), "KiB resident: {} before, {} after", before.1, after.1);
}

#[test]
fn a_description_that_makes_no_sense_is_refused() {
    let whole = component("misbehave-1.0.0.wasm");
    // The texts of `describe` are data of the component: what it says is changed without another build of it.
    let say = |old: &str, new: &str| {
        assert_eq!(old.len(), new.len());
        let mut bytes = whole.clone();
        let places: Vec<usize> = (0..bytes.len() - old.len()).filter(|at| bytes[*at..].starts_with(old.as_bytes())).collect();
        assert!(!places.is_empty(), "{old}");
        places.iter().for_each(|at| bytes[*at..*at + old.len()].copy_from_slice(new.as_bytes()));
        ENGINE.load(&bytes).unwrap_err().to_string()
    };
    assert!(say("amount", "_mount").contains("the output column \"_mount\" starts with '_'"));
    assert!(say("amount", "a\u{7}ount").contains("a column \"a\\u{7}ount\": not a name"));
    assert!(say("1.0.0", "1 0 0").contains("restitch") || say("1.0.0", "1 0 0").contains("the version \"1 0 0\""));
}

#[test]
fn a_batch_for_another_schema_is_refused_before_the_guest_sees_it() {
    let transform = load("misbehave-1.0.0.wasm");
    let field = Field::new("id", restitch::schema::DataType::Int32, false);
    let wrong = batch(&[field], vec![Arc::new(Int32Array::from(vec![1]))]);
    let mut instance = transform.start(&context(&[]), &Limits::default()).unwrap();
    assert_eq!(instance.push(0, &wrong).unwrap_err().to_string(), "input \"rows\": column \"id\": Int32 instead of Int64");
    assert_eq!(instance.push(1, &wrong).unwrap_err().to_string(), "input \"1\": the transform has 1 inputs");
}

#[test]
fn parameters_are_checked_by_both_sides() {
    let transform = load("customer-totals-1.0.0.wasm");
    let error = |parameters: &[(&str, &str)]| transform.start(&context(parameters), &Limits::default()).err().unwrap().to_string();
    assert_eq!(error(&[("curency", "USD")]), "parameter: there is no parameter \"curency\"; did you mean \"currency\"?");
    assert_eq!(error(&[("currency", "euro")]), "parameter: currency = \"euro\": not three capital letters such as EUR");
}

#[test]
fn an_import_that_is_not_granted_is_named() {
    let error = ENGINE.load(&component("misbehave-sockets-1.0.0.wasm")).unwrap_err();
    assert_eq!(error.to_string(), "it imports restitch:evil/sockets; a transform may import restitch:transform/log@1.0.0 and nothing else");
    assert!(error.hint().unwrap().contains("remove the import"));
}

/// A component that exports an empty instance of that name, written by hand.
fn component_exporting(name: &str) -> Vec<u8> {
    let mut bytes = b"\0asm\x0d\0\x01\0".to_vec();
    // Component instances: one, with no exports of its own.
    bytes.extend([5, 3, 1, 1, 0]);
    let mut export = vec![1, 0, name.len() as u8];
    export.extend(name.as_bytes());
    // Sort "instance", index 0, no type.
    export.extend([5, 0, 0]);
    bytes.extend([11, export.len() as u8]);
    bytes.extend(export);
    bytes
}

#[test]
fn another_world_or_version_is_named() {
    let refuse = |name: &str| ENGINE.load(&component_exporting(name)).unwrap_err().to_string();
    let newer = "it speaks restitch:transform@2.0.0; this restitch 0.1.0 speaks 1.0.0; restitch 2.0.0 or later understands it";
    assert_eq!(refuse("restitch:transform/transform@2.0.0"), newer);
    let stray = "it speaks restitch:transform@0.9.0; this restitch 0.1.0 speaks 1.0.0; that version was never released";
    assert_eq!(refuse("restitch:transform/transform@0.9.0"), stray);
    let other = "it is not a transform: it exports wasi:cli/run@0.2.0, not restitch:transform/transform@1.0.0";
    assert_eq!(refuse("wasi:cli/run@0.2.0"), other);
    assert!(refuse("restitch:transform/transform@1.0.0").starts_with("it is not a transform"));
}

#[test]
fn a_damaged_component_is_refused_and_nothing_panics() {
    let whole = component("customer-totals-1.0.0.wasm");
    for length in [9, 100, whole.len() / 2, whole.len() - 1] {
        let error = ENGINE.load(&whole[..length]).unwrap_err();
        assert!(matches!(error, TransformError::NotComponent { .. }), "{length}: {error}");
    }
    // A flipped byte may still be a valid component, in code that never runs; it must not do anything worse than fail.
    for at in (8..whole.len()).step_by(whole.len() / 5) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x55;
        let _ = ENGINE.load(&bytes);
    }
}

/// Random damage, repeatable: RESTITCH_FUZZ_CASES says how often, RESTITCH_FUZZ_SEED from where. Whatever loads is run under limits.
#[test]
fn mutated_components_do_nothing_worse_than_fail() {
    let number = |name: &str, default: u64| std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default);
    let (cases, seed) = (number("RESTITCH_FUZZ_CASES", 40), number("RESTITCH_FUZZ_SEED", 1).max(1));
    let mut random = crate::support::Random(seed);
    // Not the one with a cache: damaged components are not worth keeping.
    let engine = Engine::new(Cache::Off).unwrap();
    let wholes = ["customer-totals-1.0.0.wasm", "misbehave-rows-1.0.0.wasm"].map(component);
    let (mut loaded, mut refused) = (0, 0);
    for case in 0..cases {
        let mut bytes = wholes[random.below(wholes.len())].clone();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] ^= 1 << random.below(8),
                1 => bytes[at] = random.below(256) as u8,
                2 => bytes.truncate(at.max(8)),
                _ => drop(bytes.splice(at..at + random.below(bytes.len() - at).min(64), [])),
            }
        }
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| match engine.load(&bytes) {
            Err(error) => !error.to_string().is_empty(),
            Ok(transform) => {
                let fields = transform.descriptor().inputs[0].fields.clone();
                let schema = arrow::datatypes::Schema::new(fields.iter().map(|f| f.arrow(None)).collect::<Vec<_>>());
                run(&transform, &[], &TIGHT, &[(0, RecordBatch::new_empty(Arc::new(schema)))]).ok();
                false
            }
        }));
        match result {
            Ok(true) => refused += 1,
            Ok(false) => loaded += 1,
            Err(_) => panic!("case {case} of seed {seed} panicked the host"),
        }
    }
    assert!(refused > 0 && loaded + refused == cases, "{loaded} {refused}");
}

#[test]
fn a_core_module_instead_of_a_component_is_refused_with_the_way_out() {
    let error = ENGINE.load(b"\0asm\x01\0\0\0").unwrap_err();
    assert!(error.to_string().contains("a core module") && error.hint().unwrap().contains("restitch transform build DIR"), "{error}");
}

#[test]
fn a_damaged_cache_entry_is_compiled_again() {
    let folder = tempfile::tempdir().unwrap();
    let bytes = component("customer-totals-1.0.0.wasm");
    let load = || Engine::new(Cache::Folder(folder.path().into())).unwrap().load(&bytes).unwrap();
    load();
    let mut damaged = 0;
    let mut folders = vec![folder.path().to_path_buf()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap().flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path => {
                    std::fs::write(path, b"damaged").unwrap();
                    damaged += 1;
                }
            }
        }
    }
    assert!(damaged > 0);
    let transform = load();
    assert_eq!(run(&transform, &[], &Limits::default(), &[(0, orders(&transform, &ORDERS))]).unwrap().len(), 3);
}

/// Whoever can write compiled code runs as whoever loads it.
#[cfg(unix)]
#[test]
fn a_cache_that_others_can_write_is_neither_read_nor_written() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let entries = || std::fs::read_dir(folder.path()).unwrap().count();
    for (mode, used) in [(0o777, false), (0o770, false), (0o755, true)] {
        std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
        Engine::new(Cache::Folder(folder.path().into())).unwrap().load(&component("clean-orders-1.0.0.wasm")).unwrap();
        assert_eq!(entries() > 0, used, "{mode:o}");
    }
}

/// A component of a later version, as its author would bring it: every name of the contract says so.
#[test]
fn a_component_of_a_newer_contract_is_told_which_release_understands_it() {
    let mut bytes = component("customer-totals-1.0.0.wasm");
    for name in ["transform", "types", "log"] {
        let (old, new) = (format!("restitch:transform/{name}@1.0.0"), format!("restitch:transform/{name}@1.4.0"));
        let places: Vec<usize> = bytes.windows(old.len()).enumerate().filter(|(_, w)| *w == old.as_bytes()).map(|(at, _)| at).collect();
        assert!(!places.is_empty(), "{name}");
        places.into_iter().for_each(|at| bytes[at..at + new.len()].copy_from_slice(new.as_bytes()));
    }
    let error = ENGINE.load(&bytes).unwrap_err();
    assert_eq!(error.to_string(), "it speaks restitch:transform@1.4.0; this restitch 0.1.0 speaks 1.0.0; restitch 1.4.0 or later understands it");
    assert!(error.hint().unwrap().contains("restitch 1.4.0 or later"));
}

/// Copies what the guests are made of, so that the folder they are built in is another one.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap().flatten() {
        match entry.path() {
            path if path.is_dir() && !["target", ".tools", "node_modules"].iter().any(|n| entry.file_name() == *n) => {
                copy(&path, &to.join(entry.file_name()))
            }
            path if path.is_file() => drop(std::fs::copy(&path, to.join(entry.file_name())).unwrap()),
            _ => {}
        }
    }
}

/// `RESTITCH_BLESS=1 cargo test components_rebuild` writes what the test would compare.
#[test]
fn components_rebuild_to_the_same_bytes() {
    let elsewhere = temporary().join("some/where/else");
    copy(&root().join("plugins"), &elsewhere.join("plugins"));
    copy(&root().join("wit"), &elsewhere.join("wit"));
    std::fs::copy(root().join("rust-toolchain.toml"), elsewhere.join("rust-toolchain.toml")).unwrap();
    let bless = std::env::var_os("RESTITCH_BLESS").is_some();
    // Blessed bytes come from the checkout itself, compared ones from the copy: both have to agree.
    let base: PathBuf = if bless { root().into() } else { elsewhere };
    let components = root().join("plugins/components");
    let mut sums = BTreeMap::new();
    for (folder, file) in GUESTS {
        let bytes = build(&base.join("plugins").join(folder), &temporary().join("guests")).unwrap_or_else(|e| panic!("{folder}: {e}"));
        if bless {
            std::fs::write(components.join(file), &bytes).unwrap();
        }
        assert_eq!(Digest::of(&bytes), Digest::of(&component(file)), "{file} is not what plugins/{folder} compiles to");
        sums.insert(file, Digest::of(&bytes));
    }
    let sums: String = sums.iter().map(|(file, digest)| format!("{digest}  {file}\n")).collect();
    if bless {
        std::fs::write(components.join("SHA256SUMS"), &sums).unwrap();
    }
    assert_eq!(std::fs::read_to_string(components.join("SHA256SUMS")).unwrap(), sums);
}
