// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Carries out a plan: models are made, the source feeds them, and their counts become results.

use super::source::{self, Ending, Feed, Length, Until};
use super::{Carried, Host, Limited, Plan, pace};
use crate::console::{Progress, note, note_file};
use crate::usage::UsageError;
use bifold_attribute::Attribution;
use bifold_guest::GuestError;
use bifold_model::{CacheMode, Model, Options, format_of};
use bifold_reclaim::MemoryUse;
use bifold_report::{MemoryNeeds, Meta, Places};
use bifold_trace::file::{Header, Writer};
use bifold_trace::{CommandExit, Granularity, Thin};
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// Makes the plan's run once. `part` says which of several runs it is, for the progress line.
///
/// # Errors
/// If there are no figures to show. Later errors are in [`Carried::failure`].
pub fn carry_out(plan: &mut Plan, part: &str, stop: &AtomicBool) -> anyhow::Result<Carried> {
    let mut header = plan.source.header();
    header.source.sample = plan.sample.or(header.source.sample);
    let started = Instant::now();
    let mut feed = prepare(plan, &header, part, started)?;
    let mut ending = plan.source.run(&mut feed, stop);
    feed.progress.end();
    let (instructions, accesses) =
        (feed.model.instructions() as f64 / 1e6, feed.model.accesses() as f64 / 1e6);
    let seconds = started.elapsed().as_secs_f64();
    note(
        plan.notes.verbose,
        format_args!(
            "{instructions:.1} million instructions and {accesses:.1} million accesses in {seconds:.1} s"
        ),
    );
    refuse_nothing(plan, &header, &feed.model, &mut ending)?;
    if let (Some(writer), Some(path)) = (feed.writer.take(), &plan.record) {
        match writer.finish(&source::trailer(&ending)) {
            Ok(()) => note_file(plan.notes.notes, "events", path),
            Err(e) => feed.unwritten = Some(e),
        }
    }
    ending.failure = ending.failure.or(feed.unwritten.take().map(anyhow::Error::from));
    Ok(conclude(plan, &header, part, feed, ending))
}

/// The models and all that the source feeds beside them.
fn prepare(plan: &Plan, header: &Header, part: &str, started: Instant) -> anyhow::Result<Feed> {
    if header.granularity == Granularity::Page && plan.caches != CacheMode::Off {
        let problem = "needs lines, and this recording is compact: its loads have pages. Add --caches off, or record without --compact";
        return Err(UsageError::conflict("--caches", problem).into());
    }
    let options = options(plan, header);
    if let Some(config) = options.configs.iter().find(|c| !c.mode.serves(options.guest_format)) {
        let name = config.name();
        anyhow::bail!(
            "{name} is for guests in 64-bit mode, and this one is in 32-bit mode: leave {name} out of --configs"
        );
    }
    let recorded = Header { granularity: plan.granularity, ..header.clone() };
    let writer = plan.record.as_deref().map(|p| Writer::create(p, &recorded)).transpose()?;
    let interval_s = options.interval_seconds;
    let places = plan.places.as_ref().map(|_| Attribution::new(&options.configs));
    let limited = |host: &Host| {
        let mut model = Model::new(&plan.profile, options.clone());
        match *host {
            Host::Limited(frames) => model.limit_hosts(frames),
            Host::Reported => model.report_free(),
        }
        model
    };
    let limited: Vec<Model> = plan.hosts.iter().map(limited).collect();
    let mut model = Model::new(&plan.profile, options);
    if places.is_some() {
        model.charge(plan.places.is_some_and(|p| p.stacks));
    }
    if let Some(memory) = &plan.memory {
        model.watch_uses(memory.options(&plan.profile))?;
    }
    for on_line in &plan.on_line {
        on_line.attach(&mut model, &plan.profile, interval_s, plan.time_scale);
    }
    let phase = plan.source.phase();
    Ok(Feed {
        model,
        limited,
        places,
        thin: plan.thin.map(|windows| Thin::new(windows).of(header.guest_tables)),
        writer,
        unwritten: None,
        progress: Progress::start(plan.notes.progress, phase).prefix(part),
        phase: (phase, started),
        length: Length::Unknown,
        notes: plan.notes.notes,
        until: plan.until.zip(plan.source.enough()).map(|(percent, enough)| Until::new(percent, enough)),
    })
}

