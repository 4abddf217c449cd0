// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hidden verbs under which this program guards KSM's settings and guests' sizes
//! ([`bifold_host::held::Guardian`]).
//!
//! The verbs are not in the parser: no user types them, and they have to work before anything else is parsed.

use super::reclaim;
use crate::status;
use bifold_host::held::Stood;
use bifold_host::ksm::stand_guard;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// The hidden verb of KSM's settings.
pub const VERB: &str = "ksm-guardian";

/// Guards if the arguments begin with a guardian's verb.
pub fn guard_if_asked(mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let verb = args.next()?;
    if verb == reclaim::GUARDIAN {
        return Some(of_an_order(Path::new(&args.next()?)));
    }
    if verb != VERB {
        return None;
    }
    let (sys, journal) = (args.next()?, args.next()?);
    Some(match stand_guard(Path::new(&sys), Path::new(&journal)) {
        Ok(Stood::Idle) => ExitCode::SUCCESS,
        Ok(Stood::Restored { pid, .. }) => {
            eprintln!("bifold: process {pid} ended while KSM's settings were changed: they are restored");
            ExitCode::SUCCESS
        }
        Err(e) => {
            let e = anyhow::Error::new(e);
            eprintln!("bifold: KSM's settings are not restored: {e:#}");
            ExitCode::from(status::of_error(&e))
        }
    })
}

fn of_an_order(journal: &Path) -> ExitCode {
    match reclaim::guard(journal) {
        Ok(said) => {
            said.iter().for_each(|text| eprintln!("bifold: {text}"));
            ExitCode::SUCCESS
        }
        Err(e) => {
            let e = anyhow::Error::new(e);
            eprintln!("bifold: a guest's memory is not given back, run `bifold reclaim restore`: {e:#}");
            ExitCode::from(status::of_error(&e))
        }
    }
}
