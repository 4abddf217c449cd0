// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans on a host made of files, with the threads of a real process.

mod changed;
mod killed;

use super::*;
use crate::plan::{Caches, Cost, GuestNode, GuestPlan, SCHEMA, Smp, VcpuPlan};
use bifold_host::Vcpu;
use bifold_host::topology::NumberSet;
use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

const POOL: &str = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
/// For the child: the tree, the guest's process, what to do, and at which event to die.
const CHILD: &str = "BIFOLD_TEST_CHILD";
const SIGKILL: i32 = 9;

/// A host's files, and a guest's process: one that sleeps.
struct Tree {
    dir: PathBuf,
    _temp: Option<tempfile::TempDir>,
    guest: u32,
    _process: Option<Process>,
}

/// A process that ends with the test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn step(path: &str, value: &str, needed: bool) -> Step {
    Step { path: path.into(), value: value.into(), needed, why: "because".into() }
}

fn irq(n: u32) -> String {
    format!("/proc/irq/{n}/smp_affinity_list")
}

impl Tree {
    fn new() -> Tree {
        let temp = tempfile::tempdir().unwrap();
        let process = Command::new("sleep").arg("600").stdin(Stdio::null()).spawn().unwrap();
        let tree = Tree {
            dir: temp.path().into(),
            _temp: Some(temp),
            guest: process.id(),
            _process: Some(Process(process)),
        };
        tree.put(POOL, "0\n");
        tree.put("/sys/kernel/mm/ksm/run", "1\n");
        tree.put("/sys/kernel/mm/ksm/merge_across_nodes", "1\n");
        tree.put("/proc/sys/kernel/numa_balancing", "1\n");
        tree.put("/proc/sys/kernel/random/boot_id", "this\n");
        (1..16).for_each(|n| tree.put(&irq(n), "0-1\n"));
        let proc = tree.dir.join("proc");
        std::os::unix::fs::symlink(format!("/proc/{}", tree.guest), proc.join(tree.guest.to_string()))
            .unwrap();
        tree
    }

    fn host(&self) -> Host {
        let at = |name: &str| self.dir.join(name);
        Host { sys: at("sys"), proc: at("proc"), debug: at("debug"), tracing: at("tracing") }
    }

