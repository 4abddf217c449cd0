// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pages about TOML files, made from the lists of their keys: bifold.toml(5) and bifold-wishes(5).

use crate::manual::{CONFIGURATION, MANUAL, SOURCE};
use bifold_daemon::config::{EXAMPLE, TABLES};
use bifold_host::keys::{Key, Table};
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

const FILES: [(&str, &str); 2] = [
    ("/etc/bifold/bifold.toml", "The configuration that bifold-daemon(8) reads unless another is named."),
    (
        "/etc/bifold/bifold.toml.d/*.toml",
        "Parts with rules alone, [[vm]]. They are read in the order of their names, and their rules come before those of the \
         file. They are read only if the file exists, even an empty one.",
    ),
];

const DESCRIPTION: [&str; 3] = [
    "The configuration of bifold-daemon(8) in TOML: which VMs of this host have which policy, whether the daemon may switch \
     them, and how often. Every key may be left out, except those marked as required. Without a rule, the daemon watches \
     and records; only a rule with act = true lets the daemon switch a VM.",
    "Paths are relative to the folder of the file. A key that is not listed here is an error. Apart from errors of \
     syntax, all errors are reported together.",
    "bifold daemon --check-config FILE says what a file means, or what is wrong in it. bifold ctl reload, or systemctl reload \
     bifoldd, reads the files again; if something is wrong in them, the daemon keeps the configuration that it has.",
];

/// A page about a TOML file.
struct Page {
    /// Its name, without the section.
    name: &'static str,
    summary: &'static str,
    synopsis: Vec<&'static str>,
    description: &'static [&'static str],
    tables: &'static [Table],
    example: &'static str,
    files: &'static [(&'static str, &'static str)],
    see_also: &'static str,
}

/// Each page's file and roff.
pub fn pages() -> Vec<(String, Vec<u8>)> {
    [daemon(), wishes()].map(|page| (format!("{}.5", page.name), page.roff())).into()
}

/// The page about the daemon's configuration.
fn daemon() -> Page {
    Page {
        name: CONFIGURATION,
        summary: "which VMs bifold-daemon(8) may switch, and when",
        synopsis: FILES.iter().map(|(file, _)| *file).collect(),
        description: &DESCRIPTION,
        tables: TABLES,
        example: EXAMPLE,
        files: &FILES,
        see_also: "bifold-daemon(8), bifold-ctl(8), bifold-policy-list(1), bifold-stat(1), bifold-policy-replay(1)",
    }
}

/// The page about the wishes of `bifold place plan`.
fn wishes() -> Page {
    use bifold_place::wishes::{EXAMPLE, TABLES};
    Page {
        name: "bifold-wishes",
        summary: "what guests need, for bifold-place-plan(1)",
        synopsis: vec!["WISHES.toml"],
        description: &[
            "What guests need of a host, in TOML: a table [[guest]] per guest, and one for the host. bifold-place-plan(1) places \
             all guests of a file together. Sizes have a unit: K, M, G or T.",
            "A key that is not listed here is an error. Each value that cannot be used is named with its line.",
        ],
        tables: TABLES,
        example: EXAMPLE,
        files: &[],
        see_also: "bifold-place-plan(1), bifold-place-show(1)",
    }
}

impl Page {
    /// The page as roff.
    fn roff(&self) -> Vec<u8> {
        let mut roff = Roff::new();
        roff.control("TH", [self.name, "5", "", SOURCE, MANUAL]);
        roff.control("nh", []).control("ad", ["l"]);
        roff.control("SH", ["NAME"]).text([roman(format!("{} - {}", self.name, self.summary))]);
        roff.control("SH", ["SYNOPSIS"]);
        for file in &self.synopsis {
            roff.text([bold(*file)]).control("br", []);
        }
        roff.control("SH", ["DESCRIPTION"]);
        for text in self.description {
            roff.control("PP", []).text([roman(*text)]);
        }
        for table in self.tables {
            roff.control("SH", [table.head]).text([roman(table.doc)]);
            for key in table.keys {
                roff.control("TP", []).text(head(key)).text([roman(key.doc)]);
            }
        }
        roff.control("SH", ["EXAMPLE"]).control("nf", []);
        for line in self.example.lines() {
            roff.text([roman(line)]);
        }
        roff.control("fi", []);
        if !self.files.is_empty() {
            roff.control("SH", ["FILES"]);
        }
        for (file, meaning) in self.files {
            roff.control("TP", []).text([bold(*file)]).text([roman(*meaning)]);
        }
        roff.control("SH", ["SEE ALSO"]).text([roman(self.see_also)]);
        roff.to_roff().into_bytes()
    }
}

/// A key and its default.
fn head(key: &Key) -> Vec<Inline> {
    match key.default {
        "" => vec![bold(key.name), roman(" (required)")],
        default => vec![bold(key.name), roman(" (default: "), italic(default), roman(")")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_has_every_key_and_the_example() {
        for page in [daemon(), wishes()] {
            let text = String::from_utf8(page.roff()).unwrap();
            for key in page.tables.iter().flat_map(|t| t.keys).map(|k| k.name) {
                let name = key.replace('-', "\\-");
                assert!(text.contains(&format!("\\fB{name}\\fR (")), "{key}");
            }
            let sections = 5 + page.tables.len() + usize::from(!page.files.is_empty());
            assert_eq!(text.matches("\n.SH ").count(), sections);
            let last = page.example.lines().last().unwrap();
            assert!(text.contains(&format!("\n{last}\n.fi\n")), "{text}");
        }
    }
}
