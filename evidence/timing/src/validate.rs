// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `timing validate`: measured ratios of run times on 4 KB and on 2 MB pages beside the predicted ones.
//!
//! The machine is a VM under nested paging, and a VM does not know which pages its host uses. The predictions
//! for 4 KB and for 2 MB host pages are therefore the two ends of a band.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use bifold_base::markdown;

use crate::native::{self, Measured, Pages};
use crate::predict::{Hidden, Model, Prediction};
use crate::set::{Built, Program, Set};
use crate::stats::{Median, spearman};
use crate::{machine, say};

/// The band is widened by this on both sides.
const WIDENED: f64 = 0.10;
/// The rank correlation of gains that is asked for.
const RANKS: f64 = 0.9;
/// With fewer programs, ranks say nothing.
const FEWEST_RANKS: usize = 6;
/// The part of the programs that has to lie inside: 19 of 20.
const INSIDE: f64 = 19.0 / 20.0;
/// Predicted seconds are near if they are off by this factor at most.
const NEAR: f64 = 1.5;
/// The part of the programs whose seconds have to be near: 16 of 20.
const ARE_NEAR: f64 = 16.0 / 20.0;

/// What is to be done.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Folder with programs.toml
    #[arg(long, value_name = "DIR", default_value = "evidence/time")]
    set: PathBuf,
    /// Only these programs
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    programs: Vec<String>,
    /// Small inputs and 3 pairs: shows that everything runs; its figures say nothing
    #[arg(long)]
    quick: bool,
    /// Pairs of runs, one on 4 KB and one on 2 MB pages, in changing order
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pairs: u32,
    /// Take the measured times and the captures that an earlier call left in the work folder; they must be of
    /// the same programs and profile
    #[arg(long)]
    reuse: bool,
    /// Capture with --fast: for an idle machine only, as the guest's timer follows the host's
    #[arg(long)]
    fast: bool,
    /// Write the page to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    model: crate::ModelArgs,
}

/// A ratio of run times as the model sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Band {
    /// On 4 KB and on 2 MB host pages, in ascending order.
    ends: (f64, f64),
    /// The same with nothing hidden and with everything hidden: the widest of both.
    widest: (f64, f64),
}

impl Band {
    fn new(small: &Prediction, large: &Prediction) -> Result<Band> {
        let ratio = |host: &str, hidden| -> Result<f64> {
            let cycles = |p: &Prediction| Ok::<_, anyhow::Error>(p.cycles(p.total(host)?, hidden));
            Ok(cycles(small)? / cycles(large)?)
        };
        let mut all = Vec::new();
        for hidden in [Hidden::Stated, Hidden::Nothing, Hidden::All] {
            for host in ["nested-4k", "nested-2m"] {
                all.push(ratio(host, hidden)?);
            }
        }
        let span = |v: &[f64]| {
            (v.iter().copied().fold(f64::MAX, f64::min), v.iter().copied().fold(f64::MIN, f64::max))
        };
        Ok(Band { ends: span(&all[..2]), widest: span(&all) })
    }

    /// The middle of the two ends, as ratios go.
    fn central(self) -> f64 {
        (self.ends.0 * self.ends.1).sqrt()
    }

    fn holds(self, ratio: f64) -> bool {
        self.ends.0 * (1.0 - WIDENED) <= ratio && ratio <= self.ends.1 * (1.0 + WIDENED)
    }
}

/// A program with both sides.
#[derive(Debug)]
struct ProgramTimes {
    program: Program,
    measured: Measured,
    band: Band,
    /// Predicted time on 2 MB pages, with 2 MB and with 4 KB host pages, in ascending order; s.
    seconds: (f64, f64),
    instructions: u64,
}

impl ProgramTimes {
    /// Predicted over measured ratio less 1, percent.
    fn difference(&self) -> f64 {
        100.0 * (self.band.central() / self.measured.ratio.middle - 1.0)
    }

