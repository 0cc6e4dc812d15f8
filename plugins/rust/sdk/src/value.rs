//! The Rust types that a column's values can have, and how each is read and written.
//! Never converts: a type of the contract has the Rust types listed here, and no others.

use crate::{Builder, DataType, DecimalType, Fixed, Text, View};
use std::{borrow::Cow, fmt};

/// A Rust type that a column may have. `Option<T>` is the same column with nulls.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no value of a column",
    label = "no column is of this type",
    note = "boolean: bool; int32, int64: i32, i64; float32, float64: f32, f64; decimal: Decimal<P, S>; string: &str, String, Cow<str>, Text; \
            json: Json<&str>, Json<String>; binary: &[u8], Vec<u8>; date, time, timestamp: Date, Time, Timestamp; nullable: Option of one of them"
)]
pub trait Value<'a>: Sized {
    /// The column's type.
    const TYPE: DataType;
    /// Whether the column may hold nulls.
    const NULLABLE: bool = false;
    /// Returns the row's value. Of a column with nulls, only `Option` may be read.
    fn read(column: &View<'a>, row: usize) -> Self;
    /// Adds the value to a column.
    fn write(&self, column: &mut Builder);
    /// Adds a null to a column of this type.
    fn write_null(column: &mut Builder);
}

/// An exact decimal with `P` digits in all, `S` of them after the point; the number inside counts the smallest unit.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Decimal<const P: u8, const S: i8>(pub i128);

impl<const P: u8, const S: i8> Decimal<P, S> {
    /// The first number with a digit too many.
    const END: u128 = 10u128.pow(P as u32);

    /// Returns the sum, or `None` if it has more than `P` digits.
    #[inline]
    pub fn checked_add<const Q: u8>(self, other: Decimal<Q, S>) -> Option<Self> {
        let sum = self.0.checked_add(other.0)?;
        (sum.unsigned_abs() < Self::END).then_some(Decimal(sum))
    }
}

impl<const P: u8, const S: i8> fmt::Display for Decimal<P, S> {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let scale = S.max(0) as usize;
        let digits = format!("{:0width$}", self.0.unsigned_abs(), width = scale + 1);
        let (whole, part) = digits.split_at(digits.len() - scale);
        f.write_str(if self.0 < 0 { "-" } else { "" })?;
        f.write_str(whole)?;
        if part.is_empty() { Ok(()) } else { write!(f, ".{part}") }
    }
}

/// Days since 1970-01-01.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Date(pub i32);

/// Microseconds since midnight.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Time(pub i64);

/// Microseconds since 1970-01-01T00:00:00Z.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Timestamp(pub i64);

/// JSON as text: `Json<&str>` to read, `Json<String>` to write what you made.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Json<T>(pub T);

impl Value<'_> for bool {
    const TYPE: DataType = DataType::Boolean;
    #[inline]
    fn read(column: &View<'_>, row: usize) -> Self {
        column.bit(row)
    }
    #[inline]
    fn write(&self, column: &mut Builder) {
        column.push_bit(*self);
    }
    fn write_null(column: &mut Builder) {
        column.push_null_bit();
    }
}

/// A type whose little-endian bytes are the value.
macro_rules! fixed {
    ($($type:ty = $variant:ident, $size:literal, $read:expr, $number:expr;)*) => {$(
        impl Value<'_> for $type {
            const TYPE: DataType = DataType::$variant;
            #[inline]
            fn read(column: &View<'_>, row: usize) -> Self {
                $read(column.fixed::<$size>(row))
            }
            #[inline]
            fn write(&self, column: &mut Builder) {
                column.push_fixed($number(*self).to_le_bytes());
            }
            fn write_null(column: &mut Builder) {
                column.push_null_fixed::<$size>();
            }
        }
        impl Fixed for $type {
            #[inline]
            fn values(bytes: &[u8]) -> impl ExactSizeIterator<Item = Self> + use<'_> {
                bytes.as_chunks::<$size>().0.iter().map(|chunk| $read(*chunk))
            }
        }
    )*};
}

