// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A configuration: who translates a guest's addresses, and with which host pages.

use bifold_mmu::PageSize;
use serde::{Deserialize, Serialize};

/// How a guest-virtual address becomes a host-physical one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// No hypervisor: the guest's tables are the hardware's.
    Native,
    /// The hardware walks the guest's and the host's tables (EPT, NPT).
    Nested,
    /// The hardware walks tables that the hypervisor composed of both.
    Shadow,
}

/// A paging mode and the page size with which the host backs guest memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Config {
    /// The paging mode.
    pub mode: Mode,
    /// Host page size; for [`Mode::Native`] it has no meaning and is 4 KB.
    pub host_page: PageSize,
}

impl Config {
    /// The configurations that a comparison shows, in its order.
    pub const ALL: [Config; 5] = [
        Config { mode: Mode::Native, host_page: PageSize::Size4K },
        Config { mode: Mode::Nested, host_page: PageSize::Size4K },
        Config { mode: Mode::Nested, host_page: PageSize::Size2M },
        Config { mode: Mode::Shadow, host_page: PageSize::Size4K },
        Config { mode: Mode::Shadow, host_page: PageSize::Size2M },
    ];

    /// The name used on the command line and in every output: `native`,
    /// `nested-4k`, `nested-2m`, `shadow-4k`, `shadow-2m`.
    pub fn name(self) -> String {
        let size = match self.host_page {
            PageSize::Size4K => "4k",
            PageSize::Size2M => "2m",
            PageSize::Size1G => "1g",
        };
        match self.mode {
            Mode::Native => "native".into(),
            Mode::Nested => format!("nested-{size}"),
            Mode::Shadow => format!("shadow-{size}"),
        }
    }

    /// The configuration of that [`name`](Config::name).
    pub fn from_name(name: &str) -> Option<Config> {
        Config::ALL.into_iter().find(|c| c.name() == name)
    }
}

impl Mode {
    /// The mode among the two that a hypervisor can switch between; none for [`Mode::Native`].
    pub fn switchable(self) -> Option<bifold_mmu::Mode> {
        match self {
            Mode::Native => None,
            Mode::Nested => Some(bifold_mmu::Mode::Nested),
            Mode::Shadow => Some(bifold_mmu::Mode::Shadow),
        }
    }
}

impl From<bifold_mmu::Mode> for Mode {
    fn from(mode: bifold_mmu::Mode) -> Self {
        match mode {
            bifold_mmu::Mode::Nested => Mode::Nested,
            bifold_mmu::Mode::Shadow => Mode::Shadow,
        }
    }
}
