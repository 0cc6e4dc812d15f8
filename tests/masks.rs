//! Masks: what a source hides is hidden on every way out, and payloads are read by somebody's word alone.
//! Each test holds a secret, and looks for it where it must not be.

use crate::{
    interop::lake,
    support::{Lab, ORDERS, chain, order},
};
use restitch::{
    id::Digest,
    manifest::{Kind, Mode},
    pipeline::{Error, ErrorKind, ReparseRequest, RunRequest},
    plan::BoundPlan,
};

const SECRET: &str = "4111222233334444";

/// Orders with a card number that is hashed, a name that is redacted and a PIN that is dropped; alice may read payloads.
fn masked() -> String {
    let columns = "card = { type = \"string\", mask = \"sha256\" }\nname = { type = \"string\", mask = \"redact\", from = \"/who/name\" }\npin = { type = \"int64\", mask = \"drop\", default = \"0\" }\n[dataset.daily]";
    ORDERS.replace("[dataset.daily]", columns).replace("max_rejects", "payload_readers = [\"alice\"]\nmax_rejects")
}

fn line(id: &str, card: &str) -> String {
    format!(
        "{{\"event_id\":\"{id}\",\"event_time\":\"2026-05-01T09:00:00Z\",\"customer_id\":\"A\",\"amount\":1,\"card\":{card},\"who\":{{\"name\":\"{SECRET}\"}},\"pin\":{SECRET}}}\n"
    )
}

fn landed(toml: &str) -> Lab {
    let lab = Lab::new(toml);
    lab.land("a.jsonl", line("e1", &format!("\"{SECRET}\"")) + &line("e2", SECRET) + "{\"event_id\":\"e3\"}\n");
    lab
}

fn as_alice(lab: &Lab, request: RunRequest) -> Result<restitch::pipeline::RunResult, Error> {
    let mut workshop = lab.open();
    workshop.options.operator = "alice".into();
    workshop.run(&request, &())
}

#[test]
fn a_query_does_not_see_the_payload_of_a_masked_source_without_a_word() {
    let lab = landed(&masked());
    for table in ["raw_orders", "raw_orders_rejects"] {
        let rows = lab.open().query(&format!("select * from {table}"), None).unwrap();
        assert!(rows.rows() > 0 && rows.schema.field_with_name("_payload").is_err(), "{table}");
        assert_eq!(
            lab.rows(&format!("select count(*) from information_schema.columns where table_name = '{table}' and column_name = '_payload'")),
            ["0"]
        );
        let sql = format!("select \"_payload\" from {table}");
        let e = lab.open().query(&sql, None).unwrap_err();
        assert_eq!((e.kind(), e.kind().code()), (ErrorKind::Approval, 5), "{e}");
        assert_eq!(e.to_string(), format!("_payload of {table} is asked for, which would show what source orders masks"));
        assert_eq!(e.hint().as_deref(), Some("--grant-payload REASON reads it, if one of its payload_readers asks: alice"));
        let e = lab.open().query_granted(&sql, None, Some("audit")).unwrap_err();
        assert!(matches!(e, Error::NotReader { .. }) && e.kind().code() == 5 && e.hint().unwrap().contains("alice"), "{e}");
        let mut workshop = lab.open();
        workshop.options.operator = "alice".into();
        assert!(matches!(workshop.query_granted(&sql, None, Some(" ")).unwrap_err(), Error::Usage { .. }));
        assert!(workshop.query_granted(&sql, None, Some("audit 7")).unwrap().rows() > 0);
    }
    let read = lab.rows("select operator, tables, reason, sql from restitch_payload_read order by id");
    assert_eq!(
        read,
        [
            "alice raw_orders audit 7 select \"_payload\" from raw_orders",
            "alice raw_orders_rejects audit 7 select \"_payload\" from raw_orders_rejects"
        ]
    );
    // A project that no longer declares the source does not know what it masks; one that masks nothing hides nothing.
    std::fs::write(lab.path("restitch.toml"), ORDERS.replace("orders", "others")).unwrap();
    let e = lab.open().query("select _payload from raw_orders", None).unwrap_err();
    assert!(matches!(e, Error::Masked { .. }), "{e}");
    assert_eq!(landed(ORDERS).rows("select count(_payload) from raw_orders"), ["2"]);
}

