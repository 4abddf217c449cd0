// SPDX-License-Identifier: Apache-2.0 OR MIT
//! GUPS of vMitosis with page tables on another node than the thread and its data.
//!
//! One figure is fitted: the latency of remote memory, to the native pair of run times. Nested paging with
//! remote guest tables, remote nested tables and both is then predicted. Remote cycles are proportional to
//! what the remote latency exceeds the local one by, so runs with any latency tell those with every other.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Deserialize;

use super::Target;
use crate::predict::Prediction;

/// The placements that vMitosis forced: guest tables, nested tables, both.
const PLACEMENTS: [&str; 3] = ["remote-guest-tables", "remote-host-tables", "remote-tables"];
/// How far both may be from the sum of the parts.
const ADDITIVE: f64 = 0.03;
/// The latency with which runs are made. Local memory answers in [`Remote::local`] cycles.
const LATENCY: u64 = 100_000;

/// Published run times in seconds.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct Seconds {
    native_4k: f64,
    guest_4k: f64,
    host_4k: f64,
    both_4k: f64,
    guest_2m: f64,
    host_2m: f64,
    both_2m: f64,
}

/// Options of `bifold compare` that tell local and remote references apart.
pub(super) fn options() -> Vec<String> {
    let set = format!("memory.remote_cycles={LATENCY}");
    ["--placement".into(), PLACEMENTS.join(","), "--set".into(), set].into()
}

/// Exposed references to remote memory per update.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Remote {
    native_4k: f64,
    nested_4k: [f64; 3],
    nested_2m: [f64; 3],
    /// Latency of local memory.
    local: f64,
}

impl Remote {
    /// Of two runs each of the small and the large pages, of which the longer has `updates` more.
    pub fn new(small: &[Prediction; 2], large: &[Prediction; 2], updates: f64) -> Result<Remote> {
        let local = small[0].local_cycles()?;
        let per = |runs: &[Prediction; 2], config: &str, placement: &str| -> Result<f64> {
            let more = runs[1].remote(config, placement)?.saturating_sub(runs[0].remote(config, placement)?);
            Ok(more as f64 / (LATENCY as f64 - local) / updates)
        };
        let all = |runs, config| -> Result<[f64; 3]> {
            let [guest, host, both] = PLACEMENTS;
            Ok([per(runs, config, guest)?, per(runs, config, host)?, per(runs, config, both)?])
        };
        Ok(Remote {
            native_4k: per(small, "native", PLACEMENTS[0])?,
            nested_4k: all(small, "nested-4k")?,
            nested_2m: all(large, "nested-2m")?,
            local,
        })
    }
}

/// Predicted cycles per update, everything local.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cycles {
    pub native_4k: f64,
    pub nested_4k: f64,
    pub nested_2m: f64,
}

/// The latency of remote memory, beyond the local one, that makes native paging with remote tables take
/// `ratio` times as long.
fn fitted(ratio: f64, cycles: Cycles, remote: &Remote) -> f64 {
    (ratio - 1.0) * cycles.native_4k / remote.native_4k
}

