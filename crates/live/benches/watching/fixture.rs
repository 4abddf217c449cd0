// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A host with many VMs whose files have the sizes of real ones. KVM's files are on a tmpfs. The threads of
//! vCPUs are this process's own, so that their times and perf events are the kernel's.

use crate::fake_host::FakeHost;
use bifold_host::{Host, Statistic, VmId};
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::mpsc::channel;

/// Mappings of a QEMU process with a few virtio devices.
const MAPPINGS: u64 = 450;

/// Threads that do nothing, which last as long as this process.
pub struct Threads(Vec<u32>);

impl Threads {
    pub fn start(n: usize) -> Threads {
        let (send, ids) = channel();
        for _ in 0..n {
            let send = send.clone();
            let sleep = move || {
                send.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).expect("somebody listens");
                loop {
                    std::thread::park();
                }
            };
            std::thread::Builder::new().stack_size(64 << 10).spawn(sleep).expect("a thread can be started");
        }
        Threads(ids.iter().take(n).collect())
    }

    pub fn first(&self) -> u32 {
        self.0[0]
    }
}

/// A host with VMs.
pub struct Fleet<'a> {
    fake: FakeHost,
    threads: &'a Threads,
    vcpus: usize,
    /// The VMs, and the place of each one's first thread.
    vms: Vec<(VmId, usize)>,
    next: u32,
}

