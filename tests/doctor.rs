//! The doctor: a flipped bit anywhere is found and named, and nothing is computed from it.

use crate::support::{Lab, ORDERS, Random, chain, order};
use restitch::manifest::{Kind, Mode};
use restitch::{
    doctor::Report,
    id::RunId,
    pipeline::{Added, DiffRequest, Error, ErrorKind, RunRequest},
};
use std::path::{Path, PathBuf};

fn lab() -> Lab {
    let lab = Lab::new(ORDERS);
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25") + &order("e2", "2026-05-02T10:00:00Z", "B", "10") + "no record\n");
    lab.run();
    lab.land("b.jsonl", order("e3", "2026-05-01T10:00:00Z", "A", "5"));
    lab.repair();
    lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some(("2026-05-02", "2026-05-02"))) });
    lab
}

fn examine(lab: &Lab) -> Report {
    lab.open().doctor(false).unwrap()
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { found.extend(files(&path)) } else { found.push(path) }
    }
    found.sort();
    found
}

#[test]
fn a_flipped_bit_in_any_file_is_found_and_named() {
    let lab = lab();
    let report = examine(&lab);
    assert!(report.healthy() && report.orphans.is_empty() && report.foreign == 0, "{report:?}");
    let ends = [".parquet", ".wasm"];
    let all: Vec<PathBuf> = files(&lab.path("warehouse")).into_iter().filter(|p| ends.iter().any(|e| p.to_string_lossy().ends_with(e))).collect();
    assert_eq!(report.files.0, all.len() as u64);
    let mut random = Random(7);
    for path in &all {
        let sound = std::fs::read(path).unwrap();
        let mut bytes = sound.clone();
        let at = random.below(bytes.len());
        bytes[at] ^= 1 << random.below(8);
        // A staged file has two names where it was published; here it has one.
        std::fs::write(path, &bytes).unwrap();
        let report = examine(&lab);
        let named: Vec<_> = report.bad.iter().map(|b| lab.path("warehouse").join(&b.path)).collect();
        assert!(named.contains(path), "{}: {report:?}", path.display());
        assert!(report.bad.iter().all(|b| b.to_string().contains("was changed: its SHA-256 is")), "{report:?}");
        assert!(lab.open().doctor(true).unwrap().bad.is_empty(), "the size is the same");
        std::fs::write(path, &sound[..sound.len() - 1]).unwrap();
        assert!(lab.open().doctor(true).unwrap().bad.iter().any(|b| b.to_string().contains("bytes, and had")));
        std::fs::write(path, &sound).unwrap();
    }
    std::fs::remove_file(&all[0]).unwrap();
    assert!(examine(&lab).bad[0].to_string().contains("cannot be read: No such file"));
}

