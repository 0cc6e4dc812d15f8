//! JSON Lines: one object per line, its values taken from the text they are written as.
//! Never parses a number into a double, and never picks one of two values with the same key.
//! One of the formats of `decode`.

use super::{Batch, Chunk, DecodeError, Unknown, open::LineEnd, open::Opened, value::Value, value::short};
use crate::{config::Source, schema::DataType};
use serde::{
    Deserialize,
    de::{DeserializeSeed, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use serde_json::{Deserializer, value::RawValue};
use std::{borrow::Cow, fmt};

/// Decodes all lines of `opened`.
pub(super) fn decode<E: From<DecodeError>>(
    source: &Source,
    mut opened: Opened,
    batch: &mut Batch,
    sink: &mut dyn FnMut(Chunk) -> Result<(), E>,
) -> Result<(), E> {
    let mut shape = Shape::new(source);
    let (mut line, mut byte) = (0i64, 0u64);
    loop {
        let start = batch.payloads.start();
        let end = opened.read_line(&mut batch.payloads.data, batch.options.record_bytes_max)?;
        line += 1;
        let mut length = (batch.payloads.data.len() - start) as u64;
        if line == 1 {
            let mark = opened.skip_mark(&mut batch.payloads.data, start);
            byte += mark;
            length -= mark;
        }
        if end == LineEnd::TooLong {
            length += opened.skip_line()?;
            batch.payloads.data.truncate(start + batch.options.reject_bytes_max);
            batch.reject(line, byte, too_long(length, batch));
        } else {
            strip_line_end(&mut batch.payloads.data, start);
            let record = &batch.payloads.data[start..];
            if record.iter().all(|b| matches!(b, b' ' | b'\t' | b'\r')) {
                batch.discard();
            } else {
                batch.summary.open_ended = end == LineEnd::File;
                let put = shape.put(record, &mut batch.columns).map_err(|bad| match bad {
                    Bad::Value(reason) => reason,
                    Bad::Syntax(reason) if end == LineEnd::File => {
                        batch.summary.cut_at = Some(byte);
                        format!("{reason}; the file looks cut: its last line, from byte {byte}, has no line end")
                    }
                    Bad::Syntax(reason) => reason,
                });
                batch.settle(line, byte, put);
            }
        }
        byte += length;
        if batch.is_full() {
            sink(batch.take(opened.position()))?;
        }
        if end == LineEnd::File {
            break;
        }
    }
    shape.count_unknown();
    batch.summary.unknown = shape.unknown;
    if !batch.is_empty() {
        sink(batch.take(opened.position()))?;
    }
    Ok(())
}

/// The reason of a record that is longer than is allowed.
pub(super) fn too_long(length: u64, batch: &Batch) -> String {
    let options = &batch.options;
    format!(
        "{length} bytes long, more than a record may be ({}); only its first {} bytes are kept",
        options.record_bytes_max, options.reject_bytes_max
    )
}

/// Takes a line feed, and a carriage return before it, off the end.
pub(super) fn strip_line_end(data: &mut Vec<u8>, start: usize) {
    if data.len() > start && data.pop_if(|b| *b == b'\n').is_some() && data.len() > start {
        data.pop_if(|b| *b == b'\r');
    }
}

/// Why a line was not taken.
pub(super) enum Bad {
    /// It is no JSON object.
    Syntax(String),
    /// A value in it cannot be taken.
    Value(String),
}

/// Where a column is looked for.
struct Route {
    /// The tokens of its JSON pointer.
    pointer: Option<Vec<String>>,
    /// Names that it may have, the first one present counts.
    names: Vec<String>,
}

/// Where the columns stand in objects that have the same keys in the same order as the last one.
pub(super) struct Shape {
    routes: Vec<Route>,
    keys: Vec<String>,
    /// Per column: the entry its pointer starts in, and the entry of its name.
    places: Vec<(Option<usize>, Option<usize>)>,
    /// Room for entries, kept from line to line.
    room: Vec<Entry<'static>>,
    /// Entries that no column asks for, and how many records had them since they were learnt.
    leftover: Vec<usize>,
    records: u64,
    unknown: Unknown,
    /// Whether a line may hold what nobody is to see.
    masked: bool,
    /// Which column takes each entry, if lines like the last one are put into columns while they are parsed.
    takers: Option<Vec<Option<usize>>>,
    /// Lines since they were learnt that had the keys and were not put that way.
    missed: u64,
}

/// So many lines may be parsed in vain, and then one in so many.
const MISSES: u64 = 16;

type Entry<'a> = (Cow<'a, str>, &'a RawValue);

impl Shape {
    pub(super) fn new(source: &Source) -> Shape {
        let route = |c: &crate::config::SourceColumn| {
            let pointer = c.from.as_ref().map(|p| p.split('/').skip(1).map(|t| t.replace("~1", "/").replace("~0", "~")).collect());
            let own = c.from.is_none().then(|| c.name.clone());
            Route { pointer, names: own.into_iter().chain(c.aliases.iter().cloned()).collect() }
        };
        let routes: Vec<Route> = source.columns.iter().map(route).collect();
        let places = vec![(None, None); routes.len()];
        let unknown = Unknown::default();
        Shape {
            routes,
            keys: vec![],
            places,
            room: vec![],
            leftover: vec![],
            records: 0,
            unknown,
            masked: source.is_masked(),
            takers: None,
            missed: 0,
        }
    }

    /// Puts the values of one line into `columns`, of which each gets one row if all is well.
    pub(super) fn put(&mut self, line: &[u8], columns: &mut [super::Column]) -> Result<(), Bad> {
        let text = match simdutf8::compat::from_utf8(line) {
            Ok(text) => text,
            Err(e) => return Err(Bad::Syntax(format!("column {}: not UTF-8", e.valid_up_to() + 1))),
        };
        if self.put_at_once(text, columns) {
            return Ok(());
        }
        let mut entries: Vec<Entry> = reuse(std::mem::take(&mut self.room));
        let put = match read_object(text, &mut entries) {
            // The message quotes a line that is a lone text or number.
            Err(e) if self.masked && e.is_data() => Err(Bad::Syntax(format!("column {}: not a JSON object", e.column().max(1)))),
            Err(e) => Err(Bad::Syntax(syntax(&e))),
            Ok(()) => self.put_entries(&entries, columns),
        };
        self.room = reuse(entries);
        put
    }

    fn put_entries(&mut self, entries: &[Entry], columns: &mut [super::Column]) -> Result<(), Bad> {
        let same = entries.len() == self.keys.len() && entries.iter().zip(&self.keys).all(|((key, _), known)| key == known);
        if !same {
            self.learn(entries).map_err(Bad::Value)?;
        }
        self.records += 1;
        for ((column, route), (pointed, named)) in columns.iter_mut().zip(&self.routes).zip(&self.places) {
            let mut found = None;
            if let (Some(i), Some(pointer)) = (pointed, &route.pointer) {
                found = walk(entries[*i].1, &pointer[1..]).map_err(|e| Bad::Value(format!("{} {e}", column.name)))?;
            }
            match found.or(named.map(|i| entries[i].1)) {
                None => column.missing(),
                Some(raw) => put_raw(column, raw.get()),
            }
            .map_err(Bad::Value)?;
        }
        Ok(())
    }

    /// Puts a line that has the keys of the last one into `columns` while it is parsed, and returns whether all went well. Where anything is
    /// unusual it puts nothing: then the line is looked at entry by entry, and that tells what is wrong with it, if it is.
    fn put_at_once(&mut self, text: &str, columns: &mut [super::Column]) -> bool {
        let Some(takers) = &self.takers else { return false };
        let rows = columns.first().map_or(0, super::Column::len);
        let known = Known { keys: &self.keys, takers, columns };
        let mut put = Deserializer::from_str(text).into_seed(known).is_ok();
        let mut absent = columns.iter_mut().zip(&self.places).filter(|(_, place)| place.1.is_none());
        put = put && absent.all(|(column, _)| column.missing().is_ok());
        if put {
            self.records += 1;
        } else {
            columns.iter_mut().for_each(|c| c.truncate(rows));
            self.missed += 1;
            if self.missed > MISSES && self.missed > self.records / MISSES {
                self.takers = None;
            }
        }
        put
    }

    /// Finds out where the columns stand in `entries`, and that no key occurs twice.
    fn learn(&mut self, entries: &[Entry]) -> Result<(), String> {
        self.count_unknown();
        self.keys.clear();
        self.leftover.clear();
        // If this fails, what follows is compared with an object without keys.
        self.places.fill((None, None));
        (self.takers, self.missed) = (None, 0);
        let mut sorted: Vec<(&str, usize)> = entries.iter().enumerate().map(|(i, (key, _))| (key.as_ref(), i)).collect();
        sorted.sort_unstable();
        if let Some(twice) = sorted.windows(2).find(|w| w[0].0 == w[1].0) {
            return Err(format!("the key {:?} occurs twice", short(twice[0].0)));
        }
        let find = |key: &str| sorted.binary_search_by(|(k, _)| (*k).cmp(key)).ok().map(|at| sorted[at].1);
        for (route, place) in self.routes.iter().zip(&mut self.places) {
            let pointed = route.pointer.as_ref().and_then(|tokens| find(tokens.first()?));
            *place = (pointed, route.names.iter().find_map(|name| find(name)));
        }
        self.keys.extend(entries.iter().map(|(key, _)| key.clone().into_owned()));
        let asked = |key: &str| self.routes.iter().any(|r| r.names.iter().any(|n| n == key) || r.pointer.as_ref().is_some_and(|p| p[0] == key));
        self.leftover.extend((0..entries.len()).filter(|i| !asked(&entries[*i].0)));
        let mut takers = vec![None; entries.len()];
        let alone = self.places.iter().enumerate().all(|(column, (_, named))| named.is_none_or(|i| takers[i].replace(column).is_none()));
        self.takers = Some(takers).filter(|_| alone && self.routes.iter().all(|r| r.pointer.is_none()));
        Ok(())
    }

    /// Counts the entries that were left aside in the records since they were learnt.
    fn count_unknown(&mut self) {
        self.leftover.iter().for_each(|i| self.unknown.add(&self.keys[*i], self.records));
        self.records = 0;
    }
}

/// Returns an empty vector that owns the memory of `used`.
fn reuse<'b>(mut used: Vec<Entry<'_>>) -> Vec<Entry<'b>> {
    used.clear();
    used.into_iter().map(|_| unreachable!("BUG: a cleared vector has an element")).collect()
}

