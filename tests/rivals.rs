//! Processes of the real command at once on one warehouse: ingest, repair, backfill, rollback, gc, and a reader in between.
//! DuckDB is among them. Every order of them has to leave what the records say. `RESTITCH_RIVAL_ROUNDS` makes each rival go on for longer.

use crate::support::{Lab, ORDERS, copy, order};
use restitch::{
    id::RunId,
    manifest::{Manifest, Status},
    store::Store,
    time::parse,
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    process::Command,
    sync::atomic::{AtomicUsize, Ordering},
    thread,
};

/// Days that are always landed, computed and restored together, two by two.
const PAIRS: [[&str; 2]; 2] = [["2026-05-01", "2026-05-02"], ["2026-05-03", "2026-05-04"]];

fn rounds() -> usize {
    std::env::var("RESTITCH_RIVAL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(2)
}

/// Runs the command; what it answers, and its exit code.
fn restitch(lab: &Lab, words: &[&str]) -> (i32, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
    let out = command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now, "--json", "--workers", "1"]).args(words).output().unwrap();
    let told = String::from_utf8_lossy(&out.stderr).into_owned();
    let answer = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{words:?}: {e}: {told}"));
    (out.status.code().unwrap_or_else(|| panic!("{words:?} died: {told}")), answer)
}

/// An order of the amount 1 on each of the four days.
fn orders(name: &str) -> String {
    PAIRS.as_flattened().iter().map(|day| order(&format!("{name}-{day}"), &format!("{day}T09:00:00Z"), "A", "1")).collect()
}

fn warehouse() -> Lab {
    let lab = Lab::new(ORDERS);
    lab.land("first.jsonl", orders("first"));
    lab.run();
    // All four days are closed: a repair takes in whatever is dirty, and no day alone.
    lab.open().advance_watermark("orders", parse("2026-05-05T01:00:00Z", chrono_tz::Tz::UTC).unwrap()).unwrap();
    lab
}

/// A rival may win or lose, and nothing else: whoever loses is told so by the exit code 4.
fn contend(lab: &Lab, words: &[&str], lost: &AtomicUsize) {
    let (code, answer) = restitch(lab, words);
    assert!(matches!(code, 0 | 4), "{words:?}: {answer:#}");
    if code == 4 {
        lost.fetch_add(1, Ordering::SeqCst);
        assert!(answer.pointer("/error/hint").is_some_and(Value::is_string), "{words:?}: no way out: {answer:#}");
    }
}

/// Rolls back whatever was published last. Somebody else may have done so meanwhile, or replaced it: both are said.
fn roll_back(lab: &Lab, lost: &AtomicUsize) {
    let (code, answer) = restitch(lab, &["runs", "daily"]);
    assert_eq!(code, 0, "{answer:#}");
    let published = |r: &&Value| r["status"] == "published" && r["kind"] != "rollback" && r["run"] != "r1";
    if let Some(run) = answer["runs"].as_array().unwrap().iter().find(published) {
        contend(lab, &["rollback", run["run"].as_str().unwrap()], lost);
    }
}

/// No torn read: both days of a pair are as one publication left them. No doubled row: a customer has one row a day, and
/// each order in it counts 1.
fn look(lab: &Lab) {
    let sql = "select _partition, count(*) as n, sum(orders) as orders, sum(total) as total from daily group by 1 order by 1";
    let (code, answer) = restitch(lab, &["query", sql]);
    assert_eq!(code, 0, "{answer:#}");
    let text = |v: &Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
    let rows = answer["rows"].as_array().unwrap_or_else(|| panic!("{answer:#}"));
    assert_eq!(rows.len(), 4, "{answer:#}");
    for pair in rows.chunks(2) {
        assert!(pair.iter().all(|r| text(&r["n"]) == "1" && text(&r["total"]) == text(&r["orders"]) + ".00"), "doubled: {answer:#}");
        assert_eq!(pair[0]["orders"], pair[1]["orders"], "torn: {answer:#}");
    }
}

