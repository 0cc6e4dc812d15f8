//! Distinct texts, each with a number: what grouping by a text needs, without an allocation and a copy for every group.
//! Never random: the same texts in the same order get the same numbers on every machine.

use crate::Hasher;
use std::{fmt, hash::Hasher as _, ops::Deref, rc::Rc};

/// Distinct texts, numbered from 0 in the order they came.
///
/// What belongs to a text goes into a `Vec` of your own, at the text's number:
///
/// ```
/// use restitch_guest::Texts;
///
/// let (mut customers, mut orders) = (Texts::default(), Vec::new());
/// let numbers = customers.numbers(["ann", "bob", "ann"].into_iter());
/// orders.resize(customers.len(), 0);
/// for number in numbers {
///     orders[number as usize] += 1;
/// }
/// let rows: Vec<(String, i32)> = customers.into_texts().map(|t| t.to_string()).zip(orders).collect();
/// assert_eq!(rows, [("ann".to_owned(), 2), ("bob".to_owned(), 1)]);
/// ```
#[derive(Clone, Default, Debug)]
pub struct Texts {
    /// One after the other.
    bytes: Vec<u8>,
    /// Where each of them ends.
    ends: Vec<u32>,
    /// Half of a text's hash and its number, from 1 on; 0 where none is. A power of two of them, at most three quarters in use.
    slots: Vec<(u32, u32)>,
}

/// The fewest slots that a table has.
const SLOTS_MIN: usize = 256;

impl Texts {
    /// Returns the number of `text`: its own, or the next one if it is new.
    ///
    /// # Panics
    /// Past 4 GiB of texts, which no guest's memory holds.
    #[inline]
    pub fn number(&mut self, text: &str) -> usize {
        let ends = Ends::of(text.as_bytes());
        self.find(text, ends, ends.hash(text.len())) as usize
    }

    /// Returns the numbers of texts, as [`number`](Texts::number) gives them. A whole column at once is much faster than one text after the
    /// other: what the next ones need comes from memory while one is compared.
    ///
    /// # Panics
    /// As [`number`](Texts::number).
    pub fn numbers<'t>(&mut self, texts: impl Iterator<Item = &'t str>) -> Vec<u32> {
        const BLOCK: usize = 64;
        let mut numbers = Vec::with_capacity(texts.size_hint().0);
        let mut block = [("", Ends::default(), 0); BLOCK];
        let mut texts = texts.fuse();
        loop {
            let mut count = 0;
            for (place, text) in block.iter_mut().zip(&mut texts) {
                let ends = Ends::of(text.as_bytes());
                *place = (text, ends, ends.hash(text.len()));
                count += 1;
            }
            self.touch(block[..count].iter().map(|(_, _, hash)| *hash));
            numbers.extend(block[..count].iter().map(|(text, ends, hash)| self.find(text, *ends, *hash)));
            if count < BLOCK {
                return numbers;
            }
        }
    }

    /// Looks at where texts of these hashes stand, if they are there.
    fn touch(&self, hashes: impl Iterator<Item = u32>) {
        let mask = self.slots.len().saturating_sub(1);
        let slots = hashes.map(|hash| self.slots.get(hash as usize & mask).map_or(0, |slot| slot.1));
        let ends = slots.map(|number| self.ends.get(number as usize).map_or(0, |end| *end as usize));
        std::hint::black_box(ends.map(|end| self.bytes.get(end).copied().unwrap_or(0)).fold(0u8, |all, byte| all ^ byte));
    }

    /// Returns the text of a number.
    ///
    /// # Panics
    /// There is none.
    pub fn text(&self, number: usize) -> &str {
        std::str::from_utf8(self.bytes(number)).expect("texts were added")
    }

    /// Returns how many there are.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the texts in the order of their numbers, as values of a column.
    pub fn into_texts(self) -> impl ExactSizeIterator<Item = Text> {
        let all = Rc::new(String::from_utf8(self.bytes).expect("texts were added"));
        let mut start = 0;
        self.ends.into_iter().map(move |end| {
            let text = Text { all: all.clone(), start, end };
            start = end;
            text
        })
    }

    #[inline]
    fn bytes(&self, number: usize) -> &[u8] {
        let start = if number == 0 { 0 } else { self.ends[number - 1] as usize };
        &self.bytes[start..self.ends[number] as usize]
    }

    #[inline]
    fn find(&mut self, text: &str, ends: Ends, hash: u32) -> u32 {
        if self.ends.len() * 4 >= self.slots.len() * 3 {
            self.grow();
        }
        let mask = self.slots.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let (other, number) = self.slots[at];
            if number == 0 {
                break;
            }
            if other == hash && self.is(number as usize - 1, text.as_bytes(), ends) {
                return number - 1;
            }
            at = (at + 1) & mask;
        }
        let short = |n: usize| u32::try_from(n).expect("less than 4 GiB of texts");
        append(&mut self.bytes, text.as_bytes());
        self.ends.push(short(self.bytes.len()));
        self.slots[at] = (hash, short(self.ends.len()));
        short(self.ends.len() - 1)
    }

    /// Returns whether the text of a number is this one.
    #[inline]
    fn is(&self, number: usize, text: &[u8], ends: Ends) -> bool {
        let own = self.bytes(number);
        own.len() == text.len() && Ends::of(own) == ends && (text.len() <= Ends::WHOLE || own == text)
    }

    /// A text's place follows from the half of its hash that is kept, so none is read again.
    #[cold]
    fn grow(&mut self) {
        let slots = (self.slots.len() * 2).max(SLOTS_MIN);
        let old = std::mem::replace(&mut self.slots, vec![(0, 0); slots]);
        for slot in old.into_iter().filter(|(_, number)| *number != 0) {
            let mut at = slot.0 as usize & (slots - 1);
            while self.slots[at].1 != 0 {
                at = (at + 1) & (slots - 1);
            }
            self.slots[at] = slot;
        }
    }
}

