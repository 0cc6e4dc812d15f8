//! Two states of a partition whose rows stand in the order of their key: compared in one pass, without a join.
//! Never guesses: what does not stand in that order, cannot be read, or is of another partition, it leaves to DataFusion.
//! `check` asks it first.

use crate::{
    datafile::{DataFileError, Reader},
    query::Difference,
    schema::{DataType, Field},
    store::Store,
};
use arrow::{
    array::{ArrayRef, AsArray, DynComparator, RecordBatch, make_comparator},
    compute::SortOptions,
    datatypes::{Float32Type, Float64Type},
    error::ArrowError,
};
use std::{cmp::Ordering, sync::Arc};

/// Rows that are compared at once.
const BATCH_ROWS: usize = 8192;

/// What is compared: the columns of a table, and which of them are what.
pub(super) struct Columns<'c> {
    pub(super) fields: &'c [Field],
    pub(super) key: &'c [String],
    /// The column with the name of a row's partition.
    pub(super) partition: &'c str,
}

/// Returns how the rows of `output` differ from those of `prior`, both files of one partition; `None` where that takes more than a look at
/// one row of each side after the other. It says what [`crate::query::compare`] says.
pub(super) fn compare(store: &Store, columns: &Columns, partition: &str, output: &[&str], prior: &[&str]) -> Option<Difference> {
    let place = |name: &str| columns.fields.iter().position(|f| f.name == name);
    let key: Vec<usize> = columns.key.iter().map(|k| place(k)).collect::<Option<_>>()?;
    let own = place(columns.partition)?;
    // Of numbers with a point, the last word on what is equal is DataFusion's.
    if key.is_empty() || key.iter().any(|i| matches!(columns.fields[*i].data_type, DataType::Float32 | DataType::Float64)) {
        return None;
    }
    let rest: Vec<usize> = (0..columns.fields.len()).filter(|i| *i != own && !key.contains(i)).collect();
    let mut output = Side::new(store, columns.fields, output, &key, (own, partition));
    let mut prior = Side::new(store, columns.fields, prior, &key, (own, partition));
    let mut found = Difference::default();
    let mut pair: Option<Pair> = None;
    loop {
        let more = (output.load()?, prior.load()?);
        let (Some((now, now_row)), Some((before, before_row))) = (output.row(), prior.row()) else {
            match more {
                (false, false) => return Some(found),
                (true, _) => {
                    found.added += 1;
                    output.step()?;
                }
                (_, true) => {
                    found.removed += 1;
                    prior.step()?;
                }
            }
            continue;
        };
        let batches = (output.batches, prior.batches);
        if pair.as_ref().is_none_or(|p| p.batches != batches) {
            pair = Some(Pair { batches, key: comparators(now, before, &key).ok()?, rest: comparators(now, before, &rest).ok()? });
        }
        let Pair { key, rest, .. } = pair.as_ref()?;
        match order(key, now_row, before_row) {
            Ordering::Less => {
                found.added += 1;
                output.step()?;
            }
            Ordering::Greater => {
                found.removed += 1;
                prior.step()?;
            }
            Ordering::Equal => {
                let differs = rest.iter().any(|c| c(now_row, before_row).is_ne());
                *(if differs { &mut found.changed } else { &mut found.unchanged }) += 1;
                output.step()?;
                prior.step()?;
            }
        }
    }
}

/// How rows of the batch at hand of one side compare with those of the other's.
struct Pair {
    batches: (usize, usize),
    key: Vec<DynComparator>,
    rest: Vec<DynComparator>,
}

/// Nulls come first, as rows are written.
fn comparators(a: &RecordBatch, b: &RecordBatch, columns: &[usize]) -> Result<Vec<DynComparator>, ArrowError> {
    let options = SortOptions { descending: false, nulls_first: true };
    columns.iter().map(|i| make_comparator(&same_zeros(a.column(*i)), &same_zeros(b.column(*i)), options)).collect()
}

/// Returns the column with zeros in place of negative zeros: they are equal.
fn same_zeros(column: &ArrayRef) -> ArrayRef {
    if let Some(numbers) = column.as_primitive_opt::<Float64Type>() {
        return Arc::new(numbers.unary::<_, Float64Type>(|x| x + 0.0));
    }
    match column.as_primitive_opt::<Float32Type>() {
        Some(numbers) => Arc::new(numbers.unary::<_, Float32Type>(|x| x + 0.0)),
        None => column.clone(),
    }
}

