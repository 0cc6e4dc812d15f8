//! Who may publish, whose word it takes, what is frozen: through the command line, with accounts and tokens.

use crate::support::{Lab, ORDERS, order};
use restitch::id::Digest;
use serde_json::Value;
use std::process::Command;

/// ana and nightly publish, ben and ana approve; `extra` are more rules.
fn lab(extra: &str) -> Lab {
    let account = |name: &str| format!("[account.{name}]\ntoken_sha256 = \"{}\"\n", Digest::of(format!("token of {name}").as_bytes()));
    let accounts = ["ana", "ben", "nightly", "eve"].map(account).concat();
    // The project is made by the system user, before there are rules.
    let lab = Lab::new(ORDERS);
    let rules = format!("{ORDERS}[access]\npublishers = [\"ana\", \"nightly\"]\napprovers = [\"ana\", \"ben\"]\n{extra}\n{accounts}");
    std::fs::write(lab.path("restitch.toml"), rules).unwrap();
    lab
}

/// Exit code, and the object that was answered, or that describes the error.
fn go(lab: &Lab, who: &str, words: &str) -> (i32, Value) {
    go_with(lab, who, &format!("token of {who}"), words)
}

fn go_with(lab: &Lab, who: &str, token: &str, words: &str) -> (i32, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
    command.arg("-C").arg(lab.folder.path()).args(["--json", "--now", lab.now, "--operator", who]).args(words.split(' '));
    let out = command.env("RESTITCH_TOKEN", token).output().unwrap();
    let object = serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{words}: {e}: {}", String::from_utf8_lossy(&out.stdout)));
    (out.status.code().unwrap(), object)
}

fn message(object: &Value) -> String {
    object.pointer("/error/message").and_then(Value::as_str).unwrap_or_else(|| panic!("{object:#}")).to_owned()
}

fn published(lab: &Lab) -> Value {
    query(lab, "select * from daily order by 1, 2")
}

fn query(lab: &Lab, sql: &str) -> Value {
    serde_json::from_str(&text(lab, &["--json", "query", sql])).unwrap()
}

/// What ana is told.
fn text(lab: &Lab, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_restitch"));
    command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now, "--operator", "ana"]).args(words);
    let out = command.env("RESTITCH_TOKEN", "token of ana").output().unwrap();
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Two days of May, published by `nightly`, and a late record of the first from long ago.
fn with_late(lab: &mut Lab) {
    std::fs::write(lab.path("a.jsonl"), order("e1", "2026-05-01T09:00:00Z", "A", "25") + &order("e2", "2026-05-02T10:00:00Z", "B", "10")).unwrap();
    assert_eq!(go(lab, "nightly", "ingest orders a.jsonl").0, 0);
    assert_eq!(go(lab, "nightly", "run daily").0, 0);
    std::fs::write(lab.path("b.jsonl"), order("e3", "2026-05-20T09:00:00Z", "A", "1") + &order("e4", "2026-05-01T10:00:00Z", "A", "5")).unwrap();
    std::fs::write(lab.path("c.jsonl"), order("e5", "2026-05-01T11:00:00Z", "A", "7")).unwrap();
    assert_eq!(go(lab, "nightly", "ingest orders b.jsonl c.jsonl").0, 0);
}

const OLD: &str = "backfill daily --start 2026-05-01 --end 2026-05-01 --reason late";

#[test]
fn an_operator_is_who_the_token_says() {
    let lab = lab("");
    for (who, token, want) in [
        ("ana", "token of ben", "the account ana needs its token, and RESTITCH_TOKEN holds another one"),
        ("ana", "", "the account ana needs its token, and RESTITCH_TOKEN is not set"),
        ("mallory", "token of ana", "mallory is neither the system user"),
    ] {
        let (code, object) = go_with(&lab, who, token, "status");
        assert_eq!(code, 5);
        assert!(message(&object).starts_with(want), "{object:#}");
    }
    assert_eq!(go(&lab, "eve", "status").0, 0);
}

