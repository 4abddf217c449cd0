// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the daemon's decisions with those of `bifold policy replay` over the daemon's recording.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::script::configuration;
use crate::lab::beside;

/// What both say of a decision.
type Decision = [String; 4];

fn decision(row: &Value, keys: [&str; 4]) -> Decision {
    keys.map(|key| row[key].as_str().map_or_else(|| row[key].to_string(), String::from))
}

/// Differences in words, and the number of decisions compared.
pub fn differences(recording: &str, rows: &[Value]) -> Result<(Vec<String>, usize)> {
    let folder = tempdir()?;
    let path = |name: &str| folder.join(name);
    std::fs::write(path("vms.jsonl"), recording)?;
    std::fs::write(path("bifold.toml"), configuration(&path("none.jsonl")))?;
    let mut replay = Command::new(beside("bifold")?);
    replay
        .args(["policy", "replay", "--format", "json", "--config"])
        .arg(path("bifold.toml"))
        .arg(path("vms.jsonl"));
    let output = replay.output().context("running bifold policy replay");
    std::fs::remove_dir_all(&folder)?;
    let output = output?;
    ensure!(output.status.success(), "the replay: {}", String::from_utf8_lossy(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).context("the replay's JSON")?;
    let mut off_line: BTreeMap<String, Vec<Decision>> = BTreeMap::new();
    for one in document["replays"].as_array().context("no replays")? {
        let decisions = one["decisions"].as_array().into_iter().flatten();
        let all = decisions.map(|d| decision(d, ["time", "mode", "verdict", "why"])).collect();
        off_line.insert(one["name"].as_str().unwrap_or_default().into(), all);
    }
    let mut differences = Vec::new();
    let mut compared = 0;
    for (name, replayed) in &off_line {
        let of_guest = rows.iter().filter(|r| r["name"] == **name && r.get("wants").is_some());
        let live: Vec<Decision> =
            of_guest.map(|r| decision(r, ["time", "wants", "verdict", "why"])).collect();
        if live.len() != replayed.len() {
            differences.push(format!("{name}: {} decisions live, {} replayed", live.len(), replayed.len()));
        }
        let pairs = live.iter().zip(replayed).filter(|(a, b)| a != b);
        differences.extend(pairs.map(|(a, b)| format!("{name}: live {a:?}, replayed {b:?}")));
        compared += live.len().min(replayed.len());
    }
    Ok((differences, compared))
}

/// A new folder for the files of a replay.
fn tempdir() -> Result<std::path::PathBuf> {
    let folder = std::env::temp_dir().join(format!("bifold-live-{}", std::process::id()));
    std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}
