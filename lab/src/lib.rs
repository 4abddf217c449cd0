// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The KVM laboratory: boots a Debian kernel under QEMU's TCG with AMD's
//! virtualization emulated, so that the real KVM runs inside, and runs named tests
//! there. Nothing here opens this machine's own `/dev/kvm`.
//!
//! - `lab` builds the image, boots it and brings back what its jobs left;
//! - `exits` reads KVM's trace events and tells exits apart by their reason;
//! - `validate` holds the model's predicted exits against those counted;
//! - `quick` has the quick tests, by subject: exits, walks, switches, storms, `bifold mode`;
//! - `switch` runs the tiny VMM's cases of switching, `storm` a guest under load while its mode is switched;
//! - `unswitched` compares our KVM without a switch with an unmodified one.

pub mod exits;
pub mod lab;
pub mod quick;
pub mod storm;
pub mod switch;
pub mod unswitched;
pub mod validate;

pub use bifold_tiny_vmm::vendor;

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
