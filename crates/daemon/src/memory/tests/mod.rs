// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Decisions over the memory of guests of a host that is made of files. What their threads see is given;
//! orders are what the daemon wants of the threads.

mod day;
mod left;

use super::*;
use crate::fake_host::FakeHost;
use crate::vm::Hold;
use crate::vm::memory::WantedSize;
use crate::vm::memory::control::{LastLook, Under};
use bifold_live::order::SizeObservation;
use bifold_live::reporter::MemoryView;
use std::path::Path;

const GIB: u64 = 1 << 30;
const MIB: u64 = 1 << 20;
const WEB: VmId = VmId { thread: 100, fd: 7 };
const DB: VmId = VmId { thread: 200, fd: 7 };

struct Fake {
    host: FakeHost,
    memory: Memory,
    vms: Vms,
    config: Config,
    up: u64,
    lines: Vec<MemoryLine>,
}

impl Fake {
    /// A host of 8 GiB with the guests web and db, of 2 GiB each.
    fn new(config: &str) -> Fake {
        let host = FakeHost::new();
        host.vm(WEB, "web");
        host.vm(DB, "db");
        std::fs::write(host.host().proc.join("meminfo"), "MemTotal: 8388608 kB\nMemAvailable: 8000000 kB\n")
            .unwrap();
        let (memory, vms) = (Memory::default(), Vms::default());
        let mut fake = Fake { host, memory, vms, config: parse(config), up: 0, lines: Vec::new() };
        fake.tick(0);
        for pid in fake.all() {
            fake.sees(pid, 2 * GIB, GIB);
        }
        fake
    }

    /// So many seconds pass. Returns what is logged.
    fn tick(&mut self, seconds: u64) -> String {
        self.up += seconds;
        let mut log = Log { time: self.up as f64, up: Duration::from_secs(self.up), events: Vec::new() };
        self.lines = self.memory.tick(&mut self.vms, &self.host.host(), &self.config, &mut log);
        log.events.iter().map(|said| format!("{}\n", said.text)).collect()
    }

    /// The processes that are known.
    fn all(&self) -> Vec<u32> {
        self.vms.memories().map(|vm| vm.live.pid).collect()
    }

    fn status(&self) -> Option<MemoryStatus> {
        self.memory.status(&self.vms, &self.config, Duration::from_secs(self.up))
    }

    /// The guest's reporter tells this.
    fn reports(&mut self, pid: u32, up: u64, view: MemoryView) {
        self.guest(pid).report(Duration::from_secs(up), view);
    }

    fn reload(&mut self, config: &str) {
        let config = parse(config);
        self.memory.reload(&mut self.vms, &self.config, &config);
        self.config = config;
    }

    fn guest(&mut self, pid: u32) -> &mut MemoryHalf {
        self.vms.memory((pid, 4711)).unwrap()
    }

    fn wanted(&mut self, pid: u32) -> Option<u64> {
        self.guest(pid).control.wanted().map(|bytes| bytes / MIB)
    }

    /// The thread has looked: the guest has this size, and so much is free in it.
    fn sees(&mut self, pid: u32, size: u64, free: u64) {
        self.shows(pid, size, Some(free), Instant::now());
    }

    fn shows(&mut self, pid: u32, size: u64, free: Option<u64>, at: Instant) {
        let control = &self.guest(pid).control;
        let under = control.wanted().map(|_| Under { found: 2 * GIB, size, holds: Some(true) });
        let resident = Some(size);
        let size = SizeObservation { size, free, available: free, resident, ..SizeObservation::default() };
        control.pretend(LastLook { at, size, age_s: 0, refused: None }, under);
    }

    fn state(&self, pid: u32) -> (String, Option<String>) {
        let guest = self.status().unwrap().guests.into_iter().find(|g| g.pid == pid).unwrap();
        (guest.state, guest.note)
    }
}

fn parse(text: &str) -> Config {
    Config::parse(text, Path::new("/etc/bifold/bifold.toml")).unwrap()
}

fn config(policy: &str, limit: &str, rule: &str) -> String {
    format!(
        "[memory]\nlimit = \"{limit}\"\npolicy = \"{policy}\"\nmin_stay_s = 25\nmost_orders_per_hour = 3\n\
         [[vm]]\nname = \"*\"\n[vm.memory]\n{rule}\n"
    )
}

