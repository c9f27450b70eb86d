//! Linear layers and tables, as floats or as codes.

use super::emitter::{Emitter, OPSET_OF_BLOCKS};
use super::grids;
use super::weights::{LinearForm, TableForm, WeightBytes};
use crate::graph::{Node, NodeId, Operand, WeightId};
use crate::op::{Composite, Op};
use briquette_core::{OutputAxis, Result};
use briquette_formats::onnx_write::{OnnxAttribute, OnnxType};

/// `x · Wᵀ + b`: `[x, weight]` or `[x, weight, bias]`.
pub(super) fn linear(to: &mut Emitter, node: NodeId, inputs: &[Operand]) -> Result<String> {
    let x = to.operand(inputs[0]);
    let product = match inputs[1] {
        Operand::Value(_) => {
            let b = to.operand(inputs[1]);
            product(to, &x, &b, true, inputs)
        }
        Operand::Weight(weight) => weighted(to, node, &x, weight)?,
    };
    match inputs.get(2) {
        None => Ok(product),
        Some(&bias) => {
            let bias = to.operand(bias);
            Ok(to.plain("Add", &[&product, &bias]))
        }
    }
}

/// The product with a weight in its form.
pub(super) fn weighted(to: &mut Emitter, node: NodeId, x: &str, weight: WeightId) -> Result<String> {
    let of = &to.symbolic.graph.weights[weight.0];
    if of.shape.0.len() != 2 {
        return Err(to.refused(node, &format!("found a weight of shape {}", of.shape)));
    }
    Ok(coded(to, x, weight))
}

/// The product with a matrix in its form.
pub(super) fn coded(to: &mut Emitter, x: &str, weight: WeightId) -> String {
    match to.forms.linear(&to.symbolic.graph.weights[weight.0]) {
        LinearForm::Float => {
            let x = grids::layer_input(to, x, weight);
            let matrix = matrix(to, weight);
            to.plain("MatMul", &[&x, &matrix])
        }
        LinearForm::Int8 => {
            let x = scaled_as_before(to, x, weight);
            let x = grids::layer_input(to, &x, weight);
            dequantized(to, &x, weight)
        }
        LinearForm::Int8Dynamic => dynamic(to, x, weight),
        LinearForm::Blocks { bits, group, has_zero_points } => {
            let x = scaled_as_before(to, x, weight);
            let x = grids::layer_input(to, &x, weight);
            match to.forms.has_own_operators() {
                true => {
                    let matrix = dequantized_blocks(to, weight, bits, group, has_zero_points);
                    to.plain("MatMul", &[&x, &matrix])
                }
                false => blocks(to, &x, weight, bits, group, has_zero_points),
            }
        }
    }
}

/// An input in f32, times the vector of a weight if it has one.
fn scaled(to: &mut Emitter, input: &str, weight: WeightId) -> String {
    let number = to.forms.input_scale(&to.symbolic.graph.weights[weight.0]);
    if let Some(known) = number.and_then(|number| to.scaled_inputs.get(&(input.to_string(), number))) {
        return known.clone();
    }
    let mut x = input.to_string();
    if to.float_type() != OnnxType::F32 {
        x = to.cast(&x, OnnxType::F32);
    }
    let Some(number) = number else { return x };
    let [_, n_in] = extents(to, weight);
    let scale = to.streamed(weight, WeightBytes::InputScales, ".input_scale", OnnxType::F32, vec![n_in]);
    let product = to.plain("Mul", &[&x, &scale]);
    to.scaled_inputs.insert((input.to_string(), number), product.clone());
    product
}

/// An input times the vector of a weight if it has one, in the model's type.
fn scaled_as_before(to: &mut Emitter, x: &str, weight: WeightId) -> String {
    if to.forms.input_scale(&to.symbolic.graph.weights[weight.0]).is_none() {
        return x.to_string();
    }
    let product = scaled(to, x, weight);
    if to.float_type() == OnnxType::F32 { product } else { to.cast(&product, to.float_type()) }
}

