// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reference pages that are made from the code: verbs from the parser's help, counters and profile keys from
//! their declarations.
//! `INSTA_UPDATE=always cargo test -p bifold --test it reference` rewrites them.

use crate::command::bifold;
use bifold_daemon::config::{EXAMPLE, TABLES};
use bifold_model::{KEYS, Sample};
use std::fmt::Write as _;
use std::path::Path;

/// Holds a page to its text, or writes the page if goldens are to be written.
fn page_is(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(name);
    if std::env::var("INSTA_UPDATE").is_ok_and(|v| v == "always") {
        std::fs::write(&path, text).unwrap();
    }
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    let again = "INSTA_UPDATE=always cargo test -p bifold --test it reference";
    assert!(found == text, "docs/reference/{name} differs from the code; regenerate the page: {again}");
}

/// The verbs that a help text lists, those of deeper levels with their parents' words.
fn verbs(help: &str, parent: &str) -> Vec<String> {
    // Those of the command stand in groups, and those of a verb in one list.
    let list = help.lines().skip_while(|l| !l.starts_with("Usage:")).skip(1).take_while(|l| *l != "Options:");
    let list = list.skip_while(|l| !parent.is_empty() && *l != "Commands:");
    let names = list
        .filter(|l| l.starts_with("  ") && !l.starts_with("   "))
        .filter_map(|l| l.split_whitespace().next());
    names.filter(|n| *n != "help").map(|n| format!("{parent}{n}")).collect()
}

fn help_of(verb: &str) -> String {
    bifold(&format!("{verb} --help")).quietly()
}

#[test]
fn the_page_of_verbs_is_their_help() {
    let mut page = String::from(
        "# Verbs\n\nThis page is what `bifold VERB --help` prints. `man bifold-VERB` has the same text.\n",
    );
    for verb in verbs(&help_of(""), "") {
        let help = help_of(&verb);
        let deeper = verbs(&help, &format!("{verb} "));
        for (verb, help) in
            std::iter::once((verb, help)).chain(deeper.into_iter().map(|v| (v.clone(), help_of(&v))))
        {
            let _ = write!(page, "\n## {verb}\n\n```text\n{}\n```\n", help.trim_end());
        }
    }
    assert!(page.matches("\n## ").count() > 15, "{page}");
    page_is("verbs.md", &page);
}

#[test]
fn the_page_of_counters_is_their_declaration() {
    let mut page = String::from(
        "# Counters\n\nEvery table, JSON document, CSV file and timeline takes its counters from one list, `Sample` in\n\
         `crates/model/src/sample.rs`. A counter is per configuration and per interval, or a total. Unit 1 is a count.\n\n\
         | counter | unit | meaning |\n|---|---|---|\n",
    );
    for c in Sample::COUNTERS {
        let _ = writeln!(page, "| `{}` | {} | {} |", c.name, c.unit, c.doc.replace('|', "\\|"));
    }
    page_is("counters.md", &page);
}

#[test]
fn the_page_of_stats_figures_is_their_declaration() {
    let mut page = String::from(
        "# Figures of `bifold stat`\n\nA row is a VM (or, with `--vcpus`, a vCPU) over an interval. Each figure is a column of CSV, \
         Parquet and Arrow and a key of\nJSON lines, whose `schema` is `bifold.stat/1`. A figure that the host cannot tell is empty in \
         CSV, null in Parquet and Arrow, and\nmissing in JSON: never 0. Counts are of the interval. Unit 1 is a count or a share; names have \
         no unit.\n\n| figure | unit | meaning |\n|---|---|---|\n",
    );
    for c in bifold_live::columns::all() {
        let _ = writeln!(page, "| `{}` | {} | {} |", c.name, c.unit, c.doc.replace('|', "\\|"));
    }
    page_is("stat.md", &page);
}

