//! Rows as people read them, and as programs do: an aligned table, and JSON.
//! Never prints, and never lets a control character through to a terminal.
//! `query`, `diff` and failed checks show rows with it.

use super::Rows;
use crate::time;
use arrow::{
    array::{Array, AsArray, RecordBatch},
    compute::cast,
    datatypes::{DataType as ArrowType, TimeUnit, TimestampMicrosecondType},
    util::display::{ArrayFormatter, FormatOptions},
};
use serde_json::{Map, Value as Json};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

/// Columns of a terminal that a cell may take.
const CELL_COLUMNS_MAX: usize = 60;

/// Returns `rows` as an aligned table of at most `max_rows` rows; a last line says how many are left out.
///
/// Numbers stand to the right, null is empty, times are RFC 3339 in UTC, long cells are cut. A plan
/// that EXPLAIN returns is not squeezed into cells.
pub fn table_text(rows: &Rows, max_rows: usize) -> String {
    let names: Vec<&str> = rows.schema.fields().iter().map(|f| f.name().as_str()).collect();
    if names == ["plan_type", "plan"] {
        return plan_text(rows);
    }
    let right: Vec<bool> = rows.schema.fields().iter().map(|f| f.data_type().is_numeric()).collect();
    let mut lines = vec![names.iter().map(|n| shown(n)).collect::<Vec<_>>()];
    lines.extend(cells(rows).take(max_rows).map(|row| row.iter().map(|c| shown(c)).collect()));
    let widths: Vec<usize> = (0..names.len()).map(|i| lines.iter().map(|l| l[i].width()).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for (n, line) in lines.iter().enumerate() {
        push_line(&mut text, line.iter().zip(&widths).zip(&right).map(|((cell, width), right)| pad(cell, *width, *right)));
        if n == 0 {
            push_line(&mut text, widths.iter().map(|w| "─".repeat(*w)));
        }
    }
    match rows.rows().saturating_sub(max_rows) {
        0 => {}
        1 => text.push_str("… 1 more row\n"),
        more => text.push_str(&format!("… {more} more rows\n")),
    }
    text
}

/// Returns `rows` as a JSON array of objects.
///
/// Integers, floating-point numbers and booleans are what they are in JSON; decimals, times and everything
/// else are strings, as are numbers that JSON does not know (`NaN`, `inf`).
pub fn rows_json(rows: &Rows) -> Json {
    let object = |batch: &RecordBatch, row: usize| {
        let schema = batch.schema();
        let pairs = schema.fields().iter().zip(batch.columns()).map(|(f, c)| (f.name().clone(), json(c.as_ref(), row)));
        Json::Object(pairs.collect::<Map<_, _>>())
    };
    Json::Array(rows.batches.iter().flat_map(|b| (0..b.num_rows()).map(move |r| object(b, r))).collect())
}

/// Returns one value as text; null is empty.
pub(super) fn cell(array: &dyn Array, row: usize) -> String {
    if array.is_null(row) {
        return String::new();
    }
    let text = match array.data_type() {
        ArrowType::Timestamp(unit, zone) => timestamp(array, row, *unit, zone.is_some()),
        ArrowType::Binary | ArrowType::LargeBinary | ArrowType::BinaryView | ArrowType::FixedSizeBinary(_) => bytes(array, row),
        ArrowType::Utf8 => Some(array.as_string::<i32>().value(row).to_owned()),
        _ => None,
    };
    text.or_else(|| ArrayFormatter::try_new(array, &FormatOptions::default()).ok()?.value(row).try_to_string().ok()).unwrap_or_else(|| "?".into())
}

fn timestamp(array: &dyn Array, row: usize, unit: TimeUnit, zoned: bool) -> Option<String> {
    let zone = zoned.then(|| "UTC".into());
    let us = cast(&array.slice(row, 1), &ArrowType::Timestamp(TimeUnit::Microsecond, zone)).ok()?;
    let text = time::format_us(us.as_primitive_opt::<TimestampMicrosecondType>()?.value(0));
    let mut text = text.strip_suffix('Z')?.to_owned();
    if unit == TimeUnit::Nanosecond {
        let ns = cast(&array.slice(row, 1), &ArrowType::Int64).ok()?;
        let ns = ns.as_primitive_opt::<arrow::datatypes::Int64Type>()?.value(0);
        if ns.rem_euclid(1000) != 0 {
            text = time::format_us(ns.div_euclid(1_000_000_000) * 1_000_000).strip_suffix('Z')?.to_owned();
            text = format!("{text}.{}", format!("{:09}", ns.rem_euclid(1_000_000_000)).trim_end_matches('0'));
        }
    }
    Some(if zoned { text + "Z" } else { text })
}

/// Bytes that are text read as text, others as hexadecimal digits after `\x`.
fn bytes(array: &dyn Array, row: usize) -> Option<String> {
    let one = cast(&array.slice(row, 1), &ArrowType::Binary).ok()?;
    let bytes = one.as_binary_opt::<i32>()?.value(0);
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(|c| c.is_control() && !c.is_whitespace()) => Some(text.to_owned()),
        _ => Some(bytes.iter().fold("\\x".to_owned(), |text, b| text + &format!("{b:02x}"))),
    }
}

