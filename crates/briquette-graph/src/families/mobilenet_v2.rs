//! torchvision's MobileNetV2: inverted residual blocks with ReLU6.

use super::convolution::{BlockStep, EPS, conv_norm, filters, inverted_residual, pool_space};
use super::extents::Extents;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction};
use briquette_core::Result;

/// The blocks that halve the image. No shape shows them.
const STRIDED: [usize; 4] = [2, 4, 7, 14];

pub(super) fn has_names(headers: &Headers) -> bool {
    headers.has("features.1.conv.0.0.weight") && headers.has("classifier.1.weight")
}

pub(super) fn build(headers: &Headers, _config: &Config, extents: Extents) -> Result<Graph> {
    let mut to = GraphBuilder::new("MobileNetV2", headers);
    let [height, width] = extents.image;
    let images = to.input_from("images", &[extents.batch, 3, height, width], InputSource::Images);
    let relu6 = Some(ElementFunction::Relu6);
    let stem = ["features.0.0", "features.0.1"];
    let x = conv_norm(&mut to, stem, ConvSettings::square(2, 1), EPS, relu6, images)?;
    let mut state = (x, filters(&to, stem[0])[0]);
    let last = headers.count("features.").saturating_sub(1);
    for index in 1..last {
        let path = format!("features.{index}.conv");
        let at = |name: &str| format!("{path}.{name}");
        let has_expansion = headers.has(&at("1.0.weight"));
        let wide = if has_expansion { 2 } else { 1 };
        let convs = (0..wide).map(|at| [format!("{path}.{at}.0"), format!("{path}.{at}.1")]);
        let mut steps: Vec<BlockStep> = convs.map(|names| BlockStep::Conv(names, relu6)).collect();
        steps.push(BlockStep::Conv([at(&format!("{wide}")), at(&format!("{}", wide + 1))], None));
        let stride = if STRIDED.contains(&index) { 2 } else { 1 };
        state = inverted_residual(&mut to, &path, &steps, stride, EPS, state)?;
    }
    let ends = [format!("features.{last}.0"), format!("features.{last}.1")];
    let ends = [ends[0].as_str(), ends[1].as_str()];
    let x = conv_norm(&mut to, ends, ConvSettings::square(1, 0), EPS, relu6, state.0)?;
    let n_features = filters(&to, ends[0])[0];
    let x = pool_space(&mut to, x, [extents.batch, n_features]);
    let classes = to.linear("classifier.1", x)?;
    Ok(to.finish(&[classes]))
}
