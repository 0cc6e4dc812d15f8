//! Declared checks: what has to hold for the staged rows before anybody may read them.
//! Never evaluates anything; `check` does.
//! `config/text` reads a dataset's `checks` through it.

use super::text::{Reader, Scalar, Text, parse_share};
use super::{ConfigError, nearest};
use serde::Deserialize;
use std::ops::Range;
use toml::Spanned;

/// One declared check.
#[derive(Clone, PartialEq, Debug)]
pub struct Check {
    /// Its name in the manifest; made from the kind where none is given.
    pub name: String,
    /// What it measures.
    pub kind: CheckKind,
    /// What a failure does.
    pub severity: Severity,
}

/// What a failed check does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// It keeps the run from being published.
    Error,
    /// It is written down.
    Warn,
}

impl Severity {
    /// Returns its name in manifests.
    pub fn name(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warn => "warn",
        }
    }
}

/// What a check measures. All are scoped to the partitions that the run writes.
#[derive(Clone, PartialEq, Debug)]
pub enum CheckKind {
    /// Rows of the whole run, against bounds and against what the same partitions held before.
    RowCount {
        /// Fewer fail.
        min: Option<u64>,
        /// More fail.
        max: Option<u64>,
        /// A larger relative change against the prior rows fails: 0.5 is half.
        max_change: Option<f64>,
    },
    /// No two rows of a partition are equal in these columns.
    Unique {
        /// The columns; the dataset's key where none are given.
        columns: Vec<String>,
    },
    /// These columns hold no null.
    NotNull {
        /// The columns.
        columns: Vec<String>,
    },
    /// An aggregate over the input (deduplicated, filtered) equals one over the output, partition by partition.
    Balance {
        /// SQL aggregate over the input's columns.
        input: String,
        /// SQL aggregate over the output's columns.
        output: String,
        /// Greatest difference that passes, as a decimal.
        tolerance: String,
    },
    /// Values of a column lie between bounds, ends included.
    Range {
        /// The column.
        column: String,
        /// The least value, as SQL literal text.
        min: Option<String>,
        /// The greatest value.
        max: Option<String>,
    },
    /// Values of a column are among these; nulls pass.
    AcceptedValues {
        /// The column.
        column: String,
        /// The values.
        values: Vec<String>,
    },
    /// Rows added, removed and changed by key against what is published, as shares of the prior rows.
    Compare {
        /// Greatest share added.
        max_added: Option<f64>,
        /// Greatest share removed.
        max_removed: Option<f64>,
        /// Greatest share changed.
        max_changed: Option<f64>,
    },
    /// A query over `output` and `prior` whose rows are the failures.
    Sql {
        /// The query.
        sql: String,
    },
}

/// Returns the digits that `text`, a decimal like `0.01` or `1e-3`, is written with, and how many of them stand after the point; `None` if it is
/// negative, or has more than the 38 digits of a decimal.
pub fn parse_tolerance(text: &str) -> Option<(i128, u32)> {
    let text = text.trim();
    let (number, exponent) = match text.split_once(['e', 'E']) {
        Some((number, exponent)) => (number, exponent.parse::<i64>().ok()?),
        None => (text, 0),
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let digits = format!("{whole}{}", fraction.trim_end_matches('0'));
    if digits.is_empty() && fraction.is_empty() || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return None;
    }
    let digits = digits.trim_start_matches('0');
    let scale = (fraction.trim_end_matches('0').len() as i64).checked_sub(exponent)?;
    if digits.is_empty() {
        return Some((0, 0));
    }
    let zeros = usize::try_from(scale.checked_neg()?.max(0)).ok()?;
    if digits.len() + zeros > 38 || scale > 38 {
        return None;
    }
    Some((format!("{digits}{}", "0".repeat(zeros)).parse().ok()?, scale.max(0) as u32))
}

