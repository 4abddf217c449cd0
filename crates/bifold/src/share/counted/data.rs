// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A count for programs: one document, or rows.

use bifold_share::image::{HUGE, PAGE};
use bifold_share::potential::{Content, Counts, Found, Guest, Potential};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json, to_value};

/// Name and version of the JSON document.
const SCHEMA: &str = "bifold.share-potential/1";

/// What `bifold share potential --format json` and `bifold share merge --format json` write: how much guests
/// could share.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// How equal pages were found, in words.
    method: &'a str,
    /// Why the count is not exact, as a sentence; null if the count is exact.
    warning: Option<&'a str>,
    /// Pages that changed between two reads, as noticed by methods that compare repeats; 0 for others.
    changed_pages: u64,
    /// All guests by pages of 4 KB.
    pages_4k: Counts,
    /// All guests by aligned and whole pages of 2 MB.
    pages_2m: Counts,
    /// Pages of 4 KB outside whole aligned pages of 2 MB.
    loose_pages_4k: u64,
    /// Pages of 4 KB that sharing by 4 KB saves and sharing by 2 MB does not.
    lost_to_2m_pages_4k: u64,
    /// Each guest, in the order given. A content's frame is charged to the first guest that has the content.
    guests: Vec<GuestRow<'a>>,
    /// The contents of 4 KB with most pages, zeros included, most pages first.
    most_repeated: Vec<ContentRow<'a>>,
    /// The files of `--kernel` and `--known`.
    known_files: Vec<FileRow<'a>>,
    /// Distinct contents, without zeros, that guests i and j both have; on the diagonal those that i has.
    /// Null for more than 256 guests.
    contents_in_common: Option<&'a [Vec<u64>]>,
}

/// A guest.
#[derive(Serialize, JsonSchema)]
struct GuestRow<'a> {
    /// The guest's name.
    guest: &'a str,
    /// The guest by pages of 4 KB.
    pages_4k: Counts,
    /// The guest by aligned and whole pages of 2 MB.
    pages_2m: Counts,
    /// Distinct contents of 4 KB that the guest has, without zeros.
    contents: u64,
    /// Distinct contents of 4 KB, without zeros, that another guest has too.
    contents_with_others: u64,
}

/// A content and its pages.
#[derive(Serialize, JsonSchema)]
struct ContentRow<'a> {
    /// Kind of content: `zero`; `byte`, one byte repeated; `word`, two, four or eight bytes repeated;
    /// `known`, of a known file; `fingerprint`, known by the fingerprint alone; or `other`.
    kind: &'static str,
    /// The content, in words.
    what: String,
    /// Pages with this content.
    pages: u64,
    /// Guests with this content.
    guests: u64,
    /// The guest of the first page; null in counts of fingerprints.
    first_guest: Option<&'a str>,
    /// Guest frame number of the first page; null in counts of fingerprints.
    first_gfn: Option<u64>,
}

/// A known file.
#[derive(Serialize, JsonSchema)]
struct FileRow<'a> {
    /// Name of the file.
    file: &'a str,
    /// Distinct contents of the file's whole pages, without zeros.
    contents: u64,
    /// Distinct contents of the file that some guest has.
    found: u64,
    /// Pages of guests with these contents.
    guest_pages: u64,
}

/// The schema of the document.
pub fn schema() -> Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

/// One document.
pub fn json(p: &Potential) -> anyhow::Result<String> {
    let document = Document {
        schema: SCHEMA,
        bifold: bifold_base::version(),
        method: &p.method,
        warning: p.warning.as_deref(),
        changed_pages: p.changed,
        pages_4k: p.small,
        pages_2m: p.huge,
        loose_pages_4k: p.loose(),
        lost_to_2m_pages_4k: p.lost_to_huge(),
        guests: p.guests.iter().map(of_guest).collect(),
        most_repeated: p.top.iter().map(|c| content(p, c)).collect(),
        known_files: p.known.iter().map(found).collect(),
        contents_in_common: p.pairs.as_deref(),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn of_guest(g: &Guest) -> GuestRow<'_> {
    GuestRow {
        guest: &g.name,
        pages_4k: g.small,
        pages_2m: g.huge,
        contents: g.contents,
        contents_with_others: g.with_others,
    }
}

/// Objects tagged `guest`, `all`, `content`, `file` or `pair`.
pub fn jsonl(p: &Potential) -> anyhow::Result<String> {
    let mut rows: Vec<Value> = Vec::new();
    let mut tagged = |tag: &str, mut row: Value| {
        row["row"] = tag.into();
        rows.push(row);
    };
    for row in sizes(p) {
        tagged(if row.guest.is_some() { "guest" } else { "all" }, row.json()?);
    }
    for c in &p.top {
        tagged("content", to_value(content(p, c))?);
    }
    for k in &p.known {
        tagged("file", to_value(found(k))?);
    }
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
    fn json(&self) -> serde_json::Result<Value> {
        let mut row =
            json!({ "row": null, "guest": self.guest.map(|g| &g.name), "page_bytes": self.page_bytes });
        let Value::Object(counts) = to_value(self.counts)? else { unreachable!("counts are an object") };
        row.as_object_mut().expect("made just now").extend(counts);
        if let Some([contents, with_others]) = self.contents {
            row["contents"] = contents.into();
            row["contents_with_others"] = with_others.into();
        }
        Ok(row)
    }
}

fn content<'a>(p: &'a Potential, c: &Content) -> ContentRow<'a> {
    ContentRow {
        kind: c.what.kind(),
        what: c.what.to_string(),
        pages: c.pages,
        guests: c.guests,
        first_guest: c.first.map(|(guest, _)| &*p.guests[guest].name),
        first_gfn: c.first.map(|(_, gfn)| gfn),
    }
}

fn found(k: &Found) -> FileRow<'_> {
    FileRow { file: &k.name, contents: k.contents, found: k.found, guest_pages: k.pages }
}
