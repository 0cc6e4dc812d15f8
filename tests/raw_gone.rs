//! Raw that retention took, or must not take: partitions that are not final, those that wait for records in vain, lookups that are not whole.
//! Never looks at files: `retention` does. What is asked is what can still be computed, and what is said where it cannot.

use crate::support::{Lab, ORDERS, component, order};
use restitch::{
    manifest::{Kind, Manifest},
    pipeline::{Error, RunRequest},
};

fn collect(lab: &Lab) -> usize {
    let shown = lab.open().garbage(None).unwrap();
    lab.open().collect(None, &shown).unwrap().garbage.files.len()
}

fn command(lab: &Lab, words: &str) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_restitch"));
    let out = command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now]).args(words.split(' ')).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn run(lab: &Lab, dataset: &str) -> Manifest {
    lab.go(RunRequest { dataset: dataset.into(), ..Lab::request(Kind::Run, None) }).manifest.unwrap()
}

fn declare(lab: &Lab, change: impl Fn(String) -> String) {
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    std::fs::write(lab.path("restitch.toml"), change(toml)).unwrap();
}

fn march(day: u32) -> String {
    order(&format!("e{day}"), &format!("2026-03-{day:02}T10:00:00Z"), "A", "1")
}

/// Months, raw kept for 28 days, a repair window of five.
fn months() -> String {
    ORDERS.replace("max_rejects", "raw_keep = \"28d\"\nmax_rejects").replace("partition = \"day\"", "partition = \"month\"")
}

#[test]
fn a_month_that_is_not_final_keeps_all_of_its_raw() {
    let lab = Lab::new(&months());
    for day in [1, 2, 30, 31] {
        lab.land(&format!("{day}.jsonl"), march(day));
        run(&lab, "daily");
        assert_eq!(collect(&lab), 0, "March {day}: older than 28 days, but March is open");
    }
    assert_eq!(lab.published(), ["2026-03 A 4 4.00"]);
    // March is over, and within the repair window.
    lab.land("april.jsonl", order("a4", "2026-04-04T10:00:00Z", "A", "1"));
    run(&lab, "daily");
    assert_eq!(collect(&lab), 0);
    lab.land("late.jsonl", march(31).replace("e31", "late"));
    lab.land("later.jsonl", order("a5", "2026-04-05T12:00:00Z", "A", "1"));
    lab.repair();
    // It is final.
    lab.land("end.jsonl", order("a6", "2026-04-06T12:00:00Z", "A", "1"));
    run(&lab, "daily");
    assert_eq!(collect(&lab), 2, "the first two days");
    assert_eq!(lab.published(), ["2026-03 A 5 5.00", "2026-04 A 3 3.00"]);
}

/// Each dataset has its own calendar: those that are published and declared no more, and those whose other source is behind.
#[test]
fn raw_stays_for_the_widest_partition_of_any_dataset() {
    let daily = ORDERS.split("[dataset.daily]").nth(1).unwrap();
    let monthly = format!("\n[dataset.monthly]{}", daily.replace("partition = \"day\"", "partition = \"month\""));
    let lab = Lab::new(&(ORDERS.replace("max_rejects", "raw_keep = \"28d\"\nmax_rejects") + &monthly));
    for day in [1, 30] {
        lab.land(&format!("{day}.jsonl"), march(day));
        run(&lab, "daily");
    }
    run(&lab, "monthly");
    assert_eq!(collect(&lab), 0, "declared and published");
    declare(&lab, |toml| toml.replace(&monthly, ""));
    assert_eq!(collect(&lab), 0, "published: who declares it again has its month");
    // Built by the day, of two sources, the other of which stands in the middle of March.
    let source = ORDERS.split("[source.orders]").nth(1).unwrap().split("[dataset.daily]").next().unwrap();
    let west = format!("[source.west]{}[dataset.daily]", source.replace("[source.orders.columns]", "[source.west.columns]"));
    let both = "input = [\"orders\", \"west\"]";
    declare(&lab, |toml| toml.replace("[dataset.daily]", &west) + &monthly.replace("monthly", "both").replace("input = \"orders\"", both));
    lab.try_land("west", "west.jsonl", order("w1", "2026-03-15T10:00:00Z", "A", "1")).unwrap();
    lab.land("may.jsonl", order("m1", "2026-05-30T10:00:00Z", "A", "1"));
    run(&lab, "daily");
    run(&lab, "both");
    assert_eq!(collect(&lab), 0, "March of both is open");
    lab.try_land("west", "west2.jsonl", order("w2", "2026-04-06T10:00:00Z", "A", "1")).unwrap();
    run(&lab, "both");
    assert_eq!(collect(&lab), 2);
}

