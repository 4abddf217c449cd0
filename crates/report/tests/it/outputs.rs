// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each output says, and that the JSON is as its schema describes it.

use crate::fixture::{
    comparison, needs, place, places, policies, several_regions, several_vcpus, with_start,
};
use crate::formats::schema_of;
use crate::html::with_caches;
use bifold_attribute::View;
use bifold_model::{Config, ConfigOutcome, Outcome, Sample};
use bifold_report::{Comparison, Format, Input, NoPolicies, Partial, RunPolicies, Show, profile_words};
use bifold_trace::CommandExit;
use serde_json::{Value, json};

pub fn short() -> Comparison {
    let mut c = comparison();
    c.outcome.interval_starts.truncate(2);
    c.outcome.configs.truncate(2);
    c.outcome.configs.iter_mut().for_each(|o| o.intervals.truncate(2));
    c
}

#[test]
fn table() {
    insta::assert_snapshot!(comparison().render(Format::Table).unwrap());
}

#[test]
fn table_of_a_partial_run_whose_checks_failed() {
    let mut c = comparison();
    c.meta.partial = Some(Partial::Interrupted);
    c.meta.exit = Some(CommandExit::Interrupted);
    c.outcome.walk_mismatches = 3;
    c.outcome.untranslated = 12;
    c.outcome.configs.truncate(3);
    insta::assert_snapshot!(c.render(Format::Table).unwrap());
}

#[test]
fn table_of_a_guest_of_two_vcpus() {
    let mut c = comparison();
    several_vcpus(&mut c.outcome);
    insta::assert_snapshot!(c.render(Format::Table).unwrap());
    assert!(c.render_html().unwrap().contains("83 IPIs sent, 80 TLB shootdowns"));
    // A recording without IPIs says nothing of them.
    c.outcome.configs.iter_mut().for_each(|o| o.total.exits_ipi = 0);
    assert!(!c.render(Format::Table).unwrap().contains("IPI"));
}

#[test]
fn table_with_memory() {
    let mut c = comparison();
    c.memory = Some(needs(&c.outcome));
    let table = c.render(Format::Table).unwrap();
    // A loop over 700 pages misses always below, that over 300 too, and its own first round hits.
    let needs = c.memory.as_ref().unwrap().table();
    assert!(table.contains(&needs));
    insta::assert_snapshot!(needs);
}

#[test]
fn a_region_that_a_cold_vm_began_has_a_warning_and_no_verdict() {
    let of = |region: &str, before| {
        let mut c = comparison();
        c.meta.guest.as_mut().unwrap().region = Some(region.into());
        c.outcome.before_region = before;
        c.render(Format::Table).unwrap()
    };
    let cold = of("after 5 instructions", None);
    assert!(cold.contains("WARNING  the region began in a cold VM"), "{cold}");
    assert!(cold.contains("verdict  None, because") && !cold.contains("holds"), "{cold}");
    let warm = of("after 5 instructions", Some(5));
    assert!(!warm.contains("cold VM") && warm.contains("(5 instructions came before)"), "{warm}");
    assert!(!of("for 5 instructions", None).contains("cold VM"));
}

#[test]
fn the_guest_s_own_start_has_a_line_and_is_in_no_figure() {
    let (plain, mut c) = (comparison(), comparison());
    with_start(&mut c.outcome);
    let (before, after) = (plain.render(Format::Table).unwrap(), c.render(Format::Table).unwrap());
    let of_clock = |line: &&str| !line.contains("times ideal");
    let added: Vec<&str> = after.lines().filter(|line| !before.lines().any(|l| l == *line)).collect();
    let added: Vec<&str> = added.into_iter().filter(of_clock).collect();
    let [line] = added[..] else { panic!("{added:?}") };
    assert_eq!(
        line,
        "start    the guest's init and exec are left out: 140,000,000 instructions, 44.96 ms in nested-4k"
    );
    assert!(c.render_html().unwrap().contains("<dt>guest's start</dt>"));
    let document = c.render(Format::Json).unwrap();
    assert_schema("bifold.compare/2", &document);
    let v: Value = serde_json::from_str(&document).unwrap();
    let start = v["outcome"]["start"].as_array().unwrap();
    assert_eq!((start.len(), &start[1]["name"]), (c.outcome.configs.len(), &json!("nested-4k")));
    assert_eq!(start[1]["total"]["instructions"], json!(140_000_000));
    assert_eq!(serde_json::from_value::<Outcome>(v["outcome"].clone()).unwrap(), c.outcome);
}

