// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `timing builds`: the two loads of the multi-core thesis, in a guest as the thesis had it, beside the
//! overheads that it measured on one core and on three.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context as _, Result};
use bifold_base::markdown;
use serde::Deserialize;

use crate::predict::{Hidden, Prediction, Total};
use crate::{machine, say};

/// The largest difference of an overhead that is asked for, percentage points.
const POINTS: f64 = 5.0;
/// In the order in which the thesis names them.
const CONFIGS: [&str; 4] = ["nested-2m", "nested-4k", "shadow-2m", "shadow-4k"];

/// What is to be done.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Configured sources of Apache httpd (evidence/tools/lab-builds makes them)
    #[arg(long, value_name = "DIR")]
    httpd: PathBuf,
    /// The file that pbzip2 compresses
    #[arg(long, value_name = "FILE")]
    tar: PathBuf,
    /// The published seconds
    #[arg(long, value_name = "FILE", default_value = "evidence/published/multicore-thesis.toml")]
    published: PathBuf,
    /// Only these loads: build, pbzip2
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = ["build", "pbzip2"], default_value = "build,pbzip2")]
    loads: Vec<String>,
    /// Run each load with so many vCPUs, and as many jobs
    #[arg(long, value_name = "LIST", value_delimiter = ',',
          value_parser = clap::value_parser!(u32).range(1..=3), default_value = "1,2,3")]
    vcpus: Vec<u32>,
    /// Windows of accesses, as in `bifold compare --sample`; `off` records every access
    #[arg(long, value_name = "WINDOW:PERIOD", default_value = "200k:10M")]
    sample: String,
    /// Only the first N instructions of each load, as in `bifold compare --for`
    #[arg(long = "for", value_name = "N")]
    part: Option<String>,
    /// Also capture the first N instructions of the build on one vCPU with one thing changed at a time that
    /// the thesis had or may have had otherwise, and write what each moves
    #[arg(long, value_name = "N")]
    causes: Option<String>,
    /// Capture with --fast: for an idle machine only, as the guest's timer follows the host's
    #[arg(long)]
    fast: bool,
    /// 1 G instructions of each load: shows that everything runs; its figures say nothing
    #[arg(long)]
    quick: bool,
    /// Take the captures that an earlier call left in the work folder
    #[arg(long)]
    reuse: bool,
    /// Write the page to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    model: crate::ModelArgs,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Seconds {
    native: f64,
    #[serde(flatten)]
    configs: BTreeMap<String, f64>,
}

/// One overhead: published and predicted, percent.
#[derive(Debug, Clone, PartialEq)]
struct LoadOverhead {
    config: &'static str,
    /// `None` if the thesis did not run the load on so many processors.
    published: Option<f64>,
    /// Of a long-lived VM: the thesis warmed up twice.
    predicted: f64,
    /// From all hidden to nothing hidden.
    band: (f64, f64),
    /// Walks and waits for data, the part of `predicted`.
    memory: f64,
    /// Exits, the part of `predicted`.
    exits: f64,
}

impl LoadOverhead {
    fn difference(&self) -> Option<f64> {
        Some(self.predicted - self.published?)
    }

    fn within(&self) -> Option<bool> {
        Some(self.difference()?.abs() <= POINTS)
    }

    /// The overhead with exits that cost `factor` times as much.
    fn with_exits(&self, factor: f64) -> f64 {
        self.memory + factor * self.exits
    }
}

fn row(p: &Prediction, config: &'static str, published: Option<&Seconds>) -> Result<LoadOverhead> {
    let percent = |of: &Seconds| -> Result<f64> {
        let seconds = of.configs.get(config).with_context(|| format!("{config} is not published"))?;
        Ok(100.0 * (seconds / of.native - 1.0))
    };
    let t: &Total = p.total(config)?;
    let of = |hidden| p.overhead_percent(t, hidden);
    let (one, other) = (of(Hidden::All), of(Hidden::Nothing));
    let exits = 100.0 * t.vmm_cycles as f64 / p.ideal(t, Hidden::Stated);
    Ok(LoadOverhead {
        config,
        published: published.map(percent).transpose()?,
        predicted: of(Hidden::Stated),
        band: (one.min(other), one.max(other)),
        memory: of(Hidden::Stated) - exits,
        exits,
    })
}

