//! Text from files and paths, made safe to print on a terminal.
//!
//! Replaces control characters, such as the start of escape sequences (ESC, and C1 such as the 8-bit CSI) and
//! carriage returns. Also replaces invisible characters and changes of text direction, with which one name can
//! pass for another.

use std::borrow::Cow;
use std::fmt::Write;

/// Returns whether a character is unsafe to print: control characters, changes of direction, invisible
/// characters.
pub fn is_unsafe_to_print(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Returns a name, path or line with U+FFFD for the characters that [`is_unsafe_to_print`] finds.
///
/// These include line breaks and tabs.
pub fn printable(text: &str) -> String {
    text.chars().map(|letter| if is_unsafe_to_print(letter) { '\u{fffd}' } else { letter }).collect()
}

/// Like [`printable`], but keeps line breaks and tabs, and colours if `may_have_color`.
pub fn printable_lines(text: &str, may_have_color: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let color = if may_have_color { color_at(rest) } else { "" };
        let n = color.len().max(letter.len_utf8());
        match letter {
            _ if !color.is_empty() => out.push_str(color),
            '\n' | '\t' => out.push(letter),
            letter if is_unsafe_to_print(letter) => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
        rest = rest.get(n..).unwrap_or("");
    }
    out
}

/// Returns the colour sequence at the start of a text: ESC, `[`, digits and semicolons, `m`.
fn color_at(text: &str) -> &str {
    let Some(codes) = text.strip_prefix("\x1b[") else { return "" };
    let end = codes.find(|letter: char| !(letter.is_ascii_digit() || letter == ';'));
    match end.filter(|&end| codes[end..].starts_with('m')) {
        Some(end) => &text[..end + 3],
        None => "",
    }
}

/// Escapes the characters of JSON that [`is_unsafe_to_print`] finds as `\u` and four digits.
///
/// The document stays the same and becomes safe to print. JSON itself requires this only below U+0020.
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let is_unsafe_to_print = |letter: char| is_unsafe_to_print(letter) && letter != '\n';
    // Nearly all text is printable ASCII: a model of a million tensors has hundreds of megabytes of it.
    let n_plain = n_plain(json);
    let Some(first) = json[n_plain..].find(is_unsafe_to_print) else { return Cow::Borrowed(json) };
    let (start, mut rest) = json.split_at(n_plain + first);
    let mut out = String::with_capacity(json.len());
    out.push_str(start);
    while let Some(letter) = rest.chars().next() {
        let mut units = [0; 2];
        letter.encode_utf16(&mut units).iter().for_each(|unit| {
            let _ = write!(out, "\\u{unit:04x}");
        });
        let after = &rest[letter.len_utf8()..];
        let n = after.find(is_unsafe_to_print).unwrap_or(after.len());
        out.push_str(&after[..n]);
        rest = &after[n..];
    }
    Cow::Owned(out)
}

/// Returns the length of a prefix of line breaks and printable ASCII; a few more such bytes may follow.
fn n_plain(text: &str) -> usize {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) || byte == b'\n';
    // A loop over a chunk without early exit compares all its bytes at once.
    let chunks = text.as_bytes().as_chunks::<64>().0.iter();
    64 * chunks.take_while(|chunk| chunk.iter().fold(true, |all, byte| all & is_plain(*byte))).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNSAFE: &str = "a\x1b]0;t\x07b\u{9b}31mc\rd\u{202e}e\x7ff\u{200b}g\u{e0041}h\ni\tj";

    #[test]
    fn unsafe_characters_in_names_are_replaced() {
        assert_eq!(
            printable(UNSAFE),
            "a\u{fffd}]0;t\u{fffd}b\u{fffd}31mc\u{fffd}d\u{fffd}e\u{fffd}f\u{fffd}g\u{fffd}h\u{fffd}i\u{fffd}j"
        );
        for plain in ["", "encoder.layer.0.weight", "層.重み", "é – “x” 😀"] {
            assert_eq!((printable(plain), printable_lines(plain, true)), (plain.into(), plain.into()));
            assert!(matches!(printable_json(plain), Cow::Borrowed(json) if json == plain));
        }
    }

    #[test]
    fn lines_keep_breaks_and_allowed_colours() {
        let text = "\x1b[1;32mgreen\x1b[0m\n\x1b[2J\x1b]0;t\x07\x1b[31\tend\x1b[";
        assert_eq!(
            printable_lines(text, true),
            "\x1b[1;32mgreen\x1b[0m\n\u{fffd}[2J\u{fffd}]0;t\u{fffd}\u{fffd}[31\tend\u{fffd}["
        );
        assert_eq!(
            printable_lines(text, false),
            "\u{fffd}[1;32mgreen\u{fffd}[0m\n\u{fffd}[2J\u{fffd}]0;t\u{fffd}\u{fffd}[31\tend\u{fffd}["
        );
    }

    #[test]
    fn escaped_json_is_the_same_document() {
        let json = serde_json::to_string_pretty(&serde_json::json!({ UNSAFE: [UNSAFE, 1] })).unwrap();
        let harmless = printable_json(&json);
        assert!(harmless.chars().all(|letter| letter == '\n' || !is_unsafe_to_print(letter)), "{harmless:?}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&harmless), read(&json));
    }

    #[test]
    fn unsafe_characters_are_found_at_any_position() {
        for n in [0, 1, 62, 63, 64, 65, 127, 128, 129, 1000] {
            let plain = &"a\n~ ".repeat(n / 4 + 1)[..n];
            for (unsafe_text, escaped) in
                [("\x7f", "\\u007f"), ("é\u{9b}", "é\\u009b"), ("\u{e0041}", "\\udb40\\udc41")]
            {
                let json = format!("{plain}{unsafe_text}{plain}{unsafe_text}");
                assert_eq!(printable_json(&json), format!("{plain}{escaped}{plain}{escaped}"), "{n}");
            }
        }
    }
}
