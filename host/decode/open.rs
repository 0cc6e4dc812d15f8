//! Opening a landed file: its compression seen from the content, its lines, its identity.
//! Never believes a file's name, and never takes a cut compressed stream for its end.
//! Where files enter `decode`; JSON Lines and CSV read lines from here, Parquet a file that seeks.

use super::DecodeError;
use crate::id::Digest;
use sha2::{Digest as _, Sha256};
use std::{
    cell::{Cell, RefCell},
    fmt,
    fs::File,
    io::{self, BufRead, BufReader, Cursor, Read, Seek, Write},
    path::{Path, PathBuf},
    rc::Rc,
};

pub(super) const BUFFER_BYTES: usize = 256 << 10;
const HEAD_BYTES: usize = 4;

/// How a file is packed, as its first bytes say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Compression {
    /// Not at all.
    Plain,
    /// gzip, of one member or several.
    Gzip,
    /// Zstandard, of one frame or several.
    Zstd,
}

impl Compression {
    /// Returns what a file that starts with `head` is packed with.
    pub fn of(head: &[u8]) -> Compression {
        match head {
            [0x1f, 0x8b, ..] => Compression::Gzip,
            // A frame of data, or one to be skipped, as parallel writers put first.
            [0x28, 0xb5, 0x2f, 0xfd, ..] | [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Compression::Zstd,
            _ => Compression::Plain,
        }
    }
}

impl fmt::Display for Compression {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(match self {
            Compression::Plain => "plain",
            Compression::Gzip => "gzip",
            Compression::Zstd => "zstd",
        })
    }
}

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

/// Returns what `file` is known by, in one pass over it.
///
/// # Errors
/// [`DecodeError::Open`], [`DecodeError::Read`], and [`DecodeError::Corrupt`] if it is compressed and damaged or cut.
pub fn identify(file: &Path) -> Result<FileIdentity, DecodeError> {
    // Decompressors take a header as soon as they are made, so hashing starts before that.
    let tally = Rc::new(Tally { hasher: RefCell::new(Some(Sha256::new())), ..Tally::default() });
    let mut opened = Opened::with_tally(file, tally, BUFFER_BYTES)?;
    if opened.compression == Compression::Plain {
        *opened.tally.hasher.borrow_mut() = None;
    }
    let mut content = Sha256::new();
    loop {
        let bytes = match opened.reader.fill_buf() {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(opened.error(e)),
        };
        if bytes.is_empty() {
            break;
        }
        content.update(bytes);
        let n = bytes.len();
        opened.reader.consume(n);
    }
    let content_digest = Digest(content.finalize().into());
    let raw = opened.tally.hasher.borrow_mut().take();
    let digest = raw.map_or(content_digest, |hasher| Digest(hasher.finalize().into()));
    Ok(FileIdentity { digest, size: opened.position(), content_digest })
}

/// Fails if `path` is no file with bytes of its own. A pipe can be read once only, and opening one may wait for ever.
fn regular(path: &Path) -> Result<(), DecodeError> {
    let kind = std::fs::metadata(path).map_err(|source| DecodeError::Open { file: path.to_owned(), source })?.file_type();
    let what = match () {
        () if kind.is_file() => return Ok(()),
        () if kind.is_dir() => "a folder",
        () => "a pipe, a socket or a device",
    };
    Err(DecodeError::NotAFile { file: path.to_owned(), what })
}

/// Bytes taken from the file itself, counted below the decompressor.
#[derive(Default)]
struct Tally {
    position: Cell<u64>,
    failed: Cell<bool>,
    hasher: RefCell<Option<Sha256>>,
}

struct Raw {
    inner: BufReader<io::Chain<Cursor<Vec<u8>>, File>>,
    tally: Rc<Tally>,
}

impl BufRead for Raw {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let tally = &self.tally;
        self.inner.fill_buf().inspect_err(|e| tally.failed.set(e.kind() != io::ErrorKind::Interrupted))
    }

    fn consume(&mut self, n: usize) {
        if let Some(hasher) = self.tally.hasher.borrow_mut().as_mut() {
            hasher.update(&self.inner.buffer()[..n]);
        }
        self.tally.position.set(self.tally.position.get() + n as u64);
        self.inner.consume(n);
    }
}

impl Read for Raw {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let available = self.fill_buf()?;
        let n = available.len().min(out.len());
        out[..n].copy_from_slice(&available[..n]);
        self.consume(n);
        Ok(n)
    }
}

/// How a line that was read ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LineEnd {
    /// With a line feed, which is among the bytes.
    Feed,
    /// With the file.
    File,
    /// Not yet: it is longer than was allowed.
    TooLong,
}

