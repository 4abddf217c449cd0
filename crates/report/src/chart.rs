// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The predicted times of a run as one SVG image, for pages that are light or dark.

use crate::meta::profile_words;
use crate::template::environment;
use crate::{Comparison, Figures, RenderError, table};
use minijinja::context;
use serde::Serialize;

const TEMPLATE: &str = include_str!("../html/chart.svg.j2");
const WIDTH: f64 = 760.0;
/// Columns of the names, and room for the numbers behind the bars.
const LEFT: f64 = 180.0;
const RIGHT: f64 = 96.0;
/// The first row, and from one row to the next.
const TOP: f64 = 56.0;
const STEP: f64 = 28.0;
/// A bar is cut off at twice the middle one where the longest is so many times as long.
const LONG: f64 = 3.0;
/// Most characters of the title.
const MOST_CHARACTERS: usize = 90;

#[derive(Serialize)]
struct ChartBar {
    name: String,
    y: f64,
    parts: Vec<Part>,
    low: f64,
    high: f64,
    end: f64,
    text: String,
}

#[derive(Serialize)]
struct Part {
    class: &'static str,
    x: f64,
    width: f64,
    text: &'static str,
}

/// Two decimals of a pixel are enough.
fn pixel(v: f64) -> f64 {
    (100.0 * v).round() / 100.0
}

impl Comparison {
    /// The predicted time in each configuration as an SVG image.
    ///
    /// # Errors
    /// If the template fails.
    pub fn render_chart(&self) -> Result<String, RenderError> {
        let o = &self.outcome;
        let unit = table::unit(self);
        let all: Vec<Figures> = o.configs.iter().map(|r| Figures::of(o, r)).collect();
        let cap = cap(all.iter().map(|f| f.seconds).collect());
        let most =
            all.iter().map(|f| f.seconds.max(f.high_seconds).min(cap)).fold(f64::MIN_POSITIVE, f64::max);
        let x = |seconds: f64| pixel(LEFT + seconds.clamp(0.0, most) / most * (WIDTH - LEFT - RIGHT));
        let row = |(i, (r, f)): (usize, (&bifold_model::ConfigOutcome, &Figures))| {
            let cut = if f.seconds > cap { "▸ " } else { "" };
            ChartBar {
                name: r.config.name(),
                y: TOP + STEP * i as f64,
                parts: pieces(f, x),
                low: x(f.low_seconds),
                high: x(f.high_seconds),
                end: x(f.seconds.max(f.high_seconds)),
                text: format!("{cut}{}", unit.text(f.seconds)),
            }
        };
        let rows: Vec<ChartBar> = o.configs.iter().zip(&all).enumerate().map(row).collect();
        let bottom = TOP + STEP * rows.len() as f64;
        let ticks = ticks(most * unit.per_second);
        let ticks: Vec<_> = ticks
            .into_iter()
            .map(|t| context! { x => x(t / unit.per_second), text => format!("{t} {}", unit.name) })
            .collect();
        let mut title = self.meta.what();
        if title.chars().count() > MOST_CHARACTERS {
            title = title.chars().take(MOST_CHARACTERS).chain(['…']).collect();
        }
        let mut env = environment();
        env.add_template("chart.svg", TEMPLATE)?;
        Ok(env.get_template("chart.svg")?.render(context! {
            width => WIDTH,
            height => bottom + 46.0,
            left => LEFT,
            top => TOP,
            bottom => bottom,
            title => title,
            about => format!(
                "Predicted time on profile {}, VM {}; lines are the bands",
                profile_words(&self.meta.hardware),
                o.vm.name()
            ),
            ticks => ticks,
            rows => rows,
            legend => legend(o.caches.is_some()),
        })?)
    }
}

/// The parts of a bar, from left to right. Where the program waits less than in the ideal run, the bar of the
/// ideal run is shorter.
fn pieces(f: &Figures, x: impl Fn(f64) -> f64) -> Vec<Part> {
    let ideal = f.seconds / (1.0 + f.overhead_percent / 100.0);
    let extra = parts(f).map(|(class, percent)| (class, ideal * percent / 100.0));
    let less: f64 = extra.iter().map(|(_, s)| s.min(0.0)).sum();
    let mut from = 0.0;
    let mut parts = Vec::new();
    for (class, seconds) in [("ideal", ideal + less)].into_iter().chain(extra) {
        let to = from + seconds.max(0.0);
        let (left, right) = (x(from), x(to));
        if right > left {
            parts.push(Part { class, x: left, width: pixel(right - left), text: "" });
        }
        from = to;
    }
    parts
}

/// The parts of the overhead in percent of the ideal run, in the order of the table.
fn parts(f: &Figures) -> [(&'static str, f64); 4] {
    [
        ("walks", f.walk_percent),
        ("data", f.data_percent),
        ("frames", f.frames_percent),
        ("VMM", f.vmm_percent),
    ]
}

/// Where bars are cut off, in seconds; infinite where none is far longer than most.
fn cap(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    let middle = seconds.get(seconds.len() / 2).copied().unwrap_or(0.0);
    match seconds.last() {
        Some(longest) if *longest > LONG * middle => 2.0 * middle,
        _ => f64::INFINITY,
    }
}

/// Round numbers from 0 to the end of the axis, at most six.
fn ticks(most: f64) -> Vec<f64> {
    let magnitude = 10f64.powf((most / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|s| s * magnitude).into_iter().find(|s| most / s <= 5.0);
    let step = step.unwrap_or(most);
    // Decimals of binary fractions are cut off.
    (0..=5).map(|i| (f64::from(i) * step * 1e9).round() / 1e9).filter(|t| *t <= most).collect()
}

fn legend(has_data: bool) -> Vec<Part> {
    let all = [
        ("ideal", "ideal run"),
        ("walks", "page walks"),
        ("data", "waits for data"),
        ("frames", "host frames"),
        ("VMM", "exits and hypervisor"),
    ];
    let shown = all.into_iter().filter(|(class, _)| has_data || !["data", "frames"].contains(class));
    let mut at = LEFT;
    let mut place = |(class, text): (&'static str, &'static str)| {
        let part = Part { class, x: at, width: 12.0, text };
        at += 34.0 + 6.6 * text.len() as f64;
        part
    };
    shown.map(&mut place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_few() {
        assert_eq!(ticks(4.7), [0.0, 1.0, 2.0, 3.0, 4.0]);
        assert_eq!(ticks(812.3), [0.0, 200.0, 400.0, 600.0, 800.0]);
        assert_eq!(ticks(0.7), [0.0, 0.2, 0.4, 0.6]);
    }

    #[test]
    fn a_bar_far_longer_than_most_is_cut_off() {
        assert_eq!(cap(vec![1.0, 1.2, 9.0]), 2.4);
        assert_eq!(cap(vec![1.0, 1.2, 2.0]), f64::INFINITY);
    }
}