/// The extents `[out, in]` of a matrix.
fn extents(to: &Emitter, weight: WeightId) -> [usize; 2] {
    let weight = &to.symbolic.graph.weights[weight.0];
    match (weight.shape.0.as_slice(), weight.layout) {
        (&[n_in, n_out], OutputAxis::Last) => [n_out, n_in],
        (shape, _) => [shape[0], shape[1]],
    }
}

/// A float matrix `[in, out]`.
fn matrix(to: &mut Emitter, weight: WeightId) -> String {
    let graph = &to.symbolic.graph;
    let of = &graph.weights[weight.0];
    if of.layout == OutputAxis::Last {
        return to.weight(weight);
    }
    if is_used_otherwise(to, weight) || !to.forms.is_transposed_in_memory(of) {
        let own = to.weight(weight);
        return transposed(to, &own);
    }
    let ([n_out, n_in], dtype) = (extents(to, weight), to.float_type());
    to.streamed(weight, WeightBytes::TransposedFloats, ".transposed", dtype, vec![n_in, n_out])
}

/// Whether others than linear layers use a weight as it is, such as a tied table. It is then stored once, and the program transposes it.
fn is_used_otherwise(to: &Emitter, weight: WeightId) -> bool {
    to.symbolic.graph.nodes.iter().any(|node| uses(node, weight).any(|is_linear| !is_linear))
}

/// Whether a linear layer has this matrix.
fn is_linear_weight(to: &Emitter, weight: WeightId) -> bool {
    to.symbolic.graph.nodes.iter().any(|node| uses(node, weight).any(|is_linear| is_linear))
}

/// For each use of a weight by a node, whether it is the matrix of a linear layer or expert.
fn uses(node: &Node, weight: WeightId) -> impl Iterator<Item = bool> + '_ {
    let is_matrix = |position: usize| match node.op {
        Op::Composite(Composite::Linear) => position == 1,
        Op::Composite(Composite::SeparateExperts { .. }) => position > 1,
        _ => false,
    };
    node.weights().filter(move |(_, used)| *used == weight).map(move |(position, _)| is_matrix(position))
}

/// The transposed matrix of a constant, computed once.
fn transposed(to: &mut Emitter, name: &str) -> String {
    to.shared(&format!("transposed {name}"), |to| to.transpose(name, &[1, 0]))
}

/// int8 codes `[in, out]`.
fn code_matrix(to: &mut Emitter, weight: WeightId) -> String {
    let [n_out, n_in] = extents(to, weight);
    let is_table = is_used_otherwise(to, weight);
    let of = &to.symbolic.graph.weights[weight.0];
    if is_table && matches!(to.forms.table(of), TableForm::Int8 { .. }) {
        let codes = to.streamed(weight, WeightBytes::Codes, ".codes", OnnxType::I8, vec![n_out, n_in]);
        return transposed(to, &codes);
    }
    to.streamed(weight, WeightBytes::TransposedCodes, ".codes", OnnxType::I8, vec![n_in, n_out])
}

/// Dequantizes int8 codes `[in, out]`, and multiplies floats.
fn dequantized(to: &mut Emitter, x: &str, weight: WeightId) -> String {
    let [n_out, _] = extents(to, weight);
    let codes = code_matrix(to, weight);
    let scales = to.streamed(weight, WeightBytes::RowScales, ".scale", OnnxType::F32, vec![n_out]);
    let mut matrix = to.op("DequantizeLinear", &[&codes, &scales], vec![("axis", OnnxAttribute::Int(1))]);
    if to.float_type() != OnnxType::F32 {
        matrix = to.cast(&matrix, to.float_type());
    }
    to.plain("MatMul", &[x, &matrix])
}

/// Rounds inputs to 8 bits, multiplies integers and scales the sums.
fn dynamic(to: &mut Emitter, x: &str, weight: WeightId) -> String {
    let [n_out, _] = extents(to, weight);
    let is_half = to.float_type() != OnnxType::F32;
    let [rounded, scale, zero] = rounded(to, x, weight);
    let codes = code_matrix(to, weight);
    let scales = to.streamed(weight, WeightBytes::RowScales, ".scale", OnnxType::F32, vec![n_out]);
    let sums = to.plain("MatMulInteger", &[&rounded, &codes, &zero]);
    let sums = to.cast(&sums, OnnxType::F32);
    let scales = to.plain("Mul", &[&scale, &scales]);
    let product = to.plain("Mul", &[&sums, &scales]);
    if is_half { to.cast(&product, OnnxType::F16) } else { product }
}

