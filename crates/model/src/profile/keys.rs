// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys of a profile: each is declared once, with its unit and meaning. The fields that
//! TOML is read into, their documentation and [`KEYS`] are made from the declarations.

use bifold_mmu::PageSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A key of a profile, as a TOML file and an override name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The dotted name. `NAME` in it stands for the `name` of an array.
    pub name: &'static str,
    /// The unit: `Hz`, `cycles`, `entries`; `1` for names, switches and plain numbers.
    pub unit: &'static str,
    /// The meaning.
    pub doc: &'static str,
}

/// A meaning with its unit, if it has one.
macro_rules! with_unit {
    ($doc:literal, "1") => {
        $doc
    };
    ($doc:literal, $unit:literal) => {
        concat!($doc, " Unit: ", $unit, ".")
    };
}

/// Declares a table of a profile: a struct, and its part of [`KEYS`].
macro_rules! table {
    ($( #[$meta:meta] )* $name:ident, $keys:ident: $prefix:literal {
        $( $( #[$attr:meta] )* $field:ident: $type:ty, $unit:tt = $doc:literal; )*
    }) => {
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        $( #[$meta] )*
        pub struct $name {
            $( #[doc = with_unit!($doc, $unit)] $( #[$attr] )* pub $field: $type, )*
        }

        const $keys: &[Key] = &[
            $( Key { name: concat!($prefix, stringify!($field)), unit: $unit, doc: $doc } ),*
        ];
    };
}

/// Declares the costs of exits and of the hypervisor's work, each with the counter it belongs to.
macro_rules! exits {
    ($( $( #[$attr:meta] )* $name:ident : $( $counter:ident )|* = $doc:literal ),* $(,)?) => {
        /// Cycles per exit by reason, exit and entry included, and per unit of the hypervisor's work.
        #[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct ExitCosts {
            $( #[doc = $doc] $( #[$attr] )* pub $name: Cost, )*
        }

        const EXIT: &[Key] = &[
            $( Key { name: concat!("exit.", stringify!($name), ".cycles"), unit: "cycles", doc: $doc } ),*
        ];

        impl ExitCosts {
            /// All costs with their names.
            pub fn iter(&self) -> impl Iterator<Item = (&'static str, &Cost)> {
                [ $( (stringify!($name), &self.$name) ),* ].into_iter()
            }

            /// All costs with their names, and how often a sample counts each.
            pub fn counted(&self, s: &crate::Sample) -> impl Iterator<Item = (&'static str, &Cost, u64)> {
                [ $( (stringify!($name), &self.$name, 0 $( + s.$counter )*) ),* ].into_iter()
            }

            /// Cycles of the exits and the work counted in a sample.
            pub fn cycles(&self, s: &crate::Sample) -> u64 {
                0 $( + self.$name.cycles * (0 $( + s.$counter )*) )*
            }
        }
    };
}

table! {
    /// A number of cycles with its origin.
    #[derive(Default)]
    #[schemars(rename = "cost")]
    Cost, COST: "exit.REASON." {
        cycles: u64, "cycles" = "Cycles.";
        source: Option<String>, "1" = "Where the value comes from.";
        prior: Option<String>, "1" = "Or: a starting value, and how it was arrived at.";
    }
}

table! {
    /// Processors that a profile stands for.
    #[derive(Eq)]
    Processor, PROCESSOR: "processor." {
        vendor: String, "1" = "Of `[[processor]]`, which lists processors that the profile stands for where a user names no profile; not for `--set`. The vendor, in CPUID's words: `GenuineIntel` or `AuthenticAMD`.";
        family: u32, "1" = "The family, extended family added, as `cpu family` in /proc/cpuinfo.";
        models: [u32; 2], "1" = "The first and the last model, extended model added, as `model` in /proc/cpuinfo.";
        #[serde(skip_serializing_if = "Option::is_none")]
        steppings: Option<[u32; 2]>, "1" = "The first and the last stepping. Without this key, all.";
        #[serde(skip_serializing_if = "Option::is_none")]
        name: Option<String>, "1" = "The name, as `model name` in /proc/cpuinfo. Without this key, any. `profile measure` writes it.";
        #[serde(skip_serializing_if = "Option::is_none")]
        guest: Option<bool>, "1" = "Whether the processor is seen in a virtual machine. Without this key, both. `profile measure` writes it.";
    }
}

table! {
    /// Clock and base speed.
    Cpu, CPU: "cpu." {
        frequency_hz: u64, "Hz" = "Core frequency.";
        base_cpi: f64, "cycles" = "Cycles per instruction of the ideal run (no walks, no exits).";
        #[serde(skip_serializing_if = "Option::is_none")]
        reorder_window: Option<u64>, "instructions" = "Instructions that the core looks ahead (its reorder buffer): waits for memory and walks that are farther apart do not overlap. Without this key, all independent ones overlap as far as `memory.data_overlap` and `memory.walk_overlap` say. Needs data caches.";
        #[serde(skip_serializing_if = "Option::is_none")]
        cr3_load_cycles: Option<u64>, "cycles" = "What a load of CR3 takes longer than another instruction, beside the TLB misses that follow. A part of the ideal run, as every mode loads CR3. With KPTI, each system call, fault and interrupt has two. Without this key, such loads cost nothing.";
        #[serde(skip_serializing_if = "Option::is_none")]
        entry_exits: Option<u64>, "1" = "Exits to an outer hypervisor for each entry of the inner one into its guest. Without this key 1, for VMRUN or VMRESUME. KVM on an AMD processor that does not virtualize VMLOAD, VMSAVE, STGI and CLGI for it has 7.";
        pcid: bool, "1" = "Linux's use of process-context identifiers is modelled (the captured guest has none).";
        tlb_tagged: bool, "1" = "TLB entries survive exits (VPID, ASID).";
        virtualization: Virtualization, "1" = "Whose rules exits follow: `svm` (AMD) or `vmx` (Intel). They differ in writes to CR4: under SVM all exit, under VMX those that change a bit of the host's, to which PGE belongs under shadow paging only.";
        source: Option<String>, "1" = "Where the values come from.";
        prior: Option<String>, "1" = "Which of them are starting values.";
    }
}

table! {
    /// One TLB array.
    TlbArray, TLB: "tlb.NAME." {
        name: String, "1" = "Name, for overrides (`tlb.NAME.entries=128`).";
        level: u8, "1" = "TLB level: 1 or 2.";
        sides: Vec<Side>, "1" = "`data`, `code` or both.";
        sizes: Vec<PageSize>, "1" = "Page sizes held.";
        entries: usize, "entries" = "Number of entries.";
        ways: usize, "entries" = "Associativity; 0 = fully associative.";
        #[serde(skip_serializing_if = "Option::is_none")]
        miss_cycles: Option<u64>, "cycles" = "What a dependent load waits longer if this array, the first level's of data, misses and the second level hits. Independent loads hide that. Without this key, such hits cost nothing. Needs data caches.";
        source: Option<String>, "1" = "Where the values come from.";
        prior: Option<String>, "1" = "Or: a starting value.";
    }
}

/// A vendor's hardware virtualization.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Virtualization {
    /// AMD's.
    Svm,
    /// Intel's.
    Vmx,
}

/// The side of a TLB array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// Loads and stores.
    Data,
    /// Instruction fetch.
    Code,
}

/// Which of the listed walk caches are used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Variant {
    /// No walk caches at all.
    #[serde(rename = "none")]
    None,
    /// Guest dimension only.
    #[serde(rename = "1d")]
    OneDimensional,
    /// Guest and host dimension.
    #[serde(rename = "2d")]
    TwoDimensional,
    /// Both, and the nested TLB.
    #[serde(rename = "2d+ntlb")]
    WithNestedTlb,
}

/// Tagging of walk caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum TagKind {
    /// By virtual prefix (Intel).
    Virtual,
    /// By the entry's physical address (AMD).
    Physical,
}

table! {
    /// One walk-cache array.
    CacheArray, CACHE_ARRAY: "walk_cache.array.NAME." {
        name: String, "1" = "Name, for overrides.";
        levels: Vec<u8>, "1" = "Levels whose entries it holds: 2 = PDE, 3 = PDPTE, 4 = PML4E.";
        dimensions: Vec<DimensionKind>, "1" = "`guest`, `host` or both.";
        entries: usize, "entries" = "Number of entries.";
        ways: usize, "entries" = "Associativity; 0 = fully associative.";
    }
}

/// Dimension of a walk-cache array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum DimensionKind {
    /// Guest tables, or the only ones.
    Guest,
    /// Nested tables.
    Host,
}

table! {
    /// Geometry of the nested TLB.
    #[derive(Copy)]
    NestedTlb, NESTED_TLB: "walk_cache.nested_tlb." {
        entries: usize, "entries" = "Number of entries.";
        ways: usize, "entries" = "Associativity; 0 = fully associative.";
    }
}

table! {
    /// Walk caches.
    WalkCaches, WALK_CACHES: "walk_cache." {
        variant: Variant, "1" = "Which of the arrays are in use: `none`, `1d`, `2d` or `2d+ntlb`.";
        tag: TagKind, "1" = "How the arrays are tagged: `virtual` prefix (Intel) or `physical` address of the entry (AMD).";
        #[serde(default)]
        array: Vec<CacheArray>, "1" = "The arrays.";
        nested_tlb: Option<NestedTlb>, "1" = "The nested TLB, used by variant `2d+ntlb`.";
        source: Option<String>, "1" = "Where the values come from.";
        prior: Option<String>, "1" = "Or: starting values.";
    }
}

table! {
    /// Cycles per reference of a walk without data caches (`--caches off`, or a profile without
    /// `[[cache]]`); with them, of the references whose kind no simulated line has shown yet.
    WalkCosts, WALK: "walk." {
        guest_upper: u64, "cycles" = "Reference to a guest (or only) table, entries that point to a table.";
        guest_leaf: u64, "cycles" = "Reference to a guest (or only) table, PTEs.";
        host_upper: u64, "cycles" = "Reference to a nested table, entries that point to a table.";
        host_leaf: u64, "cycles" = "Reference to a nested table, level 1.";
        source: Option<String>, "1" = "Where the values come from.";
        prior: Option<String>, "1" = "Or: starting values.";
    }
}

/// Which lines a cache level holds, as against the levels below it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Content {
    /// A miss fills the level; the levels evict on their own.
    #[default]
    Any,
    /// All that the levels below hold: an eviction here evicts there too.
    Inclusive,
    /// Only lines evicted from the level below: a hit moves the line down.
    Exclusive,
}

