//! Landed rows on their way into Parquet: buffered, clustered by event day, encoded on a second thread.
//! Never holds more than two buffers, whatever the size of the files. Nothing it writes is visible.

use super::IngestError;
use crate::{
    catalog::Table,
    datafile::{Writer, Written},
    decode::{Chunk, Reject},
    schema::{DataType, envelope},
    store::Store,
    time::{DAY_US, IngestTime},
};
use arrow::{
    array::{ArrayRef, BinaryArray, Int32Array, Int64Array, RecordBatch, StringArray, TimestampMicrosecondArray, new_null_array},
    compute::interleave_record_batch,
};
use std::sync::{Arc, mpsc};

/// A buffer becomes a file when it holds so many rows…
const FILE_ROWS: usize = 1 << 20;
/// … or so many bytes.
const FILE_BYTES: usize = 128 << 20;
/// Rows per written batch.
const WRITE_ROWS: usize = 8192;

/// The columns of a raw table, and where a declared one stands in a chunk.
pub(super) struct RawShape {
    pub(super) table: Table,
    declared: Vec<Option<usize>>,
    keep_payload: bool,
}

impl RawShape {
    pub(super) fn new(table: Table, declared: &[String], keep_payload: bool) -> RawShape {
        let declared = table.columns.iter().map(|c| declared.iter().position(|d| *d == c.field.name)).collect();
        RawShape { table, declared, keep_payload }
    }

    /// Returns the rows of a chunk as rows of the raw table.
    pub(super) fn batch(
        &self,
        chunk: &Chunk,
        flags: Vec<i32>,
        file: &str,
        at: IngestTime,
        first_seq: i64,
    ) -> Result<RecordBatch, arrow::error::ArrowError> {
        let rows = chunk.offsets.len();
        let utc = |v: Vec<i64>| Arc::new(TimestampMicrosecondArray::from(v).with_timezone("UTC")) as ArrayRef;
        let mut flags = Some(flags);
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.table.columns.len());
        for (column, declared) in self.table.columns.iter().zip(&self.declared) {
            columns.push(match column.field.name.as_str() {
                envelope::RECORD_ID => Arc::new(chunk.record_ids.clone()),
                envelope::EVENT_TIME => utc(chunk.event_times.clone()),
                envelope::INGESTED_AT => utc(vec![at.0; rows]),
                envelope::FILE => Arc::new(StringArray::from_iter_values(std::iter::repeat_n(file, rows))),
                envelope::OFFSET => Arc::new(Int64Array::from(chunk.offsets.clone())),
                envelope::FLAGS => Arc::new(Int32Array::from(flags.take().unwrap_or_default())),
                envelope::SEQ => Arc::new(Int64Array::from_iter_values(first_seq..first_seq + rows as i64)),
                envelope::PAYLOAD_HASH => Arc::new(Int64Array::from(chunk.payload_hashes.clone())),
                envelope::PAYLOAD if self.keep_payload => Arc::new(chunk.payloads.clone()),
                _ => match declared {
                    Some(i) => chunk.columns[*i].clone(),
                    None => new_null_array(&column.field.data_type.arrow(), rows),
                },
            });
        }
        RecordBatch::try_new(schema(&self.table), columns)
    }
}

fn schema(table: &Table) -> arrow::datatypes::SchemaRef {
    Arc::new(arrow::datatypes::Schema::new(table.columns.iter().map(|c| c.field.arrow(Some(c.id))).collect::<Vec<_>>()))
}

/// Rows that will be one file.
#[derive(Default)]
pub(super) struct Buffer {
    batches: Vec<RecordBatch>,
    days: Vec<i64>,
    bytes: usize,
}

impl Buffer {
    pub(super) fn push(&mut self, batch: RecordBatch, event_times: &[i64]) {
        self.bytes += batch.get_array_memory_size();
        self.days.extend(event_times.iter().map(|t| t.div_euclid(DAY_US)));
        self.batches.push(batch);
    }

