//! House rules, held by tests: module order, doors, file sizes and names, no places of one machine.
//! Never compiles or runs what it reads; it looks at code with comments and texts blanked out.
//! Every finding says file, line and rule.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

const LINES_MAX: usize = 800;
const BANNED_MODULES: [&str; 6] = ["utils", "common", "helpers", "types", "manager", "service"];

/// Outside worlds: the words that name one, and the modules (or single files) that may.
const DOORS: [(&[&str], &[&str]); 5] = [
    (&["wasmtime", "wasmparser", "wit_component"], &["transform"]),
    (&["rusqlite"], &["catalog"]),
    (&["datafusion"], &["query"]),
    (&["std::fs", "tokio::fs", "fs::", "File::", "OpenOptions"], &["store", "decode", "transform/build"]),
    (&["Utc::now", "Local::now", "SystemTime"], &["time"]),
];
/// As [`DOORS`]; apart from them because these words are no paths.
const TERMINAL: (&[&str], &[&str]) = (&["print!", "println!", "eprint!", "eprintln!", "stdout()", "stderr()"], &["cli", "main.rs"]);

#[test]
fn modules_use_only_those_declared_above_them() {
    let lib = read("host/lib.rs");
    let order = declared_modules(&code_of(&lib));
    assert!(!order.is_empty(), "host/lib.rs declares no modules");
    report(host_files().flat_map(|(path, text)| order_findings(&path, &code_of(&text), &order)));
}

#[test]
fn outside_worlds_have_one_door_each() {
    report(host_files().flat_map(|(path, text)| door_findings(&path, &code_of(&text))));
}

#[test]
fn every_test_file_is_a_module_of_the_one_test_binary() {
    let named = declared_modules(&code_of(&read("tests/main.rs")));
    let files = under("tests", false).into_iter().filter(|p| p.ends_with(".rs") && p != "tests/main.rs");
    report(files.filter(|p| !named.contains(&stem(p).to_owned())).map(|p| {
        let rule = format!("not a module of the test binary; write `mod {};` in tests/main.rs", stem(&p));
        Finding { path: p, line: 1, rule }
    }));
}

#[test]
fn host_files_open_with_what_they_are_and_stay_small() {
    report(host_files().flat_map(|(path, text)| shape_findings(&path, &text)));
}

#[test]
fn module_names_say_something() {
    report(host_files().flat_map(|(path, text)| name_findings(&path, &code_of(&text))));
}

#[test]
fn the_repository_names_no_machine_and_no_registry() {
    let skip = ["Cargo.lock", "package-lock.json"];
    let files = tracked().into_iter().filter(|p| !skip.contains(&p.rsplit('/').next().unwrap_or(p)));
    report(files.flat_map(|path| match fs::read(root().join(&path)).map(String::from_utf8) {
        Ok(Ok(text)) if !text.contains('\0') => place_findings(&path, &text),
        _ => Vec::new(), // binary, or a link to a folder
    }));
}

// The rules.

struct Finding {
    path: String,
    line: usize,
    rule: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.rule)
    }
}

fn report(findings: impl Iterator<Item = Finding>) {
    let findings: Vec<String> = findings.map(|f| f.to_string()).collect();
    assert!(findings.is_empty(), "{} finding(s):\n{}\n", findings.len(), findings.join("\n"));
}

fn order_findings(path: &str, code: &str, order: &[String]) -> Vec<Finding> {
    let Some(module) = module_of(path) else { return Vec::new() };
    let place = |name: &str| order.iter().position(|m| m == name);
    let Some(here) = place(module) else {
        return vec![Finding { path: path.into(), line: 1, rule: format!("module `{module}` is not declared in host/lib.rs") }];
    };
    let used = first_segments(code, "crate").into_iter().filter(|(_, name)| place(name).is_some_and(|there| there > here));
    used.map(|(line, name)| {
        let rule = format!("`{module}` may use only modules declared above it in host/lib.rs, and `{name}` stands below");
        Finding { path: path.into(), line, rule }
    })
    .collect()
}

fn door_findings(path: &str, code: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (words, allowed) in DOORS.into_iter().chain([TERMINAL]) {
        if allowed.iter().any(|a| is_in(path, a)) {
            continue;
        }
        let mut lines: Vec<(usize, &str)> = words.iter().flat_map(|w| occurrences(code, w).map(move |at| (line_of(code, at), *w))).collect();
        if words.contains(&"std::fs") {
            lines.extend(first_segments(code, "std").into_iter().filter(|(_, name)| name == "fs").map(|(line, _)| (line, "std::fs")));
        }
        lines.sort();
        lines.dedup_by_key(|(line, _)| *line); // one line, one finding
        findings.extend(lines.into_iter().map(|(line, word)| Finding {
            path: path.into(),
            line,
            rule: format!("`{word}` may be named only in host/{}", allowed.join(", host/")),
        }));
    }
    findings
}

