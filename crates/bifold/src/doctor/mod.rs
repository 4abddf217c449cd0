// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold doctor`: shows which verbs work on this machine and what the others lack, and restores KSM's
//! settings after a killed command.
//!
//! [`needs`] lists what each verb needs, [`checks`] checks the machine, [`show`] prints the results.

mod checks;
pub mod needs;
mod show;

use crate::console::print;
use crate::status::{self, Status};
use crate::usage::UsageError;
use crate::{full, words};
use bifold_guest::doctor::Check;
use bifold_host::Host;
use bifold_host::held::Places;
use bifold_host::ksm::{left_behind, restore_left_behind};
use bifold_report::Format;
use checks::all_checks;
pub use checks::check;
use clap::Args;
use needs::{Finding, NamedNeeds, Works, is_or_begins_with};
pub use show::{LeftOrder, schema};
use show::{json, table};

const EXAMPLES: &str = "\
Examples:
  bifold doctor
  bifold doctor compare && bifold compare -- make -j2
  bifold doctor share run --format json
  sudo bifold doctor --restore";

/// Check which verbs work on this machine, and what the others lack
///
/// For each verb, prints whether it works, works in part or cannot work here. For each missing thing, prints
/// how to get it. Names the VMs whose paging mode KVM would not switch now, and why, and the public holes
/// whose fixes the loaded KVM modules may lack. Changes nothing without --restore.
///
/// With VERB (`compare`, `share run`, or `share` for all its verbs), the exit status is 0 if the verb works
/// in full, and 77 otherwise. Without VERB, the exit status is that of `bifold doctor compare`.
///
/// Verbs that change KSM's settings restore them, even if they are killed. If the verb and its guardian were
/// both killed, a journal is left: doctor reports it, and --restore restores the settings from it. Of orders
/// about guests' memory, doctor names the guests whose memory is not back: `bifold reclaim restore` gives it
/// back.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct DoctorArgs {
    /// Check this verb only: `compare`, `share run`, `share` [default: all verbs]
    #[arg(value_name = "VERB", num_args = 0..=2)]
    pub verb: Vec<String>,

    /// Restore KSM's settings from the journal that a killed command left
    #[arg(long, conflicts_with = "verb")]
    pub restore: bool,

    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json")]
    pub format: Format,
}

/// Runs the checks and prints them. The status is 77 if the verb in question does not work in full.
pub fn run(args: &DoctorArgs) -> anyhow::Result<Status> {
    let host = Host::live();
    if args.restore {
        return restore(&host, &Places::of_ksm());
    }
    let all = all_checks(&host);
    let words = args.verb.join(" ");
    let verbs = needs::all();
    let asked: Vec<&NamedNeeds> = verbs.iter().filter(|v| is_or_begins_with(&v.name, &words)).collect();
    if asked.is_empty() {
        let names: Vec<&str> = verbs.iter().map(|v| v.name.as_str()).collect();
        let problem = format!("there is no such verb to check: use one of {}", names.join(", "));
        return Err(UsageError::value(format!("VERB `{}`", words.escape_debug()), problem).into());
    }
    let findings: Vec<Finding> = asked.iter().map(|v| v.look(&all)).collect();
    let needed: Vec<&Check> = all
        .iter()
        .filter(|c| {
            asked
                .iter()
                .map(|v| v.needs)
                .any(|n| n.checks.contains(&c.name) || n.parts.iter().any(|p| p.0 == c.name))
        })
        .collect();
    let left = left_behind(&host, &Places::of_ksm());
    let orders = full::orders(&host);
    let mut decides = findings.iter().filter(|f| !words.is_empty() || f.verb == "compare");
    let ok = decides.all(|f| f.works == Works::Yes);
    print(&match args.format {
        Format::Json => json(ok, &findings, &needed, &left, &orders)?,
        _ => table(&findings, &needed, &left, &orders),
    })?;
    Ok(if ok { Status::Done } else { Status::Unavailable })
}

fn restore(host: &Host, places: &Places) -> anyhow::Result<Status> {
    print(&match restore_left_behind(host, places)? {
        Some(journal) => format!(
            "KSM's settings, left changed by process {}, are restored: {}\n",
            journal.pid, journal.found
        ),
        None => "no command of Bifold has left KSM's settings changed: nothing was done\n".into(),
    })?;
    Ok(Status::Done)
}

#[cfg(test)]
mod tests;