#[test]
fn table_of_several_regions() {
    let mut c = comparison();
    c.meta.guest.as_mut().unwrap().region = Some("each from bifold_begin() to bifold_end()".into());
    several_regions(&mut c.outcome, 3);
    insta::assert_snapshot!(c.render(Format::Table).unwrap());
    let html = c.render_html().unwrap();
    assert!(html.contains("<h2>Regions</h2>") && html.contains("<th scope=\"row\">all</th>"));
    assert!(!comparison().render_html().unwrap().contains("<h2>Regions</h2>"));
}

/// The rows of the table of regions, and the notes under it.
fn regions_of(n: u64, worst: &[u64]) -> (Vec<String>, String) {
    let mut c = comparison();
    several_regions(&mut c.outcome, n);
    for number in worst {
        let rows = &mut c.outcome.regions.as_mut().unwrap().rows;
        rows[*number as usize - 1].configs.iter_mut().for_each(|c| c.total.vmm_cycles += number << 30);
    }
    let table = c.render(Format::Table).unwrap();
    let block = table[table.find("region ").unwrap()..].split("\n\n").next().unwrap();
    let block = block[block.find("\n").unwrap()..].to_owned();
    let first = |l: &str| l.split_whitespace().next().unwrap_or("").to_owned();
    let rows = block.lines().skip(2).map(first).take_while(|word| word != "note").collect();
    (rows, block.split_whitespace().collect::<Vec<_>>().join(" "))
}

#[test]
fn of_many_regions_the_first_and_the_worst_have_a_row() {
    let numbers = |n: &[u64]| n.iter().map(u64::to_string).chain(["all".into()]).collect::<Vec<_>>();
    let (rows, text) = regions_of(20, &[]);
    assert_eq!(rows, numbers(&(1..=20).collect::<Vec<_>>()));
    assert!(!text.contains("left out"), "{text}");
    let (rows, text) = regions_of(100, &[99, 3, 40, 41, 60, 77, 20]);
    assert_eq!(rows, numbers(&[&(1..=12).collect::<Vec<_>>()[..], &[40, 41, 60, 77, 99]].concat()));
    assert!(text.contains("83 regions are left out here") && text.ends_with("JSON has all"), "{text}");
    let (rows, text) = regions_of(1234, &[]);
    assert_eq!(rows.len(), 18);
    assert!(text.contains("JSON has the first 1,000"), "{text}");
    assert!(text.contains("234 regions behind region 1,000 are in the row of all only"), "{text}");
}

#[test]
fn a_table_says_in_which_state_the_vm_began() {
    let mut c = comparison();
    for vm in bifold_model::VmState::ALL {
        c.outcome.vm = vm;
        let table = c.render(Format::Table).unwrap();
        assert!(table.contains(&format!("VM       {}: {}", vm.name(), vm.words())), "{table}");
    }
}

#[test]
fn table_with_all_parts() {
    let mut c = comparison();
    c.policies = Some(policies());
    insta::assert_snapshot!(c.render_table(Show::ALL));
    // What was checked on line is shown unasked, and that a check failed.
    let table = c.render_table(Show::default());
    assert!(
        !table.contains("oracle") && table.contains("own    replay") && table.contains("WARNING"),
        "{table}"
    );
}

#[test]
fn table_with_places() {
    let mut c = comparison();
    c.places = Some(places(2000));
    let table = c.render(Format::Table).unwrap();
    let (from, to) = (table.find("process  ").unwrap(), table.find("extra cycles.\n").unwrap());
    let widest = table[from..to].lines().map(|l| l.chars().count()).max().unwrap();
    assert!(widest <= 112, "{widest} columns:\n{table}");
    insta::assert_snapshot!(table);
}

#[test]
fn the_table_of_places_says_which_view_it_has_and_the_report_has_both() {
    let mut c = comparison();
    c.places = Some(places(30));
    let page = c.render_html().unwrap();
    let [cause, code] =
        ["<h3>Costs by the user code", "<h3>Costs by the code that ran"].map(|h| page.find(h).unwrap());
    assert!(cause < code && !page[cause..code].contains("clear_page") && page[code..].contains("clear_page"));
    c.places.as_mut().unwrap().view = View::Code;
    let table = c.render(Format::Table).unwrap();
    let table = table.split_once("\nCosts by the code that ran (--where=cause:").unwrap().1;
    assert!(table.contains("clear_page"), "{table}");
}

