// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold place plan` on a copied tree: a machine of two nodes, each with two L3 of two cores of two
//! threads.

use crate::command::{Ran, command, ran};
use std::fs;

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap());
        tree.write("proc/cpuinfo", "processor\t: 0\nvendor_id\t: AuthenticAMD\n");
        tree.write("sys/devices/system/cpu/present", "0-15");
        tree.write("sys/devices/system/cpu/online", "0-15");
        for cpu in 0..16 {
            tree.cpu(cpu);
        }
        for (node, cpus, distances, free) in [(0, "0-3,8-11", "10 21", 60), (1, "4-7,12-15", "21 10", 300)] {
            let dir = format!("sys/devices/system/node/node{node}");
            tree.write(&format!("{dir}/cpulist"), cpus);
            tree.write(&format!("{dir}/distance"), distances);
            let memory = format!("Node {node} MemTotal: 8388608 kB\nNode {node} MemFree: 4194304 kB\n");
            tree.write(&format!("{dir}/meminfo"), &memory);
            let pool = format!("{dir}/hugepages/hugepages-2048kB");
            tree.write(&format!("{pool}/nr_hugepages"), "300");
            tree.write(&format!("{pool}/free_hugepages"), &free.to_string());
            tree.write(&format!("{pool}/surplus_hugepages"), "0");
        }
        let card = "sys/bus/pci/devices/0000:81:00.0";
        tree.write(&format!("{card}/class"), "0x020000");
        tree.write(&format!("{card}/numa_node"), "1");
        tree.write(&format!("{card}/local_cpulist"), "4-7,12-15");
        tree.write(&format!("{card}/msi_irqs/40"), "msix");
        tree.write("sys/class/net/lo/type", "772");
        std::os::unix::fs::symlink(
            "../../devices/pci0000:80/0000:80:01.0/0000:81:00.0/net/eth0",
            tree.path("sys/class/net/eth0"),
        )
        .unwrap();
        tree
    }

    fn path(&self, file: &str) -> std::path::PathBuf {
        self.0.path().join(file)
    }

    fn write(&self, file: &str, text: &str) {
        let path = self.path(file);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text.to_owned() + "\n").unwrap();
    }

    fn cpu(&self, cpu: u32) {
        let dir = format!("sys/devices/system/cpu/cpu{cpu}");
        let core = cpu % 8;
        self.write(&format!("{dir}/topology/physical_package_id"), &(core / 4).to_string());
        self.write(&format!("{dir}/topology/die_id"), "0");
        self.write(&format!("{dir}/topology/core_id"), &core.to_string());
        self.write(&format!("{dir}/topology/core_cpus_list"), &format!("{core},{}", core + 8));
        let first = core / 2 * 2;
        let cache = format!("{dir}/cache/index3");
        self.write(&format!("{cache}/type"), "Unified");
        self.write(&format!("{cache}/level"), "3");
        self.write(&format!("{cache}/size"), "16384K");
        self.write(
            &format!("{cache}/shared_cpu_list"),
            &format!("{first}-{},{}-{}", first + 1, first + 8, first + 9),
        );
    }

    fn plan(&self, wishes: &str, options: &str) -> Ran {
        self.write("wishes.toml", wishes);
        let mut c = command(["place", "plan", "wishes.toml", "--root", "."]);
        c.args(options.split_whitespace()).current_dir(self.0.path());
        ran(c)
    }
}

const WISHES: &str = "\
[host]
reserve_cpus = '0,8'
halt_poll_ns = 0

[[guest]]
name = 'db'
vcpus = 8
memory = '256M'
page_size = '2M'
nodes = 'host'

[[guest]]
name = \"web <&, 'x'>\"
vcpus = 2
memory = '64M'
smt = 'cores'
near = ['eth0']
io_threads = 1
tickless = true
";

#[test]
fn a_plan_is_explained() {
    insta::assert_snapshot!(Tree::new().plan(WISHES, "").quietly());
}

#[test]
fn a_plan_starts_qemu() {
    insta::assert_snapshot!(Tree::new().plan(WISHES, "--format qemu -q").quietly());
}

#[test]
fn a_plan_is_a_domain() {
    insta::assert_snapshot!(Tree::new().plan(WISHES, "--format libvirt --guest db -q").quietly());
}

#[test]
fn a_plan_sets_up_the_host() {
    insta::assert_snapshot!(Tree::new().plan(WISHES, "--format steps -q").quietly());
}

#[test]
fn a_plan_is_a_document_that_reads_back() {
    let json = Tree::new().plan(WISHES, "--format json").quietly();
    let plan: bifold_place::plan::Plan = serde_json::from_str(&json).unwrap();
    assert_eq!(plan.schema, bifold_place::plan::SCHEMA);
    assert_eq!(serde_json::to_string_pretty(&plan).unwrap() + "\n", json);
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/formats.md")).unwrap();
    let section = page.split("\n## Plan of places\n").nth(1).expect("the page has the section");
    let mut fields = Vec::new();
    list(&serde_json::from_str(&json).unwrap(), String::new(), &mut fields);
    assert!(fields.len() > 40, "{fields:?}");
    let missing: Vec<_> = fields.iter().filter(|f| !section.contains(&format!("\n| `{f}` |"))).collect();
    assert!(missing.is_empty(), "docs/reference/formats.md lacks {missing:?}");
    insta::assert_snapshot!(json);
}

