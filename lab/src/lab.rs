// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots the laboratory: a Debian kernel under TCG with `svm` and `npt`, an
//! initramfs with what the jobs need, and `lab-init` as its first process.
//!
//! Every boot has a time limit, ends with the thread that began it, and leaves its
//! console log behind if it went wrong, and nothing if not. A boot that went wrong still
//! gives what it had done until then ([`Lab::attempt`]).

mod image;
mod session;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufReader, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use bifold_guest::kernel::{self, Kernel};
use bifold_guest::qemu::{self, BARE, MACHINE, Qemu, cpu, path_of};
use bifold_guest::{GuestError, Kind};

use crate::job::{Done, Jobs, PORT};
use crate::kvm_module::ModuleError;
use session::{Emulator, Session};

/// Why a boot did not do its jobs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// No emulator, no kernel and the like.
    #[error(transparent)]
    Capture(#[from] GuestError),
    /// The kernel's KVM cannot be used.
    #[error("{version}: {why}")]
    Module {
        /// The kernel.
        version: String,
        /// What is wrong.
        why: ModuleError,
    },
    /// A module does not belong to the kernel.
    #[error("{}: built for {built}, and the laboratory's kernel is {version}", path.display())]
    OtherKernel {
        /// The module.
        path: PathBuf,
        /// What it says that it was built for.
        built: String,
        /// The kernel.
        version: String,
    },
    /// The kernel package has no KVM for AMD.
    #[error("{version} has no module kvm-amd: the laboratory emulates AMD's virtualization and needs it")]
    NoKvm {
        /// The kernel.
        version: String,
    },
    /// A program that is to run there cannot.
    #[error("{}: {why}", path.display())]
    Program {
        /// The program.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// It did not end in time.
    #[error(
        "the laboratory was not done after {seconds} s, at job {job}; its console log is in {}", log.display()
    )]
    Timeout {
        /// The limit.
        seconds: u64,
        /// Which job was at hand, from 0.
        job: usize,
        /// Its console.
        log: PathBuf,
    },
    /// A job failed.
    #[error("job {job} of the laboratory failed: {why}; its console log is in {}", log.display())]
    Job {
        /// Which, from 0.
        job: usize,
        /// What init said.
        why: String,
        /// The console.
        log: PathBuf,
    },
    /// It ended without a word.
    #[error("the laboratory ended at job {job} without a word: {why}; its console log is in {}", log.display())]
    Died {
        /// Which job was at hand, from 0.
        job: usize,
        /// The emulator's own words, or what was read.
        why: String,
        /// The console.
        log: PathBuf,
    },
    /// A system call failed.
    #[error("{what}: {source}")]
    Os {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
}

impl LabError {
    /// Whether this machine lacks something (exit status 77) or the run failed.
    pub fn kind(&self) -> Kind {
        match self {
            LabError::Capture(e) => e.kind(),
            LabError::NoKvm { .. } | LabError::Module { .. } | LabError::OtherKernel { .. } => {
                Kind::CannotWorkHere
            }
            _ => Kind::Failed,
        }
    }
}

fn os(what: &'static str) -> impl FnOnce(std::io::Error) -> LabError {
    move |source| LabError::Os { what, source }
}

/// What a boot shall hold and do.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The jobs.
    pub jobs: Jobs,
    /// Programs to take along, with their libraries, under their own paths.
    pub programs: Vec<PathBuf>,
    /// Files and directories to take along, programs among them with their libraries.
    pub files: Vec<PathBuf>,
    /// Time by instructions executed: the same boot does the same. On one CPU only.
    pub exact: bool,
    /// CPUs of the laboratory. More than one have a thread each.
    pub cpus: u32,
    /// Take QEMU along for programs that start it themselves; jobs with guests always have it.
    pub emulator: bool,
    /// A disk for swapping, if not 0.
    pub swap_mib: u64,
    /// Gets what jobs say of their progress.
    pub notes: fn(&str),
    /// Memory of the laboratory.
    pub memory_mib: u64,
    /// All of it has to end within this.
    pub seconds: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            jobs: Jobs { jobs: Vec::new(), huge_pages: 0 },
            programs: Vec::new(),
            files: Vec::new(),
            exact: true,
            cpus: 1,
            emulator: false,
            swap_mib: 0,
            notes: |_| (),
            memory_mib: 1536,
            seconds: 600,
        }
    }
}

/// A job's result.
#[derive(Debug, Clone, Default)]
pub struct Output {
    /// How it ended.
    pub done: Done,
    /// Files it left.
    pub files: BTreeMap<String, Vec<u8>>,
    /// How long it took; the first job's time has the boot in it.
    pub seconds: f64,
}

