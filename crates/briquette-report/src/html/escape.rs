//! Escapes text from a checkpoint.

use crate::numbers::printable;

/// Escapes text for an element or a quoted attribute.
pub(super) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in printable(text).chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c => out.push(c),
        }
    }
    out
}

/// Escapes a tensor's name or a path, with line breaks allowed after dots, slashes and underscores.
pub(super) fn name(text: &str) -> String {
    escape(text).replace('.', ".<wbr>").replace('/', "/<wbr>").replace('_', "_<wbr>")
}
