//! Sorting that spills: batches in, in any order; batches out, in the order of some columns.
//! Never holds more than its share of memory, however wide rows are, but for two of the widest; its file has no name, and goes with it.
//! `execute` puts a partition's rows in order with it: before a transform sees them, and before they are written.

use super::{BATCH_ROWS, QueryError, SortError};
use crate::store::File;
use arrow::{
    array::{Array, AsArray, RecordBatch, UInt32Array},
    compute::{concat_batches, interleave_record_batch, take_record_batch},
    datatypes::{DataType as ArrowType, SchemaRef},
    error::ArrowError,
    ipc::{reader::StreamReader, writer::StreamWriter},
    row::{RowConverter, Rows, SortField},
};
use std::{
    io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
};

/// Runs that are merged at once, at most.
const FAN_IN_MAX: usize = 256;
/// A batch is not larger than this, unless one row is.
const PIECE_BYTES_MAX: usize = 256 << 20;
/// What is buffered on the way to the file.
const WRITE_BUFFER_BYTES: usize = 1 << 18;

/// The sorted batches.
pub struct Sorted<'i, E> {
    state: State<'i, E>,
}

enum State<'i, E> {
    Begun { input: Input<'i, E>, sorter: Box<Sorter> },
    Giving(Giving),
    Failed(QueryError),
    Over,
}

type Input<'i, E> = Box<dyn Iterator<Item = Result<RecordBatch, E>> + 'i>;
type Giving = Box<dyn Iterator<Item = Result<RecordBatch, QueryError>>>;

/// Sorts `input` by columns, ascending and nulls first, spilling to a file in `dir` beyond `memory_bytes`.
///
/// The input is pulled on the calling thread: it may block, query and sort itself. Nothing happens
/// before the first batch is asked for. Batches have at most [`BATCH_ROWS`] rows, and fewer where
/// rows are wide. Rows equal in `by` come in no particular order.
///
/// # Errors
/// The iterator ends after its first error: the input's, or the sort's own.
pub fn sort_spilled<'i, E>(schema: SchemaRef, input: Input<'i, E>, by: &[String], memory_bytes: usize, dir: &Path) -> Sorted<'i, E> {
    let state = match Sorter::new(schema, by, memory_bytes, dir) {
        Ok(sorter) => State::Begun { input, sorter: Box::new(sorter) },
        Err(error) => State::Failed(error),
    };
    Sorted { state }
}

impl<E> Iterator for Sorted<'_, E> {
    type Item = Result<RecordBatch, SortError<E>>;

    fn next(&mut self) -> Option<Self::Item> {
        // Whatever ends it leaves it over.
        let mut giving = match std::mem::replace(&mut self.state, State::Over) {
            State::Over => return None,
            State::Failed(error) => return Some(Err(SortError::Sort(error))),
            State::Begun { input, sorter } => match sort(input, *sorter) {
                Ok(giving) => giving,
                Err(error) => return Some(Err(error)),
            },
            State::Giving(giving) => giving,
        };
        let batch = giving.next()?.map_err(SortError::Sort);
        if batch.is_ok() {
            self.state = State::Giving(giving);
        }
        Some(batch)
    }
}

fn sort<E>(input: Input<E>, mut sorter: Sorter) -> Result<Giving, SortError<E>> {
    for batch in input {
        sorter.push(&batch.map_err(SortError::Input)?).map_err(SortError::Sort)?;
    }
    sorter.finish().map_err(SortError::Sort)
}

/// Takes batches, and keeps them in memory or as runs in a file.
struct Sorter {
    schema: SchemaRef,
    keys: Keys,
    /// What all keys begin with.
    common: Option<Vec<u8>>,
    memory: usize,
    dir: PathBuf,
    /// Batches too small to stand alone, with their rows and bytes.
    small: (Vec<RecordBatch>, usize, usize),
    /// Batches, and the bytes of all that is held for them.
    held: (Vec<Keyed>, usize),
    file: Option<Part>,
    runs: Vec<Run>,
}

