// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures derived from one configuration's total: overheads, rates and
//! references per walk (`docs/design/model.md#derived-figures`).
//!
//! Each is defined once here, with its unit and meaning; the table, JSON and
//! HTML all take them from a [`Figures`].

use bifold_model::{CacheFacts, ConfigOutcome, Counter, Outcome, Sample};
use schemars::JsonSchema;
use serde::Serialize;

macro_rules! figures {
    ($( $name:ident : $unit:literal = $doc:literal ),* $(,)?) => {
        /// One configuration's derived figures over a whole run.
        #[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
        #[schemars(rename = "figures")]
        pub struct Figures {
            $( #[doc = concat!($doc, " Unit: ", $unit, ".")] pub $name: f64, )*
        }

        impl Figures {
            /// Every figure, in the order of the fields.
            pub const ALL: &'static [Counter] = &[
                $( Counter { name: stringify!($name), unit: $unit, doc: $doc } ),*
            ];

            /// The figures' values, in the order of [`Figures::ALL`].
            pub fn values(&self) -> [f64; Figures::ALL.len()] {
                [ $( self.$name ),* ]
            }
        }
    };
}

figures! {
    seconds: "s" = "Predicted time of the run: the ideal run and its overhead, at the profile's clock.",
    low_seconds: "s" = "Predicted time at the end of the band with the shorter time: of a core that hides nothing, one that hides all that it can, and the core as stated; less the error. Without data caches: at half the assumed cycles per instruction.",
    high_seconds: "s" = "Predicted time at the other end of the band, and the error more.",
    overhead_percent: "%" = "Cycles of walks, of the hypervisor and of data kept out of the caches, against the ideal run's; what the core hides is left out.",
    walk_percent: "%" = "The part of the overhead in page walks.",
    vmm_percent: "%" = "The part of the overhead in exits and the hypervisor's work for them.",
    half_cpi_percent: "%" = "Overhead if the ideal run took half the assumed cycles per instruction.",
    double_cpi_percent: "%" = "Overhead if the ideal run took double the assumed cycles per instruction.",
    extra_cycles_per_1000: "cycles" = "Cycles beyond the ideal run's per 1000 instructions; no CPI is assumed in it.",
    tlb_misses_per_1000: "1" = "Misses of all TLB levels per 1000 instructions.",
    refs_per_walk: "1" = "References to page tables per walk.",
    exits_per_1000: "1" = "Exits per 1000 instructions.",
    data_percent: "%" = "The part of the overhead in waits for data beyond the ideal run's waits, frames_percent left out: walks push data out of the caches, and dependent loads wait for the second-level TLB. Negative where by chance more data stay in the caches with walks than without.",
    frames_percent: "%" = "The part of the overhead in waits for data because the host's frames lie in other sets of the caches than the ideal run's data. Negative where they suit the caches better.",
    low_percent: "%" = "The lowest of three overheads: as stated, if the core hid nothing of any wait, and if it hid all that it can; less error_points. Without data caches: at double the assumed cycles per instruction.",
    error_points: "%" = "Half the width of the 95 % interval around the overhead, in points: from the sample of lines and the draw of host frames in data caches, and from the windows of a sampled run.",
    high_percent: "%" = "The highest of the three, and error_points more, as low_percent. Without data caches: at half the assumed cycles per instruction.",
}

impl Figures {
    /// The figures of one of `outcome`'s configurations.
    pub fn of(outcome: &Outcome, config: &ConfigOutcome) -> Figures {
        let core = Core::of(outcome);
        Figures::of_total(&config.total, &core, error_cycles(config))
    }