/// Codes, scale and zero point of an input. Layers with the same input and the same vector share them.
fn rounded(to: &mut Emitter, input: &str, weight: WeightId) -> [String; 3] {
    let key = (input.to_string(), to.forms.input_scale(&to.symbolic.graph.weights[weight.0]));
    if let Some(known) = to.rounded_inputs.get(&key) {
        return known.clone();
    }
    let x = scaled(to, input, weight);
    let outputs = to.ops("DynamicQuantizeLinear", &[&x], Vec::new(), 3);
    let found: [String; 3] = std::array::from_fn(|at| outputs[at].clone());
    to.rounded_inputs.insert(key, found.clone());
    found
}

/// Codes with a scale for each group of inputs.
fn blocks(to: &mut Emitter, x: &str, weight: WeightId, bits: u8, group: usize, has_zero_points: bool) -> String {
    let ([n_out, n_in], dtype) = (extents(to, weight), to.float_type());
    let (n_groups, bits_each) = (n_in.div_ceil(group), usize::from(bits));
    let shape = vec![n_out, n_groups, group * bits_each / 8];
    let codes = to.streamed(weight, WeightBytes::Blocks, ".codes", OnnxType::U8, shape);
    let scales = to.streamed(weight, WeightBytes::BlockScales, ".scale", dtype, vec![n_out, n_groups]);
    let mut inputs = vec![x.to_string(), codes, scales];
    if has_zero_points {
        let shape = vec![n_out, (n_groups * bits_each).div_ceil(8)];
        inputs.push(to.streamed(weight, WeightBytes::BlockZeros, ".zero", OnnxType::U8, shape));
    }
    let number = |name, value: usize| (name, OnnxAttribute::Int(value as i64));
    let attributes =
        vec![number("K", n_in), number("N", n_out), number("bits", bits_each), number("block_size", group)];
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    to.in_domain("com.microsoft", "MatMulNBits", &inputs, attributes, 1).remove(0)
}

/// The float matrix `[in, out]` of codes with a scale for each group of inputs.
fn dequantized_blocks(to: &mut Emitter, weight: WeightId, bits: u8, group: usize, has_zero_points: bool) -> String {
    to.model.opset = to.model.opset.max(OPSET_OF_BLOCKS);
    let ([n_out, n_in], float) = (extents(to, weight), to.float_type());
    let dtype = if bits == 4 { OnnxType::I4 } else { OnnxType::I8 };
    let codes = to.streamed(weight, WeightBytes::TransposedBlocks, ".codes", dtype, vec![n_in, n_out]);
    let shape = vec![n_in.div_ceil(group), n_out];
    let scales = to.streamed(weight, WeightBytes::TransposedBlockScales, ".scale", float, shape.clone());
    let mut inputs = vec![codes, scales];
    if has_zero_points {
        inputs.push(to.streamed(weight, WeightBytes::TransposedBlockZeros, ".zero", dtype, shape));
    }
    let attributes = vec![("axis", OnnxAttribute::Int(0)), ("block_size", OnnxAttribute::Int(group as i64))];
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    to.op("DequantizeLinear", &inputs, attributes)
}

