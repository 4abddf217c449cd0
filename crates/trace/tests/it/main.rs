// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What users of the crate rely on.

mod generators;
mod recording;
