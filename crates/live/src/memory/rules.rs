// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules of `bifold reclaim advise`: what is wrong about guests' memory, with figures, and what to do.
//!
//! A rule that lacks a figure says nothing. Each rule is in [`RULES`], with when it applies and why;
//! `docs/reference/findings.md` is made from this list.

use super::{GuestMemory, HostMemory};
use bifold_host::guest_memory::{Balloon, Limit};
use bifold_host::printable;
use schemars::JsonSchema;
use serde::Serialize;

const MIB: u64 = 1 << 20;
/// Amounts below this are not worth a finding.
const LEAST: u64 = 64 * MIB;
/// A guest's free memory below this part of its size is what a kernel keeps for bursts.
const FREE_PART: u64 = 10;
/// The host is short of memory if less than this part is available, or if tasks wait for longer than this
/// part of the time.
const SHORT_PART: u64 = 10;
const WAITING_PERCENT: f64 = 1.0;

/// A rule: its name, when it applies, why that matters, and the function that looks.
#[derive(Debug, Clone, Copy)]
pub struct Rule {
    /// A word.
    pub name: &'static str,
    /// When there is a finding.
    pub when: &'static str,
    /// Why it matters, and where that is from.
    pub why: &'static str,
    look: fn(&HostMemory, &GuestMemory) -> Option<FindingText>,
}

/// What was seen, and what to do.
#[derive(Debug, Clone, PartialEq, Eq)]
struct FindingText {
    what: String,
    how: String,
}

/// A finding.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Finding {
    /// Name of the rule.
    pub rule: &'static str,
    /// The guest's name.
    pub vm: String,
    /// The guest's process.
    pub pid: u32,
    /// What was seen, with figures.
    pub what: String,
    /// Why that matters.
    pub why: &'static str,
    /// What to do: a command, or a sentence.
    pub how: String,
}

/// All rules.
pub const RULES: &[Rule] = &[
    Rule {
        name: "swapped-but-free",
        when: "At least 64 MiB of the guest are in the host's swap, and as much is free in the guest.",
        why: "The host wrote pages to disk that the guest does not need, and reads them back when the guest uses them again (false reads: VSwapper, ASPLOS 2014).",
        look: swapped_but_free,
    },
    Rule {
        name: "no-balloon",
        when: "QEMU runs the guest without a balloon.",
        why: "Without the device, the guest neither reports free pages nor gives memory back, and the host can only page it out without knowing what the guest needs.",
        look: no_balloon,
    },
    Rule {
        name: "no-reporting",
        when: "The balloon does not report free pages, and at least 64 MiB and a tenth of the guest are free in it.",
        why: "Memory that the guest has used once stays with the host's process after the guest frees it (Linux, mm/page_reporting.c).",
        look: no_reporting,
    },
    Rule {
        name: "no-deflate-on-oom",
        when: "The balloon holds memory and was started without deflate-on-oom.",
        why: "A guest that runs short then kills its processes while the balloon has free pages, or panics (virtio 1.2: VIRTIO_BALLOON_F_DEFLATE_ON_OOM).",
        look: no_deflate,
    },
    Rule {
        name: "statistics-off",
        when: "There is a balloon, and QEMU asks the guest for no statistics, or the guest sends none.",
        why: "Without them the host does not know what the guest uses, and cannot choose a size that does no harm.",
        look: statistics_off,
    },
    Rule {
        name: "below-working-set",
        when: "The balloon holds memory, and less than half of a tenth of what the guest uses, or of 64 MiB, is available in the guest.",
        why: "The guest drops pages that it reads again soon, or swaps.",
        look: below_working_set,
    },
    Rule {
        name: "could-give",
        when: "The host is short (less than a tenth of its memory is available, or tasks waited for memory more than 1 % of the last minute), and the guest could give at least 64 MiB and keep a margin.",
        why: "A guest drops clean cache at no cost to the host; paging the guest out costs a write and a read (VMware, Understanding Memory Resource Management in ESX Server, 2009).",
        look: could_give,
    },
    Rule {
        name: "cannot-give",
        when: "The host is short, and the guest's memory is locked, in hugetlbfs, or open to a device of VFIO.",
        why: "The host can take none of it: such guests have to fit beside all others.",
        look: cannot_give,
    },
    Rule {
        name: "throttled",
        when: "The guest's cgroup is at its memory.high, and pages that were taken came back.",
        why: "Each allocation of the process then waits for reclaim (Linux, admin-guide/cgroup-v2.rst: memory.high).",
        look: throttled,
    },
    Rule {
        name: "no-room-for-shadow",
        when: "KVM has a paging mode for each VM, the guest is in nested paging, and a cgroup leaves less memory than a stay in shadow paging needs.",
        why: "KVM charges reverse maps and shadow pages to the guest's cgroup: at its limit, memory of the guest goes to swap, or KVM ends the stay. Bifold does not ask KVM for such a stay.",
        look: no_room_for_shadow,
    },
    Rule {
        name: "stays-end-early",
        when: "KVM has ended at least two stays of the guest in shadow paging by itself.",
        why: "The guest does now and then what only nested paging has, or memory is refused. Each such stay costs two switches and brings little.",
        look: stays_end_early,
    },
];

