//! The frame of every page. A page makes no requests and works without scripts.

use super::escape::escape;
use maud::{Markup, PreEscaped, html};

/// The element that every page of ours has near its beginning.
pub(crate) const PAGE_MARK: &str = "<meta name=\"generator\" content=\"briquette\">";

const STYLE: &str = include_str!("page.css");
const SORT: &str = include_str!("sort.js");
const POLICY: PreEscaped<&str> =
    PreEscaped("default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'");

/// Returns a page. `title` is plain text.
pub(super) fn page(title: &str, sections: &[Markup], footer: &Markup) -> String {
    let page = html! {
        (PreEscaped("<!doctype html>\n"))
        html lang="en" {
            head {
                meta charset="utf-8";
                (PreEscaped(PAGE_MARK))
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(POLICY);
                meta name="color-scheme" content="light dark";
                title { (escape(title)) }
                style { "\n" (PreEscaped(STYLE)) }
            }
            "\n"
            body {
                main {
                    "\n"
                    @for section in sections.iter().filter(|section| !section.0.is_empty()) { (section) "\n" }
                }
                footer { p { (footer) } }
                "\n"
                script { "\n" (PreEscaped(SORT)) }
            }
        }
        "\n"
    };
    page.into_string()
}

/// Returns a table that scrolls sideways on a narrow screen. `id` is the heading of the table.
pub(super) fn scrolling(id: &str, table: &Markup) -> Markup {
    html! {
        div class="scroll" tabindex="0" role="region" aria-labelledby=(id) { (table) }
    }
}