/// No lost update: in each partition every publication had seen the one before it, so none was overwritten unseen.
fn each_had_seen_the_one_before(lab: &Lab) {
    let mut workshop = lab.open();
    let rows = workshop.runs(Some("daily"), 1_000_000).unwrap();
    let published = rows.iter().filter(|r| r.manifest.status == Status::Published).map(|r| r.manifest.run);
    let mut runs: Vec<Manifest> = published.map(|run| workshop.show(run).unwrap().row.manifest).collect();
    runs.sort_by_key(|m| m.published_snapshot.unwrap().0);
    let mut stands: BTreeMap<&str, RunId> = BTreeMap::new();
    for run in &runs {
        for p in &run.partitions {
            let before = stands.insert(&p.partition, run.run);
            assert_eq!(p.prior_run, before, "{} of {}", p.partition, run.run);
        }
    }
    assert_eq!(stands.len(), 4);
}

#[test]
fn rivals_leave_what_the_records_say() {
    let (lab, rounds) = (warehouse(), rounds());
    let lost = AtomicUsize::new(0);
    let (lab, lost) = (&lab, &lost);
    thread::scope(|scope| {
        for rival in ["x", "y"] {
            scope.spawn(move || {
                for round in 0..rounds {
                    let file = format!("{rival}{round}.jsonl");
                    std::fs::write(lab.path(&file), orders(&format!("{rival}{round}"))).unwrap();
                    // Losing an ingest loses nothing: it is given again.
                    loop {
                        let (code, answer) = restitch(lab, &["ingest", "orders", &file]);
                        assert!(matches!(code, 0 | 4), "{answer:#}");
                        if code == 0 {
                            break;
                        }
                        lost.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        for [start, end] in PAIRS {
            scope.spawn(move || (0..rounds).for_each(|_| contend(lab, &["backfill", "daily", "--start", start, "--end", end], lost)));
        }
        for _ in 0..2 {
            scope.spawn(move || (0..rounds).for_each(|_| contend(lab, &["repair", "daily"], lost)));
        }
        scope.spawn(move || (0..rounds).for_each(|_| roll_back(lab, lost)));
        scope.spawn(move || (0..rounds).for_each(|_| contend(lab, &["gc", "--keep", "2", "--yes"], lost)));
        scope.spawn(move || (0..rounds * 2).for_each(|_| look(lab)));
    });
    look(lab);
    each_had_seen_the_one_before(lab);
    // Whoever lost comes again, alone: nothing is in the way, and nothing was lost.
    for [start, end] in PAIRS {
        let (code, answer) = restitch(lab, &["backfill", "daily", "--start", start, "--end", end]);
        assert_eq!(code, 0, "{answer:#}");
    }
    let each = 1 + 2 * rounds;
    let want: Vec<String> = PAIRS.as_flattened().iter().map(|day| format!("{day} A {each} {each}.00")).collect();
    assert_eq!(lab.published(), want, "{} lost", lost.load(Ordering::SeqCst));
    assert_eq!(lab.rows("select count(*), count(distinct _record_id) from raw_orders"), [format!("{0} {0}", 4 * each)]);
    assert_eq!(lab.rows("select count(*) from restitch_partitions where dirty = 1"), ["0"]);
    assert_eq!(lab.rows("select count(*) from restitch_runs where status = 'running'"), ["0"]);
    // What gc could not remove under readers, the next one does.
    assert_eq!(restitch(lab, &["gc", "--keep", "2", "--yes"]).0, 0);
    let report = lab.open().doctor(false).unwrap();
    assert!(report.healthy() && report.orphans.is_empty(), "{report:?}");
}

#[test]
fn different_partitions_do_not_disturb_each_other() {
    let lab = warehouse();
    for round in 1..=rounds().min(20) {
        let name = format!("more{round}");
        lab.land(&format!("{name}.jsonl"), orders(&name));
        thread::scope(|scope| {
            let lab = &lab;
            let go = |[start, end]: [&'static str; 2]| scope.spawn(move || restitch(lab, &["backfill", "daily", "--start", start, "--end", end]));
            for one in PAIRS.map(go) {
                let (code, answer) = one.join().unwrap();
                assert_eq!(code, 0, "{answer:#}");
            }
        });
        let want: Vec<String> = PAIRS.as_flattened().iter().map(|day| format!("{day} A {} {}.00", round + 1, round + 1)).collect();
        assert_eq!(lab.published(), want);
    }
}

/// What another tool does until a file `stop` is there, and then once more with success; one line for each time: what it read, `done`, or `error` with what DuckDB said.
struct Duck(std::process::Child);

impl Duck {
    fn begin(lab: &Lab, what: &str) -> Duck {
        let script = r#"
import fcntl, json, pathlib, sys
sys.path.insert(0, sys.argv[1])
import duckdb, lake
catalog, stop, what = sys.argv[2], pathlib.Path(sys.argv[3]), sys.argv[4]
# DuckDB's expiry takes rows of the catalog from under DuckDB's readers, who then see less: between those two restitch can do nothing.
lock = open(sys.argv[3] + ".lock", "w")
READ = "SELECT _partition, count(*)::INT, sum(orders)::INT, sum(total)::INT FROM daily GROUP BY 1 ORDER BY 1"
def once():
    db = lake.attach(catalog, write=what != "read")
    if what == "read":
        return json.dumps(db.execute(READ).fetchall())
    if what == "compact":
        db.execute("CALL ducklake_merge_adjacent_files('lake', 'raw_orders')")
    else:
        db.execute("CALL ducklake_expire_snapshots('lake', older_than => now() - INTERVAL 2 SECOND)")
        db.execute("CALL ducklake_cleanup_old_files('lake', cleanup_all => true)")
    return "done"
while True:
    last = stop.exists()
    fcntl.flock(lock, fcntl.LOCK_EX if what == "expire" else fcntl.LOCK_SH)
    try:
        print(once(), flush=True)
        if last:
            break
    except duckdb.Error as e:
        print("error", " ".join(str(e).split()), flush=True)
    fcntl.flock(lock, fcntl.LOCK_UN)
"#;
        let mut command = Command::new(crate::interop::python());
        command.args(["-B", "-c", script]).arg(std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/interop"));
        command.args([lab.catalog(), lab.path("stop").display().to_string(), what.to_owned()]);
        Duck(command.stdout(std::process::Stdio::piped()).spawn().unwrap())
    }

    fn end(mut self) -> Vec<String> {
        let mut text = String::new();
        std::io::Read::read_to_string(self.0.stdout.as_mut().unwrap(), &mut text).unwrap();
        assert!(self.0.wait().unwrap().success(), "{text}");
        text.lines().map(str::to_owned).collect()
    }
}

impl Drop for Duck {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// As [`contend`], where another tool takes raw files and old snapshots away: who was reading them may say so, and has published nothing.
fn contend_with_cleanups(lab: &Lab, words: &[&str], lost: &AtomicUsize) {
    let (code, answer) = restitch(lab, words);
    let said = answer["error"].to_string();
    let missed = (code == 1 && said.contains("No such file")) || (code == 2 && said.contains("cannot be read any more"));
    assert!(matches!(code, 0 | 4) || missed, "{words:?}: {answer:#}");
    lost.fetch_add((code != 0) as usize, Ordering::SeqCst);
}

/// What DuckDB read: all four days, no row twice, both days of a pair as one publication left them.
fn looked(line: &str) {
    let rows: Vec<(String, i64, i64, i64)> = serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}"));
    assert_eq!(rows.iter().map(|r| r.0.as_str()).collect::<Vec<_>>(), PAIRS.as_flattened(), "{line}");
    assert!(rows.iter().all(|(_, rows, orders, total)| *rows == 1 && orders == total), "doubled: {line}");
    assert!(rows.chunks(2).all(|pair| pair[0].2 == pair[1].2), "torn: {line}");
}

/// DuckDB reads all the while and never sees a torn or a doubled state; another one merges raw files, and a third expires snapshots and removes files.
#[test]
fn duckdb_reads_merges_and_expires_among_rivals() {
    let (lab, rounds) = (warehouse(), rounds() * 2);
    let lost = AtomicUsize::new(0);
    let (lab, lost) = (&lab, &lost);
    let ducks = ["read", "read", "compact", "expire"].map(|what| (what, Duck::begin(lab, what)));
    thread::scope(|scope| {
        scope.spawn(move || {
            for round in 0..rounds {
                let file = format!("d{round}.jsonl");
                std::fs::write(lab.path(&file), orders(&format!("d{round}"))).unwrap();
                while restitch(lab, &["ingest", "orders", &file]).0 != 0 {
                    lost.fetch_add(1, Ordering::SeqCst);
                }
            }
        });
        for [start, end] in PAIRS {
            scope.spawn(move || (0..rounds).for_each(|_| contend_with_cleanups(lab, &["backfill", "daily", "--start", start, "--end", end], lost)));
        }
        scope.spawn(move || (0..rounds).for_each(|_| contend_with_cleanups(lab, &["repair", "daily"], lost)));
        // Once: what one gc removes is an error for a reader of before, and its rows go with the next one.
        scope.spawn(move || contend_with_cleanups(lab, &["gc", "--keep", "1", "--yes"], lost));
    });
    std::fs::write(lab.path("stop"), "").unwrap();
    for (what, duck) in ducks {
        let lines = duck.end();
        let (errors, good): (Vec<&String>, Vec<&String>) = lines.iter().partition(|l| l.starts_with("error"));
        // A tool that finds the catalog busy gives up; one that holds no claim may find a file of before gone. Neither reads something else.
        assert!(errors.iter().all(|e| e.contains("database is locked") || e.contains("No such file")), "{what}: {errors:#?}");
        assert!(!good.is_empty(), "{what}: {errors:#?}");
        good.into_iter().filter(|_| what == "read").for_each(|line| looked(line));
    }
    look(lab);
    each_had_seen_the_one_before(lab);
    for [start, end] in PAIRS {
        let (code, answer) = restitch(lab, &["backfill", "daily", "--start", start, "--end", end]);
        assert_eq!(code, 0, "{answer:#}");
    }
    let want: Vec<String> = PAIRS.as_flattened().iter().map(|day| format!("{day} A {0} {0}.00", 1 + rounds)).collect();
    assert_eq!(lab.published(), want, "{} lost", lost.load(Ordering::SeqCst));
    assert_eq!(lab.rows("select count(*), count(distinct _record_id) from raw_orders"), [format!("{0} {0}", 4 * (1 + rounds))]);
    assert!(lab.open().doctor(false).unwrap().healthy());
}

/// A row that DuckDB puts into a published day is told by whoever comes next, and goes with the next publication of that day.
#[test]
fn a_row_that_duckdb_inserts_is_noticed_and_survived() {
    let lab = warehouse();
    let day = PAIRS[0][0];
    let staged = restitch(&lab, &["backfill", "daily", "--start", day, "--end", day, "--stage"]).1["run"].as_str().unwrap().to_owned();
    let apart = restitch(&lab, &["backfill", "daily", "--start", PAIRS[1][0], "--end", PAIRS[1][1], "--stage"]).1["run"].as_str().unwrap().to_owned();
    let before = lab.published();
    crate::interop::lake(["sql", &lab.catalog(), &format!("INSERT INTO daily SELECT * FROM daily WHERE _partition = '{day}'"), "--write"]);
    assert_eq!(lab.published().len(), 5, "restitch reads what is there");
    for (words, part) in [(vec!["publish", &staged], "files of partition 2026-05-01 were replaced by another tool"), (vec!["doctor"], "2026-05-01")] {
        let (code, answer) = restitch(&lab, &words);
        assert!(matches!(code, 3 | 4) && answer.to_string().contains(part), "{words:?}: {answer:#}");
    }
    assert_eq!(restitch(&lab, &["publish", &apart]).0, 0, "other days are not concerned");
    assert_eq!(restitch(&lab, &["discard", &staged]).0, 0);
    assert_eq!(restitch(&lab, &["backfill", "daily", "--start", day, "--end", day]).0, 0);
    assert_eq!(lab.published(), before);
    assert!(lab.open().doctor(false).unwrap().healthy());
}

/// What DuckDB updates in a published day, or puts into a raw table, is told from what it only packs anew, and nothing is built on it.
#[test]
fn rows_that_duckdb_changed_are_found_by_their_content() {
    let lab = warehouse();
    let duck = |sql: &str| crate::interop::lake(["sql", &lab.catalog(), sql, "--write"]);
    let day = PAIRS[0][0];
    let before = lab.published();
    let broken = |part: &str| {
        let report = lab.open().doctor(false).unwrap();
        assert!(report.broken.iter().any(|line| line.contains(part)), "{part}: {report:?}");
    };
    duck(&format!("UPDATE daily SET total = total + 100 WHERE _partition = '{day}'"));
    broken("partition 2026-05-01 of daily has files of another tool, which hold other rows than r1 published");
    assert!(lab.open().doctor(true).unwrap().healthy(), "as many rows as before");
    let merge = ["backfill", "daily", "--start", day, "--end", day, "--mode", "merge", "--filter", "customer_id = 'nobody'"];
    let (code, answer) = restitch(&lab, &merge);
    assert!(code == 4 && answer.to_string().contains("files of partition 2026-05-01 of daily were replaced by another tool"), "{answer:#}");
    let (code, answer) = restitch(&lab, &["backfill", "daily", "--start", day, "--end", day]);
    assert_eq!((code, answer.pointer("/partitions/0/changed"), lab.published()), (0, Some(&1.into()), before), "{answer:#}");
    assert!(lab.open().doctor(false).unwrap().healthy());

    // What is read again and then packed anew was landed all the same.
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    std::fs::write(
        lab.path("restitch.toml"),
        toml.replacen("[source.orders.columns]", "[source.orders.columns]\nwho = { type = \"string\", from = \"/customer_id\" }", 1),
    )
    .unwrap();
    lab.land("second.jsonl", orders("second"));
    let (code, answer) = restitch(&lab, &["ingest", "orders", "--reparse", "--start", day, "--end", PAIRS[1][1]]);
    assert_eq!(code, 0, "{answer:#}");
    crate::interop::lake(["sql", &lab.catalog(), "CALL ducklake_merge_adjacent_files('lake')", "--write"]);
    let report = lab.open().doctor(false).unwrap();
    assert!(report.healthy() && report.foreign > 0, "{report:?}");

    duck("INSERT INTO raw_orders SELECT * REPLACE ('twice' AS _record_id, 'twice' AS event_id) FROM raw_orders LIMIT 1");
    broken("table raw_orders has rows that no ingest landed: data/main/raw_orders/");
    assert!(!lab.open().doctor(true).unwrap().healthy(), "that is told without reading a byte");

    // A row that was deleted aside keeps nobody from the rest of the report.
    lab.land("third.jsonl", order("b", &format!("{day}T10:00:00Z"), "B", "1"));
    lab.backfill(day, day);
    duck("DELETE FROM daily WHERE customer_id = 'B'");
    broken("another tool deleted rows in table daily");
}

/// Whoever takes a folder first has it, also against somebody with another warehouse: what was made there is never written over.
#[test]
fn of_backups_into_one_folder_at_once_one_is_made() {
    let labs = [warehouse(), warehouse()];
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("bk").display().to_string();
    // All of them find the folder free, and wait for a gc.
    let turns = labs.each_ref().map(|lab| Store::new(lab.path("warehouse")).lock("gc").unwrap());
    let backup = |i: usize| restitch(&labs[i % 2], &["backup", &folder]);
    let outcomes: Vec<(i32, Value)> = thread::scope(|scope| {
        let rivals: Vec<_> = (0..4).map(|i| scope.spawn(move || backup(i))).collect();
        for _ in 0..3 {
            labs.iter().for_each(look);
        }
        drop(turns);
        rivals.into_iter().map(|r| r.join().unwrap()).collect()
    });
    assert_eq!(outcomes.iter().filter(|(code, _)| *code == 0).count(), 1, "{outcomes:#?}");
    for (_, answer) in outcomes.iter().filter(|(code, _)| *code != 0) {
        assert_eq!((&answer["error"]["exit_code"], &answer["error"]["message"]), (&2.into(), &format!("{folder} is not empty").into()), "{answer:#}");
    }
    assert!(!place.path().join("bk/catalog.sqlite.partial").exists());
    let restored = Lab { folder: tempfile::tempdir().unwrap(), ..Lab::new(ORDERS) };
    std::fs::write(restored.path("restitch.toml"), ORDERS).unwrap();
    copy(&place.path().join("bk"), &restored.path("warehouse"));
    assert_eq!(restitch(&restored, &["doctor"]).0, 0);
    look(&restored);
}
