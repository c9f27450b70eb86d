//! The network for 8x8 images of digits: two convolutions, a max pool and two linear layers.

use super::convolution::{EPS, conv_norm, flatten};
use super::extents::Extents;
use super::sizes::TensorShapes;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction, PoolWindow, Primitive, Reduction};
use briquette_core::{Error, Result};

/// The keys of a `config.json` with their usual values.
pub(super) const USUAL: &str = r#"{
    "image_size": [8, 8], "in_channels": 1, "pixel_scale": 16.0, "conv_channels": [16, 32], "kernel_size": 3,
    "padding": 1, "separable": false, "pool_size": 2, "hidden_size": 80, "num_labels": 10, "batch_norm_eps": 1e-5
}"#;

pub(super) fn has_names(headers: &Headers) -> bool {
    ["conv2.weight", "bn2.running_mean", "fc2.weight"].iter().all(|name| headers.has(name))
}

/// Sizes of a `config.json`; absent ones are usual.
struct DigitSizes {
    image: [usize; 2],
    channels: [usize; 2],
    kernel: usize,
    padding: usize,
    pool: usize,
}

impl DigitSizes {
    fn of(config: &Config) -> Result<Self> {
        let size = |key: &str, usual: usize| Ok::<_, Error>(config.size(key)?.unwrap_or(usual));
        let kernel = size("kernel_size", 3)?;
        let padding = config.number("padding").unwrap_or(1.0);
        if !(0.0..=kernel as f64).contains(&padding) {
            return Err(
                Error::input(format!("padding is {padding}, expected 0 to {kernel}; correct it")).at("config.json")
            );
        }
        Ok(Self {
            image: config.pair("image_size")?.unwrap_or([8, 8]),
            channels: config.pair("conv_channels")?.unwrap_or([16, 32]),
            kernel,
            padding: padding as usize,
            pool: size("pool_size", 2)?,
        })
    }

    /// Returns the inputs of the first linear layer: channels times pooled pixels.
    fn n_features(&self) -> Result<usize> {
        let filtered = |size: usize| (size + 2 * self.padding + 1).saturating_sub(self.kernel);
        let [height, width] = self.image.map(|size| filtered(filtered(size)) / self.pool);
        match self.channels[1].saturating_mul(height).saturating_mul(width) {
            0 => Err(Error::input("the image does not fit its convolutions; correct it").at("config.json")),
            n => Ok(n),
        }
    }
}

/// Lists the tensors of a network of these sizes; `separable` adds one filter for each channel.
pub(super) fn tensors(config: &Config, _like: &Headers) -> Result<TensorShapes> {
    let sizes = DigitSizes::of(config)?;
    let ([first, second], kernel) = (sizes.channels, sizes.kernel);
    let (channels, hidden) = (config.size("in_channels")?.unwrap_or(1), config.size("hidden_size")?.unwrap_or(80));
    let mut to = TensorShapes::default();
    to.layer("conv1", &[first, channels, kernel, kernel]);
    to.batch_norm("bn1", first);
    if config.flag("separable") == Some(true) {
        to.layer("depthwise", &[first, 1, kernel, kernel]);
        to.layer("conv2", &[second, first, 1, 1]);
    } else {
        to.layer("conv2", &[second, first, kernel, kernel]);
    }
    to.batch_norm("bn2", second);
    to.linear("fc1", [hidden, sizes.n_features()?], true);
    to.linear("fc2", [config.size("num_labels")?.unwrap_or(10), hidden], true);
    Ok(to)
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let mut to = GraphBuilder::new("digits", headers);
    let channels = headers.get("conv1.weight").and_then(|info| info.shape.0.get(1).copied()).unwrap_or(1);
    let DigitSizes { image: [height, width], padding, pool, .. } = DigitSizes::of(config)?;
    let eps = config.number("batch_norm_eps").unwrap_or(EPS);
    if eps.is_nan() || eps <= 0.0 {
        return Err(Error::input("batch_norm_eps is not above 0; correct it").at("config.json"));
    }
    let x = to.input_from("images", &[extents.batch, channels, height, width], InputSource::Images);
    let conv = ConvSettings::square(1, padding);
    let x = conv_norm(&mut to, ["conv1", "bn1"], conv.clone(), eps, None, x)?;
    let mut x = to.function("relu1", ElementFunction::Relu, x);
    let mut second = conv;
    if let Some(filters) = headers.get("depthwise.weight") {
        let groups = filters.shape.0.first().copied().unwrap_or(1);
        x = to.conv("depthwise", x, second.with_groups(groups))?;
        second = ConvSettings::square(1, 0);
    }
    let x = conv_norm(&mut to, ["conv2", "bn2"], second, eps, None, x)?;
    let x = to.function("relu2", ElementFunction::Relu, x);
    let window = PoolWindow::square(Reduction::Max, pool, pool, 0);
    let x = to.node("pool", Primitive::Pool(window), &[x.into()]);
    let n_features = headers.matrix("fc1.weight").map_or(0, |[_, n_in]| n_in);
    let x = flatten(&mut to, x, [extents.batch, n_features]);
    let x = to.linear("fc1", x)?;
    let x = to.function("relu3", ElementFunction::Relu, x);
    let classes = to.linear("fc2", x)?;
    Ok(to.finish(&[classes]))
}
