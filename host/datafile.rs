//! Parquet files of the warehouse: written with hash, statistics and field ids, read with pruning.
//! Never decides where a file belongs or who sees it.
//! Ingest and execution write and read through it.

use crate::{
    catalog::{ColumnStats, NewFile, Table},
    checksum::Encoder,
    id::Digest,
    schema::{DataType, envelope},
    store::{File, Store, StoreError},
    time::EventTime,
    window::Window,
};
use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch, new_null_array},
    compute::{max, max_binary, max_boolean, max_string, min, min_binary, min_boolean, min_string},
    datatypes::*,
};
use bytes::Bytes;
use parquet::{
    arrow::{
        ARROW_SCHEMA_META_KEY, ArrowWriter, ProjectionMask,
        arrow_reader::{
            ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowSelection, RowSelector,
            statistics::StatisticsConverter,
        },
        arrow_writer::ArrowWriterOptions,
        encode_arrow_schema,
    },
    basic::{Compression, Encoding, LogicalType, Type, ZstdLevel},
    errors::ParquetError,
    file::{
        metadata::{KeyValue, PageIndexPolicy, ParquetMetaData},
        properties::{EnabledStatistics, WriterProperties},
        reader::{ChunkReader, Length},
    },
    schema::types::ColumnPath,
};
use sha2::{Digest as _, Sha256};
use std::{
    cell::RefCell,
    collections::{BTreeSet, HashSet},
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

/// Rows of a row group: bounds the memory of a reader and a writer.
const ROW_GROUP_ROWS: usize = 131_072;
/// Rows of a page: what a narrow window has to decode at least.
const PAGE_ROWS: usize = 4_096;

/// A file of a table that cannot be written or read.
#[derive(Debug, thiserror::Error)]
pub enum DataFileError {
    /// The file system refused.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The Parquet inside is not what it should be.
    #[error("{path}: {source}")]
    Parquet {
        /// The file.
        path: String,
        /// What is wrong with it.
        source: ParquetError,
    },
    /// A row of a published partition lies elsewhere by its own time.
    #[error("{path}: row {row} has {column} = {}, outside of its partition {window}, so it is in no partition of what is made of it", time.map_or("null".into(), |t| t.to_string()))]
    Outside {
        /// The file.
        path: String,
        /// The row's place in its partition, from 0.
        row: u64,
        /// The time column.
        column: String,
        /// The row's time; none if it is null.
        time: Option<EventTime>,
        /// The partition's window.
        window: Window,
    },
    /// A column is not of the type that the catalog says.
    #[error("{path}: column {column:?} is not of the type {expected}")]
    Column {
        /// The file.
        path: String,
        /// The column.
        column: String,
        /// The type in the catalog.
        expected: DataType,
    },
}

/// A file that was written.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct Written {
    /// Its path in the warehouse.
    pub path: String,
    /// What the catalog wants to know; `path` is still empty there, and `partition` unset.
    pub file: NewFile,
    /// SHA-256 of its bytes.
    pub digest: Digest,
}

/// Rows that are looked at to choose how a column is encoded, and fewer that are not enough to tell.
const SAMPLE_ROWS: usize = 2_048;
const SAMPLE_ROWS_MIN: usize = 256;

/// What the first batch of a tiny file has at most: there is no second one then.
const TINY_ROWS: usize = 2_048;
const TINY_BYTES: usize = 16 << 10;

/// A file that is being written.
pub struct Writer {
    path: String,
    columns: Vec<(i64, DataType, String)>,
    schema: SchemaRef,
    body: Body,
    has_nan: Vec<bool>,
    nulls: Vec<i64>,
    /// Of columns that come as dictionaries: their texts, of which each occurs.
    texts: Vec<BTreeSet<String>>,
    rows: i64,
}

