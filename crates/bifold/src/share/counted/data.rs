// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A count for programs: one document, or rows.

use bifold_share::image::{HUGE, PAGE};
use bifold_share::potential::{Content, Counts, Found, Guest, Potential};
use serde_json::{Value, json};

/// One document.
pub fn json(p: &Potential) -> anyhow::Result<String> {
    let document = json!({
        "schema": "bifold.share-potential/1",
        "bifold": bifold_base::version(),
        "method": p.method,
        "warning": p.warning,
        "changed_pages": p.changed,
        "pages_4k": counts(&p.small),
        "pages_2m": counts(&p.huge),
        "loose_pages_4k": p.loose(),
        "lost_to_2m_pages_4k": p.lost_to_huge(),
        "guests": p.guests.iter().map(|g| json!({
            "guest": g.name,
            "pages_4k": counts(&g.small),
            "pages_2m": counts(&g.huge),
            "contents": g.contents,
            "contents_with_others": g.with_others,
        })).collect::<Vec<_>>(),
        "most_repeated": p.top.iter().map(|c| content(p, c)).collect::<Vec<_>>(),
        "known_files": p.known.iter().map(found).collect::<Vec<_>>(),
        "contents_in_common": p.pairs,
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// Objects tagged `guest`, `all`, `content`, `file` or `pair`.
pub fn jsonl(p: &Potential) -> anyhow::Result<String> {
    let mut rows: Vec<Value> = Vec::new();
    let mut tagged = |tag: &str, mut row: Value| {
        row["row"] = tag.into();
        rows.push(row);
    };
    for row in sizes(p) {
        tagged(if row.guest.is_some() { "guest" } else { "all" }, row.json());
    }
    p.top.iter().for_each(|c| tagged("content", content(p, c)));
    p.known.iter().for_each(|k| tagged("file", found(k)));
    for (i, a) in p.guests.iter().enumerate() {
        for (j, b) in p.guests.iter().enumerate().skip(i + 1) {
            if let Some(pairs) = &p.pairs {
                tagged("pair", json!({ "a": a.name, "b": b.name, "contents_in_common": pairs[i][j] }));
            }
        }
    }
    let lines: Vec<String> = rows.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    Ok(lines.join("\n") + "\n")
}

/// A row per guest and page size; those of all guests have no name.
pub fn csv(p: &Potential) -> anyhow::Result<String> {
    let mut out = csv::Writer::from_writer(Vec::new());
    let head = [
        "guest",
        "page_bytes",
        "pages",
        "zero",
        "minimum",
        "intra",
        "inter",
        "contents",
        "contents_with_others",
    ];
    out.write_record(head)?;
    for row in sizes(p) {
        let c = row.counts;
        let numbers = [row.page_bytes, c.pages, c.zero, c.minimum, c.intra, c.inter].map(|n| n.to_string());
        let own = row.contents.map_or([String::new(), String::new()], |n| n.map(|n| n.to_string()));
        let name = row.guest.map_or("", |g| &g.name).to_string();
        out.write_record([name].iter().chain(&numbers).chain(&own))?;
    }
    Ok(String::from_utf8(out.into_inner()?)?)
}

/// Counts of one guest, or all, by pages of one size.
struct CountsRow<'a> {
    guest: Option<&'a Guest>,
    page_bytes: u64,
    counts: &'a Counts,
    /// Distinct, and those that others have; of 4 KB pages of one guest.
    contents: Option<[u64; 2]>,
}

fn sizes(p: &Potential) -> Vec<CountsRow<'_>> {
    let small = PAGE as u64;
    let mut rows = Vec::new();
    for g in &p.guests {
        let contents = Some([g.contents, g.with_others]);
        rows.push(CountsRow { guest: Some(g), page_bytes: small, counts: &g.small, contents });
        rows.push(CountsRow { guest: Some(g), page_bytes: HUGE * small, counts: &g.huge, contents: None });
    }
    rows.push(CountsRow { guest: None, page_bytes: small, counts: &p.small, contents: None });
    rows.push(CountsRow { guest: None, page_bytes: HUGE * small, counts: &p.huge, contents: None });
    rows
}

impl CountsRow<'_> {
    fn json(&self) -> Value {
        let mut row =
            json!({ "row": null, "guest": self.guest.map(|g| &g.name), "page_bytes": self.page_bytes });
        let Value::Object(counts) = counts(self.counts) else { unreachable!("an object is made there") };
        row.as_object_mut().expect("made just now").extend(counts);
        if let Some([contents, with_others]) = self.contents {
            row["contents"] = contents.into();
            row["contents_with_others"] = with_others.into();
        }
        row
    }
}

fn counts(c: &Counts) -> Value {
    json!({ "pages": c.pages, "zero": c.zero, "minimum": c.minimum, "intra": c.intra, "inter": c.inter })
}

fn content(p: &Potential, c: &Content) -> Value {
    json!({
        "kind": c.what.kind(),
        "what": c.what.to_string(),
        "pages": c.pages,
        "guests": c.guests,
        "first_guest": c.first.map(|(guest, _)| &p.guests[guest].name),
        "first_gfn": c.first.map(|(_, gfn)| gfn),
    })
}

fn found(k: &Found) -> Value {
    json!({ "file": k.name, "contents": k.contents, "found": k.found, "guest_pages": k.pages })
}
