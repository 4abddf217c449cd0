// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The engine over hosts made of files.

use super::*;
use crate::DecisionLine;
use crate::fake_host::FakeHost;
use bifold_live::HardwareSource;
use std::collections::BTreeMap;
use std::path::Path;

mod stays;

const WEB: VmId = VmId { thread: 100, fd: 7 };
const DB: VmId = VmId { thread: 200, fd: 7 };

/// A host, its KVM, and a daemon's folder.
struct World {
    fake: FakeHost,
    folder: tempfile::TempDir,
    seconds: u64,
    /// Mode and number of switches of each VM, as KVM knows them.
    kvm: BTreeMap<VmId, (String, u64)>,
    /// VMs that KVM does not switch, and how often KVM was asked.
    refused: BTreeMap<VmId, u64>,
}

impl World {
    fn new() -> World {
        let mut world = World {
            fake: FakeHost::new(),
            folder: tempfile::tempdir().unwrap(),
            seconds: 0,
            kvm: BTreeMap::new(),
            refused: BTreeMap::new(),
        };
        world.vm(WEB, "web");
        world.vm(DB, "db");
        world
    }

    fn vm(&mut self, id: VmId, name: &str) {
        self.fake.vm(id, name);
        self.kvm.insert(id, ("nested".into(), 0));
    }

    fn end(&mut self, id: VmId) {
        self.fake.end(id);
        self.kvm.remove(&id);
    }

    /// Lets KVM refuse switches of a VM for this reason from now on, or for none.
    fn refuses(&mut self, id: VmId, line: &str) {
        self.fake.refusal(id, line);
        match line {
            "none" => drop(self.refused.remove(&id)),
            _ => drop(self.refused.entry(id).or_default()),
        }
    }

    fn engine(&self, config: &str) -> Engine {
        let config = Config::parse(config, Path::new("c.toml")).unwrap();
        let watch = Watch::new(self.fake.host(), HardwareSource::None).unwrap();
        Engine::new(watch, config, Homes::take(self.folder.path()).unwrap()).unwrap()
    }

    /// Seconds of the daemon's life.
    fn run(&mut self, engine: &mut Engine, seconds: u64) -> Vec<String> {
        for _ in 0..seconds {
            self.seconds += 1;
            let now = self.seconds;
            engine.tick(&|| Duration::from_secs(now), 1e9 + now as f64);
            self.kvm();
        }
        engine.events().into_iter().map(|e| e.text).collect()
    }

    /// What KVM does when a mode was written.
    fn kvm(&mut self) {
        for (id, (mode, switches)) in &mut self.kvm {
            let text = std::fs::read_to_string(self.fake.host().vm_dir(*id).join("paging_mode"));
            let Ok(written) = text else { continue };
            if let Some(asked) = self.refused.get_mut(id).filter(|_| written.trim() != mode) {
                *asked += 1;
                self.fake.mode(*id, mode, *switches);
            } else if written.trim() != mode {
                (*mode, *switches) = (written.trim().into(), *switches + 1);
                self.fake.mode(*id, mode, *switches);
            }
        }
    }

    fn modes(&self) -> [&str; 2] {
        [WEB, DB].map(|id| self.kvm[&id].0.as_str())
    }

    fn journal(&self) -> bool {
        self.folder.path().join("modes").exists()
    }
}

/// A policy that wants shadow paging at once, for VMs of this name.
fn shadow(name: &str, more: &str) -> String {
    format!("[[vm]]\nname = \"{name}\"\npolicy = \"always-shadow\"\n{more}\n")
}

