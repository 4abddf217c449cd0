// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The conclusions of a comparison as sentences, each under a label.

use super::{Change, Conclusion, Flip, PageConclusion, Winner, conclusions, rows};
use crate::text::{grouped, number};
use crate::{Comparison, Figures};
use bifold_mmu::PageSize;
use bifold_model::{Config, Paging};

/// Factors on all exit costs within which a verdict is called robust.
const HALF: f64 = 0.5;
const TWICE: f64 = 2.0;

/// All sentences in one line.
pub(crate) fn verdict(c: &Comparison) -> String {
    sentences(c).into_iter().map(|(_, text)| text).collect::<Vec<_>>().join(" ")
}

/// A label and what stands under it: which mode is cheaper, in which costs that holds, what to change.
/// An empty label goes on with the one before.
pub(crate) fn sentences(c: &Comparison) -> Vec<(&'static str, String)> {
    let Some(first) = c.outcome.configs.first() else {
        return vec![("verdict", "No configuration was modelled.".into())];
    };
    if first.total.instructions == 0 {
        return vec![("verdict", "No instruction was executed while recording.".into())];
    }
    let (all, old) = (conclusions(c), rows(c, true));
    let mut cheaper: Vec<String> = costs(c).into_iter().collect();
    if let Some(native) = c.outcome.configs.iter().find(|o| o.config.mode == Paging::Native) {
        let percent = Figures::of(&c.outcome, native).overhead_percent;
        cheaper.push(format!("Native itself pays {} %.", number(percent)));
    }
    let mut out = vec![("verdict", cheaper.join(" "))];
    out.extend(long_lived(&all.run, &all.long_lived).map(|text| ("", text)));
    if !all.run.pages.is_empty() {
        out.push(("holds", robustness(&all.run.pages)));
    }
    if old.len() > 1 {
        out.push(("change", change(&all.run, &old[0].config.name())));
        // What is right for a VM as it ran may be wrong later on.
        let steps = |c: &Conclusion| c.changes.iter().map(|s| s.to.clone()).collect::<Vec<_>>();
        if steps(&all.run) != steps(&all.long_lived) {
            let text = change(&all.long_lived, &old[0].config.name());
            out.push(("", format!("In a long-lived VM: {}", lower(&text))));
        }
    }
    out
}

fn page_words(page: PageSize) -> &'static str {
    match page {
        PageSize::Size4K => "4 KB",
        PageSize::Size2M => "2 MB",
        PageSize::Size1G => "1 GB",
    }
}

fn name(winner: Winner) -> &'static str {
    match winner {
        Winner::Nested => "nested",
        Winner::Shadow => "shadow",
        Winner::Equal => "neither",
    }
}

/// What each mode costs on each page size.
fn costs(c: &Comparison) -> Option<String> {
    let conclusion = conclusions(c).run;
    let hypervised: Vec<&bifold_model::ConfigOutcome> =
        c.outcome.configs.iter().filter(|o| o.config.mode != Paging::Native).collect();
    let mut parts = Vec::new();
    for page in [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G] {
        let on = match parts.is_empty() {
            true => format!("On {} host pages", page_words(page)),
            false => format!("on {}", page_words(page)),
        };
        if let Some(both) = conclusion.pages.iter().find(|p| p.host_page == page) {
            parts.push(format!("{on} {}", both_modes(both)));
        } else if let Some(one) = hypervised.iter().find(|o| o.config.host_page == page) {
            let mode = if one.config.mode == Paging::Nested { "nested" } else { "shadow" };
            let percent = Figures::of(&c.outcome, one).overhead_percent;
            parts.push(format!("{on} {mode} costs {} %", number(percent)));
        }
    }
    (!parts.is_empty()).then(|| parts.join("; ") + ".")
}

fn both_modes(p: &PageConclusion) -> String {
    let (n, s) = (number(p.nested_percent), number(p.shadow_percent));
    match p.winner {
        Winner::Equal => format!("nested and shadow are about equal, {n} and {s} %"),
        Winner::Nested => format!("nested is cheaper, {n} % against shadow's {s} %"),
        Winner::Shadow => format!("shadow is cheaper, {s} % against nested's {n} %"),
    }
}

