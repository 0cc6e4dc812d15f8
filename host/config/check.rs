//! Declared checks: what has to hold for the staged rows before anybody may read them.
//! Never evaluates anything; `check` does.

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
