// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model against independent references.

mod closed_forms;
mod geometry;
mod guest;
mod permissions;
mod random;
mod reference;
mod stream;
mod trace_t;
