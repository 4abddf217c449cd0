# SPDX-License-Identifier: Apache-2.0 OR MIT
# Functions of a host whose guests start from plans. The caller has set B (busybox), BIFOLD, OUT and the names of cases.

S=/tmp/state
# The system's folder for locks.
$B mkdir -p $S /run/lock
$B ln -sf $B /bin/taskset
$B mount -t cgroup2 cgroup2 /sys/fs/cgroup && echo '+cpuset +cpu' > /sys/fs/cgroup/cgroup.subtree_control
vm=
# The option that `undo` needs for this guest.
force=

# What went wrong last.
trouble=
say() { echo "$1 $2${3:+: $3}"; }
# All that a plan may set, with its value.
settings() {
    $B grep -s . /sys/devices/system/node/node*/hugepages/*/nr_hugepages /proc/sys/kernel/numa_balancing \
        /sys/kernel/mm/ksm/run /sys/kernel/mm/ksm/merge_across_nodes /sys/module/kvm/parameters/halt_poll_ns \
        /sys/kernel/mm/transparent_hugepage/enabled /proc/irq/*/smp_affinity_list
}
vcpu() { $B grep -lxs "CPU $1/KVM" /proc/$vm/task/*/comm | $B cut -d / -f 5; }
pin() { $B taskset -pc $2 $1 > /dev/null; }
# cgroup FILE VALUE: the guest in a cgroup of its own with this setting.
cgroup() {
    $B mkdir -p /sys/fs/cgroup/g && echo "$2" > /sys/fs/cgroup/g/$1 && echo $vm > /sys/fs/cgroup/g/cgroup.procs
}
no_cgroup() { echo $vm > /sys/fs/cgroup/cgroup.procs; $B rmdir /sys/fs/cgroup/g; }

# plan NAME: the plan of a file of wishes, its command line, and its settings applied.
plan() {
    trouble=
    { $BIFOLD place plan /lab/wishes/$1.toml -q --format json -o /tmp/plan.json &&
        $BIFOLD place plan /lab/wishes/$1.toml -q --format qemu -o /tmp/qemu &&
        $BIFOLD place apply /tmp/plan.json --state $S -q > /dev/null; } 2> /tmp/errors ||
        { trouble="$($B cat /tmp/errors | $B tr '\n' ' ')"; return 1; }
}
# launch EDIT ARGS: starts the guest by the command line, changed by a script for sed, with ARGS behind it.
launch() {
    command=$($B grep -v '^#' /tmp/qemu | $B sed "$1" | $B sed 's/ \\$//' | $B tr '\n' ' ')
    (eval "exec $command -display none -nodefaults -no-user-config $2" > $OUT/qemu.log 2>&1) &
    vm=$!
    last=$($B grep -c "^# pin 'CPU" /tmp/qemu)
    n=0
    until [ -n "$(vcpu $((last - 1)))" ]; do
        n=$((n + 1))
        [ $n -lt 300 ] && [ -d /proc/$vm ] || { trouble="$($B tail -n 3 $OUT/qemu.log)"; return 1; }
        $B sleep 0.1
    done
}
placed() {
    $BIFOLD place apply /tmp/plan.json --state $S -q --vm $vm > /dev/null 2> /tmp/errors || { trouble="$($B cat /tmp/errors)"; return 1; }
}
# names: the names of all findings; fails if the check fails.
names() {
    $BIFOLD place check $1 --state $S -q > /tmp/said 2> /tmp/errors
    status=$?
    case $status in 0 | 3) ;; *) trouble="$($B cat /tmp/errors)"; return 1 ;; esac
    found=$($B sed -n 's/^\(error\|warning\) \([a-z0-9-]*\):.*/\2/p' /tmp/said | $B sort -u | $B tr '\n' ' ')
}
silent() { names "$1" && [ $status = 0 ] && [ -z "$found" ]; }
stop() { [ -z "$vm" ] || { kill -9 $vm; wait $vm; } 2> /dev/null; vm=; }
# undo [--force]
undo() { $BIFOLD place undo $1 --state $S -q > /dev/null 2> /tmp/errors; }
# clean NAME: ends the guest, takes the plan back, and compares the host with what it was.
clean() {
    stop
    [ -z "$force" ] || ! undo || say FAILED $1 "undone without $force"
    undo $force || say FAILED $1 "undo failed: $($B tr '\n' ' ' < /tmp/errors)"
    force=
    settings > /tmp/after
    $B cmp -s /tmp/before /tmp/after || say FAILED $1 "undo left: $($B diff /tmp/before /tmp/after | $B grep '^+' | $B tr '\n' ' ')"
}

# sound NAME
sound() {
    found= && : > /tmp/said
    if plan $1 && launch '' -S && placed && silent $vm; then say ok sound-$1
    else say FAILED sound-$1 "$found$($B cat /tmp/said | $B tr '\n' ' ') $trouble"; fi
    clean sound-$1
}
# started FINDING WISHES EDIT PINNED
started() {
    found=
    plan $2 && launch "$3" -S && { [ $4 = false ] || placed; } && names $vm
    named $1
    clean $1
}
named() {
    case " $found" in *" $1 "*) say ok $1 ;; *) say FAILED $1 "found only: $found $trouble" ;; esac
}
# alive WISHES: a guest for the next calls of `done_to`.
alive() {
    found=
    plan $1 && launch '' -S && placed && silent $vm || say FAILED alive-$1 "$found $trouble"
}
# make MISTAKE: and what is found then.
make() {
    found= trouble=
    if eval "$1" 2> /tmp/errors; then names $vm; else trouble="$($B cat /tmp/errors)"; fi
}
# done_to FINDING THEN BACK
done_to() {
    make "$2"
    named $1
    eval "$3"
    placed && silent $vm || say FAILED $1 "not sound when taken back: $found $trouble"
}
# once FINDING WISHES THEN BACK: a mistake that leaves the guest's memory elsewhere.
once() {
    alive $2
    make "$3"
    named $1
    eval "$4"
    clean $1
}
# killed TIMES: kill -9 in the middle of `apply`, later each time; `undo` has to leave all as it was.
killed() {
    plan $1 && undo
    bad=0 early=0 whole=0 k=0
    while [ $k -lt $2 ]; do
        k=$((k + 1))
        $BIFOLD place apply /tmp/plan.json --state $S -q > /dev/null 2>&1 &
        victim=$!
        $B usleep $((k * $3))
        kill -9 $victim 2> /dev/null && wait $victim 2> /dev/null
        settings > /tmp/between
        if $B cmp -s /tmp/before /tmp/between; then early=$((early + 1)); else whole=$((whole + 1)); fi
        undo
        settings > /tmp/after
        $B cmp -s /tmp/before /tmp/after || bad=$((bad + 1))
    done
    if [ $bad = 0 ] && [ $whole -gt 0 ]; then say ok killed "$2 moments, $whole of them behind a change"
    else say FAILED killed "$bad of $2 moments are not undone, $whole behind a change"; fi
}
# short NAME: a pool loses pages behind `apply`, and the guest does not run.
short() {
    found=
    pool=/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages
    plan $1
    read -r all < $pool
    echo $((all - 4)) > $pool
    names g
    named pool-short
    echo $all > $pool
    clean pool-short
}
