//! Datasets as inputs of datasets: which are declared so, that none feeds itself, and which row belongs to which partition.
//! Never looks at data; an order that cannot be kept is refused where it is written.

use super::text::{DatasetText, Reader};
use super::*;
use std::{collections::HashMap, ops::Range};

impl Reader<'_> {
    /// Returns the datasets that are the windowed input; none if sources are. A name that both have is the source's.
    pub(super) fn upstream(
        &self,
        named: &[String],
        d: &DatasetText,
        sources: &IndexMap<String, Source>,
        declared: &[String],
    ) -> Result<Vec<String>, ConfigError> {
        let is_dataset = |name: &&String| !sources.contains_key(*name) && declared.contains(name);
        if let Some(name) = named.iter().find(|name| !sources.contains_key(*name) && !declared.contains(name)) {
            let unknown = Unknown::new("source or dataset", name, sources.keys().chain(declared));
            return Err(self.error(d.input.span(), unknown.to_string(), Some(unknown.hint)));
        }
        let upstream: Vec<String> = named.iter().filter(is_dataset).cloned().collect();
        let Some(first) = upstream.first() else { return Ok(upstream) };
        if let Some(source) = named.iter().find(|name| sources.contains_key(*name)) {
            let message = format!(
                "{source:?} is a source and {first:?} a dataset: records come in the order of arrival, rows of a dataset in that of its partitions, so they are not taken together"
            );
            let hint = format!("make a dataset of {source}, and name only datasets here; or send the source whole, as a lookup");
            return Err(self.error(d.input.span(), message, Some(hint)));
        }
        if let Some(dedup) = &d.dedup {
            let span = dedup.key.first().map_or(d.input.span(), toml::Spanned::span);
            let message = format!("rows of the dataset {first} have no order of arrival, of which dedup keeps the first or the last");
            return Err(self.error(span, message, Some(format!("remove duplicates in [dataset.{first}], or in the transform"))));
        }
        if let Some(text) = d.on_row_failure.as_ref().filter(|t| t.as_ref() == "quarantine") {
            let message = format!("rows of the dataset {first} have no record id by which one of them could be put in quarantine");
            return Err(self.error(
                text.span(),
                message,
                Some(format!("declare it in [dataset.{first}]; here a row that the transform fails on fails the run")),
            ));
        }
        Ok(upstream)
    }

    /// Refuses datasets that feed themselves, and rows of which nobody can say which partition they belong to.
    pub(super) fn check_upstream(&self, datasets: &IndexMap<String, Dataset>, inputs: &IndexMap<String, Range<usize>>) -> Result<(), ConfigError> {
        if let Some(circle) = circle(datasets) {
            let line = |name: &str| self.place(&inputs[name]).0;
            let steps: Vec<String> = circle.iter().map(|name| format!("{name} (line {})", line(name))).collect();
            let message = match steps.as_slice() {
                [one] => format!("the dataset {one} is its own input"),
                steps => format!("datasets feed each other in a circle: {} reads {}", steps.join(" reads "), circle[0]),
            };
            let hint = "a dataset is computed after its inputs, so one of these has to read something else".to_owned();
            return Err(self.error(inputs[circle[0]].clone(), message, Some(hint)));
        }
        for d in datasets.values() {
            let unclear = |u: &&Dataset| !u.calendar().nests_in(&d.calendar()) && u.time_column.is_none();
            if let Some(u) = d.upstream.iter().filter_map(|u| datasets.get(u)).find(unclear) {
                let (inner, outer) = (format!("{} in {}", u.grain, u.time_zone), format!("{} in {}", d.grain, d.time_zone));
                let (u, message) = (&u.name, format!("a partition of {} (by {inner}) need not lie in one of {} (by {outer})", u.name, d.name));
                let hint = format!(
                    "declare in [dataset.{u}] which column has a row's time: time_column = \"COLUMN\", a timestamp of its transform's output; or cut {} by another grain or zone",
                    d.name
                );
                return Err(self.error(inputs[&d.name].clone(), message, Some(hint)));
            }
        }
        Ok(())
    }
}

