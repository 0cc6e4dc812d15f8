//! Watermarks of several sources, records that are late, come again, or come with another time: cases 12, 14, 15, 16 and their kind.
//! Inputs stand in tests/cases; the numbers are those of the failures that they were cut from.

use crate::support::{Lab, ORDERS, Random, names, order};
use restitch::{
    manifest::Kind,
    pipeline::{DatasetStatus, RunRequest, SourceStatus},
    plan::Reason,
    time::{EventTime, parse},
    window::{Calendar, Grain},
};

/// Feeds of `{"id", "ts", "v", "src"}`, and one dataset of all of them.
fn feeds(names: &[&str], source: &str, dataset: &str) -> String {
    let mut toml = "[warehouse]\npath = \"warehouse\"\n".to_owned();
    for name in names {
        toml += &format!(
            "[source.{name}]\nformat = \"jsonl\"\nevent_time = \"event_time\"\nrecord_id = \"event_id\"\nmax_future = \"400000h\"\n{source}
[source.{name}.columns]
event_id = {{ type = \"string\", nullable = false, from = \"/id\" }}
event_time = {{ type = \"timestamp\", nullable = false, from = \"/ts\" }}
customer_id = {{ type = \"string\", from = \"/src\", default = \"all\" }}
amount = {{ type = \"decimal(18,2)\", from = \"/v\" }}\n"
        );
    }
    toml + &format!(
        "[dataset.daily]\ninput = {names:?}\ntransform = \"customer-totals@1.0.0\"\ndedup = {{ key = [\"event_id\"] }}\nkey = [\"customer_id\"]\n{dataset}\n"
    )
}

fn case(path: &str) -> String {
    std::fs::read_to_string(format!("{}/tests/cases/{path}", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn status(lab: &Lab) -> (Vec<SourceStatus>, DatasetStatus) {
    let (sources, mut datasets) = lab.open().status(None).unwrap();
    (sources, datasets.pop().unwrap())
}

fn complete_to(lab: &Lab) -> String {
    status(lab).1.stand.map_or("none".into(), |s| s.watermark.0.to_string())
}

/// Case 12: an idle source, and one that never spoke.
#[test]
fn a_quiet_source_is_waited_for_and_an_idle_one_is_set_aside() {
    let toml = feeds(&["east", "west", "new"], "watermark_delay = \"5m\"\nidle_after = \"30m\"", "partition = \"hour\"");
    let mut lab = Lab { now: "2025-09-01T10:11:00Z", ..Lab::new(&toml) };
    lab.try_land("east", "east.jsonl", case("12-idle-source/east.jsonl")).unwrap();
    lab.try_land("west", "west.jsonl", case("12-idle-source/west.jsonl")).unwrap();
    lab.now = "2025-09-01T10:21:00Z";
    assert_eq!(complete_to(&lab), "none", "what has not spoken yet is waited for, for a while");
    let two = Lab { now: "2025-09-01T10:11:00Z", ..Lab::new(&toml.replace(", \"new\"]", "]")) };
    two.try_land("east", "east.jsonl", case("12-idle-source/east.jsonl")).unwrap();
    two.try_land("west", "west.jsonl", case("12-idle-source/west.jsonl")).unwrap();
    assert_eq!(complete_to(&two), "2025-09-01T08:55:00Z", "west is only quiet");
    assert_eq!(lab.run().partitions.len(), 3);
    lab.now = "2025-09-01T10:45:00Z";
    let (sources, dataset) = status(&lab);
    assert_eq!(dataset.stand.unwrap().watermark.0.to_string(), "2025-09-01T10:05:00Z");
    assert!(sources.iter().filter(|s| s.name != "new").all(|s| s.idle), "none has given a sign of life for half an hour");
    let states: Vec<_> = dataset.partitions.iter().map(|p| (p.published.partition.as_str(), p.state)).collect();
    assert_eq!(states, [("2025-09-01T08", "closed"), ("2025-09-01T09", "closed"), ("2025-09-01T10", "open")]);
    lab.now = "2025-09-01T10:50:00Z";
    let woken = lab.try_land("west", "west-wakes.jsonl", case("12-idle-source/west-wakes.jsonl")).unwrap();
    let queued: Vec<_> = woken.queued.iter().map(|q| (q.partition.as_str(), q.records)).collect();
    assert_eq!(queued, [("2025-09-01T08", 1)]);
    assert_eq!(lab.rows("select _record_id from raw_west where _flags = 1"), ["w2"]);
    assert_eq!(complete_to(&lab), "2025-09-01T10:05:00Z", "a source that wakes up takes nothing back");
    let dirty: Vec<_> = status(&lab).1.partitions.into_iter().filter(|p| p.dirty).map(|p| p.published.partition).collect();
    assert_eq!(dirty, ["2025-09-01T08"]);
    lab.repair();
    // Both feeds have an r1: an id is followed inside its own.
    let published = [
        "2025-09-01T08 east 1 1.00",
        "2025-09-01T08 west 1 9.00",
        "2025-09-01T09 east 1 2.00",
        "2025-09-01T09 west 1 1.00",
        "2025-09-01T10 east 1 3.00",
    ];
    assert_eq!(lab.published(), published);
    assert_eq!(lab.rows("select partition, state from restitch_partitions order by 1")[0], "2025-09-01T08 closed");
    let verified = lab.open().verify("r2".parse().unwrap(), &()).unwrap();
    assert_eq!((verified.late.records, verified.late.counted, verified.failed.len()), (1, 1, 0));
}

/// Case 14: the clock of the machine and the pace of the replay have no part in the result.
#[test]
fn a_window_is_whole_however_slowly_it_comes_and_whatever_the_clock_says() {
    let toml = feeds(&["feed"], "watermark_delay = \"0s\"\nallowed_lateness = \"1m\"", "partition = \"hour\"");
    let mut checksums = Vec::new();
    for (now, slow) in [("2026-09-01T12:00:00Z", false), ("2026-09-01T10:00:00Z", true), ("2030-01-01T00:00:00Z", false)] {
        let lab = Lab { now, ..Lab::new(&toml) };
        if slow {
            for i in 0..10 {
                lab.try_land("feed", &format!("{i}.jsonl"), case(&format!("14-wall-clock-closes-window/slow-0{i}.jsonl"))).unwrap();
                lab.go(Lab::request(Kind::Run, None));
            }
        } else {
            lab.try_land("feed", "input.jsonl", case("14-wall-clock-closes-window/input.jsonl")).unwrap();
            lab.run();
        }
        assert_eq!(lab.rows("select _partition, orders from daily"), ["2026-09-01T10 10"], "{now}");
        checksums.extend(lab.rows("select checksum from restitch_partitions"));
    }
    assert!(checksums.iter().all(|c| *c == checksums[0]) && checksums.len() == 3, "{checksums:?}");
}

/// Case 15: no file makes its own records late, and whatever is late is kept, counted by how much, and repaired on request.
#[test]
fn records_of_months_ago_are_kept_and_wait() {
    let toml = feeds(&["feed"], "watermark_delay = \"0s\"\nallowed_lateness = \"1d\"", "partition = \"day\"");
    let lab = Lab::new(&toml);
    let lines = case("15-150-days-late/input.jsonl");
    let landed = lab.try_land("feed", "at-once.jsonl", &lines).unwrap();
    assert_eq!(landed.queued.len(), 0);
    assert_eq!(names(&lab.plan(Kind::Run, None, None)), ["2025-03-13", "2025-08-05", "2025-08-10"]);

    let lab = Lab::new(&toml);
    let (first, rest) = lines.split_once('\n').unwrap();
    lab.try_land("feed", "first.jsonl", first).unwrap();
    lab.run();
    let before = lab.rows("select partition, checksum from restitch_partitions");
    let landed = lab.try_land("feed", "rest.jsonl", rest).unwrap();
    const DAY: i64 = 86_400_000_000;
    let late: Vec<_> = landed.queued.iter().map(|q| (q.partition.as_str(), q.tier.as_str(), q.least_late_us / DAY)).collect();
    assert_eq!(late, [("2025-03-13", "approval", 150), ("2025-08-05", "repair", 5)]);
    assert_eq!(lab.rows("select _record_id from raw_feed where _flags = 1 order by 1"), ["r2", "r3"]);
    assert_eq!(lab.rows("select partition, checksum from restitch_partitions"), before, "nothing moves before a plan is run");
    assert_eq!(status(&lab).0[0].lateness, [(7 * DAY, 1), (365 * DAY, 1)]);
    let dirty = lab.plan(Kind::Backfill, Some(("2025-03-13", "2025-08-10")), Some(Reason::Dirty));
    assert_eq!(names(&dirty), ["2025-03-13", "2025-08-05"]);
    lab.repair();
    lab.backfill("2025-03-13", "2025-03-13");
    assert_eq!(lab.published(), ["2025-03-13 all 1 3.00", "2025-08-05 all 1 2.00", "2025-08-10 all 1 1.00"]);
}

/// Case 16: an exact duplicate that comes long after is recognised, however often.
#[test]
fn a_duplicate_after_days_counts_once() {
    let lab = Lab::new(&feeds(&["feed"], "watermark_delay = \"0s\"\nallowed_lateness = \"1d\"", "partition = \"day\""));
    for name in ["first", "second", "third"] {
        lab.try_land("feed", &format!("{name}.jsonl"), case(&format!("16-duplicate-after-state-expired/{name}.jsonl"))).unwrap();
        lab.go(Lab::request(Kind::Run, None));
    }
    let before = lab.rows("select checksum from restitch_partitions order by partition");
    let repaired = lab.repair();
    assert_eq!((repaired.partitions[0].duplicates, repaired.partitions[0].conflicts), (1, 0));
    let again = lab.try_land("feed", "third-again.jsonl", case("16-duplicate-after-state-expired/third.jsonl")).unwrap();
    assert!(again.snapshot.is_none(), "the same bytes under another name are known");
    assert_eq!(lab.published(), ["2025-09-10 all 1 5.00", "2025-09-14 all 1 1.00"]);
    assert_eq!(lab.rows("select checksum from restitch_partitions order by partition"), before);
}

/// An event that was filed under the wrong day: both days are built again, and it counts once.
#[test]
fn an_id_with_a_corrected_time_moves_and_counts_once() {
    let lab = Lab::new(ORDERS);
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "10") + &order("e2", "2026-05-02T09:00:00Z", "A", "5"));
    lab.run();
    assert_eq!(lab.published(), ["2026-05-01 A 1 10.00", "2026-05-02 A 1 5.00"]);
    // Another customer's order of that day stays; e1 happened on the second.
    let moved = lab.land("b.jsonl", order("e1", "2026-05-02T10:00:00Z", "A", "11") + &order("e3", "2026-05-02T11:00:00Z", "B", "1"));
    let queued: Vec<_> = moved.queued.iter().map(|q| (q.partition.as_str(), q.kind.name(), q.tier.as_str(), q.records)).collect();
    assert_eq!(queued, [("2026-05-01", "moved", "repair", 1)]);
    let run = lab.run();
    assert_eq!(names_of(&run), ["2026-05-02"]);
    assert_eq!(status(&lab).1.partitions.iter().filter(|p| p.dirty).count(), 1);
    let repair = lab.repair();
    assert_eq!((names_of(&repair), repair.partitions[0].moved, repair.partitions[0].rows), (vec!["2026-05-01"], 1, 0));
    assert_eq!(lab.published(), ["2026-05-02 A 2 16.00", "2026-05-02 B 1 1.00"]);
    assert_eq!(lab.rows("select count(*), sum(records) from restitch_queue"), ["0 null"], "numbers also where there is no row");
    // And back again: the last to arrive counts.
    lab.land("c.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "12"));
    assert_eq!(names_of(&lab.repair()), ["2026-05-01", "2026-05-02"]);
    assert_eq!(lab.published(), ["2026-05-01 A 1 12.00", "2026-05-02 A 1 5.00", "2026-05-02 B 1 1.00"]);
    // What is published is what one rebuild gives, and old runs give what they gave.
    let before = lab.rows("select partition, checksum from restitch_partitions order by 1");
    lab.backfill("2026-05-01", "2026-05-02");
    assert_eq!(lab.rows("select partition, checksum from restitch_partitions order by 1"), before);
    for run in 1..=5 {
        let replayed = lab.replay(format!("r{run}").parse().unwrap()).unwrap();
        assert!(replayed.partitions.iter().all(|p| p.equal()), "r{run}");
    }
}

fn names_of(m: &restitch::manifest::Manifest) -> Vec<&str> {
    m.partitions.iter().map(|p| p.partition.as_str()).collect()
}

/// Conflicts can be listed: what came, from where, and which one counts.
#[test]
fn records_in_conflict_are_listed_side_by_side() {
    let mut lab = Lab::new(ORDERS);
    let again = order("e1", "2026-05-01T09:00:00Z", "A", "10");
    lab.land("a.jsonl", again.clone() + &order("e2", "2026-05-01T10:00:00Z", "A", "5") + &order("e3", "2026-05-01T11:00:00Z", "B", "1"));
    lab.now = "2026-06-02T00:00:00Z";
    lab.land("b.jsonl", again + &order("e2", "2026-05-01T10:00:00Z", "A", "7") + &order("e3", "2026-05-02T11:00:00Z", "B", "1"));
    let listed = |lab: &Lab, partition: &str| -> Vec<String> {
        let rows = restitch::query::rows_json(&lab.open().conflicts("daily", partition, 100).unwrap());
        let line =
            |r: &serde_json::Value| format!("{} {} {} {}", r["event_id"].as_str().unwrap(), r["amount"].as_str().unwrap(), r["_offset"], r["kept"]);
        rows.as_array().unwrap().iter().map(line).collect()
    };
    let e3 = ["e3 1.00 3 false", "e3 1.00 3 true"];
    assert_eq!(listed(&lab, "2026-05-01"), [&["e2 5.00 2 false", "e2 7.00 2 true"], &e3[..]].concat());
    assert_eq!(listed(&lab, "2026-05-02"), e3);
    assert!(listed(&lab, "2026-05-03").is_empty());
    // By arrival, also where the clock was put back, or stands.
    lab.now = "2026-05-31T00:00:00Z";
    lab.land("c.jsonl", order("e2", "2026-05-01T10:00:00Z", "A", "8"));
    lab.land("d.jsonl", order("e2", "2026-05-01T10:00:00Z", "A", "9"));
    let e2 = ["e2 5.00 2 false", "e2 7.00 2 false", "e2 8.00 1 false", "e2 9.00 1 true"];
    assert_eq!(listed(&lab, "2026-05-01"), [&e2, &e3[..]].concat());
}

/// Who counts is said of every record as the runs have it: first by its id in its source, then by its key among those of all sources in its partition.
#[test]
fn what_counts_is_said_as_it_is_published_for_several_sources_too() {
    let lab = Lab::new(&feeds(&["east", "west"], "repair_window = \"30d\"", "partition = \"day\""));
    let land = |source: &str, day: u32, hour: u32, v: u32| {
        let line = format!("{{\"id\":\"o\",\"ts\":\"2026-05-{day:02}T{hour:02}:00:00Z\",\"v\":{v}}}\n");
        lab.try_land(source, &format!("{v}.jsonl"), line).unwrap();
    };
    let check = |partition: &str, want: &[(&str, bool)]| {
        lab.backfill("2026-05-01", "2026-05-03");
        let rows = restitch::query::rows_json(&lab.open().conflicts("daily", partition, 100).unwrap());
        let kept = |r: &serde_json::Value| (r["amount"].as_str().unwrap().to_owned(), r["kept"].as_bool().unwrap());
        let want: Vec<_> = want.iter().map(|(amount, kept)| (format!("{amount}.00"), *kept)).collect();
        assert_eq!(rows.as_array().unwrap().iter().map(kept).collect::<Vec<_>>(), want);
        let counted = lab.rows("select cast(total as varchar) from daily order by 1");
        assert!(want.iter().filter(|(_, kept)| *kept).all(|(amount, _)| counted.contains(amount)), "{counted:?}");
        counted
    };
    land("west", 2, 10, 1);
    land("east", 2, 11, 2);
    land("east", 1, 11, 3);
    // The one of east went to another day, so that of west counts.
    assert_eq!(check("2026-05-02", &[("1", true), ("2", false), ("3", true)]), ["1.00", "3.00"]);
    // There another one of west meets it, and comes later.
    land("west", 1, 12, 4);
    assert_eq!(check("2026-05-02", &[("1", false), ("2", false), ("3", false), ("4", true)]), ["4.00"]);
    assert_eq!(check("2026-05-01", &[("1", false), ("2", false), ("3", false), ("4", true)]), ["4.00"]);
    // Each on a day of its own.
    land("west", 3, 12, 5);
    assert_eq!(check("2026-05-02", &[("1", false), ("2", false), ("3", true), ("4", false), ("5", true)]), ["3.00", "5.00"]);
}

/// Payloads of one id that differ inside a partition are counted there, whichever of its records counts, and where.
#[test]
fn records_in_conflict_are_counted_also_where_they_moved() {
    for keep in ["latest_ingested", "first_ingested"] {
        let mut lab = Lab::new(&ORDERS.replace("latest_ingested", keep));
        for (i, at) in ["02T11", "01T11", "02T12"].iter().enumerate() {
            lab.land(&format!("{i}.jsonl"), order("o", &format!("2026-05-{at}:00:00Z"), "A", &format!("{}", i + 2)));
        }
        for memory_bytes in [64 << 20, 1] {
            lab.memory_bytes = memory_bytes;
            let run = lab.backfill("2026-05-01", "2026-05-02");
            let counts: Vec<_> = run.partitions.iter().map(|p| (p.records, p.duplicates, p.moved, p.conflicts, p.rows)).collect();
            assert_eq!(counts, [(1, 0, 1, 0, 0), (2, 0, 1, 1, 1)], "{keep}");
        }
    }
}

/// The other rules, and the other ways of coming: in one file, first come, forbidden, under another key.
#[test]
fn every_rule_has_its_moves() {
    let lines = order("e1", "2026-05-01T09:00:00Z", "A", "10") + &order("e1", "2026-05-03T09:00:00Z", "A", "11");
    let with = |from: &str, to: &str| Lab::new(&ORDERS.replace(from, to));
    let published = |lab: &Lab| {
        lab.land("a.jsonl", &lines);
        lab.try_go(Lab::request(Kind::Run, None)).map(|_| lab.published()).map_err(|e| crate::support::chain(&e))
    };
    assert_eq!(published(&Lab::new(ORDERS)), Ok(vec!["2026-05-03 A 1 11.00".into()]));
    assert_eq!(published(&with("latest_ingested", "first_ingested")), Ok(vec!["2026-05-01 A 1 10.00".into()]));
    let refused = published(&with("latest_ingested", "fail")).unwrap_err();
    assert_eq!(
        refused,
        "partition 2026-05-01 has 1 record(s) whose id has a record with another event time, in another partition, and dedup says fail"
    );
    assert!(published(&with("on_conflict = \"count\"", "on_conflict = \"fail\"")).unwrap_err().contains("another event time"));
    // A customer may well come every day: only the record's own id is followed.
    let days = published(&with("dedup = { key = [\"event_id\"]", "dedup = { key = [\"customer_id\"]"));
    assert_eq!(days, Ok(vec!["2026-05-01 A 1 10.00".into(), "2026-05-03 A 1 11.00".into()]));
    // Streamed in passes, as a partition larger than memory is.
    let mut small = Lab { memory_bytes: 1, ..Lab::new(&ORDERS.replace("\"day\"", "\"month\"")) };
    small.land("may.jsonl", &lines);
    small.land("june.jsonl", order("e1", "2026-06-01T09:00:00Z", "A", "12") + &order("e2", "2026-05-02T09:00:00Z", "A", "1"));
    let run = small.run();
    assert_eq!(run.partitions.iter().map(|p| (p.records, p.moved, p.duplicates)).collect::<Vec<_>>(), [(3, 2, 0), (1, 0, 0)]);
    small.memory_bytes = 64 << 20;
    assert_eq!(small.published(), ["2026-05 A 1 1.00", "2026-06 A 1 12.00"]);
}

/// An id that goes on leaves only its last place; a record from the future takes nobody's; and a rule that forbids is kept by either side.
#[test]
fn only_the_place_that_was_left_is_built_again() {
    let lab = Lab { now: "2026-05-10T00:00:00Z", ..Lab::new(&ORDERS.replace("400000h", "1h")) };
    for (day, name) in [("01", "a"), ("02", "b"), ("03", "c")] {
        let landed = lab.land(name, order("e1", &format!("2026-05-{day}T09:00:00Z"), "A", "1"));
        let queued: Vec<_> = landed.queued.iter().map(|q| q.partition.as_str()).collect();
        assert_eq!(queued.len(), (name != "a") as usize, "{queued:?}");
        lab.go(Lab::request(Kind::Run, None));
        lab.try_go(Lab::request(Kind::Repair, None)).unwrap();
    }
    assert_eq!(lab.published(), ["2026-05-03 A 1 1.00"]);
    let future = lab.land("future", order("e1", "2999-05-03T09:00:00Z", "A", "9"));
    assert!(future.queued.is_empty(), "{:?}", future.queued);
    lab.backfill("2026-05-03", "2026-05-03");
    assert_eq!(lab.published(), ["2026-05-03 A 1 1.00"], "a typo of a year takes no record away");

    let fail = Lab::new(&ORDERS.replace("latest_ingested", "fail"));
    fail.land("a", order("e1", "2026-05-01T09:00:00Z", "A", "1"));
    fail.run();
    fail.land("b", order("e1", "2026-05-02T09:00:00Z", "A", "1"));
    let refused = fail.try_go(Lab::request(Kind::Run, None)).unwrap_err();
    assert!(crate::support::chain(&refused).contains("partition 2026-05-02 has 1 record(s) whose id"), "{refused}");
}

/// A booking that was made ahead, and then moved: it counts once, whether the clock had passed it or not, and what was built with it is built again.
#[test]
fn a_record_from_the_future_counts_once_too() {
    for keep in ["latest_ingested", "first_ingested"] {
        let toml = ORDERS.replace("400000h", "1h").replace("latest_ingested", keep);
        // Built when its day had come, and then replaced by one that was not ahead of its time.
        let mut lab = Lab { now: "2026-05-01T00:00:00Z", ..Lab::new(&toml) };
        lab.land("a", order("x", "2026-05-10T10:00:00Z", "A", "1"));
        lab.now = "2026-05-11T12:00:00Z";
        lab.land("z", order("z", "2026-05-11T11:00:00Z", "Z", "1"));
        lab.go(Lab::request(Kind::Run, None));
        assert_eq!(lab.published(), ["2026-05-10 A 1 1.00", "2026-05-11 Z 1 1.00"], "{keep}");
        lab.now = "2026-05-12T12:00:00Z";
        let moved = lab.land("b", order("x", "2026-05-12T10:00:00Z", "A", "2"));
        assert_eq!(moved.queued.iter().map(|q| (q.partition.as_str(), q.kind.name())).collect::<Vec<_>>(), [("2026-05-10", "moved")], "{keep}");
        lab.go(Lab::request(Kind::Run, None));
        lab.try_go(Lab::request(Kind::Repair, None)).unwrap();
        let once = ["2026-05-11 Z 1 1.00", "2026-05-12 A 1 2.00"];
        assert_eq!(lab.published(), once, "{keep}");
        lab.backfill("2026-05-10", "2026-05-12");
        assert_eq!(lab.published(), once, "{keep}");

        // Two of one id, both ahead of their time.
        let mut lab = Lab { now: "2026-05-01T00:00:00Z", ..Lab::new(&toml) };
        lab.land("a", order("x", "2026-05-10T10:00:00Z", "A", "1"));
        lab.now = "2026-05-02T00:00:00Z";
        lab.land("b", order("x", "2026-05-12T10:00:00Z", "A", "2"));
        lab.land("typo", order("y", "2999-05-12T10:00:00Z", "A", "7"));
        lab.now = "2026-05-20T12:00:00Z";
        lab.land("c", order("z", "2026-05-20T10:00:00Z", "Z", "1") + &order("y", "2026-05-20T10:00:00Z", "B", "7"));
        lab.go(Lab::request(Kind::Run, None));
        let one = if keep == "first_ingested" { "2026-05-10 A 1 1.00" } else { "2026-05-12 A 1 2.00" };
        assert_eq!(lab.published(), [one, "2026-05-20 B 1 7.00", "2026-05-20 Z 1 1.00"], "{keep}");
        assert_eq!(lab.rows("select count(*) from restitch_queue"), ["0"], "a year that was a typo is not built, and nothing waits for it");
        let listed = restitch::query::rows_json(&lab.open().conflicts("daily", "2026-05-10", 100).unwrap());
        let kept: Vec<_> = listed.as_array().unwrap().iter().map(|r| (r["amount"].as_str().unwrap(), r["kept"].as_bool().unwrap())).collect();
        let first = keep == "first_ingested";
        assert_eq!(kept, [("1.00", first), ("2.00", !first)], "{keep}");

        // One of today, one that was ahead on the same day, and one on another: what is published stays what a rebuild gives. In memory, and in passes.
        for memory_bytes in [64 << 20, 1] {
            let mut lab = Lab { now: "2026-05-01T12:00:00Z", ..Lab::new(&toml) };
            lab.land("a", order("x", "2026-05-01T10:00:00Z", "A", "1"));
            lab.land("b", order("x", "2026-05-01T20:00:00Z", "A", "2"));
            lab.now = "2026-05-03T12:00:00Z";
            lab.land("z", order("z", "2026-05-03T10:00:00Z", "Z", "1"));
            lab.memory_bytes = memory_bytes;
            lab.go(Lab::request(Kind::Run, None));
            lab.memory_bytes = 64 << 20;
            let published = lab.published();
            assert_eq!(published[0], "2026-05-01 A 1 1.00", "{keep}: a real one counts");
            lab.land("c", order("x", "2026-05-09T20:00:00Z", "A", "3"));
            assert_eq!(status(&lab).1.partitions.iter().filter(|p| p.dirty).count(), 0);
            lab.memory_bytes = memory_bytes;
            lab.backfill("2026-05-01", "2026-05-03");
            lab.memory_bytes = 64 << 20;
            assert_eq!(lab.published(), published, "{keep}");
        }
    }
    // Where a rule forbids two places, a year that was a typo is not in the way of the day that is right.
    let fail = Lab { now: "2026-05-02T00:00:00Z", ..Lab::new(&ORDERS.replace("400000h", "1h").replace("latest_ingested", "fail")) };
    fail.land("a", order("x", "2026-05-01T10:00:00Z", "A", "1"));
    fail.run();
    fail.land("b", order("x", "2099-05-01T10:00:00Z", "A", "1"));
    fail.backfill("2026-05-01", "2026-05-01");
    assert_eq!(fail.published(), ["2026-05-01 A 1 1.00"]);
}

/// A dataset that restitch.toml leaves out for a while misses nothing that moved meanwhile.
#[test]
fn a_dataset_that_was_left_out_is_caught_up() {
    let lab = Lab::new(ORDERS);
    lab.land("a", order("e1", "2026-05-01T09:00:00Z", "A", "1"));
    lab.run();
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    std::fs::write(lab.path("restitch.toml"), toml.replace("[dataset.daily]", "[dataset.other]")).unwrap();
    lab.land("b", order("e1", "2026-05-02T09:00:00Z", "A", "1"));
    std::fs::write(lab.path("restitch.toml"), &toml).unwrap();
    assert_eq!(status(&lab).1.partitions.iter().filter(|p| p.dirty).count(), 1);
    lab.run();
    lab.repair();
    assert_eq!(lab.published(), ["2026-05-02 A 1 1.00"]);
}

/// A dataset that is declared when everything is landed, and an index that was lost or damaged.
#[test]
fn moves_are_found_in_what_was_landed_before() {
    let lab = Lab::new(ORDERS);
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    std::fs::write(lab.path("restitch.toml"), toml.split("[dataset").next().unwrap()).unwrap();
    lab.land("a.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "10"));
    lab.land("b.jsonl", order("e1", "2026-05-02T09:00:00Z", "A", "11"));
    std::fs::write(lab.path("restitch.toml"), &toml).unwrap();
    lab.run();
    assert_eq!(lab.published(), ["2026-05-02 A 1 11.00"]);
    for damage in [None, Some("no database at all, but long enough to be taken for one".repeat(100))] {
        for file in ["ids.sqlite", "ids.sqlite-wal", "ids.sqlite-shm"] {
            std::fs::remove_file(lab.path("warehouse").join(file)).ok();
        }
        if let Some(bytes) = &damage {
            std::fs::write(lab.path("warehouse/ids.sqlite"), bytes).unwrap();
        }
        let amount = if damage.is_none() { "12" } else { "13" };
        let queued = lab
            .land(
                &format!("{amount}.jsonl"),
                order("e1", if damage.is_none() { "2026-05-03T09:00:00Z" } else { "2026-05-02T09:00:00Z" }, "A", amount),
            )
            .queued;
        assert!(queued.iter().any(|q| q.kind.name() == "moved"), "{queued:?}");
        lab.go(Lab::request(Kind::Run, None));
        lab.try_go(Lab::request(Kind::Repair, None)).unwrap();
    }
    assert_eq!(lab.published(), ["2026-05-02 A 1 13.00"]);
}

/// What a run finds of its sources is written down, also if there is nothing to build: views and retention go by it.
#[test]
fn a_run_with_nothing_to_do_says_what_is_final() {
    let toml = feeds(
        &["east", "west"],
        "watermark_delay = \"0s\"\nallowed_lateness = \"1h\"\nrepair_window = \"2h\"\nidle_after = \"2h\"",
        "partition = \"hour\"",
    );
    let mut lab = Lab { now: "2025-09-01T10:00:00Z", ..Lab::new(&toml) };
    let line = |id: &str, ts: &str| format!("{{\"id\":\"{id}\",\"ts\":\"{ts}\",\"v\":1}}\n");
    lab.try_land("east", "e.jsonl", line("e1", "2025-09-01T06:30:00Z") + &line("e2", "2025-09-01T09:30:00Z")).unwrap();
    lab.run();
    let states = || lab.rows("select state from restitch_partitions order by partition");
    assert_eq!(states(), ["open", "open"], "west is waited for");
    lab.now = "2025-09-02T10:00:00Z";
    let states = || lab.rows("select state from restitch_partitions order by partition");
    assert!(lab.go(Lab::request(Kind::Run, None)).manifest.is_none());
    assert_eq!(states(), ["final", "open"]);
}

/// What the catalog holds beside the rows of runs, as SQL.
fn catalog_without_runs(lab: &Lab) -> Vec<String> {
    let script = "import sqlite3, sys; print('\\n'.join(sqlite3.connect(sys.argv[1]).iterdump()))";
    let out = std::process::Command::new("python3").args(["-c", script, &lab.catalog()]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let own = ["restitch_run", "restitch_run_partition", "restitch_run_file", "restitch_check", "sqlite_sequence"];
    let of_run = |line: &&str| own.iter().any(|table| line.starts_with(&format!("INSERT INTO \"{table}\" ")));
    String::from_utf8(out.stdout).unwrap().lines().filter(|l| !of_run(l)).map(str::to_owned).collect()
}

/// A question of tomorrow leaves nothing behind: what is on time today is decided today.
#[test]
fn what_only_looks_or_computes_keeps_nothing_but_its_own_run() {
    let policy = "watermark_delay = \"0s\"\nallowed_lateness = \"1h\"\nrepair_window = \"12h\"\nidle_after = \"6h\"";
    let mut lab = Lab { now: "2026-05-04T11:00:00Z", ..Lab::new(&feeds(&["east", "west"], policy, "partition = \"day\"")) };
    let line = |id: &str, ts: &str| format!("{{\"id\":\"{id}\",\"ts\":\"{ts}\",\"v\":1}}\n");
    lab.try_land("west", "w1.jsonl", line("w1", "2026-05-01T10:00:00Z")).unwrap();
    lab.try_land("east", "e1.jsonl", line("e1", "2026-05-04T10:00:00Z")).unwrap();
    lab.run();
    let before = catalog_without_runs(&lab);
    assert!(before.iter().any(|l| l.contains("restitch_joint_watermark\" VALUES('daily'")), "{before:?}");
    let window = "--start 2026-05-01 --end 2026-05-01";
    for words in [
        "status",
        "plan daily",
        "run daily --dry-run",
        "repair daily --dry-run",
        &format!("backfill daily {window} --dry-run"),
        &format!("backfill daily {window} --dry-run --mode merge"),
        &format!("plan backfill daily {window} --dry-run -o plan.json"),
        "apply plan.json",
        &format!("diff daily --transform customer-totals@1.0.0 {window}"),
        "diff r1",
        &format!("transform prove customer-totals@1.0.0 daily {window}"),
        "verify r1",
        "replay r1",
        "why daily 2026-05-01",
        "conflicts daily 2026-05-01",
        "gc --dry-run",
        "doctor",
    ] {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_restitch"));
        command.current_dir(lab.folder.path()).args(["--now", "2026-05-05T11:00:00Z"]).args(words.split(' '));
        let out = command.output().unwrap();
        assert!(out.status.success(), "{words}: {}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(catalog_without_runs(&lab), before, "{words}");
    }
    lab.now = "2026-05-04T12:00:00Z";
    let landed = lab.try_land("west", "w2.jsonl", line("w2", "2026-05-02T10:00:00Z")).unwrap();
    assert_eq!((landed.files[0].counts.on_time, landed.queued.len()), (1, 0), "west is not idle yet");
}

/// Equal to the cutoff is on time; a heartbeat counts as a sign of life.
#[test]
fn a_watermark_by_hand_closes_and_wakes() {
    let toml = feeds(&["east", "west"], "watermark_delay = \"0s\"\nallowed_lateness = \"1h\"\nidle_after = \"30m\"", "partition = \"hour\"");
    let mut lab = Lab { now: "2025-09-01T10:00:00Z", ..Lab::new(&toml) };
    let line = |id: &str, ts: &str| format!("{{\"id\":\"{id}\",\"ts\":\"{ts}\",\"v\":1}}\n");
    lab.try_land("east", "e.jsonl", line("e1", "2025-09-01T09:00:00Z")).unwrap();
    lab.try_land("west", "w.jsonl", line("w1", "2025-09-01T06:00:00Z")).unwrap();
    assert_eq!(complete_to(&lab), "2025-09-01T06:00:00Z");
    lab.now = "2025-09-01T10:20:00Z";
    let at = |t: &str| -> EventTime { parse(t, chrono_tz::Tz::UTC).unwrap() };
    lab.open().advance_watermark("west", at("2025-09-01T08:30:00Z")).unwrap();
    lab.now = "2025-09-01T10:45:00Z";
    let (sources, dataset) = status(&lab);
    assert_eq!(sources.iter().map(|s| s.idle).collect::<Vec<_>>(), [true, false]);
    assert_eq!(dataset.stand.unwrap().watermark.0.to_string(), "2025-09-01T08:30:00Z");
    let landed = lab.try_land("west", "w2.jsonl", line("w2", "2025-09-01T07:30:00Z") + &line("w3", "2025-09-01T07:29:59.999999Z")).unwrap();
    assert_eq!((landed.files[0].counts.on_time, landed.files[0].counts.repair), (1, 1), "equal to the cutoff is on time");
}

/// Ids that come again with other amounts and other days, in any split into files and with any runs in between, end where one rebuild of the
/// same order of arrival ends; raw, deduplicated by the rule, sums to what is published.
#[test]
fn corrections_in_any_batches_end_in_the_bits_of_one_rebuild() {
    for seed in 1..=4 {
        let mut random = Random(seed * 104_729);
        let mut below = |n| random.below(n);
        let lines: Vec<String> = (0..80)
            .map(|_| {
                let time = format!("2026-05-0{}T{:02}:{:02}:00Z", 1 + below(5), below(24), below(60));
                order(&format!("e{}", below(30)), &time, &format!("C{}", below(4)), &format!("{}.{:02}", below(900), below(100)))
            })
            .collect();
        let (rebuilt, lived) = (Lab::new(ORDERS), Lab::new(ORDERS));
        rebuilt.land("all.jsonl", lines.concat());
        rebuilt.backfill("2026-05-01", "2026-05-05");
        let mut rest = lines.as_slice();
        for n in 0.. {
            let (piece, next) = rest.split_at((1 + below(20)).min(rest.len()));
            lived.land(&format!("{n}.jsonl"), piece.concat() + &"\n".repeat(n));
            rest = next;
            match below(3) {
                0 => drop(lived.go(Lab::request(Kind::Run, None))),
                1 => drop(lived.try_go(Lab::request(Kind::Repair, None))),
                _ => {}
            }
            if rest.is_empty() {
                break;
            }
        }
        lived.go(Lab::request(Kind::Run, None));
        let dirty = RunRequest { only: Some(Reason::Dirty), ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-05"))) };
        lived.go(dirty);
        const CHECKSUMS: &str = "select partition, checksum from restitch_partitions where rows > 0 order by 1";
        assert_eq!(lived.rows(CHECKSUMS), rebuilt.rows(CHECKSUMS), "seed {seed}");
        assert_eq!(lived.rows("select count(*) from restitch_queue"), ["0"], "seed {seed}");
        let last =
            "select sum(amount) from (select amount, row_number() over (partition by event_id order by _seq desc) as n from raw_orders) where n = 1";
        assert_eq!(rebuilt.rows(last), rebuilt.rows("select sum(total) from daily"), "seed {seed}");
    }
}

/// The first and the last instants of time are partitions like others, in any zone, and hold nothing up.
#[test]
fn the_ends_of_time_are_built_like_any_other_day() {
    for zone in ["UTC", "America/New_York", "Asia/Kathmandu"] {
        let lab = Lab::new(&ORDERS.replace("partition = \"day\"", &format!("partition = \"day\"\ntime_zone = \"{zone}\"")));
        let ends = ["0001-01-01T00:00:00Z", "2026-05-01T12:00:00Z", "9999-12-31T23:59:59Z"];
        lab.land("a", ends.iter().enumerate().map(|(i, at)| order(&format!("e{i}"), at, "A", "1")).collect::<String>());
        let run = lab.run();
        assert_eq!(run.partitions.iter().map(|p| p.rows).collect::<Vec<_>>(), [1, 1], "{zone}: the future is not built before it comes");
        let calendar = Calendar { grain: Grain::Day, zone: zone.parse().unwrap() };
        for at in ends {
            let name = calendar.name(&calendar.at(parse(at, chrono_tz::Tz::UTC).unwrap()));
            let built = lab.backfill(&name, &name);
            assert_eq!((built.partitions.len(), built.partitions[0].rows), (1, 1), "{zone} {name}");
            assert!(lab.open().verify(built.run, &()).unwrap().failed.is_empty());
        }
        assert!(lab.replay(run.run).unwrap().partitions.iter().all(|p| p.equal()));
    }
}

/// Lands a record of another source as soon as an ingest has begun to read.
struct Meanwhile<'l>(&'l Lab, std::cell::Cell<bool>);

impl restitch::ingest::Progress for Meanwhile<'_> {
    fn bytes(&self, _: u64, _: u64) {
        if !self.1.replace(true) {
            self.0.try_land("east", "e2.jsonl", "{\"id\":\"e2\",\"ts\":\"2025-09-01T10:00:00Z\",\"v\":1}\n").unwrap();
        }
    }
}

/// Two ingests at once leave what they leave one after the other: how far all sources are complete together.
#[test]
fn sources_that_land_at_once_are_judged_together() {
    let toml = feeds(&["east", "west"], "watermark_delay = \"0s\"", "partition = \"hour\"");
    let lab = Lab { now: "2025-09-01T12:00:00Z", ..Lab::new(&toml) };
    let line = |id: &str, ts: &str| format!("{{\"id\":\"{id}\",\"ts\":\"{ts}\",\"v\":1}}\n");
    lab.try_land("east", "e.jsonl", line("e1", "2025-09-01T06:00:00Z")).unwrap();
    lab.try_land("west", "w.jsonl", line("w1", "2025-09-01T06:00:00Z")).unwrap();
    lab.run();
    let file = lab.path("w2.jsonl");
    std::fs::write(&file, line("w2", "2025-09-01T11:00:00Z")).unwrap();
    // West began before east landed 10:00, and ends after it.
    lab.open().ingest("west", &[file], None, &Meanwhile(&lab, Default::default())).unwrap();
    let stands = "select value_us from restitch_joint_watermark where dataset = 'daily'";
    assert_eq!(lab.rows(stands), [parse("2025-09-01T10:00:00Z", chrono_tz::Tz::UTC).unwrap().0.to_string()]);
    assert_eq!(lab.rows("select partition, state from restitch_partitions"), ["2025-09-01T06 closed"]);
    assert_eq!(names(&lab.plan(Kind::Run, None, None)), ["2025-09-01T10", "2025-09-01T11"]);
}

/// What was on time when an ingest began may be late when it ends: then it says so, and is given again.
#[test]
fn a_dataset_that_is_completed_under_an_ingest_is_noticed() {
    let toml = feeds(&["east", "west"], "watermark_delay = \"0s\"\nidle_after = \"30m\"", "partition = \"hour\"");
    let mut lab = Lab { now: "2025-09-01T10:00:00Z", ..Lab::new(&toml) };
    let line = |id: &str, ts: &str| format!("{{\"id\":\"{id}\",\"ts\":\"{ts}\",\"v\":1}}\n");
    lab.try_land("east", "e.jsonl", line("e1", "2025-09-01T09:00:00Z")).unwrap();
    lab.try_land("west", "w.jsonl", line("w1", "2025-09-01T06:00:00Z")).unwrap();
    lab.now = "2025-09-01T10:45:00Z";
    let file = lab.path("w2.jsonl");
    std::fs::write(&file, line("w2", "2025-09-01T09:30:00Z")).unwrap();
    let e = lab.open().ingest("west", std::slice::from_ref(&file), None, &Meanwhile(&lab, Default::default())).unwrap_err();
    assert_eq!((e.kind().code(), e.to_string().contains("complete further than when this began")), (4, true), "{e}");
    assert_eq!(lab.rows("select count(*) from raw_west"), ["1"]);
    let again = lab.open().ingest("west", &[file], None, &()).unwrap();
    assert_eq!(again.queued.iter().map(|q| (q.partition.as_str(), q.records)).collect::<Vec<_>>(), [("2025-09-01T09", 1)]);
}