/// All findings, guest by guest.
pub fn advise(seen: &HostMemory) -> Vec<Finding> {
    let of = |guest: &GuestMemory| {
        let all = RULES.iter().filter_map(|rule| Some((rule, (rule.look)(seen, guest)?)));
        let finding = |(rule, said): (&Rule, FindingText)| Finding {
            rule: rule.name,
            vm: printable(&guest.guest.name),
            pid: guest.guest.pid,
            what: said.what,
            why: rule.why,
            how: said.how,
        };
        all.map(finding).collect::<Vec<_>>()
    };
    seen.guests.iter().flat_map(of).collect()
}

/// The part of the reference page about all rules, in Markdown.
pub fn page() -> String {
    let mut page = String::from(
        "## reclaim advise\n\n`bifold reclaim advise` names what it finds about guests' memory. This part is made from the list in \
         `crates/live/src/memory/rules.rs`; a test compares both. Each finding also has its figures and what to do.\n\n\
         | name | raised when | reason |\n|---|---|---|\n",
    );
    for rule in RULES {
        page += &format!("| `{}` | {} | {} |\n", rule.name, rule.when, rule.why);
    }
    page
}

/// Bytes as a person says them.
fn amount(bytes: u64) -> String {
    if bytes >= 1 << 30 {
        format!("{:.1} GB", bytes as f64 / (1u64 << 30) as f64)
    } else {
        format!("{} MB", bytes / MIB)
    }
}

fn balloon(guest: &GuestMemory) -> Option<&Balloon> {
    guest.facts.machine.as_ref().ok()?.balloon.as_ref()
}

/// Bytes in the balloon.
fn ballooned(guest: &GuestMemory) -> Option<u64> {
    Some(guest.size()?.saturating_sub(guest.actual()?))
}

fn name(guest: &GuestMemory) -> String {
    printable(&guest.guest.name)
}

/// The least size that does no harm, in whole 16 MiB; `None` without statistics.
fn least_size(host: &HostMemory, guest: &GuestMemory) -> Option<u64> {
    let used = guest.used(host.time_s)?;
    let margin = (used / FREE_PART).max(LEAST) * if balloon(guest)?.deflate_on_oom { 1 } else { 2 };
    Some(used.saturating_add(margin).next_multiple_of(16 * MIB))
}

/// The command of an order to the least size. It has the process's id, because a guest's owner chose the
/// name, and users paste commands into shells.
fn order(host: &HostMemory, guest: &GuestMemory, more: &str) -> String {
    let size = least_size(host, guest).map_or("SIZE".into(), |size| format!("{}M", size / MIB));
    format!("bifold reclaim set {} {size}{more}", guest.guest.pid)
}

