// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a VM that has just started would pay beside a long-lived one: the first touches of memory, counted as
//! first uses of the nested tables' entries. This is the least: a page that is read before it is written
//! costs a VM that has just started two violations more, which a long-lived VM does not show.

use crate::Comparison;
use crate::text::seconds;
use bifold_mmu::PageSize;
use bifold_model::{ConfigOutcome, ExitCosts, Paging, Sample, VmState};

/// The line below a long-lived VM's verdict, with a time where there is nested paging, which alone counts
/// first uses.
pub(crate) fn line(c: &Comparison) -> Option<String> {
    let o = &c.outcome;
    if o.vm != VmState::LongLived || o.before_region.is_some() || o.sampling.is_some() {
        return None;
    }
    let time = |cycles: u64| seconds(cycles as f64 / o.frequency_hz.max(1) as f64);
    let of = |r: &ConfigOutcome| {
        let cycles = cycles(&r.total, r.config.host_page, &c.meta.hardware.exit);
        (cycles > 0).then(|| format!("{} in {}", time(cycles), r.config.name()))
    };
    let all: Vec<String> = o.configs.iter().filter_map(of).collect();
    let modes: Vec<Paging> = o.configs.iter().map(|r| r.config.mode).collect();
    let least = match &all[..] {
        [] if modes.contains(&Paging::Nested) || modes.iter().all(|m| *m == Paging::Native) => return None,
        [] => String::new(),
        all => format!(": at least {}", all.join(", ")),
    };
    Some(format!(
        "A VM that has just started also pays for its first touches of memory, once{least}. --vm started \
         counts such a VM."
    ))
}

/// Cycles of the violations and of the host's work for the pages that were used first.
fn cycles(total: &Sample, page: PageSize, exit: &ExitCosts) -> u64 {
    let huge = total.huge_frames_first_used;
    // A page of 1 GB counts as 512.
    let huge_pages = if page == PageSize::Size1G { huge / 512 } else { huge };
    let touched = Sample {
        exits_violation: total.frames_first_used + huge_pages,
        frames_backed: total.frames_first_used,
        huge_frames_backed: huge,
        ..Sample::default()
    };
    exit.cycles(&touched)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_model::Profile;

    #[test]
    fn without_nested_paging_there_is_no_time_and_without_a_hypervisor_no_line() {
        let of = |name: &str, vm| {
            let used = Sample { frames_first_used: 3, ..Sample::default() };
            let hardware = Profile::load("i5-7600", &[]).unwrap();
            let mut c = crate::verdict::tests::run(&[(name, 0, used)], hardware);
            c.outcome.vm = vm;
            if name != "nested-4k" {
                c.outcome.configs[0].total.frames_first_used = 0;
            }
            line(&c)
        };
        let long = VmState::LongLived;
        assert!(of("nested-4k", long).unwrap().contains("once: at least "));
        assert!(of("pvm-4k", long).unwrap().contains("once. --vm started"));
        assert_eq!((of("native", long), of("pvm-4k", VmState::Started)), (None, None));
    }

    #[test]
    fn a_page_that_is_used_first_costs_a_violation_and_its_backing() {
        let exit = Profile::load("i5-7600", &[]).unwrap().exit;
        let (violation, small, large) =
            (exit.violation.cycles, exit.back_frame.cycles, exit.back_huge.cycles);
        let of = |total: Sample, page| cycles(&total, page, &exit);
        let used = Sample { frames_first_used: 3, ..Sample::default() };
        assert_eq!(of(used, PageSize::Size4K), 3 * (violation + small));
        let used = Sample { huge_frames_first_used: 1024, ..Sample::default() };
        assert_eq!(of(used, PageSize::Size2M), 1024 * (violation + large));
        assert_eq!(of(used, PageSize::Size1G), 2 * violation + 1024 * large);
    }
}
