//! A folder with an `app.py` becomes a component: componentize-py, with every import of WASI stubbed.
//! Never gives the same bytes twice: a version is its component's digest, not its sources.
//! `build` calls it.

use super::{BuildError, ToolHint, run, tool, write_files};
use std::{ffi::OsStr, path::Path};

/// What a new project holds.
pub(super) const FILES: &[(&str, &str)] = &[
    ("app.py", include_str!("../../../plugins/templates/python/app.py")),
    (".gitignore", include_str!("../../../plugins/templates/python/gitignore")),
    ("cases/two-customers/input.jsonl", include_str!("../../../plugins/templates/python/cases/two-customers/input.jsonl")),
    ("cases/two-customers/expected.jsonl", include_str!("../../../plugins/templates/python/cases/two-customers/expected.jsonl")),
    ("restitch_guest/__init__.py", include_str!("../../../plugins/sdk/python/restitch_guest/__init__.py")),
    ("restitch_guest/columns.py", include_str!("../../../plugins/sdk/python/restitch_guest/columns.py")),
    ("restitch_guest/component.py", include_str!("../../../plugins/sdk/python/restitch_guest/component.py")),
    ("restitch_guest/log.py", include_str!("../../../plugins/sdk/python/restitch_guest/log.py")),
    ("restitch_guest/rows.py", include_str!("../../../plugins/sdk/python/restitch_guest/rows.py")),
    ("restitch_guest/transform.py", include_str!("../../../plugins/sdk/python/restitch_guest/transform.py")),
];

/// The folder of a project that the SDK stands in.
const SDK: &str = "restitch_guest/";

/// What is componentized: the author's module stays free of what only a component needs.
const ENTRY: &str = "import app\nfrom restitch_guest.component import component\n\nTransform = component(app)\n";

const COMPONENTIZE: ToolHint =
    ToolHint { purpose: "makes a component of Python", install: &["python3 -m venv .venv", ".venv/bin/pip install componentize-py==0.25.1"] };

/// Returns the component that `app.py` in `folder` becomes. A project without an SDK of its own gets the one of this restitch.
///
/// # Errors
/// There is no componentize-py, or the modules cannot be imported.
pub(super) fn build(folder: &Path, target_dir: &Path) -> Result<Vec<u8>, BuildError> {
    let componentize = tool(folder, "componentize-py", &COMPONENTIZE)?;
    let made = std::path::absolute(target_dir.join("python")).map_err(|source| BuildError::Tool { program: "componentize-py".into(), source })?;
    let wit = super::WIT.iter().map(|(name, text)| (format!("wit/{name}"), *text));
    let sdk = FILES.iter().filter(|(path, _)| path.starts_with(SDK)).map(|(path, text)| (format!("sdk/{path}"), *text));
    write_files(&made, wit.chain(sdk).chain([("entry/restitch_entry.py".to_owned(), ENTRY)]))?;
    let [wit, sdk, entry, out] = ["wit", "sdk", "entry", "out.wasm"].map(|name| made.join(name));
    let folder = std::path::absolute(folder).map_err(|source| BuildError::Tool { program: "componentize-py".into(), source })?;
    let arguments: [&OsStr; 16] = [
        "-q".as_ref(),
        "-d".as_ref(),
        wit.as_ref(),
        "-w".as_ref(),
        "transformer".as_ref(),
        "componentize".as_ref(),
        "restitch_entry".as_ref(),
        "-s".as_ref(),
        "-p".as_ref(),
        folder.as_ref(),
        "-p".as_ref(),
        sdk.as_ref(),
        "-p".as_ref(),
        entry.as_ref(),
        "-o".as_ref(),
        out.as_ref(),
    ];
    // Packages that the author installed for the project can be imported; those of another project cannot.
    let venv = folder.join(".venv").to_string_lossy().into_owned();
    run(&folder, &componentize.to_string_lossy(), arguments, &[("VIRTUAL_ENV", &venv)])?;
    super::read_component(&folder, &out)
}
