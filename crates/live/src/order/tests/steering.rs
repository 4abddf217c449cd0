// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Orders on simulated guests.

use super::*;
use proptest::prelude::*;
use std::time::Duration;

/// A simulated guest moves ten times a second, and is looked at and sends statistics once a second.
const TICKS: u64 = 10;

/// A guest with a balloon.
#[derive(Debug, Clone)]
struct Guest {
    total: u64,
    actual: u64,
    target: u64,
    used: u64,
    cache: u64,
    deflates: bool,
    /// Bytes that the balloon takes in a tick.
    speed: u64,
    faults: u64,
    killed: bool,
    ticks: u64,
    updated: u64,
    reported: (u64, u64),
    silent: bool,
}

impl Guest {
    fn new(total_mib: u64, used_mib: u64, deflates: bool) -> Guest {
        let (total, used) = (total_mib * MIB, used_mib * MIB);
        let mut guest = Guest {
            total,
            actual: total,
            target: total,
            used,
            cache: (total - used) / 4,
            deflates,
            speed: 20 * MIB,
            faults: 0,
            killed: false,
            ticks: 0,
            updated: 0,
            reported: (0, 0),
            silent: false,
        };
        guest.report();
        guest
    }

    fn report(&mut self) {
        self.updated += 1;
        // The kernel's estimate leaves a reserve out.
        let reserve = self.total / 64;
        self.reported = (self.actual.saturating_sub(self.used + reserve), self.faults);
    }

    /// A tenth of a second in which the guest's programs use so many bytes more.
    fn tick(&mut self, more: i64) {
        self.used = self.used.saturating_add_signed(more).clamp(16 * MIB, self.total * 9 / 10);
        if self.target > self.actual {
            self.actual = self.target.min(self.actual + self.speed);
        } else {
            let free = self.actual.saturating_sub(self.used + self.cache);
            let by = self.speed.min(self.actual - self.target).min(free + self.cache);
            let dropped = by.saturating_sub(free);
            self.cache -= dropped;
            // A part of what was dropped is read again.
            self.faults += dropped / 4096 / 256;
            self.actual -= by;
        }
        if self.actual < self.used + self.cache {
            self.cache = self.actual.saturating_sub(self.used);
        }
        if self.actual < self.used {
            self.killed |= !self.deflates;
            self.actual = self.used.min(self.total);
        }
        self.ticks += 1;
        if self.ticks % TICKS == 0 && !self.silent {
            self.report();
        }
    }

    fn look(&self) -> SizeObservation {
        SizeObservation {
            at: Duration::from_millis(100 * self.ticks),
            running: true,
            size: self.actual,
            available: Some(self.reported.0),
            used: Some(self.actual.saturating_sub(self.reported.0)),
            updated: Some(self.updated),
            faults: Some(self.reported.1),
            oom_kills: Some(0),
            resident: Some(self.actual / 2),
            ..SizeObservation::default()
        }
    }
}

/// How an order ended, after at most so many seconds.
#[derive(Debug, PartialEq)]
enum Ended {
    Held { whole: bool },
    Back(Why),
    Left(Why),
}

fn carry_out(guest: &mut Guest, goal: Goal, seconds: u64, mut load: impl FnMut(&mut Guest) -> i64) -> Ended {
    let mut steer = Steer::new(goal, guest.look());
    let mut held = None;
    for _ in 0..seconds {
        for _ in 0..TICKS {
            let more = load(guest);
            guest.tick(more);
        }
        match steer.next(&guest.look()) {
            Act::Wait => {}
            Act::Order(target) => {
                assert!(target < guest.target && target >= goal.size, "{target}");
                guest.target = target;
            }
            Act::Hold { whole } => held = Some(whole),
            Act::GiveBack(why) => {
                guest.target = guest.total;
                return Ended::Back(why);
            }
            Act::Leave(why) => return Ended::Left(why),
        }
    }
    guest.target = guest.total;
    Ended::Held { whole: held.expect("an order comes to an end") }
}