pub(super) fn put_raw(column: &mut super::Column, raw: &str) -> Result<(), String> {
    let bytes = raw.as_bytes();
    if raw == "null" {
        return column.null();
    }
    if column.rule.data_type == DataType::Json {
        return column.put(Value::Json(raw));
    }
    match bytes[0] {
        b'"' if !bytes.contains(&b'\\') => column.put(Value::Text(&raw[1..raw.len() - 1])),
        b'"' => match serde_json::from_str::<String>(raw) {
            Ok(text) => column.put(Value::Text(&text)),
            Err(e) => column.bad(format!("is not a text: {}", without_place(&e.to_string()))),
        },
        b'{' | b'[' => column.put(Value::Json(raw)),
        b't' | b'f' => column.put(Value::Bool(bytes[0] == b't')),
        _ => column.put(Value::Number(raw)),
    }
}

/// Follows the rest of a JSON pointer. Of an object on the way, the key that is followed must not occur twice.
fn walk<'a>(from: &'a RawValue, tokens: &[String]) -> Result<Option<&'a RawValue>, String> {
    let mut at = from;
    for token in tokens {
        let next = match at.get().as_bytes()[0] {
            b'{' => {
                let mut entries = vec![];
                read_object(at.get(), &mut entries).map_err(|e| syntax(&e))?;
                let mut matching = entries.iter().filter(|(key, _)| key == token).map(|(_, raw)| *raw);
                let first = matching.next();
                if matching.next().is_some() {
                    return Err(format!("cannot be found: the key {:?} occurs twice", short(token)));
                }
                first
            }
            b'[' if token == "0" || (!token.starts_with('0') && !token.is_empty() && token.bytes().all(|c| c.is_ascii_digit())) => {
                let Ok(index) = token.parse() else { return Ok(None) };
                Deserializer::from_str(at.get()).into_seed(Element(index)).map_err(|e| syntax(&e))?
            }
            _ => None,
        };
        match next {
            Some(raw) => at = raw,
            None => return Ok(None),
        }
    }
    Ok(Some(at))
}

