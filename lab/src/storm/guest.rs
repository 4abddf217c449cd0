// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts the guest of a storm under stock QEMU, and talks to the guest and to QEMU.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bifold_guest::memfd::memfd;
use bifold_guest::qemu::{self, BARE, MACHINE, guest_cpu, path_of};
use bifold_host::qmp::Qmp;
use serde_json::{Value, json};

use super::{Pages, Storm};
use crate::lab::job::at;

/// Further features: protection keys where the laboratory's processor has them, which Linux turns on
/// (CR4.PKE) at its start, and KVM's paravirtual ones. With those, a guest's flushes and page faults take
/// other paths through KVM. The APIC stays MMIO (no x2APIC), so every timer and every interrupt between CPUs
/// is a fault outside RAM, in either mode.
const FEATURES: [&str; 8] = [
    "+pku",
    "+kvm-pv-tlb-flush",
    "+kvm-steal-time",
    "+kvm-pv-eoi",
    "+kvm-pv-unhalt",
    "+kvm-asyncpf",
    "+kvm-asyncpf-int",
    "+kvm-poll-control",
];

/// Time limit of QEMU's answers. QEMU answers when its main loop runs, which can take long here.
const PATIENCE: Duration = Duration::from_secs(120);

/// A running guest. Dropping it ends QEMU, and waits at most 10 s for that.
pub(super) struct Guest {
    child: Child,
    line: UnixStream,
    heard: Vec<u8>,
    pub(super) qmp: Option<Qmp>,
    console: File,
    log: File,
    /// The console's text before the last migration.
    earlier: String,
}

