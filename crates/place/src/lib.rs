// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a guest's CPUs and memory belong on a host.
//!
//! [`plan`] has the result of planning: for each guest the CPU of every vCPU, the host node of every guest node, pages,
//! and the host's settings that go with them. A plan is data: it is printed, kept, applied, undone, and compared with what
//! runs.
#![forbid(unsafe_code)]

pub mod plan;
