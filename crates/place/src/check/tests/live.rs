// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A real, stopped, emulated guest on this machine: what is read of it, and mistakes that need one node only.

use super::{MIB, plan as plan_of_web, set};
use crate::apply::{IfChanged, Kept, apply, undo};
use crate::check::*;
use crate::os;
use crate::plan::{Plan, Smp, VcpuPlan};
use bifold_host::Host;
use bifold_host::LiveGuest;
use bifold_host::topology::{NumberSet, Topology};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Bytes of the guest's memory.
const MEMORY: u64 = 64 * MIB;

/// I/O threads whose ids begin alike and are too long for a thread's name.
const IO_THREADS: [&str; 2] = ["disk-of-data-1", "disk-of-data-2"];

/// QEMU, which ends with the test.
struct Qemu {
    child: Child,
    dir: tempfile::TempDir,
    name: String,
}

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The CPUs that this test may use.
fn allowed() -> Vec<u32> {
    let this = std::process::id();
    Host::live().allowed_cpus(this, this).unwrap().iter().collect()
}

impl Qemu {
    /// A guest of two vCPUs that never runs: its threads are there, and it takes no time. `None` without
    /// QEMU.
    fn start(thread_names: bool, cpus: Option<u32>) -> Option<Qemu> {
        let qemu = std::env::var_os("BIFOLD_QEMU").unwrap_or("qemu-system-x86_64".into());
        if Command::new(&qemu).arg("--version").stdout(Stdio::null()).status().is_err() {
            eprintln!("no QEMU here: nothing is tested");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let name = format!("bifold,<b>{}", dir.path().file_name().unwrap().to_str().unwrap());
        let named = format!(
            "guest={},debug-threads={}",
            name.replace(',', ",,"),
            if thread_names { "on" } else { "off" }
        );
        let socket = format!("unix:{},server=on,wait=off", dir.path().join("qmp").display());
        let mut command = match cpus {
            Some(cpu) => {
                let mut command = Command::new("taskset");
                command.args(["-c", &cpu.to_string()]).arg(&qemu);
                command
            }
            None => Command::new(&qemu),
        };
        command.args([
            "-S",
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-accel",
            "tcg,thread=multi",
        ]);
        command.args([
            "-name",
            &named,
            "-smp",
            "2,cores=2",
            "-m",
            "64M",
            "-machine",
            "q35,memory-backend=ram",
        ]);
        command.args(["-object", "memory-backend-memfd,id=ram,size=64M,prealloc=on", "-qmp", &socket]);
        IO_THREADS.iter().for_each(|id| _ = command.args(["-object", &format!("iothread,id={id}")]));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let qemu = Qemu { child: command.spawn().unwrap(), dir, name };
        let begun = Instant::now();
        // The monitor answers once the threads are there.
        while qmp::ask(&qemu.socket()).is_err() {
            assert!(begun.elapsed() < Duration::from_secs(60), "QEMU does not start");
            std::thread::sleep(Duration::from_millis(20));
        }
        Some(qemu)
    }

    fn socket(&self) -> PathBuf {
        self.dir.path().join("qmp")
    }

    fn live(&self) -> LiveGuest {
        let all = Host::live().live_guests();
        all.into_iter().find(|g| g.name == self.name).expect("QEMU is found by its program's name")
    }

    fn look(&self) -> Result<PlacementFacts, CheckError> {
        look(
            &Host::live(),
            &[self.live()],
            &[self.child.id()],
            &Options { plan: None, qmp: None, progress: &|_, _| {} },
        )
    }

    fn names(&self, topology: &Topology, plan: Option<&Plan>) -> Vec<&'static str> {
        let seen = self.look().unwrap();
        assert_eq!(seen.guests[0].unknown, []);
        let found = check(topology, plan, &seen, &[self.child.id()]);
        let mut names: Vec<&str> = found.iter().map(|f| f.kind.name()).collect();
        if rustix::process::getpriority_process(None).unwrap() > 0 {
            let at = names.iter().position(|name| *name == "vcpu-low-priority");
            names.remove(at.expect("QEMU has the niceness of the tests"));
        }
        names
    }

    /// Pins all vCPUs, or else all other threads, to a CPU.
    fn pin(&self, vcpus: bool, cpu: u32) {
        let threads = Host::live().threads(self.child.id(), &[]).unwrap();
        let cpus: NumberSet = [cpu].into_iter().collect();
        let chosen =
            threads.iter().filter(|t| vcpus == matches!(t.role, bifold_host::placement::Role::Vcpu(_)));
        chosen.for_each(|t| os::pin(t.id, &cpus).unwrap());
    }

    /// A plan: each vCPU on a CPU, the others on the first.
    fn plan(&self, cpus: [u32; 2]) -> Plan {
        let mut plan = plan_of_web();
        plan.steps.clear();
        let guest = &mut plan.guests[0];
        guest.name.clone_from(&self.name);
        guest.vcpus = (0..).zip(cpus).map(|(vcpu, cpu)| VcpuPlan { vcpu, cpu, node: 0 }).collect();
        guest.nodes.truncate(1);
        guest.nodes[0].memory = MEMORY;
        guest.nodes[0].distances = vec![10];
        guest.page_kib = 4;
        guest.smp = Smp { sockets: 1, dies: 1, cores: 2, threads: 1 };
        guest.emulator = [cpus[0]].into_iter().collect();
        guest.io_threads = Vec::new();
        plan
    }
}

