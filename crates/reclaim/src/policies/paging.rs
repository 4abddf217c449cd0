// SPDX-License-Identifier: Apache-2.0 OR MIT
//! No policy: each guest has all of its memory, and the host pages what was used least recently.
//!
//! It is what a host does if guests are left alone, and what remains of a balloon rule that does not settle.
//! That a host pages blindly is left out: what its guests have freed, the pages that they read from files and
//! could drop, and the huge pages that break.

use crate::replay::{Now, Policy, View};

pub(crate) struct Paging;

impl Policy for Paging {
    fn decide(&mut self, _: Now, guests: &[View]) -> Vec<u64> {
        guests.iter().map(|guest| guest.most).collect()
    }
}
