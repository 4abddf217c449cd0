// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The stable tree: merged pages by content. If a content has several merged copies, the tree chooses the
//! copy that the next page joins (`stable_node_dup`, `chain_prune`, `chain`).
//!
//! A copy becomes stale when the last page that maps it is written to. Its frame is then free, but its record
//! stays until a search visits it (`ksm_get_folio`).

use std::time::Duration;

/// A merged page: a `ksm_stable_node` that is no chain.
#[derive(Debug, Clone, Copy)]
pub(super) struct Node {
    pub content: u32,
    /// `rmap_hlist_len`: pages on record. Some of them may have changed since.
    pub recorded: u32,
    /// Pages that are mapped to it.
    pub mapped: u32,
    /// Removed; its number is not used again.
    pub gone: bool,
}

impl Node {
    fn stale(&self) -> bool {
        self.mapped == 0
    }
}

/// The copies of one content.
#[derive(Debug, Clone)]
pub(super) enum Copies {
    None,
    /// One node, in the tree itself.
    One(u32),
    /// A chain. The kernel's list begins at the end of this one, where nodes are added.
    Chain {
        nodes: Vec<u32>,
        pruned: Duration,
    },
}

/// The tree's nodes and counts.
#[derive(Debug, Default)]
pub(super) struct StableTree {
    /// `max_page_sharing`.
    max: u32,
    pub nodes: Vec<Node>,
    /// By content.
    copies: Vec<Copies>,
    /// By content: copies with room, and stale ones. Where there are none of either, a walk along a
    /// chain of thousands ends as it began, and is counted but not made.
    open: Vec<u32>,
    stale: Vec<u32>,
    /// By content: copies that a search for another content visits on its way; and all of them.
    passing: Vec<u32>,
    all_passing: u64,
    pub shared: u64,
    pub sharing: u64,
    /// Contents in the tree.
    pub contents: u64,
    pub chains: u64,
    pub dups: u64,
    /// Copies that were looked at.
    pub seen: u64,
}

impl StableTree {
    pub fn new(max: u32) -> StableTree {
        StableTree { max, ..StableTree::default() }
    }

    /// Makes room for contents up to this number.
    pub fn reserve(&mut self, contents: usize) {
        if self.copies.len() < contents {
            self.copies.resize(contents, Copies::None);
            self.open.resize(contents, 0);
            self.stale.resize(contents, 0);
            self.passing.resize(contents, 0);
        }
    }

    /// Whether a page may join (`is_page_sharing_candidate`), after `more` others.
    fn has_room(&self, node: u32, more: u32) -> bool {
        let recorded = self.nodes[node as usize].recorded;
        recorded > 0 && recorded + more < self.max
    }

    /// Changes a node and updates the record of its content's copies.
    fn alter(&mut self, node: u32, change: impl FnOnce(&mut Node)) {
        let max = self.max;
        let of = |n: &Node| {
            let open = !n.gone && n.recorded > 0 && n.recorded < max;
            (u32::from(open), u32::from(!n.gone && n.stale()))
        };
        let node = &mut self.nodes[node as usize];
        let before = of(node);
        change(node);
        let (after, content) = (of(node), node.content as usize);
        self.open[content] = self.open[content] + after.0 - before.0;
        self.stale[content] = self.stale[content] + after.1 - before.1;
    }

    /// A node on which a page of this content may be recorded. A page that finds copies, but none with
    /// room, goes on to the unstable tree as one that finds none.
    pub fn search(&mut self, content: u32, now: Duration, prune: Duration) -> Option<u32> {
        self.seen += self.seen_in_passing(content);
        let node = self.look(content, now, Some(prune));
        self.pass_differently(content);
        node.filter(|n| self.has_room(*n, 0))
    }

    /// Copies of other contents that a search visits on its way: each chain on the way is walked up to its
    /// first copy with room. There is no tree here, so the contents on the way are unknown, and this is the
    /// mean (without the walks through whole chains every `chains_prune`). In a balanced tree of n contents,
    /// the way to a leaf passes log2(n + 1) contents, and the way to a content passes log2(n + 1) (1 + 1/n) -
    /// 2 others.
    fn seen_in_passing(&self, content: u32) -> u64 {
        let n = self.contents as f64;
        let levels = (n + 1.0).log2();
        let (others, passed) = match self.copies[content as usize] {
            Copies::None => (n, levels),
            _ => (n - 1.0, levels * (1.0 + 1.0 / n) - 2.0),
        };
        let copies = self.all_passing - u64::from(self.passing[content as usize]);
        if copies == 0 { 0 } else { (copies as f64 * (passed / others).min(1.0)).round() as u64 }
    }

    /// Call this when a content's copies have changed.
    fn pass_differently(&mut self, content: u32) {
        let at = content as usize;
        let copies = match &self.copies[at] {
            Copies::Chain { nodes, .. } if self.open[at] == 0 => nodes.len() as u32,
            // The way from the head is short where any have room: many have, or a search has moved one there.
            Copies::Chain { nodes, .. } => {
                nodes.iter().rev().position(|n| self.has_room(*n, 0)).map_or(0, |n| n as u32 + 1)
            }
            Copies::One(_) | Copies::None => 0,
        };
        let before = std::mem::replace(&mut self.passing[at], copies);
        self.all_passing = self.all_passing - u64::from(before) + u64::from(copies);
    }

