// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A topology as JSON, schema `bifold.place-show/1` (docs/reference/formats.md). Sets of numbers are in the
//! kernel's list format; what is not known is null.

use bifold_host::topology::{
    Access, Allowed, Cache, Cpu, Device, HugePool, Node, NumberSet, SideCache, Topology,
};
use serde_json::{Value, json};

pub fn document(topology: &Topology) -> anyhow::Result<String> {
    let t = topology;
    let document = json!({
        "schema": "bifold.place-show/1",
        "bifold": bifold_base::version(),
        "numa": t.numa,
        "cpus": all(&t.cpus, cpu),
        "nodes": all(&t.nodes, node),
        "caches": t.caches.iter().map(cache).collect::<Value>(),
        "isolated": list(&t.isolated),
        "tickless": list(&t.tickless),
        "devices": t.devices.iter().map(device).collect::<Value>(),
        "allowed": t.allowed.as_ref().map(allowed),
        "notes": t.notes,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn all<'a, K: Copy + 'a, V: 'a>(
    things: impl IntoIterator<Item = (&'a K, &'a V)>,
    one: fn(K, &V) -> Value,
) -> Value {
    things.into_iter().map(|(n, thing)| one(*n, thing)).collect()
}

fn list(set: &NumberSet) -> Value {
    set.to_string().into()
}

fn cpu(number: u32, c: &Cpu) -> Value {
    json!({
        "cpu": number,
        "online": c.online,
        "package": c.package,
        "die": c.die,
        "core": c.core,
        "threads": c.online.then(|| list(&c.threads)),
        "node": c.node,
    })
}

fn node(number: u32, n: &Node) -> Value {
    json!({
        "node": number,
        "cpus": list(&n.cpus),
        "memory_bytes": n.memory,
        "free_bytes": n.free,
        "kvm_tables_bytes": n.kvm_tables,
        "distances": all(&n.distances, |to, distance| json!({ "to": to, "distance": distance })),
        "huge_pages": all(&n.huge, pool),
        "access": n.access.as_ref().map(access),
        "cpu_access": n.cpu_access.as_ref().map(access),
        "side_caches": n.side_caches.iter().map(side_cache).collect::<Value>(),
    })
}

fn pool(page_kib: u64, p: &HugePool) -> Value {
    json!({ "page_kib": page_kib, "total": p.total, "free": p.free, "surplus": p.surplus })
}

fn access(a: &Access) -> Value {
    json!({
        "initiators": list(&a.initiators),
        "read_latency_ns": a.read_latency,
        "write_latency_ns": a.write_latency,
        "read_bandwidth_mb_s": a.read_bandwidth,
        "write_bandwidth_mb_s": a.write_bandwidth,
    })
}

fn side_cache(c: &SideCache) -> Value {
    json!({ "level": c.level, "bytes": c.bytes, "line_bytes": c.line })
}

fn cache(c: &Cache) -> Value {
    json!({
        "level": c.level,
        "id": c.id,
        "bytes": c.bytes,
        "line_bytes": c.line,
        "ways": c.ways,
        "cpus": list(&c.cpus),
    })
}

fn device(d: &Device) -> Value {
    json!({
        "address": d.address,
        "class": format!("{:06x}", d.class),
        "node": d.node,
        "cpus": list(&d.cpus),
        "names": d.names,
        "interrupts": list(&d.interrupts),
    })
}

fn allowed(a: &Allowed) -> Value {
    json!({ "cgroup": a.group, "cpus": list(&a.cpus), "nodes": list(&a.nodes), "container": a.container })
}
