// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hosts made of files, for tests of what reads a host.

use bifold_host::Host;
use std::fs;

/// A host.
pub struct Tree(tempfile::TempDir);

impl Tree {
    /// One without KSM, guests or memory.
    pub fn new() -> Tree {
        Tree(tempfile::tempdir().unwrap())
    }

    pub fn host(&self) -> Host {
        let at = |d: &str| self.0.path().join(d);
        Host { sys: at("sys"), proc: at("proc"), debug: at("debug"), tracing: at("tracing") }
    }

    pub fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Files of KSM.
    pub fn ksm(&self, files: &[(&str, &str)]) {
        for (name, text) in files {
            self.write(&format!("sys/kernel/mm/ksm/{name}"), &format!("{text}\n"));
        }
    }

    /// Memory in kB, and percent of the last minute in which some task waited for it. Up since 1000 s.
    pub fn memory(&self, total: u64, available: u64, waiting: f64) {
        self.write("proc/meminfo", &format!("MemTotal: {total} kB\nMemAvailable: {available} kB\n"));
        let line = format!("avg10=0.00 avg60={waiting:.2} avg300=0.00 total=0");
        self.write("proc/pressure/memory", &format!("some {line}\nfull {line}\n"));
        self.write("proc/uptime", "1000.00 2000.00\n");
        self.write("proc/vmstat", "nr_free_pages 5\ncow_ksm 1234\n");
    }

    /// ksmd with so many ticks of CPU time.
    pub fn ksmd(&self, ticks: u64) {
        self.write("proc/40/comm", "ksmd\n");
        let stat = format!("40 (ksmd) S 2 0 0 0 -1 0 0 0 0 0 0 {ticks} 0 0 25 5 1 0 10 0 0\n");
        self.write("proc/40/stat", &stat);
        self.write("proc/40/cmdline", "");
    }

    pub fn nodes(&self, n: usize) {
        (0..n).for_each(|n| self.write(&format!("sys/devices/system/node/node{n}/meminfo"), ""));
    }

    /// KVM's files of a VM of this process: its mode, its figures of switches, and what would refuse a
    /// switch.
    pub fn paging(&self, pid: u32, mode: &str, refusal: &str) {
        let dir = format!("debug/kvm/{pid}-7");
        self.write(&format!("{dir}/paging_mode"), &format!("{mode}\n"));
        self.write(&format!("{dir}/paging_stats"), "switches_to_shadow 4\nswitches_to_nested 3\n");
        self.write(&format!("{dir}/paging_refusal"), &format!("{refusal}\n"));
    }

    /// A guest under QEMU.
    pub fn vm(&self, pid: u32, name: &str, uid: u32, ksm_stat: &str) {
        let quoted = name.replace(',', ",,");
        self.write(
            &format!("proc/{pid}/cmdline"),
            &format!("/usr/bin/qemu-system-x86_64\0-name\0{quoted}\0"),
        );
        self.write(&format!("proc/{pid}/comm"), "qemu-system-x86\n");
        let fields = (4..=22).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        self.write(&format!("proc/{pid}/stat"), &format!("{pid} (qemu) S {fields}\n"));
        self.write(
            &format!("proc/{pid}/status"),
            &format!("Uid:\t{uid}\t{uid}\t{uid}\t{uid}\nVmRSS:\t 524288 kB\n"),
        );
        self.write(&format!("proc/{pid}/ksm_stat"), ksm_stat);
    }
}
