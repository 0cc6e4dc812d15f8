//! A declared column while it fills: its values, and what nulls, defaults and masks make of them.
//! Never knows a file format; what it was given and did not take leaves no trace.
//! Filled by the readers of each format, emptied into every chunk.

use super::{
    DecodeError,
    value::{Rule, Value, append, string},
};
use crate::{
    config::{Mask, OnBad, Source, SourceColumn},
    id::Digest,
    schema::DataType,
    time::{self, SECOND_US},
};
use arrow::{
    array::{
        ArrayRef, BinaryArray, BooleanArray, BooleanBufferBuilder, Date32Array, Decimal128Array, Float32Array, Float64Array, Int32Array, Int64Array,
        StringArray, Time64MicrosecondArray, TimestampMicrosecondArray,
    },
    buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer},
};
use chrono::{Datelike, NaiveDate, TimeDelta};
use std::{io::Write, sync::Arc};

/// Texts or byte strings, one behind the other.
#[derive(Debug)]
pub(super) struct Strings {
    pub(super) data: Vec<u8>,
    ends: Vec<i32>,
}

impl Default for Strings {
    fn default() -> Strings {
        Strings { data: Vec::new(), ends: vec![0] }
    }
}

impl Strings {
    pub(super) fn len(&self) -> usize {
        self.ends.len() - 1
    }

    /// Where the text that is being written starts.
    pub(super) fn start(&self) -> usize {
        self.ends[self.ends.len() - 1] as usize
    }

    /// Ends the text that was written into `data`.
    pub(super) fn close(&mut self) {
        // A chunk is cut long before this: see `Batch::is_full`.
        self.ends.push(i32::try_from(self.data.len()).expect("BUG: a chunk holds over 2 GiB of text"));
    }

    pub(super) fn push(&mut self, bytes: &[u8]) {
        self.data.extend_from_slice(bytes);
        self.close();
    }

    pub(super) fn truncate(&mut self, len: usize) {
        self.ends.truncate(len + 1);
        self.data.truncate(self.start());
    }

    fn at(&self, i: usize) -> &[u8] {
        &self.data[self.ends[i] as usize..self.ends[i + 1] as usize]
    }

    fn take(&mut self) -> (OffsetBuffer<i32>, Buffer) {
        // The next chunk is about as long: with a little more room it need not move when it is a few bytes longer.
        let bytes = self.data.len();
        let room = Strings { data: Vec::with_capacity(bytes + bytes / 16), ends: Vec::with_capacity(self.ends.len()) };
        let full = std::mem::replace(self, room);
        self.ends.push(0);
        (OffsetBuffer::new(ScalarBuffer::from(full.ends)), Buffer::from_vec(full.data))
    }

    pub(super) fn take_utf8(&mut self, nulls: Option<NullBuffer>) -> StringArray {
        let (offsets, data) = self.take();
        StringArray::try_new(offsets, data, nulls).expect("BUG: a text was not checked for UTF-8")
    }

    pub(super) fn take_binary(&mut self, nulls: Option<NullBuffer>) -> BinaryArray {
        let (offsets, data) = self.take();
        BinaryArray::new(offsets, data, nulls)
    }
}

/// The values of a column that is being filled, by how they are stored.
#[derive(Debug)]
pub(super) enum Values {
    Bool(Vec<bool>),
    I32(Vec<i32>),
    I64(Vec<i64>),
    F32(Vec<f32>),
    F64(Vec<f64>),
    I128(Vec<i128>),
    Bytes(Strings),
}

macro_rules! each {
    ($values:expr, $v:ident => $do:expr) => {
        match $values {
            Values::Bool($v) => $do,
            Values::I32($v) => $do,
            Values::I64($v) => $do,
            Values::F32($v) => $do,
            Values::F64($v) => $do,
            Values::I128($v) => $do,
            Values::Bytes($v) => $do,
        }
    };
}