impl<'a> Fleet<'a> {
    /// As many VMs of so many vCPUs as there are threads for.
    pub fn new(threads: &'a Threads, vcpus: usize) -> Fleet<'a> {
        // The tmpfs that every Linux system has.
        let fake = FakeHost::under(Path::new("/dev/shm"));
        let mut fleet = Fleet { fake, threads, vcpus, vms: Vec::new(), next: 10_000 };
        for n in 0..threads.0.len() / vcpus {
            fleet.begin(n * vcpus);
        }
        fleet
    }

    pub fn host(&self) -> Host {
        self.fake.host()
    }

    pub fn len(&self) -> usize {
        self.vms.len()
    }

    /// A file of KVM's statistics of some VM.
    pub fn a_statistic(&self) -> std::path::PathBuf {
        self.host().vm_dir(self.vms[0].0).join(Statistic::Exits.name())
    }

    /// Ends the oldest VM, and begins another.
    pub fn replace_one(&mut self) {
        let (id, first) = self.vms.remove(0);
        self.fake.end(id);
        self.begin(first);
    }

    fn begin(&mut self, first: usize) {
        let id = VmId { thread: self.next, fd: 12 };
        self.next += 1;
        let name = format!("instance-{:08x}", self.next);
        self.fake.vm(id, &name);
        let (kvm, process) = (self.host().vm_dir(id), self.host().proc.join(id.thread.to_string()));
        for (n, statistic) in Statistic::ALL.iter().enumerate() {
            self.fake.count(id, *statistic, 1_234_567_890 >> n);
        }
        fs::write(kvm.join("paging_stats"), PAGING_STATS).expect("tmpfs can be written");
        fs::remove_dir_all(process.join("task")).expect("the VM's threads are there");
        for (number, thread) in self.threads.0[first..first + self.vcpus].iter().enumerate() {
            let vcpu = kvm.join(format!("vcpu{number}"));
            fs::create_dir_all(&vcpu).expect("tmpfs can be written");
            // The files of a vCPU, of which `pid` alone is read.
            for file in ["tsc-offset", "lapic_timer_advance_ns", "guest_mode", "tsc-scaling-ratio"] {
                fs::write(vcpu.join(file), "0\n").expect("tmpfs can be written");
            }
            fs::write(vcpu.join("pid"), format!("{thread}\n")).expect("tmpfs can be written");
            let real = format!("/proc/{}/task/{thread}", std::process::id());
            fs::create_dir_all(process.join("task")).expect("tmpfs can be written");
            symlink(real, process.join(format!("task/{thread}"))).expect("tmpfs can be written");
        }
        let own = fs::read_to_string("/proc/self/status").expect("Linux");
        let pid = std::process::id();
        let status = own.replace(&format!("Tgid:\t{pid}\n"), &format!("Tgid:\t{}\n", id.thread));
        fs::write(process.join("status"), status).expect("tmpfs can be written");
        fs::write(process.join("cmdline"), cmdline(&name)).expect("tmpfs can be written");
        let (smaps, numa_maps) = maps();
        fs::write(process.join("smaps"), smaps).expect("tmpfs can be written");
        fs::write(process.join("numa_maps"), numa_maps).expect("tmpfs can be written");
        self.vms.push((id, first));
    }
}

/// As `stats_show` in `kernel/src/arch/x86/kvm/paging_user.c` writes it.
const PAGING_STATS: &str = "switches_to_shadow 3\nswitches_to_nested 3\nswitches_by_guest 0\nby_guest_failed 0\nrefused 0\n\
    refused_host 0\nrefused_encrypted 0\nrefused_dma 0\nrefused_tss 0\nrefused_hypervisor 0\nrefused_keys 0\n\
    refused_smm 0\nrefused_real_mode 0\nrolled_back 0\ntimed_out 0\ninterrupted 0\nno_memory 0\n\
    vcpus 4\nvcpus_in_guest_last 2\nquiesce_ns_last 41234\nquiesce_ns_worst 131072\nswitch_ns_last 81234\n\
    switch_ns_worst 161234\nresume_ns_last 21234\nresume_ns_worst 61234\ndrop_ns_last 1234567\ndrop_ns_worst 2345678\n\
    tables_kept 1234\ntables_dropped 12\nshadow_pages 2345\nshadow_pages_dropped 2100\n";

/// A command line as libvirt makes them for QEMU: about 4 KB.
fn cmdline(name: &str) -> String {
    let mut words = vec![
        "/usr/bin/qemu-system-x86_64".to_owned(),
        "-name".into(),
        format!("guest={name},debug-threads=on"),
        "-S".into(),
        "-object".into(),
        format!(
            r#"{{"qom-type":"secret","id":"masterKey0","format":"raw","file":"/var/lib/libvirt/qemu/domain-7-{name}/master-key.aes"}}"#
        ),
        "-machine".into(),
        "pc-q35-9.2,usb=off,dump-guest-core=off,memory-backend=pc.ram,hpet=off,acpi=on".into(),
        "-accel".into(),
        "kvm".into(),
        "-cpu".into(),
        "host,migratable=on".into(),
    ];
    for n in 0..18 {
        words.push("-device".into());
        words.push(format!(
            r#"{{"driver":"pcie-root-port","port":{},"chassis":{n},"id":"pci.{n}","bus":"pcie.0","multifunction":true,"addr":"0x2.{n:x}"}}"#,
            16 + n
        ));
        words.push("-chardev".into());
        words.push(format!("socket,id=charchannel{n},fd={n},server=on,wait=off"));
    }
    words.join("\0") + "\0"
}

/// The texts of `smaps` and `numa_maps`: one mapping of guest memory, and those of the program.
fn maps() -> (String, String) {
    let (mut smaps, mut numa) = (String::new(), String::new());
    for n in 0..MAPPINGS {
        let start = 0x7f00_0000_0000_u64 + n * 0x10_0000_0000;
        let bytes: u64 = if n == 100 { 4 << 30 } else { 64 << 10 };
        let kib = bytes >> 10;
        let path = if n % 3 == 0 { " /usr/lib/x86_64-linux-gnu/libspice-server.so.1.14.1" } else { "" };
        write!(
            smaps,
            "{start:x}-{:x} rw-p 00000000 00:00 0 {path}\nSize: {kib:>14} kB\nKernelPageSize:        4 kB\n\
             MMUPageSize:           4 kB\nRss:            {kib:>8} kB\nPss:            {kib:>8} kB\n\
             Pss_Dirty:      {kib:>8} kB\nShared_Clean:          0 kB\nShared_Dirty:          0 kB\n\
             Private_Clean:         0 kB\nPrivate_Dirty:  {kib:>8} kB\nReferenced:     {kib:>8} kB\n\
             Anonymous:      {kib:>8} kB\nKSM:                   0 kB\nLazyFree:              0 kB\n\
             AnonHugePages:         0 kB\nShmemPmdMapped:        0 kB\nFilePmdMapped:         0 kB\n\
             Shared_Hugetlb:        0 kB\nPrivate_Hugetlb:       0 kB\nSwap:                  0 kB\n\
             SwapPss:               0 kB\nLocked:                0 kB\nTHPeligible:           1\n\
             VmFlags: rd wr mr mw me ac sd \n",
            start + bytes
        )
        .expect("a string can be written");
        let pages = bytes >> 12;
        writeln!(
            numa,
            "{start:x} default anon={pages} dirty={pages} active=0 N0={pages} kernelpagesize_kB=4"
        )
        .expect("a string can be written");
    }
    (smaps, numa)
}
