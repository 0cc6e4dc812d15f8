//! The shape of restitch.toml, and the way from it to a [`Project`].
//! Never gives a value a meaning that the documentation does not; every refusal has a place.

use super::access::{AccessText, AccountText};
use super::check::CheckText;
use super::*;
use crate::time::{self, END_US};
use chrono::NaiveDate;
use indexmap::IndexMap;
use serde::Deserialize;
use std::ops::Range;
use toml::Spanned;

pub(super) type Text = Spanned<String>;

/// Letters of the name of a source or a dataset.
const NAME_LETTERS_MAX: usize = 100;

/// Bytes of a column's name.
const COLUMN_NAME_BYTES_MAX: usize = 255;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    warehouse: Warehouse,
    #[serde(default)]
    source: IndexMap<Text, SourceText>,
    #[serde(default)]
    dataset: IndexMap<Text, DatasetText>,
    #[serde(default)]
    limits: LimitsText,
    #[serde(default)]
    access: AccessText,
    #[serde(default)]
    account: IndexMap<String, AccountText>,
}

/// How long a staged or rejected run keeps its rows, if nothing else is said: longer than a word can be given, shorter than anybody remembers it.
const STAGED_KEEP: Span = Span::Days(30);

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [warehouse]")]
struct Warehouse {
    path: Text,
    keep_versions: Option<Spanned<i64>>,
    staged_keep: Option<Text>,
}

#[derive(Deserialize, Default, Clone)]
#[serde(deny_unknown_fields, expecting = "a table of limits")]
struct LimitsText {
    memory: Option<Text>,
    time: Option<Text>,
    output: Option<Text>,
    log: Option<Text>,
    fuel: Option<Spanned<i64>>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [source.NAME]")]
struct SourceText {
    format: Text,
    event_time: Text,
    record_id: Option<Text>,
    time_zone: Option<Text>,
    watermark_delay: Option<Text>,
    allowed_lateness: Option<Text>,
    repair_window: Option<Text>,
    max_future: Option<Text>,
    min_event_time: Option<Text>,
    max_event_time: Option<Text>,
    idle_after: Option<Text>,
    max_rejects: Option<Text>,
    delimiter: Option<Text>,
    raw_keep: Option<Text>,
    keep_payload: Option<bool>,
    #[serde(default)]
    payload_readers: Vec<String>,
    columns: IndexMap<Text, ColumnText>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table like { type = \"string\" }")]
struct ColumnText {
    r#type: Text,
    nullable: Option<bool>,
    #[serde(default)]
    aliases: Vec<String>,
    default: Option<Spanned<Scalar>>,
    from: Option<Text>,
    mask: Option<Text>,
    on_bad: Option<Text>,
    unit: Option<Text>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [dataset.NAME]")]
pub(super) struct DatasetText {
    pub(super) input: Spanned<Inputs>,
    #[serde(default)]
    lookups: IndexMap<String, Text>,
    transform: Text,
    #[serde(default)]
    params: IndexMap<String, Spanned<Scalar>>,
    partition: Text,
    time_zone: Option<Text>,
    #[serde(default)]
    key: Vec<String>,
    time_column: Option<String>,
    pub(super) dedup: Option<DedupText>,
    pub(super) on_row_failure: Option<Text>,
    max_quarantined: Option<Text>,
    #[serde(default)]
    checks: Vec<Spanned<CheckText>>,
    #[serde(default)]
    limits: LimitsText,
    publishers: Option<Spanned<Vec<String>>>,
    approvers: Option<Spanned<Vec<String>>>,
    approval: Option<Text>,
    approval_expires: Option<Text>,
    frozen_before: Option<Text>,
}

impl DatasetText {
    /// Returns whether it has a rule of access of its own.
    fn has_rule(&self) -> bool {
        let texts = [&self.approval, &self.approval_expires, &self.frozen_before];
        self.publishers.is_some() || self.approvers.is_some() || texts.iter().any(|key| key.is_some())
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table like { key = [\"id\"] }")]
pub(super) struct DedupText {
    pub(super) key: Vec<Text>,
    keep: Option<Text>,
    on_conflict: Option<Text>,
}

/// One name, or a list of them.
#[derive(Deserialize, Clone)]
#[serde(untagged)]
pub(super) enum Inputs {
    One(String),
    Many(Vec<String>),
}

/// A TOML value that is used as text.
#[derive(Deserialize, Clone)]
#[serde(untagged)]
pub(super) enum Scalar {
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
}

pub(super) fn parse(file: &str, text: &str) -> Result<Project, ConfigError> {
    let reader = Reader { file, text };
    let parsed: File = toml::from_str(text).map_err(|e| reader.toml_error(&e))?;
    let mut sources: IndexMap<String, Source> = IndexMap::new();
    for (name, source) in parsed.source {
        reader.no_twin(&name, sources.keys())?;
        let source = reader.source(&name, source)?;
        sources.insert(source.name.clone(), source);
    }
    let mut datasets: IndexMap<String, Dataset> = IndexMap::new();
    let declared: Vec<String> = parsed.dataset.keys().map(|name| name.as_ref().clone()).collect();
    let mut inputs: IndexMap<String, Range<usize>> = IndexMap::new();
    let mut ruled = false;
    for (name, dataset) in parsed.dataset {
        ruled |= dataset.has_rule();
        reader.no_twin(&name, datasets.keys())?;
        inputs.insert(name.as_ref().clone(), dataset.input.span());
        let dataset = reader.dataset(&name, dataset, (&sources, &declared), (&parsed.limits, &parsed.access))?;
        if sources.values().any(|s| [s.table(), s.reject_table()].contains(&dataset.name)) {
            return Err(reader.error(name.span(), format!("{:?} is the name of a raw table", dataset.name), None));
        }
        if let Some(lookup) = dataset.lookups.values().find(|l| sources.get(*l).is_some_and(|s| s.raw_keep.is_some())) {
            let message = format!("{:?} reads the source {lookup:?} whole, so that cannot have raw_keep", dataset.name);
            return Err(reader.error(name.span(), message, Some(format!("take raw_keep out of [source.{lookup}]"))));
        }
        datasets.insert(dataset.name.clone(), dataset);
    }
    parsed.access.named(&reader)?;
    reader.check_upstream(&datasets, &inputs)?;
    let Warehouse { path, keep_versions, staged_keep } = &parsed.warehouse;
    if path.as_ref().trim().is_empty() {
        return Err(reader.error(path.span(), "the path is empty", Some("name a folder, like \"warehouse\"; \".\" is that of this file".into())));
    }
    let keep_versions = match keep_versions {
        Some(n) if *n.as_ref() < 1 => return Err(reader.error(n.span(), "keep_versions counts from 1: the version that is current", None)),
        n => n.as_ref().map(|n| *n.as_ref() as u64),
    };
    let accounts = parsed.account.iter().map(|(name, a)| Ok((name.clone(), a.digest(&reader)?))).collect::<Result<_, ConfigError>>()?;
    let staged_keep = reader.optional(staged_keep, Span::parse, "a duration (like 30d)")?.unwrap_or(STAGED_KEEP);
    let governed = ruled || parsed.access.has_rule() || !parsed.account.is_empty();
    Ok(Project { warehouse: path.as_ref().clone(), keep_versions, staged_keep, sources, datasets, accounts, governed })
}

pub(super) struct Reader<'a> {
    file: &'a str,
    text: &'a str,
}

impl Reader<'_> {
    pub(super) fn error(&self, span: Range<usize>, message: impl Into<String>, hint: Option<String>) -> ConfigError {
        let (line, column) = self.place(&span);
        ConfigError { file: self.file.into(), line, column, message: message.into(), hint }
    }

