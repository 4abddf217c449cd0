// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verdict texts: the conclusions of a comparison as sentences, each under a label.

use super::race::equal;
use super::{Conclusion, Flip, PageConclusion, RankedChange, Winner, conclusion, rows};
use crate::text::{grouped, number, page_words};
use crate::{Comparison, Figures, Input};
use bifold_mmu::PageSize;
use bifold_model::{Config, ConfigOutcome, Paging};

/// A verdict that holds between these factors on all exit costs is called robust.
const HALF: f64 = 0.5;
const TWICE: f64 = 2.0;

/// The page that says how each change is made.
const HOW_TO_CHANGE: &str = "docs/guide/what-to-do-now.md";

/// All sentences in one line.
pub(crate) fn verdict(c: &Comparison) -> String {
    sentences(c).into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ")
}

/// Sentences with their labels: the cheaper mode, the exit costs for which it is cheaper, and what to
/// change. An empty label continues the label before.
pub(crate) fn sentences(c: &Comparison) -> Vec<(&'static str, String)> {
    let Some(first) = c.outcome.configs.first() else {
        return vec![("verdict", "No configuration was modelled.".into())];
    };
    if first.total.instructions == 0 {
        return vec![("verdict", "No instruction was executed while recording.".into())];
    }
    if c.began_cold() {
        return vec![("verdict", "None, because the region began in a cold VM.".into())];
    }
    let (all, known) = (conclusion(c), rows(c));
    let mut cheaper: Vec<String> = costs(c).into_iter().collect();
    if let Some(native) = c.outcome.configs.iter().find(|o| o.config.mode == Paging::Native) {
        let percent = Figures::of(&c.outcome, native).overhead_percent;
        cheaper.push(format!("Without a hypervisor, the overhead is {} %.", number(percent)));
    }
    let mut out = vec![("verdict", cheaper.join(" "))];
    if !all.pages.is_empty() {
        out.push(("holds", robustness(&all.pages)));
    }
    if known.len() > 1 {
        let labels = ["change"].into_iter().chain(std::iter::repeat(""));
        out.extend(labels.zip(what_to_change(c, &all, &known[0].config.name())));
    }
    out
}

/// What to change, starting from the configuration `first`, a line each.
fn what_to_change(c: &Comparison, all: &Conclusion, first: &str) -> Vec<String> {
    let mut lines = ranking(all, first);
    lines.extend(guest_settings(c));
    if !all.ranked.is_empty() {
        lines.push(format!("How to change, check and undo: {HOW_TO_CHANGE}"));
    }
    lines
}

/// The cheaper mode and its verb.
fn is_cheaper(winner: Winner) -> String {
    match winner {
        Winner::Mode(mode) => format!("{} is cheaper", mode.words()),
        Winner::Equal => "neither mode is cheaper".into(),
    }
}

/// The overhead of each mode on each page size, and the cheaper mode.
fn costs(c: &Comparison) -> Option<String> {
    let conclusion = conclusion(c);
    let on = |page| format!("On {} host pages,", page_words(page));
    let overhead = |o: &ConfigOutcome| number(Figures::of(&c.outcome, o).overhead_percent);
    let mut parts = Vec::new();
    for page in [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G] {
        let compared = conclusion.pages.iter().find(|p| p.host_page == page);
        parts.extend(compared.map(|p| format!("{} {}.", on(page), modes(p))));
        let alone = |o: &&ConfigOutcome| {
            let mode = o.config.mode;
            let named = compared.is_some_and(|p| p.percents.iter().any(|(m, _)| *m == mode));
            o.config.host_page == page && mode.has_sizes() && !named
        };
        for one in c.outcome.configs.iter().filter(alone) {
            let (mode, percent) = (one.config.mode.words(), overhead(one));
            parts.push(format!("{} {mode} has {percent} % overhead.", on(page)));
        }
    }
    let other = |o: &&ConfigOutcome| o.config.mode != Paging::Native && !o.config.mode.has_sizes();
    for one in c.outcome.configs.iter().filter(other) {
        parts.push(format!("The overhead of {} is {} %.", one.config.mode.words(), overhead(one)));
    }
    (!parts.is_empty()).then(|| parts.join(" "))
}

