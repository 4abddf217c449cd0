// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `doctor`: what this machine lacks for the verbs that exist, in words and in JSON.

use crate::cli::DoctorFormat;
use crate::run::print;
use crate::status::Status;
use bifold_capture::doctor::{Check, checks};
use bifold_host::Host;
use bifold_host::ksm::{Counter, Ksm, KsmError, Setting};
use serde_json::json;
use std::fmt::Write as _;

/// Looks, tells, and ends with 77 if something is missing.
pub fn run(format: DoctorFormat) -> anyhow::Result<Status> {
    let mut checks = checks();
    let ksm = Ksm::of(&Host::live());
    checks.push(ksm_check(ksm.and_then(|ksm| ksm.may_write().map(|()| ksm))));
    print(&match format {
        DoctorFormat::Table => table(&checks),
        DoctorFormat::Json => json(&checks)?,
    })?;
    Ok(if checks.iter().all(|c| c.ok) { Status::Done } else { Status::Unavailable })
}

/// The kernel's KSM, if it is there and this user may change it.
fn ksm_check(found: Result<Ksm, KsmError>) -> Check {
    let told = found.and_then(|ksm| {
        let (settings, shared) = (ksm.settings()?, ksm.counter(Counter::PagesShared)?);
        let run = settings.get(Setting::Run).unwrap_or(0);
        let without: Vec<_> =
            Setting::ALL.iter().filter(|s| settings.get(**s).is_none()).map(|s| s.name()).collect();
        let without = match without.len() {
            0 => String::new(),
            _ => format!("; this kernel does not have {}", without.join(", ")),
        };
        Ok(format!("run = {run}, {} pages shared{without}", shared.unwrap_or(0)))
    });
    let ok = told.is_ok();
    let (detail, remedy) = match told {
        Ok(detail) => (detail, ""),
        Err(KsmError::NoKsm { .. }) => {
            ("this kernel has none".into(), "boot a kernel built with CONFIG_KSM=y, as distributions' are")
        }
        Err(KsmError::NotRoot { .. }) => (
            "it is there, but only root may change its settings".into(),
            "run these verbs with sudo; share watch, advise, model and potential do not need it",
        ),
        Err(e) => (e.to_string(), "look at /sys/kernel/mm/ksm"),
    };
    Check { name: "KSM", ok, detail, remedy: remedy.into(), needed_by: &["share run", "share check"] }
}

fn json(checks: &[Check]) -> anyhow::Result<String> {
    let document = json!({
        "schema": "bifold.doctor/1",
        "bifold": env!("CARGO_PKG_VERSION"),
        "ok": checks.iter().all(|c| c.ok),
        "checks": checks.iter().map(|c| json!({
            "name": c.name,
            "ok": c.ok,
            "detail": c.detail,
            "remedy": c.remedy,
            "needed_by": c.needed_by,
        })).collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn table(checks: &[Check]) -> String {
    let width = checks.iter().map(|c| c.name.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for c in checks {
        let mark = if c.ok { "ok     " } else { "MISSING" };
        let _ = writeln!(out, "{mark}  {:<width$}  {}", c.name, c.detail);
        if !c.ok {
            let _ =
                writeln!(out, "{:>9}{:width$}  needed by {}: {}", "", "", c.needed_by.join(", "), c.remedy);
        }
    }
    let missing = checks.iter().filter(|c| !c.ok).count();
    out += &match missing {
        0 => "\nEverything that Bifold's verbs need is here.\n".to_string(),
        n => format!("\n{n} of {} things are missing; only the verbs named above need them.\n", checks.len()),
    };
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::share::tree::Tree;

    #[test]
    fn ksm_is_told_with_what_to_do() {
        let tree = Tree::new();
        tree.ksm(&[("run", "1"), ("pages_shared", "12"), ("pages_to_scan", "100")]);
        let there = ksm_check(Ksm::of(&tree.host()));
        let not_root = ksm_check(Err(KsmError::NotRoot { path: "run".into() }));
        let none = ksm_check(Err(KsmError::NoKsm { path: "ksm".into() }));
        assert_eq!([there.ok, not_root.ok, none.ok], [true, false, false]);
        insta::assert_snapshot!("doctor_ksm", table(&[there, not_root, none]));
    }
}
