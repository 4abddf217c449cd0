// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots the laboratory: a Debian kernel in an emulator of the vendor's virtualization (QEMU's TCG for AMD's,
//! Bochs for Intel's), an initramfs with what the jobs need, and `lab-init` as its first process.
//!
//! Every boot has a time limit and ends with the thread that started it. A boot that fails leaves its console
//! log in a file; its finished jobs still have their outputs ([`Lab::attempt`]).

mod bochs;
mod boot;
mod error;
mod image;
pub mod job;
pub mod kvm_module;
mod pc;
mod qemu;
mod session;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use bifold_guest::GuestError;
use bifold_guest::TableFormat;
use bifold_guest::kernel::{self, Kernel};
use bifold_guest::qemu::{Qemu, find as find_qemu};

pub(crate) use boot::COMMAND_LINE;
pub use error::{LabError, Skipped};
pub(crate) use session::Emulator as Running;

use crate::vendor::{AMD, Emulator, Vendor};
use bochs::Bochs;
use error::os;
use job::{Done, Jobs, Machine};

/// A boot: its jobs, files and machine.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The jobs.
    pub jobs: Jobs,
    /// Programs that go into the image with their libraries, under their own paths.
    pub programs: Vec<PathBuf>,
    /// Files and directories that go into the image. Programs among them come with their libraries.
    pub files: Vec<PathBuf>,
    /// Files that are made for this boot: their paths and contents.
    pub made: Vec<(String, Vec<u8>)>,
    /// Exact time, which counts executed instructions, so that boots repeat. Needs one CPU.
    pub exact: bool,
    /// With exact time, whether time passes as outside while all CPUs are idle: a disk then takes the time
    /// that it takes. Otherwise idle time is skipped.
    pub sleeps: bool,
    /// Flags of the laboratory's CPU beside the vendor's.
    pub cpu_flags: &'static [&'static str],
    /// Number of the laboratory's CPUs. If there are several, each has a thread.
    pub cpus: u32,
    /// Number of nodes that share CPUs and memory evenly. Each node is a socket.
    pub nodes: u32,
    /// Put QEMU into the image, for programs that start it. Jobs with guests always have it.
    pub emulator: bool,
    /// Size of a disk for swapping; 0 = none.
    pub swap_mib: u64,
    /// Most reads and writes of that disk in a second; 0 = no limit.
    pub swap_iops: u64,
    /// The laboratory inside, for [`job::Job::Machine`]: its jobs, programs and files. The rest is the job's.
    pub inside: Option<Box<Plan>>,
    /// Called with progress notes of the jobs.
    pub notes: fn(&str),
    /// Memory of the laboratory in MiB.
    pub memory_mib: u64,
    /// Time limit of the boot.
    pub seconds: u64,
}

impl Default for Plan {
    fn default() -> Self {
        Plan {
            jobs: Vec::new().into(),
            programs: Vec::new(),
            files: Vec::new(),
            made: Vec::new(),
            exact: true,
            sleeps: false,
            cpu_flags: &[],
            cpus: 1,
            nodes: 1,
            emulator: false,
            swap_mib: 0,
            swap_iops: 0,
            inside: None,
            notes: |_| (),
            memory_mib: 1536,
            seconds: 600,
        }
    }
}

/// A job's result.
#[derive(Debug, Clone, Default)]
pub struct Output {
    /// How the job ended.
    pub done: Done,
    /// Files that the job left, by name.
    pub files: BTreeMap<String, Vec<u8>>,
    /// Run time. The first job's time includes the boot.
    pub seconds: f64,
}

impl Output {
    /// The output of a job of the laboratory inside, if this is that of a
    /// [`Job::Machine`](job::Job::Machine).
    ///
    /// # Errors
    /// If that job did not end.
    pub fn inside(&self, number: usize) -> anyhow::Result<Output> {
        let done = self.files.get(&Machine::done(number));
        let done = done.with_context(|| format!("the laboratory inside did not end job {number}"))?;
        let done = serde_json::from_slice(done)?;
        let start = Machine::of_job(number);
        let own =
            |(name, data): (&String, &Vec<u8>)| Some((name.strip_prefix(&start)?.to_owned(), data.clone()));
        Ok(Output { done, files: self.files.iter().filter_map(own).collect(), seconds: self.seconds })
    }
}

/// The outcome of a boot.
#[derive(Debug)]
pub struct Attempt {
    /// Outputs of the finished jobs.
    pub outputs: Vec<Output>,
    /// What the unfinished job has sent.
    pub rest: Output,
    /// Why the boot ended early, if it did.
    pub error: Option<LabError>,
}

