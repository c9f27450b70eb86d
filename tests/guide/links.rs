//! Checks links of pages to files of the repository, to other pages, and to their headings.

use super::blocks::prose_of;
use super::{GUIDE, all_pages, read};
use crate::sandbox::repository;
use std::path::Path;

/// The start of links to files of the repository.
const HOME: &str = "https://github.com/briquette-rs/briquette/";

/// Returns the targets of `[text](target)`.
fn targets_of(page: &str) -> Vec<String> {
    let prose = prose_of(page);
    let after = prose.split("](").skip(1);
    after.filter_map(|rest| Some(rest.split_once(')')?.0.to_string())).collect()
}

/// Returns the anchor of each heading, as GitHub and mdBook name it.
fn anchors_of(page: &str) -> Vec<String> {
    let prose = prose_of(page);
    let headings = prose.lines().filter(|line| line.starts_with('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        text.chars().filter(|character| character.is_alphanumeric() || "-_".contains(*character)).collect()
    };
    headings.map(anchor).collect()
}

/// Returns what is wrong with a link of a page in this folder, if anything.
fn problem(folder: &str, page: &str, target: &str) -> Option<String> {
    let in_repository =
        ["blob/main/", "tree/main/"].iter().find_map(|kind| target.strip_prefix(HOME)?.strip_prefix(kind));
    if in_repository.is_none() && target.contains("://") {
        return None;
    }
    let (path, anchor) = target.split_once('#').unwrap_or((target, ""));
    let path = match in_repository {
        Some(path) => path.split('#').next().unwrap_or_default().to_string(),
        None if path.is_empty() => page.to_string(),
        None => format!("{folder}/{path}"),
    };
    if !repository().join(&path).exists() {
        return Some(format!("{path} does not exist"));
    }
    let has_anchors = Path::new(&path).extension().is_some_and(|extension| extension == "md");
    let is_found = anchor.is_empty() || !has_anchors || anchors_of(&read(&path)).iter().any(|known| known == anchor);
    (!is_found).then(|| format!("{path} has no heading #{anchor}"))
}

#[test]
fn every_link_of_a_page_has_a_target() {
    let (mut n_links, mut problems) = (0, Vec::new());
    for page in all_pages().chain([format!("{GUIDE}/SUMMARY.md")]) {
        let folder = Path::new(&page).parent().map(|folder| folder.display().to_string()).unwrap_or_default();
        let folder = if folder.is_empty() { ".".to_string() } else { folder };
        for target in targets_of(&read(&page)) {
            n_links += 1;
            problems.extend(problem(&folder, &page, &target).map(|problem| format!("{page}: {target}: {problem}")));
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    assert!(n_links > 40, "{n_links} links in all pages");
}

#[test]
fn broken_links_are_found() {
    let page = format!("{GUIDE}/file-format.md");
    let of = |target: &str| problem(GUIDE, &page, target);
    for right in ["deploy.md", "#hashes", "deploy.md#burn", "https://example.org/x", "../../benchmarks.md"] {
        assert_eq!(of(right), None, "{right}");
    }
    assert_eq!(of(&format!("{HOME}blob/main/docs/benchmarks.md#decoders")), None);
    let gone = format!("{HOME}blob/main/docs/gone.md");
    for wrong in ["gone.md", "#nowhere", "deploy.md#nowhere", "../gone.md", &gone] {
        assert!(of(wrong).is_some(), "{wrong}");
    }
}
