//! torchvision's MobileNetV3, large and small.

use super::convolution::{conv_norm, filters, inverted_residual, pool_space};
use super::efficientnet::steps;
use super::extents::Extents;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction};
use briquette_core::Result;

const EPS: f64 = 1e-3;
const GATES: [ElementFunction; 2] = [ElementFunction::Relu, ElementFunction::HardSigmoid];

/// The blocks that halve the image, and the first one with hard-swish. No shape shows them.
struct StridePlan {
    strided: [usize; 4],
    first_swish: usize,
}

const LARGE: StridePlan = StridePlan { strided: [2, 4, 7, 13], first_swish: 7 };
const SMALL: StridePlan = StridePlan { strided: [1, 2, 4, 9], first_swish: 4 };
const N_SMALL: usize = 13;

pub(super) fn has_names(headers: &Headers) -> bool {
    headers.has("features.1.block.0.0.weight") && headers.has("classifier.3.weight")
}

pub(super) fn build(headers: &Headers, _config: &Config, extents: Extents) -> Result<Graph> {
    let mut to = GraphBuilder::new("MobileNetV3", headers);
    let [height, width] = extents.image;
    let images = to.input_from("images", &[extents.batch, 3, height, width], InputSource::Images);
    let swish = ElementFunction::HardSwish;
    let stem = ["features.0.0", "features.0.1"];
    let x = conv_norm(&mut to, stem, ConvSettings::square(2, 1), EPS, Some(swish), images)?;
    let mut state = (x, filters(&to, stem[0])[0]);
    let n = headers.count("features.");
    let plan = if n > N_SMALL { LARGE } else { SMALL };
    let last = n.saturating_sub(1);
    for index in 1..last {
        let path = format!("features.{index}");
        let function = if index < plan.first_swish { ElementFunction::Relu } else { swish };
        let stride = if plan.strided.contains(&index) { 2 } else { 1 };
        let steps = steps(&to, &format!("{path}.block"), function, GATES);
        state = inverted_residual(&mut to, &path, &steps, stride, EPS, state)?;
    }
    let ends = [format!("features.{last}.0"), format!("features.{last}.1")];
    let ends = [ends[0].as_str(), ends[1].as_str()];
    let x = conv_norm(&mut to, ends, ConvSettings::square(1, 0), EPS, Some(swish), state.0)?;
    let n_features = filters(&to, ends[0])[0];
    let x = pool_space(&mut to, x, [extents.batch, n_features]);
    let x = to.linear("classifier.0", x)?;
    let x = to.function("classifier.1", swish, x);
    let classes = to.linear("classifier.3", x)?;
    Ok(to.finish(&[classes]))
}
