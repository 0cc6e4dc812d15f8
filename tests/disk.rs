//! Folders that may not be written, disks that are full, files that vanished or were changed under us: a clear error with the way out,
//! nothing half-written, and the next command is fine.

use crate::support::{Lab, ORDERS, order};
use restitch::{
    id::RunId,
    manifest::{Kind, Mode},
    pipeline::{Added, RunRequest},
};
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

const DAYS: [&str; 2] = ["2026-05-01", "2026-05-02"];

/// Two days by r1, again with a later record each by r2, and once more by r3, which waits.
fn prepared() -> Lab {
    let lab = Lab::new(ORDERS);
    let both = |name: &str| DAYS.map(|d| order(&format!("{name}{d}"), &format!("{d}T09:00:00Z"), "A", "1")).concat();
    lab.land("first.jsonl", both("first"));
    lab.run();
    lab.land("second.jsonl", both("second"));
    lab.backfill(DAYS[0], DAYS[1]);
    lab.land("third.jsonl", both("third"));
    lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some((DAYS[0], DAYS[1]))) });
    std::fs::write(lab.path("fourth.jsonl"), both("fourth")).unwrap();
    lab
}

/// What a reader sees: rows, records, and which runs there are in which state.
fn seen(lab: &Lab) -> Vec<String> {
    let mut rows = lab.published();
    rows.extend(lab.rows("select count(*) from raw_orders"));
    rows.extend(lab.rows("select partition, run, checksum from restitch_partitions order by 1"));
    rows
}

/// Everything is as it should be, and nothing is left over.
fn in_order(lab: &Lab, place: &str) {
    let report = lab.open().doctor(false).unwrap();
    assert!(report.healthy() && report.orphans.is_empty(), "{place}: {report:?}");
    assert_eq!(lab.rows("select count(*) from restitch_runs where status = 'running'"), ["0"], "{place}");
    let staged = std::fs::read_dir(lab.path("warehouse/staging")).unwrap().map(|e| e.unwrap().path()).filter(|p| p.is_dir());
    let waiting = lab.rows("select cast(run_id as varchar) from restitch_run where status in ('staged', 'rejected')");
    let staged: Vec<PathBuf> = staged.filter(|p| !waiting.iter().any(|run| p.ends_with(format!("r{run}")))).collect();
    assert_eq!(staged, Vec::<PathBuf>::new(), "{place}");
}

const VERBS: [&str; 6] = [
    "publish r3",
    "rollback r2",
    "rollback r2 --partition 2026-05-02",
    "ingest orders fourth.jsonl",
    "backfill daily --start 2026-05-01 --end 2026-05-02",
    "backfill daily --start 2026-05-01 --end 2026-05-02 --mode merge",
];

/// The command, without the privilege of an administrator to write where nobody may.
fn restitch(lab: &Lab, words: &str) -> (i32, Value) {
    let rights = lab.path("rights");
    std::fs::create_dir_all(&rights).unwrap();
    writable(&rights, false);
    let powerful = std::fs::write(rights.join("x"), "").is_ok();
    let mut command = Command::new(if powerful { "setpriv" } else { env!("CARGO_BIN_EXE_restitch") });
    if powerful {
        command.arg("--bounding-set=-dac_override,-dac_read_search").arg(env!("CARGO_BIN_EXE_restitch"));
    }
    let out = command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now, "--json"]).args(words.split(' ')).output().unwrap();
    writable(&rights, true);
    let answer = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{words}: {e}: {}", String::from_utf8_lossy(&out.stderr)));
    (out.status.code().unwrap(), answer)
}

/// Lets folders be written, or not, from the deepest up.
#[cfg(unix)]
fn writable(folder: &Path, yes: bool) {
    use std::os::unix::fs::PermissionsExt;
    let set = |path: &Path, mode: u32| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    if yes {
        set(folder, 0o755);
    }
    for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
        if entry.is_dir() { writable(&entry, yes) } else { set(&entry, if yes { 0o644 } else { 0o444 }) }
    }
    if !yes {
        set(folder, 0o555);
    }
}

