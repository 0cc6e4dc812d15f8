//! Transforms: WASM components that turn one partition's rows into a derived table's rows.
//! Never lets one see anything but its input; the only place that names wasmtime, wasmparser or wit_component.
//! It sits between `execute`, which has the rows, and code that nobody trusts.

mod build;
mod convert;
mod engine;
mod look;
mod sandbox;

pub use build::{BuildError, Language, build, new_files};
pub use engine::{Cache, Engine, Transform};
pub use look::{ImportClass, Parts, parts};
pub use sandbox::{Instance, Level, LogLine};

use crate::schema::{DataType, Field};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// The contract as wasmtime generates it. Its types stop at `convert` and `engine`.
mod contract {
    wasmtime::component::bindgen!({
        path: "wit/restitch-transform-1.0.0",
        world: "transformer",
        ownership: Borrowing { duplicate_if_necessary: true },
    });
}

/// The version of the contract that this host speaks.
pub const CONTRACT: &str = "1.0.0";

/// What a transform says it is. Read once, when it is registered, and stored beside its digest.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Descriptor {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// One sentence on what it does.
    pub summary: String,
    /// What it reads: the windowed input, then lookups.
    pub inputs: Vec<Input>,
    /// The columns it returns.
    #[serde(with = "fields")]
    pub output: Vec<Field>,
    /// The output columns that identify a row inside its partition.
    pub key: Vec<String>,
    /// The parameters it knows.
    pub parameters: Vec<Parameter>,
}

/// An input of a transform.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// The columns it reads, in the order they are sent.
    #[serde(with = "fields")]
    pub fields: Vec<Field>,
}

/// A parameter of a transform.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Parameter {
    /// Its name.
    pub name: String,
    /// Its value when none is given; without one it must be given.
    pub default: Option<String>,
    /// What it does.
    pub help: String,
}

/// What a transform may know about the run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Context {
    /// The partition's name.
    pub partition: String,
    /// Start of the partition, inclusive, UTC microseconds.
    pub start_us: i64,
    /// End of the partition, exclusive, UTC microseconds.
    pub end_us: i64,
    /// The dataset's zone, an IANA name.
    pub time_zone: String,
    /// The clock the run is pinned to, UTC microseconds.
    pub as_of_us: i64,
    /// The seed the run is pinned to.
    pub seed: u64,
    /// The parameters that were given, by name. Defaults are filled in from the descriptor.
    pub parameters: Vec<(String, String)>,
}

impl Descriptor {
    /// Returns the value of every parameter, in the descriptor's order, defaults filled in.
    ///
    /// # Errors
    /// One is not known, or one without a default is not given.
    pub fn parameters_with_defaults(&self, given: &[(String, String)]) -> Result<Vec<(String, String)>, TransformError> {
        for (name, _) in given {
            if !self.parameters.iter().any(|p| p.name == *name) {
                let known = self.parameters.iter().map(|p| p.name.as_str());
                let message = match crate::config::nearest(name, known.clone()) {
                    Some(near) => format!("there is no parameter {name:?}; did you mean {near:?}?"),
                    None => format!("there is no parameter {name:?}; known: {}", Names(known.collect())),
                };
                return Err(TransformError::Parameters { message });
            }
        }
        let value = |p: &Parameter| given.iter().rev().find(|(n, _)| *n == p.name).map(|(_, v)| v.clone()).or_else(|| p.default.clone());
        let missing = |p: &Parameter| TransformError::Parameters { message: format!("the parameter {:?} has to be given: {}", p.name, p.help) };
        self.parameters.iter().map(|p| value(p).map(|v| (p.name.clone(), v)).ok_or_else(|| missing(p))).collect()
    }

