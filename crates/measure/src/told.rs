// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the processor says of itself by CPUID: vendor, model, caches, TLBs, hypervisor.
//!
//! Under a hypervisor these are the hypervisor's words; they are used where measuring cannot tell, and
//! labelled so. Leaves: 0, 1, 4, 0x18 (Intel SDM vol. 2A, CPUID), 0x8000_0005, 0x8000_0006, 0x8000_001D,
//! 0x8000_0021 (AMD APM vol. 3, appendix E.4).

use bifold_model::CpuId;
use schemars::JsonSchema;
use serde::Serialize;

/// A level of the data caches by CPUID.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ToldCache {
    /// Number of the level, 1 to 3.
    pub level: u8,
    /// Capacity. Unit: bytes.
    pub bytes: u64,
    /// Ways of associativity.
    pub ways: u64,
    /// Whether the level holds all that lower levels hold.
    pub inclusive: bool,
    /// Processors that share the level.
    pub sharing: u64,
}

/// A TLB array for one page size.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ToldTlb {
    /// Number of the level, 1 or 2.
    pub level: u8,
    /// Whether the array holds translations of data.
    pub data: bool,
    /// Whether the array holds translations of code.
    pub code: bool,
    /// Page size: `4K`, `2M` or `1G`.
    pub size: &'static str,
    /// Number of entries.
    pub entries: u64,
    /// Ways of associativity; 0 if the array is fully associative.
    pub ways: u64,
}

/// What CPUID has of the processor.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Told {
    /// Vendor: `GenuineIntel`, `AuthenticAMD`, ...
    pub vendor: String,
    /// Family, extended family added.
    pub family: u32,
    /// Model, extended model added.
    pub model: u32,
    /// Stepping.
    pub stepping: u32,
    /// The name in the processor's or the hypervisor's words.
    pub name: String,
    /// The hypervisor's signature; null if no hypervisor shows itself (leaf 1, ECX bit 31).
    pub hypervisor: Option<String>,
    /// Data caches, first level first.
    pub caches: Vec<ToldCache>,
    /// TLB arrays.
    pub tlbs: Vec<ToldTlb>,
}

/// A processor's CPUID, by leaf and sub-leaf: EAX, EBX, ECX, EDX.
pub type Cpuid<'a> = &'a dyn Fn(u32, u32) -> [u32; 4];

impl Told {
    /// Asks the processor.
    pub fn ask(cpuid: Cpuid) -> Told {
        let [highest, b, c, d] = cpuid(0, 0);
        let [signature, _, features, _] = cpuid(1, 0);
        let [extended, ..] = cpuid(0x8000_0000, 0);
        let vendor = letters(&[b, d, c]);
        let base = signature >> 8 & 0xf;
        let family = if base == 0xf { base + (signature >> 20 & 0xff) } else { base };
        let high_model = if matches!(base, 6 | 0xf) { signature >> 12 & 0xf0 } else { 0 };
        let brand = (0x8000_0002..=0x8000_0004).flat_map(|leaf| cpuid(leaf, 0));
        let name = if extended >= 0x8000_0004 { letters(&brand.collect::<Vec<_>>()) } else { String::new() };
        let hypervisor = (features >> 31 == 1).then(|| {
            let [_, b, c, d] = cpuid(0x4000_0000, 0);
            letters(&[b, c, d])
        });
        let amd = matches!(&vendor[..], "AuthenticAMD" | "HygonGenuine");
        let caches = match amd {
            true if extended >= 0x8000_001d => caches(cpuid, 0x8000_001d),
            true if extended >= 0x8000_0006 => old_amd_caches(cpuid),
            false if highest >= 4 => caches(cpuid, 4),
            _ => Vec::new(),
        };
        // AMD before Zen has no cache leaf that is filled in.
        let caches = if amd && caches.is_empty() { old_amd_caches(cpuid) } else { caches };
        let tlbs = match amd {
            true if extended >= 0x8000_0006 => amd_tlbs(cpuid, extended),
            false if highest >= 0x18 => intel_tlbs(cpuid),
            _ => Vec::new(),
        };
        let (model, stepping) = ((signature >> 4 & 0xf) + high_model, signature & 0xf);
        Told { vendor, family, model, stepping, name, hypervisor, caches, tlbs }
    }

