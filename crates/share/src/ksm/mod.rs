// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A model of ksmd, the kernel's scanner for identical pages (Linux `mm/ksm.c`).
//!
//! A [`Scanner`] visits the pages of guests batch by batch, as ksmd does. It has the stable tree of merged
//! pages, the unstable tree of single pages, which is discarded after each pass, the checksum that must be
//! equal at two visits, further copies of a content with more than `max_page_sharing` mappings, smart_scan's
//! skips, and the advisor. It counts what ksmd counts, and the work, from which [`Costs`] make CPU time.
//!
//! The stable tree is a hash table here, because a search finds a page by its content whatever the tree's
//! shape is; only the number of compares is that of a balanced tree. (In the kernel, the shape also decides
//! when stale copies disappear, because a search removes the stale copies on its way. Here a stale copy waits
//! for a search for its own content.) The unstable tree is a tree as in the kernel, because its pages
//! disappear or change and misdirect searches. Left out: NUMA nodes (`merge_across_nodes`), pages that a fork
//! shares, unmapped memory, and failures to get a lock or memory.

mod advisor;
mod contents;
mod scanner;
mod stable;
pub mod synthetic;
mod unstable;
mod work;

pub use advisor::Advisor;
pub use scanner::{Counts, Guest, Scanner};
pub use work::{Costs, Work};

use std::time::Duration;

/// When the stable tree is searched for a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Search {
    /// Only if the page's checksum is that of the last visit, as in `cmp_and_merge_page` of Linux 6.12. No
    /// page merges at its first visit.
    Unchanged,
    /// At every visit, as in Linux 6.1.
    Always,
}

/// ksmd's settings, with the kernel's defaults.
#[derive(Debug, Clone, PartialEq)]
pub struct Tuning {
    /// Pages visited per batch.
    pub pages_to_scan: u64,
    /// Pause between batches.
    pub sleep: Duration,
    /// Most mappings of one merged page, at least 2.
    pub max_page_sharing: u32,
    /// Whether pages of zeros become mappings of the kernel's zero page.
    pub use_zero_pages: bool,
    /// Whether pages that did not merge for several passes are skipped for some.
    pub smart_scan: bool,
    /// Time between full looks through the copies of a content.
    pub chains_prune: Duration,
    /// The advisor that sets `pages_to_scan`, if one is on.
    pub advisor: Option<Advisor>,
    /// When the stable tree is searched.
    pub search: Search,
    /// Whether zero parts of a huge page become mappings of the zero page when it is split, as in Linux 6.12.
    pub split_drops_zeros: bool,
    /// Costs of the kinds of work.
    pub costs: Costs,
}

impl Default for Tuning {
    fn default() -> Tuning {
        Tuning {
            pages_to_scan: 100,
            sleep: Duration::from_millis(20),
            max_page_sharing: 256,
            use_zero_pages: false,
            smart_scan: true,
            chains_prune: Duration::from_millis(2000),
            advisor: None,
            search: Search::Unchanged,
            split_drops_zeros: true,
            costs: Costs::default(),
        }
    }
}

#[cfg(test)]
mod tests;