#[test]
fn without_act_the_daemon_only_says_what_it_would_do() {
    let mut fake = Fake::new(&config("equal", "3G", ""));
    let said = fake.tick(10);
    assert!(
        said.contains("VM web (process 100) would give 512 MiB, to 1536 MiB (its part of the limit)"),
        "{said}"
    );
    assert_eq!((fake.wanted(100), fake.wanted(200)), (None, None));
    assert_eq!(fake.lines.iter().map(|l| l.done.as_str()).collect::<Vec<_>>(), ["would-take", "would-take"]);
    assert_eq!((fake.lines[0].now_bytes, fake.lines[0].wants_bytes), (2 * GIB, 1536 * MIB));
    assert_eq!(fake.tick(10), "", "no news");
    assert_eq!(fake.state(100).0, "observes");
    assert!(fake.guest(100).undo().contains("has all of its memory"));
}

#[test]
fn vms_without_a_rule_about_memory_are_left_alone() {
    let rules = config("equal", "50%", "act = true").replace("\"*\"", "\"web\"");
    let mut fake = Fake::new(&rules);
    assert_eq!(fake.all(), [100]);
    fake.reload(&format!("never = [\"web\"]\n{rules}"));
    let said = fake.tick(1);
    assert!(said.contains("no rule about its memory fits any more"), "{said}");
    assert!(fake.all().is_empty());
    fake.reload(&rules);
    assert!(fake.tick(1).contains("takes its memory"));
    fake.host.vm(WEB, "other");
    assert!(fake.tick(10).contains("no rule"), "it was renamed");
    fake.reload("");
    fake.tick(10);
    assert!(fake.status().is_none());
}

#[test]
fn identifiers_hold_without_debugfs_and_while_it_cannot_be_read() {
    let never = format!("never = [\"100-7\", \"200-9\"]\n{}", config("equal", "3G", "act = true"));
    let mut fake = Fake::new("");
    for (pid, fds) in [(100, &[7][..]), (200, &[7, 9])] {
        let folder = fake.host.host().proc.join(format!("{pid}/fd"));
        std::fs::create_dir_all(&folder).unwrap();
        for fd in fds {
            std::os::unix::fs::symlink("anon_inode:kvm-vm", folder.join(fd.to_string())).unwrap();
        }
    }
    fake.reload(&never);
    fake.tick(1);
    assert!(fake.all().is_empty(), "the second VM of a process counts too");
    let debug = fake.host.host().debug;
    let away = debug.with_extension("away");
    std::fs::rename(&debug, &away).unwrap();
    fake.tick(10);
    assert!(fake.all().is_empty(), "without debugfs");
    // A rule by an identifier, and neither debugfs nor open files for a moment.
    std::fs::rename(&away, &debug).unwrap();
    fake.reload(&config("equal", "3G", "act = true").replace("\"*\"", "\"100-7\""));
    fake.tick(10);
    assert_eq!(fake.all(), [100]);
    std::fs::rename(&debug, &away).unwrap();
    std::fs::remove_dir_all(fake.host.host().proc.join("100/fd")).unwrap();
    fake.tick(10);
    assert_eq!(fake.all(), [100]);
}

#[test]
fn memory_is_taken_as_often_as_the_limits_allow_and_given_at_once() {
    let mut fake = Fake::new(&config("equal", "3G", "act = true"));
    let said = fake.tick(10);
    assert!(said.contains("VM db (process 200) gives 512 MiB, to 1536 MiB"), "{said}");
    assert_eq!(fake.wanted(100), Some(1536));
    fake.sees(100, 1536 * MIB, GIB);
    // A smaller limit, soon after.
    fake.reload(&config("equal", "2G", "act = true"));
    let said = fake.tick(10);
    assert!(said.contains("is to have 1024 MiB instead of 1536 MiB, not yet, for 15 s"), "{said}");
    assert_eq!(fake.wanted(100), Some(1536));
    // The first decision after 25 s.
    fake.tick(20);
    assert_eq!(fake.wanted(100), Some(1024));
    fake.reload(&config("equal", "2400M", "act = true"));
    fake.tick(1);
    assert_eq!(fake.wanted(100), Some(1200), "a part comes back at once");
    fake.reload(&config("equal", "2G", "act = true"));
    fake.tick(30);
    assert_eq!(fake.wanted(100), Some(1024));
    fake.reload(&config("equal", "1800M", "act = true"));
    let said = fake.tick(30);
    assert!(said.contains("not yet, after 3 orders in the last hour"), "{said}");
    fake.reload(&config("equal", "8G", "act = true"));
    fake.tick(1);
    assert_eq!(fake.wanted(100), None, "all of it comes back");
    // An hour later.
    fake.reload(&config("equal", "1800M", "act = true"));
    fake.sees(100, 2 * GIB, GIB);
    fake.tick(3600);
    assert_eq!(fake.wanted(100), Some(900));
}

