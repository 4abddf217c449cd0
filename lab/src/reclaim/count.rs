// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts refaults and exits under the real KVM: per configuration, size and run, one boot of the laboratory
//! runs the guest's programs with a limit.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use super::{CONFIGS, FRAMES, limit_window};
use crate::exits::{self, Window};
use crate::lab::job::{Inner, Job, Limit, Limited};
use crate::lab::{Lab, Plan};
use crate::validate::count::{LAB_MIB, TRACE_MIB, read};
use crate::validate::{Workload, config};

/// A run under KVM.
#[derive(Debug, Clone, Copy)]
pub struct Run {
    /// The configuration: one of [`CONFIGS`].
    pub config: &'static str,
    /// What the host holds of the guest at most.
    pub mib: u64,
    /// The run's number, which shifts the guest's start against timer ticks.
    pub number: u64,
}

/// What was counted in a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Counted {
    /// By window.
    pub windows: BTreeMap<u64, Window>,
    /// How the limit was kept.
    pub limited: Limited,
}

const SECONDS: u64 = 3600;

/// A boot of the laboratory with this guest, of which the host may swap all.
pub fn plan(workload: &Workload, nested: bool, inner: Inner) -> Plan {
    Plan {
        jobs: vec![Job::Kvm { nested }, Job::Inner(inner)].into(),
        programs: vec![crate::SUITE.into(), crate::BUSYBOX.into()],
        memory_mib: LAB_MIB + workload.memory_mib + TRACE_MIB,
        swap_mib: 2 * workload.memory_mib,
        seconds: SECONDS,
        ..Plan::default()
    }
}

/// Runs the guest once and reads its trace.
pub fn count(lab: &Lab, workload: &Workload, run: Run) -> Result<Counted> {
    let (chosen, backing) = config(run.config)?;
    let events = exits::EVENTS.into_iter().chain([exits::DISK]);
    let inner = Inner {
        backing,
        delay_us: run.number * 1370,
        trace: events.map(String::from).collect(),
        trace_mib: TRACE_MIB,
        limit: Some(Limit { frames: run.mib * FRAMES, window: limit_window(workload)? }),
        ..Inner::new(workload.command.clone(), workload.memory_mib)
    };
    let nested = chosen.mode == bifold_model::Paging::Nested;
    let plan = plan(workload, nested, inner);
    let output = lab.clone().traced().boot_for_last(&plan).context("the inner guest's command")?;
    let limited = output.files.get(Limited::FILE).context("the laboratory left nothing of the limit")?;
    let counted = Counted {
        windows: read(&output, lab.vendor(), false)?,
        limited: serde_json::from_slice(limited).context(Limited::FILE)?,
    };
    for p in &workload.programs {
        if !counted.windows.contains_key(&p.window) {
            bail!("the inner guest ended without output of the program {}", p.name);
        }
    }
    Ok(counted)
}

impl Run {
    /// All runs: each size in each configuration.
    pub fn all(configs: &[&'static str], sizes_mib: &[u64], runs: u64) -> Vec<Run> {
        let of = |&mib: &u64| {
            let each = move |&config: &&'static str| (0..runs).map(move |number| Run { config, mib, number });
            configs.iter().flat_map(each)
        };
        debug_assert!(configs.iter().all(|c| CONFIGS.contains(c)));
        sizes_mib.iter().flat_map(of).collect()
    }

    /// The run's name.
    pub fn name(&self) -> String {
        format!("{} {} MiB run {}", self.config, self.mib, self.number)
    }
}
