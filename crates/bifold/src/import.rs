// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold import`: a recording of what another tool has traced.

use crate::console::{Progress, distinct, named, not_stdout, note, note_file, stop_on_signals};
use crate::run::Notes;
use crate::status::{self, Status};
use crate::usage::UsageError;
use crate::words;
use bifold_import::{Importer, Kind, Options};
use bifold_report::grouped;
use bifold_trace::file::{Trailer, Writer};
use bifold_trace::{CommandExit, GuestPages};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

const EXAMPLES: &str = "\
Examples:
  valgrind --tool=lackey --trace-mem=yes --log-file=ls.lackey ls
  bifold import ls.lackey -o ls.bifold
  bifold compare ls.bifold
  bifold import --guest-pages 2m ls.lackey -o ls-2m.bifold && bifold diff ls.bifold ls-2m.bifold
  bifold import --from champsim --for 100M 605.mcf_s-665B.champsimtrace.xz -o mcf.bifold
  bifold import drmemtrace.ls.12345.dir -o ls.bifold";

/// Memory of the guest without `--memory`, MiB.
const MEMORY_MIB: u64 = 4096;
/// Sizes of a guest's pages by name.
const PAGES: [(&str, GuestPages); 2] = [("4k", GuestPages::Small), ("2m", GuestPages::Large)];

/// Make a recording of a trace of another tool
///
/// Reads a trace of lackey (`valgrind --tool=lackey --trace-mem=yes`), of DynamoRIO (drmemtrace: the
/// directory that it wrote, or a thread's file) or of ChampSim, plain or packed by gzip, xz or zstd. These
/// traces are of a user program alone. The page tables come from a simple operating system: one process,
/// pages of one size, a page fault at the first touch of each, frames in ascending order. The guide's page on
/// imports says what that leaves out. `bifold compare FILE` then costs every paging mode.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct ImportArgs {
    /// The trace; `-` for standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// Write the recording to FILE
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,

    /// The tool that made the trace [default: recognised by its first bytes]
    ///
    /// Traces of ChampSim begin with nothing by which to recognise them. They need this option, unless the
    /// file's name has `champsim` in it.
    #[arg(long, value_name = "lackey|drmemtrace|champsim", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(Kind::ALL.map(Kind::name)).map(kind))]
    from: Option<Kind>,

    /// Import N instructions at most: 500k, 100M, 2G
    #[arg(long = "for", value_name = "N", value_parser = instructions)]
    length: Option<u64>,

    /// Memory of the guest in MiB, or with a suffix: 512M, 16G [default: 4096]
    ///
    /// The import ends with an error if the program touches more.
    #[arg(short, long, value_name = "SIZE", value_parser = words::memory_mib)]
    memory: Option<u64>,

    /// Size of the guest's pages [default: 4k]
    ///
    /// With 2m, every page of the program has 2 MB, which is the most that huge pages can bring. A touched
    /// byte takes 2 MB of the guest's memory.
    #[arg(long, value_name = "4k|2m", hide_possible_values = true,
          value_parser = PossibleValuesParser::new(PAGES.map(|(name, _)| name)).map(pages))]
    guest_pages: Option<GuestPages>,

    /// Suppress notes and progress
    #[arg(short, long)]
    quiet: bool,
}

fn pages(name: String) -> GuestPages {
    PAGES.into_iter().find(|page| page.0 == name).expect("the parser takes these names only").1
}

fn kind(name: String) -> Kind {
    Kind::ALL.into_iter().find(|kind| kind.name() == name).expect("the parser takes names of kinds only")
}

fn instructions(text: &str) -> Result<u64, String> {
    words::instructions(text).ok_or_else(|| "not a number of instructions such as 500k, 100M or 2G".into())
}

/// Carries out the verb.
pub fn run(args: ImportArgs) -> anyhow::Result<Status> {
    if not_stdout(Some(&args.output)).is_none() {
        return Err(UsageError::value("--output -", "a recording needs a file").into());
    }
    distinct(
        &named([("the trace", Some(args.file.as_path()))]),
        &named([("--output", Some(args.output.as_path()))]),
    )?;
    if lies_within(&args.output, &args.file) {
        let problem = "lies in the directory of the trace, whose files are read: name another place";
        return Err(UsageError::conflict(format!("--output {}", args.output.display()), problem).into());
    }
    let frames = args.memory.unwrap_or(MEMORY_MIB) << 8;
    let pages = args.guest_pages.unwrap_or_default();
    let options = Options { kind: args.from, frames, pages, instructions: args.length };
    let stop = stop_on_signals()?;
    let mut importer = Importer::open(&args.file, &options)?;
    let mut writer = Writer::create(&args.output, &importer.header())?;
    let notes = Notes::new(args.quiet, false);
    let mut progress = Progress::start(notes.progress, "importing");
    while let Some(words) = importer.next_events()? {
        if stop.load(Ordering::Relaxed) {
            // The writer removes its unfinished file.
            return Ok(Status::OfCommand(CommandExit::Interrupted));
        }
        writer.write(&words)?;
        progress
            .say_again(|| format!("importing: {} million instructions", importer.instructions() / 1_000_000));
    }
    progress.end();
    writer.finish(&Trailer { partial: importer.partial(), ..Trailer::default() })?;
    let (instructions, mib) = (grouped(importer.instructions()), importer.frames() as f64 / 256.0);
    note(
        notes.notes,
        format_args!(
            "{instructions} instructions of {}a trace of {}; {mib:.1} MiB of memory and tables",
            importer.program().map_or(String::new(), |p| format!("{p}, by ")),
            importer.kind().tool()
        ),
    );
    note(
        notes.notes,
        "page faults, page tables and frames are made up by a simple operating system: the trace has the program's accesses alone",
    );
    if importer.partial() && args.length.is_none() {
        note(
            notes.notes,
            "the trace does not tell how the program ended: Valgrind may have been stopped before",
        );
    }
    note_file(notes.notes, "events", &args.output);
    Ok(Status::Done)
}

/// Whether a file is or will be somewhere below a directory.
fn lies_within(file: &Path, dir: &Path) -> bool {
    let parent = file.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (parent.canonicalize(), dir.canonicalize()) {
        (Ok(parent), Ok(dir)) => dir.is_dir() && parent.starts_with(dir),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_lies_within_the_directories_above_it_and_in_no_other() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("trace")).unwrap();
        assert!(lies_within(&dir.path().join("trace/new"), dir.path()));
        assert!(lies_within(&dir.path().join("trace/../new"), dir.path()));
        assert!(!lies_within(&dir.path().join("../new"), dir.path()));
        assert!(!lies_within(&dir.path().join("new"), &dir.path().join("trace")));
    }
}
