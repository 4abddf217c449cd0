// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The figures of a VM or vCPU over an interval. Each has its name, unit and meaning here; tables, CSV, JSON
//! lines and Parquet take them from [`all`].

use crate::advice::{Advice, advise, paging_cycles};
use crate::figures::Figures;
use crate::hardware::HardwareCounts;
use crate::measured::Measured;
use crate::reporter::GuestInterval;
use crate::row::IntervalRow;
use bifold_host::exit_counts::reasons;
use bifold_host::{Backing, Kind, Statistic, Vendor, printable};
use bifold_model::Sample;
use bifold_policy::Mode;
pub use bifold_table::{Kind as Type, Value};
use std::borrow::Cow;

/// A figure.
#[derive(Debug, Clone)]
pub struct Column {
    /// Name in every output.
    pub name: Cow<'static, str>,
    /// Unit; `1` for counts and shares, empty for names.
    pub unit: &'static str,
    /// Meaning.
    pub doc: &'static str,
    /// Type of its values.
    pub kind: Type,
    figure: Figure,
}

#[derive(Debug, Clone, Copy)]
enum Figure {
    Row(for<'a> fn(&'a IntervalRow) -> Value<'a>),
    /// A counter of the model, by its place.
    Counter(usize),
    Statistic(Statistic),
    /// Exits of a reason, by its number.
    Reason(u32),
    /// Exits of all other reasons.
    OtherReasons(Vendor),
}

impl Column {
    const fn new(
        name: &'static str,
        unit: &'static str,
        kind: Type,
        doc: &'static str,
        figure: for<'a> fn(&'a IntervalRow) -> Value<'a>,
    ) -> Column {
        Column { name: Cow::Borrowed(name), unit, doc, kind, figure: Figure::Row(figure) }
    }

    /// The value of this figure in a row.
    pub fn value<'a>(&self, row: &'a IntervalRow) -> Value<'a> {
        match self.figure {
            Figure::Row(value) => value(row),
            Figure::Counter(place) if row.measured.known.contains(place) => {
                Value::Count(row.measured.sample.values()[place])
            }
            Figure::Counter(_) => Value::Unknown,
            // KVM's statistics are sums over all vCPUs.
            Figure::Statistic(_) if row.vcpu.is_some() => Value::Unknown,
            Figure::Statistic(s) => row.interval.statistics.get(s).into(),
            Figure::Reason(number) => row.exits(|n| n == u64::from(number)).into(),
            Figure::OtherReasons(vendor) => {
                let known = reasons(vendor);
                row.exits(|n| known.iter().all(|(number, _)| u64::from(*number) != n)).into()
            }
        }
    }
}

const FIRST: [Column; 14] = [
    Column::new("time", "s", Type::Number, "End of the interval, since 1970-01-01.", |r| {
        Value::Number(r.time)
    }),
    Column::new("seconds", "s", Type::Number, "Length of the interval.", |r| {
        Value::Number(r.interval.seconds)
    }),
    Column::new("vm", "", Type::Text, "KVM's identifier of the VM: thread and file descriptor.", |r| {
        Value::Text(r.vm.id.to_string().into())
    }),
    Column::new("name", "", Type::Text, "The VM's name, else its process's.", |r| {
        r.vm.name.as_deref().map_or(Value::Unknown, |n| Value::Text(printable(n).into()))
    }),
    Column::new("pid", "", Type::Count, "The VM's process.", |r| Value::Count(r.vm.pid.into())),
    Column::new("vcpu", "", Type::Count, "The vCPU; unknown in the row of the whole VM.", |r| {
        r.vcpu.map(|v| u64::from(v.number)).into()
    }),
    Column::new(
        "mode",
        "",
        Type::Text,
        "The mode of paging during the whole interval; unknown if the VM was switched.",
        |r| r.interval.mode.map(Mode::name).into(),
    ),
    Column::new("load", "1", Type::Number, "Share of the interval during which vCPUs ran.", |r| {
        r.measured.load.into()
    }),
    Column::new(
        "run_ns",
        "ns",
        Type::Count,
        "Time of the vCPUs' threads on a CPU, guest and host together.",
        |r| r.vcpu.map_or(r.interval.ran_ns(), |v| v.ran_ns).into(),
    ),
    Column::new(
        "wait_ns",
        "ns",
        Type::Count,
        "Time of the vCPUs' threads ready to run while others had the CPU: the guest's steal.",
        |r| r.vcpu.map_or(r.interval.waited_ns(), |v| v.waited_ns).into(),
    ),
    Column::new(
        "cycles",
        "cycles",
        Type::Number,
        "Cycles of the vCPUs' threads, guest and host together.",
        |r| r.measured.cycles.into(),
    ),
    Column::new("ipc", "1", Type::Number, "Instructions per cycle, in the guest.", |r| {
        Figures::of(r).ipc.into()
    }),
    Column::new(
        "pmu_share",
        "1",
        Type::Number,
        "Least share of the vCPUs' time during which a hardware counter ran; the counts are scaled by it.",
        |r| r.hardware().scheduled.into(),
    ),
    Column::new(
        "pmu",
        "",
        Type::Text,
        "Where cycles, instructions, TLB misses, flushes and walk cycles come from: hardware if a PMU counted them.",
        |r| r.pmu().map_or(Value::Unknown, |words| Value::Text(words.into())),
    ),
];

