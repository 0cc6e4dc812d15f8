//! Payloads that were kept, decoded again as the source is declared now.
//! Never reads a file and never takes half a record; a payload gives what its record would give if it landed today.
//! `reparse` feeds it; the rules are those of the formats beside it.

use super::{Batch, Chunk, DecodeError, Options, csv, json};
use crate::config::{Format, Source};
use std::path::Path;

/// The header of a landed CSV file, with the declared columns found in it.
#[derive(Debug)]
pub struct CsvHeader {
    header: csv::Header,
    delimiter: u8,
}

/// Decodes payload after payload of one source.
pub struct Redecoder<'s> {
    source: &'s Source,
    batch: Batch,
    json: json::Shape,
    fields: csv::Fields,
}

impl<'s> Redecoder<'s> {
    /// Returns a decoder of payloads of `source` as it is declared now.
    ///
    /// # Errors
    /// A declared default is not a value of its column.
    pub fn new(source: &'s Source) -> Result<Redecoder<'s>, DecodeError> {
        let batch = Batch::new(source, Options::default())?;
        Ok(Redecoder { source, batch, json: json::Shape::new(source), fields: csv::Fields::default() })
    }

    /// Returns where the declared columns stand in the landed `file` of that header line.
    ///
    /// # Errors
    /// It lacks the event time or the record id, or it is no header.
    pub fn header(&self, file: &Path, line: &str, delimiter: u8) -> Result<CsvHeader, DecodeError> {
        Ok(CsvHeader { header: csv::Header::parse(self.source, file, line.as_bytes(), delimiter, &self.batch)?, delimiter })
    }

    /// Takes one payload in; CSV needs the header of its file.
    ///
    /// # Errors
    /// Why the record would be rejected if it landed today. Nothing of it is taken.
    pub fn put(&mut self, payload: &[u8], header: Option<&CsvHeader>) -> Result<(), String> {
        let batch = &mut self.batch;
        let rows = batch.offsets.len();
        batch.payloads.data.extend_from_slice(payload);
        let put = match (self.source.format, header) {
            (Format::Jsonl, _) => self.json.put(payload, &mut batch.columns).map_err(|bad| match bad {
                json::Bad::Syntax(reason) | json::Bad::Value(reason) => reason,
            }),
            (Format::Csv, Some(h)) => {
                batch.naming = h.header.naming.clone();
                h.header.put(payload, h.delimiter, &mut self.fields, &mut batch.columns).map_err(|bad| match bad {
                    csv::Bad::Shape(reason) | csv::Bad::Value(reason) => reason,
                })
            }
            (Format::Csv, None) => Err("the header of its file is not known".into()),
            (Format::Parquet, _) => Err("a row of Parquet has no payload".into()),
        };
        match put {
            Ok(()) => batch.accept(rows as i64),
            Err(reason) => {
                batch.columns.iter_mut().for_each(|c| c.truncate(rows));
                batch.discard();
                return Err(reason);
            }
        }
        Ok(())
    }

    /// Returns what was taken in since the last call. Its offsets count from 0.
    pub fn take(&mut self) -> Chunk {
        self.batch.take(0)
    }
}
