//! What restitch.toml and the options of a command decide about rows, beside transform and input: recorded with each partition.
//! Never says whether a partition is stale: `plan` compares what it was made with and what is declared.

use crate::{config::Dedup, id::Digest};
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};

/// A dataset as the windowed input of another.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct UpstreamInput {
    /// The dataset.
    pub dataset: String,
    /// The column that says which partition a row belongs to, where partitions of the input can lie in several; else they are taken whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_column: Option<String>,
}

/// What decides the rows of a partition beside its transform and its input. A published partition with others than are declared is stale.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// Values of the transform's parameters, defaults included.
    pub parameters: IndexMap<String, String>,
    /// Columns that rows are identified and sorted by.
    pub key: Vec<String>,
    /// How duplicates are removed.
    pub dedup: Option<Dedup>,
    /// Whether records are followed across partitions.
    pub follows: bool,
    /// SQL condition that input records met.
    pub filter: Option<String>,
    /// Further inputs.
    pub lookups: IndexMap<String, String>,
    /// Datasets that are windowed.
    pub upstream: Vec<UpstreamInput>,
}

impl Settings {
    /// Returns the digest that stands for it in tables: SHA-256 of its JSON, parameters and lookups by name.
    pub fn digest(&self) -> Digest {
        let mut sorted = self.clone();
        sorted.parameters.sort_keys();
        sorted.lookups.sort_keys();
        Digest::of(&serde_json::to_vec(&sorted).unwrap_or_default())
    }

    /// Returns in words what is otherwise in `declared`. Without `all`, parameters and key are left out: another transform has its own.
    pub fn differences(&self, declared: &Settings, all: bool) -> Vec<String> {
        let mut words = Vec::new();
        let mut table = |what: &str, was: &IndexMap<String, String>, is: &IndexMap<String, String>| {
            let mut names: Vec<&String> = was.keys().chain(is.keys().filter(|k| !was.contains_key(*k))).collect();
            names.retain(|k| was.get(*k) != is.get(*k));
            let shown = |v: Option<&String>| v.map_or("not there".into(), |v| format!("{v:?}"));
            words.extend(names.iter().map(|k| format!("{what} {k} was {} and is {}", shown(was.get(*k)), shown(is.get(*k)))));
        };
        if all {
            table("the parameter", &self.parameters, &declared.parameters);
        }
        table("the lookup", &self.lookups, &declared.lookups);
        let list = |names: &[String]| format!("({})", names.join(", "));
        if all && self.key != declared.key {
            words.push(format!("key was {} and is {}", list(&self.key), list(&declared.key)));
        }
        if self.dedup != declared.dedup {
            let shown = |d: &Option<Dedup>| d.as_ref().map_or("none".into(), dedup_text);
            words.push(format!("dedup was {} and is {}", shown(&self.dedup), shown(&declared.dedup)));
        } else if self.follows != declared.follows {
            words.push(format!("its records are {}followed across partitions now", if declared.follows { "" } else { "not " }));
        }
        if self.filter != declared.filter {
            let shown = |f: &Option<String>| f.as_ref().map_or("none".into(), |f| format!("{f:?}"));
            words.push(format!("filter was {} and is {}", shown(&self.filter), shown(&declared.filter)));
        }
        if self.upstream != declared.upstream {
            words.push("the time_column of its input is another".into());
        }
        words
    }
}

/// Returns how duplicates are removed, in the words of restitch.toml.
pub fn dedup_text(d: &Dedup) -> String {
    let name = |v: serde_json::Result<serde_json::Value>| v.ok().and_then(|v| v.as_str().map(str::to_owned)).unwrap_or_default();
    let (keep, conflict) = (name(serde_json::to_value(d.keep)), name(serde_json::to_value(d.on_conflict)));
    format!("({}), keep {keep}, on conflict {conflict}", d.key.join(", "))
}
