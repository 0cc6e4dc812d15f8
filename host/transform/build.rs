//! A folder with a transform's sources becomes a component, in each language that has an SDK.
//! Never looks for a tool in a place it does not name when the tool is missing.
//! `restitch transform new` and `transform build` call it, and the test that rebuilds the committed components.

mod c;
mod go;
mod js;
mod python;
mod rust;
mod stub;
mod world;

use std::{
    ffi::{OsStr, OsString},
    path::{Path, PathBuf},
    process::Command,
};

/// Variables of the caller that would change what is compiled.
const UNSET: [&str; 9] = [
    "RUSTFLAGS",
    "CARGO_ENCODED_RUSTFLAGS",
    "RUSTC",
    "RUSTC_WRAPPER",
    "RUSTC_WORKSPACE_WRAPPER",
    "RUSTUP_TOOLCHAIN",
    "CARGO_TARGET_DIR",
    "CARGO_INCREMENTAL",
    "CARGO_MAKEFLAGS",
];

/// A folder with tools for all transforms of a machine: its `bin` and its `node_modules`.
const TOOLS: &str = "RESTITCH_TOOLS";

/// Why a folder does not become a component.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// A tool is nowhere to be found.
    #[error("{program} is not there; it {purpose}. Looked for it in {places}. Install it, in {folder}:\n{install}")]
    Missing {
        /// The tool.
        program: String,
        /// What it does for the build.
        purpose: &'static str,
        /// Where it was looked for.
        places: String,
        /// The folder of the transform.
        folder: PathBuf,
        /// What to type there, one command a line, each indented.
        install: String,
    },
    /// A tool cannot be started.
    #[error("{program} cannot be started: {source}")]
    Tool {
        /// The tool.
        program: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A tool says no.
    #[error("{command} failed:\n{output}")]
    Failed {
        /// What was run.
        command: String,
        /// What it said.
        output: String,
    },
    /// The folder is no crate that can become a component.
    #[error("{folder} cannot become a component: {problem}")]
    Crate {
        /// The folder.
        folder: PathBuf,
        /// What is missing.
        problem: String,
    },
    /// A new project cannot be called that.
    #[error(
        "{name:?} cannot be the name of a transform: a letter first, then letters, digits, '-' and '_', 60 at most, not ending in '-' or '_', in ASCII"
    )]
    Name {
        /// The name.
        name: String,
    },
    /// A new project is called as something that it is built of.
    #[error("{name:?} is the name of a package that the project is built of, and cargo takes no two of one name")]
    Taken {
        /// The name.
        name: String,
    },
    /// The module is no guest of the contract.
    #[error("the compiled module cannot become a component: {reason}")]
    Component {
        /// Why not.
        reason: String,
    },
}

/// A language that transforms are written in, with an SDK, a template and a build.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Language {
    /// A crate, compiled for `wasm32-unknown-unknown`.
    Rust,
    /// An `app.py`, by componentize-py.
    Python,
    /// A `transform.js` or `transform.ts`, by componentize-js.
    Js,
    /// Files in C, compiled by Zig's C compiler.
    C,
    /// A module, compiled by the Go tool-chain.
    Go,
}

impl Language {
    /// All of them, in the order of the documentation.
    pub const ALL: [Language; 5] = [Language::Rust, Language::Python, Language::Js, Language::C, Language::Go];

    /// Returns its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Language::Rust => "rust",
            Language::Python => "python",
            Language::Js => "js",
            Language::C => "c",
            Language::Go => "go",
        }
    }

    /// Returns the file by which a folder is known to hold a transform in this language.
    pub fn marker(self) -> &'static str {
        match self {
            Language::Rust => "Cargo.toml",
            Language::Python => "app.py",
            Language::Js => "transform.js",
            Language::C => "transform.c",
            Language::Go => "go.mod",
        }
    }

    /// Returns the language of the transform in `folder`, by its marker.
    ///
    /// # Errors
    /// No marker is there.
    pub fn of(folder: &Path) -> Result<Language, BuildError> {
        let is = |l: &Language| folder.join(l.marker()).is_file() || (*l == Language::Js && folder.join("transform.ts").is_file());
        let found = Language::ALL.into_iter().find(is);
        let markers = || Language::ALL.map(|l| format!("{} ({})", l.marker(), l.name())).join(", ");
        found.ok_or_else(|| BuildError::Crate { folder: folder.into(), problem: format!("it has none of {}", markers()) })
    }
}

