// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share potential`: counts exactly how much memory guests could share ([`bifold_share::potential`]).

use super::counted::{CountShowArgs, show};
use super::guests::{images, stopped, watched};
use crate::console::stop_on_signals;
use crate::status::Status;
use crate::usage::UsageError;
use bifold_share::fingerprint::{self as prints, FingerprintError};
use bifold_share::potential::{self, Known, Method, Options, Potential, PotentialError};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

/// Memory for counting fingerprints.
const MEMORY: u64 = 2 << 30;

const EXAMPLES: &str = "\
Examples:
  virsh dump --memory-only --live web web.core
  bifold share potential web.core db.core --kernel vmlinux
  bifold share potential web=/dev/shm/web-ram db=pid:4242
  bifold share potential --method sha1 --format csv -o count.csv *.core";

/// Count how much memory guests could share at most
///
/// Reads memory images of guests and counts exactly: zero pages, distinct contents (minimum), repeats inside
/// a guest (intra) and further repeats across guests (inter), so that pages = zero + minimum + intra + inter.
/// The counts are for all guests and for each guest; a content's frame is charged to the first guest that has
/// the content. 2 MB pages are counted in the same way.
///
/// IMAGE is raw RAM, an ELF core (virsh dump --memory-only, or dump-guest-memory in QEMU's monitor), the
/// shared memory file of a running QEMU, or pid:N for the memory of a running QEMU. NAME is the guest's name
/// in the results [default: the file's name]. IMAGE may also be a directory of `share fingerprint`, but not
/// together with images.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PotentialArgs {
    /// Memory images of guests
    #[arg(value_name = "[NAME=]IMAGE", required = true)]
    pub images: Vec<OsString>,

    /// How to find equal pages
    ///
    /// `xxh3` is XXH3-128 with a byte-by-byte comparison of every repeat, so that no content can make the
    /// count wrong. `sha1` is the method of published measurements.
    #[arg(long, value_enum, default_value_t = MethodArg::Xxh3, hide_possible_values = true, value_name = "xxh3|sha1")]
    pub method: MethodArg,

    /// Do not compare repeats byte by byte
    ///
    /// Faster. But pages made to collide count as equal, and pages that change during the count go
    /// unnoticed.
    #[arg(long)]
    pub no_verify: bool,

    /// Recognise the pages of a kernel, which must not be compressed (repeatable)
    #[arg(long, value_name = "VMLINUX")]
    pub kernel: Vec<PathBuf>,

    /// Recognise the pages of any file, such as a library (repeatable)
    #[arg(long, value_name = "FILE")]
    pub known: Vec<PathBuf>,

    /// Options of the output.
    #[command(flatten)]
    pub show: CountShowArgs,
}

/// The method to find equal pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // documented at `--method`
pub enum MethodArg {
    Xxh3,
    Sha1,
}

/// Carries out the verb.
pub fn run(args: &PotentialArgs) -> anyhow::Result<Status> {
    let output = args.show.out.create()?;
    let stop = stop_on_signals()?;
    if let Some(dirs) = directories(&args.images)? {
        let potential = count_all(&dirs, args.show.count)?;
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

/// The directories of fingerprints that a user named instead of images, if they are any.
fn directories(words: &[OsString]) -> Result<Option<Vec<PathBuf>>, UsageError> {
    let (dirs, others): (Vec<PathBuf>, Vec<PathBuf>) =
        words.iter().map(PathBuf::from).partition(|path| path.is_dir());
    match (dirs.first(), others.first()) {
        (Some(dir), Some(image)) => {
            let problem = format!(
                "{} is a directory of fingerprints and {} is an image: they cannot be counted together; fingerprint \
                 the images with the same key",
                dir.display(),
                image.display()
            );
            Err(UsageError::value("IMAGE", problem).failing())
        }
        (Some(_), None) => Ok(Some(dirs)),
        (None, _) => Ok(None),
    }
}

/// Counts all parts, one after another.
fn count_all(dirs: &[PathBuf], top: usize) -> anyhow::Result<Potential> {
    let parts = prints::directory(&dirs[0])?.parts;
    let spill = std::env::temp_dir();
    let result = |p| Ok((dirs[0].clone(), prints::count_part(dirs, p, MEMORY, &spill)?));
    let results = (0..parts).map(result).collect::<Result<Vec<_>, FingerprintError>>()?;
    Ok(prints::merge(results, top)?)
}
