// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures how fast pages are counted, compared with reading the same images through mmap on all cores
//! (RAYON_NUM_THREADS) and with a simple script (SHA-1 of each page, sort, uniq).
//!
//! Four synthetic guests are in the page cache, in three mixes. `fleet`: a fifth zeros, a tenth repeats
//! inside the guest, a third common to all guests, the rest different. `repeats`: nearly all memory is common
//! to all guests, so every page is compared with a page that is in no cache. `fleet-4k`: as `fleet`, but
//! written page by page like dumps; the kernel then keeps the file in single pages, and all readers take more
//! page faults. The result is the best of seven alternating rounds. Arguments: `--mb N` per guest (512),
//! `--script` to run the script too.

mod made;

use bifold_share::image::{Image, PAGE};
use bifold_share::potential::{self, Method, Options};
use made::noise;
use rayon::prelude::*;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const GUESTS: u64 = 4;
const ROUNDS: usize = 7;
/// The simple script.
const SCRIPT: &str = r#"
import hashlib, sys
for name in sys.argv[1:]:
    with open(name, "rb") as f:
        while page := f.read(4096):
            print(hashlib.sha1(page).hexdigest())
"#;

fn write_guest(path: &Path, guest: u64, pages: u64, mix: &str) -> std::io::Result<()> {
    let piece = if mix == "fleet-4k" { PAGE } else { 1 << 20 };
    let mut out = std::io::BufWriter::with_capacity(piece, std::fs::File::create(path)?);
    for (i, dice) in (0..pages).zip(noise(guest + 1)) {
        // Common pages lie at other places in each guest.
        let common = (1 << 40) + (i + guest * pages / GUESTS) % pages;
        let own = ((guest + 2) << 40) + i;
        let content = match (mix, dice % 100) {
            ("fleet" | "fleet-4k", 0..20) => 0,
            ("fleet" | "fleet-4k", 20..30) => 1 + dice / 100 % 64,
            ("fleet" | "fleet-4k", 30..63) => common,
            ("fleet" | "fleet-4k", _) => own,
            (_, 0..98) => common,
            _ => own,
        };
        if content == 0 {
            out.write_all(&[0; PAGE])?;
        } else {
            let bytes: Vec<u8> = noise(content).take(PAGE / 8).flat_map(u64::to_le_bytes).collect();
            out.write_all(&bytes)?;
        }
    }
    out.flush()
}

/// Reads every byte through mmap. Telling the kernel beforehand (MADV_POPULATE_READ) takes longer.
fn read(paths: &[PathBuf]) -> u64 {
    let images: Vec<Image> = paths.iter().map(|p| Image::open(p).expect("a file just made")).collect();
    let step = 4 << 20;
    let parts: Vec<(&Image, usize)> =
        images.iter().flat_map(|i| (0..i.bytes().len()).step_by(step).map(move |at| (i, at))).collect();
    parts
        .into_par_iter()
        .map(|(image, at)| {
            let range = at..(at + step).min(image.bytes().len());
            let words = image.bytes()[range]
                .chunks_exact(8)
                .map(|w| u64::from_le_bytes(w.try_into().expect("8 bytes")));
            words.fold(0, u64::wrapping_add)
        })
        .reduce(|| 0, u64::wrapping_add)
}

/// CPU time of all threads, in seconds. Others on the machine take wall time, but none of this.
fn cpu() -> f64 {
    let ns = |entry: std::io::Result<std::fs::DirEntry>| -> Option<f64> {
        let text = std::fs::read_to_string(entry.ok()?.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse().ok()
    };
    std::fs::read_dir("/proc/self/task").expect("Linux").filter_map(ns).sum::<f64>() / 1e9
}

fn count(paths: &[PathBuf], method: Method) -> u64 {
    let images: Vec<Image> = paths.iter().map(|p| Image::open(p).expect("a file just made")).collect();
    let options = Options { method, ..Options::default() };
    potential::count(&images, &options).expect("images that stay as they are").small.minimum
}

fn script(paths: &[PathBuf]) -> u64 {
    let mut python = Command::new("python3");
    python.arg("-c").arg(SCRIPT).args(paths).stdout(Stdio::piped());
    let mut hashes = python.spawn().expect("python3");
    let mut rest = Command::new("sh");
    rest.args(["-c", "sort | uniq -c | wc -l"]).env("LC_ALL", "C");
    let out = rest.stdin(hashes.stdout.take().expect("a pipe")).output().expect("sort");
    hashes.wait().expect("python3");
    String::from_utf8_lossy(&out.stdout).trim().parse().expect("a number")
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let after = |name: &str| args.iter().skip_while(|a| *a != name).nth(1);
    let mb: u64 = after("--mb").map_or(512, |n| n.parse().expect("--mb takes a number"));
    let with_script = args.iter().any(|a| a == "--script");
    let dir = tempfile::tempdir().expect("a directory for the images");
    let gb = (GUESTS * mb) as f64 / 1024.0 * 1.073_741_824;
    for mix in ["fleet", "fleet-4k", "repeats"] {
        let paths: Vec<PathBuf> = (0..GUESTS).map(|g| dir.path().join(format!("{mix}-{g}"))).collect();
        for (guest, path) in (0..).zip(&paths) {
            write_guest(path, guest, mb << 20 >> 12, mix).expect("room for the images");
        }
        type Run<'a> = (&'a str, Box<dyn Fn() -> u64 + 'a>);
        let runs: [Run; 4] = [
            ("read through mmap", Box::new(|| read(&paths))),
            ("potential, every repeat compared", Box::new(|| count(&paths, Method::Verified))),
            ("potential --no-verify", Box::new(|| count(&paths, Method::Hashed))),
            ("potential --method sha1", Box::new(|| count(&paths, Method::Sha1))),
        ];
        // Wall and CPU seconds.
        let mut best = [(f64::INFINITY, f64::INFINITY); 4];
        for _ in 0..ROUNDS {
            for ((_, run), best) in runs.iter().zip(&mut best) {
                let (begun, used) = (Instant::now(), cpu());
                std::hint::black_box(run());
                *best = (best.0.min(begun.elapsed().as_secs_f64()), best.1.min(cpu() - used));
            }
        }
        println!("{mix}: {GUESTS} guests of {mb} MB, {} threads", rayon::current_num_threads());
        for (i, ((name, _), (wall, cpu))) in runs.iter().zip(best).enumerate() {
            let wanted = ["", "   (wanted: 0.60 or more)", "   (wanted: 0.80 or more)", ""][i];
            let (of_wall, of_cpu) = (best[0].0 / wall, best[0].1 / cpu);
            println!(
                "  {name:<34} {:>6.2} GB/s, {of_wall:.2} of reading; per CPU second {:.2}, {of_cpu:.2}{wanted}",
                gb / wall,
                gb / cpu
            );
        }
        if with_script && mix == "fleet" {
            let begun = Instant::now();
            // All-zero pages are a content to the script.
            assert_eq!(script(&paths), count(&paths, Method::Verified) + 1, "the script counts the same");
            let rate = gb / begun.elapsed().as_secs_f64();
            let times = gb / best[1].0 / rate;
            println!(
                "  {:<34} {rate:>6.2} GB/s, potential is {times:.0} x as fast (wanted: 20 or more)",
                "SHA-1, sort, uniq"
            );
        }
        for path in &paths {
            std::fs::remove_file(path).expect("a file of ours");
        }
    }
}
