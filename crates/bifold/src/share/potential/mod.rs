// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share potential`: an exact count of what guests could share.
//!
//! The count is [`bifold_share::potential`]'s; here words become images, and the count becomes a table
//! ([`text`]) or rows and documents ([`data`]).

mod data;
mod text;

use crate::cli::FormatArg;
use crate::run::feed::Progress;
use crate::run::stop_on_signals;
use crate::share::args::{CountShowArgs, MethodArg, PotentialArgs};
use crate::status::Status;
use bifold_report::{Exit, OutputFile};
use bifold_share::image::{Image, ImageError};
use bifold_share::potential::{self, Known, Method, Options, Potential, PotentialError, Watch};
use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pages between two words of progress: 256 MB.
const SAID: u64 = 1 << 16;

/// Carries out the verb.
pub fn run(args: &PotentialArgs) -> anyhow::Result<Status> {
    let output = args.show.out.create()?;
    let stop = stop_on_signals()?;
    if let Some(dirs) = super::fingerprint::directories(&args.images)? {
        let potential = super::fingerprint::count_all(&dirs, args.show.count)?;
        return show(&potential, &args.show, output);
    }
    let images = images(&args.images)?;
    let method = match (args.method, args.no_verify) {
        (MethodArg::Sha1, _) => Method::Sha1,
        (MethodArg::Xxh3, true) => Method::Hashed,
        (MethodArg::Xxh3, false) => Method::Verified,
    };
    let kernels = args.kernel.iter().map(Known::open_kernel);
    let known = kernels.chain(args.known.iter().map(Known::open)).collect::<Result<Vec<_>, _>>()?;
    let options = Options { method, top: args.show.count, known };

    let counted = watched(&images, &stop, args.show.out.quiet, |watch| {
        potential::count_watched(&images, &options, watch)
    });
    match counted {
        Ok(potential) => show(&potential, &args.show, output),
        Err(PotentialError::Stopped) => Ok(stopped(&PotentialError::Stopped)),
        Err(e) => Err(e.into()),
    }
}

/// Says that a signal ended it.
pub fn stopped(why: &dyn std::fmt::Display) -> Status {
    eprintln!("bifold: {why}");
    Status::OfCommand(Exit::Interrupted)
}

/// Does something with images, with progress on stderr.
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

/// Prints or writes a count, and says what is to be known of it.
pub fn show(
    potential: &Potential,
    args: &CountShowArgs,
    output: Option<OutputFile>,
) -> anyhow::Result<Status> {
    let text = match args.format {
        FormatArg::Table => text::table(potential),
        FormatArg::Json => data::json(potential)?,
        FormatArg::Jsonl => data::jsonl(potential)?,
        FormatArg::Csv => data::csv(potential)?,
    };
    args.out.write(output, &text)?;
    if potential.changed > 0 && !args.out.quiet {
        eprintln!(
            "bifold: {} pages changed while they were read and count as contents of their own; pause the guests for \
             an exact count",
            potential.changed
        );
    }
    Ok(Status::Done)
}

/// Opens what a user named. Names of files are made longer where two are the same.
pub fn images(words: &[OsString]) -> anyhow::Result<Vec<Image>> {
    let mut named = HashSet::new();
    let mut images = Vec::new();
    for word in words {
        let (name, source) = name_and_source(word);
        let image = open(source)?;
        let image = match name {
            Some(name) => image.named(name),
            None if named.contains(image.name()) => image.named(source.to_string_lossy()),
            None => image,
        };
        if !named.insert(image.name().to_string()) {
            anyhow::bail!(
                "two guests are called {}: give them names, as in a={}",
                image.name(),
                source.to_string_lossy()
            );
        }
        images.push(image);
    }
    Ok(images)
}

/// `NAME=SOURCE`, unless that is a file's own name.
pub fn name_and_source(word: &OsStr) -> (Option<String>, &OsStr) {
    let bytes = word.as_bytes();
    match bytes.iter().position(|b| *b == b'=') {
        Some(at) if at > 0 && !Path::new(word).exists() => {
            let name = String::from_utf8_lossy(&bytes[..at]);
            // Of `./a=b/c`, nothing is a name.
            if name.contains('/') {
                return (None, word);
            }
            (Some(name.into_owned()), OsStr::from_bytes(&bytes[at + 1..]))
        }
        _ => (None, word),
    }
}

fn open(source: &OsStr) -> Result<Image, ImageError> {
    let pid = source.to_str().and_then(|s| s.strip_prefix("pid:")).and_then(|n| n.parse().ok());
    match pid {
        Some(pid) if !Path::new(source).exists() => Image::of_process(pid),
        _ => Image::open(source),
    }
}
