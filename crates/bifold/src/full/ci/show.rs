// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What became of the programs: for a terminal, as JSON, JUnit's XML and Markdown.

use super::{Outcome, Ran};
use bifold_report::{Judged, grouped, labelled, text_table, vm_and_profile};
use quick_xml::Writer;
use quick_xml::events::{BytesDecl, BytesText, Event};
use schemars::JsonSchema;
use serde::Serialize;
use std::fmt::Write as _;
use std::io;

/// Name of the document's schema.
const SCHEMA: &str = "bifold.ci/1";
/// Most characters of a place's name in the table of programs.
const MOST_NAME: usize = 33;

impl Ran {
    fn verdict(&self) -> &'static str {
        match &self.result {
            Outcome::Saved => "saved",
            Outcome::Judged(judged) if judged.is_worse() => "WORSE",
            Outcome::Judged(judged) if !judged.fell.is_empty() => "better",
            Outcome::Judged(_) => "same",
            Outcome::Failed(_) => "FAILED",
        }
    }

    fn judged(&self) -> Option<&Judged> {
        match &self.result {
            Outcome::Judged(judged) => Some(judged),
            _ => None,
        }
    }

    /// The count of a place, or else of the whole run, that moved most in percent: count with its place,
    /// configuration and percent.
    fn most(&self) -> Option<(String, String, String)> {
        let judged = self.judged()?;
        let moved = if judged.is_worse() { &judged.grew } else { &judged.fell };
        let size = |p: Option<f64>| p.map_or(0.0, f64::abs);
        let most = moved.iter().max_by(|a, b| {
            (a.place.is_some(), size(a.percent))
                .partial_cmp(&(b.place.is_some(), size(b.percent)))
                .expect("numbers")
        })?;
        let place = most.place.as_ref().map(|p| format!(" of {} {}", p.binary, p.function));
        // Names of functions may be as long as a page.
        let at: String = place.unwrap_or_default().chars().take(MOST_NAME).collect();
        Some((format!("{}{at}", most.words()), most.config.clone(), most.percent_words()))
    }
}

/// The lines on the programs that ran.
fn made(ran: &[Ran]) -> Vec<(&'static str, String)> {
    let each = ran.iter().filter_map(|r| r.made.as_ref().map(|made| (&*r.name, made.vm, &*made.profile)));
    vm_and_profile(&each.collect::<Vec<_>>())
}

/// A row per program, and below it what moved and what failed.
pub fn table(ran: &[Ran]) -> String {
    let head = ["program", "result", "grew", "fell", "moved most", "in", "%", "s"].map(String::from).into();
    let count = |n: Option<usize>| n.map_or("-".into(), |n| grouped(n as u64));
    let row = |r: &Ran| {
        let (what, config, percent) = r.most().unwrap_or_else(|| ("-".into(), "-".into(), "-".into()));
        let (grew, fell) = (r.judged().map(|j| j.grew.len()), r.judged().map(|j| j.fell.len()));
        let seconds = format!("{:.1}", r.seconds);
        vec![r.name.clone(), r.verdict().into(), count(grew), count(fell), what, config, percent, seconds]
    };
    let mut out: String = made(ran).iter().map(|(label, text)| labelled(label, text)).collect();
    out += if out.is_empty() { "" } else { "\n" };
    out += &text_table(head, ran.iter().map(row).collect());
    let names = |verdict| {
        let of = ran.iter().filter(|r| r.verdict() == verdict).map(|r| r.name.as_str());
        Some(of.collect::<Vec<_>>().join(", ")).filter(|names| !names.is_empty())
    };
    for verdict in ["WORSE", "FAILED"] {
        if let Some(names) = names(verdict) {
            let _ = write!(out, "\n{verdict:<8} {names}");
        }
    }
    if !out.ends_with('\n') {
        out.push('\n');
    }
    for r in ran {
        match &r.result {
            Outcome::Judged(judged) if judged.is_worse() || !judged.notes.is_empty() => {
                let _ = write!(out, "\n{}\n{}", r.name, judged.table());
            }
            Outcome::Failed(why) => {
                let _ = write!(out, "\n{}\nFAILED   {why}\n", r.name);
            }
            _ => {}
        }
    }
    out
}

/// What `bifold ci --format json` writes: programs beside their baselines.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// The programs that ran, in the order of their names.
    programs: Vec<ProgramRow<'a>>,
}

/// What became of a program.
#[derive(Serialize, JsonSchema)]
struct ProgramRow<'a> {
    /// The program's name.
    name: &'a str,
    /// What came out: `saved`, a baseline was written; `worse`, some count grew; `better`, some count fell
    /// and none grew; `same`; or `failed`.
    result: String,
    /// Time that the run took. Unit: s.
    seconds: f64,
    /// State of the VM when the program began: `long-lived`, `started`, `restored` or `restored-uffd`; null
    /// if the run failed.
    vm: Option<&'static str>,
    /// The hardware profile, the rules of KVM and what was changed, in words; null if the run failed.
    profile: Option<&'a str>,
    /// Why the run failed; null otherwise.
    failure: Option<&'a str>,
    /// The run beside its baseline; null if a baseline was written, or the run failed.
    baseline: Option<&'a Judged>,
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