/// What came of a boot.
#[derive(Debug)]
pub struct Attempt {
    /// One per job that was done.
    pub outputs: Vec<Output>,
    /// What the job that was not done has left until then.
    pub rest: Output,
    /// Why there are not more.
    pub error: Option<LabError>,
}

/// Answers what a program in the laboratory asks; gets the laboratory's memory, which lies in
/// the file as in the machine up to 2 GiB. An empty answer is none, and ends the boot.
pub type Answer<'a> = dyn FnMut(&str, &mut File) -> String + 'a;

/// The emulator and a kernel with KVM.
#[derive(Debug, Clone)]
pub struct Lab {
    qemu: Qemu,
    kernel: Kernel,
    /// The kernel of inner guests.
    inner: Kernel,
    /// Modules that come before the kernel's own.
    own: Option<PathBuf>,
}

/// Kernels that tests run on: Debian 12's, and that of 13 and of 12's backports.
pub const SERIES: [&str; 2] = ["6.1", "6.12"];

/// What stock QEMU needs besides its libraries to boot an inner guest.
const FIRMWARE: [&str; 2] = ["qboot.rom", "pvh.bin"];
const DATA_DIRS: [&str; 3] = ["/usr/share/qemu", "/usr/share/seabios", "/usr/lib/ipxe/qemu"];

/// `lab-init` lies beside the executable, or a directory above (tests).
pub fn beside(name: &str) -> Result<PathBuf, LabError> {
    let exe = std::env::current_exe().map_err(os("finding the executable"))?;
    exe.ancestors()
        .skip(1)
        .take(2)
        .map(|d| d.join(name))
        .find(|p| p.is_file())
        .ok_or(LabError::Program { path: name.into(), why: "not built; run cargo build --workspace" })
}

impl Lab {
    /// Finds or fetches what is needed: a kernel package, or the newest of a series
    /// such as `6.1`.
    pub fn new(kernel: &str, stage: &mut dyn FnMut(&str)) -> Result<Lab, LabError> {
        Lab::with(kernel::for_lab(kernel, stage)?)
    }

    /// With a kernel of the first of [`SERIES`] that there is.
    pub fn any(stage: &mut dyn FnMut(&str)) -> Result<Lab, LabError> {
        let mut end = Lab::new(SERIES[0], stage);
        for series in &SERIES[1..] {
            let Err(LabError::Capture(GuestError::NoSuchKernel { .. })) = end else { break };
            end = Lab::new(series, stage);
        }
        end
    }

    /// With a kernel that is at hand.
    pub fn with(kernel: Kernel) -> Result<Lab, LabError> {
        Ok(Lab { qemu: qemu::find()?, inner: kernel.clone(), kernel, own: None })
    }

    /// The same laboratory with modules of this directory before the kernel's own: another KVM.
    pub fn with_modules(mut self, dir: PathBuf) -> Lab {
        self.own = Some(dir);
        self
    }

    /// The same laboratory on another kernel: inner guests keep theirs.
    pub fn on(mut self, kernel: Kernel) -> Lab {
        self.kernel = kernel;
        self
    }

    /// The kernel of the laboratory.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The kernel of inner guests.
    pub fn inner(&self) -> &Kernel {
        &self.inner
    }

    /// The emulator's version.
    pub fn qemu_version(&self) -> &str {
        &self.qemu.version
    }

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
        opt("-cpu", cpu(&["-nrip-save", "+svm", "+npt"]));
        opt("-smp", plan.cpus.to_string());
        let threads = if plan.cpus > 1 { "multi" } else { "single" };
        opt("-accel", format!("tcg,thread={threads}"));
        let mut append = String::from(
            "console=ttyS0 quiet nokaslr panic=-1 rdinit=/init no_timer_check tsc=reliable mitigations=off \
             cryptomgr.notests=1 transparent_hugepage=never random.trust_cpu=on",
        );
        // What the kernel does not know and has a `=` becomes init's environment.
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

    /// Boots, does the jobs, and brings their results back, one per job.
    pub fn boot(&self, plan: &Plan, answer: &mut Answer) -> Result<Vec<Output>, LabError> {
        let attempt = self.attempt(plan, answer)?;
        attempt.error.map_or(Ok(attempt.outputs), Err)
    }

    /// The same, for who wants the results of jobs before one that failed. Without a machine there
    /// are none: then it is an error at once.
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
        // Its end of the connection above all: or its death would not be heard of.
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

/// What the emulator opens by number.
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
