// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `compare` and `record`, which is `compare` that also writes the events to a file.

pub mod keep;
pub mod plan;
pub mod region;
pub mod runs;
