//! `transform new | test | show` as an author uses them, with components that are already built.
//! Never builds one: the pages in `languages` do.

use crate::support::component;
use serde_json::Value;
use std::{
    path::{Path, PathBuf},
    process::{Command, Output},
};

struct Project(tempfile::TempDir);

impl Project {
    fn new(files: &[(&str, &str)]) -> Project {
        let project = Project(tempfile::tempdir().unwrap());
        files.iter().for_each(|(path, text)| project.write(path, text));
        project
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        std::fs::create_dir_all(self.path(path).parent().unwrap()).unwrap();
        std::fs::write(self.path(path), text).unwrap();
    }

    fn restitch(&self, words: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_restitch")).current_dir(self.0.path()).arg("transform").args(words).output().unwrap()
    }

    /// Exit code, stdout and stderr of `transform test` with that component.
    fn test(&self, file: &str, more: &[&str]) -> (i32, String, String) {
        let component = component(file);
        let words = [&["test", "--component", component.to_str().unwrap()], more].concat();
        said(&self.restitch(&words))
    }
}

fn said(out: &Output) -> (i32, String, String) {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (out.status.code().unwrap(), text(&out.stdout), text(&out.stderr))
}

const ORDERS: &str = r#"{"event_id": "e1", "event_time": "2026-05-01T10:00:00Z", "customer_id": "A", "amount": 25.00, "till": 7}
{"event_id": "e2", "event_time": "2026-05-01T11:00:00Z", "customer_id": "A", "amount": "9999999999999999.99"}

{"event_id": "e3", "event_time": "2026-05-01T12:00:00", "customer_id": "B"}
"#;
const TOTALS: &str = r#"{"customer_id": "B", "orders": 1, "total": 0, "currency": "EUR"}
{"customer_id": "A", "orders": 2, "total": 10000000000000024.99, "currency": "EUR"}
"#;

