// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The page of a diff: one HTML file.

use super::{Diff, made, text};
use crate::{Page, PageTable};

pub(super) fn page(d: &Diff) -> Page {
    let (mut tables, mut texts) = (text::tables(d), Vec::new());
    if let Some(first) = tables.first_mut() {
        first.notes = text::notes(d);
    }
    let differs = made::differences(&d.a.made, &d.b.made);
    if !differs.is_empty() {
        texts.push(PageTable {
            title: "Differences in how the results were made".into(),
            head: ["property", "A", "B"].map(String::from).into(),
            rows: differs.into_iter().map(|x| vec![x.what.into(), x.a, x.b]).collect(),
            notes: Vec::new(),
        });
    }
    let warnings = d.warnings();
    Page {
        version: bifold_base::version().into(),
        brand: "comparison of two results".into(),
        title: format!("{} and {}", d.a.name, d.b.name),
        verdict: text::verdict(d),
        alarm: (!warnings.is_empty()).then(|| warnings.join(". ")),
        about: String::new(),
        facts: [("A", text::about(&d.a)), ("B", text::about(&d.b))]
            .into_iter()
            .chain(text::in_common(d))
            .map(|(name, text)| (name.to_string(), text))
            .collect(),
        tables,
        texts,
        ..Page::default()
    }
}