/// The modes on one page size, with the cheaper one.
pub(super) fn modes(p: &PageConclusion) -> String {
    let percent = |mode: Paging| {
        let found = p.percents.iter().find(|(m, _)| *m == mode);
        found.map_or(String::new(), |(_, percent)| format!("{} %", number(*percent)))
    };
    // `nested 12 %, shadow 15 %`, without `but`.
    let others = |but: Paging| {
        let others = p.percents.iter().filter(|(m, _)| *m != but);
        others.map(|(m, _)| format!("{} {}", m.name(), percent(*m))).collect::<Vec<_>>().join(", ")
    };
    let may: Vec<Paging> = p.possible.iter().filter_map(|w| w.mode()).collect();
    match (p.winner, &may[..]) {
        (_, [_, _, ..]) => {
            let which = if p.percents.len() == 2 {
                "either mode".into()
            } else {
                format!("each of {}", and(may.iter().map(|m| m.words())))
            };
            let first = p.percents[0].0;
            format!(
                "{which} may be cheaper within the band: overhead of {} {}, {}",
                first.words(),
                percent(first),
                others(first)
            )
        }
        (_, [mode]) if p.possible.contains(&Winner::Equal) => {
            let words = mode.words();
            format!("{words} is cheaper or costs the same: overhead {}, {}", percent(*mode), others(*mode))
        }
        (Winner::Mode(mode), _) => {
            format!("{}: overhead {}, {}", is_cheaper(p.winner), percent(mode), others(mode))
        }
        (Winner::Equal, _) => equal_modes(p),
    }
}

/// Modes whose costs are about the same, and those that cost more.
fn equal_modes(p: &PageConclusion) -> String {
    let least = p.percents.iter().map(|(_, percent)| *percent).fold(f64::INFINITY, f64::min);
    let (equal, more): (Vec<_>, Vec<_>) = p.percents.iter().partition(|(_, of)| equal(least, *of, 100.0));
    let names = and(equal.iter().map(|(m, _)| m.name()));
    let percents = and(equal.iter().map(|(_, percent)| format!("{} %", number(*percent))));
    let more: String =
        more.iter().map(|(m, percent)| format!("; {} {} %", m.name(), number(*percent))).collect();
    format!("{names} paging cost about the same: overhead {percents}{more}")
}

