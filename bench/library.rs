//! What only the library can show: the boundary alone, a transform in WASM and in the host, a plan over a million partitions.
//! Never compares with another tool (`bench/run` does), and asserts no time.
//!
//!     cargo bench                     all three; `cargo bench -- boundary`, `transform` or `plan` for one
//!
//! Each is a process of its own, so that the peak memory it prints is its own.

#![allow(clippy::print_stdout)]

use arrow::{
    array::{ArrayRef, AsArray, Int64Array, RecordBatch, StringArray},
    buffer::Buffer,
    datatypes::{Int64Type, Schema},
};
use chrono_tz::Tz;
use restitch::{
    catalog::{PublishedRow, Slot},
    config::Limits,
    id::{Digest, RunId, SnapshotId},
    manifest::{Kind, WriteMode},
    plan::{Facts, Request, plan},
    transform::{Cache, Context, Engine, Transform},
    window::{Calendar, Grain, Window},
};
use std::{
    collections::HashMap,
    hint::black_box,
    process::Command,
    sync::Arc,
    time::{Duration, Instant},
};

/// What the transform is in the guest: the very same file, and the same table of texts.
#[path = "../plugins/rust/order-totals/src/totals.rs"]
mod totals;
#[path = "../plugins/rust/sdk/src/map.rs"]
#[allow(dead_code, unused_imports)] // its tests stand in the same file
mod map;
#[path = "../plugins/rust/sdk/src/texts.rs"]
#[allow(dead_code, unused_imports)]
mod texts;
use map::Hasher;
use texts::{Text, Texts};

/// As the command has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const BATCH_ROWS: usize = 8_192;
const ROUNDS: usize = 11;

fn main() {
    // cargo adds `--bench`.
    let asked: Vec<String> = std::env::args().skip(1).filter(|a| !a.starts_with("--")).collect();
    match asked.as_slice() {
        [one] if one == "boundary" => boundary(),
        [one] if one == "transform" => transform(),
        [one] if one == "plan" => plans(),
        [] => ["boundary", "transform", "plan"].iter().for_each(|one| {
            let this = std::env::current_exe().expect("the path of this program");
            assert!(Command::new(this).arg(one).status().expect("this program starts").success());
        }),
        _ => panic!("boundary, transform or plan, not {asked:?}"),
    }
}

fn load(file: &str) -> Transform {
    let path = format!("{}/plugins/components/{file}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
    Engine::new(Cache::Off).and_then(|engine| engine.load(&bytes)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn context() -> Context {
    Context { partition: "2015-01-01".into(), start_us: 0, end_us: 1, time_zone: "UTC".into(), as_of_us: 0, seed: 0, parameters: vec![] }
}

/// Orders of a day as the benchmark has them, in batches, with the columns that the transform asks for.
fn orders(transform: &Transform, rows: usize) -> Vec<RecordBatch> {
    let fields = &transform.descriptor().inputs[0].fields;
    let schema = Arc::new(Schema::new(fields.iter().map(|f| f.arrow(None)).collect::<Vec<_>>()));
    let mut state = 42u64;
    let mut random = move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let column = |name: &str, first: usize, count: usize, random: &mut dyn FnMut() -> u64| -> ArrayRef {
        match name {
            "event_id" => Arc::new(StringArray::from_iter_values((first..first + count).map(|i| format!("ord-{i:010}")))),
            "customer_id" => Arc::new(StringArray::from_iter_values((0..count).map(|_| format!("c-{:08}", customer(random()))))),
            "amount_cents" => Arc::new(Int64Array::from_iter_values((0..count).map(|_| (random() % 20_000) as i64))),
            other => panic!("no column {other}"),
        }
    };
    let batch = |first| {
        let count = BATCH_ROWS.min(rows - first);
        RecordBatch::try_new(schema.clone(), fields.iter().map(|f| column(&f.name, first, count, &mut random)).collect())
            .expect("columns of the schema")
    };
    (0..rows).step_by(BATCH_ROWS).map(batch).collect()
}

/// The customers of M: some order often, most seldom (Zipf's law, as bench/orders.py has it).
fn customer(random: u64) -> u64 {
    let place = 10.0 * (20_001f64.powf(random as f64 / (1u64 << 31) as f64) - 1.0);
    place as u64 * 7_919 % 200_003
}

/// Returns the median times of two ways, taken in turn after one round that only warms up.
fn alternate(mut one: impl FnMut(), mut other: impl FnMut()) -> (Duration, Duration) {
    let time = |f: &mut dyn FnMut()| {
        let began = Instant::now();
        f();
        began.elapsed()
    };
    let (mut a, mut b) = (Vec::new(), Vec::new());
    (0..=ROUNDS).for_each(|_| {
        a.push(time(&mut one));
        b.push(time(&mut other));
    });
    let median = |times: &mut Vec<Duration>| {
        times.remove(0);
        times.sort();
        times[times.len() / 2]
    };
    (median(&mut a), median(&mut b))
}

/// Batches go into the guest and come back as they are, against two copies of the same bytes. What is timed is all of
/// `Instance::push`: columns made and checked on both sides (UTF-8, offsets, nulls), allocation in the guest, both copies.
fn boundary() {
    let transform = load("echo-1.0.0.wasm");
    let batches = orders(&transform, 1 << 20);
    let buffers: Vec<Buffer> = batches.iter().flat_map(|b| b.columns()).flat_map(|c| c.to_data().buffers().to_vec()).collect();
    let bytes: usize = buffers.iter().map(Buffer::len).sum();
    let limits = Limits { output_bytes_max: u64::MAX, ..Limits::default() };
    let mut instance = transform.start(&context(), &limits).expect("the guest begins");
    let cross = || batches.iter().for_each(|b| assert_eq!(instance.push(0, b).expect("it answers").expect("a batch").num_rows(), b.num_rows()));
    let size = buffers.iter().map(Buffer::len).max().unwrap_or_default();
    let (mut there, mut back) = (vec![0u8; size], vec![0u8; size]);
    let copy = || {
        for buffer in &buffers {
            let n = buffer.len();
            there[..n].copy_from_slice(black_box(buffer));
            black_box(&mut there);
            back[..n].copy_from_slice(&there[..n]);
            black_box(&mut back);
        }
    };
    let (crossing, copying) = alternate(cross, copy);
    let each = |time: Duration| time.as_secs_f64() * 1e6 / batches.len() as f64;
    println!(
        "boundary: {} batches of {BATCH_ROWS} rows, {} KiB each, there and back {:.0} µs a batch; two memcpy {:.1} µs; ratio {:.2} (wanted: at most 3)",
        batches.len(),
        bytes / batches.len() / 1024,
        each(crossing),
        each(copying),
        crossing.as_secs_f64() / copying.as_secs_f64()
    );
}

/// The transform of the benchmark over ten partitions, in WASM through the sandbox and compiled into this program, with the same
/// Arrow batches in and out. `bench/run` sets the difference against the whole of a run.
fn transform() {
    let transform = load("order-totals-1.0.0.wasm");
    let (partitions, rows) = (10, 110_000);
    let batches = orders(&transform, rows);
    let output = transform.output_schema();
    let guest = || {
        for _ in 0..partitions {
            let mut instance = transform.start(&context(), &Limits::default()).expect("the guest begins");
            batches.iter().for_each(|b| assert!(instance.push(0, b).expect("it takes them").is_none()));
            while let Some(batch) = instance.finish().expect("it ends") {
                black_box(batch);
            }
        }
    };
    let host = || {
        for _ in 0..partitions {
            let mut totals = totals::Totals::default();
            for batch in &batches {
                let (customers, cents) = (batch.column(0).as_string::<i32>(), batch.column(1).as_primitive::<Int64Type>());
                totals.add(customers.iter().map(Option::unwrap_or_default), cents.values().iter().copied()).expect("totals of 64 bits");
            }
            let rows: Vec<_> = totals.rows().collect();
            for rows in rows.chunks(BATCH_ROWS) {
                let columns: Vec<ArrayRef> = vec![
                    Arc::new(StringArray::from_iter_values(rows.iter().map(|r| &*r.0))),
                    Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.1))),
                    Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.2))),
                ];
                black_box(RecordBatch::try_new(output.clone(), columns).expect("columns of the schema"));
            }
        }
    };
    let (wasm, native) = alternate(guest, host);
    let each = |time: Duration| time.as_secs_f64() * 1e9 / (partitions * rows) as f64;
    println!(
        "transform: {partitions} partitions of {rows} rows, in WASM {:.1} ns a row, in the host {:.1} ns a row; ratio {:.2}",
        each(wasm),
        each(native),
        wasm.as_secs_f64() / native.as_secs_f64()
    );
}

