//! What changed between two states of a table: counts, and the rows themselves.
//! Never decides what is too much; checks do.
//! Compare checks and `diff` ask here.

use super::{FileTable, QueryError, Rows, Session, config, format};
use crate::schema::{DataType, quoted};
use arrow::{
    array::{Array, ArrayRef, AsArray, RecordBatch, StringArray},
    compute::cast,
    datatypes::{DataType as ArrowType, Field as ArrowField, Int64Type, Schema},
};
use datafusion::{
    common::{Column, JoinType, NullEquality},
    dataframe::DataFrame,
    logical_expr::LogicalPlanBuilder,
};
use std::{fmt, ops::Range, path::Path, sync::Arc, thread};

/// Rows by how they differ between a state of a table and the one before.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Difference {
    /// Only there now.
    pub added: u64,
    /// Only there before.
    pub removed: u64,
    /// There both times, with other values.
    pub changed: u64,
    /// There both times, equal.
    pub unchanged: u64,
}

/// Returns how `output` differs from `prior`, partition by partition in their order.
///
/// Rows are one and the same if they are equal in `partition_column` and `key`; such a row is changed if
/// it differs in one of `columns`. Nulls are equal to each other. Of rows that share a key, those that are equal
/// are one and the same, of the others as many are changed as there are on both sides, and the rest is added or removed:
/// each row of either side counts once. Without a key, rows are compared as
/// a whole and as often as they occur, and none is changed. A column that a table lacks is null in it.
///
/// # Errors
/// A file cannot be read, or memory does not suffice although joins and groups spill to `spill_dir`.
pub fn compare(
    output: FileTable,
    prior: FileTable,
    partition_column: &str,
    key: &[String],
    columns: &[String],
    memory_bytes: Option<usize>,
    spill_dir: Option<&Path>,
) -> Result<Vec<(String, Difference)>, QueryError> {
    let sides = Sides { output, prior, partition: partition_column, key, columns };
    let counts = if key.is_empty() {
        "sum(greatest(o - p, 0)), sum(greatest(p - o, 0)), sum(0), sum(least(o, p))".to_owned()
    } else {
        let any = sides.any_differs();
        let count = |condition: &str| format!("sum(case when {condition} then 1 else 0 end)");
        let both = "o is not null and p is not null";
        [count("p is null"), count("o is null"), count(&format!("{both} and ({any})")), count(&format!("{both} and not ({any})"))].join(", ")
    };
    let sql = format!("select {}, {counts} from pairs group by 1 order by 1", sides.partition_sql());
    let found = differences(sides.run(&sql, memory_bytes, spill_dir)?)?;
    // The join pairs each row of a key with each of the other side: where it has more rows than the tables, keys are doubled.
    let joined = found.iter().fold((0, 0), |n, (_, d)| (n.0 + d.added + d.changed + d.unchanged, n.1 + d.removed + d.changed + d.unchanged));
    if key.is_empty() || joined == sides.rows(memory_bytes, spill_dir)? { Ok(found) } else { sides.compare_doubled(memory_bytes, spill_dir) }
}