trait IntoSeed<'de> {
    fn into_seed<S: DeserializeSeed<'de>>(self, seed: S) -> serde_json::Result<S::Value>;
}

impl<'de, R: serde_json::de::Read<'de>> IntoSeed<'de> for Deserializer<R> {
    fn into_seed<S: DeserializeSeed<'de>>(mut self, seed: S) -> serde_json::Result<S::Value> {
        let value = seed.deserialize(&mut self)?;
        self.end().map(|()| value)
    }
}

pub(super) fn read_object<'a>(text: &'a str, entries: &mut Vec<Entry<'a>>) -> serde_json::Result<()> {
    Deserializer::from_str(text).into_seed(Entries(entries))
}

/// serde_json's message, with the column in front: a record is a single line.
pub(super) fn syntax(e: &serde_json::Error) -> String {
    format!("column {}: {}", e.column().max(1), without_place(&e.to_string()))
}

fn without_place(message: &str) -> &str {
    short(message.rsplit_once(" at line ").map_or(message, |(m, _)| m))
}

#[derive(Deserialize)]
struct Key<'a>(#[serde(borrow)] Cow<'a, str>);

struct Entries<'v, 'de>(&'v mut Vec<Entry<'de>>);

impl<'de> DeserializeSeed<'de> for Entries<'_, 'de> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Entries<'_, 'de> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(Key(key)) = map.next_key()? {
            self.0.push((key, map.next_value()?));
        }
        Ok(())
    }
}

