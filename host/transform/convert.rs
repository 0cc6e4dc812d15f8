//! Arrow batches to the contract's columns and back.
//! Never builds an array of what has not been checked, and never shows a guest what stands under a null.
//! `sandbox` calls it on both sides of guest code.

use super::{Input, TransformError};
use crate::{
    checksum::{one_f32, one_f64},
    schema::{DataType, Field, half_pair},
    time::{DAY_US, END_US, MIN_US},
};
use arrow::{
    array::{Array, ArrayData, ArrayRef, BinaryArray, RecordBatch, RecordBatchOptions, StringArray, make_array},
    buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer},
    datatypes::SchemaRef,
};
use std::{ops::Range, sync::Arc};

// The contract is little-endian, and buffers are copied as they are.
const _: () = assert!(cfg!(target_endian = "little"), "restitch needs a little-endian machine");

/// How a type's values are laid out.
enum Layout {
    Bits,
    Fixed(usize),
    Sized,
}

fn layout(t: DataType) -> Layout {
    match t {
        DataType::Boolean => Layout::Bits,
        DataType::Int32 | DataType::Float32 | DataType::Date => Layout::Fixed(4),
        DataType::Int64 | DataType::Float64 | DataType::Time | DataType::Timestamp => Layout::Fixed(8),
        DataType::Decimal(..) => Layout::Fixed(16),
        DataType::String | DataType::Json | DataType::Binary => Layout::Sized,
    }
}

/// A column on its way in. Buffers are kept where they are unless they start in the middle.
#[derive(Debug, Default)]
pub(super) struct Sent {
    pub validity: Bytes,
    pub offsets: Bytes,
    pub values: Bytes,
}

/// Bytes of an Arrow buffer, or a copy of them.
#[derive(Debug)]
pub(super) enum Bytes {
    Kept(Buffer),
    Copied(Vec<u8>),
}

impl Default for Bytes {
    fn default() -> Bytes {
        Bytes::Copied(Vec::new())
    }
}

impl std::ops::Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        match self {
            Bytes::Kept(buffer) => buffer.as_slice(),
            Bytes::Copied(bytes) => bytes,
        }
    }
}

/// A column on its way out, as the guest made it.
#[derive(Debug, Default)]
pub(super) struct Returned {
    pub validity: Vec<u8>,
    pub offsets: Vec<u8>,
    pub values: Vec<u8>,
}

/// Returns how many rows the batch has, as the contract counts them.
pub(super) fn row_count(input: &Input, batch: &RecordBatch) -> Result<u32, TransformError> {
    let too_many = |_| TransformError::BadInput { input: input.name.clone(), column: None, problem: format!("{} rows", batch.num_rows()) };
    batch.num_rows().try_into().map_err(too_many)
}

/// Returns the batch's columns for the guest.
pub(super) fn columns(input: &Input, batch: &RecordBatch) -> Result<Vec<Sent>, TransformError> {
    let bad = |column: Option<&Field>, problem: String| TransformError::BadInput {
        input: input.name.clone(),
        column: column.map(|f| f.name.clone()),
        problem,
    };
    if batch.num_columns() != input.fields.len() {
        return Err(bad(None, format!("{} columns instead of {}", batch.num_columns(), input.fields.len())));
    }
    let mut sent = Vec::with_capacity(input.fields.len());
    for (field, array) in input.fields.iter().zip(batch.columns()) {
        if *array.data_type() != field.data_type.arrow() {
            return Err(bad(Some(field), format!("{} instead of {}", array.data_type(), field.data_type.arrow())));
        }
        if !field.nullable && array.null_count() > 0 {
            return Err(TransformError::Nulls { input: input.name.clone(), column: field.name.clone(), nulls: array.null_count() });
        }
        sent.push(send(field.data_type, array.as_ref()));
    }
    Ok(sent)
}