impl Values {
    pub(super) fn new(data_type: DataType) -> Values {
        match data_type {
            DataType::Boolean => Values::Bool(vec![]),
            DataType::Int32 | DataType::Date => Values::I32(vec![]),
            DataType::Int64 | DataType::Time | DataType::Timestamp => Values::I64(vec![]),
            DataType::Float32 => Values::F32(vec![]),
            DataType::Float64 => Values::F64(vec![]),
            DataType::Decimal(..) => Values::I128(vec![]),
            DataType::String | DataType::Json | DataType::Binary => Values::Bytes(Strings::default()),
        }
    }

    pub(super) fn len(&self) -> usize {
        each!(self, v => v.len())
    }

    fn truncate(&mut self, len: usize) {
        each!(self, v => v.truncate(len))
    }

    /// Appends what stands for a null.
    fn push_blank(&mut self) {
        match self {
            Values::Bool(v) => v.push(false),
            Values::I32(v) => v.push(0),
            Values::I64(v) => v.push(0),
            Values::F32(v) => v.push(0.0),
            Values::F64(v) => v.push(0.0),
            Values::I128(v) => v.push(0),
            Values::Bytes(v) => v.close(),
        }
    }

    fn push_last_of(&mut self, other: &Values) {
        match (self, other.last()) {
            (Values::Bool(v), Scalar::Bool(x)) => v.push(x),
            (Values::I32(v), Scalar::I32(x)) => v.push(x),
            (Values::I64(v), Scalar::I64(x)) => v.push(x),
            (Values::F32(v), Scalar::F32(x)) => v.push(x),
            (Values::F64(v), Scalar::F64(x)) => v.push(x),
            (Values::I128(v), Scalar::I128(x)) => v.push(x),
            (Values::Bytes(v), Scalar::Bytes(x)) => v.push(x),
            _ => unreachable!("BUG: a default of another type than its column"),
        }
    }

    /// Returns the value that was appended last.
    pub(super) fn last(&self) -> Scalar<'_> {
        let i = self.len() - 1;
        match self {
            Values::Bool(v) => Scalar::Bool(v[i]),
            Values::I32(v) => Scalar::I32(v[i]),
            Values::I64(v) => Scalar::I64(v[i]),
            Values::F32(v) => Scalar::F32(v[i]),
            Values::F64(v) => Scalar::F64(v[i]),
            Values::I128(v) => Scalar::I128(v[i]),
            Values::Bytes(v) => Scalar::Bytes(v.at(i)),
        }
    }
}

/// One stored value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scalar<'a> {
    Bool(bool),
    I32(i32),
    I64(i64),
    F32(f32),
    F64(f64),
    I128(i128),
    Bytes(&'a [u8]),
}

impl Scalar<'_> {
    /// Appends the value as text, as it would stand in CSV; bytes in hex.
    pub(super) fn write_text(&self, data_type: DataType, out: &mut Vec<u8>) {
        let written = match (*self, data_type) {
            (Scalar::Bytes(b), DataType::Binary) => {
                write_hex(b, out);
                Ok(())
            }
            (Scalar::Bytes(b), _) => out.write_all(b),
            (Scalar::I32(days), DataType::Date) => {
                let date = NaiveDate::default().checked_add_signed(TimeDelta::days(days as i64)).unwrap_or_default();
                write!(out, "{:04}-{:02}-{:02}", date.year(), date.month(), date.day())
            }
            (Scalar::I64(us), DataType::Timestamp) => out.write_all(time::format_us(us).as_bytes()),
            (Scalar::I64(us), DataType::Time) => {
                let s = us.div_euclid(SECOND_US);
                let fraction = format!(".{:06}", us.rem_euclid(SECOND_US));
                let fraction = fraction.trim_end_matches('0').trim_end_matches('.');
                write!(out, "{:02}:{:02}:{:02}{fraction}", s / 3600, s / 60 % 60, s % 60)
            }
            (Scalar::I128(n), DataType::Decimal(_, scale)) => {
                let (sign, width) = (if n < 0 { "-" } else { "" }, scale as usize + 1);
                let digits = format!("{:0width$}", n.unsigned_abs());
                let (whole, fraction) = digits.split_at(digits.len() - scale as usize);
                write!(out, "{sign}{whole}{}{fraction}", if scale > 0 { "." } else { "" })
            }
            (Scalar::Bool(b), _) => write!(out, "{b}"),
            (Scalar::I32(n), _) => write!(out, "{n}"),
            (Scalar::I64(n), _) => write!(out, "{n}"),
            (Scalar::F32(f), _) => write!(out, "{f}"),
            (Scalar::F64(f), _) => write!(out, "{f}"),
            (Scalar::I128(n), _) => write!(out, "{n}"),
        };
        written.expect("BUG: writing to memory failed");
    }
}

