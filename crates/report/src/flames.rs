// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The flame graph of a report. inferno draws an SVG with its own script; the report embeds the graph as
//! a document in an `iframe` without a source. Processes stand at the top.

use crate::{Places, RenderError};
use bifold_attribute::Metric;
use inferno::flamegraph::color::{BasicPalette, Color};
use inferno::flamegraph::{Direction, Options, Palette, from_lines};
use serde::Serialize;

/// The head of the document: the page's colours and a transparent background. inferno's script stores the
/// zoom in the address, and this document has no address.
const HEAD: &str = "<!DOCTYPE html><meta charset=\"utf-8\"><title>Flame graph</title><style>\
:root{color-scheme:light dark}body{margin:0;background:transparent}svg{display:block;width:100%}\
rect[fill^=url]{fill:transparent}#title,#details,#search,#matched,#unzoom{fill:#1c2330}\
@media(prefers-color-scheme:dark){#title,#details,#search,#matched,#unzoom{fill:#e6e9ef}}\
</style><script>history.replaceState=()=>{};</script>";

/// A document and its height in pixels.
#[derive(Debug, Serialize)]
pub(crate) struct Flames {
    document: String,
    height: u32,
}

/// The colours of the modes, in the order of [`Paging`](bifold_model::Paging).
const PALETTES: [BasicPalette; 7] = {
    use BasicPalette::{Aqua, Blue, Green, Orange, Purple, Red, Yellow};
    [Green, Blue, Orange, Purple, Aqua, Red, Yellow]
};

/// The graph of extra cycles in the configuration shown; none without extra cycles.
pub(crate) fn flames(places: &Places) -> Result<Option<Flames>, RenderError> {
    let folded = places.places.folded(places.view, places.config, Metric::ExtraCycles);
    if folded.is_empty() {
        return Ok(None);
    }
    let mut options = Options::default();
    // The page has the title, and a narrow page has no room for both title and search.
    options.title = String::new();
    options.count_name = "extra cycles".into();
    options.name_type = "Place:".into();
    let mode = places.places.configs[places.config].mode;
    options.colors = Palette::Basic(PALETTES[mode as usize % PALETTES.len()]);
    options.hash = true;
    options.uicolor = Color { r: 90, g: 100, b: 116 };
    options.direction = Direction::Inverted;
    options.frame_height = 20;
    options.min_width = 0.05;
    let mut svg = Vec::new();
    from_lines(&mut options, folded.lines(), &mut svg).map_err(RenderError::Graph)?;
    let svg = String::from_utf8_lossy(&svg);
    // An SVG within HTML has no declaration of its own.
    let svg = &svg[svg.find("<svg").unwrap_or(0)..];
    let height = svg.split_once("height=\"").and_then(|(_, rest)| rest.split('"').next()?.parse().ok());
    Ok(Some(Flames { document: format!("{HEAD}{svg}"), height: height.unwrap_or(200) }))
}
