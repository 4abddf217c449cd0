// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A baseline: the counts of an earlier run, above which a later run of the same program must not grow.
//!
//! Under exact timing a run repeats to the bit, so a count that grew has a cause: the program, its libraries
//! or the guest's kernel. A [`Baseline`] is read from a result (`bifold compare --format json`) or from the
//! short form of one ([`Comparison::render_baseline`]), which has no intervals. [`Baseline::judge`] compares
//! a run with it.

mod counts;
mod read;
mod text;

use crate::diff::{self, Difference, Made, REVISION, Side};
use crate::{Comparison, Guest, Input, Partial};
use bifold_attribute::{PlaceRow, View};
use bifold_model::{CacheFacts, Config, Costs, Frames, Profile};
use counts::COUNTS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::HashMap;

/// Places whose count is a smaller share of the run's are not judged, in percent.
const LEAST_SHARE: f64 = 0.1;

/// The counts of an earlier run.
#[derive(Debug, Clone, PartialEq)]
pub struct Baseline {
    side: Side,
    host: Host,
    places: Option<Places>,
}

/// What else the counts depend on, beside what a [`Side`] has.
#[derive(Debug, Clone, PartialEq)]
struct Host {
    caches: Option<CacheFacts>,
    frames: Frames,
    nested_levels: u8,
}

/// Costs by place, in the order of the configurations' names.
#[derive(Debug, Clone, PartialEq)]
struct Places {
    configs: Vec<String>,
    code: Vec<Place>,
    cause: Vec<Place>,
    totals: Vec<Costs>,
    /// Whether every place of [`LEAST_SHARE`] is listed.
    whole: bool,
}

#[derive(Debug, Clone, PartialEq)]
struct Place {
    names: PlaceNames,
    costs: Vec<Costs>,
}

/// A place in a program.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub struct PlaceNames {
    /// Name of the process.
    pub process: String,
    /// File name of the program or library.
    pub binary: String,
    /// Name of the function.
    pub function: String,
    /// The mapping that was accessed.
    pub mapping: String,
}

/// A count that is not what it was.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "moved")]
pub struct Moved {
    /// Name of the configuration.
    pub config: String,
    /// The place; null for the whole run.
    pub place: Option<PlaceNames>,
    /// Name of the count: `tlb_misses`, `walks`, `walk_references`, `walk_cycles`, `exits`, `page_faults` or
    /// `extra_cycles`.
    pub count: Cow<'static, str>,
    /// In the baseline; 0 for a place that it does not list.
    pub before: i64,
    /// In this run.
    pub now: i64,
    /// The change, in percent of the baseline's.
    pub percent: Option<f64>,
}

/// A run beside its baseline.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Judged {
    /// The baseline's file, as given.
    pub baseline: String,
    /// By how many percent a count may grow.
    pub worse_than_percent: f64,
    /// Counts that grew by more.
    pub grew: Vec<Moved>,
    /// Counts that fell by more.
    pub fell: Vec<Moved>,
    /// Counts of places that the baseline does not list.
    pub new_places: Vec<Moved>,
    /// What else differs.
    pub notes: Vec<String>,
}

/// Why a run cannot be judged by a baseline.
#[derive(Debug, thiserror::Error)]
#[error(
    "{baseline} is no baseline for this run: {why}; make the baseline again (compare --save-baseline, ci --save)"
)]
pub struct NotComparable {
    baseline: String,
    why: String,
}

impl Baseline {
    /// The profile of the baseline's run, with all of its values.
    pub fn profile(&self) -> Option<&Profile> {
        self.side.profile()
    }