#[test]
fn it_observes_unless_told_to_act_and_gives_back_at_its_end() {
    let mut world = World::new();
    let mut engine = world.engine(&(shadow("web", "act = true") + &shadow("*", "")));
    let told = world.run(&mut engine, 5);
    assert_eq!(world.modes(), ["shadow", "nested"]);
    assert!(
        told.iter().any(|t| t.starts_with("VM 100-7 (web) nested mode, wants shadow: switched")),
        "{told:?}"
    );
    assert!(
        told.iter().any(|t| t.starts_with("VM 200-7 (db) nested mode, wants shadow: would-switch")),
        "{told:?}"
    );
    assert_eq!(told.iter().filter(|t| t.contains("would-switch")).count(), 1, "once: {told:?}");
    let status = engine.status();
    assert_eq!(status.vms[0].own_mode.as_deref(), Some("nested"));
    assert_eq!((status.vms[0].state.as_str(), status.vms[1].state.as_str()), ("acts", "observes"));
    assert!(world.journal());
    assert_eq!(engine.end(), Vec::<String>::new());
    world.kvm();
    assert_eq!((world.modes(), world.journal()), (["nested", "nested"], false));
}

#[test]
fn a_vm_that_loses_its_rule_returns_to_its_own_mode() {
    let mut world = World::new();
    world.fake.mode(DB, "shadow", 0);
    world.kvm.insert(DB, ("shadow".into(), 0));
    let mut engine = world
        .engine(&(shadow("web", "act = true") + "[[vm]]\nname=\"db\"\npolicy=\"always-nested\"\nact=true"));
    world.run(&mut engine, 5);
    assert_eq!(world.modes(), ["shadow", "nested"]);
    let reload = |engine: &mut Engine, text: &str| {
        engine.reload(Config::parse(text, Path::new("c.toml")).unwrap()).unwrap();
    };
    reload(&mut engine, &format!("never = [\"web\"]\n{}", shadow("*", "")));
    let told = world.run(&mut engine, 2);
    assert_eq!(world.modes(), ["nested", "shadow"], "{told:?}");
    assert!(!world.journal());
    // Renamed.
    reload(&mut engine, &shadow("new", "act = true"));
    world.fake.vm(WEB, "new");
    world.run(&mut engine, 15);
    assert_eq!(world.modes(), ["shadow", "shadow"]);
    world.fake.vm(WEB, "old");
    world.kvm.insert(WEB, ("nested".into(), 0));
    world.run(&mut engine, 15);
    assert_eq!(world.modes(), ["nested", "shadow"]);
}

#[test]
fn a_daemon_that_was_killed_leaves_what_the_next_gives_back() {
    let mut world = World::new();
    let mut engine = world.engine(&shadow("*", "act = true\ntrusted = true"));
    world.run(&mut engine, 3);
    assert_eq!(world.modes(), ["shadow", "shadow"]);
    drop(engine);
    let mut engine = world.engine(&shadow("web", "act = true"));
    let told = world.run(&mut engine, 2);
    assert_eq!(world.modes(), ["shadow", "nested"], "{told:?}");
    assert_eq!(
        engine.status().vms[0].own_mode.as_deref(),
        Some("nested"),
        "not the mode in which it was found"
    );
    engine.end();
    world.kvm();
    assert_eq!((world.modes(), world.journal()), (["nested", "nested"], false));
}

#[test]
fn a_vm_with_the_identifier_of_another_is_left_alone() {
    let mut world = World::new();
    let mut engine = world.engine(&shadow("web", "act = true"));
    world.run(&mut engine, 3);
    drop(engine);
    let stat = world.fake.host().proc.join("100/stat");
    std::fs::write(&stat, std::fs::read_to_string(&stat).unwrap().replace("4711", "9999")).unwrap();
    let mut engine = world.engine("");
    world.run(&mut engine, 2);
    assert_eq!((world.modes()[0], world.journal()), ("shadow", false), "another VM's own mode");
}

#[test]
fn a_vm_that_ends_leaves_nothing_behind() {
    let mut world = World::new();
    let mut engine = world.engine(&shadow("*", "act = true\ntrusted = true"));
    world.run(&mut engine, 3);
    world.end(WEB);
    world.end(DB);
    let told = world.run(&mut engine, 2);
    assert_eq!(told, ["VM 100-7 (web) has ended", "VM 200-7 (db) has ended"]);
    assert_eq!((engine.status().vms.len(), world.journal(), engine.end().len()), (0, false, 0));
}

