//! Versions of transforms: what another one would change, who made what, whether one repeats itself, where the time went.
//! Never compares with less than the rows: each figure here is worked out by hand.

use crate::support::{Lab, ORDERS, component, order};
use restitch::{
    config::TransformRef,
    manifest::{Kind, Mode, Status},
    pipeline::{Candidate, DiffRequest, Error, ErrorKind, RunRequest, TrialRequest, Trials},
    query::rows_json,
};

const NEW: &str = "customer-totals@1.1.0";

/// Two days, built with 1.0.0; 1.1.0 is there too, which leaves refunds out.
fn lab(toml: &str) -> Lab {
    let lab = Lab::new(toml);
    lab.open().add_transform(&component("customer-totals-1.1.0.wasm")).unwrap();
    let first = [order("e1", "2026-05-01T09:00:00Z", "A", "25"), order("e2", "2026-05-01T10:00:00Z", "A", "-5.50")].concat();
    let rest = [order("e3", "2026-05-01T11:00:00Z", "B", "-1"), order("e4", "2026-05-02T10:00:00Z", "A", "7")].concat();
    lab.land("a.jsonl", first + &rest);
    lab
}

fn reference(text: &str) -> TransformRef {
    TransformRef::parse(text).unwrap()
}

fn request(transform: &str) -> DiffRequest {
    let (start, end) = ("2026-05-01".into(), Some("2026-05-02".into()));
    DiffRequest { dataset: "daily".into(), transform: reference(transform), start, end, grant_payload: None, params: Vec::new(), rows: 10 }
}

#[test]
fn another_version_is_tried_on_the_very_input_of_what_is_published() {
    let lab = lab(ORDERS);
    lab.run();
    let before = lab.published();
    // Neither a later record nor a later parameter has a part in it.
    lab.land("late.jsonl", order("e9", "2026-05-01T12:00:00Z", "C", "1000"));
    let diff = lab.open().diff_versions(&request(NEW), &()).unwrap();
    let days: Vec<_> = diff.partitions.iter().map(|p| (p.partition.as_str(), p.rows_before, p.rows_now, p.difference)).collect();
    let difference = |removed, changed, unchanged| restitch::query::Difference { added: 0, removed, changed, unchanged };
    assert_eq!(days, [("2026-05-01", 2, 1, difference(1, 1, 0)), ("2026-05-02", 1, 1, difference(0, 0, 1))]);
    let columns: Vec<_> = diff.columns.iter().map(|c| (c.column.as_str(), c.changed, c.sums.clone())).collect();
    let sums = |before: &str, now: &str| Some((before.to_owned(), now.to_owned()));
    assert_eq!(columns, [("orders", Some(1), sums("4", "2")), ("total", Some(1), sums("25.50", "32.00")), ("currency", Some(0), None)]);
    let rows = rows_json(&diff.rows);
    assert_eq!((&rows[0]["customer_id"], &rows[0]["change"]), (&"A".into(), &"changed".into()));
    assert_eq!((&rows[0]["total.old"], &rows[0]["total.new"]), (&"19.50".into(), &"25.00".into()));
    assert_eq!((&rows[1]["customer_id"], &rows[1]["change"]), (&"B".into(), &"removed".into()));
    assert!(diff.before.starts_with("customer-totals@1.0.0 (") && diff.notes.is_empty(), "{diff:?}");
    assert_eq!((lab.published(), lab.open().runs(None, 10).unwrap().len()), (before, 1), "nothing was published or recorded");
    assert!(std::fs::read_dir(lab.path("warehouse/staging")).unwrap().flatten().all(|e| !e.path().is_dir()));
    // The same version gives the same rows; another parameter changes a column of text.
    let same = lab.open().diff_versions(&request("customer-totals@1.0.0"), &()).unwrap();
    assert_eq!((same.total(), same.rows.rows()), (difference(0, 0, 3), 0));
    let params = vec![("currency".to_owned(), "USD".to_owned())];
    let usd = lab.open().diff_versions(&DiffRequest { params, ..request("customer-totals@1.0.0") }, &()).unwrap();
    assert_eq!((usd.total(), usd.columns[2].changed), (difference(0, 3, 0), Some(3)));
    let early = DiffRequest { start: "2025-01-01".into(), end: None, ..request(NEW) };
    assert_eq!(lab.open().diff_versions(&early, &()).unwrap_err().kind(), ErrorKind::Usage);
}

