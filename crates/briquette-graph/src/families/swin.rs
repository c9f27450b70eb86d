//! Swin, with the names of torchvision and of Hugging Face: attention within windows, which every other block shifts.

use super::convolution::filters;
use super::extents::Extents;
use super::heads::optional;
use super::labels::check_labels;
use super::layers::{activation, feed_forward, prefix_of};
use super::swin_names::{HUGGING_FACE, SwinNames, TORCHVISION};
use super::swin_windows::{Windows, padded};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction, Primitive, Reduction};
use briquette_core::{Error, Result};

const PREFIXES: [&str; 2] = ["swin.", ""];
const FIRST: &str = "encoder.layers.0.blocks.0.attention.self.relative_position_bias_table";
/// The side of images where `config.json` has none.
const SIDE: usize = 224;

pub(super) fn has_names(headers: &Headers) -> bool {
    is_torchvision(headers) || PREFIXES.iter().any(|prefix| headers.has(&format!("{prefix}{FIRST}")))
}

fn is_torchvision(headers: &Headers) -> bool {
    headers.has("features.1.0.attn.relative_position_bias_table")
}

pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    let is_torchvision = is_torchvision(headers);
    let names = if is_torchvision { &TORCHVISION } else { &HUGGING_FACE };
    let prefix = if is_torchvision { "" } else { prefix_of(headers, &PREFIXES, FIRST) };
    let mut to = GraphBuilder::new("Swin", headers);
    let eps = config.number("layer_norm_eps").unwrap_or(1e-5);
    let function = activation(config, "hidden_act", ElementFunction::Gelu)?;
    let (mut x, mut grid) = stem(&mut to, config, names, prefix, extents)?;
    let mut blocks = SwinBlocks { names, windows: Windows::new(extents.batch), eps, function };
    let n_stages = match is_torchvision {
        true => headers.count("features.") / 2,
        false => headers.count(&format!("{prefix}encoder.layers.")),
    };
    for stage in 0..n_stages {
        let (path, merging) = match is_torchvision {
            true => (format!("features.{}.", 2 * stage + 1), format!("features.{}", 2 * stage + 2)),
            false => {
                let path = format!("{prefix}encoder.layers.{stage}");
                (format!("{path}.blocks."), format!("{path}.downsample"))
            }
        };
        for index in 0..headers.count(&path) {
            x = blocks.add(&mut to, &format!("{path}{index}"), grid, !index.is_multiple_of(2), x)?;
        }
        if headers.has(&format!("{merging}.reduction.weight")) {
            (x, grid) = merged(&mut to, &merging, extents.batch, grid, x)?;
        }
    }
    let [norm, classifier] = [format!("{prefix}{}", names.last[0]), names.last[1].to_string()];
    let width = headers.get(&format!("{norm}.weight")).and_then(|info| info.shape.0.first().copied()).unwrap_or(0);
    let x = to.layer_norm(&norm, x, eps)?;
    let mean = to.node("mean", Primitive::Reduce { axes: vec![1, 2], kind: Reduction::Mean }, &[x.into()]);
    let x = to.node("vector", Primitive::Reshape(vec![extents.batch, width]), &[mean.into()]);
    check_labels(&to, config, &classifier)?;
    let classes = optional(&mut to, &classifier, x)?;
    Ok(to.finish(&[classes.unwrap_or(x)]))
}

