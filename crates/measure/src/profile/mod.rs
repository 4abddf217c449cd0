// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a profile of a survey. What was not measured is CPUID's, or the nearest built-in profile's; each table says
//! which.

use crate::estimate::Estimate;
use crate::fit::Knee;
use crate::survey::{Array, Level, Survey};
use crate::told::{Told, ToldTlb};
use crate::toml_text;
use bifold_model::{Profile, ProfileError};
use toml::{Table, Value};

/// The profile that was made.
#[derive(Debug, Clone)]
pub struct Made {
    /// The profile as a TOML file.
    pub text: String,
    /// The built-in profile that stands for what was not measured.
    pub base: &'static str,
}

/// Makes the profile of a survey. `name` is the profile's name, `date` goes into the sources.
///
/// # Errors
/// If the values contradict each other, as on a machine so busy that a near cache took longer than a far one. The
/// error names the keys.
pub fn profile(survey: &Survey, name: &str, date: &str) -> Result<Made, ProfileError> {
    let base = nearest(&survey.told);
    let loaded = Profile::load(base, &[])?;
    let mut p = Table::try_from(&loaded).unwrap_or_default();
    let words = Words { base, date };
    let clock = survey.clock.median / loaded.cpu.frequency_hz as f64;
    put(&mut p, "name", name);
    put(&mut p, "description", description(survey));
    cpu(table(&mut p, "cpu"), survey, words);
    tlbs(&mut p, survey, words);
    for part in ["walk_cache", "walk"] {
        as_prior(table(&mut p, part), words, "");
    }
    caches(&mut p, survey, words);
    memory(&mut p, survey, words);
    system(&mut p, survey, words);
    for cost in table(&mut p, "exit").iter_mut().filter_map(|(_, v)| v.as_table_mut()) {
        let cycles = cost.get("cycles").and_then(Value::as_integer).unwrap_or(0);
        put(cost, "cycles", (cycles as f64 * clock).round() as i64);
        as_prior(cost, words, &format!(", scaled by the clock ({clock:.2})"));
    }
    let mut comment = vec![format!("Made by `bifold profile measure` on {date}. {}.", description(survey))];
    comment.extend(survey.warnings.iter().map(|w| format!("Note: {w}.")));
    let text = toml_text::text(&comment, &p);
    Profile::parse(&text, name, &[])?;
    Ok(Made { text, base })
}

/// What goes into every table's words.
#[derive(Clone, Copy)]
struct Words<'a> {
    base: &'a str,
    date: &'a str,
}

/// The built-in profile of the nearest core: by vendor and family, for Intel by model (SDM vol. 4, table 2-1).
fn nearest(told: &Told) -> &'static str {
    match (told.is_amd(), told.family, told.model) {
        (true, 0x17.., _) => "zen4",
        (true, ..) => "phenom2-x3-720",
        (false, 6, 0x1a | 0x1e | 0x1f | 0x2e) => "i7-860",
        (false, 6, 0x25 | 0x2c | 0x2f) => "xeon-x5670",
        (false, 6, 0x2a | 0x2d | 0x3a | 0x3e) => "xeon-e5-2609",
        (false, 6, 0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6) => "i5-7600",
        (false, 6, 0x55) => "skylake-sp",
        _ => "sapphire-rapids",
    }
}

fn description(survey: &Survey) -> String {
    let name = if survey.told.name.is_empty() { "a processor without a name" } else { &survey.told.name };
    let guest =
        survey.told.hypervisor.as_ref().map_or(String::new(), |h| format!(", in a virtual machine ({h})"));
    let (family, model) = (survey.told.family, survey.told.model);
    format!("{name} (family {family:#x}, model {model:#x}) at {:.2} GHz{guest}", survey.clock.median / 1e9)
}

fn cpu(cpu: &mut Table, survey: &Survey, w: Words) {
    put(cpu, "frequency_hz", survey.clock.median.round() as i64);
    let hz = survey.clock.times(1e-9);
    put(cpu, "source", format!("frequency measured {}: {} GHz", w.date, spread(&hz, 2)));
    put(
        cpu,
        "prior",
        format!("base_cpi, and what the hypervisor does (pcid, tlb_tagged, virtualization): as {}'s", w.base),
    );
}