#[test]
fn nothing_is_computed_from_damaged_input() {
    let lab = lab();
    let raw = files(&lab.path("warehouse/data/main/raw_orders"));
    let sound: Vec<Vec<u8>> = raw.iter().map(|p| std::fs::read(p).unwrap()).collect();
    for (path, bytes) in raw.iter().zip(&sound) {
        // A byte of the footer's free text: every reader takes the file for good.
        let at = bytes.windows(10).rposition(|w| w == b"parquet-rs").or_else(|| bytes.windows(8).rposition(|w| w == b"restitch")).unwrap();
        let mut bytes = bytes.clone();
        bytes[at] ^= 1;
        std::fs::write(path, &bytes).unwrap();
    }
    let published = |lab: &Lab| lab.rows("select partition, checksum, run from restitch_partitions order by 1");
    let before = published(&lab);
    let error = lab.try_go(Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01")))).unwrap_err();
    assert!(chain(&error).starts_with("the input is damaged: data/main/raw_orders/"), "{}", chain(&error));
    for run in ["r1", "r2"] {
        let error = lab.replay(run.parse().unwrap()).unwrap_err();
        assert!(chain(&error).contains("the input is damaged"), "{}", chain(&error));
    }
    assert_eq!(published(&lab), before);
    raw.iter().zip(&sound).for_each(|(path, bytes)| std::fs::write(path, bytes).unwrap());
    lab.backfill("2026-05-01", "2026-05-01");
}

#[test]
fn what_does_not_hold_together_is_told_and_orphans_are_listed() {
    let lab = lab();
    std::fs::write(lab.path("warehouse/data/main/daily/stray.parquet"), "x").unwrap();
    assert_eq!(examine(&lab).orphans, [("data/main/daily/stray.parquet".to_owned(), 1)]);
    assert!(examine(&lab).healthy());
    let sql = |text: &str| sqlite(&lab, text);
    for (change, undo, want) in [
        (
            "update restitch_partition set rows = rows + 1 where partition = '2026-05-01'",
            "update restitch_partition set rows = rows - 1 where partition = '2026-05-01'",
            "partition 2026-05-01 of daily shows other rows than its run wrote",
        ),
        (
            "update restitch_partition set checksum = upper(checksum) where partition = '2026-05-02'",
            "update restitch_partition set checksum = lower(checksum)",
            "partition 2026-05-02 of daily has another checksum than its run recorded",
        ),
        (
            "update restitch_run set status = 'failed' where run_id = 2",
            "update restitch_run set status = 'published' where run_id = 2",
            "partition 2026-05-01 of daily is published by a run that is not a published one",
        ),
        (
            "update ducklake_table_stats set next_row_id = next_row_id - 1",
            "update ducklake_table_stats set next_row_id = next_row_id + 1",
            "has row ids that will be given out again",
        ),
        (
            "update restitch_sum set partitions = partitions + 1",
            "update restitch_sum set partitions = partitions - 1",
            "dataset daily has other partitions than its sum says",
        ),
    ] {
        sql(change);
        let broken = examine(&lab).broken;
        assert!(broken.iter().any(|b| b.contains(want)), "{want}: {broken:?}");
        sql(undo);
        assert!(examine(&lab).healthy(), "{want}: {:?}", examine(&lab));
    }
}

fn sqlite(lab: &Lab, text: &str) {
    let script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); c.executescript(sys.argv[2]); c.commit()";
    let done = std::process::Command::new("python3").args(["-c", script, &lab.catalog(), text]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// The sum over the partitions that a run does not name is kept by what really changes, also where the swap knows nothing of it.
#[test]
fn a_swap_that_would_change_another_partition_is_taken_back() {
    let lab = lab();
    let rows = |lab: &Lab| lab.rows("select partition, checksum, run from restitch_partitions order by 1");
    let before = rows(&lab);
    sqlite(
        &lab,
        "create trigger astray after update on restitch_partition when new.partition = '2026-05-01'
         begin update restitch_partition set checksum = upper(checksum) where partition = '2026-05-02'; end",
    );
    let backfill = || Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01")));
    let refused = chain(&lab.try_go(backfill()).unwrap_err());
    assert!(refused.contains("would change partitions that it does not name"), "{refused}");
    assert_eq!(rows(&lab), before);
    sqlite(&lab, "drop trigger astray");
    let run = lab.go(backfill());
    assert_eq!(run.manifest.unwrap().others.unwrap().partitions, before.len() as u64 - 1);
    assert!(examine(&lab).healthy(), "{:?}", examine(&lab));
}

#[test]
fn a_rejected_dry_run_leaves_nothing_to_look_after() {
    let lab = Lab::new(&ORDERS.replace("{ kind = \"row_count\", min = 0 }", "{ kind = \"row_count\", min = 9 }"));
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25"));
    let dry = RunRequest { mode: Mode::DryRun, ..Lab::request(Kind::Run, None) };
    assert!(chain(&lab.try_go(dry).unwrap_err()).contains("row_count"));
    assert!(examine(&lab).healthy(), "{:?}", examine(&lab));
    lab.open().backup(&lab.folder.path().join("copy")).unwrap();
    for e in [lab.open().diff_run(FIRST, 5).unwrap_err(), lab.open().discard(FIRST).unwrap_err(), lab.open().publish(FIRST).unwrap_err()] {
        assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::Usage, "run r1 is a dry run, which keeps no rows"));
        assert!(e.hint().unwrap().contains("without --dry-run"), "{e}");
    }
}

const FIRST: RunId = RunId(1);

/// Flips a bit of a file where no reader of Parquet looks, or cuts it where every reader stumbles; `act` is told which, and the file is mended.
fn with_damage(path: &Path, mut act: impl FnMut(&str)) {
    let sound = std::fs::read(path).unwrap();
    let mut flipped = sound.clone();
    let at = sound.windows(10).rposition(|w| w == b"parquet-rs").or_else(|| sound.windows(8).rposition(|w| w == b"restitch")).unwrap_or(20);
    flipped[at] ^= 1;
    for (bytes, what) in [(flipped.as_slice(), "was changed: its SHA-256 is"), (&sound[..sound.len() / 2], "bytes, and had")] {
        std::fs::write(path, bytes).unwrap();
        act(what);
    }
    std::fs::write(path, &sound).unwrap();
}

