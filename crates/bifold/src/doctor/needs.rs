// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each verb needs, and whether the verb works by the checks.

use crate::cli;
use bifold_guest::doctor::Check;
use schemars::JsonSchema;
use serde::Serialize;

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
pub const GUESTS_OF_EXPERIMENT: &[&str] = &["architecture", "qemu", "guest kernel"];
pub const EXPERIMENT: &[&str] = &[KSM, "architecture", "qemu", "qemu plugins", "guest kernel"];

/// What a verb, or one of the verbs below a verb, needs of the machine.
pub struct Needs {
    /// The verb below; empty for the verb itself and for all verbs below.
    pub below: &'static str,
    /// Names of the checks that must pass. If one fails, the verb does not work, or works in part if
    /// `without` is set.
    pub checks: &'static [&'static str],
    /// What the verb still does if one of these checks fails.
    pub without: Option<&'static str>,
    /// Checks that parts of the verb need, and what the verb does without each part.
    pub parts: &'static [(&'static str, &'static str)],
}

impl Needs {
    /// Needs of a verb below another.
    pub const fn of(below: &'static str, checks: &'static [&'static str]) -> Needs {
        Needs { below, checks, without: None, parts: &[] }
    }

    /// Needs of a verb that runs a command in a guest.
    pub const fn of_guest(below: &'static str, without: Option<&'static str>) -> Needs {
        Needs {
            without,
            parts: &[(NINEP, "commands run with --root initramfs only")],
            ..Needs::of(below, GUEST)
        }
    }
}

/// Needs of a verb that works everywhere.
pub const NOTHING: &[Needs] = &[Needs::of("", &[])];
/// Needs of a verb about this installation, which doctor does not list.
pub const UNLISTED: &[Needs] = &[];
/// Without debugfs, `stat` and `top` find VMs as `bifold_live::Watch` says.
pub const FEW_FIGURES: (&str, &str) = (KVM, "VMs come from /proc, and most of their figures are unknown");
/// What `compare` and its relatives still do where no guest can run.
pub const WITHOUT_A_GUEST: Option<&str> = Some("it reads recordings and generators, and runs no command");

/// A verb with what it needs.
pub struct NamedNeeds {
    /// Name of the verb: `share run`.
    pub name: String,
    pub needs: &'static Needs,
}

/// The verbs of this build that doctor lists.
pub fn all() -> Vec<NamedNeeds> {
    let named = |verb: &str, needs: &'static Needs| NamedNeeds {
        name: format!("{verb} {}", needs.below).trim_end().into(),
        needs,
    };
    cli::verbs().flat_map(|verb| verb.needs.iter().map(|needs| named(verb.name, needs))).collect()
}

/// Whether a verb works.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
pub enum Works {
    /// The verb works in full.
    #[serde(rename = "works")]
    Yes,
    /// The verb works in part.
    #[serde(rename = "part")]
    InPart,
    /// The verb cannot work.
    #[serde(rename = "cannot")]
    No,
}

/// Whether one verb works, and why not.
#[derive(Serialize, JsonSchema)]
pub struct Finding {
    /// The verb: `share run`.
    pub verb: String,
    /// Whether the verb works.
    #[serde(rename = "status")]
    pub works: Works,
    /// Why the verb does not work, or only in part; empty if the verb works in full.
    pub why: String,
    /// Names of the checks that failed.
    pub missing: Vec<&'static str>,
}

impl NamedNeeds {
    /// Whether the verb works, by the checks.
    pub fn look(&self, all: &[Check]) -> Finding {
        let failed = |name: &str| all.iter().find(|c| c.name == name && !c.ok);
        let needs = self.needs;
        let missing: Vec<&Check> = needs.checks.iter().filter_map(|n| failed(n)).collect();
        let lacks = |checks: &[&Check]| {
            let words: Vec<String> = checks.iter().map(|c| format!("{}: {}", c.name, c.detail)).collect();
            words.join("; ")
        };
        let names = missing.iter().map(|c| c.name).collect();
        let of = |works, why| Finding { verb: self.name.clone(), works, why, missing: names };
        let parts: Vec<(&Check, &str)> =
            needs.parts.iter().filter_map(|(n, part)| Some((failed(n)?, *part))).collect();
        match (&missing[..], needs.without, &parts[..]) {
            ([], _, []) => of(Works::Yes, String::new()),
            ([], _, parts) => {
                let why: Vec<String> =
                    parts.iter().map(|(check, part)| format!("{part} ({})", lacks(&[check]))).collect();
                let missing = parts.iter().map(|(check, _)| check.name).collect();
                Finding { verb: self.name.clone(), works: Works::InPart, why: why.join("; "), missing }
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
