// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hosts made of files.

use crate::*;
use bifold_mmu::Mode;
use proptest::prelude::*;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt as _;

const STATS: &str = "switches_to_shadow 3\nswitches_to_nested 2\nrefused 1\nrolled_back 0\nvcpus 2\n\
                     vcpus_in_guest_last 1\nquiesce_ns_last 250000\n";

/// A host without a file, in a folder that goes with the first value.
pub fn host() -> (tempfile::TempDir, Host) {
    let dir = tempfile::tempdir().unwrap();
    let [sys, proc, debug, tracing] = ["sys", "proc", "debug", "tracing"].map(|n| dir.path().join(n));
    (dir, Host { sys, proc, debug, tracing })
}

pub struct Tree {
    _dir: tempfile::TempDir,
    pub host: Host,
}

impl Tree {
    fn new() -> Tree {
        let (_dir, host) = host();
        let tree = Tree { _dir, host };
        fs::create_dir_all(tree.host.proc.join("1")).unwrap();
        fs::create_dir_all(tree.host.debug.join("x86")).unwrap();
        tree
    }

    fn sys(&self, path: &str, text: &str) {
        put(&self.host.sys.join("module").join(path), text.as_bytes());
    }

    /// A host with KVM, and with a mode per VM if it has a default.
    pub fn kvm(default: Option<&str>) -> Tree {
        let tree = Tree::new();
        tree.sys("kvm/parameters/halt_poll_ns", "200000\n");
        tree.sys("kvm_amd/parameters/npt", "Y\n");
        default.into_iter().for_each(|d| tree.sys("kvm/parameters/paging_mode", d));
        fs::create_dir_all(tree.host.debug.join("kvm")).unwrap();
        tree
    }

    pub fn vm(&self, name: &str, mode: Option<&[u8]>) -> std::path::PathBuf {
        let dir = self.host.debug.join("kvm").join(name);
        fs::create_dir_all(dir.join("vcpu0")).unwrap();
        if let Some(mode) = mode {
            put(&dir.join("paging_mode"), mode);
            put(&dir.join("paging_stats"), STATS.as_bytes());
            put(&dir.join("paging_refusal"), b"none\n");
        }
        dir
    }

    fn process(&self, pid: u32, cmdline: &[u8]) {
        let dir = self.host.proc.join(pid.to_string());
        put(&dir.join("comm"), b"qemu-system-x86\n");
        put(&dir.join("cmdline"), cmdline);
        put(&dir.join("status"), format!("Name:\tqemu\nTgid:\t{pid}\nPid:\t{pid}\n").as_bytes());
    }

    pub fn only(&self) -> Vm {
        let mut vms = self.host.vms().unwrap();
        assert_eq!(vms.len(), 1);
        vms.remove(0)
    }
}

pub fn put(path: &std::path::Path, bytes: &[u8]) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn vms_are_listed_with_process_name_vcpus_and_mode() {
    let tree = Tree::kvm(Some("nested\n"));
    let web = tree.vm("4242-12", Some(b"nested\n"));
    fs::create_dir(web.join("vcpu1")).unwrap();
    put(&web.join("vcpu2"), b"a file, and so a statistic");
    put(&web.join("vcpu0").join("tsc-offset"), b"0\n");
    tree.vm("977-9", Some(b"shadow -> nested\n"));
    tree.vm("4242-13", Some(b"shadow"));
    tree.process(4242, b"/usr/bin/qemu\0-name\0guest=web,debug-threads=on\0-m\x001G\0");
    let vms = tree.host.vms().unwrap();
    let seen: Vec<_> = vms
        .iter()
        .map(|vm| (vm.id.to_string(), vm.pid, vm.name.as_deref(), vm.vcpus, vm.paging.state().unwrap()))
        .collect();
    let (nested, shadow) = (State::In(Mode::Nested), State::In(Mode::Shadow));
    assert_eq!(
        seen,
        [
            ("977-9".into(), 977, None, 1, State::To(Mode::Nested)),
            ("4242-12".into(), 4242, Some("web"), 2, nested),
            ("4242-13".into(), 4242, Some("web"), 1, shadow),
        ]
    );
    let stats = vms[0].paging.stats();
    assert_eq!(
        (stats.switches(), stats.quiesce_ns_last, stats.resume_ns_last),
        (Some(5), Some(250_000), None)
    );
}

