// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sentences that say what a comparison shows: the cheapest configuration
//! under a hypervisor, whether its self-checks passed, and what it assumes.

use crate::text::{grouped, number};
use crate::{Comparison, Figures};
use bifold_model::{Config, Mode};

/// Two overheads closer than this share of the larger are called equal: less is
/// within what the assumed costs can decide.
const EQUAL_SHARE: f64 = 0.02;

/// The cheapest configuration under a hypervisor and by how much, over the whole
/// run and, where that differs, in a long-lived VM.
pub(crate) fn verdict(c: &Comparison) -> String {
    let rows: Vec<(Config, Figures)> =
        c.outcome.configs.iter().map(|o| (o.config, Figures::of(&c.outcome, o))).collect();
    let Some((_, total)) = c.outcome.configs.first().map(|o| (o.config, o.total)) else {
        return "No configuration was modelled.".into();
    };
    if total.instructions == 0 {
        return "No instruction was executed while recording.".into();
    }
    let virtual_rows: Vec<_> = rows.iter().filter(|(c, _)| c.mode != Mode::Native).collect();
    let native = rows.iter().find(|(c, _)| c.mode == Mode::Native);
    let cold = ranking(&virtual_rows, |f| f.overhead_percent);
    let mut out = match &cold[..] {
        [] => String::new(),
        [(name, v)] => format!("Under a hypervisor: {name} costs {} %.", number(*v)),
        [(best, v), (next, w), ..] if w - v <= EQUAL_SHARE * w => format!(
            "Cheapest under a hypervisor: {best} and {next}, about equal at {} % and {} %.",
            number(*v),
            number(*w)
        ),
        [(best, v), (next, w), ..] => {
            // Points say little where one is a multiple of the other.
            let more = if *v > 0.0 && *w > 2.0 * v {
                format!("{:.1} times as much", w / v)
            } else {
                format!("{} points more", number(w - v))
            };
            let (v, w) = (number(*v), number(*w));
            format!("Cheapest under a hypervisor: {best} at {v} %; next is {next} at {w} %, {more}.")
        }
    };
    let warm = ranking(&virtual_rows, |f| f.long_lived_percent);
    if let ([(cold, _), _, ..], [(warm, v), ..]) = (&cold[..], &warm[..]) {
        if cold != warm {
            out += &format!(" In a long-lived VM: {warm} at {} %.", number(*v));
        }
    }
    if let Some((_, f)) = native {
        if !out.is_empty() {
            out.push(' ');
        }
        out += &format!("Native itself pays {} %.", number(f.overhead_percent));
    }
    out
}

fn ranking(rows: &[&(Config, Figures)], by: impl Fn(&Figures) -> f64) -> Vec<(String, f64)> {
    let mut v: Vec<(String, f64)> = rows.iter().map(|(c, f)| (c.name(), by(f))).collect();
    v.sort_by(|a, b| a.1.total_cmp(&b.1));
    v
}

/// The self-checks' result: each kind of check with the number made and, where
/// some failed, how many.
pub(crate) fn checks(c: &Comparison) -> Vec<(&'static str, u64, u64)> {
    let o = &c.outcome;
    let mut rows = vec![("walks", o.walk_checks, o.walk_mismatches)];
    if let Some(s) = c.meta.capture_checks {
        rows.push(("CR3 loads", s.cr3_checks, s.cr3_mismatches));
        rows.push(("translations", s.translation_checks, s.translation_mismatches));
        rows.push(("table entries at the end", s.table_checks, s.table_mismatches));
    }
    rows
}

/// The self-checks' result in one line.
pub(crate) fn checks_line(c: &Comparison) -> String {
    let (made, failed) = c.checks();
    if made == 0 && failed == 0 {
        return "none: this input has nothing to check against".into();
    }
    let parts: Vec<String> = checks(c)
        .iter()
        .filter(|(_, made, _)| *made > 0)
        .map(|(what, made, bad)| match bad {
            0 => format!("{} {what}", grouped(*made)),
            n => format!("{} {what} ({} DISAGREE)", grouped(*made), grouped(*n)),
        })
        .collect();
    let untranslated = match c.outcome.untranslated {
        0 => String::new(),
        n => format!("; {} accesses had NO TRANSLATION", grouped(n)),
    };
    let result = if failed == 0 { "passed, 0 mismatches: " } else { "FAILED: " };
    format!("{result}{}{untranslated}", parts.join(", "))
}

/// What the percentages stand on.
pub(crate) fn caveats(c: &Comparison) -> Vec<String> {
    let mut out =
        vec!["percentages stand on an assumed CPI, extra cycles per 1000 instructions do not".to_string()];
    if !c.meta.priors.is_empty() {
        out.push(format!("priors in this profile, to be measured: {}", prior_keys(&c.meta.priors)));
    }
    out
}

/// Keys of priors (`key: how it was arrived at`); those under one table are counted.
fn prior_keys(priors: &[String]) -> String {
    let mut tables: Vec<(&str, usize, &str)> = Vec::new();
    for prior in priors {
        let key = prior.split(": ").next().unwrap_or(prior);
        let table = key.split('.').next().unwrap_or(key);
        match tables.iter_mut().find(|(t, ..)| *t == table) {
            Some((_, n, _)) => *n += 1,
            None => tables.push((table, 1, key)),
        }
    }
    let names: Vec<String> = tables
        .iter()
        .map(|(table, n, key)| if *n == 1 { key.to_string() } else { format!("{n} of {table}") })
        .collect();
    names.join(", ")
}
