//! Rows of known columns as JSON Lines and back, by the rules of `decode::value`: what is written reads the same.
//! Never touches a file, and never takes a number by way of a double.
//! The cases of `restitch transform test` are such lines; landed files go through `decode::json`.

use super::{
    column::Column,
    json::{put_raw, read_object, syntax},
    number::to_base64,
    value::Value,
};
use crate::{
    config::nearest,
    schema::{DataType, Field, arrow_schema},
    time,
};
use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{Date32Type, Decimal128Type, Float32Type, Float64Type, Int32Type, Int64Type, Time64MicrosecondType, TimestampMicrosecondType};
use chrono::{NaiveDate, TimeDelta};

/// Returns the rows that the lines of `text` hold, an object each; empty lines are none.
///
/// Values are read as a source of JSON Lines reads them, times without an offset in UTC; floating-point columns also take the
/// texts `"NaN"`, `"inf"` and `"-inf"`. A key that a line lacks is null. Keys that are no column are left aside, or refused if
/// `strict`.
///
/// # Errors
/// The line, from 1, and what is wrong with it, with the column's name.
pub fn read_lines(fields: &[Field], text: &[u8], strict: bool) -> Result<RecordBatch, (usize, String)> {
    let mut columns: Vec<Column> = fields.iter().map(Column::plain).collect();
    let mut rows = 0;
    for (i, line) in text.split(|b| *b == b'\n').enumerate() {
        let line = std::str::from_utf8(line).map_err(|e| (i + 1, format!("column {}: not UTF-8", e.valid_up_to() + 1)))?;
        let line = if i == 0 { line.trim_start_matches('\u{feff}') } else { line };
        if line.trim().is_empty() {
            continue;
        }
        read_line(line, &mut columns, strict).map_err(|problem| (i + 1, problem))?;
        rows += 1;
    }
    let arrays: Vec<ArrayRef> = columns.iter_mut().map(Column::take).collect();
    let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(arrow_schema(fields), arrays, &options).map_err(|e| (0, e.to_string()))
}

fn read_line(line: &str, columns: &mut [Column], strict: bool) -> Result<(), String> {
    let mut entries = Vec::new();
    read_object(line, &mut entries).map_err(|e| syntax(&e))?;
    for (i, (key, _)) in entries.iter().enumerate() {
        if entries[..i].iter().any(|(k, _)| k == key) {
            return Err(format!("the key {key:?} occurs twice"));
        }
        if strict && !columns.iter().any(|c| c.name == *key) {
            let near = nearest(key, columns.iter().map(|c| c.name.as_str()));
            return Err(format!("there is no column {key:?}{}", near.map_or(String::new(), |n| format!("; did you mean {n:?}?"))));
        }
    }
    for column in columns {
        let float = matches!(column.rule.data_type, DataType::Float32 | DataType::Float64);
        match entries.iter().find(|(key, _)| *key == column.name).map(|(_, raw)| raw.get()) {
            None => column.missing()?,
            Some(text) if float && matches!(text, "\"NaN\"" | "\"inf\"" | "\"-inf\"") => column.put(Value::Field(&text[1..text.len() - 1]))?,
            Some(raw) => put_raw(column, raw)?,
        }
    }
    Ok(())
}

/// Returns the rows of `batch`, whose columns are those of `fields`, as [`read_lines`] takes them: one object a line.
pub fn write_lines(fields: &[Field], batch: &RecordBatch) -> String {
    (0..batch.num_rows()).map(|row| write_line(fields, batch, row) + "\n").collect()
}

/// Returns one row as an object, without a line end.
pub fn write_line(fields: &[Field], batch: &RecordBatch, row: usize) -> String {
    let cell = |(field, column): (&Field, &ArrayRef)| format!("{}: {}", quoted(&field.name), write_value(field.data_type, column.as_ref(), row));
    format!("{{{}}}", fields.iter().zip(batch.columns()).map(cell).collect::<Vec<_>>().join(", "))
}

