// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cpusets of a process and of its threads: the CPUs and nodes that their cgroups allow.
//!
//! libvirt gives each vCPU, each I/O thread, and all other threads together (`emulator`) a cgroup of their
//! own within the guest's (`cgroup-v2.rst`, "Threads"), and each has the CPUs of its pin.

use crate::Host;
use crate::memory::text;
use crate::topology::NumberSet;
use std::collections::{BTreeMap, HashMap};
use std::path::{Component, Path, PathBuf};

/// A cpuset.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Cpuset {
    /// Folder of the cgroup that sets the limits, such as `/sys/fs/cgroup/machine.slice`.
    pub folder: PathBuf,
    /// Its CPUs.
    pub cpus: NumberSet,
    /// Its nodes.
    pub mems: NumberSet,
}

/// Files of the effective CPUs and nodes: cgroup 2, cgroup 1, and cgroup 1 before Linux 3.17.
const FILES: [(&str, &str); 3] = [
    ("cpuset.cpus.effective", "cpuset.mems.effective"),
    ("cpuset.effective_cpus", "cpuset.effective_mems"),
    ("cpuset.cpus", "cpuset.mems"),
];

impl Host {
    /// The cpuset of a process; `None` if the kernel has none, or the cgroup is not visible from here, as in
    /// a container.
    pub fn cpuset(&self, pid: u32) -> Option<Cpuset> {
        self.cpuset_of(&text(&self.proc.join(format!("{pid}/cgroup"))))
    }

    /// The cpusets of those of a process's threads whose cgroup is not the process's, by thread id.
    pub fn thread_cpusets(&self, pid: u32, threads: impl IntoIterator<Item = u32>) -> BTreeMap<u32, Cpuset> {
        let process = text(&self.proc.join(format!("{pid}/cgroup")));
        // Many threads share few cgroups.
        let mut known: HashMap<String, Option<Cpuset>> = HashMap::new();
        let mut found = BTreeMap::new();
        for thread in threads {
            let cgroups = text(&self.proc.join(format!("{pid}/task/{thread}/cgroup")));
            if cgroups.is_empty() || cgroups == process {
                continue;
            }
            let cpuset = known.entry(cgroups).or_insert_with_key(|cgroups| self.cpuset_of(cgroups));
            found.extend(cpuset.clone().map(|cpuset| (thread, cpuset)));
        }
        found
    }

    /// The cpuset that the text of a `cgroup` file means.
    fn cpuset_of(&self, cgroups: &str) -> Option<Cpuset> {
        let root = self.sys.join("fs/cgroup");
        // Version 1 first: where it has the controller, version 2 has not.
        let one = path_of(cgroups, |controllers| controllers.split(',').any(|c| c == "cpuset"));
        let two = path_of(cgroups, str::is_empty);
        let one = one.and_then(|path| nearest(&root.join("cpuset"), &path));
        one.or_else(|| {
            let two = two?;
            nearest(&root, &two).or_else(|| nearest(&root.join("unified"), &two))
        })
    }
}

/// The path of the cgroup with these controllers, in the text of `/proc/PID/cgroup`, if it is visible from
/// here.
fn path_of(cgroups: &str, meant: impl Fn(&str) -> bool) -> Option<PathBuf> {
    inside(line_of(cgroups, meant)?)
}

/// The path of the cgroup with these controllers, in the text of `/proc/PID/cgroup`.
pub(super) fn line_of(cgroups: &str, meant: impl Fn(&str) -> bool) -> Option<&str> {
    cgroups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        meant(controllers).then_some(path)
    })
}

/// The path, unless it is outside of the reader's own cgroup namespace: such paths begin with `/..`.
pub(super) fn inside(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let inside = path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    inside.then(|| path.to_owned())
}

/// The limits of the cgroup, or of the nearest one above that has the controller.
fn nearest(root: &Path, path: &Path) -> Option<Cpuset> {
    let below = path.strip_prefix("/").ok()?;
    below.ancestors().find_map(|below| {
        let folder = if below.as_os_str().is_empty() { root.to_owned() } else { root.join(below) };
        FILES.iter().find_map(|(cpus, mems)| {
            let read = |name| text(&folder.join(name)).parse::<NumberSet>().ok().filter(|s| !s.is_empty());
            Some(Cpuset { cpus: read(cpus)?, mems: read(mems)?, folder: folder.clone() })
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::tests::{host, put};

    #[test]
    fn limits_come_from_the_nearest_cgroup_with_the_controller() {
        let (_dir, host) = host();
        let cgroup = |text: &str| put(&host.proc.join("42/cgroup"), text.as_bytes());
        let file = |path: &str, text: &str| put(&host.sys.join("fs/cgroup").join(path), text.as_bytes());
        assert_eq!(host.cpuset(42), None);
        cgroup("0::/machine.slice/vm.scope\n");
        assert_eq!(host.cpuset(42), None);
        file("cpuset.cpus.effective", "0-7\n");
        file("cpuset.mems.effective", "0-1\n");
        assert_eq!(host.cpuset(42).unwrap().cpus.to_string(), "0-7");
        file("machine.slice/cpuset.cpus.effective", "4-7\n");
        file("machine.slice/cpuset.mems.effective", "1\n");
        let found = host.cpuset(42).unwrap();
        assert_eq!(found.folder, host.sys.join("fs/cgroup/machine.slice"));
        assert_eq!((found.cpus.to_string(), found.mems.to_string()), ("4-7".into(), "1".into()));
        cgroup("0::/../other\n");
        assert_eq!(host.cpuset(42), None);
        cgroup("3:cpu,cpuset:/a\n0::/\n");
        file("cpuset/a/cpuset.cpus", "1\n");
        file("cpuset/a/cpuset.mems", "0\n");
        assert_eq!(host.cpuset(42).unwrap().cpus.to_string(), "1");
    }

    #[test]
    fn threads_in_cgroups_of_their_own_have_their_limits() {
        let (_dir, host) = host();
        let cgroup = |path: &str, of: &str| {
            put(
                &host.proc.join(format!("42/{path}cgroup")),
                format!("0::/vm.scope/libvirt/{of}\n").as_bytes(),
            );
        };
        for (of, cpus) in [("emulator", "0-1"), ("vcpu0", "4"), ("vcpu1", "5")] {
            let folder = host.sys.join("fs/cgroup/vm.scope/libvirt").join(of);
            put(&folder.join("cpuset.cpus.effective"), cpus.as_bytes());
            put(&folder.join("cpuset.mems.effective"), b"0");
        }
        cgroup("", "emulator");
        for (thread, of) in [(42, "emulator"), (43, "vcpu0"), (44, "vcpu1"), (45, "vcpu1")] {
            cgroup(&format!("task/{thread}/"), of);
        }
        let found = host.thread_cpusets(42, 42..=46);
        let cpus: Vec<(u32, String)> = found.iter().map(|(t, c)| (*t, c.cpus.to_string())).collect();
        assert_eq!(cpus, [(43, "4".into()), (44, "5".into()), (45, "5".into())]);
        assert!(found[&43].folder.ends_with("libvirt/vcpu0"));
        assert_eq!(host.cpuset(42).unwrap().cpus.to_string(), "0-1");
    }
}