/// What orders rows: bytes that compare as their columns do.
#[derive(Clone)]
struct Keys {
    columns: Vec<usize>,
    converter: Arc<RowConverter>,
}

impl Keys {
    fn of(&self, batch: &RecordBatch) -> Result<Rows, ArrowError> {
        let columns: Vec<_> = self.columns.iter().map(|i| batch.column(*i).clone()).collect();
        self.converter.convert_columns(&columns)
    }

    /// Returns what a batch and the keys of its rows take, about.
    fn cost(&self, batch: &RecordBatch) -> usize {
        2 * used_bytes(batch) + batch.num_rows() * (size_of::<usize>() + 10 * self.columns.len())
    }
}

/// How many bytes each row of a batch takes: one number where none takes much more than the others.
enum Widths {
    Even(usize),
    Each(Vec<u32>),
}

impl Widths {
    fn of(batch: &RecordBatch) -> Widths {
        let each = row_bytes(batch);
        let all: usize = each.iter().map(|width| *width as usize).sum();
        match each.iter().max().map_or(0, |most| *most as usize) {
            most if most <= 2 * (all / each.len().max(1)) + 64 => Widths::Even(most),
            _ => Widths::Each(each),
        }
    }

    fn get(&self, row: usize) -> usize {
        match self {
            Widths::Even(width) => *width,
            Widths::Each(widths) => widths[row] as usize,
        }
    }
}

fn row_bytes(batch: &RecordBatch) -> Vec<u32> {
    let fixed: usize = batch.columns().iter().map(|c| c.data_type().primitive_width().unwrap_or(size_of::<i32>())).sum();
    let mut each = vec![fixed as u32; batch.num_rows()];
    for column in batch.columns() {
        let offsets = match column.data_type() {
            ArrowType::Utf8 => column.as_string::<i32>().value_offsets(),
            ArrowType::Binary => column.as_binary::<i32>().value_offsets(),
            _ => continue,
        };
        each.iter_mut().zip(offsets.windows(2)).for_each(|(width, pair)| *width = width.saturating_add((pair[1] - pair[0]) as u32));
    }
    each
}

/// A batch with the keys of its rows, and how wide these are.
struct Keyed {
    batch: RecordBatch,
    keys: Rows,
    widths: Widths,
}

impl Sorter {
    fn new(schema: SchemaRef, by: &[String], memory: usize, dir: &Path) -> Result<Sorter, QueryError> {
        let known: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        let place = |name: &String| schema.index_of(name).map_err(|_| QueryError::unknown_column(name, &known));
        let columns = by.iter().map(place).collect::<Result<Vec<_>, _>>()?;
        let fields = columns.iter().map(|i| SortField::new(schema.field(*i).data_type().clone())).collect();
        let keys = Keys { columns, converter: Arc::new(RowConverter::new(fields)?) };
        let dir = dir.to_owned();
        Ok(Sorter { schema, keys, common: None, memory, dir, small: Default::default(), held: Default::default(), file: None, runs: Vec::new() })
    }

    /// Bytes of a batch in the file: as many as are merged at once have to fit.
    fn chunk_bytes(&self) -> usize {
        PIECE_BYTES_MAX.min(self.memory / 64)
    }

    fn push(&mut self, batch: &RecordBatch) -> Result<(), QueryError> {
        let batch = RecordBatch::try_new(self.schema.clone(), batch.columns().to_vec())?;
        for rows in pieces(&batch, PIECE_BYTES_MAX.min(self.memory / 8)) {
            let piece = owned(&batch, rows)?;
            let (bytes, chunk_bytes) = (used_bytes(&piece), self.chunk_bytes());
            if piece.num_rows() >= BATCH_ROWS / 2 || bytes >= chunk_bytes {
                self.hold(piece)?;
                continue;
            }
            let (batches, all, size) = &mut self.small;
            (*all, *size) = (*all + piece.num_rows(), *size + bytes);
            batches.push(piece);
            if *all >= BATCH_ROWS / 2 || *size >= chunk_bytes {
                self.hold_small()?;
            }
        }
        Ok(())
    }

