//! Staged rows against what was declared, and against what is published: measured, judged, written down.
//! Never publishes, and never passes a check that could not be evaluated.
//! Eats what `execute` computed; `publish` takes only what this lets through.

mod rows;

use crate::{
    catalog::{Catalog, CatalogError, LiveFile, PublishedRow, Table},
    config::{Check, CheckKind, MaxRejects, Severity},
    datafile::{Reader, Written},
    decode::canonical,
    execute::{Balance, Computed},
    id::{RunId, SnapshotId},
    manifest::{CheckRecord, PartitionRecord, Validation},
    query::{self, Difference, FileTable, QueryError, Session},
    schema::{DataType, Field, PARTITION, quoted},
    store::{Store, each},
    time::IngestTime,
};
use std::collections::{HashMap, HashSet};

/// Why checks could not be evaluated. Nothing was published.
#[derive(Debug, thiserror::Error)]
pub enum CheckError {
    /// The catalog refuses.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The comparison with what is published failed.
    #[error("the comparison with what is published failed")]
    Compare(#[source] QueryError),
    /// A file that is compared with is not what it was.
    #[error("{path} is gone or damaged, and partition {partition} is published in it: there is nothing to compare with")]
    Lost {
        /// The partition.
        partition: String,
        /// The run that published it.
        run: Option<RunId>,
        /// The file, relative to the warehouse.
        path: String,
    },
}

/// What the checks are about.
pub struct Subject<'s> {
    /// The warehouse's files.
    pub store: &'s Store,
    /// The table as it is at `base`, if it is there.
    pub published: Option<&'s Table>,
    /// The columns that the run writes, the partition's name among them.
    pub fields: &'s [Field],
    /// Columns that identify a row in its partition.
    pub key: &'s [String],
    /// The snapshot that is compared with.
    pub base: SnapshotId,
    /// The declared checks.
    pub checks: &'s [Check],
    /// Whether they are evaluated.
    pub validation: Validation,
    /// Bytes that comparisons and SQL may hold, about.
    pub memory_bytes: usize,
    /// Partitions that are compared at once.
    pub workers: usize,
    /// What `now()` is in their SQL.
    pub now: IngestTime,
    /// Where they spill, relative to the warehouse.
    pub staging: &'s str,
}

/// Output that was measured.
#[must_use]
pub struct Checked {
    /// The partitions, with what was there before and what differs.
    pub partitions: Vec<PartitionRecord>,
    /// The staged files, by partition.
    pub files: Vec<Written>,
    /// What the checks measured.
    pub checks: Vec<CheckRecord>,
    /// The transform's last log lines.
    pub log: Vec<String>,
}

impl Checked {
    /// Returns the checks that keep the run from being published.
    pub fn failures(&self) -> impl Iterator<Item = &CheckRecord> {
        self.checks.iter().filter(|c| !c.passed && c.severity == Severity::Error.name())
    }
}

/// Rows that an SQL check shows.
const SHOWN_ROWS: usize = 5;
/// Lines of the transform's log that the manifest keeps.
const LOG_LINES: usize = 100;
/// Rows compared in one go: bounds the memory of the join.
const COMPARE_ROWS: u64 = 2_000_000;

/// Compares what was computed with what is published, and evaluates the checks.
///
/// # Errors
/// The comparison itself failed. A check that fails, or cannot be evaluated, is a record, not an error.
pub fn check(subject: &Subject, catalog: &mut Catalog, mut computed: Vec<Computed>, prior: &[PublishedRow]) -> Result<Checked, CheckError> {
    let by_name: HashMap<&str, &PublishedRow> = prior.iter().map(|p| (p.partition.as_str(), p)).collect();
    for p in computed.iter_mut().map(|c| &mut c.record) {
        if let Some(before) = by_name.get(p.partition.as_str()) {
            (p.prior_run, p.prior_rows, p.prior_checksum) = (Some(before.run), Some(before.rows as u64), Some(before.checksum));
        }
    }
    drop(by_name);
    let live = live_files(subject, catalog, &computed)?;
    compare(subject, &mut computed, &live)?;
    let mut checks = Vec::new();
    if subject.validation != Validation::Off {
        let evaluation = Evaluation { subject, computed: &computed, live: &live };
        checks = subject.checks.iter().map(|c| evaluation.evaluate(c)).collect();
        checks.extend(evaluation.key_is_unique());
    }
    let log: Vec<String> = computed.iter().flat_map(|c| c.log.iter().map(move |l| format!("{}: {l}", c.record.partition))).collect();
    let log = log[log.len().saturating_sub(LOG_LINES)..].to_vec();
    let mut files = Vec::with_capacity(computed.iter().map(|c| c.files.len()).sum());
    computed.iter_mut().for_each(|c| files.append(&mut c.files));
    // In the memory that they are in: there may be a hundred thousand.
    let partitions = computed.into_iter().map(|c| c.record).collect();
    Ok(Checked { partitions, files, checks, log })
}

