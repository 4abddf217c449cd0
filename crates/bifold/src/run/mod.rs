// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `compare` and `record`: carry out a plan, show what came of it, and say with
//! which status to end.
//!
//! Files are opened before the run, so that an unwritable path costs no time,
//! and get their names after it. A run that is stopped or fails half-way shows
//! and saves what it has, marked as partial; a recording that turns out to be
//! damaged shows nothing, because its figures would be taken for the recording's.

pub mod feed;
pub mod source;
mod stdin;

use crate::compare::plan::{Input, Plan};
use crate::compare::{keep, runs};
use crate::console::files::Writing;
use crate::policy::setting::{FEWEST_INTERVALS, too_short};
use crate::status::Status;
use anyhow::Context as _;
use bifold_attribute::Attribution;
use bifold_guest::{GuestError, Written};
use bifold_model::{Model, Options, Outcome};
use bifold_policy::{Estimator, Named, Scale, Timeline, Vm, check, evaluate};
use bifold_report::{Comparison, Exit, Format, Meta, OutputFile, Places, RunPolicies};
use bifold_trace::Thin;
use bifold_trace::file::{Header, Source, Writer};
use feed::{Feed, Progress};
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

/// What came of one run.
pub struct Carried {
    /// What was run, and how it ended.
    meta: Meta,
    /// What the model yields.
    pub outcome: Outcome,
    /// Where the cost is, if that is asked for.
    places: Option<Places>,
    /// What the command wrote.
    written: Option<Written>,
    /// The files it wrote, if they are to be kept.
    kept: Option<File>,
    /// What went wrong after there was something to show.
    pub failure: Option<anyhow::Error>,
}

/// Carries out a plan.
pub fn run(mut plan: Plan) -> anyhow::Result<Status> {
    if let Some(dir) = &plan.keep {
        keep::prepare(dir)?;
    }
    if let Input::Guest(spec) = &mut plan.input {
        spec.stdin = stdin::read(bifold_guest::most_stdin(spec.memory_mib))?;
    }
    let report = plan.report.as_deref().map(OutputFile::create).transpose()?;
    let output = plan.output.as_deref().map(OutputFile::create).transpose()?;
    let timeline = plan.timeline.as_deref().map(OutputFile::create).transpose()?;
    let folded =
        plan.places.as_ref().and_then(|p| p.folded.as_deref()).map(OutputFile::create).transpose()?;
    let stop = stop_on_signals()?;
    if plan.runs > 1 {
        return runs::run(plan, output, report, &stop);
    }
    let mut carried = carry_out(&mut plan, "", &stop)?;
    let failure = carried.failure.take();
    let (written, archive) = (carried.written, carried.kept.take());
    let own = needs_timeline(&plan).then(|| carried.timeline(&plan));
    // As bytes first: the policies take the timeline itself.
    let bytes = own.as_ref().filter(|_| plan.timeline.is_some()).map(Timeline::to_bytes);
    let policies = own.filter(|_| needs_policies(&plan)).map(|own| policies(own, &plan));
    let comparison = Comparison { policies, ..carried.plain() };
    let mut writing = Writing::new(plan.notes.notes);
    let text = match plan.format {
        Format::Table => comparison.render_table(plan.show),
        format => comparison.render(format)?,
    };
    writing.data(&text, output, plan.output.as_deref());
    writing.file("timeline", timeline, plan.timeline.as_deref(), || Ok(bytes.unwrap_or_default()));
    let asked = plan.places.as_ref();
    let stacks =
        comparison.places.as_ref().zip(asked).map(|(p, asked)| p.places.folded(p.config, asked.count));
    writing.file("stacks", folded, asked.and_then(|a| a.folded.as_deref()), || {
        Ok(stacks.unwrap_or_default().into_bytes())
    });
    writing.file("report", report, plan.report.as_deref(), || Ok(comparison.render_html()?.into_bytes()));
    let kept = match (archive, &plan.keep) {
        (Some(archive), Some(dir)) => keep::unpack(archive, dir),
        _ => Ok(()),
    };
    if plan.notes.notes {
        tell(written, comparison.meta.exit, plan.keep.as_deref());
    }
    // The first thing that went wrong is the one to tell.
    if let Some(e) = failure {
        return Err(e);
    }
    writing.done()?;
    kept?;
    Ok(status(&plan.input, &comparison))
}

