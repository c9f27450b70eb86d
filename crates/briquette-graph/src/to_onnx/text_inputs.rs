//! Values that follow from the token ids: their number, and the position of each.

use super::emitter::Emitter;

/// The input of token ids.
pub(super) const IDS: &str = "input_ids";
/// The input that is 1 at tokens and 0 at padding.
pub(super) const MASK: &str = "attention_mask";

/// The input of the tokens that a decoder with an encoder has so far.
pub(super) const TARGETS: &str = "decoder_input_ids";
/// The number of tokens of a target.
pub(super) const TARGET_SEQUENCE: &str = "target_sequence";

/// The position of each token of the target, from 0: `[targets]`.
pub(super) fn target_positions(to: &mut Emitter) -> String {
    to.shared("target_positions", |to| {
        let n = extent(to, TARGETS, 1);
        let (zero, one) = (to.int(0), to.int(1));
        to.plain("Range", &[&zero, &n, &one])
    })
}

/// The number of tokens of a text, with padding.
pub(super) fn n_tokens(to: &mut Emitter) -> String {
    to.shared("tokens", |to| extent(to, IDS, 1))
}

/// The position of each token, from 0: `[tokens]`.
pub(super) fn positions(to: &mut Emitter) -> String {
    let n = n_tokens(to);
    to.shared("positions", |to| {
        let (zero, one) = (to.int(0), to.int(1));
        to.plain("Range", &[&zero, &n, &one])
    })
}

/// An extent of a value, as a single integer.
pub(super) fn extent(to: &mut Emitter, of: &str, axis: i64) -> String {
    let (shape, axis) = (to.plain("Shape", &[of]), to.int(axis));
    to.plain("Gather", &[&shape, &axis])
}
