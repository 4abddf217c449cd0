// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The experiment's guests, their rules, and what happens in the laboratory.

use std::path::Path;

use anyhow::{Context, Result};

use super::Kind;
use super::guests::{checksum, run as run_guests};
use crate::lab::{Lab, Output};
use crate::modelled::ModelledPmu;

const fn guest(name: &'static str, policy: &'static str, arguments: &'static str, phased: bool) -> Kind {
    Kind { name, policy, arguments, phased }
}

/// What all guests' programs have, the modelled one too: rings whose tables do not fit into the caches next
/// to the core, so that walks of nested paging take clearly longer.
pub const COMMON: [&str; 2] = ["--chase-mib", "24"];

const FIRST_TABLES: &str = "--chase-mib 24 --phases tables:300,chase:1500 --cycles 2";
const FIRST_CHASE: &str = "--chase-mib 24 --phases chase:1500,tables:300 --cycles 2";

/// The guests. They run two at a time, in this order.
pub const GUESTS: [Kind; 6] = [
    guest("dsp", "dsp", FIRST_TABLES, true),
    guest("rpms", "rpms-dynamic", FIRST_CHASE, true),
    guest("experts", "experts", FIRST_TABLES, true),
    guest("experts-2", "experts", FIRST_CHASE, true),
    guest("chase", "experts", "--chase-mib 24 --phases chase:4000 --cycles 1", false),
    guest("tables", "experts", "--chase-mib 24 --phases tables:600 --cycles 1", false),
];

/// The guest that is away from its own mode when the daemon ends.
const AWAY: (&str, &str) = ("away", "--chase-mib 24 --phases chase:1500 --cycles 1");

/// Parameters that differ from the published ones, because the program differs (`lab modelled-pmu` prints its
/// counts): its walks take 21 % of cycles in nested paging and 13 % in shadow paging, on both sides of 16 %;
/// and the built-in estimate sees a gain of less than 4 % of cycles in shadow paging, the lead that `experts`
/// asks for.
pub const PARAMETERS: [(&str, &str); 2] =
    [("rpms-dynamic", ", t_high = 16.0"), ("experts", ", lead_percent = 2.0")];

/// Seconds between two readings. Phases last some ten seconds here; published policies decide every 1 to 5 s,
/// over phases of minutes.
pub const INTERVAL_S: f64 = 0.5;

/// The daemon's configuration.
pub fn configuration(recording: &Path) -> String {
    let rule = |name: &str, policy: &str| {
        format!(
            "[[vm]]\nname = \"{name}\"\npolicy = \"{policy}\"\nparameters = {{ interval_s = {INTERVAL_S}{} }}\nact = true\n",
            PARAMETERS.iter().find(|(name, _)| *name == policy).map_or("", |(_, text)| text)
        )
    };
    let rules: String = GUESTS.iter().map(|g| rule(g.name, g.policy)).collect();
    format!(
        "interval_s = {INTERVAL_S}\n[recording]\nfile = \"{}\"\n\
         [limits]\nmin_stay_s = 2\nmost_switches_per_hour = 3600\nblackout_s = {INTERVAL_S}\n\
         {rules}[[vm]]\nname = \"{}\"\npolicy = \"always-shadow\"\nact = true\n",
        recording.display(),
        AWAY.0
    )
}

/// Two guests at a time. The daemon is killed while the first two run, and started again; it ends while the
/// last one is away.
const SCRIPT: &str = r#"
daemon() {
    $DAEMON /lab/bifold.toml /tmp/run /lab/pmu.toml 2>> $OUT/daemon.log & daemon=$!
    until_true "$BIFOLD ctl --state /tmp/run status >/dev/null 2>&1"
}
both() {
    echo "note: guests $1 and $3"
    start $1 "$2"; first=$vm first_name=$1
    start $3 "$4"; second=$vm second_name=$3
}
both_end() { ended $first $first_name; ended $second $second_name; }
daemon
"#;

fn script() -> String {
    let [dsp, rpms, experts, second, chase, tables] = GUESTS;
    let both =
        |a: Kind, b: Kind| format!("both {} \"{}\" {} \"{}\"\n", a.name, a.arguments, b.name, b.arguments);
    let (away, arguments) = AWAY;
    [
        SCRIPT,
        &both(dsp, rpms),
        // In the middle of a phase, and behind the first switch.
        "until_true \"$BIFOLD ctl --state /tmp/run --format json status | $B grep -q '\\\"switched\\\": [1-9]'\"\n$B sleep 5\n",
        "echo 'note: the daemon is killed, and starts again'\n",
        "kill -9 $daemon; wait $daemon 2>/dev/null; $B date +%s > $OUT/killed\ndaemon\nboth_end\n",
        &both(experts, second),
        "both_end\n",
        &both(chase, tables),
        "both_end\n",
        &format!("echo 'note: the daemon ends while guest {away} is in shadow paging'\nstart {away} \"{arguments}\"\n"),
        &format!("until_true \"$BIFOLD mode {away} | $B grep -q '^mode *shadow'\"\n"),
        "kill -TERM $daemon; wait $daemon || exit 6\n",
        &format!("$BIFOLD mode {away} | $B sed -n 's/^mode *//p' > $OUT/given-back\n"),
        "[ ! -e /tmp/run/modes ] || exit 5\nended $vm away\n",
    ]
    .concat()
}

/// Runs all of that, and checks the guests' memory.
pub fn run(lab: &Lab, pmu: &ModelledPmu) -> Result<Output> {
    let pmu = pmu.to_toml().context("the modelled PMU")?;
    let config = configuration(&Path::new(crate::lab::job::at::OUT).join("vms.jsonl"));
    let files =
        vec![("/lab/pmu.toml".into(), pmu.into_bytes()), ("/lab/bifold.toml".into(), config.into_bytes())];
    let output = run_guests(lab, &script(), files)?;
    for guest in GUESTS {
        checksum(&output, (guest.name, guest.arguments))?;
    }
    checksum(&output, AWAY)?;
    Ok(output)
}
