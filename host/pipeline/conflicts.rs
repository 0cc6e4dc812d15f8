//! The records behind a conflict: same key, other payload, side by side.
//! Never shows a payload, which may hold what a mask hides: the declared columns are shown as they landed.

use super::{Error, Workshop};
use crate::{moves, query::Rows, schema::envelope, window::Calendar};

impl Workshop {
    /// Returns the records of one partition whose dedup key has records that differ in payload, in order of key and arrival: the key, where
    /// they came from, whether `keep` takes them, and their columns. Where ids are followed across partitions, with those of the others.
    ///
    /// # Errors
    /// There is no such dataset or partition, or the dataset removes no duplicates.
    pub fn conflicts(&mut self, dataset: &str, partition: &str, rows_max: usize) -> Result<Rows, Error> {
        let dataset = self.project.dataset(dataset)?.clone();
        let calendar = Calendar { grain: dataset.grain, zone: dataset.time_zone };
        let window = calendar.parse(partition).ok_or_else(|| Error::NoPartition {
            dataset: dataset.name.clone(),
            partition: partition.into(),
            grain: dataset.grain,
        })?;
        let Some(dedup) = &dataset.dedup else {
            let message = format!("{} keeps every record: it declares no dedup", dataset.name);
            return Err(Error::Usage { message, hint: Some("dedup = { key = [\"…\"] } says which records are one".into()) });
        };
        let first = self.project.source(&dataset.inputs[0])?;
        let mut columns: Vec<String> = dedup.key.clone();
        columns.extend(first.columns.iter().map(|c| c.name.clone()).filter(|c| !dedup.key.contains(c)));
        columns.retain(|c| dataset.inputs.iter().all(|i| self.project.sources[i].raw_fields().iter().any(|f| f.name == *c)));
        let list = |names: &[String]| names.iter().map(|n| quoted(n)).collect::<Vec<_>>().join(", ");
        let [time, at, file, offset, seq, hash] =
            [envelope::EVENT_TIME, envelope::INGESTED_AT, envelope::FILE, envelope::OFFSET, envelope::SEQ, envelope::PAYLOAD_HASH];
        let (from, to) = window.bounds_text();
        let inside = format!("{time} >= TIMESTAMP '{from}' AND {time} < TIMESTAMP '{to}'");
        let follows = moves::follows(&self.project, &dataset);
        let raw: Vec<String> = dataset
            .inputs
            .iter()
            .map(|i| {
                let only = if follows { String::new() } else { format!(" WHERE {inside}") };
                format!("SELECT {}, {time}, {at}, {file}, {offset}, {seq}, {hash} FROM {}{only}", list(&columns), quoted(&format!("raw_{i}")))
            })
            .collect();
        let key = list(&dedup.key);
        let order = if dedup.keep == crate::config::Keep::FirstIngested { "ASC" } else { "DESC" };
        let sql = format!(
            "WITH r AS ({}), k AS (SELECT {key} FROM r GROUP BY {key} HAVING count(DISTINCT {hash}) > 1 AND bool_or({inside}))
             SELECT {}, row_number() OVER (PARTITION BY {key} ORDER BY {at} {order}, {seq} {order}) = 1 AS kept, {file}, {offset}, {at}
             FROM r JOIN k USING ({key}) ORDER BY {key}, {at}, {seq} LIMIT {rows_max}",
            raw.join(" UNION ALL "),
            list(&columns)
        );
        self.query(&sql, None)
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
