// SPDX-License-Identifier: Apache-2.0 OR MIT
use super::checks::{check, ksm_check, ksm_counters, kvm_checks};
use super::needs::{FOLDER, GUEST, KSM, KVM, MODULE, NINEP, SWITCHING};
use super::*;
use crate::full::fake_host::Tree;
use crate::full::{folder_check_of, orders_in};
use bifold_host::ksm::{Journal, Ksm, KsmError, Left, Setting, Settings};
use bifold_live::{HardwareSource, Watch};

fn all(missing: &[&str]) -> Vec<Check> {
    let names = GUEST.iter().chain(&[NINEP, "KSM counters", KSM, MODULE, KVM, SWITCHING, FOLDER]);
    let found = |n: &&&'static str| {
        if missing.contains(*n) {
            Err(("is not here".to_string(), "get it"))
        } else {
            Ok("is here".to_string())
        }
    };
    names.map(|n| check(n, &["x"], found(&n))).collect()
}

fn works(missing: &[&str]) -> Vec<Works> {
    needs::all().iter().map(|v| v.look(&all(missing)).works).collect()
}

#[test]
fn a_verb_works_if_all_that_it_needs_is_there() {
    use Works::{InPart, No, Yes};
    let of = |missing: &[&str], verb: &str| {
        needs::all().iter().find(|v| v.name == verb).unwrap().look(&all(missing)).works
    };
    assert!(works(&[]).iter().all(|w| *w == Yes));
    for (missing, verb, expected) in [
        ("qemu", "compare", InPart),
        ("qemu 9p", "compare", InPart),
        ("qemu", "share run", No),
        ("capture plugin", "share run", Yes),
        ("KSM", "share run", No),
        ("KSM", "share check", No),
        ("KSM", "share watch", Yes),
        ("KSM counters", "share advise", No),
        ("KVM", "mode", No),
        ("switching", "mode", InPart),
        ("KVM", "compare", Yes),
        ("KVM", "stat", InPart),
        ("KVM", "daemon", InPart),
        ("KVM module", "stat", No),
        ("KVM module", "daemon", No),
        ("switching", "daemon", InPart),
        ("daemon's folder", "daemon", No),
        ("daemon's folder", "stat", Yes),
    ] {
        assert_eq!(of(&[missing], verb), expected, "{verb} without {missing}");
    }
    let names: Vec<&str> = all(&[]).iter().map(|c| c.name).collect();
    for v in needs::all() {
        assert!(
            v.needs.checks.iter().all(|n| names.contains(n)),
            "{} needs something that no check looks for",
            v.name
        );
    }
}

#[test]
fn the_real_checks_have_the_names_that_verbs_need() {
    let tree = Tree::new();
    let names: Vec<&str> = all_checks(&tree.host()).iter().map(|c| c.name).collect();
    for v in needs::all() {
        for n in v.needs.checks.iter().chain(v.needs.parts.iter().map(|p| &p.0)) {
            assert!(names.contains(n), "{} needs {n}, for which there is no check", v.name);
        }
    }
}

#[test]
fn verbs_are_told_with_what_they_lack_and_what_to_do() {
    let all = all(&["qemu", "KVM"]);
    let findings: Vec<Finding> = needs::all().iter().map(|v| v.look(&all)).collect();
    let checks: Vec<&Check> = all.iter().collect();
    let journal =
        Journal { pid: 4242, found: Settings::of(&[(Setting::Run, 0), (Setting::PagesToScan, 100)]) };
    let left = Ok(Some(Left { journal: journal.clone(), held: false }));
    insta::assert_snapshot!("doctor_table", table(&findings, &checks, &left, &[]));
    insta::assert_snapshot!("doctor_json", json(false, &findings[..1], &checks[..2], &left, &[]).unwrap());
    let held = table(&findings, &checks, &Ok(Some(Left { journal, held: true })), &[]);
    assert!(held.contains("changed by process 4242 now") && !held.contains("--restore"), "{held}");
}

#[test]
fn ksm_is_told_with_what_to_do() {
    let tree = Tree::new();
    tree.ksm(&[("run", "1"), ("pages_shared", "12"), ("pages_to_scan", "100")]);
    let there = ksm_check(Ksm::of(&tree.host()));
    let not_root = ksm_check(Err(KsmError::NotRoot { path: "run".into() }));
    let none = ksm_check(Err(KsmError::NoKsm { path: "ksm".into() }));
    assert_eq!([there.ok, not_root.ok, none.ok], [true, false, false]);
    insta::assert_snapshot!("doctor_ksm", table(&[], &[&there, &not_root, &none], &Ok(None), &[]));
    assert_eq!(ksm_counters(Ksm::of(&tree.host())).detail, "12 pages shared");
}

