// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The KVM laboratory: boots a Debian kernel under QEMU's TCG with AMD's
//! virtualization emulated, so that the real KVM runs inside, and runs named tests
//! there. Nothing here opens this machine's own `/dev/kvm`.
//!
//! `lab` builds the image and boots it, `job` is what passes in and out, `ftrace`
//! and `exits` read what KVM's trace events say, `kvm_module` explains the one bit in
//! which the laboratory's KVM differs from Debian's.

pub mod exits;
pub mod ftrace;
pub mod job;
pub mod kvm_module;
pub mod lab;
pub mod storm;
pub mod switch;
pub mod tests;
pub mod unswitched;
pub mod validate;

use bifold_guest::{GuestSpec, Record};

/// The inner guest that is also captured: everything but what varies.
pub fn guest() -> GuestSpec {
    GuestSpec {
        env: vec![("PATH".into(), "/usr/bin:/bin".into())],
        record: Record::Boot,
        ..GuestSpec::new(Vec::new())
    }
}

/// The programs of `programs/`, one static binary.
pub const SUITE: &str = concat!(env!("OUT_DIR"), "/suite");

/// A preprocessed C file, for a real compiler run.
pub const REAL_SOURCE: &str = concat!(env!("OUT_DIR"), "/real.i");

/// The load of storms (`storm/`), a static binary that is a guest's first process.
pub const STORM: &str = concat!(env!("OUT_DIR"), "/storm");
