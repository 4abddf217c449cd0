// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's answers for people.

use bifold_daemon::control::Answer;
use bifold_daemon::{Event, Status, VmStatus};
use bifold_host::printable;
use bifold_report::{text_table, wrapped};

const UNKNOWN: &str = "-";

/// An answer in words.
pub fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Status(status) => table(status),
        Answer::Explained(vm, lately) => explained(vm, lately),
        Answer::Done(told) => told.iter().map(|t| wrapped(t, 2)).collect(),
        Answer::Refused(why) => wrapped(why, 2),
    }
}

fn or_unknown(text: &Option<String>) -> String {
    text.as_deref().map_or(UNKNOWN.into(), printable)
}

fn table(status: &Status) -> String {
    let mut out = format!("daemon {}, Bifold {}, up {:.0} s\n", status.pid, status.version, status.up_s);
    for text in [&status.only_observes, &status.trouble].into_iter().flatten() {
        out += &wrapped(text, 2);
    }
    if status.vms.is_empty() {
        return out + "no VM is running here\n";
    }
    let head =
        ["\nVM", "\nPID-FD", "\nmode", "own\nmode", "\npolicy", "\nwants", "\ndaemon", "switches\nlast hour"];
    let rows = status.vms.iter().map(|v| {
        vec![
            or_unknown(&v.name),
            v.vm.clone(),
            or_unknown(&v.mode),
            or_unknown(&v.own_mode),
            or_unknown(&v.policy),
            or_unknown(&v.wants),
            v.state.clone(),
            v.switches_in_hour.to_string(),
        ]
    });
    out += &text_table(head.map(String::from).into(), rows.collect());
    for v in &status.vms {
        let who = v.name.as_deref().map_or(v.vm.clone(), printable);
        if let Some(counter) = &v.missing {
            out +=
                &wrapped(&format!("{who}: the policy needs {counter}, which nobody counts for this VM"), 2);
        }
        if let Some(text) = &v.note {
            out += &wrapped(&format!("{who}: {} ({text})", v.state), 2);
        }
    }
    out
}

fn explained(v: &VmStatus, lately: &[Event]) -> String {
    let mut out = format!("VM       {} ({})\n", v.vm, or_unknown(&v.name));
    out += &format!("mode     {}", or_unknown(&v.mode));
    if let Some(own) = &v.own_mode {
        out += &format!("; found in {own} mode");
    }
    out += &format!(
        "\nrule     {}\npolicy   {}\ndaemon   {}",
        or_unknown(&v.rule),
        or_unknown(&v.policy),
        v.state
    );
    if let Some(text) = &v.note {
        out += &format!(" ({text})");
    }
    let t = &v.totals;
    out += &format!(
        "\ndid      {} decisions, {} switches, {} refused by KVM\n",
        t.decisions, t.switched, t.refused
    );
    if let Some(why) = &v.why {
        out += &wrapped(&format!("wants    {}: {why}", or_unknown(&v.wants)), 9);
    }
    out += "\n";
    let last = lately.last().map_or(0.0, |e| e.time);
    for e in lately {
        out += &wrapped(&format!("{:>8.1} s  {}", e.time - last, e.text), 12);
    }
    out
}
