// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a laboratory inside the laboratory: a guest under the laboratory's KVM that has a KVM of its own.
//! This module works in the outer one, where it starts QEMU and follows the inner `lab-init`.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::process::Stdio;

use anyhow::{Context, Result, bail, ensure};
use bifold_guest::qemu::{self, BARE, MACHINE, cpu};

use crate::lab::job::{InnerBacking, Machine, PORT, Word, at};
use crate::lab::{COMMAND_LINE, Running};
use crate::vendor::{Emulator, Vendor};

/// Bytes of the console in a message.
const SHOWN: usize = 2000;

fn arguments(job: &Machine, vendor: &Vendor, qemu: &str, port: i32, console: &str) -> Result<Vec<String>> {
    let Emulator::Qemu { flags } = vendor.emulator else {
        bail!("{}'s emulator runs no laboratory inside", vendor.name)
    };
    let size = format!("{}M", job.memory_mib);
    let ram = match job.backing {
        InnerBacking::Small => format!("memory-backend-ram,id=ram,size={size}"),
        InnerBacking::Huge => format!("memory-backend-memfd,id=ram,size={size},hugetlb=on,hugetlbsize=2M"),
    };
    let mut args: Vec<String> = Vec::new();
    let mut opt = |name: &str, value: String| args.extend([name.to_owned(), value]);
    opt("-machine", MACHINE.into());
    opt("-object", ram);
    opt("-m", size);
    opt("-cpu", cpu(flags));
    opt("-accel", "kvm".into());
    opt("-kernel", at::INNER_KERNEL.into());
    opt("-initrd", at::MACHINE.into());
    if let Some([name, image]) = qemu::firmware() {
        opt(&name, image);
    }
    opt("-append", format!("{COMMAND_LINE} PATH=/usr/bin:/bin BIFOLD_QEMU={qemu}"));
    opt("-chardev", format!("file,id=console,path={console}"));
    opt("-serial", "chardev:console".into());
    opt("-device", "virtio-serial-pci,ioeventfd=off".into());
    opt("-chardev", format!("socket,id=lab,fd={port}"));
    opt("-device", format!("virtserialport,chardev=lab,name={PORT}"));
    args.extend(BARE.map(String::from));
    Ok(args)
}

/// Boots the machine of the image in `at::MACHINE`, and hands on what its init says, with the bytes of files,
/// until its jobs have ended.
///
/// # Errors
/// If the machine cannot be started, ends early, or one of its jobs fails.
pub fn run(job: &Machine, vendor: &Vendor, say: &mut dyn FnMut(&Word, &[u8]) -> Result<()>) -> Result<()> {
    let qemu = std::env::var("BIFOLD_QEMU").context("BIFOLD_QEMU")?;
    let (mine, port) = UnixStream::pair()?;
    let console = format!("{}/inside-console", at::OUT);
    let log: OwnedFd = File::create(format!("{}/inside-log", at::OUT))?.into();
    let args = arguments(job, vendor, &qemu, port.as_raw_fd(), &console)?;
    let mut child = Running(qemu::spawn(
        qemu.as_ref(),
        &args,
        &[port.as_fd()],
        (Stdio::null(), log),
        job.backing == InnerBacking::Small,
        None,
    )?);
    // The machine has the only other end: its death ends the input.
    drop(port);
    let mut from = BufReader::with_capacity(1 << 20, mine);
    let mut line = String::new();
    loop {
        line.clear();
        if from.read_line(&mut line)? == 0 {
            let said = std::fs::read(&console).unwrap_or_default();
            let said = String::from_utf8_lossy(&said[said.len().saturating_sub(SHOWN)..]).into_owned();
            bail!("the laboratory inside ended early ({:?}); its console's end: {said}", child.0.try_wait());
        }
        let word: Word =
            serde_json::from_str(&line).with_context(|| format!("the laboratory inside said {line:?}"))?;
        match word {
            Word::File { bytes, .. } => {
                let mut data = Vec::new();
                (&mut from).take(bytes).read_to_end(&mut data)?;
                ensure!(data.len() as u64 == bytes, "the laboratory inside ended within a file");
                say(&word, &data)?;
            }
            Word::Ask(question) => bail!("the laboratory inside asks {question}, and nothing answers there"),
            Word::Lacks(why) | Word::Failed(why) => bail!("in the laboratory inside: {why}"),
            Word::Up(_) => {}
            Word::End => return Ok(()),
            Word::Note(_) | Word::Done(_) => say(&word, &[])?,
        }
    }
}
