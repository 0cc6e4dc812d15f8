//! Names of things that are not to be mixed up: runs, snapshots, digests.
//! Never knows what they point at.

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use std::{fmt, str::FromStr};

/// One attempt to change history. Shown as `r7`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct RunId(pub i64);

/// A DuckLake snapshot: one version of the whole warehouse. Not a run:
///
/// ```compile_fail
/// use restitch::id::{RunId, SnapshotId};
/// let _ = RunId(1) == SnapshotId(1);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SnapshotId(pub i64);

/// A SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Digest(pub [u8; 32]);

impl Digest {
    /// Returns the SHA-256 of `bytes`.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// Returns the first twelve hex digits, for people.
    pub fn short(&self) -> String {
        self.to_string()[..12].to_owned()
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let digit = |nibble: u8| b"0123456789abcdef"[usize::from(nibble)];
        let text: [u8; 64] = std::array::from_fn(|i| digit(if i % 2 == 0 { self.0[i / 2] >> 4 } else { self.0[i / 2] & 15 }));
        f.write_str(std::str::from_utf8(&text).unwrap_or_default())
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Digest {
    type Err = String;
    fn from_str(text: &str) -> Result<Digest, String> {
        let bad = || format!("{text:?} is not a SHA-256 (64 hex digits)");
        let (digits, []) = text.as_bytes().as_chunks::<2>() else { return Err(bad()) };
        let digit = |b: u8| (b as char).to_digit(16).ok_or_else(bad);
        let mut bytes = [0; 32];
        if digits.len() != bytes.len() {
            return Err(bad());
        }
        for (byte, [high, low]) in bytes.iter_mut().zip(digits) {
            *byte = (digit(*high)? << 4 | digit(*low)?) as u8;
        }
        Ok(Digest(bytes))
    }
}

impl From<Digest> for String {
    fn from(d: Digest) -> String {
        d.to_string()
    }
}

impl TryFrom<String> for Digest {
    type Error = String;
    fn try_from(text: String) -> Result<Digest, String> {
        text.parse()
    }
}

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}

impl FromStr for RunId {
    type Err = String;
    fn from_str(text: &str) -> Result<RunId, String> {
        let digits = text.strip_prefix('r').unwrap_or(text);
        match digits.parse() {
            Ok(n) if n > 0 => Ok(RunId(n)),
            _ => Err(format!("{text:?} is not a run (runs are named like r7; `restitch runs` lists them)")),
        }
    }
}

impl From<RunId> for String {
    fn from(r: RunId) -> String {
        r.to_string()
    }
}

impl TryFrom<String> for RunId {
    type Error = String;
    fn try_from(text: String) -> Result<RunId, String> {
        text.parse()
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
