// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold tune`: a command under several settings of the guest, and what each setting of guest and host
//! would gain.

mod args;
mod settings;
mod state;

pub use args::TuneArgs;
pub use state::schema;

use crate::console::{Delivery, create, create_for_data, distinct, named, note, stop_on_signals};
use crate::doctor::needs::Needs;
use crate::run::source::{EventSource as _, Guest};
use crate::run::{self, Notes, carry_out, configs};
use crate::status::Status;
use crate::usage::UsageError;
use anyhow::{Context as _, bail};
use args::{Knob, PLACEMENTS};
use bifold_guest::{GuestSpec, Thp};
use bifold_model::{ChosenBy, Config, PlacementOptions, Profile, VmState};
use bifold_report::{
    Comparison, Format, Setting, Tried, TuneCost, TuneNow, Tuning, profile_choice, profile_words, shell_words,
};
use bifold_trace::CommandExit;
use settings::{Base, Order};
use state::State;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Paging modes and host page sizes that are compared in every run.
const CONFIGS: [&str; 6] = ["nested-4k", "nested-2m", "nested-1g", "shadow-4k", "shadow-2m", "shadow-1g"];
/// A configuration stays after the first run if it takes at most so much longer than the cheapest, in
/// percent.
const KEPT: f64 = 2.0;
/// Variable in which glibc's tunables stand.
const TUNABLES: &str = "GLIBC_TUNABLES";

/// What the verb needs of the machine.
pub const NEEDS: &[Needs] = &[Needs::of_guest("", None)];

/// Carries out the verb.
pub fn run(mut args: TuneArgs) -> anyhow::Result<Status> {
    let inputs =
        named([("the profile", args.model.named.file()), ("the kernel", args.guest.kernel.as_deref())]);
    let outputs = named([
        ("--output", args.output.as_deref()),
        ("--report", args.report.as_deref()),
        ("--state", args.state.as_deref()),
    ]);
    distinct(&inputs, &outputs)?;
    let known = choose(&mut args)?;
    let profile = match state::profile(args.state.as_deref())? {
        Some(own) => args.model.profile_or(|set| own.chosen_by(ChosenBy::State, "of --state", set))?,
        None => args.model.profile()?,
    };
    let mut spec = args.guest.clone().spec(args.command.clone(), &profile, args.model.seed)?;
    let state = State::open(args.state.as_deref(), state::identity(&args, &profile), &profile)?;
    let (report, output) = (create(args.report.as_deref())?, create_for_data(args.output.as_deref())?);
    let stop = stop_on_signals()?;
    // Every run has the input of the first.
    let mut source = Guest(Box::new(spec.clone()));
    source.prepare()?;
    spec.stdin = source.0.stdin;
    let mut job = Job {
        args: &args,
        profile: &profile,
        spec: &spec,
        stop: &stop,
        state,
        head: String::new(),
        begun: Instant::now(),
    };
    let (skipped, ended) = match args.all {
        true => job.every(&known)?,
        false => job.adaptive(&known)?,
    };
    let interrupted = Status::OfCommand(CommandExit::Interrupted);
    if ended && job.state.tried.is_empty() {
        note(!args.quiet, "stopped before the first run ended: there is nothing to rank");
        return Ok(interrupted);
    }
    let clock = profile.cpu.frequency_hz;
    let placed = job.state.tried.first().is_some_and(|t| t.costs.iter().any(|c| c.placement.is_some()));
    let skipped = skipped.into_iter().chain(no_placements(&args, &profile, placed)).collect();
    let now = TuneNow { config: &args.now, placement: placed.then_some(args.now_placed) };
    let tuning = Tuning::new(job.state.tried.clone(), &now, clock, skipped)
        .context("the file of --state has no run of the settings of now")?;
    let text = match args.format {
        Format::Json => tuning.json(&job.state.identity)?,
        _ => tuning.table(&job.head),
    };
    let mut delivery = Delivery::new(!args.quiet);
    delivery.data(&text, output);
    delivery.file("report", report, || Ok(html(&tuning, &args, &profile)?.into_bytes()));
    delivery.done()?;
    Ok(if ended { interrupted } else { Status::Done })
}

