// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests `bifold stat` on a VM of stock QEMU that boots Linux: the exits that it counts for each vCPU and
//! reason are those of a trace of every exit, in both modes.
//!
//! QEMU starts with its vCPUs stopped, so that both counts begin before the first exit.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::{BUSYBOX, Shared};
use crate::lab::job::{Job, at};
use crate::lab::{Output, Plan, beside};

/// Exits by vCPU's thread and reason.
type Counts = BTreeMap<(u64, String), u64>;

/// Shell commands: a function that watches a VM in a mode for a while, by both counts.
const WATCH: &str = r#"
I=/sys/kernel/tracing/instances/independent
$B mkdir $I && echo 65536 > $I/buffer_size_kb || exit 8
until_true() {
    n=0
    until eval "$1"; do n=$((n + 1)); [ $n -lt 300 ] || { echo "in vain: $1" >&2; exit 9; }; $B sleep 0.1; done
}
watch() {
    $B mkfifo /tmp/$1
    exec 3<>/tmp/$1
    $BIFOLD_QEMU -machine q35 -accel kvm -cpu host -smp 2 -m 128 -name $1,debug-threads=on -kernel $KERNEL \
        -append "nokaslr panic=0 tsc=reliable no_timer_check" -display none -serial none -nodefaults -no-user-config \
        -S -monitor stdio <&3 >/dev/null &
    vm=$!
    until_true "$BIFOLD mode $1 $1 >/dev/null 2>&1"
    $BIFOLD stat $1 --exits --vcpus --format jsonl -q -i 0.2 -o $OUT/$1.jsonl &
    stat=$!
    until_true "[ -s $OUT/$1.jsonl ]"
    echo 1 > $I/events/kvm/kvm_exit/enable
    echo cont >&3
    $B sleep 1.5
    echo stop >&3
    # Three intervals later, of three rows each, the last exits are in a row.
    rows=$(($($B wc -l < $OUT/$1.jsonl) + 9))
    until_true "[ \$(\$B wc -l < $OUT/$1.jsonl) -ge $rows ]"
    echo 0 > $I/events/kvm/kvm_exit/enable
    # KVM keeps a VM as long as somebody holds a file of it: who watches must not.
    kill $vm; wait $vm 2>/dev/null
    until_true "! $BIFOLD mode $1 >/dev/null 2>&1"
    kill -INT $stat; wait $stat || exit 7
    $B cat $I/per_cpu/cpu*/stats | $B grep -E 'overrun|dropped' > $OUT/$1.lost
    # Thread, reason, count.
    $B awk '/kvm_exit:/ { t = $0; sub(/ +\[.*/, "", t); sub(/.*-/, "", t); r = $0; sub(/.* reason /, "", r); sub(/ rip .*/, "", r)
        n[t "\t" r]++ } END { for (k in n) print k "\t" n[k] }' $I/trace > $OUT/$1.traced
    echo > $I/trace
    [ "$(ls /sys/kernel/tracing/instances)" = independent ] || { ls /sys/kernel/tracing/instances >&2; exit 6; }
}
"#;

/// The names of the VMs are their modes.
const MODES: [&str; 2] = ["nested", "shadow"];

/// Watches a VM in each mode under our KVM, and compares the counts.
pub fn exits(shared: &Shared) -> Result<()> {
    let lab = shared.lab.switching()?;
    let (bifold, kernel) = (beside("bifold")?, lab.inner().image.clone());
    let script = format!(
        "BIFOLD={} B={BUSYBOX} KERNEL={} OUT={}\n{WATCH}\nwatch nested\nwatch shadow\n",
        bifold.display(),
        kernel.display(),
        at::OUT
    );
    let plan = Plan {
        jobs: vec![Job::Kvm { nested: true }, Job::sh(&script)].into(),
        programs: vec![BUSYBOX.into(), bifold],
        files: vec![kernel],
        emulator: true,
        memory_mib: 1536,
        ..Plan::default()
    };
    let outputs = lab.boot(&plan, &mut |_, _| String::new())?;
    let output = outputs.get(1).context("no output")?;
    ensure!(output.done.status == 0, "exit status {}: {}", output.done.status, output.done.stderr);
    MODES.iter().try_for_each(|mode| compare(output, mode).with_context(|| (*mode).to_owned()))
}

