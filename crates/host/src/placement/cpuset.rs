// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cpuset of a process: the CPUs and nodes that its cgroup allows.

use crate::Host;
use crate::memory::text;
use crate::topology::NumberSet;
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
    /// The cpuset of a process; `None` if the kernel has none, or the cgroup is not visible from here, as in a container.
    pub fn cpuset(&self, pid: u32) -> Option<Cpuset> {
        let cgroups = text(&self.proc.join(format!("{pid}/cgroup")));
        let root = self.sys.join("fs/cgroup");
        // Version 1 first: where it has the controller, version 2 has not.
        let one = path_of(&cgroups, |controllers| controllers.split(',').any(|c| c == "cpuset"));
        let two = path_of(&cgroups, str::is_empty);
        let one = one.and_then(|path| nearest(&root.join("cpuset"), &path));
        one.or_else(|| {
            let two = two?;
            nearest(&root, &two).or_else(|| nearest(&root.join("unified"), &two))
        })
    }
}

/// The path of the cgroup whose controllers are meant, in the text of `/proc/PID/cgroup`.
fn path_of(cgroups: &str, meant: impl Fn(&str) -> bool) -> Option<PathBuf> {
    let path = cgroups.lines().find_map(|line| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        meant(controllers).then(|| PathBuf::from(path))
    })?;
    // A path outside the reader's own cgroup namespace begins with /.. .
    let inside = path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)));
    inside.then_some(path)
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
}
