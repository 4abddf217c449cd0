// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's answers for people.

use bifold_daemon::control::Answer;
use bifold_daemon::{Explanation, GuestStatus, MemoryStatus, Status, VmStatus};
use bifold_host::printable;
use bifold_report::{text_table, wrapped};

const UNKNOWN: &str = "-";

/// An answer in words.
pub fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Status(status) => table(status),
        Answer::Explained(about) => explained(about),
        Answer::Done(told) => told.iter().map(|t| wrapped(t, 2)).collect(),
        Answer::Refused(why) => wrapped(why, 2),
    }
}

fn or_unknown(text: &Option<String>) -> String {
    text.as_deref().map_or(UNKNOWN.into(), printable)
}

fn table(status: &Status) -> String {
    let mut out = format!("daemon {}, Bifold {}, up {:.0} s\n", status.pid, status.version, status.up_s);
    for text in [&status.only_observes, &status.trouble].into_iter().flatten() {
        out += &wrapped(text, 2);
    }
    for text in &status.warnings {
        out += &wrapped(&format!("warning: {}", printable(text)), 2);
    }
    if status.vms.is_empty() {
        return match &status.memory {
            Some(memory) => out + "no VM of KVM is running here\n" + &of_memory(memory),
            None => out + "no VM is running here\n",
        };
    }
    let head =
        ["\nVM", "\nPID-FD", "\nmode", "own\nmode", "\npolicy", "\nwants", "\ndaemon", "switches\nlast hour"];
    let rows = status.vms.iter().map(|v| {
        vec![
            or_unknown(&v.name),
            v.vm.clone(),
            or_unknown(&v.mode),
            or_unknown(&v.own_mode),
            or_unknown(&v.policy),
            or_unknown(&v.wants),
            v.state.clone(),
            v.switches_in_hour.to_string(),
        ]
    });
    out += &text_table(head.map(String::from).into(), rows.collect());
    for v in &status.vms {
        let who = v.name.as_deref().map_or(v.vm.clone(), printable);
        if let Some(counter) = &v.missing {
            out += &wrapped(&format!("{who}: the policy needs {counter}; it is not counted for this VM"), 2);
        }
        if v.note.is_some() {
            out += &wrapped(&format!("{who}: {}", state(v)), 2);
        }
    }
    status.memory.iter().for_each(|memory| out += &of_memory(memory));
    out
}

fn mib(bytes: Option<u64>) -> String {
    bytes.map_or(UNKNOWN.into(), |bytes| format!("{} MiB", bytes.saturating_add(1 << 19) >> 20))
}

/// How memory is divided.
fn of_memory(memory: &MemoryStatus) -> String {
    let mut out = format!(
        "\nMemory, by policy {}: {} of {}\n",
        memory.policy,
        mib(Some(memory.size_bytes)),
        mib(memory.limit_bytes)
    );
    if memory.guests.is_empty() {
        return out + "no VM has a rule about its memory\n";
    }
    let head =
        ["\nVM", "\nprocess", "\nsize", "free\nin it", "\nwants", "\nordered", "\ndaemon", "orders\nin hour"];
    let rows = memory.guests.iter().map(|g| {
        vec![
            printable(&g.name),
            g.pid.to_string(),
            mib(g.size_bytes),
            mib(g.free_bytes),
            mib(g.wants_bytes),
            mib(g.ordered_bytes),
            g.state.clone(),
            g.orders_in_hour.to_string(),
        ]
    });
    out += &text_table(head.map(String::from).into(), rows.collect());
    for g in &memory.guests {
        if let Some(text) = &g.note {
            out += &wrapped(&format!("{}: {}: {text}", printable(&g.name), g.state), 2);
        }
        for text in &g.findings {
            out += &wrapped(text, 2);
        }
    }
    out
}

/// What the daemon does with a VM, and why.
fn state(v: &VmStatus) -> String {
    match (&v.note, &v.refusal) {
        (None, _) => v.state.clone(),
        (Some(text), None) => format!("{} ({text})", v.state),
        // Why KVM would refuse a switch is a sentence.
        (Some(text), Some(_)) => format!("{}: {text}", v.state),
    }
}

