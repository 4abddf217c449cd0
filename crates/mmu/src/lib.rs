// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pure part of address translation: addresses, page-table formats as data,
//! the walker, TLBs and walk caches. No I/O.
#![forbid(unsafe_code)]

mod page;

pub use page::PageSize;
