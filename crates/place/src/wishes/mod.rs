// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a user wishes for guests: a TOML file with a table per guest, and one for the host.
//!
//! ```
//! use bifold_place::wishes::Wishes;
//!
//! let text = "[[guest]]\nname = 'db'\nvcpus = 4\nmemory = '1G'\nnodes = 'host'\n";
//! let wishes = Wishes::parse(text, "wishes.toml".as_ref())?;
//! assert_eq!(wishes.guests[0].memory, 1 << 30);
//! # Ok::<(), bifold_place::wishes::WishError>(())
//! ```

mod check;
mod file;

pub use file::{EXAMPLE, TABLES};

use bifold_host::topology::NumberSet;
use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Longest file, in bytes.
const MOST: u64 = 1 << 20;

/// Wishes for guests on one host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// What may be used and changed of the host.
    pub host: HostWishes,
    /// The guests, in the order of the file.
    pub guests: Vec<Guest>,
}

/// What may be used and changed of the host.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostWishes {
    /// CPUs that may be used at all; `None` for all online ones.
    pub cpus: Option<NumberSet>,
    /// CPUs for the host and the VMMs' own threads; `None` for the default.
    pub reserve_cpus: Option<NumberSet>,
    /// Bytes of each node that stay free.
    pub reserve_memory: u64,
    /// Whether pools of 2 MB pages may be enlarged.
    pub reserve_pages: bool,
    /// Whether automatic NUMA balancing is turned off.
    pub balancing_off: bool,
    /// Time that KVM polls before a halted vCPU sleeps, in ns.
    pub halt_poll_ns: Option<u32>,
}

/// Wishes for a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Guest {
    /// The VM's name.
    pub name: String,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Bytes of memory.
    pub memory: u64,
    /// Page size on the host.
    pub page: PageSize,
    /// Number of nodes.
    pub nodes: Nodes,
    /// Host nodes that the guest may use; `None` for all.
    pub host_nodes: Option<NumberSet>,
    /// What becomes of a core's threads.
    pub smt: Smt,
    /// Cores for the VMM's other threads alone.
    pub emulator_cores: u32,
    /// Number of I/O threads.
    pub io_threads: u32,
    /// Devices to be near to.
    pub near: Vec<String>,
    /// Whether the CPUs should have no tick.
    pub tickless: bool,
    /// Whether interrupts of devices leave the CPUs.
    pub interrupts_away: bool,
    /// Whether KSM may merge pages.
    pub ksm: bool,
}

/// Page size of a guest's memory on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageSize {
    /// The largest that fits.
    Auto,
    /// This many KiB: 4, 2048 or 1048576.
    Kib(u64),
}

/// Number of a guest's nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nodes {
    /// As few as fit.
    Auto,
    /// One per host node that has free CPUs.
    Host,
    /// This many.
    Number(u32),
}

/// What becomes of the threads of a host core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Smt {
    /// The guest's threads are the host's.
    Threads,
    /// A vCPU has a core alone.
    Cores,
}

/// Why wishes cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WishError {
    /// The file cannot be read.
    #[error("cannot read wishes {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Not TOML, an unknown key, or a value of another type.
    #[error("wishes {}: {message}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What is wrong, with the place.
        message: String,
    },
    /// Values that cannot be used, each with its line and key.
    #[error("wishes {}:{}", path.display(), listed(wrong))]
    Wrong {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        wrong: Vec<String>,
    },
}

/// One sentence behind a colon, or several in lines of their own.
pub(crate) fn listed(wrong: &[String]) -> String {
    match wrong {
        [one] => format!(" {one}"),
        all => all.iter().map(|w| format!("\n  {w}")).collect(),
    }
}

/// A message that quotes a text from outside, without control characters but the ends of lines, and with
/// short lines.
fn shown(message: &str) -> String {
    const LONGEST: usize = 400;
    let line = |line: &str| {
        let mut line = bifold_host::printable(line);
        if let Some((at, _)) = line.char_indices().nth(LONGEST) {
            line.truncate(at);
            line += "...";
        }
        line
    };
    message.lines().map(line).collect::<Vec<_>>().join("\n")
}

impl Wishes {
    /// Reads a file of at most 1 MiB.
    ///
    /// # Errors
    /// If the file cannot be read, or a value in it cannot be used.
    pub fn read(path: &Path) -> Result<Wishes, WishError> {
        let io = |source| WishError::Io { path: path.into(), source };
        let mut text = String::new();
        File::open(path).map_err(io)?.take(MOST + 1).read_to_string(&mut text).map_err(io)?;
        if text.len() as u64 > MOST {
            return Err(io(io::Error::other("the file is longer than 1 MiB")));
        }
        Wishes::parse(&text, path)
    }

    /// The wishes of a text; errors name `path`.
    ///
    /// # Errors
    /// If the text is no TOML, or a value in it cannot be used: all such values are listed.
    pub fn parse(text: &str, path: &Path) -> Result<Wishes, WishError> {
        let file: file::File = toml::from_str(text)
            .map_err(|e| WishError::Syntax { path: path.into(), message: shown(e.to_string().trim_end()) })?;
        check::wishes(file, text).map_err(|wrong| WishError::Wrong { path: path.into(), wrong })
    }
}

#[cfg(test)]
mod tests;
