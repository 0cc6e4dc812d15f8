//! One value of a landed record becomes a typed one, by one written rule for every format.
//! Never rounds, never coerces text to a whole number, and never shows a value that is masked.
//! Fed by the readers of each format; `decode::column` adds nulls, defaults and masks.
//!
//! | type | from JSON | from CSV, and defaults |
//! | --- | --- | --- |
//! | boolean | `true`, `false` | true, false, t, f, 1, 0, in any case |
//! | int32, int64 | a number whose exact value is whole and in range (`1.0`, `9e3`) | the same |
//! | float32, float64 | a number, not beyond the largest finite one | also NaN, inf, infinity, with a sign |
//! | decimal | a number or a string that holds one; digits beyond the scale must be zeros | the same |
//! | string | a string; a number or boolean as it is written | the field |
//! | json | anything but null, as it is written | a JSON text |
//! | binary | base64 (RFC 4648, padded) | the same |
//! | date, time | `2026-05-01`; `09:30`, `09:30:00.123456` | the same |
//! | timestamp | see [`crate::time::parse`]; a number only where a unit is declared | the same |
//!
//! Minus zero is zero, and there is one NaN: equal keys have equal bits.

use super::{
    column::Values,
    number::{NumberError, base64, exact, fits, is_number, rescale},
};
use crate::{
    config::Plausible,
    schema::{DataType, half_pair},
    time::{self, END_US, MIN_US, Unit},
};
use chrono::NaiveDate;
use chrono_tz::Tz;

