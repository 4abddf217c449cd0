// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page-table formats as data. One walker ([`walk`](fn@crate::walk)) serves all of them.
//!
//! Sources: Intel SDM vol. 3A chapter 4 (32-bit, PAE, 4-level and 5-level paging); AMD
//! APM vol. 2 section 15.25 (nested paging uses the same formats). A level is
//! numbered by what its entries map when they are leaves: 1 = 4 KB pages,
//! 2 = 2 MB pages, or 4 MB pages in 32-bit paging.

/// One level of a format.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// Lowest address bit that selects the entry.
    pub shift: u32,
    /// Those address bits that select the entry, shifted down.
    pub mask: u64,
    /// May an entry of this level map a page itself (PS bit)?
    pub large: bool,
    /// The same shift and mask for the entry's offset in bytes.
    offset_shift: u32,
    offset_mask: u64,
}

/// The most levels a format may have.
pub const MOST_LEVELS: usize = 5;

/// A page-table format.
#[derive(Debug)]
pub struct Format {
    /// Name as in the manuals.
    pub name: &'static str,
    /// Levels from the leaf (level 1) up to the root, and none above it.
    levels: [Level; MOST_LEVELS],
    depth: u8,
    /// log2 of the bytes of an entry: 3, or 2 in 32-bit paging.
    pub entry_shift: u32,
    /// See [`Format::cached_as`].
    cache_shift: u32,
    /// The entries of the highest level are read when CR3 is loaded, and kept in registers. They have no
    /// permissions, and walks begin below them (PAE; Intel SDM vol. 3A, 4.4.1).
    pub registers: bool,
    /// Bits of which one at least marks an entry as present.
    pub present: u64,
    /// Bit that allows writes.
    pub write: u64,
    /// Bit that makes an entry above level 1 a leaf.
    pub page_size: u64,
    /// Accessed bit.
    pub accessed: u64,
    /// Dirty bit, of leaf entries.
    pub dirty: u64,
    /// Global bit, of leaf entries.
    pub global: u64,
    /// Bits of the physical address in an entry.
    pub address: u64,
}

const fn level_of(shift: u32, bits: u32, large: bool, entry_shift: u32) -> Level {
    let mask = (1 << bits) - 1;
    Level { shift, mask, large, offset_shift: shift - entry_shift, offset_mask: mask << entry_shift }
}

const fn level(shift: u32, bits: u32, large: bool) -> Level {
    level_of(shift, bits, large, 3)
}

const LONG_LEVELS: [Level; MOST_LEVELS] =
    [level(12, 9, false), level(21, 9, true), level(30, 9, true), level(39, 9, false), level(48, 9, false)];
const PAE_LEVELS: [Level; MOST_LEVELS] =
    [level(12, 9, false), level(21, 9, true), level(30, 2, false), level(32, 0, false), level(32, 0, false)];
const TWO_LEVELS: [Level; MOST_LEVELS] = [
    level_of(12, 10, false, 2),
    level_of(22, 10, true, 2),
    level_of(32, 0, false, 2),
    level_of(32, 0, false, 2),
    level_of(32, 0, false, 2),
];

const fn x86(name: &'static str, levels: [Level; MOST_LEVELS], depth: u8) -> Format {
    Format {
        name,
        levels,
        depth,
        entry_shift: 3,
        cache_shift: 0,
        registers: false,
        present: 1,
        write: 1 << 1,
        accessed: 1 << 5,
        dirty: 1 << 6,
        page_size: 1 << 7,
        global: 1 << 8,
        address: 0x000f_ffff_ffff_f000,
    }
}

/// Four-level paging of x86-64, and AMD's nested tables for 48-bit GPAs.
pub static X86_64_4_LEVEL: Format = x86("4-level", LONG_LEVELS, 4);
/// Five-level paging of x86-64 (CR4.LA57).
pub static X86_64_5_LEVEL: Format = x86("5-level", LONG_LEVELS, 5);
/// Intel's nested tables (SDM vol. 3C, 29.3): an entry that allows reads, writes or fetches is present. There
/// are A and D bits if EPTP's bit 6 is set, and no global pages.
pub static EPT: Format =
    Format { present: 0b111, accessed: 1 << 8, dirty: 1 << 9, global: 0, ..x86("EPT", LONG_LEVELS, 4) };
/// Three-level PAE paging of 32-bit guests.
pub static PAE: Format = Format { registers: true, ..x86("PAE", PAE_LEVELS, 3) };
/// Two-level 32-bit paging with 4 MB pages (CR4.PSE). An entry is the low half of a word, and addresses have
/// 32 bits: those above (PSE-36) are left out.
pub static X86_32: Format = Format { entry_shift: 2, cache_shift: 1, ..x86("32-bit", TWO_LEVELS, 2) };

impl Format {
    /// Number of levels.
    #[inline]
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// Level of the table where walks begin.
    #[inline]
    pub fn root_level(&self) -> u8 {
        self.depth - u8::from(self.registers)
    }

