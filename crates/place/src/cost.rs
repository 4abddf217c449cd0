// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a placement costs. The planner seeks the placement whose cost is least: the first figure counts
//! before the second, and so on.
//!
//! The order follows what a mistake costs. Most of a remote node's latency is paid by every miss, so few
//! nodes that are near each other come first. A smaller page costs walks. Then come devices, the caches that
//! a guest shares with itself and with others, and last the huge pages that the host must reserve in
//! addition.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::ops::Add;

/// Cost of a placement, in order of weight. All figures are sums over the guests.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(deny_unknown_fields)]
pub struct Cost {
    /// Host nodes used by each guest.
    pub nodes: u64,
    /// For each guest with `page_size = "auto"`: 0 for pages of 1 GB, 1 for 2 MB, 2 for 4 KB.
    pub pages: u64,
    /// Distances between the nodes of a guest, in both directions.
    pub distances: u64,
    /// Distances, less 10, from a node without memory to the memory that stands in for the node's own.
    pub stand_ins: u64,
    /// Distances, less 10, from each device that a guest asks for to the nearest node of the guest.
    pub devices: u64,
    /// L3 caches that each guest uses.
    pub caches: u64,
    /// Threads beside a vCPU that are not the same guest's.
    pub siblings: u64,
    /// L3 caches that guests share: for each cache, its guests beyond the first.
    pub shared: u64,
    /// Growth of pools of huge pages. Unit: KiB.
    pub reserved_kib: u64,
}

impl Cost {
    /// Figures with their meaning, in order of weight.
    pub fn figures(&self) -> [(&'static str, u64); 9] {
        [
            ("host nodes used", self.nodes),
            ("steps down from the largest pages", self.pages),
            ("distances between nodes of a guest", self.distances),
            ("distances to memory that stands in", self.stand_ins),
            ("distances to wished devices", self.devices),
            ("L3 caches used", self.caches),
            ("threads left beside a vCPU", self.siblings),
            ("guests beyond the first in an L3", self.shared),
            ("KiB of huge pages to reserve", self.reserved_kib),
        ]
    }
}

impl Add for Cost {
    type Output = Cost;

    fn add(self, other: Cost) -> Cost {
        Cost {
            nodes: self.nodes + other.nodes,
            pages: self.pages + other.pages,
            distances: self.distances + other.distances,
            stand_ins: self.stand_ins + other.stand_ins,
            devices: self.devices + other.devices,
            caches: self.caches + other.caches,
            siblings: self.siblings + other.siblings,
            shared: self.shared + other.shared,
            reserved_kib: self.reserved_kib + other.reserved_kib,
        }
    }
}
