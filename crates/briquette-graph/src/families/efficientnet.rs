//! torchvision's EfficientNet, versions 1 and 2.

use super::convolution::{BlockStep, conv_norm, filters, inverted_residual, pool_space};
use super::extents::Extents;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction};
use briquette_core::Result;

/// The stride of the first block of each stage. No shape shows them; both versions have the same.
const STRIDES: [usize; 7] = [1, 2, 2, 2, 1, 2, 1];
const GATES: [ElementFunction; 2] = [ElementFunction::Silu, ElementFunction::Sigmoid];

pub(super) fn has_names(headers: &Headers) -> bool {
    headers.has("features.1.0.block.0.0.weight") && headers.has("classifier.1.weight")
}

pub(super) fn build(headers: &Headers, _config: &Config, extents: Extents) -> Result<Graph> {
    let mut to = GraphBuilder::new("EfficientNet", headers);
    let [height, width] = extents.image;
    let images = to.input_from("images", &[extents.batch, 3, height, width], InputSource::Images);
    let (eps, silu) = (eps(headers), Some(ElementFunction::Silu));
    let stem = ["features.0.0", "features.0.1"];
    let x = conv_norm(&mut to, stem, ConvSettings::square(2, 1), eps, silu, images)?;
    let mut state = (x, filters(&to, stem[0])[0]);
    let last = headers.count("features.").saturating_sub(1);
    for stage in 1..last {
        for index in 0..headers.count(&format!("features.{stage}.")) {
            let path = format!("features.{stage}.{index}");
            let stride = if index == 0 { STRIDES.get(stage - 1).copied().unwrap_or(1) } else { 1 };
            let steps = steps(&to, &format!("{path}.block"), ElementFunction::Silu, GATES);
            state = inverted_residual(&mut to, &path, &steps, stride, eps, state)?;
        }
    }
    let ends = [format!("features.{last}.0"), format!("features.{last}.1")];
    let ends = [ends[0].as_str(), ends[1].as_str()];
    let x = conv_norm(&mut to, ends, ConvSettings::square(1, 0), eps, silu, state.0)?;
    let n_features = filters(&to, ends[0])[0];
    let x = pool_space(&mut to, x, [extents.batch, n_features]);
    let classes = to.linear("classifier.1", x)?;
    Ok(to.finish(&[classes]))
}

/// Version 2 and the deepest networks of version 1 (B5 to B7) add more to the variance. No tensor shows it.
fn eps(headers: &Headers) -> f64 {
    let first = headers.get("features.1.0.block.0.0.weight").map(|info| info.shape.0.as_slice());
    let is_fused = matches!(first, Some(&[_, n_in, ..]) if n_in > 1);
    if is_fused || headers.count("features.2.") > 4 { 1e-3 } else { 1e-5 }
}

/// The steps of a block: convolutions, and factors of channels where there are any. The last of several has no function.
pub(super) fn steps(
    to: &GraphBuilder,
    path: &str,
    function: ElementFunction,
    gates: [ElementFunction; 2],
) -> Vec<BlockStep> {
    let n = to.headers().count(&format!("{path}."));
    let step = |index: usize| {
        let own = format!("{path}.{index}");
        match to.headers().has(&format!("{own}.fc1.weight")) {
            true => BlockStep::SqueezeExcite(own, gates),
            false => {
                let function = Some(function).filter(|_| index + 1 < n || n == 1);
                BlockStep::Conv([format!("{own}.0"), format!("{own}.1")], function)
            }
        }
    };
    (0..n).map(step).collect()
}