#[test]
fn a_vm_made_by_a_thread_belongs_to_its_process() {
    let tree = Tree::kvm(None);
    tree.vm("501-7", None);
    tree.process(500, b"cloud-hypervisor\0");
    put(&tree.host.proc.join("501/status"), b"Name:\tvmm\nTgid:\t500\n");
    put(&tree.host.proc.join("501/comm"), b"vmm\n");
    let vm = tree.only();
    assert_eq!((vm.pid, vm.name.as_deref()), (500, Some("qemu-system-x86")));
    for word in ["500", "501", "501-7", "qemu-system-x86"] {
        assert_eq!(select(tree.host.vms().unwrap(), word).unwrap().id, vm.id, "{word}");
    }
}

#[test]
fn strange_things_in_debugfs_are_no_vms_and_say_nothing() {
    let tree = Tree::kvm(Some("nested\n"));
    let kvm = tree.host.debug.join("kvm");
    for name in
        ["exits", "1-2-3", "+1-2", "01-2", "-1-2", "1-", "-2", "99999999999-1", "a-b", "-", "1\u{0661}-2"]
    {
        fs::create_dir(kvm.join(name)).unwrap();
    }
    fs::create_dir(kvm.join(std::ffi::OsStr::from_bytes(b"\xff\xfe-1"))).unwrap();
    put(&kvm.join("7-7"), b"a file");
    assert!(tree.host.vms().unwrap().is_empty());

    let dir = tree.vm("1-2", Some(b"\xff\x1b[31m nested\n"));
    put(
        &dir.join("paging_stats"),
        b"vcpus 1\nswitches_to_shadow \xff\nrefused 12 13\nfuture_stat 9\nquiesce_ns_last 12",
    );
    let vm = tree.only();
    let Paging::Own { state: Err(e), .. } = &vm.paging else { panic!("{vm:?}") };
    assert_eq!(e.to_string(), "`\u{fffd}\\u{1b}[31m nested` is no mode");
    assert_eq!(vm.paging.stats(), PagingStats { vcpus: Some(1), ..PagingStats::default() });
    for strange in [&b""[..], b"\n", b"nes", b"nested -> nested\n", b"nested\n\n", &[b'x'; 1 << 19]] {
        put(&dir.join("paging_mode"), strange);
        let Paging::Own { state: Err(e), .. } = tree.only().paging else { panic!() };
        assert!(e.to_string().len() < 120, "{e}");
    }
    // Directories in the place of files.
    for name in ["paging_mode", "paging_stats", "paging_refusal"] {
        fs::remove_file(dir.join(name)).unwrap();
        fs::create_dir(dir.join(name)).unwrap();
    }
    put(&tree.host.proc.join("1/status"), b"Tgid:\t-5\nTgid:\t\xff\n");
    put(&tree.host.proc.join("1/comm"), b"\n");
    let vm = tree.only();
    assert_eq!((vm.pid, &vm.name), (1, &None));
    assert!(matches!(
        vm.paging,
        Paging::Own {
            state: Err(Unreadable::Io(_)),
            stats: Err(Unreadable::Io(_)),
            forecast: Err(Unreadable::Io(_))
        }
    ));
}

