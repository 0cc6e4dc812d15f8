//! A transform against cases: folders with the rows that go in and the rows that have to come out.
//! Never needs a warehouse or a restitch.toml; the same engine, limits and order of rows as in a run.
//! `restitch transform test` calls it; `trial/compare` finds what differs.

mod compare;
mod settings;

pub use compare::Difference;
use compare::Rows;
use settings::Settings;

use crate::{
    config::Limits,
    decode::{read_lines, write_lines},
    schema::Field,
    store::{Store, StoreError},
    transform::{Context, LogLine, Transform, TransformError},
};
use arrow::array::RecordBatch;

/// Rows in a batch of the first input. A result must not depend on it, so each case is run with all of them, and twice with the first.
const BATCH_ROWS: [usize; 4] = [usize::MAX, usize::MAX, 1, 7];

/// Why a case cannot be run at all.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// A file cannot be read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is nothing to run.
    #[error("{folder} holds no cases")]
    NoCases {
        /// The folder that was looked into.
        folder: String,
    },
    /// A file of a case is missing.
    #[error("{file} is missing")]
    Missing {
        /// The file.
        file: String,
        /// The way out.
        hint: &'static str,
    },
    /// A line of a case cannot be read.
    #[error("{file}:{line}: {problem}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A case.toml cannot be used.
    #[error("{file}: {problem}")]
    Settings {
        /// The file.
        file: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Rows cannot be sorted.
    #[error("rows cannot be sorted")]
    Arrow(#[from] arrow::error::ArrowError),
}

impl TrialError {
    /// Returns the way out, where there is one to name.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            TrialError::NoCases { .. } => {
                "write cases/NAME/input.jsonl, one object a line, and expected.jsonl, or let --bless write that from the result".into()
            }
            TrialError::Missing { hint, .. } => (*hint).into(),
            TrialError::Line { .. } => {
                "each line is one JSON object, its keys the columns; docs/data-rules.md says what becomes of each value".into()
            }
            TrialError::Settings { .. } => "docs/transforms.md#test lists its keys".into(),
            _ => return None,
        })
    }
}

/// How one case came out.
#[derive(Debug)]
pub struct Outcome {
    /// The case's name, which is its folder's.
    pub name: String,
    /// Rows that came out.
    pub rows: usize,
    /// What is not as it should be.
    pub problem: Option<Problem>,
    /// Whether expected.jsonl was written.
    pub blessed: bool,
    /// What the transform logged.
    pub log: Vec<LogLine>,
}

/// What is not as it should be.
#[derive(Debug)]
pub enum Problem {
    /// Other rows came out than are expected.
    Differs(Difference),
    /// Other rows came out with batches of another size, or the second time: what came out first counts as expected.
    Unstable {
        /// Rows in a batch; `None` for a second run with the same ones.
        batch_rows: Option<usize>,
        /// What differs.
        difference: Difference,
    },
    /// More than one row has the same key.
    Keys {
        /// The first such row.
        row: String,
    },
    /// It failed, and should not have.
    Failed(TransformError),
    /// It did not fail, and should have.
    NoError {
        /// What the failure was to say.
        expected: String,
    },
    /// It failed for another reason.
    OtherError {
        /// What the failure was to say.
        expected: String,
        /// What it said.
        error: TransformError,
    },
}

/// Returns the names of the cases in the folder `cases` of a project, sorted.
///
/// # Errors
/// There are none, or the folder cannot be read.
pub fn cases(project: &Store) -> Result<Vec<String>, TrialError> {
    let names: Vec<String> = project.list("cases")?.into_iter().filter(|n| !n.starts_with('.') && is_case(project, n)).collect();
    match names.is_empty() {
        true => Err(TrialError::NoCases { folder: project.path("cases").display().to_string() }),
        false => Ok(names),
    }
}

fn is_case(project: &Store, name: &str) -> bool {
    ["input.jsonl", "case.toml", "expected.jsonl"].iter().any(|f| project.exists(&format!("cases/{name}/{f}")))
}

/// Runs one case. With `bless` what comes out is written to its expected.jsonl.
///
/// # Errors
/// The case itself cannot be read; what the transform does wrong is in the outcome.
pub fn run(transform: &Transform, project: &Store, name: &str, bless: bool) -> Result<Outcome, TrialError> {
    let folder = format!("cases/{name}");
    let settings = Settings::read(project, &format!("{folder}/case.toml"))?;
    let inputs = inputs(transform, project, &folder)?;
    let fields = &transform.descriptor().output;
    let order = order(transform);
    let mut log = Vec::new();
    let failed = |problem| Ok(found(name, 0, problem));
    let mut first: Option<Rows> = None;
    for (i, batch_rows) in BATCH_ROWS.into_iter().enumerate() {
        let result = partition(transform, &settings.context, &inputs, batch_rows);
        let (batches, lines) = match (result, &settings.expected_error) {
            (Ok(_), Some(expected)) => return failed(Problem::NoError { expected: expected.clone() }),
            (Err(e), Some(expected)) if told(&e).contains(expected) => continue,
            (Err(error), Some(expected)) => return failed(Problem::OtherError { expected: expected.clone(), error }),
            (Err(e), None) => return failed(Problem::Failed(e)),
            (Ok(done), None) => done,
        };
        let rows = Rows::sorted(fields, &order, transform.output_schema(), &batches)?;
        match &first {
            None => {
                log = lines;
                first = Some(rows);
            }
            Some(first) => {
                if let Some(difference) = first.difference(&rows, transform.descriptor().key.len()) {
                    let batch_rows = Some(batch_rows).filter(|_| i > 1);
                    return Ok(Outcome { log, ..found(name, rows.len(), Problem::Unstable { batch_rows, difference }) });
                }
            }
        }
    }
    // No rows: it failed every time, as it had to.
    let Some(rows) = first else { return Ok(Outcome { name: name.to_owned(), rows: 0, problem: None, blessed: false, log }) };
    settle(transform, project, name, rows, &order, bless, log)
}

