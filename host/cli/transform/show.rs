//! `transform show`: all that is to be known of one transform, registered or in a file.
//! Never runs more of it than its description; of a component that would be refused it shows what it imports.
//! `cli/transform` calls it.

use super::{descriptor, load, object};
use crate::{
    catalog::TransformRow,
    cli::{
        Context,
        output::{Answer, Table, bytes, clean, facts},
        report::Failure,
    },
    config::TransformRef,
    id::Digest,
    pipeline::Error,
    schema::Field,
    store,
    transform::{Descriptor, ImportClass, Parts, parts},
};
use serde_json::{Value, json};
use std::path::Path;

pub(super) fn run(what: &str, cx: &Context) -> Result<Answer, Failure> {
    let is_file = what.ends_with(".wasm") || what.contains(['/', '\\']);
    match TransformRef::parse(what) {
        Some(reference) if !is_file => {
            let mut workshop = cx.open()?;
            let row = workshop.transform_row(&reference)?;
            let component = workshop.component(row.digest)?;
            registered(&row, &component)
        }
        None if !is_file => {
            let hint = "`restitch transform list` lists what is registered; a file ends in .wasm";
            Err(Failure::usage(format!("{what:?} is neither NAME@VERSION nor a component"), Some(hint)))
        }
        _ => file(Path::new(what)),
    }
}

fn registered(row: &TransformRow, component: &[u8]) -> Result<Answer, Failure> {
    let path = format!("{}@{}", row.name, row.version);
    let parts = parts(component).map_err(|source| Error::Component { file: path, source })?;
    let added = Some(format!("{} by {}", row.added.0, row.added.1));
    let descriptor = descriptor(row)?;
    let text = head(Some(&descriptor), row.digest, row.size_bytes, added) + &columns(&descriptor) + &made(&parts);
    let mut json = object(row);
    add_parts(&mut json, &parts);
    Ok(Answer::new(text, json))
}

fn file(path: &Path) -> Result<Answer, Failure> {
    let component = store::read_bytes(path)?;
    let refused = |source| Failure::from(Error::Component { file: path.display().to_string(), source });
    let parts = parts(&component).map_err(refused)?;
    let (digest, size) = (Digest::of(&component), component.len() as i64);
    let mut json = json!({ "file": path.display().to_string(), "digest": digest, "size_bytes": size });
    add_parts(&mut json, &parts);
    match load(&component) {
        Ok(transform) => {
            let d = transform.descriptor();
            json["name"] = d.name.as_str().into();
            json["version"] = d.version.as_str().into();
            json["descriptor"] = serde_json::to_value(d).unwrap_or(Value::Null);
            Ok(Answer::new(head(Some(d), digest, size, None) + &columns(d) + &made(&parts), json))
        }
        Err(e) => Ok(Answer { failure: Some(refused(e)), ..Answer::new(head(None, digest, size, None) + &made(&parts), json) }),
    }
}

fn head(d: Option<&Descriptor>, digest: Digest, size_bytes: i64, added: Option<String>) -> String {
    facts([
        ("Transform", d.map(|d| format!("{}@{}", d.name, d.version))),
        ("Summary", d.map(|d| d.summary.clone())),
        ("SHA-256", Some(digest.to_string())),
        ("Size", Some(bytes(size_bytes))),
        ("Added", added),
        ("Key", d.map(|d| d.key.join(", "))),
    ])
}

/// Inputs, output and parameters.
fn columns(d: &Descriptor) -> String {
    let list = |fields: &[Field]| fields.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let mut text = String::new();
    for (i, input) in d.inputs.iter().enumerate() {
        text += &format!("\n{} {}:\n  {}\n", if i == 0 { "Input" } else { "Lookup" }, clean(&input.name), list(&input.fields));
    }
    text += &format!("\nOutput:\n  {}\n", list(&d.output));
    if !d.parameters.is_empty() {
        let mut table = Table::new(&["parameter", "default", "help"]);
        for p in &d.parameters {
            table.row([p.name.clone(), p.default.clone().unwrap_or_else(|| "(has to be given)".into()), p.help.clone()]);
        }
        text += &format!("\n{}", table.text());
    }
    text
}

/// Imports, exports, and what made it.
fn made(parts: &Parts) -> String {
    let mut text = "\nImports:\n".to_owned();
    if parts.imports.is_empty() {
        text += "  nothing\n";
    }
    for (name, class) in &parts.imports {
        text += &format!("  {} ({class})\n", clean(name));
    }
    if !parts.extra_exports.is_empty() {
        text += &format!("\nExports besides the contract (not used):\n  {}\n", clean(&parts.extra_exports.join(", ")));
    }
    if !parts.producers.is_empty() {
        text += "\nMade by:\n";
        for kind in ["language", "sdk", "processed-by"] {
            let of_kind = parts.producers.iter().filter(|(k, ..)| k == kind);
            let names: Vec<String> = of_kind.map(|(_, name, version)| format!("{name} {version}").trim_end().to_owned()).collect();
            if !names.is_empty() {
                text += &format!("  {}: {}\n", if kind == "processed-by" { "tools" } else { kind }, clean(&names.join(", ")));
            }
        }
    }
    text
}

fn add_parts(object: &mut Value, parts: &Parts) {
    let class = |class: &ImportClass| match class {
        ImportClass::Log => "log",
        ImportClass::Types => "types",
        ImportClass::Refused => "refused",
    };
    object["imports"] = parts.imports.iter().map(|(name, c)| json!({ "name": name, "class": class(c) })).collect();
    object["extra_exports"] = json!(parts.extra_exports);
    object["producers"] = parts.producers.iter().map(|(kind, name, version)| json!({ "kind": kind, "name": name, "version": version })).collect();
}
