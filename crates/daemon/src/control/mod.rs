// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The control socket: one line of JSON asks, one line answers.
//!
//! The socket is in the daemon's folder, and only its owner may connect (mode 0600).

mod client;
mod server;

pub use client::ask;
pub use server::Control;

use crate::{Explanation, Status};
use serde::{Deserialize, Serialize};

/// The socket's name in the daemon's folder.
pub const SOCKET: &str = "control";

/// Longest request, in bytes.
const MOST_REQUEST: u64 = 4 << 10;
/// Longest answer, in bytes.
const MOST_ANSWER: u64 = 64 << 20;

/// A request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// All VMs.
    Status {},
    /// A VM's state and what happened to it lately.
    Explain {
        /// Process id, PID-FD or name.
        vm: String,
    },
    /// Hold a VM in its mode.
    Hold {
        /// Process id, PID-FD or name.
        vm: String,
        /// For so many seconds; without, until it is released.
        seconds: Option<f64>,
    },
    /// Let the policy decide again over a VM that is held.
    Release {
        /// Process id, PID-FD or name.
        vm: String,
    },
    /// Give a VM, or all VMs, back to their own modes and hold them there.
    Undo {
        /// Process id, PID-FD or name; without, all VMs.
        vm: Option<String>,
    },
    /// Read the configuration again.
    Reload {},
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// All VMs.
    Status(Box<Status>),
    /// A VM and its last events.
    Explained(Box<Explanation>),
    /// What was done, in sentences.
    Done(Vec<String>),
    /// Why nothing was done.
    Refused(String),
}

#[cfg(test)]
mod tests;
