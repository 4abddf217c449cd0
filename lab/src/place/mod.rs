// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parallel programs in guests that are placed well and badly on a host with two nodes.
//!
//! The laboratory is the host: two nodes with two CPUs each. A guest under stock QEMU with KVM runs the NAS
//! kernels and HPCC, in the placements of "Perspectives of virtualization of high-performance x64 systems"
//! (Kudryavtsev, Koshelev, Avetisyan, 2012) and in a wrong one. Programs check their results. An emulator has
//! no caches and no distances between nodes, so no time is taken: what is counted are exits, page faults,
//! migrations of threads, and pages of each node. The model adds local and remote references of the same
//! programs.

mod document;
mod experiment;
pub mod guests;
mod hand_made;
mod interval;
mod measured;
pub mod planned;
mod references;
mod script;
pub mod world;

pub use experiment::{Outcome, Placed, Settings, experiment, named};
pub use hand_made::{document as nodes_document, facts, hand_made};
pub use interval::Interval;
pub use measured::{Measured, Run};
pub use references::{Part, ReferenceRow};
pub use script::{boot, placed};