/// Returns one value as JSON: numbers with all their digits, bytes in base64, times as text.
pub fn write_value(data_type: DataType, column: &dyn Array, row: usize) -> String {
    if column.is_null(row) {
        return "null".into();
    }
    let float = |finite: bool, nan: bool, negative: bool, text: String| match (finite, nan, negative) {
        (true, ..) => text,
        (_, true, _) => "\"NaN\"".into(),
        (_, _, true) => "\"-inf\"".into(),
        _ => "\"inf\"".into(),
    };
    match data_type {
        DataType::Boolean => column.as_boolean().value(row).to_string(),
        DataType::Int32 => column.as_primitive::<Int32Type>().value(row).to_string(),
        DataType::Int64 => column.as_primitive::<Int64Type>().value(row).to_string(),
        DataType::Float32 => {
            let f = column.as_primitive::<Float32Type>().value(row);
            float(f.is_finite(), f.is_nan(), f < 0.0, format!("{f:?}"))
        }
        DataType::Float64 => {
            let f = column.as_primitive::<Float64Type>().value(row);
            float(f.is_finite(), f.is_nan(), f < 0.0, format!("{f:?}"))
        }
        DataType::Decimal(_, scale) => decimal(column.as_primitive::<Decimal128Type>().value(row), scale),
        DataType::String => quoted(column.as_string::<i32>().value(row)),
        // A line end in it stands between tokens: inside of texts JSON has none.
        DataType::Json => column.as_string::<i32>().value(row).replace(['\n', '\r'], " "),
        DataType::Binary => {
            let mut text = Vec::new();
            to_base64(column.as_binary::<i32>().value(row), &mut text);
            quoted(&String::from_utf8_lossy(&text))
        }
        DataType::Date => {
            let days = column.as_primitive::<Date32Type>().value(row);
            let date = TimeDelta::try_days(days.into()).and_then(|days| NaiveDate::default().checked_add_signed(days));
            quoted(&date.map_or_else(|| format!("day {days}"), |d| d.format("%Y-%m-%d").to_string()))
        }
        DataType::Time => {
            let us = column.as_primitive::<Time64MicrosecondType>().value(row);
            let text = time::format_us(us);
            let clock = text.split_once('T').map_or(text.as_str(), |(_, clock)| clock.trim_end_matches('Z'));
            quoted(clock)
        }
        DataType::Timestamp => quoted(&time::format_us(column.as_primitive::<TimestampMicrosecondType>().value(row))),
    }
}

fn decimal(units: i128, scale: i8) -> String {
    let scale = scale.max(0) as usize;
    let digits = format!("{:0width$}", units.unsigned_abs(), width = scale + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale);
    format!("{}{whole}{}{fraction}", if units < 0 { "-" } else { "" }, if scale > 0 { "." } else { "" })
}

/// Returns `text` as JSON writes it.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

impl Column {
    /// Returns the empty column of `field`, without default and mask, times without an offset in UTC.
    fn plain(field: &Field) -> Column {
        Column::bare(&field.name, field.data_type, field.nullable)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn every() -> Vec<Field> {
        let types = "boolean int32 int64 float32 float64 decimal(38,9) string json binary date time timestamp";
        let mut names = "abcdefghijkl".chars();
        types.split(' ').map(|t| Field::new(names.next().unwrap(), DataType::parse(t).unwrap(), true)).collect()
    }

    #[test]
    fn what_is_written_reads_the_same() {
        let lines = concat!(
            r#"{"a": true, "b": -2147483648, "c": 9223372036854775807, "d": 0.1, "e": 1e300, "f": -99999999999999999999999999999.999999999, "g": "Zoë 🦀 \u0000\n", "h": {"x":[1, 2.50]}, "i": "AP8=", "j": "0001-01-01", "k": "23:59:59.999999", "l": "2026-05-01T08:00:00.5Z"}"#,
            "\n",
            r#"{"a": null, "b": null, "c": null, "d": "NaN", "e": "-inf", "f": 0.000000001, "g": "", "h": "null", "i": "", "j": null, "k": "00:00:00", "l": null}"#,
            "\n"
        );
        let rows = read_lines(&every(), lines.as_bytes(), true).unwrap();
        let again = read_lines(&every(), write_lines(&every(), &rows).as_bytes(), true).unwrap();
        assert_eq!(rows, again);
        assert_eq!(write_lines(&every(), &rows), lines);
    }

    #[test]
    fn a_line_that_cannot_be_read_is_named_with_its_column() {
        let fields = [Field::new("id", DataType::Int64, false), Field::new("text", DataType::String, true)];
        let wrong = |text: &str| read_lines(&fields, text.as_bytes(), true).unwrap_err();
        assert_eq!(wrong("{\"id\": 1}\n\n{\"id\": 1.5}"), (3, "id 1.5 is not a whole number".into()));
        assert_eq!(wrong("{\"text\": \"a\"}"), (1, "id is missing: not nullable".into()));
        assert_eq!(wrong("{\"id\": 1, \"txet\": 1}"), (1, "there is no column \"txet\"; did you mean \"text\"?".into()));
        assert_eq!(wrong("{\"id\": 1, \"id\": 1}"), (1, "the key \"id\" occurs twice".into()));
        assert!(wrong("[1]").1.contains("JSON object"), "{:?}", wrong("[1]"));
        let rows = read_lines(&fields, b"\xef\xbb\xbf{\"id\": 1, \"more\": []}\r\n", false).unwrap();
        assert_eq!((rows.num_rows(), rows.column(1).null_count()), (1, 1));
        assert_eq!(read_lines(&fields, b"\n", true).unwrap().num_rows(), 0);
    }
}