    /// Which processor it is.
    pub fn id(&self) -> CpuId {
        CpuId {
            vendor: self.vendor.clone(),
            family: self.family,
            model: self.model,
            stepping: self.stepping,
            name: self.name.clone(),
            guest: self.hypervisor.is_some(),
        }
    }

    /// The TLB array of a level, for data or for code, for a page size.
    pub fn tlb(&self, level: u8, data: bool, size: &str) -> Option<&ToldTlb> {
        self.tlbs.iter().find(|t| t.level == level && (if data { t.data } else { t.code }) && t.size == size)
    }

    /// Whether the vendor's processors are AMD's.
    pub fn is_amd(&self) -> bool {
        matches!(&self.vendor[..], "AuthenticAMD" | "HygonGenuine")
    }
}

/// Text in registers, low byte first, up to the first zero byte.
fn letters(registers: &[u32]) -> String {
    let bytes = registers.iter().flat_map(|r| r.to_le_bytes()).take_while(|b| *b != 0);
    let text: String = bytes.map(|b| if b.is_ascii_graphic() { b as char } else { ' ' }).collect();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Leaf 4, and AMD's with the same layout.
fn caches(cpuid: Cpuid, leaf: u32) -> Vec<ToldCache> {
    let mut found = Vec::new();
    for sub in 0..8 {
        let [a, b, sets, d] = cpuid(leaf, sub);
        match a & 0x1f {
            0 => break,
            2 => continue, // code
            _ => {}
        }
        let ways = u64::from(b >> 22) + 1;
        let partitions = u64::from(b >> 12 & 0x3ff) + 1;
        let line = u64::from(b & 0xfff) + 1;
        found.push(ToldCache {
            level: (a >> 5 & 7) as u8,
            bytes: ways * partitions * line * (u64::from(sets) + 1),
            ways,
            inclusive: d & 2 != 0,
            sharing: u64::from(a >> 14 & 0xfff) + 1,
        });
    }
    found
}

/// AMD's first form of cache descriptions.
fn old_amd_caches(cpuid: Cpuid) -> Vec<ToldCache> {
    let l1 = cpuid(0x8000_0005, 0)[2];
    let [_, _, l2, l3] = cpuid(0x8000_0006, 0);
    let level = |level, bytes: u32, ways: u64, sharing| {
        let bytes = u64::from(bytes) << 10;
        (bytes > 0).then_some(ToldCache { level, bytes, ways, inclusive: false, sharing })
    };
    let code = |c: u32| amd_ways(c & 0xf).unwrap_or(0);
    let all = [
        level(1, l1 >> 24, u64::from(l1 >> 16 & 0xff), 1),
        level(2, l2 >> 16, code(l2 >> 12), 1),
        level(3, (l3 >> 18) * 512, code(l3 >> 12), 2),
    ];
    all.into_iter().flatten().collect()
}

/// The coded associativity of leaf 0x8000_0006; 0 = fully associative.
fn amd_ways(code: u32) -> Option<u64> {
    Some(match code {
        1..=3 => code.into(),
        4 => 4,
        5 => 6,
        6 => 8,
        8 => 16,
        10 => 32,
        11 => 48,
        12 => 64,
        13 => 96,
        14 => 128,
        15 => 0,
        _ => return None,
    })
}

fn amd_tlbs(cpuid: Cpuid, extended: u32) -> Vec<ToldTlb> {
    let mut found = Vec::new();
    let [l1_2m, l1_4k, ..] = cpuid(0x8000_0005, 0);
    for (register, size) in [(l1_4k, "4K"), (l1_2m, "2M")] {
        for (half, data) in [(register >> 16, true), (register & 0xffff, false)] {
            let (entries, ways) = (u64::from(half & 0xff), u64::from(half >> 8 & 0xff));
            if entries > 0 && ways > 0 {
                let ways = if ways == 0xff { 0 } else { ways };
                found.push(ToldTlb { level: 1, data, code: !data, size, entries, ways });
            }
        }
    }
    // Entries come in units of 32 where 12 bits do not hold them: 0x8000_0021 EAX bit 14, L2TlbSizeX32.
    let unit = if extended >= 0x8000_0021 && cpuid(0x8000_0021, 0)[0] >> 14 & 1 == 1 { 32 } else { 1 };
    let [l2_2m, l2_4k, ..] = cpuid(0x8000_0006, 0);
    for (register, size) in [(l2_4k, "4K"), (l2_2m, "2M")] {
        for (half, data) in [(register >> 16, true), (register & 0xffff, false)] {
            let entries = u64::from(half & 0xfff) * unit;
            if let (true, Some(ways)) = (entries > 0, amd_ways(half >> 12)) {
                found.push(ToldTlb { level: 2, data, code: !data, size, entries, ways });
            }
        }
    }
    found
}

fn intel_tlbs(cpuid: Cpuid) -> Vec<ToldTlb> {
    let mut found = Vec::new();
    let most = cpuid(0x18, 0)[0].min(32);
    for sub in 0..=most {
        let [_, b, sets, d] = cpuid(0x18, sub);
        let (data, code) = match d & 0x1f {
            1 | 4 => (true, false), // data, or loads only
            2 => (false, true),
            3 => (true, true),
            _ => continue, // none, or stores only
        };
        let ways = u64::from(b >> 16);
        let full = d >> 8 & 1 == 1;
        for (bit, size) in [(0, "4K"), (1, "2M"), (3, "1G")] {
            if b >> bit & 1 == 1 {
                let entries = ways * u64::from(sets);
                let ways = if full { 0 } else { ways };
                found.push(ToldTlb { level: (d >> 5 & 7) as u8, data, code, size, entries, ways });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An EPYC of family 1Ah in a guest of KVM, as its CPUID prints.
    fn epyc(leaf: u32, sub: u32) -> [u32; 4] {
        match (leaf, sub) {
            (0, _) => [0x1c, 0x6874_7541, 0x444d_4163, 0x6974_6e65],
            (1, _) => [0x00b0_0f21, 0x0002_0800, 0xfffa_3203, 0x178b_fbff],
            (0x4000_0000, _) => [0x4000_0001, 0x4b4d_564b, 0x564b_4d56, 0x4d],
            (0x8000_0000, _) => [0x8000_0021, 0x6874_7541, 0x444d_4163, 0x6974_6e65],
            (0x8000_0002, _) => [0x2044_4d41, 0x4359_5045, 0, 0],
            (0x8000_0005, _) => [0xff60_ff40, 0xff60_ff40, 0x300c_0140, 0x2008_0140],
            (0x8000_0006, _) => [0x4080_2040, 0x6080_4040, 0x0400_8140, 0x0c00_9140],
            (0x8000_001d, 0) => [0x121, 0x02c0_003f, 0x3f, 0],
            (0x8000_001d, 1) => [0x122, 0x01c0_003f, 0x3f, 0],
            (0x8000_001d, 2) => [0x143, 0x03c0_003f, 0x3ff, 2],
            (0x8000_001d, 3) => [0x4163, 0x03c0_003f, 0x7fff, 1],
            (0x8000_0021, _) => [1 << 14, 0, 0, 0],
            _ => [0; 4],
        }
    }

    #[test]
    fn an_epyc_tells_its_caches_and_tlbs() {
        let told = Told::ask(&epyc);
        assert_eq!(
            (&told.vendor[..], told.family, told.model, told.stepping, &told.name[..]),
            ("AuthenticAMD", 0x1a, 2, 1, "AMD EPYC")
        );
        assert!(told.id().guest);
        assert_eq!(told.hypervisor.as_deref(), Some("KVMKVMKVM"));
        let caches: Vec<_> =
            told.caches.iter().map(|c| (c.level, c.bytes >> 10, c.ways, c.inclusive)).collect();
        assert_eq!(caches, [(1, 48, 12, false), (2, 1024, 16, true), (3, 32768, 16, false)]);
        let tlb = |level, data, size| told.tlb(level, data, size).map(|t| (t.entries, t.ways));
        assert_eq!(tlb(1, true, "4K"), Some((96, 0)));
        assert_eq!(tlb(1, false, "2M"), Some((64, 0)));
        assert_eq!(tlb(2, true, "4K"), Some((4096, 8)));
        assert_eq!(tlb(2, false, "4K"), Some((2048, 4)));
        assert_eq!(tlb(2, true, "1G"), None);
    }

    #[test]
    fn an_intel_core_tells_its_tlbs_by_leaf_18() {
        // L1 data: 4 KB, 16 ways, 4 sets; L2: 4 KB and 2 MB, 8 ways, 128 sets.
        let core = |leaf: u32, sub: u32| match (leaf, sub) {
            (0, _) => [0x20, 0x756e_6547, 0x6c65_746e, 0x4965_6e69],
            (1, _) => [0x0008_06f8, 0, 0, 0],
            (4, 0) => [0x1c00_4121, 0x02c0_003f, 0x3f, 0],
            (4, 1) => [0x1c00_4122, 0x01c0_003f, 0x3f, 0],
            (0x18, 0) => [2, 0, 0, 0],
            (0x18, 1) => [0, 4 << 16 | 1, 16, 1 << 5 | 4],
            (0x18, 2) => [0, 8 << 16 | 3, 128, 2 << 5 | 3],
            _ => [0; 4],
        };
        let told = Told::ask(&core);
        assert_eq!((&told.vendor[..], told.family, told.model), ("GenuineIntel", 6, 0x8f));
        assert_eq!(told.hypervisor, None);
        assert_eq!(told.caches.len(), 1);
        assert_eq!(told.tlb(1, true, "4K").map(|t| (t.entries, t.ways)), Some((64, 4)));
        assert_eq!(told.tlb(2, false, "2M").map(|t| (t.entries, t.ways)), Some((1024, 8)));
    }

    #[test]
    fn a_processor_that_tells_nothing_has_nothing() {
        let told = Told::ask(&|_, _| [0; 4]);
        assert_eq!(told, Told::default());
    }

    #[test]
    fn cores_before_zen_tell_their_caches_in_the_old_form() {
        // Phenom II: 64 KB of 2 ways, 512 KB of 16 ways, 6 MB of 48 ways.
        let phenom = |leaf: u32, _| match leaf {
            0 => [5, 0x6874_7541, 0x444d_4163, 0x6974_6e65],
            0x8000_0000 => [0x8000_001b, 0, 0, 0],
            0x8000_0005 => [0xff30_ff10, 0xff30_ff20, 0x4002_0140, 0x4002_0140],
            0x8000_0006 => [0x2080_0000, 0x4200_4200, 0x0200_8140, 0x0030_b140],
            _ => [0; 4],
        };
        let told = Told::ask(&phenom);
        let caches: Vec<_> = told.caches.iter().map(|c| (c.level, c.bytes >> 10, c.ways)).collect();
        assert_eq!(caches, [(1, 64, 2), (2, 512, 16), (3, 6144, 48)]);
        assert_eq!(told.tlb(2, true, "2M").map(|t| (t.entries, t.ways)), Some((128, 2)));
    }
}
