// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `lab-daemon CONFIG FOLDER PMU`: bifold's daemon inside the laboratory, which has no PMU. All guests there
//! run the program that was modelled, and a modelled PMU counts for them. Its loop is the one that
//! `bifold daemon` runs.

use std::fs::create_dir_all;
use std::path::Path;

use anyhow::{Context, Result, ensure};
use bifold_base::with_causes;
use bifold_daemon::control::Control;
use bifold_daemon::{Config, DaemonError, Homes, Service, Signals};
use bifold_host::Host;
use bifold_lab::modelled::ModelledPmu;
use bifold_live::Watch;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [config, folder, pmu] = &words[..] else { anyhow::bail!("usage: lab-daemon CONFIG FOLDER PMU") };
    let (config, folder) = (Path::new(config), Path::new(folder));
    let signals = Signals::catch()?;
    let watch = Watch::new(Host::live(), ModelledPmu::read(Path::new(pmu))?.source())?;
    create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let homes = Homes::take(folder)?;
    let control = Control::listen(folder)?;
    let wanted = Config::read(config)?;
    let read = || Config::read(config).map_err(|e| DaemonError::Refused(with_causes(&e)));
    let service = Service::start((watch, wanted, homes, None), &read, |text| eprintln!("bifold: {text}"))?;
    let away = service.run(&control, &signals);
    ensure!(away.is_empty(), "not all VMs are back in their own modes: {}", away.join("; "));
    Ok(())
}