#[test]
fn a_run_is_compared_with_what_stood_before_it_and_a_rollback_made_nothing() {
    let lab = lab(ORDERS);
    let first = lab.run();
    let diff = lab.open().diff_run(first.run, 10).unwrap();
    assert_eq!((diff.total().added, diff.total().changed), (3, 0));
    let transform = Some(reference(NEW));
    let validation = restitch::manifest::Validation::Off;
    let second = lab.go(RunRequest { transform, validation, ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01"))) }).manifest.unwrap();
    let diff = lab.open().diff_run(second.run, 10).unwrap();
    let total = diff.total();
    assert_eq!((total.added, total.removed, total.changed, total.unchanged), (0, 1, 1, 0));
    assert_eq!(diff.columns[1].sums, Some(("18.50".into(), "25.00".into())));
    let versions = lab.open().versions_of(Some("daily")).unwrap().remove(0);
    let made: Vec<_> = versions.made_by.iter().map(|m| (m.transform.as_str(), m.declared, m.partitions, m.first.as_str())).collect();
    assert_eq!(made, [(NEW, false, 1, "2026-05-01"), ("customer-totals@1.0.0", true, 1, "2026-05-02")]);
    assert_eq!(versions.commands(), ["restitch backfill daily --start 2026-05-01 --end 2026-05-01 --only stale"]);
    assert_eq!(versions.newer, Some(reference(NEW)));
    // What stands after the rollback was made by the first run, and is compared as its own.
    lab.open().rollback(second.run, false, None).unwrap();
    let diff = lab.open().diff_versions(&request(NEW), &()).unwrap();
    assert_eq!((diff.total().removed, diff.total().changed, diff.before.contains("1.0.0")), (1, 1, true));
    assert!(!lab.open().versions_of(None).unwrap()[0].is_outdated());
    // A dry run keeps no rows.
    let dry = lab.go(RunRequest { mode: Mode::DryRun, ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01"))) }).manifest.unwrap();
    assert_eq!(dry.status, Status::Done);
    assert_eq!(lab.open().diff_run(dry.run, 10).unwrap_err().to_string(), format!("run {} is a dry run, which keeps no rows", dry.run));
    let replay = lab.replay(first.run).unwrap().manifest.run;
    let e = lab.open().diff_run(replay, 10).unwrap_err();
    assert_eq!((e.kind(), e.to_string()), (ErrorKind::Usage, format!("run {replay} is a replay, which keeps no rows")));
    assert!(e.hint().unwrap().contains("names the run that it replayed"), "{e}");
}

/// A version that leaves out columns that cannot be null is refused before it is computed, in words that are so, and `diff` says it first.
#[test]
fn a_version_without_a_column_that_allows_no_null_is_told_so() {
    let toml = ORDERS.replace("customer-totals@1.0.0", "clean-orders@1.0.0").replace("key = [\"customer_id\"]", "key = [\"event_id\"]");
    let lab = lab(&(toml.split("checks = [").next().unwrap().to_owned() + "checks = []\n"));
    lab.open().add_transform(&component("clean-orders-1.0.0.wasm")).unwrap();
    lab.open().add_transform(&component("misbehave-batches-1.0.0.wasm")).unwrap();
    lab.run();
    let notes = lab.open().diff_versions(&request("misbehave-batches@1.0.0"), &()).unwrap().notes;
    let expected = [
        "new: batch; rows that are there already read null",
        "not given any more: customer_id, note",
        "not given any more: event_time, amount, where the table allows no null: such a version cannot be published into this table",
    ];
    assert_eq!(notes, expected);
    let transform = Some(reference("misbehave-batches@1.0.0"));
    let e = lab.try_go(RunRequest { transform, ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01"))) }).unwrap_err();
    assert_eq!(e.to_string(), "column event_time of daily allows no null in the published table, and the transform does not give it");
    assert!(e.kind() == ErrorKind::Usage && e.hint().unwrap().starts_with("let the new version give it"), "{e}");
}

#[test]
fn lookups_are_pinned_like_the_main_input() {
    let lab = Lab::new(&enriched());
    lab.open().add_transform(&component("enrich-orders-1.0.0.wasm")).unwrap();
    let customer = |country: &str, at: &str| format!("{{\"customer_id\":\"A\",\"country\":\"{country}\",\"since\":\"{at}\"}}\n");
    lab.try_land("customers", "c.jsonl", customer("DE", "2026-01-01T00:00:00Z")).unwrap();
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25"));
    let run = lab.run();
    lab.try_land("customers", "c2.jsonl", customer("FR", "2026-01-02T00:00:00Z")).unwrap();
    assert_eq!(lab.rows("select country from daily"), ["DE"]);
    assert!(lab.replay(run.run).unwrap().partitions.iter().all(|p| p.equal()));
    let diff = lab.open().diff_versions(&request("enrich-orders@1.0.0"), &()).unwrap();
    assert_eq!((diff.total().unchanged, diff.rows.rows()), (1, 0), "the lookup of then");
    let now = lab.go(RunRequest { mode: Mode::DryRun, ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01"))) }).manifest.unwrap();
    assert_eq!((now.partitions[0].added, now.partitions[0].removed), (Some(1), Some(1)), "a new run takes the lookup of now");
}

fn enriched() -> String {
    let customers = "[source.customers]\nformat = \"jsonl\"\nevent_time = \"since\"\nrecord_id = \"customer_id\"\nmax_future = \"400000h\"\n\
        [source.customers.columns]\ncustomer_id = { type = \"string\", nullable = false }\ncountry = { type = \"string\" }\n\
        since = { type = \"timestamp\", nullable = false }\n[dataset.daily]";
    let (toml, _) = ORDERS.split_once("checks = [").unwrap();
    toml.replace("[dataset.daily]", customers)
        .replace("customer-totals@1.0.0", "enrich-orders@1.0.0")
        .replace("key = [\"customer_id\"]", "key = [\"country\"]\nlookups = { customers = \"customers\" }")
}

#[test]
fn a_replay_that_differs_names_the_first_row() {
    let lab = lab(ORDERS);
    let run = lab.run();
    let catalog = rusqlite::Connection::open(lab.catalog()).unwrap();
    assert_eq!(catalog.execute("UPDATE restitch_run SET manifest = replace(manifest, '\"EUR\"', '\"USD\"')", []).unwrap(), 1);
    drop(catalog);
    let error = lab.replay(run.run).unwrap_err();
    let first = "first of all partition 2026-05-01, row customer_id = A: column currency was EUR and is USD";
    assert!(error.to_string().ends_with(first), "{error}");
    let proof = lab.open().verify(run.run, &()).unwrap();
    assert!(proof.failed.iter().any(|f| f == first), "{:?}", proof.failed);
    assert!(std::fs::read_dir(lab.path("warehouse/staging")).unwrap().flatten().all(|e| !e.path().is_dir()));
}

fn tried(lab: &Lab, candidate: Candidate) -> Result<Trials, Error> {
    let (start, end) = ("2026-05-01".into(), Some("2026-05-02".into()));
    let request = TrialRequest { candidate, dataset: "daily".into(), start, end, snapshot: None, grant_payload: None, params: Vec::new() };
    lab.open().try_out(&request, &())
}

#[test]
fn a_transform_that_repeats_itself_is_proven_and_another_one_caught() {
    // The key is the component's own.
    let lab = lab(&ORDERS.replace("key = [\"customer_id\"]\n", ""));
    let good = tried(&lab, Candidate::Registered(reference("customer-totals@1.0.0"))).unwrap();
    assert_eq!(good.differing().count(), 0, "{good:?}");
    assert_eq!((good.partitions, good.records, good.rows, good.trials.len()), (2, 4, 3, 11));
    // Not registered, and it stays so. In one batch all orders are of batch 0; in batches of one row they are not.
    let bad = tried(&lab, Candidate::File(component("misbehave-batches-1.0.0.wasm"))).unwrap();
    let failed: Vec<_> = bad.differing().map(|t| (t.what.as_str(), t.differing)).collect();
    assert_eq!(failed[0], ("batches of 1 row", 1), "{bad:?}");
    let first = "partition 2026-05-01, row event_id = e2: column batch was 0 and is 1";
    assert_eq!(bad.trials[1].difference.as_deref(), Some(first));
    assert_eq!(lab.open().transforms().unwrap().len(), 2);
    assert!(lab.open().runs(None, 10).unwrap().is_empty());
    assert!(tried(&lab, Candidate::File(lab.path("a.jsonl"))).is_err());
}

#[test]
fn the_parts_of_a_run_come_to_its_duration_times_its_workers() {
    let lab = lab(ORDERS);
    let run = lab.run();
    let of = |id| lab.open().show(id).unwrap().row.manifest.timings;
    for t in [of(run.run), of(lab.replay(run.run).unwrap().manifest.run)] {
        assert_eq!(t.workers, 2);
        assert!((t.busy_ms() + t.idle_ms - t.wall_ms * 2.0).abs() < 1e-6, "{t:?}");
        for part in [t.compile_ms, t.scan_ms, t.decode_ms, t.transform_ms, t.instantiate_ms, t.boundary_ms, t.write_ms] {
            assert!(part > 0.0, "{t:?}");
        }
        assert!(t.instantiate_ms + t.boundary_ms <= t.transform_ms, "{t:?}");
    }
    let staged = lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01"))) }).manifest.unwrap();
    let published = lab.open().publish(staged.run).unwrap().timings;
    assert!(published.publish_ms > 0.0 && published.wall_ms > staged.timings.wall_ms, "{published:?}");
    assert!((published.busy_ms() + published.idle_ms - published.wall_ms * 2.0).abs() < 1e-6, "{published:?}");
}
