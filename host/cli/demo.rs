//! `demo`: the whole story of late data on the example of the repository, each command printed before its output.
//! Never cheats: the commands are parsed and carried out like typed ones, in a new folder.

use super::{
    Context,
    output::{Answer, data},
    report::Failure,
};
use crate::{id::Digest, store};
use serde_json::json;
use std::path::{Path, PathBuf};

/// What was typed.
#[derive(clap::Args, Debug)]
pub struct Args {
    /// The folder to make [default: restitch-demo]
    folder: Option<PathBuf>,
}

const FILES: [(&str, &str); 6] = [
    ("restitch.toml", include_str!("../../examples/late_orders/restitch.toml")),
    ("customers.csv", include_str!("../../examples/late_orders/customers.csv")),
    ("data/2026-05-01.jsonl", include_str!("../../examples/late_orders/data/2026-05-01.jsonl")),
    ("data/2026-05-02.jsonl", include_str!("../../examples/late_orders/data/2026-05-02.jsonl")),
    ("data/2026-05-03.jsonl", include_str!("../../examples/late_orders/data/2026-05-03.jsonl")),
    ("data/late.jsonl", include_str!("../../examples/late_orders/data/late.jsonl")),
];

const COMPONENTS: [&[u8]; 2] =
    [include_bytes!("../../plugins/components/customer-totals-1.0.0.wasm"), include_bytes!("../../plugins/components/customer-totals-1.1.0.wasm")];

/// What is said before a command, and the command. `{1.0.0}` and `{1.1.0}` stand for the components' files.
const STORY: [(&str, &str); 24] = [
    ("A transform is a WebAssembly component, pinned by its hash: this one sums orders per customer.", "transform add {1.0.0}"),
    ("Two days of orders. Some were delivered twice, one of them with another amount.", "ingest orders data/2026-05-01.jsonl data/2026-05-02.jsonl"),
    ("Both days become partitions: duplicates removed, checked, swapped in together.", "run daily_customer"),
    ("A file of the third day moves the watermark on: the first two days are closed now.", "ingest orders data/2026-05-03.jsonl"),
    ("Its day is built as well.", "run daily_customer"),
    ("Then a shop comes back on line. Its records are for days that are closed: they are kept in raw, and queued.", "ingest orders data/late.jsonl"),
    ("Nothing has changed for readers, but everybody can see that something waits.", "status"),
    ("What would a repair touch, and why? The oldest record is past the repair window and waits for somebody's word.", "plan repair daily_customer"),
    ("Look at the result before anybody else does.", "repair daily_customer --dry-run"),
    (
        "Publish it: exactly these partitions, in one transaction, with the manifest.",
        "repair daily_customer --reason \"the shop at the station was off line\"",
    ),
    ("Proof: computed again it is equal, each late record counts once, nothing else was touched.", "verify r4"),
    ("The manifest pins everything that determined the result.", "show r4"),
    ("Why did this number change?", "why daily_customer 2026-05-01"),
    (
        "The numbers, for one customer.",
        "query \"select _partition, customer_id, orders, total from daily_customer where customer_id = 'A' order by 1\"",
    ),
    (
        "And as they were before the repair, at snapshot 5.",
        "query \"select _partition, customer_id, orders, total from daily_customer where customer_id = 'A' order by 1\" --at 5",
    ),
    ("Was it a mistake? Undo it: the files of before come back as a new snapshot.", "rollback r4 --reason \"only to show it\""),
    (
        "The late records wait again, since nothing that is published contains them.",
        "query \"select partition, state, dirty, rows, run from restitch_partitions order by 1\"",
    ),
    ("A newer version of the transform arrives. Old runs do not care.", "transform add {1.1.0}"),
    ("The repair, computed again as it was: pinned bytes, pinned input, equal bit for bit.", "replay r4"),
    (
        "The newer version leaves credit notes out. A dry run shows what that would change, and that the balance would fail.",
        "backfill daily_customer --start 2026-05-01 --end 2026-05-02 --transform customer-totals@1.1.0 --dry-run --validate warn",
    ),
    ("The repair once more, for good.", "repair daily_customer"),
    (
        "And the record that was too old for an automatic repair: naming its day is the word it waited for.",
        "backfill daily_customer --start 2026-04-20 --end 2026-04-20 --reason \"confirmed by the shop\"",
    ),
    ("All that happened.", "runs"),
    ("Where it ends.", "status"),
];

