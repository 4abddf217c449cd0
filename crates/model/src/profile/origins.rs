// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The origins of a profile's values, table by table: a source, or `prior` for starting values that
//! were not measured for this machine. A value that the user set is not a prior.
//!
//! `bifold profile measure` begins a part of `prior` with `KEY: refused` or `KEY: not reached` where the
//! profile has another machine's value because this machine's measurement was refused or did not end. Parts
//! are separated by `; `.

use super::Profile;

/// A table of a profile that says where its values come from.
pub(super) struct Origin<'a> {
    /// Dotted key of the table.
    pub key: String,
    /// Where its values come from.
    pub source: &'a Option<String>,
    /// Which are starting values, and how they were arrived at.
    pub prior: &'a Option<String>,
    /// Keys of the values that the prior can speak of, each below the table's.
    values: Vec<String>,
}

/// A table of a profile and where its values come from; at least one of both is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableOrigin<'a> {
    /// Dotted key of the table: `cpu`, `tlb.l2`, `exit.invlpg`.
    pub key: &'a str,
    /// Where values come from.
    pub source: Option<&'a str>,
    /// Which values are starting values that were not measured for this machine, and how they were arrived
    /// at.
    pub prior: Option<&'a str>,
}

/// Why a measured profile has a value that its own machine did not give.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmeasured {
    /// The measured interval was too wide.
    Refused,
    /// The measurement ended first.
    NotReached,
}

impl Unmeasured {
    /// The word after `KEY: ` in a table's `prior`.
    pub fn word(self) -> &'static str {
        match self {
            Unmeasured::Refused => "refused",
            Unmeasured::NotReached => "not reached",
        }
    }
}

impl Profile {
    /// The dotted keys whose measurement was refused or not reached, in the order of the file, without those
    /// that the user set.
    pub fn unmeasured(&self, why: Unmeasured) -> Vec<String> {
        let set: Vec<&str> = self.overrides.iter().filter_map(|o| Some(o.split_once('=')?.0)).collect();
        let mut out = Vec::new();
        for o in self.origins() {
            let Some(prior) = o.prior.as_ref().filter(|p| p.contains(why.word())) else { continue };
            let said = |value: &str| {
                let rest = |part: &'_ str| Some(part.strip_prefix(value)?.strip_prefix(": ")?.to_string());
                prior.split("; ").filter_map(rest).any(|rest| rest.starts_with(why.word()))
            };
            let keys = o.values.iter().filter(|v| said(v)).map(|v| format!("{}.{v}", o.key));
            out.extend(keys.filter(|key| !set.contains(&key.as_str())));
        }
        out
    }

    /// Calls `of` with each table that says where its values come from, in the order of the file.
    pub fn each_origin(&self, mut of: impl FnMut(TableOrigin)) {
        for o in self.origins() {
            of(TableOrigin { key: &o.key, source: o.source.as_deref(), prior: o.prior.as_deref() });
        }
    }

    /// The tables that say where their values come from.
    pub(super) fn origins(&self) -> Vec<Origin<'_>> {
        fn origin<'a>(
            key: impl Into<String>,
            source: &'a Option<String>,
            prior: &'a Option<String>,
            values: &[&str],
        ) -> Origin<'a> {
            let values = values.iter().map(|v| (*v).to_string()).collect();
            Origin { key: key.into(), source, prior, values }
        }
        let cpu = ["base_cpi", "frequency_hz", "cr3_load_cycles"];
        let cpu = &cpu[..if self.cpu.cr3_load_cycles.is_some() { 3 } else { 2 }];
        let mut out = vec![origin("cpu", &self.cpu.source, &self.cpu.prior, cpu)];
        // A prior of one table may speak of some of its values only, and names them then.
        if let (Some(prior), [cpu]) = (&self.cpu.prior, &mut out[..]) {
            let named: Vec<String> = cpu.values.iter().filter(|v| speaks_of(prior, v)).cloned().collect();
            if !named.is_empty() {
                cpu.values = named;
            }
        }
        let w = &self.walk_cache;
        let arrays =
            w.array.iter().flat_map(|a| ["entries", "ways"].map(|v| format!("array.{}.{v}", a.name)));
        let values: Vec<String> = arrays.collect();
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        out.push(origin("walk_cache", &w.source, &w.prior, &values));
        let walk = ["guest_upper", "guest_leaf", "host_upper", "host_leaf"];
        out.push(origin("walk", &self.walk.source, &self.walk.prior, &walk));
        for t in &self.tlb {
            out.push(origin(format!("tlb.{}", t.name), &t.source, &t.prior, &["entries", "ways"]));
        }
        for c in &self.cache {
            let values = ["bytes", "ways", "cycles"];
            out.push(origin(format!("cache.{}", c.name), &c.source, &c.prior, &values));
        }
        if let Some(m) = &self.memory {
            let values = [
                "cycles",
                "remote_cycles",
                "data_overlap",
                "walk_overlap",
                "walk_level",
                "prefetch_level",
                "page_cross_cycles",
                "first_use_2m_cycles",
            ];
            out.push(origin("memory", &m.source, &m.prior, &values));
        }
        if let Some(s) = &self.system {
            let values = ["page_fault", "page_fault_huge", "syscall", "process_switch", "mprotect"];
            out.push(origin("system", &s.source, &s.prior, &values));
        }
        for (name, cost) in self.exit.iter().filter(|(_, cost)| !cost.is_unnamed()) {
            out.push(origin(format!("exit.{name}"), &cost.source, &cost.prior, &["cycles"]));
        }
        out
    }

    /// What is a starting value in this profile: `key: how it was arrived at`. A prior whose values
    /// are all overridden is left out; if some are overridden, the text says which.
    pub fn priors(&self) -> Vec<String> {
        let keys: Vec<&str> = self.overrides.iter().filter_map(|o| Some(o.split_once('=')?.0)).collect();
        let prior = |o: Origin| {
            let text = o.prior.as_ref()?;
            let set: Vec<&String> =
                o.values.iter().filter(|v| keys.contains(&format!("{}.{v}", o.key).as_str())).collect();
            match set.len() {
                0 => Some(format!("{}: {text}", o.key)),
                n if n == o.values.len() => None,
                _ => {
                    let set = set.iter().map(|s| s.as_str()).collect::<Vec<_>>().join(", ");
                    Some(format!("{}: {text} (but {set}: set by the user)", o.key))
                }
            }
        };
        self.origins().into_iter().filter_map(prior).collect()
    }
}

