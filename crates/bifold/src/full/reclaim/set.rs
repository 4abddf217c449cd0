// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim set`: one order about a guest's size.
//!
//! [`bifold_live::order`] decides and acts; this module says what happens, and waits.

mod out;

pub use out::schema;

use super::{GUARDIAN, guests};
use crate::console::{note, stop_on_signals};
use crate::status::{self, Status};
use crate::words;
use anyhow::Context as _;
use bifold_host::Host;
use bifold_host::held::Guardian;
use bifold_live::order::{Event, Order, OrderError, OrderRequest, SizeObservation, Way, folder, preview};
use bifold_report::Format;
use bifold_trace::CommandExit;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use out::{Out, Short};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const EXAMPLES: &str = "\
Examples:
  bifold reclaim set web 6G --dry-run
  bifold reclaim set web 6G
  bifold reclaim set web 6G --for 3600
  bifold reclaim set web 6G --keep; bifold reclaim restore web
  bifold reclaim set web 4G --by cgroup --floor 3G";

/// Take memory of a guest, in steps, and give it back at the end
///
/// Orders the guest to have SIZE. Each step waits until the guest has followed and has sent new statistics;
/// the next step is made from these. The order does not go below the least size: what the guest uses and a
/// tenth of that, at least 64 MiB; without deflate-on-oom=on and with virtio-mem, twice that margin. When it
/// stops above SIZE, it holds what it has reached, and the exit status is 1.
///
/// Everything is given back at once when the guest may miss it: half of the margin is used up, the guest
/// reads more pages from disks than before, kills a process, sends no statistics, stops, or begins to
/// migrate; and when its process's memory grows instead of shrinking. The same if this command stands still
/// for 15 s, as after Ctrl-Z. The exit status is 1 then.
///
/// The order holds until Ctrl-C or --for, then gives the memory back. With --keep the size stays when the
/// command ends, and `bifold reclaim restore` gives the memory back later. If the command is killed, its
/// guardian gives the memory back.
///
/// --by cgroup has the kernel page the guest out, which holds nothing: the command ends when SIZE is reached,
/// and pages come back when the guest uses them.
///
/// Needs the monitor of QEMU (-qmp unix:PATH,server=on,wait=off, or libvirt's through virsh) and the rights
/// of its user. While the order runs, QEMU asks the guest for statistics each second, unless it does at least
/// every 3 seconds.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct SetArgs {
    /// The guest: its process id, its PID-FD, or its name if the name is unique
    #[arg(value_name = "VM")]
    vm: String,

    /// Its size: 512M, 6G; a number alone is in MiB
    #[arg(value_name = "SIZE", value_parser = size)]
    size: u64,

    /// How the memory is taken
    ///
    /// balloon: the guest chooses pages; SIZE is what is outside of the balloon. virtio-mem: the guest gives
    /// blocks back; SIZE is all of its memory. cgroup: the host pages out by memory.reclaim (cgroup v2); SIZE
    /// is what the guest's cgroup has in the host's memory.
    #[arg(long, value_name = "balloon|virtio-mem|cgroup", default_value = "balloon", value_parser = way(), hide_possible_values = true)]
    by: Way,

    /// The least size, in place of the one that follows from what the guest uses
    ///
    /// Even then 64 MiB stay available in the guest, 128 MiB without deflate-on-oom=on and with virtio-mem;
    /// at half of that it gets everything back. --by cgroup leaves the guest all that is available in it.
    #[arg(long, value_name = "SIZE", value_parser = size)]
    floor: Option<u64>,

    /// Size of a step [default: an eighth of the size, and a quarter of what may still be taken]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    step: Option<u64>,

    /// Give the memory back after the size was held for so long
    #[arg(long = "for", value_name = "SECS", value_parser = words::seconds, conflicts_with = "keep")]
    duration: Option<f64>,

    /// Leave the size as it is when it is reached, and end
    #[arg(long)]
    keep: bool,

    /// Say what the order would do, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Output format
    #[arg(long, value_parser = words::formats(FORMATS), default_value = "table", hide_possible_values = true,
          value_name = "table|jsonl", help_heading = "Output")]
    format: Format,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

const FORMATS: &[Format] = &[Format::Table, Format::Jsonl];
/// Time between two looks, at most.
const LOOK: Duration = Duration::from_secs(1);
/// How soon a signal is noticed.
const SOON: Duration = Duration::from_millis(50);
/// The least step: guests count pages of 4 KiB, and a step takes some seconds.
const LEAST: u64 = words::MIB;

fn size(text: &str) -> Result<u64, String> {
    words::size_within(text, words::MIB, LEAST..=1 << 50, "from 1 MiB to 1024 TiB")
}

fn way() -> impl TypedValueParser<Value = Way> {
    PossibleValuesParser::new(Way::ALL.map(Way::name)).map(|name| {
        Way::ALL.into_iter().find(|w| w.name() == name).expect("the parser takes these names only")
    })
}

