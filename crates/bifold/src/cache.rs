// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold cache`: the kept boots of guests.

use crate::console::{duration, print};
use crate::status::{self, Status};
use crate::words;
use bifold_guest::boots::{self, KeptBoot, MOST_BYTES};
use bifold_report::Format;
use clap::{Args, Subcommand};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;
use std::time::{SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  bifold cache list
  bifold cache clear";

/// List and remove kept boots of guests
///
/// The first run with a kernel, a QEMU and options of the guest boots the guest, and keeps its state in
/// ~/.cache/bifold/boots, or in $XDG_CACHE_HOME/bifold/boots. Later runs begin from there in a fraction of a
/// second. A kept boot has the kernel, its modules and init in it, and nothing of the command: neither its
/// environment nor its input. If any of what the boot has read changes, the guest boots again. All kept boots
/// together take at most 2 GiB; the one used longest ago is removed first.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true,
          after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct CacheArgs {
    #[command(subcommand)]
    verb: CacheVerb,
}

#[derive(Debug, Subcommand)]
enum CacheVerb {
    List(ListArgs),
    /// Remove all kept boots
    ///
    /// Runs that have begun from one go on. The next run boots its guest.
    Clear,
}

/// List the kept boots, the last used first
#[derive(Debug, Args)]
struct ListArgs {
    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json")]
    format: Format,
}

/// Name and version of the document.
const SCHEMA: &str = "bifold.cache/1";

/// What `bifold cache list --format json` writes: the kept boots of guests.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// What all kept boots together take at most. Unit: bytes.
    most_bytes: u64,
    /// The kept boots, the last used first.
    boots: Vec<Row<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct Row<'a> {
    /// The guest, in words.
    guest: &'a str,
    /// Size on the disk. Unit: bytes.
    bytes: u64,
    /// When a run last began from the boot. Unit: s since 1970.
    last_used_unix_seconds: u64,
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

/// Carries out a verb.
pub fn run(args: CacheArgs) -> anyhow::Result<Status> {
    match args.verb {
        CacheVerb::List(args) => {
            let all = boots::list(&boots::folder()?)?;
            print(&match args.format {
                Format::Json => json(&all)?,
                _ => table(&all, SystemTime::now()),
            })?;
        }
        CacheVerb::Clear => {
            let removed = boots::clear(&boots::folder()?)?;
            print(&format!("removed {}\n", total(&removed)))?;
        }
    }
    Ok(Status::Done)
}

fn mib(bytes: u64) -> String {
    format!("{} MiB", bytes.div_ceil(1 << 20))
}

fn total(all: &[KeptBoot]) -> String {
    let plural = if all.len() == 1 { "" } else { "s" };
    format!("{} kept boot{plural}, {}", all.len(), mib(all.iter().map(|b| b.bytes).sum()))
}

fn table(all: &[KeptBoot], now: SystemTime) -> String {
    let mut out = String::new();
    if !all.is_empty() {
        let _ = writeln!(out, "{:>9}  {:>13}  guest", "on disk", "last used");
    }
    for boot in all {
        let seconds = now.duration_since(boot.used).map_or(0.0, |d| d.as_secs_f64());
        let used = format!("{} ago", duration(seconds));
        let _ = writeln!(out, "{:>9}  {:>13}  {}", mib(boot.bytes), used, boot.guest);
    }
    out + &format!("{} of at most {}\n", total(all), mib(MOST_BYTES))
}

fn json(all: &[KeptBoot]) -> anyhow::Result<String> {
    let boots = all.iter().map(|b| Row {
        guest: &b.guest,
        bytes: b.bytes,
        last_used_unix_seconds: b.used.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
    });
    let (schema, bifold) = (SCHEMA, bifold_base::version());
    let document = Document { schema, bifold, most_bytes: MOST_BYTES, boots: boots.collect() };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_table_says_what_is_kept_and_how_much() {
        let now = UNIX_EPOCH + Duration::from_secs(1_000_000);
        let boot = |guest: &str, bytes, ago| KeptBoot {
            guest: guest.into(),
            bytes,
            used: now - Duration::from_secs(ago),
        };
        let all = [boot("Linux 6.1, 2048 MiB", 93 << 20, 5), boot("Linux 6.1, 512 MiB", 1, 300_000)];
        assert_eq!(
            table(&all, now),
            "  on disk      last used  guest\n   93 MiB        5 s ago  Linux 6.1, 2048 MiB\n    1 MiB       83 h ago  \
             Linux 6.1, 512 MiB\n2 kept boots, 94 MiB of at most 2048 MiB\n"
        );
        assert_eq!(table(&[], now), "0 kept boots, 0 MiB of at most 2048 MiB\n");
        let v: serde_json::Value = serde_json::from_str(&json(&all).unwrap()).unwrap();
        assert_eq!(
            (v["boots"][1]["last_used_unix_seconds"].as_u64(), v["most_bytes"].as_u64()),
            (Some(700_000), Some(2 << 30))
        );
    }
}
