// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each verb needs, and whether it works by the checks.

use bifold_guest::doctor::Check;

/// Names of checks, as verbs need them.
pub const KSM: &str = "KSM";
pub const KVM: &str = "KVM";
pub const SWITCHING: &str = "switching";
pub const NINEP: &str = "qemu 9p";
pub const GUEST: &[&str] =
    &["architecture", "qemu", "qemu plugins", "capture plugin", "guest kernel", "memory", "memfd"];
const EXPERIMENT: &[&str] = &[KSM, "architecture", "qemu", "qemu plugins", "guest kernel"];

/// A verb and what it needs.
pub struct Verb {
    pub name: &'static str,
    /// Without one of these it cannot work, or, if `without` says so, only in part.
    pub needs: &'static [&'static str],
    /// What it does all the same without one of these.
    without: Option<&'static str>,
    /// What it needs for a part, and which part that is.
    pub part: Option<(&'static str, &'static str)>,
}

const fn verb(name: &'static str, needs: &'static [&'static str]) -> Verb {
    Verb { name, needs, without: None, part: None }
}

const ROOT_HOST: Option<(&str, &str)> = Some((NINEP, "commands run with --root initramfs only"));

/// All verbs that do something with this machine or with data.
pub const VERBS: &[Verb] = &[
    Verb {
        without: Some("it reads recordings and generators, and runs no command"),
        part: ROOT_HOST,
        ..verb("compare", GUEST)
    },
    Verb {
        without: Some("it records generators, and runs no command"),
        part: ROOT_HOST,
        ..verb("record", GUEST)
    },
    verb("diff", &[]),
    verb("policy", &[]),
    Verb { part: Some((SWITCHING, "it shows modes and switches none")), ..verb("mode", &[KVM]) },
    verb("share potential", &[]),
    verb("share fingerprint", &[]),
    verb("share count", &[]),
    verb("share merge", &[]),
    verb("share import", &[]),
    verb("share model", &[]),
    verb("share check", &[KSM]),
    verb("share run", EXPERIMENT),
    Verb { part: None, ..verb("share watch", &["KSM counters"]) },
    verb("share advise", &["KSM counters"]),
];

/// Whether a verb works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Works {
    Yes,
    InPart,
    No,
}

/// What was found of a verb.
pub struct Finding {
    pub verb: &'static str,
    pub works: Works,
    /// What it does not do, or why it cannot work; empty if it works.
    pub why: String,
    /// Names of the checks that failed.
    pub missing: Vec<&'static str>,
}

impl Verb {
    /// Whether it works, by the checks.
    pub fn look(&self, all: &[Check]) -> Finding {
        let failed = |name: &str| all.iter().find(|c| c.name == name && !c.ok);
        let missing: Vec<&Check> = self.needs.iter().filter_map(|n| failed(n)).collect();
        let lacks = |checks: &[&Check]| {
            let words: Vec<String> = checks.iter().map(|c| format!("{}: {}", c.name, c.detail)).collect();
            words.join("; ")
        };
        let names = missing.iter().map(|c| c.name).collect();
        let of = |works, why| Finding { verb: self.name, works, why, missing: names };
        match (&missing[..], self.without, self.part.and_then(|(n, part)| Some((failed(n)?, part)))) {
            ([], _, None) => of(Works::Yes, String::new()),
            ([], _, Some((check, part))) => {
                let why = format!("{part} ({})", lacks(&[check]));
                Finding { verb: self.name, works: Works::InPart, why, missing: vec![check.name] }
            }
            (missing, Some(without), _) => of(Works::InPart, format!("{without} ({})", lacks(missing))),
            (missing, None, _) => of(Works::No, lacks(missing)),
        }
    }
}

/// Whether a verb is meant by these words: all of them, or its first one.
pub fn is_or_begins_with(verb: &str, words: &str) -> bool {
    words.is_empty() || verb == words || verb.strip_prefix(words).is_some_and(|rest| rest.starts_with(' '))
}