#[test]
fn a_word_means_one_vm_or_is_refused() {
    let tree = Tree::kvm(None);
    let ids = ["10-5", "10-6", "11-5", "12-5", "13-5"];
    ids.iter().for_each(|id| drop(tree.vm(id, None)));
    for (pid, name) in [(10, "two"), (11, "web"), (12, "web"), (13, "10")] {
        tree.process(pid, format!("qemu\0-name\0{name}\0").as_bytes());
    }
    let find = |word: &str| select(tree.host.vms().unwrap(), word).map(|vm| vm.id.to_string());
    assert_eq!(ids.map(|id| find(id).unwrap()), ids);
    assert_eq!(find("11").unwrap(), "11-5");
    let errors = ["web", "two", "10", "14", "", "web\x1b"].map(|w| find(w).unwrap_err().to_string());
    assert_eq!(
        errors,
        [
            "`web` means 2 VMs: give one of 11-5, 12-5",
            "`two` means 2 VMs: give one of 10-5, 10-6",
            "`10` means 2 VMs: give one of 10-5, 10-6",
            "no VM `14`: give a process id, a PID-FD or a name; `bifold mode` lists the 5 VMs there are",
            "no VM ``: give a process id, a PID-FD or a name; `bifold mode` lists the 5 VMs there are",
            "no VM `web\\u{1b}`: give a process id, a PID-FD or a name; `bifold mode` lists the 5 VMs there are",
        ]
    );
    assert_eq!(select(Vec::new(), "web").unwrap_err().to_string(), "no VM `web`: no VM is running here");
}

#[test]
fn what_is_missing_is_said() {
    let tree = Tree::new();
    let said =
        |e: HostError| (e.cannot_work_here(), e.to_string().replace(tree._dir.path().to_str().unwrap(), ""));
    let (here, text) = said(tree.host.kvm().unwrap_err());
    assert!(here && text.starts_with("this machine has no KVM (/sys/module/kvm does not exist)"), "{text}");
    let (here, text) = said(tree.host.vms().unwrap_err());
    assert!(here && text.contains("(/debug/kvm does not exist)"), "{text}");
    fs::remove_dir(tree.host.debug.join("x86")).unwrap();
    let (here, text) = said(tree.host.vms().unwrap_err());
    assert_eq!((here, &text[..]), (true, "debugfs is not mounted: as root, mount -t debugfs none /debug"));
    put(&tree.host.debug.join("kvm"), b"a file");
    assert!(matches!(tree.host.vms().unwrap_err(), HostError::Io { .. }));
    let denied = HostError::io("/x".as_ref(), io::ErrorKind::PermissionDenied.into());
    assert_eq!(said(denied), (true, "cannot read /x: only root may; run the command with sudo".into()));
}

#[test]
fn the_host_wide_mode_is_the_vendor_modules() {
    let tree = Tree::kvm(None);
    let mode = || tree.host.kvm().unwrap().host_mode();
    for (text, is) in
        [("Y\n", Mode::Nested), ("1\n", Mode::Nested), ("N\n", Mode::Shadow), ("0", Mode::Shadow)]
    {
        tree.sys("kvm_amd/parameters/npt", text);
        assert_eq!(mode(), Some(is), "{text}");
    }
    // Both are built in: one of them is idle, and which is not said.
    tree.sys("kvm_intel/parameters/ept", "N\n");
    assert_eq!(mode(), Some(Mode::Shadow));
    tree.sys("kvm_intel/parameters/ept", "Y\n");
    assert_eq!(mode(), None);
    assert_eq!(tree.host.kvm().unwrap().describe(), "kvm_amd with npt=N, kvm_intel with ept=Y");
    tree.sys("kvm_amd/parameters/npt", "perhaps");
    assert_eq!(mode(), None);
    fs::remove_dir_all(tree.host.sys.join("module/kvm_amd")).unwrap();
    assert_eq!(mode(), Some(Mode::Nested));
    fs::remove_dir_all(tree.host.sys.join("module/kvm_intel")).unwrap();
    let kvm = tree.host.kvm().unwrap();
    assert_eq!((kvm.host_mode(), &kvm.describe()[..]), (None, "neither kvm_amd nor kvm_intel is loaded"));
}

