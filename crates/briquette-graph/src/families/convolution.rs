//! Layers of convolutional networks that families share.

use crate::builder::GraphBuilder;
use crate::graph::ValueId;
use crate::op::{ConvSettings, ElementFunction, Primitive};
use briquette_core::{Error, Result};

/// What batch norms add to the variance, unless a network says otherwise.
pub(super) const EPS: f64 = 1e-5;

/// A convolution, its batch norm, and a function if there is one.
pub(super) fn conv_norm(
    to: &mut GraphBuilder,
    [conv, norm]: [&str; 2],
    settings: ConvSettings,
    eps: f64,
    function: Option<ElementFunction>,
    x: ValueId,
) -> Result<ValueId> {
    let x = to.conv(conv, x, settings)?;
    let x = to.batch_norm(norm, x, eps)?;
    Ok(function.map_or(x, |function| to.function(&format!("{norm}.activation"), function, x)))
}

/// A convolution that pads by half its kernel. Groups follow from the weight and its `n_in` inputs.
///
/// # Errors
/// Input: the filters do not divide the inputs, or are no images.
pub(super) fn settings(to: &GraphBuilder, path: &str, stride: usize, n_in: usize) -> Result<ConvSettings> {
    let name = format!("{path}.weight");
    let Some(info) = to.headers().get(&name) else {
        // The builder names the tensor that is missing.
        return Ok(ConvSettings::square(stride, 0));
    };
    match *info.shape.0.as_slice() {
        [_, own, height, width] if own > 0 && n_in.is_multiple_of(own) => Ok(ConvSettings {
            padding: vec![height / 2, width / 2],
            ..ConvSettings::square(stride, 0).with_groups((n_in / own).max(1))
        }),
        _ => Err(Error::input(format!("found {}, expected filters of {n_in} channels or a part", info.shape)).at(name)),
    }
}

/// The filters of a convolution, and the side of its kernel; 0 where it is absent.
pub(super) fn filters(to: &GraphBuilder, path: &str) -> [usize; 2] {
    match to.headers().get(&format!("{path}.weight")).map(|info| info.shape.0.as_slice()) {
        Some(&[n, _, side, _]) => [n, side],
        _ => [0; 2],
    }
}

/// A step of an inverted residual block.
pub(super) enum BlockStep {
    /// A convolution and its norm, by path, with a function if there is one.
    Conv([String; 2], Option<ElementFunction>),
    /// Factors of channels from their averages: the path of two convolutions, and the function after each.
    SqueezeExcite(String, [ElementFunction; 2]),
}

/// Widens, filters each channel, narrows; and adds the input if it has the same shape. Returns the channels too.
///
/// The first convolution with a kernel above 1x1 has the stride.
pub(super) fn inverted_residual(
    to: &mut GraphBuilder,
    path: &str,
    steps: &[BlockStep],
    stride: usize,
    eps: f64,
    (x, n_in): (ValueId, usize),
) -> Result<(ValueId, usize)> {
    let (mut inner, mut n_inner, mut left) = (x, n_in, stride);
    to.begin_block(path);
    for step in steps {
        match step {
            BlockStep::Conv([conv, norm], function) => {
                let [n, kernel] = filters(to, conv);
                let own = if kernel > 1 { std::mem::replace(&mut left, 1) } else { 1 };
                let settings = settings(to, conv, own, n_inner)?;
                inner = conv_norm(to, [conv, norm], settings, eps, *function, inner)?;
                n_inner = n;
            }
            BlockStep::SqueezeExcite(path, functions) => {
                let convs = ["fc1", "fc2"].map(|name| format!("{path}.{name}"));
                inner = squeeze_excite(to, path, &convs, *functions, inner)?;
            }
        }
    }
    if stride == 1 && n_in == n_inner {
        inner = to.add(&format!("{path}.residual"), x, inner);
    }
    to.end_block();
    Ok((inner, n_inner))
}

/// `x · gate(second(function(first(mean of space))))` with two convolutions.
pub(super) fn squeeze_excite(
    to: &mut GraphBuilder,
    path: &str,
    [first, second]: &[String; 2],
    [function, gate]: [ElementFunction; 2],
    x: ValueId,
) -> Result<ValueId> {
    let at = |name: &str| format!("{path}.{name}");
    let mean = to.node(&at("avgpool"), Primitive::AdaptivePool(vec![1, 1]), &[x.into()]);
    let inner = to.conv(first, mean, ConvSettings::square(1, 0))?;
    let inner = to.function(&at("activation"), function, inner);
    let inner = to.conv(second, inner, ConvSettings::square(1, 0))?;
    let factors = to.function(&at("gate"), gate, inner);
    Ok(to.node(&at("scaled"), Primitive::Elementwise(ElementFunction::Mul), &[x.into(), factors.into()]))
}

/// An average over all of space, as `[batch, features]`.
pub(super) fn pool_space(to: &mut GraphBuilder, x: ValueId, shape: [usize; 2]) -> ValueId {
    let x = to.node("avgpool", Primitive::AdaptivePool(vec![1, 1]), &[x.into()]);
    flatten(to, x, shape)
}

/// `[batch, channels, ..]` to `[batch, channels · ..]`.
pub(super) fn flatten(to: &mut GraphBuilder, x: ValueId, shape: [usize; 2]) -> ValueId {
    to.node("flatten", Primitive::Reshape(shape.to_vec()), &[x.into()])
}
