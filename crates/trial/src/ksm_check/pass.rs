// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of a check, and what a pass of each found.

use bifold_host::ksm::{Merged, Setting, Settings};
use bifold_share::ksm::{Counts, Tuning, Work};
use std::time::Duration;

/// A set of KSM settings with a name.
#[derive(Debug, Clone, PartialEq)]
pub struct KsmCase {
    /// The case's name in results.
    pub name: String,
    /// The kernel's settings. The model uses those that it knows.
    pub settings: Settings,
}

impl KsmCase {
    /// The three cases under which every content is checked.
    pub fn built_in() -> Vec<KsmCase> {
        use Setting::{MaxPageSharing as Max, SmartScan as Smart, UseZeroPages as Zero};
        let case = |name: &str, values: &[_]| KsmCase { name: name.into(), settings: Settings::of(values) };
        vec![
            case("default", &[(Max, 256), (Zero, 0), (Smart, 1)]),
            case("max_page_sharing=8", &[(Max, 8), (Zero, 0), (Smart, 1)]),
            case("use_zero_pages=1 smart_scan=0", &[(Max, 100_000), (Zero, 1), (Smart, 0)]),
        ]
    }

    /// The model's tuning, one pass per batch.
    pub fn tuning(&self) -> Tuning {
        let mut tuning = Tuning { pages_to_scan: u64::MAX, sleep: Duration::ZERO, ..Tuning::default() };
        for (setting, value) in self.settings.iter() {
            match setting {
                Setting::MaxPageSharing => tuning.max_page_sharing = value as u32,
                Setting::UseZeroPages => tuning.use_zero_pages = value != 0,
                Setting::SmartScan => tuning.smart_scan = value != 0,
                Setting::ChainsPruneMillisecs => tuning.chains_prune = Duration::from_millis(value),
                _ => {}
            }
        }
        tuning
    }
}

/// What the kernel has merged of the checked memory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counted {
    /// Merged frames.
    pub pages_shared: u64,
    /// Pages that share these frames beyond the first page of each.
    pub pages_sharing: u64,
    /// Pages that KSM made mappings of the zero page.
    pub ksm_zero_pages: u64,
}

impl From<Merged> for Counted {
    fn from(m: Merged) -> Counted {
        Counted { pages_shared: m.frames, pages_sharing: m.pages - m.frames, ksm_zero_pages: m.zero_pages }
    }
}

/// A pass: predicted and counted figures.
#[derive(Debug, Clone, PartialEq)]
pub struct KsmPass {
    /// The checked memory.
    pub content: String,
    /// The case.
    pub case: String,
    /// Number of the pass, from 1.
    pub pass: u64,
    /// Figures of the model.
    pub predicted: Counts,
    /// Figures of the kernel for the checked memory.
    pub counted: Counted,
    /// The kernel's counters for the whole host.
    pub host: Counts,
    /// The model's work in this pass.
    pub work: Work,
    /// CPU time by the model's costs.
    pub predicted_cpu: Duration,
    /// CPU time that ksmd took.
    pub counted_cpu: Option<Duration>,
    /// Number of tries.
    pub tries: u32,
    /// Whether memory changed during the last try too: other processes' mergeable areas, in size or in huge
    /// pages. If processes are checked: any mergeable area in size, or pages that khugepaged made huge.
    pub disturbed: bool,
}

impl KsmPass {
    /// The figures that must agree: name, predicted, counted.
    pub fn figures(&self) -> [(&'static str, u64, u64); 3] {
        let (p, c) = (&self.predicted, &self.counted);
        [
            ("pages_shared", p.pages_shared, c.pages_shared),
            ("pages_sharing", p.pages_sharing, c.pages_sharing),
            ("ksm_zero_pages", p.ksm_zero_pages, c.ksm_zero_pages),
        ]
    }

    /// Pages of other processes that the host's counters show as merged or mapped to the zero page. A frame
    /// that others share with the checked memory counts for the checked memory.
    pub fn others(&self) -> u64 {
        let (host, own) = (&self.host, &self.counted);
        (host.pages_shared + host.pages_sharing + host.ksm_zero_pages)
            .saturating_sub(own.pages_shared + own.pages_sharing + own.ksm_zero_pages)
    }

    /// The largest difference of a figure, as a share of the count.
    pub fn difference(&self) -> f64 {
        let off =
            |(_, p, c): (_, u64, u64)| if p == c { 0.0 } else { p.abs_diff(c) as f64 / c.max(1) as f64 };
        self.figures().into_iter().map(off).fold(0.0, f64::max)
    }
}