#[test]
fn only_publishers_publish_and_others_may_stage_for_them() {
    let mut lab = lab("");
    with_late(&mut lab);
    lab.now = "2026-05-20T10:00:00Z";
    let before = published(&lab);
    for words in ["run daily", "backfill daily --start 2026-05-20 --end 2026-05-20"] {
        let (code, object) = go(&lab, "eve", words);
        assert_eq!((code, message(&object).as_str()), (5, "eve may not publish daily"));
    }
    assert_eq!(go(&lab, "eve", "run daily --dry-run").0, 0);
    let (code, staged) = go(&lab, "eve", "run daily --stage");
    assert_eq!((code, &staged["status"]), (0, &Value::from("staged")), "{staged:#}");
    let run = staged["run"].as_str().unwrap();
    assert_eq!(message(&go(&lab, "eve", &format!("publish {run}")).1), "eve may not publish daily");
    assert_eq!(published(&lab), before);
    assert_eq!(go(&lab, "ana", &format!("publish {run}")).0, 0);
    assert_ne!(published(&lab), before);
    let (code, object) = go(&lab, "eve", &format!("rollback {run}"));
    assert_eq!((code, message(&object).as_str()), (5, "eve may not publish daily"));
    assert_eq!(go(&lab, "nightly", &format!("rollback {run}")).0, 0);
    assert_eq!(published(&lab), before);
}

/// Who asked for a run is one thing, who made it visible, and when, another.
#[test]
fn who_publishes_what_another_staged_is_on_record() {
    let mut lab = lab("approval = \"required\"");
    std::fs::write(lab.path("a.jsonl"), order("e1", "2026-05-01T09:00:00Z", "A", "25") + &order("e2", "2026-05-02T10:00:00Z", "B", "10")).unwrap();
    assert_eq!(go(&lab, "nightly", "ingest orders a.jsonl").0, 0);
    assert_eq!(go(&lab, "eve", "run daily --stage").1["published_by"], Value::Null);
    assert_eq!(go(&lab, "ben", "approve r1 --reason seen --later").0, 0);
    lab.now = "2026-06-02T07:00:00Z";
    assert_eq!(go(&lab, "ana", "publish r1").0, 0);
    assert_eq!(go(&lab, "nightly", "backfill daily --start 2026-05-01 --end 2026-05-01").0, 5);
    lab.now = "2026-06-03T08:00:00Z";
    let (code, approved) = go(&lab, "ben", "approve r2 --reason seen");
    assert_eq!((code, &approved["published_by"]), (0, &Value::from("ben")));
    assert_eq!(go(&lab, "ana", "rollback r2").0, 0);
    let by = |run: &str| {
        let m = go(&lab, "eve", &format!("show {run}")).1;
        (m["operator"].clone(), m["published_by"].clone(), m["published_us"].as_i64().unwrap() / 1_000_000)
    };
    let at = |text: &str| restitch::time::parse(text, chrono_tz::Tz::UTC).unwrap().0 / 1_000_000;
    assert_eq!(by("r1"), ("eve".into(), "ana".into(), at("2026-06-02T07:00:00Z")));
    assert_eq!(by("r2"), ("nightly".into(), "ben".into(), at("2026-06-03T08:00:00Z")));
    assert_eq!(by("r3"), ("ana".into(), "ana".into(), at("2026-06-03T08:00:00Z")));
    let rows = |sql: &str| query(&lab, sql)["rows"].clone();
    assert_eq!(
        rows("select run, operator, published_by, published from restitch_runs where run < 'r3' order by run"),
        serde_json::json!([
            { "run": "r1", "operator": "eve", "published_by": "ana", "published": "2026-06-02T07:00:00Z" },
            { "run": "r2", "operator": "nightly", "published_by": "ben", "published": "2026-06-03T08:00:00Z" },
        ])
    );
    let authors = "select author from ducklake_snapshot_changes where commit_message like '%r_ of %' order by snapshot_id";
    assert_eq!(rows(authors), serde_json::json!([{ "author": "ana" }, { "author": "ben" }, { "author": "ana" }]));
    let why = text(&lab, &["why", "daily", "2026-05-01"]);
    let first = "r1 published it (run, stage: missing), by ana at 2026-06-02T07:00:00Z, asked for by eve at 2026-06-01T00:00:00Z";
    assert!(why.contains(first) && why.contains("by ben at 2026-06-03T08:00:00Z, asked for by nightly at"), "{why}");
    assert!(why.contains("r3 rolled r2 back, by ana at 2026-06-03T08:00:00Z\n"), "{why}");
    assert!(text(&lab, &["show", "r1"]).contains("over snapshot 1, by ana at 2026-06-02T07:00:00Z"));
    assert!(text(&lab, &["runs"]).contains("  eve, published by ana  "));
}

