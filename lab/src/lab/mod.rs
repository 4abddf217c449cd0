// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots the laboratory: a Debian kernel under TCG with the vendor's virtualization emulated, an initramfs
//! with what the jobs need, and `lab-init` as its first process.
//!
//! Every boot has a time limit and ends with the thread that started it. A boot that fails leaves its console
//! log in a file; its finished jobs still have their outputs ([`Lab::attempt`]).

mod boot;
mod error;
mod image;
pub mod job;
pub mod kvm_module;
mod session;

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};

use bifold_guest::GuestError;
use bifold_guest::kernel::{self, Kernel};
use bifold_guest::qemu::{self, Qemu};

pub use error::LabError;

use crate::vendor::{AMD, Vendor};
use error::os;
use job::{Done, Jobs};

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
    /// Whose virtualization is emulated.
    vendor: &'static Vendor,
}

/// The first series of `kernel/series.txt`: the default of `--kernel`.
pub fn default_series() -> &'static str {
    kernel::series()[0].0
}

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

    /// With a kernel of the first series of `kernel/series.txt` that apt knows.
    pub fn any(stage: &mut dyn FnMut(&str)) -> Result<Lab, LabError> {
        let mut end = Lab::new(default_series(), stage);
        for (series, _) in &kernel::series()[1..] {
            let Err(LabError::Guest(GuestError::NoSuchKernel { .. })) = end else { break };
            end = Lab::new(series, stage);
        }
        end
    }

    /// With a kernel that the caller has found.
    pub fn with(kernel: Kernel) -> Result<Lab, LabError> {
        Ok(Lab { qemu: qemu::find()?, inner: kernel.clone(), kernel, own: None, vendor: &AMD })
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

    /// Whose virtualization the laboratory has.
    pub fn vendor(&self) -> &'static Vendor {
        self.vendor
    }

    /// Where `kernel/build` puts the modules for this laboratory's kernel: `target/kernel/RELEASE`. None
    /// if they are not built.
    pub fn built_modules(&self) -> Option<PathBuf> {
        let exe = std::env::current_exe().ok()?;
        // The executable lies in target/PROFILE, tests in target/PROFILE/deps.
        let beside = exe.ancestors().skip(2).take(2).map(|d| d.join("kernel"));
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/kernel");
        let module = self.vendor.module_file();
        beside.chain([here]).map(|d| d.join(&self.kernel.version)).find(|d| d.join(&module).is_file())
    }

    /// The emulator's version.
    pub fn qemu_version(&self) -> &str {
        &self.qemu.version
    }
}
