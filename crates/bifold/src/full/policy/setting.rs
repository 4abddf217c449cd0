// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options of several policy verbs, and what they become: timelines, policies and a VM.

use crate::console::{self, distinct};
use crate::run::policies::{FEWEST_INTERVALS, too_short};
use crate::run::source::what_else;
use crate::usage::{UsageError, to_blame};
use crate::words;
use anyhow::Context as _;
use bifold_base::bounded;
use bifold_live::recording;
use bifold_mmu::PageSize;
use bifold_model::VmState;
use bifold_policy::evaluate::{self, EvaluateError, Input, Options};
use bifold_policy::sweep::{Axis, settings};
use bifold_policy::{Estimator, Named, Scale, SpecError, Timeline, Track, VmKind};
use clap::{Args, ValueEnum};
use std::path::{Path, PathBuf};

/// Folder of the suite's timelines in the repository.
const CHECKED_IN: &str = "evidence/timelines";

/// Options that choose policies.
#[derive(Debug, Args)]
pub struct WhichArgs {
    /// A policy: a built-in name or a TOML file (repeatable) [default: all built in]
    #[arg(long, value_name = "NAME|FILE")]
    pub policy: Vec<String>,

    /// Change one parameter of the policy (repeatable); for a single --policy
    #[arg(long, value_name = "KEY=VALUE", requires = "policy")]
    pub set: Vec<String>,
}

/// Options of the VM and of policies' view.
#[derive(Debug, Args)]
#[command(next_help_heading = "VM")]
pub struct VmArgs {
    /// Count each second of the run as N seconds for policies
    ///
    /// Published policies decide every 1 to 5 s, and a captured run lasts seconds. So policies see their time
    /// compressed by N, and switching costs are compressed too, to keep their share of an interval. With 1,
    /// neither is compressed.
    #[arg(long, value_name = "N", value_parser = words::time_scale, default_value = "100")]
    pub time_scale: f64,

    /// Size of the host's pages
    #[arg(long, value_enum, default_value_t = HostPage::Small, value_name = "4k|2m", hide_possible_values = true)]
    pub host_page: HostPage,

    /// Drop the nested tables at a switch to shadow mode instead of keeping them
    #[arg(long)]
    pub dropped: bool,

    /// How policies that need it learn the cost of the other mode
    ///
    /// `estimated`: from the counters of the mode that the VM is in, as on a live host. `known`: from the
    /// timeline, which shows what an exact estimate would be worth.
    #[arg(long, value_enum, default_value_t = OtherArg::Estimated, value_name = "estimated|known",
          hide_possible_values = true)]
    pub other: OtherArg,

    /// File with the estimate's coefficients [default: built in]
    #[arg(long, value_name = "FILE.toml")]
    pub estimator: Option<PathBuf>,
}

/// Size of the host's pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum HostPage {
    #[value(name = "4k")]
    Small,
    #[value(name = "2m")]
    Large,
}

/// The source of the other mode's cost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // documented at `--other`
pub enum OtherArg {
    Estimated,
    Known,
}

/// The VM, and what policies see of it.
pub struct Setting {
    /// The kind of VM.
    pub vm: VmKind,
    /// Scale between a policy's time and the timelines' time.
    pub scale: Scale,
    /// Estimates the other mode's cost; none if the timeline tells the cost.
    pub estimator: Option<Estimator>,
}

impl Setting {
    /// The setting of these options.
    pub fn new(args: &VmArgs) -> anyhow::Result<Setting> {
        let estimator = match (args.other, &args.estimator) {
            (OtherArg::Known, Some(_)) => {
                let problem = "is for `--other estimated`: with `--other known`, nothing is estimated";
                return Err(UsageError::conflict("--estimator", problem).into());
            }
            (OtherArg::Known, None) => None,
            (OtherArg::Estimated, None) => Some(Estimator::fitted().clone()),
            (OtherArg::Estimated, Some(path)) => Some(estimator(path)?),
        };
        let host_page = match args.host_page {
            HostPage::Small => PageSize::Size4K,
            HostPage::Large => PageSize::Size2M,
        };
        let vm = VmKind { host_page, keep_nested: !args.dropped };
        Ok(Setting { vm, scale: Scale::both(args.time_scale), estimator })
    }

    /// The options of an evaluation in this setting.
    pub fn options(&self) -> Options<'_> {
        Options { vm: self.vm, scale: self.scale, estimator: self.estimator.as_ref() }
    }
}

