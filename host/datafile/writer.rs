//! Writing a file: how its columns are encoded, its hash, its statistics.
//! Never syncs it, and never keeps more of it than a row group.
//! Part of `datafile`.

use super::{DataFileError, Written, groups::Groups};
use crate::{
    catalog::{ColumnStats, NewFile, Table},
    checksum::Encoder,
    id::Digest,
    schema::{DataType, envelope},
    store::{File, Store},
};
use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch},
    compute::{max, max_binary, max_boolean, max_string, min, min_binary, min_boolean, min_string},
    datatypes::*,
};
use parquet::{
    arrow::{ARROW_SCHEMA_META_KEY, arrow_reader::statistics::StatisticsConverter, encode_arrow_schema},
    basic::{Compression, Encoding, ZstdLevel},
    errors::ParquetError,
    file::{
        metadata::{KeyValue, ParquetMetaData},
        properties::{EnabledStatistics, WriterProperties, WriterVersion},
    },
    schema::types::ColumnPath,
};
use sha2::{Digest as _, Sha256};
use std::{
    cell::RefCell,
    collections::{BTreeSet, HashSet},
    io::{self, Write},
    sync::Arc,
};

/// Rows of a row group: bounds the memory of a reader and a writer.
const ROW_GROUP_ROWS: usize = 131_072;
/// Rows of a page: what a narrow window has to decode at least.
pub(super) const PAGE_ROWS: usize = 4_096;

/// Rows that are looked at to choose how a column is encoded, and fewer that are not enough to tell.
const SAMPLE_ROWS: usize = 2_048;
const SAMPLE_ROWS_MIN: usize = 256;
/// Numbers of a sample that are less than this apart from each other are narrow.
const NARROW: i64 = 1 << 20;

/// What a file has at most that is tiny: its first batch, which is then the only one.
const TINY_ROWS: usize = 2_048;
const TINY_BYTES: usize = 16 << 10;

/// A file that is being written.
pub struct Writer {
    path: String,
    columns: Vec<(i64, DataType, String)>,
    schema: SchemaRef,
    body: Body,
    floats: Vec<Floats>,
    nulls: Vec<i64>,
    /// Of columns that come as dictionaries: their texts, of which each occurs.
    texts: Vec<BTreeSet<String>>,
    rows: i64,
    /// Whether a small first batch is all that is written.
    whole: bool,
}

/// What a column of floats holds.
#[derive(Clone, Default)]
struct Floats {
    nan: bool,
    /// Its least and greatest number.
    bounds: Option<(f64, f64)>,
}

impl Floats {
    fn take(&mut self, float: f64) {
        if float.is_nan() {
            self.nan = true;
        } else {
            let (low, high) = self.bounds.unwrap_or((float, float));
            self.bounds = Some((low.min(float), high.max(float)));
        }
    }

    /// Returns the least or greatest number as a float of the column's width is written.
    fn bound(&self, data_type: DataType, greatest: bool) -> Option<String> {
        // DuckDB takes a file for one of nothing but that number, and does not look for `<>` it, if both bounds are alike.
        let (low, high) = self.bounds.filter(|(low, high)| !self.nan || low < high)?;
        let bound = if greatest { high } else { low };
        Some(if data_type == DataType::Float32 { format!("{:?}", bound as f32) } else { format!("{bound:?}") })
    }
}

enum Body {
    /// No rows yet: they decide how columns are encoded.
    Empty(Option<Tee>),
    Begun(Box<Groups<Tee>>),
}

/// Counts and hashes what goes into the file.
struct Tee {
    file: io::BufWriter<File>,
    hash: Sha256,
    bytes: i64,
    tail: [u8; 8],
}

