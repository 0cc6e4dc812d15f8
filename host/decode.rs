//! One landed file becomes typed chunks, with the records that could not be taken among them, in their place.
//! Never holds a whole file, never rounds, never drops a record without a reject, and never writes.
//! The first step of an ingest; compression is seen from the content, the rules of values are in `decode::value`.

mod again;
mod cells;
mod column;
mod csv;
mod identity;
mod json;
mod lines;
mod number;
mod open;
mod parquet;
mod value;

pub use again::{CsvHeader, Redecoder};
pub use identity::{FileIdentity, Identified, identify};
pub use lines::{read_lines, write_line, write_lines, write_value};
pub use open::Compression;

use crate::{
    config::{Format, Source, SourceColumn},
    id::Digest,
    schema::DataType,
};
use arrow::array::{ArrayRef, AsArray, BinaryArray, StringArray};
use column::{Column, Scalar, Strings, Values, write_hex};
use open::Opened;
use sha2::{Digest as _, Sha256};
use std::{io, path::Path, path::PathBuf, sync::Arc};
use twox_hash::XxHash64;
use value::{Rule, Value, append};

/// Bounds on what is held in memory at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Options {
    /// Records in a chunk.
    pub chunk_rows_max: usize,
    /// Bytes of payload after which a chunk is cut.
    pub chunk_bytes_max: usize,
    /// Bytes of one record; a longer one is a reject.
    pub record_bytes_max: usize,
    /// Bytes that a reject keeps of a record that was too long.
    pub reject_bytes_max: usize,
    /// Bytes that are read at once.
    pub read_bytes: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            chunk_rows_max: 16_384,
            chunk_bytes_max: 4 << 20,
            record_bytes_max: 64 << 20,
            reject_bytes_max: 64 << 10,
            read_bytes: open::BUFFER_BYTES,
        }
    }
}

/// One decoded piece of a file. The rows of its arrays correspond; rejects are not among them.
#[derive(Debug)]
pub struct Chunk {
    /// The declared record id as text, or the SHA-256 of the record in hex.
    pub record_ids: StringArray,
    /// UTC microseconds.
    pub event_times: Vec<i64>,
    /// Line (JSON Lines, CSV) or row (Parquet), from 1.
    pub offsets: Vec<i64>,
    /// XXH64 of the payload. For CSV, with the XXH64 of the header line as its seed. For Parquet, of the row as it lands: its declared columns
    /// in order, each as [`decode`] says.
    pub payload_hashes: Vec<i64>,
    /// The bytes of the record as they stand in the unpacked file, without the line end; null for Parquet.
    pub payloads: BinaryArray,
    /// The declared columns, in the source's order, of the Arrow types of its fields, masked.
    pub columns: Vec<ArrayRef>,
    /// Records of this piece that were not taken.
    pub rejects: Vec<Reject>,
    /// Bytes of the file itself that were used so far.
    pub bytes_read: u64,
}

/// A record that was not taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reject {
    /// Line or row, from 1.
    pub offset: i64,
    /// Where it starts in the unpacked file; `None` for Parquet.
    pub byte_offset: Option<u64>,
    /// Why, with the column's name. Never shows a masked value.
    pub reason: String,
    /// Its bytes; the first of them if it was too long; `None` for Parquet.
    pub payload: Option<Vec<u8>>,
}

/// Fields that no column asks for, by name or alias or as the start of a pointer.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unknown {
    /// The first twenty names, and how many records had each.
    pub fields: Vec<(String, u64)>,
    /// Whether there are more.
    pub more: bool,
}

impl Unknown {
    const NAMES_MAX: usize = 20;

    /// Counts `records` that have a field called `name`.
    pub fn add(&mut self, name: &str, records: u64) {
        let name = value::short(name);
        match self.fields.iter().position(|(known, _)| known == name) {
            _ if records == 0 => {}
            Some(i) => self.fields[i].1 += records,
            None if self.fields.len() < Unknown::NAMES_MAX => self.fields.push((name.to_owned(), records)),
            None => self.more = true,
        }
    }