    /// Predicted over measured seconds, as near to 1 as the predicted range comes.
    fn times(&self) -> f64 {
        let measured = self.measured.large.middle;
        measured.clamp(self.seconds.0, self.seconds.1) / measured
    }

    fn seconds_are_near(&self) -> bool {
        (1.0 / NEAR..=NEAR).contains(&self.times())
    }
}

/// A target and whether it is met.
#[derive(Debug, PartialEq)]
struct Check {
    text: String,
    passed: bool,
}

fn checks(rows: &[ProgramTimes]) -> Vec<Check> {
    let inside = rows.iter().filter(|r| r.band.holds(r.measured.ratio.middle)).count();
    let asked = ((INSIDE * rows.len() as f64).floor() as usize).max(1);
    let mut all = vec![Check {
        text: format!(
            "measured ratio inside the predicted band widened by 10 %: {inside} of {}, at least {asked} asked",
            rows.len()
        ),
        passed: inside >= asked,
    }];
    let of = |f: &dyn Fn(&ProgramTimes) -> f64| rows.iter().map(f).collect::<Vec<_>>();
    if rows.len() >= FEWEST_RANKS {
        let ranks = spearman(&of(&|r| r.measured.ratio.middle), &of(&|r| r.band.central()));
        all.push(Check {
            text: format!(
                "rank correlation of measured and predicted gains: {}, at least {RANKS} asked",
                ranks.map_or("not defined".into(), |r| format!("{r:.2}"))
            ),
            passed: ranks.is_some_and(|r| r >= RANKS),
        });
    }
    let near = rows.iter().filter(|r| r.seconds_are_near()).count();
    let asked = ((ARE_NEAR * rows.len() as f64).floor() as usize).max(1);
    all.push(Check {
        text: format!("seconds within a factor of {NEAR}: {near} of {}, at least {asked} asked", rows.len()),
        passed: near >= asked,
    });
    for row in rows {
        let Some(within) = row.program.within else { continue };
        let off = row.difference();
        all.push(Check {
            text: format!(
                "{}: predicted ratio off by {off:+.1} %, at most {within} % asked",
                row.program.name
            ),
            passed: off.abs() <= within,
        });
    }
    all
}

fn interval(m: &Median) -> String {
    m.interval.map_or("too few runs".into(), |(low, high)| format!("{low:.3} to {high:.3}"))
}

fn page(rows: &[ProgramTimes], checks: &[Check], args: &Args, about: &[String]) -> String {
    let mut t = String::from("# Run times on 4 KB and on 2 MB pages: measured and predicted\n\n");
    let _ = writeln!(t, "Made by `make validate-time` on {}.\n", machine::date());
    if args.quick {
        let _ = writeln!(t, "**A trial run with small inputs: the figures say nothing.**\n");
    }
    if !args.programs.is_empty() {
        let names = args.programs.join(", ");
        let _ = writeln!(
            t,
            "**A part of the set, by `--programs`: {names}. The targets are those of the whole set.**\n"
        );
    }
    for line in about {
        let _ = writeln!(t, "- {line}");
    }
    let whole: Vec<&str> =
        rows.iter().filter(|r| !r.program.has_markers()).map(|r| r.program.name.as_str()).collect();
    let _ = writeln!(
        t,
        "\nThe ratio is a program's CPU time on 4 KB pages over that on 2 MB pages, in its region between markers{}. Each program ran {} times on either, by turns; the table has the median of \
         the pairs' ratios and its 95 % interval (order statistics). *Times* is predicted over measured seconds, as near to 1 as the predicted range comes. *Huge* is the least memory in 2 MB pages that a run \
         on 2 MB pages had. The prediction is the model's for nested paging with 2 MB and with 4 KB host pages: a VM does \
         not know which its host uses. *All hidden .. nothing hidden* is the widest band of both, if the core hides \
         everything or nothing of its waits. *Inside* tells whether the measured ratio lies in the predicted band, \
         widened by 10 %.\n",
        if whole.is_empty() {
            String::new()
        } else {
            format!("; of {}, in the whole command", whole.join(", "))
        },
        args.pairs,
    );
    t += &table(rows);
    t += "\nTimes are predicted less well than ratios, likely for reasons that this page does not test. Branches that are \
          mispredicted, as in sorts and searches, cost nothing. The base CPI is one number for all code. And of a chain whose \
          start no load tells, every load waits for the one before.\n";
    t += "\n## Targets\n\n";
    for c in checks {
        let _ = writeln!(t, "- {}: {}", crate::met(c.passed), c.text);
    }
    t
}

