// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots the laboratory: a Debian kernel under TCG with `svm` and `npt`, an
//! initramfs with what the jobs need, and `lab-init` as its first process.
//!
//! Every boot has a time limit, ends with the thread that began it, and leaves its
//! console log behind if it went wrong, and nothing if not. A boot that went wrong still
//! gives what it had done until then ([`Lab::attempt`]).

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek, Write};
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use bifold_capture::cpio::{Archive, Entry};
use bifold_capture::kernel::{self, Kernel};
use bifold_capture::modules::{self, Modules};
use bifold_capture::qemu::{self, Qemu};
use bifold_capture::{CaptureError, Kind, Progress, image};

use crate::job::{Done, Job, Jobs, PORT, Word, at};
use crate::kvm_module::{self, ModuleError};

/// Why a boot did not do its jobs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LabError {
    /// No emulator, no kernel and the like.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The kernel's KVM cannot be used.
    #[error("{version}: {why}")]
    Module {
        /// The kernel.
        version: String,
        /// What is wrong.
        why: ModuleError,
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
            LabError::NoKvm { .. } | LabError::Module { .. } => Kind::CannotWorkHere,
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
    /// Time by instructions executed: the same boot does the same.
    pub exact: bool,
    /// Memory of the laboratory.
    pub memory_mib: u64,
    /// All of it has to end within this.
    pub seconds: u64,
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
}

/// Kernels that tests run on: Debian 12's, and that of 13 and of 12's backports.
pub const SERIES: [&str; 2] = ["6.1", "6.12"];

/// What stock QEMU needs besides its libraries to boot an inner guest.
const FIRMWARE: [&str; 2] = ["qboot.rom", "pvh.bin"];
const DATA_DIRS: [&str; 3] = ["/usr/share/qemu", "/usr/share/seabios", "/usr/lib/ipxe/qemu"];

