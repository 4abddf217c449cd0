// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the host kernel's physical memory through /proc/kcore, an ELF core. Its segments have the place of
//! the kernel's direct map of each range of memory in the file.

use crate::vm::Unavailable;
use anyhow::{Context, Result, ensure};
use object::elf::{FileHeader64, PT_LOAD};
use object::read::elf::{FileHeader, ProgramHeader};
use object::{LittleEndian, read::ReadRef};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Room for the file's headers: 56 bytes for each range of memory.
const HEADERS: usize = 1 << 16;
const DIRECT_MAP: std::ops::Range<u64> = 0xffff_8880_0000_0000..0xffff_c900_0000_0000;

/// Physical memory.
#[derive(Debug)]
pub struct Kcore {
    file: File,
    /// Physical address, length, place in the file.
    segments: Vec<(u64, u64, u64)>,
}

/// The segments of the direct map.
fn segments<'a, R: ReadRef<'a>>(data: R) -> Result<Vec<(u64, u64, u64)>> {
    let e = LittleEndian;
    let header = FileHeader64::<LittleEndian>::parse(data).context("its ELF header")?;
    let all = header.program_headers(e, data).context("its program headers")?;
    let direct = |p: &&object::elf::ProgramHeader64<LittleEndian>| {
        p.p_type(e) == PT_LOAD && DIRECT_MAP.contains(&p.p_vaddr(e))
    };
    Ok(all.iter().filter(direct).map(|p| (p.p_paddr(e), p.p_memsz(e), p.p_offset(e))).collect())
}

impl Kcore {
    /// Opens /proc/kcore, which needs root.
    pub fn open() -> Result<Kcore> {
        let file =
            File::open("/proc/kcore").map_err(|e| Unavailable(format!("cannot open /proc/kcore: {e}")))?;
        let mut headers = vec![0; HEADERS];
        let n = file.read_at(&mut headers, 0).context("/proc/kcore")?;
        headers.truncate(n);
        let segments = segments(&headers[..]).context("/proc/kcore")?;
        ensure!(!segments.is_empty(), Unavailable("/proc/kcore has no direct map".into()));
        Ok(Kcore { file, segments })
    }

    /// Reads `words` words at a physical address.
    pub fn read(&self, pa: u64, words: usize) -> Result<Vec<u64>> {
        let inside = |s: &&(u64, u64, u64)| pa >= s.0 && pa + 8 * words as u64 <= s.0 + s.1;
        let &(start, _, offset) =
            self.segments.iter().find(inside).with_context(|| format!("no memory at {pa:#x}"))?;
        let mut bytes = vec![0; 8 * words];
        self.file
            .read_exact_at(&mut bytes, offset + (pa - start))
            .with_context(|| format!("memory at {pa:#x}"))?;
        Ok(bytes.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes"))).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_of_the_direct_map_are_found() {
        let mut elf = Vec::new();
        elf.extend_from_slice(b"\x7fELF\x02\x01\x01");
        elf.resize(16, 0);
        elf.extend_from_slice(&[4, 0, 62, 0, 1, 0, 0, 0]);
        for word in [0u64, 64, 0] {
            elf.extend_from_slice(&word.to_le_bytes());
        }
        elf.extend_from_slice(&[0; 4]);
        for half in [64u16, 56, 2, 0, 0, 0] {
            elf.extend_from_slice(&half.to_le_bytes());
        }
        for (vaddr, paddr) in [(0xffff_ffff_8100_0000u64, 0x100_0000u64), (0xffff_8880_0010_0000, 0x10_0000)]
        {
            elf.extend_from_slice(&[1, 0, 0, 0, 7, 0, 0, 0]);
            for word in [0x3000u64, vaddr, paddr, 0x1000, 0x1000, 0x1000] {
                elf.extend_from_slice(&word.to_le_bytes());
            }
        }
        assert_eq!(segments(&elf[..]).unwrap(), [(0x10_0000, 0x1000, 0x3000)]);
    }
}
