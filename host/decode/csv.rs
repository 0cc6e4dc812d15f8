//! CSV as RFC 4180 has it: a header line, quoted fields that may hold line ends, records byte for byte.
//! Never repairs a record: one with text behind a closing quote or another number of fields is a reject.
//! One of the formats of `decode`; it splits records itself, because it keeps their bytes and bounds their length.
//!
//! An empty field, quoted or not, is null; in a string column that is not nullable it is the empty
//! text. Blanks belong to the value. Lines without a byte are passed over.

use super::{
    Batch, Chunk, Column, DecodeError, Naming,
    json::{strip_line_end, too_long},
    open::{LineEnd, Opened},
    value::{Value, short},
};
use crate::{config::Source, schema::DataType};
use std::{path::Path, sync::Arc};

/// Decodes all records of `opened`.
pub(super) fn decode<E: From<DecodeError>>(
    source: &Source,
    file: &Path,
    opened: Opened,
    batch: &mut Batch,
    sink: &mut dyn FnMut(Chunk) -> Result<(), E>,
) -> Result<(), E> {
    let mut records = Records { opened, delimiter: source.delimiter, line: 1, byte: 0 };
    // A file without a byte has no records; one with records has a header.
    let Some(header) = Header::read(source, file, &mut records, batch)? else { return Ok(()) };
    batch.naming = header.naming.clone();
    let mut fields = Fields::default();
    loop {
        let record = records.next(batch)?;
        let (line, byte) = (record.line, record.byte);
        let start = batch.payloads.start();
        match record.end {
            Some(End::Whole { open_ended }) => {
                batch.summary.open_ended = open_ended;
                let put = header.put(&batch.payloads.data[start..], source.delimiter, &mut fields, &mut batch.columns).map_err(|bad| match bad {
                    Bad::Shape(reason) if open_ended => {
                        batch.summary.cut_at = Some(byte);
                        format!("{reason}; the file looks cut: its last record, from byte {byte}, has no line end")
                    }
                    Bad::Shape(reason) | Bad::Value(reason) => reason,
                });
                batch.settle(line, byte, put);
            }
            Some(End::Unclosed) => {
                batch.summary.open_ended = true;
                batch.summary.cut_at = Some(byte);
                let reason = format!("a quote is not closed before the end of the file: the file looks cut in its last record, from byte {byte}");
                batch.reject(line, byte, reason);
            }
            Some(End::TooLong { length }) => {
                batch.payloads.data.truncate(start + batch.options.reject_bytes_max);
                batch.reject(line, byte, too_long(length, batch));
            }
            None => break,
        }
        if batch.is_full() {
            sink(batch.take(records.opened.position()))?;
        }
    }
    header.unknown.iter().for_each(|name| batch.summary.unknown.add(name, batch.summary.records));
    if !batch.is_empty() {
        sink(batch.take(records.opened.position()))?;
    }
    Ok(())
}

/// Records one after the other, each put at the end of the batch's payloads.
struct Records {
    opened: Opened,
    delimiter: u8,
    /// Line and byte at which the next record starts.
    line: i64,
    byte: u64,
}

struct Record {
    line: i64,
    byte: u64,
    /// `None`: there is no further record.
    end: Option<End>,
}

enum End {
    Whole { open_ended: bool },
    Unclosed,
    TooLong { length: u64 },
}

/// Where a scan stands in a record.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    FieldStart,
    Bare,
    Quoted,
    /// Behind a quote inside a quoted field: it closes the field, or it is the first of two.
    Quote,
}

impl Records {
    fn next(&mut self, batch: &mut Batch) -> Result<Record, DecodeError> {
        let start = batch.payloads.start();
        loop {
            let mut record = Record { line: self.line, byte: self.byte, end: None };
            let mut at = At::FieldStart;
            loop {
                let piece = batch.payloads.data.len();
                let room = batch.options.record_bytes_max - (piece - start);
                let end = self.opened.read_line(&mut batch.payloads.data, room)?;
                if self.byte == 0 {
                    self.byte += self.opened.skip_mark(&mut batch.payloads.data, start);
                    record.byte = self.byte;
                }
                let bytes = &batch.payloads.data[piece..];
                self.byte += bytes.len() as u64;
                self.line += (end == LineEnd::Feed) as i64;
                at = scan(at, bytes, self.delimiter);
                match end {
                    LineEnd::Feed if at == At::Quoted && batch.payloads.data.len() - start < batch.options.record_bytes_max => continue,
                    LineEnd::Feed if at == At::Quoted => record.end = Some(self.pass_over(at, &record)?),
                    LineEnd::TooLong => record.end = Some(self.pass_over(at, &record)?),
                    LineEnd::File if at == At::Quoted => record.end = Some(End::Unclosed),
                    LineEnd::File if batch.payloads.data.len() == start => return Ok(record),
                    LineEnd::Feed | LineEnd::File => record.end = Some(End::Whole { open_ended: end == LineEnd::File }),
                }
                break;
            }
            if matches!(record.end, Some(End::Whole { .. })) {
                strip_line_end(&mut batch.payloads.data, start);
                if batch.payloads.data.len() == start {
                    continue;
                }
            }
            return Ok(record);
        }
    }

