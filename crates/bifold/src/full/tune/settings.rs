// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which settings of the guest are tried, and in which order.
//!
//! Each run takes as long as a `compare`. So a setting is left out if the runs before show that it cannot
//! gain.

use super::args::{Axis, Knob};
use bifold_report::{Setting, Tried, WORTH_PERCENT};

/// Cycles that a page fault of the guest's takes at least: the fault itself and the clearing of 4 KB. Huge
/// pages save most faults.
const FAULT_CYCLES: f64 = 1500.0;

/// What the first run says about huge pages.
#[derive(Debug, Clone, Copy)]
pub struct Base {
    /// Walks and waits of the cheapest configuration, in percent of its time.
    pub walk_percent: f64,
    /// Page faults of the guest, and their part of the time at [`FAULT_CYCLES`].
    pub fault_percent: f64,
}

impl Base {
    /// From cycles and page faults of the cheapest configuration.
    pub fn of(cycles: f64, walk_cycles: f64, page_faults: u64) -> Base {
        let percent = |part: f64| 100.0 * part / cycles.max(1.0);
        Base { walk_percent: percent(walk_cycles), fault_percent: percent(page_faults as f64 * FAULT_CYCLES) }
    }
}

/// Every combination that differs, the first as it is now. malloc asks for transparent huge pages only where
/// they are `madvise`.
pub fn all(base: &Setting, knobs: &[Knob], axes: &[Axis]) -> Vec<Setting> {
    let has = |knob| knobs.is_empty() || knobs.contains(&knob);
    let mut thps = vec![base.thp.as_str()];
    if has(Knob::Thp) {
        thps.extend(["always", "madvise", "never"].into_iter().filter(|t| *t != base.thp));
    }
    let mallocs = if has(Knob::Malloc) { 0..3 } else { 0..1 };
    let kptis = if has(Knob::Kpti) && base.kpti { vec![true, false] } else { vec![base.kpti] };
    let mut out = Vec::new();
    for kpti in kptis {
        for thp in &thps {
            for malloc in mallocs.clone().filter(|m| *m != 1 || *thp == "madvise") {
                out.push(Setting { thp: (*thp).to_string(), malloc, kpti, own: base.own.clone() });
            }
        }
    }
    for axis in axes {
        let values = |s: &Setting| axis.values.iter().map(|v| with_own(s, axis, v)).collect::<Vec<_>>();
        out = out.iter().flat_map(values).collect();
    }
    // The runs of now come first.
    out.sort_by_key(|s| s.own != base.own);
    out
}

/// The setting with another value on an axis of the user's own.
fn with_own(setting: &Setting, axis: &Axis, value: &str) -> Setting {
    let mut out = setting.clone();
    for (_, own) in out.own.iter_mut().filter(|(name, _)| *name == axis.name) {
        *own = value.into();
    }
    out
}

/// The order in which settings are tried, as far as the runs before say that they can gain.
pub struct Order<'a> {
    pub base: &'a Setting,
    pub knobs: &'a [Knob],
    pub axes: &'a [Axis],
    /// What the first run says.
    pub of_base: Base,
}

