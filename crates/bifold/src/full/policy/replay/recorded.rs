// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replays over recordings of real VMs: when a policy would have wanted the other mode.

use super::{ReplayArgs, Setting};
use crate::console::print;
use crate::full::policy::setting::{OtherArg, policies, refuse_for_recordings};
use crate::status::Status;
use crate::usage::UsageError;
use bifold_daemon::{Config, Verdict};
use bifold_live::recording::{self, RecordedVm};
use bifold_live::replay::replay;
use bifold_policy::{Decision, Mode, Named, UnknownCounter};
use bifold_report::{Format, wrapped};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;

/// Name and version of the document.
const SCHEMA: &str = "bifold.policy-replay-recorded/1";

/// What `bifold policy replay --format json` writes over recordings of real VMs: when a policy would have
/// chosen the other mode.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// Each policy over each VM.
    replays: Vec<Row<'a>>,
}

/// A policy over a VM.
#[derive(Serialize, JsonSchema)]
struct Row<'a> {
    /// KVM's identifier of the VM.
    vm: &'a str,
    /// The VM's name; the identifier if the recording has none.
    name: &'a str,
    /// The policy.
    policy: &'a str,
    /// Number of intervals recorded.
    intervals: usize,
    /// Why the policy cannot decide over this recording; null if the policy can.
    refused: Option<String>,
    /// Number of intervals that the policy could not see; null if the policy is refused, and with `--config`.
    left_out: Option<usize>,
    /// The decisions, in order of time; null if the policy is refused.
    decisions: Option<Vec<DecisionRow<'a>>>,
}

/// A decision.
#[derive(Serialize, JsonSchema)]
struct DecisionRow<'a> {
    /// End of the interval after which the policy decided. Unit: s since 1970.
    time: f64,
    /// The VM's mode in the interval; null if not known.
    was: Option<Mode>,
    /// The mode that the policy chose.
    mode: Mode,
    /// Why, for people: the value that the policy looked at, and the threshold.
    why: &'a str,
    /// What the daemon's limits allow: `stay`, `switch`, `too-early` or `too-many`; null without `--config`.
    verdict: Option<&'static str>,
}

/// The schema of the document.
pub fn schema() -> Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

/// Refuses options that say nothing about a recording.
fn refuse(args: &ReplayArgs) -> Result<(), UsageError> {
    let options = [
        ("--check", args.check),
        ("--start", Mode::from(args.start) != Mode::Nested),
        ("--other known", args.vm.other != OtherArg::Estimated),
        ("--dropped", args.vm.dropped),
        ("--time-scale", args.vm.time_scale != 100.0),
    ];
    refuse_for_recordings(&options)
}

/// One policy over one VM.
struct Replayed<'a> {
    vm: &'a RecordedVm,
    policy: String,
    replay: Result<Replay, UnknownCounter>,
}

/// What a policy decided over a VM.
#[derive(Default)]
struct Replay {
    decided: Vec<Decided>,
    /// Number of intervals that the policy could not see. The daemon's pilots do not count them.
    left_out: Option<usize>,
}

/// A decision after an interval.
struct Decided {
    interval: usize,
    decision: Decision,
    /// What the daemon's limits say.
    verdict: Option<Verdict>,
}

/// Replays one policy, without limits.
fn of_policy<'a>(vm: &'a RecordedVm, named: &Named, setting: &Setting) -> Replayed<'a> {
    let replay = replay(vm, &named.spec, setting.estimator.as_ref()).map(|replay| {
        let decided = replay.decided.into_iter();
        let decided = decided.map(|d| Decided { interval: d.interval, decision: d.decision, verdict: None });
        Replay { decided: decided.collect(), left_out: Some(replay.left_out) }
    });
    Replayed { vm, policy: named.name.clone(), replay }
}

/// Replays the daemon's rule for a VM, limits included; `None` if no rule fits.
fn of_rule<'a>(vm: &'a RecordedVm, config: &Config) -> Option<Replayed<'a>> {
    let rule = bifold_daemon::replay::rule(vm, config)?;
    let replay = bifold_daemon::replay::replay(vm, rule, config).map(|decided| {
        let decided = decided.into_iter().map(|d| Decided {
            interval: d.interval,
            decision: d.choice.decision,
            verdict: Some(d.choice.verdict),
        });
        Replay { decided: decided.collect(), left_out: None }
    });
    Some(Replayed { vm, policy: rule.policy().unwrap_or_default().to_string(), replay })
}