/// What is published of partitions that were there before.
#[derive(Default)]
struct Live {
    files: HashMap<String, Vec<LiveFile>>,
    /// Partitions with files of another tool: what stands there may be other rows than were published.
    foreign: HashSet<String>,
}

fn live_files(subject: &Subject, catalog: &mut Catalog, computed: &[Computed]) -> Result<Live, CheckError> {
    let Some(table) = subject.published else { return Ok(Live::default()) };
    let before = computed.iter().map(|c| &c.record).filter(|p| p.prior_checksum.is_some()).map(|p| p.partition.as_str());
    Ok(catalog.read(|view| {
        let files = view.files_of(table, subject.base, before)?;
        let mut foreign = HashSet::new();
        for (partition, files) in &files {
            // One that is gone has nothing to compare with, and is written anew.
            if view.foreign(files)?.iter().any(|f| subject.store.exists(&f.path)) {
                foreign.insert(partition.clone());
            }
        }
        Ok::<_, CatalogError>(Live { files, foreign })
    })?)
}

/// Fills in rows added, removed and changed. Equal checksums need no look at the rows.
fn compare(subject: &Subject, computed: &mut [Computed], live: &Live) -> Result<(), CheckError> {
    let mut different = Vec::new();
    for (i, p) in computed.iter_mut().map(|c| &mut c.record).enumerate() {
        let prior_rows = p.prior_rows.unwrap_or(0);
        // What another tool put there is gone afterwards: then the rows that stand there are compared, not what was published.
        let foreign = live.foreign.contains(&p.partition);
        let counts = if p.prior_checksum.is_some() && p.prior_checksum == p.checksum && !foreign {
            (0, 0, 0)
        } else if let Some(updated) = p.updated {
            // A merge has counted already.
            (p.inserted.unwrap_or(0), 0, updated)
        } else if prior_rows == 0 {
            (p.rows, 0, 0)
        } else if p.rows == 0 {
            (0, prior_rows, 0)
        } else {
            different.push(i);
            continue;
        };
        (p.added, p.removed, p.changed) = (Some(counts.0), Some(counts.1), Some(counts.2));
    }
    let fields = compared_fields(subject);
    let different = compare_in_order(subject, &fields, computed, live, different);
    let mut rest = different.as_slice();
    while !rest.is_empty() {
        let mut rows = 0;
        let take = rest.iter().take_while(|i| {
            let p = &computed[**i].record;
            rows += p.rows + p.prior_rows.unwrap_or(0);
            rows <= COMPARE_ROWS
        });
        let (group, next) = rest.split_at(take.count().max(1));
        rest = next;
        let output = group.iter().flat_map(|i| computed[*i].files.iter().map(|f| (f.path.as_str(), f.file.bytes as u64)));
        let prior = group
            .iter()
            .flat_map(|i| live.files.get(&computed[*i].record.partition).into_iter().flatten().map(|f| (f.path.as_str(), f.bytes as u64)));
        let tables = (file_table(subject, &fields, "output", output), file_table(subject, &fields, "prior", prior));
        let columns: Vec<String> = fields.iter().map(|f| f.name.clone()).filter(|n| n != PARTITION && !subject.key.contains(n)).collect();
        let differences = query::compare(
            tables.0,
            tables.1,
            PARTITION,
            subject.key,
            &columns,
            Some(subject.memory_bytes),
            Some(&subject.store.path(subject.staging)),
        )
        .map_err(|e| lost(subject, group.iter().map(|i| &computed[*i].record), live).unwrap_or(CheckError::Compare(e)))?;
        let differences: HashMap<String, Difference> = differences.into_iter().collect();
        for i in group {
            let p = &mut computed[*i].record;
            let d = differences.get(&p.partition).copied().unwrap_or_default();
            (p.added, p.removed, p.changed) = (Some(d.added), Some(d.removed), Some(d.changed));
        }
    }
    Ok(())
}

