// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads ELF cores of guests, as written by QEMU's `dump-guest-memory` and libvirt's
//! `virsh dump --memory-only`.
//!
//! A PT_LOAD segment is a piece of guest-physical memory from `p_paddr` on. Its place in the file,
//! `p_offset`, is not aligned to pages, because notes of any length come first. With `paging=true` (`-p`)
//! QEMU writes segments by virtual address, and a frame once per mapping; such dumps are refused. If the
//! guest's first CPU was not in long mode, for example in the firmware, the dump is 32-bit x86
//! (`get_dump_info` in QEMU's target/i386/arch_dump.c), with the same pages.

use super::{ImageError, PAGE, Run};
use object::elf::{self, FileHeader32, FileHeader64};
use object::read::elf::{FileHeader, ProgramHeader as _};
use object::{LittleEndian, ReadRef};
use std::path::Path;

/// Machines whose pages are 4096 bytes.
const MACHINES: [u16; 2] = [elf::EM_X86_64, elf::EM_386];

/// Offset, size and physical address of each PT_LOAD segment.
fn loads<'a, H, R>(data: R) -> object::read::Result<Vec<(u64, u64, u64)>>
where
    H: FileHeader<Endian = LittleEndian>,
    R: ReadRef<'a>,
{
    let segments = H::parse(data)?.program_headers(LittleEndian, data)?;
    let loads = segments.iter().filter(|s| s.p_type(LittleEndian) == elf::PT_LOAD);
    let words = loads.map(|s| (s.p_offset(LittleEndian), s.p_filesz(LittleEndian), s.p_paddr(LittleEndian)));
    Ok(words.map(|(at, size, address)| (at.into(), size.into(), address.into())).collect())
}

/// Whether the file has a core's header, in either byte order.
pub fn is_core<'a, R: ReadRef<'a>>(data: R) -> bool {
    data.read_bytes_at(0, 18).is_ok_and(|h| h.starts_with(&elf::ELFMAG) && (h[16] == 4 || h[17] == 4))
}

/// The runs of a core, by guest frame number.
pub fn layout<'a, R: ReadRef<'a>>(data: R, len: u64, path: &Path) -> Result<Vec<Run>, ImageError> {
    let bad = |why: String| ImageError::Elf { path: path.into(), why };
    let ident = data.read_bytes_at(0, 20).map_err(|()| bad("its header was cut off".into()))?;
    let little = ident[5] == elf::ELFDATA2LSB;
    let half = |at: usize| {
        let bytes = [ident[at], ident[at + 1]];
        if little { u16::from_le_bytes(bytes) } else { u16::from_be_bytes(bytes) }
    };
    let (kind, machine) = (half(16), half(18));
    if kind != elf::ET_CORE {
        return Err(bad(
            "no core: a dump of a guest's memory has e_type 4, and raw RAM that begins so comes in whole MB"
                .into(),
        ));
    }
    if !MACHINES.contains(&machine) || !little {
        return Err(bad(format!(
            "of {}: only x86 guests are counted, whose pages have 4096 bytes",
            name(machine)
        )));
    }
    let segments = match ident[4] {
        elf::ELFCLASS32 => loads::<FileHeader32<LittleEndian>, R>(data),
        _ => loads::<FileHeader64<LittleEndian>, R>(data),
    };
    let mut runs: Vec<Run> = Vec::new();
    let mut need = 0;
    for (at, size, address) in segments.map_err(|e| bad(e.to_string()))? {
        // Memory that a filter left out of the dump is a hole.
        if size == 0 {
            continue;
        }
        if address % PAGE as u64 != 0 || size % PAGE as u64 != 0 || address.checked_add(size).is_none() {
            return Err(bad(format!("its segment of {size} bytes at {address:#x} is no whole pages")));
        }
        let end =
            at.checked_add(size).ok_or_else(|| bad(format!("its segment at {address:#x} has no end")))?;
        need = need.max(end);
        runs.push(Run { gfn: address / PAGE as u64, bytes: at as usize..end as usize });
    }
    if need > len {
        return Err(ImageError::Truncated { path: path.into(), need, len });
    }
    if runs.is_empty() {
        return Err(bad("it has no memory in it (no PT_LOAD segment with bytes)".into()));
    }
    join(runs).map_err(|gfn| {
        bad(format!(
            "frame {gfn:#x} is in it twice: if it was dumped by virtual address, dump again without \
             -p (paging=true)"
        ))
    })
}

/// A machine's name and page sizes, for a message.
fn name(machine: u16) -> String {
    match machine {
        elf::EM_AARCH64 => "an AArch64 guest (pages of 4, 16 or 64 KB)".into(),
        elf::EM_PPC64 => "a POWER guest (pages of 4 or 64 KB)".into(),
        elf::EM_S390 => "an s390 guest".into(),
        elf::EM_RISCV => "a RISC-V guest".into(),
        elf::EM_LOONGARCH => "a LoongArch guest (pages of 16 KB)".into(),
        other => format!("machine {other}"),
    }
}

/// The runs in order, each as long as it goes on in the guest and in the file; a frame that is in two.
fn join(mut runs: Vec<Run>) -> Result<Vec<Run>, u64> {
    runs.sort_by_key(|r| r.gfn);
    let mut joined: Vec<Run> = Vec::new();
    for run in runs {
        match joined.last_mut() {
            Some(last) if run.gfn < last.gfn + last.pages() => return Err(run.gfn),
            Some(last) if run.gfn == last.gfn + last.pages() && run.bytes.start == last.bytes.end => {
                last.bytes.end = run.bytes.end;
            }
            _ => joined.push(run),
        }
    }
    Ok(joined)
}
