// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the cgroups of threads, and all cgroups above them, say about CPU time: the controller cpu of cgroup
//! v2 (`admin-guide/cgroup-v2.rst`) and v1 (`scheduler/sched-bwc.rst`, `scheduler/sched-design-CFS.rst`).
//!
//! A quota or weight of any cgroup on the way to the root holds for all threads below.

use super::cpuset::{inside, line_of};
use crate::{Host, read};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};

/// Most threads whose cgroups are read.
const MOST_THREADS: usize = 1 << 16;

/// A cgroup that has the controller cpu.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuGroup {
    /// Its folder, such as `/sys/fs/cgroup/machine.slice`.
    pub folder: PathBuf,
    /// The quota; `None` without one.
    pub quota: Option<Quota>,
    /// Its share of CPU time beside its siblings.
    pub weight: Option<Weight>,
    /// Whether its threads run only when no other thread wants the CPU (`cpu.idle`).
    pub idle: bool,
}

/// CPU time that a cgroup may use in each period.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Quota {
    /// Whether the file is `cpu.max` of cgroup v2, else `cpu.cfs_quota_us` of v1.
    pub v2: bool,
    /// The quota in microseconds.
    pub quota_us: u64,
    /// The period in microseconds.
    pub period_us: u64,
    /// How many periods ended with all time used up; `None` if the kernel does not tell.
    pub throttled: Option<u64>,
}

/// A weight, in the unit of its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight {
    /// The file: `cpu.weight`, or `cpu.shares` of cgroup v1.
    pub file: &'static str,
    /// The weight.
    pub is: u64,
    /// The kernel's default weight of a cgroup.
    pub default: u64,
}

/// The cgroups of some threads.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CpuGroups {
    /// Each cgroup once, by folder.
    pub groups: Vec<CpuGroup>,
    /// What could not be read, and why.
    pub unread: Vec<String>,
}

impl Host {
    /// The cgroups of a process's threads and all cgroups above them. Threads that have ended are left out.
    pub fn cpu_groups(&self, pid: u32, threads: impl IntoIterator<Item = u32>) -> CpuGroups {
        let mut unread = BTreeSet::new();
        let mut texts = BTreeSet::new();
        for thread in threads.into_iter().take(MOST_THREADS) {
            let path = self.proc.join(format!("{pid}/task/{thread}/cgroup"));
            // Many threads share few cgroups.
            match read(&path) {
                Ok(text) => _ = texts.insert(String::from_utf8_lossy(&text).into_owned()),
                Err(e) if is_gone(&e) => {}
                Err(e) => _ = unread.insert(format!("{}: {e}", path.display())),
            }
        }
        let mut groups = BTreeMap::new();
        for text in texts {
            let Some((root, path)) = self.cpu_controller(&text) else { continue };
            let Some(path) = inside(path) else {
                unread.insert(format!("cgroup {path} is outside of this container"));
                continue;
            };
            let below = path.strip_prefix("/").unwrap_or(&path);
            if !root.join(below).is_dir() {
                unread.insert(format!("cgroup {} is not visible in {}", path.display(), root.display()));
            }
            for below in below.ancestors() {
                // Without a slash behind the root.
                let folder = if below.as_os_str().is_empty() { root.clone() } else { root.join(below) };
                if !groups.contains_key(&folder) {
                    groups.insert(folder.clone(), group(folder, &mut unread));
                }
            }
        }
        CpuGroups { groups: groups.into_values().collect(), unread: unread.into_iter().collect() }
    }

    /// Where the controller cpu is mounted, and the cgroup's path there, by the text of a `cgroup` file.
    fn cpu_controller<'a>(&self, cgroups: &'a str) -> Option<(PathBuf, &'a str)> {
        let root = self.sys.join("fs/cgroup");
        // Version 1 first: where it has the controller, version 2 has not.
        if let Some(path) = line_of(cgroups, |controllers| controllers.split(',').any(|c| c == "cpu")) {
            let mounts = ["cpu", "cpu,cpuacct"].map(|name| root.join(name));
            return Some((mounts.into_iter().find(|m| m.is_dir())?, path));
        }
        let path = line_of(cgroups, str::is_empty)?;
        let unified = root.join("unified");
        Some((if unified.is_dir() { unified } else { root }, path))
    }
}

/// Whether the error means that the thread or cgroup has ended, or that the kernel has no such file.
fn is_gone(error: &io::Error) -> bool {
    // ESRCH of a thread, ENODEV of a cgroup that was removed while its file was open.
    let code = error.raw_os_error().and_then(|code| u32::try_from(code).ok());
    error.kind() == io::ErrorKind::NotFound || matches!(code, Some(3 | 19))
}

