// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold daemon`: a [`bifold_daemon::Service`] on this host, with the options of the command line.

mod args;
mod check;

pub use args::{DaemonArgs, STATE};

use crate::console::{note, print};
use crate::doctor::needs::{FEW_FIGURES, FOLDER, MODULE, Needs, SWITCHING};
use crate::full::reclaim::GUARDIAN;
use crate::full::vms;
use crate::status::Status;
use anyhow::Context as _;
use args::CONFIG;
use bifold_daemon::control::Control;
use bifold_daemon::{Config, DaemonError, Homes, Place, Service, Signals};
use bifold_host::Host;
use bifold_host::held::Guardian;
use bifold_live::Watch;
use bifold_live::hardware::FileLimit;
use bifold_live::order::folder;
use rustix::fs::{Access, access};
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

/// What the verb needs of the machine.
pub const NEEDS: &[Needs] = &[Needs {
    parts: &[FEW_FIGURES, (SWITCHING, "it observes VMs and switches none")],
    ..Needs::of("", &[MODULE, FOLDER])
}];

/// Carries out the verb on this machine.
pub fn run(args: &DaemonArgs) -> anyhow::Result<Status> {
    if let Some(path) = &args.check_config {
        let config = Config::read(path)?;
        check::folders(&config).with_context(|| path.display().to_string())?;
        print(&check::text(&config))?;
        return Ok(Status::Done);
    }
    let signals = Signals::catch().context("cannot watch signals")?;
    let config = configuration(args)?;
    config.notes.iter().for_each(|text| note(true, text));
    let host = Host::live();
    let (pmu, no_pmu) = vms::pmu(&host, args.no_pmu);
    FileLimit::raise().context("cannot raise the limit of open files")?;
    let watch = Watch::new(host, pmu.into())?;
    make(&args.state)?;
    let homes = Homes::take(&args.state)?;
    let control = Control::listen(&args.state)?;
    let read = || configuration(args).map_err(|e| DaemonError::Refused(format!("{e:#}")));
    let guardian = Guardian::this_program(GUARDIAN)?;
    let orders = folder().ok().map(|folder| Place { folder, guardian });
    let service = Service::start((watch, config, homes, orders), &read, |text| note(true, text))?;
    let engine = service.engine();
    vms::notes(engine.watch(), no_pmu.as_ref(), &[]).iter().for_each(|text| note(true, text));
    if let Some(why) = engine.only_observes() {
        note(true, format_args!("observes only: {why}"));
    }
    if let Some(warning) = engine.watch().kvm().holes_warning() {
        note(true, warning);
    }
    let away = service.run(&control, &signals);
    if !away.is_empty() {
        anyhow::bail!(
            "not all VMs are back in their own modes, or have their memory back; the next start, and guardians of orders, try again"
        );
    }
    Ok(Status::Done)
}

/// The configuration of the options.
fn configuration(args: &DaemonArgs) -> anyhow::Result<Config> {
    match &args.config {
        Some(path) => Ok(Config::read(path)?),
        None if !Path::new(CONFIG).exists() => {
            note(true, format_args!("{CONFIG} does not exist: VMs are watched, and no policy decides"));
            Ok(Config::parse("", Path::new(CONFIG))?)
        }
        None => Ok(Config::read(Path::new(CONFIG))?),
    }
}

/// Whether this user can have the daemon's folder: the folder, or the nearest one above that exists, takes
/// new files.
pub fn may_make(folder: &Path) -> io::Result<()> {
    let there = folder.ancestors().find(|at| at.exists()).unwrap_or(Path::new("/"));
    Ok(access(there, Access::WRITE_OK | Access::EXEC_OK)?)
}

/// Makes the daemon's folder, in which others may look for names that they know: by the journals of root's
/// orders, a guest's user sees that one has the guest. Who may not make the folder cannot run the daemon
/// here: exit status 77.
fn make(folder: &Path) -> anyhow::Result<()> {
    let made = may_make(folder).and_then(|()| DirBuilder::new().recursive(true).mode(0o711).create(folder));
    made.map_err(|source| DaemonError::Io { path: folder.into(), source })
        .context("cannot make the daemon's folder: run as root, or name another folder by --state")
}