/// A value as the record gives it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Value<'a> {
    Bool(bool),
    /// A JSON number, as it is written.
    Number(&'a str),
    /// A string.
    Text(&'a str),
    /// JSON text that is known to be JSON.
    Json(&'a str),
    /// A CSV field or a default: text of whatever type the column has.
    Field(&'a str),
    Int(i128),
    /// Digits, and how many of them stand after the point.
    Decimal(i128, i8),
    Float(f64),
    Bytes(&'a [u8]),
    Days(i32),
    /// Microseconds since midnight or since 1970, as the column has it.
    Micros(i64),
}

/// What a value is read with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rule {
    pub(super) data_type: DataType,
    pub(super) zone: Tz,
    pub(super) unit: Option<Unit>,
    /// Of the event time only.
    pub(super) plausible: Option<Plausible>,
}

impl Rule {
    /// Returns why an event time cannot be meant, if it cannot. `number`: it was written as a count of units.
    pub(super) fn implausible(&self, us: i64, number: bool) -> Option<String> {
        let bounds = self.plausible?;
        let at = || time::format_us(us);
        if let Some(min) = bounds.min.filter(|min| us < min.0) {
            return Some(format!("{} lies before min_event_time ({min})", at()));
        }
        if bounds.end.is_some_and(|end| us >= end.0) {
            return Some(format!("{} lies after max_event_time", at()));
        }
        (number && bounds.min.is_none() && YEAR_1970.contains(&us))
            .then(|| format!("{} lies in 1970, where numbers of a larger unit end up (is the unit right? min_event_time allows early times)", at()))
    }
}

/// Where seconds taken for milliseconds, or zeros that stand for no time, come to lie.
const YEAR_1970: std::ops::Range<i64> = 0..365 * time::DAY_US;

/// Appends `value` to `out`, or returns why it cannot be and leaves `out` as it was.
pub(super) fn append(out: &mut Values, value: Value, rule: &Rule) -> Result<(), String> {
    match (rule.data_type, out) {
        (DataType::Boolean, Values::Bool(v)) => v.push(boolean(value)?),
        (t @ DataType::Int32, Values::I32(v)) => v.push(i32::try_from(integer(value, t)?).map_err(|_| unfit(value, t))?),
        (t @ DataType::Int64, Values::I64(v)) => v.push(i64::try_from(integer(value, t)?).map_err(|_| unfit(value, t))?),
        (t @ DataType::Float32, Values::F32(v)) => v.push(single(value, t)?),
        (t @ DataType::Float64, Values::F64(v)) => v.push(double(value, t)?),
        (t @ DataType::Decimal(p, s), Values::I128(v)) => v.push(decimal(value, p, s, t)?),
        (t @ DataType::String, Values::Bytes(v)) => v.push(string(value, t)?.as_bytes()),
        (t @ DataType::Json, Values::Bytes(v)) => v.push(json(value, t)?.as_bytes()),
        (t @ DataType::Binary, Values::Bytes(v)) => match value {
            Value::Bytes(bytes) => v.push(bytes),
            Value::Text(s) | Value::Field(s) if base64(s.as_bytes(), &mut v.data) => v.close(),
            Value::Text(_) | Value::Field(_) => return Err(format!("{} is not base64", shown(value))),
            _ => return Err(other(value, t)),
        },
        (t @ DataType::Date, Values::I32(v)) => v.push(match value {
            Value::Days(d) if is_date(d) => d,
            Value::Days(_) => return Err(format!("{} lies outside the years 0001 to 9999", shown(value))),
            Value::Text(s) | Value::Field(s) => date(s).ok_or_else(|| format!("{} is not a date (expected YYYY-MM-DD)", shown(value)))?,
            _ => return Err(other(value, t)),
        }),
        (t @ DataType::Time, Values::I64(v)) => v.push(match value {
            Value::Micros(us) if is_clock(us) => us,
            Value::Micros(us) => return Err(format!("{us} microseconds is not a time of day")),
            Value::Text(s) | Value::Field(s) => clock(s).ok_or_else(|| format!("{} is not a time of day (expected HH:MM:SS)", shown(value)))?,
            _ => return Err(other(value, t)),
        }),
        (t @ DataType::Timestamp, Values::I64(v)) => v.push(timestamp(value, rule, t)?),
        (t, _) => unreachable!("BUG: a column of {t} has a builder of another type"),
    }
    Ok(())
}

fn boolean(value: Value) -> Result<bool, String> {
    match value {
        Value::Bool(b) => Ok(b),
        Value::Field(s) if ["true", "t", "1"].iter().any(|t| s.eq_ignore_ascii_case(t)) => Ok(true),
        Value::Field(s) if ["false", "f", "0"].iter().any(|t| s.eq_ignore_ascii_case(t)) => Ok(false),
        _ => Err(other(value, DataType::Boolean)),
    }
}

fn integer(value: Value, t: DataType) -> Result<i128, String> {
    let number = match value {
        Value::Int(n) => return Ok(n),
        Value::Decimal(n, scale) => rescale(n, scale, 0),
        Value::Number(s) | Value::Field(s) => exact(s, 0),
        _ => return Err(other(value, t)),
    };
    number.map_err(|e| match e {
        NumberError::Shape => other(value, t),
        NumberError::Inexact => format!("{} is not a whole number", shown(value)),
        NumberError::Range => unfit(value, t),
    })
}

fn decimal(value: Value, precision: u8, scale: i8, t: DataType) -> Result<i128, String> {
    let number = match value {
        Value::Int(n) => rescale(n, 0, scale),
        Value::Decimal(n, from) => rescale(n, from, scale),
        Value::Number(s) | Value::Field(s) | Value::Text(s) => exact(s, scale),
        _ => return Err(other(value, t)),
    };
    match number {
        Ok(n) if fits(n, precision) => Ok(n),
        Err(NumberError::Shape) => Err(other(value, t)),
        Ok(_) | Err(NumberError::Range | NumberError::Inexact) => Err(unfit(value, t)),
    }
}

fn double(value: Value, t: DataType) -> Result<f64, String> {
    match value {
        Value::Float(f) => Ok(one_float(f)),
        Value::Int(n) if n as f64 as i128 == n => Ok(n as f64),
        Value::Int(_) => Err(unfit(value, t)),
        Value::Number(s) | Value::Field(s) if is_number(s) => match s.parse::<f64>() {
            Ok(f) if f.is_finite() => Ok(one_float(f)),
            _ => Err(unfit(value, t)),
        },
        Value::Field(s) => special(s).ok_or_else(|| other(value, t)),
        _ => Err(other(value, t)),
    }
}

fn single(value: Value, t: DataType) -> Result<f32, String> {
    match value {
        // Straight to a single: by way of a double it could be rounded twice.
        Value::Number(s) | Value::Field(s) if is_number(s) => match s.parse::<f32>() {
            Ok(f) if f.is_finite() => Ok(f + 0.0),
            _ => Err(unfit(value, t)),
        },
        _ => {
            let wide = double(value, t)?;
            if wide.is_nan() {
                return Ok(f32::NAN);
            }
            if wide as f32 as f64 == wide { Ok(wide as f32) } else { Err(unfit(value, t)) }
        }
    }
}

/// One NaN, one zero.
pub(super) fn one_float(f: f64) -> f64 {
    if f.is_nan() { f64::NAN } else { f + 0.0 }
}

fn special(s: &str) -> Option<f64> {
    let (sign, name) = match s.as_bytes() {
        [b'-', ..] => (-1.0, &s[1..]),
        [b'+', ..] => (1.0, &s[1..]),
        _ => (1.0, s),
    };
    if name.eq_ignore_ascii_case("nan") {
        return Some(f64::NAN);
    }
    (name.eq_ignore_ascii_case("inf") || name.eq_ignore_ascii_case("infinity")).then_some(sign * f64::INFINITY)
}

pub(super) fn string<'a>(value: Value<'a>, t: DataType) -> Result<&'a str, String> {
    match value {
        Value::Text(s) | Value::Field(s) | Value::Number(s) => Ok(s),
        Value::Bool(b) => Ok(if b { "true" } else { "false" }),
        _ => Err(other(value, t)),
    }
}

fn json<'a>(value: Value<'a>, t: DataType) -> Result<&'a str, String> {
    let text = match value {
        Value::Json(s) => s,
        Value::Field(s) | Value::Text(s) => match serde_json::from_str::<serde::de::IgnoredAny>(s) {
            Ok(_) => s,
            Err(e) => return Err(format!("{} is not JSON: {e}", shown(value))),
        },
        _ => return Err(other(value, t)),
    };
    match half_pair(text.as_bytes()) {
        None => Ok(text),
        Some(at) => Err(format!("holds {} at its byte {}: half a surrogate pair, which is no character", &text[at..at + 6], at + 1)),
    }
}

