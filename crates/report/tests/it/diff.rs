// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two results beside each other, and files that are not results.

use crate::fixture::comparison;
use crate::outputs::assert_schema;
use bifold_report::diff::{Diff, Side};
use bifold_report::{Comparison, Format, Partial, Runs};
use proptest::prelude::*;
use serde_json::Value;

/// The comparison with a cost that is changed, on another kernel.
fn changed() -> Comparison {
    let mut c = comparison();
    c.meta.guest.as_mut().unwrap().kernel = Some("6.12.9-amd64".into());
    for o in &mut c.outcome.configs {
        o.total.walk_cycles += o.total.walk_cycles / 10;
        if o.total.exits_cr3_write > 0 {
            o.total.exits_cr3_write *= 3;
            o.total.exits_hidden_fault -= o.total.exits_hidden_fault / 4;
            o.total.vmm_cycles -= o.total.vmm_cycles / 8;
        }
    }
    c
}

fn result(c: &Comparison) -> String {
    c.render(Format::Json).unwrap()
}

fn side(name: &str, json: &str) -> Side {
    Side::from_json(name, json.as_bytes()).unwrap()
}

fn diff(a: &str, b: &str) -> Diff {
    Diff::new(side("a.json", a), side("b.json", b)).unwrap()
}

/// The comparison as runs whose walks differ by some percent.
fn runs(of: &Comparison, percents: &[u64]) -> String {
    let run = |p: &u64| {
        let mut c = of.clone();
        c.outcome.input_hash = format!("{p:016x}");
        c.outcome.configs.iter_mut().for_each(|o| o.total.walk_cycles += o.total.walk_cycles / 100 * p);
        c
    };
    Runs { asked: percents.len(), runs: percents.iter().map(run).collect() }.render(Format::Json).unwrap()
}

#[test]
fn table_of_two_results() {
    insta::assert_snapshot!(diff(&result(&comparison()), &result(&changed())).render(Format::Table).unwrap());
}

