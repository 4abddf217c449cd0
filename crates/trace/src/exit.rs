// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a command ended.

use serde::{Deserialize, Serialize};

/// How the command in a guest ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "value", rename_all = "snake_case")]
pub enum CommandExit {
    /// The command exited with this status.
    Code(i32),
    /// This signal killed the command.
    Signal(i32),
    /// The guest ran out of memory, and its kernel killed the command or a child of it.
    OutOfMemory,
    /// The command ran longer than its time limit.
    TimedOut,
    /// The user stopped the command.
    Interrupted,
    /// The command was ended because the region to be recorded had ended.
    AfterRegion,
}

impl CommandExit {
    /// For people: `exit status 1`, `killed by signal 11`, ...
    pub fn describe(self) -> String {
        match self {
            CommandExit::Code(c) => format!("exit status {c}"),
            CommandExit::Signal(s) => format!("killed by signal {s}"),
            CommandExit::OutOfMemory => "the guest ran out of memory".into(),
            CommandExit::TimedOut => "stopped at the time limit".into(),
            CommandExit::Interrupted => "stopped by the user".into(),
            CommandExit::AfterRegion => "the command was ended after the region".into(),
        }
    }
}