    fn hold_small(&mut self) -> Result<(), QueryError> {
        let (batches, ..) = std::mem::take(&mut self.small);
        if batches.is_empty() { Ok(()) } else { self.hold(concat_batches(&self.schema, &batches)?) }
    }

    fn hold(&mut self, batch: RecordBatch) -> Result<(), QueryError> {
        let (keys, widths) = (self.keys.of(&batch)?, Widths::of(&batch));
        let bytes = used_bytes(&batch) + keys.size() + batch.num_rows() * size_of::<Place>();
        if self.held.1 + bytes > self.memory - self.memory / 4 {
            self.spill()?;
        }
        let common = self.common.get_or_insert_with(|| keys.row(0).data().to_vec());
        for key in keys.iter() {
            if !key.data().starts_with(common) {
                common.truncate(common.iter().zip(key.data()).take_while(|(a, b)| a == b).count());
            }
        }
        self.held.0.push(Keyed { batch, keys, widths });
        self.held.1 += bytes;
        Ok(())
    }

    /// How many bytes all keys have in common, from their first on.
    fn skip(&self) -> usize {
        self.common.as_ref().map_or(0, Vec::len)
    }

    fn spill(&mut self) -> Result<(), QueryError> {
        let (held, _) = std::mem::take(&mut self.held);
        if held.is_empty() {
            return Ok(());
        }
        self.write(Held::sorted(held, self.skip(), self.chunk_bytes()))
    }

    /// Writes a run.
    fn write(&mut self, batches: impl Iterator<Item = Result<RecordBatch, QueryError>>) -> Result<(), QueryError> {
        let io = |source| QueryError::Io { action: "read or spill", source };
        let part = match self.file.take() {
            Some(part) => part,
            None => Part { file: Arc::new(tempfile::tempfile_in(&self.dir).map_err(io)?), at: 0 },
        };
        let mut run = Run { part: part.clone(), cost: 0 };
        let mut writer = StreamWriter::try_new(BufWriter::with_capacity(WRITE_BUFFER_BYTES, part), &self.schema)?;
        for batch in batches {
            let batch = batch?;
            run.cost = run.cost.max(self.keys.cost(&batch));
            writer.write(&batch)?;
        }
        writer.finish()?;
        self.file = Some(writer.into_inner()?.into_inner().map_err(|e| io(e.into_error()))?);
        self.runs.push(run);
        Ok(())
    }

    fn finish(mut self) -> Result<Giving, QueryError> {
        self.hold_small()?;
        let (skip, bytes_max) = (self.skip(), PIECE_BYTES_MAX.min(self.memory / 16));
        if self.runs.is_empty() {
            return Ok(Box::new(Held::sorted(self.held.0, skip, bytes_max)));
        }
        self.spill()?;
        while let Some(first) = surplus(&self.runs, self.memory) {
            let runs = self.runs.drain(..first).collect();
            let merge = Merge::new(runs, self.keys.clone(), skip, self.chunk_bytes())?;
            self.write(merge)?;
        }
        Ok(Box::new(Merge::new(self.runs, self.keys, skip, bytes_max)?))
    }
}

/// Returns how many of the first runs have to become one before all can be merged at once; `None` if they can.
fn surplus(runs: &[Run], memory: usize) -> Option<usize> {
    // Of each a batch, and the one before that rows were taken from.
    let fits = |count: &usize| runs[..*count].iter().map(|r| 2 * r.cost).sum::<usize>() <= memory;
    let most = (2..=runs.len().min(FAN_IN_MAX)).rev().find(fits).unwrap_or(2);
    (most < runs.len()).then(|| most.min(runs.len() - most + 1).max(2))
}

