//! The command line: what was typed becomes a request, a `Workshop` carries it out, the answer is printed.
//! Never decides anything about data. stdout is data, stderr is talk; only this module names either of them.
//! One file per verb below it, each with its `Args` (what was typed) and its `run`.

mod apply;
mod approve;
mod backfill;
mod backup;
mod demo;
mod diff;
mod doctor;
mod gc;
mod ingest;
mod output;
mod plan;
mod progress;
mod prove;
mod publish;
mod reparse;
mod report;
mod show;
mod status;
mod steady;
mod transform;
mod why;

use crate::{
    config::parse_bytes,
    pipeline::{Error, Options, PROJECT_FILE, Workshop, init, system_user},
    time::{Clock, EventTime, IngestTime, parse as parse_time},
};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use output::{Answer, print, talk};
use report::Failure;
use serde_json::{Value, json};
use std::{
    ffi::OsString,
    io::IsTerminal,
    path::{Path, PathBuf},
};

/// Repairs history without corrupting it: bounded, validated, replayable backfills over DuckLake tables.
#[derive(Parser, Debug)]
#[command(name = "restitch", version, max_term_width = 110, disable_help_subcommand = true)]
#[command(
    after_help = "Exit codes: 0 done · 1 failed, nothing published · 2 usage or configuration · 3 validation refused · 4 conflict, plan again · 5 approval needed\n\n`restitch demo` shows the whole story in a minute."
)]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every verb takes.
#[derive(clap::Args, Clone, Debug)]
struct Global {
    /// Work as if started in this folder
    #[arg(id = "chdir", short = 'C', value_name = "FOLDER", global = true)]
    folder: Option<PathBuf>,
    /// Answer with one JSON object on stdout, errors too
    #[arg(long, global = true)]
    json: bool,
    /// Pretend that it is this time (RFC 3339, or a date)
    #[arg(long, value_name = "TIME", global = true, value_parser = instant)]
    now: Option<EventTime>,
    /// Who asks, in manifests and history [default: the system user]; an account proves itself by RESTITCH_TOKEN
    #[arg(long, value_name = "NAME", global = true)]
    operator: Option<String>,
    /// Memory that a run may use, about
    #[arg(long, value_name = "SIZE", global = true, default_value = "1GiB", value_parser = memory, hide_default_value = false)]
    memory: u64,
    /// Tasks of a run, and files of an ingest, at once [default: the number of cores]
    #[arg(long, value_name = "N", global = true, value_parser = clap::value_parser!(u64).range(1..=1024))]
    workers: Option<u64>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Make a project and its warehouse, here or in FOLDER
    Init(InitArgs),
    /// Land files in the raw table of a source; late records are noticed and queued
    Ingest(ingest::Args),
    /// Show the watermarks of a source, or move its watermark by hand
    Watermark(ingest::WatermarkArgs),
    /// Show what a run, repair or backfill would touch, and why
    Plan(plan::Args),
    /// Carry out a plan that was saved with `plan -o`, exactly, or refuse
    Apply(apply::Args),
    /// Build open and newly closed partitions
    Run(backfill::Args),
    /// Recompute closed partitions that late records came for
    Repair(backfill::Args),
    /// Recompute a range that you name
    Backfill(backfill::Args),
    /// Give your word for a run of somebody else that waits for it, and publish it
    Approve(approve::Args),
    /// Publish a run that was staged; several in one transaction
    Publish(publish::PublishArgs),
    /// Throw a staged or rejected run away
    Discard(publish::RunArg),
    /// Restore what was before a run
    Rollback(publish::RollbackArgs),
    /// Remove old versions of partitions and raw past its retention; shows first what would go
    Gc(gc::Args),
    /// Recompute an old run as it was, and compare
    Replay(prove::Args),
    /// Prove a run: computed again it is equal, each late record counted once, nothing else touched
    Verify(prove::Args),
    /// Try another version of a transform on what is published, or compare a run with what stood before it
    Diff(diff::Args),
    /// Show watermarks, partition states and what waits for repair
    Status(status::Args),
    /// List the last runs
    Runs(show::RunsArgs),
    /// Show the manifest of a run
    Show(show::Args),
    /// Tell the story of one partition: which runs changed it, which late records came
    Why(why::WhyArgs),
    /// List the records of a partition that share a key and differ in payload, and which of them counts
    Conflicts(why::Args),
    /// Compare every file with its recorded hash, and look for what does not hold together
    Doctor(doctor::Args),
    /// Copy the whole warehouse into another folder, while others go on writing
    Backup(backup::Args),
    /// Query tables with SQL, now or as of a snapshot
    Query(status::QueryArgs),
    /// Add, list, show and build transforms
    #[command(subcommand)]
    Transform(transform::Command),
    /// Play the whole story of late data in a new folder, printing every command
    Demo(demo::Args),
}