/// Names of all fields as the page of formats has them.
fn list(value: &serde_json::Value, name: String, fields: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                let dot = if name.is_empty() { "" } else { "." };
                let field = format!("{name}{dot}{key}");
                fields.extend((!value.is_array()).then(|| field.clone()));
                list(value, field, fields);
            }
        }
        serde_json::Value::Array(items) => {
            fields.push(format!("{name}[]"));
            items.iter().for_each(|item| list(item, format!("{name}[]"), fields));
        }
        _ => {}
    }
}

#[test]
fn notes_of_a_script_go_to_stderr_and_the_data_to_a_file() {
    let tree = Tree::new();
    let out = tree.plan(WISHES, "--format steps -o steps.sh");
    assert_eq!((out.status, out.stdout.as_str()), (0, ""));
    assert!(out.stderr.contains("nohz_full="), "{}", out.stderr);
    let steps = fs::read_to_string(tree.path("steps.sh")).unwrap();
    assert!(
        steps.contains(
            "\necho 304 > /sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages\n"
        ),
        "{steps}"
    );
}

/// The script, run in a tree whose kernel takes any number, and in one whose kernel gives no pages.
#[test]
fn the_steps_fail_if_the_kernel_gives_fewer_pages() {
    let tree = Tree::new();
    let run = |tree: &Tree| {
        let script = tree.plan(WISHES, "--format steps -q").quietly();
        let (sys, proc) =
            (format!("> {}/sys/", tree.0.path().display()), format!("> {}/proc/", tree.0.path().display()));
        let script = script.replace("> /sys/", &sys).replace("> /proc/", &proc);
        let script = script.replace("$(cat /sys/", &format!("$(cat {}/sys/", tree.0.path().display()));
        std::process::Command::new("sh").arg("-c").arg(script).output().unwrap()
    };
    let good = run(&tree);
    assert!(good.status.success(), "{}", String::from_utf8_lossy(&good.stderr));
    let pool = "sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    assert_eq!(fs::read_to_string(tree.path(pool)).unwrap(), "304\n");
    tree.write(pool, "300");
    let script = tree.plan(WISHES, "--format steps -q").quietly();
    let path = tree.path(pool);
    let given = format!("/{pool}: 302 pages of 304");
    // A kernel that gives two pages: what is written there does not come back.
    let script = script.replace(&format!("echo 304 > /{pool}"), &format!("echo 302 > {}", path.display()));
    let script = script.replace(&format!("$(cat /{pool})"), &format!("$(cat {})", path.display()));
    let short = std::process::Command::new("sh").arg("-c").arg(script + "echo went on\n").output().unwrap();
    assert_eq!((short.status.code(), short.stdout.as_slice()), (Some(1), &b""[..]));
    assert!(
        String::from_utf8_lossy(&short.stderr).contains(&given),
        "{}",
        String::from_utf8_lossy(&short.stderr)
    );
}

#[test]
fn a_machine_that_is_no_x86_has_a_plan_and_no_command_line() {
    let tree = Tree::new();
    tree.write("proc/cpuinfo", "processor\t: 0\ncpu\t\t: POWER9, altivec supported");
    let table = tree.plan(WISHES, "").stdout.replace("\n          ", " ");
    assert!(table.contains("note      the processor is no x86: what starts guests"), "{table}");
    for options in ["--format qemu", "--format libvirt --guest db"] {
        let ran = tree.plan(WISHES, options);
        assert_eq!((ran.status, ran.stdout.as_str()), (1, ""));
        assert!(ran.stderr.contains("./proc/cpuinfo: the processor is no x86"), "{}", ran.stderr);
    }
}

#[test]
fn what_does_not_fit_is_named_with_its_place() {
    let tree = Tree::new();
    let guest = |more: &str| format!("[[guest]]\nname = 'db'\n{more}\n");
    let mut all = String::new();
    for (wishes, options) in [
        (
            guest(
                "vcpus = 8\nmemory = '256M'\npage_size = '2M'\nnodes = 'host'\n[host]\nhuge_pages = 'keep'",
            ),
            "",
        ),
        (guest("vcpus = 32\nmemory = '256M'"), ""),
        (guest("vcpus = 2\nmemory = '2G'\npage_size = '1G'"), ""),
        (guest("vcpus = 3\nmemory = '2G'"), ""),
        (guest("vcpus = 4\nmemory = '1G'\nnodes = 4"), ""),
        (guest("vcpus = 2\nmemory = '1G'\nnear = ['eth7']"), ""),
        (guest("vcpus = 2\nmemory = '1G'\nhost_nodes = '7'"), ""),
        (guest("vcpus = 8\nmemory = '1G'\n[[guest]]\nname = 'b'\nvcpus = 8\nmemory = '1G'"), ""),
        (guest("vcpus = 2\nmemory = '100G'"), ""),
        (guest("vcpu = 2"), ""),
        (guest("vcpus = 2\nmemory = 'much'\nnodes = -1"), ""),
        (WISHES.into(), "--format libvirt"),
        (WISHES.into(), "--format qemu --guest no-guest"),
        (WISHES.into(), "--guest db"),
        (WISHES.into(), "-o wishes.toml"),
    ] {
        let ran = tree.plan(&wishes, options);
        assert_eq!(ran.stdout, "");
        all += &format!("status {}\n{}\n", ran.status, ran.stderr);
    }
    insta::assert_snapshot!(all);
}
