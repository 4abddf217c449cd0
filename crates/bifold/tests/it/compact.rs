// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compact recordings: they give the figures of the whole ones, and are refused where they cannot.

use crate::command::{bifold_in, names};
use std::fs;

#[test]
fn a_compact_recording_gives_the_figures_of_the_whole_one() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = |args: &str| {
        let result = bifold_in(dir.path(), &format!("compare -q --format json {args}")).quietly();
        let mut result: serde_json::Value = serde_json::from_str(&result).unwrap();
        let keys = ["outcome", "policies", "memory"].map(|key| result[key].take());
        let mut text = serde_json::to_string(&keys).unwrap();
        // The hash of the words that were read.
        let at = text.find("\"input_hash\":\"").unwrap();
        text.replace_range(at..at + 30, "");
        text
    };
    for generator in ["fork-storm:10", "pointer-chase:50k", "gups-2m:20k"] {
        let record = format!("record -q --caches off --generate {generator}");
        for to in ["-o whole", "--compact -o compact"] {
            assert_eq!(bifold_in(dir.path(), &format!("{record} {to}")).status, 0);
        }
        bifold_in(dir.path(), "compact -q whole -o again").quietly();
        bifold_in(dir.path(), "compact -q again -o thrice").quietly();
        let read = |name: &str| fs::read(dir.path().join(name)).unwrap();
        assert_eq!(read("compact"), read("again"));
        assert_eq!(read("again"), read("thrice"));
        assert!(read("compact").len() < read("whole").len(), "{generator}");
        for options in [
            "--caches off -i 0.001",
            "--caches off --profile zen4 --set tlb.l2d.ways=0 --seed 7",
            "--caches off --profile phenom2-x3-720 --host-frames fresh",
            "--caches off --memory-use",
            "--caches off --placement smp",
            "--caches off --sample=10k:100k",
            "--caches off --check dsp",
        ] {
            let [whole, compact] = ["whole", "compact"].map(|name| outcome(&format!("{options} {name}")));
            assert_eq!(whole, compact, "{generator} {options}");
        }
    }
}

#[test]
fn data_caches_need_the_whole_recording() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(bifold_in(dir.path(), "record -q --generate t:20000 --compact -o compact").status, 0);
    for (args, words) in [
        ("compare compact -o out", "--caches needs lines, and this recording is compact"),
        ("compare --caches exact compact --report r.html", "Add --caches off, or record without --compact"),
        ("diff compact compact", "--caches needs lines"),
        ("compact compact -o compact", "would overwrite the recording"),
        ("compact compact -o -", "a recording needs a file"),
    ] {
        let text = bifold_in(dir.path(), args).refused();
        assert!(text.starts_with("status 2\n") && text.contains(words), "{args}: {text}");
    }
    let whole = fs::read(dir.path().join("compact")).unwrap();
    fs::write(dir.path().join("cut"), &whole[..whole.len() - 40]).unwrap();
    let text = bifold_in(dir.path(), "compact cut -o out").refused();
    assert!(text.starts_with("status 1\n") && text.contains("recording cut is truncated"), "{text}");
    assert_eq!(names(dir.path()), ["compact", "cut"]);
    let reclaim = bifold_in(dir.path(), "reclaim show -q compact");
    assert_eq!((reclaim.status, reclaim.stderr.as_str()), (0, ""), "it models no data caches");
}
