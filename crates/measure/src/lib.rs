// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Measures a machine's caches, TLBs and costs without performance counters, and makes a profile of them.
//!
//! [`survey()`] times loads and system calls on one CPU and fits curves; [`profile()`] makes a profile's TOML
//! of the result. Each value is a median of rounds with the 95 % interval of the median ([`Estimate`]). What
//! is compared is measured in turn, round by round; a piece of work during which the thread was preempted,
//! the hypervisor stole time or the clock changed is repeated. A survey that its limit or the user ends keeps
//! the parts that are complete; a value whose interval is too wide does not enter the profile
//! ([`Estimate::refusal`]).
//!
//! | module | what |
//! |---|---|
//! | `loops`, `os` | the timed loops in assembly, and the kernel's interfaces: all unsafe code |
//! | `bench` | times pieces of work in cycles, and repeats disturbed ones |
//! | `survey` | what is measured, in which order |
//! | `rounds` | how many rounds a value gets, by its interval and the time left |
//! | `estimate`, `fit` | medians, plateaus, knees, geometry: nothing there measures |
//! | `told`, `surroundings` | CPUID; load, quotas, containers, huge pages |
//! | `profile`, `findings` | the result as a profile, and as rows |
//!
//! Cycles are those of a chain of additions, a cycle each. Times of caches include no TLB misses beyond an
//! eighth of one, so that they mean the same on hosts that map a guest in pages of 4 KB.
//!
//! ```no_run
//! use bifold_measure::{Options, profile, survey, today};
//! use std::time::Duration;
//!
//! let options = Options { cpu: None, quick: true, limit: Duration::from_secs(60) };
//! let found = survey(options, &mut |what| eprintln!("{what}"), &|| false)?;
//! println!("{}", profile(&found, "mine", &today())?.text);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod bench;
mod estimate;
mod findings;
mod fit;
mod loops;
mod os;
mod profile;
mod rounds;
mod surroundings;
mod survey;
mod told;
mod toml_text;

pub use bench::Calm;
pub use estimate::{Estimate, Refusal};
pub use findings::Finding;
pub use profile::{Made, Unwritten, profile, today};
pub use rounds::End;
pub use surroundings::load_note;
pub use survey::{Array, Costs, HostPages, Level, Loads, MeasureError, Options, Part, Survey, Tlbs, survey};
pub use told::{Told, ToldCache, ToldTlb};
