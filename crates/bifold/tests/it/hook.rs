// SPDX-License-Identifier: Apache-2.0 OR MIT
//! libvirt's hook: what it writes from a domain's metadata is a configuration, and nothing in a domain's XML
//! costs the domain its start or other domains their rules.

use bifold_daemon::Config;
use bifold_daemon::config::Decides;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A host with a configuration, on which libvirt calls the hook.
struct LibvirtHost {
    dir: tempfile::TempDir,
}

impl LibvirtHost {
    fn with(config: &str) -> LibvirtHost {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("bifold.toml"), config).unwrap();
        LibvirtHost { dir }
    }

    fn config(&self) -> PathBuf {
        self.dir.path().join("bifold.toml")
    }

    /// Calls the hook as libvirt does. Returns what it says on stderr.
    fn calls(&self, guest: &str, operation: &str, xml: &str) -> String {
        let hook = Path::new(env!("CARGO_MANIFEST_DIR")).join("../daemon/install/libvirt-qemu-hook");
        let (operation, sub) = operation.split_once(' ').unwrap();
        let mut c = Command::new(hook);
        c.args([guest, operation, sub, "-"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        c.env("BIFOLD", env!("CARGO_BIN_EXE_bifold"));
        c.env("BIFOLD_CONFIG", self.config()).env("BIFOLD_STATE", self.dir.path());
        let mut child = c.spawn().expect("tools/setup installs python3");
        // The hook does not read the XML at an end.
        let _ = child.stdin.take().unwrap().write_all(xml.as_bytes());
        let out = child.wait_with_output().unwrap();
        // libvirt would not start the domain otherwise, and would take stdout for another XML when a domain
        // arrives.
        assert_eq!((out.status.code(), out.stdout.len()), (Some(0), 0), "{guest} {operation}");
        String::from_utf8(out.stderr).unwrap()
    }

    /// Names in the folder of parts.
    fn parts(&self) -> Vec<String> {
        let folder = self.dir.path().join("bifold.toml.d");
        if folder.exists() { crate::command::names(&folder) } else { Vec::new() }
    }
}

fn domain(name: &str, vm: &str) -> String {
    format!(
        "<domain type='kvm' id='3'><name>{name}</name><metadata><app:x xmlns:app='urn:app' policy='no'/>{vm}</metadata>\
         <memory unit='KiB'>4194304</memory><devices/></domain>"
    )
}

const VM: &str = "<bifold:vm xmlns:bifold='urn:bifold:vm:1' policy='dsp' act='yes' min_stay_s='30' \
                  most_switches_per_hour='20' blackout_s='2.5'><parameter name='interval_s' value='2'/></bifold:vm>";

#[test]
fn a_domain_has_the_rule_of_its_metadata_from_its_start_to_its_end() {
    let host = LibvirtHost::with("[[vm]]\nname = \"*\"\npolicy = \"experts\"\n");
    for operation in ["prepare begin", "started begin", "reconnect begin"] {
        assert_eq!(host.calls("web-1", operation, &domain("web-1", VM)), "");
        assert_eq!(host.parts(), ["libvirt-web-1.toml"]);
        let config = Config::read(&host.config()).unwrap();
        let rule = &config.rules[0];
        assert_eq!((rule.vms.text(), rule.policy(), rule.act), ("web-1", Some("dsp"), true));
        let Some(Decides::Policy(named)) = &rule.decides else { panic!("{rule:?}") };
        assert_eq!(named.spec.interval_s(), 2.0);
        let limits = (rule.limits.min_stay_s, rule.limits.most_switches_per_hour, rule.limits.blackout_s);
        assert_eq!((limits, config.rules.len()), ((30.0, 20, 2.5), 2));
    }
    for operation in ["start begin", "stopped end", "migrate begin", "restore begin"] {
        assert_eq!(host.calls("web-1", operation, "no XML"), "");
        assert_eq!(host.parts().len(), 1, "{operation}");
    }
    assert_eq!(host.calls("web-1", "release end", &domain("web-1", VM)), "");
    assert_eq!(host.parts(), [] as [&str; 0]);
}

#[test]
fn without_act_the_domain_is_observed_and_without_metadata_it_has_no_rule() {
    let host = LibvirtHost::with("");
    let observed = "<vm xmlns='urn:bifold:vm:1' policy='dsp'><parameter name='interval_s' value='2'/></vm>";
    assert_eq!(host.calls("a", "prepare begin", &domain("a", observed)), "");
    let config = Config::read(&host.config()).unwrap();
    assert_eq!(config.rules.iter().map(|r| r.act).collect::<Vec<_>>(), [false]);
    // The metadata was removed before the next start.
    assert_eq!(host.calls("a", "prepare begin", &domain("a", "")), "");
    assert_eq!(host.parts(), [] as [&str; 0]);
}

#[test]
fn a_domain_may_ask_for_probes_in_place_of_a_policy() {
    let host = LibvirtHost::with("");
    let vm =
        "<b:vm xmlns:b='urn:bifold:vm:1' act='yes'><probe every_s='900' least_gain_percent='4.5'/></b:vm>";
    assert_eq!(host.calls("a", "prepare begin", &domain("a", vm)), "");
    let config = Config::read(&host.config()).unwrap();
    let Some(Decides::Probes(probing)) = &config.rules[0].decides else { panic!("{:?}", config.rules) };
    assert_eq!((probing.every_s, probing.least_gain_percent), (900.0, 4.5));
}

#[test]
fn the_reporters_socket_is_the_one_that_libvirt_made() {
    let host = LibvirtHost::with("");
    let with =
        |channel: &str| domain("a", VM).replace("<devices/>", &format!("<devices>{channel}</devices>"));
    let of = |source: &str| {
        with(&format!(
            "<channel type='unix'>{source}<target type='virtio' name='org.bifold.report.0'/></channel>"
        ))
    };
    let other = "<channel type='unix'><source mode='bind' path='/x'/><target type='virtio' name='org.qemu.guest_agent.0'/></channel>";
    let path = "/var/lib/libvirt/qemu/channel/target/domain-1-a/org.bifold.report.0";
    for (xml, socket) in [
        (with(other), None),
        (of("<source mode='bind'/>"), None),
        (of(&format!("<source mode='bind' path='{path}'/>")), Some(path)),
    ] {
        assert_eq!(host.calls("a", "started begin", &xml), "");
        let config = Config::read(&host.config()).unwrap();
        assert_eq!(config.rules[0].reporter.as_deref(), socket, "{xml}");
    }
    let said = host.calls("a", "started begin", &of("<source mode='bind' path='/x&quot;&#10;act = true'/>"));
    assert!(said.contains("the reporter's socket") && host.parts().is_empty(), "{said}");
}

#[test]
fn what_cannot_be_used_is_told_and_leaves_no_rule() {
    let host = LibvirtHost::with("never = [\"db\"]\n");
    host.calls("ok", "prepare begin", &domain("ok", VM));
    let with = |from: &str, to: &str| domain("web", &VM.replace(from, to));
    for (guest, xml, told) in [
        ("web", with("dsp", "d\"\n[[vm]]\nname=\"*"), "is not made of letters"),
        ("web", with("dsp", "../../x.toml"), "is not made of letters"),
        ("web", with("dsp", "dps"), "no policy `dps`"),
        ("web", with("policy='dsp'", ""), "neither a policy nor a table probe"),
        ("web", with("<parameter name='interval_s' value='2'/>", "<probe/>"), "a policy and a table probe"),
        (
            "web",
            with("<parameter name='interval_s' value='2'/>", "<probe every_s='1'/>"),
            "a policy and a table probe",
        ),
        (
            "web",
            with("<parameter name='interval_s' value='2'/>", "<probe every='1'/>"),
            "unknown attribute 'every'",
        ),
        ("web", with("'yes'", "'true'"), "neither 'yes' nor 'no'"),
        ("web", with("'30'", "'inf'"), "is no number"),
        ("web", with("'30'", "'30&#10;act = true'"), "is no number"),
        ("web", with("'30'", "'1'"), "longer than min_stay_s"),
        ("web", with("min_stay_s", "min_stay"), "unknown attribute 'min_stay'"),
        ("web", with("value='2'", "value='2 }'"), "is not made of letters"),
        ("web", with("name='interval_s'", "name='a b'"), "is not made of letters"),
        ("web", with("parameter", "param"), "unknown element 'param'"),
        ("web", "<domain".into(), "cannot be read"),
        ("web", String::new(), "cannot be read"),
        ("4242-13", domain("4242-13", VM), "KVM's identifier"),
        ("../../etc/x", domain("x", VM), "is not made of letters"),
        ("x\"\n", domain("x", VM), "is not made of letters"),
        ("*", domain("*", VM), "is not made of letters"),
        ("", domain("", VM), "is not made of letters"),
    ] {
        let said = host.calls(guest, "prepare begin", &xml);
        assert!(said.starts_with("bifold: domain ") && said.contains(told), "{guest} {xml}: {said}");
        assert_eq!(host.parts(), ["libvirt-ok.toml"], "{guest} {xml}");
    }
    Config::read(&host.config()).unwrap();
}

#[test]
fn a_fault_takes_the_rule_of_an_earlier_start_away() {
    let host = LibvirtHost::with("");
    host.calls("web", "prepare begin", &domain("web", VM));
    assert_eq!(host.parts().len(), 1);
    host.calls("web", "prepare begin", &domain("web", &VM.replace("dsp", "d s p")));
    assert_eq!(host.parts().len(), 0);
}

#[test]
fn without_a_configuration_the_hook_says_so() {
    let host = LibvirtHost::with("");
    std::fs::remove_file(host.config()).unwrap();
    let said = host.calls("web", "prepare begin", &domain("web", VM));
    assert!(said.contains("does not exist"), "{said}");
}
