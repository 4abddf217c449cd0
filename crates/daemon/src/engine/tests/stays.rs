// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stays in shadow paging that end early, cgroups without room, and guests that are not trusted.

use super::*;

const MIB: u64 = 1 << 20;

/// Lines that contain a text.
fn lines<'a>(told: &'a [String], text: &str) -> Vec<&'a str> {
    told.iter().map(String::as_str).filter(|t| t.contains(text)).collect()
}

impl World {
    /// KVM ends the stay of a VM, for the `n`th time.
    fn ends_stay(&mut self, id: VmId, n: u64) {
        let (mode, switches) = self.kvm.get_mut(&id).unwrap();
        assert_eq!(mode, "shadow");
        (*mode, *switches) = ("nested".into(), *switches + 1);
        self.fake.mode(id, "nested", *switches);
        self.fake.ended_early(id, n, 0);
    }

    /// Seconds until the VM is in shadow paging.
    fn until_shadow(&mut self, engine: &mut Engine, ended: u64) -> u64 {
        (1..200_000)
            .find(|_| {
                self.run(engine, 1);
                self.fake.ended_early(WEB, ended, 0);
                self.modes()[0] == "shadow"
            })
            .unwrap()
    }
}

#[test]
fn a_guest_that_makes_kvm_go_back_is_switched_less_and_less_often() {
    let mut world = World::new();
    let mut engine = world.engine(
        &("[limits]\nmin_stay_s = 1\nmost_switches_per_hour = 1000\n".to_owned()
            + &shadow("web", "act = true")),
    );
    world.until_shadow(&mut engine, 0);
    let mut waited = Vec::new();
    for n in 1..5 {
        world.run(&mut engine, 3);
        world.ends_stay(WEB, n);
        let told = world.run(&mut engine, 2);
        assert_eq!(lines(&told, "KVM brought the VM back to nested paging").len(), 1, "{told:?}");
        assert!(told.iter().any(|t| t.contains("the guest used what only nested paging has")), "{told:?}");
        if n == 2 {
            assert!(told.iter().any(|t| t.contains("this is the 2. time in a row: no switch to shadow paging for 120 s")));
            let web = engine.status().vms.remove(0);
            assert_eq!((web.state.as_str(), web.totals.ended_early, web.refusal), ("blocked", 2, None));
            assert!(web.note.unwrap().starts_with("its last stay in shadow paging ended early"));
        }
        waited.push(world.until_shadow(&mut engine, n) + 2);
    }
    // The first second of the pause is that of the reading.
    assert_eq!(waited, [61, 121, 241, 481]);
    // A long stay is worth its switches.
    world.run(&mut engine, 3700);
    world.ends_stay(WEB, 5);
    world.run(&mut engine, 2);
    assert_eq!(world.until_shadow(&mut engine, 5) + 2, 61);
}

#[test]
fn without_room_kvm_is_not_asked_and_a_stay_ends_before_memory_does() {
    let mut world = World::new();
    world.fake.room(WEB, 40 * MIB, 0);
    let mut engine = world.engine(&shadow("*", "act = true\ntrusted = true"));
    let told = world.run(&mut engine, 60);
    assert_eq!(world.modes(), ["nested", "shadow"], "{told:?}");
    let short =
        lines(&told, "not-switched, room: shadow paging needs up to 61 MiB of kernel memory, and cgroup");
    assert_eq!(short.len(), 1, "{told:?}");
    assert!(short[0].contains("has 40 MiB left"), "{short:?}");
    let web = engine.status().vms.remove(0);
    assert_eq!((web.state.as_str(), web.refusal.as_deref()), ("blocked", Some("room")));
    world.fake.room(WEB, 39 * MIB, 0);
    let told = world.run(&mut engine, 600);
    assert_eq!(told, Vec::<String>::new(), "other amounts are no news");
    world.fake.room(WEB, 63 * MIB, 0);
    world.run(&mut engine, 700);
    assert_eq!(world.modes()[0], "shadow");
    // The stay takes what it needs; the margin is left.
    world.fake.room(WEB, 17 * MIB, 0);
    world.run(&mut engine, 100);
    assert_eq!(world.modes()[0], "shadow");
    world.fake.room(WEB, 15 * MIB, 0);
    let told = world.run(&mut engine, 2);
    assert_eq!(world.modes()[0], "nested");
    let ended = lines(&told, "the daemon brings the VM back to nested paging: cgroup");
    assert!(
        ended.len() == 1 && ended[0].contains("has 15 MiB left, and 16 MiB are to stay free"),
        "{told:?}"
    );
    assert_eq!(engine.status().vms[0].totals.ended_early, 1);
    // What the stay had is free again, but not enough for another.
    world.fake.room(WEB, 60 * MIB, 0);
    world.run(&mut engine, 4000);
    assert_eq!(world.modes()[0], "nested");
    world.fake.room(WEB, 62 * MIB, 0);
    world.run(&mut engine, 700);
    assert_eq!(world.modes()[0], "shadow");
    world.fake.room(WEB, 50 * MIB, 3);
    let told = world.run(&mut engine, 2);
    assert_eq!(world.modes()[0], "nested");
    assert!(told.iter().any(|t| t.contains("a limit of its cgroups was met")), "{told:?}");
}

