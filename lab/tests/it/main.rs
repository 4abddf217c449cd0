// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The laboratory: what it brings back, and what it says when it cannot.

mod boots;
mod holes;
mod nas;
mod phases;
mod refusals;
mod results;
mod support;
