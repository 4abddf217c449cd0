// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables that stand in the docs have the form that the command prints today: a document that was
//! not regenerated after a change of the table fails here. Its figures are of real runs, and differ.

use crate::command::bifold;
use std::collections::BTreeSet;
use std::path::Path;

/// A head's words, without the blanks that depend on the figures below. Times have the unit that suits them.
fn words(line: &str) -> String {
    line.split_whitespace()
        .map(|word| if ["ms", "us"].contains(&word) { "s" } else { word })
        .collect::<Vec<_>>()
        .join(" ")
}

/// The two lines of column heads, and the labels of the lines that have one.
fn form(table: &str) -> (Vec<String>, BTreeSet<String>) {
    let lines: Vec<&str> = table.lines().collect();
    let at = lines.iter().position(|l| l.starts_with("config ")).expect("a table of configurations");
    let heads = lines[at - 1..=at].iter().map(|line| words(line)).collect();
    let labelled = |l: &&&str| l.len() > 9 && l.as_bytes()[8] == b' ' && l.as_bytes()[9] != b' ';
    let label = |l: &&str| l[..8].trim().to_owned();
    let labels = lines[..at].iter().chain(lines.iter().rev().take_while(|l| !l.is_empty()));
    (heads, labels.filter(labelled).map(label).filter(|l| !l.is_empty()).collect())
}

/// A page of the repository, by its path in there.
fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn tables_of(document: &str) -> Vec<String> {
    let text = page(document);
    let blocks = text.split("\n```").collect::<Vec<_>>();
    blocks.iter().filter(|b| b.contains("\nconfig ")).map(|b| (*b).to_owned()).collect()
}

fn holds_for(document: &str, options: &str, tables: usize) {
    let (heads, labels) = form(&bifold(&format!("compare -q --generate fork-storm:20{options}")).quietly());
    let found = tables_of(document);
    assert_eq!(found.len(), tables, "{document}");
    for table in found {
        let (its_heads, its_labels) = form(&table);
        assert_eq!(its_heads, heads, "{document}: regenerate it (evidence/tools/programs, make demo)");
        // A guest adds lines of its own.
        let of_a_guest = ["guest", "start", "clock", "WARNING"].map(String::from);
        let missing: Vec<_> = labels.difference(&its_labels).collect();
        let unknown: Vec<_> = its_labels.difference(&labels).filter(|l| !of_a_guest.contains(l)).collect();
        assert!(missing.is_empty() && unknown.is_empty(), "{document}: {missing:?} {unknown:?}\n{table}");
    }
}

#[test]
fn programs_are_shown_in_todays_form() {
    holds_for("evidence/pages/programs.md", " --show exits,checks", 5);
}

#[test]
fn the_first_run_shows_todays_table() {
    holds_for("docs/start/first-run.md", "", 1);
}

#[test]
fn the_readme_and_the_chart_show_the_first_run_s_result() {
    let (readme, chart) = (page("README.md"), page("docs/start/demo.svg"));
    let [table] = &tables_of("docs/start/first-run.md")[..] else { panic!("one table") };
    let verdict = &table[table.find("\nverdict ").expect("a verdict")..];
    assert!(readme.contains(verdict), "README.md: regenerate it (evidence/tools/programs)");
    let rows = table.lines().skip_while(|l| !l.starts_with("config ")).skip(2).take_while(|l| !l.is_empty());
    let rows: Vec<Vec<&str>> = rows.map(|l| l.split_whitespace().collect()).collect();
    assert_eq!(rows.len(), 5, "{table}");
    for row in rows {
        assert!(
            chart.contains(row[0]) && chart.contains(&format!(">{} ", row[1])),
            "docs/start/demo.svg: {row:?}"
        );
    }
}

/// The numbers of `A of B` in a link's text, and the page it leads to.
fn quoted(link: &str) -> Option<(u32, u32, &str)> {
    let (text, rest) = link.split_once("](")?;
    let mut words = text.split(' ');
    let (a, of, b) = (words.next()?.parse().ok()?, words.next()?, words.next()?.parse().ok()?);
    Some((a, b, rest.split(')').next()?)).filter(|_| of == "of")
}

#[test]
fn the_readme_quotes_what_the_comparison_with_kvm_counted() {
    let readme = page("README.md");
    let quotes: Vec<_> = readme.split('[').filter_map(quoted).collect();
    assert_eq!(quotes.len(), 2, "one for each kernel: {quotes:?}");
    for (close, rows, name) in quotes {
        let line = format!("\n{rows} rows: **{close} close**");
        assert!(page(name).contains(&line), "{name} does not say{line}");
    }
}

