// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration of memory: what is written, checked.

use super::check::{Wrong, within};
use super::file;
use bifold_reclaim::PolicyName;

const MIB: u64 = 1 << 20;
/// A smaller guest boots no Linux.
const LEAST: u64 = 16 * MIB;
/// More than any host has.
const MOST: u64 = 1 << 50;

/// How the memory of VMs is divided.
#[derive(Debug, Clone, PartialEq)]
pub struct ShareMemory {
    /// What VMs with a rule may have together.
    pub limit: Most,
    /// What divides it.
    pub policy: PolicyName,
    /// Seconds between two decisions.
    pub interval_s: f64,
    /// How often memory of a VM may be taken, unless its rule says otherwise.
    pub limits: OrderLimits,
}

/// An amount of memory.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Most {
    /// Bytes.
    Bytes(u64),
    /// A part of the host's memory, in percent.
    Percent(f64),
}

impl Most {
    /// The amount on a host with so much memory.
    pub fn bytes(self, host: u64) -> u64 {
        match self {
            Most::Bytes(bytes) => bytes,
            Most::Percent(percent) => (host as f64 * percent / 100.0) as u64,
        }
    }
}

impl std::fmt::Display for Most {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Most::Bytes(bytes) => write!(f, "{} MiB", bytes / MIB),
            Most::Percent(percent) => write!(f, "{percent} % of the host's memory"),
        }
    }
}

/// How often memory of a VM may be taken.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OrderLimits {
    /// Least time between two orders that take memory, in seconds.
    pub min_stay_s: f64,
    /// Most such orders in any hour.
    pub most_orders_per_hour: u64,
}

/// What the daemon does about the memory of a rule's VMs.
#[derive(Debug, Clone, PartialEq)]
pub struct VmMemory {
    /// Whether the daemon orders sizes; else it only says what it would do.
    pub act: bool,
    /// Least size in bytes; by default a quarter of the VM's memory.
    pub least: Option<u64>,
    /// Most size in bytes; by default all of the VM's memory.
    pub most: Option<u64>,
    /// How often memory of a VM may be taken.
    pub limits: OrderLimits,
}

/// The policies that need only what the daemon sees of guests that run.
const POLICIES: [PolicyName; 4] =
    [PolicyName::Equal, PolicyName::Mom, PolicyName::Proxmox, PolicyName::Feedback];

pub(super) fn share(given: file::Memory, wrong: &mut Wrong) -> Option<ShareMemory> {
    let limit = most(&given.limit, wrong);
    let policy = policy(&given.policy, wrong);
    let interval_s = given.interval_s.unwrap_or(10.0);
    within(interval_s, 1.0, 3600.0, "memory.interval_s", wrong);
    let general = OrderLimits { min_stay_s: 60.0, most_orders_per_hour: 20 };
    let limits = limits(&general, (given.min_stay_s, given.most_orders_per_hour), "memory.", wrong);
    Some(ShareMemory { limit: limit?, policy: policy?, interval_s, limits })
}

pub(super) fn of_rule(
    given: file::VmMemory,
    share: Option<&ShareMemory>,
    at: &str,
    wrong: &mut Wrong,
) -> Option<VmMemory> {
    let mut bound =
        |name: &str, text: &Option<String>| size(text.as_deref()?, &format!("{at}: memory.{name}"), wrong);
    let (least, most) = (bound("least", &given.least), bound("most", &given.most));
    if least.zip(most).is_some_and(|(least, most)| least > most) {
        wrong.push(format!("{at}: memory.least is more than memory.most"));
    }
    // Without the table `memory`, which is an error of its own, any limits serve.
    let general = share.map_or(OrderLimits { min_stay_s: 60.0, most_orders_per_hour: 20 }, |s| s.limits);
    let of_rule = (given.min_stay_s, given.most_orders_per_hour);
    Some(VmMemory {
        act: given.act,
        least,
        most,
        limits: limits(&general, of_rule, &format!("{at}: memory."), wrong),
    })
}

fn limits(
    general: &OrderLimits,
    (stay, orders): (Option<f64>, Option<u64>),
    at: &str,
    wrong: &mut Wrong,
) -> OrderLimits {
    if let Some(stay) = stay {
        within(stay, 0.0, 86_400.0, &format!("{at}min_stay_s"), wrong);
    }
    if let Some(orders) = orders.filter(|n| !(1..=3600).contains(n)) {
        wrong.push(format!(
            "{at}most_orders_per_hour = {orders} is not 1 to 3600 (for no order at all, leave out `act`)"
        ));
    }
    OrderLimits {
        min_stay_s: stay.unwrap_or(general.min_stay_s),
        most_orders_per_hour: orders.unwrap_or(general.most_orders_per_hour),
    }
}

fn policy(name: &str, wrong: &mut Wrong) -> Option<PolicyName> {
    let names = POLICIES.map(PolicyName::name).join(", ");
    let Some(policy) = PolicyName::ALL.into_iter().find(|p| p.name() == name) else {
        let name = name.escape_debug();
        wrong.push(format!("memory.policy: there is no policy `{name}`: choose one of {names}"));
        return None;
    };
    let why = match policy {
        policy if POLICIES.contains(&policy) => return Some(policy),
        PolicyName::IdleTax => {
            "the daemon has none, because the host's marks of use leave out what guests of KVM use"
        }
        PolicyName::Paging => "it orders no sizes",
        _ => "no live host has that",
    };
    let needs = policy.needs();
    wrong.push(format!("memory.policy: {name} needs {needs}, and {why}: choose one of {names}"));
    None
}