fn is_short(host: &HostMemory) -> bool {
    let little =
        host.memory.total.zip(host.memory.available).is_some_and(|(total, a)| a < total / SHORT_PART);
    little || host.waiting_60.is_some_and(|w| w > WAITING_PERCENT)
}

const REPORTING: &str = "-device virtio-balloon-pci,deflate-on-oom=on,free-page-reporting=on";

fn swapped_but_free(host: &HostMemory, guest: &GuestMemory) -> Option<FindingText> {
    let (swapped, free) = (guest.facts.memory.swapped?, guest.statistics(host.time_s).free?);
    if swapped < LEAST || free < LEAST {
        return None;
    }
    let until = format!("a short order discards them: {}", order(host, guest, " --for 10"));
    let how = if balloon(guest)?.reports_free_pages {
        format!(
            "free page reporting is on, but pages that were free before they were swapped are not reported again; {until}"
        )
    } else {
        format!("turn on free page reporting (QEMU: {REPORTING}); until then, {until}")
    };
    let what = format!(
        "{} of {} are in host swap, {} are free in the guest",
        amount(swapped),
        name(guest),
        amount(free)
    );
    Some(FindingText { what, how })
}

fn no_balloon(_: &HostMemory, guest: &GuestMemory) -> Option<FindingText> {
    let machine = guest.facts.machine.as_ref().ok()?;
    if machine.balloon.is_some() || !machine.virtio_mem.is_empty() {
        return None;
    }
    let what = format!(
        "{} has no balloon, and {} in the host's memory",
        name(guest),
        amount(guest.facts.memory.resident?)
    );
    Some(FindingText { what, how: format!("start QEMU with {REPORTING}") })
}

fn no_reporting(host: &HostMemory, guest: &GuestMemory) -> Option<FindingText> {
    let (balloon, free) = (balloon(guest)?, guest.statistics(host.time_s).free?);
    if balloon.reports_free_pages || free < LEAST.max(guest.size()? / FREE_PART) {
        return None;
    }
    let what = format!(
        "{} of {} are free in the guest, which does not report them; {} are in the host's memory",
        amount(free),
        name(guest),
        amount(guest.facts.memory.resident?)
    );
    Some(FindingText {
        what,
        how: format!("start QEMU with {REPORTING}; until then: {}", order(host, guest, "")),
    })
}

fn no_deflate(_: &HostMemory, guest: &GuestMemory) -> Option<FindingText> {
    let held = ballooned(guest)?;
    if balloon(guest)?.deflate_on_oom || held < MIB {
        return None;
    }
    let what = format!("the balloon of {} holds {}, without deflate-on-oom", name(guest), amount(held));
    Some(FindingText { what, how: format!("start QEMU with {REPORTING}") })
}

fn statistics_off(host: &HostMemory, guest: &GuestMemory) -> Option<FindingText> {
    let balloon = balloon(guest)?;
    if guest.statistics(host.time_s).available.is_some() {
        return None;
    }
    let (what, how) = if balloon.polling_s == 0 {
        let property = "guest-stats-polling-interval";
        (
            format!("QEMU does not ask {} for statistics", name(guest)),
            format!(
                "bifold reclaim watch --stats, or in QEMU's monitor: qom-set {} {property} 10; with libvirt: virsh dommemstat DOMAIN --period 10 --live",
                balloon.path
            ),
        )
    } else {
        (
            format!("{} sends no statistics, or old ones", name(guest)),
            "load virtio_balloon in the guest (Linux 4.6 and newer send what is available)".into(),
        )
    };
    Some(FindingText { what, how })
}

