// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-live`: recordings of VMs, reports of guests, command lines of QEMU.

/// A recording of VMs: an error, or VMs with intervals, over which every policy can be replayed or is
/// refused, and whose pairs of both modes' costs are within bounds.
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
                assert!(replayed.decided.iter().all(|d| vm.intervals[d.interval].seen.mode.is_some()));
            }
        }
        for pair in bifold_live::pairs::pairs(vm).pairs {
            assert!(pair.cycles.values().all(|c| (1.0..=(1u64 << 44) as f64).contains(c)));
            assert!(pair.samples.values().all(|s| s.values().iter().all(|n| *n <= 1 << 44)));
        }
    }
}

/// A guest's reports, in two pieces: lines that are not reports are counted, and each count and name of the
/// others is in its bounds.
pub fn guest_reports(data: &[u8]) {
    use bifold_live::reporter::{MOST_COUNT, MOST_NAMES, Reports};
    let lines = data.iter().filter(|b| **b == b'\n').count() as u64;
    let (mut reports, mut good) = (Reports::default(), 0);
    let (first, second) = data.split_at(data.len() / 2);
    for part in [first, second] {
        reports.read(part, |report| {
            good += 1;
            assert!(report.page_faults.is_none_or(|n| n <= MOST_COUNT));
            assert!(report.uptime_ms.is_none_or(|n| n <= MOST_COUNT));
            assert!(report.progress.len() <= MOST_NAMES);
            let memory = report.memory;
            assert!(
                memory.available.max(memory.free) <= memory.total
                    && memory.total.is_none_or(|n| n <= MOST_COUNT)
            );
            let counts = [memory.major_faults, memory.refaults, memory.waited_us, memory.all_waited_us];
            assert!(counts.into_iter().flatten().all(|n| n <= MOST_COUNT));
            assert!(report.progress.iter().all(|(name, n)| name.len() <= 32 && *n <= MOST_COUNT));
        });
    }
    assert_eq!(good + reports.bad_lines(), lines);
}

/// A VMM's command line: the path of the reporter's socket, which is not empty, or none.
pub fn reporter_socket(data: &[u8]) {
    if let Some(path) = bifold_live::reporter::socket(&bifold_host::CommandLine::parse(data)) {
        assert!(!path.as_os_str().is_empty());
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

        #[test]
        fn any_bytes_are_reports_or_bad_lines(
            data in bytes(),
            counts in proptest::collection::vec(("[a-zA-Z0-9_-]{0,33}", any::<i128>()), 0..20),
            faults in prop_oneof![Just(String::from("1e9")), any::<u64>().prop_map(|n| n.to_string())],
        ) {
            guest_reports(&data);
            let counts: Vec<String> = counts.iter().map(|(name, n)| format!("\"{name}\":{n}")).collect();
            let counts = counts.join(",");
            let line = format!("{{\"schema\":\"bifold.report/1\",\"page_faults\":{faults},\"progress\":{{{counts}}}}}\n");
            guest_reports(&[line.as_bytes(), &data, b"\n", line.as_bytes()].concat());
        }

        #[test]
        fn any_command_line_has_a_socket_or_none(data in bytes(), more in "[=,{}\"a-z.\\x00-]{0,60}") {
            let port = b"\0-device\0virtserialport,chardev=r,name=org.bifold.report.0\0-chardev\0";
            reporter_socket(&data);
            reporter_socket(&[port, b"socket,server,id=r,path=".as_slice(), &data].concat());
            reporter_socket(&[port, b"{\"id\":\"r\",\"backend\":{".as_slice(), more.as_bytes()].concat());
        }
    }
}
