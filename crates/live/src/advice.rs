// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What would help a VM: the other paging mode, larger pages in host or guest, or less contention for CPUs.
//!
//! Each rule is a function that looks at one interval and says what it saw, what to change, and what share of
//! the VM's CPU time that should give back. A rule that lacks a figure says nothing, except where the fact
//! alone is worth telling; the gain is unknown then.

use crate::row::IntervalRow;
use bifold_host::{Backing, Obstacle, Statistic};
use bifold_policy::{Counters, Estimator, Mode};
use std::fmt;

/// Gains below this share of the CPU time are not worth a change.
const LEAST: f64 = 0.01;

/// CPUs' worth of time that a VM's vCPUs must want for the rule of [`Change::Cpus`].
const BUSY: f64 = 0.1;

/// A change that helps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
    /// Another paging mode.
    To(Mode),
    /// Huge pages of the host behind the guest.
    HostHugePages,
    /// Huge pages in the guest.
    GuestHugePages,
    /// CPUs that fewer threads want: pinning, or another host.
    Cpus,
}

impl Change {
    /// The change in a few words.
    pub fn words(self) -> &'static str {
        match self {
            Change::To(mode) => mode.words(),
            Change::HostHugePages => "huge pages in the host",
            Change::GuestHugePages => "huge pages in the guest",
            Change::Cpus => "CPUs that fewer threads want",
        }
    }
}

/// The share of a VM's CPU time that a change gives back, 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gain {
    /// An estimate.
    About(f64),
    /// At most so much.
    UpTo(f64),
    /// This host cannot tell.
    Unknown,
}

impl Gain {
    /// The share, whatever bound it is; `None` if unknown.
    pub fn share(self) -> Option<f64> {
        match self {
            Gain::About(g) | Gain::UpTo(g) => Some(g),
            Gain::Unknown => None,
        }
    }
}

impl fmt::Display for Gain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |g: f64| 100.0 * g;
        match *self {
            Gain::About(g) => write!(f, "about {:.0} %", percent(g)),
            Gain::UpTo(g) => write!(f, "up to {:.0} %", percent(g)),
            Gain::Unknown => f.write_str("gain unknown"),
        }
    }
}

/// A change, its gain, and what speaks for it.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// What to change.
    pub change: Change,
    /// What that should give back.
    pub gain: Gain,
    /// What was seen.
    pub reason: String,
    /// Why KVM would refuse the change now, if it is one of the paging mode.
    pub obstacle: Option<Obstacle>,
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (change, gain) = (self.change.words(), self.gain);
        match (&self.obstacle, self.change) {
            (Some(obstacle), Change::To(mode)) => {
                let obstacle = obstacle.sentence(mode.name());
                write!(f, "{change} ({gain}) would help most, but the VM {obstacle}")
            }
            _ => write!(f, "{change} ({gain}): {}", self.reason),
        }
    }
}

/// What would help the VM of a row, the largest gain first.
pub fn advise(row: &IntervalRow) -> Vec<Advice> {
    let rules: [fn(&IntervalRow) -> Option<Advice>; 4] = [mode, host_huge_pages, guest_huge_pages, cpus];
    let mut all: Vec<Advice> = rules.iter().filter_map(|rule| rule(row)).collect();
    all.retain(|a| a.gain.share().is_none_or(|g| g >= LEAST));
    let share = |a: &Advice| a.gain.share().unwrap_or(0.0);
    all.sort_by(|a, b| share(b).total_cmp(&share(a)));
    all
}

/// The advice to print: the change that would help most, and behind one that KVM would refuse, the next best.
pub fn best(row: &IntervalRow) -> Vec<Advice> {
    let mut all = advise(row);
    if let Some(place) = all.iter().position(|a| a.obstacle.is_none()) {
        all.truncate(place + 1);
    }
    all
}