/// `a, b and c`.
fn and(words: impl Iterator<Item = impl ToString>) -> String {
    let words: Vec<String> = words.map(|w| w.to_string()).collect();
    match &words[..] {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

/// The exit costs for which the winners stay cheaper, and the change of exit costs that changes a winner first. A factor holds for
/// all costs together and for each alone.
fn robustness(pages: &[PageConclusion]) -> String {
    let robust =
        |p: &&PageConclusion| p.holds_from.is_none_or(|f| f <= HALF) && p.holds_to.is_none_or(|t| t >= TWICE);
    let on = |p: &PageConclusion| match pages.len() {
        1 => "The result".to_owned(),
        _ => format!("On {} host pages, the result", page_words(p.host_page)),
    };
    let mut parts: Vec<String> = Vec::new();
    let strong: Vec<&PageConclusion> = pages.iter().filter(robust).collect();
    if let Some(one) = strong.first() {
        let what = if strong.len() == pages.len() { "The result".into() } else { on(one) };
        let flips = strong.iter().filter_map(|p| Some((p, p.flip.as_ref()?)));
        let distance = |f: &Flip| f.factor.ln().abs();
        let soonest = flips.min_by(|a, b| distance(a.1).total_cmp(&distance(b.1)));
        parts.push(match soonest {
            None => format!("{what} holds whatever exits cost."),
            Some((p, f)) => format!(
                "{what} holds from half to twice the profile's exit costs, changed together or one alone. \
                 The nearest change: on {} host pages, {}.",
                page_words(p.host_page),
                flip(f)
            ),
        });
    }
    for p in pages.iter().filter(|p| !robust(p)) {
        let range = match (p.holds_from.filter(|f| *f > HALF), p.holds_to.filter(|t| *t < TWICE)) {
            (Some(from), Some(to)) => format!("from {} to {} times", up(from), down(to)),
            (Some(from), None) => format!("of at least {} times", up(from)),
            (None, to) => format!("of at most {} times", down(to.unwrap_or(TWICE))),
        };
        let first = p.flip.iter().map(|f| format!(": {}", flip(f))).collect::<String>();
        let what = on(p);
        parts.push(format!(
            "{what} holds only for exit costs {range} the profile's, changed together or one alone{first}."
        ));
    }
    parts.join(" ")
}

/// Two decimals, rounded up: the lower end that is shown must not lie below the exact one.
fn up(factor: f64) -> String {
    format!("{:.2}", (100.0 * factor).ceil() / 100.0)
}

fn down(factor: f64) -> String {
    format!("{:.2}", (100.0 * factor).floor() / 100.0)
}

fn flip(f: &Flip) -> String {
    let cheaper = is_cheaper(f.winner);
    let than = if f.factor > 1.0 { "more" } else { "less" };
    match (&f.key, f.assumed_cycles, f.at_cycles) {
        (Some(key), Some(assumed), Some(at)) => {
            // A whole number of cycles beyond which the winner changes.
            let cycles = if f.factor > 1.0 { at.floor() } else { at.ceil() };
            let (key, cycles) = (key.trim_end_matches(".cycles"), grouped(cycles as u64));
            format!("{cheaper} if {key} costs {than} than {cycles} cycles (profile: {})", grouped(assumed))
        }
        _ if f.factor > 1.0 => {
            format!("{cheaper} if all exits cost more than {} times as much", down(f.factor))
        }
        _ => format!("{cheaper} if all exits cost less than {} times as much", up(f.factor)),
    }
}

/// The changes from the configuration `first`, a sentence each.
fn ranking(c: &Conclusion, first: &str) -> Vec<String> {
    let numbered = c.ranked.len() > 1;
    let one = |(i, s): (usize, &RankedChange)| {
        let place = if numbered { format!("{}. ", i + 1) } else { String::new() };
        let saves = format!(
            "{place}From {first} to {} ({}): overhead falls by {} points, from {} % to {} %",
            s.to,
            what(s),
            number(s.gain_points),
            number(s.from_percent),
            number(s.to_percent)
        );
        let memory = s.from_backed_bytes.zip(s.to_backed_bytes).filter(|(a, b)| a != b);
        let memory = memory
            .map(|(a, b)| format!("; the host backs {} of guest memory in place of {}", mib(b), mib(a)));
        format!("{saves}{}.", memory.unwrap_or_default())
    };
    match c.ranked.is_empty() {
        true => vec![format!("Keep {first}, as no configuration is cheaper.")],
        false => c.ranked.iter().enumerate().map(one).collect(),
    }
}

/// Settings of the guest whose change this run cannot tell, with the options of a run that can.
fn guest_settings(c: &Comparison) -> Option<String> {
    let guest = c.meta.guest.as_ref().filter(|_| matches!(c.meta.input, Input::Guest))?;
    let thp = guest.thp.as_deref().filter(|thp| *thp != "always").map(|_| "--thp always");
    let kpti = guest.kpti.filter(|on| *on).map(|_| "--kpti off");
    let options: Vec<&str> = thp.into_iter().chain(kpti).collect();
    (!options.is_empty()).then(|| {
        format!(
            "Settings of the guest are not ranked: compare this run with one with {}.",
            options.join(" or ")
        )
    })
}

/// What a change changes, in words.
fn what(s: &RankedChange) -> String {
    match (Config::from_name(&s.from), Config::from_name(&s.to)) {
        (Some(a), Some(b)) if a.mode == b.mode => format!("{} host pages", page_words(b.host_page)),
        (Some(a), Some(b)) if a.host_page == b.host_page => b.mode.words().into(),
        (_, Some(b)) => format!("{} on {} host pages", b.mode.words(), page_words(b.host_page)),
        _ => s.to.clone(),
    }
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", number((bytes as f64) / f64::from(1 << 20)))
}