/// The columns that rows are compared in: those of the run, and those that the published table alone has, which read null from now on.
fn compared_fields(subject: &Subject) -> Vec<Field> {
    let lost = subject.published.map(Table::fields).unwrap_or_default();
    let lost = lost.into_iter().filter(|f| !subject.fields.iter().any(|given| given.name == f.name));
    subject.fields.iter().cloned().chain(lost).collect()
}

/// Returns the first published file of these partitions that cannot be read to its end.
fn lost<'c>(subject: &Subject, mut partitions: impl Iterator<Item = &'c PartitionRecord>, live: &Live) -> Option<CheckError> {
    let fields = compared_fields(subject);
    let sound = |f: &&LiveFile| {
        let rows = Reader::open(subject.store, &f.path).and_then(|r| r.scan(&fields, &[], query::BATCH_ROWS));
        rows.is_ok_and(|mut rows| rows.all(|batch| batch.is_ok()))
    };
    partitions.find_map(|p| {
        let file = live.files.get(&p.partition)?.iter().find(|f| !sound(f))?;
        Some(CheckError::Lost { partition: p.partition.clone(), run: p.prior_run, path: file.path.clone() })
    })
}

/// Compares those of some partitions whose rows stand in order on both sides, and returns the others.
fn compare_in_order(subject: &Subject, fields: &[Field], computed: &mut [Computed], live: &Live, different: Vec<usize>) -> Vec<usize> {
    let columns = rows::Columns { fields, key: subject.key, partition: PARTITION };
    let one = |i: &usize| {
        let output: Vec<&str> = computed[*i].files.iter().map(|f| f.path.as_str()).collect();
        let partition = &computed[*i].record.partition;
        let prior: Vec<&str> = live.files.get(partition).into_iter().flatten().map(|f| f.path.as_str()).collect();
        rows::compare(subject.store, &columns, partition, &output, &prior)
    };
    let differences = each(&different, subject.workers, one);
    let mut rest = Vec::new();
    for (i, difference) in different.iter().zip(differences) {
        let p = &mut computed[*i].record;
        match difference {
            Some(d) => (p.added, p.removed, p.changed) = (Some(d.added), Some(d.removed), Some(d.changed)),
            None => rest.push(*i),
        }
    }
    rest
}

fn file_table<'f>(subject: &Subject, fields: &[Field], name: &str, files: impl Iterator<Item = (&'f str, u64)>) -> FileTable {
    FileTable { name: name.into(), fields: fields.to_vec(), files: files.map(|(p, bytes)| (subject.store.path(p), bytes)).collect() }
}

/// What one check came to: whether it passed, measured, expected, detail.
type Verdict = (bool, String, String, Option<String>);

struct Evaluation<'e> {
    subject: &'e Subject<'e>,
    computed: &'e [Computed],
    live: &'e Live,
}