fn shape_findings(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut find = |line, rule: String| findings.push(Finding { path: path.into(), line, rule });
    if !text.starts_with("//!") {
        find(1, "a host file opens with `//!`: what it is, what it never does, where it sits in the flow".into());
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        find(LINES_MAX + 1, format!("{lines} lines; more than {LINES_MAX} are two nouns, split them"));
    }
    if path.ends_with("/mod.rs") {
        find(1, "no mod.rs: name the file after its module".into());
    }
    findings
}

fn name_findings(path: &str, code: &str) -> Vec<Finding> {
    let banned = |name: &str| BANNED_MODULES.contains(&name);
    let rule = |name: &str| format!("`{name}` says nothing as the name of a module");
    let in_path = path.trim_end_matches(".rs").split('/').filter(|n| banned(n)).map(|n| (1, n.to_owned()));
    let lines = code.lines().enumerate().filter_map(|(i, l)| Some((i + 1, declared_module(l)?.to_owned()))).filter(|(_, n)| banned(n));
    in_path.chain(lines).map(|(line, name)| Finding { path: path.into(), line, rule: rule(&name) }).collect()
}

fn place_findings(path: &str, text: &str) -> Vec<Finding> {
    // In two pieces each, so that this file does not find itself.
    let folders = [concat!("/ro", "ot/"), concat!("/ho", "me/"), concat!("/wo", "rk/")];
    let hosts = [concat!("crates", ".io"), concat!("pypi", ".org"), concat!("registry", ".npmjs"), concat!("static", ".rust-lang")];
    let mut findings = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let mut find = |rule| findings.push(Finding { path: path.into(), line: i + 1, rule });
        folders.iter().filter(|f| line.contains(**f)).for_each(|f| find(format!("names a folder of one machine ({f})")));
        hosts.iter().filter(|h| line.contains(**h)).for_each(|h| find(format!("names the host of a registry ({h})")));
    }
    findings
}

// Reading code.

/// Returns `text` with comments and the insides of texts as blanks. Lines stay where they are.
fn code_of(text: &str) -> String {
    let c: Vec<char> = text.chars().collect();
    let at = |i: usize| c.get(i).copied().unwrap_or('\0');
    let mut out = String::with_capacity(text.len());
    let mut i = 0;
    let blank = |out: &mut String, from: usize, to: usize| out.extend((from..to).map(|k| if at(k) == '\n' { '\n' } else { ' ' }));
    while i < c.len() {
        let start = i;
        let after_word = i > 0 && (at(i - 1).is_alphanumeric() || at(i - 1) == '_');
        if at(i) == '/' && at(i + 1) == '/' {
            i = (i..c.len()).find(|k| at(*k) == '\n').unwrap_or(c.len());
        } else if at(i) == '/' && at(i + 1) == '*' {
            let mut depth = 0;
            loop {
                match (at(i), at(i + 1)) {
                    ('/', '*') => (depth, i) = (depth + 1, i + 2),
                    ('*', '/') => (depth, i) = (depth - 1, i + 2),
                    _ => i += 1,
                }
                if depth == 0 || i >= c.len() {
                    break;
                }
            }
            i = i.min(c.len());
        } else if let Some(hashes) = raw_text(&c[i..]).filter(|_| !after_word) {
            let open = (i..).find(|k| at(*k) == '"').unwrap_or(i);
            let closes = |k: usize| at(k) == '"' && (1..=hashes).all(|h| at(k + h) == '#');
            i = (open + 1..c.len()).find(|k| closes(*k)).map_or(c.len(), |k| k + 1 + hashes);
        } else if at(i) == '"' {
            i += 1;
            while i < c.len() && at(i) != '"' {
                i += if at(i) == '\\' { 2 } else { 1 };
            }
            i = (i + 1).min(c.len());
        } else if at(i) == '\'' && at(i + 1) == '\\' {
            i = (i + 3..c.len()).find(|k| at(*k) == '\'').map_or(c.len(), |k| k + 1);
        } else if at(i) == '\'' && at(i + 2) == '\'' {
            i += 3;
        } else {
            out.push(at(i));
            i += 1;
            continue;
        }
        blank(&mut out, start, i);
    }
    out
}