#[derive(clap::Args, Debug)]
struct InitArgs {
    /// The project's folder
    folder: Option<PathBuf>,
}

/// What a verb works with.
struct Context {
    global: Global,
    options: Options,
}

impl Context {
    fn new(global: Global) -> Context {
        let clock = global.now.map_or(Clock::System, |t| Clock::Fixed(IngestTime(t.0)));
        let operator = global.operator.clone().unwrap_or_else(system_user);
        let token = std::env::var("RESTITCH_TOKEN").ok().filter(|t| !t.is_empty());
        let workers = global.workers.map_or_else(cores, |n| n as usize);
        let options = Options { operator, token, clock, memory_bytes: global.memory as usize, workers, faults: Default::default() };
        Context { global, options }
    }

    /// Returns what `make` makes for programs, if one asks: of a warehouse with many partitions it is large.
    fn object(&self, make: impl FnOnce() -> Value) -> Value {
        if self.global.json { make() } else { Value::Null }
    }

    /// Opens the project, and says what dead processes had left.
    fn open(&self) -> Result<Workshop, Error> {
        let workshop = Workshop::open(Path::new(""), self.options.clone())?;
        workshop.findings.iter().for_each(|f| talk(&format!("note: {f}")));
        Ok(workshop)
    }
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, |n| n.get())
}

/// Runs one command line, the program's name first, and returns its exit code.
pub fn run(arguments: impl IntoIterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.into_iter().collect();
    let cli = match parse(&arguments) {
        Ok(cli) => cli,
        Err(e) => return report::usage(&e, arguments.iter().any(|a| a == "--json")),
    };
    let json = cli.global.json;
    match enter(&cli.global).and_then(|()| dispatch(cli)) {
        Ok(answer) => print(answer, json),
        Err(failure) => report::failure(&failure, json, None),
    }
}

/// Runs one command line and keeps its answer to itself: the demo in JSON.
fn quiet(arguments: impl Iterator<Item = OsString>) -> u8 {
    let arguments: Vec<OsString> = arguments.collect();
    let cli = match parse(&arguments) {
        Ok(cli) => cli,
        Err(e) => return report::usage(&e, true),
    };
    match enter(&cli.global).and_then(|()| dispatch(cli)) {
        Ok(answer) => answer.failure.map_or(0, |f| report::failure(&f, false, None)),
        Err(failure) => report::failure(&failure, false, None),
    }
}

/// Parses, with colours only where a terminal is.
fn parse(arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = Cli::command().color(clap::ColorChoice::Auto).try_get_matches_from(arguments)?;
    Cli::from_arg_matches(&matches)
}

fn enter(global: &Global) -> Result<(), Failure> {
    let Some(folder) = &global.folder else { return Ok(()) };
    std::env::set_current_dir(folder).map_err(|source| Failure::Folder { folder: folder.clone(), source })
}

fn dispatch(cli: Cli) -> Result<Answer, Failure> {
    use crate::manifest::Kind;
    let context = Context::new(cli.global);
    let cx = &context;
    match cli.command {
        Command::Init(args) => start(args, cx),
        Command::Ingest(args) => ingest::run(args, cx),
        Command::Watermark(args) => ingest::watermark(args, cx),
        Command::Plan(args) => plan::run(args, cx),
        Command::Apply(args) => apply::run(args, cx),
        Command::Run(args) => backfill::run(Kind::Run, args, cx),
        Command::Repair(args) => backfill::run(Kind::Repair, args, cx),
        Command::Backfill(args) => backfill::run(Kind::Backfill, args, cx),
        Command::Approve(args) => approve::run(args, cx),
        Command::Publish(args) => publish::publish(args, cx),
        Command::Discard(args) => publish::discard(args, cx),
        Command::Rollback(args) => publish::rollback(args, cx),
        Command::Gc(args) => gc::run(args, cx),
        Command::Replay(args) => prove::replay(args, cx),
        Command::Verify(args) => prove::verify(args, cx),
        Command::Diff(args) => diff::run(args, cx),
        Command::Status(args) => status::run(args, cx),
        Command::Runs(args) => show::runs(args, cx),
        Command::Show(args) => show::run(args, cx),
        Command::Why(args) => why::run(args, cx),
        Command::Conflicts(args) => why::conflicts(args, cx),
        Command::Doctor(args) => doctor::run(args, cx),
        Command::Backup(args) => backup::run(args, cx),
        Command::Query(args) => status::query(args, cx),
        Command::Transform(command) => transform::run(command, cx),
        Command::Demo(args) => demo::run(args, cx),
    }
}

