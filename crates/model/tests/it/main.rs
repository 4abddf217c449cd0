// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The model against independent references.

mod agile;
mod caches;
mod charges;
mod closed_forms;
mod compact;
mod digest;
mod direct;
mod exits_flush;
mod geometry;
mod guest;
mod inside;
mod looked;
mod lookup;
mod pcid;
mod permissions;
mod placement;
mod random;
mod reclaim;
mod reference;
mod references;
mod region;
mod regions;
mod sampled;
mod shadow_random;
mod steady;
mod stream;
mod swaps;
mod switching;
mod timeline;
mod trace_t;
mod uses;
mod vcpus;
mod windows;
