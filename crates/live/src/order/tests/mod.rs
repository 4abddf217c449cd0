// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Orders on simulated guests, and what is read before an order and written down for its end.

use super::*;

mod facts;
mod steering;

const MIB: u64 = 1 << 20;

fn goal(size: u64, deflates: bool) -> Goal {
    Goal {
        way: Way::Balloon,
        size,
        floor: None,
        step: None,
        statistics: true,
        polling_s: 1,
        deflates,
        slack: MIB,
        unit: 4096,
    }
}
