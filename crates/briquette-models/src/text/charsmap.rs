//! Checks the character map of a SentencePiece normalizer.
//!
//! The map is a double-array trie whose leaves point into a string of texts. The library that uses it trusts
//! every offset, so each reachable node is checked here first.

/// Longest text of an entry; NFKC's longest has 33 bytes.
const MAX_ENTRY_BYTES: usize = 256;

/// Checks a map in base64.
///
/// # Errors
/// If the text is not base64, or an offset is out of range.
pub(super) fn check_charsmap(base64: &str) -> Result<(), String> {
    let bytes = decoded(base64).ok_or("its precompiled_charsmap is not base64")?;
    let (length, rest) = bytes.split_first_chunk().ok_or("its precompiled_charsmap has no length")?;
    let n_bytes = u32::from_le_bytes(*length) as usize / 4 * 4;
    let (trie, texts) = rest.split_at_checked(n_bytes).ok_or("its precompiled_charsmap ends too early")?;
    let texts = std::str::from_utf8(texts).map_err(|_| "its precompiled_charsmap has texts that are not UTF-8")?;
    let (units, _) = trie.as_chunks::<4>();
    let units: Vec<usize> = units.iter().map(|unit| u32::from_le_bytes(*unit) as usize).collect();
    if is_sound(&units, texts) {
        return Ok(());
    }
    Err("its precompiled_charsmap has offsets out of range".into())
}

/// Returns whether all reachable nodes are in the trie, and all leaves point to texts.
fn is_sound(units: &[usize], texts: &str) -> bool {
    let Some(&root) = units.first() else { return false };
    let mut seen = vec![false; units.len()];
    let mut nodes = vec![offset(root)];
    while let Some(node) = nodes.pop() {
        // Any byte may follow.
        if node | 0xff >= units.len() {
            return false;
        }
        if std::mem::replace(&mut seen[node], true) {
            continue;
        }
        for byte in 1..=0xff {
            let unit = units[node ^ byte];
            if unit & (1 << 31 | 0xff) != byte {
                continue;
            }
            let child = node ^ byte ^ offset(unit);
            let is_leaf = unit >> 8 & 1 == 1;
            if is_leaf && !units.get(child).is_some_and(|unit| is_entry(texts, unit & ((1 << 31) - 1))) {
                return false;
            }
            nodes.push(child);
        }
    }
    true
}

/// Returns the offset of a unit's children.
fn offset(unit: usize) -> usize {
    (unit >> 10) << ((unit & 1 << 9) >> 6)
}

/// Returns whether a text begins here and is not too long.
fn is_entry(texts: &str, at: usize) -> bool {
    let entry = texts.get(at..).map(str::as_bytes);
    entry.is_some_and(|entry| entry.iter().position(|byte| *byte == 0).unwrap_or(entry.len()) <= MAX_ENTRY_BYTES)
}

/// Decodes base64 with padding; `None` for other characters.
fn decoded(base64: &str) -> Option<Vec<u8>> {
    let letters = base64.trim_end_matches('=').as_bytes();
    let mut bytes = Vec::with_capacity(letters.len() / 4 * 3 + 3);
    for group in letters.chunks(4) {
        let mut bits = 0_u32;
        for letter in group {
            let value = match letter {
                b'A'..=b'Z' => letter - b'A',
                b'a'..=b'z' => letter - b'a' + 26,
                b'0'..=b'9' => letter - b'0' + 52,
                b'+' => 62,
                b'/' => 63,
                _ => return None,
            };
            bits = bits << 6 | u32::from(value);
        }
        let n_missing = 4 - group.len();
        let three = (bits << (6 * n_missing)).to_be_bytes();
        bytes.extend_from_slice(three.get(1..4 - n_missing)?);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a trie that maps `a` to the text at an offset.
    fn map_of_a(text_at: u32) -> (Vec<usize>, &'static str) {
        let mut units = vec![0; 512];
        // The root's children begin at 256.
        units[0] = 256 << 10;
        // `a` has a leaf, whose value is at 256 ^ 'a' ^ 1.
        units[256 ^ 0x61] = 0x61 | 1 << 8 | 1 << 10;
        units[256 ^ 0x61 ^ 1] = text_at as usize | 1 << 31;
        (units, "AB\0é\0")
    }

    #[test]
    fn maps_with_offsets_out_of_range_are_refused() {
        let (units, texts) = map_of_a(0);
        assert!(is_sound(&units, texts));
        for out in [4, 100] {
            let (units, texts) = map_of_a(out);
            assert!(!is_sound(&units, texts), "a text at {out}");
        }
        let mut far = units.clone();
        far[256 ^ 0x61] = 0x61 | 1 << 8 | 5000 << 10;
        assert!(!is_sound(&far, texts));
        assert!(!is_sound(&units[..300], texts) && !is_sound(&[], texts));
    }

    #[test]
    fn base64_is_decoded() {
        for (base64, bytes) in
            [("", &b""[..]), ("TQ==", b"M"), ("TWE=", b"Ma"), ("TWFu", b"Man"), ("+/8A", &[0xfb, 0xff, 0])]
        {
            assert_eq!(decoded(base64).unwrap(), bytes, "{base64}");
        }
        assert_eq!(decoded("TW.u"), None);
    }
}
