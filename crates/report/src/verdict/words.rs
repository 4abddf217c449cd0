// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verdict texts: the conclusions of a comparison as sentences, each under a label.

use super::race::{Says, equal};
use super::{Flip, ModeCost, PageConclusion, conclusion};
use crate::text::{TimeUnit, grouped, number, page_words, shell_words};
use crate::{Comparison, Figures, Input, Tuning};
use bifold_mmu::PageSize;
use bifold_model::{Config, Paging};

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
    let pages = conclusion(c).pages;
    let mut out = vec![("verdict", costs(c, &pages))];
    if !pages.is_empty() {
        out.push(("holds", robustness(&pages)));
    }
    let labels = ["change"].into_iter().chain(std::iter::repeat(""));
    out.extend(labels.zip(what_to_change(c)));
    out
}

/// What to change, a line each: the first of what is ranked among these figures, and how to find out more.
fn what_to_change(c: &Comparison) -> Vec<String> {
    let rankings = Tuning::of_run(c);
    let mut lines: Vec<String> = rankings.iter().flat_map(Tuning::first_change).collect();
    if rankings.iter().any(|t| t.ranked.is_empty()) {
        lines.extend(not_offered(c, &rankings));
    }
    lines.extend(guest_settings(c).filter(|_| !rankings.is_empty()));
    if rankings.iter().any(|t| !t.ranked.is_empty()) {
        lines.push(format!("How to change, check and undo: {HOW_TO_CHANGE}"));
    }
    lines
}

/// The fastest of the modes that cannot be chosen, where it takes less time than now.
fn not_offered(c: &Comparison, rankings: &[Tuning]) -> Option<String> {
    let now = rankings.iter().map(|t| t.now_seconds).fold(f64::INFINITY, f64::min);
    let rows = c
        .outcome
        .configs
        .iter()
        .filter(|o| matches!(o.config.mode, Paging::Offset | Paging::Agile | Paging::Direct));
    let rows = rows.map(|o| (o.config, Figures::of(&c.outcome, o).seconds)).filter(|(_, s)| *s < now);
    let (config, seconds) = rows.min_by(|a, b| a.1.total_cmp(&b.1))?;
    let (name, time) = (config.name(), TimeUnit::of([seconds]).text(seconds));
    Some(match config.mode {
        Paging::Direct => format!("{name} takes {time}, but needs a paravirtual guest."),
        mode => format!("{name} takes {time}, but no product has {}.", mode.words()),
    })
}

/// Why a mode whose band of times overlaps another's is cheaper all the same.
const OVERLAP: &str = "The bands of the modes overlap, and the cheaper mode is cheaper at both ends of its band: what a core hides, it \
     hides in every mode.";

/// Most of the other configurations that the verdict lists.
const MOST_OTHERS: usize = 4;

/// The modes on each page size with the cheaper one, and the other configurations in the order of their
/// times.
fn costs(c: &Comparison, pages: &[PageConclusion]) -> String {
    let figures = |config: Config| {
        let found = c.outcome.configs.iter().find(|o| o.config == config);
        found.map_or(0.0, |o| Figures::of(&c.outcome, o).seconds)
    };
    let mut all: Vec<(Config, f64)> =
        c.outcome.configs.iter().map(|o| (o.config, figures(o.config))).collect();
    let unit = TimeUnit::of(all.iter().map(|(_, seconds)| *seconds));
    let on = |p: &PageConclusion| format!("On {} host pages, {}.", page_words(p.host_page), modes(p, unit));
    let mut parts: Vec<String> = pages.iter().map(on).collect();
    if pages.iter().any(|p| p.bands_overlap && p.possible == [p.winner]) {
        parts.push(OVERLAP.into());
    }
    all.retain(|(config, _)| {
        let page = pages.iter().find(|p| p.host_page == config.host_page);
        !page.is_some_and(|p| p.costs.iter().any(|cost| cost.mode == config.mode))
    });
    all.sort_by(|a, b| a.1.total_cmp(&b.1));
    let mut words: Vec<String> =
        all.iter().map(|(config, seconds)| format!("{} {}", config.name(), unit.text(*seconds))).collect();
    if words.len() > MOST_OTHERS {
        let last = words.pop().unwrap_or_default();
        words.truncate(MOST_OTHERS - 1);
        words.push(format!("the slowest {last}"));
    }
    match (&words[..], pages.is_empty()) {
        ([], _) => {}
        ([one], true) => parts.push(format!("{one}.")),
        ([one], false) => parts.push(format!("Beside them: {one}.")),
        (some, true) => parts.push(format!("By time: {}.", some.join(", "))),
        (some, false) => parts.push(format!("The others by time: {}.", some.join(", "))),
    }
    parts.join(" ")
}

