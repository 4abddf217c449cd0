// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An order that is not carried out: what it would begin with.

use super::{OrderRequest, goal, refused};
use crate::order::facts::is_seldom;
use crate::order::{Goal, NoMonitor, OrderError, Refusal, SizeObservation, Steer};
use bifold_host::{Host, LiveGuest};

/// What an order would begin with: its goal, and the floor by the statistics there are now. Changes nothing.
///
/// # Errors
/// If the order would be refused.
pub fn preview(
    host: &Host,
    guest: &LiveGuest,
    wish: &OrderRequest,
) -> Result<(Goal, SizeObservation, Option<u64>), OrderError> {
    let place = host.monitor_place(guest.pid);
    let (facts, mut goal) = goal(host, guest, place.as_ref(), wish)?;
    // The process may have ended meanwhile, and another one have its id.
    if host.started(guest.pid) != Some(guest.started) {
        return Err(OrderError::Gone { pid: guest.pid });
    }
    let look =
        SizeObservation::of(&facts, wish.way).ok_or_else(|| refused(guest, NoMonitor::NoSize.into()))?;
    let polled = facts.machine.is_ok_and(|m| m.balloon.is_some_and(|b| !is_seldom(b.polling_s)));
    // Statistics that are not polled are of any age.
    goal.statistics = polled;
    let floor = Steer::new(goal, look).floor(&look);
    match floor.filter(|_| polled || wish.floor.is_some()) {
        Some(floor) if goal.size < floor => Err(refused(guest, Refusal::below(&goal, &look, floor))),
        floor => Ok((goal, look, floor)),
    }
}
