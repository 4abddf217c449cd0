// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Links of the documentation: every relative link and anchor in a Markdown file leads somewhere, every page
//! of a book is in the book's table of contents, and every page that source code cites exists.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

/// Folders without documents of our own.
const SKIPPED: [&str; 5] = ["target", ".git", ".cache", "vendor", "node_modules"];

/// The folders of the books. They are built beside each other as they lie here, so pages of one can link to
/// pages of the other.
const BOOKS: [&str; 2] = ["docs/", "evidence/pages/"];

/// Suffixes of files that may cite a page of a book in a comment or message.
const SOURCES: [&str; 8] = ["rs", "c", "h", "toml", "txt", "cocci", "md", "j2"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn files_below(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let name = entry.file_name();
        if entry.file_type().unwrap().is_dir() {
            if !SKIPPED.iter().any(|s| name == *s) {
                files_below(&entry.path(), found);
            }
        } else {
            found.push(entry.path());
        }
    }
}

fn files(of: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let mut found = Vec::new();
    files_below(&root(), &mut found);
    found.retain(|f| of(f));
    found.sort();
    found
}

fn has_suffix(path: &Path, suffix: &str) -> bool {
    path.extension().is_some_and(|e| e == suffix)
}

/// The anchor that both the book and the forges make of a heading.
fn slug(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[derive(Default)]
struct Page {
    anchors: BTreeSet<String>,
    links: Vec<String>,
}

fn page(text: &str) -> Page {
    let mut page = Page::default();
    let mut heading: Option<String> = None;
    for event in Parser::new_ext(text, Options::ENABLE_TABLES | Options::ENABLE_FOOTNOTES) {
        match event {
            Event::Start(Tag::Heading { .. }) => heading = Some(String::new()),
            Event::End(TagEnd::Heading(_)) => {
                let slug = slug(&heading.take().unwrap_or_default());
                let repeated = (1..).map(|n| format!("{slug}-{n}"));
                let free = std::iter::once(slug.clone()).chain(repeated).find(|s| !page.anchors.contains(s));
                page.anchors.extend(free);
            }
            Event::Text(t) | Event::Code(t) => heading.iter_mut().for_each(|h| h.push_str(&t)),
            Event::Html(t) | Event::InlineHtml(t) => {
                let id = t.split("id=\"").nth(1).and_then(|rest| rest.split('"').next());
                page.anchors.extend(id.map(str::to_owned));
            }
            Event::Start(Tag::Link { dest_url, .. } | Tag::Image { dest_url, .. }) => {
                page.links.push(dest_url.into_string());
            }
            _ => {}
        }
    }
    page
}

/// The path with `.` and `..` carried out.
fn normal(path: &Path) -> PathBuf {
    let mut out = PathBuf::new();
    for part in path.components() {
        match part {
            Component::CurDir => {}
            Component::ParentDir => {
                out.pop();
            }
            part => out.push(part),
        }
    }
    out
}

fn pages() -> BTreeMap<PathBuf, Page> {
    let markdown = files(|f| has_suffix(f, "md"));
    markdown.into_iter().map(|f| (f.clone(), page(&fs::read_to_string(&f).unwrap()))).collect()
}

/// What is wrong with a link of `from`, if anything.
fn broken(from: &Path, link: &str, pages: &BTreeMap<PathBuf, Page>) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = link.split_once('#').map_or((link, None), |(f, a)| (f, Some(a)));
    let to = if file.is_empty() { from.to_owned() } else { normal(&from.parent().unwrap().join(file)) };
    if !to.exists() {
        return Some(format!("{}: {link}: no such file", from.display()));
    }
    let in_a_book = |page: &Path| BOOKS.iter().any(|book| page.starts_with(root().join(book)));
    if in_a_book(from) && !in_a_book(&to) {
        return Some(format!(
            "{}: {link}: leaves the books; cite a file of the repository by its path",
            from.display()
        ));
    }
    let known = |a: &&str| pages.get(&to).is_some_and(|p| p.anchors.contains(*a));
    let missing = anchor.filter(|a| has_suffix(&to, "md") && !known(a))?;
    Some(format!("{}: {link}: no heading for #{missing}", from.display()))
}