/// Returns whether rows of a partition share a key, in one of the two tables.
///
/// # Errors
/// As for [`compare`].
pub fn is_doubled(
    output: &FileTable,
    prior: &FileTable,
    partition_column: &str,
    key: &[String],
    memory_bytes: Option<usize>,
    spill_dir: Option<&Path>,
) -> Result<bool, QueryError> {
    let sides = Sides { output: output.clone(), prior: prior.clone(), partition: partition_column, key: &[], columns: &[] };
    let list = [partition_column].into_iter().chain(key.iter().map(String::as_str)).map(quoted).collect::<Vec<_>>().join(", ");
    for name in ["output", "prior"] {
        if !sides.run(&format!("select 1 from {name} group by {list} having count(*) > 1 limit 1"), memory_bytes, spill_dir)?.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads partitions with their counts.
fn differences(rows: Rows) -> Result<Vec<(String, Difference)>, QueryError> {
    rows.batches.iter().try_fold(Vec::new(), |mut all, batch| {
        let partitions = cast(batch.column(0), &ArrowType::Utf8)?;
        let counts = (1..5).map(|i| cast(batch.column(i), &ArrowType::Int64)).collect::<Result<Vec<_>, _>>()?;
        for row in 0..batch.num_rows() {
            let n = |i: usize| counts[i].as_primitive::<Int64Type>().value(row).max(0) as u64;
            let name = if partitions.is_valid(row) { partitions.as_string::<i32>().value(row) } else { "" };
            all.push((name.to_owned(), Difference { added: n(0), removed: n(1), changed: n(2), unchanged: n(3) }));
        }
        Ok(all)
    })
}

/// Returns the first `limit` rows that differ, by partition and key: these, `change` (added, removed or
/// changed; `_change` beside a key column of that name), and of each other column the value before and now, as text (`amount.old`, `amount.new`).
///
/// Without a key there is a column `rows` after `change`: how many more of this row there are on one side.
///
/// # Errors
/// As for [`compare`].
#[allow(clippy::too_many_arguments)]
pub fn differing_rows(
    output: FileTable,
    prior: FileTable,
    partition_column: &str,
    key: &[String],
    columns: &[String],
    memory_bytes: Option<usize>,
    spill_dir: Option<&Path>,
    limit: usize,
) -> Result<Rows, QueryError> {
    let sides = Sides { output, prior, partition: partition_column, key, columns };
    let rows = sides.run(&sides.rows_sql(limit), memory_bytes, spill_dir)?;
    as_text(rows, 1 + key.len() + 1 + usize::from(key.is_empty()))
}

/// How one column differs between two states of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ColumnChange {
    /// The column.
    pub column: String,
    /// Rows that are there both times and differ in it; `None` where rows have no key to be told apart by.
    pub changed: Option<u64>,
    /// For a column of numbers, its sum over all rows before and now, as text.
    pub sums: Option<(String, String)>,
}

/// Returns how each of `columns` differs.
///
/// # Errors
/// As for [`compare`].
pub fn column_changes(
    output: FileTable,
    prior: FileTable,
    partition_column: &str,
    key: &[String],
    columns: &[String],
    memory_bytes: Option<usize>,
    spill_dir: Option<&Path>,
) -> Result<Vec<ColumnChange>, QueryError> {
    let sides = Sides { output, prior, partition: partition_column, key, columns };
    let mut changes: Vec<ColumnChange> = columns.iter().map(|c| ColumnChange { column: c.clone(), changed: None, sums: None }).collect();
    if columns.is_empty() {
        return Ok(changes);
    }
    let first = |rows: &Rows, i: usize| rows.batches.first().map_or(String::new(), |b| format::cell(b.column(i).as_ref(), 0));
    if !key.is_empty() {
        let both = "o is not null and p is not null";
        let one = |i: usize| format!("sum(case when {both} and o{i} is distinct from p{i} then 1 else 0 end) as n{i}");
        let sql = format!("select {} from pairs", (0..columns.len()).map(one).collect::<Vec<_>>().join(", "));
        let rows = sides.run(&sql, memory_bytes, spill_dir)?;
        changes.iter_mut().enumerate().for_each(|(i, c)| c.changed = Some(first(&rows, i).parse().unwrap_or(0)));
    }
    let numbers: Vec<usize> = (0..columns.len()).filter(|i| sides.is_number(&columns[*i])).collect();
    if !numbers.is_empty() {
        let sum = |table: &FileTable, name: &str| {
            let list: Vec<String> = numbers.iter().map(|i| sides.sum(table, &columns[*i])).collect();
            sides.run(&format!("select {} from {name}", list.join(", ")), memory_bytes, spill_dir)
        };
        let (now, before) = (sum(&sides.output, "output")?, sum(&sides.prior, "prior")?);
        numbers.iter().enumerate().for_each(|(at, i)| changes[*i].sums = Some((first(&before, at), first(&now, at))));
    }
    Ok(changes)
}

/// One row, and the first column in which two states of a table differ.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RowDifference {
    /// Its partition.
    pub partition: String,
    /// What tells the row apart: columns of the key with their values. Without a key, all columns that are not null.
    pub row: Vec<(String, String)>,
    /// added, removed or changed.
    pub change: String,
    /// For a changed row, the first column that differs, its value before and now; null is `None`.
    pub column: Option<(String, Option<String>, Option<String>)>,
}

impl fmt::Display for RowDifference {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let row = self.row.iter().map(|(c, v)| format!("{c} = {v}")).collect::<Vec<_>>().join(", ");
        write!(f, "partition {}, row {row}: ", self.partition)?;
        let value = |v: &Option<String>| v.clone().unwrap_or_else(|| "null".into());
        match &self.column {
            Some((column, before, now)) => write!(f, "column {column} was {} and is {}", value(before), value(now)),
            None if self.change == "changed" => f.write_str("it differs in bits that text does not show"),
            None if self.change == "added" => f.write_str("it was not there, and is there now"),
            None => f.write_str("it was there, and is not there now"),
        }
    }
}