#[test]
fn held_vms_stay_and_undo_gives_back() {
    let mut world = World::new();
    let mut engine = world.engine(&shadow("*", "act = true\ntrusted = true"));
    world.run(&mut engine, 1);
    assert!(engine.hold("web", Some(5.0), Duration::from_secs(1)).unwrap().contains("for 5 s"));
    world.run(&mut engine, 3);
    assert_eq!(world.modes(), ["nested", "shadow"]);
    let status = engine.status();
    assert_eq!((status.vms[0].state.as_str(), status.vms[0].note.as_deref()), ("held", Some("2 s more")));
    world.run(&mut engine, 3);
    assert_eq!(world.modes(), ["shadow", "shadow"]);
    assert_eq!(engine.undo(None).unwrap().len(), 2);
    world.run(&mut engine, 5);
    assert_eq!((world.modes(), world.journal()), (["nested", "nested"], false));
    engine.release("200").unwrap();
    world.run(&mut engine, 15);
    assert_eq!(world.modes(), ["nested", "shadow"]);
    for never in [-1.0, f64::NAN, 1e300] {
        assert!(engine.hold("db", Some(never), Duration::ZERO).is_err(), "{never}");
    }
    assert!(engine.hold("none", None, Duration::ZERO).unwrap_err().to_string().contains("sees no VM `none`"));
    let about = engine.explain("db").unwrap();
    let lately = &about.lately;
    assert_eq!((about.vm.unwrap().vm.as_str(), about.memory), ("200-7", None));
    assert!(lately.iter().any(|e| e.text.contains("asked to undo")), "{lately:?}");
}

#[test]
fn a_host_that_cannot_be_read_loses_no_mode() {
    let mut world = World::new();
    let mut engine = world.engine(&shadow("web", "act = true"));
    world.run(&mut engine, 3);
    // As without a free file descriptor: no VM can be listed.
    let kvm = world.fake.host().debug.join("kvm");
    let away = kvm.with_extension("away");
    std::fs::rename(&kvm, &away).unwrap();
    world.run(&mut engine, 2);
    assert_eq!(engine.end().len(), 1, "the VM is not back");
    assert!(world.journal());
    std::fs::rename(&away, &kvm).unwrap();
    drop(engine);
    let mut engine = world.engine("");
    world.run(&mut engine, 3);
    assert_eq!((world.modes()[0], world.journal()), ("nested", false));
}

#[test]
fn a_vm_with_another_name_is_not_switched_before_its_rule_is_known() {
    let mut world = World::new();
    let mut engine = world.engine(&format!("[limits]\nmin_stay_s = 3\n{}", shadow("web", "act = true")));
    engine.hold("web", None, Duration::ZERO).unwrap_err();
    world.run(&mut engine, 1);
    world.fake.vm(WEB, "other");
    let told = world.run(&mut engine, 3);
    assert_eq!(world.modes()[0], "nested", "{told:?}");
    assert!(told.iter().any(|t| t.contains("it was renamed")), "{told:?}");
}

#[test]
fn kvms_identifier_comes_before_a_name_that_looks_like_one() {
    let mut world = World::new();
    world.vm(DB, "100-7");
    let mut engine = world.engine("");
    world.run(&mut engine, 1);
    assert!(engine.hold("100-7", None, Duration::ZERO).unwrap().starts_with("VM 100-7 (web)"));
}

#[test]
fn without_a_place_for_the_journal_no_vm_is_switched() {
    let mut world = World::new();
    let mut engine = world.engine(&shadow("*", "act = true\ntrusted = true"));
    std::fs::create_dir(world.folder.path().join("modes.new")).unwrap();
    let told = world.run(&mut engine, 3);
    assert_eq!(world.modes(), ["nested", "nested"]);
    assert!(
        told.iter().any(|t| t.contains("no VM is switched whose mode cannot be written down")),
        "{told:?}"
    );
}

