// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share advise`: shows what this host's KSM is worth, and recommends settings.

use crate::console::{note, print};
use crate::status::Status;
use crate::words;
use bifold_host::Host;
use bifold_report::{Format, grouped, text_table, wrapped};
use bifold_trial::advise::{Advice, GuestKsm, Observed, Recommendation, advise, observe};
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

/// Name and version of the JSON document.
const SCHEMA: &str = "bifold.share-advise/1";

const EXAMPLES: &str = "\
Examples:
  bifold share advise
  bifold share advise --format json | jq '.recommendations[].how[]'";

/// Show what this host's KSM saves, could save and costs, and which settings to try
///
/// Reads KSM's counters, ksmd's CPU time, free memory and memory pressure, NUMA nodes, huge pages and the
/// processes that run guests. Recommends what to try and what to turn off, each with its reason and the
/// commands. Changes nothing.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AdviseArgs {
    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,
}

/// Carries out the verb on this machine.
pub fn run(args: &AdviseArgs) -> anyhow::Result<Status> {
    let seen = observe(&Host::live())?;
    print(&answer(&seen, args.format)?)?;
    if let Some(text) = seen.unreadable() {
        note(true, text);
    }
    Ok(Status::Done)
}

/// The data.
fn answer(seen: &Observed, format: Format) -> anyhow::Result<String> {
    let advice = advise(seen);
    match format {
        Format::Json => Ok(serde_json::to_string_pretty(&document(seen, &advice))? + "\n"),
        _ => Ok(text(seen, &advice)),
    }
}

const UNKNOWN: &str = "-";

fn mib(bytes: u64) -> String {
    grouped(bytes >> 20)
}

fn text(seen: &Observed, advice: &Advice) -> String {
    let profit = advice
        .profit
        .map_or(String::new(), |p| format!(", {} MiB after the memory for KSM's own records", p / (1 << 20)));
    let cpu =
        advice.cpu.map_or("unknown".into(), |c| format!("{:.2} % of a processor since boot", 100.0 * c));
    let copies = seen
        .activity
        .copies
        .map_or(String::new(), |n| format!(", {} merged pages copied at a write", grouped(n)));
    let line = |text: String| wrapped(&text, 9);
    let mut out = line(format!("saves    {} MiB{profit}", mib(advice.saved)));
    out += &line(format!(
        "could    {} MiB are in pages that ksmd found alone, {} MiB in pages that change or were scanned only once; \
         `bifold share potential pid:PID ...` counts how many of them are equal",
        mib(advice.alone),
        mib(advice.changing)
    ));
    out += &line(format!("costs    {cpu}{copies}"));
    if !seen.vms.is_empty() {
        out += &format!("\n{}", guests(seen));
    }
    let mut said: Vec<&[String]> = Vec::new();
    for r in &advice.recommendations {
        let line = |label: &str, text: &str| wrapped(&format!("{label:<10}{text}"), 10);
        out += &format!("\n{}", line(r.kind.name(), &r.what));
        out += &line("  why", &r.why);
        if said.contains(&&r.how[..]) {
            out += "  how     as above\n";
            continue;
        }
        said.push(&r.how);
        for (n, how) in r.how.iter().enumerate() {
            out += &format!("{:<10}{how}\n", if n == 0 { "  how" } else { "" });
        }
    }
    out
}

/// The table of guests.
fn guests(seen: &Observed) -> String {
    let head = [
        "\nguest",
        "\nprocess",
        "\nuser",
        "resident,\nMiB",
        "huge pages,\nMiB",
        "merged\npages",
        "zero\npages",
        "profit,\nMiB",
    ];
    let or = |n: Option<u64>| n.map_or(UNKNOWN.into(), grouped);
    let rows = seen.vms.iter().map(|vm| {
        vec![
            vm.guest.name.chars().flat_map(char::escape_debug).collect(),
            vm.guest.pid.to_string(),
            vm.uid.map_or(UNKNOWN.into(), |u| u.to_string()),
            mib(vm.memory.resident.unwrap_or(0)),
            vm.memory.huge.map_or(UNKNOWN.into(), mib),
            or(vm.ksm.merging_pages),
            or(vm.ksm.zero_pages),
            vm.ksm.profit.map_or(UNKNOWN.into(), |p| (p / (1 << 20)).to_string()),
        ]
    });
    text_table(head.map(String::from).into(), rows.collect())
}

