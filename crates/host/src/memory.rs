// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads facts of the host's memory from procfs and sysfs: amounts, events, pressure, NUMA nodes.
//!
//! Each of these files is parsed only here. A figure that the kernel lacks is `None`.

use crate::{Host, HostError, read};
use std::path::Path;
use std::str::FromStr;

/// Amounts of memory in bytes, from `/proc/meminfo`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MemInfo {
    /// All memory that the kernel manages (`MemTotal`).
    pub total: Option<u64>,
    /// Memory that programs can take without swapping (`MemAvailable`).
    pub available: Option<u64>,
}

impl MemInfo {
    /// Parses `/proc/meminfo`.
    pub fn parse(text: &str) -> MemInfo {
        MemInfo { total: kib(text, "MemTotal"), available: kib(text, "MemAvailable") }
    }
}

/// Events of the kernel's memory management since boot, from `/proc/vmstat`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct VmStat(String);

impl VmStat {
    /// Takes the text of `/proc/vmstat`.
    pub fn parse(text: &str) -> VmStat {
        VmStat(text.into())
    }

    /// The count with this name, if the kernel has it.
    pub fn get(&self, name: &str) -> Option<u64> {
        self.0.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
    }
}

/// Memory pressure from `/proc/pressure/memory`: percent of time in which tasks waited for memory.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// Percent of the last minute in which some task waited.
    pub some_60: f64,
}

/// A figure of the line about some task in a file of PSI, by a name such as `avg60=`.
pub fn psi<T: FromStr>(text: &str, name: &str) -> Option<T> {
    let line = text.lines().find_map(|l| l.strip_prefix("some "))?;
    line.split_whitespace().find_map(|w| w.strip_prefix(name)?.parse().ok())
}

impl Host {
    /// Amounts of the host's memory.
    ///
    /// # Errors
    /// If `/proc/meminfo` cannot be read.
    pub fn memory(&self) -> Result<MemInfo, HostError> {
        let path = self.proc.join("meminfo");
        let bytes = read(&path).map_err(|e| HostError::io(&path, e))?;
        Ok(MemInfo::parse(&String::from_utf8_lossy(&bytes)))
    }

    /// Counts of the host's memory management. Without `/proc/vmstat` every count is `None`.
    pub fn vmstat(&self) -> VmStat {
        VmStat(text(&self.proc.join("vmstat")))
    }

    /// The host's memory pressure, if the kernel has PSI.
    pub fn pressure(&self) -> Option<Pressure> {
        psi(&text(&self.proc.join("pressure/memory")), "avg60=").map(|some_60| Pressure { some_60 })
    }

    /// Number of NUMA nodes; 1 if sysfs has no nodes.
    pub fn numa_nodes(&self) -> usize {
        let Ok(entries) = std::fs::read_dir(self.sys.join("devices/system/node")) else { return 1 };
        let is_node = |n: &str| n.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
        entries.flatten().filter(|e| e.file_name().to_str().is_some_and(is_node)).count().max(1)
    }

    /// Processors kept for single tasks (`isolcpus`, `nohz_full`), as the kernel lists them.
    pub fn isolated_cpus(&self) -> Option<String> {
        let cpus = ["isolated", "nohz_full"].map(|f| text(&self.sys.join("devices/system/cpu").join(f)));
        cpus.iter().map(|t| t.trim()).find(|t| !t.is_empty() && *t != "(null)").map(String::from)
    }

    /// Seconds since boot.
    pub fn uptime_s(&self) -> Option<f64> {
        text(&self.proc.join("uptime")).split(' ').next()?.parse().ok()
    }

    /// The release of the host's kernel; empty if unknown.
    pub fn kernel_release(&self) -> String {
        text(&self.proc.join("sys/kernel/osrelease")).trim().to_owned()
    }
}

/// The text of a small file; empty if it cannot be read.
pub(crate) fn text(path: &Path) -> String {
    String::from_utf8_lossy(&read(path).unwrap_or_default()).into_owned()
}

/// The amount of a line `NAME: N kB`, in bytes.
pub(crate) fn kib(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    rest.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_whole_name() {
        let stat = VmStat::parse("cow_ksm_other 3\ncow_ksm 17\n");
        assert_eq!((stat.get("cow_ksm"), stat.get("ksm_swpin_copy")), (Some(17), None));
        let info = MemInfo::parse("MemTotal: 4 kB\nMemAvailableX: 1 kB\nMemAvailable:    2048 kB\n");
        assert_eq!((info.total, info.available), (Some(4096), Some(2 << 20)));
        assert_eq!(MemInfo::parse("MemTotal: 4\nMemAvailable: much kB\n"), MemInfo::default());
        assert_eq!(MemInfo::parse("MemTotal: 18446744073709551615 kB\n").total, None, "too many bytes");
    }

    #[test]
    fn pressure_is_that_of_some_task() {
        let line = "avg10=9.00 avg60=1.50 avg300=0.00 total=7";
        let both = format!("some {line}\nfull {}\n", line.replace("1.50", "0.25"));
        assert_eq!((psi(&both, "avg60="), psi(&both, "total=")), (Some(1.5), Some(7)));
        assert_eq!(psi::<f64>(&format!("full {line}\nsome total=7\n"), "avg60="), None);
    }

    #[test]
    fn facts_come_from_their_files_and_are_absent_without() {
        let (_dir, host) = crate::tests::host();
        assert_eq!((host.numa_nodes(), host.isolated_cpus(), host.uptime_s()), (1, None, None));
        assert_eq!(
            (host.kernel_release(), host.vmstat(), host.pressure()),
            ("".into(), VmStat::default(), None)
        );
        let error = host.memory().unwrap_err();
        assert!(error.to_string().starts_with("cannot read ") && error.to_string().ends_with("proc/meminfo"));
        let put = |path: std::path::PathBuf, text: &str| {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        for node in ["node0", "node1", "nodes", "has_cpu"] {
            put(host.sys.join("devices/system/node").join(node).join("x"), "");
        }
        put(host.sys.join("devices/system/cpu/isolated"), "(null)\n");
        put(host.sys.join("devices/system/cpu/nohz_full"), "2-3\n");
        put(host.proc.join("uptime"), "1000.25 2000.00\n");
        put(host.proc.join("sys/kernel/osrelease"), "6.12.1\n");
        put(host.proc.join("meminfo"), "MemTotal: 1 kB\n");
        assert_eq!((host.numa_nodes(), host.isolated_cpus()), (2, Some("2-3".into())));
        assert_eq!((host.uptime_s(), &host.kernel_release()[..]), (Some(1000.25), "6.12.1"));
        assert_eq!(host.memory().unwrap(), MemInfo { total: Some(1024), available: None });
    }
}
