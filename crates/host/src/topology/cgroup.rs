// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a cgroup may use: the controller cpuset of cgroup v1 and v2 (`admin-guide/cgroup-v1/cpusets.rst`,
//! `admin-guide/cgroup-v2.rst`), and whether the caller runs in a container.
//!
//! A group without the controller has what its nearest ancestor with the controller has. In a container whose
//! groups are mounted without a cgroup namespace, `/proc/self/cgroup` names groups that the container does
//! not see: the topmost that it sees is its own, and the nearest ancestor leads there.

use super::tree::Tree;
use super::{Allowed, NumberSet};
use crate::Host;
use std::path::{Component, Path, PathBuf};

/// Files with CPUs and nodes by the version of cgroups, those to prefer first. In version 1 the kernel itself
/// keeps a group's lists within those of its parent, unless the mount option `cpuset_v2_mode` gives them the
/// meaning of version 2. The old mount option `noprefix` takes the prefix away.
const V1: &[[&str; 2]] = &[["cpuset.cpus", "cpuset.mems"], ["cpus", "mems"]];
const V1_AS_V2: &[[&str; 2]] = &[["cpuset.effective_cpus", "cpuset.effective_mems"]];
const V2: &[[&str; 2]] = &[["cpuset.cpus.effective", "cpuset.mems.effective"]];

/// Where cgroups with the controller cpuset are mounted.
struct Mount {
    at: PathBuf,
    files: &'static [[&'static str; 2]],
    v2: bool,
}

impl Host {
    /// What a process may use by its cgroup: this process without a number. `None` if the kernel does not
    /// tell.
    pub fn allowed(&self, process: Option<u32>) -> Option<Allowed> {
        let process = process.map_or("self".to_owned(), |pid| pid.to_string());
        let proc = Tree::new(&self.proc);
        let mount = self.cpuset_mount()?;
        let group = group_of(&proc, &process, mount.v2)?;
        let container = if process == "self" { self.container() } else { None };
        Some(Allowed { container, ..mount.allowed(&group)? })
    }

    /// What processes of this cgroup may use. `None` if there is no such group, or the kernel does not tell.
    pub fn allowed_in(&self, group: &str) -> Option<Allowed> {
        let mount = self.cpuset_mount()?;
        mount.at.join(below(group)).is_dir().then(|| mount.allowed(group)).flatten()
    }

    /// The file system that has the controller cpuset, which is in one version of cgroups only.
    fn cpuset_mount(&self) -> Option<Mount> {
        let rows = mounts(self);
        let has_v1 = |kind: &str, options: &str| match kind {
            "cgroup" => options.split(',').any(|o| o == "cpuset"),
            kind => kind == "cpuset",
        };
        let v1 = rows.iter().find(|row| has_v1(&row.kind, &row.options));
        let v2 = rows.iter().find(|row| row.kind == "cgroup2");
        match (v1, v2) {
            (Some(row), _) => {
                let files = if row.options.split(',').any(|o| o == "cpuset_v2_mode") { V1_AS_V2 } else { V1 };
                Some(Mount { at: row.at.clone(), files, v2: false })
            }
            (None, Some(row)) => Some(Mount { at: row.at.clone(), files: V2, v2: true }),
            (None, None) => None,
        }
    }

    /// What procfs is mounted in.
    fn root(&self) -> PathBuf {
        self.proc.parent().unwrap_or(Path::new("/")).into()
    }

    /// The kind of the container that the caller runs in, from the files that container managers put there.
    fn container(&self) -> Option<String> {
        let root = Tree::new(&self.root());
        let named = root.text("run/systemd/container").filter(|t| !t.is_empty());
        let marked = |file: &str, kind: &str| root.path(file).exists().then(|| kind.to_owned());
        named
            .map(|n| n.chars().take(60).collect())
            .or_else(|| marked(".dockerenv", "docker"))
            .or_else(|| marked("run/.containerenv", "podman"))
    }
}

/// The cgroup of a process that the controller cpuset has it in.
fn group_of(proc: &Tree, process: &str, v2: bool) -> Option<String> {
    let groups = proc.text(&format!("{process}/cgroup")).unwrap_or_default();
    let of_line = |line: &str| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (controllers, path) = (parts.next()?, parts.next()?);
        let right = if v2 { controllers.is_empty() } else { controllers.split(',').any(|c| c == "cpuset") };
        right.then(|| path.to_owned())
    };
    let line = groups.lines().find_map(of_line);
    line.or_else(|| proc.text(&format!("{process}/cpuset"))).filter(|g| g.starts_with('/'))
}

/// A mounted file system.
pub(crate) struct MountRow {
    /// Where, as seen from here.
    pub at: PathBuf,
    pub kind: String,
    pub options: String,
}

/// The mounted file systems.
pub(crate) fn mounts(host: &Host) -> Vec<MountRow> {
    let proc = Tree::new(&host.proc);
    let text = proc.text("self/mounts").or_else(|| proc.text("mounts")).unwrap_or_default();
    let row = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let at = host.root().join(unescaped(words.next()?).trim_start_matches('/'));
        Some(MountRow { at, kind: words.next()?.into(), options: words.next()?.into() })
    };
    text.lines().filter_map(row).collect()
}

/// The group's path below the mount point. A `..` stands for groups outside of the cgroup namespace.
pub(crate) fn below(group: &str) -> PathBuf {
    Path::new(group).components().filter(|c| matches!(c, Component::Normal(_))).collect()
}

impl Mount {
    /// What a group, or its nearest ancestor that tells, may use.
    fn allowed(&self, group: &str) -> Option<Allowed> {
        below(group).ancestors().find_map(|path| {
            let tree = Tree::new(&self.at.join(path));
            let sets = |[cpus, nodes]: &[&str; 2]| {
                let (cpus, nodes) = (tree.list(cpus)?, tree.list(nodes)?);
                // A group of v1 whose lists were never set allows nothing, and has no process.
                (!cpus.is_empty() || !nodes.is_empty()).then_some((cpus, nodes))
            };
            let (cpus, nodes): (NumberSet, NumberSet) = self.files.iter().find_map(sets)?;
            Some(Allowed { group: format!("/{}", path.display()), cpus, nodes, container: None })
        })
    }
}

/// A mount point of /proc/mounts, which has octal numbers for white space and backslashes.
fn unescaped(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        out += &rest[..at];
        let code = rest.get(at + 1..at + 4).and_then(|d| u8::from_str_radix(d, 8).ok());
        out.push(code.map_or('\\', char::from));
        rest = &rest[at + if code.is_some() { 4 } else { 1 }..];
    }
    out + rest
}
