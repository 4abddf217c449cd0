// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command line.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub const HELP: &str = "\
Reports this guest's page faults, and the progress of its work, to the host.

Usage: bifold-reporter [--port PATH] [--interval SECONDS] [--progress FILE]

Options:
  --port PATH         virtio-serial port that is written to
                      [default: /dev/virtio-ports/org.bifold.report.0]
  --interval SECONDS  time between reports, 0.02 to 60 [default: 0.2]
  --progress FILE     file of lines `NAME COUNT` that the guest's work writes: what
                      it has done so far; at most 16 names of a-z, 0-9, _ and -
  -h, --help          this text
  -V, --version       the version

Each report is a line of JSON:
  {\"schema\":\"bifold.report/1\",\"uptime_ms\":5120,\"page_faults\":70312,\"progress\":{\"tables\":120}}
Reports are dropped while no program on the host reads them.

Exit status: 2 for a wrong option, 77 if the port cannot be opened.

Example:
  bifold-reporter --interval 0.5 --progress /run/work-done
";

/// What the command line asks for.
#[derive(Debug, PartialEq)]
pub enum Parsed {
    Run(Options),
    Help,
    Version,
}

#[derive(Debug, PartialEq)]
pub struct Options {
    pub port: PathBuf,
    pub interval: Duration,
    pub progress: Option<PathBuf>,
}

/// Reads the arguments behind the program's name.
pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Parsed, String> {
    let mut options = Options {
        port: "/dev/virtio-ports/org.bifold.report.0".into(),
        interval: Duration::from_millis(200),
        progress: None,
    };
    // `--name=value` is `--name value`.
    let mut args = args.flat_map(|arg| match arg.to_str().and_then(|a| a.split_once('=')) {
        Some((name, value)) if name.starts_with("--") => vec![name.into(), value.into()],
        _ => vec![arg],
    });
    while let Some(arg) = args.next() {
        let mut value = || args.next().ok_or_else(|| format!("{} needs a value", arg.to_string_lossy()));
        match arg.to_str() {
            Some("-h" | "--help") => return Ok(Parsed::Help),
            Some("-V" | "--version") => return Ok(Parsed::Version),
            Some("--port") => options.port = value()?.into(),
            Some("--progress") => options.progress = Some(value()?.into()),
            Some("--interval") => options.interval = interval(&value()?.to_string_lossy())?,
            _ => return Err(format!("unknown argument {}", arg.to_string_lossy())),
        }
    }
    Ok(Parsed::Run(options))
}

fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse::<f64>().ok().filter(|s| (0.02..=60.0).contains(s));
    let seconds =
        seconds.ok_or_else(|| format!("--interval {text} is no number of seconds from 0.02 to 60"))?;
    Ok(Duration::from_secs_f64(seconds))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_man_page_has_every_option_and_the_version() {
        let page = include_str!("../bifold-reporter.8").replace('\\', "");
        let options: Vec<&str> = HELP
            .split(|c: char| !(c.is_ascii_alphanumeric() || c == '-'))
            .filter(|w| w.starts_with("--"))
            .collect();
        assert!(options.len() > 4, "{options:?}");
        for option in options.into_iter().chain([concat!("bifold ", env!("CARGO_PKG_VERSION"))]) {
            assert!(page.contains(option), "{option}");
        }
    }

    fn of(args: &[&str]) -> Result<Parsed, String> {
        parse(args.iter().map(OsString::from))
    }

    #[test]
    fn options_have_defaults_and_both_forms() {
        let Ok(Parsed::Run(o)) = of(&[]) else { panic!() };
        assert_eq!((o.interval, o.progress), (Duration::from_millis(200), None));
        assert_eq!(o.port.to_str(), Some("/dev/virtio-ports/org.bifold.report.0"));
        let Ok(Parsed::Run(o)) = of(&["--port=/dev/a=b", "--interval", "0.02", "--progress", "p"]) else {
            panic!()
        };
        let expected = Options {
            port: "/dev/a=b".into(),
            interval: Duration::from_millis(20),
            progress: Some("p".into()),
        };
        assert_eq!(o, expected);
        assert_eq!((of(&["--help"]), of(&["-V"])), (Ok(Parsed::Help), Ok(Parsed::Version)));
    }

    #[test]
    fn a_wrong_option_is_named() {
        for (args, problem) in [
            (&["--port"][..], "--port needs a value"),
            (&["--intervall", "1"], "unknown argument --intervall"),
            (&["--interval", "0.01"], "--interval 0.01 is no number of seconds from 0.02 to 60"),
            (&["--interval=NaN"], "--interval NaN is no number"),
            (&["--interval=61"], "--interval 61 is no number"),
        ] {
            let told = of(args).unwrap_err();
            assert!(told.contains(problem), "{told}");
        }
    }
}
