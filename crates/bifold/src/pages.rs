// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Man pages and completions, made from the parser.

use crate::cli::Cli;
use anyhow::Context as _;
use clap::CommandFactory as _;
use clap_complete::Shell;
use std::path::Path;

/// Writes `bifold.1` and one page per verb into a directory.
pub fn man(dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    clap_mangen::generate_to(command(), dir)
        .with_context(|| format!("cannot write man pages into {}", dir.display()))
}

/// The completion script for a shell.
pub fn completions(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command(), "bifold", &mut script);
    String::from_utf8(script).expect("the parser's texts are UTF-8")
}

fn command() -> clap::Command {
    // `help` as a verb would be a second way to write `--help`, with a page for each verb.
    Cli::command().disable_help_subcommand(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every verb, `policy-compare` for one within another, with its long options.
    fn options() -> Vec<(String, Vec<String>)> {
        fn of(command: &clap::Command, before: &str, out: &mut Vec<(String, Vec<String>)>) {
            for verb in command.get_subcommands() {
                let name = format!("{before}{}", verb.get_name());
                let longs = verb.get_arguments().filter_map(|a| a.get_long().map(String::from));
                out.push((name.clone(), longs.collect()));
                of(verb, &format!("{name}-"), out);
            }
        }
        let mut cli = command();
        cli.build();
        let mut out = Vec::new();
        of(&cli, "", &mut out);
        assert!(out.iter().any(|(verb, _)| verb == "policy-compare"));
        out
    }

    #[test]
    fn man_pages_have_every_verb_and_option_of_the_parser() {
        let dir = tempfile::tempdir().unwrap();
        man(dir.path()).unwrap();
        for (verb, longs) in options() {
            // The page above names it: bifold.1 `policy`, bifold-policy.1 `policy-compare`.
            let above = verb.rsplit_once('-').map_or("bifold.1".into(), |(v, _)| format!("bifold-{v}.1"));
            let above = std::fs::read_to_string(dir.path().join(above)).unwrap();
            let name = format!("bifold\\-{}", verb.replace('-', "\\-"));
            assert!(above.contains(&name), "the page above {verb} does not name it");
            let page = std::fs::read_to_string(dir.path().join(format!("bifold-{verb}.1"))).unwrap();
            for long in longs {
                let option = format!("\\-\\-{}", long.replace('-', "\\-"));
                assert!(page.contains(&option), "the page of {verb} lacks --{long}");
            }
        }
    }

    #[test]
    fn completions_have_every_verb_and_option_of_the_parser() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = completions(shell);
            for (verb, longs) in options() {
                let word = verb.rsplit('-').next().unwrap();
                assert!(script.contains(word), "{shell} lacks {verb}");
                for long in longs {
                    let found = script.contains(&format!("--{long}")) // bash, zsh
                        || script.contains(&format!("-l {long}")); // fish
                    assert!(found, "{shell} lacks --{long} of {verb}");
                }
            }
        }
    }
}
