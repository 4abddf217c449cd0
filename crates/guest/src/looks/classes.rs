// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a page is used for, by its `struct page` (Linux `include/linux/mm_types.h` and `page-flags.h`, 6.1 to
//! 6.12 without 6.11).

use super::kernel::Layout;

/// What the kernel uses a page for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Class {
    /// In the buddy allocator, as the first of a block of 2^order pages.
    FreeBlock(u32),
    /// On a CPU's list of free pages.
    Free,
    CacheClean,
    CacheDirty,
    /// Anonymous or shared memory.
    Anonymous,
    Table,
    Kernel,
    /// Not referenced, and in no list: a later page of a large one on a CPU's list, or of an allocation.
    Unlinked,
    /// Belongs to the page with this descriptor's address.
    Tail(u64),
}

/// The largest order that a block can have; more is a damaged descriptor.
const MOST_ORDER: u64 = 18;
/// Bits of `page->mapping`: what the pointer points to (`PAGE_MAPPING_FLAGS`).
const MAPPING_FLAGS: u64 = 3;
const ANONYMOUS: u64 = 1;
/// The least address of the kernel's half, with 4 levels or 5. Poison in a list that a page has left is less
/// (`LIST_POISON1`).
const KERNEL_HALF: u64 = 0xff00_0000_0000_0000;

/// Values of `page_type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Types {
    /// A bit that is clear, in a value below -128 (before Linux 6.12).
    Bits,
    /// The top byte, 0xf0 to 0xfe (`enum pagetype`, Linux 6.12).
    Byte,
}

impl Types {
    fn of(buddy: u32) -> Types {
        if buddy == !0x80 { Types::Bits } else { Types::Byte }
    }

    fn has_type(self, value: u32) -> bool {
        match self {
            Types::Bits => (value as i32) < -128,
            Types::Byte => (0xf0..0xff).contains(&(value >> 24)),
        }
    }

    fn is_buddy(self, value: u32, buddy: u32) -> bool {
        match self {
            Types::Bits => value == buddy,
            Types::Byte => value >> 24 == buddy >> 24,
        }
    }

    fn is_table(self, value: u32) -> bool {
        match self {
            Types::Bits => value == !0x200,
            Types::Byte => value >> 24 == 0xf2,
        }
    }
}

fn word(page: &[u8], at: u64) -> u64 {
    u64::from_le_bytes(page[at as usize..][..8].try_into().expect("8 bytes"))
}

fn half(page: &[u8], at: u64) -> u32 {
    u32::from_le_bytes(page[at as usize..][..4].try_into().expect("4 bytes"))
}

impl Class {
    /// The class of the page with this descriptor, which lies at address `at`.
    pub(super) fn of(page: &[u8], at: u64, layout: &Layout) -> Class {
        let head = word(page, layout.compound_head);
        if head & 1 != 0 {
            return Class::Tail(head - 1);
        }
        let (value, types) = (half(page, layout.mapcount), Types::of(layout.buddy));
        let flags = word(page, layout.flags);
        let has = |bit: u64| flags >> bit & 1 != 0;
        if types.has_type(value) {
            let order = word(page, layout.private);
            return match () {
                () if types.is_buddy(value, layout.buddy) && order <= MOST_ORDER => {
                    Class::FreeBlock(order as u32)
                }
                () if types.is_table(value) => Class::Table,
                () => Class::Kernel,
            };
        }
        let mapping = word(page, layout.mapping);
        if layout.slab_flag.is_some_and(has) {
            return Class::Kernel;
        }
        if half(page, layout.refcount) == 0 {
            // A list of free pages links the page; a later page of an allocation is in no list.
            let next = word(page, layout.lru);
            let linked = next >= KERNEL_HALF && next != at + layout.lru;
            return if linked { Class::Free } else { Class::Unlinked };
        }
        match mapping & MAPPING_FLAGS {
            ANONYMOUS | MAPPING_FLAGS if mapping > MAPPING_FLAGS => Class::Anonymous,
            0 if mapping >= KERNEL_HALF && has(layout.swapbacked_flag) => Class::Anonymous,
            // The flag below that of the lists is PG_dirty in every version (`enum pageflags`).
            0 if mapping >= KERNEL_HALF && has(layout.lru_flag - 1) => Class::CacheDirty,
            // A page that waits to be put on a list has no flag of the lists yet.
            0 if mapping >= KERNEL_HALF => Class::CacheClean,
            _ => Class::Kernel,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout {
        size: 64,
        flags: 0,
        mapping: 24,
        lru: 8,
        private: 40,
        mapcount: 48,
        refcount: 52,
        compound_head: 8,
        lru_flag: 4,
        swapbacked_flag: 19,
        slab_flag: Some(9),
        buddy: !0x80,
    };
    const AT: u64 = 0xffff_ea00_0000_0000;

    fn page(flags: u64, next: u64, mapping: u64, private: u64, mapcount: u32, refcount: u32) -> [u8; 64] {
        let mut page = [0; 64];
        for (at, value) in [(0, flags), (8, next), (24, mapping), (40, private)] {
            page[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        page[48..52].copy_from_slice(&mapcount.to_le_bytes());
        page[52..56].copy_from_slice(&refcount.to_le_bytes());
        page
    }

    #[test]
    fn descriptors_of_6_1_have_the_kernel_s_classes() {
        let class = |p: [u8; 64]| Class::of(&p, AT, &LAYOUT);
        let (lru, dirty, swapbacked, slab) = (1 << 4, 1 << 3, 1 << 19, 1 << 9);
        let list = AT + 0x1008;
        assert_eq!(class(page(0, list, 0, 9, !0x80, 0)), Class::FreeBlock(9));
        assert_eq!(class(page(0, list, 0, 0, u32::MAX, 0)), Class::Free);
        assert_eq!(class(page(0, AT + 8, 0, 0, u32::MAX, 0)), Class::Unlinked, "linked to itself");
        assert_eq!(class(page(0, 0xdead_0000_0000_0100, 0, 0, u32::MAX, 0)), Class::Unlinked, "poison");
        assert_eq!(class(page(lru, list, AT, 0, u32::MAX, 2)), Class::CacheClean);
        assert_eq!(class(page(lru | dirty, list, AT, 0, u32::MAX, 2)), Class::CacheDirty);
        assert_eq!(class(page(lru | swapbacked, list, AT | 1, 0, 0, 1)), Class::Anonymous);
        assert_eq!(class(page(lru | swapbacked, list, AT, 0, 0, 1)), Class::Anonymous, "shared memory");
        assert_eq!(class(page(0, list, 0, 0, !0x200, 1)), Class::Table);
        assert_eq!(class(page(slab, list, AT, 0, u32::MAX, 1)), Class::Kernel);
        assert_eq!(class(page(0, AT + 0x41, 0, 0, u32::MAX, 0)), Class::Tail(AT + 0x40));
        assert_eq!(class(page(0, 0, 0, 0, u32::MAX, 1)), Class::Kernel);
    }

    #[test]
    fn the_top_byte_is_the_type_from_6_12_on() {
        let layout = Layout { buddy: 0xf000_0000, slab_flag: None, ..LAYOUT };
        let class =
            |mapcount, private| Class::of(&page(0, AT + 0x1008, 0, private, mapcount, 1), AT, &layout);
        assert_eq!(class(0xf000_0000, 3), Class::FreeBlock(3));
        assert_eq!(class(0xf200_0000, 0), Class::Table);
        assert_eq!(class(0xf5ff_ffff, 0), Class::Kernel, "a slab");
        assert_eq!(class(0xf000_0000, 60), Class::Kernel, "no order");
    }
}
