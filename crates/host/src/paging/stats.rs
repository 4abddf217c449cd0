// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses `paging_stats`: KVM's counts and times of a VM's switches.

/// Unit of a [`Stat`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub enum Unit {
    Count,
    Nanoseconds,
}

/// The span that a [`Stat`] describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Of {
    /// The VM's life, or now.
    Life,
    /// The VM's life: a part of the sum before it, by reason.
    Part,
    /// The last switch.
    Last,
    /// The worst of all switches.
    Worst,
}

/// Name, unit and meaning of one figure of [`PagingStats`].
#[derive(Debug, Clone, Copy)]
pub struct Stat {
    /// Name in KVM's file and in JSON.
    pub name: &'static str,
    /// Unit.
    pub unit: Unit,
    /// The span that the figure describes.
    pub of: Of,
    /// Label in tables. The figures of the last and of the worst switch have the same label.
    pub label: &'static str,
}

macro_rules! stats {
    ($( $name:ident : $unit:ident of $of:ident = $label:literal ),* $(,)?) => {
        /// The figures of `paging_stats`; `None` where the file lacks one.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub struct PagingStats {
            $( #[doc = concat!("Of ", stringify!($of), ", in ", stringify!($unit), ": ", $label, ".")] pub $name: Option<u64>, )*
        }

        impl PagingStats {
            /// Every figure, in the order of the file.
            pub const STATS: &'static [Stat] = &[
                $( Stat { name: stringify!($name), unit: Unit::$unit, of: Of::$of, label: $label } ),*
            ];

            /// The figures' values, in the order of [`PagingStats::STATS`].
            pub fn values(&self) -> [Option<u64>; PagingStats::STATS.len()] {
                [ $( self.$name ),* ]
            }

            fn field(&mut self, name: &str) -> Option<&mut Option<u64>> {
                match name {
                    $( stringify!($name) => Some(&mut self.$name), )*
                    _ => None,
                }
            }
        }
    };
}

stats! {
    switches_to_shadow: Count of Life = "switches to shadow mode",
    switches_to_nested: Count of Life = "switches to nested mode",
    switches_by_guest: Count of Life = "switches that the guest caused",
    back_for_memory: Count of Part = "switches back for lack of memory",
    by_guest_failed: Count of Life = "guest-caused switches that failed",
    refused: Count of Life = "switches refused",
    refused_host: Count of Part = "refused: this host has one paging mode",
    refused_encrypted: Count of Part = "refused: encrypted or private memory",
    refused_dma: Count of Part = "refused: assigned device without coherent DMA",
    refused_tss: Count of Part = "refused: KVM_SET_TSS_ADDR was not called",
    refused_hypervisor: Count of Part = "refused: the guest is a hypervisor",
    refused_keys: Count of Part = "refused: protection keys without CR0.WP",
    refused_smm: Count of Part = "refused: system management mode",
    refused_real_mode: Count of Part = "refused: a vCPU without paging",
    rolled_back: Count of Life = "switches rolled back",
    timed_out: Count of Part = "rolled back: vCPUs did not stop in time",
    interrupted: Count of Part = "rolled back: the request was interrupted",
    no_memory: Count of Part = "rolled back: the host had too little memory",
    vcpus: Count of Life = "vCPUs",
    vcpus_in_guest_last: Count of Last = "vCPUs found in the guest",
    quiesce_ns_last: Nanoseconds of Last = "quiesce: from the request until every vCPU is parked",
    quiesce_ns_worst: Nanoseconds of Worst = "quiesce: from the request until every vCPU is parked",
    switch_ns_last: Nanoseconds of Last = "switch: modes flipped, shadow pages retired",
    switch_ns_worst: Nanoseconds of Worst = "switch: modes flipped, shadow pages retired",
    resume_ns_last: Nanoseconds of Last = "resume: until every vCPU is on its way again",
    resume_ns_worst: Nanoseconds of Worst = "resume: until every vCPU is on its way again",
    drop_ns_last: Nanoseconds of Last = "drop: retired shadow pages, while the guest runs",
    drop_ns_worst: Nanoseconds of Worst = "drop: retired shadow pages, while the guest runs",
    tables_kept: Count of Last = "pages of nested tables kept",
    tables_dropped: Count of Last = "pages of nested tables dropped",
    shadow_pages: Count of Life = "shadow pages in use",
    shadow_pages_dropped: Count of Last = "shadow pages dropped",
}

impl PagingStats {
    /// Parses the file. Unknown lines are skipped, and so is a last line without a line feed, because its
    /// number may have lost digits.
    pub fn parse(bytes: &[u8]) -> PagingStats {
        let mut stats = PagingStats::default();
        let lines = bytes.split_inclusive(|b| *b == b'\n').filter_map(|l| l.strip_suffix(b"\n"));
        for line in lines.filter_map(|l| std::str::from_utf8(l).ok()) {
            let mut words = line.split_ascii_whitespace();
            if let (Some(name), Some(value), None) = (words.next(), words.next(), words.next()) {
                if let (Some(field @ None), Some(value)) = (stats.field(name), decimal(value)) {
                    *field = Some(value);
                }
            }
        }
        stats
    }

    /// The known figures with their names.
    pub fn known(&self) -> impl Iterator<Item = (&'static str, u64)> {
        PagingStats::STATS.iter().zip(self.values()).filter_map(|(stat, value)| Some((stat.name, value?)))
    }

    /// How often KVM itself ended a stay in shadow paging: the guest began to use what only nested paging
    /// has, or there was too little memory. `None` if KVM counts neither.
    pub fn returns(&self) -> Option<u64> {
        let counts = [self.switches_by_guest, self.back_for_memory];
        let known = || counts.into_iter().flatten();
        known().next().map(|_| known().fold(0, u64::saturating_add))
    }

    /// Number of switches in both directions.
    pub fn switches(&self) -> Option<u64> {
        self.switches_to_shadow?.checked_add(self.switches_to_nested?)
    }
}

/// Parses digits only; `str::parse` would accept a sign.
pub(super) fn decimal(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}
