// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The laboratory under QEMU's TCG, which emulates AMD's virtualization: which QEMU, and its command line.
//!
//! `lab/qemu/build` makes a QEMU with a few corrections; without it, the laboratory takes the QEMU that is
//! installed.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::process::Stdio;

use bifold_guest::qemu::{self, BARE, MACHINE, Qemu, cpu, path_of};

use super::boot::{COMMAND_LINE, Files, Ports};
use super::error::LabError;
use super::job::PORT;
use super::session::Emulator;
use super::{DATA_DIRS, Lab, Plan};

/// The caller's QEMU for laboratories (`BIFOLD_LAB_QEMU`), or that of `lab/qemu/build` in target/qemu, whose
/// version says so.
pub(super) fn for_laboratories() -> Result<Option<Qemu>, LabError> {
    if let Some(named) = std::env::var_os("BIFOLD_LAB_QEMU").filter(|p| !p.is_empty()) {
        return Ok(Some(qemu::at(PathBuf::from(named))?));
    }
    let Some(path) = super::in_target("qemu/qemu-system-x86_64") else { return Ok(None) };
    let built = qemu::at(path)?;
    Ok(Some(Qemu { version: format!("{}, patched", built.version), ..built }))
}

/// Distances of a node to itself and to others (ACPI's SLIT), and latencies in nanoseconds for ACPI's HMAT.
const DISTANCES: [(u32, u32); 2] = [(10, 80), (21, 140)];

/// The machine, its RAM in the file `ram`, and its nodes.
fn machine(plan: &Plan, ram: &str) -> Vec<String> {
    let backend = |name: &str, size: u64, offset: u64| {
        format!("memory-backend-file,id={name},size={size},offset={offset},mem-path={ram},share=on")
    };
    let (bytes, nodes) = (plan.memory_mib << 20, u64::from(plan.nodes));
    let mut args: Vec<String> = Vec::new();
    let mut opt = |name: &str, value: String| args.extend([name.to_owned(), value]);
    if plan.nodes == 1 {
        opt("-machine", MACHINE.into());
        opt("-object", backend("ram", bytes, 0));
        return args;
    }
    opt("-machine", MACHINE.replace("memory-backend=ram", "hmat=on"));
    let cpus = u64::from(plan.cpus) / nodes;
    for node in 0..nodes {
        opt("-object", backend(&format!("ram{node}"), bytes / nodes, bytes / nodes * node));
        let (first, last) = (node * cpus, (node + 1) * cpus - 1);
        opt("-numa", format!("node,nodeid={node},cpus={first}-{last},memdev=ram{node},initiator={node}"));
    }
    for (from, to) in (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to))) {
        let (distance, ns) = DISTANCES[usize::from(from != to)];
        opt("-numa", format!("dist,src={from},dst={to},val={distance}"));
        opt(
            "-numa",
            format!(
                "hmat-lb,initiator={from},target={to},hierarchy=memory,data-type=access-latency,latency={ns}"
            ),
        );
    }
    args
}

impl Lab {
    fn arguments(&self, plan: &Plan, flags: &[&str], files: &Files, ports: &Ports) -> Vec<String> {
        let path = |file: &File| path_of(file.as_fd());
        let mut args = machine(plan, &path(&files.ram));
        let mut opt = |name: &str, value: String| args.extend([name.to_owned(), value]);
        if self.machine.is_some() {
            // That of `lab/qemu/build` is built without firmware: the packages' is taken.
            for dir in DATA_DIRS {
                opt("-L", dir.into());
            }
        }
        opt("-m", format!("{}M", plan.memory_mib));
        let more: Vec<&str> = self.model.iter().map(String::as_str).collect();
        opt("-cpu", cpu(&[flags, plan.cpu_flags, &more].concat()));
        opt("-smp", format!("{},sockets={}", plan.cpus, plan.nodes));
        let threads = if plan.cpus > 1 { "multi" } else { "single" };
        opt("-accel", format!("tcg,thread={threads}"));
        let mut append = format!("{COMMAND_LINE} {}", self.environment());
        if plan.exact {
            opt("-icount", format!("shift=1,sleep={}", if plan.sleeps { "on" } else { "off" }));
            opt("-seed", "1".into());
            opt("-rtc", "base=2026-01-01,clock=vm".into());
            append.push_str(" tsc_early_khz=1000000");
        }
        if plan.swap_mib > 0 {
            // A cgroup's limit is for pages that can be swapped, not for KVM's tables.
            append.push_str(" cgroup.memory=nokmem");
        }
        opt("-kernel", self.kernel.image.to_string_lossy().into_owned());
        opt("-initrd", path(&files.initrd));
        if let Some([name, image]) = qemu::firmware() {
            opt(&name, image);
        }
        opt("-append", append);
        opt("-chardev", format!("file,id=console,path={}", path(&files.console)));
        opt("-serial", "chardev:console".into());
        opt("-device", "virtio-serial-pci,ioeventfd=off".into());
        opt("-chardev", format!("socket,id=lab,fd={}", ports.lab.as_raw_fd()));
        opt("-chardev", format!("socket,id=monitor,fd={}", ports.monitor.as_raw_fd()));
        opt("-mon", "chardev=monitor,mode=control".into());
        opt("-device", format!("virtserialport,chardev=lab,name={PORT}"));
        if plan.swap_mib > 0 {
            let at = path(&files.swap);
            let speed = match plan.swap_iops {
                0 => String::new(),
                n => format!(",throttling.iops-total={n}"),
            };
            opt("-drive", format!("if=none,id=swap,format=raw,cache=unsafe,file={at}{speed}"));
            opt("-device", "virtio-blk-pci,drive=swap".into());
        }
        args.extend(BARE.map(String::from));
        args
    }

    /// Starts QEMU. Init's messages come out of a virtio-serial port, whose other side is `ports.lab`.
    pub(super) fn start_qemu(
        &self,
        plan: &Plan,
        flags: &[&str],
        files: &Files,
        ports: Ports,
        log: OwnedFd,
    ) -> Result<Emulator, LabError> {
        let arguments = self.arguments(plan, flags, files, &ports);
        let keep = [&files.ram, &files.initrd, &files.console, &files.swap].map(AsFd::as_fd);
        let keep: Vec<_> = keep.into_iter().chain([ports.lab.as_fd(), ports.monitor.as_fd()]).collect();
        Ok(Emulator(qemu::spawn(
            &self.machine.as_ref().unwrap_or(&self.qemu).path,
            &arguments,
            &keep,
            (Stdio::null(), log),
            false,
            None,
        )?))
    }
}
