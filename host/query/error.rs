//! What can go wrong in a query, told in the user's words.
//! Never shows DataFusion's own wrapping, backtraces or debug dumps.
//! Every part of `query` turns its errors into these.

use crate::config::nearest;
use arrow::error::ArrowError;
use datafusion::{common::SchemaError, error::DataFusionError, object_store::Error as StoreError, sql::sqlparser::parser::ParserError};
use parquet::errors::ParquetError;
use std::io;

/// Why a query, condition or aggregate failed.
#[derive(Debug, thiserror::Error)]
pub enum QueryError {
    /// The text is at fault: its grammar, a name, a type, or a kind of statement that is not taken.
    #[error("{message}")]
    Sql {
        /// What is wrong.
        message: String,
        /// The way out.
        hint: Option<String>,
    },
    /// The query cannot be planned over these tables.
    #[error("cannot plan the query: {message}")]
    Plan {
        /// Why not.
        message: String,
    },
    /// The query failed on the data.
    #[error("the query failed: {message}")]
    Execution {
        /// Why.
        message: String,
    },
    /// The query needs more memory than it was given, or spilling did not help.
    #[error("the query ran out of memory: {message}")]
    Memory {
        /// Who asked for how much.
        message: String,
    },
    /// A file cannot be read, or a thread not started.
    #[error("cannot {action}")]
    Io {
        /// What was tried.
        action: &'static str,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// Why a sort failed: its input did, or the sort.
#[derive(Debug, thiserror::Error)]
pub enum SortError<E> {
    /// The input ended in an error.
    #[error(transparent)]
    Input(E),
    /// The sort itself failed.
    #[error("cannot sort")]
    Sort(#[source] QueryError),
}

impl QueryError {
    /// Returns the way out, if there is one to name.
    pub fn hint(&self) -> Option<&str> {
        match self {
            QueryError::Sql { hint, .. } => hint.as_deref(),
            QueryError::Memory { .. } => {
                Some("give it more with --memory, share it among fewer with --workers 1, or ask for fewer partitions at a time")
            }
            _ => None,
        }
    }

    /// Returns the error of a text that is not taken.
    pub(super) fn sql(message: impl Into<String>) -> QueryError {
        QueryError::Sql { message: message.into(), hint: None }
    }

    /// Returns the error of two columns that have one name.
    pub(super) fn doubled(name: &str) -> QueryError {
        QueryError::Sql { message: format!("two columns are called {name:?}"), hint: Some("give one of them another name with AS".into()) }
    }

    /// Returns the error of a column that is not there.
    pub(super) fn unknown_column(name: &str, known: &[&str]) -> QueryError {
        unknown("column", name, known)
    }

    /// Tells what DataFusion says; `tables` are the names that a misspelt table is compared with.
    pub(super) fn of(error: DataFusionError, tables: &[String]) -> QueryError {
        match error {
            DataFusionError::Context(_, inner) | DataFusionError::Diagnostic(_, inner) => QueryError::of(*inner, tables),
            DataFusionError::Collection(errors) => match errors.into_iter().next() {
                Some(first) => QueryError::of(first, tables),
                None => QueryError::Plan { message: "no reason was given".into() },
            },
            DataFusionError::Shared(inner) => match std::sync::Arc::try_unwrap(inner) {
                Ok(inner) => QueryError::of(inner, tables),
                Err(shared) => QueryError::Execution { message: tidy(&shared.to_string()) },
            },
            DataFusionError::SQL(error, _) => match *error {
                ParserError::ParserError(text) | ParserError::TokenizerError(text) => QueryError::sql(tidy(&text)),
                ParserError::RecursionLimitExceeded => QueryError::sql("the expression is nested too deeply"),
            },
            DataFusionError::SchemaError(error, _) => schema(*error),
            DataFusionError::Plan(text) | DataFusionError::NotImplemented(text) | DataFusionError::Configuration(text) => plan(&text, tables),
            DataFusionError::ResourcesExhausted(text) => QueryError::Memory { message: tidy(text.lines().next().unwrap_or_default()) },
            DataFusionError::IoError(source) => QueryError::Io { action: "read or spill", source },
            DataFusionError::ObjectStore(error) => unreadable(*error),
            DataFusionError::ArrowError(error, _) => arrow(*error, tables),
            DataFusionError::ParquetError(error) => parquet(*error),
            DataFusionError::External(error) => match error.downcast::<DataFusionError>().map_err(|e| e.downcast::<QueryError>()) {
                Ok(inner) => QueryError::of(*inner, tables),
                Err(Ok(own)) => *own,
                Err(Err(other)) => QueryError::Execution { message: tidy(&other.to_string()) },
            },
            DataFusionError::Execution(text) => QueryError::Execution { message: tidy(&text) },
            DataFusionError::Internal(text) => {
                QueryError::Execution { message: tidy(text.split("This issue was likely").next().unwrap_or_default()) }
            }
            other => QueryError::Execution { message: tidy(&other.strip_backtrace()) },
        }
    }
}

impl From<ArrowError> for QueryError {
    fn from(error: ArrowError) -> QueryError {
        arrow(error, &[])
    }
}

fn arrow(error: ArrowError, tables: &[String]) -> QueryError {
    match error {
        ArrowError::ExternalError(inner) => match inner.downcast::<DataFusionError>() {
            Ok(inner) => QueryError::of(*inner, tables),
            Err(other) => QueryError::Execution { message: tidy(&other.to_string()) },
        },
        ArrowError::IoError(_, source) => QueryError::Io { action: "read or spill", source },
        ArrowError::DivideByZero => QueryError::Execution { message: "division by zero".into() },
        other => QueryError::Execution { message: tidy(&other.to_string()) },
    }
}

fn parquet(error: ParquetError) -> QueryError {
    match error {
        ParquetError::External(inner) => match inner.downcast::<StoreError>() {
            Ok(error) => unreadable(*error),
            Err(other) => QueryError::Execution { message: tidy(&other.to_string()) },
        },
        other => match other.to_string().split_once("Object Store error: ") {
            // The metadata reader keeps the text of the error only.
            Some((_, text)) => QueryError::Io { action: "read a file of the table", source: io::Error::other(text.to_owned()) },
            None => QueryError::Execution { message: tidy(&other.to_string()) },
        },
    }
}

fn unreadable(error: StoreError) -> QueryError {
    QueryError::Io { action: "read a file of the table", source: io::Error::other(error) }
}

fn schema(error: SchemaError) -> QueryError {
    match error {
        SchemaError::FieldNotFound { field, valid_fields } => {
            let known: Vec<&str> = valid_fields.iter().map(|c| c.name.as_str()).collect();
            unknown("column", &field.name, &known)
        }
        SchemaError::AmbiguousReference { field } => QueryError::Sql {
            message: format!("column {:?} is in more than one table", field.name),
            hint: Some("put the table's name before it".into()),
        },
        SchemaError::DuplicateQualifiedField { name, .. } | SchemaError::DuplicateUnqualifiedField { name } => QueryError::doubled(&name),
    }
}

fn plan(text: &str, tables: &[String]) -> QueryError {
    if let Some(name) = text.strip_prefix("table '").and_then(|t| t.split_once("' not found")).map(|(name, _)| name) {
        let name = name.rsplit('.').next().unwrap_or(name);
        let known: Vec<&str> = tables.iter().map(String::as_str).collect();
        return unknown("table", name, &known);
    }
    if let Some(error) = no_signature(text) {
        return error;
    }
    match text.split_once("\nDid you mean ") {
        Some((message, near)) => {
            let near = near.trim_end_matches(['.', '?', '\n']).trim_matches('\'');
            QueryError::Sql { message: tidy(message), hint: Some(format!("did you mean {near:?}?")) }
        }
        None => QueryError::sql(tidy(text)),
    }
}

/// Tells of a function that does not take what it was given: which, what, and what it takes. DataFusion tells of each signature that it tried, and asks for a report.
fn no_signature(text: &str) -> Option<QueryError> {
    let (_, rest) = text.split_once("No function matches the given name and argument types '")?;
    let (call, rest) = rest.split_once("'. You might need")?;
    let (name, given) = call.strip_suffix(')')?.split_once('(')?;
    let given: Vec<&str> = arguments(given).into_iter().map(type_words).collect();
    let message = match given.as_slice() {
        [] => format!("{name} does not go without an argument"),
        [one] => format!("{name} does not take {one}"),
        many => format!("{name} does not take {}", many.join(" and ")),
    };
    let candidates = rest.split_once("Candidate functions:").map_or("", |(_, list)| list);
    let known: Vec<&str> = candidates.lines().map(str::trim).filter(|l| !l.is_empty()).take(6).collect();
    let hint = (!known.is_empty()).then(|| format!("it takes {}; CAST(… AS …) makes one type of another", known.join(", ")));
    Some(QueryError::Sql { message, hint })
}

/// Splits types at the commas between them, not at those inside of one.
fn arguments(list: &str) -> Vec<&str> {
    let mut depth = 0;
    let between = |c: char| {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        c == ',' && depth == 0
    };
    list.split(between).map(str::trim).filter(|t| !t.is_empty()).collect()
}

/// Returns an Arrow type as one says it.
fn type_words(name: &str) -> &str {
    let words = [
        ("Utf8", "a string"),
        ("LargeUtf8", "a string"),
        ("Int", "an integer"),
        ("UInt", "an integer"),
        ("Float", "a floating-point number"),
        ("Decimal", "a decimal"),
        ("Boolean", "a boolean"),
        ("Timestamp", "a timestamp"),
        ("Date", "a date"),
        ("Null", "null"),
    ];
    words.iter().find(|(start, _)| name.starts_with(start)).map_or(name, |(_, words)| words)
}

fn unknown(kind: &str, name: &str, known: &[&str]) -> QueryError {
    let hint = match nearest(name, known.iter().copied()) {
        Some(near) => Some(format!("did you mean {near:?}?")),
        None if known.is_empty() => None,
        None if known.len() <= 20 => Some(format!("the {kind}s are {}", known.join(", "))),
        None => Some(format!("the {kind}s are {} and {} more", known[..20].join(", "), known.len() - 20)),
    };
    QueryError::Sql { message: format!("unknown {kind} {name:?}"), hint }
}

/// Takes off DataFusion's prefixes and full stop, and starts in lower case.
fn tidy(text: &str) -> String {
    let mut text = text.trim();
    let prefixes = [
        "Error during planning: ",
        "Execution error: ",
        "This feature is not implemented: ",
        "Optimizer rule 'simplify_expressions' failed\ncaused by\n",
        "Arrow error: ",
        "Parquet error: ",
        "Parser error: ",
        "Cast error: ",
        "Compute error: ",
        "Invalid argument error: ",
        "Arithmetic overflow: ",
        "SQL error: ",
        "External error: ",
    ];
    while let Some(rest) = prefixes.iter().find_map(|p| text.strip_prefix(p)) {
        text = rest;
    }
    let text = text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("; ");
    let text = text.trim_end_matches(['.', ';', ' ']);
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        // An acronym keeps its capitals.
        (Some(first), Some(second)) if first.is_uppercase() && !second.is_uppercase() => first.to_lowercase().chain(text.chars().skip(1)).collect(),
        _ => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_that_does_not_take_a_type_is_told_in_one_sentence() {
        let text = "Internal error: Function 'f' failed to match any signature, errors: …. This issue was likely caused by a bug in DataFusion's code. \
                    No function matches the given name and argument types 'f(Timestamp(µs, \"UTC\"), Utf8View)'. You might need to add explicit type casts.\n\
                    \tCandidate functions:\n\tf(Decimal)\n\tf(Int64, Int64)";
        let e = plan(text, &[]);
        assert_eq!(e.to_string(), "f does not take a timestamp and a string");
        assert_eq!(e.hint(), Some("it takes f(Decimal), f(Int64, Int64); CAST(… AS …) makes one type of another"));
    }
}
