// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A day of random guests, users and configurations.

use super::*;
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64;

#[test]
fn a_day_without_an_order_that_the_rules_forbid() {
    const POLICIES: [&str; 4] = ["equal", "mom", "proxmox", "feedback"];
    let mut random = Pcg64::seed_from_u64(23);
    let rules = |policy: &str, limit_gib: u64, db_acts: bool| {
        format!(
            "[memory]\nlimit = \"{limit_gib}G\"\npolicy = \"{policy}\"\nmin_stay_s = 40\nmost_orders_per_hour = 6\n\
             [[vm]]\nname = \"web\"\n[vm.memory]\nact = true\nleast = \"700M\"\n\
             [[vm]]\nname = \"db\"\n[vm.memory]\nact = {db_acts}\nmost = \"1800M\"\n"
        )
    };
    let (mut policy, mut limit, mut db_acts) = ("mom", 3, false);
    let mut fake = Fake::new(&rules(policy, limit, db_acts));
    let (mut takes, mut held_until, mut forbidden) = (Vec::new(), 0, false);
    let (mut waited, mut orders) = (0, 0);
    while fake.up < 86_400 {
        for pid in [100, 200] {
            let before = fake.wanted(pid).map_or(2 * GIB, |mib| mib * MIB);
            // The guest follows in part, uses what it likes, and its thread tells what it likes.
            let size = random.random_range(before..=2 * GIB);
            fake.sees(pid, size, random.random_range(0..=size));
            if random.random_ratio(1, 200) {
                let kind = [Kind::Ended, Kind::Refused, Kind::Lost][random.random_range(0..3)];
                fake.guest(pid).control.say(kind, "the order ends");
            }
            waited += random.random_range(0..300_000);
            let view = MemoryView { free: Some(size / 2), waited_us: Some(waited), ..MemoryView::default() };
            fake.reports(pid, fake.up, view);
        }
        if random.random_ratio(1, 300) {
            (policy, limit) = (POLICIES[random.random_range(0..4)], random.random_range(1..5));
            db_acts = random.random();
            fake.reload(&rules(policy, limit, db_acts));
        }
        if random.random_ratio(1, 300) {
            held_until = fake.up + 500;
            fake.guest(100).hold(Hold { until: Some(Duration::from_secs(held_until)) });
        }
        if random.random_ratio(1, 500) {
            fake.guest(200).control.say(Kind::Another, "another program has set 100 MiB");
            forbidden = true;
        }
        if random.random_ratio(1, 100) {
            fake.guest(200).release();
            forbidden = false;
        }
        let before = [100, 200].map(|pid| fake.wanted(pid));
        let reloaded = fake.memory.next == Duration::ZERO;
        fake.tick(10);
        for (n, pid) in [100, 200].into_iter().enumerate() {
            let (was, now) = (before[n].unwrap_or(2048), fake.wanted(pid).unwrap_or(2048));
            let least = if pid == 100 { 700 } else { 512 };
            assert!((least..=2048).contains(&now), "{pid}: {now}");
            assert!(pid != 200 || db_acts || now == 2048, "{policy}: db does not act, and is to have {now}");
            if now < was {
                orders += 1;
                assert!(pid != 200 || !forbidden || reloaded, "another program has db");
                assert!(pid != 100 || fake.up >= held_until, "web is held");
                takes.push((pid, fake.up));
                let of = || takes.iter().filter(|(other, _)| *other == pid).map(|(_, at)| *at);
                assert!(of().filter(|at| fake.up - at < 3600).count() <= 6, "{pid} at {}", fake.up);
                assert!(of().rev().nth(1).is_none_or(|at| fake.up - at >= 40), "{pid} at {}", fake.up);
            }
        }
        forbidden &= !reloaded;
    }
    assert!(orders > 50, "{orders}");
}