fn below_working_set(host: &HostMemory, guest: &GuestMemory) -> Option<FindingText> {
    let held = ballooned(guest)?;
    let available = guest.statistics(host.time_s).available?;
    let used = guest.used(host.time_s)?;
    if held < MIB || available >= (used / FREE_PART).max(LEAST) / 2 {
        return None;
    }
    let what = format!(
        "{} are available in {}, which uses {}, while its balloon holds {}",
        amount(available),
        name(guest),
        amount(used),
        amount(held)
    );
    let (pid, all) = (guest.guest.pid, guest.size()? / MIB);
    let how = format!("bifold reclaim restore {pid}, or give it memory in QEMU's monitor: balloon {all}");
    Some(FindingText { what, how })
}

fn could_give(host: &HostMemory, guest: &GuestMemory) -> Option<FindingText> {
    let actual = guest.actual()?;
    let used = guest.used(host.time_s)?;
    let give = actual.checked_sub(least_size(host, guest)?).filter(|give| *give >= LEAST)?;
    if !is_short(host) || cannot(guest).is_some() {
        return None;
    }
    let what = format!(
        "{} uses {} of {}, so it could give {}",
        name(guest),
        amount(used),
        amount(actual),
        amount(give)
    );
    Some(FindingText { what, how: order(host, guest, "") })
}

/// Why the host can take nothing of the guest.
fn cannot(guest: &GuestMemory) -> Option<String> {
    let facts = &guest.facts;
    let locked = facts.memory.locked.filter(|l| *l > facts.memory.resident.unwrap_or(0) / 2 && *l > LEAST);
    let huge = facts.memory.hugetlb.filter(|h| *h > 0);
    match (locked, huge, facts.vfio.filter(|n| *n > 0)) {
        (Some(locked), ..) => Some(format!("{} of it are locked", amount(locked))),
        (_, Some(huge), _) => Some(format!("{} of it are in hugetlbfs", amount(huge))),
        (.., Some(n)) => Some(format!("{n} of its files are devices of VFIO, which pin all of it")),
        _ => None,
    }
}

fn cannot_give(host: &HostMemory, guest: &GuestMemory) -> Option<FindingText> {
    let why = cannot(guest).filter(|_| is_short(host))?;
    let what = format!("the host is short of memory, and nothing can be taken of {}: {why}", name(guest));
    Some(FindingText {
        what,
        how: "move another guest, or start this one with less memory or without the reason".into(),
    })
}

fn throttled(_: &HostMemory, guest: &GuestMemory) -> Option<FindingText> {
    let group = guest.facts.group.as_ref().ok()?;
    let (current, refaults) = (group.current?, group.refaults().filter(|n| *n > 0)?);
    let Some(Limit::Bytes(high)) = group.high else { return None };
    if current < high - high / 50 {
        return None;
    }
    let what = format!(
        "the cgroup of {} has {} of the {} of its memory.high, and {refaults} pages came back after they were taken",
        name(guest),
        amount(current),
        amount(high)
    );
    Some(FindingText {
        what,
        how: format!("raise memory.high in {}, or give the guest a smaller size", group.folder.display()),
    })
}

fn no_room_for_shadow(_: &HostMemory, guest: &GuestMemory) -> Option<FindingText> {
    let shortage = guest.stays.shortage.as_ref()?;
    let what = format!("{} has no room for a stay in shadow paging: {shortage}", name(guest));
    Some(FindingText { what, how: format!("raise memory.max in {}", shortage.folder.display()) })
}

fn stays_end_early(_: &HostMemory, guest: &GuestMemory) -> Option<FindingText> {
    let ended = Some(guest.stays.ended).filter(|ended| *ended > 1)?;
    let what = format!("KVM has ended {ended} stays of {} in shadow paging", name(guest));
    let how = "leave the VM in nested paging (never in bifold.toml), or do not offer the guest what needs nested paging (-cpu \
               host,-svm,-vmx,-pku)";
    Some(FindingText { what, how: how.into() })
}

#[cfg(test)]
mod tests;