/// Ends the emulator when dropped.
struct Emulator(Child);

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

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
    pub fn new(kernel: &str, progress: &mut dyn FnMut(Progress)) -> Result<Lab, LabError> {
        Ok(Lab { qemu: qemu::find()?, kernel: kernel::for_lab(kernel, progress)? })
    }

    /// With a kernel of the first of [`SERIES`] that there is.
    pub fn any(progress: &mut dyn FnMut(Progress)) -> Result<Lab, LabError> {
        let mut end = Lab::new(SERIES[0], progress);
        for series in &SERIES[1..] {
            let Err(LabError::Capture(CaptureError::NoSuchKernel { .. })) = end else { break };
            end = Lab::new(series, progress);
        }
        end
    }

    /// With a kernel that is at hand.
    pub fn with(kernel: Kernel) -> Result<Lab, LabError> {
        Ok(Lab { qemu: qemu::find()?, kernel })
    }

    /// The kernel of the laboratory and of inner guests.
    pub fn kernel(&self) -> &Kernel {
        &self.kernel
    }

    /// The emulator's version.
    pub fn qemu_version(&self) -> &str {
        &self.qemu.version
    }

    fn add_modules(&self, archive: &mut Archive) -> Result<(), LabError> {
        let version = || self.kernel.version.clone();
        let dir = self.kernel.modules.as_deref().ok_or_else(|| LabError::NoKvm { version: version() })?;
        let all = Modules::scan(dir)?;
        if !all.has("kvm_amd") {
            return Err(LabError::NoKvm { version: version() });
        }
        let mut order = Vec::new();
        for path in all.with_dependencies(&["virtio_pci", "virtio_console", "kvm_amd"]) {
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let name = name.trim_end_matches(".xz").trim_end_matches(".zst").to_owned();
            let data = modules::read(&path)?;
            let mut add = |at: String, data| archive.add(at.as_bytes(), Entry::File { mode: 0o600, data });
            if name.trim_end_matches(".ko").replace('-', "_") == "kvm_amd" {
                let shadow = kvm_module::for_shadow(&data)
                    .map_err(|why| LabError::Module { version: version(), why })?;
                add(format!("{}/nested.ko", at::KVM_AMD), data);
                add(format!("{}/shadow.ko", at::KVM_AMD), shadow);
            } else {
                // Init loads them in the order of their names.
                add(format!("{}/{:02}-{name}", at::MODULES, order.len()), data);
                order.push(name);
            }
        }
        Ok(())
    }

    /// Stock QEMU, and the kernel for inner guests with its modules.
    fn add_inner(&self, archive: &mut Archive) -> Result<(), LabError> {
        image::add_program(archive, &self.qemu.path)?;
        for name in FIRMWARE {
            let found = DATA_DIRS.iter().map(|d| Path::new(d).join(name)).find(|p| p.exists());
            if let Some(path) = found {
                let data = fs::read(&path).map_err(os("reading QEMU's firmware"))?;
                let at = Path::new(DATA_DIRS[0]).join(name);
                archive.add(at.as_os_str().as_bytes(), Entry::File { mode: 0o644, data });
            }
        }
        let mut add = |at: &str, path: &Path| -> Result<(), LabError> {
            let data = fs::read(path).map_err(os("reading the kernel"))?;
            archive.add(at.as_bytes(), Entry::File { mode: 0o644, data });
            Ok(())
        };
        add(at::INNER_KERNEL, &self.kernel.image)?;
        if let Some(dir) = &self.kernel.modules {
            let all = Modules::scan(dir)?;
            let mut wanted = all.with_dependencies(&["virtio_pci", "virtio_console"]);
            wanted.push(dir.join("modules.builtin"));
            for path in wanted {
                let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
                add(&format!("{}/{name}", at::INNER_MODULES), &path)?;
            }
        }
        Ok(())
    }

    fn image(&self, plan: &Plan) -> Result<Vec<u8>, LabError> {
        let mut archive = Archive::default();
        let init = beside("lab-init")?;
        image::add_program(&mut archive, &init)?;
        archive.add(b"init", Entry::Link { to: init.as_os_str().as_bytes().to_vec() });
        for (dir, mode) in
            [("dev", 0o755), ("proc", 0o755), ("sys", 0o755), ("tmp", 0o1777), ("lab/out", 0o755)]
        {
            archive.add(dir.as_bytes(), Entry::Dir { mode });
        }
        for path in &plan.programs {
            if !image::executable(path) {
                return Err(LabError::Program { path: path.clone(), why: "not an executable file" });
            }
            image::add_program(&mut archive, path)?;
        }
        for path in &plan.files {
            image::add_tree(&mut archive, path)?;
        }
        self.add_modules(&mut archive)?;
        if plan.jobs.jobs.iter().any(|j| matches!(j, Job::Inner(_))) {
            self.add_inner(&mut archive)?;
        }
        let jobs = serde_json::to_vec(&plan.jobs).expect("jobs are plain data");
        archive.add(at::JOBS.as_bytes(), Entry::File { mode: 0o600, data: jobs });
        Ok(archive.bytes())
    }

    fn command(&self, plan: &Plan, ram: &File, initrd: &File, console: &File, port: &UnixStream) -> Command {
        let path = |fd: i32| format!("/proc/self/fd/{fd}");
        let mut c = Command::new(&self.qemu.path);
        let mut opt = |name: &str, value: String| {
            c.arg(name).arg(value);
        };
        opt("-machine", "q35,memory-backend=ram,smm=off,usb=off,sata=off,hpet=off".into());
        let bytes = plan.memory_mib << 20;
        let ram = path(ram.as_raw_fd());
        opt("-object", format!("memory-backend-file,id=ram,size={bytes},mem-path={ram},share=on"));
        opt("-m", format!("{}M", plan.memory_mib));
        // What TCG does not have of an EPYC is left out, or it would say so every time.
        let cpu = "EPYC,-fxsr-opt,-misalignsse,-osvw,-topoext,-nrip-save,-xsavec,+svm,+npt";
        opt("-cpu", cpu.into());
        opt("-smp", "1".into());
        opt("-accel", "tcg,thread=single".into());
        let mut args = String::from(
            "console=ttyS0 quiet nokaslr panic=-1 rdinit=/init no_timer_check tsc=reliable mitigations=off \
             cryptomgr.notests=1 transparent_hugepage=never random.trust_cpu=on",
        );
        // What the kernel does not know and has a `=` becomes init's environment.
        args.push_str(&format!(" PATH=/usr/bin:/bin BIFOLD_QEMU={}", self.qemu.path.display()));
        if plan.exact {
            opt("-icount", "shift=1,sleep=off".into());
            opt("-seed", "1".into());
            opt("-rtc", "base=2026-01-01,clock=vm".into());
            args.push_str(" tsc_early_khz=1000000");
        }
        opt("-kernel", self.kernel.image.to_string_lossy().into_owned());
        opt("-initrd", path(initrd.as_raw_fd()));
        let qboot = Path::new(DATA_DIRS[0]).join(FIRMWARE[0]);
        if qboot.exists() {
            opt("-bios", qboot.to_string_lossy().into_owned());
        }
        opt("-append", args);
        opt("-chardev", format!("file,id=console,path={}", path(console.as_raw_fd())));
        opt("-serial", "chardev:console".into());
        opt("-device", "virtio-serial-pci,ioeventfd=off".into());
        opt("-chardev", format!("socket,id=lab,fd={}", port.as_raw_fd()));
        opt("-device", format!("virtserialport,chardev=lab,name={PORT}"));
        c.args(["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"]);
        c
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
        let ram = memfd("bifold-lab-ram", plan.memory_mib << 20)?;
        let console = memfd("bifold-lab-console", 0)?;
        let log = memfd("bifold-lab-log", 0)?;
        let (mine, theirs) = UnixStream::pair().map_err(os("socketpair"))?;
        let mut c = self.command(plan, &ram, &initrd, &console, &theirs);
        c.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
        c.stderr(log.try_clone().map_err(os("dup"))?);
        let keep = [ram.as_raw_fd(), initrd.as_raw_fd(), console.as_raw_fd(), theirs.as_raw_fd()];
        // SAFETY: between fork and exec only async-signal-safe calls are made: prctl and fcntl, on
        // descriptors that this function keeps open.
        unsafe {
            c.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
                for fd in keep {
                    rustix::io::fcntl_setfd(BorrowedFd::borrow_raw(fd), rustix::io::FdFlags::empty())?;
                }
                Ok(())
            });
        }
        let child = Emulator(c.spawn().map_err(os("starting qemu"))?);
        drop((theirs, initrd));
        let mut session = Session {
            child,
            from: BufReader::with_capacity(1 << 20, mine.try_clone().map_err(os("dup"))?),
            to: mine,
            ram,
            until: Instant::now() + Duration::from_secs(plan.seconds),
            begun: Instant::now(),
            now: Output::default(),
            outputs: Vec::new(),
        };
        let error = match session.follow(answer) {
            Ok(()) if session.outputs.len() == plan.jobs.jobs.len() => None,
            end => Some(session.trouble(end.err(), plan.seconds, &console, &log)),
        };
        Ok(Attempt { outputs: session.outputs, error })
    }
}