fn send(data_type: DataType, array: &dyn Array) -> Sent {
    let data = array.to_data();
    let (offset, rows) = (data.offset(), data.len());
    let nulls = data.nulls().filter(|n| n.null_count() > 0);
    let validity = nulls.map_or_else(Bytes::default, |n| bits(n.inner(), None));
    match layout(data_type) {
        Layout::Bits => {
            let values = BooleanBuffer::new(data.buffers()[0].clone(), offset, rows);
            let values = bits(&values, nulls);
            Sent { validity, values, ..Sent::default() }
        }
        Layout::Fixed(size) => {
            let buffer = data.buffers()[0].slice_with_length(offset * size, rows * size);
            Sent { validity, values: zero_nulls(buffer, nulls, size), ..Sent::default() }
        }
        Layout::Sized => {
            let offsets = data.buffers()[0].slice_with_length(offset * 4, if rows == 0 { 0 } else { (rows + 1) * 4 });
            let (offsets, values) = texts(offsets, &data.buffers()[1], nulls, rows);
            Sent { validity, offsets, values }
        }
    }
}

/// Returns the bits from the first byte's lowest on; bits past the end, and under nulls, are zero.
fn bits(from: &BooleanBuffer, nulls: Option<&NullBuffer>) -> Bytes {
    let rows = from.len();
    let mut bytes = match from.offset().is_multiple_of(8) {
        true => from.values()[from.offset() / 8..][..rows.div_ceil(8)].to_vec(),
        false => from.sliced().as_slice()[..rows.div_ceil(8)].to_vec(),
    };
    if !rows.is_multiple_of(8)
        && let Some(last) = bytes.last_mut()
    {
        *last &= (1 << (rows % 8)) - 1;
    }
    if let Some(nulls) = nulls {
        let valid = bits(nulls.inner(), None);
        bytes.iter_mut().zip(valid.iter()).for_each(|(b, v)| *b &= v);
    }
    Bytes::Copied(bytes)
}

/// Returns the values with zeros under nulls: what stands there depends on how the batch came about, and a
/// guest that looks must not be able to tell.
fn zero_nulls(buffer: Buffer, nulls: Option<&NullBuffer>, size: usize) -> Bytes {
    let Some(nulls) = nulls else { return Bytes::Kept(buffer) };
    let mut bytes = buffer.as_slice().to_vec();
    for row in null_rows(nulls) {
        bytes[row * size..][..size].fill(0);
    }
    Bytes::Copied(bytes)
}

fn null_rows(nulls: &NullBuffer) -> impl Iterator<Item = usize> {
    (0..nulls.len()).filter(|&row| nulls.is_null(row))
}

/// Returns offsets from 0 and the values they point to, nothing else: rebuilt if a slice or a null left gaps.
fn texts(offsets: Buffer, values: &Buffer, nulls: Option<&NullBuffer>, rows: usize) -> (Bytes, Bytes) {
    if rows == 0 {
        return (Bytes::Copied(vec![0; 4]), Bytes::default());
    }
    let at = |i: usize| read_i32(&offsets, i) as usize;
    let (first, last) = (at(0), at(rows));
    if nulls.is_some_and(|n| null_rows(n).any(|row| at(row) != at(row + 1))) {
        let (mut new_offsets, mut new_values) = (vec![0; 4], Vec::with_capacity(last - first));
        for row in 0..rows {
            if nulls.is_none_or(|n| n.is_valid(row)) {
                new_values.extend_from_slice(&values[at(row)..at(row + 1)]);
            }
            new_offsets.extend_from_slice(&(new_values.len() as i32).to_le_bytes());
        }
        return (Bytes::Copied(new_offsets), Bytes::Copied(new_values));
    }
    let values = Bytes::Kept(values.slice_with_length(first, last - first));
    if first == 0 {
        return (Bytes::Kept(offsets), values);
    }
    let rebased = (0..=rows).flat_map(|i| ((at(i) - first) as i32).to_le_bytes()).collect();
    (Bytes::Copied(rebased), values)
}

fn read_i32(bytes: &[u8], i: usize) -> i32 {
    i32::from_le_bytes(chunk(bytes, i))
}

fn chunk<const N: usize>(bytes: &[u8], i: usize) -> [u8; N] {
    *bytes[i * N..].first_chunk().expect("BUG: a length that was not checked")
}

