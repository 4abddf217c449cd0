// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPU time that vCPUs do not get: each cause is found under its name.

use super::mistakes::{always, found};
use super::*;
use bifold_host::placement::{CpuGroup, ForeignThread, Quota, Scheduling, Weight};

fn foreign(cpus: &str, last_cpu: u32, runs: bool) -> ForeignThread {
    ForeignThread { id: 901, pid: 900, name: "cc1".into(), cpus: set(cpus), last_cpu, runs }
}

fn group(quota: Option<Quota>, weight: Option<Weight>) -> CpuGroup {
    CpuGroup { folder: "/sys/fs/cgroup/a b".into(), quota, weight, idle: false }
}

fn only(scene: &Scene) -> Finding {
    let [finding] = &scene.findings(false)[..] else { panic!("{:?}", scene.findings(false)) };
    finding.clone()
}

#[test]
fn another_processs_thread_that_is_confined_to_vcpus_cpus() {
    let name = &["foreign-thread-on-vcpu-cpu"][..];
    always(name, |s| s.seen.host.foreign = vec![foreign("2", 2, false)]);
    always(name, |s| s.seen.host.foreign = vec![foreign("2,10", 2, false)]);
    always(&[], |s| s.seen.host.foreign = vec![foreign("2-3", 2, false), foreign("6", 6, true)]);
    // Without a free CPU, a thread that may run anywhere is confined to vCPUs' CPUs, too.
    always(&[], |s| {
        s.topology.isolated = set("0-1,3,5-9,11,13-15");
        s.seen.host.foreign = vec![foreign("2,4,10,12", 2, false)];
    });
    let mut scene = Scene::new();
    scene.seen.host.foreign = vec![foreign("2", 2, false)];
    let finding = only(&scene);
    assert_eq!(
        finding.evidence,
        "thread 901 (cc1) of process 900 may run on CPU 2 only; vCPUs have CPU 2,4,10,12"
    );
    assert_eq!(finding.mend, "taskset -pc 0-1,3,5-9,11,13-15 901");
}

#[test]
fn another_processs_thread_that_runs_on_a_vcpus_cpu_counts_where_the_cpu_is_isolated() {
    always(&[], |s| s.seen.host.foreign = vec![foreign("0-15", 4, true)]);
    let isolated = |s: &mut Scene, runs| {
        s.topology.isolated = set("2,4");
        s.seen.host.foreign = vec![foreign("0-15", 4, runs)];
    };
    always(&["foreign-thread-on-vcpu-cpu"], |s| isolated(s, true));
    always(&[], |s| isolated(s, false));
}

#[test]
fn another_guests_emulator_on_vcpus_cpus_unless_the_plan_has_it() {
    let with_other = |s: &mut Scene| {
        let mut other = guest();
        (other.pid, other.name) = (200, "db".into());
        other.threads = vec![thread(200, "qemu-system-x86", Role::Emulator, "4")];
        other.threads.push(thread(210, "CPU 0/KVM", Role::Vcpu(0), "6"));
        (other.view, other.blocks) = (view("-smp 1 -m 128M"), Vec::new());
        s.seen.guests.push(other);
    };
    always(&["foreign-thread-on-vcpu-cpu"], with_other);
    found(&[], &["foreign-thread-on-vcpu-cpu"], |s| {
        with_other(s);
        let mut other = s.plan.guests[0].clone();
        other.name = "db".into();
        other.vcpus = vec![VcpuPlan { vcpu: 0, cpu: 6, node: 0 }];
        other.nodes.truncate(1);
        other.nodes[0].distances = vec![10];
        other.smp = Smp { sockets: 1, dies: 1, cores: 1, threads: 1 };
        (other.emulator, other.io_threads, other.bound) = (set("4"), Vec::new(), false);
        s.plan.guests.push(other);
    });
}

#[test]
fn a_quota_of_cpu_time() {
    let quota = |v2, throttled| Quota { v2, quota_us: 50_000, period_us: 100_000, throttled };
    for v2 in [true, false] {
        always(&["cpu-quota"], |s| s.guest().cpu_groups = vec![group(Some(quota(v2, None)), None)]);
    }
    let mut scene = Scene::new();
    scene.guest().cpu_groups = vec![group(Some(quota(true, Some(7))), None)];
    let finding = only(&scene);
    assert_eq!(
        finding.evidence,
        "/sys/fs/cgroup/a b/cpu.max: 50000 of each 100000 us, the time of 0.50 CPUs for 4 vCPUs; the time was used up in 7 \
         periods so far"
    );
    assert_eq!(finding.mend, "echo max > '/sys/fs/cgroup/a b/cpu.max'");
}

#[test]
fn a_low_priority() {
    let name = &["vcpu-low-priority"][..];
    let schedule = |s: &mut Scene, at: usize, nice, policy| {
        s.guest().threads[at].scheduling = Some(Scheduling { nice, policy });
    };
    for (nice, policy) in [(1, 0), (0, 3), (0, 5)] {
        always(name, |s| schedule(s, 2, nice, policy));
        always(&[], |s| schedule(s, 0, nice, policy));
    }
    for (nice, policy) in [(0, 0), (-5, 0), (0, 1)] {
        always(&[], |s| schedule(s, 2, nice, policy));
    }
    for (file, default) in [("cpu.weight", 100), ("cpu.shares", 1024)] {
        let weight = |is| vec![group(None, Some(Weight { file, is, default }))];
        always(name, |s| s.guest().cpu_groups = weight(default - 1));
        always(&[], |s| s.guest().cpu_groups = weight(default));
    }
    let mut scene = Scene::new();
    scene.guest().cpu_groups = vec![CpuGroup { idle: true, ..group(None, None) }];
    schedule(&mut scene, 2, 5, 0);
    let finding = only(&scene);
    assert_eq!(finding.evidence, "vCPU 0 has nice 5, /sys/fs/cgroup/a b/cpu.idle is 1");
    assert_eq!(finding.mend, "renice -n 0 -p 110; echo 0 > '/sys/fs/cgroup/a b/cpu.idle'");
}