/// Returns the first row that differs, by partition and key.
///
/// # Errors
/// As for [`compare`].
pub fn first_difference(
    output: FileTable,
    prior: FileTable,
    partition_column: &str,
    key: &[String],
    columns: &[String],
    memory_bytes: Option<usize>,
    spill_dir: Option<&Path>,
) -> Result<Option<RowDifference>, QueryError> {
    let rows = differing_rows(output, prior, partition_column, key, columns, memory_bytes, spill_dir, 1)?;
    let Some(batch) = rows.batches.first() else { return Ok(None) };
    let text = |i: usize| batch.column(i).is_valid(0).then(|| format::cell(batch.column(i).as_ref(), 0));
    let shown = |i: usize| text(i).unwrap_or_else(|| "null".into());
    let keyed = !key.is_empty();
    let values = if keyed { key.len() + 2 } else { 3 };
    let change = shown(if keyed { key.len() + 1 } else { 1 });
    let pairs = || columns.iter().enumerate().map(|(i, c)| (c, text(values + 2 * i), text(values + 2 * i + 1)));
    let row = match keyed {
        true => key.iter().enumerate().map(|(i, c)| (c.clone(), shown(i + 1))).collect(),
        false => pairs().filter_map(|(c, before, now)| Some((c.clone(), before.or(now)?))).collect(),
    };
    let column = pairs().find(|(_, before, now)| before != now).map(|(c, before, now)| (c.clone(), before, now)).filter(|_| change == "changed");
    Ok(Some(RowDifference { partition: shown(0), row, change, column }))
}

struct Sides<'a> {
    output: FileTable,
    prior: FileTable,
    partition: &'a str,
    key: &'a [String],
    columns: &'a [String],
}

