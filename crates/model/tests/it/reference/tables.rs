// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The formats of the guest's tables, written apart from [`bifold_mmu::Format`].

use super::{ADDRESS, PRESENT, WRITE};

/// The format of the guest's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// Of 64-bit mode, with 4 levels or 5.
    Long(u8),
    /// Three levels of 8-byte entries. The four entries of the highest level are in registers.
    Pae,
    /// Two levels of 4-byte entries, and pages of 4 MB.
    TwoLevels,
}

impl Tables {
    pub const ALL: [Tables; 4] = [Tables::Long(4), Tables::Long(5), Tables::Pae, Tables::TwoLevels];

    pub fn depth(self) -> u8 {
        match self {
            Tables::Long(depth) => depth,
            Tables::Pae => 3,
            Tables::TwoLevels => 2,
        }
    }

    /// Level of the first table that a walk reads.
    pub fn first(self) -> u8 {
        if self == Tables::Pae { 2 } else { self.depth() }
    }

    /// Bits of an address below those that choose an entry of `level`.
    pub fn shift(self, level: u8) -> u32 {
        if self == Tables::TwoLevels { 2 + 10 * u32::from(level) } else { shift(level) }
    }

    pub fn entry_bytes(self) -> u64 {
        if self == Tables::TwoLevels { 4 } else { 8 }
    }

    /// Entries of a table.
    pub fn entries(self, level: u8) -> u64 {
        match self {
            Tables::Pae if level == 3 => 4,
            _ => 4096 / self.entry_bytes(),
        }
    }

    /// Number of the entry for `va` in its table.
    pub fn index(self, va: u64, level: u8) -> u64 {
        va >> self.shift(level) & (self.entries(level) - 1)
    }

    /// A page of entries as words of 8 bytes.
    pub fn words(self, entries: &[u64]) -> [u64; 512] {
        std::array::from_fn(|i| match self {
            Tables::TwoLevels => entries[2 * i] | entries[2 * i + 1] << 32,
            _ => entries[i],
        })
    }

    /// An entry of `level` for the table in frame `child`. PAE's root has no permissions.
    pub fn link(self, child: u64, level: u8) -> u64 {
        child << 12 | PRESENT | if level > self.first() { 0 } else { WRITE }
    }

    /// The address of the root table in CR3.
    pub fn root(self, cr3: u64) -> u64 {
        cr3 & if self == Tables::Pae { 0xffff_ffe0 } else { ADDRESS }
    }
}

/// The entry at `at` in its word.
pub fn entry_in(word: u64, at: u64, bytes: u64) -> u64 {
    word >> (8 * (at % 8)) & (!0 >> (64 - 8 * bytes))
}

/// Bits of an address below those that choose an entry of `level` of 8 bytes.
pub fn shift(level: u8) -> u32 {
    3 + 9 * u32::from(level)
}