enum Body {
    /// No rows yet: they decide how columns are encoded.
    Empty(Option<Tee>),
    Begun(Box<ArrowWriter<Tee>>),
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
        let (has_nan, nulls, texts) = (vec![false; columns.len()], vec![0; columns.len()], vec![BTreeSet::new(); columns.len()]);
        Ok(Writer { path, has_nan, nulls, texts, columns, schema, body, rows: 0 })
    }

    /// Returns the Parquet writer, begun with what the first batch tells of its columns.
    fn begun(&mut self, first: Option<&RecordBatch>) -> Result<&mut ArrowWriter<Tee>, ParquetError> {
        if let Body::Empty(tee) = &mut self.body {
            let tee = tee.take().ok_or_else(|| ParquetError::General("an earlier write failed".into()))?;
            let properties = properties(&self.columns, first, &self.schema);
            let options = ArrowWriterOptions::new().with_properties(properties).with_skip_arrow_metadata(true);
            self.body = Body::Begun(Box::new(ArrowWriter::try_new_with_options(tee, self.schema.clone(), options)?));
        }
        match &mut self.body {
            Body::Begun(writer) => Ok(writer),
            Body::Empty(_) => unreachable!("BUG: it was begun"),
        }
    }

    /// Appends rows; the columns are the table's, in order. A column of few texts may be a dictionary, each of whose values occurs in the
    /// file: its bounds are theirs.
    ///
    /// # Errors
    /// The disk is full.
    pub fn write(&mut self, batch: &RecordBatch) -> Result<(), DataFileError> {
        for ((_, data_type, _), (array, nan)) in self.columns.iter().zip(batch.columns().iter().zip(&mut self.has_nan)) {
            *nan |= match data_type {
                DataType::Float32 => array.as_primitive::<Float32Type>().iter().flatten().any(f32::is_nan),
                DataType::Float64 => array.as_primitive::<Float64Type>().iter().flatten().any(f64::is_nan),
                _ => false,
            };
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
        let file =
            NewFile { path: String::new(), rows: self.rows, bytes, footer_bytes: Some(footer_bytes), partition: None, stats, digest: Some(digest) };
        Ok(Written { path: self.path, file, digest })
    }

    fn stats(&self, metadata: &ParquetMetaData) -> Result<Vec<ColumnStats>, ParquetError> {
        let parquet_schema = metadata.file_metadata().schema_descr();
        let fields: Vec<Field> = self.columns.iter().map(|(_, t, name)| Field::new(name, t.arrow(), true)).collect();
        let schema = Schema::new(fields);
        let mut stats = Vec::new();
        for (i, (column_id, data_type, name)) in self.columns.iter().enumerate() {
            let converter = StatisticsConverter::try_new(name, &schema, parquet_schema)?;
            let groups = metadata.row_groups();
            let bytes = groups.iter().map(|g| g.column(i).compressed_size()).sum();
            let known = name != envelope::PAYLOAD;
            let nulls = self.nulls[i];
            let texts = &self.texts[i];
            let bound = |array: ArrayRef, greatest: bool| match if greatest { texts.last() } else { texts.first() } {
                Some(text) => Some(text.clone()),
                None => known.then(|| bound_text(*data_type, &array, greatest)).flatten(),
            };
            let is_float = matches!(data_type, DataType::Float32 | DataType::Float64);
            stats.push(ColumnStats {
                column_id: *column_id,
                data_type: *data_type,
                bytes,
                values: self.rows - nulls,
                nulls,
                min: bound(converter.row_group_mins(groups)?, false),
                max: bound(converter.row_group_maxes(groups)?, true),
                contains_nan: is_float.then_some(self.has_nan[i]),
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

/// Returns how a file of these columns is written.
fn properties(columns: &[(i64, DataType, String)], first: Option<&RecordBatch>, schema: &SchemaRef) -> WriterProperties {
    let level = ZstdLevel::try_new(1).unwrap_or_default();
    // A compressor costs more to set up than it would save where all of the file is a few blocks of the disk.
    let tiny = first.is_some_and(|batch| batch.num_rows() < TINY_ROWS && batch.get_array_memory_size() < TINY_BYTES);
    let mut properties = WriterProperties::builder()
        .set_compression(if tiny { Compression::SNAPPY } else { Compression::ZSTD(level) })
        .set_key_value_metadata(Some(vec![arrow_schema(schema)]))
        .set_max_row_group_row_count(Some(ROW_GROUP_ROWS))
        .set_data_page_row_count_limit(PAGE_ROWS)
        .set_write_batch_size(PAGE_ROWS)
        .set_created_by("restitch".into())
        .set_column_statistics_enabled(ColumnPath::from(envelope::PAYLOAD), EnabledStatistics::None)
        .set_column_dictionary_enabled(ColumnPath::from(envelope::PAYLOAD), false)
        // Hashes have nothing that could be made smaller.
        .set_column_compression(ColumnPath::from(envelope::PAYLOAD_HASH), Compression::UNCOMPRESSED);
    for (i, (_, data_type, name)) in columns.iter().enumerate() {
        let path = || ColumnPath::from(vec![name.clone()]);
        let column = first.map(|batch| batch.column(i).as_ref());
        if column.is_some_and(|c| c.as_dictionary_opt::<Int32Type>().is_some()) {
            // The bounds of the file are known without a look at every value.
            properties = properties.set_column_statistics_enabled(path(), EnabledStatistics::None);
        } else if column.is_some_and(|c| is_mostly_distinct(*data_type, c)) {
            // A dictionary would be looked up for every value, and thrown away when it is full.
            properties = properties.set_column_dictionary_enabled(path(), false);
            if matches!(data_type, DataType::Int64 | DataType::Timestamp) && name != envelope::PAYLOAD_HASH {
                // Places and times differ little from their neighbours.
                properties = properties.set_column_encoding(path(), Encoding::DELTA_BINARY_PACKED);
            }
        }
    }
    properties.build()
}

/// Returns whether hardly a value of a sample occurs twice in it.
fn is_mostly_distinct(data_type: DataType, array: &dyn Array) -> bool {
    let sample = array.slice(0, array.len().min(SAMPLE_ROWS));
    let valid = sample.len() - sample.null_count();
    if valid < SAMPLE_ROWS_MIN {
        return false;
    }
    let values = Encoder::new(data_type, sample.as_ref());
    let (mut bytes, mut ends) = (Vec::new(), Vec::with_capacity(valid));
    for row in (0..sample.len()).filter(|row| !values.is_null(*row)) {
        values.put(row, &mut bytes);
        ends.push(bytes.len());
    }
    let (mut seen, mut start, mut repeated) = (HashSet::with_capacity(valid), 0, 0);
    for end in ends {
        repeated += usize::from(!seen.insert(&bytes[start..end]));
        if (valid - repeated) * 10 < valid * 9 {
            return false;
        }
        start = end;
    }
    true
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
        DataType::Float32 => format!("{:?}", pick!(Float32Type)?),
        DataType::Float64 => format!("{:?}", pick!(Float64Type)?),
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

/// An opened file: its footer is read, its pages are not.
pub struct Reader {
    path: String,
    file: File,
    metadata: ArrowReaderMetadata,
}

impl Reader {
    /// Opens the file at `path`.
    ///
    /// # Errors
    /// It is gone, or its footer is damaged.
    pub fn open(store: &Store, path: &str) -> Result<Reader, DataFileError> {
        let file = store.open(path)?;
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional).with_skip_arrow_metadata(false);
        let metadata = ArrowReaderMetadata::load(&file, options).map_err(|source| DataFileError::Parquet { path: path.into(), source })?;
        Ok(Reader { path: path.into(), file, metadata })
    }

    /// Returns the uncompressed bytes of `columns` in the whole file: what reading it would take in memory, about.
    pub fn uncompressed_bytes(&self, columns: &[&str]) -> i64 {
        let names: Vec<String> = self.metadata.parquet_schema().columns().iter().map(|c| c.path().string()).collect();
        let groups = self.metadata.metadata().row_groups();
        groups
            .iter()
            .map(|g| {
                g.columns()
                    .iter()
                    .zip(&names)
                    .filter(|(_, n)| columns.contains(&n.as_str()))
                    .map(|(c, _)| {
                        // Packed, a number may take a byte or two; in memory it takes what its type takes (a decimal 16 bytes).
                        let value = match (c.column_descr().logical_type_ref(), c.column_type()) {
                            (Some(LogicalType::Decimal { .. }), _) => 16,
                            (_, Type::INT32 | Type::FLOAT) => 4,
                            (_, Type::INT64 | Type::DOUBLE) => 8,
                            _ => 0,
                        };
                        c.uncompressed_size().max(c.unencoded_byte_array_data_bytes().unwrap_or(0)).max(c.num_values() * value)
                    })
                    .sum::<i64>()
            })
            .sum()
    }

    /// Returns the rows whose event time may lie in one of `windows` (in order of time; all rows, without any), as batches of `columns` in that
    /// order: pages whose statistics exclude it are not decoded, so a caller still compares each row. A column
    /// that the file lacks is null.
    ///
    /// # Errors
    /// The file is damaged.
    pub fn scan(self, columns: &[crate::schema::Field], windows: &[Window], batch_rows: usize) -> Result<Scan, DataFileError> {
        let path = self.path.clone();
        let parquet = |source| DataFileError::Parquet { path: path.clone(), source };
        // By root, not by path: a dot in a column's name is no step into a structure.
        let roots = self.metadata.parquet_schema().root_schema().get_fields().iter().enumerate();
        let wanted: Vec<usize> = roots.filter(|(_, f)| columns.iter().any(|c| c.name == f.name())).map(|(i, _)| i).collect();
        let mask = ProjectionMask::roots(self.metadata.parquet_schema(), wanted);
        let pruned = if windows.is_empty() { None } else { Some(self.prune(windows).map_err(parquet)?) };
        let read_ns = Arc::new(AtomicU64::new(0));
        let file = TimedFile { file: self.file, read_ns: read_ns.clone() };
        let mut builder = ParquetRecordBatchReaderBuilder::new_with_metadata(file, self.metadata).with_projection(mask).with_batch_size(batch_rows);
        if let Some((groups, selection)) = pruned {
            builder = builder.with_row_groups(groups);
            if let Some(selection) = selection {
                builder = builder.with_row_selection(selection);
            }
        }
        let reader = builder.build().map_err(parquet)?;
        let schema = Arc::new(Schema::new(columns.iter().map(|c| c.arrow(None).with_nullable(true)).collect::<Vec<_>>()));
        let absent = vec![None; columns.len()];
        Ok(Scan { path, reader, columns: columns.to_vec(), schema, absent, read_ns })
    }

    /// Returns the row groups that may hold event times of `windows`, and which of their rows, by page statistics.
    fn prune(&self, windows: &[Window]) -> Result<(Vec<usize>, Option<RowSelection>), ParquetError> {
        let metadata = self.metadata.metadata();
        // The converter finds a column by its place: the schema has to be the file's.
        let own = Field::new(envelope::EVENT_TIME, DataType::Timestamp.arrow(), false);
        let fields = self.metadata.schema().fields().iter().map(|f| if f.name() == own.name() { own.clone() } else { f.as_ref().clone() });
        let schema = Schema::new(fields.collect::<Vec<_>>());
        let converter = StatisticsConverter::try_new(envelope::EVENT_TIME, &schema, self.metadata.parquet_schema())?;
        let may_hold = |low: &ArrayRef, high: &ArrayRef, i: usize| {
            let (low, high) = (low.as_primitive::<TimestampMicrosecondType>(), high.as_primitive::<TimestampMicrosecondType>());
            low.is_null(i) || high.is_null(i) || overlaps(windows, EventTime(low.value(i)), EventTime(high.value(i)))
        };
        let (lows, highs) = (converter.row_group_mins(metadata.row_groups())?, converter.row_group_maxes(metadata.row_groups())?);
        let groups: Vec<usize> = (0..metadata.num_row_groups()).filter(|&g| may_hold(&lows, &highs, g)).collect();
        let (Some(columns), Some(offsets)) = (metadata.column_index(), metadata.offset_index()) else { return Ok((groups, None)) };
        let mut selectors = Vec::new();
        for &group in &groups {
            let (lows, highs) = (converter.data_page_mins(columns, offsets, [&group])?, converter.data_page_maxes(columns, offsets, [&group])?);
            let Some(rows) = converter.data_page_row_counts(offsets, metadata.row_groups(), [&group])? else { return Ok((groups, None)) };
            for page in 0..rows.len() {
                let count = rows.value(page) as usize;
                selectors.push(if may_hold(&lows, &highs, page) { RowSelector::select(count) } else { RowSelector::skip(count) });
            }
        }
        Ok((groups, Some(RowSelection::from(selectors))))
    }
}

/// Returns whether an event time from `low` to `high` lies in one of `windows`, which are in order of time.
pub(crate) fn overlaps(windows: &[Window], low: EventTime, high: EventTime) -> bool {
    windows.get(windows.partition_point(|w| w.end() <= low)).is_some_and(|w| w.start() <= high)
}

/// Batches of a file, in its order.
pub struct Scan {
    path: String,
    reader: ParquetRecordBatchReader,
    columns: Vec<crate::schema::Field>,
    schema: SchemaRef,
    /// For columns that the file lacks: nulls, as many as any batch had rows.
    absent: Vec<Option<ArrayRef>>,
    read_ns: Arc<AtomicU64>,
}

/// A file that knows how long its reader waited for bytes.
struct TimedFile {
    file: File,
    read_ns: Arc<AtomicU64>,
}

impl Length for TimedFile {
    fn len(&self) -> u64 {
        Length::len(&self.file)
    }
}

impl ChunkReader for TimedFile {
    type T = <File as ChunkReader>::T;

    fn get_read(&self, start: u64) -> Result<Self::T, ParquetError> {
        self.file.get_read(start)
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes, ParquetError> {
        let began = Instant::now();
        let bytes = self.file.get_bytes(start, length);
        self.read_ns.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
        bytes
    }
}

impl Iterator for Scan {
    type Item = Result<RecordBatch, DataFileError>;

    fn next(&mut self) -> Option<Self::Item> {
        let batch = self.reader.next()?;
        Some(batch.map_err(|e| DataFileError::Parquet { path: self.path.clone(), source: e.into() }).and_then(|b| self.arrange(&b)))
    }
}

impl Scan {
    /// Returns how long it waited for bytes, in nanoseconds.
    pub fn read_ns(&self) -> u64 {
        self.read_ns.load(Ordering::Relaxed)
    }

    fn arrange(&mut self, batch: &RecordBatch) -> Result<RecordBatch, DataFileError> {
        let (mut arrays, rows) = (Vec::with_capacity(self.columns.len()), batch.num_rows());
        for (column, absent) in self.columns.iter().zip(&mut self.absent) {
            let expected = column.data_type.arrow();
            arrays.push(match batch.column_by_name(&column.name) {
                None => match absent {
                    Some(nulls) if nulls.len() >= rows => nulls.slice(0, rows),
                    _ => absent.insert(new_null_array(&expected, rows)).clone(),
                },
                Some(array) if *array.data_type() == expected => array.clone(),
                // Another writer may have chosen another Arrow type for the same DuckLake type (views, large text).
                Some(array) => arrow::compute::cast(array, &expected).map_err(|_| DataFileError::Column {
                    path: self.path.clone(),
                    column: column.name.clone(),
                    expected: column.data_type,
                })?,
            });
        }
        let options = arrow::array::RecordBatchOptions::new().with_row_count(Some(batch.num_rows()));
        RecordBatch::try_new_with_options(self.schema.clone(), arrays, &options)
            .map_err(|e| DataFileError::Parquet { path: self.path.clone(), source: e.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{catalog::TableColumn, schema::Field as Column};
    use arrow::array::{Int64Array, StringArray, TimestampMicrosecondArray};

    #[test]
    fn pages_of_other_times_are_not_read() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        // The event time is not the first column: it is found by its place in the file.
        let fields = [("id", DataType::String), (envelope::EVENT_TIME, DataType::Timestamp), ("n", DataType::Int64)];
        let columns = fields.iter().zip(1..).map(|((name, t), id)| TableColumn { id, field: Column::new(*name, *t, false) }).collect();
        let table = Table { id: 1, name: "t".into(), folder: String::new(), columns, partition_id: None };
        let rows = 20 * PAGE_ROWS as i64;
        let ids = StringArray::from_iter_values((0..rows).map(|n| format!("{n:08}")));
        let times = TimestampMicrosecondArray::from_iter_values((0..rows).map(|n| n * 1_000_000)).with_timezone("UTC");
        let arrays: Vec<ArrayRef> = vec![Arc::new(ids), Arc::new(times), Arc::new(Int64Array::from_iter_values(0..rows))];
        let mut writer = Writer::create(&store, "t.parquet".into(), &table).unwrap();
        writer.write(&RecordBatch::try_new(table.arrow(), arrays).unwrap()).unwrap();
        writer.finish().unwrap();
        let scanned = |windows: &[Window]| -> Vec<i64> {
            let scan = Reader::open(&store, "t.parquet").unwrap().scan(&[Column::new("n", DataType::Int64, false)], windows, 1000).unwrap();
            scan.flat_map(|b| b.unwrap().column(0).as_primitive::<Int64Type>().values().to_vec()).collect()
        };
        let second = |s: i64| EventTime(s * 1_000_000);
        assert_eq!(scanned(&[]).len(), rows as usize);
        let (low, high) = (3 * PAGE_ROWS as i64 + 5, 3 * PAGE_ROWS as i64 + 9);
        let page = scanned(&[Window::new(second(low), second(high)).unwrap()]);
        assert_eq!((page[0], page.len()), (3 * PAGE_ROWS as i64, PAGE_ROWS));
        assert!(scanned(&[Window::new(second(rows), second(rows + 1)).unwrap()]).is_empty());
    }

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
            let snappy = read.metadata().row_group(0).column(0).compression() == Compression::SNAPPY;
            assert_eq!(snappy, rows == 10, "{rows} rows");
        }
    }

    #[test]
    fn decimals_keep_their_scale() {
        for (unscaled, scale, text) in [(0, 2, "0.00"), (-5, 2, "-0.05"), (12345, 2, "123.45"), (7, 0, "7"), (-100, 1, "-10.0")] {
            assert_eq!(decimal_text(unscaled, scale), text);
        }
    }
}
