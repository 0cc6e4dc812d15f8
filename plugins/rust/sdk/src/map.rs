//! A hash map whose behaviour depends on nothing but what is put in.
//! Never random, and never a promise about order: sort before you return rows.

use std::{collections::HashMap, hash::BuildHasherDefault};

/// A hash map with [`Hasher`]: the same keys in the same order give the same map on every machine.
pub type Map<K, V> = HashMap<K, V, BuildHasherDefault<Hasher>>;

/// A fast hash with a fixed seed: a transform has no randomness to be seeded from, and a feed that was
/// made to collide runs into `limits.time`.
#[derive(Clone, Copy, Default, Debug)]
pub struct Hasher(u64);

const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

impl std::hash::Hasher for Hasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.write_u64(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            // Byte by byte: a call that copies memory takes longer.
            let word = rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
            self.write_u64(word ^ (rest.len() as u64) << 56);
        }
    }

    #[inline]
    fn write_u8(&mut self, n: u8) {
        self.write_u64(n.into());
    }

    #[inline]
    fn write_u32(&mut self, n: u32) {
        self.write_u64(n.into());
    }

    #[inline]
    fn write_u64(&mut self, n: u64) {
        self.0 = (self.0 ^ n).wrapping_mul(MULTIPLIER).rotate_left(29);
    }

    #[inline]
    fn write_usize(&mut self, n: usize) {
        self.write_u64(n as u64);
    }

    /// The map takes its bucket from the low bits and its tag from the high ones: both have to depend on every bit.
    #[inline]
    fn finish(&self) -> u64 {
        let h = (self.0 ^ self.0 >> 32).wrapping_mul(MULTIPLIER);
        h ^ h >> 29
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::HashSet, hash::Hash};

    fn hash(value: impl Hash) -> u64 {
        let mut hasher = Hasher::default();
        value.hash(&mut hasher);
        std::hash::Hasher::finish(&hasher)
    }

    #[test]
    fn hashes_are_spread_and_repeat() {
        let texts: HashSet<u64> = (0..100_000).map(|i| hash(format!("customer-{i}"))).collect();
        assert_eq!(texts.len(), 100_000);
        let low: HashSet<u64> = (0..65_536i64).map(|i| hash(i) & 0xffff).collect();
        assert!(low.len() > 30_000, "{} of 65536 buckets", low.len());
        assert_eq!(hash("a"), hash(String::from("a")));
        assert_ne!(hash("a"), hash("a\0"));
    }
}