fn json(array: &dyn Array, row: usize) -> Json {
    if array.is_null(row) {
        return Json::Null;
    }
    let text = cell(array, row);
    let data_type = array.data_type();
    match data_type {
        ArrowType::Null => Json::Null,
        ArrowType::Boolean => Json::Bool(text == "true"),
        t if t.is_signed_integer() => text.parse::<i64>().map_or(Json::Null, Json::from),
        t if t.is_unsigned_integer() => text.parse::<u64>().map_or(Json::Null, Json::from),
        t if t.is_floating() => match text.parse::<f64>().ok().and_then(serde_json::Number::from_f64) {
            Some(number) => Json::Number(number),
            None => Json::String(text),
        },
        _ => Json::String(text),
    }
}

fn cells(rows: &Rows) -> impl Iterator<Item = Vec<String>> + '_ {
    rows.batches.iter().flat_map(|b| (0..b.num_rows()).map(move |r| b.columns().iter().map(|c| cell(c.as_ref(), r)).collect()))
}

fn plan_text(rows: &Rows) -> String {
    cells(rows).map(|row| format!("{}:\n{}\n", row[0], row[1].trim_end())).collect()
}

/// Returns a cell as it is shown: in one line, without control characters, cut to its columns.
fn shown(cell: &str) -> String {
    let safe = |c: char| c.is_control() || matches!(c, '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let mut text = String::new();
    let mut width = 0;
    for c in cell.chars() {
        let piece = if safe(c) { c.escape_default().to_string() } else { c.to_string() };
        width += if safe(c) { piece.len() } else { c.width().unwrap_or(0) };
        text.push_str(&piece);
        if width > CELL_COLUMNS_MAX {
            break;
        }
    }
    if width <= CELL_COLUMNS_MAX {
        return text;
    }
    while text.width() >= CELL_COLUMNS_MAX {
        text.pop();
    }
    text + "…"
}

fn pad(cell: &str, width: usize, right: bool) -> String {
    let space = " ".repeat(width.saturating_sub(cell.width()));
    if right { space + cell } else { cell.to_owned() + &space }
}

fn push_line(text: &mut String, cells: impl Iterator<Item = String>) {
    text.push_str(cells.collect::<Vec<_>>().join("  ").trim_end());
    text.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::array::{ArrayRef, BinaryArray, BooleanArray, Decimal128Array, Float64Array, Int64Array, StringArray, TimestampMicrosecondArray};
    use std::sync::Arc;

    fn rows() -> Rows {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("name", Arc::new(StringArray::from(vec![Some("Zoë"), Some("東京\n\u{1b}[31m"), None]))),
            ("amount", Arc::new(Decimal128Array::from(vec![Some(1), Some(-123_450), None]).with_precision_and_scale(18, 2).unwrap())),
            ("n", Arc::new(Int64Array::from(vec![i64::MAX, 2, 3]))),
            ("f", Arc::new(Float64Array::from(vec![1.0, f64::NAN, 0.1]))),
            ("ok", Arc::new(BooleanArray::from(vec![true, false, true]))),
            ("at", Arc::new(TimestampMicrosecondArray::from(vec![Some(0), Some(1_500_000), None]).with_timezone("UTC"))),
            ("raw", Arc::new(BinaryArray::from_opt_vec(vec![Some(b"{}"), Some(&[0, 255]), None]))),
        ];
        let batch = RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap();
        Rows { schema: batch.schema(), batches: vec![batch] }
    }

    #[test]
    fn a_table_is_aligned() {
        let text = table_text(&rows(), 2);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "name                amount                    n    f  ok     at                      raw");
        assert_eq!(lines[1], "────────────────  ────────  ───────────────────  ───  ─────  ──────────────────────  ──────");
        assert_eq!(lines[2], "Zoë                   0.01  9223372036854775807  1.0  true   1970-01-01T00:00:00Z    {}");
        assert_eq!(lines[3], "東京\\n\\u{1b}[31m  -1234.50                    2  NaN  false  1970-01-01T00:00:01.5Z  \\x00ff");
        assert_eq!(lines[4], "… 1 more row");
        assert_eq!(table_text(&rows(), 3).lines().last(), Some(format!("{:>47}  0.1  true", 3).as_str()));
        let empty = Rows { batches: vec![], ..rows() };
        assert_eq!(table_text(&empty, 3).lines().count(), 2);
    }

    #[test]
    fn long_cells_are_cut_by_width() {
        assert_eq!(shown(&"x".repeat(60)), "x".repeat(60));
        assert_eq!(shown(&"x".repeat(61)), "x".repeat(59) + "…");
        assert_eq!(shown(&"東".repeat(40)), "東".repeat(29) + "…");
        assert_eq!(shown("e\u{301}"), "e\u{301}");
    }

    #[test]
    fn json_keeps_what_json_can_hold() {
        let expected = serde_json::json!([
            {"name": "Zoë", "amount": "0.01", "n": i64::MAX, "f": 1.0, "ok": true, "at": "1970-01-01T00:00:00Z", "raw": "{}"},
            {"name": "東京\n\u{1b}[31m", "amount": "-1234.50", "n": 2, "f": "NaN", "ok": false, "at": "1970-01-01T00:00:01.5Z", "raw": "\\x00ff"},
            {"name": null, "amount": null, "n": 3, "f": 0.1, "ok": true, "at": null, "raw": null},
        ]);
        assert_eq!(rows_json(&rows()), expected);
    }

    #[test]
    fn times_without_a_zone_get_none() {
        let ns = arrow::array::TimestampNanosecondArray::from(vec![1_000_000_001, 1_500_000_000]);
        assert_eq!((cell(&ns, 0), cell(&ns, 1)), ("1970-01-01T00:00:01.000000001".into(), "1970-01-01T00:00:01.5".into()));
    }
}
