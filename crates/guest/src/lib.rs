// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Linux guests under QEMU: this crate finds a kernel, builds an initramfs, writes QEMU's command line
//! and starts the guest. It either records everything that one command and its kernel do
//! ([`mod@capture`]), or starts guests that keep running and are looked at from outside ([`vm`]).
//!
//! [`GuestSpec`] says what to run and in what guest. [`capture()`] runs the command and hands the event
//! stream of [`bifold_trace::event`] to a consumer. [`vm::GuestVm`] is a guest that keeps running;
//! [`packages`] brings programs for it out of Debian packages.
//!
//! No file, process or shared memory outlives its owner: guest memory, ring and logs are memfds, and
//! QEMU dies with the thread that started it.
//!
//! The crate neither interprets events nor costs them (`bifold-model` does). A recording lacks the page
//! walker's own memory accesses (the model makes them), the descriptor-table reads of exception
//! delivery, and devices' DMA.
//!
//! ```no_run
//! use std::sync::atomic::AtomicBool;
//!
//! use bifold_guest::{GuestSpec, Root, capture};
//!
//! let spec = GuestSpec { root: Root::Host, ..GuestSpec::new(vec!["/bin/true".into()]) };
//! let (stop, mut words) = (AtomicBool::new(false), 0);
//! let report = capture(&spec, &stop, &mut |_| {}, &mut |chunk| {
//!     words += chunk.len();
//!     Ok(())
//! })?;
//! println!("{:?}: {} accesses in {words} words", report.exit, report.stats.accesses);
//! # Ok::<(), bifold_guest::GuestError>(())
//! ```

pub use bifold_trace::{Clock, Stats, TableFormat, Windows};

mod apt;
pub mod boots;
pub mod capture;
pub mod cpio;
pub mod doctor;
mod error;
pub mod image;
mod initramfs;
pub mod kernel;
mod looks;
pub mod memfd;
pub mod modules;
mod nodes;
pub mod packages;
mod process;
pub mod qemu;
pub mod spec;
pub mod vm;

pub use capture::{BootKind, CaptureProgress, CaptureReport, Sink, Written, capture, plain, under_kvm};
pub use error::{GuestError, Kind};
pub use initramfs::workload_initramfs;
pub use nodes::guest_nodes;
pub use process::ends_with_its_parent;
pub use spec::{Begin, GuestSpec, HostPage, Record, Region, Root, Thp, Timing, guest_frames, most_stdin};
