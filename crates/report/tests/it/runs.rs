// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several runs of one command in every form.

use crate::fixture::comparison;
use crate::outputs::{assert_schema, short};
use bifold_report::{Comparison, Format, Partial, Runs, Show};
use bifold_trace::CommandExit;
use serde_json::Value;

/// Runs that differ a little, and the fifth a lot.
fn runs(n: u64) -> Runs {
    let run = |i: u64| {
        let mut c = comparison();
        c.outcome.input_hash = format!("{i:016x}");
        for o in &mut c.outcome.configs {
            o.total.instructions += 1000 * i;
            o.total.walk_cycles += o.total.walk_cycles / 1000 * (i * i % 7);
            if i == 4 && o.config.name() == "shadow-4k" {
                o.total.vmm_cycles += o.total.vmm_cycles / 20;
                o.total.exits_invlpg += 3;
            }
        }
        c
    };
    Runs { asked: n as usize, runs: (0..n).map(run).collect() }
}

#[test]
fn table_of_six_runs() {
    insta::assert_snapshot!(runs(6).render_table(Show::ALL));
    let brief = runs(6).render(Format::Table).unwrap();
    assert!(!brief.contains("invlpg") && brief.contains("outlier  run 5"), "{brief}");
}

#[test]
fn tables_fit_in_100_columns() {
    let mut r = runs(5);
    for (i, c) in r.runs.iter_mut().enumerate() {
        for o in &mut c.outcome.configs {
            o.total.vmm_cycles *= 1000 + i as u64;
            o.total.exits_cr3_write = 9_999_999 + i as u64 * 100_000;
        }
    }
    let table = r.render_table(Show { exits: true, ..Show::default() });
    let widest = table.lines().map(|l| l.chars().count()).max().unwrap();
    assert!(widest <= 100, "{widest} columns:\n{table}");
}

#[test]
fn runs_that_agree_are_one_table_and_a_line() {
    let r = Runs { asked: 3, runs: vec![comparison(); 3] };
    let text = r.render(Format::Table).unwrap();
    let one = comparison().render(Format::Table).unwrap();
    let line = "runs     3 runs agree to the bit (input hash fedcba9876543210): there is no spread\n";
    assert_eq!(text, one + line);
    // The same events with other figures would be an error of the model, and no agreement.
    let mut other = r.clone();
    other.runs[1].outcome.configs[0].total.walks += 1;
    assert!(r.agree() && !other.agree());
    assert!(!Runs { asked: 3, runs: vec![comparison()] }.agree());
}

#[test]
fn runs_cut_short_say_how_many_are_whole() {
    let r = Runs { asked: 5, ..runs(2) };
    assert!(r.render(Format::Table).unwrap().contains("RUNS     2 of 5 runs are whole"));
    let mut first = comparison();
    first.meta.partial = Some(Partial::Interrupted);
    first.meta.exit = Some(CommandExit::Interrupted);
    let r = Runs { asked: 5, runs: vec![first] };
    let text = r.render(Format::Table).unwrap();
    assert!(
        text.contains("WARNING  PARTIAL: interrupted") && text.contains("RUNS     0 of 5 runs are whole"),
        "{text}"
    );
    assert_schema("bifold.runs/2", &r.render(Format::Json).unwrap());
}

#[test]
fn different_endings_are_told_with_their_runs() {
    let mut r = runs(4);
    assert_eq!(r.ended_differently(), None);
    r.runs[1].meta.exit = Some(CommandExit::Code(3));
    r.runs[3].meta.exit = Some(CommandExit::Signal(9));
    let text = "the runs ended differently: exit status 0 in runs 1 and 3; exit status 3 in run 2; killed by signal 9 in run 4";
    assert_eq!(r.ended_differently().unwrap(), text);
}

#[test]
fn the_run_that_stands_out_is_named() {
    let outliers = runs(6).outliers();
    assert_eq!(outliers.len(), 1, "{outliers:?}");
    assert_eq!((outliers[0].run, outliers[0].config.as_deref()), (5, Some("shadow-4k")));
    assert!(outliers[0].deviations > 5.0 && outliers[0].value > outliers[0].median);
}

#[test]
fn json_is_as_the_schema_says_and_holds_whole_runs() {
    let r = Runs { asked: 3, runs: vec![short(); 2] };
    for r in [&runs(1), &runs(6), &r] {
        assert_schema("bifold.runs/2", &r.render(Format::Json).unwrap());
    }
    let v: Value = serde_json::from_str(&runs(6).render(Format::Json).unwrap()).unwrap();
    let one: Value = serde_json::from_str(&runs(6).runs[2].render(Format::Json).unwrap()).unwrap();
    assert_eq!(v["runs"][2], one);
    assert_eq!((&v["asked"], &v["whole"], &v["streams"]), (&6.into(), &6.into(), &6.into()));
    // Means are those of the runs in it.
    for (i, row) in v["summary"].as_array().unwrap().iter().enumerate() {
        for (name, spread) in row["figures"].as_object().unwrap() {
            let of_run = |run: &Value| run["outcome"]["configs"][i]["figures"][name].as_f64().unwrap();
            let sum: f64 = v["runs"].as_array().unwrap().iter().map(of_run).sum();
            let mean = spread["mean"].as_f64().unwrap();
            assert!((mean - sum / 6.0).abs() <= 1e-9 * mean.abs(), "{name}");
        }
    }
}

#[test]
fn rows_have_the_number_of_their_run() {
    let r = Runs { asked: 2, runs: vec![short(), short()] };
    let one = short();
    let csv = r.render(Format::Csv).unwrap();
    let of_one = one.render(Format::Csv).unwrap();
    let numbered = |(i, l): (usize, &str)| format!("{l},{}\n", if i == 0 { "run" } else { "1" });
    let expected: String = of_one.lines().enumerate().map(numbered).collect();
    assert!(csv.starts_with(&expected), "{csv}");
    assert_eq!(csv.lines().count(), 2 * expected.lines().count() - 1);
    let jsonl = r.render(Format::Jsonl).unwrap();
    let lines: Vec<Value> = jsonl.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let of_one: Vec<Value> =
        one.render(Format::Jsonl).unwrap().lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    for (run, lines) in [(1, &lines[..of_one.len()]), (2, &lines[of_one.len()..2 * of_one.len()])] {
        for (line, expected) in lines.iter().zip(&of_one) {
            let mut line = line.clone();
            assert_eq!(line.as_object_mut().unwrap().remove("run"), Some(run.into()));
            assert_eq!(&line, expected);
        }
    }
    let spreads = &lines[2 * of_one.len()..];
    assert!(spreads.iter().all(|l| l["type"] == "spread" && l["n"] == 2));
    assert_eq!(spreads.len(), 2 * bifold_report::Figures::ALL.len());
}

#[test]
fn the_report_has_a_section_on_the_spread() {
    let page = runs(6).render_html().unwrap();
    for words in
        ["Mean and standard deviation of 6 runs", "Predicted time over the runs", "of run 1", "run 5:"]
    {
        assert!(page.contains(words), "{words}");
    }
    assert!(!page.contains("</script><b>"));
    let agree = Runs { asked: 3, runs: vec![comparison(); 3] };
    assert!(agree.render_html().unwrap().contains("3 runs agree to the bit"));
    let one: Comparison = comparison();
    assert!(!one.render_html().unwrap().contains("standard deviation"));
}