#[test]
fn one_command_with_other_events_has_a_note_on_its_environment() {
    let words = |a: &Comparison, b: &Comparison| {
        let table = diff(&result(a), &result(b)).render(Format::Table).unwrap();
        table.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let note = "the same command gave other events: its files differ, or its environment";
    let (a, mut b) = (comparison(), comparison());
    assert!(!words(&a, &b).contains(note));
    b.outcome.input_hash = "0".repeat(16);
    assert!(words(&a, &b).contains(note) && words(&a, &b).contains("`_` and OLDPWD"));
    // Another command has other events in any case.
    b.meta.guest.as_mut().unwrap().command.push("more".into());
    assert!(!words(&a, &b).contains(note));
}

#[test]
fn table_of_two_results_of_several_runs() {
    let d = diff(&runs(&comparison(), &[0, 1, 2, 1]), &runs(&changed(), &[2, 0, 1]));
    let table = d.render(Format::Table).unwrap();
    let widest = table.lines().map(|l| l.chars().count()).max().unwrap();
    assert!(widest <= 100, "{widest} columns:\n{table}");
    insta::assert_snapshot!(table);
}

#[test]
fn a_recording_and_its_result_have_the_same_figures() {
    let c = comparison();
    let d = Diff::new(Side::of("a.bifold", &c), side("a.json", &result(&c))).unwrap();
    let table = d.render(Format::Table).unwrap();
    assert!(table.contains("A and B agree in every counter."), "{table}");
    assert!(!table.contains("differs") && !table.contains("WARNING"), "{table}");
    let v: Value = serde_json::from_str(&d.render(Format::Json).unwrap()).unwrap();
    assert_eq!((&v["a"]["kind"], &v["b"]["kind"]), (&"recording".into(), &"result".into()));
    assert_eq!(v["same"], true);
}

#[test]
fn json_is_as_the_schema_says_and_its_differences_are_those_of_the_sides() {
    let mut partial = changed();
    partial.meta.partial = Some(Partial::TimedOut);
    let (a, b) = (result(&comparison()), result(&changed()));
    for d in [diff(&a, &b), diff(&a, &result(&partial)), diff(&runs(&comparison(), &[0, 3]), &b)] {
        assert_schema("bifold.diff/2", &d.render(Format::Json).unwrap());
    }
    let several =
        diff(&runs(&comparison(), &[0, 3, 5]), &runs(&changed(), &[9, 2])).render(Format::Json).unwrap();
    assert_schema("bifold.diff/2", &several);
    let of = |json: &str| -> Value { serde_json::from_str(json).unwrap() };
    let (v, a, b) = (of(&diff(&a, &b).render(Format::Json).unwrap()), of(&a), of(&b));
    for (i, config) in v["configs"].as_array().unwrap().iter().enumerate() {
        for (name, change) in config["figures"].as_object().unwrap() {
            let figure = |doc: &Value| doc["outcome"]["configs"][i]["figures"][name].as_f64().unwrap();
            // JSON's numbers are read to the last bit but one.
            let close = |x: f64, y: f64| (x - y).abs() <= 1e-9 * (1.0 + y.abs());
            assert!(close(change["a"]["mean"].as_f64().unwrap(), figure(&a)), "{name}");
            assert!(close(change["difference"].as_f64().unwrap(), figure(&b) - figure(&a)), "{name}");
        }
    }
}

#[test]
fn what_cannot_be_compared_is_warned_of() {
    let warned = |change: &dyn Fn(&mut Comparison)| {
        let mut c = comparison();
        change(&mut c);
        diff(&result(&comparison()), &result(&c)).render(Format::Table).unwrap()
    };
    for (words, change) in [
        (
            "not comparable: A is modelled on profile i5-7600, B on other",
            &(|c: &mut Comparison| c.outcome.profile = "other".into()) as &dyn Fn(&mut Comparison),
        ),
        ("profile i5-7600 has other values", &|c| c.outcome.config_hash = "1".into()),
        ("because clock or CPI differ", &|c| c.outcome.base_cpi = 2.0),
        ("because clock or CPI differ", &|c| c.outcome.frequency_hz = 1_000_000_000),
        ("the interval lengths differ", &|c| c.outcome.interval_cycles *= 2),
        ("the seeds of the host frames' placement differ", &|c| c.outcome.seed = 2),
        ("the VM of A is started, that of B long-lived", &|c| {
            c.outcome.vm = bifold_model::VmState::LongLived
        }),
        ("B is partial", &|c| c.meta.partial = Some(Partial::TimedOut)),
        ("3 of B's self-checks FAILED", &|c| c.outcome.walk_mismatches = 3),
        ("only A has shadow-2m", &|c| c.outcome.configs.truncate(4)),
    ] {
        let table = warned(change);
        let one_line = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(table.contains("WARNING") && one_line.contains(words), "{words}: {table}");
    }
    // Another guest is what a diff is made for.
    let table = warned(&|c| c.meta.guest.as_mut().unwrap().kernel = Some("6.12".into()));
    assert!(
        !table.contains("WARNING") && table.contains("differs  kernel: A 6.1.0-41-amd64, B 6.12"),
        "{table}"
    );
}

#[test]
fn sides_without_a_configuration_in_common_are_refused() {
    let (mut a, mut b) = (comparison(), comparison());
    a.outcome.configs.truncate(1);
    b.outcome.configs.remove(0);
    let e = Diff::new(side("a", &result(&a)), side("b", &result(&b))).unwrap_err().to_string();
    assert_eq!(e, "nothing to compare: a has native, b has nested-4k, nested-2m, shadow-4k, shadow-2m");
}

/// The result with another value at a place.
fn with_value(result: &str, place: &str, value: Value) -> String {
    let mut v: Value = serde_json::from_str(result).unwrap();
    *v.pointer_mut(place).expect(place) = value;
    v.to_string()
}

#[test]
fn files_that_are_no_result() {
    let c = comparison();
    let whole = result(&c);
    let with = |from: &str, to: &str| {
        let changed = whole.replacen(from, to, 1);
        assert_ne!(changed, whole, "{from}");
        changed
    };
    let mut all = String::new();
    for (name, text) in [
        ("empty", String::new()),
        ("text", "hello".into()),
        ("csv", c.render(Format::Csv).unwrap()),
        ("jsonl", c.render(Format::Jsonl).unwrap()),
        ("html", c.render_html().unwrap()),
        ("table", c.render(Format::Table).unwrap()),
        ("half", whole[..whole.len() / 2].into()),
        ("other", "{\"schema\": \"bifold.doctor/1\"}".into()),
        ("control", "{\"schema\": \"\\u001b[31mred\"}".into()),
        ("none", "{}".into()),
        ("bare", "{\"schema\": \"bifold.compare/2\"}".into()),
        ("twice", whole.clone() + &whole),
        ("no runs", "{\"schema\": \"bifold.runs/2\", \"runs\": []}".into()),
        ("no configurations", with("\"configs\": [", "\"configs\": [], \"x\": [")),
        ("cpi", with_value(&whole, "/outcome/base_cpi", 1e-300.into())),
        ("clock", with_value(&whole, "/outcome/frequency_hz", 0.into())),
        ("negative", with("\"walk_cycles\": ", "\"walk_cycles\": -")),
        ("huge", with("\"walk_cycles\": ", "\"walk_cycles\": 99999999999")),
        ("missing", with("\"walk_cycles\": ", "\"walk_cicles\": ")),
        ("instructions", with_value(&whole, "/outcome/configs/1/total/instructions", 9.into())),
        ("same twice", with("\"mode\": \"nested\"", "\"mode\": \"native\"")),
    ] {
        let e = Side::from_json(name, text.as_bytes()).expect_err(name).to_string();
        assert!(e.starts_with(name) && !e.contains('\u{1b}'), "{e}");
        // Where in a long document is no part of a golden.
        let e = e.find(" at line ").map_or(e.clone(), |i| format!("{} at line ...", &e[..i]));
        all += &format!("{e}\n");
    }
    insta::assert_snapshot!(all);
}

/// A program that a guest's setting shortens: the ideal run by so many percent, and walks and exits by less.
fn shortened(percent: u64, cost_percent: u64) -> Comparison {
    let mut c = comparison();
    for o in &mut c.outcome.configs {
        o.total.instructions -= o.total.instructions / 100 * percent;
        o.total.walk_cycles -= o.total.walk_cycles / 100 * cost_percent;
        o.total.vmm_cycles -= o.total.vmm_cycles / 100 * cost_percent;
    }
    c
}

/// The overhead of a shorter run is a percentage of less, so that its sign is no sign of the time's.
#[test]
fn a_program_that_a_setting_shortens_takes_less_time_in_every_output() {
    for (percent, cost) in [(8, 0), (20, 5), (50, 30), (70, 1)] {
        let d = diff(&result(&comparison()), &result(&shortened(percent, cost)));
        let v: Value = serde_json::from_str(&d.render(Format::Json).unwrap()).unwrap();
        for config in v["configs"].as_array().unwrap() {
            let of = |figure: &str| config["figures"][figure]["difference"].as_f64().unwrap();
            assert!(of("overhead_percent") > 0.0 && of("seconds") < 0.0, "{config}");
        }
        assert_eq!(v["ideal"]["instructions"]["percent"], -(percent as f64));
        let table = d.render(Format::Table).unwrap();
        let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("B takes ") && words.contains(" % less time than A in "), "{table}");
        assert!(
            words.contains(&format!(
                "The ideal runs differ, so compare times and not overheads: B executes {percent}.00 % fewer"
            )),
            "{table}"
        );
        let times = table.lines().skip_while(|l| !l.starts_with("time, ")).skip(3).take(5);
        assert!(times.clone().count() == 5 && times.clone().all(|l| l.contains(" -")), "{table}");
        assert!(d.render_html().unwrap().contains("% less time than A"));
        let back =
            diff(&result(&shortened(percent, cost)), &result(&comparison())).render(Format::Table).unwrap();
        assert!(
            back.split_whitespace().collect::<Vec<_>>().join(" ").contains(" % more time than A in "),
            "{back}"
        );
    }
}

