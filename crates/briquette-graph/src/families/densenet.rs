//! torchvision's DenseNet: each layer reads the outputs of all layers before it.

use super::convolution::{EPS, conv_norm, filters, pool_space};
use super::extents::Extents;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, Operand, ValueId};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction, PoolWindow, Primitive, Reduction};
use briquette_core::Result;

pub(super) fn has_names(headers: &Headers) -> bool {
    headers.has("features.denseblock1.denselayer1.norm1.weight") && headers.has("classifier.weight")
}

pub(super) fn build(headers: &Headers, _config: &Config, extents: Extents) -> Result<Graph> {
    let mut to = GraphBuilder::new("DenseNet", headers);
    let [height, width] = extents.image;
    let images = to.input_from("images", &[extents.batch, 3, height, width], InputSource::Images);
    let stem = ["features.conv0", "features.norm0"];
    let [_, kernel] = filters(&to, stem[0]);
    let settings = ConvSettings::square(2, kernel / 2);
    let x = conv_norm(&mut to, stem, settings, EPS, Some(ElementFunction::Relu), images)?;
    let window = PoolWindow::square(Reduction::Max, 3, 2, 1);
    let mut x = to.node("features.pool0", Primitive::Pool(window), &[x.into()]);
    let n_blocks = (1..).take_while(|block| headers.has_prefix(&format!("features.denseblock{block}."))).count();
    for block in 1..=n_blocks {
        x = dense_block(&mut to, &format!("features.denseblock{block}"), x)?;
        let path = format!("features.transition{block}");
        if headers.has_prefix(&format!("{path}.")) {
            x = norm_conv(&mut to, [&format!("{path}.norm"), &format!("{path}.conv")], ConvSettings::square(1, 0), x)?;
            let window = PoolWindow::square(Reduction::Mean, 2, 2, 0);
            x = to.node(&format!("{path}.pool"), Primitive::Pool(window), &[x.into()]);
        }
    }
    x = to.batch_norm("features.norm5", x, EPS)?;
    x = to.function("relu", ElementFunction::Relu, x);
    let n_features = headers.matrix("classifier.weight").map_or(0, |[_, n_in]| n_in);
    let x = pool_space(&mut to, x, [extents.batch, n_features]);
    let classes = to.linear("classifier", x)?;
    Ok(to.finish(&[classes]))
}

/// Layers whose outputs are joined with their inputs.
fn dense_block(to: &mut GraphBuilder, path: &str, x: ValueId) -> Result<ValueId> {
    let layer = |index: usize| format!("{path}.denselayer{index}");
    let headers = to.headers();
    let n_layers = (1..).take_while(|index| headers.has_prefix(&format!("{}.", layer(*index)))).count();
    let mut joined = x;
    let mut parts: Vec<Operand> = vec![x.into()];
    for index in 1..=n_layers {
        let layer = layer(index);
        let at = |name: &str| format!("{layer}.{name}");
        to.begin_block(&layer);
        let x = norm_conv(to, [&at("norm1"), &at("conv1")], ConvSettings::square(1, 0), joined)?;
        let x = norm_conv(to, [&at("norm2"), &at("conv2")], ConvSettings::square(1, 1), x)?;
        parts.push(x.into());
        joined = to.node(&at("concat"), Primitive::Concat { axis: 1 }, &parts);
        to.end_block();
    }
    Ok(joined)
}

/// A batch norm, ReLU and a convolution.
fn norm_conv(to: &mut GraphBuilder, [norm, conv]: [&str; 2], settings: ConvSettings, x: ValueId) -> Result<ValueId> {
    let x = to.batch_norm(norm, x, EPS)?;
    let x = to.function(&format!("{norm}.activation"), ElementFunction::Relu, x);
    to.conv(conv, x, settings)
}
