// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What must hold among the keys of data caches and memory. Every refusal names its keys.

use super::{CacheLevel, Content, Memory, Profile, ProfileError};

/// Bytes of a cache line.
const LINE: u64 = 64;
/// Sets are chosen by the address bits within a page first: see [`crate::cache`].
const LINES_OF_A_PAGE: u64 = 64;

/// A key and what is wrong with its value.
type Refusal = (String, String);

pub(super) fn check(profile: &Profile, origin: &str) -> Result<(), ProfileError> {
    refusal(profile).map_err(|(field, problem)| ProfileError::Value { origin: origin.into(), field, problem })
}

fn refusal(profile: &Profile) -> Result<(), Refusal> {
    let (levels, memory) = match (&profile.cache[..], &profile.memory) {
        ([], None) if profile.cpu.reorder_window.is_some() => {
            return bad("cpu.reorder_window", "needs `[memory]` and at least one `[[cache]]`");
        }
        ([], None) => return Ok(()),
        ([], Some(_)) => return bad("memory", "needs at least one `[[cache]]`"),
        (_, None) => return bad("memory", "is missing, but there is a `[[cache]]`"),
        (levels, Some(memory)) => (levels, memory),
    };
    for (i, level) in levels.iter().enumerate() {
        check_level(level, i)?;
        check_beside(level, &levels[..i])?;
    }
    check_memory(memory, levels)?;
    check_overlaps(memory, profile.cpu.reorder_window)
}

fn bad(field: impl Into<String>, problem: impl Into<String>) -> Result<(), Refusal> {
    Err((field.into(), problem.into()))
}

/// A level by itself: the `i`th.
fn check_level(c: &CacheLevel, i: usize) -> Result<(), Refusal> {
    let key = |k: &str| format!("cache.{}.{k}", c.name);
    if usize::from(c.level) != i + 1 || c.level > 3 {
        let problem = format!("is {}: levels go from 1 to 3, in order and without gaps", c.level);
        return bad(key("level"), problem);
    }
    if !(1..=64).contains(&c.ways) {
        return bad(key("ways"), "must be 1 to 64");
    }
    if c.bytes == 0 || c.bytes > 1 << 32 || c.bytes % (LINE * c.ways as u64) != 0 {
        return bad(key("bytes"), format!("must be at most 4 GiB and a multiple of 64 * {} ways", c.ways));
    }
    let sets = c.sets();
    if !sets.is_power_of_two() && sets % LINES_OF_A_PAGE != 0 {
        let problem =
            format!("with {} ways makes {sets} sets: neither a power of two nor a multiple of 64", c.ways);
        return bad(key("bytes"), problem);
    }
    if c.cycles == 0 || c.cycles > 100_000 {
        return bad(key("cycles"), "must be 1 to 100000");
    }
    Ok(())
}

/// A level beside those below.
fn check_beside(c: &CacheLevel, levels: &[CacheLevel]) -> Result<(), Refusal> {
    let key = |k: &str| format!("cache.{}.{k}", c.name);
    let Some(below) = levels.last() else {
        if c.content != Content::Any {
            return bad(key("content"), "must be \"any\": there is no level below the first");
        }
        return Ok(());
    };
    if c.cycles <= below.cycles {
        return bad(key("cycles"), format!("must exceed cache.{}.cycles ({})", below.name, below.cycles));
    }
    if below.content == Content::Inclusive && c.content == Content::Any && c.bytes < below.bytes {
        let problem = format!(
            "is {}: smaller than cache.{} ({}), which is inclusive: only an exclusive level may be",
            c.bytes, below.name, below.bytes
        );
        return bad(key("bytes"), problem);
    }
    let held = levels.iter().map(|l| l.bytes).max().unwrap_or(0);
    if c.content == Content::Inclusive && c.bytes < held {
        let problem =
            format!("is {}: an inclusive level cannot be smaller than a level below it ({held})", c.bytes);
        return bad(key("bytes"), problem);
    }
    if below.shared && !c.shared {
        return bad(key("shared"), format!("must be true, as cache.{}.shared is", below.name));
    }
    Ok(())
}

fn check_memory(memory: &Memory, levels: &[CacheLevel]) -> Result<(), Refusal> {
    let farthest = &levels[levels.len() - 1];
    if memory.cycles <= farthest.cycles || memory.cycles > 1_000_000 {
        let problem = format!(
            "must exceed cache.{}.cycles ({}), and be at most 1000000",
            farthest.name, farthest.cycles
        );
        return bad("memory.cycles", problem);
    }
    if memory.remote_cycles.is_some_and(|remote| remote < memory.cycles || remote > 1_000_000) {
        let problem = format!("must be at least memory.cycles ({}), and at most 1000000", memory.cycles);
        return bad("memory.remote_cycles", problem);
    }
    let highest = levels.len() as u8;
    if !(1..=highest).contains(&memory.walk_level) {
        return bad("memory.walk_level", format!("must be a cache level, 1 to {highest}"));
    }
    if memory.first_use_2m_cycles.is_some_and(|n| n > 1_000_000_000) {
        return bad("memory.first_use_2m_cycles", "must be at most 1000000000");
    }
    if memory.prefetch_level > highest {
        return bad("memory.prefetch_level", format!("must be 0 or a cache level up to {highest}"));
    }
    let prefetch = usize::from(memory.prefetch_level).checked_sub(1).map(|i| &levels[i]);
    if let (Some(level), Some(cycles)) = (prefetch, memory.page_cross_cycles) {
        if !(level.cycles..=memory.cycles).contains(&cycles) {
            let (name, least, most) = (&level.name, level.cycles, memory.cycles);
            let problem = format!("must be from cache.{name}.cycles ({least}) to memory.cycles ({most})");
            return bad("memory.page_cross_cycles", problem);
        }
    }
    Ok(())
}

