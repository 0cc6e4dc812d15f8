//! A folder with a `transform.js` or `transform.ts` becomes a component: componentize-js, with all of its features off.
//! Never gives the same bytes twice: a version is its component's digest, not its sources.
//! `build` calls it.

use super::{BuildError, ToolHint, run, tool, write_files};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

/// What a new project holds.
pub(super) const FILES: &[(&str, &str)] = &[
    ("transform.js", include_str!("../../../plugins/templates/js/transform.js")),
    ("package.json", include_str!("../../../plugins/templates/js/package.json")),
    (".gitignore", include_str!("../../../plugins/templates/js/gitignore")),
    ("cases/two-customers/input.jsonl", include_str!("../../../plugins/templates/js/cases/two-customers/input.jsonl")),
    ("cases/two-customers/expected.jsonl", include_str!("../../../plugins/templates/js/cases/two-customers/expected.jsonl")),
    ("restitch/restitch.js", include_str!("../../../plugins/sdk/js/restitch.js")),
    ("restitch/columns.js", include_str!("../../../plugins/sdk/js/columns.js")),
    ("restitch/restitch.d.ts", include_str!("../../../plugins/sdk/js/restitch.d.ts")),
];

/// The folder of a project that the SDK stands in.
const SDK: &str = "restitch/";

/// What node runs.
const BUILD: &str = include_str!("../../../plugins/sdk/js/build.mjs");

const NODE: ToolHint = ToolHint { purpose: "runs componentize-js", install: &["(Node.js 20 or later, from your system's packages)"] };

const COMPONENTIZE: ToolHint = ToolHint {
    purpose: "makes a component of JavaScript",
    install: &["npm install --save-dev --save-exact @bytecodealliance/componentize-js@0.23.0 @bytecodealliance/preview2-shim@0.25.0"],
};

/// Returns the component that the module in `folder` becomes. A project without an SDK of its own gets the one of this restitch.
///
/// # Errors
/// There is no node or no componentize-js, or the module cannot be imported.
pub(super) fn build(folder: &Path, target_dir: &Path) -> Result<Vec<u8>, BuildError> {
    let node = tool(folder, "node", &NODE)?;
    let componentize = library(&tool(folder, "componentize-js", &COMPONENTIZE)?, folder)?;
    let absolute = |path: &Path| std::path::absolute(path).map_err(|source| BuildError::Tool { program: "node".into(), source });
    let made = absolute(&target_dir.join("js"))?;
    let wit = super::WIT.iter().map(|(name, text)| (format!("wit/{name}"), *text));
    let sdk = FILES.iter().filter_map(|(path, text)| Some((format!("sdk/{}", path.strip_prefix(SDK)?), *text)));
    write_files(&made, wit.chain(sdk).chain([("build.mjs".to_owned(), BUILD)]))?;
    let [script, sdk, wit, out] = ["build.mjs", "sdk", "wit", "out.wasm"].map(|name| made.join(name));
    let folder = absolute(folder)?;
    let arguments = [&script, &folder, &made, &sdk, &wit, &componentize, &out].map(OsStr::new);
    run(&folder, &node.to_string_lossy(), arguments, &[])?;
    super::read_component(&folder, &out)
}

/// Returns the module to import, beside the command that npm links to.
fn library(command: &Path, folder: &Path) -> Result<PathBuf, BuildError> {
    let real = std::fs::canonicalize(command).map_err(|source| BuildError::Tool { program: "componentize-js".into(), source })?;
    let module = real.with_file_name("componentize.js");
    let lost = || BuildError::Crate { folder: folder.into(), problem: format!("{} is not npm's link to componentize-js", command.display()) };
    module.is_file().then_some(module).ok_or_else(lost)
}
