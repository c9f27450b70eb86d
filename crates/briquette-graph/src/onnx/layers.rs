//! Convolutions, matrix products and norms.

use super::attributes::{axis, extents, float, int, ints, text};
use super::importer::Importer;
use super::inputs::NodeInputs;
use super::item::{Item, known};
use super::layout::reshaped;
use crate::graph::{Operand, ValueId};
use crate::op::{Composite, ConvSettings, ElementFunction, NumberFunction, Primitive, Reduction, same_zeros};
use briquette_core::OutputAxis;
use briquette_formats::onnx::Constant;

fn one(value: ValueId) -> Option<Vec<Item>> {
    Some(vec![Item::Value(value)])
}

/// The operands of inputs from a position on, up to the first absent one.
fn operands(to: &mut Importer, given: &NodeInputs, positions: std::ops::Range<usize>) -> Option<Vec<Operand>> {
    let items = positions.map_while(|position| given.get(position));
    items.map(|item| to.operand(item)).collect()
}

/// Imports a convolution. Zeros that differ on two sides are a node of their own.
pub(super) fn conv(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let node = given.node;
    // Quantized convolutions have scales and zero points between their operands.
    let (x, weight, bias) = match node.op_type.as_str() {
        "QLinearConv" => (0, 3, 8),
        "ConvInteger" => (0, 1, usize::MAX),
        _ => (0, 1, 2),
    };
    let kernel = to.shape(given.get(weight)?)?;
    let n_space = kernel.len().checked_sub(2)?;
    let stride = extents(node, "strides", n_space, 1)?;
    let dilation = extents(node, "dilations", n_space, 1)?;
    let groups = usize::try_from(int(node, "group", 1)).ok()?;
    let mut input = to.operand(given.get(x)?)?;
    let rank = to.shape(given.get(x)?)?.len();
    let reach: Option<Vec<usize>> =
        kernel[2..].iter().zip(&dilation).map(|(k, d)| k.checked_sub(1)?.checked_mul(*d)?.checked_add(1)).collect();
    let padding = match text(node, "auto_pad", "NOTSET") {
        "NOTSET" => {
            let pads = extents(node, "pads", 2 * n_space, 0)?;
            let (before, after) = pads.split_at(n_space);
            if before == after {
                before.to_vec()
            } else {
                let by_axis = |pads: &[usize]| [&vec![0; rank - n_space], pads].concat();
                input = to.emit(Primitive::Pad { before: by_axis(before), after: by_axis(after) }, &[input])?.into();
                vec![0; n_space]
            }
        }
        "VALID" => vec![0; n_space],
        "SAME_UPPER" => {
            input = to.emit(Primitive::PadSame { size: reach?, stride: stride.clone() }, &[input])?.into();
            vec![0; n_space]
        }
        "SAME_LOWER" => {
            let (mut before, mut after) = (vec![0; rank - n_space], vec![0; rank - n_space]);
            let shape = to.shape(given.get(x)?)?;
            for (at, reach) in reach?.into_iter().enumerate() {
                let [less, more] = same_zeros(shape[at + 2], reach, stride[at])?;
                before.push(more);
                after.push(less);
            }
            input = to.emit(Primitive::Pad { before, after }, &[input])?.into();
            vec![0; n_space]
        }
        _ => return None,
    };
    let settings = ConvSettings { stride, padding, dilation, groups, transposed: false };
    let mut inputs = vec![input, to.operand(given.get(weight)?)?];
    let apart = given.get(bias).filter(|bias| to.runs && matches!(bias, Item::Known(_)));
    if let Some(bias) = given.get(bias).filter(|_| apart.is_none()) {
        inputs.push(to.operand(bias)?);
    }
    let found = to.emit(Primitive::Conv(settings), &inputs)?;
    let Some(bias) = apart else { return one(found) };
    // A layer has no known values, so they are added after it.
    let by_channel = [to.shape(bias)?, vec![1; n_space]].concat();
    let bias = reshaped_constant(to, bias, by_channel)?;
    one(to.emit(Primitive::Elementwise(ElementFunction::Add), &[found.into(), bias])?)
}