    /// Returns line and column, from 1, of where `span` starts.
    pub(super) fn place(&self, span: &Range<usize>) -> (usize, usize) {
        let before = &self.text[..self.text.floor_char_boundary(span.start)];
        let line_start = before.rfind('\n').map_or(0, |i| i + 1);
        (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
    }

    /// Returns the place of a key by the place of its value.
    pub(super) fn key(&self, key: &str, value: &Range<usize>) -> Range<usize> {
        let start = self.text.get(..value.start).and_then(|before| before.rfind(key)).unwrap_or(value.start);
        start..value.end
    }

    /// Returns a scalar as text. A number with a point keeps the digits that it is written with: it goes through no double.
    pub(super) fn scalar(&self, scalar: &Spanned<Scalar>) -> String {
        match scalar.as_ref() {
            Scalar::Bool(b) => b.to_string(),
            Scalar::Int(i) => i.to_string(),
            Scalar::Text(s) => s.clone(),
            Scalar::Float(f) => match self.text.get(scalar.span()) {
                Some(written) => written.trim_start_matches('+').replace('_', ""),
                None => f.to_string(),
            },
        }
    }

    /// serde's message, with the nearest known key where one is unknown.
    fn toml_error(&self, e: &toml::de::Error) -> ConfigError {
        let message = e.message().trim().replace('\n', " ");
        let quoted: Vec<&str> = message.split('`').skip(1).step_by(2).collect();
        let hint = match quoted.split_first() {
            Some((unknown, known)) if message.starts_with("unknown field") => Some(match nearest(unknown, known.iter().copied()) {
                Some(near) => format!("did you mean {near}?"),
                None => format!("known here: {}", known.join(", ")),
            }),
            _ => None,
        };
        let message = match quoted.first() {
            Some(key) if message.starts_with("unknown field") => format!("unknown key {key:?}"),
            Some(key) if message.starts_with("missing field") => format!("the key {key:?} is missing"),
            _ if message.contains("enum Scalar") => "a text, a number or a boolean is expected here (dates and times are written as texts)".into(),
            _ if message.contains("enum Inputs") => "a name, or a list of names, is expected here".into(),
            _ if message == "invalid type: map, expected a string" && self.is_date(e) => "dates and times are written as texts, in quotes".into(),
            _ if message.starts_with("invalid type: integer") && message.ends_with("expected any value") => {
                "a whole number beyond 64 bits is written as a text, in quotes".into()
            }
            _ => match message.strip_suffix("expected i64") {
                Some(found) => format!("{}expected a whole number", found.replace(" as i128", "")),
                None => message,
            },
        };
        self.error(e.span().unwrap_or(0..0), message, hint)
    }

    /// Returns whether what an error is about begins like a date: serde takes those of TOML for a map.
    fn is_date(&self, e: &toml::de::Error) -> bool {
        e.span().and_then(|span| self.text.get(span)).is_some_and(|t| t.starts_with(|c: char| c.is_ascii_digit()))
    }

    /// Parses one text value, or says what would have been right.
    pub(super) fn value<T>(&self, text: &Text, parse: impl Fn(&str) -> Option<T>, expected: &str) -> Result<T, ConfigError> {
        parse(text.as_ref()).ok_or_else(|| {
            let shown = text.as_ref();
            let message = match expected.starts_with("a duration") && Span::is_too_long(shown) {
                true => format!("{shown:?} is longer than a duration may be: {} days", Span::DAYS_MAX),
                false => format!("{shown:?} is not {expected}"),
            };
            self.error(text.span(), message, None)
        })
    }

    pub(super) fn optional<T>(&self, text: &Option<Text>, parse: impl Fn(&str) -> Option<T>, expected: &str) -> Result<Option<T>, ConfigError> {
        text.as_ref().map(|t| self.value(t, parse, expected)).transpose()
    }

    pub(super) fn choice<T: Copy>(&self, text: &Option<Text>, known: &[(&str, T)], default: T) -> Result<T, ConfigError> {
        let Some(text) = text else { return Ok(default) };
        if let Some((_, value)) = known.iter().find(|(name, _)| name == text.as_ref()) {
            return Ok(*value);
        }
        let names: Vec<&str> = known.iter().map(|(n, _)| *n).collect();
        let hint = nearest(text.as_ref(), names.iter().copied()).map(|n| format!("did you mean {n:?}?"));
        Err(self.error(text.span(), format!("{:?} is none of {}", text.as_ref(), names.join(", ")), hint))
    }

    fn identifier(&self, name: &Text, what: &str) -> Result<String, ConfigError> {
        let s = name.as_ref();
        if s.chars().count() > NAME_LETTERS_MAX {
            let shown: String = s.chars().take(40).collect();
            let message = format!("the name \"{shown}…\" of a {what} is too long: {} letters, and {NAME_LETTERS_MAX} at most", s.chars().count());
            return Err(self.error(name.span(), message, None));
        }
        if s.is_empty() || s.starts_with('_') || !s.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
            let message = format!("{s:?} is not a name for a {what}: letters, digits and underscores, not first an underscore");
            return Err(self.error(name.span(), message, None));
        }
        Ok(s.clone())
    }