#[test]
fn placements_have_a_table_rows_and_a_part_of_the_page() {
    let mut c = short();
    assert!(!c.render(Format::Table).unwrap().contains("remote"));
    place(&mut c.outcome);
    let table = c.render(Format::Table).unwrap();
    let part = &table[table.find("Local and remote").unwrap()..];
    insta::assert_snapshot!(&part[..part.find("verdict").unwrap_or(part.len())]);
    insta::assert_snapshot!(c.render(Format::Csv).unwrap());
    assert!(c.render_html().unwrap().contains("Local and remote references"));
    // Without latencies there are counts alone, and a note says why.
    c.outcome.configs.iter_mut().flat_map(|o| &mut o.placed).for_each(|p| p.cycles = None);
    let facts = c.outcome.placed.as_mut().unwrap();
    facts.remote_cycles = None;
    let table = c.render(Format::Table).unwrap();
    assert!(table.contains("memory.remote_cycles=N") && !table.contains("+walks"), "{table}");
    c.outcome.placed.as_mut().unwrap().local_cycles = None;
    assert!(c.render(Format::Table).unwrap().contains("need data caches"));
}

#[test]
fn places_in_json_sum_to_their_totals_and_are_ranked() {
    let mut c = comparison();
    c.places = Some(places(2000));
    let v: Value = serde_json::from_str(&c.render(Format::Json).unwrap()).unwrap();
    let places = &v["where"];
    // The mode that the verdict keeps on 4 KB host pages.
    assert_eq!(places["ranked_by"], "nested-4k");
    assert_eq!(places["view"], "cause");
    for (rows, others, rest) in [("rows", "others", 1000), ("cause_rows", "cause_others", 333)] {
        let (rows, others) = (places[rows].as_array().unwrap(), &places[others]);
        assert_eq!((rows.len(), &others["rows"]), (1000, &json!(rest)));
        for (i, total) in places["totals"].as_array().unwrap().iter().enumerate() {
            for (name, total) in total.as_object().unwrap() {
                let listed: i64 = rows.iter().map(|r| r["costs"][i][name].as_i64().unwrap()).sum();
                let others = others["costs"][i][name].as_i64().unwrap();
                assert_eq!(Some(listed + others), total.as_i64(), "{i} {name}");
            }
        }
    }
}

#[test]
fn the_first_lines_say_how_the_profile_was_chosen_and_how_good_it_is() {
    use bifold_model::{ChosenBy, KvmBy, Profile};
    let better = "(better: `bifold profile measure`; another: --profile)";
    let said = [
        (ChosenBy::Name, "built-in, as named".into()),
        (ChosenBy::Baseline, "built-in, as in the baseline".into()),
        (ChosenBy::State, "built-in, as in the file of --state".into()),
        (ChosenBy::Measured, "measured on this machine (another: --profile)".into()),
        (ChosenBy::Processor, format!("built-in for this processor {better}")),
        (ChosenBy::Vendor, format!("guessed: its vendor's newest server {better}")),
        (ChosenBy::Unknown, format!("guessed: the processor is unknown {better}")),
    ];
    for (by, words) in said {
        let mut c = short();
        if by == ChosenBy::Measured {
            c.meta.hardware = Profile { name: "measured".into(), ..Profile::load("zen4", &[]).unwrap() };
        }
        c.meta.hardware.chosen.by = by;
        let table = c.render(Format::Table).unwrap();
        assert!(table.lines().all(|l| l.chars().count() <= 100), "{table}");
        let joined = table.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(joined.contains(&format!("seed 1; {words} ")), "{by:?}: {table}");
        let html = c.render_html().unwrap();
        assert!(html.contains(words.split(':').next().unwrap()), "{by:?}");
        let v: Value = serde_json::from_str(&c.render(Format::Json).unwrap()).unwrap();
        assert_eq!(v["profile_choice"]["by"], serde_json::to_value(by).unwrap());
        assert!(words.starts_with(v["profile_choice"]["quality"].as_str().unwrap()), "{v}");
    }
    for (kvm_by, words) in
        [(KvmBy::Profile, ""), (KvmBy::Host, " as this host"), (KvmBy::Newest, ", the newest compared")]
    {
        let mut c = short();
        c.meta.hardware.chosen.kvm_by = kvm_by;
        assert!(profile_words(&c.meta.hardware).ends_with(&format!("kvm linux-6.1{words})")), "{kvm_by:?}");
    }
}

