// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Refusals on given facts, records and their journals, and orders about a cgroup that is made of files.

use super::*;
use bifold_host::guest_memory::*;
use bifold_host::held::Journal;
use std::time::Duration;

/// Facts of a guest of 512 MiB with everything that an order needs.
fn all_well() -> Facts {
    let balloon =
        Balloon { path: "/b".into(), deflate_on_oom: true, actual: Some(512 * MIB), ..Balloon::default() };
    let device = VirtioMem { id: Some("vm0".into()), requested: 256 * MIB, size: 256 * MIB, block: 2 * MIB };
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
        swap: Some(Swap { total: 1 << 30, free: 1 << 30 }),
        hugetlb: false,
    }
}

fn asked(facts: &Facts, way: Way, size: u64, floor: Option<u64>) -> Result<Goal, Refusal> {
    refusal(facts, &OrderRequest { way, size, floor, step: None })
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
        (&[B, V], |f| f.machine = Err(NoMonitor::NotAsked), "no monitor"),
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
    let ask = |facts: &Facts, way, size| asked(facts, way, size, Some(64 * MIB));
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
        let refused = asked(&facts, way, size * MIB, floor).unwrap_err().to_string();
        assert!(refused.contains(why), "{refused}");
    }
    // For a cgroup, statistics that QEMU does not ask for are of any age.
    let mut polled = facts.clone();
    let balloon = polled.machine.as_mut().unwrap().balloon.as_mut().unwrap();
    balloon.statistics.available = Some(300 * MIB);
    for (polling_s, enough) in [(0, false), (60, false), (2, true)] {
        polled.machine.as_mut().unwrap().balloon.as_mut().unwrap().polling_s = polling_s;
        let asked = asked(&polled, Way::Cgroup, 300 * MIB, None);
        assert_eq!(asked.is_ok(), enough, "{polling_s}: {asked:?}");
    }
    let goal = asked(&facts, Way::VirtioMem, 601 * MIB + 1, None).unwrap();
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
    seen().unwrap();
    let journal = places(&other, (9, 22)).journal;
    std::fs::write(&journal, "").unwrap();
    assert!(matches!(seen(), Err(OrderError::OfAnotherUser { pid: 9, path }) if path == journal));
    // Root may look into any folder: a name that leads to itself stands for one that cannot be looked into.
    std::fs::remove_dir_all(&other).unwrap();
    seen().unwrap();
    std::os::unix::fs::symlink(&other, &other).unwrap();
    assert!(matches!(seen(), Err(OrderError::Unseen { pid: 9, .. })));
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
    let guest = bifold_host::LiveGuest {
        pid: 9,
        name: "web".into(),
        started: 22,
        vm: None,
        kvm: false,
        vcpus: Vec::new(),
    };
    let wish =
        OrderRequest { way: Way::Cgroup, size: 128 * MIB, floor: Some(64 * MIB), step: Some(32 * MIB) };
    let guardian = bifold_host::held::Guardian { program: "none".into(), words: Vec::new() };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let folder = dir.path().join("run/reclaim");
    let mut order = Order::begin(&host, &folder, &guardian, &guest, &wish, &stop).unwrap();
    let mut steps = 0;
    for _ in 0..60 {
        match order.tick(false) {
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
fn plugged_memory_counts_as_the_guests_whatever_the_way() {
    let machine = all_well().machine.unwrap();
    // 512 MiB outside of the balloon and 256 MiB of virtio-mem.
    assert_eq!(used(&machine, 600 * MIB), Some(168 * MIB));
    assert_eq!(used(&machine, 769 * MIB), None, "that cannot be true");
    assert_eq!(used(&Machine { balloon: None, ..machine }, 0), None);
}
