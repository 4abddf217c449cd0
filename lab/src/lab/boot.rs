// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots the laboratory once: its files, the start of the vendor's emulator, and the outputs of the jobs.

use std::fs::File;
use std::io::{BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use super::error::{LabError, os};
use super::session::Session;
use super::{Answer, Attempt, Lab, Output, Plan};
use crate::vendor::Emulator;

/// The kernel's parameters under every emulator.
pub(super) const COMMAND_LINE: &str = "console=ttyS0 quiet nokaslr panic=-1 oops=panic rdinit=/init no_timer_check \
     tsc=reliable mitigations=off cryptomgr.notests=1 transparent_hugepage=never random.trust_cpu=on";

/// The emulator's ends of its connections: init's messages, and QEMU's machine protocol.
pub(super) struct Ports {
    pub(super) lab: OwnedFd,
    pub(super) monitor: OwnedFd,
}

/// Files that an emulator opens by the number of their descriptors.
pub(super) struct Files {
    pub(super) ram: File,
    pub(super) initrd: File,
    pub(super) console: File,
    pub(super) swap: File,
}

impl Lab {
    /// Words of the kernel's parameters that it passes to init as its environment, as it does with all
    /// `NAME=VALUE` that it does not know.
    pub(super) fn environment(&self) -> String {
        format!("PATH=/usr/bin:/bin BIFOLD_QEMU={}", self.qemu.path.display())
    }

    /// Boots, runs the jobs, and returns one output per job.
    pub fn boot(&self, plan: &Plan, answer: &mut Answer) -> Result<Vec<Output>, LabError> {
        let attempt = self.attempt(plan, answer)?;
        attempt.error.map_or(Ok(attempt.outputs), Err)
    }

    /// As [`boot`](Lab::boot), but returns the outputs of finished jobs if a later job fails.
    pub fn attempt(&self, plan: &Plan, answer: &mut Answer) -> Result<Attempt, LabError> {
        let mut initrd = memfd("bifold-lab-image", 0)?;
        initrd.write_all(&self.image(plan)?).map_err(os("writing the image"))?;
        let log = memfd("bifold-lab-log", 0)?;
        let pair = || UnixStream::pair().map_err(os("socketpair"));
        let ((mine, port), (monitor, its_monitor)) = (pair()?, pair()?);
        let files = Files {
            ram: memfd("bifold-lab-ram", plan.memory_mib << 20)?,
            initrd,
            console: memfd("bifold-lab-console", 0)?,
            swap: memfd("bifold-lab-swap", plan.swap_mib << 20)?,
        };
        let to_log = log.try_clone().map_err(os("dup"))?.into();
        // The emulator has the only other end of the connection: while one is open here, its death would go unnoticed.
        let child = match &self.vendor.emulator {
            Emulator::Qemu { flags } => {
                let ports = Ports { lab: port.into(), monitor: its_monitor.into() };
                self.start_qemu(plan, flags, &files, ports, to_log)?
            }
            Emulator::Bochs { model } => {
                drop(its_monitor);
                self.start_bochs(plan, model, &files, port.into(), to_log)?
            }
        };
        let Files { ram, console, .. } = files;
        let mut session = Session {
            child,
            from: BufReader::with_capacity(1 << 20, mine.try_clone().map_err(os("dup"))?),
            to: mine,
            ram,
            monitor,
            until: Instant::now() + Duration::from_secs(plan.seconds),
            begun: Instant::now(),
            now: Output::default(),
            outputs: Vec::new(),
            notes: plan.notes,
        };
        let error = match session.follow(answer) {
            Ok(()) if session.outputs.len() == plan.jobs.jobs.len() => None,
            end => Some(session.trouble(end.err(), plan.seconds, &console, &log)),
        };
        Ok(Attempt { outputs: session.outputs, rest: session.now, error })
    }
}

pub(super) fn memfd(name: &str, bytes: u64) -> Result<File, LabError> {
    Ok(File::from(bifold_guest::memfd::memfd(name, bytes)?))
}