fn start(args: InitArgs, cx: &Context) -> Result<Answer, Failure> {
    let root = args.folder.unwrap_or_default();
    let warehouse = init(&root, &cx.options)?;
    let file = root.join(PROJECT_FILE);
    let text = format!(
        "Project    {}\nWarehouse  {}\n\nDeclare sources and datasets in {PROJECT_FILE}, then `restitch ingest SOURCE FILE…`.\n",
        file.display(),
        warehouse.display()
    );
    Ok(Answer::lasting(text, json!({ "project": file.display().to_string(), "warehouse": warehouse.display().to_string() })))
}

/// Reads an instant that was typed.
fn instant(text: &str) -> Result<EventTime, String> {
    parse_time(text, chrono_tz::Tz::UTC).map_err(|e| e.to_string())
}

/// Reads a number of bytes that was typed: `512MiB`, `2GiB`, `100MB` or plain bytes.
fn size(text: &str) -> Result<u64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor = match unit.trim() {
        "" | "B" => Some(1),
        "KiB" => Some(1 << 10),
        "MiB" => Some(1 << 20),
        "GiB" => Some(1u64 << 30),
        "TiB" => Some(1 << 40),
        "kB" | "KB" => Some(1_000),
        "MB" => Some(1_000_000),
        "GB" => Some(1_000_000_000),
        "TB" => Some(1_000_000_000_000),
        _ => None,
    };
    let bytes = number.parse::<u64>().ok().zip(factor).and_then(|(n, f)| n.checked_mul(f));
    bytes.filter(|b| *b <= i64::MAX as u64).ok_or_else(|| format!("{text:?} is not a size, like 512MiB or 2GiB"))
}

/// Reads the memory of a run: a size as restitch.toml has them.
fn memory(text: &str) -> Result<u64, String> {
    let bytes = parse_bytes(text).filter(|b| *b <= i64::MAX as u64);
    bytes.ok_or_else(|| format!("{text:?} is not a size, like 512MiB or 2GiB (of B, KiB, MiB and GiB, at least 1B)"))
}

/// Whether talk goes to a person.
fn at_terminal() -> bool {
    std::io::stderr().is_terminal()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn sizes_carry_their_unit() {
        assert_eq!((size("1GiB"), size("2 kB"), size("7")), (Ok(1 << 30), Ok(2000), Ok(7)));
        for wrong in ["", "GiB", "1 gib", "-1", "99999999TiB", "1.5GiB"] {
            assert!(size(wrong).is_err(), "{wrong}");
        }
        assert_eq!((memory("1GiB"), memory("512 MiB")), (Ok(1 << 30), Ok(512 << 20)));
        for wrong in ["", "0", "0GiB", "7", "1GB", "99999999999GiB"] {
            assert!(memory(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_plan_takes_a_kind_or_guesses_it() {
        let kind = |words: &str| match parse(&words.split(' ').map(OsString::from).collect::<Vec<_>>()).map(|c| c.command) {
            Ok(Command::Plan(args)) => args.kind_and_dataset().map(|(k, d)| (k.name(), d)).map_err(|e| e.to_string()),
            other => Err(format!("{other:?}")),
        };
        assert_eq!(kind("restitch plan repair d"), Ok(("repair", "d".into())));
        assert_eq!(kind("restitch plan d"), Ok(("run", "d".into())));
        assert_eq!(kind("restitch plan d --start 2026-05-01 --end 2026-05-02"), Ok(("backfill", "d".into())));
        assert!(kind("restitch plan repiar d").unwrap_err().contains("repiar"));
    }
}
