// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pure part of address translation: addresses, page-table formats as data,
//! the walker, TLBs and walk caches. No I/O.
#![forbid(unsafe_code)]

mod addr;
mod assoc;
mod filter;
pub mod format;
mod mode;
mod ordered;
mod page;
mod recent;
mod tlb;
mod walk;
mod walk_cache;
mod wide;
pub mod write;

pub use addr::{Gpa, Gva, Hpa};
pub use assoc::{Assoc, Attr, PAGE_BITS, SHARERS, Slot};
pub use filter::Filter;
pub use format::Format;
pub use mode::Mode;
pub use page::PageSize;
pub use tlb::{ArraySpec, Entry, Lookup, Side, Tlb, all_sharers};
pub use walk::{Start, Step, Walk, walk};
pub use walk_cache::{CacheSpec, Dimension, Tag, WalkCache};
