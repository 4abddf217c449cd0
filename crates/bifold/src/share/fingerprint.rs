// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share fingerprint`, `count`, `merge` and `import`: what guests of many machines could share.

use super::potential::{images, name_and_source, show, stopped, watched};
use crate::run::{note_file, stop_on_signals};
use crate::share::args::{CountArgs, FingerprintArgs, ImportArgs, MergeArgs, RoomArgs};
use crate::status::Status;
use anyhow::Context as _;
use bifold_share::fingerprint::{self as prints, FingerprintError, Key, Part};
use bifold_share::potential::Potential;
use bifold_trace::bounded;
use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// More than any result has: matrices of guests by guests, some hundred bytes each.
const MOST_BYTES: u64 = 1 << 30;
/// Memory where nobody is asked.
const MEMORY: u64 = 2 << 30;

/// `bifold share fingerprint`.
pub fn write(args: &FingerprintArgs) -> anyhow::Result<Status> {
    let stop = stop_on_signals()?;
    let images = images(&args.images)?;
    let key = match &args.key {
        None => Key::none(),
        Some(path) => {
            let (key, made) = Key::open_or_make(path)?;
            note_file(made && !args.into.quiet, "a new key", path);
            key
        }
    };
    let written = watched(&images, &stop, args.into.quiet, |watch| {
        prints::fingerprint(&images, &key, args.into.parts, args.into.memory, &args.into.output, watch)
    });
    match written {
        Err(FingerprintError::Stopped) => return Ok(stopped(&FingerprintError::Stopped)),
        done => done?,
    }
    note_file(!args.into.quiet, "fingerprints", &args.into.output);
    Ok(Status::Done)
}

/// `bifold share count`.
pub fn count(args: &CountArgs) -> anyhow::Result<Status> {
    let output = args.out.create()?;
    let RoomArgs { memory, spill } = &args.room;
    let spill = spill.clone().unwrap_or_else(std::env::temp_dir);
    let part = prints::count_part(&args.dirs, args.part, *memory, &spill)?.render();
    args.out.write(output, &part)?;
    Ok(Status::Done)
}

/// `bifold share merge`.
pub fn merge(args: &MergeArgs) -> anyhow::Result<Status> {
    let output = args.show.out.create()?;
    let read = |path: &PathBuf| {
        let text = bounded::read_to_string(path, MOST_BYTES)
            .with_context(|| format!("cannot read {}", path.display()))?;
        let part = Part::parse(&text).map_err(|e| anyhow::anyhow!("{}: {e}", path.display()))?;
        Ok((path.clone(), part))
    };
    let results = args.results.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    show(&prints::merge(results, args.show.count)?, &args.show, output)
}

/// `bifold share import`.
pub fn import(args: &ImportArgs) -> anyhow::Result<Status> {
    let (name, source) = name_and_source(&args.list);
    let path = Path::new(source);
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let name = name.unwrap_or_else(|| {
        path.file_name().map_or_else(|| source.to_string_lossy(), |n| n.to_string_lossy()).into_owned()
    });
    let (list, dir) = (BufReader::new(file), &args.into.output);
    let done = prints::import(&name, path, list, args.zero, args.into.parts, args.into.memory, dir)?;
    if !args.into.quiet {
        eprintln!(
            "bifold: {} pages on {} lines; hashes of 32 bits over-count sharing, see `bifold share potential {}`",
            done.pages,
            done.lines,
            dir.display()
        );
        note_file(true, "fingerprints", dir);
    }
    Ok(Status::Done)
}

/// The directories among what a user named: all of it, or nothing.
pub fn directories(words: &[OsString]) -> anyhow::Result<Option<Vec<PathBuf>>> {
    let (dirs, others): (Vec<PathBuf>, Vec<PathBuf>) =
        words.iter().map(PathBuf::from).partition(|path| path.is_dir());
    match (dirs.first(), others.first()) {
        (Some(dir), Some(image)) => anyhow::bail!(
            "{} is a directory of fingerprints and {} is not: images and fingerprints cannot be counted together; \
             fingerprint the images with the same key",
            dir.display(),
            image.display()
        ),
        (Some(_), None) => Ok(Some(dirs)),
        (None, _) => Ok(None),
    }
}

/// Counts all parts, one after another.
pub fn count_all(dirs: &[PathBuf], top: usize) -> anyhow::Result<Potential> {
    let parts = prints::directory(&dirs[0])?.parts;
    let spill = std::env::temp_dir();
    let result = |p| Ok((dirs[0].clone(), prints::count_part(dirs, p, MEMORY, &spill)?));
    let results = (0..parts).map(result).collect::<Result<Vec<_>, FingerprintError>>()?;
    Ok(prints::merge(results, top)?)
}