    fn no_twin<'k>(&self, name: &Text, mut known: impl Iterator<Item = &'k String>) -> Result<(), ConfigError> {
        match known.find(|k| k.eq_ignore_ascii_case(name.as_ref())) {
            Some(twin) => Err(self.error(name.span(), format!("{twin:?} and {:?} are one table to SQL, which ignores case", name.as_ref()), None)),
            None => Ok(()),
        }
    }

    fn zone(&self, text: &Option<Text>) -> Result<Tz, ConfigError> {
        Ok(self.optional(text, |t| t.parse().ok(), "a time zone (like Europe/Berlin)")?.unwrap_or(Tz::UTC))
    }

    fn span(&self, text: &Option<Text>, key: &str) -> Result<Span, ConfigError> {
        let default = DEFAULTS.iter().find(|(k, _)| *k == key).map_or(Span::Elapsed(0), |(_, d)| *d);
        Ok(self.optional(text, Span::parse, "a duration (like 30m, 12h or 3d)")?.unwrap_or(default))
    }

    fn source(&self, name: &Text, s: SourceText) -> Result<Source, ConfigError> {
        let source_name = self.identifier(name, "source")?;
        let time_zone = self.zone(&s.time_zone)?;
        let policy = Policy {
            watermark_delay: self.span(&s.watermark_delay, "watermark_delay")?,
            allowed_lateness: self.span(&s.allowed_lateness, "allowed_lateness")?,
            repair_window: self.span(&s.repair_window, "repair_window")?,
            max_future: self.span(&s.max_future, "max_future")?,
            idle_after: self.optional(&s.idle_after, Span::parse, "a duration")?,
            time_zone,
        };
        let format = self.choice(&Some(s.format), &[("jsonl", Format::Jsonl), ("csv", Format::Csv), ("parquet", Format::Parquet)], Format::Jsonl)?;
        let mut columns: Vec<SourceColumn> = Vec::new();
        for (name, column) in s.columns {
            let twin = |c: &&SourceColumn| c.name.eq_ignore_ascii_case(name.as_ref());
            if let Some(twin) = columns.iter().find(twin) {
                return Err(self.error(
                    name.span(),
                    format!("{:?} and {:?} are one column to SQL, which ignores case", twin.name, name.as_ref()),
                    None,
                ));
            }
            columns.push(self.column(&name, column, format)?);
        }
        let known = |column: &Text| -> Result<String, ConfigError> {
            match columns.iter().find(|c| c.name == *column.as_ref()) {
                Some(c) => Ok(c.name.clone()),
                None => Err(self.unknown_column(column, columns.iter().map(|c| c.name.as_str()))),
            }
        };
        let event_time = known(&s.event_time)?;
        let time_column = columns.iter().find(|c| c.name == event_time).map(|c| (c.data_type, c.mask));
        if time_column != Some((DataType::Timestamp, None)) {
            return Err(self.error(s.event_time.span(), format!("the event time {event_time:?} must be an unmasked timestamp column"), None));
        }
        let record_id = s.record_id.as_ref().map(known).transpose()?;
        let masked = |id: &&Text| columns.iter().any(|c| c.name == *id.as_ref() && matches!(c.mask, Some(Mask::Redact | Mask::Drop)));
        if let Some(id) = s.record_id.as_ref().filter(masked) {
            return Err(self.error(id.span(), "a record id that is redacted or dropped identifies nothing (sha256 keeps ids apart)", None));
        }
        if source_name.ends_with("_rejects") {
            return Err(self.error(name.span(), format!("{source_name:?} would share a table with the rejects of another source"), None));
        }
        let plausible = self.plausible(&s.min_event_time, &s.max_event_time, time_zone)?;
        let max_rejects = self.optional(&s.max_rejects, MaxRejects::parse, "a number of records or a percentage (like 0.1%)")?;
        let one_byte = |t: &str| if let [b] = t.as_bytes() { Some(*b).filter(|b| b.is_ascii() && !b"\"\r\n".contains(b)) } else { None };
        Ok(Source {
            name: source_name,
            format,
            event_time,
            record_id,
            time_zone,
            policy,
            max_rejects: max_rejects.unwrap_or(MaxRejects::Share(0.01)),
            plausible,
            delimiter: self.optional(&s.delimiter, one_byte, "a single ASCII character, and no quote or line end")?.unwrap_or(b','),
            raw_keep: self.optional(&s.raw_keep, Span::parse, "a duration (like 400d)")?,
            keep_payload: s.keep_payload.unwrap_or(true),
            payload_readers: s.payload_readers,
            columns,
        })
    }

