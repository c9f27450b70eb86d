//! The rule of each operator.

use super::attributes::int;
use super::importer::Importer;
use super::inputs::NodeInputs;
use super::item::Item;
use super::{einsum, element_wise, layers, layout, pools, quantized, ranges, recurrent, resize, scatter, top, unknown};
use briquette_formats::onnx::Node;

/// Imports a node; `None` if its operator has no rule, or its inputs do not fit.
pub(super) fn import(to: &mut Importer, node: &Node, inputs: &[Option<Item>]) -> Option<Vec<Item>> {
    let given = NodeInputs { node, items: inputs };
    let found = match (node.domain.as_str(), node.op_type.as_str()) {
        (
            "" | "com.microsoft",
            "Identity" | "Cast" | "CastLike" | "Dropout" | "Gelu" | "QuickGelu" | "FastGelu" | "BiasGelu",
        ) => None,
        ("com.microsoft", _) => return fused(to, &given),
        ("", _) => return standard(to, &given),
        _ => return None,
    };
    found.or_else(|| element_wise::import(to, &given))
}

/// Operators of ONNX.
fn standard(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    match given.node.op_type.as_str() {
        "Conv" | "ConvInteger" | "QLinearConv" => layers::conv(to, given),
        "ConvTranspose" => layers::conv_transpose(to, given),
        "MatMul" | "MatMulInteger" | "QLinearMatMul" => layers::matmul(to, given),
        "Gemm" => layers::gemm(to, given),
        "BatchNormalization" => layers::batch_norm(to, given),
        "LayerNormalization" => layers::layer_norm(to, given),
        "InstanceNormalization" => layers::instance_norm(to, given),
        "GroupNormalization" => layers::group_norm(to, given),
        "RMSNormalization" | "SimplifiedLayerNormalization" => layers::rms_norm(to, given),
        "Reshape" => layout::reshape(to, given),
        "Flatten" => layout::flatten(to, given),
        "Squeeze" | "Unsqueeze" => layout::squeeze(to, given),
        "Transpose" => layout::transpose(to, given),
        "Expand" => layout::expand(to, given),
        "Tile" => layout::tile(to, given),
        "ConstantOfShape" => layout::constant_of_shape(to, given),
        "Concat" => layout::concat(to, given),
        "DepthToSpace" | "SpaceToDepth" => layout::depth_and_space(to, given),
        "Split" => ranges::split(to, given),
        "Slice" => ranges::slice(to, given),
        "Gather" => ranges::gather(to, given),
        "Pad" => ranges::pad(to, given),
        "CumSum" => ranges::cumulative_sum(to, given),
        "GatherElements" if to.runs => scatter::gather_elements(to, given),
        "ScatterElements" if to.runs => scatter::scatter_elements(to, given),
        "ArgMax" | "ArgMin" if to.runs => top::arg_max(to, given),
        "TopK" if to.runs => top::top_k(to, given),
        "Einsum" if to.runs => einsum::einsum(to, given),
        "GatherND" => scatter::gather_nd(to, given),
        "ScatterND" if to.runs => scatter::scatter_nd(to, given),
        "Trilu" if to.runs => layout::triangle(to, given),
        "LSTM" | "GRU" | "RNN" if to.runs => recurrent::recurrent(to, given),
        "MaxPool" | "AveragePool" | "LpPool" => pools::pool(to, given),
        "GlobalAveragePool" | "GlobalMaxPool" => pools::global_pool(to, given),
        "Resize" | "Upsample" => resize::resize(to, given),
        "Softmax" | "LogSoftmax" => pools::softmax(to, given),
        name if name.starts_with("Reduce") => pools::reduce(to, given),
        "DynamicQuantizeLinear"
        | "ScatterND"
        | "ScatterElements"
        | "GatherElements"
        | "Trilu"
        | "TopK"
        | "ArgMax"
        | "ArgMin"
        | "LSTM"
        | "GRU"
        | "RNN" => shaped(to, given),
        _ => element_wise::import(to, given),
    }
}

/// Operators of onnxruntime that models of other programs use too.
fn fused(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    match given.node.op_type.as_str() {
        "SkipLayerNormalization" => layers::skip_layer_norm(to, given),
        "SimplifiedLayerNormalization" => layers::rms_norm(to, given),
        "QuantizeLinear" | "DequantizeLinear" => element_wise::import(to, given),
        "MatMulNBits" => quantized::product(to, given),
        "GatherBlockQuantized" => quantized::table(to, given),
        _ => None,
    }
}

/// Operators that fix all axes, with shapes that follow from their inputs.
fn shaped(to: &mut Importer, given: &NodeInputs) -> Option<Vec<Item>> {
    let shape = to.shape(given.get(0)?)?;
    let n_outputs = given.node.outputs.len();
    let shapes = match given.node.op_type.as_str() {
        "DynamicQuantizeLinear" => vec![shape, Vec::new(), Vec::new()],
        "GatherElements" => vec![to.shape(given.get(1)?)?],
        "ArgMax" | "ArgMin" => vec![without_axis(&shape, given.axis(to, 0)?, int(given.node, "keepdims", 1) == 1)],
        "TopK" => {
            let k = usize::try_from(*given.integers(to, 1)?.first()?).ok()?;
            let mut cut = shape;
            let axis = given.axis(to, -1)?;
            *cut.get_mut(axis)? = k;
            vec![cut.clone(), cut]
        }
        "LSTM" | "GRU" | "RNN" => recurrent(to, given, &shape)?,
        _ => vec![shape],
    };
    let shapes: Vec<Option<Vec<usize>>> = shapes.into_iter().map(Some).take(n_outputs).collect();
    (shapes.len() == n_outputs && !shapes.iter().flatten().any(|shape| shape.contains(&0))).then_some(())?;
    unknown::with_shapes(to, given.node, given.items, &shapes)
}

fn without_axis(shape: &[usize], axis: usize, keeps: bool) -> Vec<usize> {
    let mut found = shape.to_vec();
    match keeps {
        true => found[axis] = 1,
        false => drop(found.remove(axis)),
    }
    found
}

/// The outputs `[tokens, directions, batch, hidden]` and the last states `[directions, batch, hidden]`.
fn recurrent(to: &Importer, given: &NodeInputs, x: &[usize]) -> Option<Vec<Vec<usize>>> {
    let recurrence = to.shape(given.get(2)?)?;
    let (&[tokens, batch, _], &[directions, _, hidden]) = (x, recurrence.as_slice()) else { return None };
    if int(given.node, "layout", 0) != 0 {
        return None;
    }
    let state = vec![directions, batch, hidden];
    Some(vec![vec![tokens, directions, batch, hidden], state.clone(), state])
}
