// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a profile of a survey. What was not measured is CPUID's, or the nearest built-in profile's; each
//! table says which. A value whose interval is too wide is not written, nor one that the survey did not
//! reach: the base profile's value stays, and `prior` says why.

mod arrays;
mod words;

use crate::survey::{Part, Survey};
use crate::told::Told;
use crate::toml_text;
use bifold_model::{Processor, Profile, ProfileError};
use toml::{Table, Value};
pub use words::Unwritten;
use words::{Origins, Taken, Words, spread};

/// The profile that was made.
#[derive(Debug, Clone)]
pub struct Made {
    /// The profile as a TOML file.
    pub text: String,
    /// The built-in profile that stands for what was not measured.
    pub base: &'static str,
    /// The values that the survey was to give and did not.
    pub unwritten: Vec<Unwritten>,
    /// The same in words, as the file's comments have them; each a sentence without its full stop.
    pub notes: Vec<String>,
}

/// Makes the profile of a survey. `name` is the profile's name, `date` goes into the sources.
///
/// # Errors
/// If the values contradict each other, as on a machine so busy that a near cache took longer than a far one.
/// The error names the keys.
pub fn profile(survey: &Survey, name: &str, date: &str) -> Result<Made, ProfileError> {
    let made = make(survey, name, date, None)?;
    let Err(e) = Profile::parse(&made.text, name, &[]) else { return Ok(made) };
    // Where the base profile's times stand beside measured ones, they may not fit together.
    let is_time = |u: &Unwritten| u.key.ends_with(".cycles");
    if !made.unwritten.iter().any(is_time) {
        return Err(e);
    }
    let what = match &e {
        ProfileError::Value { field, problem, .. } => format!("{field} {problem}"),
        other => other.to_string(),
    };
    let made = make(survey, name, date, Some(&what))?;
    Profile::parse(&made.text, name, &[])?;
    Ok(made)
}

/// Makes the profile without a check. With a contradiction, all times of caches and memory are the base
/// profile's.
fn make(survey: &Survey, name: &str, date: &str, contradiction: Option<&str>) -> Result<Made, ProfileError> {
    let base = nearest(&survey.told);
    let loaded = Profile::load(base, &[])?;
    let mut p = Table::try_from(&loaded).unwrap_or_default();
    let words = &Words::new(base, date, survey, contradiction);
    let measured = survey.clock.refusal().is_none();
    let clock = if measured { survey.clock.median / loaded.cpu.frequency_hz as f64 } else { 1.0 };
    put(&mut p, "name", name);
    put(&mut p, "description", description(survey));
    let own = Table::try_from(Processor::exactly(&survey.told.id())).unwrap_or_default();
    put(&mut p, "processor", vec![Value::Table(own)]);
    cpu(table(&mut p, "cpu"), survey, words);
    arrays::tlbs(&mut p, survey, words);
    for part in ["walk_cache", "walk"] {
        as_prior(table(&mut p, part), words, "");
    }
    arrays::caches(&mut p, survey, words);
    memory(&mut p, survey, words);
    page_cross_within(&mut p);
    system(&mut p, survey, words);
    for cost in table(&mut p, "exit").iter_mut().filter_map(|(_, v)| v.as_table_mut()) {
        let cycles = cost.get("cycles").and_then(Value::as_integer).unwrap_or(0);
        put(cost, "cycles", (cycles as f64 * clock).round() as i64);
        as_prior(cost, words, &format!(", scaled by the clock ({clock:.2})"));
    }
    let mut comment = vec![format!("Made by `bifold profile measure` on {date}. {}.", description(survey))];
    let unwritten = words.unwritten.take();
    let notes = Unwritten::notes(&unwritten, survey.ended);
    comment.extend(survey.warnings.iter().chain(&notes).map(|w| format!("Note: {w}.")));
    Ok(Made { text: toml_text::text(&comment, &p), base, unwritten, notes })
}

/// The built-in profile of the processor, or that of its vendor's newest server.
fn nearest(told: &Told) -> &'static str {
    let vendor = if told.is_amd() { "AuthenticAMD" } else { "GenuineIntel" };
    let newest = || Profile::newest_of(vendor).expect("both vendors have one");
    Profile::builtin_of(&told.id()).unwrap_or_else(newest)
}

fn description(survey: &Survey) -> String {
    let name = if survey.told.name.is_empty() { "a processor without a name" } else { &survey.told.name };
    let guest =
        survey.told.hypervisor.as_ref().map_or(String::new(), |h| format!(", in a virtual machine ({h})"));
    let (family, model) = (survey.told.family, survey.told.model);
    format!("{name} (family {family:#x}, model {model:#x}) at {:.2} GHz{guest}", survey.clock.median / 1e9)
}

fn cpu(cpu: &mut Table, survey: &Survey, w: &Words) {
    let mut prior = vec![format!(
        "base_cpi, and what the hypervisor does (pcid, tlb_tagged, virtualization): {}",
        w.base_s()
    )];
    let hz = survey.clock.times(1e-9);
    // The clock is measured beside everything else.
    match w.take(Part::Costs, ["cpu", "frequency_hz"], Some(hz), 2, &w.base_s()) {
        Taken::Measured(hz) => {
            put(cpu, "frequency_hz", survey.clock.median.round() as i64);
            put(cpu, "source", format!("frequency measured {}: {} GHz", w.date, spread(&hz, 2)));
        }
        Taken::Prior(why) => {
            cpu.remove("source");
            prior.insert(0, why);
        }
    }
    put(cpu, "prior", prior.join("; "));
}

