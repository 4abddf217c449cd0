// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold man` and `bifold completions`: man pages and completion scripts, made from the parser and from
//! lists of keys.

use crate::status::{self, Status};
use crate::{cli, console, full};
use anyhow::Context as _;
use clap::{Args, Command};
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The name of the page about the daemon's configuration.
pub const CONFIGURATION: &str = "bifold.toml";

/// Write the man pages into a directory
#[derive(Debug, Args)]
pub struct ManArgs {
    /// Directory for the pages, created if missing
    dir: PathBuf,
}

/// Print a completion script for a shell
#[derive(Debug, Args)]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Carries out `bifold man`.
pub fn man(args: &ManArgs) -> anyhow::Result<Status> {
    write_all(cli::command(), &args.dir).map(|()| Status::Done)
}

/// Carries out `bifold completions`.
pub fn completions(args: &CompletionsArgs) -> anyhow::Result<Status> {
    console::print(&script(cli::command(), args.shell)).map(|()| Status::Done)
}

/// Writes `bifold.1`, one page per verb and per verb of a verb, and the pages about TOML files into a
/// directory.
fn write_all(cli: Command, dir: &Path) -> anyhow::Result<()> {
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut cli = without_help(cli);
    cli.build();
    write_pages(&cli, None, dir)?;
    full::pages().iter().try_for_each(|(file, page)| write(&dir.join(file), page))
}

fn write(path: &Path, page: &[u8]) -> anyhow::Result<()> {
    std::fs::write(path, page).with_context(|| format!("cannot write {}", path.display()))
}

fn write_pages(command: &Command, above: Option<&Command>, dir: &Path) -> anyhow::Result<()> {
    write(&dir.join(format!("{}.{}", name(command), section(command))), &page(command, above))?;
    command
        .get_subcommands()
        .filter(|c| !c.is_hide_set())
        .try_for_each(|c| write_pages(c, Some(command), dir))
}

/// A page's name: `bifold-share-check`.
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

/// The manual's section that has a command's page: 8 for those of administrators (man(1)).
fn section(command: &Command) -> u8 {
    let verb = name(command).split('-').nth(1);
    if matches!(verb, Some("daemon" | "ctl")) { 8 } else { 1 }
}

/// A page as others name it: `bifold-share-check(1)`.
fn reference(command: &Command) -> String {
    format!("{}({})", name(command), section(command))
}

/// What stands at the foot of each page.
pub const SOURCE: &str = concat!("Bifold ", env!("CARGO_PKG_VERSION"));
pub const MANUAL: &str = "Bifold";

/// The page of a command that stands below another.
fn page(command: &Command, above: Option<&Command>) -> Vec<u8> {
    let man = Man::new(command.clone()).section(section(command).to_string()).source(SOURCE).manual(MANUAL);
    let mut out = Vec::new();
    let written = (|| {
        man.render_title(&mut out)?;
        // Names of pages and options stay whole.
        Roff::new().control("nh", []).control("ad", ["l"]).to_writer(&mut out)?;
        man.render_name_section(&mut out)?;
        synopsis(command).to_writer(&mut out)?;
        man.render_description_section(&mut out)?;
        if command.get_arguments().any(|a| !a.is_hide_set()) {
            man.render_options_section(&mut out)?;
        }
        if command.has_subcommands() {
            out.write_all(subcommands(command, &man)?.as_bytes())?;
        }
        let help = |c: &Command| c.get_after_long_help().or(c.get_after_help()).map(ToString::to_string);
        let sections = sections(&help(command).unwrap_or_default());
        let exit = sections.iter().any(|s| s.title == EXIT_STATUS);
        sections.iter().try_for_each(|s| s.roff().to_writer(&mut out))?;
        if !exit {
            // The exit status means the same in all verbs.
            let common = self::sections(status::IN_WORDS);
            common.iter().try_for_each(|s| s.roff().to_writer(&mut out))?;
        }
        see_also(command, above).to_writer(&mut out)
    })();
    let () = written.expect("memory takes all that is written");
    out
}

