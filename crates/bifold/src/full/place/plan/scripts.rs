// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A plan as commands for a shell: QEMU's command line, and the host's steps.

use bifold_host::printable;
use bifold_place::plan::{GuestPlan, Plan};
use bifold_place::qemu::{arguments, pins};
use bifold_report::shell_words;

/// QEMU's command line for a guest, an option a line, and how its threads are pinned.
pub fn qemu(guest: &GuestPlan) -> String {
    let mut out = format!(
        "# {}: disks and network are yours to add.\ntaskset -c {} qemu-system-x86_64",
        printable(&guest.name),
        guest.emulator
    );
    for option in arguments(guest).chunks(2) {
        out += &format!(" \\\n  {}", shell_words(option));
    }
    out += "\n# The threads of vCPUs exist once all memory is allocated. Then, with QEMU's process id as PID:\n\
            # pin() { for t in /proc/$PID/task/*; do [ \"$(cat $t/comm)\" != \"$1\" ] || taskset -cp $2 ${t##*/}; done; }\n";
    for pin in pins(guest) {
        out += &format!("# pin {} {}\n", shell_words(&[&pin.thread]), pin.cpus);
    }
    out
}

/// The host's steps, a command a line, each below its reason. The kernel takes a number of huge pages and may
/// give fewer, so pools are read back.
pub fn steps(plan: &Plan) -> String {
    if plan.steps.is_empty() {
        return "# The host needs no change.\n".into();
    }
    let mut out = String::from("set -eu\n");
    for step in &plan.steps {
        let may_fail = if step.needed { "" } else { " || :" };
        out += &format!("# {}\n", step.why);
        let (value, path) = (shell_words(&[&step.value]), shell_words(&[&step.path]));
        out += &format!("echo {value} > {path}{may_fail}\n");
        if step.needed && step.path.ends_with("/nr_hugepages") {
            out += &format!(
                "given=$(cat {path})\n[ \"${{given:-0}}\" -ge {value} ] || {{ echo {path}: \"${{given:-0}}\" pages of {value} >&2; exit 1; }}\n"
            );
        }
    }
    out
}
