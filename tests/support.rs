//! A project in a temporary folder, driven through the library as the command line drives it.
//! Never sleeps, never asks the machine for the time: the clock is set by the test.

use restitch::{
    catalog::FILE,
    id::{RunId, SnapshotId},
    ingest::Ingested,
    manifest::{Kind, Manifest, Mode, Validation},
    pipeline::{Error, Options, RunRequest, RunResult, Workshop},
    plan::{Plan, Reason},
    query::rows_json,
    store::Faults,
    time::{Clock, IngestTime, parse},
};
use std::path::{Path, PathBuf};

/// A project in a temporary folder.
pub struct Lab {
    pub folder: tempfile::TempDir,
    pub now: &'static str,
    pub workers: usize,
    pub memory_bytes: usize,
    pub faults: Faults,
}

/// Orders by customer and day, as the examples have them.
pub const ORDERS: &str = r#"
[warehouse]
path = "warehouse"
[source.orders]
format = "jsonl"
event_time = "event_time"
record_id = "event_id"
watermark_delay = "0s"
allowed_lateness = "30m"
repair_window = "5d"
max_future = "400000h"
max_rejects = "100"
[source.orders.columns]
event_id    = { type = "string", nullable = false }
event_time  = { type = "timestamp", nullable = false }
customer_id = { type = "string" }
amount      = { type = "decimal(18,2)" }
[dataset.daily]
input = "orders"
transform = "customer-totals@1.0.0"
partition = "day"
key = ["customer_id"]
dedup = { key = ["event_id"], keep = "latest_ingested", on_conflict = "count" }
checks = [
  { kind = "row_count", min = 0 },
  { kind = "not_null", columns = ["customer_id"] },
  { kind = "balance", input = "coalesce(sum(amount), 0)", output = "coalesce(sum(total), 0)" },
  { kind = "sql", sql = "select * from output where orders < 1" },
]
"#;

/// The path of a committed component.
pub fn component(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("plugins/components").join(file)
}

/// One order as a line.
pub fn order(id: &str, time: &str, customer: &str, amount: &str) -> String {
    format!("{{\"event_id\":\"{id}\",\"event_time\":\"{time}\",\"customer_id\":\"{customer}\",\"amount\":{amount}}}\n")
}

impl Lab {
    /// A project with this restitch.toml and the example's transforms.
    pub fn new(toml: &str) -> Lab {
        let lab =
            Lab { folder: tempfile::tempdir().unwrap(), now: "2026-06-01T00:00:00Z", workers: 2, memory_bytes: 64 << 20, faults: Faults::default() };
        std::fs::write(lab.path("restitch.toml"), toml).unwrap();
        let mut workshop = lab.open();
        workshop.add_transform(&component("customer-totals-1.0.0.wasm")).unwrap();
        lab
    }

    pub fn path(&self, relative: &str) -> PathBuf {
        self.folder.path().join(relative)
    }

    pub fn catalog(&self) -> String {
        self.path("warehouse").join(FILE).display().to_string()
    }

    pub fn open(&self) -> Workshop {
        self.try_open().unwrap()
    }

    pub fn try_open(&self) -> Result<Workshop, Error> {
        let clock = Clock::Fixed(IngestTime(parse(self.now, chrono_tz::Tz::UTC).unwrap().0));
        let options = Options {
            operator: "tester".into(),
            token: None,
            clock,
            memory_bytes: self.memory_bytes,
            workers: self.workers,
            faults: self.faults.clone(),
        };
        Workshop::open(self.folder.path(), options)
    }

    /// Lands a file of these contents.
    pub fn land(&self, name: &str, contents: impl AsRef<[u8]>) -> Ingested {
        self.try_land("orders", name, contents).unwrap()
    }

    pub fn try_land(&self, source: &str, name: &str, contents: impl AsRef<[u8]>) -> Result<Ingested, Error> {
        let path = self.path(name);
        std::fs::write(&path, contents).unwrap();
        self.open().ingest(source, &[path], None, &())
    }

