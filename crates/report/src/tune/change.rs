// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What turns one setting, configuration or placement into another.

use super::Setting;
use bifold_model::{Config, Placement};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One change of what is set now.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// 4 KB host pages.
    Host4k,
    /// 2 MB host pages.
    Host2m,
    /// 1 GB host pages.
    Host1g,
    /// Nested paging.
    Nested,
    /// Shadow paging.
    Shadow,
    /// 4 KB pages of the inner hypervisor, where the guest runs within a guest.
    Inner4k,
    /// 2 MB pages of the inner hypervisor.
    Inner2m,
    /// 1 GB pages of the inner hypervisor.
    Inner1g,
    /// 4 KB pages of the outer host.
    Outer4k,
    /// 2 MB pages of the outer host.
    Outer2m,
    /// 1 GB pages of the outer host.
    Outer1g,
    /// Nested paging of the inner hypervisor.
    InnerNested,
    /// Shadow paging of the inner hypervisor.
    InnerShadow,
    /// PVM as the inner hypervisor.
    Pvm,
    /// Transparent huge pages always, in the guest.
    ThpAlways,
    /// Transparent huge pages where programs ask for them.
    ThpMadvise,
    /// No transparent huge pages in the guest.
    ThpNever,
    /// glibc's malloc does not ask for huge pages.
    MallocDefault,
    /// glibc's malloc asks for transparent huge pages.
    MallocThp,
    /// glibc's malloc takes huge pages from hugetlbfs.
    MallocHugetlb,
    /// Page-table isolation off, in the guest.
    KptiOff,
    /// Page-table isolation on, in the guest.
    KptiOn,
    /// Each guest node's memory on a host node of its own.
    BindNodes,
    /// Memory with the vCPU that touches it first.
    FirstTouch,
    /// Memory in turn over the host's nodes.
    Interleave,
    /// All memory on one node.
    OneNode,
    /// A value of an axis of the user's own: `NAME=VALUE`.
    #[serde(untagged)]
    Own(String),
}

impl Setting {
    pub(super) fn is_unknown(&self) -> bool {
        *self == Setting::default()
    }

    /// What turns one setting into another.
    pub(super) fn changes(&self, to: &Setting) -> Vec<Change> {
        let thp = (self.thp != to.thp).then_some(match to.thp.as_str() {
            "always" => Change::ThpAlways,
            "never" => Change::ThpNever,
            _ => Change::ThpMadvise,
        });
        let malloc = (self.malloc != to.malloc).then_some(match to.malloc {
            0 => Change::MallocDefault,
            1 => Change::MallocThp,
            _ => Change::MallocHugetlb,
        });
        let kpti = (self.kpti != to.kpti).then_some(if to.kpti { Change::KptiOn } else { Change::KptiOff });
        let own = to.own.iter().filter(|value| !self.own.contains(value));
        let own = own.map(|(axis, value)| Change::Own(format!("{axis}={value}")));
        [thp, malloc, kpti].into_iter().flatten().chain(own).collect()
    }
}

impl Change {
    pub(super) fn is_host_page(&self) -> bool {
        use Change::*;
        matches!(self, Host4k | Host2m | Host1g | Inner4k | Inner2m | Inner1g | Outer4k | Outer2m | Outer1g)
    }
}

/// Configurations that can be chosen in place of each other: those of products, and apart from these the
/// guests within guests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Choice {
    OneHypervisor,
    Within,
}

impl Choice {
    pub(super) fn of(config: &str) -> Option<Choice> {
        match Config::from_name(config)?.mode {
            mode if mode.is_offered() => Some(Choice::OneHypervisor),
            mode if mode.has_outer() => Some(Choice::Within),
            _ => None,
        }
    }
}

/// The mode and the page sizes, the inner level's first, in a configuration's name: `nested-4k`, `pvm-2m-4k`.
/// One size is that of all levels.
pub(super) fn parts(name: &str) -> (&str, [&str; 2]) {
    let cut = |name: &'_ str| name.rfind('-').filter(|at| ["-4k", "-2m", "-1g"].contains(&&name[*at..]));
    let Some(at) = cut(name) else { return (name, ["", ""]) };
    let (rest, outer) = (&name[..at], &name[at + 1..]);
    match cut(rest) {
        Some(at) => (&rest[..at], [&rest[at + 1..], outer]),
        None => (rest, [outer, outer]),
    }
}

/// What turns one configuration into another: `nested-4k` into `shadow-2m`.
pub(super) fn config_changes(from: &str, to: &str) -> Vec<Change> {
    use Change::*;
    let ((mode, [inner, outer]), (to_mode, [to_inner, to_outer])) = (parts(from), parts(to));
    let sized = |size: &str, all: [Change; 3]| {
        let [small, huge, giant] = all;
        match size {
            "4k" => small,
            "1g" => giant,
            _ => huge,
        }
    };
    let within = Choice::of(to) == Some(Choice::Within);
    let (inner_sizes, outer_sizes) = ([Inner4k, Inner2m, Inner1g], [Outer4k, Outer2m, Outer1g]);
    let sizes = if within {
        let inner = (inner != to_inner).then(|| sized(to_inner, inner_sizes));
        [inner, (outer != to_outer).then(|| sized(to_outer, outer_sizes))]
    } else {
        [(inner != to_inner).then(|| sized(to_inner, [Host4k, Host2m, Host1g])), None]
    };
    let mode = (mode != to_mode).then_some(match to_mode {
        "shadow" => Shadow,
        "shadow-on-nested" => InnerShadow,
        "nested-on-nested" => InnerNested,
        "pvm" => Pvm,
        _ => Nested,
    });
    sizes.into_iter().flatten().chain(mode).collect()
}

/// What turns one placement into another.
pub(super) fn placement_change(from: Option<Placement>, to: Option<Placement>) -> Option<Change> {
    match to.filter(|to| Some(*to) != from)? {
        Placement::GuestNuma => Some(Change::BindNodes),
        Placement::Smp => Some(Change::FirstTouch),
        Placement::Interleaved => Some(Change::Interleave),
        Placement::OneNode => Some(Change::OneNode),
        // A mistake, and cases that are forced in experiments.
        _ => None,
    }
}
