// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests `bifold mode` on a host with a VM of stock QEMU, under our KVM and under an unmodified KVM.

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;

use super::{BUSYBOX, Shared};
use crate::lab::job::Job;
use crate::lab::{Lab, Plan, beside};

const MARK: &str = "=====\n";
/// Shell commands that start a VM with a name. The VM stays in its firmware.
const BEFORE: &str =
    "$BIFOLD_QEMU -machine q35 -accel kvm -bios /usr/share/qemu/qboot.rom -m 64 -name web -display none \
         -nodefaults -no-user-config &
     vm=$!
     mode() { $BIFOLD mode \"$@\" 2>&1; echo \"status $?\"; echo =====; }
     n=0
     until $BIFOLD mode web >/dev/null 2>&1; do
         n=$((n + 1)); [ $n -lt 300 ] || { mode; exit 9; }; $BUSYBOX sleep 0.1
     done\n";
const AFTER: &str = "kill $vm; wait $vm 2>/dev/null
     mode web nested
     exit 0";

/// Output and exit status of `bifold mode` for each line of arguments, the last for a VM that has ended.
fn said(lab: &Lab, lines: &[&str]) -> Result<Vec<(String, i32)>> {
    let bifold = beside("bifold")?;
    let mut script = format!("BIFOLD={} BUSYBOX={BUSYBOX}\n{BEFORE}", bifold.display());
    for line in lines {
        script += &format!("mode {line}\n");
    }
    let run = Job::sh(&(script + AFTER));
    let plan = Plan {
        jobs: vec![Job::Kvm { nested: true }, run].into(),
        programs: vec![BUSYBOX.into(), bifold],
        emulator: true,
        memory_mib: 1024,
        ..Plan::default()
    };
    let outputs = lab.boot(&plan, &mut |_, _| String::new())?;
    let done = &outputs.get(1).context("no output")?.done;
    ensure!(done.status == 0, "exit status {}: {}{}", done.status, done.stdout, done.stderr);
    let answers = done.stdout.split_terminator(MARK).map(|part| {
        let (text, status) = part.trim_end().rsplit_once("status ").context("no exit status")?;
        Ok((text.trim().to_owned(), status.parse()?))
    });
    answers.collect::<Result<Vec<_>>>()
}

fn json(answer: &(String, i32)) -> Result<Value> {
    ensure!(answer.1 == 0, "exit status {}: {}", answer.1, answer.0);
    // Notes may follow it.
    let first = serde_json::Deserializer::from_str(&answer.0).into_iter().next();
    first.context("nothing")?.with_context(|| answer.0.clone())
}

fn fails(answer: &(String, i32), status: i32, word: &str) -> Result<()> {
    ensure!(answer.1 == status && answer.0.contains(word), "exit status {}: {}", answer.1, answer.0);
    Ok(())
}

/// Lists the VM, switches it to the other mode and back, and reports errors.
pub fn ours(shared: &Shared) -> Result<()> {
    let words =
        ["--format json", "web shadow --format json", "web --format json", "web shadow --format json"];
    let more = ["web nested --format json", "web sideways", "no-vm shadow", "web"];
    let all = said(&shared.lab.switching()?, &[words, more].concat())?;
    let [list, to_shadow, shown, again, back, sideways, missing, text, gone] = &all[..] else {
        bail!("{} answers", all.len())
    };
    let list = json(list)?;
    let vm = &list["vms"][0];
    ensure!(
        (&vm["name"], &vm["mode"], &vm["switchable"]) == (&"web".into(), &"nested".into(), &true.into()),
        "{list}"
    );
    ensure!(list["vms"].as_array().map(Vec::len) == Some(1), "{list}");
    let to_shadow = json(to_shadow)?;
    ensure!(to_shadow["switched"] == true && to_shadow["stats"]["switches_to_shadow"] == 1, "{to_shadow}");
    let shown = json(shown)?;
    ensure!(shown["vm"]["mode"] == "shadow" && shown["vm"]["stats"]["switches_to_shadow"] == 1, "{shown}");
    let again = json(again)?;
    ensure!(again["switched"] == false, "{again}");
    let back = json(back)?;
    ensure!(back["switched"] == true && back["stats"]["switches_to_nested"] == 1, "{back}");
    fails(sideways, 2, "sideways")?;
    fails(missing, 1, "no-vm")?;
    ensure!(text.1 == 0 && text.0.contains("mode     nested"), "{}", text.0);
    fails(gone, 1, "web")
}

/// Shows the VM, and says what an unmodified KVM lacks.
pub fn unmodified(shared: &Shared) -> Result<()> {
    let all = said(shared.lab, &["--format json", "web shadow"])?;
    let [list, switch, gone] = &all[..] else { bail!("{} answers", all.len()) };
    let list = json(list)?;
    ensure!(list["kvm"]["host_mode"] == "nested" && list["vms"][0]["mode"] == "nested", "{list}");
    ensure!(list["vms"][0]["switchable"] == false, "{list}");
    fails(switch, 77, "make kernel")?;
    fails(gone, 1, "web")
}
