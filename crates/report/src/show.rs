// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which parts the table for terminals has beside the configurations and the verdict.

/// Parts of the table that are there only if asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Show {
    /// Exits by reason.
    pub exits: bool,
    /// Policies over the run.
    pub policies: bool,
    /// Each kind of self-check with its number, and what the figures stand on.
    pub checks: bool,
}

impl Show {
    /// All parts.
    pub const ALL: Show = Show { exits: true, policies: true, checks: true };
}
