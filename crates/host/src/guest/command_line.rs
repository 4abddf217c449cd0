// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line of a process that runs a guest.

use super::options::Pairs;
use crate::{Host, read_up_to};
use std::path::Path;

/// Starts of the names of programs that run guests.
const VMMS: [&str; 5] = ["qemu-", "kvm", "cloud-hypervisor", "firecracker", "crosvm"];
/// Most bytes of a command line that are read.
const MOST: u64 = 4 << 20;

/// A process's command line.
///
/// ```
/// use bifold_host::CommandLine;
///
/// let line = CommandLine::parse(b"/usr/bin/qemu-system-x86_64\0-name\0guest=web\0-m\x001G\0");
/// assert_eq!((line.program(), line.guest_name().as_deref()), ("qemu-system-x86_64", Some("web")));
/// assert_eq!(line.pairs("m", "size").next().unwrap().get("size"), Some("1G"));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CommandLine {
    words: Vec<String>,
}

impl CommandLine {
    /// Parses the form of `/proc/PID/cmdline`. Bytes that are not UTF-8 are replaced.
    pub fn parse(cmdline: &[u8]) -> CommandLine {
        let word = |word| String::from_utf8_lossy(word).into_owned();
        CommandLine { words: cmdline.split(|b| *b == 0).map(word).collect() }
    }

    /// The command line of a process; `None` if the process has ended.
    pub(crate) fn of(proc: &Path, pid: u32) -> Option<CommandLine> {
        let cmdline = read_up_to(&proc.join(pid.to_string()).join("cmdline"), MOST).ok()?;
        Some(CommandLine::parse(&cmdline))
    }

    /// The program's file name.
    pub fn program(&self) -> &str {
        self.words.first().and_then(|word| word.rsplit('/').next()).unwrap_or_default()
    }

    /// Whether the program is known to run guests. Bifold's own capture of a command runs in a guest for as
    /// long as the command: its memory is neither placed nor shared, and it does not count.
    pub fn runs_a_guest(&self) -> bool {
        let capture =
            || self.words.iter().any(|w| w == "-plugin") && self.guest_name().as_deref() == Some("bifold");
        VMMS.iter().any(|vmm| self.program().starts_with(vmm)) && !capture()
    }

    /// Whether memory in hugetlbfs is asked for.
    pub fn asks_for_hugetlb(&self) -> bool {
        self.words.iter().any(|w| w.contains("hugetlb=on") || w.contains("/hugepages"))
    }

    /// The options of QEMU with their values, in order; QEMU takes `--smp` for `-smp`. An option without a
    /// value has the next word.
    pub fn options(&self) -> impl Iterator<Item = (&str, &str)> {
        self.words.windows(2).filter_map(|pair| {
            let name = pair[0].strip_prefix("--").or_else(|| pair[0].strip_prefix('-'))?;
            Some((name, pair[1].as_str()))
        })
    }

    /// The values of an option of QEMU, in order. `implied` names a first part without a name.
    pub fn pairs<'a>(&'a self, option: &'a str, implied: &'a str) -> impl Iterator<Item = Pairs> + 'a {
        self.options().filter(move |(name, _)| *name == option).map(move |(_, v)| Pairs::parse(v, implied))
    }

    /// The guest's name; `None` if the command line has none.
    ///
    /// - QEMU: `-name X` or `-name guest=X,debug-threads=on`;
    /// - Firecracker: `--id X`; crosvm: `--name X`;
    /// - Cloud Hypervisor has no names: the socket of its API without folder and ending, from `--api-socket
    ///   PATH` or `path=PATH`.
    pub fn guest_name(&self) -> Option<String> {
        let program = self.program();
        if program.starts_with("firecracker") {
            return self.value("--id").map(String::from);
        }
        if program.starts_with("crosvm") {
            return self.value("--name").map(String::from);
        }
        if program.starts_with("cloud-hypervisor") {
            let socket = self.value("--api-socket")?;
            let file = Path::new(socket.strip_prefix("path=").unwrap_or(socket)).file_stem()?;
            return file.to_str().map(String::from);
        }
        // QEMU takes the last `-name`.
        let named = |name: Pairs| name.get("guest").filter(|n| !n.is_empty()).map(String::from);
        let names = self.options().filter(|(name, _)| *name == "name");
        names.filter_map(|(_, value)| named(Pairs::plain(value, "guest"))).last()
    }

    /// The value of an option of other programs: `--id X` or `--id=X`.
    fn value(&self, option: &str) -> Option<&str> {
        let rest =
            |word: &'_ str| word.strip_prefix(option).is_some_and(|r| r.is_empty() || r.starts_with('='));
        let at = self.words.iter().position(|word| rest(word))?;
        let value = match self.words[at].strip_prefix(option)? {
            "" => self.words.get(at + 1)?,
            joined => &joined[1..],
        };
        Some(value).filter(|v| !v.is_empty())
    }
}

impl Host {
    /// The command line of a process; `None` if the process has ended.
    pub fn command_line(&self, pid: u32) -> Option<CommandLine> {
        CommandLine::of(&self.proc, pid)
    }
}
