// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Orders on simulated guests, and refusals on given facts.

use super::*;
use bifold_host::guest_memory::*;
use bifold_host::held::Journal;
use proptest::prelude::*;
use std::time::Duration;

const MIB: u64 = 1 << 20;
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

    fn look(&self) -> Look {
        Look {
            at: Duration::from_millis(100 * self.ticks),
            running: true,
            size: self.actual,
            available: Some(self.reported.0),
            used: Some(self.actual.saturating_sub(self.reported.0)),
            updated: Some(self.updated),
            faults: Some(self.reported.1),
            oom_kills: Some(0),
            resident: Some(self.actual / 2),
            ..Look::default()
        }
    }
}

fn goal(size: u64, deflates: bool) -> Goal {
    Goal {
        way: Way::Balloon,
        size,
        floor: None,
        step: None,
        statistics: true,
        polling_s: 1,
        deflates,
        slack: MIB,
        unit: 4096,
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
        .map(|n| steer.next(&Look { at: Duration::from_secs(n), size: look.size - 4096 * n, ..look }))
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
        let look = Look { resident: Some((512 + 40 * second) * MIB), ..guest.look() };
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
        (Look { running: false, ..look }, "have stopped"),
        (Look { migrating: true, ..look }, "migration"),
        (Look { oom_kills: Some(1), ..look }, "killed a process"),
        (Look { available: Some(2 * guest.total), used: None, updated: Some(99), ..look }, "cannot be true"),
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

/// Facts of a guest of 512 MiB with everything that an order needs.
fn all_well() -> Facts {
    let balloon =
        Balloon { path: "/b".into(), deflate_on_oom: true, actual: Some(512 * MIB), ..Balloon::default() };
    let device = VirtioMem {
        id: Some("vm0".into()),
        requested: 256 * MIB,
        size: 256 * MIB,
        most: 512 * MIB,
        block: 2 * MIB,
    };
    let machine = Machine {
        state: "running".into(),
        running: true,
        migration: None,
        base: Some(512 * MIB),
        dimms: Some(0),
        balloon: Some(balloon),
        virtio_mem: vec![device],
    };
    let group = MemoryGroup {
        current: Some(400 * MIB),
        reclaims: true,
        processes: [9].into(),
        ..MemoryGroup::default()
    };
    Facts {
        machine: Ok(machine),
        memory: ProcessMemory { resident: Some(300 * MIB), locked: Some(0), ..ProcessMemory::default() },
        vfio: Some(0),
        group: Ok(group),
        pid: 9,
        swap: Some(Swap { total: 1 << 30, free: 1 << 30, ..Swap::default() }),
        hugetlb: false,
    }
}

#[test]
fn an_order_is_refused_for_what_would_harm_or_give_nothing() {
    type Change = fn(&mut Facts);
    fn machine(f: &mut Facts) -> &mut Machine {
        f.machine.as_mut().unwrap()
    }
    fn balloon(f: &mut Facts) -> &mut Balloon {
        machine(f).balloon.as_mut().unwrap()
    }
    fn group(f: &mut Facts) -> &mut MemoryGroup {
        f.group.as_mut().unwrap()
    }
    use Way::{Balloon as B, Cgroup as C, VirtioMem as V};
    let cases: &[(&[Way], Change, &str)] = &[
        (&[B, V], |f| f.machine = Err("no monitor".into()), "no monitor"),
        (&[B, V, C], |f| machine(f).running = false, "vCPUs do not run"),
        (&[B, V, C], |f| machine(f).migration = Some("active".into()), "migration is under way"),
        (&[B], |f| machine(f).balloon = None, "no balloon"),
        (&[B], |f| balloon(f).actual = None, "does not tell what its balloon leaves"),
        (&[V], |f| machine(f).virtio_mem.clear(), "no device of virtio-mem"),
        (&[V], |f| machine(f).virtio_mem[0].id = None, "no device of virtio-mem"),
        (&[V], |f| machine(f).virtio_mem[0].requested = 0, "does not follow"),
        (&[B, C], |f| f.vfio = Some(2), "devices of VFIO"),
        (&[B, C], |f| f.vfio = None, "cannot be read"),
        (&[B, C], |f| f.memory.locked = None, "cannot be read"),
        (&[B, C], |f| f.memory.locked = Some(300 * MIB), "locked"),
        (&[B, C], |f| f.memory.hugetlb = Some(2 * MIB), "hugetlbfs"),
        (&[B, C], |f| f.hugetlb = true, "hugetlbfs"),
        (&[C], |f| f.group = Err(NoMemoryGroup::V1), "cgroup v1"),
        (&[C], |f| group(f).reclaims = false, "no memory.reclaim"),
        (&[C], |f| _ = group(f).processes.insert(10), "same cgroup"),
        (&[C], |f| f.swap = None, "no swap"),
        (&[C], |f| f.swap = Some(Swap::default()), "no swap"),
        (&[C], |f| f.swap.as_mut().unwrap().free = 100 * MIB, "without a tenth of all for others"),
        (&[C], |f| group(f).swap_max = Some(Limit::Bytes(MIB)), "has 1 MiB for the guest"),
    ];
    let ask = |facts: &Facts, way, size| refusal(facts, way, size, Some(64 * MIB), None);
    for (ways, change, why) in cases {
        for way in Way::ALL {
            let size = if way == V { 600 * MIB } else { 256 * MIB };
            let mut facts = all_well();
            ask(&facts, way, size).unwrap();
            change(&mut facts);
            match ask(&facts, way, size) {
                Err(refusal) => {
                    assert!(ways.contains(&way) && refusal.to_string().contains(why), "{way:?}: {refusal}")
                }
                Ok(_) => assert!(!ways.contains(&way), "{way:?}: {why}"),
            }
        }
    }
    // Little locked memory is that of libraries.
    let mut facts = all_well();
    facts.memory.locked = Some(MIB);
    ask(&facts, B, 256 * MIB).unwrap();
}

#[test]
fn an_order_is_refused_below_and_above() {
    let facts = all_well();
    for (way, size, floor, why) in [
        (Way::Balloon, 513, None, "it has 512 MiB"),
        (Way::Balloon, 128, Some(129 * MIB), "--floor says so"),
        (Way::VirtioMem, 769, None, "it has 768 MiB"),
        (Way::VirtioMem, 511, None, "without virtio-mem, which stays"),
        (Way::Cgroup, 401, Some(MIB), "it has 400 MiB"),
        (Way::Cgroup, 300, None, "--floor"),
    ] {
        let refused = refusal(&facts, way, size * MIB, floor, None).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    // For a cgroup, statistics that QEMU does not ask for are of any age.
    let mut polled = facts.clone();
    let balloon = polled.machine.as_mut().unwrap().balloon.as_mut().unwrap();
    balloon.statistics.available = Some(300 * MIB);
    for (polling_s, enough) in [(0, false), (60, false), (2, true)] {
        polled.machine.as_mut().unwrap().balloon.as_mut().unwrap().polling_s = polling_s;
        let asked = refusal(&polled, Way::Cgroup, 300 * MIB, None, None);
        assert_eq!(asked.is_ok(), enough, "{polling_s}: {asked:?}");
    }
    let goal = refusal(&facts, Way::VirtioMem, 601 * MIB + 1, None, None).unwrap();
    assert!(!goal.deflates, "the balloon that deflates is another device");
    assert_eq!((goal.size, goal.unit), (602 * MIB, 2 * MIB), "whole blocks");
}

#[test]
fn a_record_is_read_as_it_was_written() {
    let record = Record {
        guest: (9, 4711),
        name: "the db".into(),
        monitor: MonitorPlace::Socket("/run/a b".into()),
        way: Way::VirtioMem,
        device: "vm 0".into(),
        found: 7,
        least: 5,
        dimms: 0,
        besides: 0,
        polling: Some((0, "/machine/peripheral/b 0".into())),
        kept: true,
    };
    let journal = Journal { what: WHAT.into(), pid: 1, found: record.values() };
    let read = Journal::parse(&journal.text(), WHAT).unwrap();
    assert_eq!(Record::of(&read.found), Some(record.clone()));
    for missing in 0..9 {
        let mut values = record.values();
        values.remove(missing);
        assert_eq!(Record::of(&values), None);
    }
    let plain = Record { polling: None, kept: false, ..record };
    assert_eq!(Record::of(&plain.values()), Some(plain));
}

#[test]
fn another_users_order_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (own, other) = (dir.path().join("own"), dir.path().join("other"));
    let seen = || record::in_another(&own, [Some(own.clone()), Some(other.clone())], (9, 22));
    std::fs::create_dir_all(&own).unwrap();
    std::fs::create_dir_all(&other).unwrap();
    std::fs::write(places(&own, (9, 22)).journal, "").unwrap();
    std::fs::write(places(&other, (9, 23)).journal, "").unwrap();
    assert_eq!(seen(), None);
    std::fs::write(places(&other, (9, 22)).journal, "").unwrap();
    assert_eq!(seen(), Some(places(&other, (9, 22)).journal));
}

#[test]
fn a_journal_that_cannot_be_used_names_process_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("9-22.journal"), "bifold-reclaim 1\npid 4\nguest 9\n").unwrap();
    std::fs::write(dir.path().join("10-22.journal"), "bifold-reclaim 1\npid 4\nguest 10\nend\n").unwrap();
    let errors: Vec<String> = records(dir.path()).into_iter().map(|r| r.unwrap_err().to_string()).collect();
    for (error, part) in errors.iter().zip(["process 10 its size", "process 9 its size"]) {
        assert!(error.contains(part) && error.contains("QEMU's `balloon`"), "{error}");
    }
}

