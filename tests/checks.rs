//! What checks say where they cannot be evaluated, at their very bounds, and when the key of a dataset changed.

use crate::support::{Lab, ORDERS, chain, component, order};
use restitch::{
    manifest::{CheckRecord, Kind, Manifest, Mode, Status, Validation},
    pipeline::{Error, RunRequest},
};

const DAY: Option<(&str, &str)> = Some(("2026-05-01", "2026-05-01"));

/// A row for each record, with these checks.
fn rows(key: &str, checks: &str) -> String {
    let dataset = ORDERS.split("checks = [").next().unwrap().replace("customer-totals@1.0.0", "clean-orders@1.0.0");
    format!("{}checks = [{checks}]\n", dataset.replace("key = [\"customer_id\"]\ndedup", &format!("key = [{key:?}]\ndedup")))
}

fn lab(toml: &str) -> Lab {
    let lab = Lab::new(toml);
    lab.open().add_transform(&component("clean-orders-1.0.0.wasm")).unwrap();
    lab
}

fn declare(lab: &Lab, toml: &str) {
    std::fs::write(lab.path("restitch.toml"), toml).unwrap();
}

/// Runs the day, whatever becomes of it, and returns what was written down.
fn attempt(lab: &Lab, request: RunRequest) -> (Manifest, Option<Error>) {
    let refused = lab.try_go(request).err();
    let run = lab.open().runs(Some("daily"), 1).unwrap().remove(0).manifest.run;
    (lab.open().show(run).unwrap().row.manifest, refused)
}

fn check<'m>(manifest: &'m Manifest, kind: &str) -> &'m CheckRecord {
    manifest.checks.iter().find(|c| c.kind == kind).unwrap_or_else(|| panic!("{kind}: {:?}", manifest.checks))
}

#[test]
fn a_balance_that_cannot_be_evaluated_has_failed_and_only_the_check() {
    let balance = |severity: &str| {
        let toml = rows("event_id", "{ kind = \"balance\", name = \"quotient\", input = \"SUM\", output = \"count(*)\", severity = \"SEVERITY\" }");
        toml.replace("SUM", "count(*) / count(*) filter (where customer_id = 'nobody')").replace("SEVERITY", severity)
    };
    let lab = lab(&balance("error"));
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "1"));
    let (manifest, refused) = attempt(&lab, Lab::request(Kind::Backfill, DAY));
    assert_eq!((manifest.status, check(&manifest, "balance").passed), (Status::Rejected, false));
    assert_eq!(check(&manifest, "balance").measured, "not evaluated: the query failed: division by zero");
    assert!(matches!(refused, Some(Error::Rejected { failed, .. }) if failed == ["quotient"]));
    for (severity, validation, measured) in [("error", Validation::Warn, true), ("warn", Validation::Block, true), ("error", Validation::Off, false)]
    {
        declare(&lab, &balance(severity));
        let manifest = lab.go(RunRequest { validation, ..Lab::request(Kind::Backfill, DAY) }).manifest.unwrap();
        assert_eq!((manifest.status, manifest.checks.len()), (Status::Published, usize::from(measured)), "{severity}");
        assert!(manifest.checks.iter().all(|c| !c.passed && c.severity == severity), "{:?}", manifest.checks);
    }
    // An argument that fails on one partition's rows says nothing of another's.
    let toml = balance("warn").replace("count(*) / count(*) filter (where customer_id = 'nobody')", "count(*) + sum(0 / cast(amount - 1 as bigint))");
    declare(&lab, &toml);
    lab.land("b.jsonl", order("e2", "2026-05-02T09:00:00Z", "A", "5"));
    let manifest = lab.backfill("2026-05-01", "2026-05-02");
    let balance = check(&manifest, "balance");
    assert_eq!((balance.passed, balance.measured.as_str()), (false, "1 of 2 partitions balance"));
    assert_eq!(balance.detail.as_deref(), Some("2026-05-01: not evaluated: the query failed: division by zero"));
}

