//! What a landed file is known by, and whether it is still the one that was looked at.
//! Never believes a name or a time of its own accord: what may have changed is hashed again.
//! The first look of an ingest at its files, and the last.

use super::{DecodeError, open::Opened};
use crate::{
    id::Digest,
    time::{Clock, IngestTime, SECOND_US},
};
use sha2::{Digest as _, Sha256};
use std::{
    fs::{self, Metadata},
    path::Path,
};

/// What a file is known by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FileIdentity {
    /// SHA-256 of the file's bytes.
    pub digest: Digest,
    /// Its bytes, as they are on disk.
    pub size: u64,
    /// SHA-256 of the unpacked bytes: the same for a file and for the same file compressed.
    pub content_digest: Digest,
}

/// A file that was looked at.
#[derive(Clone, Copy, Debug)]
pub struct Identified {
    /// What it is known by.
    pub identity: FileIdentity,
    stamp: Option<Stamp>,
    /// Before it was looked at.
    at: IngestTime,
}

/// What the system notes of every change of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Stamp {
    file: (u64, u64),
    size: u64,
    changed_us: i64,
}

/// A change in the same tick of a file system's clock leaves no other time than the one before it. The coarsest of those in use count in
/// two seconds.
const TICK_US: i64 = 2 * SECOND_US;

impl Stamp {
    #[cfg(unix)]
    fn of(metadata: &Metadata) -> Option<Stamp> {
        use std::os::unix::fs::MetadataExt;
        let changed_us = metadata.ctime().checked_mul(SECOND_US)?.checked_add(metadata.ctime_nsec() / 1000)?;
        Some(Stamp { file: (metadata.dev(), metadata.ino()), size: metadata.size(), changed_us })
    }

    /// Elsewhere there is no time that nobody can set.
    #[cfg(not(unix))]
    fn of(_: &Metadata) -> Option<Stamp> {
        None
    }
}

impl Identified {
    /// Returns whether `file` is what it was: by the system's own notes if it had been left alone for a while before the first look, else
    /// by its bytes.
    ///
    /// # Errors
    /// See [`identify`].
    pub fn is_unchanged(&self, file: &Path) -> Result<bool, DecodeError> {
        let settled = self.stamp.filter(|stamp| stamp.changed_us.saturating_add(TICK_US) < self.at.0);
        if settled.is_some() && settled == stamp_of(file)? {
            return Ok(true);
        }
        Ok(identify(file)?.identity == self.identity)
    }
}

fn stamp_of(file: &Path) -> Result<Option<Stamp>, DecodeError> {
    let metadata = fs::metadata(file).map_err(|source| DecodeError::Open { file: file.to_owned(), source })?;
    Ok(Stamp::of(&metadata))
}

/// Returns what `file` is known by, in one pass over it.
///
/// # Errors
/// [`DecodeError::Open`], [`DecodeError::Read`], and [`DecodeError::Corrupt`] if it is compressed and damaged or cut.
pub fn identify(file: &Path) -> Result<Identified, DecodeError> {
    let (at, stamp) = (Clock::System.now(), stamp_of(file)?);
    let mut opened = Opened::hashed(file)?;
    let mut content = Sha256::new();
    while opened.next_bytes(&mut |bytes| content.update(bytes))? > 0 {}
    let content_digest = Digest(content.finalize().into());
    let digest = opened.packed_hash().map_or(content_digest, |hasher| Digest(hasher.finalize().into()));
    Ok(Identified { identity: FileIdentity { digest, size: opened.position(), content_digest }, stamp, at })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn gzip(bytes: &[u8]) -> Vec<u8> {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        packer.write_all(bytes).unwrap();
        packer.finish().unwrap()
    }

    fn zstd(bytes: &[u8]) -> Vec<u8> {
        zstd::stream::encode_all(bytes, 1).unwrap()
    }

    fn identity(bytes: &[u8]) -> Result<FileIdentity, DecodeError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, bytes).unwrap();
        identify(&path).map(|found| found.identity)
    }

    #[test]
    fn a_file_and_the_same_file_compressed_have_the_same_content() {
        let text = "a line\n".repeat(100_000).into_bytes();
        let plain = identity(&text).unwrap();
        assert_eq!((plain.digest, plain.content_digest, plain.size), (Digest::of(&text), Digest::of(&text), text.len() as u64));
        let two_members = [gzip(&text[..1000]), gzip(&text[1000..])].concat();
        let skipped_first = [&b"\x50\x2a\x4d\x18\x02\0\0\0hi"[..], &zstd(&text)].concat();
        let two_frames = [zstd(&text[..1000]), zstd(&text[1000..])].concat();
        for packed in [gzip(&text), two_members, zstd(&text), two_frames, skipped_first] {
            let found = identity(&packed).unwrap();
            assert_eq!((found.digest, found.content_digest), (Digest::of(&packed), Digest::of(&text)));
            assert_eq!(found.size, packed.len() as u64);
        }
        assert_eq!(identity(b"").unwrap().content_digest, Digest::of(b""));
    }

    #[test]
    fn a_compressed_file_cut_anywhere_is_corrupt() {
        let text: Vec<u8> = (0..500u32).flat_map(|i| (i.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
        for (packed, shortest) in [(gzip(&text), 2), (zstd(&text), 4)] {
            for cut in (shortest..packed.len()).step_by(7).chain(packed.len() - 12..packed.len()) {
                let e = identity(&packed[..cut]).unwrap_err();
                assert!(matches!(e, DecodeError::Corrupt { byte, .. } if byte <= cut as u64), "{cut}: {e:?}");
            }
            let whole = [&packed[..], b"garbage after the end"].concat();
            assert!(matches!(identity(&whole), Err(DecodeError::Corrupt { .. })));
            let mut turned = packed.clone();
            let last = turned.len() - 6;
            turned[last] ^= 1;
            if packed[0] == 0x1f {
                assert!(matches!(identity(&turned), Err(DecodeError::Corrupt { .. })));
            }
        }
        assert!(matches!(identify(Path::new("/nowhere/at/all")), Err(DecodeError::Open { .. })));
    }

    #[test]
    fn a_file_that_was_left_alone_is_not_read_again_and_any_other_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        fs::write(&path, "one\n").unwrap();
        let fresh = identify(&path).unwrap();
        assert!(fresh.is_unchanged(&path).unwrap());
        // As if it had been looked at long after it was written.
        let later = |seen: Identified| Identified { at: IngestTime(seen.at.0 + 2 * TICK_US), ..seen };
        let other = FileIdentity { content_digest: Digest::of(b"other"), ..fresh.identity };
        assert!(later(Identified { identity: other, ..fresh }).is_unchanged(&path).unwrap(), "it was read, though nothing touched it");
        assert!(!Identified { identity: other, ..fresh }.is_unchanged(&path).unwrap(), "it may have changed since: its bytes count");
        // Another file of the same size, with the same times as far as a user can set them.
        let modified = fs::metadata(&path).unwrap().modified().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        fs::write(&path, "two\n").unwrap();
        fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
        assert!(!later(fresh).is_unchanged(&path).unwrap());
        fs::rename(&path, folder.path().join("kept")).unwrap();
        assert!(matches!(later(fresh).is_unchanged(&path), Err(DecodeError::Open { .. })));
    }
}
