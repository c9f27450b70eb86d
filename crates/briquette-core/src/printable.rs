//! Text from files and paths, made harmless: a terminal must not take any of it for a command.
//!
//! Replaced are escape sequences and what starts them (ESC, and C1 such as the 8-bit CSI), carriage returns and the like, and letters
//! that change the direction of the text after them or show as nothing, by which a name can pass for another.

use std::borrow::Cow;
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
pub fn printable_json(json: &str) -> Cow<'_, str> {
    let is_sly = |letter: char| is_sly(letter) && letter != '\n';
    // Nearly all of it is ASCII that shows itself: of a million tensors there are hundreds of megabytes.
    let n_plain = n_plain(json);
    let Some(first) = json[n_plain..].find(is_sly) else { return Cow::Borrowed(json) };
    let (start, mut rest) = json.split_at(n_plain + first);
    let mut out = String::with_capacity(json.len());
    out.push_str(start);
    while let Some(letter) = rest.chars().next() {
        let mut units = [0; 2];
        letter.encode_utf16(&mut units).iter().for_each(|unit| {
            let _ = write!(out, "\\u{unit:04x}");
        });
        let after = &rest[letter.len_utf8()..];
        let n = after.find(is_sly).unwrap_or(after.len());
        out.push_str(&after[..n]);
        rest = &after[n..];
    }
    Cow::Owned(out)
}

/// How far a text is known to consist of line breaks and ASCII from the space to the tilde; a few more such bytes may follow.
fn n_plain(text: &str) -> usize {
    let is_plain = |byte: u8| (b' '..=b'~').contains(&byte) || byte == b'\n';
    // Without a way out of the loop over a chunk, its bytes are compared at once.
    let chunks = text.as_bytes().as_chunks::<64>().0.iter();
    64 * chunks.take_while(|chunk| chunk.iter().fold(true, |all, byte| all & is_plain(*byte))).count()
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
            assert_eq!((printable(plain), printable_lines(plain, true)), (plain.into(), plain.into()));
            assert!(matches!(printable_json(plain), Cow::Borrowed(json) if json == plain));
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

    #[test]
    fn a_sly_letter_is_found_wherever_it_is() {
        for n in [0, 1, 62, 63, 64, 65, 127, 128, 129, 1000] {
            let plain = &"a\n~ ".repeat(n / 4 + 1)[..n];
            for (sly, escaped) in [("\x7f", "\\u007f"), ("é\u{9b}", "é\\u009b"), ("\u{e0041}", "\\udb40\\udc41")] {
                let json = format!("{plain}{sly}{plain}{sly}");
                assert_eq!(printable_json(&json), format!("{plain}{escaped}{plain}{escaped}"), "{n}");
            }
        }
    }
}
