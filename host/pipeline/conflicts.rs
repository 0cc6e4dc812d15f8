//! The records behind a conflict: same key, other payload, side by side.
//! Never shows a payload, which may hold what a mask hides: the declared columns are shown as they landed.

use super::{Error, Workshop, partition_window};
use crate::{
    config::Keep,
    moves,
    query::Rows,
    schema::{envelope, quoted},
    time::EventTime,
};
use arrow::{array::AsArray, datatypes::Int64Type};

impl Workshop {
    /// Returns the records of one partition whose dedup key has records that differ in payload, in order of key and arrival: the key, where
    /// they came from, whether `keep` takes them, and their columns. Where ids are followed across partitions, with those of the others.
    ///
    /// # Errors
    /// There is no such dataset or partition, or the dataset removes no duplicates.
    pub fn conflicts(&mut self, dataset: &str, partition: &str, rows_max: usize) -> Result<Rows, Error> {
        let dataset = self.project.dataset(dataset)?.clone();
        let window = partition_window(&dataset, partition)?;
        let Some(dedup) = &dataset.dedup else {
            let message = format!("{} keeps every record: it declares no dedup", dataset.name);
            return Err(Error::Usage { message, hint: Some("dedup = { key = [\"…\"] } says which records are one".into()) });
        };
        let first = self.project.source(&dataset.inputs[0])?;
        let mut columns: Vec<String> = dedup.key.clone();
        columns.extend(first.columns.iter().map(|c| c.name.clone()).filter(|c| !dedup.key.contains(c)));
        columns.retain(|c| dataset.inputs.iter().all(|i| self.project.sources[i].raw_fields().iter().any(|f| f.name == *c)));
        let list = |names: &[String]| names.iter().map(|n| quoted(n)).collect::<Vec<_>>().join(", ");
        let [time, at, file, offset, seq, hash, flags] =
            [envelope::EVENT_TIME, envelope::INGESTED_AT, envelope::FILE, envelope::OFFSET, envelope::SEQ, envelope::PAYLOAD_HASH, envelope::FLAGS];
        let (from, to) = window.bounds_text();
        let inside = format!("{time} >= TIMESTAMP '{from}' AND {time} < TIMESTAMP '{to}'");
        let follows = moves::follows(&self.project, &dataset);
        let landed = self.catalog.read(|v| v.table_names(v.latest()?))?;
        let raw: Vec<String> = dataset
            .inputs
            .iter()
            .filter(|i| landed.contains(&format!("raw_{i}")))
            .map(|i| {
                let only = if follows { String::new() } else { format!(" WHERE {inside}") };
                let from = format!("FROM {}{only}", quoted(&format!("raw_{i}")));
                let future = format!("{flags} % {} >= {} AS _future", 2 * envelope::FUTURE, envelope::FUTURE);
                format!(
                    "SELECT {}, '{i}' AS _source, {inside} AS _inside, {future}, {time}, {at}, {file}, {offset}, {seq}, {hash} {from}",
                    list(&columns)
                )
            })
            .collect();
        if raw.is_empty() {
            return Err(Error::NoInput { source_name: dataset.inputs[0].clone() });
        }
        let asked = Asked::new(&dedup.key, dedup.keep, follows, &raw, &columns, rows_max);
        // Several feeds may number alike, and records of one id that stand elsewhere meet those of other sources there.
        let mut starts = Vec::new();
        if follows && raw.len() > 1 {
            for batch in self.query(&asked.places(), None)?.batches {
                starts.extend(
                    batch.column(0).as_primitive::<Int64Type>().values().iter().map(|at| (*at, dataset.calendar().at(EventTime(*at)).start())),
                );
            }
        }
        self.query(&asked.listing(&starts), None)
    }
}

/// What is asked of the raw tables, as SQL.
struct Asked {
    /// Columns of the key, of the table `r`.
    own: String,
    /// Which of two records counts.
    order: String,
    /// The tables: `r` has every record that may be of a key in conflict, and whether it is the one of its id that counts, wherever it stands.
    tables: String,
    /// The records to be shown, in order.
    chosen: String,
    shown: String,
    same: String,
}