    pub(super) fn is_full(&self) -> bool {
        self.days.len() >= FILE_ROWS || self.bytes >= FILE_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.days.is_empty()
    }

    /// Writes the rows, clustered by UTC day and inside a day in arrival order.
    fn write(&self, store: &Store, path: String, table: &Table) -> Result<Written, IngestError> {
        let mut writer = Writer::create(store, path, table)?;
        if self.days.is_sorted() {
            for batch in &self.batches {
                writer.write(batch)?;
            }
            return Ok(writer.finish()?);
        }
        let mut places: Vec<(i64, (usize, usize))> = Vec::with_capacity(self.days.len());
        let rows = self.batches.iter().enumerate().flat_map(|(b, batch)| (0..batch.num_rows()).map(move |r| (b, r)));
        places.extend(self.days.iter().copied().zip(rows));
        places.sort_by_key(|(day, _)| *day);
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        for chunk in places.chunks(WRITE_ROWS) {
            let indices: Vec<(usize, usize)> = chunk.iter().map(|(_, place)| *place).collect();
            writer.write(&interleave_record_batch(&batches, &indices)?)?;
        }
        Ok(writer.finish()?)
    }
}

/// Writes full buffers as files of a staging folder until the channel closes.
pub(super) fn write_buffers(store: &Store, staging: &str, table: &Table, buffers: mpsc::Receiver<Buffer>) -> Result<Vec<Written>, IngestError> {
    let mut written = Vec::new();
    for buffer in buffers {
        let path = format!("{staging}/raw-{}.parquet", written.len());
        written.push(buffer.write(store, path, table)?);
    }
    Ok(written)
}

/// Rejected records, written as they come.
pub(super) struct RejectWriter<'r> {
    store: &'r Store,
    path: String,
    table: Table,
    keep_payload: bool,
    writer: Option<Writer>,
}

impl<'r> RejectWriter<'r> {
    pub(super) fn new(store: &'r Store, staging: &str, table: Table, keep_payload: bool) -> RejectWriter<'r> {
        RejectWriter { store, path: format!("{staging}/rejects.parquet"), table, keep_payload, writer: None }
    }

    pub(super) fn write(&mut self, rejects: &[Reject], file: &str, at: IngestTime) -> Result<(), IngestError> {
        if rejects.is_empty() {
            return Ok(());
        }
        let mut columns: Vec<ArrayRef> = Vec::new();
        for column in &self.table.columns {
            columns.push(match column.field.name.as_str() {
                envelope::FILE => Arc::new(StringArray::from_iter_values(std::iter::repeat_n(file, rejects.len()))),
                envelope::OFFSET => Arc::new(Int64Array::from_iter_values(rejects.iter().map(|r| r.offset))),
                envelope::INGESTED_AT => Arc::new(TimestampMicrosecondArray::from(vec![at.0; rejects.len()]).with_timezone("UTC")),
                envelope::REASON => Arc::new(StringArray::from_iter_values(rejects.iter().map(|r| r.reason.as_str()))),
                _ if column.field.data_type == DataType::Binary && self.keep_payload => {
                    Arc::new(BinaryArray::from_iter(rejects.iter().map(|r| r.payload.as_deref())))
                }
                _ => new_null_array(&column.field.data_type.arrow(), rejects.len()),
            });
        }
        let batch = RecordBatch::try_new(schema(&self.table), columns)?;
        if self.writer.is_none() {
            self.writer = Some(Writer::create(self.store, self.path.clone(), &self.table)?);
        }
        if let Some(writer) = &mut self.writer {
            writer.write(&batch)?;
        }
        Ok(())
    }

    pub(super) fn finish(self) -> Result<(Table, Option<Written>), IngestError> {
        Ok((self.table, self.writer.map(Writer::finish).transpose()?))
    }
}
