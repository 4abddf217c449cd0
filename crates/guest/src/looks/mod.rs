// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at the memory of a guest that stands still (`qemu-plugin/looks.c`): what its kernel uses each page
//! for, which blocks are free, and what the pages hold. Nothing runs in the guest for this: the kernel's own
//! page descriptors are read from outside.

mod classes;
mod kernel;
mod memory;

use std::collections::HashSet;
use std::fs::File;

use bifold_trace::event::LOOK_WORDS;
use bifold_trace::{Event, MemoryLook};
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use classes::Class;
use kernel::Kernel;
use memory::{Memory, PAGE};

/// The order of the blocks that free page reporting reports (Linux `pageblock_order` on x86-64): 2 MB.
const BLOCK_ORDER: u32 = 9;
/// One anonymous page of so many is compressed, drawn by its frame's number.
const SAMPLED: u64 = 16;
/// The level of zstd in the kernel (`ZSTD_DEF_LEVEL` of `crypto/zstd.c`).
const LEVEL: i32 = 3;

const ZEROS: [u8; PAGE as usize] = [0; PAGE as usize];

/// Looks at one guest's memory.
pub(crate) struct Looker {
    memory: File,
    bytes: u64,
    /// Once the guest has booted.
    kernel: Option<Kernel>,
}

/// The class of each frame, as one byte.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
enum Use {
    /// There is no descriptor.
    Unknown,
    Free,
    /// Free, in a block that would be reported.
    Block,
    Clean,
    Dirty,
    Anonymous,
    Kernel,
    Table,
}

/// Why a guest's memory cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unseen {
    /// The file of the memory cannot be read.
    #[error("its memory cannot be read: {0}")]
    Memory(std::io::Error),
    /// No page begins as the kernel's text does.
    #[error("its memory has no VMCOREINFO (CONFIG_CRASH_CORE or CONFIG_VMCORE_INFO)")]
    NoInfo,
    /// The name of the number that is missing.
    #[error("its VMCOREINFO has no {0}")]
    Missing(String),
    /// What the numbers do not fit.
    #[error("its VMCOREINFO describes no {0}")]
    Wrong(&'static str),
    /// The address of the kernel's table is outside of its image.
    #[error("its top-level table is nowhere")]
    NoTable,
    /// The type of free pages.
    #[error("its pages have types of another kind ({0:#x} for free ones)")]
    Types(u32),
    /// No frame has a descriptor.
    #[error("its kernel has no page descriptors where VMCOREINFO says")]
    NoDescriptors,
}

impl Looker {
    /// Of a guest whose memory is this file.
    pub(crate) fn new(memory: File, bytes: u64) -> Looker {
        Looker { memory, bytes, kernel: None }
    }

    /// The events of a look: [`Event::Free`] for each stretch of free blocks, then [`Event::Look`]. The guest
    /// stands still. The error says why nothing can be seen.
    pub(crate) fn look(&mut self, out: &mut Vec<u64>) -> Result<(), Unseen> {
        let memory = Memory::of(&self.memory, self.bytes);
        let kernel = match self.kernel.take() {
            Some(kernel) => kernel,
            None => Kernel::find(memory)?,
        };
        let uses = uses(&kernel, memory);
        self.kernel = Some(kernel);
        let mut look = contents(memory, &uses).map_err(Unseen::Memory)?;
        for of in &uses {
            look.frames += u64::from(*of != Use::Unknown);
            match of {
                Use::Unknown => {}
                Use::Free => look.free += 1,
                Use::Block => {
                    look.free += 1;
                    look.free_blocks += 1;
                }
                Use::Clean => look.cache_clean += 1,
                Use::Dirty => look.cache_dirty += 1,
                Use::Anonymous => look.anonymous += 1,
                Use::Kernel => look.kernel += 1,
                Use::Table => look.tables += 1,
            }
        }
        if look.frames == 0 {
            return Err(Unseen::NoDescriptors);
        }
        for stretch in uses.chunk_by(|a, b| (*a == Use::Block) == (*b == Use::Block)) {
            if stretch[0] == Use::Block {
                // A stretch is a part of `uses`.
                let gfn = (stretch.as_ptr().addr() - uses.as_ptr().addr()) as u64;
                Event::Free { gfn, frames: stretch.len() as u64 }.encode(out);
            }
        }
        Event::Look(look).encode(out);
        Ok(())
    }
}

/// Where a chunk's words end with a look that has to be filled in: the number of words before that.
pub(crate) fn asked(chunk: &[u64]) -> Option<usize> {
    let at = chunk.len().checked_sub(1 + LOOK_WORDS)?;
    let mut empty = Vec::with_capacity(1 + LOOK_WORDS);
    Event::Look(MemoryLook::default()).encode(&mut empty);
    (chunk[at..] == empty[..]).then_some(at)
}