    fn kept(&self) -> Kept {
        let at = |name: &str| self.dir.join("run").join(name);
        let ksm = bifold_host::held::Places { lock: at("ksm.lock"), journal: at("ksm.journal") };
        Kept { ksm, ..Kept::within(&self.dir.join("run")) }
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.dir.join(path.trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn get(&self, path: &str) -> String {
        fs::read_to_string(self.dir.join(path.trim_start_matches('/'))).unwrap().trim().to_owned()
    }

    /// The CPUs that the guest may run on now.
    fn cpus(&self) -> NumberSet {
        Host::live().allowed_cpus(self.guest, self.guest).unwrap()
    }

    fn live(&self) -> LiveGuest {
        let vcpus = vec![Vcpu { number: 0, thread: self.guest }];
        let started = Host::live().started(self.guest).unwrap();
        LiveGuest { pid: self.guest, name: "web".into(), started, vm: None, kvm: true, vcpus }
    }

    /// Every setting, and the guest's CPUs.
    fn state(&self) -> BTreeMap<String, String> {
        let steps = self.plan().steps.into_iter().map(|s| (s.path.clone(), self.get(&s.path)));
        steps.chain([("cpus".to_string(), self.cpus().to_string())]).collect()
    }

    /// KSM's `run` twice, as unmerging needs, a pool, interrupts, and one vCPU on the last CPU.
    fn plan(&self) -> Plan {
        let mut steps = vec![
            step(POOL, "64", true),
            step("/sys/kernel/mm/ksm/run", "2", false),
            step("/sys/kernel/mm/ksm/merge_across_nodes", "0", false),
            step("/sys/kernel/mm/ksm/run", "1", false),
            step("/proc/sys/kernel/numa_balancing", "0", true),
        ];
        steps.extend((1..16).map(|n| step(&irq(n), "0", false)));
        let last = Host::live().allowed_cpus(std::process::id(), std::process::id()).unwrap();
        let cpu = last.iter().next_back().unwrap();
        let node = GuestNode {
            node: 0,
            host_node: 0,
            memory: 128 << 20,
            distances: vec![10],
            latency_ns: None,
            bandwidth_mb: None,
        };
        let guest = GuestPlan {
            name: "web".into(),
            vcpus: vec![VcpuPlan { vcpu: 0, cpu, node: 0 }],
            nodes: vec![node],
            page_kib: 2048,
            smp: Smp { sockets: 1, dies: 1, cores: 1, threads: 1 },
            emulator: "0".parse().unwrap(),
            io_threads: Vec::new(),
            bound: true,
            caches: Caches::Emulated,
            topoext: false,
            ksm: false,
            reasons: Vec::new(),
        };
        Plan {
            schema: SCHEMA.into(),
            guests: vec![guest],
            steps,
            notes: Vec::new(),
            cost: Cost::default(),
            proven: true,
        }
    }

    fn apply(&self, pin: bool, told: &mut dyn FnMut(&Event)) -> Result<Applied, ApplyError> {
        let live = self.live();
        let guests = if pin { vec![&live] } else { Vec::new() };
        apply(&self.host(), &self.plan(), &guests, &self.kept(), told)
    }

    fn undo(&self) -> Undone {
        undo(&self.host(), &self.kept(), None, IfChanged::Refuse, &mut |_| {}).unwrap()
    }

    /// Runs this test program again, to apply or undo and to die at an event, or after a time.
    fn child(&self, what: &str, event: usize) -> Command {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "apply::tests::killed::dies_at_an_event", "--ignored", "--nocapture"]);
        command.env(CHILD, format!("{} {} {what} {event}", self.dir.display(), self.guest));
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    /// Nothing is left of an apply.
    fn is_as_found(&self, before: &BTreeMap<String, String>, when: &str) {
        assert_eq!(self.state(), *before, "{when}");
        assert!(!self.kept().places.journal.exists() && !self.kept().plan.exists(), "{when}");
    }
}

#[test]
fn a_plan_is_applied_once_and_undone() {
    let tree = Tree::new();
    let before = tree.state();
    let applied = tree.apply(false, &mut |_| {}).unwrap();
    assert_eq!((applied.changed, applied.as_planned, applied.pinned), (20, 0, 0));
    assert_eq!(
        (tree.get(POOL), tree.get("/sys/kernel/mm/ksm/run"), tree.get(&irq(3))),
        ("64".into(), "1".into(), "0".into())
    );
    assert_eq!(tree.cpus().to_string(), before["cpus"], "a guest that is not named is not touched");
    // Again, with the guest.
    let applied = tree.apply(true, &mut |_| {}).unwrap();
    // KSM's first and last step change `run` again.
    assert_eq!((applied.changed, applied.as_planned), (2, 18));
    assert_eq!(tree.cpus().iter().collect::<Vec<_>>(), [tree.plan().guests[0].vcpus[0].cpu]);
    assert_eq!(tree.kept().applied(&tree.host()).unwrap(), Some(tree.plan()));
    // The guest alone.
    undo(&tree.host(), &tree.kept(), Some(&[tree.guest]), IfChanged::Refuse, &mut |_| {}).unwrap();
    assert_eq!((tree.cpus().to_string(), tree.get(POOL)), (before["cpus"].clone(), "64".into()));
    assert!(tree.undo().was_applied);
    tree.is_as_found(&before, "undone");
    assert!(!tree.undo().was_applied);
}

#[test]
fn a_pool_that_the_kernel_fills_in_part_is_an_error_and_all_is_undone() {
    let tree = Tree::new();
    let before = tree.state();
    let mut kernel = |event: &Event| {
        if matches!(event, Event::Set { path, value } if path == POOL && value == "64") {
            tree.put(POOL, "60\n");
        }
    };
    let error = tree.apply(true, &mut kernel).unwrap_err().to_string();
    assert!(error.contains("asked for 64, and the kernel has 60"), "{error}");
    assert!(error.ends_with("every change of this command is undone"), "{error}");
    tree.is_as_found(&before, "undone");
}

#[test]
fn a_wish_that_the_kernel_refuses_is_left_out() {
    let tree = Tree::new();
    let before = tree.state();
    // Without the file, as in a kernel without KSM; the interrupt takes no value.
    let mut plan = tree.plan();
    plan.steps.push(step("/sys/kernel/mm/ksm/none", "1", false));
    let mut events = Vec::new();
    let mut kernel = |event: &Event| {
        if matches!(event, Event::Set { path, .. } if *path == irq(3)) {
            tree.put(&irq(3), "0-1\n");
        }
        events.push(event.clone());
    };
    let applied = apply(&tree.host(), &plan, &[], &tree.kept(), &mut kernel).unwrap();
    assert_eq!((applied.changed, applied.refused), (19, 2));
    assert_eq!(events.iter().filter(|e| matches!(e, Event::Refused { .. })).count(), 2);
    let kept = tree.kept().applied(&tree.host()).unwrap().unwrap();
    assert!(!kept.steps.iter().any(|s| s.path == irq(3)) && kept.steps.len() == 19);
    tree.undo();
    tree.is_as_found(&before, "undone");
    // A needed step without a file stops all.
    plan.steps.push(step("/sys/kernel/mm/ksm/none", "1", true));
    let error = apply(&tree.host(), &plan, &[], &tree.kept(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, ApplyError::Undone(_)), "{error}");
    tree.is_as_found(&before, "undone by the error");
}

#[test]
fn what_cannot_be_applied_changes_nothing() {
    let tree = Tree::new();
    let before = tree.state();
    let with = |change: &dyn Fn(&mut Plan), live: Option<&LiveGuest>| {
        let mut plan = tree.plan();
        change(&mut plan);
        let guests: Vec<&LiveGuest> = live.into_iter().collect();
        let error = apply(&tree.host(), &plan, &guests, &tree.kept(), &mut |_| {}).unwrap_err().to_string();
        assert_eq!(tree.state(), before, "{error}");
        error
    };
    let live = tree.live();
    let error = with(&|p| p.steps.push(step("/proc/sys/kernel/core_pattern", "|/tmp/x", true)), None);
    assert!(error.contains("core_pattern` is refused"), "{error}");
    assert!(with(&|p| p.schema = "bifold.place-plan/9".into(), None).contains("make a new plan"));
    assert!(
        with(&|p| p.guests[0].name = "db\u{7}".into(), Some(&live))
            .contains("no guest `web`: it has db\\u{7}")
    );
    let two = VcpuPlan { vcpu: 1, cpu: 0, node: 0 };
    let with_two = |p: &mut Plan| {
        p.guests[0].vcpus.push(two);
        p.guests[0].smp.cores = 2;
    };
    let error = with(&with_two, Some(&live));
    assert!(error.contains("threads of 1 vCPUs, and the plan has 2"), "{error}");
    let error = with(&|p| p.guests[0].vcpus[0].cpu = 4095, Some(&live));
    assert!(error.contains("cannot be pinned to CPU 4095"), "{error}");
    let ended = LiveGuest { started: 1, ..live.clone() };
    assert!(with(&|_| {}, Some(&ended)).contains("guest web has ended"));
    tree.is_as_found(&before, "refused");
}

#[test]
fn another_plan_waits_for_undo_and_another_boots_journal_is_dropped() {
    let tree = Tree::new();
    let before = tree.state();
    tree.apply(false, &mut |_| {}).unwrap();
    let mut other = tree.plan();
    other.steps.pop();
    let error = apply(&tree.host(), &other, &[], &tree.kept(), &mut |_| {}).unwrap_err();
    assert!(matches!(error, ApplyError::OtherPlan(_)), "{error}");
    // The machine boots: its settings are the kernel's again.
    tree.put("/proc/sys/kernel/random/boot_id", "next\n");
    before.iter().filter(|(p, _)| p.starts_with('/')).for_each(|(path, value)| tree.put(path, value));
    tree.put(POOL, "7\n");
    assert_eq!(tree.kept().applied(&tree.host()).unwrap(), None);
    let mut events = Vec::new();
    let undone =
        undo(&tree.host(), &tree.kept(), None, IfChanged::Refuse, &mut |e| events.push(e.clone())).unwrap();
    assert_eq!((undone.was_applied, events), (false, vec![Event::OtherBoot]));
    assert_eq!(tree.get(POOL), "7", "what another boot found is not restored");
    assert!(!tree.kept().places.journal.exists());
}

#[test]
fn a_setting_that_cannot_be_restored_stays_in_the_journal() {
    let tree = Tree::new();
    tree.apply(true, &mut |_| {}).unwrap();
    // The pages are in use: the pool does not shrink at once.
    let mut kernel = |event: &Event| {
        if matches!(event, Event::Set { path, .. } if path == POOL) {
            tree.put(POOL, "12\n");
        }
    };
    let error =
        undo(&tree.host(), &tree.kept(), None, IfChanged::Refuse, &mut kernel).unwrap_err().to_string();
    assert!(
        error.contains("1 of the changes") && error.contains("asked for 0, and the kernel has 12"),
        "{error}"
    );
    assert_eq!(tree.get(&irq(3)), "0-1", "all others are back");
    // A file may go meanwhile.
    assert_eq!(tree.undo().settings, 1);
    assert_eq!(tree.get(POOL), "0");
    tree.apply(false, &mut |_| {}).unwrap();
    fs::remove_file(tree.dir.join(irq(9).trim_start_matches('/'))).unwrap();
    assert_eq!(tree.undo().gone, 1);
}

#[test]
fn the_lock_is_held_by_one() {
    let tree = Tree::new();
    fs::create_dir_all(tree.dir.join("run")).unwrap();
    let _held = lock(WHAT, &tree.kept().places).unwrap();
    let error = tree.apply(false, &mut |_| {}).unwrap_err().to_string();
    assert!(error.contains("are held by"), "{error}");
}

#[test]
fn a_larger_pool_stays() {
    let tree = Tree::new();
    tree.put(POOL, "512\n");
    assert_eq!(tree.apply(false, &mut |_| {}).unwrap().as_planned, 1);
    assert_eq!(tree.get(POOL), "512");
    tree.undo();
    assert_eq!(tree.get(POOL), "512");
}

#[test]
fn settings_of_ksm_that_another_command_holds_are_left_alone() {
    let tree = Tree::new();
    let before = tree.state();
    fs::create_dir_all(tree.dir.join("run")).unwrap();
    let journal = tree.kept().ksm.journal;
    fs::write(&journal, "bifold-ksm 1\n").unwrap();
    assert!(matches!(tree.apply(false, &mut |_| {}), Err(ApplyError::Ksm(_))));
    assert_eq!(tree.state(), before);
    fs::remove_file(&journal).unwrap();
    tree.apply(false, &mut |_| {}).unwrap();
    fs::write(&journal, "bifold-ksm 1\n").unwrap();
    assert!(matches!(
        undo(&tree.host(), &tree.kept(), None, IfChanged::Refuse, &mut |_| {}),
        Err(ApplyError::Ksm(_))
    ));
    fs::remove_file(&journal).unwrap();
    tree.undo();
    tree.is_as_found(&before, "after undo");
}

#[test]
fn a_second_call_that_fails_leaves_the_first() {
    let tree = Tree::new();
    tree.put(POOL, "64\n");
    let mut plan = tree.plan();
    plan.steps.truncate(1);
    let live = tree.live();
    apply(&tree.host(), &plan, &[], &tree.kept(), &mut |_| {}).unwrap();
    // The process has another number of vCPUs than the plan.
    let none = LiveGuest { vcpus: Vec::new(), ..live };
    assert!(apply(&tree.host(), &plan, &[&none], &tree.kept(), &mut |_| {}).is_err());
    assert_eq!(tree.kept().applied(&tree.host()).unwrap(), Some(plan));
}

#[test]
fn an_io_thread_has_its_own_cpus_beside_ids_that_begin_alike() {
    let mut plan = Tree::new().plan().guests.remove(0);
    plan.io_threads = ["1", "2", "3"].map(|list| list.parse().unwrap()).into();
    for (ids, name, cpus) in [
        (["disk-of-data-1", "disk-of-data", "disk-of-web"], "disk-of-data-1", "1"),
        (["disk-of-data-1", "disk-of-data", "disk-of-web"], "disk-of-data", "2"),
        (["disk-of-data-1", "disk-of-data", "disk-of-web"], "disk-of-dat", "0-3"),
        (["disk-of-data-1", "disk-of-data-2", "disk-of-logs-1"], "disk-of-data-2", "2"),
        // A name that was cut off, of one id and of one among two.
        (["disk-of-data-1", "disk-of-data-2", "disk-of-logs-1"], "disk-of-logs", "3"),
        (["disk-of-data-1", "disk-of-data-2", "disk-of-logs-1"], "disk-of-data", "0-3"),
        (["disk-of-data-1", "disk-of-data-2", "disk-of-logs-1"], "vhost-42", "0-3"),
    ] {
        assert_eq!(io_cpus(&plan, &ids.map(String::from), name).to_string(), cpus, "{ids:?}: {name}");
    }
}
