//! Duplicates: which of several records with one key is kept, in one partition, by the declared rule.
//! Never compares across partitions and never drops a record whose key is null: two unknown keys are not one key.
//! `execute` asks it, partition by partition.

use crate::{
    checksum::Encoder,
    config::{Dedup, Keep},
    schema::{DataType, Field},
};
use arrow::array::{Array, AsArray, BooleanBufferBuilder, RecordBatch};
use siphasher::sip128::SipHasher13;
use std::num::NonZeroU128;

/// A record's place in arrival order: its ingest, its place there.
pub type Arrival = (i64, i64);

/// A 128-bit hash of a key, under a secret of this process: a feed cannot craft two keys that collide.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyHash(NonZeroU128);

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
        let mut hashes = Vec::with_capacity(batch.num_rows());
        self.hash_rows(batch, columns, 0..batch.num_rows(), &mut hashes);
        hashes
    }

    /// Appends the hashes of these rows, as [`KeyHasher::hash`] gives them.
    pub fn hash_rows(&self, batch: &RecordBatch, columns: &[(usize, Field)], rows: impl Iterator<Item = usize>, hashes: &mut Vec<Option<KeyHash>>) {
        if let [(i, Field { data_type: DataType::String, .. })] = columns {
            // The usual key: one text, which needs no encoding to be told from another.
            let texts = batch.column(*i).as_string::<i32>();
            return hashes.extend(rows.map(|row| texts.is_valid(row).then(|| self.of(texts.value(row).as_bytes()))));
        }
        let encoders: Vec<Encoder> = columns.iter().map(|(i, f)| Encoder::new(f.data_type, batch.column(*i).as_ref())).collect();
        let mut bytes = Vec::new();
        hashes.extend(rows.map(|row| {
            if encoders.iter().any(|e| e.is_null(row)) {
                return None;
            }
            bytes.clear();
            encoders.iter().for_each(|e| e.put(row, &mut bytes));
            Some(self.of(&bytes))
        }));
    }

    fn of(&self, bytes: &[u8]) -> KeyHash {
        let hash = SipHasher13::new_with_keys(self.secret.0, self.secret.1).hash(bytes);
        KeyHash(NonZeroU128::new(hash.as_u128()).unwrap_or(NonZeroU128::MAX))
    }
}

impl KeyHash {
    /// Returns which of `parts` equal shares of all keys this one belongs to.
    pub fn part(self, parts: u64) -> u64 {
        ((self.0.get() >> 64) as u64) % parts
    }

    /// Returns the hash as 16 bytes.
    pub fn to_bytes(self) -> [u8; 16] {
        self.0.get().to_le_bytes()
    }

    /// Returns what [`KeyHash::to_bytes`] gave; `None` of zeros.
    pub fn from_bytes(bytes: [u8; 16]) -> Option<KeyHash> {
        NonZeroU128::new(u128::from_le_bytes(bytes)).map(KeyHash)
    }
}

/// Which records of one partition stay.
#[derive(Debug)]
pub struct Survivors {
    /// By place in arrival order.
    stay: BooleanBufferBuilder,
    /// Records removed.
    pub duplicates: u64,
    /// Keys whose records differ in payload.
    pub conflicts: u64,
}

impl Survivors {
    /// Returns whether the record at a place stays.
    pub fn stays(&self, place: usize) -> bool {
        self.stay.get_bit(place)
    }
}

/// Returns which of the records with these keys stay, at most 2^32 - 2 of them, given in arrival order; `payload` tells two of them apart.
///
/// One pass over a table of places: nothing is sorted, and no key is copied.
pub fn survivors(rule: &Dedup, keys: &[Option<KeyHash>], payload: impl Fn(usize) -> i64) -> Survivors {
    const FREE: u32 = u32::MAX;
    assert!(keys.len() < FREE as usize, "BUG: {} records of one partition at once", keys.len());
    let mask = (keys.len() * 2).next_power_of_two() - 1;
    let mut table = vec![FREE; mask + 1];
    let mut stay = BooleanBufferBuilder::new(keys.len());
    stay.append_n(keys.len(), true);
    let mut found = Survivors { stay, duplicates: 0, conflicts: 0 };
    let mut differing: Vec<usize> = Vec::new();
    for (place, key) in keys.iter().enumerate() {
        // Two unknown keys are not one key.
        let Some(key) = key else { continue };
        let mut slot = key.0.get() as usize & mask;
        while table[slot] != FREE && keys[table[slot] as usize] != Some(*key) {
            slot = (slot + 1) & mask;
        }
        let kept = table[slot];
        if kept == FREE {
            table[slot] = place as u32;
            continue;
        }
        found.duplicates += 1;
        if payload(kept as usize) != payload(place) {
            differing.push(slot);
        }
        let goes = if rule.keep == Keep::FirstIngested { place } else { kept as usize };
        found.stay.set_bit(goes, false);
        if rule.keep != Keep::FirstIngested {
            table[slot] = place as u32;
        }
    }
    differing.sort_unstable();
    differing.dedup();
    found.conflicts = differing.len() as u64;
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::OnConflict;
    use arrow::array::StringArray;
    use std::sync::Arc;

    /// (key, payload) in arrival order -> survivors, duplicates, conflicts.
    fn check(keep: Keep, records: &[(Option<&str>, i64)], survivors: &[usize], duplicates: u64, conflicts: u64) {
        let rule = Dedup { key: vec!["id".into()], keep, on_conflict: OnConflict::Count };
        let field = Field::new("id", DataType::String, true);
        let ids: StringArray = records.iter().map(|r| r.0).collect();
        let batch = RecordBatch::try_from_iter([("id", Arc::new(ids) as _)]).unwrap();
        let hashes = KeyHasher::default().hash(&batch, &[(0, field)]);
        let found = super::survivors(&rule, &hashes, |i| records[i].1);
        assert_eq!((found.duplicates, found.conflicts), (duplicates, conflicts));
        assert_eq!((0..records.len()).filter(|i| found.stays(*i)).collect::<Vec<_>>(), survivors);
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
