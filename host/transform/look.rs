//! What a component carries besides its code: imports and their class, exports, the tools that made it.
//! Never compiles or runs anything, so it also looks at what the engine would refuse.
//! `transform show` and `transform build` print it.

use super::{
    CONTRACT, TransformError,
    sandbox::{LOG, TYPES},
};
use wasmparser::{KnownCustom, Parser, Payload};

/// What stands in a component's outermost sections.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Parts {
    /// What it imports, and what kind of import that is.
    pub imports: Vec<(String, ImportClass)>,
    /// What it exports besides the contract's interface.
    pub extra_exports: Vec<String>,
    /// What made it, as the tools wrote down: `language`, `processed-by` or `sdk`; a name; a version, perhaps empty.
    pub producers: Vec<(String, String, String)>,
}

/// What a transform may do with an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ImportClass {
    /// The log, which every transform gets.
    Log,
    /// Names of types, with nothing to call.
    Types,
    /// Anything else: `transform add` refuses the component.
    Refused,
}

impl std::fmt::Display for ImportClass {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(match self {
            ImportClass::Log => "log",
            ImportClass::Types => "types only",
            ImportClass::Refused => "refused",
        })
    }
}

/// Returns what stands in the component `bytes`.
///
/// # Errors
/// The bytes are no component.
pub fn parts(bytes: &[u8]) -> Result<Parts, TransformError> {
    let damaged = |e: wasmparser::BinaryReaderError| TransformError::NotComponent {
        reason: e.message().to_owned(),
        hint: "the file is damaged or cut short: build it again",
    };
    super::engine::check_header(bytes)?;
    let mut parts = Parts::default();
    let mut depth = 0;
    for payload in Parser::new(0).parse_all(bytes) {
        match payload.map_err(damaged)? {
            Payload::Version { .. } => depth += 1,
            Payload::End(_) => depth -= 1,
            Payload::ComponentImportSection(section) if depth == 1 => {
                for import in section {
                    let name = import.map_err(damaged)?.name.name;
                    parts.imports.push((name.to_owned(), class(name)));
                }
            }
            Payload::ComponentExportSection(section) if depth == 1 => {
                for export in section {
                    let name = export.map_err(damaged)?.name.name;
                    if name != format!("restitch:transform/transform@{CONTRACT}") {
                        parts.extra_exports.push(name.to_owned());
                    }
                }
            }
            // The tools of the module inside count as well as those of the component around it.
            Payload::CustomSection(section) => {
                if let KnownCustom::Producers(fields) = section.as_known() {
                    add_producers(fields, &mut parts.producers).map_err(damaged)?;
                }
            }
            _ => {}
        }
    }
    parts.producers.sort();
    parts.producers.dedup();
    Ok(parts)
}

fn add_producers(
    fields: wasmparser::ProducersSectionReader,
    producers: &mut Vec<(String, String, String)>,
) -> Result<(), wasmparser::BinaryReaderError> {
    for field in fields {
        let field = field?;
        for value in field.values {
            let value = value?;
            producers.push((field.name.to_owned(), value.name.to_owned(), value.version.to_owned()));
        }
    }
    Ok(())
}

fn class(import: &str) -> ImportClass {
    match import {
        LOG => ImportClass::Log,
        TYPES => ImportClass::Types,
        _ => ImportClass::Refused,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn imports_have_a_class_and_tools_a_name() {
        let good = parts(include_bytes!("../../plugins/components/customer-totals-1.0.0.wasm")).unwrap();
        assert_eq!(good.imports, [(LOG.to_owned(), ImportClass::Log), (TYPES.to_owned(), ImportClass::Types)]);
        assert_eq!(good.extra_exports, Vec::<String>::new());
        assert!(good.producers.iter().any(|(kind, name, _)| kind == "language" && name == "Rust"), "{:?}", good.producers);
        assert!(good.producers.iter().any(|(kind, name, _)| kind == "processed-by" && name == "rustc"), "{:?}", good.producers);
        let bad = parts(include_bytes!("../../plugins/components/misbehave-sockets-1.0.0.wasm")).unwrap();
        assert!(bad.imports.iter().any(|(_, class)| *class == ImportClass::Refused), "{:?}", bad.imports);
        assert!(matches!(parts(b"\0asm\x0d\0\x01\0\xff\xff"), Err(TransformError::NotComponent { .. })));
        assert!(matches!(parts(b"\0asm\x01\0\0\0"), Err(TransformError::NotComponent { .. })));
    }
}
