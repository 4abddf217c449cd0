// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Statistics of a guest for a while, without an order about its size.

use super::facts::POLLING;
use super::record::alone;
use super::running::{found, make};
use super::{OrderError, Record, WHAT, Way, facts, places};
use bifold_host::guest_memory::Balloon;
use bifold_host::held::{Guardian, Held, Journal, Places, remove_unused_lock};
use bifold_host::{Host, LiveGuest};
use std::path::Path;

/// A guest whose statistics are requested until this is dropped or [`end`](Polling::end)ed. Meanwhile no
/// order can have the guest.
#[derive(Debug)]
pub struct Polling {
    host: Host,
    held: Held,
    record: Record,
    places: Places,
}

impl Polling {
    /// Has QEMU ask the guest for statistics each second; `None` if it does already, there is no balloon, or
    /// an order has left something to give back.
    ///
    /// # Errors
    /// If an order has the guest now, or QEMU does not answer.
    pub fn begin(
        host: &Host,
        folder: &Path,
        guardian: &Guardian,
        guest: &LiveGuest,
    ) -> Result<Option<Polling>, OrderError> {
        let Some(place) = host.monitor_place(guest.pid) else { return Ok(None) };
        let facts = facts(host, guest.pid, Some(&place));
        let balloon = facts.machine.as_ref().ok().and_then(|m| m.balloon.as_ref());
        // No size is ordered, so none is given back.
        let record = found(&facts, guest, Some(&place), Way::Balloon, None);
        let Some((record, _)) = record.filter(|_| balloon.is_some_and(|b| b.polling_s == 0)) else {
            return Ok(None);
        };
        let id = record.guest;
        alone(host, folder, id)?;
        make(folder)?;
        let places = places(folder, id);
        let begin = |left: Option<&Journal>| match left {
            Some(_) => Err(OrderError::Left { pid: guest.pid }),
            None => Ok(record.values()),
        };
        let held = match Held::adopt(WHAT, &places, (guardian, &[]), begin) {
            Err(OrderError::Left { .. }) => return Ok(None),
            other => other?,
        };
        let polling = Polling { host: host.clone(), held, record, places };
        let path = &polling.record.device;
        let asked = place.open(host, guest.pid).and_then(|mut m| Balloon::poll(&mut m, path, POLLING));
        match asked {
            Ok(()) => Ok(Some(polling)),
            Err(source) => {
                polling.end()?;
                Err(OrderError::Monitor { pid: guest.pid, place: place.to_string(), source })
            }
        }
    }

    /// Sets the interval back.
    ///
    /// # Errors
    /// If the monitor does not answer for a minute: the guardian tries on.
    pub fn end(mut self) -> Result<(), OrderError> {
        self.held.end_or_leave(|beat| self.record.give_back(&self.host, false, beat).map(drop))?;
        drop(self.held);
        remove_unused_lock(&self.places);
        Ok(())
    }
}
