//! Norms. Statistics are f32 in every model.

use super::emitter::Emitter;
use super::weights::OnnxFloat;
use crate::graph::Operand;
use briquette_formats::onnx_write::{OnnxAttribute, OnnxType};

/// Layer norm over the last axis: `[x, weight]` or `[x, weight, bias]`.
pub(super) fn layer(to: &mut Emitter, inputs: &[String], eps: f64) -> String {
    let attributes = vec![("axis", OnnxAttribute::Int(-1)), ("epsilon", OnnxAttribute::Float(eps as f32))];
    to.op("LayerNormalization", &refs(inputs), attributes)
}

/// Batch norm of the second axis: `[x, weight, bias, mean, variance]`.
pub(super) fn batch(to: &mut Emitter, inputs: &[String], eps: f64) -> String {
    to.op("BatchNormalization", &refs(inputs), vec![("epsilon", OnnxAttribute::Float(eps as f32))])
}

/// `x / sqrt(mean(x²) + eps) · (weight + offset)` over the last axis.
pub(super) fn root_mean_square(to: &mut Emitter, x: &str, weight: Operand, eps: f64, offset: f64) -> String {
    let mut weight = to.operand(weight);
    let is_half = to.float == OnnxFloat::F16;
    let wide = if is_half { to.cast(x, OnnxType::F32) } else { x.to_string() };
    let two = to.number_of(OnnxType::F32, 2.0);
    let squares = to.plain("Pow", &[&wide, &two]);
    let mean = to.op("ReduceMean", &[&squares], vec![("axes", OnnxAttribute::Ints(vec![-1]))]);
    let eps = to.number_of(OnnxType::F32, eps);
    let sum = to.plain("Add", &[&mean, &eps]);
    let root = to.plain("Sqrt", &[&sum]);
    let mut normed = to.plain("Div", &[&wide, &root]);
    if is_half {
        normed = to.cast(&normed, OnnxType::F16);
    }
    if offset != 0.0 {
        let offset = to.number(offset);
        weight = to.plain("Add", &[&weight, &offset]);
    }
    to.plain("Mul", &[&normed, &weight])
}

/// The same over the width of each head of `[batch, tokens, heads · width]`.
pub(super) fn head(
    to: &mut Emitter,
    x: &str,
    weight: Operand,
    [heads, width]: [usize; 2],
    eps: f64,
    offset: f64,
) -> String {
    let cut = to.reshape(x, &[0, 0, heads as i64, width as i64]);
    let normed = root_mean_square(to, &cut, weight, eps, offset);
    to.reshape(&normed, &[0, 0, (heads * width) as i64])
}

/// Norm of groups of channels and all of space: `[x, weight, bias]`.
pub(super) fn group(
    to: &mut Emitter,
    inputs: &[String],
    groups: usize,
    channels: usize,
    rank: usize,
    eps: f64,
) -> String {
    let (ones, zeros) = (to.floats(&vec![1.0; groups], &[groups]), to.floats(&vec![0.0; groups], &[groups]));
    let own_shape = to.plain("Shape", &[&inputs[0]]);
    let cut = to.reshape(&inputs[0], &[0, groups as i64, -1]);
    let attributes = vec![("epsilon", OnnxAttribute::Float(eps as f32))];
    let normed = to.op("InstanceNormalization", &[&cut, &ones, &zeros], attributes);
    let normed = to.plain("Reshape", &[&normed, &own_shape]);
    // Weight and bias run along the second axis.
    let mut by_channel = vec![1_i64; rank - 1];
    by_channel[0] = channels as i64;
    let [weight, bias] = [1, 2].map(|at: usize| to.reshape(&inputs[at], &by_channel));
    let scaled = to.plain("Mul", &[&normed, &weight]);
    to.plain("Add", &[&scaled, &bias])
}

fn refs(inputs: &[String]) -> Vec<&str> {
    inputs.iter().map(String::as_str).collect()
}
