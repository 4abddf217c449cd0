// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The list of findings: name, severity, what each means, why it costs. The reference page is made from this
//! list.

use schemars::JsonSchema;
use serde::Serialize;

/// How bad a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// CPUs or memory are not where they belong.
    Error,
    /// A setting that costs time in some loads.
    Warning,
}

impl Severity {
    /// The word for tables and JSON.
    pub fn word(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

macro_rules! kinds {
    ($($variant:ident $name:literal $severity:ident $meaning:literal $why:literal)*) => {
        /// A kind of finding.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
        #[allow(missing_docs)] // `meaning` has the text
        pub enum Kind { $($variant),* }

        impl Kind {
            /// All kinds, in the order of reports.
            pub const ALL: &[Kind] = &[$(Kind::$variant),*];

            /// The name, as reports and the reference page have it.
            pub fn name(self) -> &'static str {
                match self { $(Kind::$variant => $name),* }
            }

            /// How bad it is.
            pub fn severity(self) -> Severity {
                match self { $(Kind::$variant => Severity::$severity),* }
            }

            /// When it is raised.
            pub fn meaning(self) -> &'static str {
                match self { $(Kind::$variant => $meaning),* }
            }

            /// What it costs.
            pub fn why(self) -> &'static str {
                match self { $(Kind::$variant => $why),* }
            }
        }
    };
}

