// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-noise`: noise files.

use bifold_noise::sim::{Collective, LogGp, Noise, NoiseCase, simulate};
use bifold_noise::{Interruption, Trace};
use std::sync::Arc;

/// A noise file: an error of one line, or sorted interruptions that can be written, read and simulated.
pub fn noise_file(data: &[u8]) {
    let trace = match Trace::read(data) {
        Ok(trace) => trace,
        Err(e) => {
            let text = e.to_string();
            assert!(text.len() < 1000 && !text.contains(char::is_control), "{text}");
            return;
        }
    };
    let pairs = trace.interruptions.windows(2);
    assert!(pairs.into_iter().all(|p| p[0].end() <= p[1].start), "{trace:?}");
    assert!(trace.interruptions.last().map_or(0.0, Interruption::end) <= trace.duration);
    let again = Trace::read(trace.text("again").as_bytes()).expect("what was written can be read");
    assert_eq!(again.interruptions.len(), trace.interruptions.len());
    let noise = Noise::Recorded(Arc::new(vec![trace]));
    if noise.check().is_ok() {
        let (collective, cost) = (Collective::Dissemination, LogGp::default());
        let case = NoiseCase {
            ranks: 5,
            grain: 1e4,
            collective,
            cost,
            noise,
            coscheduled: false,
            steps: 3,
            seed: 1,
            until: None,
        };
        let found = simulate(&case);
        assert!(found.step_ns >= found.quiet_step_ns && found.step_ns.is_finite(), "{found:?}");
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::bytes;
    use super::*;
    use proptest::prelude::*;

    /// Lines that are nearly those of a noise file.
    fn lines() -> impl Strategy<Value = String> {
        let number = prop_oneof![
            4 => (0u64..100_000).prop_map(|n| n.to_string()),
            1 => any::<f64>().prop_map(|n| n.to_string()),
            1 => prop::sample::select(vec!["-1", "NaN", "inf", "1e15", "1e-300", "", "x", "0.5"]).prop_map(String::from),
        ];
        let end = prop::sample::select(vec!["", "\tirq:timer", " \u{e9}", "\r", "\t\u{1b}[2J"]);
        let line = prop_oneof![
            6 => (0u64..5_000, 0u64..900, end).prop_map(|(gap, n, e)| format!("+{gap}\t{n}{e}")),
            1 => (number.clone(), number.clone()).prop_map(|(a, b)| format!("{a} {b}")),
            1 => number.prop_map(|n| format!("# duration_ns: {n}")),
        ];
        proptest::collection::vec(line, 0..40).prop_map(|lines| {
            let mut now = 0;
            let mut text = String::new();
            for line in lines {
                match line.strip_prefix('+').and_then(|l| l.split_once('\t')) {
                    Some((gap, rest)) => {
                        now += 1000 + gap.parse::<u64>().unwrap();
                        text += &format!("{now}\t{rest}\n");
                    }
                    None => text += &format!("{line}\n"),
                }
            }
            text
        })
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_noise_file_or_an_error(data in bytes()) {
            noise_file(&data);
        }

        #[test]
        fn nearly_right_lines_are_a_noise_file_or_an_error(text in lines()) {
            noise_file(text.as_bytes());
        }
    }
}
