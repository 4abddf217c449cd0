// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-model`: hardware profiles.

/// A hardware profile with overrides: an error or a profile.
pub fn profile(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // Overrides follow a line of dashes, one on each line.
    let (text, overrides) = text.split_once("\n---\n").unwrap_or((text, ""));
    let overrides: Vec<String> = overrides.lines().map(Into::into).collect();
    let _ = bifold_model::Profile::parse(text, "fuzz", &overrides);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PROFILES: [(&str, &str); 2] = [
        ("i5-7600", include_str!("../../profiles/i5-7600.toml")),
        ("geometry-g", include_str!("../../profiles/geometry-g.toml")),
    ];

    proptest! {
        #[test]
        fn any_text_is_a_profile_or_refused(text in "\\PC{0,200}", value in "\\PC{0,30}", line in 0usize..400) {
            profile(text.as_bytes());
            for (_, good) in PROFILES {
                let mut lines: Vec<&str> = good.lines().collect();
                let at = line % lines.len();
                let changed = lines[at].split_once('=').map_or(value.clone(), |(k, _)| format!("{k}= {value}"));
                lines[at] = &changed;
                profile(lines.join("\n").as_bytes());
                let cut = good.char_indices().map(|c| c.0).nth(line * 7).unwrap_or(0);
                profile(&good.as_bytes()[..cut]);
                profile(format!("{good}\n---\n{changed}\n").as_bytes());
            }
        }
    }
}
