// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Hardware profiles: every geometry and every cost of the model, from TOML.
//!
//! A profile is one file under `profiles/`; a built-in profile is also one line in `builtin!`. Each
//! table of a profile says where its values come from (`source`), or that they are starting values
//! that were not measured (`prior`). A table with neither is refused, and so is an unknown key.

mod check_caches;
mod keys;
mod origins;
mod overrides;
mod processor;

use crate::KvmVersion;
use bifold_base::bounded;
use bifold_mmu::{ArraySpec, CacheSpec, PageSize, Tag};
pub(crate) use keys::WalkCosts;
pub use keys::{
    Agile, AgileStart, CacheLevel, Content, Cost, ExitCosts, KEYS, Key, Memory, Processor, TagKind, Variant,
    Virtualization,
};
use keys::{Cpu, DimensionKind, Side, System, TlbArray, WalkCaches};
pub use origins::{TableOrigin, Unmeasured};
use overrides::set;
pub use processor::{Chosen, ChosenBy, CpuId, KvmBy, Quality};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The built-in profiles: names of files under `profiles/`, and their texts.
macro_rules! builtin {
    ($( $name:literal ),* $(,)?) => {
        const BUILTIN: &[(&str, &str)] =
            &[ $( ($name, include_str!(concat!("../../../../profiles/", $name, ".toml"))) ),* ];
    };
}

builtin! {
    "i5-7600",
    "phenom2-x3-720",
    "granite-rapids",
    "emerald-rapids",
    "sapphire-rapids",
    "ice-lake-sp",
    "athlon2-x3-440",
    "i7-860",
    "xeon-x5670",
    "xeon-e5-2609",
    "skylake-sp",
    "xeon-gold-6252",
    "xeon-8269cy",
    "zen5",
    "zen4",
    "zen3",
    "epyc-zen5-guest",
    "geometry-d",
    "geometry-g",
}

