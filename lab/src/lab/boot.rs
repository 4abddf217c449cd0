// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots the laboratory once: its files, the start of the vendor's emulator, and the outputs of the jobs.

use std::fs::File;
use std::io::{BufReader, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};

use super::error::{LabError, os};
use super::session::Session;
use super::{Answer, Attempt, Lab, Output, Plan};
use crate::vendor::Emulator;

/// The kernel's parameters under every emulator.
pub(crate) const COMMAND_LINE: &str = "console=ttyS0 quiet nokaslr panic=-1 oops=panic rdinit=/init no_timer_check \
     tsc=reliable mitigations=off cryptomgr.notests=1 transparent_hugepage=never random.trust_cpu=on";

/// Time for the kernel to start init under QEMU, where a kernel with checks takes 10 to 60 s. Linux 6.1 with
/// PROVE_RCU waits now and then without end in its own test of RCU-tasks, before its second CPU starts.
const UP_SECONDS: u64 = 300;
/// Boots of a kernel that does not start init.
const BOOTS: usize = 3;

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

    /// As [`boot`](Lab::boot) for jobs that ask nothing, of which the last one has to end with status 0.
    /// Returns its output.
    pub fn boot_for_last(&self, plan: &Plan) -> anyhow::Result<Output> {
        let mut outputs = self.boot(plan, &mut |_, _| String::new())?;
        let output = outputs.pop().context("no output")?;
        ensure!(output.done.status == 0, "exit status {}: {}", output.done.status, output.done.stderr.trim());
        Ok(output)
    }

    /// As [`boot`](Lab::boot), but returns the outputs of finished jobs if a later job fails. A kernel that
    /// does not start init is booted again: nothing of the jobs has run then.
    pub fn attempt(&self, plan: &Plan, answer: &mut Answer) -> Result<Attempt, LabError> {
        for _ in 1..BOOTS {
            let (attempt, up) = self.once(plan, answer)?;
            match &attempt.error {
                Some(error @ LabError::Timeout { .. }) if !up => eprintln!("lab: {error}; booting again"),
                _ => return Ok(attempt),
            }
        }
        Ok(self.once(plan, answer)?.0)
    }

    /// Boots once. Also tells whether the kernel started init.
    fn once(&self, plan: &Plan, answer: &mut Answer) -> Result<(Attempt, bool), LabError> {
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
        // The emulator has the only other end of the connection: while one is open here, its death would go
        // unnoticed.
        let begun = Instant::now();
        let until = begun + Duration::from_secs(plan.seconds);
        let mut up_until = until;
        let child = match &self.vendor.emulator {
            Emulator::Qemu { flags } => {
                let ports = Ports { lab: port.into(), monitor: its_monitor.into() };
                up_until = begun + Duration::from_secs(UP_SECONDS);
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
            until,
            up_until,
            up: false,
            begun,
            now: Output::default(),
            outputs: Vec::new(),
            notes: plan.notes,
        };
        let error = match session.follow(answer) {
            Ok(()) if session.outputs.len() == plan.jobs.jobs.len() => None,
            end => {
                let seconds = if session.up { plan.seconds } else { plan.seconds.min(UP_SECONDS) };
                Some(session.trouble(end.err(), seconds, &console, &log))
            }
        };
        Ok((Attempt { outputs: session.outputs, rest: session.now, error }, session.up))
    }
}

pub(super) fn memfd(name: &str, bytes: u64) -> Result<File, LabError> {
    Ok(File::from(bifold_guest::memfd::memfd(name, bytes)?))
}
