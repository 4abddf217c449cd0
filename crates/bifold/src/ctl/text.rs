// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The daemon's answers for people.

use bifold_daemon::control::Answer;
use bifold_daemon::{Event, Status, VmStatus};
use bifold_host::printable;
use bifold_report::{text_table, wrapped};

const UNKNOWN: &str = "-";

/// An answer in words.
pub fn answer(answer: &Answer) -> String {
    match answer {
        Answer::Status(status) => table(status),
        Answer::Explained(vm, lately) => explained(vm, lately),
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
    if status.vms.is_empty() {
        return out + "no VM is running here\n";
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

fn explained(v: &VmStatus, lately: &[Event]) -> String {
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
    if let Some(why) = &v.why {
        out += &wrapped(&format!("wants    {}: {why}", or_unknown(&v.wants)), 9);
    }
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
    use bifold_daemon::Totals;

    fn vm(id: &str, name: Option<&str>) -> VmStatus {
        VmStatus {
            vm: id.into(),
            name: name.map(String::from),
            state: "no rule".into(),
            ..VmStatus::default()
        }
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
        let text = answer(&Answer::Status(status()));
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
        let table = answer(&Answer::Status(Status { vms: vec![blocked.clone()], ..Status::default() }));
        assert!(table.ends_with(&format!("web-1: {says}")), "{table}");
        let explained = answer(&Answer::Explained(Box::new(blocked), Vec::new()));
        assert!(explained.contains(&format!("daemon   {says}")), "{explained}");
    }

    #[test]
    fn an_empty_host_and_a_daemon_in_trouble_are_told() {
        let status = Status {
            only_observes: Some("this KVM has one paging mode".into()),
            version: "0.1.0".into(),
            trouble: Some("cannot use /var/lib/bifold/vms.jsonl: No space left on device".into()),
            ..Status::default()
        };
        insta::assert_snapshot!(answer(&Answer::Status(status)), @r"
        daemon 0, Bifold 0.1.0, up 0 s
        this KVM has one paging mode
        cannot use /var/lib/bifold/vms.jsonl: No space left on device
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
        insta::assert_snapshot!(answer(&Answer::Explained(Box::new(web()), lately)), @r"
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
        let unknown = answer(&Answer::Explained(Box::new(vm("99-5", None)), Vec::new()));
        assert!(
            unknown.starts_with("VM       99-5 (-)\nmode     -\nrule     -\npolicy   -\ndaemon   no rule\n"),
            "{unknown}"
        );
    }
}
