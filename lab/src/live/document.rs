// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiment's outcome as a page of the results.

use std::fmt::Write as _;

use bifold_base::markdown::table;
use bifold_mmu::Mode;

use super::script::{INTERVAL_S, PARAMETERS};
use super::{Life, Live};
use crate::modelled::ModelledPmu;

fn millions(cycles: f64) -> String {
    format!("{:.0}", cycles / 1e6)
}

/// The page; `picture` is the picture's file beside it.
pub fn document(live: &Live, pmu: &ModelledPmu, picture: &str) -> String {
    let mut out = format!(
        "# The daemon on a real KVM, Linux {}\n\n{}\n\
         Written by `lab live`. Inner guests with two vCPUs alternate between page-table work and pointer chasing, two guests at a\n\
         time, under bifold's daemon and the KVM of `make kernel`. The laboratory has no PMU: TLB misses, cycles and walk cycles are\n\
         of a **modelled PMU** (`lab modelled-pmu`): the model's counts of a step of the guests' program (profile {}, {}), times the\n\
         steps that the guests report. Modes, switches, exits and page faults are KVM's and the guests'.\n\n\
         ![phases and modes]({picture})\n\n",
        live.release, live.modules, pmu.made.profile, pmu.made.kvm
    );
    let _ = writeln!(
        out,
        "The daemon was killed (-9) after {:.0} s and started again. Every guest's checksum is that of the same program on this\n\
         machine. The guest that was not in its own mode when the daemon ended is back in {} mode. {} decisions\n\
         equal those of `bifold policy replay --config` over the daemon's recording; {} differ.\n",
        live.killed,
        live.given_back,
        live.compared - live.differences.len().min(live.compared),
        live.differences.len()
    );
    let _ = writeln!(
        out,
        "Policies see an interval of {INTERVAL_S} s, and have their published parameters but for {}.\n",
        PARAMETERS
            .map(|(policy, text)| format!("`{}` of `{policy}`", text.trim_start_matches(", ")))
            .join(" and ")
    );
    out += "Costs in million cycles beyond an ideal run, by the model: in the modes in which the guest was (with switches), and of\n\
            the same steps in one mode alone. `above` is the cost above the better mode, in percent of all cycles.\n\n";
    let columns = table::<Life>()
        .left("guest", |l| l.kind.name.into())
        .left("policy", |l| l.kind.policy.into())
        .right("decisions", |l| l.decisions.to_string())
        .right("switches", |l| l.cost.switches.to_string())
        .right("under the daemon", |l| millions(l.cost.extra))
        .right("nested alone", |l| millions(l.cost.alone[Mode::Nested as usize]))
        .right("shadow alone", |l| millions(l.cost.alone[Mode::Shadow as usize]))
        .right("above", |l| format!("{:+.2} %", l.cost.above_better_percent()))
        .left("in the better mode", |l| {
            let followed = l.cost.followed.iter().filter(|(name, _)| l.cost.steps[*name] > 0);
            let followed = followed.map(|(name, share)| format!("{name} {:.0} %", 100.0 * share));
            followed.collect::<Vec<_>>().join(", ")
        });
    out += &columns.of(&live.lives);
    let wrong = live.wrong();
    if wrong.is_empty() {
        out += "\nAll holds that is to hold: guests with phases cost less than either mode alone, guests without phases at most 2 % of all\n\
                cycles more than the better mode, and more than half of each phase's steps are in the better mode.\n";
    } else {
        out += "\nWhat does not hold:\n\n";
        wrong.iter().for_each(|w| out += &format!("- {w}\n"));
    }
    out
}
