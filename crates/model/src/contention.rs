// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The lock of a VM under which KVM does shadow work (`mmu_lock`), and how long vCPUs wait for each other
//! there. Shadow faults take the lock for writing, one at a time; nested faults take it shared
//! (`arch/x86/kvm/mmu/mmu.c`, `tdp_mmu.c`), and wait for none of their kind.
//!
//! The stream has the vCPUs one after the other, so waits are no events: a formula gives their mean.
//! `docs/design/times.md` derives it and says what its one parameter was fitted on.

use crate::outcome::{LockWait, Several};
use crate::profile::ExitCosts;
use crate::{Config, Paging, Sample};

/// What each further vCPU at work adds to the time that work takes, as a share: cache lines that go back and
/// forth, locks of the guest's kernel, interrupts. Fitted on the four forks of PVM (`timing published`).
pub const SLOWDOWN: f64 = 0.15;

/// The mean wait at a lock that one of `vcpus` holds at a time, per turn: `free` is what a vCPU does between
/// two turns, and `locked` how long it then holds the lock. Any unit of time.
///
/// Mean-value analysis with Schweitzer's approximation: who comes finds of the others what a vCPU has there
/// on average, `turn = locked * (1 + (vcpus - 1) * turn / (free + turn))`. Real numbers of vCPUs are as good
/// as whole ones.
pub fn wait(vcpus: f64, free: f64, locked: f64) -> f64 {
    if vcpus <= 1.0 || locked <= 0.0 {
        return 0.0;
    }
    let b = vcpus * locked - free.max(0.0);
    let turn = (b + (b * b + 4.0 * locked * free.max(0.0)).sqrt()) / 2.0;
    turn - locked
}

/// The factor on the time of all work while so many vCPUs work.
pub fn slowdown(vcpus: f64) -> f64 {
    1.0 + SLOWDOWN * (vcpus - 1.0).max(0.0)
}

/// The cycles in a sample for which a vCPU under shadow paging holds the lock: of each exit for which KVM
/// takes it, what exceeds the exit and the entry themselves, which a read of CR3 stands for; and the work on
/// shadow pages and roots.
pub fn locked_cycles(s: &Sample, costs: &ExitCosts) -> u64 {
    const LOCKED: [&str; 6] =
        ["hidden_fault", "permission", "unsync", "emulated_write", "unprotect", "invlpg"];
    const WORK: [&str; 4] = ["root_miss", "sync_page", "make_page", "zap_page"];
    let of = |(name, cost, n): (&str, &crate::profile::Cost, u64)| {
        if LOCKED.contains(&name) {
            n * cost.cycles.saturating_sub(costs.cr3_read.cycles)
        } else if WORK.contains(&name) {
            n * cost.cycles
        } else {
            0
        }
    };
    costs.counted(s).map(of).sum()
}

/// How many vCPUs are at work on average, if those that work all begin at once: of two, of which one has a
/// tenth of the instructions, 1.1.
pub(crate) fn at_work(instructions: impl Iterator<Item = u64> + Clone) -> f64 {
    let most = instructions.clone().max().unwrap_or(0).max(1);
    (instructions.sum::<u64>() as f64 / most as f64).max(1.0)
}

/// The waits of each configuration of a run in which so many vCPUs were at work. `free`: the cycles of all
/// vCPUs without the lock.
pub(crate) fn several(
    at_work: f64,
    rows: impl Iterator<Item = (Config, Sample, f64)>,
    costs: &ExitCosts,
) -> Several {
    let of = |(config, total, ideal): (Config, Sample, f64)| {
        if config.mode != Paging::Shadow {
            return LockWait::default();
        }
        let locked_cycles = locked_cycles(&total, costs);
        let all = ideal + total.extra_cycles() as f64;
        // One turn of each vCPU has its share of everything: the ratio of locked to free decides, not how
        // many turns there are.
        let wait = wait(at_work, (all - locked_cycles as f64) / at_work, locked_cycles as f64 / at_work);
        LockWait { locked_cycles, wait_cycles: (wait * at_work * slowdown(at_work)) as u64 }
    };
    Several { at_work, waits: rows.map(of).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;

    /// Exact mean-value analysis of the same closed network, for whole numbers of vCPUs.
    fn exact(vcpus: u32, free: f64, locked: f64) -> f64 {
        let (mut queue, mut turn) = (0.0, locked);
        for n in 1..=vcpus {
            turn = locked * (1.0 + queue);
            queue = f64::from(n) * turn / (free + turn);
        }
        turn - locked
    }

    #[test]
    fn one_vcpu_never_waits_and_many_wait_for_all_others() {
        assert_eq!(wait(1.0, 0.0, 5.0), 0.0);
        assert_eq!(wait(8.0, 100.0, 0.0), 0.0);
        // With nothing else to do, each waits for all others.
        assert!((wait(4.0, 0.0, 5.0) - 15.0).abs() < 1e-9);
        // Far beyond saturation a turn and what follows take as long as everyone's turn: linear in the vCPUs.
        for n in [1000.0, 2000.0] {
            let all = wait(n, 50.0, 5.0) + 5.0 + 50.0;
            assert!((all / (5.0 * n) - 1.0).abs() < 0.01, "{n}: {all}");
        }
    }

    #[test]
    fn the_approximation_is_near_exact_mean_value_analysis() {
        let mut worst: f64 = 0.0;
        for vcpus in 1..=64 {
            for free in [0.0, 1.0, 3.0, 10.0, 30.0, 100.0] {
                let (near, exact) = (wait(f64::from(vcpus), free, 1.0), exact(vcpus, free, 1.0));
                // Of the time of a whole turn.
                worst = worst.max((near - exact).abs() / (free + 1.0 + exact));
            }
        }
        assert!(worst < 0.08, "{worst}");
    }

    #[test]
    fn waits_grow_with_vcpus_and_with_the_share_that_is_locked() {
        let mut before = 0.0;
        for n in 1..=16 {
            let now = wait(f64::from(n) / 2.0, 9.0, 1.0);
            assert!(now >= before);
            before = now;
        }
        assert!(wait(2.0, 9.0, 1.0) < wait(2.0, 4.0, 1.0));
    }

    #[test]
    fn exits_that_kvm_handles_without_the_lock_lock_nothing() {
        let costs = &Profile::load("i5-7600", &[]).unwrap().exit;
        let free = Sample {
            exits_guest_fault: 9,
            exits_cr3_read: 9,
            exits_cr3_write: 9,
            exits_violation: 9,
            exits_ipi: 9,
            frames_backed: 9,
            ..Sample::default()
        };
        assert_eq!(locked_cycles(&free, costs), 0);
        let one = Sample { exits_hidden_fault: 1, syncs: 2, ..free };
        let expected = costs.hidden_fault.cycles - costs.cr3_read.cycles + 2 * costs.sync_page.cycles;
        assert_eq!(locked_cycles(&one, costs), expected);
    }

    #[test]
    fn vcpus_are_at_work_as_their_instructions_say() {
        assert_eq!(at_work([100, 10].into_iter()), 1.1);
        assert_eq!(at_work([7, 7, 7].into_iter()), 3.0);
        assert_eq!(at_work([0, 0].into_iter()), 1.0);
    }
}
