//! One value that an aggregate came to, compared exactly where it is exact.
//! Never rounds an integer or a decimal through a double.
//! `Aggregate` makes them; balance checks compare and print them.

use super::{QueryError, format};
use crate::config::parse_tolerance;
use arrow::datatypes::i256;
use datafusion::scalar::ScalarValue;
use std::fmt;

/// A single value.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// No value: an aggregate over no rows.
    Null,
    /// An integer.
    Int(i128),
    /// `unscaled` / 10^`scale`.
    Decimal {
        /// The digits.
        unscaled: i128,
        /// How many of them stand after the point.
        scale: u8,
    },
    /// A floating-point number.
    Float(f64),
    /// Text; also dates and times, which read as RFC 3339.
    Text(String),
    /// True or false.
    Bool(bool),
}

impl Value {
    pub(super) fn of(scalar: &ScalarValue) -> Result<Value, QueryError> {
        if scalar.is_null() {
            return Ok(Value::Null);
        }
        let overflow = || QueryError::Execution { message: format!("{scalar} has more than 38 digits") };
        Ok(match scalar {
            ScalarValue::Boolean(Some(b)) => Value::Bool(*b),
            ScalarValue::Int8(Some(n)) => Value::Int((*n).into()),
            ScalarValue::Int16(Some(n)) => Value::Int((*n).into()),
            ScalarValue::Int32(Some(n)) => Value::Int((*n).into()),
            ScalarValue::Int64(Some(n)) => Value::Int((*n).into()),
            ScalarValue::UInt8(Some(n)) => Value::Int((*n).into()),
            ScalarValue::UInt16(Some(n)) => Value::Int((*n).into()),
            ScalarValue::UInt32(Some(n)) => Value::Int((*n).into()),
            ScalarValue::UInt64(Some(n)) => Value::Int((*n).into()),
            ScalarValue::Float32(Some(f)) => Value::Float((*f).into()),
            ScalarValue::Float64(Some(f)) => Value::Float(*f),
            ScalarValue::Decimal32(Some(n), _, s) => Value::decimal((*n).into(), *s).ok_or_else(overflow)?,
            ScalarValue::Decimal64(Some(n), _, s) => Value::decimal((*n).into(), *s).ok_or_else(overflow)?,
            ScalarValue::Decimal128(Some(n), _, s) => Value::decimal(*n, *s).ok_or_else(overflow)?,
            ScalarValue::Decimal256(Some(n), _, s) => n.to_i128().and_then(|n| Value::decimal(n, *s)).ok_or_else(overflow)?,
            other => Value::Text(format::cell(&*other.to_array().map_err(|e| QueryError::of(e, &[]))?, 0)),
        })
    }

    fn decimal(unscaled: i128, scale: i8) -> Option<Value> {
        match u8::try_from(scale) {
            Ok(0) => Some(Value::Int(unscaled)),
            Ok(scale) => Some(Value::Decimal { unscaled, scale }),
            Err(_) => unscaled.checked_mul(10i128.checked_pow(scale.unsigned_abs().into())?).map(Value::Int),
        }
    }

    /// Returns `self - other`, exactly unless one of them is a floating-point number; `None` if one is no number, or the digits do not fit.
    pub fn difference(&self, other: &Value) -> Option<Value> {
        match (self.digits(), other.digits()) {
            (Some(a), Some(b)) => {
                let (a, b, scale) = aligned(a, b)?;
                Value::decimal(a.checked_sub(b)?.to_i128()?, scale.try_into().ok()?)
            }
            _ => Some(Value::Float(self.float()? - other.float()?)),
        }
    }

    /// Returns whether the two differ by no more than `tolerance`, a decimal. What is no number has to be equal; null equals null.
    pub fn within(&self, other: &Value, tolerance: &str) -> bool {
        if self == other {
            return true;
        }
        if let (Some(a), Some(b), Some((digits, after_point))) = (self.digits(), other.digits(), parse_tolerance(tolerance))
            && let Some((a, b, scale)) = aligned(a, b)
            && let Some((t, difference, _)) =
                a.checked_sub(b).and_then(|d| aligned((i256::from_i128(digits), after_point), (d.wrapping_abs(), scale)))
        {
            return difference <= t;
        }
        match (self.float(), other.float()) {
            (Some(a), Some(b)) => a == b || (a.is_nan() && b.is_nan()) || (a - b).abs() <= tolerance.trim().parse().unwrap_or(0.0),
            _ => false,
        }
    }

