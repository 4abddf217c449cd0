// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the pages show: the numbers of charts, the words that explain them, tables on narrow screens.

use crate::fixture::{comparison, places, policies, policy_comparison, several_regions};
use bifold_mmu::PageSize;
use bifold_model::{CacheFacts, Config, Paging};
use bifold_report::{Comparison, PageTable};
use serde_json::Value;

/// The comparison with data caches and waits for host frames, some of whose figures differ from the sums of
/// their rounded parts.
pub fn with_caches() -> Comparison {
    let mut c = comparison();
    c.outcome.caches = Some(CacheFacts { simulated_classes: 8, data_overlap: 4.0, walk_overlap: 2.0 });
    for (i, o) in c.outcome.configs.iter_mut().enumerate() {
        o.total.data_stall_cycles = 40_000_000;
        o.total.ideal_stall_cycles = if i == 0 { 41_000_000 } else { 33_333_333 };
        o.total.frames_stall_cycles = if i == 0 { 41_000_000 } else { 35_000_001 };
    }
    c
}

/// The figures of the page's table: the names of its columns, and the cells of each row.
fn figures(page: &str) -> (Vec<String>, Vec<Vec<String>>) {
    let table = page.split_once("<h2>Figures</h2>").unwrap().1.split_once("</table>").unwrap().0;
    let cells = |row: &str, tag: &str| -> Vec<String> {
        let cells = row.split(tag).skip(1).map(|c| c.split_once('>').unwrap().1);
        cells.map(|c| c.split_once("</t").unwrap().0.to_string()).collect()
    };
    let (head, body) = table.split_once("<tbody>").unwrap();
    let heads = cells(head.rsplit_once("<tr>").unwrap().1, "<th ");
    let names =
        heads.into_iter().skip(1).map(|head| head.split("<br>").next().unwrap().to_string()).collect();
    (names, body.split("<tr>").skip(1).map(|row| cells(row, "<td")).collect())
}

fn data(page: &str) -> Value {
    let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    serde_json::from_str(data).unwrap()
}

#[test]
fn charts_and_the_table_of_a_page_show_the_same_numbers() {
    for c in [comparison(), with_caches()] {
        let page = c.render_html().unwrap();
        let (names, rows) = figures(&page);
        let data = data(&page);
        let bars = data["bars"].as_array().unwrap();
        assert_eq!(bars.len(), rows.len());
        for (bar, row) in bars.iter().zip(&rows) {
            assert_eq!(names.len(), row.len());
            for (name, cell) in names.iter().zip(row) {
                assert_eq!(bar["cells"][name], **cell, "{name} of {}", bar["config"]);
            }
            let parts: f64 = ["ideal", "walk", "vmm", "data", "frames"]
                .map(|part| bar[part].as_f64().unwrap())
                .iter()
                .sum();
            let all = bar["time"].as_f64().unwrap();
            assert!((parts - all).abs() < 1e-6, "the parts of {} make {parts}, not {all}", bar["config"]);
        }
        let has_data = c.outcome.caches.is_some();
        assert!(["data", "frames"].iter().all(|name| names.contains(&name.to_string()) == has_data));
        assert_eq!(data["has_data"], has_data);
        // The heads are those of the terminal.
        let table = c.render(bifold_report::Format::Table).unwrap();
        let line = table.lines().find(|l| l.contains("time") && l.contains("band")).unwrap();
        assert_eq!(line.split_whitespace().collect::<Vec<_>>(), names);
    }
}

/// A long-lived VM's figures leave first touches out: the page says so as the terminal does.
#[test]
fn a_page_says_what_a_vm_that_has_just_started_pays() {
    let mut c = comparison();
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let said =
        |c: &Comparison| words(&c.render_html().unwrap()).contains("A VM that has just started also pays");
    assert!(!said(&c));
    c.outcome.vm = bifold_model::VmState::LongLived;
    for o in &mut c.outcome.configs {
        o.total.frames_first_used = 1000;
    }
    assert!(said(&c));
    let table = words(&c.render(bifold_report::Format::Table).unwrap());
    let line = table.split_once("started A VM").unwrap().1.split_once("such a VM.").unwrap().0;
    assert!(words(&c.render_html().unwrap()).contains(line), "{line}");
}

