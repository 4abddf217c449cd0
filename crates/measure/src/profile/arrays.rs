// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TLBs and caches of the profile.

use super::words::{Origins, Words, spread};
use super::{as_prior, put, say_first};
use crate::estimate::Estimate;
use crate::fit::Knee;
use crate::survey::{Array, Level, Part, Survey};
use crate::told::ToldTlb;
use toml::{Table, Value};

pub(super) fn tlbs(p: &mut Table, survey: &Survey, w: &Words) {
    let has_memory = p.contains_key("memory");
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
        let name = array.get("name").and_then(Value::as_str).unwrap_or_default().to_string();
        let key = format!("tlb.{name}");
        let of_survey = matches!((level, data, size), (1 | 2, true, "4K") | (1, true, "2M"));
        let measured = match (level, data, size) {
            (1, true, "4K") => t.l1_4k.as_ref(),
            (2, true, "4K") => t.l2_4k.as_ref(),
            (1, true, "2M") => t.l1_2m.as_ref(),
            _ => None,
        };
        let told = survey.told.tlb(level, data, size);
        let refusal = measured.and_then(|m| Some((m, m.entries.refusal()?)));
        match (measured, refusal) {
            (Some(m), None) => {
                measured_tlb(array, m, told, w);
                // The ring is of dependent loads, and the second level answers.
                if has_memory && (level, size) == (1, "4K") && m.miss >= 1.0 {
                    put(array, "miss_cycles", m.miss.round() as i64);
                }
            }
            (_, Some((m, refusal))) => {
                // CPUID's word stands unless even a wide interval contradicts CPUID.
                let told = told.filter(|t| (m.entries.low..=m.entries.high).contains(&(t.entries as f64)));
                let reason = refusal.of(&format!("{} entries", spread(&m.entries, 0)));
                let prior = w.refused([&key, "entries"], reason, &stands(told, w));
                instead_of_measured(array, told, Some(prior), w);
            }
            (None, None) => {
                let prior = (of_survey && !w.reached(Part::Tlbs)).then(|| {
                    let keys = ["entries", "ways"].map(|k| w.not_reached([&key, k], &stands(told, w)));
                    keys.join("; ")
                });
                instead_of_measured(array, told, prior, w);
            }
        }
    }
}

/// Whose word stands for an array that was not measured.
fn stands(told: Option<&ToldTlb>, w: &Words) -> String {
    told.map_or(w.base_s(), |_| "from CPUID".into())
}

/// Makes an array CPUID's, or the base profile's. `why` says why the array was not measured.
fn instead_of_measured(array: &mut Table, told: Option<&ToldTlb>, why: Option<String>, w: &Words) {
    match told {
        Some(told) => {
            put(array, "entries", told.entries as i64);
            put(array, "ways", whole_sets(told.entries, &[told.ways]) as i64);
            array.remove("source");
            let miss =
                array.get("miss_cycles").map_or(String::new(), |_| format!("; miss_cycles: {}", w.base_s()));
            put(array, "prior", format!("from CPUID, not measured{miss}"));
        }
        None => as_prior(array, w, ""),
    }
    say_first(array, why);
}