impl CheckKind {
    /// Returns its name in restitch.toml and manifests.
    pub fn name(&self) -> &'static str {
        match self {
            CheckKind::RowCount { .. } => "row_count",
            CheckKind::Unique { .. } => "unique",
            CheckKind::NotNull { .. } => "not_null",
            CheckKind::Balance { .. } => "balance",
            CheckKind::Range { .. } => "range",
            CheckKind::AcceptedValues { .. } => "accepted_values",
            CheckKind::Compare { .. } => "compare",
            CheckKind::Sql { .. } => "sql",
        }
    }
}

/// The kinds of checks, and the keys of each beside `kind`, `name` and `severity`.
const KINDS: [(&str, &[&str]); 8] = [
    ("row_count", &["min", "max", "max_change"]),
    ("unique", &["columns"]),
    ("not_null", &["columns"]),
    ("balance", &["input", "output", "tolerance"]),
    ("range", &["column", "min", "max"]),
    ("accepted_values", &["column", "values"]),
    ("compare", &["max_added", "max_removed", "max_changed"]),
    ("sql", &["sql"]),
];

/// One of `checks`, with the keys of all kinds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table like { kind = \"row_count\", min = 1 }")]
pub(super) struct CheckText {
    kind: Text,
    name: Option<String>,
    severity: Option<Text>,
    columns: Option<Spanned<Vec<String>>>,
    column: Option<Text>,
    min: Option<Spanned<Scalar>>,
    max: Option<Spanned<Scalar>>,
    max_change: Option<Text>,
    max_added: Option<Text>,
    max_removed: Option<Text>,
    max_changed: Option<Text>,
    input: Option<Text>,
    output: Option<Text>,
    tolerance: Option<Spanned<Scalar>>,
    values: Option<Spanned<Vec<Spanned<Scalar>>>>,
    sql: Option<Text>,
}

impl CheckText {
    /// Returns the keys that are there and not every kind has, with the places of their values.
    fn keys(&self) -> impl Iterator<Item = (&'static str, Range<usize>)> {
        fn at<T>(value: &Option<Spanned<T>>) -> Option<Range<usize>> {
            value.as_ref().map(Spanned::span)
        }
        let places = [
            ("columns", at(&self.columns)),
            ("column", at(&self.column)),
            ("min", at(&self.min)),
            ("max", at(&self.max)),
            ("max_change", at(&self.max_change)),
            ("max_added", at(&self.max_added)),
            ("max_removed", at(&self.max_removed)),
            ("max_changed", at(&self.max_changed)),
            ("input", at(&self.input)),
            ("output", at(&self.output)),
            ("tolerance", at(&self.tolerance)),
            ("values", at(&self.values)),
            ("sql", at(&self.sql)),
        ];
        places.into_iter().filter_map(|(key, place)| Some((key, place?)))
    }
}

