// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What users ask of the daemon about a VM: its mode and its memory together.

use super::Engine;
use super::switcher::Return;
use crate::error::DaemonError;
use crate::log::Event;
use crate::memory::every;
use crate::status::Explanation;
use crate::vm::memory::MemoryHalf;
use crate::vm::mode::ModeHalf;
use crate::vm::{Hold, Vms};
use bifold_host::{HostError, word_rank};
use std::collections::BTreeSet;
use std::time::Duration;

impl Engine {
    /// Holds a VM in its mode and its memory as it is, for some seconds from `now` (the time since the start)
    /// or until [`Engine::release`].
    ///
    /// # Errors
    /// If the word means no VM or several, or the seconds are no time.
    pub fn hold(&mut self, word: &str, seconds: Option<f64>, now: Duration) -> Result<String, DaemonError> {
        let (mut mode, mut memory) = meant(&mut self.vms, word)?;
        let end = |s| Duration::try_from_secs_f64(s).ok().and_then(|length| now.checked_add(length));
        let until = match seconds.map(|s| (s, end(s))) {
            Some((s, None)) => {
                return Err(DaemonError::Refused(format!("{s} s is no time for which a VM can be held")));
            }
            until => until.and_then(|(_, until)| until),
        };
        let hold = Hold { until };
        let until = seconds.map_or("until it is released".into(), |s| format!("for {s} s"));
        let log = &mut self.switcher.log;
        memory.iter_mut().for_each(|memory| memory.hold(hold));
        mode.iter_mut().for_each(|mode| mode.hold = Some(hold));
        match (mode, memory) {
            (Some(mode), None) => Ok(mode.tell(log, &format!("is held in its mode {until}"))),
            (Some(mode), Some(_)) => {
                Ok(mode.tell(log, &format!("is held in its mode, and its memory as it is, {until}")))
            }
            (None, Some(memory)) => {
                Ok(memory.tell(log, format!("is held with the memory that it has {until}")))
            }
            (None, None) => Err(no_such_vm(word)),
        }
    }

    /// Lets the policies decide again over a VM that was held.
    ///
    /// # Errors
    /// If the word means no VM, or several.
    pub fn release(&mut self, word: &str) -> Result<String, DaemonError> {
        let (mut mode, mut memory) = meant(&mut self.vms, word)?;
        let held = mode.as_mut().is_some_and(|mode| {
            mode.wants_home = false;
            mode.hold.take().is_some()
        });
        let had_memory = memory.as_mut().is_some_and(|memory| memory.release());
        let text = if held || had_memory { "is released" } else { "was not held" };
        let log = &mut self.switcher.log;
        match (mode, memory) {
            (Some(mode), _) => Ok(mode.tell(log, text)),
            (None, Some(memory)) => Ok(memory.tell(log, text.into())),
            (None, None) => Err(no_such_vm(word)),
        }
    }

    /// Gives a VM, or all VMs, back to their own modes, gives their memory back, and holds them so.
    ///
    /// # Errors
    /// If the word means no VM or several, or KVM refuses.
    pub fn undo(&mut self, word: Option<&str>) -> Result<Vec<String>, DaemonError> {
        let (modes, memories) = match word {
            Some(word) => {
                let (mode, memory) = meant(&mut self.vms, word)?;
                (mode.into_iter().map(|vm| (vm.id, vm)).collect(), memory.into_iter().collect())
            }
            None => self.vms.halves(),
        };
        let (mut told, mut refused) = (Vec::new(), Vec::new());
        for mode in modes.into_values() {
            mode.hold = Some(Hold { until: None });
            mode.wants_home = true;
            match self.switcher.give_back(mode.id, Some(&mut *mode), "asked to undo") {
                Return::Back(text) => told.push(text),
                Return::Nothing => {
                    told.push(mode.tell(&mut self.switcher.log, "is in its own mode and held"))
                }
                Return::Away(text) => refused.push(text),
            }
        }
        for memory in memories {
            let text = memory.undo();
            told.push(memory.tell(&mut self.switcher.log, text.into()));
        }
        if refused.is_empty() { Ok(told) } else { Err(DaemonError::Refused(refused.join("\n"))) }
    }

    /// The last events of a VM, oldest first.
    ///
    /// # Errors
    /// If the word means no VM, or several.
    pub fn explain(&mut self, word: &str) -> Result<Explanation, DaemonError> {
        let (mode, memory) = meant(&mut self.vms, word)?;
        let mut lately: Vec<Event> = mode.iter().flat_map(|mode| mode.recent.0.clone()).collect();
        lately.extend(memory.iter().flat_map(|memory| memory.recent.0.clone()));
        lately.sort_by(|a, b| a.time.total_cmp(&b.time));
        let (up, every) = (self.switcher.log.up, every(&self.config));
        Ok(Explanation {
            vm: mode.map(|mode| self.switcher.status_of(mode)),
            memory: memory.map(|memory| memory.status(up, every)),
            lately,
        })
    }
}

/// What a word means, of modes and of memory: both only of one process. Identifiers come before names in
/// both, see [`bifold_host::named`].
fn meant<'a>(
    vms: &'a mut Vms,
    word: &str,
) -> Result<(Option<&'a mut ModeHalf>, Option<&'a mut MemoryHalf>), DaemonError> {
    let of_mode = |vm: &ModeHalf| word_rank(word, Some(vm.id), vm.pid, vm.name.as_deref());
    let of_memory = |vm: &MemoryHalf| word_rank(word, vm.live.vm, vm.live.pid, Some(&vm.live.name));
    let (mut modes, mut memories) = vms.halves();
    let ranks = modes.values().map(|vm| of_mode(vm)).chain(memories.iter().map(|vm| of_memory(vm)));
    let Some(best) = ranks.flatten().min() else { return Err(no_such_vm(word)) };
    modes.retain(|_, vm| of_mode(vm) == Some(best));
    memories.retain(|vm| of_memory(vm) == Some(best));
    let pids = modes.values().map(|vm| vm.pid).chain(memories.iter().map(|vm| vm.live.pid));
    let pids: BTreeSet<u32> = pids.collect();
    if modes.len() > 1 {
        let ids = modes.into_keys().collect();
        return Err(DaemonError::Refused(HostError::SeveralVms { word: word.into(), ids }.to_string()));
    }
    if memories.len() > 1 || pids.len() > 1 {
        let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
        let word = word.escape_debug();
        return Err(DaemonError::Refused(format!(
            "`{word}` means several VMs: give one of the process ids {}",
            pids.join(", ")
        )));
    }
    Ok((modes.into_values().next(), memories.pop()))
}

fn no_such_vm(word: &str) -> DaemonError {
    DaemonError::Refused(format!(
        "the daemon sees no VM `{}`: `bifold ctl status` lists them",
        word.escape_debug()
    ))
}
