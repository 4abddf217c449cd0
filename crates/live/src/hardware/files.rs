// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The number of files that this process may open. Each event of each vCPU is an open file: 100 VMs of 4 vCPUs with
//! 11 events each need 4400, and the usual soft limit is 1024.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io;

/// The soft limit, in files; `None` if there is none.
pub(super) fn limit() -> Option<u64> {
    getrlimit(Resource::Nofile).current
}

/// Raises the number of files that this process may open, RLIMIT_NOFILE, from the soft to the hard limit. This needs
/// no rights. Returns the limit in files; `None` if there is none. Processes that this one starts inherit the limit.
///
/// # Errors
/// If the kernel refuses.
pub fn raise_file_limit() -> io::Result<Option<u64>> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?;
    Ok(maximum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let hard = getrlimit(Resource::Nofile).maximum;
        assert_eq!(raise_file_limit().unwrap(), hard);
        assert_eq!(limit(), hard);
    }
}
