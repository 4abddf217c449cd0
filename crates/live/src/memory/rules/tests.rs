// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Each rule on a host for which it has something to say, and on one for which it has not.

use super::*;
use crate::memory::StayFacts;
use crate::order::Facts;
use bifold_host::LiveGuest;
use bifold_host::MemInfo;
use bifold_host::guest_memory::*;

const GIB: u64 = 1 << 30;

/// A guest of 8 GiB that uses 3, and reports, on a host with enough memory: no rule has anything to say.
fn well() -> HostMemory {
    let statistics = GuestStatistics {
        updated_s: Some(1000),
        free: Some(4 * GIB),
        available: Some(5 * GIB),
        ..GuestStatistics::default()
    };
    let balloon = Balloon {
        path: "/b".into(),
        deflate_on_oom: true,
        reports_free_pages: true,
        actual: Some(8 * GIB),
        polling_s: 10,
        statistics,
    };
    let machine =
        Machine { running: true, base: Some(8 * GIB), balloon: Some(balloon), ..Machine::default() };
    let facts = Facts {
        machine: Ok(machine),
        memory: ProcessMemory { resident: Some(4 * GIB), swapped: Some(0), ..ProcessMemory::default() },
        vfio: Some(0),
        group: Ok(MemoryGroup { current: Some(4 * GIB), high: Some(Limit::None), ..MemoryGroup::default() }),
        pid: 9,
        swap: None,
        hugetlb: false,
    };
    let guest = LiveGuest { pid: 9, name: "vm1".into(), started: 1, vm: None, kvm: false, vcpus: Vec::new() };
    HostMemory {
        time_s: 1005,
        memory: MemInfo { total: Some(64 * GIB), available: Some(32 * GIB) },
        swap: None,
        stalls_us: None,
        waiting_60: Some(0.0),
        guests: vec![GuestMemory { guest, facts, stays: StayFacts::default() }],
    }
}

fn facts(host: &mut HostMemory) -> &mut Facts {
    &mut host.guests[0].facts
}

fn device(host: &mut HostMemory) -> &mut Balloon {
    facts(host).machine.as_mut().unwrap().balloon.as_mut().unwrap()
}

/// The findings after a change of a host that has none.
fn after(change: impl Fn(&mut HostMemory)) -> Vec<(&'static str, String, String)> {
    let mut host = well();
    assert_eq!(advise(&host), []);
    change(&mut host);
    advise(&host).into_iter().map(|f| (f.rule, f.what, f.how)).collect()
}

#[test]
fn swapped_memory_that_is_free_is_reported_with_both_figures() {
    let found = after(|h| {
        facts(h).memory.swapped = Some(49 * GIB / 10);
        device(h).statistics.free = Some(47 * GIB / 10);
    });
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].1, "4.9 GB of vm1 are in host swap, 4.7 GB are free in the guest");
    assert!(found[0].2.starts_with("free page reporting is on"));
    let found = after(|h| {
        facts(h).memory.swapped = Some(GIB);
        device(h).reports_free_pages = false;
    });
    assert_eq!((found[0].0, found[1].0), ("swapped-but-free", "no-reporting"));
    assert!(found[0].2.contains("free-page-reporting=on"), "{}", found[0].2);
    // Old statistics are not of now.
    let found = after(|h| {
        facts(h).memory.swapped = Some(GIB);
        h.time_s += 100;
    });
    assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), ["statistics-off"]);
}

#[test]
fn what_the_device_lacks_is_reported() {
    let rules = |change: fn(&mut HostMemory)| after(change).iter().map(|f| f.0).collect::<Vec<_>>();
    assert_eq!(rules(|h| facts(h).machine.as_mut().unwrap().balloon = None), ["no-balloon"]);
    assert_eq!(rules(|h| device(h).reports_free_pages = false), ["no-reporting"]);
    assert_eq!(rules(|h| device(h).deflate_on_oom = false), [""; 0], "an empty balloon is no danger");
    let shrunk = |h: &mut HostMemory| {
        device(h).deflate_on_oom = false;
        device(h).actual = Some(6 * GIB);
    };
    assert_eq!(rules(shrunk), ["no-deflate-on-oom"]);
    assert_eq!(rules(|h| device(h).statistics = GuestStatistics::default()), ["statistics-off"]);
    let never = after(|h| {
        device(h).statistics = GuestStatistics::default();
        device(h).polling_s = 0;
    });
    assert!(never[0].1.contains("does not ask") && never[0].2.contains("qom-set /b"), "{never:?}");
}

#[test]
fn a_balloon_below_the_working_set_is_reported() {
    let found = after(|h| {
        device(h).actual = Some(3 * GIB);
        device(h).statistics.available = Some(100 * MIB);
    });
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].1, "100 MB are available in vm1, which uses 2.9 GB, while its balloon holds 5.0 GB");
    assert_eq!(found[0].2, "bifold reclaim restore 9, or give it memory in QEMU's monitor: balloon 8192");
}

#[test]
fn a_host_that_is_short_hears_what_guests_could_give() {
    let pressed: fn(&mut HostMemory) = |h| h.memory.available = Some(GIB);
    let found = after(pressed);
    assert_eq!(found[0].1, "vm1 uses 3.0 GB of 8.0 GB, so it could give 4.7 GB");
    // 3 GiB and a tenth, in steps of 16 MiB.
    assert_eq!(found[0].2, "bifold reclaim set 9 3392M");
    assert_eq!(after(|h| h.waiting_60 = Some(2.0))[0].0, "could-give");
    for change in [
        (|f| f.memory.locked = Some(4 * GIB)) as fn(&mut Facts),
        |f| f.memory.hugetlb = Some(GIB),
        |f| f.vfio = Some(1),
    ] {
        let found = after(|h| {
            pressed(h);
            change(facts(h));
        });
        assert_eq!(found.iter().map(|f| f.0).collect::<Vec<_>>(), ["cannot-give"]);
    }
}

#[test]
fn a_group_at_its_limit_is_reported_if_pages_come_back() {
    let limited = |refaults: u64, high: u64| {
        after(move |h| {
            let group = facts(h).group.as_mut().unwrap();
            group.high = Some(Limit::Bytes(high));
            group.stat = bifold_host::VmStat::parse(&format!("workingset_refault_anon {refaults}\n"));
        })
        .len()
    };
    assert_eq!([limited(7, 4 * GIB), limited(0, 4 * GIB), limited(7, 8 * GIB)], [1, 0, 0]);
}

#[test]
fn stays_in_shadow_paging_without_room_and_those_that_kvm_ends_are_reported() {
    let found = after(|h| {
        let (folder, left, need) = ("/g".into(), MIB, 99 * MIB);
        h.guests[0].stays = StayFacts { shortage: Some(Shortage { folder, left, need }), ended: 3 };
    });
    let rules: Vec<_> = found.iter().map(|f| f.0).collect();
    assert_eq!(rules, ["no-room-for-shadow", "stays-end-early"]);
    assert!(found[0].1.contains("needs up to 99 MiB of kernel memory, and cgroup /g has 1 MiB left"));
    assert_eq!(found[0].2, "raise memory.max in /g");
    assert_eq!(found[1].1, "KVM has ended 3 stays of vm1 in shadow paging");
    assert!(after(|h| h.guests[0].stays.ended = 1).is_empty(), "once is no pattern");
}

#[test]
fn every_rule_has_a_name_of_its_own() {
    let mut names: Vec<_> = RULES.iter().map(|r| r.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), RULES.len());
}
