// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon as a process: the loop around an [`Engine`], with its signals, sockets and files.

use crate::config::Config;
use crate::control::{Answer, Control, Request};
use crate::engine::{Engine, Source};
use crate::error::DaemonError;
use crate::homes::Homes;
use crate::memory::Place;
use crate::metrics::{self, Listener};
use bifold_base::with_causes;
use bifold_live::Watch;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use sd_notify::NotifyState;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Least time between two renewals of the metrics.
const METRICS: Duration = Duration::from_secs(5);
/// Longest sleep, so that a signal that comes just before it is not waited for long.
const LOOK: Duration = Duration::from_millis(200);
/// Least time between two signs of life for systemd. An interval may be longer than the unit's WatchdogSec.
const ALIVE: Duration = Duration::from_secs(1);

/// Signals that the daemon obeys.
pub struct Signals {
    stop: Arc<AtomicBool>,
    reload: Arc<AtomicBool>,
}

impl Signals {
    /// Notes SIGINT, SIGTERM and SIGHUP from now on, instead of ending at them.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn catch() -> io::Result<Signals> {
        let signals = Signals { stop: Arc::default(), reload: Arc::default() };
        for (signal, flag) in [(SIGINT, &signals.stop), (SIGTERM, &signals.stop), (SIGHUP, &signals.reload)] {
            signal_hook::flag::register(signal, Arc::clone(flag))?;
        }
        Ok(signals)
    }
}

/// The running daemon.
#[must_use = "a service that does not run leaves VMs in other modes than their own"]
pub struct Service<'a> {
    engine: Engine,
    listener: Option<Listener>,
    /// Reads the configuration as it is now in the files.
    read: &'a dyn Fn() -> Result<Config, DaemonError>,
    log: fn(&str),
    start: Instant,
    /// Whether the next reading does not wait for the interval's end.
    at_once: bool,
    /// When the metrics were renewed.
    told: Option<Duration>,
    /// When systemd got the last sign of life.
    alive: Option<Duration>,
}

impl<'a> Service<'a> {
    /// Makes an [`Engine`], whose orders about memory are made at a place, and reads all VMs for the first
    /// time, which may switch some: only [`Service::run`] gives them back. At SIGHUP, `read` gives the
    /// configuration. `log` gets every line of the log.
    ///
    /// # Errors
    /// If the address for metrics cannot be used, or else if the recording cannot be opened.
    pub fn start(
        (watch, config, homes, orders): (Watch, Config, Homes, Option<Place>),
        read: &'a dyn Fn() -> Result<Config, DaemonError>,
        log: fn(&str),
    ) -> Result<Service<'a>, DaemonError> {
        // Before the recording is opened, which may change a file.
        let listener = listener(&config)?;
        let mut engine = Engine::new(watch, config, homes)?;
        engine.order_at(orders);
        let mut service = Service {
            listener,
            engine,
            read,
            log,
            start: Instant::now(),
            at_once: false,
            told: None,
            alive: None,
        };
        service.tick();
        Ok(service)
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Reads VMs and answers clients until a signal ends that, and gives all VMs back. Returns what could not
    /// be given back: the journal keeps that for the next start.
    pub fn run(mut self, control: &Control, signals: &Signals) -> Vec<String> {
        notify(&[NotifyState::Ready]);
        self.serve(control, signals);
        notify(&[NotifyState::Stopping]);
        let away = self.engine.end();
        self.write_log();
        away
    }

    fn serve(&mut self, control: &Control, signals: &Signals) {
        let mut next = Duration::ZERO;
        loop {
            let length = Duration::from_secs_f64(self.engine.config().interval_s);
            // Intervals that were missed, as while the machine was suspended, are not made up for.
            next = (next + length).max(self.start.elapsed());
            // At least once, so that signals and clients are heard when readings take longer than an
            // interval.
            loop {
                if signals.stop.load(Ordering::Relaxed) {
                    return;
                }
                if signals.reload.swap(false, Ordering::Relaxed) {
                    let _ = self.read_configuration();
                }
                wait(control, next.saturating_sub(self.start.elapsed()).min(LOOK));
                control.answer(|request| self.answer(request));
                self.write_log();
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
        self.engine.tick(&|| start.elapsed(), bifold_live::now());
        let now = start.elapsed();
        if self.told.is_none_or(|before| before + METRICS <= now) {
            self.told = Some(now);
            self.renew_metrics();
        }
        self.is_alive();
        self.write_log();
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
            Request::Status {} => Ok(Answer::Status(Box::new(self.engine.status()))),
            Request::Explain { vm } => {
                self.engine.explain(&vm).map(|explanation| Answer::Explained(Box::new(explanation)))
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

    /// Takes the configuration as it is now in the files. If anything of it cannot be used, all stays as it
    /// is.
    fn read_configuration(&mut self) -> Result<(), DaemonError> {
        // A unit of Type=notify-reload needs the time, too (sd_notify(3)).
        let reloading = [Some(NotifyState::Reloading), NotifyState::monotonic_usec_now().ok()];
        notify(&reloading.into_iter().flatten().collect::<Vec<_>>());
        let taken = (self.read)().and_then(|config| self.take(config));
        match &taken {
            Ok(()) => (self.log)("has read its configuration"),
            Err(e) => (self.log)(&format!("keeps its configuration: {}", with_causes(e))),
        }
        notify(&[NotifyState::Ready]);
        taken
    }

    fn take(&mut self, config: Config) -> Result<(), DaemonError> {
        config.notes.iter().for_each(|text| (self.log)(text));
        let moved = config.metrics.listen != self.engine.config().metrics.listen;
        let listener = if moved { listener(&config)? } else { None };
        self.engine.reload(config)?;
        if moved {
            self.listener = listener;
        }
        (self.told, self.at_once) = (None, true);
        Ok(())
    }

    fn write_log(&mut self) {
        self.engine.events().iter().for_each(|event| (self.log)(&event.text));
    }
}

fn listener(config: &Config) -> Result<Option<Listener>, DaemonError> {
    config.metrics.listen.map(Listener::start).transpose()
}

/// Tells systemd, if systemd started this.
fn notify(state: &[NotifyState]) {
    let _ = sd_notify::notify(state);
}

/// Waits until a client comes, but not longer than this.
fn wait(control: &Control, most: Duration) {
    let most = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
    // A signal ends the wait early.
    let _ = poll(&mut [PollFd::new(control, PollFlags::IN)], Some(&most));
}
