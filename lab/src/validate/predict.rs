// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Predicts exits: captures the guest from its boot on, passes its events to the model, and reads the model's
//! counts at the windows that the guest marks.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, bail};
use bifold_guest::{CaptureProgress, GuestSpec, Record};
use bifold_model::{Config, KvmVersion, Model, Options, Profile, Sample, format_of};
use bifold_trace::{CommandExit, Event, decode};

use super::Workload;
use super::table::Reasons;
use crate::exits::outer::REASONS as OUTER;
use crate::lab::Lab;

/// The laboratory's emulator keeps no TLB entry over an exit.
const OVERRIDES: [&str; 1] = ["cpu.tlb_tagged=false"];

/// Predicted exits of a window.
#[derive(Debug, Clone, Default)]
pub struct Window {
    /// Counters of the model.
    pub sample: Sample,
    /// Every exit with reason and address, if they are logged.
    pub log: Vec<(&'static str, u64)>,
}

/// A window that has begun: its number and the counters at its start.
type Begun = (u64, Vec<Sample>);

struct Windows {
    model: Model,
    log: bool,
    begun: Option<Begun>,
    /// Windows by number, for each configuration.
    done: BTreeMap<u64, Vec<Window>>,
}

impl Windows {
    fn totals(&self) -> Vec<Sample> {
        self.model.totals().into_iter().map(|(_, s)| s).collect()
    }

    fn end(&mut self) {
        let Some((number, before)) = self.begun.take() else { return };
        let log = self.model.take_exit_log();
        let of = |((config, now), before): ((Config, Sample), &Sample)| Window {
            sample: now.since(before),
            log: log
                .iter()
                .filter(|e| e.config == config)
                .map(|e| (e.reason, e.gpa.map_or(e.gva.0, |gpa| gpa.0)))
                .collect(),
        };
        self.done.insert(number, self.model.totals().into_iter().zip(&before).map(of).collect());
    }

    /// Takes events, and the marker at their end if there is one.
    fn take(&mut self, words: &[u64], marker: Option<u64>) -> Result<()> {
        self.model.consume(words)?;
        match marker.map(|code| (code >> 8, code & 0xff)) {
            Some((1, window)) => {
                self.begun = Some((window, self.totals()));
                if self.log {
                    self.model.log_exits();
                    self.model.take_exit_log();
                }
            }
            Some((2, _)) => self.end(),
            _ => {}
        }
        Ok(())
    }
}

/// A program's predicted exits by reason.
pub type Predicted = BTreeMap<u64, Window>;

/// The exits of each window.
pub fn reasons(predicted: &Predicted) -> BTreeMap<u64, Reasons> {
    // Most IPIs follow from ticks of the scheduler and from who is idle, and so from time. Those that flush
    // TLBs show as the flushes of the vCPUs that get them.
    let outer = |s: &Sample| OUTER.into_iter().zip([s.outer_fills, s.outer_stores, s.outer_flushes]);
    let of = |s: &Sample| {
        let exits = s.exits().filter(|(name, _)| *name != "ipi").chain(outer(s));
        exits.map(|(name, n)| (name.to_owned(), n as f64)).collect()
    };
    predicted.iter().map(|(n, w)| (*n, of(&w.sample))).collect()
}

/// The workload's guest, recorded from its boot on, and the profile of the laboratory's machine with the
/// guest's KVM.
pub(crate) fn guest_and_profile(lab: &Lab, workload: &Workload, kpti: bool) -> Result<(GuestSpec, Profile)> {
    let kernel = lab.inner();
    let spec = GuestSpec {
        kernel: Some(kernel.image.clone()),
        modules: kernel.modules.clone(),
        record: Record::Boot,
        region: bifold_guest::Region::default(),
        ..workload.guest(lab.vendor(), kpti)
    };
    let host = &lab.kernel().version;
    let kvm = KvmVersion::of_release(host).with_context(|| {
        format!("the model does not know the KVM of Linux {host} (crates/model/src/kvm.rs)")
    })?;
    let mut overrides: Vec<String> = OVERRIDES.iter().map(|s| (*s).to_owned()).collect();
    overrides.push(format!("kvm={}", kvm.name()));
    let profile = Profile::load(lab.vendor().profile, &overrides).context("the profile")?;
    Ok((spec, profile))
}

/// Captures the guest. `take` gets its events in pieces that end with a marker, with the marker's code, or
/// that have none.
pub(crate) fn capture(
    spec: &GuestSpec,
    mut take: impl FnMut(&[u64], Option<u64>) -> Result<()>,
) -> Result<()> {
    let mut pieces = |words: &[u64]| -> Result<()> {
        let (mut at, mut from) = (0, 0);
        while at < words.len() {
            let (event, n) = decode(&words[at..], at)?;
            at += n;
            if let Event::Marker(code) = event {
                take(&words[from..at], Some(code))?;
                from = at;
            }
        }
        take(&words[from..], None)
    };
    let report =
        bifold_guest::capture(spec, &AtomicBool::new(false), &mut |_: CaptureProgress| (), &mut |words| {
            pieces(words).map_err(Into::into)
        })?;
    if report.exit != CommandExit::Code(0) {
        bail!("the captured guest's command ended with {:?}", report.exit);
    }
    Ok(())
}

/// Predicts the windows of each configuration. With `log` every exit is kept.
pub fn predict(
    lab: &Lab,
    workload: &Workload,
    configs: &[&'static str],
    kpti: bool,
    log: bool,
) -> Result<BTreeMap<&'static str, Predicted>> {
    let (spec, profile) = guest_and_profile(lab, workload, kpti)?;
    let chosen: Vec<_> = configs.iter().map(|n| super::config(n).map(|(c, _)| c)).collect::<Result<_>>()?;
    let options = Options {
        configs: chosen,
        guest_frames: bifold_guest::guest_frames(&spec),
        vcpus: spec.vcpus as usize,
        guest_format: format_of(workload.tables),
        ..Options::default()
    };
    let mut windows =
        Windows { model: Model::new(&profile, options), log, begun: None, done: BTreeMap::new() };
    capture(&spec, |words, marker| windows.take(words, marker))?;
    let mut out = BTreeMap::new();
    for (i, name) in configs.iter().enumerate() {
        out.insert(*name, windows.done.iter().map(|(n, w)| (*n, w[i].clone())).collect());
    }
    Ok(out)
}