/// What each frame is used for, by its number.
fn uses(kernel: &Kernel, memory: Memory) -> Vec<Use> {
    let layout = &kernel.layout;
    let mut uses = Vec::new();
    // Frames that belong to another page, with that one's frame.
    let mut tails: Vec<(usize, u64)> = Vec::new();
    let mut blocks = Vec::new();
    // Whether the frame before is free on a CPU's list, which has pages of up to 2 MB (`PCP_THP`) with links
    // in their first frames alone.
    let mut in_list = false;
    kernel.descriptors(memory, |first, begin, bytes| {
        for (i, page) in bytes.chunks_exact(layout.size as usize).enumerate() {
            let gfn = first + i as u64;
            // The kernel describes whole sections of 128 MiB, and RAM may end within one.
            if !gfn.checked_mul(PAGE).is_some_and(|gpa| memory.has(gpa)) {
                continue;
            }
            let (gfn, at) = (gfn as usize, begin.wrapping_add(i as u64 * layout.size));
            if uses.len() <= gfn {
                uses.resize(gfn + 1, Use::Unknown);
            }
            let class = Class::of(page, at, layout);
            in_list = class == Class::Free
                || (class == Class::Unlinked && in_list && gfn % (1 << BLOCK_ORDER) != 0);
            uses[gfn] = match class {
                Class::FreeBlock(order) => {
                    blocks.push((gfn, order));
                    Use::Free
                }
                Class::Free => Use::Free,
                Class::CacheClean => Use::Clean,
                Class::CacheDirty => Use::Dirty,
                Class::Anonymous => Use::Anonymous,
                Class::Table => Use::Table,
                Class::Unlinked if in_list => Use::Free,
                Class::Kernel | Class::Unlinked => Use::Kernel,
                Class::Tail(head) => {
                    let back = at.wrapping_sub(head) / layout.size;
                    tails.push((gfn, (gfn as u64).wrapping_sub(back)));
                    Use::Kernel
                }
            };
        }
    });
    for (gfn, head) in tails {
        if let Some(head) = uses.get(head as usize) {
            uses[gfn] = *head;
        }
    }
    for (gfn, order) in blocks {
        let of = if order >= BLOCK_ORDER { Use::Block } else { Use::Free };
        let end = (gfn + (1 << order)).min(uses.len());
        uses[gfn..end].iter_mut().filter(|of| **of != Use::Unknown).for_each(|this| *this = of);
    }
    uses
}

/// What can be seen of the pages' contents.
fn contents(memory: Memory, uses: &[Use]) -> std::io::Result<MemoryLook> {
    let mut look = MemoryLook::default();
    let in_use = |of: Use| !matches!(of, Use::Unknown | Use::Free | Use::Block);
    let (mut seen, mut written) = (HashSet::new(), 0);
    memory.pages(|gfn, page| {
        let of = uses.get(gfn as usize).copied().unwrap_or(Use::Unknown);
        written += u64::from(in_use(of));
        if *page == ZEROS {
            look.zero += u64::from(in_use(of));
            return true;
        }
        match of {
            Use::Unknown => return true,
            Use::Free => look.free_held += 1,
            Use::Block => {
                look.free_held += 1;
                look.free_blocks_held += 1;
            }
            _ => look.same += u64::from(!seen.insert(xxh3_128(page))),
        }
        if of == Use::Anonymous && xxh3_64(&gfn.to_le_bytes()) % SAMPLED == 0 {
            let bytes = zstd::bulk::compress(page, LEVEL).map_or(PAGE as usize, |c| c.len());
            look.sampled += 1;
            look.compressed_bytes += (bytes as u64).min(PAGE);
        }
        true
    })?;
    // Pages that were never written are zero, too.
    look.zero += uses.iter().filter(|of| in_use(**of)).count() as u64 - written;
    Ok(look)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_look_is_asked_for_by_its_empty_event_at_a_chunk_s_end() {
        let mut chunk = Vec::new();
        Event::Insns(5).encode(&mut chunk);
        assert_eq!(asked(&chunk), None);
        Event::Look(MemoryLook::default()).encode(&mut chunk);
        assert_eq!(asked(&chunk), Some(1));
        Event::Insns(5).encode(&mut chunk);
        assert_eq!(asked(&chunk), None);
    }

    #[test]
    fn contents_are_counted_by_what_their_frames_are_used_for() {
        use std::os::unix::fs::FileExt as _;
        let file = tempfile::tempfile().unwrap();
        let pages = [7, 0, 7, 8, 9, 7];
        file.set_len(8 * PAGE).unwrap();
        for (i, byte) in pages.into_iter().enumerate() {
            file.write_all_at(&[byte; PAGE as usize], i as u64 * PAGE).unwrap();
        }
        let uses = [
            Use::Anonymous,
            Use::Clean,
            Use::Clean,
            Use::Block,
            Use::Free,
            Use::Kernel,
            Use::Anonymous,
            Use::Block,
        ];
        let look = contents(Memory::of(&file, 8 * PAGE), &uses).unwrap();
        // Frame 1 holds zeros, and frame 6 was never written.
        assert_eq!((look.zero, look.same, look.free_held, look.free_blocks_held), (2, 2, 2, 1));
    }
}
