// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Forks of many processes at once in PVM: how the lock of shadow work makes them wait.
//!
//! Published are the times of a fork of one process and of 32 at once, under nested and under shadow paging.
//! Times of one process are taken as they are. What part of a fork under shadow paging holds the lock comes
//! from a captured loop. One parameter is fitted on the times of 32: what each further vCPU at work adds to
//! the time of all work ([`contention::SLOWDOWN`]).

use std::fmt::Write as _;

use anyhow::{Context as _, Result};
use bifold_model::contention;
use serde::Deserialize;

use super::lmbench::{Pair, Published, counts};
use super::{Args, Target, read, syscalls};
use crate::say;

/// Published times of a fork, in microseconds.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Fork {
    /// Of one process.
    one: Pair,
    /// Of so many at once.
    processes: u32,
    many: Pair,
}

/// The forks' times if this share of the extra time under shadow paging holds the lock.
#[derive(Debug, Clone, Copy)]
struct Forks {
    published: Fork,
    share: f64,
}

impl Forks {
    /// The time of a fork under shadow paging if nothing but the lock made processes slower.
    fn at_the_lock(&self) -> f64 {
        let Fork { one, processes, .. } = self.published;
        let locked = self.share * (one.shadow - one.nested);
        one.shadow + contention::wait(processes.into(), one.shadow - locked, locked)
    }

    /// The factor on all work, fitted: the geometric mean of both modes' factors.
    fn factor(&self) -> f64 {
        let Fork { one, many, .. } = self.published;
        (many.nested / one.nested * (many.shadow / self.at_the_lock())).sqrt()
    }

    /// [`contention::SLOWDOWN`] as it is fitted here.
    fn slowdown(&self) -> f64 {
        (self.factor() - 1.0) / f64::from(self.published.processes - 1)
    }

    /// The times of many processes, with the model's parameter.
    fn predicted(&self) -> Pair {
        let factor = contention::slowdown(self.published.processes.into());
        Pair { nested: self.published.one.nested * factor, shadow: self.at_the_lock() * factor }
    }

    fn targets(&self) -> [Target; 2] {
        let Fork { processes, many, .. } = self.published;
        let Pair { nested, shadow } = self.predicted();
        let name = |mode| format!("fork of {processes} processes at once, {mode}, µs");
        [
            Target::factor(&name("nested"), many.nested, nested, 2.0),
            Target::factor(&name("shadow"), many.shadow, shadow, 2.0),
        ]
    }
}

/// A document's cycles at the lock of shadow work.
fn locked(json: &str, config: &str) -> Result<f64> {
    #[derive(Deserialize)]
    struct Wait {
        locked_cycles: f64,
    }
    #[derive(Deserialize)]
    struct Several {
        waits: Vec<Wait>,
    }
    #[derive(Deserialize)]
    struct Config {
        name: String,
    }
    #[derive(Deserialize)]
    struct Outcome {
        configs: Vec<Config>,
        several: Several,
    }
    #[derive(Deserialize)]
    struct Document {
        outcome: Outcome,
    }
    let Document { outcome } = serde_json::from_str(json)?;
    let at = outcome.configs.iter().position(|c| c.name == config);
    let wait = at.and_then(|i| outcome.several.waits.get(i));
    wait.map(|w| w.locked_cycles)
        .with_context(|| format!("the output of bifold compare lacks waits of {config}"))
}