/// The cycles that paging costs in the VM's mode, and the other mode with those that it would cost there, by
/// the [estimator](Estimator); `None` if a counter is unknown, or the VM was not in one mode, or in one
/// without estimates.
///
/// Of the hypervisor's cycles, those count that page faults and INVLPG cause, by their share of exits: exits
/// for devices and timers are the same in either mode.
pub fn paging_cycles(row: &IntervalRow) -> Option<(f64, (Mode, f64))> {
    let (mode, estimator) = (row.interval.mode?, Estimator::fitted());
    let needs = estimator.needs_in(mode).and(Counters::WALK_CYCLES).and(Counters::VMM_CYCLES);
    if needs.less(row.measured.known) != Counters::NONE {
        return None;
    }
    let sample = &row.measured.sample;
    let statistic = |s| row.interval.statistics.get(s).map(|n| n as f64);
    let of_paging = statistic(Statistic::PfTaken)? + statistic(Statistic::Invlpg)?;
    let share = (of_paging / statistic(Statistic::Exits)?.max(1.0)).min(1.0);
    let now = sample.walk_cycles as f64 + share * sample.vmm_cycles as f64;
    let other = estimator.other(mode, sample, 1.0)?;
    Some((now, (other.mode, other.extra_cycles)))
}

fn mode(row: &IntervalRow) -> Option<Advice> {
    let (now, (to, other)) = paging_cycles(row)?;
    let from = row.interval.mode?;
    let cycles = row.measured.cycles.filter(|c| *c > 0.0)?;
    let percent = |c: f64| 100.0 * c / cycles;
    let returns = row.vm.paging_stats().returns().filter(|n| *n > 1 && to == Mode::Shadow);
    let how = match returns {
        Some(n) => format!("; KVM has brought the VM back from shadow paging {n} times"),
        None if row.vm.switchable() => String::new(),
        None => "; this KVM has one mode for all VMs".into(),
    };
    Some(Advice {
        change: Change::To(to),
        gain: Gain::About((now - other) / cycles),
        reason: format!(
            "page walks and page-fault exits take {:.1} % of cycles in {} mode, and would take about {:.1} %{how}",
            percent(now),
            from.name(),
            percent(other)
        ),
        obstacle: row.vm.obstacle().cloned(),
    })
}

/// The share of cycles in page walks.
fn walks(row: &IntervalRow) -> Option<f64> {
    let known = Counters::WALK_CYCLES.less(row.measured.known) == Counters::NONE;
    let cycles = row.measured.cycles.filter(|c| known && *c > 0.0)?;
    Some(row.measured.sample.walk_cycles as f64 / cycles)
}

fn small_share(backing: &Backing) -> f64 {
    backing.small as f64 / backing.total().max(1) as f64
}

/// A nested walk over host pages of 4 KB reads up to 24 entries, over pages of 2 MB 19 (with 4 KB pages in
/// the guest): the last host level falls away from each of five host walks.
fn host_huge_pages(row: &IntervalRow) -> Option<Advice> {
    const SHORTER: f64 = 5.0 / 24.0;
    let backing = row.vm.backing.as_ref()?;
    let small = small_share(backing);
    if small < 0.1 || row.interval.mode != Some(Mode::Nested) {
        return None;
    }
    let gain = walks(row).map_or(Gain::Unknown, |w| Gain::About(w * small * SHORTER));
    let reason = format!(
        "{:.0} % of its memory are 4 KB pages of the host; walks over 2 MB pages read 19 entries instead of 24, and huge \
         pages of the guest reach the TLB only so",
        100.0 * small
    );
    Some(Advice { change: Change::HostHugePages, gain, reason, obstacle: None })
}

/// Where the host's pages are huge, a TLB entry of 4 KB is most likely one of a 4 KB page in the guest. KVM
/// maps some huge pages in small ones, such as code on Intel (`nx_huge_pages`), and all during a migration.
fn guest_huge_pages(row: &IntervalRow) -> Option<Advice> {
    let backing = row.vm.backing.as_ref()?;
    let (sample, known) = (&row.measured.sample, row.measured.known);
    let misses = sample.tlb_misses();
    if row.interval.mode != Some(Mode::Nested) {
        return None;
    }
    if small_share(backing) > 0.1 || Counters::TLB_MISSES.less(known) != Counters::NONE || misses == 0 {
        return None;
    }
    let of_small = sample.tlb_misses_4k as f64 / misses as f64;
    Some(Advice {
        change: Change::GuestHugePages,
        gain: Gain::UpTo(walks(row)? * of_small),
        reason: format!(
            "the host backs it with huge pages, yet {:.0} % of its TLB misses are on 4 KB pages, most likely the guest's own",
            100.0 * of_small
        ),
        obstacle: None,
    })
}