#[test]
fn a_kvm_with_one_mode_for_all_is_observed() {
    let mut world = World::new();
    std::fs::remove_file(world.fake.host().sys.join("module/kvm/parameters/paging_mode")).unwrap();
    for id in [WEB, DB] {
        std::fs::remove_file(world.fake.host().vm_dir(id).join("paging_mode")).unwrap();
    }
    let mut engine = world.engine(&shadow("*", "act = true\ntrusted = true"));
    let told = world.run(&mut engine, 5);
    assert!(engine.only_observes().unwrap().contains("one paging mode for all VMs"));
    assert!(told.iter().any(|t| t.contains("not-switched: this KVM has one paging mode")), "{told:?}");
    assert!(!world.journal());
}

#[test]
fn a_policy_without_its_counters_is_told_once() {
    let mut world = World::new();
    let mut engine = world.engine("[[vm]]\nname = \"web\"\npolicy = \"dsp\"\n");
    let told = world.run(&mut engine, 30);
    let missing = told.iter().filter(|t| t.contains("needs the counter"));
    assert_eq!(missing.count(), 1, "{told:?}");
    assert_eq!(engine.status().vms[0].missing.as_deref(), Some("instructions"));
}

#[test]
fn the_recording_replays_to_the_same_decisions() {
    let mut world = World::new();
    let file = world.folder.path().join("vms.jsonl");
    let text = format!(
        "[limits]\nmin_stay_s = 7\nblackout_s = 2\nmost_switches_per_hour = 12\n[recording]\nfile = \"{}\"\n\
         [[vm]]\nname = \"*\"\npolicy = \"toggle\"\nact = true\ntrusted = true\nparameters = {{ interval_s = 3 }}\n",
        file.display()
    );
    let mut engine = world.engine(&text);
    world.run(&mut engine, 30);
    // Killed, while a VM is away and has just been switched.
    while engine.switcher.homes.vms().is_empty() {
        world.run(&mut engine, 1);
    }
    drop(engine);
    let mut engine = world.engine(&text);
    world.run(&mut engine, 300);
    drop(engine);
    let lines = std::fs::read_to_string(&file).unwrap();
    let made: Vec<DecisionLine> = lines.lines().filter_map(|l| serde_json::from_str(l).ok()).collect();
    let made: Vec<&DecisionLine> = made.iter().filter(|d| d.schema == DecisionLine::schema()).collect();
    let config = Config::parse(&text, Path::new("c.toml")).unwrap();
    let mut replayed = 0;
    for vm in bifold_live::recording::read(&file).unwrap() {
        let decided =
            crate::replay::replay(&vm, crate::replay::rule(&vm, &config).unwrap(), &config).unwrap();
        let of_vm: Vec<_> = made.iter().filter(|d| d.vm == vm.vm).collect();
        assert_eq!(of_vm.len(), decided.len());
        for (live, off_line) in of_vm.iter().zip(&decided) {
            assert_eq!(live.time, vm.intervals[off_line.interval].time);
            assert_eq!(live.wants, off_line.choice.decision.mode.name());
            assert_eq!(
                (live.verdict.as_str(), &live.why),
                (off_line.choice.verdict.word(), &off_line.choice.decision.why)
            );
        }
        replayed += decided.len();
    }
    assert!(replayed > 100, "{replayed}");
    assert!(made.iter().any(|d| d.verdict == "switch") && made.iter().any(|d| d.verdict == "too-many"));
    assert!(world.kvm.values().all(|(_, switches)| (2..=24).contains(switches)), "{:?}", world.kvm);
}

#[test]
fn a_mode_that_the_policy_wants_twice_is_in_the_log_once() {
    let mut world = World::new();
    let mut engine = world.engine(&shadow("web", ""));
    let told = world.run(&mut engine, 100);
    assert_eq!(told.iter().filter(|t| t.contains("wants")).count(), 1, "{told:?}");
}

