// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the inner Linux guest under stock QEMU: it boots, its command's output and status are returned, and
//! its CPU has the flags of the captured guest's CPU.
//!
//! Under shadow paging the boot also shows that CR3 is read correctly, because a kernel that reads a wrong
//! CR3 does not boot (`kvm_module.rs`).

use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use bifold_guest::{GuestSpec, TableFormat};
use bifold_trace::CommandExit;

use super::{BUSYBOX, Shared, once, single};
use crate::lab::Output;
use crate::lab::job::{Inner, Job};
use crate::vendor::Vendor;

const MIB: u64 = 256;

fn command() -> Vec<String> {
    crate::sh(&format!("{BUSYBOX} cat /proc/cpuinfo; echo wrong >&2; exit 7"))
}

pub fn jobs() -> Result<Vec<Job>> {
    Ok(jobs_of(TableFormat::FourLevel))
}

/// The same in a guest with these tables.
pub fn jobs_of(tables: TableFormat) -> Vec<Job> {
    vec![Job::Inner(Inner { tables, ..Inner::new(command(), MIB) })]
}

fn flags(cpuinfo: &str, vendor: &Vendor) -> Result<Vec<String>> {
    let line =
        cpuinfo.lines().find_map(|l| l.strip_prefix("flags")?.split_once(':')).context("no CPU flags")?;
    let mut flags: Vec<String> =
        line.1.split_whitespace().filter(|f| !vendor.other_flags.contains(f)).map(String::from).collect();
    flags.sort();
    Ok(flags)
}

/// The CPU flags of the captured guest.
fn captured(shared: &Shared) -> Result<Vec<String>> {
    let kernel = shared.lab.inner();
    let spec = GuestSpec {
        command: command().iter().map(Into::into).collect(),
        memory_mib: MIB,
        kernel: Some(kernel.image.clone()),
        modules: kernel.modules.clone(),
        ..crate::guest(shared.lab.vendor())
    };
    let report = bifold_guest::plain(&spec, &AtomicBool::new(false), &mut |_| ())?;
    ensure!(report.exit == CommandExit::Code(7), "the guest's command ended with {:?}", report.exit);
    flags(&String::from_utf8_lossy(&report.stdout), shared.lab.vendor())
}

pub fn check(shared: &Shared, outputs: &[Output]) -> Result<()> {
    let d = &single(outputs)?.done;
    ensure!(
        (d.status, d.stderr.as_str()) == (7, "wrong\n"),
        "a command that exits with 7 came back with {}: {}",
        d.status,
        d.stderr
    );
    let here = flags(&d.stdout, shared.lab.vendor())?;
    let there = once(&shared.flags, || captured(shared)).context("the guest without KVM")?;
    let only = |a: &[String], b: &[String]| -> String {
        a.iter().filter(|f| !b.contains(f)).cloned().collect::<Vec<_>>().join(" ")
    };
    let (extra, missing) = (only(&here, there), only(there, &here));
    ensure!(
        extra.is_empty() && missing.is_empty(),
        "its CPU is not the captured guest's: it has [{extra}] more and [{missing}] less"
    );
    Ok(())
}