fn check_overlaps(memory: &Memory, reorder_window: Option<u64>) -> Result<(), Refusal> {
    for (key, value) in [("data_overlap", memory.data_overlap), ("walk_overlap", memory.walk_overlap)] {
        if !(1.0..=1000.0).contains(&value) {
            return bad(format!("memory.{key}"), "must be 1 to 1000");
        }
    }
    if memory.walkers.is_some_and(|n| !(1..=64).contains(&n)) {
        return bad("memory.walkers", "must be 1 to 64");
    }
    if memory.walkers.is_some() && reorder_window.is_none() {
        return bad("memory.walkers", "needs cpu.reorder_window");
    }
    if reorder_window.is_some_and(|n| !(1..=100_000).contains(&n)) {
        return bad("cpu.reorder_window", "must be 1 to 100000");
    }
    Ok(())
}

impl CacheLevel {
    /// Number of sets.
    pub fn sets(&self) -> u64 {
        self.bytes / LINE / self.ways.max(1) as u64
    }

    /// Sets for the lines of one place in a page, of which there are 64. A level of fewer than 64 sets has
    /// one, for several places.
    pub(crate) fn sets_per_class(&self) -> u64 {
        (self.sets() / 64).max(1)
    }
}

#[cfg(test)]
mod tests {
    use crate::Profile;

    fn refusal(setting: &str) -> String {
        let text = include_str!("../../../../profiles/geometry-g.toml");
        Profile::parse(text, "x", &[setting.into()]).unwrap_err().to_string()
    }

    #[test]
    fn contradictions_are_refused_with_their_keys() {
        for (setting, expected) in [
            ("cache.l2.bytes=100000", "cache.l2.bytes must be at most"),
            ("cache.l2.bytes=102400", "cache.l2.bytes with 16 ways makes 100 sets"),
            ("cache.l1d.level=2", "cache.l1d.level is 2"),
            ("cache.l2.cycles=4", "cache.l2.cycles must exceed cache.l1d.cycles (4)"),
            ("cache.l1d.content=inclusive", "cache.l1d.content must be"),
            ("cache.l1d.shared=true", "cache.l2.shared must be true"),
            ("cache.l3.bytes=45056", "cache.l3.bytes is 45056: an inclusive"),
            ("memory.cycles=50", "memory.cycles must exceed cache.l3.cycles"),
            ("memory.remote_cycles=1", "memory.remote_cycles must be at least memory.cycles"),
            ("memory.data_overlap=0.5", "memory.data_overlap must be"),
            ("memory.walk_level=4", "memory.walk_level must be a cache level, 1 to 3"),
            ("memory.prefetch_level=4", "memory.prefetch_level must be 0"),
            ("memory.first_use_2m_cycles=2000000000", "memory.first_use_2m_cycles must be at most"),
        ] {
            let e = refusal(setting);
            assert!(e.contains(expected), "{setting}: {e}");
        }
    }

    #[test]
    fn a_third_level_smaller_than_an_inclusive_second_one_is_refused() {
        let text = include_str!("../../../../profiles/geometry-g.toml");
        let set = |content: &str| {
            let set = ["cache.l2.content=inclusive", "cache.l3.bytes=720896", content].map(String::from);
            Profile::parse(text, "x", &set).map_err(|e| e.to_string())
        };
        assert!(
            set("cache.l3.content=any")
                .unwrap_err()
                .contains("cache.l3.bytes is 720896: smaller than cache.l2")
        );
        assert!(set("cache.l3.content=inclusive").unwrap_err().contains("an inclusive level"));
        assert!(set("cache.l3.content=exclusive").is_ok());
    }

    #[test]
    fn caches_and_memory_come_together() {
        let text = include_str!("../../../../profiles/geometry-g.toml");
        let without = |table: &str| {
            let mut profile: toml::Table = toml::from_str(text).unwrap();
            profile.remove(table).unwrap();
            Profile::parse(&profile.to_string(), "x", &[]).unwrap_err().to_string()
        };
        assert!(without("cache").contains("memory needs at least one"));
        assert!(without("memory").contains("memory is missing"));
    }
}
