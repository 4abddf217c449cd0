// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How a command ended.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How the command in a guest ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
    /// The command was ended because the windows of a sampled run had given the wanted accuracy.
    AccurateEnough,
}

impl CommandExit {
    /// Whether the command did what it was to do: it succeeded, or was ended as asked.
    pub fn is_success(self) -> bool {
        matches!(self, CommandExit::Code(0) | CommandExit::AfterRegion | CommandExit::AccurateEnough)
    }

    /// Whether a timer of the guest ended this command: timeout(1) says so by its status, and the kernel's
    /// timers and limits of CPU time by their signals.
    pub fn by_timer(self, command: &[String]) -> bool {
        const TIMERS: [i32; 4] = [14, 24, 26, 27]; // SIGALRM, SIGXCPU, SIGVTALRM, SIGPROF
        // Of a shell's script too: timeout's status is mostly the last one there.
        let mut words = command.iter().flat_map(|word| word.split_whitespace());
        let mut timeout = || words.any(|word| word.rsplit('/').next() == Some("timeout"));
        match self {
            CommandExit::Signal(signal) => TIMERS.contains(&signal),
            // A shell's status of a child that a signal killed.
            CommandExit::Code(code) => TIMERS.contains(&(code - 128)) || code == 124 && timeout(),
            _ => false,
        }
    }

    /// For people: `exit status 1`, `killed by signal 11`, ...
    pub fn describe(self) -> String {
        match self {
            CommandExit::Code(c) => format!("exit status {c}"),
            CommandExit::Signal(s) => format!("killed by signal {s}"),
            CommandExit::OutOfMemory => "the guest ran out of memory".into(),
            CommandExit::TimedOut => "stopped at the time limit".into(),
            CommandExit::Interrupted => "stopped by the user".into(),
            CommandExit::AfterRegion => "the command was ended after the region".into(),
            CommandExit::AccurateEnough => "the command was ended at the wanted accuracy".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_timers_and_timeout_count_as_timers() {
        let command = |words: &[&str]| words.iter().map(|w| (*w).to_owned()).collect::<Vec<_>>();
        let timeout = command(&["/usr/bin/timeout", "2", "make"]);
        assert!(CommandExit::Code(124).by_timer(&timeout));
        assert!(CommandExit::Code(124).by_timer(&command(&["sh", "-c", "cd /; timeout 2 make"])));
        assert!(!CommandExit::Code(124).by_timer(&command(&["make"])));
        assert!(!CommandExit::Code(1).by_timer(&timeout) && !CommandExit::TimedOut.by_timer(&timeout));
        assert!(CommandExit::Signal(14).by_timer(&[]) && CommandExit::Code(128 + 26).by_timer(&[]));
        assert!(!CommandExit::Signal(9).by_timer(&timeout));
    }
}
