//! Row groups, written column by column: one that is the same as an earlier one is encoded once, and its pages go into the file twice.
//! Never keeps more than a row group.
//! Part of `datafile`.

use arrow::{
    array::{Array, RecordBatch},
    datatypes::SchemaRef,
};
use bytes::Bytes;
use parquet::{
    arrow::{
        ArrowSchemaConverter,
        arrow_writer::{
            ArrowColumnWriter, ArrowRowGroupWriterFactory, InMemoryPageStore, PageKey, PageStore, PageStoreArgs, PageStoreFactory, compute_leaves,
        },
    },
    column::writer::ColumnCloseResult,
    errors::ParquetError,
    file::{
        metadata::{ColumnChunkMetaData, ParquetMetaData},
        properties::WriterProperties,
        writer::SerializedFileWriter,
    },
    schema::types::ColumnDescPtr,
};
use std::{
    io::Write,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// A file of row groups.
pub(super) struct Groups<W: Write + Send> {
    file: SerializedFileWriter<W>,
    factory: ArrowRowGroupWriterFactory,
    schema: SchemaRef,
    rows_max: usize,
    /// Of each column, the earlier one that it is the same as.
    twins: Vec<Option<usize>>,
    pages: Arc<Pages>,
    open: Option<Group>,
}

struct Group {
    /// None of a column that is written as another one.
    columns: Vec<Option<ArrowColumnWriter>>,
    rows: usize,
}

impl<W: Write + Send> Groups<W> {
    /// Begins a file of columns without nested ones. `twins` names for each column an earlier one that will be the same in every batch;
    /// neither may have a dictionary.
    ///
    /// # Errors
    /// The disk is full.
    pub(super) fn new(out: W, schema: SchemaRef, properties: WriterProperties, twins: Vec<Option<usize>>) -> Result<Groups<W>, ParquetError> {
        let parquet = ArrowSchemaConverter::new().convert(&schema)?;
        let rows_max = properties.max_row_group_row_count().unwrap_or(usize::MAX);
        let file = SerializedFileWriter::new(out, parquet.root_schema_ptr(), Arc::new(properties))?;
        let pages = (0..twins.len()).map(|i| twins.contains(&Some(i)).then(Kept::default)).collect();
        let pages = Arc::new(Pages(pages));
        let factory = ArrowRowGroupWriterFactory::new(&file, schema.clone()).with_page_store_factory(pages.clone());
        Ok(Groups { file, factory, schema, rows_max, twins, pages, open: None })
    }

    /// Appends rows.
    ///
    /// # Errors
    /// The disk is full.
    pub(super) fn write(&mut self, batch: &RecordBatch) -> Result<(), ParquetError> {
        let mut first = 0;
        while first < batch.num_rows() {
            let group = match &mut self.open {
                Some(group) => group,
                open => {
                    let columns = self.factory.create_column_writers(self.file.flushed_row_groups().len())?;
                    let columns = columns.into_iter().zip(&self.twins).map(|(c, twin)| twin.is_none().then_some(c)).collect();
                    open.insert(Group { columns, rows: 0 })
                }
            };
            let rows = (batch.num_rows() - first).min(self.rows_max - group.rows);
            for (i, (field, array)) in self.schema.fields().iter().zip(batch.columns()).enumerate() {
                match (&mut group.columns[i], self.twins[i]) {
                    (Some(column), _) => compute_leaves(field, &array.slice(first, rows))?.iter().try_for_each(|leaf| column.write(leaf))?,
                    (None, Some(twin)) if Arc::ptr_eq(array, batch.column(twin)) => {}
                    (None, _) => return Err(ParquetError::General(format!("BUG: column {:?} is another than was said", field.name()))),
                }
            }
            (group.rows, first) = (group.rows + rows, first + rows);
            if group.rows == self.rows_max {
                self.end_group()?;
            }
        }
        Ok(())
    }

    fn end_group(&mut self) -> Result<(), ParquetError> {
        let Some(ended) = self.open.take() else { return Ok(()) };
        let descriptors = self.file.schema_descr().columns().to_vec();
        let mut group = self.file.next_row_group()?;
        let mut closed: Vec<Option<ColumnCloseResult>> = Vec::new();
        for (i, column) in ended.columns.into_iter().enumerate() {
            let twin = self.twins[i].and_then(|twin| closed[twin].clone().zip(self.pages.of(twin)));
            closed.push(match (column, twin) {
                (Some(column), _) => {
                    let chunk = column.close()?;
                    let close = self.pages.0[i].is_some().then(|| chunk.close().clone());
                    chunk.append_to_row_group(&mut group)?;
                    close
                }
                (None, Some((close, pages))) => {
                    group.append_column(&pages, renamed(close, &descriptors[i])?)?;
                    None
                }
                (None, None) => unreachable!("BUG: a column that is neither written nor another one"),
            });
        }
        group.close()?;
        self.pages.clear();
        Ok(())
    }

    /// Ends the file, and returns what its footer says.
    ///
    /// # Errors
    /// The disk is full.
    pub(super) fn finish(&mut self) -> Result<ParquetMetaData, ParquetError> {
        self.end_group()?;
        self.file.finish()
    }

    pub(super) fn inner_mut(&mut self) -> &mut W {
        self.file.inner_mut()
    }
}

/// Returns what is known of a column's pages as that of a column of another name.
fn renamed(mut close: ColumnCloseResult, column: &ColumnDescPtr) -> Result<ColumnCloseResult, ParquetError> {
    let of = &close.metadata;
    if of.dictionary_page_offset().is_some() {
        return Err(ParquetError::General("BUG: a column with a dictionary cannot be written twice".into()));
    }
    let mut renamed = ColumnChunkMetaData::builder(column.clone())
        .set_compression_codec(of.compression_codec())
        .set_encodings_mask(*of.encodings_mask())
        .set_total_compressed_size(of.compressed_size())
        .set_total_uncompressed_size(of.uncompressed_size())
        .set_num_values(of.num_values())
        .set_data_page_offset(of.data_page_offset())
        .set_unencoded_byte_array_data_bytes(of.unencoded_byte_array_data_bytes())
        .set_repetition_level_histogram(of.repetition_level_histogram().cloned())
        .set_definition_level_histogram(of.definition_level_histogram().cloned());
    if let Some(statistics) = of.statistics() {
        renamed = renamed.set_statistics(statistics.clone());
    }
    if let Some(encodings) = of.page_encoding_stats() {
        renamed = renamed.set_page_encoding_stats(encodings.clone());
    }
    close.metadata = renamed.build()?;
    Ok(close)
}

/// The pages of the columns that are written again, as they were written.
#[derive(Debug)]
struct Pages(Vec<Option<Kept>>);

impl Pages {
    fn of(&self, column: usize) -> Option<Bytes> {
        Some(self.0[column].as_ref()?.lock().concat().into())
    }

    fn clear(&self) {
        self.0.iter().flatten().for_each(|kept| kept.lock().clear());
    }
}

impl PageStoreFactory for Pages {
    fn create(&self, args: &PageStoreArgs<'_>) -> Result<Box<dyn PageStore>, ParquetError> {
        Ok(match &self.0[args.column_index()] {
            None => Box::new(InMemoryPageStore::default()),
            Some(kept) => Box::new(kept.clone()),
        })
    }
}

/// Pages that stay when they are taken, until the row group ends.
#[derive(Clone, Debug, Default)]
struct Kept(Arc<Mutex<Vec<Bytes>>>);

impl Kept {
    fn lock(&self) -> MutexGuard<'_, Vec<Bytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageStore for Kept {
    fn put(&mut self, page: Bytes) -> Result<PageKey, ParquetError> {
        let mut pages = self.lock();
        pages.push(page);
        Ok(PageKey::new(pages.len() as u64 - 1))
    }

    fn take(&mut self, key: PageKey) -> Result<Bytes, ParquetError> {
        let page = self.lock().get(key.get() as usize).cloned();
        page.ok_or_else(|| ParquetError::General("BUG: a page that was never put".into()))
    }
}
