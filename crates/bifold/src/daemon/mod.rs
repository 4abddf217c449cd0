// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold daemon`: the loop around [`bifold_daemon::Engine`], with its signals, sockets and files.

mod args;
mod check;

pub use args::{DaemonArgs, STATE};

use crate::console::{note, print};
use crate::status::Status;
use crate::vms;
use anyhow::Context as _;
use args::CONFIG;
use bifold_daemon::control::{Answer, Control, Request};
use bifold_daemon::metrics::{self, Listener};
use bifold_daemon::{Config, DaemonError, Engine, Homes, Source, with_causes};
use bifold_host::Host;
use bifold_live::Watch;
use bifold_live::hardware::FileLimit;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Access, access};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Least time between two renewals of the metrics.
const METRICS: Duration = Duration::from_secs(5);
/// Longest sleep, so that a signal that comes just before it is not waited for long.
const LOOK: Duration = Duration::from_millis(200);
/// Least time between two signs of life for systemd. An interval may be longer than the unit's WatchdogSec.
const ALIVE: Duration = Duration::from_secs(1);

/// Carries out the verb on this machine.
pub fn run(args: &DaemonArgs) -> anyhow::Result<Status> {
    if let Some(path) = &args.check_config {
        let config = Config::read(path)?;
        check::folders(&config).with_context(|| path.display().to_string())?;
        print(&check::text(&config))?;
        return Ok(Status::Done);
    }
    let signals = Signals::catch()?;
    let config = configuration(args)?;
    config.notes.iter().for_each(|text| note(true, text));
    let host = Host::live();
    let (pmu, no_pmu) = vms::pmu(&host, args.no_pmu);
    FileLimit::raise().context("cannot raise the limit of open files")?;
    let watch = Watch::new(host, pmu)?;
    make(&args.state)?;
    let homes = Homes::take(&args.state)?;
    let control = Control::listen(&args.state)?;
    let mut daemon = Daemon {
        listener: listener(&config)?,
        engine: Engine::new(watch, config, homes)?,
        args,
        start: Instant::now(),
        at_once: false,
        told: None,
        alive: None,
    };
    daemon.tick();
    vms::notes(daemon.engine.watch(), no_pmu.as_ref(), &[]).iter().for_each(|text| note(true, text));
    if let Some(why) = daemon.engine.only_observes() {
        note(true, format_args!("observes only: {why}"));
    }
    notify(&[NotifyState::Ready]);
    daemon.serve(&control, &signals);
    notify(&[NotifyState::Stopping]);
    let away = daemon.engine.end();
    daemon.log();
    if !away.is_empty() {
        anyhow::bail!("not all VMs are back in their own modes; the next start tries again");
    }
    Ok(Status::Done)
}

/// The configuration of the options.
fn configuration(args: &DaemonArgs) -> anyhow::Result<Config> {
    match &args.config {
        Some(path) => Ok(Config::read(path)?),
        None if !Path::new(CONFIG).exists() => {
            note(true, format_args!("{CONFIG} does not exist: VMs are watched, and no policy decides"));
            Ok(Config::parse("", Path::new(CONFIG))?)
        }
        None => Ok(Config::read(Path::new(CONFIG))?),
    }
}

