// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads KVM's modules and their parameters from sysfs.

use crate::{Host, HostError, read};
use bifold_mmu::Mode;

/// The maker of a processor with KVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// Intel, with VMX.
    Intel,
    /// AMD, with SVM.
    Amd,
}

/// KVM's modules and their parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kvm {
    /// The loaded vendor modules. A module that is built into the kernel counts as loaded on any processor.
    pub hardware: Vec<Hardware>,
    /// The mode in which a new VM starts; `None` if KVM has one mode for all VMs.
    pub default: Option<Mode>,
    /// The public holes whose fixes the modules have (`paging_fixes`); `None` if the modules do not tell.
    pub fixes: Option<Vec<String>>,
}

/// A vendor module and its parameter for nested paging.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hardware {
    /// The module's name.
    pub module: &'static str,
    /// The parameter's name: `npt` or `ept`.
    pub parameter: &'static str,
    /// Whether the module uses nested paging; `None` if the parameter cannot be read.
    pub nested: Option<bool>,
}

const VENDORS: [(&str, &str); 2] = [("kvm_amd", "npt"), ("kvm_intel", "ept")];

impl Host {
    /// The host's KVM.
    pub fn kvm(&self) -> Result<Kvm, HostError> {
        let modules = self.sys.join("module");
        if !modules.join("kvm").is_dir() {
            return Err(HostError::NoKvm { path: modules.join("kvm") });
        }
        let present = VENDORS.iter().filter(|(module, _)| modules.join(module).is_dir());
        let hardware = present.map(|&(module, parameter)| {
            let value = read(&modules.join(module).join("parameters").join(parameter)).ok();
            let nested = value.and_then(|v| match v.trim_ascii() {
                b"Y" | b"y" | b"1" => Some(true),
                b"N" | b"n" | b"0" => Some(false),
                _ => None,
            });
            Hardware { module, parameter, nested }
        });
        let hardware = hardware.collect();
        let default = read(&modules.join("kvm/parameters/paging_mode")).ok();
        let default = default.and_then(|v| match v.trim_ascii() {
            b"shadow" => Some(Mode::Shadow),
            b"nested" => Some(Mode::Nested),
            _ => None,
        });
        let fixes = read(&modules.join("kvm/parameters/paging_fixes")).ok();
        let words = |bytes: Vec<u8>| {
            String::from_utf8_lossy(&bytes).split_ascii_whitespace().map(String::from).collect()
        };
        Ok(Kvm { hardware, default, fixes: fixes.map(words) })
    }
}

impl Kvm {
    /// The processor's maker, by the loaded module; `None` if both vendors' modules are there.
    pub fn vendor(&self) -> Option<Vendor> {
        match &self.hardware[..] {
            [one] if one.module == "kvm_amd" => Some(Vendor::Amd),
            [_] => Some(Vendor::Intel),
            _ => None,
        }
    }

    /// The mode of all VMs, if KVM has one mode for all; `None` if unknown.
    pub fn host_mode(&self) -> Option<Mode> {
        let (first, rest) = self.hardware.split_first()?;
        let agreed = rest.iter().all(|h| h.nested == first.nested);
        let nested = first.nested.filter(|_| agreed)?;
        Some(if nested { Mode::Nested } else { Mode::Shadow })
    }

    /// The vendor modules and their parameters, as in `kvm_amd with npt=Y`.
    pub fn describe(&self) -> String {
        let words = self.hardware.iter().map(|h| {
            let value = match h.nested {
                Some(true) => "Y",
                Some(false) => "N",
                None => "?",
            };
            format!("{} with {}={value}", h.module, h.parameter)
        });
        let words: Vec<String> = words.collect();
        if words.is_empty() { "neither kvm_amd nor kvm_intel is loaded".into() } else { words.join(", ") }
    }
}