fn options(plan: &Plan, header: &Header) -> Options {
    Options {
        seed: plan.seed,
        host_frames: plan.host_frames,
        vm: plan.vm,
        interval_seconds: plan.interval_seconds.unwrap_or(Options::default().interval_seconds),
        configs: plan.configs.clone(),
        guest_frames: header.guest_frames,
        vcpus: header.vcpus as usize,
        guest_format: format_of(header.guest_tables),
        nested_format: plan.nested_format,
        caches: plan.caches,
        placed: plan.placed.clone(),
        windows: header.source.sample,
    }
}

/// An error where the run has no figures to show.
fn refuse_nothing(plan: &Plan, header: &Header, model: &Model, ending: &mut Ending) -> anyhow::Result<()> {
    let unbegun = plan.source.live() && !model.program_begun();
    let nothing = unbegun || model.instructions() == 0 || ending.failure.as_ref().is_some_and(not_started);
    let hidden = !plan.source.shows_what_it_has();
    if let Some(e) = ending.failure.take_if(|_| nothing || hidden) {
        return Err(e);
    }
    let later = bifold_trace::region_begins_later(header.source.region.as_deref());
    if unbegun && ending.exit == Some(CommandExit::Interrupted) {
        return Err(GuestError::InterruptedEarly.into());
    }
    if unbegun {
        anyhow::bail!("nothing was recorded: the command was stopped before its program began");
    }
    if plan.source.live() && later && model.before_region().is_none() {
        anyhow::bail!("nothing was recorded: the command was stopped before its region began");
    }
    Ok(())
}

/// Whether the guest did not start the command, so that all events are the guest's own, or the command did
/// not come to its region.
fn not_started(e: &anyhow::Error) -> bool {
    use GuestError::{NotStarted, RegionMissed, WorkingDirectory};
    matches!(e.downcast_ref(), Some(NotStarted(_) | WorkingDirectory(_) | RegionMissed { .. }))
}

/// The results.
fn conclude(plan: &Plan, header: &Header, part: &str, mut feed: Feed, ending: Ending) -> Carried {
    let meta = Meta {
        bifold: bifold_base::version().into(),
        input: plan.source.input(),
        guest: source::describe(header, &ending),
        exit: ending.exit,
        partial: ending.partial,
        capture_checks: ending.stats,
        clock: ending.clock,
        hardware: plan.profile.clone(),
    };
    let progress = Progress::start(plan.notes.progress, pace::REPORT).prefix(part);
    let window_scale = feed.model.window_scale();
    let uses = feed.model.take_uses();
    let looked = feed.model.looked().to_vec();
    let outcome = feed.model.finish();
    let paged = |model: Model| {
        let hosts = 0..plan.configs.len();
        let swaps = hosts.clone().map(|host| (model.swaps(host), model.split_pages(host))).collect();
        let dropped = hosts.map(|host| model.dropped(host)).collect();
        Limited { swaps, dropped, looked: model.looked().to_vec(), outcome: model.finish() }
    };
    let limited = feed.limited.into_iter().map(paged).collect();
    let memory = uses
        .as_ref()
        .zip(plan.memory.as_ref())
        .map(|(uses, m)| MemoryNeeds::of(&outcome, uses, &m.sizes, m.refault_s).with_looks(&looked));
    let cut = uses.as_ref().is_some_and(MemoryUse::is_optimum_cut);
    let places = feed
        .places
        .zip(plan.places)
        .map(|(p, shown)| Places::new(p.finish(window_scale), shown.view, shown.config));
    progress.end();
    if cut {
        let text = "the fewest refaults are unknown: the run has more references than are kept for them";
        note(plan.notes.notes, text);
    }
    Carried {
        meta,
        outcome,
        places,
        memory,
        uses,
        looked,
        limited,
        written: ending.written,
        kept: ending.kept,
        short_of_memory: ending.short_of_memory,
        failure: ending.failure,
    }
}
