// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `doctor`: which verbs work on this machine and what the others lack, in words and in JSON; and KSM's
//! settings restored where a killed command has left them changed.

use crate::cli::{Cli, DoctorArgs, DoctorFormat};
use crate::run::print;
use crate::status::Status;
use bifold_guest::doctor::{Check, checks};
use bifold_host::held::Places;
use bifold_host::ksm::{Counter, Ksm, KsmError, Left, Setting, left_behind, restore_left_behind};
use bifold_host::{Host, HostError};
use bifold_report::wrapped;
use clap::CommandFactory as _;
use clap::error::ErrorKind;
use serde_json::json;
use std::fmt::Write as _;

/// Names of checks, as verbs need them.
const KSM: &str = "KSM";
const KVM: &str = "KVM";
const SWITCHING: &str = "switching";
const NINEP: &str = "qemu 9p";
const GUEST: &[&str] =
    &["architecture", "qemu", "qemu plugins", "capture plugin", "guest kernel", "memory", "memfd"];
const EXPERIMENT: &[&str] = &[KSM, "architecture", "qemu", "qemu plugins", "guest kernel"];

/// A verb and what it needs.
struct Verb {
    name: &'static str,
    /// Without one of these it cannot work, or, if `without` says so, only in part.
    needs: &'static [&'static str],
    /// What it does all the same without one of these.
    without: Option<&'static str>,
    /// What it needs for a part, and which part that is.
    part: Option<(&'static str, &'static str)>,
}

