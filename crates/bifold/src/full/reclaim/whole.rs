// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whole runs, of which every use of a page is seen: what `reclaim show` and `reclaim cost` have in common.

use crate::compare::{GuestArgs, ProgramArgs, Source, source};
use crate::console::{Named, named};
use crate::run::{self, ModelArgs, Notes, ProfileArg};
use crate::usage::UsageError;
use crate::words;
use bifold_model::{CacheMode, VmState};
use clap::Args;
use std::path::PathBuf;

/// Bytes of a frame.
pub const FRAME: u64 = 4096;
/// The smallest size of memory that counts are exact for, frames.
pub const LEAST: u64 = bifold_reclaim::FRONT as u64;

/// A run and its source.
#[derive(Debug, Args)]
pub struct RunArgs {
    /// A recording made by `bifold record`
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,

    /// A command or a generator.
    #[command(flatten)]
    pub program: ProgramArgs,

    /// No progress and no notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,

    /// The profile.
    #[command(flatten)]
    pub named: ProfileArg,

    /// Change one value of the profile (repeatable)
    #[arg(long, value_name = "KEY=VALUE", help_heading = "Model")]
    pub set: Vec<String>,

    /// The guest in which the command runs.
    #[command(flatten)]
    pub guest: GuestArgs,
}

/// A size of memory, in frames.
pub fn size(text: &str) -> Result<u64, String> {
    let bounds = LEAST * FRAME..=1 << 41;
    words::size_within(text, 1, bounds, "from 1M to 2T").map(|bytes| bytes / FRAME)
}

impl RunArgs {
    fn model(&self) -> ModelArgs {
        // A host that takes memory back has given what the guest touches, and no more.
        let vm = VmState::Started;
        ModelArgs { vm, ..ModelArgs::of_profile(self.named.clone(), self.set.clone()) }
    }

    /// The files that are read.
    pub fn inputs(&self) -> Vec<Named<'_>> {
        let inputs = [
            ("the recording", self.file.as_deref()),
            ("the profile", self.named.file()),
            ("the kernel", self.guest.kernel.as_deref()),
        ];
        named(inputs)
    }

    /// The run, without data caches. Refuses what has only a part of the uses of pages.
    pub fn plan(&self, verb: &'static str) -> anyhow::Result<run::Plan> {
        let region = &self.guest.region;
        let every = "every use of a page counts, and a sampled run has only some";
        UsageError::conflict_if(region.sample.is_some(), "--sample", format!("cannot be: {every}"))?;
        let problem = "may record several regions, and the figures are of one: add --regions 1";
        UsageError::conflict_if(region.from_marker && region.regions != Some(1), "--from-marker", problem)?;
        UsageError::conflict_if(self.guest.keep.is_some(), "--keep", "is for `compare` and `record`")?;
        let model = self.model();
        let profile = model.profile()?;
        let ProgramArgs { command, generate } = &self.program;
        let program = ProgramArgs { command: command.clone(), generate: generate.clone() };
        let reader = Source::OfReader(verb, self.file.clone());
        let source = source(reader, program, self.guest.clone(), &profile, model.seed)?;
        let header = source.header().source;
        if header.sample.is_some() {
            anyhow::bail!("this recording is of a sampled run: {every}");
        }
        if bifold_trace::several_regions(header.region.as_deref()) {
            anyhow::bail!(
                "this recording may have several regions, and the figures are of one: record with --regions 1"
            );
        }
        let mut plan = run::Plan::new(source, profile, &model, Notes::new(self.quiet, false))?;
        plan.caches = CacheMode::Off;
        Ok(plan)
    }
}