    fn plausible(&self, min: &Option<Text>, max: &Option<Text>, zone: Tz) -> Result<Plausible, ConfigError> {
        const EXPECTED: &str = "a date or a time (like 1950-01-01 or 2030-01-01T00:00:00Z)";
        let first = |t: &str| time::parse(t, zone).ok();
        // A date includes its day.
        let end = |t: &str| match NaiveDate::parse_from_str(t, "%Y-%m-%d") {
            Ok(date) if t.len() == 10 => Some(date.succ_opt().and_then(|d| time::local_midnight(d, zone)).unwrap_or(EventTime(END_US))),
            _ => first(t).map(|t| EventTime(t.0 + 1)),
        };
        let plausible = Plausible { min: self.optional(min, first, EXPECTED)?, end: self.optional(max, end, EXPECTED)? };
        if let (Some(a), Some(b), Some(text)) = (plausible.min, plausible.end, max)
            && a >= b
        {
            return Err(self.error(text.span(), "max_event_time lies before min_event_time: no record could be taken", None));
        }
        Ok(plausible)
    }

    fn unknown_column<'k>(&self, column: &Text, known: impl Iterator<Item = &'k str>) -> ConfigError {
        let known: Vec<&str> = known.collect();
        let hint = match nearest(column.as_ref(), known.iter().copied()) {
            Some(near) => format!("did you mean {near:?}?"),
            None => format!("declared: {}", known.join(", ")),
        };
        self.error(column.span(), format!("there is no column {:?}", column.as_ref()), Some(hint))
    }

