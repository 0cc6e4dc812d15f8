//! Failures: what a user reads on stderr, what a program reads on stdout, and the exit code.
//! Never hides a cause: the chain is printed down to its end.
//! `cli::run` hands every error to it.

use super::output::{data, json_text, talk, written};
use crate::{
    pipeline::{Error, ErrorKind},
    store::StoreError,
    transform::BuildError,
    trial::TrialError,
};
use serde_json::{Value, json};
use std::{error::Error as _, io, path::PathBuf};

/// What went wrong in a command.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The command itself failed. Boxed: it is large, and rare.
    #[error(transparent)]
    Pipeline(Box<Error>),
    /// A folder does not become a component.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// A case cannot be run.
    #[error(transparent)]
    Trial(#[from] TrialError),
    /// Cases came out otherwise than they have to.
    #[error("{failed} of {of} case{} failed with {transform}", if *.of == 1 { "" } else { "s" })]
    Cases {
        /// How many failed.
        failed: usize,
        /// How many there are.
        of: usize,
        /// The transform, as name@version.
        transform: String,
        /// Whether one of them made other rows than expected.
        differs: bool,
    },
    /// The folder of -C is no folder.
    #[error("cannot work in {}", folder.display())]
    Folder {
        /// The folder.
        folder: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// A step of the demo failed, and has said so itself.
    #[error("the demo stopped at `{command}`")]
    Step {
        /// The step.
        command: String,
        /// Its exit code.
        code: u8,
    },
}

impl From<Error> for Failure {
    fn from(e: Error) -> Failure {
        Failure::Pipeline(Box::new(e))
    }
}

impl From<StoreError> for Failure {
    fn from(e: StoreError) -> Failure {
        Error::from(e).into()
    }
}

impl Failure {
    /// Returns a failure for words that do not fit together.
    pub fn usage(message: impl Into<String>, hint: Option<&str>) -> Failure {
        Error::Usage { message: message.into(), hint: hint.map(str::to_owned) }.into()
    }

    fn code(&self) -> u8 {
        match self {
            Failure::Pipeline(e) => e.kind().code(),
            Failure::Build(BuildError::Failed { .. }) => 1,
            Failure::Build(_) | Failure::Trial(_) | Failure::Folder { .. } => 2,
            Failure::Cases { .. } => ErrorKind::Validation.code(),
            Failure::Step { code, .. } => *code,
        }
    }

    fn kind(&self) -> &'static str {
        match self {
            Failure::Pipeline(e) => kind_name(e.kind()),
            Failure::Cases { .. } => kind_name(ErrorKind::Validation),
            _ if self.code() == 2 => kind_name(ErrorKind::Usage),
            _ => kind_name(ErrorKind::Failed),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Failure::Pipeline(e) => e.hint(),
            Failure::Trial(e) => e.hint(),
            Failure::Cases { differs: true, .. } => Some("if the new rows are the right ones: `restitch transform test --bless`".into()),
            Failure::Build(BuildError::Tool { .. }) => Some("Rust guests are built with cargo: https://rustup.rs".into()),
            _ => None,
        }
    }

    /// Returns the causes, outermost first, without those that only repeat what stands before them.
    fn causes(&self) -> Vec<String> {
        let mut causes: Vec<String> = Vec::new();
        let mut last = self.to_string();
        let mut next = self.source();
        while let Some(cause) = next {
            let text = cause.to_string();
            if !last.contains(&text) {
                causes.push(text.clone());
                last = text;
            }
            next = cause.source();
        }
        causes
    }

    fn run(&self) -> Option<String> {
        match self {
            Failure::Pipeline(e) => match e.as_ref() {
                Error::Rejected { run, .. } | Error::Waiting { run, .. } | Error::Unproven { run, .. } | Error::Differs { run, .. } => {
                    Some(run.to_string())
                }
                _ => None,
            },
            _ => None,
        }
    }
}

fn kind_name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::Failed => "failed",
        ErrorKind::Usage => "usage",
        ErrorKind::Validation => "validation",
        ErrorKind::Conflict => "conflict",
        ErrorKind::Approval => "approval",
    }
}

/// Reports a failure and returns its exit code. In JSON it joins what the command has found out until then.
pub fn failure(failure: &Failure, json: bool, found: Option<Value>) -> u8 {
    let code = failure.code();
    if json {
        let mut object = found.filter(Value::is_object).unwrap_or_else(|| json!({}));
        object["error"] = json!({
            "message": failure.to_string(), "causes": failure.causes(), "hint": failure.hint(),
            "kind": failure.kind(), "exit_code": code, "run": failure.run(),
        });
        written(data(&json_text(&object)));
        return code;
    }
    text_lines(failure).iter().for_each(|line| talk(line));
    code
}

fn text_lines(failure: &Failure) -> Vec<String> {
    let mut lines = vec![told("Error", &failure.to_string())];
    match failure.causes().as_slice() {
        [] => {}
        [one] => lines.push(told("Caused by", one)),
        many => lines.extend(many.iter().enumerate().map(|(i, cause)| told(&format!("Caused by {}", i + 1), cause))),
    }
    if let Some(hint) = failure.hint() {
        lines.push(told("Hint", &hint));
    }
    lines
}

/// Further lines are indented: parts of a text may be a transform's, and none begins a line as if it were ours.
fn told(what: &str, text: &str) -> String {
    let mut lines = text.lines();
    let first = format!("{what}: {}", lines.next().unwrap_or_default());
    lines.fold(first, |told, line| told + if line.is_empty() || line.starts_with(' ') { "\n" } else { "\n  " } + line)
}

/// Reports what clap says: help and versions go to stdout, mistakes to stderr.
pub fn usage(e: &clap::Error, json: bool) -> u8 {
    if !e.use_stderr() {
        // clap's own printing keeps its colours; a closed pipe is no error.
        return match e.print() {
            Err(e) if e.kind() != io::ErrorKind::BrokenPipe => written(Err(e)),
            _ => 0,
        };
    }
    if json {
        let text = e.to_string();
        let (message, rest) = text.split_once("\n\n").unwrap_or((&text, ""));
        let object = json!({ "error": {
            "message": message.trim().trim_start_matches("error: "), "causes": [], "hint": rest.trim(),
            "kind": kind_name(ErrorKind::Usage), "exit_code": 2, "run": null,
        }});
        written(data(&json_text(&object)));
    } else {
        e.print().ok();
    }
    2
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_says_what_and_why_and_the_way_out() {
        let source = io::Error::new(io::ErrorKind::NotFound, "no such folder");
        let folder = Failure::Folder { folder: "x".into(), source };
        assert_eq!(text_lines(&folder), ["Error: cannot work in x", "Caused by: no such folder"]);
        let usage = Failure::usage("no\n\nHint: forged", Some("say\n  yes"));
        assert_eq!(text_lines(&usage), ["Error: no\n\n  Hint: forged", "Hint: say\n  yes"]);
        let usage = Failure::usage("no", Some("say yes"));
        assert_eq!(text_lines(&usage), ["Error: no", "Hint: say yes"]);
        assert_eq!((usage.code(), usage.kind(), folder.code()), (2, "usage", 2));
    }
}