fn table(rows: &[ProgramTimes]) -> String {
    let columns = markdown::table::<ProgramTimes>()
        .left("program", |r| r.program.name.clone())
        .left("what", |r| r.program.what.clone())
        .right("time on 2 MB pages s", |r| format!("{:.2}", r.measured.large.middle))
        .left("predicted s", |r| format!("{:.2} to {:.2}", r.seconds.0, r.seconds.1))
        .right("times", |r| format!("{:.2}", r.times()))
        .right("huge MiB", |r| match r.measured.huge_kib {
            kib if kib < 0 => "not known".into(),
            kib => (kib >> 10).to_string(),
        })
        .right("measured ratio", |r| format!("{:.3}", r.measured.ratio.middle))
        .left("95 % interval", |r| interval(&r.measured.ratio))
        .right("wall ratio", |r| format!("{:.3}", r.measured.wall_ratio.middle))
        .left("predicted", |r| format!("{:.3} to {:.3}", r.band.ends.0, r.band.ends.1))
        .left("all hidden .. nothing hidden", |r| format!("{:.3} to {:.3}", r.band.widest.0, r.band.widest.1))
        .right("G instructions", |r| format!("{:.2}", r.instructions as f64 / 1e9))
        .right("predicted to measured %", |r| format!("{:+.1}", r.difference()))
        .left("inside", |r| crate::yes(r.band.holds(r.measured.ratio.middle)).into());
    columns.of(rows)
}

/// Where the measured times stay.
fn kept(work: &Path) -> PathBuf {
    work.join("measured.json")
}

/// Measures every program: each round runs all of them, so that a busy minute spoils no program alone.
fn measure(set: &Set, built: &Built, args: &Args, work: &Path) -> Result<BTreeMap<String, Measured>> {
    let kept = kept(work);
    let mut all: BTreeMap<String, Measured> = BTreeMap::new();
    if args.reuse && kept.is_file() {
        all = serde_json::from_str(&std::fs::read_to_string(&kept)?)
            .with_context(|| kept.display().to_string())?;
    }
    let missing: Vec<&Program> = set.programs.iter().filter(|p| !all.contains_key(&p.name)).collect();
    let mut pairs = vec![Vec::new(); missing.len()];
    for n in 0..args.pairs {
        let begin = Instant::now();
        for (p, pairs) in missing.iter().zip(&mut pairs) {
            let run = |pages| native::once(built, p, pages, args.model.limit());
            // By turns, so that what drifts favours neither.
            let pair = if n % 2 == 0 {
                let small = run(Pages::Small)?;
                (small, run(Pages::Large)?)
            } else {
                let large = run(Pages::Large)?;
                (run(Pages::Small)?, large)
            };
            pairs.push(pair);
        }
        if !missing.is_empty() {
            say(&format!(
                "measured round {} of {} in {:.0} s",
                n + 1,
                args.pairs,
                begin.elapsed().as_secs_f64()
            ));
        }
    }
    for (p, pairs) in missing.iter().zip(&pairs) {
        all.insert(p.name.clone(), native::summarize(&p.name, pairs)?);
    }
    if !args.quick && !missing.is_empty() {
        std::fs::write(&kept, serde_json::to_string_pretty(&all)?)?;
    }
    Ok(all)
}