/// What no run will ever take in is not up to date, and everybody says so.
#[test]
fn new_records_of_a_partition_whose_raw_is_gone_are_said_to_wait() {
    let lab = Lab::new(&ORDERS.replace("max_rejects", "raw_keep = \"10d\"\nmax_rejects"));
    lab.land("march.jsonl", march(1) + &march(2));
    lab.land("may.jsonl", order("y1", "2026-05-01T09:00:00Z", "A", "4"));
    run(&lab, "daily");
    assert_eq!(collect(&lab), 1);
    // By a wider policy March is open again.
    declare(&lab, |toml| toml.replace("allowed_lateness = \"30m\"\nrepair_window = \"5d\"", "allowed_lateness = \"100d\"\nrepair_window = \"100d\""));
    lab.land("policy.jsonl", order("y2", "2026-05-01T10:00:00Z", "A", "4"));
    run(&lab, "daily");
    lab.land("again.jsonl", order("n1", "2026-03-01T20:00:00Z", "A", "8") + &order("n2", "2026-03-01T21:00:00Z", "A", "8"));
    let note = "partition 2026-03-01 left as it stands: raw of orders from 2026-03-01T10:00:00Z to 2026-03-01T10:15:00Z was removed on";
    for kind in [Kind::Run, Kind::Repair] {
        let plan = lab.plan(kind, None, None);
        let waiting: Vec<_> = plan.waiting.iter().map(|w| (w.partition.as_str(), w.tier.as_str(), w.records)).collect();
        assert_eq!((plan.up_to_date, waiting), (2, vec![("2026-03-01", "raw is gone", 2)]));
        assert!(plan.gaps[0].starts_with(note) && !plan.gaps[0].contains("delete-insert"), "{:?}", plan.gaps);
    }
    for words in ["plan daily", "run daily", "repair daily"] {
        let text = command(&lab, words);
        assert!(text.contains("2 partitions up to date.\n\nLeft alone, with records waiting:\n"), "{text}");
        assert!(text.contains(&format!("Note: {note}")), "{text}");
    }
    // With another partition to build, too.
    lab.land("more.jsonl", order("y3", "2026-05-01T10:00:00Z", "A", "4"));
    declare(&lab, |toml| toml.replace("partition = \"day\"", "partition = \"day\"\ntime_column = \"at\""));
    let text = command(&lab, "run daily");
    assert!(text.contains(&format!("Note: {note}")) && text.contains("a backfill with --mode delete-insert still takes in"), "{text}");
    let text = command(&lab, "status daily");
    assert!(text.contains("new records wait, raw is gone\n") && text.contains(&format!("Note: {note}")), "{text}");
    declare(&lab, |toml| toml.replace("100d", "5d"));
    lab.land("policy2.jsonl", order("y4", "2026-05-01T10:30:00Z", "A", "4"));
    lab.land("late.jsonl", march(1).replace("e1", "n3"));
    let text = command(&lab, "status daily");
    assert!(text.contains("late records wait, raw is gone\n"), "{text}");
    assert_eq!(lab.published(), ["2026-03-01 A 1 1.00", "2026-03-02 A 1 1.00", "2026-05-01 A 3 12.00"]);
}

