// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Predicts swap operations: captures the guest from its boot on, and passes its events to a model whose host
//! gets the limit when its window begins.

use anyhow::{Context, Result};
use bifold_guest::{GuestSpec, Root};
use bifold_model::{Model, Options, Swaps};

use super::{CONFIG, program};
use crate::lab::Lab;
use crate::reclaim::{FRAMES, limit_window};
use crate::validate::predict::{capture, guest_and_profile};
use crate::validate::{Workload, config};

/// The swap operations of the program's window.
pub fn predict(lab: &Lab, workload: &Workload, limit_mib: u64) -> Result<Swaps> {
    let (spec, profile) = guest_and_profile(lab, workload, false)?;
    // Captures with looks have devices' transfers.
    let spec = GuestSpec { root: Root::Host, looks: true, ..spec };
    let options = Options {
        configs: vec![config(CONFIG)?.0],
        guest_frames: bifold_guest::guest_frames(&spec),
        ..Options::default()
    };
    let mut model = Model::new(&profile, options);
    // What the disk has is to be known before the limit.
    model.watch_swaps();
    let (limit, window) = (limit_window(workload)?, program(workload)?.window);
    let (mut begun, mut found) = (None, None);
    capture(&spec, |words, marker| {
        model.consume(words)?;
        match marker.map(|code| (code >> 8, code & 0xff)) {
            Some((1, number)) if number == limit => model.limit_hosts(limit_mib * FRAMES),
            Some((1, number)) if number == window => begun = Some(model.swaps(0)),
            Some((2, number)) if number == window => found = begun.map(|begun| model.swaps(0).since(&begun)),
            _ => {}
        }
        Ok(())
    })?;
    found.context("the captured guest ended without its window")
}