fn most(text: &str, wrong: &mut Wrong) -> Option<Most> {
    let Some(percent) = text.strip_suffix('%') else {
        return size(text, "memory.limit", wrong).map(Most::Bytes);
    };
    let percent = percent.trim_end().parse().ok().filter(|percent| (1.0..=100.0).contains(percent));
    if percent.is_none() {
        wrong.push(format!("memory.limit: `{}` is no part from 1% to 100%", text.escape_debug()));
    }
    percent.map(Most::Percent)
}

/// The size that the key has.
fn size(text: &str, key: &str, wrong: &mut Wrong) -> Option<u64> {
    let shown = text.escape_debug();
    match bifold_host::keys::size(text, MIB) {
        Ok(bytes @ LEAST..=MOST) => return Some(bytes),
        Ok(_) => wrong.push(format!("{key}: `{shown}` is not from 16 MiB to 1024 TiB")),
        Err(e) => wrong.push(format!("{key}: `{shown}` is {e}")),
    }
    None
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use crate::config::Most;
    use bifold_reclaim::PolicyName;

    fn parse(text: &str) -> Result<Config, String> {
        Config::parse(text, "/etc/bifold/bifold.toml".as_ref()).map_err(|e| e.to_string())
    }

    fn with(memory: &str, rule: &str) -> String {
        format!("[memory]\n{memory}\n[[vm]]\nname = \"web-*\"\n[vm.memory]\n{rule}\n")
    }

    const WELL: &str = "limit = \"20G\"\npolicy = \"mom\"";

    #[test]
    fn a_rule_for_memory_needs_no_policy_for_modes() {
        let config = parse(&with(
            "limit = \"60%\"\npolicy = \"proxmox\"\nmin_stay_s = 30",
            "act = true\nleast = \"512M\"\nmost_orders_per_hour = 3",
        ))
        .unwrap();
        let share = config.memory.clone().unwrap();
        assert_eq!(
            (share.limit, share.policy, share.interval_s),
            (Most::Percent(60.0), PolicyName::Proxmox, 10.0)
        );
        assert_eq!(share.limit.bytes(1000), 600);
        let rule = config.rule(None, Some("web-1")).unwrap();
        let memory = rule.memory.as_ref().unwrap();
        assert_eq!((rule.policy(), rule.act, memory.act), (None, false, true));
        assert_eq!((memory.least, memory.most), (Some(512 << 20), None));
        assert_eq!((memory.limits.min_stay_s, memory.limits.most_orders_per_hour), (30.0, 3));
        assert!(config.rule(None, Some("db")).is_none() && config.rule(None, None).is_none());
    }

    #[test]
    fn what_is_wrong_about_memory_is_told_with_its_key() {
        for (text, told) in [
            (
                with("limit = \"20\"\npolicy = \"curves\"", ""),
                "needs the last step's miss curve, and no live host",
            ),
            (with("limit = \"20G\"\npolicy = \"idle-tax\"", ""), "the host's marks of use leave out"),
            (with("limit = \"20G\"\npolicy = \"oracle\"", ""), "needs the future"),
            (with("limit = \"20G\"\npolicy = \"paging\"", ""), "it orders no sizes"),
            (with("limit = \"20G\"\npolicy = \"momm\"", ""), "memory.policy: there is no policy `momm`"),
            (with("limit = \"20X\"\npolicy = \"mom\"", ""), "memory.limit: `20X` is not a size"),
            (with("limit = \"1M\"\npolicy = \"mom\"", ""), "memory.limit: `1M` is not from 16 MiB"),
            (with("limit = \"0%\"\npolicy = \"mom\"", ""), "memory.limit: `0%` is no part"),
            (with("limit = \"nan%\"\npolicy = \"mom\"", ""), "memory.limit: `nan%` is no part"),
            (with("policy = \"mom\"", ""), "missing field `limit`"),
            (with("limit = \"1G\"", ""), "missing field `policy`"),
            (with(&format!("{WELL}\ninterval_s = 0"), ""), "memory.interval_s = 0 is not 1 to 3600"),
            (with(&format!("{WELL}\nmin_stay_s = -1"), ""), "memory.min_stay_s = -1"),
            (
                with(WELL, "least = \"2G\"\nmost = \"1G\""),
                "vm[0] (web-*): memory.least is more than memory.most",
            ),
            (with(WELL, "most_orders_per_hour = 0"), "vm[0] (web-*): memory.most_orders_per_hour = 0"),
            (with(WELL, "acts = true"), "unknown field `acts`"),
            (with(WELL, "").replace("web-*\"", "web-*\"\nact = true"), "act is for a policy or probes"),
            ("[[vm]]\nname = \"x\"\n[vm.memory]\n".into(), "vm[0] (x): memory needs the table [memory]"),
        ] {
            let error = parse(&text).unwrap_err();
            assert!(error.contains(told), "{text}: {error}");
        }
        let unused = parse(&format!("[memory]\n{WELL}\n")).unwrap();
        assert_eq!(unused.notes, ["memory is not used: no rule has a table vm.memory"]);
    }
}