/// Returns known values in another shape.
fn reshaped_constant(to: &mut Importer, item: &Item, shape: Vec<usize>) -> Option<Operand> {
    let Item::Known(constant) = item else { return None };
    to.operand(&known(Constant { shape, ..Constant::clone(constant) }))
}

/// Imports a transposed convolution. Rows that pads remove on one side only are cut from its output.
pub(super) fn conv_transpose(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let node = given.node;
    let n_space = to.shape(given.get(1)?)?.len().checked_sub(2)?;
    let is_plain = text(node, "auto_pad", "NOTSET") == "NOTSET" && ints(node, "output_shape").is_none();
    is_plain.then_some(())?;
    let pads = extents(node, "pads", 2 * n_space, 0)?;
    let more = extents(node, "output_padding", n_space, 0)?;
    let (before, after) = pads.split_at(n_space);
    let after: Vec<usize> = after.iter().zip(&more).map(|(pad, more)| pad.checked_sub(*more)).collect::<Option<_>>()?;
    let padding: Vec<usize> = before.iter().zip(&after).map(|(before, after)| *before.min(after)).collect();
    let settings = ConvSettings {
        stride: extents(node, "strides", n_space, 1)?,
        padding: padding.clone(),
        dilation: extents(node, "dilations", n_space, 1)?,
        groups: usize::try_from(int(node, "group", 1)).ok()?,
        transposed: true,
    };
    let inputs = operands(to, given, 0..3)?;
    if let Operand::Weight(weight) = inputs.get(1)? {
        to.graph.weights[weight.0].layout = OutputAxis::Second;
    }
    let mut found = to.emit(Primitive::Conv(settings), &inputs)?;
    for (at, padding) in padding.into_iter().enumerate() {
        let (start, end) = (before[at] - padding, after[at] - padding);
        if start + end > 0 {
            let len = to.shape(&Item::Value(found))?[at + 2].checked_sub(start + end)?;
            found = to.emit(Primitive::Slice { axis: at + 2, start, len }, &[found.into()])?;
        }
    }
    one(found)
}

/// The weight of a linear layer: a matrix of the file, as it is stored or transposed.
fn matrix(to: &mut Importer, item: &Item, is_turned: bool) -> Option<Operand> {
    let (index, is_turned) = match item {
        Item::Tensor(index) => (*index, is_turned),
        Item::Turned(index) => (*index, !is_turned),
        _ => return None,
    };
    if to.given(index).extents().len() != 2 {
        return None;
    }
    let layout = if is_turned { OutputAxis::First } else { OutputAxis::Last };
    // A scale for each input fits no layer.
    (layout == OutputAxis::Last || !to.given(index).has_outputs_last()).then_some(())?;
    let is_used = to.is_used(index);
    let weight = to.weight(index)?;
    let own = &mut to.graph.weights[weight.0].layout;
    // One layout serves all uses of a shared matrix.
    if is_used && *own != layout {
        return None;
    }
    *own = layout;
    Some(weight.into())
}

/// Imports a matrix product. With a matrix of the file it is a linear layer.
pub(super) fn matmul(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let second = if given.node.op_type == "QLinearMatMul" { 3 } else { 1 };
    let (a, b) = (given.get(0)?, given.get(second)?);
    let x = to.operand(a)?;
    if to.shape(a)?.len() >= 2
        && let Some(weight) = matrix(to, b, false)
    {
        return one(to.emit(Composite::Linear, &[x, weight])?);
    }
    let (of_a, of_b) = (to.shape(a)?, to.shape(b)?);
    // A vector is a matrix with one row or column, which the product has not.
    let is_vector = [of_a.len() == 1, of_b.len() == 1];
    let a = if is_vector[0] { reshaped(to, a, vec![1, of_a[0]])? } else { a.clone() };
    let b = if is_vector[1] { reshaped(to, b, vec![of_b[0], 1])? } else { b.clone() };
    let operands = [to.operand(&a)?, to.operand(&b)?];
    let found = Item::Value(to.emit(Primitive::MatMul { transpose_b: false }, &operands)?);
    let mut shape = to.shape(&found)?;
    if is_vector[1] {
        shape.pop();
    }
    if is_vector[0] {
        shape.remove(shape.len() + usize::from(is_vector[1]) - 2);
    }
    Some(vec![reshaped(to, &found, shape)?])
}