/// An object whose keys are known, whose values go into columns as they come.
struct Known<'k> {
    keys: &'k [String],
    takers: &'k [Option<usize>],
    columns: &'k mut [super::Column],
}

impl<'de> DeserializeSeed<'de> for Known<'_> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Known<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON object like the last one")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        for (key, taker) in self.keys.iter().zip(self.takers) {
            if map.next_key::<Key>()?.is_none_or(|found| found.0 != *key) {
                return Err(unusual());
            }
            match taker.map(|i| &mut self.columns[i]) {
                None => drop(map.next_value::<IgnoredAny>()?),
                Some(column) if is_text(column) => map.next_value_seed(Text(column))?,
                Some(column) => put_raw(column, map.next_value::<&RawValue>()?.get()).map_err(|_| unusual())?,
            }
        }
        if map.next_key::<IgnoredAny>()?.is_some() { Err(unusual()) } else { Ok(()) }
    }
}

/// Whether values of a column come as texts as a rule, which can be taken without their raw form.
fn is_text(column: &super::Column) -> bool {
    match column.rule.data_type {
        DataType::String | DataType::Date | DataType::Time => true,
        DataType::Timestamp => column.rule.unit.is_none(),
        _ => false,
    }
}

/// Says nothing: the line is looked at again.
fn unusual<E: serde::de::Error>() -> E {
    E::custom("")
}

/// Puts a text, or a null, into a column. Anything else is unusual there.
struct Text<'c>(&'c mut super::Column);

impl<'de> DeserializeSeed<'de> for Text<'_> {
    type Value = ();
    fn deserialize<D: serde::Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl Visitor<'_> for Text<'_> {
    type Value = ();
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a text")
    }
    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.0.put(Value::Text(text)).map_err(|_| unusual())
    }
    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.0.null().map_err(|_| unusual())
    }
}

struct Element(usize);

impl<'de> DeserializeSeed<'de> for Element {
    type Value = Option<&'de RawValue>;
    fn deserialize<D: serde::Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Element {
    type Value = Option<&'de RawValue>;
    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a JSON array")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        for _ in 0..self.0 {
            if seq.next_element::<IgnoredAny>()?.is_none() {
                return Ok(None);
            }
        }
        let found = seq.next_element()?;
        while seq.next_element::<IgnoredAny>()?.is_some() {}
        Ok(found)
    }
}