#[test]
fn an_order_goes_in_steps_to_its_size() {
    let mut guest = Guest::new(1024, 200, true);
    guest.cache = 0;
    assert_eq!(carry_out(&mut guest, goal(512 * MIB, true), 120, |_| 0), Ended::Held { whole: true });
    assert!(guest.actual.abs_diff(512 * MIB) <= MIB, "{}", guest.actual / MIB);
}

#[test]
fn an_order_stops_above_what_the_guest_uses() {
    let mut guest = Guest::new(1024, 200, true);
    guest.cache = 0;
    assert_eq!(carry_out(&mut guest, goal(64 * MIB, true), 300, |_| 0), Ended::Held { whole: false });
    // 200 MiB, the kernel's reserve of 16 MiB, and the margin of 64 MiB.
    assert!((280..=300).contains(&(guest.actual / MIB)), "{}", guest.actual / MIB);
}

#[test]
fn a_guest_that_cannot_deflate_keeps_twice_the_margin() {
    let mut guest = Guest::new(1024, 200, false);
    carry_out(&mut guest, goal(64 * MIB, false), 300, |_| 0);
    assert!((344..=364).contains(&(guest.actual / MIB)), "{}", guest.actual / MIB);
}

#[test]
fn memory_goes_back_when_the_guest_needs_it() {
    let mut guest = Guest::new(1024, 200, true);
    guest.cache = 0;
    // After a minute its programs grow by 10 MiB a second.
    let load = |g: &mut Guest| if g.ticks > 600 { MIB as i64 } else { 0 };
    let ended = carry_out(&mut guest, goal(300 * MIB, true), 300, load);
    assert!(matches!(ended, Ended::Back(Why::Short { .. })), "{ended:?}");
    (0..600).for_each(|_| guest.tick(0));
    assert_eq!((guest.actual, guest.killed), (guest.total, false));
}

#[test]
fn memory_goes_back_when_faults_rise_and_not_for_those_of_before() {
    let ended = |before: u64, later: u64| {
        let mut guest = Guest::new(1024, 200, true);
        guest.cache = 0;
        let load = |g: &mut Guest| {
            g.faults += if g.ticks > 300 { later } else { before } / TICKS;
            0
        };
        carry_out(&mut guest, goal(512 * MIB, true), 120, load)
    };
    assert!(matches!(ended(0, 200), Ended::Back(Why::Faults { .. })));
    assert_eq!(ended(0, 50), Ended::Held { whole: true });
    assert_eq!(ended(400, 800), Ended::Held { whole: true });
    assert!(matches!(ended(400, 1000), Ended::Back(Why::Faults { .. })));
}

#[test]
fn what_does_not_move_or_tell_is_given_back() {
    let mut guest = Guest { speed: 0, ..Guest::new(1024, 200, true) };
    let ended = carry_out(&mut guest, goal(512 * MIB, true), 60, |_| 0);
    assert!(matches!(ended, Ended::Back(Why::Stuck { .. })), "{ended:?}");
    let mut guest = Guest::new(1024, 200, true);
    let load = |g: &mut Guest| {
        g.silent = g.ticks > 60;
        0
    };
    let ended = carry_out(&mut guest, goal(512 * MIB, true), 60, load);
    assert!(matches!(ended, Ended::Back(Why::Stale { .. })), "{ended:?}");
}

#[test]
fn an_order_may_aim_at_other_sizes() {
    let mut guest = Guest::new(1024, 200, true);
    guest.cache = 0;
    let mut steer = Steer::new(goal(512 * MIB, true), guest.look());
    for (size, reached) in [(512, 512), (700, 700), (400, 400), (2000, 1024), (600, 600)] {
        steer.aim(size * MIB);
        let mut held = false;
        for _ in 0..60 {
            (0..TICKS).for_each(|_| guest.tick(0));
            match steer.next(&guest.look()) {
                Act::Order(target) => guest.target = target,
                Act::Hold { whole } => held = whole,
                Act::Wait => {}
                other => panic!("{size}: {other:?}"),
            }
        }
        assert!(held && guest.actual.abs_diff(reached * MIB) <= MIB, "{size}: {}", guest.actual / MIB);
    }
}

