// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share fingerprint`, `count`, `merge` and `import`: count what guests of many machines could share.

use super::counted::{CountShowArgs, show};
use super::guests::{images, stopped, watched};
use super::out::OutArgs;
use crate::console::{note, note_file, stop_on_signals};
use crate::status::Status;
use crate::usage::UsageError;
use crate::words::{self, MIB};
use anyhow::Context as _;
use bifold_base::bounded;
use bifold_share::fingerprint::{self as prints, Destination, FingerprintError, Key, Part};
use bifold_share::image::{file_name, name_and_source};
use clap::Args;
use std::ffi::OsString;
use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};

/// Most bytes of a result: matrices of guests by guests, with some hundred bytes each.
const MOST_BYTES: u64 = 1 << 30;

const EXAMPLES: &str = "\
Examples:
  bifold share fingerprint --key site.key -o host1 web.core db.core
  bifold share potential host1 host2
  bifold share count --part 17 -o 17.json host1 host2
  bifold share merge *.json";

/// Write fingerprints of guests' pages, to count them with those of other machines
///
/// Writes a directory of Parquet files with columns fingerprint, page_bytes, guest and count. A fingerprint
/// is BLAKE3 keyed with a secret, cut to 128 bits; the fingerprint of an all-zero page is zero. Fingerprints
/// are divided into parts by hash range, so that independent jobs can count the parts.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
#[command(group = clap::ArgGroup::new("secret").required(true).args(["key", "unkeyed"]))]
pub struct FingerprintArgs {
    /// Memory of guests, as for `share potential`
    #[arg(value_name = "[NAME=]IMAGE", required = true)]
    pub images: Vec<OsString>,

    /// Key the fingerprints with the secret in FILE, which is created if missing
    ///
    /// Fingerprints with the same key can be counted together. The key lets its owner test whether a
    /// guest has a known page: keep it on the machines that make fingerprints.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,

    /// Use no key: anyone who sees the fingerprints can test for known pages
    #[arg(long)]
    pub unkeyed: bool,

    /// Options of the fingerprints' directory.
    #[command(flatten)]
    pub into: IntoArgs,
}

/// Options of the fingerprints' directory.
#[derive(Debug, Args)]
pub struct IntoArgs {
    /// Write the fingerprints into DIR, which must not exist
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,

    /// Number of parts, which can be counted independently
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub parts: u32,

    /// Memory for sorting; larger sorts use files beside DIR
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = bytes)]
    pub memory: u64,

    /// No progress and no notes on stderr
    #[arg(short, long)]
    pub quiet: bool,
}

impl IntoArgs {
    fn destination(&self) -> Destination<'_> {
        Destination { dir: &self.output, parts: self.parts, memory: self.memory }
    }
}

/// Count one part of fingerprints, for `share merge`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct CountArgs {
    /// Directories that `share fingerprint` wrote, in the same order for every part
    #[arg(value_name = "DIR", required = true)]
    pub dirs: Vec<PathBuf>,

    /// The part to count, from 0 on
    #[arg(long, value_name = "P")]
    pub part: u32,

    /// Options of the count.
    #[command(flatten)]
    pub room: RoomArgs,

    /// Options of the output.
    #[command(flatten)]
    pub out: OutArgs,
}

/// Options of the memory and disk for a count.
#[derive(Debug, Args)]
pub struct RoomArgs {
    /// Memory for fingerprints; larger sorts use files in --spill
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = bytes)]
    pub memory: u64,

    /// Directory for files of larger sorts [default: TMPDIR, or /tmp]
    #[arg(long, value_name = "DIR")]
    pub spill: Option<PathBuf>,
}

/// Add the counts of all parts, which gives the figures of `share potential`
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct MergeArgs {
    /// Results of `share count` for all parts
    #[arg(value_name = "RESULT", required = true)]
    pub results: Vec<PathBuf>,

    /// Options of the output.
    #[command(flatten)]
    pub show: CountShowArgs,
}

/// Import a list of 32-bit hashes, as in published data sets
///
/// Different contents can have the same 32-bit hash, so such lists over-count sharing. `share potential`
/// prints how much chance collisions add.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// A guest's list: per line a hash of 32 bits in hexadecimal digits, or HASH,COUNT
    #[arg(value_name = "[NAME=]FILE")]
    pub list: OsString,

    /// The hash of the all-zero page; without it, zero pages count as any other content
    #[arg(long, value_name = "HASH", value_parser = hash)]
    pub zero: Option<u32>,

    /// Options of the fingerprints' directory.
    #[command(flatten)]
    pub into: IntoArgs,
}

/// Bytes of memory, 1 MiB or more.
fn bytes(text: &str) -> Result<u64, String> {
    words::size_within(text, 1, MIB..=u64::MAX, "1 MiB or more")
}

fn hash(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u32::from_str_radix(digits, 16).map_err(|_| "up to 8 hexadecimal digits are wanted".into())
}

/// `bifold share fingerprint`.
pub fn write(args: &FingerprintArgs) -> anyhow::Result<Status> {
    let stop = stop_on_signals()?;
    let images = images(&args.images)?;
    let key = match &args.key {
        None => Key::none(),
        Some(path) => {
            let (key, made) = Key::open_or_make(path).map_err(refused)?;
            note_file(made && !args.into.quiet, "a new key", path);
            key
        }
    };
    let written = watched(&images, &stop, args.into.quiet, |watch| {
        prints::fingerprint(&images, &key, args.into.destination(), watch)
    });
    match written {
        Err(FingerprintError::Stopped) => return Ok(stopped(&FingerprintError::Stopped)),
        done => done.map_err(refused)?,
    }
    note_file(!args.into.quiet, "fingerprints", &args.into.output);
    Ok(Status::Done)
}

/// The usage error for a directory that exists, or for a file that is no key.
fn refused(error: FingerprintError) -> anyhow::Error {
    let argument = match error {
        FingerprintError::Exists { .. } => "--output",
        FingerprintError::OpenKey { .. } | FingerprintError::BadKey { .. } => "--key",
        _ => return error.into(),
    };
    UsageError::value(argument, error).failing().into()
}

/// `bifold share count`.
pub fn count(args: &CountArgs) -> anyhow::Result<Status> {
    let output = args.out.create()?;
    let RoomArgs { memory, spill } = &args.room;
    let spill = spill.clone().unwrap_or_else(std::env::temp_dir);
    let no_such_part =
        || args.dirs.iter().any(|dir| prints::directory(dir).is_ok_and(|about| args.part >= about.parts));
    let part = prints::count_part(&args.dirs, args.part, *memory, &spill).map_err(|e| match e {
        FingerprintError::Content { .. } if no_such_part() => {
            UsageError::value(format!("--part {}", args.part), e).failing().into()
        }
        e => anyhow::Error::from(e),
    })?;
    let part = part.render();
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
    let (name, source) = name_and_source(&args.list, Path::new(""));
    let path = Path::new(source);
    let file = File::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let name = name.unwrap_or_else(|| file_name(path));
    let (list, dir) = (BufReader::new(file), &args.into.output);
    let done = prints::import(&name, path, list, args.zero, args.into.destination()).map_err(refused)?;
    let text = format!(
        "{} pages on {} lines; hashes of 32 bits over-count sharing, see `bifold share potential {}`",
        done.pages,
        done.lines,
        dir.display()
    );
    note(!args.into.quiet, text);
    note_file(!args.into.quiet, "fingerprints", dir);
    Ok(Status::Done)
}
