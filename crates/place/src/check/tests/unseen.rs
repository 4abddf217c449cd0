// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The report lists what was not seen, and a guest without a vCPU is never sound.

use super::*;
use crate::check::unseen;
use bifold_host::Host;
use bifold_host::LiveGuest;
use bifold_host::placement::Scheduling;
use std::fs;

fn unknown(what: &str) -> Unknown {
    Unknown { what: what.into(), privilege: false }
}

/// The report without findings, the verdict in JSON, and how much JSON says was not seen.
fn told(scene: &Scene) -> (String, String, usize) {
    let findings = scene.findings(false);
    let json = serde_json::to_value(document(&scene.seen, &[PID], &findings)).unwrap();
    let guest = &json["guests"][0];
    let verdict = guest["verdict"].as_str().unwrap().to_owned();
    (report(&scene.seen, &[PID], &findings), verdict, guest["unknown"].as_array().unwrap().len())
}

#[test]
fn a_guest_of_which_no_vcpu_was_seen_is_never_sound() {
    let mut scene = Scene::new();
    for thread in &mut scene.guest().threads {
        thread.role = Role::Emulator;
    }
    scene.guest().view = view("-smp 4 -m 128M");
    scene.guest().blocks.truncate(1);
    let text = "not checked: web (100): no vCPU, 64 pages looked at\n".to_string();
    assert_eq!(told(&scene), (text, "not_checked".into(), 0));
    scene.guest().unknown = vec![unknown("a\u{1b}b")];
    let (text, verdict, unknown) = told(&scene);
    assert!(text.ends_with("looked at\n    not seen: a\\u{1b}b\n") && !text.contains("sound"), "{text}");
    assert_eq!((verdict.as_str(), unknown), ("not_checked", 1));
}

#[test]
fn what_was_not_seen_stands_beside_findings_and_beside_none() {
    let mut scene = Scene::new();
    assert_eq!(told(&scene), ("sound: web (100): 4 vCPUs, 128 pages looked at\n".into(), "sound".into(), 0));
    scene.guest().unknown = vec![unknown("its memory")];
    let text =
        "sound as far as it can be seen: web (100): 4 vCPUs, 128 pages looked at\n    not seen: its memory\n";
    assert_eq!(told(&scene), (text.into(), "sound_as_seen".into(), 1));
    scene.vcpu(1, "2");
    let (text, verdict, _) = told(&scene);
    assert!(text.starts_with("error two-vcpus-on-one-cpu: web (100)\n"), "{text}");
    assert!(
        text.ends_with("seen in part: web (100): 4 vCPUs, 128 pages looked at\n    not seen: its memory\n")
    );
    assert_eq!(verdict, "findings");
}

/// A host of files on which the guest's process runs.
fn host() -> (tempfile::TempDir, Host) {
    let dir = tempfile::tempdir().unwrap();
    let host = Host::copied(dir.path());
    fs::create_dir_all(host.proc.join(format!("{PID}/task"))).unwrap();
    (dir, host)
}

fn live(kvm: bool) -> LiveGuest {
    LiveGuest { pid: PID, name: "web".into(), started: 1, vm: None, kvm, vcpus: Vec::new() }
}

fn whats(unknown: Vec<Unknown>) -> Vec<(String, bool)> {
    unknown.into_iter().map(|u| (u.what, u.privilege)).collect()
}

/// The scene's guest, whose threads all have what the scheduler knows.
fn ranked() -> GuestFacts {
    let mut guest = guest();
    guest.threads.iter_mut().for_each(|t| t.scheduling = Some(Scheduling::default()));
    guest
}

#[test]
fn threads_that_are_not_recognised_or_not_readable_are_told() {
    let (_dir, host) = host();
    let told = |kvm, seen: &GuestFacts| whats(unseen::of_threads(&host, &live(kvm), seen));
    assert_eq!(told(true, &ranked()), []);
    let mut fewer = ranked();
    fewer.threads.truncate(4);
    assert_eq!(told(true, &fewer), [("2 of its 4 vCPUs: their threads are not recognised".into(), false)]);
    let mut none = ranked();
    none.threads.truncate(2);
    for kvm in [true, false] {
        let told = told(kvm, &none);
        assert!(told.len() == 1 && told[0].0.contains("debug-threads=on") && told[0].1 == kvm, "{told:?}");
    }
    let unranked = told(true, &guest());
    assert_eq!(unranked, [("nice value and policy of its vCPUs 0, 1, 2, 3".into(), false)]);
    let other_vmm = told(true, &GuestFacts { view: None, ..ranked() });
    assert!(other_vmm.len() == 1 && other_vmm[0].0.contains("command line"), "{other_vmm:?}");
    // A thread without a list of CPUs.
    fs::create_dir_all(host.proc.join(format!("{PID}/task/777"))).unwrap();
    assert_eq!(
        told(true, &ranked()),
        [("the CPUs of its threads 777: no list of allowed CPUs".into(), false)]
    );
}

#[test]
fn memory_without_policies_and_a_process_without_large_mappings_are_told() {
    let (_dir, host) = host();
    let mut seen = ranked();
    seen.blocks.iter_mut().for_each(|b| b.memory.policies.clear());
    assert_eq!(whats(unseen::of_memory(&host, &seen)), [], "a kernel without NUMA has no policies");
    fs::create_dir_all(host.sys.join("devices/system/node")).unwrap();
    let told = whats(unseen::of_memory(&host, &seen));
    assert!(told.len() == 1 && told[0].0.contains("numa_maps"), "{told:?}");
    assert_eq!(whats(unseen::of_memory(&host, &ranked())), []);
    let small = GuestFacts { view: None, blocks: Vec::new(), ..ranked() };
    let told = whats(unseen::of_memory(&host, &small));
    assert!(told.len() == 1 && told[0].0.contains("no mapping"), "{told:?}");
}

#[test]
fn limits_are_those_of_the_vcpus_cgroups_and_unreadable_ones_are_told() {
    let (_dir, host) = host();
    let put = |path: std::path::PathBuf, text: &str| {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    };
    for (thread, cgroup) in [(PID, "emulator"), (PID + 10, "vcpu0"), (PID + 11, "hidden")] {
        put(host.proc.join(format!("{PID}/task/{thread}/cgroup")), &format!("0::/vm/{cgroup}\n"));
    }
    put(host.sys.join("fs/cgroup/vm/emulator/cpu.max"), "1000 100000\n");
    put(host.sys.join("fs/cgroup/vm/vcpu0/cpu.max"), "2000 100000\n");
    let mut seen = ranked();
    let told = whats(unseen::of_cgroups(&host, &mut seen));
    assert!(told.len() == 1 && told[0].0.contains("limits of its cgroups: cgroup /vm/hidden"), "{told:?}");
    let quotas: Vec<u64> = seen.cpu_groups.iter().filter_map(|g| Some(g.quota?.quota_us)).collect();
    assert_eq!(quotas, [2000], "the emulator's quota is not the vCPUs'");
}

#[test]
fn interrupts_that_cannot_be_read_are_told_of_pinned_guests() {
    let (_dir, host) = host();
    assert!(unseen::of_interrupts(&host, &ranked()).is_some());
    let mut floats = ranked();
    floats.threads.iter_mut().for_each(|t| t.cpus = set("0-7"));
    assert_eq!(unseen::of_interrupts(&host, &floats), None);
    fs::create_dir_all(host.proc.join("irq")).unwrap();
    assert_eq!(unseen::of_interrupts(&host, &ranked()), None);
}
