// SPDX-License-Identifier: Apache-2.0 OR MIT
//! QEMU takes a plan's arguments, and the machine that it makes has the plan's nodes, distances and levels.
//!
//! This machine need not be the plan's: guest nodes are bound to its first node, and memory is small.

use crate::machine::{Spec, machine};
use bifold_place::plan::Plan;
use bifold_place::wishes::Wishes;
use bifold_place::{Processor, plan, qemu};
use serde_json::{Value, json};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

const QEMU: &str = "qemu-system-x86_64";
/// Longest wait for an answer.
const LIMIT: Duration = Duration::from_secs(60);

/// Two nodes with two L3 of two cores of two threads, and an HMAT.
fn planned(text: &str) -> Plan {
    let node = |number| Spec { number, cores: vec![2, 2], memory: 1 << 30, pools: (0, 0) };
    let mut host = machine(&[node(0), node(2)], 2, 21);
    for (number, node) in &mut host.nodes {
        node.access = Some(bifold_host::topology::Access {
            initiators: [*number].into_iter().collect(),
            read_latency: Some(80 + u64::from(*number)),
            read_bandwidth: Some(20480),
            ..Default::default()
        });
    }
    let wishes = Wishes::parse(text, "w.toml".as_ref()).unwrap();
    plan(&host, &wishes, Processor::Amd).unwrap()
}

/// Answers of a QEMU that is started with these arguments, and never runs a guest.
fn ask(args: &[String], commands: &[Value]) -> Result<Vec<Value>, String> {
    let mut child = Command::new(QEMU)
        .args(["-nodefaults", "-no-user-config", "-display", "none", "-S", "-qmp", "stdio"])
        .args(["-accel", "tcg,thread=multi", "-cpu", "EPYC,+topoext"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| e.to_string())?;
    let mut input = child.stdin.take().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let (send, receive) = mpsc::channel();
    std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| send.send(line)));
    let mut answers = Vec::new();
    for command in [&[json!({"execute": "qmp_capabilities"})], commands].concat() {
        if writeln!(input, "{command}").is_err() {
            break;
        }
        let answer = std::iter::from_fn(|| receive.recv_timeout(LIMIT).ok())
            .map(|line| serde_json::from_str::<Value>(&line).unwrap())
            .find(|v| v.get("return").is_some() || v.get("error").is_some());
        answers.extend(answer.map(|a| a["return"].clone()));
    }
    let _ = child.kill();
    let out = child.wait_with_output().map_err(|e| e.to_string())?;
    let enough = answers.len() == commands.len() + 1;
    if enough { Ok(answers.split_off(1)) } else { Err(String::from_utf8_lossy(&out.stderr).into_owned()) }
}

/// The plan's arguments on a machine that may have one node and one CPU.
fn here(mut plan: Plan) -> Vec<String> {
    let guest = &mut plan.guests[0];
    guest.nodes.iter_mut().for_each(|n| n.host_node = 0);
    guest.bound = std::path::Path::new("/sys/devices/system/node/node0").exists();
    let machine = qemu::arguments(guest);
    let hmat = machine.iter().any(|a| a.ends_with(",hmat=on"));
    guest.vcpus.iter_mut().for_each(|v| v.cpu = 0);
    let mut args = vec!["-machine".into(), format!("q35{}", if hmat { ",hmat=on" } else { "" })];
    args.extend(qemu::topology(guest));
    args.extend(
        machine
            .iter()
            .position(|a| a.starts_with("iothread"))
            .map(|i| [machine[i - 1].clone(), machine[i].clone()])
            .into_iter()
            .flatten(),
    );
    args
}

#[test]
fn qemus_machine_has_the_plans_nodes_and_levels() {
    if Command::new(QEMU).arg("--version").output().is_err() {
        eprintln!("no {QEMU} here");
        return;
    }
    let plan = planned(
        "[[guest]]\nname = 'a'\nvcpus = 8\nmemory = '64M'\npage_size = '4K'\nnodes = 2\nio_threads = 1\n[host]\nreserve_cpus = '0,8'\n",
    );
    let guest = plan.guests[0].clone();
    assert_eq!(guest.smp, bifold_place::plan::Smp { sockets: 2, dies: 1, cores: 2, threads: 2 });
    let commands = [
        json!({"execute": "query-cpus-fast"}),
        json!({"execute": "human-monitor-command", "arguments": {"command-line": "info numa"}}),
        json!({"execute": "query-iothreads"}),
        json!({"execute": "query-memdev"}),
    ];
    let answers = ask(&here(plan), &commands).unwrap();
    let cpus = answers[0].as_array().unwrap();
    assert_eq!(cpus.len(), 8);
    for (cpu, planned) in cpus.iter().zip(&guest.vcpus) {
        let props = &cpu["props"];
        assert_eq!(cpu["cpu-index"], planned.vcpu);
        assert_eq!(props["node-id"], planned.node, "{props}");
        assert_eq!(props["thread-id"], planned.vcpu % 2);
        assert_eq!(props["core-id"], planned.vcpu / 2 % 2);
        assert_eq!(props["socket-id"], planned.vcpu / 4);
    }
    let numa = answers[1].as_str().unwrap();
    for line in [
        "2 nodes",
        "node 0 cpus: 0 1 2 3",
        "node 0 size: 32 MB",
        "node 1 cpus: 4 5 6 7",
        "node 1 size: 32 MB",
    ] {
        assert!(numa.contains(line), "{line}\n{numa}");
    }
    assert_eq!(answers[2][0]["id"], "io0");
    assert!(answers[3].as_array().unwrap().iter().all(|m| m["prealloc"] == true));
}

#[test]
fn qemu_takes_several_dies_and_a_guest_that_leaves_gaps() {
    if Command::new(QEMU).arg("--version").output().is_err() {
        eprintln!("no {QEMU} here");
        return;
    }
    // 3 cores on one node: 2 of one L3, 1 of the other.
    // The memory is an odd number of what wishes can have at least.
    let uneven = planned("[[guest]]\nname = 'a'\nvcpus = 6\nmemory = '32776K'\npage_size = '4K'\n");
    assert_eq!((uneven.guests[0].smp.dies, uneven.guests[0].smp.cores), (1, 3));
    let dies = planned(
        "[host]\nreserve_cpus = '0-1,8-9'\n[[guest]]\nname = 'a'\nvcpus = 8\nmemory = '32M'\npage_size = '4K'\n",
    );
    assert_eq!((dies.guests[0].smp.dies, dies.guests[0].smp.cores), (2, 2));
    for plan in [uneven, dies] {
        let smp = plan.guests[0].smp;
        let cpus = &ask(&here(plan), &[json!({"execute": "query-cpus-fast"})]).unwrap()[0];
        let last = cpus.as_array().unwrap().last().unwrap()["props"].clone();
        assert_eq!(last["die-id"].as_u64().unwrap_or(0), u64::from(smp.dies - 1), "{last}");
        assert_eq!(last["core-id"], smp.cores - 1, "{last}");
    }
}
