// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The same for all guests, as far as each can use it.

use super::bounds;
use crate::partition::equally;
use crate::replay::{Now, Policy, View};

pub(crate) struct Equal;

impl Policy for Equal {
    fn decide(&mut self, now: Now, guests: &[View]) -> Vec<u64> {
        equally(now.host, &bounds(guests))
    }
}