const LAST: [Column; 11] = [
    Column::new(
        "reported_page_faults",
        "1",
        Type::Count,
        "Page faults that the guest's kernel handled, by a reporter inside the guest.",
        |r| r.guest().and_then(|g| g.page_faults).into(),
    ),
    Column::new(
        "reported_progress",
        "1",
        Type::Count,
        "Progress of the guest's work, by a reporter inside the guest: the sum of all names.",
        |r| r.guest().and_then(GuestInterval::all_progress).into(),
    ),
    Column::new(
        "reported_progress_by_name",
        "",
        Type::Text,
        "The same by the names that the guest's work chose, such as chase=55 tables=120.",
        |r| r.progress_by_name().map_or(Value::Unknown, |text| Value::Text(text.into())),
    ),
    Column::new(
        "backed_4k",
        "bytes",
        Type::Count,
        "Guest memory in host pages of 4 KB, looked at once a minute.",
        |r| r.backing(|b| b.small),
    ),
    Column::new("backed_2m", "bytes", Type::Count, "Guest memory in host pages of 2 MB.", |r| {
        r.backing(|b| b.huge)
    }),
    Column::new("backed_1g", "bytes", Type::Count, "Guest memory in host pages of 1 GB.", |r| {
        r.backing(|b| b.giant)
    }),
    Column::new(
        "paging_cycles",
        "cycles",
        Type::Number,
        "Cycles of page walks, and of the hypervisor for page faults and INVLPG (by their share of exits); of a VM in nested paging only with a reporter.",
        |r| r.paging().map(|(now, _)| now).into(),
    ),
    Column::new(
        "other_paging_cycles",
        "cycles",
        Type::Number,
        "Cycles that paging would probably cost in the other mode, by the built-in estimator; of a VM in nested paging only with a reporter.",
        |r| r.paging().map(|(_, (_, other))| other).into(),
    ),
    Column::new(
        "advice",
        "",
        Type::Text,
        "The change that would help the VM most, without one that KVM would refuse as far as that is known.",
        |r| r.best().map_or(Value::Unknown, |a| Value::Text(a.change.words().into())),
    ),
    Column::new(
        "advice_gain",
        "1",
        Type::Number,
        "Share of the CPU time that the change would give back.",
        |r| r.best().and_then(|a| a.gain.share()).into(),
    ),
    Column::new(
        "refusal",
        "",
        Type::Text,
        "Why KVM would refuse to switch the VM to its other mode, as in paging_refusal, or room if a cgroup leaves too little memory for shadow paging; unknown if neither, without that file, and in the daemon's recordings.",
        |r| r.vm.obstacle().filter(|_| r.vcpu.is_none()).map(|o| o.reason.word()).into(),
    ),
];

