// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What this machine lacks for a capture, in words.

/// One thing looked at.
#[derive(Debug, Clone)]
pub struct Check {
    /// What.
    pub name: &'static str,
    /// Whether it is as it must be.
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// What to do about it; empty if nothing.
    pub remedy: String,
    /// The verbs that cannot work without.
    pub needed_by: &'static [&'static str],
}

/// Looks at everything a capture needs.
pub fn checks() -> Vec<Check> {
    Vec::new()
}
