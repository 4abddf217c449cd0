// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libvirt's XML of a plan: its own schema takes the domain, and names come back as they were.

use crate::machine::{Spec, machine};
use bifold_host::topology::Access;
use bifold_place::plan::Plan;
use bifold_place::wishes::Wishes;
use bifold_place::{Processor, libvirt, plan};
use quick_xml::events::Event;
use std::path::Path;
use std::process::Command;

fn planned(text: &str, amd: bool, hmat: bool) -> Plan {
    let node = |number| Spec { number, cores: vec![2, 2], memory: 4 << 30, pools: (64, 2) };
    let mut host = machine(&[node(0), node(2)], 2, 21);
    for (number, node) in host.nodes.iter_mut().filter(|_| hmat) {
        let initiators = [*number].into_iter().collect();
        node.access = Some(Access {
            initiators,
            read_latency: Some(80),
            read_bandwidth: Some(20480),
            ..Access::default()
        });
    }
    let wishes = Wishes::parse(text, "w.toml".as_ref()).unwrap();
    plan(&host, &wishes, if amd { Processor::Amd } else { Processor::Other }).unwrap()
}

const TWO_NODES: &str = "[[guest]]\nname = 'db'\nvcpus = 8\nmemory = '256M'\npage_size = '2M'\nnodes = 2\nio_threads = 2\n\
                         emulator_cores = 1\n";

/// Text of the first element of this name.
fn text_of(xml: &str, name: &str) -> String {
    let mut reader = quick_xml::Reader::from_str(xml);
    loop {
        match reader.read_event().unwrap() {
            Event::Start(e) if e.name().as_ref() == name.as_bytes() => {
                let raw = reader.read_text(e.name()).unwrap();
                return quick_xml::escape::unescape(&raw.decode().unwrap()).unwrap().into_owned();
            }
            Event::Eof => panic!("no {name} in {xml}"),
            _ => {}
        }
    }
}

#[test]
fn a_domain_says_where_all_belongs() {
    let xml = libvirt::domain(&planned(TWO_NODES, true, false).guests[0]);
    for line in [
        "<name>db</name>",
        "<page size=\"2048\" unit=\"KiB\" nodeset=\"0-1\"/>",
        "<vcpupin vcpu=\"0\" cpuset=\"",
        "<iothreadpin iothread=\"2\" cpuset=\"",
        "<memory mode=\"strict\" nodeset=\"0,2\"/>",
        "<memnode cellid=\"1\" mode=\"strict\" nodeset=\"2\"/>",
        "<topology sockets=\"2\" dies=\"1\" cores=\"2\" threads=\"2\"/>",
        "<cache level=\"3\" mode=\"emulate\"/>",
        "<feature policy=\"require\" name=\"topoext\"/>",
        "<cell id=\"1\" cpus=\"4-7\" memory=\"131072\" unit=\"KiB\">",
        "<sibling id=\"0\" value=\"21\"/>",
    ] {
        assert!(xml.contains(line), "{line}\n{xml}");
    }
    let whole = "[[guest]]\nname = 'g'\nvcpus = 8\nmemory = '2G'\nnodes = 'host'\n";
    let xml = libvirt::domain(&planned(whole, false, false).guests[0]);
    assert!(xml.contains("<cache mode=\"passthrough\"/>") && !xml.contains("topoext"), "{xml}");
}

#[test]
fn names_with_markup_come_back() {
    for name in ["a&b", "<name>x</name>", "]]>", "\"quoted\" 'twice'", "ümlaut, comma"] {
        let text = format!("[[guest]]\nname = '''{name}'''\nvcpus = 2\nmemory = '2M'\n");
        let xml = libvirt::domain(&planned(&text, false, false).guests[0]);
        assert_eq!(text_of(&xml, "name"), name, "{xml}");
    }
}

#[test]
fn libvirts_schema_takes_the_domains() {
    let tool = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/libvirt-schema");
    let dir = tempfile::tempdir().unwrap();
    let small = "[[guest]]\nname = 'a<&>\"b'\nvcpus = 3\nmemory = '4M'\nsmt = 'cores'\nksm = true\npage_size = '4K'\n";
    let giant = "[[guest]]\nname = 'g'\nvcpus = 8\nmemory = '2G'\npage_size = '1G'\nnodes = 'host'\n";
    let mut files = Vec::new();
    for (i, (text, amd, hmat)) in
        [(TWO_NODES, true, false), (TWO_NODES, false, true), (small, true, true), (giant, false, false)]
            .into_iter()
            .enumerate()
    {
        let file = dir.path().join(format!("{i}.xml"));
        std::fs::write(&file, libvirt::domain(&planned(text, amd, hmat).guests[0])).unwrap();
        files.push(file);
    }
    // An invalid domain, so that the check can fail.
    let bad = dir.path().join("bad.xml");
    std::fs::write(&bad, "<domain type=\"kvm\"><nome>x</nome></domain>").unwrap();
    let check = |files: &[std::path::PathBuf]| Command::new(&tool).args(files).output().unwrap();
    let out = check(&files);
    if out.status.code() == Some(77) {
        eprintln!("skipped: {}", String::from_utf8_lossy(&out.stderr));
        return;
    }
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    assert_eq!(check(&[bad]).status.code(), Some(3));
}