/// One document of all programs.
pub fn json(ran: &[Ran]) -> anyhow::Result<String> {
    let document = Document { schema: SCHEMA, programs: ran.iter().map(program).collect() };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn program(r: &Ran) -> ProgramRow<'_> {
    let failure = match &r.result {
        Outcome::Failed(why) => Some(&**why),
        _ => None,
    };
    let (vm, profile) = r.made.as_ref().map(|made| (made.vm, &*made.profile)).unzip();
    let (result, baseline) = (r.verdict().to_lowercase(), r.judged());
    ProgramRow { name: &r.name, result, seconds: r.seconds, vm, profile, failure, baseline }
}

/// JUnit's XML, in the form that CI services read: a test case per program.
pub fn junit(ran: &[Ran]) -> io::Result<Vec<u8>> {
    let count = |of: fn(&Ran) -> bool| ran.iter().filter(|r| of(r)).count().to_string();
    let failures = count(Ran::is_worse);
    let errors = count(|r| matches!(r.result, Outcome::Failed(_)));
    let seconds = |s: f64| format!("{s:.3}");
    let mut xml = Writer::new_with_indent(Vec::new(), b' ', 1);
    xml.write_event(Event::Decl(BytesDecl::new("1.0", Some("UTF-8"), None)))?;
    let all = seconds(ran.iter().map(|r| r.seconds).sum());
    let tests = ran.len().to_string();
    let suite = [
        ("name", "bifold"),
        ("tests", &*tests),
        ("failures", &*failures),
        ("errors", &*errors),
        ("time", &*all),
    ];
    xml.create_element("testsuite").with_attributes(suite).write_inner_content(|xml| {
        for r in ran {
            let time = seconds(r.seconds);
            let case = [("classname", "bifold"), ("name", &*r.name), ("time", &*time)];
            let case = xml.create_element("testcase").with_attributes(case);
            let (element, message, text) = match &r.result {
                Outcome::Judged(judged) if judged.is_worse() => ("failure", judged.verdict(), judged.table()),
                Outcome::Failed(why) => ("error", why.lines().next().unwrap_or_default().into(), why.clone()),
                _ => {
                    case.write_empty()?;
                    continue;
                }
            };
            case.write_inner_content(|xml| {
                let inner = xml.create_element(element).with_attribute(("message", &*message));
                inner.write_text_content(BytesText::new(&text)).map(drop)
            })?;
        }
        Ok(())
    })?;
    Ok([&xml.into_inner()[..], b"\n"].concat())
}

/// A table of the programs, and what moved below it.
pub fn markdown(ran: &[Ran]) -> String {
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let mut out = "## Bifold\n".to_string();
    made(ran).iter().for_each(|(label, text)| _ = write!(out, "\n{label}: {text}\n"));
    out += "\n| program | result | moved most | in | % |\n|---|---|---|---|--:|\n";
    for r in ran {
        let (what, config, percent) = r.most().unwrap_or_default();
        let _ = writeln!(out, "| {} | {} | {what} | {config} | {percent} |", r.name, r.verdict());
    }
    for r in ran {
        match &r.result {
            Outcome::Failed(why) => {
                let _ = writeln!(out, "\n**{}**: {}", r.name, cell(why));
            }
            Outcome::Judged(judged) if judged.is_worse() => {
                let _ = writeln!(out, "\n### {}\n\n{}", r.name, judged.verdict());
                for t in judged.tables() {
                    let cells = |cells: &[String]| {
                        format!("| {} |\n", cells.iter().map(|c| cell(c)).collect::<Vec<_>>().join(" | "))
                    };
                    let _ = write!(out, "\n{}|{}\n", cells(&t.head), "---|".repeat(t.head.len()));
                    t.rows.iter().for_each(|row| out += &cells(row));
                    t.notes.iter().for_each(|note| out += &format!("\n{note}\n"));
                }
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_report::{Moved, PlaceNames};

    #[test]
    fn the_place_that_grew_stands_before_the_whole_run_and_each_bad_program_is_named() {
        let moved = |function: Option<&str>, percent| Moved {
            config: "nested-4k".into(),
            place: function.map(|f| PlaceNames {
                process: "sort".into(),
                binary: "libc.so.6".into(),
                function: f.into(),
                mapping: "heap".into(),
            }),
            count: "exits".into(),
            before: 100,
            now: 200,
            percent: Some(percent),
        };
        let judged = Judged {
            baseline: "b.json".into(),
            worse_than_percent: 2.0,
            grew: vec![moved(None, 100.0), moved(Some("memcpy"), 10.0), moved(Some("malloc"), 30.0)],
            fell: Vec::new(),
            new_places: Vec::new(),
            notes: Vec::new(),
        };
        let of = |name: &str, result| Ran { name: name.into(), seconds: 1.0, made: None, result };
        let ran = [
            of("sort", Outcome::Judged(judged)),
            of("gone", Outcome::Failed("the command was not found".into())),
            of("ls", Outcome::Saved),
        ];
        let table = table(&ran);
        let row = table.lines().find(|l| l.starts_with("sort")).unwrap();
        assert!(row.contains("exits of libc.so.6 malloc") && row.contains("+30"), "{table}");
        assert!(table.contains("\nWORSE    sort\nFAILED   gone\n"), "{table}");
        let at = |text: &str| table.find(text).unwrap_or_else(|| panic!("{text}: {table}"));
        assert!(at("memcpy (heap)") < at("the whole run"), "{table}");
    }
}
