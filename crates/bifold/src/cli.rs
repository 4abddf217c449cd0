// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line: the list of verbs, and the form of usage errors. Each verb's options and their help are
//! in the verb's module.
//!
//! The first paragraph of a comment on an option is what `-h` shows, all of it is what `--help` and the
//! man pages show.

#[cfg(feature = "noise")]
use crate::noise;
use crate::usage::UsageError;
use crate::{cache, compact, compare, diff, doctor, import, profile, schema, status};
#[cfg(feature = "host")]
use crate::{ci, ctl, daemon, export, mode, place, policy, reclaim, share, stat, sweep, top, tune};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command, CommandFactory as _, FromArgMatches as _, Parser, Subcommand};
use std::path::PathBuf;

/// See what each paging mode of a hypervisor costs a real program.
///
/// Bifold runs an unchanged program in a real Linux guest under QEMU; it needs neither KVM nor
/// performance counters. It follows every load, store, page-table write and CR3 load of the program and
/// its kernel, and prints what they would cost under native, nested and shadow paging.
#[derive(Debug, Parser)]
#[command(
    name = "bifold",
    version = bifold_base::version(),
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    after_help = left_out_in_words(),
    after_long_help = [&left_out_in_words(), status::IN_WORDS].concat()
)]
pub struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
}

/// The features of the crate: name, whether this build has it, its verbs.
const FEATURES: [(&str, bool, &[&str]); 3] = [
    (
        "host",
        cfg!(feature = "host"),
        &[
            "ci", "tune", "sweep", "export", "policy", "stat", "top", "mode", "daemon", "ctl", "share",
            "place", "reclaim",
        ],
    ),
    ("noise", cfg!(feature = "noise"), &["noise"]),
    ("train", cfg!(feature = "train"), &["policy train"]),
];

/// The verbs that this build leaves out, for the help.
fn left_out_in_words() -> String {
    let all: Vec<&str> = FEATURES.iter().filter(|f| !f.1).flat_map(|f| f.2).copied().collect();
    // `policy` says the same as `policy` and `policy train`.
    let above = |verb: &str| verb.split_once(' ').is_some_and(|(above, _)| all.contains(&above));
    let left: Vec<&str> = all.iter().copied().filter(|verb| !above(verb)).collect();
    match &left[..] {
        [] => String::new(),
        [one] => format!("Without {one}: `make build` adds it.\n\n"),
        [most @ .., last] => format!("Without {} and {last}: `make build` adds them.\n\n", most.join(", ")),
    }
}

/// The feature for which this build lacks the verb, or what stands below it: `share`, `share run`,
/// `policy train`.
fn feature_of(verb: &str) -> Option<&'static str> {
    let below =
        |above: &str| verb.strip_prefix(above).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '));
    FEATURES.iter().find(|(_, built, verbs)| !built && verbs.iter().any(|v| below(v))).map(|f| f.0)
}

/// Whether this build leaves the verb out.
pub fn is_left_out(verb: &str) -> bool {
    feature_of(verb).is_some()
}

