// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `timing published`: run times that others measured on known machines, beside what the model predicts for
//! them.

mod fork;
mod gups;
mod lmbench;
mod remote;

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use bifold_base::markdown;

use crate::{machine, set};

/// What is to be done.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these parts: gups (vMitosis), lmbench and fork (PVM)
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["gups", "lmbench", "fork"], default_value = "gups,lmbench,fork")]
    parts: Vec<String>,
    /// Sizes of the table of GUPS, largest last: the figures of the last one are held against the published
    /// ones
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1g,4g,16g,64g")]
    sizes: Vec<String>,
    /// Updates that are measured, in millions; as many come before them
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    updates: u64,
    /// Calls or faults of each LMbench loop; of forks, a five-hundredth
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(10_000..=100_000_000))]
    calls: u64,
    /// Folder with the published figures
    #[arg(long, value_name = "DIR", default_value = "evidence/published")]
    published: PathBuf,
    /// Folder with the sources of the LMbench loops
    #[arg(long, value_name = "DIR", default_value = "evidence/time")]
    set: PathBuf,
    /// Small sizes: shows that everything runs; its figures say nothing
    #[arg(long)]
    quick: bool,
    /// Write the page to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    model: crate::ModelArgs,
}

/// A target: what is compared, published, predicted, and whether it is met.
#[derive(Debug, Clone, PartialEq)]
struct Target {
    what: String,
    published: f64,
    predicted: f64,
    /// What is asked for, in words.
    asked: String,
    met: bool,
}

impl Target {
    /// Within `percent` of the published figure.
    fn relative(what: &str, published: f64, predicted: f64, percent: f64) -> Target {
        let met = (predicted / published - 1.0).abs() <= percent / 100.0;
        Target { what: what.into(), published, predicted, asked: format!("within {percent} %"), met }
    }

    /// Within `distance` of the published figure.
    fn absolute(what: &str, published: f64, predicted: f64, distance: f64) -> Target {
        let met = (predicted - published).abs() <= distance;
        Target { what: what.into(), published, predicted, asked: format!("within {distance}"), met }
    }

    /// Within a factor of the published figure.
    fn factor(what: &str, published: f64, predicted: f64, factor: f64) -> Target {
        let ratio = predicted / published;
        let met = ratio <= factor && ratio >= 1.0 / factor;
        Target { what: what.into(), published, predicted, asked: format!("within a factor of {factor}"), met }
    }
}

/// The table of targets.
fn table(targets: &[Target]) -> String {
    let columns = markdown::table::<Target>()
        .left("figure", |t| t.what.clone())
        .right("published", |t| format!("{:.2}", t.published))
        .right("predicted", |t| format!("{:.2}", t.predicted))
        .right("difference %", |t| format!("{:+.1}", 100.0 * (t.predicted / t.published - 1.0)))
        .left("asked", |t| t.asked.clone())
        .left("", |t| crate::met(t.met).into());
    columns.of(targets)
}

/// The directory of runs, and the program with LMbench's loops in it.
fn syscalls(args: &Args) -> Result<(PathBuf, PathBuf)> {
    let work = args.model.work("published")?.canonicalize()?;
    let program = work.join("syscalls");
    set::compile(&args.set.join("syscalls.c"), &program)?;
    Ok((work, program))
}

fn read<T: serde::de::DeserializeOwned>(args: &Args, name: &str) -> Result<T> {
    let path = args.published.join(name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    toml::from_str(&text).with_context(|| path.display().to_string())
}

/// Runs the whole; false if a target is missed.
pub fn run(mut args: Args) -> Result<bool> {
    if args.quick {
        args.sizes = vec!["64m".into(), "256m".into()];
        args.updates = 1;
        args.calls = 10_000;
    }
    let mut page = format!(
        "# Times that others published, and what the model predicts\n\nMade by `make published-times` on {}.\n\n",
        machine::date()
    );
    if args.quick {
        page += "**A trial run with small inputs: the figures say nothing.**\n\n";
    }
    let mut met = true;
    for part in &args.parts {
        met &= match part.as_str() {
            "gups" => gups::run(&args, &mut page)?,
            "fork" => fork::run(&args, &mut page)?,
            _ => lmbench::run(&args, &mut page)?,
        };
    }
    crate::deliver(args.output.as_deref(), &page)?;
    Ok(met)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_up_to_its_distance() {
        assert!(Target::relative("r", 1.94, 2.2, 15.0).met);
        assert!(!Target::relative("r", 1.94, 1.6, 15.0).met);
        assert!(Target::absolute("w", 0.84, 0.75, 0.1).met);
        assert!(!Target::absolute("w", 0.84, 0.95, 0.1).met);
        assert!(Target::factor("f", 1.0, 2.0, 2.0).met && Target::factor("f", 1.0, 0.5, 2.0).met);
        assert!(!Target::factor("f", 1.0, 2.1, 2.0).met && !Target::factor("f", 1.0, 0.4, 2.0).met);
        let text = table(&[Target::relative("r", 2.0, 3.0, 15.0)]);
        assert!(text.ends_with("| +50.0 | within 15 % | MISSED |\n"), "{text}");
    }
}