/// Writes the part of the page; true if all targets are met. `local` has the published seconds of native 4 KB
/// and of nested 4 KB and 2 MB, everything local.
pub(super) fn run(
    published: &Seconds,
    local: (f64, f64, f64),
    cycles: Cycles,
    remote: &Remote,
    page: &mut String,
) -> bool {
    let (native, small, large) = local;
    let more = fitted(published.native_4k / native, cycles, remote);
    let ratio = |refs: f64, of: f64| 1.0 + more * refs / of;
    let [guest, host, both] = remote.nested_4k.map(|refs| ratio(refs, cycles.nested_4k));
    let large_ratios = remote.nested_2m.map(|refs| ratio(refs, cycles.nested_2m));
    let of = [published.guest_4k, published.host_4k, published.both_4k].map(|seconds| seconds / small);
    let mut targets = vec![
        Target::relative("remote guest tables over local, nested 4 KB", of[0], guest, 10.0),
        Target::relative("remote nested tables over local, nested 4 KB", of[1], host, 10.0),
        Target::relative("both remote over local, nested 4 KB", of[2], both, 10.0),
    ];
    let seconds = [published.guest_2m, published.host_2m, published.both_2m];
    for ((seconds, predicted), what) in
        seconds.into_iter().zip(large_ratios).zip(["guest tables", "nested tables", "both"])
    {
        let what = format!("remote {what} over local, nested 2 MB");
        targets.push(Target::absolute(&what, seconds / large, predicted, 0.01));
    }
    let refs = |of: [f64; 3]| of.map(|n| format!("{n:.3}")).join(" | ");
    let _ = writeln!(
        page,
        "### Page tables on another node\n\nvMitosis also ran with page tables on another node than the thread and its data. \
         Here `--placement {}` tells which references of walks those are, and data caches which of them memory answers. One \
         figure is fitted: remote memory takes {:.0} cycles, {:.0} more than local memory, because remote tables made the \
         native run {:.2} times as long. The rest follows.\n\n\
         | references to remote memory per update, those that the core hides left out | guest tables | nested tables | both \
         |\n|---|--:|--:|--:|\n| native 4K | {:.3} | | |\n| nested 4K | {} |\n| nested 2M | {} |\n\n{}",
        PLACEMENTS.join(","),
        remote.local + more,
        more,
        published.native_4k / native,
        remote.native_4k,
        refs(remote.nested_4k),
        refs(remote.nested_2m),
        super::table(&targets),
    );
    let additive = (both / (guest + host - 1.0) - 1.0).abs() <= ADDITIVE;
    let _ = writeln!(
        page,
        "The parts {}: alone, remote guest tables and remote nested tables make the predicted run longer by {:.2} and {:.2}, \
         together by {both:.2}, in times of the local run. The published runs got longer by {:.2} and {:.2}, together by {:.2}. A reference of the \
         model costs the same whatever else is remote, so the model cannot be otherwise but for where caches differ.\n",
        if additive { "add up within 3 %" } else { "DO NOT ADD UP within 3 %" },
        guest - 1.0,
        host - 1.0,
        of[0] - 1.0,
        of[1] - 1.0,
        of[2] - 1.0,
        both = both - 1.0,
    );
    targets.iter().all(|t| t.met) && additive
}

#[cfg(test)]
mod tests {
    use super::*;

    const CYCLES: Cycles = Cycles { native_4k: 200.0, nested_4k: 400.0, nested_2m: 60.0 };

    #[test]
    fn the_latency_is_fitted_to_the_native_pair_alone() {
        let remote = Remote { native_4k: 0.5, nested_4k: [0.6, 0.6, 1.2], nested_2m: [0.0; 3], local: 300.0 };
        assert_eq!(fitted(1.5, CYCLES, &remote), 200.0);
        let published = Seconds {
            native_4k: 150.0,
            guest_4k: 130.0,
            host_4k: 260.0,
            both_4k: 160.0,
            guest_2m: 50.0,
            host_2m: 50.0,
            both_2m: 50.0,
        };
        let mut page = String::new();
        assert!(!run(&published, (100.0, 100.0, 50.0), CYCLES, &remote, &mut page));
        // 1 + 200 * 0.6 / 400, and twice that beyond 1.
        assert!(page.contains("| 1.30 | 1.30 | +0.0 | within 10 % | met |"), "{page}");
        assert!(page.contains("| 2.60 | 1.30 | -50.0 | within 10 % | MISSED |"), "{page}");
        assert!(
            page.contains("add up within 3 %") && page.contains("by 0.30 and 0.30, together by 0.60,"),
            "{page}"
        );
        assert!(page.contains("takes 500 cycles, 200 more"), "{page}");
    }
}
