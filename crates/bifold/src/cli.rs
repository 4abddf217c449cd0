// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line: what the tables of verbs (`main.rs`, `full/mod.rs`) are made into, help by groups, and
//! the form of usage errors. Each verb's options and their help are in the verb's module.
//!
//! The first paragraph of a comment on an option is what `-h` shows, all of it is what `--help` and the
//! man pages show.

use crate::doctor::needs::Needs;
use crate::status::Status;
use crate::usage::UsageError;
use crate::{compare, full, status};
use bifold_report::wrapped;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgMatches, Command, CommandFactory as _, FromArgMatches, Parser};
use std::process::ExitCode;

/// Groups of verbs, in the order of help and manual.
const GROUPS: [&str; 8] = [
    "What a program costs",
    "What a change costs",
    "Many runs",
    "The VMs of a host",
    "Memory",
    "Placement",
    "Paging modes: policies and switching",
    "Files and this installation",
];

/// A verb, of a line of a table.
pub struct Verb {
    pub group: &'static str,
    pub name: &'static str,
    /// What the verb needs of the machine.
    pub needs: &'static [Needs],
    /// Gives a parser the verb's options and their help, which is the doc comment of its arguments.
    pub options: fn(Command) -> Command,
    /// Takes the verb's arguments.
    pub take: fn(&ArgMatches) -> Result<Taken, clap::Error>,
}

/// A verb with its arguments.
pub struct Taken {
    /// Whether the verb runs a command, whose exit status it then passes on.
    pub runs_a_command: bool,
    /// Carries the verb out.
    pub carry_out: Box<dyn FnOnce() -> anyhow::Result<Status>>,
}

/// Takes the arguments of a verb.
pub fn take<A: FromArgMatches + 'static>(
    matches: &ArgMatches,
    run: fn(A) -> anyhow::Result<Status>,
    runs_a_command: fn(&A) -> bool,
) -> Result<Taken, clap::Error> {
    let args = A::from_arg_matches(matches)?;
    Ok(Taken { runs_a_command: runs_a_command(&args), carry_out: Box::new(move || run(args)) })
}

/// Makes `VERBS`, the [`Verb`]s of a table.
macro_rules! verbs {
    ($( $group:literal: $( $verb:ident($args:ty) => $run:expr, $needs:expr $(, $command:expr)?; )* )*) => {
        /// The verbs of this table.
        pub const VERBS: &[crate::cli::Verb] = &[$($( crate::cli::Verb {
            group: $group,
            name: stringify!($verb),
            needs: $needs,
            options: <$args as clap::Args>::augment_args,
            take: |matches| crate::cli::take::<$args>(matches, $run, verbs!(@command $($command)?)),
        }, )*)*];
    };
    (@command) => { |_| false };
    (@command $command:expr) => { $command };
}

/// The verbs of this build in the order of help: by groups, and in a group first those of every build.
pub fn verbs() -> impl Iterator<Item = &'static Verb> {
    let all = || crate::VERBS.iter().chain(full::VERBS);
    GROUPS.iter().flat_map(move |group| all().filter(move |verb| verb.group == *group))
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
    after_help = full::LEFT_OUT.unwrap_or_default(),
    after_long_help = [full::LEFT_OUT.unwrap_or_default(), status::IN_WORDS].concat()
)]
struct Cli {}

/// The parser.
pub fn command() -> Command {
    Cli::command().subcommands(verbs().map(|verb| (verb.options)(Command::new(verb.name))))
}

/// The form of the whole command's help: verbs by groups.
fn in_groups(command: &Command) -> String {
    let header = command.get_styles().get_header();
    let literal = command.get_styles().get_literal();
    let mut out = "{about-with-newline}\n{usage-heading} {usage}\n\n".to_owned();
    let width = verbs().map(|verb| verb.name.len()).max().unwrap_or(0);
    for of_group in verbs().collect::<Vec<_>>().chunk_by(|one, next| one.group == next.group) {
        out += &format!("{header}{}:{header:#}\n", of_group[0].group);
        for Verb { name, .. } in of_group {
            let about = command.find_subcommand(name).and_then(Command::get_about);
            let about = about.map(ToString::to_string).unwrap_or_default();
            let line = wrapped(&format!("  {name:<width$}  {about}"), width + 4);
            out += &line.replacen(name, &format!("{literal}{name}{literal:#}"), 1);
        }
        out.push('\n');
    }
    out + &format!("{header}Options:{header:#}\n{{options}}{{after-help}}")
}

/// The names that lead to a verb: `policy`, `sweep`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerbPath(Vec<String>);

/// Parses the command line.
pub fn parse() -> Result<(VerbPath, Taken), clap::Error> {
    let parser = command();
    let help = in_groups(&parser);
    let matches = parser.help_template(help).try_get_matches().map_err(|e| {
        let args = std::env::args_os().skip(1);
        with_usage(e, &VerbPath(args.map_while(|a| a.into_string().ok()).collect()))
    })?;
    let found = matches.subcommand().and_then(|(name, of)| Some((verbs().find(|v| v.name == name)?, of)));
    let (verb, of) = found.expect("the parser has the verbs of the tables, and needs one");
    let taken = (verb.take)(of).map_err(|e| e.format(&mut command()))?;
    Ok((words(&matches), taken))
}

fn words(matches: &ArgMatches) -> VerbPath {
    let below = |m: &ArgMatches| m.subcommand().map(|(name, sub)| (name.to_owned(), sub.clone()));
    let first = below(matches);
    VerbPath(std::iter::successors(first, |(_, sub)| below(sub)).map(|(name, _)| name).collect())
}

/// The parser of the verb that the names lead to; names beyond it are ignored.
fn parser(words: &VerbPath) -> Command {
    let mut command = command();
    command.build();
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
    if let (Some(verb @ ("compare" | "record")), true, ErrorKind::UnknownArgument) =
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
    let code = exit(e);
    if let (ErrorKind::InvalidSubcommand, Some(left_out)) = (e.kind(), full::LEFT_OUT) {
        eprintln!("\n{}", left_out.trim_end());
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parser_is_consistent() {
        command().debug_assert();
    }

    #[test]
    fn help_has_each_verb_in_one_group() {
        let parser = command();
        assert_eq!(verbs().count(), crate::VERBS.len() + full::VERBS.len());
        let help = in_groups(&parser);
        for verb in parser.get_subcommands() {
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
        check(&command(), &mut meanings);
        assert_eq!(meanings.get(&'i').map(String::as_str), Some("interval"));
    }

    #[test]
    fn a_usage_error_shows_the_usage_of_its_verb() {
        let matches = command().try_get_matches_from(["bifold", "policy", "list"]).unwrap();
        let error = UsageError::value("--format", "is not what it should be");
        let text = refused(&words(&matches), &error).to_string();
        assert!(text.starts_with("error: --format: is not what it should be\n"), "{text}");
        assert!(text.contains("Usage: bifold policy list "), "{text}");
    }

    #[test]
    fn doctor_knows_every_verb_below_a_verb() {
        let parser = command();
        for Verb { name, needs, .. } in verbs() {
            let verb = parser.find_subcommand(name).unwrap();
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