    fn column_name(&self, name: &Text) -> Result<(), ConfigError> {
        let column = name.as_ref();
        let why = if column.is_empty() {
            "it is empty"
        } else if column.starts_with('_') {
            "names with a leading underscore are the envelope's"
        } else if column.chars().any(char::is_control) {
            "it holds a control character"
        } else if column.len() > COLUMN_NAME_BYTES_MAX {
            "it is too long (255 bytes at most)"
        } else {
            return Ok(());
        };
        let shown: String = column.chars().take(40).collect();
        Err(self.error(name.span(), format!("{shown:?} is not a column name: {why}"), Some("`aliases` names what it is called in the files".into())))
    }

    fn pointer(&self, pointer: &Text, column: &str, format: Format) -> Result<(), ConfigError> {
        let text = pointer.as_ref();
        if !text.starts_with('/') {
            return Err(self.error(pointer.span(), "a JSON pointer starts with /", None));
        }
        if text.split('~').skip(1).any(|rest| !rest.starts_with(['0', '1'])) {
            return Err(self.error(pointer.span(), "in a JSON pointer ~ stands before 0 (for ~) or 1 (for /)", None));
        }
        if format != Format::Jsonl {
            let hint = format!("aliases = [\"…\"] names what {column:?} is called in the files");
            return Err(self.error(pointer.span(), "only JSON Lines has pointers; other formats find columns by name", Some(hint)));
        }
        Ok(())
    }