fn estimator(path: &Path) -> anyhow::Result<Estimator> {
    let text = bounded::read_to_string(path, bounded::TEXT)
        .with_context(|| format!("cannot read {}", path.display()))?;
    Estimator::parse(&text)
        .map_err(|e| anyhow::anyhow!("estimator {}: {}", path.display(), e.to_string().trim_end()))
}

/// Whether the files are recordings; an error if only some are.
pub fn are_recordings(files: &[PathBuf]) -> Result<bool, UsageError> {
    // A file that cannot be opened has its error where timelines are read.
    let is = |path: &PathBuf| recording::is_recording(path).unwrap_or(false);
    let recordings = files.iter().filter(|path| is(path)).count();
    if recordings > 0 && recordings < files.len() {
        return Err(UsageError::conflict("TIMELINE", "names recordings and timelines: give one kind"));
    }
    Ok(recordings > 0)
}

/// Refuses the first of these options that is given: it says nothing about a recording.
pub fn refuse_for_recordings(options: &[(&str, bool)]) -> Result<(), UsageError> {
    match options.iter().find(|(_, given)| *given) {
        Some((option, _)) => {
            Err(UsageError::conflict(*option, "is for timelines of `compare`, not for recordings"))
        }
        None => Ok(()),
    }
}

/// Refuses an output that is also an input, or another output.
pub fn distinct_files(
    timelines: &[PathBuf],
    policies: &[String],
    vm: &VmArgs,
    outputs: &[console::Named],
) -> Result<(), UsageError> {
    let found = if timelines.is_empty() { checked_in() } else { timelines.to_vec() };
    let mut inputs: Vec<console::Named> = found.iter().map(|t| ("a timeline", t.as_path())).collect();
    inputs.extend(policies.iter().map(|p| ("a policy", Path::new(p))));
    inputs.extend(vm.estimator.iter().map(|e| ("the estimator", e.as_path())));
    distinct(&inputs, outputs)
}

/// The policies of `--policy`; all built-in policies without it.
pub fn policies(which: &WhichArgs) -> anyhow::Result<Vec<Named>> {
    let mut policies: Vec<Named> = Vec::new();
    for name in &which.policy {
        let mut named = load("--policy", name)?;
        if policies.iter().any(|p| p.name == named.name) {
            // The paths distinguish two files with the same name.
            if policies.iter().any(|p| p.name == *name) {
                return Err(UsageError::conflict(format!("--policy {name}"), "is given twice").into());
            }
            named.name = name.clone();
        }
        policies.push(named);
    }
    match &mut policies[..] {
        [] => return Ok(Named::policies()),
        [one] => *one = with(one, &which.set)?,
        _ if !which.set.is_empty() => {
            return Err(UsageError::conflict("--set", "changes one --policy, and several are given").into());
        }
        _ => {}
    }
    Ok(policies)
}

/// The policy of that name, or in that file; `argument` is the one that names it.
pub fn load(argument: &str, name: &str) -> anyhow::Result<Named> {
    Named::load(name).map_err(|e| match e {
        SpecError::Unknown { known, .. } => {
            let problem = format!("there is no such policy: give one of {known} or a TOML file");
            UsageError::value(format!("{argument} {name}"), problem).failing().into()
        }
        other => other.into(),
    })
}

/// The policy with some parameters changed, each `KEY=VALUE`; its name says so.
///
/// # Errors
/// A usage error that names the `--set` to blame.
pub fn with(named: &Named, settings: &[String]) -> anyhow::Result<Named> {
    changed(named, settings).map_err(|e| match e.downcast::<SpecError>() {
        Ok(e) => {
            let argument = to_blame(settings, |set| changed(named, set).is_ok());
            UsageError::value(argument, e).failing().into()
        }
        Err(e) => e,
    })
}

/// The policy with one length of its interval, in seconds.
pub fn with_interval(named: &Named, seconds: f64) -> anyhow::Result<Named> {
    let one =
        changed(named, &[format!("interval_s={seconds}")]).map_err(|e| match e.downcast::<SpecError>() {
            Ok(e) => UsageError::value(format!("--interval {seconds}"), e).failing().into(),
            Err(e) => e,
        })?;
    Ok(Named { name: format!("{} {seconds} s", named.name), ..one })
}

