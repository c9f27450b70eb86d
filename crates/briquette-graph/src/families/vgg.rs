//! torchvision's VGG, with and without batch norm.

use super::convolution::{EPS, flatten};
use super::extents::Extents;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction, PoolWindow, Primitive, Reduction};
use briquette_core::Result;

/// The extents of the images that reach the classifier.
const SPACE: usize = 7;

pub(super) fn has_names(headers: &Headers) -> bool {
    headers.has("features.0.weight") && headers.has("classifier.0.weight") && headers.has("classifier.6.weight")
}

pub(super) fn build(headers: &Headers, _config: &Config, extents: Extents) -> Result<Graph> {
    let mut to = GraphBuilder::new("VGG", headers);
    let [height, width] = extents.image;
    let mut x = to.input_from("images", &[extents.batch, 3, height, width], InputSource::Images);
    let rank = |index: usize| headers.get(&format!("features.{index}.weight")).map(|info| info.shape.rank());
    // A pool has no tensors: it shows as a gap in the numbers.
    let convs: Vec<usize> = (0..headers.names().count() * 4).filter(|index| rank(*index) == Some(4)).collect();
    for (place, &index) in convs.iter().enumerate() {
        x = to.conv(&format!("features.{index}"), x, ConvSettings::square(1, 1))?;
        let has_norm = rank(index + 1) == Some(1);
        if has_norm {
            x = to.batch_norm(&format!("features.{}", index + 1), x, EPS)?;
        }
        let end = index + if has_norm { 3 } else { 2 };
        x = to.function(&format!("features.{}", end - 1), ElementFunction::Relu, x);
        if convs.get(place + 1) != Some(&end) {
            let window = PoolWindow::square(Reduction::Max, 2, 2, 0);
            x = to.node(&format!("features.{end}"), Primitive::Pool(window), &[x.into()]);
        }
    }
    x = to.node("avgpool", Primitive::AdaptivePool(vec![SPACE; 2]), &[x.into()]);
    let n_features = headers.matrix("classifier.0.weight").map_or(0, |[_, n_in]| n_in);
    x = flatten(&mut to, x, [extents.batch, n_features]);
    for index in [0, 3] {
        x = to.linear(&format!("classifier.{index}"), x)?;
        x = to.function(&format!("classifier.{}", index + 1), ElementFunction::Relu, x);
    }
    let classes = to.linear("classifier.6", x)?;
    Ok(to.finish(&[classes]))
}
