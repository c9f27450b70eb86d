//! Text from files and paths, made harmless: a terminal must not take any of it for a command.
//!
//! Replaced are escape sequences and what starts them (ESC, and C1 such as the 8-bit CSI), carriage returns and the like, and letters
//! that change the direction of the text after them or show as nothing, by which a name can pass for another.

use std::fmt::Write;

/// Whether a letter does more, or less, than show itself: controls, changes of direction, invisible letters.
pub fn is_sly(letter: char) -> bool {
    letter.is_control()
        || matches!(letter,
            '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}'
            | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// A name, a path or one line, with U+FFFD for the letters that [`is_sly`] finds, line breaks and tabs among them.
pub fn printable(text: &str) -> String {
    text.chars().map(|letter| if is_sly(letter) { '\u{fffd}' } else { letter }).collect()
}

/// Several lines made harmless as by [`printable`], but line breaks and tabs stay, and colours where `may_have_color`.
pub fn printable_lines(text: &str, may_have_color: bool) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(letter) = rest.chars().next() {
        let color = if may_have_color { color_at(rest) } else { "" };
        let n = color.len().max(letter.len_utf8());
        match letter {
            _ if !color.is_empty() => out.push_str(color),
            '\n' | '\t' => out.push(letter),
            letter if is_sly(letter) => out.push('\u{fffd}'),
            letter => out.push(letter),
        }
        rest = rest.get(n..).unwrap_or("");
    }
    out
}

/// The sequence that sets a colour at the start of a text: ESC, `[`, digits and semicolons, `m`.
fn color_at(text: &str) -> &str {
    let Some(codes) = text.strip_prefix("\x1b[") else { return "" };
    let end = codes.find(|letter: char| !(letter.is_ascii_digit() || letter == ';'));
    match end.filter(|&end| codes[end..].starts_with('m')) {
        Some(end) => &text[..end + 3],
        None => "",
    }
}

/// JSON in which the letters that [`is_sly`] finds are written as `\u` and four digits: the same document, and harmless on a
/// terminal. JSON by itself asks that of the letters below U+0020 only.
pub fn printable_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for letter in json.chars() {
        if is_sly(letter) && letter != '\n' {
            let mut units = [0; 2];
            letter.encode_utf16(&mut units).iter().for_each(|unit| {
                let _ = write!(out, "\\u{unit:04x}");
            });
        } else {
            out.push(letter);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLY: &str = "a\x1b]0;t\x07b\u{9b}31mc\rd\u{202e}e\x7ff\u{200b}g\u{e0041}h\ni\tj";

    #[test]
    fn nothing_sly_is_left_of_a_name() {
        assert_eq!(
            printable(SLY),
            "a\u{fffd}]0;t\u{fffd}b\u{fffd}31mc\u{fffd}d\u{fffd}e\u{fffd}f\u{fffd}g\u{fffd}h\u{fffd}i\u{fffd}j"
        );
        for plain in ["", "encoder.layer.0.weight", "層.重み", "é – “x” 😀"] {
            assert_eq!(
                (printable(plain), printable_lines(plain, true), printable_json(plain)),
                (plain.into(), plain.into(), plain.into())
            );
        }
    }

    #[test]
    fn lines_keep_their_breaks_and_colours_where_there_may_be_any() {
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
    fn json_stays_the_same_document() {
        let json = serde_json::to_string_pretty(&serde_json::json!({ SLY: [SLY, 1] })).unwrap();
        let harmless = printable_json(&json);
        assert!(harmless.chars().all(|letter| letter == '\n' || !is_sly(letter)), "{harmless:?}");
        let read = |text: &str| serde_json::from_str::<serde_json::Value>(text).unwrap();
        assert_eq!(read(&harmless), read(&json));
    }
}
