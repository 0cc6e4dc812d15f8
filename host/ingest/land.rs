//! Landed rows on their way into Parquet: buffered, clustered by event day, encoded.
//! Never holds more than one buffer, whatever the size of the files. Nothing it writes is visible.

use super::IngestError;
use crate::{
    catalog::Table,
    config::Source,
    datafile::{Writer, Written},
    decode::{Chunk, Reject},
    schema::{DataType, envelope},
    store::Store,
    time::{DAY_US, IngestTime},
};
use arrow::{
    array::{
        Array, ArrayRef, AsArray, BinaryArray, Capacities, DictionaryArray, Int32Array, Int64Array, MutableArrayData, RecordBatch, StringArray,
        TimestampMicrosecondArray, make_array, new_null_array,
    },
    compute::interleave,
    error::ArrowError,
};
use std::sync::Arc;

/// A buffer becomes a file when it holds so many rows…
const FILE_ROWS: usize = 1 << 19;
/// … or so many bytes.
const FILE_BYTES: usize = 64 << 20;
/// Rows per written batch.
const WRITE_ROWS: usize = 16_384;

/// The columns of a raw table, and what each is made of.
pub(super) struct RawShape {
    pub(super) table: Table,
    made_of: Vec<Made>,
    /// Columns that the source declares.
    declared: usize,
    at: IngestTime,
}

/// What a raw column is made of: a column of a piece, by its place there, or what is the same for all records of an ingest or of a file, or
/// counted, and is made when rows are written.
#[derive(Clone, Copy)]
enum Made {
    Column(usize),
    IngestedAt,
    File,
    Flags,
    Seq,
    Null,
}

/// Columns of a piece before the declared ones.
const OWN: [&str; 5] = [envelope::RECORD_ID, envelope::EVENT_TIME, envelope::OFFSET, envelope::PAYLOAD_HASH, envelope::PAYLOAD];

impl RawShape {
    pub(super) fn new(table: Table, source: &Source, at: IngestTime) -> RawShape {
        let declared: Vec<&str> = source.columns.iter().map(|c| c.name.as_str()).collect();
        // The event time is its column, and so is an id that is a text.
        let text = |name: &str| source.columns.iter().any(|c| c.name == name && c.data_type == DataType::String);
        let id = source.record_id.as_deref().filter(|id| text(id));
        let made = |name: &str| match name {
            envelope::INGESTED_AT => Made::IngestedAt,
            envelope::FILE => Made::File,
            envelope::FLAGS => Made::Flags,
            envelope::SEQ => Made::Seq,
            envelope::PAYLOAD if !source.keep_payload => Made::Null,
            _ => {
                let name = match name {
                    _ if name == source.event_time => envelope::EVENT_TIME,
                    _ if Some(name) == id => envelope::RECORD_ID,
                    _ => name,
                };
                OWN.iter().chain(&declared).position(|n| *n == name).map_or(Made::Null, Made::Column)
            }
        };
        let made_of = table.columns.iter().map(|c| made(&c.field.name)).collect();
        RawShape { table, made_of, declared: declared.len(), at }
    }

    /// Returns rows of the raw table: those of `runs`. Columns that are made of the same are the same array.
    fn rows(&self, pieces: &[Piece], runs: &[Run]) -> Result<RecordBatch, ArrowError> {
        let count: usize = runs.iter().map(|(.., count)| count).sum();
        // Where runs are short, rows are copied one by one.
        let short: &[Run] = if runs.len() * RUN_ROWS_MIN > count { runs } else { &[] };
        let single: Vec<(usize, usize)> = short.iter().flat_map(|(p, first, count)| (*first..first + count).map(move |row| (*p, row))).collect();
        let mut made: Vec<Option<ArrayRef>> = vec![None; OWN.len() + self.declared];
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(self.made_of.len());
        for (column, of) in self.table.columns.iter().zip(&self.made_of) {
            columns.push(match of {
                Made::Column(i) if let Some(array) = &made[*i] => array.clone(),
                Made::Column(i) => {
                    let arrays: Vec<&dyn Array> = pieces.iter().map(|p| p.columns[*i].as_ref()).collect();
                    let array = if single.is_empty() { copied(&arrays, runs)? } else { interleave(&arrays, &single)? };
                    made[*i].insert(array).clone()
                }
                Made::IngestedAt => Arc::new(TimestampMicrosecondArray::from(vec![self.at.0; count]).with_timezone("UTC")),
                Made::Flags => {
                    let mut flags = Vec::with_capacity(count);
                    runs.iter().for_each(|(p, first, count)| flags.extend_from_slice(&pieces[*p].flags[*first..first + count]));
                    Arc::new(Int32Array::from(flags))
                }
                Made::Seq => {
                    let mut seq = Vec::with_capacity(count);
                    runs.iter().for_each(|(p, first, count)| seq.extend((pieces[*p].first_seq + *first as i64..).take(*count)));
                    Arc::new(Int64Array::from(seq))
                }
                Made::File => {
                    let names = StringArray::from_iter_values(pieces.iter().map(|p| &p.file));
                    let keys = Int32Array::from_iter_values(runs.iter().flat_map(|(p, _, count)| std::iter::repeat_n(*p as i32, *count)));
                    Arc::new(DictionaryArray::try_new(keys, Arc::new(names))?)
                }
                Made::Null => new_null_array(&column.field.data_type.arrow(), count),
            });
        }
        // A column that is the same for many rows is a dictionary here, which the writer takes for what it stands for.
        let fields = self.table.columns.iter().zip(&columns);
        let fields: Vec<_> = fields.map(|(c, array)| c.field.arrow(Some(c.id)).with_data_type(array.data_type().clone())).collect();
        RecordBatch::try_new(Arc::new(arrow::datatypes::Schema::new(fields)), columns)
    }
}