/// The modes on one page size, with the cheaper one.
pub(super) fn modes(p: &PageConclusion, unit: TimeUnit) -> String {
    let words = |cost: &ModeCost| format!("{} ({} %)", unit.text(cost.seconds), number(cost.percent));
    let cost = |mode: Paging| p.costs.iter().find(|cost| cost.mode == mode).map_or(String::new(), words);
    // `nested 449.61 ms (12.40 %), shadow 468.22 ms (17.06 %)`, without `but`.
    let others = |but: Paging| {
        let others = p.costs.iter().filter(|cost| cost.mode != but);
        others.map(|cost| format!("{} {}", cost.mode.name(), words(cost))).collect::<Vec<_>>().join(", ")
    };
    match p.says() {
        Says::AnyOf(may) => {
            let which = if p.costs.len() == 2 {
                "either mode".into()
            } else {
                format!("each of {}", and(may.iter().map(|m| m.words())))
            };
            let first = p.costs[0].mode;
            format!(
                "{which} may be cheaper within the band: {} {}, {}",
                first.words(),
                cost(first),
                others(first)
            )
        }
        Says::CheaperOrEqual(mode) => {
            format!("{} is cheaper or costs the same: {}, {}", mode.words(), cost(mode), others(mode))
        }
        Says::EqualOrCheaper(mode) => {
            format!("{}; within the band, {} may be cheaper", equal_modes(p, &words), mode.words())
        }
        Says::Cheaper(mode) => format!("{} is cheaper: {}, {}", mode.words(), cost(mode), others(mode)),
        Says::Equal => equal_modes(p, &words),
    }
}

/// Modes whose costs are about the same, and those that cost more.
fn equal_modes(p: &PageConclusion, words: &dyn Fn(&ModeCost) -> String) -> String {
    let least = p.costs.iter().map(|cost| cost.percent).fold(f64::INFINITY, f64::min);
    let (equal, more): (Vec<&ModeCost>, Vec<_>) =
        p.costs.iter().partition(|c| equal(least, c.percent, 100.0));
    let names = and(equal.iter().map(|cost| cost.mode.name()));
    let costs = and(equal.iter().map(|cost| words(cost)));
    let more: String = more.iter().map(|cost| format!("; {} {}", cost.mode.name(), words(cost))).collect();
    format!("{names} paging cost about the same: {costs}{more}")
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

/// The exit costs for which the verdicts stay, and the change of exit costs that changes a verdict first. A
/// factor holds for all costs together and for each alone.
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

/// Rounded up: the lower end that is shown must not lie below the exact one.
fn up(factor: f64) -> String {
    rounded(factor, f64::ceil)
}

fn down(factor: f64) -> String {
    rounded(factor, f64::floor)
}

/// Two decimals, or as many as tell the factor from 0 and 1.
fn rounded(factor: f64, round: fn(f64) -> f64) -> String {
    let of = |places: i32| round(factor * 10f64.powi(places)) / 10f64.powi(places);
    let places = (2..9).find(|places| ![0.0, 1.0].contains(&of(*places))).unwrap_or(9);
    let places = if [0.0, 1.0].contains(&factor) { 2 } else { places };
    format!("{:.*}", places as usize, of(places))
}

fn flip(f: &Flip) -> String {
    let then = match f.says() {
        Says::Cheaper(mode) => format!("{} is cheaper", mode.words()),
        Says::CheaperOrEqual(mode) => format!("{} is cheaper or costs the same", mode.words()),
        Says::EqualOrCheaper(mode) => format!("the modes cost about the same or {} is cheaper", mode.words()),
        Says::AnyOf(modes) => {
            let words: Vec<&str> = modes.iter().map(|mode| mode.words()).collect();
            format!("{} may be cheaper within the band", words.join(" or "))
        }
        Says::Equal => "the modes cost about the same".into(),
    };
    let more = f.factor >= 1.0;
    match (&f.key, f.assumed_cycles, f.at_cycles) {
        (Some(key), Some(assumed), Some(at)) => {
            let (key, or) = (key.trim_end_matches(".cycles"), if more { "more" } else { "less" });
            format!("{then} if {key} costs {} cycles or {or} (profile: {})", grouped(at), grouped(assumed))
        }
        _ if more => format!("{then} if all exits cost more than {} times as much", up(f.factor)),
        _ => format!("{then} if all exits cost less than {} times as much", down(f.factor)),
    }
}

/// The command that tries settings of the guest, where some may matter.
fn guest_settings(c: &Comparison) -> Option<String> {
    let guest = c.meta.guest.as_ref().filter(|_| matches!(c.meta.input, Input::Guest))?;
    let thp = guest.thp.as_deref().filter(|thp| *thp != "always").map(|_| "huge pages");
    let kpti = guest.kpti.filter(|on| *on).map(|_| "page-table isolation");
    // `tune` tries the largest pages, too.
    let pages = |size| c.outcome.configs.iter().any(|o| o.config.host_page == size);
    let largest = (pages(PageSize::Size2M) && !pages(PageSize::Size1G)).then_some("1 GB host pages");
    let largest = largest.filter(|_| c.outcome.vm.has_pages(PageSize::Size1G));
    let settings: Vec<&str> = thp.into_iter().chain(kpti).collect();
    (!settings.is_empty()).then(|| {
        let command = shell_words(&guest.command);
        format!(
            "Settings of the guest ({}){} are not tried here: bifold tune -- {command}",
            settings.join(", "),
            largest.map_or(String::new(), |pages| format!(" and {pages}"))
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_factor_near_1_has_the_digits_that_tell_it_from_1() {
        let all = [0.6, 0.9994, 1.0007, 1.349, 1.0].map(|f| (up(f), down(f)));
        let texts =
            [("0.60", "0.60"), ("0.9994", "0.99"), ("1.01", "1.0007"), ("1.35", "1.34"), ("1.00", "1.00")];
        assert_eq!(all, texts.map(|(up, down)| (up.into(), down.into())));
    }
}
