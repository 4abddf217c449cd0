// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hardware counters: which events of which processor count TLB misses and page walks, and what they count of
//! a vCPU.
//!
//! `events.toml` is the only list. An event that a processor does not have, or whose maker does not document
//! it, is not in the list, and what it would count is unknown. [`Pmu`] opens the events of a thread; two
//! states of its [`ThreadCounters`] make the [`HardwareCounts`] of an interval. A [`HardwareSource`] is the
//! host's PMU, or what stands for one.

mod counts;
mod cpu;
mod error;
mod events;
mod files;
mod pmu;
mod source;

pub use counts::{HardwareCounts, Raw};
pub use cpu::Cpu;
pub use error::{NoPmu, OpenError};
pub use events::{BadEvent, Event, Microarchitecture};
pub use files::FileLimit;
pub use pmu::{Pmu, ThreadCounters};
pub use source::{CountVm, HardwareSource};
