//! The story of a number: the runs that touched a partition, what each made of its sums or of one row, and which late records came.
//! Never guesses: a version whose file is gone has no numbers, and that is said.

use super::{Error, Workshop, partition_window};
use crate::{
    catalog::{PublishedRow, QueueRow, RunRow},
    id::RunId,
    manifest::PartitionRecord,
    query::{FileTable, Session, rows_json},
    schema::{DataType, PARTITION, quoted},
};
use std::collections::BTreeMap;

/// What `why` says of one partition.
#[derive(Debug)]
pub struct Why {
    /// What is published now.
    pub published: Option<PublishedRow>,
    /// The runs that touched it, oldest first, with what each recorded.
    pub runs: Vec<(RunRow, PartitionRecord)>,
    /// Late records that came for it, oldest first.
    pub late: Vec<QueueRow>,
    /// By run, the numbers of the version that it published: sums of the numeric columns, or, where a key was asked for, the values of its row (none,
    /// if it has no such row). Versions that `gc` removed are not in it.
    pub numbers: BTreeMap<RunId, Vec<(String, String)>>,
}

impl Workshop {
    /// Returns what changed a partition, and which late records came for it. With a key (values of the dataset's key columns in their order, or
    /// COLUMN=VALUE), the numbers are those of its row.
    ///
    /// # Errors
    /// There is no such dataset, the name is not one of its partitions', or the key is none of the dataset's.
    pub fn why(&mut self, dataset: &str, partition: &str, key: &[String]) -> Result<Why, Error> {
        let dataset = self.project.dataset(dataset)?.clone();
        let window = partition_window(&dataset, partition)?;
        let (mut why, versions) = self.catalog.read(|v| {
            let versions = v.versions(&dataset.name, Some(partition))?;
            let why = Why {
                published: v.published_at(&dataset.name, window.start())?,
                runs: v.partition_history(&dataset.name, partition)?,
                late: v.queue(&dataset.name, Some(window))?,
                numbers: BTreeMap::new(),
            };
            Ok::<_, Error>((why, versions))
        })?;
        if why.runs.is_empty() {
            return Ok(why);
        }
        let columns = why.runs.iter().rev().map(|(r, _)| &r.manifest.recipe.key).find(|k| !k.is_empty()).cloned().unwrap_or_default();
        let condition = condition(&columns, key)?;
        for (run, _) in &why.runs {
            let Some(snapshot) = run.manifest.published_snapshot else { continue };
            let id = run.manifest.run;
            let paths = versions.iter().find(|v| v.run == id).map(|v| v.paths.as_slice()).unwrap_or_default();
            if !paths.iter().all(|p| self.store.exists(p)) {
                continue;
            }
            let Some(table) = self.catalog.read(|v| v.table(&dataset.name, snapshot))? else { continue };
            let files = paths.iter().map(|p| Ok((self.store.path(p), self.store.size(p)?))).collect::<Result<_, Error>>()?;
            let session = Session::new(Some(self.options.memory_bytes), None)?;
            let fields = table.fields();
            let values: Vec<String> = match &condition {
                Some(_) => fields.iter().filter(|f| f.name != PARTITION).map(|f| quoted(&f.name)).collect(),
                None => fields.iter().filter_map(|f| sum(f.data_type, &f.name)).collect(),
            };
            session.register_files(FileTable { name: "version".into(), fields, files })?;
            if values.is_empty() {
                continue;
            }
            let filter = condition.as_ref().map_or(String::new(), |c| format!(" WHERE {c}"));
            let rows = session.sql(&format!("SELECT {} FROM version{filter}", values.join(", ")))?;
            let bare = |v: &serde_json::Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
            let objects = rows_json(&rows);
            let row = objects.as_array().and_then(|r| r.first());
            let names = rows.schema.fields().iter().map(|f| f.name().clone());
            why.numbers.insert(id, row.map_or(Vec::new(), |row| names.map(|n| (n.clone(), bare(&row[&n]))).collect()));
        }
        Ok(why)
    }
}

/// Sums are exact: whole numbers and decimals as decimals.
fn sum(data_type: DataType, name: &str) -> Option<String> {
    let column = quoted(name);
    match data_type {
        DataType::Int32 | DataType::Int64 => Some(format!("sum(CAST({column} AS DECIMAL(38, 0))) AS {column}")),
        DataType::Decimal(..) | DataType::Float32 | DataType::Float64 => Some(format!("sum({column}) AS {column}")),
        _ => None,
    }
}

/// The SQL condition that a row has this key; `None` without one.
fn condition(columns: &[String], key: &[String]) -> Result<Option<String>, Error> {
    if key.is_empty() {
        return Ok(None);
    }
    let wrong = |message: String| Error::Usage {
        message,
        hint: Some(format!("the key is ({}): give --key once for each, in this order", columns.join(", "))),
    };
    let named = |text: &String| text.split_once('=').filter(|(name, _)| columns.iter().any(|c| c == name)).map(|(n, v)| (n.to_owned(), v.to_owned()));
    if key.len() != columns.len() {
        return Err(wrong(format!("{} key value(s) for {} key column(s)", key.len(), columns.len())));
    }
    let pairs = columns.iter().zip(key).map(|(column, text)| named(text).unwrap_or_else(|| (column.clone(), text.clone())));
    let equal = |(name, value): (String, String)| match value.as_str() {
        "null" => format!("{} IS NULL", quoted(&name)),
        value => format!("CAST({} AS VARCHAR) = '{}'", quoted(&name), value.replace('\'', "''")),
    };
    Ok(Some(pairs.map(equal).collect::<Vec<_>>().join(" AND ")))
}
