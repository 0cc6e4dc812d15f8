//! Answers and how they are laid out: aligned tables, sizes, short lists, JSON.
//! Never computes anything that a program could not read from the JSON as well.
//! Every verb returns an [`Answer`]; `print` is the one place that writes to stdout.

use super::report::{self, Failure};
use crate::{
    id::Digest,
    query::table_text,
    time::{EventTime, IngestTime, format_us},
};
use serde_json::{Value, json};
use std::io::{self, Write};
use unicode_width::UnicodeWidthStr;

/// What a verb has to say.
pub struct Answer {
    /// For people.
    pub text: String,
    /// For programs: one object.
    pub json: Value,
    /// What went wrong after all this was found out.
    pub failure: Option<Failure>,
    /// Whether it tells of something that was done and stands, also if nobody can read of it.
    pub lasting: bool,
}

impl Answer {
    /// Returns the answer of a command that went well.
    pub fn new(text: String, json: Value) -> Answer {
        Answer { text, json, failure: None, lasting: false }
    }

    /// Returns the answer of a command that left something behind: a snapshot, a run, a file.
    pub fn lasting(text: String, json: Value) -> Answer {
        Answer { lasting: true, ..Answer::new(text, json) }
    }

    /// Returns an answer that is a failure and nothing else.
    pub fn failed(failure: Failure, json: Value) -> Answer {
        Answer { failure: Some(failure), ..Answer::new(String::new(), json) }
    }
}

/// Prints an answer and returns the exit code. What was done stays done where only the answer has no room: the code is of what was done, and stderr tells it.
pub fn print(answer: Answer, json: bool) -> u8 {
    if let (true, Some(failure)) = (json, &answer.failure) {
        return report::failure(failure, true, Some(answer.json));
    }
    let code = match data(&if json { json_text(&answer.json) } else { shown(&answer.text) }) {
        Err(e) if answer.lasting => {
            talk(&format!("note: what was asked is done, but the answer cannot be written: {e}\n{}", answer.text.trim()));
            0
        }
        result => written(result),
    };
    answer.failure.map_or(code, |failure| report::failure(&failure, false, None))
}

/// Returns a JSON value as it is printed: indented, with a line end.
pub fn json_text(value: &Value) -> String {
    format!("{value:#}\n")
}

/// Writes to stdout. A reader that has gone away (`| head`) is no error.
pub fn data(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        other => other,
    }
}

/// Returns the exit code of a write to stdout.
pub fn written(result: io::Result<()>) -> u8 {
    match result {
        Ok(()) => 0,
        Err(e) => {
            talk(&format!("Error: the answer cannot be written: {e}"));
            1
        }
    }
}

/// Writes a line to stderr, whether or not anybody listens.
pub fn talk(line: &str) {
    let mut err = io::stderr().lock();
    writeln!(err, "{}", shown(line)).and_then(|()| err.flush()).ok();
}

/// Returns lines without what a terminal would obey: whoever wrote a part of them, a file's name or a transform's words, does not rule it.
fn shown(lines: &str) -> String {
    lines.chars().map(|c| if matches!(c, '\n' | '\t') { c } else { visible(c) }).collect()
}

/// Returns the character, or what stands for one that is none to look at.
fn visible(c: char) -> char {
    if c.is_control() { '\u{fffd}' } else { c }
}

/// Rows of a table shown when it is longer: from its head, and from its end.
const HEAD: usize = 20;
const TAIL: usize = 5;
/// A table up to this length is shown whole.
const WHOLE: usize = 40;

