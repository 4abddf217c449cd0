// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rows of an attribution: addresses become names, and places with equal names become one row.

use crate::elf;
use crate::kernel::{self, KERNEL_MEMORY, Symbols};
use crate::space::{File, FileId};
use crate::{Attribution, Code, Key, Target};
use bifold_mmu::PageSize;
use bifold_model::{Config, Costs};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// The costs of one named place in every configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "place")]
pub struct PlaceRow {
    /// Name of the process.
    pub process: String,
    /// File name of the program or library whose code ran, `kernel`, name of a kernel module, or a name in
    /// brackets.
    pub binary: String,
    /// Name of the function; `at 0x...` if only the address is known, `?` if nothing is.
    pub function: String,
    /// What was accessed: heap, stack, anonymous memory, a file, a region of the kernel; with the guest's
    /// page size if that is not 4 KB. By cause, also what the user code faulted on or how it entered the
    /// kernel: system call, exception.
    pub mapping: String,
    /// One per configuration, in the order of `configs`.
    pub costs: Vec<Costs>,
}

/// The costs of one place for one list of callers, in every configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stack {
    /// The process, the functions that called each other, the outermost first, the function that ran and the
    /// mapping. As other tools write them: a function of the kernel ends in `_[k]`, and the binary's name in
    /// brackets is a function without a name.
    pub frames: Vec<String>,
    /// Costs in the order of [`Where::configs`].
    pub costs: Vec<Costs>,
}

/// A binary whose functions could not be looked up.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Missing {
    /// The binary's file in the guest.
    pub path: String,
    /// Why its functions have no names.
    pub why: &'static str,
}

/// The code to which a cost is charged. Views differ in the kernel's costs only, and sum to the same totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum View {
    /// The code that ran.
    Code,
    /// The user code that caused it: for the kernel's work, the code that entered the kernel.
    Cause,
}

impl View {
    /// Both views.
    pub const ALL: [View; 2] = [View::Code, View::Cause];

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            View::Code => "code",
            View::Cause => "cause",
        }
    }
}

/// Costs by process, binary, function and mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Where {
    /// The configurations.
    pub configs: Vec<Config>,
    /// By the code that ran: every place that cost anything in any configuration, sorted by name.
    pub code: Vec<PlaceRow>,
    /// The same costs by the user code that caused them.
    pub cause: Vec<PlaceRow>,
    /// Of both views, in the order of [`View::ALL`]: the same costs by callers. None unless calls were
    /// attributed.
    pub stacks: Option<[Vec<Stack>; 2]>,
    /// Binaries whose functions have no names.
    pub missing: Vec<Missing>,
}

/// The cost by which a table or a graph ranks places.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Metric {
    /// Cycles beyond the ideal run's: walks, the hypervisor, and waits for data.
    ExtraCycles,
    /// Misses of all TLB levels.
    TlbMisses,
    /// Cycles in page walks.
    WalkCycles,
    /// Exits.
    Exits,
    /// Cycles of waits for data beyond the ideal run's.
    DataWaits,
}

impl Metric {
    /// The value of the metric in these costs.
    pub fn of(self, costs: &Costs) -> i64 {
        match self {
            Metric::ExtraCycles => costs.extra_cycles(),
            Metric::TlbMisses => costs.tlb_misses as i64,
            Metric::WalkCycles => costs.walk_cycles as i64,
            Metric::Exits => costs.exits as i64,
            Metric::DataWaits => costs.data_wait_cycles,
        }
    }

    /// Name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Metric::ExtraCycles => "extra-cycles",
            Metric::TlbMisses => "tlb-misses",
            Metric::WalkCycles => "walk-cycles",
            Metric::Exits => "exits",
            Metric::DataWaits => "data-waits",
        }
    }
}

impl Where {
    /// The rows of a view.
    pub fn rows(&self, view: View) -> &[PlaceRow] {
        match view {
            View::Code => &self.code,
            View::Cause => &self.cause,
        }
    }

    /// The sum of a view's rows, per configuration. Equal for both views, but for rounding where the stream
    /// was sampled.
    pub fn totals(&self, view: View) -> Vec<Costs> {
        let mut sums = vec![Costs::default(); self.configs.len()];
        for row in self.rows(view) {
            sums.iter_mut().zip(&row.costs).for_each(|(sum, c)| sum.add(c));
        }
        sums
    }