    /// The figures of a configuration's total on a core. The extra cycles are exact but for `error_cycles`.
    pub fn of_total(total: &Sample, core: &Core<'_>, error_cycles: f64) -> Figures {
        let Core { frequency_hz, base_cpi, caches } = *core;
        let t = total;
        let extra = t.extra_cycles();
        let seconds = |cycles: f64| cycles / frequency_hz.max(1) as f64;
        let ends = times(t, core);
        let shortest = ends.into_iter().fold(f64::INFINITY, f64::min) - error_cycles;
        let longest = ends.into_iter().fold(0.0, f64::max) + error_cycles;
        let at = |cycles: f64, cpi_factor: f64| {
            let ideal = t.ideal_cycles(base_cpi * cpi_factor);
            if ideal == 0.0 { 0.0 } else { 100.0 * cycles / ideal }
        };
        let percent = |cycles: u64, cpi_factor: f64| at(cycles as f64, cpi_factor);
        let walks = t.exposed_walk_cycles();
        let frames = t.frame_wait_cycles() as f64;
        let error = at(error_cycles, 1.0);
        let (low, high) = match caches {
            Some(caches) => {
                let (low, high) = band(t, base_cpi, caches);
                // A core that hides its waits for data, but waits for walks, is outside both.
                (low.min(percent(extra, 1.0)), high.max(percent(extra, 1.0)))
            }
            None => (percent(extra, 2.0), percent(extra, 0.5)),
        };
        Figures {
            seconds: seconds(ends[0]),
            low_seconds: seconds(shortest.max(0.0)),
            high_seconds: seconds(longest),
            overhead_percent: percent(extra, 1.0),
            walk_percent: percent(walks, 1.0),
            vmm_percent: percent(t.vmm_cycles, 1.0),
            half_cpi_percent: percent(extra, 0.5),
            double_cpi_percent: percent(extra, 2.0),
            extra_cycles_per_1000: per_1000(extra, t),
            tlb_misses_per_1000: per_1000(t.tlb_misses(), t),
            refs_per_walk: t.refs_per_walk(),
            exits_per_1000: per_1000(t.all_exits(), t),
            data_percent: at(t.exposed_memory_cycles() as f64 - walks as f64 - frames, 1.0),
            frames_percent: at(frames, 1.0),
            low_percent: (low - error).max(0.0),
            error_points: error,
            high_percent: high + error,
        }
    }
}

/// The core that a run's figures are of.
#[derive(Debug, Clone, Copy)]
pub struct Core<'a> {
    /// The clock, Hz.
    pub frequency_hz: u64,
    /// Cycles per instruction of the ideal run, waits for data left out.
    pub base_cpi: f64,
    /// What the core hides of waits; none where no data caches were simulated.
    pub caches: Option<&'a CacheFacts>,
}

impl Core<'_> {
    /// The core of a run.
    pub fn of(outcome: &Outcome) -> Core<'_> {
        Core {
            frequency_hz: outcome.frequency_hz,
            base_cpi: outcome.base_cpi,
            caches: outcome.caches.as_ref(),
        }
    }
}

/// Cycles of the whole run: as stated, and at both ends of the band: a core that hides nothing and one that
/// hides all that its overlaps allow; without data caches, double and half the assumed cycles per
/// instruction.
pub(crate) fn times(t: &Sample, core: &Core<'_>) -> [f64; 3] {
    let cpi = core.base_cpi;
    let stated = t.ideal_cycles(cpi) + t.extra_cycles() as f64;
    let [nothing, all] = match core.caches {
        Some(f) => [(1.0, 1.0), (f.data_overlap, f.walk_overlap)].map(|(data, walk)| {
            let (extra, ideal) = at_overlaps(t, cpi, data, walk);
            extra + ideal
        }),
        None => [2.0, 0.5].map(|factor| t.ideal_cycles(cpi * factor) + t.extra_cycles() as f64),
    };
    [stated, nothing, all]
}

/// Half the width of the 95 % interval around the configuration's extra cycles.
pub(crate) fn error_cycles(config: &ConfigOutcome) -> f64 {
    let windows = config.estimate.and_then(|e| e.half_width_cycles);
    let caches = config.cache_error.map(|e| e.half_width_extra_cycles);
    [windows, caches].into_iter().flatten().fold(0.0, f64::hypot)
}

/// The overhead if the core hid nothing, and if it hid all that its overlaps allow, dependent work
/// included; the lower first.
fn band(t: &Sample, base_cpi: f64, caches: &CacheFacts) -> (f64, f64) {
    let overhead = |data_overlap: f64, walk_overlap: f64| {
        let (extra, ideal) = at_overlaps(t, base_cpi, data_overlap, walk_overlap);
        if ideal == 0.0 { 0.0 } else { 100.0 * extra / ideal }
    };
    let (nothing, all) = (overhead(1.0, 1.0), overhead(caches.data_overlap, caches.walk_overlap));
    (nothing.min(all), nothing.max(all))
}

