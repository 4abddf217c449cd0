// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hidden verb under which this program guards KSM's settings ([`bifold_host::held::Guardian`]).
//!
//! The verb is not in the parser: no user types it, and it has to work before anything else is parsed.

use crate::status;
use bifold_host::held::Stood;
use bifold_host::ksm::stand_guard;
use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

/// The hidden verb's name.
pub const VERB: &str = "ksm-guardian";

/// Guards the settings if the arguments begin with [`VERB`].
pub fn if_asked(mut args: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    if args.next()? != VERB {
        return None;
    }
    let (sys, journal) = (args.next()?, args.next()?);
    Some(match stand_guard(Path::new(&sys), Path::new(&journal)) {
        Ok(Stood::Idle) => ExitCode::SUCCESS,
        Ok(Stood::Restored { pid }) => {
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
