// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Local and remote references, a row per configuration and placement, for tables, pages and tidy rows.

use crate::page::PageTable;
use crate::text::{decimals, fixed};
use crate::text_table::{keyed_table, labelled};
use crate::{Comparison, RenderError};
use bifold_model::{Placed, Split};
use schemars::JsonSchema;
use serde::Serialize;

const TITLE: &str = "Local and remote references";

/// A configuration in one placement, with all counts.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub(crate) struct PlacementRow {
    /// Name of the configuration: native, nested-4k, ...
    config: String,
    /// Where memory and tables lie.
    placement: &'static str,
    /// References of walks to the guest's page tables on the vCPU's node.
    guest_tables_local: u64,
    /// References of walks to the guest's page tables on another node.
    guest_tables_remote: u64,
    /// References of walks to the hypervisor's page tables on the vCPU's node.
    host_tables_local: u64,
    /// References of walks to the hypervisor's page tables on another node.
    host_tables_remote: u64,
    /// Data accesses to the vCPU's node.
    data_local: u64,
    /// Data accesses to another node.
    data_remote: u64,
    /// Cycles of walks that remote memory costs beyond local memory; null without data caches or without
    /// `memory.remote_cycles`. Unit: cycles.
    remote_walk_cycles: Option<u64>,
    /// The same of data accesses. Unit: cycles.
    remote_data_cycles: Option<u64>,
    /// Overhead of the configuration in this placement. Unit: %.
    overhead_percent: Option<f64>,
}

impl PlacementRow {
    const NAMES: [&'static str; 11] = [
        "config",
        "placement",
        "guest_tables_local",
        "guest_tables_remote",
        "host_tables_local",
        "host_tables_remote",
        "data_local",
        "data_remote",
        "remote_walk_cycles",
        "remote_data_cycles",
        "overhead_percent",
    ];

    fn of(c: &Comparison, config: &bifold_model::ConfigOutcome, p: &Placed) -> PlacementRow {
        let extra = |more: u64| c.outcome.percent(config.total.extra_cycles() + more, 1.0);
        PlacementRow {
            config: config.config.name(),
            placement: p.placement.name(),
            guest_tables_local: p.guest_tables.local,
            guest_tables_remote: p.guest_tables.remote,
            host_tables_local: p.host_tables.local,
            host_tables_remote: p.host_tables.remote,
            data_local: p.data.local,
            data_remote: p.data.remote,
            remote_walk_cycles: p.cycles.map(|c| c.walk),
            remote_data_cycles: p.cycles.map(|c| c.data),
            overhead_percent: p.cycles.map(|c| extra(c.walk + c.data)),
        }
    }

    fn values(&self) -> [String; PlacementRow::NAMES.len()] {
        let number = |n: Option<u64>| n.map_or(String::new(), |n| n.to_string());
        [
            self.config.clone(),
            self.placement.into(),
            self.guest_tables_local.to_string(),
            self.guest_tables_remote.to_string(),
            self.host_tables_local.to_string(),
            self.host_tables_remote.to_string(),
            self.data_local.to_string(),
            self.data_remote.to_string(),
            number(self.remote_walk_cycles),
            number(self.remote_data_cycles),
            self.overhead_percent.map_or(String::new(), |v| v.to_string()),
        ]
    }
}

/// All rows: configuration by configuration.
pub(crate) fn rows(c: &Comparison) -> Vec<PlacementRow> {
    let of = |o: &'_ bifold_model::ConfigOutcome| {
        o.placed.iter().map(|p| PlacementRow::of(c, o, p)).collect::<Vec<_>>()
    };
    c.outcome.configs.iter().flat_map(of).collect()
}

/// The rows as CSV.
pub(crate) fn csv(c: &Comparison) -> Result<String, RenderError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(PlacementRow::NAMES)?;
    rows(c).iter().try_for_each(|row| writer.write_record(row.values()))?;
    let bytes = writer.into_inner().map_err(|e| csv::Error::from(e.into_error()))?;
    Ok(String::from_utf8(bytes).expect("names and numbers are UTF-8"))
}

