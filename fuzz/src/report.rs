// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-report`: results to compare.

use bifold_report::diff::{Diff, Side};
use bifold_report::{Baseline, Format};

/// A result: an error of one line, or a side that equals itself.
pub fn result(data: &[u8]) {
    match Side::from_json("fuzz", data) {
        Err(e) => {
            let text = e.to_string();
            assert!(
                text.starts_with("fuzz") && text.len() < 40_000 && !text.contains(char::is_control),
                "{text}"
            );
        }
        Ok(side) => {
            // A baseline is of one run, and also reads costs by place.
            let _ = Baseline::from_json("fuzz", data);
            let diff = Diff::new(side.clone(), side).expect("a side has its own configurations");
            let table = diff.render(Format::Table).expect("a table is only text");
            assert!(table.contains("A and B agree in every counter."), "{table}");
            assert!(!table.chars().any(|c| c.is_control() && c != '\n'));
            diff.render(Format::Json).expect("all values are numbers and texts");
            diff.render_html().expect("the template takes any text");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{bytes, leaves, number};
    use super::*;
    use bifold_model::Sample;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    /// The fields of a result that a diff reads, for one run or for two.
    fn small_result(several: bool) -> Value {
        let total: serde_json::Map<String, Value> = Sample::COUNTERS
            .iter()
            .enumerate()
            .map(|(i, c)| (c.name.into(), (1000 * i + 7).into()))
            .collect();
        let config = |mode: &str| json!({ "name": mode, "mode": mode, "host_page": "4K", "total": total });
        let one = json!({
            "schema": "bifold.compare/2", "bifold": "0", "input": { "kind": "guest" }, "partial": null,
            "guest": { "command": ["a", "b c"], "timing": "exact", "vcpus": 1, "kpti": true, "thp": "never",
                       "memory_mib": 256, "root": "host", "kernel": "6.1", "qemu": "10" },
            "checks": { "made": 3, "failed": 0 },
            "outcome": { "profile": "p", "frequency_hz": 1_000_000_000, "base_cpi": 0.7, "seed": 1,
                         "config_hash": "1", "input_hash": "2", "interval_cycles": 1000,
                         "configs": [config("native"), config("nested")] },
        });
        if several { json!({ "schema": "bifold.runs/2", "runs": [one, one] }) } else { one }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_result_or_refused(
            data in bytes(), text in "\\PC{0,200}",
            changes in prop::collection::vec((any::<prop::sample::Index>(), number()), 1..4),
            word in "\\PC{0,20}|\u{1b}\\[31m", at in any::<prop::sample::Index>(), byte in any::<u8>(),
            several in any::<bool>(),
        ) {
            result(&data);
            result(text.as_bytes());
            let good = small_result(several);
            assert!(super::Side::from_json("good", good.to_string().as_bytes()).is_ok());
            let mut document = good.clone();
            for (at, new) in changes {
                let mut all = leaves(&mut document);
                let i = at.index(all.len());
                *all[i] = if new.as_u64() == Some(0) { word.clone().into() } else { new };
            }
            result(document.to_string().as_bytes());
            let mut bytes = good.to_string().into_bytes();
            let i = at.index(bytes.len());
            bytes[i] = byte;
            result(&bytes);
            result(&bytes[..i]);
        }
    }
}
