//! Vision transformers with timm's names: fused queries, keys and values, and images of one size.

use super::extents::Extents;
use super::heads::{first_token, optional};
use super::layers::{Projected, attend, feed_forward, fused_kv_heads, fused_split, head_width, pre_norm};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, Operand, ValueId};
use crate::headers::Headers;
use crate::op::{Attention, Composite, ConvSettings, ElementFunction, Primitive};
use briquette_core::{Error, Result};

const PROJECTION: &str = "patch_embed.proj";
const POSITIONS: &str = "pos_embed";
const EPS: f64 = 1e-6;
/// Width of a head in timm's models; `model_args.num_heads` of `config.json` says otherwise.
const HEAD_WIDTH: usize = 64;

/// Other kinds have a second token, registers, or a mean instead of the class token.
pub(super) fn has_names(headers: &Headers) -> bool {
    let all = ["cls_token", POSITIONS, "blocks.0.attn.qkv.weight", "blocks.0.mlp.fc1.weight", "norm.weight"];
    let others = ["dist_token", "reg_token", "fc_norm.weight", "norm_pre.weight"];
    all.iter().all(|name| headers.has(name)) && !others.iter().any(|name| headers.has(name))
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let mut to = GraphBuilder::new("ViT", headers);
    let (mut x, width) = embeddings(&mut to, extents.batch)?;
    let args = config.object("model_args").unwrap_or_default();
    check_kind(headers, config, &args)?;
    let heads = args.size("num_heads")?.unwrap_or((width / HEAD_WIDTH).max(1));
    let head_width = head_width(width, heads)?;
    for index in 0..headers.count("blocks.") {
        x = layer(&mut to, &format!("blocks.{index}"), [heads, head_width], x)?;
    }
    x = to.layer_norm("norm", x, EPS)?;
    let mut outputs = vec![x];
    if headers.has("head.weight") {
        let state = first_token(&mut to, x);
        outputs.extend(optional(&mut to, "head", state)?);
    }
    Ok(to.finish(&outputs))
}

/// Refuses kinds of this network that its usual tensors do not show.
fn check_kind(headers: &Headers, config: &Config, args: &Config) -> Result<()> {
    const PARTS: [&str; 7] = ["norm1", "norm2", "attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "ls"];
    let is_known = |name: &str| PARTS.iter().any(|part| name.starts_with(part));
    let unknown = headers.names().filter_map(|name| name.strip_prefix("blocks.0.")).find(|name| !is_known(name));
    let pool = [config, args].into_iter().find_map(|keys| keys.text("global_pool")).filter(|pool| *pool != "token");
    let function = args.text("act_layer").filter(|name| *name != "gelu");
    let message = match (unknown, pool, function) {
        (Some(name), ..) => format!("found blocks.0.{name}, which vision transformers with plain blocks lack"),
        (_, Some(pool), _) => format!("global_pool is {pool:?}, expected \"token\""),
        (.., Some(function)) => format!("model_args.act_layer is {function:?}, expected \"gelu\""),
        _ if !headers.has("norm.bias") => "norm.bias is missing, as in models with other norms".into(),
        _ if args.text("block_fn").is_some() => "model_args.block_fn changes the blocks".into(),
        _ => return Ok(()),
    };
    Err(Error::input(format!("{message}; this kind of network is not supported")))
}

/// Patches, the class token and learned positions, which tell the size of images; and their width.
fn embeddings(to: &mut GraphBuilder, batch: usize) -> Result<(ValueId, usize)> {
    let shape = |name: &str| to.headers().get(name).map(|info| info.shape.0.clone()).unwrap_or_default();
    let (kernel, positions) = (shape(&format!("{PROJECTION}.weight")), shape(POSITIONS));
    let (&[width, channels, patch, _], &[1, rows, _]) = (kernel.as_slice(), positions.as_slice()) else {
        let message = format!("found {positions:?} and filters {kernel:?}, expected [1, tokens, width] and four axes");
        return Err(Error::input(message).at(POSITIONS));
    };
    let side = rows.saturating_sub(1).isqrt();
    if side * side + 1 != rows {
        return Err(Error::input(format!("found {rows} rows, expected 1 and a square number")).at(POSITIONS));
    }
    let image = side.saturating_mul(patch);
    let images = to.input_from("images", &[batch, channels, image, image], InputSource::Images);
    let settings = ConvSettings { stride: vec![patch; 2], ..ConvSettings::square(1, 0) };
    let x = to.conv(PROJECTION, images, settings)?;
    let x = to.node("patch_embed.patches", Composite::SpaceToTokens, &[x.into()]);
    let token = to.weight("cls_token")?;
    let x = to.node("patch_embed.tokens", Composite::PrependTokens, &[x.into(), Operand::from(token)]);
    let positions = to.weight(POSITIONS)?;
    let add = Primitive::Elementwise(ElementFunction::Add);
    Ok((to.node("patch_embed.sum", add, &[x.into(), positions.into()]), width))
}

fn layer(to: &mut GraphBuilder, path: &str, [heads, head_width]: [usize; 2], x: ValueId) -> Result<ValueId> {
    let at = |name: &str| format!("{path}.{name}");
    let norm = |path: String| move |to: &mut GraphBuilder, x| to.layer_norm(&path, x, EPS);
    let (own, inner) = (at("attn"), at("mlp"));
    let n_out = to.headers().table(&at("attn.qkv.weight")).map_or(0, |[n_out, _]| n_out);
    let heads = fused_kv_heads(n_out, head_width, 1, heads);
    to.begin_block(path);
    let mix = |to: &mut GraphBuilder, x| {
        let fused = format!("{own}.qkv");
        let x = to.linear(&fused, x)?;
        let parts = fused_split(to, &fused, &[heads.saturating_mul(head_width); 3], x);
        let projected = Projected { q: parts[0], k: parts[1], v: parts[2], heads, kv_heads: heads };
        let x = attend(to, &own, &projected, Attention::full(heads), None);
        let x = to.linear(&format!("{own}.proj"), x)?;
        scaled(to, &at("ls1.gamma"), x)
    };
    let x = pre_norm(to, &own, norm(at("norm1")), mix, x)?;
    let feed = |to: &mut GraphBuilder, x| {
        let x = feed_forward(to, [&at("mlp.fc1"), &at("mlp.fc2")], ElementFunction::Gelu, x)?;
        scaled(to, &at("ls2.gamma"), x)
    };
    let x = pre_norm(to, &inner, norm(at("norm2")), feed, x)?;
    to.end_block();
    Ok(x)
}

/// Multiplies channels by a vector, if the checkpoint has it.
fn scaled(to: &mut GraphBuilder, name: &str, x: ValueId) -> Result<ValueId> {
    if !to.headers().has(name) {
        return Ok(x);
    }
    let weight = to.weight(name)?;
    Ok(to.node(name, Primitive::Elementwise(ElementFunction::Mul), &[x.into(), weight.into()]))
}