#[test]
fn a_rule_that_only_observes_from_now_on_gives_everything_back() {
    let mut fake = Fake::new(&config("equal", "3G", "act = true"));
    fake.tick(10);
    assert_eq!(fake.wanted(100), Some(1536));
    fake.reload(&config("equal", "3G", "act = false"));
    let said = fake.tick(1);
    assert!(said.contains("observes its memory"), "{said}");
    assert_eq!(fake.wanted(100), None);
}

#[test]
fn pauses_double_after_orders_that_fail_and_another_controller_ends_them() {
    let mut fake =
        Fake::new(&config("equal", "3G", "act = true\nmin_stay_s = 0\nmost_orders_per_hour = 1000"));
    let mut pauses = Vec::new();
    let mut last = 0;
    for _ in 0..60 {
        fake.tick(10);
        if fake.wanted(100).is_some() {
            pauses.push(fake.up - last);
            last = fake.up;
            fake.guest(100).control.say(Kind::Ended, "the order ends: 200 faults a second");
            fake.sees(100, 2 * GIB, GIB);
        }
        fake.sees(200, 2 * GIB, GIB);
    }
    assert_eq!(pauses, [10, 40, 70, 130, 250]);
    let (state, note) = fake.state(100);
    assert!(
        state == "blocked" && note.unwrap().contains("200 faults a second; the next order comes in 480 s")
    );
    // What was held ends the doubling; reading the configuration again ends the pause.
    fake.guest(100).control.say(Kind::Holds, "holds 1536 MiB");
    fake.reload(&config("equal", "3G", "act = true\nmin_stay_s = 0\nmost_orders_per_hour = 1000"));
    fake.tick(1);
    assert_eq!(fake.wanted(100), Some(1536));
    fake.guest(100).control.say(Kind::Another, "its size is 700 MiB, which this order did not ask for");
    fake.sees(100, 2 * GIB, GIB);
    let said = fake.tick(3600);
    assert!(said.contains("not taken: its size is 700 MiB"), "{said}");
    assert_eq!((fake.wanted(100), fake.state(100).0.as_str()), (None, "cannot"));
    assert!(!fake.guest(100).release(), "it was not held, but may be tried again");
    fake.tick(10);
    assert_eq!(fake.wanted(100), Some(1536));
}

#[test]
fn a_held_vm_keeps_what_it_has() {
    let mut fake = Fake::new(&config("equal", "3G", "act = true"));
    fake.guest(100).hold(Hold { until: Some(Duration::from_secs(15)) });
    fake.tick(10);
    assert_eq!((fake.wanted(100), fake.wanted(200)), (None, Some(1536)));
    assert_eq!(fake.state(100).0, "held");
    fake.tick(10);
    assert_eq!(fake.wanted(100), Some(1536), "the hold is over");
    fake.sees(100, 1536 * MIB, GIB);
    fake.guest(100).hold(Hold { until: None });
    fake.reload(&config("equal", "8G", "act = true"));
    fake.tick(1);
    assert_eq!(fake.wanted(100), Some(1536), "nor is anything given");
    assert!(fake.guest(100).undo().contains("gets its memory back"));
    assert_eq!(fake.wanted(100), None);
    fake.sees(100, 2 * GIB, GIB);
    fake.reload(&config("equal", "3G", "act = true"));
    fake.tick(100);
    assert_eq!((fake.wanted(100), fake.state(100).0.as_str()), (None, "held"));
    assert!(fake.guest(100).release());
}

#[test]
fn a_rule_that_comes_back_finds_holds_and_limits_as_they_were() {
    let rules = config("equal", "3G", "act = true\nmin_stay_s = 0");
    let mut fake = Fake::new(&rules);
    fake.tick(10);
    fake.guest(100).undo();
    let orders = |fake: &Fake| {
        let status = fake.status().unwrap();
        status.guests.iter().map(|g| g.orders_in_hour).collect::<Vec<_>>()
    };
    let before = orders(&fake);
    assert_eq!(before, [1, 1]);
    fake.reload(&format!("never = [\"*\"]\n{rules}"));
    fake.guest(200).control.say(Kind::Lost, "has not got its memory back");
    assert!(fake.tick(1).contains("VM db (process 200) has not got its memory back"));
    assert!(fake.all().is_empty());
    fake.tick(10);
    fake.reload(&rules);
    fake.tick(1);
    assert_eq!(orders(&fake), before);
    fake.sees(100, 2 * GIB, GIB);
    fake.tick(10);
    assert_eq!((fake.wanted(100), fake.state(100).0.as_str()), (None, "held"));
    // A hold for a while does not end what a user had given back.
    let until = Some(Duration::from_secs(fake.up + 5));
    fake.guest(100).hold(Hold { until });
    fake.tick(10);
    assert_eq!((fake.wanted(100), fake.state(100).0.as_str()), (None, "held"));
    assert_eq!(orders(&fake)[0], 1);
    // Its memory is not back, as far as is known here.
    assert!(
        fake.memory.end(&mut fake.vms, &mut Log::default())[0]
            .contains("VM db (process 200) has not got its memory back")
    );
}

