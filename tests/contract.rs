//! The contract's packages under wit/: a released one never means something else, and a minor version only adds.
//! Never compares text: comments and layout may change for ever. wit/README.md says why.

use restitch::{id::Digest, transform::CONTRACT};
use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};
use wit_parser::{Function, Resolve, Type, TypeDefKind, TypeId, WorldItem, WorldKey};

/// What a package defines: by name, written out.
type Definitions = BTreeMap<String, String>;

fn wit() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("wit")
}

/// Parses the package in a folder.
fn definitions(folder: &Path) -> (String, Definitions) {
    let mut resolve = Resolve::default();
    let (id, _) = resolve.push_dir(folder).unwrap_or_else(|e| panic!("{}: {e:#}", folder.display()));
    let package = &resolve.packages[id];
    let name = &package.name;
    assert_eq!((name.namespace.as_str(), name.name.as_str()), ("restitch", "transform"), "{}", folder.display());
    let mut all = Definitions::new();
    for (interface, id) in &package.interfaces {
        let interface_of = &resolve.interfaces[*id];
        all.insert(interface.clone(), "interface".into());
        for (name, id) in &interface_of.types {
            all.insert(format!("{interface}.{name}"), kind(&resolve, *id));
        }
        for (name, function) in &interface_of.functions {
            all.insert(format!("{interface}.{name}"), signature(&resolve, function));
        }
    }
    for (world, id) in &package.worlds {
        let world_of = &resolve.worlds[*id];
        all.insert(format!("world {world}"), "world".into());
        for (what, items) in [("import", &world_of.imports), ("export", &world_of.exports)] {
            for (key, item) in items {
                let name = match key {
                    WorldKey::Name(name) => name.clone(),
                    WorldKey::Interface(id) => resolve.interfaces[*id].name.clone().unwrap_or_default(),
                };
                let item = match item {
                    WorldItem::Interface { .. } => "interface".into(),
                    WorldItem::Function(f) => signature(&resolve, f),
                    WorldItem::Type { id, .. } => kind(&resolve, *id),
                };
                all.insert(format!("world {world} {what} {name}"), item);
            }
        }
    }
    let version = name.version.as_ref().map(ToString::to_string).unwrap_or_default();
    (version, all)
}

fn signature(resolve: &Resolve, f: &Function) -> String {
    let parameters: Vec<String> = f.params.iter().map(|p| format!("{}: {}", p.name, type_of(resolve, &p.ty))).collect();
    let result = f.result.as_ref().map_or(String::new(), |t| format!(" -> {}", type_of(resolve, t)));
    assert!(matches!(f.kind, wit_parser::FunctionKind::Freestanding), "the contract has no resources and no async functions");
    format!("func({}){result}", parameters.join(", "))
}

