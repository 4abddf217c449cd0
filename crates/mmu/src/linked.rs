// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sets of more than 4 ways in order of recency, such as the fully associative walk caches of AMD's cores. A
//! set has a signature byte per way, eight of which are compared at once, and a list of its ways from the
//! most to the least recent.

const ONES: u64 = 0x0101_0101_0101_0101;

/// One set of `ways` ways.
#[derive(Debug, Clone)]
pub(crate) struct Linked {
    /// 0 = empty way. Eight ways to a word.
    signatures: Box<[u64]>,
    keys: Box<[u64]>,
    values: Box<[u64]>,
    /// The ways before and after each way in the list, which is a ring; number `ways` stands between its
    /// ends.
    before: Box<[u32]>,
    after: Box<[u32]>,
}

/// Never 0.
#[inline(always)]
fn signature(key: u64) -> u64 {
    (key ^ key >> 7 ^ key >> 14 ^ key >> 21) & 0x7f | 0x80
}

impl Linked {
    /// The most ways: their numbers and one more fit in 32 bits.
    const MOST: usize = u32::MAX as usize;

    /// An empty set.
    pub fn new(ways: usize) -> Linked {
        assert!((1..=Linked::MOST).contains(&ways), "{ways} ways in a walk cache");
        let ring = |step: usize| (0..=ways).map(|w| ((w + step) % (ways + 1)) as u32).collect();
        Linked {
            signatures: vec![0; ways.div_ceil(8)].into(),
            keys: vec![0; ways].into(),
            values: vec![0; ways].into(),
            before: ring(ways),
            after: ring(1),
        }
    }

    #[inline(always)]
    fn end(&self) -> usize {
        self.keys.len()
    }

    /// Makes a way the most recent.
    #[inline(always)]
    fn promote(&mut self, way: usize) {
        let end = self.end();
        let first = self.after[end] as usize;
        if first == way {
            return;
        }
        let (b, a) = (self.before[way], self.after[way]);
        self.after[b as usize] = a;
        self.before[a as usize] = b;
        (self.before[way], self.after[way]) = (end as u32, first as u32);
        self.before[first] = way as u32;
        self.after[end] = way as u32;
    }

    #[inline(always)]
    fn sign(&mut self, way: usize, signature: u64) {
        let (word, shift) = (&mut self.signatures[way / 8], 8 * (way % 8));
        *word = *word & !(0xff << shift) | signature << shift;
    }

    /// The value filed under `key`, which becomes the most recent.
    #[inline]
    pub fn lookup(&mut self, key: u64) -> Option<u64> {
        let wanted = ONES * signature(key);
        for w in 0..self.signatures.len() {
            let x = self.signatures[w] ^ wanted;
            // A bit for every byte that agrees, and maybe for some above one that does.
            let mut agree = x.wrapping_sub(ONES) & !x & ONES << 7;
            while agree != 0 {
                let way = 8 * w + agree.trailing_zeros() as usize / 8;
                if self.keys.get(way) == Some(&key) && self.signatures[w] >> (8 * (way % 8)) & 0x80 != 0 {
                    self.promote(way);
                    return Some(self.values[way]);
                }
                agree &= agree - 1;
            }
        }
        None
    }

    /// Files `key`, which is not here, in place of the least recent.
    #[inline]
    pub fn insert_absent(&mut self, key: u64, value: u64) {
        let way = self.before[self.end()] as usize;
        self.sign(way, signature(key));
        (self.keys[way], self.values[way]) = (key, value);
        self.promote(way);
    }

    /// Replaces the value of the most recent key.
    pub fn replace(&mut self, value: u64) {
        self.values[self.after[self.end()] as usize] = value;
    }

    /// Is no key here?
    pub fn is_empty(&self) -> bool {
        self.signatures.iter().all(|&word| word == 0)
    }

    /// Drops every key for which `keep` is false.
    pub fn retain(&mut self, keep: impl Fn(u64) -> bool) {
        let mut dropped = Vec::new();
        let mut way = self.after[self.end()] as usize;
        while way != self.end() {
            if self.signatures[way / 8] >> (8 * (way % 8)) & 0x80 != 0 && !keep(self.keys[way]) {
                dropped.push(way);
            }
            way = self.after[way] as usize;
        }
        for way in dropped {
            self.sign(way, 0);
            self.demote(way);
        }
    }

    /// Makes a way the least recent.
    fn demote(&mut self, way: usize) {
        let end = self.end();
        self.promote(way);
        // From the list's beginning to its end: the ring turns by one.
        let (second, last) = (self.after[way] as usize, self.before[end] as usize);
        if last == way {
            return;
        }
        (self.after[end], self.before[second]) = (second as u32, end as u32);
        (self.before[way], self.after[way]) = (last as u32, end as u32);
        (self.after[last], self.before[end]) = (way as u32, way as u32);
    }
}