#[test]
fn a_vm_that_kvm_would_refuse_is_not_asked_for_and_is_switched_when_the_reason_goes() {
    let mut world = World::new();
    world.refuses(WEB, "hypervisor vcpu 1");
    let mut engine = world.engine(&shadow("*", "act = true\ntrusted = true"));
    let told = world.run(&mut engine, 100);
    assert_eq!((world.modes(), world.refused[&WEB]), (["nested", "shadow"], 0), "{told:?}");
    let blocked: Vec<&String> = told.iter().filter(|t| t.contains("hypervisor")).collect();
    assert_eq!(blocked.len(), 1, "{told:?}");
    assert!(
        blocked[0].starts_with(
            "VM 100-7 (web) nested mode, wants shadow: not-switched, hypervisor: vCPU 1 is a hypervisor itself"
        ),
        "{blocked:?}"
    );
    let web = engine.status().vms.remove(0);
    assert_eq!(
        (web.state.as_str(), web.refusal.as_deref(), web.totals.refused),
        ("blocked", Some("hypervisor"), 0)
    );
    assert!(web.note.unwrap().contains("vCPU 1 is a hypervisor itself") && web.own_mode.is_none());
    world.refuses(WEB, "none");
    // Looked at in the seconds 1, 11, 31, 71 and 151.
    world.run(&mut engine, 50);
    assert_eq!(world.modes()[0], "nested");
    let told = world.run(&mut engine, 2);
    assert_eq!(world.modes()[0], "shadow");
    assert!(told.iter().any(|t| t.contains("wants shadow: switched")), "{told:?}");
    let web = engine.status().vms.remove(0);
    assert_eq!((web.state.as_str(), web.refusal, web.own_mode.as_deref()), ("acts", None, Some("nested")));
}

#[test]
fn another_reason_is_told_and_one_that_lasts_is_told_once_until_the_configuration_is_read_again() {
    let mut world = World::new();
    world.refuses(WEB, "real-mode vcpu 0");
    let config = shadow("web", "act = true");
    let mut engine = world.engine(&config);
    world.run(&mut engine, 5);
    world.refuses(WEB, "dma");
    let told = world.run(&mut engine, 3600);
    assert_eq!((told.len(), world.refused[&WEB]), (1, 0), "{told:?}");
    assert!(told[0].contains("not-switched, dma: an assigned device"), "{told:?}");
    let web = engine.status().vms.remove(0);
    assert_eq!((web.state.as_str(), web.refusal.as_deref()), ("cannot", Some("dma")));
    world.refuses(WEB, "none");
    world.run(&mut engine, 700);
    assert_eq!(world.modes()[0], "nested");
    engine.reload(Config::parse(&config, Path::new("c.toml")).unwrap()).unwrap();
    world.run(&mut engine, 2);
    assert_eq!(world.modes()[0], "shadow");
}

#[test]
fn a_vm_goes_back_to_its_own_mode_whatever_is_foretold() {
    let mut world = World::new();
    let mut engine = world.engine(&shadow("web", "act = true"));
    world.run(&mut engine, 3);
    assert_eq!(world.modes()[0], "shadow");
    world.refuses(WEB, "smm vcpu 0");
    engine.reload(Config::parse("", Path::new("c.toml")).unwrap()).unwrap();
    world.run(&mut engine, 2);
    assert_eq!(world.refused[&WEB], 1, "KVM was asked");
    assert_eq!(world.modes()[0], "shadow");
}

#[test]
fn older_modules_and_strange_files_are_asked_as_before() {
    for line in [None, Some("what?"), Some("smm vcpu x")] {
        let mut world = World::new();
        let path = world.fake.host().vm_dir(WEB).join("paging_refusal");
        match line {
            None => std::fs::remove_file(path).unwrap(),
            Some(line) => world.fake.refusal(WEB, line),
        }
        let mut engine = world.engine(&shadow("web", "act = true"));
        world.run(&mut engine, 3);
        assert_eq!(world.modes()[0], "shadow", "{line:?}");
    }
}

#[test]
fn a_vm_that_is_only_observed_tells_the_reason_too() {
    let mut world = World::new();
    world.refuses(WEB, "gpu vcpu 2");
    let mut engine = world.engine(&shadow("web", ""));
    let told = world.run(&mut engine, 30);
    let reason = "would-be-refused, gpu: KVM's reason is `gpu` of vCPU 2";
    assert_eq!(told.iter().filter(|t| t.contains(reason)).count(), 1, "{told:?}");
    let web = engine.status().vms.remove(0);
    assert_eq!((web.state.as_str(), web.refusal.as_deref()), ("observes", Some("gpu")));
    world.refuses(WEB, "none");
    let told = world.run(&mut engine, 30);
    assert!(told.iter().any(|t| t.contains("would-switch")), "{told:?}");
}