/// An aligned table; columns of numbers stand to the right.
pub struct Table {
    titles: Vec<&'static str>,
    right: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// Returns an empty table. A title that starts with `>` is of a column of numbers.
    pub fn new(titles: &[&'static str]) -> Table {
        let right = titles.iter().map(|t| t.starts_with('>')).collect();
        Table { titles: titles.iter().map(|t| t.trim_start_matches('>')).collect(), right, rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().map(|c| clean(&c)).collect());
    }

    /// Returns whether it has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the table as lines; of a long one the first and the last rows.
    pub fn text(&self) -> String {
        self.lines(WHOLE)
    }

    /// Returns the table as lines, however long it is.
    pub fn whole(&self) -> String {
        self.lines(usize::MAX)
    }

    fn lines(&self, whole: usize) -> String {
        let cut = self.rows.len() > whole;
        let (head, tail) = if cut { (HEAD, self.rows.len() - TAIL) } else { (self.rows.len(), self.rows.len()) };
        let shown = || self.rows[..head].iter().chain(&self.rows[tail..]);
        let used: Vec<usize> = (0..self.titles.len()).filter(|i| shown().any(|r| !r[*i].is_empty())).collect();
        let width = |i: &usize| shown().map(|r| r[*i].width()).max().unwrap_or(0).max(self.titles[*i].width());
        let widths: Vec<usize> = used.iter().map(width).collect();
        let line = |cell: &dyn Fn(usize) -> String| {
            let cells: Vec<String> = used.iter().zip(&widths).map(|(i, w)| pad(&cell(*i), *w, self.right[*i])).collect();
            format!("{}\n", cells.join("  ").trim_end())
        };
        let mut text = line(&|i| self.titles[i].to_owned());
        text += &format!("{}\n", widths.iter().map(|w| "─".repeat(*w)).collect::<Vec<_>>().join("  "));
        self.rows[..head].iter().for_each(|r| text += &line(&|i| r[i].clone()));
        if cut {
            text += &format!("… {} more\n", tail - head);
        }
        self.rows[tail..].iter().for_each(|r| text += &line(&|i| r[i].clone()));
        text
    }
}

fn pad(text: &str, width: usize, right: bool) -> String {
    let blanks = " ".repeat(width.saturating_sub(text.width()));
    if right { blanks + text } else { text.to_owned() + &blanks }
}

/// Returns text without control characters, which a file name or a transform could send to the terminal.
pub fn clean(text: &str) -> String {
    text.chars().map(visible).collect()
}

/// Names and values in two columns.
pub fn facts<'f>(pairs: impl IntoIterator<Item = (&'f str, Option<String>)>) -> String {
    let pairs: Vec<(&str, String)> = pairs.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
    let width = pairs.iter().map(|(n, _)| n.width()).max().unwrap_or(0);
    pairs.iter().map(|(n, v)| format!("{}  {}\n", pad(n, width, false), clean(v))).collect()
}

/// Returns `count` with its noun, in the plural where it is one.
pub fn count(count: impl Into<i128>, noun: &str) -> String {
    let count = count.into();
    match count {
        1 => format!("1 {noun}"),
        _ => format!("{count} {noun}s"),
    }
}

/// Returns a number of bytes for people.
pub fn bytes(bytes: impl Into<i128>) -> String {
    let bytes = bytes.into();
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.iter().find(|(_, shift)| bytes >= 1i128 << shift) {
        Some((unit, shift)) => format!("{:.1} {unit}", bytes as f64 / (1u64 << shift) as f64),
        None => format!("{bytes} B"),
    }
}

/// Returns a duration in milliseconds for people.
pub fn millis(ms: f64) -> String {
    match ms {
        ms if ms < 10.0 => format!("{ms:.1} ms"),
        ms if ms < 10_000.0 => format!("{ms:.0} ms"),
        ms => format!("{:.1} s", ms / 1000.0),
    }
}

/// Returns a checksum for people.
pub fn short(digest: Option<&Digest>) -> String {
    digest.map_or("–".into(), Digest::short)
}

/// Returns a value, or a dash.
pub fn or_dash(value: Option<impl ToString>) -> String {
    value.map_or("–".into(), |v| v.to_string())
}

/// Returns an event time as JSON.
pub fn event_json(at: EventTime) -> Value {
    json!(format_us(at.0))
}

/// Returns a time of ours as JSON.
pub fn ingest_json(at: IngestTime) -> Value {
    json!(format_us(at.0))
}

/// Returns all rows of a query as an aligned table.
pub fn rows_text(rows: &crate::query::Rows) -> String {
    table_text(rows, usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_to_the_right_and_empty_columns_are_left_out() {
        let mut table = Table::new(&["name", "nothing", ">rows"]);
        table.row(["Zürich".into(), String::new(), "7".into()]);
        table.row(["東京".into(), String::new(), "12".into()]);
        assert_eq!(table.text(), "name    rows\n──────  ────\nZürich     7\n東京      12\n");
    }

    #[test]
    fn a_long_table_shows_its_ends() {
        let mut table = Table::new(&[">n"]);
        (0..41).for_each(|n| table.row([n.to_string()]));
        let text = table.text();
        assert!(text.contains("19\n… 16 more\n36\n"), "{text}");
        assert!(table.whole().contains("\n30\n"));
    }

    #[test]
    fn sizes_and_counts_read_well() {
        assert_eq!((bytes(900), bytes(1536), bytes(3u64 << 30)), ("900 B".into(), "1.5 KiB".into(), "3.0 GiB".into()));
        assert_eq!((count(1, "row"), count(0, "row")), ("1 row".into(), "0 rows".into()));
        assert_eq!((millis(1.26), millis(80.4), millis(12_345.0)), ("1.3 ms".into(), "80 ms".into(), "12.3 s".into()));
        assert_eq!(clean("a\x1b[31m\nb"), "a\u{fffd}[31m\u{fffd}b");
        assert_eq!(shown("a\x1b[31m\n\tb\r"), "a\u{fffd}[31m\n\tb\u{fffd}");
    }
}