const fn verb(name: &'static str, needs: &'static [&'static str]) -> Verb {
    Verb { name, needs, without: None, part: None }
}

const ROOT_HOST: Option<(&str, &str)> = Some((NINEP, "commands run with --root initramfs only"));

/// All verbs that do something with this machine or with data.
const VERBS: &[Verb] = &[
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
enum Works {
    Yes,
    InPart,
    No,
}

/// What was found of a verb.
struct Finding {
    verb: &'static str,
    works: Works,
    /// What it does not do, or why it cannot work; empty if it works.
    why: String,
    /// Names of the checks that failed.
    missing: Vec<&'static str>,
}

/// Looks, tells, and ends with 77 if what was asked for does not work.
pub fn run(args: &DoctorArgs) -> anyhow::Result<Status> {
    let host = Host::live();
    if args.restore {
        return restore(&host, &Places::of_ksm());
    }
    let all = all_checks(&host);
    let words = args.verb.join(" ");
    let asked: Vec<&Verb> = VERBS.iter().filter(|v| is_or_begins_with(v.name, &words)).collect();
    if asked.is_empty() {
        let names: Vec<&str> = VERBS.iter().map(|v| v.name).collect();
        let text = format!(
            "`{}` is no verb that needs anything: there are {}",
            words.escape_debug(),
            names.join(", ")
        );
        Cli::command().error(ErrorKind::InvalidValue, text).exit();
    }
    let findings: Vec<Finding> = asked.iter().map(|v| v.look(&all)).collect();
    let needed: Vec<&Check> = all
        .iter()
        .filter(|c| asked.iter().any(|v| v.needs.contains(&c.name) || v.part.is_some_and(|p| p.0 == c.name)))
        .collect();
    let left = left_behind(&host, &Places::of_ksm());
    let mut decides = findings.iter().filter(|f| !words.is_empty() || f.verb == "compare");
    let ok = decides.all(|f| f.works == Works::Yes);
    print(&match args.format {
        DoctorFormat::Table => table(&findings, &needed, &left),
        DoctorFormat::Json => json(ok, &findings, &needed, &left)?,
    })?;
    Ok(if ok { Status::Done } else { Status::Unavailable })
}

/// Whether a verb is meant by these words: all of them, or its first one.
fn is_or_begins_with(verb: &str, words: &str) -> bool {
    words.is_empty() || verb == words || verb.strip_prefix(words).is_some_and(|rest| rest.starts_with(' '))
}

fn restore(host: &Host, places: &Places) -> anyhow::Result<Status> {
    print(&match restore_left_behind(host, places)? {
        Some(journal) => format!(
            "KSM's settings, left changed by process {}, are restored: {}\n",
            journal.pid, journal.found
        ),
        None => "no command of Bifold has left KSM's settings changed: nothing was done\n".into(),
    })?;
    Ok(Status::Done)
}

impl Verb {
    /// Whether it works, by the checks.
    fn look(&self, all: &[Check]) -> Finding {
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

/// Everything that some verb needs.
fn all_checks(host: &Host) -> Vec<Check> {
    let mut all = checks();
    let ksm = Ksm::of(host);
    all.push(ksm_counters(Ksm::of(host)));
    all.push(ksm_check(ksm.and_then(|ksm| ksm.may_write().map(|()| ksm))));
    all.extend(kvm_checks(host));
    all
}

fn check(
    name: &'static str,
    needed_by: &'static [&'static str],
    found: Result<String, (String, &str)>,
) -> Check {
    let ok = found.is_ok();
    let (detail, remedy) =
        found.map_or_else(|(detail, remedy)| (detail, remedy.into()), |d| (d, String::new()));
    Check { name, ok, detail, remedy, needed_by }
}

const NO_KSM: &str = "boot a kernel built with CONFIG_KSM=y, as distributions' are";

/// The kernel's KSM, if it is there to be read.
fn ksm_counters(found: Result<Ksm, KsmError>) -> Check {
    let told = found.and_then(|ksm| Ok(ksm.counter(Counter::PagesShared)?.unwrap_or(0)));
    let found = match told {
        Ok(shared) => Ok(format!("{shared} pages shared")),
        Err(KsmError::NoKsm { .. }) => Err(("this kernel has no KSM".into(), NO_KSM)),
        Err(e) => Err((e.to_string(), "look at /sys/kernel/mm/ksm")),
    };
    check("KSM counters", &["share watch", "share advise"], found)
}

/// The kernel's KSM, if it is there and this user may change it.
fn ksm_check(found: Result<Ksm, KsmError>) -> Check {
    let told = found.and_then(|ksm| {
        let settings = ksm.settings()?;
        let run = settings.get(Setting::Run).unwrap_or(0);
        let without: Vec<_> =
            Setting::ALL.iter().filter(|s| settings.get(**s).is_none()).map(|s| s.name()).collect();
        let without = match without.len() {
            0 => String::new(),
            _ => format!("; this kernel does not have {}", without.join(", ")),
        };
        Ok(format!("run = {run}{without}"))
    });
    let found = match told {
        Ok(detail) => Ok(detail),
        Err(KsmError::NoKsm { .. }) => Err(("this kernel has none".into(), NO_KSM)),
        Err(KsmError::NotRoot { .. }) => Err((
            "it is there, but only root may change its settings".into(),
            "run these verbs with sudo; share watch, advise, model and potential do not need it",
        )),
        Err(e) => Err((e.to_string(), "look at /sys/kernel/mm/ksm")),
    };
    check(KSM, &["share run", "share check"], found)
}

/// KVM with its VMs' directories, and whether it can switch VMs.
fn kvm_checks(host: &Host) -> [Check; 2] {
    let seen = host.kvm().and_then(|kvm| host.vms().map(|vms| (kvm, vms.len())));
    let (kvm, switching) = match seen {
        Ok((kvm, vms)) => {
            let switching = match kvm.default {
                Some(mode) => Ok(format!("each VM has a mode of its own, {} at first", mode.name())),
                None => Err((
                    "this KVM has one paging mode for all VMs".to_string(),
                    "load the modules of `make kernel`",
                )),
            };
            (Ok(format!("{vms} VMs")), switching)
        }
        Err(e) => {
            let remedy = match &e {
                HostError::NotRoot { .. } => "run this verb with sudo",
                HostError::NoDebugfs { .. } => "mount debugfs",
                _ => "use a machine with hardware virtualization",
            };
            (Err((e.to_string(), remedy)), Err(("no KVM to ask".to_string(), "see KVM")))
        }
    };
    [check(KVM, &["mode"], kvm), check(SWITCHING, &["mode VM nested|shadow"], switching)]
}

fn json(
    ok: bool,
    findings: &[Finding],
    checks: &[&Check],
    left: &Result<Option<Left>, KsmError>,
) -> anyhow::Result<String> {
    let left = match left {
        Ok(None) => json!(null),
        Ok(Some(l)) => json!({
            "pid": l.journal.pid,
            "held": l.held,
            "settings": l.journal.found.iter().map(|(s, v)| (s.name(), s.text(v))).collect::<std::collections::BTreeMap<_, _>>(),
        }),
        Err(e) => json!({ "error": e.to_string() }),
    };
    let document = json!({
        "schema": "bifold.doctor/1",
        "bifold": env!("CARGO_PKG_VERSION"),
        "ok": ok,
        "verbs": findings.iter().map(|f| json!({
            "verb": f.verb,
            "status": match f.works { Works::Yes => "works", Works::InPart => "part", Works::No => "cannot" },
            "why": f.why,
            "missing": f.missing,
        })).collect::<Vec<_>>(),
        "checks": checks.iter().map(|c| json!({
            "name": c.name,
            "ok": c.ok,
            "detail": c.detail,
            "remedy": c.remedy,
            "needed_by": c.needed_by,
        })).collect::<Vec<_>>(),
        "ksm_journal": left,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn table(findings: &[Finding], checks: &[&Check], left: &Result<Option<Left>, KsmError>) -> String {
    let mut out = String::new();
    let width = findings.iter().map(|f| f.verb.len()).max().unwrap_or(0);
    for f in findings {
        let word = match f.works {
            Works::Yes => "works",
            Works::InPart => "works in part",
            Works::No => "cannot work",
        };
        let colon = if f.why.is_empty() { "" } else { ": " };
        out += &wrapped(&format!("{:<width$}  {word}{colon}{}", f.verb, f.why), width + 2);
    }
    if !checks.is_empty() {
        out.push('\n');
    }
    let width = checks.iter().map(|c| c.name.chars().count()).max().unwrap_or(0);
    for c in checks {
        let mark = if c.ok { "ok     " } else { "MISSING" };
        out += &wrapped(&format!("{mark}  {:<width$}  {}", c.name, c.detail), width + 11);
        if !c.ok && !c.remedy.is_empty() {
            out += &wrapped(&format!("{:1$}remedy: {2}", "", width + 11, c.remedy), width + 11);
        }
    }
    match left {
        Ok(None) => {}
        Ok(Some(l)) if l.held => {
            let text = format!(
                "KSM's settings are changed by process {} now, which will restore them",
                l.journal.pid
            );
            let _ = write!(out, "\n{}", wrapped(&text, 0));
        }
        Ok(Some(l)) => {
            let text = format!(
                "KSM's settings were left changed by process {}, which was killed. They were: {}. To restore them: \
                 sudo bifold doctor --restore",
                l.journal.pid, l.journal.found
            );
            let _ = write!(out, "\n{}", wrapped(&text, 0));
        }
        Err(e) => {
            let _ = write!(out, "\n{}", wrapped(&e.to_string(), 0));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_host::Tree;
    use bifold_host::ksm::{Journal, Settings};

    fn all(missing: &[&str]) -> Vec<Check> {
        let names = GUEST.iter().chain(&[NINEP, "KSM counters", KSM, KVM, SWITCHING]);
        let found = |n: &&&'static str| {
            if missing.contains(*n) {
                Err(("is not here".to_string(), "get it"))
            } else {
                Ok("is here".to_string())
            }
        };
        names.map(|n| check(n, &["x"], found(&n))).collect()
    }

    fn works(missing: &[&str]) -> Vec<Works> {
        VERBS.iter().map(|v| v.look(&all(missing)).works).collect()
    }

    #[test]
    fn a_verb_works_if_all_that_it_needs_is_there() {
        use Works::{InPart, No, Yes};
        let of = |missing: &[&str], verb: &str| {
            VERBS.iter().find(|v| v.name == verb).unwrap().look(&all(missing)).works
        };
        assert!(works(&[]).iter().all(|w| *w == Yes));
        for (missing, verb, expected) in [
            ("qemu", "compare", InPart),
            ("qemu 9p", "compare", InPart),
            ("qemu", "share run", No),
            ("capture plugin", "share run", Yes),
            ("KSM", "share run", No),
            ("KSM", "share check", No),
            ("KSM", "share watch", Yes),
            ("KSM counters", "share advise", No),
            ("KVM", "mode", No),
            ("switching", "mode", InPart),
            ("KVM", "compare", Yes),
        ] {
            assert_eq!(of(&[missing], verb), expected, "{verb} without {missing}");
        }
        let names: Vec<&str> = all(&[]).iter().map(|c| c.name).collect();
        for v in VERBS {
            assert!(
                v.needs.iter().all(|n| names.contains(n)),
                "{} needs something that nobody looks for",
                v.name
            );
        }
    }

    #[test]
    fn the_real_checks_have_the_names_that_verbs_need() {
        let tree = Tree::new();
        let names: Vec<&str> = all_checks(&tree.host()).iter().map(|c| c.name).collect();
        for v in VERBS {
            for n in v.needs.iter().chain(v.part.iter().map(|p| &p.0)) {
                assert!(names.contains(n), "{} needs {n}, for which nobody looks", v.name);
            }
        }
    }

    #[test]
    fn every_verb_of_the_parser_is_known() {
        for verb in Cli::command().get_subcommands() {
            let name = verb.get_name();
            let known = || VERBS.iter().any(|v| is_or_begins_with(v.name, name));
            assert!(["doctor", "man", "completions"].contains(&name) || known(), "{name}");
            if name == "share" {
                for one in verb.get_subcommands() {
                    let full = format!("share {}", one.get_name());
                    assert!(VERBS.iter().any(|v| v.name == full), "{full}");
                }
            }
        }
    }

    #[test]
    fn verbs_are_told_with_what_they_lack_and_what_to_do() {
        let all = all(&["qemu", "KVM"]);
        let findings: Vec<Finding> = VERBS.iter().map(|v| v.look(&all)).collect();
        let checks: Vec<&Check> = all.iter().collect();
        let journal =
            Journal { pid: 4242, found: Settings::of(&[(Setting::Run, 0), (Setting::PagesToScan, 100)]) };
        let left = Ok(Some(Left { journal: journal.clone(), held: false }));
        insta::assert_snapshot!("doctor_table", table(&findings, &checks, &left));
        insta::assert_snapshot!("doctor_json", json(false, &findings[..1], &checks[..2], &left).unwrap());
        let held = table(&findings, &checks, &Ok(Some(Left { journal, held: true })));
        assert!(held.contains("changed by process 4242 now") && !held.contains("--restore"), "{held}");
    }

    #[test]
    fn ksm_is_told_with_what_to_do() {
        let tree = Tree::new();
        tree.ksm(&[("run", "1"), ("pages_shared", "12"), ("pages_to_scan", "100")]);
        let there = ksm_check(Ksm::of(&tree.host()));
        let not_root = ksm_check(Err(KsmError::NotRoot { path: "run".into() }));
        let none = ksm_check(Err(KsmError::NoKsm { path: "ksm".into() }));
        assert_eq!([there.ok, not_root.ok, none.ok], [true, false, false]);
        insta::assert_snapshot!("doctor_ksm", table(&[], &[&there, &not_root, &none], &Ok(None)));
        assert_eq!(ksm_counters(Ksm::of(&tree.host())).detail, "12 pages shared");
    }

    #[test]
    fn a_journal_is_restored_from_on_request() {
        let tree = Tree::new();
        tree.ksm(&[("run", "1"), ("pages_to_scan", "100")]);
        tree.write("journal", "bifold-ksm 1\npid 7\nrun 0\nend\n");
        let at = |name: &str| tree.host().sys.join("..").join(name);
        let places = Places { lock: at("lock"), journal: at("journal") };
        assert_eq!(restore(&tree.host(), &places).unwrap(), Status::Done);
        assert_eq!(std::fs::read_to_string(tree.host().sys.join("kernel/mm/ksm/run")).unwrap(), "0\n");
        assert!(!places.journal.exists());
    }
}
