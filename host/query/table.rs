//! Tables a query can read: fixed lists of Parquet files, and rows of single values.
//! Never lists a folder, never opens a file to learn its columns.
//! `Session` registers them.

use super::QueryError;
use crate::schema::{DataType, Field};
use arrow::{
    array::{ArrayRef, BinaryArray, Float64Array, Int64Array, RecordBatch, StringArray},
    datatypes::{Field as ArrowField, Schema, SchemaRef},
};
use datafusion::{
    catalog::{Session as Planner, TableProvider},
    common::config::TableParquetOptions,
    datasource::{
        TableType,
        listing::PartitionedFile,
        physical_plan::{FileGroup, FileScanConfigBuilder, ParquetSource},
        source::DataSourceExec,
    },
    error::Result as PlanResult,
    execution::object_store::ObjectStoreUrl,
    logical_expr::{Expr, TableProviderFilterPushDown},
    object_store::{ObjectMeta, path::Path as StorePath},
    physical_plan::{ExecutionPlan, empty::EmptyExec},
};
use futures::future::BoxFuture;
use std::{cmp::Reverse, collections::BinaryHeap, io, path::PathBuf, sync::Arc};

/// A table over a fixed list of Parquet files.
#[derive(Clone, Debug)]
pub struct FileTable {
    /// What queries call it.
    pub name: String,
    /// Its columns; a file may have fewer, and more that nobody reads.
    pub fields: Vec<Field>,
    /// Paths, and sizes in bytes.
    pub files: Vec<(PathBuf, u64)>,
}

/// A single value of a state table.
#[derive(Clone, PartialEq, Debug)]
pub enum StateValue {
    /// No value.
    Null,
    /// An integer.
    Int(i64),
    /// A floating-point number.
    Real(f64),
    /// Text.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

/// A [`FileTable`] as DataFusion reads it.
#[derive(Debug)]
pub(super) struct FileScan {
    schema: SchemaRef,
    files: Vec<ObjectMeta>,
}

impl FileScan {
    pub(super) fn new(table: FileTable) -> Result<FileScan, QueryError> {
        let files = table.files.into_iter().map(|(path, size)| object(path, size)).collect::<Result<_, _>>()?;
        Ok(FileScan { schema: nullable_schema(&table.fields), files })
    }

    fn plan(&self, state: &dyn Planner, projection: Option<&Vec<usize>>, limit: Option<usize>) -> PlanResult<Arc<dyn ExecutionPlan>> {
        if self.files.is_empty() {
            let schema = match projection {
                Some(columns) => Arc::new(self.schema.project(columns)?),
                None => Arc::clone(&self.schema),
            };
            return Ok(Arc::new(EmptyExec::new(schema)));
        }
        let options = TableParquetOptions { global: state.config_options().execution.parquet.clone(), ..Default::default() };
        let source = ParquetSource::new(Arc::clone(&self.schema)).with_table_parquet_options(options);
        let scan = FileScanConfigBuilder::new(ObjectStoreUrl::local_filesystem(), Arc::new(source))
            .with_file_groups(spread(&self.files, state.config().target_partitions()))
            .with_projection_indices(projection.cloned())?
            .with_limit(limit)
            .build();
        Ok(DataSourceExec::from_data_source(scan))
    }
}

impl TableProvider for FileScan {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.schema)
    }

    fn table_type(&self) -> TableType {
        TableType::Base
    }

    /// Filters prune row groups and pages; the plan filters rows again.
    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> PlanResult<Vec<TableProviderFilterPushDown>> {
        Ok(vec![TableProviderFilterPushDown::Inexact; filters.len()])
    }

    // Written out, for want of `async_trait`. The optimizer hands the filters to the Parquet source itself.
    fn scan<'a, 'b, 'c, 'd, 'f>(
        &'a self,
        state: &'b dyn Planner,
        projection: Option<&'c Vec<usize>>,
        _filters: &'d [Expr],
        limit: Option<usize>,
    ) -> BoxFuture<'f, PlanResult<Arc<dyn ExecutionPlan>>>
    where
        'a: 'f,
        'b: 'f,
        'c: 'f,
        'd: 'f,
        Self: 'f,
    {
        Box::pin(async move { self.plan(state, projection, limit) })
    }
}

/// Returns the Arrow schema of `fields` with every column nullable: were one not, the optimizer would
/// answer `is null` without looking, and an older file could not lack it.
pub(super) fn nullable_schema(fields: &[Field]) -> SchemaRef {
    Arc::new(Schema::new(fields.iter().map(|f| f.arrow(None).with_nullable(true)).collect::<Vec<_>>()))
}