fn of_vm(v: &VmStatus) -> String {
    let mut out = format!("VM       {} ({})\n", v.vm, or_unknown(&v.name));
    out += &format!("mode     {}", or_unknown(&v.mode));
    if let Some(own) = &v.own_mode {
        out += &format!("; found in {own} mode");
    }
    out += &format!(
        "\nrule     {}\npolicy   {}\n{}",
        or_unknown(&v.rule),
        or_unknown(&v.policy),
        wrapped(&format!("daemon   {}", state(v)), 9)
    );
    let t = &v.totals;
    out += &format!(
        "did      {} decisions, {} switches, {} refused by KVM\n",
        t.decisions, t.switched, t.refused
    );
    if t.ended_early > 0 {
        out += &format!("stays    {} in shadow paging ended early\n", t.ended_early);
    }
    if let Some(why) = &v.why {
        out += &wrapped(&format!("wants    {}: {why}", or_unknown(&v.wants)), 9);
    }
    out
}

fn of_guest(g: &GuestStatus) -> String {
    let note = g.note.as_ref().map_or(String::new(), |text| format!(": {text}"));
    let mut out = format!("memory   of process {} ({})\n", g.pid, printable(&g.name));
    out += &format!("has      {} of {}", mib(g.size_bytes), mib(g.found_bytes));
    if let Some(by) = &g.known_by {
        out += &format!(
            "; {} free and {} available in it, says its {by}",
            mib(g.free_bytes),
            mib(g.available_bytes)
        );
    }
    out += &format!("\nrule     {}\n", printable(&g.rule));
    out += &wrapped(&format!("daemon   {}{note}", g.state), 9);
    let t = &g.totals;
    out += &format!(
        "did      {} orders, {} refused, {} ended early with everything given back\n",
        t.takes, t.refused, t.ended
    );
    if let Some(why) = &g.why {
        out += &wrapped(&format!("wants    {}: {why}", mib(g.wants_bytes)), 9);
    }
    let inside =
        [("refaults", g.refaults), ("major faults", g.major_faults), ("us of waits for memory", g.waited_us)];
    let inside: Vec<String> =
        inside.iter().filter_map(|(name, n)| Some(format!("{} {name}", (*n)?))).collect();
    if !inside.is_empty() {
        out += &wrapped(&format!("inside   since its boot, by its reporter: {}", inside.join(", ")), 9);
    }
    g.findings.iter().for_each(|text| out += &wrapped(&format!("found    {text}"), 9));
    out
}