/// A type where it is used: by name, if it has one.
fn type_of(resolve: &Resolve, t: &Type) -> String {
    match t {
        Type::Id(id) => resolve.types[*id].name.clone().unwrap_or_else(|| kind(resolve, *id)),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// A type where it is defined: names, types and order of all its parts.
fn kind(resolve: &Resolve, id: TypeId) -> String {
    let of = |t: &Type| type_of(resolve, t);
    let optional = |t: &Option<Type>| t.as_ref().map_or("_".into(), of);
    let list = |parts: Vec<String>| parts.join(", ");
    match &resolve.types[id].kind {
        TypeDefKind::Record(r) => format!("record {{ {} }}", list(r.fields.iter().map(|f| format!("{}: {}", f.name, of(&f.ty))).collect())),
        TypeDefKind::Variant(v) => format!("variant {{ {} }}", list(v.cases.iter().map(|c| format!("{}({})", c.name, optional(&c.ty))).collect())),
        TypeDefKind::Enum(e) => format!("enum {{ {} }}", list(e.cases.iter().map(|c| c.name.clone()).collect())),
        TypeDefKind::Flags(f) => format!("flags {{ {} }}", list(f.flags.iter().map(|f| f.name.clone()).collect())),
        TypeDefKind::Tuple(t) => format!("tuple<{}>", list(t.types.iter().map(of).collect())),
        TypeDefKind::Option(t) => format!("option<{}>", of(t)),
        TypeDefKind::List(t) => format!("list<{}>", of(t)),
        TypeDefKind::Result(r) => format!("result<{}, {}>", optional(&r.ok), optional(&r.err)),
        TypeDefKind::Type(t) => format!("= {}", of(t)),
        other => panic!("the contract has no {}; write it out here before it gets one", other.as_str()),
    }
}

fn digest(all: &Definitions) -> Digest {
    let lines: String = all.iter().map(|(name, what)| format!("{name}: {what}\n")).collect();
    Digest::of(lines.as_bytes())
}

/// What a later minor version lacks of an earlier one, or has otherwise.
fn broken(before: &Definitions, now: &Definitions) -> Vec<String> {
    before.iter().filter(|(name, what)| now.get(*name) != Some(what)).map(|(name, _)| name.clone()).collect()
}

fn numbers(version: &str) -> Vec<u64> {
    version.split('.').map(|n| n.parse().unwrap_or_else(|_| panic!("{version} is not X.Y.Z"))).collect()
}

fn released() -> BTreeMap<String, String> {
    let text = fs::read_to_string(wit().join("RELEASED")).unwrap();
    let line = |l: &str| l.split_once("  ").map(|(v, d)| (v.to_owned(), d.trim().to_owned())).unwrap_or_else(|| panic!("RELEASED: {l:?}"));
    text.lines().filter(|l| !l.is_empty()).map(line).collect()
}

fn packages() -> BTreeMap<Vec<u64>, (String, Definitions)> {
    let mut packages = BTreeMap::new();
    for entry in fs::read_dir(wit()).unwrap().flatten().filter(|e| e.path().is_dir()) {
        let (version, all) = definitions(&entry.path());
        assert_eq!(entry.file_name().to_string_lossy(), format!("restitch-transform-{version}"), "a folder is called after its package");
        packages.insert(numbers(&version), (version, all));
    }
    packages
}

#[test]
fn a_released_version_means_what_it_meant() {
    let (released, packages) = (released(), packages());
    for (version, all) in packages.values() {
        let Some(recorded) = released.get(version) else {
            panic!("wit/RELEASED has no line for {version}; once it is final, add:\n{version}  {}", digest(all));
        };
        assert_eq!(
            *recorded,
            digest(all).to_string(),
            "restitch:transform@{version} is released, and its definitions were changed: make a new package version (wit/README.md)"
        );
    }
    for version in released.keys() {
        assert!(packages.values().any(|(v, _)| v == version), "restitch:transform@{version} is released, and its folder is gone");
    }
    assert!(released.contains_key(CONTRACT), "the host speaks a version that is not released: {CONTRACT}");
}

#[test]
fn a_minor_version_only_adds() {
    let packages: Vec<_> = packages().into_iter().collect();
    for pair in packages.windows(2) {
        let ((before, (from, old)), (now, (to, new))) = (&pair[0], &pair[1]);
        if before[0] == now[0] {
            assert_eq!(broken(old, new), [""; 0], "restitch:transform@{to} lacks or changes what {from} has");
        }
    }
}

/// The first version, changed by `change`, as a package of its own.
fn edited(change: impl Fn(String) -> String) -> Definitions {
    let folder = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(wit().join("restitch-transform-1.0.0")).unwrap().flatten() {
        fs::write(folder.path().join(entry.file_name()), change(fs::read_to_string(entry.path()).unwrap())).unwrap();
    }
    definitions(folder.path()).1
}

#[test]
fn edits_are_told_apart() {
    let (_, first) = definitions(&wit().join("restitch-transform-1.0.0"));
    let same = edited(|t| t.replace("///", "/// Another comment:").replace("  ", "      "));
    assert_eq!(digest(&first), digest(&same), "comments and layout do not count");
    let harmful = [
        ("a field more", "    nullable: bool,", "    nullable: bool,\n    unit: string,"),
        ("another element type", "    offsets: list<u8>,", "    offsets: list<u16>,"),
        ("a case more", "    timestamp,", "    timestamp,\n    interval,"),
        ("another number type", "seed: u64", "seed: s64"),
        ("a level renamed", "    warn,", "    warning,"),
        ("another result", "finish: func() -> result<option<batch>, failure>", "finish: func() -> option<batch>"),
        ("a parameter more", "push: func(input: u32, b: batch)", "push: func(input: u32, b: batch, last: bool)"),
        ("an import less", "  import log;\n", ""),
    ];
    for (what, from, to) in harmful {
        let changed = edited(|t| t.replace(from, to));
        assert_ne!(digest(&first), digest(&changed), "{what}");
        assert!(!broken(&first, &changed).is_empty(), "{what}");
    }
    let additive = edited(|t| {
        t.replace("  describe: func() -> descriptor;", "  describe: func() -> descriptor;\n  cancel: func();")
            .replace("  /// Why a transform gives up", "  record hint { rows: u64 }\n\n  /// Why a transform gives up")
    });
    assert_ne!(digest(&first), digest(&additive));
    assert!(broken(&first, &additive).is_empty(), "an addition is no break");
}
