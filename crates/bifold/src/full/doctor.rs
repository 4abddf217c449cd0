// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `bifold doctor` says about the daemon's folder and about orders on guests' memory.

use super::daemon;
use crate::doctor::needs::FOLDER;
use crate::doctor::{LeftOrder, check};
use bifold_guest::doctor::Check;
use bifold_host::Host;
use bifold_host::held::left_behind;
use bifold_live::order::{Record, WHAT, folder, records};
use std::path::Path;

/// Whether this user can have the daemon's folder, by the daemon's own rule.
pub fn folder_check() -> Option<Check> {
    Some(folder_check_of(Path::new(daemon::STATE)))
}

pub fn folder_check_of(folder: &Path) -> Check {
    let found = daemon::may_make(folder).map(|()| format!("{} can be used", folder.display()));
    let missing = |e| {
        (
            format!("{} cannot be used: {e}", folder.display()),
            "run as root, or name another folder by --state",
        )
    };
    check(FOLDER, &["daemon"], found.map_err(missing))
}

/// What orders of `reclaim set` and the daemon have left that are not under way.
pub fn orders(host: &Host) -> Vec<LeftOrder> {
    folder().map_or(Vec::new(), |folder| orders_in(host, &folder))
}

pub fn orders_in(host: &Host, folder: &Path) -> Vec<LeftOrder> {
    let left = |entry| match entry {
        Ok((places, record)) => {
            let record: Record = record;
            // An order may have ended just now, and with its guest's process there is nothing to give back.
            let held = matches!(left_behind(WHAT, &places, &host.proc), Ok(None | Some((_, true))));
            let ended = matches!(host.lives(record.guest.0, record.guest.1), Ok(false));
            (!held && !ended).then_some(LeftOrder::Of {
                pid: record.guest.0,
                name: record.name,
                kept: record.kept,
            })
        }
        Err(e) => Some(LeftOrder::Unread { error: bifold_base::with_causes(&e) }),
    };
    records(folder).into_iter().filter_map(left).collect()
}
