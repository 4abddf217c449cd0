// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A boot of the laboratory with one placed guest: the guest runs programs one after the other, and before
//! and behind each waits until the host has read its counters, so that counts are of that program alone.

use anyhow::{Context, Result};

use super::guests::{CPUS_OF_NODE, NODES, Placement, VCPUS};
use super::measured::{Run, read};
use super::world::{self, CLASSES, NAS, Program};
use crate::BUSYBOX;
use crate::lab::job::{Job, at};
use crate::lab::{Lab, Plan};

/// The port between guest and host.
const PORT: &str = "bifold.place";
/// Where the guest's initramfs lies in the laboratory.
const INITRD: &str = "/lab/inner/place.cpio";
/// Memory of the laboratory: that of the guest, and as much for images.
const MIB: u64 = 3072;
/// Limits in seconds: of a program in the guest, of a boot with all programs, of a quick test's.
const PROGRAM_SECONDS: u64 = 1500;
const SECONDS: u64 = 3600;
const QUICK_SECONDS: u64 = 400;

/// The guest's first process. `turn` tells the host and waits for it. The report goes out at the end, because
/// a console prints on while the next program runs.
const GUEST: &str = r#"
$B mount -t proc proc /proc; $B mount -t sysfs sysfs /sys; $B mount -t devtmpfs devtmpfs /dev; $B mount -t tmpfs tmpfs /tmp
$B mkdir -p /dev/shm; $B mount -t tmpfs tmpfs /dev/shm
for m in /m/*; do $B insmod $m; done
# The host names a port some time after the module is loaded.
n=0
until dev=$($B grep -lxs $PORT /sys/class/virtio-ports/*/name) || [ $n = 300 ]; do n=$((n + 1)); $B sleep 0.1; done
dev=${dev%/name}
exec 3<>/dev/${dev##*/} || { echo "no port $PORT"; $B sleep 1; $B reboot -f; }
export PATH=/usr/bin:/bin HOME=/tmp MPI_BIND=core
turn() { echo "$1" >&3; read -r go <&3; }
run() {
    name=$1; shift
    turn "begin $name"
    $B sed 's/^/@before /' /proc/vmstat > /tmp/before
    $B timeout $SECONDS "$@" > /tmp/said 2>&1; status=$?
    $B sed 's/^/@after /' /proc/vmstat > /tmp/after
    turn "end $name"
    {
        echo "@program $name"; echo "@status $status"
        $B cat /tmp/before /tmp/after
        $B sed 's/^/@said /' /tmp/said
        [ ! -e hpccoutf.txt ] || { $B grep -E '^[A-Za-z_]*=' hpccoutf.txt | $B sed 's/^/@said /'; $B rm hpccoutf.txt; }
    } >> /tmp/report
}
{
    $B grep . /sys/devices/system/node/node*/cpulist /sys/devices/system/node/node*/distance
    $B grep MemTotal /sys/devices/system/node/node*/meminfo
} | $B sed 's/^.*node\//@node /' > /tmp/report
[ ! -d /lab/work ] || cd /lab/work
"#;

/// Reads the counters: KVM's, threads, the process's memory by node, the host's.
const HOST: &str = r#"
snapshot() {
    {
        $B grep -s . /sys/kernel/debug/kvm/$vm-*/* | $B sed 's/.*\//@kvm /; s/:/ /'
        for t in /proc/$vm/task/*; do
            read -r name < $t/comm
            echo "@thread $($B sed 's/.*) //' $t/stat | $B cut -d ' ' -f 37)" \
                "$($B sed -n 's/.*nr_migrations *: *//p' $t/sched) $name"
        done
        $B sed 's/^/@maps /' /proc/$vm/numa_maps
        $B grep SecPageTables /sys/devices/system/node/node*/meminfo | $B sed 's/.*Node /@tables /'
        $B sed 's/^/@vmstat /' /proc/vmstat
    } > $OUT/$1
}
expect() {
    read -t $SECONDS -r word <&5 && [ "$word" = "$1" ] ||
        { echo "the guest said '$word', not '$1'" >&2; $B tail -n 30 $OUT/console $OUT/qemu.log >&2; exit 6; }
    [ -z "$2" ] || snapshot "$2"
    echo go >&4
}
report() {
    while read -t $SECONDS -r line <&5 && [ "$line" != @end ]; do echo "$line"; done > $OUT/report
    echo go >&4
}
"#;

/// Boots the laboratory and runs the programs in a guest of this placement, with Open MPI.
///
/// # Errors
/// If something to run is missing, the boot fails, or the guest does not do what it must.
pub fn boot(lab: &Lab, placement: &Placement, programs: &[Program], class: &str) -> Result<Run> {
    let order = CLASSES.iter().find(|(name, _)| *name == class).context("an unknown class")?.1;
    let run = |p: &Program| format!("run {} /lab/mpi {VCPUS} {}\n", p.name, p.command(NAS, class));
    let each: String = programs.iter().map(run).collect();
    let initrd = world::initramfs(lab, &init(&each), VCPUS, order)?;
    in_lab(lab, placement, programs, initrd, SECONDS)
}

/// Boots the laboratory and runs a command of busybox in a guest of this placement, under the name of the
/// program.
///
/// # Errors
/// As [`boot`].
pub fn placed(lab: &Lab, placement: &Placement, program: Program, command: &str) -> Result<Run> {
    let init = init(&format!("run {} {BUSYBOX} {command}\n", program.name));
    let initrd = lab.script_guest(&init, &[])?;
    in_lab(lab, placement, &[program], initrd, QUICK_SECONDS)
}

/// The guest's first process, which makes these runs.
fn init(runs: &str) -> String {
    format!(
        "B={BUSYBOX} PORT={PORT} SECONDS={PROGRAM_SECONDS}\n{GUEST}{runs}$B cat /tmp/report >&3; turn @end; $B reboot -f\n"
    )
}

fn in_lab(
    lab: &Lab,
    placement: &Placement,
    programs: &[Program],
    initrd: Vec<u8>,
    seconds: u64,
) -> Result<Run> {
    let turns: String = programs
        .iter()
        .map(|p| format!("expect 'begin {0}' {0}.begin\nexpect 'end {0}' {0}.end\n", p.name))
        .collect();
    let script = format!(
        "OUT={} B={BUSYBOX} SECONDS={PROGRAM_SECONDS}\n{}\n{HOST}\n{turns}report\nwait $vm\n",
        at::OUT,
        placement.start(INITRD, PORT)
    );
    let plan = Plan {
        jobs: vec![Job::Kvm { nested: true }, Job::sh(&script)].into(),
        programs: vec![BUSYBOX.into()],
        made: vec![(INITRD.into(), initrd)],
        emulator: true,
        exact: false,
        cpus: NODES * CPUS_OF_NODE,
        nodes: NODES,
        memory_mib: MIB,
        seconds,
        ..Plan::default()
    };
    let output = lab.boot_for_last(&plan)?;
    read(&output, programs)
}
