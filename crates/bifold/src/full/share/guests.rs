// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Opens guests' memory that a user names as `[NAME=]IMAGE`, where IMAGE is a file or `pid:N`.

use crate::console::Progress;
use crate::status::Status;
use crate::usage::UsageError;
use bifold_share::image::{Image, ImageError, name_and_source};
use bifold_share::potential::Watch;
use bifold_trace::CommandExit;
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pages between two updates of the progress line: 256 MB.
const SAID: u64 = 1 << 16;

/// Opens the images that a user names. If two files have the same name, the second gets its path as name.
pub fn images(words: &[OsString]) -> anyhow::Result<Vec<Image>> {
    let mut named = HashSet::new();
    let mut images = Vec::new();
    for word in words {
        let (name, source) = name_and_source(word, Path::new(""));
        let image = open(source)?;
        let image = match name {
            Some(name) => image.named(name),
            None if named.contains(image.name()) => image.named(source.to_string_lossy()),
            None => image,
        };
        if !named.insert(image.name().to_string()) {
            let (twice, file) = (image.name(), source.to_string_lossy());
            let problem = format!("two guests are called {twice}: give them names, as in a={file}");
            return Err(UsageError::value("IMAGE", problem).into());
        }
        images.push(image);
    }
    Ok(images)
}

fn open(source: &OsStr) -> Result<Image, ImageError> {
    let pid = source.to_str().and_then(|s| s.strip_prefix("pid:")).and_then(|n| n.parse().ok());
    match pid {
        Some(pid) if !Path::new(source).exists() => Image::of_process(pid),
        _ => Image::open(source),
    }
}

/// Prints why the verb stopped, and returns the status of a stopped verb.
pub fn stopped(why: &dyn std::fmt::Display) -> Status {
    eprintln!("bifold: {why}");
    Status::OfCommand(CommandExit::Interrupted)
}

/// Works on images with a progress line on stderr.
pub fn watched<T>(images: &[Image], stop: &AtomicBool, quiet: bool, work: impl FnOnce(Watch) -> T) -> T {
    let all: u64 = images.iter().map(Image::len).sum();
    let bar = Progress::start(!quiet, "reading images");
    let done = AtomicU64::new(0);
    let progress = |pages| {
        let before = done.fetch_add(pages, Ordering::Relaxed);
        if before / SAID != (before + pages) / SAID {
            bar.say(&format!("{} of {} MB read", (before + pages) >> 8, all >> 8));
        }
    };
    let result = work(Watch { progress: &progress, stop });
    bar.end();
    result
}
