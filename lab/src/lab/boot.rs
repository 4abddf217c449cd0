// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots the laboratory once: QEMU's command line, its start, and the outputs of the jobs.

use std::fs::File;
use std::io::{BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use bifold_guest::qemu::{self, BARE, MACHINE, cpu, path_of};

use super::error::{LabError, os};
use super::job::PORT;
use super::session::{Emulator, Session};
use super::{Answer, Attempt, Lab, Output, Plan};

impl Lab {
    fn arguments(&self, plan: &Plan, fds: &Fds) -> Vec<String> {
        let Fds { ram, initrd, console, swap, port } = fds;
        let path = |file: &File| path_of(file.as_fd());
        let mut args: Vec<String> = Vec::new();
        let mut opt = |name: &str, value: String| args.extend([name.to_owned(), value]);
        opt("-machine", MACHINE.into());
        let bytes = plan.memory_mib << 20;
        let ram = path(ram);
        opt("-object", format!("memory-backend-file,id=ram,size={bytes},mem-path={ram},share=on"));
        opt("-m", format!("{}M", plan.memory_mib));
        opt("-cpu", cpu(&[self.vendor.emulator_flags, plan.cpu_flags].concat()));
        opt("-smp", plan.cpus.to_string());
        let threads = if plan.cpus > 1 { "multi" } else { "single" };
        opt("-accel", format!("tcg,thread={threads}"));
        let mut append = String::from(
            "console=ttyS0 quiet nokaslr panic=-1 rdinit=/init no_timer_check tsc=reliable mitigations=off \
             cryptomgr.notests=1 transparent_hugepage=never random.trust_cpu=on",
        );
        // The kernel passes unknown `NAME=VALUE` words to init as its environment.
        append.push_str(&format!(" PATH=/usr/bin:/bin BIFOLD_QEMU={}", self.qemu.path.display()));
        if plan.exact {
            opt("-icount", "shift=1,sleep=off".into());
            opt("-seed", "1".into());
            opt("-rtc", "base=2026-01-01,clock=vm".into());
            append.push_str(" tsc_early_khz=1000000");
        }
        opt("-kernel", self.kernel.image.to_string_lossy().into_owned());
        opt("-initrd", path(initrd));
        if let Some([name, image]) = qemu::firmware() {
            opt(&name, image);
        }
        opt("-append", append);
        opt("-chardev", format!("file,id=console,path={}", path(console)));
        opt("-serial", "chardev:console".into());
        opt("-device", "virtio-serial-pci,ioeventfd=off".into());
        opt("-chardev", format!("socket,id=lab,fd={}", port.as_raw_fd()));
        opt("-device", format!("virtserialport,chardev=lab,name={PORT}"));
        if plan.swap_mib > 0 {
            let at = path(swap);
            opt("-drive", format!("if=none,id=swap,format=raw,cache=unsafe,file={at}"));
            opt("-device", "virtio-blk-pci,drive=swap".into());
        }
        args.extend(BARE.map(String::from));
        args
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
        let (mine, port) = UnixStream::pair().map_err(os("socketpair"))?;
        let fds = Fds {
            ram: memfd("bifold-lab-ram", plan.memory_mib << 20)?,
            initrd,
            console: memfd("bifold-lab-console", 0)?,
            swap: memfd("bifold-lab-swap", plan.swap_mib << 20)?,
            port,
        };
        let to_log = log.try_clone().map_err(os("dup"))?.into();
        let arguments = self.arguments(plan, &fds);
        let child = Emulator(qemu::spawn(&self.qemu.path, &arguments, &fds.all(), to_log, false)?);
        // Above all QEMU's end of the connection: while it is open here, QEMU's death would go unnoticed.
        let Fds { ram, console, initrd, swap, port } = fds;
        drop((initrd, swap, port));
        let mut session = Session {
            child,
            from: BufReader::with_capacity(1 << 20, mine.try_clone().map_err(os("dup"))?),
            to: mine,
            ram,
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

/// Descriptors that QEMU opens by number.
struct Fds {
    ram: File,
    initrd: File,
    console: File,
    swap: File,
    port: UnixStream,
}

impl Fds {
    fn all(&self) -> [BorrowedFd<'_>; 5] {
        let [ram, initrd, console, swap] =
            [&self.ram, &self.initrd, &self.console, &self.swap].map(AsFd::as_fd);
        [ram, initrd, console, swap, self.port.as_fd()]
    }
}

fn memfd(name: &str, bytes: u64) -> Result<File, LabError> {
    Ok(File::from(bifold_guest::memfd::memfd(name, bytes)?))
}
