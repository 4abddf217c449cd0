// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Watches a host's virtual machines: what each cost over an interval, from KVM's statistics, the scheduler's
//! times and hardware counters, and what the guest reports itself.
//!
//! A [`Watch`] finds the VMs. Each [`tick`](Watch::tick) reads each once and returns an
//! [`Interval`] for each VM: the difference to the reading before. A number that this host does not have, or
//! that cannot be trusted over an interval, is unknown (`None`), never 0. An [`Observation`] is an interval
//! as policies see one, with the counters that are known in its [`Measured`]; [`columns`] gives every figure
//! a name and a unit; [`Figures`] are rates and shares for eyes.
//!
//! Intervals are written to [`files`]; a [`recording`] reads them back. A policy [`follow`]s a VM; a
//! [`replay`] shows what a policy would have decided over a recording.
//!
//! [`order`] takes memory of a guest, in steps, and gives it back.
//!
//! This crate switches no VM.
#![forbid(unsafe_code)]

pub mod advice;
pub mod columns;
#[cfg(test)]
mod fake_host;
mod figures;
pub mod files;
pub mod follow;
pub mod hardware;
mod interval;
mod measured;
pub mod memory;
mod observation;
pub mod order;
pub mod pairs;
pub mod recording;
pub mod replay;
pub mod reporter;
mod row;
mod vm;
mod watch;

pub use figures::{Figure, Figures, Unit};
pub use hardware::HardwareSource;
pub use interval::{Interval, Reading, VcpuInterval, VcpuReading};
pub use measured::Measured;
pub use observation::Observation;
pub use row::{IntervalRow, now};
pub use vm::Watched;
pub use watch::{Tick, Watch};
