//! Cuts activations into heads.

use crate::expansion::{Expansion, Mismatch, mismatch};
use crate::graph::{Operand, ValueId};
use crate::op::Primitive;

/// `[batch, tokens, heads · width]` to `[batch, tokens, heads, width]`.
pub(super) fn by_head(to: &mut Expansion, x: Operand, heads: usize) -> Result<Operand, Mismatch> {
    let shape = to.shape(x).to_vec();
    if shape.len() != 3 || heads == 0 || !shape[2].is_multiple_of(heads) {
        return mismatch(x, format!("found {shape:?}, expected 3 axes, the last a multiple of {heads} heads"));
    }
    to.reshape(x, vec![shape[0], shape[1], heads, shape[2] / heads])
}

/// `[batch, tokens, heads · parts · width]` to `parts` values `[batch, tokens, heads · width]`.
pub(super) fn split(to: &mut Expansion, x: Operand, heads: usize, parts: usize) -> Result<Vec<ValueId>, Mismatch> {
    let shape = to.shape(x).to_vec();
    let cut = by_head(to, x, heads)?;
    let width = to.shape(cut)[3];
    if parts == 0 || !width.is_multiple_of(parts) {
        return mismatch(x, format!("found heads of width {width}, expected a multiple of {parts}"));
    }
    let cuts = to.apply(Primitive::Split { axis: 3, sizes: vec![width / parts; parts] }, &[cut])?;
    let joined = vec![shape[0], shape[1], shape[2] / parts];
    cuts.into_iter().map(|part| Ok(to.apply(Primitive::Reshape(joined.clone()), &[part.into()])?[0])).collect()
}