fn cpus(row: &IntervalRow) -> Option<Advice> {
    let (ran, waited) = (row.interval.ran_ns()? as f64, row.interval.waited_ns()? as f64);
    // Of a VM that is nearly idle, the share is chance.
    if ran + waited < BUSY * 1e9 * row.interval.seconds {
        return None;
    }
    let share = waited / (ran + waited).max(1.0);
    Some(Advice {
        change: Change::Cpus,
        gain: Gain::UpTo(share),
        reason: format!("its vCPUs waited for a CPU {:.1} % of the time that they wanted one", 100.0 * share),
        obstacle: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_host::FakeHost;
    use crate::hardware::HardwareCounts;
    use crate::reporter::GuestInterval;
    use crate::{Interval, VcpuInterval, Watched};
    use bifold_host::{Statistics, VmId};
    use std::time::Duration;

    const CYCLES: u64 = 1_000_000_000;

    fn vm(backing: Option<Backing>) -> Watched {
        vm_with(backing, "none")
    }

    fn vm_with(backing: Option<Backing>, refusal: &str) -> Watched {
        vm_that_ended(backing, refusal, 0)
    }

    /// A VM with so many stays in shadow paging that KVM ended.
    fn vm_that_ended(backing: Option<Backing>, refusal: &str, ended: u64) -> Watched {
        let (fake, id) = (FakeHost::new(), VmId { thread: 100, fd: 7 });
        fake.vm(id, "web");
        fake.refusal(id, refusal);
        fake.ended_early(id, ended, 0);
        let (host, kvm) = (fake.host(), fake.host().kvm().unwrap());
        let all = Statistic::ALL;
        let mut vm = Watched::begin((&host, &kvm), None, all, id, None, &|| Duration::ZERO).unwrap();
        vm.backing = backing;
        vm.look_at_refusal(&host);
        vm
    }

    /// A second of a VM that always runs, on a processor that counts everything.
    fn interval(mode: Mode, walk_cycles: u64, change: impl Fn(&mut HardwareCounts)) -> Interval {
        let mut statistics = Statistics::default();
        [
            (Statistic::Exits, 1000),
            (Statistic::PfTaken, 500),
            (Statistic::Invlpg, 0),
            (Statistic::PfGuest, 0),
        ]
        .into_iter()
        .for_each(|(s, n)| statistics.set(s, n));
        let mut hardware = HardwareCounts {
            guest_cycles: Some(CYCLES * 9 / 10),
            host_cycles: Some(CYCLES / 10),
            instructions: Some(CYCLES),
            walk_cycles: Some(walk_cycles),
            tlb_misses_4k: Some(1000),
            tlb_flushes: Some(0),
            ..HardwareCounts::ZERO
        };
        change(&mut hardware);
        let vcpu = VcpuInterval {
            number: 0,
            thread: 101,
            ran_ns: Some(900_000_000),
            waited_ns: Some(100_000_000),
            hardware,
            exits: None,
        };
        Interval {
            seconds: 1.0,
            mode: Some(mode),
            switches: Some(0),
            statistics,
            exits: None,
            vcpus: vec![vcpu],
            guest: None,
            counted: None,
        }
    }

    fn said(vm: &Watched, interval: &Interval) -> Vec<Advice> {
        advise(&IntervalRow::of_vm(0.0, vm, interval))
    }

    fn find(all: &[Advice], change: Change) -> Option<Gain> {
        all.iter().find(|a| a.change == change).map(|a| a.gain)
    }

    #[test]
    fn shadow_paging_that_costs_much_suggests_nested_paging() {
        // Half of the exits are page faults: half of the hypervisor's 10 % are paging's.
        let all = said(&vm(None), &interval(Mode::Shadow, 0, |_| ()));
        assert_eq!(find(&all, Change::To(Mode::Nested)), Some(Gain::About(0.05)));
        assert!(
            all[1].reason.contains("take 5.0 % of cycles in shadow mode, and would take about 0.0 %"),
            "{all:?}"
        );
        let unknown = interval(Mode::Shadow, 0, |h| h.walk_cycles = None);
        assert_eq!(find(&said(&vm(None), &unknown), Change::To(Mode::Nested)), None);
    }

    #[test]
    fn a_mode_that_kvm_would_refuse_is_told_with_the_reason_and_the_next_best_change() {
        let interval = interval(Mode::Shadow, 0, |_| ());
        let words = |vm: &Watched, interval: &Interval| -> Vec<String> {
            best(&IntervalRow::of_vm(0.0, vm, interval)).iter().map(Advice::to_string).collect()
        };
        let blocked = vm_with(None, "smm vcpu 1");
        // The CPUs' gain is larger, and the mode's is not reported.
        assert_eq!(words(&blocked, &interval), words(&vm(None), &interval));
        let mut few_waits = interval.clone();
        few_waits.vcpus[0].waited_ns = Some(20_000_000);
        let told = words(&blocked, &few_waits);
        assert_eq!(
            told[0],
            "nested paging (about 5 %) would help most, but the VM cannot be switched to nested mode now: vCPU 1 is in system \
             management mode"
        );
        assert!(
            told.len() == 2 && told[1].starts_with("CPUs that fewer threads want (up to 2 %)"),
            "{told:?}"
        );
        let column = |vm: &Watched, name: &str| {
            let all = crate::columns::all();
            let column = all.iter().find(|c| c.name == name).unwrap();
            format!("{:?}", column.value(&IntervalRow::of_vm(0.0, vm, &few_waits)))
        };
        assert!(column(&vm(None), "advice").contains("nested paging"));
        assert!(column(&blocked, "advice").contains("CPUs"), "what can be followed");
        assert!(column(&blocked, "refusal").contains("smm"));
        assert_eq!(column(&vm(None), "refusal"), "Unknown");
    }

    #[test]
    fn nested_paging_that_costs_much_suggests_shadow_paging_if_the_guest_reports_its_page_faults() {
        let shadow = |page_faults| {
            let guest = Some(GuestInterval { page_faults, ..GuestInterval::default() });
            let interval = Interval { guest, ..interval(Mode::Nested, CYCLES / 2, |_| ()) };
            find(&said(&vm(None), &interval), Change::To(Mode::Shadow))
        };
        assert_eq!(shadow(None), None, "the host does not see them");
        let Some(Gain::About(few)) = shadow(Some(10)) else { panic!() };
        let Some(Gain::About(many)) = shadow(Some(20_000)) else { panic!() };
        assert!(few > 0.5 && many < few && many > LEAST, "{few} {many}");
        assert_eq!(shadow(Some(1_000_000)), None, "each would exit in shadow paging");
        let guest = Some(GuestInterval { page_faults: Some(10), ..GuestInterval::default() });
        let interval = Interval { guest, ..interval(Mode::Nested, CYCLES / 2, |_| ()) };
        let told = |ended| said(&vm_that_ended(None, "none", ended), &interval)[0].reason.clone();
        assert!(told(2).ends_with("; KVM has brought the VM back from shadow paging 2 times"), "{}", told(2));
        assert!(!told(1).contains("brought"), "once is no pattern");
    }

    #[test]
    fn pages_are_told_by_size_and_the_gain_needs_walk_cycles() {
        let backing = |small, huge| Some(Backing { small, huge, ..Backing::default() });
        let walks = interval(Mode::Nested, CYCLES * 24 / 100, |_| ());
        let all = said(&vm(backing(3 << 30, 1 << 30)), &walks);
        let Some(Gain::About(gain)) = find(&all, Change::HostHugePages) else { panic!("{all:?}") };
        assert!((gain - 0.24 * 0.75 * 5.0 / 24.0).abs() < 1e-9, "{gain}");
        assert_eq!(find(&all, Change::GuestHugePages), None, "TLB entries may be small for the host's pages");
        let all = said(&vm(backing(0, 4 << 30)), &walks);
        assert_eq!(find(&all, Change::GuestHugePages), Some(Gain::UpTo(0.24)));
        assert_eq!(find(&all, Change::HostHugePages), None);
        let blind = interval(Mode::Nested, 0, |h| *h = HardwareCounts::UNKNOWN);
        let all = said(&vm(backing(3 << 30, 0)), &blind);
        assert_eq!(find(&all, Change::HostHugePages), Some(Gain::Unknown));
    }

    #[test]
    fn the_largest_gain_comes_first_and_small_ones_are_left_out() {
        let all = said(&vm(None), &interval(Mode::Shadow, 0, |_| ()));
        assert_eq!(
            all.iter().map(|a| a.change).collect::<Vec<_>>(),
            [Change::Cpus, Change::To(Mode::Nested)]
        );
        assert_eq!(
            all[0].to_string(),
            "CPUs that fewer threads want (up to 10 %): its vCPUs waited for a CPU 10.0 % of the time that they wanted one"
        );
        let idle = Interval { vcpus: Vec::new(), ..interval(Mode::Nested, 0, |_| ()) };
        assert_eq!(said(&vm(None), &idle), []);
    }
}