#[test]
fn table_fits_in_100_columns_even_with_overheads_of_many_digits() {
    let mut c = comparison();
    for o in &mut c.outcome.configs {
        o.total.vmm_cycles *= 1_000;
        o.total.exits_cr3_write = 999_999_999;
    }
    let table = c.render(Format::Table).unwrap();
    let widest = table.lines().map(|l| l.chars().count()).max().unwrap();
    assert!(widest <= 100, "{widest} columns:\n{table}");
}

#[test]
fn a_table_with_data_caches_fits_in_100_columns_up_to_100_million_exits() {
    let mut c = with_caches();
    for o in &mut c.outcome.configs {
        o.total.exits_cr3_write = 99_000_000;
    }
    let table = c.render(Format::Table).unwrap();
    let widest = table.lines().map(|l| l.chars().count()).max().unwrap();
    assert!(widest <= 100, "{widest} columns:\n{table}");
    let words = table.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("walks data frames VMM"), "{table}");
}

/// Rows of every configuration that is known, with counts of many digits.
#[test]
fn a_table_of_every_configuration_fits_in_100_columns_and_lists_them_shortly() {
    for mut c in [comparison(), with_caches()] {
        let row = c.outcome.configs[1].clone();
        c.outcome.configs = Config::KNOWN.map(|config| ConfigOutcome { config, ..row.clone() }).into();
        for o in &mut c.outcome.configs {
            o.total.exits_cr3_write = 99_000_000;
            o.total.outer_exits = 99_000_000;
            o.total.vmm_cycles *= 200;
        }
        let table = c.render(Format::Table).unwrap();
        let widest = table.lines().map(|l| l.chars().count()).max().unwrap();
        assert!(widest <= 100, "{widest} columns:\n{table}");
        for config in Config::KNOWN {
            assert!(table.contains(&format!("\n{} ", config.name())), "{}", config.name());
        }
        let verdict =
            table.lines().skip_while(|l| !l.starts_with("verdict")).take_while(|l| !l.starts_with("holds"));
        assert!(verdict.count() <= 8, "{table}");
    }
}

#[test]
fn json() {
    insta::assert_snapshot!(short().render(Format::Json).unwrap());
}

#[test]
fn jsonl() {
    insta::assert_snapshot!(short().render(Format::Jsonl).unwrap());
}

#[test]
fn csv() {
    insta::assert_snapshot!(short().render(Format::Csv).unwrap());
}

#[test]
fn json_holds_the_whole_outcome_and_reads_back_as_it() {
    let c = comparison();
    let v: Value = serde_json::from_str(&c.render(Format::Json).unwrap()).unwrap();
    let back: Outcome = serde_json::from_value(v["outcome"].clone()).unwrap();
    assert_eq!(back, c.outcome);
}

#[test]
fn json_is_as_the_schema_says() {
    let mut partial = comparison();
    partial.meta.partial = Some(Partial::TimedOut);
    partial.meta.exit = Some(CommandExit::TimedOut);
    let mut generated = comparison();
    generated.meta.input = Input::Generator { name: "t:1000".into() };
    generated.meta.guest = None;
    generated.meta.exit = None;
    generated.meta.capture_checks = None;
    generated.meta.clock = None;
    let mut recorded = comparison();
    recorded.meta.input =
        Input::Recording { path: "a b.bifold".into(), generator: None, imported: None, program: None };
    let mut with_policies = comparison();
    with_policies.policies = Some(policies());
    let mut without = comparison();
    let too_short = NoPolicies::Refused("too short".into());
    without.policies = Some(RunPolicies { evaluation: Err(too_short), checks: Vec::new() });
    let mut with_places = comparison();
    with_places.places = Some(places(7));
    for c in [comparison(), short(), partial, generated, recorded, with_policies, without, with_places] {
        assert_schema("bifold.compare/2", &c.render(Format::Json).unwrap());
    }
}

/// Holds a document against the schema that it names.
pub fn assert_schema(name: &str, document: &str) {
    let mut schemas = boon::Schemas::new();
    let mut compiler = boon::Compiler::new();
    compiler.add_resource("schema", schema_of(name).clone()).unwrap();
    let index = compiler.compile("schema", &mut schemas).unwrap();
    let v: Value = serde_json::from_str(document).unwrap();
    if let Err(e) = schemas.validate(&v, index) {
        panic!("{name}: {e:#}");
    }
}

