// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parameters of the LogGP model.

use schemars::JsonSchema;
use serde::Serialize;

/// What a message costs.
///
/// The default is LogGOPSim's.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct LogGp {
    /// `L`: time of the first byte from the sender's CPU to the receiver's. Unit: ns.
    pub latency: f64,
    /// `o`: time for which the sender's and the receiver's CPU are busy. Unit: ns.
    pub overhead: f64,
    /// `g`: least time between two messages that a rank sends, or receives. Unit: ns.
    pub gap: f64,
    /// `G`: time for each byte after the first. Unit: ns.
    pub gap_per_byte: f64,
    /// Size of a message. Unit: bytes.
    pub bytes: u32,
}

impl Default for LogGp {
    fn default() -> LogGp {
        LogGp { latency: 2500.0, overhead: 1500.0, gap: 1000.0, gap_per_byte: 6.0, bytes: 1 }
    }
}

impl LogGp {
    /// For the bytes after the first.
    fn stream(&self) -> f64 {
        f64::from(self.bytes.saturating_sub(1)) * self.gap_per_byte
    }

    /// From the end of the sender's overhead to the arrival of the last byte.
    pub fn wire(&self) -> f64 {
        self.latency + self.stream()
    }

    /// Least time between the starts of two messages that a rank sends, or receives: the CPU and the network
    /// interface are busy with the first for the larger of `o` and `g`, and then for the bytes that follow.
    /// Two messages of k bytes end o + (k-1)G + max(g, o) + (k-1)G + L + o after their begin (Alexandrov et
    /// al., "LogGP", SPAA 1995, section 2).
    pub fn spacing(&self) -> f64 {
        self.gap.max(self.overhead) + self.stream()
    }

    /// From the start of a send to the end of the receive.
    pub fn message(&self) -> f64 {
        2.0 * self.overhead + self.wire()
    }
}
