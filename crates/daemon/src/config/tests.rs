// SPDX-License-Identifier: Apache-2.0 OR MIT

use super::*;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("/etc/bifold/bifold.toml")).map_err(|e| e.to_string())
}

fn vm(more: &str) -> String {
    format!("[[vm]]\nname = \"web-*\"\npolicy = \"dsp\"\n{more}\n")
}

fn probe(more: &str) -> String {
    format!("[[vm]]\nname = \"web-*\"\nprobe = {{ {more} }}\n")
}

#[test]
fn an_empty_file_observes_all_and_an_unknown_key_is_told_with_its_place() {
    let config = parse("").unwrap();
    assert_eq!((config.interval_s, config.rules.len(), config.recording), (1.0, 0, None));
    for (text, told) in [
        ("intervall_s = 2", "unknown field `intervall_s`"),
        (&vm("acts = true"), "unknown field `acts`"),
        ("[limits]\nmin_stay = 3", "unknown field `min_stay`"),
        ("[[vm]]\npolicy = \"dsp\"", "missing field `name`"),
        ("never = \"x\"", "expected a sequence"),
        ("[metrics]\nlisten = \"all:1\"", "invalid socket address"),
        ("x", "key with no value"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(told) && error.contains("bifold.toml"), "{error}");
    }
}

#[test]
fn values_out_of_range_and_contradictions_are_all_told() {
    for (text, told) in [
        ("interval_s = 0.0".to_string(), "interval_s = 0 is not 0.05 to 3600"),
        ("interval_s = nan".into(), "interval_s = NaN"),
        ("never = [\"\"]".into(), "never[0] is empty"),
        ("[limits]\nmin_stay_s = 1\nblackout_s = 5".into(), "blackout_s = 5 is longer than min_stay_s = 1"),
        ("[limits]\nmost_switches_per_hour = 0".into(), "leave out `act`"),
        (vm("min_stay_s = -1"), "vm[0] (web-*): min_stay_s = -1"),
        (vm("parameters = { interval_s = 0 }"), "interval_s = 0 is not above 0"),
        (vm("parameters = { intervals = 5 }"), "unknown field `intervals`"),
        (vm("reporter = \"x\""), "reporter is no absolute path"),
        (vm("") + &vm(""), "vm[1] (web-*) is never used"),
        ("[[vm]]\nname = \"*\"\npolicy = \"dsp\"\n".to_string() + &vm(""), "vm[1] (web-*) is never used"),
        (vm("").replace("dsp", "dps"), "no policy `dps`"),
        (vm("").replace("dsp", "none.toml"), "cannot read /etc/bifold/none.toml"),
        (vm("").replace("dsp", "bae"), "which no live host counts"),
        ("[[vm]]\nname = \"x\"".into(), "vm[0] (x) has neither a policy nor a table probe or memory"),
        (vm("probe = {}"), "has a policy and a table probe"),
        (probe("every_s = 1"), "probe.every_s = 1 is not 10"),
        (probe("length_s = 5"), "probe.length_s = 5 is shorter than min_stay_s = 10"),
        (probe("length_s = 500"), "more than a quarter"),
        (probe("") + "most_switches_per_hour = 1\n", "does not allow a probe"),
        (probe("least_gain_percent = nan"), "least_gain_percent = NaN"),
        ("[metrics]\nlisten = \"0.0.0.0:9\"".into(), "is no loopback address"),
        ("[recording]\nfile = \"a\"\nmost_mib = 0".into(), "most_mib = 0"),
        ("[recording]\nfile = \"a\"\n[metrics]\nfile = \"a\"".into(), "name one file"),
        ("estimator = \"none.toml\"".into(), "estimator: cannot read /etc/bifold/none.toml"),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(told), "{text}: {error}");
    }
    let noted = parse(&format!("never = [\"web-*\"]\n{}", vm(""))).unwrap();
    assert!(noted.notes[0].contains("is not used: never"), "{:?}", noted.notes);
    let both = parse("interval_s = 0.0\nnever = [\"\"]").unwrap_err();
    assert_eq!(both.lines().count(), 3, "{both}");
    let general = parse(&format!("[limits]\nmin_stay_s = 1\nblackout_s = 5\n{}", vm(""))).unwrap_err();
    assert_eq!(
        general.matches("blackout_s").count(),
        1,
        "a rule that has the general limits says nothing of its own: {general}"
    );
}

#[test]
fn the_first_rule_that_fits_is_the_vms_and_never_comes_before_all() {
    let config = parse(
        "never = [\"web-9\", \"5-5\"]\n[limits]\nmin_stay_s = 20\n\
         [[vm]]\nname = \"web-1\"\npolicy = \"dsp\"\nact = true\nmin_stay_s = 3\n\
         [[vm]]\nname = \"7-13\"\npolicy = \"always-shadow\"\n\
         [[vm]]\nname = \"web-?\"\npolicy = \"experts\"\n",
    )
    .unwrap();
    let id = |thread| VmId { thread, fd: thread + 6 };
    let rule = |thread, name| config.rule(id(thread), name).map(|r| (r.policy().unwrap(), r.act));
    assert_eq!(rule(1, Some("web-1")), Some(("dsp", true)));
    assert_eq!(rule(1, Some("web-2")), Some(("experts", false)));
    assert_eq!(rule(1, Some("web-22")), None);
    assert_eq!(rule(7, None), Some(("always-shadow", false)));
    assert_eq!(rule(1, Some("web-9")), None);
    assert!(config.rule(VmId { thread: 5, fd: 5 }, Some("web-1")).is_none());
    let stays: Vec<f64> = config.rules.iter().map(|r| r.limits.min_stay_s).collect();
    assert_eq!(stays, [3.0, 20.0, 20.0]);
}