#[test]
fn a_vm_that_is_held_or_gone_is_not_brought_back_for_its_room() {
    let mut world = World::new();
    world.fake.room(WEB, 100 * MIB, 0);
    let mut engine = world.engine(&shadow("web", "act = true"));
    world.run(&mut engine, 3);
    assert_eq!(world.modes()[0], "shadow");
    engine.hold("web", None, Duration::ZERO).unwrap();
    world.fake.room(WEB, 0, 9);
    world.run(&mut engine, 5);
    assert_eq!(world.modes()[0], "shadow", "a user holds it");
    engine.release("web").unwrap();
    for file in ["cgroup", "maps"] {
        std::fs::remove_file(world.fake.host().proc.join("100").join(file)).unwrap();
    }
    world.run(&mut engine, 5);
    assert_eq!(world.modes()[0], "shadow", "nothing is known");
    world.fake.room(WEB, 0, 9);
    world.run(&mut engine, 2);
    assert_eq!(world.modes()[0], "nested");
}

#[test]
fn vms_of_a_pattern_are_observed_until_the_rule_trusts_them() {
    let mut world = World::new();
    let config = shadow("w*", "act = true") + &shadow("db", "act = true");
    let mut engine = world.engine(&config);
    let told = world.run(&mut engine, 5);
    assert_eq!(world.modes(), ["nested", "shadow"], "{told:?}");
    assert!(told.iter().any(|t| t.contains("(web) nested mode, wants shadow: would-switch")), "{told:?}");
    let status = engine.status();
    assert_eq!(status.vms[0].state, "observes");
    assert!(status.vms[0].note.as_deref().unwrap().contains("`trusted = true`"), "{status:?}");
    let of_rules = lines(&status.warnings, "vm[0] (w*): the daemon does not switch VMs of a pattern");
    assert_eq!(of_rules.len(), 1, "{:?}", status.warnings);
    let trusted = config.replacen("act = true", "act = true\ntrusted = true", 1);
    engine.reload(Config::parse(&trusted, Path::new("c.toml")).unwrap()).unwrap();
    world.run(&mut engine, 5);
    assert_eq!(world.modes(), ["shadow", "shadow"]);
    assert_eq!(lines(&engine.status().warnings, "pattern"), Vec::<&str>::new());
    // Trust that is withdrawn brings the VMs home.
    let never = config.replace("act = true", "act = true\ntrusted = false");
    engine.reload(Config::parse(&never, Path::new("c.toml")).unwrap()).unwrap();
    world.run(&mut engine, 5);
    assert_eq!(world.modes(), ["nested", "nested"]);
    let status = engine.status();
    assert_eq!((status.vms[0].note.as_deref(), lines(&status.warnings, "pattern").len()), (None, 0));
}

#[test]
fn open_holes_of_the_modules_are_in_the_status() {
    let mut world = World::new();
    let fixes = world.fake.host().sys.join("module/kvm/parameters/paging_fixes");
    let mut engine = world.engine("");
    world.run(&mut engine, 1);
    assert!(engine.status().warnings[0].contains("CVE-2026-53359"), "{:?}", engine.status().warnings);
    drop(engine);
    let all: Vec<&str> = bifold_host::holes::HOLES.iter().map(|hole| hole.name).collect();
    std::fs::write(fixes, all.join(" ")).unwrap();
    assert_eq!(world.engine("").status().warnings, Vec::<String>::new());
}
