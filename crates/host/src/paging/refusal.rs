// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses a VM's file `paging_refusal`: whether KVM would refuse to switch the VM to its other mode now, and
//! why.

use crate::guest_memory::Shortage;
use std::fmt;

/// Whether KVM would refuse to switch a VM to its other mode now, or this side would not try.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Forecast {
    /// Not known: KVM's modules are older and have no such file, or the file was not read.
    #[default]
    Unknown,
    /// KVM would not refuse the switch.
    Fine,
    /// KVM would refuse the switch.
    Refused(Obstacle),
}

/// What keeps a VM from its other mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// The reason.
    pub reason: RefusalReason,
    /// The first vCPU that has the reason; `None` if the reason is the host's or the VM's.
    pub vcpu: Option<u32>,
}

/// Why KVM refuses a switch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RefusalReason {
    /// The host has one paging mode: by its hardware, a module parameter or Hyper-V.
    Host,
    /// The guest has encrypted or private memory.
    Encrypted,
    /// An assigned device without coherent DMA needs the guest's memory types, which EPT alone gives.
    Dma,
    /// Real mode under shadow paging needs `KVM_SET_TSS_ADDR`, which the VMM never called (Intel).
    Tss,
    /// The guest is a hypervisor: EFER.SVME or CR4.VMXE is set.
    Hypervisor,
    /// The guest uses protection keys without CR0.WP.
    Keys,
    /// A vCPU is in system management mode (Intel).
    Smm,
    /// A vCPU runs without paging (Intel).
    RealMode,
    /// A cgroup of the VM leaves too little memory for a stay in shadow paging. KVM does not foresee this:
    /// it is found here.
    Room(Shortage),
    /// A word of newer modules.
    Other(String),
}

/// Longest word that is taken for a reason.
const MOST_WORD: usize = 32;

impl RefusalReason {
    /// The reason's word in KVM's file, in JSON and in metrics.
    pub fn word(&self) -> &str {
        match self {
            RefusalReason::Host => "host",
            RefusalReason::Encrypted => "encrypted",
            RefusalReason::Dma => "dma",
            RefusalReason::Tss => "tss",
            RefusalReason::Hypervisor => "hypervisor",
            RefusalReason::Keys => "keys",
            RefusalReason::Smm => "smm",
            RefusalReason::RealMode => "real-mode",
            RefusalReason::Room(_) => "room",
            RefusalReason::Other(word) => word,
        }
    }

    fn parse(word: &str) -> Option<RefusalReason> {
        let plain = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
        if word.is_empty() || word.len() > MOST_WORD || !word.bytes().all(plain) {
            return None;
        }
        Some(match word {
            "host" => RefusalReason::Host,
            "encrypted" => RefusalReason::Encrypted,
            "dma" => RefusalReason::Dma,
            "tss" => RefusalReason::Tss,
            "hypervisor" => RefusalReason::Hypervisor,
            "keys" => RefusalReason::Keys,
            "smm" => RefusalReason::Smm,
            "real-mode" => RefusalReason::RealMode,
            other => RefusalReason::Other(other.into()),
        })
    }
}

impl Forecast {
    /// The forecast in the bytes of `paging_refusal`; `None` if they are not a forecast. A line without its
    /// line feed is refused, because its word or number may have lost characters.
    pub fn parse(bytes: &[u8]) -> Option<Forecast> {
        let line = std::str::from_utf8(bytes.strip_suffix(b"\n")?).ok()?;
        let (word, vcpu) = match line.split_once(' ') {
            None => (line, None),
            Some((word, rest)) => (word, Some(super::stats::decimal(rest.strip_prefix("vcpu ")?)?)),
        };
        let vcpu = vcpu.map(u32::try_from).transpose().ok()?;
        match (word, vcpu) {
            ("none", None) => Some(Forecast::Fine),
            ("none", Some(_)) => None,
            (word, vcpu) => Some(Forecast::Refused(Obstacle { reason: RefusalReason::parse(word)?, vcpu })),
        }
    }

