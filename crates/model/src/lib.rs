// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What native, nested and shadow paging cost a guest: the model of hardware and hypervisor that
//! turns the guest's events into counts. `docs/design/model.md` lists its rules.
//!
//! The crate captures nothing and prints nothing. [`Model`] consumes events, [`Profile`] has the
//! hardware's geometry and costs, and [`Outcome`] the counts of every configuration.
//!
//! ```
//! use bifold_model::{Model, Options, Profile};
//! use bifold_trace::Generator;
//!
//! let events = Generator::parse("t:10000").unwrap();
//! let profile = Profile::load("i5-7600", &[]).unwrap();
//! let options = Options { guest_frames: events.guest_frames(), ..Options::default() };
//! let mut model = Model::new(&profile, options);
//! events.run(&mut |words| model.consume(words)).unwrap();
//! let outcome = model.finish();
//! for c in &outcome.configs {
//!     println!("{}: {:.1} references per walk", c.config.name(), c.total.refs_per_walk());
//! }
//! assert!(outcome.configs[1].total.refs_per_walk() > outcome.configs[0].total.refs_per_walk());
//! ```
#![forbid(unsafe_code)]

pub mod access;
pub mod ages;
pub mod cache;
pub mod charge;
mod config;
pub mod contention;
pub mod counts;
mod estimate;
pub mod exit_log;
pub mod guest;
pub mod host;
mod known;
mod kvm;
pub mod memory;
mod model;
pub mod nested;
mod outcome;
pub mod page;
pub mod paging;
mod pcid;
pub mod placement;
mod profile;
pub mod regime;
mod sample;
pub mod shadow;
mod swaps;
mod timeline;
mod uses;
mod vm_state;
pub mod walk_2d;

pub use cache::{CacheError, CacheFacts, CacheMode};
pub use charge::{Charge, Costs, Entry, Place};
pub use config::{Config, Paging};
pub use estimate::{CONFIDENCE, Mean};
pub use exit_log::Exit;
pub use host::Frames;
pub use kvm::KvmVersion;
pub use model::{Decide, Looked, MOST_REGIONS, Model, Options, SoFar, SwitchedOutcome, Switching, format_of};
pub use outcome::{
    ConfigOutcome, Estimate, LockWait, Outcome, RegionOutcome, RegionTotal, Regions, Sampling, Several,
};
pub use placement::{Placed, PlacedCycles, PlacedFacts, Placement, PlacementOptions, Split, TableNode};
pub use profile::{
    Agile, AgileStart, CacheLevel, Chosen, ChosenBy, Content, Cost, CpuId, ExitCosts, KEYS, Key, KvmBy,
    Processor, Profile, ProfileError, Quality, TableOrigin, TagKind, Unmeasured, Variant, Virtualization,
};
pub use sample::{Counter, Sample};
pub use swaps::Swaps;
pub use uses::{UseError, UseOptions};
pub use vm_state::VmState;

/// Digest of what the model counts over built-in streams, in every configuration and under the rules of
/// each KVM. A page of results names the digest, so a page that is older than the model can be found.
/// `tests/it/digest.rs` computes the digest and fails if the counts have changed.
pub const COUNTS_DIGEST: &str = "c8db9eff8f94c04b";