    /// A view's rows that cost something by this metric in the configuration at this place of
    /// [`Where::configs`], the costliest first; rows of equal cost by name.
    pub fn ranked(&self, view: View, config: usize, metric: Metric) -> Vec<&PlaceRow> {
        let cost = |row: &PlaceRow| metric.of(&row.costs[config]);
        let mut rows: Vec<&PlaceRow> = self.rows(view).iter().filter(|r| cost(r) > 0).collect();
        // A stable sort: rows are in the order of their names.
        rows.sort_by_key(|r| std::cmp::Reverse(cost(r)));
        rows
    }

    /// One line per row: `process;binary;function;mapping COUNT`, for tools that draw stacks. With calls, one
    /// line per stack: `process;CALLER;...;function;mapping COUNT`.
    pub fn folded(&self, view: View, config: usize, metric: Metric) -> String {
        let mut out = String::new();
        let mut line = |names: &[&String], costs: &[Costs]| {
            let count = metric.of(&costs[config]);
            if count > 0 {
                let names: Vec<String> = names.iter().map(|n| frame(n)).collect();
                out += &format!("{} {count}\n", names.join(";"));
            }
        };
        match &self.stacks {
            Some(stacks) => {
                for s in &stacks[view as usize] {
                    line(&s.frames.iter().collect::<Vec<_>>(), &s.costs);
                }
            }
            None => {
                for r in self.rows(view) {
                    line(&[&r.process, &r.binary, &r.function, &r.mapping], &r.costs);
                }
            }
        }
        out
    }
}

/// A name as a frame of a folded stack, without the characters that separate frames and stacks.
fn frame(name: &str) -> String {
    name.chars().map(|c| if c == ';' || c.is_control() { ':' } else { c }).collect()
}

/// The part of a path behind its last slash.
fn base(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

/// A path without the suffix that the kernel appends to a deleted file.
fn live(path: &str) -> &str {
    path.strip_suffix(" (deleted)").unwrap_or(path)
}

/// The name of a mapping of this file.
fn mapping(file: &File) -> String {
    match &*file.name {
        "//anon" => "anonymous".into(),
        "[heap]" => "heap".into(),
        "[stack]" => "stack".into(),
        name if ["/memfd:", "/dev/zero", "/SYSV", "/dev/shm/"].iter().any(|p| name.starts_with(p)) => {
            "shared memory".into()
        }
        name if file.is_path() => format!("file {}", base(live(name))),
        name => name.trim_start_matches('/').into(),
    }
}

struct Names<'a> {
    attribution: &'a Attribution,
    kernel: Symbols,
    jits: BTreeMap<u32, Symbols>,
    files: BTreeMap<FileId, BTreeMap<u64, String>>,
}

