// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `place check`, `apply` and `undo` as a user meets them. No setting of this machine changes: plans have no
//! steps, and journals are in folders of their own. `crates/place` tests what is read and done.

use crate::command::{Ran, bifold};
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A stopped, emulated guest, which ends with the test.
struct Qemu(Child, String);

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn guest(dir: &Path) -> Option<Qemu> {
    guest_with(dir, "debug-threads=on")
}

fn guest_with(dir: &Path, names: &str) -> Option<Qemu> {
    let qemu = bifold_guest::qemu::find().ok()?;
    // Two tests of one process have guests at the same time.
    let name = format!("guest{}-{}", std::process::id(), dir.file_name()?.to_str()?.trim_start_matches('.'));
    let log = dir.join("pid");
    let mut command = Command::new(&qemu.path);
    command.args(["-S", "-nodefaults", "-no-user-config", "-display", "none", "-accel", "tcg,thread=multi"]);
    command.args(["-name", &format!("guest={name},{names}"), "-smp", "2,cores=2", "-m", "64M"]);
    command.args(["-machine", "q35,memory-backend=ram", "-pidfile"]).arg(&log);
    command.args(["-object", "memory-backend-memfd,id=ram,size=64M,prealloc=on"]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let qemu = Qemu(child, name);
    let begun = Instant::now();
    let threads = || fs::read_dir(format!("/proc/{}/task", qemu.0.id())).map_or(0, |d| d.count());
    while !log.exists() || threads() < 4 {
        assert!(begun.elapsed() < Duration::from_secs(60), "QEMU does not start");
        std::thread::sleep(Duration::from_millis(20));
    }
    Some(qemu)
}

/// A plan for the guest: both vCPUs on this CPU.
fn plan(name: &str, cpu: u32) -> String {
    format!(
        r#"{{"schema":"bifold.place-plan/1","guests":[{{"name":"{name}","vcpus":[{{"vcpu":0,"cpu":{cpu},"node":0}},
        {{"vcpu":1,"cpu":{cpu},"node":0}}],"nodes":[{{"node":0,"host_node":0,"memory":67108864,"distances":[10],
        "latency_ns":null,"bandwidth_mb":null}}],"bound":true,"caches":"emulated","topoext":false,"ksm":false,
        "page_kib":4,"smp":{{"sockets":1,"dies":1,"cores":2,"threads":1}},"emulator":"{cpu}","io_threads":[],"reasons":[]}}],
        "steps":[],"notes":[],"cost":{{"nodes":0,"pages":0,"distances":0,"stand_ins":0,"devices":0,"caches":0,"siblings":0,
        "shared":0,"reserved_kib":0}},"proven":true}}"#
    )
}

fn place(words: &str, dir: &Path) -> Ran {
    let words = if words.starts_with("check") && words.contains("--plan") {
        words.into()
    } else {
        format!("{words} --state {}/run", dir.display())
    };
    bifold(&format!("place {words}"))
}

#[test]
fn a_guest_is_checked_pinned_and_let_go() {
    let dir = tempfile::tempdir().unwrap();
    let Some(qemu) = guest(dir.path()) else { return };
    let topology = bifold_host::Host::live().topology().unwrap();
    let this = std::process::id();
    let allowed = bifold_host::Host::live().allowed_cpus(this, this).unwrap();
    let [first, .., _] = allowed.iter().collect::<Vec<_>>()[..] else { return };
    if topology.nodes.len() > 1 {
        return; // the guest floats, which is a finding there
    }
    let name = &qemu.1;
    let sound = place(&format!("check {name} -q"), dir.path());
    if rustix::process::getpriority_process(None).unwrap() > 0 {
        // The guest has the niceness of the tests.
        assert_eq!(sound.status, 3, "{}", sound.stderr);
        assert!(sound.stdout.contains("vcpu-low-priority"), "{}", sound.stdout);
        return;
    }
    assert_eq!(
        (sound.status, sound.stdout.as_str()),
        (0, &*format!("sound: {name} ({}): 2 vCPUs, 16384 pages looked at\n", qemu.0.id()))
    );
    let file = dir.path().join("plan.json");
    fs::write(&file, plan(name, first)).unwrap();
    let before = place(&format!("check {name} --plan {} --format json", file.display()), dir.path());
    assert_eq!(before.status, 3, "{}", before.stderr);
    let json: serde_json::Value = serde_json::from_str(&before.stdout).unwrap();
    assert_eq!(
        (&json["schema"], &json["findings"][0]["name"]),
        (&"bifold.place-check/1".into(), &"vcpu-unpinned".into())
    );
    // Without its name, the guest stays as it was.
    let host_only = place(&format!("apply {} -q", file.display()), dir.path());
    assert_eq!(
        host_only.stdout, "applied: 0 settings changed, 0 were as planned, 0 refused, 0 threads pinned\n",
        "{}",
        host_only.stderr
    );
    assert_eq!(
        place(&format!("check {name} -q"), dir.path()).status,
        3,
        "the plan that is applied is compared"
    );
    let applied = place(&format!("apply {} --vm {name}", file.display()), dir.path());
    assert!(
        applied.status == 0 && !applied.stdout.contains(" 0 threads pinned"),
        "{}{}",
        applied.stdout,
        applied.stderr
    );
    assert_eq!(place(&format!("check {name} -q"), dir.path()).status, 0);
    let undone = place("undo", dir.path());
    assert!(undone.status == 0 && undone.stdout.starts_with("undone: 0 settings, "), "{}", undone.stderr);
    assert_eq!(place("undo", dir.path()).stdout, "nothing is applied\n");
    assert_eq!(place(&format!("check {name} -q"), dir.path()).status, 0);
}