/// A folder in which nothing may be made, wherever the command gets to: it says which, nothing is half done, and with the right back it can be given again.
#[cfg(target_os = "linux")]
#[test]
fn a_folder_that_may_not_be_written_leaves_the_old_state() {
    for verb in VERBS {
        let lab = prepared();
        let before = seen(&lab);
        let table = if verb.starts_with("ingest") { "warehouse/data/main/raw_orders" } else { "warehouse/data/main/daily" };
        for folder in ["warehouse", table, "warehouse/staging"] {
            writable(&lab.path(folder), false);
            let (code, answer) = restitch(&lab, verb);
            writable(&lab.path(folder), true);
            let error = &answer["error"];
            assert_eq!(code, 1, "{verb}, {folder}: {answer:#}");
            assert!(error["hint"].as_str().is_some_and(|h| h.contains("write into the warehouse")), "{verb}, {folder}: {answer:#}");
            let told = error.to_string();
            assert!(told.contains("ermission denied") || told.contains("readonly database"), "{verb}, {folder}: {answer:#}");
            assert_eq!(seen(&lab), before, "{verb}, {folder}");
            in_order(&lab, &format!("{verb}, {folder}"));
        }
        assert_eq!(restitch(&lab, verb).0, 0, "{verb}");
        assert_ne!(seen(&lab), before, "{verb}");
        in_order(&lab, verb);
    }
}

/// A catalog that may not be written for a moment: SQLite makes nothing beside it that nobody may write afterwards either, and where it did, the file is named.
#[cfg(target_os = "linux")]
#[test]
fn a_catalog_that_may_not_be_written_is_not_opened() {
    use std::os::unix::fs::PermissionsExt;
    let lab = prepared();
    let before = seen(&lab);
    let catalog = lab.path("warehouse/catalog.sqlite");
    let allow = |path: &Path, mode: u32| std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    let refused = |verb: &str, file: &str, hint: &str| {
        let (code, answer) = restitch(&lab, verb);
        let error = &answer["error"];
        assert_eq!(code, 1, "{verb}: {answer:#}");
        assert_eq!(error["message"], format!("cannot write warehouse/{file}"), "{verb}: {answer:#}");
        assert!(error["causes"].to_string().contains("ermission denied") && error["hint"].as_str().unwrap().contains(hint), "{verb}: {answer:#}");
    };
    let beside = ["-wal", "-shm"].map(|end| lab.path(&format!("warehouse/catalog.sqlite{end}")));
    allow(&catalog, 0o444);
    for verb in VERBS.into_iter().chain(["status", "doctor"]) {
        refused(verb, "catalog.sqlite", "write into the warehouse");
        assert!(beside.iter().all(|file| !file.exists()), "{verb}");
    }
    allow(&catalog, 0o644);
    // Somebody has it open, so these files are there.
    let open = lab.open();
    for file in &beside {
        allow(file, 0o444);
        let name = file.file_name().unwrap().to_str().unwrap();
        refused("status", name, &format!("write warehouse/{name}"));
        allow(file, 0o644);
    }
    drop(open);
    assert_eq!(restitch(&lab, "status").0, 0);
    assert_eq!(seen(&lab), before);
}

fn some_file(folder: &Path) -> PathBuf {
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|f| f.extension().is_some_and(|e| e == "parquet"));
    files.sort();
    files.remove(0)
}