    /// Checks what a component said of itself before anything relies on it.
    fn check(&self) -> Result<(), TransformError> {
        let wrong = |problem: String| Err(TransformError::Descriptor { problem });
        let good = |text: &str, extra: &str| {
            (1..=100).contains(&text.len()) && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c) || extra.contains(c))
        };
        if !good(&self.name, "") {
            return wrong(format!("the name {} is not 1 to 100 ASCII letters, digits, '-', '_' and '.'", Shown(&self.name)));
        }
        if !good(&self.version, "+") {
            return wrong(format!("the version {} is not 1 to 100 ASCII letters, digits, '-', '_', '.' and '+'", Shown(&self.version)));
        }
        if self.inputs.is_empty() {
            return wrong("it declares no input".into());
        }
        unique("input", self.inputs.iter().map(|i| i.name.as_str()))?;
        for input in &self.inputs {
            check_fields(&format!("input {:?}", input.name), &input.fields)?;
        }
        check_fields("the output", &self.output)?;
        if let Some(f) = self.output.iter().find(|f| f.name.starts_with('_')) {
            return wrong(format!("the output column {:?} starts with '_', which is kept for restitch's own columns", f.name));
        }
        unique("key column", self.key.iter().map(String::as_str))?;
        if self.key.is_empty() {
            return wrong("it declares no key: name the output columns that identify a row inside its partition".into());
        }
        if let Some(k) = self.key.iter().find(|k| !self.output.iter().any(|f| f.name == **k)) {
            return wrong(format!("the key column {k:?} is not in the output"));
        }
        unique("parameter", self.parameters.iter().map(|p| p.name.as_str()))?;
        self.check_texts()
    }

    /// Texts are shown, and kept with every version.
    fn check_texts(&self) -> Result<(), TransformError> {
        let help = |p: &Parameter| (format!("the help of the parameter {:?}", p.name), p.help.len());
        let default = |p: &Parameter| (format!("the default of the parameter {:?}", p.name), p.default.as_ref().map_or(0, String::len));
        let texts = [("the summary".to_owned(), self.summary.len())].into_iter();
        let mut texts = texts.chain(self.parameters.iter().flat_map(|p| [help(p), default(p)]));
        match texts.find(|(_, bytes)| *bytes > TEXT_BYTES_MAX) {
            Some((what, bytes)) => Err(TransformError::Descriptor { problem: format!("{what} has {bytes} bytes, more than {TEXT_BYTES_MAX}") }),
            None => Ok(()),
        }
    }
}

/// A summary, a help or a default is not longer than this.
const TEXT_BYTES_MAX: usize = 8 << 10;

/// Returns whether this can be the name of a column, an input or a parameter.
fn is_name(name: &str) -> bool {
    !name.trim().is_empty() && name.len() <= 255 && !name.contains(char::is_control)
}

fn check_fields(place: &str, fields: &[Field]) -> Result<(), TransformError> {
    let wrong = |problem: String| Err(TransformError::Descriptor { problem });
    if fields.is_empty() || fields.len() > 10_000 {
        return wrong(format!("{place} has {} columns, not 1 to 10000", fields.len()));
    }
    for field in fields {
        if !is_name(&field.name) {
            return wrong(format!("{place} has a column {}: not a name", Shown(&field.name)));
        }
        if let DataType::Decimal(p, s) = field.data_type
            && DataType::parse(&field.data_type.to_string()).is_none()
        {
            return wrong(format!(
                "{place}, column {:?}: decimal({p},{s}) needs a precision of 1 to 38 and a scale of 0 to the precision",
                field.name
            ));
        }
    }
    // Catalogs compare names without case, so two that differ in nothing else are one.
    let mut seen = HashSet::new();
    match fields.iter().find(|f| !seen.insert(f.name.to_lowercase())) {
        Some(f) => wrong(format!("{place} has more than one column {:?} (case does not count)", f.name)),
        None => Ok(()),
    }
}

