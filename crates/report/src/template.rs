// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parts of every HTML page: the template engine, the style and the chart scripts.

use minijinja::{AutoEscape, Environment};

/// The style of every page.
pub(crate) const STYLE: &str = include_str!("../html/report.css");

/// The scripts of a page's charts in the order of their dependencies, the page's own script last.
pub(crate) fn scripts(own: &'static str) -> [&'static str; 5] {
    [
        include_str!("../vendor/vega.min.js"),
        include_str!("../vendor/vega-lite.min.js"),
        include_str!("../vendor/vega-embed.min.js"),
        include_str!("../html/common.js"),
        own,
    ]
}

/// A template engine that escapes every value.
pub(crate) fn environment() -> Environment<'static> {
    let mut env = Environment::new();
    env.set_auto_escape_callback(|_| AutoEscape::Html);
    env.set_trim_blocks(true);
    env.set_lstrip_blocks(true);
    env
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_model::Config;

    #[test]
    fn every_configuration_has_a_colour_on_light_and_dark_pages() {
        for config in Config::KNOWN {
            let name = format!("--{}: #", config.name());
            assert_eq!(STYLE.matches(&name).count(), 2, "{name}");
        }
    }
}