#[test]
fn a_run_reads_payloads_by_a_word_that_its_manifest_keeps() {
    let lab = landed(&masked());
    let by_payload = RunRequest { filter: Some("_payload is not null".into()), ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01"))) };
    let e = lab.try_go(by_payload.clone()).unwrap_err();
    assert_eq!((e.to_string().as_str(), e.kind().code()), ("the filter asks for _payload, which would show what source orders masks", 5));
    let granted = RunRequest { grant_payload: Some("case 12".into()), ..by_payload };
    let e = lab.try_go(granted.clone()).unwrap_err();
    assert_eq!((e.to_string().as_str(), e.kind().code()), ("tester may not read payloads of source orders, which masks columns", 5));
    assert_eq!(lab.rows("select count(*) from restitch_run"), ["0"]);
    let run = as_alice(&lab, granted.clone()).unwrap().manifest.unwrap();
    let grant = &run.grants[0];
    assert_eq!(
        (run.grants.len(), grant.source.as_str(), grant.column.as_str(), grant.operator.as_str(), grant.reason.as_str()),
        (1, "orders", "_payload", "alice", "case 12")
    );
    assert_eq!(lab.open().show(run.run).unwrap().row.manifest.grants, run.grants);
    // Replayed by anybody: by the word that is recorded.
    let replayed = lab.replay(run.run).unwrap();
    assert!(replayed.partitions[0].equal() && replayed.manifest.grants == run.grants);
    assert_eq!(lab.open().verify(run.run, &()).unwrap().failed, Vec::<String>::new());
    let window = Some(("2026-05-01", "2026-05-01"));
    // A word that nothing asked for is no use; a check is held to the same rule; the hash of a payload is open.
    let e = as_alice(&lab, RunRequest { filter: None, grant_payload: granted.grant_payload, ..Lab::request(Kind::Backfill, window) }).unwrap_err();
    assert!(matches!(e, Error::Usage { .. }), "{e}");
    lab.go(RunRequest { filter: Some("_payload_hash is not null".into()), ..Lab::request(Kind::Backfill, window) });
    let toml = masked().replace("coalesce(sum(amount), 0)\", output", "count(_payload)\", output");
    std::fs::write(lab.path("restitch.toml"), toml).unwrap();
    let e = lab.try_go(Lab::request(Kind::Backfill, window)).unwrap_err();
    assert!(matches!(e, Error::Masked { .. }), "{}", chain(&e));
}

/// A word in a file is that of the one whose name stands there, and of nobody who can write the file.
#[test]
fn a_plan_reads_payloads_for_the_one_whose_word_it_names_alone() {
    let lab = landed(&masked().replace("[\"alice\"]", "[\"alice\", \"bob\"]"));
    let window = Some(("2026-05-01", "2026-05-01"));
    let apply = |operator: &str, plan: &BoundPlan| {
        let mut workshop = lab.open();
        workshop.options.operator = operator.into();
        let done = workshop.apply(&BoundPlan::parse(&plan.text()).unwrap(), &());
        done.map(|d| d.manifest.unwrap()).map_err(|e| (e.kind().code(), e.to_string(), e.hint().unwrap_or_default()))
    };
    let asked =
        RunRequest { filter: Some("_payload is not null".into()), grant_payload: Some("case 12".into()), ..Lab::request(Kind::Backfill, window) };
    let mut workshop = lab.open();
    workshop.options.operator = "alice".into();
    let plan = workshop.bind(&asked).unwrap();
    drop(workshop);
    let no_reader = (5, "tester may not read payloads of source orders, which masks columns".to_owned());
    let (code, message, hint) = apply("tester", &plan).unwrap_err();
    assert_eq!(((code, message), hint.as_str()), (no_reader.clone(), "payload_readers of [source.orders]: alice, bob"));
    let (code, message, hint) = apply("bob", &plan).unwrap_err();
    assert_eq!((code, message.as_str()), (5, "the plan reads payloads of source orders by the word of alice, and bob applies it"));
    assert_eq!(hint, "alice applies it, or plan again with a word of your own: --grant-payload REASON");
    // Taken from a file that alice made, or written by hand: into a plan of one's own, whose digest anybody can make.
    let mut forged = lab.bind(Kind::Backfill, window);
    (forged.grants, forged.recipe.filter, forged.mode) = (plan.grants.clone(), Some(format!("_payload like '%{SECRET}%'")), Mode::DryRun);
    let (code, message, _) = apply("tester", &forged).unwrap_err();
    assert_eq!((code, message), no_reader);
    // Nor is a word taken where nothing would read by it.
    forged.recipe.filter = None;
    assert_eq!(apply("bob", &forged).unwrap_err().0, 5);
    assert_eq!(lab.rows("select count(*) from restitch_run"), ["0"]);
    assert_eq!(apply("alice", &plan).unwrap().grants, plan.grants);
}

#[test]
fn a_source_that_keeps_no_payload_has_none_on_disk_and_the_same_ids() {
    let with = landed(&masked().replace("record_id = \"event_id\"\n", ""));
    let without = landed(&masked().replace("record_id = \"event_id\"\n", "keep_payload = false\n"));
    let ids = "select _record_id, _payload_hash from raw_orders order by 1";
    assert_eq!(with.rows(ids), without.rows(ids));
    let count = |lab: &Lab, table: &str| lake(["sql", &lab.catalog(), &format!("SELECT count(_payload) AS n FROM lake.{table}")])[0]["n"].clone();
    assert_eq!((count(&with, "raw_orders"), count(&with, "raw_orders_rejects")), (2.into(), 1.into()));
    assert_eq!((count(&without, "raw_orders"), count(&without, "raw_orders_rejects")), (0.into(), 0.into()));
    without.run();
    assert_eq!(without.published(), with_run(&with));
}

fn with_run(lab: &Lab) -> Vec<String> {
    lab.run();
    lab.published()
}

/// Everything that the catalog holds: reasons of runs, statistics, manifests, the queue.
fn catalog_bytes(lab: &Lab) -> Vec<u8> {
    let wal = std::fs::read(lab.catalog() + "-wal").unwrap_or_default();
    [std::fs::read(lab.catalog()).unwrap(), wal].concat()
}

fn holds_secret(bytes: &[u8]) -> bool {
    bytes.windows(8).any(|w| w == &SECRET.as_bytes()[..8])
}

/// Whatever is wrong with a record: its reason, the report of the ingest, its error and the catalog do not show what is masked.
#[test]
fn no_reject_no_error_and_no_statistic_shows_a_masked_value() {
    let bad_lines = [
        format!("\"{SECRET}\""),
        SECRET.to_owned(),
        format!("[\"{SECRET}\"]"),
        format!("{{\"card\":\"{SECRET}"),
        format!("{{\"card\":\"{SECRET}\",}}"),
        format!("{{\"card\":\"{SECRET}\" \"x\"}}"),
        format!("{{\"card\":{SECRET}x}}"),
        format!("{{\"card\":\"{SECRET}\",\"card\":\"{SECRET}\"}}"),
        line("b1", &format!("[\"{SECRET}\"]")),
        line("b2", &format!("{{\"number\":\"{SECRET}\"}}")),
        line("b3", &format!("\"{SECRET}\\ud800\"")),
        line("b4", "null").replace("\"who\":{\"name\"", &format!("\"who\":{{\"name\":\"{SECRET}\",\"name\"")),
        line("b5", "null").replace(&format!("\"{SECRET}\"}}"), &format!("[\"{SECRET}\"]}}")),
    ];
    let text: String = bad_lines.iter().map(|l| format!("{}\n", l.trim_end())).collect();
    let rejected = |lab: &Lab, text: &str, at_least: u64| {
        let report = lab.land("bad", text);
        assert!(report.files[0].rejects >= at_least, "{}", report.files[0].rejects);
        let reasons = lab.rows("select _reason from raw_orders_rejects").join("\n");
        assert!(!holds_secret(reasons.as_bytes()), "{reasons}");
        assert!(!holds_secret(format!("{report:?}").as_bytes()), "{report:?}");
        let strict = lab.open().ingest(
            "orders",
            &[{
                let path = lab.path("again");
                std::fs::write(&path, format!("{text}\n")).unwrap();
                path
            }],
            Some(restitch::config::MaxRejects::Rows(0)),
            &(),
        );
        let e = strict.unwrap_err();
        assert!(!holds_secret(format!("{} {:?}", chain(&e), e.hint()).as_bytes()), "{} {:?}", chain(&e), e.hint());
        assert!(!holds_secret(&catalog_bytes(lab)), "the catalog");
    };
    rejected(&landed(&masked()), &text, bad_lines.len() as u64 - 1);
    let csv = masked().replace("\"jsonl\"", "\"csv\"").replace(", from = \"/who/name\"", "");
    let lab = Lab::new(&csv);
    let good = format!("e1,2026-05-01T09:00:00Z,A,1,{SECRET},{SECRET},{SECRET}\n");
    let rows = [
        format!("e2,2026-05-01T09:00:00Z,A,1,\"{SECRET}\"{SECRET},x,1\n"),
        format!("e3,2026-05-01T09:00:00Z,A,1,{SECRET}\n"),
        format!("e4,2026-05-01T09:00:00Z,A,1,{SECRET},{SECRET},{SECRET},{SECRET}\n"),
        format!("e5,2026-05-01T09:00:00Z,A,1,\"{SECRET}"),
    ];
    rejected(&lab, &format!("event_id,event_time,customer_id,amount,card,name,pin\n{good}{}", rows.concat()), 4);
    // What a run writes down, and what is told of a partition, does not show it either.
    let lab = landed(&masked());
    let run = lab.run();
    let why = lab.open().why("daily", "2026-05-01", &[]).unwrap();
    let shown = lab.open().show(run.run).unwrap();
    assert!(!holds_secret(format!("{why:?} {shown:?} {run:?}").as_bytes()));
    assert!(!holds_secret(&catalog_bytes(&lab)));
    assert_eq!(lab.rows("select distinct name, pin from raw_orders"), ["*** null"]);
}

/// The first line of a CSV file without a header is a record, whatever is said of its columns.
#[test]
fn a_csv_file_without_a_header_line_does_not_show_what_is_masked() {
    let csv =
        masked().replace("\"jsonl\"", "\"csv\"").replace(", from = \"/who/name\"", "").replace("max_rejects", "keep_payload = false\nmax_rejects");
    let record = format!("e1,2026-05-01T09:00:00Z,A,1,{SECRET},{SECRET}x,2\n");
    let lab = Lab::new(&csv);
    let refused = |text: &str| {
        let e = lab.try_land("orders", "bad.csv", text).unwrap_err();
        let told = format!("{} {:?} {e:?}", chain(&e), e.hint());
        assert!(!holds_secret(told.as_bytes()), "{told}");
        chain(&e)
    };
    let told = refused(&record.repeat(2));
    assert!(told.ends_with("there is no column \"event_time\" (it has 7 columns)"), "{told}");
    assert!(refused(&record.replace(&format!("{SECRET}x"), SECRET)).ends_with("two columns have one name"));
    // A default may stand for what is not there: then the line is taken for a header.
    let defaults = csv.replace("\"timestamp\", nullable = false", "\"timestamp\", default = \"2026-05-01\"");
    std::fs::write(
        lab.path("restitch.toml"),
        defaults.replace("record_id = \"event_id\"\n", "").replace("\"string\", nullable = false", "\"string\""),
    )
    .unwrap();
    let report = lab.land("bad.csv", record.repeat(2));
    assert_eq!(report.files[0].unknown.fields, [("7 columns".to_owned(), 1)]);
    std::fs::write(lab.path("again.csv"), "event_id,more\ne2,1\n").unwrap();
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_restitch"));
    let out = command.arg("-C").arg(lab.folder.path()).args(["ingest", "orders"]).arg(lab.path("again.csv"));
    let told = String::from_utf8(out.output().unwrap().stdout).unwrap();
    assert!(told.contains("no column asks for: more (1 record). They are not kept.\n"), "{told}");
}

/// A mask reaches what landed before it by a reparse alone, and until then everybody is told.
#[test]
fn what_landed_before_its_mask_is_named_until_it_is_read_again() {
    let lab = Lab::new(ORDERS);
    let customer = |id: &str, day: u32| order(id, &format!("2026-05-{day:02}T09:00:00Z"), SECRET, "1");
    lab.land("a.jsonl", customer("e1", 1) + &customer("e2", 2));
    lab.land("b.jsonl", customer("e3", 3));
    lab.run();
    let told = |lab: &Lab| lab.open().status(None).unwrap().0[0].in_clear.clone().map(|c| c.to_string());
    assert_eq!(told(&lab), None);
    let with_mask = ORDERS.replace("customer_id = { type = \"string\"", "customer_id = { mask = \"sha256\", type = \"string\"");
    let declare = |text: &str| std::fs::write(lab.path("restitch.toml"), text).unwrap();
    // A column that is declared later, with its mask, is null in what landed before.
    declare(&ORDERS.replace("customer_id =", "card = { type = \"string\", mask = \"sha256\" }\ncustomer_id ="));
    assert_eq!(told(&lab), None);
    declare(&with_mask);
    let note = |files: &str, from: u32, to: u32| {
        let reparse = format!("`restitch ingest orders --reparse --start 2026-05-{from:02} --end 2026-05-{to:02}`");
        format!("source orders masks customer_id, and records of {files} still show it, as does what is computed from them: {reparse} masks them")
    };
    assert_eq!(told(&lab).unwrap(), note("2 landed files", 1, 3));
    lab.land("c.jsonl", customer("e4", 4));
    assert_eq!(told(&lab).unwrap(), note("2 landed files", 1, 3));
    let report = lab.open().doctor(true).unwrap();
    assert_eq!((report.healthy(), report.notes), (true, vec![note("2 landed files", 1, 3)]));
    let said = |words: &str| {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_restitch"));
        let out = command.arg("-C").arg(lab.folder.path()).args(["--now", lab.now]).args(words.split(' ')).output().unwrap();
        [out.stdout, out.stderr].map(|b| String::from_utf8(b).unwrap()).concat()
    };
    let window = "daily --start 2026-05-01 --end 2026-05-01";
    for words in [
        "status",
        "doctor",
        "plan daily",
        &format!("plan backfill {window} -o plan.json"),
        "apply plan.json",
        &format!("backfill {window} --dry-run"),
    ] {
        let words = words.replace("plan.json", &lab.path("plan.json").display().to_string());
        assert!(said(&words).to_lowercase().contains(&format!("note: {}", note("2 landed files", 1, 3)).to_lowercase()), "{words}: {}", said(&words));
    }
    let reparse = |from: u32, to: u32, dry_run: bool| {
        let day = |d: u32| Some(format!("2026-05-{d:02}"));
        let request = ReparseRequest { source: "orders".into(), start: day(from), end: day(to), dry_run, reason: None };
        lab.open().reparse(&request, &()).unwrap()
    };
    reparse(1, 3, true);
    assert_eq!(told(&lab).unwrap(), note("2 landed files", 1, 3));
    reparse(2, 3, false);
    assert_eq!(told(&lab).unwrap(), note("1 landed file", 1, 1));
    // Without the mask it is shown again, and with it hidden again.
    declare(ORDERS);
    reparse(4, 4, false);
    declare(&with_mask);
    assert_eq!(told(&lab).unwrap(), note("2 landed files", 1, 4));
    reparse(1, 4, false);
    assert_eq!((told(&lab), lab.open().in_clear("daily").unwrap()), (None, vec![]));
    assert_eq!(lab.rows("select distinct customer_id from raw_orders"), [Digest::of(SECRET.as_bytes()).to_string()]);
}

/// What retention has removed shows nothing any more, and what keeps no payload is named with another way out.
#[test]
fn what_shows_a_mask_by_now_goes_with_retention() {
    let toml = ORDERS.replace("max_rejects", "raw_keep = \"10d\"\nmax_rejects");
    let masked = |toml: &str| toml.replace("customer_id = { type = \"string\"", "customer_id = { mask = \"sha256\", type = \"string\"");
    let lab = Lab::new(&toml);
    lab.land("old.jsonl", order("e1", "2026-04-01T09:00:00Z", SECRET, "1"));
    lab.land("new.jsonl", order("e2", "2026-05-30T09:00:00Z", SECRET, "1"));
    lab.run();
    std::fs::write(lab.path("restitch.toml"), masked(&toml)).unwrap();
    let days = || lab.open().in_clear("daily").unwrap().pop().map(|c| (c.files, c.records, c.days.0, c.days.1));
    assert_eq!(days(), Some((2, 2, "2026-04-01".into(), "2026-05-30".into())));
    let mut workshop = lab.open();
    let shown = workshop.garbage(None).unwrap();
    assert_eq!(workshop.collect(None, &shown).unwrap().garbage.files.len(), 1);
    assert_eq!(days(), Some((1, 1, "2026-05-30".into(), "2026-05-30".into())));
    std::fs::write(lab.path("restitch.toml"), masked(&toml).replace("jsonl", "parquet")).unwrap();
    let told = lab.open().in_clear("daily").unwrap()[0].to_string();
    assert!(told.ends_with("Parquet keeps no payloads to read again, so land the files under a source of another name"), "{told}");
}

/// Keys, filters and ids see what is stored: the masked value.
#[test]
fn dedup_filters_and_ids_see_the_masked_value() {
    let hash = Digest::of(SECRET.as_bytes()).to_string();
    let toml = masked().replace("record_id = \"event_id\"", "record_id = \"card\"").replace("[\"event_id\"], keep", "[\"card\"], keep");
    let lab = landed(&toml);
    assert_eq!(lab.rows("select distinct _record_id, card from raw_orders"), [format!("{hash} {hash}")]);
    let with = |filter: String| {
        let request = RunRequest { filter: Some(filter), ..Lab::request(Kind::Backfill, Some(("2026-05-01", "2026-05-01"))) };
        lab.go(request).manifest.unwrap().partitions.remove(0)
    };
    assert_eq!(with(format!("card = '{SECRET}' or name = '{SECRET}' or pin = {SECRET}")).records, 0);
    let seen = with(format!("card = '{hash}' and name = '***' and pin is null"));
    assert_eq!((seen.records, seen.duplicates), (2, 1));
}
