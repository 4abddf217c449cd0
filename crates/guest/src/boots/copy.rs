// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Copies files with holes, and computes their checksum on the way.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;
use xxhash_rust::xxh3::Xxh3;

/// Bytes copied at a time: they stay in a core's cache between the read, the checksum and the write.
const PIECE: usize = 256 << 10;

/// Copies what `from` holds to the same places of `to`, a new and empty file, which becomes as long. Returns
/// the length and a checksum of places and contents.
pub(crate) fn copy(from: &File, to: &File) -> io::Result<(u64, u64)> {
    let (mut sum, mut buffer, mut at) = (Xxh3::new(), vec![0; PIECE], 0);
    let length = from.metadata()?.len();
    to.set_len(length)?;
    while let Some((begin, end)) = extent(from, at)? {
        let mut place = begin;
        while place < end {
            let n = (end - place).min(PIECE as u64) as usize;
            let piece = &mut buffer[..n];
            from.read_exact_at(piece, place)?;
            // File systems differ in what they keep as a hole, and zeros are a hole as well.
            if piece.iter().any(|b| *b != 0) {
                sum.update(&place.to_le_bytes());
                sum.update(piece);
                to.write_all_at(piece, place)?;
            }
            // Pieces begin at multiples of their size, whatever the extents are.
            place += n as u64;
        }
        at = end;
    }
    Ok((length, sum.digest()))
}

/// The next part of the file that is no hole, from `at` on, in whole pieces.
fn extent(file: &File, at: u64) -> io::Result<Option<(u64, u64)>> {
    let length = file.metadata()?.len();
    if at >= length {
        return Ok(None);
    }
    let data = match seek(file, SeekFrom::Data(at)) {
        Ok(data) => data,
        Err(Errno::NXIO) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let hole = seek(file, SeekFrom::Hole(data)).map_err(io::Error::from)?;
    let piece = PIECE as u64;
    Ok(Some(((data / piece * piece).max(at), hole.next_multiple_of(piece).min(length))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_stay_and_any_change_changes_the_sum() {
        let file = || tempfile::tempfile().unwrap();
        let a = file();
        a.set_len(64 << 20).unwrap();
        for at in [0, 5 << 20, (5 << 20) + 4096, (64 << 20) - 1] {
            a.write_all_at(b"x", at).unwrap();
        }
        let b = file();
        let sum = copy(&a, &b).unwrap();
        assert_eq!(sum.0, 64 << 20);
        let (mut one, mut two) = (vec![0; 64 << 20], vec![0; 64 << 20]);
        a.read_exact_at(&mut one, 0).unwrap();
        b.read_exact_at(&mut two, 0).unwrap();
        assert!(one == two);
        use std::os::unix::fs::MetadataExt as _;
        assert!(b.metadata().unwrap().blocks() * 512 < 4 << 20, "holes stay");
        // The same contents in other extents have the same sum.
        b.write_all_at(&[0; 4096], 20 << 20).unwrap();
        assert_eq!(copy(&b, &file()).unwrap(), sum);
        for (byte, at) in [(b"y", 0), (b"x", 1 << 20)] {
            let c = file();
            copy(&a, &c).unwrap();
            c.write_all_at(byte, at).unwrap();
            assert_ne!(copy(&c, &file()).unwrap(), sum);
        }
        a.set_len(65 << 20).unwrap();
        assert_ne!(copy(&a, &file()).unwrap(), sum);
        assert_eq!(copy(&file(), &file()).unwrap().0, 0);
    }
}
