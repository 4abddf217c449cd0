// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The unstable tree: single pages of this pass, in order of their contents (`root_unstable_tree`).
//!
//! It is a red-black tree as in the kernel (`lib/rbtree.c`), because the shape matters: a search reads the
//! page of every node on its way, and ends without a result at a node whose page has gone
//! (`unstable_tree_search_insert`, `get_mergeable_page`). A node's place decides which searches visit it.

use std::cmp::Ordering;

/// Stands for no node, and is black.
const NIL: u32 = 0;

#[derive(Debug, Clone, Copy)]
struct Node {
    page: u32,
    parent: u32,
    /// Left and right.
    child: [u32; 2],
    red: bool,
}

/// Where a search ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// At a page with this content.
    Found(u32),
    /// At a page that has gone.
    Lost,
    /// Where the page belongs.
    Free(Place),
}

/// Below a node, or the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    parent: u32,
    side: usize,
}

/// The tree, empty at the start of each pass.
#[derive(Debug)]
pub(super) struct UnstableTree {
    nodes: Vec<Node>,
    root: u32,
}

impl UnstableTree {
    pub fn new() -> UnstableTree {
        let nil = Node { page: u32::MAX, parent: NIL, child: [NIL; 2], red: false };
        UnstableTree { nodes: vec![nil], root: NIL }
    }

    /// Empties the tree for another pass.
    pub fn clear(&mut self) {
        self.nodes.truncate(1);
        self.root = NIL;
    }

    /// Searches for the place of a page in the tree.
    pub fn search(&self, mut compare: impl FnMut(u32) -> Option<Ordering>) -> End {
        let (mut at, mut place) = (self.root, Place { parent: NIL, side: 0 });
        while at != NIL {
            let node = &self.nodes[at as usize];
            let side = match compare(node.page) {
                None => return End::Lost,
                Some(Ordering::Equal) => return End::Found(node.page),
                Some(Ordering::Less) => 0,
                Some(Ordering::Greater) => 1,
            };
            place = Place { parent: at, side };
            at = node.child[side];
        }
        End::Free(place)
    }

    /// Whether a page is in this pass's tree as this node.
    pub fn holds(&self, node: u32, page: u32) -> bool {
        self.nodes.get(node as usize).is_some_and(|n| n.page == page)
    }

    /// Puts a page where its search ended. Returns the number of its node.
    pub fn insert(&mut self, page: u32, place: Place) -> u32 {
        let new = self.nodes.len() as u32;
        self.nodes.push(Node { page, parent: place.parent, child: [NIL; 2], red: true });
        match place.parent {
            NIL => self.root = new,
            parent => self.nodes[parent as usize].child[place.side] = new,
        }
        let mut at = new;
        while self.red(self.parent(at)) {
            let parent = self.parent(at);
            let above = self.parent(parent);
            let side = self.side(parent);
            let uncle = self.child(above, 1 - side);
            if self.red(uncle) {
                self.paint(parent, false);
                self.paint(uncle, false);
                self.paint(above, true);
                at = above;
                continue;
            }
            if self.side(at) != side {
                at = parent;
                self.rotate(at, side);
            }
            self.paint(self.parent(at), false);
            self.paint(above, true);
            self.rotate(above, 1 - side);
        }
        self.paint(self.root, false);
        new
    }

    /// Takes a node out.
    pub fn erase(&mut self, node: u32) {
        let children = self.nodes[node as usize].child;
        let (moved, was_red);
        if children[0] == NIL || children[1] == NIL {
            moved = if children[0] == NIL { children[1] } else { children[0] };
            was_red = self.red(node);
            self.replace(node, moved);
        } else {
            // The next in order takes its place and colour.
            let mut next = children[1];
            while self.child(next, 0) != NIL {
                next = self.child(next, 0);
            }
            was_red = self.red(next);
            moved = self.child(next, 1);
            if self.parent(next) == node {
                self.nodes[moved as usize].parent = next;
            } else {
                self.replace(next, moved);
                self.adopt(next, 1, children[1]);
            }
            self.replace(node, next);
            self.adopt(next, 0, children[0]);
            self.paint(next, self.red(node));
        }
        self.nodes[node as usize].page = u32::MAX;
        if !was_red {
            self.mend(moved);
        }
    }

