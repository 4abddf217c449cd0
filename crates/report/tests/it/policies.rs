// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies over programs in every form.

use crate::fixture::{policy_comparison, three_modes};
use bifold_policy::Mode;
use bifold_report::Format;
use serde_json::Value;

#[test]
fn table_of_two_programs() {
    insta::assert_snapshot!(policy_comparison().render(Format::Table).unwrap());
}

#[test]
fn table_of_one_program_has_its_oracle_and_static_modes() {
    let mut c = policy_comparison();
    c.evaluation.programs.truncate(1);
    c.checks = None;
    insta::assert_snapshot!(c.render(Format::Table).unwrap());
}

#[test]
fn tables_of_many_policies_with_long_names_have_at_most_100_columns() {
    let mut c = policy_comparison();
    c.evaluation.programs[1].name = "configure".into();
    for s in &mut c.evaluation.policies {
        s.worst_program = "configure".into();
    }
    for check in c.checks.iter_mut().flatten().flat_map(|(_, checks)| checks) {
        (check.name, check.cycles) = ("work-function".into(), 35_000_000_000.0);
    }
    for p in &mut c.evaluation.programs {
        let row = p.rows[0].clone();
        p.rows = (0..25)
            .map(|i| bifold_policy::evaluate::PolicyRuns {
                policy: format!("policy-number-{i}"),
                ..row.clone()
            })
            .collect();
    }
    let table = c.render(Format::Table).unwrap();
    let widest = table.lines().map(|l| l.chars().count()).max().unwrap();
    assert!(widest <= 100, "{widest} columns:\n{table}");
    assert!(table.contains("24"), "{table}");
}

#[test]
fn rows_of_every_kind() {
    let c = policy_comparison();
    insta::assert_snapshot!(c.render(Format::Csv).unwrap());
    let jsonl = c.render(Format::Jsonl).unwrap();
    let kinds: Vec<String> = jsonl
        .lines()
        .map(|l| serde_json::from_str::<Value>(l).unwrap()["type"].as_str().unwrap().to_string())
        .collect();
    let count = |kind: &str| kinds.iter().filter(|k| *k == kind).count();
    let counts = ["evaluation", "program", "policy", "row", "check"].map(count);
    assert_eq!(counts, [1, 2, 2, 8, 1], "{jsonl}");
    let v: Value = serde_json::from_str(&c.render(Format::Json).unwrap()).unwrap();
    assert_eq!(v["schema"], "bifold.policy-compare/2");
    assert_eq!(v["programs"][1]["rows"][0]["runs"].as_array().unwrap().len(), 2);
    assert_eq!(v["checks"][0]["passed"], false);
}

#[test]
fn a_third_mode_has_its_columns_rows_curve_and_colour_where_a_program_has_it() {
    let c = three_modes();
    let table = c.render(Format::Table).unwrap();
    let rows = c.render(Format::Csv).unwrap();
    insta::assert_snapshot!(format!("{table}\n{rows}"));
    let v: Value = serde_json::from_str(&c.render(Format::Json).unwrap()).unwrap();
    let modes = |program: usize| v["programs"][program]["modes"].as_array().unwrap().len();
    assert_eq!((modes(0), modes(1)), (3, 2));
    let best = v["programs"][0]["rows"][2]["runs"].as_array().unwrap();
    assert!(best.iter().all(|run| run["offset_share"].as_f64().unwrap() > 0.9), "{best:?}");
    let page = c.render_html().unwrap();
    for part in [
        "static<br>offset, %",
        "time in<br>offset, %",
        "<span class=\"dot\" style=\"background: var(--offset-4k, var(--offset))\"></span>offset",
        "when to switch between shadow, nested and offset paging",
        "from all starting modes, and the table has the worst run",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert!(page.contains("--offset:"), "the style sheet has the mode's colour");
    let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let v: Value = serde_json::from_str(data).unwrap();
    assert_eq!(v[0]["strips"]["modes"], serde_json::json!(["shadow", "offset"]));
    assert_eq!(v[0]["curves"][2]["name"], "offset");
    let last = v[0]["strips"]["strips"][0]["stretches"].as_array().unwrap().last().unwrap();
    assert_eq!(last.as_array().unwrap()[1..], [0, 100].map(Value::from), "the oracle is in offset mode");
}

/// `BIFOLD_POLICY_REPORT=FILE` keeps the page, to be looked at.
#[test]
fn the_page_escapes_names_and_joins_what_a_screen_cannot_show() {
    let mut c = policy_comparison();
    for p in &mut c.evaluation.programs {
        p.intervals = 4000;
        let row = &mut p.rows[0];
        for (_, run) in row.runs.iter_mut() {
            run.modes = (0..4000).map(|i| [Mode::Shadow, Mode::Nested][i % 3 % 2]).collect();
        }
    }
    let page = c.render_html().unwrap();
    if let Some(path) = std::env::var_os("BIFOLD_POLICY_REPORT") {
        std::fs::write(path, &page).unwrap();
    }
    assert!(!page.contains("</script><b>two"));
    assert_eq!(page.matches("<script").count(), page.matches("</script>").count());
    let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let v: Value = serde_json::from_str(data).unwrap();
    let strips = v[0]["strips"]["strips"].as_array().unwrap();
    assert_eq!(strips.len(), 3);
    assert!(strips[1]["stretches"].as_array().unwrap().len() <= 400);
}