fn memfd(name: &str, bytes: u64) -> Result<File, LabError> {
    let fd = rustix::fs::memfd_create(name, rustix::fs::MemfdFlags::CLOEXEC)
        .map_err(|e| os("memfd_create")(e.into()))?;
    rustix::fs::ftruncate(&fd, bytes).map_err(|e| os("sizing a memfd")(e.into()))?;
    Ok(File::from(fd))
}

/// Keeps a log under a name that no other boot has.
fn keep(text: &str) -> std::io::Result<PathBuf> {
    let dir = std::env::temp_dir();
    let mut n = 0;
    loop {
        let at = dir.join(format!("bifold-lab-{}-{n}.log", std::process::id()));
        match File::create_new(&at) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => n += 1,
            file => return file.and_then(|mut f| f.write_all(text.as_bytes())).map(|()| at),
        }
    }
}

/// How the emulator ended.
fn ended(status: &std::io::Result<Option<std::process::ExitStatus>>) -> String {
    match status {
        Ok(Some(status)) => format!("the emulator ended with {status}"),
        Ok(None) => "the emulator closed its connection".into(),
        Err(e) => e.to_string(),
    }
}

/// Why the words ended.
enum End {
    Late,
    Failed(String),
    Garbled(String),
}

struct Session {
    child: Emulator,
    from: BufReader<UnixStream>,
    to: UnixStream,
    ram: File,
    until: Instant,
    /// When the job at hand began.
    begun: Instant,
    /// What there is of it.
    now: Output,
    outputs: Vec<Output>,
}