impl Order<'_> {
    /// The next setting to try; none when there is no further one. `gain` is that of a run that was made, in
    /// its best configuration against the best of now.
    pub fn next(&self, tried: &[Tried], gain: impl Fn(&Setting) -> Option<f64>) -> Option<Setting> {
        self.wanted(&gain).into_iter().find_map(|(setting, against)| {
            let done = tried.iter().any(|t| t.setting == setting);
            (!done && against.is_none()).then_some(setting)
        })
    }

    /// Why settings are left out.
    pub fn left_out(&self, gain: impl Fn(&Setting) -> Option<f64>) -> Vec<String> {
        self.wanted(&gain).into_iter().filter_map(|(_, against)| against).collect()
    }

    fn has(&self, knob: Knob) -> bool {
        self.knobs.is_empty() || self.knobs.contains(&knob)
    }

    /// Settings in their order, each with the reason against it.
    fn wanted(&self, gain: &dyn Fn(&Setting) -> Option<f64>) -> Vec<(Setting, Option<String>)> {
        let base = self.base;
        let mut out = self.of_guest(gain);
        // The setting that gains most of these; none where none gains.
        let best = |settings: &[Setting]| {
            let gains = settings.iter().filter_map(|s| Some((s, gain(s)?))).filter(|(_, g)| *g > 0.0);
            gains.max_by(|a, b| a.1.total_cmp(&b.1)).map(|(s, _)| s.clone())
        };
        let of_guest: Vec<Setting> = out.iter().map(|(s, _)| s.clone()).collect();
        // Axes of the user's own alone, then the best value of each with the best of the guest's settings.
        let mut together = best(&of_guest);
        for axis in self.axes {
            let values: Vec<Setting> = axis.values.iter().skip(1).map(|v| with_own(base, axis, v)).collect();
            if let Some(gains) = best(&values) {
                let own = gains.own.iter().find(|(name, _)| *name == axis.name).expect("set above");
                together = Some(with_own(together.as_ref().unwrap_or(base), axis, &own.1));
            }
            out.extend(values.into_iter().map(|s| (s, None)));
        }
        if let Some(all) = together.filter(|all| out.iter().all(|(s, _)| s != all)) {
            out.push((all, None));
        }
        if self.has(Knob::Kpti) && base.kpti {
            let tried: Vec<Setting> = out.iter().map(|(s, _)| s.clone()).collect();
            let best = best(&tried).unwrap_or_else(|| base.clone());
            out.push((Setting { kpti: false, ..best }, None));
        }
        out
    }

    /// Huge pages of the guest and of malloc, each with the reason against it.
    fn of_guest(&self, gain: &dyn Fn(&Setting) -> Option<f64>) -> Vec<(Setting, Option<String>)> {
        let has = |knob| self.has(knob);
        let base = self.base;
        let with = |thp: &str, malloc| Setting { thp: thp.into(), malloc, ..base.clone() };
        let always = with("always", base.malloc);
        let mut out: Vec<(Setting, Option<String>)> = Vec::new();
        let small = self.of_base.walk_percent + self.of_base.fault_percent;
        let no_room = (small < WORTH_PERCENT).then(|| {
            format!("huge pages in the guest: walks and page faults take {small:.2} % of the time in the cheapest mode, so they cannot gain more")
        });
        if let Some(why) = no_room {
            if has(Knob::Thp) || has(Knob::Malloc) {
                out.push((always.clone(), Some(why)));
            }
        } else {
            let of_always = gain(&always);
            if has(Knob::Thp) && base.thp != "always" {
                out.push((always.clone(), None));
            }
            // THP always reaches all that malloc's tunables reach. Without a run of it the tunables are
            // tried.
            let heap = of_always.is_none_or(|g| g >= WORTH_PERCENT) || base.thp == "always";
            let against = |name: &str| {
                (!heap).then(|| {
                    format!(
                        "{name}: THP always gains less than {WORTH_PERCENT} %, and reaches the heap as well"
                    )
                })
            };
            if has(Knob::Malloc) && base.malloc == 0 {
                if base.thp == "madvise" {
                    out.push((with("madvise", 1), against("malloc with THP")));
                }
                out.push((with(&base.thp, 2), against("malloc with hugetlbfs")));
            }
            let loses = of_always.is_some_and(|g| g < 0.0);
            if has(Knob::Thp) && base.thp == "madvise" {
                let why =
                    "THP never: the program's own madvise decides, and THP always does not lose".to_string();
                out.push((with("never", base.malloc), (!loses).then_some(why)));
            } else if has(Knob::Thp) && base.thp == "always" {
                out.push((with("madvise", base.malloc), None));
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(thp: &str, malloc: u8, kpti: bool) -> Setting {
        Setting { thp: thp.into(), malloc, kpti, own: Vec::new() }
    }

    /// The settings that are tried where a run gains this much.
    fn tried(base: &Setting, of_base: Base, gain: impl Fn(&Setting) -> f64) -> Vec<Setting> {
        let order = Order { base, knobs: &[], axes: &[], of_base };
        let mut tried =
            vec![Tried { setting: base.clone(), seconds: 1.0, costs: Vec::new(), touched_bytes: 0 }];
        loop {
            let known = |s: &Setting| tried.iter().any(|t| t.setting == *s).then(|| gain(s));
            let Some(setting) = order.next(&tried, known) else { break };
            tried.push(Tried { setting, seconds: 1.0, costs: Vec::new(), touched_bytes: 0 });
        }
        tried.into_iter().skip(1).map(|t| t.setting).collect()
    }

    const MUCH: Base = Base { walk_percent: 5.0, fault_percent: 1.0 };

    #[test]
    fn all_combinations_are_those_that_differ() {
        assert_eq!(all(&setting("madvise", 0, false), &[], &[]).len(), 3 * 3 - 2);
        assert_eq!(all(&setting("madvise", 0, true), &[], &[]).len(), 2 * (3 * 3 - 2));
        assert_eq!(all(&setting("always", 0, true), &[Knob::Kpti], &[]).len(), 2);
        assert_eq!(all(&setting("never", 0, false), &[Knob::Thp], &[])[0], setting("never", 0, false));
    }

    #[test]
    fn a_program_without_walks_and_faults_is_run_once() {
        let base = setting("madvise", 0, false);
        let nothing = Base { walk_percent: 0.05, fault_percent: 0.05 };
        assert_eq!(tried(&base, nothing, |_| 0.0), []);
        assert_eq!(tried(&setting("madvise", 0, true), nothing, |_| 0.0), [setting("madvise", 0, false)]);
    }

    #[test]
    fn malloc_is_tried_where_huge_pages_gain_and_never_where_they_lose() {
        let base = setting("madvise", 0, false);
        let (always, never) = (setting("always", 0, false), setting("never", 0, false));
        let mallocs = [setting("madvise", 1, false), setting("madvise", 2, false)];
        let gains = tried(&base, MUCH, |_| 3.0);
        assert_eq!(gains, [always.clone(), mallocs[0].clone(), mallocs[1].clone()]);
        assert_eq!(tried(&base, MUCH, |_| -1.0), [always, never]);
    }

    #[test]
    fn isolation_is_tried_with_the_best_of_the_others() {
        let best = |s: &Setting| if s.malloc == 1 { 5.0 } else { 1.0 };
        let last = tried(&setting("madvise", 0, true), MUCH, best).pop().unwrap();
        assert_eq!(last, setting("madvise", 1, false));
    }

    #[test]
    fn axes_of_the_users_own_are_tried_alone_and_then_with_what_gains() {
        let own = |a: &str, b: &str| vec![("a".to_string(), a.to_string()), ("b".to_string(), b.to_string())];
        let axis = |name: &str, values: [&str; 2]| Axis {
            name: name.into(),
            values: values.map(String::from).into(),
        };
        let axes = [axis("a", ["1", "2"]), axis("b", ["x", "y"])];
        let base = Setting { own: own("1", "x"), ..setting("madvise", 0, false) };
        let order = Order { base: &base, knobs: &[Knob::Thp], axes: &axes, of_base: MUCH };
        // THP gains, a = 2 gains, b = y loses.
        let gain = |s: &Setting| {
            let parts = [s.thp == "always", s.own[0].1 == "2"].map(|on| if on { 2.0 } else { 0.0 });
            parts.iter().sum::<f64>() - if s.own[1].1 == "y" { 5.0 } else { 0.0 }
        };
        let mut tried =
            vec![Tried { setting: base.clone(), seconds: 1.0, costs: Vec::new(), touched_bytes: 0 }];
        while let Some(setting) =
            order.next(&tried, |s| tried.iter().any(|t| t.setting == *s).then(|| gain(s)))
        {
            tried.push(Tried { setting, seconds: 1.0, costs: Vec::new(), touched_bytes: 0 });
        }
        let shown: Vec<String> = tried
            .iter()
            .skip(1)
            .map(|t| format!("{} {}{}", t.setting.thp, t.setting.own[0].1, t.setting.own[1].1))
            .collect();
        assert_eq!(shown, ["always 1x", "madvise 2x", "madvise 1y", "always 2x"]);
        assert_eq!(all(&base, &[Knob::Thp], &axes).len(), 3 * 2 * 2);
    }
}