#[test]
fn a_real_guest_is_seen_whole_and_its_mistakes_are_named() {
    let Some(qemu) = Qemu::start(true, None) else { return };
    let topology = Host::live().topology().unwrap();
    let seen = qemu.look().unwrap();
    let guest = &seen.guests[0];
    assert_eq!(guest.vcpus().len(), 2);
    let [block] = &guest.blocks[..] else { panic!("{:?}", guest.blocks) };
    assert_eq!((block.node, block.memory.bytes), (Some(0), MEMORY));
    // Preallocated, in pages of 4 KB or, where the kernel gives them to shared memory, larger ones.
    assert_eq!((block.pages.looked, block.pages.present()), (MEMORY / 4096, MEMORY / 4096));
    // numa_maps has the same.
    assert_eq!(block.memory.nodes.values().sum::<u64>(), MEMORY);
    if topology.nodes.len() == 1 {
        assert_eq!(qemu.names(&topology, None), [] as [&str; 0]);
    }
    let [first, .., last] = allowed()[..] else { return };
    qemu.pin(true, last);
    assert!(qemu.names(&topology, None).contains(&"two-vcpus-on-one-cpu"));
    assert!(qemu.names(&topology, None).contains(&"emulator-on-vcpu-cpu"));
    qemu.pin(false, first);
    assert!(!qemu.names(&topology, None).contains(&"emulator-on-vcpu-cpu"));
    let mut huge = qemu.plan([first, last]);
    huge.guests[0].page_kib = 2048;
    let names = qemu.names(&topology, Some(&huge));
    assert!(names.contains(&"vcpu-on-wrong-cpu") && names.contains(&"memory-not-huge"), "{names:?}");
}

#[test]
fn a_real_guest_is_pinned_as_planned_and_let_go() {
    let Some(qemu) = Qemu::start(true, None) else { return };
    let topology = Host::live().topology().unwrap();
    let [first, .., last] = allowed()[..] else { return };
    let (mut plan, live) = (qemu.plan([first, last]), qemu.live());
    plan.guests[0].io_threads = [last, first].map(|cpu| [cpu].into_iter().collect()).into();
    let before = qemu.look().unwrap().guests.remove(0).threads;
    let kept = Kept::within(&qemu.dir.path().join("run"));
    let applied = apply(&Host::live(), &plan, &[&live], &kept, &mut |_| {}).unwrap();
    // The monitor's own I/O thread may run where any may, which is on both CPUs.
    assert_eq!(applied.pinned, before.len() - 1);
    let cpus: Vec<NumberSet> =
        qemu.look().unwrap().guests[0].vcpus().values().map(|t| t.cpus.clone()).collect();
    assert_eq!(cpus, [set(&first.to_string()), set(&last.to_string())]);
    let io_threads = qmp::ask(&qemu.socket()).unwrap().io_threads;
    for (id, cpus) in IO_THREADS.iter().zip(&plan.guests[0].io_threads) {
        let (_, thread) = io_threads.iter().find(|(told, _)| told == id).unwrap();
        let is = Host::live().allowed_cpus(live.pid, *thread).unwrap();
        assert_eq!(is, *cpus, "{id}");
    }
    if topology.nodes.len() == 1 {
        // The emulator shares a vCPU's CPU, as the plan has it.
        assert_eq!(qemu.names(&topology, Some(&plan)), [] as [&str; 0]);
    }
    let undone = undo(&Host::live(), &kept, None, IfChanged::Refuse, &mut |_| {}).unwrap();
    assert_eq!((undone.threads, undone.gone), (applied.pinned, 0));
    let after = qemu.look().unwrap().guests.remove(0).threads;
    let cpus = |threads: Vec<bifold_host::placement::Thread>| {
        threads.into_iter().map(|t| (t.id, t.cpus)).collect::<Vec<_>>()
    };
    assert_eq!(cpus(after), cpus(before));
}

#[test]
fn pins_before_the_vcpu_threads_are_named() {
    let [first, .., last] = allowed()[..] else { return };
    let Some(qemu) = Qemu::start(true, Some(first)) else { return };
    let topology = Host::live().topology().unwrap();
    let names = qemu.names(&topology, None);
    assert!(names.contains(&"pinned-too-early"), "{names:?}");
    let names = qemu.names(&topology, Some(&qemu.plan([first, last])));
    assert!(names.contains(&"pinned-too-early"), "{names:?}");
}

#[test]
fn the_monitor_tells_threads_without_names() {
    let Some(qemu) = Qemu::start(false, None) else { return };
    let seen = qemu.look().unwrap();
    assert_eq!((seen.guests[0].vcpus().len(), seen.guests[0].unknown.len()), (2, 0));
    let told = qmp::ask(&qemu.socket()).unwrap();
    let ram = told.blocks.iter().find(|b| b.id == "ram").unwrap();
    assert_eq!((ram.start, ram.bytes), (seen.guests[0].blocks[0].memory.start, MEMORY));
    // Another program has the monitor's one connection.
    let _held = std::os::unix::net::UnixStream::connect(qemu.socket()).unwrap();
    let seen = qemu.look().unwrap();
    let unknown: Vec<&str> = seen.guests[0].unknown.iter().map(|u| u.what.as_str()).collect();
    assert!(
        unknown.len() == 2 && unknown[0].contains("does not answer") && unknown[1].contains("--qmp"),
        "{unknown:?}"
    );
}

#[test]
fn a_guest_that_ends_while_it_is_looked_at_is_an_error() {
    let Some(mut qemu) = Qemu::start(true, None) else { return };
    let live = qemu.live();
    qemu.child.kill().unwrap();
    qemu.child.wait().unwrap();
    let options = Options { plan: None, qmp: None, progress: &|_, _| {} };
    let error = look(&Host::live(), std::slice::from_ref(&live), &[live.pid], &options).unwrap_err();
    assert!(matches!(error, CheckError::Ended { .. }), "{error}");
}
