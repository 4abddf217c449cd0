// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which processor the host has.

use bifold_host::{Host, Vendor, read_up_to};

/// Most bytes of `/proc/cpuinfo` that are read: the first processor's lines are enough.
const MOST: u64 = 16 << 10;

/// A processor, as CPUID numbers it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// The maker.
    pub vendor: Vendor,
    /// The family, with its extension added.
    pub family: u32,
    /// The model, with its extension.
    pub model: u32,
}

impl Cpu {
    /// The host's first processor; `None` if `/proc/cpuinfo` does not name it, or the maker is neither Intel
    /// nor AMD.
    pub fn of(host: &Host) -> Option<Cpu> {
        Cpu::parse(&String::from_utf8_lossy(&read_up_to(&host.proc.join("cpuinfo"), MOST).ok()?))
    }

    /// The first processor in the text of `/proc/cpuinfo`.
    pub fn parse(cpuinfo: &str) -> Option<Cpu> {
        let field = |name: &str| {
            let of = |line: &str| {
                let (key, value) = line.split_once(':')?;
                (key.trim() == name).then(|| value.trim().to_owned())
            };
            cpuinfo.lines().find_map(of)
        };
        let vendor = match field("vendor_id")?.as_str() {
            "GenuineIntel" => Vendor::Intel,
            "AuthenticAMD" => Vendor::Amd,
            _ => return None,
        };
        Some(Cpu { vendor, family: field("cpu family")?.parse().ok()?, model: field("model")?.parse().ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_processor_counts_and_model_is_no_model_name() {
        let text = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 25\nmodel name\t: EPYC 7\nmodel\t\t: 17\n\
                    \nprocessor\t: 1\nvendor_id\t: GenuineIntel\n";
        assert_eq!(Cpu::parse(text), Some(Cpu { vendor: Vendor::Amd, family: 25, model: 17 }));
        assert_eq!(Cpu::parse(&text.replace("AuthenticAMD", "HygonGenuine")), None);
        assert_eq!(Cpu::parse(""), None);
    }
}
