//! Datasets made of datasets: days into months, what makes them stale, cascades in order, pinned replays, publishing together.
//! Figures are held against a sum over the landed orders that no code of restitch made.

use crate::support::{Lab, ORDERS, Random, chain, component, copy, order};
use restitch::{
    config::TransformRef,
    id::RunId,
    manifest::{Kind, Manifest, Mode, Status},
    pipeline::{Error, ErrorKind, Outcome, RunRequest, Step},
    plan::Reason,
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
        Outcome::Done(r) => {
            r.manifest.map_or("up to date".into(), |m| m.partitions.iter().map(|p| p.partition.as_str()).collect::<Vec<_>>().join(" "))
        }
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
    let sql = "SELECT state FROM __ducklake_metadata_lake.restitch_partitions WHERE dataset = 'monthly' ORDER BY partition";
    let seen = crate::interop::lake(["sql", &lab.catalog(), sql]);
    assert_eq!(seen.iter().map(|r| r["state"].as_str().unwrap()).collect::<Vec<_>>(), ["closed", "open"], "other engines read the view too");

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

    // DuckDB sums up the same from the other end.
    let sql =
        "SELECT strftime(event_time, '%Y-%m') AS month, customer_id, count(*) AS n, sum(amount) AS total FROM lake.daily GROUP BY ALL ORDER BY 1, 2";
    let rows = crate::interop::lake(["sql", &lab.catalog(), sql]);
    let text =
        |r: &serde_json::Value| ["month", "customer_id", "n", "total"].map(|c| r[c].as_str().map_or(r[c].to_string(), str::to_owned)).join(" ");
    assert_eq!(rows.iter().map(text).collect::<Vec<_>>(), monthly(&lab));
    // Each run is computed again from what it read, whatever became of that since.
    for run in [&first, &second, &third] {
        assert!(lab.replay(run.run).unwrap().partitions.iter().all(|p| p.equal() && p.input_equal));
        let proof = lab.open().verify(run.run, &()).unwrap();
        assert!(proof.failed.is_empty() && proof.note.as_ref().is_some_and(|n| n.contains("of daily that r1")), "{proof:?}");
    }
    assert!(lab.open().doctor(false).unwrap().healthy());
}

/// A chain (clean by day, again by month, sums by year) and a diamond: two datasets of one, and one of both.
fn wide() -> String {
    let clean = |name: &str, input: &str, grain: &str| {
        format!("[dataset.{name}]\ninput = \"{input}\"\ntransform = \"clean-orders@1.0.0\"\npartition = \"{grain}\"\nkey = [\"event_id\"]\n")
    };
    let sums = |name: &str, input: &str, grain: &str| {
        format!("[dataset.{name}]\ninput = {input}\ntransform = \"customer-totals@1.0.0\"\npartition = \"{grain}\"\nkey = [\"customer_id\"]\n")
    };
    // In an order of the file that is not theirs.
    sources().to_owned()
        + &sums("yearly", "[\"left\", \"right\"]", "year")
        + &clean("right", "daily", "day")
        + &clean("left", "daily", "month")
        + &clean("daily", "orders", "day")
        + "dedup = { key = [\"event_id\"] }\n"
        + &sums("other", "\"orders\"", "day")
}