table! {
    /// One level of the data caches. Lines have 64 bytes.
    CacheLevel, CACHE: "cache.NAME." {
        name: String, "1" = "Name, for overrides (`cache.l2.bytes=2097152`).";
        level: u8, "1" = "1 to 3, without gaps.";
        bytes: u64, "bytes" = "Capacity. Sets (bytes / 64 / ways) are a power of two or a multiple of 64.";
        ways: usize, "lines" = "Associativity.";
        cycles: u64, "cycles" = "Load to use, when this level answers.";
        #[serde(default)]
        content: Content, "1" = "`any` (the default), `inclusive` of the levels below, or `exclusive`: their victims only.";
        #[serde(default)]
        shared: bool, "1" = "All vCPUs share the level.";
        source: Option<String>, "1" = "Where the values come from.";
        prior: Option<String>, "1" = "Or: a starting value.";
    }
}

table! {
    /// Memory behind the caches, and what the core hides of waiting for caches and memory.
    Memory, MEMORY: "memory." {
        cycles: u64, "cycles" = "Load to use, when no cache answers.";
        #[serde(skip_serializing_if = "Option::is_none")]
        remote_cycles: Option<u64>, "cycles" = "Load to use, when no cache answers and the memory is another node's. Without this key, placements have counts and no cycles.";
        data_overlap: f64, "1" = "Misses of independent loads in flight together: each stalls the core for this part of its wait.";
        walk_overlap: f64, "1" = "The same for the walks of independent accesses.";
        #[serde(skip_serializing_if = "Option::is_none")]
        walkers: Option<u64>, "walks" = "Walks that the core makes at once: their overlap where the data are in a cache. `walk_overlap` holds where walks hide behind waits for memory. Without this key, it holds everywhere. Needs `cpu.reorder_window`.";
        walk_level: u8, "1" = "First cache level in which page walks look: 1, or 2 on CPUs whose walker bypasses L1.";
        prefetch_level: u8, "1" = "Cache level that answers a miss on a line whose neighbour was just used; 0 = no prefetch.";
        #[serde(skip_serializing_if = "Option::is_none")]
        page_cross_cycles: Option<u64>, "cycles" = "Load to use of the first line of a 4 KB page that a stream enters from the page beside, if no cache answers. In larger pages the prefetcher follows the stream. Without this key, streams stop at each multiple of 4 KB in all pages. No effect if `memory.prefetch_level` is 0.";
        #[serde(skip_serializing_if = "Option::is_none")]
        first_use_2m_cycles: Option<u64>, "cycles" = "What the first write to a free page of 2 MB takes longer than to one that was in use just before: where the machine is a virtual one, its host backs the page then. All configurations and the ideal run wait so long for each page of 2 MB that the guest's kernel gives a program. Without this key, they do not wait. No effect without data caches, nor on a sampled stream.";
        source: Option<String>, "1" = "Where the values come from.";
        prior: Option<String>, "1" = "Which of them are starting values.";
    }
}

