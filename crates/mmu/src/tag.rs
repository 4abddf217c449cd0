// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tags: how arrays store an entry's key with its attributes in one word.

/// Bits of a key that name the page; those above name its address
/// space, which does not matter for global entries.
pub const PAGE_BITS: u32 = 48;
/// Bits of a key.
const KEY_BITS: u32 = 52;

/// Configurations that may share an entry: a tag has a bit for each.
pub const SHARERS: usize = u8::BITS as usize;

pub(crate) const GLOBAL: u64 = 1 << 62;
const WRITABLE_SHIFT: u32 = 54;
const WRITABLE: u64 = 0xff << WRITABLE_SHIFT;
const _: () = assert!(WRITABLE >> WRITABLE_SHIFT == (1 << SHARERS) - 1 && WRITABLE < GLOBAL);
const PIECE_SHIFT: u32 = KEY_BITS;
pub(crate) const PAGE: u64 = (1 << PAGE_BITS) - 1;
pub(crate) const KEY: u64 = (1 << KEY_BITS) - 1;

/// The attributes of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attr {
    /// A bit per configuration that shares the entry, by its place among them: its writes may
    /// use the entry as it is.
    pub writable: u8,
    /// Survives a flush of what is not global, and is found from every address space.
    pub global: bool,
    /// 0, or the [`crate::PageSize`] of the page that this is a piece of, as a number.
    pub piece: u8,
}

/// A key with its attributes, as stored.
#[inline(always)]
pub(crate) fn tag(key: u64, attr: Attr) -> u64 {
    key | u64::from(attr.writable) << WRITABLE_SHIFT
        | u64::from(attr.piece) << PIECE_SHIFT
        | if attr.global { GLOBAL } else { 0 }
}

/// The tag with further configurations' right to write.
#[inline(always)]
pub(crate) fn allow(tag: u64, writable: u8) -> u64 {
    tag | u64::from(writable) << WRITABLE_SHIFT
}

/// The tag without the sharers' rights to write.
#[inline(always)]
pub(crate) fn without_sharers(tag: u64) -> u64 {
    tag & !WRITABLE
}

/// The tag with the rights to write of `holders` in `tag` and of `others` in `other`, an entry for the same
/// page.
pub(crate) fn join_sharers(tag: u64, holders: u8, other: u64, others: u8) -> u64 {
    let of = |sharers: u8| u64::from(sharers) << WRITABLE_SHIFT;
    (tag & !WRITABLE) | tag & of(holders) | other & of(others)
}

/// Is `tag` an entry for `key`?
#[inline(always)]
pub(crate) fn matches(tag: u64, key: u64) -> bool {
    let differ = (tag ^ key) & KEY;
    differ == 0 || (tag & GLOBAL != 0 && differ & PAGE == 0)
}

#[inline(always)]
pub(crate) fn attr(tag: u64) -> Attr {
    Attr {
        writable: (tag >> WRITABLE_SHIFT) as u8,
        global: tag & GLOBAL != 0,
        piece: (tag >> PIECE_SHIFT & 3) as u8,
    }
}

#[inline(always)]
pub(crate) fn key_of(tag: u64) -> u64 {
    tag & KEY
}
