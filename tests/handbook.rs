//! docs/handbook.md, run as it is read: files are written, declarations changed, commands given, and what they print is what the page shows.
//! `TRYCMD=overwrite` writes the page anew where it differs. In it `[..]` stands for anything in a line, a line `...` for any lines.

use crate::support::copy;
use std::{
    path::{Path, PathBuf},
    process::Command,
};

/// The clock of the page.
const NOW: &str = "2026-05-05T12:00:00Z";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// A fence of the page: its language, the file it names, the lines in it.
#[derive(Clone, Debug, PartialEq)]
struct Fence {
    language: String,
    file: String,
    lines: Vec<String>,
}

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Fence(Fence),
}

fn parts(page: &str) -> Vec<Part> {
    let mut parts: Vec<Part> = Vec::new();
    let mut open: Option<Fence> = None;
    for line in page.lines() {
        match (&mut open, line.strip_prefix("```")) {
            (Some(_), Some("")) => parts.extend(open.take().map(Part::Fence)),
            (Some(fence), _) => fence.lines.push(line.into()),
            (None, Some(head)) => {
                let (language, file) = head.split_once(' ').unwrap_or((head, ""));
                open = Some(Fence { language: language.into(), file: file.into(), lines: Vec::new() });
            }
            (None, None) => parts.push(Part::Text(line.into())),
        }
    }
    assert!(open.is_none(), "a fence is not closed");
    parts
}

fn written(parts: &[Part]) -> String {
    let text = |part: &Part| match part {
        Part::Text(line) => format!("{line}\n"),
        Part::Fence(f) => {
            let head = if f.file.is_empty() { f.language.clone() } else { format!("{} {}", f.language, f.file) };
            let lines: String = f.lines.iter().map(|l| format!("{l}\n")).collect();
            format!("```{head}\n{lines}```\n")
        }
    };
    parts.iter().map(text).collect()
}

/// The commands of a fence, each with what is to come of it.
fn commands(fence: &Fence) -> Vec<(String, Vec<String>)> {
    let mut commands: Vec<(String, Vec<String>)> = Vec::new();
    for line in &fence.lines {
        match (line.strip_prefix("$ "), commands.last_mut()) {
            (Some(command), _) => commands.push((command.into(), Vec::new())),
            (None, Some((_, output))) => output.push(line.clone()),
            (None, None) => panic!("output before any command: {line}"),
        }
    }
    commands
}

/// Words, as a shell would take them: blanks, and double quotes around what has blanks.
fn words(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, piece) in command.split('"').enumerate() {
        if i % 2 == 1 { words.push(piece.to_owned()) } else { words.extend(piece.split_whitespace().map(str::to_owned)) }
    }
    words
}

/// What a reader sees: the answer, then what went wrong, then the exit code, if it is none of 0.
fn run(folder: &Path, command: &str) -> Vec<String> {
    let components = format!("{}/", root().join("plugins/components").display());
    let words: Vec<String> = words(command).into_iter().map(|w| w.replace("../../plugins/components/", &components)).collect();
    assert_eq!(words[0], "restitch", "{command}");
    let mut restitch = Command::new(env!("CARGO_BIN_EXE_restitch"));
    let out = restitch.arg("-C").arg(folder).args(["--now", NOW, "--operator", "ana"]).args(&words[1..]).output().unwrap();
    let mut seen: Vec<String> = String::from_utf8(out.stdout).unwrap().lines().map(|l| l.trim_end().to_owned()).collect();
    let told = String::from_utf8(out.stderr).unwrap();
    if !out.status.success() {
        seen.extend(told.lines().skip_while(|l| !l.starts_with("Error:")).map(str::to_owned));
        seen.push(format!("# exit code {}", out.status.code().unwrap()));
    }
    while seen.last().is_some_and(String::is_empty) {
        seen.pop();
    }
    seen
}

/// How long something took is another number each time, and sets the width of its column.
fn timeless(lines: &[String]) -> Vec<String> {
    let word = |w: &str| if w.starts_with(|c: char| c.is_ascii_digit()) { "#".to_owned() } else { w.trim_start_matches('─').to_owned() };
    lines.iter().map(|l| l.split_whitespace().map(word).collect::<Vec<_>>().join(" ")).collect()
}

/// A Parquet file has another size with another version of its writer.
fn sizeless(line: &str) -> String {
    let words: Vec<&str> = line.split(' ').collect();
    let size = |i: usize| words.get(i + 1).is_some_and(|unit| ["KiB", "MiB", "B"].contains(&unit.trim_end_matches([')', ',', '.'])));
    let word = |(i, w): (usize, &&str)| {
        if size(i) && w.trim_start_matches('(').parse::<f64>().is_ok() { w.replace(|c: char| c.is_ascii_digit(), "0") } else { (*w).to_owned() }
    };
    words.iter().enumerate().map(word).collect::<Vec<_>>().join(" ")
}