impl Sides<'_> {
    /// Runs `sql` over the table `pairs`: with a key, one row for each row of either side, with columns k0 … and
    /// o, o0 … of the output, and q0 … and p, p0 … of the prior; without one, distinct rows k0, c0 … and how often they occur, o and p.
    fn run(&self, sql: &str, memory_bytes: Option<usize>, spill_dir: Option<&Path>) -> Result<Rows, QueryError> {
        let attempt = |hash_join| {
            let cores = thread::available_parallelism().map_or(1, |n| n.get());
            let session = Session::with_config(config(cores, hash_join), memory_bytes, spill_dir)?;
            session.register_files(FileTable { name: "output".into(), ..self.output.clone() })?;
            session.register_files(FileTable { name: "prior".into(), ..self.prior.clone() })?;
            let pairs = if self.key.is_empty() { session.frame(&self.multiset_sql())?.into_view() } else { self.join(&session)?.into_view() };
            session.register("pairs", pairs)?;
            session.own(sql)
        };
        match attempt(true) {
            // A hash join holds one side whole. A merge join is slower, but spills.
            Err(QueryError::Memory { .. }) if !self.key.is_empty() && spill_dir.is_some() => attempt(false),
            result => result,
        }
    }

    /// Returns how many rows the two tables have.
    fn rows(&self, memory_bytes: Option<usize>, spill_dir: Option<&Path>) -> Result<(u64, u64), QueryError> {
        let count = |name: &str| {
            let rows = self.run(&format!("select count(*) as n from {name}"), memory_bytes, spill_dir)?;
            Ok::<_, QueryError>(rows.scalar_i64("n").unwrap_or(0) as u64)
        };
        Ok((count("output")?, count("prior")?))
    }

    /// What [`compare`] says where rows share a key: equal rows are found first, and the others of a key are counted.
    fn compare_doubled(&self, memory_bytes: Option<usize>, spill_dir: Option<&Path>) -> Result<Vec<(String, Difference)>, QueryError> {
        let columns: Vec<String> = self.key.iter().chain(self.columns).cloned().collect();
        let whole = Sides { key: &[], columns: &columns, output: self.output.clone(), prior: self.prior.clone(), ..*self };
        let key = ["k0".to_owned()].into_iter().chain((0..self.key.len()).map(|i| format!("c{i}"))).collect::<Vec<_>>().join(", ");
        let keys = format!("select k0, sum(o) as o, sum(p) as p, sum(least(o, p)) as equal from pairs group by {key}");
        let counts = "sum(greatest(o - p, 0)), sum(greatest(p - o, 0)), sum(least(o, p) - equal), sum(equal)";
        differences(whole.run(&format!("select k0, {counts} from ({keys}) as of_keys group by 1 order by 1"), memory_bytes, spill_dir)?)
    }

    fn join(&self, session: &Session) -> Result<DataFrame, QueryError> {
        let output = session.frame(&self.side_sql(&self.output, "k", "o"))?.into_unoptimized_plan();
        let prior = session.frame(&self.side_sql(&self.prior, "q", "p"))?.into_unoptimized_plan();
        let keys = |mark: &str| (0..=self.key.len()).map(|i| Column::from_name(format!("{mark}{i}"))).collect::<Vec<_>>();
        let plan = LogicalPlanBuilder::from(output)
            .join_detailed(prior, JoinType::Full, (keys("k"), keys("q")), None, NullEquality::NullEqualsNull)
            .and_then(|b| b.build())
            .map_err(|e| QueryError::of(e, &[]))?;
        Ok(DataFrame::new(session.context.state(), plan))
    }

    fn side_sql(&self, table: &FileTable, key_mark: &str, mark: &str) -> String {
        let keys = self.keys().enumerate().map(|(i, c)| format!("{} as {key_mark}{i}", self.column(table, c)));
        let columns = self.columns.iter().enumerate().map(|(i, c)| format!("{} as {mark}{i}", self.column(table, c)));
        let list: Vec<String> = keys.chain(columns).chain([format!("true as {mark}")]).collect();
        format!("select {} from {}", list.join(", "), if mark == "o" { "output" } else { "prior" })
    }

    fn multiset_sql(&self) -> String {
        let side = |table: &FileTable, name: &str, counts: &str| {
            let columns = self.columns.iter().enumerate().map(|(i, c)| format!("{} as c{i}", self.column(table, c)));
            let list: Vec<String> = [format!("{} as k0", self.column(table, self.partition))].into_iter().chain(columns).collect();
            format!("select {}, {counts} from {name}", list.join(", "))
        };
        let names: Vec<String> = ["k0".to_owned()].into_iter().chain((0..self.columns.len()).map(|i| format!("c{i}"))).collect();
        let names = names.join(", ");
        let both = [side(&self.output, "output", "1 as o, 0 as p"), side(&self.prior, "prior", "0 as o, 1 as p")].join(" union all ");
        format!("select {names}, sum(o) as o, sum(p) as p from ({both}) as both_sides group by {names}")
    }

    fn rows_sql(&self, limit: usize) -> String {
        let change = "case when p is null then 'added' when o is null then 'removed' else 'changed' end";
        let mut list = vec![format!("{} as {}", self.partition_sql(), quoted(self.partition))];
        let (filter, order) = if self.key.is_empty() {
            list.push("case when o > p then 'added' else 'removed' end as change".into());
            list.push("abs(o - p) as rows".into());
            let pairs = |(i, c): (usize, &String)| {
                let (old, new) = (quoted(&format!("{c}.old")), quoted(&format!("{c}.new")));
                [format!("case when o < p then c{i} end as {old}"), format!("case when o > p then c{i} end as {new}")]
            };
            list.extend(self.columns.iter().enumerate().flat_map(pairs));
            ("o <> p".to_owned(), (0..self.columns.len()).map(|i| format!("c{i}")).collect::<Vec<_>>())
        } else {
            list.extend(self.key.iter().enumerate().map(|(i, c)| format!("case when o is null then q{0} else k{0} end as {1}", i + 1, quoted(c))));
            let name = if self.key.iter().any(|c| c == "change") { "_change" } else { "change" };
            list.push(format!("{change} as {name}"));
            let pairs =
                |(i, c): (usize, &String)| [format!("p{i} as {}", quoted(&format!("{c}.old"))), format!("o{i} as {}", quoted(&format!("{c}.new")))];
            list.extend(self.columns.iter().enumerate().flat_map(pairs));
            let order = (0..self.key.len()).map(|i| (i + 2).to_string()).collect();
            (format!("o is null or p is null or {}", self.any_differs()), order)
        };
        let order = ["1".to_owned()].into_iter().chain(order).map(|o| format!("{o} nulls first")).collect::<Vec<_>>().join(", ");
        format!("select {} from pairs where {filter} order by {order} limit {limit}", list.join(", "))
    }

    fn keys(&self) -> impl Iterator<Item = &str> {
        [self.partition].into_iter().chain(self.key.iter().map(String::as_str))
    }

    fn partition_sql(&self) -> &'static str {
        if self.key.is_empty() { "k0" } else { "case when o is null then q0 else k0 end" }
    }

    fn any_differs(&self) -> String {
        // Halved again and again, not a chain: a table may have thousands of columns.
        fn any(columns: Range<usize>) -> String {
            match columns.len() {
                0 => "false".into(),
                1 => format!("(o{0} is distinct from p{0})", columns.start),
                count => {
                    let middle = columns.start + count / 2;
                    format!("({} or {})", any(columns.start..middle), any(middle..columns.end))
                }
            }
        }
        any(0..self.columns.len())
    }

    fn is_number(&self, column: &str) -> bool {
        let number = |t: &FileTable| t.fields.iter().any(|f| f.name == column && f.data_type.is_number());
        number(&self.output) || number(&self.prior)
    }

    /// Returns the SQL of a sum: exact where the values are.
    fn sum(&self, table: &FileTable, column: &str) -> String {
        let whole = |t: &FileTable| t.fields.iter().any(|f| f.name == column && matches!(f.data_type, DataType::Int32 | DataType::Int64));
        let sql = self.column(table, column);
        if whole(&self.output) || whole(&self.prior) { format!("sum(cast({sql} as decimal(38, 0)))") } else { format!("sum({sql})") }
    }

    /// Returns the SQL of a column; where `table` lacks it, a null of the type it has in the other.
    fn column(&self, table: &FileTable, name: &str) -> String {
        let of = |t: &FileTable| t.fields.iter().find(|f| f.name == name).map(|f| f.data_type.arrow());
        match (of(table), of(&self.output).or_else(|| of(&self.prior))) {
            (None, Some(data_type)) => format!("arrow_cast(null, '{data_type}')"),
            _ => quoted(name),
        }
    }
}