/// Answers a question of a program in the laboratory. The file is the laboratory's memory, laid out as in the
/// machine up to 2 GiB. An empty answer means failure and ends the boot.
pub type Answer<'a> = dyn FnMut(&str, &mut File) -> String + 'a;

/// A laboratory: the emulator, and a kernel with KVM.
#[derive(Debug, Clone)]
pub struct Lab {
    /// The VMM of inner guests, and the laboratory's emulator where there is no other QEMU for that.
    qemu: Qemu,
    /// The QEMU that the laboratory runs in, if not the same.
    machine: Option<Qemu>,
    kernel: Kernel,
    /// The kernel of inner guests.
    inner: Kernel,
    /// Directory of modules that replace the kernel's own.
    own: Option<PathBuf>,
    /// The vendor whose virtualization is emulated.
    vendor: &'static Vendor,
    /// Bochs, where the vendor's processors need it.
    bochs: Option<Bochs>,
    /// The model of CPU, if not the vendor's usual; for QEMU flags, separated by commas.
    model: Option<String>,
    /// Parameters of the vendor's module of KVM.
    parameters: Vec<String>,
}

/// The first series of `kernel/series.txt`: the default of `--kernel`.
pub fn default_series() -> &'static str {
    kernel::series()[0].name
}

/// Files that stock QEMU needs besides its libraries: to boot an inner guest, and kvm-unit-tests' Multiboot
/// kernels.
const FIRMWARE: [&str; 6] =
    ["qboot.rom", "pvh.bin", "bios-256k.bin", "kvmvapic.bin", "multiboot.bin", "multiboot_dma.bin"];
const DATA_DIRS: [&str; 3] = ["/usr/share/qemu", "/usr/share/seabios", "/usr/lib/ipxe/qemu"];

/// Path of `lab-init`, beside the executable or (for tests) one directory above.
pub fn beside(name: &str) -> Result<PathBuf, LabError> {
    let exe = std::env::current_exe().map_err(os("finding the executable"))?;
    exe.ancestors()
        .skip(1)
        .take(2)
        .map(|d| d.join(name))
        .find(|p| p.is_file())
        .ok_or(LabError::Program { path: name.into(), why: "not built; run make workspace" })
}

/// A file that a script of this repository made in target/, by its path there.
pub(crate) fn in_target(path: &str) -> Option<PathBuf> {
    let exe = std::env::current_exe().ok()?;
    // The executable lies in target/PROFILE, tests in target/PROFILE/deps.
    let beside = exe.ancestors().skip(2).take(2).map(Path::to_owned);
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target");
    beside.chain([here]).map(|d| d.join(path)).find(|p| p.is_file())
}

impl Lab {
    /// Finds QEMU, and finds or fetches a kernel: a package, or the newest package of a series such as `6.1`.
    pub fn new(kernel: &str, stage: &mut dyn FnMut(&str)) -> Result<Lab, LabError> {
        Lab::with(kernel::for_lab(kernel, stage)?)
    }

    /// A laboratory with a kernel of the first series in `kernel/series.txt` that apt knows.
    pub fn any(stage: &mut dyn FnMut(&str)) -> Result<Lab, LabError> {
        let mut end = Lab::new(default_series(), stage);
        for series in &kernel::series()[1..] {
            let Err(LabError::Guest(GuestError::NoSuchKernel { .. })) = end else { break };
            end = Lab::new(series.name, stage);
        }
        end
    }

    /// A laboratory with the caller's kernel.
    pub fn with(kernel: Kernel) -> Result<Lab, LabError> {
        Ok(Lab {
            qemu: find_qemu()?,
            machine: qemu::for_laboratories()?,
            inner: kernel.clone(),
            kernel,
            own: None,
            vendor: &AMD,
            bochs: None,
            model: None,
            parameters: Vec::new(),
        })
    }

    /// The same laboratory with another KVM: modules in this directory replace the kernel's own.
    pub fn with_modules(mut self, dir: PathBuf) -> Lab {
        self.own = Some(dir);
        self
    }