/// What `bifold share advise --format json` writes: what this host's KSM saves and costs, and what to try.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// What KSM saves now. Unit: bytes.
    saved_bytes: u64,
    /// What KSM saves, less the memory for its own records (`general_profit`); null if the kernel does not
    /// say. Unit: bytes.
    profit_bytes: Option<i64>,
    /// Pages that ksmd has visited and that have no equal page yet. Unit: bytes.
    alone_bytes: u64,
    /// Pages that changed between two visits, or were not visited twice yet. Unit: bytes.
    changing_bytes: u64,
    /// CPU time of ksmd since boot, as a share of one processor; null if unknown.
    ksmd_cpu_ratio: Option<f64>,
    /// Merged pages copied since boot because of a write; null if the kernel does not count.
    copies_total: Option<u64>,
    /// The host's memory; null if unknown. Unit: bytes.
    memory_bytes: Option<u64>,
    /// What the host's programs can take without swapping; null if unknown. Unit: bytes.
    available_bytes: Option<u64>,
    /// Share of the last minute in which some task waited for memory; null without PSI.
    waiting_some_60s_ratio: Option<f64>,
    /// Processes that run guests, by process.
    vms: Vec<VmRow<'a>>,
    /// Recommendations, the most urgent first.
    recommendations: &'a [Recommendation],
}

/// A process that runs a guest. Figures of KSM are null if this user may not read them or the kernel lacks
/// them.
#[derive(Serialize, JsonSchema)]
struct VmRow<'a> {
    /// The guest's name, else the program's.
    domain: &'a str,
    /// The process.
    pid: u32,
    /// User of the process; null if unknown.
    uid: Option<u32>,
    /// Memory in the host's. Unit: bytes.
    resident_bytes: u64,
    /// Memory in huge pages; null if this user may not read that. Unit: bytes.
    huge_bytes: Option<u64>,
    /// Merged pages; null if unknown.
    merging_pages: Option<u64>,
    /// Pages that KSM made mappings of the kernel's zero page; null if unknown.
    zero_pages: Option<u64>,
    /// What KSM saves of the process, less the memory for its own records; null if unknown. Unit: bytes.
    profit_bytes: Option<i64>,
    /// Whether any memory of the process is mergeable; null if unknown.
    mergeable: Option<bool>,
    /// Whether this user may read KSM's figures of the process.
    readable: bool,
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

