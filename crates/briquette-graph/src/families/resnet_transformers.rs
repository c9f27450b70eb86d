//! Residual networks with Hugging Face's names: an embedder, stages of layers, and a classifier.

use super::convolution::{EPS, conv_norm, filters, pool_space};
use super::extents::Extents;
use super::heads::{has, optional};
use super::labels::check_labels;
use super::layers::{activation, prefix_of};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction, PoolWindow, Primitive, Reduction};
use briquette_core::Result;

const STEM: &str = "embedder.embedder";
const PREFIXES: [&str; 2] = ["resnet.", ""];

pub(super) fn has_names(headers: &Headers) -> bool {
    PREFIXES.iter().any(|prefix| headers.has(&format!("{prefix}{STEM}.convolution.weight")))
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let prefix = prefix_of(headers, &PREFIXES, &format!("{STEM}.convolution.weight"));
    let mut to = GraphBuilder::new("ResNet", headers);
    let stem = format!("{prefix}{STEM}");
    let channels = headers.get(&format!("{stem}.convolution.weight")).and_then(|info| info.shape.0.get(1).copied());
    let [height, width] = extents.image;
    let shape = [extents.batch, channels.unwrap_or(3), height, width];
    let images = to.input_from("images", &shape, InputSource::Images);
    let function = activation(config, "hidden_act", ElementFunction::Relu)?;
    let x = conv(&mut to, &stem, 2, Some(function), images)?;
    let window = PoolWindow::square(Reduction::Max, 3, 2, 1);
    let mut x = to.node(&format!("{prefix}embedder.pooler"), Primitive::Pool(window), &[x.into()]);
    let stages = format!("{prefix}encoder.stages.");
    let layers = ResidualLayers { config, function };
    let mut n_features = 0;
    for stage in 0..headers.count(&stages) {
        let halves = stage > 0 || config.flag("downsample_in_first_stage") == Some(true);
        let path = format!("{stages}{stage}.layers.");
        for index in 0..headers.count(&path) {
            let stride = if halves && index == 0 { 2 } else { 1 };
            (x, n_features) = layers.add(&mut to, &format!("{path}{index}"), stride, x)?;
        }
    }
    let x = pool_space(&mut to, x, [extents.batch, n_features]);
    check_labels(&to, config, "classifier.1")?;
    let classes = optional(&mut to, "classifier.1", x)?;
    Ok(to.finish(&[classes.unwrap_or(x)]))
}

struct ResidualLayers<'a> {
    config: &'a Config,
    function: ElementFunction,
}

impl ResidualLayers<'_> {
    /// Two 3x3 convolutions, or a bottleneck of three, around a shortcut. Returns the channels too.
    fn add(&self, to: &mut GraphBuilder, path: &str, stride: usize, x: ValueId) -> Result<(ValueId, usize)> {
        let at = |name: &str| format!("{path}.{name}");
        let n_convs = to.headers().count(&at("layer."));
        let halves_first = n_convs < 3 || self.config.flag("downsample_in_bottleneck") == Some(true);
        let strided = if halves_first { 0 } else { 1 };
        to.begin_block(path);
        let mut inner = x;
        for index in 0..n_convs {
            let stride = if index == strided { stride } else { 1 };
            // Only the stem and the sums have the function of the configuration.
            let function = (index + 1 < n_convs).then_some(ElementFunction::Relu);
            inner = conv(to, &at(&format!("layer.{index}")), stride, function, inner)?;
        }
        let shortcut = match has(to, &at("shortcut.convolution")) {
            true => conv(to, &at("shortcut"), stride, None, x)?,
            false => x,
        };
        let sum = to.add(&at("residual"), inner, shortcut);
        let sum = to.function(&at("activation"), self.function, sum);
        to.end_block();
        let [n_features, _] = filters(to, &at(&format!("layer.{}.convolution", n_convs.saturating_sub(1))));
        Ok((sum, n_features))
    }
}

/// A convolution that pads by half its kernel, its norm, and a function if there is one.
fn conv(
    to: &mut GraphBuilder,
    path: &str,
    stride: usize,
    function: Option<ElementFunction>,
    x: ValueId,
) -> Result<ValueId> {
    let names = [format!("{path}.convolution"), format!("{path}.normalization")];
    let [_, kernel] = filters(to, &names[0]);
    conv_norm(to, [&names[0], &names[1]], ConvSettings::square(stride, kernel / 2), EPS, function, x)
}