/// Carries out the plan's run once; `part` says which of several, for the progress line.
///
/// # Errors
/// If there is nothing to show. What fails later is in [`Carried::failure`].
pub fn carry_out(plan: &mut Plan, part: &str, stop: &AtomicBool) -> anyhow::Result<Carried> {
    let mut header = header(&plan.input);
    header.source.sample = plan.sample.or(header.source.sample);
    let writer = plan.record.as_deref().map(|p| Writer::create(p, &header)).transpose()?;
    let options = Options {
        seed: plan.seed,
        interval_seconds: plan.interval_seconds.unwrap_or(Options::default().interval_seconds),
        configs: plan.configs.clone(),
        guest_frames: header.guest_frames,
        vcpus: header.vcpus as usize,
    };
    let interval_s = options.interval_seconds;
    let places = plan.places.as_ref().map(|_| Attribution::new(&options.configs));
    let mut model = Model::new(&plan.profile, options);
    if places.is_some() {
        model.charge();
    }
    for on_line in &plan.on_line {
        let room = on_line.attach(&mut model, &plan.profile, interval_s, plan.time_scale);
        assert!(room, "resolve counts the regimes");
    }
    let progress = Progress::start(plan.notes.progress, doing(&plan.input)).prefix(part);
    let mut feed = Feed { model, places, thin: plan.thin.map(Thin::new), writer, unwritten: None, progress };
    let started = Instant::now();
    let mut ending = match &mut plan.input {
        Input::Guest(spec) => source::run_guest(spec, &mut feed, stop),
        Input::Recording(reader, _) => source::run_recording(reader, &mut feed, stop),
        Input::Generator(generator) => source::run_generator(generator, &mut feed, stop),
    };
    feed.progress.end();
    if plan.notes.verbose {
        eprintln!(
            "bifold: {:.1} million instructions and {:.1} million accesses in {:.1} s",
            feed.model.instructions() as f64 / 1e6,
            feed.model.accesses() as f64 / 1e6,
            started.elapsed().as_secs_f64()
        );
    }

    let nothing = feed.model.instructions() == 0 || ending.failure.as_ref().is_some_and(not_started);
    let damaged = matches!(plan.input, Input::Recording(..));
    if let Some(e) = ending.failure.take_if(|_| nothing || damaged) {
        return Err(e);
    }
    if let (Some(writer), Some(path)) = (feed.writer, &plan.record) {
        match writer.finish(&source::trailer(&ending)) {
            Ok(()) => note_file(plan.notes.notes, "events", path),
            Err(e) => feed.unwritten = Some(e),
        }
    }
    ending.failure = ending.failure.or(feed.unwritten.map(anyhow::Error::from));
    let meta = Meta {
        bifold: env!("CARGO_PKG_VERSION").into(),
        input: match &plan.input {
            Input::Guest(_) => bifold_report::Input::Guest,
            Input::Generator(g) => bifold_report::Input::Generator { name: g.to_string() },
            Input::Recording(_, path) => bifold_report::Input::Recording {
                path: path.to_string_lossy().into_owned(),
                generator: header.source.generator.clone(),
            },
        },
        guest: source::describe(&header, &ending),
        exit: ending.exit,
        partial: ending.partial,
        capture_checks: ending.stats,
        clock: ending.clock,
        hardware: plan.profile.clone(),
    };
    let (written, kept) = (ending.written, ending.kept);
    let outcome = feed.model.finish();
    let places =
        feed.places.zip(plan.places.as_ref()).map(|(p, asked)| Places::new(p.finish(), asked.config));
    Ok(Carried { meta, outcome, places, written, kept, failure: ending.failure })
}

/// The guest did not begin the command: what was recorded is only the guest's own.
fn not_started(e: &anyhow::Error) -> bool {
    matches!(e.downcast_ref(), Some(GuestError::NotStarted(_) | GuestError::WorkingDirectory(_)))
}

impl Carried {
    /// The run as it is shown, with policies over it if anyone sees them.
    pub fn comparison(self, plan: &Plan) -> Comparison {
        let policies = needs_policies(plan).then(|| policies(self.timeline(plan), plan));
        Comparison { policies, ..self.plain() }
    }

    /// The run without policies.
    pub fn plain(self) -> Comparison {
        Comparison { meta: self.meta, outcome: self.outcome, policies: None, places: self.places }
    }

    /// The run's own timeline.
    fn timeline(&self, plan: &Plan) -> Timeline {
        let guest = self.meta.guest.as_ref().map(|g| g.describe()).unwrap_or_default();
        let mut own = Timeline::of(&self.outcome, &plan.profile, self.meta.what(), guest);
        // A check of the file decides again, and has to do so at the same pace.
        own.about.time_scale = (!plan.on_line.is_empty()).then_some(plan.time_scale);
        own
    }
}