#[test]
fn what_is_older_than_the_repair_window_waits_for_somebody_elses_word() {
    let mut lab = lab("");
    with_late(&mut lab);
    let before = published(&lab);
    let (code, object) = go(&lab, "ana", OLD);
    assert_eq!(code, 5);
    let text = message(&object);
    assert!(text.starts_with("r2 is computed and checked, and waits for approval (2026-05-01: older"), "{text}");
    assert_eq!(object["error"]["hint"], "`restitch approve r2 --reason TEXT` publishes it, given by ben");
    assert_eq!(published(&lab), before);
    assert_eq!(go(&lab, "ana", "publish r2").0, 5);
    assert_eq!(message(&go(&lab, "ana", "approve r2 --reason mine").1), "ana asked for this run, and so cannot approve it");
    assert_eq!(message(&go(&lab, "eve", "approve r2 --reason hers").1), "eve may not approve runs of daily");
    assert_eq!(go(&lab, "ben", "approve r2 --reason ").0, 2);
    let (code, object) = go(&lab, "ben", "approve r2 --reason seen");
    assert_eq!((code, &object["status"]), (0, &Value::from("published")), "{object:#}");
    assert_eq!((&object["operator"], &object["approval"]["given"]["operator"]), (&Value::from("ana"), &Value::from("ben")));
    assert_ne!(published(&lab), before);
    // The word was for this run; undoing what is that old takes one of those who give it.
    assert_eq!(message(&go(&lab, "nightly", "rollback r2").1), "nightly may not approve runs of daily");
    assert_eq!(go(&lab, "ben", "rollback r2").0, 0);
    assert_eq!(published(&lab), before);
}

#[test]
fn a_word_given_for_later_expires() {
    let mut lab = lab("approval = \"required\"\napproval_expires = \"2d\"");
    std::fs::write(lab.path("a.jsonl"), order("e1", "2026-05-01T09:00:00Z", "A", "25")).unwrap();
    assert_eq!(go(&lab, "nightly", "ingest orders a.jsonl").0, 0);
    assert_eq!(go(&lab, "nightly", "run daily").0, 5);
    assert_eq!(go(&lab, "nightly", "run daily").0, 5);
    assert_eq!(go(&lab, "ben", "approve r1 --reason ok --later").0, 0);
    lab.now = "2026-06-03T00:00:00Z";
    let (code, object) = go(&lab, "nightly", "publish r1");
    assert_eq!((code, message(&object).as_str()), (5, "the time to approve this run ended at 2026-06-03T00:00:00Z"));
    assert_eq!(message(&go(&lab, "ben", "approve r2 --reason ok").1), "the time to approve this run ended at 2026-06-03T00:00:00Z");
    lab.now = "2026-06-02T23:59:59Z";
    assert_eq!(go(&lab, "nightly", "publish r1").0, 0);
    assert_eq!(go(&lab, "ben", "approve r1 --reason again").0, 2);
}

/// Who is taken off the list takes their word with them; the word of somebody else makes up for it.
#[test]
fn a_word_of_somebody_who_may_not_give_it_any_more_does_not_count() {
    let lab = lab("approval = \"required\"");
    std::fs::write(lab.path("a.jsonl"), order("e1", "2026-05-01T09:00:00Z", "A", "25")).unwrap();
    assert_eq!(go(&lab, "nightly", "ingest orders a.jsonl").0, 0);
    assert_eq!(go(&lab, "nightly", "run daily").0, 5);
    assert_eq!(go(&lab, "ben", "approve r1 --reason ok --later").0, 0);
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    std::fs::write(lab.path("restitch.toml"), toml.replace("approvers = [\"ana\", \"ben\"]", "approvers = [\"ana\"]")).unwrap();
    let (code, object) = go(&lab, "nightly", "publish r1");
    assert_eq!((code, message(&object).as_str()), (5, "ben has approved this run, and may not approve runs of daily any more"));
    assert_eq!(object["error"]["hint"], "`restitch approve` by another is needed; approvers: ana");
    assert_eq!(go(&lab, "ana", "approve r1 --reason seen --later").0, 0);
    assert_eq!(go(&lab, "nightly", "publish r1").0, 0);
}

