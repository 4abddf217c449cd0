// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs storms of switches: a guest that can verify every byte of its memory while its paging mode is
//! switched through debugfs (`paging_mode` and `paging_stats` of a VM).
//!
//! `run` runs the storm within the laboratory: `guest` is the guest's QEMU, `switch` the loop of switches,
//! `noise` further stress of the guest's memory, `log` the kernels' messages. `drive` boots the laboratory
//! and judges the outcome; `table` prints it. The load is C: `lab/loads`.

pub mod drive;
mod guest;

pub mod log;
mod migrate;
mod noise;
mod recorder;
pub mod run;
pub mod switch;
pub mod table;

use std::collections::BTreeMap;

use bifold_mmu::Mode;
use serde::{Deserialize, Serialize};

pub use crate::lab::job::{Noise, Pages, Storm};

/// Kinds of load (`lab/loads`).
pub const KINDS: [&str; 7] = ["memory", "fork", "protect", "huge", "tables", "compute", "keys"];

/// The record of a requested switch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchRecord {
    /// Time of the request since the load's start.
    pub at_us: u64,
    /// The new mode.
    pub to: Mode,
    /// Duration of the request.
    pub took_us: u64,
    /// Length of the stay before the switch, by the clock that the guest reads too.
    pub stay_us: u64,
    /// Run time of all vCPUs during that stay.
    pub ran_us: u64,
    /// Error number if the switch was refused, else 0.
    pub errno: i32,
    /// KVM's figures of the switch, by their names without `_last`.
    #[serde(flatten)]
    pub figures: Figures,
}

/// KVM's figures of the last switch (`paging_stats`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)] // the kernel's own words
pub struct Figures {
    pub vcpus_in_guest: u64,
    pub quiesce_ns: u64,
    pub switch_ns: u64,
    pub resume_ns: u64,
    pub tables_kept: u64,
    pub shadow_pages_dropped: u64,
}

/// The load's report.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Rounds of each kind.
    #[serde(flatten)]
    pub rounds: BTreeMap<String, f64>,
    /// Time since the load's start, by the guest's clock.
    pub seconds: f64,
    /// Expected faults that were caught.
    pub faults: u64,
    /// Bytes with a wrong value.
    pub corrupted: u64,
    /// Accesses that a change of page tables should have stopped.
    pub stale: u64,
    /// Processes that ended in an unexpected way.
    pub died: u64,
}

/// The findings of a storm so far.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// Time until the load's first line.
    pub boot_seconds: f64,
    /// Run time of the load, by the laboratory's clock.
    pub seconds: f64,
    /// Run time of all vCPUs.
    pub ran_seconds: f64,
    /// Number of migrations to another QEMU.
    #[serde(default)]
    pub migrations: u64,
    /// Switches to nested paging before a migration, which no record has.
    #[serde(default)]
    pub switches_to_move: u64,
    /// Whether all switches were made, or, with no switches to make, the time is over.
    pub complete: bool,
    /// Whether the load ended after a last check of all its memory.
    pub ended: bool,
    /// The load's last report.
    pub work: Work,
    /// Errors that the load reported, one per line.
    pub complaints: Vec<String>,
    /// Other errors.
    pub trouble: Vec<String>,
    /// Messages of the guest's kernel at level warning or worse, since the load's start.
    pub guest_log: Vec<String>,
    /// Messages of the laboratory's kernel at level warning or worse.
    pub host_log: Vec<String>,
    /// Whether log lines were lost.
    pub log_lost: bool,
    /// KVM's figures at the end.
    pub paging_stats: BTreeMap<String, u64>,
    /// Counts of the further stress.
    pub noise: BTreeMap<String, u64>,
    /// State and registers of a guest that could not continue.
    #[serde(default)]
    pub state: String,
    /// KVM's last events, of all vCPUs.
    #[serde(default)]
    pub last_events: Vec<String>,
}

/// Name of the file with [`Found`], which is overwritten as the storm continues. The switches are lines of
/// JSON in files numbered from 0.
pub const FOUND: &str = "found.json";
#[allow(missing_docs)]
pub const SWITCHES: &str = "switches-";

/// A generator of pseudo-random numbers with a seed (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n.max(1)
    }
}
