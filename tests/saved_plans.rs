//! Plans that were saved: carried out exactly, whatever happened to the clock, restitch.toml and raw; or refused with what moved.
//! The file is the contract here: most tests go through its text.

use crate::support::{Lab, ORDERS, chain, component, order};
use restitch::{
    manifest::{Kind, Mode, Status},
    pipeline::{Error, ErrorKind, RunRequest},
    plan::{BoundError, BoundPlan},
};
use serde_json::Value;

/// Two days of two orders; the first is published.
fn lab() -> Lab {
    let lab = Lab::new(ORDERS);
    let day = |d: u32| (1..=2).map(|i| order(&format!("e{d}{i}"), &format!("2026-05-0{d}T1{i}:00:00Z"), "A", "5")).collect::<String>();
    lab.land("days.jsonl", day(1) + &day(2));
    lab.backfill("2026-05-01", "2026-05-01");
    lab
}

const WINDOW: Option<(&str, &str)> = Some(("2026-05-01", "2026-05-02"));

fn apply(lab: &Lab, plan: &BoundPlan) -> Result<restitch::manifest::Manifest, Error> {
    Ok(lab.open().apply(plan, &())?.manifest.expect("there was something to do"))
}

#[test]
fn a_plan_is_a_file_that_reads_back_as_itself() {
    let lab = lab();
    let plan = lab.bind(Kind::Backfill, WINDOW);
    let text = plan.text();
    assert_eq!(BoundPlan::parse(&text).unwrap(), plan);
    let json: Value = serde_json::from_str(&text).unwrap();
    for (pointer, want) in [
        ("/asked/0", Value::from("2026-05-01")),
        ("/window/1", Value::from("2026-05-03T00:00:00Z")),
        ("/partitions", Value::from(2)),
        ("/records", Value::from(4)),
        ("/files", Value::from(1)),
        ("/ranges/0/reason", Value::from("forced")),
        ("/ranges/1/first", Value::from("2026-05-02")),
        ("/ranges/1/reason", Value::from("missing")),
        ("/standing/0/run", Value::from("r1")),
        ("/base_snapshot", Value::from(2)),
        ("/recipe/parameters/currency", Value::from("EUR")),
        ("/digest", Value::from(plan.digest().to_string())),
    ] {
        assert_eq!(json.pointer(pointer), Some(&want), "{pointer}: {text}");
    }
    // Laid out in another way it is the same plan.
    assert_eq!(BoundPlan::parse(&json.to_string()).unwrap(), plan);
    // Every instant and every name of a calendar with doubled hours comes back.
    let hours = Lab::new(&ORDERS.replace("partition = \"day\"", "partition = \"hour\"\ntime_zone = \"Europe/Berlin\""));
    let fold = hours.bind(Kind::Backfill, Some(("2025-10-26", "2025-10-26")));
    assert_eq!((fold.partitions, BoundPlan::parse(&fold.text()).unwrap().plan().unwrap().partitions().count()), (25, 25));
}

#[test]
fn an_edited_file_is_refused() {
    let text = lab().bind(Kind::Backfill, WINDOW).text();
    let refuse = |text: String| BoundPlan::parse(&text).unwrap_err();
    for (from, to) in [("\"records\": 4", "\"records\": 5"), ("\"mode\": \"overwrite\"", "\"mode\": \"stage\""), ("EUR", "USD"), ("r1", "r2")] {
        assert!(text.contains(from), "{from}");
        assert_eq!(refuse(text.replacen(from, to, 1)), BoundError::Edited, "{from}");
    }
    assert!(matches!(refuse(text.replacen("\"version\": 1", "\"version\": 2", 1)), BoundError::Version { found: 2 }));
    assert!(matches!(refuse(text.replacen("\"only\"", "\"onyl\"", 1)), BoundError::Shape(_)));
    assert!(matches!(refuse(text[..text.len() / 2].into()), BoundError::Shape(_)));
    assert!(matches!(refuse("[]".into()), BoundError::Shape(_)));
}

