// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's text of a histogram: the file `hist` of a trace event.
//!
//! The format is that of `hist_trigger_show`, `event_hist_trigger_print`, `hist_trigger_print_key` and
//! `hist_trigger_print_val` in Linux's `kernel/trace/trace_events_hist.c`, the same in 6.1 and 6.12 for keys
//! without modifiers:
//!
//! ```text
//! # event histogram
//! #
//! # trigger info: hist:keys=common_pid,exit_reason:vals=hitcount:sort=hitcount:size=32768 [active]
//! #
//!
//! { common_pid:       1234, exit_reason:         48 } hitcount:         17
//!
//! Totals:
//!     Hits: 17
//!     Entries: 1
//!     Dropped: 0
//! ```

use std::collections::BTreeMap;

/// The counts of one trace event.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Events by thread and second key. The second key is 0 in a histogram by thread alone.
    pub counts: BTreeMap<(u32, u64), u64>,
    /// Events that were counted, which the kernel reads behind the entries: at least their sum.
    pub hits: u64,
    /// Events that were not counted, because the table was full.
    pub dropped: u64,
}

/// A text that is no histogram by threads.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("this is no histogram of a trace event by threads: {0}")]
pub struct BadHistogram(&'static str);

/// Reads the first histogram of a text.
///
/// ```
/// use bifold_host::exit_counts::parse;
///
/// let text = "# event histogram\n#\n# trigger info: hist:keys=common_pid,exit_reason:vals=hitcount:\
///             sort=hitcount:size=32768 [active]\n#\n\n\
///             { common_pid:       1234, exit_reason:         48 } hitcount:         17\n\n\
///             Totals:\n    Hits: 17\n    Entries: 1\n    Dropped: 0\n";
/// assert_eq!(parse(text)?.counts[&(1234, 48)], 17);
/// # Ok::<(), bifold_host::exit_counts::BadHistogram>(())
/// ```
///
/// # Errors
/// If the text is cut off, has other keys, or its trigger was removed or paused.
pub fn parse(text: &str) -> Result<Histogram, BadHistogram> {
    let mut histogram = Histogram::default();
    let (mut entries, mut promised) = (0u64, None);
    for line in text.lines() {
        if line.starts_with("# trigger info:") && line.trim_end().ends_with("[paused]") {
            return Err(BadHistogram("somebody has paused its trigger"));
        } else if line.starts_with('{') {
            let (key, count) = entry(line).ok_or(BadHistogram("an entry has unknown keys or no count"))?;
            let sum = histogram.counts.entry(key).or_default();
            *sum = sum.saturating_add(count);
            entries += 1;
        } else if let Some(hits) = total(line, "Hits") {
            histogram.hits = hits;
        } else if let Some(number) = total(line, "Entries") {
            promised = Some(number);
        } else if let Some(dropped) = total(line, "Dropped") {
            histogram.dropped = dropped;
            if promised != Some(entries) {
                return Err(BadHistogram("the number of its entries is not that of its totals"));
            }
            return Ok(histogram);
        }
    }
    Err(BadHistogram("it is cut off, or its trigger was removed"))
}

/// `{ common_pid: 1234, exit_reason: 48 } hitcount: 17`
fn entry(line: &str) -> Option<((u32, u64), u64)> {
    let (keys, count) = line.strip_prefix('{')?.split_once('}')?;
    let mut keys = keys.split(',').map(|k| k.split_once(':').map(|(name, n)| (name.trim(), n.trim())));
    let (name, thread) = keys.next()??;
    let second = match keys.next() {
        None => 0,
        Some(key) => key?.1.parse().ok()?,
    };
    let known = name == "common_pid" && keys.next().is_none();
    let count = count.trim().strip_prefix("hitcount:")?.trim().parse().ok()?;
    Some(((thread.parse().ok()?, second), count)).filter(|_| known)
}

fn total(line: &str, name: &str) -> Option<u64> {
    line.trim().strip_prefix(name)?.strip_prefix(':')?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A histogram as the kernel prints it. A key is a name and a number.
    fn printed(entries: &[(&[(&str, u64)], u64)], dropped: u64) -> String {
        let mut text =
            "# event histogram\n#\n# trigger info: hist:keys=common_pid,exit_reason:vals=hitcount:\
                        sort=hitcount:size=32768 [active]\n#\n\n"
                .to_owned();
        for (keys, count) in entries {
            let keys: Vec<_> = keys.iter().map(|(name, n)| format!("{name}: {n:>10}")).collect();
            text += &format!("{{ {} }} hitcount: {count:>10}\n", keys.join(", "));
        }
        let hits: u64 = entries.iter().map(|(_, n)| n).sum();
        let number = entries.len();
        text + &format!("\nTotals:\n    Hits: {hits}\n    Entries: {number}\n    Dropped: {dropped}\n")
    }

    /// The documentation's example of a table by thread alone (histogram.rst), with our filter in the second
    /// line.
    const BY_THREAD: &str = "# event histogram
#
# trigger info: hist:keys=common_pid:vals=hitcount:sort=hitcount:size=4096 if exception == 14 && reinjected == 0 [active]
#

{ common_pid:         45 } hitcount:          1
{ common_pid:    4194304 } hitcount: 98765432109

Totals:
    Hits: 98765432110
    Entries: 2
    Dropped: 0
";

    #[test]
    fn entries_have_one_key_or_two() {
        let seen = parse(BY_THREAD).unwrap();
        assert_eq!(seen.counts, BTreeMap::from([((45, 0), 1), ((4194304, 0), 98765432109)]));
        assert_eq!((seen.hits, seen.dropped), (98765432110, 0));
        // A failed entry of Intel, and a reason of AMD that KVM holds as -1.
        let (failed, none) = (0x8000_0021, u64::from(u32::MAX));
        let text = printed(
            &[
                (&[("common_pid", 7), ("exit_reason", failed)], 1),
                (&[("common_pid", 7), ("exit_reason", none)], 2),
                (&[("common_pid", 8), ("exit_reason", 30)], 3),
            ],
            5,
        );
        let seen = parse(&text).unwrap();
        assert_eq!(seen.counts, BTreeMap::from([((7, failed), 1), ((7, none), 2), ((8, 30), 3)]));
        assert_eq!((seen.hits, seen.dropped), (6, 5));
        assert_eq!(parse(&printed(&[], 0)).unwrap(), Histogram::default());
    }

    #[test]
    fn what_is_cut_off_removed_or_paused_is_an_error() {
        let whole = BY_THREAD.trim_end().len();
        for length in 0..whole {
            assert!(parse(&BY_THREAD[..length]).is_err(), "{length}");
        }
        assert_eq!(
            parse("").unwrap_err().to_string(),
            "this is no histogram of a trace event by threads: it is cut off, or its trigger was removed"
        );
        let paused = BY_THREAD.replace("[active]", "[paused]");
        assert_eq!(parse(&paused), Err(BadHistogram("somebody has paused its trigger")));
        let lacking = BY_THREAD.replace("{ common_pid:         45 } hitcount:          1\n", "");
        assert_eq!(parse(&lacking), Err(BadHistogram("the number of its entries is not that of its totals")));
    }

    #[test]
    fn entries_with_other_keys_are_an_error() {
        let other: [&[(&str, u64)]; 3] = [
            &[("common_cpu", 1)],
            &[("exit_reason", 1), ("common_pid", 7)],
            &[("common_pid", 7), ("isa", 1), ("exit_reason", 30)],
        ];
        for keys in other {
            assert!(parse(&printed(&[(keys, 1)], 0)).is_err(), "{keys:?}");
        }
        let named = BY_THREAD.replace("        45 }", "qemu-system-x86 [        45] }");
        assert!(parse(&named).is_err());
    }

    #[test]
    fn another_histogram_of_the_same_event_is_not_ours() {
        let ours = printed(&[(&[("common_pid", 7), ("exit_reason", 30)], 3)], 0);
        let theirs = printed(&[(&[("vcpu_id", 0)], 3)], 0);
        assert_eq!(parse(&format!("{ours}\n\n{theirs}")), parse(&ours));
    }

    proptest! {
        #[test]
        fn any_text_is_a_histogram_or_an_error(text in "[\\{\\} ,:a-z_#\\[\\]0-9\n]{0,200}") {
            let _ = parse(&text);
            // A text between likely lines gets further.
            let _ = parse(&BY_THREAD.replace("hitcount:          1\n", &text));
            let _ = parse(&BY_THREAD.replace("Entries: 2", &text));
        }

        #[test]
        fn what_the_kernel_prints_comes_back(
            counts in proptest::collection::btree_map((any::<u32>(), any::<u64>()), 0..u64::MAX >> 8, 0..50),
            dropped: u64,
        ) {
            let keys: Vec<_> = counts
                .keys()
                .map(|(thread, reason)| [("common_pid", u64::from(*thread)), ("exit_reason", *reason)])
                .collect();
            let entries: Vec<_> = keys.iter().map(|k| &k[..]).zip(counts.values().copied()).collect();
            let seen = parse(&printed(&entries, dropped)).unwrap();
            prop_assert_eq!(seen, Histogram { hits: counts.values().sum(), counts, dropped });
        }
    }
}
