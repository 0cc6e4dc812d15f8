//! How a warehouse comes to be, and what is no new one: a lost catalog, an unfinished backup, a project that cannot be read.

use crate::support::{ORDERS, order};
use std::path::Path;
use std::process::{Command, Stdio};

fn restitch(folder: &Path, words: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
    command.arg("-C").arg(folder).args(words.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn refused(folder: &Path, words: &str) -> String {
    let out = restitch(folder, words).output().unwrap();
    let text = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(2), "{words}: {text}");
    text
}

fn new_project() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("restitch.toml"), ORDERS).unwrap();
    std::fs::write(folder.path().join("a.jsonl"), order("e1", "2026-05-01T09:00:00Z", "A", "25")).unwrap();
    std::fs::write(folder.path().join("b.jsonl"), order("e2", "2026-05-01T10:00:00Z", "B", "10")).unwrap();
    folder
}

#[test]
fn a_project_file_that_cannot_be_read_says_why() {
    let folder = new_project();
    let toml = folder.path().join("restitch.toml");
    let mut latin = b"[warehouse]\npath = \"w".to_vec();
    latin.extend([0xfc, b'"', b'\n']);
    std::fs::write(&toml, latin).unwrap();
    for words in ["status", "init"] {
        let text = refused(folder.path(), words);
        assert_eq!(text, "Error: restitch.toml:2:10: here is a byte that is not UTF-8\nHint: save the file as UTF-8\n", "{words}");
    }
    std::fs::remove_file(&toml).unwrap();
    std::fs::create_dir(&toml).unwrap();
    let text = refused(folder.path(), "status");
    assert!(text.starts_with("Error: restitch.toml cannot be read: Is a directory"), "{text}");
    std::fs::remove_dir(&toml).unwrap();
    assert!(refused(folder.path(), "status").contains("there is no project here"));
}