/// A file being read, unpacked.
pub(super) struct Opened {
    path: PathBuf,
    compression: Compression,
    tally: Rc<Tally>,
    reader: Box<dyn BufRead>,
}

impl Opened {
    /// Opens `path` and looks at its first bytes.
    pub(super) fn new(path: &Path, buffer_bytes: usize) -> Result<Opened, DecodeError> {
        Opened::with_tally(path, Rc::new(Tally::default()), buffer_bytes)
    }

    fn with_tally(path: &Path, tally: Rc<Tally>, buffer_bytes: usize) -> Result<Opened, DecodeError> {
        regular(path)?;
        let open_error = |source| DecodeError::Open { file: path.to_owned(), source };
        let mut file = File::open(path).map_err(open_error)?;
        let mut head = Vec::with_capacity(HEAD_BYTES);
        (&mut file).take(HEAD_BYTES as u64).read_to_end(&mut head).map_err(open_error)?;
        let compression = Compression::of(&head);
        let raw = Raw { inner: BufReader::with_capacity(buffer_bytes, Cursor::new(head).chain(file)), tally: tally.clone() };
        let reader: Box<dyn BufRead> = match compression {
            Compression::Plain => Box::new(raw),
            Compression::Gzip => Box::new(BufReader::with_capacity(buffer_bytes, flate2::bufread::MultiGzDecoder::new(raw))),
            Compression::Zstd => {
                let unpacked = zstd::stream::read::Decoder::with_buffer(raw).map_err(open_error)?;
                Box::new(BufReader::with_capacity(buffer_bytes, unpacked))
            }
        };
        Ok(Opened { path: path.to_owned(), compression, tally, reader })
    }

    /// Bytes of the file itself that have been used.
    pub(super) fn position(&self) -> u64 {
        self.tally.position.get()
    }

    /// Appends one line to `into`, with its line feed, but no more than about `bytes_max` of it.
    pub(super) fn read_line(&mut self, into: &mut Vec<u8>, bytes_max: usize) -> Result<LineEnd, DecodeError> {
        let limit = bytes_max as u64 + 1;
        match (&mut self.reader).take(limit).read_until(b'\n', into) {
            Err(e) => Err(self.error(e)),
            Ok(n) if n > 0 && into.last() == Some(&b'\n') => Ok(LineEnd::Feed),
            Ok(n) if n as u64 == limit => Ok(LineEnd::TooLong),
            Ok(_) => Ok(LineEnd::File),
        }
    }

    /// Passes over what is left of a line, and returns how much that was, the line feed included.
    pub(super) fn skip_line(&mut self) -> Result<u64, DecodeError> {
        self.reader.skip_until(b'\n').map(|n| n as u64).map_err(|e| self.error(e))
    }

    /// Takes a UTF-8 byte order mark off the front, and returns its length.
    pub(super) fn skip_mark(&self, first_line: &mut Vec<u8>, start: usize) -> u64 {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        if !first_line[start..].starts_with(MARK) {
            return 0;
        }
        first_line.drain(start..start + MARK.len());
        MARK.len() as u64
    }

    /// Returns the error of a quote that swallows the rest of a file that is too long to be one record.
    pub(super) fn runaway(&self, line: i64) -> DecodeError {
        DecodeError::Unclosed { file: self.path.clone(), line }
    }

    /// Turns an I/O error into one that tells damage from a disk that fails.
    pub(super) fn error(&self, source: io::Error) -> DecodeError {
        let file = self.path.clone();
        if self.compression == Compression::Plain || self.tally.failed.get() {
            return DecodeError::Read { file, source };
        }
        DecodeError::Corrupt { file, compression: self.compression, byte: self.position(), source }
    }

    /// Returns a file that seeks and is not compressed: `path` itself, or its content in a file without a name.
    pub(super) fn seekable(mut self) -> Result<File, DecodeError> {
        if self.compression == Compression::Plain {
            return File::open(&self.path).map_err(|source| DecodeError::Open { file: self.path.clone(), source });
        }
        let scratch_error = |source| DecodeError::Scratch { file: self.path.clone(), source };
        let mut scratch = tempfile::tempfile().map_err(scratch_error)?;
        loop {
            let n = match self.reader.fill_buf() {
                Ok([]) => break,
                Ok(bytes) => {
                    scratch.write_all(bytes).map_err(|source| DecodeError::Scratch { file: self.path.clone(), source })?;
                    bytes.len()
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(self.error(e)),
            };
            self.reader.consume(n);
        }
        scratch.rewind().map_err(|source| DecodeError::Scratch { file: self.path.clone(), source })?;
        Ok(scratch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

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
        identify(&path)
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
}
