// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that start from their plans, in a laboratory with two nodes: `bifold place plan` plans and writes
//! QEMU's command line, `apply` sets the host and pins, `check` looks, `undo` takes back.
//!
//! A sound guest has no finding. A planted mistake is named. Behind every guest, and behind `apply` killed at
//! many moments, the host is as it was. One guest boots: what its kernel says of nodes and distances is what
//! the plan says. Other guests stay paused before their first instruction, when memory and threads are
//! already in place.

mod cases;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::guests::{CPUS_OF_NODE, NODES};
use crate::BUSYBOX;
use crate::lab::job::{Job, at};
use crate::lab::{Lab, Output, Plan, beside};
use cases::{DONE, MOVED, Mistake, OTHERS, SOUND, STARTED, TWO_NODES, Wishes};

/// Shell functions of the host.
const HOST: &str = include_str!("host.sh");
/// Where the initramfs of the guest that boots lies.
const INITRD: &str = "/lab/inner/planned.cpio";
/// Memory of the laboratory.
const MIB: u64 = 3072;
/// Moments at which `apply` is killed, and microseconds between them.
const KILLS: (u32, u32) = (50, 8000);
/// The mistake of a host whose guest does not run.
const POOL_SHORT: &str = "pool-short";
/// Time limits of a boot, in seconds.
const SECONDS: u64 = 2400;
const QUICK_SECONDS: u64 = 400;

/// What a guest's kernel says of its nodes.
const GUEST: &str = r#"
$B mount -t proc proc /proc; $B mount -t sysfs sysfs /sys
$B grep . /sys/devices/system/node/node*/cpulist /sys/devices/system/node/node*/distance | $B sed 's/^.*node\//@node /'
echo @end
$B sleep 10000
"#;
const APPEND: &str = "console=ttyS0 quiet panic=-1 rdinit=/init no_timer_check tsc=reliable mitigations=off random.trust_cpu=on";

/// A case's outcome.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedOutcome {
    /// The case: a finding, or `sound-` and the wishes.
    pub name: String,
    /// Why it failed, if it did.
    pub failed: Option<String>,
}

/// Names of sound guests begin with this.
pub const SOUND_CASE: &str = "sound-";

/// How much is tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// The guest that boots, and some mistakes.
    Quick,
    /// Everything.
    All,
}

/// The findings of all planted mistakes.
pub fn mistakes() -> impl Iterator<Item = &'static str> {
    [&STARTED[..], &DONE, &MOVED, &OTHERS].into_iter().flatten().map(|m| m.finding).chain([POOL_SHORT])
}

/// Runs the cases.
///
/// # Errors
/// If the laboratory does not boot, or its script fails. A case that fails is no error.
pub fn cases(lab: &Lab, extent: Extent) -> Result<Vec<PlannedOutcome>> {
    let bifold = beside("bifold")?;
    let all = extent == Extent::All;
    let wishes = SOUND.iter().map(|w| (format!("/lab/wishes/{}.toml", w.name), w.text().into_bytes()));
    let initrd = lab.script_guest(&format!("B={BUSYBOX}\n{GUEST}"), &[])?;
    let script = format!(
        "B={BUSYBOX} BIFOLD={} OUT={}\n{HOST}\nsettings > /tmp/before\n{}",
        bifold.display(),
        at::OUT,
        if all { everything() } else { quick() }
    );
    let plan = Plan {
        jobs: vec![Job::Kvm { nested: true }, Job::sh(&script)].into(),
        programs: vec![BUSYBOX.into(), bifold],
        made: wishes.chain([(INITRD.into(), initrd)]).collect(),
        emulator: true,
        exact: false,
        cpus: NODES * CPUS_OF_NODE,
        nodes: NODES,
        memory_mib: MIB,
        seconds: if all { SECONDS } else { QUICK_SECONDS },
        ..Plan::default()
    };
    let output = lab.boot_for_last(&plan)?;
    let mut cases = told(&output.done.stdout);
    cases.push(PlannedOutcome {
        name: "nodes".into(),
        failed: nodes(&output).err().map(|e| format!("{e:#}")),
    });
    Ok(cases)
}

impl Wishes {
    fn text(&self) -> String {
        format!("[[guest]]\nname = \"g\"\n{}\n[host]\n{}\n", self.guest, self.host)
    }
}

