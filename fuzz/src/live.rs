// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-live`: recordings of VMs.

/// A recording of VMs: an error, or VMs with intervals, over which every policy can be replayed or is refused.
pub fn vms(data: &[u8]) {
    use bifold_live::{recording, replay};
    let Ok(vms) = recording::parse(data, "vms.jsonl".as_ref()) else { return };
    assert!(!vms.is_empty());
    for vm in &vms {
        assert!(!vm.intervals.is_empty());
        for named in bifold_policy::Named::policies() {
            let estimator = bifold_policy::Estimator::fitted();
            if let Ok(replayed) = replay::replay(vm, &named.spec, Some(estimator)) {
                assert!(replayed.left_out <= vm.intervals.len());
                assert!(replayed.decided.iter().all(|d| vm.intervals[d.interval].mode.is_some()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::bytes;
    use super::*;
    use bifold_model::Sample;
    use proptest::prelude::*;

    /// A line with every counter, each of which may be missing or strange.
    fn line(vm: u8, seconds: f64, mode: &str, counts: &[Option<u64>]) -> String {
        let counters = Sample::COUNTERS.iter().zip(counts.iter().cycle());
        let known = counters.filter_map(|(c, n)| Some(format!(",\"{}\":{}", c.name, (*n)?)));
        format!(
            "{{\"schema\":\"bifold.stat/1\",\"time\":1.0,\"seconds\":{seconds},\"vm\":\"{vm}-7\"{mode}{}}}\n",
            known.collect::<String>()
        )
    }

    proptest! {
        #[test]
        fn any_text_is_a_recording_or_an_error(
            data in bytes(),
            lines in proptest::collection::vec(
                (0..3u8, 0.0..1e3f64, 0..4usize, proptest::collection::vec(proptest::option::weighted(0.95, prop_oneof![
                    0..1u64 << 20, 0..=1u64 << 53, any::<u64>(),
                ]), 1..60)),
                0..8,
            ),
        ) {
            vms(&data);
            let modes = ["", ",\"mode\":\"nested\"", ",\"mode\":\"shadow\"", ",\"mode\":\"shadow\",\"load\":0.5,\"cycles\":2e9"];
            let text: String = lines.iter().map(|(vm, s, mode, n)| line(*vm, *s, modes[*mode], n)).collect();
            vms(text.as_bytes());
        }
    }
}
