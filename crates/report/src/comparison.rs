// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The comparison: the data that every output of a run is made from.

use crate::{Judged, MemoryNeeds, Meta, Places, RunPolicies};
use bifold_model::Outcome;

/// A finished run: the facts about the run and the results of the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// Facts about the run.
    pub meta: Meta,
    /// Counts and costs of every configuration.
    pub outcome: Outcome,
    /// Policies over the run; none unless asked for.
    pub policies: Option<RunPolicies>,
    /// Places of cost; none unless asked for.
    pub places: Option<Places>,
    /// How much memory the guest needs; none unless asked for.
    pub memory: Option<MemoryNeeds>,
    /// What moved since a baseline; none unless asked for.
    pub baseline: Option<Judged>,
}

impl Comparison {
    /// Whether the figures are of a region that a cold VM began: older recordings have nothing of what the
    /// command did before its region.
    pub(crate) fn began_cold(&self) -> bool {
        let region = self.meta.guest.as_ref().and_then(|g| g.region.as_deref());
        bifold_trace::region_begins_later(region) && self.outcome.before_region.is_none()
    }

    /// The lines above a table: the command, the guest, the profile, the run and what warns of it.
    pub fn render_head(&self) -> String {
        crate::table::head(self)
    }

    /// Number of self-checks made, and number of self-checks that failed.
    pub fn checks(&self) -> (u64, u64) {
        let stats = self.meta.capture_checks.unwrap_or_default();
        let made =
            self.outcome.walk_checks + stats.cr3_checks + stats.translation_checks + stats.table_checks;
        let failed = self.outcome.walk_mismatches
            + self.outcome.untranslated
            + stats.cr3_mismatches
            + stats.translation_mismatches
            + stats.table_mismatches;
        (made, failed)
    }
}