impl Write for Tee {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let n = self.file.write(buffer)?;
        self.hash.update(&buffer[..n]);
        self.bytes += n as i64;
        let keep = n.min(8);
        self.tail.copy_within(keep.., 0);
        self.tail[8 - keep..].copy_from_slice(&buffer[n - keep..n]);
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Writer {
    /// Begins a new file at `path` with the columns of `table`.
    ///
    /// # Errors
    /// The file exists or its folder is not writable.
    pub fn create(store: &Store, path: String, table: &Table) -> Result<Writer, DataFileError> {
        let schema = table.arrow();
        let tee = Tee { file: io::BufWriter::with_capacity(1 << 18, store.create(&path)?), hash: Sha256::new(), bytes: 0, tail: [0; 8] };
        let columns: Vec<_> = table.columns.iter().map(|c| (c.id, c.field.data_type, c.field.name.clone())).collect();
        let body = Body::Empty(Some(tee));
        let (floats, nulls, texts) = (vec![Floats::default(); columns.len()], vec![0; columns.len()], vec![BTreeSet::new(); columns.len()]);
        Ok(Writer { path, floats, nulls, texts, columns, schema, body, rows: 0, whole: true })
    }

    /// As [`Writer::create`], of a file whose first rows tell nothing of how many there will be.
    ///
    /// # Errors
    /// As [`Writer::create`].
    pub fn create_open_ended(store: &Store, path: String, table: &Table) -> Result<Writer, DataFileError> {
        Ok(Writer { whole: false, ..Writer::create(store, path, table)? })
    }

    /// Returns the row groups, begun with what the first batch tells of its columns.
    fn begun(&mut self, first: Option<&RecordBatch>) -> Result<&mut Groups<Tee>, ParquetError> {
        if let Body::Empty(tee) = &mut self.body {
            let tee = tee.take().ok_or_else(|| ParquetError::General("an earlier write failed".into()))?;
            let shape = Shape::of(&self.columns, first, self.whole, &self.schema);
            self.body = Body::Begun(Box::new(Groups::new(tee, shape.schema, shape.properties, shape.twins)?));
        }
        match &mut self.body {
            Body::Begun(groups) => Ok(groups),
            Body::Empty(_) => unreachable!("BUG: it was begun"),
        }
    }

    /// Appends rows; the columns are the table's, in order. A column of few texts may be a dictionary, each of whose values occurs in the
    /// file: its bounds are theirs. Columns that are one array in the first batch have to be one in all.
    ///
    /// # Errors
    /// The disk is full.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), DataFileError> {
        for ((_, data_type, _), (array, floats)) in self.columns.iter().zip(batch.columns().iter().zip(&mut self.floats)) {
            match data_type {
                DataType::Float32 => array.as_primitive::<Float32Type>().iter().flatten().for_each(|f| floats.take(f.into())),
                DataType::Float64 => array.as_primitive::<Float64Type>().iter().flatten().for_each(|f| floats.take(f)),
                _ => {}
            }
        }
        for (nulls, array) in self.nulls.iter_mut().zip(batch.columns()) {
            *nulls += array.null_count() as i64;
        }
        for (texts, array) in self.texts.iter_mut().zip(batch.columns()) {
            let Some(few) = array.as_dictionary_opt::<Int32Type>() else { continue };
            for text in few.values().as_string::<i32>().iter().flatten() {
                if !texts.contains(text) {
                    texts.insert(text.to_owned());
                }
            }
        }
        self.rows += batch.num_rows() as i64;
        // Field metadata (ids) comes from the writer's schema, so only types are compared.
        let written = self.begun(Some(batch)).and_then(|writer| writer.write(batch));
        written.map_err(|source| DataFileError::Parquet { path: self.path.clone(), source })
    }

    /// Returns the rows written so far.
    pub fn rows(&self) -> i64 {
        self.rows
    }

    /// Ends the file. It is complete, but not durable yet.
    ///
    /// # Errors
    /// The disk is full.
    pub fn finish(mut self) -> Result<Written, DataFileError> {
        let path = self.path.clone();
        let parquet = |source| DataFileError::Parquet { path: path.clone(), source };
        let writer = self.begun(None).map_err(parquet)?;
        let metadata = writer.finish().map_err(parquet)?;
        let tee = writer.inner_mut();
        tee.flush().map_err(|e| parquet(ParquetError::External(e.into())))?;
        let footer_bytes = u32::from_le_bytes([tee.tail[0], tee.tail[1], tee.tail[2], tee.tail[3]]) as i64;
        let digest = Digest(tee.hash.clone().finalize().into());
        let bytes = tee.bytes;
        let stats = self.stats(&metadata).map_err(parquet)?;
        let file = NewFile { rows: self.rows, bytes, footer_bytes: Some(footer_bytes), partition: None, stats, digest: Some(digest) };
        Ok(Written { path: self.path, file, digest })
    }

