//! Duplicates: which of several records with one key is kept, in one partition, by the declared rule.
//! Never compares across partitions and never drops a record whose key is null: two unknown keys are not one key.
//! `execute` asks it, partition by partition.

use crate::{
    checksum::Encoder,
    config::{Dedup, Keep},
    schema::Field,
};
use arrow::array::RecordBatch;
use siphasher::sip128::{Hasher128, SipHasher13};
use std::{
    collections::{HashMap, hash_map::Entry},
    hash::{BuildHasherDefault, Hasher},
};

/// A record's place in arrival order: its ingest, its place there.
pub type Arrival = (i64, i64);

/// A 128-bit hash of a key, under a secret of this process: a feed cannot craft two keys that collide.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct KeyHash(u128);

/// Hashes keys of one process.
#[derive(Clone, Copy)]
pub struct KeyHasher {
    secret: (u64, u64),
}

impl Default for KeyHasher {
    fn default() -> KeyHasher {
        let secret = uuid::Uuid::new_v4().as_u64_pair();
        KeyHasher { secret }
    }
}

impl KeyHasher {
    /// Returns the hash of each row's values in `columns` of `batch`; `None` where one of them is null.
    pub fn hash(&self, batch: &RecordBatch, columns: &[(usize, Field)]) -> Vec<Option<KeyHash>> {
        let encoders: Vec<Encoder> = columns.iter().map(|(i, f)| Encoder::new(f.data_type, batch.column(*i).as_ref())).collect();
        let mut bytes = Vec::new();
        (0..batch.num_rows())
            .map(|row| {
                if encoders.iter().any(|e| e.is_null(row)) {
                    return None;
                }
                bytes.clear();
                encoders.iter().for_each(|e| e.put(row, &mut bytes));
                let mut hasher = SipHasher13::new_with_keys(self.secret.0, self.secret.1);
                hasher.write(&bytes);
                Some(KeyHash(hasher.finish128().as_u128()))
            })
            .collect()
    }
}

impl KeyHash {
    /// Returns which of `parts` equal shares of all keys this one belongs to.
    pub fn part(&self, parts: u64) -> u64 {
        ((self.0 >> 64) as u64) % parts
    }
}

/// Takes a uniformly distributed hash as it is.
#[derive(Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            self.0 ^= u64::from_le_bytes(std::array::from_fn(|i| chunk.get(i).copied().unwrap_or(0)));
        }
    }
    fn write_u128(&mut self, n: u128) {
        self.0 = n as u64;
    }
}

struct Kept<P> {
    place: P,
    arrival: Arrival,
    payload: i64,
    conflict: bool,
}

/// Removes duplicates of one partition. `P` names a record's place; the survivors' places come back.
pub struct Deduplicator<P> {
    keep: Keep,
    keys: HashMap<KeyHash, Kept<P>, BuildHasherDefault<Identity>>,
    keyless: Vec<(Arrival, P)>,
    /// Records removed.
    pub duplicates: u64,
    /// Keys whose records differ in payload.
    pub conflicts: u64,
}

impl<P: Copy> Deduplicator<P> {
    /// Returns one that follows `rule`, with room for `records`.
    pub fn new(rule: &Dedup, records: usize) -> Deduplicator<P> {
        let keys = HashMap::with_capacity_and_hasher(records, BuildHasherDefault::default());
        Deduplicator { keep: rule.keep, keys, keyless: Vec::new(), duplicates: 0, conflicts: 0 }
    }

    /// Takes a record in; the order of calls does not matter, only `arrival` does.
    pub fn add(&mut self, key: Option<KeyHash>, place: P, arrival: Arrival, payload: i64) {
        let Some(key) = key else {
            self.keyless.push((arrival, place));
            return;
        };
        match self.keys.entry(key) {
            Entry::Vacant(v) => {
                v.insert(Kept { place, arrival, payload, conflict: false });
            }
            Entry::Occupied(mut o) => {
                let kept = o.get_mut();
                self.duplicates += 1;
                if kept.payload != payload && !kept.conflict {
                    kept.conflict = true;
                    self.conflicts += 1;
                }
                let newer = arrival > kept.arrival;
                if newer == (self.keep != Keep::FirstIngested) {
                    (kept.place, kept.arrival, kept.payload) = (place, arrival, payload);
                }
            }
        }
    }

    /// Returns the places of the survivors in arrival order.
    pub fn finish(self) -> Vec<P> {
        let mut survivors = self.keyless;
        survivors.extend(self.keys.into_values().map(|k| (k.arrival, k.place)));
        survivors.sort_unstable_by_key(|(arrival, _)| *arrival);
        survivors.into_iter().map(|(_, place)| place).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{config::OnConflict, schema::DataType};
    use arrow::array::StringArray;
    use std::sync::Arc;

    /// (key, payload) in arrival order -> survivors, duplicates, conflicts.
    fn check(keep: Keep, records: &[(Option<&str>, i64)], survivors: &[usize], duplicates: u64, conflicts: u64) {
        let rule = Dedup { key: vec!["id".into()], keep, on_conflict: OnConflict::Count };
        let field = Field::new("id", DataType::String, true);
        let ids: StringArray = records.iter().map(|r| r.0).collect();
        let batch = RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap();
        let hashes = KeyHasher::default().hash(&batch, &[(0, field)]);
        let orders: [Vec<usize>; 2] = [(0..records.len()).collect(), (0..records.len()).rev().collect()];
        for order in orders {
            let mut dedup = Deduplicator::new(&rule, 0);
            for i in order {
                dedup.add(hashes[i], i, (1, i as i64), records[i].1);
            }
            assert_eq!((dedup.duplicates, dedup.conflicts), (duplicates, conflicts));
            assert_eq!(dedup.finish(), survivors);
        }
    }

    #[test]
    fn the_rule_says_which_record_stays() {
        let records = [(Some("e1"), 1), (Some("e2"), 2), (Some("e2"), 2), (Some("e1"), 9), (Some(""), 3)];
        check(Keep::LatestIngested, &records, &[2, 3, 4], 2, 1);
        check(Keep::FirstIngested, &records, &[0, 1, 4], 2, 1);
    }

    #[test]
    fn null_keys_are_all_kept_apart() {
        check(Keep::LatestIngested, &[(None, 1), (None, 1), (Some("a"), 1)], &[0, 1, 2], 0, 0);
    }
}
