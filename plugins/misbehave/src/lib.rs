//! A hostile transform: its parameter `how` says how it misbehaves.
//! Never of use to anybody but the tests of the sandbox. It speaks the contract without the SDK's help.

#![cfg_attr(not(target_family = "wasm"), allow(dead_code, unused_imports))]

use restitch_guest::bindings::{
    exports::restitch::transform::transform::Guest,
    restitch::transform::{
        log::{self, Level},
        types::{Batch, Column, Context, DataType, DecimalType, Descriptor, Failure, Field, Input, Parameter, RowFailure},
    },
};
use std::cell::RefCell;

const WAYS: &str = "good, panic-in-begin, panic-in-finish, log-for-ever, same-keys, another-answer, loop-in-begin, loop-in-push, loop-in-finish, allocate, panic, recurse, divide, endless-output, endless-empty, \
    huge-batch, aliased-batch, log-flood, log-line, missing-column, extra-column, short-values, long-values, short-validity, null-key, \
    broken-offsets, late-offsets, falling-offsets, missing-offsets, stray-offsets, bad-utf8, bad-json, bad-time, many-digits, many-rows, \
    fail-row, fail-parameters, fail-other, state";

thread_local! {
    static HOW: RefCell<String> = const { RefCell::new(String::new()) };
    static BEGUN: RefCell<u32> = const { RefCell::new(0) };
    static FINISHED: RefCell<u32> = const { RefCell::new(0) };
}

struct Misbehave;

impl Guest for Misbehave {
    fn describe() -> Descriptor {
        let field = |name: &str, data_type, nullable| Field { name: name.into(), data_type, nullable };
        Descriptor {
            name: "misbehave".into(),
            version: env!("CARGO_PKG_VERSION").into(),
            summary: env!("CARGO_PKG_DESCRIPTION").into(),
            inputs: vec![Input { name: "rows".into(), fields: vec![field("id", DataType::Int64, false)] }],
            output: vec![
                field("id", DataType::Int64, false),
                field("text", DataType::Utf8, true),
                field("json", DataType::Json, true),
                field("amount", DataType::Decimal(DecimalType { precision: 4, scale: 2 }), true),
                field("at", DataType::Time, true),
                field("flag", DataType::Boolean, true),
            ],
            key: vec!["id".into()],
            parameters: vec![Parameter { name: "how".into(), default: Some("good".into()), help: WAYS.into() }],
        }
    }

    fn begin(context: Context) -> Result<(), Failure> {
        restitch_guest::hidden::report_panics();
        let how = context.parameter("how").to_owned();
        match how.as_str() {
            "loop-in-begin" => spin(),
            "panic-in-begin" => panic!("no day like {}", context.partition),
            "fail-parameters" => return Err(Failure::Parameters("how = \"fail-parameters\"".into())),
            _ => {}
        }
        BEGUN.with_borrow_mut(|n| *n += 1);
        HOW.set(how);
        Ok(())
    }

    fn push(_: u32, batch: Batch) -> Result<Option<Batch>, Failure> {
        match how().as_str() {
            "loop-in-push" => spin(),
            "allocate" => allocate(),
            "panic" => panic!("the customer {:?} has no name", 7),
            "recurse" => drop(recurse(u64::from(batch.rows))),
            "divide" => divide(batch.rows.saturating_sub(u32::MAX)),
            "log-flood" => (0..200_000).for_each(|i| log::log(Level::Info, &format!("line {i}"))),
            "log-for-ever" => (0u64..).for_each(|_| log::log(Level::Info, &"z".repeat(1 << 16))),
            "log-line" => log::log(Level::Warn, &"é".repeat(1 << 20)),
            "fail-row" => return Err(Failure::Row(RowFailure { row: 1, message: "it is odd".into() })),
            "fail-other" => return Err(Failure::Other("no reason".into())),
            _ => {}
        }
        Ok(None)
    }