table! {
    /// What the machine's own kernel costs, as measured. The model does not use the values; they are there to
    /// be compared with, and for those who scale costs.
    System, SYSTEM: "system." {
        page_fault: Option<u64>, "cycles" = "First write to a 4 KB page of anonymous memory.";
        page_fault_huge: Option<u64>, "cycles" = "First write to a 2 MB page.";
        syscall: Option<u64>, "cycles" = "The cheapest system call.";
        process_switch: Option<u64>, "cycles" = "Switch from a process to another on the same CPU.";
        mprotect: Option<u64>, "cycles" = "Change of a page's rights by mprotect(2).";
        source: Option<String>, "1" = "Where the values come from.";
        prior: Option<String>, "1" = "Or: starting values.";
    }
}

/// How an address space begins under agile paging.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum AgileStart {
    /// In nested mode.
    Nested,
    /// In shadow mode.
    Shadow,
}

table! {
    /// Agile paging: options of the hardware, and the hypervisor's policy.
    #[derive(Copy, Eq)]
    #[serde(default)]
    Agile, AGILE: "agile." {
        writes: u32, "1" = "The write to a shadowed table within an interval that moves the table to nested mode: the second without this key. 0: none does, and the shadow tables follow the rules of shadow paging.";
        start: AgileStart, "1" = "The mode in which an address space begins: `nested` without this key, or `shadow`.";
        sets_both: bool, "1" = "The hardware sets accessed and dirty bits in the guest's tables and in the shadow tables, so that these need no exits for them. Without this key it does not.";
        cr3_cache: u8, "entries" = "Roots that the hardware finds by the guest's value of CR3, so that a load of such a value does not exit. The paper has 4 to 8. Without this key there are none.";
    }
}