/// Is the order of the configurations by overhead the published one? `None` if none is published.
fn same_order(rows: &[LoadOverhead]) -> Option<bool> {
    let order = |f: fn(&LoadOverhead) -> Option<f64>| {
        let mut sorted = rows.iter().map(|r| Some((f(r)?, r.config))).collect::<Option<Vec<_>>>()?;
        sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
        Some(sorted.into_iter().map(|(_, config)| config).collect::<Vec<_>>())
    };
    Some(order(|r| r.published)? == order(|r| Some(r.predicted))?)
}

/// Something that the thesis had otherwise, or may have had, for the build.
struct Change {
    /// For the page.
    what: &'static str,
    /// For the file of the capture.
    name: &'static str,
    /// Commands of the guest before `make`.
    before: &'static str,
    /// Arguments of `make`.
    make: &'static str,
    /// Overrides of the profile.
    set: &'static [&'static str],
}

const NO_FAULT_AROUND: &str = "mount -t debugfs none /sys/kernel/debug 2>/dev/null; \
                               echo 4096 >/sys/kernel/debug/fault_around_bytes && ";
const NO_WALK_CACHES: &[&str] = &["walk_cache.variant=none"];
const CHANGES: [Change; 5] = [
    Change { what: "nothing changed", name: "same", before: "", make: "", set: &[] },
    Change {
        what: "a page fault maps one page of a file and not 16",
        name: "fault-around",
        before: NO_FAULT_AROUND,
        make: "",
        set: &[],
    },
    Change {
        what: "gcc -O0, which runs fewer instructions per process",
        name: "O0",
        before: "",
        make: " CFLAGS=-O0",
        set: &[],
    },
    Change { what: "no walk caches", name: "walk-caches", before: "", make: "", set: NO_WALK_CACHES },
    Change {
        what: "all three",
        name: "all",
        before: NO_FAULT_AROUND,
        make: " CFLAGS=-O0",
        set: NO_WALK_CACHES,
    },
];

/// The page's table of what each change moves. `predict` captures the beginning of a load.
fn changes(
    part: &str,
    published: &Seconds,
    mut predict: impl FnMut(&Change) -> Result<Prediction>,
) -> Result<String> {
    let mut text = format!(
        "\n## What could be between, tested\n\nPredicted overheads, %, of the first {part} instructions of the build, one change at a time towards the \
         software of the thesis, and without walk caches, which is a bound: their sizes in that machine are not known.\n\n| change | {} |\n|---|{}\n",
        CONFIGS.join(" | "),
        "--:|".repeat(CONFIGS.len())
    );
    let mut line = |what: &str, values: Vec<f64>| {
        let cells: Vec<String> = values.iter().map(|v| format!("{v:.1}")).collect();
        let _ = writeln!(text, "| {what} | {} |", cells.join(" | "));
    };
    let mut thesis = Vec::new();
    for change in &CHANGES {
        let p = predict(change)?;
        let rows = CONFIGS.iter().map(|c| row(&p, c, Some(published))).collect::<Result<Vec<_>>>()?;
        line(change.what, rows.iter().map(|r| r.predicted).collect());
        thesis = rows.iter().filter_map(|r| r.published).collect();
    }
    line("published", thesis);
    Ok(text)
}

/// The guest's command, and what the page says of it.
fn load(name: &str, vcpus: u32, args: &Args, change: &Change) -> Result<(Vec<String>, String)> {
    let path = |p: &PathBuf| -> Result<String> {
        let whole = p
            .canonicalize()
            .with_context(|| format!("{}: run evidence/tools/lab-builds setup", p.display()))?;
        Ok(whole.to_string_lossy().replace('\'', "'\\''"))
    };
    let (script, what) = match name {
        "build" => (
            format!("{}cd '{}' && exec make -j{vcpus}{}", change.before, path(&args.httpd)?, change.make),
            format!("`make -j{vcpus}` of Apache httpd with its APR and APR-util, gcc"),
        ),
        _ => (
            format!("exec pbzip2 -p{vcpus} -b9 -k -c '{}' >/dev/null", path(&args.tar)?),
            format!("`pbzip2 -p{vcpus} -b9` of a tar of Linux's sources"),
        ),
    };
    Ok((vec!["sh".into(), "-c".into(), script], what))
}