impl Drop for Guest {
    fn drop(&mut self) {
        let _ = self.child.kill();
        for _ in 0..500 {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn arguments(storm: &Storm) -> Vec<String> {
    let bytes = storm.memory_mib << 20;
    let merge = if storm.pages == Pages::Merged { "on" } else { "off" };
    let kernel = format!(
        "console=ttyS0 loglevel=5 nokaslr panic=-1 rdinit=/init random.trust_cpu=on cryptomgr.notests=1 \
         no_timer_check tsc=reliable pti={} transparent_hugepage=madvise STORM_LOAD={} STORM_SEED={}",
        if storm.kpti { "on" } else { "off" },
        storm.load,
        storm.seed
    );
    let args = [
        ("-machine", MACHINE.into()),
        ("-accel", "kvm".into()),
        ("-name", "storm,debug-threads=on".into()),
        ("-cpu", guest_cpu(&FEATURES)),
        ("-smp", storm.vcpus.to_string()),
        ("-m", format!("{}M", storm.memory_mib)),
        ("-object", format!("memory-backend-ram,id=ram,size={bytes},merge={merge}")),
        ("-kernel", at::INNER_KERNEL.into()),
        ("-initrd", at::STORM.into()),
        ("-append", kernel),
    ];
    let mut args: Vec<String> = args.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
    args.extend(qemu::firmware().into_iter().flatten());
    args
}

impl Guest {
    pub(super) fn start(storm: &Storm) -> Result<Guest> {
        Guest::run(storm, &[])
    }

    /// Starts a QEMU that waits for a migration.
    pub(super) fn awaited(storm: &Storm) -> Result<Guest> {
        Guest::run(storm, &["-incoming", "defer"])
    }

    fn run(storm: &Storm, more: &[&str]) -> Result<Guest> {
        let (line, theirs) = UnixStream::pair()?;
        let (monitor, its) = UnixStream::pair()?;
        let (console, log) = (File::from(memfd("storm-console", 0)?), File::from(memfd("storm-log", 0)?));
        let qemu = std::env::var("BIFOLD_QEMU").context("BIFOLD_QEMU")?;
        let mut args = arguments(storm);
        let mut opt = |name: &str, value: String| args.extend([name.to_owned(), value]);
        opt("-chardev", format!("socket,id=line,fd={}", theirs.as_raw_fd()));
        opt("-chardev", format!("socket,id=monitor,fd={}", its.as_raw_fd()));
        opt("-chardev", format!("file,id=console,path={}", path_of(console.as_fd())));
        opt("-serial", "chardev:console".into());
        opt("-mon", "chardev=monitor,mode=control".into());
        opt("-device", "virtio-serial-pci".into());
        opt("-device", "virtserialport,chardev=line,name=bifold.storm".into());
        // A guest that shuts down stays for inspection.
        opt("-action", "reboot=shutdown,shutdown=pause".into());
        args.extend(BARE.map(String::from));
        args.extend(more.iter().map(|word| word.to_string()));
        let keep = [theirs.as_fd(), its.as_fd(), console.as_fd()];
        let small_pages = storm.pages != Pages::Huge;
        let child = qemu::spawn(
            Path::new(&qemu),
            &args,
            &keep,
            (Stdio::null(), log.try_clone()?.into()),
            small_pages,
            None,
        )?;
        drop((theirs, its));
        let mut guest =
            Guest { child, line, heard: Vec::new(), qmp: None, console, log, earlier: String::new() };
        match Qmp::greet(&monitor, PATIENCE) {
            Ok(qmp) => guest.qmp = Some(qmp),
            Err(e) => bail!("QEMU's monitor: {e}: {}", contents(&guest.log)),
        }
        Ok(guest)
    }

    /// Makes this guest the continuation of `before`.
    pub(super) fn after(mut self, before: &mut Guest) -> Guest {
        self.earlier = before.console();
        self.heard = std::mem::take(&mut before.heard);
        self
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The guest's next line, if it arrives within this time.
    pub(super) fn next_line(&mut self, time: Duration) -> Result<Option<String>> {
        let until = Instant::now() + time;
        loop {
            if let Some(end) = self.heard.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return Ok(Some(String::from_utf8_lossy(&line).trim().to_owned()));
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(None);
            }
            self.line.set_read_timeout(Some(left))?;
            let mut bytes = [0; 4096];
            match self.line.read(&mut bytes) {
                Ok(0) => bail!("the guest has ended: {}", self.last_words()),
                Ok(n) => self.heard.extend_from_slice(&bytes[..n]),
                Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
                Err(e) => bail!("the guest has ended ({e}): {}", self.last_words()),
            }
        }
    }

    pub(super) fn tell(&mut self, byte: u8) -> Result<()> {
        Ok(self.line.write_all(&[byte])?)
    }

    pub(super) fn console(&self) -> String {
        self.earlier.clone() + &contents(&self.console)
    }

    /// QEMU's exit status if it has ended, the end of the console, and QEMU's messages.
    fn last_words(&mut self) -> String {
        let console = self.console();
        let lines: Vec<&str> = console.lines().filter(|l| !l.trim().is_empty()).collect();
        let tail = lines[lines.len().saturating_sub(30)..].join("\n");
        // QEMU's sockets are closed a moment before the process ends.
        std::thread::sleep(Duration::from_secs(1));
        let end =
            self.child.try_wait().ok().flatten().map_or("QEMU is still there".into(), |s| s.to_string());
        format!("{end}\n{}\n{tail}", contents(&self.log).trim())
    }
}

/// Reads a whole file without moving its position, which QEMU may share.
fn contents(file: &File) -> String {
    let mut data = vec![0; file.metadata().map_or(0, |m| m.len() as usize)];
    let n = file.read_at(&mut data, 0).unwrap_or(0);
    String::from_utf8_lossy(&data[..n]).into_owned()
}

/// Runs a command of the human monitor, by QMP.
fn human(qmp: &mut Qmp, line: &str, vcpu: u32) -> Result<String> {
    let how = json!({ "command-line": line, "cpu-index": vcpu });
    Ok(qmp.ask("human-monitor-command", how)?.as_str().unwrap_or_default().replace('\r', ""))
}

/// The guest's run state and the registers and interrupt controllers of its vCPUs, as text.
pub(super) fn state(qmp: &mut Qmp, vcpus: u32) -> Result<String> {
    let mut text = qmp.ask("query-status", json!({}))?.to_string() + "\n";
    text += &qmp.events().iter().map(Value::to_string).collect::<Vec<_>>().join("\n");
    for vcpu in 0..vcpus {
        text += &format!("\n{}\n{}", human(qmp, "info registers", vcpu)?, human(qmp, "info lapic", vcpu)?);
    }
    Ok(text)
}