fn tlbs(p: &mut Table, survey: &Survey, w: Words) {
    let Some(arrays) = p.get_mut("tlb").and_then(Value::as_array_mut) else { return };
    for array in arrays.iter_mut().filter_map(Value::as_table_mut) {
        let has = |array: &Table, key: &str, word: &str| {
            array
                .get(key)
                .and_then(Value::as_array)
                .is_some_and(|a| a.iter().any(|v| v.as_str() == Some(word)))
        };
        let level = array.get("level").and_then(Value::as_integer).unwrap_or(0) as u8;
        let data = has(array, "sides", "data");
        let size = ["4K", "2M", "1G"].into_iter().find(|s| has(array, "sizes", s)).unwrap_or("4K");
        let t = &survey.tlbs;
        let measured = match (level, data, size) {
            (1, true, "4K") => t.l1_4k.as_ref(),
            (2, true, "4K") => t.l2_4k.as_ref(),
            (1, true, "2M") => t.l1_2m.as_ref(),
            _ => None,
        };
        match (measured, survey.told.tlb(level, data, size)) {
            (Some(m), told) => measured_tlb(array, m, told, w),
            (None, Some(told)) => {
                put(array, "entries", told.entries as i64);
                put(array, "ways", whole_sets(told.entries, &[told.ways]) as i64);
                array.remove("source");
                put(array, "prior", "told by CPUID, not measured");
            }
            (None, None) => as_prior(array, w, ""),
        }
    }
}

fn measured_tlb(array: &mut Table, m: &Array, told: Option<&ToldTlb>, w: Words) {
    let bracket = Knee { fits: m.entries.low, exceeds: m.entries.high, below: 0.0, above: 0.0 };
    let agrees = told.filter(|t| crate::fit::agrees(&bracket, t.entries as f64));
    let entries = agrees.map_or(m.entries.median as u64, |t| t.entries);
    let of_base = array.get("ways").and_then(Value::as_integer).unwrap_or(0) as u64;
    // The first associativity that goes with the entries, and whose word it is.
    let candidates = [
        (m.ways, None),
        (told.map(|t| t.ways), Some("ways: told by CPUID".to_string())),
        (Some(of_base), Some(format!("ways: as {}'s", w.base))),
        (Some(8), Some("ways: a common number".into())),
    ];
    let whole = |ways: u64| ways == 0 || entries % ways == 0 && ways <= entries;
    let found = candidates.into_iter().find_map(|(ways, prior)| Some((ways.filter(|w| whole(*w))?, prior)));
    let (ways, prior) = found.unwrap_or((0, Some("ways: none divides the entries".into())));
    let fit = format!(
        "{:.0} pages fit, {:.0} do not; a miss costs {:.1} cycles",
        m.entries.low, m.entries.high, m.miss
    );
    let cpuid = match (agrees, told) {
        (Some(_), _) => ", CPUID says the same".into(),
        (None, Some(t)) => format!(", although CPUID says {}", t.entries),
        (None, None) => String::new(),
    };
    let of_ways = match (&prior, ways) {
        (Some(_), _) => "",
        (None, 0) => "; no stride of pages shows sets",
        (None, _) => "; ways from strides of pages",
    };
    put(array, "entries", entries as i64);
    put(array, "ways", ways as i64);
    put(array, "source", format!("measured {}: {entries} entries ({fit}){cpuid}{of_ways}", w.date));
    match prior {
        Some(prior) => put(array, "prior", prior),
        None => _ = array.remove("prior"),
    }
}

/// The first associativity that divides the entries; 0, fully associative, if none does.
fn whole_sets(entries: u64, ways: &[u64]) -> u64 {
    ways.iter().copied().find(|w| *w == 0 || entries % w == 0 && *w <= entries).unwrap_or(0)
}