/// A word for the shell.
fn word(text: &str) -> String {
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// The guest that boots: sound, and its kernel's words come back.
fn booted() -> String {
    let more = format!(
        "-kernel {} -initrd {INITRD} -append \"{APPEND}\" -serial file:$OUT/console",
        at::INNER_KERNEL
    );
    format!(
        "plan {0} && launch '' '{more}' && placed || say FAILED booted \"$trouble\"\n\
         n=0; until $B grep -qs '^@end' $OUT/console || [ $n = 600 ]; do n=$((n + 1)); $B sleep 0.2; done\n\
         if silent $vm; then say ok booted; else say FAILED booted \"$found$($B tr '\\n' ' ' < /tmp/said) $trouble\"; fi\n\
         $B cp /tmp/plan.json $OUT/plan.json\n",
        TWO_NODES.name
    )
}

fn done_to(mistakes: &[Mistake]) -> String {
    mistakes.iter().map(|m| format!("done_to {} {} {}\n", m.finding, word(m.then), word(m.back))).collect()
}

fn started(mistakes: &[Mistake]) -> String {
    let one =
        |m: &Mistake| format!("started {} {} {} {}\n", m.finding, m.wishes.name, word(m.edit), m.pinned);
    mistakes.iter().map(one).collect()
}

fn quick() -> String {
    [booted(), done_to(&DONE[..4]), "clean booted\n".into(), started(&STARTED[..2])].concat()
}

fn everything() -> String {
    let sound: String = SOUND.iter().map(|w| format!("sound {}\n", w.name)).collect();
    let others: String = OTHERS
        .iter()
        .map(|m| format!("alive {}\n{}clean {}\n", m.wishes.name, done_to(&[*m]), m.finding))
        .collect();
    let moved =
        |m: &Mistake| format!("once {} {} {} {}\n", m.finding, m.wishes.name, word(m.then), word(m.back));
    [
        booted(),
        done_to(&DONE),
        "clean booted\n".into(),
        started(&STARTED),
        MOVED.iter().map(moved).collect(),
        others,
        format!("short {}\n", TWO_NODES.name),
        sound,
        format!("killed {} {} {}\n", TWO_NODES.name, KILLS.0, KILLS.1),
    ]
    .concat()
}

/// The lines `ok NAME` and `FAILED NAME: WHY`. A case that failed once has failed.
fn told(text: &str) -> Vec<PlannedOutcome> {
    let mut cases: Vec<PlannedOutcome> = Vec::new();
    for line in text.lines() {
        let Some((word, rest)) = line.split_once(' ') else { continue };
        let (name, why) = rest.split_once(": ").unwrap_or((rest, ""));
        let failed = (word == "FAILED").then(|| why.to_owned());
        match cases.iter_mut().find(|c| c.name == name) {
            Some(case) => case.failed = case.failed.take().or(failed),
            None => cases.push(PlannedOutcome { name: name.to_owned(), failed }),
        }
    }
    cases
}

/// Whether the guest's kernel sees the plan's nodes: their CPUs and distances.
fn nodes(output: &Output) -> Result<()> {
    let text = |name: &str| -> Result<String> {
        let bytes = output.files.get(name).with_context(|| format!("no file {name}"))?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    };
    let plan: Value = serde_json::from_str(&text("plan.json")?).context("the plan")?;
    let guest = &plan["guests"][0];
    let console = text("console")?;
    let said: Vec<&str> = console.lines().filter_map(|l| l.trim_end().strip_prefix("@node ")).collect();
    for node in guest["nodes"].as_array().context("a plan without nodes")? {
        let number = &node["node"];
        let distances: Vec<String> =
            node["distances"].as_array().into_iter().flatten().map(Value::to_string).collect();
        let vcpus = guest["vcpus"].as_array().into_iter().flatten().filter(|v| v["node"] == *number);
        let vcpus: Vec<String> = vcpus.map(|v| v["vcpu"].to_string()).collect();
        for line in [
            format!("node{number}/distance:{}", distances.join(" ")),
            format!("node{number}/cpulist:{}", vcpus.join(",")),
        ] {
            ensure!(said.contains(&line.as_str()), "the guest did not say {line}, but: {}", said.join(", "));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_fails_if_one_of_its_lines_does() {
        let cases = told("ok a\nFAILED b: found only: c\nok b\nFAILED a: not sound\nnoise\n");
        let why = |name: &str| cases.iter().find(|c| c.name == name).unwrap().failed.clone();
        assert_eq!((why("a"), why("b")), (Some("not sound".into()), Some("found only: c".into())));
        assert_eq!(cases.len(), 2);
    }

    #[test]
    fn mistakes_have_different_names_and_known_wishes() {
        let mut names: Vec<&str> =
            [&STARTED[..], &DONE, &OTHERS].concat().iter().map(|m| m.finding).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
        assert!(all >= 15);
        for mistake in [&STARTED[..], &DONE, &MOVED, &OTHERS].concat() {
            assert!(SOUND.iter().any(|w| w.name == mistake.wishes.name), "{mistake:?}");
        }
    }
}