    fn stats(&self, metadata: &ParquetMetaData) -> Result<Vec<ColumnStats>, ParquetError> {
        let parquet_schema = metadata.file_metadata().schema_descr();
        let fields: Vec<Field> = self.columns.iter().map(|(_, t, name)| Field::new(name, t.arrow(), true)).collect();
        let schema = Schema::new(fields);
        let mut stats = Vec::with_capacity(self.columns.len());
        for (i, (column_id, data_type, name)) in self.columns.iter().enumerate() {
            let converter = StatisticsConverter::try_new(name, &schema, parquet_schema)?;
            let groups = metadata.row_groups();
            let bytes = groups.iter().map(|g| g.column(i).compressed_size()).sum();
            let known = name != envelope::PAYLOAD;
            let nulls = self.nulls[i];
            let texts = &self.texts[i];
            let is_float = is_float(*data_type);
            let bound = |array: ArrayRef, greatest: bool| match if greatest { texts.last() } else { texts.first() } {
                Some(text) => Some(text.clone()),
                None if is_float => self.floats[i].bound(*data_type, greatest),
                None => known.then(|| bound_text(*data_type, &array, greatest)).flatten(),
            };
            stats.push(ColumnStats {
                column_id: *column_id,
                data_type: *data_type,
                bytes,
                values: self.rows - nulls,
                nulls,
                min: bound(converter.row_group_mins(groups)?, false),
                max: bound(converter.row_group_maxes(groups)?, true),
                contains_nan: is_float.then_some(self.floats[i].nan),
            });
        }
        Ok(stats)
    }
}

thread_local! {
    /// The last schema that this thread wrote a file with, as Arrow's readers find it in the file: many small files have the same.
    static ENCODED: RefCell<Option<(SchemaRef, String)>> = const { RefCell::new(None) };
}

/// Returns the entry of a file's metadata that has its Arrow schema.
fn arrow_schema(schema: &SchemaRef) -> KeyValue {
    ENCODED.with_borrow_mut(|last| {
        if last.as_ref().is_none_or(|(of, _)| of != schema) {
            *last = Some((schema.clone(), encode_arrow_schema(schema)));
        }
        KeyValue::new(ARROW_SCHEMA_META_KEY.into(), last.as_ref().map(|(_, encoded)| encoded.clone()))
    })
}

/// How a file of some columns is written.
struct Shape {
    properties: WriterProperties,
    /// Of each column, the earlier one that it is the same as, where that is of use.
    twins: Vec<Option<usize>>,
    schema: SchemaRef,
}

/// How the values of a column are written.
#[derive(PartialEq)]
enum Coding {
    /// By the crate's own rule: a dictionary as long as it is small.
    Usual,
    /// As they are: a dictionary would be looked up for every value, and thrown away when it is full.
    Plain,
    /// As differences, packed: a compressor finds nothing in them.
    Delta,
}

impl Shape {
    fn of(columns: &[(i64, DataType, String)], first: Option<&RecordBatch>, whole: bool, schema: &SchemaRef) -> Shape {
        let array = |i: usize| first.map(|batch| batch.column(i));
        let coding: Vec<Coding> =
            columns.iter().enumerate().map(|(i, (_, t, name))| array(i).map_or(Coding::Usual, |a| coding(*t, name, a))).collect();
        let twin = |i: usize| {
            let same = |j: &usize| array(i).zip(array(*j)).is_some_and(|(a, b)| Arc::ptr_eq(a, b) && columns[i].1 == columns[*j].1);
            (0..i).find(|j| coding[i] != Coding::Usual && coding[i] == coding[*j] && same(j))
        };
        let twins: Vec<Option<usize>> = (0..columns.len()).map(twin).collect();
        let schema = with_nulls_alike(schema, &twins);
        let tiny = whole && first.is_some_and(|batch| batch.num_rows() < TINY_ROWS && batch.get_array_memory_size() < TINY_BYTES);
        Shape { properties: properties(columns, &coding, array, tiny, &schema), twins, schema }
    }
}

