// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Timelines as files, and replays over timelines made by hand.

mod files;
mod made;
mod replays;
mod states;
mod suite;
mod third;