fn line_matches(want: &str, seen: &str) -> bool {
    let (want, seen) = (&sizeless(want), sizeless(seen));
    let seen = seen.as_str();
    let mut pieces = want.split("[..]");
    let Some(mut rest) = seen.strip_prefix(pieces.next().unwrap_or_default()) else { return false };
    let mut last = None;
    for piece in pieces {
        let Some(at) = rest.find(piece) else { return false };
        rest = &rest[at + piece.len()..];
        last = Some(piece);
    }
    rest.is_empty() || last.is_some_and(|piece| piece.is_empty() || rest.ends_with(piece))
}

fn matches(want: &[String], seen: &[String]) -> bool {
    match want.split_first() {
        None => seen.is_empty(),
        Some((first, rest)) if first == "..." => (0..=seen.len()).any(|n| matches(rest, &seen[n..])),
        Some((first, rest)) => seen.split_first().is_some_and(|(s, others)| line_matches(first, s) && matches(rest, others)),
    }
}

/// Changes restitch.toml as a `diff` says: a line that goes, and the one in its place.
fn patch(file: &Path, lines: &[String]) {
    let mut text = std::fs::read_to_string(file).unwrap();
    for pair in lines.chunks(2) {
        let (old, new) = (pair[0].strip_prefix('-').unwrap(), pair[1].strip_prefix('+').unwrap());
        assert!(text.contains(old), "{old}");
        text = text.replacen(old, new, 1);
    }
    std::fs::write(file, text).unwrap();
}

/// A copy of the example, with the commands of the page's first fence carried out.
fn chapter(first: &Fence) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    copy(&root().join("examples/late_orders"), folder.path());
    for (command, _) in commands(first) {
        let seen = run(folder.path(), &command).join("\n");
        assert!(!seen.contains("# exit code"), "{command}: {seen}");
    }
    folder
}

#[test]
fn the_handbook_prints_what_it_shows() {
    let path: PathBuf = root().join("docs/handbook.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let mut parts = parts(&page);
    assert_eq!(written(&parts), page, "the page is understood");
    let overwrite = std::env::var("TRYCMD").is_ok_and(|v| v == "overwrite");
    let mut first: Option<Fence> = None;
    let mut folder: Option<tempfile::TempDir> = None;
    let (mut given, mut differ) = (0, Vec::new());
    for part in &mut parts {
        let fence = match part {
            Part::Text(line) if line.starts_with("## ") => {
                folder = Some(chapter(first.as_ref().expect("the page begins with what every chapter begins with")));
                continue;
            }
            Part::Text(_) => continue,
            Part::Fence(fence) => fence,
        };
        let Some(here) = &folder else {
            first = Some(fence.clone());
            continue;
        };
        let file = here.path().join(&fence.file);
        let text: String = fence.lines.iter().map(|l| format!("{l}\n")).collect();
        match fence.language.as_str() {
            "jsonl" => std::fs::write(&file, text).unwrap(),
            "toml" => std::fs::write(&file, std::fs::read_to_string(&file).unwrap() + "\n" + &text).unwrap(),
            "diff" => patch(&file, &fence.lines),
            "console" => {
                let mut lines = Vec::new();
                for (command, want) in commands(fence) {
                    let seen = run(here.path(), &command);
                    given += 1;
                    let same = if command.contains("--timings") { timeless(&want) == timeless(&seen) } else { matches(&want, &seen) };
                    if !same && !overwrite {
                        differ.push(format!("$ {command}\n--- the page\n{}\n--- what came\n{}", want.join("\n"), seen.join("\n")));
                    }
                    lines.push(format!("$ {command}"));
                    lines.extend(if same { want } else { seen });
                }
                fence.lines = lines;
            }
            other => panic!("a fence of {other:?}"),
        }
    }
    if overwrite {
        std::fs::write(&path, written(&parts)).unwrap();
    }
    assert!(differ.is_empty(), "{}\n(TRYCMD=overwrite writes the page anew)", differ.join("\n\n"));
    assert!(given > 25, "{given}");
}

#[test]
fn what_is_left_out_matches_and_nothing_else() {
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(matches(&lines("a\n...\nc [..] e"), &lines("a\nx\ny\nc d e")) && matches(&lines("..."), &[]) && matches(&lines("a[..]"), &lines("a")));
    assert!(matches(&lines("a (6.8 KiB)."), &lines("a (7.1 KiB).")) && !matches(&lines("a 6.8 rows"), &lines("a 7.1 rows")));
    for (want, seen) in [("a", "b"), ("a\n...\nc", "a\nx"), ("a [..] c", "a b d"), ("", "a"), ("a", ""), ("[..]b", "abc")] {
        assert!(!matches(&lines(want), &lines(seen)), "{want} / {seen}");
    }
}