fn order(columns: &[DynComparator], a: usize, b: usize) -> Ordering {
    columns.iter().map(|c| c(a, b)).find(|o| o.is_ne()).unwrap_or(Ordering::Equal)
}

/// The files of one side, row by row.
struct Side<'s> {
    rows: Box<dyn Iterator<Item = Result<RecordBatch, DataFileError>> + 's>,
    key: &'s [usize],
    /// The column with the partition's name, and the name.
    partition: (usize, &'s str),
    /// The batch at hand, and how its keys compare with each other.
    batch: Option<(RecordBatch, Vec<DynComparator>)>,
    at: usize,
    /// How many batches there were.
    batches: usize,
}

impl<'s> Side<'s> {
    fn new(store: &'s Store, fields: &'s [Field], files: &[&'s str], key: &'s [usize], partition: (usize, &'s str)) -> Side<'s> {
        let files: Vec<&str> = files.to_vec();
        let scan = move |path: &str| -> Box<dyn Iterator<Item = Result<RecordBatch, DataFileError>>> {
            match Reader::open(store, path).and_then(|r| r.scan(fields, &[], BATCH_ROWS)) {
                Ok(scan) => Box::new(scan),
                Err(e) => Box::new(std::iter::once(Err(e))),
            }
        };
        Side { rows: Box::new(files.into_iter().flat_map(scan)), key, partition, batch: None, at: 0, batches: 0 }
    }

    fn row(&self) -> Option<(&RecordBatch, usize)> {
        self.batch.as_ref().map(|(batch, _)| (batch, self.at)).filter(|(batch, at)| *at < batch.num_rows())
    }

    /// Returns whether there is a row, from the next batch if need be; `None` if it cannot be taken.
    fn load(&mut self) -> Option<bool> {
        while self.row().is_none() {
            let Some(batch) = self.rows.next() else { return Some(false) };
            let batch = batch.ok().filter(|b| b.num_rows() > 0)?;
            let names = batch.column(self.partition.0).as_string_opt::<i32>()?;
            if !names.iter().all(|name| name == Some(self.partition.1)) {
                return None;
            }
            if let Some((last, _)) = &self.batch
                && order(&comparators(last, &batch, self.key).ok()?, last.num_rows() - 1, 0).is_ge()
            {
                return None;
            }
            let own = comparators(&batch, &batch, self.key).ok()?;
            self.batch = Some((batch, own));
            self.at = 0;
            self.batches += 1;
        }
        Some(true)
    }

    /// Goes to the next row; `None` if its key is not a later one.
    fn step(&mut self) -> Option<()> {
        self.at += 1;
        let (_, at) = match self.row() {
            Some(row) => row,
            None => return Some(()),
        };
        let (_, own) = self.batch.as_ref()?;
        order(own, at - 1, at).is_lt().then_some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        catalog::{Table, TableColumn},
        datafile::Writer,
        query::{self, FileTable},
        schema::PARTITION,
    };
    use arrow::array::{Float64Array, Int64Array, StringArray};

    type Row = (Option<String>, i64, Option<f64>);

    struct Lake {
        _folder: tempfile::TempDir,
        store: Store,
        fields: Vec<Field>,
    }

    impl Lake {
        fn new() -> Lake {
            let folder = tempfile::tempdir().unwrap();
            let fields = vec![
                Field::new("name", DataType::String, true),
                Field::new("n", DataType::Int64, false),
                Field::new("x", DataType::Float64, true),
                Field::new(PARTITION, DataType::String, false),
            ];
            Lake { store: Store::new(folder.path()), _folder: folder, fields }
        }

        fn write(&self, path: &str, partition: &str, rows: &[Row], each: usize) {
            let columns = self.fields.iter().zip(1..).map(|(f, id)| TableColumn { id, field: f.clone() }).collect();
            let table = Table { id: 1, name: "t".into(), folder: String::new(), columns, partition_id: None };
            let mut writer = Writer::create(&self.store, path.into(), &table).unwrap();
            for rows in rows.chunks(each) {
                let arrays: Vec<ArrayRef> = vec![
                    Arc::new(StringArray::from_iter(rows.iter().map(|r| r.0.as_deref()))),
                    Arc::new(Int64Array::from_iter_values(rows.iter().map(|r| r.1))),
                    Arc::new(Float64Array::from_iter(rows.iter().map(|r| r.2))),
                    Arc::new(StringArray::from_iter_values(rows.iter().map(|_| partition))),
                ];
                writer.write(&RecordBatch::try_new(table.arrow(), arrays).unwrap()).unwrap();
            }
            writer.finish().unwrap();
        }

        fn compare(&self, key: &[String], output: &[&str], prior: &[&str]) -> Option<Difference> {
            compare(&self.store, &Columns { fields: &self.fields, key, partition: PARTITION }, "p", output, prior)
        }

        /// The same, by a join.
        fn joined(&self, key: &[String], output: &str, prior: &str) -> Difference {
            let file = |path: &str| (self.store.path(path), self.store.size(path).unwrap());
            let table = |path: &str| FileTable { name: path.into(), fields: self.fields.clone(), files: vec![file(path)] };
            let columns: Vec<String> = ["name", "n", "x"].map(str::to_owned).into_iter().filter(|c| !key.contains(c)).collect();
            query::compare(table(output), table(prior), PARTITION, key, &columns, None, None).unwrap()[0].1
        }
    }

    fn text(n: u64) -> Option<String> {
        (n > 0).then(|| format!("k{n:05}"))
    }

    #[test]
    fn one_pass_says_what_a_join_says() {
        let lake = Lake::new();
        let mut state = 7u64;
        let mut random = move |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) % below
        };
        let values = [None, Some(0.0), Some(-0.0), Some(f64::NAN), Some(f64::from_bits(0x7ff8_0000_0000_0001)), Some(1.5)];
        for (round, key) in [vec!["name"], vec!["name", "n"], vec!["n", "name"]].into_iter().enumerate().cycle().take(6) {
            let key: Vec<String> = key.into_iter().map(str::to_owned).collect();
            let mut side = |path: &str, of: u64| {
                // More rows than a batch of the reader has; keys in order, each once, a null the first.
                let mut rows: Vec<Row> = (0..20_000).filter(|_| random(of) > 0).map(|n| (text(n), n as i64, None)).collect();
                rows.iter_mut().for_each(|r| r.2 = values[random(6) as usize]);
                lake.write(path, "p", &rows, 3_000);
            };
            side("now", 4);
            side("before", 3);
            let found = lake.compare(&key, &["now"], &["before"]).unwrap();
            assert_eq!(found, lake.joined(&key, "now", "before"), "{round}");
            assert!(found.added > 0 && found.removed > 0 && found.changed > 0 && found.unchanged > 0, "{found:?}");
            assert_eq!(lake.compare(&key, &["now"], &["now"]).unwrap().unchanged, found.added + found.changed + found.unchanged);
            assert_eq!(lake.compare(&key, &["now"], &[]).unwrap().added, found.added + found.changed + found.unchanged);
            ["now", "before"].iter().for_each(|path| lake.store.remove(path).unwrap());
        }
    }

    #[test]
    fn what_does_not_stand_in_order_is_left_to_a_join() {
        let lake = Lake::new();
        let key = ["name".to_owned()];
        let row = |n: u64| (text(n), 1, None);
        lake.write("good", "p", &[row(0), row(1), row(2), row(3)], 10);
        lake.write("more", "p", &[row(4)], 10);
        lake.write("falls", "p", &[row(2), row(1)], 10);
        lake.write("doubled", "p", &[row(1), row(1)], 10);
        lake.write("elsewhere", "q", &[row(1)], 10);
        let unchanged = |n| Some(Difference { unchanged: n, ..Difference::default() });
        assert_eq!(lake.compare(&key, &["good", "more"], &["good", "more"]), unchanged(5));
        for bad in ["falls", "doubled", "elsewhere", "missing"] {
            assert_eq!(lake.compare(&key, &["good"], &[bad]), None, "{bad}");
            assert_eq!(lake.compare(&key, &[bad], &["good"]), None, "{bad}");
        }
        assert_eq!(lake.compare(&key, &["good"], &["more", "good"]), None, "files that overlap");
        assert_eq!(lake.compare(&[], &["good"], &["good"]), None, "no key");
        assert_eq!(lake.compare(&["x".to_owned()], &["more"], &["more"]), None, "a key of floats");
    }
}