/// Returns the files of a new project, as (path in it, text): a transform that builds and passes its cases.
///
/// # Errors
/// The name cannot be that of a transform in every language, or is taken in this one.
pub fn new_files(language: Language, name: &str) -> Result<Vec<(String, String)>, BuildError> {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) || name.len() > 60 || !name.chars().all(good) || name.ends_with(['-', '_']) {
        return Err(BuildError::Name { name: name.into() });
    }
    if language == Language::Rust && rust::is_package(name) {
        return Err(BuildError::Taken { name: name.into() });
    }
    let files = match language {
        Language::Rust => rust::FILES,
        Language::Python => python::FILES,
        Language::Js => js::FILES,
        Language::C => c::FILES,
        Language::Go => go::FILES,
    };
    let capital = |word: &str| word[..1].to_ascii_uppercase() + &word[1..];
    // The ending keeps it apart from the types of the template and of the SDK, and from keywords.
    let camel: String = name.split(['-', '_']).filter(|w| !w.is_empty()).map(capital).chain(["Transform".to_owned()]).collect();
    let fill = |text: &str| text.replace("{{name}}", name).replace("{{snake}}", &name.replace('-', "_")).replace("{{Camel}}", &camel);
    Ok(files.iter().map(|(path, text)| (fill(path), fill(text))).collect())
}

/// Returns the component that the sources in `folder` become; what is made on the way goes to `target_dir`.
///
/// # Errors
/// The folder holds no transform, a tool is missing or says no, or what it makes is no guest.
pub fn build(folder: &Path, target_dir: &Path) -> Result<Vec<u8>, BuildError> {
    match Language::of(folder)? {
        Language::Rust => rust::build(folder, target_dir),
        Language::Python => python::build(folder, target_dir),
        Language::Js => js::build(folder, target_dir),
        Language::C => c::build(folder, target_dir),
        Language::Go => go::build(folder, target_dir),
    }
}

/// The contract, for tools that make a component of it themselves.
const WIT: [(&str, &str); 3] = [
    ("log.wit", include_str!("../../wit/restitch-transform-1.0.0/log.wit")),
    ("transform.wit", include_str!("../../wit/restitch-transform-1.0.0/transform.wit")),
    ("types.wit", include_str!("../../wit/restitch-transform-1.0.0/types.wit")),
];

/// Writes files below `folder`, which is made.
fn write_files<'a>(folder: &Path, files: impl Iterator<Item = (String, &'a str)>) -> Result<(), BuildError> {
    for (path, text) in files {
        let path = folder.join(path);
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all).and_then(|()| std::fs::write(&path, text));
        made.map_err(|e| BuildError::Crate { folder: folder.into(), problem: format!("{} cannot be written: {e}", path.display()) })?;
    }
    Ok(())
}

/// Returns the component that a tool has left in `file`.
fn read_component(folder: &Path, file: &Path) -> Result<Vec<u8>, BuildError> {
    std::fs::read(file).map_err(|e| BuildError::Crate { folder: folder.into(), problem: format!("{} is not there: {e}", file.display()) })
}

/// What to say of a tool that is not there.
#[derive(Clone, Copy, Debug)]
struct ToolHint {
    /// What it does for the build, in words that follow "it".
    purpose: &'static str,
    /// What to type in the transform's folder, one command each.
    install: &'static [&'static str],
}

/// Returns where `program` is: among the transform's own tools, among the machine's for transforms, or on the path.
///
/// # Errors
/// It is nowhere; the error says what to type.
fn tool(folder: &Path, program: &str, hint: &ToolHint) -> Result<PathBuf, BuildError> {
    tool_in(folder, std::env::var_os(TOOLS), std::env::var_os("PATH"), program, hint)
}

fn tool_in(folder: &Path, tools: Option<OsString>, path: Option<OsString>, program: &str, hint: &ToolHint) -> Result<PathBuf, BuildError> {
    let shared = tools.filter(|t| !t.is_empty()).map(PathBuf::from);
    let own = [".tools/bin", ".venv/bin", "node_modules/.bin"].map(|place| folder.join(place));
    let shared = shared.iter().flat_map(|t| ["bin", "node_modules/.bin"].map(|place| t.join(place)));
    let path: Vec<PathBuf> = path.iter().flat_map(std::env::split_paths).filter(|p| !p.as_os_str().is_empty()).collect();
    let file = format!("{program}{}", std::env::consts::EXE_SUFFIX);
    let found = own.into_iter().chain(shared).chain(path).map(|place| place.join(&file)).find(|p| p.is_file());
    // The tool is started in the transform's folder, where a relative place would be another.
    let absolute = found.and_then(|p| std::path::absolute(p).ok());
    absolute.ok_or_else(|| BuildError::Missing {
        program: program.to_owned(),
        purpose: hint.purpose,
        places: format!(".tools/bin, .venv/bin and node_modules/.bin of the folder, in ${TOOLS} and in $PATH"),
        folder: folder.into(),
        install: hint.install.iter().map(|line| format!("    {line}")).collect::<Vec<_>>().join("\n"),
    })
}

