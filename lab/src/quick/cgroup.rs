// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests `bifold reclaim set --by cgroup` on a guest in a real cgroup v2, on a host with swap: the order
//! reaches its size, and the guest's memory is whole.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{BUSYBOX, Shared};
use crate::lab::job::{Job, at};
use crate::lab::{Plan, beside};
use bifold_guest::qemu::{BARE, MACHINE, guest_cpu};

/// The size that is ordered, and the guest's file, in MiB.
const SIZE: u64 = 112;
const FILE: u64 = 80;

/// The guest fills a file in memory, and after a line from the host reads the file again. Its console is a
/// socket's other end.
const GUEST: &str = r#"
$B mount -t proc proc /proc; $B mount -t devtmpfs devtmpfs /dev
$B dd if=/dev/urandom of=/file bs=1M count=$FILE 2>/dev/null
sum=$($B md5sum /file)
echo filled > /dev/ttyS0
read line < /dev/ttyS0
[ "$($B md5sum /file)" = "$sum" ] && echo same > /dev/ttyS0
$B sleep 1
$B reboot -f
"#;

const HOST: &str = r#"
until_true() {
    n=0
    until eval "$1"; do n=$((n + 1)); [ $n -lt 600 ] || { echo "in vain: $1"; $B tail -n 3 $OUT/console; } >&2; [ $n -lt 600 ] || exit 9; $B sleep 0.2; done
}
$B mkdir -p /run
$B mkswap /dev/vda >/dev/null && $B swapon /dev/vda || exit 8
$B mount -t cgroup2 cgroup2 /sys/fs/cgroup && echo +memory > /sys/fs/cgroup/cgroup.subtree_control || exit 8
G=/sys/fs/cgroup/vm
$B mkdir $G
$B mkfifo /tmp/console.in /tmp/console.out
exec 3<>/tmp/console.in 4<>/tmp/console.out
$B cat <&4 > $OUT/console & cat=$!
(echo 0 > $G/cgroup.procs; exec $BIFOLD_QEMU -machine $MACHINE -accel kvm -cpu $CPU -m 192M \
    -object memory-backend-ram,id=ram,size=192M -name vm -kernel $KERNEL -initrd $INITRD -append "$APPEND" \
    -chardev pipe,id=console,path=/tmp/console -serial chardev:console \
    -qmp unix:/tmp/qmp,server=on,wait=off $BARE) &
vm=$!
# The job's output ends with the last process that has it.
trap "kill -9 $vm $cat 2>/dev/null" EXIT
until_true "$B grep -q filled $OUT/console"
$B cat $G/memory.current > $OUT/before
$BIFOLD reclaim set vm $SIZE --by cgroup --floor 64M --step 4M --format jsonl -q > $OUT/set.jsonl || exit 7
$B cat $G/memory.current > $OUT/after
$B cat $G/memory.swap.current > $OUT/swapped
echo go >&3
until_true "$B grep -q same $OUT/console"
until_true "! kill -0 $vm 2>/dev/null"
"#;

/// Runs the order.
pub fn set(shared: &Shared) -> Result<()> {
    let lab = shared.lab;
    lab.needs_qemu("a machine under Bochs has no disk to swap to")?;
    let (bifold, kernel) = (beside("bifold")?, lab.inner().image.clone());
    let initrd = lab.script_guest(&format!("B={BUSYBOX} FILE={FILE}\n{GUEST}"), &[])?;
    let script = format!(
        "BIFOLD={} B={BUSYBOX} KERNEL={} OUT={} INITRD=/lab/inner/file.cpio MACHINE={MACHINE} CPU={} BARE='{}' SIZE={SIZE} \
         APPEND='console=ttyS0 quiet nokaslr panic=-1 rdinit=/init no_timer_check tsc=reliable rootfstype=ramfs'\n{HOST}",
        bifold.display(),
        kernel.display(),
        at::OUT,
        guest_cpu(&[]),
        BARE.join(" "),
    );
    let plan = Plan {
        jobs: vec![Job::Kvm { nested: true }, Job::sh(&script)].into(),
        programs: vec![BUSYBOX.into(), bifold],
        files: vec![kernel],
        made: vec![("/lab/inner/file.cpio".into(), initrd)],
        emulator: true,
        swap_mib: 512,
        sleeps: true,
        ..Plan::default()
    };
    let output = lab.boot_for_last(&plan)?;
    let file = |name: &str| output.files.get(name).with_context(|| format!("no file {name}"));
    let mib = |name: &str| -> Result<u64> {
        Ok(String::from_utf8_lossy(file(name)?).trim().parse::<u64>().context(name.to_owned())? >> 20)
    };
    let (before, after, swapped) = (mib("before")?, mib("after")?, mib("swapped")?);
    ensure!(
        before > FILE && after <= SIZE + 8 && swapped >= (before - SIZE) / 2,
        "{before} MiB, then {after} MiB and {swapped} MiB in swap"
    );
    let lines = String::from_utf8_lossy(file("set.jsonl")?);
    let last: Value = serde_json::from_str(lines.lines().last().context("no line")?)?;
    ensure!(last["schema"] == "bifold.reclaim-set/1", "{last}");
    Ok(())
}
