// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user may write after `bifold share`.

use clap::Subcommand;

/// The verbs of `bifold share`.
#[derive(Debug, Subcommand)]
pub enum ShareVerb {
    /// Check the model of ksmd against this kernel's, pass by pass
    ///
    /// Makes memory with known contents, has the kernel's KSM go over it one pass at a time, and prints
    /// what the model predicted beside what the kernel counted. Exit status 3 if pages_shared,
    /// pages_sharing or ksm_zero_pages are off by more than --tolerance anywhere. Unmerges what KSM has
    /// merged on this host, and restores KSM's settings in the end, also when it is killed.
    #[command(after_help = crate::share::check::EXAMPLES)]
    Check(Box<crate::share::check::CheckArgs>),
    /// Run an experiment: real guests under the real KSM, watched from outside
    ///
    /// Starts the guests that the file describes (QEMU without KVM, their memory mergeable), a workload in
    /// each, and the kernel's KSM with the file's settings, which run while memory is short, as ksmtuned
    /// has it. Samples memory, sharing, ksmd's CPU time and copies of merged pages, stops the guests at
    /// marked times to count what they could share, and ends in tables, rows and a report. Case after
    /// case, with guests of its own each.
    ///
    /// Needs root and a kernel with KSM. Its settings are restored in the end, also when the command is
    /// killed; the guests end with it.
    #[command(after_help = crate::share::run::EXAMPLES)]
    Run(Box<crate::share::run::RunArgs>),
    /// Watch this host's sharing: KSM's counters, their rates, ksmd's CPU time, each guest's pages
    ///
    /// On a terminal the view is drawn again at each interval. `csv` has one row per time for the host,
    /// whose `domain` is empty, and one per guest. Nothing is changed; root sees all guests.
    #[command(after_help = crate::share::watch::EXAMPLES)]
    Watch(crate::share::watch::WatchArgs),
    /// Say what this host's KSM is worth, what it could be and costs, and which settings to try
    ///
    /// Reads KSM's counters, ksmd's CPU time, memory and its pressure, NUMA nodes, huge pages and the
    /// processes that run guests, and says what to try, what to turn off and what to know, each with its
    /// reason and the commands. Nothing is changed.
    #[command(after_help = crate::share::advise::EXAMPLES)]
    Advise(crate::share::advise::AdviseArgs),
}
