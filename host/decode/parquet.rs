//! Parquet: columns by name, adapted to the declared types exactly or not at all.
//! Never rounds: a value that would lose something makes its row a reject; only the part of a time below a microsecond is cut off, as in text.
//! One of the formats of `decode`; whole columns pass as they are where the types allow it.

use super::{
    Batch, Chunk, Column, DecodeError, Reject, Scalar, Strings,
    cells::{Cells, hashes},
    csv::{first_names, is_asked_for, missing_column},
    number::to_base64,
    open::Opened,
    value::{Value, is_clock, is_date, one_float},
    write_hex,
};
use crate::{
    config::Source,
    id::Digest,
    schema::DataType,
    time::{self, END_US, MIN_US},
};
use arrow::{
    array::{Array, ArrayRef, AsArray, BinaryArray, BooleanArray, PrimitiveArray, RecordBatch, StringArray},
    compute::{CastOptions, cast_with_options, filter},
    datatypes::{self as types, DataType as ArrowType, Field, TimeUnit, i256},
    util::display::array_value_to_string,
};
use chrono_tz::Tz;
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReaderBuilder},
    },
    errors::ParquetError,
    file::metadata::ParquetMetaData,
};
use std::{
    collections::BTreeMap,
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Arc,
};

/// Decodes all rows of `opened`.
pub(super) fn decode<E: From<DecodeError>>(
    source: &Source,
    file: &Path,
    opened: Opened,
    batch: &mut Batch,
    sink: &mut dyn FnMut(Chunk) -> Result<(), E>,
) -> Result<(), E> {
    let input = opened.seekable()?;
    let size = std::fs::metadata(file).map_or(0, |m| m.len());
    // Arrow's own schema, which some writers add, is left aside: types are those that every reader of Parquet sees.
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let builder = guarded(file, || ParquetRecordBatchReaderBuilder::<File>::try_new_with_options(input, options))?;
    let fields = builder.schema().fields().clone();
    let places = places(source, file, &fields, batch)?;
    let mut roots: Vec<usize> = places.iter().flatten().copied().collect();
    roots.sort_unstable();
    roots.dedup();
    let unknown: Vec<String> = fields.iter().map(|f| f.name().clone()).filter(|name| !is_asked_for(name, source)).collect();
    let rows_total = builder.metadata().file_metadata().num_rows().max(1) as u64;
    let rows = rows_at_once(builder.metadata(), batch);
    let mask = ProjectionMask::roots(builder.parquet_schema(), roots.iter().copied());
    let mut reader = guarded(file, || builder.with_projection(mask).with_batch_size(rows).build())?;
    // Places among the columns that are read.
    let places: Vec<Option<usize>> = places.iter().map(|p| p.and_then(|root| roots.binary_search(&root).ok())).collect();
    let mut row = 0u64;
    while let Some(read) = guarded(file, || reader.next().transpose().map_err(ParquetError::from))? {
        let first = row;
        row += read.num_rows() as u64;
        let bytes_read = (size as u128 * row.min(rows_total) as u128 / rows_total as u128) as u64;
        let chunk = chunk(batch, &read, &places, first as i64 + 1, bytes_read);
        sink(chunk)?;
    }
    unknown.iter().for_each(|name| batch.summary.unknown.add(name, row));
    Ok(())
}

/// Does one step of the Parquet reader, which panics over some damaged files.
fn guarded<T>(file: &Path, step: impl FnOnce() -> Result<T, ParquetError>) -> Result<T, DecodeError> {
    // Nothing of a reader is used again after it has panicked.
    let done = catch_unwind(AssertUnwindSafe(step)).unwrap_or_else(|_| Err(ParquetError::General("the reader panicked over it".into())));
    done.map_err(|source| DecodeError::Parquet { file: file.to_owned(), source })
}

/// Returns where each declared column stands in the file, and checks that it is the only one of its name, and its type can become the declared
/// one.
fn places(source: &Source, file: &Path, fields: &[Arc<Field>], batch: &Batch) -> Result<Vec<Option<usize>>, DecodeError> {
    let find = |name: &str| fields.iter().position(|f| f.name() == name);
    let places: Vec<Option<usize>> =
        source.columns.iter().map(|c| find(&c.name).or_else(|| c.aliases.iter().find_map(|alias| find(alias)))).collect();
    let known = || first_names(fields.iter().map(|f| f.name()));
    missing_column(file, &batch.columns, batch.event_time, batch.record_id, |i| places[i].is_some(), known)?;
    for (column, place) in batch.columns.iter().zip(&places) {
        let Some(field) = place.map(|i| &fields[i]) else { continue };
        if fields.iter().filter(|f| f.name() == field.name()).count() > 1 {
            return Err(DecodeError::Twice { file: file.to_owned(), column: field.name().clone(), declared: column.name.clone() });
        }
        if !can_become(field.data_type(), column) {
            return Err(DecodeError::WrongType {
                file: file.to_owned(),
                column: column.name.clone(),
                found: field.data_type().to_string(),
                declared: column.rule.data_type.to_string(),
            });
        }
    }
    Ok(places)
}