impl IntervalRow<'_> {
    /// The advice with the largest gain that KVM would not refuse, for the VM as a whole.
    fn best(&self) -> Option<Advice> {
        let all = self.vcpu.is_none().then(|| advise(self));
        all.and_then(|all| all.into_iter().find(|a| a.obstacle.is_none()))
    }

    fn paging(&self) -> Option<(f64, (Mode, f64))> {
        self.vcpu.is_none().then(|| paging_cycles(self)).flatten()
    }

    /// What the guest reported, which is of the whole VM.
    fn guest(&self) -> Option<&GuestInterval> {
        self.interval.guest.as_ref().filter(|_| self.vcpu.is_none())
    }

    fn progress_by_name(&self) -> Option<String> {
        let guest = self.guest().filter(|g| !g.progress.is_empty())?;
        Some(guest.progress.iter().map(|(name, n)| format!("{name}={n}")).collect::<Vec<_>>().join(" "))
    }

    /// Exits for these reasons.
    fn exits(&self, of: impl Fn(u64) -> bool) -> Option<u64> {
        let counts = self.vcpu.map_or(&self.interval.exits, |v| &v.exits).as_ref()?;
        let all = counts.exits.as_ref().ok()?;
        Some(all.iter().filter(|(number, _)| of(**number)).map(|(_, n)| n).sum())
    }

    /// Where the hardware counts come from; `None` if there are none.
    fn pmu(&self) -> Option<&'static str> {
        match (self.vcpu, self.interval.counted) {
            (None, Some((name, _))) => Some(name),
            _ => (self.hardware() != HardwareCounts::UNKNOWN).then_some("hardware"),
        }
    }

    fn backing(&self, of: impl Fn(&Backing) -> u64) -> Value<'_> {
        self.vm.backing.as_ref().filter(|_| self.vcpu.is_none()).map(of).into()
    }
}

/// All figures, in the order of every output: what was measured, the counters that policies see, KVM's
/// statistics, what the guest reports, what backs the memory.
pub fn all() -> Vec<Column> {
    with_reasons(None)
}

/// All figures, and exits by the reasons of a vendor's hardware, whose names begin with `reason_`.
pub fn with_reasons(vendor: Option<Vendor>) -> Vec<Column> {
    let counter = |(place, c): (usize, &'static bifold_model::Counter)| {
        let column = Column {
            name: c.name.into(),
            unit: c.unit,
            doc: c.doc,
            kind: Type::Count,
            figure: Figure::Counter(place),
        };
        Measured::possible().contains(place).then_some(column)
    };
    let counters = Sample::COUNTERS.iter().enumerate().filter_map(counter);
    let statistic = |s: &Statistic| Column {
        name: s.name().into(),
        unit: if s.kind() == Kind::Nanoseconds { "ns" } else { "1" },
        doc: s.doc(),
        kind: Type::Count,
        figure: Figure::Statistic(*s),
    };
    let known = FIRST.into_iter().chain(counters).chain(Statistic::ALL.iter().map(statistic)).chain(LAST);
    let reasons = vendor.into_iter().flat_map(of_reasons);
    known.chain(reasons).collect()
}

/// A column for each of a vendor's exit reasons.
fn of_reasons(vendor: Vendor) -> impl Iterator<Item = Column> {
    let column = |name: &str, doc, figure| Column {
        name: format!("reason_{name}").into(),
        unit: "1",
        doc,
        kind: Type::Count,
        figure,
    };
    let doc = "Exits for this reason, under the hardware's name.";
    let each = reasons(vendor).iter().map(move |(number, name)| column(name, doc, Figure::Reason(*number)));
    let other = column("other", "Exits for reasons without a name.", Figure::OtherReasons(vendor));
    each.chain([other])
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_policy::Counters;

    #[test]
    fn every_name_is_there_once() {
        let mut names: Vec<_> = with_reasons(Some(Vendor::Intel)).into_iter().map(|c| c.name).collect();
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
        assert!(
            ["instructions", "exits_violation", "pages_2m", "exits"]
                .iter()
                .all(|n| names.iter().any(|m| m == n))
        );
        // No live host counts it.
        assert!(!names.iter().any(|n| n == "root_misses"));
        assert_ne!(Measured::possible(), Counters::ALL);
    }
}
