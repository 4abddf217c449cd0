// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Noise: what interrupts a program, and what the interruptions cost a parallel program of up to a million
//! ranks.
//!
//! | module | what |
//! |---|---|
//! | [`file`](mod@file) | interruptions as text, in the format of LogGOPSim's noise files |
//! | [`record`] | a loop on each CPU that sees when it is interrupted, and the kernel's trace that says by what |
//! | [`sim`] | ranks that compute and synchronise, with noise, after the LogGP model |
//!
//! The methods are those of Hoefler, Schneider and Lumsdaine, "Characterizing the Influence of System Noise
//! on Large-Scale Applications by Simulation" (SC'10): the selfish detour benchmark of Netgauge, and
//! LogGOPSim. Times are nanoseconds everywhere.
#![deny(unsafe_code)]

pub mod file;
pub mod record;
pub mod sim;

pub use file::{Interruption, NoiseError, Trace};
