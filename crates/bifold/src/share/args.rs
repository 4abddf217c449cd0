// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user may write after `bifold share`.

use crate::cli::FormatArg;
use crate::run::{note_file, print};
use bifold_report::OutputFile;
use clap::{Args, Subcommand, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

macro_rules! potential_examples {
    () => {
        "\
Examples:
  virsh dump --memory-only --live web web.core
  bifold share potential web.core db.core --kernel vmlinux
  bifold share potential web=/dev/shm/web-ram db=pid:4242
  bifold share potential --method sha1 --format csv -o count.csv *.core"
    };
}

macro_rules! fingerprint_examples {
    () => {
        "\
Examples:
  bifold share fingerprint --key site.key -o host1 web.core db.core
  bifold share potential host1 host2
  bifold share count --part 17 -o 17.json host1 host2
  bifold share merge *.json"
    };
}
/// The verbs of `bifold share`.
#[derive(Debug, Subcommand)]
pub enum ShareVerb {
    /// Count how much memory guests could share at most
    ///
    /// Reads memory images of guests and counts, exactly, zero pages, distinct contents (the minimum of
    /// frames), repeats inside a guest (intra) and further repeats across guests (inter), so that pages =
    /// zero + minimum + intra + inter: for all guests and for each, where a content's frame is charged
    /// to the first guest that has it. The same is counted for 2 MB pages.
    ///
    /// IMAGE is raw RAM, an ELF core (virsh dump --memory-only, or dump-guest-memory in QEMU's monitor),
    /// the shared memory file of a running QEMU, or pid:N, the memory of a running QEMU. NAME is what the
    /// guest is called in the results; without it, that is the file's name. Directories of `share
    /// fingerprint` are counted, too, but not together with images.
    #[command(after_help = potential_examples!())]
    Potential(Box<PotentialArgs>),
    /// Write fingerprints of guests' pages, to be counted with those of other machines
    ///
    /// Writes a directory of Parquet files with columns fingerprint, page_bytes, guest and count. A
    /// fingerprint is BLAKE3 keyed with a secret, cut to 128 bits; all-zero pages have zero. Each content is
    /// in the file of one part of the hash's range, so that parts are counted by independent jobs.
    #[command(after_help = fingerprint_examples!())]
    Fingerprint(Box<FingerprintArgs>),
    /// Count one part of fingerprints, for `share merge`
    #[command(after_help = fingerprint_examples!())]
    Count(Box<CountArgs>),
    /// Add the counts of all parts: the figures of `share potential`
    #[command(after_help = fingerprint_examples!())]
    Merge(Box<MergeArgs>),
    /// Make fingerprints of a list of 32-bit hashes, as published data sets have them
    ///
    /// Different contents share a hash of 32 bits, so such lists over-count sharing; how much is to be
    /// expected is said where they are counted.
    Import(Box<ImportArgs>),
    /// Predict what a scanner would share of guests' memory, when, and at what price
    ///
    /// Runs a model of the kernel's ksmd, or of VMware's TPS, over memory images that do not change, and
    /// prints after each pass what is shared and what CPU time the scanner took. All pages of an image
    /// count as pages that the guest has touched; what it never touched has no page on the host, and
    /// would not be scanned. CPU times are those of one machine and tell kinds of memory apart, not
    /// machines. `bifold share check` shows how the model of ksmd agrees with this kernel.
    #[command(after_help = crate::share::model::EXAMPLES)]
    Model(Box<crate::share::model::ModelArgs>),
    /// Check the model of ksmd against this kernel's, pass by pass
    ///
    /// Makes memory with known contents, has the kernel's KSM go over it one pass at a time, and prints
    /// what the model predicted beside what became of these pages by their page tables, so that other
    /// processes' memory is not in it. Exit status 3 if pages_shared,
    /// pages_sharing or ksm_zero_pages are off by more than --tolerance anywhere. Unmerges what KSM has
    /// merged on this host, and restores KSM's settings in the end, also when it is killed.
    #[command(after_help = crate::share::check::EXAMPLES)]
    Check(Box<crate::share::check::CheckArgs>),
    /// Run an experiment: real guests under the real KSM, watched from outside
    ///
    /// Starts the guests that the file describes (QEMU without KVM, their memory mergeable), a workload in
    /// each, and the kernel's KSM with the file's settings, which run while memory is short, as ksmtuned
    /// has it. Samples memory, sharing, ksmd's CPU time and copies of merged pages, stops the guests at
    /// marked times to count what they could share, and ends in tables, rows and a report. Case after
    /// case, with guests of its own each.
    ///
    /// Needs root and a kernel with KSM. Its settings are restored in the end, also when the command is
    /// killed; the guests end with it.
    #[command(after_help = crate::share::run::EXAMPLES)]
    Run(Box<crate::share::run::RunArgs>),
    /// Watch this host's sharing: KSM's counters, their rates, ksmd's CPU time, each guest's pages
    ///
    /// On a terminal the view is drawn again at each interval. `csv` has one row per time for the host,
    /// whose `domain` is empty, and one per guest. Nothing is changed; root sees all guests.
    #[command(after_help = crate::share::watch::EXAMPLES)]
    Watch(crate::share::watch::WatchArgs),
    /// Say what this host's KSM is worth, what it could be and costs, and which settings to try
    ///
    /// Reads KSM's counters, ksmd's CPU time, memory and its pressure, NUMA nodes, huge pages and the
    /// processes that run guests, and says what to try, what to turn off and what to know, each with its
    /// reason and the commands. Nothing is changed.
    #[command(after_help = crate::share::advise::EXAMPLES)]
    Advise(crate::share::advise::AdviseArgs),
}

/// Arguments of `share potential`.
#[derive(Debug, Args)]
pub struct PotentialArgs {
    /// Memory of guests
    #[arg(value_name = "[NAME=]IMAGE", required = true)]
    pub images: Vec<OsString>,

    /// How equal pages are found
    ///
    /// `xxh3` is XXH3-128, and every repeat is compared byte by byte, so nothing that a guest holds can
    /// make the count wrong. `sha1` repeats the method of published measurements.
    #[arg(long, value_enum, default_value_t = MethodArg::Xxh3, hide_possible_values = true, value_name = "xxh3|sha1")]
    pub method: MethodArg,

    /// Do not compare repeats byte by byte
    ///
    /// Faster. Pages made to collide are then counted as equal, and pages that change while they are read
    /// are not noticed.
    #[arg(long)]
    pub no_verify: bool,

    /// Recognise the pages of a kernel, which must not be compressed (repeatable)
    #[arg(long, value_name = "VMLINUX")]
    pub kernel: Vec<PathBuf>,

    /// Recognise the pages of any file, such as a library (repeatable)
    #[arg(long, value_name = "FILE")]
    pub known: Vec<PathBuf>,

    /// What is printed.
    #[command(flatten)]
    pub show: CountShowArgs,
}

/// What is printed of a count, and how.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct CountShowArgs {
    /// Number of most repeated contents to list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub count: usize,

    /// Form of the data
    ///
    /// `table` is for reading. `json` is one document (schema bifold.share-potential/1). `csv` has one row
    /// per guest and page size; `jsonl` has the same rows as objects, and those of contents and pairs.
    #[arg(long, value_enum, default_value_t = FormatArg::Table, hide_possible_values = true,
          value_name = "table|json|jsonl|csv")]
    pub format: FormatArg,

    /// Where the data goes.
    #[command(flatten)]
    pub out: OutArgs,
}