    fn finish() -> Result<Option<Batch>, Failure> {
        let how = how();
        let calls = FINISHED.with_borrow_mut(|n| std::mem::replace(n, *n + 1));
        match how.as_str() {
            "loop-in-finish" => spin(),
            "panic-in-finish" => panic!("no end"),
            "endless-output" => return Ok(Some(good(100_000))),
            "endless-empty" => return Ok(Some(good(0))),
            _ if calls > 0 => return Ok(None),
            "huge-batch" => return Ok(Some(good(4_000_000))),
            "state" => log::log(Level::Info, &format!("begun {} times", BEGUN.with_borrow(|n| *n))),
            _ => {}
        }
        let mut batch = good(3);
        spoil(&how, &mut batch);
        Ok(Some(batch))
    }
}

/// A batch that is as it should be.
fn good(rows: u32) -> Batch {
    let n = rows as usize;
    let column = |offsets, values| Column { validity: Vec::new(), offsets, values };
    let offsets = |each: i32| (0..=rows as i32).flat_map(|i| (i * each).to_le_bytes()).collect::<Vec<u8>>();
    Batch {
        rows,
        columns: vec![
            column(vec![], (0..i64::from(rows)).flat_map(i64::to_le_bytes).collect()),
            column(offsets(2), "ab".repeat(n).into_bytes()),
            column(offsets(2), "{}".repeat(n).into_bytes()),
            column(vec![], 1234i128.to_le_bytes().repeat(n)),
            column(vec![], 1i64.to_le_bytes().repeat(n)),
            column(vec![], vec![0; n.div_ceil(8)]),
        ],
    }
}

/// Spoils a good batch of three rows.
fn spoil(how: &str, batch: &mut Batch) {
    let bytes = |offsets: [i32; 4]| offsets.iter().flat_map(|o| o.to_le_bytes()).collect::<Vec<u8>>();
    match how {
        "same-keys" => batch.columns[0].values[8..].fill(0),
        // Whatever it can think of that might differ from one instance to the next.
        "another-answer" => {
            let place = std::ptr::from_ref(&batch.columns).addr() as i64;
            let heap = Box::new(0u8);
            let answers = [place, std::ptr::from_ref(&*heap).addr() as i64, i64::from(BEGUN.with_borrow(|n| *n))];
            batch.columns[0].values = answers.iter().flat_map(|n| n.to_le_bytes()).collect();
        }
        "missing-column" => drop(batch.columns.pop()),
        "extra-column" => batch.columns.push(batch.columns[0].clone()),
        "short-values" => batch.columns[0].values.truncate(23),
        "long-values" => batch.columns[0].values.push(0),
        "short-validity" => {
            *batch = good(9);
            batch.columns[1].validity = vec![0xff];
        }
        "null-key" => batch.columns[0].validity = vec![0b101],
        "broken-offsets" => batch.columns[1].offsets = bytes([0, 2, 4, 7]),
        "late-offsets" => batch.columns[1].offsets = bytes([2, 4, 6, 6]),
        "falling-offsets" => batch.columns[1].offsets = bytes([0, 4, 2, 6]),
        "missing-offsets" => batch.columns[1].offsets.clear(),
        "stray-offsets" => batch.columns[0].offsets = bytes([0; 4]),
        "bad-utf8" => batch.columns[1].values[2] = 0xff,
        "bad-json" => batch.columns[2].values[1] = b'{',
        "bad-time" => batch.columns[4].values[7] = 0x7f,
        "many-digits" => batch.columns[3].values[..16].copy_from_slice(&10_000i128.to_le_bytes()),
        "many-rows" => batch.rows = u32::MAX,
        _ => {}
    }
}

fn how() -> String {
    HOW.with_borrow(Clone::clone)
}

fn spin() -> ! {
    let mut n = 0u64;
    loop {
        n = std::hint::black_box(n.wrapping_add(1));
    }
}

fn allocate() {
    let mut kept: Vec<Vec<u8>> = Vec::new();
    loop {
        kept.push(std::hint::black_box(vec![1; 1 << 20]));
    }
}

#[allow(unconditional_recursion)]
fn recurse(n: u64) -> u64 {
    std::hint::black_box(recurse(std::hint::black_box(n + 1)) + 1)
}

fn divide(zero: u32) {
    std::hint::black_box(std::hint::black_box(1) / std::hint::black_box(zero));
}

#[cfg(target_family = "wasm")]
restitch_guest::bindings::export!(Misbehave with_types_in restitch_guest::bindings);
