// SPDX-License-Identifier: Apache-2.0 OR MIT
//! GUPS of vMitosis. The updates come from the generator `gups`, whose table may be far larger than this
//! machine's memory. Nothing is fitted: the profile is that of the published machine.

use std::fmt::Write as _;

use anyhow::Result;
use serde::Deserialize;

use super::remote::{self, Remote};
use super::{Args, Target, read};
use crate::predict::{Hidden, Prediction};
use crate::say;

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Published {
    seconds: Seconds,
    remote: remote::Seconds,
    walk_share: WalkShare,
    program: Program,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Program {
    table: String,
    accesses: u64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Seconds {
    native_4k: f64,
    nested_4k: f64,
    nested_2m: f64,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct WalkShare {
    nested_4k: f64,
}

/// Cycles per update in one size of table, for one view of what the core hides.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Cost {
    native_4k: f64,
    nested_4k: f64,
    nested_2m: f64,
    /// Walk cycles in `nested_4k`, with those that the core hides behind other walks.
    walks: f64,
}

impl Cost {
    fn nested_over_native(self) -> f64 {
        self.nested_4k / self.native_4k
    }

    fn large_over_small(self) -> f64 {
        self.nested_2m / self.nested_4k
    }

    /// The cycles per update which, if all three configurations had them in addition, would make 2 MB over 4
    /// KB `ratio`.
    fn common(self, ratio: f64) -> f64 {
        (ratio * self.nested_4k - self.nested_2m) / (1.0 - ratio)
    }

    /// The same with `cycles` more in each configuration, outside walks.
    fn plus(self, cycles: f64) -> Cost {
        Cost {
            native_4k: self.native_4k + cycles,
            nested_4k: self.nested_4k + cycles,
            nested_2m: self.nested_2m + cycles,
            walks: self.walks,
        }
    }

    /// The share of cycles in which a walk is pending.
    fn walk_share(self) -> f64 {
        self.walks / self.nested_4k
    }
}

/// Cycles of a 64-bit division in the loop of the published program, which divides by a number known at run
/// time only: DIV r64 of Skylake-X, reciprocal throughput (Fog, Instruction tables, 2022; recalled).
const DIVISION: [f64; 2] = [21.0, 83.0];
/// Updates of the table for each division.
const PER_STEP: f64 = 2.0;

/// Runs of as many updates as there are, and of twice as many: the second half is measured, when caches are
/// warm.
fn costs(args: &Args, size: &str) -> Result<([Cost; 3], Remote, f64)> {
    let model = args.model.model(Some("xeon-gold-6252"))?;
    let work = args.model.work("published")?;
    let run = |name: &str, configs: &str, updates: u64| -> Result<Prediction> {
        let generate = format!("{name}:{updates}m@{size}");
        let options = ["--generate", &generate, "--configs", configs];
        say(&format!("{name}: {updates} M updates of {size}"));
        let options: Vec<String> =
            options.iter().map(|o| (*o).to_string()).chain(remote::options()).collect();
        model.compare(&options, &[], &work.join(format!("{name}-{size}-{updates}m.json")))
    };
    let n = args.updates;
    let small = [run("gups", "native,nested-4k", n)?, run("gups", "native,nested-4k", 2 * n)?];
    let large = [run("gups-2m", "nested-2m", n)?, run("gups-2m", "nested-2m", 2 * n)?];
    let per = |both: &[Prediction; 2], config: &str, hidden| -> Result<(f64, f64)> {
        let t = both[1].since(config, &both[0])?;
        let updates = n as f64 * 1e6;
        Ok((both[1].cycles(&t, hidden) / updates, both[1].walks(&t, hidden) / updates))
    };
    let cost = |hidden| -> Result<Cost> {
        let (nested_4k, walks) = per(&small, "nested-4k", hidden)?;
        Ok(Cost {
            native_4k: per(&small, "native", hidden)?.0,
            nested_4k,
            nested_2m: per(&large, "nested-2m", hidden)?.0,
            walks,
        })
    };
    let hz = small[0].frequency();
    let remote = Remote::new(&small, &large, n as f64 * 1e6)?;
    Ok(([cost(Hidden::Stated)?, cost(Hidden::Nothing)?, cost(Hidden::All)?], remote, hz))
}

pub fn run(args: &Args, page: &mut String) -> Result<bool> {
    let published: Published = read(args, "vmitosis-asplos2021.toml")?;
    let s = &published.seconds;
    let mut table = String::from(
        "| table | hidden | cycles per update: native 4K | nested 4K | nested 2M | nested over native 4K | walk share | 2M over 4K nested |\n|---|---|--:|--:|--:|--:|--:|--:|\n",
    );
    let mut last = None;
    for size in &args.sizes {
        let (costs, remote, hz) = costs(args, size)?;
        for (cost, hidden) in costs.iter().zip(["as the profile states", "nothing", "everything"]) {
            let _ = writeln!(
                table,
                "| {size} | {hidden} | {:.0} | {:.0} | {:.0} | {:.2} | {:.2} | {:.2} |",
                cost.native_4k,
                cost.nested_4k,
                cost.nested_2m,
                cost.nested_over_native(),
                cost.walk_share(),
                cost.large_over_small(),
            );
        }
        last = Some((size, costs[0], remote, hz));
    }
    let Some((size, cost, remote, hz)) = last else { anyhow::bail!("--sizes is empty") };
    let (over_native, large) = (s.nested_4k / s.native_4k, s.nested_2m / s.nested_4k);
    let share = published.walk_share.nested_4k;
    let targets = [
        Target::relative("nested over native time, 4 KB pages", over_native, cost.nested_over_native(), 15.0),
        Target::absolute("share of cycles with a walk pending, nested, 4 KB", share, cost.walk_share(), 0.1),
        Target::relative("2 MB over 4 KB time, nested", large, cost.large_over_small(), 20.0),
    ];
    *page += "## GUPS of vMitosis\n\nvMitosis (ASPLOS 2021, `evidence/published/vmitosis-asplos2021.toml`) ran GUPS with one thread on a \
              Xeon Gold 6252, natively and in a VM, everything on one node. Here the generator `gups` makes the updates and \
              the model has that processor's profile. Guest and host have pages of the same size, and the host has backed \
              the VM's memory before. Nothing is fitted.\n\n";
    let _ = writeln!(
        page,
        "The published table has {} GB. The generator needs no memory: only page tables exist. Sizes \
         grow to the last one, which is held against the published figures. A table of 1 GB has 2 MB of leaf entries, which \
         the second-level cache and the third hold; one of 64 GB has 128 MB, which no cache holds, and 128 KB of entries that \
         point to leaf tables, more than any walk cache holds. Every run has {} M updates before the {} M that are \
         measured.\n\n{table}\n{}",
        published.program.table.trim_end_matches('g'),
        args.updates,
        args.updates,
        super::table(&targets),
    );
    causes(&published, size, cost, hz, page);
    let cycles =
        remote::Cycles { native_4k: cost.native_4k, nested_4k: cost.nested_4k, nested_2m: cost.nested_2m };
    let remote_met =
        remote::run(&published.remote, (s.native_4k, s.nested_4k, s.nested_2m), cycles, &remote, page);
    Ok(targets.iter().all(|t| t.met) && remote_met)
}

/// What the published program takes per update beside what the model says, and tests of what could be
/// between.
fn causes(published: &Published, size: &str, cost: Cost, hz: f64, page: &mut String) {
    let (s, program) = (&published.seconds, &published.program);
    if *size == program.table {
        let cycles = |seconds: f64| seconds * hz / program.accesses as f64;
        let _ = writeln!(
            page,
            "The published program makes {} M updates, two in a step of its loop. At {:.1} GHz an update takes the cycles \
             below; the clock is a prior.\n\n| | native 4K | nested 4K | nested 2M |\n|---|--:|--:|--:|\n\
             | published | {:.0} | {:.0} | {:.0} |\n| predicted | {:.0} | {:.0} | {:.0} |\n",
            program.accesses >> 20,
            hz / 1e9,
            cycles(s.native_4k),
            cycles(s.nested_4k),
            cycles(s.nested_2m),
            cost.native_4k,
            cost.nested_4k,
            cost.nested_2m,
        );
    }
    let ratio = s.nested_2m / s.nested_4k;
    let common = cost.common(ratio);
    let [quick, slow] = DIVISION.map(|cycles| cost.plus(cycles / PER_STEP));
    let line = |c: Cost| {
        format!(
            "2 MB over 4 KB {:.2}, nested over native {:.2}, walk share {:.2}",
            c.large_over_small(),
            c.nested_over_native(),
            c.walk_share()
        )
    };
    let _ = writeln!(
        page,
        "Tests of one cause, work that all three configurations have alike. The program finds its index with a 64-bit \
         division, which the generator lacks: {:.0} to {:.0} cycles a step on this core. With the least of it: {}. With the \
         most: {}. {common:+.0} cycles per update would bring 2 MB over 4 KB to the published {ratio:.2}; then: {}.\n",
        DIVISION[0],
        DIVISION[1],
        line(quick),
        line(slow),
        line(cost.plus(common)),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_published_figures_give_the_ratios_of_the_target() {
        let text = include_str!("../../../../evidence/published/vmitosis-asplos2021.toml");
        let p: Published = toml::from_str(text).unwrap();
        assert_eq!((100.0 * p.seconds.nested_4k / p.seconds.native_4k).round(), 194.0);
        assert_eq!((100.0 * p.seconds.nested_2m / p.seconds.nested_4k).round(), 30.0);
        assert_eq!((100.0 * p.walk_share.nested_4k).round(), 84.0);
    }

    #[test]
    fn ratios_and_share_are_of_the_whole_time() {
        let cost = Cost { native_4k: 100.0, nested_4k: 200.0, nested_2m: 60.0, walks: 150.0 };
        assert_eq!((cost.nested_over_native(), cost.large_over_small(), cost.walk_share()), (2.0, 0.3, 0.75));
        let with = cost.plus(cost.common(0.44));
        assert!((with.large_over_small() - 0.44).abs() < 1e-12 && with.walk_share() < 0.75, "{with:?}");
    }
}
