// SPDX-License-Identifier: Apache-2.0 OR MIT
//! RPMS: level arithmetic, blackout, thresholds that move.

use super::super::testing::{Run, Seen, refused};
use super::*;
use Mode::{Nested, Shadow};

const BAD: fn() -> Seen = || Seen::percents(20.0, 20.0);
const GOOD: fn() -> Seen = || Seen::percents(1.0, 1.0);
const BETWEEN: fn() -> Seen = || Seen::percents(5.0, 5.0);

#[test]
fn four_bad_intervals_in_a_row_switch_and_the_next_two_are_not_looked_at() {
    let mut run = Run::new("rpms-fixed-20", Shadow);
    assert_eq!(run.steps(4, BAD()), [Shadow, Shadow, Shadow, Nested]);
    // Two of blackout, then from level 4 down to -4.
    assert_eq!(run.steps(9, BAD()), [Nested; 9]);
    assert!(run.said.contains("the level goes from -2 to -3"), "{}", run.said);
    assert!(run.said.contains("1 more above T_high would switch it (at -4)"), "{}", run.said);
    assert_eq!(run.step(BAD()), Shadow);
}

#[test]
fn good_intervals_move_the_level_away_from_the_switch_and_it_saturates() {
    let mut run = Run::new("rpms-fixed-20", Shadow);
    run.steps(100, GOOD());
    assert!(run.said.contains("the level stays -4"), "{}", run.said);
    assert_eq!(run.steps(7, BAD()), [Shadow; 7]);
    assert_eq!(run.step(BAD()), Nested);
    let mut run = Run::new("rpms-fixed-20", Nested);
    run.steps(100, GOOD());
    assert!(run.said.contains("the level stays 4"), "{}", run.said);
}

#[test]
fn between_the_thresholds_the_level_stays_and_a_threshold_itself_is_between() {
    let mut run = Run::new("rpms-fixed-20", Nested);
    run.steps(3, BAD());
    for seen in [BETWEEN(), Seen::percents(20.0, 0.0), Seen::percents(3.0, 0.0)] {
        run.step(seen);
        assert!(run.said.contains("the level stays -3"), "{}", run.said);
    }
    assert_eq!(run.step(BAD()), Shadow);
}

#[test]
fn the_published_thresholds_decide_alike_except_between_3_and_20_percent() {
    let at_10 = |name| Run::new(name, Shadow).steps(4, BETWEEN())[3];
    assert_eq!((at_10("rpms-fixed-3"), at_10("rpms-fixed-20")), (Nested, Shadow));
}

#[test]
fn a_single_metric_looks_at_what_the_other_mode_would_spare() {
    let (walks, exits) = (Seen::percents(50.0, 0.0), Seen::percents(0.0, 50.0));
    let after = |name, start, seen| Run::new(name, start).steps(4, seen)[3];
    assert_eq!(after("rpms-single", Shadow, walks), Shadow);
    assert_eq!(after("rpms-single", Shadow, exits), Nested);
    assert_eq!(after("rpms-single", Nested, walks), Shadow);
    assert_eq!(after("rpms-single", Nested, exits), Nested);
    assert_eq!(after("rpms-fixed-20", Shadow, walks), Nested);
    assert_eq!(after("rpms-fixed-20", Nested, exits), Shadow);
}

/// What is said of T_high after a switch with this IPC before and after.
fn moved(name: &str, start: Mode, before: f64, after: f64) -> String {
    let mut run = Run::new(name, start);
    run.steps(4, BAD().ipc(before));
    assert_eq!(run.mode, start.other());
    run.step(BAD().ipc(before * 7.0)); // the first interval of the blackout tells nothing
    run.step(BAD().ipc(after));
    run.said
}

#[test]
fn the_threshold_that_led_to_a_good_switch_is_lowered_and_to_a_bad_one_raised() {
    let said = moved("rpms-dynamic", Shadow, 1.0, 1.5);
    assert!(said.contains("T_high of shadow goes from 12 % to 9 %"), "{said}");
    let said = moved("rpms-dynamic", Nested, 1.0, 0.5);
    assert!(said.contains("T_high of nested goes from 12 % to 16 %"), "{said}");
    let said = moved("rpms-dynamic", Nested, 1.0, 1.05);
    assert!(said.contains("T_high of nested goes from 12 % to 12 %"), "{said}");
    let said = moved("rpms-dynamic", Nested, 0.0, 1.0);
    assert!(said.contains("T_high stays"), "{said}");
}

#[test]
fn the_threshold_stays_between_t_low_and_its_maximum() {
    let said = moved("rpms-shipped", Shadow, 0.1, 1.0);
    assert!(said.contains("from 9 % to 2 %"), "{said}");
    let said = moved("rpms-shipped", Shadow, 1.0, 0.01);
    assert!(said.contains("from 9 % to 100 %"), "{said}");
}

#[test]
fn the_shipped_code_ignores_intervals_with_little_load() {
    let mut run = Run::new("rpms-shipped", Shadow);
    run.steps(3, BAD());
    assert_eq!(run.step(Seen { load: 0.59, ..BAD() }), Shadow);
    assert!(run.said.contains("ran 59 % of the time (looked at from 60 %)"), "{}", run.said);
    assert_eq!(run.step(Seen { load: 0.6, ..BAD() }), Nested);
}

#[test]
fn intervals_without_cycles_change_nothing() {
    let mut run = Run::new("rpms-dynamic", Nested);
    run.steps(3, BAD());
    assert_eq!(run.steps(50, Seen::nothing()), [Nested; 50]);
    assert_eq!(run.step(BAD()), Shadow);
    assert_eq!(run.steps(2, Seen::nothing()), [Shadow; 2]);
}

#[test]
fn contradictions_are_refused() {
    for (key, value, told) in [
        ("t_low", "12.5", "t_low = 12.5 is above t_high = 12"),
        ("n", "0", "n = 0 is not in 1..=1000"),
        ("t_high", "nan", "t_high = NaN is not in 0..=100"),
        ("min_load", "60.0", "min_load = 60 is not in 0..=1"),
        ("dynamic.f_low", "1.2", "dynamic.f_low = 1.2 is not in 0..=1"),
        ("dynamic.step", "0.0", "dynamic.step = 0 is not above 0"),
        ("dynamic.t_high_max", "11.0", "dynamic.t_high_max = 11 is not in 12..=100"),
        ("metric", "\"both\"", "unknown variant"),
        ("dynamic.jump", "1.0", "unknown field"),
    ] {
        let e = refused("rpms-dynamic", key, value);
        assert!(e.contains(told), "{e}");
    }
}