impl Evaluation<'_> {
    fn evaluate(&self, check: &Check) -> CheckRecord {
        let (passed, measured, expected, detail) = match &check.kind {
            CheckKind::RowCount { min, max, max_change } => self.row_count(*min, *max, *max_change),
            CheckKind::Unique { columns } if columns.is_empty() || columns == self.subject.key => self.unique_key(),
            CheckKind::Unique { columns } => self.unique(columns),
            CheckKind::NotNull { columns } => self.not_null(columns),
            CheckKind::Balance { tolerance, .. } => self.balance(check, tolerance),
            CheckKind::Range { column, min, max } => self.range(column, min.as_deref(), max.as_deref()),
            CheckKind::AcceptedValues { column, values } => self.accepted(column, values),
            CheckKind::Compare { max_added, max_removed, max_changed } => self.compared(*max_added, *max_removed, *max_changed),
            CheckKind::Sql { sql } => self.failing_rows(sql, "no rows".into()),
        };
        let (name, kind, severity) = (check.name.clone(), check.kind.name().into(), check.severity.name().into());
        CheckRecord { name, kind, severity, passed, measured, expected, detail }
    }

    /// A doubled key is caught whether or not a check says so: rows would be merged or lost by their readers.
    fn key_is_unique(&self) -> Option<CheckRecord> {
        let (passed, measured, expected, detail) = self.unique_key();
        let record =
            CheckRecord { name: "key".into(), kind: "unique".into(), severity: Severity::Error.name().into(), passed, measured, expected, detail };
        (!passed
            && !self.subject.key.is_empty()
            && !self.subject.checks.iter().any(|c| {
                c.severity == Severity::Error && matches!(&c.kind, CheckKind::Unique { columns } if columns.is_empty() || columns == self.subject.key)
            }))
        .then_some(record)
    }

    fn partitions(&self) -> impl Iterator<Item = &PartitionRecord> {
        self.computed.iter().map(|c| &c.record)
    }

    fn rows(&self) -> u64 {
        self.partitions().map(|p| p.rows).sum()
    }

    fn row_count(&self, min: Option<u64>, max: Option<u64>, max_change: Option<f64>) -> Verdict {
        let (rows, prior) = (self.rows(), self.partitions().filter_map(|p| p.prior_rows).sum::<u64>());
        let mut expected: Vec<String> = Vec::new();
        let mut passed = min.is_none_or(|m| rows >= m) && max.is_none_or(|m| rows <= m);
        expected.extend(min.map(|m| format!("at least {m}")));
        expected.extend(max.map(|m| format!("at most {m}")));
        let mut measured = if rows == 1 { "1 row".into() } else { format!("{rows} rows") };
        if let Some(limit) = max_change {
            expected.push(format!("change within {}", bound(limit)));
            // Only partitions that were there before: a new one says nothing about the change of an old one.
            let kept: u64 = self.partitions().filter(|p| p.prior_rows.is_some()).map(|p| p.rows).sum();
            if self.partitions().any(|p| p.prior_rows.is_some()) {
                let change = share(kept.abs_diff(prior), prior);
                passed &= within(kept.abs_diff(prior), prior, limit);
                measured += &format!(", {kept} where there were {prior} ({}{})", if kept < prior { "-" } else { "+" }, percent(change));
            }
        }
        (passed, measured, if expected.is_empty() { "any".into() } else { expected.join(", ") }, None)
    }

    /// The first partitions, by name, of which something holds.
    fn places(&self, bad: impl Fn(&Computed) -> bool) -> Vec<&str> {
        self.computed.iter().filter(|c| bad(c)).map(|c| c.record.partition.as_str()).take(SHOWN_ROWS).collect()
    }

    fn unique_key(&self) -> Verdict {
        let doubled: u64 = self.computed.iter().map(|c| c.doubled_keys).sum();
        let places = self.places(|c| c.doubled_keys > 0);
        let detail = (doubled > 0).then(|| format!("in {}", places.join(", ")));
        (doubled == 0, format!("{doubled} rows with the key of another"), format!("({}) unique", self.subject.key.join(", ")), detail)
    }

    fn unique(&self, columns: &[String]) -> Verdict {
        self.failing_rows(&unique_sql(columns), format!("({}) unique in each partition", columns.join(", ")))
    }

    fn not_null(&self, columns: &[String]) -> Verdict {
        let mut counts = Vec::new();
        for column in columns {
            let Some(i) = self.subject.fields.iter().position(|f| f.name == *column) else { return self.no_column(column) };
            counts.push((column, self.computed.iter().map(|c| c.nulls.get(i).copied().unwrap_or(0)).sum::<u64>()));
        }
        let measured = counts.iter().map(|(c, n)| format!("{c}: {n} nulls")).collect::<Vec<_>>().join(", ");
        let places = self.places(|c| {
            columns
                .iter()
                .any(|name| self.subject.fields.iter().position(|f| f.name == *name).is_some_and(|i| c.nulls.get(i).is_some_and(|n| *n > 0)))
        });
        (counts.iter().all(|(_, n)| *n == 0), measured, "no nulls".into(), (!places.is_empty()).then(|| format!("in {}", places.join(", "))))
    }

    fn no_column(&self, column: &str) -> Verdict {
        let known: Vec<&str> = self.subject.fields.iter().map(|f| f.name.as_str()).collect();
        let detail = match crate::config::nearest(column, known.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("it has {}", known.join(", ")),
        };
        (false, format!("the output has no column {column:?}"), "to be evaluated".into(), Some(detail))
    }

    fn balance(&self, check: &Check, tolerance: &str) -> Verdict {
        let index =
            self.subject.checks.iter().filter(|c| matches!(c.kind, CheckKind::Balance { .. })).position(|c| std::ptr::eq(c, check)).unwrap_or(0);
        let mut off = Vec::new();
        for c in self.computed {
            let Some(balance) = c.balances.get(index) else { continue };
            match balance {
                // What is in quarantine is no part of the output: all in = out + quarantine, whatever the aggregate.
                Ok(b) if b.input.within(&b.output, tolerance) => continue,
                Ok(b) => off.push(format!("{}: {}", c.record.partition, balance_text(b))),
                Err(e) => off.push(format!("{}: {}", c.record.partition, not_evaluated(e))),
            }
        }
        let single = match self.computed {
            [one] => one.balances.get(index).map(|b| b.as_ref().map_or_else(not_evaluated, balance_text)),
            _ => None,
        };
        let measured = single.unwrap_or_else(|| format!("{} of {} partitions balance", self.computed.len() - off.len(), self.computed.len()));
        let expected = if tolerance == "0" { "equal".into() } else { format!("equal within {tolerance}") };
        (off.is_empty(), measured, expected, (!off.is_empty()).then(|| off.iter().take(SHOWN_ROWS).cloned().collect::<Vec<_>>().join("; ")))
    }

    fn range(&self, column: &str, min: Option<&str>, max: Option<&str>) -> Verdict {
        let Some(field) = self.subject.fields.iter().find(|f| f.name == column) else { return self.no_column(column) };
        let cast = |v: &str| match (field.data_type, v.split_once('.')) {
            // A bound with more digits than the column stays what it is; a cast would round it.
            (DataType::Decimal(_, scale), Some((_, digits))) if digits.len() > scale as usize && digits.len() < 38 => {
                format!("arrow_cast({}, 'Decimal128(38, {})')", literal(v), digits.len())
            }
            _ => format!("arrow_cast({}, '{}')", literal(v), field.data_type.arrow()),
        };
        let mut bad: Vec<String> = Vec::new();
        bad.extend(min.map(|v| format!("{} < {}", quoted(column), cast(v))));
        bad.extend(max.map(|v| format!("{} > {}", quoted(column), cast(v))));
        let expected = format!("{} to {}", min.unwrap_or("any"), max.unwrap_or("any"));
        if bad.is_empty() {
            return (true, "nothing to measure".into(), expected, None);
        }
        self.failing_rows(&format!("SELECT * FROM output WHERE {}", bad.join(" OR ")), expected)
    }

    fn accepted(&self, column: &str, values: &[String]) -> Verdict {
        let Some(field) = self.subject.fields.iter().find(|f| f.name == column) else { return self.no_column(column) };
        let expected = format!("one of {}", values.join(", "));
        let mut list = Vec::new();
        for text in values {
            match typed(text, field.data_type) {
                Ok(sql) => list.push(sql),
                Err(reason) => return (false, format!("not evaluated: among the accepted values, {reason}"), expected, None),
            }
        }
        if list.is_empty() {
            return self.failing_rows(&format!("SELECT * FROM output WHERE {} IS NOT NULL", quoted(column)), "nulls only".into());
        }
        let sql = format!("SELECT * FROM output WHERE {c} IS NOT NULL AND {c} NOT IN ({})", list.join(", "), c = quoted(column));
        self.failing_rows(&sql, expected)
    }

    fn compared(&self, max_added: Option<f64>, max_removed: Option<f64>, max_changed: Option<f64>) -> Verdict {
        let before: Vec<&PartitionRecord> = self.partitions().filter(|p| p.prior_rows.is_some()).collect();
        let sum = |f: fn(&PartitionRecord) -> Option<u64>| before.iter().filter_map(|p| f(p)).sum::<u64>();
        let (prior, added, removed, changed) = (sum(|p| p.prior_rows), sum(|p| p.added), sum(|p| p.removed), sum(|p| p.changed));
        let limits = [("added", added, max_added), ("removed", removed, max_removed), ("changed", changed, max_changed)];
        let passed = limits.iter().all(|(_, n, limit)| limit.is_none_or(|l| within(*n, prior, l)));
        let expected: Vec<String> = limits.iter().filter_map(|(name, _, limit)| limit.map(|l| format!("{name} at most {}", bound(l)))).collect();
        let measured = if before.is_empty() {
            "nothing was published before".into()
        } else {
            format!("of {prior} rows: {added} added, {removed} removed, {changed} changed")
        };
        (passed, measured, if expected.is_empty() { "any".into() } else { expected.join(", ") }, None)
    }

    /// Runs a query over `output` and `prior`; the rows that it gives are failures.
    fn failing_rows(&self, sql: &str, expected: String) -> Verdict {
        let run = || {
            let session = Session::new(Some(self.subject.memory_bytes), Some(&self.subject.store.path(self.subject.staging)))?.at(self.subject.now);
            let output = self.computed.iter().flat_map(|c| c.files.iter().map(|f| (f.path.as_str(), f.file.bytes as u64)));
            session.register_files(file_table(self.subject, self.subject.fields, "output", output))?;
            let prior = self.live.files.values().flatten().map(|f| (f.path.as_str(), f.bytes as u64));
            session.register_files(file_table(self.subject, self.subject.fields, "prior", prior))?;
            session.sql(sql)
        };
        match run() {
            Err(e) => (false, not_evaluated(&e), expected, None),
            Ok(rows) => {
                let detail = (!rows.is_empty()).then(|| query::table_text(&rows, SHOWN_ROWS));
                (rows.is_empty(), format!("{} failing rows", rows.rows()), expected, detail)
            }
        }
    }
}

