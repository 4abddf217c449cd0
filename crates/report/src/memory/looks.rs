// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest's kernel used its memory for over a run, and what each way of taking memory back would give:
//! from the looks of the stream.

use super::FRAME;
use crate::text_table::{labelled, table as text_table};
use bifold_model::Looked;
use bifold_trace::MemoryLook;
use schemars::JsonSchema;
use serde::Serialize;

/// What the guest's kernel used its memory for, at each look.
///
/// ```
/// use bifold_model::Looked;
/// use bifold_report::MemoryLooks;
/// use bifold_trace::MemoryLook;
///
/// let look = MemoryLook { frames: 1000, free: 400, kernel: 600, ..MemoryLook::default() };
/// let looked = Looked { instructions: 5_000_000, look, held: vec![] };
/// let looks = MemoryLooks::of(&[looked], 1e-9).unwrap();
/// assert!(looks.table().starts_with("guest's memory"));
/// assert_eq!(looks.least_balloon(), 600); // frames of 4 KB
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryLooks {
    looks: Vec<Looked>,
    seconds_per_instruction: f64,
}

/// A class of frames: its name in tables, and how many a look saw.
type Class = (&'static str, fn(&MemoryLook) -> u64);

const CLASSES: [Class; 10] = [
    ("free", |l| l.free),
    ("  in blocks of 2 MB", |l| l.free_blocks),
    ("  used before, not zero", |l| l.free_held),
    ("files, as on the disk", |l| l.cache_clean),
    ("files, to be written", |l| l.cache_dirty),
    ("programs", |l| l.anonymous),
    ("page tables", |l| l.tables),
    ("kernel", |l| l.kernel),
    ("in use, all zero", |l| l.zero),
    ("in use, same as another", |l| l.same),
];

/// One look in JSON: bytes, but for the sample's numbers.
#[derive(Serialize, JsonSchema)]
pub(crate) struct LookFields {
    /// Time of the ideal run. Unit: s.
    seconds: f64,
    /// Instructions of all vCPUs before the look.
    instructions: u64,
    /// All memory that the guest's kernel has page descriptors of. Unit: bytes.
    all_bytes: u64,
    /// Free in the guest's allocator. Unit: bytes.
    free_bytes: u64,
    /// Of that, in blocks of 2 MiB and more, which free page reporting reports. Unit: bytes.
    free_block_bytes: u64,
    /// Free, and not zero: memory that the guest has used and given up. Unit: bytes.
    free_held_bytes: u64,
    /// Of that, in blocks of 2 MiB and more. Unit: bytes.
    free_block_held_bytes: u64,
    /// Pages of files that are as on the disk. Unit: bytes.
    cache_clean_bytes: u64,
    /// Pages of files that have to be written first. Unit: bytes.
    cache_dirty_bytes: u64,
    /// Anonymous and shared memory of programs. Unit: bytes.
    anonymous_bytes: u64,
    /// All other memory that the kernel has allocated or reserved. Unit: bytes.
    kernel_bytes: u64,
    /// Page tables of programs. Unit: bytes.
    table_bytes: u64,
    /// Memory in use in pages that hold zeros only. Unit: bytes.
    zero_bytes: u64,
    /// Memory in use in pages whose content, not zero, another page in use has too, without the first of each
    /// content. Unit: bytes.
    same_bytes: u64,
    /// Pages of programs that were compressed as a sample. Unit: bytes.
    sampled_bytes: u64,
    /// What these take, compressed one by one with zstd at level 3. Unit: bytes.
    compressed_bytes: u64,
}

impl MemoryLooks {
    /// The looks of a run whose ideal run takes so many seconds for an instruction. `None` if there are none.
    pub fn of(looks: &[Looked], seconds_per_instruction: f64) -> Option<MemoryLooks> {
        (!looks.is_empty()).then(|| MemoryLooks { looks: looks.to_vec(), seconds_per_instruction })
    }

    /// The mean over the run of what each look has. A look stands for the time up to the next one. `None` if
    /// there are no looks.
    pub fn mean_of(looks: &[Looked], of: impl Fn(&Looked) -> u64) -> Option<f64> {
        let (mut sum, mut time) = (0.0, 0.0);
        for pair in looks.windows(2) {
            let length = pair[1].instructions.saturating_sub(pair[0].instructions) as f64;
            sum += of(&pair[0]) as f64 * length;
            time += length;
        }
        let first = looks.first()?;
        Some(if time > 0.0 { sum / time } else { of(first) as f64 })
    }

    /// The mean over the run, see [`MemoryLooks::mean_of`].
    pub fn mean(&self, of: impl Fn(&Looked) -> u64) -> f64 {
        Self::mean_of(&self.looks, of).expect("there is a look")
    }

    fn extremes(&self, of: fn(&MemoryLook) -> u64) -> (u64, u64) {
        let each = || self.looks.iter().map(|l| of(&l.look));
        (each().min().unwrap_or(0), each().max().unwrap_or(0))
    }

    /// The frames that are neither free nor a file's as on the disk, at the look with the most: below, a
    /// balloon takes memory that the guest can give up only to swap.
    pub fn least_balloon(&self) -> u64 {
        let kept = |l: &MemoryLook| l.frames.saturating_sub(l.free + l.cache_clean);
        self.looks.iter().map(|l| kept(&l.look)).max().unwrap_or(0)
    }

    /// The part of its size to which a page of the guest's programs shrinks under zstd; none if no page was
    /// compressed.
    pub fn compressed(&self) -> Option<f64> {
        let sampled: u64 = self.looks.iter().map(|l| l.look.sampled).sum();
        let bytes: u64 = self.looks.iter().map(|l| l.look.compressed_bytes).sum();
        (sampled > 0).then(|| bytes as f64 / (sampled * FRAME) as f64)
    }

    /// For people: each class's mean, least and most.
    pub fn table(&self) -> String {
        let head = ["guest's memory, MiB", "mean", "least", "most"].map(String::from).into();
        let mib = |frames: f64| format!("{:.1}", frames * FRAME as f64 / f64::from(1 << 20));
        let row = |&(name, of): &Class| {
            let (least, most) = self.extremes(of);
            vec![name.into(), mib(self.mean(|l| of(&l.look))), mib(least as f64), mib(most as f64)]
        };
        let mut text = text_table(head, CLASSES.iter().map(row).collect());
        let last = self.looks.last().map_or(0.0, |l| l.instructions as f64 * self.seconds_per_instruction);
        let seen =
            format!("of the guest's kernel at {} points in {}", self.looks.len(), crate::text::seconds(last));
        text.push('\n');
        text += &labelled("looks", &seen);
        if let Some(part) = self.compressed() {
            let sampled: u64 = self.looks.iter().map(|l| l.look.sampled).sum();
            let line = format!(
                "a page of programs shrinks to {:.0} % under zstd ({} pages were tried)",
                100.0 * part,
                crate::text::grouped(sampled)
            );
            text += &labelled("zram", &line);
        }
        text
    }

    pub(crate) fn fields(&self) -> Vec<LookFields> {
        let of = |l: &Looked| {
            let look = &l.look;
            LookFields {
                seconds: l.instructions as f64 * self.seconds_per_instruction,
                instructions: l.instructions,
                all_bytes: look.frames * FRAME,
                free_bytes: look.free * FRAME,
                free_block_bytes: look.free_blocks * FRAME,
                free_held_bytes: look.free_held * FRAME,
                free_block_held_bytes: look.free_blocks_held * FRAME,
                cache_clean_bytes: look.cache_clean * FRAME,
                cache_dirty_bytes: look.cache_dirty * FRAME,
                anonymous_bytes: look.anonymous * FRAME,
                kernel_bytes: look.kernel * FRAME,
                table_bytes: look.tables * FRAME,
                zero_bytes: look.zero * FRAME,
                same_bytes: look.same * FRAME,
                sampled_bytes: look.sampled * FRAME,
                compressed_bytes: look.compressed_bytes,
            }
        };
        self.looks.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(instructions: u64, free: u64, clean: u64) -> Looked {
        let look = MemoryLook { frames: 1000, free, cache_clean: clean, ..MemoryLook::default() };
        Looked { instructions, look, held: Vec::new() }
    }

    #[test]
    fn a_look_stands_for_the_time_up_to_the_next_one() {
        let looks = [looked(0, 100, 0), looked(30, 200, 50), looked(40, 900, 0)];
        let of = MemoryLooks::of(&looks, 1e-9).unwrap();
        assert_eq!(of.mean(|l| l.look.free), (100.0 * 30.0 + 200.0 * 10.0) / 40.0);
        assert_eq!(of.least_balloon(), 900);
        assert_eq!(MemoryLooks::of(&looks[..1], 1e-9).unwrap().mean(|l| l.look.free), 100.0);
        assert!(MemoryLooks::of(&[], 1e-9).is_none());
    }

    #[test]
    fn no_compressed_page_is_no_ratio() {
        let mut look = looked(0, 1, 1);
        assert_eq!(MemoryLooks::of(&[look.clone()], 1e-9).unwrap().compressed(), None);
        (look.look.sampled, look.look.compressed_bytes) = (2, 4096);
        assert_eq!(MemoryLooks::of(&[look], 1e-9).unwrap().compressed(), Some(0.5));
    }
}
