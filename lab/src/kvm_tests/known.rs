// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Known reasons of results that are worse under our KVM (`known.toml`).

use serde::Deserialize;

use super::{KVMS, KvmTest, Suite, UnderKvm};
use crate::vendor::{VENDORS, Vendor};

/// An entry of `known.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    suite: String,
    test: String,
    kvm: String,
    vendor: Option<String>,
    series: Option<String>,
    /// Why the result is worse.
    pub reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    known: Vec<Known>,
}

/// All entries.
///
/// # Errors
/// If the file that was built in has an unknown word.
pub fn all() -> Result<Vec<Known>, String> {
    let file: File = toml::from_str(include_str!("known.toml")).map_err(|e| e.to_string())?;
    for k in &file.known {
        let suites = [Suite::UnitTests, Suite::Selftests].map(Suite::name);
        let right = suites.contains(&&k.suite[..])
            && KVMS.iter().any(|u| u.ours && u.name == k.kvm)
            && k.vendor.as_ref().is_none_or(|v| VENDORS.iter().any(|w| w.option == v));
        if !right {
            return Err(format!(
                "known.toml: {} / {} / {}: no such suite, KVM or vendor",
                k.suite, k.test, k.kvm
            ));
        }
    }
    Ok(file.known)
}

impl Known {
    /// Whether the entry is about a test under a KVM on a vendor's processor and a kernel's release.
    pub fn fits(&self, test: &KvmTest, kvm: &UnderKvm, (vendor, release): (&Vendor, &str)) -> bool {
        let name = match self.test.strip_suffix('*') {
            Some(start) => test.name.starts_with(start),
            None => test.name == self.test,
        };
        let series = |s: &String| release.starts_with(&format!("{s}."));
        name && self.suite == test.suite.name()
            && self.kvm == kvm.name
            && self.vendor.as_ref().is_none_or(|v| v == vendor.option)
            && self.series.as_ref().is_none_or(series)
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_list_of_known_reasons_is_right() {
        super::all().unwrap();
    }
}
