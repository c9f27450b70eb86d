//! Masks of attention, added to its scores.

use super::emitter::Emitter;
use super::text_inputs::{MASK, positions, target_positions};
use super::weights::OnnxFloat;
use crate::graph::{NodeId, Operand};
use crate::op::Attention;
use briquette_core::Result;
use briquette_formats::onnx_write::OnnxType;

/// The mask of an attention: 0 where a query sees a key, else a large negative number. `None` if all keys are seen.
///
/// A finite number keeps rows without any key free of NaN. Attentions of one kind share their mask.
pub(super) fn of(to: &mut Emitter, node: NodeId, settings: &Attention, reads_text: bool) -> Result<Option<String>> {
    let (causal, window) = (settings.causal, settings.window);
    let keys = to.symbolic.graph.nodes[node.0].inputs.get(1).copied();
    let has_target =
        |operand: Option<Operand>| matches!(operand, Some(Operand::Value(value)) if to.targets.contains(&value));
    if has_target(keys) {
        // The tokens of a target come before its padding.
        return Ok(causal.then(|| to.shared("target_mask", |to| of_targets(to))));
    }
    // The keys of a sound have no padding.
    if to.model.inputs.iter().all(|input| input.name != MASK) {
        return match causal || window.is_some() {
            true => Err(to.refused(node, "found a mask of tokens that are no text")),
            false => Ok(None),
        };
    }
    if !reads_text {
        return match causal || window.is_some() {
            true => Err(to.refused(node, "found a mask of tokens that are no text")),
            false => Ok(None),
        };
    }
    if !causal && window.is_none() {
        return Ok(Some(to.shared("padding_mask", of_padding)));
    }
    let key = format!("attention_mask causal {causal} window {window:?}");
    Ok(Some(to.shared(&key, |to| by_position(to, causal, window))))
}

/// 0 at tokens of the target that are not later than the query: `[targets, targets]`.
fn of_targets(to: &mut Emitter) -> String {
    let tokens = target_positions(to);
    let (queries, keys) = (to.unsqueeze(&tokens, &[1]), to.unsqueeze(&tokens, &[0]));
    let is_earlier = to.plain("LessOrEqual", &[&keys, &queries]);
    let (zero, unseen) = (to.number(0.0), to.number(unseen(to)));
    to.plain("Where", &[&is_earlier, &zero, &unseen])
}

fn unseen(to: &Emitter) -> f64 {
    if to.float == OnnxFloat::F16 { -6e4 } else { -1e30 }
}

/// `(1 - mask) · unseen`, `[batch, 1, 1, tokens]`.
fn of_padding(to: &mut Emitter) -> String {
    let mask = to.unsqueeze(MASK, &[1, 2]);
    let mask = to.cast(&mask, to.float_type());
    let (one, unseen) = (to.number(1.0), to.number(unseen(to)));
    let padding = to.plain("Sub", &[&one, &mask]);
    to.plain("Mul", &[&padding, &unseen])
}

/// 0 at tokens that are no padding, not later than the query, and near it: `[batch, 1, tokens, tokens]`.
fn by_position(to: &mut Emitter, causal: bool, window: Option<usize>) -> String {
    let tokens = positions(to);
    let (queries, keys) = (to.unsqueeze(&tokens, &[1]), to.unsqueeze(&tokens, &[0]));
    let seen = to.unsqueeze(MASK, &[1, 2]);
    let mut seen = to.cast(&seen, OnnxType::Bool);
    if causal {
        let is_earlier = to.plain("LessOrEqual", &[&keys, &queries]);
        seen = to.plain("And", &[&seen, &is_earlier]);
    }
    if let Some(window) = window {
        let distance = to.plain("Sub", &[&queries, &keys]);
        let distance = to.plain("Abs", &[&distance]);
        let window = to.int(i64::try_from(window).unwrap_or(i64::MAX));
        let is_near = to.plain("Less", &[&distance, &window]);
        seen = to.plain("And", &[&seen, &is_near]);
    }
    let (zero, unseen) = (to.number(0.0), to.number(unseen(to)));
    to.plain("Where", &[&seen, &zero, &unseen])
}
