// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a reference costs, in ns of CPU time: stack distances by the tree alone and behind fronts of several
//! sizes, the record for Belady's optimum, whole and for memories of at least 64 and 256 frames, its second
//! pass for a quarter of the frames, and working sets. Then the bytes per reference of the three records.
//! Arguments: numbers of frames (default: 4, 4096, 65536 and 524288) and `--references N`. Of the stream
//! `local`, 15 of 16 references are to one of the 8 frames used last, to each half as often as to the next
//! more recent one. The rows of a stream take turns, and the fastest of three rounds is shown.

use bifold_reclaim::{NextUses, ReferenceKind, StackDistances, WorkingSets};
use rand::{Rng, SeedableRng};
use rand_pcg::Pcg64;
use std::hint::black_box;
use std::num::NonZeroU64;

/// CPU time of this thread, in ns: others may use the machine meanwhile.
fn now() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("Linux with schedstat");
    text.split(' ').next().and_then(|t| t.parse().ok()).expect("a number of nanoseconds")
}

/// A frame of rank r with a probability of about 1 / r. Ranks are scattered over the memory.
fn zipf(random: &mut Pcg64, frames: u64) -> u32 {
    let rank = (frames as f64).powf(random.random::<f64>()) as u64 - 1;
    (rank.wrapping_mul(0x9e37_79b9_7f4a_7c15) % frames) as u32
}

/// Frames that a guest of `frames` frames, a power of two, references.
fn stream(name: &str, frames: u64, references: usize) -> Vec<u32> {
    let mut random = Pcg64::seed_from_u64(1);
    let mut next = 0;
    let mut last = [0; 8];
    let frame = |_| match name {
        "uniform" => random.random_range(0..frames) as u32,
        "zipf" => zipf(&mut random, frames),
        "local" => {
            let depth = random.random_range(0..1u32 << (last.len() - 1)).leading_zeros() as usize - 25;
            let near = random.random_range(0..16) > 0;
            let frame = if near { last[depth] } else { zipf(&mut random, frames) };
            let depth = last.iter().position(|&f| f == frame).unwrap_or(last.len() - 1);
            last[..=depth].rotate_right(1);
            last[0] = frame;
            frame
        }
        _ => {
            next = (next + 1) % frames as u32;
            next
        }
    };
    (0..references).map(frame).collect()
}

/// ns per reference.
fn distances<const K: usize>(stream: &[u32], frames: u64) -> f64 {
    let mut stack = StackDistances::<K>::new(frames).expect("few frames");
    let begun = now();
    for &frame in stream {
        stack.reference(u64::from(frame), ReferenceKind::Data);
    }
    let spent = now() - begun;
    black_box(stack.curve());
    spent / stream.len() as f64
}

/// ns of the record and of a pass, bytes of the record, per reference.
fn record(stream: &[u32], frames: u64, least: u64) -> [f64; 3] {
    let mut uses = NextUses::for_memories_of(least, frames, u64::MAX).expect("few frames");
    let empty = uses.bytes();
    let begun = now();
    for &frame in stream {
        uses.reference(u64::from(frame));
    }
    let recorded = now();
    black_box(uses.misses(frames.div_ceil(4).max(least)));
    [recorded - begun, now() - recorded, (uses.bytes() - empty) as f64].map(|n| n / stream.len() as f64)
}

fn working_sets(stream: &[u32], frames: u64) -> f64 {
    let mut sets = WorkingSets::new(frames, NonZeroU64::new(1_000_000).expect("not 0")).expect("few frames");
    let begun = now();
    for (at, &frame) in (0u64..).zip(stream) {
        sets.reference(u64::from(frame), frame % 4 == 0, at);
    }
    let spent = now() - begun;
    black_box(sets.finish());
    spent / stream.len() as f64
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (mut references, mut memories) = (16_000_000, Vec::new());
    let mut args = std::env::args().skip(1);
    while let Some(arg) = args.next() {
        if arg == "--references" {
            references = args.next().ok_or("--references N")?.parse()?;
        } else if !arg.starts_with('-') {
            memories.push(arg.parse::<u64>()?.next_power_of_two());
        }
    }
    if memories.is_empty() {
        memories = vec![1 << 2, 1 << 12, 1 << 16, 1 << 19];
    }
    let rows = [
        "tree", "front 1", "front 4", "front 8", "front 16", "record", "from 64", "from 256", "optimum",
        "sets", "bytes", "from 64", "from 256",
    ];
    print!("{:<10} {:>8}", "stream", "frames");
    rows.iter().for_each(|row| print!(" {row:>9}"));
    println!();
    for &frames in &memories {
        for name in ["uniform", "zipf", "cyclic", "local"] {
            let stream = stream(name, frames, references);
            let mut best = [f64::INFINITY; 13];
            for _ in 0..3 {
                let records = [0, 64, 256].map(|least| record(&stream, frames, least));
                let round = [
                    distances::<1>(&stream, frames),
                    distances::<1>(&stream, frames),
                    distances::<4>(&stream, frames),
                    distances::<8>(&stream, frames),
                    distances::<16>(&stream, frames),
                    records[0][0],
                    records[1][0],
                    records[2][0],
                    records[0][1],
                    working_sets(&stream, frames),
                    records[0][2],
                    records[1][2],
                    records[2][2],
                ];
                best.iter_mut().zip(round).for_each(|(best, ns)| *best = best.min(ns));
            }
            print!("{name:<10} {frames:>8}");
            best.iter().for_each(|ns| print!(" {ns:>9.1}"));
            println!();
        }
    }
    Ok(())
}
