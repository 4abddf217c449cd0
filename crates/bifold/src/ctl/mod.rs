// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold ctl`: asks and commands the daemon.

mod args;
mod text;

pub use args::CtlArgs;

use crate::console::print;
use crate::status::Status;
use args::Ask;
use bifold_daemon::control::{Answer, Request, ask};
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
        Format::Json => json(&answer)?,
        _ => text::answer(&answer),
    })?;
    Ok(Status::Done)
}

fn json(answer: &Answer) -> serde_json::Result<String> {
    let text = match answer {
        Answer::Status(status) => serde_json::to_string_pretty(status),
        Answer::Explained(about) => serde_json::to_string_pretty(about),
        Answer::Done(told) => serde_json::to_string_pretty(&serde_json::json!({ "done": told })),
        Answer::Refused(why) => serde_json::to_string_pretty(&serde_json::json!({ "refused": why })),
    };
    text.map(|t| t + "\n")
}