/// Why a profile cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// Neither a built-in name nor a readable file.
    #[error("profile `{name}` is neither a built-in one ({builtin}) nor a readable file")]
    Unreadable {
        /// The name given.
        name: String,
        /// The built-in names.
        builtin: String,
        /// Why the file could not be read.
        source: std::io::Error,
    },
    /// Not TOML, an unknown key, or a value of the wrong type.
    #[error("profile {origin}")]
    Syntax {
        /// File or built-in name.
        origin: String,
        /// What is wrong and where.
        source: Box<toml::de::Error>,
    },
    /// A value that cannot be.
    #[error("profile {origin}: {field} {problem}")]
    Value {
        /// File or built-in name.
        origin: String,
        /// Dotted key.
        field: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A file that calls itself as a built-in profile does, and is another one.
    #[error(
        "profile {origin}: its `name` is that of the built-in profile {name}, but `{key}` differs from it: \
         give the file's profile a name of its own"
    )]
    NotTheBuiltIn {
        /// The file.
        origin: String,
        /// The name in it.
        name: String,
        /// The first key that differs.
        key: String,
    },
    /// An override that names nothing.
    #[error("profile {origin}: cannot set `{setting}`: {problem}")]
    Override {
        /// File or built-in name.
        origin: String,
        /// As given: `key=value`.
        setting: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// The default is left out, so that naming it is no other profile.
fn is_default<T: PartialEq + Default>(value: &T) -> bool {
    *value == T::default()
}

/// A hardware profile: every geometry and cost.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "profile")]
pub struct Profile {
    /// Overrides applied, `key=value`: one per key, the last given. A profile written out has their
    /// values, and not this list.
    #[serde(skip)]
    pub overrides: Vec<String>,
    /// How the run came to this profile.
    #[serde(skip)]
    pub chosen: Chosen,
    /// Short name.
    pub name: String,
    /// What machine it is.
    pub description: String,
    /// The host's KVM; left out if it is that of Linux 6.1.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kvm: KvmVersion,
    /// The processors that the profile stands for where a user names none; left out if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub processor: Vec<Processor>,
    /// Clock and base speed.
    pub cpu: Cpu,
    /// The TLB arrays.
    pub tlb: Vec<TlbArray>,
    /// Walk caches.
    pub walk_cache: WalkCaches,
    /// Cost of a reference of a walk.
    pub walk: WalkCosts,
    /// The data caches, from the first level on; left out if the profile has none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cache: Vec<CacheLevel>,
    /// Memory behind the caches, and what the core hides; left out if the profile has no caches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Memory>,
    /// What the machine's own kernel costs, as measured; left out if the profile does not say. The model does
    /// not use the values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub system: Option<System>,
    /// Agile paging.
    #[serde(default, skip_serializing_if = "is_default")]
    pub agile: Agile,
    /// Cost of an exit by reason, and of a unit of the hypervisor's work.
    pub exit: ExitCosts,
}

impl Profile {
    /// Names of the profiles that come with the program.
    pub fn builtin_names() -> impl Iterator<Item = &'static str> {
        BUILTIN.iter().map(|(name, _)| *name)
    }

    /// The file of a built-in profile.
    pub fn builtin_text(name: &str) -> Option<&'static str> {
        BUILTIN.iter().find(|(n, _)| *n == name).map(|(_, text)| *text)
    }

    /// Names and descriptions of the built-in profiles.
    ///
    /// The command's help has these, and the help is made at every start. So the description is taken
    /// from its line; parsing all profiles would take milliseconds.
    pub fn builtin_descriptions() -> impl Iterator<Item = (&'static str, &'static str)> {
        let description = |text: &'static str| {
            let mut lines = text.lines().filter_map(|line| line.strip_prefix("description = \""));
            lines.next()?.strip_suffix('"')
        };
        BUILTIN.iter().map(move |(name, text)| (*name, description(text).unwrap_or_default()))
    }

    /// The built-in profile of that name, or the one in that file; then each override
    /// `key=value` applied (a dotted key; an array's entry by its name).
    pub fn load(name: &str, overrides: &[String]) -> Result<Profile, ProfileError> {
        if let Some((_, text)) = BUILTIN.iter().find(|(n, _)| *n == name) {
            return Profile::parse(text, name, overrides);
        }
        let text = bounded::read_to_string(Path::new(name), bounded::TEXT).map_err(|source| {
            let builtin = Profile::builtin_names().collect::<Vec<_>>().join(", ");
            ProfileError::Unreadable { name: name.into(), builtin, source }
        })?;
        Profile::of_file(&text, name, overrides)
    }

    /// As [`Profile::parse`] from a user's file: refused if the name in it promises another profile.
    fn of_file(text: &str, origin: &str, overrides: &[String]) -> Result<Profile, ProfileError> {
        let profile = Profile::parse(text, origin, overrides)?;
        if let Some((name, builtin)) = BUILTIN.iter().find(|(n, _)| *n == profile.name) {
            // Without the overrides and the version of KVM, which are named beside the profile's name.
            let (file, mut builtin) =
                (Profile::parse(text, origin, &[])?, Profile::parse(builtin, name, &[])?);
            builtin.kvm = file.kvm;
            let value = |p: &Profile| toml::Value::try_from(p).unwrap_or(toml::Value::Boolean(false));
            if let Some(key) = overrides::first_difference(&value(&file), &value(&builtin)) {
                let name = (*name).into();
                return Err(ProfileError::NotTheBuiltIn { origin: origin.into(), name, key });
            }
        }
        Ok(profile)
    }

    /// Parses a profile; `origin` names it in errors.
    pub fn parse(text: &str, origin: &str, overrides: &[String]) -> Result<Profile, ProfileError> {
        let syntax = |e| ProfileError::Syntax { origin: origin.into(), source: Box::new(e) };
        let mut profile: Profile = if overrides.is_empty() {
            toml::from_str(text).map_err(syntax)?
        } else {
            let mut table: toml::Table = toml::from_str(text).map_err(syntax)?;
            keys::Cost::add_unnamed(&mut table);
            for setting in overrides {
                set(&mut table, setting, origin)?;
            }
            table.try_into().map_err(syntax)?
        };
        profile.overrides = overrides::last_per_key(overrides);
        profile.check(origin)?;
        Ok(profile)
    }

    /// The profile as TOML, with the overrides' values in it.
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a profile is a table")
    }

    /// The profile of an earlier run, with further overrides; `origin` names it in errors.
    pub fn chosen_by(
        &self,
        by: ChosenBy,
        origin: &str,
        overrides: &[String],
    ) -> Result<Profile, ProfileError> {
        let profile = Profile::parse(&self.to_toml(), origin, overrides)?;
        let overrides = overrides::last_per_key(&[&self.overrides[..], overrides].concat());
        Ok(Profile { overrides, chosen: Chosen { by, kvm_by: KvmBy::Profile }, ..profile })
    }

    fn check(&self, origin: &str) -> Result<(), ProfileError> {
        let bad = |field: String, problem: &str| {
            Err(ProfileError::Value { origin: origin.into(), field, problem: problem.into() })
        };
        if let Some((key, problem)) = self.processor.iter().find_map(Processor::problem) {
            return bad(format!("processor.{key}"), problem);
        }
        if !(1_000_000..=100_000_000_000).contains(&self.cpu.frequency_hz) {
            return bad("cpu.frequency_hz".into(), "must be between 1 MHz and 100 GHz");
        }
        if !(self.cpu.base_cpi.is_finite() && self.cpu.base_cpi > 0.0 && self.cpu.base_cpi <= 100.0) {
            return bad("cpu.base_cpi".into(), "must be above 0 and at most 100");
        }
        let geometry = |field: String, entries: usize, ways: usize| {
            if entries == 0 || entries > 1 << 20 {
                return bad(format!("{field}.entries"), "must be 1 to 1048576");
            }
            if ways > entries || (ways != 0 && entries % ways != 0) {
                return bad(
                    format!("{field}.ways"),
                    "must divide the number of entries (0 = fully associative)",
                );
            }
            Ok(())
        };
        for t in &self.tlb {
            let field = format!("tlb.{}", t.name);
            geometry(field.clone(), t.entries, t.ways)?;
            if t.ways == 0 && t.entries > bifold_mmu::MOST_WAYS || t.ways > bifold_mmu::MOST_WAYS {
                return bad(
                    format!("{field}.ways"),
                    "must be at most 65536, also of a fully associative array",
                );
            }
            if !(1..=2).contains(&t.level) {
                return bad(format!("{field}.level"), "must be 1 or 2");
            }
            if t.sides.is_empty() || t.sizes.is_empty() {
                return bad(field, "needs at least one side and one page size");
            }
            for side in &t.sides {
                for size in &t.sizes {
                    let same = |o: &&TlbArray| {
                        o.level == t.level && o.sides.contains(side) && o.sizes.contains(size)
                    };
                    if self.tlb.iter().filter(same).count() > 1 {
                        return bad(field, "overlaps another array of its level, side and page size");
                    }
                }
            }
        }
        let data_4k = |t: &TlbArray| {
            t.level == 1 && t.sides.contains(&Side::Data) && t.sizes.contains(&PageSize::Size4K)
        };
        if !self.tlb.iter().any(data_4k) {
            return bad("tlb".into(), "needs a first-level data array for 4K pages");
        }
        for t in self.tlb.iter().filter(|t| t.miss_cycles.is_some()) {
            let field = format!("tlb.{}.miss_cycles", t.name);
            if !data_4k(t) {
                return bad(field, "is for the first-level data array of 4K pages only");
            }
            if self.memory.is_none() {
                return bad(field, "needs data caches: `[[cache]]` and `[memory]`");
            }
            if !t.miss_cycles.is_some_and(|c| (1..=1000).contains(&c)) {
                return bad(field, "must be 1 to 1000");
            }
        }
        for a in &self.walk_cache.array {
            let field = format!("walk_cache.array.{}", a.name);
            geometry(field.clone(), a.entries, a.ways)?;
            if a.levels.is_empty() || a.levels.iter().any(|l| !(2..=5).contains(l)) {
                return bad(format!("{field}.levels"), "must be levels 2 to 5");
            }
        }
        match (self.walk_cache.nested_tlb, self.walk_cache.variant) {
            (Some(n), _) => geometry("walk_cache.nested_tlb".into(), n.entries, n.ways)?,
            (None, Variant::WithNestedTlb) => {
                return bad("walk_cache.nested_tlb".into(), "is missing, but the variant is 2d+ntlb");
            }
            _ => {}
        }
        if self.agile.cr3_cache > 64 {
            return bad("agile.cr3_cache".into(), "must be at most 64");
        }
        check_caches::check(self, origin)?;
        for table in self.origins() {
            if table.source.is_none() && table.prior.is_none() {
                return bad(table.key, "has neither `source` nor `prior`");
            }
        }
        let costliest =
            [self.walk.guest_upper, self.walk.guest_leaf, self.walk.host_upper, self.walk.host_leaf];
        if costliest.iter().chain(self.exit.iter().map(|(_, c)| &c.cycles)).any(|&c| c > 1_000_000_000) {
            return bad("walk and exit costs".into(), "must be at most 1000000000 cycles");
        }
        Ok(())
    }

    /// XXH3-64 of the profile as resolved, hexadecimal; without the processors that the profile stands for,
    /// on which no figure depends.
    pub fn hash(&self) -> String {
        let text = Profile { processor: Vec::new(), ..self.clone() }.to_toml();
        format!("{:016x}", xxhash_rust::xxh3::xxh3_64(text.as_bytes()))
    }

    /// The TLB arrays.
    pub(crate) fn tlb_specs(&self) -> Vec<ArraySpec> {
        self.tlb
            .iter()
            .map(|t| ArraySpec {
                level: t.level,
                data: t.sides.contains(&Side::Data),
                code: t.sides.contains(&Side::Code),
                sizes: t.sizes.clone(),
                entries: t.entries,
                ways: t.ways,
            })
            .collect()
    }

    /// The walk caches that the variant uses.
    pub(crate) fn cache_specs(&self) -> (Tag, Vec<CacheSpec>, Option<(usize, usize)>) {
        let w = &self.walk_cache;
        let (guest, host, ntlb) = match w.variant {
            Variant::None => (false, false, false),
            Variant::OneDimensional => (true, false, false),
            Variant::TwoDimensional => (true, true, false),
            Variant::WithNestedTlb => (true, true, true),
        };
        let specs = w.array.iter().map(|a| CacheSpec {
            levels: a.levels.clone(),
            guest: guest && a.dimensions.contains(&DimensionKind::Guest),
            host: host && a.dimensions.contains(&DimensionKind::Host),
            entries: a.entries,
            ways: a.ways,
        });
        let tag = match w.tag {
            TagKind::Virtual => Tag::Virtual,
            TagKind::Physical => Tag::Physical,
        };
        (tag, specs.collect(), w.nested_tlb.filter(|_| ntlb).map(|n| (n.entries, n.ways)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set_in(profile: &str, setting: &str) -> Result<Profile, String> {
        Profile::load(profile, &[setting.into()]).map_err(|e| {
            let source = std::error::Error::source(&e).map(|s| format!(": {s}")).unwrap_or_default();
            format!("{e}{source}")
        })
    }

    #[test]
    fn every_builtin_profile_loads_and_states_where_its_values_come_from() {
        for (name, description) in Profile::builtin_descriptions() {
            let p = Profile::load(name, &[]).unwrap_or_else(|e| panic!("{name}: {e:?}"));
            assert_eq!((&p.name[..], &p.description[..]), (name, description));
        }
    }

    #[test]
    fn an_override_reaches_a_table_and_a_named_array_element() {
        assert_eq!(set_in("i5-7600", "exit.invlpg.cycles=7").unwrap().exit.invlpg.cycles, 7);
        let p = set_in("i5-7600", "tlb.l2.ways=6").unwrap();
        assert_eq!(p.tlb.iter().find(|t| t.name == "l2").unwrap().ways, 6);
        let p = set_in("i5-7600", "walk_cache.variant=1d").unwrap();
        assert_eq!(p.walk_cache.variant, Variant::OneDimensional);
    }

    #[test]
    fn unknown_keys_and_impossible_values_are_refused_by_name() {
        for (setting, expected) in [
            ("cpu.colour=3", "colour"),
            ("nothing.here=3", "there is no `nothing`"),
            ("tlb.l9.ways=3", "there is no `l9`"),
            ("exit.invlpg=3", "is a table"),
            ("tlb.l2.ways=7", "must divide"),
            ("tlb.l2.entries=0", "must be 1 to"),
            ("cpu.base_cpi=-1.0", "must be above 0"),
            ("cpu.reorder_window=0", "must be 1 to 100000"),
            ("memory.walkers=4", "needs cpu.reorder_window"),
            ("memory.page_cross_cycles=1", "must be from cache."),
            ("tlb.l2.miss_cycles=7", "first-level data array"),
            ("cpu.base_cpi=fast", "invalid type"),
            ("exit.invlpg.cycles=99999999999", "at most"),
            ("novalue", "key=value"),
        ] {
            let e = set_in("i5-7600", setting).unwrap_err();
            assert!(e.contains(expected), "{setting}: {e}");
        }
        let wide = ["tlb.l2.entries=131072", "tlb.l2.ways=0"].map(String::from);
        let e = Profile::load("i5-7600", &wide).unwrap_err().to_string();
        assert!(e.contains("at most 65536"), "{e}");
    }

    #[test]
    fn a_file_may_be_a_copy_of_a_built_in_profile_but_not_another_one_of_its_name() {
        let text = include_str!("../../../../profiles/geometry-g.toml");
        let set = ["cpu.base_cpi=0.9".to_string()];
        assert_eq!(Profile::of_file(text, "x.toml", &set).unwrap().cpu.base_cpi, 0.9);
        let other = text.replacen("entries = 1536", "entries = 2400", 1);
        assert_ne!(other, text);
        let e = Profile::of_file(&other, "x.toml", &[]).unwrap_err().to_string();
        assert!(e.starts_with("profile x.toml: its `name` is that of the built-in"), "{e}");
        assert!(e.contains("`tlb.l2.entries` differs"), "{e}");
        let renamed = other.replacen("name = \"geometry-g\"", "name = \"mine\"", 1);
        assert_eq!(Profile::of_file(&renamed, "x.toml", &[]).unwrap().name, "mine");
    }

    #[test]
    fn overrides_are_kept_one_per_key_and_leave_the_hash_to_the_values() {
        let set = ["cpu.base_cpi=1.0", "kvm=linux-6.12", " cpu.base_cpi = 0.7"].map(String::from);
        let p = Profile::load("i5-7600", &set).unwrap();
        assert_eq!(p.overrides, ["kvm=linux-6.12", "cpu.base_cpi=0.7"]);
        let plain = Profile::load("i5-7600", &["kvm=linux-6.12".into()]).unwrap();
        assert_eq!(p.hash(), plain.hash());
    }

    #[test]
    fn a_profile_without_an_end_is_refused() {
        let e = Profile::load("/dev/zero", &[]).unwrap_err();
        let why = std::error::Error::source(&e).unwrap().to_string();
        assert!(why.contains("regular file"), "{why}");
    }

    #[test]
    fn a_table_without_source_or_prior_is_refused() {
        let text = include_str!("../../../../profiles/geometry-g.toml");
        let first = text.lines().position(|l| l.starts_with("source = ")).unwrap();
        let cut: Vec<&str> = text.lines().enumerate().filter(|(i, _)| *i != first).map(|(_, l)| l).collect();
        let e = Profile::parse(&cut.join("\n"), "x", &[]).unwrap_err();
        assert!(e.to_string().contains("neither `source` nor `prior`"), "{e}");
    }
}