fixed! {
    i32 = Int32, 4, i32::from_le_bytes, i32::from;
    i64 = Int64, 8, i64::from_le_bytes, i64::from;
    f32 = Float32, 4, f32::from_le_bytes, f32::from;
    f64 = Float64, 8, f64::from_le_bytes, f64::from;
    Date = Date, 4, |b| Date(i32::from_le_bytes(b)), |d: Date| d.0;
    Time = Time, 8, |b| Time(i64::from_le_bytes(b)), |t: Time| t.0;
    Timestamp = Timestamp, 8, |b| Timestamp(i64::from_le_bytes(b)), |t: Timestamp| t.0;
}

impl<const P: u8, const S: i8> Fixed for Decimal<P, S> {
    #[inline]
    fn values(bytes: &[u8]) -> impl ExactSizeIterator<Item = Self> + use<'_, P, S> {
        bytes.as_chunks::<16>().0.iter().map(|chunk| Decimal(i128::from_le_bytes(*chunk)))
    }
}

impl<const P: u8, const S: i8> Value<'_> for Decimal<P, S> {
    const TYPE: DataType = DataType::Decimal(DecimalType { precision: P, scale: S });
    #[inline]
    fn read(column: &View<'_>, row: usize) -> Self {
        Decimal(i128::from_le_bytes(column.fixed::<16>(row)))
    }
    #[inline]
    fn write(&self, column: &mut Builder) {
        column.push_fixed(self.0.to_le_bytes());
    }
    fn write_null(column: &mut Builder) {
        column.push_null_fixed::<16>();
    }
}

/// A type of any size: how bytes become it, and it becomes bytes.
macro_rules! sized {
    ($(<$life:lifetime> $type:ty = $variant:ident, $read:expr, $bytes:expr;)*) => {$(
        impl<$life> Value<$life> for $type {
            const TYPE: DataType = DataType::$variant;
            #[inline]
            fn read(column: &View<$life>, row: usize) -> Self {
                $read(column, row)
            }
            #[inline]
            fn write(&self, column: &mut Builder) {
                let bytes: fn(&Self) -> &[u8] = $bytes;
                column.push_bytes(bytes(self));
            }
            fn write_null(column: &mut Builder) {
                column.push_null_bytes();
            }
        }
    )*};
}

sized! {
    <'a> &'a str = Utf8, View::text, |s| s.as_bytes();
    <'a> String = Utf8, |c: &View<'a>, row| c.text(row).to_owned(), |s| s.as_bytes();
    <'a> Text = Utf8, |c: &View<'a>, row| Text::from(c.text(row)), |s| s.as_bytes();
    <'a> Cow<'a, str> = Utf8, |c: &View<'a>, row| Cow::Borrowed(c.text(row)), |s| s.as_bytes();
    <'a> Json<&'a str> = Json, |c: &View<'a>, row| Json(c.text(row)), |j| j.0.as_bytes();
    <'a> Json<String> = Json, |c: &View<'a>, row| Json(c.text(row).to_owned()), |j| j.0.as_bytes();
    <'a> &'a [u8] = Binary, View::bytes, |b| b;
    <'a> Vec<u8> = Binary, |c: &View<'a>, row| c.bytes(row).to_owned(), |b| b;
}

impl<'a, T: Value<'a>> Value<'a> for Option<T> {
    const TYPE: DataType = T::TYPE;
    const NULLABLE: bool = true;
    #[inline]
    fn read(column: &View<'a>, row: usize) -> Self {
        if column.is_null(row) { None } else { Some(T::read(column, row)) }
    }
    #[inline]
    fn write(&self, column: &mut Builder) {
        match self {
            Some(value) => value.write(column),
            None => T::write_null(column),
        }
    }
    fn write_null(column: &mut Builder) {
        T::write_null(column);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_read_as_people_write_them() {
        for (units, text) in [(0, "0.00"), (5, "0.05"), (-5, "-0.05"), (12345, "123.45"), (-10000, "-100.00")] {
            assert_eq!(Decimal::<18, 2>(units).to_string(), text);
        }
        assert_eq!(Decimal::<18, 0>(-7).to_string(), "-7");
    }

    #[test]
    fn a_sum_that_does_not_fit_is_none() {
        assert_eq!(Decimal::<3, 2>(990).checked_add(Decimal::<18, 2>(9)), Some(Decimal(999)));
        assert_eq!(Decimal::<3, 2>(990).checked_add(Decimal::<18, 2>(10)), None);
        assert_eq!(Decimal::<38, 0>(-10i128.pow(38) + 1).checked_add(Decimal::<38, 0>(-1)), None);
    }
}
