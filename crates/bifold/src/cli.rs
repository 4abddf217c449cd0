// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line: what the table of verbs (`main.rs`) is made into, help by groups, and the form of usage
//! errors. Each verb's options and their help are in the verb's module.
//!
//! The first paragraph of a comment on an option is what `-h` shows, all of it is what `--help` and the
//! man pages show.

use crate::usage::UsageError;
use crate::{Verb, compare, status};
use bifold_report::wrapped;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command, CommandFactory as _, FromArgMatches as _, Parser};
use std::process::ExitCode;

/// What the table says of a verb beside its arguments and its work.
pub struct Entry {
    pub name: &'static str,
    /// The feature of the crate without which a build lacks the verb, and whether this build has the feature.
    pub feature: Option<(&'static str, bool)>,
}

/// Makes the parser's enum of verbs and [`Entry`]s of a table.
macro_rules! verbs {
    ($( $group:literal: $( $( #[feature($feature:literal)] )? $verb:ident($args:ty) => |$a:ident| $run:expr, $needs:expr; )* )*) => {
        /// The verbs. The help of a verb is the doc comment of its arguments.
        #[derive(Debug, clap::Subcommand)]
        pub(crate) enum Verb {
            $($( $( #[cfg(feature = $feature)] )? $verb($args), )*)*
        }

        impl Verb {
            /// Groups of verbs, in the order of help.
            pub const GROUPS: &[(&str, &[cli::Entry])] = &[$( ($group, &[$(
                cli::Entry { name: stringify!($verb), feature: verbs!(@feature $($feature)?) },
            )*]) ),*];

            /// What the verbs of this build need.
            pub const NEEDS: &[(&str, &[Needs])] = &[$($( $( #[cfg(feature = $feature)] )? (stringify!($verb), $needs), )*)*];

            /// Carries the verb out.
            fn carry_out(self) -> anyhow::Result<Status> {
                match self {
                    $($( $( #[cfg(feature = $feature)] )? Verb::$verb($a) => $run, )*)*
                }
            }
        }
    };
    (@feature) => { None };
    (@feature $feature:literal) => { Some(($feature, cfg!(feature = $feature))) };
}

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

/// The verbs that this build may lack: the verb, its feature, and whether this build has the feature.
fn of_features() -> impl Iterator<Item = (String, &'static str, bool)> {
    let all = Verb::GROUPS.iter().flat_map(|(_, verbs)| verbs.iter());
    let all = all
        .filter_map(|verb| verb.feature.map(|(feature, built)| (verb.name.to_lowercase(), feature, built)));
    all.chain([("policy train".into(), "train", cfg!(feature = "train"))])
}

/// The verbs that this build leaves out, for the help.
fn left_out_in_words() -> String {
    let all: Vec<String> = of_features().filter(|(_, _, built)| !built).map(|(verb, _, _)| verb).collect();
    // `policy` says the same as `policy` and `policy train`.
    let above =
        |verb: &str| verb.split_once(' ').is_some_and(|(above, _)| all.iter().any(|verb| verb == above));
    let left: Vec<&str> = all.iter().map(String::as_str).filter(|verb| !above(verb)).collect();
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
    of_features().find(|(above, _, built)| !built && below(above)).map(|(_, feature, _)| feature)
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

/// The form of the whole command's help: verbs by groups.
fn in_groups(command: &Command) -> String {
    let header = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let mut out = "{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    let width = command.get_subcommands().map(|verb| verb.get_name().len()).max().unwrap_or(0);
    for (group, verbs) in Verb::GROUPS {
        let of_group: Vec<&Command> =
            verbs.iter().filter_map(|verb| command.find_subcommand(verb.name.to_lowercase())).collect();
        if !of_group.is_empty() {
            out += &format!("{header}{group}:{header:#}\n");
        }
        for verb in &of_group {
            let about = verb.get_about().map(ToString::to_string).unwrap_or_default();
            let line = wrapped(&format!("  {:<width$}  {about}", verb.get_name()), width + 4);
            out += &line.replacen(verb.get_name(), &format!("{literal}{}{literal:#}", verb.get_name()), 1);
        }
        out += if of_group.is_empty() { "" } else { "\n" };
    }
    out + &format!("{header}Options:{header:#}\n{{options}}{{after-help}}")
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
    let command = Cli::command();
    let help = in_groups(&command);
    let matches = command.help_template(help).try_get_matches().map_err(|e| {
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

/// Prints an error or help as clap does, and returns clap's exit status.
pub fn exit(e: &clap::Error) -> ExitCode {
    let _ = e.print();
    ExitCode::from(e.exit_code() as u8)
}

/// Prints the parser's error. Users often write `bifold compare gcc -O2` first: an option that clap does not
/// know is then most likely the command's, and a tip says so.
pub fn refuse(e: &clap::Error) -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let verb = words.first().and_then(|v| v.to_str());
    let no_dashes = words.iter().all(|w| w != "--");
    if let (Some(verb @ ("compare" | "record")), true, clap::error::ErrorKind::UnknownArgument) =
        (verb, no_dashes, e.kind())
    {
        let command = words.iter().skip(1).position(|w| !w.as_encoded_bytes().starts_with(b"-"));
        // Behind an option of Bifold, a word may be that option's value instead of the command.
        if command == Some(0) {
            let code = exit(e);
            eprintln!("\n{}", compare::command_tip(verb, &words[1..]));
            return code;
        }
    }
    exit(e)
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
        for (verb, _, built) in of_features() {
            assert_eq!(has(&verb), built, "{verb}");
            assert_eq!(feature_of(&format!("{verb} x")).is_none(), built, "{verb}");
        }
    }

    #[test]
    fn help_has_each_verb_in_one_group() {
        let command = Cli::command();
        let help = in_groups(&command);
        for verb in command.get_subcommands() {
            let about = verb.get_about().unwrap().to_string();
            assert_eq!(help.matches(&about[..about.len().min(40)]).count(), 1, "{about}");
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
    fn doctor_knows_every_verb_below_a_verb() {
        for (name, needs) in Verb::NEEDS {
            let command = Cli::command();
            let verb = command.find_subcommand(name.to_lowercase()).unwrap();
            for need in needs.iter().filter(|need| !need.below.is_empty()) {
                assert!(verb.find_subcommand(need.below).is_some(), "{name} has no {}", need.below);
            }
            let below = verb.get_subcommands().map(Command::get_name);
            let missing: Vec<&str> = below
                .filter(|one| needs.iter().all(|need| need.below != *one && !need.below.is_empty()))
                .collect();
            assert!(missing.is_empty(), "{name}: {missing:?}");
        }
    }
}
