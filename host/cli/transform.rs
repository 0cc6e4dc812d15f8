//! `transform add | list | show | build`: components in the warehouse; `prove` and `outdated` are in `trial`.

use super::{
    Context,
    output::{Answer, Table, bytes, facts, ingest_json},
    report::Failure,
};
use crate::{
    catalog::TransformRow,
    config::TransformRef,
    pipeline::Error,
    store,
    transform::{self, Descriptor},
};
use serde_json::{Value, json};
use std::path::PathBuf;

/// What can be done with transforms.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Register components; a version is bound to its bytes for ever
    Add {
        /// The components
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// List what is registered
    List,
    /// Show one: hash, inputs, output, key, parameters
    Show {
        /// The transform, as NAME@VERSION
        #[arg(value_name = "NAME@VERSION", value_parser = reference)]
        transform: TransformRef,
    },
    /// Prove that a transform repeats itself: the same input in other batches, on other cores, in other groups, compiled again
    Prove(super::trial::Args),
    /// List published partitions that were made by another version than restitch.toml names
    Outdated {
        /// Only this dataset
        dataset: Option<String>,
    },
    /// Build the sources of a transform into a component
    Build {
        /// The folder with the sources
        folder: PathBuf,
        /// Where to write the component [default: the folder's name, .wasm, here]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
}

pub(super) fn reference(text: &str) -> Result<TransformRef, String> {
    TransformRef::parse(text).ok_or_else(|| format!("{text:?} is not NAME@VERSION"))
}

/// Carries it out.
pub(super) fn run(command: Command, cx: &Context) -> Result<Answer, Failure> {
    match command {
        Command::Add { files } => add(&files, cx),
        Command::List => list(cx),
        Command::Show { transform } => {
            let row = cx.open()?.transform_row(&transform)?;
            show(&row)
        }
        Command::Prove(args) => super::trial::prove(args, cx),
        Command::Outdated { dataset } => super::trial::outdated(dataset, cx),
        Command::Build { folder, output } => build(&folder, output),
    }
}

fn add(files: &[PathBuf], cx: &Context) -> Result<Answer, Failure> {
    let mut workshop = cx.open()?;
    let (mut text, mut rows) = (String::new(), Vec::new());
    for file in files {
        let (row, new) = workshop.add_transform(file)?;
        let what = if new { "Added" } else { "Already there:" };
        text += &format!("{what} {}@{} as {} ({})\n", row.name, row.version, row.digest, bytes(row.size_bytes));
        rows.push(json!({ "name": row.name, "version": row.version, "digest": row.digest, "new": new }));
    }
    Ok(Answer::new(text, json!({ "transforms": rows })))
}

fn list(cx: &Context) -> Result<Answer, Failure> {
    let rows = cx.open()?.transforms()?;
    let mut table = Table::new(&["transform", "hash", ">size", "added", "by", "summary"]);
    for t in &rows {
        let summary = descriptor(t).map(|d| d.summary).unwrap_or_default();
        table.row([format!("{}@{}", t.name, t.version), t.digest.short(), bytes(t.size_bytes), t.added.0.to_string(), t.added.1.clone(), summary]);
    }
    let text = if table.is_empty() { "No transforms yet: `restitch transform add FILE.wasm` registers one.\n".into() } else { table.text() };
    Ok(Answer::new(text, json!({ "transforms": rows.iter().map(object).collect::<Vec<_>>() })))
}

fn descriptor(t: &TransformRow) -> Result<Descriptor, Failure> {
    serde_json::from_str(&t.descriptor).map_err(|e| Error::Internal(format!("the description of {}@{}: {e}", t.name, t.version)).into())
}

fn object(t: &TransformRow) -> Value {
    let d: Value = serde_json::from_str(&t.descriptor).unwrap_or(Value::Null);
    json!({ "name": t.name, "version": t.version, "digest": t.digest, "size_bytes": t.size_bytes, "added": ingest_json(t.added.0), "added_by": t.added.1, "descriptor": d })
}

fn show(t: &TransformRow) -> Result<Answer, Failure> {
    let d = descriptor(t)?;
    let list = |fields: &[crate::schema::Field]| fields.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut text = facts([
        ("Transform", Some(format!("{}@{}", t.name, t.version))),
        ("Summary", Some(d.summary.clone())),
        ("SHA-256", Some(t.digest.to_string())),
        ("Size", Some(bytes(t.size_bytes))),
        ("Added", Some(format!("{} by {}", t.added.0, t.added.1))),
        ("Key", Some(d.key.join(", "))),
    ]);
    for (i, input) in d.inputs.iter().enumerate() {
        text += &format!("\n{} {}:\n  {}\n", if i == 0 { "Input" } else { "Lookup" }, input.name, list(&input.fields));
    }
    text += &format!("\nOutput:\n  {}\n", list(&d.output));
    if !d.parameters.is_empty() {
        let mut table = Table::new(&["parameter", "default", "help"]);
        for p in &d.parameters {
            table.row([p.name.clone(), p.default.clone().unwrap_or_else(|| "(has to be given)".into()), p.help.clone()]);
        }
        text += &format!("\n{}", table.text());
    }
    Ok(Answer::new(text, object(t)))
}

fn build(folder: &std::path::Path, output: Option<PathBuf>) -> Result<Answer, Failure> {
    let component = transform::build(folder, &folder.join("target"))?;
    let name = folder.canonicalize().ok().and_then(|f| f.file_name().map(|n| n.to_string_lossy().into_owned())).unwrap_or_else(|| "transform".into());
    let file = output.unwrap_or_else(|| PathBuf::from(format!("{name}.wasm")));
    store::write(&file, &component)?;
    let digest = crate::id::Digest::of(&component);
    let text = format!(
        "Built {} ({}), SHA-256 {digest}\n`restitch transform add {}` registers it.\n",
        file.display(),
        bytes(component.len() as i64),
        file.display()
    );
    Ok(Answer::new(text, json!({ "file": file.display().to_string(), "digest": digest, "size_bytes": component.len() })))
}