#[test]
fn a_cascade_goes_through_a_diamond_in_order_and_stops_behind_what_fails() {
    let (lab, mut book) = (lab(&wide()), Book::default());
    book.land(&lab, "1.jsonl", &[("e1", "2026-04-30T09:00:00Z", "A", 25), ("e2", "2026-05-01T10:00:00Z", "B", 10)]);
    let first = cascade(&lab, Kind::Run, "daily");
    assert_eq!(first, steps(&[("right", "2026-04-30 2026-05-01"), ("left", "2026-04 2026-05"), ("yearly", "2026")]));
    // Both sides have each order, so the year has it twice.
    let yearly = || lab.rows("select customer_id, orders, total from yearly order by 1");
    assert_eq!(yearly(), ["A 2 50.00", "B 2 20.00"]);
    assert_eq!(cascade(&lab, Kind::Run, "daily"), steps(&[("right", "up to date"), ("left", "up to date"), ("yearly", "up to date")]));
    // Rows of one instant come from `left` first, as the input names them; in one task, in many and streamed alike.
    let last = lab.open().runs(Some("yearly"), 1).unwrap().remove(0).manifest;
    for (workers, memory_bytes) in [(1, 64 << 20), (4, 64), (2, 1 << 20)] {
        let other = Lab { folder: tempfile::tempdir().unwrap(), workers, memory_bytes, faults: Faults::default(), now: lab.now };
        copy(lab.folder.path(), other.folder.path());
        assert!(other.replay(last.run).unwrap().partitions.iter().all(|p| p.equal() && p.input_equal), "{workers} {memory_bytes}");
    }

    book.land(&lab, "2.jsonl", &[("e3", "2026-05-01T11:00:00Z", "A", 1)]);
    assert_eq!(cascade(&lab, Kind::Run, "daily"), steps(&[("right", "2026-05-01"), ("left", "2026-05"), ("yearly", "2026")]));
    assert_eq!(yearly(), ["A 4 52.00", "B 2 20.00"]);

    // One side fails: the other goes on, and what is made of both is left.
    let broken = wide().replace("[dataset.right]", "[dataset.right]\nchecks = [{ kind = \"row_count\", max = 0 }]");
    std::fs::write(lab.path("restitch.toml"), broken).unwrap();
    book.land(&lab, "3.jsonl", &[("e4", "2026-04-30T11:00:00Z", "B", 2)]);
    let went = cascade(&lab, Kind::Repair, "daily");
    assert_eq!((went[0].0.as_str(), &went[1..]), ("right", &steps(&[("left", "2026-04"), ("yearly", "left behind right")])[..]), "{went:?}");
    assert!(went[0].1.contains("was rejected: row_count failed"), "{went:?}");
    // The named run fails: nothing behind it is run.
    let nothing = wide().replace("[dataset.daily]", "[dataset.daily]\nchecks = [{ kind = \"row_count\", max = 0 }]");
    std::fs::write(lab.path("restitch.toml"), nothing).unwrap();
    book.land(&lab, "4.jsonl", &[("e5", "2026-04-30T12:00:00Z", "B", 2)]);
    let went = cascade(&lab, Kind::Repair, "daily");
    assert!(went.iter().all(|(_, w)| w == "left behind daily"), "{went:?}");
    // Mended, all of it is caught up with by one command.
    std::fs::write(lab.path("restitch.toml"), wide()).unwrap();
    cascade(&lab, Kind::Repair, "daily");
    assert_eq!(yearly(), ["A 4 52.00", "B 6 28.00"]);
}

#[test]
fn a_partition_whose_settings_changed_is_stale_and_says_which() {
    let (lab, _) = built();
    run(&lab, "monthly");
    let toml = months();
    let declare = |from: &str, to: &str| std::fs::write(lab.path("restitch.toml"), toml.replacen(from, to, 1)).unwrap();
    let of = |dataset: &str| stale(&lab, dataset).into_iter().map(|s| s[s.find(": ").unwrap() + 2..].to_owned()).collect::<BTreeSet<_>>();
    let words = |w: &str| BTreeSet::from([w.to_owned()]);
    declare("transform = \"customer-totals@1.0.0\"", "transform = \"customer-totals@1.0.0\"\nparams = { currency = \"USD\" }");
    assert_eq!(of("monthly"), words("the parameter currency was \"EUR\" and is \"USD\""));
    assert_eq!(of("daily"), BTreeSet::new());
    // What only says the default changes nothing.
    declare("transform = \"customer-totals@1.0.0\"", "transform = \"customer-totals@1.0.0\"\nparams = { currency = \"EUR\" }");
    assert_eq!(of("monthly"), BTreeSet::new());
    declare("dedup = { key = [\"event_id\"] }", "dedup = { key = [\"event_id\"], keep = \"first_ingested\" }");
    let keep = |k: &str| format!("(event_id), keep {k}, on conflict count");
    assert_eq!(of("daily"), words(&format!("dedup was {} and is {}", keep("latest_ingested"), keep("first_ingested"))));
    declare("dedup = { key = [\"event_id\"] }\n", "");
    assert_eq!(of("daily"), words(&format!("dedup was {} and is none", keep("latest_ingested"))));
    declare("key = [\"event_id\"]", "key = [\"event_time\", \"event_id\"]");
    assert_eq!(of("daily"), words("key was (event_id) and is (event_time, event_id)"));
    // `run` leaves it alone, a backfill of what is stale takes it, and then it is as declared.
    assert!(lab.go(request(Kind::Run, "daily")).manifest.is_none());
    let window = Some(("2026-04-30", "2026-05-03"));
    let only = RunRequest { only: Some(restitch::plan::Reason::Stale), ..Lab::request(Kind::Backfill, window) };
    assert_eq!(lab.go(only.clone()).manifest.unwrap().partitions.len(), 3);
    assert_eq!(of("daily"), BTreeSet::new());
    assert!(lab.go(only.clone()).manifest.is_none());
    // A filter, or a parameter of one command, is not what is declared.
    let day = Some(("2026-05-01", "2026-05-01"));
    lab.go(RunRequest { filter: Some("customer_id = 'A'".into()), ..Lab::request(Kind::Backfill, day) });
    assert_eq!(of("daily"), words("filter was \"customer_id = 'A'\" and is none"));
    let filtered = lab.open().runs(Some("daily"), 1).unwrap().remove(0).manifest.run;
    lab.open().rollback(filtered, false, None).unwrap();
    assert_eq!(of("daily"), BTreeSet::new(), "a rollback brings back what the rows were made with");
    // Rows of two settings are of neither.
    declare("transform = \"clean-orders@1.0.0\"", "transform = \"clean-orders@1.0.0\"\nparams = { default_amount_cents = 5 }");
    let merge =
        RunRequest { mode: Mode::Merge, filter: Some("event_id = 'e5'".into()), ..Lab::request(Kind::Backfill, Some(("2026-05-03", "2026-05-03"))) };
    lab.go(merge);
    let both: BTreeSet<String> = [
        "its rows were made with several settings",
        "the parameter default_amount_cents was \"0\" and is \"5\"",
        "key was (event_time, event_id) and is (event_id)",
    ]
    .map(str::to_owned)
    .into();
    assert!(of("daily").is_subset(&both) || of("daily").iter().any(|w| w.contains("several settings")), "{:?}", of("daily"));
    assert!(of("daily").contains("its rows were made with several settings"), "{:?}", of("daily"));
}

