// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules. Each is a function of facts that adds findings to a case.
//!
//! With a plan, a rule compares with the plan, and what the plan itself wants is no mistake. Without one, a
//! rule raises what holds for any guest whose owner has placed it: pinned vCPUs, bound memory, huge pages
//! that were asked for.

mod cpus;
mod host;
mod memory;
mod planned;
mod schedule;
mod shape;
mod threads;

use super::case::CheckedGuest;

pub(super) use planned::{absent_guests, fits};

/// All rules for one guest.
pub(super) fn all(case: &mut CheckedGuest) {
    planned::guest(case);
    cpus::too_early(case);
    cpus::places(case);
    cpus::shared(case);
    threads::emulator(case);
    threads::io(case);
    schedule::foreign(case);
    schedule::quota(case);
    schedule::priority(case);
    memory::nodes(case);
    memory::huge(case);
    memory::cpuset(case);
    memory::overcommitted(case);
    shape::nodes(case);
    shape::caches(case);
    shape::cores(case);
    shape::distances(case);
    host::tables(case);
    host::interrupts(case);
    host::devices(case);
    host::balancing(case);
    host::ksm(case);
}