    /// The forecast for a VM in nested paging: a shortage of room, which is looked for where KVM names no
    /// reason.
    pub fn with_room(self, shortage: impl FnOnce() -> Option<Shortage>) -> Forecast {
        if self.obstacle().is_some() {
            return self;
        }
        let room = |shortage| Obstacle { reason: RefusalReason::Room(shortage), vcpu: None };
        shortage().map_or(self, |shortage| Forecast::Refused(room(shortage)))
    }

    /// What would refuse the switch, if that is known.
    pub fn obstacle(&self) -> Option<&Obstacle> {
        match self {
            Forecast::Refused(obstacle) => Some(obstacle),
            Forecast::Unknown | Forecast::Fine => None,
        }
    }
}

impl Obstacle {
    /// Whether the obstacle lasts as long as the VM runs as it was started. `None` for a word of newer
    /// modules.
    pub fn lasts(&self) -> Option<bool> {
        match self.reason {
            RefusalReason::Host | RefusalReason::Encrypted | RefusalReason::Dma | RefusalReason::Tss => {
                Some(true)
            }
            RefusalReason::Hypervisor
            | RefusalReason::Keys
            | RefusalReason::Smm
            | RefusalReason::RealMode
            | RefusalReason::Room(_) => Some(false),
            RefusalReason::Other(_) => None,
        }
    }

    /// Whether another obstacle has the same reason, whatever vCPU or amounts it names.
    pub fn is_like(&self, other: &Obstacle) -> bool {
        self.reason.word() == other.reason.word()
    }

