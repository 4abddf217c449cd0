// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts exits under the real KVM: per configuration and run, one boot of the laboratory runs the guest's
//! programs, and KVM's trace is read afterwards.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use bifold_mmu::PageSize;
use bifold_model::{Config, Paging};

use super::Workload;
use super::table::Reasons;
use crate::exits::ftrace::Formats;
use crate::exits::{self, Window};
use crate::lab::job::{Inner, InnerBacking, Job, Jobs, Machine};
use crate::lab::{Lab, Output, Plan};
use crate::vendor::Vendor;

/// A run under KVM.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The configuration.
    pub config: &'static str,
    /// Whether the inner guest's kernel isolates its page tables.
    pub kpti: bool,
    /// The run's number, which shifts the guest's start against timer ticks.
    pub number: u64,
}

const SECONDS: u64 = 1800;
pub(crate) const TRACE_MIB: u64 = 512;
/// Memory for the image, the trace and the emulator in the laboratory.
pub(crate) const LAB_MIB: u64 = 1280;

/// Runs the guest once and reads its trace, by window.
pub fn count(lab: &Lab, workload: &Workload, run: Run, log: bool) -> Result<BTreeMap<u64, Window>> {
    let (config, backing) = super::config(run.config)?;
    let shown = |p: &std::path::PathBuf| p.to_string_lossy().into_owned();
    let inner = Inner {
        include: workload.include.iter().map(shown).collect(),
        vcpus: workload.vcpus,
        kpti: run.kpti,
        tables: workload.tables,
        backing,
        delay_us: run.number * 1370,
        trace: exits::EVENTS.map(String::from).to_vec(),
        trace_mib: TRACE_MIB,
        ..Inner::new(workload.command.clone(), workload.memory_mib)
    };
    let outer = config.mode.has_outer_exits();
    let nested = matches!(config.mode, Paging::Nested | Paging::NestedOnNested);
    let plan = Plan {
        jobs: Jobs {
            jobs: vec![Job::Kvm { nested }, Job::Inner(inner)],
            huge_pages: if run.config.ends_with("2m") { workload.memory_mib / 2 + 4 } else { 0 },
        },
        programs: workload.command.first().map(Into::into).into_iter().collect(),
        files: workload.include.clone(),
        exact: true,
        memory_mib: LAB_MIB + workload.memory_mib + TRACE_MIB,
        seconds: SECONDS,
        ..Plan::default()
    };
    let plan = if outer { inside(plan, config) } else { plan };
    let outputs = lab.clone().traced().boot(&plan, &mut |_, _| String::new())?;
    let last = outputs.last().context("no output")?;
    let guests;
    let output = if outer {
        guests = last.inside(1)?;
        &guests
    } else {
        last
    };
    if output.done.status != 0 {
        bail!("the inner guest's command ended with {}: {}", output.done.status, output.done.stderr.trim());
    }
    let mut windows = read(output, lab.vendor(), log)?;
    if outer {
        let (outer_formats, outer_trace) = formats(last)?;
        let (formats, trace) = formats(output)?;
        let inner = exits::outer::Trace { raw: trace, formats: &formats };
        let outer = exits::outer::Trace { raw: outer_trace, formats: &outer_formats };
        for (window, exits) in exits::outer::windows(outer, inner, lab.vendor())? {
            if let Some(w) = windows.get_mut(&window) {
                w.exits.extend(exits);
            }
        }
    }
    for p in &workload.programs {
        if !windows.contains_key(&p.window) {
            bail!("the inner guest ended without output of the program {}", p.name);
        }
    }
    Ok(windows)
}

/// The boot of a laboratory with one inside, which runs the jobs. The outer one's pages have the
/// configuration's size. They are of 2 MB, too, where its tables serve the guest directly, so that the first
/// touches of memory, which the model does not count, are few.
fn inside(plan: Plan, config: Config) -> Plan {
    let huge = config.mode == Paging::ShadowOnNested || config.host_page == PageSize::Size2M;
    let backing = if huge { InnerBacking::Huge } else { InnerBacking::Small };
    let machine = Machine {
        memory_mib: plan.memory_mib,
        backing,
        trace: exits::outer::EVENTS.map(String::from).to_vec(),
        trace_mib: TRACE_MIB,
    };
    Plan {
        memory_mib: LAB_MIB + plan.memory_mib + TRACE_MIB,
        jobs: Jobs {
            huge_pages: if backing == InnerBacking::Huge { plan.memory_mib / 2 + 4 } else { 0 },
            jobs: vec![Job::Kvm { nested: true }, Job::Machine(machine)],
        },
        exact: plan.exact,
        seconds: plan.seconds,
        inside: Some(Box::new(plan)),
        ..Plan::default()
    }
}