/// Rows that are neighbours before and after: a piece's number, its first row, how many.
type Run = (usize, usize, usize);

/// Rows that a run has on average where copying it whole pays.
const RUN_ROWS_MIN: usize = 4;

fn copied(arrays: &[&dyn Array], runs: &[Run]) -> Result<ArrayRef, ArrowError> {
    // A run inside one array needs no copy.
    if let [(p, row, count)] = runs {
        return Ok(arrays[*p].slice(*row, *count));
    }
    // Few of the pieces have rows here.
    let mut used: Vec<usize> = runs.iter().map(|(p, ..)| *p).collect();
    used.sort_unstable();
    used.dedup();
    let data: Vec<_> = used.iter().map(|p| arrays[*p].to_data()).collect();
    let rows = runs.iter().map(|(.., count)| count).sum();
    let room = match bytes_of(arrays, runs) {
        Some(bytes) => Capacities::Binary(rows, Some(bytes)),
        None => Capacities::Array(rows),
    };
    let mut out = MutableArrayData::with_capacities(data.iter().collect(), false, room);
    for (p, row, count) in runs {
        let at = used.partition_point(|other| other < p);
        out.try_extend(at, *row, row + count)?;
    }
    Ok(make_array(out.freeze()))
}

/// The bytes of the values of runs, if they are texts or bytes.
fn bytes_of(arrays: &[&dyn Array], runs: &[Run]) -> Option<usize> {
    let bytes = |(p, first, count): &Run| {
        let (texts, bytes) = (arrays[*p].as_string_opt::<i32>(), arrays[*p].as_binary_opt::<i32>());
        let offsets = texts.map(|a| a.value_offsets()).or(bytes.map(|a| a.value_offsets()))?;
        Some((offsets[first + count] - offsets[*first]) as usize)
    };
    runs.iter().map(bytes).sum()
}

/// Records that were decoded together and are all of one file.
struct Piece {
    /// [`OWN`] ones, then the declared ones.
    columns: Vec<ArrayRef>,
    flags: Vec<i32>,
    file: Arc<str>,
    first_seq: i64,
}

/// Rows that will be one file.
#[derive(Default)]
pub(super) struct Buffer {
    pieces: Vec<Piece>,
    /// The rows, in order, as runs of one UTC day each.
    days: Vec<(i64, Run)>,
    rows: usize,
    bytes: usize,
}

impl Buffer {
    /// Adds the records of a chunk with their flags; `first_seq` is the place of the first of them in the ingest.
    pub(super) fn push(&mut self, chunk: Chunk, flags: Vec<i32>, file: &Arc<str>, first_seq: i64) {
        let (piece, mut row) = (self.pieces.len(), 0);
        for run in chunk.event_times.chunk_by(|a, b| a.div_euclid(DAY_US) == b.div_euclid(DAY_US)) {
            self.days.push((run[0].div_euclid(DAY_US), (piece, row, run.len())));
            row += run.len();
        }
        self.rows += row;
        let times = TimestampMicrosecondArray::from(chunk.event_times).with_timezone("UTC");
        let own: [ArrayRef; OWN.len()] = [
            Arc::new(chunk.record_ids),
            Arc::new(times),
            Arc::new(Int64Array::from(chunk.offsets)),
            Arc::new(Int64Array::from(chunk.payload_hashes)),
            Arc::new(chunk.payloads),
        ];
        let columns: Vec<ArrayRef> = own.into_iter().chain(chunk.columns).collect();
        self.bytes += columns.iter().map(|c| c.get_array_memory_size()).sum::<usize>();
        self.pieces.push(Piece { columns, flags, file: file.clone(), first_seq });
    }

    pub(super) fn is_full(&self) -> bool {
        self.rows >= FILE_ROWS || self.bytes >= FILE_BYTES
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Writes the rows, clustered by UTC day and inside a day in arrival order.
    pub(super) fn write(&self, store: &Store, path: String, shape: &RawShape) -> Result<Written, IngestError> {
        let mut writer = Writer::create(store, path, &shape.table)?;
        let mut days = self.days.clone();
        days.sort_by_key(|(day, _)| *day);
        let (mut batch, mut rows): (Vec<Run>, usize) = (Vec::new(), 0);
        for (_, (piece, mut first, mut count)) in days {
            while count > 0 {
                let taken = count.min(WRITE_ROWS - rows);
                match batch.last_mut() {
                    Some(last) if (last.0, last.1 + last.2) == (piece, first) => last.2 += taken,
                    _ => batch.push((piece, first, taken)),
                }
                (first, count, rows) = (first + taken, count - taken, rows + taken);
                if rows == WRITE_ROWS {
                    writer.write(&shape.rows(&self.pieces, &batch)?)?;
                    batch.clear();
                    rows = 0;
                }
            }
        }
        if rows > 0 {
            writer.write(&shape.rows(&self.pieces, &batch)?)?;
        }
        Ok(writer.finish()?)
    }
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
        let batch = RecordBatch::try_new(self.table.arrow(), columns)?;
        if self.writer.is_none() {
            self.writer = Some(Writer::create_open_ended(self.store, self.path.clone(), &self.table)?);
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
