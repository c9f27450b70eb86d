//! ConvNeXt, with the names of torchvision and of Hugging Face.

use super::convolution::{filters, pool_space};
use super::extents::Extents;
use super::layers::{activation, feed_forward, prefix_of};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction, Primitive};
use briquette_core::Result;

/// The paths of a network's parts.
struct PathNames {
    stem: [&'static str; 2],
    /// Depthwise convolution, norm, and the two linear layers of a block; then its vector of scales.
    block: [&'static str; 4],
    scale: &'static str,
    eps: f64,
}

const TORCHVISION: PathNames = PathNames {
    stem: ["features.0.0", "features.0.1"],
    block: ["block.0", "block.2", "block.3", "block.5"],
    scale: "layer_scale",
    eps: 1e-6,
};
const HUGGING_FACE: PathNames = PathNames {
    stem: ["embeddings.patch_embeddings", "embeddings.layernorm"],
    block: ["dwconv", "layernorm", "pwconv1", "pwconv2"],
    scale: "layer_scale_parameter",
    eps: 1e-6,
};
const STAGES: &str = "encoder.stages.";
const PREFIXES: [&str; 2] = ["convnext.", ""];

pub(super) fn has_names(headers: &Headers) -> bool {
    let is_hugging_face = |prefix| headers.has(&format!("{prefix}{STAGES}0.layers.0.layer_scale_parameter"));
    headers.has("features.1.0.layer_scale") || PREFIXES.iter().any(is_hugging_face)
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let is_torchvision = headers.has("features.0.0.weight");
    let names = if is_torchvision { TORCHVISION } else { HUGGING_FACE };
    // A ConvNextModel without a classifier has no prefix.
    let prefix = match is_torchvision {
        true => "",
        false => prefix_of(headers, &PREFIXES, &format!("{}.weight", names.stem[0])),
    };
    let (stem, stages) = (names.stem.map(|name| format!("{prefix}{name}")), format!("{prefix}{STAGES}"));
    let function = activation(config, "hidden_act", ElementFunction::Gelu)?;
    let mut to = GraphBuilder::new("ConvNeXt", headers);
    let [height, width] = extents.image;
    let images = to.input_from("images", &[extents.batch, 3, height, width], InputSource::Images);
    let x = patches(&mut to, &stem[0], images)?;
    let mut x = channel_norm(&mut to, &stem[1], names.eps, x)?;
    let n_stages = if is_torchvision { headers.count("features.").div_ceil(2) } else { headers.count(&stages) };
    for stage in 0..n_stages {
        let (before, blocks) = match is_torchvision {
            true => (format!("features.{}.", 2 * stage), format!("features.{}.", 2 * stage + 1)),
            false => (format!("{stages}{stage}.downsampling_layer."), format!("{stages}{stage}.layers.")),
        };
        if stage > 0 {
            x = channel_norm(&mut to, &format!("{before}0"), names.eps, x)?;
            x = patches(&mut to, &format!("{before}1"), x)?;
        }
        for index in 0..headers.count(&blocks) {
            x = block(&mut to, &names, &format!("{blocks}{index}"), function, x)?;
        }
    }
    let x = classify(&mut to, config, (is_torchvision, prefix), extents.batch, x)?;
    Ok(to.finish(&[x]))
}

/// A convolution whose stride is its kernel.
fn patches(to: &mut GraphBuilder, path: &str, x: ValueId) -> Result<ValueId> {
    let [_, side] = filters(to, path);
    to.conv(path, x, ConvSettings::square(side.max(1), 0))
}

/// A layer norm over the channels of `[batch, channels, height, width]`.
fn channel_norm(to: &mut GraphBuilder, path: &str, eps: f64, x: ValueId) -> Result<ValueId> {
    let x = channels_last(to, path, x);
    let x = to.layer_norm(path, x, eps)?;
    Ok(channels_first(to, path, x))
}

fn channels_last(to: &mut GraphBuilder, path: &str, x: ValueId) -> ValueId {
    to.node(&format!("{path}.channels_last"), Primitive::Transpose(vec![0, 2, 3, 1]), &[x.into()])
}

fn channels_first(to: &mut GraphBuilder, path: &str, x: ValueId) -> ValueId {
    to.node(&format!("{path}.channels_first"), Primitive::Transpose(vec![0, 3, 1, 2]), &[x.into()])
}

/// `x + scale · outer(function(inner(norm(depthwise x))))`.
fn block(
    to: &mut GraphBuilder,
    names: &PathNames,
    path: &str,
    function: ElementFunction,
    x: ValueId,
) -> Result<ValueId> {
    let [depthwise, norm, inner, outer] = names.block.map(|name| format!("{path}.{name}"));
    to.begin_block(path);
    let [n, side] = filters(to, &depthwise);
    let y = to.conv(&depthwise, x, ConvSettings::square(1, side / 2).with_groups(n.max(1)))?;
    let y = channels_last(to, path, y);
    let y = to.layer_norm(&norm, y, names.eps)?;
    let y = feed_forward(to, [&inner, &outer], function, y)?;
    let scale = to.weight(&format!("{path}.{}", names.scale))?;
    let is_vector = to.headers().get(&format!("{path}.{}", names.scale)).is_some_and(|info| info.shape.rank() == 1);
    let product = Primitive::Elementwise(ElementFunction::Mul);
    // Hugging Face scales before the channels move to the front, torchvision after.
    let y = if is_vector { to.node(&format!("{path}.scaled"), product.clone(), &[y.into(), scale.into()]) } else { y };
    let y = channels_first(to, path, y);
    let y = if is_vector { y } else { to.node(&format!("{path}.scaled"), product, &[y.into(), scale.into()]) };
    let sum = to.add(&format!("{path}.residual"), x, y);
    to.end_block();
    Ok(sum)
}

/// The mean of space, its norm, and the classifier if there is one.
fn classify(
    to: &mut GraphBuilder,
    config: &Config,
    (is_torchvision, prefix): (bool, &str),
    batch: usize,
    x: ValueId,
) -> Result<ValueId> {
    let (norm, classifier, eps) = match is_torchvision {
        true => ("classifier.0", "classifier.2", TORCHVISION.eps),
        false => (&*format!("{prefix}layernorm"), "classifier", config.number("layer_norm_eps").unwrap_or(1e-12)),
    };
    let n = to.headers().get(&format!("{norm}.weight")).and_then(|info| info.shape.0.first().copied());
    let x = pool_space(to, x, [batch, n.unwrap_or(0)]);
    let x = to.layer_norm(norm, x, eps)?;
    if to.headers().has(&format!("{classifier}.weight")) { to.linear(classifier, x) } else { Ok(x) }
}
