// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user may write after `bifold share`.

use clap::Subcommand;

/// The verbs of `bifold share`.
#[derive(Debug, Subcommand)]
pub enum ShareVerb {
    /// Predict what a scanner would share of guests' memory, when, and at what price
    ///
    /// Runs a model of the kernel's ksmd, or of VMware's TPS, over memory images that do not change, and
    /// prints after each pass what is shared and what CPU time the scanner took. All pages of an image
    /// count as pages that the guest has touched; what it never touched has no page on the host, and
    /// would not be scanned. CPU times are those of one machine and tell kinds of memory apart, not
    /// machines. `bifold share check` shows how the model of ksmd agrees with this kernel.
    #[command(after_help = crate::share::model::EXAMPLES)]
    Model(Box<crate::share::model::ModelArgs>),
    /// Check the model of ksmd against this kernel's, pass by pass
    ///
    /// Makes memory with known contents, has the kernel's KSM go over it one pass at a time, and prints
    /// what the model predicted beside what the kernel counted. Exit status 3 if pages_shared,
    /// pages_sharing or ksm_zero_pages are off by more than --tolerance anywhere. Unmerges what KSM has
    /// merged on this host, and restores KSM's settings in the end, also when it is killed.
    #[command(after_help = crate::share::check::EXAMPLES)]
    Check(Box<crate::share::check::CheckArgs>),
}
