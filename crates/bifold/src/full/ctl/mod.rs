// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold ctl`: asks and commands the daemon.

mod args;
mod json;
mod text;

pub use args::CtlArgs;
pub use json::schemas;

use crate::console::print;
use crate::status::Status;
use args::Ask;
use bifold_daemon::control::{Request, ask};
use bifold_report::Format;

/// Carries out the verb.
pub fn run(args: &CtlArgs) -> anyhow::Result<Status> {
    let request = match &args.ask {
        Ask::Status => Request::Status {},
        Ask::Explain { vm } => Request::Explain { vm: vm.clone() },
        Ask::Hold { vm, seconds } => Request::Hold { vm: vm.clone(), seconds: *seconds },
        Ask::Release { vm } => Request::Release { vm: vm.clone() },
        Ask::Undo { vm } => Request::Undo { vm: vm.clone() },
        Ask::Reload => Request::Reload {},
    };
    let answer = ask(&args.state, &request)?;
    print(&match args.format {
        Format::Json => json::answer(&answer)?,
        _ => text::answer(&answer),
    })?;
    Ok(Status::Done)
}
