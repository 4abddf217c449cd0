// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Self-checks of a run in words, and the assumptions of its figures.

use crate::Comparison;
use crate::text::grouped;

/// Each kind of self-check with the number of checks made and the number that failed.
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

/// The assumptions of the percentages.
pub(crate) fn caveats(c: &Comparison) -> Vec<String> {
    let first = match c.outcome.caches {
        None => "percentages depend on the assumed CPI; extra cycles per 1000 instructions do not",
        Some(_) => {
            "the band goes from a core that hides no wait for memory to one that hides all that it can"
        }
    };
    let mut out = vec![first.to_string()];
    let priors = c.meta.hardware.priors();
    if !priors.is_empty() {
        out.push(format!("priors in this profile (assumed costs, not measured): {}", prior_keys(&priors)));
    }
    out
}

/// Keys of priors (`key: origin of the value`); several keys of one table are counted.
pub(crate) fn prior_keys(priors: &[String]) -> String {
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