/// A text's first eight bytes and its last eight, or what there is of them: with its length they are all of a short text.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct Ends {
    first: u64,
    /// Of a longer text, all that stands between is mixed in.
    last: u64,
}

impl Ends {
    /// A text this long is known by its ends and its length.
    const WHOLE: usize = 16;

    #[inline]
    fn of(bytes: &[u8]) -> Ends {
        if let (Some(first), Some(last)) = (bytes.first_chunk::<8>(), bytes.last_chunk::<8>()) {
            let (first, mut last) = (u64::from_le_bytes(*first), u64::from_le_bytes(*last));
            if bytes.len() > Ends::WHOLE {
                let mut hasher = Hasher::default();
                hasher.write(&bytes[8..bytes.len() - 8]);
                last ^= hasher.finish();
            }
            return Ends { first, last };
        }
        if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
            return Ends { first: u32::from_le_bytes(*first).into(), last: u32::from_le_bytes(*last).into() };
        }
        Ends { first: bytes.iter().fold(0, |word, byte| word << 8 | u64::from(*byte)), last: 0 }
    }

    #[inline]
    fn hash(self, length: usize) -> u32 {
        let mut hasher = Hasher::default();
        hasher.write_u64(self.first ^ (length as u64) << 56);
        hasher.write_u64(self.last);
        hasher.finish() as u32
    }
}

/// Appends bytes. Most texts are short: a call that copies memory takes longer than copying them in words does.
#[inline]
pub(crate) fn append(to: &mut Vec<u8>, bytes: &[u8]) {
    const SHORT: usize = 32;
    if bytes.len() > SHORT {
        return to.extend_from_slice(bytes);
    }
    to.reserve(bytes.len());
    let (words, rest) = bytes.as_chunks::<8>();
    words.iter().for_each(|word| to.extend_from_slice(word));
    let (words, rest) = rest.as_chunks::<4>();
    words.iter().for_each(|word| to.extend_from_slice(word));
    for byte in rest {
        to.push(*byte);
    }
}

/// One of [`Texts`]: a value of a column that shares the bytes of all of them.
#[derive(Clone)]
pub struct Text {
    all: Rc<String>,
    start: u32,
    end: u32,
}

impl Deref for Text {
    type Target = str;

    #[inline]
    fn deref(&self) -> &str {
        &self.all[self.start as usize..self.end as usize]
    }
}

impl From<&str> for Text {
    /// # Panics
    /// Past 4 GiB, which no guest's memory holds.
    fn from(text: &str) -> Text {
        Text { all: Rc::new(text.into()), start: 0, end: u32::try_from(text.len()).expect("less than 4 GiB of text") }
    }
}

impl PartialEq for Text {
    fn eq(&self, other: &Text) -> bool {
        **self == **other
    }
}

impl Eq for Text {}

impl fmt::Debug for Text {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Debug::fmt(&**self, f)
    }
}

impl fmt::Display for Text {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(&**self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn every_text_keeps_its_number_while_the_table_grows() {
        let (mut texts, mut expected) = (Texts::default(), HashMap::new());
        for i in 0..100_000u64 {
            // Lengths around the eight bytes that are compared at once, and all texts more than once.
            let n = i.wrapping_mul(6_364_136_223_846_793_005) >> 50;
            let text = format!("{}{n}", "x".repeat(n as usize % 19));
            let next = expected.len();
            let number = *expected.entry(text.clone()).or_insert(next);
            assert_eq!(texts.number(&text), number);
            assert_eq!(texts.text(number), text);
        }
        assert_eq!(texts.len(), expected.len());
        let all: Vec<String> = texts.into_texts().map(|t| t.to_string()).collect();
        assert!(all.iter().enumerate().all(|(i, t)| expected[t] == i));
    }

    #[test]
    fn texts_that_differ_in_little_are_two() {
        let mut texts = Texts::default();
        assert!(texts.is_empty());
        let long = "1234567890123456";
        let all = [
            "",
            "\0",
            "a",
            "a\0",
            "12345678",
            "123456789",
            "12345678\0",
            "1234567",
            "12345679",
            "ä",
            "日本",
            long,
            "1234567890123457",
            "12345678_0123456",
        ];
        let longer = ["1", "12", "x1"].map(|s| format!("{long}{s}"));
        let all: Vec<&str> = all.into_iter().chain(longer.iter().map(String::as_str)).collect();
        for _ in 0..2 {
            let numbers: Vec<usize> = all.iter().map(|t| texts.number(t)).collect();
            assert_eq!(numbers, (0..all.len()).collect::<Vec<_>>());
        }
        assert_eq!(texts.clone().into_texts().collect::<Vec<_>>(), all.iter().copied().map(Text::from).collect::<Vec<_>>());
        assert_eq!(texts.numbers(all.iter().copied().rev()), (0..all.len() as u32).rev().collect::<Vec<_>>());
        assert_eq!(format!("{} {:?}", Text::from("a"), Text::from("b")), "a \"b\"");
    }
}