/// Returns where a batch is cut, so that no piece has more than [`BATCH_ROWS`] rows, or more bytes than these and more than one row.
fn pieces(batch: &RecordBatch, bytes_max: usize) -> Vec<Range<usize>> {
    let rows = batch.num_rows();
    if rows <= BATCH_ROWS && used_bytes(batch) <= bytes_max {
        return (rows > 0).then_some(0..rows).into_iter().collect();
    }
    let (mut pieces, mut start, mut bytes) = (Vec::new(), 0, 0);
    for (row, width) in row_bytes(batch).into_iter().enumerate() {
        let width = width as usize;
        if row > start && (row - start == BATCH_ROWS || bytes + width > bytes_max) {
            pieces.push(start..row);
            (start, bytes) = (row, 0);
        }
        bytes += width;
    }
    pieces.push(start..rows);
    pieces
}

/// Returns rows of a batch, copied out of buffers that they have little of: those would stay as long as they do.
fn owned(batch: &RecordBatch, rows: Range<usize>) -> Result<RecordBatch, ArrowError> {
    let slice = batch.slice(rows.start, rows.len());
    let buffers = slice.columns().iter().map(|c| c.get_buffer_memory_size()).sum::<usize>();
    if buffers <= 2 * used_bytes(&slice) + 65_536 {
        return Ok(slice);
    }
    take_record_batch(&slice, &UInt32Array::from_iter_values(0..slice.num_rows() as u32))
}

/// Returns how many bytes the rows of a batch take, without what else stands in their buffers.
pub(crate) fn used_bytes(batch: &RecordBatch) -> usize {
    batch.columns().iter().map(|c| c.to_data().get_slice_memory_size().unwrap_or(usize::MAX / 1024)).sum()
}

/// The beginning of a row's key, after what all have in common; its batch, and its place there.
type Place = (u64, u32, u32);

fn beginning(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    let length = key.len().min(8);
    bytes[..length].copy_from_slice(&key[..length]);
    u64::from_be_bytes(bytes)
}

/// Batches in memory, and their rows in order.
struct Held {
    batches: Vec<RecordBatch>,
    widths: Vec<Widths>,
    places: std::vec::IntoIter<Place>,
    bytes_max: usize,
}

impl Held {
    fn sorted(held: Vec<Keyed>, skip: usize, bytes_max: usize) -> Held {
        let mut places: Vec<Place> = Vec::with_capacity(held.iter().map(|k| k.batch.num_rows()).sum());
        for (batch, keyed) in held.iter().enumerate() {
            places.extend(keyed.keys.iter().enumerate().map(|(row, key)| (beginning(&key.data()[skip..]), batch as u32, row as u32)));
        }
        let key = |place: &Place| held[place.1 as usize].keys.row(place.2 as usize);
        // Most rows differ in the beginning of their keys.
        places.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| key(a).cmp(&key(b))));
        let (batches, widths) = held.into_iter().map(|k| (k.batch, k.widths)).unzip();
        Held { batches, widths, places: places.into_iter(), bytes_max }
    }
}

impl Iterator for Held {
    type Item = Result<RecordBatch, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut picked = Vec::with_capacity(BATCH_ROWS.min(self.places.len()));
        let mut bytes = 0;
        for (_, batch, row) in self.places.as_slice() {
            let place = (*batch as usize, *row as usize);
            bytes += self.widths[place.0].get(place.1);
            if picked.len() == BATCH_ROWS || (bytes > self.bytes_max && !picked.is_empty()) {
                break;
            }
            picked.push(place);
        }
        self.places.nth(picked.len().checked_sub(1)?);
        let batches: Vec<&RecordBatch> = self.batches.iter().collect();
        Some(interleave_record_batch(&batches, &picked).map_err(QueryError::from))
    }
}

/// Rows in order, in the file.
struct Run {
    part: Part,
    /// What a batch of it takes with its keys, at most.
    cost: usize,
}

/// A place in the file, to read or write from.
#[derive(Clone)]
struct Part {
    file: Arc<File>,
    at: u64,
}

