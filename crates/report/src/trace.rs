// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The timeline as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing, in the Trace Event Format:
//! counters over the seconds of the ideal run.

use crate::{Comparison, RenderError};
use bifold_model::Sample;
use serde_json::{Value, json};

/// Microseconds in a second: the unit of time of the format.
const MICROS: f64 = 1e6;

impl Comparison {
    /// A process per configuration, each with tracks of its overhead (walks, exits and waits for data,
    /// percent), and of TLB misses and exits per millisecond of the ideal run, interval by interval.
    ///
    /// # Errors
    /// If JSON cannot be made.
    pub fn render_trace(&self) -> Result<String, RenderError> {
        let o = &self.outcome;
        let mut events = Vec::new();
        for (process, config) in o.configs.iter().enumerate() {
            let pid = process + 1;
            let named =
                |what: &str, args: Value| json!({ "ph": "M", "pid": pid, "name": what, "args": args });
            let name = format!("{}: {}", config.config.name(), self.meta.what());
            events.push(named("process_name", json!({ "name": name })));
            events.push(named("process_sort_index", json!({ "sort_index": pid })));
            let mut counter = |name: &str, ts: f64, args: Value| {
                events.push(json!({ "ph": "C", "pid": pid, "name": name, "ts": ts, "args": args }));
            };
            for (start, sample) in o.interval_starts.iter().zip(&config.intervals) {
                let ts = MICROS * *start as f64 / o.frequency_hz.max(1) as f64;
                let [overhead, misses, exits] = self.counters(sample);
                counter("overhead, %", ts, overhead);
                counter("TLB misses /ms", ts, misses);
                counter("exits /ms", ts, exits);
            }
        }
        let of =
            json!({ "bifold": self.meta.bifold, "profile": o.profile, "time": "seconds of the ideal run" });
        Ok(serde_json::to_string(
            &json!({ "traceEvents": events, "displayTimeUnit": "ms", "otherData": of }),
        )? + "\n")
    }

    /// The values of an interval.
    fn counters(&self, s: &Sample) -> [Value; 3] {
        let o = &self.outcome;
        let ideal = s.ideal_cycles(o.base_cpi).max(1.0);
        let percent = |cycles: f64| 100.0 * cycles / ideal;
        let per_ms = |n: u64| n as f64 / (1000.0 * ideal / o.frequency_hz.max(1) as f64);
        let walks = s.exposed_walk_cycles() as f64;
        let data = (s.exposed_memory_cycles() as f64 - walks).max(0.0);
        [
            json!({ "walks": percent(walks), "exits": percent(s.vmm_cycles as f64), "data": percent(data) }),
            json!({ "4 KB": per_ms(s.tlb_misses_4k), "2 MB": per_ms(s.tlb_misses_2m), "1 GB": per_ms(s.tlb_misses_1g) }),
            json!({ "exits": per_ms(s.all_exits()) }),
        ]
    }
}
