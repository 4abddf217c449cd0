// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Commands with a time limit, in a process group of their own.

use std::fs::File;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

/// How a command ended.
#[derive(Debug)]
pub struct Ended {
    /// Its exit status.
    pub status: ExitStatus,
    /// What it wrote to standard output.
    pub stdout: String,
    /// What it wrote to standard error.
    pub stderr: String,
}

impl Ended {
    /// The last lines of standard error, for messages.
    pub fn last_words(&self) -> String {
        let lines: Vec<&str> = self.stderr.lines().filter(|l| !l.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(8)..].join("\n")
    }
}

/// Runs `command` to its end, with nothing on standard input, and kills its process group after `limit`.
pub fn run(command: &mut Command, limit: Duration) -> Result<Ended> {
    let name = command.get_program().to_string_lossy().into_owned();
    let (out, err) = (tempfile::NamedTempFile::new()?, tempfile::NamedTempFile::new()?);
    let open = |f: &tempfile::NamedTempFile| -> Result<File> { Ok(f.as_file().try_clone()?) };
    // Who ends this process ends the command, which ends its guest. SAFETY: between fork and exec the closure
    // only makes a system call.
    unsafe {
        command.pre_exec(|| {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))?;
            Ok(())
        });
    }
    let mut child = command
        .stdin(Stdio::null())
        .stdout(open(&out)?)
        .stderr(open(&err)?)
        .process_group(0)
        .spawn()
        .with_context(|| format!("{name} cannot be started"))?;
    let end = Instant::now() + limit;
    let mut pause = Duration::from_millis(1);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= end {
            let group = rustix::process::Pid::from_child(&child);
            // Fails only if the group has ended meanwhile.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            child.wait()?;
            bail!("{name} was killed after its limit of {} s; give more with --limit", limit.as_secs());
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    };
    let read = |f: &tempfile::NamedTempFile| -> Result<String> {
        Ok(String::from_utf8_lossy(&std::fs::read(f.path())?).into_owned())
    };
    Ok(Ended { status, stdout: read(&out)?, stderr: read(&err)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Result<Ended> {
        run(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn output_and_status_of_a_command_come_back() {
        let ended = sh("echo a; echo b >&2; exit 3", Duration::from_secs(60)).unwrap();
        assert_eq!(
            (ended.status.code(), ended.stdout.as_str(), ended.last_words().as_str()),
            (Some(3), "a\n", "b")
        );
    }

    #[test]
    fn a_command_that_hangs_is_killed_with_its_children() {
        let e = sh("sleep 1000 & sleep 1000", Duration::from_millis(50)).unwrap_err();
        assert!(e.to_string().contains("limit"), "{e}");
    }

    #[test]
    fn a_program_that_is_not_there_is_named() {
        let e = run(&mut Command::new("/nowhere/program"), Duration::from_secs(1)).unwrap_err();
        assert!(e.to_string().contains("/nowhere/program"), "{e}");
    }
}
