// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a build without the feature `full` has in place of the folder `full`: nothing, and a sentence that
//! says so.

use crate::doctor::LeftOrder;
use bifold_guest::doctor::Check;
use bifold_host::Host;
use serde_json::Value;
use std::ffi::OsString;
use std::process::ExitCode;

/// What this build leaves out, for help and errors.
pub const LEFT_OUT: Option<&str> = Some(
    "\
This build has the verbs about one program. `make build` adds those about
many runs and about a host: VMs, memory, placement and policies.

",
);

verbs! {}

pub fn guard_if_asked(_: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    None
}

pub fn status_of(_: &anyhow::Error) -> Option<u8> {
    None
}

pub fn schemas() -> Vec<Value> {
    Vec::new()
}

pub fn pages() -> Vec<(String, Vec<u8>)> {
    Vec::new()
}

pub fn folder_check() -> Option<Check> {
    None
}

pub fn orders(_: &Host) -> Vec<LeftOrder> {
    Vec::new()
}
