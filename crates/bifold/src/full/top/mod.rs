// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold top`: what this host's VMs do now, on a screen that is redrawn after each interval.
//!
//! [`bifold_live`] reads the VMs. [`app`] has the state, [`keys`] changes the state by keys, [`view`] draws
//! the state; none of them touches the terminal, which is this file's.

mod app;
mod args;
mod column;
mod keys;
mod view;

pub use args::TopArgs;

use crate::console::{has_ascii_only, redraws, stop_on_signals, wants_colors};
use crate::doctor::needs::{FEW_FIGURES, MODULE, Needs};
use crate::full::vms;
use crate::status::Status;
use crate::usage::UsageError;
use anyhow::Context as _;
use app::App;
use bifold_host::Host;
use bifold_live::Watch;
use bifold_live::hardware::{FileLimit, NoPmu, Pmu};
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use rustix::event::{PollFd, PollFlags, Timespec};
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Longest time between two looks at signals.
const LOOK: Duration = Duration::from_millis(250);
/// Most keys between two drawings: whoever pastes a text still sees the screen change.
const KEYS: usize = 64;

/// What the verb needs of the machine.
pub const NEEDS: &[Needs] = &[Needs { parts: &[FEW_FIGURES], ..Needs::of("", &[MODULE]) }];

/// Carries out the verb on this machine.
pub fn run(args: &TopArgs) -> anyhow::Result<Status> {
    if args.interval < app::SHORTEST.as_secs_f64() {
        let problem = format!("shorter than {} s", app::SHORTEST.as_secs_f64());
        return Err(UsageError::value(format!("--interval {}", args.interval), problem).into());
    }
    if !redraws(&io::stdout()) || !io::stdin().is_terminal() {
        let problem = "needs a terminal: for files and pipes, use `bifold stat`";
        return Err(UsageError::conflict("top", problem).into());
    }
    let host = Host::live();
    let pmu = vms::pmu(&host, args.no_pmu);
    top(host, pmu, args)
}

/// Carries out the verb on a host.
fn top(host: Host, (pmu, no_pmu): (Option<Pmu>, Option<NoPmu>), args: &TopArgs) -> anyhow::Result<Status> {
    let stop = stop_on_signals()?;
    let _files = FileLimit::raise().context("cannot raise the limit of open files")?;
    let mut watch = Watch::new(host, pmu.into())?;
    watch.forecast_switches();
    let mut run = Run {
        watch,
        no_pmu,
        words: args.vm.clone(),
        app: App::new(Duration::from_secs_f64(args.interval)),
        look: view::TerminalStyle { ascii: has_ascii_only(), colors: wants_colors() },
        start: Instant::now(),
    };
    run.tick();
    // Restores the terminal at a panic.
    let mut terminal = match ratatui::try_init() {
        Ok(terminal) => terminal,
        Err(e) => {
            // Raw mode may have begun.
            let _ = ratatui::try_restore();
            return Err(e).context("cannot use the terminal");
        }
    };
    let shown = run.show(&mut terminal, &stop, args.count);
    if !wait_for_input(Duration::ZERO).unwrap_or(false) {
        // The terminal is closed. If `terminal` were dropped, it would write to stderr, fail and panic.
        std::mem::forget(terminal);
        let _ = ratatui::try_restore();
        return Ok(Status::Done);
    }
    drop(terminal);
    let restored = ratatui::try_restore();
    shown.and(restored).context("cannot use the terminal")?;
    Ok(Status::Done)
}

/// A run of the verb.
struct Run {
    watch: Watch,
    no_pmu: Option<NoPmu>,
    /// The words that choose VMs.
    words: Vec<String>,
    app: App,
    look: view::TerminalStyle,
    start: Instant,
}

impl Run {
    fn tick(&mut self) {
        let start = self.start;
        let tick = self.watch.tick(&|| start.elapsed());
        self.app.update(&self.watch, &tick, &self.words);
        self.app.notes = vms::notes(&self.watch, self.no_pmu.as_ref(), &self.words);
    }

    /// Shows the VMs until the user ends that, or for a number of intervals.
    fn show(
        &mut self,
        terminal: &mut DefaultTerminal,
        stop: &AtomicBool,
        count: Option<u64>,
    ) -> io::Result<()> {
        let mut last = Instant::now();
        let mut intervals = 0;
        let mut changed = true;
        loop {
            if changed {
                terminal.draw(|frame| view::draw(frame, &mut self.app, self.look))?;
            }
            if count == Some(intervals) {
                return Ok(());
            }
            let due = last + self.app.interval;
            let left = if self.app.paused { LOOK } else { due.saturating_duration_since(Instant::now()) };
            if !wait_for_input(left.min(LOOK))? {
                return Ok(());
            }
            changed = self.read_keys()?;
            if self.app.done || stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            let now = Instant::now();
            if !self.app.paused && now >= last + self.app.interval {
                self.tick();
                intervals += 1;
                changed = true;
                // Ticks keep their rhythm, unless one took too long or the display was paused.
                let due = last + self.app.interval;
                last = if due + self.app.interval > now { due } else { now };
            }
        }
    }

    /// Reads the keys that were pressed. Returns whether the screen must be redrawn.
    fn read_keys(&mut self) -> io::Result<bool> {
        for n in 0..KEYS {
            if self.app.done || !event::poll(Duration::ZERO)? {
                return Ok(n > 0);
            }
            if let Event::Key(key) = event::read()? {
                self.app.key(key);
            }
        }
        Ok(true)
    }
}

/// Waits for input, but no longer than `time`. Returns whether the terminal is still there: crossterm reads a
/// terminal that hung up without end (`try_read` in its `event/source/unix/mio.rs`).
fn wait_for_input(time: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut files = [PollFd::new(&stdin, PollFlags::IN)];
    let time = Timespec::try_from(time).map_err(io::Error::other)?;
    match rustix::event::poll(&mut files, Some(&time)) {
        // A signal: a new size of the terminal, or a request to end.
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(e.into()),
    }
    Ok(!files[0].revents().intersects(PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL))
}

#[cfg(test)]
mod tests;
