// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page bifold.toml(5), made from the list of the configuration's keys.

use super::{CONFIGURATION, MANUAL, SOURCE};
use bifold_daemon::config::{EXAMPLE, KEYS, TABLES};
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
    "Paths are relative to the folder of the file. A key that is not listed here is an error. All errors beyond the syntax \
     are told at once.",
    "bifold daemon --check-config FILE says what a file means, or what is wrong in it. bifold ctl reload, or systemctl reload \
     bifoldd, reads the files again; if something is wrong in them, the daemon keeps the configuration that it has.",
];

/// The page.
pub fn page() -> Vec<u8> {
    let mut roff = Roff::new();
    roff.control("TH", [CONFIGURATION, "5", "", SOURCE, MANUAL]);
    roff.control("nh", []).control("ad", ["l"]);
    roff.control("SH", ["NAME"])
        .text([roman(format!("{CONFIGURATION} - which VMs bifold-daemon(8) may switch, and when"))]);
    roff.control("SH", ["SYNOPSIS"]);
    for (file, _) in FILES {
        roff.text([bold(file)]).control("br", []);
    }
    roff.control("SH", ["DESCRIPTION"]);
    for text in DESCRIPTION {
        roff.control("PP", []).text([roman(text)]);
    }
    for table in TABLES {
        roff.control("SH", [table.head]).text([roman(table.doc)]);
        for key in KEYS.iter().filter(|k| k.table == table.name) {
            roff.control("TP", []).text(head(key.name, key.default)).text([roman(key.doc)]);
        }
    }
    roff.control("SH", ["EXAMPLE"]).control("nf", []);
    for line in EXAMPLE.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []).control("SH", ["FILES"]);
    for (file, meaning) in FILES {
        roff.control("TP", []).text([bold(file)]).text([roman(meaning)]);
    }
    roff.control("SH", ["SEE ALSO"]).text([roman(
        "bifold-daemon(8), bifold-ctl(8), bifold-policy-list(1), bifold-stat(1), bifold-policy-replay(1)",
    )]);
    roff.to_roff().into_bytes()
}

/// A key and its default.
fn head(name: &str, default: &str) -> Vec<Inline> {
    match default {
        "" => vec![bold(name), roman(" (required)")],
        default => vec![bold(name), roman(" (default: "), italic(default), roman(")")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_key_and_the_example() {
        let page = String::from_utf8(page()).unwrap();
        for key in KEYS {
            let name = key.name.replace('-', "\\-");
            assert!(page.contains(&format!("\\fB{name}\\fR (")), "{}", key.name);
        }
        assert_eq!(page.matches("\n.SH ").count(), 6 + TABLES.len());
        let last = EXAMPLE.lines().last().unwrap();
        assert!(page.contains(&format!("\n{last}\n.fi\n")), "{page}");
    }
}
