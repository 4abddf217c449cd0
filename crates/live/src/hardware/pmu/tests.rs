// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the groups; of reading them, with events that the kernel counts without a PMU; and of this
//! machine's PMU.

use super::*;
use crate::hardware::HardwareCounts;
use bifold_host::Vendor;
use rustix::io::Errno;
use std::sync::mpsc::channel;
use std::time::Duration;

/// A PMU of that processor that takes every group.
fn pmu(processor: Option<&Microarchitecture>) -> Pmu {
    let groups = [cycles()].into_iter().chain(processor.into_iter().flat_map(sums)).collect();
    Pmu { microarchitecture: processor.cloned(), groups, notes: notes(None, processor) }
}

#[test]
fn every_processor_has_small_groups_and_each_counter_is_in_one() {
    for processor in Microarchitecture::all() {
        let pmu = pmu(Some(&processor));
        let mut fields = Vec::new();
        for group in &pmu.groups {
            assert!((1..=MOST_EVENTS).contains(&group.len()), "{}", processor.name);
            let mut of_group: Vec<Field> = group.iter().map(|e| e.field).collect();
            of_group.dedup();
            fields.extend(of_group);
        }
        let known = fields.len();
        assert!(Field::ALL.iter().all(|f| fields.iter().filter(|g| *g == f).count() <= 1), "{fields:?}");
        assert_eq!(known + pmu.notes.len(), Field::ALL.len(), "{:?}", pmu.notes);
        // Guest cycles are no counter of a sample.
        assert_eq!(pmu.known().iter().count(), known - 1, "{}", processor.name);
        assert_eq!(pmu.groups(), known - 2, "{}", processor.name);
    }
}

#[test]
fn the_documented_numbers_of_system_calls_and_files_hold() {
    let numbers = |vendor, family, model| {
        let processor = Microarchitecture::of(Cpu { vendor, family, model }).unwrap();
        let pmu = pmu(Some(&processor));
        (pmu.groups(), pmu.events())
    };
    assert_eq!(numbers(Vendor::Intel, 6, 0x55), (6, 16), "Skylake");
    assert_eq!(numbers(Vendor::Intel, 6, 0x8f), (5, 14), "Sapphire Rapids");
    assert_eq!(numbers(Vendor::Amd, 0x19, 0x11), (5, 10), "Zen 4");
    assert_eq!((pmu(None).groups(), pmu(None).events()), (1, 3));
}

#[test]
fn only_the_guest_counts_but_for_the_cycles_of_the_host() {
    let zen = Microarchitecture::of(Cpu { vendor: Vendor::Amd, family: 0x19, model: 0x11 }).unwrap();
    for counted in pmu(Some(&zen)).groups.iter().flatten() {
        let Priv { user, kernel, hv, host, guest, idle } = counted.exclude;
        assert!(!(user || kernel || hv || idle), "{:?}", counted.field);
        assert_eq!(
            (host, guest),
            if counted.field == Field::HostCycles { (false, true) } else { (true, false) }
        );
    }
    let raw = |config| PerfEvent::try_from(raw::Raw { config, config1: 0, config2: 0, config3: 0 }).unwrap();
    let events: Vec<PerfEvent> = sums(&zen).remove(0).into_iter().map(|e| e.event).collect();
    assert_eq!(events, [raw(0x3045), raw(0x0985)]);
}

#[test]
fn notes_say_which_counter_is_unknown_and_why() {
    let zen = Microarchitecture::of(Cpu { vendor: Vendor::Amd, family: 0x19, model: 0x11 }).unwrap();
    assert_eq!(
        notes(None, Some(&zen)),
        ["walk_cycles is unknown: no event for it is listed for Zen 3 and Zen 4"]
    );
    let unknown = Cpu { vendor: Vendor::Intel, family: 6, model: 0x97 };
    assert_eq!(
        notes(Some(unknown), None),
        [
            "TLB misses, flushes and walk cycles are unknown: the list of events does not have this processor (Intel, family 0x6, model 0x97)"
        ]
    );
    assert!(notes(None, None)[0].ends_with("/proc/cpuinfo tells of no processor of Intel or AMD"));
}

#[test]
fn the_kernels_permission_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let host = Host { proc: dir.path().into(), ..Host::live() };
    assert_eq!(paranoid(&host), None);
    std::fs::create_dir_all(dir.path().join("sys/kernel")).unwrap();
    std::fs::write(dir.path().join("sys/kernel/perf_event_paranoid"), "-1\n").unwrap();
    assert_eq!(paranoid(&host), Some(-1));
}

