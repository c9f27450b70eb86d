//! SigLIP's vector of an image: attention of a learned token to all patches, and a feed-forward block.

use super::layers::{feed_forward, fused_kv_heads, fused_split};
use crate::builder::GraphBuilder;
use crate::graph::ValueId;
use crate::op::{Composite, ElementFunction, Primitive};
use briquette_core::Result;

/// Adds the head: `y + mlp(norm(y))` of `y = attention(probe, x, x)`, as `[batch, width]`.
pub(super) fn pooling_head(
    to: &mut GraphBuilder,
    path: &str,
    heads: [usize; 2],
    function: ElementFunction,
    eps: f64,
    x: ValueId,
) -> Result<ValueId> {
    let at = |name: &str| format!("{path}.{name}");
    let mixed = attention(to, path, heads, x)?;
    let y = to.linear(&at("attention.out_proj"), mixed)?;
    let normed = to.layer_norm(&at("layernorm"), y, eps)?;
    let inner = feed_forward(to, [&at("mlp.fc1"), &at("mlp.fc2")], function, normed)?;
    let sum = to.add(&at("residual"), y, inner);
    Ok(to.node(&at("vector"), Composite::TakeToken(0), &[sum.into()]))
}

/// Attention of the probe to all tokens, as `[batch, 1, width]`.
///
/// One layer has queries, keys and values. The probe is the first token, so that it passes through the layer too.
fn attention(to: &mut GraphBuilder, path: &str, [heads, width]: [usize; 2], x: ValueId) -> Result<ValueId> {
    let at = |name: &str| format!("{path}.{name}");
    let patches = n_patches(to, path);
    let n_out = to.headers().matrix(&at("attention.in_proj_weight")).map_or(0, |[n_out, _]| n_out);
    let heads = fused_kv_heads(n_out, width, 1, heads);
    let all = heads.saturating_mul(width);
    let batch = to.batch();
    let probe = to.weight(&at("probe"))?;
    let tokens = to.node(&at("tokens"), Composite::PrependTokens, &[x.into(), probe.into()]);
    let weight = to.weight(&at("attention.in_proj_weight"))?;
    let bias = to.weight(&at("attention.in_proj_bias"))?;
    let fused = to.node(&at("attention.in_proj"), Composite::Linear, &[tokens.into(), weight.into(), bias.into()]);
    let parts = fused_split(to, &at("attention.in_proj"), &[all; 3], fused);
    let mut by_head = |name: &str, part: ValueId, start: usize, len: usize| {
        let x = to.node(&at(name), Primitive::Slice { axis: 1, start, len }, &[part.into()]);
        let split = Primitive::Reshape(vec![batch, len, heads, width]);
        let x = to.node(&at(&format!("{name}.heads")), split, &[x.into()]);
        to.node(&at(&format!("{name}.by_head")), Primitive::Transpose(vec![0, 2, 1, 3]), &[x.into()])
    };
    let q = by_head("query", parts[0], 0, 1);
    let k = by_head("key", parts[1], 1, patches);
    let v = by_head("value", parts[2], 1, patches);
    let scores = to.node(&at("scores"), Primitive::MatMul { transpose_b: true }, &[q.into(), k.into()]);
    let scale = Primitive::Scale(1.0 / (width as f64).sqrt());
    let scores = to.node(&at("scaled"), scale, &[scores.into()]);
    let shares = to.node(&at("shares"), Primitive::Softmax { axis: 3 }, &[scores.into()]);
    let mixed = to.node(&at("mixed"), Primitive::MatMul { transpose_b: false }, &[shares.into(), v.into()]);
    let mixed = to.node(&at("mixed.tokens"), Primitive::Transpose(vec![0, 2, 1, 3]), &[mixed.into()]);
    Ok(to.node(&at("mixed.joined"), Primitive::Reshape(vec![batch, 1, all]), &[mixed.into()]))
}

/// Counts the patches of an image by their positions.
fn n_patches(to: &GraphBuilder, path: &str) -> usize {
    let prefix = path.strip_suffix("head").unwrap_or(path);
    let table = format!("{prefix}embeddings.position_embedding.weight");
    to.headers().table(&table).map_or(0, |[rows, _]| rows)
}