impl Default for Agile {
    fn default() -> Self {
        Agile { writes: 2, start: AgileStart::Nested, sets_both: false, cr3_cache: 0 }
    }
}

exits! {
    violation: exits_violation | outer_frames_backed | outer_huge_frames_backed = "Nested tables do not map a frame.",
    guest_fault: exits_guest_fault = "Page fault reflected into the guest.",
    hidden_fault: exits_hidden_fault = "Shadow entry missing.",
    permission: exits_permission = "Shadow entry present but stricter than the guest's.",
    unsync: exits_unsync = "Write to a synced leaf table.",
    emulated_write: exits_emulated_write = "Write to a non-leaf table, emulated.",
    unprotect: exits_unprotect = "Table unprotected, store retried.",
    cr3_write: exits_cr3_write = "MOV to CR3.",
    cr3_read: exits_cr3_read = "MOV from CR3.",
    invlpg: exits_invlpg = "INVLPG.",
    cr4_write: exits_cr4_write = "Write to CR4.",
    #[serde(default = "Cost::of_hypercall", skip_serializing_if = "Cost::is_of_hypercall")]
    hypercall: exits_hypercall = "Hypercall of direct paging that changes page tables, without the work per entry.",
    #[serde(default = "Cost::of_entry", skip_serializing_if = "Cost::is_of_entry")]
    check_entry: hypercall_entries = "Checking one entry of a page table under direct paging.",
    #[serde(default = "Cost::of_outer", skip_serializing_if = "Cost::is_of_outer")]
    outer: outer_exits = "An exit to the outer hypervisor, in guests within guests: what it takes to pass the exit on, or to fill an entry, beside the costs of the exit that it belongs to.",
    #[serde(default = "Cost::of_ipi", skip_serializing_if = "Cost::is_of_ipi")]
    ipi: exits_ipi = "Inter-processor interrupt: the sender's exit, and the exit of one vCPU that runs and gets it.",
    root_miss: root_misses = "A CR3 load whose root is not cached, on top of its exit.",
    sync_page: syncs = "Re-reading one unsync shadow page.",
    make_page: shadow_pages_made = "Creating one shadow page.",
    zap_page: shadow_pages_zapped = "Zapping one shadow page.",
    switch: mode_switches = "One switch of the paging mode: all vCPUs stopped and started; dropped tables are counted apart.",
    back_frame: frames_backed | outer_frames_backed = "The host's own work to back one 4 KB page (fault, allocation, zeroing).",
    back_huge: huge_frames_backed | outer_huge_frames_backed = "The host's own work to back one 2 MB page.",
    #[serde(default, skip_serializing_if = "Cost::is_none")]
    file_frame: frames_from_file = "The host's own work to map or copy one 4 KB page of a snapshot's file at its first touch (`--vm restored`).",
    #[serde(default, skip_serializing_if = "Cost::is_none")]
    uffd_frame: frames_from_uffd = "The host's own work, and that of the process that copies, for one 4 KB page of a snapshot by userfaultfd (`--vm restored-uffd`).",
    #[serde(default, skip_serializing_if = "Cost::is_none")]
    uffd_huge: huge_frames_from_uffd = "The same of 2 MB.",
}