/// Returns the batch that a guest returned, if it is what `fields` promise.
pub(super) fn record_batch(fields: &[Field], schema: SchemaRef, rows: usize, columns: Vec<Returned>) -> Result<RecordBatch, TransformError> {
    let bad = |column: Option<&Field>, problem: String| TransformError::BadBatch { column: column.map(|f| f.name.clone()), problem };
    if columns.len() != fields.len() {
        return Err(bad(None, format!("{} columns instead of {}", columns.len(), fields.len())));
    }
    let arrays = fields.iter().zip(columns).map(|(field, mut column)| {
        check(field, rows, &column).map_err(|problem| bad(Some(field), problem))?;
        one_of_equals(field.data_type, &mut column.values);
        match layout(field.data_type) {
            Layout::Sized => sized(field, rows, column).map_err(|problem| bad(Some(field), problem)),
            _ => array(field, rows, column).map_err(|e| bad(Some(field), e.to_string())),
        }
    });
    let arrays: Vec<ArrayRef> = arrays.collect::<Result<_, _>>()?;
    let options = RecordBatchOptions::new().with_row_count(Some(rows));
    RecordBatch::try_new_with_options(schema, arrays, &options).map_err(|e| bad(None, e.to_string()))
}

/// Gives equal floats equal bits, as landed ones have: rows are put in order by them, and keys are told apart.
fn one_of_equals(data_type: DataType, values: &mut [u8]) {
    match data_type {
        DataType::Float32 => values.as_chunks_mut().0.iter_mut().for_each(|bytes| *bytes = one_f32(f32::from_le_bytes(*bytes)).to_le_bytes()),
        DataType::Float64 => values.as_chunks_mut().0.iter_mut().for_each(|bytes| *bytes = one_f64(f64::from_le_bytes(*bytes)).to_le_bytes()),
        _ => {}
    }
}

fn array(field: &Field, rows: usize, column: Returned) -> Result<ArrayRef, arrow::error::ArrowError> {
    let mut builder = ArrayData::builder(field.data_type.arrow()).len(rows);
    if !column.validity.is_empty() {
        builder = builder.null_bit_buffer(Some(Buffer::from_vec(column.validity)));
    }
    // A `Vec<u8>` may start anywhere; where it matters, Arrow moves it. Then it checks everything once more.
    Ok(make_array(builder.add_buffer(Buffer::from_vec(column.values)).align_buffers(true).build()?))
}

/// As [`array`], of values of any size: Arrow looks at them once, and we only where it says no, for the words.
fn sized(field: &Field, rows: usize, column: Returned) -> Result<ArrayRef, String> {
    let Returned { validity, offsets, values } = column;
    let nulls = (!validity.is_empty()).then(|| NullBuffer::new(BooleanBuffer::new(Buffer::from_vec(validity), 0, rows)));
    let nulls = nulls.filter(|n| n.null_count() > 0);
    let offsets: ScalarBuffer<i32> = match Buffer::from_vec(offsets) {
        offsets if offsets.as_ptr().align_offset(align_of::<i32>()) == 0 => offsets.into(),
        // A `Vec<u8>` may start anywhere.
        offsets => (0..=rows).map(|i| read_i32(&offsets, i)).collect(),
    };
    check_offsets(&offsets, values.len())?;
    let (offsets, values) = (OffsetBuffer::new(offsets), Buffer::from_vec(values));
    if field.data_type == DataType::Binary {
        return BinaryArray::try_new(offsets, values, nulls).map(|a| Arc::new(a) as ArrayRef).map_err(|e| e.to_string());
    }
    let texts = StringArray::try_new(offsets.clone(), values.clone(), nulls).map_err(|e| {
        let split = |row: &usize| std::str::from_utf8(&values[offsets[*row] as usize..offsets[row + 1] as usize]).is_err();
        (0..rows).find(split).map_or_else(|| e.to_string(), |row| format!("the text in row {row} is not UTF-8"))
    })?;
    if field.data_type == DataType::Json {
        let broken = |row: &usize| texts.is_valid(*row) && serde_json::from_str::<serde::de::IgnoredAny>(texts.value(*row)).is_err();
        if let Some(row) = (0..rows).find(broken) {
            return Err(format!("the text in row {row} is not JSON"));
        }
        let half = |row: usize| half_pair(texts.value(row).as_bytes()).map(|at| (row, at));
        if let Some((row, at)) = (0..rows).filter(|&row| texts.is_valid(row)).find_map(half) {
            let escape = &texts.value(row)[at..at + 6];
            return Err(format!("the text in row {row} holds {escape} at its byte {}: half a surrogate pair, which is no character", at + 1));
        }
    }
    Ok(Arc::new(texts))
}