pub fn run(args: &Args, page: &mut String) -> Result<bool> {
    let published = read::<Published>(args, "pvm-sosp2023.toml")?;
    let (work, program) = syscalls(args)?;
    // Enough for the kernel's lists of freed tables to be in a steady state; a fork is some 100,000
    // instructions.
    let forks = (args.calls / 500).max(20);
    let file = |forks: u64| work.join(format!("fork-{forks}.json"));
    let one = |forks: u64| {
        say(&format!("capturing fork, {forks} times"));
        let options = "--vcpus 2 --from-marker --regions 1 --kpti on --thp never --configs nested-4k,shadow-4k --memory 512 \
                       --root initramfs";
        let options: Vec<_> = options.split_ascii_whitespace().map(Into::into).collect();
        let command = [program.display().to_string(), "fork".into(), forks.to_string()];
        args.model.model(Some("xeon-8269cy"))?.compare(&options, &command, &file(forks))
    };
    let (shorter, longer) = (one(forks)?, one(2 * forks)?);
    let cycles_at_lock = |forks: u64| locked(&std::fs::read_to_string(file(forks))?, "shadow-4k");
    let locked = cycles_at_lock(2 * forks)? - cycles_at_lock(forks)?;
    let total = longer.since("shadow-4k", &shorter)?;
    let vmm = total.vmm_cycles as f64;
    let n = forks as f64;
    let us = |cycles: f64| cycles / n / (published.frequency_hz / 1e6);
    let model = Forks { published: published.fork, share: locked / vmm };
    let Fork { one, processes, many } = model.published;
    let _ = writeln!(
        page,
        "\n## Forks at once in PVM\n\nPVM also has the time of a fork of one process and of {processes} at once, in a VM of as many vCPUs. \
         KVM does shadow work under one lock of a VM, and nested work shares it. The times of one process are taken as published. \
         The loop `fork` of `evidence/time/syscalls.c` gives the part that holds the lock: a fork costs {:.0} µs more under shadow paging \
         with the profile's costs (published: {:.0}), and holds the lock for {:.0} µs, {:.0} %. Exits of a fork under shadow paging: {}.\n",
        us(vmm),
        one.shadow - one.nested,
        us(locked),
        100.0 * model.share,
        counts(&total, n),
    );
    let _ = writeln!(
        page,
        "One parameter is fitted on both times of {processes}: each further vCPU at work makes all work slower by a share. The fit here \
         gives {:.3}, and the model has {:.3} (`contention::SLOWDOWN`): a factor of {:.1} for {processes} vCPUs. The waits at the lock follow \
         from the share that is locked ([the formula](../../docs/design/times.md#waits-for-the-lock-of-shadow-work)); without the \
         factor a fork under shadow paging would take {:.1} ms. So two of the four figures are given, and the other two show that one \
         factor is enough for both modes, no more.\n",
        model.slowdown(),
        contention::SLOWDOWN,
        contention::slowdown(processes.into()),
        model.at_the_lock() / 1e3,
    );
    let targets = model.targets();
    let Pair { nested, shadow } = model.predicted();
    let _ = writeln!(
        page,
        "| | 1 process µs | {processes} published µs | {processes} modelled µs |\n|---|--:|--:|--:|\n\
         | nested | {:.0} | {:.0} | {nested:.0} |\n| shadow | {:.0} | {:.0} | {shadow:.0} |",
        one.nested, many.nested, one.shadow, many.shadow
    );
    let _ = writeln!(page, "\n{}", super::table(&targets));
    Ok(targets.iter().all(|t| t.met))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn forks(share: f64) -> Forks {
        let text = include_str!("../../../../evidence/published/pvm-sosp2023.toml");
        Forks { published: toml::from_str::<Published>(text).unwrap().fork, share }
    }

    #[test]
    fn the_models_parameter_gives_the_published_times_within_a_factor_of_two() {
        // Whatever the captured share is, from a fourth to all that a lock can be held for.
        for share in [0.25, 0.4, 0.6, 0.8] {
            let model = forks(share);
            assert!(model.targets().iter().all(|t| t.met), "{share}: {:?}", model.predicted());
        }
        assert!(!forks(0.05).targets()[1].met, "hardly anything locked");
    }

    #[test]
    fn the_models_parameter_is_the_one_that_is_fitted() {
        assert!(
            (forks(SHARE).slowdown() / contention::SLOWDOWN - 1.0).abs() < 0.1,
            "{}",
            forks(SHARE).slowdown()
        );
    }

    /// The share of `evidence/pages/published-times.md`.
    const SHARE: f64 = 0.46;

    #[test]
    fn the_locked_cycles_are_those_of_the_configuration() {
        let json = r#"{"outcome": {"configs": [{"name": "nested-4k"}, {"name": "shadow-4k"}],
            "several": {"at_work": 1.0, "waits": [{"locked_cycles": 0}, {"locked_cycles": 7}]}}}"#;
        assert_eq!(locked(json, "shadow-4k").unwrap(), 7.0);
        assert!(locked(json, "shadow-2m").unwrap_err().to_string().contains("shadow-2m"));
    }
}