/// Weeks do not lie in months: the time of each row decides, and a row without a place is refused.
#[test]
fn where_partitions_do_not_nest_the_time_column_decides() {
    let weeks = months().replace("partition = \"day\"", "partition = \"week\"\ntime_column = \"event_time\"");
    let (lab, mut book) = (lab(&weeks), Book::default());
    // One ISO week holds the end of April and the beginning of May.
    let orders = [
        ("e1", "2026-04-27T09:00:00Z", "A", 25),
        ("e2", "2026-04-30T23:59:59Z", "B", 10),
        ("e3", "2026-05-01T00:00:00Z", "A", 7),
        ("e4", "2026-05-04T00:00:00Z", "A", 2),
    ];
    book.land(&lab, "1.jsonl", &orders);
    run(&lab, "daily");
    assert_eq!(lab.rows("select distinct _partition from daily order by 1"), ["2026-W18", "2026-W19"]);
    let first = run(&lab, "monthly");
    assert_eq!(monthly(&lab), book.months());
    assert_eq!(first.partitions.iter().map(|p| p.records).collect::<Vec<_>>(), [2, 2]);
    assert!(lab.replay(first.run).unwrap().partitions.iter().all(|p| p.equal()));
    // The week makes both months stale, the other one only May.
    book.land(&lab, "2.jsonl", &[("e5", "2026-04-30T01:00:00Z", "C", 1)]);
    lab.go(request(Kind::Repair, "daily"));
    assert_eq!(stale(&lab, "monthly").len(), 2);
    run(&lab, "monthly");
    assert_eq!(monthly(&lab), book.months());
    // A delete-insert of a month's first days reads the rows of these days.
    let window =
        RunRequest { dataset: "monthly".into(), mode: Mode::DeleteInsert, ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01"))) };
    assert_eq!(lab.try_go(window).unwrap_err().kind(), ErrorKind::Usage, "monthly has no time_column of its own");
}

/// What another tool did to an input is no run's, and is not read as if it were.
#[test]
fn an_input_that_another_tool_replaced_is_refused_until_it_is_written_anew() {
    let (lab, book) = built();
    let catalog = rusqlite::Connection::open(lab.catalog()).unwrap();
    let sql = "UPDATE ducklake_data_file SET path = path || '.other' WHERE data_file_id = (SELECT max(data_file_id) FROM ducklake_data_file)";
    assert_eq!(catalog.execute(sql, []).unwrap(), 1);
    drop(catalog);
    let e = lab.try_go(request(Kind::Run, "monthly")).unwrap_err();
    assert_eq!((e.to_string().as_str(), e.kind()), ("files of partition 2026-05-03 of daily were replaced by another tool", ErrorKind::Conflict));
    lab.go(RunRequest { start: Some("2026-05-03".into()), ..request(Kind::Backfill, "daily") });
    run(&lab, "monthly");
    assert_eq!(monthly(&lab), book.months());
}

/// A file of an input that rotted is found before its rows go anywhere.
#[test]
fn a_damaged_input_publishes_nothing_and_a_replay_says_so() {
    let (lab, _) = built();
    let first = run(&lab, "monthly");
    let file = lab.path("warehouse").join(&first.upstream[0].files[0].path);
    let mut bytes = std::fs::read(&file).unwrap();
    let at = bytes.len() / 2;
    bytes[at] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    let april = RunRequest { start: Some("2026-04".into()), ..request(Kind::Backfill, "monthly") };
    for e in [lab.try_go(april).unwrap_err(), lab.replay(first.run).unwrap_err()] {
        assert!(matches!(&e, Error::Input { bad } if bad.path == first.upstream[0].files[0].path), "{e}");
    }
    assert_eq!(lab.rows("select run from restitch_partitions where dataset = 'monthly'"), ["r2", "r2"]);
}

/// Staged runs of two datasets: both or neither.
#[test]
fn two_datasets_are_published_in_one_transaction_or_not_at_all() {
    let (lab, mut book) = built();
    run(&lab, "monthly");
    let staged = |dataset: &str, start: &str| {
        let window = (Some(start.into()), Some(start.into()));
        let request = RunRequest { mode: Mode::Stage, start: window.0, end: window.1, ..request(Kind::Backfill, dataset) };
        lab.go(request).manifest.unwrap().run
    };
    book.land(&lab, "2.jsonl", &[("e6", "2026-05-01T23:00:00Z", "C", 3)]);
    let snapshots = || lab.rows("select max(snapshot_id) from ducklake_snapshot");
    // All that is wrong with each is said at once.
    let (day, month) = (staged("daily", "2026-05-01"), staged("monthly", "2026-05"));
    let before = snapshots();
    let e = lab.open().publish_together(&[day, RunId(1), RunId(99)]).unwrap_err();
    assert_eq!(e.to_string(), "nothing was published: r1: run r1 is published, not staged; r99: there is no run r99");
    assert_eq!((e.kind(), snapshots() == before), (ErrorKind::Usage, true));
    let twice = staged("daily", "2026-05-03");
    let e = lab.open().publish_together(&[day, twice]).unwrap_err();
    assert!(e.to_string().ends_with(&format!("{twice}: {day} is a run of daily too, and one snapshot has one run of a dataset")), "{e}");
    // The month changed meanwhile: neither is published, and both still wait.
    lab.go(RunRequest { start: Some("2026-05".into()), params: vec![("currency".into(), "USD".into())], ..request(Kind::Backfill, "monthly") });
    let before = (snapshots(), lab.rows("select checksum from restitch_partitions order by 1"));
    let e = lab.open().publish_together(&[day, month]).unwrap_err();
    assert!(matches!(&e, Error::Publish(PublishError::Conflict { dataset, .. }) if dataset == "monthly"), "{e}");
    assert_eq!((snapshots(), lab.rows("select checksum from restitch_partitions order by 1")), before);
    assert!([day, month].iter().all(|r| lab.open().show(*r).unwrap().row.manifest.status == Status::Staged));
    // Without a conflict, one snapshot shows both.
    let month = staged("monthly", "2026-05");
    let done = lab.open().publish_together(&[day, month]).unwrap();
    assert_eq!((done[0].published_snapshot, &done[0].together), (done[1].published_snapshot, &vec![month]));
    assert_eq!(lab.open().show(month).unwrap().row.manifest.together, [day]);
    assert!(lab.open().doctor(false).unwrap().healthy());
    // The month was staged before that day was published: it is stale, and the next run makes it right.
    assert_eq!(stale(&lab, "monthly").len(), 1);
    run(&lab, "monthly");
    assert_eq!(monthly(&lab), book.months());
    // Both are undone one by one, like any run.
    lab.open().rollback(day, false, None).unwrap();
    assert_eq!(lab.rows("select count(*) from daily where event_id = 'e6'"), ["0"]);
}

#[test]
fn a_cascade_or_a_double_publication_that_dies_anywhere_leaves_whole_datasets() {
    let (original, _) = built();
    run(&original, "monthly");
    original.land("2.jsonl", order("e6", "2026-05-01T23:00:00Z", "C", "3"));
    let stage = |kind, dataset: &str, start: Option<&str>| {
        let window = (start.map(str::to_owned), start.map(str::to_owned));
        original.go(RunRequest { mode: Mode::Stage, start: window.0, end: window.1, ..request(kind, dataset) }).manifest.unwrap().run
    };
    let (day, month) = (stage(Kind::Backfill, "daily", Some("2026-05-01")), stage(Kind::Backfill, "monthly", Some("2026-04")));
    let checksums =
        |lab: &Lab, dataset: &str| lab.rows(&format!("select run, checksum from restitch_partitions where dataset = '{dataset}' order by partition"));
    type Act<'a> = (&'a str, &'a dyn Fn(&Lab));
    let acts: [Act; 2] = [
        ("cascade", &|lab| drop(cascade(lab, Kind::Repair, "daily"))),
        ("together", &|lab| drop(lab.open().publish_together(&[day, month]).unwrap())),
    ];
    for (name, act) in acts {
        let mut seen: BTreeSet<(bool, bool)> = BTreeSet::new();
        for steps in 0..400 {
            let mut lab = Lab { folder: tempfile::tempdir().unwrap(), faults: Faults::default(), ..Lab::new(&months()) };
            copy(original.folder.path(), lab.folder.path());
            lab.open();
            lab.faults = Faults::after(steps);
            let died = catch_unwind(AssertUnwindSafe(|| act(&lab))).is_err();
            lab.faults = Faults::default();
            let changed = |dataset: &str| checksums(&lab, dataset) != checksums(&original, dataset);
            let now = (changed("daily"), changed("monthly"));
            assert!(lab.open().doctor(false).unwrap().broken.is_empty());
            if name == "together" {
                assert_eq!(now.0, now.1, "step {steps}: one without the other");
            } else {
                assert!(now.0 || !now.1, "step {steps}: the month before its day");
            }
            seen.insert(now);
            if !died {
                break;
            }
            // Whatever there is: the command given again comes to the end of it.
            if name == "cascade" {
                cascade(&lab, Kind::Repair, "daily");
                assert_eq!(monthly(&lab)[2..], ["2026-05 A 2 8.00", "2026-05 B 1 5.00", "2026-05 C 1 3.00"], "step {steps}");
            }
        }
        let all: BTreeSet<(bool, bool)> =
            if name == "cascade" { [(false, false), (true, false), (true, true)].into() } else { [(false, false), (true, true)].into() };
        assert_eq!(seen, all, "{name}");
    }
}

#[test]
fn gc_keeps_what_a_version_that_stays_was_computed_from() {
    let (lab, _) = built();
    let first = run(&lab, "monthly");
    let again = |n: usize| lab.land(&format!("again{n}.jsonl"), order(&format!("x{n}"), "2026-05-01T11:00:00Z", "A", "1"));
    again(1);
    lab.go(request(Kind::Repair, "daily"));
    again(2);
    lab.go(request(Kind::Repair, "daily"));
    let collect = || {
        let shown = lab.open().garbage(Some(1)).unwrap();
        lab.open().collect(Some(1), &shown).unwrap();
        shown
    };
    // The month still stands on the first version of the day; the second nobody needs.
    let shown = collect();
    assert_eq!(shown.files.len(), 1);
    assert!(shown.kept.iter().any(|k| k.name == "daily" && k.why == format!("{} was computed from it", first.run)), "{:?}", shown.kept);
    assert!(lab.replay(first.run).unwrap().partitions.iter().all(|p| p.equal()));
    assert!(lab.open().doctor(false).unwrap().healthy());
    // Refreshed, it does not: and a replay of what was says who removed it.
    run(&lab, "monthly");
    collect();
    let e = lab.replay(first.run).unwrap_err();
    assert!(matches!(e, Error::BaseGone { .. }), "{e}");
    assert!(
        e.to_string().contains("it read rows of partition 2026-05-01 of daily that r1 had published")
            && e.to_string().contains("by gc (keep 1, tester)"),
        "{e}"
    );
    assert!(lab.open().doctor(false).unwrap().healthy());
}

/// A cascade that was interrupted is given again; a record that waits for somebody's word does not keep what is published from going on.
#[test]
fn a_repair_with_nothing_left_but_what_waits_goes_on_downstream() {
    let (lab, mut book) = (lab(&months()), Book::default());
    book.land(&lab, "1.jsonl", &[("e1", "2026-05-01T09:00:00Z", "A", 25), ("e2", "2026-05-20T10:00:00Z", "B", 10)]);
    cascade(&lab, Kind::Run, "daily");
    lab.land("2.jsonl", order("e3", "2026-05-01T10:00:00Z", "A", "5") + &order("e4", "2026-05-18T10:00:00Z", "A", "7"));
    lab.go(request(Kind::Repair, "daily"));
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_restitch"));
    let out = command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now, "repair", "daily", "--cascade"]).output().unwrap();
    assert_eq!(out.status.code(), Some(5), "{out:?}");
    assert_eq!(lab.rows("select customer_id, total from monthly order by 1"), ["A 32.00", "B 10.00"]);
}

