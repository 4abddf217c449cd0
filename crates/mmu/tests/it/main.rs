// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walker and walk caches against independent references.

mod closed_forms;
mod sharers;
mod tables;
mod walk_cache;