/// The model's view of a program, from captures without and with 2 MB pages in the guest.
fn predict(model: &Model, built: &Built, p: &Program, args: &Args, work: &Path) -> Result<[Prediction; 2]> {
    let capture = |thp: &str| -> Result<Prediction> {
        let keep = work.join(format!("{}{}-{thp}.json", if args.quick { "quick-" } else { "" }, p.name));
        if args.reuse && keep.is_file() {
            return Prediction::read(&keep);
        }
        let begin = Instant::now();
        let memory = p.memory.to_string();
        let mut options = vec!["--configs", "nested", "--thp", thp, "--memory", &memory];
        options.extend(args.fast.then_some("--fast"));
        if p.has_markers() {
            options.extend(["--from-marker", "--regions", "1"]);
        }
        let options: Vec<String> = options.into_iter().map(Into::into).collect();
        let prediction = model.compare(&options, built.command(p), &keep)?;
        say(&format!("captured {} with --thp {thp} in {:.0} s", p.name, begin.elapsed().as_secs_f64()));
        for warning in &prediction.warnings {
            say(&format!("{} with --thp {thp}: {warning}", p.name));
        }
        Ok(prediction)
    };
    Ok([capture("never")?, capture("always")?])
}

/// Runs the whole; false if a target is missed.
pub fn run(mut args: Args) -> Result<bool> {
    if args.quick {
        args.pairs = args.pairs.min(3);
    }
    let work = args.model.work("time")?;
    let set = Set::read(&args.set, &args.programs)?;
    let built = set.build(&work.join("bin"), args.quick)?;
    let model = args.model.model(None)?;
    let earlier = (args.reuse && kept(&work).is_file()).then(|| machine::date_of(&kept(&work)));
    let measured = measure(&set, &built, &args, &work)?;
    let (mut rows, mut failed, mut about) = (Vec::new(), Vec::new(), Vec::new());
    for p in &set.programs {
        match predict(&model, &built, p, &args, &work).and_then(|both| {
            let [small, large] = &both;
            if about.is_empty() {
                about = machine::about();
                about.extend(earlier.iter().map(|day| format!("times measured by an earlier call, {day}")));
                about.push(format!(
                    "profile {}, {}",
                    small.profile(),
                    if small.has_caches() { "with data caches" } else { "without data caches" }
                ));
            }
            let band = Band::new(small, large)?;
            let seconds = |host: &str| -> Result<f64> {
                let total = large.total(host)?;
                Ok(large.cycles(total, Hidden::Stated) / large.frequency())
            };
            let (a, b) = (seconds("nested-2m")?, seconds("nested-4k")?);
            let instructions = small.total("nested-4k")?.instructions;
            let measured = measured[&p.name].clone();
            Ok(ProgramTimes {
                program: p.clone(),
                measured,
                band,
                seconds: (a.min(b), a.max(b)),
                instructions,
            })
        }) {
            Ok(row) => rows.push(row),
            Err(e) => {
                say(&format!("error: {}: {e:#}", p.name));
                failed.push(p.name.as_str());
            }
        }
    }
    if rows.is_empty() {
        bail!("no program could be captured (messages above)");
    }
    let checks = checks(&rows);
    crate::deliver(args.output.as_deref(), &page(&rows, &checks, &args, &about))?;
    if !failed.is_empty() {
        bail!("not captured: {} (messages above)", failed.join(", "));
    }
    Ok(checks.iter().all(|c| c.passed))
}