fn can_become(found: &ArrowType, column: &Column) -> bool {
    use ArrowType::*;
    let text = *found == Utf8;
    let integer = found.is_integer();
    let decimal = matches!(found, Decimal128(..) | Decimal256(..));
    match (column.rule.data_type, found) {
        // A column of nulls only has this type.
        (_, Null) => true,
        (DataType::Boolean, t) => *t == Boolean,
        (DataType::Int32 | DataType::Int64, _) => integer || decimal,
        (DataType::Float32 | DataType::Float64, t) => integer || t.is_floating(),
        (DataType::Decimal(..), _) => integer || decimal || text,
        (DataType::String | DataType::Json, _) => text,
        (DataType::Binary, t) => matches!(t, Binary | FixedSizeBinary(_)),
        (DataType::Date, t) => text || *t == Date32,
        (DataType::Time, t) => text || matches!(t, Time32(_) | Time64(_)),
        (DataType::Timestamp, t) => text || matches!(t, Timestamp(..)) || (integer && column.rule.unit.is_some()),
    }
}

/// Rows are read in pieces of about the bytes of a chunk, going by what the file says of its sizes.
fn rows_at_once(metadata: &ParquetMetaData, batch: &Batch) -> usize {
    let row_bytes = metadata.row_groups().iter().map(|group| {
        let texts: i64 = group.columns().iter().filter_map(|c| c.unencoded_byte_array_data_bytes()).sum();
        group.total_byte_size().max(texts).max(0) as u64 / group.num_rows().max(1) as u64
    });
    let rows = batch.options.chunk_bytes_max as u64 / row_bytes.max().unwrap_or(0).max(1);
    rows.clamp(1, batch.options.chunk_rows_max as u64) as usize
}

/// Rows that cannot be taken, with the first reason of each.
type BadRows = BTreeMap<usize, String>;

fn chunk(batch: &mut Batch, read: &RecordBatch, places: &[Option<usize>], first_row: i64, bytes_read: u64) -> Chunk {
    let rows = read.num_rows();
    let mut bad = BadRows::new();
    let mut columns: Vec<ArrayRef> = Vec::with_capacity(places.len());
    for (column, place) in batch.columns.iter_mut().zip(places) {
        let array = place.map(|i| read.column(i));
        columns.push(array.and_then(|a| whole(a, column)).unwrap_or_else(|| each(array, rows, column, &mut bad)));
    }
    if !bad.is_empty() {
        let keep: BooleanArray = (0..rows).map(|row| Some(!bad.contains_key(&row))).collect();
        for column in &mut columns {
            *column = filter(column, &keep).expect("BUG: a filter of another length than its column");
        }
    }
    let mut offsets: Vec<i64> = (first_row..).take(rows).collect();
    if !bad.is_empty() {
        offsets.retain(|offset| !bad.contains_key(&((offset - first_row) as usize)));
    }
    let (record_ids, payload_hashes) = names(batch, &columns, offsets.len());
    batch.summary.records += offsets.len() as u64;
    for (row, reason) in bad {
        let payload = Some(row_json(batch, read, places, row));
        batch.push_reject(Reject { offset: first_row + row as i64, byte_offset: None, reason, payload });
    }
    Chunk {
        record_ids,
        event_times: columns[batch.event_time].as_primitive::<types::TimestampMicrosecondType>().values().to_vec(),
        payloads: BinaryArray::new_null(offsets.len()),
        offsets,
        payload_hashes,
        columns,
        rejects: std::mem::take(&mut batch.rejects),
        bytes_read,
    }
}

/// Returns a row as JSON text: the columns that were read, under the file's names, masked ones as `***`.
fn row_json(batch: &Batch, read: &RecordBatch, places: &[Option<usize>], row: usize) -> Vec<u8> {
    let mut out = vec![b'{'];
    for (i, (field, array)) in read.schema().fields().iter().zip(read.columns()).enumerate() {
        if i > 0 {
            out.push(b',');
        }
        push_text(field.name(), &mut out);
        out.push(b':');
        let of = |(column, place): &(&Column, &Option<usize>)| **place == Some(i) && column.mask.is_some();
        let masked = batch.columns.iter().zip(places).any(|pair| of(&pair));
        match array.is_null(row) || *array.data_type() == ArrowType::Null {
            true => out.extend_from_slice(b"null"),
            false if masked => push_text("***", &mut out),
            false => push_cell(array, row, batch.columns[batch.event_time].rule.zone, &mut out),
        }
    }
    out.push(b'}');
    out
}