/// The last partition of time has none after it.
#[test]
fn the_last_month_of_time_is_made_of_its_last_day() {
    let (lab, mut book) = (lab(&months()), Book::default());
    book.land(&lab, "1.jsonl", &[("e1", "2026-05-01T09:00:00Z", "A", 25), ("e2", "9999-12-31T23:00:00Z", "B", 10)]);
    lab.go(RunRequest { dataset: "daily".into(), ..Lab::request(Kind::Backfill, Some(("9999-12-31", "9999-12-31"))) });
    let run = lab.go(RunRequest { dataset: "monthly".into(), ..Lab::request(Kind::Backfill, Some(("9999-12", "9999-12"))) });
    assert_eq!(run.manifest.unwrap().partitions[0].rows, 1);
}

/// A consumer asks the view: as long as one of the inputs was never published, it is complete to no time.
#[test]
fn a_dataset_without_one_of_its_inputs_is_open() {
    let (lab, mut book) = (lab(&wide()), Book::default());
    book.land(&lab, "1.jsonl", &[("e1", "2026-05-01T09:00:00Z", "A", 25), ("e2", "2027-06-01T10:00:00Z", "B", 10)]);
    let states = || lab.rows("select partition, state from restitch_partitions where dataset = 'yearly' order by 1");
    for dataset in ["daily", "left", "yearly"] {
        run(&lab, dataset);
    }
    assert!(!states().is_empty() && states().iter().all(|row| row.ends_with("open")), "{:?}", states());
    run(&lab, "right");
    assert!(states()[0].ends_with("final"), "{:?}", states());
}