/// Returns how many `#` a raw text has, if one starts here: `r"`, `br#"`, `cr##"`.
fn raw_text(c: &[char]) -> Option<usize> {
    let prefix = if matches!(c.first(), Some('b' | 'c')) { 1 } else { 0 };
    let rest = c.get(prefix..)?.strip_prefix(&['r'])?;
    let hashes = rest.iter().take_while(|c| **c == '#').count();
    (rest.get(hashes) == Some(&'"')).then_some(hashes)
}

/// Returns the modules that `code` declares, in order.
fn declared_modules(code: &str) -> Vec<String> {
    code.lines().filter_map(declared_module).map(str::to_owned).collect()
}

fn declared_module(line: &str) -> Option<&str> {
    let mut line = line.trim();
    if let Some(rest) = line.strip_prefix("pub").filter(|r| r.starts_with([' ', '('])) {
        line = rest.trim_start();
        if line.starts_with('(') {
            line = line.split_once(')')?.1.trim_start();
        }
    }
    let name = line.strip_prefix("mod ")?.split([';', '{']).next()?.trim();
    (!name.is_empty() && name.chars().all(is_word)).then_some(name)
}

/// Returns line and first segment of every path below `root`: of `root::a::b` it is `a`, of `root::{a::b, c}` both `a` and `c`.
fn first_segments(code: &str, root: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for at in occurrences(code, &format!("{root}::")) {
        let start = at + root.len() + 2;
        let rest = &code[start..];
        let word = |from: usize| code[from..].chars().take_while(|c| is_word(*c)).collect::<String>();
        if !rest.starts_with('{') {
            found.push((line_of(code, start), word(start)));
            continue;
        }
        let (mut depth, mut fresh) = (0, false);
        for (i, c) in rest.char_indices() {
            match c {
                '{' => (depth, fresh) = (depth + 1, depth == 0),
                '}' => depth -= 1,
                ',' => fresh = depth == 1,
                c if fresh && is_word(c) => {
                    found.push((line_of(code, start + i), word(start + i)));
                    fresh = false;
                }
                _ => {}
            }
            if depth == 0 {
                break;
            }
        }
    }
    found
}