/// Appends `bytes` in lower-case hex.
pub(super) fn write_hex(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.extend(bytes.iter().flat_map(|b| [DIGITS[(b >> 4) as usize], DIGITS[(b & 15) as usize]]));
}

/// A declared column while it fills.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) rule: Rule,
    pub(super) nullable: bool,
    pub(super) mask: Option<Mask>,
    /// Why the record cannot be without it, if it cannot.
    pub(super) required: Option<&'static str>,
    default: Option<Values>,
    on_bad: OnBad,
    values: Values,
    /// Rows that are null, ascending.
    nulls: Vec<usize>,
}

impl Column {
    /// Returns the empty column that `declared` describes.
    pub(super) fn new(declared: &SourceColumn, source: &Source) -> Result<Column, DecodeError> {
        let plausible = (declared.name == source.event_time).then_some(source.plausible);
        let rule = Rule { data_type: declared.data_type, zone: source.time_zone, unit: declared.unit, plausible };
        let required = if declared.name == source.event_time {
            Some("no event time")
        } else if source.record_id.as_ref() == Some(&declared.name) {
            Some("null record id")
        } else {
            (!declared.nullable).then_some("not nullable")
        };
        let mut column = Column {
            name: declared.name.clone(),
            rule,
            nullable: declared.nullable,
            mask: declared.mask,
            required,
            default: None,
            on_bad: declared.on_bad,
            values: Values::new(declared.data_type),
            nulls: vec![],
        };
        // What a dropped column would get is dropped too.
        if let Some(text) = declared.default.as_ref().filter(|_| declared.mask != Some(Mask::Drop)) {
            let bad = |reason| DecodeError::BadDefault { column: declared.name.clone(), reason };
            column.store(Value::Field(text)).map_err(bad)?;
            column.default = Some(std::mem::replace(&mut column.values, Values::new(declared.data_type)));
        }
        Ok(column)
    }

    /// Returns an empty column without default and mask, in which times without an offset are UTC.
    pub(super) fn bare(name: &str, data_type: DataType, nullable: bool) -> Column {
        let rule = Rule { data_type, zone: chrono_tz::Tz::UTC, unit: None, plausible: None };
        let required = (!nullable).then_some("not nullable");
        Column {
            name: name.into(),
            rule,
            nullable,
            mask: None,
            required,
            default: None,
            on_bad: OnBad::Reject,
            values: Values::new(data_type),
            nulls: vec![],
        }
    }

    /// Whether a record may come without it.
    pub(super) fn has_default(&self) -> bool {
        self.default.is_some()
    }

    pub(super) fn len(&self) -> usize {
        self.values.len()
    }

    /// Bytes of text that it holds.
    pub(super) fn text_bytes(&self) -> usize {
        if let Values::Bytes(v) = &self.values { v.data.len() } else { 0 }
    }

    /// Takes back all rows from `len` on.
    pub(super) fn truncate(&mut self, len: usize) {
        self.values.truncate(len);
        while self.nulls.pop_if(|row| *row >= len).is_some() {}
    }

    /// Appends what a record gets that lacks the column.
    pub(super) fn missing(&mut self) -> Result<(), String> {
        match (&self.default, self.required) {
            (Some(default), _) => self.values.push_last_of(default),
            (None, Some(why)) => return Err(format!("{} is missing: {why}", self.name)),
            (None, None) => self.push_null(),
        }
        Ok(())
    }

