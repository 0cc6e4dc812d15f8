//! One checksum over all published partitions of a dataset, kept up to date by what a transaction really changes.
//! Never reads a partition that was not changed: a swap costs what it swaps, not what the warehouse holds.
//! `publish` compares with it; `doctor` computes it again from all rows.

use super::{CatalogError, Commit, View};
use crate::{id::Digest, time::EventTime};
use rusqlite::{Connection, OptionalExtension, params};

/// A checksum of a set of published partitions: the sum of a SHA-256 of each, so that one goes in or out by itself.
///
/// The hash is over the partition's name, a zero byte and its checksum in hex; the sum is taken in four lanes of 64 bits, little-endian, modulo 2^64.
/// It tells accidents, not attacks: whoever may write the catalog may write the sum.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct PartitionSum {
    /// How many partitions.
    pub partitions: i64,
    lanes: [u64; 4],
}

impl PartitionSum {
    /// Returns the sum with a partition more.
    #[must_use]
    pub fn with(self, partition: &str, checksum: &str) -> PartitionSum {
        self.each(1, partition, checksum, u64::wrapping_add)
    }

    /// Returns the sum with a partition less.
    #[must_use]
    pub fn without(self, partition: &str, checksum: &str) -> PartitionSum {
        self.each(-1, partition, checksum, u64::wrapping_sub)
    }

    fn each(self, partitions: i64, partition: &str, checksum: &str, add: fn(u64, u64) -> u64) -> PartitionSum {
        let hash = Digest::of(&[partition.as_bytes(), &[0], checksum.as_bytes()].concat()).0;
        let lane = |i: usize| u64::from_le_bytes(std::array::from_fn(|byte| hash[i * 8 + byte]));
        PartitionSum { partitions: self.partitions + partitions, lanes: std::array::from_fn(|i| add(self.lanes[i], lane(i))) }
    }

    /// Returns the four lanes as 32 bytes.
    pub fn checksum(self) -> Digest {
        Digest(std::array::from_fn(|byte| self.lanes[byte / 8].to_le_bytes()[byte % 8]))
    }

    fn of(partitions: i64, checksum: Digest) -> PartitionSum {
        let lane = |i: usize| u64::from_le_bytes(std::array::from_fn(|byte| checksum.0[i * 8 + byte]));
        PartitionSum { partitions, lanes: std::array::from_fn(lane) }
    }
}

/// Notes of every row of `restitch_partition` that this connection changes. They are the connection's own: no other reader meets them.
const WATCH: &str = "
CREATE TEMP TABLE IF NOT EXISTS restitch_touched(dataset, partition, before, after);
CREATE TEMP TRIGGER IF NOT EXISTS restitch_touched_insert AFTER INSERT ON main.restitch_partition
  BEGIN INSERT INTO restitch_touched VALUES (NEW.dataset, NEW.partition, NULL, NEW.checksum); END;
CREATE TEMP TRIGGER IF NOT EXISTS restitch_touched_delete AFTER DELETE ON main.restitch_partition
  BEGIN INSERT INTO restitch_touched VALUES (OLD.dataset, OLD.partition, OLD.checksum, NULL); END;
CREATE TEMP TRIGGER IF NOT EXISTS restitch_touched_update AFTER UPDATE ON main.restitch_partition
  BEGIN
    INSERT INTO restitch_touched VALUES (OLD.dataset, OLD.partition, OLD.checksum, NULL);
    INSERT INTO restitch_touched VALUES (NEW.dataset, NEW.partition, NULL, NEW.checksum);
  END;
DELETE FROM temp.restitch_touched;
";