/// Says what is wrong with a column, in the words of the contract.
fn check(field: &Field, rows: usize, column: &Returned) -> Result<(), String> {
    let length = |what: &str, bytes: &[u8], expected: usize| match bytes.len() == expected {
        true => Ok(()),
        false => Err(format!("{} bytes of {what} for {rows} rows, not {expected}", bytes.len())),
    };
    if !column.validity.is_empty() {
        length("validity", &column.validity, rows.div_ceil(8))?;
    }
    let valid = |row: usize| column.validity.is_empty() || column.validity[row / 8] >> (row % 8) & 1 == 1;
    if !field.nullable
        && let Some(row) = (0..if column.validity.is_empty() { 0 } else { rows }).find(|&row| !valid(row))
    {
        return Err(format!("a null in row {row}, and the column may have none"));
    }
    if !matches!(layout(field.data_type), Layout::Sized) {
        length("offsets", &column.offsets, 0)?;
    }
    match layout(field.data_type) {
        Layout::Bits => length("values", &column.values, rows.div_ceil(8))?,
        Layout::Fixed(size) => length("values", &column.values, rows * size)?,
        Layout::Sized => length("offsets", &column.offsets, (rows + 1) * 4)?,
    }
    check_values(field.data_type, rows, column, valid)
}

fn check_offsets(offsets: &[i32], values_len: usize) -> Result<(), String> {
    let (Some(first), Some(end)) = (offsets.first(), offsets.last()) else { return Err("no offsets".into()) };
    if *first != 0 {
        return Err(format!("the first offset is {first}, not 0"));
    }
    // Without an early end, the compiler makes vector code of it.
    let falls = offsets.windows(2).fold(false, |falls, pair| falls | (pair[0] > pair[1]));
    if falls && let Some(row) = offsets.windows(2).position(|pair| pair[0] > pair[1]) {
        return Err(format!("offsets fall in row {row}, from {} to {}", offsets[row], offsets[row + 1]));
    }
    match *end as usize == values_len {
        true => Ok(()),
        false => Err(format!("the last offset is {end}, and there are {values_len} bytes of values")),
    }
}

/// Days of the years 0001 to 9999, counted from 1970.
const DAYS: Range<i32> = (MIN_US / DAY_US) as i32..(END_US / DAY_US) as i32;

/// Checks what a length cannot say of numbers: digits, times of day, years.
fn check_values(data_type: DataType, rows: usize, column: &Returned, valid: impl Fn(usize) -> bool) -> Result<(), String> {
    let values = &column.values;
    match data_type {
        DataType::Decimal(precision, _) => {
            let end = 10u128.pow(precision.into());
            let long = |row: &usize| valid(*row) && i128::from_le_bytes(chunk(values, *row)).unsigned_abs() >= end;
            (0..rows).find(long).map_or(Ok(()), |row| Err(format!("the decimal in row {row} has more than {precision} digits")))
        }
        DataType::Time => {
            let row = outside(values, valid, |time| !(0..DAY_US).contains(&i64::from_le_bytes(time)));
            row.map_or(Ok(()), |row| Err(format!("the time in row {row} is not within a day")))
        }
        DataType::Date => {
            let row = outside(values, valid, |day| !DAYS.contains(&i32::from_le_bytes(day)));
            row.map_or(Ok(()), |row| Err(format!("the date in row {row} lies outside the years 0001 to 9999")))
        }
        DataType::Timestamp => {
            let row = outside(values, valid, |at| !(MIN_US..END_US).contains(&i64::from_le_bytes(at)));
            row.map_or(Ok(()), |row| Err(format!("the timestamp in row {row} lies outside the years 0001 to 9999")))
        }
        _ => Ok(()),
    }
}

