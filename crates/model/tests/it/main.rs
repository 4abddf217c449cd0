// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model against independent references.

mod geometry;
mod reference;
mod trace_t;