/// Returns the datasets of a circle, each before the one that it reads.
fn circle(datasets: &IndexMap<String, Dataset>) -> Option<Vec<&str>> {
    // How far each was followed: true while what it reads is being followed.
    let mut followed: HashMap<&str, bool> = HashMap::new();
    for start in datasets.keys() {
        let mut path: Vec<(&str, usize)> = Vec::new();
        let mut next = (!followed.contains_key(start.as_str())).then_some(start.as_str());
        loop {
            if let Some(name) = next.take() {
                followed.insert(name, true);
                path.push((name, 0));
            }
            let Some((name, at)) = path.last_mut() else { break };
            let Some(input) = datasets[*name].upstream.get(*at) else {
                followed.insert(*name, false);
                path.pop();
                continue;
            };
            *at += 1;
            match followed.get(input.as_str()) {
                None => next = Some(input),
                Some(false) => {}
                Some(true) => return Some(path.iter().map(|(n, _)| *n).skip_while(|n| *n != input).collect()),
            }
        }
    }
    None
}

impl Dataset {
    /// Returns the names of its windowed inputs, in their order: sources, or datasets.
    pub fn input_names(&self) -> &[String] {
        if self.upstream.is_empty() { &self.inputs } else { &self.upstream }
    }
}

impl Project {
    /// Returns whether a dataset is made of records of a source in the end, or sends it whole.
    pub fn reads(&self, dataset: &Dataset, source: &Source) -> bool {
        self.roots(dataset).iter().any(|r| r.name == source.name) || dataset.lookups.values().any(|l| *l == source.name)
    }

    /// Returns the sources whose records a dataset is made of in the end, in the order of their declaration.
    pub fn roots(&self, dataset: &Dataset) -> Vec<&Source> {
        let mut names: Vec<&str> = dataset.inputs.iter().map(String::as_str).collect();
        let mut datasets: Vec<&str> = dataset.upstream.iter().map(String::as_str).collect();
        let mut at = 0;
        while let Some(d) = datasets.get(at).map(|name| self.datasets.get(*name)) {
            at += 1;
            names.extend(d.iter().flat_map(|d| &d.inputs).map(String::as_str));
            let more: Vec<&str> = d.iter().flat_map(|d| &d.upstream).map(String::as_str).filter(|u| !datasets.contains(u)).collect();
            datasets.extend(more);
        }
        self.sources.values().filter(|s| names.contains(&s.name.as_str())).collect()
    }

