// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Making and restoring settings, for the guard and its guardian alike.

use super::{Ksm, KsmError, Settings};
use std::io;
use std::thread::sleep;
use std::time::Duration;

/// How often a setting refused as busy is tried again, and how many times: processes that share pages may be
/// ending.
const AGAIN: Duration = Duration::from_millis(50);
const TRIES: usize = 100;

/// Changes what is named, and looks whether the kernel has taken it.
pub(super) fn make(ksm: &Ksm, wanted: &Settings) -> Result<(), KsmError> {
    patiently(|| ksm.change(wanted))?;
    let names: Vec<String> = ksm.unlike(wanted)?.iter().map(|s| s.name().into()).collect();
    if names.is_empty() { Ok(()) } else { Err(KsmError::NotTaken { names }) }
}

/// Tries again what is refused as busy: `max_page_sharing` is while a process that shared pages ends.
fn patiently(mut change: impl FnMut() -> Result<(), KsmError>) -> Result<(), KsmError> {
    for _ in 1..TRIES {
        match change() {
            Err(KsmError::Refused { source, .. }) if source.kind() == io::ErrorKind::ResourceBusy => {
                sleep(AGAIN)
            }
            other => return other,
        }
    }
    change()
}
