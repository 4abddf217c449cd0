// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts, follows and ends guests that keep running. They are not captured.
//!
//! Guest memory is anonymous memory of QEMU's process, which is QEMU's default and the only kind that KSM
//! merges. (A captured guest's memory is a shared file.) Init and CPU are those of a captured guest. TCG runs
//! on one thread, and guest time follows the host's clock.
//!
//! A guest ends when its [`GuestVm`] is dropped, and with the thread that started it (PR_SET_PDEATHSIG).

use std::fs::File;
use std::io::{ErrorKind, Read as _, Seek as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::{Child, ExitStatus, Stdio};

use crate::error::GuestError;
use crate::kernel::Kernel;
use crate::memfd::memfd;
use crate::qemu::{self, BARE, MACHINE, Qemu, firmware, guest_cpu, path_of};

/// Limit of QEMU's buffer for translated code. Guests here are small, and QEMU's default is an eighth of the
/// machine's memory for each.
const CODE_MIB: u32 = 64;
/// Lines that [`GuestVm::last_words`] returns.
const LOG_LINES: usize = 8;

/// The name of the virtio-serial port to which a workload writes.
pub const WORKLOAD_PORT: &str = "bifold.workload";

/// How to start a guest.
#[derive(Debug, Clone, Copy)]
pub struct GuestVmSpec<'a> {
    /// The guest's name, for QEMU and, as `bifold.guest=NAME`, on the kernel's command line.
    pub name: &'a str,
    /// Guest memory in MiB.
    pub memory_mib: u64,
    /// The kernel that the guest boots.
    pub kernel: &'a Kernel,
    /// The guest's initramfs.
    pub initrd: &'a Initrd,
    /// Whether KSM may merge guest memory (QEMU's default).
    pub merge: bool,
    /// Whether the host may back guest memory with huge pages.
    pub huge_pages: bool,
    /// Whether the guest runs under KVM, and not emulated.
    pub kvm: bool,
    /// The open file `cgroup.procs` of a cgroup in which QEMU starts, if not in that of this process.
    pub group: Option<BorrowedFd<'a>>,
    /// Further arguments of QEMU, such as devices.
    pub more: &'a [String],
}

/// An initramfs in memory, from which any number of guests can start.
#[derive(Debug)]
pub struct Initrd(OwnedFd);

impl Initrd {
    /// Copies an archive's bytes into a memfd.
    ///
    /// # Errors
    /// If the kernel has no memory for the archive.
    pub fn new(archive: &[u8]) -> Result<Initrd, GuestError> {
        let fd = memfd("bifold-initrd", archive.len() as u64)?;
        let file = File::from(fd);
        std::os::unix::fs::FileExt::write_all_at(&file, archive, 0)
            .map_err(GuestError::os("writing the initramfs"))?;
        Ok(Initrd(file.into()))
    }
}

/// A line from inside the guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum GuestLine {
    /// A line of the guest's init: `start`, `exit N`, `signal N`, `error TEXT`, `done`.
    Init(String),
    /// A line of the workload, from [`WORKLOAD_PORT`].
    Workload(String),
}

/// A running guest.
#[derive(Debug)]
pub struct GuestVm {
    child: Child,
    control: Lines,
    workload: Lines,
    /// QEMU's machine protocol.
    qmp: UnixStream,
    console: File,
    log: File,
}

