// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the tiny VMM's hand-made guests and walks (`lab/tiny-vmm`). Each line of its output is a fact that
//! agrees with the model or does not.

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::{Shared, single, succeeded};
use crate::TINY_VMM;
use crate::lab::job::Job;
use crate::lab::{Output, beside};

pub fn jobs(verb: &str, backing: &str) -> Result<Vec<Job>> {
    let program = beside(TINY_VMM)?.to_string_lossy().into_owned();
    let command = [program.as_str(), verb, "--backing", backing].map(String::from).to_vec();
    Ok(vec![Job::Run { command }])
}

/// The fields that all facts have.
#[derive(Deserialize)]
struct FactFields {
    agree: bool,
    /// Why the fact does not agree, if known.
    #[serde(default)]
    known: Option<String>,
    #[serde(flatten)]
    rest: serde_json::Map<String, Value>,
}

/// The fields of a fact that a message shows.
const SHOWN: [&str; 10] =
    ["config", "guest", "phase", "case", "differ", "predicted", "counted", "extra", "missing", "faults"];
const SHOWN_FACTS: usize = 3;

impl FactFields {
    fn text(&self) -> String {
        let differ = self.rest.get("differ").and_then(Value::as_array).cloned().unwrap_or_default();
        let words = SHOWN.iter().filter_map(|name| {
            Some(match self.rest.get(*name)? {
                Value::String(s) => s.clone(),
                // Only the counts that differ.
                Value::Object(o) => {
                    let counts = differ.iter().filter_map(|d| o.get(d.as_str()?)).map(Value::to_string);
                    format!("{name} {}", counts.collect::<Vec<_>>().join(" "))
                }
                other => format!("{name} {other}"),
            })
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

pub fn check(_: &Shared, outputs: &[Output]) -> Result<()> {
    let output = single(outputs)?;
    let facts = output
        .done
        .stdout
        .lines()
        .map(|l| serde_json::from_str(l).with_context(|| format!("tiny-vmm said {l:?}")))
        .collect::<Result<Vec<FactFields>>>()?;
    let wrong: Vec<String> =
        facts.iter().filter(|f| !f.agree && f.known.is_none()).map(FactFields::text).collect();
    ensure!(
        wrong.is_empty(),
        "{} of {} facts are not as predicted: {}",
        wrong.len(),
        facts.len(),
        wrong[..wrong.len().min(SHOWN_FACTS)].join("; ")
    );
    succeeded(output)?;
    ensure!(!facts.is_empty(), "tiny-vmm printed no fact");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lab::job::Done;

    #[test]
    fn a_fact_that_does_not_agree_is_told_with_what_differs() {
        let line = r#"{"fact":"phase","guest":"g","phase":"p","config":"nested-4k","agree":false,"differ":["faults"],"predicted":{"faults":3,"read":1},"counted":{"faults":4,"read":1},"exits":{}}"#;
        let fact: FactFields = serde_json::from_str(line).unwrap();
        assert_eq!(fact.text(), r#"nested-4k, g, p, differ ["faults"], predicted 3, counted 4"#);
        let line = r#"{"fact":"walk","config":"shadow-2m","case":"close 4k, load","agree":false,"predicted":[1,2],"extra":["host A L1 0x8"],"faults":0}"#;
        let fact: FactFields = serde_json::from_str(line).unwrap();
        let text = r#"shadow-2m, close 4k, load, predicted [1,2], extra ["host A L1 0x8"], faults 0"#;
        assert_eq!(fact.text(), text);
    }

    #[test]
    fn silence_is_not_success() {
        let lab = crate::lab::Lab::with(bifold_guest::kernel::Kernel {
            image: "/none".into(),
            modules: None,
            version: "none".into(),
        });
        let Ok(lab) = lab else { return eprintln!("skipped: no QEMU") };
        let shared = Shared { lab: &lab, flags: Default::default(), predicted: Default::default() };
        let said = |status, stdout: &str| {
            let done = Done { status, stdout: stdout.into(), stderr: "why\n".into() };
            check(&shared, &[Output { done, ..Output::default() }]).map_err(|e| e.to_string())
        };
        assert_eq!(said(0, "{\"agree\":true}\n"), Ok(()));
        assert_eq!(said(0, ""), Err("tiny-vmm printed no fact".into()));
        assert_eq!(said(77, "{\"agree\":true}\n"), Err("exit status 77: why".into()));
        assert!(said(0, "noise\n").unwrap_err().contains("noise"));
    }
}
