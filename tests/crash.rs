//! The process dies at every single change of files and catalog; afterwards readers see before or after, never a mixture.
//! A death is an unwinding at the n-th step that runs no clean-up: what is on disk is what a kill would leave.

use crate::support::{Lab, ORDERS, copy, order};
use restitch::{
    manifest::{Kind, Mode},
    pipeline::{Error, ReparseRequest, RollbackRequest, RunRequest},
    store::Faults,
};
use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
    path::Path,
};

/// A warehouse with two published days and a late record that waits.
fn prepared() -> Lab {
    let lab = Lab::new(ORDERS);
    lab.land("day1.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25") + &order("e2", "2026-05-01T10:00:00Z", "B", "10"));
    lab.land("day2.jsonl", order("e3", "2026-05-02T09:00:00Z", "A", "1"));
    lab.run();
    lab.land("late.jsonl", order("e4", "2026-05-01T11:00:00Z", "A", "5"));
    lab
}

fn files_below(folder: &Path, found: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            files_below(&path, found);
        } else {
            found.insert(path.file_name().unwrap().to_string_lossy().into_owned());
        }
    }
}

/// All that a reader can see.
fn seen(lab: &Lab) -> Vec<String> {
    let mut rows = lab.published();
    rows.extend(lab.rows("select * exclude (_file) from raw_orders order by _record_id, _seq"));
    rows.extend(lab.rows("select partition, dirty, checksum from restitch_partitions order by 1"));
    rows
}

/// Kills `act` at every step, and looks at what is left.
fn dies_at_every_step(act: impl Fn(&Lab) -> Result<(), Error>) -> usize {
    let original = prepared();
    let before = seen(&original);
    let mut after: Option<Vec<String>> = None;
    // The whole run first, to know what it leads to.
    for steps in std::iter::once(i64::MAX).chain(0..200) {
        let mut lab = Lab { folder: tempfile::tempdir().unwrap(), faults: Faults::default(), ..Lab::new(ORDERS) };
        copy(original.folder.path(), lab.folder.path());
        lab.open();
        lab.faults = Faults::after(steps);
        let died = catch_unwind(AssertUnwindSafe(|| act(&lab).unwrap())).is_err();
        lab.faults = Faults::default();
        let found = lab.open().findings.len();
        let now = seen(&lab);
        if steps == i64::MAX {
            assert!(!died && found == 0);
            after = Some(now);
            continue;
        }
        let goal = after.as_ref().unwrap();
        assert!(now == before || now == *goal, "step {steps}: a mixture: {now:?}");
        // Nothing is left over, and nothing that is referred to is missing.
        let mut on_disk = BTreeSet::new();
        files_below(&lab.path("warehouse/data"), &mut on_disk);
        let referred: BTreeSet<String> = referred_files(&lab);
        assert_eq!(on_disk, referred, "step {steps}");
        let mut staged = BTreeSet::new();
        files_below(&lab.path("warehouse/staging"), &mut staged);
        staged.retain(|n| !n.ends_with(".lock"));
        assert_eq!(staged, BTreeSet::new(), "step {steps}");
        assert_eq!(lab.rows("select count(*) from restitch_runs where status = 'running'"), ["0"], "step {steps}");
        // And the command can be given again.
        if now == before {
            act(&lab).unwrap();
        }
        assert_eq!(seen(&lab), *goal, "step {steps}");
        if !died {
            return steps as usize;
        }
    }
    panic!("more than 200 steps");
}

/// The file names that the catalog refers to, as DuckDB sees it.
fn referred_files(lab: &Lab) -> BTreeSet<String> {
    let rows = crate::interop::lake(["sql", &lab.catalog(), "SELECT path FROM __ducklake_metadata_lake.ducklake_data_file"]);
    rows.iter().map(|r| r["path"].as_str().unwrap().rsplit('/').next().unwrap().to_owned()).collect()
}

#[test]
fn an_ingest_that_dies_anywhere_lands_all_or_nothing() {
    let steps = dies_at_every_step(|lab| {
        let path = lab.path("more.jsonl");
        std::fs::write(&path, order("e5", "2026-05-02T10:00:00Z", "C", "2") + "not json\n").unwrap();
        lab.open().ingest("orders", &[path], None, &()).map(drop)
    });
    assert!(steps >= 8, "{steps}");
}

#[test]
fn a_repair_that_dies_anywhere_publishes_all_or_nothing() {
    let steps = dies_at_every_step(|lab| lab.try_go(Lab::request(Kind::Repair, None)).map(drop));
    assert!(steps >= 8, "{steps}");
}

#[test]
fn a_backfill_of_two_partitions_is_never_half_visible() {
    let window = Some(("2026-05-01", "2026-05-02"));
    let request = RunRequest { filter: Some("customer_id = 'A'".into()), ..Lab::request(Kind::Backfill, window) };
    dies_at_every_step(|lab| lab.try_go(request.clone()).map(drop));
}

/// The first day gets a row changed, the second comes out as it was and keeps its file.
#[test]
fn a_merge_that_dies_anywhere_publishes_all_or_nothing() {
    let request = RunRequest { mode: Mode::Merge, ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-02"))) };
    let steps = dies_at_every_step(|lab| lab.try_go(request.clone()).map(drop));
    assert!(steps >= 8, "{steps}");
}

#[test]
fn a_rollback_that_dies_anywhere_restores_all_or_nothing() {
    dies_at_every_step(|lab| lab.open().rollback(restitch::id::RunId(1), false, None).map(drop));
}

#[test]
fn a_rollback_of_one_partition_that_dies_anywhere_restores_it_or_nothing() {
    let (window, force, run) = (Some(("2026-05-02".into(), "2026-05-02".into())), false, restitch::id::RunId(1));
    let request = RollbackRequest { run, partitions: Vec::new(), window, force, reason: None };
    let steps = dies_at_every_step(|lab| lab.open().roll_back(&request).map(drop));
    assert!(steps >= 3, "{steps}");
}

#[test]
fn a_reparse_that_dies_anywhere_changes_all_or_nothing() {
    let steps = dies_at_every_step(|lab| {
        let later = "amount      = { type = \"decimal(18,2)\" }\nchannel = { type = \"string\", default = \"web\" }";
        std::fs::write(lab.path("restitch.toml"), ORDERS.replace("amount      = { type = \"decimal(18,2)\" }", later)).unwrap();
        let (start, end) = (Some("2026-05-01".into()), Some("2026-05-02".into()));
        let request = ReparseRequest { source: "orders".into(), start, end, dry_run: false, reason: None };
        lab.open().reparse(&request, &()).map(drop)
    });
    assert!(steps >= 8, "{steps}");
}