impl Reader<'_> {
    /// Reads one of a dataset's `checks`.
    pub(super) fn check(&self, spanned: Spanned<CheckText>) -> Result<Check, ConfigError> {
        let span = spanned.span();
        let c = spanned.into_inner();
        self.keys_of_kind(&c)?;
        let need = |what: &str| self.error(span.clone(), format!("a {} check needs {what}", c.kind.as_ref()), None);
        let share = |t: &Option<Text>| self.optional(t, parse_share, "a percentage (like 10%)");
        let count = |s: &Option<Spanned<Scalar>>| match s {
            None => Ok(None),
            Some(s) => self.scalar(s).parse::<u64>().map(Some).map_err(|_| need("whole numbers as min and max")),
        };
        let text = |t: &Option<Text>, key: &str| t.as_ref().map(|t| t.as_ref().clone()).ok_or_else(|| need(key));
        let kind = match c.kind.as_ref().as_str() {
            "row_count" if c.min.is_none() && c.max.is_none() && c.max_change.is_none() => return Err(need("min, max or max_change")),
            "range" if c.min.is_none() && c.max.is_none() => return Err(need("min or max")),
            "compare" if c.keys().next().is_none() => return Err(need("max_added, max_removed or max_changed")),
            "row_count" => CheckKind::RowCount { min: count(&c.min)?, max: count(&c.max)?, max_change: share(&c.max_change)? },
            "unique" => CheckKind::Unique { columns: c.columns.clone().map(Spanned::into_inner).unwrap_or_default() },
            "not_null" => {
                CheckKind::NotNull { columns: c.columns.clone().map(Spanned::into_inner).filter(|c| !c.is_empty()).ok_or_else(|| need("columns"))? }
            }
            "balance" => CheckKind::Balance {
                input: text(&c.input, "input")?,
                output: text(&c.output, "output")?,
                tolerance: match c.tolerance.as_ref().map_or("0".into(), |t| self.scalar(t)) {
                    t if parse_tolerance(&t).is_some() => t,
                    _ => return Err(need("a tolerance that is a decimal of at most 38 digits, like 0.01")),
                },
            },
            "range" => CheckKind::Range {
                column: text(&c.column, "column")?,
                min: c.min.as_ref().map(|s| self.scalar(s)),
                max: c.max.as_ref().map(|s| self.scalar(s)),
            },
            "accepted_values" => CheckKind::AcceptedValues {
                column: text(&c.column, "column")?,
                values: c.values.as_ref().ok_or_else(|| need("values"))?.as_ref().iter().map(|s| self.scalar(s)).collect(),
            },
            "compare" => {
                CheckKind::Compare { max_added: share(&c.max_added)?, max_removed: share(&c.max_removed)?, max_changed: share(&c.max_changed)? }
            }
            _ => CheckKind::Sql { sql: text(&c.sql, "sql")? },
        };
        self.bounds(&c)?;
        let severity = self.choice(&c.severity, &[("error", Severity::Error), ("warn", Severity::Warn)], Severity::Error)?;
        Ok(Check { name: c.name.clone().unwrap_or_else(|| default_name(&kind)), kind, severity })
    }

    /// Checks that there is such a kind, and that it has all the keys that are there: a bound that nobody looks at would hold for ever.
    fn keys_of_kind(&self, c: &CheckText) -> Result<(), ConfigError> {
        let kind = c.kind.as_ref();
        let hint = |word: &str, known: &[&str], quote: &str| match nearest(word, known.iter().copied()) {
            Some(near) => format!("did you mean {quote}{near}{quote}?"),
            None => format!("known here: {}", known.join(", ")),
        };
        let Some((_, known)) = KINDS.iter().find(|(k, _)| k == kind) else {
            let hint = hint(kind, &KINDS.map(|(k, _)| k), "\"");
            return Err(self.error(c.kind.span(), format!("there is no check {kind:?}"), Some(hint)));
        };
        match c.keys().find(|(key, _)| !known.contains(key)) {
            None => Ok(()),
            Some((key, value)) => Err(self.error(self.key(key, &value), format!("a {kind} check has no key {key:?}"), Some(hint(key, known, "")))),
        }
    }

    /// Checks that `min` and `max`, where both are numbers, leave something between them. Texts are compared as values of a column, whose type is not known here.
    fn bounds(&self, c: &CheckText) -> Result<(), ConfigError> {
        let number = |s: &Spanned<Scalar>| match s.as_ref() {
            Scalar::Int(_) | Scalar::Float(_) => self.scalar(s).parse::<f64>().ok(),
            _ => None,
        };
        match (c.min.as_ref().and_then(number), c.max.as_ref().and_then(number), &c.max) {
            (Some(min), Some(max), Some(at)) if min > max => Err(self.error(at.span(), "max is less than min: nothing could pass", None)),
            _ => Ok(()),
        }
    }
}

