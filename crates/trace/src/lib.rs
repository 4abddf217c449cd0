// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest did: the [`Event`], the recording that stores events in a file, and generators of events.
//!
//! The capture plugin and the generators make events, and the model consumes them. This crate runs no guest
//! and counts no cost. [`Writer`] and [`Reader`] write and read recordings ([`mod@file`]); [`Generator`]
//! names a built-in stream ([`generate`]); [`Thin`] makes a sampled stream of a whole one.
//!
//! ```
//! use bifold_trace::{Event, Generator, Header, Reader, Trailer, Writer, decode};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let dir = tempfile::tempdir()?;
//! let path = dir.path().join("t-seq.bifold");
//! let generator = Generator::parse("t-seq:1000")?;
//! let header = Header { guest_frames: generator.guest_frames(), vcpus: 1, ..Header::default() };
//! let mut writer = Writer::create(&path, &header)?;
//! generator.run(&mut |words| writer.write(words))?;
//! writer.finish(&Trailer::default())?;
//!
//! let (mut reader, mut words, mut loads) = (Reader::open(&path)?, Vec::new(), 0);
//! while reader.next_block(&mut words)? {
//!     let mut at = 0;
//!     while at < words.len() {
//!         let (event, length) = decode(&words[at..], at)?;
//!         let load = matches!(event, Event::Load(_) | Event::LoadDependent(_) | Event::LoadBeforeChain(_));
//!         loads += u64::from(load);
//!         at += length;
//!     }
//! }
//! assert_eq!(loads, 1000);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod clock;
#[doc(hidden)]
pub mod codec;
mod compact;
pub mod event;
mod exit;
pub mod file;
pub mod generate;
mod nodes;
mod os;
mod tables;
mod thin;

pub use clock::Clock;
pub use compact::{Granularity, compact};
pub use event::{DecodeError, Event, MemoryLook, Stats, decode};
pub use exit::CommandExit;
pub use file::{FileError, Header, Reader, Source, Trailer, Writer, region_begins_later, several_regions};
pub use generate::{GenerateError, Generator};
pub use nodes::{Frames, GuestNode, MOST_NODES, MOST_VCPUS};
pub use os::{GuestPages, OsError, Process};
pub use tables::TableFormat;
pub use thin::{Thin, Windows};
