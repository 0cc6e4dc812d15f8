//! `transform test`: every case of a project, and what came out otherwise than expected, column by column.
//! Never opens a warehouse. Exit code 3 if a case fails.
//! `cli/transform` calls it.

use super::{built, load};
use crate::{
    cli::{
        output::{Answer, clean, count},
        report::Failure,
    },
    pipeline::Error,
    store::{self, Store},
    transform::{Language, LogLine, TransformError},
    trial::{self, Difference, Outcome, Problem},
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// Rows and values of one case that are shown.
const SHOWN: usize = 20;

/// What was typed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The project: its sources, and the folder `cases`
    #[arg(default_value = ".", value_name = "DIR")]
    folder: PathBuf,
    /// Test this component instead of building the sources
    #[arg(long, value_name = "FILE")]
    component: Option<PathBuf>,
    /// Only these cases
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,
    /// Write what comes out to expected.jsonl
    #[arg(long)]
    bless: bool,
}

pub(super) fn run(args: &Args) -> Result<Answer, Failure> {
    if args.component.is_none() {
        Language::of(&args.folder)?;
    }
    let project = Store::new(&args.folder);
    let names = chosen(&project, &args.case)?;
    let (component, file) = match &args.component {
        Some(file) => (store::read_bytes(file)?, file.display().to_string()),
        None => built(&args.folder)?,
    };
    let transform = load(&component).map_err(|source| Error::Component { file, source })?;
    let reference = format!("{}@{}", transform.descriptor().name, transform.descriptor().version);
    let outcomes = names.iter().map(|name| trial::run(&transform, &project, name, args.bless)).collect::<Result<Vec<_>, _>>()?;
    let (failed, of) = (outcomes.iter().filter(|o| o.problem.is_some()).count(), outcomes.len());
    let mut text: String = outcomes.iter().map(outcome_text).collect();
    if failed == 0 {
        text += &format!("{} with {reference}\n", if of == 1 { "1 case passes".into() } else { format!("{of} cases pass") });
    }
    let json = json!({ "transform": reference, "digest": transform.digest(), "cases": outcomes.iter().map(outcome_json).collect::<Vec<_>>() });
    let differs = outcomes.iter().any(|o| matches!(o.problem, Some(Problem::Differs(_))));
    let failure = (failed > 0).then(|| Failure::Cases { failed, of, transform: reference, differs });
    Ok(Answer { failure, ..Answer::new(text, json) })
}

fn chosen(project: &Store, asked: &[String]) -> Result<Vec<String>, Failure> {
    let names = trial::cases(project)?;
    match asked.iter().find(|a| !names.contains(a)) {
        Some(unknown) => Err(Failure::usage(format!("there is no case {unknown:?}"), Some(&format!("there are {}", names.join(", "))))),
        None if asked.is_empty() => Ok(names),
        None => Ok(names.into_iter().filter(|n| asked.contains(n)).collect()),
    }
}

fn outcome_text(o: &Outcome) -> String {
    let rows = count(o.rows as i64, "row");
    let mut text = match &o.problem {
        None if o.blessed => format!("{}: {rows}, written to {}\n", o.name, Path::new("cases").join(&o.name).join("expected.jsonl").display()),
        None => format!("{}: as expected ({rows})\n", o.name),
        Some(Problem::Differs(d)) => format!("{}: not as expected ({rows})\n{}", o.name, difference_text(d)),
        Some(Problem::Unstable { batch_rows, difference }) => {
            let when = match batch_rows {
                None => "when it runs a second time".to_owned(),
                Some(n) => format!("when its rows come in batches of {n}"),
            };
            format!("{}: other rows come out {when}\n{}", o.name, difference_text(difference))
        }
        Some(Problem::Keys { row }) => format!("{}: a second row has the key of\n  {}\n", o.name, clean(row)),
        Some(Problem::Failed(e)) => format!("{}: it fails\n{}", o.name, error_text(e)),
        Some(Problem::NoError { expected }) => format!("{}: it does not fail, and has to with {expected:?}\n", o.name),
        Some(Problem::OtherError { expected, error }) => {
            format!("{}: it fails for another reason than {expected:?}\n{}", o.name, error_text(error))
        }
    };
    if o.problem.is_some() {
        text += &log_text(&o.log);
    }
    text
}

fn difference_text(d: &Difference) -> String {
    let changed = d
        .changed
        .iter()
        .flat_map(|c| c.values.iter().map(move |(column, expected, got)| format!("  {}: {column} is {got}, expected {expected}", c.key)));
    let missing = d.missing.iter().map(|row| format!("  missing: {row}"));
    let extra = d.extra.iter().map(|row| format!("  extra:   {row}"));
    let lists: [Box<dyn Iterator<Item = String>>; 3] = [Box::new(changed), Box::new(missing), Box::new(extra)];
    let mut text = String::new();
    for list in lists {
        let lines: Vec<String> = list.collect();
        text += &lines.iter().take(SHOWN).map(|l| clean(l) + "\n").collect::<String>();
        if lines.len() > SHOWN {
            text += &format!("  … {} more like these\n", lines.len() - SHOWN);
        }
    }
    text
}

fn error_text(e: &TransformError) -> String {
    let mut text = format!("  {}\n", clean(&e.to_string()));
    if let TransformError::Trap { frames, log_tail, .. } = e {
        text += &frames.iter().map(|f| format!("    in {}\n", clean(f))).collect::<String>();
        text += &log_text(log_tail);
    }
    e.hint().map_or(text.clone(), |hint| format!("{text}  {hint}\n"))
}

fn log_text(log: &[LogLine]) -> String {
    log.iter().rev().take(SHOWN).rev().map(|line| clean(&format!("  log {}: {}", line.level, line.message.trim_end())) + "\n").collect()
}

fn outcome_json(o: &Outcome) -> Value {
    let difference = |d: &Difference| {
        let value = |(column, expected, got): &(String, String, String)| json!({ "column": column, "expected": raw(expected), "got": raw(got) });
        let changed = d.changed.iter().map(|c| json!({ "key": c.key, "values": c.values.iter().map(value).collect::<Vec<_>>() }));
        json!({
            "missing": d.missing.iter().map(|r| raw(r)).collect::<Vec<_>>(),
            "extra": d.extra.iter().map(|r| raw(r)).collect::<Vec<_>>(),
            "changed": changed.collect::<Vec<_>>(),
        })
    };
    let problem = match &o.problem {
        None => Value::Null,
        Some(Problem::Differs(d)) => json!({ "kind": "differs", "difference": difference(d) }),
        Some(Problem::Unstable { batch_rows, difference: d }) => json!({ "kind": "unstable", "batch_rows": batch_rows, "difference": difference(d) }),
        Some(Problem::Keys { row }) => json!({ "kind": "keys", "row": raw(row) }),
        Some(Problem::Failed(e)) => json!({ "kind": "failed", "message": e.to_string() }),
        Some(Problem::NoError { expected }) => json!({ "kind": "no_error", "expected": expected }),
        Some(Problem::OtherError { expected, error }) => json!({ "kind": "other_error", "expected": expected, "message": error.to_string() }),
    };
    let log: Vec<String> = o.log.iter().map(|l| format!("{}: {}", l.level, l.message)).collect();
    json!({ "case": o.name, "rows": o.rows, "passed": o.problem.is_none(), "blessed": o.blessed, "problem": problem, "log": log })
}

/// JSON text stays text here: a number with all its digits would not survive as one.
fn raw(text: &str) -> Value {
    Value::String(text.to_owned())
}
