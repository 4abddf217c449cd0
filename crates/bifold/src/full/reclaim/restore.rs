// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim restore`: gives back what orders took and left, and the guardian, which does the same for
//! an order that was killed.

use crate::console::print;
use crate::status::{self, Status};
use crate::usage::UsageError;
use crate::words::MIB;
use bifold_host::held::{self, HeldError, Stood};
use bifold_host::{Host, printable, word_rank};
use bifold_live::order::{Back, OrderError, Record, WHAT, folder, records};
use clap::Args;
use signal_hook::{consts::SIGTERM, flag};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  bifold reclaim restore
  bifold reclaim restore web";

/// Give back the memory that orders took and left
///
/// `bifold reclaim set --keep` leaves a guest's size as it is. This verb gives the memory of such guests
/// back, and of those whose order and guardian were killed together. Without VM, of all of them.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct RestoreArgs {
    /// The guest: its process id, or its name
    #[arg(value_name = "VM")]
    vm: Option<String>,

    /// Also where another program has set another size since
    #[arg(long, conflicts_with = "keep")]
    force: bool,

    /// Leave sizes that another program has set since, and forget the order
    #[arg(long)]
    keep: bool,
}

/// The hidden verb of the guardian.
pub const GUARDIAN: &str = "reclaim-guardian";
/// How long a guardian tries before it says so.
const QUIET: Duration = Duration::from_secs(5);

/// Carries out the verb on this machine.
pub fn run(args: &RestoreArgs) -> anyhow::Result<Status> {
    let (host, folder) = (Host::live(), folder()?);
    let is_named = |record: &Record| {
        args.vm.as_deref().is_none_or(|w| word_rank(w, None, record.guest.0, Some(&record.name)).is_some())
    };
    let (mut found, mut failed) = (0, Vec::new());
    for entry in records(&folder) {
        let (places, record) = match entry {
            Ok(entry) => entry,
            Err(e) => {
                failed.push(anyhow::Error::from(e));
                continue;
            }
        };
        if !is_named(&record) {
            continue;
        }
        found += 1;
        let shown = match &record.name[..] {
            "" => format!("process {}", record.guest.0),
            name => format!("VM {}", printable(name)),
        };
        let mut back = None;
        let restored = held::restore_left_behind(WHAT, &places, |left| {
            let record = Record::at(&places.journal, left)?;
            match record.give_back(&host, args.force, &mut || {})? {
                Back::Another { size } if !args.keep => Err(record.changed(size)),
                given => {
                    back = Some(given);
                    Ok(())
                }
            }
        });
        held::remove_unused_lock(&places);
        match (restored, back) {
            // Without a name, what is not to be restored now is no failure.
            (Err(OrderError::Held(HeldError::Busy { .. })), _) if args.vm.is_none() => {
                print(&format!("{shown}: its order runs, or its guardian gives the memory back\n"))?
            }
            (Err(e), _) => failed.push(anyhow::Error::from(e).context(shown)),
            (Ok(_), Some(Back::Given)) => {
                print(&format!("{shown}: {} MiB are ordered again\n", record.found / MIB))?
            }
            (Ok(_), Some(Back::Another { size })) => {
                print(&format!("{shown}: stays at {} MiB\n", size / MIB))?
            }
            (Ok(_), Some(Back::Gone)) => print(&format!("{shown}: the guest has ended\n"))?,
            // The order gave it back meanwhile.
            (Ok(_), None) => print(&format!("{shown}: its order has ended\n"))?,
        }
    }
    end(args, found, failed)
}

/// Runs the guardian of an order.
///
/// # Errors
/// If the memory cannot be given back: the journal stays then.
pub fn guard(journal: &Path) -> Result<Option<String>, OrderError> {
    let mut said = None;
    let stood = held::stand_guard(WHAT, journal, |left| {
        let record = Record::at(journal, left)?;
        record.wait_for_last_order();
        let (stop, mut stuck) = (Arc::new(AtomicBool::new(false)), false);
        let back = record.give_back_while(&Host::live(), false, &mut |since, e| {
            if since > QUIET && !stuck {
                stuck = true;
                // From now on only: before, the order got the same signal and may have been giving back.
                let _ = flag::register(SIGTERM, Arc::clone(&stop));
                eprintln!(
                    "bifold: process {} tries to give guest {} its memory back, until it succeeds or gets SIGTERM: {e}",
                    std::process::id(),
                    record.guest.0
                );
            }
            !stop.load(Ordering::Relaxed)
        })?;
        said = Some(match back {
            Back::Given => format!("its guest {} gets its memory back", record.guest.0),
            Back::Gone => format!("its guest {} has ended too", record.guest.0),
            Back::Another { size } => format!(
                "another program has set the size of its guest {} to {} MiB since, which stays",
                record.guest.0,
                size / MIB
            ),
        });
        Ok::<_, OrderError>(())
    })?;
    Ok(match stood {
        Stood::Idle => None,
        Stood::Restored { pid, hangs } => {
            let how = if hangs { "stands still" } else { "ended" };
            Some(format!("process {pid} {how} during an order: {}", said.unwrap_or_default()))
        }
    })
}

/// The verb's end, by the number of orders that were found and what failed.
fn end(args: &RestoreArgs, found: usize, mut failed: Vec<anyhow::Error>) -> anyhow::Result<Status> {
    if let Some(last) = failed.pop() {
        for other in failed {
            eprintln!("bifold: {other:#}");
        }
        return Err(last);
    }
    match &args.vm {
        Some(vm) if found == 0 => {
            let problem = format!("no order has taken memory of `{}`", vm.escape_debug());
            Err(UsageError::value("VM", problem).failing().into())
        }
        _ if found == 0 => print("no order has taken memory of a guest\n").map(|()| Status::Done),
        _ => Ok(Status::Done),
    }
}
