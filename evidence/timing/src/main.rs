// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Holds what the model predicts against times that were measured: on this machine (`timing validate`), in
//! the multi-core thesis (`timing builds`), by vMitosis and PVM (`timing published`).
//!
//! The tool runs `bifold compare` and reads its JSON. Exit status: 0 done, 1 failed, 2 wrong usage, 3 a
//! target was missed.

mod builds;
mod machine;
mod native;
mod predict;
mod process;
mod published;
mod set;
mod stats;
mod validate;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "timing", about = "Holds predicted times against measured ones")]
struct Cli {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Measure programs on 4 KB and on 2 MB pages here, and compare with the model's prediction
    Validate(validate::Args),
    /// Capture the two loads of the multi-core thesis, and compare with its overheads
    Builds(builds::Args),
    /// Predict GUPS of vMitosis and LMbench of PVM, and compare with the published times
    Published(published::Args),
}

/// How the model is run.
#[derive(Debug, clap::Args)]
struct ModelArgs {
    /// The command to run
    #[arg(long, value_name = "FILE")]
    bifold: Option<PathBuf>,
    /// Hardware profile: a built-in name or a TOML file
    #[arg(long, value_name = "NAME|FILE")]
    profile: Option<String>,
    /// Passed on to `bifold compare`: sampled, exact or off
    #[arg(long, value_name = "WORD")]
    caches: Option<String>,
    /// Kill a run or a capture after SECS seconds
    #[arg(long, value_name = "SECS", default_value_t = validate::LIMIT.as_secs(), value_parser = clap::value_parser!(u64).range(1..))]
    limit: u64,
}

impl ModelArgs {
    fn limit(&self) -> Duration {
        Duration::from_secs(self.limit)
    }

    fn model(&self, otherwise: Option<&str>) -> Result<predict::Model> {
        let profile =
            self.profile.as_deref().or(otherwise).context(
                "--profile is missing: `bifold profile measure` writes the profile of this machine",
            )?;
        let bifold = self.bifold.clone().unwrap_or_else(|| target().join("release/bifold"));
        predict::Model::new(&bifold, profile, self.caches.clone(), self.limit())
    }

    /// The folder for programs and what a call leaves behind.
    fn work(&self, name: &str) -> Result<PathBuf> {
        let work = target().join(name);
        std::fs::create_dir_all(&work).with_context(|| work.display().to_string())?;
        Ok(work)
    }
}

fn target() -> PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| "target".into(), PathBuf::from)
}

/// A target's end, in a word.
fn met(met: bool) -> &'static str {
    if met { "met" } else { "MISSED" }
}

/// Whether a figure is within its limit, in a word.
fn yes(within: bool) -> &'static str {
    if within { "yes" } else { "NO" }
}

/// Progress, to standard error.
fn say(text: &str) {
    eprintln!("timing: {text}");
}

/// The page, into a file or to standard output.
fn deliver(path: Option<&Path>, text: &str) -> Result<()> {
    match path {
        None => print!("{text}"),
        Some(path) => {
            std::fs::write(path, text).with_context(|| path.display().to_string())?;
            say(&format!("wrote {}", path.display()));
        }
    }
    Ok(())
}

fn main() -> ExitCode {
    let done = match Cli::parse().verb {
        Verb::Validate(args) => validate::run(args),
        Verb::Builds(args) => builds::run(&args),
        Verb::Published(args) => published::run(args),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(3),
        Err(e) => {
            say(&format!("error: {e:#}"));
            ExitCode::FAILURE
        }
    }
}