/// The report.
fn html(tuning: &Tuning, args: &TuneArgs, profile: &Profile) -> anyhow::Result<String> {
    let facts = vec![
        ("profile".into(), format!("{}, {}", profile_words(profile), profile_choice(profile))),
        ("VM".into(), format!("{}: {}", args.model.vm.name(), args.model.vm.words())),
        ("runs".into(), tuning.tried.len().to_string()),
    ];
    let words: Vec<_> = args.command.iter().map(|w| w.to_string_lossy()).collect();
    Ok(tuning.html(bifold_base::version(), &shell_words(&words), facts)?)
}

/// Checks the options, and chooses the configurations that are compared.
fn choose(args: &mut TuneArgs) -> anyhow::Result<Vec<Config>> {
    if let Some(option) = not_for_tune(args) {
        let problem = "is about a single run, and `tune` makes several: leave it out";
        return Err(UsageError::conflict(option, problem).into());
    }
    let names: Vec<&str> = args.axis.iter().map(|a| a.name.as_str()).collect();
    if let Some(twice) = (1..names.len()).find(|i| names[..*i].contains(&names[*i])) {
        let problem = "is given twice: name all values of an axis in one option";
        return Err(UsageError::conflict(format!("--axis {}", names[twice]), problem).into());
    }
    let now = Config::from_name(&args.now);
    let within = now.is_some_and(|now| now.mode.has_outer());
    if now.is_some_and(|now| !now.mode.is_offered() && !within) {
        let problem =
            "cannot be chosen in place of another: name nested or shadow paging, or a guest within a guest";
        return Err(UsageError::value(format!("--now {}", args.now), problem).into());
    }
    if args.model.configs.is_empty() {
        let tried = |c: &Config| match within {
            true => c.mode.has_outer(),
            false => CONFIGS.contains(&&*c.name()),
        };
        let vm = args.model.vm;
        let all = Config::KNOWN.into_iter().filter(|c| tried(c) && vm.has_pages(c.host_page));
        args.model.configs = all.map(Config::name).collect();
    }
    let known = configs(&args.model.configs)?;
    if !known.iter().any(|c| c.name() == args.now) {
        let names: Vec<String> = known.iter().map(|c| c.name()).collect();
        let vm = args.model.vm;
        let page = Config::from_name(&args.now).map(|c| c.host_page).filter(|page| !vm.has_pages(*page));
        let why = page.map_or(String::new(), |_| {
            format!(", as memory of a VM in the state {} has 4 KB pages", vm.name())
        });
        let problem = format!("is not among the configurations that are compared{why}: {}", names.join(", "));
        return Err(UsageError::conflict(format!("--now {}", args.now), problem).into());
    }
    Ok(known)
}

/// Why placements are not tried, where they are asked for.
fn no_placements(args: &TuneArgs, profile: &Profile, placed: bool) -> Option<String> {
    if !has_nodes(args) {
        return None;
    }
    if args.model.vm == VmState::LongLived {
        let why = "placement on nodes: follows the vCPU that touched a page first, and in a long-lived VM that was before the \
                   run: add --vm started";
        return Some(why.into());
    }
    let unknown = "does not know what remote memory costs (memory.remote_cycles)";
    (!placed).then(|| format!("placement on nodes: profile {} {unknown}", profile.name))
}

/// Whether placements are asked for: the guest has nodes, and the runs count every reference.
fn has_nodes(args: &TuneArgs) -> bool {
    let asked = args.r#try.is_empty() || args.r#try.contains(&Knob::Placement);
    asked
        && args.guest.guest_nodes.is_some_and(|n| n > 1)
        && args.guest.region.windows(args.model.seed).is_none()
}

/// The first option that is given and is about one run.
fn not_for_tune(args: &TuneArgs) -> Option<&'static str> {
    let (guest, region) = (&args.guest, &args.guest.region);
    let of_one = [
        (guest.keep.is_some(), "--keep"),
        (guest.hugetlb.is_some(), "--hugetlb"),
        (guest.fast, "--fast"),
        // As many instructions are another part of the program under other settings.
        (region.skip.is_some(), "--skip"),
        (region.length.is_some(), "--for"),
        (region.until.is_some(), "--until"),
    ];
    of_one.into_iter().find_map(|(given, option)| given.then_some(option))
}

/// The runs of one command.
struct Job<'a> {
    args: &'a TuneArgs,
    profile: &'a Profile,
    spec: &'a GuestSpec,
    stop: &'a AtomicBool,
    state: State,
    /// Lines on the first run.
    head: String,
    begun: Instant,
}