/// Whether a day lies in the years that are accepted.
pub(super) fn is_date(day: i32) -> bool {
    (MIN_US..END_US).contains(&(day as i64 * time::DAY_US))
}

/// Whether so many microseconds lie between a midnight and the next.
pub(super) fn is_clock(us: i64) -> bool {
    (0..time::DAY_US).contains(&us)
}

fn date(s: &str) -> Option<i32> {
    let b = s.as_bytes();
    if b.len() != 10 || b[4] != b'-' || b[7] != b'-' {
        return None;
    }
    let (year, month, day) = (digits(&b[..4])?, digits(&b[5..7])?, digits(&b[8..])?);
    let date = NaiveDate::from_ymd_opt(year as i32, month, day).filter(|_| year > 0)?;
    Some(date.signed_duration_since(NaiveDate::default()).num_days() as i32)
}

/// `HH:MM[:SS[.fraction]]`; what lies below a microsecond is cut off, as it is in timestamps.
fn clock(s: &str) -> Option<i64> {
    let b = s.as_bytes();
    if b.len() < 5 || b[2] != b':' {
        return None;
    }
    let (hour, minute) = (digits(&b[..2])?, digits(&b[3..5])?);
    let (second, fraction) = match &b[5..] {
        [] => (0, &[][..]),
        [b':', a, c] => (digits(&[*a, *c])?, &[][..]),
        [b':', a, c, b'.', f @ ..] if !f.is_empty() => (digits(&[*a, *c])?, f),
        _ => return None,
    };
    if hour > 23 || minute > 59 || second > 59 || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let micros = (0..6).fold(0, |n, i| n * 10 + fraction.get(i).map_or(0, |c| (c - b'0') as i64));
    Some((hour * 3600 + minute * 60 + second) as i64 * time::SECOND_US + micros)
}