/// Same partitions, snapshot, transform, parameters, clock: nothing that changed since counts, and the same bits come out.
#[test]
fn a_plan_is_carried_out_as_it_was_made() {
    let mut lab = lab();
    let plan = lab.bind(Kind::Backfill, WINDOW);
    let dry = lab.go(RunRequest { mode: Mode::DryRun, ..Lab::request(Kind::Backfill, WINDOW) }).manifest.unwrap();
    lab.now = "2026-07-01T00:00:00Z";
    lab.land("later.jsonl", order("e9", "2026-05-02T20:00:00Z", "Z", "1000"));
    lab.open().add_transform(&component("customer-totals-1.1.0.wasm")).unwrap();
    let other =
        ORDERS.replace("totals@1.0.0", "totals@1.1.0").replace("dedup = {", "params = { currency = \"USD\" }\nlimits = { time = \"1m\" }\ndedup = {");
    std::fs::write(lab.path("restitch.toml"), other).unwrap();
    assert_eq!(lab.open().come_since(&plan).unwrap(), 1);
    let run = apply(&lab, &plan).unwrap();
    assert_eq!(run.checksum, dry.checksum);
    assert_eq!((&run.recipe, run.plan_digest), (&plan.recipe, Some(plan.digest())));
    assert_eq!((run.recipe.as_of_us, run.base_snapshot), (dry.recipe.as_of_us, plan.base_snapshot));
    assert_eq!(lab.published(), ["2026-05-01 A 2 10.00", "2026-05-02 A 2 10.00"]);
    // What came since is not lost: it waits.
    assert_eq!(lab.open().plan(&Lab::request(Kind::Run, None)).unwrap().partition_count(), 1);
    assert!(lab.replay(run.run).unwrap().partitions.iter().all(|p| p.equal()));
}

/// What was read for the plan is used for the run, but only as long as nobody wrote: neither another process, nor this one.
#[test]
fn a_plan_that_is_carried_out_at_once_sees_what_was_published_since() {
    let lab = lab();
    let request = Lab::request(Kind::Backfill, WINDOW);
    let mut workshop = lab.open();
    let bound = workshop.bind(&request).unwrap();
    let other = lab.backfill("2026-05-02", "2026-05-02");
    let Error::Moved { changes, .. } = workshop.carry_out(&bound, &()).unwrap_err() else { panic!() };
    assert_eq!(changes, [format!("partition 2026-05-02 was published by {} (snapshot {})", other.run, other.published_snapshot.unwrap())]);
    let bound = workshop.bind(&request).unwrap();
    let first = workshop_plan(&mut workshop, "2026-05-01");
    let own = workshop.carry_out(&first, &()).unwrap().manifest.unwrap();
    let Error::Moved { changes, .. } = workshop.carry_out(&bound, &()).unwrap_err() else { panic!() };
    assert_eq!(changes, [format!("partition 2026-05-01 was published by {} (snapshot {})", own.run, own.published_snapshot.unwrap())]);
    // A plan of another window was made in between, and this one is carried out with its own rows.
    let bound = workshop.bind(&request).unwrap();
    workshop_plan(&mut workshop, "2026-05-02");
    let run = workshop.carry_out(&bound, &()).unwrap().manifest.unwrap();
    assert_eq!((run.partitions.len(), lab.published()), (2, vec!["2026-05-01 A 2 10.00".to_owned(), "2026-05-02 A 2 10.00".to_owned()]));
}

fn workshop_plan(workshop: &mut restitch::pipeline::Workshop, day: &'static str) -> BoundPlan {
    workshop.bind(&Lab::request(Kind::Backfill, Some((day, day)))).unwrap()
}

#[test]
fn a_plan_is_applied_once_unless_nothing_came_of_it() {
    let lab = lab();
    let dry = lab.open().bind(&RunRequest { mode: Mode::DryRun, ..Lab::request(Kind::Backfill, WINDOW) }).unwrap();
    assert_eq!(apply(&lab, &dry).unwrap().status, Status::Done);
    assert_eq!(apply(&lab, &dry).unwrap().status, Status::Done, "a dry run keeps nothing, so it can be repeated");
    let stage = lab.open().bind(&RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, WINDOW) }).unwrap();
    let staged = apply(&lab, &stage).unwrap();
    let e = apply(&lab, &stage).unwrap_err();
    assert_eq!((e.kind(), e.to_string()), (ErrorKind::Conflict, format!("the plan was applied as run {}, which is staged", staged.run)));
    lab.open().discard(staged.run).unwrap();
    let again = apply(&lab, &stage).unwrap();
    lab.open().publish(again.run).unwrap();
    let e = apply(&lab, &stage).unwrap_err();
    assert_eq!(e.to_string(), format!("the plan was applied as run {}", again.run));
    // The rollback makes the plan no fresher: what stands now is the rollback's.
    let rolled = lab.open().rollback(again.run, false, None).unwrap();
    assert!(matches!(apply(&lab, &stage).unwrap_err(), Error::Applied(_)));
    let Error::Moved { changes, .. } = apply(&lab, &dry).unwrap_err() else { panic!() };
    assert_eq!(changes, [format!("partition 2026-05-01 was published by {} (snapshot {})", rolled.run, rolled.published_snapshot.unwrap())]);
}

