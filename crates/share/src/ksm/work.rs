// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts ksmd's work by kind, and computes CPU time from the counts.

use schemars::JsonSchema;
use serde::Serialize;
use std::ops::{Add, Sub};
use std::time::Duration;

macro_rules! work {
    ($($(#[doc = $doc:literal])+ $field:ident $cost:ident = $default:literal,)+) => {
        /// How often ksmd has done each kind of work.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, JsonSchema)]
        pub struct Work {
            $($(#[doc = $doc])+ pub $field: u64,)+
        }

        /// Cost of each kind of work, in nanoseconds of ksmd's CPU time.
        #[derive(Debug, Clone, Copy, PartialEq)]
        pub struct Costs {
            $(#[doc = concat!("Nanoseconds for one of [`Work::", stringify!($field), "`].")]
            pub $cost: f64,)+
        }

        impl Default for Costs {
            fn default() -> Costs {
                Costs { $($cost: $default,)+ }
            }
        }

        impl Work {
            /// CPU time of all work.
            pub fn cpu(&self, costs: &Costs) -> Duration {
                let ns = 0.0 $(+ self.$field as f64 * costs.$cost)+;
                Duration::from_nanos(ns as u64)
            }
        }

        impl Add for Work {
            type Output = Work;
            fn add(self, other: Work) -> Work {
                Work { $($field: self.$field + other.$field,)+ }
            }
        }

        impl Sub for Work {
            type Output = Work;
            fn sub(self, other: Work) -> Work {
                Work { $($field: self.$field - other.$field,)+ }
            }
        }
    };
}

work! {
    /// Visits to pages that are merged already: found in the page table, and left.
    merged_visits merged_visit = 240.0,
    /// Checksums of pages, and finding these in the page table.
    checksums checksum = 1150.0,
    /// Compares on the way through the stable tree.
    stable_compares stable_compare = 50.0,
    /// Compares on the way through the unstable tree, each with a walk of a process's page table.
    unstable_compares unstable_compare = 200.0,
    /// Pages mapped to a merged page: write protected, compared byte by byte, freed.
    merges merge = 1700.0,
    /// Pages mapped to the kernel's zero page.
    zero_merges zero_merge = 1400.0,
    /// Copies of a content that were looked at for one with room.
    copies_seen copy_seen = 30.0,
    /// Pages that smart_scan skipped.
    skips skip = 250.0,
    /// Huge pages split because a page in them merged.
    splits split = 40000.0,
}