    /// Compares a run with the baseline: a count grew if it exceeds the baseline's by more than `worse_than`
    /// percent, and by more than chance and rounding could give a short program (`docs/guide/ci.md`).
    ///
    /// # Errors
    /// If the run is of another program, profile, guest or Bifold, or either is not whole.
    pub fn judge(&self, c: &Comparison, worse_than: f64) -> Result<Judged, NotComparable> {
        let now = Side::of("this run", c);
        if let Some(why) = self.differs(&now, &Host::of(c)) {
            return Err(NotComparable { baseline: self.side.name.clone(), why });
        }
        self.refuse_configs(&now.runs[0].iter().map(|t| t.config).collect::<Vec<_>>())?;
        let mut moved = Vec::new();
        for before in &self.side.runs[0] {
            let Some(now) = now.runs[0].iter().find(|t| t.config == before.config) else { continue };
            for count in &COUNTS {
                let (was, is) = ((count.of_run)(&before.sample), (count.of_run)(&now.sample));
                moved.extend(count.moved(worse_than, count.least, (was, is), before.config, None));
            }
        }
        if let (Some(before), Some(now)) = (&self.places, &c.places) {
            places_moved(before, now, worse_than, &mut moved);
        }
        let (new_places, moved): (Vec<_>, Vec<_>) =
            moved.into_iter().partition(|m| m.place.is_some() && m.percent.is_none());
        let (grew, fell) = moved.into_iter().partition(|m| m.now > m.before);
        Ok(Judged {
            baseline: self.side.name.clone(),
            worse_than_percent: worse_than,
            grew,
            fell,
            new_places,
            notes: self.notes(&now, c),
        })
    }

    /// Refuses, before it is made, a run of this command or generator that the baseline is not for.
    ///
    /// # Errors
    /// If the run is of another program, profile or Bifold.
    pub fn refuse_early(
        &self,
        bifold: &str,
        input: &Input,
        guest: Option<&Guest>,
        profile: &Profile,
        seed: u64,
    ) -> Result<(), NotComparable> {
        let before = &self.side.made;
        let now = Made {
            program: diff::program(input, guest),
            bifold: bifold.into(),
            profile: profile.name.clone(),
            overrides: profile.overrides.clone(),
            kvm: Some(profile.kvm.name().into()),
            config_hash: profile.hash(),
            seed,
            ..before.clone()
        };
        let refused = |d: &Difference| {
            let of_profile = ["profile", "profile changes", "KVM", "profile hash"].contains(&d.what);
            let tip = if of_profile {
                " (without --profile, --set and BIFOLD_PROFILE, the baseline's is used)"
            } else {
                ""
            };
            NotComparable { baseline: self.side.name.clone(), why: words(d) + tip }
        };
        let all = diff::differences(before, &now);
        all.iter().find(|d| d.what != REVISION).map_or(Ok(()), |d| Err(refused(d)))
    }

    /// Refuses a run of these configurations if the baseline has none of them: such a run would always pass.
    ///
    /// # Errors
    /// If the two have no configuration in common.
    pub fn refuse_configs(&self, now: &[Config]) -> Result<(), NotComparable> {
        let before: Vec<Config> = self.side.runs[0].iter().map(|t| t.config).collect();
        if before.iter().any(|config| now.contains(config)) {
            return Ok(());
        }
        let names = |all: &[Config]| all.iter().map(|c| c.name()).collect::<Vec<_>>().join(", ");
        let why = format!("it has {}, and this run {}", names(&before), names(now));
        Err(NotComparable { baseline: self.side.name.clone(), why })
    }

    /// The first of what makes the two runs incomparable.
    fn differs(&self, now: &Side, host: &Host) -> Option<String> {
        let whole = |side: &Side, which: &str| {
            let why = side.partial.map(Partial::describe);
            let failed = (side.failed_checks > 0).then_some("self-checks failed");
            why.or(failed).map(|why| format!("{which} is not whole ({why})"))
        };
        whole(&self.side, "the baseline").or_else(|| whole(now, "this run")).or_else(|| {
            // Kernel and QEMU change with every update of a machine, revisions with every commit.
            // Intervals change no total.
            const MAY_DIFFER: [&str; 4] = ["kernel", "QEMU", "interval", REVISION];
            let all = diff::differences(&self.side.made, &now.made);
            let mut kept = all.into_iter().filter(|d| !MAY_DIFFER.contains(&d.what));
            let of_host = || self.host.differs(host);
            kept.next().map(|d| words(&d)).or_else(of_host)
        })
    }