    /// Returns the datasets that are made of `dataset`, directly or through others, each behind all of its inputs.
    pub fn downstream(&self, dataset: &str) -> Vec<&Dataset> {
        let mut behind: Vec<&str> = vec![dataset];
        let mut at = 0;
        while let Some(name) = behind.get(at).copied() {
            at += 1;
            let readers = self.datasets.values().filter(|d| d.upstream.iter().any(|u| u == name)).map(|d| d.name.as_str());
            let more: Vec<&str> = readers.filter(|d| !behind.contains(d)).collect();
            behind.extend(more);
        }
        behind.remove(0);
        let mut order: Vec<&Dataset> = Vec::new();
        while order.len() < behind.len() {
            let waits = |u: &String| behind.contains(&u.as_str()) && !order.iter().any(|o| o.name == *u);
            let ready = |d: &&Dataset| behind.contains(&d.name.as_str()) && !order.iter().any(|o| o.name == d.name) && !d.upstream.iter().any(waits);
            let Some(next) = self.datasets.values().find(ready) else { break };
            order.push(next);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A project with a source and datasets: name, input, and further keys.
    fn project(datasets: &[(&str, &str, &str)]) -> Result<Project, ConfigError> {
        let mut toml =
            "[warehouse]\npath = \"w\"\n[source.orders]\nformat = \"jsonl\"\nevent_time = \"at\"\ncolumns = { at = { type = \"timestamp\" } }\n"
                .to_owned();
        for (name, input, more) in datasets {
            let partition = if more.contains("partition") { "" } else { "partition = \"day\"\n" };
            toml += &format!("[dataset.{name}]\ninput = {input}\ntransform = \"t@1\"\n{partition}{more}\n");
        }
        Project::parse("restitch.toml", &toml)
    }

    fn refused(datasets: &[(&str, &str, &str)]) -> (String, String) {
        let e = project(datasets).unwrap_err();
        (format!("{}:{} {}", e.line, e.column, e.message), e.hint.unwrap_or_default())
    }

    #[test]
    fn circles_and_unknown_inputs_are_refused_with_their_lines() {
        let own = refused(&[("a", "\"a\"", "")]);
        assert_eq!(own.0, "8:9 the dataset a (line 8) is its own input");
        let three = refused(&[("x", "\"orders\"", ""), ("a", "\"b\"", ""), ("b", "[\"x\", \"c\"]", ""), ("c", "\"a\"", "")]);
        assert_eq!(three.0, "13:9 datasets feed each other in a circle: a (line 13) reads b (line 18) reads c (line 23) reads a");
        let unknown = refused(&[("daily", "\"orders\"", ""), ("m", "\"dayly\"", "")]);
        assert_eq!(unknown, ("13:9 there is no source or dataset \"dayly\"".into(), "did you mean \"daily\"?".into()));
        let mixed = refused(&[("daily", "\"orders\"", ""), ("m", "[\"orders\", \"daily\"]", "")]);
        assert!(mixed.0.starts_with("13:9 \"orders\" is a source and \"daily\" a dataset"), "{mixed:?}");
        let dedup = refused(&[("daily", "\"orders\"", ""), ("m", "\"daily\"", "dedup = { key = [\"id\"] }")]);
        assert!(dedup.0.starts_with("16:18 rows of the dataset daily have no order of arrival"), "{dedup:?}");
        let lookup = refused(&[("daily", "\"orders\"", ""), ("m", "\"daily\"", "lookups = { days = \"daily\" }")]);
        assert_eq!(lookup, ("16:20 there is no source \"daily\"".into(), "a lookup is a source, and this is a dataset".into()));
        let quarantine = refused(&[("daily", "\"orders\"", ""), ("m", "\"daily\"", "on_row_failure = \"quarantine\"")]);
        assert!(quarantine.0.starts_with("16:18 rows of the dataset daily have no record id"), "{quarantine:?}");
    }

    #[test]
    fn where_partitions_do_not_nest_a_time_column_decides() {
        let weeks = |more: &str| {
            let own = format!("partition = \"week\"\n{more}");
            project(&[("weekly", "\"orders\"", &own), ("m", "\"weekly\"", "partition = \"month\"")])
        };
        let e = weeks("").unwrap_err();
        assert_eq!(e.message, "a partition of weekly (by week in UTC) need not lie in one of m (by month in UTC)");
        assert!(e.hint.unwrap().starts_with("declare in [dataset.weekly] which column has a row's time: time_column = "));
        weeks("time_column = \"at\"").unwrap();
        let zone =
            |zone: &str| project(&[("daily", "\"orders\"", ""), ("m", "\"daily\"", &format!("partition = \"month\"\ntime_zone = \"{zone}\""))]);
        zone("UTC").unwrap();
        assert!(zone("Europe/Berlin").unwrap_err().message.contains("by month in Europe/Berlin"));
    }

    #[test]
    fn a_diamond_is_ordered_whatever_the_order_of_the_file() {
        let p = project(&[("d", "[\"b\", \"c\"]", ""), ("e", "\"orders\"", ""), ("c", "\"a\"", ""), ("b", "\"a\"", ""), ("a", "\"orders\"", "")])
            .unwrap();
        let names = |name: &str| p.downstream(name).iter().map(|d| d.name.as_str()).collect::<Vec<_>>().join(" ");
        assert_eq!((names("a").as_str(), names("b").as_str(), names("d").as_str(), names("e").as_str()), ("c b d", "d", "", ""));
        assert_eq!(p.roots(&p.datasets["d"]).iter().map(|s| s.name.as_str()).collect::<Vec<_>>(), ["orders"]);
    }
}
