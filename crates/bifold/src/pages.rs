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

    /// Every verb with its long options.
    fn options() -> Vec<(String, Vec<String>)> {
        let mut cli = command();
        cli.build();
        cli.get_subcommands()
            .map(|v| {
                let longs = v.get_arguments().filter_map(|a| a.get_long().map(String::from));
                (v.get_name().to_string(), longs.collect())
            })
            .collect()
    }

    #[test]
    fn man_pages_have_every_verb_and_option_of_the_parser() {
        let dir = tempfile::tempdir().unwrap();
        man(dir.path()).unwrap();
        let overview = std::fs::read_to_string(dir.path().join("bifold.1")).unwrap();
        for (verb, longs) in options() {
            assert!(overview.contains(&format!("bifold\\-{verb}")), "bifold.1 lacks {verb}");
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
                assert!(script.contains(&verb), "{shell} lacks {verb}");
                for long in longs {
                    let found = script.contains(&format!("--{long}")) // bash, zsh
                        || script.contains(&format!("-l {long}")); // fish
                    assert!(found, "{shell} lacks --{long} of {verb}");
                }
            }
        }
    }
}