/// Compares what came out with what is expected, or makes it what is expected.
fn settle(
    transform: &Transform,
    project: &Store,
    name: &str,
    rows: Rows,
    order: &[usize],
    bless: bool,
    log: Vec<LogLine>,
) -> Result<Outcome, TrialError> {
    let fields = &transform.descriptor().output;
    let key = transform.descriptor().key.len();
    let done = |problem, blessed| Outcome { name: name.to_owned(), rows: rows.len(), problem, blessed, log };
    if let Some(row) = rows.doubled(key) {
        return Ok(done(Some(Problem::Keys { row }), false));
    }
    let path = format!("cases/{name}/expected.jsonl");
    if bless {
        crate::store::write(&project.path(&path), write_lines(fields, &rows.batch).as_bytes())?;
        return Ok(done(None, true));
    }
    if !project.exists(&path) {
        return Err(TrialError::Missing {
            file: path,
            hint: "look at what comes out, then let --bless write it; or name an expected_error in case.toml",
        });
    }
    let expected = read(project, &path, fields, true)?;
    let expected = Rows::sorted(fields, order, transform.output_schema(), &[expected])?;
    let difference = expected.difference(&rows, key);
    Ok(done(difference.map(Problem::Differs), false))
}

fn found(name: &str, rows: usize, problem: Problem) -> Outcome {
    Outcome { name: name.to_owned(), rows, problem: Some(problem), blessed: false, log: Vec::new() }
}

/// Returns all that a failure says: its message, and a death's log.
fn told(error: &TransformError) -> String {
    match error {
        TransformError::Trap { log_tail, .. } => log_tail.iter().fold(error.to_string(), |text, line| text + "\n" + &line.message),
        _ => error.to_string(),
    }
}

/// Output columns in the order they are sorted by, as in a run: the key's, then the others.
fn order(transform: &Transform) -> Vec<usize> {
    let d = transform.descriptor();
    let mut order: Vec<usize> = d.key.iter().filter_map(|k| d.output.iter().position(|f| f.name == *k)).collect();
    order.extend((0..d.output.len()).filter(|i| !order.contains(i)).collect::<Vec<_>>());
    order
}

/// Reads the rows of every input, in the order of the transform's inputs.
fn inputs(transform: &Transform, project: &Store, folder: &str) -> Result<Vec<RecordBatch>, TrialError> {
    let input = |(i, input): (usize, &crate::transform::Input)| {
        let file = if i == 0 { "input".to_owned() } else { input.name.clone() };
        let path = format!("{folder}/{file}.jsonl");
        match (project.exists(&path), i) {
            (true, _) => read(project, &path, &input.fields, false),
            (false, 0) => Err(TrialError::Missing { file: path, hint: "it may be empty, for a partition without rows" }),
            // A lookup that nothing was landed in.
            (false, _) => Ok(RecordBatch::new_empty(crate::schema::arrow_schema(&input.fields))),
        }
    };
    transform.descriptor().inputs.iter().enumerate().map(input).collect()
}

fn read(project: &Store, path: &str, fields: &[Field], strict: bool) -> Result<RecordBatch, TrialError> {
    let bytes = project.read(path)?;
    read_lines(fields, &bytes, strict).map_err(|(line, problem)| TrialError::Line { file: path.to_owned(), line, problem })
}

/// Runs one partition as a run would: lookups, the first input, then what is left.
fn partition(
    transform: &Transform,
    context: &Context,
    inputs: &[RecordBatch],
    batch_rows: usize,
) -> Result<(Vec<RecordBatch>, Vec<LogLine>), TransformError> {
    let mut instance = transform.start(context, &Limits::default())?;
    let mut returned = Vec::new();
    for (i, rows) in inputs.iter().enumerate().skip(1).chain(inputs.iter().enumerate().take(1)) {
        let mut start = 0;
        while start < rows.num_rows() {
            let length = batch_rows.min(rows.num_rows() - start);
            returned.extend(instance.push(i as u32, &rows.slice(start, length))?);
            start += length;
        }
    }
    while let Some(batch) = instance.finish()? {
        returned.push(batch);
    }
    Ok((returned, instance.log_lines().to_vec()))
}
