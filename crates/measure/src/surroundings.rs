// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What stands between a measurement and the machine: other load, CPU quotas, containers, huge pages switched
//! off.

use crate::bench::Calm;
use bifold_host::{Host, Mapping};
use std::path::Path;

/// Load average beyond which a machine is busy, per CPU.
const BUSY_LOAD: f64 = 0.5;

/// The load of the last minute, if it makes the machine busy.
pub fn busy_load(host: &Host, cpus: usize) -> Option<f64> {
    let text = std::fs::read_to_string(host.proc.join("loadavg")).ok()?;
    text.split(' ').next()?.parse().ok().filter(|load| *load > cpus as f64 * BUSY_LOAD)
}

/// What a user of a busy machine should know before a measurement; none if the machine is not busy now.
pub fn load_note() -> Option<String> {
    let cpus = crate::os::allowed_cpus().len();
    let load = busy_load(&Host::live(), cpus)?;
    Some(format!(
        "the machine is busy (load {load:.1} on {cpus} CPUs): intervals widen, measurements take more rounds \
         within --limit, and values whose intervals stay too wide are refused"
    ))
}

/// How busy the machine was during a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Busy {
    /// Load at the beginning, if high.
    pub load: Option<f64>,
    /// CPUs that the process may use.
    pub cpus: usize,
    /// The CPU measured on.
    pub cpu: usize,
    /// Part of the time in which the hypervisor ran others on that CPU.
    pub steal: f64,
    /// Usual and most rounds.
    pub rounds: [usize; 2],
}

impl Busy {
    /// What a user should know of it; none if the machine was calm.
    pub fn sentence(&self, calm: &Calm) -> Option<String> {
        let mut of = Vec::new();
        of.extend(self.load.map(|load| format!("load {load:.1} on {} CPUs", self.cpus)));
        if self.steal > 0.01 {
            let (percent, cpu) = (self.steal * 100.0, self.cpu);
            of.push(format!("the hypervisor stole {percent:.0} % of CPU {cpu}'s time"));
        }
        let Calm { pieces, repeated, given_up } = *calm;
        if repeated * 10 > pieces {
            of.push(format!(
                "of {pieces} pieces of work, {repeated} were repeated and {given_up} stayed disturbed"
            ));
        }
        let [usual, most] = self.rounds;
        let more = if most > usual {
            format!("; wide intervals took up to {most} rounds instead of {usual}")
        } else {
            String::new()
        };
        (!of.is_empty()).then(|| {
            let of = of.join(", ");
            format!("the machine was busy ({of}): caches and memory are shared with others, and intervals are wider{more}")
        })
    }
}

/// What is there that a user should know, each a sentence.
pub fn warnings(host: &Host) -> Vec<String> {
    let mut out = Vec::new();
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
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

    #[test]
    fn a_busy_machine_is_described_by_load_steal_and_repeats() {
        let calm = Calm { pieces: 100, repeated: 3, given_up: 0 };
        let idle = Busy { load: None, cpus: 2, cpu: 1, steal: 0.004, rounds: [15, 15] };
        assert_eq!(idle.sentence(&calm), None);
        let busy = Busy { load: Some(6.0), steal: 0.12, rounds: [15, 44], ..idle };
        let text = busy.sentence(&Calm { repeated: 40, given_up: 2, ..calm }).unwrap();
        for part in [
            "load 6.0 on 2 CPUs",
            "stole 12 % of CPU 1's time",
            "of 100 pieces of work, 40 were repeated and 2 stayed disturbed",
            "up to 44 rounds instead of 15",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
}