/// Does anyone see the policies? Over hundreds of intervals they cost some tenths of a second.
fn needs_policies(plan: &Plan) -> bool {
    let shown = match plan.format {
        Format::Table => plan.show.policies,
        Format::Json | Format::Jsonl => true,
        Format::Csv => false,
    };
    shown || plan.report.is_some() || !plan.on_line.is_empty()
}

fn needs_timeline(plan: &Plan) -> bool {
    plan.timeline.is_some() || needs_policies(plan)
}

/// Says on stderr what becomes of the files that the command wrote, and what its end suggests.
fn tell(written: Option<Written>, exit: Option<Exit>, keep: Option<&Path>) {
    let files = written.and_then(|w| keep::describe(w, keep));
    for line in files.into_iter().chain(exit.and_then(hint).map(String::from)) {
        eprintln!("bifold: {line}");
    }
}

/// What to do about an end that the guest may be to blame for.
fn hint(exit: Exit) -> Option<&'static str> {
    const SIGILL: i32 = 4;
    match exit {
        Exit::Signal(SIGILL) | Exit::Code(132) => Some(
            "an illegal instruction ended the command: the guest's processor has AVX2 but neither AVX-512 nor \
             AMX; build the program for x86-64-v3, or let its library choose the instructions at run time",
        ),
        Exit::OutOfMemory => {
            Some("the guest's memory was too small for the command: give it more with --memory")
        }
        _ => None,
    }
}

/// Policies over the run itself, in a VM as `bifold policy` takes it unless told otherwise.
fn policies(timeline: Timeline, plan: &Plan) -> RunPolicies {
    let checks = check::checks(&timeline);
    let n = timeline.intervals();
    let evaluation = match timeline.pairs.first() {
        _ if plan.sample.is_some() => Err("they need a timeline, and a sampled run has none".to_string()),
        None => Err("they need shadow and nested of one page size among --configs".to_string()),
        Some(_) if n < FEWEST_INTERVALS => Err(too_short(n).to_string()),
        Some(pair) => {
            let vm = Vm { host_page: pair.host_page, ..Vm::default() };
            let scale = Scale::both(plan.time_scale);
            let options = evaluate::Options { vm, scale, estimator: Some(Estimator::fitted()) };
            let input = evaluate::Input { name: "this run".into(), timeline };
            evaluate::evaluate(&[input], &Named::policies(), &options).map_err(|e| e.to_string())
        }
    };
    RunPolicies { evaluation, checks }
}

/// What the plan's source says of itself before it runs.
fn header(input: &Input) -> Header {
    match input {
        Input::Guest(spec) => Header {
            guest_frames: bifold_guest::guest_frames(spec),
            vcpus: spec.vcpus,
            source: source::guest_source(spec),
        },
        Input::Recording(reader, _) => reader.header().clone(),
        Input::Generator(g) => Header {
            guest_frames: g.guest_frames(),
            vcpus: 1,
            source: Source {
                bifold_version: env!("CARGO_PKG_VERSION").into(),
                generator: Some(g.to_string()),
                ..Source::default()
            },
        },
    }
}

fn doing(input: &Input) -> &'static str {
    match input {
        Input::Guest(_) => "starting the guest",
        Input::Recording(..) => "reading the recording",
        Input::Generator(_) => "generating events",
    }
}

/// A flag that the first Ctrl-C (or a request to terminate) sets. The run then
/// ends by itself and shows what it has.
pub fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot watch signals")?;
    }
    Ok(stop)
}

/// To stdout; a reader that has gone away is no failure.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e).context("cannot write to stdout"),
        _ => Ok(()),
    }
}

/// Says on stderr that a file is there.
pub fn note_file(notes: bool, what: &str, path: &Path) {
    if notes {
        eprintln!("bifold: {what} written to {}", path.display());
    }
}

/// The command's own status where a command was run just now, then the checks'.
pub fn status(input: &Input, comparison: &Comparison) -> Status {
    let live = matches!(input, Input::Guest(_));
    match comparison.meta.exit {
        Some(exit) if live && exit != Exit::Code(0) && exit != Exit::AfterRegion => Status::OfCommand(exit),
        _ if comparison.meta.partial == Some(bifold_report::Partial::Interrupted) => {
            Status::OfCommand(Exit::Interrupted)
        }
        _ if comparison.checks().1 > 0 => Status::CheckFailed,
        _ if comparison.policies.iter().flat_map(|p| &p.checks).any(|c| !c.passed()) => Status::CheckFailed,
        _ => Status::Done,
    }
}
