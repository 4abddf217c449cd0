// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hardware counters: which events of which processor count TLB misses and page walks.
//!
//! `events.toml` is the only list. An event that a processor does not have, or whose maker does not document it,
//! is not in the list, and what it would count is unknown.

mod cpu;
mod events;

pub use cpu::Cpu;
pub use events::{Event, Microarchitecture, Vendor};
