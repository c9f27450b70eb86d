//! The network for 8x8 images of digits: two convolutions, a max pool and two linear layers.

use super::convolution::{EPS, conv_norm, flatten};
use super::extents::Extents;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction, PoolWindow, Primitive, Reduction};
use briquette_core::Result;

pub(super) fn has_names(headers: &Headers) -> bool {
    ["conv2.weight", "bn2.running_mean", "fc2.weight"].iter().all(|name| headers.has(name))
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let mut to = GraphBuilder::new("digits", headers);
    let size = |key: &str, usual: usize| Ok::<_, briquette_core::Error>(config.size(key)?.unwrap_or(usual));
    let channels = headers.get("conv1.weight").and_then(|info| info.shape.0.get(1).copied()).unwrap_or(1);
    let [height, width] = config.pair("image_size")?.unwrap_or([8, 8]);
    let padding = config.number("padding").map_or(1, |padding| padding.clamp(0.0, 64.0) as usize);
    let x = to.input_from("images", &[extents.batch, channels, height, width], InputSource::Images);
    let conv = ConvSettings::square(1, padding);
    let x = conv_norm(&mut to, ["conv1", "bn1"], conv.clone(), EPS, None, x)?;
    let mut x = to.function("relu1", ElementFunction::Relu, x);
    let mut second = conv;
    if let Some(filters) = headers.get("depthwise.weight") {
        let groups = filters.shape.0.first().copied().unwrap_or(1);
        x = to.conv("depthwise", x, second.with_groups(groups))?;
        second = ConvSettings::square(1, 0);
    }
    let x = conv_norm(&mut to, ["conv2", "bn2"], second, EPS, None, x)?;
    let x = to.function("relu2", ElementFunction::Relu, x);
    let pool = size("pool_size", 2)?;
    let window = PoolWindow::square(Reduction::Max, pool, pool, 0);
    let x = to.node("pool", Primitive::Pool(window), &[x.into()]);
    let n_features = headers.matrix("fc1.weight").map_or(0, |[_, n_in]| n_in);
    let x = flatten(&mut to, x, [extents.batch, n_features]);
    let x = to.linear("fc1", x)?;
    let x = to.function("relu3", ElementFunction::Relu, x);
    let classes = to.linear("fc2", x)?;
    Ok(to.finish(&[classes]))
}
