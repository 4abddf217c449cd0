// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Public holes in KVM's shadow MMU, which a VM in shadow paging reaches as an ordinary guest.
//!
//! The parameter `paging_fixes` of modules that switch VMs names the holes whose fixes the kernel source had
//! from which they were built. A module without the parameter says nothing, and counts as open.

use crate::Kvm;

/// A public hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hole {
    /// The hole's word in `paging_fixes`.
    pub name: &'static str,
    /// What a guest in shadow paging can do.
    pub guest: &'static str,
    /// The first fixed releases of Linux, one per series.
    pub fixed: &'static [&'static str],
}

/// The holes, oldest first. Another one is a line here, and a file in `kernel/holes`.
pub const HOLES: &[Hole] = &[
    Hole {
        name: "CVE-2026-23401",
        guest: "keeps an entry that leads to memory after its VMM put a device's window there",
        fixed: &["6.1.168", "6.12.80", "6.18.21"],
    },
    Hole {
        name: "CVE-2026-46113",
        guest: "lets KVM use a shadow page again for another frame of the guest's tables",
        fixed: &["6.1.175", "6.12.88", "6.18.30"],
    },
    Hole {
        name: "CVE-2026-53359",
        guest: "replaces a 2 MB page by a table, and keeps access to memory that the host has given to others",
        fixed: &["6.1.177", "6.6.144", "6.12.95", "6.18.38", "7.1.3"],
    },
    Hole {
        name: "CVE-2026-64561",
        guest: "makes so many shadow pages that KVM frees the tables that it is filling",
        fixed: &["6.1.183", "6.12.101", "7.1.6"],
    },
];

/// What to do about open holes.
pub const REMEDY: &str =
    "update the kernel's packages (apt), run `make kernel` again, and load the new modules";

impl Hole {
    /// The hole in a line.
    pub fn line(&self) -> String {
        format!("{}: a guest {} (fixed since {})", self.name, self.guest, self.fixed.join(", "))
    }
}

impl Kvm {
    /// The holes that a VM may reach in shadow paging, because the loaded modules do not name their fixes.
    /// None if KVM has one mode for all VMs.
    pub fn open_holes(&self) -> Vec<&'static Hole> {
        if self.default.is_none() {
            return Vec::new();
        }
        let fixed =
            |hole: &&Hole| self.fixes.iter().flatten().any(|word| word.eq_ignore_ascii_case(hole.name));
        HOLES.iter().filter(|hole| !fixed(hole)).collect()
    }

    /// A warning about these holes, in a sentence.
    pub fn holes_warning(&self) -> Option<String> {
        let names: Vec<&str> = self.open_holes().iter().map(|hole| hole.name).collect();
        let why = match (&self.fixes, names.len()) {
            (_, 0) => return None,
            (None, _) => "do not say whether they have the fixes of",
            (Some(_), _) => "lack the fixes of",
        };
        Some(format!(
            "the loaded KVM modules {why} public holes that guests in shadow paging reach ({}): {REMEDY}",
            names.join(", ")
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::Tree;

    /// The holes that are open with this text in the parameter, and the warning.
    fn open(default: Option<&str>, fixes: Option<&str>) -> (usize, String) {
        let tree = Tree::kvm(default);
        let path = tree.host.sys.join("module/kvm/parameters/paging_fixes");
        fixes.iter().for_each(|text| crate::tests::put(&path, text.as_bytes()));
        let kvm = tree.host.kvm().unwrap();
        (kvm.open_holes().len(), kvm.holes_warning().unwrap_or_default())
    }

    #[test]
    fn modules_that_name_no_fix_are_open() {
        let all = "CVE-2026-23401 CVE-2026-46113 CVE-2026-53359 CVE-2026-64561 CVE-2030-1\n";
        assert_eq!(open(Some("nested\n"), Some(all)), (0, String::new()));
        assert_eq!(open(None, None), (0, String::new()), "one mode for all VMs");
        let (holes, said) = open(Some("nested\n"), None);
        assert!(holes == HOLES.len() && said.contains("do not say whether they have the fixes"), "{said}");
        for nothing in ["", "\n", "(null)\n", "\0\u{1b}[2J"] {
            assert_eq!(open(Some("nested\n"), Some(nothing)).0, HOLES.len(), "{nothing:?}");
        }
        let (holes, said) = open(Some("shadow\n"), Some("cve-2026-53359  CVE-2026-23401\tCVE-2026-46113"));
        assert_eq!(holes, 1);
        assert_eq!(
            said,
            "the loaded KVM modules lack the fixes of public holes that guests in shadow paging reach (CVE-2026-64561): \
             update the kernel's packages (apt), run `make kernel` again, and load the new modules"
        );
    }

    #[test]
    fn each_hole_has_a_line_and_names_are_unlike() {
        let lines: std::collections::BTreeSet<String> = HOLES.iter().map(Hole::line).collect();
        assert_eq!(lines.len(), HOLES.len());
        assert!(lines.iter().all(|l| l.starts_with("CVE-2026-") && l.contains("(fixed since ")), "{lines:?}");
    }
}
