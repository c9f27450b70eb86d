//! EfficientNet and EfficientNet-Lite with the names of the package `efficientnet_pytorch`, and TensorFlow's padding.

use super::convolution::{conv_norm, filters, pool_space, squeeze_excite};
use super::extents::Extents;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction, Primitive};
use briquette_core::Result;

/// The stride of the first block of each stage. No shape shows them.
const STRIDES: [usize; 7] = [1, 2, 2, 2, 1, 2, 1];
const EPS: f64 = 1e-3;

/// An image so far: its value and channels.
#[derive(Clone, Copy)]
struct ImageState {
    x: ValueId,
    channels: usize,
}

pub(super) fn has_names(headers: &Headers) -> bool {
    headers.has("_conv_stem.weight") && headers.has("_blocks.0._depthwise_conv.weight")
}

pub(super) fn build(headers: &Headers, _config: &Config, extents: Extents) -> Result<Graph> {
    // The lite networks have no factors of channels.
    let is_lite = !headers.has("_blocks.0._se_reduce.weight");
    let mut to = GraphBuilder::new(if is_lite { "EfficientNet-Lite" } else { "EfficientNet" }, headers);
    let function = if is_lite { ElementFunction::Relu6 } else { ElementFunction::Silu };
    let [height, width] = extents.image;
    let x = to.input_from("images", &[extents.batch, 3, height, width], InputSource::Images);
    let mut image = ImageState { x, channels: 3 };
    image = same_conv(&mut to, ["_conv_stem", "_bn0"], 2, Some(function), image)?;
    let mut stage = 0;
    for index in 0..headers.count("_blocks.") {
        let path = format!("_blocks.{index}");
        let [n_out, _] = filters(&to, &format!("{path}._project_conv"));
        // Stages differ in width, so that a change of width shows where one begins.
        let is_first = index == 0 || n_out != image.channels;
        let stride = if is_first { STRIDES.get(stage).copied().unwrap_or(1) } else { 1 };
        stage += usize::from(is_first);
        image = block(&mut to, &path, stride, function, image)?;
    }
    image = same_conv(&mut to, ["_conv_head", "_bn1"], 1, Some(function), image)?;
    let x = pool_space(&mut to, image.x, [extents.batch, image.channels]);
    let classes = to.linear("_fc", x)?;
    Ok(to.finish(&[classes]))
}

/// An inverted residual block.
fn block(
    to: &mut GraphBuilder,
    path: &str,
    stride: usize,
    function: ElementFunction,
    image: ImageState,
) -> Result<ImageState> {
    let at = |name: &str| format!("{path}.{name}");
    let mut inner = image;
    to.begin_block(path);
    if to.headers().has(&at("_expand_conv.weight")) {
        inner = same_conv(to, [&at("_expand_conv"), &at("_bn0")], 1, Some(function), inner)?;
    }
    inner = same_conv(to, [&at("_depthwise_conv"), &at("_bn1")], stride, Some(function), inner)?;
    if to.headers().has(&at("_se_reduce.weight")) {
        let names = [at("_se_reduce"), at("_se_expand")];
        inner.x = squeeze_excite(to, path, &names, [function, ElementFunction::Sigmoid], inner.x)?;
    }
    inner = same_conv(to, [&at("_project_conv"), &at("_bn2")], 1, None, inner)?;
    if stride == 1 && inner.channels == image.channels {
        inner.x = to.add(&at("residual"), image.x, inner.x);
    }
    to.end_block();
    Ok(inner)
}

/// A convolution whose output has the input's extents over its stride, rounded up.
fn same_conv(
    to: &mut GraphBuilder,
    [conv, norm]: [&str; 2],
    stride: usize,
    function: Option<ElementFunction>,
    mut image: ImageState,
) -> Result<ImageState> {
    let [n_out, kernel] = filters(to, conv);
    let groups = if conv.ends_with("_depthwise_conv") { n_out.max(1) } else { 1 };
    let mut settings = ConvSettings::square(stride, 0).with_groups(groups);
    match stride == 1 && !kernel.is_multiple_of(2) {
        true => settings.padding = vec![kernel / 2; 2],
        // With a stride, the zeros depend on the extents of the images.
        false => {
            let pad = Primitive::PadSame { size: vec![kernel; 2], stride: vec![stride; 2] };
            image.x = to.node(&format!("{conv}.pad"), pad, &[image.x.into()]);
        }
    }
    let x = conv_norm(to, [conv, norm], settings, EPS, function, image.x)?;
    Ok(ImageState { x, channels: n_out })
}