#[test]
fn the_page_of_tables_is_their_declaration() {
    let mut page = String::from(
        "# Tables\n\n`bifold export` and `bifold sweep merge` write these columns, in this order, as Parquet, Arrow or CSV. A value that \
         is not\nknown is null, and empty in CSV. Later versions add columns at the end.\n\nIn Parquet and Arrow, the metadata of a \
         column have `unit` and `description` (in Parquet, Arrow's libraries read them).\nThe file's metadata have `bifold.schema`, and \
         `bifold.units`: the units by column, as JSON. Counts are unsigned 64-bit integers,\nnumbers are doubles, texts are UTF-8. \
         Parquet files are compressed with zstd; Arrow files are not compressed.\n\n`export` puts the column `file` before them, and \
         `sweep merge` `task` (the task's number), `name` (of the program in the\ndescription) and a column `axis_NAME` for each axis. \
         Tables of a sweep have the schemas `bifold.sweep-results/1` and so on. The\ntable `tasks` of a sweep, of schema \
         `bifold.sweep-tasks/1`, has `seconds` (s, how long the task ran) and `machine`.\n",
    );
    for table in bifold_sweep::tables::Table::ALL {
        let what = match table.name() {
            "results" => {
                "A row for each configuration of each run: how it was made, counters of the whole run, and figures."
            }
            "intervals" => "A row for each interval and configuration, of a result or a timeline.",
            _ => "A row for each place and configuration of a run with `--where`.",
        };
        let schema = table.schema();
        let _ = write!(
            page,
            "\n## {}\n\n{what} Schema `{schema}`.\n\n| column | unit | meaning |\n|---|---|---|\n",
            table.name()
        );
        for c in table.columns() {
            if Sample::COUNTERS.iter().any(|known| known.name == c.name) && table.name() != "places" {
                // Once, on their own page.
                if c.name == Sample::COUNTERS[0].name {
                    let n = Sample::COUNTERS.len();
                    let _ =
                        writeln!(page, "| {n} counters | | Each under its name: [Counters](counters.md). |");
                }
                continue;
            }
            let _ = writeln!(page, "| `{}` | {} | {} |", c.name, c.unit, c.doc.replace('|', "\\|"));
        }
    }
    page_is("tables.md", &page);
}

#[test]
fn the_page_of_the_daemons_keys_is_their_declaration() {
    let mut page = String::from(
        "# bifold.toml\n\nThe configuration of [bifold daemon](../guide/daemon.md), which is `/etc/bifold/bifold.toml` unless \
         `--config` names another\nfile. `man 5 bifold.toml` has the same text. Files of rules alone can stand in \
         `/etc/bifold/bifold.toml.d/*.toml`; they are read in the\norder of their names, and their rules come before those of the \
         file. Paths are relative to the file's folder. A key that is not\nlisted here is an error. `bifold daemon --check-config \
         FILE` lists all that is wrong.\n",
    );
    for table in TABLES {
        let head = if table.head.starts_with('[') { format!("`{}`", table.head) } else { table.head.into() };
        let _ = write!(page, "\n## {head}\n\n{}\n\n| key | default | meaning |\n|---|---|---|\n", table.doc);
        for key in table.keys {
            let default = if key.default.is_empty() { "required" } else { key.default };
            let _ = writeln!(page, "| `{}` | {default} | {} |", key.name, key.doc.replace('|', "\\|"));
        }
    }
    let _ = write!(page, "\n## Example\n\n```toml\n{EXAMPLE}```\n");
    page_is("bifold-toml.md", &page);
}

#[test]
fn the_page_of_wishes_is_their_declaration() {
    let mut page = String::from(
        "# Wishes of place plan\n\nA file of wishes is TOML; bifold-wishes(5) has the same text. [Plan guests' places](../guide/place-plan.md) says how \
         `bifold place plan` uses it. Sizes have a unit: `K`,\n`M`, `G` or `T`. A key that is not listed here is an error; \
         each value that cannot be used is named with its line.\n",
    );
    for table in bifold_place::wishes::TABLES {
        let _ = write!(
            page,
            "\n## `{}`\n\n{}\n\n| key | default | meaning |\n|---|---|---|\n",
            table.head, table.doc
        );
        for key in table.keys {
            let default = if key.default.is_empty() { "required" } else { key.default };
            let _ = writeln!(page, "| `{}` | {default} | {} |", key.name, key.doc.replace('|', "\\|"));
        }
    }
    let _ = write!(page, "\n## Example\n\n```toml\n{}```\n", bifold_place::wishes::EXAMPLE);
    page_is("place-toml.md", &page);
}

#[test]
fn the_page_of_profile_keys_is_their_declaration() {
    let mut page = String::from(
        "# Profile keys\n\nEvery key of a hardware profile, as a TOML file has it and as `--set KEY=VALUE` names it. In a file, a\n\
         dotted name is a table: `cpu.pcid` is `pcid` below `[cpu]`, and each `[[tlb]]` has the keys of `tlb.NAME`, where\n\
         NAME is its `name`. Unit 1 is a name, a switch or a plain number. [Profiles](../guide/profiles.md) says how to\n\
         write one.\n",
    );
    for table in KEYS {
        page.push_str("\n| key | unit | meaning |\n|---|---|---|\n");
        for key in table {
            let _ = writeln!(page, "| `{}` | {} | {} |", key.name, key.unit, key.doc.replace('|', "\\|"));
        }
    }
    page_is("profile-keys.md", &page);
}

#[test]
fn the_page_of_findings_is_their_declaration() {
    let parts = [bifold_place::check::page(), bifold_live::memory::rules::page()];
    page_is("findings.md", &parts.join("\n"));
}