    /// Counts what another file had.
    pub fn merge(&mut self, other: &Unknown) {
        other.fields.iter().for_each(|(name, records)| self.add(name, *records));
        self.more |= other.more;
    }
}

/// What a whole file held.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Summary {
    /// Records that were taken.
    pub records: u64,
    /// Records that were not.
    pub rejects: u64,
    /// Byte of the unpacked file at which its last record starts, if that record looks cut.
    pub cut_at: Option<u64>,
    /// Whether the last line has no line end. A CSV file cut inside its last field cannot be told from one that is whole.
    pub open_ended: bool,
    /// Fields that were left aside. JSON Lines and CSV keep them in the payload, Parquet does not.
    pub unknown: Unknown,
    /// CSV: its header line as it stands there, and the byte between fields. Without them its payloads could not be read again.
    pub header: Option<(String, u8)>,
}

/// Why a file was not decoded. Nothing of it may be landed.
#[derive(Debug, thiserror::Error)]
pub enum DecodeError {
    /// The file cannot be opened.
    #[error("{}: cannot be opened", file.display())]
    Open {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There are no bytes that could be read twice.
    #[error("{} is {what}, not a file", file.display())]
    NotAFile {
        /// What was named.
        file: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// The file cannot be read on.
    #[error("{}: cannot be read", file.display())]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The compressed stream is damaged or cut.
    #[error("{}: the {compression} stream is damaged or cut near byte {byte}", file.display())]
    Corrupt {
        /// The file.
        file: PathBuf,
        /// What it is packed with.
        compression: Compression,
        /// Bytes of the file that were used before that.
        byte: u64,
        /// What the decompressor said.
        source: io::Error,
    },
    /// A compressed Parquet file could not be unpacked into a temporary one.
    #[error("{}: cannot be unpacked into a temporary file", file.display())]
    Scratch {
        /// The file.
        file: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The header of a CSV file cannot be used.
    #[error("{}:1: {reason}", file.display())]
    Header {
        /// The file.
        file: PathBuf,
        /// Why.
        reason: String,
    },
    /// A quote in a CSV file is never closed, and what follows it is too long for one record.
    #[error("{}:{line}: a quote of this record is not closed before the end of the file, which is too far away for one record", file.display())]
    Unclosed {
        /// The file.
        file: PathBuf,
        /// The line at which the record starts.
        line: i64,
    },
    /// The file is not Parquet, or it is damaged or cut.
    #[error("{}: not a whole Parquet file", file.display())]
    Parquet {
        /// The file.
        file: PathBuf,
        /// What the reader said.
        source: ::parquet::errors::ParquetError,
    },
    /// The file lacks a column without which no record could be taken.
    #[error("{}: there is no column {column:?} (it has {known})", file.display())]
    MissingColumn {
        /// The file.
        file: PathBuf,
        /// The declared column.
        column: String,
        /// The columns that the file has: the first twenty names, or only how many, where they could show what is masked.
        known: String,
    },
    /// A Parquet file has two columns of a name that a declared column asks for.
    #[error("{}: two columns are called {column:?}, and the declared column {declared:?} could be either", file.display())]
    Twice {
        /// The file.
        file: PathBuf,
        /// Their name.
        column: String,
        /// The declared column.
        declared: String,
    },
    /// A Parquet column is of a type that cannot become the declared one.
    #[error("{}: column {column:?} is {found}, which cannot become {declared}", file.display())]
    WrongType {
        /// The file.
        file: PathBuf,
        /// The declared column.
        column: String,
        /// Its type in the file.
        found: String,
        /// Its declared type.
        declared: String,
    },
    /// A declared default is not a value of its column.
    #[error("the default of column {column:?}: {reason}")]
    BadDefault {
        /// The declared column.
        column: String,
        /// Why.
        reason: String,
    },
}

/// Decodes `file` as `source` declares it, and gives `sink` one chunk after the other.
///
/// A record without a declared id is named by the SHA-256 of its payload; in CSV, of the header line without its line end, a line feed and
/// the payload, since a line says something else under another header. A Parquet row has no
/// payload; what is hashed is its declared columns in order, after masking: a byte 0 for null, or a
/// byte 1 and the value, little-endian in its Arrow width, a text or bytes with its length in 8
/// bytes before it. Its payload hash is made column by column: 0, then for each the XXH64 of the value
/// (the same bytes, without the 1 and the length) with the hash so far as its seed; of a null that of no
/// bytes, with all bits of the seed turned.
///
/// In JSON a column stands at its pointer, or else under its name; then under the first of its
/// aliases that is present. CSV and Parquet have no pointers: its name, then its aliases.
/// A record that lacks it gets the default, or null. A null that stands in the record stays null.
///
/// # Errors
/// A [`DecodeError`], or whatever `sink` returned.
///
/// # After an error
/// Chunks that `sink` has got belong to a file that is not whole: it must land none of them.
pub fn decode<E: From<DecodeError>>(
    source: &Source,
    file: &Path,
    options: &Options,
    sink: &mut dyn FnMut(Chunk) -> Result<(), E>,
) -> Result<Summary, E> {
    let mut batch = Batch::new(source, *options)?;
    let opened = Opened::new(file, options.read_bytes)?;
    match source.format {
        Format::Jsonl => json::decode(source, opened, &mut batch, sink)?,
        Format::Csv => csv::decode(source, file, opened, &mut batch, sink)?,
        Format::Parquet => parquet::decode(source, file, opened, &mut batch, sink)?,
    }
    Ok(batch.summary)
}

/// Looks at the declared defaults of `source` as [`decode`] would: each has to be a value of its column.
///
/// # Errors
/// The column, and why its default is none.
pub fn check_defaults(source: &Source) -> Result<(), (&SourceColumn, String)> {
    source.columns.iter().try_for_each(|c| match Column::new(c, source) {
        Err(DecodeError::BadDefault { reason, .. }) => Err((c, reason)),
        _ => Ok(()),
    })
}

/// Returns `text`, read as a CSV field of `data_type`, as such a value is written: `1.0` is `1.00` for `decimal(18,2)`.
/// Times without an offset are UTC.
///
/// # Errors
/// Why it is no such value.
pub fn canonical(data_type: DataType, text: &str) -> Result<String, String> {
    let rule = Rule { data_type, zone: chrono_tz::Tz::UTC, unit: None, plausible: None };
    let mut values = Values::new(data_type);
    append(&mut values, Value::Field(text), &rule)?;
    let mut written = Vec::new();
    values.last().write_text(data_type, &mut written);
    String::from_utf8(written).map_err(|e| e.to_string())
}

/// A chunk of a text format while it fills. The record that is being read stands at the end of
/// `payloads`, so that its bytes are copied once.
struct Batch {
    options: Options,
    columns: Vec<Column>,
    event_time: usize,
    record_id: Option<usize>,
    record_ids: Strings,
    event_times: Vec<i64>,
    offsets: Vec<i64>,
    payload_hashes: Vec<i64>,
    payloads: Strings,
    naming: Arc<Naming>,
    rejects: Vec<Reject>,
    reject_bytes: usize,
    summary: Summary,
}

/// What the ids and hashes of payloads begin with: what they are read by, if it does not stand in them.
#[derive(Clone, Debug, Default)]
struct Naming {
    id: Sha256,
    seed: u64,
}

impl Naming {
    /// Returns that of records under a CSV header line.
    fn under(header: &[u8]) -> Naming {
        Naming { id: Sha256::new().chain_update(header).chain_update(b"\n"), seed: XxHash64::oneshot(0, header) }
    }

    fn id(&self, payload: &[u8]) -> Digest {
        Digest(self.id.clone().chain_update(payload).finalize().into())
    }

    /// What tells two payloads of one id apart.
    fn hash(&self, payload: &[u8]) -> i64 {
        XxHash64::oneshot(self.seed, payload) as i64
    }
}

impl Batch {
    fn new(source: &Source, options: Options) -> Result<Batch, DecodeError> {
        let columns = source.columns.iter().map(|c| Column::new(c, source)).collect::<Result<Vec<_>, _>>()?;
        let place = |name: &str| source.columns.iter().position(|c| c.name == name);
        Ok(Batch {
            options,
            columns,
            event_time: place(&source.event_time).expect("BUG: a source without its event time"),
            record_id: source.record_id.as_deref().and_then(place),
            record_ids: Strings::default(),
            event_times: vec![],
            offsets: vec![],
            payload_hashes: vec![],
            payloads: Strings::default(),
            naming: Arc::default(),
            rejects: vec![],
            reject_bytes: 0,
            summary: Summary::default(),
        })
    }

    /// Takes the record whose payload stands at the end and whose columns were all put, or none of it.
    fn settle(&mut self, offset: i64, byte_offset: u64, put: Result<(), String>) {
        match put {
            Ok(()) => self.accept(offset),
            Err(reason) => self.reject(offset, byte_offset, reason),
        }
    }

    fn accept(&mut self, offset: i64) {
        let Some(Scalar::I64(event_time)) = self.columns[self.event_time].last() else { unreachable!("BUG: a record without its event time") };
        let payload = &self.payloads.data[self.payloads.start()..];
        match self.record_id {
            // An id that is a text is its column.
            Some(i) if self.columns[i].rule.data_type == DataType::String => {}
            Some(i) => {
                let column = &self.columns[i];
                let Some(id) = column.last() else { unreachable!("BUG: a record without its id") };
                id.write_text(column.rule.data_type, &mut self.record_ids.data);
            }
            None => write_hex(&self.naming.id(payload).0, &mut self.record_ids.data),
        }
        self.payload_hashes.push(self.naming.hash(payload));
        self.record_ids.close();
        self.event_times.push(event_time);
        self.offsets.push(offset);
        self.payloads.close();
        self.summary.records += 1;
    }

    fn reject(&mut self, offset: i64, byte_offset: u64, reason: String) {
        let rows = self.offsets.len();
        self.columns.iter_mut().for_each(|c| c.truncate(rows));
        let payload = self.payloads.data[self.payloads.start()..].to_vec();
        self.discard();
        self.reject_bytes += payload.len();
        self.push_reject(Reject { offset, byte_offset: Some(byte_offset), reason, payload: Some(payload) });
    }

    fn push_reject(&mut self, reject: Reject) {
        self.rejects.push(reject);
        self.summary.rejects += 1;
    }

    /// Forgets the bytes of the record that is being read.
    fn discard(&mut self) {
        let start = self.payloads.start();
        self.payloads.data.truncate(start);
    }

    fn is_full(&self) -> bool {
        let texts: usize = self.columns.iter().map(Column::text_bytes).sum();
        self.offsets.len() >= self.options.chunk_rows_max
            || self.rejects.len() >= self.options.chunk_rows_max
            || self.payloads.start() + self.reject_bytes >= self.options.chunk_bytes_max
            || texts >= 4 * self.options.chunk_bytes_max
    }

    fn is_empty(&self) -> bool {
        self.offsets.is_empty() && self.rejects.is_empty()
    }

    fn take(&mut self, bytes_read: u64) -> Chunk {
        self.reject_bytes = 0;
        let columns: Vec<ArrayRef> = self.columns.iter_mut().map(Column::take).collect();
        let made_ids = self.record_ids.take_utf8(None);
        let text_ids = self.record_id.and_then(|i| columns[i].as_string_opt::<i32>());
        Chunk {
            record_ids: text_ids.cloned().unwrap_or(made_ids),
            event_times: std::mem::take(&mut self.event_times),
            offsets: std::mem::take(&mut self.offsets),
            payload_hashes: std::mem::take(&mut self.payload_hashes),
            payloads: self.payloads.take_binary(None),
            columns,
            rejects: std::mem::take(&mut self.rejects),
            bytes_read,
        }
    }
}

#[cfg(test)]
mod tests;
