// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an order holds while it runs: a lock and a journal, in a folder of its own.

use super::{OrderRequest, goal, refused};
use crate::order::facts::{Facts, NoMonitor, is_seldom};
use crate::order::record::{OF_ROOT, WHAT};
use crate::order::{Back, Goal, OrderError, Record, Refusal, Way};
use bifold_host::guest_memory::MonitorPlace;
use bifold_host::held::{Guardian, Held, HeldError, Journal, Places, remove_unused_lock};
use bifold_host::{Host, LiveGuest, printable};
use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
use std::path::Path;

/// Takes the guest's lock and writes down what is found.
pub(super) fn hold(
    host: &Host,
    places: &Places,
    guardian: &Guardian,
    guest: &LiveGuest,
    place: Option<&MonitorPlace>,
    wish: &OrderRequest,
) -> Result<(Held, Record, Goal, u64), OrderError> {
    let mut begun = None;
    let held = Held::adopt(WHAT, places, (guardian, &[]), |left| {
        let (mut earlier, mut given) = (None, false);
        if let Some(left) = left {
            let record = Record::at(&places.journal, left)?;
            if record.kept && record.way == wish.way {
                earlier = Some(record);
            } else if record.kept {
                return Err(refused(
                    guest,
                    Refusal::Before(format!(
                        "an earlier order took its memory by {} and left it so: run `bifold reclaim restore {}` first",
                        record.way.name(),
                        guest.pid
                    )),
                ));
            } else {
                // The guest may be on its way to the size that was found then.
                match record.give_back(host, false, &mut || {})? {
                    Back::Given => {
                        given = true;
                        earlier = Some(record).filter(|r| r.way == wish.way && r.least < r.found);
                    }
                    Back::Gone => return Err(OrderError::Gone { pid: guest.pid }),
                    Back::Another { size } => return Err(record.changed(size)),
                }
            }
        }
        let (facts, goal) = goal(host, guest, place, wish).or_else(|e| {
            if given {
                Journal::remove(&places.journal)?;
            }
            Err(e)
        })?;
        let (record, size) = found(&facts, guest, place, wish.way, earlier)
            .ok_or_else(|| refused(guest, NoMonitor::NoSize.into()))?;
        if !record.is_ours(size) {
            return Err(record.changed(size));
        }
        let values = Record { kept: false, ..record.clone() }.values();
        let size = record.besides.saturating_add(size);
        begun = Some((record, goal, size));
        Ok::<_, OrderError>(values)
    })?;
    let (record, goal, size) = begun.expect("the journal has it");
    Ok((held, record, goal, size))
}

/// What an order finds, and the device's size. What an earlier order found and left changed counts.
pub(crate) fn found(
    facts: &Facts,
    guest: &LiveGuest,
    place: Option<&MonitorPlace>,
    way: Way,
    earlier: Option<Record>,
) -> Option<(Record, u64)> {
    let machine = facts.machine.as_ref().ok()?;
    let (device, size, besides) = way.device(machine)?;
    let dimms = machine.dimms.unwrap_or(0);
    let earlier = earlier.map(|e| if way.inflates() { e.with_dimms(dimms) } else { e });
    let balloon = machine.balloon.as_ref();
    let polling = balloon.filter(|b| is_seldom(b.polling_s)).map(|b| (b.polling_s, b.path.clone()));
    let record = Record {
        guest: (guest.pid, guest.started),
        name: printable(&guest.name),
        monitor: place?.clone(),
        way,
        device,
        found: earlier.as_ref().map_or(size, |e| e.found),
        least: earlier.as_ref().map_or(size, |e| e.least),
        dimms,
        besides,
        polling,
        // Until the first step: an order that ends before it leaves what it found.
        kept: earlier.is_some_and(|e| e.kept),
    };
    Some((record, size))
}

/// Removes locks that orders left that were killed: their guardians hold them until they end.
pub(super) fn sweep(folder: &Path) {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    for lock in entries.filter(|path| path.extension().is_some_and(|e| e == "lock")) {
        let journal = lock.with_extension("journal");
        if !journal.exists() {
            remove_unused_lock(&Places { lock, journal });
        }
    }
}

/// Makes the folder, into which only its user may write.
pub(crate) fn make(folder: &Path) -> Result<(), OrderError> {
    let of_root = folder == Path::new(OF_ROOT);
    let parent = folder.parent().unwrap_or(Path::new("/"));
    let new = |path: &Path, mode| {
        DirBuilder::new().mode(mode).create(path)?;
        // Whatever the user's umask is: others have to see root's orders.
        if of_root { std::fs::set_permissions(path, Permissions::from_mode(mode)) } else { Ok(()) }
    };
    let above = match of_root {
        true if !parent.exists() => new(parent, 0o755),
        _ => std::fs::create_dir_all(parent),
    };
    let made = above.and_then(|()| new(folder, if of_root { 0o755 } else { 0o700 }));
    let made = made.or_else(|e| if folder.is_dir() { Ok(()) } else { Err(e) });
    made.map_err(|source| match source.kind() {
        std::io::ErrorKind::PermissionDenied => HeldError::NotRoot { path: folder.into() }.into(),
        _ => HeldError::Io { path: folder.into(), source }.into(),
    })
}