fn caches(p: &mut Table, survey: &Survey, w: Words) {
    let of_base: Vec<Table> = p
        .get("cache")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|v| v.as_table().cloned())
        .collect();
    if survey.caches.is_empty() {
        return;
    }
    let last = survey.caches.len();
    let all = survey.caches.iter().map(|level| {
        let mut t = Table::new();
        let base =
            of_base.iter().find(|b| b.get("level").and_then(Value::as_integer) == Some(level.level.into()));
        let cycles = steady(level.cycles);
        let prior_cycles = base.and_then(|b| b.get("cycles")).and_then(Value::as_integer).unwrap_or(1);
        put(&mut t, "name", if level.level == 1 { "l1d".into() } else { format!("l{}", level.level) });
        put(&mut t, "level", i64::from(level.level));
        let kept = kept(survey, level);
        put(&mut t, "bytes", kept.map_or(level.bytes, |(bytes, _)| bytes) as i64);
        put(&mut t, "ways", level.ways as i64);
        put(&mut t, "cycles", cycles.map_or(prior_cycles, |c| c.median.round() as i64));
        put(&mut t, "content", content(level, survey.told.is_amd(), last));
        put(
            &mut t,
            "shared",
            level.told.as_ref().map_or(level.level == 3, |t| t.sharing > 2 || level.level == 3),
        );
        let (mut source, prior) = cache_words(level, w);
        if let Some((bytes, all)) = kept {
            source.push_str(&format!(
                "; bytes: beside memory misses {:.0} ({:.0} to {:.0}) KB of all levels stay, {} KB of them here",
                all.median / 1024.0,
                all.low / 1024.0,
                all.high / 1024.0,
                bytes >> 10
            ));
        }
        if !source.is_empty() {
            put(&mut t, "source", format!("measured {}: {source}", w.date));
        }
        if !prior.is_empty() {
            put(&mut t, "prior", prior);
        }
        Value::Table(t)
    });
    let all = Value::Array(all.collect());
    p.insert("cache".into(), all);
}

/// Bytes that the last level keeps beside memory misses, if they are fewer than a ring of loads finds: who waits for
/// memory competes with neighbours at that pace. With it, what all levels keep.
fn kept(survey: &Survey, level: &Level) -> Option<(u64, Estimate)> {
    let [.., below, last] = &survey.caches[..] else { return None };
    let all = survey.kept.filter(|_| level.level == last.level)?;
    // Victims' lines are in one level only, others in both.
    let exclusive = content(level, survey.told.is_amd(), survey.caches.len()) == "exclusive";
    let here = all.median - if exclusive { below.bytes as f64 } else { 0.0 };
    // Legal sets are multiples of 64, and a level is no smaller than the one below.
    let unit = 64 * 64 * level.ways;
    let bytes = ((here / unit as f64).round() as u64 * unit).max(below.bytes.next_multiple_of(unit));
    (bytes < level.bytes).then_some((bytes, all))
}

/// A value whose interval is narrower than half of it.
fn steady(value: Option<Estimate>) -> Option<Estimate> {
    value.filter(|v| v.relative_width() < 0.5)
}

/// The overlap of walks, if the part of a walk that it leaves is known to half of the part of data that independent
/// loads wait: the part is what counts, and of a large overlap hardly any is left.
fn steady_overlap(walks: Option<Estimate>, data: Option<Estimate>) -> Option<Estimate> {
    let left = |overlap: f64| 1.0 / overlap;
    walks.filter(|w| left(w.low) - left(w.high) < 0.5 * data.map_or(0.0, |d| left(d.median)))
}

/// Inclusive where CPUID says so; a third level of AMD's holds victims.
fn content(level: &Level, amd: bool, last: usize) -> &'static str {
    match (&level.told, level.level) {
        (_, 1) => "any",
        (Some(t), _) if t.inclusive => "inclusive",
        (_, 3) if amd && last == 3 => "exclusive",
        _ => "any",
    }
}

fn cache_words(level: &Level, w: Words) -> (String, String) {
    let (mut source, mut prior) = (Vec::new(), Vec::new());
    match (steady(level.cycles), &level.cycles) {
        (Some(c), _) => source.push(format!("{} cycles", spread(&c, 1))),
        (None, Some(c)) => {
            prior.push(format!("cycles: as {}'s; measured {}, too wide an interval", w.base, spread(c, 1)));
        }
        (None, None) => {
            prior.push(format!("cycles: as {}'s, no set was answered by this level alone", w.base))
        }
    }
    let kib = |bytes: f64| bytes / 1024.0;
    let told = level.told.as_ref().map(|t| t.bytes);
    match (&level.reach, told) {
        (Some(r), told) => {
            let fits = format!("{:.0} KB fit, {:.0} KB do not", kib(r.low), kib(r.high));
            source.push(match told {
                Some(t) if t == level.bytes => format!("{fits}, CPUID says {:.0} KB", kib(t as f64)),
                Some(t) => format!(
                    "{fits}, although CPUID says {:.0} KB: others use the level, or it is not whole",
                    kib(t as f64)
                ),
                None => fits,
            });
        }
        (None, _) => prior.push("bytes: told by CPUID, the curve shows no such knee".into()),
    }
    match (level.ways_measured, &level.told) {
        (Some(n), _) => source.push(format!("{n} ways from conflicts")),
        (None, Some(_)) => prior.push("ways: told by CPUID".into()),
        (None, None) => prior.push("ways: a common number".into()),
    }
    prior.push(if level.level == 1 { String::new() } else { "content: by vendor and CPUID".into() });
    prior.retain(|p| !p.is_empty());
    (source.join("; "), prior.join("; "))
}