/// Returns the schema with columns that are the same nullable if one of them is: what tells nulls stands in their pages.
fn with_nulls_alike(schema: &SchemaRef, twins: &[Option<usize>]) -> SchemaRef {
    if twins.iter().all(Option::is_none) {
        return schema.clone();
    }
    let fields = schema.fields();
    let root = |i: usize| twins[i].unwrap_or(i);
    let nullable = |i: usize| (0..fields.len()).any(|j| root(j) == root(i) && fields[j].is_nullable());
    let alike = fields.iter().enumerate().map(|(i, field)| field.as_ref().clone().with_nullable(nullable(i)));
    Arc::new(Schema::new_with_metadata(alike.collect::<Vec<_>>(), schema.metadata().clone()))
}

/// Returns how a file of these columns is written.
fn properties<'a>(
    columns: &[(i64, DataType, String)],
    coding: &[Coding],
    array: impl Fn(usize) -> Option<&'a ArrayRef>,
    tiny: bool,
    schema: &SchemaRef,
) -> WriterProperties {
    let level = ZstdLevel::try_new(1).unwrap_or_default();
    let mut properties = WriterProperties::builder()
        .set_compression(if tiny { Compression::UNCOMPRESSED } else { Compression::ZSTD(level) })
        // Pages of the second version are compressed from where they are encoded. Their encodings are those that every reader has, unless asked for.
        .set_writer_version(WriterVersion::PARQUET_2_0)
        .set_encoding(Encoding::PLAIN)
        .set_key_value_metadata(Some(vec![arrow_schema(schema)]))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_write_batch_size(PAGE_ROWS)
        .set_created_by("restitch".into())
        .set_column_statistics_enabled(ColumnPath::from(envelope::PAYLOAD), EnabledStatistics::None)
        .set_column_dictionary_enabled(ColumnPath::from(envelope::PAYLOAD), false)
        // Hashes have nothing that could be made smaller, and no order that anybody asks for.
        .set_column_compression(ColumnPath::from(envelope::PAYLOAD_HASH), Compression::UNCOMPRESSED)
        .set_column_statistics_enabled(ColumnPath::from(envelope::PAYLOAD_HASH), EnabledStatistics::None);
    if tiny {
        // All of the file is a few blocks of the disk: a compressor costs more to set up than it would save, and an index of one page tells nothing.
        properties = properties.set_statistics_enabled(EnabledStatistics::Chunk).set_offset_index_disabled(true);
    }
    for (i, (_, data_type, name)) in columns.iter().enumerate() {
        let path = || ColumnPath::from(vec![name.clone()]);
        // The bounds of a dictionary are known without a look at every value. Those of floats would leave NaN out, which SQL has above all
        // numbers: readers would pass over rows that they were asked for.
        if is_float(*data_type) || array(i).is_some_and(|c| c.as_dictionary_opt::<Int32Type>().is_some()) {
            properties = properties.set_column_statistics_enabled(path(), EnabledStatistics::None);
        }
        if coding[i] != Coding::Usual {
            properties = properties.set_column_dictionary_enabled(path(), false);
        }
        if coding[i] == Coding::Delta {
            properties =
                properties.set_column_encoding(path(), Encoding::DELTA_BINARY_PACKED).set_column_compression(path(), Compression::UNCOMPRESSED);
        }
    }
    properties.build()
}

fn is_float(data_type: DataType) -> bool {
    matches!(data_type, DataType::Float32 | DataType::Float64)
}