/// Where the data goes, and what is said beside it.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutArgs {
    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// No progress and no notes on stderr
    #[arg(short, long)]
    pub quiet: bool,
}

impl OutArgs {
    /// Opens the file, if there is one: before any work, so that an unwritable path costs no time.
    pub fn create(&self) -> anyhow::Result<Option<OutputFile>> {
        Ok(self.output.as_deref().map(OutputFile::create).transpose()?)
    }

    /// Writes the data to what [`create`](OutArgs::create) gave.
    pub fn write(&self, file: Option<OutputFile>, data: &str) -> anyhow::Result<()> {
        match (file, &self.output) {
            (Some(file), Some(path)) => {
                file.finish(data.as_bytes())?;
                note_file(!self.quiet, "data", path);
                Ok(())
            }
            _ => print(data),
        }
    }
}

/// How equal pages are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // documented at `--method`
pub enum MethodArg {
    Xxh3,
    Sha1,
}

/// Arguments of `share fingerprint`.
#[derive(Debug, Args)]
#[command(group = clap::ArgGroup::new("secret").required(true).args(["key", "unkeyed"]))]
pub struct FingerprintArgs {
    /// Memory of guests, as for `share potential`
    #[arg(value_name = "[NAME=]IMAGE", required = true)]
    pub images: Vec<OsString>,