impl Names<'_> {
    fn code(&self, code: Code) -> (String, String) {
        let unknown = || "?".to_string();
        let files = &self.attribution.spaces.files;
        match code {
            Code::Unknown => (unknown(), unknown()),
            Code::Idle => ("kernel".into(), "(idle)".into()),
            Code::Exec => ("kernel".into(), "(exec)".into()),
            Code::Kernel(at) => match self.kernel.at(at) {
                Some((name, Some(module))) => {
                    (format!("{}.ko", module.trim_matches(['[', ']'])), elf::demangled(name))
                }
                Some((name, None)) => ("kernel".into(), elf::demangled(name)),
                None => ("kernel".into(), unknown()),
            },
            Code::File(id, offset) => {
                let name = self.files.get(&id).and_then(|names| names.get(&offset)).cloned();
                (base(live(&files[id as usize].name)).into(), name.unwrap_or_else(unknown))
            }
            Code::Memory(file, pid, at) => match self.jits.get(&pid).and_then(|s| s.at(at)) {
                Some((name, _)) => ("[JIT]".into(), name.into()),
                None => match file.map(|f| &files[f as usize]) {
                    Some(f) if f.name.starts_with('[') => (f.name.clone(), unknown()),
                    Some(_) => ("[JIT]".into(), unknown()),
                    None => (unknown(), unknown()),
                },
            },
        }
    }

    /// How user code came into the kernel at this address.
    fn entered_by(&self, at: u64) -> &'static str {
        self.kernel.at(at).map_or(KERNEL_MEMORY, |(name, _)| kernel::entered_by(name))
    }

    /// The four names of a row. The user code that an interrupt hit did not cause the interrupt.
    fn row(&self, key: &Key) -> [String; 4] {
        let process = self.attribution.spaces.names[key.process as usize].clone();
        let interrupt = |at| self.entered_by(at) == kernel::INTERRUPT;
        if matches!(key.target, Target::Entry(at) if interrupt(at)) {
            return [process, "kernel".into(), "(interrupt)".into(), KERNEL_MEMORY.into()];
        }
        let (binary, function) = self.code(key.code);
        [process, binary, function, self.target(key)]
    }

    /// A function in a stack.
    fn in_stack(&self, code: Code, [binary, function]: [&str; 2]) -> String {
        match (code, function) {
            (_, "?") => format!("[{binary}]"),
            (Code::Kernel(_), name) => format!("{name}_[k]"),
            (_, name) => name.into(),
        }
    }

    /// The frames of a key with these four names.
    fn stack(&self, key: &Key, [process, binary, function, mapping]: &[String; 4]) -> Vec<String> {
        let mut frames = vec![process.clone()];
        // Who was hit by an interrupt did not call it.
        if function != "(interrupt)" {
            frames.extend(self.attribution.stacks.callers(key.callers).into_iter().map(|code| {
                let (binary, function) = self.code(code);
                self.in_stack(code, [&binary, &function])
            }));
        }
        frames.extend([self.in_stack(key.code, [binary, function]), mapping.clone()]);
        frames
    }

    fn target(&self, key: &Key) -> String {
        let name = match key.target {
            Target::Code => "code".into(),
            Target::Mapped(file) => mapping(&self.attribution.spaces.files[file as usize]),
            Target::Unknown => "?".into(),
            Target::Kernel(region) => region.into(),
            Target::Entry(at) => self.entered_by(at).into(),
            Target::Register => "control register".into(),
            Target::Other => "others".into(),
        };
        match key.size {
            None | Some(PageSize::Size4K) => name,
            Some(PageSize::Size2M) => name + ", 2M",
            Some(PageSize::Size1G) => name + ", 1G",
        }
    }
}