/// Returns the first row whose value is not null and is outside. All are looked at first, without an end before the last: the compiler makes vector code of it.
fn outside<const N: usize>(values: &[u8], valid: impl Fn(usize) -> bool, is_outside: impl Fn([u8; N]) -> bool) -> Option<usize> {
    let values = values.as_chunks::<N>().0;
    if !values.iter().fold(false, |any, value| any | is_outside(*value)) {
        return None;
    }
    (0..values.len()).find(|row| valid(*row) && is_outside(values[*row]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::{
        array::*,
        datatypes::{Int32Type, Schema},
    };

    fn input(fields: &[Field]) -> Input {
        Input { name: "rows".into(), fields: fields.to_vec() }
    }

    fn batch(fields: &[Field], arrays: Vec<ArrayRef>) -> RecordBatch {
        let schema = Schema::new(fields.iter().map(|f| f.arrow(None)).collect::<Vec<_>>());
        RecordBatch::try_new(Arc::new(schema), arrays).unwrap()
    }

    /// Ten rows of every type, every third one null.
    fn every_type() -> (Vec<Field>, RecordBatch) {
        let types = ["boolean", "int32", "int64", "float32", "float64", "decimal(20,3)", "string", "json", "binary", "date", "time", "timestamp"];
        let fields: Vec<Field> = types.iter().map(|t| Field::new(*t, DataType::parse(t).unwrap(), true)).collect();
        let n = |i: i64| (i % 3 != 0).then_some(i);
        let all = || (0..10).map(n);
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(all().map(|v| v.map(|v| v % 2 == 0)).collect::<BooleanArray>()),
            Arc::new(all().map(|v| v.map(|v| v as i32 - 5)).collect::<Int32Array>()),
            Arc::new(all().map(|v| v.map(|v| (1 << 53) + v)).collect::<Int64Array>()),
            Arc::new(all().map(|v| v.map(|v| v as f32 / 3.0)).collect::<Float32Array>()),
            Arc::new(all().map(|v| v.map(|v| v as f64 / -3.0)).collect::<Float64Array>()),
            Arc::new(all().map(|v| v.map(|v| i128::from(v) - 7)).collect::<Decimal128Array>().with_precision_and_scale(20, 3).unwrap()),
            Arc::new(all().map(|v| v.map(|v| "ü".repeat(v as usize))).collect::<StringArray>()),
            Arc::new(all().map(|v| v.map(|v| format!("[{v}]"))).collect::<StringArray>()),
            Arc::new(all().map(|v| v.map(|v| vec![255u8; v as usize])).collect::<BinaryArray>()),
            Arc::new(all().map(|v| v.map(|v| v as i32 * 1000)).collect::<Date32Array>()),
            Arc::new(all().collect::<Time64MicrosecondArray>()),
            Arc::new(all().collect::<TimestampMicrosecondArray>().with_timezone("UTC")),
        ];
        let batch = batch(&fields, arrays);
        (fields, batch)
    }

    fn there_and_back(fields: &[Field], batch: &RecordBatch) -> RecordBatch {
        let sent = columns(&input(fields), batch).unwrap();
        let returned =
            sent.iter().map(|s| Returned { validity: s.validity.to_vec(), offsets: s.offsets.to_vec(), values: s.values.to_vec() }).collect();
        record_batch(fields, batch.schema(), batch.num_rows(), returned).unwrap()
    }

    #[test]
    fn every_type_crosses_whole_and_in_slices() {
        let (fields, all) = every_type();
        for start in 0..=10 {
            for length in 0..=10 - start {
                let slice = all.slice(start, length);
                assert_eq!(there_and_back(&fields, &slice), slice, "{length} rows from {start}");
            }
        }
    }

    #[test]
    fn equal_floats_come_back_with_equal_bits() {
        let fields = [Field::new("f", DataType::Float32, false), Field::new("d", DataType::Float64, false)];
        let schema = Arc::new(Schema::new(fields.iter().map(|f| f.arrow(None)).collect::<Vec<_>>()));
        let (f, d) =
            ([-0.0, 0.0, f32::NAN, -f32::NAN, f32::from_bits(0x7f80_0001), -1.5], [-0.0, 0.0, f64::NAN, -f64::NAN, f64::from_bits(!0), -1.5]);
        let fixed = |values: Vec<u8>| Returned { values, ..Returned::default() };
        let columns = vec![fixed(f.iter().flat_map(|x| x.to_le_bytes()).collect()), fixed(d.iter().flat_map(|x| x.to_le_bytes()).collect())];
        let batch = record_batch(&fields, schema, 6, columns).unwrap();
        let bits = |x: &f32| x.to_bits();
        let f = batch.column(0).as_primitive::<arrow::datatypes::Float32Type>().values().iter().map(bits).collect::<Vec<_>>();
        assert_eq!(f, [0.0, 0.0, f32::NAN, f32::NAN, f32::NAN, -1.5].map(f32::to_bits));
        let d = batch.column(1).as_primitive::<arrow::datatypes::Float64Type>().values().iter().map(|x| x.to_bits()).collect::<Vec<_>>();
        assert_eq!(d, [0.0, 0.0, f64::NAN, f64::NAN, f64::NAN, -1.5].map(f64::to_bits));
    }

    #[test]
    fn a_guest_cannot_tell_how_a_batch_came_about() {
        let (fields, all) = every_type();
        let bytes = |batch: &RecordBatch| -> Vec<Vec<u8>> {
            let sent = columns(&input(&fields), batch).unwrap();
            sent.iter().flat_map(|s| [s.validity.to_vec(), s.offsets.to_vec(), s.values.to_vec()]).collect()
        };
        let slice = all.slice(3, 5);
        let rebuilt = arrow::compute::concat_batches(&all.schema(), [&slice]).unwrap();
        assert_eq!(bytes(&slice), bytes(&rebuilt));
        // The same column with values under its nulls.
        let nulls = NullBuffer::from(vec![true, false, true]);
        let fields = [Field::new("n", DataType::Int32, true), Field::new("t", DataType::String, true), Field::new("b", DataType::Boolean, true)];
        let make = |n: i32, t: &str, b: bool| {
            let text = StringArray::from(vec!["a", t, "b"]).into_data().into_builder().nulls(Some(nulls.clone())).build().unwrap();
            let numbers = PrimitiveArray::<Int32Type>::new(vec![1, n, 2].into(), Some(nulls.clone()));
            let flags = BooleanArray::new(vec![true, b, true].into(), Some(nulls.clone()));
            let batch = batch(&fields, vec![Arc::new(numbers), make_array(text), Arc::new(flags)]);
            let sent = columns(&input(&fields), &batch).unwrap();
            sent.iter().flat_map(|s| [s.validity.to_vec(), s.offsets.to_vec(), s.values.to_vec()]).collect::<Vec<_>>()
        };
        assert_eq!(make(0, "", false), make(77, "hidden", true));
    }

    #[test]
    fn a_batch_of_another_schema_is_refused() {
        let (fields, all) = every_type();
        let refuse = |fields: &[Field]| columns(&input(fields), &all).unwrap_err().to_string();
        assert_eq!(refuse(&fields[1..]), "input \"rows\": 12 columns instead of 11");
        let mut swapped = fields.clone();
        swapped.swap(1, 2);
        assert_eq!(refuse(&swapped), "input \"rows\": column \"int64\": Int32 instead of Int64");
        let strict: Vec<Field> = fields.iter().map(|f| Field::new(&f.name, f.data_type, false)).collect();
        assert_eq!(refuse(&strict), "input \"rows\": column \"boolean\": 4 nulls in a column that may have none");
    }

    #[test]
    fn broken_columns_are_refused_with_the_place() {
        let offsets = |list: &[i32]| list.iter().flat_map(|o| o.to_le_bytes()).collect::<Vec<u8>>();
        let text = |o: &[i32], values: &[u8]| Returned { offsets: offsets(o), values: values.to_vec(), ..Returned::default() };
        let check = |t: &str, rows: usize, column: Returned, expected: &str| {
            let field = Field::new("c", DataType::parse(t).unwrap(), false);
            let schema = Arc::new(Schema::new(vec![field.arrow(None)]));
            let error = record_batch(&[field], schema, rows, vec![column]).unwrap_err();
            assert_eq!(error.to_string(), format!("it returned a broken batch: column \"c\": {expected}"));
        };
        let fixed = |values: &[u8]| Returned { values: values.to_vec(), ..Returned::default() };
        check("int32", 2, fixed(&[0; 7]), "7 bytes of values for 2 rows, not 8");
        check("boolean", 9, fixed(&[0]), "1 bytes of values for 9 rows, not 2");
        check("int32", 1, text(&[0, 1], &[0; 4]), "8 bytes of offsets for 1 rows, not 0");
        check("int32", 1, Returned { validity: vec![0], ..fixed(&[0; 4]) }, "a null in row 0, and the column may have none");
        check("int32", 1, Returned { validity: vec![1, 1], ..fixed(&[0; 4]) }, "2 bytes of validity for 1 rows, not 1");
        check("string", 1, text(&[0], b""), "4 bytes of offsets for 1 rows, not 8");
        check("string", 0, fixed(b""), "0 bytes of offsets for 0 rows, not 4");
        check("string", 1, text(&[1, 2], b"ab"), "the first offset is 1, not 0");
        check("string", 2, text(&[0, 2, 1], b"ab"), "offsets fall in row 1, from 2 to 1");
        check("binary", 1, text(&[0, 3], b"ab"), "the last offset is 3, and there are 2 bytes of values");
        check("string", 2, text(&[0, 1, 2], b"a\xff"), "the text in row 1 is not UTF-8");
        check("string", 2, text(&[0, 1, 2], "ü".as_bytes()), "the text in row 0 is not UTF-8");
        check("json", 2, text(&[0, 2, 3], b"{}{"), "the text in row 1 is not JSON");
        let half = br#"0"\ud800"#;
        let said = "the text in row 1 holds \\ud800 at its byte 2: half a surrogate pair, which is no character";
        check("json", 2, text(&[0, 1, 9], &[half.as_slice(), b"\""].concat()), said);
        check("decimal(2,0)", 1, fixed(&100i128.to_le_bytes()), "the decimal in row 0 has more than 2 digits");
        check("time", 1, fixed(&DAY_US.to_le_bytes()), "the time in row 0 is not within a day");
        let years = "lies outside the years 0001 to 9999";
        for (good, bad) in [(DAYS.start, DAYS.start - 1), (DAYS.end - 1, DAYS.end), (0, i32::MIN), (0, i32::MAX)] {
            let days = [good, bad].map(i32::to_le_bytes).concat();
            check("date", 2, fixed(&days), &format!("the date in row 1 {years}"));
        }
        for (good, bad) in [(MIN_US, MIN_US - 1), (END_US - 1, END_US), (0, i64::MIN), (0, i64::MAX)] {
            let times = [good, bad].map(i64::to_le_bytes).concat();
            check("timestamp", 2, fixed(&times), &format!("the timestamp in row 1 {years}"));
        }
    }

    #[test]
    fn what_stands_under_a_null_is_of_no_account() {
        for (t, size) in [("time", 8), ("date", 4), ("timestamp", 8)] {
            let field = Field::new("c", DataType::parse(t).unwrap(), true);
            let schema = Arc::new(Schema::new(vec![field.arrow(None)]));
            let column = Returned { validity: vec![0b01], values: [vec![0; size], vec![0x7f; size]].concat(), ..Returned::default() };
            assert_eq!(record_batch(&[field], schema, 2, vec![column]).unwrap().column(0).null_count(), 1, "{t}");
        }
    }
}