#[test]
fn a_switch_writes_the_mode_and_reports_the_figures() {
    let tree = Tree::kvm(Some("nested\n"));
    let dir = tree.vm("1-2", Some(b"nested\n"));
    let vm = tree.only();
    let switch = tree.host.switch(&vm, Mode::Shadow).unwrap();
    // A file counts nothing.
    assert_eq!((switch.to, switch.happened), (Mode::Shadow, Happened::Nothing));
    assert_eq!(switch.stats.quiesce_ns_last, Some(250_000));
    assert_eq!(fs::read(dir.join("paging_mode")).unwrap(), b"shadow\n");
    // Without figures, the mode before decides.
    fs::remove_file(dir.join("paging_stats")).unwrap();
    let happened = |to| tree.host.switch(&vm, to).unwrap().happened;
    assert_eq!(happened(Mode::Shadow), Happened::Nothing);
    assert_eq!(happened(Mode::Nested), Happened::Switched);
}

#[test]
fn open_files_say_what_holds_now_and_switch() {
    let tree = Tree::kvm(Some("nested\n"));
    let dir = tree.vm("1-2", Some(b"nested\n"));
    let files = tree.host.paging_files(tree.only().id).unwrap().unwrap();
    assert_eq!(files.state().unwrap(), State::In(Mode::Nested));
    files.switch(Mode::Shadow).unwrap();
    assert_eq!(files.state().unwrap(), State::In(Mode::Shadow));
    put(&dir.join("paging_mode"), b"shadow -> nested\n");
    assert_eq!(files.state().unwrap(), State::To(Mode::Nested));
    put(&dir.join("paging_mode"), b"soon\n");
    assert_eq!(files.state().unwrap_err().to_string(), "`soon` is no mode");
    put(&dir.join("paging_stats"), b"vcpus 3\nunknown 1\nresume_ns_last 7\n");
    assert_eq!(files.stats().unwrap().known().collect::<Vec<_>>(), [("vcpus", 3), ("resume_ns_last", 7)]);
    tree.vm("3-4", None);
    assert!(tree.host.paging_files(VmId { thread: 3, fd: 4 }).unwrap().is_none());
}