/// The section of a command's verbs. The library gives each the section of the command.
fn subcommands(command: &Command, man: &Man) -> io::Result<String> {
    let mut out = Vec::new();
    man.render_subcommands_section(&mut out)?;
    let mut text = String::from_utf8(out).map_err(io::Error::other)?;
    for verb in command.get_subcommands() {
        let name = name(verb).replace('-', "\\-");
        let [given, right] = [command, verb].map(|c| format!("{name}({})", section(c)));
        text = text.replace(&given, &right);
    }
    Ok(text)
}

/// The SYNOPSIS section: the usage lines of `--help`.
fn synopsis(command: &Command) -> Roff {
    let usage = command.clone().render_usage().to_string();
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]).control("nf", []);
    for line in usage.trim_start_matches("Usage:").lines() {
        for l in broken(line.trim(), "") {
            roff.text([roman(l)]);
        }
    }
    roff.control("fi", []);
    roff
}

/// Columns between the margins of a man page on a terminal of 80 columns.
const COLUMNS: usize = 66;

/// Breaks a command's line at blanks. Each part except the last ends in `goes_on`.
fn broken(line: &str, goes_on: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in line.split(' ') {
        let last = lines.last_mut().expect("there is always one");
        if !last.is_empty() && last.len() + 1 + word.len() > COLUMNS {
            *last += goes_on;
            lines.push(format!("    {word}"));
        } else {
            *last += if last.is_empty() { "" } else { " " };
            *last += word;
        }
    }
    lines
}

const EXIT_STATUS: &str = "EXIT STATUS";

/// A section of the text that follows a command's options.
#[derive(Debug, PartialEq, Eq)]
struct Section {
    title: String,
    lines: Vec<String>,
}

/// The sections of a help text: each begins with a line that ends in a colon, with indented lines below.
fn sections(help: &str) -> Vec<Section> {
    let mut sections: Vec<Section> = Vec::new();
    for line in help.lines() {
        match (line.strip_suffix(':'), sections.last_mut()) {
            (Some(title), _) if !title.starts_with(' ') => {
                sections.push(Section { title: title.to_uppercase(), lines: Vec::new() })
            }
            (_, Some(section)) => section.lines.push(line.into()),
            (_, None) if line.is_empty() => {}
            (_, None) => sections.push(Section { title: "NOTES".into(), lines: vec![line.into()] }),
        }
    }
    sections
}

impl Section {
    /// The section as roff. Indented lines are commands, or a status and its meaning; other lines are text.
    fn roff(&self) -> Roff {
        let mut roff = Roff::new();
        roff.control("SH", [self.title.as_str()]);
        let mut text = String::new();
        for line in self.lines.iter().map(String::as_str).chain([""]) {
            let item = line.strip_prefix("  ");
            if !text.is_empty() && (item.is_some() || line.is_empty()) {
                roff.control("PP", []).text([roman(std::mem::take(&mut text))]);
            }
            match item {
                Some(item) if self.title == EXIT_STATUS => {
                    let (status, meaning) = item.split_once(' ').unwrap_or((item, ""));
                    roff.control("TP", ["6"]).text([bold(status)]).text([roman(meaning.trim())]);
                }
                Some(item) => {
                    roff.control("nf", []).control("RS", ["4"]);
                    for l in broken(item, " \\") {
                        roff.text([roman(l)]);
                    }
                    roff.control("RE", []).control("fi", []);
                }
                None => {
                    text += if text.is_empty() { "" } else { " " };
                    text += line;
                }
            }
        }
        roff
    }
}

/// The SEE ALSO section: the pages above, beside and below.
fn see_also(command: &Command, above: Option<&Command>) -> Roff {
    let beside = above.into_iter().flat_map(Command::get_subcommands).filter(|c| name(c) != name(command));
    let pages = above.into_iter().chain(beside).chain(command.get_subcommands()).filter(|c| !c.is_hide_set());
    let mut words: Vec<String> = pages.map(reference).collect();
    if section(command) == 8 {
        words.push(format!("{CONFIGURATION}(5)"));
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]).text([roman(words.join(", "))]);
    roff
}

/// The completion script for a shell.
fn script(cli: Command, shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut without_help(cli), "bifold", &mut script);
    String::from_utf8(script).expect("the parser's texts are UTF-8")
}

