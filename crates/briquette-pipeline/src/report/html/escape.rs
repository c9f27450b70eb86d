//! Escapes text from a checkpoint. `maud` escapes other text, but keeps control characters.

use crate::report::numbers::printable;
use maud::{Markup, PreEscaped};

/// Escapes text for an element or a quoted attribute, without control characters.
pub(super) fn escape(text: &str) -> Markup {
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
    PreEscaped(out)
}

/// Escapes a tensor's name or a path, with line breaks allowed after dots, slashes and underscores.
pub(super) fn name(text: &str) -> Markup {
    let text = escape(text).into_string();
    PreEscaped(text.replace('.', ".<wbr>").replace('/', "/<wbr>").replace('_', "_<wbr>"))
}