#[test]
fn a_hold_that_ends_is_followed_by_a_look_before_kvm_is_asked() {
    let mut world = World::new();
    let mut engine = world.engine(&shadow("web", "act = true"));
    world.run(&mut engine, 1);
    engine.hold("web", Some(3.0), Duration::from_secs(1)).unwrap();
    world.refuses(WEB, "keys vcpu 0");
    world.run(&mut engine, 10);
    assert_eq!((world.refused[&WEB], world.modes()[0]), (0, "nested"));
    assert_eq!(engine.status().vms[0].state, "blocked");
}

#[test]
fn what_a_reporter_says_of_its_guests_memory_arrives_and_words_mean_mode_and_memory() {
    use std::io::Write as _;
    let mut world = World::new();
    std::fs::write(world.fake.host().proc.join("meminfo"), "MemTotal: 8388608 kB\n").unwrap();
    let socket = world.folder.path().join("web.report");
    let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let config = format!(
        "[memory]\nlimit = \"50%\"\npolicy = \"feedback\"\ninterval_s = 2\n{}reporter = \"{}\"\n[vm.memory]\nact = true\n",
        shadow("web", "act = true"),
        socket.display()
    );
    let mut engine = world.engine(&config);
    world.run(&mut engine, 1);
    let (mut stream, _) = listener.accept().unwrap();
    for n in 1..6u64 {
        let memory =
            format!("{{\"total_bytes\":2048,\"free_bytes\":1024,\"refaults\":{n},\"waited_us\":{}}}", 10 * n);
        let line = format!("{{\"schema\":\"bifold.report/1\",\"page_faults\":1,\"memory\":{memory}}}\n");
        stream.write_all(line.as_bytes()).unwrap();
        world.run(&mut engine, 1);
    }
    let status = engine.status().memory.unwrap();
    let web = &status.guests[0];
    assert_eq!(
        (status.guests.len(), web.vm.as_deref(), web.refaults, web.waited_us),
        (1, Some("100-7"), Some(5), Some(50))
    );
    assert_eq!(status.policy, "feedback");
    // One word means both.
    let told = engine.hold("web", Some(5.0), Duration::from_secs(world.seconds)).unwrap();
    assert!(told.contains("is held in its mode, and its memory as it is, for 5 s"), "{told}");
    let about = engine.explain("100-7").unwrap();
    assert_eq!((about.vm.unwrap().state.as_str(), about.memory.unwrap().pid), ("held", 100));
    assert_eq!(engine.undo(Some("web")).unwrap().len(), 2);
    assert!(engine.release("100").unwrap().contains("is released"));
    engine.release("200").unwrap();
    world.run(&mut engine, 61);
    assert_eq!(engine.status().memory.unwrap().guests[0].refaults, None, "the report is old");
    assert!(engine.end().is_empty());
}

#[test]
fn a_name_that_looks_like_anothers_process_means_nothing_beside_it() {
    let mut world = World::new();
    std::fs::write(world.fake.host().proc.join("meminfo"), "MemTotal: 8388608 kB\n").unwrap();
    // Only the second has a rule about its memory, and its owner named it after the first one's process.
    world.fake.vm(VmId { thread: 300, fd: 7 }, "100");
    let config = "[memory]\nlimit = \"50%\"\npolicy = \"equal\"\n[[vm]]\nname = \"100\"\n[vm.memory]\n";
    let mut engine = world.engine(config);
    world.run(&mut engine, 1);
    assert_eq!(engine.explain("300").unwrap().memory.unwrap().pid, 300);
    let about = engine.explain("100").unwrap();
    assert_eq!((about.vm.unwrap().pid, about.memory.map(|m| m.pid)), (100, None));
    assert_eq!(engine.undo(Some("100")).unwrap().len(), 1);
    assert_ne!(engine.explain("300").unwrap().memory.unwrap().state, "held");
}