#[test]
fn a_vmm_that_claims_more_than_the_host_has_takes_nothing_of_others() {
    let mut fake = Fake::new(&config("equal", "3G", "act = true"));
    fake.sees(100, u64::MAX, GIB);
    fake.tick(10);
    assert_eq!(fake.memory.trouble(), None);
    // A quarter of the host's 8 GiB is the least of the first.
    assert_eq!(fake.wanted(200), Some(1024));
    fake.sees(200, u64::MAX, GIB);
    fake.tick(10);
    assert!(fake.memory.trouble().unwrap().contains("at least 4096 MiB together"));
    fake.status().unwrap();
    fake.reload("");
    assert_eq!(fake.memory.trouble(), None);
}

#[test]
fn what_a_vm_holds_that_tells_no_size_is_not_given_to_others() {
    let mut fake = Fake::new(&config("equal", "3G", "act = true"));
    let third = VmId { thread: 300, fd: 7 };
    fake.host.vm(third, "third");
    let status = fake.host.host().proc.join("300/status");
    std::fs::write(&status, "Tgid:\t300\nVmRSS:\t1048576 kB\n").unwrap();
    fake.tick(10);
    assert_eq!((fake.wanted(100), fake.wanted(200)), (Some(1024), Some(1024)));
    std::fs::write(&status, "Tgid:\t300\nVmRSS:\t3145728 kB\n").unwrap();
    fake.tick(10);
    let trouble = fake.memory.trouble().unwrap();
    assert!(
        trouble.contains("at least 4096 MiB together, 3072 MiB of it in VMs that do not tell"),
        "{trouble}"
    );
}

#[test]
fn a_hold_stops_an_order_under_way_where_it_is() {
    let mut fake = Fake::new(&config("equal", "3G", "act = true"));
    fake.tick(10);
    assert_eq!((fake.wanted(100), fake.wanted(200)), (Some(1536), Some(1536)));
    fake.sees(100, 1800 * MIB, GIB);
    fake.guest(100).hold(Hold { until: None });
    assert_eq!(fake.wanted(100), Some(1800));
    // The order about the other has not begun.
    fake.guest(200).hold(Hold { until: None });
    assert_eq!(fake.wanted(200), None);
    // What is given back already is given back.
    fake.sees(100, 1700 * MIB, GIB);
    fake.guest(100).hold(Hold { until: None });
    assert_eq!(fake.wanted(100), Some(1800));
}

#[test]
fn a_decision_waits_for_the_news_of_an_order_that_has_ended() {
    let mut fake = Fake::new(&config("equal", "3G", "act = true"));
    let wish = |size| WantedSize { size, why: "its part".into() };
    let up = Duration::from_secs(100);
    // The order ends behind the tick's look at the news.
    fake.guest(100).control.say(Kind::Ended, "is to get everything back");
    let (text, _, done) = fake.guest(100).decide(wish(GIB), up);
    assert!(text.unwrap().contains("not taken: its order has just ended"));
    assert_eq!((done.word(), fake.wanted(100)), ("not-taken", None));
    // Their news mean a pause.
    fake.guest(100).news(up);
    let (text, ..) = fake.guest(100).decide(wish(GIB), up);
    assert!(text.unwrap().contains("the next order comes in 30 s"));
    // The order ends between the decision's look at what was wanted and its wish.
    let control = fake.guest(100).control.clone();
    control.want(Some(GIB));
    let (wishes, _) = control.wish();
    control.say(Kind::Another, "another program orders sizes");
    control.news();
    assert!(!control.want_if(wishes, Some(2 * GIB)));
    assert_eq!(control.wanted(), None);
}

