// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Processes that end with the one that started them.

use rustix::process::{Signal, set_parent_process_death_signal};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

/// Lets the process that the command becomes get SIGTERM when the thread that starts it ends, also by
/// SIGKILL. A `bifold` ends its guest then, and removes its temporary files.
///
/// ```
/// let mut command = std::process::Command::new("true");
/// bifold_guest::ends_with_its_parent(&mut command);
/// assert!(command.status()?.success());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn ends_with_its_parent(command: &mut Command) {
    // SAFETY: between fork and exec the closure makes one system call.
    unsafe {
        command.pre_exec(|| {
            set_parent_process_death_signal(Some(Signal::TERM))?;
            Ok(())
        });
    }
}