fn digits(b: &[u8]) -> Option<u32> {
    b.iter().try_fold(0, |n, c| c.is_ascii_digit().then(|| n * 10 + (c - b'0') as u32))
}

fn timestamp(value: Value, rule: &Rule, t: DataType) -> Result<i64, String> {
    let (us, number) = instant(value, rule, t)?;
    match rule.implausible(us, number) {
        Some(why) => Err(format!("{} is no plausible time: {why}", shown(value))),
        None => Ok(us),
    }
}

/// Returns the instant, and whether it was written as a number.
fn instant(value: Value, rule: &Rule, t: DataType) -> Result<(i64, bool), String> {
    let text = match (value, rule.unit) {
        (Value::Micros(us), _) if (MIN_US..END_US).contains(&us) => return Ok((us, false)),
        (Value::Micros(_), _) => return Err(format!("{} lies outside the years 0001 to 9999", shown(value))),
        (Value::Int(n), Some(unit)) => return time::parse_epoch(&n.to_string(), unit).map(|t| (t.0, true)).map_err(|e| e.to_string()),
        (Value::Number(_) | Value::Int(_), None) => {
            return Err(format!("{} is a number without a unit (declare it: unit = \"ms\", or s, us, ns)", shown(value)));
        }
        (Value::Number(s) | Value::Text(s) | Value::Field(s), _) => s,
        _ => return Err(other(value, t)),
    };
    if text.len() > 100 {
        return Err(other(value, t));
    }
    let digits = || text.bytes().enumerate().all(|(i, c)| c.is_ascii_digit() || c == b'.' || (c == b'-' && i == 0));
    let unit = rule.unit.filter(|_| matches!(value, Value::Number(_)) || digits());
    let parsed = match unit {
        Some(unit) => time::parse_epoch(text, unit),
        None => time::parse(text, rule.zone),
    };
    parsed.map(|t| (t.0, unit.is_some())).map_err(|e| e.to_string())
}

fn unfit(value: Value, t: DataType) -> String {
    format!("{} does not fit {t}", shown(value))
}

fn other(value: Value, t: DataType) -> String {
    let article = if matches!(t, DataType::Int32 | DataType::Int64) { "an" } else { "a" };
    match value {
        Value::Text(_) => format!("{} (a string) is not {article} {t}", shown(value)),
        Value::Json(_) => format!("an object or array is not {article} {t}"),
        _ => format!("{} is not {article} {t}", shown(value)),
    }
}

fn shown(value: Value) -> String {
    match value {
        Value::Bool(b) => b.to_string(),
        Value::Number(s) => short(s).to_owned(),
        Value::Text(s) | Value::Field(s) => format!("{:?}", short(s)),
        Value::Json(_) => "an object or array".into(),
        Value::Int(n) => n.to_string(),
        Value::Decimal(n, scale) => format!("{n}e{}", -(scale as i32)),
        Value::Float(f) => f.to_string(),
        Value::Bytes(_) => "a sequence of bytes".into(),
        Value::Days(d) => format!("day {d}"),
        Value::Micros(us) => time::format_us(us),
    }
}

/// The start of a text that may be long.
pub(super) fn short(s: &str) -> &str {
    match s.char_indices().nth(80) {
        Some((end, _)) => &s[..end],
        None => s,
    }
}

