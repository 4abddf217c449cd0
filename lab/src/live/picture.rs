// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guests' phases and modes over time, as an SVG picture.

use std::fmt::Write as _;

use bifold_mmu::Mode;

use super::{Life, Live, Span};

const LEFT: f64 = 150.0;
const WIDTH: f64 = 800.0;
const ROW: f64 = 52.0;
const BAND: f64 = 16.0;
const TOP: f64 = 34.0;
/// Colours by Okabe and Ito, which most people with a colour vision deficiency tell apart.
const TABLES: &str = "#e69f00";
const CHASE: &str = "#56b4e9";
const SHADOW: &str = "#0072b2";
const NESTED: &str = "#d55e00";
const SWITCHED: &str = "#000000";
const UNKNOWN: &str = "#dddddd";

/// The phase in which most of a span's steps were; `None` without a report.
fn phase(span: &Span) -> Option<&str> {
    let busiest = span.steps.iter().max_by_key(|(_, n)| **n);
    busiest.filter(|(_, n)| **n > 0).map(|(name, _)| name.as_str())
}

fn phase_colour(span: &Span) -> &'static str {
    match phase(span) {
        Some("tables") => TABLES,
        Some("chase") => CHASE,
        _ => UNKNOWN,
    }
}

fn mode_colour(span: &Span) -> &'static str {
    match span.mode {
        Some(Mode::Shadow) => SHADOW,
        Some(Mode::Nested) => NESTED,
        None if span.switches > 0 => SWITCHED,
        None => UNKNOWN,
    }
}

/// Rectangles of equal colour in a row are one.
fn band(out: &mut String, life: &Life, y: f64, scale: f64, colour: fn(&Span) -> &'static str) {
    let mut spans = life.spans.iter().peekable();
    while let Some(first) = spans.next() {
        let (from, mut to, fill) = (first.end - first.seconds, first.end, colour(first));
        while let Some(next) = spans.next_if(|s| colour(s) == fill) {
            to = next.end;
        }
        let (x, width) = (LEFT + from * scale, ((to - from) * scale).max(0.5));
        let _ = writeln!(
            out,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BAND}\" fill=\"{fill}\"/>"
        );
    }
}

fn text(out: &mut String, x: f64, y: f64, anchor: &str, words: &str) {
    let _ = writeln!(out, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

/// The picture.
pub fn picture(live: &Live) -> String {
    let end = live.lives.iter().flat_map(|l| &l.spans).map(|s| s.end).fold(1.0, f64::max);
    let scale = WIDTH / end;
    let height = TOP + ROW * live.lives.len() as f64 + 50.0;
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0} {height:.0}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <title>Phases and paging modes of guests under bifold daemon, Linux {}</title>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        LEFT + WIDTH + 20.0,
        live.release
    );
    let mut x = LEFT;
    for (colour, words) in [
        (TABLES, "page-table work"),
        (CHASE, "pointer chasing"),
        (NESTED, "nested"),
        (SHADOW, "shadow"),
        (SWITCHED, "switch"),
    ] {
        let _ = writeln!(out, "<rect x=\"{x:.1}\" y=\"10\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
        text(&mut out, x + 17.0, 20.0, "start", words);
        x += 140.0;
    }
    for (n, life) in live.lives.iter().enumerate() {
        let y = TOP + ROW * n as f64;
        text(&mut out, LEFT - 8.0, y + 12.0, "end", &format!("{}: does", life.kind.name));
        text(&mut out, LEFT - 8.0, y + BAND + 14.0, "end", &format!("{} decides", life.kind.policy));
        band(&mut out, life, y, scale, phase_colour);
        band(&mut out, life, y + BAND + 2.0, scale, mode_colour);
    }
    let bottom = TOP + ROW * live.lives.len() as f64;
    let killed = LEFT + live.killed * scale;
    let _ = writeln!(
        out,
        "<line x1=\"{killed:.1}\" y1=\"{TOP}\" x2=\"{killed:.1}\" y2=\"{bottom:.1}\" stroke=\"#000000\" stroke-dasharray=\"4 3\"/>"
    );
    text(&mut out, killed, bottom + 14.0, "middle", "daemon killed (-9), started again");
    for tick in 0..=8 {
        let seconds = end * f64::from(tick) / 8.0;
        text(&mut out, LEFT + seconds * scale, bottom + 34.0, "middle", &format!("{seconds:.0} s"));
    }
    out + "</svg>\n"
}
