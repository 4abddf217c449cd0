// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every output of a hand-made comparison, against goldens.
//!
//! Regenerate with `INSTA_UPDATE=always cargo test -p bifold-report`, then read the diff.

mod baseline;
mod diff;
mod fixture;
mod formats;
mod html;
mod outputs;
mod policies;
mod runs;
