//! Parquet files of the warehouse: written with hash, statistics and field ids, read with pruning.
//! Never decides where a file belongs or who sees it.
//! Ingest and execution write and read through it.

mod groups;
mod writer;

pub use writer::{Writer, decimal_text};

use crate::{
    catalog::NewFile,
    id::Digest,
    schema::{DataType, envelope},
    store::{File, Store, StoreError},
    time::EventTime,
    window::Window,
};
use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch, new_null_array},
    datatypes::*,
};
use bytes::Bytes;
use parquet::{
    arrow::{
        ProjectionMask,
        arrow_reader::{
            ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder, RowSelection, RowSelector,
            statistics::StatisticsConverter,
        },
    },
    basic::{LogicalType, Type},
    errors::ParquetError,
    file::{
        metadata::PageIndexPolicy,
        reader::{ChunkReader, Length},
    },
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Instant,
};

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
    use super::writer::PAGE_ROWS;
    use super::*;
    use crate::{
        catalog::{Table, TableColumn},
        schema::Field as Column,
    };
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
}