fn memory(p: &mut Table, survey: &Survey, w: Words) {
    let l = &survey.loads;
    let memory = table(p, "memory");
    let (mut source, mut prior) = (Vec::new(), Vec::new());
    let base = w.base;
    let mut one =
        |key: &str, steady: Option<Estimate>, value: Option<Estimate>, digits: usize| match (steady, value) {
            (Some(e), _) => {
                let scale = 10f64.powi(digits as i32);
                let value = (e.median * scale).round() / scale;
                put(
                    memory,
                    key,
                    if digits == 0 { Value::Integer(value as i64) } else { Value::Float(value) },
                );
                source.push(format!("{key} {}", spread(&e, digits)));
            }
            (None, Some(e)) => {
                prior.push(format!(
                    "{key}: as {base}'s; measured {}, too wide an interval",
                    spread(&e, digits)
                ));
            }
            (None, None) => prior.push(format!("{key}: as {base}'s")),
        };
    one("cycles", steady(l.memory), l.memory, 0);
    one("data_overlap", steady(l.data_overlap), l.data_overlap, 1);
    one("walk_overlap", steady_overlap(l.walk_overlap, l.data_overlap), l.walk_overlap, 1);
    if let Some(s) = &l.sequential {
        put(memory, "prefetch_level", i64::from(l.prefetch_level));
        source.push(format!(
            "a load of the next line takes {} cycles, the time of prefetch_level",
            spread(s, 1)
        ));
    }
    prior.push(format!("walk_level: as {base}'s"));
    put(memory, "source", format!("measured {}: {}", w.date, source.join("; ")));
    put(memory, "prior", prior.join("; "));
}

fn system(p: &mut Table, survey: &Survey, w: Words) {
    let c = &survey.costs;
    let all = [
        ("page_fault", c.page_fault),
        ("page_fault_huge", c.page_fault_huge),
        ("syscall", c.syscall),
        ("process_switch", c.process_switch),
        ("mprotect", c.mprotect),
    ];
    let mut t = Table::new();
    let mut words = Vec::new();
    for (key, value) in all.into_iter().filter_map(|(k, v)| Some((k, v?))) {
        put(&mut t, key, value.median.round() as i64);
        words.push(format!("{key} {}", spread(&value, 0)));
    }
    put(&mut t, "source", format!("measured {}: {}", w.date, words.join("; ")));
    p.insert("system".into(), Value::Table(t));
}

/// `12.3 (12.1 to 12.6)`.
fn spread(e: &Estimate, digits: usize) -> String {
    format!("{:.digits$} ({:.digits$} to {:.digits$})", e.median, e.low, e.high)
}

/// Makes a table's origin the base profile.
fn as_prior(t: &mut Table, w: Words, scaled: &str) {
    let origin = |t: &mut Table, key: &str| t.remove(key).and_then(|v| v.as_str().map(String::from));
    let words: Vec<String> = [origin(t, "source"), origin(t, "prior")].into_iter().flatten().collect();
    put(t, "prior", format!("as {}'s{scaled}: {}", w.base, words.join("; ")));
}

fn table<'a>(p: &'a mut Table, key: &str) -> &'a mut Table {
    let value = p.entry(key).or_insert_with(|| Value::Table(Table::new()));
    if !value.is_table() {
        *value = Value::Table(Table::new());
    }
    value.as_table_mut().expect("just made a table")
}

fn put(t: &mut Table, key: &str, value: impl Into<Value>) {
    t.insert(key.into(), value.into());
}

/// Today as YYYY-MM-DD, UTC.
pub fn today() -> String {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    let (y, m, d) = civil(since.as_secs() / 86400);
    format!("{y}-{m:02}-{d:02}")
}

/// Year, month and day of a day since 1970-01-01, by years that begin in March: leap days are their last ones.
fn civil(days: u64) -> (u64, u64, u64) {
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (d, m) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    (era * 400 + year + u64::from(m <= 2), m, d)
}

#[cfg(test)]
mod tests;
