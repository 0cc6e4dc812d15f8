//! Column types of the contract, and their names in Arrow, DuckLake and restitch.toml.
//! Never holds data, and knows nothing of files.

use arrow::datatypes::{DataType as ArrowType, Field as ArrowField, Schema as ArrowSchema, SchemaRef, TimeUnit};
use std::{collections::HashMap, fmt, sync::Arc};

/// A column's type, as transforms, tables and restitch.toml know it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, serde::Serialize, serde::Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum DataType {
    /// True or false.
    Boolean,
    /// 32-bit signed integer.
    Int32,
    /// 64-bit signed integer.
    Int64,
    /// IEEE 754 single.
    Float32,
    /// IEEE 754 double.
    Float64,
    /// Exact decimal: digits in all (1 to 38), digits after the point (0 to the first).
    Decimal(u8, i8),
    /// UTF-8 text.
    String,
    /// JSON as UTF-8 text.
    Json,
    /// Bytes.
    Binary,
    /// Days since 1970-01-01, without a zone.
    Date,
    /// Microseconds since midnight, without a zone.
    Time,
    /// UTC microseconds since 1970.
    Timestamp,
}

impl DataType {
    /// Returns whether its values can be added up.
    pub fn is_number(self) -> bool {
        matches!(self, DataType::Int32 | DataType::Int64 | DataType::Float32 | DataType::Float64 | DataType::Decimal(..))
    }

    /// Returns the type that restitch.toml calls `text`.
    pub fn parse(text: &str) -> Option<DataType> {
        Some(match text {
            "boolean" => DataType::Boolean,
            "int32" => DataType::Int32,
            "int64" => DataType::Int64,
            "float32" => DataType::Float32,
            "float64" => DataType::Float64,
            "string" => DataType::String,
            "json" => DataType::Json,
            "binary" => DataType::Binary,
            "date" => DataType::Date,
            "time" => DataType::Time,
            "timestamp" => DataType::Timestamp,
            _ => {
                let (p, s) = text.strip_prefix("decimal(")?.strip_suffix(')')?.split_once(',')?;
                let (p, s) = (p.trim().parse().ok()?, s.trim().parse().ok()?);
                if !(1..=38).contains(&p) || s < 0 || s as u8 > p {
                    return None;
                }
                DataType::Decimal(p, s)
            }
        })
    }

    /// The names that [`DataType::parse`] takes, for error messages.
    pub const NAMES: &'static str = "boolean, int32, int64, float32, float64, decimal(p,s), string, json, binary, date, time, timestamp";

    /// Returns the Arrow type of the column in memory and in Parquet.
    pub fn arrow(self) -> ArrowType {
        match self {
            DataType::Boolean => ArrowType::Boolean,
            DataType::Int32 => ArrowType::Int32,
            DataType::Int64 => ArrowType::Int64,
            DataType::Float32 => ArrowType::Float32,
            DataType::Float64 => ArrowType::Float64,
            DataType::Decimal(p, s) => ArrowType::Decimal128(p, s),
            DataType::String | DataType::Json => ArrowType::Utf8,
            DataType::Binary => ArrowType::Binary,
            DataType::Date => ArrowType::Date32,
            DataType::Time => ArrowType::Time64(TimeUnit::Microsecond),
            DataType::Timestamp => ArrowType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        }
    }

    /// Returns the name of the type in a DuckLake catalog (spec 1.0, "Data types").
    pub fn ducklake(self) -> String {
        match self {
            DataType::Boolean => "boolean".into(),
            DataType::Int32 => "int32".into(),
            DataType::Int64 => "int64".into(),
            DataType::Float32 => "float32".into(),
            DataType::Float64 => "float64".into(),
            DataType::Decimal(p, s) => format!("decimal({p},{s})"),
            DataType::String => "varchar".into(),
            DataType::Json => "json".into(),
            DataType::Binary => "blob".into(),
            DataType::Date => "date".into(),
            DataType::Time => "time".into(),
            DataType::Timestamp => "timestamptz".into(),
        }
    }

    /// Returns the type that a DuckLake catalog calls `name`, or `None` if we have no such type.
    pub fn from_ducklake(name: &str) -> Option<DataType> {
        match name {
            "varchar" => Some(DataType::String),
            "blob" => Some(DataType::Binary),
            "timestamptz" => Some(DataType::Timestamp),
            "string" | "binary" | "timestamp" => None,
            other => DataType::parse(other),
        }
    }
}

impl From<DataType> for String {
    fn from(t: DataType) -> String {
        t.to_string()
    }
}

impl TryFrom<String> for DataType {
    type Error = String;
    fn try_from(text: String) -> Result<DataType, String> {
        DataType::parse(&text).ok_or_else(|| format!("{text:?} is not a type ({})", DataType::NAMES))
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            DataType::Boolean => "boolean",
            DataType::Int32 => "int32",
            DataType::Int64 => "int64",
            DataType::Float32 => "float32",
            DataType::Float64 => "float64",
            DataType::Decimal(p, s) => return write!(f, "decimal({p},{s})"),
            DataType::String => "string",
            DataType::Json => "json",
            DataType::Binary => "binary",
            DataType::Date => "date",
            DataType::Time => "time",
            DataType::Timestamp => "timestamp",
        })
    }
}

/// A named, typed column.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Field {
    /// Its name; case counts.
    pub name: String,
    /// Its type.
    pub data_type: DataType,
    /// Whether it may hold nulls.
    pub nullable: bool,
}

