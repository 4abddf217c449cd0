// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A bulk-synchronous program under noise: each step, every rank computes for the grain, and then all take
//! part in a collective operation.
//!
//! Messages cost what the LogGP model says (Alexandrov et al., SPAA '95): the sender's CPU is busy for `o`,
//! the message takes `L`, and `G` for each byte after the first, and the receiver's CPU is busy for `o`. Two
//! messages that a rank sends, or receives, start at least `g`, and `G` for each byte after the first, apart.
//! So does LogGOPSim, whose schedule generator (`schedgen.cpp`) also has the operations here.
//!
//! An interruption stops the rank's CPU, which otherwise computes or has the overhead of a message. What a
//! rank still has to do is done after the interruption, and a further interruption may come meanwhile.
//! LogGOPSim instead adds up the interruptions that begin during the undisturbed work. A rank that waits
//! loses nothing by an interruption.
//!
//! Every figure follows from the arguments and the seed alone.

mod collective;
mod cost;
mod cover;
mod engine;
mod noise;
#[cfg(test)]
mod reference;
mod sweep;
#[cfg(test)]
mod tests;

pub use collective::Collective;
pub use cost::LogGp;
pub use cover::enough_steps;
pub use engine::{Ranks, Sender};
pub use noise::{BadNoise, Noise};
pub use sweep::{Cell, Gain, MOST_RANKS, NoiseCase, Removed, gains, simulate, sweep};
