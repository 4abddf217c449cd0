// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Address translation on x86-64 in software: addresses, page-table formats as data, the page
//! walker, TLBs and walk caches.
//!
//! The crate does no I/O and knows no hypervisor: what an entry contains, and what a reference
//! costs, is its caller's. The main parts are [`walk()`] and [`Tlb`].
//!
//! ```
//! use bifold_mmu::format::X86_64_4_LEVEL as FORMAT;
//! use bifold_mmu::{Start, Walk, walk};
//! use std::convert::Infallible;
//!
//! // Tables at 0x4000 (the root), 0x3000, 0x2000 and 0x1000 that map any address to 0x9000.
//! let mut references = 0;
//! let end = walk::<Infallible>(&FORMAT, Start { level: 4, table: 0x4000 }, 0x5678, |level, _at| {
//!     references += 1;
//!     let target = if level == 1 { 0x9000 } else { u64::from(level - 1) << 12 };
//!     Ok(target | FORMAT.present)
//! });
//! let Ok(Walk::Leaf(step)) = end else { panic!("the address is mapped") };
//! assert_eq!(FORMAT.target(step.level, step.entry), 0x9000);
//! assert_eq!(references, 4);
//! ```
#![forbid(unsafe_code)]

mod addr;
mod assoc;
mod filter;
pub mod format;
mod linked;
mod mode;
mod ordered;
mod page;
mod recent;
mod sets;
mod tag;
mod tlb;
mod walk;
mod walk_cache;
pub mod write;

pub use addr::{Gpa, Gva, Hpa};
pub use filter::Filter;
pub use format::Format;
pub use mode::Mode;
pub use page::PageSize;
pub use recent::MOST_WAYS;
pub use tag::SHARERS;
use tag::{Attr, PAGE_BITS};
pub use tlb::{ArraySpec, Entry, Filing, Lookup, Now, Side, Tlb, all_sharers};
pub use walk::{Start, Step, Walk, walk};
pub use walk_cache::{CacheSpec, Dimension, Tag, WalkCache};