/// The verbs. The help of a verb is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
pub enum Verb {
    Compare(Box<compare::CompareArgs>),
    Record(Box<compare::RecordArgs>),
    Diff(Box<diff::DiffArgs>),
    Import(import::ImportArgs),
    Compact(compact::CompactArgs),
    #[cfg(feature = "host")]
    Ci(ci::CiArgs),
    #[cfg(feature = "host")]
    Tune(Box<tune::TuneArgs>),
    #[cfg(feature = "host")]
    Sweep(sweep::SweepArgs),
    #[cfg(feature = "host")]
    Export(export::ExportArgs),
    #[cfg(feature = "host")]
    Policy(policy::PolicyArgs),
    Profile(profile::ProfileArgs),
    #[cfg(feature = "host")]
    Stat(stat::StatArgs),
    #[cfg(feature = "host")]
    Top(top::TopArgs),
    #[cfg(feature = "host")]
    Mode(mode::ModeArgs),
    #[cfg(feature = "host")]
    Daemon(daemon::DaemonArgs),
    #[cfg(feature = "host")]
    Ctl(ctl::CtlArgs),
    #[cfg(feature = "host")]
    Share(share::ShareArgs),
    #[cfg(feature = "host")]
    Place(place::PlaceArgs),
    #[cfg(feature = "noise")]
    Noise(noise::NoiseArgs),
    #[cfg(feature = "host")]
    Reclaim(reclaim::ReclaimArgs),
    Cache(cache::CacheArgs),
    Doctor(doctor::DoctorArgs),
    Schema(schema::SchemaArgs),
    /// Write the man pages into a directory
    Man {
        /// Directory for the pages, created if missing
        dir: PathBuf,
    },
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Verb {
    /// Whether the verb runs a command, whose exit status it then passes on.
    pub fn runs_a_command(&self) -> bool {
        match self {
            Verb::Compare(args) => !args.common.program.command.is_empty(),
            Verb::Record(args) => !args.common.program.command.is_empty(),
            #[cfg(feature = "host")]
            Verb::Tune(_) => true,
            #[cfg(feature = "host")]
            Verb::Stat(args) => !args.command.is_empty(),
            #[cfg(feature = "host")]
            Verb::Reclaim(args) => args.runs_a_command(),
            _ => false,
        }
    }
}

/// The names that lead to a verb: `policy`, `sweep`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbPath(Vec<String>);

/// Parses the command line.
pub fn parse() -> Result<(VerbPath, Verb), clap::Error> {
    let first: Vec<String> =
        std::env::args_os().skip(1).take(2).map_while(|word| word.into_string().ok()).collect();
    if let Some((words, feature)) =
        (1..=first.len()).find_map(|n| Some((&first[..n], feature_of(&first[..n].join(" "))?)))
    {
        let verb = words.join(" ");
        let problem =
            format!("this build has no verb `{verb}`: build it with `make build` (feature `{feature}`)");
        return Err(Cli::command().error(ErrorKind::InvalidSubcommand, problem));
    }
    let matches = Cli::command().try_get_matches().map_err(|e| {
        let args = std::env::args_os().skip(1);
        with_usage(e, &VerbPath(args.map_while(|a| a.into_string().ok()).collect()))
    })?;
    let cli = Cli::from_arg_matches(&matches).map_err(|e| e.format(&mut Cli::command()))?;
    Ok((words(&matches), cli.verb))
}

fn words(matches: &ArgMatches) -> VerbPath {
    let below = |m: &ArgMatches| m.subcommand().map(|(name, sub)| (name.to_owned(), sub.clone()));
    let first = below(matches);
    VerbPath(std::iter::successors(first, |(_, sub)| below(sub)).map(|(name, _)| name).collect())
}

/// The parser of the verb that the names lead to; names beyond it are ignored.
fn parser(words: &VerbPath) -> Command {
    let mut cli = Cli::command();
    cli.build();
    let mut command = cli;
    for word in words.0.iter() {
        let Some(deeper) = command.find_subcommand(word).cloned() else { break };
        command = deeper;
    }
    command
}

/// Adds the verb's usage to clap's error about a value, which names only the option.
fn with_usage(mut error: clap::Error, words: &VerbPath) -> clap::Error {
    if error.exit_code() != 0 && error.get(ContextKind::Usage).is_none() {
        error.insert(ContextKind::Usage, ContextValue::StyledStr(parser(words).render_usage()));
    }
    error
}

/// The usage of a verb, and where to read more, as clap prints them below an error.
pub fn usage(verb: &VerbPath) -> String {
    format!("{}\n\nFor more information, try '--help'.", parser(verb).render_usage())
}

/// A usage error of a verb in clap's form, with the verb's usage.
pub fn refused(verb: &VerbPath, error: &UsageError) -> clap::Error {
    parser(verb).error(error.kind, error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parser_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_build_has_the_verbs_of_its_features_and_no_others() {
        let has = |verb: &str| {
            let mut words = verb.split(' ');
            words.try_fold(Cli::command(), |above, word| above.find_subcommand(word).cloned()).is_some()
        };
        for (feature, built, verbs) in FEATURES {
            assert!(verbs.iter().all(|verb| has(verb) == built), "{feature}");
            assert!(verbs.iter().all(|verb| is_left_out(&format!("{verb} x")) != built), "{feature}");
        }
    }

    #[test]
    fn a_short_option_means_the_same_in_every_verb() {
        fn check(command: &Command, meanings: &mut std::collections::HashMap<char, String>) {
            for argument in command.get_arguments() {
                let (Some(short), Some(long)) = (argument.get_short(), argument.get_long()) else { continue };
                let meaning = meanings.entry(short).or_insert_with(|| long.to_owned());
                assert_eq!(meaning, long, "-{short} of {}", command.get_name());
            }
            command.get_subcommands().for_each(|verb| check(verb, meanings));
        }
        let mut meanings = std::collections::HashMap::new();
        check(&Cli::command(), &mut meanings);
        assert_eq!(meanings.get(&'i').map(String::as_str), Some("interval"));
    }

    #[test]
    fn a_usage_error_shows_the_usage_of_its_verb() {
        let matches = Cli::command().try_get_matches_from(["bifold", "policy", "list"]).unwrap();
        let error = UsageError::value("--format", "is not what it should be");
        let text = refused(&words(&matches), &error).to_string();
        assert!(text.starts_with("error: --format: is not what it should be\n"), "{text}");
        assert!(text.contains("Usage: bifold policy list "), "{text}");
    }

    #[test]
    fn doctor_knows_every_verb() {
        for verb in Cli::command().get_subcommands() {
            let name = verb.get_name();
            assert!(
                ["doctor", "schema", "man", "completions"].contains(&name) || doctor::knows(name),
                "{name}"
            );
            if ["share", "place", "noise", "reclaim", "sweep"].contains(&name) {
                for one in verb.get_subcommands() {
                    let full = format!("{name} {}", one.get_name());
                    assert!(doctor::knows(&full), "{full}");
                }
            }
        }
    }
}