/// Captures the first `part` of a load; `set` overrides the profile.
fn capture(
    name: &str,
    vcpus: u32,
    command: &[String],
    part: Option<&str>,
    set: &[&str],
    args: &Args,
) -> Result<Prediction> {
    let work = args.model.work("builds")?;
    let keep = work.join(format!("{}{name}.json", if args.quick { "quick-" } else { "" }));
    if args.reuse && keep.is_file() {
        return Prediction::read(&keep);
    }
    let mut options: Vec<String> =
        ["--thp", "never", "--vcpus", &vcpus.to_string(), "--memory", "1024"].map(Into::into).to_vec();
    if args.sample != "off" {
        options.push(format!("--sample={}", args.sample));
    }
    if args.fast {
        options.push("--fast".into());
    }
    if let Some(part) = if args.quick { Some("1G") } else { part } {
        options.extend(["--for".into(), part.into()]);
    }
    set.iter().for_each(|s| options.extend(["--set".into(), (*s).into()]));
    let begin = Instant::now();
    say(&format!("capturing {name}"));
    let p = args.model.model(Some("phenom2-x3-720"))?.compare(&options, command, &keep)?;
    say(&format!("captured {name} in {:.0} s", begin.elapsed().as_secs_f64()));
    p.warnings.iter().for_each(|w| say(&format!("{name}: {w}")));
    Ok(p)
}

/// A row's figure, or - where none is published.
fn or_dash<T>(value: Option<T>, text: impl Fn(T) -> String) -> String {
    value.map_or_else(|| "-".into(), text)
}

fn table(rows: &[LoadOverhead]) -> String {
    let columns = markdown::table::<LoadOverhead>()
        .left("configuration", |r| r.config.into())
        .right("published %", |r| or_dash(r.published, |p| format!("{p:.1}")))
        .right("predicted %", |r| format!("{:.1}", r.predicted))
        .left("all hidden .. nothing hidden %", |r| format!("{:.1} to {:.1}", r.band.0, r.band.1))
        .right("predicted less published, points", |r| or_dash(r.difference(), |d| format!("{d:+.1}")))
        .left("within 5 points", |r| or_dash(r.within(), |within| crate::yes(within).into()))
        .right("walks and data %", |r| format!("{:.1}", r.memory))
        .right("exits %", |r| format!("{:.1}", r.exits))
        .left("exits at half .. twice the cost: overhead %", |r| {
            format!("{:.1} to {:.1}", r.with_exits(0.5), r.with_exits(2.0))
        });
    columns.of(rows)
}

/// What the page says above its tables.
const ABOUT: &str = "The thesis ran two loads in a KVM guest of 1 GB on a Phenom II X3 720, with one vCPU and with three, natively and with \
             nested and shadow paging on 2 MB and 4 KB host pages (`evidence/published/multicore-thesis.toml`). Here the same \
             loads run in the captured guest, with two vCPUs as well, and the model has that processor's profile. Nothing is \
             fitted to the published figures. The thesis ran each load twice before it measured, so the host had backed the \
             guest's memory: the VM is long-lived. Published overheads are of time; with several vCPUs, predicted ones are of the cycles of all of them, without time in which a vCPU is idle \
             or waits for another.\n";

