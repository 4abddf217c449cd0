// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A configuration: the paging mode and the size of the host's pages.

use bifold_mmu::PageSize;
use serde::{Deserialize, Serialize};

/// How a guest-virtual address becomes a host-physical one: by native, nested or shadow paging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Paging {
    /// No hypervisor: the guest's tables are the hardware's.
    Native,
    /// The hardware walks the guest's and the host's tables (EPT, NPT).
    Nested,
    /// The hardware walks tables that the hypervisor composed of both.
    Shadow,
    /// The guest's memory is a contiguous region of the host's, and the hardware adds the region's base to each
    /// guest-physical address below its limit. No product has this: Palacios had it for DMA alone.
    Offset,
}

/// A paging mode and the page size with which the host backs guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Config {
    /// The paging mode.
    pub mode: Paging,
    /// Host page size; for [`Paging::Native`] and [`Paging::Offset`] it has no meaning and is 4 KB.
    pub host_page: PageSize,
}

impl Config {
    /// The configurations that a comparison shows, in its order.
    pub const ALL: [Config; 5] = [
        Config { mode: Paging::Native, host_page: PageSize::Size4K },
        Config { mode: Paging::Nested, host_page: PageSize::Size4K },
        Config { mode: Paging::Nested, host_page: PageSize::Size2M },
        Config { mode: Paging::Shadow, host_page: PageSize::Size4K },
        Config { mode: Paging::Shadow, host_page: PageSize::Size2M },
    ];

    /// The configurations that are modelled if they are named, in the order of outputs.
    pub const KNOWN: [Config; 8] = [
        Config::ALL[0],
        Config::ALL[1],
        Config::ALL[2],
        Config { mode: Paging::Nested, host_page: PageSize::Size1G },
        Config::ALL[3],
        Config::ALL[4],
        Config { mode: Paging::Shadow, host_page: PageSize::Size1G },
        Config { mode: Paging::Offset, host_page: PageSize::Size4K },
    ];

    /// The name used on the command line and in every output: `native`,
    /// `nested-4k`, `nested-2m`, `nested-1g`, `shadow-4k`, `shadow-2m`, `shadow-1g`,
    /// `offset`.
    pub fn name(self) -> String {
        let size = match self.host_page {
            PageSize::Size4K => "4k",
            PageSize::Size2M => "2m",
            PageSize::Size1G => "1g",
        };
        match self.mode.has_sizes() {
            true => format!("{}-{size}", self.mode.name()),
            false => self.mode.name().into(),
        }
    }

    /// The configuration of that [`name`](Config::name).
    pub fn from_name(name: &str) -> Option<Config> {
        Config::KNOWN.into_iter().find(|c| c.name() == name)
    }
}

/// What is declared of a mode, for inputs and outputs.
struct Declared {
    /// In the names of configurations.
    name: &'static str,
    /// In sentences.
    words: &'static str,
    /// The host's page size makes a difference.
    has_sizes: bool,
    /// A product has the mode, so that it can be advised.
    is_offered: bool,
}

impl Paging {
    fn declared(self) -> Declared {
        let (name, words, has_sizes, is_offered) = match self {
            Paging::Native => ("native", "no hypervisor", false, false),
            Paging::Nested => ("nested", "nested paging", true, true),
            Paging::Shadow => ("shadow", "shadow paging", true, true),
            Paging::Offset => ("offset", "offset paging", false, false),
        };
        Declared { name, words, has_sizes, is_offered }
    }

    /// The name that begins those of its configurations: `nested`.
    pub fn name(self) -> &'static str {
        self.declared().name
    }

    /// The mode in a sentence: `nested paging`.
    pub fn words(self) -> &'static str {
        self.declared().words
    }

    /// Whether the size of the host's pages makes a difference.
    pub fn has_sizes(self) -> bool {
        self.declared().has_sizes
    }

    /// Whether a product has the mode, so that it can be advised.
    pub fn is_offered(self) -> bool {
        self.declared().is_offered
    }

    /// The mode among the two that a hypervisor can switch between; none for the others.
    pub fn switchable(self) -> Option<bifold_mmu::Mode> {
        match self {
            Paging::Native | Paging::Offset => None,
            Paging::Nested => Some(bifold_mmu::Mode::Nested),
            Paging::Shadow => Some(bifold_mmu::Mode::Shadow),
        }
    }
}

impl From<bifold_mmu::Mode> for Paging {
    fn from(mode: bifold_mmu::Mode) -> Self {
        match mode {
            bifold_mmu::Mode::Nested => Paging::Nested,
            bifold_mmu::Mode::Shadow => Paging::Shadow,
        }
    }
}