#[test]
fn frozen_is_frozen_for_everybody() {
    let mut lab = lab("");
    with_late(&mut lab);
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    std::fs::write(lab.path("restitch.toml"), toml.replace("[access]", "[access]\nfrozen_before = \"2026-05-02\"")).unwrap();
    let before = published(&lab);
    let frozen = "daily is frozen before 2026-05-02T00:00:00Z: 2026-05-01 begins at 2026-05-01T00:00:00Z";
    for words in [OLD, "backfill daily --start 2026-05-01 --end 2026-05-02 --stage", "rollback r1"] {
        let (code, object) = go(&lab, "ana", words);
        assert_eq!((code, message(&object).as_str()), (5, frozen), "{words}");
    }
    assert_eq!(go(&lab, "ana", "backfill daily --start 2026-05-01 --end 2026-05-01 --dry-run").0, 0);
    let (code, plan) = go(&lab, "ana", "plan repair daily");
    assert_eq!((code, plan.pointer("/waiting/0/tier")), (0, Some(&Value::from("frozen"))), "{plan:#}");
    let plan = go(&lab, "ana", "plan backfill daily --start 2026-05-01 --end 2026-05-02").1;
    assert_eq!(plan["gaps"], serde_json::json!([format!("its publication would be refused: {frozen}")]));
    assert_eq!(go(&lab, "ana", "run daily").0, 0);
    assert_eq!(go(&lab, "ana", "run daily").1["partitions"].as_array().map_or(0, Vec::len), 0);
    assert_ne!(published(&lab), before, "the 20th is not frozen");
}

/// A rollback of some partitions is asked for those, and for no others.
#[test]
fn old_and_frozen_partitions_are_in_the_way_of_their_own_rollback_alone() {
    let lab = lab("");
    let days = ["2026-05-01", "2026-05-18", "2026-05-19", "2026-05-20"];
    std::fs::write(lab.path("a.jsonl"), days.map(|d| order(d, &format!("{d}T09:00:00Z"), "A", "1")).concat()).unwrap();
    assert_eq!((go(&lab, "nightly", "ingest orders a.jsonl").0, go(&lab, "nightly", "run daily").0), (0, 0));
    // The first day is final: to undo it takes one whose word counts.
    for words in ["rollback r1", "rollback r1 --partition 2026-05-01", "rollback r1 --start 2026-05-01 --end 2026-05-19"] {
        let (code, object) = go(&lab, "nightly", words);
        assert!(code == 5 && message(&object).contains("nightly"), "{words}: {object:#}");
    }
    let (code, object) = go(&lab, "nightly", "rollback r1 --partition 2026-05-20");
    assert_eq!((code, &object["left"]), (0, &Value::from(3)), "{object:#}");
    let rules = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    std::fs::write(lab.path("restitch.toml"), rules.replace("[access]", "[access]\nfrozen_before = \"2026-05-19\"")).unwrap();
    for words in ["rollback r1", "rollback r1 --partition 2026-05-18 --partition 2026-05-19"] {
        let (code, object) = go(&lab, "ana", words);
        assert!(code == 5 && message(&object).contains("2026-05-"), "{words}: {object:#}");
    }
    assert_eq!(go(&lab, "ana", "rollback r1 --start 2026-05-19").0, 0);
    let (_, stands) = go(&lab, "ana", "status daily");
    assert_eq!(stands.pointer("/datasets/0/partitions").and_then(Value::as_array).map(Vec::len), Some(2), "{stands:#}");
}

/// It had been published, so it has a history to protect, also where nothing stands any more.
#[test]
fn an_old_partition_that_was_taken_back_is_published_again_by_the_word_of_another_alone() {
    let lab = lab("");
    std::fs::write(lab.path("a.jsonl"), order("e1", "2026-05-01T09:00:00Z", "A", "25") + &order("e2", "2026-05-20T10:00:00Z", "B", "10")).unwrap();
    assert_eq!((go(&lab, "nightly", "ingest orders a.jsonl").0, go(&lab, "nightly", "run daily").0), (0, 0));
    assert_eq!(go(&lab, "ana", "rollback r1 --partition 2026-05-01 --reason wrong").0, 0);
    let before = published(&lab);
    let (code, done) = go(&lab, "nightly", "run daily");
    assert_eq!((code, &done["run"]), (0, &Value::Null));
    assert!(text(&lab, &["run", "daily"]).contains("Note: partition 2026-05-01 left as it stands: taken away by a rollback"));
    // Nor by an undoing of what took it back.
    assert_eq!(message(&go(&lab, "nightly", "rollback r2").1), "nightly may not approve runs of daily");
    let (code, object) = go(&lab, "nightly", OLD);
    assert_eq!(code, 5);
    assert_eq!(message(&object), "r3 is computed and checked, and waits for approval (2026-05-01: older than the repair window)");
    assert_eq!(published(&lab), before);
    assert_eq!(go(&lab, "ben", "approve r3 --reason seen").0, 0);
    assert_ne!(published(&lab), before);
}
