// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A digest of what the model counts, by which a page of results says of which model it is.

use crate::{Config, KvmVersion, Model, Options, Profile, Sample, Virtualization, VmState};
use bifold_trace::Generator;
use xxhash_rust::xxh3::Xxh3;

/// Streams with TLB misses, table writes, forks and large pages, each short.
const STREAMS: [&str; 5] = ["t:4k", "fork-storm:6", "pointer-chase:2k", "gups:2k@64m", "gups-2m:2k@64m"];

/// The digest of every count over the built-in streams, under the rules of each KVM and vendor: of every configuration in a VM that
/// has just started, and of those that are shown unnamed in a long-lived one. 16 hexadecimal digits. Costs are no part of it, and a counter that stays 0
/// neither, so that a new one changes nothing.
///
/// ```no_run
/// assert_eq!(bifold_model::counts_digest().len(), 16);
/// ```
///
/// # Panics
///
/// If a built-in stream or profile cannot be read, which its tests exclude.
pub fn counts_digest() -> String {
    let mut digest = Xxh3::new();
    let profile = Profile::load("geometry-g", &[]).expect("the profile is built in");
    for stream in STREAMS {
        let generator = Generator::parse(stream).expect("the stream is built in");
        for (kvm, virtualization) in
            [(KvmVersion::Linux6_1, Virtualization::Svm), (KvmVersion::Linux6_12, Virtualization::Vmx)]
        {
            let mut profile = profile.clone();
            (profile.kvm, profile.cpu.virtualization) = (kvm, virtualization);
            for (vm, configs) in [(VmState::LongLived, &Config::ALL[..]), (VmState::Started, &Config::KNOWN)]
            {
                let options = Options {
                    vm,
                    configs: configs.to_vec(),
                    guest_frames: generator.guest_frames(),
                    interval_seconds: 1e-4,
                    ..Options::default()
                };
                let mut model = Model::new(&profile, options);
                generator.run(&mut |words| model.consume(words)).expect("the stream is well-formed");
                for c in model.finish().configs {
                    add(&mut digest, &c.config.name(), &c.total);
                }
            }
        }
    }
    format!("{:016x}", digest.digest())
}

fn add(digest: &mut Xxh3, config: &str, total: &Sample) {
    digest.update(config.as_bytes());
    for (counter, value) in Sample::COUNTERS.iter().zip(total.values()) {
        if counter.unit != "cycles" && value > 0 {
            digest.update(counter.name.as_bytes());
            digest.update(&value.to_le_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