impl GuestVm {
    /// Starts a guest and returns at once.
    ///
    /// # Errors
    /// If QEMU cannot be started.
    pub fn start(qemu: &Qemu, spec: &GuestVmSpec) -> Result<GuestVm, GuestError> {
        let pair = || UnixStream::pair().map_err(GuestError::os("a socket"));
        let (control, its_control) = pair()?;
        let (workload, its_workload) = pair()?;
        let (qmp, its_qmp) = pair()?;
        let console = File::from(memfd("bifold-console", 0)?);
        let log = File::from(memfd("bifold-log", 0)?);
        let fds = Fds {
            console: console.as_fd(),
            control: its_control.as_fd(),
            workload: its_workload.as_fd(),
            qmp: its_qmp.as_fd(),
        };
        let keep = [fds.console, fds.control, fds.workload, fds.qmp, spec.initrd.0.as_fd()];
        let to_log = log.try_clone().map_err(GuestError::os("a file's copy"))?.into();
        let child = qemu::spawn(
            &qemu.path,
            &arguments(spec, &fds),
            &keep,
            (Stdio::null(), to_log),
            !spec.huge_pages,
            spec.group,
        )?;
        // From here on, dropping `vm` ends the process.
        let vm = GuestVm {
            child,
            control: Lines::new(control),
            workload: Lines::new(workload),
            qmp,
            console,
            log,
        };
        for stream in [&vm.control.stream, &vm.workload.stream] {
            stream.set_nonblocking(true).map_err(GuestError::os("a socket"))?;
        }
        Ok(vm)
    }

    /// QEMU's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The socket of QEMU's machine protocol (QMP). The greeting has not been read.
    pub fn qmp(&self) -> &UnixStream {
        &self.qmp
    }

    /// The lines that the guest has written since the last call.
    pub fn new_lines(&mut self) -> Vec<GuestLine> {
        let init = self.control.new_ones().into_iter().map(GuestLine::Init);
        let workload = self.workload.new_ones().into_iter().map(GuestLine::Workload);
        init.chain(workload).collect()
    }

    /// Sends a line to the workload's port. The workload reads it if it has opened the port for reading.
    ///
    /// # Errors
    /// If QEMU has ended, or the workload has not read the lines before.
    pub fn send(&mut self, line: &str) -> Result<(), GuestError> {
        let mut stream = &self.workload.stream;
        stream.write_all(format!("{line}\n").as_bytes()).map_err(GuestError::os("a line to the workload"))
    }

    /// QEMU's exit status, if QEMU has ended.
    ///
    /// # Errors
    /// If the system does not say.
    pub fn ended(&mut self) -> Result<Option<ExitStatus>, GuestError> {
        self.child.try_wait().map_err(GuestError::os("waiting for qemu"))
    }

    /// The last lines of QEMU's messages and of the guest's console, without control characters.
    pub fn last_words(&mut self) -> String {
        let mut lines = Vec::new();
        for file in [&mut self.log, &mut self.console] {
            let mut bytes = Vec::new();
            // Reads of a memfd do not fail; if one did, the bytes until then would be the best answer.
            let _ = file.rewind().and_then(|()| file.read_to_end(&mut bytes));
            let text = String::from_utf8_lossy(&bytes).into_owned();
            let clean = text
                .lines()
                .map(|l| l.chars().filter(|c| !c.is_control()).collect::<String>())
                .filter(|l| !l.is_empty());
            lines.extend(clean);
        }
        lines[lines.len().saturating_sub(LOG_LINES)..].join("\n")
    }
}

impl Drop for GuestVm {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A stream's lines.
#[derive(Debug)]
struct Lines {
    stream: UnixStream,
    buffer: Vec<u8>,
}

/// Longer lines are dropped: neither init nor a workload writes them.
const LONGEST: usize = 64 << 10;

impl Lines {
    fn new(stream: UnixStream) -> Lines {
        Lines { stream, buffer: Vec::new() }
    }

    fn new_ones(&mut self) -> Vec<String> {
        let mut bytes = [0; 4096];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => break,
                Ok(n) => self.buffer.extend_from_slice(&bytes[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => break,
            }
            if self.buffer.len() > LONGEST && !self.buffer.contains(&b'\n') {
                self.buffer.clear();
            }
        }
        let mut lines = Vec::new();
        while let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            lines.push(String::from_utf8_lossy(&line).trim().to_owned());
        }
        lines
    }
}

/// Descriptors that QEMU opens by number.
struct Fds<'a> {
    console: BorrowedFd<'a>,
    control: BorrowedFd<'a>,
    workload: BorrowedFd<'a>,
    qmp: BorrowedFd<'a>,
}