    fn column(&self, name: &Text, c: ColumnText, format: Format) -> Result<SourceColumn, ConfigError> {
        let column = name.as_ref();
        self.column_name(name)?;
        let data_type = self.value(&c.r#type, DataType::parse, &format!("a type ({})", DataType::NAMES))?;
        let mask = match &c.mask {
            None => None,
            some => Some(self.choice(some, &[("sha256", Mask::Sha256), ("redact", Mask::Redact), ("drop", Mask::Drop)], Mask::Drop)?),
        };
        if let (Some(m), Some(Mask::Sha256 | Mask::Redact)) = (&c.mask, mask)
            && data_type != DataType::String
        {
            return Err(self.error(
                m.span(),
                format!("only a string can be masked like this; {column:?} is {data_type} (drop works for every type)"),
                None,
            ));
        }
        let nullable = c.nullable.unwrap_or(true);
        if mask == Some(Mask::Drop) && !nullable {
            return Err(self.error(name.span(), format!("{column:?} is dropped, so it must be nullable"), None));
        }
        if let Some(pointer) = &c.from {
            self.pointer(pointer, column, format)?;
        }
        let on_bad = self.choice(&c.on_bad, &[("reject", OnBad::Reject), ("null", OnBad::Null), ("default", OnBad::Default)], OnBad::Reject)?;
        if (on_bad == OnBad::Default && c.default.is_none()) || (on_bad == OnBad::Null && !nullable) {
            return Err(self.error(name.span(), format!("on_bad of {column:?} needs a default, or a nullable column"), None));
        }
        let unit = self.optional(&c.unit, Unit::parse, "a unit: s, ms, us or ns")?;
        if unit.is_some() && data_type != DataType::Timestamp {
            return Err(self.error(name.span(), format!("only a timestamp has a unit; {column:?} is {data_type}"), None));
        }
        Ok(SourceColumn {
            name: column.clone(),
            data_type,
            nullable,
            aliases: c.aliases,
            default_at: c.default.as_ref().map_or((0, 0), |d| self.place(&d.span())),
            default: c.default.as_ref().map(|d| self.scalar(d)),
            from: c.from.map(Spanned::into_inner),
            mask,
            on_bad,
            unit,
        })
    }

    fn dataset(
        &self,
        name: &Text,
        d: DatasetText,
        (sources, declared): (&IndexMap<String, Source>, &[String]),
        (limits, access): (&LimitsText, &AccessText),
    ) -> Result<Dataset, ConfigError> {
        let dataset = self.identifier(name, "dataset")?;
        if ["restitch", "ducklake", "raw_"].iter().any(|p| dataset.to_ascii_lowercase().starts_with(p)) {
            return Err(self.error(
                name.span(),
                format!("{dataset:?} is a name of the warehouse's own: restitch…, ducklake… and raw_… are taken"),
                None,
            ));
        }
        let source_of = |name: &str, span: Range<usize>| -> Result<&Source, ConfigError> {
            sources.get(name).ok_or_else(|| {
                let unknown = Unknown::new("source", name, sources.keys());
                let hint =
                    if declared.iter().any(|d| d == name) { "a lookup is a source, and this is a dataset".to_owned() } else { unknown.hint.clone() };
                self.error(span, unknown.to_string(), Some(hint))
            })
        };
        let named = match d.input.get_ref() {
            Inputs::One(name) => std::slice::from_ref(name),
            Inputs::Many(names) => names.as_slice(),
        };
        if named.is_empty() || (1..named.len()).any(|i| named[..i].contains(&named[i])) {
            return Err(self.error(d.input.span(), "input needs at least one source or dataset, and each only once", None));
        }
        let upstream = self.upstream(named, &d, sources, declared)?;
        let inputs: Vec<&Source> = named.iter().filter(|_| upstream.is_empty()).filter_map(|name| sources.get(name)).collect();
        let mut lookups = IndexMap::new();
        for (input, text) in &d.lookups {
            lookups.insert(input.clone(), source_of(text.as_ref(), text.span())?.name.clone());
        }
        let grains = [("hour", Grain::Hour), ("day", Grain::Day), ("week", Grain::Week), ("month", Grain::Month), ("year", Grain::Year)];
        let dedup = match &d.dedup {
            None => None,
            Some(dedup) => {
                for (column, source) in dedup.key.iter().flat_map(|c| inputs.iter().map(move |s| (c, s))) {
                    let columns = || source.columns.iter().map(|c| c.name.as_str()).chain([envelope::RECORD_ID]);
                    if !columns().any(|c| c == column.as_ref()) {
                        return Err(self.unknown_column(column, columns()));
                    }
                }
                if dedup.key.is_empty() {
                    return Err(self.error(name.span(), "dedup needs at least one key column", None));
                }
                let keeps = [("latest_ingested", Keep::LatestIngested), ("first_ingested", Keep::FirstIngested), ("fail", Keep::Fail)];
                Some(Dedup {
                    key: dedup.key.iter().map(|k| k.as_ref().clone()).collect(),
                    keep: self.choice(&dedup.keep, &keeps, Keep::LatestIngested)?,
                    on_conflict: self.choice(&dedup.on_conflict, &[("count", OnConflict::Count), ("fail", OnConflict::Fail)], OnConflict::Count)?,
                })
            }
        };
        let quarantine = self.quarantine(&d)?;
        let own = AccessText {
            publishers: d.publishers,
            approvers: d.approvers,
            approval: d.approval,
            approval_expires: d.approval_expires,
            frozen_before: d.frozen_before,
        };
        own.named(self)?;
        let time_zone = self.zone(&d.time_zone)?;
        Ok(Dataset {
            name: dataset,
            inputs: inputs.iter().map(|s| s.name.clone()).collect(),
            upstream,
            lookups,
            transform: self.value(&d.transform, TransformRef::parse, "a transform (like customer-totals@1.0.0)")?,
            params: d.params.iter().map(|(k, v)| (k.clone(), self.scalar(v))).collect(),
            grain: self.choice(&Some(d.partition), &grains, Grain::Day)?,
            time_zone,
            key: d.key,
            time_column: d.time_column,
            dedup,
            quarantine,
            checks: d.checks.into_iter().map(|c| self.check(c)).collect::<Result<_, _>>()?,
            limits: self.limits(&d.limits, self.limits(limits, Limits::default())?)?,
            access: own.or(access).read(self, time_zone)?,
        })
    }

    fn quarantine(&self, d: &DatasetText) -> Result<Option<MaxRejects>, ConfigError> {
        let max = self.optional(&d.max_quarantined, MaxRejects::parse, "a number or a percentage (like 100 or 0.1%)")?;
        match self.choice(&d.on_row_failure, &[("fail", false), ("quarantine", true)], false)? {
            true => Ok(Some(max.unwrap_or(MAX_QUARANTINED))),
            false => match &d.max_quarantined {
                Some(text) => Err(self.error(text.span(), "nothing is put in quarantine without on_row_failure = \"quarantine\"", None)),
                None => Ok(None),
            },
        }
    }

    fn limits(&self, text: &LimitsText, default: Limits) -> Result<Limits, ConfigError> {
        let size = |t: &Option<Text>, default| Ok::<_, ConfigError>(self.optional(t, parse_bytes, "a size (like 64MiB)")?.unwrap_or(default));
        let milliseconds = |t: &str| match Span::parse(t) {
            Some(Span::Elapsed(us)) if us >= 1000 => Some(us as u64 / 1000),
            _ => None,
        };
        Ok(Limits {
            memory_bytes_max: size(&text.memory, default.memory_bytes_max)?,
            time_ms_max: self.optional(&text.time, milliseconds, "a duration (like 60s)")?.unwrap_or(default.time_ms_max),
            output_bytes_max: size(&text.output, default.output_bytes_max)?,
            log_bytes_max: size(&text.log, default.log_bytes_max)?,
            fuel_max: match &text.fuel {
                None => default.fuel_max,
                Some(fuel) => match u64::try_from(*fuel.get_ref()) {
                    Ok(max) if max > 0 => Some(max),
                    _ => return Err(self.error(fuel.span(), "fuel is a whole number of instructions, at least 1", None)),
                },
            },
        })
    }
}

/// Returns the share that `text` names: `10%` is 0.1.
pub(super) fn parse_share(text: &str) -> Option<f64> {
    text.strip_suffix('%')?.trim().parse::<f64>().ok().filter(|p| *p >= 0.0 && p.is_finite()).map(|p| p / 100.0)
}

/// Returns the bytes that `text` names: a whole number with `B`, `KiB`, `MiB` or `GiB`.
pub(crate) fn parse_bytes(text: &str) -> Option<u64> {
    let split = text.find(|c: char| !c.is_ascii_digit())?;
    let factor = match text[split..].trim() {
        "B" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1u64 << 30,
        _ => return None,
    };
    text[..split].parse::<u64>().ok()?.checked_mul(factor).filter(|b| *b > 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = r#"
[warehouse]
path = "warehouse"
[source.orders]
format = "jsonl"
event_time = "event_time"
record_id = "event_id"
allowed_lateness = "30m"
max_rejects = "0.1%"
[source.orders.columns]
event_id   = { type = "string", nullable = false }
event_time = { type = "timestamp", nullable = false }
amount     = { type = "decimal(18,2)", aliases = ["total"], default = "0.00" }
[dataset.daily]
input = "orders"
transform = "customer-totals@1.0.0"
params = { currency = "EUR", days = 3 }
partition = "day"
key = ["customer_id"]
dedup = { key = ["event_id"] }
checks = [{ kind = "balance", input = "sum(amount)", output = "sum(total)" }, { kind = "row_count", min = 1, severity = "warn" }]
limits = { memory = "64MiB" }
"#;

    #[test]
    fn the_example_parses_in_the_order_of_the_file() {
        let p = Project::parse("restitch.toml", GOOD).unwrap();
        let names: Vec<_> = p.sources["orders"].columns.iter().map(|c| c.name.as_str()).collect();
        assert_eq!(names, ["event_id", "event_time", "amount"]);
        let d = &p.datasets["daily"];
        assert_eq!(d.limits.memory_bytes_max, 64 << 20);
        assert_eq!(d.params["days"], "3");
        assert_eq!(d.checks[1].severity, Severity::Warn);
    }

    #[test]
    fn numbers_keep_the_digits_they_are_written_with() {
        let with = |n: &str| Project::parse("restitch.toml", &GOOD.replace("default = \"0.00\"", &format!("default = {n}")));
        for (written, text) in
            [("90071992547409.931", "90071992547409.931"), ("+1_000.50", "1000.50"), ("-1e-3", "-1e-3"), ("7", "7"), ("nan", "nan")]
        {
            assert_eq!(with(written).unwrap().sources["orders"].columns[2].default.as_deref(), Some(text));
        }
        for (key, at) in [("max_event_time = 2026-01-01", (8, 18)), ("min_event_time = 2026-01-01T00:00:00Z", (8, 18))] {
            let e = Project::parse("restitch.toml", &GOOD.replace("allowed_lateness = \"30m\"", key)).unwrap_err();
            assert_eq!(((e.line, e.column), e.message.as_str()), (at, "dates and times are written as texts, in quotes"), "{key}");
        }
        let e = with("2026-01-01").unwrap_err();
        assert_eq!(e.message, "a text, a number or a boolean is expected here (dates and times are written as texts)");
        assert!(with("99999999999999999999").unwrap_err().message.contains("beyond 64 bits"));
    }

    #[test]
    fn pointers_are_for_json_lines_and_bounds_include_their_day() {
        let pointed = GOOD.replace("aliases = [\"total\"]", "from = \"/total\"");
        let e = Project::parse("restitch.toml", &pointed.replace("\"jsonl\"", "\"csv\"")).unwrap_err();
        assert_eq!((e.line, e.column, e.message.as_str()), (13, 47, "only JSON Lines has pointers; other formats find columns by name"));
        let bounds = |min: &str, max: &str| {
            let keys = format!("allowed_lateness = \"30m\"\nmin_event_time = \"{min}\"\nmax_event_time = \"{max}\"");
            Project::parse("restitch.toml", &GOOD.replace("allowed_lateness = \"30m\"", &keys)).map(|p| p.sources["orders"].plausible)
        };
        let at = |t: &str| Some(time::parse(t, Tz::UTC).unwrap());
        assert_eq!(bounds("1950-01-01", "2030-12-31").unwrap(), Plausible { min: at("1950-01-01"), end: at("2031-01-01") });
        assert_eq!(bounds("2030-12-31", "9999-12-31").unwrap().end, Some(EventTime(END_US)));
        assert_eq!(bounds("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z").unwrap().end, at("2026-01-01T00:00:00.000001Z"));
        assert!(bounds("2026-01-02", "2026-01-01").unwrap_err().message.contains("no record could be taken"));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place_and_the_way_out() {
        for (from, to, place, message, hint) in [
            ("allowed_lateness", "alowed_lateness", "8:1", "unknown key \"alowed_lateness\"", Some("did you mean allowed_lateness?")),
            ("\"30m\"", "\"30\"", "8:20", "\"30\" is not a duration (like 30m, 12h or 3d)", None),
            ("input = \"orders\"", "input = \"order\"", "15:9", "there is no source or dataset \"order\"", Some("did you mean \"orders\"?")),
            (
                "event_time = \"event_time\"",
                "event_time = \"event_tim\"",
                "6:14",
                "there is no column \"event_tim\"",
                Some("did you mean \"event_time\"?"),
            ),
            ("\"day\"", "\"dya\"", "18:13", "\"dya\" is none of hour, day, week, month, year", Some("did you mean \"day\"?")),
            ("\"jsonl\"", "3", "5:10", "invalid type: integer `3`, expected a string", None),
            ("\"row_count\", min = 1", "\"row_count\"", "21:79", "a row_count check needs min, max or max_change", None),
            (
                "partition = \"day\"",
                "partition = \"day\"\non_row_failure = \"quarantin\"",
                "19:18",
                "\"quarantin\" is none of fail, quarantine",
                Some("did you mean \"quarantine\"?"),
            ),
            (
                "partition = \"day\"",
                "partition = \"day\"\nmax_quarantined = \"5\"",
                "19:19",
                "nothing is put in quarantine without on_row_failure = \"quarantine\"",
                None,
            ),
            ("memory = \"64MiB\"", "fuel = 0", "22:19", "fuel is a whole number of instructions, at least 1", None),
            ("path = \"warehouse\"", "", "2:1", "the key \"path\" is missing", None),
            ("\"warehouse\"", "\" \"", "3:8", "the path is empty", Some("name a folder, like \"warehouse\"; \".\" is that of this file")),
            ("amount  ", "n = \"int64\"\namount  ", "13:5", "invalid type: string \"int64\", expected a table like { type = \"string\" }", None),
            ("nullable = false }\namount", "from = \"event\" }\namount", "12:43", "a JSON pointer starts with /", None),
            (
                "allowed_lateness = \"30m\"",
                "max_event_time = \"soon\"",
                "8:18",
                "\"soon\" is not a date or a time (like 1950-01-01 or 2030-01-01T00:00:00Z)",
                None,
            ),
            ("amount  ", "Event_id", "13:1", "\"event_id\" and \"Event_id\" are one column to SQL, which ignores case", None),
            (
                "amount  ",
                "\"a\\u0007\"",
                "13:1",
                "\"a\\u{7}\" is not a column name: it holds a control character",
                Some("`aliases` names what it is called in the files"),
            ),
            ("\"warehouse\"", "\"w\"\nkeep_versions = \"3\"", "4:17", "invalid type: string \"3\", expected a whole number", None),
            ("input = \"orders\"", "input = 5", "15:9", "a name, or a list of names, is expected here", None),
            ("\"30m\"", "\"400001d\"", "8:20", "\"400001d\" is longer than a duration may be: 400000 days", None),
            ("\"30m\"", "\"99999999999999999999h\"", "8:20", "\"99999999999999999999h\" is longer than a duration may be: 400000 days", None),
            ("allowed_lateness = \"30m\"", "delimiter = \"\\n\"", "8:13", "\"\\n\" is not a single ASCII character, and no quote or line end", None),
            (
                "[dataset.daily]",
                "[dataset.aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeaaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeef]",
                "14:10",
                "the name \"aaaaaaaaaabbbbbbbbbbccccccccccdddddddddd…\" of a dataset is too long: 101 letters, and 100 at most",
                None,
            ),
            ("[source.orders]", "[source.orders", "4:15", "unclosed table, expected `]`", None),
        ] {
            let e = Project::parse("restitch.toml", &GOOD.replacen(from, to, 1)).unwrap_err();
            assert_eq!((format!("{}:{}", e.line, e.column).as_str(), e.message.as_str(), e.hint.as_deref()), (place, message, hint), "{to}");
        }
    }
}
