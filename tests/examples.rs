//! The examples, through the library: what their README says is what happens.

use crate::support::{Lab, component};
use restitch::{manifest::Kind, pipeline::ErrorKind, pipeline::RunRequest, plan::Reason};
use std::path::{Path, PathBuf};

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name)
}

fn lab(name: &str) -> Lab {
    let mut lab = Lab::new(&std::fs::read_to_string(example(name).join("restitch.toml")).unwrap());
    lab.open().add_transform(&component("quake-stats-1.0.0.wasm")).unwrap();
    lab.now = "2026-06-01T00:00:00Z";
    lab
}

fn files(name: &str) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(example(name).join("data"))
        .unwrap()
        .map(|e| e.unwrap().path())
        .filter(|p| p.extension().is_some_and(|e| e == "jsonl"))
        .collect();
    files.sort();
    files
}

const BANDS: &str = "select _partition, band, quakes, max_magnitude, mean_depth_km from daily_bands order by 1, 2";

fn request(kind: Kind, window: Option<(&str, &str)>) -> RunRequest {
    RunRequest { dataset: "daily_bands".into(), ..Lab::request(kind, window) }
}

/// A real catalogue whose records arrive up to a week after their events: repaired as they come in, it ends
/// where one full rebuild ends, row for row and checksum for checksum.
#[test]
fn earthquakes_repaired_as_they_come_in_equal_one_full_rebuild() {
    let (lived, rebuilt) = (lab("earthquakes"), lab("earthquakes"));
    let files = files("earthquakes");
    let mut repairs = 0;
    let (mut late, mut approval) = (0, 0);
    for file in &files {
        let landed = lived.open().ingest("quakes", std::slice::from_ref(file), None, &()).unwrap();
        late += landed.files[0].counts.repair;
        approval += landed.files[0].counts.approval;
        lived.go(request(Kind::Run, None));
        match lived.try_go(request(Kind::Repair, None)) {
            Ok(done) => repairs += done.manifest.map_or(0, |m| m.partitions.len()),
            Err(e) => assert_eq!(e.kind(), ErrorKind::Approval, "{e}"),
        }
    }
    assert_eq!((late, approval), (402, 17), "as the example's README counts them");
    assert!(repairs >= 5, "{repairs} partitions were repaired");
    let dirty = lived.go(RunRequest { only: Some(Reason::Dirty), ..request(Kind::Backfill, Some(("2018-01-31", "2018-02-07"))) });
    assert!(dirty.manifest.is_some(), "the oldest needed somebody's word");

    rebuilt.open().ingest("quakes", &files, None, &()).unwrap();
    rebuilt.go(request(Kind::Run, None));
    let rows = lived.rows(BANDS);
    assert!(rows.len() > 40, "{} rows", rows.len());
    assert_eq!(rows, rebuilt.rows(BANDS));
    let checksums = "select partition, rows, checksum from restitch_partitions order by 1";
    assert_eq!(lived.rows(checksums), rebuilt.rows(checksums));
    assert_eq!(rebuilt.rows("select cast(sum(quakes) as bigint) from daily_bands"), ["1707"]);
}

/// The numbers of examples/late_orders/README.md.
#[test]
fn late_orders_come_out_as_their_readme_says() {
    let mut lab = lab("late_orders");
    lab.now = "2026-05-03T12:00:00Z";
    let path = |day: &str| example("late_orders").join(format!("data/{day}.jsonl"));
    let customer = |c: &str, day: &str| {
        lab.rows(&format!("select orders, total from daily_customer where customer_id = '{c}' and _partition = '{day}'")).join("")
    };
    let totals = || lab.rows("select _partition, cast(sum(orders) as bigint), sum(total) from daily_customer group by 1 order by 1");
    lab.open().ingest("orders", &[path("2026-05-01"), path("2026-05-02")], None, &()).unwrap();
    lab.go(RunRequest { dataset: "daily_customer".into(), ..Lab::request(Kind::Run, None) });
    lab.open().ingest("orders", &[path("2026-05-03")], None, &()).unwrap();
    lab.go(RunRequest { dataset: "daily_customer".into(), ..Lab::request(Kind::Run, None) });
    assert_eq!(totals()[..2], ["2026-05-01 10 189.49", "2026-05-02 10 207.26"]);
    assert_eq!((customer("A", "2026-05-01"), customer("B", "2026-05-01")), ("2 35.00".into(), "1 7.00".into()));
    let landed = lab.open().ingest("orders", &[path("late")], None, &()).unwrap();
    let counts = landed.files[0].counts;
    assert_eq!((counts.on_time, counts.repair, counts.approval), (1, 5, 1));
    lab.go(RunRequest { dataset: "daily_customer".into(), ..Lab::request(Kind::Repair, None) });
    assert_eq!(
        totals(),
        [
            "2026-05-01 12 237.49",
            "2026-05-02 11 226.26",
            &lab.rows("select _partition, cast(sum(orders) as bigint), sum(total) from daily_customer where _partition = '2026-05-03' group by 1")[0]
        ]
    );
    assert_eq!(customer("A", "2026-05-01"), "3 65.00");
    assert_eq!(lab.rows("select partition, tier from restitch_queue"), ["2026-04-20 approval"]);
}