/// Runs the whole; false if a target is missed.
pub fn run(args: &Args) -> Result<bool> {
    let text =
        std::fs::read_to_string(&args.published).with_context(|| args.published.display().to_string())?;
    let published: BTreeMap<String, Seconds> =
        toml::from_str(&text).with_context(|| args.published.display().to_string())?;
    let mut page = String::from("# The multi-core thesis: overheads published and predicted\n\n");
    let _ = writeln!(page, "Made by `make lab-builds` on {}.\n", machine::date());
    if args.quick {
        page += "**A trial run on the beginnings of both loads: the figures say nothing.**\n\n";
    }
    page += ABOUT;
    let mut met = true;
    let runs = args.loads.iter().flat_map(|load| args.vcpus.iter().map(move |vcpus| (load, *vcpus)));
    for (name, vcpus) in runs {
        published.get(name).with_context(|| format!("{}: no [{name}]", args.published.display()))?;
        let key = if vcpus == 1 { name.clone() } else { format!("{name}-{vcpus}") };
        let (command, what) = load(name, vcpus, args, &CHANGES[0])?;
        let p = capture(&key, vcpus, &command, args.part.as_deref(), &[], args)?;
        let rows = CONFIGS.iter().map(|c| row(&p, c, published.get(&key))).collect::<Result<Vec<_>>>()?;
        let _ = writeln!(
            page,
            "\n## {what}, {}\n\n{:.1} G instructions, {}{}; profile {}, {}.\n\n{}",
            if vcpus == 1 { "1 vCPU".to_owned() } else { format!("{vcpus} vCPUs") },
            p.total("native")?.instructions as f64 / 1e9,
            match (&args.part, args.quick) {
                (_, true) => "the first 1G of them".to_owned(),
                (Some(part), _) => format!("the first {part} of the load"),
                (None, _) => "the whole load".to_owned(),
            },
            match &args.sample[..] {
                "off" => String::new(),
                sample => format!(", accesses in windows ({sample})"),
            },
            p.profile(),
            if p.has_caches() { "with data caches" } else { "without data caches" },
            table(&rows),
        );
        let Some(order) = same_order(&rows) else { continue };
        let inside = rows.iter().filter(|r| r.within() == Some(true)).count();
        let all = inside == rows.len();
        met &= order && all;
        let _ = writeln!(
            page,
            "- {}: within {POINTS} points: {inside} of {}\n- {}: the order of the four is {}",
            crate::met(all),
            rows.len(),
            crate::met(order),
            if order { "the published one" } else { "another" },
        );
    }
    if let (Some(part), Some(seconds)) = (&args.causes, published.get("build")) {
        page += &changes(part, seconds, |change| {
            let (command, _) = load("build", 1, args, change)?;
            capture(&format!("build-{}", change.name), 1, &command, Some(part), change.set, args)
        })?;
    }
    page += CAUSES;
    crate::deliver(args.output.as_deref(), &page)?;
    Ok(met)
}

/// What differs between the two machines. The columns of the tables above test the first three, and
/// `--causes` the next three.
const CAUSES: &str = "
## Where differences come from

- **Exit costs** are priors of a profile of a similar age. The column of half and twice the cost shows what they move.
- **First touches**: a host that had not backed the guest's memory, or had lost it between runs, is the last column.
- **What the core hides** is the band.
- **The guest's kernel** is Linux 6.1 and not 2.6.32: it maps 16 pages of a file at a fault (fault-around, since 3.15),
  which spares page faults and their exits.
- **Compiler and sources** are Debian's of today. A gcc of 2010 likely ran fewer instructions per file, so that more
  processes began in a second, and each begins with page faults.
- **Walk caches** of the Phenom II are priors: AMD has not published their sizes.
- **The host's KVM** is modelled as Linux 6.1's, and the thesis had that of 2.6.32. **Devices and interrupts** exit as
  well, and are in the published times only. Neither is tested.
";

#[cfg(test)]
mod tests {
    use super::*;

    fn document() -> Prediction {
        let config = |name: &str, walks: u64, exits: u64| {
            format!(
                r#"{{"name": "{name}", "total": {{"instructions": 1000, "walk_cycles": {walks}, "vmm_cycles": {exits}}}}}"#
            )
        };
        let all = [
            config("native", 10, 0),
            config("nested-2m", 30, 0),
            config("nested-4k", 100, 40),
            config("shadow-2m", 20, 600),
            config("shadow-4k", 20, 600),
        ];
        Prediction::parse(&format!(
            r#"{{"partial": null, "outcome": {{"profile": "p", "config_hash": "h", "frequency_hz": 1, "base_cpi": 1.0, "vm": "long-lived", "configs": [{}]}}}}"#,
            all.join(",")
        ))
        .unwrap()
    }