fn push_text(text: &str, out: &mut Vec<u8>) {
    out.extend_from_slice(serde_json::Value::from(text).to_string().as_bytes());
}

/// Appends a value as JSON Lines would give it: numbers with all digits, bytes in base64, times in UTC.
fn push_cell(array: &ArrayRef, row: usize, zone: Tz, out: &mut Vec<u8>) {
    let as_text = |scalar: Scalar, data_type: DataType, out: &mut Vec<u8>| {
        out.push(b'"');
        scalar.write_text(data_type, out);
        out.push(b'"');
    };
    match value(array, row, zone) {
        Ok(Value::Bool(b)) => Scalar::Bool(b).write_text(DataType::Boolean, out),
        Ok(Value::Int(n)) => Scalar::I128(n).write_text(DataType::Int64, out),
        Ok(Value::Decimal(n, scale)) if scale >= 0 => Scalar::I128(n).write_text(DataType::Decimal(38, scale), out),
        Ok(Value::Float(f)) if f.is_finite() => out.extend_from_slice(serde_json::Value::from(f).to_string().as_bytes()),
        Ok(Value::Float(f)) => push_text(&f.to_string(), out),
        Ok(Value::Text(text)) => push_text(text, out),
        Ok(Value::Bytes(bytes)) => {
            out.push(b'"');
            to_base64(bytes, out);
            out.push(b'"');
        }
        Ok(Value::Days(d)) if is_date(d) => as_text(Scalar::I32(d), DataType::Date, out),
        Ok(Value::Micros(us)) if matches!(array.data_type(), ArrowType::Timestamp(..)) => as_text(Scalar::I64(us), DataType::Timestamp, out),
        Ok(Value::Micros(us)) if is_clock(us) => as_text(Scalar::I64(us), DataType::Time, out),
        // What has no such form is shown as Arrow shows it.
        _ => push_text(&array_value_to_string(array, row).unwrap_or_default(), out),
    }
}

/// Returns the id and the hash of each row.
fn names(batch: &Batch, columns: &[ArrayRef], rows: usize) -> (StringArray, Vec<i64>) {
    let cells: Vec<Cells> = columns.iter().map(Cells::of).collect();
    let hashes = hashes(&cells, rows);
    // An id that is a text is its column, which is not copied.
    if let Some(ids) = batch.record_id.and_then(|i| columns[i].as_string_opt::<i32>()) {
        return (ids.clone(), hashes);
    }
    let (mut ids, mut row_bytes) = (Strings::default(), vec![]);
    for row in 0..rows {
        match batch.record_id {
            Some(i) => {
                let Some(id) = cells[i].at(row) else { unreachable!("BUG: a row without its id") };
                id.write_text(batch.columns[i].rule.data_type, &mut ids.data);
            }
            None => {
                row_bytes.clear();
                cells.iter().for_each(|c| c.append(row, &mut row_bytes));
                write_hex(&Digest::of(&row_bytes).0, &mut ids.data);
            }
        }
        ids.close();
    }
    (ids.take_utf8(None), hashes)
}

/// Returns the column without looking at single values, if nothing in it can be lost, refused or masked.
fn whole(array: &ArrayRef, column: &Column) -> Option<ArrayRef> {
    use ArrowType::*;
    let (found, target) = (array.data_type(), column.rule.data_type.arrow());
    if column.mask.is_some() || column.rule.data_type == DataType::Json || (column.required.is_some() && array.null_count() > 0) {
        return None;
    }
    let utc = column.rule.zone == Tz::UTC;
    let lossless = *found == target
        || matches!(
            (found, &target),
            (Int8 | Int16 | UInt8 | UInt16, Int32 | Int64)
                | (Int32 | UInt32, Int64)
                | (Float32, Float64)
                | (FixedSizeBinary(_), Binary)
                | (Time32(_), Time64(_))
                | (Timestamp(TimeUnit::Millisecond | TimeUnit::Microsecond, Some(_)), Timestamp(..))
        )
        || matches!(found, Timestamp(TimeUnit::Millisecond | TimeUnit::Microsecond, None) if utc);
    if !lossless {
        return None;
    }
    // Values that overflow are looked at one by one.
    let cast = cast_with_options(array, &target, &CastOptions { safe: false, ..Default::default() }).ok()?;
    match &target {
        Timestamp(..) => {
            let good = |us| (MIN_US..END_US).contains(&us) && column.rule.implausible(us, false).is_none();
            all(cast.as_primitive::<types::TimestampMicrosecondType>(), good).then_some(cast)
        }
        Time64(_) => all(cast.as_primitive::<types::Time64MicrosecondType>(), is_clock).then_some(cast),
        Date32 => all(cast.as_primitive::<types::Date32Type>(), is_date).then_some(cast),
        Float32 => Some(Arc::new(cast.as_primitive::<types::Float32Type>().unary::<_, types::Float32Type>(|f| one_float(f as f64) as f32))),
        Float64 => Some(Arc::new(cast.as_primitive::<types::Float64Type>().unary::<_, types::Float64Type>(one_float))),
        _ => Some(cast),
    }
}