/// Returns where `word` stands in `code` as a word of its own: `File::` is not found in `DataFile::`.
fn occurrences(code: &str, word: &str) -> impl Iterator<Item = usize> {
    let whole = |at: usize| {
        let longer_before = word.starts_with(is_word) && code[..at].ends_with(is_word);
        let longer_after = word.ends_with(is_word) && code[at + word.len()..].starts_with(is_word);
        !longer_before && !longer_after
    };
    code.match_indices(word).map(|(at, _)| at).filter(move |at| whole(*at))
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn line_of(code: &str, at: usize) -> usize {
    code[..at].matches('\n').count() + 1
}

// Finding files. Paths are relative to the repository, with `/`.

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn read(path: &str) -> String {
    fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn host_files() -> impl Iterator<Item = (String, String)> {
    under("host", true).into_iter().filter(|p| p.ends_with(".rs")).map(|p| {
        let text = read(&p);
        (p, text)
    })
}

/// Returns the module that a host file belongs to; `lib.rs` and `main.rs` belong to none.
fn module_of(path: &str) -> Option<&str> {
    let first = path.strip_prefix("host/")?.split('/').next()?;
    let module = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(path, "host/lib.rs" | "host/main.rs")).then_some(module)
}

/// Returns whether a host file is `place`, a file, or belongs to `place`, a module.
fn is_in(path: &str, place: &str) -> bool {
    let inside = path.strip_prefix("host/");
    match place {
        file if file.ends_with(".rs") => inside == Some(file),
        // A part of a module, with its files.
        part if part.contains('/') => inside.and_then(|p| p.strip_prefix(part)).is_some_and(|rest| rest == ".rs" || rest.starts_with('/')),
        module => module_of(path) == Some(module),
    }
}

fn stem(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs")
}

fn under(folder: &str, deep: bool) -> Vec<String> {
    let mut found = Vec::new();
    let mut waiting = vec![PathBuf::from(folder)];
    while let Some(folder) = waiting.pop() {
        let entries = fs::read_dir(root().join(&folder)).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
        for entry in entries {
            let entry = entry.unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
            let path = folder.join(entry.file_name());
            match entry.file_type() {
                Ok(t) if t.is_dir() && deep && ![".git", "target"].iter().any(|n| entry.file_name() == *n) => waiting.push(path),
                Ok(t) if t.is_file() => found.push(path.components().map(|c| c.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/")),
                _ => {}
            }
        }
    }
    found.sort();
    found
}

/// Returns the files that git tracks; outside of a clone, all files.
fn tracked() -> Vec<String> {
    let git = Command::new("git").args(["ls-files", "-z"]).current_dir(root()).output();
    match git {
        Ok(out) if out.status.success() => {
            String::from_utf8_lossy(&out.stdout).split('\0').filter(|p| !p.is_empty() && root().join(p).is_file()).map(str::to_owned).collect()
        }
        _ => under("", true),
    }
}

// The rules against samples: each finds what it is for, and nothing else.

fn check(got: Vec<Finding>, want: &[(usize, &str)]) {
    let got: Vec<String> = got.iter().map(Finding::to_string).collect();
    assert_eq!(got.len(), want.len(), "{got:#?}");
    for (finding, (line, part)) in got.iter().zip(want) {
        assert!(finding.contains(&format!(":{line}: ")) && finding.contains(part), "{finding} (wanted line {line}, {part})");
    }
}

#[test]
fn comments_and_texts_are_not_code() {
    let text = "a // x\n/* y /* z */ */ b \"c \\\" // d\" 'e' '\\'' <'f> r#\"g\" h\"# br\"i\" rr \"\n\" j";
    let want = "a     \n                b                       <'f>                  rr  \n  j";
    let got = code_of(text);
    assert_eq!(got.split_whitespace().collect::<Vec<_>>(), want.split_whitespace().collect::<Vec<_>>());
    assert_eq!((got.chars().count(), got.lines().count()), (text.chars().count(), text.lines().count()));
}

#[test]
fn modules_are_read_in_the_order_of_the_file() {
    let code = code_of("// mod no;\npub mod time;\nmod a_b;\n#[cfg(test)]\npub(crate) mod c { }\nmodel x;\nlet mod_ = 1;");
    assert_eq!(declared_modules(&code), ["time", "a_b", "c"]);
}

#[test]
fn a_module_below_is_found_however_it_is_named() {
    let order = ["time", "plan", "store"].map(str::to_owned);
    let code = code_of(
        "use crate::{\n    time::{self, store},\n    store::Path,\n};\nfn f() { crate::store::put(); crate::plan::g(); crate::time::h() } // crate::store",
    );
    check(order_findings("host/plan.rs", &code, &order), &[(3, "`store` stands below"), (5, "`store` stands below")]);
    check(order_findings("host/plan/deep/er.rs", &code, &order), &[(3, "`plan` may use"), (5, "`plan` may use")]);
    check(order_findings("host/store.rs", &code, &order), &[]);
    check(order_findings("host/lib.rs", &code, &order), &[]);
    check(order_findings("host/stray.rs", &code, &order), &[(1, "not declared")]);
}

#[test]
fn a_door_is_found_where_it_should_not_be() {
    let code = code_of(
        "use std::{io, fs};\nuse wasmtime::Engine; // rusqlite\nlet f = std::fs::File::open(\"datafusion\");\nDataFile::new();\nprintln!(\"x\");\nInstant::now();\nSystemTime::now();",
    );
    let all = [(2, "`wasmtime`"), (1, "`std::fs`"), (3, "host/decode"), (7, "host/time"), (5, "host/cli, host/main.rs")];
    check(door_findings("host/plan.rs", &code), &all);
    check(door_findings("host/transform.rs", &code), &all[1..]);
    check(door_findings("host/transform/build.rs", &code), &all[3..]);
    check(door_findings("host/transformer.rs", &code), &all);
    check(door_findings("host/cli/run.rs", &code), &all[..4]);
    check(door_findings("host/main.rs", &code), &all[..4]);
}

#[test]
fn shapes_names_and_places_are_found() {
    check(shape_findings("host/a/mod.rs", &"x\n".repeat(801)), &[(1, "opens with"), (801, "801 lines"), (1, "no mod.rs")]);
    check(shape_findings("host/a.rs", "//! A.\n"), &[]);
    check(name_findings("host/utils/a.rs", "\nmod helpers;\nmod typesetting;"), &[(1, "`utils`"), (2, "`helpers`")]);
    check(place_findings("a.md", &format!("x\n{}y", concat!("/ro", "ot/"))), &[(2, "one machine")]);
    check(place_findings("a.md", &format!("https://{}", concat!("pypi", ".org"))), &[(1, "registry")]);
}