    /// The copy that the kernel would take: any if none has room.
    fn look(&mut self, content: u32, now: Duration, prune: Option<Duration>) -> Option<u32> {
        let at = content as usize;
        match std::mem::replace(&mut self.copies[at], Copies::None) {
            Copies::None => None,
            Copies::One(node) => {
                if self.nodes[node as usize].stale() {
                    self.remove(node);
                    self.contents -= 1;
                    return None;
                }
                self.copies[at] = Copies::One(node);
                Some(node)
            }
            Copies::Chain { mut nodes, mut pruned } => {
                let all = prune.is_some_and(|p| now >= pruned + p);
                if all {
                    pruned = now;
                }
                let found = self.choose(content, &mut nodes, all);
                match (found, nodes.len()) {
                    (None, _) => {
                        (self.chains, self.contents) = (self.chains - 1, self.contents - 1);
                    }
                    (Some(node), 1) => {
                        (self.chains, self.dups) = (self.chains - 1, self.dups - 1);
                        self.copies[at] = Copies::One(node);
                    }
                    (Some(node), _) => {
                        if nodes.last() != Some(&node) && self.has_room(node, 1) {
                            // To the front, where the next search begins.
                            nodes.retain(|n| *n != node);
                            nodes.push(node);
                        }
                        self.copies[at] = Copies::Chain { nodes, pruned };
                    }
                }
                found
            }
        }
    }

    /// Walks a chain from its head: the first copy with room or, if all are to be looked at, the
    /// fullest with room. Stale ones on the way go.
    fn choose(&mut self, content: u32, nodes: &mut Vec<u32>, all: bool) -> Option<u32> {
        if (self.open[content as usize], self.stale[content as usize]) == (0, 0) {
            self.seen += nodes.len() as u64;
            return nodes.last().copied();
        }
        let mut found: Option<u32> = None;
        let mut at = nodes.len();
        while at > 0 {
            at -= 1;
            let node = nodes[at];
            self.seen += 1;
            if self.nodes[node as usize].stale() {
                self.remove(node);
                self.dups -= 1;
                nodes.remove(at);
                continue;
            }
            let room = self.has_room(node, 0);
            let recorded = |n: u32| self.nodes[n as usize].recorded;
            let better = match found {
                None => true,
                Some(f) => room && (!self.has_room(f, 0) || recorded(node) > recorded(f)),
            };
            if better {
                found = Some(node);
                if !all && room {
                    break;
                }
            }
        }
        found
    }

    /// Makes a new copy for two pages of a content (`stable_tree_insert`).
    pub fn insert(&mut self, content: u32, now: Duration) -> u32 {
        self.seen += self.seen_in_passing(content);
        self.look(content, now, None);
        let node = self.nodes.len() as u32;
        // Not stale before its first page is mapped: no search visits it until then.
        self.nodes.push(Node { content, recorded: 0, mapped: 0, gone: false });
        self.stale[content as usize] += 1;
        let at = content as usize;
        self.copies[at] = match std::mem::replace(&mut self.copies[at], Copies::None) {
            Copies::None => {
                self.contents += 1;
                Copies::One(node)
            }
            Copies::One(first) => {
                (self.chains, self.dups) = (self.chains + 1, self.dups + 2);
                Copies::Chain { nodes: vec![first, node], pruned: now }
            }
            Copies::Chain { mut nodes, pruned } => {
                self.dups += 1;
                nodes.push(node);
                Copies::Chain { nodes, pruned }
            }
        };
        self.pass_differently(content);
        node
    }

    /// Records and maps a page (`stable_tree_append`).
    pub fn append(&mut self, node: u32) {
        self.alter(node, |n| {
            n.recorded += 1;
            n.mapped += 1;
        });
        self.pass_differently(self.nodes[node as usize].content);
        if self.nodes[node as usize].recorded > 1 { self.sharing += 1 } else { self.shared += 1 }
    }

    /// Unmaps a page that was written to. It has a frame of its own again, and its record stays.
    pub fn unmap(&mut self, node: u32) {
        self.alter(node, |n| n.mapped -= 1);
    }

    /// Takes a page's record off (`remove_rmap_item_from_tree`).
    pub fn forget(&mut self, node: u32) {
        let of = self.nodes[node as usize];
        if of.gone {
            return;
        }
        if of.stale() {
            self.drop_node(of.content, node);
            return;
        }
        if of.recorded > 1 {
            self.sharing -= 1
        } else {
            self.shared -= 1
        }
        self.alter(node, |n| n.recorded -= 1);
        self.pass_differently(of.content);
    }

    /// Removes a stale node with all its records (`remove_node_from_stable_tree`).
    fn drop_node(&mut self, content: u32, node: u32) {
        self.remove(node);
        match &mut self.copies[content as usize] {
            Copies::One(n) if *n == node => {
                self.copies[content as usize] = Copies::None;
                self.contents -= 1;
            }
            Copies::Chain { nodes, .. } => {
                // A search that visits an empty chain removes it.
                nodes.retain(|n| *n != node);
                self.dups -= 1;
            }
            _ => unreachable!("a node is where its content is"),
        }
        self.pass_differently(content);
    }

    fn remove(&mut self, node: u32) {
        let recorded = self.nodes[node as usize].recorded;
        if recorded > 0 {
            self.shared -= 1;
            self.sharing -= u64::from(recorded - 1);
        }
        self.alter(node, |n| (n.recorded, n.gone) = (0, true));
    }
}

#[cfg(test)]
impl StableTree {
    /// What is kept of the copies that others look at, counted again.
    pub fn audit_passing(&self) {
        let open = |n: &u32| self.has_room(*n, 0);
        let of = |c: &Copies| match c {
            Copies::Chain { nodes, .. } => {
                let full = nodes.iter().rev().take_while(|n| !open(n)).count();
                (full + 1).min(nodes.len()) as u64
            }
            _ => 0,
        };
        assert_eq!(self.all_passing, self.copies.iter().map(of).sum::<u64>());
    }
}
