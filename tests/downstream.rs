//! Datasets made of datasets: days into months, what makes them stale, cascades in order, pinned replays, publishing together.
//! Figures are held against a sum over the landed orders that no code of restitch made.

use crate::support::{Lab, ORDERS, Random, chain, component, copy, order};
use restitch::{
    config::TransformRef,
    id::RunId,
    manifest::{Kind, Manifest, Mode, Status},
    pipeline::{Error, ErrorKind, Outcome, Step},
    pipeline::RunRequest,
    publish::PublishError,
    store::Faults,
};
use std::{
    collections::{BTreeMap, BTreeSet},
    panic::{AssertUnwindSafe, catch_unwind},
};

/// The parts of restitch.toml before the datasets.
fn sources() -> &'static str {
    &ORDERS[..ORDERS.find("[dataset.daily]").unwrap()]
}

/// Orders, tidied by day; and sums of them by month.
fn months() -> String {
    sources().to_owned()
        + "[dataset.daily]\ninput = \"orders\"\ntransform = \"clean-orders@1.0.0\"\npartition = \"day\"\nkey = [\"event_id\"]\n\
           dedup = { key = [\"event_id\"] }\n\
           [dataset.monthly]\ninput = \"daily\"\ntransform = \"customer-totals@1.0.0\"\npartition = \"month\"\nkey = [\"customer_id\"]\n\
           checks = [{ kind = \"balance\", input = \"coalesce(sum(amount), 0)\", output = \"coalesce(sum(total), 0)\" }]\n"
}

fn lab(toml: &str) -> Lab {
    let lab = Lab::new(toml);
    lab.open().add_transform(&component("clean-orders-1.0.0.wasm")).unwrap();
    lab
}

fn request(kind: Kind, dataset: &str) -> RunRequest {
    RunRequest { dataset: dataset.into(), ..Lab::request(kind, None) }
}

fn run(lab: &Lab, dataset: &str) -> Manifest {
    lab.go(request(Kind::Run, dataset)).manifest.unwrap_or_else(|| panic!("nothing to do for {dataset}"))
}

/// A run and what follows it; each dataset with what became of it.
fn cascade(lab: &Lab, kind: Kind, dataset: &str) -> Vec<(String, String)> {
    let mut workshop = lab.open();
    let request = request(kind, dataset);
    let done = workshop.run(&request, &()).map_err(|e| chain(&e));
    let steps = workshop.cascade(&request, done.is_ok(), &mut |_, _| Box::new(()));
    steps.into_iter().map(told).collect()
}

fn told(step: Step) -> (String, String) {
    let became = match step.outcome {
        Outcome::Done(r) => r.manifest.map_or("up to date".into(), |m| m.partitions.iter().map(|p| p.partition.as_str()).collect::<Vec<_>>().join(" ")),
        Outcome::Failed(e) => chain(e.as_ref()),
        Outcome::Left { behind } => format!("left behind {behind}"),
    };
    (step.dataset, became)
}

fn steps(of: &[(&str, &str)]) -> Vec<(String, String)> {
    of.iter().map(|(d, w)| (d.to_string(), w.to_string())).collect()
}

/// Of each stale partition of a dataset, why it is.
fn stale(lab: &Lab, dataset: &str) -> Vec<String> {
    let status = lab.open().status(Some(dataset)).unwrap().1.remove(0);
    let words = |p: &restitch::pipeline::PartitionState| p.stale.iter().map(|s| format!("{}: {s}", p.published.partition)).collect::<Vec<_>>();
    status.partitions.iter().flat_map(words).collect()
}

/// Orders that were landed, as the test keeps them: by id, the last one counts.
#[derive(Default)]
struct Book(BTreeMap<String, (String, String, i64)>);

impl Book {
    fn land(&mut self, lab: &Lab, file: &str, orders: &[(&str, &str, &str, i64)]) {
        let lines: String = orders.iter().map(|(id, at, customer, euros)| order(id, at, customer, &euros.to_string())).collect();
        for (id, at, customer, euros) in orders {
            self.0.insert(id.to_string(), (at[..7].to_string(), customer.to_string(), *euros));
        }
        lab.land(file, lines);
    }

    /// month, customer, orders, total.
    fn months(&self) -> Vec<String> {
        let mut sums: BTreeMap<(String, String), (i64, i64)> = BTreeMap::new();
        for (month, customer, euros) in self.0.values() {
            let sum = sums.entry((month.clone(), customer.clone())).or_default();
            *sum = (sum.0 + 1, sum.1 + euros);
        }
        sums.iter().map(|((month, customer), (n, euros))| format!("{month} {customer} {n} {euros}.00")).collect()
    }
}