    fn notes(&self, now: &Side, c: &Comparison) -> Vec<String> {
        let changed = diff::differences(&self.side.made, &now.made).into_iter();
        let changed = changed.filter(|d| ["kernel", "QEMU", REVISION].contains(&d.what));
        let mut notes: Vec<String> = changed
            .map(|d| {
                format!(
                    "the baseline's {} is {}, and here it is {}: counts may differ by that",
                    d.what, d.a, d.b
                )
            })
            .collect();
        match (&self.places, &c.places) {
            (Some(_), None) => notes.push("the baseline has places; --where compares them".into()),
            (None, Some(_)) => notes.push("the baseline has no places: make it again with --where".into()),
            _ => {}
        }
        let of = |side: &Side| side.runs[0].iter().map(|t| t.config).collect::<Vec<Config>>();
        let (before, now) = (of(&self.side), of(now));
        let only = |all: &[Config], others: &[Config]| {
            let names: Vec<String> = all.iter().filter(|c| !others.contains(c)).map(|c| c.name()).collect();
            (!names.is_empty()).then(|| names.join(", "))
        };
        notes.extend(only(&before, &now).map(|names| format!("only the baseline has {names}")));
        notes.extend(only(&now, &before).map(|names| format!("the baseline lacks {names}")));
        notes
    }
}

fn words(d: &Difference) -> String {
    format!("its {} is {}, and here it is {}", d.what, d.a, d.b)
}

impl Host {
    fn of(c: &Comparison) -> Host {
        let o = &c.outcome;
        Host { caches: o.caches, frames: o.host_frames, nested_levels: o.nested_levels }
    }

    fn differs(&self, now: &Host) -> Option<String> {
        let option = match () {
            () if self.caches != now.caches => "--caches",
            () if self.frames != now.frames => "--host-frames",
            () if self.nested_levels != now.nested_levels => "--nested-levels",
            () => return None,
        };
        Some(format!("it was made with another {option}"))
    }
}

impl Judged {
    /// Whether a count grew by more than it may.
    pub fn is_worse(&self) -> bool {
        !self.grew.is_empty()
    }
}

/// Adds what moved at places.
fn places_moved(before: &Places, now: &crate::Places, worse_than: f64, out: &mut Vec<Moved>) {
    let listed = match now.view {
        View::Code => &before.code,
        View::Cause => &before.cause,
    };
    let known: HashMap<&PlaceNames, &Place> = listed.iter().map(|p| (&p.names, p)).collect();
    let mut moved = Vec::new();
    for row in now.places.rows(now.view) {
        let names = PlaceNames::of(row);
        let place = known.get(&names);
        if place.is_none() && !before.whole {
            continue;
        }
        for (config, costs) in now.places.configs.iter().zip(&row.costs) {
            let Some(i) = before.configs.iter().position(|name| *name == config.name()) else { continue };
            for count in &COUNTS {
                let Some(of) = count.of_place else { continue };
                // A place that is not listed may have had up to the least share.
                let share = (LEAST_SHARE / 100.0 * of(&before.totals[i]) as f64) as i64;
                let least = count.least.max(if place.is_some() { share } else { 2 * share });
                let was = place.map_or(0, |p| of(&p.costs[i]));
                moved.extend(count.moved(worse_than, least, (was, of(costs)), *config, Some(&names)));
            }
        }
    }
    moved.sort_by_key(|m| std::cmp::Reverse((m.now - m.before).abs()));
    out.append(&mut moved);
}

impl PlaceNames {
    fn of(row: &PlaceRow) -> PlaceNames {
        PlaceNames {
            process: row.process.clone(),
            binary: row.binary.clone(),
            function: row.function.clone(),
            mapping: row.mapping.clone(),
        }
    }
}

/// Whether a baseline has to list the place: a count of its is a share of the run's that is judged.
fn is_judged(row: &PlaceRow, totals: &[Costs]) -> bool {
    row.costs.iter().zip(totals).any(|(costs, total)| {
        let counts = COUNTS.iter().filter_map(|c| c.of_place);
        counts
            .into_iter()
            .any(|of| of(costs) as f64 >= LEAST_SHARE / 100.0 * of(total) as f64 && of(costs) > 0)
    })
}