    pub fn request(kind: Kind, window: Option<(&str, &str)>) -> RunRequest {
        RunRequest {
            kind,
            dataset: "daily".into(),
            start: window.map(|w| w.0.into()),
            end: window.map(|w| w.1.into()),
            only: None,
            transform: None,
            mode: Mode::Overwrite,
            write: Default::default(),
            validation: Validation::Block,
            filter: None,
            snapshot: None,
            reason: None,
            grant_payload: None,
            seed: 0,
            params: Vec::new(),
            partitions_max: None,
            bytes_max: None,
        }
    }

    pub fn run(&self) -> Manifest {
        self.go(Lab::request(Kind::Run, None)).manifest.expect("there was something to run")
    }

    pub fn repair(&self) -> Manifest {
        self.go(Lab::request(Kind::Repair, None)).manifest.expect("there was something to repair")
    }

    pub fn backfill(&self, start: &str, end: &str) -> Manifest {
        self.go(Lab::request(Kind::Backfill, Some((start, end)))).manifest.unwrap()
    }

    pub fn go(&self, request: RunRequest) -> RunResult {
        self.try_go(request).unwrap_or_else(|e| panic!("{}", chain(&e)))
    }

    pub fn try_go(&self, request: RunRequest) -> Result<RunResult, Error> {
        self.open().run(&request, &())
    }

    /// A plan of a window, bound as `plan -o` saves it.
    pub fn bind(&self, kind: Kind, window: Option<(&str, &str)>) -> restitch::plan::BoundPlan {
        self.open().bind(&Lab::request(kind, window)).unwrap_or_else(|e| panic!("{}", chain(&e)))
    }

    pub fn plan(&self, kind: Kind, window: Option<(&str, &str)>, only: Option<Reason>) -> Plan {
        self.open().plan(&RunRequest { only, ..Lab::request(kind, window) }).unwrap()
    }

    /// Rows of a query, each as one line of bare values.
    pub fn rows(&self, sql: &str) -> Vec<String> {
        self.rows_at(sql, None)
    }

    pub fn rows_at(&self, sql: &str, at: Option<SnapshotId>) -> Vec<String> {
        let rows = self.open().query(sql, at).unwrap_or_else(|e| panic!("{sql}: {}", chain(&e)));
        let names: Vec<String> = rows.schema.fields().iter().map(|f| f.name().clone()).collect();
        let json = rows_json(&rows);
        let bare = |v: &serde_json::Value| v.as_str().map_or_else(|| v.to_string(), str::to_owned);
        json.as_array().unwrap().iter().map(|r| names.iter().map(|n| bare(&r[n])).collect::<Vec<_>>().join(" ")).collect()
    }

    /// The published table, in the order of partition and customer.
    pub fn published(&self) -> Vec<String> {
        self.rows("select _partition, customer_id, orders, total from daily order by 1, 2")
    }

    pub fn replay(&self, run: RunId) -> Result<restitch::pipeline::Replayed, Error> {
        self.open().replay(run, &())
    }
}

/// Copies a folder with all that is in it.
pub fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let (entry, target) = entry.map(|e| (e.path(), to.join(e.file_name()))).unwrap();
        if entry.is_dir() {
            copy(&entry, &target);
        } else {
            std::fs::copy(&entry, &target).unwrap();
        }
    }
}

/// An error with its causes.
pub fn chain(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut source = e.source();
    while let Some(cause) = source {
        text += &format!(": {cause}");
        source = cause.source();
    }
    text
}

/// The names of a plan's partitions.
pub fn names(plan: &Plan) -> Vec<String> {
    plan.partitions().map(|p| p.name).collect()
}

/// xorshift64*: a test needs repeatable numbers, not good ones. Any seed but 0.
pub struct Random(pub u64);

impl Random {
    /// From 0 to `n` - 1.
    pub fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33) as usize % n.max(1)
    }
}