/// Returns how a column is written that begins with `array`.
fn coding(data_type: DataType, name: &str, array: &ArrayRef) -> Coding {
    let sample = array.slice(0, array.len().min(SAMPLE_ROWS));
    let valid = sample.len() - sample.null_count();
    if valid < SAMPLE_ROWS_MIN || array.as_dictionary_opt::<Int32Type>().is_some() {
        return Coding::Usual;
    }
    let narrow = data_type == DataType::Int64 && {
        let numbers = sample.as_primitive::<Int64Type>();
        min(numbers).zip(max(numbers)).is_some_and(|(low, high)| high.saturating_sub(low) < NARROW)
    };
    // Of narrow numbers a difference is hardly longer than a place in a dictionary, which would be written, too.
    let distinct = distinct(data_type, sample.as_ref(), valid);
    match data_type {
        _ if distinct * 10 < valid * if narrow { 5 } else { 9 } => Coding::Usual,
        // Places and times differ little from their neighbours.
        DataType::Int64 | DataType::Timestamp if name != envelope::PAYLOAD_HASH => Coding::Delta,
        _ => Coding::Plain,
    }
}

/// Returns how many different values a sample has, which are not null.
fn distinct(data_type: DataType, sample: &dyn Array, valid: usize) -> usize {
    let values = Encoder::new(data_type, sample);
    let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(valid));
    for row in (0..sample.len()).filter(|row| !values.is_null(*row)) {
        values.put(row, &mut bytes);
        ends.push(bytes.len());
    }
    let starts = std::iter::once(0).chain(ends.iter().copied());
    let seen: HashSet<&[u8]> = starts.zip(&ends).map(|(start, end)| &bytes[start..*end]).collect();
    seen.len()
}

/// Returns the least or greatest of the row groups' bounds in DuckLake's text form; `None` if all are null.
fn bound_text(data_type: DataType, array: &ArrayRef, greatest: bool) -> Option<String> {
    macro_rules! pick {
        ($t:ty) => {{
            let a = array.as_primitive::<$t>();
            if greatest { max(a) } else { min(a) }
        }};
    }
    // Outside the years that SQL can write, no bound is better than one that cannot be read.
    let in_years = |us: &i64| (crate::time::MIN_US..crate::time::END_US).contains(us);
    let instant = |us: i64| {
        let text = crate::time::format_us(us);
        format!("{}+00", text.trim_end_matches('Z').replace('T', " "))
    };
    Some(match data_type {
        DataType::Boolean => {
            if greatest { max_boolean(array.as_boolean()) } else { min_boolean(array.as_boolean()) }.map(|b| (b as u8).to_string())?
        }
        DataType::Int32 => pick!(Int32Type)?.to_string(),
        DataType::Int64 => pick!(Int64Type)?.to_string(),
        // They are measured while they are written.
        DataType::Float32 | DataType::Float64 => return None,
        DataType::Decimal(_, scale) => decimal_text(pick!(Decimal128Type)?, scale),
        DataType::String | DataType::Json => {
            if greatest { max_string(array.as_string::<i32>()) } else { min_string(array.as_string::<i32>()) }?.to_owned()
        }
        DataType::Binary => return if greatest { max_binary(array.as_binary::<i32>()) } else { min_binary(array.as_binary::<i32>()) }.and(None),
        DataType::Date => {
            let us = Some(pick!(Date32Type)? as i64 * crate::time::DAY_US).filter(in_years)?;
            instant(us).get(..10)?.to_owned()
        }
        DataType::Time => instant(pick!(Time64MicrosecondType)?).get(11..)?.trim_end_matches("+00").to_owned(),
        DataType::Timestamp => instant(Some(pick!(TimestampMicrosecondType)?).filter(in_years)?),
    })
}