#[test]
fn a_pattern_acts_only_if_its_rule_says_that_it_is_trusted() {
    let seen = |name: &str, more: &str| {
        let text = format!("[[vm]]\nname = \"{name}\"\npolicy = \"dsp\"\nact = true\n{more}\n");
        let config = parse(&text).unwrap();
        (config.rules[0].act, config.rules[0].untrusted, config.notes.len())
    };
    for name in ["*", "web-*", "web-?"] {
        assert_eq!(seen(name, ""), (false, true, 1), "{name}");
        assert_eq!(seen(name, "trusted = true"), (true, false, 0), "{name}");
        assert_eq!(seen(name, "trusted = false"), (false, false, 0), "{name}");
    }
    for name in ["web", "7-13"] {
        assert_eq!(seen(name, ""), (true, false, 0), "{name}");
        assert_eq!(seen(name, "trusted = false"), (false, false, 0), "{name}");
    }
    assert_eq!(parse(&vm("")).unwrap().notes, Vec::<String>::new(), "a rule that observes needs no trust");
    let notes = parse(&vm("act = true")).unwrap().notes;
    assert!(notes[0].contains("vm[0] (web-*): the daemon does not switch VMs of a pattern"), "{notes:?}");
    assert!(notes[0].contains("`trusted = true`"), "{notes:?}");
}

#[test]
fn the_socket_of_a_reporter_may_have_the_vms_name_but_lead_nowhere_else() {
    let config = parse(&vm("reporter = \"/run/r/{name}.sock\"").replace("web-*", "*")).unwrap();
    let id = VmId { thread: 1, fd: 2 };
    assert_eq!(config.reporter(id, Some("web")), Some("/run/r/web.sock".into()));
    for name in ["../x", "a/b", ".."] {
        assert_eq!(config.reporter(id, Some(name)), None, "{name}");
    }
}

#[test]
fn a_short_stay_of_a_rule_shortens_the_general_blackout() {
    let config = parse(&vm("min_stay_s = 0.5")).unwrap();
    assert_eq!(config.rules[0].limits.blackout_s, 0.5);
}

#[test]
fn rules_of_parts_come_first_and_a_part_has_rules_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("bifold.toml");
    let put = |name: &str, text: &str| {
        std::fs::create_dir_all(dir.path().join("bifold.toml.d")).unwrap();
        std::fs::write(dir.path().join(name), text).unwrap();
    };
    put("bifold.toml", "[[vm]]\nname = \"*\"\npolicy = \"dsp\"\n");
    put("bifold.toml.d/b.toml", "[[vm]]\nname = \"b\"\npolicy = \"experts\"\n");
    put("bifold.toml.d/a.toml", "[[vm]]\nname = \"a\"\npolicy = \"regret\"\n");
    put("bifold.toml.d/a.toml.old", "nonsense");
    let names: Vec<String> =
        Config::read(&path).unwrap().rules.iter().map(|r| r.vms.text().to_string()).collect();
    assert_eq!(names, ["a", "b", "*"]);
    put("bifold.toml.d/c.toml", "never = [\"x\"]");
    let error = Config::read(&path).unwrap_err().to_string();
    assert!(error.contains("c.toml") && error.contains("unknown field `never`"), "{error}");
    assert!(Config::read(&dir.path().join("none")).unwrap_err().to_string().contains("cannot read"));
}

#[test]
fn the_example_is_a_configuration() {
    let config = parse(EXAMPLE).unwrap();
    let rules: Vec<_> = config.rules.iter().map(|r| (r.vms.text(), r.policy().unwrap(), r.act)).collect();
    assert_eq!(rules, [("web-*", "rpms-dynamic", true), ("*", "dsp", false)]);
    assert_eq!((config.rules[0].limits.min_stay_s, config.never.len()), (30.0, 1));
}

/// The file that `make install` installs: as it is, the daemon observes; with every key's `#` removed, the
/// file is still one.
#[test]
fn the_installed_file_changes_nothing_and_has_every_key() {
    let text = include_str!("../../install/bifold.toml");
    let config = parse(text).unwrap();
    assert!(config.rules.is_empty() && config.recording.is_none() && config.metrics == Metrics::default());
    let keys =
        |line: &str| line.strip_prefix('#').filter(|l| l.starts_with(|c: char| c != ' ')).map(String::from);
    let active: Vec<String> = text.lines().filter_map(keys).collect();
    let config = parse(&active.join("\n").replace("/etc/bifold/estimator.toml", &estimator()))
        .unwrap_or_else(|e| panic!("{e}\n{}", active.join("\n")));
    assert_eq!(config.rules.len(), 2);
    for key in TABLES.iter().flat_map(|t| t.keys) {
        assert!(
            active.iter().any(|l| l.starts_with(&format!("{} = ", key.name))),
            "{} is not in the file",
            key.name
        );
    }
}

/// A file with coefficients.
fn estimator() -> String {
    concat!(env!("CARGO_MANIFEST_DIR"), "/../policy/params/estimator.toml").into()
}