/// What Bifold wrote before predicted times and states of the VM.
#[test]
fn a_result_of_the_first_version_is_read_beside_a_new_one() {
    let old = include_str!("../../../../python/tests/data/fork-1.json");
    assert!(old.contains("\"bifold.compare/1\""));
    let d = diff(old, &result(&comparison()));
    let table = d.render(Format::Table).unwrap();
    assert!(table.contains("differs  program:") && table.contains("time, "), "{table}");
}

/// A counter that an older Bifold did not have is no reason to refuse; neither is one of a later Bifold.
#[test]
fn results_of_other_versions_are_read() {
    let old = result(&comparison()).replace("\"exits_cr3_read\"", "\"exits_of_tomorrow\"");
    let table = diff(&result(&comparison()), &old).render(Format::Table).unwrap();
    assert!(table.contains("did not count exits_cr3_read"), "{table}");
}

#[test]
fn the_page_escapes_what_users_wrote() {
    let d = Diff::new(Side::of("<b>.bifold", &comparison()), side("b.json", &result(&changed()))).unwrap();
    let page = d.render_html().unwrap();
    assert!(page.contains("&lt;b&gt;.bifold") && !page.contains("<b>"), "escaped");
    assert!(page.contains("Differences in how the results were made") && page.contains("6.12.9-amd64"));
}

