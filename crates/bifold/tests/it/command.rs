// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs the command.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

/// Exit status and output of a run.
pub struct Ran {
    pub status: i32,
    pub stdout: String,
    pub stderr: String,
}

/// The version that the command writes into results.
pub fn version() -> String {
    match env!("BIFOLD_REVISION") {
        "" => env!("CARGO_PKG_VERSION").into(),
        revision => format!("{}+{revision}", env!("CARGO_PKG_VERSION")),
    }
}

/// The command with these arguments, in an environment that does not change its output.
pub fn command<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_bifold"));
    // Help is as wide as the terminal on any of the three, or as COLUMNS says.
    c.args(args).stdin(Stdio::null()).env_remove("COLUMNS").env("NO_COLOR", "1");
    // Lines under heads are of ASCII in the C locale.
    c.env("LC_ALL", "C.UTF-8");
    // Without a name, the profile is that of the machine that runs the tests.
    c.env("BIFOLD_PROFILE", "i5-7600");
    c
}

/// Runs the command with these arguments, which must be free of blanks.
pub fn bifold(args: &str) -> Ran {
    ran(command(args.split_whitespace()))
}

/// Runs it in a directory.
pub fn bifold_in(dir: &Path, args: &str) -> Ran {
    let mut c = command(args.split_whitespace());
    c.current_dir(dir);
    ran(c)
}

pub fn ran(mut c: Command) -> Ran {
    let out = c.output().expect("the command starts");
    Ran {
        status: out.status.code().expect("the command exits"),
        stdout: String::from_utf8(out.stdout).expect("stdout is UTF-8"),
        stderr: String::from_utf8(out.stderr).expect("stderr is UTF-8"),
    }
}

impl Ran {
    /// Checks that the run worked and printed nothing on stderr; returns its stdout, without the revision.
    pub fn quietly(self) -> String {
        assert_eq!((self.status, self.stderr.as_str()), (0, ""), "{}", self.stdout);
        self.stdout.replace(&version(), env!("CARGO_PKG_VERSION"))
    }

    /// Status and stderr of a run that printed nothing on stdout.
    pub fn refused(self) -> String {
        assert_eq!(self.stdout, "");
        format!("status {}\n{}", self.status, self.stderr)
    }
}

/// Names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