fn compare(output: &Output, mode: &str) -> Result<()> {
    let file = |ending: &str| -> Result<String> {
        let name = format!("{mode}.{ending}");
        let bytes = output.files.get(&name).with_context(|| format!("no file {name}"))?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    };
    let lost = file("lost")?;
    ensure!(lost.lines().all(|l| l.ends_with(": 0")), "the trace lost events: {lost}");
    let traced = traced(&file("traced")?)?;
    let rows: Vec<Value> = file("jsonl")?.lines().map(serde_json::from_str).collect::<Result<_, _>>()?;
    let (of_vm, of_vcpus): (Vec<&Value>, Vec<&Value>) = rows.iter().partition(|r| r.get("vcpu").is_none());
    ensure!(of_vm.iter().all(|r| r["mode"] == mode), "its mode was not {mode} all the time");
    let counted = by_reason(&of_vcpus)?;
    // The table of threads is the order of vCPUs: QEMU makes them one after the other.
    let threads: Vec<u64> = traced
        .keys()
        .map(|(thread, _)| *thread)
        .collect::<std::collections::BTreeSet<_>>()
        .into_iter()
        .collect();
    let traced: Counts = traced
        .into_iter()
        .map(|((thread, reason), n)| {
            ((threads.iter().position(|t| *t == thread).unwrap_or(9) as u64, reason), n)
        })
        .collect();
    ensure!(counted == traced, "counted {counted:?}, traced {traced:?}");
    let all: u64 = traced.values().sum();
    ensure!(all > 1000, "only {all} exits");
    let of_reasons: u64 = by_reason(&of_vm)?.values().sum();
    ensure!(of_reasons == all, "{of_reasons} exits of the VM, {all} traced");
    // KVM's own count has more: 6.1 enters the guest again at once after some exits, without a trace
    // (`EXIT_FASTPATH_REENTER_GUEST` in `vcpu_enter_guest`), and on Intel it counts rounds of the emulator in
    // which the guest was not entered (`emulation_required` in `vmx_vcpu_run`).
    let by_kvm: u64 = of_vm.iter().filter_map(|r| r.get("exits")?.as_u64()).sum();
    ensure!(by_kvm >= all, "{by_kvm} exits by KVM's count, {all} traced");
    Ok(())
}

/// The sums over all rows, by vCPU (0 for a VM) and reason.
fn by_reason(rows: &[&Value]) -> Result<Counts> {
    let mut counts = Counts::new();
    for row in rows {
        let vcpu = row.get("vcpu").and_then(Value::as_u64).unwrap_or(0);
        for (name, n) in row.as_object().context("a row is no object")? {
            let (Some(reason), Some(n)) = (name.strip_prefix("reason_"), n.as_u64().filter(|n| *n > 0))
            else {
                continue;
            };
            *counts.entry((vcpu, reason.to_owned())).or_default() += n;
        }
    }
    Ok(counts)
}

/// Counts of the trace, with KVM's names of reasons in Bifold's form.
fn traced(text: &str) -> Result<Counts> {
    let mut counts = Counts::new();
    for line in text.lines() {
        let mut words = line.split('\t');
        let thread = words.next().and_then(|w| w.parse().ok()).with_context(|| line.to_owned())?;
        let reason = words.next().with_context(|| line.to_owned())?;
        let n = words.next().and_then(|w| w.parse().ok()).with_context(|| line.to_owned())?;
        let reason = reason.to_lowercase().replace(" excp", "_exception");
        counts.insert((thread, reason), n);
    }
    Ok(counts)
}
