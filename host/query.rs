//! The door to DataFusion: SQL over fixed lists of files, conditions, aggregates; and sorts that spill, which do without it.
//! Never writes a table and never lists a folder: what it reads is what it was told to read.
//! Checks, filters, comparisons and `restitch query` go through here; nothing else names DataFusion.

mod chain;
mod compare;
mod depth;
mod error;
mod expression;
mod format;
mod overflow;
mod sort;
mod table;
mod unsound;
mod value;

pub use compare::{ColumnChange, Difference, RowDifference, column_changes, compare, differing_rows, first_difference, is_doubled};
pub use error::{QueryError, SortError};
pub use expression::{Aggregate, AggregateState, Filter};
pub use format::{rows_json, table_text};
pub(crate) use sort::used_bytes;
pub use sort::{Sorted, sort_spilled};
pub use table::{FileTable, StateValue};
pub use value::Value;

use crate::time::IngestTime;
use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch},
    compute::cast,
    datatypes::{DataType as ArrowType, Int64Type, SchemaRef},
};
use chrono::DateTime;
use datafusion::{
    catalog::{MemTable, TableProvider},
    common::TableReference,
    dataframe::DataFrame,
    execution::{
        disk_manager::{DiskManagerBuilder, DiskManagerMode},
        memory_pool::FairSpillPool,
        runtime_env::{RuntimeEnv, RuntimeEnvBuilder},
    },
    logical_expr::LogicalPlan,
    prelude::{SQLOptions, SessionConfig, SessionContext},
};
use std::{
    collections::HashSet,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
};
use table::FileScan;
use tokio::runtime::Runtime;

/// Rows of a batch, everywhere.
pub const BATCH_ROWS: usize = 8192;

/// A place to register tables in and to ask for rows.
///
/// Names are taken as they are written: `Amount` and `amount` are two columns, quoted or not.
pub struct Session {
    context: SessionContext,
    runtime: Runtime,
    /// What `now()` is; of a session that nobody told, the machine's clock.
    now: Option<IngestTime>,
}

/// What a query returned; without rows it still knows its columns.
#[derive(Clone, Debug)]
pub struct Rows {
    /// The columns.
    pub schema: SchemaRef,
    /// The rows.
    pub batches: Vec<RecordBatch>,
}

impl Session {
    /// Returns an empty session. Its operators spill to `spill_dir` beyond `memory_bytes`; without a folder they may not spill.
    ///
    /// The limit is one on what DataFusion counts. Resident memory can be several times that.
    ///
    /// # Errors
    /// Threads cannot be started.
    pub fn new(memory_bytes: Option<usize>, spill_dir: Option<&Path>) -> Result<Session, QueryError> {
        let cores = thread::available_parallelism().map_or(1, |n| n.get());
        Session::with_config(config(cores, true), memory_bytes, spill_dir)
    }

    fn with_config(config: SessionConfig, memory_bytes: Option<usize>, spill_dir: Option<&Path>) -> Result<Session, QueryError> {
        let workers = config.target_partitions();
        let context = SessionContext::new_with_config_rt(config, environment(memory_bytes, spill_dir)?);
        overflow::refuse(&context);
        unsound::mend(&context);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(workers)
            .thread_name("restitch-query")
            .thread_stack_size(depth::STACK_BYTES)
            .build()
            .map_err(|source| QueryError::Io { action: "start the query threads", source })?;
        Ok(Session { context, runtime, now: None })
    }

    /// Returns it with `now()`, `current_date` and their like at this instant.
    pub fn at(self, now: IngestTime) -> Session {
        Session { now: Some(now), ..self }
    }

    /// Registers a table over files; one of the same name is replaced.
    ///
    /// Columns are found in the files by name. A file without one reads null there, so every column
    /// is nullable to a query, whatever `fields` say.
    ///
    /// # Errors
    /// A path is not UTF-8. Files are not opened before a query reads them.
    pub fn register_files(&self, table: FileTable) -> Result<(), QueryError> {
        let name = table.name.clone();
        self.register(&name, Arc::new(FileScan::new(table)?))
    }

    /// Registers a table of batches; one of the same name is replaced.
    ///
    /// # Errors
    /// A batch has another schema.
    pub fn register_batches(&self, name: &str, schema: SchemaRef, batches: Vec<RecordBatch>) -> Result<(), QueryError> {
        let table = MemTable::try_new(schema, vec![batches]).map_err(|e| QueryError::of(e, &[]))?;
        self.register(name, Arc::new(table))
    }

    /// Registers a table of single values, typed by what its columns hold: int64, float64, binary or string.
    ///
    /// # Errors
    /// A row is shorter or longer than `columns`.
    pub fn register_rows(&self, name: &str, columns: &[(String, bool)], rows: Vec<Vec<StateValue>>) -> Result<(), QueryError> {
        let batch = table::batch_of(name, columns, rows)?;
        self.register_batches(name, batch.schema(), vec![batch])
    }