/// Patches and their norm, `[batch, height, width, channels]`. Returns the rows and columns of patches too.
///
/// Images have one size: windows and masks follow from it.
fn stem(
    to: &mut GraphBuilder,
    config: &Config,
    names: &SwinNames,
    prefix: &str,
    extents: Extents,
) -> Result<(ValueId, [usize; 2])> {
    let [projection, norm] = names.stem.map(|name| format!("{prefix}{name}"));
    let [height, width] = match config.size("image_size") {
        Ok(size) => [size.unwrap_or(SIDE); 2],
        Err(_) => config.pair("image_size")?.unwrap_or([SIDE; 2]),
    };
    let [_, patch] = filters(to, &projection);
    if patch == 0 || !height.is_multiple_of(patch) || !width.is_multiple_of(patch) {
        let message = format!("found patches of {patch} pixels, which do not divide images of {height}x{width}");
        return Err(Error::input(message).at(projection));
    }
    let images = to.input_from("images", &[extents.batch, 3, height, width], InputSource::Images);
    let x = to.conv(&projection, images, ConvSettings::square(patch, 0))?;
    let last = Primitive::Transpose(vec![0, 2, 3, 1]);
    let x = to.node(&format!("{projection}.channels_last"), last, &[x.into()]);
    let mut x = to.layer_norm(&norm, x, 1e-5)?;
    let grid = [height / patch, width / patch];
    let positions = format!("{prefix}embeddings.position_embeddings");
    if let Some(info) = to.headers().get(&positions) {
        let channels = info.shape.0.last().copied().unwrap_or(0);
        let weight = to.weight(&positions)?;
        let shape = Primitive::Reshape(vec![1, grid[0], grid[1], channels]);
        let places = to.node(&format!("{positions}.grid"), shape, &[weight.into()]);
        x = to.add(&format!("{positions}.sum"), x, places);
    }
    Ok((x, grid))
}

/// The parts of blocks that are equal in a network.
struct SwinBlocks<'a> {
    names: &'a SwinNames,
    windows: Windows,
    eps: f64,
    function: ElementFunction,
}

impl SwinBlocks<'_> {
    /// Attention within windows and a feed-forward block, each after a norm and with a residual sum.
    fn add(
        &mut self,
        to: &mut GraphBuilder,
        path: &str,
        grid: [usize; 2],
        is_shifted: bool,
        x: ValueId,
    ) -> Result<ValueId> {
        let at = |name: &str| format!("{path}.{name}");
        let [first, second] = self.names.norms.map(at);
        let [inner, outer] = self.names.feed_forward.map(at);
        let window = self.windows.of_block(to, &at(self.names.table), grid, is_shifted)?;
        to.begin_block(path);
        let normed = to.layer_norm(&first, x, self.eps)?;
        let mixed = self.windows.attention(to, path, self.names, &window, normed)?;
        let x = to.add(&at("attention.residual"), x, mixed);
        let normed = to.layer_norm(&second, x, self.eps)?;
        let changed = feed_forward(to, [&inner, &outer], self.function, normed)?;
        let x = to.add(&at("residual"), x, changed);
        to.end_block();
        Ok(x)
    }
}

/// Joins the channels of 2x2 patches, column by column, and halves them. Returns the rows and columns that are left.
fn merged(
    to: &mut GraphBuilder,
    path: &str,
    batch: usize,
    grid: [usize; 2],
    x: ValueId,
) -> Result<(ValueId, [usize; 2])> {
    let at = |name: &str| format!("{path}.{name}");
    let n_joined = to.headers().get(&at("norm.weight")).and_then(|info| info.shape.0.first().copied()).unwrap_or(0);
    let half = grid.map(|extent| extent.div_ceil(2));
    let x = padded(to, &at("pad"), grid, half.map(|extent| 2 * extent), x);
    let by_patch = Primitive::Reshape(vec![batch, half[0], 2, half[1], 2, n_joined / 4]);
    let x = to.node(&at("patches"), by_patch, &[x.into()]);
    let x = to.node(&at("columns"), Primitive::Transpose(vec![0, 1, 3, 4, 2, 5]), &[x.into()]);
    let joined = Primitive::Reshape(vec![batch, half[0], half[1], n_joined]);
    let x = to.node(&at("joined"), joined, &[x.into()]);
    let x = to.layer_norm(&at("norm"), x, 1e-5)?;
    Ok((to.linear(&at("reduction"), x)?, half))
}