#[cfg(test)]
mod tests {
    use super::{Value::*, *};

    fn check(data_type: &str, unit: Option<Unit>, rows: &[(Value, Result<&str, &str>)]) {
        let rule = Rule { data_type: DataType::parse(data_type).unwrap(), zone: Tz::Europe__Berlin, unit, plausible: None };
        for (value, expected) in rows {
            let mut out = Values::new(rule.data_type);
            let found = append(&mut out, *value, &rule).map(|()| {
                let mut text = vec![];
                out.last().write_text(rule.data_type, &mut text);
                String::from_utf8_lossy(&text).into_owned()
            });
            assert_eq!(found.as_deref().map_err(|e| e.as_str()), *expected, "{data_type} {value:?}");
            assert_eq!(out.len(), expected.is_ok() as usize);
        }
    }

    #[test]
    fn numbers_and_booleans() {
        check(
            "boolean",
            None,
            &[(Bool(true), Ok("true")), (Field("F"), Ok("false")), (Field("1"), Ok("true")), (Field("yes"), Err("\"yes\" is not a boolean"))],
        );
        check("boolean", None, &[(Number("1"), Err("1 is not a boolean")), (Text("true"), Err("\"true\" (a string) is not a boolean"))]);
        check(
            "int64",
            None,
            &[
                (Number("9223372036854775807"), Ok("9223372036854775807")),
                (Number("9223372036854775808"), Err("9223372036854775808 does not fit int64")),
                (Number("9.007199254740993e15"), Ok("9007199254740993")),
                (Number("1.5"), Err("1.5 is not a whole number")),
                (Text("007"), Err("\"007\" (a string) is not an int64")),
                (Text("7"), Err("\"7\" (a string) is not an int64")),
                (Field("007"), Err("\"007\" is not an int64")),
                (Field("-5"), Ok("-5")),
                (Bool(true), Err("true is not an int64")),
                (Json("{}"), Err("an object or array is not an int64")),
            ],
        );
        check("int32", None, &[(Number("2147483647"), Ok("2147483647")), (Number("-2147483649"), Err("-2147483649 does not fit int32"))]);
        check(
            "float64",
            None,
            &[
                (Number("-0.0"), Ok("0")),
                (Number("1e400"), Err("1e400 does not fit float64")),
                (Field("1e400"), Err("\"1e400\" does not fit float64")),
                (Field("nan"), Ok("NaN")),
                (Field("-Infinity"), Ok("-inf")),
                (Field("INF"), Ok("inf")),
                (Text("1"), Err("\"1\" (a string) is not a float64")),
                (Field("0x1"), Err("\"0x1\" is not a float64")),
                (Int(1 << 53), Ok("9007199254740992")),
                (Int((1 << 53) + 1), Err("9007199254740993 does not fit float64")),
            ],
        );
        check(
            "float32",
            None,
            &[(Number("0.1"), Ok("0.1")), (Number("1e39"), Err("1e39 does not fit float32")), (Float(0.1), Err("0.1 does not fit float32"))],
        );
        check(
            "decimal(18,2)",
            None,
            &[
                (Number("0.10"), Ok("0.10")),
                (Text("0.20"), Ok("0.20")),
                (Number("90071992547409.93"), Ok("90071992547409.93")),
                (Number("-0.00"), Ok("0.00")),
                (Number("-0.05"), Ok("-0.05")),
                (Number("19.995"), Err("19.995 does not fit decimal(18,2)")),
                (Number("1e-3"), Err("1e-3 does not fit decimal(18,2)")),
                (Field("1,50"), Err("\"1,50\" is not a decimal(18,2)")),
                (Field("NaN"), Err("\"NaN\" is not a decimal(18,2)")),
                (Number("10000000000000000"), Err("10000000000000000 does not fit decimal(18,2)")),
                (Decimal(1500, 3), Ok("1.50")),
                (Decimal(1501, 3), Err("1501e-3 does not fit decimal(18,2)")),
            ],
        );
    }