/// The costs that a profile need not have. Those it does not name have these, and are left out of what is
/// written.
impl Cost {
    fn of_hypercall() -> Cost {
        const WHENCE: &str = "hypercall of PVM (SOSP 2023), Xeon 8269CY at 2.5 GHz: 0.46 us = 1150 cycles; Xen's own was not measured";
        Cost { cycles: 1150, source: None, prior: Some(WHENCE.into()) }
    }

    fn is_of_hypercall(&self) -> bool {
        *self == Cost::of_hypercall()
    }

    fn of_entry() -> Cost {
        const WHENCE: &str = "an estimate: the type and the count of the old frame and of the new one are changed by atomic \
                              instructions (Xen's mod_l1_entry), about 25 cycles each";
        Cost { cycles: 100, source: None, prior: Some(WHENCE.into()) }
    }

    fn is_of_entry(&self) -> bool {
        *self == Cost::of_entry()
    }

    fn of_outer() -> Cost {
        const WHENCE: &str = "hypercall of PVM (SOSP 2023), Xeon 8269CY at 2.5 GHz: 0.46 us = 1150 cycles for an exit and an entry";
        Cost { cycles: 1150, source: None, prior: Some(WHENCE.into()) }
    }

    fn is_of_outer(&self) -> bool {
        *self == Cost::of_outer()
    }