/// In the rows of measured.md about exits, each `A of B` is of the link of the same number.
#[test]
fn what_was_measured_repeats_what_the_comparison_with_kvm_counted() {
    let measured = page("docs/concepts/measured.md");
    let mut checked = 0;
    for row in measured.lines().filter(|l| l.contains("/exits-")) {
        let words: Vec<&str> = row.split(' ').collect();
        let number = |at: usize| words.get(at).and_then(|w| w.parse::<u32>().ok());
        let quotes = (1..words.len()).filter(|at| words[*at] == "of");
        let quotes = quotes.filter_map(|at| Some((number(at - 1)?, number(at + 1)?)));
        let links = row.split("](../../").skip(1).map(|rest| rest.split(')').next().unwrap());
        let (quotes, links): (Vec<_>, Vec<_>) = (quotes.collect(), links.collect());
        assert_eq!(quotes.len(), links.len(), "{row}");
        for ((close, rows), name) in quotes.into_iter().zip(links) {
            let line = format!("\n{rows} rows: **{close} close**");
            assert!(page(name).contains(&line), "{name} does not say{line}");
            checked += 1;
        }
    }
    assert!(checked >= 8, "{checked}");
}

/// A page whose figures README quotes is made again when the model counts differently. The pages of exits
/// take hours: one without a stamp is from before stamps.
#[test]
fn what_the_readme_quotes_is_of_todays_model() {
    let stamp = format!("Counts of the model: {}.", bifold_model::COUNTS_DIGEST);
    let readme = page("README.md");
    let quoted = readme.split('[').filter_map(quoted).map(|(_, _, name)| name);
    for name in ["README.md", "evidence/pages/programs.md"].into_iter().chain(quoted) {
        assert!(page(name).contains(&stamp), "{name} is of an older model, as it does not say: {stamp}");
    }
}

/// The commands of a page's blocks of shell, without `sudo`, comments and what a pipe takes.
fn commands_of(page: &str) -> Vec<String> {
    let blocks = page.split("```sh\n").skip(1).map(|block| block.split("```").next().unwrap());
    let lines = blocks.flat_map(str::lines).map(|l| l.split(" #").next().unwrap().trim());
    lines.map(|l| l.trim_start_matches("sudo ").to_owned()).filter(|l| !l.is_empty()).collect()
}

#[test]
fn the_page_of_changes_has_commands_and_options_that_exist() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/what-to-do-now.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let verbs: Vec<String> = commands_of(&page).into_iter().filter(|c| c.starts_with("bifold ")).collect();
    assert!(verbs.len() >= 8, "{verbs:?}");
    for command in verbs {
        // Help ends the parser's work before anything runs, and an unknown option ends it before help.
        let own = command.trim_start_matches("bifold ").split(" -- ").next().unwrap();
        let run = bifold(&format!("{own} --help"));
        assert_eq!(run.status, 0, "{command}: {}", run.stderr);
    }
    // What the sentences of a result name has a part of the page.
    for word in [
        "`2 MB host pages`",
        "`1 GB host pages`",
        "`shadow paging`",
        "`Settings of the guest (huge pages) and 1 GB host pages are not tried here`",
    ] {
        assert!(page.contains(word), "{word}");
    }
}

/// QEMU's own help lists each property of the memory backends that the page names.
#[test]
fn the_page_of_changes_has_qemu_s_own_options() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guide/what-to-do-now.md");
    let page = std::fs::read_to_string(&path).unwrap();
    let objects: Vec<&str> =
        page.lines().filter_map(|l| l.split("-object ").nth(1)?.split(' ').next()).collect();
    assert!(objects.len() >= 10, "{objects:?}");
    for object in objects {
        let mut parts = object.split(',');
        let backend = parts.next().unwrap();
        let help = std::process::Command::new("qemu-system-x86_64")
            .args(["-object", &format!("{backend},help")])
            .output()
            .expect("tools/setup installs QEMU");
        let help = String::from_utf8(help.stdout).unwrap();
        for property in parts.map(|p| p.split('=').next().unwrap()).filter(|p| *p != "id") {
            assert!(help.contains(&format!("  {property}=<")), "{backend} has no {property}:\n{help}");
        }
    }
}
