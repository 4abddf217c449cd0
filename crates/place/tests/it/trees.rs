// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plans on the /sys trees of 47 machines (`tools/hwloc-trees`): from one node to hundreds, with nodes
//! without memory or CPUs, sparse numbers, and kernels that tell no distances.

use bifold_host::Host;
use bifold_host::topology::{NumberSet, Topology};
use bifold_place::wishes::Wishes;
use bifold_place::{PlanError, Processor, plan};
use std::fs;
use std::path::Path;
use std::process::Command;

/// A guest that takes a core of each node, beside one that takes two cores anywhere.
fn wishes(nodes: usize) -> Wishes {
    let text = format!(
        "[[guest]]\nname = 'wide'\nvcpus = {nodes}\nmemory = '{}K'\npage_size = '4K'\nsmt = 'cores'\nnodes = 'host'\n\
         [[guest]]\nname = 'small'\nvcpus = 2\nmemory = '8K'\npage_size = '4K'\nsmt = 'cores'\n",
        8 * nodes
    );
    Wishes::parse(&text, "w.toml".as_ref()).unwrap()
}

/// Nodes with a CPU beside the first core, which the host keeps.
fn nodes(host: &Topology) -> usize {
    let first = host.cpus.iter().find(|(_, c)| c.online).map(|(n, c)| (*n, c.threads.clone()));
    let kept = first.map(|(n, mut threads)| {
        threads.insert(n);
        threads
    });
    let with_cpus = host.nodes.values().filter(|n| !n.cpus.difference(kept.as_ref().unwrap()).is_empty());
    with_cpus.count().max(1)
}

/// Whether the wide guest was planned.
fn check(host: &Topology, name: &str) -> bool {
    let plan = match plan(host, &wishes(nodes(host)), Processor::Other) {
        Ok(plan) => plan,
        Err(PlanError::Short(lines)) => {
            assert!(lines.iter().all(|l| l.contains("guest")), "{name}: {lines:?}");
            return false;
        }
        Err(e) => {
            let known = ["tells no distance to node", "the distance of node", "no node has both"];
            assert!(known.iter().any(|k| e.to_string().contains(k)), "{name}: {e}");
            return false;
        }
    };
    let mut given = NumberSet::default();
    for guest in &plan.guests {
        for vcpu in &guest.vcpus {
            assert!(given.insert(vcpu.cpu) && host.cpus[&vcpu.cpu].online, "{name}: {vcpu:?}");
        }
        let node_of =
            |node: u32| guest.vcpus.iter().find(|v| v.node == node).and_then(|v| host.cpus[&v.cpu].node);
        for node in guest.nodes.iter().filter(|_| guest.nodes.len() > 1) {
            for (to, distance) in node.distances.iter().enumerate() {
                let (from, to) = (node_of(node.node).unwrap(), node_of(to as u32).unwrap());
                assert_eq!(host.nodes[&from].distances[&to], *distance, "{name}");
            }
        }
    }
    assert_eq!(plan.guests[0].nodes.len(), nodes(host), "{name}");
    true
}

#[test]
fn machines_of_all_kinds_have_plans() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let fetched = Command::new(root.join("tools/hwloc-trees")).output().unwrap();
    if !fetched.status.success() {
        eprintln!("skipped: {}", String::from_utf8_lossy(&fetched.stderr));
        return;
    }
    let (mut machines, mut planned) = (0, 0);
    for file in fs::read_dir(root.join(".cache/hwloc/trees")).unwrap() {
        let file = file.unwrap().path();
        if !file.to_str().is_some_and(|f| f.ends_with(".tar.bz2")) {
            continue;
        }
        let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
        assert!(
            Command::new("tar").arg("-xjf").arg(&file).arg("-C").arg(dir.path()).status().unwrap().success()
        );
        let tree = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
        let host = Host::copied(&tree).topology().unwrap();
        machines += 1;
        planned += u32::from(check(&host, &file.display().to_string()));
    }
    println!("{planned} of {machines} machines have a plan");
    assert!(machines == 47 && planned > 20, "{planned} of {machines}");
}
