//! Convolutions and pools.

use super::dims::SymbolicDim;
use super::emitter::{Attributes, Emitter};
use crate::graph::NodeId;
use crate::op::{ConvSettings, PoolWindow, Reduction};
use briquette_core::Result;
use briquette_formats::onnx_write::{OnnxAttribute, OnnxType};

fn ints(values: &[usize]) -> OnnxAttribute {
    OnnxAttribute::Ints(values.iter().map(|value| *value as i64).collect())
}

/// The same zeros before and after each axis.
fn pads(padding: &[usize]) -> OnnxAttribute {
    ints(&[padding, padding].concat())
}

/// A convolution: `[x, weight]` or `[x, weight, bias]`. With `pads_same`, zeros follow from the image.
pub(super) fn conv(to: &mut Emitter, inputs: &[String], settings: &ConvSettings, pads_same: bool) -> String {
    let mut attributes: Attributes = vec![
        ("strides", ints(&settings.stride)),
        ("dilations", ints(&settings.dilation)),
        ("group", OnnxAttribute::Int(settings.groups as i64)),
    ];
    attributes.push(match pads_same {
        true => ("auto_pad", OnnxAttribute::Text("SAME_UPPER".into())),
        false => ("pads", pads(&settings.padding)),
    });
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    to.op(if settings.transposed { "ConvTranspose" } else { "Conv" }, &inputs, attributes)
}

/// A maximum, mean or sum over a window.
pub(super) fn pool(to: &mut Emitter, x: &str, window: &PoolWindow) -> String {
    let mut attributes: Attributes =
        vec![("kernel_shape", ints(&window.size)), ("strides", ints(&window.stride)), ("pads", pads(&window.padding))];
    if window.kind == Reduction::Max {
        return to.op("MaxPool", &[x], attributes);
    }
    attributes.push(("count_include_pad", OnnxAttribute::Int(1)));
    let mean = to.op("AveragePool", &[x], attributes);
    if window.kind == Reduction::Mean {
        return mean;
    }
    let n = to.number(window.size.iter().product::<usize>() as f64);
    to.plain("Mul", &[&mean, &n])
}

/// Averages the axes after the second down to these extents, as torch's `adaptive_avg_pool2d` does.
///
/// Output `i` of `n` is the mean of the inputs from `⌊i·len/n⌋` to `⌈(i+1)·len/n⌉`.
pub(super) fn adaptive_pool(
    to: &mut Emitter,
    node: NodeId,
    x: &str,
    dims: &[SymbolicDim],
    space: &[usize],
) -> Result<String> {
    if space.iter().all(|&n| n == 1) {
        return Ok(to.plain("GlobalAveragePool", &[x]));
    }
    let (&[_, _, height, width], &[rows, columns]) = (dims, space) else {
        return Err(to.refused(node, "found an adaptive pool of other than two axes"));
    };
    let columns = averaging(to, x, 3, width, columns);
    let columns = to.transpose(&columns, &[1, 0]);
    let narrow = to.plain("MatMul", &[x, &columns]);
    let rows = averaging(to, x, 2, height, rows);
    Ok(to.plain("MatMul", &[&rows, &narrow]))
}

/// The matrix `[n, len]` that averages an axis.
fn averaging(to: &mut Emitter, x: &str, axis: usize, len: SymbolicDim, n: usize) -> String {
    if !len.is_dynamic() {
        return to.floats(&averages(len.extent, n), &[n, len.extent]);
    }
    let (shape, at, none) = (to.plain("Shape", &[x]), to.int(axis as i64), to.int(0));
    let len = to.plain("Gather", &[&shape, &at]);
    let one = to.int(1);
    let inputs = to.plain("Range", &[&none, &len, &one]);
    let columns: Vec<i64> = (0..n as i64).collect();
    let outputs = to.ints(&columns);
    let outputs = to.unsqueeze(&outputs, &[1]);
    let (n_outputs, before) = (to.int(n as i64), to.int(n as i64 - 1));
    let product = to.plain("Mul", &[&outputs, &len]);
    let start = to.plain("Div", &[&product, &n_outputs]);
    let next = to.plain("Add", &[&product, &len]);
    let next = to.plain("Add", &[&next, &before]);
    let end = to.plain("Div", &[&next, &n_outputs]);
    let (is_after, is_before) = (to.plain("GreaterOrEqual", &[&inputs, &start]), to.plain("Less", &[&inputs, &end]));
    let is_inside = to.plain("And", &[&is_after, &is_before]);
    let count = to.plain("Sub", &[&end, &start]);
    let (share, count) = (to.cast(&is_inside, OnnxType::F32), to.cast(&count, OnnxType::F32));
    let share = to.plain("Div", &[&share, &count]);
    if to.float_type() == OnnxType::F32 { share } else { to.cast(&share, to.float_type()) }
}

fn averages(len: usize, n: usize) -> Vec<f32> {
    let one = |at: usize| {
        let (output, input) = (at / len, at % len);
        let (start, end) = (output * len / n, ((output + 1) * len).div_ceil(n));
        if (start..end).contains(&input) { 1.0 / (end - start) as f32 } else { 0.0 }
    };
    (0..len * n).map(one).collect()
}

/// Enlarges the axes after the second: every element is repeated.
pub(super) fn resize(to: &mut Emitter, x: &str, factor: usize, rank: usize) -> String {
    let scales: Vec<f32> = (0..rank).map(|axis| if axis < 2 { 1.0 } else { factor as f32 }).collect();
    let scales = to.floats_32(&scales, &[rank]);
    let attributes = vec![
        ("mode", OnnxAttribute::Text("nearest".into())),
        ("nearest_mode", OnnxAttribute::Text("floor".into())),
        ("coordinate_transformation_mode", OnnxAttribute::Text("asymmetric".into())),
    ];
    to.op("Resize", &[x, "", &scales], attributes)
}

/// Zeros before and after each axis.
pub(super) fn pad(to: &mut Emitter, x: &str, before: &[usize], after: &[usize]) -> String {
    let all: Vec<i64> = before.iter().chain(after).map(|n| *n as i64).collect();
    let all = to.ints(&all);
    to.plain("Pad", &[x, &all])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_are_those_of_torch() {
        // adaptive_avg_pool1d of 5 to 3: [0, 2), [1, 4), [3, 5).
        let third = 1.0 / 3.0;
        let expected = [0.5, 0.5, 0.0, 0.0, 0.0, 0.0, third, third, third, 0.0, 0.0, 0.0, 0.0, 0.5, 0.5];
        assert_eq!(averages(5, 3), expected);
        assert_eq!(averages(1, 2), [1.0, 1.0]);
        assert_eq!(averages(2, 2), [1.0, 0.0, 0.0, 1.0]);
    }
}
