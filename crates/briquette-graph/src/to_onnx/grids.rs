//! Values on fixed grids, as pairs of `QuantizeLinear` and `DequantizeLinear`.

use super::emitter::Emitter;
use crate::graph::WeightId;
use crate::op::FixedGrid;
use briquette_formats::onnx_write::OnnxType;

/// Rounds a value to a grid; `None` if the codes of the grid are no 8-bit integers.
///
/// Operations that read a value on the same grid share the pair.
pub(super) fn rounded(to: &mut Emitter, x: &str, grid: FixedGrid) -> Option<String> {
    let (dtype, zero) = match grid.codes {
        [0, 255] => (OnnxType::U8, u8::try_from(grid.zero).ok()?),
        [-128, 127] => (OnnxType::I8, i8::try_from(grid.zero).ok()?.cast_unsigned()),
        _ => return None,
    };
    let key = format!("{x} on a grid of {:08x} {} {zero}", grid.scale.to_bits(), dtype.number());
    let found = to.shared(&key, |to| {
        let scale = to.number_of(OnnxType::F32, f64::from(grid.scale));
        let zero = to.code(dtype, zero);
        let codes = to.plain("QuantizeLinear", &[x, &scale, &zero]);
        to.plain("DequantizeLinear", &[&codes, &scale, &zero])
    });
    Some(found)
}

/// Rounds the input of a linear layer to the grid of its weight, if it has one.
pub(super) fn layer_input(to: &mut Emitter, x: &str, weight: WeightId) -> String {
    let grid = to.forms.input_grid(&to.symbolic.graph.weights[weight.0]);
    grid.and_then(|grid| rounded(to, x, grid)).unwrap_or_else(|| x.to_string())
}