/// Carries it out.
pub(super) fn run(args: Args, cx: &Context) -> Result<Answer, Failure> {
    let folder = args.folder.unwrap_or_else(|| "restitch-demo".into());
    if !store::is_free(&folder)? {
        let hint = "name another folder, or remove this one";
        return Err(Failure::usage(format!("{} is not empty", folder.display()), Some(hint)));
    }
    let components = write_project(&folder)?;
    if !cx.global.json {
        let talk = format!("# In the folder {}, as if it were noon of 3 May 2026 (each command is given --now {NOW}).\n\n", folder.display());
        super::output::written(data(&talk));
    }
    for (why, command) in STORY {
        let command = COMPONENTS_AT.iter().zip(&components).fold(command.to_owned(), |c, (mark, file)| c.replace(mark, file));
        step(&folder, why, &command, cx)?;
    }
    let shown = folder.display();
    let end = format!(
        "# That was it. Go on by hand:\n\n    cd {shown}\n    restitch status\n    restitch show r4 --json\n\n\
         # Or read the tables with DuckDB: INSTALL ducklake; ATTACH 'ducklake:sqlite:{shown}/warehouse/catalog.sqlite' AS lake; FROM lake.daily_customer;\n"
    );
    Ok(Answer::new(end, json!({ "folder": shown.to_string(), "steps": STORY.len() })))
}

const COMPONENTS_AT: [&str; 2] = ["{1.0.0}", "{1.1.0}"];

fn write_project(folder: &Path) -> Result<Vec<String>, Failure> {
    for (name, text) in FILES {
        store::write_new(&folder.join(name), text.as_bytes())?;
    }
    let mut names = Vec::new();
    for bytes in COMPONENTS {
        let name = format!("transforms/{}.wasm", Digest::of(bytes));
        store::write_new(&folder.join(&name), bytes)?;
        names.push(name);
    }
    Ok(names)
}

/// The clock of the story: noon of its third day.
const NOW: &str = "2026-05-03T12:00:00Z";

fn step(folder: &Path, why: &str, command: &str, cx: &Context) -> Result<(), Failure> {
    let talk = format!("# {why}\n$ restitch {command}\n");
    if !cx.global.json {
        super::output::written(data(&talk));
    }
    let here = std::env::current_dir().map_err(|source| Failure::Folder { folder: ".".into(), source })?;
    let mut words: Vec<String> =
        ["restitch", "-C", &folder.display().to_string(), "--now", NOW, "--operator", &cx.options.operator].map(str::to_owned).to_vec();
    words.extend(split(command));
    let code = if cx.global.json { super::quiet(words.into_iter().map(Into::into)) } else { super::run(words.into_iter().map(Into::into)) };
    std::env::set_current_dir(&here).map_err(|source| Failure::Folder { folder: here, source })?;
    if code != 0 {
        return Err(Failure::Step { command: format!("restitch {command}"), code });
    }
    if !cx.global.json {
        super::output::written(data("\n"));
    }
    Ok(())
}

/// Splits a command line into words, as far as the story needs it: blanks, and double quotes around what has blanks.
fn split(command: &str) -> Vec<String> {
    let mut words = Vec::new();
    for (i, piece) in command.split('"').enumerate() {
        if i % 2 == 1 {
            words.push(piece.to_owned());
        } else {
            words.extend(piece.split_whitespace().map(str::to_owned));
        }
    }
    words
}