    fn published() -> BTreeMap<String, Seconds> {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../evidence/published/multicore-thesis.toml");
        toml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn the_published_seconds_give_the_overheads_of_the_thesis() {
        let of = |load: &str| {
            let s = &published()[load];
            CONFIGS.map(|c| (1000.0 * (s.configs[c] / s.native - 1.0)).round() / 10.0)
        };
        assert_eq!(of("build"), [2.8, 15.8, 60.7, 66.3]);
        assert_eq!(of("pbzip2"), [2.4, 3.7, 4.4, 4.7]);
        assert_eq!(of("build-3"), [4.8, 16.7, 84.8, 91.7]);
        assert_eq!(of("pbzip2-3"), [6.6, 8.4, 6.3, 6.9]);
    }

    #[test]
    fn an_overhead_splits_into_memory_and_exits() {
        let r = row(&document(), "nested-4k", published().get("build")).unwrap();
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-9, "{a} {b}");
        close(r.predicted, 14.0);
        close(r.memory, 10.0);
        close(r.exits, 4.0);
        close(r.with_exits(0.5), 12.0);
        close(r.with_exits(2.0), 18.0);
        assert_eq!(r.within(), Some(true));
        assert_eq!(row(&document(), "shadow-4k", published().get("pbzip2")).unwrap().within(), Some(false));
        let none = row(&document(), "nested-4k", None).unwrap();
        assert_eq!((none.predicted, none.difference(), none.within()), (r.predicted, None, None));
        assert!(
            table(&[none])
                .ends_with("| nested-4k | - | 14.0 | 14.0 to 14.0 | - | - | 10.0 | 4.0 | 12.0 to 18.0 |\n")
        );
    }

    #[test]
    fn a_table_has_each_change_and_the_published_overheads() {
        let mut asked = Vec::new();
        let text = changes("5G", &published()["build"], |change| {
            asked.push(change.name);
            Ok(document())
        })
        .unwrap();
        assert_eq!(asked, ["same", "fault-around", "O0", "walk-caches", "all"]);
        assert!(text.contains("| no walk caches | 3.0 | 14.0 | 62.0 | 62.0 |\n"), "{text}");
        assert!(text.ends_with("| published | 2.8 | 15.8 | 60.7 | 66.3 |\n"), "{text}");
    }

    #[test]
    fn the_order_is_compared_as_a_whole() {
        let all = published();
        let of = |c: &'static str| row(&document(), c, all.get("build")).unwrap();
        let mut rows: Vec<LoadOverhead> = CONFIGS.into_iter().map(of).collect();
        // Predicted: 3, 14, 62, 62.
        rows[3].predicted = 70.0;
        assert_eq!(same_order(&rows), Some(true));
        rows[1].predicted = 65.0;
        assert_eq!(same_order(&rows), Some(false));
        rows[1].published = None;
        assert_eq!(same_order(&rows), None);
    }

    #[test]
    fn a_path_with_a_quote_stays_one_word() {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let dir = tempfile::tempdir().unwrap();
        let odd = dir.path().join("it's");
        std::fs::create_dir(&odd).unwrap();
        let args = Cli::parse_from(["x", "--httpd", odd.to_str().unwrap(), "--tar", "/nowhere/tar"]).args;
        let (command, _) = load("build", 3, &args, &CHANGES[0]).unwrap();
        let said = std::process::Command::new("sh")
            .args(["-c", &command[2].replace("exec make -j3", "pwd")])
            .output()
            .unwrap();
        assert_eq!(
            String::from_utf8(said.stdout).unwrap().trim(),
            odd.canonicalize().unwrap().to_str().unwrap()
        );
        assert!(
            load("pbzip2", 1, &args, &CHANGES[0])
                .unwrap_err()
                .to_string()
                .contains("evidence/tools/lab-builds setup")
        );
    }
}
