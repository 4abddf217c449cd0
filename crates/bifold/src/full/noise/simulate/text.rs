// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of a simulation, and its notes, in words.

use super::SimulatedRow;
use bifold_host::printable;
use bifold_noise::sim::{Noise, Removed};
use bifold_report::{grouped, seconds, text_table, text_table_with_keys, wrapped};

fn time(ns: f64) -> String {
    seconds(ns * 1e-9)
}

pub(super) fn table(rows: &[SimulatedRow]) -> String {
    let head = ["noise", "operation", "grain", "ranks", "quiet step", "step", "slowdown", "efficiency"];
    let lines = rows.iter().map(|r| {
        vec![
            r.noise.clone(),
            r.case.collective.name().into(),
            time(r.case.grain),
            grouped(r.case.ranks as u64),
            time(r.cell.quiet_step_ns),
            time(r.cell.step_ns),
            format!("{:.3}", r.cell.slowdown),
            format!("{:.3}", r.cell.efficiency),
        ]
    });
    let mut out = text_table_with_keys(2, head.map(String::from).into(), lines.collect());
    let shares = shares(rows);
    if !shares.is_empty() {
        out.push('\n');
    }
    for share in shares {
        out += &wrapped(&format!("note  {share}"), 6);
    }
    for row in rows.iter().filter(|r| !r.gains.is_empty()) {
        out += &format!("\n{}", of_sources(row));
    }
    out
}

/// What share of the time each noise takes: of noise by steps, with each grain.
fn shares(rows: &[SimulatedRow]) -> Vec<String> {
    let mut found: Vec<(&str, Vec<(f64, f64)>)> = Vec::new();
    for row in rows.iter().filter(|r| !matches!(r.case.noise, Noise::Silent)) {
        let at = found.iter().position(|(name, _)| *name == row.noise).unwrap_or_else(|| {
            found.push((&row.noise, Vec::new()));
            found.len() - 1
        });
        let grain = row.case.grain;
        if found[at].1.iter().all(|(known, _)| *known != grain) {
            found[at].1.push((grain, row.case.noise.share(grain)));
        }
    }
    let said = |(name, shares): (&str, Vec<(f64, f64)>)| {
        let first = format!("{} of the time of a rank alone", percent(shares[0].1));
        let text = match shares.iter().all(|(_, share)| *share == shares[0].1) {
            true => first,
            false => {
                let rest = shares[1..].iter().map(|(grain, share)| (*grain, percent(*share)));
                let each = std::iter::once((shares[0].0, first)).chain(rest);
                each.map(|(grain, share)| format!("{share} with grain {}", time(grain)))
                    .collect::<Vec<_>>()
                    .join(", ")
            }
        };
        format!("{name}: the noise takes {text}.")
    };
    found.into_iter().map(said).collect()
}

/// A share with three decimals, and with three digits if it is small.
fn percent(share: f64) -> String {
    let percent = share * 100.0;
    let decimals = if percent > 0.0 { (2.0 - percent.log10().floor()).clamp(3.0, 20.0) as usize } else { 3 };
    format!("{percent:.decimals$} %")
}

/// That a case saw too little of its noise.
pub(super) fn short(row: &SimulatedRow) -> String {
    let SimulatedRow { case, cell, .. } = row;
    let of = match case.noise {
        Noise::Recorded(_) => "times the recording",
        _ => "interruptions",
    };
    format!(
        "{}, {}, grain {}, ranks {}: {} steps see {:.3} {of}, and {} would be enough: the figures are rough",
        row.noise,
        case.collective.name(),
        time(case.grain),
        grouped(case.ranks as u64),
        grouped(cell.steps.into()),
        cell.rounds,
        cell.enough_rounds,
    )
}

/// What to remove first in one case.
fn of_sources(row: &SimulatedRow) -> String {
    let head = ["remove first", "share %", "slowdown without", "step shorter by %"];
    let lines = row.gains.iter().map(|g| {
        let cell = |of: fn(&Removed) -> String| g.removed.as_ref().map_or("not sampled".into(), of);
        vec![
            printable(&g.source),
            format!("{:.4}", g.share * 100.0),
            cell(|r| format!("{:.3}", r.slowdown_without)),
            cell(|r| format!("{:.1}", r.gain * 100.0)),
        ]
    });
    let case = &row.case;
    format!(
        "{}, {}, grain {}, ranks {}: slowdown {:.3}\n{}",
        row.noise,
        case.collective.name(),
        time(case.grain),
        grouped(case.ranks as u64),
        row.cell.slowdown,
        text_table(head.map(String::from).into(), lines.collect())
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rare_noise_keeps_three_digits() {
        for (share, text) in [
            (0.0, "0.000 %"),
            (0.025, "2.500 %"),
            (1.0, "100.000 %"),
            (2e-7, "0.0000200 %"),
            (1e-3, "0.100 %"),
        ] {
            assert_eq!(percent(share), text);
        }
    }
}
