//! Random inputs of a network.

use briquette_core::random;
use briquette_graph::op::Composite;
use briquette_graph::{Graph, GraphInput, InputSource, Op, Operand};
use briquette_models::graph_net::RunInputs;
use burn::tensor::{Device, Int, Tensor, TensorData};

/// Returns random texts of at most `max_tokens` tokens, images or sounds; `None` if the graph does not take them.
pub(super) fn random_inputs(
    graph: &Graph,
    given: InputSource,
    max_tokens: usize,
    device: &Device,
) -> Option<RunInputs> {
    let input = source(graph, given)?;
    let read = match given {
        InputSource::TokenIds => RunInputs::tokens(ids(graph, input, max_tokens, device)?),
        InputSource::Images => RunInputs::images(Tensor::from_data(numbers(&input.shape), device)),
        _ => RunInputs::sounds(Tensor::from_data(numbers(&input.shape), device)),
    };
    match source(graph, InputSource::TargetIds) {
        Some(target) => Some(read.with_target(ids(graph, target, max_tokens, device)?)),
        None => Some(read),
    }
}

fn source(graph: &Graph, wanted: InputSource) -> Option<&GraphInput> {
    graph.inputs.iter().find(|input| input.source == wanted)
}

fn ids(graph: &Graph, input: &GraphInput, max_tokens: usize, device: &Device) -> Option<Tensor<2, Int>> {
    let (batch, length) = (*input.shape.first()?, (*input.shape.get(1)?).min(max_tokens));
    let vocabulary = vocabulary(graph, input.value.into())?;
    let id = |at: usize| (random::uniform(1, at as u64) * vocabulary as f32) as i64;
    let ids: Vec<i64> = (0..batch * length).map(id).collect();
    Some(Tensor::from_data(TensorData::new(ids, [batch, length]), device))
}

fn numbers(shape: &[usize]) -> TensorData {
    let number = |at: usize| 4.0 * random::uniform(2, at as u64) - 2.0;
    TensorData::new((0..shape.iter().product()).map(number).collect::<Vec<f32>>(), shape.to_vec())
}

/// Returns the rows of the table that these ids look up.
fn vocabulary(graph: &Graph, ids: Operand) -> Option<usize> {
    let node = graph
        .nodes
        .iter()
        .find(|node| matches!(node.op, Op::Composite(Composite::Embedding)) && node.inputs.get(1) == Some(&ids))?;
    let (_, table) = node.weights().next()?;
    graph.weights[table.0].shape.0.first().copied()
}