    /// Reads to the end of a record that is too long, keeping nothing of it.
    fn pass_over(&mut self, mut at: At, record: &Record) -> Result<End, DecodeError> {
        let mut piece = vec![];
        loop {
            piece.clear();
            let end = self.opened.read_line(&mut piece, 64 << 10)?;
            self.byte += piece.len() as u64;
            self.line += (end == LineEnd::Feed) as i64;
            at = scan(at, &piece, self.delimiter);
            match end {
                LineEnd::File if at == At::Quoted => return Err(self.opened.runaway(record.line)),
                LineEnd::TooLong => {}
                LineEnd::Feed if at == At::Quoted => {}
                LineEnd::Feed | LineEnd::File => return Ok(End::TooLong { length: self.byte - record.byte }),
            }
        }
    }
}

fn scan(mut at: At, bytes: &[u8], delimiter: u8) -> At {
    if at != At::Quoted && !bytes.contains(&b'"') {
        return At::Bare;
    }
    for &b in bytes {
        at = match at {
            At::FieldStart if b == b'"' => At::Quoted,
            At::FieldStart | At::Bare | At::Quote if b == delimiter => At::FieldStart,
            At::FieldStart | At::Bare => At::Bare,
            At::Quoted if b == b'"' => At::Quote,
            At::Quoted => At::Quoted,
            At::Quote if b == b'"' => At::Quoted,
            At::Quote => At::Bare,
        };
    }
    at
}

/// The fields of one record. Those with doubled quotes are copied, the others are where they were.
#[derive(Default)]
pub(super) struct Fields {
    /// Start, end, and whether in `copied`.
    places: Vec<(usize, usize, bool)>,
    copied: Vec<u8>,
}

impl Fields {
    fn split(&mut self, record: &[u8], delimiter: u8) -> Result<(), String> {
        self.places.clear();
        self.copied.clear();
        let mut i = 0;
        loop {
            let end = match record.get(i) {
                Some(b'"') => self.quoted(record, i + 1)?,
                _ => {
                    let end = record[i..].iter().position(|b| *b == delimiter).map_or(record.len(), |n| i + n);
                    self.places.push((i, end, false));
                    end
                }
            };
            match record.get(end) {
                None => return Ok(()),
                Some(b) if *b == delimiter => i = end + 1,
                Some(_) => return Err(format!("column {}: text behind a closing quote", end + 1)),
            }
        }
    }

    /// Takes a quoted field whose text starts at `start`, and returns where it ends, behind its quote.
    fn quoted(&mut self, record: &[u8], mut start: usize) -> Result<usize, String> {
        let copy = self.copied.len();
        loop {
            let Some(quote) = record[start..].iter().position(|b| *b == b'"').map(|n| start + n) else {
                return Err(format!("column {start}: a quote is not closed"));
            };
            if record.get(quote + 1) == Some(&b'"') {
                self.copied.extend_from_slice(&record[start..=quote]);
                start = quote + 2;
                continue;
            }
            if self.copied.len() == copy {
                self.places.push((start, quote, false));
            } else {
                self.copied.extend_from_slice(&record[start..quote]);
                self.places.push((copy, self.copied.len(), true));
            }
            return Ok(quote + 1);
        }
    }

    fn get<'a>(&'a self, record: &'a [u8], i: usize) -> &'a [u8] {
        let (start, end, copied) = self.places[i];
        if copied { &self.copied[start..end] } else { &record[start..end] }
    }
}

pub(super) enum Bad {
    /// The record is not split as the header is.
    Shape(String),
    /// A value in it cannot be taken.
    Value(String),
}

/// Where the declared columns stand.
#[derive(Debug)]
pub(super) struct Header {
    width: usize,
    record_id: Option<usize>,
    places: Vec<Option<usize>>,
    /// Columns that nobody asks for.
    unknown: Vec<String>,
    pub(super) naming: Arc<Naming>,
}

impl Header {
    fn read(source: &Source, file: &Path, records: &mut Records, batch: &mut Batch) -> Result<Option<Header>, DecodeError> {
        let error = |reason: String| DecodeError::Header { file: file.to_owned(), reason };
        let record = records.next(batch)?;
        match record.end {
            None => return Ok(None),
            Some(End::Unclosed) => return Err(error("a quote in the header is not closed".into())),
            Some(End::TooLong { length }) => return Err(error(format!("the header is {length} bytes long"))),
            Some(End::Whole { .. }) => {}
        }
        let line = batch.payloads.data[batch.payloads.start()..].to_vec();
        batch.discard();
        let header = Header::parse(source, file, &line, source.delimiter, batch)?;
        // Its names are UTF-8, and what stands around them is ASCII.
        batch.summary.header = String::from_utf8(line).ok().map(|line| (line, source.delimiter));
        Ok(Some(header))
    }