fn explained(about: &Explanation) -> String {
    let mut out = about.vm.as_ref().map_or(String::new(), of_vm);
    if let Some(memory) = &about.memory {
        out += if out.is_empty() { "" } else { "\n" };
        out += &of_guest(memory);
    }
    let lately = &about.lately;
    if !lately.is_empty() {
        out += "\nLately, in seconds before the last event:\n";
    }
    let last = lately.last().map_or(0.0, |e| e.time);
    for e in lately {
        out += &wrapped(&format!("{:>8.1} s  {}", e.time - last, e.text), 12);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_daemon::{Event, GuestTotals, Totals};

    fn vm(id: &str, name: Option<&str>) -> VmStatus {
        VmStatus {
            vm: id.into(),
            name: name.map(String::from),
            state: "no rule".into(),
            ..VmStatus::default()
        }
    }

    fn about(vm: VmStatus, lately: Vec<Event>) -> Answer {
        Answer::Explained(Box::new(Explanation { vm: Some(vm), memory: None, lately }))
    }

    /// A guest of which memory is taken, and one of which nothing is known.
    fn memory() -> MemoryStatus {
        const MIB: u64 = 1 << 20;
        let text = |t: &str| Some(t.to_string());
        let web = GuestStatus {
            pid: 4242,
            name: "web-1".into(),
            vm: text("4242-13"),
            rule: "web-*".into(),
            state: "acts".into(),
            note: text("512 MiB are taken"),
            size_bytes: Some(1536 * MIB),
            found_bytes: Some(2048 * MIB),
            free_bytes: Some(700 * MIB),
            available_bytes: Some(900 * MIB),
            known_by: text("balloon"),
            wants_bytes: Some(1530 * MIB),
            why: text("700 MiB free in it"),
            done: text("stayed"),
            ordered_bytes: Some(1536 * MIB),
            orders_in_hour: 2,
            totals: GuestTotals { takes: 2, ..GuestTotals::default() },
            refaults: Some(17),
            waited_us: Some(900),
            ..GuestStatus::default()
        };
        let silent = GuestStatus {
            pid: 4300,
            name: "d\u{1b}[2Jb".into(),
            rule: "*".into(),
            state: "not seen".into(),
            note: text("its command line has no monitor"),
            findings: vec!["d\\u{1b}[2Jb has no balloon: start QEMU with one".into()],
            ..GuestStatus::default()
        };
        MemoryStatus {
            policy: "mom".into(),
            limit_bytes: Some(4096 * MIB),
            size_bytes: 1536 * MIB,
            guests: vec![web, silent],
        }
    }

    #[test]
    fn memory_has_a_table_and_an_explanation_of_its_own() {
        let status = Status { version: "0.1.0".into(), memory: Some(memory()), ..Status::default() };
        insta::assert_snapshot!(answer(&Answer::Status(Box::new(status))), @r"
        daemon 0, Bifold 0.1.0, up 0 s
        no VM of KVM is running here

        Memory, by policy mom: 1536 MiB of 4096 MiB
                                            free                                 orders
        VM            process      size    in it     wants   ordered    daemon  in hour
        ───────────────────────────────────────────────────────────────────────────────
        web-1            4242  1536 MiB  700 MiB  1530 MiB  1536 MiB      acts        2
        d\u{1b}[2Jb      4300         -        -         -         -  not seen        0
        web-1: acts: 512 MiB are taken
        d\u{1b}[2Jb: not seen: its command line has no monitor
        d\u{1b}[2Jb has no balloon: start QEMU with one
        ");
        let memory = memory().guests.swap_remove(0);
        let event =
            Event { time: 9.0, vm: None, text: "gives 512 MiB, to 1536 MiB (1230 MiB free in it)".into() };
        let about = Explanation { vm: None, memory: Some(memory), lately: vec![event] };
        insta::assert_snapshot!(answer(&Answer::Explained(Box::new(about))), @r"
        memory   of process 4242 (web-1)
        has      1536 MiB of 2048 MiB; 700 MiB free and 900 MiB available in it, says its balloon
        rule     web-*
        daemon   acts: 512 MiB are taken
        did      2 orders, 0 refused, 0 ended early with everything given back
        wants    1530 MiB: 700 MiB free in it
        inside   since its boot, by its reporter: 17 refaults, 900 us of waits for memory

        Lately, in seconds before the last event:
             0.0 s  gives 512 MiB, to 1536 MiB (1230 MiB free in it)
        ");
    }

    fn web() -> VmStatus {
        let text = |t: &str| Some(t.to_string());
        VmStatus {
            mode: text("shadow"),
            own_mode: text("nested"),
            rule: text("web-*"),
            policy: text("rpms-dynamic"),
            state: "held".into(),
            note: text("12 s more"),
            wants: text("nested"),
            why: text("shadow paging costs 12 % and nested paging would cost 3 %"),
            verdict: text("switch"),
            switches_in_hour: 3,
            totals: Totals { decisions: 40, switched: 3, refused: 1, ..Totals::default() },
            ..vm("4242-13", Some("web-1"))
        }
    }

    fn status() -> Status {
        let blind = VmStatus {
            mode: Some("nested".into()),
            policy: Some("dsp".into()),
            state: "observes".into(),
            missing: Some("guest_page_faults".into()),
            ..vm("4300-11", Some("d\u{1b}[2Jb"))
        };
        Status {
            pid: 7,
            version: "0.1.0".into(),
            up_s: 61.2,
            vms: vec![web(), blind, vm("99-5", None)],
            ..Status::default()
        }
    }

    #[test]
    fn a_table_says_what_is_unknown_and_escapes_names() {
        let text = answer(&Answer::Status(Box::new(status())));
        insta::assert_snapshot!(text, @r"
        daemon 7, Bifold 0.1.0, up 61 s
                                          own                                   switches
        VM             PID-FD    mode    mode        policy   wants    daemon  last hour
        ────────────────────────────────────────────────────────────────────────────────
        web-1         4242-13  shadow  nested  rpms-dynamic  nested      held          3
        d\u{1b}[2Jb   4300-11  nested       -           dsp       -  observes          0
        -                99-5       -       -             -       -   no rule          0
        web-1: held (12 s more)
        d\u{1b}[2Jb: the policy needs guest_page_faults; it is not counted for this VM
        ");
        assert!(text.lines().all(|l| l.chars().count() <= 80), "{text}");
    }

    #[test]
    fn why_kvm_would_refuse_is_a_sentence() {
        let blocked = VmStatus {
            state: "blocked".into(),
            note: Some("vCPU 1 is a hypervisor itself (EFER.SVME or CR4.VMXE)".into()),
            refusal: Some("hypervisor".into()),
            ..web()
        };
        let says = "blocked: vCPU 1 is a hypervisor itself (EFER.SVME or CR4.VMXE)\n";
        let table =
            answer(&Answer::Status(Box::new(Status { vms: vec![blocked.clone()], ..Status::default() })));
        assert!(table.ends_with(&format!("web-1: {says}")), "{table}");
        let explained = answer(&about(blocked, Vec::new()));
        assert!(explained.contains(&format!("daemon   {says}")), "{explained}");
        assert!(!explained.contains("ended early"), "{explained}");
        let mut ended = web();
        ended.totals.ended_early = 2;
        assert!(answer(&about(ended, Vec::new())).contains("stays    2 in shadow paging ended early\n"));
    }

    #[test]
    fn an_empty_host_and_a_daemon_in_trouble_are_told() {
        let status = Status {
            only_observes: Some("this KVM has one paging mode".into()),
            version: "0.1.0".into(),
            trouble: Some("cannot use /var/lib/bifold/vms.jsonl: No space left on device".into()),
            warnings: vec!["vm[0] (w\u{1b}*): a pattern".into()],
            ..Status::default()
        };
        insta::assert_snapshot!(answer(&Answer::Status(Box::new(status))), @r"
        daemon 0, Bifold 0.1.0, up 0 s
        this KVM has one paging mode
        cannot use /var/lib/bifold/vms.jsonl: No space left on device
        warning: vm[0] (w\u{1b}*): a pattern
        no VM is running here
        ");
    }

    #[test]
    fn an_explanation_has_the_reason_and_the_last_events() {
        let event = |time: f64, text: &str| Event { time, vm: None, text: text.into() };
        let lately = vec![
            event(1000.0, "is switched by policy rpms-dynamic"),
            event(
                1012.5,
                "nested mode, wants shadow: switched in 1.2 ms (nested paging costs 30 % and shadow paging would cost 4 %)",
            ),
            event(1060.0, "is held in its mode for 60 s"),
        ];
        insta::assert_snapshot!(answer(&about(web(), lately)), @r"
        VM       4242-13 (web-1)
        mode     shadow; found in nested mode
        rule     web-*
        policy   rpms-dynamic
        daemon   held (12 s more)
        did      40 decisions, 3 switches, 1 refused by KVM
        wants    nested: shadow paging costs 12 % and nested paging would cost 3 %

        Lately, in seconds before the last event:
           -60.0 s  is switched by policy rpms-dynamic
           -47.5 s  nested mode, wants shadow: switched in 1.2 ms (nested paging costs 30 % and shadow
                    paging would cost 4 %)
             0.0 s  is held in its mode for 60 s
        ");
        let unknown = answer(&about(vm("99-5", None), Vec::new()));
        assert!(
            unknown.starts_with("VM       99-5 (-)\nmode     -\nrule     -\npolicy   -\ndaemon   no rule\n"),
            "{unknown}"
        );
    }
}
