// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-host`: files of a live host's kernel, and the journal of KSM's settings.

use bifold_host::{CommandLine, Forecast, MemInfo, PagingStats, State, VmId, VmStat, psi};

/// A live host's files about a VM: no value, or a value that is written back unchanged.
pub fn host(data: &[u8]) {
    let stats = PagingStats::parse(data);
    let values = stats.values();
    let known = PagingStats::STATS.iter().zip(values).filter_map(|(s, v)| Some((s.name, v?)));
    let text: String = known.map(|(name, value)| format!("{name} {value}\n")).collect();
    assert_eq!(PagingStats::parse(text.as_bytes()), stats);
    // A truncated file has no figure that the whole file lacks.
    for (part, whole) in PagingStats::parse(&data[..data.len() / 2]).values().iter().zip(values) {
        assert!(part.is_none() || *part == whole);
    }
    if let Some(state) = State::parse(data) {
        assert_eq!(State::parse(state.to_string().as_bytes()), Some(state));
    }
    let forecast = Forecast::parse(data);
    if let Some(obstacle) = forecast.as_ref().and_then(Forecast::obstacle) {
        let vcpu = obstacle.vcpu.map_or(String::new(), |n| format!(" vcpu {n}"));
        let line = format!("{}{vcpu}\n", obstacle.reason.word());
        assert_eq!(Forecast::parse(line.as_bytes()), forecast);
        // A truncated line is nothing.
        assert_eq!(Forecast::parse(&data[..data.len() - 1]), None);
        assert!(!obstacle.to_string().contains(char::is_control), "{obstacle}");
    }
    if let Some(id) = std::str::from_utf8(data).ok().and_then(VmId::parse) {
        assert_eq!(id.to_string().as_bytes(), data);
    }
    assert_ne!(CommandLine::parse(data).guest_name(), Some(String::new()));
}

/// The host's `meminfo`, `vmstat` and `pressure/memory`: figures that the text has, or none.
pub fn memory(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let amounts = MemInfo::parse(&text);
    assert!(amounts.total.is_none() || text.contains("MemTotal"), "{amounts:?}");
    assert!(amounts.available.is_none() || text.contains("MemAvailable"), "{amounts:?}");
    let counts = VmStat::parse(&text);
    for name in text.lines().filter_map(|line| line.split_once(' ')).map(|(name, _)| name).take(8) {
        if let Some(count) = counts.get(name) {
            assert!(text.contains(&count.to_string()), "{name} {count}");
        }
    }
    if let Some(percent) = psi::<f64>(&text, "avg60=") {
        assert!(text.contains("some ") && text.contains("avg60="), "{percent}");
    }
}

/// KSM's files and the journal of its settings.
pub fn ksm(data: &[u8]) {
    use bifold_host::ksm::{Journal, ProcessKsm, Setting};
    let Ok(text) = std::str::from_utf8(data) else { return };
    if let Ok(journal) = Journal::parse(text) {
        assert!(journal.found.get(Setting::Run).is_some_and(|run| run < 3));
        assert_eq!(Journal::parse(&journal.text()), Ok(journal));
    }
    for setting in Setting::ALL.iter().copied() {
        if let Some(value) = setting.parse(text) {
            assert_eq!(setting.parse(&setting.text(value)), Some(value));
        }
    }
    // A file that was cut within a line may have a shorter number, but never the number of another figure.
    let (whole, first) = (ProcessKsm::parse(text), text.lines().next().unwrap_or_default());
    if text.lines().count() < 2 {
        assert_eq!(ProcessKsm::parse(first), whole);
    }
}

/// The kernel's histogram of a trace event: numbers that the text has, or an error.
pub fn histogram(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(histogram) = bifold_host::exit_counts::parse(&text) else { return };
    assert!(text.contains("Dropped:"), "{histogram:?}");
    for (thread, key) in histogram.counts.keys() {
        assert!(text.contains(&thread.to_string()), "{thread}");
        assert!(*key == 0 || text.contains(&key.to_string()), "{key}");
    }
}

/// The text of a process's `smaps`: areas of whole pages with the flag of mergeable memory.
pub fn smaps(data: &[u8]) {
    use bifold_host::ksm::mergeable_areas;
    let text = String::from_utf8_lossy(data);
    let areas = mergeable_areas(&text);
    assert!(areas.len() <= text.matches("VmFlags:").count());
    for a in &areas {
        assert!(a.start < a.end && a.start % 4096 == 0 && a.end % 4096 == 0, "{a:?}");
    }
    // Lines that a later kernel may add change nothing.
    let more: String = text.lines().map(|line| format!("{line}\nNew: 7 kB\n")).collect();
    assert_eq!(mergeable_areas(&more), areas);
}

/// QEMU's command line, and its monitor's answers about memory: values that the text has, or none.
pub fn monitor(data: &[u8]) {
    use bifold_host::guest_memory::{GuestStatistics, MonitorPlace, VirtioMem};
    if let Some(place) = MonitorPlace::of(&CommandLine::parse(data)) {
        // A journal has it on one line.
        assert!(!place.to_string().contains('\n'), "{place}");
        assert_eq!(MonitorPlace::parse(&place.to_string()), Some(place));
    }
    let Ok(answer) = serde_json::from_slice(data) else { return };
    let stats = GuestStatistics::parse(&answer);
    for figure in [stats.free, stats.available, stats.major_faults, stats.oom_kills] {
        assert_ne!(figure, Some(u64::MAX), "{stats:?}");
    }
    assert!(VirtioMem::parse(&answer).iter().all(|d| d.block.is_power_of_two()));
}

