//! Inputs of a model: those that a caller gives, and those that follow from them.

use super::dims::SymbolicDim;
use super::emitter::Emitter;
use super::text_inputs::{IDS, MASK, TARGET_SEQUENCE, TARGETS, positions, target_positions};
use super::weights::OnnxFloat;
use crate::computed_inputs::{bucket_of, relative_bucket, window_distances, window_mask};
use crate::graph::{GraphInput, InputSource, Node};
use crate::op::{Composite, Op};
use briquette_core::{Error, Result};
use briquette_formats::onnx_write::{OnnxDim, OnnxType, OnnxValue};

const IMAGES: &str = "pixel_values";
const SOUND: &str = "input_features";

/// Adds all inputs of the graph.
pub(super) fn add(to: &mut Emitter) -> Result<()> {
    let graph = &to.symbolic.graph;
    let find = |wanted: InputSource| graph.inputs.iter().find(move |input| input.source == wanted);
    if let Some(input) = find(InputSource::TokenIds) {
        given(to, input, IDS, OnnxType::I64);
        if graph.nodes.iter().any(|node| matches!(node.op, Op::Composite(Composite::Attention(_)))) || skips_padding(to)
        {
            let dims = to.dims(input.value.into());
            declare(to, MASK, OnnxType::I64, &dims);
        }
    }
    if let Some(input) = find(InputSource::SoundFeatures) {
        floats(to, input, SOUND);
    }
    if let Some(input) = find(InputSource::TargetIds) {
        given(to, input, TARGETS, OnnxType::I64);
    }
    if let Some(input) = find(InputSource::TokenTypeIds) {
        token_types(to, input);
    }
    if let Some(input) = find(InputSource::Images) {
        floats(to, input, IMAGES);
    }
    for input in &graph.inputs {
        to.enter(&graph.values[input.value.0]);
        let name = match input.source {
            InputSource::TokenIds
            | InputSource::TokenTypeIds
            | InputSource::Images
            | InputSource::TargetIds
            | InputSource::SoundFeatures => continue,
            InputSource::Caller | InputSource::AttentionMask => {
                let message = "found an input that is neither text nor images; ONNX export needs a known family";
                return Err(Error::input(message).at(&graph.values[input.value.0]));
            }
            InputSource::TokenShares => token_shares(to),
            InputSource::TargetPositionIds { offset } => after(to, target_positions, offset),
            InputSource::TargetBuckets { buckets, longest } => {
                // Keys after a query have the bucket of the query itself.
                let bucket = |distance: i64| bucket_of((-distance).max(0) as usize, buckets, longest) as i64;
                relative_buckets(to, target_positions, longest, &bucket)
            }
            InputSource::PositionIds { offset, skips_padding } => position_ids(to, offset, skips_padding),
            InputSource::RelativeBuckets { buckets, longest } => {
                relative_buckets(to, positions, longest, &|distance| relative_bucket(distance, buckets, longest))
            }
            InputSource::WindowDistances { window } => {
                let n = window * window;
                let flat = to.ints(&window_distances(window));
                to.reshape(&flat, &[n as i64, n as i64])
            }
            InputSource::WindowMask { grid, window, shift } => mask_of_windows(to, grid, window, shift),
        };
        to.set(input.value, name);
    }
    Ok(())
}

fn skips_padding(to: &Emitter) -> bool {
    let skips = |input: &GraphInput| matches!(input.source, InputSource::PositionIds { skips_padding: true, .. });
    to.symbolic.graph.inputs.iter().any(skips)
}

fn given(to: &mut Emitter, input: &GraphInput, name: &str, dtype: OnnxType) {
    let dims = to.dims(input.value.into());
    declare(to, name, dtype, &dims);
    to.set(input.value, name.to_string());
}

fn declare(to: &mut Emitter, name: &str, dtype: OnnxType, dims: &[SymbolicDim]) {
    let name = to.unique(name);
    let of = |dim: &SymbolicDim| match dim.symbol() {
        Some("sequence") if name == TARGETS => OnnxDim::Named(TARGET_SEQUENCE),
        Some(symbol) => OnnxDim::Named(symbol),
        None => OnnxDim::Fixed(dim.extent),
    };
    let shape = dims.iter().map(of).collect();
    to.model.inputs.push(OnnxValue::new(name, dtype, shape));
}