/// The end of a region cuts an interval, so steps of the policies' strips are as long as the timeline's.
#[test]
fn strips_of_several_regions_have_the_timelines_steps() {
    let page = |regions| {
        let mut c = comparison();
        c.policies = Some(policies());
        if regions > 1 {
            several_regions(&mut c.outcome, regions);
        }
        data(&c.render_html().unwrap())
    };
    assert!(page(1)["strips"]["step"].is_number() && page(1)["strips"]["starts"].is_null());
    let page = page(2);
    let mut starts: Vec<f64> =
        page["timeline"].as_array().unwrap().iter().map(|p| p["from"].as_f64().unwrap()).collect();
    starts.dedup();
    let of_strips: Vec<f64> =
        page["strips"]["starts"].as_array().unwrap().iter().map(|s| s.as_f64().unwrap()).collect();
    assert_eq!(of_strips, starts);
}

#[test]
fn a_page_explains_the_columns_that_it_has() {
    let prose = |c: &Comparison| {
        let page = c.render_html().unwrap();
        page.split_once("<script").unwrap().0.to_string()
    };
    let plain = prose(&comparison());
    assert!(
        plain.replace('\n', " ").contains("CPI of 0.5 and of 2.0") && !plain.contains("waits for data"),
        "{plain}"
    );
    assert!(!plain.contains("columns for half and double the CPI"));
    let cached = prose(&with_caches());
    let columns = ["“Data” is what the program waits", "“Frames” is what it waits longer because"];
    assert!(columns.iter().all(|words| cached.contains(words)) && !cached.contains("assumed CPI"));
    for words in ["<i>shadow</i> paging", "<i>4k</i> is 4 KB, <i>2m</i> is 2 MB."] {
        assert!(plain.contains(words), "{words}");
    }
    let mut few = comparison();
    few.outcome.configs.truncate(2);
    few.outcome.configs[1].config = Config::new(Paging::Nested, PageSize::Size1G);
    let few = prose(&few);
    assert!(few.contains("is the size of the host's pages: <i>1g</i> is 1 GB."), "{few}");
    assert!(!few.contains("<i>shadow</i> paging") && !few.contains("<i>offset</i>"));
}

/// A table that a narrow screen would cut off makes the whole page scroll sideways.
#[test]
fn every_table_of_every_page_scrolls_within_its_own_part_or_folds() {
    let mut c = with_caches();
    c.policies = Some(policies());
    c.places = Some(places(30));
    let table = PageTable { title: "t".into(), head: vec!["a".into()], ..PageTable::default() };
    let page = bifold_report::Page { tables: vec![table], ..bifold_report::Page::default() };
    let pages =
        [c.render_html().unwrap(), policy_comparison().render_html().unwrap(), page.render().unwrap()];
    let counts = pages.map(|page| {
        let style = page.split_once("<style>").unwrap().1.split_once("</style>").unwrap().0;
        assert!(
            style.contains(".scroll { overflow-x: auto;") && style.contains(".plain td { display: block;")
        );
        let body = page.split_once("<body>").unwrap().1.split_once("<script").unwrap().0;
        let tables: Vec<(usize, &str)> = body.match_indices("<table").collect();
        for (at, _) in &tables {
            let (before, own) = body.split_at(*at);
            let folds = own.starts_with("<table class=\"plain\"");
            assert!(folds || before.trim_end().ends_with("<div class=\"scroll\">"), "{own}");
        }
        tables.len()
    });
    assert!(counts[0] >= 6 && counts[1] >= 3 && counts[2] == 1, "{counts:?}");
}

#[test]
fn the_image_of_times_has_a_bar_with_its_time_for_each_configuration_and_escapes_text() {
    for c in [comparison(), with_caches()] {
        let svg = c.render_chart().unwrap();
        assert!(svg.starts_with("<svg xmlns=") && svg.contains("prefers-color-scheme: dark"));
        assert!(svg.contains("&lt;b&gt;") && !svg.contains("<b>"), "{svg}");
        let table = c.render(bifold_report::Format::Table).unwrap();
        for config in Config::ALL.map(Config::name) {
            let row = table.lines().find(|l| l.starts_with(&format!("{config} "))).unwrap();
            let time = row.split_whitespace().nth(1).unwrap();
            assert!(
                svg.contains(&format!(">{config}</text>")) && svg.contains(&format!(">{time} ms</text>")),
                "{svg}"
            );
        }
        assert_eq!(svg.contains("waits for data"), c.outcome.caches.is_some());
    }
}
