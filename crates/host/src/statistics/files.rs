// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KVM's statistics from debugfs, where each number is a file.

use super::{Statistic, Statistics};
use crate::{Host, VmId};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// The open files of a VM's statistics. Reading them takes one system call a number.
#[derive(Debug)]
pub struct StatisticsFiles(Vec<(Statistic, File)>);

impl Host {
    /// Opens the statistics of a VM.
    ///
    /// # Errors
    /// If the VM's directory cannot be read by this user, or no longer exists.
    pub fn statistics_files(&self, vm: VmId) -> io::Result<StatisticsFiles> {
        let dir = self.vm_dir(vm);
        let mut files = Vec::new();
        for &statistic in Statistic::ALL {
            match File::open(dir.join(statistic.name())) {
                Ok(file) => files.push((statistic, file)),
                // Another kernel does not have the number.
                Err(e) if e.kind() == io::ErrorKind::NotFound && dir.is_dir() => {}
                Err(e) => return Err(e),
            }
        }
        Ok(StatisticsFiles(files))
    }
}

impl StatisticsFiles {
    /// The numbers now.
    ///
    /// # Errors
    /// If a file cannot be read: the VM has ended.
    pub fn read(&self) -> io::Result<Statistics> {
        let mut all = Statistics::default();
        for (statistic, file) in &self.0 {
            let mut bytes = [0; 32];
            let length = file.read_at(&mut bytes, 0)?;
            let text = std::str::from_utf8(&bytes[..length]).unwrap_or_default().trim();
            if let Ok(value) = text.parse() {
                all.set(*statistic, value);
            }
        }
        Ok(all)
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
        assert_eq!(host.statistics_files(id).unwrap_err().kind(), io::ErrorKind::NotFound);
        let vm = host.vm_dir(id);
        fs::create_dir_all(&vm).unwrap();
        fs::write(vm.join("exits"), "123\n").unwrap();
        fs::write(vm.join("pages_2m"), "strange\n").unwrap();
        let files = host.statistics_files(id).unwrap();
        assert_eq!(files.0.len(), 2);
        let seen = files.read().unwrap();
        assert_eq!(seen.get(Statistic::Exits), Some(123));
        assert_eq!([Statistic::Pages2m, Statistic::Invlpg].map(|s| seen.get(s)), [None, None]);
        // An open file tells the present number.
        fs::write(vm.join("exits"), "130\n").unwrap();
        assert_eq!(files.read().unwrap().get(Statistic::Exits), Some(130));
    }
}