fn group(folder: PathBuf, unread: &mut BTreeSet<String>) -> CpuGroup {
    let mut number = |name: &str| value(&folder, name, unread, |text| text.parse::<i64>().ok());
    let positive = |n: Option<i64>| n.and_then(|n| u64::try_from(n).ok());
    let v1 = (positive(number("cpu.cfs_quota_us")), positive(number("cpu.cfs_period_us")));
    let weight = |file, is: Option<i64>, default| Some(Weight { file, is: positive(is)?, default });
    let weight = weight("cpu.weight", number("cpu.weight"), 100)
        .or_else(|| weight("cpu.shares", number("cpu.shares"), 1024));
    let idle = number("cpu.idle").is_some_and(|n| n > 0);
    let v2 = value(&folder, "cpu.max", unread, |text| {
        let (quota, period) = text.split_once(' ')?;
        let quota = if quota == "max" { None } else { Some(quota.parse().ok()?) };
        Some((quota, period.parse().ok()?))
    });
    let quota = |v2, quota_us, period_us| Quota { v2, quota_us, period_us, throttled: throttled(&folder) };
    let quota = match (v2, v1) {
        (Some((Some(quota_us), period_us)), _) => Some(quota(true, quota_us, period_us)),
        (None, (Some(quota_us), Some(period_us))) => Some(quota(false, quota_us, period_us)),
        _ => None,
    };
    CpuGroup { quota: quota.filter(|q| q.period_us > 0), weight, idle, folder }
}

/// The value of a file; `None` if the cgroup has no such file.
fn value<T>(
    folder: &Path,
    name: &str,
    unread: &mut BTreeSet<String>,
    parse: impl Fn(&str) -> Option<T>,
) -> Option<T> {
    let path = folder.join(name);
    let text = match read(&path) {
        Ok(text) => text,
        Err(e) => {
            if !is_gone(&e) {
                unread.insert(format!("{}: {e}", path.display()));
            }
            return None;
        }
    };
    let value = parse(String::from_utf8_lossy(&text).trim());
    if value.is_none() {
        unread.insert(format!("{}: {}", path.display(), crate::one_line(&text)));
    }
    value
}

fn throttled(folder: &Path) -> Option<u64> {
    let text = read(&folder.join("cpu.stat")).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    text.lines().find_map(|l| l.strip_prefix("nr_throttled "))?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{host, put};

    fn cgroup(host: &Host, thread: u32, text: &str) {
        put(&host.proc.join(format!("42/task/{thread}/cgroup")), text.as_bytes());
    }

    fn file(host: &Host, path: &str, text: &str) {
        put(&host.sys.join("fs/cgroup").join(path), text.as_bytes());
    }

    #[test]
    fn quotas_and_weights_come_from_each_cgroup_up_to_the_root() {
        let (_dir, host) = host();
        assert_eq!(host.cpu_groups(42, [42]), CpuGroups::default(), "a kernel without cgroups");
        for thread in [42, 43] {
            cgroup(&host, thread, "0::/a.slice/vm.scope\n");
        }
        file(&host, "a.slice/cpu.max", "50000 100000\n");
        file(&host, "a.slice/cpu.stat", "usage_usec 7\nnr_periods 9\nnr_throttled 4\n");
        file(&host, "a.slice/cpu.weight", "100\n");
        file(&host, "a.slice/vm.scope/cpu.max", "max 100000\n");
        file(&host, "a.slice/vm.scope/cpu.weight", "20\n");
        file(&host, "a.slice/vm.scope/cpu.idle", "1\n");
        let found = host.cpu_groups(42, 42..=44);
        assert_eq!(found.unread, [] as [&str; 0]);
        let [root, slice, scope] = &found.groups[..] else { panic!("{found:?}") };
        assert_eq!((root.quota, root.weight, root.idle), (None, None, false));
        let quota = Quota { v2: true, quota_us: 50_000, period_us: 100_000, throttled: Some(4) };
        assert_eq!((slice.quota, scope.quota), (Some(quota), None));
        assert_eq!(scope.weight, Some(Weight { file: "cpu.weight", is: 20, default: 100 }));
        assert!(scope.idle && scope.folder.ends_with("a.slice/vm.scope"));
    }

    #[test]
    fn version_1_has_files_of_its_own() {
        let (_dir, host) = host();
        cgroup(&host, 42, "4:cpuset:/\n3:cpu,cpuacct:/vm\n0::/\n");
        file(&host, "cpu,cpuacct/vm/cpu.cfs_quota_us", "25000\n");
        file(&host, "cpu,cpuacct/vm/cpu.cfs_period_us", "50000\n");
        file(&host, "cpu,cpuacct/vm/cpu.shares", "2\n");
        file(&host, "cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
        file(&host, "cpu,cpuacct/cpu.cfs_period_us", "100000\n");
        let found = host.cpu_groups(42, [42]);
        let [root, vm] = &found.groups[..] else { panic!("{found:?}") };
        assert_eq!(root.quota, None);
        assert_eq!(vm.quota, Some(Quota { v2: false, quota_us: 25_000, period_us: 50_000, throttled: None }));
        assert_eq!(vm.weight, Some(Weight { file: "cpu.shares", is: 2, default: 1024 }));
    }

    #[test]
    fn what_cannot_be_read_is_told() {
        let (_dir, host) = host();
        cgroup(&host, 42, "0::/../other\n");
        cgroup(&host, 43, "0::/gone\n");
        cgroup(&host, 44, "0::/odd\n");
        file(&host, "odd/cpu.max", "a\u{1b}b\n");
        // A folder in place of the file: an error that is not "no such file".
        std::fs::create_dir_all(host.proc.join("42/task/45/cgroup")).unwrap();
        let unread = host.cpu_groups(42, 42..=45).unread;
        let told = |text: &str| assert!(unread.iter().any(|u| u.contains(text)), "{text}: {unread:?}");
        told("cgroup /../other is outside");
        told("cgroup /gone is not visible");
        told("odd/cpu.max: `a\\u{1b}b`");
        told("task/45/cgroup: ");
        assert_eq!(unread.len(), 4);
    }
}
