// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Real guests under QEMU. Where there is none, each test says so and passes.

mod accesses;
mod boot;
mod boots;
mod clock;
mod dependent;
mod events;
mod formats;
mod guests;
mod looks;
mod nodes;
mod refusals;
mod replay;
mod sampled;
mod start;
mod support;