/// Head and cells for people: remote shares, and what they cost.
fn cells(c: &Comparison) -> (Vec<String>, Vec<Vec<String>>) {
    let percent = |s: Split| match s.local + s.remote {
        0 => "-".to_string(),
        _ => format!("{:.1}", s.remote_percent()),
    };
    let o = &c.outcome;
    let costs = o.configs.iter().flat_map(|r| &r.placed).any(|p| p.cycles.is_some());
    let mut head = vec!["\nconfiguration", "\nplacement", "guest\ntables %", "host\ntables %"];
    head.extend(["data\n%", "walk refs\n/1000 ins."]);
    if costs {
        head.extend(["+walks\n%", "+data\n%", "overhead\n%"]);
    }
    let all: Vec<(&bifold_model::ConfigOutcome, &Placed)> =
        o.configs.iter().flat_map(|r| r.placed.iter().map(move |p| (r, p))).collect();
    let refs = |(r, p): &(&bifold_model::ConfigOutcome, &Placed)| {
        1000.0 * p.walks().remote as f64 / r.total.instructions.max(1) as f64
    };
    let refs_decimals = decimals(all.iter().map(refs).fold(0.0, f64::max));
    let extra = |r: &bifold_model::ConfigOutcome, more: u64| o.percent(r.total.extra_cycles() + more, 1.0);
    let row = |pair: &(&bifold_model::ConfigOutcome, &Placed)| {
        let (r, p) = *pair;
        let mut cells = vec![r.config.name(), p.placement.name().into()];
        cells.extend([p.guest_tables, p.host_tables, p.data].map(percent));
        cells.push(fixed(refs(pair), refs_decimals));
        if costs {
            let cost = p.cycles.unwrap_or_default();
            let values =
                [o.percent(cost.walk, 1.0), o.percent(cost.data, 1.0), extra(r, cost.walk + cost.data)];
            cells.extend(values.map(|v| fixed(v, decimals(v))));
        }
        cells
    };
    let rows = all.iter().map(row).collect();
    (head.into_iter().map(String::from).collect(), rows)
}

/// What the rows are of, and what they lack.
fn notes(c: &Comparison) -> Vec<String> {
    let Some(facts) = &c.outcome.placed else { return Vec::new() };
    let guest = match facts.guest_nodes {
        1 => "one that knows no nodes".into(),
        n => format!("one of {n} nodes"),
    };
    let mut notes = vec![format!("the host has {} nodes, the guest is {guest}", facts.host_nodes)];
    let smp = c.outcome.configs.iter().flat_map(|r| &r.placed).any(|p| p.placement.name() == "smp");
    if smp && facts.guest_nodes > 1 {
        notes.push(
            "smp: this guest's kernel knew its nodes and placed memory by them; for a guest that knows none, capture \
             without --guest-nodes"
                .into(),
        );
    }
    match (facts.local_cycles, facts.remote_cycles) {
        (Some(local), Some(remote)) => {
            notes.push(format!("memory answers in {local} cycles, and that of another node in {remote}"));
        }
        (Some(_), None) => notes.push(
            "counts alone: the profile has no memory.remote_cycles; give one with --set memory.remote_cycles=N".into(),
        ),
        (None, _) => notes.push("counts alone: cycles of remote memory need data caches".into()),
    }
    notes
}

/// The part of the table; none unless asked for.
pub(crate) fn table(c: &Comparison) -> Option<String> {
    c.outcome.placed.as_ref()?;
    let (head, rows) = cells(c);
    let notes: String = notes(c).iter().map(|n| labelled("note", n)).collect();
    let shown = "shown are the remote references, in percent of all";
    Some(format!("{TITLE}: {shown}\n\n{}{notes}", keyed_table(2, head, rows)))
}

/// The part of the page; none unless asked for.
pub(crate) fn page_table(c: &Comparison) -> Option<PageTable> {
    c.outcome.placed.as_ref()?;
    let (head, rows) = cells(c);
    let mut notes = notes(c);
    notes.insert(0, "Shown are the remote references, in percent of all.".into());
    Some(PageTable { title: TITLE.into(), head, rows, notes })
}