fn memory(p: &mut Table, survey: &Survey, w: &Words) {
    let l = &survey.loads;
    let memory = table(p, "memory");
    let mut origins = Origins::default();
    // An overlap of walks is a ratio of walks' times: it means nothing if the walk itself is not known.
    let walk = l.walk.and_then(|walk| {
        let reason = walk.refusal()?.of(&format!("{} cycles", spread(&walk, 0)));
        Some(w.refused(["memory", "walk_overlap"], format!("for a walk, {reason}"), &w.base_s()))
    });
    let whole = |v: f64| Value::Integer(v.round() as i64);
    let tenths = |v: f64| Value::Float((v * 10.0).round() / 10.0);
    let overlap = if walk.is_some() { None } else { Some(("walk_overlap", l.walk_overlap, 1)) };
    let all = [Some(("cycles", l.memory, 0)), Some(("data_overlap", l.data_overlap, 1)), overlap];
    for (key, value, digits) in all.into_iter().flatten() {
        if let Some(e) = origins.measured(w.take(Part::Loads, ["memory", key], value, digits, &w.base_s())) {
            put(memory, key, if digits == 0 { whole(e.median) } else { tenths(e.median) });
            origins.source.push(format!("{key} {}", spread(&e, digits)));
        }
    }
    origins.prior.extend(walk);
    if let Some(s) =
        origins.measured(w.take(Part::Loads, ["memory", "prefetch_level"], l.sequential, 1, &w.base_s()))
    {
        put(memory, "prefetch_level", i64::from(l.prefetch_level));
        let cycles = spread(&s, 1);
        let next = format!("a load of the next line takes {cycles} cycles, the time of prefetch_level");
        origins.source.push(next);
    }
    if l.streams_stop {
        memory.remove("page_cross_cycles");
        origins.source.push("streams stop at each multiple of 4 KB".into());
    } else {
        let stands = if memory.contains_key("page_cross_cycles") { w.base_s() } else { "left out".into() };
        if let Some(e) =
            origins.measured(w.take(Part::Loads, ["memory", "page_cross_cycles"], l.page_cross, 0, &stands))
        {
            put(memory, "page_cross_cycles", whole(e.median));
            origins.source.push(format!("page_cross_cycles {}", spread(&e, 0)));
        }
    }
    // A wait that may be nothing is not there: most machines back their memory before.
    memory.remove("first_use_2m_cycles");
    if let Some(e) = survey.costs.first_use_2m.filter(|e| e.low > 0.0) {
        if let Some(e) =
            origins.measured(w.take(Part::Costs, ["memory", "first_use_2m_cycles"], Some(e), 0, "left out"))
        {
            put(memory, "first_use_2m_cycles", whole(e.median));
            origins.source.push(format!("first_use_2m_cycles {}", spread(&e, 0)));
        }
    }
    let Origins { source, mut prior } = origins;
    if source.is_empty() {
        as_prior(memory, w, "");
        say_first(memory, Some(prior.join("; ")));
        return;
    }
    prior.push(format!("walk_level: {}", w.base_s()));
    put(memory, "source", format!("measured {}: {}", w.date, source.join("; ")));
    put(memory, "prior", prior.join("; "));
}

/// Keeps the time of a page's first line between those of a line that was fetched and of one that was not:
/// any of the three may be measured while the others are the base profile's.
fn page_cross_within(p: &mut Table) {
    let cycles = |t: &Table| t.get("cycles").and_then(Value::as_integer);
    let caches = p.get("cache").and_then(Value::as_array).cloned().unwrap_or_default();
    let memory = table(p, "memory");
    let level = memory.get("prefetch_level").and_then(Value::as_integer).unwrap_or(0) - 1;
    let fetched = usize::try_from(level).ok().and_then(|i| cycles(caches.get(i)?.as_table()?));
    let cross = memory.get("page_cross_cycles").and_then(Value::as_integer);
    if let (Some(cross), Some(fetched), Some(most)) = (cross, fetched, cycles(memory)) {
        put(memory, "page_cross_cycles", cross.max(fetched).min(most));
    }
}

/// The kernel's costs. A cost that was not measured is the base profile's, if it has any.
fn system(p: &mut Table, survey: &Survey, w: &Words) {
    let c = &survey.costs;
    let mut all = vec![
        ("page_fault", c.page_fault),
        ("syscall", c.syscall),
        ("process_switch", c.process_switch),
        ("mprotect", c.mprotect),
    ];
    // Machines without huge pages have no such cost.
    all.extend(c.page_fault_huge.map(|cost| ("page_fault_huge", Some(cost))));
    let mut t = p.get("system").and_then(Value::as_table).cloned().unwrap_or_default();
    let mut origins = Origins::default();
    for (key, value) in all {
        let stands = if t.contains_key(key) { w.base_s() } else { "left out".into() };
        if let Some(cost) = origins.measured(w.take(Part::Costs, ["system", key], value, 0, &stands)) {
            put(&mut t, key, cost.median.round() as i64);
            origins.source.push(format!("{key} {}", spread(&cost, 0)));
        }
    }
    let Origins { source, prior } = origins;
    t.remove("source");
    t.remove("prior");
    if !source.is_empty() {
        put(&mut t, "source", format!("measured {}: {}", w.date, source.join("; ")));
    }
    if !prior.is_empty() {
        put(&mut t, "prior", prior.join("; "));
    }
    p.insert("system".into(), Value::Table(t));
}

/// Puts words before a table's prior.
fn say_first(t: &mut Table, words: Option<String>) {
    let old = t.get("prior").and_then(Value::as_str).map(String::from);
    let all: Vec<String> = [words, old].into_iter().flatten().collect();
    if !all.is_empty() {
        put(t, "prior", all.join("; "));
    }
}

/// Makes a table's origin the base profile.
fn as_prior(t: &mut Table, w: &Words, scaled: &str) {
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

/// Year, month and day of a day since 1970-01-01, by years that begin in March: leap days are their last
/// ones.
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
