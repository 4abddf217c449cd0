// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Optional parts of the table for terminals.

/// Parts that the table has only if asked for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Show {
    /// Exits by reason.
    pub exits: bool,
    /// Policies over the run.
    pub policies: bool,
    /// Self-checks by kind, and the assumptions of the figures.
    pub checks: bool,
}

impl Show {
    /// All parts.
    pub const ALL: Show = Show { exits: true, policies: true, checks: true };
}
