//! How a warehouse comes to be, and what is no new one: a lost catalog, an unfinished backup, a project that cannot be read.

use crate::support::{Lab, ORDERS, component, copy, order};
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
fn a_lost_catalog_is_not_taken_for_a_new_warehouse() {
    let lab = Lab::new(ORDERS);
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25"));
    lab.run();
    let saved = tempfile::tempdir().unwrap();
    copy(&lab.path("warehouse"), saved.path());
    let lose = || {
        for entry in std::fs::read_dir(lab.path("warehouse")).unwrap().map(|e| e.unwrap()) {
            if entry.file_name().to_string_lossy().starts_with("catalog.sqlite") {
                std::fs::remove_file(entry.path()).unwrap();
            }
        }
    };
    lose();
    let add = format!("transform add {}", component("customer-totals-1.0.0.wasm").display());
    for words in ["status", "doctor", "ingest orders a.jsonl", "query SELECT", "init", "backup elsewhere", &add] {
        let text = refused(lab.folder.path(), words);
        assert!(text.starts_with("Error: there is no catalog in warehouse, but 2 data files and 1 transform\nHint: "), "{words}: {text}");
        assert!(text.contains("move the folder away, and put a backup in its place"), "{words}: {text}");
        assert!(!lab.path("warehouse/catalog.sqlite").exists(), "{words}");
    }
    // An empty file in its place is no catalog either.
    std::fs::write(lab.path("warehouse/catalog.sqlite"), "").unwrap();
    assert!(refused(lab.folder.path(), "status").contains("there is no catalog in warehouse, but"));
    // Both ways out lead out.
    lose();
    copy(saved.path(), &lab.path("warehouse"));
    assert!(restitch(lab.folder.path(), "status").status().unwrap().success());
    std::fs::rename(lab.path("warehouse"), lab.path("given-up")).unwrap();
    assert!(restitch(lab.folder.path(), "ingest orders a.jsonl").status().unwrap().success());
    // Components alone are something that a new catalog would not know.
    std::fs::remove_dir_all(lab.path("warehouse")).unwrap();
    copy(&lab.path("given-up/transforms"), &lab.path("warehouse/transforms"));
    assert!(refused(lab.folder.path(), "status").contains("but 1 transform"));
}

#[test]
fn a_backup_that_was_cut_short_is_no_warehouse() {
    let folder = new_project();
    std::fs::create_dir_all(folder.path().join("warehouse/data/main")).unwrap();
    std::fs::write(folder.path().join("warehouse/catalog.sqlite.partial"), "part of a catalog").unwrap();
    let text = refused(folder.path(), "status");
    assert!(
        text.contains("no catalog in warehouse, but an unfinished backup\nHint: this backup is not whole: put another one in its place"),
        "{text}"
    );
}

#[test]
fn any_command_may_be_the_first_one() {
    for words in ["status", &format!("transform add {}", component("customer-totals-1.0.0.wasm").display()), "ingest orders a.jsonl", "init"] {
        let folder = new_project();
        let out = restitch(folder.path(), words).output().unwrap();
        assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
    }
    // What a process left that died when it was about to make the catalog is made whole.
    let folder = new_project();
    std::fs::create_dir_all(folder.path().join("warehouse/data/main")).unwrap();
    std::fs::write(folder.path().join("warehouse/catalog.sqlite"), "").unwrap();
    assert!(restitch(folder.path(), "status").status().unwrap().success());
}

#[test]
fn first_commands_at_the_same_moment_share_one_warehouse() {
    for _ in 0..6 {
        let folder = new_project();
        let commands = ["ingest orders a.jsonl", "ingest orders b.jsonl", "status", "doctor"];
        let running: Vec<_> = commands.iter().map(|words| restitch(folder.path(), words).spawn().unwrap()).collect();
        for (words, child) in commands.iter().zip(running) {
            let out = child.wait_with_output().unwrap();
            assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
        }
        let out = restitch(folder.path(), "--json status").output().unwrap();
        let object: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(object.pointer("/sources/0/records"), Some(&serde_json::Value::from(2)), "{object:#}");
    }
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

/// A disk that is not mounted, or a folder that was moved: the link is named, and nothing is made where it leads to.
#[cfg(unix)]
#[test]
fn a_link_that_leads_nowhere_is_told_as_what_it_is() {
    let folder = new_project();
    let link = |at: &str| std::os::unix::fs::symlink("../nowhere", folder.path().join(at)).unwrap();
    let told = |words: &str, made: &str, link: &str| {
        let out = restitch(folder.path(), words).output().unwrap();
        let want = format!(
            "Error: cannot create the folder {made}\nCaused by: {link} is a link to ../nowhere, and nothing is there\nHint: bring back what the link leads to (is the disk mounted?), or let it lead to where that is now\n"
        );
        assert_eq!((out.status.code(), String::from_utf8(out.stderr).unwrap()), (Some(1), want), "{words}");
    };
    link("warehouse");
    for words in ["status", "init", "ingest orders a.jsonl"] {
        told(words, "warehouse/staging", "warehouse");
    }
    std::fs::remove_file(folder.path().join("warehouse")).unwrap();
    assert!(restitch(folder.path(), "ingest orders a.jsonl").status().unwrap().success());
    std::fs::remove_dir_all(folder.path().join("warehouse/staging")).unwrap();
    link("warehouse/staging");
    told("status", "warehouse/staging", "warehouse/staging");
    assert!(!folder.path().join("nowhere").exists() && !folder.path().parent().unwrap().join("nowhere").exists());
}