#[test]
fn a_case_passes_in_every_batch_size_and_fails_column_by_column() {
    let project = Project::new(&[("cases/may/input.jsonl", ORDERS), ("cases/may/expected.jsonl", TOTALS)]);
    let (code, out, err) = project.test("customer-totals-1.0.0.wasm", &[]);
    assert_eq!((code, out.as_str(), err.as_str()), (0, "may: as expected (2 rows)\n1 case passes with customer-totals@1.0.0\n", ""));

    project.write("cases/empty/input.jsonl", "");
    project.write("cases/empty/expected.jsonl", "");
    project.write("cases/may/expected.jsonl", &TOTALS.replace("0024.99", "0024.98").replace("\"B\"", "\"C\""));
    let (code, out, err) = project.test("customer-totals-1.0.0.wasm", &[]);
    let differs = [
        "empty: as expected (0 rows)",
        "may: not as expected (2 rows)",
        "  customer_id \"A\": total is 10000000000000024.99, expected 10000000000000024.98",
        "  missing: {\"customer_id\": \"C\", \"orders\": 1, \"total\": 0.00, \"currency\": \"EUR\"}",
        "  extra:   {\"customer_id\": \"B\", \"orders\": 1, \"total\": 0.00, \"currency\": \"EUR\"}",
    ];
    assert_eq!((code, out.lines().collect::<Vec<_>>().as_slice()), (3, differs.as_slice()), "{err}");
    assert!(err.starts_with("Error: 1 of 2 cases failed with customer-totals@1.0.0\n") && err.contains("--bless"), "{err}");

    let (code, out, _) = project.test("customer-totals-1.0.0.wasm", &["--json"]);
    let object: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &object["error"]["exit_code"], &object["cases"][0]["passed"]), (3, &Value::from(3), &Value::from(true)));
    let changed = &object["cases"][1]["problem"]["difference"]["changed"][0]["values"][0];
    assert_eq!((&changed["column"], &changed["got"]), (&Value::from("total"), &Value::from("10000000000000024.99")));

    let (code, out, _) = project.test("customer-totals-1.0.0.wasm", &["--bless", "--case", "may"]);
    assert!(code == 0 && out.starts_with("may: 2 rows, written to cases/may/expected.jsonl\n"), "{out}");
    assert_eq!(project.test("customer-totals-1.0.0.wasm", &[]).0, 0);
    let blessed = std::fs::read_to_string(project.path("cases/may/expected.jsonl")).unwrap();
    assert_eq!(blessed.lines().next(), Some(r#"{"customer_id": "A", "orders": 2, "total": 10000000000000024.99, "currency": "EUR"}"#));
}

#[test]
fn a_case_says_its_parameters_its_lookups_and_the_failure_that_has_to_come() {
    let project = Project::new(&[
        ("cases/dollars/input.jsonl", ORDERS),
        ("cases/dollars/case.toml", "partition = \"2026-W18\"\n[params]\ncurrency = \"USD\""),
        ("cases/dollars/expected.jsonl", &TOTALS.replace("EUR", "USD")),
        ("cases/euro/input.jsonl", ORDERS),
        ("cases/euro/case.toml", "expected_error = \"three capital letters\"\n[params]\ncurrency = \"euro\""),
    ]);
    let (code, out, err) = project.test("customer-totals-1.0.0.wasm", &[]);
    assert_eq!((code, out.lines().last()), (0, Some("2 cases pass with customer-totals@1.0.0")), "{err}");
    project.write("cases/euro/case.toml", "expected_error = \"no such words\"\n[params]\ncurrency = \"euro\"");
    let (code, out, _) = project.test("customer-totals-1.0.0.wasm", &[]);
    assert!(code == 3 && out.contains("euro: it fails for another reason than \"no such words\"\n  parameter: currency"), "{out}");
    project.write("cases/euro/case.toml", "expected_error = \"three\"");
    let (code, out, _) = project.test("customer-totals-1.0.0.wasm", &[]);
    assert!(code == 3 && out.contains("euro: it does not fail, and has to with \"three\""), "{out}");

    let lookup = Project::new(&[
        ("cases/a/input.jsonl", ORDERS),
        ("cases/a/customers.jsonl", "{\"customer_id\": \"A\", \"country\": \"DE\"}"),
        (
            "cases/a/expected.jsonl",
            "{\"country\": \"DE\", \"orders\": 2, \"total\": 10000000000000024.99}\n{\"country\": \"unknown\", \"orders\": 1, \"total\": 0}",
        ),
    ]);
    let (code, out, err) = lookup.test("enrich-orders-1.0.0.wasm", &[]);
    assert_eq!(code, 0, "{out}{err}");
}

#[test]
fn a_case_that_cannot_be_run_is_named_with_its_line_and_the_way_out() {
    let project = Project::new(&[]);
    let usage = |part: &str| {
        let (code, out, err) = project.test("customer-totals-1.0.0.wasm", &[]);
        assert!(code == 2 && err.contains(part), "{part}: {code} {out}{err}");
    };
    usage("holds no cases\nHint: write cases/NAME/input.jsonl");
    project.write("cases/a/expected.jsonl", TOTALS);
    usage("cases/a/input.jsonl is missing");
    project.write("cases/a/input.jsonl", &format!("{ORDERS}{{\"event_id\": 1}}"));
    usage("cases/a/input.jsonl:5: event_time is missing: not nullable");
    project.write("cases/a/input.jsonl", ORDERS);
    project.write("cases/a/expected.jsonl", "{\"costumer_id\": \"A\"}");
    usage("cases/a/expected.jsonl:1: there is no column \"costumer_id\"; did you mean \"customer_id\"?");
    std::fs::remove_file(project.path("cases/a/expected.jsonl")).unwrap();
    usage("cases/a/expected.jsonl is missing\nHint: look at what comes out, then let --bless write it");
    project.write("cases/a/case.toml", "paramz = 1");
    usage("cases/a/case.toml: ");
}

#[test]
fn a_guest_that_dies_or_answers_badly_fails_its_case() {
    let project = Project::new(&[("cases/a/input.jsonl", "{\"id\": 1}\n{\"id\": 2}"), ("cases/a/expected.jsonl", "")]);
    for (how, part) in [("panic", "the customer 7 has no name"), ("bad-utf8", "it returned a broken batch"), ("fail-row", "it is odd")] {
        project.write("cases/a/case.toml", &format!("params = {{ how = \"{how}\" }}"));
        let (code, out, err) = project.test("misbehave-1.0.0.wasm", &[]);
        assert!(code == 3 && out.starts_with("a: it fails\n") && out.contains(part), "{how}: {code} {out}{err}");
        assert!(!err.contains("--bless"), "{how}: {err}");
    }
    // Only where other rows came out may they be the right ones.
    project.write("cases/a/case.toml", "params = { how = \"same-keys\" }");
    let (code, out, err) = project.test("misbehave-1.0.0.wasm", &[]);
    assert!(code == 3 && out.starts_with("a: a second row has the key of\n") && !err.contains("--bless"), "{code} {out}{err}");
}

#[test]
fn a_new_project_is_not_written_over_anything() {
    let project = Project::new(&[("taken/file", "")]);
    let (code, out, err) = said(&project.restitch(&["new", "my-totals", "--lang", "rust"]));
    assert!(code == 0 && out.contains("cd my-totals"), "{out}{err}");
    assert!(project.path("my-totals/src/lib.rs").is_file() && project.path("my-totals/sdk/guest/wit/types.wit").is_file());
    for (words, part) in [
        (["new", "x", "--lang", "rust", "--into", "taken"].as_slice(), "taken is there already, and not empty"),
        (&["new", "my-totals", "--lang", "rust"], "my-totals is there already"),
        (&["new", "a b", "--lang", "rust"], "cannot be the name of a transform"),
        (&["new", "restitch-guest", "--lang", "rust"], "the name of a package that the project is built of, and cargo takes no two of one name"),
        (&["new", "x", "--lang", "cobol"], "the languages are rust"),
    ] {
        let (code, _, err) = said(&project.restitch(words));
        assert!(code == 2 && err.contains(part), "{words:?}: {code} {err}");
    }
    assert!(!project.path("x").exists());
}

#[test]
fn a_component_is_shown_even_if_it_would_be_refused() {
    let project = Project::new(&[]);
    let show = |file: &Path| said(&project.restitch(&["show", file.to_str().unwrap()]));
    let (code, out, _) = show(&component("customer-totals-1.0.0.wasm"));
    for part in ["Transform  customer-totals@1.0.0", "restitch:transform/log@1.0.0 (log)", "(types only)", "language: Rust", "currency   EUR"] {
        assert!(code == 0 && out.contains(part), "{part}: {out}");
    }
    let (code, out, err) = show(&component("misbehave-sockets-1.0.0.wasm"));
    assert!(code == 2 && out.contains("restitch:evil/sockets (refused)") && err.contains("it imports restitch:evil/sockets"), "{out}{err}");
    project.write("not.wasm", "hello");
    assert!(show(&project.path("not.wasm")).2.contains("not a WebAssembly component"));
    assert!(said(&project.restitch(&["show", "totals"])).2.contains("neither NAME@VERSION nor a component"));
}
