// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's plan as libvirt's domain XML: everything of a domain but its devices.
//!
//! Source: <https://libvirt.org/formatdomain.html>. The writer of `quick-xml` escapes names.

use crate::plan::{Caches, GuestPlan, VcpuPlan};
use bifold_host::topology::NumberSet;
use quick_xml::Writer;
use quick_xml::events::BytesText;
use std::io;

type Xml = Writer<Vec<u8>>;

/// The domain.
pub fn domain(plan: &GuestPlan) -> String {
    let mut xml = Writer::new_with_indent(Vec::new(), b' ', 2);
    write(&mut xml, plan).expect("memory takes all that is written");
    let mut text = String::from_utf8(xml.into_inner()).expect("the writer was given UTF-8");
    text.push('\n');
    text
}

/// An element with attributes and without content.
fn empty(xml: &mut Xml, name: &str, attributes: &[(&str, &str)]) -> io::Result<()> {
    xml.create_element(name).with_attributes(attributes.iter().copied()).write_empty().map(drop)
}

/// An element with attributes and a text.
fn text(xml: &mut Xml, name: &str, attributes: &[(&str, &str)], text: &str) -> io::Result<()> {
    let element = xml.create_element(name).with_attributes(attributes.iter().copied());
    element.write_text_content(BytesText::new(text)).map(drop)
}

/// An element with attributes and elements within.
fn around(
    xml: &mut Xml,
    name: &str,
    attributes: &[(&str, &str)],
    within: impl FnOnce(&mut Xml) -> io::Result<()>,
) -> io::Result<()> {
    let element = xml.create_element(name).with_attributes(attributes.iter().copied());
    element.write_inner_content(within).map(drop)
}

fn write(xml: &mut Xml, plan: &GuestPlan) -> io::Result<()> {
    around(xml, "domain", &[("type", "kvm")], |xml| {
        let kib: u64 = plan.nodes.iter().map(|n| n.memory >> 10).sum();
        text(xml, "name", &[], &plan.name)?;
        text(xml, "memory", &[("unit", "KiB")], &kib.to_string())?;
        backing(xml, plan)?;
        text(xml, "vcpu", &[("placement", "static")], &plan.vcpus.len().to_string())?;
        if !plan.io_threads.is_empty() {
            text(xml, "iothreads", &[], &plan.io_threads.len().to_string())?;
        }
        around(xml, "cputune", &[], |xml| pins(xml, plan))?;
        if plan.bound {
            around(xml, "numatune", &[], |xml| nodes(xml, plan))?;
        }
        around(xml, "os", &[], |xml| text(xml, "type", &[("arch", "x86_64"), ("machine", "q35")], "hvm"))?;
        cpu(xml, plan)
    })
}

/// Pages of memory.
fn backing(xml: &mut Xml, plan: &GuestPlan) -> io::Result<()> {
    around(xml, "memoryBacking", &[], |xml| {
        if plan.page_kib > 4 {
            let nodes: NumberSet = plan.nodes.iter().map(|n| n.node).collect();
            around(xml, "hugepages", &[], |xml| {
                let (size, nodes) = (plan.page_kib.to_string(), nodes.to_string());
                empty(xml, "page", &[("size", &size), ("unit", "KiB"), ("nodeset", &nodes)])
            })?;
        }
        if !plan.ksm {
            empty(xml, "nosharepages", &[])?;
        }
        empty(xml, "allocation", &[("mode", "immediate")])
    })
}

/// CPUs of all threads.
fn pins(xml: &mut Xml, plan: &GuestPlan) -> io::Result<()> {
    for VcpuPlan { vcpu, cpu, .. } in &plan.vcpus {
        empty(xml, "vcpupin", &[("vcpu", &vcpu.to_string()), ("cpuset", &cpu.to_string())])?;
    }
    empty(xml, "emulatorpin", &[("cpuset", &plan.emulator.to_string())])?;
    for (i, cpus) in plan.io_threads.iter().enumerate() {
        // libvirt counts them from 1.
        empty(xml, "iothreadpin", &[("iothread", &(i + 1).to_string()), ("cpuset", &cpus.to_string())])?;
    }
    Ok(())
}

/// The host node of each guest node.
fn nodes(xml: &mut Xml, plan: &GuestPlan) -> io::Result<()> {
    let all: NumberSet = plan.nodes.iter().map(|n| n.host_node).collect();
    empty(xml, "memory", &[("mode", "strict"), ("nodeset", &all.to_string())])?;
    for node in &plan.nodes {
        let (cell, host) = (node.node.to_string(), node.host_node.to_string());
        empty(xml, "memnode", &[("cellid", &cell), ("mode", "strict"), ("nodeset", &host)])?;
    }
    Ok(())
}

fn cpu(xml: &mut Xml, plan: &GuestPlan) -> io::Result<()> {
    around(xml, "cpu", &[("mode", "host-passthrough"), ("check", "none")], |xml| {
        let smp = plan.smp;
        let levels =
            [("sockets", smp.sockets), ("dies", smp.dies), ("cores", smp.cores), ("threads", smp.threads)];
        let levels = levels.map(|(name, n)| (name, n.to_string()));
        empty(xml, "topology", &levels.each_ref().map(|(name, n)| (*name, n.as_str())))?;
        match plan.caches {
            Caches::Host => empty(xml, "cache", &[("mode", "passthrough")])?,
            Caches::Emulated => empty(xml, "cache", &[("level", "3"), ("mode", "emulate")])?,
        }
        if plan.topoext {
            empty(xml, "feature", &[("policy", "require"), ("name", "topoext")])?;
        }
        around(xml, "numa", &[], |xml| cells(xml, plan))
    })
}

fn cells(xml: &mut Xml, plan: &GuestPlan) -> io::Result<()> {
    for node in &plan.nodes {
        let vcpus: NumberSet = plan.vcpus.iter().filter(|v| v.node == node.node).map(|v| v.vcpu).collect();
        let (id, vcpus, kib) = (node.node.to_string(), vcpus.to_string(), (node.memory >> 10).to_string());
        let attributes = [("id", id.as_str()), ("cpus", &vcpus), ("memory", &kib), ("unit", "KiB")];
        around(xml, "cell", &attributes, |xml| {
            around(xml, "distances", &[], |xml| {
                for (to, distance) in node.distances.iter().enumerate() {
                    empty(xml, "sibling", &[("id", &to.to_string()), ("value", &distance.to_string())])?;
                }
                Ok(())
            })
        })?;
    }
    speeds(xml, plan)
}

/// Speed of the nodes' memory, as the host's firmware tells.
fn speeds(xml: &mut Xml, plan: &GuestPlan) -> io::Result<()> {
    if plan.nodes.iter().all(|n| n.latency_ns.is_none() && n.bandwidth_mb.is_none()) {
        return Ok(());
    }
    around(xml, "interconnects", &[], |xml| {
        for node in &plan.nodes {
            let id = node.node.to_string();
            let of = [("initiator", id.as_str()), ("target", &id), ("type", "access")];
            if let Some(ns) = node.latency_ns {
                empty(xml, "latency", &[&of[..], &[("value", &ns.to_string())]].concat())?;
            }
            if let Some(mb) = node.bandwidth_mb {
                let kib = (mb << 10).to_string();
                empty(xml, "bandwidth", &[&of[..], &[("value", &kib), ("unit", "KiB")]].concat())?;
            }
        }
        Ok(())
    })
}
