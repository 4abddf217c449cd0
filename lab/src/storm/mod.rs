// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Storms of switches: a guest that can verify every byte of its memory while its paging mode is switched
//! through debugfs (`paging_mode` and `paging_stats` of a VM).
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
pub const KINDS: [&str; 6] = ["memory", "fork", "protect", "huge", "tables", "compute"];

/// A switch that was asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwitchRecord {
    /// Since the load began.
    pub at_us: u64,
    /// To what.
    pub to: Mode,
    /// How long the request took.
    pub took_us: u64,
    /// The stay before it, by the clock that the guest reads too.
    pub stay_us: u64,
    /// The same by the time that its vCPUs ran, together.
    pub ran_us: u64,
    /// Errno, if it was refused.
    pub errno: i32,
    /// KVM's own figures of it, by their names without `_last`.
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

/// What the load says of itself.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Work {
    /// Rounds of each kind.
    #[serde(flatten)]
    pub rounds: BTreeMap<String, f64>,
    /// Time since it began, by the guest's clock.
    pub seconds: f64,
    /// Faults that had to be, and were.
    pub faults: u64,
    /// Bytes that were not what they had to be.
    pub corrupted: u64,
    /// Accesses that a change of page tables should have stopped.
    pub stale: u64,
    /// Processes that ended otherwise than they should.
    pub died: u64,
}

/// What a storm has found until now.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// How long the guest took to its first word.
    pub boot_seconds: f64,
    /// How long the load has run, by the laboratory's clock.
    pub seconds: f64,
    /// How long its vCPUs have run, together.
    pub ran_seconds: f64,
    /// How often it has moved to another QEMU.
    #[serde(default)]
    pub migrations: u64,
    /// Switches before that, which are not among the others.
    #[serde(default)]
    pub switches_to_move: u64,
    /// Whether all switches were made, or with none to make the time is over.
    pub complete: bool,
    /// Whether the load came to its end, having looked at all of its memory once more.
    pub ended: bool,
    /// Its last word.
    pub work: Work,
    /// Everything else that it said: what it found wrong.
    pub complaints: Vec<String>,
    /// What went wrong otherwise.
    pub trouble: Vec<String>,
    /// What the guest's kernel said at the level of a warning or above, since the load began.
    pub guest_log: Vec<String>,
    /// The same of the laboratory's kernel.
    pub host_log: Vec<String>,
    /// Whether more was said than is kept.
    pub log_lost: bool,
    /// KVM's figures at the end.
    pub paging_stats: BTreeMap<String, u64>,
    /// What the noise came to.
    pub noise: BTreeMap<String, u64>,
    /// Of a guest that could not go on: whether it runs, and its registers.
    #[serde(default)]
    pub state: String,
    /// KVM's last events, of all its vCPUs.
    #[serde(default)]
    pub last_events: Vec<String>,
}

/// Names of what a storm leaves: [`Found`], overwritten as it goes on, and the switches, as lines
/// of JSON, in files numbered from 0.
pub const FOUND: &str = "found.json";
#[allow(missing_docs)]
pub const SWITCHES: &str = "switches-";

/// Numbers that look random and are the same for the same seed (splitmix64).
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    /// The next one.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// One below `n`.
    pub fn below(&mut self, n: u64) -> u64 {
        self.draw() % n.max(1)
    }
}
