// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The KVM laboratory boots a Debian kernel on an emulated AMD processor (QEMU's TCG), so that the real KVM
//! runs inside, and runs jobs there. It never opens this machine's own `/dev/kvm`.
//! `lab/README.md` says what can be run and how to add to it.
//!
//! - [`lab`] builds the image, boots it and brings back the output of its jobs;
//! - [`exits`] reads KVM's trace events and tells exits apart by their reason;
//! - [`compare`] says how near a prediction is to a count;
//! - [`validate`] compares the exits that the model predicts with those counted;
//! - [`reclaim`] does so for a host that pages out;
//! - [`mod@quick`] has the quick tests, by subject: exits, walks, switches, storms, `bifold mode`;
//! - [`switch`] runs the tiny VMM's switch cases, [`storm`] switches the mode of a guest under load;
//! - [`mod@fuzz`] fuzzes KVM's interface while VMs are switched;
//! - [`kvm_tests`] runs kvm-unit-tests and the kernel's KVM selftests under both KVMs;
//! - [`machine`] runs a laboratory inside the laboratory, for guests within guests;
//! - [`unswitched`] compares our KVM without a switch with an unmodified one;
//! - [`place`] runs parallel programs in guests that are placed well and badly on a host with nodes;
//! - [`modelled`] makes a modelled PMU of the program with phases.
//!
//! ```no_run
//! use bifold_lab::lab::job::Job;
//! use bifold_lab::lab::{Lab, Plan};
//!
//! let lab = Lab::any(&mut |stage| eprintln!("{stage}"))?;
//! let jobs = vec![Job::Kvm { nested: true }, Job::Run { command: vec!["/bin/true".into()] }];
//! let plan = Plan { jobs: jobs.into(), programs: vec!["/bin/true".into()], ..Plan::default() };
//! for output in lab.boot(&plan, &mut |_question, _memory| String::new())? {
//!     println!("exit status {} after {:.1} s", output.done.status, output.seconds);
//! }
//! # Ok::<(), bifold_lab::lab::LabError>(())
//! ```

pub mod compare;
pub mod exits;
pub mod fuzz;
pub mod kvm_tests;
pub mod lab;
pub mod limit;
pub mod live;
pub mod machine;
pub mod modelled;
pub mod place;
pub mod pressure;
pub mod quick;
pub mod reclaim;
pub mod storm;
pub mod superfluous;
mod swapping;
pub mod switch;
pub mod unswitched;
pub mod validate;

pub use bifold_tiny_vmm::vendor;

use bifold_guest::{GuestSpec, Record};

/// Debian's static busybox, the shell of the laboratory's jobs.
const BUSYBOX: &str = "/bin/busybox";

/// The tiny VMM's program, beside that of the laboratory.
const TINY_VMM: &str = "tiny-vmm";

/// The command that runs a shell script.
fn sh(script: &str) -> Vec<String> {
    [BUSYBOX, "sh", "-c", script].map(String::from).to_vec()
}

/// The inner guest that is also captured, with defaults for all that varies. Its CPU is of the laboratory's
/// vendor: a Linux guest that takes itself for AMD's writes MSRs that kvm-intel does not have.
pub fn guest(vendor: &vendor::Vendor) -> GuestSpec {
    GuestSpec {
        cpu_vendor: vendor.cpuid,
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        record: Record::Boot,
        ..GuestSpec::new(Vec::new())
    }
}

/// The programs of `programs/`, one static binary.
pub const SUITE: &str = concat!(env!("OUT_DIR"), "/suite");

/// The same for guests in 32-bit mode; empty if the C compiler makes no programs for it.
pub const SUITE_32: &str = concat!(env!("OUT_DIR"), "/suite32");

/// A preprocessed C file, for a real compiler run.
pub const REAL_SOURCE: &str = concat!(env!("OUT_DIR"), "/real.i");

/// The load of storms (`loads/`), a static binary that is a guest's first process.
pub const STORM: &str = concat!(env!("OUT_DIR"), "/storm");

/// The program with phases (`phases/`), a static binary.
pub const PHASES: &str = concat!(env!("OUT_DIR"), "/phases");