/// Carries out the verb on this machine.
pub fn run(args: &SetArgs) -> anyhow::Result<Status> {
    let host = Host::live();
    let guest = guests::one(&host, &args.vm)?;
    let wish = OrderRequest { way: args.by, size: args.size, floor: args.floor, step: args.step };
    let out = Out { name: guests::name(&guest), pid: guest.pid, format: args.format };
    if args.dry_run {
        let (goal, look, floor) = preview(&host, &guest, &wish)?;
        return out.plan(&goal, &look, floor).map(|()| Status::Done);
    }
    let stop = stop_on_signals()?;
    let guardian = Guardian::this_program(GUARDIAN)?;
    match Order::begin(&host, &folder()?, &guardian, &guest, &wish, &stop) {
        Ok(order) => Running { args, out, stop: &stop, order }.run(),
        Err(OrderError::Interrupted) => Ok(Status::OfCommand(CommandExit::Interrupted)),
        Err(e) => Err(e.into()),
    }
}

/// An order under way.
struct Running<'a> {
    args: &'a SetArgs,
    out: Out,
    stop: &'a AtomicBool,
    order: Order,
}

impl Running<'_> {
    fn run(mut self) -> anyhow::Result<Status> {
        let first = *self.order.first();
        self.out.begins(&first, self.order.floor(&first), self.args.size)?;
        let mut holds: Option<(Instant, Option<Short>)> = None;
        loop {
            if self.stop.load(Ordering::Relaxed) {
                let held = holds.is_some();
                self.give_back("stopped")?;
                let interrupted = Status::OfCommand(CommandExit::Interrupted);
                return Ok(if held { Status::Done } else { interrupted });
            }
            if let Some(((since, short), length)) = holds.zip(self.args.duration) {
                if since.elapsed().as_secs_f64() >= length {
                    let end = self.short(short);
                    self.give_back("its time is over")?;
                    return end;
                }
            }
            let event = match self.order.tick(false) {
                Ok(event) => event,
                // What the order cannot see or do any more, it cannot answer for.
                Err(e) => {
                    let text = format!("VM {}: {e}", self.out.name);
                    self.give_back("the order fails").context(text)?;
                    return Err(e.into());
                }
            };
            match event {
                Event::Looked(_) | Event::Silent => {}
                Event::Ordered { look, target } => self.out.step(&look, target)?,
                Event::Ends { why, .. } => {
                    let (name, text) = (self.out.name.clone(), why.to_string());
                    self.give_back(&text)?;
                    anyhow::bail!("VM {name}: the order has ended early: {text}");
                }
                Event::Holding { look, whole } => {
                    if holds.is_none() {
                        let short = (!whole).then(|| self.why_short(&look));
                        holds = Some((Instant::now(), short));
                        let ends = self.args.keep || self.args.by.pages_out();
                        self.out.holds(&look, short, ends)?;
                        if ends {
                            let end = self.short(short);
                            self.order.keep()?;
                            let passes = self.args.keep && !rustix::process::geteuid().is_root();
                            note(
                                passes && !self.args.quiet,
                                "the journal is in XDG_RUNTIME_DIR: `bifold reclaim restore` finds it until you log out",
                            );
                            return end;
                        }
                        let how = if self.args.duration.is_some() {
                            "--for and Ctrl-C give"
                        } else {
                            "Ctrl-C gives"
                        };
                        note(!self.args.quiet, format_args!("{how} the memory of VM {} back", self.out.name));
                    }
                }
            }
            self.wait();
        }
    }

    fn wait(&self) {
        let begun = Instant::now();
        while begun.elapsed() < LOOK && !self.stop.load(Ordering::Relaxed) {
            std::thread::sleep(SOON);
        }
    }

    /// What kept an order above its size.
    fn why_short(&self, look: &SizeObservation) -> Short {
        let above = self.order.floor(look).is_none_or(|floor| look.size > floor.saturating_add(words::MIB));
        if self.args.by.pages_out() && above { Short::NoMore } else { Short::LeastSize }
    }

    /// The end of an order that has reached its size, or not all of it.
    fn short(&self, short: Option<Short>) -> anyhow::Result<Status> {
        let end = match short {
            None => return Ok(Status::Done),
            Some(Short::LeastSize) => "the least size was reached before the order's",
            Some(Short::NoMore) => "the kernel finds no more to take before the order's size is reached",
        };
        Err(anyhow::anyhow!("VM {}: {end} ({} MiB)", self.out.name, self.args.size / words::MIB))
    }

    fn give_back(self, why: &str) -> anyhow::Result<()> {
        let back = self.order.give_back()?;
        if self.args.by.pages_out() { Ok(()) } else { self.out.ends(back, why) }
    }
}
