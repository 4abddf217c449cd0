// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The results of Bifold as people and programs read them: tables for terminals, JSON with a versioned
//! schema, tidy rows (JSON lines, CSV) and one-file HTML.
//!
//! The crate measures nothing and writes no file. A [`Comparison`] holds the model's
//! [`Outcome`](bifold_model::Outcome) and what is known about the run ([`Meta`]); every output is a pure
//! function of it. [`Figures`] computes derived figures once for all outputs. Counters, their units and
//! meanings come from [`Sample::COUNTERS`](bifold_model::Sample::COUNTERS). [`Runs`] holds several runs
//! of one command, [`diff`] compares two results, and [`PolicyComparison`] shows policies over programs.
//!
//! ```
//! use bifold_model::{Model, Options, Profile};
//! use bifold_report::{Comparison, Format, Input, Meta};
//! use bifold_trace::Generator;
//!
//! let generator = Generator::parse("t:10000").unwrap();
//! let profile = Profile::load("i5-7600", &[]).unwrap();
//! let options = Options { guest_frames: generator.guest_frames(), ..Options::default() };
//! let mut model = Model::new(&profile, options);
//! generator.run(&mut |words| model.consume(words)).unwrap();
//! let meta = Meta {
//!     bifold: env!("CARGO_PKG_VERSION").into(),
//!     input: Input::Generator { name: generator.to_string() },
//!     guest: None,
//!     exit: None,
//!     partial: None,
//!     capture_checks: None,
//!     clock: None,
//!     hardware: profile,
//! };
//! let outcome = model.finish();
//! let comparison = Comparison { meta, outcome, policies: None, places: None, memory: None, baseline: None };
//! assert!(comparison.render(Format::Table).unwrap().contains("nested-4k"));
//! assert!(comparison.render(Format::Csv).unwrap().starts_with("interval,"));
//! assert_eq!(comparison.checks().1, 0);
//! ```
// The minimum version's clippy asks for fewer lifetimes in what schemars derives.
#![allow(clippy::needless_lifetimes)]
#![forbid(unsafe_code)]

mod baseline;
mod caches;
mod chart;
mod clock;
mod comparison;
pub mod diff;
mod error;
mod figures;
mod first_touches;
mod flames;
mod format;
mod html;
mod json;
mod memory;
mod meta;
mod page;
mod placement;
mod places;
mod policies;
mod regions;
mod render;
mod rows;
mod runs;
mod sampled;
pub mod schema;
mod several;
mod show;
mod spread;
mod start;
mod table;
mod template;
pub mod terminal;
mod text;
mod text_table;
mod trace;
mod tune;
mod verdict;
mod warnings;

pub use baseline::{Baseline, Judged, Moved, NotComparable, PlaceNames};
pub use comparison::Comparison;
pub use error::RenderError;
pub use figures::{Core, Figures};
pub use format::Format;
pub use memory::{MemoryLooks, MemoryNeeds};
pub use meta::{Guest, Input, Meta, Partial, named_profile, profile_choice, profile_words};
pub use page::{Page, PageBar, PageBars, PageChart, PageTable};
pub use places::Places;
pub use policies::{NoPolicies, PolicyComparison, RunPolicies, checks_table, scale_words, vm_words};
pub use runs::{Outlier, Runs};
pub use show::Show;
pub use spread::Spread;
pub use text::{TimeUnit, grouped, seconds, shell_words, signed, vm_and_profile, wrapped};
pub use text_table::{keyed_table as text_table_with_keys, labelled, table as text_table};
pub use tune::{
    Advice, Change as TuneChange, Cost as TuneCost, How, Now as TuneNow, Setting, Tried, Tuning,
    WORTH_PERCENT, catalogue,
};
pub use verdict::{Conclusion, Flip, ModeCost, PageConclusion, Winner};
