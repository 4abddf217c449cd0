// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The VMs of this host, as `stat` and `top` name them: their names, which of them the user's words choose,
//! and what this host does not tell.

use bifold_host::{Host, printable, word_rank};
use bifold_live::hardware::{NoPmu, Pmu};
use bifold_live::reporter::Reporter;
use bifold_live::{Watch, Watched};

/// The hardware counters that are to be used, or why there are none; neither if the user wants none.
pub fn pmu(host: &Host, unwanted: bool) -> (Option<Pmu>, Option<NoPmu>) {
    match (!unwanted).then(|| Pmu::of(host)).transpose() {
        Ok(pmu) => (pmu, None),
        Err(e) => (None, Some(e)),
    }
}

/// The VM's name, else KVM's identifier. The VM's owner chose the name: control characters are escaped.
pub fn name(vm: &Watched) -> String {
    let name = vm.name.clone().unwrap_or_else(|| vm.id.to_string());
    printable(&name)
}

/// Whether a word names the VM, or there is no word.
pub fn is_chosen(vm: &Watched, words: &[String]) -> bool {
    let names = |word: &String| word_rank(word, Some(vm.id), vm.pid, vm.name.as_deref()).is_some();
    words.is_empty() || words.iter().any(names)
}

/// What is not known here, in sentences.
pub fn notes(watch: &Watch, no_pmu: Option<&NoPmu>, words: &[String]) -> Vec<String> {
    let mut notes: Vec<String> = no_pmu.iter().map(|e| format!("no hardware counters: {e}")).collect();
    notes.extend(watch.pmu().into_iter().flat_map(Pmu::notes).map(|text| text.to_string()));
    for vm in watch.vms() {
        if let Some(e) = &vm.no_counters {
            notes.push(format!("VM {} without hardware counters: {e}", vm.id));
        }
        if let Some(e) = vm.reporter().and_then(Reporter::problem) {
            notes.push(format!("VM {} without reports of its guest: {e}", vm.id));
        }
    }
    if let Some(e) = watch.no_debugfs() {
        notes.push(format!("{e}; VMs come from /proc instead, most of their figures are unknown"));
    }
    if !watch.vms().any(|vm| is_chosen(vm, words)) {
        notes.push(match words {
            [] => "no VM is running here; VMs that start are shown".into(),
            words => {
                let all = watch.vms().count();
                format!("no VM {} among the {all} here", words.join(", ").escape_debug())
            }
        });
    }
    notes
}
