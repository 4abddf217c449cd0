// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans in files, and what happens while one is applied or undone.

use crate::console::note;
use anyhow::{Context as _, bail};
use bifold_host::printable;
use bifold_place::apply::{Event, MOST_PLAN};
use bifold_place::plan::Plan;
use std::path::Path;

/// The plan in a file.
pub fn read(path: &Path) -> anyhow::Result<Plan> {
    let bytes = bifold_host::read_up_to(path, MOST_PLAN + 1)
        .with_context(|| format!("cannot read the plan {}", path.display()))?;
    if bytes.len() as u64 > MOST_PLAN {
        bail!("the plan {} has more than {MOST_PLAN} bytes", path.display());
    }
    Plan::parse(&bytes).with_context(|| format!("cannot use the plan {}", path.display()))
}

/// Notes an event.
pub fn tell(shown: bool, event: &Event) {
    match event {
        Event::WrittenDown => {}
        Event::Set { path, value } => note(shown, format_args!("{path}: {}", printable(value))),
        Event::Pinned { thread, cpus } => note(shown, format_args!("thread {thread}: CPU {cpus}")),
        Event::Refused { path, why } => note(shown, format_args!("{path} is left as it is: {why}")),
        Event::OtherBoot => note(shown, "removed a journal from before the last reboot; nothing to undo"),
        Event::Gone(what) => note(shown, format_args!("{what} is gone, nothing to restore")),
        Event::Kept { what, is } => {
            note(shown, format_args!("{what} stays at {}, which another program has set", printable(is)));
        }
    }
}
