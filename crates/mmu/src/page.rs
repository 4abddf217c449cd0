// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page sizes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A page size of x86-64.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum PageSize {
    /// 4 KB.
    #[serde(rename = "4K")]
    Size4K,
    /// 2 MB.
    #[serde(rename = "2M")]
    Size2M,
    /// 1 GB.
    #[serde(rename = "1G")]
    Size1G,
}

impl PageSize {
    /// All sizes, small to large.
    pub const ALL: [PageSize; 3] = [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G];

    /// Bits of the offset within a page: 12, 21, 30.
    #[inline]
    pub const fn shift(self) -> u32 {
        match self {
            PageSize::Size4K => 12,
            PageSize::Size2M => 21,
            PageSize::Size1G => 30,
        }
    }

    /// Table level whose entries map pages of this size in 4-level paging: 1, 2, 3.
    #[inline]
    pub const fn level(self) -> u8 {
        match self {
            PageSize::Size4K => 1,
            PageSize::Size2M => 2,
            PageSize::Size1G => 3,
        }
    }
}