impl Asked {
    fn new(key: &[String], keep: Keep, follows: bool, raw: &[String], columns: &[String], rows_max: usize) -> Asked {
        let [file, seq, at, hash] = [envelope::FILE, envelope::SEQ, envelope::INGESTED_AT, envelope::PAYLOAD_HASH];
        let of = |table: &str, names: &[String]| names.iter().map(|n| format!("{table}.{}", quoted(n))).collect::<Vec<_>>().join(", ");
        let on = |table: &str| key.iter().map(|k| format!("r.{0} = {table}.{0}", quoted(k))).collect::<Vec<_>>().join(" AND ");
        let order = if keep == Keep::FirstIngested { "ASC" } else { "DESC" };
        // By arrival, but of an id that is followed one from the future takes no place of one that was not.
        let future = if follows { "_future" } else { "false" };
        let order = format!("ORDER BY {future}, _landed {order}, {seq} {order}");
        let (own, plain) = (of("r", key), key.iter().map(|k| quoted(k)).collect::<Vec<_>>().join(", "));
        let first = if follows { format!("row_number() OVER (PARTITION BY {plain}, _source {order}) = 1") } else { "true".into() };
        let differing = format!("count(DISTINCT {hash}) > 1");
        // One key inside the partition, whatever its source; and one id of one source, wherever it stands.
        let tables = format!(
            "landed AS (SELECT source, path, ingested_us, max(snapshot_id) AS snapshot FROM restitch_file GROUP BY source, path, ingested_us),
             a AS ({}),
             b AS (SELECT a.*, l.snapshot AS _landed
                   FROM a LEFT JOIN landed l ON l.source = a._source AND l.path = a.{file} AND l.ingested_us = arrow_cast(a.{at}, 'Int64')),
             r AS (SELECT *, {first} AS _first FROM b),
             h AS (SELECT {plain}, true AS _here FROM r WHERE _inside GROUP BY {plain} HAVING {differing}),
             i AS (SELECT {plain}, _source, true AS _moved FROM r GROUP BY {plain}, _source HAVING {differing} AND bool_or(_inside))",
            raw.join(" UNION ALL ")
        );
        let chosen = format!(
            "LEFT JOIN h ON r._inside AND {} LEFT JOIN i ON r._source = i._source AND {}
             WHERE h._here OR i._moved ORDER BY {own}, r._landed, r.{seq} LIMIT {rows_max}",
            on("h"),
            on("i")
        );
        Asked { own, order, tables, chosen, shown: of("r", columns), same: on("k") }
    }

    /// Where in other partitions the records stand that count for the ids of the keys that are listed.
    fn places(&self) -> String {
        let Asked { own, tables, chosen, same, .. } = self;
        let time = envelope::EVENT_TIME;
        format!(
            "WITH {tables}, k AS (SELECT DISTINCT * FROM (SELECT {own} FROM r {chosen}))
             SELECT DISTINCT arrow_cast(r.{time}, 'Int64') AS at FROM r JOIN k ON {same} WHERE r._first AND NOT r._inside"
        )
    }

    /// The records; `starts` has event times in other partitions, with the first instants of these.
    fn listing(&self, starts: &[(i64, EventTime)]) -> String {
        let Asked { own, order, tables, chosen, shown, .. } = self;
        let [file, offset, at, time] = [envelope::FILE, envelope::OFFSET, envelope::INGESTED_AT, envelope::EVENT_TIME];
        let (mut with, mut join, mut start) = (tables.clone(), String::new(), "0");
        if !starts.is_empty() {
            let values = starts.iter().map(|(at, start)| format!("({at}, {})", start.0)).collect::<Vec<_>>().join(", ");
            with += &format!(", w AS (SELECT column1 AS _at, column2 AS _start FROM (VALUES {values}))");
            join = format!("LEFT JOIN w ON w._at = arrow_cast(r.{time}, 'Int64') ");
            start = "w._start";
        }
        // Who counts for its id still has to count for its key, among those of other sources in its partition.
        let kept = format!("r._first AND row_number() OVER (PARTITION BY {own}, r._inside, {start}, r._first {order}) = 1");
        format!("WITH {with} SELECT {shown}, {kept} AS kept, r.{file}, r.{offset}, r.{at} FROM r {join}{chosen}")
    }
}
