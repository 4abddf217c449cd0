// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exit status of these verbs' errors.

use crate::status::{FAILED, UNAVAILABLE};
use bifold_daemon::DaemonError;
use bifold_guest::Kind;
use bifold_live::order::OrderError;
use bifold_place::apply::ApplyError;
use bifold_place::check::CheckError;
use bifold_share::image::ImageError;
use bifold_trial::ExperimentError;

/// The status for an error of these verbs; none for another error.
pub fn status_of(error: &anyhow::Error) -> Option<u8> {
    if let Some(e) = error.downcast_ref::<ExperimentError>() {
        return Some(of_experiment(e));
    }
    let unavailable = error.downcast_ref::<DaemonError>().is_some_and(DaemonError::cannot_work_here)
        || error.downcast_ref::<OrderError>().is_some_and(OrderError::cannot_work_here)
        || error.downcast_ref::<ApplyError>().is_some_and(ApplyError::cannot_work_here)
        || error.downcast_ref::<CheckError>().is_some_and(CheckError::cannot_work_here)
        || error.downcast_ref::<ImageError>().is_some_and(ImageError::is_privilege);
    unavailable.then_some(UNAVAILABLE)
}

fn of_experiment(error: &ExperimentError) -> u8 {
    match error {
        ExperimentError::Capture(e) if e.kind() == Kind::CannotWorkHere => UNAVAILABLE,
        ExperimentError::Ksm(e) if e.cannot_work_here() => UNAVAILABLE,
        ExperimentError::Order(e) if e.cannot_work_here() => UNAVAILABLE,
        ExperimentError::Memory { .. } | ExperimentError::TooLittle { .. } => UNAVAILABLE,
        _ => FAILED,
    }
}