    /// The same laboratory with another vendor's processors, perhaps another model than the vendor's usual
    /// (for QEMU: the usual with more flags, such as `+la57`), and with parameters of the vendor's module of
    /// KVM (`NAME=VALUE`).
    ///
    /// # Errors
    /// If there is no emulator of these processors here, or the emulator has no such model.
    pub fn of(
        mut self,
        vendor: &'static Vendor,
        model: Option<String>,
        parameters: Vec<String>,
    ) -> Result<Lab, LabError> {
        if let (Emulator::Qemu { .. }, Some(model)) = (&vendor.emulator, &model) {
            if !model.split(',').all(|flag| flag.starts_with(['+', '-'])) {
                return Err(LabError::Model { model: model.clone(), vendor });
            }
        }
        if let Emulator::Bochs { .. } = vendor.emulator {
            self.bochs = Some(bochs::find()?);
        }
        (self.vendor, self.model, self.parameters) = (vendor, model, parameters);
        Ok(self)
    }

    /// The same laboratory whose KVM traces every interrupt that a guest gets.
    pub fn traced(mut self) -> Lab {
        self.parameters.extend(self.vendor.traced.iter().map(|p| (*p).to_owned()));
        self
    }

    /// The same laboratory, whose inner guests have these tables. In 32-bit mode they have Debian's kernels
    /// for that, and with 5 levels a packed kernel, whose decompressor turns these on.
    ///
    /// # Errors
    /// If there is no such kernel here, and none can be fetched.
    pub fn with_inner_tables(
        mut self,
        tables: TableFormat,
        stage: &mut dyn FnMut(&str),
    ) -> Result<Lab, LabError> {
        match tables {
            TableFormat::FourLevel => {}
            TableFormat::FiveLevel => self.inner.image = self.inner.image.with_file_name("vmlinuz"),
            TableFormat::Pae | TableFormat::TwoLevel => self.inner = kernel::default_of(tables, stage)?,
        }
        Ok(self)
    }

    /// The same laboratory on another kernel. Inner guests keep their kernel.
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

    /// The vendor whose virtualization is emulated.
    pub fn vendor(&self) -> &'static Vendor {
        self.vendor
    }

    /// The modules that `kernel/build` made for this laboratory's kernel, in `target/kernel/RELEASE`. `None`
    /// if they are not built.
    pub fn built_modules(&self) -> Option<PathBuf> {
        let file = format!("kernel/{}/{}", self.kernel.version, self.vendor.module_file());
        Some(in_target(&file)?.parent()?.to_owned())
    }

    /// The same laboratory with these modules, whose KVM switches VMs.
    ///
    /// # Errors
    /// If they are not built.
    pub fn switching(&self) -> Result<Lab, Skipped> {
        let lacks = || Skipped(format!("no modules for {}: make kernel builds them", self.kernel.version));
        Ok(self.clone().with_modules(self.built_modules().ok_or_else(lacks)?))
    }

    /// Nothing if the laboratory runs under QEMU.
    ///
    /// # Errors
    /// What is said of Bochs otherwise.
    pub fn needs_qemu(&self, of_bochs: &str) -> Result<(), Skipped> {
        match self.vendor.emulator {
            Emulator::Bochs { .. } => Err(Skipped(of_bochs.to_owned())),
            Emulator::Qemu { .. } => Ok(()),
        }
    }

    /// What `kernel/src` and `kernel/patches` were when the modules of [`Lab::with_modules`] were built, by
    /// the `build.txt` beside them. `kernel/build --revision` prints the tree's.
    pub fn revision(&self) -> Option<String> {
        let text = std::fs::read_to_string(self.own.as_ref()?.join("build.txt")).ok()?;
        let at = text.split_once("kernel/src and kernel/patches: ")?.1;
        Some(at.split_once(')')?.0.to_owned())
    }

    /// The line of a page of results that says of which modules it is; `evidence/tools/stamps` reads it.
    pub fn modules_line(&self) -> String {
        self.revision().map_or("Modules: the kernel's own\n".into(), |r| format!("Modules: `{r}`\n"))
    }

    /// The KVM selftests that `kernel/selftests` built of this laboratory's kernel, in
    /// `target/selftests/RELEASE`. `None` if they are not built.
    pub fn built_selftests(&self) -> Option<PathBuf> {
        Some(in_target(&format!("selftests/{}/build.txt", self.kernel.version))?.parent()?.to_owned())
    }

    /// The version of the QEMU that runs inner guests.
    pub fn qemu_version(&self) -> &str {
        &self.qemu.version
    }

    /// Name and version of the emulator that the laboratory runs in.
    pub fn emulator(&self) -> String {
        match &self.bochs {
            Some(bochs) => format!("Bochs {}", bochs.version),
            None => format!("QEMU {}", self.machine.as_ref().unwrap_or(&self.qemu).version),
        }
    }
}