fn not_evaluated(e: &QueryError) -> String {
    let hint = e.hint().map(|h| format!(" ({h})")).unwrap_or_default();
    format!("not evaluated: {e}{hint}")
}

fn balance_text(b: &Balance) -> String {
    match &b.quarantined {
        Some((all, quarantined)) => format!("{all} in, {} out, {quarantined} in quarantine", b.output),
        None => format!("{} in, {} out", b.input, b.output),
    }
}

/// The rows of a partition that are equal in these columns, and how many: beside a column `rows` under a name that none may have.
fn unique_sql(columns: &[String]) -> String {
    let list = columns.iter().map(|c| quoted(c)).collect::<Vec<_>>().join(", ");
    let rows = if columns.iter().any(|c| c == "rows") { "_rows" } else { "rows" };
    let partition = quoted(PARTITION);
    format!("SELECT {partition}, {list}, count(*) AS {rows} FROM output GROUP BY {partition}, {list} HAVING count(*) > 1")
}

/// Returns SQL for the value of `data_type` that `text` is: `1.0` and `1.00` are one decimal.
fn typed(text: &str, data_type: DataType) -> Result<String, String> {
    Ok(match data_type {
        DataType::String | DataType::Json => literal(text),
        // Base64 in restitch.toml, hex in SQL.
        DataType::Binary => format!("X'{}'", canonical(data_type, text)?),
        _ => format!("arrow_cast({}, '{}')", literal(&canonical(data_type, text)?), data_type.arrow()),
    })
}