    /// A format of 64-bit mode, with 4 levels or 5?
    #[inline]
    pub fn is_long(&self) -> bool {
        self.depth > 3
    }

    /// Whether Linux keeps this address for itself: in 64-bit mode the upper half, in 32-bit mode the last
    /// gigabyte of four (CONFIG_VMSPLIT_3G). `TableFormat::is_kernel` of `bifold-trace` says the same of
    /// streams.
    #[inline]
    pub fn is_kernel(&self, va: u64) -> bool {
        if self.is_long() { va >> 63 != 0 } else { va >= 0xc000_0000 }
    }

    /// The level's description; levels count from 1.
    #[inline]
    pub fn level(&self, level: u8) -> &Level {
        &self.levels[usize::from(level) - 1]
    }

    /// Index of the entry that maps `va` in a table of `level`.
    #[inline]
    pub fn index(&self, level: u8, va: u64) -> u64 {
        let l = self.level(level);
        va >> l.shift & l.mask
    }

    /// Offset in bytes of the entry that maps `va` in a table of `level`.
    #[inline]
    pub fn offset(&self, level: u8, va: u64) -> u64 {
        let l = self.level(level);
        va >> l.offset_shift & l.offset_mask
    }

    /// The number of the entry at physical address `at` in its page of 4 KB.
    #[inline]
    pub fn number(&self, at: u64) -> usize {
        ((at & 0xfff) >> self.entry_shift) as usize
    }

    /// The address for [walk caches](crate::WalkCache), which take 9 of its bits per level, as most formats
    /// do. In 32-bit paging an entry of level 2 maps twice as much.
    #[inline]
    pub fn cached_as(&self, va: u64) -> u64 {
        va >> self.cache_shift
    }

    /// Does this entry of `level` end a walk by mapping a page?
    #[inline]
    pub fn is_leaf(&self, level: u8, entry: u64) -> bool {
        level == 1 || (entry & self.page_size != 0 && self.level(level).large)
    }

    /// The table (or page) that an entry points to. For a large leaf the bits
    /// below its size are cleared (bit 12 is PAT there).
    #[inline]
    pub fn target(&self, level: u8, entry: u64) -> u64 {
        let base = entry & self.address;
        if level > 1 && self.is_leaf(level, entry) {
            base & !((1 << self.level(level).shift) - 1)
        } else {
            base
        }
    }

    /// Where the piece of the page begins that a TLB holds for `va`, if this leaf entry of `level` maps it.
    /// TLBs hold pages whole, but a page of 4 MB in two pieces of 2 MB.
    #[inline]
    pub fn piece(&self, level: u8, entry: u64, va: u64) -> u64 {
        let page = self.target(level, entry);
        if level == 1 {
            return page;
        }
        let size = 12 + 9 * (u32::from(level) - 1);
        page | va & ((1 << self.level(level).shift) - 1) >> size << size
    }

    /// An address in the other piece of a page of 4 MB around `va`; none where no page has that size.
    #[inline]
    pub fn other_piece(&self, va: u64) -> Option<u64> {
        (self.level(2).shift == 22).then_some(va ^ 1 << 21)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epts_entries_are_present_by_their_permissions_and_have_bits_of_their_own() {
        // Execute only, accessed and dirty, a 2 MB page with a memory type.
        let entry = 0x8000_0000_4020_03b4;
        assert_ne!(entry & EPT.present, 0);
        assert_eq!(entry & X86_64_4_LEVEL.present, 0);
        assert_eq!(entry & (EPT.accessed | EPT.dirty), 0x300);
        assert!(EPT.is_leaf(2, entry));
        assert_eq!(EPT.target(2, entry), 0x4020_0000);
        assert_eq!((EPT.depth(), EPT.write, EPT.global), (4, 2, 0));
    }

    #[test]
    fn tables_of_32_bit_paging_have_1024_entries_of_4_bytes_and_its_large_pages_are_held_in_two_pieces() {
        let va = 0xc0a5_3678;
        assert_eq!((X86_32.index(2, va), X86_32.index(1, va)), (0x302, 0x253));
        assert_eq!((X86_32.offset(2, va), X86_32.offset(1, va)), (0xc08, 0x94c));
        assert_eq!(X86_32.number(0x1000 + X86_32.offset(1, va)), 0x253);
        assert_eq!(X86_32.cached_as(va) >> 21, X86_32.index(2, va));
        // Bits 13 to 20 are address bits of PSE-36, bit 12 is PAT.
        let large = 0x0080_70e3;
        assert_eq!((X86_32.target(2, large), X86_32.piece(2, large, va)), (0x80_0000, 0xa0_0000));
        assert_eq!(X86_32.piece(2, large, va & !(1 << 21)), 0x80_0000);
        assert_eq!(X86_64_4_LEVEL.piece(3, 0xc000_0000 | 0xe3, 0x7fff_ffff), 0xc000_0000);
        assert_eq!((PAE.root_level(), X86_32.root_level(), X86_64_4_LEVEL.root_level()), (2, 2, 4));
    }
}