#[test]
fn a_plan_whose_ground_moved_is_refused_and_says_what_moved() {
    let refused = |lab: &Lab, plan: &BoundPlan, want: &str| {
        let before = lab.rows("select count(*) from restitch_runs");
        let e = apply(lab, plan).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Conflict, "{e}");
        assert!(e.to_string().contains(want) && e.hint().is_some(), "{e}");
        assert_eq!(lab.rows("select count(*) from restitch_runs"), before, "nothing was begun");
    };
    // A run published one of its partitions; the other one would not have mattered.
    let lab = lab();
    let (both, second) = (lab.bind(Kind::Backfill, WINDOW), lab.bind(Kind::Backfill, Some(("2026-05-02", "2026-05-02"))));
    let run = lab.backfill("2026-05-01", "2026-05-01");
    let by = format!("partition 2026-05-01 was published by {} (snapshot {})", run.run, run.published_snapshot.unwrap());
    refused(&lab, &both, &by);
    apply(&lab, &second).unwrap();
    // Another tool wrote into a partition.
    let plan = lab.bind(Kind::Backfill, WINDOW);
    crate::interop::lake(["sql", &lab.catalog(), "INSERT INTO daily SELECT * FROM daily WHERE _partition = '2026-05-01' LIMIT 1", "--write"]);
    refused(&lab, &plan, "another tool");

    // A partition was taken away.
    let lab = self::lab();
    let plan = lab.bind(Kind::Backfill, WINDOW);
    lab.open().rollback(restitch::id::RunId(1), false, None).unwrap();
    refused(&lab, &plan, "partition 2026-05-01 as r1 published it was taken away");

    // The dataset is cut in another way. It is not published yet, so it may be.
    let lab = Lab::new(ORDERS);
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25"));
    let plan = lab.bind(Kind::Backfill, WINDOW);
    std::fs::write(lab.path("restitch.toml"), ORDERS.replace("partition = \"day\"", "partition = \"month\"")).unwrap();
    refused(&lab, &plan, "the dataset is declared by month in UTC from orders, and was by day in UTC from orders");

    // Raw rows of the snapshot are gone.
    std::fs::write(lab.path("restitch.toml"), ORDERS).unwrap();
    let sql = "DELETE FROM __ducklake_metadata_lake.ducklake_data_file WHERE record_count = 1";
    crate::interop::lake(["sql", &lab.catalog(), sql, "--write"]);
    refused(&lab, &plan, "snapshot 1 had 1 raw rows, and 0 of them are left");

    // It is a plan of another warehouse.
    let e = apply(&self::lab(), &plan).unwrap_err();
    assert_eq!((e.kind(), e.to_string().as_str()), (ErrorKind::Usage, "the plan was made for another warehouse"));
}

/// Whoever begins first has it: the others are told by which run, also where nothing is published.
#[test]
fn processes_that_apply_one_plan_carry_it_out_once() {
    for mode in [Mode::Overwrite, Mode::Stage] {
        let lab = lab();
        let plan = lab.open().bind(&RunRequest { mode, ..Lab::request(Kind::Backfill, WINDOW) }).unwrap();
        std::fs::write(lab.path("plan.json"), plan.text()).unwrap();
        let apply = || {
            let out = std::process::Command::new(env!("CARGO_BIN_EXE_restitch"))
                .arg("-C")
                .arg(lab.folder.path())
                .args(["apply", "plan.json"])
                .output()
                .unwrap();
            (out.status.code().unwrap(), String::from_utf8_lossy(&out.stderr).into_owned())
        };
        let outcomes: Vec<(i32, String)> = std::thread::scope(|scope| {
            let rivals: Vec<_> = (0..4).map(|_| scope.spawn(apply)).collect();
            rivals.into_iter().map(|r| r.join().unwrap()).collect()
        });
        assert_eq!(outcomes.iter().filter(|(code, _)| *code == 0).count(), 1, "{outcomes:?}");
        let told =
            |text: &str| (text.contains("is just being applied as run r2") || text.contains("was applied as run r2")) && text.contains("Hint: ");
        assert!(outcomes.iter().all(|(code, text)| *code == 0 || (*code == 4 && told(text))), "{outcomes:?}");
        let status = if mode == Mode::Stage { "staged" } else { "published" };
        assert_eq!(lab.rows("select run, status from restitch_runs where run <> 'r1'"), [format!("r2 {status}")]);
    }
}