fn unique<'a>(what: &str, names: impl Iterator<Item = &'a str>) -> Result<(), TransformError> {
    let mut seen = HashSet::new();
    for name in names {
        if !is_name(name) {
            return Err(TransformError::Descriptor { problem: format!("it declares the {what} {}: not a name", Shown(name)) });
        }
        if !seen.insert(name) {
            return Err(TransformError::Descriptor { problem: format!("there is a second {what} {name:?}") });
        }
    }
    Ok(())
}

/// A name that may be none, for an error message.
struct Shown<'a>(&'a str);

impl std::fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        let beginning = &self.0[..self.0.floor_char_boundary(100)];
        write!(f, "{beginning:?}{}", if beginning.len() < self.0.len() { "…" } else { "" })
    }
}

/// Names, for an error message.
struct Names<'a>(Vec<&'a str>);

impl std::fmt::Display for Names<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        f.write_str(if self.0.is_empty() { "none" } else { "" })?;
        f.write_str(&self.0.join(", "))
    }
}

/// Fields as JSON: name, type as restitch.toml writes it, nullable.
mod fields {
    use super::{DataType, Field};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    #[derive(Serialize, Deserialize)]
    struct Text {
        name: String,
        r#type: String,
        nullable: bool,
    }

    pub fn serialize<S: Serializer>(fields: &[Field], to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(fields.iter().map(|f| Text { name: f.name.clone(), r#type: f.data_type.to_string(), nullable: f.nullable }))
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Field>, D::Error> {
        let field = |t: Text| match DataType::parse(&t.r#type) {
            Some(data_type) => Ok(Field::new(t.name, data_type, t.nullable)),
            None => Err(D::Error::custom(format!("{:?} is not a column type", t.r#type))),
        };
        Vec::<Text>::deserialize(from)?.into_iter().map(field).collect()
    }
}

/// Why a transform is refused, or why its partition fails. Nothing of the partition is to be used then.
#[derive(Debug, thiserror::Error)]
pub enum TransformError {
    /// The bytes are not a component.
    #[error("not a WebAssembly component: {reason}")]
    NotComponent {
        /// What they are instead.
        reason: String,
        /// The way out.
        hint: &'static str,
    },
    /// It wants something that no transform gets.
    #[error("it imports {import}; a transform may import restitch:transform/log@1.0.0 and nothing else")]
    Import {
        /// The import's name.
        import: String,
        /// How to build it without.
        hint: &'static str,
    },
    /// It is a component, but no transform.
    #[error("it is not a transform: it exports {exports}, not restitch:transform/transform@1.0.0")]
    World {
        /// What it exports.
        exports: String,
    },
    /// It is a transform of another version of the contract.
    #[error("it speaks restitch:transform@{found}; this restitch {} speaks {CONTRACT}{}", env!("CARGO_PKG_VERSION"), understood(found))]
    Version {
        /// The version it speaks.
        found: String,
    },
    /// It does not come to an end with saying what it is.
    #[error("it does not say what it is: its `describe` {reason}")]
    Undescribed {
        /// What it did instead.
        reason: String,
    },
    /// What it says of itself makes no sense.
    #[error("its description is wrong: {problem}")]
    Descriptor {
        /// What is wrong.
        problem: String,
    },
    /// It needs more memory than it may have.
    #[error("it needs more than {limit_bytes} bytes of memory (limits.memory)")]
    Memory {
        /// The limit.
        limit_bytes: u64,
    },
    /// It runs longer than it may.
    #[error("it ran longer than {limit_ms} ms (limits.time)")]
    Time {
        /// The limit.
        limit_ms: u64,
    },
    /// It returns more than it may.
    #[error("it returned more than {limit_bytes} bytes (limits.output)")]
    Output {
        /// The limit.
        limit_bytes: u64,
    },
    /// It executes more than it may.
    #[error("it executed more than {limit} instructions (limits.fuel)")]
    Fuel {
        /// The limit.
        limit: u64,
    },
    /// It died.
    #[error("it died: {message}")]
    Trap {
        /// A panic's message, or else the trap's.
        message: String,
        /// The functions that it died in, innermost first.
        frames: Vec<String>,
        /// The end of its log.
        log_tail: Vec<LogLine>,
    },
    /// A parameter is not known, is missing, or is refused by the transform.
    #[error("parameter: {message}")]
    Parameters {
        /// What is wrong with it.
        message: String,
    },
    /// The transform cannot take a row.
    #[error("input {input:?}, row {row} of the batch: {message}")]
    Row {
        /// The input's name.
        input: String,
        /// The row's place in the batch that was pushed, from 0.
        row: u32,
        /// What is wrong with it.
        message: String,
    },
    /// The transform gives up for a reason of its own.
    #[error("{message}")]
    Failed {
        /// The reason.
        message: String,
    },
    /// It returned a batch that is not what its description promises.
    #[error("it returned a broken batch: {}{problem}", place(column))]
    BadBatch {
        /// The column, if one is to blame.
        column: Option<String>,
        /// What is wrong.
        problem: String,
    },
    /// A batch for it is not what its description asks for.
    #[error("input {input:?}: {}{problem}", place(column))]
    BadInput {
        /// The input's name or number.
        input: String,
        /// The column, if one is to blame.
        column: Option<String>,
        /// What is wrong.
        problem: String,
    },
    /// A column that it wants without nulls has some.
    #[error("input {input:?}: column {column:?}: {nulls} nulls in a column that may have none")]
    Nulls {
        /// The input's name.
        input: String,
        /// The column.
        column: String,
        /// How many, in one batch.
        nulls: usize,
    },
    /// The sandbox itself cannot be set up.
    #[error("the sandbox cannot be set up: {reason}")]
    Engine {
        /// Why not.
        reason: String,
    },
}

/// Which release understands a version of the contract: by wit/README.md the one of the same number, and all after it.
fn understood(version: &str) -> String {
    if is_newer(version) { format!("; restitch {version} or later understands it") } else { "; that version was never released".into() }
}

/// Returns whether a version of the contract is later than ours. All versions up to ours that were released are understood.
fn is_newer(version: &str) -> bool {
    let numbers = |v: &str| v.split(['.', '-', '+']).map_while(|p| p.parse::<u64>().ok()).collect::<Vec<_>>();
    numbers(version) > numbers(CONTRACT)
}

fn place(column: &Option<String>) -> String {
    column.as_ref().map_or(String::new(), |c| format!("column {c:?}: "))
}

impl TransformError {
    /// Returns the way out, where there is one to name.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            TransformError::NotComponent { hint, .. } | TransformError::Import { hint, .. } => (*hint).into(),
            TransformError::World { .. } => {
                format!("build it for the world restitch:transform/transformer@{CONTRACT} (wit/restitch-transform-{CONTRACT})")
            }
            TransformError::Version { found } if is_newer(found) => {
                format!("use restitch {found} or later, or build the transform against wit/restitch-transform-{CONTRACT}")
            }
            TransformError::Version { .. } => format!("build the transform against wit/restitch-transform-{CONTRACT}"),
            TransformError::Undescribed { .. } => {
                "`describe` has constants to return and nothing else to do; its limits are the same for all, whatever a dataset declares".into()
            }
            TransformError::Memory { .. } => "raise limits.memory of the dataset, or let the transform keep less".into(),
            TransformError::Time { .. } => "raise limits.time of the dataset, or choose shorter partitions".into(),
            TransformError::Fuel { .. } => "raise limits.fuel of the dataset, or choose shorter partitions".into(),
            TransformError::Output { .. } => "raise limits.output of the dataset, or choose shorter partitions".into(),
            TransformError::Trap { frames, log_tail, .. } => return autopsy(frames, log_tail),
            _ => return None,
        })
    }
}

/// Returns where a guest died and what it logged last, if either is known.
fn autopsy(frames: &[String], log_tail: &[LogLine]) -> Option<String> {
    let mut parts = Vec::new();
    if !frames.is_empty() {
        parts.push(format!("it died in {} (the innermost function first)", frames.join(", ")));
    }
    if !log_tail.is_empty() {
        let lines = log_tail.iter().map(|l| format!("\n  {} {}", l.level, l.message.trim_end().replace('\n', "\n    "))).collect::<String>();
        parts.push(format!("the last lines of its log:{lines}"));
    }
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Descriptor {
        let field = |name: &str| Field::new(name, DataType::Decimal(18, 2), true);
        Descriptor {
            name: "totals".into(),
            version: "1.0.0+a".into(),
            summary: String::new(),
            inputs: vec![Input { name: "orders".into(), fields: vec![field("_event_time"), field("b")] }],
            output: vec![field("a"), field("b")],
            key: vec!["a".into()],
            parameters: vec![
                Parameter { name: "currency".into(), default: Some("EUR".into()), help: String::new() },
                Parameter { name: "rate".into(), default: None, help: "the rate".into() },
            ],
        }
    }

    #[test]
    fn a_descriptor_is_checked_before_anything_relies_on_it() {
        good().check().unwrap();
        let bad = |change: fn(&mut Descriptor)| {
            let mut d = good();
            change(&mut d);
            d.check().unwrap_err().to_string()
        };
        #[allow(clippy::type_complexity)]
        let table: [(fn(&mut Descriptor), &str); 16] = [
            (|d| d.name = "a/b".into(), "the name \"a/b\" is not"),
            (|d| d.version = String::new(), "the version \"\" is not"),
            (|d| d.inputs.clear(), "it declares no input"),
            (|d| d.inputs.push(d.inputs[0].clone()), "a second input \"orders\""),
            (|d| d.output[1].name = "A".into(), "the output has more than one column \"A\""),
            (|d| d.output[1].name = "_b".into(), "starts with '_'"),
            (|d| d.output.clear(), "the output has 0 columns"),
            (|d| d.inputs[0].fields[0].data_type = DataType::Decimal(39, 0), "decimal(39,0) needs"),
            (|d| d.key = vec!["c".into()], "the key column \"c\" is not in the output"),
            (|d| d.key.clear(), "it declares no key"),
            (|d| d.parameters[1].name = "currency".into(), "a second parameter \"currency\""),
            (|d| d.parameters[1].name = String::new(), "the parameter \"\": not a name"),
            (|d| d.inputs[0].name = "a\u{1b}[31m".into(), "the input \"a\\u{1b}[31m\": not a name"),
            (|d| d.summary = "é".repeat(4097), "the summary has 8194 bytes, more than 8192"),
            (|d| d.parameters[1].help = "h".repeat(8193), "the help of the parameter \"rate\" has 8193 bytes"),
            (|d| d.parameters[0].default = Some("1".repeat(9000)), "the default of the parameter \"currency\" has 9000 bytes"),
        ];
        for (change, part) in table {
            assert!(bad(change).contains(part), "{} / {part}", bad(change));
        }
    }

    #[test]
    fn a_descriptor_survives_json() {
        let json = serde_json::to_string(&good()).unwrap();
        assert!(json.contains(r#"{"name":"a","type":"decimal(18,2)","nullable":true}"#), "{json}");
        assert_eq!(serde_json::from_str::<Descriptor>(&json).unwrap(), good());
    }

    #[test]
    fn parameters_are_known_and_complete_before_a_transform_starts() {
        let given = |list: &[(&str, &str)]| {
            let list: Vec<_> = list.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
            good().parameters_with_defaults(&list).map_err(|e| e.to_string())
        };
        assert_eq!(given(&[("rate", "2")]).unwrap(), [("currency".into(), "EUR".into()), ("rate".into(), "2".into())]);
        assert_eq!(given(&[]).unwrap_err(), "parameter: the parameter \"rate\" has to be given: the rate");
        assert_eq!(given(&[("curency", "USD")]).unwrap_err(), "parameter: there is no parameter \"curency\"; did you mean \"currency\"?");
    }
}
