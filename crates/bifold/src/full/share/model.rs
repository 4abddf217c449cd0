// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share model`: predicts what a scanner would share of images, when, and at what CPU cost.

use super::out::OutArgs;
use super::settings::settings;
use crate::status::Status;
use crate::usage::UsageError;
use crate::words;
use bifold_host::ksm::{Setting, Settings};
use bifold_report::{Format, grouped, text_table};
use bifold_share::image::Image;
use bifold_share::ksm::{Advisor, Scanner, Tuning};
use bifold_share::tps::{Salt, Tps, TpsTuning};
use clap::{Args, ValueEnum};
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// Name and version of the JSON document.
const SCHEMA: &str = "bifold.share.model/1";

const EXAMPLES: &str = "\
Examples:
  bifold share model web.core db.core
  bifold share model --set pages_to_scan=20000 --set max_page_sharing=512 *.core
  bifold share model --scanner tps --shared-salt --passes 2 web.core db.core";

/// Predict how much a scanner would share, when, and at what CPU cost
///
/// Runs a model of the kernel's ksmd, or of VMware's TPS, over memory images that do not change. Prints after
/// each pass how many pages are shared and how much CPU time the scanner took. All pages of an image count as
/// touched by the guest; on a real host, untouched pages have no frame and are not scanned. CPU times are
/// those of one machine: they compare kinds of memory, not machines. `bifold share check` shows how the model
/// of ksmd agrees with this kernel.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ModelArgs {
    /// Memory of guests: raw RAM or ELF cores, as `bifold share potential` takes
    #[arg(value_name = "IMAGE", required = true)]
    pub images: Vec<PathBuf>,

    /// The scanner: the Linux kernel's KSM, or VMware's TPS
    #[arg(long, value_enum, default_value_t = ScannerArg::Ksm, hide_possible_values = true, value_name = "ksm|tps")]
    pub scanner: ScannerArg,

    /// Setting of KSM, by its name in /sys/kernel/mm/ksm (repeatable)
    ///
    /// Other settings have the kernel's defaults. merge_across_nodes and run have no effect.
    #[arg(long, value_name = "NAME=VALUE")]
    pub set: Vec<String>,

    /// Number of passes over all memory; with TPS, number of visits to each page
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pub passes: u64,

    /// The host backs the guests with huge pages, which merging breaks
    #[arg(long)]
    pub huge_pages: bool,

    /// TPS: guests have the same salt, and share with each other
    #[arg(long)]
    pub shared_salt: bool,

    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,

    /// Options of the output.
    #[command(flatten)]
    pub out: OutArgs,
}

/// A modelled scanner.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ScannerArg {
    /// KSM of Linux.
    Ksm,
    /// TPS of VMware ESX.
    Tps,
}

/// The state at one time: the end of a pass of KSM, or a tenth of TPS's scan time.
struct Moment {
    time: Duration,
    pass: f64,
    shared: u64,
    sharing: u64,
    zero: u64,
    scanned: u64,
    cpu: Duration,
    /// Pages per batch; none for TPS.
    batch: Option<u64>,
}

/// Carries out the verb.
pub fn run(args: &ModelArgs) -> anyhow::Result<Status> {
    let set = settings(&args.set)?;
    if args.scanner == ScannerArg::Tps && !set.is_empty() {
        let problem = "is for KSM's settings: leave it out with --scanner tps";
        return Err(UsageError::conflict("--set", problem).failing().into());
    }
    let output = args.out.create()?;
    let images: Vec<Image> = args.images.iter().map(Image::open).collect::<Result<_, _>>()?;
    let moments = match args.scanner {
        ScannerArg::Ksm => ksm(args, &images, &set)?,
        ScannerArg::Tps => tps(args, &images),
    };
    let pages = images.iter().map(Image::len).sum();
    let data = match args.format {
        Format::Json => json(&moments, pages, args)?,
        _ => table(&moments, pages),
    };
    args.out.write(output, &data)?;
    Ok(Status::Done)
}

/// The model's tuning for these settings of KSM.
fn tuning(set: &Settings) -> Result<Tuning, UsageError> {
    let refused = |setting: Setting, value: u64, problem: &str| {
        Err(UsageError::value(format!("--set {}={value}", setting.name()), problem).failing())
    };
    let mut tuning = Tuning::default();
    let mut advisor = Advisor::default();
    for (setting, value) in set.iter() {
        match setting {
            Setting::PagesToScan if value == 0 => return refused(setting, value, "has to be 1 or more"),
            Setting::PagesToScan => tuning.pages_to_scan = value,
            Setting::SleepMillisecs => tuning.sleep = Duration::from_millis(value),
            Setting::MaxPageSharing => {
                tuning.max_page_sharing = match u32::try_from(value) {
                    Ok(pages @ 2..) => pages,
                    _ => return refused(setting, value, "has to be 2 to 4294967295"),
                };
            }
            Setting::UseZeroPages => tuning.use_zero_pages = value != 0,
            Setting::SmartScan => tuning.smart_scan = value != 0,
            Setting::ChainsPruneMillisecs => tuning.chains_prune = Duration::from_millis(value),
            Setting::AdvisorMaxCpu => advisor.max_cpu = value,
            Setting::AdvisorMinPagesToScan => advisor.min_pages_to_scan = value,
            Setting::AdvisorMaxPagesToScan => advisor.max_pages_to_scan = value,
            Setting::AdvisorTargetScanTime => advisor.target_scan_time = value,
            _ => {}
        }
    }
    if set.get(Setting::AdvisorMode) == Some(1) {
        for setting in [Setting::AdvisorMinPagesToScan, Setting::AdvisorMaxPagesToScan] {
            if set.get(setting) == Some(0) {
                return refused(setting, 0, "has to be 1 or more with advisor_mode=scan-time");
            }
        }
        tuning.advisor = Some(advisor);
    }
    Ok(tuning)
}