impl Attribution {
    /// Looks up names of functions in the files of this machine, and sums costs by name. Costs of windows of
    /// a sampled stream count `window_scale` times, see [`bifold_model::Model::window_scale`]; other streams
    /// have none.
    pub fn finish(mut self, window_scale: f64) -> Where {
        for (sum, window) in self.costs.iter_mut().zip(&self.windows) {
            sum.add(&window.times(window_scale));
        }
        let mut wanted: BTreeMap<FileId, BTreeSet<u64>> = BTreeMap::new();
        for code in self.keys.iter().map(|key| key.code).chain(self.stacks.all()) {
            if let Code::File(id, offset) = code {
                wanted.entry(id).or_default().insert(offset);
            }
        }
        let (mut files, mut missing) = (BTreeMap::new(), Vec::new());
        for (id, offsets) in &wanted {
            let file = &self.spaces.files[*id as usize];
            match elf::functions(Path::new(live(&file.name)), file.build_id.as_deref(), offsets) {
                Ok(names) => drop(files.insert(*id, names)),
                Err(why) => missing.push(Missing { path: file.name.clone(), why: why.describe() }),
            }
        }
        missing.sort_by(|a, b| a.path.cmp(&b.path));
        missing.dedup();
        let names = Names {
            kernel: Symbols::of_kallsyms(&self.kallsyms),
            jits: self.perf_maps.iter().map(|(pid, text)| (*pid, Symbols::of_perf_map(text))).collect(),
            files,
            attribution: &self,
        };
        let mut rows: [BTreeMap<[String; 4], Vec<Costs>>; 2] = Default::default();
        let mut stacks: [BTreeMap<Vec<String>, Vec<Costs>>; 2] = Default::default();
        let called = self.stacks.called();
        for (key, costs) in self.keys.iter().zip(self.costs.chunks(self.configs.len().max(1))) {
            let row = names.row(key);
            for view in View::ALL.into_iter().filter(|view| key.view.is_none_or(|only| only == *view)) {
                let add = |sums: &mut Vec<Costs>| {
                    sums.resize(costs.len(), Costs::default());
                    sums.iter_mut().zip(costs).for_each(|(sum, c)| sum.add(c));
                };
                if called {
                    add(stacks[view as usize].entry(names.stack(key, &row)).or_default());
                }
                add(rows[view as usize].entry(row.clone()).or_default());
            }
        }
        let row = |([process, binary, function, mapping], costs): ([String; 4], _)| PlaceRow {
            process,
            binary,
            function,
            mapping,
            costs,
        };
        let [code, cause] = rows.map(|rows| rows.into_iter().map(row).collect());
        let stack = |(frames, costs)| Stack { frames, costs };
        let stacks = called.then(|| stacks.map(|all| all.into_iter().map(stack).collect()));
        Where { code, cause, stacks, missing, configs: self.configs }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::perf::made;
    use bifold_mmu::Gva;
    use bifold_model::{Charge, Paging, Place};
    use bifold_trace::event::log;

    fn cost(n: u64) -> Costs {
        Costs { tlb_misses: n, walk_cycles: 30 * n, ..Costs::default() }
    }

    fn attribution() -> Attribution {
        let configs = &Config::ALL[..2];
        assert_eq!(configs[1].mode, Paging::Nested);
        let mut a = Attribution::new(configs);
        let mut log = |stream, number, bytes: &[u8]| a.take(Charge::Log { stream, number, bytes });
        let records = [
            made::fork(50, 1, 50, 1),
            made::switch(true, 1, 50),
            made::comm(50, 50, true, "prog;1"),
            made::map(50, 0x40_0000, 0x1000, 0x2000, &[], "/no/such/dir/prog (deleted)"),
            made::map(50, 0x60_0000, 0x2000, 0, &[], "[heap]"),
            made::map(50, 0x70_0000, 0x2000, 0, &[], "//anon"),
        ]
        .concat();
        records.chunks(100).for_each(|part| log(log::PERF, 0, part));
        log(log::SYMBOLS, 0, b"ffffffff81000000 T do_it\nffffffffa0000000 t ovl\t[overlay]\n");
        log(log::PERF_MAP, 50, b"700000 100 jitted function\n");
        let mut charge = |code, data, size, n| {
            let place = Place { vcpu: 0, code: Gva(code), data, size };
            a.take(Charge::Cost(place, &[cost(n), cost(2 * n)]));
        };
        charge(0x40_0010, Some(Gva(0x60_0008)), Some(PageSize::Size4K), 1);
        charge(0x40_0020, Some(Gva(0x60_1008)), Some(PageSize::Size4K), 10);
        charge(0x40_0020, Some(Gva(0x60_1008)), Some(PageSize::Size2M), 100);
        charge(0x70_0010, Some(Gva(0x70_0010)), Some(PageSize::Size4K), 1000);
        charge(0xffff_ffff_8100_0001, Some(Gva(0xffff_8880_0000_0000)), Some(PageSize::Size1G), 10_000);
        charge(0xffff_ffff_a000_0001, None, None, 100_000);
        charge(0, Some(Gva(8)), None, 1_000_000);
        a
    }

    #[test]
    fn places_of_one_name_are_one_row_and_sum_to_all_that_was_charged() {
        let w = attribution().finish(0.0);
        assert_eq!(
            w.folded(View::Code, 0, Metric::TlbMisses),
            "prog:1;?;?;? 1000000\n\
             prog:1;[JIT];jitted function;code 1000\n\
             prog:1;kernel;do_it;direct map, 1G 10000\n\
             prog:1;overlay.ko;ovl;control register 100000\n\
             prog:1;prog;?;heap 11\n\
             prog:1;prog;?;heap, 2M 100\n"
        );
        assert_eq!(w.totals(View::Code), [cost(1_111_111), cost(2_222_222)]);
        assert_eq!(
            w.missing,
            [Missing { path: "/no/such/dir/prog (deleted)".into(), why: "cannot be read here" }]
        );
        let ranked = w.ranked(View::Code, 1, Metric::ExtraCycles);
        assert_eq!(ranked[0].binary, "?");
        assert_eq!(ranked.len(), 6);
        assert!(w.ranked(View::Code, 1, Metric::Exits).is_empty());
    }
}