fn arguments(spec: &GuestVmSpec, fds: &Fds) -> Vec<String> {
    let mut args: Vec<String> = Vec::new();
    let mut opt = |name: &str, value: String| args.extend([name.to_owned(), value]);
    opt("-machine", MACHINE.into());
    opt("-name", format!("{},debug-threads=on", spec.name.replace(',', ",,")));
    if spec.kvm {
        opt("-cpu", guest_cpu(&[]));
        opt("-accel", "kvm".into());
    } else {
        opt("-cpu", guest_cpu(&["kvm=off"]));
        opt("-accel", format!("tcg,thread=single,tb-size={CODE_MIB}"));
    }
    opt("-m", format!("{}M", spec.memory_mib));
    let merge = if spec.merge { "on" } else { "off" };
    opt("-object", format!("memory-backend-ram,id=ram,size={}M,merge={merge}", spec.memory_mib));
    opt("-rtc", "base=utc".into());
    opt("-kernel", spec.kernel.image.to_string_lossy().into_owned());
    opt("-initrd", path_of(spec.initrd.0.as_fd()));
    if let Some([name, image]) = firmware() {
        opt(&name, image);
    }
    // The root is a ramfs, because a tmpfs holds no more than half of the guest's memory. An emulated guest
    // has the ACPI timer's time: on a busy host, Linux measures the frequency of an emulated TSC several
    // times too low, and the guest's clock then runs ahead.
    let time = if spec.kvm { "" } else { "tsc=unstable clocksource=acpi_pm " };
    opt(
        "-append",
        format!(
            "console=ttyS0 quiet nokaslr panic=-1 rdinit=/init random.trust_cpu=on cryptomgr.notests=1 \
             no_timer_check {time}transparent_hugepage=never rootfstype=ramfs bifold.guest={}",
            spec.name
        ),
    );
    opt("-chardev", format!("file,id=console,path={}", path_of(fds.console)));
    opt("-serial", "chardev:console".into());
    opt("-device", "virtio-serial-pci".into());
    for (id, port, fd) in
        [("control", "bifold.control", fds.control), ("workload", WORKLOAD_PORT, fds.workload)]
    {
        opt("-chardev", format!("socket,id={id},fd={}", fd.as_raw_fd()));
        opt("-device", format!("virtserialport,chardev={id},name={port}"));
    }
    opt("-chardev", format!("socket,id=qmp,fd={}", fds.qmp.as_raw_fd()));
    opt("-mon", "chardev=qmp,mode=control".into());
    args.extend(BARE.map(String::from));
    args.extend_from_slice(spec.more);
    args
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_whole_however_they_were_cut() {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let mut lines = Lines::new(ours);
        theirs.write_all(b"ready\ncyc").unwrap();
        assert_eq!(lines.new_ones(), ["ready"]);
        assert!(lines.new_ones().is_empty());
        theirs.write_all(b"le 1\ncycle 2\n").unwrap();
        assert_eq!(lines.new_ones(), ["cycle 1", "cycle 2"]);
        drop(theirs);
        assert!(lines.new_ones().is_empty());
    }

    #[test]
    fn a_guest_that_lives_on_has_mergeable_anonymous_memory() {
        let initrd = Initrd::new(b"x").unwrap();
        let kernel = Kernel { image: "/k".into(), modules: None, version: "6.1".into() };
        let file = File::open("/dev/null").unwrap();
        let fd = file.as_fd();
        let fds = Fds { console: fd, control: fd, workload: fd, qmp: fd };
        let more = ["-device".into()];
        let spec = |merge| GuestVmSpec {
            name: "a,b",
            memory_mib: 64,
            kernel: &kernel,
            initrd: &initrd,
            merge,
            huge_pages: false,
            kvm: false,
            group: None,
            more: &more,
        };
        let words = |merge| arguments(&spec(merge), &fds).join(" ");
        assert!(words(true).contains("memory-backend-ram,id=ram,size=64M,merge=on"));
        assert!(words(false).contains("merge=off"));
        assert!(words(true).contains("-name a,,b,") && words(true).ends_with(" -device"));
    }
}
