// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Inner guests that alternate between page-table work and pointer chasing (`lab/phases`), and say how far
//! they are.
//!
//! The laboratory has two CPUs, and each guest two vCPUs and stock QEMU. A reporter in each guest tells the
//! progress of the work and the guest's page faults over a virtio-serial port, whose socket `bifold` finds by
//! itself.

use std::path::Path;
use std::process::Command;

use crate::lab::job::{Job, at};
use crate::lab::{Lab, Output, Plan, beside};
use crate::{BUSYBOX, PHASES};
use anyhow::{Context, Result, ensure};
use bifold_guest::qemu::{BARE, MACHINE, guest_cpu};

/// The first process of a guest. The kernel makes environment variables of its parameters: `PHASES` has
/// arguments of the program. The last report needs a moment to be read.
const GUEST: &str = r#"
$B mount -t proc proc /proc; $B mount -t sysfs sysfs /sys; $B mount -t devtmpfs devtmpfs /dev
$B mount -t tmpfs tmpfs /tmp
for m in /m/*; do $B insmod $m; done
$REPORTER --progress /tmp/progress &
$PROGRAM --progress /tmp/progress $PHASES 2>&1
echo "status $?"
$B sleep 1
$B reboot -f
"#;

/// Shell functions: start a guest, given its name and the arguments of its program, with its process in $vm;
/// wait until a guest has ended, given its process and its name; and wait until something is true. No wait is
/// without a limit, and a long one says each half a minute what it is for.
const HOST: &str = r#"
start() {
    $BIFOLD_QEMU -machine $MACHINE -accel kvm -cpu $CPU -smp 2 -m 192M -object memory-backend-ram,id=ram,size=192M \
        -name $1,debug-threads=on -kernel $KERNEL -initrd $INITRD -append "$APPEND \"PHASES=$2\"" \
        -serial file:$OUT/$1.console -device virtio-serial-pci \
        -chardev socket,id=report,path=/tmp/$1.report,server=on,wait=off \
        -device virtserialport,chardev=report,name=org.bifold.report.0 $BARE &
    vm=$!
}
ended() {
    n=0
    while kill -0 $1 2>/dev/null; do
        n=$((n + 1))
        [ $n -lt 400 ] || { echo "guest $2 does not end within 400 s" >&2; exit 8; }
        [ $((n % 30)) != 0 ] || echo "note: guest $2 has run for $n s, and ends within 400 s"
        $B sleep 1
    done
    wait $1 || { echo "guest $2 ended with status $?" >&2; exit 7; }
}
until_true() {
    n=0
    until eval "$1"; do n=$((n + 1)); [ $n -lt 300 ] || { echo "not so within 60 s: $1" >&2; exit 9; }; $B sleep 0.2; done
}
"#;
const APPEND: &str = "console=ttyS0 quiet nokaslr panic=-1 rdinit=/init no_timer_check tsc=reliable pti=off mitigations=off \
     transparent_hugepage=madvise random.trust_cpu=on cryptomgr.notests=1";
/// Where the guests' initramfs lies in the laboratory.
const INITRD: &str = "/lab/inner/phases.cpio";
/// The laboratory and both guests, with time for a busy machine.
const SECONDS: u64 = 1200;

/// A guest's name, and the arguments of its program.
pub type Guest = (&'static str, &'static str);

/// Boots the laboratory with our KVM in nested paging and these files, and runs a script there: a shell with
/// `start NAME ARGUMENTS`, which starts a guest and leaves its process in `$vm`, `until_true COMMAND`,
/// `$BIFOLD`, `$DAEMON` (`lab-daemon`), `$B` (busybox) and `$OUT` (the folder whose files come back).
///
/// # Errors
/// If there are no modules for the kernel ([`Skipped`](crate::lab::Skipped)), the boot fails, or the script
/// does not end with 0.
pub fn run(lab: &Lab, script: &str, files: Vec<(String, Vec<u8>)>) -> Result<Output> {
    let lab = lab.switching()?;
    lab.needs_qemu("guests with phases take hours under Bochs")?;
    let (bifold, daemon, reporter) = (beside("bifold")?, beside("lab-daemon")?, beside("bifold-reporter")?);
    let kernel = lab.inner().image.clone();
    let init = format!("B={BUSYBOX} REPORTER={} PROGRAM={PHASES}\n{GUEST}", reporter.display());
    let initrd = lab.script_guest(&init, &[Path::new(PHASES), &reporter])?;
    let script = format!(
        "BIFOLD={} DAEMON={} B={BUSYBOX} KERNEL={} OUT={} INITRD={INITRD} MACHINE={MACHINE} CPU={} BARE='{}' APPEND='{APPEND}'\n\
         {HOST}\n{script}",
        bifold.display(),
        daemon.display(),
        kernel.display(),
        at::OUT,
        guest_cpu(&[]),
        BARE.join(" "),
    );
    let plan = Plan {
        jobs: vec![Job::Kvm { nested: true }, Job::sh(&script)].into(),
        programs: vec![BUSYBOX.into(), bifold, daemon],
        files: vec![kernel],
        made: [files, vec![(INITRD.into(), initrd)]].concat(),
        emulator: true,
        // The guests' vCPUs are to run at the same moment.
        exact: false,
        cpus: 2,
        seconds: SECONDS,
        notes: |what| eprintln!("lab: {what}"),
        ..Plan::default()
    };
    lab.boot_for_last(&plan)
}

/// A file that the script left in `$OUT`.
///
/// # Errors
/// If there is no such file.
pub fn text(output: &Output, name: &str) -> Result<String> {
    let bytes = output.files.get(name).with_context(|| format!("no file {name}"))?;
    Ok(String::from_utf8_lossy(bytes).into_owned())
}

/// The last line of the program: the counts of steps and a checksum of all that it read, which this machine's
/// run of the same program gives too.
///
/// # Errors
/// If the guest said something else.
pub fn checksum(output: &Output, (name, arguments): Guest) -> Result<()> {
    let here = Command::new(PHASES).args(arguments.split(' ')).output().context("running the program")?;
    ensure!(here.status.success(), "the program on this machine: {}", here.status);
    let here = String::from_utf8_lossy(&here.stdout).trim().to_owned();
    let console = text(output, &format!("{name}.console"))?;
    let said = console.lines().map(str::trim).any(|line| line == here);
    ensure!(
        said && console.contains("status 0"),
        "guest {name} said {console:?}, here the program says {here:?}"
    );
    Ok(())
}