    fn digits(&self) -> Option<(i256, u32)> {
        match self {
            Value::Int(n) => Some((i256::from_i128(*n), 0)),
            Value::Decimal { unscaled, scale } => Some((i256::from_i128(*unscaled), (*scale).into())),
            _ => None,
        }
    }

    fn float(&self) -> Option<f64> {
        match self {
            Value::Int(n) => Some(*n as f64),
            Value::Decimal { unscaled, scale } => Some(*unscaled as f64 / 10f64.powi((*scale).into())),
            Value::Float(f) => Some(*f),
            _ => None,
        }
    }
}

fn aligned(a: (i256, u32), b: (i256, u32)) -> Option<(i256, i256, u32)> {
    let scale = a.1.max(b.1);
    let up = |(n, s): (i256, u32)| n.checked_mul(i256::from_i128(10).checked_pow(scale - s)?);
    Some((up(a)?, up(b)?, scale))
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Int(n) => write!(f, "{n}"),
            Value::Decimal { unscaled, scale } => {
                let scale = usize::from(*scale);
                let digits = format!("{:0>width$}", unscaled.unsigned_abs(), width = scale + 1);
                let (whole, fraction) = digits.split_at(digits.len() - scale);
                write!(f, "{}{whole}.{fraction}", if *unscaled < 0 { "-" } else { "" })
            }
            Value::Float(n) => write!(f, "{n}"),
            Value::Text(t) => f.write_str(t),
            Value::Bool(b) => write!(f, "{b}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decimal(unscaled: i128, scale: u8) -> Value {
        Value::Decimal { unscaled, scale }
    }

    #[test]
    fn numbers_are_compared_exactly() {
        let big = decimal(12_345_678_901_234_567_890_123_456_789_012_345_678, 2);
        let next = decimal(12_345_678_901_234_567_890_123_456_789_012_345_679, 2);
        for (a, b, tolerance, expected) in [
            (&big, &next, "0", false),
            (&big, &next, "0.009", false),
            (&big, &next, "0.01", true),
            (&decimal(100, 2), &Value::Int(1), "0", true),
            (&Value::Int(3), &Value::Int(5), "1.99", false),
            (&Value::Int(3), &Value::Int(5), "2", true),
            (&Value::Int(9_007_199_254_740_993), &Value::Int(9_007_199_254_740_992), "1e-3", false),
            (&Value::Int(9_007_199_254_740_993), &Value::Int(9_007_199_254_740_992), "1e0", true),
            (&big, &next, "1e-2", true),
            (&big, &next, "0.00999999999999999999999999999999999999", false),
            (&Value::Float(0.1 + 0.2), &Value::Float(0.3), "0", false),
            (&Value::Float(0.1 + 0.2), &decimal(3, 1), "1e-9", true),
            (&Value::Float(f64::NAN), &Value::Float(f64::NAN), "0", true),
            (&Value::Null, &Value::Null, "0", true),
            (&Value::Null, &Value::Int(0), "1", false),
            (&Value::Text("a".into()), &Value::Text("b".into()), "9", false),
        ] {
            assert_eq!(a.within(b, tolerance), expected, "{a} {b} {tolerance}");
            assert_eq!(b.within(a, tolerance), expected, "{b} {a} {tolerance}");
        }
        assert_eq!(next.difference(&big), Some(decimal(1, 2)));
        assert_eq!(decimal(150, 2).difference(&Value::Int(2)).unwrap().to_string(), "-0.50");
        assert_eq!(Value::Int(i128::MAX).difference(&Value::Int(-1)), None);
        assert_eq!(Value::Float(1.5).difference(&Value::Int(1)), Some(Value::Float(0.5)));
        assert_eq!(Value::Text("a".into()).difference(&Value::Int(1)), None);
    }

    #[test]
    fn values_read_as_they_are_written() {
        assert_eq!(decimal(-5, 2).to_string(), "-0.05");
        assert_eq!(decimal(12345, 2).to_string(), "123.45");
        assert_eq!(Value::of(&ScalarValue::Decimal128(Some(7), 38, 0)).unwrap(), Value::Int(7));
        assert_eq!(Value::of(&ScalarValue::TimestampMicrosecond(Some(1_500_000), Some("UTC".into()))).unwrap().to_string(), "1970-01-01T00:00:01.5Z");
    }
}