#[test]
fn a_size_that_creeps_is_stuck() {
    let look = Guest::new(1024, 200, true).look();
    let mut steer = Steer::new(Goal { statistics: false, floor: Some(MIB), ..goal(512 * MIB, true) }, look);
    let acts: Vec<Act> = (0..60)
        .map(|n| {
            steer.next(&SizeObservation { at: Duration::from_secs(n), size: look.size - 4096 * n, ..look })
        })
        .collect();
    assert!(acts.iter().any(|a| matches!(a, Act::GiveBack(Why::Stuck { .. }))), "{acts:?}");
}

#[test]
fn a_step_is_a_block_at_least() {
    let look = Guest::new(4096, 400, true).look();
    let step = |size| {
        let wanted = Goal { way: Way::VirtioMem, unit: 1024 * MIB, statistics: false, ..goal(size, true) };
        Steer::new(wanted, look).next(&look)
    };
    assert_eq!(step(2048 * MIB), Act::Order(3072 * MIB));
    assert_eq!(step(4096 * MIB), Act::Hold { whole: true });
}

#[test]
fn a_second_controller_ends_an_order() {
    for (other, left) in [(100 * MIB, true), (600 * MIB, false)] {
        let mut guest = Guest::new(1024, 60, true);
        guest.cache = 0;
        let load = |g: &mut Guest| {
            if g.ticks == 900 {
                g.target = other;
            }
            0
        };
        let ended = carry_out(&mut guest, goal(512 * MIB, true), 150, load);
        match ended {
            Ended::Left(Why::Another { .. }) => assert!(left),
            Ended::Back(Why::Rises { .. }) => assert!(!left),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn the_hosts_memory_must_not_grow_for_an_order() {
    let mut steer = Steer::new(goal(512 * MIB, true), Guest::new(1024, 100, true).look());
    let mut guest = Guest::new(1024, 100, true);
    let mut acts = Vec::new();
    for second in 0..20 {
        (0..TICKS).for_each(|_| guest.tick(0));
        let look = SizeObservation { resident: Some((512 + 40 * second) * MIB), ..guest.look() };
        let act = steer.next(&look);
        if let Act::Order(target) = act {
            guest.target = target;
        }
        acts.push(act);
    }
    assert!(acts.iter().any(|a| matches!(a, Act::GiveBack(Why::HostRises { .. }))), "{acts:?}");
}

#[test]
fn each_look_is_checked_for_what_ends_an_order() {
    let guest = Guest::new(1024, 200, true);
    let look = guest.look();
    for (bad, why) in [
        (SizeObservation { running: false, ..look }, "have stopped"),
        (SizeObservation { migrating: true, ..look }, "migration"),
        (SizeObservation { oom_kills: Some(1), ..look }, "killed a process"),
        (
            SizeObservation { available: Some(2 * guest.total), used: None, updated: Some(99), ..look },
            "cannot be true",
        ),
    ] {
        match Steer::new(goal(512 * MIB, true), look).next(&bad) {
            Act::GiveBack(found) => assert!(found.to_string().contains(why), "{found}"),
            other => panic!("{other:?}"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_order_on_a_loaded_guest_kills_and_all_memory_comes_back(
        total in 256u64..8192, used in 5u64..80, size in 1u64..100, deflates: bool,
        speed in 4u64..200, step in proptest::option::of(1u64..500),
        growth in proptest::collection::vec(-2i64..=2, 50..400),
        aims in proptest::collection::vec((0usize..20, 1u64..110), 1..10),
    ) {
        let mut guest = Guest::new(total, total * used / 100, deflates);
        guest.speed = speed * MIB;
        let mut at = 0;
        // Programs grow by up to 20 MiB a second, for a while in the same direction.
        let mut load = |_: &mut Guest| {
            at += 1;
            growth[at / 20 % growth.len()] * MIB as i64
        };
        let wanted = Goal { step: step.map(|s| s * MIB), ..goal(total * size / 100 * MIB, deflates) };
        let mut steer = Steer::new(wanted, guest.look());
        for n in 0..200 {
            if let Some((_, percent)) = aims.get(n / 20).filter(|(at, _)| *at == n % 20) {
                steer.aim(total * percent / 100 * MIB);
            }
            (0..TICKS).for_each(|_| { let more = load(&mut guest); guest.tick(more) });
            match steer.next(&guest.look()) {
                Act::Order(target) => {
                    // The guest moves between the look and the order.
                    let more = load(&mut guest);
                    guest.tick(more);
                    guest.target = target;
                }
                // No other program orders sizes here.
                Act::Leave(why) => prop_assert!(false, "{}", why),
                Act::GiveBack(_) => break,
                Act::Wait | Act::Hold { .. } => {}
            }
        }
        guest.target = guest.total;
        // A balloon takes 4 MiB or more in a tick.
        (0..total / 4 + 10).for_each(|_| { let more = load(&mut guest); guest.tick(more) });
        prop_assert!(!guest.killed);
        prop_assert_eq!(guest.actual, guest.total);
    }
}

#[test]
fn one_write_reclaims_a_quarter_of_a_gibibyte_at_most() {
    let wanted = Goal { way: Way::Cgroup, statistics: false, floor: Some(MIB), ..goal(MIB, true) };
    let look = SizeObservation { size: 8192 * MIB, running: true, ..SizeObservation::default() };
    let wanted = Goal { step: Some(4096 * MIB), ..wanted };
    assert_eq!(Steer::new(wanted, look).next(&look), Act::Order((8192 - 256) * MIB));
}

#[test]
fn a_users_floor_does_not_run_a_guest_dry() {
    // 300 MiB are available, and the floor would take 4 GiB.
    for (deflates, least) in [(true, 64), (false, 128)] {
        let mut guest = Guest::new(8192, 8192 - 300 - 128, deflates);
        guest.cache = 0;
        let wanted = Goal { floor: Some(4096 * MIB), ..goal(4096 * MIB, deflates) };
        assert_eq!(carry_out(&mut guest, wanted, 300, |_| 0), Ended::Held { whole: false });
        // Of the least margin, some pages are missing at most.
        assert!(!guest.killed && guest.reported.0.abs_diff(least * MIB) <= MIB, "{}", guest.reported.0 / MIB);
        let look = guest.look();
        let dry = Steer::new(wanted, look).floor(&look).unwrap();
        assert!(dry.abs_diff(look.size) <= MIB, "{dry}");
    }
    // Without statistics the user's floor is all there is; a guest that is paged out keeps what is available.
    let look = SizeObservation {
        size: 512 * MIB,
        available: Some(8 * MIB),
        used: Some(504 * MIB),
        ..SizeObservation::default()
    };
    for wanted in [Goal { statistics: false, ..goal(0, true) }, Goal { way: Way::Cgroup, ..goal(0, true) }] {
        let wanted = Goal { floor: Some(9 * MIB), ..wanted };
        assert_eq!(Steer::new(wanted, look).floor(&look), Some(9 * MIB));
    }
}

#[test]
fn the_least_size_leaves_the_margin_available_whatever_else_the_guest_has() {
    let floor = |way, size, available, used| {
        let look = SizeObservation {
            size,
            available: Some(available),
            used: Some(used),
            ..SizeObservation::default()
        };
        Steer::new(Goal { way, ..goal(0, true) }, look).floor(&look).unwrap() / MIB
    };
    // 512 MiB of which the balloon holds 128, and 256 of virtio-mem: 340 are used.
    assert_eq!(floor(Way::Balloon, 384 * MIB, 300 * MIB, 340 * MIB), 148);
    assert_eq!(floor(Way::VirtioMem, 768 * MIB, 300 * MIB, 340 * MIB), 532);
    assert_eq!(floor(Way::Cgroup, 700 * MIB, 300 * MIB, 340 * MIB), 404);
}