proptest! {
    // Each case renders whole results, which are long.
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// Differences are those of the totals, whatever they are: B less A, and with the sign turned A less B.
    #[test]
    fn a_diff_the_other_way_round_has_the_opposite_differences(
        walks in prop::collection::vec(0u64..1 << 40, 1..5), others in prop::collection::vec(0u64..1 << 40, 1..5),
    ) {
        let of = |cycles: &[u64]| {
            let run = |&n: &u64| {
                let mut c = comparison();
                c.outcome.interval_starts.clear();
                for o in &mut c.outcome.configs {
                    o.intervals.clear();
                    o.total.walk_cycles = n;
                }
                c
            };
            Runs { asked: cycles.len(), runs: cycles.iter().map(run).collect() }.render(Format::Json).unwrap()
        };
        let (a, b) = (of(&walks), of(&others));
        let json = |a: &str, b: &str| -> Value { serde_json::from_str(&diff(a, b).render(Format::Json).unwrap()).unwrap() };
        let (there, back) = (json(&a, &b), json(&b, &a));
        let mean = |v: &[u64]| v.iter().map(|&n| n as f64).sum::<f64>() / v.len() as f64;
        let expected = mean(&others) - mean(&walks);
        for i in 0..5 {
            let get = |v: &Value, key: &str| v["configs"][i]["counters"]["walk_cycles"][key].clone();
            let d = get(&there, "difference").as_f64().unwrap();
            prop_assert!((d - expected).abs() <= 1e-6 * (1.0 + expected.abs()));
            prop_assert_eq!(d, -get(&back, "difference").as_f64().unwrap());
            prop_assert_eq!(get(&there, "ci95"), get(&back, "ci95"));
            prop_assert_eq!(get(&there, "beyond_spread"), get(&back, "beyond_spread"));
            prop_assert_eq!(get(&there, "ci95").is_null(), walks.len() < 2 || others.len() < 2);
        }
    }

    /// A document with a part cut out, doubled or changed is a side or refused, and never a panic.
    #[test]
    fn a_damaged_result_is_read_or_refused(at in any::<prop::sample::Index>(), len in 0usize..200, byte in any::<u8>()) {
        let mut c = comparison();
        c.outcome.interval_starts.truncate(1);
        c.outcome.configs.iter_mut().for_each(|o| o.intervals.truncate(1));
        let good = result(&c).into_bytes();
        let start = at.index(good.len());
        let end = (start + len).min(good.len());
        let cut = [&good[..start], &good[end..]].concat();
        let doubled = [&good[..end], &good[start..]].concat();
        let mut changed = good.clone();
        changed[start] = byte;
        for bytes in [&cut, &doubled, &changed, &good[..start].to_vec()] {
            if let Ok(side) = Side::from_json("x", bytes) {
                let d = Diff::new(side.clone(), side).unwrap();
                d.render(Format::Table).unwrap();
                d.render(Format::Json).unwrap();
            }
        }
    }
}