/// Segments are an input, unless their table has one row only.
fn token_types(to: &mut Emitter, input: &GraphInput) {
    let graph = &to.symbolic.graph;
    let is_own = |node: &&Node| node.inputs.contains(&input.value.into());
    let tables = graph.nodes.iter().filter(is_own).flat_map(|node| node.weights());
    if tables.map(|(_, weight)| graph.weights[weight.0].shape.0[0]).all(|rows| rows == 1) {
        to.enter("token_type_ids");
        let zeros = to.plain("Sub", &[IDS, IDS]);
        to.set(input.value, zeros);
    } else {
        given(to, input, "token_type_ids", OnnxType::I64);
    }
}

/// Images and sounds are f32 in every model.
fn floats(to: &mut Emitter, input: &GraphInput, name: &str) {
    given(to, input, name, OnnxType::F32);
    if to.float == OnnxFloat::F16 {
        to.enter(name);
        let narrow = to.cast(name, OnnxType::F16);
        to.set(input.value, narrow);
    }
}

/// `mask / sum of mask`, `[batch, tokens, 1]`.
fn token_shares(to: &mut Emitter) -> String {
    let float = to.float_type();
    let mask = to.cast(MASK, float);
    let axes = to.ints(&[1]);
    let total = to.plain("ReduceSum", &[&mask, &axes]);
    let shares = to.plain("Div", &[&mask, &total]);
    to.unsqueeze(&shares, &[2])
}

/// `offset` and the number of earlier tokens. A padding token that is not counted has `offset - 1`.
fn position_ids(to: &mut Emitter, offset: usize, skips_padding: bool) -> String {
    if skips_padding {
        let axis = to.int(1);
        let counted = to.plain("CumSum", &[MASK, &axis]);
        let counted = to.plain("Mul", &[&counted, MASK]);
        let before = to.int(offset as i64 - 1);
        return to.plain("Add", &[&counted, &before]);
    }
    after(to, positions, offset)
}

/// Positions after an offset, for each text: `[1, tokens]`.
fn after(to: &mut Emitter, positions: fn(&mut Emitter) -> String, offset: usize) -> String {
    let mut found = positions(to);
    if offset > 0 {
        let offset = to.int(offset as i64);
        found = to.plain("Add", &[&found, &offset]);
    }
    to.unsqueeze(&found, &[0])
}

/// The bucket of each query and key, looked up by their distance: `[tokens, tokens]`.
fn relative_buckets(
    to: &mut Emitter,
    positions: fn(&mut Emitter) -> String,
    longest: usize,
    bucket: &dyn Fn(i64) -> i64,
) -> String {
    let reach = longest as i64;
    let by_distance: Vec<i64> = (-reach..=reach).map(bucket).collect();
    let table = to.ints(&by_distance);
    let tokens = positions(to);
    let (queries, keys) = (to.unsqueeze(&tokens, &[1]), to.unsqueeze(&tokens, &[0]));
    let distance = to.plain("Sub", &[&keys, &queries]);
    let (low, high) = (to.int(-reach), to.int(reach));
    let distance = to.plain("Clip", &[&distance, &low, &high]);
    let place = to.plain("Add", &[&distance, &high]);
    to.plain("Gather", &[&table, &place])
}

/// The mask of the windows of one image, repeated for each image.
fn mask_of_windows(to: &mut Emitter, grid: [usize; 2], window: usize, shift: [usize; 2]) -> String {
    let (n, values) = (window * window, window_mask(grid, window, shift));
    let n_windows = values.len() / (n * n);
    let mask = to.floats(&values, &[1, n_windows, n, n]);
    let shape = to.plain("Shape", &[IMAGES]);
    let first = to.ints(&[0]);
    let batch = to.plain("Gather", &[&shape, &first]);
    let rest = to.ints(&[1, 1, 1]);
    let shape = to.concat(&[&batch, &rest], 0);
    let mask = to.plain("Expand", &[&mask, &shape]);
    to.reshape(&mask, &[-1, 1, n as i64, n as i64])
}