/// A host with cgroup v2, on which process 9 is alone in its cgroup and no monitor answers.
fn with_group(dir: &std::path::Path) -> bifold_host::Host {
    let at = |name: &str| dir.join(name);
    let host =
        bifold_host::Host { sys: at("sys"), proc: at("proc"), debug: at("debug"), tracing: at("tracing") };
    let fields = (3..=22).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
    for (path, text) in [
        ("proc/self/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n".to_owned()),
        ("proc/meminfo", "SwapTotal: 1048576 kB\nSwapFree: 1048576 kB\n".into()),
        ("proc/9/cgroup", "0::/web.scope\n".into()),
        ("proc/9/stat", format!("9 (vmm) {fields}\n")),
        ("proc/9/status", "VmLck: 0 kB\n".into()),
        ("proc/9/fd/0", String::new()),
        ("proc/9/cmdline", "firecracker\0--id\0web\0".into()),
        ("sys/fs/cgroup/web.scope/memory.current", format!("{}\n", 256 * MIB)),
        ("sys/fs/cgroup/web.scope/memory.stat", "workingset_refault_anon 0\n".into()),
        ("sys/fs/cgroup/web.scope/memory.reclaim", String::new()),
        ("sys/fs/cgroup/web.scope/cgroup.procs", "9\n".into()),
    ] {
        std::fs::create_dir_all(at(path).parent().unwrap()).unwrap();
        std::fs::write(at(path), text).unwrap();
    }
    host
}

