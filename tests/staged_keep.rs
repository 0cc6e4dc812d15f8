//! How long staged and rejected runs stay, and what they keep meanwhile.

use crate::{
    retention::{DAY, garbage, gc},
    support::{Lab, ORDERS, order},
};
use restitch::{
    id::RunId,
    manifest::{Kind, Mode},
    pipeline::{Error, ErrorKind, RunRequest},
    store::Faults,
};
use std::{
    collections::BTreeSet,
    panic::{AssertUnwindSafe, catch_unwind},
};

/// Staged on 1 May, rejected on 2 May, staged on 20 May; one partition with two versions, of which the staged ones were compared with the second.
fn staged_runs() -> (Lab, [RunId; 3]) {
    let mut lab = Lab::new(ORDERS);
    lab.now = "2026-05-01T12:00:00Z";
    lab.land("1.jsonl", order("e1", "2026-05-01T09:00:00Z", "A", "1"));
    lab.backfill(DAY, DAY);
    lab.land("2.jsonl", order("e2", "2026-05-01T09:00:00Z", "A", "2"));
    lab.backfill(DAY, DAY);
    let stage = |lab: &Lab| lab.go(RunRequest { mode: Mode::Stage, ..Lab::request(Kind::Backfill, Some((DAY, DAY))) }).manifest.unwrap().run;
    let first = stage(&lab);
    lab.now = "2026-05-02T12:00:00Z";
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    std::fs::write(lab.path("restitch.toml"), toml.replace("{ kind = \"row_count\", min = 0 }", "{ kind = \"row_count\", min = 9 }")).unwrap();
    let e = lab.try_go(Lab::request(Kind::Backfill, Some((DAY, DAY)))).unwrap_err();
    let Error::Rejected { run: rejected, .. } = e else { panic!("{e}") };
    std::fs::write(lab.path("restitch.toml"), toml).unwrap();
    lab.now = "2026-05-20T12:00:00Z";
    lab.land("3.jsonl", order("e3", "2026-05-01T09:00:00Z", "A", "3"));
    lab.backfill(DAY, DAY);
    let young = stage(&lab);
    lab.now = "2026-06-01T12:00:00Z";
    (lab, [first, rejected, young])
}

/// What was staged and forgotten goes by gc, is shown first, and holds nothing any more; its manifest says who and why, and what is young stays.
#[test]
fn staged_and_rejected_runs_go_after_thirty_days() {
    let (mut lab, [first, rejected, young]) = staged_runs();
    lab.now = "2026-05-31T12:00:00Z";
    assert!(garbage(&lab, None).is_empty(), "thirty days are not over");
    let kept = garbage(&lab, Some(1)).kept;
    assert!(kept.iter().any(|k| k.why == format!("{rejected} was compared with it")), "{kept:?}");
    lab.now = "2026-06-01T12:00:00Z";
    let shown = garbage(&lab, None);
    assert_eq!(shown.staged.iter().map(|s| (s.run, s.status, s.files, s.rows)).collect::<Vec<_>>(), [(first, "staged", 1, 1)]);
    lab.now = "2026-06-02T12:00:00Z";
    let shown = garbage(&lab, Some(1));
    assert_eq!(shown.staged.iter().map(|s| (s.run, s.status)).collect::<Vec<_>>(), [(first, "staged"), (rejected, "rejected")]);
    assert!(shown.staged.iter().all(|s| s.rule == "staged_keep = 30d" && s.bytes > 0), "{shown:?}");
    let before = (lab.published(), lab.rows("select count(*) from restitch_check"));
    let done = lab.open().collect(Some(1), &shown).unwrap();
    assert_eq!(done.garbage.files.len(), 2, "what they were compared with goes at once");
    assert_eq!((lab.published(), lab.rows("select count(*) from restitch_check")), before);
    let folders = |run: RunId| lab.path(&format!("warehouse/staging/{run}")).exists();
    assert_eq!([first, rejected, young].map(folders), [false, false, true]);
    for run in [first, rejected] {
        let m = lab.open().show(run).unwrap().row.manifest;
        assert_eq!((m.status.name(), m.partitions[0].rows, m.partitions[0].files.len()), ("discarded", 1, 0));
        assert_eq!(m.discarded.unwrap().to_string(), "on 2026-06-02T12:00:00Z by gc (staged_keep = 30d, tester)");
        for e in [lab.open().publish(run).unwrap_err(), lab.open().discard(run).unwrap_err(), lab.open().diff_run(run, 1).unwrap_err()] {
            assert_eq!(e.to_string(), format!("run {run} was discarded on 2026-06-02T12:00:00Z by gc (staged_keep = 30d, tester)"));
            assert!(e.kind() == ErrorKind::Usage && e.hint().unwrap().contains(&format!("`restitch show {run}`")));
        }
    }
    assert!(lab.open().doctor(false).unwrap().healthy() && lab.replay(first).is_ok(), "what determined it is on record");
    lab.open().publish(young).unwrap();
    // By hand: the same is on record, without a rule.
    let (lab, [first, ..]) = staged_runs();
    lab.open().discard(first).unwrap();
    assert_eq!(lab.open().publish(first).unwrap_err().to_string(), format!("run {first} was discarded on 2026-06-01T12:00:00Z by tester"));
}