#[test]
fn kvm_is_not_asked_for_shadow_paging_without_room() {
    let tree = Tree::kvm(Some("nested\n"));
    let dir = tree.vm("1-2", Some(b"nested\n"));
    let (proc, top) = (&tree.host.proc, tree.host.sys.join("fs/cgroup/web"));
    put(&proc.join("self/mounts"), b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
    put(&proc.join("1/cgroup"), b"0::/web\n");
    put(&proc.join("1/maps"), b"7f0000000000-7f0040000000 rw-p 00000000 00:00 0\n");
    put(&top.join("memory.max"), b"1073741824\n");
    put(&top.join("memory.current"), b"1072693248\n");
    let says = |vm: &Vm| vm.paging.obstacle().map(|(to, o)| (to, o.reason.word().to_owned(), o.lasts()));
    assert_eq!(says(&tree.only()), Some((Mode::Shadow, "room".into(), Some(false))));
    assert!(tree.host.paging(tree.only().id).obstacle().is_some());
    let e = tree.host.switch(&tree.only(), Mode::Shadow).unwrap_err();
    let text = e.to_string().replace(top.to_str().unwrap(), "/web");
    assert_eq!(
        text,
        "VM 1-2 was not switched to shadow mode: not tried (room): shadow paging needs up to 61 MiB of kernel memory, \
         and cgroup /web has 1 MiB left: raise its memory.max (MemoryMax= of systemd, hard_limit of libvirt); \
         page cache of the guest's disks counts in the cgroup too, and cache=none of QEMU keeps it out"
    );
    assert_eq!(fs::read(dir.join("paging_mode")).unwrap(), b"nested\n");
    // KVM's own reason comes first, and the way back needs no room.
    put(&dir.join("paging_refusal"), b"smm vcpu 0\n");
    assert_eq!(says(&tree.only()).unwrap().1, "smm");
    put(&dir.join("paging_refusal"), b"none\n");
    put(&dir.join("paging_mode"), b"shadow\n");
    assert_eq!(says(&tree.only()), None);
    tree.host.switch(&tree.only(), Mode::Nested).unwrap();
    put(&top.join("memory.current"), b"536870912\n");
    assert_eq!(says(&tree.only()), None);
    tree.host.switch(&tree.only(), Mode::Shadow).unwrap();
}

#[test]
fn counts_tell_whose_switch_the_figures_are_of() {
    let own = |n| Paging::Own {
        state: Ok(State::In(Mode::Nested)),
        stats: Ok(PagingStats {
            switches_to_shadow: Some(n),
            switches_to_nested: Some(0),
            ..PagingStats::default()
        }),
        forecast: Ok(Forecast::Unknown),
    };
    let after = own(7).stats();
    let happened = |n| crate::switch::happened(&own(n), &after, Mode::Shadow);
    assert_eq!(
        [7, 6, 5, 8].map(happened),
        [Happened::Nothing, Happened::Switched, Happened::Crowded, Happened::Nothing]
    );
}

#[test]
fn a_vm_that_ends_before_the_write_has_ended_whatever_the_error() {
    for default in [None, Some("nested\n")] {
        let tree = Tree::kvm(default);
        let dir = tree.vm("1-2", default.map(|_| &b"nested\n"[..]));
        let vm = tree.only();
        fs::remove_dir_all(&dir).unwrap();
        let e = tree.host.switch(&vm, Mode::Shadow).unwrap_err();
        assert_eq!((e.to_string(), e.cannot_work_here()), ("VM 1-2 has ended".into(), false));
        assert!(tree.host.vm(vm.id).is_none());
        const EIO: i32 = 5;
        let e = tree.host.refused(&vm, Mode::Shadow, io::Error::from_raw_os_error(EIO));
        assert!(matches!(e, HostError::Gone { .. }), "{e}");
    }
    // Its files go before its directory.
    let tree = Tree::kvm(Some("nested\n"));
    let dir = tree.vm("1-2", Some(b"nested\n"));
    let vm = tree.only();
    fs::remove_file(dir.join("paging_mode")).unwrap();
    let e = tree.host.switch(&vm, Mode::Shadow).unwrap_err();
    assert!(matches!(e, HostError::Gone { .. }), "{e}");
    // And they come after it.
    let e = tree.host.switch(&tree.only(), Mode::Shadow).unwrap_err();
    assert_eq!(
        e.to_string(),
        "VM 1-2 has no file paging_mode: the VM is being made, or is ending; try again"
    );
    assert_eq!(tree.only().state(&tree.host.kvm().unwrap()), None);
}

#[test]
fn vms_that_come_and_go_meanwhile_do_no_harm() {
    let tree = Tree::kvm(Some("nested\n"));
    tree.vm("1-2", Some(b"nested\n"));
    let vm = tree.only();
    std::thread::scope(|scope| {
        let churn = scope.spawn(|| {
            for _ in 0..300 {
                fs::remove_dir_all(tree.vm("1-2", Some(b"nested\n"))).unwrap();
            }
        });
        while !churn.is_finished() {
            assert!(tree.host.vms().unwrap().len() <= 1);
            match tree.host.switch(&vm, Mode::Nested) {
                Ok(_) | Err(HostError::Gone { .. }) => {}
                // Seen as going, and it was there again at the next look.
                Err(HostError::Refused { refusal, .. }) => panic!("{refusal}"),
                Err(e) => panic!("{e}"),
            }
        }
    });
}

#[test]
fn an_unmodified_kvm_has_one_mode_and_names_what_can_switch() {
    let tree = Tree::kvm(None);
    tree.vm("1-2", None);
    let vm = tree.only();
    assert_eq!(vm.state(&tree.host.kvm().unwrap()), Some(State::In(Mode::Nested)));
    let e = tree.host.switch(&vm, Mode::Shadow).unwrap_err();
    assert!(e.cannot_work_here());
    assert_eq!(
        e.to_string(),
        "this KVM has one paging mode for all VMs (nested: kvm_amd with npt=Y) and cannot switch a VM: \
         build modules that can by `make kernel` in Bifold's repository, and load them"
    );
    assert!(!tree.host.debug.join("kvm/1-2/paging_mode").exists());
}

#[test]
fn every_error_of_the_interface_has_words() {
    let tree = Tree::kvm(Some("shadow\n"));
    tree.sys("kvm_amd/parameters/npt", "N\n");
    tree.vm("1-2", Some(b"shadow\n"));
    let vm = tree.only();
    let said = |errno| tree.host.refused(&vm, Mode::Nested, io::Error::from_raw_os_error(errno)).to_string();
    for (errno, words) in [
        (22, "does not know the mode"),
        (
            95,
            "can never run in that mode, or this hardware cannot; the kernel log says why (dmesg); here: kvm_amd with npt=N,",
        ),
        (16, "not now"),
        (110, "did not stop in time, and nothing has changed"),
        (4, "was interrupted, and nothing has changed"),
        (512, "was interrupted"),
        (13, "only root may"),
        (1, "a switch takes CAP_SYS_ADMIN, and a kernel that is not locked down"),
        (12, "too little memory"),
        (28, "No space left on device"),
    ] {
        let text = said(errno);
        assert!(text.starts_with("VM 1-2 was not switched to nested mode: "), "{text}");
        assert!(text.contains(words), "{errno}: {text}");
    }
    for errno in [2, 19] {
        assert_eq!(said(errno), "VM 1-2 has ended");
    }
    tree.sys("kvm_amd/parameters/npt", "Y\n");
    assert!(!said(95).contains("here:"));
}

#[test]
fn a_file_that_only_root_may_read_is_said_to_be_one() {
    let words = |errno| Unreadable::from(io::Error::from_raw_os_error(errno)).to_string();
    assert_eq!(words(13), "only root may read it");
    assert!(words(1).contains("lockdown"));
    assert!(words(5).contains("Input/output error"));
}

#[test]
fn names_are_taken_as_qemu_takes_them() {
    let name = |line: &str| CommandLine::parse(line.replace(' ', "\0").as_bytes()).guest_name();
    for (line, is) in [
        ("qemu -name web", Some("web")),
        ("qemu --name web -m 1G", Some("web")),
        ("qemu -name guest=web,debug-threads=on", Some("web")),
        ("qemu -name web,process=x", Some("web")),
        ("qemu -name process=x,guest=a,,b", Some("a,b")),
        ("qemu -name {web}", Some("{web}")),
        ("qemu -name a=b", None),
        ("qemu -name a,,b=c", None),
        ("qemu -name debug-threads=on", None),
        ("qemu -name one -name debug-threads=on", Some("one")),
        ("qemu -name one -name two", Some("two")),
        ("qemu -name", None),
        ("qemu -name ", None),
        ("qemu", None),
        ("", None),
    ] {
        assert_eq!(name(line).as_deref(), is, "{line}");
    }
    assert_eq!(CommandLine::parse(b"qemu\0-name\0w\xff\0").guest_name().as_deref(), Some("w\u{fffd}"));
}

proptest! {
    #[test]
    fn figures_are_read_back_whatever_stands_around_them(
        values in prop::collection::vec(any::<Option<u64>>(), PagingStats::STATS.len()),
        noise in prop::collection::vec("[a-z_ ]{0,20}[0-9-]{0,3}", PagingStats::STATS.len()),
    ) {
        let mut text = Vec::new();
        for ((stat, value), noise) in PagingStats::STATS.iter().zip(&values).zip(&noise) {
            text.extend(value.map(|v| format!("{} {v}\n", stat.name)).unwrap_or_default().bytes());
            text.extend(format!("x{noise}\n\u{fe}").bytes());
            text.extend(b"\xff\n");
        }
        let stats = PagingStats::parse(&text);
        prop_assert_eq!(stats.values().to_vec(), values);
        // Half of the file has half of the figures, and none that is not in the whole.
        let half = PagingStats::parse(&text[..text.len() / 2]);
        for (half, whole) in half.values().iter().zip(stats.values()) {
            prop_assert!(half.is_none() || *half == whole);
        }
    }

    #[test]
    fn any_bytes_are_figures_a_state_and_a_name_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let _ = PagingStats::parse(&bytes);
        let _ = CommandLine::parse(&bytes).guest_name();
        if let Some(state) = State::parse(&bytes) {
            prop_assert_eq!(State::parse(state.to_string().as_bytes()), Some(state));
        }
    }
}
