//! Opening a landed file: its compression seen from the content, its lines.
//! Never believes a file's name, and never takes a cut compressed stream for its end.
//! Where files enter `decode`; JSON Lines and CSV read lines from here, Parquet a file that seeks.

use super::DecodeError;
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

    /// Opens `path` to be read once and hashed on the way.
    pub(super) fn hashed(path: &Path) -> Result<Opened, DecodeError> {
        // Decompressors take a header as soon as they are made, so hashing starts before that.
        let tally = Rc::new(Tally { hasher: RefCell::new(Some(Sha256::new())), ..Tally::default() });
        let opened = Opened::with_tally(path, tally, BUFFER_BYTES)?;
        if opened.compression == Compression::Plain {
            *opened.tally.hasher.borrow_mut() = None;
        }
        Ok(opened)
    }

    /// Returns the next bytes of the content, which are used with this; none at its end.
    pub(super) fn next_bytes(&mut self, each: &mut dyn FnMut(&[u8])) -> Result<usize, DecodeError> {
        let n = loop {
            match self.reader.fill_buf() {
                Ok(bytes) => {
                    each(bytes);
                    break bytes.len();
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(self.error(e)),
            }
        };
        self.reader.consume(n);
        Ok(n)
    }

    /// Returns the hash of the file's own bytes, where these are not its content.
    pub(super) fn packed_hash(&mut self) -> Option<Sha256> {
        self.tally.hasher.borrow_mut().take()
    }

    /// Bytes of the file itself that have been used.
    pub(super) fn position(&self) -> u64 {
        self.tally.position.get()
    }

    /// Appends one line to `into`, with its line feed, but no more than about `bytes_max` of it.
    pub(super) fn read_line(&mut self, into: &mut Vec<u8>, bytes_max: usize) -> Result<LineEnd, DecodeError> {
        let mut room = bytes_max + 1;
        loop {
            let bytes = match self.reader.fill_buf() {
                Ok(bytes) => bytes,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
                Err(e) => return Err(self.error(e)),
            };
            let bytes = &bytes[..bytes.len().min(room)];
            let feed = memchr::memchr(b'\n', bytes);
            let used = feed.map_or(bytes.len(), |at| at + 1);
            into.extend_from_slice(&bytes[..used]);
            self.reader.consume(used);
            room -= used;
            match feed {
                Some(_) => return Ok(LineEnd::Feed),
                None if room == 0 => return Ok(LineEnd::TooLong),
                None if used == 0 => return Ok(LineEnd::File),
                None => {}
            }
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
        let path = self.path.clone();
        let scratch_error = |source| DecodeError::Scratch { file: path.clone(), source };
        let mut scratch = tempfile::tempfile().map_err(scratch_error)?;
        loop {
            let mut written = Ok(());
            let bytes = self.next_bytes(&mut |bytes| written = scratch.write_all(bytes))?;
            written.map_err(scratch_error)?;
            if bytes == 0 {
                break;
            }
        }
        scratch.rewind().map_err(scratch_error)?;
        Ok(scratch)
    }
}