    /// Finds the declared columns in a header line without its line end.
    pub(super) fn parse(source: &Source, file: &Path, line: &[u8], delimiter: u8, batch: &Batch) -> Result<Header, DecodeError> {
        let error = |reason: String| DecodeError::Header { file: file.to_owned(), reason };
        let mut fields = Fields::default();
        fields.split(line, delimiter).map_err(error)?;
        let mut names: Vec<String> = Vec::with_capacity(fields.places.len());
        for i in 0..fields.places.len() {
            let name = std::str::from_utf8(fields.get(line, i)).map_err(|_| error(format!("the name of column {} is not UTF-8", i + 1)))?;
            names.push(name.to_owned());
        }
        // Spreadsheets leave columns without a name; nobody can ask for those.
        let mut sorted: Vec<&String> = names.iter().filter(|n| !n.is_empty()).collect();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|w| w[0] == w[1]) {
            let what = if source.is_masked() { "have one name".into() } else { format!("are called {:?}", short(twice[0])) };
            return Err(error(format!("two columns {what}")));
        }
        let find = |name: &str| names.iter().position(|n| n == name);
        let places: Vec<Option<usize>> =
            source.columns.iter().map(|c| find(&c.name).or_else(|| c.aliases.iter().find_map(|alias| find(alias)))).collect();
        let width = names.len();
        let known = || if source.is_masked() { columns_in(width) } else { first_names(names.iter()) };
        missing_column(file, &batch.columns, batch.event_time, batch.record_id, |i| places[i].is_some(), known)?;
        names.retain(|name| !name.is_empty() && !is_asked_for(name, source));
        // Where no name is known, the first line may well be a record.
        if source.is_masked() && places.iter().all(Option::is_none) {
            names = vec![columns_in(width)];
        }
        Ok(Header { width, record_id: batch.record_id, places, unknown: names, naming: Arc::new(Naming::under(line)) })
    }

    pub(super) fn put(&self, record: &[u8], delimiter: u8, fields: &mut Fields, columns: &mut [Column]) -> Result<(), Bad> {
        fields.split(record, delimiter).map_err(Bad::Shape)?;
        let width = fields.places.len();
        if width != self.width {
            return Err(Bad::Shape(format!("{width} fields where the header has {}", self.width)));
        }
        for (i, (column, place)) in columns.iter_mut().zip(&self.places).enumerate() {
            match place {
                None => column.missing(),
                // Nothing identifies nothing: two records without an id are not one record.
                Some(place) if self.record_id == Some(i) && fields.get(record, *place).is_empty() => column.null(),
                Some(i) => put_field(column, fields.get(record, *i)),
            }
            .map_err(Bad::Value)?;
        }
        Ok(())
    }
}

/// Returns whether a column is called so, or was once.
pub(super) fn is_asked_for(name: &str, source: &Source) -> bool {
    source.columns.iter().any(|c| c.name == name || c.aliases.iter().any(|alias| alias == name))
}

/// Fails if the event time or the record id is not in the file and has no default: every record would be a reject.
pub(super) fn missing_column(
    file: &Path,
    columns: &[Column],
    event_time: usize,
    record_id: Option<usize>,
    present: impl Fn(usize) -> bool,
    known: impl FnOnce() -> String,
) -> Result<(), DecodeError> {
    let Some(i) = [Some(event_time), record_id].into_iter().flatten().find(|i| !present(*i) && !columns[*i].has_default()) else { return Ok(()) };
    Err(DecodeError::MissingColumn { file: file.to_owned(), column: columns[i].name.clone(), known: known() })
}

/// Returns the first names of columns: a file of another kind may seem to have columns without end.
pub(super) fn first_names<'n>(names: impl Iterator<Item = &'n String>) -> String {
    names.take(20).map(|name| short(name)).collect::<Vec<_>>().join(", ")
}

/// Says how many columns there are, where a first line that is no header could show what is masked.
fn columns_in(width: usize) -> String {
    if width == 1 { "1 column".into() } else { format!("{width} columns") }
}

fn put_field(column: &mut Column, field: &[u8]) -> Result<(), String> {
    if field.is_empty() && (column.nullable || column.rule.data_type != DataType::String) {
        return column.null();
    }
    match std::str::from_utf8(field) {
        Ok(text) => column.put(Value::Field(text)),
        Err(_) => column.bad("is not UTF-8".into()),
    }
}
