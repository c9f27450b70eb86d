//! MobileNetV2 with Hugging Face's names, and TensorFlow's padding.

use super::convolution::{conv_norm, filters, pool_space};
use super::extents::Extents;
use super::heads::{has, optional};
use super::labels::check_labels;
use super::layers::{activation, prefix_of};
use super::mobilenet_v2;
use crate::builder::GraphBuilder;
use crate::config::Config;
use crate::graph::{Graph, InputSource, ValueId};
use crate::headers::Headers;
use crate::op::{ConvSettings, ElementFunction, Primitive};
use briquette_core::Result;

/// The blocks that halve the image. No shape shows them.
const STRIDED: [usize; 4] = [0, 2, 5, 12];
const PREFIXES: [&str; 2] = ["mobilenet_v2.", ""];
const STEM: &str = "conv_stem.first_conv.convolution.weight";

pub(super) fn has_names(headers: &Headers) -> bool {
    PREFIXES.iter().any(|prefix| headers.has(&format!("{prefix}{STEM}")))
}

/// Builds the graph. Torchvision's names with this `model_type` are the network of torchvision.
pub(super) fn build(headers: &Headers, config: &Config, extents: Extents) -> Result<Graph> {
    if mobilenet_v2::has_names(headers) {
        return mobilenet_v2::build(headers, config, extents);
    }
    let prefix = prefix_of(headers, &PREFIXES, STEM);
    let mut to = GraphBuilder::new("MobileNetV2", headers);
    let [height, width] = extents.image;
    let images = to.input_from("images", &[extents.batch, 3, height, width], InputSource::Images);
    let mut convs = Convs {
        has_same_padding: config.flag("tf_padding") != Some(false),
        eps: config.number("layer_norm_eps").unwrap_or(1e-3),
        function: activation(config, "hidden_act", ElementFunction::Relu6)?,
        dilation: 1,
    };
    let at = |name: &str| format!("{prefix}{name}");
    let x = convs.add(&mut to, &at("conv_stem.first_conv"), 2, true, images)?;
    let (mut x, mut n_in) = convs.narrowed(&mut to, &at("conv_stem"), 1, x)?;
    let largest = config.size("output_stride")?.unwrap_or(32);
    let (mut reached, mut next_dilation) = (2, 1);
    for index in 0..headers.count(&at("layer.")) {
        let usual = if STRIDED.contains(&index) { 2 } else { 1 };
        let is_reached = reached == largest;
        let stride = if is_reached { 1 } else { usual };
        reached *= stride;
        convs.dilation = if is_reached { next_dilation } else { 1 };
        next_dilation *= if is_reached { usual } else { 1 };
        (x, n_in) = convs.block(&mut to, &at(&format!("layer.{index}")), stride, (x, n_in))?;
    }
    convs.dilation = 1;
    let x = convs.add(&mut to, &at("conv_1x1"), 1, true, x)?;
    let [n_features, _] = filters(&to, &at("conv_1x1.convolution"));
    let x = pool_space(&mut to, x, [extents.batch, n_features]);
    check_labels(&to, config, "classifier")?;
    let classes = optional(&mut to, "classifier", x)?;
    Ok(to.finish(&[classes.unwrap_or(x)]))
}

/// The settings of convolutions.
struct Convs {
    /// Whether zeros follow from the image, as in TensorFlow; else convolutions pad by half their kernel.
    has_same_padding: bool,
    eps: f64,
    function: ElementFunction,
    /// Distance of the elements of depthwise kernels.
    dilation: usize,
}

impl Convs {
    /// An inverted residual block. Returns the channels too.
    fn block(
        &self,
        to: &mut GraphBuilder,
        path: &str,
        stride: usize,
        (x, n_in): (ValueId, usize),
    ) -> Result<(ValueId, usize)> {
        to.begin_block(path);
        let (mut inner, n_out) = self.narrowed(to, path, stride, x)?;
        if stride == 1 && n_in == n_out {
            inner = to.add(&format!("{path}.residual"), x, inner);
        }
        to.end_block();
        Ok((inner, n_out))
    }

    /// Widens if the checkpoint has this convolution, filters each channel, and narrows. Returns the channels too.
    fn narrowed(&self, to: &mut GraphBuilder, path: &str, stride: usize, x: ValueId) -> Result<(ValueId, usize)> {
        let at = |name: &str| format!("{path}.{name}");
        let x = match has(to, &at("expand_1x1.convolution")) {
            true => self.add(to, &at("expand_1x1"), 1, true, x)?,
            false => x,
        };
        let x = self.add(to, &at("conv_3x3"), stride, true, x)?;
        let x = self.add(to, &at("reduce_1x1"), 1, false, x)?;
        let [n_out, _] = filters(to, &at("reduce_1x1.convolution"));
        Ok((x, n_out))
    }

    /// A convolution, its norm, and the function.
    fn add(
        &self,
        to: &mut GraphBuilder,
        path: &str,
        stride: usize,
        has_function: bool,
        mut x: ValueId,
    ) -> Result<ValueId> {
        let names = [format!("{path}.convolution"), format!("{path}.normalization")];
        let [n_out, kernel] = filters(to, &names[0]);
        let is_depthwise = path.ends_with("conv_3x3");
        let dilation = if is_depthwise { self.dilation } else { 1 };
        let groups = if is_depthwise { n_out.max(1) } else { 1 };
        let mut settings = ConvSettings::square(stride, 0).with_groups(groups);
        settings.dilation = vec![dilation; 2];
        match stride == 1 || !self.has_same_padding {
            true => settings.padding = vec![(kernel / 2).saturating_mul(dilation); 2],
            // With a stride, the zeros depend on the extents of the images.
            false => {
                let pad = Primitive::PadSame { size: vec![kernel; 2], stride: vec![stride; 2] };
                x = to.node(&format!("{path}.pad"), pad, &[x.into()]);
            }
        }
        let function = Some(self.function).filter(|_| has_function);
        conv_norm(to, [&names[0], &names[1]], settings, self.eps, function, x)
    }
}
