//! The records behind a conflict: same key, other payload, side by side.
//! Never shows a payload, which may hold what a mask hides: the declared columns are shown as they landed.

use super::{Error, Workshop, partition_window};
use crate::{
    moves,
    query::{Rows, quoted},
    schema::envelope,
};

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
        let key = list(&dedup.key);
        let order = if dedup.keep == crate::config::Keep::FirstIngested { "ASC" } else { "DESC" };
        let own: Vec<String> = dedup.key.iter().map(|k| format!("r.{}", quoted(k))).collect();
        let own = own.join(", ");
        // By arrival, but of an id that is followed one from the future takes no place of one that was not.
        let future = if follows { "r._future" } else { "false" };
        let first_of = |by: &str| format!("row_number() OVER (PARTITION BY {own}, r.{by} ORDER BY {future}, r._landed {order}, r.{seq} {order}) = 1");
        // One key inside the partition, whatever its source; and one id of one source, wherever it stands.
        let (here, id) = (first_of("_inside"), first_of("_source"));
        let differing = format!("count(DISTINCT {hash}) > 1");
        let on = |table: &str| dedup.key.iter().map(|k| format!("r.{0} = {table}.{0}", quoted(k))).collect::<Vec<_>>().join(" AND ");
        let shown: Vec<String> = columns.iter().map(|c| format!("r.{}", quoted(c))).collect();
        let sql = format!(
            "WITH landed AS (SELECT source, path, ingested_us, max(snapshot_id) AS snapshot FROM restitch_file GROUP BY source, path, ingested_us),
                  a AS ({}),
                  r AS (SELECT a.*, l.snapshot AS _landed
                        FROM a LEFT JOIN landed l ON l.source = a._source AND l.path = a.{file} AND l.ingested_us = arrow_cast(a.{at}, 'Int64')),
                  h AS (SELECT {key}, true AS _here FROM r WHERE _inside GROUP BY {key} HAVING {differing}),
                  i AS (SELECT {key}, _source, true AS _moved FROM r GROUP BY {key}, _source HAVING {differing} AND bool_or(_inside))
             SELECT {}, {here} AND {id} AS kept, r.{file}, r.{offset}, r.{at}
             FROM r LEFT JOIN h ON r._inside AND {} LEFT JOIN i ON r._source = i._source AND {}
             WHERE h._here OR i._moved ORDER BY {own}, r._landed, r.{seq} LIMIT {rows_max}",
            raw.join(" UNION ALL "),
            shown.join(", "),
            on("h"),
            on("i")
        );
        self.query(&sql, None)
    }
}
