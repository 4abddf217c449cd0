// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Short help and outputs, word by word. The long help of every verb is `docs/reference/verbs.md`
//! (`reference.rs`).

use crate::command::bifold;

macro_rules! golden {
    ($( $name:ident: $args:literal; )*) => {
        $( #[test] fn $name() { insta::assert_snapshot!(bifold($args).quietly()); } )*
    };
}

golden! {
    help_short: "-h";
    help_long: "--help";
    compare_help_short: "compare -h";
    record_help_short: "record -h";
    diff_help_short: "diff -h";
    doctor_help_short: "doctor -h";
    policy_replay_help_short: "policy replay -h";
    policy_sweep_help_short: "policy sweep -h";
    policy_intervals_help_short: "policy intervals -h";
    profile_measure_help_short: "profile measure -h";
    profile_list: "profile list";
    profile_check_of_a_built_in_profile: "profile check geometry-g";
    profile_check_json: "profile check geometry-g --format json";
    mode_help_short: "mode -h";
    daemon_help_short: "daemon -h";
    noise_record_help_short: "noise record -h";
    noise_simulate_table: "noise simulate --noise periodic:10Hz:2.5ms --interrupts 11000 --grain 100us --ranks 64,2^10..2^11";
    noise_simulate_csv: "noise simulate -q --noise periodic:10us:1us --collective ideal,tree,linear --grain 0,1us --ranks 7 --steps 9 --format csv";
    noise_simulate_json: "noise simulate --ranks 4096 --grain 0 --steps 1 --format json";
    place_undo_help_short: "place undo -h";
    place_help_short: "place -h";
    reclaim_help_short: "reclaim -h";
    reclaim_show_table: "reclaim show --generate gups:20000@64m";
    reclaim_show_json: "reclaim show --generate gups:20000@64m --sizes 16M,48M --format json";
    reclaim_cost_help_short: "reclaim cost -h";
    reclaim_cost_table: "reclaim cost --generate gups:20000@64m --sizes 48M,16M";
    reclaim_cost_json: "reclaim cost --generate gups:20000@64m --sizes 32M --format json";
    t_table: "compare --generate t:20000 --profile geometry-g";
    t_json: "compare --generate t:20000 --profile geometry-g --format json";
    t_csv: "compare --generate t:20000 --profile geometry-g --format csv";
    t_jsonl_of_two_configurations: "compare --generate t:20000 --profile geometry-g --configs native,nested-4k --format jsonl";
    gups_table_with_placements: "compare --generate gups:20000@256m --placement all --configs native,nested-4k,nested-1g,offset --set memory.remote_cycles=400";
    gups_csv_with_placements: "compare --generate gups:20000@256m --placement interleaved,remote-tables --caches off --configs nested-2m --format csv";
    fork_storm_table: "compare --generate fork-storm:20";
    fork_storm_table_of_every_mode: "compare --generate fork-storm:20 --configs native,nested-4k,shadow-4k,agile,direct,offset";
    gups_json_of_agile_and_direct_paging: "compare --generate gups:20000@64m --caches off --configs agile-4k,direct --format json";
    pointer_chase_table_on_another_profile: "compare --generate pointer-chase:20000 --profile phenom2-x3-720 --seed 7";
}

/// `docs/design/model.md#miss-counts-of-geometry-g`: DynamoRIO's simulator and two independent loops agree on
/// these to the last miss.
#[test]
fn geometry_g_misses_as_often_as_other_simulators_say() {
    for (generator, l1, l2) in
        [("t:1m", 500_865, 498_076), ("t-seq:1m", 1_954, 1_954), ("t-4m:1m", 937_524, 1_024)]
    {
        let args =
            format!("compare --generate {generator} --profile geometry-g --configs native --format json");
        let v: serde_json::Value = serde_json::from_str(&bifold(&args).quietly()).unwrap();
        let total = &v["outcome"]["configs"][0]["total"];
        assert_eq!((&total["l1_misses"], &total["tlb_misses_4k"]), (&l1.into(), &l2.into()), "{generator}");
    }
}