/// Imports `alpha · A · B + beta · C`, where A and B may be transposed.
pub(super) fn gemm(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let node = given.node;
    let (alpha, beta) = (float(node, "alpha", 1.0), float(node, "beta", 1.0));
    let is_turned = int(node, "transB", 0) != 0;
    let mut x = to.operand(given.get(0)?)?;
    if int(node, "transA", 0) != 0 {
        x = to.emit(Primitive::Transpose(vec![1, 0]), &[x])?.into();
    }
    let is_plain = alpha == 1.0 && beta == 1.0;
    if is_plain && let Some(weight) = matrix(to, given.get(1)?, is_turned) {
        let mut inputs = vec![x, weight];
        match given.get(2) {
            Some(bias) if to.shape(bias)?.len() == 1 && !(to.runs && matches!(bias, Item::Known(_))) => {
                inputs.push(to.operand(bias)?);
            }
            Some(bias) => {
                let product = to.emit(Composite::Linear, &inputs)?;
                let bias = to.operand(bias)?;
                return one(to.emit(Primitive::Elementwise(ElementFunction::Add), &[product.into(), bias])?);
            }
            None => {}
        }
        return one(to.emit(Composite::Linear, &inputs)?);
    }
    let b = to.operand(given.get(1)?)?;
    let mut product = to.emit(Primitive::MatMul { transpose_b: is_turned }, &[x, b])?;
    if alpha != 1.0 {
        product = to.emit(Primitive::Scale(alpha), &[product.into()])?;
    }
    let Some(bias) = given.get(2) else { return one(product) };
    let mut bias = to.operand(bias)?;
    if beta != 1.0 {
        bias = to.emit(Primitive::Scale(beta), &[bias])?.into();
    }
    one(to.emit(Primitive::Elementwise(ElementFunction::Add), &[product.into(), bias])?)
}

/// Imports a batch norm. Its running statistics are buffers.
pub(super) fn batch_norm(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    if to.runs && int(given.node, "training_mode", 0) != 0 {
        return own_batch_norm(to, given);
    }
    (given.node.outputs.len() == 1).then_some(())?;
    let inputs = operands(to, given, 0..5)?;
    for operand in inputs.get(3..)? {
        if let Operand::Weight(weight) = operand {
            to.graph.weights[weight.0].is_buffer = true;
        }
    }
    one(to.emit(Composite::BatchNorm { eps: float(given.node, "epsilon", 1e-5) }, &inputs)?)
}