fn all<T: types::ArrowPrimitiveType>(array: &PrimitiveArray<T>, good: impl Fn(T::Native) -> bool) -> bool {
    array.iter().flatten().all(good)
}

/// Puts the values of `array`, or what stands for a missing column, into `column` one by one.
fn each(array: Option<&ArrayRef>, rows: usize, column: &mut Column, bad: &mut BadRows) -> ArrayRef {
    let zone = column.rule.zone;
    for row in 0..rows {
        let put = match array {
            None => column.missing(),
            Some(a) if a.is_null(row) || *a.data_type() == ArrowType::Null => column.null(),
            Some(a) => match value(a, row, zone) {
                Ok(value) => column.put(value),
                Err(reason) => column.bad(reason),
            },
        };
        if let Err(reason) = put {
            bad.entry(row).or_insert(reason);
            // It keeps the rows in step until they are filtered.
            column.push_null();
        }
    }
    column.take()
}

/// Returns the value at `row`, which is not null. Zoneless timestamps are wall times in `zone`.
fn value(array: &ArrayRef, row: usize, zone: Tz) -> Result<Value<'_>, String> {
    macro_rules! at {
        ($t:ident) => {
            array.as_primitive::<types::$t>().value(row)
        };
    }
    use ArrowType::*;
    Ok(match array.data_type() {
        Boolean => Value::Bool(array.as_boolean().value(row)),
        Int8 => Value::Int(at!(Int8Type).into()),
        Int16 => Value::Int(at!(Int16Type).into()),
        Int32 => Value::Int(at!(Int32Type).into()),
        Int64 => Value::Int(at!(Int64Type).into()),
        UInt8 => Value::Int(at!(UInt8Type).into()),
        UInt16 => Value::Int(at!(UInt16Type).into()),
        UInt32 => Value::Int(at!(UInt32Type).into()),
        UInt64 => Value::Int(at!(UInt64Type).into()),
        Float16 => Value::Float(at!(Float16Type).to_f64()),
        Float32 => Value::Float(at!(Float32Type).into()),
        Float64 => Value::Float(at!(Float64Type)),
        Decimal128(_, scale) => Value::Decimal(at!(Decimal128Type), *scale),
        Decimal256(_, scale) => wide_decimal(at!(Decimal256Type), *scale)?,
        Utf8 => Value::Text(array.as_string::<i32>().value(row)),
        Binary => Value::Bytes(array.as_binary::<i32>().value(row)),
        FixedSizeBinary(_) => Value::Bytes(array.as_fixed_size_binary().value(row)),
        Date32 => Value::Days(at!(Date32Type)),
        Time32(_) => Value::Micros(at!(Time32MillisecondType) as i64 * 1000),
        Time64(TimeUnit::Nanosecond) => Value::Micros(at!(Time64NanosecondType).div_euclid(1000)),
        Time64(_) => Value::Micros(at!(Time64MicrosecondType)),
        Timestamp(unit, declared_zone) => {
            let us = match unit {
                TimeUnit::Nanosecond => at!(TimestampNanosecondType).div_euclid(1000),
                TimeUnit::Microsecond => at!(TimestampMicrosecondType),
                _ => at!(TimestampMillisecondType).saturating_mul(1000),
            };
            Value::Micros(if declared_zone.is_none() { wall(us, zone)? } else { us })
        }
        other => unreachable!("BUG: {other} passed the check of types"),
    })
}

fn wide_decimal(n: i256, scale: i8) -> Result<Value<'static>, String> {
    n.to_i128().map(|n| Value::Decimal(n, scale)).ok_or_else(|| format!("{n}e{} has more than 38 digits", -(scale as i32)))
}

/// A wall time in `zone`, as microseconds that pretend to be UTC, becomes the instant: by the rule of [`time::parse`].
fn wall(us: i64, zone: Tz) -> Result<i64, String> {
    if zone == Tz::UTC || !(MIN_US..END_US).contains(&us) {
        return Ok(us);
    }
    let text = time::format_us(us);
    time::parse(text.trim_end_matches('Z'), zone).map(|t| t.0).map_err(|e| e.to_string())
}