    /// Appends a null that stands in the record.
    pub(super) fn null(&mut self) -> Result<(), String> {
        match self.required {
            Some(why) => return Err(format!("{} is null: {why}", self.name)),
            None => self.push_null(),
        }
        Ok(())
    }

    /// Appends `value`, or what the column's rule for bad values makes of it.
    pub(super) fn put(&mut self, value: Value) -> Result<(), String> {
        if self.mask == Some(Mask::Drop) {
            return self.null();
        }
        match self.store(value) {
            Ok(()) => Ok(()),
            Err(reason) => self.bad(reason),
        }
    }

    /// Appends what becomes of a value that is bad for `reason`.
    pub(super) fn bad(&mut self, reason: String) -> Result<(), String> {
        match (self.on_bad, &self.default) {
            (OnBad::Default, Some(default)) => self.values.push_last_of(default),
            (OnBad::Null, _) if self.required.is_none() => self.push_null(),
            _ => return Err(format!("{} {reason}", self.name)),
        }
        Ok(())
    }

    fn store(&mut self, value: Value) -> Result<(), String> {
        let Some(mask) = self.mask else { return append(&mut self.values, value, &self.rule) };
        let Values::Bytes(out) = &mut self.values else {
            // Only a dropped column, which lands nothing but nulls, is of another type.
            return append(&mut self.values, value, &self.rule);
        };
        let text = string(value, self.rule.data_type).map_err(|_| "(masked) is not a string".to_owned())?;
        match mask {
            Mask::Sha256 => {
                write_hex(&Digest::of(text.as_bytes()).0, &mut out.data);
                out.close();
            }
            Mask::Redact => out.push(b"***"),
            Mask::Drop => out.push(text.as_bytes()),
        }
        Ok(())
    }

    pub(super) fn push_null(&mut self) {
        self.nulls.push(self.values.len());
        self.values.push_blank();
    }

    /// Returns the last row's value, or `None` if it is null.
    pub(super) fn last(&self) -> Option<Scalar<'_>> {
        (self.nulls.last() != Some(&(self.len() - 1))).then(|| self.values.last())
    }

    /// Returns the column as an Arrow array, and leaves it empty.
    pub(super) fn take(&mut self) -> ArrayRef {
        let rows = self.values.len();
        let nulls = (!self.nulls.is_empty()).then(|| {
            let mut valid = BooleanBufferBuilder::new(rows);
            valid.append_n(rows, true);
            self.nulls.drain(..).for_each(|row| valid.set_bit(row, false));
            NullBuffer::new(valid.finish())
        });
        fn full<T>(v: &mut Vec<T>) -> Vec<T> {
            let room = Vec::with_capacity(v.len());
            std::mem::replace(v, room)
        }
        match (&mut self.values, self.rule.data_type) {
            (Values::Bool(v), _) => Arc::new(BooleanArray::new(BooleanBuffer::from(full(v)), nulls)),
            (Values::I32(v), DataType::Date) => Arc::new(Date32Array::new(full(v).into(), nulls)),
            (Values::I32(v), _) => Arc::new(Int32Array::new(full(v).into(), nulls)),
            (Values::I64(v), DataType::Time) => Arc::new(Time64MicrosecondArray::new(full(v).into(), nulls)),
            (Values::I64(v), DataType::Timestamp) => Arc::new(TimestampMicrosecondArray::new(full(v).into(), nulls).with_timezone("UTC")),
            (Values::I64(v), _) => Arc::new(Int64Array::new(full(v).into(), nulls)),
            (Values::F32(v), _) => Arc::new(Float32Array::new(full(v).into(), nulls)),
            (Values::F64(v), _) => Arc::new(Float64Array::new(full(v).into(), nulls)),
            (Values::I128(v), t) => Arc::new(Decimal128Array::new(full(v).into(), nulls).with_data_type(t.arrow())),
            (Values::Bytes(v), DataType::Binary) => Arc::new(v.take_binary(nulls)),
            (Values::Bytes(v), _) => Arc::new(v.take_utf8(nulls)),
        }
    }
}