/// Rows of a table of codes with a scale for each group of columns.
fn block_rows(
    to: &mut Emitter,
    weight: WeightId,
    indices: &str,
    bits: usize,
    group: usize,
    has_zero_points: bool,
) -> String {
    let ([n_rows, width], dtype) = (extents(to, weight), to.float_type());
    let n_groups = width.div_ceil(group);
    let bytes_of_row = n_groups * group * bits / 8;
    let codes = match is_linear_weight(to, weight) {
        // `MatMulNBits` has the same codes by group.
        true => {
            let shape = vec![n_rows, n_groups, bytes_of_row / n_groups];
            let codes = to.streamed(weight, WeightBytes::Blocks, ".codes", OnnxType::U8, shape);
            to.reshape(&codes, &[n_rows as i64, bytes_of_row as i64])
        }
        false => to.streamed(weight, WeightBytes::Blocks, ".codes", OnnxType::U8, vec![n_rows, bytes_of_row]),
    };
    let scales = to.streamed(weight, WeightBytes::BlockScales, ".scale", dtype, vec![n_rows, n_groups]);
    let mut inputs = vec![codes, indices.to_string(), scales];
    if has_zero_points {
        let shape = vec![n_rows, (n_groups * bits).div_ceil(8)];
        inputs.push(to.streamed(weight, WeightBytes::BlockZeros, ".zero", OnnxType::U8, shape));
    }
    let number = |name, value: usize| (name, OnnxAttribute::Int(value as i64));
    let axes = [number("gather_axis", 0), number("quantize_axis", 1)];
    let attributes = [axes, [number("bits", bits), number("block_size", group)]].concat();
    let inputs: Vec<&str> = inputs.iter().map(String::as_str).collect();
    to.in_domain("com.microsoft", "GatherBlockQuantized", &inputs, attributes, 1).remove(0)
}

/// `[.., m, k] · [.., k, n]`, or with `[.., n, k]`.
pub(super) fn product(to: &mut Emitter, a: &str, b: &str, transpose_b: bool, inputs: &[Operand]) -> String {
    if !transpose_b {
        return to.plain("MatMul", &[a, b]);
    }
    let rank = to.dims(inputs[1]).len();
    let mut permutation: Vec<usize> = (0..rank).collect();
    permutation.swap(rank - 2, rank - 1);
    let turned = to.transpose(b, &permutation);
    to.plain("MatMul", &[a, &turned])
}

/// Rows of a table by index: `[table, indices]`.
pub(super) fn table(to: &mut Emitter, inputs: &[Operand]) -> String {
    let indices = to.operand(inputs[1]);
    match inputs[0] {
        Operand::Weight(weight) => rows(to, weight, &indices),
        Operand::Value(_) => {
            let table = to.operand(inputs[0]);
            to.plain("Gather", &[&table, &indices])
        }
    }
}

/// Rows of a weight in its form.
pub(super) fn rows(to: &mut Emitter, weight: WeightId, indices: &str) -> String {
    let has_half_scales = match to.forms.table(&to.symbolic.graph.weights[weight.0]) {
        TableForm::Int8 { has_half_scales } => has_half_scales,
        TableForm::Blocks { bits, group, has_zero_points } if to.forms.has_own_operators() => {
            let matrix = dequantized_blocks(to, weight, bits, group, has_zero_points);
            let table = to.transpose(&matrix, &[1, 0]);
            return to.plain("Gather", &[&table, indices]);
        }
        TableForm::Blocks { bits, group, has_zero_points } => {
            return block_rows(to, weight, indices, usize::from(bits), group, has_zero_points);
        }
        TableForm::Float => {
            let table = to.weight(weight);
            return to.plain("Gather", &[&table, indices]);
        }
    };
    let [n_rows, width] = extents(to, weight);
    // A tied head reads scales in f32.
    let is_half = has_half_scales && !is_linear_weight(to, weight);
    let (bytes, dtype) = match is_half {
        true => (WeightBytes::HalfRowScales, OnnxType::F16),
        false => (WeightBytes::RowScales, OnnxType::F32),
    };
    let codes = to.streamed(weight, WeightBytes::Codes, ".codes", OnnxType::I8, vec![n_rows, width]);
    let scales = to.streamed(weight, bytes, ".scale", dtype, vec![n_rows]);
    let (codes, scales) = (to.plain("Gather", &[&codes, indices]), to.plain("Gather", &[&scales, indices]));
    let scales = to.unsqueeze(&scales, &[-1]);
    let scales = if is_half { to.cast(&scales, OnnxType::F32) } else { scales };
    let codes = to.cast(&codes, OnnxType::F32);
    let rows = to.plain("Mul", &[&codes, &scales]);
    if to.float_type() == OnnxType::F32 { rows } else { to.cast(&rows, to.float_type()) }
}
