//! torchvision's residual networks. Widths, groups and blocks are read off the weights.

use super::convolution::{EPS, conv_norm, pool_space};
use super::extents::Extents;
use super::sizes::TensorShapes;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction, PoolWindow, Primitive, Reduction};
use briquette_core::{Error, Result};

pub(super) fn has_names(headers: &Headers) -> bool {
    headers.has("layer1.0.conv1.weight") && headers.has("layer4.0.conv1.weight") && headers.has("fc.weight")
}

/// The blocks of each stage by name, and whether they are bottlenecks.
const DEPTHS: [(&str, [usize; 4], bool); 5] = [
    ("resnet18", [2, 2, 2, 2], false),
    ("resnet34", [3, 4, 6, 3], false),
    ("resnet50", [3, 4, 6, 3], true),
    ("resnet101", [3, 4, 23, 3], true),
    ("resnet152", [3, 8, 36, 3], true),
];

/// Returns the name of the network with these blocks.
pub(super) fn name_of(headers: &Headers) -> Option<&'static str> {
    let blocks = [1, 2, 3, 4].map(|stage| headers.count(&format!("layer{stage}.")));
    let is_bottleneck = headers.has("layer1.0.conv3.weight");
    let depth = DEPTHS.iter().find(|(_, known, has_three)| *known == blocks && *has_three == is_bottleneck);
    depth.map(|(name, ..)| *name)
}

/// Lists torchvision's tensors of the network that `model_type` names, with `num_labels` classes.
pub(super) fn tensors(config: &Config, _like: &Headers) -> Result<TensorShapes> {
    let named = DEPTHS.iter().find(|(name, ..)| config.model_type() == Some(name));
    let Some(&(_, blocks, is_bottleneck)) = named else {
        return Err(Error::input("expected the name of a ResNet, such as resnet50").at("model_type"));
    };
    let mut to = TensorShapes::default();
    let mut conv_norm = |[conv, norm]: [&str; 2], shape: [usize; 4]| {
        to.weight(conv, &shape);
        to.batch_norm(norm, shape[0]);
    };
    conv_norm(["conv1", "bn1"], [64, 3, 7, 7]);
    let mut n_in = 64;
    for (stage, n_blocks) in blocks.into_iter().enumerate() {
        let width = 64 << stage;
        let n_out = if is_bottleneck { 4 * width } else { width };
        for index in 0..n_blocks {
            let at = |name: &str| format!("layer{}.{index}.{name}", stage + 1);
            let shapes: &[[usize; 4]] = match is_bottleneck {
                true => &[[width, n_in, 1, 1], [width, width, 3, 3], [n_out, width, 1, 1]],
                false => &[[width, n_in, 3, 3], [width, width, 3, 3]],
            };
            for (number, shape) in shapes.iter().enumerate() {
                conv_norm([&at(&format!("conv{}", number + 1)), &at(&format!("bn{}", number + 1))], *shape);
            }
            if index == 0 && (stage > 0 || n_in != n_out) {
                conv_norm([&at("downsample.0"), &at("downsample.1")], [n_out, n_in, 1, 1]);
            }
            n_in = n_out;
        }
    }
    to.layer("fc", &[config.size("num_labels")?.unwrap_or(1000), n_in]);
    Ok(to)
}

pub(super) fn build(headers: &Headers, _config: &Config, extents: Extents) -> Result<Graph> {
    let mut to = GraphBuilder::new("ResNet", headers);
    let channels = headers.get("conv1.weight").and_then(|info| info.shape.0.get(1).copied()).unwrap_or(3);
    let [height, width] = extents.image;
    let images = to.input_from("images", &[extents.batch, channels, height, width], InputSource::Images);
    let x = conv_norm(&mut to, ["conv1", "bn1"], ConvSettings::square(2, 3), EPS, None, images)?;
    let x = to.function("relu", ElementFunction::Relu, x);
    let window = PoolWindow::square(Reduction::Max, 3, 2, 1);
    let mut x = to.node("maxpool", Primitive::Pool(window), &[x.into()]);
    for stage in 1..=4 {
        for index in 0..headers.count(&format!("layer{stage}.")) {
            let stride = if stage > 1 && index == 0 { 2 } else { 1 };
            let path = format!("layer{stage}.{index}");
            to.begin_block(&path);
            x = block(&mut to, &path, stride, x)?;
            to.end_block();
        }
    }
    let n_features = headers.matrix("fc.weight").map_or(0, |[_, n_in]| n_in);
    let x = pool_space(&mut to, x, [extents.batch, n_features]);
    let classes = to.linear("fc", x)?;
    Ok(to.finish(&[classes]))
}

/// Two 3x3 convolutions, or a bottleneck of three, around a shortcut.
fn block(to: &mut GraphBuilder, path: &str, stride: usize, x: ValueId) -> Result<ValueId> {
    let at = |name: &str| format!("{path}.{name}");
    let is_bottleneck = to.headers().has(&at("conv3.weight"));
    let convs: &[(&str, &str, usize, usize)] = match is_bottleneck {
        true => &[("conv1", "bn1", 1, 0), ("conv2", "bn2", stride, 1), ("conv3", "bn3", 1, 0)],
        false => &[("conv1", "bn1", stride, 1), ("conv2", "bn2", 1, 1)],
    };
    let mut inner = x;
    for (index, (conv, norm, stride, padding)) in convs.iter().enumerate() {
        let groups = if is_bottleneck && index == 1 { groups(to, path)? } else { 1 };
        let settings = ConvSettings::square(*stride, *padding).with_groups(groups);
        inner = conv_norm(to, [&at(conv), &at(norm)], settings, EPS, None, inner)?;
        if index + 1 < convs.len() {
            inner = to.function(&at(&format!("relu{}", index + 1)), ElementFunction::Relu, inner);
        }
    }
    let shortcut = match to.headers().has(&at("downsample.0.weight")) {
        true => {
            conv_norm(to, [&at("downsample.0"), &at("downsample.1")], ConvSettings::square(stride, 0), EPS, None, x)?
        }
        false => x,
    };
    let sum = to.add(&at("residual"), inner, shortcut);
    Ok(to.function(&at("relu"), ElementFunction::Relu, sum))
}

/// Groups of the 3x3 convolution: its inputs over those of one filter.
fn groups(to: &GraphBuilder, path: &str) -> Result<usize> {
    let name = format!("{path}.conv2.weight");
    let n_in = to.headers().get(&format!("{path}.conv1.weight")).and_then(|info| info.shape.0.first());
    let own = to.headers().get(&name).and_then(|info| info.shape.0.get(1));
    match (n_in, own) {
        (Some(n_in), Some(own)) if *own > 0 && n_in.is_multiple_of(*own) => Ok((n_in / own).max(1)),
        (Some(n_in), Some(own)) => {
            Err(Error::input(format!("found filters of {own} channels, which do not divide {n_in}")).at(name))
        }
        // The builder names the tensor that is missing.
        _ => Ok(1),
    }
}
