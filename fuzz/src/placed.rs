// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for guests that are placed: files of procfs, and a VMM's command line.

use bifold_host::CommandLine;
use bifold_host::placement::{MapLine, NumaMap};
use bifold_place::view::View;

/// Lines of `numa_maps` and `maps`: mappings with pages and addresses that the text has, or none.
pub fn mappings(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    for line in text.lines() {
        if let Some(map) = NumaMap::parse(line) {
            assert!(line.contains(&map.policy), "{map:?}");
            assert!(map.nodes.keys().all(|n| line.contains(&format!("{n}="))), "{map:?}");
        }
        if let Some(map) = MapLine::parse(line) {
            assert!(map.start < map.end && map.start % 4096 == 0 && line.contains(&map.file), "{map:?}");
        }
    }
}

/// A command line in the form of `/proc/PID/cmdline`: a view whose numbers agree.
pub fn command_line(data: &[u8]) {
    let line = [b"qemu-system-x86_64\0", data].concat();
    let view = View::parse(&CommandLine::parse(&line)).expect("the program is QEMU");
    assert!(view.vcpus <= view.most_vcpus.max(1 << 16), "{view:?}");
    assert!(!view.distances.is_empty() || view.distance(0, 1) == 20);
    for vcpu in [0, 1, view.vcpus, u32::MAX] {
        let [_, die, module, core, thread] = view.levels.of(vcpu);
        let levels = view.levels;
        assert!(
            die < levels.dies && module < levels.modules && core < levels.cores && thread < levels.threads
        );
        let node = view.node_of(vcpu);
        assert!(node == 0 || view.nodes.contains_key(&node));
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::bytes;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_mappings_or_none(
            data in bytes(), text in "\\PC{0,200}",
            numa in "([0-9a-f]{1,12} (default|bind:[0-9]|interleave:0-1)( N[0-9]{1,3}=[0-9]{1,21}| file=/x| kernelpagesize_kB=[0-9]{1,20}){0,4}\n){0,4}",
            maps in "([0-9a-f]{1,13}000-[0-9a-f]{1,13}000 rw-[ps] [0-9a-f]{1,17} 00:01 [0-9]{1,21}( /memfd:x)?\n){0,4}",
        ) {
            mappings(&data);
            for text in [text, numa, maps] {
                mappings(text.as_bytes());
            }
        }

        #[test]
        fn any_command_line_is_a_view(
            data in bytes(),
            words in "((-smp|-numa|-m|-object|-machine|-cpu|-device|-qmp|-mem-path)\0((cpus|sockets|cores|threads|maxcpus|nodeid|node|cpu|dist|src|dst|val|id|size|host-nodes|memdev)=?(0-3|[0-9]{1,11}|on|a|,,|,|M|\\{)){0,9}\0){0,6}",
        ) {
            command_line(&data);
            command_line(words.as_bytes());
        }
    }
}