/// Files that a command needs are gone, or are not what was recorded: it names the file and the way out, and changes nothing; with the file back it works.
#[test]
fn a_file_that_vanished_or_was_changed_is_named_and_nothing_changes() {
    let daily = "warehouse/data/main/daily/r1";
    let cases = [
        ("publish r3", "warehouse/staging/r3/files", "discard the run"),
        ("diff r3", "warehouse/staging/r3/files", "discard the run"),
        ("rollback r2", daily, "from a backup"),
        ("replay r1", "warehouse/data/main/raw_orders", "from a backup"),
        ("verify r2", "warehouse/data/main/raw_orders", "from a backup"),
        ("backfill daily --start 2026-05-01 --end 2026-05-01", "warehouse/data/main/raw_orders", "from a backup"),
    ];
    let lab = prepared();
    let before = seen(&lab);
    for (verb, folder, hint) in cases {
        let first = lab.open().show(RunId(1)).unwrap().row.manifest.inputs.remove(0).path;
        // Every run of the case reads what the first one has read.
        let file = if folder.ends_with("raw_orders") { lab.path("warehouse").join(first) } else { some_file(&lab.path(folder)) };
        let sound = std::fs::read(&file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        for gone in [true, false] {
            // Comparing rows reads columns, and hashes nothing: `doctor` and `publish` do.
            if !gone && verb.starts_with("diff") {
                continue;
            }
            if gone {
                std::fs::remove_file(&file).unwrap()
            } else {
                std::fs::write(&file, [sound.as_slice(), b"x"].concat()).unwrap()
            }
            let (code, answer) = restitch(&lab, verb);
            assert_eq!(code, 1, "{verb}: {answer:#}");
            assert!(answer["error"].to_string().contains(&name), "{verb} names no file: {answer:#}");
            assert!(answer["error"]["hint"].as_str().is_some_and(|h| h.contains(hint)), "{verb}: {answer:#}");
            assert_eq!(restitch(&lab, "doctor").0, 3, "{verb}");
            std::fs::write(&file, &sound).unwrap();
            assert_eq!(seen(&lab), before, "{verb}");
        }
        in_order(&lab, verb);
    }
    // The rest of a run goes back although a file of one of its days is gone, and what was staged can be thrown away without its files.
    let file = some_file(&lab.path(daily));
    let sound = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    assert_eq!(restitch(&lab, "rollback r2 --partition 2026-05-02").0, 0);
    std::fs::write(&file, sound).unwrap();
    assert_eq!(restitch(&lab, "rollback r2").0, 0);
    assert_eq!(lab.published(), DAYS.map(|d| format!("{d} A 1 1.00")));
    std::fs::remove_dir_all(lab.path("warehouse/staging/r3")).unwrap();
    let (code, answer) = restitch(&lab, "publish r3");
    assert!(code == 1 && answer["error"]["hint"].as_str().unwrap().contains("discard the run"), "{answer:#}");
    assert_eq!(restitch(&lab, "discard r3").0, 0);
    in_order(&lab, "at the end");
}

/// A transform's bytes come back by adding the same component again.
#[test]
fn a_component_that_vanished_is_added_again() {
    let lab = prepared();
    let folder = lab.path("warehouse/transforms");
    let file = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_file(&file).unwrap();
    let (code, answer) = restitch(&lab, "replay r1");
    assert!(code == 1 && answer["error"]["hint"].as_str().unwrap().contains("restitch transform add"), "{answer:#}");
    let add = || lab.open().add_transform(&crate::support::component("customer-totals-1.0.0.wasm")).unwrap().1;
    assert_eq!([add(), add()], [Added::PutBack, Added::Known]);
    assert_eq!(restitch(&lab, "replay r1").0, 0);
    in_order(&lab, "added again");
}

/// A small disk in place of a folder: full but for so many KiB, again and again until the command has room.
const SMALL_DISK: &str = r#"
set -e
lab=$1 folder=$1/$2 restitch=$3 now=$4; shift 4
ask() { "$restitch" -C "$lab" --now "$now" --json "$@"; }
cp -a "$folder" "$lab/saved"
mount -t tmpfs -o size=8m tmpfs "$folder"
cp -a "$lab/saved/." "$folder"
for left in 0 4 16 48 128 512 4096; do
  fill=$(( $(df -k --output=avail "$folder" | tail -1) - left ))
  dd if=/dev/zero of="$folder/fill" bs=1024 count=$fill 2>/dev/null
  code=0; ask "$@" > "$lab/answer" 2>/dev/null || code=$?
  rm "$folder/fill"
  rows=$(ask query "select p.partition, p.run_id, (select count(*) from raw_orders) as raw from restitch_partition p order by 1" | tr -d ' \n')
  doctor=0; ask doctor > /dev/null 2>&1 || doctor=$?
  printf '%s\t%s\t%s\t%s\t%s\n' "$left" "$code" "$doctor" "$rows" "$(tr -d '\n' < "$lab/answer")"
  [ $code = 0 ] && break
done
mkdir "$lab/after"; cp -a "$folder/." "$lab/after"; umount "$folder"; rm -rf "$folder"; mv "$lab/after" "$folder"
"#;

/// A disk without room, for the whole warehouse or for `staging` alone, which is another file system then: files are copied to where they are linked otherwise.
/// The test needs a file system of its own; where the system lets nobody mount one, `a_full_disk_leaves_the_old_state_…` bounds sizes instead.
#[cfg(target_os = "linux")]
#[test]
fn a_disk_without_room_leaves_the_old_state_until_there_is_some() {
    let namespace = ["-m", "-Urm"].into_iter().find(|flags| {
        let probe = Command::new("unshare").args([flags, "sh", "-c", "mount -t tmpfs tmpfs /mnt"]).output();
        probe.is_ok_and(|out| out.status.success())
    });
    let Some(namespace) = namespace else { return };
    for folder in ["warehouse", "warehouse/staging"] {
        for verb in VERBS {
            let lab = prepared();
            let mut command = Command::new("unshare");
            command.args([namespace, "sh", "-c", SMALL_DISK, "sh"]).arg(lab.folder.path()).args([folder, env!("CARGO_BIN_EXE_restitch"), lab.now]);
            let out = command.args(verb.split(' ')).output().unwrap();
            assert!(out.status.success(), "{verb}: {}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
            let told = String::from_utf8(out.stdout).unwrap();
            let tries: Vec<Vec<&str>> = told.lines().map(|l| l.split('\t').collect()).collect();
            let (last, failed) = tries.split_last().unwrap();
            assert_eq!(last[1..3], ["0", "0"], "{folder}, {verb}: {told}");
            assert!(folder != "warehouse" || !failed.is_empty(), "{folder}, {verb}: it needs no room? {told}");
            for try_ in failed {
                assert_eq!(try_[1..3], ["1", "0"], "{folder}, {verb}: {told}");
                assert!(try_[3] == failed[0][3] && try_[3] != last[3], "{folder}, {verb}: {told}");
                let answer: Value = serde_json::from_str(try_[4]).unwrap();
                assert!(answer["error"]["hint"].as_str().is_some_and(|h| h.contains("make room")), "{folder}, {verb}: {answer:#}");
            }
            in_order(&lab, verb);
        }
    }
}

/// A file system's `lost+found`, or what a file manager leaves, is nobody's staging folder.
#[test]
fn what_is_not_ours_in_staging_is_left_alone() {
    let lab = prepared();
    std::fs::create_dir(lab.path("warehouse/staging/lost+found")).unwrap();
    std::fs::write(lab.path("warehouse/staging/.DS_Store"), "x").unwrap();
    std::fs::create_dir_all(lab.path("warehouse/staging/ingest-of-a-dead-one")).unwrap();
    assert_eq!(restitch(&lab, "publish r3").0, 0);
    let there = |name: &str| lab.path("warehouse/staging").join(name).exists();
    assert!(there("lost+found") && there(".DS_Store") && !there("ingest-of-a-dead-one") && !there("r3"));
    assert!(!there("lost+found/lock"));
}