/// A time in which both the VM's mode and the policy's wish stayed.
struct Span {
    from: f64,
    to: f64,
    was: Mode,
    wants: Mode,
}

/// Replays and prints.
pub fn run(args: &ReplayArgs) -> anyhow::Result<Status> {
    refuse(args)?;
    let setting = Setting::new(&args.vm)?;
    let policies = policies(&args.which)?;
    let mut vms = Vec::new();
    for path in &args.timelines {
        vms.extend(recording::read(path)?);
    }
    let all: Vec<Replayed> = match &args.config {
        Some(path) => {
            let config = Config::read(path)?;
            vms.iter().filter_map(|vm| of_rule(vm, &config)).collect()
        }
        None => {
            let of_vm = |vm| policies.iter().map(|named| of_policy(vm, named, &setting)).collect::<Vec<_>>();
            vms.iter().flat_map(of_vm).collect()
        }
    };
    if all.is_empty() {
        let problem = "has no rule for a VM of these recordings";
        return Err(UsageError::value("--config", problem).failing().into());
    }
    // Some policies need what a host cannot count. A named one must work for some VM.
    if !args.which.policy.is_empty() && all.iter().all(|r| r.replay.is_err()) {
        if let Some(e) = all.iter().find_map(|r| r.replay.as_ref().err()) {
            return Err(e.clone().into());
        }
    }
    print(&match args.format {
        Format::Json => {
            let replays = all.iter().map(row).collect();
            let document = Document { schema: SCHEMA, bifold: bifold_base::version(), replays };
            serde_json::to_string_pretty(&document)? + "\n"
        }
        _ => all.iter().map(|r| text(r, args.explain)).collect::<Vec<_>>().join("\n"),
    })?;
    Ok(Status::Done)
}

/// The start of a VM's recording.
fn start(vm: &RecordedVm) -> f64 {
    vm.intervals.first().map_or(0.0, |i| i.time - i.seen.seconds)
}

/// The spans of a replay: a decision holds until the next.
fn spans(vm: &RecordedVm, decided: &[Decided]) -> Vec<Span> {
    let mut spans: Vec<Span> = Vec::new();
    let mut wish = None;
    let mut decided = decided.iter().peekable();
    for (n, interval) in vm.intervals.iter().enumerate() {
        let Some(was) = interval.seen.mode else { continue };
        let (from, to) = (interval.time - interval.seen.seconds - start(vm), interval.time - start(vm));
        let wants = wish.unwrap_or(was);
        match spans.last_mut() {
            Some(last) if last.was == was && last.wants == wants => last.to = to,
            _ => spans.push(Span { from, to, was, wants }),
        }
        if let Some(d) = decided.next_if(|d| d.interval == n) {
            wish = Some(d.decision.mode);
        }
    }
    spans
}

/// Whether a decision asks for another mode than the VM's.
fn asks(vm: &RecordedVm, d: &Decided) -> bool {
    vm.intervals[d.interval].seen.mode != Some(d.decision.mode)
}

fn text(r: &Replayed, explain: bool) -> String {
    let name: String = r.vm.name.chars().flat_map(char::escape_debug).collect();
    let all = r.vm.intervals.len();
    let mut out = wrapped(&format!("{} over {name} ({}): {all} intervals", r.policy, r.vm.vm), 2);
    let Replay { decided, left_out } = match &r.replay {
        Ok(replay) => replay,
        Err(e) => return out + &wrapped(&format!("  {e}"), 2),
    };
    if let Some(left_out) = left_out.filter(|n| *n > 0) {
        let why = "the VM was switched in them, or they lack a counter that the policy needs";
        out += &wrapped(&format!("  {left_out} of them are left out: {why}"), 2);
    }
    out += "   start s      end s  was     wants\n";
    for s in spans(r.vm, decided) {
        let _ = writeln!(out, "{:>10.1} {:>10.1}  {:<6}  {:<6}", s.from, s.to, s.was.name(), s.wants.name());
    }
    let other = decided.iter().filter(|d| asks(r.vm, d)).count();
    out += &format!("  decisions {}, {other} of them for the other mode\n", decided.len());
    if explain {
        for d in decided {
            let at = r.vm.intervals[d.interval].time - start(r.vm);
            let arrow = if asks(r.vm, d) { "->" } else { "  " };
            let verdict = d
                .verdict
                .filter(|v| *v != Verdict::Stay)
                .map_or(String::new(), |v| format!("{}: ", v.word()));
            let line =
                format!("{at:>10.1} s  {arrow} {}  {verdict}{}", d.decision.mode.name(), d.decision.why);
            out += &wrapped(&line, 25);
        }
    }
    out
}

