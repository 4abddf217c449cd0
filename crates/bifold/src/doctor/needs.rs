// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each verb needs, and whether the verb works by the checks.

use bifold_guest::doctor::Check;

/// Names of checks, as verbs need them.
pub const KSM: &str = "KSM";
pub const MODULE: &str = "KVM module";
pub const KVM: &str = "KVM";
pub const FOLDER: &str = "daemon's folder";
pub const SWITCHING: &str = "switching";
pub const NINEP: &str = "qemu 9p";
pub const GUEST: &[&str] =
    &["architecture", "qemu", "qemu plugins", "capture plugin", "guest kernel", "memory", "memfd"];
/// `reclaim run` needs KSM for cases with sharing alone.
const GUESTS_OF_EXPERIMENT: &[&str] = &["architecture", "qemu", "guest kernel"];
const EXPERIMENT: &[&str] = &[KSM, "architecture", "qemu", "qemu plugins", "guest kernel"];

/// A verb and what it needs.
pub struct Verb {
    pub name: &'static str,
    /// Names of the checks that must pass. If one fails, the verb does not work, or works in part if
    /// `without` is set.
    pub needs: &'static [&'static str],
    /// What the verb still does if one of these checks fails.
    without: Option<&'static str>,
    /// Checks that parts of the verb need, and what the verb does without each part.
    pub parts: &'static [(&'static str, &'static str)],
}

const fn verb(name: &'static str, needs: &'static [&'static str]) -> Verb {
    Verb { name, needs, without: None, parts: &[] }
}

const ROOT_HOST: &[(&str, &str)] = &[(NINEP, "commands run with --root initramfs only")];
/// Without debugfs, `stat` and `top` find VMs as [`bifold_live::Watch`] says.
const FEW_FIGURES: (&str, &str) = (KVM, "VMs come from /proc, and most of their figures are unknown");

/// All verbs except `doctor`, `schema`, `man` and `completions`.
pub const VERBS: &[Verb] = &[
    Verb {
        without: Some("it reads recordings and generators, and runs no command"),
        parts: ROOT_HOST,
        ..verb("compare", GUEST)
    },
    Verb {
        without: Some("it records generators, and runs no command"),
        parts: ROOT_HOST,
        ..verb("record", GUEST)
    },
    verb("diff", &[]),
    verb("import", &[]),
    verb("compact", &[]),
    Verb { parts: ROOT_HOST, ..verb("ci", GUEST) },
    Verb { parts: ROOT_HOST, ..verb("tune", GUEST) },
    verb("sweep new", &[]),
    verb("sweep tasks", &[]),
    Verb {
        without: Some("it runs recordings and generators, and no command"),
        parts: ROOT_HOST,
        ..verb("sweep run", GUEST)
    },
    verb("sweep status", &[]),
    verb("sweep merge", &[]),
    verb("sweep report", &[]),
    verb("export", &[]),
    Verb {
        without: Some("it reads recordings and generators, and runs no command"),
        parts: ROOT_HOST,
        ..verb("reclaim show", GUEST)
    },
    Verb {
        without: Some("it reads recordings and generators, and runs no command"),
        parts: ROOT_HOST,
        ..verb("reclaim cost", GUEST)
    },
    verb("policy", &[]),
    verb("profile", &[]),
    Verb { parts: &[FEW_FIGURES], ..verb("stat", &[MODULE]) },
    Verb { parts: &[FEW_FIGURES], ..verb("top", &[MODULE]) },
    Verb { parts: &[(SWITCHING, "it shows modes and switches none")], ..verb("mode", &[KVM]) },
    Verb {
        parts: &[FEW_FIGURES, (SWITCHING, "it observes VMs and switches none")],
        ..verb("daemon", &[MODULE, FOLDER])
    },
    verb("ctl", &[]),
    verb("share potential", &[]),
    verb("share fingerprint", &[]),
    verb("share count", &[]),
    verb("share merge", &[]),
    verb("share import", &[]),
    verb("share model", &[]),
    verb("share check", &[KSM]),
    verb("share run", EXPERIMENT),
    verb("share watch", &["KSM counters"]),
    verb("share advise", &["KSM counters"]),
    verb("place show", &[]),
    verb("noise record", &[]),
    verb("noise simulate", &[]),
    verb("place plan", &[]),
    verb("place check", &[]),
    verb("place apply", &[]),
    verb("place undo", &[]),
    verb("reclaim plan", &[]),
    verb("reclaim run", GUESTS_OF_EXPERIMENT),
    verb("reclaim watch", &[]),
    verb("reclaim advise", &[]),
    verb("reclaim set", &[]),
    verb("reclaim restore", &[]),
    verb("cache", &[]),
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
        let parts: Vec<(&Check, &str)> =
            self.parts.iter().filter_map(|(n, part)| Some((failed(n)?, *part))).collect();
        match (&missing[..], self.without, &parts[..]) {
            ([], _, []) => of(Works::Yes, String::new()),
            ([], _, parts) => {
                let why: Vec<String> =
                    parts.iter().map(|(check, part)| format!("{part} ({})", lacks(&[check]))).collect();
                let missing = parts.iter().map(|(check, _)| check.name).collect();
                Finding { verb: self.name, works: Works::InPart, why: why.join("; "), missing }
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