#[test]
fn a_share_at_its_bound_passes_and_is_written_down_as_it_is() {
    let checks = |bound: &str| {
        format!(
            "{{ kind = \"row_count\", max_change = \"{bound}\" }}, {{ kind = \"compare\", max_removed = \"{bound}\", max_changed = \"0.0004%\" }}"
        )
    };
    let lab = lab(&rows("event_id", ""));
    let all: String = (0..1000).map(|n| order(&format!("e{n:03}"), "2026-05-01T09:00:00Z", "A", "1")).collect();
    lab.land("a.jsonl", all);
    lab.run();
    declare(&lab, &rows("event_id", &checks("0.7%")));
    let without = |few: &str| RunRequest { mode: Mode::DryRun, filter: Some(format!("event_id >= '{few}'")), ..Lab::request(Kind::Backfill, DAY) };
    let manifest = lab.go(without("e007")).manifest.unwrap();
    let said = |m: &Manifest| m.checks.iter().map(|c| format!("{}: {}", c.passed, c.expected)).collect::<Vec<_>>();
    assert_eq!(said(&manifest), ["true: change within 0.7%", "true: removed at most 0.7%, changed at most 0.0004%"]);
    let (manifest, refused) = attempt(&lab, without("e008"));
    assert_eq!(said(&manifest), ["false: change within 0.7%", "false: removed at most 0.7%, changed at most 0.0004%"]);
    assert!(matches!(refused, Some(Error::Rejected { .. })));
}

#[test]
fn rows_that_vanish_under_another_key_are_counted() {
    let lab = lab(&rows("event_id", ""));
    let all: String = (0..6).map(|n| order(&format!("e{n}"), "2026-05-01T09:00:00Z", "A", &n.to_string())).collect();
    lab.land("a.jsonl", all);
    lab.run();
    declare(&lab, &rows("customer_id", "{ kind = \"compare\", max_removed = \"50%\" }"));
    let one = || RunRequest { filter: Some("event_id = 'e0'".into()), ..Lab::request(Kind::Backfill, DAY) };
    let (manifest, refused) = attempt(&lab, one());
    assert!(matches!(refused, Some(Error::Rejected { .. })));
    assert_eq!(check(&manifest, "compare").measured, "of 6 rows: 0 added, 5 removed, 0 changed");
    let published = lab.go(RunRequest { validation: Validation::Warn, ..one() }).manifest.unwrap();
    let diff = lab.open().diff_run(published.run, 10).unwrap();
    let total = diff.total();
    assert_eq!((total.added, total.removed, total.changed, total.unchanged), (0, 5, 0, 1));
    assert_eq!((diff.rows.rows(), diff.notes.len()), (5, 1), "{:?}", diff.notes);
    let why = lab.open().why("daily", "2026-05-01", &[]).unwrap();
    let (_, last) = why.runs.last().unwrap();
    assert_eq!((last.added, last.removed, last.changed), (Some(0), Some(5), Some(0)));
}

#[test]
fn a_published_file_that_is_lost_is_named_with_the_way_out() {
    for damage in [false, true] {
        let lab = lab(&rows("event_id", ""));
        let all: String = (0..200).map(|n| order(&format!("e{n:03}"), "2026-05-01T09:00:00Z", "A", &n.to_string())).collect();
        lab.land("a.jsonl", all);
        let first = lab.run();
        let file = lab.path("warehouse").join(&first.partitions[0].files[0].path);
        if damage {
            let bytes = std::fs::read(&file).unwrap();
            std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
        } else {
            std::fs::remove_file(&file).unwrap();
        }
        lab.land("late.jsonl", order("f", "2026-05-01T10:00:00Z", "A", "1"));
        let error = lab.try_go(Lab::request(Kind::Backfill, DAY)).err().unwrap();
        let path = &first.partitions[0].files[0].path;
        let said = format!("{path} is gone or damaged, and partition 2026-05-01 is published in it: there is nothing to compare with");
        assert_eq!(chain(&error), said);
        assert!(error.hint().unwrap().contains("`restitch rollback r1 --partition 2026-05-01`"), "{:?}", error.hint());
        lab.open().rollback(first.run, false, None).unwrap();
        assert_eq!(lab.backfill("2026-05-01", "2026-05-01").partitions[0].rows, 201);
    }
}
