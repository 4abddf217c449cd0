// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a configuration means, for `--check-config`.

use anyhow::ensure;
use bifold_daemon::Config;
use bifold_daemon::config::Decides;
use bifold_report::{text_table, wrapped};
use std::fmt::Write as _;
use std::path::Path;

/// systemd makes this folder when the unit starts (StateDirectory= of bifoldd.service).
const MADE_BY_THE_UNIT: &str = "/var/lib/bifold";

/// Whether the folders are there of the files that the daemon writes.
///
/// # Errors
/// If one is not.
pub fn folders(config: &Config) -> anyhow::Result<()> {
    let recording = config.recording.iter().map(|r| ("recording.file", r.file.as_path()));
    let metrics = config.metrics.file.iter().map(|f| ("metrics.file", f.as_path()));
    for (key, file) in recording.chain(metrics) {
        let folder = match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() => folder,
            _ => Path::new("."),
        };
        ensure!(
            folder.is_dir() || folder == Path::new(MADE_BY_THE_UNIT),
            "{key} = {}: there is no folder {}: make it, or name another file",
            file.display(),
            folder.display()
        );
    }
    Ok(())
}

/// The configuration in words.
pub fn text(config: &Config) -> String {
    let mut out = format!("reads each VM every {} s\n", config.interval_s);
    let never: Vec<&str> = config.never.iter().map(|p| p.text()).collect();
    if !never.is_empty() {
        out += &wrapped(&format!("never touches {}", never.join(", ")), 2);
    }
    match &config.recording {
        Some(r) => {
            let _ = writeln!(out, "records in {}, up to twice {} MiB", r.file.display(), r.most_mib);
        }
        None => out += "records nothing\n",
    }
    if let Some(file) = &config.metrics.file {
        let _ = writeln!(out, "writes metrics to {}", file.display());
    }
    if let Some(address) = &config.metrics.listen {
        let _ = writeln!(out, "answers http://{address}/metrics");
    }
    for text in &config.notes {
        out += &wrapped(&format!("note: {text}"), 2);
    }
    if config.rules.is_empty() {
        return out + "has no rule: VMs are watched, and no policy decides\n";
    }
    let head = ["\nVMs", "\npolicy", "\ndecides", "\ndoes", "least\nstay", "switches\nan hour", "\nblackout"];
    let rows = config.rules.iter().map(|rule| {
        vec![
            rule.vms.text().escape_debug().to_string(),
            rule.policy().unwrap_or("-").to_string(),
            rule.decides.as_ref().map_or("-".into(), |decides| format!("{} s", every_s(decides))),
            match (&rule.decides, rule.act) {
                (None, _) => "-",
                (_, true) => "switches",
                (_, false) => "observes",
            }
            .into(),
            format!("{} s", rule.limits.min_stay_s),
            rule.limits.most_switches_per_hour.to_string(),
            format!("{} s", rule.limits.blackout_s),
        ]
    });
    out + "\n" + &text_table(head.map(String::from).into(), rows.collect()) + &memory(config)
}

/// What the configuration means for memory.
fn memory(config: &Config) -> String {
    let Some(share) = &config.memory else { return String::new() };
    let mut out = format!(
        "\ndivides {} by policy {} every {} s\n\n",
        share.limit,
        share.policy.name(),
        share.interval_s
    );
    let head = ["\nVMs", "\ndoes", "\nleast", "\nmost", "least\nstay", "orders\nan hour"];
    let bound = |bytes: Option<u64>, all: &str| bytes.map_or(all.into(), |b| format!("{} MiB", b >> 20));
    let rows = config.rules.iter().filter_map(|rule| {
        let memory = rule.memory.as_ref()?;
        Some(vec![
            rule.vms.text().escape_debug().to_string(),
            if memory.act { "takes" } else { "observes" }.into(),
            bound(memory.least, "a quarter"),
            bound(memory.most, "all"),
            format!("{} s", memory.limits.min_stay_s),
            memory.limits.most_orders_per_hour.to_string(),
        ])
    });
    out += &text_table(head.map(String::from).into(), rows.collect());
    out
}

/// Seconds between two decisions.
fn every_s(decides: &Decides) -> f64 {
    match decides {
        Decides::Policy(named) => named.spec.interval_s(),
        Decides::Probes(how) => how.every_s,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_daemon_need_a_folder() {
        let check = |toml: &str| folders(&Config::parse(toml, Path::new("/etc/c.toml")).unwrap());
        assert!(check("[recording]\nfile = \"/var/lib/bifold/vms.jsonl\"").is_ok());
        assert!(check("[metrics]\nfile = \"/tmp/bifold.prom\"").is_ok());
        let e = check("[recording]\nfile = \"/no/such/r\"").unwrap_err().to_string();
        assert_eq!(
            e,
            "recording.file = /no/such/r: there is no folder /no/such: make it, or name another file"
        );
    }

    #[test]
    fn a_configuration_is_told_rule_by_rule() {
        let text = |toml: &str| super::text(&Config::parse(toml, Path::new("/etc/c.toml")).unwrap());
        let toml = r#"
            never = ["db-*"]
            [recording]
            file = "/var/r"
            [metrics]
            listen = "127.0.0.1:9178"
            [[vm]]
            name = "web-*"
            policy = "dsp"
            act = true
            trusted = true
            min_stay_s = 30
            [[vm]]
            name = "*"
            policy = "experts"
        "#;
        insta::assert_snapshot!(text(toml), @r"
        reads each VM every 1 s
        never touches db-*
        records in /var/r, up to twice 1024 MiB
        answers http://127.0.0.1:9178/metrics

                                            least  switches
        VMs      policy  decides      does   stay   an hour  blackout
        ─────────────────────────────────────────────────────────────
        web-*       dsp      5 s  switches   30 s        60       1 s
        *       experts      1 s  observes   10 s        60       1 s
        ");
        assert!(text("").ends_with("no policy decides\n"));
        let toml = r#"
            [memory]
            limit = "60%"
            policy = "mom"
            [[vm]]
            name = "web-*"
            policy = "dsp"
            [vm.memory]
            act = true
            least = "512M"
            [[vm]]
            name = "*"
            [vm.memory]
            most_orders_per_hour = 3
        "#;
        insta::assert_snapshot!(text(toml), @r"
        reads each VM every 1 s
        records nothing

                                           least  switches
        VMs     policy  decides      does   stay   an hour  blackout
        ────────────────────────────────────────────────────────────
        web-*      dsp      5 s  observes   10 s        60       1 s
        *            -        -         -   10 s        60       1 s

        divides 60 % of the host's memory by policy mom every 10 s

                                           least   orders
        VMs         does      least  most   stay  an hour
        ─────────────────────────────────────────────────
        web-*      takes    512 MiB   all   60 s       20
        *       observes  a quarter   all   60 s        3
        ");
    }
}