fn row<'a>(r: &'a Replayed) -> Row<'a> {
    let decision = |d: &'a Decided| DecisionRow {
        time: r.vm.intervals[d.interval].time,
        was: r.vm.intervals[d.interval].seen.mode,
        mode: d.decision.mode,
        why: &d.decision.why,
        verdict: d.verdict.map(|v| v.word()),
    };
    Row {
        vm: &r.vm.vm,
        name: &r.vm.name,
        policy: &r.policy,
        intervals: r.vm.intervals.len(),
        refused: r.replay.as_ref().err().map(ToString::to_string),
        left_out: r.replay.as_ref().ok().and_then(|r| r.left_out),
        decisions: r.replay.as_ref().ok().map(|r| r.decided.iter().map(decision).collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser as _;
    use std::path::Path;

    #[derive(Debug, clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: ReplayArgs,
    }

    fn line(n: u32, mode: &str, misses: u32, faults: u32) -> String {
        format!(
            "{{\"schema\":\"bifold.stat/1\",\"time\":{}.0,\"seconds\":5.0,\"vm\":\"9-7\",\"name\":\"web\",\"mode\":\"{mode}\",\
             \"instructions\":1000000,\"tlb_misses_4k\":{misses},\"tlb_misses_2m\":0,\"tlb_misses_1g\":0,\
             \"guest_page_faults\":{faults}}}\n",
            1000 + 5 * n
        )
    }

    fn recorded(text: &str) -> Vec<RecordedVm> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("r");
        std::fs::write(&path, text).unwrap();
        recording::read(&path).unwrap()
    }

    #[test]
    fn spans_say_what_the_policy_wanted_while_the_vm_was_in_a_mode() {
        let rows: String = (0..4).map(|n| line(n, "nested", 50_000, 0)).collect();
        let more: String = (4..6).map(|n| line(n, "shadow", 0, 50_000)).collect();
        let vm = &recorded(&(rows + &more))[0];
        let dsp = bifold_policy::Named::load("dsp").unwrap();
        let setting = Setting { estimator: None, ..setting() };
        let r = of_policy(vm, &dsp, &setting);
        insta::assert_snapshot!(text(&r, false), @r"
        dsp over web (9-7): 6 intervals
           start s      end s  was     wants
               0.0        5.0  nested  nested
               5.0       20.0  nested  shadow
              20.0       25.0  shadow  shadow
              25.0       30.0  shadow  nested
          decisions 6, 6 of them for the other mode
        ");
        let rpms = bifold_policy::Named::load("rpms-dynamic").unwrap();
        let r = of_policy(vm, &rpms, &setting);
        assert!(text(&r, true).contains("needs the counter `walk_cycles`"), "{}", text(&r, true));
        assert!(row(&r).decisions.is_none());
    }

    fn setting() -> Setting {
        Setting::new(&Line::try_parse_from(["replay", "FILE"]).unwrap().args.vm).unwrap()
    }

    #[test]
    fn a_rule_of_the_daemon_has_its_limits() {
        let rows: String = (0..9).map(|n| line(n, "nested", 50_000, 0)).collect();
        let vm = &recorded(&rows)[0];
        let config = |text: &str| Config::parse(text, Path::new("c.toml")).unwrap();
        let rule = "interval_s = 5\n[[vm]]\nname = \"web\"\npolicy = \"dsp\"\n";
        let replayed = of_rule(vm, &config(rule)).unwrap();
        let text = text(&replayed, true);
        assert!(text.contains("-> shadow  switch: "), "{text}");
        assert_eq!(row(&replayed).decisions.unwrap()[0].verdict, Some("switch"));
        assert!(of_rule(vm, &config(&rule.replace("web", "db"))).is_none());
    }

    #[test]
    fn options_of_timelines_are_refused() {
        for option in
            [&["--check"][..], &["--start", "shadow"], &["--other", "known"], &["--time-scale", "2"]]
        {
            let args = Line::try_parse_from([&["replay", "FILE"], option].concat()).unwrap().args;
            assert!(refuse(&args).unwrap_err().to_string().contains("is for timelines"), "{option:?}");
        }
        assert_eq!(refuse(&Line::try_parse_from(["replay", "FILE"]).unwrap().args), Ok(()));
    }
}