/// Does a prior's text name this value? `frequency 3.0 GHz: ...` speaks of `frequency_hz`.
fn speaks_of(prior: &str, value: &str) -> bool {
    prior.contains(value.strip_suffix("_hz").unwrap_or(value))
}

#[cfg(test)]
mod tests {
    use super::Unmeasured;
    use crate::Profile;

    fn priors(profile: &str, set: &[&str]) -> Vec<String> {
        let set: Vec<String> = set.iter().map(|s| s.to_string()).collect();
        Profile::load(profile, &set).unwrap().priors()
    }

    #[test]
    fn a_value_that_a_user_set_is_no_prior() {
        let all = priors("i5-7600", &[]);
        let has = |priors: &[String], key: &str| priors.iter().any(|p| p.starts_with(&format!("{key}:")));
        for key in ["cpu", "walk", "exit.violation"] {
            assert!(has(&all, key), "{key}");
        }
        let set =
            priors("i5-7600", &["cpu.base_cpi=1.0", "cpu.cr3_load_cycles=90", "exit.violation.cycles=3000"]);
        assert_eq!(all.len() - set.len(), 2);
        assert!(!has(&set, "cpu") && !has(&set, "exit.violation") && has(&set, "exit.unsync"));
    }

    #[test]
    fn a_prior_of_several_values_stays_until_all_are_set() {
        let walk = |set: &[&str]| priors("i5-7600", set).into_iter().find(|p| p.starts_with("walk:"));
        let some = walk(&["walk.guest_leaf=30", "walk.host_leaf=30"]).unwrap();
        assert!(some.ends_with("(but guest_leaf, host_leaf: set by the user)"), "{some}");
        let all = ["walk.guest_leaf=30", "walk.host_leaf=30", "walk.guest_upper=9", "walk.host_upper=9"];
        assert_eq!(walk(&all), None);
        // This profile's frequency is a prior too; that of the i5-7600 is not.
        let cpu = |set: &[&str]| priors("sapphire-rapids", set).into_iter().find(|p| p.starts_with("cpu:"));
        assert!(cpu(&["cpu.base_cpi=1.0"]).unwrap().contains("(but base_cpi: set by the user)"));
        let all = ["cpu.base_cpi=1.0", "cpu.frequency_hz=2_000_000_000", "cpu.cr3_load_cycles=90"];
        assert_eq!(cpu(&all), None);
    }

    #[test]
    fn a_refused_value_is_listed_until_the_user_sets_it() {
        let own = "walk_overlap: refused, because the ends of 9 (3 to 90) differ by a factor of 30.0: as zen4's; \
                   remote_cycles: not reached: as zen4's; walk_level: as zen4's";
        let text = Profile::builtin_text("zen4").unwrap().replacen("\"zen4\"", "\"mine\"", 1);
        let mut table: toml::Table = toml::from_str(&text).unwrap();
        table["memory"].as_table_mut().unwrap().insert("prior".into(), own.into());
        let text = toml::to_string(&table).unwrap();
        let of = |set: &[String], why| Profile::parse(&text, "mine", set).unwrap().unmeasured(why);
        assert_eq!(of(&[], Unmeasured::Refused), ["memory.walk_overlap"]);
        assert_eq!(of(&[], Unmeasured::NotReached), ["memory.remote_cycles"]);
        assert!(of(&["memory.walk_overlap=7.0".into()], Unmeasured::Refused).is_empty());
        for name in Profile::builtin_names() {
            let p = Profile::load(name, &[]).unwrap();
            assert!(p.unmeasured(Unmeasured::Refused).is_empty(), "{name}");
        }
    }
}
