// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The columns of each table.

use super::Table;
use bifold_model::Sample;
use bifold_report::Figures;
use bifold_table::{Column, Kind};

impl Table {
    /// The columns, in order. Later versions add columns at the end.
    pub fn columns(self) -> Vec<Column> {
        let counters = Sample::COUNTERS.iter().map(|c| Column::new(c.name, c.unit, c.doc, Kind::Count));
        let mut columns: Vec<Column> = FIRST.iter().map(column).collect();
        match self {
            Table::Results => {
                columns.extend(MADE.iter().map(column));
                columns.extend(counters);
                let figures = Figures::ALL.iter();
                columns.extend(figures.map(|f| Column::new(f.name, f.unit, f.doc, Kind::Number)));
            }
            Table::Intervals => {
                columns.extend(INTERVAL.iter().map(column));
                columns.extend(counters);
            }
            Table::Places => columns.extend(PLACE.iter().map(column)),
        }
        columns
    }
}
type Declared = (&'static str, &'static str, Kind, &'static str);

fn column((name, unit, kind, doc): &Declared) -> Column {
    Column::new(*name, *unit, *doc, *kind)
}

/// The first columns of every table.
const FIRST: [Declared; 8] = [
    ("program", "", Kind::Text, "The command with its arguments, or the generator."),
    ("profile", "", Kind::Text, "Name of the hardware profile."),
    ("seed", "", Kind::Count, "Seed of the host frames' placement; unknown for a timeline."),
    ("run", "", Kind::Count, "Number of the run, from 1."),
    ("config", "", Kind::Text, "The configuration: nested-4k, ..."),
    ("mode", "", Kind::Text, "Its paging mode."),
    ("host_page", "", Kind::Text, "Size of the host's pages; unknown for modes without sizes."),
    ("frequency_hz", "Hz", Kind::Count, "Core frequency: seconds are cycles over this."),
];

/// How a result was made.
const MADE: [Declared; 21] = [
    ("bifold", "", Kind::Text, "Version of Bifold."),
    ("overrides", "", Kind::Text, "Changes of the profile, KEY=VALUE, with spaces between."),
    ("kvm", "", Kind::Text, "The host's KVM that is modelled."),
    ("config_hash", "", Kind::Text, "Hash of the profile as resolved."),
    ("input_hash", "", Kind::Text, "Hash of the events; of several runs, of the first."),
    ("base_cpi", "cycles", Kind::Number, "Cycles per instruction assumed for the ideal run."),
    ("timing", "", Kind::Text, "exact or fast."),
    ("vcpus", "1", Kind::Count, "Number of the guest's vCPUs."),
    ("nodes", "1", Kind::Count, "Number of the guest's NUMA nodes."),
    ("tables", "", Kind::Text, "Format of the guest's page tables."),
    ("kpti", "", Kind::Text, "Whether the guest's kernel isolated its page tables: on or off."),
    ("thp", "", Kind::Text, "The guest's transparent huge pages."),
    ("hugetlb_mib", "MiB", Kind::Count, "Memory reserved for hugetlbfs."),
    ("memory_mib", "MiB", Kind::Count, "The guest's memory."),
    ("root", "", Kind::Text, "The guest's root file system."),
    ("kernel", "", Kind::Text, "Version of the guest's kernel."),
    ("qemu", "", Kind::Text, "Version of QEMU."),
    ("region", "", Kind::Text, "The part of the command that was recorded; unknown for all of it."),
    ("partial", "", Kind::Text, "Why the events end before the command; unknown if they do not."),
    (
        "failed_checks",
        "1",
        Kind::Count,
        "Self-checks that disagreed: figures with any are not to be trusted.",
    ),
    ("vm", "", Kind::Text, "State of the VM when the program began."),
];

const INTERVAL: [Declared; 2] = [
    ("interval", "", Kind::Count, "Number of the interval, from 0."),
    (
        "start_cycles",
        "cycles",
        Kind::Count,
        "Start of the interval, in cycles of the ideal run; in a timeline by the intervals' nominal length.",
    ),
];

const PLACE: [Declared; 11] = [
    ("view", "", Kind::Text, "code: by the code that ran; cause: by the user code that caused the cost."),
    ("process", "", Kind::Text, "Name of the process."),
    ("binary", "", Kind::Text, "Program or library whose code it is."),
    ("function", "", Kind::Text, "Name of the function."),
    ("mapping", "", Kind::Text, "What was accessed."),
    ("tlb_misses", "1", Kind::Count, "Misses of all TLB levels."),
    ("walk_cycles", "cycles", Kind::Count, "Cycles in page walks."),
    ("walk_hidden_cycles", "cycles", Kind::Count, "The part of them that the core hides."),
    ("exits", "1", Kind::Count, "Exits of all reasons."),
    ("vmm_cycles", "cycles", Kind::Count, "Cycles in exits and in the hypervisor's work for them."),
    ("data_wait_cycles", "cycles", Kind::Number, "Waits for data beyond the ideal run's; may be negative."),
];