fn changed(named: &Named, settings: &[String]) -> anyhow::Result<Named> {
    if settings.is_empty() {
        return Ok(named.clone());
    }
    let mut changes = toml::Table::new();
    for setting in settings {
        let refused = |problem: String| UsageError::value(format!("--set {setting}"), problem).failing();
        let (key, value) = setting.split_once('=').ok_or_else(|| refused("write it as KEY=VALUE".into()))?;
        let key = key.trim();
        if key == "policy" || key.is_empty() {
            return Err(refused(format!("name a parameter of {}", named.name)).into());
        }
        let value = value.trim();
        let value = match toml::from_str::<toml::Table>(&format!("v = {value}")) {
            Ok(mut t) => t.remove("v").unwrap_or_else(|| value.into()),
            // A bare word is a string.
            Err(_) => value.into(),
        };
        changes.insert(key.into(), value);
    }
    let checked = named.with(&changes)?;
    Ok(Named { name: format!("{} {}", named.name, settings.join(" ")), ..checked })
}

/// The timelines under their files' names; the suite's if none is given.
pub fn timelines(paths: &[PathBuf]) -> anyhow::Result<Vec<Input>> {
    let found;
    let paths = match paths {
        [] => {
            found = checked_in();
            if found.is_empty() {
                return Err(UsageError::missing("TIMELINE", no_timeline()).into());
            }
            &found
        }
        some => some,
    };
    let stem =
        |p: &Path| p.file_stem().map_or_else(|| p.to_string_lossy(), |s| s.to_string_lossy()).into_owned();
    let name = |p: &PathBuf| {
        let short = stem(p);
        // The paths distinguish two timelines with the same name.
        let alone = paths.iter().filter(|q| stem(q) == short).count() == 1;
        if alone { short } else { p.to_string_lossy().into_owned() }
    };
    let read = |p: &PathBuf| -> anyhow::Result<Input> {
        let timeline =
            Timeline::read(p).map_err(|e| what_else(p).map_or_else(|| e.into(), anyhow::Error::msg))?;
        match timeline.intervals() {
            n if n < FEWEST_INTERVALS => {
                Err(too_short(n)).with_context(|| format!("timeline {}", p.display()))
            }
            _ => Ok(Input { name: name(p), timeline }),
        }
    };
    paths.iter().map(read).collect()
}

/// The track of a timeline's VM, for replays.
pub fn track(input: &Input, setting: &Setting) -> anyhow::Result<Track> {
    let none = || EvaluateError::NoHostPage {
        name: input.name.clone(),
        wanted: setting.vm.host_page,
        there: input.timeline.pages.iter().map(|p| p.host_page).collect(),
    };
    Track::new(&input.timeline, setting.vm).ok_or_else(|| unusable(none()).into())
}

/// The state of the VMs of all these timelines.
pub fn one_state(inputs: &[Input]) -> Result<VmState, UsageError> {
    evaluate::state(inputs.iter().map(|i| (i.name.as_str(), &i.timeline))).map_err(unusable)
}

/// The usage error for timelines that lack the pages of `--host-page`, or that do not belong together.
pub fn unusable(error: EvaluateError) -> UsageError {
    let argument = match &error {
        EvaluateError::NoHostPage { wanted: PageSize::Size4K, .. } => "--host-page 4k",
        EvaluateError::NoHostPage { .. } => "--host-page 2m",
        _ => "TIMELINE",
    };
    UsageError::value(argument, error).failing()
}

/// The suite's timelines, if the current directory is the repository's root.
fn checked_in() -> Vec<PathBuf> {
    let entries = std::fs::read_dir(CHECKED_IN).into_iter().flatten().flatten();
    let timeline = |p: &PathBuf| p.extension().is_some_and(|e| e == "timeline");
    let mut paths: Vec<PathBuf> = entries.map(|e| e.path()).filter(timeline).collect();
    paths.sort();
    paths
}

fn no_timeline() -> String {
    format!(
        "name timelines (`bifold compare --timeline FILE -- CMD` writes one), or run this in Bifold's \
         repository, which has some in {CHECKED_IN}"
    )
}

/// The usage error for a grid that the policy refuses. Names the `--set` that is refused alone; `--set` if
/// none is.
pub fn no_grid(policy: &Named, axes: &[Axis], set: &[String], error: SpecError) -> UsageError {
    let refused = |(_, axis): &(&String, &Axis)| settings(policy, std::slice::from_ref(axis)).is_err();
    let argument =
        set.iter().zip(axes).find(refused).map_or("--set".into(), |(text, _)| format!("--set {text}"));
    UsageError::value(argument, error).failing()
}

/// The axes of a grid that `--set KEY=VALUES` spans.
pub fn axes(set: &[String]) -> Result<Vec<Axis>, UsageError> {
    set.iter().map(|text| Axis::parse(text).map_err(|e| UsageError::value("--set", e.to_string()))).collect()
}