impl Job<'_> {
    fn base(&self) -> Setting {
        let own = self.args.axis.iter().map(|a| (a.name.clone(), a.values[0].clone())).collect();
        Setting { thp: self.spec.thp.word().into(), malloc: 0, kpti: self.spec.kpti, own }
    }

    /// Makes every run. Returns what was left out, and whether a signal ended the runs.
    fn every(&mut self, known: &[Config]) -> anyhow::Result<(Vec<String>, bool)> {
        let all = settings::all(&self.base(), &self.args.r#try, &self.args.axis);
        for (i, setting) in all.iter().enumerate() {
            if let Some(end) = self.end(&all[i..]) {
                return Ok(end);
            }
            if self.once(setting, known)?.is_none() {
                return Ok(stopped(&all[i..]));
            }
        }
        Ok((Vec::new(), false))
    }

    /// Makes the runs that can gain.
    fn adaptive(&mut self, known: &[Config]) -> anyhow::Result<(Vec<String>, bool)> {
        let base = self.base();
        let Some(of_base) = self.once(&base, known)? else { return Ok(stopped(&[base])) };
        let kept: Vec<Config> = known.iter().copied().filter(|c| self.stays(&c.name())).collect();
        loop {
            let (knobs, axes) = (&self.args.r#try, &self.args.axis);
            let order = Order { base: &base, knobs, axes, of_base };
            let gain = |s: &Setting| self.gain(s);
            let Some(setting) = order.next(&self.state.tried, gain) else {
                return Ok((order.left_out(gain), false));
            };
            if let Some(end) = self.end(std::slice::from_ref(&setting)) {
                return Ok(end);
            }
            if self.once(&setting, &kept)?.is_none() {
                return Ok(stopped(&[setting]));
            }
        }
    }

    /// Whether no further run is begun: what is left out then.
    fn end(&self, next: &[Setting]) -> Option<(Vec<String>, bool)> {
        if self.stop.load(Ordering::Relaxed) {
            return Some(stopped(next));
        }
        let longest = self.state.tried.iter().map(|t| t.seconds).fold(0.0, f64::max);
        let late = |within: f64| self.begun.elapsed().as_secs_f64() + longest > within;
        let late = self.args.within.is_some_and(late) && !self.state.tried.is_empty();
        late.then(|| (vec![format!("{}: would not end within --within", names(next))], false))
    }

    /// The cheapest configuration of a run, in cycles.
    fn cheapest(&self, setting: &Setting) -> Option<&TuneCost> {
        let tried = self.state.tried.iter().find(|t| t.setting == *setting)?;
        tried.costs.iter().min_by(|a, b| a.cycles.total_cmp(&b.cycles))
    }

    /// What a run's cheapest configuration gains against that of now, in percent.
    fn gain(&self, setting: &Setting) -> Option<f64> {
        let (now, then) = (self.cheapest(&self.base())?, self.cheapest(setting)?);
        Some(100.0 * (1.0 - then.cycles / now.cycles))
    }

    /// Whether a configuration is modelled after the first run: that of now, and those not far from the
    /// cheapest.
    fn stays(&self, config: &str) -> bool {
        let Some(first) = self.state.tried.first() else { return true };
        let cheapest = first.costs.iter().map(|c| c.cycles).fold(f64::INFINITY, f64::min);
        let near = |c: &&TuneCost| c.config == config && c.cycles <= cheapest * (1.0 + KEPT / 100.0);
        config == self.args.now || first.costs.iter().any(|c| near(&c))
    }

    /// Makes the run of a setting, unless it was made. Returns what the run says about huge pages; nothing if
    /// a signal ended the run.
    fn once(&mut self, setting: &Setting, configs: &[Config]) -> anyhow::Result<Option<Base>> {
        if let Some(base) = self.state.known(setting) {
            return Ok(Some(base));
        }
        let name = setting.words();
        note(!self.args.quiet, format_args!("runs with {name}"));
        let begun = Instant::now();
        let source = Guest(Box::new(self.under(setting)));
        let notes = Notes::new(self.args.quiet, false);
        let mut plan = run::Plan::new(Box::new(source), self.profile.clone(), &self.args.model, notes)?;
        plan.sample = self.args.guest.region.windows(self.args.model.seed);
        plan.configs = configs.to_vec();
        if has_nodes(self.args) && self.args.model.vm != VmState::LongLived {
            let guest_nodes = bifold_guest::guest_nodes(self.spec);
            let host_nodes = guest_nodes.len().max(2) as u8;
            plan.placed = Some(PlacementOptions { placements: PLACEMENTS.to_vec(), host_nodes, guest_nodes });
        }
        let carried = carry_out(&mut plan, &format!("{name}: "), self.stop);
        if self.stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let mut carried = carried.with_context(|| name.clone())?;
        if let Some(e) = carried.failure.take() {
            return Err(e.context(name));
        }
        let comparison = carried.plain();
        whole(&comparison).with_context(|| name.clone())?;
        let costs = TuneCost::of(&comparison);
        let cheapest =
            costs.iter().min_by(|a, b| a.cycles.total_cmp(&b.cycles)).context("there are configurations")?;
        let faults = comparison.outcome.configs.first().map_or(0, |c| c.total.guest_page_faults);
        let base = Base::of(cheapest.cycles, cheapest.walk_cycles, faults);
        if self.head.is_empty() {
            self.head = comparison.render_head();
        }
        // A fault maps a page: with THP always, most are of 2 MB.
        let page = if setting.thp == "always" { 2 << 20 } else { 4 << 10 };
        let touched_bytes = faults.saturating_mul(page);
        let seconds = begun.elapsed().as_secs_f64();
        let tried = Tried { setting: setting.clone(), seconds, costs, touched_bytes };
        self.state.add(tried, base)?;
        Ok(Some(base))
    }

    /// The guest with this setting.
    fn under(&self, setting: &Setting) -> GuestSpec {
        let mut spec = self.spec.clone();
        spec.thp = [Thp::Always, Thp::Madvise, Thp::Never]
            .into_iter()
            .find(|t| t.word() == setting.thp)
            .unwrap_or(spec.thp);
        spec.kpti = setting.kpti;
        for (name, value) in &setting.own {
            set_own(&mut spec, name, value);
        }
        if setting.malloc > 0 {
            let before = spec.env.iter().position(|(name, _)| name == TUNABLES).map(|i| spec.env.remove(i).1);
            let mut value = before.map_or(Default::default(), |mut v| {
                v.push(":");
                v
            });
            value.push(format!("glibc.malloc.hugetlb={}", setting.malloc));
            spec.env.push((TUNABLES.into(), value));
        }
        if setting.malloc == 2 {
            spec.hugetlb_mib = self.pool(spec.memory_mib);
        }
        spec
    }

    /// MiB that the guest reserves for hugetlbfs: what the program touched, and a quarter more.
    fn pool(&self, memory_mib: u64) -> u64 {
        let used = self.state.tried.first().map_or(u64::MAX, |t| t.touched_bytes) >> 20;
        (used.saturating_add(used / 4)).min(memory_mib / 2).next_multiple_of(2)
    }
}

/// Sets a value of an axis: in place of `{name}` in the command, or else as the environment variable `name`.
fn set_own(spec: &mut GuestSpec, name: &str, value: &str) {
    let mark = format!("{{{name}}}");
    let mut found = false;
    for word in &mut spec.command {
        if let Some(text) = word.to_str().filter(|text| text.contains(&mark)) {
            *word = text.replace(&mark, value).into();
            found = true;
        }
    }
    if !found {
        spec.env.retain(|(known, _)| known != name);
        spec.env.push((name.into(), value.into()));
    }
}

/// What is left out by a signal before these runs ended.
fn stopped(before: &[Setting]) -> (Vec<String>, bool) {
    (vec![format!("stopped before {}", names(before))], true)
}

fn names(settings: &[Setting]) -> String {
    settings.iter().map(Setting::words).collect::<Vec<_>>().join("; ")
}

/// Refuses a run that is not of the whole command.
fn whole(c: &Comparison) -> anyhow::Result<()> {
    match (c.meta.exit, c.meta.partial) {
        (_, Some(partial)) => bail!("{}", partial.describe()),
        (Some(CommandExit::Code(0) | CommandExit::AfterRegion), None) | (None, None) => Ok(()),
        (Some(exit), None) => bail!("the command failed: {}", exit.describe()),
    }
}