#[test]
fn every_link_leads_somewhere() {
    let pages = pages();
    let links = pages.iter().flat_map(|(from, page)| page.links.iter().map(move |link| (from, link)));
    let broken: Vec<_> = links.filter_map(|(from, link)| broken(from, link, &pages)).collect();
    assert!(broken.is_empty(), "{}", broken.join("\n"));
}

#[test]
fn every_page_is_in_its_book() {
    for book in BOOKS.map(|book| root().join(book)) {
        let summary = book.join("SUMMARY.md");
        let listed = page(&fs::read_to_string(&summary).unwrap()).links;
        let listed: BTreeSet<PathBuf> = listed.iter().map(|l| book.join(l)).collect();
        let all: BTreeSet<PathBuf> =
            pages().into_keys().filter(|p| p.starts_with(&book) && !p.ends_with("SUMMARY.md")).collect();
        let missing: Vec<_> = all.difference(&listed).collect();
        assert!(missing.is_empty(), "pages that {} does not list: {missing:?}", summary.display());
    }
}

/// Pages cited as `docs/...md`, `evidence/pages/...md` or with an anchor.
fn citations(text: &str) -> impl Iterator<Item = &str> {
    let starts = BOOKS.into_iter().flat_map(|book| text.match_indices(book));
    starts.filter_map(|(at, _)| {
        let before = text[..at].chars().next_back();
        if before.is_some_and(|c| c.is_alphanumeric() || "/-_.".contains(c)) {
            return None;
        }
        let rest = &text[at..];
        let end =
            rest.find(|c: char| !(c.is_ascii_alphanumeric() || "/-_.#".contains(c))).unwrap_or(rest.len());
        let cited = rest[..end].trim_end_matches('.');
        cited.contains(".md").then_some(cited)
    })
}

#[test]
fn every_page_that_is_cited_exists() {
    let pages = pages();
    let root = root();
    let mut wrong = Vec::new();
    let cites = |f: &Path| {
        let script = ["tools", "kernel", "evidence/tools"].iter().any(|dir| f.starts_with(root.join(dir)));
        script || f.ends_with("Makefile") || SOURCES.iter().any(|s| has_suffix(f, s))
    };
    // The changelog tells of earlier versions, whose pages had other places.
    for file in files(|f| cites(f) && !f.ends_with("CHANGELOG.md") && !f.ends_with("it/links.rs")) {
        let Ok(text) = fs::read_to_string(&file) else { continue };
        let at_root = root.join("any");
        let cited = citations(&text).filter_map(|c| broken(&at_root, c, &pages).map(|_| c));
        wrong.extend(cited.map(|c| format!("{}: {c}", file.display())));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_check_sees_what_is_broken() {
    let here = root().join("docs/SUMMARY.md");
    let one = page("# One\n\n## Two `x`: 3\n\n## One\n\n[a](SUMMARY.md#two-x-3) [b](#nowhere)");
    assert_eq!(one.anchors, ["one", "one-1", "two-x-3"].map(String::from).into());
    let pages = BTreeMap::from([(here.clone(), one)]);
    let found: Vec<_> = pages[&here].links.iter().map(|l| broken(&here, l, &pages).is_some()).collect();
    assert_eq!(found, [false, true]);
    assert!(broken(&here, "no-such-page.md", &pages).is_some());
    assert!(broken(&here, "../Makefile", &pages).is_some());
    assert_eq!(
        citations("see docs/a.md#b. and `docs/c/d.md`, evidence/pages/f.md, not x/docs/e.md")
            .collect::<Vec<_>>(),
        ["docs/a.md#b", "docs/c/d.md", "evidence/pages/f.md"]
    );
}
