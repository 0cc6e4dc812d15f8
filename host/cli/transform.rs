//! `transform new | build | test | add | list | show`: from a folder of sources to a component in the warehouse.
//! Never needs a warehouse to write, build or test one.
//! `cli` calls it; `transform/show` and `transform/test` lay two of the answers out, `prove` and `outdated` are in `cli/steady`.

mod show;
mod test;

use super::{
    Context,
    output::{Answer, Table, bytes, ingest_json},
    report::Failure,
};
use crate::{
    catalog::TransformRow,
    config::TransformRef,
    pipeline::{Added, Error},
    store,
    transform::{self, Cache, Descriptor, Engine, Language, Transform, TransformError},
};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

/// What can be done with transforms.
#[derive(clap::Subcommand, Debug)]
pub enum Command {
    /// Write a small project that builds and passes its case
    New {
        /// What the transform is called
        name: String,
        /// The language
        #[arg(long, value_name = "LANGUAGE", value_parser = language)]
        lang: Language,
        /// The folder to write it into, which is made [default: the name]
        #[arg(long, value_name = "DIR")]
        into: Option<PathBuf>,
    },
    /// Register components, all of them or none; a version is bound to its bytes for ever
    Add {
        /// The components
        #[arg(required = true, value_name = "FILE")]
        files: Vec<PathBuf>,
    },
    /// List what is registered
    List,
    /// Show one: hash, inputs, output, key, parameters, imports, what made it
    Show {
        /// The transform, as NAME@VERSION of the warehouse or as a file
        #[arg(value_name = "NAME@VERSION|FILE")]
        transform: String,
    },
    /// Prove that a transform repeats itself: the same input in other batches, on other cores, in other groups, compiled again
    Prove(super::steady::Args),
    /// List published partitions that were made by another version than restitch.toml names
    Outdated {
        /// Only this dataset
        dataset: Option<String>,
    },
    /// Build the sources of a transform into a component
    Build {
        /// The folder with the sources
        #[arg(default_value = ".", value_name = "DIR")]
        folder: PathBuf,
        /// Where to write the component [default: the folder's name, .wasm, here]
        #[arg(short, long, value_name = "FILE")]
        output: Option<PathBuf>,
    },
    /// Run a transform against the cases of its project, without a warehouse
    Test(test::Args),
}

fn language(text: &str) -> Result<Language, String> {
    let known = Language::ALL.map(Language::name);
    Language::ALL.into_iter().find(|l| l.name() == text).ok_or_else(|| format!("the languages are {}", known.join(", ")))
}

pub(super) fn reference(text: &str) -> Result<TransformRef, String> {
    TransformRef::parse(text).ok_or_else(|| format!("{text:?} is not NAME@VERSION"))
}

/// Carries it out.
pub(super) fn run(command: Command, cx: &Context) -> Result<Answer, Failure> {
    match command {
        Command::New { name, lang, into } => new(&name, lang, into),
        Command::Add { files } => add(&files, cx),
        Command::List => list(cx),
        Command::Show { transform } => show::run(&transform, cx),
        Command::Prove(args) => super::steady::prove(args, cx),
        Command::Outdated { dataset } => super::steady::outdated(dataset, cx),
        Command::Build { folder, output } => build(&folder, output),
        Command::Test(args) => test::run(&args),
    }
}

fn new(name: &str, language: Language, into: Option<PathBuf>) -> Result<Answer, Failure> {
    let files = transform::new_files(language, name)?;
    let folder = into.unwrap_or_else(|| PathBuf::from(name));
    if !store::is_free(&folder)? {
        return Err(Failure::usage(format!("{} is there already, and not empty", folder.display()), Some("--into DIR names another folder")));
    }
    for (path, text) in &files {
        store::write_new(&folder.join(path), text.as_bytes())?;
    }
    let own = files.iter().map(|(path, _)| path.as_str()).filter(|p| !p.starts_with("sdk/") && !p.starts_with('.')).collect::<Vec<_>>();
    // What the build needs besides the languages themselves, where a project has it in a folder of its own.
    let tools = match language {
        Language::Python => "  python3 -m venv .venv && .venv/bin/pip install componentize-py==0.25.1\n",
        Language::Js => "  npm install\n",
        Language::Rust | Language::C | Language::Go => "",
    };
    let shown = folder.display().to_string();
    let plain = shown.chars().all(|c| c.is_alphanumeric() || "/._-".contains(c));
    let quoted = if plain { shown } else { format!("'{}'", shown.replace('\'', "'\\''")) };
    let text = format!(
        "Wrote {} ({}), a project of its own with what it needs of restitch: {}\n\nNext:\n  cd {quoted}\n{tools}  restitch transform test\n  restitch transform build\n",
        folder.display(),
        language.name(),
        own.join(", "),
    );
    let paths: Vec<&str> = files.iter().map(|(path, _)| path.as_str()).collect();
    Ok(Answer::lasting(text, json!({ "folder": folder.display().to_string(), "language": language.name(), "files": paths })))
}

fn add(files: &[PathBuf], cx: &Context) -> Result<Answer, Failure> {
    let (mut text, mut rows) = (String::new(), Vec::new());
    for (row, added) in cx.open()?.add_transforms(files)? {
        let (what, why) = match added {
            Added::New => ("Added", ""),
            Added::PutBack => ("Put back", ": what was stored of it was gone or damaged"),
            Added::Known => ("Already there:", ""),
        };
        text += &format!("{what} {}@{} as {} ({}){why}\n", row.name, row.version, row.digest, bytes(row.size_bytes));
        let (new, put_back) = (added == Added::New, added == Added::PutBack);
        rows.push(json!({ "name": row.name, "version": row.version, "digest": row.digest, "new": new, "put_back": put_back }));
    }
    Ok(Answer::lasting(text, json!({ "transforms": rows })))
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

/// Loads a component in the way `add` does.
fn load(bytes: &[u8]) -> Result<Transform, TransformError> {
    Engine::new(Cache::User)?.load(bytes)
}

/// Returns the component of the sources in `folder`, and what files of it are called.
fn built(folder: &Path) -> Result<(Vec<u8>, String), Failure> {
    let component = transform::build(folder, &folder.join("target"))?;
    let name = std::path::absolute(folder).ok().and_then(|f| f.file_name().map(|n| n.to_string_lossy().into_owned()));
    Ok((component, name.unwrap_or_else(|| "transform".into())))
}

fn build(folder: &Path, output: Option<PathBuf>) -> Result<Answer, Failure> {
    let (component, name) = built(folder)?;
    let file = output.unwrap_or_else(|| PathBuf::from(format!("{name}.wasm")));
    store::write(&file, &component)?;
    let digest = crate::id::Digest::of(&component);
    let size = bytes(component.len() as i64);
    let object = json!({ "file": file.display().to_string(), "digest": digest, "size_bytes": component.len() });
    let transform = match load(&component) {
        Ok(transform) => transform,
        // The file stays, to be looked at with `transform show`.
        Err(source) => {
            let failure = Error::Component { file: file.display().to_string(), source }.into();
            let text = format!("Built {} ({size}), SHA-256 {digest}, which cannot be registered\n", file.display());
            return Ok(Answer { failure: Some(failure), ..Answer::new(text, object) });
        }
    };
    let reference = format!("{}@{}", transform.descriptor().name, transform.descriptor().version);
    let text = format!(
        "Built {reference} as {} ({size}), SHA-256 {digest}\nIt imports nothing but the log. `restitch transform add {}` registers it.\n",
        file.display(),
        file.display()
    );
    let mut object = object;
    object["transform"] = reference.into();
    Ok(Answer::lasting(text, object))
}
