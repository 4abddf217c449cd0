// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random streams of references and frees, and an LRU memory of one size.

use bifold_reclaim::ReferenceKind;
use proptest::prelude::*;

#[derive(Debug, Clone, Copy)]
pub enum Act {
    Reference(u64, ReferenceKind),
    Forget(u64),
}

/// Streams over at most `frames` frames: some with locality, with many frees, few or none.
pub fn streams(frames: u64, length: usize) -> impl Strategy<Value = Vec<Act>> {
    (1..=frames, 0u32..4, 1u32..4).prop_flat_map(move |(frames, frees, near)| {
        let frame = prop_oneof![3 => 0..frames, 2 * near => 0..frames.div_ceil(8)];
        let act = (frame, 0usize..4, 0u32..16).prop_map(move |(frame, kind, free)| {
            if free < frees { Act::Forget(frame) } else { Act::Reference(frame, ReferenceKind::ALL[kind]) }
        });
        proptest::collection::vec(act, 0..length)
    })
}

/// Misses of a memory of `size` frames that drops what was used least recently, by kind.
pub fn lru_misses(acts: &[Act], size: usize) -> [u64; 4] {
    let (mut memory, mut misses) = (Vec::new(), [0; 4]);
    for act in acts {
        match *act {
            Act::Forget(frame) => memory.retain(|&f| f != frame),
            Act::Reference(frame, kind) => {
                match memory.iter().position(|&f| f == frame) {
                    Some(at) => _ = memory.remove(at),
                    None => misses[kind as usize] += 1,
                }
                memory.insert(0, frame);
                memory.truncate(size);
            }
        }
    }
    misses
}