#[test]
fn jsonl_and_csv_have_a_row_for_every_interval_and_configuration() {
    let c = comparison();
    let rows = c.outcome.interval_starts.len() * Config::ALL.len();
    assert_eq!(c.render(Format::Csv).unwrap().lines().count(), 1 + rows);
    let mut c = c;
    c.policies = Some(policies());
    // Two policies, each from both starting modes.
    let jsonl = c.render(Format::Jsonl).unwrap();
    assert_eq!(jsonl.lines().count(), 1 + Config::ALL.len() + 4 + rows);
    for line in jsonl.lines() {
        let v: Value = serde_json::from_str(line).unwrap();
        assert!(["run", "total", "policy", "interval"].contains(&v["type"].as_str().unwrap()));
    }
}

#[test]
fn a_run_of_nothing_is_said_to_be_one() {
    let mut c = comparison();
    for o in &mut c.outcome.configs {
        o.total = Sample::default();
        o.intervals.clear();
    }
    c.outcome.interval_starts.clear();
    assert!(c.render(Format::Table).unwrap().contains("No instruction was executed"));
    c.render_html().unwrap();
}

/// `BIFOLD_REPORT=FILE` keeps the page, to be looked at.
#[test]
fn html_escapes_what_users_wrote_and_loads_nothing() {
    let mut c = comparison();
    c.policies = Some(policies());
    c.places = Some(places(30));
    c.meta.hardware.walk.prior = Some("</script><script>x".into());
    let page = c.render_html().unwrap();
    if let Some(path) = std::env::var_os("BIFOLD_REPORT") {
        std::fs::write(path, &page).unwrap();
    }
    assert!(!page.contains("</script><b>"));
    assert!(!page.contains("<script>x"));
    assert!(page.contains("&lt;&#x2f;script&gt;&lt;b&gt;a &amp; b"));
    // Nothing is fetched: no element of the page names another file.
    let graph = page.split_once("srcdoc=\"").unwrap().1.split_once('"').unwrap().0;
    assert!(graph.contains("ggc_internal_alloc") && !graph.contains('<'), "{graph}");
    // The graph's own gradient is named by a fragment.
    let page = page.replace(graph, "");
    for reference in [" src=", "<link", "@import", "url("] {
        let scripts = page.find("<script").unwrap();
        assert!(!page[..scripts].contains(reference), "{reference}");
    }
    let open = page.matches("<script").count();
    let data = page.split_once("id=\"data\">").unwrap().1.split_once("</script>").unwrap().0;
    let v: Value = serde_json::from_str(data).unwrap();
    assert_eq!(v["configs"].as_array().unwrap().len(), Config::ALL.len());
    assert_eq!(v["strips"]["strips"][0]["name"], "oracle");
    assert_eq!(open, page.matches("</script>").count());
}

#[test]
fn a_trace_has_a_process_per_configuration_and_counters_per_interval() {
    let c = comparison();
    let v: Value = serde_json::from_str(&c.render_trace().unwrap()).unwrap();
    let events = v["traceEvents"].as_array().unwrap();
    let (configs, intervals) = (c.outcome.configs.len(), c.outcome.interval_starts.len());
    let of = |phase: &str| events.iter().filter(|e| e["ph"] == phase).collect::<Vec<_>>();
    assert_eq!((of("M").len(), of("C").len()), (configs * 2, configs * intervals * 3));
    // Viewers sort by name else.
    let order = of("M").into_iter().filter(|e| e["name"] == "process_sort_index");
    assert!(
        order.map(|e| &e["args"]["sort_index"]).eq((1..=configs).map(Value::from).collect::<Vec<_>>().iter())
    );
    // Counters of the second configuration: their times are the intervals' starts, and walks and exits those
    // of the interval.
    let second =
        of("C").into_iter().filter(|e| e["pid"] == 2 && e["name"] == "overhead, %").collect::<Vec<_>>();
    let start = c.outcome.interval_starts[1] as f64 / c.outcome.frequency_hz as f64 * 1e6;
    assert_eq!(second[1]["ts"].as_f64().unwrap(), start);
    let s = &c.outcome.configs[1].intervals[1];
    let percent = 100.0 * s.vmm_cycles as f64 / s.ideal_cycles(c.outcome.base_cpi);
    assert!((second[1]["args"]["exits"].as_f64().unwrap() - percent).abs() < 1e-9);
}