    /// Key the fingerprints with the secret in FILE, which is made if it is not there
    ///
    /// Fingerprints made with one key can be counted together. Whoever has the key can test whether a
    /// guest holds a page that he knows; keep it on the machines that fingerprint.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,

    /// Use no key: anyone who sees the fingerprints can test for pages that he knows
    #[arg(long)]
    pub unkeyed: bool,

    /// Where they go.
    #[command(flatten)]
    pub into: IntoArgs,
}

/// Where fingerprints go.
#[derive(Debug, Args)]
pub struct IntoArgs {
    /// Write the fingerprints into DIR, which must not be there
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,

    /// Number of parts, each of which can be counted by itself
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u32).range(1..=65536))]
    pub parts: u32,

    /// Memory for sorting; what does not fit goes to files beside DIR
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = parse_bytes)]
    pub memory: u64,

    /// No progress and no notes on stderr
    #[arg(short, long)]
    pub quiet: bool,
}

/// Arguments of `share count`.
#[derive(Debug, Args)]
pub struct CountArgs {
    /// Directories that `share fingerprint` wrote, in the same order for every part
    #[arg(value_name = "DIR", required = true)]
    pub dirs: Vec<PathBuf>,

    /// The part to count, from 0 on
    #[arg(long, value_name = "P")]
    pub part: u32,

    /// How it is counted.
    #[command(flatten)]
    pub room: RoomArgs,

    /// Where the result goes.
    #[command(flatten)]
    pub out: OutArgs,
}

/// Memory and disk for counting.
#[derive(Debug, Args)]
pub struct RoomArgs {
    /// Memory for fingerprints; what does not fit is sorted in files
    #[arg(long, value_name = "SIZE", default_value = "2GiB", value_parser = parse_bytes)]
    pub memory: u64,

    /// Directory for such files [default: TMPDIR, or /tmp]
    #[arg(long, value_name = "DIR")]
    pub spill: Option<PathBuf>,
}

/// Arguments of `share merge`.
#[derive(Debug, Args)]
pub struct MergeArgs {
    /// Results of `share count` for all parts
    #[arg(value_name = "RESULT", required = true)]
    pub results: Vec<PathBuf>,

    /// What is printed.
    #[command(flatten)]
    pub show: CountShowArgs,
}

/// Arguments of `share import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// A guest's list: per line a hash of 32 bits in hexadecimal digits, or HASH,COUNT
    #[arg(value_name = "[NAME=]FILE")]
    pub list: OsString,

    /// The hash of the all-zero page; without it, zero pages are a content like others
    #[arg(long, value_name = "HASH", value_parser = parse_hash)]
    pub zero: Option<u32>,

    /// Where they go.
    #[command(flatten)]
    pub into: IntoArgs,
}

/// Bytes, as `2GiB`, `512MiB` or a number.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let unit = match unit.trim_end_matches("iB").trim_end_matches('B') {
        "" => 1,
        "K" | "k" => 1 << 10,
        "M" => 1 << 20,
        "G" => 1 << 30,
        "T" => 1u64 << 40,
        _ => return Err("a number with KiB, MiB, GiB or TiB is wanted".into()),
    };
    let bytes = number.parse().ok().and_then(|n: u64| n.checked_mul(unit));
    bytes.filter(|b| *b >= 1 << 20).ok_or_else(|| "1MiB or more is wanted".into())
}

fn parse_hash(text: &str) -> Result<u32, String> {
    let digits = text.strip_prefix("0x").unwrap_or(text);
    u32::from_str_radix(digits, 16).map_err(|_| "up to 8 hexadecimal digits are wanted".into())
}
