// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures the time of the model of ksmd for five passes over a guest in the page cache, and the time to
//! hash the guest's pages, which is the minimum for any model. A quarter of the pages are zeros, a quarter
//! have 1,000 contents in turn, and the rest are all different. The result is known and compared. Argument:
//! `--mb N` (1024).

mod made;

use bifold_share::image::{Image, PAGE};
use bifold_share::ksm::{Scanner, Tuning};
use made::noise;
use rayon::prelude::*;
use std::io::Write as _;
use std::path::Path;
use std::time::Instant;
use xxhash_rust::xxh3::xxh3_128;

const CONTENTS: u64 = 1000;
const ROUNDS: usize = 3;

fn write_guest(path: &Path, pages: u64) -> std::io::Result<()> {
    let mut out = std::io::BufWriter::with_capacity(1 << 20, std::fs::File::create(path)?);
    for i in 0..pages {
        let content = match i % 4 {
            0 => 0,
            1 => 1 + i / 4 % CONTENTS,
            _ => (1 << 40) + i,
        };
        let words = noise(content).map(|w| if content == 0 { 0 } else { w });
        out.write_all(&words.take(PAGE / 8).flat_map(u64::to_le_bytes).collect::<Vec<u8>>())?;
    }
    out.flush()
}

/// Frames and sharing pages that result from this number of equal pages. A single remaining page has no frame
/// of KSM.
fn at_rest(equal: u64, max: u64) -> (u64, u64) {
    let frames = equal / max + u64::from(equal % max > 1);
    (frames, equal - u64::from(equal % max == 1) - frames)
}

/// Anonymous memory of this process, in bytes.
fn anonymous() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find(|l| l.starts_with("RssAnon:")).expect("a line of it");
    line.split_whitespace().nth(1).and_then(|n| n.parse::<f64>().ok()).expect("KiB") * 1024.0
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let after = |name: &str| args.iter().skip_while(|a| *a != name).nth(1);
    let mb: u64 = after("--mb").map_or(1024, |n| n.parse().expect("--mb takes a number"));
    let pages = mb << 20 >> 12;
    let dir = tempfile::tempdir().expect("a directory for the image");
    let path = dir.path().join("guest");
    write_guest(&path, pages).expect("room for the image");
    let image = Image::open(&path).expect("a file just made");
    let (mut hashing, mut modelling, mut held) = (f64::INFINITY, f64::INFINITY, 0.0_f64);
    for _ in 0..ROUNDS {
        let begun = Instant::now();
        let sum = image.bytes().par_chunks_exact(PAGE).map(xxh3_128).reduce(|| 0, |a, b| a ^ b);
        std::hint::black_box(sum);
        hashing = hashing.min(begun.elapsed().as_secs_f64());
        let (begun, before) = (Instant::now(), anonymous());
        let tuning = Tuning::default();
        let max = u64::from(tuning.max_page_sharing);
        let mut scanner = Scanner::new(tuning);
        scanner.add(&image, false);
        (0..5).for_each(|_| scanner.pass());
        modelling = modelling.min(begun.elapsed().as_secs_f64());
        held = held.max(anonymous() - before);
        let quarter = pages / 4;
        let mut known = at_rest(quarter, max);
        for content in 0..CONTENTS {
            let (frames, sharing) =
                at_rest(quarter / CONTENTS + u64::from(content < quarter % CONTENTS), max);
            known = (known.0 + frames, known.1 + sharing);
        }
        let counts = scanner.counts();
        assert_eq!((counts.pages_shared, counts.pages_sharing), known, "the known answer");
    }
    println!(
        "{mb} MB, five passes: {modelling:.2} s, {:.1} times hashing; it holds {:.0} MB",
        modelling / hashing,
        held / 1e6
    );
}