#[test]
fn a_guest_of_which_no_vcpu_is_seen_is_not_checked() {
    let dir = tempfile::tempdir().unwrap();
    let Some(qemu) = guest_with(dir.path(), "debug-threads=off") else { return };
    let checked = place(&format!("check {} -q", qemu.1), dir.path());
    assert_eq!(checked.status, 77, "{}{}", checked.stdout, checked.stderr);
    let text = &checked.stdout;
    assert!(text.starts_with(&format!("not checked: {} ({}): no vCPU, ", qemu.1, qemu.0.id())), "{text}");
    assert!(
        text.contains("    not seen: its vCPUs' threads have no names") && !text.contains("sound"),
        "{text}"
    );
    let json = place(&format!("check {} --format json", qemu.1), dir.path());
    let json: serde_json::Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!(json["guests"][0]["verdict"], "not_checked");
}

#[test]
fn a_plan_in_a_file_that_is_applied_has_no_findings_for_refused_wishes() {
    let dir = tempfile::tempdir().unwrap();
    let Some(qemu) = guest(dir.path()) else { return };
    let (file, run) = (dir.path().join("plan.json"), dir.path().join("run"));
    let path = "/proc/sys/vm/stat_interval";
    let step = format!(r#""steps":[{{"path":"{path}","value":"12345","needed":false,"why":"y"}}]"#);
    let text = plan(&qemu.1, 0).replace("\"steps\":[]", &step);
    fs::write(&file, &text).unwrap();
    fs::create_dir(&run).unwrap();
    let host = bifold_host::Host::live();
    let kept = bifold_place::apply::Kept::within(&run);
    let refused = |boot: String| {
        let found = vec![("boot".to_string(), boot), ("refused".to_string(), path.to_string())];
        let journal = bifold_host::held::Journal { what: "place".into(), pid: std::process::id(), found };
        journal.write(&kept.places.journal).unwrap();
    };
    let told = || {
        let words = format!("place check {} --plan {} --state {}", qemu.1, file.display(), run.display());
        bifold(&words).stdout.contains("setting-not-as-planned")
    };
    assert!(told(), "no plan is applied");
    fs::write(&kept.plan, &text).unwrap();
    refused(host.boot_id());
    assert!(!told(), "the kernel has refused this wish");
    refused("another boot".into());
    assert!(told());
    refused(host.boot_id());
    fs::write(&kept.plan, text.replace("12345", "54321")).unwrap();
    assert!(told(), "another plan is applied");
}

#[test]
fn what_cannot_be_checked_or_applied_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let fails = |words: &str, status: i32, text: &str| {
        let ran = place(words, dir.path());
        assert!(ran.status == status && ran.stderr.contains(text), "{words}: {} {}", ran.status, ran.stderr);
    };
    fails("check no-such-guest", 1, "no guest `no-such-guest`");
    fails("apply /no/such/plan", 1, "cannot read the plan /no/such/plan");
    let file = dir.path().join("plan.json");
    let apply = format!("apply {}", file.display());
    fs::write(&file, "{\"schema\": 7").unwrap();
    fails(&apply, 1, "is no plan");
    let broken = plan("x", 0).replace("\"page_kib\":4", "\"page_kib\":18014398509481984");
    fs::write(&file, broken).unwrap();
    let page = "guest x of the plan: page_kib is 18014398509481984";
    fails(&apply, 1, page);
    fails(&format!("check --plan {}", file.display()), 1, page);
    fs::write(&file, plan("x", 60_000)).unwrap();
    fails(&apply, 1, "this host has no CPU 60000");
    let step = r#""steps":[{"path":"/proc/sys/kernel/core_pattern","value":"x","needed":true,"why":"y"}]"#;
    fs::write(&file, plan("x", 0).replace("\"steps\":[]", step)).unwrap();
    fails(&apply, 1, "core_pattern` is refused");
    fs::write(&file, plan("x", 0)).unwrap();
    fails(&format!("{apply} --vm no-such-guest"), 1, "no guest `no-such-guest`");
    let absent = place(&format!("check x --plan {}", file.display()), dir.path());
    assert!(
        absent.status == 3 && absent.stdout.contains("vm-not-running"),
        "{}{}",
        absent.stdout,
        absent.stderr
    );
}

/// The kernel accepts none of the values of this journal: a wrong undo cannot change this machine.
#[test]
fn undo_names_a_setting_that_another_program_changed_and_keeps_it_on_request() {
    let dir = tempfile::tempdir().unwrap();
    let path = "/proc/sys/vm/stat_interval";
    let Ok(is) = fs::read_to_string(path) else { return };
    fs::create_dir(dir.path().join("run")).unwrap();
    let journal = dir.path().join("run/place.journal");
    let boot = bifold_host::Host::live().boot_id();
    let text = format!("bifold-place 1\npid 1\nboot {boot}\nset {path} before\tby-bifold\nend\n");
    fs::write(&journal, text).unwrap();
    let refused = place("undo", dir.path());
    let named = format!("{path} is now {}: Bifold set by-bifold, and before that it was before", is.trim());
    assert!(refused.status == 1 && refused.stderr.contains(&named), "{}: {}", refused.status, refused.stderr);
    assert_eq!(place("undo --force --keep", dir.path()).status, 2);
    let kept = place("undo --keep", dir.path());
    let told = "undone: 0 settings, 0 threads; 1 later values of other programs are kept\n";
    assert_eq!((kept.status, kept.stdout.as_str()), (0, told), "{}", kept.stderr);
    assert!(kept.stderr.contains("stat_interval stays at "), "{}", kept.stderr);
    assert!(!journal.exists());
    assert_eq!(fs::read_to_string(path).unwrap(), is);
}