    fn of_ipi() -> Cost {
        const WHENCE: &str = "an emulated write, as that of a page table (4500), and CPUID's exit of PVM (SOSP 2023), Xeon 8269CY at \
                              2.5 GHz: 0.54 us = 1350 cycles";
        Cost { cycles: 5850, source: None, prior: Some(WHENCE.into()) }
    }

    fn is_of_ipi(&self) -> bool {
        *self == Cost::of_ipi()
    }

    /// A cost that the profile does not have.
    pub fn is_none(&self) -> bool {
        *self == Cost::default()
    }

    /// Is it one that the profile does not name?
    pub(super) fn is_unnamed(&self) -> bool {
        self.is_none()
            || self.is_of_hypercall()
            || self.is_of_entry()
            || self.is_of_outer()
            || self.is_of_ipi()
    }

    /// Adds what a profile need not have, so that overrides find it.
    pub(super) fn add_unnamed(profile: &mut toml::Table) {
        profile.entry("agile").or_insert_with(|| toml::Table::new().into());
        let Some(toml::Value::Table(exit)) = profile.get_mut("exit") else { return };
        let unnamed = [
            ("hypercall", Cost::of_hypercall()),
            ("check_entry", Cost::of_entry()),
            ("outer", Cost::of_outer()),
            ("ipi", Cost::of_ipi()),
            ("file_frame", Cost::default()),
            ("uffd_frame", Cost::default()),
            ("uffd_huge", Cost::default()),
        ];
        for (name, cost) in unnamed {
            if let (false, Ok(cost)) = (exit.contains_key(name), toml::Value::try_from(cost)) {
                exit.insert(name.into(), cost);
            }
        }
    }
}

/// Keys outside any table.
const TOP: &[Key] = &[
    Key { name: "name", unit: "1", doc: "Short name." },
    Key { name: "description", unit: "1", doc: "What machine it is." },
    Key {
        name: "kvm",
        unit: "1",
        doc: "The host's KVM: `linux-6.1` (without this key) or `linux-6.12`. A run that names no profile has the rules of its host's kernel series.",
    },
];

/// Every key of a profile, by table.
pub const KEYS: [&[Key]; 14] = [
    TOP,
    PROCESSOR,
    CPU,
    TLB,
    WALK_CACHES,
    CACHE_ARRAY,
    NESTED_TLB,
    WALK,
    CACHE,
    MEMORY,
    SYSTEM,
    AGILE,
    EXIT,
    COST.split_at(1).1,
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Profile;
    use std::collections::BTreeSet;

    /// The dotted keys of a table, with the names of arrays and exit reasons replaced.
    fn keys(prefix: &str, value: &toml::Value, out: &mut BTreeSet<String>) {
        match value {
            toml::Value::Table(t) => {
                for (key, value) in t {
                    keys(
                        &if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") },
                        value,
                        out,
                    );
                }
            }
            toml::Value::Array(a) if a.iter().all(toml::Value::is_table) => {
                // Processors are the only ones without names of their own.
                let below = if prefix == "processor" { prefix.into() } else { format!("{prefix}.NAME") };
                a.iter().for_each(|v| keys(&below, v, out));
            }
            _ => {
                let origin = prefix.strip_prefix("exit.").and_then(|k| k.split_once('.')).map(|(_, k)| k);
                out.insert(match origin {
                    Some(k @ ("source" | "prior")) => format!("exit.REASON.{k}"),
                    _ => prefix.to_string(),
                });
            }
        }
    }

    #[test]
    fn every_key_that_a_profile_has_is_listed() {
        let listed: BTreeSet<&str> = KEYS.iter().flat_map(|t| t.iter().map(|k| k.name)).collect();
        for name in Profile::builtin_names() {
            let mut used = BTreeSet::new();
            let profile = Profile::load(name, &["kvm=linux-6.12".into()]).unwrap();
            keys("", &toml::Value::try_from(&profile).unwrap(), &mut used);
            for key in &used {
                assert!(listed.contains(key.as_str()), "{name}: {key}");
            }
        }
    }
}
