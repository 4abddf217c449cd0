// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A body for `bifold-daemon`.

/// A configuration: an error that names the file, or rules in whose limits a VM can be switched.
pub fn daemon_config(data: &[u8]) {
    use bifold_daemon::Config;
    let Ok(text) = std::str::from_utf8(data) else { return };
    match Config::parse(text, "/none/bifold.toml".as_ref()) {
        Ok(config) => {
            assert!((0.05..=3600.0).contains(&config.interval_s));
            for rule in &config.rules {
                assert!(
                    rule.limits.blackout_s <= rule.limits.min_stay_s
                        && rule.limits.most_switches_per_hour > 0
                );
            }
            let share = config.memory.as_ref();
            assert!(
                share.is_none_or(|s| (1.0..=3600.0).contains(&s.interval_s) && s.limit.bytes(1 << 40) >= 1)
            );
            for memory in config.rules.iter().filter_map(|rule| rule.memory.as_ref()) {
                assert!(share.is_some() && memory.limits.most_orders_per_hour > 0);
                assert!(memory.least.zip(memory.most).is_none_or(|(least, most)| least <= most));
            }
            assert!(config.metrics.listen.is_none_or(|a| a.ip().is_loopback()));
        }
        Err(e) => assert!(e.to_string().contains("bifold.toml")),
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::bytes;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_a_configuration_or_an_error(
            data in bytes(),
            keys in proptest::collection::vec((0..22usize, "[a-z0-9.\"*?-]{0,12}"), 0..8),
        ) {
            daemon_config(&data);
            const KEYS: [&str; 22] = [
                "interval_s", "never", "[limits]\nmin_stay_s", "most_switches_per_hour", "blackout_s", "[[vm]]\nname", "policy",
                "act", "reporter", "[vm.probe]\nevery_s", "length_s", "least_gain_percent", "[recording]\nfile", "most_mib",
                "[metrics]\nlisten", "file", "parameters", "[memory]\nlimit", "interval_s", "most_orders_per_hour", "[vm.memory]\nleast",
                "most",
            ];
            let text: String = keys.iter().map(|(key, value)| format!("{} = {value}\n", KEYS[*key])).collect();
            daemon_config(text.as_bytes());
        }
    }
}