    #[test]
    fn texts_and_bytes() {
        check("string", None, &[(Number("18446744073709551616"), Ok("18446744073709551616")), (Bool(false), Ok("false")), (Text(""), Ok(""))]);
        check("string", None, &[(Json("[1]"), Err("an object or array is not a string"))]);
        check(
            "json",
            None,
            &[(Json("{ \"a\": 1.0 }"), Ok("{ \"a\": 1.0 }")), (Field("[1"), Err("\"[1\" is not JSON: EOF while parsing a list at line 1 column 2"))],
        );
        check("binary", None, &[(Text("AP8="), Ok("00ff")), (Field("AP8"), Err("\"AP8\" is not base64")), (Bytes(&[1]), Ok("01"))]);
    }

    #[test]
    fn times() {
        check("date", None, &[(Field("2024-02-29"), Ok("2024-02-29")), (Text("1969-12-31"), Ok("1969-12-31"))]);
        for bad in ["2015-02-29", "2024-2-9", "0000-01-01", "2024-02-29T00:00:00Z", ""] {
            check("date", None, &[(Text(bad), Err(&format!("{bad:?} is not a date (expected YYYY-MM-DD)")))]);
        }
        check("time", None, &[(Field("09:30"), Ok("09:30:00")), (Text("23:59:59.1234569"), Ok("23:59:59.123456"))]);
        for bad in ["24:00:00", "9:30", "09:60", "09:30:61", "09:30:00.", "09:30:00.x"] {
            check("time", None, &[(Text(bad), Err(&format!("{bad:?} is not a time of day (expected HH:MM:SS)")))]);
        }
        check(
            "timestamp",
            None,
            &[(Text("2026-05-01T09:30:00"), Ok("2026-05-01T07:30:00Z")), (Field("2026-05-01 09:30:00Z"), Ok("2026-05-01T09:30:00Z"))],
        );
        let half = |escape: &str, byte: usize| format!("holds {escape} at its byte {byte}: half a surrogate pair, which is no character");
        check(
            "json",
            None,
            &[
                (Json(r#"{"t":"cut \ud83d"}"#), Err(&half(r"\ud83d", 11))),
                (Text(r#"[{"\uDE00":1}]"#), Err(&half(r"\uDE00", 4))),
                (Field(r#""\ud83d\ud83d\ude00""#), Err(&half(r"\ud83d", 2))),
                (Json(r#""\ud83d\n""#), Err(&half(r"\ud83d", 2))),
                (Json(r#""\ud83d\ude00 \\ud83d \u00fc \"""#), Ok(r#""\ud83d\ude00 \\ud83d \u00fc \"""#)),
                (Json(r#""\\\ud83d""#), Err(&half(r"\ud83d", 4))),
            ],
        );
        check("timestamp", None, &[(Number("1"), Err("1 is a number without a unit (declare it: unit = \"ms\", or s, us, ns)"))]);
        check(
            "timestamp",
            None,
            &[(Bool(true), Err("true is not a timestamp")), (Micros(END_US), Err("10000-01-01T00:00:00Z lies outside the years 0001 to 9999"))],
        );
        let ms = Some(Unit::Millis);
        check("timestamp", ms, &[(Number("1757937600000"), Ok("2025-09-15T12:00:00Z")), (Text("1757937600000"), Ok("2025-09-15T12:00:00Z"))]);
        check(
            "timestamp",
            ms,
            &[(Text("2025-09-15T14:00:00.312000000+02:00"), Ok("2025-09-15T12:00:00.312Z")), (Int(-1), Ok("1969-12-31T23:59:59.999Z"))],
        );
        check("timestamp", ms, &[(Number("1757937600000000"), Err("\"1757937600000000\" lies outside the years 0001 to 9999"))]);
    }
}