/// The snapshot that a plan reads goes with old versions of another dataset. Nobody typed it: it is the ground of the plan.
#[test]
fn a_plan_whose_snapshot_was_expired_does_not_hold() {
    let lab = Lab::new(&format!("{ORDERS}[dataset.monthly]\ninput = \"orders\"\ntransform = \"customer-totals@1.0.0\"\npartition = \"month\"\n"));
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "25"));
    let monthly = || lab.go(RunRequest { dataset: "monthly".into(), ..Lab::request(Kind::Backfill, Some(("2026-05", "2026-05"))) });
    monthly();
    let plan = lab.bind(Kind::Backfill, WINDOW);
    let mut other = lab.open();
    let bound = other.bind(&Lab::request(Kind::Run, None)).unwrap();
    monthly();
    let shown = lab.open().garbage(Some(1)).unwrap();
    lab.open().collect(Some(1), &shown).unwrap();
    let at = plan.recipe.input_snapshot;
    for e in [apply(&lab, &plan).unwrap_err(), other.carry_out(&bound, &()).unwrap_err()] {
        let want =
            format!("the plan of daily does not hold any more: snapshot {at}, which it reads, was expired with files that were removed from it");
        assert_eq!((e.kind(), e.to_string(), e.hint().unwrap().as_str()), (ErrorKind::Conflict, want, "plan again; nothing was done"));
    }
    // One that was typed has to be another one.
    let typed = RunRequest { snapshot: Some(at), ..Lab::request(Kind::Backfill, WINDOW) };
    let e = lab.try_go(typed).unwrap_err();
    assert!(matches!(e, Error::Expired { .. }) && e.kind() == ErrorKind::Usage, "{e}");
    assert_eq!(lab.run().partitions.len(), 1);
}

#[test]
fn a_plan_with_nothing_to_do_does_nothing_and_a_bad_filter_is_no_plan() {
    let lab = lab();
    lab.run();
    let plan = lab.bind(Kind::Run, None);
    assert!(lab.open().apply(&BoundPlan::parse(&plan.text()).unwrap(), &()).unwrap().manifest.is_none());
    let filter = RunRequest { filter: Some("amout > 1".into()), ..Lab::request(Kind::Backfill, WINDOW) };
    let e = lab.open().bind(&filter).unwrap_err();
    assert!(e.kind() == ErrorKind::Usage && chain(&e).contains("amout"), "{}", chain(&e));
}

/// The first and the last hour of time are cut in zones that are not whole hours from UTC: a plan of them is written, read and carried out.
#[test]
fn the_ends_of_time_can_be_planned() {
    for zone in ["UTC", "America/New_York", "Asia/Kolkata"] {
        for grain in ["hour", "day", "week", "month", "year"] {
            let toml = ORDERS.replace("partition = \"day\"", &format!("partition = \"{grain}\"\ntime_zone = \"{zone}\""));
            let lab = Lab { now: "9999-12-31T00:00:00Z", ..Lab::new(&toml) };
            let ends = order("e1", "0001-01-01T00:00:00Z", "A", "1") + &order("e2", "2026-05-01T09:00:00Z", "B", "2");
            lab.land("a.jsonl", ends + &order("e3", "9999-12-31T23:59:59.999999Z", "C", "3"));
            let plan = lab.bind(Kind::Run, None);
            let read = BoundPlan::parse(&plan.text()).unwrap();
            assert_eq!(read.plan().unwrap().partition_count(), plan.partitions, "{zone} {grain}");
            apply(&lab, &read).unwrap();
            let names: Vec<String> = lab.plan(Kind::Run, None, None).partitions().map(|p| p.name).collect();
            assert_eq!((lab.rows("select count(*) from daily"), names), (vec!["3".into()], vec![]), "{zone} {grain}");
        }
    }
}

#[test]
fn a_plan_is_written_over_a_plan_and_over_nothing_else() {
    let lab = lab();
    let save = |file: &str| {
        let workshop = &mut lab.open();
        let bound = workshop.bind(&Lab::request(Kind::Backfill, WINDOW)).unwrap();
        workshop.save_plan(&bound, &lab.path(file)).map_err(|e| (e.kind(), e.to_string()))
    };
    let before = std::fs::read(lab.catalog()).unwrap();
    std::fs::write(lab.path("state.json"), "{\"version\": 4}").unwrap();
    for (file, why) in [
        ("warehouse/catalog.sqlite", "lies inside the warehouse"),
        ("warehouse/data/plan.json", "lies inside the warehouse"),
        ("restitch.toml", "is there already and is no saved plan"),
        ("state.json", "is there already and is no saved plan"),
    ] {
        let want = format!("{} {why}, and is not written", lab.path(file).display());
        assert_eq!(save(file), Err((ErrorKind::Usage, want)));
    }
    assert!(std::fs::read(lab.catalog()).unwrap() == before && !lab.path("warehouse/data/plan.json").exists());
    // An empty file has nothing to lose.
    std::fs::write(lab.path("empty.json"), "").unwrap();
    for file in ["plan.json", "plan.json", "empty.json"] {
        save(file).unwrap();
        assert!(BoundPlan::parse(&std::fs::read_to_string(lab.path(file)).unwrap()).is_ok(), "{file}");
    }
}
