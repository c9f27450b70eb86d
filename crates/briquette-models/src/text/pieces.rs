//! Where a long text can be cut so that its pieces have the tokens of the whole.

use briquette_core::Result;

/// The bytes of a piece, without the way to the next cut.
const PIECE_BYTES: usize = 1 << 18;
/// The bytes of the longest piece of a text that can be cut.
pub(super) const LONGEST_PIECE: usize = PIECE_BYTES + PIECE_BYTES / 2;
/// The most bytes that encoding takes for each byte of a piece.
pub(super) const ENCODING_BYTES: usize = 200;
/// The bytes of text on each side of a cut that must have the same tokens with and without it.
const CONTEXT_BYTES: usize = 256;
/// The words that are tried before a text is left whole.
const N_TRIES: usize = 16;

/// Returns where each piece after the first begins.
///
/// A text is cut before the space between two words, where a tokenizer that splits a text into words starts a new one. The
/// tokens of the text around the cut show whether it does; a text is left whole where it does not.
///
/// # Errors
/// The first error of `encode`, which returns the tokens of a text.
pub(super) fn cuts(text: &str, encode: impl Fn(&str) -> Result<Vec<u32>>) -> Result<Vec<usize>> {
    let (mut cuts, mut last) = (Vec::new(), 0);
    while text.len() - last > LONGEST_PIECE {
        let Some(cut) = next_cut(text, last + PIECE_BYTES, &encode)? else { break };
        cuts.push(cut);
        last = cut;
    }
    Ok(cuts)
}

/// Returns the first cut from a position on; `None` if none of the next words can be cut off.
fn next_cut(text: &str, from: usize, encode: &impl Fn(&str) -> Result<Vec<u32>>) -> Result<Option<usize>> {
    let from = text.ceil_char_boundary(from);
    let spaces = text[from..].match_indices(' ').map(|(at, _)| from + at).filter(|&at| is_between_words(text, at));
    for cut in spaces.take(N_TRIES) {
        let (start, end) =
            (text.floor_char_boundary(cut - CONTEXT_BYTES), text.ceil_char_boundary(cut + CONTEXT_BYTES));
        let [whole, before, after] = [&text[start..end], &text[start..cut], &text[cut..end]].map(encode);
        if whole? == [before?, after?].concat() {
            return Ok(Some(cut));
        }
    }
    Ok(None)
}

fn is_between_words(text: &str, space: usize) -> bool {
    let (before, after) = (text[..space].chars().next_back(), text[space + 1..].chars().next());
    before.is_some_and(char::is_alphanumeric) && after.is_some_and(char::is_alphanumeric)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn long() -> String {
        (0..300_000).map(|at| format!("{at} wörter. ")).collect()
    }

    #[test]
    fn pieces_begin_before_the_space_between_two_words() {
        // Each word with the space before it is a token.
        let words = |text: &str| Ok(text.split_inclusive(' ').map(|word| word.len() as u32).collect());
        let by_space = |text: &str| {
            let mut starts: Vec<usize> = text.match_indices(' ').map(|(at, _)| at).collect();
            starts.push(text.len());
            Ok(starts.windows(2).map(|pair| (pair[1] - pair[0]) as u32).collect())
        };
        let text = long();
        let found = cuts(&text, by_space).unwrap();
        assert!(found.len() > 2 && found.is_sorted(), "{found:?}");
        for cut in &found {
            assert!(text[*cut..].starts_with(" w"), "{}", &text[*cut..*cut + 9]);
        }
        assert!(cuts("a short text", words).unwrap().is_empty());
    }

    #[test]
    fn a_text_whose_tokens_depend_on_its_beginning_stays_whole() {
        let text = long();
        let prefixed = |text: &str| Ok([vec![7], text.bytes().map(u32::from).collect()].concat());
        assert!(cuts(&text, prefixed).unwrap().is_empty());
    }
}