impl Session {
    /// Waits for input until the time is over; `None` at the end of it.
    fn wait(&mut self) -> Result<Option<()>, End> {
        if !self.from.buffer().is_empty() {
            return Ok(Some(()));
        }
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(End::Late);
        }
        let garbled = |e: std::io::Error| End::Garbled(e.to_string());
        self.from.get_ref().set_read_timeout(Some(left)).map_err(garbled)?;
        match self.from.fill_buf() {
            Ok([]) => Ok(None),
            Ok(_) => Ok(Some(())),
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => Err(End::Late),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => Ok(Some(())),
            Err(e) if e.kind() == std::io::ErrorKind::ConnectionReset => Ok(None),
            Err(e) => Err(garbled(e)),
        }
    }

    fn take(&mut self, bytes: u64, delimiter: Option<u8>) -> Result<Option<Vec<u8>>, End> {
        let mut out = Vec::new();
        loop {
            if delimiter.is_none() && out.len() as u64 == bytes {
                return Ok(Some(out));
            }
            if self.wait()?.is_none() {
                return Ok(None);
            }
            let have = self.from.buffer();
            let room = (bytes - out.len() as u64).min(have.len() as u64) as usize;
            let end = delimiter.and_then(|d| have[..room].iter().position(|b| *b == d));
            let n = end.map_or(room, |e| e + 1);
            out.extend_from_slice(&have[..n]);
            self.from.consume(n);
            if end.is_some() {
                return Ok(Some(out));
            }
            if delimiter.is_some() && out.len() as u64 >= bytes {
                return Err(End::Garbled("a line without an end".into()));
            }
        }
    }

    fn follow(&mut self, answer: &mut Answer) -> Result<(), End> {
        while let Some(line) = self.take(1 << 30, Some(b'\n'))? {
            let text = String::from_utf8_lossy(&line);
            let word: Word = serde_json::from_str(&text).map_err(|e| {
                End::Garbled(format!("{e} in {:?}", text.chars().take(200).collect::<String>()))
            })?;
            match word {
                Word::Up(_) => {}
                Word::Ask(line) => {
                    let reply = answer(&line, &mut self.ram);
                    if reply.is_empty() {
                        let line: String = line.chars().take(200).collect();
                        return Err(End::Failed(format!("nobody here can answer {line}")));
                    }
                    let sent = self.to.write_all((reply + "\n").as_bytes());
                    sent.map_err(|e| End::Garbled(e.to_string()))?;
                }
                Word::File { name, bytes } => {
                    let Some(data) = self.take(bytes, None)? else { return Ok(()) };
                    self.now.files.insert(name, data);
                }
                Word::Done(done) => {
                    let mut output = std::mem::take(&mut self.now);
                    output.done = done;
                    output.seconds = self.begun.elapsed().as_secs_f64();
                    self.begun = Instant::now();
                    self.outputs.push(output);
                }
                Word::Failed(why) => return Err(End::Failed(why)),
                Word::End => return Ok(()),
            }
        }
        Ok(())
    }

    fn trouble(&mut self, end: Option<End>, seconds: u64, console: &File, log: &File) -> LabError {
        let job = self.outputs.len();
        // Its end of the connection closes a moment before it is gone.
        let mut status = self.child.0.try_wait();
        for _ in 0..100 {
            if end.is_some() || !matches!(status, Ok(None)) {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
            status = self.child.0.try_wait();
        }
        let _ = self.child.0.kill();
        let _ = self.child.0.wait();
        let contents = |mut f: &File| {
            let mut data = Vec::new();
            let _ = f.rewind().and_then(|()| f.read_to_end(&mut data));
            String::from_utf8_lossy(&data).into_owned()
        };
        let (said, own) = (contents(console), contents(log));
        let at = keep(&format!("{said}\n--- qemu ---\n{own}"))
            .unwrap_or_else(|e| format!("no file, as none can be written: {e}").into());
        match end {
            Some(End::Late) => LabError::Timeout { seconds, job, log: at },
            Some(End::Failed(why)) => LabError::Job { job, why, log: at },
            Some(End::Garbled(why)) => LabError::Died { job, why, log: at },
            None => {
                let panic = said.lines().find(|l| l.contains("Kernel panic")).map(str::trim);
                let why = panic.or(own.lines().next()).map_or_else(|| ended(&status), str::to_owned);
                LabError::Died { job, why, log: at }
            }
        }
    }
}
