// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a running Linux guest keeps its page descriptors, and how they are laid out: by its VMCOREINFO, the
//! text that the kernel writes for tools that read crash dumps (`kernel/vmcore_info.c`,
//! `Documentation/admin-guide/kdump/vmcoreinfo.rst`).

use std::collections::BTreeMap;

use super::Unseen;
use super::memory::{Memory, PAGE};

/// Where the kernel's image is mapped (`__START_KERNEL_map`).
const IMAGE: u64 = 0xffff_ffff_8000_0000;
/// An entry's frame, and its bits for a present entry and for a large page.
const FRAME: u64 = 0x000f_ffff_ffff_f000;
const PRESENT: u64 = 1;
const LARGE: u64 = 1 << 7;
/// `SECTION_HAS_MEM_MAP`, and the bits of `section_mem_map` that are flags; more than any version has.
const HAS_MEM_MAP: u64 = 1 << 1;
const SECTION_FLAGS: u64 = 0xfff;
/// More than any kernel's sections need.
const MOST_ROOTS: u64 = 1 << 16;
/// `SECTION_SIZE_BITS` of x86-64, which older kernels do not say.
const SECTION_BITS: u64 = 27;

/// A guest kernel's page descriptors: where they are, and their layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Kernel {
    /// Guest-physical address of the kernel's top-level page table, and the levels below and with that.
    root: u64,
    levels: u32,
    /// Guest-virtual address of the array of sections' arrays.
    sections: u64,
    roots: u64,
    section_bytes: u64,
    section_map: u64,
    section_bits: u64,
    pub(super) layout: Layout,
}

/// The layout of `struct page`: offsets in bytes, numbers of flags, and values of `page_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Layout {
    pub(super) size: u64,
    pub(super) flags: u64,
    pub(super) mapping: u64,
    pub(super) lru: u64,
    pub(super) private: u64,
    pub(super) mapcount: u64,
    pub(super) refcount: u64,
    pub(super) compound_head: u64,
    pub(super) lru_flag: u64,
    pub(super) swapbacked_flag: u64,
    pub(super) slab_flag: Option<u64>,
    pub(super) buddy: u32,
}

/// A guest-physical address, and the bytes of the page that maps that.
#[derive(Clone, Copy)]
struct Place {
    gpa: u64,
    page: u64,
}

/// The text's numbers by name.
struct Numbers(BTreeMap<String, i128>);

impl Numbers {
    /// Lines `SYMBOL(x)=HEX`, and `SIZE`, `OFFSET`, `LENGTH`, `NUMBER` with decimal values; a value that is
    /// no number is left out.
    fn of(text: &str) -> Numbers {
        let number = |line: &str| {
            let (name, value) = line.split_once('=')?;
            let hex = name.starts_with("SYMBOL(") || value.starts_with("0x");
            let digits = value.strip_prefix("0x").unwrap_or(value);
            Some((name.to_owned(), if hex { i128::from_str_radix(digits, 16) } else { digits.parse() }.ok()?))
        };
        Numbers(text.lines().filter_map(number).collect())
    }

    fn get(&self, name: &str) -> Result<u64, Unseen> {
        self.0.get(name).map(|n| *n as u64).ok_or_else(|| Unseen::Missing(name.into()))
    }
}

impl Kernel {
    /// Finds the kernel of a guest that has booted. The error says what is missing.
    pub(super) fn find(memory: Memory) -> Result<Kernel, Unseen> {
        let mut last = Err(Unseen::NoInfo);
        let search = memory.pages(|_, page| {
            if page.starts_with(b"OSRELEASE=") {
                let end = page.iter().position(|b| *b == 0).unwrap_or(page.len());
                last = Kernel::read(&String::from_utf8_lossy(&page[..end]));
            }
            last.is_err()
        });
        search.map_err(Unseen::Memory)?;
        last
    }

