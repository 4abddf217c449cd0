// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each verb needs, and whether the verb works by the checks.

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
    /// Names of the checks that must pass. If one fails, the verb does not work, or works in part if
    /// `without` is set.
    pub needs: &'static [&'static str],
    /// What the verb still does if one of these checks fails.
    without: Option<&'static str>,
    /// A check that a part of the verb needs, and what the verb does without that part.
    pub part: Option<(&'static str, &'static str)>,
}

const fn verb(name: &'static str, needs: &'static [&'static str]) -> Verb {
    Verb { name, needs, without: None, part: None }
}

const ROOT_HOST: Option<(&str, &str)> = Some((NINEP, "commands run with --root initramfs only"));

/// All verbs except `doctor`, `man` and `completions`.
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
    verb("profile", &[]),
    verb("stat", &[KVM]),
    verb("top", &[KVM]),
    Verb { part: Some((SWITCHING, "it shows modes and switches none")), ..verb("mode", &[KVM]) },
    Verb { part: Some((SWITCHING, "it observes VMs and switches none")), ..verb("daemon", &[KVM]) },
    verb("ctl", &[]),
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
    verb("place show", &[]),
    verb("noise record", &[]),
    verb("noise simulate", &[]),
    verb("place plan", &[]),
    verb("place check", &[]),
    verb("place apply", &[]),
    verb("place undo", &[]),
];

/// Whether a verb works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Works {
    Yes,
    InPart,
    No,
}

/// Whether one verb works, and why not.
pub struct Finding {
    pub verb: &'static str,
    pub works: Works,
    /// Why the verb does not work, or only in part; empty if it works.
    pub why: String,
    /// Names of the checks that failed.
    pub missing: Vec<&'static str>,
}

impl Verb {
    /// Whether the verb works, by the checks.
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

/// Whether the words name a verb, or begin its name. No words name all verbs.
pub fn is_or_begins_with(verb: &str, words: &str) -> bool {
    words.is_empty() || verb == words || verb.strip_prefix(words).is_some_and(|rest| rest.starts_with(' '))
}
