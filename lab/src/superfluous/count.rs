// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a guest in the laboratory under a limit, and counts its host's swap operations by trace events.

use anyhow::{Context, Result, ensure};

use super::events::{self, Counted, Functions, Guest, file_frames};
use super::{CONFIG, SwapFile, program};
use crate::lab::job::{Inner, Limit};
use crate::lab::{Lab, Plan};
use crate::reclaim::count::plan;
use crate::reclaim::{FRAMES, limit_window};
use crate::validate::count::{TRACE_MIB, formats};
use crate::validate::{Workload, config};

/// Runs the workload's guest once.
pub fn count(lab: &Lab, workload: &Workload, file: &SwapFile, limit_mib: u64) -> Result<Counted> {
    // Guest and laboratory have their functions at the same addresses.
    let (kernel, inner) = (&lab.kernel().version, &lab.inner().version);
    ensure!(kernel == inner, "the laboratory has Linux {kernel}, its guests {inner}");
    let inner = Inner {
        backing: config(CONFIG)?.1,
        host_root: true,
        probes: events::PROBES.map(String::from).to_vec(),
        trace: events::EVENTS.map(String::from).to_vec(),
        trace_mib: TRACE_MIB,
        limit: Some(Limit { frames: limit_mib * FRAMES, window: limit_window(workload)? }),
        ..Inner::new(workload.command.clone(), workload.memory_mib)
    };
    let path = file.path().to_str().context("a path in UTF-8")?.to_owned();
    let plan = Plan { made: vec![(path, SwapFile::content())], ..plan(workload, true, inner) };
    let output = lab.clone().traced().boot_for_last(&plan).context("the inner guest's command")?;
    let symbols = output.files.get(Inner::SYMBOLS).context("the laboratory left no symbols")?;
    let overwrites = Functions::that_overwrite(&String::from_utf8_lossy(symbols));
    ensure!(!overwrites.is_empty(), "the kernel names no function that clears pages");
    let guest = Guest {
        frames: workload.memory_mib * FRAMES,
        overwrites: &overwrites,
        file: &file_frames(&output.done.stdout),
    };
    let (formats, trace) = formats(&output)?;
    events::count(trace, &formats, lab.vendor(), program(workload)?.window, &guest)
}
