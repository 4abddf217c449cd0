// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lines of `/proc/PID/numa_maps`: the NUMA policy of a mapping, and the nodes of its pages (numa(7)).

use std::collections::BTreeMap;

/// A mapping's policy and nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaMap {
    /// First address.
    pub start: u64,
    /// The memory policy, as the kernel writes it: `default`, `bind:1`, `interleave:0-1`.
    pub policy: String,
    /// Bytes on each node.
    pub nodes: BTreeMap<u32, u64>,
}

impl NumaMap {
    /// Parses a line; `None` if it does not describe a mapping.
    ///
    /// ```
    /// use bifold_host::placement::NumaMap;
    ///
    /// let line = "7f4000000000 bind:1 file=/memfd:m\\040x huge dirty=3 N1=3 kernelpagesize_kB=2048";
    /// let map = NumaMap::parse(line).unwrap();
    /// assert_eq!((&map.policy[..], map.nodes[&1]), ("bind:1", 6 << 20));
    /// ```
    pub fn parse(line: &str) -> Option<NumaMap> {
        let mut words = line.split_ascii_whitespace();
        let start = u64::from_str_radix(words.next()?, 16).ok()?;
        let policy = words.next()?.to_owned();
        let (mut pages, mut page) = (Vec::new(), 4096_u64);
        for word in words {
            let Some((name, value)) = word.split_once('=') else { continue };
            match (name, value.parse::<u64>()) {
                ("kernelpagesize_kB", Ok(kib)) => page = kib.saturating_mul(1024),
                (name, Ok(count)) => {
                    let node = name.strip_prefix('N').and_then(|n| n.parse::<u32>().ok());
                    pages.extend(node.map(|n| (n, count)));
                }
                _ => {}
            }
        }
        let nodes = pages.into_iter().map(|(node, count)| (node, count.saturating_mul(page))).collect();
        Some(NumaMap { start, policy, nodes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_line_that_is_none_is_no_mapping() {
        for line in ["", "x default", "7f00", "-1 default"] {
            assert_eq!(NumaMap::parse(line), None, "{line}");
        }
        let odd =
            NumaMap::parse("10 weighted=interleave:0-1 N=1 Nx=2 N3=much N4=18446744073709551615").unwrap();
        assert_eq!(odd.nodes, BTreeMap::from([(4, u64::MAX)]));
    }

    proptest! {
        #[test]
        fn a_line_reads_as_the_kernel_writes_it(
            start in 0_u64..1 << 47,
            policy in "default|bind:[0-9]|interleave:0-[1-9]|prefer:[0-9]|local",
            nodes in prop::collection::btree_map(0_u32..64, 0_u64..1 << 30, 0..5),
            kib in prop::sample::select(vec![4_u64, 2048, 1 << 20]),
        ) {
            // show_numa_map of the kernel: address, policy, kind, counts by node, page size.
            let counts: String = nodes.iter().map(|(n, c)| format!(" N{n}={c}")).collect();
            let line = format!("{start:x} {policy} anon=4 dirty=4 active=0{counts} kernelpagesize_kB={kib}");
            let bytes = nodes.iter().map(|(n, c)| (*n, c * kib * 1024)).collect();
            prop_assert_eq!(NumaMap::parse(&line), Some(NumaMap { start, policy, nodes: bytes }));
        }

        #[test]
        fn any_text_is_a_mapping_or_none(line in ".{0,120}") {
            NumaMap::parse(&line);
        }
    }
}