fn document<'a>(seen: &'a Observed, advice: &'a Advice) -> Document<'a> {
    let vm = |vm: &'a GuestKsm| VmRow {
        domain: &vm.guest.name,
        pid: vm.guest.pid,
        uid: vm.uid,
        resident_bytes: vm.memory.resident.unwrap_or(0),
        huge_bytes: vm.memory.huge,
        merging_pages: vm.ksm.merging_pages,
        zero_pages: vm.ksm.zero_pages,
        profit_bytes: vm.ksm.profit,
        mergeable: vm.ksm.mergeable,
        readable: vm.readable,
    };
    Document {
        schema: SCHEMA,
        saved_bytes: advice.saved,
        profit_bytes: advice.profit,
        alone_bytes: advice.alone,
        changing_bytes: advice.changing,
        ksmd_cpu_ratio: advice.cpu,
        copies_total: seen.activity.copies,
        memory_bytes: seen.memory.total,
        available_bytes: seen.memory.available,
        waiting_some_60s_ratio: seen.pressure.map(|p| p.some_60 / 100.0),
        vms: seen.vms.iter().map(vm).collect(),
        recommendations: &advice.recommendations,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::full::fake_host::Tree;

    fn look(tree: &Tree, format: Format) -> anyhow::Result<String> {
        answer(&observe(&tree.host())?, format)
    }

    #[test]
    fn a_short_host_whose_ksm_is_off_is_told_to_turn_it_on() {
        let tree = Tree::new();
        tree.ksm(&[("run", "0"), ("advisor_mode", "[none] scan-time"), ("advisor_target_scan_time", "200")]);
        tree.memory(16_000_000, 1_000_000, 12.0);
        tree.vm(100, "web", 1000, "ksm_mergeable: yes\nksm_merge_any: no\n");
        insta::assert_snapshot!("advise_short_and_off", look(&tree, Format::Table).unwrap());
    }

    #[test]
    fn guests_of_several_users_huge_pages_and_nodes_are_pointed_out() {
        let tree = Tree::new();
        tree.ksm(&[
            ("run", "1"),
            ("pages_to_scan", "100"),
            ("sleep_millisecs", "20"),
            ("smart_scan", "0"),
            ("use_zero_pages", "0"),
            ("merge_across_nodes", "1"),
            ("advisor_mode", "[none] scan-time"),
            ("pages_shared", "5000"),
            ("pages_sharing", "400000"),
            ("pages_unshared", "900000"),
            ("pages_volatile", "20000"),
            ("full_scans", "12"),
            ("stable_node_chains", "3"),
            ("ksm_zero_pages", "0"),
            ("general_profit", "1500000000"),
        ]);
        tree.memory(16_000_000, 4_000_000, 0.0);
        tree.ksmd(30_000);
        tree.nodes(2);
        tree.write("sys/devices/system/cpu/nohz_full", "2-3\n");
        let stat = "ksm_rmap_items 9000000\nksm_merging_pages 200000\nksm_process_profit 700000000\nksm_mergeable: yes\n";
        tree.vm(100, "web", 1000, stat);
        tree.vm(101, "db,1", 1001, stat);
        tree.write("proc/101/smaps_rollup", "Rss: 524288 kB\nAnonHugePages:    409600 kB\n");
        tree.vm(102, "files", 1001, "ksm_mergeable: no\n");
        insta::assert_snapshot!("advise_several_users", look(&tree, Format::Table).unwrap());
        let json = look(&tree, Format::Json).unwrap();
        let json: serde_json::Value = serde_json::from_str(&json).unwrap();
        let rules: Vec<&str> =
            json["recommendations"].as_array().unwrap().iter().map(|r| r["rule"].as_str().unwrap()).collect();
        let expected =
            ["owners", "latency", "numa", "huge-pages", "cpu", "smart-scan", "zero-pages", "unreached"];
        assert_eq!(rules, expected);
    }

    #[test]
    fn a_scanner_without_profit_or_need_is_to_be_turned_off() {
        let tree = Tree::new();
        tree.ksm(&[
            ("run", "1"),
            ("pages_shared", "10"),
            ("pages_sharing", "20"),
            ("pages_volatile", "5000"),
            ("full_scans", "9"),
            ("general_profit", "-90000"),
        ]);
        tree.memory(16_000_000, 15_000_000, 0.0);
        tree.ksmd(3_000);
        insta::assert_snapshot!("advise_no_profit", look(&tree, Format::Table).unwrap());
    }

    #[test]
    fn a_scanner_that_takes_hours_for_a_pass_is_to_scan_faster_if_that_is_not_dear() {
        let tree = Tree::new();
        tree.ksm(&[
            ("run", "1"),
            ("pages_to_scan", "100"),
            ("sleep_millisecs", "20"),
            ("pages_sharing", "1"),
        ]);
        tree.memory(16_000_000, 4_000_000, 0.0);
        tree.vm(100, "web", 1000, "ksm_rmap_items 18000000\n");
        tree.ksmd(10_000);
        let faster = "a pass over the 18000000 pages that ksmd knows takes 60 minutes";
        let said = || look(&tree, Format::Json).unwrap();
        assert!(said().contains(faster), "{}", said());
        tree.ksmd(30_000);
        assert!(!said().contains(faster) && said().contains("scan more slowly"), "{}", said());
    }

    #[test]
    fn a_host_with_enough_memory_and_no_ksm_running_is_left_alone() {
        let tree = Tree::new();
        tree.ksm(&[("run", "0")]);
        tree.memory(16_000_000, 15_000_000, 0.0);
        let said = look(&tree, Format::Table).unwrap();
        assert!(said.contains("leave KSM off"), "{said}");
    }

    #[test]
    fn a_host_without_ksm_is_an_error_of_its_own() {
        let e = look(&Tree::new(), Format::Table).unwrap_err();
        assert_eq!(crate::status::of_error(&e), 77);
    }
}