#[test]
fn doctor_and_the_verbs_that_watch_have_one_rule() {
    let looks = |tree: &Tree, verb: &str| {
        let all = all_checks(&tree.host());
        needs::all().iter().find(|v| v.name == verb).unwrap().look(&all)
    };
    let tree = Tree::new();
    for verb in ["stat", "top", "daemon"] {
        assert_eq!(looks(&tree, verb).works, Works::No, "{verb}");
    }
    assert!(Watch::new(tree.host(), HardwareSource::None).is_err());
    // Without debugfs, and with a KVM that has one mode for all VMs.
    tree.write("sys/module/kvm/parameters/x", "");
    tree.write("sys/module/kvm_intel/parameters/ept", "Y\n");
    assert!(Watch::new(tree.host(), HardwareSource::None).is_ok());
    for verb in ["stat", "top"] {
        let found = looks(&tree, verb);
        assert_eq!((found.works, found.missing), (Works::InPart, vec![KVM]), "{verb}");
    }
    let folder = tree.host().sys;
    assert!(folder_check_of(&folder.join("not/there/yet")).ok);
    assert!(!folder_check_of(&folder.join("module/kvm/parameters/x/folder")).ok, "a file is above");
}

#[test]
fn vms_that_cannot_be_switched_are_named_up_to_a_number() {
    let tree = Tree::new();
    tree.write("sys/module/kvm_amd/parameters/npt", "Y\n");
    tree.write("sys/module/kvm/parameters/paging_mode", "nested\n");
    for pid in 100..115 {
        tree.vm(pid, &format!("web\u{1b}{pid}"), 0, "");
        tree.paging(pid, "nested", if pid == 100 { "none" } else { "hypervisor vcpu 2" });
    }
    tree.paging(101, "shadow", "newer");
    tree.paging(102, "nested", "dma");
    let [kvm, switching] = kvm_checks(&tree.host());
    assert!(switching.ok, "the host can switch others");
    insta::assert_snapshot!("doctor_vms", table(&[], &[&kvm, &switching], &Ok(None), &[]));
    // With a warning of five lines about holes.
    assert_eq!(switching.detail.lines().count(), 12 + 5);
}

#[test]
fn orders_that_left_a_guest_without_its_memory_are_named() {
    let tree = Tree::new();
    let values = |pid: u32, more: &str| {
        format!(
            "bifold-reclaim 1\npid 7\nguest {pid}\nstarted 1\nname we\u{1b}b\nmonitor unix /run/qmp\nway balloon\ndevice /b\n\
             found 536870912\nleast 402653184\ndimms 0\n{more}end\n"
        )
    };
    tree.write("reclaim/41-1.journal", &values(41, ""));
    tree.write("reclaim/42-1.journal", &values(42, "kept yes\n"));
    tree.write("reclaim/43-1.journal", "nonsense\n");
    // Its process has ended.
    tree.write("reclaim/45-1.journal", &values(45, ""));
    let fields = "0 ".repeat(18);
    for pid in [41, 42, 44] {
        tree.write(&format!("proc/{pid}/stat"), &format!("{pid} (qemu) S {fields}1 0\n"));
    }
    tree.write("reclaim/44-1.journal", &values(44, ""));
    let folder = tree.host().sys.parent().unwrap().join("reclaim");
    for pid in [41, 42, 43, 44, 45] {
        tree.write(&format!("reclaim/{pid}-1.lock"), "");
    }
    // An order is under way.
    let places = Places { lock: folder.join("44-1.lock"), journal: folder.join("44-1.journal") };
    let _held = bifold_host::held::lock("reclaim", &places).unwrap();
    let left = orders_in(&tree.host(), &folder);
    let text = table(&[], &[], &Ok(None), &left).replace('\n', " ");
    for part in [
        "the size of VM we\\u{1b}b (process 41) was left by an order that was killed: `bifold reclaim restore 41` gives",
        "(process 42) was kept by `reclaim set --keep`",
        "43-1.journal cannot be used",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(!text.contains("44") && !text.contains("45"), "{text}");
    let json = json(true, &[], &[], &Ok(None), &left).unwrap();
    assert!(json.contains("\"kept\": true") && json.contains("\"pid\": 41"), "{json}");
}

#[test]
fn a_journal_is_restored_from_on_request() {
    let tree = Tree::new();
    tree.ksm(&[("run", "1"), ("pages_to_scan", "100")]);
    tree.write("journal", "bifold-ksm 1\npid 7\nrun 0\nend\n");
    let at = |name: &str| tree.host().sys.join("..").join(name);
    let places = Places { lock: at("lock"), journal: at("journal") };
    assert_eq!(restore(&tree.host(), &places).unwrap(), Status::Done);
    assert_eq!(std::fs::read_to_string(tree.host().sys.join("kernel/mm/ksm/run")).unwrap(), "0\n");
    assert!(!places.journal.exists());
}
