// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bodies of the fuzz targets: one function for each parser of data that others wrote.
//!
//! A body takes arbitrary bytes and panics only where Bifold has a bug: the code under test panics, or it
//! breaks a promise that the body checks. Each module has the bodies for one crate. The bodies are plain
//! functions, so property tests beside them run on a stable compiler, in `make test` with all others. Each
//! has a target of the same name in `fuzz_targets`:
//!
//! ```text
//! cargo +nightly fuzz run --features libfuzzer recording
//! ```
#![forbid(unsafe_code)]

pub mod attribute;
pub mod daemon;
pub mod host;
pub mod import;
#[cfg(test)]
mod inputs;
pub mod live;
pub mod model;
pub mod noise;
pub mod place;
pub mod placed;
pub mod policy;
pub mod reclaim;
pub mod report;
pub mod share;
pub mod sweep;
pub mod topology;
pub mod trace;
pub mod trial;

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;
    use std::path::{Path, PathBuf};

    /// Files of a folder by their names without extension.
    fn texts(dir: PathBuf) -> BTreeMap<String, String> {
        let files = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        files
            .map(|p| (p.file_stem().unwrap().to_str().unwrap().into(), fs::read_to_string(&p).unwrap()))
            .collect()
    }

    #[test]
    fn every_body_has_a_target_of_its_name() {
        let fuzz = Path::new(env!("CARGO_MANIFEST_DIR"));
        let calls: BTreeMap<String, String> = texts(fuzz.join("src"))
            .iter()
            .flat_map(|(module, text)| text.lines().map(move |line| (module, line)))
            .filter_map(|(module, line)| {
                Some((module, line.strip_prefix("pub fn ")?.split_once("(data: &[u8])")?.0))
            })
            .map(|(module, body)| (body.into(), format!("bifold_fuzz::{module}::{body}(data)")))
            .collect();
        let targets = texts(fuzz.join("fuzz_targets"));
        assert_eq!(targets.keys().collect::<Vec<_>>(), calls.keys().collect::<Vec<_>>());
        for (target, call) in &calls {
            assert!(targets[target].contains(call), "{target} does not call {call}");
        }
        let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
        let mut built: Vec<&str> = manifest
            .split("[[bin]]\nname = \"")
            .skip(1)
            // Without the feature, a plain build has no libFuzzer to link.
            .filter(|bin| bin.split("\n\n").next().unwrap().contains("required-features = [\"libfuzzer\"]"))
            .map(|bin| bin.split('"').next().unwrap())
            .collect();
        built.sort();
        assert_eq!(built, calls.keys().collect::<Vec<_>>());
    }
}