/// Returns the component of a core module that wit-bindgen has left its world in.
fn componentize(module: &[u8]) -> Result<Vec<u8>, BuildError> {
    let encode = || wit_component::ComponentEncoder::default().validate(true).module(module)?.encode();
    // Its error type is not named here, so that its crate need not be a dependency of ours.
    encode().map_err(|e| BuildError::Component { reason: format!("{e:#}") })
}

/// Runs a tool in `folder` and returns what it printed.
fn run<'a>(folder: &Path, program: &str, arguments: impl IntoIterator<Item = &'a OsStr>, variables: &[(&str, &str)]) -> Result<String, BuildError> {
    let mut command = Command::new(program);
    command.current_dir(folder).args(arguments);
    let changes = |name: &OsStr| {
        let name = name.to_string_lossy();
        UNSET.contains(&&*name) || ["CARGO_PROFILE_", "CARGO_BUILD_", "CARGO_TARGET_"].iter().any(|p| name.starts_with(p))
    };
    for (name, _) in std::env::vars_os().filter(|(name, _)| changes(name)) {
        command.env_remove(name);
    }
    command.envs(variables.iter().copied());
    let output = command.output().map_err(|source| BuildError::Tool { program: program.into(), source })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let words = command.get_args().map(|a| a.to_string_lossy()).take_while(|a| a != "--target-dir").collect::<Vec<_>>().join(" ");
    Err(BuildError::Failed { command: format!("{program} {words}"), output: String::from_utf8_lossy(&output.stderr).trim_end().to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_module_is_no_guest() {
        for bytes in [b"".as_slice(), b"\0asm\x01\0\0\0\x01"] {
            let error = componentize(bytes).unwrap_err();
            assert!(matches!(error, BuildError::Component { .. }), "{error}");
        }
        // A module that forgot `export!` becomes a component that exports nothing: `Engine::load` refuses that.
        assert!(componentize(b"\0asm\x01\0\0\0").is_ok());
    }

    #[test]
    fn a_tool_is_found_nearest_first_and_a_missing_one_says_what_to_type() {
        let folder = tempfile::tempdir().unwrap();
        let hint = ToolHint { purpose: "compiles", install: &["python3 -m venv .venv", ".venv/bin/pip install zzz==1"] };
        let (path, shared) = (folder.path().join("path"), folder.path().join("shared"));
        let find = || tool_in(folder.path(), Some(shared.clone().into()), Some(path.clone().into()), "zzz", &hint);
        let error = find().unwrap_err().to_string();
        for part in
            ["zzz is not there; it compiles.", ".venv/bin", "$RESTITCH_TOOLS", "\n    python3 -m venv .venv\n    .venv/bin/pip install zzz==1"]
        {
            assert!(error.contains(part), "{part}: {error}");
        }
        let nearer =
            [path.clone(), shared.join("node_modules/.bin"), shared.join("bin"), folder.path().join(".venv/bin"), folder.path().join(".tools/bin")];
        for place in nearer {
            std::fs::create_dir_all(&place).unwrap();
            let file = place.join(format!("zzz{}", std::env::consts::EXE_SUFFIX));
            std::fs::write(&file, "").unwrap();
            assert_eq!(find().unwrap(), file);
        }
    }

    #[test]
    fn a_new_project_is_filled_in_and_known_by_its_marker() {
        for language in Language::ALL {
            let files = new_files(language, "daily-order_totals").unwrap();
            assert!(files.iter().any(|(path, _)| path == language.marker()), "{language:?}");
            let left = files.iter().find(|(path, text)| ["{{name}}", "{{snake}}", "{{Camel}}"].iter().any(|p| path.contains(p) || text.contains(p)));
            assert_eq!(left, None, "{language:?}");
        }
        let files = new_files(Language::Rust, "daily-order_totals").unwrap();
        assert!(files.iter().any(|(path, text)| path == "src/lib.rs" && text.contains("export!(DailyOrderTotalsTransform)")));
        let files = new_files(Language::Python, "daily-order_totals").unwrap();
        assert!(files.iter().any(|(path, text)| path == "app.py" && text.contains("class DailyOrderTotalsTransform(Transform)")));
        for taken in ["restitch-guest", "restitch-guest-derive", "serde"] {
            assert!(matches!(new_files(Language::Rust, taken), Err(BuildError::Taken { .. })), "{taken}");
            new_files(Language::C, taken).unwrap();
        }
        for bad in ["", "1a", "a b", "é", "a/b", "-a", "a-", &"a".repeat(61)] {
            assert!(matches!(new_files(Language::Rust, bad), Err(BuildError::Name { .. })), "{bad:?}");
        }
    }

    #[test]
    fn a_folder_without_sources_is_told_what_to_hold() {
        let folder = tempfile::tempdir().unwrap();
        let problem = Language::of(folder.path()).unwrap_err().to_string();
        assert!(problem.contains("Cargo.toml (rust)"), "{problem}");
    }
}