/// Time that a single run or capture may take unless --limit says otherwise.
pub const LIMIT: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::tests::document;

    fn prediction(walks: [u64; 2]) -> Prediction {
        let of = |w| format!(r#""instructions": 2000, "walk_cycles": {w}"#);
        Prediction::parse(&document("", &of(walks[0]), &of(walks[1]))).unwrap()
    }

    fn row(name: &str, ratio: f64, ends: (f64, f64), within: Option<f64>) -> ProgramTimes {
        let text = format!("name = \"{name}\"\nwhat = \"w\"\nrun = [\"x\"]\nquick = []\nmemory = 1\n");
        let mut program: Program = toml::from_str(&text).unwrap();
        program.within = within;
        let m = Median { middle: ratio, interval: Some((ratio - 0.01, ratio + 0.01)), n: 9 };
        let large = Median { middle: 2.0, ..m };
        let measured = Measured { ratio: m, wall_ratio: m, small: m, large, huge_kib: 2048 };
        ProgramTimes {
            program,
            measured,
            band: Band { ends, widest: ends },
            seconds: (1.0, 1.0),
            instructions: 1_000_000_000,
        }
    }

    #[test]
    fn the_ends_of_the_band_are_the_two_sizes_of_host_pages() {
        // 1000 cycles without walks: 2000 instructions at a CPI of 0.5.
        let band = Band::new(&prediction([1000, 500]), &prediction([250, 0])).unwrap();
        assert_eq!(band.ends, (1.5, 1.6));
        assert_eq!(band.widest, band.ends);
        assert!((band.central() - 2.4f64.sqrt()).abs() < 1e-12);
    }

    #[test]
    fn a_ratio_is_inside_up_to_a_tenth_beyond_either_end() {
        let band = Band { ends: (1.0, 2.0), widest: (1.0, 2.0) };
        for (ratio, inside) in [(0.89, false), (0.91, true), (1.5, true), (2.19, true), (2.21, false)] {
            assert_eq!(band.holds(ratio), inside, "{ratio}");
        }
    }

    #[test]
    fn targets_are_met_or_missed_each_for_itself() {
        let mut rows: Vec<ProgramTimes> = (0..7)
            .map(|i| {
                let ratio = 1.0 + f64::from(i) / 10.0;
                row(&i.to_string(), ratio, (ratio, ratio), (i == 3).then_some(20.0))
            })
            .collect();
        let passed = |rows: &[ProgramTimes]| checks(rows).iter().map(|c| c.passed).collect::<Vec<_>>();
        assert_eq!(passed(&rows), [true, true, false, true]);
        rows.iter_mut().for_each(|r| r.measured.large.middle = 1.4);
        assert_eq!(passed(&rows), [true, true, true, true]);
        // The best program becomes the worst: 6 of 7 inside still suffice, the order does not.
        rows[6].measured.ratio.middle = 0.9;
        assert_eq!(passed(&rows), [true, false, true, true]);
        rows[3].measured.ratio.middle = 1.0;
        assert_eq!(passed(&rows), [false, false, true, false]);
        // 5 of 7 suffice.
        rows[0].measured.large.middle = 3.0;
        rows[1].measured.large.middle = 0.4;
        assert_eq!(passed(&rows), [false, false, true, false]);
        rows[2].measured.large.middle = 0.4;
        assert_eq!(passed(&rows), [false, false, false, false]);
    }

    #[test]
    fn ranks_of_a_few_programs_are_not_judged() {
        assert_eq!(checks(&[row("a", 1.0, (1.0, 1.0), None)]).len(), 2);
    }

    #[test]
    fn five_of_six_suffice() {
        let mut rows: Vec<ProgramTimes> = (0..6)
            .map(|i| {
                let ratio = 1.0 + f64::from(i) / 10.0;
                row(&i.to_string(), ratio, (ratio, ratio), None)
            })
            .collect();
        rows[0].band.ends = (0.5, 0.5);
        assert!(checks(&rows)[0].passed);
        rows[1].band.ends = (0.5, 0.5);
        assert!(!checks(&rows)[0].passed);
    }

    #[test]
    fn the_page_shows_a_missed_target() {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Cli {
            #[command(flatten)]
            args: Args,
        }
        let rows = [row("a", 1.5, (1.0, 1.1), None)];
        let text = page(&rows, &checks(&rows), &Cli::parse_from(["x"]).args, &["a machine".into()]);
        assert!(text.contains("| NO |") && text.contains("MISSED: measured ratio inside"), "{text}");
    }
}
