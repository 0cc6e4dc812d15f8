//! A folder of C files becomes a component: Zig's C compiler, then wit-component.
//! Never depends on where the folder is: the same sources and compiler give the same bytes.
//! `build` calls it.

use super::{BuildError, ToolHint, run, tool, world};
use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
};

/// What `transform new` writes: the path in the project, and the text.
pub(super) const FILES: &[(&str, &str)] = &[
    ("transform.c", include_str!("../../../plugins/templates/c/transform.c")),
    (".gitignore", include_str!("../../../plugins/templates/c/gitignore")),
    ("cases/two-customers/input.jsonl", include_str!("../../../plugins/templates/c/cases/two-customers/input.jsonl")),
    ("cases/two-customers/expected.jsonl", include_str!("../../../plugins/templates/c/cases/two-customers/expected.jsonl")),
    ("cases/no-orders/input.jsonl", include_str!("../../../plugins/templates/c/cases/no-orders/input.jsonl")),
    ("cases/no-orders/expected.jsonl", include_str!("../../../plugins/templates/c/cases/no-orders/expected.jsonl")),
    ("sdk/restitch.h", include_str!("../../../plugins/sdk/c/restitch.h")),
    ("sdk/restitch.c", include_str!("../../../plugins/sdk/c/restitch.c")),
];

const HINT: ToolHint = ToolHint { purpose: "compiles C", install: &["python3 -m venv .venv", ".venv/bin/pip install ziglang==0.17.1"] };

/// Where the SDK is: in a project, then in this repository.
const SDK: [&str; 2] = ["sdk", "../../sdk/c"];

/// A trap's frames are called by the names that stay in; folders would differ from machine to machine.
const FLAGS: [&str; 14] = [
    "cc",
    "-target",
    "wasm32-wasi",
    "-mexec-model=reactor",
    "-std=c17",
    "-O3",
    "-g0",
    // Zig takes an optimised build for one without assertions.
    "-UNDEBUG",
    "-Wall",
    "-Wextra",
    // Wrapping and reading at any place are what a wasm machine does; undefined, two builds could differ in it.
    "-fwrapv",
    "-fno-sanitize=all",
    "-ffp-contract=off",
    "-Wl,--strip-debug",
];

/// Returns the component that the C files in `folder` compile to, with those of the SDK.
///
/// # Errors
/// There is no compiler, it says no, or what it makes is no guest.
pub(super) fn build(folder: &Path, target_dir: &Path) -> Result<Vec<u8>, BuildError> {
    let wrong = |problem: String| BuildError::Crate { folder: folder.into(), problem };
    let compiler = compiler(folder)?;
    let sdk = SDK.into_iter().find(|s| folder.join(s).join("restitch.h").is_file());
    let sdk =
        sdk.ok_or_else(|| wrong("it has no sdk/restitch.h: take the folder `sdk` of a new project (restitch transform new NAME --lang c)".into()))?;
    let target = std::path::absolute(target_dir).map_err(|e| wrong(e.to_string()))?;
    std::fs::create_dir_all(&target).map_err(|e| wrong(format!("{} cannot be made: {e}", target.display())))?;
    let module = target.join("transform.core.wasm");
    let mut arguments: Vec<OsString> = FLAGS.iter().map(Into::into).collect();
    arguments.extend([OsString::from("-I"), sdk.into()]);
    arguments.extend(sources(folder, sdk).map_err(|e| wrong(e.to_string()))?);
    arguments.extend([OsString::from("-o"), module.clone().into()]);
    run(folder, &compiler.to_string_lossy(), arguments.iter().map(OsString::as_os_str), &[])?;
    let module = std::fs::read(&module).map_err(|e| wrong(format!("{} is not there: {e}", module.display())))?;
    world::componentize(module)
}

/// Returns Zig, which pip's package calls `python-zig`.
fn compiler(folder: &Path) -> Result<PathBuf, BuildError> {
    tool(folder, "python-zig", &HINT).or_else(|_| tool(folder, "zig", &HINT))
}

/// Returns the C files of the folder and the SDK's, relative to the folder, in the order of their names.
fn sources(folder: &Path, sdk: &str) -> std::io::Result<Vec<OsString>> {
    let mut names: Vec<OsString> = std::fs::read_dir(folder)?.map(|entry| entry.map(|e| e.file_name())).collect::<Result<_, _>>()?;
    names.retain(|name| Path::new(name).extension() == Some(OsStr::new("c")));
    names.sort();
    names.push(format!("{sdk}/restitch.c").into());
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sources_are_taken_in_the_order_of_their_names() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["transform.c", "b.c", "a.h", "notes"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        assert_eq!(sources(folder.path(), "sdk").unwrap(), ["b.c", "transform.c", "sdk/restitch.c"]);
    }
}