#[test]
fn this_machine_counts_or_says_why_not() {
    match Pmu::of(&Host::live()) {
        Ok(pmu) => {
            let counters = pmu.open(rustix::thread::gettid().as_raw_nonzero().get() as u32).unwrap();
            let start = counters.read().unwrap();
            let counts = counters.read().unwrap().since(&start);
            assert!(counts.scheduled.is_some(), "this thread ran: {counts:?}");
            assert_ne!(counts.host_cycles, Some(0), "{counts:?}");
            assert!(matches!(counts.instructions, None | Some(0)), "this thread runs no guest: {counts:?}");
            assert!(matches!(pmu.open(0), Err(OpenError::Ended { thread: 0 })));
            assert!(matches!(pmu.open(u32::MAX), Err(OpenError::Ended { .. })));
        }
        Err(e) => {
            println!("{e}");
            assert!(matches!(e, NoPmu::None | NoPmu::NotPermitted { .. }), "{e:?}");
        }
    }
}

/// A group of events that the kernel counts, in user space, where any user may: nanoseconds on a CPU, page
/// faults, and the sum of all page faults and minor ones.
fn by_the_kernel() -> Vec<Counted> {
    let counted = |field, event: Software| Counted {
        field,
        event: PerfEvent::try_from(event).unwrap(),
        exclude: Priv { kernel: true, ..Priv::default() },
    };
    vec![
        counted(Field::GuestCycles, Software::TaskClock),
        counted(Field::Instructions, Software::PageFault),
        counted(Field::WalkCycles, Software::PageFault),
        counted(Field::WalkCycles, Software::MinorPageFault),
    ]
}

/// The counters of that group; `None` where a distribution's kernel or a container's filter forbids every
/// event.
fn open(thread: u32) -> Option<ThreadCounters> {
    match Group::open(Proc(thread), &by_the_kernel()) {
        Ok(group) => Some(ThreadCounters { groups: vec![group] }),
        Err(e) => {
            let forbidden = [Errno::PERM, Errno::ACCESS, Errno::NOSYS];
            assert!(Errno::from_io_error(&e).is_some_and(|e| forbidden.contains(&e)), "{e}");
            println!("skipped: perf_event_open: {e}");
            None
        }
    }
}

/// What was counted while the thread waited: reads until the thread did not run between two reads.
fn waiting(counters: &ThreadCounters) -> HardwareCounts {
    for _ in 0..10_000 {
        let start = counters.read().unwrap();
        std::thread::sleep(Duration::from_millis(1));
        let counts = counters.read().unwrap().since(&start);
        if counts.scheduled.is_none() {
            return counts;
        }
    }
    panic!("the enabled time of a waiting thread advances");
}

/// Another thread's time stands still while it waits, so its counts are 0; while it runs, they grow.
#[test]
fn a_group_counts_only_while_its_thread_runs() {
    let (to_worker, orders) = channel::<()>();
    let (done, from_worker) = channel::<u32>();
    let worker = std::thread::spawn(move || {
        let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
        done.send(thread).unwrap();
        while orders.recv().is_ok() {
            std::hint::black_box(vec![1_u8; 1 << 20]);
            done.send(thread).unwrap();
        }
    });
    let Some(counters) = open(from_worker.recv().unwrap()) else { return };

    let idle = waiting(&counters);
    assert_eq!((idle.guest_cycles, idle.instructions, idle.walk_cycles), (Some(0), Some(0), Some(0)));
    assert_eq!(idle.tlb_misses_4k, None, "no event of this group");

    let start = counters.read().unwrap();
    to_worker.send(()).unwrap();
    from_worker.recv().unwrap();
    let busy = counters.read().unwrap().since(&start);
    assert_eq!(busy.scheduled, Some(1.0), "the kernel's own events need no PMU");
    assert!(busy.guest_cycles.unwrap() > 0);
    let faults = busy.instructions.unwrap();
    assert!(faults > 0 && (faults..=2 * faults).contains(&busy.walk_cycles.unwrap()), "{busy:?}");

    drop(to_worker);
    worker.join().unwrap();
    let end = waiting(&counters);
    assert_eq!(end.instructions, Some(0), "an ended thread's counters keep their state");
}

#[test]
fn a_stand_in_has_its_processors_groups_and_reads_them_without_a_pmu() {
    let thread = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    for processor in Microarchitecture::all() {
        let (real, stand_in) = (pmu(Some(&processor)), Pmu::stand_in(&processor));
        let sizes = |pmu: &Pmu| pmu.groups.iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!(sizes(&real), sizes(&stand_in), "{}", processor.name);
        if open(thread).is_some() {
            let counters = stand_in.open(thread).unwrap();
            let start = counters.read().unwrap();
            let counts = counters.read().unwrap().since(&start);
            assert!(counts.guest_cycles.is_some_and(|ns| ns > 0), "this thread ran: {counts:?}");
        }
    }
}

#[test]
fn a_thread_that_does_not_exist_has_ended() {
    let thread = i32::MAX as u32; // beyond PID_MAX_LIMIT
    let Err(e) = Group::open(Proc(thread), &by_the_kernel()) else { panic!("there is such a thread") };
    if !matches!(Errno::from_io_error(&e), Some(Errno::PERM | Errno::ACCESS | Errno::NOSYS)) {
        assert!(matches!(OpenError::of(thread, e), OpenError::Ended { .. }));
    }
}