kinds! {
    PlanOfAnotherHost "plan-of-another-host" Error
        "The plan names CPUs or nodes that this host does not have."
        "Nothing of such a plan can be compared, so only the rules without a plan apply."
    VmNotRunning "vm-not-running" Warning
        "A guest of the plan does not run here."
        "Its CPUs and memory stay unused."
    GuestNotAsPlanned "guest-not-as-planned" Error
        "The guest's vCPUs, nodes or memory differ from its plan."
        "Pins and bindings of the plan then belong to other vCPUs and other memory."
    PinnedTooEarly "pinned-too-early" Error
        "All vCPU threads have the main thread's affinity, which they inherited."
        "QEMU makes vCPU threads only after preallocation; a pin made before reaches other threads."
    VcpuOnWrongCpu "vcpu-on-wrong-cpu" Error
        "A vCPU is pinned to another CPU than planned."
        "Its memory, caches and sibling threads are elsewhere."
    VcpuUnpinned "vcpu-unpinned" Error
        "A vCPU may run on several CPUs of a node, while its plan or the guest's other vCPUs have one CPU each."
        "The scheduler moves the vCPU, which then finds cold caches."
    VcpuFloatsOverNodes "vcpu-floats-over-nodes" Error
        "A vCPU may run on CPUs of several nodes."
        "Its memory is remote whenever the scheduler moves the vCPU to another node."
    VcpuFloatsOnIsolatedCpus "vcpu-floats-on-isolated-cpus" Error
        "A vCPU may run on several CPUs, all of them isolated (isolcpus=)."
        "The scheduler balances no load between isolated CPUs: vCPUs pile up on the first."
    CpuOffline "cpu-offline" Error
        "The plan pins a vCPU to a CPU that is offline."
        "The kernel lets the thread run anywhere when its CPU goes offline."
    CpusetWithoutCpu "cpuset-without-cpu" Error
        "The guest's cgroup lacks a CPU that the plan pins a vCPU to."
        "The kernel refuses the pin, or drops it when the cgroup changes."
    TwoVcpusOnOneCpu "two-vcpus-on-one-cpu" Error
        "Two vCPUs of a guest are pinned to the same CPU."
        "They run in turns; a spinning vCPU waits for one that does not run."
    CpuSharedWithGuest "cpu-shared-with-guest" Error
        "vCPUs of two guests are pinned to the same CPU."
        "The guests take each other's time."
    EmulatorOnVcpuCpu "emulator-on-vcpu-cpu" Error
        "A thread of the VMM that is no vCPU may run on a vCPU's CPU."
        "Each time it runs, the vCPU stops; ranks of a parallel program wait for the slowest."
    EmulatorOffPlan "emulator-off-plan" Warning
        "A thread of the VMM that is no vCPU may run on other CPUs than planned."
        "It disturbs what the plan keeps those CPUs for."
    IoThreadOnVcpuCpu "io-thread-on-vcpu-cpu" Error
        "An I/O thread may run on a vCPU's CPU."
        "Each request stops the vCPU that waits for the request."
    IoThreadOffPlan "io-thread-off-plan" Warning
        "An I/O thread may run on other CPUs than planned."
        "It disturbs what the plan keeps those CPUs for, or is far from its device."
    ForeignThreadOnVcpuCpu "foreign-thread-on-vcpu-cpu" Error
        "A thread of another process may run only on CPUs that vCPUs are pinned to, or runs on such a CPU that is isolated. \
         The kernel's threads per CPU and per node are no finding."
        "Each time it runs, the vCPU stops."
    CpuQuota "cpu-quota" Warning
        "The cgroup of the guest's vCPUs, or one above it, has a quota of CPU time (`cpu.max`, `cpu.cfs_quota_us`)."
        "When the quota is used up, all vCPUs stand still until the next period, for up to 100 ms by default."
    VcpuLowPriority "vcpu-low-priority" Warning
        "A vCPU's thread has a nice value above 0, SCHED_BATCH or SCHED_IDLE, or a cgroup of the vCPUs has less than the \
         default weight or `cpu.idle`."
        "Any other thread on the CPU gets more time than the vCPU."
    CrossedNodes "crossed-nodes" Error
        "Most memory of a guest node is on another host node than the guest node's vCPUs."
        "The guest places its data by a topology that is wrong: what it takes for local is remote."
    VcpusOfNodeApart "vcpus-of-node-apart" Error
        "The vCPUs of one guest node run on several host nodes."
        "The guest node's memory is remote for some of them."
    GuestSeesOneNode "guest-sees-one-node" Error
        "The guest's vCPUs are on several host nodes, and the guest has one node."
        "The guest cannot place data near its users: about half of all accesses are remote."
    MemoryOnWrongNode "memory-on-wrong-node" Error
        "Pages of a guest node are on another host node than planned or bound, or than its pinned vCPUs."
        "Accesses to them are remote."
    MemoryInterleaved "memory-interleaved" Error
        "The policy of a guest node's memory spreads pages over host nodes."
        "Of N nodes, (N-1)/N of all accesses are remote."
    MemoryNotHuge "memory-not-huge" Error
        "Guest memory that is planned or asked for in huge pages has small ones."
        "A TLB miss costs up to 24 references instead of 19, and TLBs reach less memory."
    PoolShort "pool-short" Error
        "A node has fewer free huge pages than a guest still needs there."
        "The guest does not start, or is killed by SIGBUS at its first touch."
    NodeOvercommitted "node-overcommitted" Error
        "Guests are bound to more memory on a node than the node has."
        "The last guest to touch its memory swaps, or is killed."
    CpusetWithoutNode "cpuset-without-node" Error
        "The guest's cgroup lacks a node that its memory is planned or bound to."
        "The kernel takes pages from other nodes without a word, or kills the guest."
    TablesRemote "tables-remote" Error
        "Most of KVM's page tables are on nodes where no vCPU runs."
        "Each walk of nested tables goes to another node."
    L3OverTwoNodes "l3-over-two-nodes" Error
        "vCPUs that share an L3 in the guest run on CPUs of several nodes."
        "The guest's scheduler takes remote CPUs for neighbours."
    GuestL3Wrong "guest-l3-wrong" Warning
        "vCPUs that share an L3 in the guest run on CPUs with different L3s."
        "The guest's scheduler wakes threads where their data is not cached."
    SmtAsCores "smt-as-cores" Warning
        "vCPUs that are cores in the guest run on threads of one core."
        "The guest loads both as if each had a core of its own."
    CoresAsSmt "cores-as-smt" Warning
        "vCPUs that are threads of one core in the guest run on different cores."
        "The guest's scheduler leaves one of the two cores idle, or isolates tasks that share no core."
    DistancesMissing "distances-missing" Warning
        "The guest has several nodes without distances, and the host's are not the default (10 and 20)."
        "The guest prefers the wrong node when its own is full."
    DistancesWrong "distances-wrong" Warning
        "The distances between guest nodes are not those of their host nodes, or of the plan."
        "The guest prefers the wrong node when its own is full."
    InterruptsOnVcpuCpu "interrupts-on-vcpu-cpu" Warning
        "An interrupt goes to a vCPU's CPU: against the plan, or without a plan more than 10 times a second."
        "Each interrupt is an exit, and its handler's time is the vCPU's."
    DeviceFar "device-far" Warning
        "A device of the guest is on a node where the guest has no vCPU."
        "Each DMA and each interrupt crosses nodes."
    NumaBalancingOn "numa-balancing-on" Warning
        "NUMA balancing is on, the guest's vCPUs are pinned, and no plan keeps it."
        "The kernel unmaps guest memory again and again to find out what is known: page faults in the host, and split huge pages."
    KsmMergesAcrossNodes "ksm-merges-across-nodes" Warning
        "KSM runs, may merge pages of different nodes, and may merge this guest's memory."
        "A merged page is remote for one of its users, and its huge page is split."
    SettingNotAsPlanned "setting-not-as-planned" Warning
        "A setting of the host is not as the plan has it."
        "The plan's reason is in the evidence."
}

/// The part of the reference page about all kinds, in Markdown.
pub fn page() -> String {
    let mut page = String::from(
        "# Findings\n\n## place check\n\n`bifold place check` names what it finds. This part is made from the list in \
         `crates/place/src/check/kinds.rs`; a test compares both. Each finding also has its figures and the command that \
         mends it.\n\n| name | severity | raised when | cost |\n|---|---|---|---|\n",
    );
    for kind in Kind::ALL {
        let (name, severity) = (kind.name(), kind.severity().word());
        page += &format!("| `{name}` | {severity} | {} | {} |\n", kind.meaning(), kind.why());
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_kebab_case_and_different() {
        let mut names: Vec<&str> = Kind::ALL.iter().map(|k| k.name()).collect();
        assert!(
            names.iter().all(|n| n.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'))
        );
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), Kind::ALL.len());
    }
}