#[test]
fn a_guardian_tries_on_until_the_guest_has_ended() {
    let dir = tempfile::tempdir().unwrap();
    let host = with_group(dir.path());
    let record = Record {
        guest: (9, 22),
        name: "web".into(),
        monitor: MonitorPlace::Socket("/nonexistent/qmp".into()),
        way: Way::Balloon,
        device: "/b".into(),
        found: 7,
        least: 5,
        dimms: 0,
        besides: 0,
        polling: None,
        kept: false,
    };
    let limited = record.give_back_while(&host, false, &mut |_, _| false);
    assert!(matches!(limited, Err(OrderError::Monitor { .. })), "{limited:?}");
    // What cannot be read is not gone, and a zombie is.
    let stat = dir.path().join("proc/9/stat");
    let lives = std::fs::read_to_string(&stat).unwrap();
    std::fs::remove_file(&stat).unwrap();
    std::fs::create_dir(&stat).unwrap();
    let unread = record.give_back_while(&host, false, &mut |_, _| false);
    assert!(matches!(unread, Err(OrderError::Monitor { .. })), "{unread:?}");
    std::fs::remove_dir(&stat).unwrap();
    std::fs::write(&stat, lives.replace(") 3 ", ") Z ")).unwrap();
    assert_eq!(record.give_back_while(&host, false, &mut |_, _| true).unwrap(), Back::Gone);
    std::fs::write(&stat, lives).unwrap();
    let ends = std::thread::spawn({
        let stat = dir.path().join("proc/9/stat");
        move || {
            std::thread::sleep(Duration::from_millis(600));
            std::fs::remove_file(stat).unwrap();
        }
    });
    assert_eq!(record.give_back_while(&host, false, &mut |_, _| true).unwrap(), Back::Gone);
    ends.join().unwrap();
}

/// What became of an order about that cgroup, which asks for steps of 32 MiB; `change` comes after each step.
fn order_by_group(change: impl Fn(&std::path::Path, usize, u64)) -> (Result<Event, OrderError>, usize) {
    let dir = tempfile::tempdir().unwrap();
    let host = with_group(dir.path());
    let group = dir.path().join("sys/fs/cgroup/web.scope");
    let guest = bifold_host::placement::LiveGuest {
        pid: 9,
        name: "web".into(),
        started: 22,
        vm: None,
        kvm: false,
        vcpus: Vec::new(),
    };
    let wish = Wish { way: Way::Cgroup, size: 128 * MIB, floor: Some(64 * MIB), step: Some(32 * MIB) };
    let guardian = bifold_host::held::Guardian { program: "none".into(), words: Vec::new() };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let folder = dir.path().join("run/reclaim");
    let mut order = Order::begin(&host, &folder, &guardian, &guest, &wish, &stop).unwrap();
    let mut steps = 0;
    for _ in 0..60 {
        match order.tick() {
            Ok(Event::Ordered { target, .. }) => {
                steps += 1;
                let asked: u64 =
                    std::fs::read_to_string(group.join("memory.reclaim")).unwrap().parse().unwrap();
                assert_eq!(asked, 32 * MIB);
                std::fs::write(group.join("memory.reclaim"), "").unwrap();
                change(&group, steps, target);
            }
            Ok(Event::Looked(_) | Event::Silent) => {}
            other => return (other, steps),
        }
    }
    panic!("the order has no end");
}

