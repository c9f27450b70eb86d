//! Quantized models as float networks: pairs of `QuantizeLinear` and `DequantizeLinear` (QDQ) round activations, and weights in codes are decoded.

use super::attributes::int;
use super::importer::{Importer, MAX_KNOWN};
use super::inputs::NodeInputs;
use super::item::{Item, known};
use crate::op::{Composite, ElementFunction, FixedGrid, Primitive};
use briquette_core::DType;
use briquette_formats::onnx::Constant;

/// Imports `QuantizeLinear` of an activation: the activation, rounded to a grid.
pub(super) fn quantize(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let grid = fixed_grid(to, given)?;
    let x = to.operand(given.get(0)?)?;
    let rounded = to.emit(Primitive::FakeQuantize(grid), &[x])?;
    Some(vec![Item::Codes(rounded, grid)])
}

/// Imports `DequantizeLinear` of an activation's codes, of a weight, of a bias, or of other integers.
pub(super) fn dequantize(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    match given.get(0)? {
        Item::Codes(rounded, grid) if fixed_grid(to, given)? == *grid => Some(vec![Item::Value(*rounded)]),
        Item::Tensor(_) => {
            let found = decoded(to, given, [0, 1]).or_else(|| decoded_vector(to, given));
            Some(vec![found.or_else(|| scaled_codes(to, given))?])
        }
        Item::Codes(..) => None,
        _ => Some(vec![scaled_codes(to, given)?]),
    }
}

/// Imports `MatMulNBits`: a linear layer whose weight has codes in groups.
pub(super) fn product(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let (x, weight) = (to.operand(given.get(0)?)?, decoded(to, given, [1, 2])?);
    let mut inputs = vec![x, to.operand(&weight)?];
    if let Some(bias) = given.get(5) {
        inputs.push(to.operand(bias)?);
    }
    Some(vec![Item::Value(to.emit(Composite::Linear, &inputs)?)])
}

/// Imports `GatherBlockQuantized`: rows of a table of codes in groups.
pub(super) fn table(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let (indices, table) = (to.operand(given.get(1)?)?, decoded(to, given, [0, 2])?);
    let table = to.operand(&table)?;
    Some(vec![Item::Value(to.emit(Composite::Embedding, &[table, indices])?)])
}

/// Returns the decoded floats of the codes and scales at two positions.
fn decoded(to: &mut Importer, given: &NodeInputs, [codes, scale]: [usize; 2]) -> Option<Item> {
    to.decoded(given.node.inputs.get(codes)?, given.node.inputs.get(scale)?)
}

/// Returns the grid of a node, if it has one scale.
fn fixed_grid(to: &Importer, given: &NodeInputs) -> Option<FixedGrid> {
    let number = |position: usize| match to.known(given.get(position)?)?.values.as_slice() {
        [number] => Some(*number),
        _ => None,
    };
    let scale = Some(number(1)? as f32).filter(|scale| scale.is_finite() && *scale > 0.0)?;
    let (zero, dtype) = match given.get(2) {
        None => (0.0, DType::U8),
        Some(Item::Tensor(index)) => (number(2)?, to.tensor(*index).dtype()?),
        Some(_) => return None,
    };
    let codes = match dtype {
        DType::U8 => [0, 255],
        DType::I8 => [-128, 127],
        DType::U16 => [0, 65_535],
        DType::I16 => [-32_768, 32_767],
        _ => return None,
    };
    Some(FixedGrid { scale, zero: zero as i32, codes })
}

/// Computes the values of a matrix whose codes something else reads too, such as a table of tokens that is also the head:
/// `code · scale`, with one scale or one for each index of an axis.
fn scaled_codes(to: &mut Importer, given: &NodeInputs) -> Option<Item> {
    let (shape, scales) = (to.shape(given.get(0)?)?, to.shape(given.get(1)?)?);
    let has_zeros = match given.get(2) {
        Some(zeros) => to.values(zeros)?.values.iter().any(|zero| *zero != 0.0),
        None => false,
    };
    let axis = given.axis(to, 1)?;
    let is_one = scales.iter().product::<usize>() == 1;
    let is_of_axis = scales.len() == 1 && shape.get(axis) == scales.first();
    if has_zeros || int(given.node, "block_size", 0) != 0 || !(is_one || is_of_axis) {
        return None;
    }
    let mut scale = to.operand(given.get(1)?)?;
    if !is_one && axis + 1 < shape.len() {
        let along: Vec<usize> = (axis..shape.len()).map(|at| if at == axis { scales[0] } else { 1 }).collect();
        scale = to.emit(Primitive::Reshape(along), &[scale])?.into();
    }
    let codes = to.operand(given.get(0)?)?;
    Some(Item::Value(to.emit(Primitive::Elementwise(ElementFunction::Mul), &[codes, scale])?))
}

/// Returns the values of a small vector or number, such as a bias.
fn decoded_vector(to: &Importer, given: &NodeInputs) -> Option<Item> {
    let (codes, scales) = (to.values(given.get(0)?)?, to.values(given.get(1)?)?.values);
    let zeros = match given.get(2) {
        Some(zeros) => to.values(zeros)?.values,
        None => vec![0.0],
    };
    let n = codes.values.len();
    let fits = |list: &[f64]| list.len() == 1 || list.len() == n;
    if codes.shape.len() > 1
        || n > MAX_KNOWN
        || !fits(&scales)
        || !fits(&zeros)
        || int(given.node, "block_size", 0) != 0
    {
        return None;
    }
    let at = |list: &[f64], index: usize| list[if list.len() == 1 { 0 } else { index }];
    let value = |(index, code): (usize, &f64)| f64::from(((code - at(&zeros, index)) * at(&scales, index)) as f32);
    let values = codes.values.iter().enumerate().map(value).collect();
    Some(known(Constant { shape: codes.shape, is_integer: false, values }))
}