    fn read(text: &str) -> Result<Kernel, Unseen> {
        let n = Numbers::of(text);
        let image = |va: u64, base: u64| va.checked_sub(IMAGE).map(|at| at.wrapping_add(base));
        let base = n.get("NUMBER(phys_base)")?;
        let root = image(n.get("SYMBOL(swapper_pg_dir)")?, base).ok_or(Unseen::NoTable)?;
        let layout = Layout {
            size: n.get("SIZE(page)")?,
            flags: n.get("OFFSET(page.flags)")?,
            mapping: n.get("OFFSET(page.mapping)")?,
            lru: n.get("OFFSET(page.lru)")?,
            private: n.get("OFFSET(page.private)")?,
            mapcount: n.get("OFFSET(page._mapcount)")?,
            refcount: n.get("OFFSET(page._refcount)")?,
            compound_head: n.get("OFFSET(page.compound_head)")?,
            lru_flag: n.get("NUMBER(PG_lru)")?,
            swapbacked_flag: n.get("NUMBER(PG_swapbacked)")?,
            slab_flag: n.get("NUMBER(PG_slab)").ok().filter(|bit| *bit < 64),
            buddy: n.get("NUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)")? as u32,
        };
        let within =
            |offset: u64, bytes: u64| offset.checked_add(bytes).is_some_and(|end| end <= layout.size);
        let words = [layout.flags, layout.mapping, layout.private, layout.compound_head];
        let fits = words.into_iter().all(|at| within(at, 8)) && within(layout.lru, 16);
        let fits = fits && within(layout.mapcount, 4) && within(layout.refcount, 4);
        let bits = layout.lru_flag < 64 && layout.lru_flag > 0 && layout.swapbacked_flag < 64;
        if !fits || !bits || !(32..=256).contains(&layout.size) {
            return Err(Unseen::Wrong("page"));
        }
        // Types are bits up to 6.10 and a byte from 6.12 on; what lies between has other values.
        if layout.buddy != !0x80 && layout.buddy >> 24 != 0xf0 {
            return Err(Unseen::Types(layout.buddy));
        }
        let levels = if n.get("NUMBER(pgtable_l5_enabled)").unwrap_or(0) == 1 { 5 } else { 4 };
        let kernel = Kernel {
            root,
            levels,
            // The array's address, although the kernel has a pointer to the array (VMCOREINFO_SYMBOL_ARRAY,
            // SPARSEMEM_EXTREME).
            sections: n.get("SYMBOL(mem_section)")?,
            roots: n.get("LENGTH(mem_section)")?,
            section_bytes: n.get("SIZE(mem_section)")?,
            section_map: n.get("OFFSET(mem_section.section_mem_map)")?,
            section_bits: n.get("NUMBER(SECTION_SIZE_BITS)").unwrap_or(SECTION_BITS),
            layout,
        };
        // 2,048 roots hold the sections of 46 bits of physical addresses, and 32,768 those of 52.
        let sane = (1..=MOST_ROOTS).contains(&kernel.roots) && (16..=PAGE).contains(&kernel.section_bytes);
        if !sane || !(21..48).contains(&kernel.section_bits) {
            return Err(Unseen::Wrong("section"));
        }
        Ok(kernel)
    }

    /// The place behind one of the kernel's addresses.
    fn translate(&self, memory: Memory, gva: u64) -> Option<Place> {
        let mut table = self.root;
        for level in (1..=self.levels).rev() {
            let shift = 12 + 9 * (level - 1);
            let entry = memory.word((table & FRAME) + (gva >> shift & 511) * 8)?;
            if entry & PRESENT == 0 {
                return None;
            }
            if level == 1 || (level <= 3 && entry & LARGE != 0) {
                let within = (1 << shift) - 1;
                return Some(Place { gpa: entry & FRAME & !within | gva & within, page: within + 1 });
            }
            table = entry;
        }
        None
    }

    fn word(&self, memory: Memory, gva: u64) -> Option<u64> {
        memory.word(self.translate(memory, gva)?.gpa)
    }

    /// Calls `visit` with the descriptors of every frame of RAM: the first frame's number, where its
    /// descriptor is in the guest's memory, and as many descriptors as there are without a gap.
    pub(super) fn descriptors(&self, memory: Memory, mut visit: impl FnMut(u64, u64, &[u8])) {
        let per_root = (PAGE / self.section_bytes).max(1);
        let frames = 1 << (self.section_bits - 12);
        let mut buffer = Vec::new();
        for root in 0..self.roots {
            // Sections lie in one of the arrays; an array that is not there has none.
            let Some(array) = self.word(memory, self.sections.wrapping_add(root * 8)).filter(|at| *at != 0)
            else {
                continue;
            };
            for i in 0..per_root {
                let at = array.wrapping_add(i * self.section_bytes).wrapping_add(self.section_map);
                let Some(map) = self.word(memory, at).filter(|map| map & HAS_MEM_MAP != 0) else { continue };
                let first = (root * per_root + i) * frames;
                // Beyond the memory there are no sections, but a damaged array may say so.
                let begin = (map & !SECTION_FLAGS).wrapping_add(first.wrapping_mul(self.layout.size));
                if first.checked_mul(PAGE).is_none_or(|gpa| !memory.has(gpa)) {
                    continue;
                }
                let descriptors = (begin, frames * self.layout.size);
                self.section(memory, first, descriptors, &mut buffer, &mut visit);
            }
        }
    }

    /// One section's descriptors, `bytes` from `begin` on.
    fn section(
        &self,
        memory: Memory,
        first: u64,
        (begin, bytes): (u64, u64),
        buffer: &mut Vec<u8>,
        visit: &mut impl FnMut(u64, u64, &[u8]),
    ) {
        let mut at = 0;
        while at < bytes {
            // The kernel maps descriptors in pages of 2 MB or 4 KB; a page that is not there describes a
            // hole.
            let here = begin.wrapping_add(at);
            let place = self.translate(memory, here);
            let page = place.map_or(PAGE, |place| place.page);
            let n = (page - here % page).min(bytes - at);
            buffer.resize(n as usize, 0);
            let there = place.and_then(|place| memory.read(place.gpa, buffer));
            if there.is_some() {
                visit(first + at / self.layout.size, here, buffer);
            }
            at += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_are_hexadecimal_and_the_rest_is_decimal() {
        let n = Numbers::of(
            "OSRELEASE=6.1.0\nSYMBOL(mem_section)=ffffffff82b1\nSIZE(page)=64\nNUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)=-129\n",
        );
        assert_eq!(n.get("SYMBOL(mem_section)").unwrap(), 0xffff_ffff_82b1);
        assert_eq!(n.get("SIZE(page)").unwrap(), 64);
        assert_eq!(n.get("NUMBER(PAGE_BUDDY_MAPCOUNT_VALUE)").unwrap() as u32, !0x80);
        assert!(n.get("SIZE(zone)").is_err_and(|e| e.to_string().contains("SIZE(zone)")));
    }
}
