// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A page for any result of text, tables and curves over time: one HTML file that needs no network.

use crate::RenderError;
use crate::template::{STYLE, environment, scripts};
use minijinja::context;
use serde::Serialize;

const TEMPLATE: &str = include_str!("../html/page.html.j2");
const TABLES: &str = include_str!("../html/tables.html.j2");
/// Most points of a curve: more would overlap on a screen.
const MAX_POINTS: usize = 600;

/// A result to be read in a browser.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Page {
    /// Version of the program that made the result.
    pub version: String,
    /// The kind of result, shown above the title.
    pub brand: String,
    /// The title.
    pub title: String,
    /// The main result in one sentence.
    pub verdict: String,
    /// A warning on the result, if there is one.
    pub alarm: Option<String>,
    /// An introduction.
    pub about: String,
    /// Names and values that identify the run.
    pub facts: Vec<(String, String)>,
    /// A chart of values by name, above the others.
    pub bars: Option<PageBars>,
    /// Charts over one time axis.
    pub charts: Vec<PageChart>,
    /// Times to be marked in all charts, in seconds, with a word.
    pub marks: Vec<(f64, String)>,
    /// Tables of figures.
    pub tables: Vec<PageTable>,
    /// Tables below them whose cells are text, which wraps.
    pub texts: Vec<PageTable>,
}

/// A chart of curves over time.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PageChart {
    /// Title.
    pub title: String,
    /// Title of the vertical axis.
    pub unit: String,
    /// Name and points (seconds, value) of each curve.
    pub curves: Vec<(String, Vec<(f64, f64)>)>,
}

/// A chart of values by name.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PageBars {
    /// Title.
    pub title: String,
    /// Title of the axis of values.
    pub unit: String,
    /// The values, from above.
    pub bars: Vec<PageBar>,
}

/// A value with its band.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PageBar {
    /// What has the value.
    pub name: String,
    /// The value.
    pub value: f64,
    /// The lower end of its band.
    pub low: f64,
    /// The upper end.
    pub high: f64,
}

/// A table of text.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct PageTable {
    /// Title.
    pub title: String,
    /// Names of the columns; `\n` breaks a name.
    pub head: Vec<String>,
    /// Cells; the first names its row.
    pub rows: Vec<Vec<String>>,
    /// Notes below the table.
    pub notes: Vec<String>,
}

impl Page {
    /// The page as one HTML file.
    ///
    /// # Errors
    /// If the template fails.
    pub fn render(&self) -> Result<String, RenderError> {
        let mut env = environment();
        env.add_template("page.html", TEMPLATE)?;
        let charts: Vec<PageChart> = self.charts.iter().map(thinned).collect();
        Ok(env.get_template("page.html")?.render(context! {
            style => STYLE,
            scripts => scripts(include_str!("../html/page.js")),
            page => self,
            tables => tables(&self.tables)? + &as_html(&self.texts, true)?,
            data => context! { bars => self.bars, charts => charts, marks => self.marks },
        })?)
    }
}

/// Tables of figures as HTML, for any page.
pub(crate) fn tables(tables: &[PageTable]) -> Result<String, RenderError> {
    as_html(tables, false)
}

/// Tables as HTML; cells of text wrap.
fn as_html(tables: &[PageTable], text: bool) -> Result<String, RenderError> {
    let mut env = environment();
    env.add_template("tables.html", TABLES)?;
    let tables: Vec<_> = tables
        .iter()
        .map(|t| {
            let head: Vec<Vec<&str>> = t.head.iter().map(|h| h.split('\n').collect()).collect();
            context! { title => t.title, head => head, rows => t.rows, notes => t.notes }
        })
        .collect();
    Ok(env.get_template("tables.html")?.render(context! { tables => tables, text => text })?)
}

/// The chart with at most [`MAX_POINTS`] points per curve.
fn thinned(chart: &PageChart) -> PageChart {
    let thin = |points: &Vec<(f64, f64)>| {
        let step = points.len().div_ceil(MAX_POINTS).max(1);
        let last = points.len().saturating_sub(1);
        let keep = |(i, p): (usize, &(f64, f64))| (i % step == 0 || i == last).then_some(*p);
        points.iter().enumerate().filter_map(keep).collect()
    };
    PageChart { curves: chart.curves.iter().map(|(n, p)| (n.clone(), thin(p))).collect(), ..chart.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page() -> Page {
        Page {
            title: "a <b> & c".into(),
            charts: vec![PageChart {
                title: "used".into(),
                unit: "MiB".into(),
                curves: vec![("</script><script>alert(1)".into(), vec![(0.0, 1.0), (1.0, 2.0)])],
            }],
            tables: vec![PageTable {
                title: "memory".into(),
                head: vec!["case".into(), "without\nsharing".into()],
                rows: vec![vec!["x".into(), "1".into()]],
                notes: vec!["a note".into()],
            }],
            ..Page::default()
        }
    }

    #[test]
    fn what_users_wrote_ends_neither_element_nor_script() {
        let html = page().render().unwrap();
        assert!(html.contains("a &lt;b&gt; &amp; c") && !html.contains("a <b>"));
        assert!(!html.contains("</script><script>alert"));
        assert!(html.contains("without<br>sharing") && html.contains("a note"));
        assert!(!html.contains("https://cdn"), "no network");
    }

    #[test]
    fn long_curves_keep_their_ends() {
        let points: Vec<(f64, f64)> = (0..5000).map(|n| (f64::from(n), 0.0)).collect();
        let chart = PageChart { curves: vec![("x".into(), points)], ..PageChart::default() };
        let thin = &thinned(&chart).curves[0].1;
        assert!(thin.len() <= MAX_POINTS + 1);
        assert_eq!((thin[0].0, thin[thin.len() - 1].0), (0.0, 4999.0));
    }
}
