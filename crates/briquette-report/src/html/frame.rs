//! The frame of every page. A page makes no requests and works without scripts.

use super::escape::escape;

const STYLE: &str = include_str!("page.css");
const SORT: &str = include_str!("sort.js");

/// Returns a page. `title` is plain text; `main` and `footer` are HTML.
pub(super) fn page(title: &str, main: &str, footer: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; \
         script-src 'unsafe-inline'\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n<title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n\
         <body>\n<main>\n{main}</main>\n<footer><p>{footer}</p></footer>\n<script>\n{SORT}</script>\n</body>\n</html>\n",
        title = escape(title),
    )
}
