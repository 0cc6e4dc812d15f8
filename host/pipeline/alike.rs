//! Columns that filter, dedup and balances read of several inputs: each must be there and have one type in all of them.
//! Never converts a value: a column is read as its first input has it, and what does not fit would be lost.
//! `apply` asks when it plans, `steady` before it computes.

use super::{Error, Workshop};
use crate::{
    config::{CheckKind, Dataset, Source},
    manifest::Recipe,
    query::{Aggregate, Filter},
    schema::{DataType, Field},
};

/// An input and its columns.
type Columns = (String, Vec<Field>);

/// Refuses a column that has different types in `inputs`, and that `reader` reads of them all.
///
/// # Errors
/// There is one.
fn refuse_unlike<'c>(reader: &str, columns: impl IntoIterator<Item = &'c str>, inputs: &[Columns]) -> Result<(), Error> {
    // A raw table has both as the same text.
    let plain = |t: DataType| if t == DataType::Json { DataType::String } else { t };
    for column in columns {
        let types = || inputs.iter().filter_map(|(input, fields)| Some((input, fields.iter().find(|f| f.name == column)?.data_type)));
        let Some((first, data_type)) = types().next() else { continue };
        if let Some((other, found)) = types().find(|(_, t)| plain(*t) != plain(data_type)) {
            let message = format!("{reader} reads the column {column:?} of every input, and it is {data_type} in {first} and {found} in {other}");
            let hint = format!(
                "read a column that has one type in all of them: declare a new one in each (from = {column:?}), and give it to landed records by `ingest --reparse`"
            );
            return Err(Error::Usage { message, hint: Some(hint) });
        }
    }
    Ok(())
}

impl Workshop {
    /// What a run could not read is refused when it is planned, not when the plan is carried out: a filter that does not parse, and columns
    /// that are not alike.
    pub(super) fn refuse_unreadable(&mut self, dataset: &Dataset, recipe: &Recipe) -> Result<(), Error> {
        let mut inputs = self.upstream_fields(recipe)?;
        for source in &recipe.sources {
            let table = self.catalog.read(|v| v.table(&format!("raw_{source}"), recipe.input_snapshot))?;
            // What has not landed anything yet will have the declared columns.
            let fields = table.map_or_else(|| self.project.source(source).map(Source::raw_fields), |t| Ok(t.fields()))?;
            inputs.push((source.clone(), fields));
        }
        let key = recipe.dedup.iter().flat_map(|d| d.key.iter().map(String::as_str));
        refuse_unlike(&format!("dedup of {}", recipe.dataset), key, &inputs)?;
        for (_, fields) in &inputs {
            if let Some(sql) = &recipe.filter {
                let filter = Filter::parse(sql, fields)?;
                refuse_unlike("the filter", filter.columns().iter().map(String::as_str), &inputs)?;
            }
            for check in &dataset.checks {
                // An expression that is wrong is told where it is evaluated.
                if let CheckKind::Balance { input, .. } = &check.kind
                    && let Ok(input) = Aggregate::parse(input, fields)
                {
                    refuse_unlike(&format!("the check {:?}", check.name), input.columns().iter().map(String::as_str), &inputs)?;
                }
            }
        }
        Ok(())
    }
}
