// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the fingerprints of images into a directory.

use super::file::Writer;
use super::{About, BITS, ContentCount, FingerprintError, Key, Sorter, VERSION, part_of};
use crate::image::{HUGE, Image, PAGE};
use bifold_base::whole::UNFINISHED;
use rayon::prelude::*;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Number of 2 MB pages that all threads hash at a time.
const BATCH: usize = 64;

/// How a caller follows and stops the work.
pub type Watch<'a> = crate::potential::Watch<'a>;

/// Where fingerprints are written.
#[derive(Debug, Clone, Copy)]
pub struct Destination<'a> {
    /// The directory, which appears when it is complete.
    pub dir: &'a Path,
    /// Number of its parts.
    pub parts: u32,
    /// Memory for rows, in bytes. Others are kept in files in the directory's parent meanwhile.
    pub memory: u64,
}

/// Writes the fingerprints of images into a directory.
///
/// # Errors
/// If an image cannot be read, the directory exists or cannot be written, or the caller stops the work.
pub fn fingerprint(
    images: &[Image],
    key: &Key,
    to: Destination,
    watch: Watch,
) -> Result<(), FingerprintError> {
    let guests = images.iter().map(|i| i.name().to_string()).collect();
    let mut target = Target::create(to, key.id(), BITS, guests)?;
    for (guest, image) in (0..).zip(images) {
        for batch in units(image).chunks(BATCH) {
            let rows: Vec<Vec<ContentCount>> =
                batch.par_iter().map(|unit| rows(image, unit, key, guest)).collect();
            for row in rows.into_iter().flatten() {
                target.sorter.push(row)?;
            }
            (watch.progress)(batch.iter().map(|u| u.pages()).sum());
            if watch.stop.load(Ordering::Relaxed) {
                return Err(FingerprintError::Stopped);
            }
        }
        image.check()?;
    }
    target.write(watch.stop)
}

/// Writes imported rows, as [`fingerprint`] writes those of images. Guests are numbered in the order of their
/// names.
///
/// # Errors
/// As [`fingerprint`], except for errors of images.
pub fn write_rows(
    rows: impl Iterator<Item = ContentCount>,
    guests: Vec<String>,
    key: &Key,
    to: Destination,
) -> Result<(), FingerprintError> {
    let mut target = Target::create(to, key.id(), BITS, guests)?;
    for row in rows {
        target.sorter.push(row)?;
    }
    target.write(&AtomicBool::new(false))
}

/// A directory that gets its name when it is complete.
pub struct Target {
    made: tempfile::TempDir,
    dir: PathBuf,
    about: About,
    /// The rows so far.
    pub sorter: Sorter,
}

impl Target {
    /// Makes a temporary directory beside the destination, which must not exist or must be empty.
    pub fn create(
        to: Destination,
        key_id: String,
        bits: u32,
        guests: Vec<String>,
    ) -> Result<Target, FingerprintError> {
        let Destination { dir, parts, memory } = to;
        let empty = std::fs::read_dir(dir).map(|mut entries| entries.next().is_none());
        if dir.exists() && !empty.unwrap_or(false) {
            return Err(FingerprintError::Exists { path: dir.into() });
        }
        let beside = match dir.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        let made = tempfile::Builder::new()
            .prefix(UNFINISHED)
            .suffix(".tmp")
            .tempdir_in(beside)
            .map_err(FingerprintError::io("make a directory in", beside))?;
        let about = About { version: VERSION, key_id, bits, parts, guests };
        Ok(Target { made, dir: dir.into(), about, sorter: Sorter::new(memory, beside) })
    }

    /// Writes all rows, part after part, and gives the directory its name.
    pub fn write(self, stop: &AtomicBool) -> Result<(), FingerprintError> {
        let about = &self.about;
        let mut rows = self.sorter.finish()?;
        let mut next = rows.next()?;
        for part in 0..about.parts {
            let mut file = Writer::create(self.made.path(), about, part)?;
            while let Some(row) = next.filter(|r| part_of(r.fingerprint, about.parts) == part) {
                file.push(row)?;
                next = rows.next()?;
            }
            file.finish()?;
            if stop.load(Ordering::Relaxed) {
                return Err(FingerprintError::Stopped);
            }
        }
        // What tempfile makes is for its owner alone, which suits fingerprints.
        let made = self.made.keep();
        std::fs::rename(&made, &self.dir).map_err(|e| {
            // The directory is complete, but without its name, so it is removed.
            let _ = std::fs::remove_dir_all(&made);
            FingerprintError::io("create", &self.dir)(e)
        })
    }
}

/// Frames up to the next border of 2 MB, and where their bytes are.
#[derive(Debug)]
struct Unit {
    gfn: u64,
    bytes: Vec<Range<usize>>,
}

impl Unit {
    fn pages(&self) -> u64 {
        self.bytes.iter().map(|b| (b.len() / PAGE) as u64).sum()
    }
}

fn units(image: &Image) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    for run in image.runs() {
        let (mut gfn, mut at) = (run.gfn, run.bytes.start);
        while at < run.bytes.end {
            let left = (HUGE - gfn % HUGE) as usize * PAGE;
            let bytes = at..(at + left).min(run.bytes.end);
            let pages = (bytes.len() / PAGE) as u64;
            at = bytes.end;
            match units.last_mut() {
                // The dump has this 2 MB page in two pieces.
                Some(last) if last.gfn + last.pages() == gfn && gfn % HUGE != 0 => last.bytes.push(bytes),
                _ => units.push(Unit { gfn, bytes: vec![bytes] }),
            }
            gfn += pages;
        }
    }
    units
}

/// A row for each page, and one for the 2 MB page if it is whole.
fn rows(image: &Image, unit: &Unit, key: &Key, guest: u32) -> Vec<ContentCount> {
    let pages = unit.bytes.iter().flat_map(|b| image.bytes()[b.clone()].chunks_exact(PAGE));
    let of_page = |page: &[u8]| if page.iter().all(|b| *b == 0) { [0; 2] } else { key.fingerprint(page) };
    let mut rows: Vec<ContentCount> =
        pages.map(|page| ContentCount::new(of_page(page), false, guest, 1)).collect();
    if unit.gfn % HUGE == 0 && rows.len() as u64 == HUGE {
        let halves = rows.iter().flat_map(|r| r.fingerprint);
        let zero = halves.clone().all(|half| half == 0);
        let bytes: Vec<u8> = halves.flat_map(u64::to_be_bytes).collect();
        rows.push(ContentCount::new(if zero { [0; 2] } else { key.fingerprint(&bytes) }, true, guest, 1));
    }
    rows
}