/// Cycles beyond the ideal run, and the ideal run's, if every wait for data and every walk is shorter by
/// these factors.
pub(crate) fn at_overlaps(t: &Sample, base_cpi: f64, data_overlap: f64, walk_overlap: f64) -> (f64, f64) {
    let waits = t.ideal_stall_cycles as f64 / data_overlap;
    let data = t.data_stall_cycles as f64 / data_overlap - waits;
    let walks = t.walk_cycles as f64 / walk_overlap;
    (t.vmm_cycles as f64 + (walks + data).max(0.0), t.executing_cycles(base_cpi) + waits)
}

fn per_1000(n: u64, sample: &Sample) -> f64 {
    if sample.instructions == 0 {
        return 0.0;
    }
    1000.0 * n as f64 / sample.instructions as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const CACHES: CacheFacts = CacheFacts { simulated_classes: 8, data_overlap: 4.0, walk_overlap: 2.0 };

    fn core(base_cpi: f64, caches: Option<&CacheFacts>) -> Core<'_> {
        Core { frequency_hz: 1000, base_cpi, caches }
    }

    #[test]
    fn the_band_spans_a_core_that_hides_nothing_and_one_that_hides_all() {
        let total = Sample {
            instructions: 1000,
            walk_cycles: 600,
            walk_hidden_cycles: 200,
            data_stall_cycles: 1000,
            data_hidden_cycles: 300,
            ideal_stall_cycles: 1000,
            ideal_hidden_cycles: 300,
            frames_stall_cycles: 1000,
            frames_hidden_cycles: 300,
            vmm_cycles: 100,
            ..Sample::default()
        };
        let f = Figures::of_total(&total, &core(1.0, Some(&CACHES)), 0.0);
        // Nothing hidden: 700 of 2000. All: 100 + 300 of 1250. As stated: 100 + 400 of 1700.
        assert_eq!(f.overhead_percent, 100.0 * 500.0 / 1700.0);
        assert_eq!((f.low_percent, f.high_percent), (f.overhead_percent, 35.0));
        // 2200, 2700 and 1650 cycles at 1 kHz.
        assert_eq!((f.seconds, f.low_seconds, f.high_seconds), (2.2, 1.65, 2.7));
        let wide = Figures::of_total(&total, &core(1.0, Some(&CACHES)), 680.0);
        assert_eq!((wide.low_percent, wide.high_percent), (0.0, 75.0));
        let overlap = CacheFacts { walk_overlap: 1.0, ..CACHES };
        let f = Figures::of_total(&total, &core(1.0, Some(&overlap)), 0.0);
        assert_eq!((f.low_percent, f.high_percent), (f.overhead_percent, 56.0));
        assert_eq!(f.data_percent, 0.0);
    }

    proptest! {
        #[test]
        fn the_parts_sum_to_the_overhead(values in proptest::collection::vec(0u64..1 << 40, Sample::COUNTERS.len())) {
            let total = Sample::from_values(values.try_into().unwrap());
            let f = Figures::of_total(&total, &core(0.7, Some(&CACHES)), 0.0);
            let parts = f.walk_percent + f.data_percent + f.frames_percent + f.vmm_percent;
            prop_assert!((parts - f.overhead_percent).abs() <= 1e-9 * (1.0 + f.overhead_percent), "{f:?}");
        }
    }

    #[test]
    fn waits_for_frames_are_no_part_of_those_for_data() {
        let total = Sample {
            instructions: 1000,
            data_stall_cycles: 700,
            data_hidden_cycles: 100,
            frames_stall_cycles: 400,
            frames_hidden_cycles: 50,
            ideal_stall_cycles: 300,
            ideal_hidden_cycles: 100,
            ..Sample::default()
        };
        let f = Figures::of_total(&total, &core(0.8, Some(&CACHES)), 0.0);
        assert_eq!((f.overhead_percent, f.data_percent, f.frames_percent), (40.0, 25.0, 15.0));
    }

    #[test]
    fn without_data_caches_the_band_is_that_of_double_and_half_the_cpi() {
        let total = Sample { instructions: 1000, walk_cycles: 100, ..Sample::default() };
        let f = Figures::of_total(&total, &core(1.0, None), 0.0);
        assert_eq!((f.low_percent, f.overhead_percent, f.high_percent), (5.0, 10.0, 20.0));
    }
}
