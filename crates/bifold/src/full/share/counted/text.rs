// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A count for readers.

use bifold_report::{grouped, text_table, wrapped};
use bifold_share::image::HUGE;
use bifold_share::potential::{Counts, Potential};

/// Largest number of guests whose table of pairs fits a terminal's line.
const SHOWN: usize = 12;

/// Everything, in tables.
pub fn table(p: &Potential) -> String {
    let mut out = String::from("4 KB pages\n\n");
    out += &counts(p, |g| &p.guests[g].small, &p.small);
    out += "\n";
    let saved = p.small.saved();
    out += &wrapped(
        &format!(
            "Sharing saves at most {} of {}, {:.1} %: zero pages {:.1} %, repeats inside guests {:.1} %, across guests \
             {:.1} %.",
            mb(saved),
            mb(p.small.pages),
            percent(saved, p.small.pages),
            percent(p.small.zero, p.small.pages),
            percent(p.small.intra, p.small.pages),
            percent(p.small.inter, p.small.pages)
        ),
        0,
    );
    if p.huge.pages > 0 {
        out += "\n2 MB pages, aligned and whole\n\n";
        out += &counts(p, |g| &p.guests[g].huge, &p.huge);
        out += "\n";
        out += &wrapped(
            &format!(
                "Kept in 2 MB pages, guests share {}: {} pages of 4 KB, {}, less.",
                mb(HUGE * p.huge.saved()),
                grouped(p.lost_to_huge()),
                mb(p.lost_to_huge())
            ),
            0,
        );
    }
    out += &repeated(p);
    out += &known(p);
    out += &pairs(p);
    out += "\n";
    let method = match &p.warning {
        Some(warning) => format!("Equal pages by {}. {warning}", p.method),
        None => format!("Equal pages by {}.", p.method),
    };
    out += &wrapped(&method, 0);
    if p.changed > 0 {
        out += &format!("{} pages changed while they were read.\n", grouped(p.changed));
    }
    out
}

/// The most repeated contents.
fn repeated(p: &Potential) -> String {
    if p.top.is_empty() {
        return String::new();
    }
    let rows = p.top.iter().map(|c| {
        let first =
            c.first.map_or_else(|| "-".into(), |(guest, gfn)| format!("{} {gfn:#x}", p.guests[guest].name));
        vec![c.what.to_string(), grouped(c.pages), grouped(c.guests), first]
    });
    let head = ["most repeated contents", "pages", "guests", "first at gfn"];
    format!("\n{}", text_table(head.map(String::from).into(), rows.collect()))
}

/// Contents of files that were named.
fn known(p: &Potential) -> String {
    if p.known.is_empty() {
        return String::new();
    }
    let rows =
        p.known.iter().map(|k| vec![k.name.clone(), grouped(k.contents), grouped(k.found), grouped(k.pages)]);
    let head = ["file", "its contents", "found in guests", "guest pages"];
    format!("\n{}", text_table(head.map(String::from).into(), rows.collect()))
}

/// A row per guest, and one for all.
fn counts<'a>(p: &Potential, of: impl Fn(usize) -> &'a Counts, all: &'a Counts) -> String {
    let row = |name: &str, c: &Counts| {
        let share = format!("{:.1} %", percent(c.saved(), c.pages));
        let numbers = [c.pages, c.zero, c.minimum, c.intra, c.inter].map(grouped);
        [name.to_string()].into_iter().chain(numbers).chain([share]).collect()
    };
    let mut rows: Vec<Vec<String>> = p.guests.iter().enumerate().map(|(i, g)| row(&g.name, of(i))).collect();
    rows.push(row("all", all));
    let head = ["guest", "pages", "zero", "minimum", "intra", "inter", "saved"];
    text_table(head.map(String::from).into(), rows)
}

/// The table of what each pair of guests has in common.
fn pairs(p: &Potential) -> String {
    if p.guests.len() < 2 {
        return String::new();
    }
    let Some(pairs) = &p.pairs else {
        return "\nToo many guests to count what each pair has in common.\n".into();
    };
    if p.guests.len() > SHOWN {
        return "\nWhat each pair of guests has in common is in --format json and jsonl.\n".into();
    }
    let head = ["contents in common".to_string()].into_iter().chain(p.guests.iter().map(|g| g.name.clone()));
    let rows = p.guests.iter().zip(pairs).map(|(guest, row)| {
        [guest.name.clone()].into_iter().chain(row.iter().map(|n| grouped(*n))).collect()
    });
    format!("\n{}", text_table(head.collect(), rows.collect()))
}

/// Pages of 4 KB as megabytes.
fn mb(pages: u64) -> String {
    let tenths = pages * 10 / 256;
    format!("{}.{} MB", grouped(tenths / 10), tenths % 10)
}

fn percent(part: u64, of: u64) -> f64 {
    if of == 0 { 0.0 } else { 100.0 * part as f64 / of as f64 }
}
