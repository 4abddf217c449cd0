// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Windows of the modules of `kernel/tests/windows`: places where the kernel looks at shared state without
//! the lock that protects this state, each with a parameter of `kvm` for a wait there.

use std::fs;
use std::time::Duration;

const PARAMETERS: &str = "/sys/module/kvm/parameters";

/// Whether any window is wide, so that cases with many rounds do fewer.
pub(crate) fn widened() -> bool {
    let Ok(entries) = fs::read_dir(PARAMETERS) else { return false };
    entries.flatten().any(|entry| {
        let name = entry.file_name();
        let window = name.to_str().is_some_and(|n| n.starts_with("window_") && n != "window_hits");
        window && fs::read_to_string(entry.path()).is_ok_and(|wide| wide.trim() != "0")
    })
}

/// The time between two switches, or two tries of one, that follow each other without end: longer than a
/// window that is wide. Else a vCPU that looks again finds another switch under way each time, and never
/// runs.
pub(super) fn between_switches(usual: Duration) -> Duration {
    if widened() { usual.max(Duration::from_millis(20)) } else { usual }
}