    fn register(&self, name: &str, table: Arc<dyn TableProvider>) -> Result<(), QueryError> {
        let reference = TableReference::bare(name);
        self.context.deregister_table(reference.clone()).map_err(|e| QueryError::of(e, &[]))?;
        self.context.register_table(reference, table).map_err(|e| QueryError::of(e, &[]))?;
        Ok(())
    }

    /// Runs one query and returns all its rows. SELECT, WITH, VALUES, EXPLAIN, SHOW and DESCRIBE are
    /// taken; whatever would change data, tables or settings is refused.
    ///
    /// # Errors
    /// The text is not one query, is nested too deeply, names what does not exist, or fails on the data.
    pub fn sql(&self, sql: &str) -> Result<Rows, QueryError> {
        depth::refuse_deep(sql)?;
        self.own(sql)
    }

    /// Runs a query that was made here, not typed: it may name as many columns as a table has.
    fn own(&self, sql: &str) -> Result<Rows, QueryError> {
        depth::deep(|| self.collect(self.frame(sql)?))
    }

    fn frame(&self, sql: &str) -> Result<DataFrame, QueryError> {
        let mut state = self.context.state();
        let plan = self.block(state.create_logical_plan(sql))?;
        refuse_changes(&plan)?;
        unsound::refuse(&plan)?;
        if let Some(now) = self.now.and_then(|now| DateTime::from_timestamp_micros(now.0)) {
            state.execution_props_mut().query_execution_start_time = Some(now);
        }
        Ok(DataFrame::new(state, plan))
    }

    fn collect(&self, frame: DataFrame) -> Result<Rows, QueryError> {
        let schema = Arc::clone(frame.schema().inner());
        let batches = self.block(frame.collect())?;
        // A plan may know less than its batches do, about nullability for one.
        let schema = batches.first().map_or(schema, |b| b.schema());
        Ok(Rows { schema, batches: batches.into_iter().filter(|b| b.num_rows() > 0).collect() })
    }

    fn block<T>(&self, work: impl Future<Output = datafusion::error::Result<T>>) -> Result<T, QueryError> {
        self.runtime.block_on(work).map_err(|e| QueryError::of(e, &self.table_names()))
    }

    fn table_names(&self) -> Vec<String> {
        let schema = self.context.catalog(CATALOG).and_then(|c| c.schema(SCHEMA));
        schema.map(|s| s.table_names()).unwrap_or_default()
    }
}

impl Rows {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.batches.iter().map(RecordBatch::num_rows).sum()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.rows() == 0
    }

    /// Refuses two columns of one name, for which an object has one place.
    ///
    /// # Errors
    /// There are such columns.
    pub fn refuse_doubled(&self) -> Result<(), QueryError> {
        let mut names = HashSet::new();
        match self.schema.fields().iter().find(|f| !names.insert(f.name())) {
            Some(doubled) => Err(QueryError::doubled(doubled.name())),
            None => Ok(()),
        }
    }

    /// Returns the column `name` of the first row as an integer; `None` for no row, no such column, null or a value that is none.
    pub fn scalar_i64(&self, name: &str) -> Option<i64> {
        let batch = self.batches.first()?;
        let column: ArrayRef = cast(&batch.column_by_name(name)?.slice(0, 1), &ArrowType::Int64).ok()?;
        column.is_valid(0).then(|| column.as_primitive::<Int64Type>().value(0))
    }
}

const CATALOG: &str = "restitch";
const SCHEMA: &str = "main";

fn config(partitions: usize, hash_join: bool) -> SessionConfig {
    let mut config = SessionConfig::new()
        .with_target_partitions(partitions)
        .with_batch_size(BATCH_ROWS)
        .with_default_catalog_and_schema(CATALOG, SCHEMA)
        .with_information_schema(true);
    let options = config.options_mut();
    options.optimizer.prefer_hash_join = hash_join;
    // Names are taken as they are written, as everywhere in restitch.
    options.sql_parser.enable_ident_normalization = false;
    options.sql_parser.map_string_types_to_utf8view = false;
    options.execution.parquet.schema_force_view_types = false;
    // A row filter that cannot be built for a file is dropped without a word once the plan's own filter
    // is gone. Pruning by statistics, which is most of the gain, does not need it.
    options.execution.parquet.pushdown_filters = false;
    config
}

