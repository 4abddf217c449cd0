// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The options of `tune`, and their help.

use crate::compare::GuestArgs;
use crate::run::ModelArgs;
use crate::{status, words};
use bifold_model::Placement;
use bifold_report::Format;
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold tune -- ./server --bench
  bifold tune --within 10m --state tune.json --report tune.html -- make -j1
  bifold tune --now nested-2m --try thp,malloc -- python3 job.py
  bifold tune --axis huge_pages=off,on -- postgres --single -c huge_pages={huge_pages} db";

/// Rank what settings of guest and host would gain for a command
///
/// Runs CMD in guests with different settings, predicts its time in each paging mode and host page size, and
/// ranks the changes by what they gain against now, alone and together. Says how to make each change and what
/// it costs. The guest's settings are those of huge pages (THP; glibc's malloc with THP and with hugetlbfs),
/// page-table isolation, and axes of your own (--axis). A run is left out if the runs before show that it
/// cannot gain 1 % of the time. The VM is in the state of --vm.
#[derive(Debug, Args)]
#[command(override_usage = "bifold tune [OPTIONS] -- CMD...", after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct TuneArgs {
    /// The command to run in the guests, and its arguments
    #[arg(last = true, value_name = "CMD", required = true)]
    pub command: Vec<OsString>,

    /// Paging mode and host page size of now; the guest's settings of now are those of --thp and --kpti
    #[arg(long, value_name = "CONFIG", default_value = "nested-4k")]
    pub now: String,

    /// Where the memory of a guest with nodes lies now: `guest-numa`, `smp`, `interleaved` or `one-node`, as
    /// in --placement of `compare`
    #[arg(long, value_name = "PLACEMENT", default_value = "smp", value_parser = placement)]
    pub now_placed: Placement,

    /// Settings to try [default: all]
    ///
    /// LIST is separated by commas: `thp`, `malloc`, `kpti`, `placement`. The first run compares all paging
    /// modes and host page sizes, and further runs those that may still win; placements on the host's nodes
    /// in every run of a guest that has nodes (--guest-nodes).
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',', hide_possible_values = true)]
    pub r#try: Vec<Knob>,

    /// Also try the values of an axis of your own (repeatable)
    ///
    /// Each value takes the place of `{NAME}` in the command, or is the environment variable NAME where the
    /// command has no `{NAME}`. The first value is that of now:
    /// `--axis huge_pages=off,on -- postgres -c huge_pages={huge_pages}`, or two programs as
    /// `--axis server=./old,./new -- {server} --bench`.
    #[arg(long, value_name = "NAME=VALUE,VALUE", value_parser = axis)]
    pub axis: Vec<Axis>,

    /// Try every combination of the guest's settings, also those that cannot gain by the runs before
    #[arg(long)]
    pub all: bool,

    /// Begin no run that would not end within this time: 90s, 10m, 1h
    #[arg(long, value_name = "TIME", value_parser = words::duration)]
    pub within: Option<f64>,

    /// Keep what was tried in FILE, and do not repeat what FILE has of the same command and options
    #[arg(long, value_name = "FILE.json")]
    pub state: Option<PathBuf>,

    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// Also write an HTML report: one file that needs no network
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub report: Option<PathBuf>,

    /// No progress and no notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// Options of the model.
    #[command(flatten)]
    pub model: ModelArgs,

    /// The guests in which the command runs.
    #[command(flatten)]
    pub guest: GuestArgs,
}

/// The placements that a host can be given.
pub const PLACEMENTS: [Placement; 4] =
    [Placement::GuestNuma, Placement::Smp, Placement::Interleaved, Placement::OneNode];

fn placement(name: &str) -> Result<Placement, String> {
    let known = PLACEMENTS.into_iter().find(|p| p.name() == name);
    known.ok_or_else(|| format!("use {}", PLACEMENTS.map(Placement::name).join(", ")))
}

/// An axis of the user's own: a name, and at least two values of which the first is that of now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Axis {
    pub name: String,
    pub values: Vec<String>,
}

fn axis(text: &str) -> Result<Axis, String> {
    let (name, values) = text.split_once('=').ok_or("use NAME=VALUE,VALUE")?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if name.is_empty() || !name.chars().all(plain) || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err(format!("the name {name:?} is no variable's: use letters, digits and '_'"));
    }
    let values: Vec<String> = values.split(',').map(String::from).collect();
    if values.len() < 2 || (1..values.len()).any(|i| values[..i].contains(&values[i])) {
        return Err("give at least two values, each once; the first is that of now".into());
    }
    Ok(Axis { name: name.into(), values })
}

/// A kind of settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // documented at `--try`
pub enum Knob {
    Thp,
    Malloc,
    Kpti,
    Placement,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_axis_has_a_name_and_two_values() {
        let found = axis("huge_pages=off,on").unwrap();
        assert_eq!(
            (found.name.as_str(), &found.values[..]),
            ("huge_pages", &["off".into(), "on".to_string()][..])
        );
        assert_eq!(axis("OPTS=-a x,").unwrap().values, ["-a x", ""]);
        for bad in ["huge_pages", "=a,b", "a-b=1,2", "2a=1,2", "a=1", "a=1,1"] {
            axis(bad).expect_err(bad);
        }
    }
}