impl Read for Part {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(self.at))?;
        let count = file.read(bytes)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Write for Part {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut file = &*self.file;
        file.seek(SeekFrom::Start(self.at))?;
        let count = file.write(bytes)?;
        self.at += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Runs that become one.
struct Merge {
    cursors: Vec<Cursor>,
    /// The cursors that have a row, with the beginning of its key; the one with the lowest is first: a binary heap.
    heap: Vec<(u64, usize)>,
    keys: Keys,
    skip: usize,
    bytes_max: usize,
    /// Batches that picked rows come from.
    sources: Vec<RecordBatch>,
    picked: Vec<(usize, usize)>,
    bytes: usize,
}

/// A run, its batch at hand, and the row of it that is next.
struct Cursor {
    reader: StreamReader<BufReader<Part>>,
    keyed: Keyed,
    at: usize,
    /// The batch's place among the sources.
    source: Option<usize>,
}

impl Cursor {
    fn new(run: Run, keys: &Keys) -> Result<Cursor, ArrowError> {
        let reader = StreamReader::try_new(BufReader::new(run.part), None)?;
        let batch = RecordBatch::new_empty(reader.schema());
        Ok(Cursor { reader, keyed: Keyed { keys: keys.of(&batch)?, batch, widths: Widths::Even(0) }, at: 0, source: None })
    }

    /// Returns the key of the row at hand, of the next batch if this one is used up; none at the end.
    fn load(&mut self, keys: &Keys) -> Result<Option<&[u8]>, ArrowError> {
        while self.at == self.keyed.batch.num_rows() {
            let Some(batch) = self.reader.next().transpose()? else { return Ok(None) };
            self.keyed = Keyed { keys: keys.of(&batch)?, widths: Widths::of(&batch), batch };
            (self.at, self.source) = (0, None);
        }
        Ok(Some(self.keyed.keys.row(self.at).data()))
    }
}

impl Merge {
    fn new(runs: Vec<Run>, keys: Keys, skip: usize, bytes_max: usize) -> Result<Merge, QueryError> {
        let mut cursors = runs.into_iter().map(|run| Cursor::new(run, &keys)).collect::<Result<Vec<_>, _>>()?;
        let mut heap = Vec::with_capacity(cursors.len());
        for (i, cursor) in cursors.iter_mut().enumerate() {
            heap.extend(cursor.load(&keys)?.map(|key| (beginning(&key[skip..]), i)));
        }
        let mut merge = Merge { cursors, heap, keys, skip, bytes_max, sources: Vec::new(), picked: Vec::new(), bytes: 0 };
        (0..merge.heap.len() / 2).rev().for_each(|place| merge.sink(place));
        Ok(merge)
    }

    fn comes_before(&self, a: usize, b: usize) -> bool {
        let (a, b) = (self.heap[a], self.heap[b]);
        let row = |i: usize| self.cursors[i].keyed.keys.row(self.cursors[i].at);
        a.0 < b.0 || (a.0 == b.0 && row(a.1) < row(b.1))
    }

    /// Moves the cursor at a place of the heap down to where it belongs.
    fn sink(&mut self, mut place: usize) {
        loop {
            let mut first = place;
            for child in [2 * place + 1, 2 * place + 2] {
                if child < self.heap.len() && self.comes_before(child, first) {
                    first = child;
                }
            }
            if first == place {
                return;
            }
            self.heap.swap(place, first);
            place = first;
        }
    }

    /// Puts the first cursor, which has moved on, where it belongs.
    fn settle(&mut self) -> Result<(), ArrowError> {
        match self.cursors[self.heap[0].1].load(&self.keys)? {
            Some(key) => self.heap[0].0 = beginning(&key[self.skip..]),
            None => drop(self.heap.swap_remove(0)),
        }
        self.sink(0);
        Ok(())
    }

    fn give(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        while let Some((_, first)) = self.heap.first() {
            let cursor = &mut self.cursors[*first];
            let batch = &cursor.keyed.batch;
            if self.heap.len() == 1 && self.picked.is_empty() {
                // The last run is only read.
                let rest = batch.slice(cursor.at, batch.num_rows() - cursor.at);
                cursor.at = batch.num_rows();
                self.settle()?;
                return Ok(Some(rest));
            }
            let width = cursor.keyed.widths.get(cursor.at);
            if self.picked.len() == BATCH_ROWS || (self.bytes + width > self.bytes_max && !self.picked.is_empty()) {
                break;
            }
            let source = *cursor.source.get_or_insert_with(|| {
                self.sources.push(batch.clone());
                self.sources.len() - 1
            });
            self.picked.push((source, cursor.at));
            self.bytes += width;
            cursor.at += 1;
            self.settle()?;
        }
        if self.picked.is_empty() {
            return Ok(None);
        }
        let batch = interleave_record_batch(&self.sources.iter().collect::<Vec<_>>(), &self.picked)?;
        self.sources.clear();
        self.picked.clear();
        self.bytes = 0;
        self.cursors.iter_mut().for_each(|cursor| cursor.source = None);
        Ok(Some(batch))
    }
}

impl Iterator for Merge {
    type Item = Result<RecordBatch, QueryError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.give().map_err(QueryError::from).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow::{
        array::{ArrayRef, Int64Array, StringArray},
        compute::{SortColumn, SortOptions, lexsort_to_indices},
    };
    use std::convert::Infallible;

    fn noise(i: i64) -> i64 {
        ((i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20) as i64
    }

    fn batch(from: i64, rows: i64) -> RecordBatch {
        let key = Int64Array::from_iter((from..from + rows).map(|i| (i % 1000 != 7).then(|| noise(i))));
        let text = StringArray::from_iter_values((from..from + rows).map(|i| format!("row {i} of the input")));
        let columns: [(&str, ArrayRef); 2] = [("key", Arc::new(key)), ("text", Arc::new(text))];
        RecordBatch::try_from_iter_with_nullable(columns.map(|(n, a)| (n, a, true))).unwrap()
    }

    /// Sorts `input`, and returns the rows and how many runs there were in the file.
    fn sorted(input: Vec<RecordBatch>, memory_bytes: usize) -> (RecordBatch, usize) {
        let (schema, dir) = (input[0].schema(), tempfile::tempdir().unwrap());
        let mut sorter = Sorter::new(schema.clone(), &["key".into(), "text".into()], memory_bytes, dir.path()).unwrap();
        input.iter().for_each(|batch| sorter.push(batch).unwrap());
        let runs = sorter.runs.len();
        let batches: Vec<RecordBatch> = sorter.finish().unwrap().map(Result::unwrap).collect();
        for batch in &batches {
            assert!((1..=BATCH_ROWS).contains(&batch.num_rows()));
            let bytes = row_bytes(batch).into_iter().sum::<u32>() as usize;
            assert!(bytes <= memory_bytes / 16 || batch.num_rows() == 1, "{bytes} bytes in {} rows", batch.num_rows());
        }
        assert_eq!(dir.path().read_dir().unwrap().count(), 0);
        (concat_batches(&schema, &batches).unwrap(), runs)
    }

    fn expected(input: &[RecordBatch]) -> RecordBatch {
        let all = concat_batches(&input[0].schema(), input).unwrap();
        let options = Some(SortOptions { descending: false, nulls_first: true });
        let by: Vec<SortColumn> = [0, 1].map(|i| SortColumn { values: all.column(i).clone(), options }).to_vec();
        take_record_batch(&all, &lexsort_to_indices(&by, None).unwrap()).unwrap()
    }

    #[test]
    fn a_sort_spills_beyond_its_memory_and_loses_nothing() {
        // Slices of one large batch: their buffers are shared.
        let whole = batch(0, 100_000);
        let slices = (0..100).map(|i| whole.slice(i * 1000, 1000)).collect();
        let (spilt, runs) = sorted(slices, 1 << 20);
        assert!(runs > 5, "{runs}");
        let (kept, runs) = sorted(vec![whole.clone()], 1 << 30);
        assert_eq!(runs, 0);
        assert!(spilt == kept && spilt == expected(&[whole]));
        assert_eq!(spilt.column(0).slice(0, 100).null_count(), 100);
    }

    /// Rows with texts of these lengths.
    fn wide(lengths: impl Iterator<Item = usize>, rows_each: usize) -> Vec<RecordBatch> {
        let rows: Vec<(i64, String)> = lengths.zip(0..).map(|(length, i)| (noise(i) % 50, format!("{i} {}", "x".repeat(length)))).collect();
        let batch = |rows: &[(i64, String)]| {
            let key = Int64Array::from_iter_values(rows.iter().map(|r| r.0));
            let text = StringArray::from_iter_values(rows.iter().map(|r| &r.1));
            let columns: [(&str, ArrayRef); 2] = [("key", Arc::new(key)), ("text", Arc::new(text))];
            RecordBatch::try_from_iter_with_nullable(columns.map(|(n, a)| (n, a, true))).unwrap()
        };
        rows.chunks(rows_each).map(batch).collect()
    }

    #[test]
    fn rows_of_any_width_are_sorted_in_any_memory() {
        let check = |input: Vec<RecordBatch>, memory_bytes: usize| {
            let (rows, runs) = sorted(input.clone(), memory_bytes);
            assert!(rows == expected(&input) && runs > 1, "{runs} runs in {memory_bytes} bytes");
        };
        for rows_each in [1, 100, 100_000] {
            // All wide; narrow ones first; a few that are larger than all of the memory.
            check(wide((0..400).map(|_| 10_000), rows_each), 1 << 19);
            check(wide((0..4_000).map(|i| if i < 3_000 { 10 } else { 3_000 }), rows_each), 1 << 18);
            check(wide((0..2_000).map(|i| if i % 500 == 7 { 1 << 19 } else { 100 }), rows_each), 1 << 17);
        }
    }

    #[test]
    fn runs_are_merged_in_as_many_passes_as_the_memory_makes_of_it() {
        let input: Vec<RecordBatch> = (0..30).map(|i| batch(i * 1000, 1000)).collect();
        let (rows, runs) = sorted(input.clone(), 1 << 16);
        assert!(runs > 40, "{runs}");
        assert!(rows == expected(&input));
        let run = |cost| Run { part: Part { file: Arc::new(tempfile::tempfile().unwrap()), at: 0 }, cost };
        let surplus_of = |costs: &[usize], memory| surplus(&costs.iter().map(|c| run(*c)).collect::<Vec<_>>(), memory);
        assert_eq!(surplus_of(&[10; 5], 100), None);
        assert_eq!(surplus_of(&[10; 6], 100), Some(2));
        assert_eq!(surplus_of(&[10; 9], 100), Some(5));
        assert_eq!(surplus_of(&[10; 30], 100), Some(5));
        assert_eq!(surplus_of(&[1000; 2], 100), None);
        assert_eq!(surplus_of(&[1000; 3], 100), Some(2));
    }

    #[test]
    fn an_input_may_be_a_sort_itself_and_may_fail() {
        let dir = tempfile::tempdir().unwrap();
        let by = ["key".to_owned()];
        let schema = batch(0, 1).schema();
        let inner = sort_spilled(schema.clone(), Box::new((0..5).map(|i| Ok::<_, Infallible>(batch(i * 10, 10)))), &by, 1 << 20, dir.path());
        let outer = sort_spilled(schema.clone(), Box::new(inner), &["text".into()], 1 << 20, dir.path());
        assert_eq!(outer.map(|b| b.unwrap().num_rows()).sum::<usize>(), 50);
        let input = vec![Ok(batch(0, 10)), Err("torn")];
        let mut failing = sort_spilled(schema.clone(), Box::new(input.into_iter()), &by, 1 << 20, dir.path());
        assert!(matches!(failing.next(), Some(Err(SortError::Input("torn")))));
        assert!(failing.next().is_none());
        let mut empty = sort_spilled(schema.clone(), Box::new(std::iter::empty::<Result<_, Infallible>>()), &by, 1 << 20, dir.path());
        assert!(empty.next().is_none());
        let mut unknown = sort_spilled(schema, Box::new(std::iter::empty::<Result<_, Infallible>>()), &["kye".into()], 1 << 20, dir.path());
        let Some(Err(SortError::Sort(error))) = unknown.next() else { panic!("sorted") };
        assert_eq!(error.hint(), Some("did you mean \"key\"?"));
    }
}