fn literal(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

/// A share of nothing is nothing, or more than any bound.
fn share(part: u64, whole: u64) -> f64 {
    if part == 0 { 0.0 } else { part as f64 / whole as f64 }
}

/// Whether it is no more than a bound: 7 of 1000 are not more than 0.7%, whatever 0.007 is in binary.
fn within(part: u64, whole: u64, limit: f64) -> bool {
    part == 0 || !MaxRejects::Share(limit).exceeded(part, whole)
}

/// A bound as it was written: not rounded, but for what a double adds to it.
fn bound(limit: f64) -> String {
    let text = format!("{:.12}", limit * 100.0);
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "0" { format!("{}%", limit * 100.0) } else { format!("{text}%") }
}

fn percent(share: f64) -> String {
    if share.is_infinite() { "all of nothing".into() } else { format!("{}%", (share * 10_000.0).round() / 100.0) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{catalog::TableColumn, datafile::Writer};
    use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
    use query::StateValue;
    use std::sync::Arc;

    fn table(names: &[&str]) -> Table {
        let field = |name: &&str| if matches!(*name, PARTITION | "id") { DataType::String } else { DataType::Int64 };
        let columns = names.iter().zip(1..).map(|(name, id)| TableColumn { id, field: Field::new(*name, field(name), true) }).collect();
        Table { id: 1, name: "t".into(), folder: String::new(), columns, partition_id: None }
    }

    /// Rows of the partition p, in order of their ids, with a column of numbers.
    fn write(store: &Store, path: &str, column: &str, rows: &[(&str, Option<i64>)]) -> Written {
        let table = table(&["id", column, PARTITION]);
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(StringArray::from_iter_values(rows.iter().map(|r| r.0))),
            Arc::new(Int64Array::from_iter(rows.iter().map(|r| r.1))),
            Arc::new(StringArray::from_iter_values(rows.iter().map(|_| "p"))),
        ];
        let mut writer = Writer::create(store, path.into(), &table).unwrap();
        writer.write(&RecordBatch::try_new(table.arrow(), arrays).unwrap()).unwrap();
        writer.finish().unwrap()
    }

    /// Rows before, now, and what is counted, where the column `before` is not given any more and `now` is new.
    #[test]
    fn a_column_that_is_not_given_any_more_reads_null_and_counts_as_one_that_is_new() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::new(folder.path());
        let before = write(&store, "before.parquet", "before", &[("a", Some(1)), ("b", None), ("c", None), ("d", Some(4))]);
        let now = write(&store, "now.parquet", "now", &[("a", None), ("b", None), ("c", Some(3)), ("e", None)]);
        let (published, given) = (table(&["id", "before", PARTITION]), table(&["id", "now", PARTITION]).fields());
        let (path, rows, bytes) = (before.path, before.file.rows, before.file.bytes);
        let live = LiveFile { id: 1, path, rows, bytes, begin: SnapshotId(1), partial_max: None, row_id_start: None, partition: None, bounds: None };
        let live = Live { files: HashMap::from([("p".to_owned(), vec![live])]), foreign: HashSet::new() };
        // With a key rows are told apart in one pass; without one they are counted as a whole.
        for (key, counts) in [(&["id".to_owned()][..], (1, 1, 2)), (&[], (3, 3, 0))] {
            let subject = Subject {
                store: &store,
                published: Some(&published),
                fields: &given,
                key,
                base: SnapshotId(1),
                checks: &[],
                validation: Validation::Block,
                memory_bytes: 64 << 20,
                workers: 1,
                now: IngestTime(0),
                staging: "staging",
            };
            let record = PartitionRecord { partition: "p".into(), rows: 4, prior_rows: Some(4), ..PartitionRecord::default() };
            let files = vec![now.clone()];
            let mut computed = [Computed { record, files, balances: Vec::new(), doubled_keys: 0, nulls: Vec::new(), log: Vec::new() }];
            compare(&subject, &mut computed, &live).unwrap();
            let p = &computed[0].record;
            assert_eq!((p.added, p.removed, p.changed), (Some(counts.0), Some(counts.1), Some(counts.2)), "{key:?}");
        }
    }

    #[test]
    fn a_column_may_be_called_as_its_count_is() {
        let session = Session::new(None, None).unwrap();
        let columns = [PARTITION, "rows", "id"].map(|name| (name.to_owned(), true));
        let rows = [1, 2, 1].map(|n| vec![StateValue::Text("p".into()), StateValue::Int(7), StateValue::Int(n)]);
        session.register_rows("output", &columns, rows.to_vec()).unwrap();
        for (columns, expected) in [
            (["rows"].as_slice(), r#"[{"_partition":"p","_rows":3,"rows":7}]"#),
            (&["rows", "id"], r#"[{"_partition":"p","_rows":2,"id":1,"rows":7}]"#),
            (&["id"], r#"[{"_partition":"p","id":1,"rows":2}]"#),
        ] {
            let columns: Vec<String> = columns.iter().map(|c| (*c).to_owned()).collect();
            assert_eq!(query::rows_json(&session.sql(&unique_sql(&columns)).unwrap()).to_string(), expected);
        }
    }

    #[test]
    fn bounds_are_neither_missed_nor_rounded() {
        for (part, whole, limit, inside) in [(7, 1000, 0.7 / 100.0, true), (8, 1000, 0.7 / 100.0, false), (0, 0, 0.0, true), (1, 0, 0.5, false)] {
            assert_eq!(within(part, whole, limit), inside, "{part} of {whole}");
        }
        for (limit, text) in
            [(0.7 / 100.0, "0.7%"), (0.0, "0%"), (0.001 / 100.0, "0.001%"), (2.5, "250%"), (0.5f64.powi(60), "0.00000000000000008673617379884035%")]
        {
            assert_eq!(bound(limit), text);
        }
    }
}
