// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KVM's statistics from a file descriptor of KVM_GET_STATS_FD, in the format of
//! `Documentation/virt/kvm/api.rst`, 4.133: a header, an id, descriptors, and behind them the numbers, which
//! are read each time.

use super::{Statistic, Statistics};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Bytes of `struct kvm_stats_desc` before its name.
const DESCRIPTOR: usize = 16;
/// Most bytes of names and descriptors that are read, and most bytes of numbers.
const MOST: usize = 64 << 10;
/// Most that a name is long.
const LONGEST_NAME: usize = 256;

/// A file of statistics whose descriptors are not what Linux documents.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is no file of KVM's statistics: {0}")]
pub struct BadStatistics(&'static str);

/// A VM's or a vCPU's statistics by file descriptor. Reading them takes one system call.
#[derive(Debug)]
pub struct BinaryStatistics {
    file: File,
    /// Numbers that are wanted, and their places in the block of numbers.
    places: Vec<(Statistic, usize)>,
    at: u64,
    length: usize,
}

impl BinaryStatistics {
    /// Reads the descriptors.
    ///
    /// # Errors
    /// If the file cannot be read, or is of another format (as `InvalidData`, with a [`BadStatistics`]).
    pub fn new(file: File) -> io::Result<BinaryStatistics> {
        let bytes = read_up_to(&file, MOST)?;
        let (places, at) = descriptors(&bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        let length = places.iter().map(|(_, place)| place + 8).max().unwrap_or(0);
        Ok(BinaryStatistics { file, places, at, length })
    }

    /// Adds the numbers to `all`: a VM's are in one file, and its vCPUs' in one file for each.
    ///
    /// # Errors
    /// If the file cannot be read.
    pub fn add_to(&self, all: &mut Statistics) -> io::Result<()> {
        let mut bytes = vec![0; self.length];
        self.file.read_exact_at(&mut bytes, self.at)?;
        for (statistic, place) in &self.places {
            let value = bytes[*place..*place + 8].try_into().expect("eight bytes");
            all.add(*statistic, u64::from_le_bytes(value));
        }
        Ok(())
    }
}

fn read_up_to(file: &File, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; most];
    let mut length = 0;
    while length < most {
        match file.read_at(&mut bytes[length..], length as u64)? {
            0 => break,
            n => length += n,
        }
    }
    bytes.truncate(length);
    Ok(bytes)
}

/// Places of the numbers that we want, within the block of numbers, and where that block begins.
fn descriptors(bytes: &[u8]) -> Result<(Vec<(Statistic, usize)>, u64), BadStatistics> {
    let word = |at: usize| {
        let four = bytes.get(at..at.checked_add(4)?)?;
        Some(u32::from_le_bytes(four.try_into().ok()?) as usize)
    };
    let field = |n: usize| word(4 * n).ok_or(BadStatistics("its header is cut off"));
    let (name_size, count, from, data) = (field(1)?, field(2)?, field(4)?, field(5)?);
    if !(1..=LONGEST_NAME).contains(&name_size) {
        return Err(BadStatistics("its names have no likely length"));
    }
    let one = DESCRIPTOR + name_size;
    if count > MOST / one {
        return Err(BadStatistics("it has too many descriptors"));
    }
    let mut places = Vec::new();
    for n in 0..count {
        let at = from + n * one;
        let name =
            bytes.get(at + DESCRIPTOR..at + one).ok_or(BadStatistics("its descriptors are cut off"))?;
        let name = name.split(|b| *b == 0).next().unwrap_or_default();
        let Some(statistic) = Statistic::ALL.iter().find(|s| s.name().as_bytes() == name) else { continue };
        let offset = word(at + 8).ok_or(BadStatistics("its descriptors are cut off"))?;
        if offset > MOST - 8 {
            return Err(BadStatistics("a number lies too far behind"));
        }
        places.push((*statistic, offset));
    }
    Ok((places, data as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes of `struct kvm_stats_header`.
    const HEADER: usize = 24;

    /// A file as KVM writes it: names, and numbers of eight bytes.
    fn image(numbers: &[(&str, u64)]) -> Vec<u8> {
        const NAME: usize = 48;
        let from = HEADER + NAME;
        let data = from + numbers.len() * (DESCRIPTOR + NAME);
        let mut bytes = Vec::new();
        for n in [0, NAME, numbers.len(), HEADER, from, data] {
            bytes.extend((n as u32).to_le_bytes());
        }
        bytes.extend([0; NAME]);
        for (n, (name, _)) in numbers.iter().enumerate() {
            bytes.extend(0u32.to_le_bytes());
            bytes.extend(0i16.to_le_bytes());
            bytes.extend(1u16.to_le_bytes());
            bytes.extend((8 * n as u32).to_le_bytes());
            bytes.extend(0u32.to_le_bytes());
            let mut padded = name.as_bytes().to_vec();
            padded.resize(NAME, 0);
            bytes.extend(padded);
        }
        numbers.iter().for_each(|(_, value)| bytes.extend(value.to_le_bytes()));
        bytes
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        std::io::Write::write_all(&mut file, bytes).unwrap();
        file
    }

    #[test]
    fn a_vm_and_its_vcpus_add_up() {
        let vm = image(&[("remote_tlb_flush", 3), ("pages_4k", 100), ("of_no_interest", 9)]);
        let vcpu = |exits| image(&[("halt_wait_hist", 1), ("exits", exits), ("pf_taken", 2)]);
        let mut all = Statistics::default();
        for bytes in [vm, vcpu(10), vcpu(30)] {
            BinaryStatistics::new(file(&bytes)).unwrap().add_to(&mut all).unwrap();
        }
        let of = [Statistic::RemoteTlbFlush, Statistic::Pages4k, Statistic::Exits, Statistic::PfTaken];
        assert_eq!(of.map(|s| all.get(s)), [Some(3), Some(100), Some(40), Some(4)]);
        assert_eq!(all.get(Statistic::Invlpg), None);
    }

    #[test]
    fn what_is_cut_off_is_an_error() {
        let whole = image(&[("exits", 1)]);
        for length in 0..whole.len() - 8 {
            assert!(BinaryStatistics::new(file(&whole[..length])).is_err(), "{length}");
        }
        // The numbers alone are missing.
        let short = BinaryStatistics::new(file(&whole[..whole.len() - 8])).unwrap();
        assert!(short.add_to(&mut Statistics::default()).is_err());
        let nothing = BinaryStatistics::new(file(b"")).unwrap_err();
        assert_eq!(nothing.to_string(), "this is no file of KVM's statistics: its header is cut off");
    }

    proptest! {
        #[test]
        fn any_bytes_are_descriptors_or_an_error(
            mut bytes in proptest::collection::vec(any::<u8>(), 0..400), small in any::<bool>()
        ) {
            if small {
                // Headers that look likely get further.
                for (n, word) in [0u32, 8, 3, 24, 32, 200].into_iter().enumerate() {
                    let at = 4 * n;
                    if at + 4 <= bytes.len() {
                        bytes[at..at + 4].copy_from_slice(&word.to_le_bytes());
                    }
                }
            }
            if let Ok((places, _)) = descriptors(&bytes) {
                prop_assert!(places.iter().all(|(_, place)| place + 8 <= MOST));
            }
        }
    }
}
