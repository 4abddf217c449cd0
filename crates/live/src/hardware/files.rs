// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The number of files that this process may open. Each event of each vCPU is an open file: 100 VMs of 4
//! vCPUs with 16 events each need 6400, and the usual soft limit is 1024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// The soft limit, in files; `None` if there is none.
pub(super) fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// The limit of open files (RLIMIT_NOFILE), raised from the soft to the hard one. Raising it needs no rights.
#[derive(Debug)]
pub struct FileLimit {
    usual: Rlimit,
}

impl FileLimit {
    /// Raises the limit.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn raise() -> io::Result<FileLimit> {
        let usual = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: usual.maximum, ..usual })?;
        Ok(FileLimit { usual })
    }

    /// Does `work` under the usual limit: a process that is started inherits the limit, and a program that
    /// calls select(2) may not bear a large one.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn lowered<T>(&self, work: impl FnOnce() -> T) -> io::Result<T> {
        setrlimit(Resource::Nofile, self.usual)?;
        let done = work();
        setrlimit(Resource::Nofile, Rlimit { current: self.usual.maximum, ..self.usual })?;
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one_except_for_what_is_started() {
        let usual = limit();
        let hard = getrlimit(Resource::Nofile).maximum;
        let files = FileLimit::raise().unwrap();
        assert_eq!((limit(), files.lowered(limit).unwrap(), limit()), (hard, usual, hard));
    }
}