/// What is otherwise in a long-lived VM, if anything is.
fn long_lived(run: &Conclusion, old: &Conclusion) -> Option<String> {
    let other = run.pages.iter().zip(&old.pages).filter(|(r, o)| r.winner != o.winner);
    let parts: Vec<String> =
        other.map(|(_, o)| format!("on {} host pages {}", page_words(o.host_page), both_modes(o))).collect();
    (!parts.is_empty()).then(|| format!("In a long-lived VM {}.", parts.join("; ")))
}

/// Within which exit costs the winners win, and which one decides.
fn robustness(pages: &[PageConclusion]) -> String {
    let robust =
        |p: &&PageConclusion| p.holds_from.is_none_or(|f| f <= HALF) && p.holds_to.is_none_or(|t| t >= TWICE);
    let weak: Vec<&PageConclusion> = pages.iter().filter(|p| !robust(p)).collect();
    let mut parts: Vec<String> = Vec::new();
    if weak.len() < pages.len() {
        let on = match pages.iter().filter(robust).collect::<Vec<_>>()[..] {
            [one] if pages.len() > 1 => format!("On {} host pages this holds", page_words(one.host_page)),
            _ => "This holds".into(),
        };
        parts.push(format!("{on} for exit costs from half to twice the assumed."));
    }
    for p in weak {
        let range = match (p.holds_from.filter(|f| *f > HALF), p.holds_to.filter(|t| *t < TWICE)) {
            (Some(from), Some(to)) => format!("from {from:.2} to {to:.2} times"),
            (Some(from), None) => format!("of {from:.2} times and more"),
            (None, to) => format!("up to {:.2} times", to.unwrap_or(TWICE)),
        };
        let page = page_words(p.host_page);
        parts.push(format!("On {page} host pages this holds only for exit costs {range} the assumed."));
    }
    let flips = pages.iter().filter_map(|p| Some((p, p.flip.as_ref()?)));
    let ratio = |f: &Flip| (f.at_cycles / f.assumed_cycles as f64).ln().abs();
    let soonest = flips.min_by(|a, b| ratio(a.1).total_cmp(&ratio(b.1)));
    parts.push(match soonest {
        None => "No change of a single exit cost makes another winner.".into(),
        Some((p, f)) => flip(p, f),
    });
    parts.join(" ")
}

fn flip(p: &PageConclusion, f: &Flip) -> String {
    // A whole number of cycles beyond which the winner is another.
    let (than, cycles) = match f.at_cycles > f.assumed_cycles as f64 {
        true => ("more", f.at_cycles.floor()),
        false => ("less", f.at_cycles.ceil()),
    };
    format!(
        "The winner changes first on {} host pages: {} is cheaper if {} costs {than} than {} cycles (assumed: {}).",
        page_words(p.host_page),
        name(f.winner),
        f.key.trim_end_matches(".cycles"),
        grouped(cycles as u64),
        grouped(f.assumed_cycles),
    )
}

/// What to change, from the configuration of this name.
fn change(c: &Conclusion, first: &str) -> String {
    let step = |s: &Change| {
        let to = (Config::from_name(&s.from), Config::from_name(&s.to));
        let what = match to {
            (Some(a), Some(b)) if a.mode == b.mode => format!("{} host pages", page_words(b.host_page)),
            (Some(a), Some(b)) if a.host_page == b.host_page => mode_words(b.mode).into(),
            (_, Some(b)) => format!("{} on {} host pages", mode_words(b.mode), page_words(b.host_page)),
            _ => s.to.clone(),
        };
        (what, format!("{} % becomes {} %", number(s.from_percent), number(s.to_percent)))
    };
    match &c.changes[..] {
        [] => format!("Nothing: no configuration is cheaper than {first}."),
        [one] => {
            let (what, effect) = step(one);
            format!("Use {what} instead of {first}: {effect}.")
        }
        [one, then, ..] => {
            let ((what, effect), (next, last)) = (step(one), step(then));
            format!("Use {what} instead of {first}: {effect}. Then use {next}: {last}.")
        }
    }
}

fn mode_words(mode: Paging) -> &'static str {
    match mode {
        Paging::Native => "no hypervisor",
        Paging::Nested => "nested paging",
        Paging::Shadow => "shadow paging",
    }
}

/// A sentence that goes on after a colon.
fn lower(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |c| c.to_lowercase().chain(chars).collect())
}
