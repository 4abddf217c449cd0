// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What cgroups allow.

use super::*;

const V1: &str = "cgroup /sys/fs/cgroup/cpu\\040set cgroup rw,cpuset 0 0";
const V2: &str = "cgroup2 /sys/fs/cgroup cgroup2 rw,nsdelegate 0 0";

fn machine(mounts: &str, groups: &str) -> Machine {
    let m = Machine::with_cpus("0-7");
    m.put("proc/self/mounts", mounts);
    m.put("proc/self/cgroup", groups);
    m
}

fn allowed(group: &str, cpus: &str, nodes: &str) -> Option<Allowed> {
    Some(Allowed { group: group.into(), cpus: set(cpus), nodes: set(nodes), container: None })
}

#[test]
fn version_1_is_asked_if_it_has_the_controller() {
    let m = machine(&format!("{V2}\n{V1}"), "3:cpu,cpuset:/a/b\n0::/other");
    let dir = "sys/fs/cgroup/cpu set/a/b";
    m.put(&format!("{dir}/cpuset.cpus"), "2-3");
    m.put(&format!("{dir}/cpuset.mems"), "1");
    assert_eq!(m.read().allowed, allowed("/a/b", "2-3", "1"));
    let of_v2 = m.host();
    m.put("proc/self/mounts", V1.replace("rw,", "rw,cpuset_v2_mode,"));
    m.put(&format!("{dir}/cpuset.effective_cpus"), "3");
    m.put(&format!("{dir}/cpuset.effective_mems"), "0");
    assert_eq!(of_v2.allowed(None), allowed("/a/b", "3", "0"));
}

#[test]
fn a_group_without_the_controller_has_what_the_nearest_one_above_has() {
    let m = machine(V2, "0::/machine.slice/web/libvirt");
    m.put("sys/fs/cgroup/machine.slice/cpuset.cpus.effective", "4-7");
    m.put("sys/fs/cgroup/machine.slice/cpuset.mems.effective", "0-1");
    m.put("sys/fs/cgroup/machine.slice/web/libvirt/cgroup.procs", "");
    let expected = allowed("/machine.slice", "4-7", "0-1");
    assert_eq!(
        (m.host().allowed(None), m.host().allowed_in("/machine.slice/web")),
        (expected.clone(), expected)
    );
    assert_eq!(m.host().allowed_in("/machine.slice/nothing"), None);
    m.put("proc/77/cgroup", "0::/");
    assert_eq!(m.host().allowed(Some(77)), None);
    assert_eq!(m.host().allowed(Some(78)), None);
}

#[test]
fn a_container_is_named_and_its_own_group_is_found() {
    // Without a cgroup namespace, the path is that of the host.
    let m = machine(V2, "0::/docker/1234");
    m.put("sys/fs/cgroup/cpuset.cpus.effective", "1");
    m.put("sys/fs/cgroup/cpuset.mems.effective", "0");
    m.put(".dockerenv", "");
    let container =
        |kind: &str| Some(Allowed { container: Some(kind.into()), ..allowed("/", "1", "0").unwrap() });
    assert_eq!(m.host().allowed(None), container("docker"));
    m.put("run/systemd/container", "lxc");
    m.put("proc/self/cgroup", "0::/../other");
    assert_eq!(m.host().allowed(None), container("lxc"));
}

#[test]
fn nothing_is_known_without_files() {
    for (mounts, groups) in
        [("", "0::/"), (V1, ""), (V1, "3:cpuset:relative"), ("x", "x"), ("cpuset", "0::/a")]
    {
        assert_eq!(machine(mounts, groups).read().allowed, None, "{mounts} {groups}");
    }
}