fn measured_tlb(array: &mut Table, m: &Array, told: Option<&ToldTlb>, w: &Words) {
    let bracket = Knee { fits: m.entries.low, exceeds: m.entries.high, below: 0.0, above: 0.0 };
    let agrees = told.filter(|t| crate::fit::agrees(&bracket, t.entries as f64));
    let entries = agrees.map_or(m.entries.median as u64, |t| t.entries);
    let of_base = array.get("ways").and_then(Value::as_integer).unwrap_or(0) as u64;
    // The first associativity that goes with the entries, and whose word it is.
    let candidates = [
        (m.ways, None),
        (told.map(|t| t.ways), Some("ways: from CPUID".to_string())),
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

pub(super) fn caches(p: &mut Table, survey: &Survey, w: &Words) {
    let of_base: Vec<Table> = p
        .get("cache")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|v| v.as_table().cloned())
        .collect();
    if survey.caches.is_empty() {
        let levels = p.get_mut("cache").and_then(Value::as_array_mut).into_iter().flatten();
        for level in levels.filter_map(Value::as_table_mut) {
            let name = level.get("name").and_then(Value::as_str).unwrap_or_default().to_string();
            as_prior(level, w, "");
            if !w.reached(Part::Caches) {
                let key = format!("cache.{name}");
                let keys = ["bytes", "ways", "cycles"].map(|k| w.not_reached([&key, k], &w.base_s()));
                say_first(level, Some(keys.join("; ")));
            }
        }
        return;
    }
    let last = survey.caches.len();
    let all = survey.caches.iter().map(|level| {
        let mut t = Table::new();
        let base =
            of_base.iter().find(|b| b.get("level").and_then(Value::as_integer) == Some(level.level.into()));
        let name = if level.level == 1 { "l1d".into() } else { format!("l{}", level.level) };
        let words = cache_words(survey, level, base, &format!("cache.{name}"), w);
        let of_base = |key: &str| base.and_then(|b| b.get(key)).and_then(Value::as_integer);
        put(&mut t, "name", name);
        put(&mut t, "level", i64::from(level.level));
        put(&mut t, "bytes", words.bytes as i64);
        put(&mut t, "ways", words.ways as i64);
        let cycles = words.cycles.map_or(of_base("cycles").unwrap_or(1), |c| c.median.round() as i64);
        put(&mut t, "cycles", cycles);
        put(&mut t, "content", content(level, survey.told.is_amd(), last));
        put(
            &mut t,
            "shared",
            level.told.as_ref().map_or(level.level == 3, |t| t.sharing > 2 || level.level == 3),
        );
        let CacheWords { source, prior, .. } = words;
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

/// Bytes that the last level keeps beside memory misses, of all that the levels keep. They may be fewer than
/// a ring of loads finds: a program that waits for memory competes with neighbours at that pace.
fn kept(survey: &Survey, level: &Level, all: &Estimate) -> Option<u64> {
    let [.., below, _] = &survey.caches[..] else { return None };
    // Victims' lines are in one level only, others in both.
    let exclusive = content(level, survey.told.is_amd(), survey.caches.len()) == "exclusive";
    let here = all.median - if exclusive { below.bytes as f64 } else { 0.0 };
    // Legal sets are multiples of 64, and a level is no smaller than the one below.
    let unit = 64 * 64 * level.ways;
    Some(((here / unit as f64).round() as u64 * unit).max(below.bytes.next_multiple_of(unit)))
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

/// A level's values, and their origins in words.
struct CacheWords {
    bytes: u64,
    ways: u64,
    cycles: Option<Estimate>,
    source: String,
    prior: String,
}

fn cache_words(survey: &Survey, level: &Level, base: Option<&Table>, key: &str, w: &Words) -> CacheWords {
    let mut origins = Origins::default();
    let stands = match level.cycles {
        Some(_) => w.base_s(),
        None => format!("{}, no set was answered by this level alone", w.base_s()),
    };
    let cycles = origins.measured(w.take(Part::Caches, [key, "cycles"], level.cycles, 1, &stands));
    origins.source.extend(cycles.map(|c| format!("{} cycles", spread(&c, 1))));
    let (mut bytes, mut ways) = (level.bytes, level.ways);
    let told = level.told.as_ref().map(|t| t.bytes);
    let refusal = level.reach.and_then(|r| Some((r, r.refusal()?)));
    match (&level.reach, refusal, told) {
        (_, Some((r, refusal)), told) => {
            let reason = refusal.of(&format!("{} KB", spread(&r.times(1.0 / 1024.0), 0)));
            let of_base = |k: &str| base.and_then(|b| b.get(k)).and_then(Value::as_integer).map(|v| v as u64);
            let stands = match (told, of_base("bytes").zip(of_base("ways"))) {
                (Some(told), _) => {
                    bytes = told;
                    "from CPUID".into()
                }
                (None, Some(of_base)) => {
                    (bytes, ways) = of_base;
                    w.base_s()
                }
                (None, None) => "the likeliest number in the interval".into(),
            };
            origins.prior.push(w.refused([key, "bytes"], reason, &stands));
        }
        (Some(r), None, told) => origins.source.push(fits(r, level.bytes, told)),
        (None, ..) => origins.prior.push("bytes: from CPUID, the curve shows no such knee".into()),
    }
    match (level.ways_measured, &level.told) {
        _ if ways != level.ways => origins.prior.push(format!("ways: {}", w.base_s())),
        (Some(n), _) => origins.source.push(format!("{n} ways from conflicts")),
        (None, Some(_)) => origins.prior.push("ways: from CPUID".into()),
        (None, None) => origins.prior.push("ways: a common number".into()),
    }
    if level.level > 1 {
        origins.prior.push("content: by vendor and CPUID".into());
    }
    let last = survey.caches.last().is_some_and(|last| last.level == level.level);
    if level.level > 1 && last && refusal.is_none() {
        bytes = beside_misses(survey, level, key, w, bytes, &mut origins);
    }
    let Origins { source, prior } = origins;
    CacheWords { bytes, ways, cycles, source: source.join("; "), prior: prior.join("; ") }
}

/// The sizes between which the level ends, beside what CPUID says.
fn fits(reach: &Estimate, bytes: u64, told: Option<u64>) -> String {
    let kib = |bytes: f64| bytes / 1024.0;
    let fits = format!("{:.0} KB fit, {:.0} KB do not", kib(reach.low), kib(reach.high));
    match told.map(|t| (t, kib(t as f64))) {
        Some((t, told)) if t == bytes => format!("{fits}, CPUID says {told:.0} KB"),
        Some((_, told)) => {
            format!("{fits}, although CPUID says {told:.0} KB: others use the level, or it is not whole")
        }
        None => fits,
    }
}

/// What the last level keeps beside memory misses, if that is less than its bytes.
fn beside_misses(
    survey: &Survey,
    level: &Level,
    key: &str,
    w: &Words,
    bytes: u64,
    origins: &mut Origins,
) -> u64 {
    let all = survey.kept.map(|all| all.times(1.0 / 1024.0));
    let refusal = all.and_then(|all| Some((all, all.refusal()?)));
    match (survey.kept, refusal) {
        _ if !w.reached(Part::Kept) => {
            origins.prior.push(w.not_reached([key, "bytes"], "what a ring of loads finds"));
        }
        (_, Some((all, refusal))) => {
            let kept = format!("{} KB kept beside memory misses", spread(&all, 0));
            origins.prior.push(w.refused([key, "bytes"], refusal.of(&kept), "what a ring of loads finds"));
        }
        (Some(all), None) => {
            if let Some(here) = kept(survey, level, &all).filter(|here| *here < bytes) {
                origins.source.push(format!(
                    "bytes: beside memory misses {} KB of all levels stay, {} KB of them here",
                    spread(&all.times(1.0 / 1024.0), 0),
                    here >> 10
                ));
                return here;
            }
        }
        (None, None) => {}
    }
    bytes
}