/// The parser without the verb `help`, which is a second way to write `--help` and would give a page per
/// verb.
fn without_help(cli: Command) -> Command {
    cli.disable_help_subcommand(true)
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
        let mut cli = without_help(cli::command());
        cli.build();
        let mut out = Vec::new();
        of(&cli, "", &mut out);
        assert!(out.iter().any(|(verb, _)| verb == "policy-compare"));
        out
    }

    /// The file of a verb's page.
    fn file(verb: &str) -> String {
        let administrators = verb == "daemon" || verb == "ctl" || verb.starts_with("ctl-");
        format!("bifold-{verb}.{}", if administrators { 8 } else { 1 })
    }

    #[test]
    fn man_pages_have_every_verb_and_option_of_the_parser() {
        let dir = tempfile::tempdir().unwrap();
        write_all(cli::command(), dir.path()).unwrap();
        for (verb, longs) in options() {
            // The page above names it: bifold.1 `policy`, bifold-policy.1 `policy-compare`.
            let above = verb.rsplit_once('-').map_or("bifold.1".into(), |(v, _)| file(v));
            let above = std::fs::read_to_string(dir.path().join(above)).unwrap();
            let section = file(&verb).rsplit('.').next().unwrap().to_string();
            let name = format!("bifold\\-{}({section})", verb.replace('-', "\\-"));
            assert!(above.contains(&name), "the page above {verb} does not name {name}");
            let page = std::fs::read_to_string(dir.path().join(file(&verb))).unwrap();
            for long in longs {
                let option = format!("\\-\\-{}", long.replace('-', "\\-"));
                assert!(page.contains(&option), "the page of {verb} lacks --{long}");
            }
        }
    }

    #[test]
    fn pages_have_examples_and_the_exit_status_in_sections_of_their_own() {
        let dir = tempfile::tempdir().unwrap();
        write_all(cli::command(), dir.path()).unwrap();
        let page = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
        for (verb, _) in options() {
            let text = page(&file(&verb));
            for section in ["NAME", "SYNOPSIS", "\"EXIT STATUS\"", "\"SEE ALSO\""] {
                assert_eq!(text.matches(&format!(".SH {section}\n")).count(), 1, "{section} of {verb}");
            }
            assert!(!text.contains("EXTRA"), "{verb}");
        }
        for verb in ["compare", "record", "doctor", "mode", "share-check", "share-run", "policy-compare"] {
            let text = page(&format!("bifold-{verb}.1"));
            assert!(text.contains(".SH EXAMPLES\n"), "{verb}");
        }
        assert!(page("bifold-share-check.1").contains("bifold\\-share\\-run(1)"));
        assert!(page("bifold-stat.1").contains("bifold\\-daemon(8), bifold\\-ctl(8)"));
        assert!(page("bifold-daemon.8").contains("\nbifold(1), "));
        assert!(page("bifold-daemon.8").starts_with(".ie \\n(.g .ds Aq"), "{}", page("bifold-daemon.8"));
    }

    #[test]
    fn long_commands_are_broken_so_that_a_shell_takes_them() {
        let line = "bifold policy sweep --policy zhang --set tlb_miss_threshold=0.5:8:16:log --format csv -o zhang.csv";
        let broken = broken(line, " \\");
        assert!(broken.len() == 2 && broken.iter().all(|l| l.len() <= COLUMNS + 2), "{broken:?}");
        assert_eq!(broken.join("").replace(" \\    ", " "), line);
    }

    #[test]
    fn help_is_taken_apart_by_its_heads() {
        let section = |title: &str, lines: &[&str]| Section {
            title: title.into(),
            lines: lines.iter().map(|l| l.to_string()).collect(),
        };
        assert_eq!(
            sections("Examples:\n  a b: c\n  d:\n\nExit status:\n  0  done\nOther words."),
            [
                section("EXAMPLES", &["  a b: c", "  d:", ""]),
                section("EXIT STATUS", &["  0  done", "Other words."])
            ]
        );
        assert_eq!(sections("\nmere words"), [section("NOTES", &["mere words"])]);
        assert_eq!(sections(""), []);
    }

    #[test]
    fn completions_have_every_verb_and_option_of_the_parser() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
            let script = script(cli::command(), shell);
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