/// Imports a batch norm by the statistics of its input. Nothing may use its other outputs.
fn own_batch_norm(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let shape = to.shape(given.get(0)?)?;
    let over: Vec<usize> = (0..shape.len()).filter(|axis| *axis != 1).collect();
    let mean =
        |to: &mut Importer, x: Operand| to.emit(Primitive::Reduce { axes: over.clone(), kind: Reduction::Mean }, &[x]);
    let combined =
        |to: &mut Importer, function, a: Operand, b: Operand| to.emit(Primitive::Elementwise(function), &[a, b]);
    let x = to.operand(given.get(0)?)?;
    let centre = mean(to, x)?;
    let centred = combined(to, ElementFunction::Sub, x, centre.into())?;
    let square = to.emit(Primitive::Elementwise(ElementFunction::Square), &[centred.into()])?;
    let variance = mean(to, square.into())?;
    let eps = float(given.node, "epsilon", 1e-5);
    let sum = to.emit(Primitive::Number { function: NumberFunction::Add, number: eps }, &[variance.into()])?;
    let root = to.emit(Primitive::Elementwise(ElementFunction::Foreign("Sqrt")), &[sum.into()])?;
    let mut found = combined(to, ElementFunction::Foreign("Div"), centred.into(), root.into())?;
    let mut along = vec![1; shape.len()];
    along[1] = shape[1];
    for (position, function) in [(1, ElementFunction::Mul), (2, ElementFunction::Add)] {
        let vector = reshaped(to, given.get(position)?, along.clone())?;
        let vector = to.operand(&vector)?;
        found = combined(to, function, found.into(), vector)?;
    }
    let others = vec![Some(vec![shape[1]]); given.node.outputs.len() - 1];
    let others = super::unknown::with_shapes(to, given.node, given.items, &others)?;
    Some([Item::Value(found)].into_iter().chain(others).collect())
}

/// Imports a layer norm over the last axis.
pub(super) fn layer_norm(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    is_over_last_axis(to, given)?;
    let inputs = operands(to, given, 0..3)?;
    one(to.emit(Composite::LayerNorm { eps: float(given.node, "epsilon", 1e-5) }, &inputs)?)
}

/// Imports a root-mean-square norm over the last axis.
pub(super) fn rms_norm(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    is_over_last_axis(to, given)?;
    let inputs = operands(to, given, 0..2)?;
    one(to.emit(Composite::RmsNorm { eps: float(given.node, "epsilon", 1e-5), offset: 0.0 }, &inputs)?)
}

fn is_over_last_axis(to: &Importer, given: &NodeInputs) -> Option<()> {
    let rank = to.shape(given.get(0)?)?.len();
    let is_last = axis(int(given.node, "axis", -1), rank)? + 1 == rank;
    (is_last && given.node.outputs.len() == 1).then_some(())
}

/// Imports onnxruntime's sum and layer norm: `[x, skip, weight, bias, bias of the sum]`.
pub(super) fn skip_layer_norm(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let add =
        |to: &mut Importer, a: Operand, b: Operand| to.emit(Primitive::Elementwise(ElementFunction::Add), &[a, b]);
    let (x, skip) = (to.operand(given.get(0)?)?, to.operand(given.get(1)?)?);
    let mut sum = add(to, x, skip)?;
    if let Some(bias) = given.get(4) {
        let bias = to.operand(bias)?;
        sum = add(to, sum.into(), bias)?;
    }
    let inputs = [vec![sum.into()], operands(to, given, 2..4)?].concat();
    let normed = Item::Value(to.emit(Composite::LayerNorm { eps: float(given.node, "epsilon", 1e-12) }, &inputs)?);
    match given.node.outputs.as_slice() {
        [_] => Some(vec![normed]),
        // The outputs in between are statistics that only training uses.
        [_, mean, deviation, _] if mean.is_empty() && deviation.is_empty() => {
            Some(vec![normed.clone(), normed.clone(), normed, Item::Value(sum)])
        }
        _ => None,
    }
}

/// Imports an instance norm: a group norm with a group for each channel.
pub(super) fn instance_norm(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let groups = *to.shape(given.get(0)?)?.get(1)?;
    let inputs = operands(to, given, 0..3)?;
    one(to.emit(Composite::GroupNorm { groups, eps: float(given.node, "epsilon", 1e-5) }, &inputs)?)
}

/// Imports a group norm with a weight for each channel.
pub(super) fn group_norm(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let groups = usize::try_from(int(given.node, "num_groups", 0)).ok()?;
    let inputs = operands(to, given, 0..3)?;
    one(to.emit(Composite::GroupNorm { groups, eps: float(given.node, "epsilon", 1e-5) }, &inputs)?)
}
