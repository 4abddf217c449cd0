// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Predicts refaults and exits: captures the guest from its boot on, and passes its events to a model without
//! a limit and to one for each size.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use anyhow::{Context, Result};
use bifold_model::{Config, Model, Options, Sample, UseOptions};
use bifold_reclaim::MissCurve;
use serde::{Deserialize, Serialize};

use super::{CONFIGS, FRAMES, exit_reasons, limit_window};
use crate::lab::Lab;
use crate::validate::predict::{capture, guest_and_profile};
use crate::validate::{Workload, config};

/// The most references of a window of which the fewest refaults are made.
const MOST_KEPT: u64 = 1 << 27;

/// A window in one size of memory.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Predicted {
    /// Distinct frames that the window uses.
    pub frames: u64,
    /// Refaults of a memory with LRU replacement.
    pub lru: u64,
    /// The fewest refaults that any replacement can have, whatever the memory holds at the window's
    /// beginning.
    pub fewest: u64,
    /// By configuration.
    pub configs: BTreeMap<String, Paged>,
}

/// The model's host that pages out.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Paged {
    /// Refaults.
    pub refaults: u64,
    /// Exits that bring pages back, and the same kind's of other causes.
    pub exits: u64,
    /// The same of a host with room for all.
    pub exits_without: u64,
}

/// Predictions by size in MiB and window.
pub type Predictions = BTreeMap<u64, BTreeMap<u64, Predicted>>;

/// A model with its window.
struct Watched {
    model: Model,
    /// At the window's beginning.
    totals: Vec<Sample>,
    swapped_in: Vec<u64>,
}

impl Watched {
    fn new(model: Model) -> Watched {
        Watched { model, totals: Vec::new(), swapped_in: Vec::new() }
    }

    fn now(&self) -> (Vec<Sample>, Vec<u64>) {
        let totals: Vec<_> = self.model.totals().into_iter().map(|(_, sample)| sample).collect();
        let swapped_in = (0..totals.len()).map(|host| self.model.swapped_in(host)).collect();
        (totals, swapped_in)
    }

    fn begin(&mut self) {
        (self.totals, self.swapped_in) = self.now();
    }

    /// Exits and refaults of each of [`CONFIGS`] since the beginning.
    fn since(&self) -> Vec<(u64, u64)> {
        let (totals, swapped_in) = self.now();
        let of = |(i, name): (usize, &&str)| {
            let sample = totals[i].since(&self.totals[i]);
            let counted = sample.exits().filter(|(reason, _)| exit_reasons(name).contains(reason));
            let exits = counted.map(|(_, n)| n).sum();
            (exits, swapped_in[i] - self.swapped_in[i])
        };
        CONFIGS.iter().enumerate().map(of).collect()
    }
}

struct Windows {
    /// With room for all, and native paging after [`CONFIGS`], whose uses are watched from the boot on.
    whole: Watched,
    /// Watches the uses of each window alone.
    alone: Model,
    /// By size in MiB.
    limited: BTreeMap<u64, Watched>,
    limit_window: u64,
    begun: Option<(u64, MissCurve)>,
    done: Predictions,
}

fn uses() -> UseOptions {
    UseOptions { interval: NonZeroU64::MAX, optimum: MOST_KEPT }
}

impl Windows {
    fn consume(&mut self, words: &[u64]) -> Result<()> {
        self.whole.model.consume(words)?;
        self.alone.consume(words)?;
        self.limited.values_mut().try_for_each(|w| w.model.consume(words))?;
        Ok(())
    }

    fn begin(&mut self, window: u64) -> Result<()> {
        if window == self.limit_window {
            self.limited.iter_mut().for_each(|(mib, w)| w.model.limit_hosts(mib * FRAMES));
        }
        self.whole.begin();
        self.limited.values_mut().for_each(Watched::begin);
        self.alone.watch_uses(uses())?;
        self.begun = Some((window, self.whole.model.use_curve().context("uses are watched")?));
        Ok(())
    }

    fn end(&mut self) -> Result<()> {
        let Some((window, before)) = self.begun.take() else { return Ok(()) };
        let after = self.whole.model.use_curve().context("uses are watched")?;
        let alone = self.alone.take_uses().context("uses are watched")?;
        let without = self.whole.since();
        let sizes: Vec<u64> = self.limited.keys().map(|mib| mib * FRAMES).collect();
        let optima = alone.optima(&sizes);
        let first = after.first() - before.first();
        for ((mib, limited), optimum) in self.limited.iter().zip(optima) {
            let frames = mib * FRAMES;
            let optimum =
                optimum.context("a window has more references than are kept for the fewest refaults")?;
            let of = |((name, (exits, refaults)), (exits_without, _)): ((&&str, _), &(u64, u64))| {
                ((*name).to_owned(), Paged { refaults, exits, exits_without: *exits_without })
            };
            let predicted = Predicted {
                frames: alone.curve().first(),
                lru: after.misses(frames) - before.misses(frames) - first,
                // An empty memory fills with what is used first. The best that a memory can hold at the
                // beginning is that.
                fewest: optimum.saturating_sub(frames + first),
                configs: CONFIGS.iter().zip(limited.since()).zip(&without).map(of).collect(),
            };
            self.done.entry(*mib).or_default().insert(window, predicted);
        }
        Ok(())
    }

    /// Takes events, and the marker at their end if there is one.
    fn take(&mut self, words: &[u64], marker: Option<u64>) -> Result<()> {
        self.consume(words)?;
        match marker.map(|code| (code >> 8, code & 0xff)) {
            Some((1, window)) => self.begin(window),
            Some((2, _)) => self.end(),
            _ => Ok(()),
        }
    }
}

/// Predicts the windows in each size of memory.
pub fn predict(lab: &Lab, workload: &Workload, sizes_mib: &[u64]) -> Result<Predictions> {
    let (spec, profile) = guest_and_profile(lab, workload, false)?;
    let guest_frames = bifold_guest::guest_frames(&spec);
    let model = |configs| Model::new(&profile, Options { configs, guest_frames, ..Options::default() });
    let hosts: Vec<Config> = CONFIGS.iter().map(|n| config(n).map(|(c, _)| c)).collect::<Result<_>>()?;
    let native = Config::ALL[0];
    let mut whole = model([&hosts[..], &[native]].concat());
    whole.watch_uses(UseOptions { optimum: 0, ..uses() })?;
    let mut windows = Windows {
        whole: Watched::new(whole),
        alone: model(vec![native]),
        limited: sizes_mib.iter().map(|mib| (*mib, Watched::new(model(hosts.clone())))).collect(),
        limit_window: limit_window(workload)?,
        begun: None,
        done: BTreeMap::new(),
    };
    capture(&spec, |words, marker| windows.take(words, marker))?;
    Ok(windows.done)
}
