// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The digest by which a page of results says of which model its counts are.

use bifold_model::{
    COUNTS_DIGEST, Config, KvmVersion, Model, Options, Profile, Sample, Virtualization, VmState,
};
use bifold_trace::Generator;
use xxhash_rust::xxh3::Xxh3;

/// Streams with TLB misses, table writes, forks and large pages, each short.
const STREAMS: [&str; 5] = ["t:4k", "fork-storm:6", "pointer-chase:2k", "gups:2k@64m", "gups-2m:2k@64m"];

/// Adds the counts of one configuration. Cycles are left out, as costs are no counts. A counter that
/// stays 0 is left out too, so a new counter changes no digest.
fn add(digest: &mut Xxh3, config: &str, total: &Sample) {
    digest.update(config.as_bytes());
    for (counter, value) in Sample::COUNTERS.iter().zip(total.values()) {
        if counter.unit != "cycles" && value > 0 {
            digest.update(counter.name.as_bytes());
            digest.update(&value.to_le_bytes());
        }
    }
}

/// The digest of a stream under the rules of one KVM and vendor: every configuration in a VM that has
/// just started, and the default configurations in a long-lived VM.
fn add_stream(digest: &mut Xxh3, stream: &str, kvm: KvmVersion, virtualization: Virtualization) {
    let mut profile = Profile::load("geometry-g", &[]).unwrap();
    (profile.kvm, profile.cpu.virtualization) = (kvm, virtualization);
    let generator = Generator::parse(stream).unwrap();
    for (vm, configs) in [(VmState::LongLived, &Config::ALL[..]), (VmState::Started, &Config::KNOWN)] {
        let options = Options {
            vm,
            configs: configs.to_vec(),
            guest_frames: generator.guest_frames(),
            interval_seconds: 1e-4,
            ..Options::default()
        };
        let mut model = Model::new(&profile, options);
        generator.run(&mut |words| model.consume(words)).unwrap();
        for c in model.finish().configs {
            add(digest, &c.config.name(), &c.total);
        }
    }
}

#[test]
fn the_digest_is_that_of_today_s_counts() {
    let mut digest = Xxh3::new();
    for stream in STREAMS {
        add_stream(&mut digest, stream, KvmVersion::Linux6_1, Virtualization::Svm);
        add_stream(&mut digest, stream, KvmVersion::Linux6_12, Virtualization::Vmx);
    }
    let now = format!("{:016x}", digest.digest());
    assert_eq!(
        COUNTS_DIGEST, now,
        "the model counts differently: write {now} into crates/model/src/lib.rs, and make the pages that README quotes again"
    );
}

#[test]
fn the_digest_follows_every_counter_but_cycles_and_zeroes() {
    let of = |total: Sample| {
        let mut digest = Xxh3::new();
        add(&mut digest, "nested-4k", &total);
        digest.digest()
    };
    let counted = Sample { walks: 3, vmm_cycles: 9, ..Sample::default() };
    assert_eq!(of(counted), of(Sample { vmm_cycles: 10, syncs: 0, ..counted }));
    assert_ne!(of(counted), of(Sample { syncs: 1, ..counted }));
    assert_ne!(of(counted), of(Sample { walks: 0, syncs: 3, ..counted }));
}