impl Field {
    /// Returns a field.
    pub fn new(name: impl Into<String>, data_type: DataType, nullable: bool) -> Field {
        Field { name: name.into(), data_type, nullable }
    }

    /// Returns the Arrow field; with `id`, it carries the Parquet field id that DuckLake resolves columns by.
    pub fn arrow(&self, id: Option<i64>) -> ArrowField {
        let field = ArrowField::new(&self.name, self.data_type.arrow(), self.nullable);
        match id {
            Some(id) => field.with_metadata(HashMap::from([("PARQUET:field_id".to_owned(), id.to_string())])),
            None => field,
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{} {}{}", self.name, self.data_type, if self.nullable { "" } else { " not null" })
    }
}

/// Returns the Arrow schema of `fields`, with Parquet field ids 1, 2, … as a new DuckLake table numbers its columns.
pub fn arrow_schema(fields: &[Field]) -> SchemaRef {
    Arc::new(ArrowSchema::new(fields.iter().enumerate().map(|(i, f)| f.arrow(Some(i as i64 + 1))).collect::<Vec<_>>()))
}

/// Returns a name as SQL writes it, whatever is in it.
pub fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// The partition column of every published table.
pub const PARTITION: &str = "_partition";

/// Returns where the first escape in `json` stands that is half a surrogate pair. Parsers that pass over texts do not look at them, and
/// DuckDB cannot read what has one.
pub fn half_pair(json: &[u8]) -> Option<usize> {
    let unit = |at: usize| {
        let hex = json.get(at..at + 6).filter(|e| e.starts_with(b"\\u"))?;
        u16::from_str_radix(std::str::from_utf8(&hex[2..]).ok()?, 16).ok()
    };
    let mut from = 0;
    while let Some(at) = memchr::memchr(b'\\', &json[from..]).map(|n| from + n) {
        from = at
            + match unit(at) {
                // Of two backslashes the second one begins no escape.
                None => 2,
                Some(0xd800..=0xdbff) if unit(at + 6).is_some_and(|low| (0xdc00..=0xdfff).contains(&low)) => 12,
                Some(0xd800..=0xdfff) => return Some(at),
                Some(_) => 6,
            };
    }
    None
}

/// The envelope: the columns that every raw table has before the declared ones.
pub mod envelope {
    use super::{DataType, Field};

    /// Stable id of the record: a declared field, or the SHA-256 of its payload (CSV: of header line and payload).
    pub const RECORD_ID: &str = "_record_id";
    /// When it happened.
    pub const EVENT_TIME: &str = "_event_time";
    /// When we stored it.
    pub const INGESTED_AT: &str = "_ingested_at";
    /// The file it came from, as named at ingest.
    pub const FILE: &str = "_file";
    /// Line (JSON Lines, CSV) or row (Parquet) in that file, from 1.
    pub const OFFSET: &str = "_offset";
    /// Bit set: 1 late, 2 future.
    pub const FLAGS: &str = "_flags";
    /// Place of the record in its ingest, from 0: with the snapshot it gives the arrival order.
    pub const SEQ: &str = "_seq";
    /// XXH64 of the payload (CSV: seeded by the header line): tells a conflicting duplicate from a repeated one.
    pub const PAYLOAD_HASH: &str = "_payload_hash";
    /// The original bytes; null for Parquet input, where the row itself is the payload.
    pub const PAYLOAD: &str = "_payload";
    /// The snapshot that landed the record, where a reparse has written its file anew; else null: that of the file. Not for transforms.
    pub const LANDED: &str = "_landed_snapshot";
    /// Why a record was rejected.
    pub const REASON: &str = "_reason";

    /// The record's event time lay before the cutoff when it arrived.
    pub const LATE: i32 = 1;
    /// The record's event time lay further ahead of the clock than `max_future`.
    pub const FUTURE: i32 = 2;

    /// Returns the envelope's fields, in order.
    pub fn fields() -> Vec<Field> {
        vec![
            Field::new(RECORD_ID, DataType::String, false),
            Field::new(EVENT_TIME, DataType::Timestamp, false),
            Field::new(INGESTED_AT, DataType::Timestamp, false),
            Field::new(FILE, DataType::String, false),
            Field::new(OFFSET, DataType::Int64, false),
            Field::new(FLAGS, DataType::Int32, false),
            Field::new(SEQ, DataType::Int64, false),
            Field::new(PAYLOAD_HASH, DataType::Int64, false),
            Field::new(PAYLOAD, DataType::Binary, true),
        ]
    }

    /// Returns the field of [`LANDED`], which a raw table gets with its first reparse.
    pub fn landed() -> Field {
        Field::new(LANDED, DataType::Int64, true)
    }

    /// Returns the fields of a reject table, in order.
    pub fn reject_fields() -> Vec<Field> {
        vec![
            Field::new(FILE, DataType::String, false),
            Field::new(OFFSET, DataType::Int64, false),
            Field::new(INGESTED_AT, DataType::Timestamp, false),
            Field::new(REASON, DataType::String, false),
            Field::new(PAYLOAD, DataType::Binary, true),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_one_name_each() {
        for name in ["boolean", "int32", "int64", "float32", "float64", "decimal(18,2)", "string", "json", "binary", "date", "time", "timestamp"] {
            let t = DataType::parse(name).unwrap();
            assert_eq!(t.to_string(), name);
            assert_eq!(DataType::from_ducklake(&t.ducklake()), Some(t));
        }
        for bad in ["int", "decimal(39,0)", "decimal(4,5)", "decimal(4)", "varchar", ""] {
            assert_eq!(DataType::parse(bad), None, "{bad}");
        }
    }
}