#[test]
fn a_cgroup_is_reclaimed_in_steps_until_its_pages_come_back() {
    let takes = |group: &std::path::Path, _: usize, target: u64| {
        std::fs::write(group.join("memory.current"), target.to_string()).unwrap();
    };
    let (end, steps) = order_by_group(takes);
    assert!(matches!(end, Ok(Event::Holding { whole: true, .. })) && steps == 4, "{end:?} after {steps}");
    // A kernel that finds nothing to take.
    let (end, steps) = order_by_group(|_, _, _| {});
    assert!(matches!(end, Ok(Event::Holding { whole: false, .. })) && steps == 1, "{end:?} after {steps}");
    let (end, steps) = order_by_group(|group, n, target| {
        takes(group, n, target);
        std::fs::write(group.join("memory.stat"), format!("workingset_refault_anon {}\n", 10_000 * n))
            .unwrap();
    });
    assert!(
        matches!(end, Ok(Event::Ends { why: Why::Faults { .. }, .. })) && steps == 1,
        "{end:?} after {steps}"
    );
    // Another process comes into the cgroup meanwhile.
    let (end, steps) = order_by_group(|group, n, target| {
        takes(group, n, target);
        std::fs::write(group.join("cgroup.procs"), "9\n10\n").unwrap();
    });
    assert!(matches!(end, Err(OrderError::Group { .. })) && steps == 1, "{end:?} after {steps}");
    // Others fill the swap meanwhile.
    let (end, steps) = order_by_group(|group, n, target| {
        takes(group, n, target);
        let proc = group.ancestors().nth(4).unwrap().join("proc");
        std::fs::write(proc.join("meminfo"), "SwapTotal: 1048576 kB\nSwapFree: 120000 kB\n").unwrap();
    });
    assert!(matches!(end, Err(OrderError::Group { .. })) && steps == 1, "{end:?} after {steps}");
}

#[test]
fn one_write_reclaims_a_quarter_of_a_gibibyte_at_most() {
    let wanted = Goal { way: Way::Cgroup, statistics: false, floor: Some(MIB), ..goal(MIB, true) };
    let look = Look { size: 8192 * MIB, running: true, ..Look::default() };
    let wanted = Goal { step: Some(4096 * MIB), ..wanted };
    assert_eq!(Steer::new(wanted, look).next(&look), Act::Order((8192 - 256) * MIB));
}

#[test]
fn plugged_memory_counts_as_the_guests_whatever_the_way() {
    let machine = all_well().machine.unwrap();
    // 512 MiB outside of the balloon and 256 MiB of virtio-mem.
    assert_eq!(hand::used(&machine, 600 * MIB), Some(168 * MIB));
    assert_eq!(hand::used(&machine, 769 * MIB), None, "that cannot be true");
    assert_eq!(hand::used(&Machine { balloon: None, ..machine }, 0), None);
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
    let look = Look { size: 512 * MIB, available: Some(8 * MIB), used: Some(504 * MIB), ..Look::default() };
    for wanted in [Goal { statistics: false, ..goal(0, true) }, Goal { way: Way::Cgroup, ..goal(0, true) }] {
        let wanted = Goal { floor: Some(9 * MIB), ..wanted };
        assert_eq!(Steer::new(wanted, look).floor(&look), Some(9 * MIB));
    }
}

#[test]
fn the_least_size_leaves_the_margin_available_whatever_else_the_guest_has() {
    let floor = |way, size, available, used| {
        let look = Look { size, available: Some(available), used: Some(used), ..Look::default() };
        Steer::new(Goal { way, ..goal(0, true) }, look).floor(&look).unwrap() / MIB
    };
    // 512 MiB of which the balloon holds 128, and 256 of virtio-mem: 340 are used.
    assert_eq!(floor(Way::Balloon, 384 * MIB, 300 * MIB, 340 * MIB), 148);
    assert_eq!(floor(Way::VirtioMem, 768 * MIB, 300 * MIB, 340 * MIB), 532);
    assert_eq!(floor(Way::Cgroup, 700 * MIB, 300 * MIB, 340 * MIB), 404);
}
