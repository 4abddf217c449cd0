// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands between a measurement and the machine: other load, CPU quotas, containers, huge pages switched off.

use bifold_host::{Host, Mapping};
use std::path::Path;

/// What is there that a user should know, each a sentence.
pub fn warnings(host: &Host, cpus: usize) -> Vec<String> {
    let mut out = Vec::new();
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let load = text(&format!("{}/loadavg", host.proc.display()));
    if let Some(load) = load.split(' ').next().and_then(|l| l.parse::<f64>().ok()) {
        if load > cpus as f64 * 0.5 {
            out.push(format!(
                "the machine is busy: load {load:.1} on {cpus} CPUs; caches and memory are shared with it"
            ));
        }
    }
    let root = Path::new("/");
    let groups = text(&format!("{}/self/cgroup", host.proc.display()));
    if let Some(quota) = quota(&groups, &host.sys.join("fs/cgroup")) {
        out.push(format!(
            "a cgroup limits this process to {quota:.2} CPUs: the kernel stops it between measurements"
        ));
    }
    if ["/.dockerenv", "/run/.containerenv"].iter().any(|f| root.join(f).exists()) {
        out.push(
            "this looks like a container: costs of system calls hold what its filter of system calls adds"
                .into(),
        );
    }
    let huge = text(&format!("{}/kernel/mm/transparent_hugepage/enabled", host.sys.display()));
    if huge.contains("[never]") || huge.is_empty() {
        out.push("transparent huge pages are off (/sys/kernel/mm/transparent_hugepage/enabled)".into());
    }
    out
}

/// The CPUs that a cgroup's quota is worth, the smallest of the groups above.
fn quota(groups: &str, mount: &Path) -> Option<f64> {
    let read = |path: std::path::PathBuf| std::fs::read_to_string(path).ok();
    let cpus = |quota: &str, period: &str| {
        let (quota, period) = (quota.trim().parse::<f64>().ok()?, period.trim().parse::<f64>().ok()?);
        (quota > 0.0 && period > 0.0).then_some(quota / period)
    };
    let mut least: Option<f64> = None;
    for line in groups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(group)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let version_1 = controllers.split(',').any(|c| c == "cpu");
        if !version_1 && !controllers.is_empty() {
            continue;
        }
        let top = if version_1 { mount.join("cpu") } else { mount.to_path_buf() };
        let group = Path::new(group.trim_start_matches('/'));
        for dir in group.ancestors().map(|g| top.join(g)) {
            let found = if version_1 {
                let of = |name: &str| read(dir.join(name));
                of("cpu.cfs_quota_us").zip(of("cpu.cfs_period_us")).and_then(|(q, p)| cpus(&q, &p))
            } else {
                read(dir.join("cpu.max")).and_then(|m| m.split_once(' ').and_then(|(q, p)| cpus(q, p)))
            };
            least = [least, found].into_iter().flatten().reduce(f64::min);
        }
    }
    least
}

/// The part of a range that is in huge pages (smaps, `AnonHugePages`).
pub fn huge_part(host: &Host, start: u64, len: u64) -> f64 {
    // The kernel joins neighbouring mappings of one kind, so a mapping may hold more than the range.
    let path = host.proc.join("self/smaps");
    let smaps = bifold_host::read_up_to(&path, 64 << 20).unwrap_or_default();
    part(&Mapping::parse(&String::from_utf8_lossy(&smaps)), start, len)
}

fn part(mappings: &[Mapping], start: u64, len: u64) -> f64 {
    let inside = |m: &&Mapping| m.start < start + len && m.end > start;
    let (mut huge, mut all) = (0, 0);
    for m in mappings.iter().filter(inside) {
        huge += m.huge;
        all += m.resident;
    }
    if all == 0 { 0.0 } else { huge as f64 / all as f64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_that_of_the_narrowest_group_in_both_versions() {
        let dir = std::env::temp_dir().join(format!("bifold-cgroup-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = dir.join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("a/b/cpu.max", "max 100000\n");
        put("a/cpu.max", "150000 100000\n");
        assert_eq!(quota("0::/a/b\n", &dir), Some(1.5));
        assert_eq!(quota("0::/c\n", &dir), None);
        put("cpu/x/cpu.cfs_quota_us", "50000\n");
        put("cpu/x/cpu.cfs_period_us", "100000\n");
        assert_eq!(quota("3:cpu,cpuacct:/x\n", &dir), Some(0.5));
        put("cpu/x/cpu.cfs_quota_us", "-1\n");
        assert_eq!(quota("3:cpu,cpuacct:/x\n0::/\n", &dir), None);
        assert_eq!(quota("nonsense\n7:memory:/x\n", &dir), None);
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn the_huge_part_is_of_what_is_resident_in_the_range() {
        let smaps = "7f0000000000-7f0000400000 rw-p 0 00:00 0\nRss: 4096 kB\nAnonHugePages: 2048 kB\n\
                     7f0000800000-7f0000a00000 rw-p 0 00:00 0\nRss: 2048 kB\nAnonHugePages: 2048 kB\n";
        let m = Mapping::parse(smaps);
        assert_eq!(part(&m, 0x7f00_0000_0000, 4 << 20), 0.5);
        assert_eq!(part(&m, 0x7f00_0080_0000, 2 << 20), 1.0);
        assert_eq!(part(&m, 0, 4096), 0.0);
    }
}