#[test]
fn how_long_staged_runs_stay_is_declared_and_shown_before_they_go() {
    let (lab, [first, rejected, young]) = staged_runs();
    let toml = std::fs::read_to_string(lab.path("restitch.toml")).unwrap();
    let keep = |text: &str| {
        std::fs::write(lab.path("restitch.toml"), toml.replace("path = \"warehouse\"", &format!("path = \"warehouse\"\nstaged_keep = {text}")))
    };
    keep("\"soon\"").unwrap();
    assert!(lab.try_open().err().unwrap().to_string().contains("is not a duration (like 30d)"), "{}", lab.try_open().err().unwrap());
    keep("\"400d\"").unwrap();
    assert!(garbage(&lab, None).is_empty());
    keep("\"72h\"").unwrap();
    let restitch = |words: &[&str]| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_restitch"));
        let out = command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now, "--operator", "lea"]).args(words).output().unwrap();
        (out.status.code(), String::from_utf8(out.stdout).unwrap())
    };
    let (code, text) = restitch(&["gc", "--dry-run"]);
    assert!(code == Some(0) && text.contains(&format!("{first} of daily, staged since 2026-05-01T12:00:00Z")), "{text}");
    assert!(text.contains("staged_keep = 3d") && text.ends_with("Nothing was removed: a dry run.\n"), "{text}");
    assert_eq!(restitch(&["gc"]).0, Some(2), "nobody said yes");
    assert_eq!(lab.open().show(first).unwrap().row.manifest.status.name(), "staged");
    // Somebody is publishing one of them at this moment.
    let store = restitch::store::Store::new(lab.path("warehouse"));
    let claim = store.claim(&rejected.to_string()).unwrap().unwrap();
    assert_eq!(restitch(&["gc", "--yes"]).0, Some(4));
    assert_eq!(lab.open().show(first).unwrap().row.manifest.status.name(), "staged", "all or nothing");
    drop(claim);
    let (code, text) = restitch(&["gc", "--yes"]);
    assert!(code == Some(0) && text.contains("Removed 3 files, "), "{text}");
    assert!(text.contains(&format!("Discarded {first}, {rejected}, {young}: their manifests stay.")), "{text}");
    assert!(restitch(&["show", &first.to_string()]).1.contains("Discarded    on 2026-06-01T12:00:00Z by gc (staged_keep = 3d, lea)"));
    assert_eq!(restitch(&["gc", "--yes"]), (Some(0), "Nothing to remove.\n".into()));
}

#[test]
fn an_expiry_that_dies_anywhere_is_finished_by_the_next_command() {
    for keep in [None, Some(1)] {
        for steps in 0..100 {
            let (mut lab, [first, rejected, _]) = staged_runs();
            lab.now = "2026-06-02T12:00:00Z";
            let shown = garbage(&lab, keep);
            let seen = lab.published();
            lab.faults = Faults::after(steps);
            let died = catch_unwind(AssertUnwindSafe(|| lab.open().collect(keep, &shown).unwrap())).is_err();
            lab.faults = Faults::default();
            let states: BTreeSet<String> =
                [first, rejected].iter().map(|run| lab.open().show(*run).unwrap().row.manifest.status.name().to_owned()).collect();
            let all: BTreeSet<String> = ["staged".to_owned(), "rejected".to_owned()].into();
            assert!(states == all || states == ["discarded".to_owned()].into(), "step {steps}: {states:?}");
            assert_eq!(lab.published(), seen, "step {steps}");
            gc(&lab, keep);
            assert!(garbage(&lab, keep).is_empty() && !lab.path(&format!("warehouse/staging/{first}")).exists(), "step {steps}");
            assert!(lab.open().doctor(false).unwrap().healthy(), "step {steps}");
            if !died {
                assert!(steps >= 3, "{steps}");
                break;
            }
        }
    }
}