fn environment(memory_bytes: Option<usize>, spill_dir: Option<&Path>) -> Result<Arc<RuntimeEnv>, QueryError> {
    let mode = match spill_dir {
        Some(dir) => DiskManagerMode::Directories(vec![PathBuf::from(dir)]),
        None => DiskManagerMode::Disabled,
    };
    let mut builder = RuntimeEnvBuilder::new().with_disk_manager_builder(DiskManagerBuilder::default().with_mode(mode));
    if let Some(bytes) = memory_bytes {
        builder = builder.with_memory_pool(Arc::new(FairSpillPool::new(bytes)));
    }
    builder.build_arc().map_err(|e| QueryError::of(e, &[]))
}

fn refuse_changes(plan: &LogicalPlan) -> Result<(), QueryError> {
    let queries_only = SQLOptions::new().with_allow_ddl(false).with_allow_dml(false).with_allow_statements(false);
    queries_only.verify_plan(plan).map_err(|_| QueryError::Sql {
        message: "this statement would change data, tables or settings; only queries run here".into(),
        hint: Some("SELECT, WITH, VALUES, EXPLAIN, SHOW and DESCRIBE are queries".into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn session() -> Session {
        let session = Session::new(None, None).unwrap();
        let row = |n: i64, t: &str| vec![StateValue::Int(n), StateValue::Text(t.into())];
        session.register_rows("runs", &[("id".into(), true), ("Status".into(), false)], vec![row(1, "published"), row(2, "failed")]).unwrap();
        session
    }

    #[test]
    fn a_query_returns_its_columns_even_without_rows() {
        let rows = session().sql("select id, Status from runs where id > 5").unwrap();
        assert!(rows.is_empty());
        assert_eq!(rows.schema.fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>(), ["id", "Status"]);
        let rows = session().sql("SELECT COUNT(*) AS n FROM runs").unwrap();
        assert_eq!((rows.rows(), rows.scalar_i64("n"), rows.scalar_i64("m")), (1, Some(2), None));
        assert!(!session().sql("show tables").unwrap().is_empty());
        assert_eq!(session().sql("describe runs").unwrap().rows(), 2);
        assert!(!session().sql("explain select * from runs").unwrap().is_empty());
    }

    #[test]
    fn now_is_the_instant_of_the_session() {
        let session = session().at(IngestTime(1_777_680_000_123_456));
        let sql = "select now() n, current_timestamp c, current_date d, (select max(now()) from runs where now() < '2026-05-03') m";
        let all = rows_json(&session.sql(sql).unwrap()).to_string();
        let now = "2026-05-02T00:00:00.123456";
        assert_eq!(all, format!(r#"[{{"c":"{now}","d":"2026-05-02","m":"{now}","n":"{now}"}}]"#));
    }

    #[test]
    fn whatever_changes_something_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("out.parquet").display().to_string();
        for sql in [
            "create table t as select 1".to_owned(),
            "create view v as select 1".to_owned(),
            "drop table runs".to_owned(),
            "insert into runs values (3, 'x')".to_owned(),
            "delete from runs".to_owned(),
            "update runs set id = 4".to_owned(),
            format!("copy runs to '{out}'"),
            "set datafusion.execution.batch_size = 1".to_owned(),
            format!("create external table e stored as parquet location '{out}'"),
            "explain insert into runs values (3, 'x')".to_owned(),
            "select 1; select 2".to_owned(),
        ] {
            let error = session().sql(&sql).unwrap_err();
            assert!(matches!(error, QueryError::Sql { .. }), "{sql}: {error}");
            let text = error.to_string();
            assert!(!text.starts_with(char::is_uppercase) && !text.ends_with('.'), "{text}");
        }
        assert_eq!(session().sql("select count(*) as n from runs").unwrap().scalar_i64("n"), Some(2));
        assert!(!Path::new(&out).exists());
    }

    #[test]
    fn misspelt_names_come_with_the_nearest() {
        for (sql, message, hint) in [
            ("select Statuss from runs", "unknown column \"Statuss\"", Some("did you mean \"Status\"?")),
            ("select status from runs", "unknown column \"status\"", Some("did you mean \"Status\"?")),
            ("select * from rums", "unknown table \"rums\"", Some("did you mean \"runs\"?")),
            ("select zzz from runs", "unknown column \"zzz\"", Some("the columns are id, Status")),
        ] {
            let error = session().sql(sql).unwrap_err();
            assert_eq!((error.to_string().as_str(), error.hint()), (message, hint), "{sql}");
        }
        let error = session().sql("select summ(id) from runs").unwrap_err();
        assert_eq!(error.hint(), Some("did you mean \"sum\"?"), "{error:?}");
        let error = session().sql("select 1 +").unwrap_err();
        assert!(matches!(error, QueryError::Sql { .. }), "{error:?}");
        let error = session().sql("select 1 / (id - 1) from runs").unwrap_err();
        assert!(matches!(error, QueryError::Execution { .. }), "{error:?}");
    }
}