/// A cgroup's files of memory, the host's swap and pressure, and a process's memory: figures that the text
/// has, or none.
pub fn memory_group(data: &[u8]) {
    use bifold_host::guest_memory::{Limit, MemoryGroup, ProcessMemory, Swap};
    let text = String::from_utf8_lossy(data);
    if let Some(Limit::Bytes(bytes)) = Limit::parse(&text) {
        assert!(text.contains(&bytes.to_string()), "{bytes}");
    }
    if let Some(us) = psi::<u64>(&text, "total=") {
        assert!(text.contains("some ") && text.contains("total="), "{us}");
    }
    assert!(Swap::parse(&text).is_none() || text.contains("SwapTotal"));
    let group = MemoryGroup { stat: VmStat::parse(&text), ..MemoryGroup::default() };
    assert!(group.refaults().is_none() || text.contains("workingset_refault"));
    let memory = ProcessMemory::parse(&text, &text, &text);
    assert!(memory.locked.is_none() || text.contains("VmLck"), "{memory:?}");
    assert!(memory.hugetlb.is_none() || text.to_lowercase().contains("hugetlb"), "{memory:?}");
}

#[cfg(test)]
mod tests {
    use super::super::inputs::bytes;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_bytes_are_a_hosts_files_or_say_nothing(
            data in bytes(), text in "\\PC{0,200}",
            lines in "((switches_to_(shadow|nested)|vcpus|quiesce_ns_(last|worst)|x) [0-9]{0,22}[ x]?\n?){0,20}",
            state in "(nested|shadow| -> |\n){0,4}", id in "[0-9+]{0,11}-[0-9]{0,3}",
            cmdline in "(-name|--name|guest=|a|,|=|\0){0,12}", refusal in "(none|dma|smm|real-mode|[a-z_-]{1,40})?( vcpu )?[0-9]{0,11}\n?",
        ) {
            host(&data);
            for text in [text, lines, state, id, cmdline, refusal] {
                host(text.as_bytes());
            }
        }

        #[test]
        fn any_text_is_the_hosts_memory_or_says_nothing(
            data in bytes(), amounts in "((MemTotal|MemAvailable|x): {1,9}-?[0-9]{0,21} kB\n){0,5}",
            counts in "((pgfault|pgmajfault|x) -?[0-9]{0,21}\n){0,5}",
            pressure in "((some|full) avg10=[0-9.]{1,5} avg60=[0-9.e-]{1,9} total=1\n){0,3}",
        ) {
            memory(&data);
            for text in [amounts, counts, pressure] {
                memory(text.as_bytes());
            }
        }

        #[test]
        fn any_text_is_of_a_monitor_or_says_nothing(
            data in bytes(),
            cmdline in "(-qmp|-mon|-chardev|unix:|/a|,|=|socket|id=m|path=/b|server|on|chardev=m|mode=control|\n|\0){0,16}",
            stats in "\\{\"stats\": \\{\"stat-(free|total|available)-memory\": -?[0-9]{1,20}\\}, \"last-update\": [0-9]{1,21}\\}",
            device in "\\[\\{\"type\": \"(dimm|virtio-mem)\", \"data\": \\{\"requested-size\": 1, \"size\": 2, \"max-size\": 3, \"block-size\": [0-9]{1,3}\\}\\}\\]",
        ) {
            monitor(&data);
            for text in [cmdline, stats, device] {
                monitor(text.as_bytes());
            }
        }

        #[test]
        fn any_text_is_a_groups_memory_or_says_nothing(
            data in bytes(), limit in "(max|-?[0-9]{1,22})\n?",
            lines in "((workingset_refault(_anon|_file)?|anon) -?[0-9]{1,21}\n|(VmLck|Swap(Total|Free)?|Rss|Private_Hugetlb): {1,9}-?[0-9]{0,21} kB\n){0,6}",
            stalls in "((some|full) avg10=[0-9.]{1,5} total=-?[0-9]{0,21}\n){0,3}",
        ) {
            memory_group(&data);
            for text in [limit, lines, stalls] {
                memory_group(text.as_bytes());
            }
        }

        #[test]
        fn any_text_is_a_histogram_or_an_error(
            data in bytes(), entries in "(\\{ common_pid: {1,9}[0-9]{1,11}(, [a-z_]{1,9}: [0-9]{1,21})? \\} hitcount: [0-9]{1,21}\n){0,3}",
            totals in "Entries: [0-3]\nDropped: [0-9]{0,21}\n",
        ) {
            histogram(&data);
            histogram((entries + &totals).as_bytes());
        }

        #[test]
        fn any_text_is_what_ksm_says_or_nothing(
            journal in "(bifold-ksm 1\n)?(pid [0-9]{1,4}\n|run [0-4]\n|advisor_mode [a-z-]{1,9}\n|end\n){0,6}",
            figures in "(ksm_[a-z_]{1,14}:? (yes|no|-?[0-9]{1,21})\n){0,4}",
            areas in "(([1-4]000-[2-5]00[01] rw-p 0 0:0 0|Rss: [0-9]{0,21} kB|AnonHugePages: 4 kB|VmFlags: rd( mg)?)\n){0,9}",
            data in bytes(),
        ) {
            ksm(&data);
            ksm(journal.as_bytes());
            ksm(figures.as_bytes());
            smaps(&data);
            smaps(areas.as_bytes());
        }
    }
}
