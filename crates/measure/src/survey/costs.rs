// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Costs of the kernel: a page fault, a system call, a switch between processes, a change of a page's rights.

use super::{MeasureError, Work, all_narrow};
use crate::estimate::Estimate;
use crate::os::{self, HUGE, PAGE, Pages, Pipes, Region};
use schemars::JsonSchema;
use serde::Serialize;

/// Cycles of each.
#[derive(Debug, Clone, Default, PartialEq, Serialize, JsonSchema)]
pub struct Costs {
    /// First write to a 4 KB page of anonymous memory; null if not determined. Unit: cycles.
    pub page_fault: Option<Estimate>,
    /// First write to a 2 MB page; null if pages could not be made huge, or if not determined. Unit: cycles.
    pub page_fault_huge: Option<Estimate>,
    /// What a 2 MB page that was free takes longer than one that was in use just before: a virtual machine's
    /// host may back the page only then. Null if pages could not be made huge, or if not determined. Unit:
    /// cycles.
    pub first_use_2m: Option<Estimate>,
    /// A system call, getppid(2); null if not determined. Unit: cycles.
    pub syscall: Option<Estimate>,
    /// Switch from one process to another on the same CPU: half of a byte's way there and back through pipes,
    /// less the system calls for that. Null if not determined. Unit: cycles.
    pub process_switch: Option<Estimate>,
    /// mprotect(2) of one page that is used before and after; null if not determined. Unit: cycles.
    pub mprotect: Option<Estimate>,
}

/// Small and huge pages that are touched in a piece.
const SMALL: usize = 256;
const LARGE: usize = 4;
/// Huge pages that are touched once each, the next ones in each piece.
const ONCE: usize = 128;

pub(super) fn measure(work: &mut Work) -> Result<Costs, MeasureError> {
    let kernel = |what| move |source| MeasureError::Kernel { what, source };
    let mut pipes = Pipes::new().map_err(kernel("make pipes and a process"))?;
    let map = |pages, len| Region::new(len, pages).map_err(kernel("map memory"));
    let (mut small, mut huge) = (map(Pages::Sparse, SMALL * PAGE)?, map(Pages::SparseHuge, LARGE * HUGE)?);
    let mut unused = (map(Pages::SparseHuge, ONCE * HUGE)?, 0);
    // A first use of each shows that the calls work; in rounds their errors are left out.
    pipes.pass_to_the_other_and_back(8).map_err(kernel("send a byte through a pipe"))?;
    pipes.pass_to_oneself(8).map_err(kernel("send a byte through a pipe"))?;
    small.protect_and_back(1).map_err(kernel("change a page's rights"))?;
    let touch = |region: &mut Region, step: usize, n: usize| -> u64 {
        region.words().iter_mut().step_by(step / 8).take(n).for_each(|w| *w = 1);
        n as u64
    };
    let huge_ok = work.huge_ok;
    let one = |w: &mut Work, p: usize| match p {
        0 => w.bench.time(
            &mut (),
            |()| os::system_calls(64),
            |()| {
                os::system_calls(1024);
                1024
            },
        ),
        1 => w.bench.time(
            &mut pipes,
            |p| _ = p.pass_to_oneself(16),
            |p| p.pass_to_oneself(128).map_or(0, |()| 128),
        ),
        2 => w.bench.time(
            &mut pipes,
            |p| _ = p.pass_to_the_other_and_back(16),
            |p| p.pass_to_the_other_and_back(128).map_or(0, |()| 256),
        ),
        3 => w.bench.time(
            &mut small,
            |s| _ = s.protect_and_back(8),
            |s| s.protect_and_back(64).map_or(0, |()| 128),
        ),
        4 => w.bench.time(&mut small, |s| _ = s.discard(0, SMALL * PAGE), |s| touch(s, PAGE, SMALL)),
        5 => w.bench.time(&mut huge, |h| _ = h.discard(0, LARGE * HUGE), |h| touch(h, HUGE, LARGE)),
        _ => w.bench.time(&mut unused, |_| (), touch_next),
    };
    let found = work.rounds(7, one, |found| {
        let c = costs(found, huge_ok);
        all_narrow(&[c.page_fault, c.page_fault_huge, c.syscall, c.process_switch, c.mprotect])
    })?;
    Ok(costs(&found, huge_ok))
}

/// Touches one more huge page of a region, whose pages before were touched. Once all were, the region is
/// discarded first.
fn touch_next((region, touched): &mut (Region, usize)) -> u64 {
    if *touched == ONCE {
        _ = region.discard(0, ONCE * HUGE);
        *touched = 0;
    }
    region.words()[*touched * HUGE / 8] = 1;
    *touched += 1;
    1
}

/// The costs from the rounds of the seven points.
fn costs(found: &[Vec<f64>], huge_ok: bool) -> Costs {
    let [syscall, oneself, other, mprotect, fault, fault_huge, unused] = found else {
        return Costs::default();
    };
    let switch: Vec<f64> = other.iter().zip(oneself).map(|(o, s)| (o - s).max(0.0)).collect();
    let first_use: Vec<f64> = unused.iter().zip(fault_huge).map(|(u, f)| u - f).collect();
    Costs {
        page_fault: Estimate::of(fault),
        page_fault_huge: if huge_ok { Estimate::of(fault_huge) } else { None },
        first_use_2m: if huge_ok { Estimate::of(&first_use) } else { None },
        syscall: Estimate::of(syscall),
        process_switch: Estimate::of(&switch),
        mprotect: Estimate::of(mprotect),
    }
}
