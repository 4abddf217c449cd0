// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KVM's statistics from debugfs, where each number is a file.

use super::{Statistic, Statistics};
use crate::{Host, HostError, VmDirectory, VmId};
use rustix::io::Errno;
use std::io;

/// A VM's statistics by their files. Reading a number takes three system calls: KVM's files have no positions
/// (`simple_attr_open`), so that a file that was read once must be opened again.
#[derive(Debug)]
pub struct StatisticsFiles {
    dir: VmDirectory,
    wanted: Vec<Statistic>,
}

impl Host {
    /// The files of a VM's statistics, as far as this kernel has those that are wanted.
    ///
    /// # Errors
    /// If the VM's directory cannot be read by this user, or no longer exists.
    pub fn statistics_files(&self, vm: VmId, wanted: &[Statistic]) -> Result<StatisticsFiles, HostError> {
        let dir = self.vm_dir(vm);
        let fail = |e: Errno| HostError::io(&dir, io::Error::from(e));
        let mut files = StatisticsFiles { dir: self.vm_directory(vm)?, wanted: Vec::new() };
        for &statistic in wanted {
            match files.one(statistic) {
                Ok(_) => files.wanted.push(statistic),
                // Another kernel does not have the number.
                Err(Errno::NOENT) if dir.is_dir() => {}
                Err(e) => return Err(fail(e)),
            }
        }
        Ok(files)
    }
}

impl StatisticsFiles {
    /// The numbers now.
    ///
    /// # Errors
    /// If a file cannot be read: the VM has ended.
    pub fn read(&self) -> io::Result<Statistics> {
        let mut all = Statistics::default();
        for &statistic in &self.wanted {
            if let Some(value) = self.one(statistic)? {
                all.set(statistic, value);
            }
        }
        Ok(all)
    }

    /// A number; `None` if the file's text is not a number.
    fn one(&self, statistic: Statistic) -> Result<Option<u64>, Errno> {
        let mut bytes = [0; 32];
        let text = self.dir.read(statistic.name(), &mut bytes)?;
        Ok(std::str::from_utf8(text).ok().and_then(|text| text.trim().parse().ok()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn numbers_that_the_kernel_lacks_or_that_are_none_are_unknown() {
        let (_dir, host) = crate::tests::host();
        let id = VmId::parse("42-7").unwrap();
        let all = |host: &Host| host.statistics_files(id, Statistic::ALL);
        assert!(matches!(all(&host), Err(HostError::Io { .. })));
        let vm = host.vm_dir(id);
        fs::create_dir_all(&vm).unwrap();
        fs::write(vm.join("exits"), "123\n").unwrap();
        fs::write(vm.join("pages_2m"), "strange\n").unwrap();
        let files = all(&host).unwrap();
        assert_eq!(files.wanted, [Statistic::Exits, Statistic::Pages2m]);
        let seen = files.read().unwrap();
        assert_eq!(seen.get(Statistic::Exits), Some(123));
        assert_eq!([Statistic::Pages2m, Statistic::Invlpg].map(|s| seen.get(s)), [None, None]);
        fs::write(vm.join("exits"), "130\n").unwrap();
        assert_eq!(files.read().unwrap().get(Statistic::Exits), Some(130));
        let few = host.statistics_files(id, &[Statistic::Pages2m, Statistic::Invlpg]).unwrap();
        assert_eq!(few.read().unwrap().get(Statistic::Exits), None);
        fs::remove_dir_all(&vm).unwrap();
        assert_eq!(files.read().unwrap_err().kind(), io::ErrorKind::NotFound, "the VM has ended");
    }
}