fn ksm(args: &ModelArgs, images: &[Image], set: &Settings) -> anyhow::Result<Vec<Moment>> {
    let mut scanner = Scanner::new(tuning(set)?);
    images.iter().for_each(|image| {
        scanner.add(image, args.huge_pages);
    });
    let moment = |pass| {
        let batch = Some(scanner.pages_to_scan());
        scanner.pass();
        let c = scanner.counts();
        Moment {
            time: scanner.now(),
            pass: pass as f64,
            shared: c.pages_shared,
            sharing: c.pages_sharing,
            zero: c.ksm_zero_pages,
            scanned: c.pages_scanned,
            cpu: scanner.cpu(),
            batch,
        }
    };
    Ok((1..=args.passes).map(moment).collect())
}

fn tps(args: &ModelArgs, images: &[Image]) -> Vec<Moment> {
    let tuning = TpsTuning::default();
    let mut tps = Tps::new(tuning);
    let salt = if args.shared_salt { Salt::Group(0) } else { Salt::Own };
    images.iter().for_each(|image| {
        tps.add(image, args.huge_pages, salt);
    });
    let largest = images.iter().map(Image::len).max().unwrap_or(0) as f64;
    // The largest guest's scan takes longer than the scan time if the rate limit says so.
    let whole = tuning.scan_time.as_secs_f64().max(largest / f64::from(tuning.max_rate));
    let moment = |tenth: u64| {
        tps.run(Duration::from_secs_f64(whole / 10.0));
        let c = tps.counts();
        Moment {
            time: tps.now(),
            pass: tenth as f64 / 10.0,
            shared: c.pages_shared,
            sharing: c.pages_sharing,
            zero: 0,
            scanned: c.visits,
            cpu: tps.cpu(),
            batch: None,
        }
    };
    (1..=args.passes * 10).map(moment).collect()
}

/// Pages that need no frame of their own, in MB.
fn saved_mb(m: &Moment) -> f64 {
    (m.sharing + m.zero) as f64 * 4096.0 / 1e6
}

/// The scanner's CPU time since the moment before, as a share of one processor.
fn load(moments: &[Moment], n: usize) -> f64 {
    let (time, cpu) = match n {
        0 => (Duration::ZERO, Duration::ZERO),
        _ => (moments[n - 1].time, moments[n - 1].cpu),
    };
    let took = (moments[n].time - time).as_secs_f64();
    if took > 0.0 { (moments[n].cpu - cpu).as_secs_f64() / took } else { 0.0 }
}

fn table(moments: &[Moment], pages: u64) -> String {
    let head = [
        "\npass",
        "\ntime s",
        "\npages shared",
        "\npages sharing",
        "\nzero pages",
        "saved\nMB",
        "saved\n% of pages",
        "\nvisits",
        "CPU\ns",
        "CPU\n%",
        "pages\nper batch",
    ];
    let rows = moments.iter().enumerate().map(|(n, m)| {
        vec![
            format!("{}", m.pass),
            format!("{:.1}", m.time.as_secs_f64()),
            grouped(m.shared),
            grouped(m.sharing),
            grouped(m.zero),
            format!("{:.1}", saved_mb(m)),
            format!("{:.1}", (m.sharing + m.zero) as f64 / pages.max(1) as f64 * 100.0),
            grouped(m.scanned),
            format!("{:.3}", m.cpu.as_secs_f64()),
            format!("{:.1}", load(moments, n) * 100.0),
            m.batch.map_or("-".into(), grouped),
        ]
    });
    text_table(head.map(String::from).into(), rows.collect())
}

/// What `bifold share model --format json` writes: what a scanner would share of images, when, and at what
/// CPU cost.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// The scanner: `ksm` or `tps`.
    scanner: &'static str,
    /// Settings of KSM that were named: `NAME=VALUE`.
    set: &'a [String],
    /// Pages of 4 KB of all images.
    pages: u64,
    /// The state after each pass of KSM, or after each tenth of TPS's scan time.
    moments: Vec<MomentRow>,
}

/// The state at one time.
#[derive(Serialize, JsonSchema)]
struct MomentRow {
    /// Number of passes; of TPS, of visits to each page.
    pass: f64,
    /// Time since the start. Unit: s.
    time_s: f64,
    /// Merged frames.
    pages_shared: u64,
    /// Pages that share these frames beyond the first page of each.
    pages_sharing: u64,
    /// Pages that are mappings of the kernel's zero page; 0 of TPS.
    zero_pages: u64,
    /// Visits to pages since the start.
    visits: u64,
    /// CPU time of the scanner since the start. Unit: s.
    cpu_s: f64,
    /// CPU time of the scanner since the moment before, as a share of one processor.
    cpu_ratio: f64,
    /// Pages that KSM visits in a batch; null for TPS.
    pages_per_batch: Option<u64>,
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

fn json(moments: &[Moment], pages: u64, args: &ModelArgs) -> anyhow::Result<String> {
    let row = |(n, m): (usize, &Moment)| MomentRow {
        pass: m.pass,
        time_s: m.time.as_secs_f64(),
        pages_shared: m.shared,
        pages_sharing: m.sharing,
        zero_pages: m.zero,
        visits: m.scanned,
        cpu_s: m.cpu.as_secs_f64(),
        cpu_ratio: load(moments, n),
        pages_per_batch: m.batch,
    };
    let scanner = if args.scanner == ScannerArg::Ksm { "ksm" } else { "tps" };
    let moments = moments.iter().enumerate().map(row).collect();
    let document = Document { schema: SCHEMA, scanner, set: &args.set, pages, moments };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