fn default_name(kind: &CheckKind) -> String {
    match kind {
        CheckKind::Unique { columns } | CheckKind::NotNull { columns } if !columns.is_empty() => format!("{}({})", kind.name(), columns.join(", ")),
        CheckKind::Range { column, .. } | CheckKind::AcceptedValues { column, .. } => format!("{}({column})", kind.name()),
        CheckKind::Balance { input, output, .. } => format!("balance({input} = {output})"),
        _ => kind.name().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_tolerance;
    use crate::config::Project;

    /// The dataset with this one check; the place where the check begins is 12:11.
    fn with(check: &str) -> Result<Project, String> {
        let text = format!(
            "[warehouse]\npath = \"w\"\n[source.orders]\nformat = \"jsonl\"\nevent_time = \"at\"\ncolumns = {{ at = {{ type = \"timestamp\" }} }}\n\
             [dataset.daily]\ninput = \"orders\"\ntransform = \"t@1\"\npartition = \"day\"\nkey = [\"at\"]\nchecks = [{{ {check} }}]\n"
        );
        let hint = |h: Option<String>| h.map_or(String::new(), |h| format!(" ({h})"));
        Project::parse("restitch.toml", &text).map_err(|e| format!("{}:{}: {}{}", e.line, e.column, e.message, hint(e.hint)))
    }

    #[test]
    fn a_check_takes_the_keys_of_its_kind_and_no_other() {
        for (check, message) in [
            ("kind = \"compare\", max_change = \"0%\"", "12:31: a compare check has no key \"max_change\" (did you mean max_changed?)"),
            ("kind = \"unique\", column = \"at\"", "12:30: a unique check has no key \"column\" (did you mean columns?)"),
            (
                "kind = \"row_count\", min = 1, max_removed = \"0%\"",
                "12:42: a row_count check has no key \"max_removed\" (known here: min, max, max_change)",
            ),
            ("kind = \"range\", column = \"at\", min = 0, columns=[\"at\"]", "12:53: a range check has no key \"columns\" (did you mean column?)"),
            ("kind = \"compare\", name = \"nothing\"", "12:11: a compare check needs max_added, max_removed or max_changed"),
            ("kind = \"row_count\", min = 5, max = 4", "12:48: max is less than min: nothing could pass"),
            ("kind = \"range\", column = \"at\", min = 1e3, max = -0.5", "12:61: max is less than min: nothing could pass"),
            ("kind = \"balanced\"", "12:20: there is no check \"balanced\" (did you mean \"balance\"?)"),
            ("kind = \"compare\", max_chnged = \"0%\"", "12:31: unknown key \"max_chnged\" (did you mean max_changed?)"),
        ] {
            assert_eq!(with(check).unwrap_err(), message, "{check}");
        }
        for check in ["kind = \"range\", column = \"at\", min = \"9\", max = \"10\"", "kind = \"row_count\", min = 4, max = 4", "kind = \"unique\""] {
            assert!(with(check).is_ok(), "{check}");
        }
    }

    #[test]
    fn a_tolerance_is_exact_however_it_is_written() {
        for (text, expected) in [
            ("0", Some((0, 0))),
            ("0.00", Some((0, 0))),
            ("0e999999", Some((0, 0))),
            ("0.01", Some((1, 2))),
            (".5", Some((5, 1))),
            ("2.", Some((2, 0))),
            ("1.500", Some((15, 1))),
            ("1e-3", Some((1, 3))),
            ("12.5E-1", Some((125, 2))),
            ("12.5e+2", Some((1250, 0))),
            ("1e-38", Some((1, 38))),
            ("1e37", Some((10i128.pow(37), 0))),
            ("1e-39", None),
            ("1e38", None),
            ("1e99999999999999999999", None),
            ("1e9999999999", None),
            ("123456789012345678901234567890123456789", None),
            ("-1", None),
            ("inf", None),
            ("nan", None),
            ("", None),
            (".", None),
            ("1e", None),
            ("1_0", None),
        ] {
            assert_eq!(parse_tolerance(text), expected, "{text}");
        }
    }
}
