// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A verb of `bifold` as a process of its own, so that a failure of one task costs the others nothing.
//!
//! The environment is small and fixed: the kernel puts the environment on a program's stack, where its length
//! moves counts.

use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use std::ffi::OsString;
use std::fs::File;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

/// Most characters of a failure's text.
const MOST_TEXT: usize = 2000;
/// Most lines of it.
const MOST_LINES: usize = 5;
/// What `bifold compare` gets of this environment: where its caches and the measured profile are.
const KEPT: [&str; 5] = ["PATH", "HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "TMPDIR"];
/// What a program gets, beside the variables of its own.
const FIXED: [&str; 3] =
    ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "LC_ALL=C.UTF-8"];

/// How often a request to end is looked for.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };

/// A verb of `bifold` in a folder, which writes its result to `result` and what else it says to `errors`.
///
/// # Errors
/// If this program's file is not known, or `errors` cannot be made.
pub fn bifold(folder: &Path, verb: &[&str], result: &Path, errors: &Path) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("cannot find this program")?);
    command.current_dir(folder).stdin(Stdio::null()).env_clear();
    let kept = std::env::vars_os().filter(|(name, _)| {
        KEPT.iter().any(|kept| name == kept) || name.to_string_lossy().starts_with("BIFOLD_")
    });
    command.envs(kept);
    command.args(verb).args(["--quiet", "--output"]).arg(result);
    command.stdout(Stdio::null()).stderr(File::create(errors).context("cannot make a temporary file")?);
    bifold_guest::ends_with_its_parent(&mut command);
    Ok(command)
}

/// Waits for the end, and passes a request to end on.
///
/// # Errors
/// If the process cannot be started or waited for.
pub fn wait(command: &mut Command, stop: &AtomicBool) -> anyhow::Result<ExitStatus> {
    let mut child = command.spawn().context("cannot run `bifold`")?;
    let pid = Pid::from_child(&child);
    let end = pidfd_open(pid, PidfdFlags::empty()).context("cannot watch `bifold`")?;
    let mut asked = false;
    loop {
        if let Some(status) = child.try_wait().context("cannot wait for `bifold`")? {
            return Ok(status);
        }
        if stop.load(Ordering::Relaxed) && !std::mem::replace(&mut asked, true) {
            // A child that has ended meanwhile is a zombie until it is waited for, so the number is still its
            // own.
            let _ = kill_process(pid, Signal::TERM);
        }
        match poll(&mut [PollFd::new(&end, PollFlags::IN)], Some(&LOOK)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(e) => return Err(e).context("cannot wait for `bifold`"),
        }
    }
}

/// A program's command in its fixed environment.
pub fn in_fixed_environment<'a>(
    env: impl IntoIterator<Item = (&'a String, &'a String)>,
    run: &[String],
) -> Vec<OsString> {
    let own = env.into_iter().map(|(name, value)| format!("{name}={value}"));
    let words = ["/usr/bin/env", "-i"].into_iter().chain(FIXED).map(String::from);
    words.chain(own).chain(run.iter().cloned()).map(OsString::from).collect()
}

/// The end of what `bifold` said, if it said something: its own last message, or else the last lines of its
/// command.
pub fn last_lines(path: &Path) -> Option<String> {
    let bytes = std::fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(MOST_TEXT)..]).trim().to_string();
    let text: String = text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect();
    let lines: Vec<&str> = text.lines().collect();
    let own = lines.iter().rposition(|l| l.starts_with("bifold: ") || l.starts_with("error: "));
    let from = own.unwrap_or(lines.len().saturating_sub(MOST_LINES));
    let shown = &lines[from..lines.len().min(from + MOST_LINES)];
    (!shown.is_empty()).then(|| shown.join("\n").trim_end().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_output_the_message_stays_or_else_the_last_lines() {
        let dir = tempfile::tempdir().unwrap();
        let of = |text: &str| {
            let path = dir.path().join("errors");
            std::fs::write(&path, text).unwrap();
            last_lines(&path)
        };
        let output: String = (0..165).map(|n| format!("line {n}\n")).collect();
        assert_eq!(of(&output).unwrap(), "line 160\nline 161\nline 162\nline 163\nline 164");
        let failed = format!("{output}bifold: cannot read x: no such file\n\nUsage: bifold compare\n");
        assert_eq!(of(&failed).unwrap(), "bifold: cannot read x: no such file\n\nUsage: bifold compare");
        assert_eq!(of("a\u{1b}[31m\n").unwrap(), "a [31m");
        assert_eq!(of(" \n"), None);
    }
}
