//! The real DuckDB reads what restitch wrote.
//! Never skips: where Python or a package is missing, these tests fail and say so.

use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
    sync::OnceLock,
};

/// Returns the python that has DuckDB and its extensions; `setup.sh` makes it once.
pub fn python() -> PathBuf {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON
        .get_or_init(|| {
            let out = run(Command::new("sh").arg(script("setup.sh")));
            assert!(
                out.status.success(),
                "tests/interop/setup.sh failed: these tests need python3 with venv, and pip that finds the package duckdb\n{}",
                String::from_utf8_lossy(&out.stderr)
            );
            PathBuf::from(String::from_utf8(out.stdout).expect("a path in UTF-8").trim_end())
        })
        .clone()
}

/// Returns what `lake.py` answers, line by line; its own text says which verbs there are.
pub fn lake<S: AsRef<str>>(args: impl IntoIterator<Item = S>) -> Vec<Value> {
    try_lake(args).unwrap_or_else(|message| panic!("{message}"))
}

/// Returns what `lake.py` answers, or what it says on stderr where DuckDB refuses.
pub fn try_lake<S: AsRef<str>>(args: impl IntoIterator<Item = S>) -> Result<Vec<Value>, String> {
    let args: Vec<String> = args.into_iter().map(|a| a.as_ref().to_owned()).collect();
    let out = run(Command::new(python()).arg(script("lake.py")).args(&args).env("PYTHONUTF8", "1"));
    if !out.status.success() {
        return Err(format!("lake.py {}: {}\n{}", args.join(" "), out.status, String::from_utf8_lossy(&out.stderr)));
    }
    let text = String::from_utf8(out.stdout).expect("lake.py writes UTF-8");
    Ok(text.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"))).collect())
}

fn script(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop").join(name)
}

fn run(command: &mut Command) -> Output {
    command.output().unwrap_or_else(|e| panic!("{}: {e}", command.get_program().to_string_lossy()))
}

/// The tool itself, against a lake that DuckDB made: values keep what they are, the past stays readable, refusals are refusals.
#[test]
fn lake_py_reads_a_lake_of_duckdb_itself() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (catalog, data) = (path("catalog.sqlite"), path("data/"));
    lake(["sql", &catalog, "CREATE TABLE t (a BIGINT, b DECIMAL(18,2), c TIMESTAMPTZ)", "--write", "--data-path", &data]);
    lake(["sql", &catalog, "INSERT INTO t VALUES (2, 10.50, '2026-05-01T08:00:00.5+02:00')", "--write"]);
    lake(["sql", &catalog, "INSERT INTO t VALUES (1, -5, NULL)", "--write"]);
    let first = serde_json::json!({"a": 2, "b": "10.50", "c": "2026-05-01T06:00:00.500000Z"});
    let second = serde_json::json!({"a": 1, "b": "-5.00", "c": null});
    assert_eq!(lake(["rows", &catalog, "t", "--order", "a"]), [second, first.clone()]);
    assert_eq!(lake(["rows", &catalog, "t", "--at", "2"]), [first]);
    assert_eq!(lake(["snapshots", &catalog]).len(), 4);
    assert!(try_lake(["sql", &catalog, "DELETE FROM t"]).unwrap_err().contains("read-only"));
    assert!(try_lake(["rows", &path("other.sqlite"), "t"]).unwrap_err().contains("there is no catalog"));
}
