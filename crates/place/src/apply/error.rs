// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Errors of applying a plan and of undoing. Each message says what is wrong and what to do.

use crate::plan::BadPlan;
use crate::settings::BadStep;
use bifold_base::with_causes;
use bifold_host::held::HeldError;
use bifold_host::printable;
use bifold_host::topology::NumberSet;
use std::io;
use std::path::{Path, PathBuf};

/// Why a plan cannot be applied, or not be undone.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ApplyError {
    /// Lock, journal.
    #[error(transparent)]
    Held(#[from] HeldError),
    /// A step that is refused before anything changes.
    #[error(transparent)]
    Step(#[from] BadStep),
    /// The plan's parts do not agree, or it is of another version.
    #[error(transparent)]
    Plan(#[from] BadPlan),
    /// The VM is not in the plan.
    #[error("the plan has no guest `{}`: it has {}", printable(.vm), .has)]
    NotInPlan {
        /// The VM's name.
        vm: String,
        /// The plan's guests.
        has: String,
    },
    /// Another plan is applied.
    #[error("another plan is applied ({} has a copy): run `bifold place undo` first", .0.display())]
    OtherPlan(PathBuf),
    /// Another command has changed KSM's settings for a while.
    #[error("another command of Bifold has changed KSM's settings for a while ({} has what they were): wait until that command ends, or run `bifold doctor --restore`", .0.display())]
    Ksm(PathBuf),
    /// The kernel took less than was asked for.
    #[error("{}: asked for {asked}, and the kernel has {is}{}", .path, hint(.path))]
    NotTaken {
        /// The step's path.
        path: String,
        /// What was written.
        asked: String,
        /// What the file says now.
        is: String,
    },
    /// A file of a setting cannot be read or written.
    #[error("cannot set {path} to {value}")]
    Set {
        /// The step's path.
        path: String,
        /// The value.
        value: String,
        /// The kernel's error.
        source: io::Error,
    },
    /// The threads of vCPUs are not recognised, or are not those of the plan.
    #[error(
        "guest {} has threads of {has} vCPUs, and the plan has {planned}: start it with the plan's -smp{}",
        printable(.vm), if *has == 0 { " and -name debug-threads=on" } else { "" }
    )]
    Vcpus {
        /// The VM's name.
        vm: String,
        /// Threads of vCPUs.
        has: usize,
        /// The plan's vCPUs.
        planned: usize,
    },
    /// A thread cannot be pinned.
    #[error("thread {thread} of guest {} cannot be pinned to CPU {cpus}: are these CPUs online and within the guest's cgroup?", printable(.vm))]
    Pin {
        /// The VM's name.
        vm: String,
        /// The thread.
        thread: u32,
        /// The CPUs.
        cpus: NumberSet,
        /// The kernel's error.
        source: io::Error,
    },
    /// Threads come and go faster than they can be pinned.
    #[error("guest {} makes new threads all the time, and not all could be pinned: try again when the guest is quiet", printable(.0))]
    Restless(String),
    /// The VM has ended.
    #[error("guest {} has ended", printable(.0))]
    Ended(String),
    /// An error after which all changes were taken back.
    #[error("{}; every change of this command is undone", with_causes(.0))]
    Undone(Box<ApplyError>),
    /// An error after which some changes could not be taken back.
    #[error(
        "{}; not every change could be undone ({}): run `bifold place undo`",
        with_causes(.first),
        with_causes(.then)
    )]
    NotUndone {
        /// What failed.
        first: Box<ApplyError>,
        /// What failed while undoing.
        then: Box<ApplyError>,
    },
    /// Some settings could not be restored.
    #[error(
        "{} of the changes could not be undone and stay in the journal; all others are undone: {}{}",
        .0.len(), .0.iter().map(|e| with_causes(e)).collect::<Vec<_>>().join("; "), choice(.0)
    )]
    Left(Vec<ApplyError>),
    /// Another program changed a setting, or a thread's CPUs, after `apply`.
    #[error("{what} is now {is}: Bifold set {set}, and before that it was {found}")]
    Changed {
        /// The file, or the thread.
        what: String,
        /// The value that Bifold set.
        set: String,
        /// The present value.
        is: String,
        /// The value before Bifold set it.
        found: String,
    },
    /// Any other file.
    #[error("cannot use {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kept plan cannot be read.
    #[error("the copy of the applied plan, {}, cannot be used: remove the file", path.display())]
    KeptPlan {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: BadPlan,
    },
}

/// What to do about values that another program has set.
fn choice(errors: &[ApplyError]) -> &'static str {
    if errors.iter().any(|e| matches!(e, ApplyError::Changed { .. })) {
        "; `bifold place undo --force` puts the old values back all the same, `bifold place undo --keep` leaves the present ones and forgets these changes"
    } else {
        ""
    }
}

fn hint(path: &str) -> &'static str {
    if path.ends_with("/hugepages-1048576kB/nr_hugepages") {
        " (a pool grows only as far as the node has free memory in one piece, and shrinks only as far as its pages are free; boot with \
         hugepagesz=1G hugepages=NODE:COUNT to have such pages for sure)"
    } else if path.ends_with("nr_hugepages") {
        " (a pool grows only as far as the node has free memory in one piece, and shrinks only as far as its pages are free)"
    } else {
        ""
    }
}

impl ApplyError {
    pub(super) fn io(path: &Path, source: io::Error) -> ApplyError {
        match source.kind() {
            io::ErrorKind::PermissionDenied => HeldError::NotRoot { path: path.into() }.into(),
            _ => ApplyError::Io { path: path.into(), source },
        }
    }

    /// Whether this machine, or this user's rights, lack something (exit status 77).
    pub fn cannot_work_here(&self) -> bool {
        match self {
            ApplyError::Held(HeldError::NotRoot { .. }) => true,
            ApplyError::Undone(first) => first.cannot_work_here(),
            ApplyError::Set { source, .. } | ApplyError::Pin { source, .. } => {
                source.kind() == io::ErrorKind::PermissionDenied
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_1_gb_that_the_kernel_does_not_give_are_told_with_the_boot_parameter() {
        for (kib, boot) in [("2048", false), ("1048576", true)] {
            let path = format!("/sys/devices/system/node/node0/hugepages/hugepages-{kib}kB/nr_hugepages");
            let error = ApplyError::NotTaken { path, asked: "4".into(), is: "2".into() }.to_string();
            assert!(error.contains("asked for 4, and the kernel has 2 (a pool grows only as far"), "{error}");
            assert_eq!(error.contains("hugepagesz=1G hugepages=NODE:COUNT"), boot, "{error}");
        }
    }
}