/// Whether this user can have the daemon's folder: the folder, or the nearest one above that exists, takes new files.
pub fn may_make(folder: &Path) -> io::Result<()> {
    let there = folder.ancestors().find(|at| at.exists()).unwrap_or(Path::new("/"));
    Ok(access(there, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Makes the daemon's folder. Who may not make the folder cannot run the daemon here: exit status 77.
fn make(folder: &Path) -> anyhow::Result<()> {
    let made = may_make(folder).and_then(|()| DirBuilder::new().recursive(true).mode(0o700).create(folder));
    made.map_err(|source| DaemonError::Io { path: folder.into(), source })
        .context("cannot make the daemon's folder: run as root, or name another folder by --state")
}

fn listener(config: &Config) -> Result<Option<Listener>, DaemonError> {
    config.metrics.listen.map(Listener::start).transpose()
}

/// Tells systemd, if systemd started this.
fn notify(state: &[NotifyState]) {
    let _ = sd_notify::notify(state);
}

/// Signals that the daemon obeys.
struct Signals {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    fn catch() -> anyhow::Result<Signals> {
        let signals = Signals { stop: Arc::default(), reload: Arc::default() };
        for (signal, flag) in [(SIGINT, &signals.stop), (SIGTERM, &signals.stop), (SIGHUP, &signals.reload)] {
            signal_hook::flag::register(signal, Arc::clone(flag)).context("cannot watch signals")?;
        }
        Ok(signals)
    }
}

/// The running daemon.
struct Daemon<'a> {
    engine: Engine,
    listener: Option<Listener>,
    args: &'a DaemonArgs,
    start: Instant,
    /// Whether the next reading does not wait for the interval's end.
    at_once: bool,
    /// When the metrics were renewed.
    told: Option<Duration>,
    /// When systemd got the last sign of life.
    alive: Option<Duration>,
}

impl Daemon<'_> {
    /// Reads VMs and answers clients until a signal ends that.
    fn serve(&mut self, control: &Control, signals: &Signals) {
        let mut next = Duration::ZERO;
        loop {
            let length = Duration::from_secs_f64(self.engine.config().interval_s);
            // Intervals that were missed, as while the machine was suspended, are not made up for.
            next = (next + length).max(self.start.elapsed());
            // At least once, so that signals and clients are heard when readings take longer than an interval.
            loop {
                if signals.stop.load(Ordering::Relaxed) {
                    return;
                }
                if signals.reload.swap(false, Ordering::Relaxed) {
                    let _ = self.read_configuration();
                }
                wait(control, next.saturating_sub(self.start.elapsed()).min(LOOK));
                control.answer(|request| self.answer(request));
                self.log();
                self.is_alive();
                // Another configuration holds at once.
                if self.start.elapsed() >= next || std::mem::take(&mut self.at_once) {
                    break;
                }
            }
            self.tick();
        }
    }

    fn tick(&mut self) {
        let start = self.start;
        self.engine.tick(&|| start.elapsed(), crate::stat::now());
        let now = start.elapsed();
        if self.told.is_none_or(|before| before + METRICS <= now) {
            self.told = Some(now);
            self.renew_metrics();
        }
        self.is_alive();
        self.log();
    }

    fn is_alive(&mut self) {
        let now = self.start.elapsed();
        if self.alive.is_none_or(|before| before + ALIVE <= now) {
            self.alive = Some(now);
            notify(&[NotifyState::Watchdog]);
        }
    }

    fn renew_metrics(&mut self) {
        let file = self.engine.config().metrics.file.clone();
        if file.is_none() && self.listener.is_none() {
            return;
        }
        let Ok(text) = metrics::text(&self.engine.status()) else { return };
        if let Some(written) = file.map(|path| metrics::write(&path, &text)) {
            self.engine.trouble(Source::Metrics, written.err().map(|e| with_causes(&e)));
        }
        if let Some(listener) = &self.listener {
            listener.set(text);
        }
    }

    fn answer(&mut self, request: Request) -> Answer {
        let answer = match request {
            Request::Status {} => Ok(Answer::Status(self.engine.status())),
            Request::Explain { vm } => {
                self.engine.explain(&vm).map(|(vm, lately)| Answer::Explained(Box::new(vm), lately))
            }
            Request::Hold { vm, seconds } => {
                self.engine.hold(&vm, seconds, self.start.elapsed()).map(|text| Answer::Done(vec![text]))
            }
            Request::Release { vm } => self.engine.release(&vm).map(|text| Answer::Done(vec![text])),
            Request::Undo { vm } => self.engine.undo(vm.as_deref()).map(Answer::Done),
            Request::Reload {} => {
                self.read_configuration().map(|()| Answer::Done(vec!["has read its configuration".into()]))
            }
        };
        answer.unwrap_or_else(|e| Answer::Refused(with_causes(&e)))
    }

    /// The configuration as it is now in the files, if it can be used.
    fn configuration(&self) -> Result<Config, DaemonError> {
        configuration(self.args).map_err(|e| DaemonError::Refused(format!("{e:#}")))
    }

    /// Takes the configuration as it is now in the files. If anything of it cannot be used, all stays as it is.
    fn read_configuration(&mut self) -> Result<(), DaemonError> {
        // A unit of Type=notify-reload needs the time, too (sd_notify(3)).
        let reloading = [Some(NotifyState::Reloading), NotifyState::monotonic_usec_now().ok()];
        notify(&reloading.into_iter().flatten().collect::<Vec<_>>());
        let taken = self.configuration().and_then(|config| self.take(config));
        match &taken {
            Ok(()) => note(true, "has read its configuration"),
            Err(e) => note(true, format_args!("keeps its configuration: {}", with_causes(e))),
        }
        notify(&[NotifyState::Ready]);
        taken
    }

    fn take(&mut self, config: Config) -> Result<(), DaemonError> {
        config.notes.iter().for_each(|text| note(true, text));
        let moved = config.metrics.listen != self.engine.config().metrics.listen;
        let listener = if moved { listener(&config)? } else { None };
        self.engine.reload(config)?;
        if moved {
            self.listener = listener;
        }
        (self.told, self.at_once) = (None, true);
        Ok(())
    }

    fn log(&mut self) {
        self.engine.events().iter().for_each(|event| note(true, &event.text));
    }
}

/// Waits until a client comes, but not longer than this.
fn wait(control: &Control, most: Duration) {
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    // A signal ends the wait early.
    let _ = poll(&mut [PollFd::new(control, PollFlags::IN)], Some(&most));
}