impl View<'_> {
    /// Returns the recorded sum of a dataset's published partitions.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn partition_sum(&self, dataset: &str) -> Result<PartitionSum, CatalogError> {
        let mut statement = self.connection.prepare_cached("SELECT partitions, sum FROM restitch_sum WHERE dataset = ?1")?;
        let found = statement.query_row([dataset], |r| Ok(PartitionSum::of(r.get(0)?, super::state::digest(r, 1)?))).optional()?;
        Ok(found.unwrap_or_default())
    }

    /// Returns `sum` without those of the partitions that begin at `starts` and are published.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn sum_without(&self, dataset: &str, starts: impl Iterator<Item = EventTime>, sum: PartitionSum) -> Result<PartitionSum, CatalogError> {
        let mut statement = self.connection.prepare_cached(
            "SELECT partition, checksum FROM restitch_partition WHERE dataset = ?1 AND start_us IN (SELECT value FROM json_each(?2))",
        )?;
        let mut rows = statement.query(params![dataset, super::ducklake::list(starts.map(|s| s.0))])?;
        let mut left = sum;
        while let Some(r) = rows.next()? {
            let (partition, checksum): (String, String) = (r.get(0)?, r.get(1)?);
            left = left.without(&partition, &checksum);
        }
        Ok(left)
    }

    /// Returns the datasets whose published partitions do not come to their recorded sum.
    ///
    /// # Errors
    /// The catalog cannot be read.
    pub fn wrong_sums(&self) -> Result<Vec<String>, CatalogError> {
        let mut statement = self.connection.prepare(
            "SELECT name FROM restitch_dataset UNION SELECT dataset FROM restitch_sum UNION SELECT dataset FROM restitch_partition ORDER BY 1",
        )?;
        let datasets: Vec<String> = statement.query_map([], |r| r.get(0))?.collect::<Result<_, _>>()?;
        let mut wrong = Vec::new();
        for dataset in datasets {
            let mut rows = self.connection.prepare_cached("SELECT partition, checksum FROM restitch_partition WHERE dataset = ?1")?;
            let mut sum = PartitionSum::default();
            for row in rows.query_map([&dataset], |r| Ok((r.get::<_, String>(0)?, r.get::<_, String>(1)?)))? {
                let (partition, checksum) = row?;
                sum = sum.with(&partition, &checksum);
            }
            if sum != self.partition_sum(&dataset)? {
                wrong.push(dataset);
            }
        }
        Ok(wrong)
    }
}

impl Commit<'_> {
    /// From now on notes every published partition that changes, and forgets what was noted before.
    ///
    /// # Errors
    /// The connection cannot note.
    pub fn watch_published(&self) -> Result<(), CatalogError> {
        Ok(self.tx.execute_batch(WATCH)?)
    }

    /// Returns what a dataset's recorded sum becomes by the changes that were noted, and records it. A change of another dataset is counted in, so that it is seen.
    ///
    /// # Errors
    /// The catalog cannot be read or written.
    pub fn settle_sum(&self, dataset: &str) -> Result<PartitionSum, CatalogError> {
        let mut sum = self.view().partition_sum(dataset)?;
        let connection: &Connection = &self.tx;
        let mut touched = connection.prepare_cached("SELECT partition, before, after FROM temp.restitch_touched")?;
        let mut rows = touched.query([])?;
        while let Some(r) = rows.next()? {
            let (partition, before, after): (String, Option<String>, Option<String>) = (r.get(0)?, r.get(1)?, r.get(2)?);
            sum = before.map_or(sum, |checksum| sum.without(&partition, &checksum));
            sum = after.map_or(sum, |checksum| sum.with(&partition, &checksum));
        }
        connection.prepare_cached("INSERT OR REPLACE INTO restitch_sum VALUES (?1, ?2, ?3)")?.execute(params![
            dataset,
            sum.partitions,
            sum.checksum().to_string()
        ])?;
        Ok(sum)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partitions_go_in_and_out_in_any_order() {
        let (a, b) = (("2026-05-01", "aa"), ("2026-05-02", "bb"));
        let both = PartitionSum::default().with(a.0, a.1).with(b.0, b.1);
        assert_eq!(both, PartitionSum::default().with(b.0, b.1).with(a.0, a.1));
        assert_eq!(both.without(a.0, a.1), PartitionSum::default().with(b.0, b.1));
        assert_eq!(both.without(a.0, a.1).without(b.0, b.1), PartitionSum::default());
        assert_ne!(both, PartitionSum::default().with(a.0, b.1).with(b.0, a.1));
        assert_eq!(PartitionSum::of(both.partitions, both.checksum()), both);
    }
}
