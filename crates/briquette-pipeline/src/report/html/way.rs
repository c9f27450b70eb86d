//! Links from one page to another.

use std::fmt::Write;
use std::path::{Component, Path};

/// Returns the link from a page in `directory` to the page of an output.
pub(super) fn to_report(directory: &Path, output: &Path) -> Option<String> {
    way(directory, output).map(|way| format!("{way}/report.html"))
}

/// Returns the relative link from a directory to another, so that they can be moved together.
fn way(from: &Path, to: &Path) -> Option<String> {
    let (from, to) = (std::path::absolute(from).ok()?, std::path::absolute(to).ok()?);
    let (from, to) = (std::fs::canonicalize(&from).unwrap_or(from), std::fs::canonicalize(&to).unwrap_or(to));
    let n_common = from.components().zip(to.components()).take_while(|(a, b)| a == b).count();
    let up = from.components().skip(n_common).map(|_| "..".to_string());
    let down = to.components().skip(n_common).map(|component| match component {
        Component::Normal(part) => encoded(part.as_encoded_bytes()),
        other => encoded(other.as_os_str().as_encoded_bytes()),
    });
    let parts: Vec<String> = up.chain(down).collect();
    // A first part with a colon would be parsed as a scheme.
    Some(format!("./{}", parts.join("/")))
}

/// Percent-encodes the bytes of a path component that are special in links.
fn encoded(part: &[u8]) -> String {
    part.iter().fold(String::new(), |mut out, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'=' | b'+' => out.push(char::from(*byte)),
            byte => _ = write!(out, "%{byte:02X}"),
        }
        out
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_directories_are_relative() {
        for (from, to, expected) in [
            ("/o", "/o/a/b", "./a/b"),
            ("/o/x", "/o/a", "./../a"),
            ("/o", "/o", "./"),
            ("/o", "/o/100 %?#", "./100%20%25%3F%23"),
        ] {
            assert_eq!(way(Path::new(from), Path::new(to)).as_deref(), Some(expected));
        }
    }
}