    /// One black node is missing on the way to this one.
    fn mend(&mut self, mut at: u32) {
        while at != self.root && !self.red(at) {
            let parent = self.parent(at);
            let side = usize::from(self.child(parent, 1) == at);
            let mut sibling = self.child(parent, 1 - side);
            if self.red(sibling) {
                self.paint(sibling, false);
                self.paint(parent, true);
                self.rotate(parent, side);
                sibling = self.child(parent, 1 - side);
            }
            if !self.red(self.child(sibling, 0)) && !self.red(self.child(sibling, 1)) {
                self.paint(sibling, true);
                at = parent;
                continue;
            }
            if !self.red(self.child(sibling, 1 - side)) {
                self.paint(self.child(sibling, side), false);
                self.paint(sibling, true);
                self.rotate(sibling, 1 - side);
                sibling = self.child(parent, 1 - side);
            }
            self.paint(sibling, self.red(parent));
            self.paint(parent, false);
            self.paint(self.child(sibling, 1 - side), false);
            self.rotate(parent, side);
            at = self.root;
        }
        self.paint(at, false);
    }

    /// Takes a node down on a side; its child on the other comes up.
    fn rotate(&mut self, node: u32, side: usize) {
        let up = self.child(node, 1 - side);
        self.replace(node, up);
        let between = self.child(up, side);
        self.nodes[node as usize].child[1 - side] = between;
        if between != NIL {
            self.nodes[between as usize].parent = node;
        }
        self.adopt(up, side, node);
    }

    /// Another in a node's place below its parent.
    fn replace(&mut self, node: u32, by: u32) {
        let parent = self.parent(node);
        if parent == NIL {
            self.root = by;
        } else {
            let side = self.side(node);
            self.nodes[parent as usize].child[side] = by;
        }
        // Of NIL, too: from there the tree is mended.
        self.nodes[by as usize].parent = parent;
    }

    fn adopt(&mut self, parent: u32, side: usize, child: u32) {
        self.nodes[parent as usize].child[side] = child;
        self.nodes[child as usize].parent = parent;
    }

    fn parent(&self, node: u32) -> u32 {
        self.nodes[node as usize].parent
    }

    fn child(&self, node: u32, side: usize) -> u32 {
        self.nodes[node as usize].child[side]
    }

    /// On which side of its parent a node is.
    fn side(&self, node: u32) -> usize {
        usize::from(self.child(self.parent(node), 1) == node)
    }

    fn red(&self, node: u32) -> bool {
        self.nodes[node as usize].red
    }

    fn paint(&mut self, node: u32, red: bool) {
        self.nodes[node as usize].red = red;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    impl UnstableTree {
        /// Pages in order, and the black nodes on every way from here to a leaf.
        fn audit(&self, at: u32, pages: &mut Vec<u32>) -> u32 {
            if at == NIL {
                assert!(!self.red(NIL));
                return 1;
            }
            let [left, right] = self.nodes[at as usize].child;
            for child in [left, right] {
                assert!(child == NIL || self.parent(child) == at);
                assert!(!(self.red(at) && self.red(child)), "two red nodes in a row");
            }
            let black = self.audit(left, pages);
            pages.push(self.nodes[at as usize].page);
            assert_eq!(black, self.audit(right, pages), "as many black nodes on both sides");
            black + u32::from(!self.red(at))
        }
    }

    proptest! {
        #[test]
        fn it_is_a_red_black_tree_in_order(steps in proptest::collection::vec((0..60_u32, any::<bool>()), 1..200)) {
            let mut tree = UnstableTree::new();
            let mut reference = BTreeMap::new();
            for (page, put) in steps {
                let end = tree.search(|other| Some(page.cmp(&other)));
                match (reference.get(&page).copied(), end) {
                    (Some(node), End::Found(found)) => {
                        prop_assert_eq!(found, page);
                        prop_assert!(tree.holds(node, page));
                        if !put {
                            tree.erase(node);
                            reference.remove(&page);
                            prop_assert!(!tree.holds(node, page));
                        }
                    }
                    (None, End::Free(place)) => {
                        if put {
                            reference.insert(page, tree.insert(page, place));
                        }
                    }
                    (known, end) => prop_assert!(false, "{:?} {:?}", known, end),
                }
                let mut pages = Vec::new();
                tree.audit(tree.root, &mut pages);
                prop_assert!(!tree.red(tree.root));
                prop_assert_eq!(pages, reference.keys().copied().collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_search_ends_at_a_page_that_has_gone() {
        let mut tree = UnstableTree::new();
        // As they come, 20 is the root of 10 and 30.
        for page in [10, 20, 30] {
            let End::Free(place) = tree.search(|other| Some(page.cmp(&other))) else { panic!() };
            tree.insert(page, place);
        }
        let search = |page: u32| tree.search(|other| (other != 10).then(|| page.cmp(&other)));
        assert_eq!((search(10), search(15), search(20)), (End::Lost, End::Lost, End::Found(20)));
        assert!(matches!(search(25), End::Free(_)));
    }
}