/// A plan over a million hours: never built, and built by an older version of the transform. The facts are what the catalog
/// holds of a source with one record an hour; reading them from it is not in the time.
fn plans() {
    let calendar = Calendar { grain: Grain::Hour, zone: Tz::UTC };
    let window = calendar.resolve("1900-01-01", "2014-01-29").expect("a window");
    let request = Request {
        kind: Kind::Backfill,
        window: Some(window),
        only: None,
        frozen_before: None,
        write: WriteMode::Overwrite,
        partitions_max: None,
        bytes_max: None,
    };
    let (old, new) = (Digest::of(b"1.0.0"), Digest::of(b"1.1.0"));
    let slot = |w: Window| Slot { start: w.start(), snapshot: SnapshotId(1), records: 1, late: 0, future: 0 };
    // The catalog counts what there are many of first.
    let count = calendar.partitions(window).count();
    let mut slots = Vec::with_capacity(count);
    slots.extend(calendar.partitions(window).map(slot));
    let mut facts = Facts {
        calendar,
        input_snapshot: SnapshotId(3),
        transform_digest: new,
        inputs: vec![],
        stand: None,
        published: vec![],
        slots,
        queue: vec![],
        files: vec![],
        reparsed: vec![],
        dropped: vec![],
        by_row_time: false,
        taken: vec![],
        downstream: false,
        upstream: vec![],
        unready: vec![],
        declared: None,
        settings: HashMap::new(),
    };
    let look = |what: &str, facts: &Facts| {
        let before = peak_mb();
        let began = Instant::now();
        let plan = plan(facts, &request).expect("a plan");
        let took = began.elapsed();
        println!(
            "plan: {} partitions, {what}: {:.3} s (wanted: under 1); peak memory of the process {:.0} MB, of it the facts and what came before {before:.0} MB (wanted: under 200)",
            plan.partition_count(),
            took.as_secs_f64(),
            peak_mb()
        );
    };
    look("none built", &facts);
    let row = |w| PublishedRow {
        window: w,
        partition: calendar.name(&w),
        run: RunId(1),
        input_snapshot: SnapshotId(1),
        published_snapshot: SnapshotId(2),
        transform_digest: old,
        rows: 1,
        bytes: 1_000,
        checksum: old,
        settings_digest: old,
    };
    facts.published.reserve_exact(count);
    facts.published.extend(calendar.partitions(window).map(row));
    look("all stale", &facts);
}

/// Returns the most memory that this process has held, where the system says it (Linux).
fn peak_mb() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<f64>().ok()).map_or(f64::NAN, |kib| kib * 1024.0 / 1e6)
}