pub(crate) fn read(output: &Output, vendor: &Vendor, log: bool) -> Result<BTreeMap<u64, Window>> {
    let (formats, trace) = formats(output)?;
    Ok(exits::windows(trace, &formats, vendor, log)?)
}

/// The trace that a job left, and its events' layouts.
pub(crate) fn formats(output: &Output) -> Result<(Formats, &[u8])> {
    let mut formats = Formats::default();
    for (_, text) in output.files.iter().filter(|(n, _)| n.starts_with("format/")) {
        formats.add(&String::from_utf8_lossy(text))?;
    }
    let file = |name: &str| output.files.get(name).with_context(|| format!("the laboratory left no {name}"));
    let stats = String::from_utf8_lossy(file("stats")?).into_owned();
    for lost in ["overrun", "commit overrun", "dropped events"] {
        let n = stats.lines().find_map(|l| l.strip_prefix(lost)?.strip_prefix(':')).map(str::trim);
        if n.is_some_and(|n| n != "0") {
            bail!(
                "the trace lost events ({lost} {}): its buffer of {TRACE_MIB} MiB is too small",
                n.unwrap_or("")
            );
        }
    }
    Ok((formats, file("trace")?))
}

/// CR3 reads of an interrupt in user mode under KPTI, at the entry into the kernel and the exit from it
/// (`SWITCH_TO_KERNEL_CR3`, `SWITCH_TO_USER_CR3`). The number of CR3 writes is the same.
const CR3_PER_INTERRUPT: f64 = 2.0;

/// The windows' exits without the background. The background is what a sleeping guest (`idle`) has in the
/// same time and, under KPTI, the cost of timer interrupts in user mode, which a guest that is slowed down by
/// its exits gets more of.
pub fn reasons(workload: &Workload, windows: &BTreeMap<u64, Window>, kpti: bool) -> BTreeMap<u64, Reasons> {
    let idle = workload.window("idle").and_then(|w| windows.get(&w));
    windows.iter().map(|(number, w)| (*number, less_background(w, idle, kpti))).collect()
}

fn less_background(window: &Window, idle: Option<&Window>, kpti: bool) -> Reasons {
    let mut out: Reasons = window.exits.iter().map(|(name, n)| (name.clone(), *n as f64)).collect();
    let mut less = |name: &str, n: f64| {
        if let Some(x) = out.get_mut(name) {
            *x = (*x - n).max(0.0);
        }
    };
    // The window of `idle` is not corrected, because it shows the background.
    if let Some(idle) = idle.filter(|i| *i != window) {
        let share = window.nanoseconds as f64 / idle.nanoseconds.max(1) as f64;
        idle.exits.iter().for_each(|(name, n)| less(name, *n as f64 * share));
    }
    if kpti {
        for name in ["cr3_read", "cr3_write"] {
            less(name, CR3_PER_INTERRUPT * window.user_interrupts as f64);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_background_is_what_an_idle_guest_has_in_the_same_time_and_what_ticks_cost_under_kpti() {
        let window = |ns, reads, ticks| Window {
            exits: BTreeMap::from([("cr3_read".to_owned(), reads)]),
            nanoseconds: ns,
            user_interrupts: ticks,
            ..Window::default()
        };
        let (idle, busy) = (window(2000, 10, 0), window(1000, 100, 7));
        assert_eq!(less_background(&busy, Some(&idle), false)["cr3_read"], 95.0);
        assert_eq!(less_background(&busy, Some(&idle), true)["cr3_read"], 81.0);
        assert_eq!(less_background(&idle, Some(&idle), true)["cr3_read"], 10.0);
    }
}