/// Returns `unscaled` with a point before its last `scale` digits.
pub fn decimal_text(unscaled: i128, scale: i8) -> String {
    if scale <= 0 {
        return unscaled.to_string();
    }
    let digits = format!("{:0width$}", unscaled.unsigned_abs(), width = scale as usize + 1);
    let (whole, fraction) = digits.split_at(digits.len() - scale as usize);
    format!("{}{whole}.{fraction}", if unscaled < 0 { "-" } else { "" })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{catalog::TableColumn, schema::Field as Column};
    use arrow::array::{Int64Array, StringArray, TimestampMicrosecondArray};
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    #[test]
    fn a_tiny_file_needs_no_compressor_and_each_says_its_arrow_schema() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        for (n, (name, rows)) in [("a", 10), ("a", TINY_BYTES as i64), ("b", 10)].into_iter().enumerate() {
            let columns = vec![TableColumn { id: 1, field: Column::new(name, DataType::Int64, false) }];
            let table = Table { id: 1, name: "t".into(), folder: String::new(), columns, partition_id: None };
            let schema = Arc::new(Schema::new(vec![table.columns[0].field.arrow(Some(1))]));
            let path = format!("{n}.parquet");
            let mut writer = Writer::create(&store, path.clone(), &table).unwrap();
            writer.write(&RecordBatch::try_new(schema.clone(), vec![Arc::new(Int64Array::from_iter_values(0..rows))]).unwrap()).unwrap();
            writer.finish().unwrap();
            let read = ParquetRecordBatchReaderBuilder::try_new(store.open(&path).unwrap()).unwrap();
            assert_eq!(read.schema().fields(), schema.fields());
            let file = read.metadata().file_metadata();
            // Bytes are as Arrow's own writer has them.
            let own = KeyValue::new(ARROW_SCHEMA_META_KEY.into(), encode_arrow_schema(&schema));
            assert_eq!(file.key_value_metadata(), Some(&vec![own]));
            let column = read.metadata().row_group(0).column(0);
            let tiny = column.compression() == Compression::UNCOMPRESSED && column.offset_index_offset().is_none();
            assert_eq!(tiny, rows == 10, "{rows} rows");
        }
    }

    #[test]
    fn a_column_that_is_another_one_is_encoded_once_and_read_as_any() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        let fields = [
            ("_id", DataType::String, false),
            ("_at", DataType::Timestamp, false),
            ("id", DataType::String, true),
            ("at", DataType::Timestamp, true),
        ];
        let columns = fields.iter().zip(1..).map(|((name, t, null), id)| TableColumn { id, field: Column::new(*name, *t, *null) }).collect();
        let table = Table { id: 1, name: "t".into(), folder: String::new(), columns, partition_id: None };
        let rows = ROW_GROUP_ROWS as i64 * 2 + 1000;
        let ids: ArrayRef = Arc::new(StringArray::from_iter_values((0..rows).map(|n| format!("{:016x}", n.wrapping_mul(0x1234_5678_9abc_def1)))));
        let times: ArrayRef = Arc::new(TimestampMicrosecondArray::from_iter_values((0..rows).map(|n| n * 7919 % 1_000_003)).with_timezone("UTC"));
        let batch = |ids: &[ArrayRef; 2], first, count| {
            let [a, b] = ids.clone().map(|ids| ids.slice(first, count));
            let times = times.slice(first, count);
            let b = if Arc::ptr_eq(&ids[0], &ids[1]) { a.clone() } else { b };
            RecordBatch::try_new(table.arrow(), vec![a, times.clone(), b, times]).unwrap()
        };
        let same = [ids.clone(), ids.clone()];
        let mut writer = Writer::create(&store, "twins".into(), &table).unwrap();
        for first in (0..rows as usize).step_by(10_000) {
            writer.write(&batch(&same, first, 10_000.min(rows as usize - first))).unwrap();
        }
        let written = writer.finish().unwrap();
        let [a, b] = [0, 2].map(|i| &written.file.stats[i]);
        assert_eq!((a.bytes, a.values, &a.min, &a.max), (b.bytes, rows, &b.min, &b.max));
        let reader = crate::datafile::Reader::open(&store, "twins").unwrap();
        let read: Vec<RecordBatch> =
            reader.scan(&table.columns.iter().map(|c| c.field.clone()).collect::<Vec<_>>(), &[], 50_000).unwrap().map(Result::unwrap).collect();
        let read = arrow::compute::concat_batches(&read[0].schema(), &read).unwrap();
        for (i, column) in [&ids, &times, &ids, &times].into_iter().enumerate() {
            assert_eq!(read.column(i), column);
        }
        let file = ParquetRecordBatchReaderBuilder::try_new(store.open("twins").unwrap()).unwrap();
        let groups = file.metadata().row_groups();
        assert_eq!(groups.len(), 3);
        let span = |column: usize| groups.iter().map(move |g| g.column(column).byte_range());
        assert!(span(0).zip(span(2)).all(|(a, b)| a.0 < b.0 && a.1 == b.1), "each has its own pages");
        // What is no longer the same is refused, not written as if it were.
        let mut writer = Writer::create(&store, "other".into(), &table).unwrap();
        writer.write(&batch(&same, 0, 5000)).unwrap();
        let error =
            writer.write(&batch(&[ids.clone(), Arc::new(StringArray::from_iter_values((0..rows).map(|n| n.to_string())))], 0, 10)).unwrap_err();
        assert!(error.to_string().contains("BUG"), "{error}");
    }

    #[test]
    fn bounds_of_floats_stand_in_the_catalog_and_not_in_the_file_which_may_hold_nan() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        let fields = [("n", DataType::Int64), ("f", DataType::Float32), ("d", DataType::Float64), ("e", DataType::Float64)];
        let columns = fields.iter().zip(1..).map(|((name, t), id)| TableColumn { id, field: Column::new(*name, *t, true) }).collect();
        let table = Table { id: 1, name: "t".into(), folder: String::new(), columns, partition_id: None };
        let rows = ROW_GROUP_ROWS as i64 + TINY_ROWS as i64;
        for (path, rows) in [("tiny", 3), ("large", rows)] {
            let float = |n: i64| if n == 1 { f64::NAN } else { n as f64 + 0.1 };
            let arrays: Vec<ArrayRef> = vec![
                Arc::new(Int64Array::from_iter_values(0..rows)),
                Arc::new(arrow::array::Float32Array::from_iter_values((0..rows).map(|n| -float(n) as f32))),
                Arc::new(arrow::array::Float64Array::from_iter_values((0..rows).map(float))),
                Arc::new(arrow::array::Float64Array::from_iter((0..rows).map(|n| (n == 2).then_some(f64::NAN)))),
            ];
            let mut writer = Writer::create(&store, path.into(), &table).unwrap();
            writer.write(&RecordBatch::try_new(table.arrow(), arrays).unwrap()).unwrap();
            let stats = writer.finish().unwrap().file.stats;
            let last = format!("{}.1", rows - 1);
            assert_eq!((&stats[1].max, &stats[1].contains_nan), (&Some("-0.1".into()), &Some(true)));
            assert_eq!(stats[1].min, Some(format!("{:?}", -(rows as f32 - 0.9))));
            assert_eq!((&stats[2].min, &stats[2].max, stats[2].contains_nan), (&Some("0.1".into()), &Some(last), Some(true)));
            assert_eq!((&stats[3].min, &stats[3].max, stats[3].contains_nan, stats[3].values), (&None, &None, Some(true), 1));
            let file = ParquetRecordBatchReaderBuilder::try_new(store.open(path).unwrap()).unwrap();
            for group in file.metadata().row_groups() {
                let told: Vec<bool> = group.columns().iter().map(|c| c.statistics().is_some_and(|s| s.min_bytes_opt().is_some())).collect();
                assert_eq!(told, [true, false, false, false], "{path}");
                assert!(group.columns()[1..].iter().all(|c| c.column_index_offset().is_none()), "{path}");
            }
        }
    }

    #[test]
    fn narrow_numbers_are_packed_and_few_are_a_dictionary() {
        for (wide, count, packed) in [(1, 100_000, true), (1, 1_500, true), (1, 40, false), (1 << 40, 1_500, false), (1 << 40, 100_000, true)] {
            let numbers: ArrayRef = Arc::new(Int64Array::from_iter_values((0..3000).map(|n: i64| n * 7919 % count * wide)));
            assert_eq!(coding(DataType::Int64, "n", &numbers) == Coding::Delta, packed, "{count} numbers, {wide} apart");
        }
        let nothing: ArrayRef = arrow::array::new_null_array(&DataType::Int64.arrow(), 3000);
        assert!(coding(DataType::Int64, "n", &nothing) == Coding::Usual);
    }

    #[test]
    fn decimals_keep_their_scale() {
        for (unscaled, scale, text) in [(0, 2, "0.00"), (-5, 2, "-0.05"), (12345, 2, "123.45"), (7, 0, "7"), (-100, 1, "-10.0")] {
            assert_eq!(decimal_text(unscaled, scale), text);
        }
    }
}
