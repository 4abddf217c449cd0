// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A trace's bytes, unpacked as they are read: plain, gzip, xz, zstd, and the members of a zip archive one
//! after the other.
//!
//! The first bytes tell the format. Memory is bounded whatever the file says: nothing is unpacked but what is
//! read next, and dictionaries have a limit.

use crate::ImportError;
use flate2::bufread::{DeflateDecoder, MultiGzDecoder};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read, Seek as _, SeekFrom};
use std::path::Path;

const PIECE: usize = 1 << 18;
/// Most memory that xz may ask for: its highest preset takes 65 MiB (xz(1)).
const XZ_MEMORY: u64 = 256 << 20;
/// Longest distance that zstd may look back: 128 MiB, the limit of zstd(1) without `--long=31`.
const ZSTD_WINDOW: u32 = 27;

/// Bytes of a trace.
pub type Bytes = Box<dyn BufRead + Send>;

/// What unpacks, by the first bytes.
enum Packed {
    No,
    Gzip,
    Xz,
    Zstd,
    Zip,
    /// By a program that is not supported, with the command that unpacks.
    Other(&'static str, &'static str),
}

fn packed(first: &[u8]) -> Packed {
    const MARKS: [(&[u8], Packed); 6] = [
        (b"\x1f\x8b", Packed::Gzip),
        (b"\xfd7zXZ\0", Packed::Xz),
        (b"\x28\xb5\x2f\xfd", Packed::Zstd),
        (b"PK\x03\x04", Packed::Zip),
        (b"\x04\x22\x4d\x18", Packed::Other("lz4", "lz4 -d FILE")),
        (b"BZh", Packed::Other("bzip2", "bunzip2 -k FILE")),
    ];
    MARKS.into_iter().find(|(mark, _)| first.starts_with(mark)).map_or(Packed::No, |(_, packed)| packed)
}

/// Opens a trace; `-` is standard input.
pub fn open(path: &Path) -> Result<Bytes, ImportError> {
    let error = |source| ImportError::Read { path: path.into(), source };
    if path == Path::new("-") {
        return unpack(path, Box::new(io::stdin()), None);
    }
    // Before the file is opened, as opening a pipe waits for its writer.
    if !path.metadata().map_err(error)?.is_file() {
        let problem = "no regular file: import a file, or `-` for standard input";
        return Err(error(io::Error::new(io::ErrorKind::InvalidInput, problem)));
    }
    let file = File::open(path).map_err(error)?;
    let again = file.try_clone().map_err(error)?;
    unpack(path, Box::new(file), Some(again))
}

/// Unpacks what is read from `read`. `file`: the same as a file, if it is one.
fn unpack(path: &Path, mut read: Box<dyn Read + Send>, file: Option<File>) -> Result<Bytes, ImportError> {
    let error = |source| ImportError::Read { path: path.into(), source };
    let mut first = Vec::new();
    read.by_ref().take(8).read_to_end(&mut first).map_err(error)?;
    let kind = packed(&first);
    let whole = BufReader::with_capacity(PIECE, Cursor::new(first).chain(read));
    Ok(match kind {
        Packed::No => Box::new(whole),
        Packed::Gzip => Box::new(BufReader::with_capacity(PIECE, MultiGzDecoder::new(whole))),
        Packed::Xz => {
            let stream =
                liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, liblzma::stream::CONCATENATED)
                    .map_err(|e| error(e.into()))?;
            Box::new(BufReader::with_capacity(PIECE, liblzma::bufread::XzDecoder::new_stream(whole, stream)))
        }
        Packed::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(whole).map_err(error)?;
            decoder.window_log_max(ZSTD_WINDOW).map_err(error)?;
            Box::new(BufReader::with_capacity(PIECE, decoder))
        }
        Packed::Zip => {
            let Some(file) = file else {
                let problem = "a zip archive is to be a file: its directory is at its end";
                return Err(error(io::Error::new(io::ErrorKind::InvalidInput, problem)));
            };
            Box::new(BufReader::with_capacity(PIECE, Members::new(file).map_err(error)?))
        }
        Packed::Other(by, remedy) => return Err(ImportError::Packed { path: path.into(), by, remedy }),
    })
}

/// The members of a zip archive in the order of its directory.
struct Members {
    file: File,
    /// Where each begins, its packed and plain length, its checksum and whether it is deflated; the last
    /// comes first.
    left: Vec<(u64, u64, u64, u32, bool)>,
    now: Option<(Box<dyn Read + Send>, flate2::Crc, u64, u32)>,
}

impl Members {
    fn new(file: File) -> io::Result<Members> {
        let mut archive = zip::ZipArchive::new(file.try_clone()?)?;
        let mut left = Vec::new();
        for i in (0..archive.len()).rev() {
            let member = archive.by_index_raw(i)?;
            let deflated = match member.compression() {
                zip::CompressionMethod::Stored => false,
                zip::CompressionMethod::Deflated => true,
                other => {
                    let problem = format!("member {} is packed by {other}, not by deflate", member.name());
                    return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
                }
            };
            if member.encrypted() {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the archive is encrypted"));
            }
            left.push((
                member.data_start(),
                member.compressed_size(),
                member.size(),
                member.crc32(),
                deflated,
            ));
        }
        Ok(Members { file, left, now: None })
    }
}

impl Read for Members {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            if self.now.is_none() {
                let Some((start, packed, plain, crc, deflated)) = self.left.pop() else { return Ok(0) };
                // Members are read one after the other, so one position of the file is enough.
                self.file.seek(SeekFrom::Start(start))?;
                let bytes = BufReader::with_capacity(PIECE, self.file.try_clone()?.take(packed));
                let read: Box<dyn Read + Send> =
                    if deflated { Box::new(DeflateDecoder::new(bytes)) } else { Box::new(bytes) };
                self.now = Some((read, flate2::Crc::new(), plain, crc));
            }
            let Some((read, sum, plain, crc)) = &mut self.now else { continue };
            let n = read.read(buffer)?;
            if n > 0 || buffer.is_empty() {
                sum.update(&buffer[..n]);
                return Ok(n);
            }
            // The checksum's length counts modulo 2^32.
            if (sum.sum(), sum.amount()) != (*crc, *plain as u32) {
                let problem = "a member of the archive does not have its checksum";
                return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
            }
            self.now = None;
        }
    }
}
