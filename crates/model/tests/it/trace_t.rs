// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trace T: every count of the fast model equals the slow reference's, for every
//! variant of walk caches and both ways of tagging.

use crate::geometry::run;
use crate::reference::{Counts, Reference};
use bifold_model::{Config, Mode, Profile};
use bifold_trace::{DecodeError, Generator};

const VARIANTS: [&str; 4] = ["none", "1d", "2d", "2d+ntlb"];

fn compare(profile: &str, variant: &str, tag: &str, spec: &str) {
    let overrides = [format!("walk_cache.variant={variant}"), format!("walk_cache.tag={tag}")];
    let profile = Profile::load(profile, &overrides).unwrap();
    let outcome = run(&profile, spec, &Config::ALL);
    let generator = Generator::parse(spec).unwrap();
    for got in &outcome.configs {
        if got.config.mode == Mode::Shadow {
            continue;
        }
        let mut slow = Reference::new(&profile, got.config, generator.guest_frames(), 1, outcome.seed);
        generator.run::<DecodeError>(&mut |words| { slow.consume(words); Ok(()) }).unwrap();
        assert_eq!(Counts::of(got), slow.counts, "{} {} {variant} {tag}", profile.name, got.config.name());
    }
}

#[test]
fn counts_on_trace_t_equal_the_references_at_1_million_accesses() {
    compare("geometry-g", "2d+ntlb", "virtual", "t:1000000");
}

#[test]
fn counts_on_trace_t_equal_the_references_for_every_variant_and_tag() {
    for profile in ["geometry-g", "phenom2-x3-720"] {
        for variant in VARIANTS {
            for tag in ["virtual", "physical"] {
                compare(profile, variant, tag, "t:200000");
            }
        }
    }
}
