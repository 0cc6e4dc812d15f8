//! A Rust crate's folder becomes a component: cargo, then wit-component.
//! Never depends on where the folder is: the same sources and compiler give the same bytes.
//! `build` calls it.

use super::{BuildError, componentize, run};
use std::{
    ffi::OsStr,
    path::{Path, PathBuf},
};

const TARGET: &str = "wasm32-unknown-unknown";

/// What a new project holds: the template, and the SDK with the contract, so that it builds wherever it lies.
pub(super) const FILES: &[(&str, &str)] = &[
    ("Cargo.toml", include_str!("../../../plugins/templates/rust/Cargo.toml")),
    ("Cargo.lock", include_str!("../../../plugins/templates/rust/Cargo.lock")),
    (".gitignore", include_str!("../../../plugins/templates/rust/gitignore")),
    ("src/lib.rs", include_str!("../../../plugins/templates/rust/src/lib.rs")),
    ("cases/two-customers/input.jsonl", include_str!("../../../plugins/templates/rust/cases/two-customers/input.jsonl")),
    ("cases/two-customers/expected.jsonl", include_str!("../../../plugins/templates/rust/cases/two-customers/expected.jsonl")),
    ("sdk/derive/Cargo.toml", include_str!("../../../plugins/rust/derive/Cargo.toml")),
    ("sdk/derive/src/lib.rs", include_str!("../../../plugins/rust/derive/src/lib.rs")),
    ("sdk/guest/Cargo.toml", include_str!("../../../plugins/rust/sdk/Cargo.toml")),
    ("sdk/guest/src/lib.rs", include_str!("../../../plugins/rust/sdk/src/lib.rs")),
    ("sdk/guest/src/column.rs", include_str!("../../../plugins/rust/sdk/src/column.rs")),
    ("sdk/guest/src/map.rs", include_str!("../../../plugins/rust/sdk/src/map.rs")),
    ("sdk/guest/src/row.rs", include_str!("../../../plugins/rust/sdk/src/row.rs")),
    ("sdk/guest/src/texts.rs", include_str!("../../../plugins/rust/sdk/src/texts.rs")),
    ("sdk/guest/src/transform.rs", include_str!("../../../plugins/rust/sdk/src/transform.rs")),
    ("sdk/guest/src/value.rs", include_str!("../../../plugins/rust/sdk/src/value.rs")),
    ("sdk/guest/wit/log.wit", include_str!("../../../wit/restitch-transform-1.0.0/log.wit")),
    ("sdk/guest/wit/transform.wit", include_str!("../../../wit/restitch-transform-1.0.0/transform.wit")),
    ("sdk/guest/wit/types.wit", include_str!("../../../wit/restitch-transform-1.0.0/types.wit")),
];

/// Returns whether a package of that name is among those that a new project is built of.
pub(super) fn is_package(name: &str) -> bool {
    let lock = include_str!("../../../plugins/templates/rust/Cargo.lock");
    lock.lines().filter_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"')).any(|package| package == name)
}

/// Returns the component that the crate in `manifest_dir` compiles to; cargo's files go to `target_dir`.
///
/// # Errors
/// There is no cargo, the crate does not compile, or what it compiles to is no guest.
pub(super) fn build(manifest_dir: &Path, target_dir: &Path) -> Result<Vec<u8>, BuildError> {
    let package = package(manifest_dir)?;
    // A new crate has no lock file yet: its first build writes one, and from then on it holds.
    if !package.workspace.join("Cargo.lock").exists() {
        run(manifest_dir, "cargo", ["generate-lockfile"].map(OsStr::new), &[])?;
    }
    // Also fetches what is missing, so that the folders to remap are there.
    run(manifest_dir, "cargo", ["fetch", "--locked", "--target", TARGET].map(OsStr::new), &[])?;
    install_target(manifest_dir)?;
    let flags = remap_flags(manifest_dir, &package.workspace)?.join("\x1f");
    let target = std::path::absolute(target_dir).map_err(|source| BuildError::Tool { program: "cargo".into(), source })?;
    let arguments = ["build", "--release", "--locked", "--lib", "--target", TARGET, "--target-dir"].map(OsStr::new);
    let arguments = arguments.into_iter().chain([target.as_os_str()]);
    run(manifest_dir, "cargo", arguments, &[("CARGO_ENCODED_RUSTFLAGS", &flags)])?;
    let module = target.join(TARGET).join("release").join(format!("{}.wasm", package.library));
    let module = std::fs::read(&module)
        .map_err(|e| BuildError::Crate { folder: manifest_dir.into(), problem: format!("{} is not there: {e}", module.display()) })?;
    componentize(&module)
}