/// A source that became a lookup after some of its raw went: what was read of it is all that a proof needs.
#[test]
fn a_run_is_proven_as_long_as_what_it_read_of_a_lookup_is_there() {
    let source = "[source.customers]\nformat = \"jsonl\"\nevent_time = \"since\"\nrecord_id = \"customer_id\"\nrepair_window = \"1d\"\nraw_keep = \"10d\"
[source.customers.columns]\ncustomer_id = { type = \"string\", nullable = false }\ncountry = { type = \"string\" }\nsince = { type = \"timestamp\", nullable = false }\n";
    let dataset =
        "[dataset.daily]\ninput = \"orders\"\nlookups = { customers = \"customers\" }\ntransform = \"enrich-orders@1.0.0\"\npartition = \"day\"
dedup = { key = [\"event_id\"] }\n";
    let orders = ORDERS.split("[dataset.daily]").next().unwrap();
    let as_source = format!("{orders}{source}");
    let as_lookup = format!("{orders}{}{dataset}", source.replace("raw_keep = \"10d\"\n", ""));
    let lab = Lab::new(&as_source);
    lab.open().add_transform(&component("enrich-orders-1.0.0.wasm")).unwrap();
    let customer = |id: &str, since: &str| {
        let line = format!("{{\"customer_id\":\"{id}\",\"country\":\"{id}{id}\",\"since\":\"{since}T00:00:00Z\"}}\n");
        lab.try_land("customers", &format!("{id}.jsonl"), line).unwrap();
    };
    let retain = || {
        declare(&lab, |_| as_source.clone());
        let files = collect(&lab);
        declare(&lab, |_| as_lookup.clone());
        files
    };
    customer("A", "2026-04-01");
    customer("B", "2026-05-15");
    assert_eq!(retain(), 1);
    lab.land("o1.jsonl", order("e1", "2026-05-18T09:00:00Z", "A", "25") + &order("e2", "2026-05-18T09:00:00Z", "B", "1"));
    let gap = "lookup customers is not whole: raw of customers from 2026-04-01T00:00:00Z";
    assert!(lab.plan(Kind::Run, None, None).gaps[0].starts_with(gap));
    let first = command(&lab, "run daily");
    assert!(first.contains(&format!("\nNote: {gap}")), "{first}");
    assert!(command(&lab, "plan daily").contains(&format!("up to date.\n\nNote: {gap}")));
    let run = lab.open().runs(None, 1).unwrap().pop().unwrap().manifest;
    assert_eq!((run.gaps.len(), lab.rows("select country from daily order by 1")), (1, vec!["BB".into(), "unknown".into()]));
    // It read what is there. What came later and went is nothing to it.
    let proven = |run: &Manifest| {
        assert!(lab.open().show(run.run).unwrap().raw_gone.is_none());
        assert!(lab.replay(run.run).unwrap().partitions.iter().all(|p| p.equal()));
        assert_eq!(lab.open().verify(run.run, &()).unwrap().failed, Vec::<String>::new());
    };
    proven(&run);
    customer("C", "2026-05-10");
    customer("D", "2026-05-24");
    assert_eq!(retain(), 1, "C alone");
    proven(&run);
    lab.land("o2.jsonl", order("e3", "2026-05-19T09:00:00Z", "B", "1"));
    let second = self::run(&lab, "daily");
    // What both read went.
    customer("E", "2026-05-28");
    assert_eq!(retain(), 1, "B");
    for run in [&run, &second] {
        let gone = lab.open().show(run.run).unwrap().raw_gone.unwrap().to_string();
        assert!(gone.starts_with("raw of customers from 2026-05-15"), "{gone}");
        for e in [lab.replay(run.run).unwrap_err(), lab.open().verify(run.run, &()).unwrap_err()] {
            assert!(matches!(e, Error::RawGone { .. }), "{e}");
        }
    }
    lab.land("o3.jsonl", order("e4", "2026-05-20T09:00:00Z", "D", "1"));
    proven(&self::run(&lab, "daily"));
}
