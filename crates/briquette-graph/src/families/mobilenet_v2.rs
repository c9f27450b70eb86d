//! torchvision's MobileNetV2: inverted residual blocks with ReLU6.

use super::extents::Extents;
use super::layers::{conv_norm, conv_norm_function, n_filters, pool_space, same_size};
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
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
    let (stem, relu6) = (ConvSettings::square(2, 1), ElementFunction::Relu6);
    let mut x = conv_norm_function(&mut to, ["features.0.0", "features.0.1"], stem, relu6, images)?;
    let mut n_in = n_filters(&to, "features.0.0");
    let last = headers.count("features.").saturating_sub(1);
    for index in 1..last {
        let path = format!("features.{index}.conv");
        to.begin_block(&path);
        let stride = if STRIDED.contains(&index) { 2 } else { 1 };
        (x, n_in) = inverted_residual(&mut to, &path, stride, n_in, x)?;
        to.end_block();
    }
    let ends = [format!("features.{last}.0"), format!("features.{last}.1")];
    x = conv_norm_function(&mut to, [&ends[0], &ends[1]], ConvSettings::square(1, 0), relu6, x)?;
    let n_features = n_filters(&to, &ends[0]);
    let x = pool_space(&mut to, x, [extents.batch, n_features]);
    let classes = to.linear("classifier.1", x)?;
    Ok(to.finish(&[classes]))
}

/// Widens, filters each channel, narrows; and adds the input if it has the same shape. Returns the channels too.
fn inverted_residual(
    to: &mut GraphBuilder,
    path: &str,
    stride: usize,
    n_in: usize,
    x: ValueId,
) -> Result<(ValueId, usize)> {
    let at = |name: &str| format!("{path}.{name}");
    let function = ElementFunction::Relu6;
    let has_two = to.headers().has(&at("1.0.weight"));
    let mut inner = x;
    let mut n_inner = n_in;
    for (index, stride) in if has_two { vec![(0, 1), (1, stride)] } else { vec![(0, stride)] } {
        let [conv, norm] = [at(&format!("{index}.0")), at(&format!("{index}.1"))];
        let settings = same_size(to, &conv, stride, n_inner);
        inner = conv_norm_function(to, [&conv, &norm], settings, function, inner)?;
        n_inner = n_filters(to, &conv);
    }
    let [conv, norm] = if has_two { [at("2"), at("3")] } else { [at("1"), at("2")] };
    inner = conv_norm(to, [&conv, &norm], ConvSettings::square(1, 0), inner)?;
    let n_out = n_filters(to, &conv);
    let is_residual = stride == 1 && n_in == n_out;
    Ok((if is_residual { to.add(&at("residual"), x, inner) } else { inner }, n_out))
}