/// Rows that a rollback brought back stand on what they were computed from, as long as they stand.
#[test]
fn gc_keeps_what_rows_that_came_back_were_computed_from() {
    let (lab, _) = built();
    let first = run(&lab, "monthly");
    lab.land("again.jsonl", order("x1", "2026-05-01T11:00:00Z", "A", "1"));
    lab.go(request(Kind::Repair, "daily"));
    let second = run(&lab, "monthly");
    let back = lab.open().rollback(second.run, false, None).unwrap();
    assert!(back.upstream.iter().any(|u| u.partition == "2026-05-01"), "{:?}", back.upstream);
    let shown = lab.open().garbage(Some(1)).unwrap();
    lab.open().collect(Some(1), &shown).unwrap();
    assert!(lab.replay(first.run).unwrap().partitions.iter().all(|p| p.equal()));
    assert!(lab.open().doctor(false).unwrap().healthy());
}

/// After anything at all, a cascade comes to what a rebuild from nothing has.
#[test]
fn after_random_history_a_cascade_comes_to_the_checksums_of_a_rebuild() {
    let rounds: u64 = std::env::var("RESTITCH_CASCADE_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(3);
    for seed in 1..=rounds {
        let mut random = Random(seed * 7919);
        let (lab, mut files) = (lab(&wide()), Vec::new());
        for step in 0..14 {
            match random.below(6) {
                0..=2 => {
                    let lines: String = (0..1 + random.below(4))
                        .map(|_| {
                            let (id, day, hour) = (random.below(12), 1 + random.below(9), random.below(24));
                            let at = format!("2026-0{}-0{day}T{hour:02}:00:00Z", 4 + id % 2);
                            order(&format!("e{id}"), &at, ["A", "B", "C"][random.below(3)], &random.below(100).to_string())
                        })
                        .collect();
                    files.push(lines.clone());
                    lab.land(&format!("{step}.jsonl"), lines);
                }
                3 => drop(lab.try_go(request(Kind::Repair, "daily"))),
                4 => drop(cascade(&lab, Kind::Run, "daily")),
                _ => {
                    let runs = lab.open().runs(None, 20).unwrap();
                    let published: Vec<RunId> = runs
                        .iter()
                        .filter(|r| r.manifest.status == Status::Published && r.manifest.kind != Kind::Rollback)
                        .map(|r| r.manifest.run)
                        .collect();
                    if !published.is_empty() {
                        drop(lab.open().rollback(published[random.below(published.len())], false, None));
                    }
                }
            }
        }
        // What is old and late needs a word, which naming the range is.
        lab.try_go(RunRequest { dataset: "daily".into(), ..Lab::request(Kind::Backfill, Some(("2026-04-01", "2026-05-31"))) }).ok();
        cascade(&lab, Kind::Run, "daily");
        // So does what a rollback took away, of each dataset.
        for (dataset, start, end) in [("left", "2026-04", "2026-05"), ("right", "2026-04-01", "2026-05-31"), ("yearly", "2026", "2026")] {
            let missing = RunRequest { only: Some(Reason::Missing), ..Lab::request(Kind::Backfill, Some((start, end))) };
            lab.go(RunRequest { dataset: dataset.into(), ..missing });
            cascade(&lab, Kind::Run, dataset);
        }
        let fresh = Lab::new(&wide());
        fresh.open().add_transform(&component("clean-orders-1.0.0.wasm")).unwrap();
        for (i, lines) in files.iter().enumerate() {
            fresh.land(&format!("{i}.jsonl"), lines);
        }
        fresh.try_go(RunRequest { dataset: "daily".into(), ..Lab::request(Kind::Backfill, Some(("2026-04-01", "2026-05-31"))) }).ok();
        cascade(&fresh, Kind::Run, "daily");
        let all = |lab: &Lab| lab.rows("select dataset, partition, checksum from restitch_partitions order by 1, 2");
        assert_eq!(all(&lab), all(&fresh), "seed {seed}");
        assert!(cascade(&lab, Kind::Run, "daily").iter().all(|(_, w)| w == "up to date"));
        assert!(lab.open().doctor(false).unwrap().healthy());
    }
}

/// Another version of a transform is tried on the rows that the published ones were made of.
#[test]
fn a_version_is_tried_on_pinned_rows_and_a_transform_proven_on_them() {
    let (lab, _) = built();
    lab.open().add_transform(&component("customer-totals-1.1.0.wasm")).unwrap();
    run(&lab, "monthly");
    lab.land("2.jsonl", order("e6", "2026-05-01T23:00:00Z", "C", "3"));
    lab.go(request(Kind::Repair, "daily"));
    let reference = TransformRef::parse("customer-totals@1.1.0").unwrap();
    let request = restitch::pipeline::DiffRequest {
        dataset: "monthly".into(),
        transform: reference.clone(),
        start: "2026-04".into(),
        end: Some("2026-05".into()),
        grant_payload: None,
        params: vec![],
        rows: 10,
    };
    assert_eq!(lab.open().diff_versions(&request, &()).unwrap().total().unchanged, 4);
    let trial = restitch::pipeline::TrialRequest {
        candidate: restitch::pipeline::Candidate::Registered(reference),
        dataset: "monthly".into(),
        start: "2026-04".into(),
        end: Some("2026-05".into()),
        snapshot: None,
        grant_payload: None,
        params: vec![],
    };
    let trials = lab.open().try_out(&trial, &()).unwrap();
    assert_eq!((trials.differing().count(), trials.records, trials.rows), (0, 6, 5));
}

/// Runs the commands of a page, each with the lines below it looked for in what it says.
#[test]
fn the_commands_of_the_page_do_what_it_says() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/downstream.md")).unwrap();
    let example = std::fs::read_to_string(root.join("examples/late_orders/restitch.toml")).unwrap();
    let block = |kind: &str| page.split(&format!("```{kind}\n")).skip(1).map(|b| b.split("```").next().unwrap().to_owned()).collect::<Vec<_>>();
    let folder = tempfile::tempdir().unwrap();
    let toml = example[..example.find("# What each customer").unwrap()].to_owned() + &block("toml")[0];
    std::fs::write(folder.path().join("restitch.toml"), toml).unwrap();
    copy(&root.join("examples/late_orders/data"), &folder.path().join("data"));
    for file in ["clean-orders-1.0.0.wasm", "customer-totals-1.0.0.wasm"] {
        std::fs::copy(component(file), folder.path().join(file)).unwrap();
    }
    let squeeze = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mut commands = 0;
    for step in block("console").join("").split("$ restitch ").skip(1) {
        let mut lines = step.lines();
        let words = lines.next().unwrap();
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_restitch"));
        let out = command.current_dir(folder.path()).args(["--now", "2026-05-03T12:00:00Z"]).args(words.split(' ')).output().unwrap();
        let said = squeeze(&format!("{} {}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)));
        assert_eq!(out.status.success(), !step.contains("Error: "), "{words}: {said}");
        for line in lines.filter(|l| !l.trim().is_empty()) {
            assert!(said.contains(&squeeze(line)), "{words}: {line:?} is not in {said}");
        }
        commands += 1;
    }
    assert!(commands > 12, "{commands}");
}

/// What is printed, as a program reads it, and the exit codes.
#[test]
fn the_command_says_what_became_of_each_dataset() {
    let (lab, _) = built();
    let json = |words: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_restitch"));
        let out = command.arg("-C").arg(lab.folder.path()).args(["--json", "--now", lab.now]).args(words.split(' ')).output().unwrap();
        (out.status.code().unwrap(), serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap())
    };
    let (code, done) = json("run daily --cascade");
    let step = &done["cascade"][0];
    assert_eq!((code, &done["run"], &step["outcome"], &step["dataset"]), (0, &serde_json::Value::Null, &"published".into(), &"monthly".into()));
    assert_eq!(step["run"]["upstream"][0]["partition"], "2026-04-30");
    assert_eq!(json("run daily --cascade").1["cascade"][0]["outcome"], "up to date");
    assert_eq!(json("run daily --cascade --stage").0, 2);
    // Downstream a check says no: the exit code is that.
    let declare = |more: &str| std::fs::write(lab.path("restitch.toml"), months().replace("checks = [", more)).unwrap();
    declare("checks = [{ kind = \"row_count\", max = 1 }, ");
    std::fs::write(lab.path("late.jsonl"), order("e9", "2026-05-01T10:00:00Z", "D", "1")).unwrap();
    json("ingest orders late.jsonl");
    let (code, done) = json("repair daily --cascade");
    let kinds = (&done["status"], &done["cascade"][0]["outcome"], &done["error"]["kind"]);
    assert_eq!((code, kinds), (3, (&"published".into(), &"failed".into(), &"validation".into())));
    let stale = "upstream daily 2026-05-01 was published by r3 after this";
    assert_eq!(json("status monthly").1["datasets"][0]["partitions"][1]["stale"], stale);
    // An approval downstream: it is computed, and waits; publishing it together with a rejected one says both.
    declare("approvers = [\"carol\"]\napproval = \"required\"\nchecks = [");
    let (code, done) = json("run daily --cascade");
    assert_eq!((code, &done["cascade"][0]["outcome"], &done["error"]["kind"]), (5, &"failed".into(), &"approval".into()), "{done}");
    let (code, done) = json("publish r4 r5");
    let message = done["error"]["message"].as_str().unwrap();
    assert_eq!(code, 2);
    assert!(message.contains("r4: run r4 is rejected, not staged; r5: r5 is computed and checked, and waits for approval"), "{message}");
}

/// Inputs that are taken whole are replaced whole; a window of their borders is exact.
#[test]
fn a_delete_insert_takes_whole_partitions_of_its_input() {
    let toml = months()
        .replace("customer-totals@1.0.0", "clean-orders@1.0.0")
        .replace("[\"customer_id\"]\nchecks", "[\"event_id\"]\ntime_column = \"event_time\"\nchecks");
    let toml = &toml[..toml.find("checks = [").unwrap()];
    let (lab, mut book) = (lab(toml), Book::default());
    let orders = [("e1", "2026-05-01T09:00:00Z", "A", 25), ("e2", "2026-05-02T10:00:00Z", "B", 10), ("e3", "2026-05-03T00:00:00Z", "C", 1)];
    book.land(&lab, "1.jsonl", &orders);
    cascade(&lab, Kind::Run, "daily");
    book.land(&lab, "2.jsonl", &[("e2", "2026-05-02T10:00:00Z", "B", 11), ("e1", "2026-05-01T09:00:00Z", "A", 26)]);
    lab.go(request(Kind::Repair, "daily"));
    let window = |start: &str, end: &str| {
        let window = Some((start, end));
        lab.try_go(RunRequest { dataset: "monthly".into(), mode: Mode::DeleteInsert, ..Lab::request(Kind::Backfill, window) })
    };
    let e = window("2026-05-02T06:00:00Z", "2026-05-03T00:00:00Z").unwrap_err();
    assert!(
        e.to_string().starts_with("monthly takes partitions of daily whole: 2026-05-02T06:00:00Z lies inside the day partition 2026-05-02"),
        "{e}"
    );
    assert_eq!(e.hint().unwrap(), "--start 2026-05-02 --end 2026-05-02");
    let done = window("2026-05-02", "2026-05-02").unwrap().manifest.unwrap();
    assert_eq!((done.partitions[0].records, done.upstream.len(), done.upstream[0].partition.as_str()), (1, 1, "2026-05-02"));
    let amounts = || lab.rows("select event_id, amount from monthly order by 1");
    assert_eq!(amounts(), ["e1 25.00", "e2 11.00", "e3 1.00"]);
    // The rest of the month is not settled by it, and a merge of all rows settles it.
    assert_eq!(stale(&lab, "monthly").len(), 1);
    assert!(lab.replay(done.run).unwrap().partitions.iter().all(|p| p.equal()));
    lab.go(RunRequest { dataset: "monthly".into(), mode: Mode::Merge, ..Lab::request(Kind::Backfill, Some(("2026-05", "2026-05"))) });
    assert_eq!((amounts(), stale(&lab, "monthly").len()), (vec!["e1 26.00".into(), "e2 11.00".into(), "e3 1.00".into()], 0));
    // A row that is gone upstream is left by a merge: it stays stale until it is overwritten.
    lab.go(RunRequest { start: Some("2026-05-03".into()), filter: Some("false".into()), ..request(Kind::Backfill, "daily") });
    lab.go(RunRequest { dataset: "monthly".into(), mode: Mode::Merge, ..Lab::request(Kind::Backfill, Some(("2026-05", "2026-05"))) });
    assert_eq!((amounts().len(), stale(&lab, "monthly").len()), (3, 1));
    run(&lab, "monthly");
    assert_eq!((amounts().len(), stale(&lab, "monthly").len()), (2, 0));
}

/// A row that lies elsewhere by its own time than by its partition's has no place downstream.
#[test]
fn a_row_outside_of_its_own_partition_is_refused_by_name() {
    let toml = months().replace("partition = \"day\"", "partition = \"week\"\ntime_column = \"event_time\"");
    let toml = toml
        .replace("event_time = \"event_time\"", "event_time = \"at\"")
        .replace("[source.orders.columns]", "[source.orders.columns]\nat = { type = \"timestamp\" }");
    let lab = lab(&toml);
    let line = order("e1", "2026-05-20T09:00:00Z", "A", "25").replace('}', ",\"at\":\"2026-05-01T09:00:00Z\"}");
    lab.land("1.jsonl", line);
    run(&lab, "daily");
    let e = chain(&lab.try_go(request(Kind::Run, "monthly")).unwrap_err());
    assert!(e.contains("row 0 has event_time = 2026-05-20T09:00:00Z, outside of its partition [2026-04-27T00:00:00Z, 2026-05-04T00:00:00Z)"), "{e}");
    assert_eq!(lab.rows("select count(*) from restitch_partitions where dataset = 'monthly'"), ["0"]);
}

/// A saved plan of a dataset downstream is carried out on the rows that it was made for.
#[test]
fn a_saved_plan_reads_the_rows_of_its_snapshot() {
    let (lab, _) = built();
    run(&lab, "monthly");
    let window = Some(("2026-05", "2026-05"));
    let bound = lab.open().bind(&RunRequest { dataset: "monthly".into(), ..Lab::request(Kind::Backfill, window) }).unwrap();
    let text = bound.text();
    lab.land("2.jsonl", order("e6", "2026-05-01T23:00:00Z", "C", "3"));
    lab.go(request(Kind::Repair, "daily"));
    let before = lab.rows("select checksum from restitch_partitions where partition = '2026-05'");
    let applied = lab.open().apply(&restitch::plan::BoundPlan::parse(&text).unwrap(), &()).unwrap().manifest.unwrap();
    assert_eq!(lab.rows("select checksum from restitch_partitions where partition = '2026-05'"), before);
    assert_eq!(applied.upstream.iter().map(|u| u.run.0).collect::<Vec<_>>(), [1, 1]);
    assert_eq!(stale(&lab, "monthly").len(), 1, "and so it is stale at once");
}
