// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-trial`: files of experiments.

/// The file of an experiment: an error that names file and field, or a plan with every guest of the file.
pub fn experiment(data: &[u8]) {
    use bifold_trial::experiment::{Rate, Spec};
    let Ok(text) = std::str::from_utf8(data) else { return };
    let _ = Rate::parse(text).map(Rate::value);
    let path = std::path::Path::new("fuzz.toml");
    match Spec::parse(path, text) {
        Err(e) => assert!(e.to_string().starts_with("fuzz.toml: ")),
        Ok(spec) => {
            let guests: u32 = spec.guests.iter().map(|g| g.count).sum();
            if let Ok(plan) = spec.plan(path, Rate { of: 1, parts: 2 }, &[]) {
                assert_eq!(plan.guests.len() as u32, guests);
                assert!(!plan.cases.is_empty());
            }
        }
    }
}

/// The file of an experiment under memory pressure: an error that names file and field, or all guests of the
/// file.
pub fn pressure(data: &[u8]) {
    use bifold_trial::pressure::Spec;
    let Ok(text) = std::str::from_utf8(data) else { return };
    let path = std::path::Path::new("fuzz.toml");
    match Spec::parse(path, text) {
        Err(e) => assert!(e.to_string().starts_with("fuzz.toml: ")),
        Ok(spec) => {
            let guests: u32 = spec.guests.iter().map(|g| g.count).sum();
            assert_eq!(spec.plan().len() as u32, guests);
            assert!(spec.only(path, &[]).is_ok_and(|s| !s.cases.is_empty()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EXPERIMENTS: [&str; 4] = [
        include_str!("../../experiments/share/database.toml"),
        include_str!("../../experiments/share/ksm-settings.toml"),
        include_str!("../../experiments/share/mixed.toml"),
        include_str!("../../experiments/share/synthetic.toml"),
    ];

    const UNDER_PRESSURE: [&str; 2] = [
        include_str!("../../experiments/reclaim/small.toml"),
        include_str!("../../experiments/reclaim/turns.toml"),
    ];

    /// The text with another value in one of its lines.
    fn changed(good: &str, line: usize, value: &str) -> String {
        let mut lines: Vec<&str> = good.lines().collect();
        let at = line % lines.len();
        let changed = lines[at].split_once('=').map_or(value.to_owned(), |(k, _)| format!("{k}= {value}"));
        lines[at] = &changed;
        lines.join("\n")
    }

    proptest! {
        #[test]
        fn any_text_is_an_experiment_or_refused(
            text in "\\PC{0,200}", value in "(\\PC{0,30}|-?[0-9]{1,20}|1/[0-9]{1,5}|\"[a-z]{0,9}\")", line in 0usize..400,
        ) {
            for body in [experiment, pressure] {
                body(text.as_bytes());
                body(value.as_bytes());
            }
            for good in EXPERIMENTS {
                experiment(good.as_bytes());
                experiment(changed(good, line, &value).as_bytes());
            }
            for good in UNDER_PRESSURE {
                pressure(good.as_bytes());
                pressure(changed(good, line, &value).as_bytes());
            }
        }
    }
}
