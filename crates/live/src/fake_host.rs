// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A host made of files, whose VMs a test or a bench changes.

use bifold_host::{Host, Statistic, VmId};
use std::fs;
use std::path::Path;

/// A host with a KVM that can switch VMs.
pub struct FakeHost {
    dir: tempfile::TempDir,
}

fn put(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

impl FakeHost {
    pub fn new() -> FakeHost {
        FakeHost::under(&std::env::temp_dir())
    }

    /// A host whose files are in a new folder of this one.
    pub fn under(folder: &Path) -> FakeHost {
        let fake = FakeHost { dir: tempfile::tempdir_in(folder).unwrap() };
        let host = fake.host();
        put(&host.sys.join("module/kvm/parameters/paging_mode"), "nested\n");
        put(&host.sys.join("module/kvm_amd/parameters/npt"), "Y\n");
        fs::create_dir_all(host.debug.join("kvm")).unwrap();
        fs::create_dir_all(&host.proc).unwrap();
        fake
    }

    pub fn host(&self) -> Host {
        let at = |name: &str| self.dir.path().join(name);
        Host { sys: at("sys"), proc: at("proc"), debug: at("debug"), tracing: at("tracing") }
    }

    /// Makes a VM, or renames an existing one.
    pub fn vm(&self, id: VmId, name: &str) {
        let host = self.host();
        let process = host.proc.join(id.thread.to_string());
        put(&process.join("status"), &format!("Tgid:\t{}\n", id.thread));
        put(&process.join("cmdline"), &format!("qemu-system-x86_64\0-name\0{name}\0"));
        // The process started at tick 4711 (field 22).
        put(
            &process.join("stat"),
            &format!("{} (qemu) S {} 4711 0\n", id.thread, "0 ".repeat(18).trim_end()),
        );
        self.mode(id, "nested", 0);
        self.refusal(id, "none");
        self.vcpu(id, 0, 0, 0);
        self.count(id, Statistic::Exits, 0);
    }

    /// The VM's mode, and how often the VM was switched. The files are as KVM's: who writes a mode switches.
    pub fn mode(&self, id: VmId, mode: &str, switches: u64) {
        let dir = self.host().vm_dir(id);
        put(&dir.join("paging_mode"), &format!("{mode}\n"));
        let stats = format!("switches_to_shadow {switches}\nswitches_to_nested 0\n");
        put(&dir.join("paging_stats"), &stats);
    }

    /// What would refuse a switch of the VM: a line of KVM's.
    pub fn refusal(&self, id: VmId, line: &str) {
        put(&self.host().vm_dir(id).join("paging_refusal"), &format!("{line}\n"));
    }

    /// What KVM counted of stays that it ended: for the guest, and for memory.
    pub fn ended_early(&self, id: VmId, by_guest: u64, for_memory: u64) {
        let path = self.host().vm_dir(id).join("paging_stats");
        let stats = fs::read_to_string(&path).unwrap();
        let kept =
            stats.lines().filter(|l| !l.starts_with("switches_by_guest") && !l.starts_with("back_for"));
        let kept: String = kept.map(|l| format!("{l}\n")).collect();
        put(&path, &format!("{kept}switches_by_guest {by_guest}\nback_for_memory {for_memory}\n"));
    }

    /// Puts a VM with 1 GiB of memory into a cgroup of its own, with so many bytes left below its limit.
    pub fn room(&self, id: VmId, left: u64, met: u64) {
        const MAX: u64 = 2 << 30;
        let host = self.host();
        put(&host.proc.join("self/mounts"), "cgroup2 /cgroup cgroup2 rw 0 0\n");
        put(&host.proc.join(format!("{}/cgroup", id.thread)), &format!("0::/vm-{}\n", id.thread));
        put(
            &host.proc.join(format!("{}/maps", id.thread)),
            "7f0000000000-7f0040000000 rw-p 00000000 00:00 0\n",
        );
        let group = self.dir.path().join(format!("cgroup/vm-{}", id.thread));
        put(&group.join("memory.max"), &format!("{MAX}\n"));
        put(&group.join("memory.current"), &format!("{}\n", MAX - left));
        put(&group.join("memory.events"), &format!("low 0\nhigh 0\nmax {met}\noom 0\n"));
    }

    /// A vCPU and its times; its thread has the number of process and vCPU together.
    pub fn vcpu(&self, id: VmId, number: u32, ran_ns: u64, waited_ns: u64) {
        let host = self.host();
        let thread = id.thread + 1 + number;
        put(&host.vm_dir(id).join(format!("vcpu{number}/pid")), &format!("{thread}\n"));
        let times = host.proc.join(format!("{}/task/{thread}/schedstat", id.thread));
        put(&times, &format!("{ran_ns} {waited_ns} 1\n"));
    }

    /// Sets a number of KVM's statistics.
    pub fn count(&self, id: VmId, statistic: Statistic, value: u64) {
        put(&self.host().vm_dir(id).join(statistic.name()), &format!("{value}\n"));
    }

    /// Ends a VM.
    pub fn end(&self, id: VmId) {
        let host = self.host();
        fs::remove_dir_all(host.vm_dir(id)).unwrap();
        fs::remove_dir_all(host.proc.join(id.thread.to_string())).unwrap();
    }
}