struct Package {
    workspace: PathBuf,
    /// The library's name, as its file is called.
    library: String,
}

/// Asks cargo what there is to build.
fn package(folder: &Path) -> Result<Package, BuildError> {
    let wrong = |problem: &str| BuildError::Crate { folder: folder.into(), problem: problem.into() };
    let manifest = std::fs::canonicalize(folder.join("Cargo.toml")).map_err(|_| wrong("it has no Cargo.toml"))?;
    let text = run(folder, "cargo", ["metadata", "--no-deps", "--format-version", "1"].map(OsStr::new), &[])?;
    let metadata: serde_json::Value = serde_json::from_str(&text).map_err(|e| wrong(&format!("cargo metadata: {e}")))?;
    let is_here = |p: &&serde_json::Value| p["manifest_path"].as_str().and_then(|m| std::fs::canonicalize(m).ok()).is_some_and(|m| m == manifest);
    let packages = metadata["packages"].as_array().ok_or_else(|| wrong("cargo metadata names no packages"))?;
    let package = packages.iter().find(is_here).ok_or_else(|| wrong("its Cargo.toml is not of one package"))?;
    let is_cdylib = |t: &&serde_json::Value| t["crate_types"].as_array().is_some_and(|types| types.iter().any(|t| t == "cdylib"));
    let library = package["targets"].as_array().into_iter().flatten().find(is_cdylib);
    let library = library.and_then(|t| t["name"].as_str()).ok_or_else(|| wrong("its Cargo.toml lacks `[lib] crate-type = [\"cdylib\"]`"))?;
    let workspace = metadata["workspace_root"].as_str().ok_or_else(|| wrong("cargo metadata names no workspace"))?;
    Ok(Package { workspace: workspace.into(), library: library.replace('-', "_") })
}

/// Installs the target's standard library for the toolchain that the folder uses, if it is missing.
fn install_target(folder: &Path) -> Result<(), BuildError> {
    let libraries = run(folder, "rustc", ["--print", "target-libdir", "--target", TARGET].map(OsStr::new), &[])?;
    match Path::new(libraries.trim()).is_dir() {
        true => Ok(()),
        false => run(folder, "rustup", ["target", "add", TARGET].map(OsStr::new), &[]).map(drop),
    }
}

/// Returns the flags that keep this machine's folders out of the component. Where several fit, the last counts.
fn remap_flags(folder: &Path, workspace: &Path) -> Result<Vec<String>, BuildError> {
    let mut from_to: Vec<(PathBuf, String)> = vec![(workspace.into(), "/workspace".into())];
    // The contract and the SDK may lie beside the workspace.
    if let Some(parent) = workspace.parent().filter(|p| p.parent().is_some()) {
        from_to.insert(0, (parent.into(), "/beside".into()));
    }
    if let Some(home) = cargo_home() {
        from_to.push((home.join("git/checkouts"), "/cargo/git".into()));
        // One folder for each registry, named after its host.
        let registries = std::fs::read_dir(home.join("registry/src")).into_iter().flatten().flatten();
        from_to.extend(registries.map(|entry| (entry.path(), "/cargo/registry".into())));
    }
    // With the component rust-src installed, rustc names its real folder instead of the usual stand-in.
    let version = run(folder, "rustc", ["-vV"].map(OsStr::new), &[])?;
    let commit = version.lines().find_map(|l| l.strip_prefix("commit-hash: ")).unwrap_or("unknown").to_owned();
    let sysroot = run(folder, "rustc", ["--print", "sysroot"].map(OsStr::new), &[])?;
    from_to.push((Path::new(sysroot.trim()).join("lib/rustlib/src/rust"), format!("/rustc/{commit}")));
    Ok(from_to.into_iter().map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display())).collect())
}

fn cargo_home() -> Option<PathBuf> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    home.or_else(|| std::env::home_dir().map(|home| home.join(".cargo")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_that_is_no_guest_is_told_why() {
        let folder = tempfile::tempdir().unwrap();
        let problem = || package(folder.path()).err().unwrap().to_string();
        assert!(problem().ends_with("it has no Cargo.toml"), "{}", problem());
        std::fs::create_dir(folder.path().join("src")).unwrap();
        std::fs::write(folder.path().join("src/lib.rs"), "").unwrap();
        std::fs::write(folder.path().join("Cargo.toml"), "[package]\nname = \"a-b\"\nedition = \"2024\"\n[workspace]\n").unwrap();
        assert!(problem().contains("crate-type = [\"cdylib\"]"), "{}", problem());
    }
}