#[test]
fn what_cannot_be_taken_or_is_not_known_stays() {
    let mut fake = Fake::new(&config("mom", "2G", "act = true"));
    fake.shows(100, 2 * GIB, None, Instant::now());
    let long_ago = Instant::now().checked_sub(Duration::from_secs(61));
    if let Some(at) = long_ago {
        fake.shows(200, 2 * GIB, Some(GIB), at);
    }
    fake.tick(10);
    fake.tick(10);
    assert_eq!(fake.wanted(100), None);
    let note = fake.state(100).1.unwrap();
    assert!(note.contains("policy mom needs the free memory in it"), "{note}");
    if long_ago.is_some() {
        assert!(fake.state(200).1.unwrap().contains("not seen for a minute"));
    }
    // A reporter tells, and its free memory goes in steps of 5 %.
    let view = MemoryView { free: Some(GIB), ..MemoryView::default() };
    fake.reports(100, fake.up + 5, view);
    fake.tick(10);
    let status = fake.status().unwrap();
    assert_eq!(status.guests[0].known_by.as_deref(), Some("reporter"));
    assert_eq!(fake.wanted(100), Some(2048 * 95 / 100));
    let (sight, _) = fake.guest(200).control.sight();
    let refused =
        LastLook { at: Instant::now(), refused: Some("it has no balloon".into()), ..sight.unwrap() };
    fake.guest(200).control.pretend(refused, None);
    fake.tick(10);
    assert_eq!(
        (fake.wanted(200), fake.state(200)),
        (None, ("blocked".into(), Some("it has no balloon".into())))
    );
}

#[test]
fn feedback_sees_the_waits_that_a_reporter_tells() {
    let mut fake = Fake::new(&config("feedback", "8G", "act = true\nmin_stay_s = 0"));
    fake.tick(10);
    assert!(fake.state(100).1.unwrap().contains("bifold-reporter has to run in it"));
    let report = |fake: &mut Fake, waited_us| {
        let view = MemoryView { waited_us: Some(waited_us), ..MemoryView::default() };
        fake.reports(100, fake.up, view);
        fake.tick(10)
    };
    report(&mut fake, 5_000_000);
    assert_eq!(fake.wanted(100), None, "a first report is no difference");
    let said = report(&mut fake, 5_000_000);
    assert!(said.contains("it waited for memory 0.00 % of the time"), "{said}");
    let less = fake.wanted(100).unwrap();
    assert!((2000..2048).contains(&less), "{less}");
    fake.sees(100, less * MIB, GIB);
    // A report that has come before the last decision tells nothing more.
    let before = fake.guest(100).control.wanted();
    fake.tick(10);
    assert_eq!(fake.guest(100).control.wanted(), before);
    assert!(fake.state(100).1.unwrap().contains("needs its waits for memory"));
    // A third of the time since the last report.
    report(&mut fake, 11_600_000);
    assert_eq!(fake.wanted(100), None);
    let status = fake.status().unwrap();
    assert_eq!(status.guests[0].why.as_deref(), Some("it waited for memory 33.00 % of the time"));
    assert_eq!(fake.wanted(200), None, "it has no reporter");
}

#[test]
fn a_policy_goes_on_from_what_was_given_when_a_guest_comes() {
    let mut fake = Fake::new(&config("mom", "3G", "act = true\nmin_stay_s = 0"));
    (0..4).for_each(|_| _ = fake.tick(10));
    let before = fake.wanted(100).unwrap();
    assert!(before < 1800, "{before}");
    let third = VmId { thread: 300, fd: 7 };
    fake.host.vm(third, "third");
    fake.tick(10);
    fake.sees(300, 2 * GIB, GIB);
    fake.tick(10);
    let after = fake.wanted(100).unwrap();
    assert!(after <= before && after > before * 85 / 100, "{before} {after}");
    fake.host.end(third);
    let said = fake.tick(10);
    assert!(said.contains("VM third (process 300) has ended"), "{said}");
    assert!(fake.wanted(100).unwrap() <= after);
}

#[test]
fn least_sizes_above_the_limit_are_told() {
    let mut fake = Fake::new(&config("equal", "1G", "act = true\nleast = \"1G\""));
    fake.tick(10);
    assert!(
        fake.memory
            .trouble()
            .unwrap()
            .contains("at least 2048 MiB together, more than the limit of 1024 MiB")
    );
    assert_eq!(fake.wanted(100), Some(1024));
    std::fs::write(fake.host.host().proc.join("meminfo"), "").unwrap();
    fake.tick(10);
    assert!(fake.memory.trouble().unwrap().contains("the host's memory cannot be read"));
}