/// Turns the columns from `first` on into text.
fn as_text(rows: Rows, first: usize) -> Result<Rows, QueryError> {
    let field = |(i, f): (usize, &Arc<ArrowField>)| if i < first { f.as_ref().clone() } else { ArrowField::new(f.name(), ArrowType::Utf8, true) };
    let schema = Arc::new(Schema::new(rows.schema.fields().iter().enumerate().map(field).collect::<Vec<_>>()));
    let text = |array: &ArrayRef| -> ArrayRef {
        Arc::new(StringArray::from_iter((0..array.len()).map(|r| array.is_valid(r).then(|| format::cell(array.as_ref(), r)))))
    };
    let batch = |b: &RecordBatch| {
        let columns = b.columns().iter().enumerate().map(|(i, c)| if i < first { Arc::clone(c) } else { text(c) }).collect();
        Ok(RecordBatch::try_new(Arc::clone(&schema), columns)?)
    };
    let batches = rows.batches.iter().map(batch).collect::<Result<_, QueryError>>()?;
    Ok(Rows { schema, batches })
}

#[cfg(test)]
mod tests {
    use super::{
        super::table::tests::{batch, write},
        *,
    };
    use crate::schema::Field;
    use arrow::array::{Float64Array, Int64Array};

    type Row<'a> = (&'a str, Option<i64>, Option<f64>);

    fn table(dir: &Path, name: &str, rows: &[Row]) -> FileTable {
        let columns: Vec<(&str, ArrayRef)> = vec![
            ("_partition", Arc::new(StringArray::from_iter_values(rows.iter().map(|r| r.0)))),
            ("Id", Arc::new(Int64Array::from_iter(rows.iter().map(|r| r.1)))),
            ("value", Arc::new(Float64Array::from_iter(rows.iter().map(|r| r.2)))),
        ];
        let file = write(dir, &format!("{name}.parquet"), &batch(columns));
        let fields = vec![
            Field::new("_partition", DataType::String, false),
            Field::new("Id", DataType::Int64, true),
            Field::new("value", DataType::Float64, true),
        ];
        FileTable { name: name.into(), fields, files: vec![file] }
    }

    fn both(dir: &Path) -> (FileTable, FileTable) {
        let prior =
            [("a", Some(1), Some(1.0)), ("a", Some(2), None), ("a", None, Some(3.0)), ("a", Some(4), Some(f64::NAN)), ("b", Some(1), Some(1.0))];
        let output = [("a", Some(1), Some(1.5)), ("a", Some(2), None), ("a", None, Some(3.0)), ("a", Some(4), Some(f64::NAN)), ("c", Some(1), None)];
        (table(dir, "now", &output), table(dir, "before", &prior))
    }

    fn difference(added: u64, removed: u64, changed: u64, unchanged: u64) -> Difference {
        Difference { added, removed, changed, unchanged }
    }

    #[test]
    fn rows_are_told_apart_by_key() {
        let dir = tempfile::tempdir().unwrap();
        let (output, prior) = both(dir.path());
        let (key, columns) = (["Id".to_owned()], ["value".to_owned()]);
        let found = compare(output.clone(), prior.clone(), "_partition", &key, &columns, None, None).unwrap();
        let expected = [("a", difference(0, 0, 1, 3)), ("b", difference(0, 1, 0, 0)), ("c", difference(1, 0, 0, 0))];
        assert_eq!(found, expected.map(|(p, d)| (p.to_owned(), d)));
        let rows = differing_rows(output, prior, "_partition", &key, &columns, None, None, 10).unwrap();
        let expected = "\
_partition  Id  change   value.old  value.new
──────────  ──  ───────  ─────────  ─────────
a            1  changed  1.0        1.5
b            1  removed  1.0
c            1  added
";
        assert_eq!(format::table_text(&rows, 10), expected);
    }

    #[test]
    fn rows_that_share_a_key_count_once_each() {
        let dir = tempfile::tempdir().unwrap();
        let row = |id: i64, value: f64| ("a", Some(id), Some(value));
        let six: Vec<Row> = (0..6).map(|n| row(1, n.into())).collect();
        let (key, columns) = (["Id".to_owned()], ["value".to_owned()]);
        for (n, (output, prior, expected)) in [
            (vec![row(1, 9.0)], six.clone(), difference(0, 5, 1, 0)),
            (vec![row(1, 3.0)], six.clone(), difference(0, 5, 0, 1)),
            (six.clone(), vec![row(1, 9.0)], difference(5, 0, 1, 0)),
            (six.clone(), six.clone(), difference(0, 0, 0, 6)),
            (vec![row(1, 0.0), row(1, 0.0), row(2, 0.0)], vec![row(1, 0.0), row(1, 7.0), row(3, 0.0)], difference(1, 1, 1, 1)),
            (vec![row(2, 0.0)], vec![row(1, 0.0), row(1, 0.0)], difference(1, 2, 0, 0)),
        ]
        .into_iter()
        .enumerate()
        {
            let (output, prior) = (table(dir.path(), &format!("o{n}"), &output), table(dir.path(), &format!("p{n}"), &prior));
            let found = compare(output.clone(), prior.clone(), "_partition", &key, &columns, None, None).unwrap();
            assert_eq!(found, [("a".to_owned(), expected)], "{n}");
            assert!(is_doubled(&output, &prior, "_partition", &key, None, None).unwrap());
        }
        let (output, prior) = both(dir.path());
        assert!(!is_doubled(&output, &prior, "_partition", &key, None, None).unwrap());
    }

    #[test]
    fn a_key_may_be_called_as_a_change_is() {
        let dir = tempfile::tempdir().unwrap();
        let (output, prior) = both(dir.path());
        let renamed = |mut t: FileTable| {
            let column = |rows: i64| -> Vec<(&str, ArrayRef)> {
                vec![
                    ("_partition", Arc::new(StringArray::from(vec!["a"]))),
                    ("change", Arc::new(StringArray::from(vec!["x"]))),
                    ("value", Arc::new(Int64Array::from(vec![rows]))),
                ]
            };
            t.fields = vec![
                Field::new("_partition", DataType::String, false),
                Field::new("change", DataType::String, true),
                Field::new("value", DataType::Int64, true),
            ];
            t.files = vec![write(dir.path(), &format!("{}-renamed.parquet", t.name), &batch(column(t.name.len() as i64)))];
            t
        };
        let (key, columns) = (["change".to_owned()], ["value".to_owned()]);
        let (output, prior) = (renamed(output), renamed(prior));
        let rows = differing_rows(output.clone(), prior.clone(), "_partition", &key, &columns, None, None, 10).unwrap();
        let all = format::rows_json(&rows).to_string();
        assert_eq!(all, r#"[{"_change":"changed","_partition":"a","change":"x","value.new":"3","value.old":"6"}]"#);
        let first = first_difference(output, prior, "_partition", &key, &columns, None, None).unwrap().unwrap();
        assert_eq!(first.to_string(), "partition a, row change = x: column value was 6 and is 3");
    }

    #[test]
    fn columns_and_the_first_row_that_differ_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let (output, prior) = both(dir.path());
        let (key, columns) = (["Id".to_owned()], ["value".to_owned()]);
        let found = column_changes(output.clone(), prior.clone(), "_partition", &key, &columns, None, None).unwrap();
        assert_eq!(found, [ColumnChange { column: "value".into(), changed: Some(1), sums: Some(("NaN".into(), "NaN".into())) }]);
        let first = first_difference(output.clone(), prior.clone(), "_partition", &key, &columns, None, None).unwrap().unwrap();
        assert_eq!(first.to_string(), "partition a, row Id = 1: column value was 1.0 and is 1.5");
        assert!(first_difference(output.clone(), output.clone(), "_partition", &key, &columns, None, None).unwrap().is_none());
        let columns = ["Id".to_owned(), "value".to_owned()];
        let first = first_difference(output.clone(), prior.clone(), "_partition", &[], &columns, None, None).unwrap().unwrap();
        assert_eq!(first.to_string(), "partition a, row Id = 1, value = 1.0: it was there, and is not there now");
        let found = column_changes(output, prior, "_partition", &[], &columns, None, None).unwrap();
        assert_eq!(found[0], ColumnChange { column: "Id".into(), changed: None, sums: Some(("8".into(), "8".into())) });
    }

    #[test]
    fn without_a_key_rows_are_compared_whole() {
        let dir = tempfile::tempdir().unwrap();
        let prior = table(dir.path(), "p", &[("a", Some(1), None), ("a", Some(1), None), ("a", Some(2), None)]);
        let output = table(dir.path(), "o", &[("a", Some(1), None), ("a", Some(2), None), ("a", Some(3), Some(0.5)), ("a", Some(3), Some(0.5))]);
        let columns = ["Id".to_owned(), "value".to_owned()];
        let found = compare(output.clone(), prior.clone(), "_partition", &[], &columns, None, None).unwrap();
        assert_eq!(found, [("a".to_owned(), difference(2, 1, 0, 2))]);
        let rows = differing_rows(output, prior, "_partition", &[], &columns, None, None, 10).unwrap();
        let expected = "\
_partition  change   rows  Id.old  Id.new  value.old  value.new
──────────  ───────  ────  ──────  ──────  ─────────  ─────────
a           removed     1  1
a           added       2          3                  0.5
";
        assert_eq!(format::table_text(&rows, 10), expected);
    }

    #[test]
    fn a_column_or_a_table_may_be_new() {
        let dir = tempfile::tempdir().unwrap();
        let (output, mut prior) = both(dir.path());
        prior.fields.retain(|f| f.name != "value");
        let (key, columns) = (["Id".to_owned()], ["value".to_owned()]);
        let found = compare(output.clone(), prior.clone(), "_partition", &key, &columns, None, None).unwrap();
        assert_eq!(found[0].1, difference(0, 0, 3, 1));
        assert_eq!(compare(output.clone(), prior.clone(), "_partition", &[], &columns, None, None).unwrap().len(), 3);
        prior.files.clear();
        let found = compare(output.clone(), prior.clone(), "_partition", &key, &columns, None, None).unwrap();
        assert_eq!(found[0].1, difference(4, 0, 0, 0));
        prior.fields.clear();
        let found = compare(output, prior, "_partition", &key, &columns, None, None).unwrap();
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn a_join_beyond_its_memory_spills() {
        let dir = tempfile::tempdir().unwrap();
        let rows = |from: i64| (from..from + 200_000).map(|i| ("a", Some(i * 7919 % 1_000_003), Some(i as f64))).collect::<Vec<_>>();
        let (output, prior) = (table(dir.path(), "now", &rows(1000)), table(dir.path(), "before", &rows(0)));
        let (key, columns) = (["Id".to_owned()], ["value".to_owned()]);
        let spill = tempfile::tempdir().unwrap();
        let found = compare(output, prior, "_partition", &key, &columns, Some(12 << 20), Some(spill.path())).unwrap();
        assert_eq!(found, [("a".to_owned(), difference(1000, 1000, 0, 199_000))]);
    }
}