    /// What a user can do about it.
    pub fn remedy(&self) -> &'static str {
        match self.reason {
            RefusalReason::Host => {
                "look at the parameters of KVM's modules (npt; ept, pt_mode, emulate_invalid_guest_state)"
            }
            RefusalReason::Encrypted => "such a guest needs nested paging; start the VM without encryption",
            RefusalReason::Dma => "remove the device from the VM",
            RefusalReason::Tss => "use a VMM that calls it, such as QEMU",
            RefusalReason::Hypervisor => {
                "the guest needs nested paging until it unloads its hypervisor; a guest that is not offered one never needs it \
                 (-cpu host,-svm,-vmx)"
            }
            RefusalReason::Keys => {
                "try again later, or do not offer protection keys to the guest (-cpu host,-pku)"
            }
            RefusalReason::Smm => "try again: it takes milliseconds",
            RefusalReason::RealMode => "try again when the guest's kernel runs",
            RefusalReason::Room(_) => Shortage::REMEDY,
            RefusalReason::Other(_) => {
                "the kernel log may say more (dmesg); a newer Bifold may know the reason"
            }
        }
    }

    /// The obstacle in a sentence about the VM, as in
    /// `cannot be switched to shadow mode now: vCPU 2 is in system management mode`.
    pub fn sentence(&self, to: &str) -> String {
        let now = if self.lasts() == Some(true) { "" } else { " now" };
        format!("cannot be switched to {to} mode{now}: {self}")
    }
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let vcpu = self.vcpu.map_or("a vCPU".into(), |n| format!("vCPU {n}"));
        match &self.reason {
            RefusalReason::Host => {
                f.write_str("this host has one paging mode, by its hardware, a module parameter or Hyper-V")
            }
            RefusalReason::Encrypted => f.write_str("the guest has encrypted or private memory"),
            RefusalReason::Dma => f.write_str(
                "an assigned device without coherent DMA needs the guest's memory types, which EPT alone gives",
            ),
            RefusalReason::Tss => f.write_str(
                "real mode under shadow paging needs KVM_SET_TSS_ADDR, which the VMM never called",
            ),
            RefusalReason::Hypervisor => write!(f, "{vcpu} is a hypervisor itself (EFER.SVME or CR4.VMXE)"),
            RefusalReason::Keys => {
                write!(f, "{vcpu} uses protection keys without write protection (CR4.PKE without CR0.WP)")
            }
            RefusalReason::Smm => write!(f, "{vcpu} is in system management mode"),
            RefusalReason::RealMode => {
                write!(f, "{vcpu} runs without paging, as firmware and boot loaders do")
            }
            RefusalReason::Room(shortage) => shortage.fmt(f),
            RefusalReason::Other(word) => {
                write!(f, "KVM's reason is `{word}`")?;
                self.vcpu.map_or(Ok(()), |n| write!(f, " of vCPU {n}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{Tree, put};
    use crate::{Mode, Paging, Unreadable};
    use proptest::prelude::*;
    use std::{fs, io};

    fn parsed(text: &str) -> Option<(String, Option<u32>)> {
        let obstacle = Forecast::parse(text.as_bytes())?.obstacle()?.clone();
        Some((obstacle.reason.word().into(), obstacle.vcpu))
    }

    #[test]
    fn every_word_is_a_reason_that_lasts_or_passes() {
        for (word, lasts, says) in [
            ("host", Some(true), "one paging mode"),
            ("encrypted", Some(true), "encrypted or private memory"),
            ("dma", Some(true), "without coherent DMA"),
            ("tss", Some(true), "KVM_SET_TSS_ADDR"),
            ("hypervisor", Some(false), "a vCPU is a hypervisor itself (EFER.SVME or CR4.VMXE)"),
            ("keys", Some(false), "without write protection"),
            ("smm", Some(false), "system management mode"),
            ("real-mode", Some(false), "without paging"),
            ("gpu_9", None, "KVM's reason is `gpu_9`"),
        ] {
            let forecast = Forecast::parse(format!("{word}\n").as_bytes()).unwrap();
            let obstacle = forecast.obstacle().unwrap();
            assert_eq!((obstacle.reason.word(), obstacle.vcpu, obstacle.lasts()), (word, None, lasts));
            assert!(obstacle.to_string().contains(says), "{obstacle}");
            assert!(!obstacle.remedy().is_empty());
            let known = !matches!(obstacle.reason, RefusalReason::Other(_));
            assert_eq!(known, word != "gpu_9");
        }
    }

    #[test]
    fn the_vcpu_is_named() {
        for (text, says) in [
            ("hypervisor vcpu 2\n", "vCPU 2 is a hypervisor itself (EFER.SVME or CR4.VMXE)"),
            ("smm vcpu 0\n", "vCPU 0 is in system management mode"),
            ("gpu vcpu 4294967295\n", "KVM's reason is `gpu` of vCPU 4294967295"),
        ] {
            assert_eq!(Forecast::parse(text.as_bytes()).unwrap().obstacle().unwrap().to_string(), says);
        }
        let keys = Obstacle { reason: RefusalReason::Keys, vcpu: Some(1) };
        assert!(keys.sentence("shadow").starts_with("cannot be switched to shadow mode now: vCPU 1 uses"));
        let dma = Obstacle { reason: RefusalReason::Dma, vcpu: None };
        assert!(dma.sentence("shadow").starts_with("cannot be switched to shadow mode: an assigned device"));
    }

    #[test]
    fn none_is_fine_and_what_is_no_line_of_kvms_is_nothing() {
        assert_eq!(Forecast::parse(b"none\n"), Some(Forecast::Fine));
        assert_eq!(parsed("real-mode vcpu 12\n"), Some(("real-mode".into(), Some(12))));
        let long = format!("{}\n", "x".repeat(MOST_WORD + 1));
        for junk in [
            "",
            "\n",
            " ",
            "none",
            "smm",
            "smm vcpu 1",
            "none vcpu 1\n",
            "smm \n",
            "smm vcpu\n",
            "smm vcpu \n",
            "smm vcpu -1\n",
            "smm vcpu +1\n",
            "smm vcpu 4294967296\n",
            "smm vcpu 1 \n",
            "smm  vcpu 1\n",
            "smm cpu 1\n",
            "smm\n\n",
            "smm\nkeys\n",
            "SMM\n",
            "smm!\n",
            "\u{1b}[2J\n",
            " smm\n",
            "no thing\n",
            &long,
        ] {
            assert_eq!(Forecast::parse(junk.as_bytes()), None, "{junk:?}");
        }
        assert_eq!(Forecast::parse(b"\xff\n"), None);
    }

    #[test]
    fn a_vm_that_cannot_be_switched_is_known_without_a_try() {
        let tree = Tree::kvm(Some("nested\n"));
        let dir = tree.vm("1-2", Some(b"nested\n"));
        let forecast = || -> Result<Forecast, Unreadable> {
            match tree.only().paging {
                Paging::Own { forecast, .. } => forecast,
                Paging::HostWide => panic!(),
            }
        };
        assert_eq!((forecast().unwrap(), tree.only().paging.obstacle()), (Forecast::Fine, None));
        put(&dir.join("paging_refusal"), b"hypervisor vcpu 3\n");
        let vm = tree.only();
        let (to, obstacle) = vm.paging.obstacle().unwrap();
        assert_eq!(
            (to, &obstacle.reason, obstacle.vcpu),
            (Mode::Shadow, &RefusalReason::Hypervisor, Some(3))
        );
        // The file speaks of a switch away from the present mode, also while the VM leaves that mode.
        for mode in [&b"shadow\n"[..], b"shadow -> nested\n"] {
            put(&dir.join("paging_mode"), mode);
            assert_eq!(tree.only().paging.obstacle().unwrap().0, Mode::Nested);
        }
        for junk in [&b"hypervisor vcpu"[..], b"", b"\x1b[2J\n", &[b'x'; 1 << 19]] {
            put(&dir.join("paging_refusal"), junk);
            let e = forecast().unwrap_err().to_string();
            assert!(e.ends_with("is no reason of a refusal") && e.len() < 120, "{e}");
            assert_eq!(tree.only().paging.obstacle(), None);
        }
        fs::remove_file(dir.join("paging_refusal")).unwrap();
        assert_eq!(forecast().unwrap(), Forecast::Unknown, "older modules");
    }

    #[test]
    fn a_refused_switch_names_the_reason_and_the_vcpu() {
        const EBUSY: i32 = 16;
        const EOPNOTSUPP: i32 = 95;
        let tree = Tree::kvm(Some("nested\n"));
        let dir = tree.vm("1-2", Some(b"nested\n"));
        let said = |to, refusal: &str, errno| {
            put(&dir.join("paging_refusal"), refusal.as_bytes());
            tree.host.refused(&tree.only(), to, io::Error::from_raw_os_error(errno)).to_string()
        };
        assert_eq!(
            said(Mode::Shadow, "smm vcpu 1\n", EBUSY),
            "VM 1-2 was not switched to shadow mode: not now (EBUSY): vCPU 1 is in system management mode; try again: it takes \
             milliseconds"
        );
        let never = said(Mode::Shadow, "encrypted\n", EOPNOTSUPP);
        assert!(
            never.contains("mode: never (EOPNOTSUPP): the guest has encrypted or private memory; "),
            "{never}"
        );
        for errno in [EBUSY, EOPNOTSUPP] {
            let newer = said(Mode::Shadow, "gpu\n", errno);
            assert!(newer.contains("KVM's reason is `gpu`; "), "{newer}");
        }
        // What came or went since, and what refuses the way back, was not the reason.
        for (to, refusal, errno) in [
            (Mode::Shadow, "none\n", EBUSY),
            (Mode::Shadow, "encrypted\n", EBUSY),
            (Mode::Shadow, "smm vcpu 1\n", EOPNOTSUPP),
            (Mode::Nested, "smm vcpu 1\n", EBUSY),
            (Mode::Shadow, "smm vcpu", EBUSY),
        ] {
            let text = said(to, refusal, errno);
            assert!(text.contains("the kernel log says"), "{text}");
        }
        assert!(!said(Mode::Shadow, "smm vcpu 1\n", 110).contains("system management"));
    }

    proptest! {
        #[test]
        fn a_line_is_read_back_whatever_the_word(word in "[a-z0-9_-]{1,32}", vcpu in any::<Option<u32>>()) {
            prop_assume!(word != "none");
            let text = format!("{word}{}\n", vcpu.map_or(String::new(), |n| format!(" vcpu {n}")));
            prop_assert_eq!(parsed(&text), Some((word, vcpu)));
            // A line that is cut off is nothing.
            for end in 0..text.len() {
                prop_assert_eq!(Forecast::parse(&text.as_bytes()[..end]), None);
            }
        }

        #[test]
        fn any_bytes_are_a_forecast_or_nothing(bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = Forecast::parse(&bytes);
        }
    }
}