fn object(path: PathBuf, size: u64) -> Result<ObjectMeta, QueryError> {
    let failed = |source| QueryError::Io { action: "name a file of the table", source };
    let absolute = std::path::absolute(&path).map_err(failed)?;
    let location = StorePath::from_absolute_path(&absolute).map_err(|e| failed(io::Error::other(e)))?;
    Ok(ObjectMeta { location, last_modified: Default::default(), size, e_tag: None, version: None })
}

/// Spreads files over `groups` so that each holds about as many bytes.
fn spread(files: &[ObjectMeta], groups: usize) -> Vec<FileGroup> {
    let groups = groups.clamp(1, files.len().max(1));
    let mut spread: Vec<Vec<PartitionedFile>> = vec![Vec::new(); groups];
    let mut lightest: BinaryHeap<Reverse<(u64, usize)>> = (0..groups).map(|g| Reverse((0, g))).collect();
    for file in files {
        let Some(Reverse((bytes, group))) = lightest.pop() else { break };
        spread[group].push(PartitionedFile::new_from_meta(file.clone()));
        lightest.push(Reverse((bytes + file.size.max(1), group)));
    }
    spread.into_iter().map(FileGroup::new).collect()
}

/// Returns rows of single values as a batch.
pub(super) fn batch_of(name: &str, columns: &[(String, bool)], rows: Vec<Vec<StateValue>>) -> Result<RecordBatch, QueryError> {
    if let Some(row) = rows.iter().find(|r| r.len() != columns.len()) {
        let message = format!("a row of {name} has {} values for {} columns", row.len(), columns.len());
        return Err(QueryError::Plan { message });
    }
    let arrays: Vec<ArrayRef> = columns.iter().enumerate().map(|(i, (_, whole))| column_of(&rows, i, *whole)).collect();
    let fields: Vec<ArrowField> = columns.iter().zip(&arrays).map(|((c, _), a)| ArrowField::new(c, a.data_type().clone(), true)).collect();
    let count = arrow::array::RecordBatchOptions::new().with_row_count(Some(rows.len()));
    Ok(RecordBatch::try_new_with_options(Arc::new(Schema::new(fields)), arrays, &count)?)
}

/// `whole` says what a column is of which no row tells.
fn column_of(rows: &[Vec<StateValue>], i: usize, whole: bool) -> ArrayRef {
    let values = || rows.iter().map(move |r| &r[i]);
    match type_of(values()).unwrap_or(if whole { DataType::Int64 } else { DataType::String }) {
        DataType::Int64 => Arc::new(Int64Array::from_iter(values().map(|v| if let StateValue::Int(n) = v { Some(*n) } else { None }))),
        DataType::Float64 => Arc::new(Float64Array::from_iter(values().map(|v| match v {
            StateValue::Int(n) => Some(*n as f64),
            StateValue::Real(f) => Some(*f),
            _ => None,
        }))),
        DataType::Binary => Arc::new(BinaryArray::from_iter(values().map(|v| if let StateValue::Blob(b) = v { Some(b) } else { None }))),
        _ => Arc::new(StringArray::from_iter(values().map(text_of))),
    }
}

fn type_of<'a>(values: impl Iterator<Item = &'a StateValue>) -> Option<DataType> {
    let mut found = None;
    for value in values {
        let this = match value {
            StateValue::Null => continue,
            StateValue::Int(_) => DataType::Int64,
            StateValue::Real(_) => DataType::Float64,
            StateValue::Text(_) => return Some(DataType::String),
            StateValue::Blob(_) => DataType::Binary,
        };
        found = Some(match found {
            None => this,
            Some(other) if other == this => this,
            Some(DataType::Int64 | DataType::Float64) if this != DataType::Binary => DataType::Float64,
            Some(_) => return Some(DataType::String),
        });
    }
    found
}