fn monthly(lab: &Lab) -> Vec<String> {
    lab.rows("select _partition, customer_id, orders, total from monthly order by 1, 2")
}

/// April and May: five orders, all of them built.
fn built() -> (Lab, Book) {
    let (lab, mut book) = (lab(&months()), Book::default());
    let april = [("e1", "2026-04-30T09:00:00Z", "A", 25), ("e2", "2026-04-30T10:00:00Z", "B", 10)];
    let may = [("e3", "2026-05-01T09:00:00Z", "A", 7), ("e4", "2026-05-03T09:00:00Z", "B", 5), ("e5", "2026-05-03T10:00:00Z", "A", 1)];
    book.land(&lab, "1.jsonl", &[&april[..], &may[..]].concat());
    run(&lab, "daily");
    (lab, book)
}

#[test]
fn days_become_months_and_a_corrected_day_makes_its_month_stale() {
    let (lab, mut book) = built();
    let plan = lab.open().plan(&request(Kind::Run, "monthly")).unwrap();
    assert_eq!((crate::support::names(&plan), plan.records(), plan.files), (vec!["2026-04".into(), "2026-05".into()], 5, 3));
    let first = run(&lab, "monthly");
    assert_eq!(monthly(&lab), book.months());
    let read: Vec<_> = first.upstream.iter().map(|u| (u.partition.as_str(), u.run.0, u.rows)).collect();
    assert_eq!(read, [("2026-04-30", 1, 2), ("2026-05-01", 1, 1), ("2026-05-03", 1, 2)]);
    assert!(lab.go(request(Kind::Run, "monthly")).manifest.is_none() && stale(&lab, "monthly").is_empty());
    // The last of May is to come: April is closed, as its days are, and May is not.
    let states = || lab.rows("select dataset, partition, state from restitch_partitions order by 1, 2");
    assert_eq!(states()[3..], ["monthly 2026-04 closed", "monthly 2026-05 open"]);

    book.land(&lab, "2.jsonl", &[("e3", "2026-05-01T09:00:00Z", "A", 70), ("e6", "2026-05-01T23:00:00Z", "C", 3)]);
    let plan = lab.open().plan(&request(Kind::Run, "monthly")).unwrap();
    assert_eq!((plan.partition_count(), plan.upstream.clone()), (0, vec!["daily 2026-05-01 is dirty".into()]));
    let repair = lab.go(request(Kind::Repair, "daily")).manifest.unwrap();
    let why = format!("2026-05: upstream daily 2026-05-01 was published by {} after this", repair.run);
    assert_eq!(stale(&lab, "monthly"), [why.as_str()]);
    let plan = lab.open().plan(&request(Kind::Run, "monthly")).unwrap();
    assert_eq!((crate::support::names(&plan), plan.stale.clone(), plan.ranges[0].reason.name()), (vec!["2026-05".into()], vec![why], "stale"));
    let second = run(&lab, "monthly");
    assert_eq!(monthly(&lab), book.months());
    assert!(stale(&lab, "monthly").is_empty());

    // Back to what it was computed from: April never changed, and May is stale again, by the rollback.
    let rollback = lab.open().rollback(repair.run, false, None).unwrap();
    assert_eq!(stale(&lab, "monthly"), [format!("2026-05: upstream daily 2026-05-01 was rolled back by {} after this", rollback.run)]);
    let third = run(&lab, "monthly");
    assert_eq!(third.partitions[0].checksum, first.partitions[1].checksum);
    // The same rows by another run make nothing stale: what was read is what is there.
    let day = RunRequest { start: Some("2026-05-03".into()), ..request(Kind::Backfill, "daily") };
    lab.go(day);
    assert!(stale(&lab, "monthly").is_empty());

    // Each run is computed again from what it read, whatever became of that since.
    for run in [&first, &second, &third] {
        assert!(lab.replay(run.run).unwrap().partitions.iter().all(|p| p.equal() && p.input_equal));
        let proof = lab.open().verify(run.run, &()).unwrap();
        assert!(proof.failed.is_empty() && proof.note.as_ref().is_some_and(|n| n.contains("of daily that r1")), "{proof:?}");
    }
    assert!(lab.open().doctor(false).unwrap().healthy());
}
