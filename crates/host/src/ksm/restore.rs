// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes and restores KSM's settings, for the guard and its guardian.

use super::{Ksm, KsmError, Settings};
use std::io;
use std::thread::sleep;
use std::time::Duration;

/// Pause before a setting that was refused as busy is tried again, and number of tries. Processes that share
/// pages may be ending.
const AGAIN: Duration = Duration::from_millis(50);
const TRIES: usize = 100;

/// Changes settings and checks that the kernel has taken them.
pub(super) fn make(ksm: &Ksm, wanted: &Settings) -> Result<(), KsmError> {
    patiently(|| ksm.change(wanted))?;
    let names: Vec<String> = ksm.unlike(wanted)?.iter().map(|s| s.name().into()).collect();
    if names.is_empty() { Ok(()) } else { Err(KsmError::NotTaken { names }) }
}

/// Repeats a change that is refused as busy, as `max_page_sharing` is while a process that shared pages ends.
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