#[test]
fn a_backup_of_a_changed_file_is_none() {
    let lab = lab();
    let all = files(&lab.path("warehouse"));
    let mut tried = 0;
    for path in all.iter().filter(|p| p.extension().is_some_and(|e| e == "parquet" || e == "wasm")) {
        let name = path.strip_prefix(lab.path("warehouse")).unwrap().display().to_string();
        with_damage(path, |what| {
            tried += 1;
            let copy = lab.folder.path().join(format!("copy-{tried}"));
            let e = lab.open().backup(&copy).unwrap_err();
            let what = if name.ends_with(".wasm") { "was changed: its SHA-256 is" } else { what };
            assert!(e.to_string().starts_with(&format!("the backup is not one: {name} ")) && e.to_string().contains(what), "{e}");
            assert!(e.kind() == ErrorKind::Failed && e.hint().is_some() && !copy.join("catalog.sqlite").exists());
        });
    }
    assert!(tried >= 10, "raw records, rejects, published, earlier, staged, and a transform: {tried}");
    assert!(lab.open().backup(&lab.folder.path().join("whole")).is_ok());
}

#[test]
fn nothing_is_compared_with_a_damaged_file() {
    let lab = lab();
    lab.open().add_transform(&crate::support::component("customer-totals-1.1.0.wasm")).unwrap();
    let request = |day: &str| DiffRequest {
        dataset: "daily".into(),
        transform: restitch::config::TransformRef::parse("customer-totals@1.1.0").unwrap(),
        start: day.into(),
        end: None,
        grant_payload: None,
        params: vec![],
        rows: 5,
    };
    for (name, run, hint) in [
        ("data/main/daily/r1/2026-05-01-r1-0.parquet", 2, "from a backup"),
        ("data/main/daily/r2/2026-05-01-r2-0.parquet", 2, "from a backup"),
        ("staging/r3/files/2026-05-02-r3-0.parquet", 3, "discard the run"),
    ] {
        with_damage(&lab.path("warehouse").join(name), |what| {
            let e = lab.open().diff_run(RunId(run), 5).unwrap_err();
            assert!(e.to_string().starts_with(&format!("the input is damaged: {name} ")) && e.to_string().contains(what), "{}", chain(&e));
            assert!(e.hint().unwrap().contains(hint), "{e}");
        });
        lab.open().diff_run(RunId(run), 5).unwrap();
    }
    with_damage(&lab.path("warehouse/data/main/daily/r2/2026-05-01-r2-0.parquet"), |_| {
        let e = lab.open().diff_versions(&request("2026-05-01"), &()).unwrap_err();
        assert!(e.to_string().starts_with("the input is damaged: data/main/daily/r2/2026-05-01-r2-0.parquet "), "{}", chain(&e));
        lab.open().diff_versions(&request("2026-05-02"), &()).unwrap();
    });
}

/// The component that was registered, offered again, takes the place of what is left of it.
#[test]
fn a_damaged_component_is_put_back_by_the_same_bytes() {
    let lab = lab();
    let stored = files(&lab.path("warehouse/transforms")).remove(0);
    let sound = std::fs::read(&stored).unwrap();
    std::fs::write(lab.path("same.wasm"), &sound).unwrap();
    std::fs::write(&stored, &sound[..100]).unwrap();
    assert_eq!(examine(&lab).bad.len(), 1);
    let replay = lab.replay(RunId(1)).unwrap_err();
    for e in [replay, Error::Unhealthy { problems: 1 }] {
        let hint = e.hint().unwrap();
        assert!(hint.contains("`restitch transform add` of the same file") && !hint.contains("removed first"), "{e}: {hint}");
    }
    assert_eq!(lab.open().add_transform(&lab.path("same.wasm")).unwrap().1, Added::PutBack);
    assert!(examine(&lab).healthy() && std::fs::read(&stored).unwrap() == sound);
}

#[test]
fn a_damaged_manifest_is_named_by_doctor_and_by_who_reads_it() {
    let lab = lab();
    rusqlite::Connection::open(lab.catalog()).unwrap().execute("UPDATE restitch_run SET manifest = '{}' WHERE run_id = 2", []).unwrap();
    let broken = examine(&lab).broken;
    assert!(broken.len() == 1 && broken[0].starts_with("run r2 has a manifest that is damaged, or of a newer release: missing field"), "{broken:?}");
    for error in [lab.open().runs(None, 10).err(), lab.open().show(RunId(2)).err()] {
        let text = chain(&error.unwrap());
        assert!(text.starts_with("the manifest of r2 in the catalog is damaged, or of a newer release: missing field"), "{text}");
    }
    assert_eq!(lab.open().runs(None, 1).unwrap().len(), 1);
}
