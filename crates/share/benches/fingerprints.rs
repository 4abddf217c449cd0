// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures counting of fingerprints in bounded memory. The rows are synthetic, of eight guests that have
//! half of their pages in common, and in one part, which is the worst case. Counting runs in a process of its
//! own, whose peak of memory is the kernel's figure (VmHWM). Arguments: `--pages N` (4 million),
//! `--memory BYTES` (default: such a part of 2 GiB that the share of rows on disk is that of 100 million
//! pages in 2 GiB).

mod made;

use bifold_share::fingerprint::{ContentCount, Destination, Key, count_part, write_rows};
use made::noise;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

const GUESTS: u64 = 8;
/// Pages to count, and memory for counting.
const WANTED: (u64, u64) = (100_000_000, 2 << 30);

/// Of each guest, every other page is one that all have.
fn rows(pages: u64) -> impl Iterator<Item = ContentCount> {
    (0..pages).map(move |i| {
        let (guest, page) = (i % GUESTS, i / GUESTS);
        let content = if page % 2 == 0 { page } else { i << 8 | 1 };
        let mixed = |x| noise(x).next().expect("it has no end");
        ContentCount::new([mixed(content), mixed(!content)], false, guest as u32, 1)
    })
}

fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|l| l.starts_with("VmHWM:")).expect("a line of it");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") << 10
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let after = |name: &str| args.iter().skip_while(|a| *a != name).nth(1);
    let number = |name: &str| after(name).map(|n| n.parse::<u64>().expect("a number"));
    let pages = number("--pages").unwrap_or(4_000_000);
    let memory = number("--memory").unwrap_or(WANTED.1 * pages / WANTED.0);
    if let Some(dir) = after("--count") {
        let dir = PathBuf::from(dir);
        let spill = dir.parent().expect("the bench's").to_path_buf();
        let begun = Instant::now();
        let part = count_part(&[dir], 0, memory, &spill).expect("rows just made");
        let (seconds, peak) = (begun.elapsed().as_secs_f64(), peak_bytes());
        assert_eq!(part.guests.len(), GUESTS as usize);
        println!(
            "  {pages} rows with --memory {:.0} MiB: {seconds:.1} s, {:.2} million rows/s, peak {:.0} MiB in memory",
            memory as f64 / (1 << 20) as f64,
            pages as f64 / 1e6 / seconds,
            peak as f64 / (1 << 20) as f64
        );
        return;
    }
    // Where the sorted files go, too: not /tmp, which may be memory.
    let temp = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a directory");
    let dir = temp.path().join("rows");
    let names = (0..GUESTS).map(|g| format!("guest-{g}")).collect();
    write_rows(rows(pages), names, &Key::none(), Destination { dir: &dir, parts: 1, memory })
        .expect("room on the disk");
    let mut count = Command::new(std::env::current_exe().expect("this"));
    count.args(["--pages", &pages.to_string(), "--memory", &memory.to_string(), "--count"]).arg(&dir);
    assert!(count.status().expect("this").success());
}
