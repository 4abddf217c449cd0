// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A configuration: the paging mode and the size of the host's pages.

use crate::profile::Virtualization;
use bifold_mmu::{Format, PageSize};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a guest-virtual address becomes a host-physical one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Paging {
    /// No hypervisor: the guest's tables are the hardware's.
    Native,
    /// The hardware walks the guest's and the host's tables (EPT, NPT).
    Nested,
    /// The hardware walks tables that the hypervisor composed of both.
    Shadow,
    /// The guest's memory is a contiguous region of the host's, and the hardware adds the region's base to
    /// each guest-physical address below its limit. No product has this: Palacios had it for DMA alone.
    Offset,
    /// A walk begins in shadow tables, and where an entry there says so, goes on as a nested one. Published,
    /// in no product.
    Agile,
    /// The guest's tables hold the machine's addresses, and each change of them is a hypercall (Xen's
    /// paravirtual guests).
    Direct,
    /// Shadow paging by a hypervisor in a virtual machine, which is itself under nested paging.
    ShadowOnNested,
    /// Nested paging by a hypervisor in a virtual machine, which is itself under nested paging: the outer
    /// hypervisor composes both hypervisors' tables.
    NestedOnNested,
    /// Shadow paging by a hypervisor in a virtual machine that switches to its guests without the outer
    /// hypervisor.
    Pvm,
}

/// A paging mode and the page sizes with which hypervisors back memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Config {
    /// The paging mode.
    pub mode: Paging,
    /// Size of the pages with which the guest's hypervisor backs the guest's memory; without meaning for
    /// native, direct and offset.
    pub host_page: PageSize,
    /// Size of the pages with which an outer hypervisor backs the memory of the guest's; absent where that
    /// size is `host_page`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outer_page: Option<PageSize>,
}

impl Config {
    /// The configurations that a comparison shows, in its order.
    pub const ALL: [Config; 5] = [
        Config::new(Paging::Native, PageSize::Size4K),
        Config::new(Paging::Nested, PageSize::Size4K),
        Config::new(Paging::Nested, PageSize::Size2M),
        Config::new(Paging::Shadow, PageSize::Size4K),
        Config::new(Paging::Shadow, PageSize::Size2M),
    ];

    /// The configurations that are modelled if they are named, in the order of outputs.
    pub const KNOWN: [Config; 23] = [
        Config::ALL[0],
        Config::ALL[1],
        Config::ALL[2],
        Config::new(Paging::Nested, PageSize::Size1G),
        Config::ALL[3],
        Config::ALL[4],
        Config::new(Paging::Shadow, PageSize::Size1G),
        Config::new(Paging::Agile, PageSize::Size4K),
        Config::new(Paging::Agile, PageSize::Size2M),
        Config::new(Paging::Direct, PageSize::Size4K),
        Config::new(Paging::Offset, PageSize::Size4K),
        Config::new(Paging::ShadowOnNested, PageSize::Size4K),
        Config::new(Paging::ShadowOnNested, PageSize::Size4K).over(PageSize::Size2M),
        Config::new(Paging::ShadowOnNested, PageSize::Size2M).over(PageSize::Size4K),
        Config::new(Paging::ShadowOnNested, PageSize::Size2M),
        Config::new(Paging::NestedOnNested, PageSize::Size4K),
        Config::new(Paging::NestedOnNested, PageSize::Size4K).over(PageSize::Size2M),
        Config::new(Paging::NestedOnNested, PageSize::Size2M).over(PageSize::Size4K),
        Config::new(Paging::NestedOnNested, PageSize::Size2M),
        Config::new(Paging::Pvm, PageSize::Size4K),
        Config::new(Paging::Pvm, PageSize::Size4K).over(PageSize::Size2M),
        Config::new(Paging::Pvm, PageSize::Size2M).over(PageSize::Size4K),
        Config::new(Paging::Pvm, PageSize::Size2M),
    ];

    /// A mode with pages of one size, also below the guest's hypervisor.
    pub const fn new(mode: Paging, host_page: PageSize) -> Config {
        Config { mode, host_page, outer_page: None }
    }

    /// The configuration with pages of another size below the guest's hypervisor.
    const fn over(self, outer: PageSize) -> Config {
        Config { outer_page: Some(outer), ..self }
    }

    /// Size of the pages with which an outer hypervisor backs the memory of the guest's.
    pub fn outer_page(self) -> PageSize {
        self.outer_page.unwrap_or(self.host_page)
    }

    /// The name used on the command line and in every output: `native`,
    /// `nested-4k`, `nested-2m`, `nested-1g`, `shadow-4k`, `shadow-2m`, `shadow-1g`,
    /// `agile-4k`, `agile-2m`, `direct`, `offset`, and those of guests within guests: `pvm-4k`, or
    /// `pvm-4k-2m` where the guest's hypervisor has pages of 4 KB and the outer one of 2 MB.
    pub fn name(self) -> String {
        let size = |page| match page {
            PageSize::Size4K => "-4k",
            PageSize::Size2M => "-2m",
            PageSize::Size1G => "-1g",
        };
        let inner = if self.mode.has_sizes() { size(self.host_page) } else { "" };
        format!("{}{inner}{}", self.mode.name(), self.outer_page.map_or("", size))
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
            Paging::Agile => ("agile", "agile paging", true, false),
            Paging::Direct => ("direct", "direct paging", false, false),
            Paging::ShadowOnNested => ("shadow-on-nested", "shadow on nested paging", true, false),
            Paging::NestedOnNested => ("nested-on-nested", "nested on nested paging", true, false),
            Paging::Pvm => ("pvm", "PVM's paging", true, false),
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

    /// True if the guest's hypervisor runs in a virtual machine itself.
    pub fn has_outer(self) -> bool {
        self.has_outer_exits() || self == Paging::Pvm
    }

    /// True if the guest's exits to its hypervisor go through an outer one.
    pub fn has_outer_exits(self) -> bool {
        matches!(self, Paging::ShadowOnNested | Paging::NestedOnNested)
    }

    /// True if an entry of the inner hypervisor's into its guest flushes the guest's TLB entries: KVM on AMD
    /// does so at each (`nested_svm_transition_tlb_flush`), on Intel only where the inner hypervisor has no
    /// VPIDs.
    pub(crate) fn flushes_at_entry(self, virtualization: Virtualization) -> bool {
        self.has_outer_exits() && virtualization == Virtualization::Svm
    }

    /// Whether a hypervisor can enter the mode while its guest runs: those of products, and agile paging,
    /// which has the tables of both.
    pub fn is_entered(self) -> bool {
        self.is_offered() || self == Paging::Agile
    }

    /// Whether the mode can run guests with tables of this format: agile paging and nested on nested paging
    /// are made for those in 64-bit mode.
    pub fn serves(self, guest: &Format) -> bool {
        !matches!(self, Paging::Agile | Paging::NestedOnNested) || guest.is_long()
    }

    /// The mode among the two that a hypervisor can switch between; none for the others.
    pub fn switchable(self) -> Option<bifold_mmu::Mode> {
        match self {
            Paging::Native | Paging::Offset | Paging::Agile | Paging::Direct => None,
            Paging::ShadowOnNested | Paging::NestedOnNested | Paging::Pvm => None,
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