fn text_of(value: &StateValue) -> Option<String> {
    match value {
        StateValue::Null => None,
        StateValue::Int(n) => Some(n.to_string()),
        StateValue::Real(f) => Some(f.to_string()),
        StateValue::Text(t) => Some(t.clone()),
        StateValue::Blob(b) => Some(String::from_utf8_lossy(b).into_owned()),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::{query::Session, store::Store};
    use arrow::array::Int32Array;
    use parquet::{arrow::ArrowWriter, file::properties::WriterProperties};
    use std::path::Path;

    /// Writes `batch` in row groups of 1,000 and returns the file as a table lists it.
    pub fn write(dir: &Path, name: &str, batch: &RecordBatch) -> (PathBuf, u64) {
        let path = dir.join(name);
        let properties = WriterProperties::builder().set_max_row_group_row_count(Some(1000)).build();
        let mut writer = ArrowWriter::try_new(Store::new(dir).create(name).unwrap(), batch.schema(), Some(properties)).unwrap();
        writer.write(batch).unwrap();
        writer.close().unwrap();
        let size = path.metadata().unwrap().len();
        (path, size)
    }

    pub fn batch(columns: Vec<(&str, ArrayRef)>) -> RecordBatch {
        RecordBatch::try_from_iter_with_nullable(columns.into_iter().map(|(n, a)| (n, a, true))).unwrap()
    }

    fn ints(values: impl IntoIterator<Item = i64>) -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(values))
    }

    #[test]
    fn files_are_read_by_column_name_and_lack_what_they_lack() {
        let dir = tempfile::tempdir().unwrap();
        // The name is one that a path type might want to escape.
        let old = write(dir.path(), "old 2026-01-01T00%3A00.parquet", &batch(vec![("id", Arc::new(Int32Array::from(vec![1, 2])))]));
        let new = write(
            dir.path(),
            "new.parquet",
            &batch(vec![("Coupon", Arc::new(StringArray::from(vec![Some("x"), None]))), ("extra", ints([0, 0])), ("id", ints([3, 4]))]),
        );
        let fields = vec![Field::new("id", DataType::Int64, false), Field::new("Coupon", DataType::String, false)];
        let session = Session::new(None, None).unwrap();
        let table = FileTable { name: "Orders".into(), fields, files: vec![old, new] };
        session.register_files(table.clone()).unwrap();
        session.register_files(table).unwrap();
        let n = |sql: &str| session.sql(sql).unwrap().scalar_i64("n");
        assert_eq!(n("select count(*) as n from Orders"), Some(4));
        assert_eq!(n("select sum(id) as n from Orders"), Some(10));
        assert_eq!(n("select count(*) as n from Orders where Coupon is null"), Some(3));
        assert_eq!(n("select count(*) as n from Orders where Coupon = 'x' and id > 1"), Some(1));
        assert_eq!(n("select count(*) as n from Orders where id = 2"), Some(1));
        assert_eq!(session.sql("select * from Orders limit 1").unwrap().schema.field(1).name(), "Coupon");
    }

    #[test]
    fn filters_reach_the_parquet_files() {
        let dir = tempfile::tempdir().unwrap();
        let file = write(dir.path(), "a.parquet", &batch(vec![("id", ints(0..10_000))]));
        let session = Session::new(None, None).unwrap();
        let fields = vec![Field::new("id", DataType::Int64, true)];
        session.register_files(FileTable { name: "t".into(), fields, files: vec![file] }).unwrap();
        let plan = crate::query::table_text(&session.sql("explain analyze select id from t where id = 4321").unwrap(), 10);
        assert!(plan.contains("predicate=id"), "{plan}");
        assert!(plan.contains("row_groups_pruned_statistics=10 total → 1 matched"), "{plan}");
    }

    #[test]
    fn many_files_make_one_table() {
        let dir = tempfile::tempdir().unwrap();
        let (path, size) = write(dir.path(), "a.parquet", &batch(vec![("id", ints([7]))]));
        let session = Session::new(None, None).unwrap();
        let fields = vec![Field::new("id", DataType::Int64, true)];
        let files = vec![(path, size); 10_000];
        session.register_files(FileTable { name: "t".into(), fields: fields.clone(), files }).unwrap();
        assert_eq!(session.sql("select sum(id) as n from t").unwrap().scalar_i64("n"), Some(70_000));
        session.register_files(FileTable { name: "t".into(), fields, files: vec![] }).unwrap();
        assert_eq!(session.sql("select count(id) as n from t").unwrap().scalar_i64("n"), Some(0));
        let gone = vec![(dir.path().join("gone.parquet"), 10)];
        session.register_files(FileTable { name: "g".into(), fields: vec![Field::new("id", DataType::Int64, true)], files: gone }).unwrap();
        let error = session.sql("select id from g").unwrap_err();
        assert!(matches!(error, QueryError::Io { .. }), "{error:?}");
    }

    #[test]
    fn columns_of_single_values_get_the_narrowest_type() {
        use StateValue::*;
        let check = |values: Vec<StateValue>, name: &str| {
            let rows = values.into_iter().map(|v| vec![v]).collect();
            assert_eq!(batch_of("t", &[("c".into(), false)], rows).unwrap().schema().field(0).data_type().to_string(), name);
        };
        check(vec![Null, Int(1)], "Int64");
        check(vec![Int(1), Real(0.5), Null], "Float64");
        check(vec![Real(0.5), Int(1)], "Float64");
        check(vec![Blob(vec![1])], "Binary");
        check(vec![Int(1), Blob(vec![1])], "Utf8");
        check(vec![Int(1), Text("x".into())], "Utf8");
        check(vec![Null], "Utf8");
        check(vec![], "Utf8");
        assert!(batch_of("t", &[("c".into(), true)], vec![vec![]]).is_err());
    }
}
