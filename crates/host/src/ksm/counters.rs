// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KSM's counters, for the host and for one process.

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal,)+) => {
        /// A counter of KSM, under its name in `/sys/kernel/mm/ksm`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Counter {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Counter {
            /// All counters.
            pub const ALL: [Counter; counters!(@count $($variant)+)] = [$(Counter::$variant,)+];

            /// The name of the counter's file.
            pub const fn name(self) -> &'static str {
                match self { $(Counter::$variant => $name,)+ }
            }

            /// The counter's meaning.
            pub const fn doc(self) -> &'static str {
                match self { $(Counter::$variant => concat!($($doc),+),)+ }
            }
        }
    };
    (@count $($variant:ident)+) => { [$(stringify!($variant)),+].len() };
}

counters! {
    /// Frames that merged pages take.
    PagesShared "pages_shared",
    /// Pages that share those frames beyond the first of each: what is saved.
    PagesSharing "pages_sharing",
    /// Pages in the unstable tree: looked at in this pass or the last, and alone.
    PagesUnshared "pages_unshared",
    /// Pages in neither tree: changed since the last visit, or not visited twice yet.
    PagesVolatile "pages_volatile",
    /// Visits of ksmd to pages since boot.
    PagesScanned "pages_scanned",
    /// Visits that smart_scan saved since boot.
    PagesSkipped "pages_skipped",
    /// Passes through all mergeable memory; back to 0 when all pages are unmerged.
    FullScans "full_scans",
    /// Contents with several merged copies.
    StableNodeChains "stable_node_chains",
    /// Merged copies of those contents.
    StableNodeDups "stable_node_dups",
    /// Pages that KSM made mappings of the kernel's zero page.
    KsmZeroPages "ksm_zero_pages",
    /// Bytes saved less bytes that KSM's own records take.
    GeneralProfit "general_profit",
}

/// Values of KSM's counters for the whole host.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters([Option<i64>; Counter::ALL.len()]);

impl Counters {
    /// The value of a counter, if the kernel has it.
    pub fn get(&self, counter: Counter) -> Option<i64> {
        self.0[counter as usize]
    }

    pub(crate) fn put(&mut self, counter: Counter, value: Option<i64>) {
        self.0[counter as usize] = value;
    }

    /// All counters that the kernel has.
    pub fn iter(&self) -> impl Iterator<Item = (Counter, i64)> {
        Counter::ALL.into_iter().filter_map(|c| Some((c, self.get(c)?)))
    }
}

/// KSM's figures for one process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessKsm {
    /// Merged pages (`ksm_merging_pages`).
    pub merging_pages: Option<u64>,
    /// Pages that ksmd has on record.
    pub rmap_items: Option<u64>,
    /// Pages that KSM made mappings of the kernel's zero page.
    pub zero_pages: Option<u64>,
    /// Bytes saved minus bytes of KSM's own records.
    pub profit: Option<i64>,
    /// Whether all memory of the process is mergeable (`PR_SET_MEMORY_MERGE`).
    pub merge_any: Option<bool>,
    /// Whether any memory of the process is mergeable.
    pub mergeable: Option<bool>,
}

impl ProcessKsm {
    /// Parses `/proc/PID/ksm_stat`. Unknown lines and values are skipped, because kernels add lines.
    pub fn parse(text: &str) -> ProcessKsm {
        let mut found = ProcessKsm::default();
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let (Some(name), Some(value)) = (words.next(), words.next()) else { continue };
            let yes = || match value {
                "yes" => Some(true),
                "no" => Some(false),
                _ => None,
            };
            match name.trim_end_matches(':') {
                "ksm_merging_pages" => found.merging_pages = value.parse().ok(),
                "ksm_rmap_items" => found.rmap_items = value.parse().ok(),
                "ksm_zero_pages" => found.zero_pages = value.parse().ok(),
                "ksm_process_profit" => found.profit = value.parse().ok(),
                "ksm_merge_any" => found.merge_any = yes(),
                "ksm_mergeable" => found.mergeable = yes(),
                _ => {}
            }
        }
        found
    }
}
