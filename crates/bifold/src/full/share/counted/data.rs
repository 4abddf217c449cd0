// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A count for programs: one document, or rows.

use bifold_report::schema::schema;
use bifold_share::image::{HUGE, PAGE};
use bifold_share::potential::{Content, Counts, Found, Guest, Potential};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

/// Name and version of the JSON document.
const SCHEMA: &str = "bifold.share-potential/1";
/// Name and version of the JSON lines.
const ROWS: &str = "bifold.share-potential-rows/1";

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

/// Guests that have contents in common.
#[derive(Serialize, JsonSchema)]
struct PairRow<'a> {
    /// A guest.
    a: &'a str,
    /// Another guest.
    b: &'a str,
    /// Distinct contents of 4 KB, without zeros, that both have.
    contents_in_common: u64,
}

/// A line of `bifold share potential --format jsonl` and `bifold share merge --format jsonl`.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "row", rename_all = "lowercase")]
enum Line<'a> {
    /// A guest by pages of one size. The rows of `--format csv` are these and those of all guests.
    Guest(CountsRow<'a>),
    /// All guests by pages of one size.
    All(CountsRow<'a>),
    /// A content and its pages.
    Content(ContentRow<'a>),
    /// A file of `--kernel` or `--known`.
    File(FileRow<'a>),
    /// Two guests; none where there are more than 256 guests.
    Pair(PairRow<'a>),
}

/// The schemas of the document and of the lines.
pub fn schemas() -> [Value; 2] {
    [schema::<Document>(SCHEMA), schema::<Line>(ROWS)]
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

fn of_size(row: CountsRow<'_>) -> Line<'_> {
    if row.guest.is_some() { Line::Guest(row) } else { Line::All(row) }
}

/// A line for each row.
pub fn jsonl(p: &Potential) -> anyhow::Result<String> {
    let mut lines: Vec<Line<'_>> = sizes(p).into_iter().map(of_size).collect();
    lines.extend(p.top.iter().map(|c| Line::Content(content(p, c))));
    lines.extend(p.known.iter().map(|k| Line::File(found(k))));
    for (i, a) in p.guests.iter().enumerate() {
        for (j, b) in p.guests.iter().enumerate().skip(i + 1) {
            if let Some(pairs) = &p.pairs {
                let contents_in_common = pairs[i][j];
                lines.push(Line::Pair(PairRow { a: &a.name, b: &b.name, contents_in_common }));
            }
        }
    }
    let lines: Vec<String> = lines.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
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
        let own =
            [row.contents, row.contents_with_others].map(|n| n.map(|n| n.to_string()).unwrap_or_default());
        let name = row.guest.unwrap_or_default().to_owned();
        out.write_record([name].iter().chain(&numbers).chain(&own))?;
    }
    Ok(String::from_utf8(out.into_inner()?)?)
}

/// Counts of one guest, or all, by pages of one size.
#[derive(Serialize, JsonSchema)]
struct CountsRow<'a> {
    /// The guest's name; null for all guests.
    guest: Option<&'a str>,
    /// Size of the pages. Unit: bytes.
    page_bytes: u64,
    #[serde(flatten)]
    counts: &'a Counts,
    /// Distinct contents of 4 KB that the guest has, without zeros; absent for pages of 2 MB and for all
    /// guests.
    #[serde(skip_serializing_if = "Option::is_none")]
    contents: Option<u64>,
    /// Distinct contents of 4 KB, without zeros, that another guest has too; absent where `contents` is.
    #[serde(skip_serializing_if = "Option::is_none")]
    contents_with_others: Option<u64>,
}

fn sizes(p: &Potential) -> Vec<CountsRow<'_>> {
    let mut rows = Vec::new();
    for g in &p.guests {
        let [small, huge] = by_size(Some(&g.name), &g.small, &g.huge);
        let (contents, contents_with_others) = (Some(g.contents), Some(g.with_others));
        rows.extend([CountsRow { contents, contents_with_others, ..small }, huge]);
    }
    rows.extend(by_size(None, &p.small, &p.huge));
    rows
}

fn by_size<'a>(guest: Option<&'a str>, small: &'a Counts, huge: &'a Counts) -> [CountsRow<'a>; 2] {
    let page = PAGE as u64;
    [(page, small), (HUGE * page, huge)].map(|(page_bytes, counts)| CountsRow {
        guest,
        page_bytes,
        counts,
        contents: None,
        contents_with_others: None,
    })
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
